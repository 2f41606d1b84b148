//! The same test binary once more, as a user without privileges.

use super::devices::FOLDER_VARIABLE;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

/// Set in the second run, which must not start a third.
const AGAIN_VARIABLE: &str = "OUTCORE_TEST_UNPRIVILEGED";

/// `nobody`, by Linux convention.
const NOBODY: u32 = 65534;

pub(crate) fn run_again() {
    if std::env::var_os(AGAIN_VARIABLE).is_some() {
        return;
    }
    // A folder that `nobody` can reach: the build folder may lie in a private home.
    let candidates = [
        Path::new(env!("CARGO_TARGET_TMPDIR")).to_owned(),
        std::env::temp_dir(),
    ];
    for parent in candidates {
        let folder = tempfile::Builder::new()
            .permissions(PermissionsExt::from_mode(0o777))
            .tempdir_in(parent)
            .unwrap();
        // The umask may have taken what was asked for.
        std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o777)).unwrap();
        let binary = folder.path().join("conformance");
        std::fs::copy(std::env::current_exe().unwrap(), &binary).unwrap();
        if unprivileged("test -x \"$0\" && test -w \"$1\"", &binary, folder.path())
            .status()
            .unwrap()
            .success()
        {
            // `ulimit` counts in KiB. A system whose users may lock less than 8 MiB tests more.
            let script = "ulimit -l 8192 2>/dev/null || true; exec \"$0\" --quiet";
            let mut command = unprivileged(script, &binary, folder.path());
            let output = command
                .env(AGAIN_VARIABLE, "1")
                .env(FOLDER_VARIABLE, folder.path())
                .output()
                .unwrap();
            let text = String::from_utf8_lossy(&output.stdout);
            assert!(
                output.status.success(),
                "{text}\n{}",
                String::from_utf8_lossy(&output.stderr)
            );
            return;
        }
    }
    eprintln!("skipped: no folder that an unprivileged user can reach");
}

/// A shell without privileges; `$0` is the binary and `$1` the folder.
fn unprivileged(script: &str, binary: &Path, folder: &Path) -> Command {
    let mut command = Command::new("sh");
    command
        .arg("-c")
        .arg(script)
        .arg(binary)
        .arg(folder)
        .current_dir("/");
    if rustix::process::geteuid().is_root() {
        command.uid(NOBODY).gid(NOBODY);
    }
    command
}
