//! How much memory this process may use.

use std::fs;
use std::path::Path;

/// Bytes of memory that the process may use: the machine's, or less where a cgroup or a resource
/// limit says so.
pub fn memory_allowed() -> u64 {
    let limits = [machine(), cgroup_v2(), cgroup_v1(), resource_limit()];
    limits.into_iter().flatten().min().unwrap_or(1 << 30)
}

fn machine() -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("MemTotal:"))?;
    Some(
        line.trim()
            .trim_end_matches("kB")
            .trim()
            .parse::<u64>()
            .ok()?
            << 10,
    )
}

fn resource_limit() -> Option<u64> {
    use rustix::process::{Resource, getrlimit};
    [Resource::As, Resource::Data]
        .into_iter()
        .filter_map(|resource| getrlimit(resource).current)
        .min()
}

fn cgroup_v2() -> Option<u64> {
    let path = own_group(|line| line.strip_prefix("0::"))?;
    smallest_up(Path::new("/sys/fs/cgroup"), &path, "memory.max")
}

fn cgroup_v1() -> Option<u64> {
    let memory = |line: &str| {
        let mut parts = line.splitn(3, ':');
        (parts
            .nth(1)?
            .split(',')
            .any(|controller| controller == "memory"))
        .then(|| parts.next())
        .flatten()
        .map(str::to_owned)
    };
    let text = fs::read_to_string("/proc/self/cgroup").ok()?;
    let path = text.lines().find_map(memory)?;
    smallest_up(
        Path::new("/sys/fs/cgroup/memory"),
        &path,
        "memory.limit_in_bytes",
    )
}

fn own_group(pick: impl Fn(&str) -> Option<&str>) -> Option<String> {
    let text = fs::read_to_string("/proc/self/cgroup").ok()?;
    text.lines().find_map(|line| pick(line).map(str::to_owned))
}

/// The smallest limit of a group and the groups around it; a container may not see its own path.
fn smallest_up(root: &Path, path: &str, file: &str) -> Option<u64> {
    let group = root.join(path.trim_start_matches('/'));
    let groups = group
        .ancestors()
        .take_while(|folder| folder.starts_with(root));
    groups
        .filter_map(|folder| {
            fs::read_to_string(folder.join(file))
                .ok()?
                .trim()
                .parse()
                .ok()
        })
        .min()
}

/// Files that a process may always have open beside others.
const FILES_FEW: u64 = 128;

/// Lets the process open `more` files, as far as the system allows; where it does not, opening them
/// fails.
pub fn allow_files(more: u64) {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if let Some(current) = current.filter(|_| more > FILES_FEW) {
        let wanted = current.saturating_add(more);
        let _ = setrlimit(
            Resource::Nofile,
            Rlimit {
                current: Some(maximum.map_or(wanted, |most| most.min(wanted))),
                maximum,
            },
        );
    }
}
