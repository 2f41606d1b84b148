//! `dataset.json`: what samples are made of, how many there are, and the other files.

use outcore_store::checksum;
use serde::{Deserialize, Serialize};

use super::sample_storage::ExternalFiles;
use super::schema::Field;

pub(super) const FORMAT: &str = "outcore dataset";
pub(super) const VERSION: u32 = 1;
/// Of `dataset.json`, at most: the paths of some million files.
pub(super) const MANIFEST_BYTES: u64 = 256 << 20;

/// The files of a dataset.
pub(super) mod parts {
    pub(crate) const MANIFEST: &str = "dataset.json";
    pub(crate) const LOOKUP: &str = "lookup";
    /// Those that grow with the samples, by number.
    pub(crate) const GROWING: [&str; 9] = [
        "samples",
        "places",
        "places.bits",
        "sums",
        "ends",
        "ends.bits",
        "names",
        "names.groups",
        "names.sums",
    ];
    pub(crate) fn all() -> Vec<&'static str> {
        GROWING.into_iter().chain([MANIFEST, LOOKUP]).collect()
    }
    pub(crate) const SAMPLES: usize = 0;
    pub(crate) const PLACES: usize = 1;
    pub(crate) const BITS: usize = 2;
    pub(crate) const SUMS: usize = 3;
    pub(crate) const ENDS: usize = 4;
    pub(crate) const END_BITS: usize = 5;
    pub(crate) const NAMES: usize = 6;
    pub(crate) const NAME_GROUPS: usize = 7;
    pub(crate) const NAME_SUMS: usize = 8;
}

/// Length and checksum of a file. That of the samples has none as a whole.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct File {
    pub(super) bytes: u64,
    pub(super) crc32c: u32,
}

/// `dataset.json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Manifest {
    pub(super) format: String,
    pub(super) version: u32,
    pub(super) samples: u64,
    pub(super) named: bool,
    pub(super) fields: Vec<Field>,
    pub(super) files: Vec<(String, File)>,
    /// Where the bytes of samples are, if not in `samples`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) elsewhere: Option<ExternalFiles>,
    /// By field with a whole number in it: how much more alike neighbours are than samples far
    /// apart; 1 where they are not.
    pub(super) clustering: Vec<(String, f64)>,
    /// The names of the numbers of `label`, from 0 on, where samples come from folders that are
    /// their classes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) classes: Option<Vec<String>>,
    /// Of all bytes of the file before this member's name.
    pub(super) crc32c: u32,
}

/// What the checksum of a manifest is of; none for what is no manifest.
pub(super) fn summed(text: &[u8]) -> Option<&[u8]> {
    const NAME: &[u8] = b"\"crc32c\"";
    text.windows(NAME.len())
        .rposition(|window| window == NAME)
        .map(|at| &text[..at])
}

impl Manifest {
    pub(super) fn new(
        fields: Vec<Field>,
        samples: u64,
        named: bool,
        files: Vec<(String, File)>,
        elsewhere: Option<ExternalFiles>,
        clustering: Vec<(String, f64)>,
        classes: Option<Vec<String>>,
    ) -> Manifest {
        let (format, version) = (FORMAT.into(), VERSION);
        Manifest {
            format,
            version,
            samples,
            named,
            fields,
            files,
            elsewhere,
            clustering,
            classes,
            crc32c: 0,
        }
    }

    /// As it lies in `dataset.json`.
    pub(super) fn encode(&mut self) -> Vec<u8> {
        let text = |manifest: &Manifest| {
            serde_json::to_vec_pretty(manifest).expect("numbers and names have no way to fail")
        };
        self.crc32c = summed(&text(self)).map_or(0, checksum);
        [text(self), b"\n".to_vec()].concat()
    }
}
