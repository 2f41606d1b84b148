//! Where the bytes of samples are: in a file of the dataset's own, nothing between them; or in
//! files of others, as those wrote them.
//!
//! Files lie one behind another, so that a sample has one place among all of them; no sample is in
//! two.

use std::iter;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use outcore_core::StoredFile;
use outcore_engine::Item;
use serde::{Deserialize, Serialize};

use super::packed::PackedNumbers;
use super::record_format::Form;

/// Files of others, and what they are.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExternalFiles {
    /// What a sample is there.
    pub form: Form,
    /// Relative to the folder that the dataset lies in, or absolute; and their lengths.
    pub files: Vec<(PathBuf, u64)>,
}

impl ExternalFiles {
    /// Files for the dataset at a path; those in the folder around it may go with it to another
    /// place.
    ///
    /// ```
    /// use outcore_samples::{ExternalFiles, Form};
    ///
    /// let shard = ("/data/train/0.tar".into(), 10_240);
    /// let files = ExternalFiles::of("/data/train/index".as_ref(), Form::Tar, [shard]);
    /// assert_eq!(files.files.len(), 1);
    /// ```
    #[must_use]
    pub fn of(
        dataset: &Path,
        form: Form,
        files: impl IntoIterator<Item = (PathBuf, u64)>,
    ) -> ExternalFiles {
        let around = dataset.parent();
        let relative =
            |path: PathBuf| match around.and_then(|around| path.strip_prefix(around).ok()) {
                Some(relative) => relative.to_owned(),
                None => path,
            };
        ExternalFiles {
            form,
            files: files
                .into_iter()
                .map(|(path, bytes)| (relative(path), bytes))
                .collect(),
        }
    }

    /// Where each file begins among all of them, and where the last one ends.
    pub(super) fn starts(&self) -> Vec<u64> {
        starts(self.files.iter().map(|(_, bytes)| *bytes))
    }
}

/// Up to where files of others have been read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct SourcePlace {
    pub(super) file: usize,
    /// Of the file, decompressed.
    pub(super) byte: u64,
    /// Samples of the file before.
    pub(super) number: u64,
}

fn starts(lengths: impl Iterator<Item = u64>) -> Vec<u64> {
    let ends = lengths.scan(0u64, |end, bytes| {
        *end = end.saturating_add(bytes);
        Some(*end)
    });
    iter::once(0).chain(ends).collect()
}

/// Where the samples of an open dataset lie.
pub(super) struct SampleStorage {
    pub(super) files: Vec<Arc<StoredFile>>,
    /// Where each file begins, and where the last one ends.
    starts: Vec<u64>,
    samples: u64,
    begins: PackedNumbers,
    /// In files of others.
    ends: Option<PackedNumbers>,
    pub(super) form: Option<Form>,
}

impl SampleStorage {
    pub(super) fn own(file: Arc<StoredFile>, samples: u64, begins: PackedNumbers) -> SampleStorage {
        let starts = vec![0, file.extent().len()];
        SampleStorage {
            files: vec![file],
            starts,
            samples,
            begins,
            ends: None,
            form: None,
        }
    }

    pub(super) fn elsewhere(
        files: Vec<Arc<StoredFile>>,
        samples: u64,
        begins: PackedNumbers,
        ends: PackedNumbers,
        form: Form,
    ) -> SampleStorage {
        let starts = starts(files.iter().map(|file| file.extent().len()));
        SampleStorage {
            files,
            starts,
            samples,
            begins,
            ends: Some(ends),
            form: Some(form),
        }
    }

    /// Bytes of all files.
    pub(super) fn bytes(&self) -> u64 {
        self.starts[self.files.len()]
    }

    /// Where a sample begins, and its bytes. Places of a damaged file may say anything; what is
    /// outside is refused when it is read.
    #[inline]
    pub(super) fn place(&self, sample: u64) -> (u64, u64) {
        let (start, end) = match &self.ends {
            Some(ends) => (self.begins.get(sample), ends.get(sample)),
            None if sample + 1 < self.samples => self.begins.two(sample),
            None => (self.begins.get(sample), self.bytes()),
        };
        (start, end.saturating_sub(start))
    }

    /// Bytes at such a place, in their file.
    pub(super) fn item(&self, start: u64, len: u64) -> Item<'_> {
        let file = self.file_of(start);
        Item {
            extent: self.files[file].extent(),
            offset: start - self.starts[file],
            len: len as usize,
        }
    }

    fn file_of(&self, at: u64) -> usize {
        match &self.files[..] {
            [_] => 0,
            files => self.starts[..files.len()]
                .partition_point(|&start| start <= at)
                .saturating_sub(1),
        }
    }

    /// Samples that follow one another, by file: the first of those that are in it, where it
    /// begins, and the bytes up to the last one's end.
    pub(super) fn stretches(
        &self,
        first: u64,
        count: u64,
    ) -> impl Iterator<Item = (u64, u64, u64)> {
        let (mut next, end) = (first, first + count);
        iter::from_fn(move || {
            let first = (next < end).then_some(next)?;
            let start = self.begins.get(first);
            next = match self.ends {
                None => end,
                Some(_) => {
                    let file_end = self.starts[self.file_of(start) + 1];
                    self.first_from(file_end, first + 1..end)
                }
            };
            let (last, len) = self.place(next - 1);
            Some((first, start, (last + len).saturating_sub(start)))
        })
    }

    /// Of some samples, the first that does not begin before a place; their end if there is none.
    fn first_from(&self, place: u64, samples: std::ops::Range<u64>) -> u64 {
        let (mut low, mut high) = (samples.start, samples.end);
        while low < high {
            let middle = low + (high - low) / 2;
            match self.begins.get(middle) < place {
                true => low = middle + 1,
                false => high = middle,
            }
        }
        low
    }
}
