//! How far an import is.

use std::path::Path;

use outcore_core::{Error, Result};
use serde::{Deserialize, Serialize};

use super::matrix::State;
use super::source::Identity;

const VERSION: u32 = 2;

/// All that is needed to go on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Checkpoint {
    pub(super) version: u32,
    pub(super) sources: Vec<Identity>,
    /// Format and options, as they were asked for.
    pub(super) options: String,
    /// Which source is read, the byte of its text from where to go on, and that line's number. Of a
    /// binary source its entries, or compressed lines, instead of bytes.
    pub(super) part: usize,
    pub(super) byte: u64,
    pub(super) line: u64,
    pub(super) state: State,
}

impl Checkpoint {
    pub(super) fn new(sources: Vec<Identity>, options: String) -> Checkpoint {
        Checkpoint {
            version: VERSION,
            sources,
            options,
            part: 0,
            byte: 0,
            line: 1,
            state: State::default(),
        }
    }

    /// Whether this goes on with what another one counts.
    ///
    /// # Errors
    /// [`Error::Value`] for one of other sources or options.
    pub(super) fn goes_on_with(&self, found: &Checkpoint, folder: &Path) -> Result<()> {
        let refuse = |what: String| {
            Err(Error::value(format!(
                "{what}; without resume it begins anew"
            )))
        };
        if found.version != self.version {
            return refuse(format!(
                "{} was left by another version of outcore",
                folder.display()
            ));
        }
        if found.options != self.options {
            return refuse(format!(
                "the import was begun with other options: {}, now {}",
                found.options, self.options
            ));
        }
        if found.sources.len() != self.sources.len() {
            return refuse(format!(
                "the import was begun with {} sources, now {}",
                found.sources.len(),
                self.sources.len()
            ));
        }
        for (before, now) in found.sources.iter().zip(&self.sources) {
            if before.path != now.path {
                return refuse(format!(
                    "the import was begun with {}, now {}",
                    before.path.display(),
                    now.path.display()
                ));
            }
            if before != now {
                return refuse(format!(
                    "{} has changed since the import was begun",
                    now.path.display()
                ));
            }
        }
        Ok(())
    }
}
