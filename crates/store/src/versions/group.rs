//! The bytes of `group`: versions of several objects that become the last ones at once. Pure.
//!
//! ```text
//!   group     "outcore group\n", two zeros | objects, u64 | which of them has this file, u64
//!             | of each: number of the version, u64; checksum of its head, u64; bytes of the path, u64; path
//!             | CRC-32C of all before it, u32
//! ```
//!
//! All numbers are little-endian. A path leads from the folder of the file to that of the object, so it holds
//! for as long as both are moved together.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use super::head::{corrupt, sealed, unsealed};
use crate::error::Error;

const MAGIC: &[u8; 16] = b"outcore group\n\0\0";

/// What one object has of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Group {
    /// In the same order in the folders of all of them.
    pub(super) members: Vec<Member>,
    /// Which of them the object is. That of the first one decides for all.
    pub(super) own: usize,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Member {
    pub(super) number: u64,
    /// Of the head of this version.
    pub(super) sum: u32,
    pub(super) path: PathBuf,
}

impl Group {
    /// What one of the members has, whose paths are those of their folders, without links.
    pub(super) fn seen_from(members: &[Member], own: usize) -> Group {
        let member = |member: &Member| Member {
            path: path_between(&members[own].path, &member.path),
            ..*member
        };
        Group {
            members: members.iter().map(member).collect(),
            own,
        }
    }

    pub(super) fn own(&self) -> &Member {
        &self.members[self.own]
    }

    /// Whether this is what the first object has of the same group: its file decides.
    pub(super) fn decides(&self, other: &Group) -> bool {
        let version = |member: &Member| (member.number, member.sum);
        let versions = self.members.iter().map(version);
        self.own == 0 && versions.eq(other.members.iter().map(version))
    }

    pub(super) fn bytes(&self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        for number in [self.members.len(), self.own] {
            bytes.extend((number as u64).to_le_bytes());
        }
        for Member { number, sum, path } in &self.members {
            let path = path.as_os_str().as_bytes();
            for number in [*number, u64::from(*sum), path.len() as u64] {
                bytes.extend(number.to_le_bytes());
            }
            bytes.extend(path);
        }
        sealed(bytes)
    }

    pub(super) fn parse(object: &str, bytes: &[u8]) -> Result<Group, Error> {
        let mut rest = unsealed(object, bytes)?
            .strip_prefix(MAGIC)
            .ok_or_else(|| corrupt(object, "it does not begin as a group of objects"))?;
        let fields = |rest: &mut &[u8]| {
            let (members, own) = (number(rest)?, number(rest)?);
            let members = (0..members).map(|_| member(rest));
            Some((members.collect::<Option<Vec<Member>>>()?, own))
        };
        match fields(&mut rest) {
            Some((members, own)) if rest.is_empty() && own < members.len() as u64 => Ok(Group {
                members,
                own: own as usize,
            }),
            _ => Err(corrupt(object, "its numbers contradict each other")),
        }
    }
}

fn number(rest: &mut &[u8]) -> Option<u64> {
    let (first, after) = rest.split_first_chunk::<8>()?;
    *rest = after;
    Some(u64::from_le_bytes(*first))
}

fn member(rest: &mut &[u8]) -> Option<Member> {
    let (version, sum, len) = (number(rest)?, number(rest)?, number(rest)?);
    let (path, after) = rest.split_at_checked(usize::try_from(len).ok()?)?;
    *rest = after;
    Some(Member {
        number: version,
        sum: u32::try_from(sum).ok()?,
        path: OsStr::from_bytes(path).into(),
    })
}

/// How one folder is reached from another, both absolute and without links.
fn path_between(from: &Path, to: &Path) -> PathBuf {
    let common = from
        .components()
        .zip(to.components())
        .take_while(|(one, other)| one == other)
        .count();
    let up = from.components().skip(common).map(|_| Component::ParentDir);
    up.chain(to.components().skip(common)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn groups() -> [Group; 3] {
        let member = |(number, path): (u64, &str)| Member {
            number,
            sum: number as u32 + 1,
            path: path.into(),
        };
        let members = [(3, "/a/b"), (9, "/a/c/d"), (1, "/a")].map(member);
        [0, 1, 2].map(|own| Group::seen_from(&members, own))
    }

    #[test]
    fn a_group_is_read_as_it_was_written_and_no_other() {
        for group in groups() {
            let bytes = group.bytes();
            assert_eq!(Group::parse("t", &bytes).unwrap(), group);
            for at in 0..bytes.len() {
                let mut damaged = bytes.clone();
                damaged[at] ^= 4;
                assert!(Group::parse("t", &damaged).is_err(), "byte {at}");
                assert!(Group::parse("t", &bytes[..at]).is_err(), "{at} bytes");
            }
            let mut bad = group.clone();
            bad.own = 3;
            assert!(Group::parse("t", &bad.bytes()).is_err());
        }
        let mut endless = MAGIC.to_vec();
        endless.extend([0xff; 40]);
        assert!(Group::parse("t", &sealed(endless)).is_err());
    }

    #[test]
    fn the_first_of_the_same_versions_decides() {
        let groups = groups();
        for group in &groups {
            assert!(groups[0].decides(group) && !groups[1].decides(group));
            let mut other = group.clone();
            other.members[1].sum ^= 1;
            assert!(!groups[0].decides(&other));
            other.members.pop();
            assert!(!groups[0].decides(&other));
        }
    }

    #[test]
    fn paths_lead_from_folder_to_folder() {
        let paths: Vec<Vec<PathBuf>> = groups()
            .iter()
            .map(|group| group.members.iter().map(|one| one.path.clone()).collect())
            .collect();
        let expected = [
            ["", "../c/d", ".."],
            ["../../b", "", "../.."],
            ["b", "c/d", ""],
        ];
        assert_eq!(paths, expected.map(|row| row.map(PathBuf::from).to_vec()));
    }
}
