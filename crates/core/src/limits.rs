//! How much memory this process may use, and what its sessions have taken of it.

use std::fs;
use std::path::Path;

use outcore_engine::{Cap, Share};

use crate::error::{Error, Result};

/// What part of the memory belongs to this process, where several on a machine divide it: a number
/// such as `0.25`, or `1/4`.
const SHARE_VARIABLE: &str = "OUTCORE_MEMORY_SHARE";

/// The least that a session can work with.
pub(crate) const SESSION_BYTES_MIN: u64 = 1 << 20;

/// What the sessions of this process have taken.
static TAKEN: Cap = Cap::new();

/// The share of a session: `bytes`, or without them a quarter of what all sessions may have, or
/// what is left if that is less.
///
/// # Errors
/// [`Error::Value`] for less than 1 MiB, [`Error::OverCap`] for more than is left.
pub(crate) fn take_share(bytes: Option<u64>) -> Result<Share> {
    if let Some(bytes) = bytes.filter(|&bytes| bytes < SESSION_BYTES_MIN) {
        return Err(Error::value(format!(
            "memory must be at least 1 MiB, not {bytes} bytes"
        )));
    }
    let cap = memory_cap()?;
    TAKEN.take(|taken| {
        let left = cap.saturating_sub(taken);
        let asked = bytes.unwrap_or_else(|| (cap / 4).min(left).max(SESSION_BYTES_MIN));
        match asked <= left {
            true => Ok(asked),
            false => Err(Error::OverCap {
                needed: asked,
                taken,
                cap,
            }),
        }
    })
}

/// Bytes that all sessions of this process may have together: what the process may use, or the part
/// of it that `$OUTCORE_MEMORY_SHARE` says.
///
/// ```
/// use outcore_core::limits::{memory_allowed, memory_cap};
///
/// assert!(memory_cap()? <= memory_allowed());
/// # Ok::<(), outcore_core::Error>(())
/// ```
///
/// # Errors
/// [`Error::Value`] for a variable that is no number above 0 and up to 1.
pub fn memory_cap() -> Result<u64> {
    let allowed = memory_allowed();
    let Some(text) = std::env::var_os(SHARE_VARIABLE).filter(|text| !text.is_empty()) else {
        return Ok(allowed);
    };
    let share = text.to_str().and_then(parse_share).ok_or_else(|| {
        Error::value(format!(
            "{SHARE_VARIABLE} must be a number above 0 and up to 1, such as 0.25 or 1/4, not {text:?}"
        ))
    })?;
    Ok((allowed as f64 * share) as u64)
}

fn parse_share(text: &str) -> Option<f64> {
    let number = |text: &str| text.trim().parse::<f64>().ok();
    let share = match text.split_once('/') {
        Some((part, whole)) => number(part)? / number(whole)?,
        None => number(text)?,
    };
    (share > 0.0 && share <= 1.0).then_some(share)
}

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
///
/// ```
/// outcore_core::limits::allow_files(100);
/// ```
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_a_fraction_of_one() {
        assert_eq!(parse_share("0.25"), Some(0.25));
        assert_eq!(parse_share(" 1 / 8 "), Some(0.125));
        assert_eq!(parse_share("1"), Some(1.0));
        for wrong in [
            "0", "-0.5", "1.5", "4/2", "1/0", "0/0", "nan", "half", "1/4/2",
        ] {
            assert_eq!(parse_share(wrong), None, "{wrong}");
        }
    }
}
