//! Policies by name.

use std::fmt;
use std::str::FromStr;

use super::{Lru, Policy, S3Fifo};

/// The policies that need no knowledge of the future.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PolicyKind {
    /// Least recently used; see [`Lru`].
    Lru,
    /// Small, main and ghost queue; see [`S3Fifo`].
    S3Fifo,
}

impl PolicyKind {
    /// All of them, for comparisons.
    pub const ALL: [PolicyKind; 2] = [PolicyKind::Lru, PolicyKind::S3Fifo];

    /// A policy for this many slots, all vacant.
    pub fn policy(self, slots: u32) -> Box<dyn Policy> {
        match self {
            PolicyKind::Lru => Box::new(Lru::new(slots)),
            PolicyKind::S3Fifo => Box::new(S3Fifo::new(slots)),
        }
    }

    /// Bytes of memory that a policy takes for a slot, at most, beside some 2 KiB, unless it was made
    /// smaller; vectors that grow may have twice the length that they need.
    pub fn slot_bytes(self) -> u64 {
        match self {
            // Two neighbours.
            PolicyKind::Lru => 2 * 8,
            // Two neighbours, a state and a tag; two ghosts, in tables that grow by half.
            PolicyKind::S3Fifo => 2 * (8 + 1 + 4) + 2 * 8 * 3 / 2,
        }
    }
}

impl fmt::Display for PolicyKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            PolicyKind::Lru => "lru",
            PolicyKind::S3Fifo => "s3-fifo",
        })
    }
}

impl FromStr for PolicyKind {
    type Err = UnknownPolicy;

    fn from_str(name: &str) -> Result<PolicyKind, UnknownPolicy> {
        match name.to_ascii_lowercase().as_str() {
            "lru" => Ok(PolicyKind::Lru),
            "s3-fifo" | "s3fifo" => Ok(PolicyKind::S3Fifo),
            _ => Err(UnknownPolicy(name.to_owned())),
        }
    }
}

/// A name that is no policy's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no cache policy {0:?}; there are lru and s3-fifo")]
pub struct UnknownPolicy(pub String);
