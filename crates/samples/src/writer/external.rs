//! Samples in files of others, which stay as they are: the dataset says where each one is.

use outcore_core::Result;
use outcore_store::checksum;

use super::DatasetWriter;
use crate::sample_storage::{ExternalFiles, SourcePlace};

impl DatasetWriter {
    /// Says that samples are in files of others, which stay as they are; before the first of them.
    ///
    /// ```
    #[doc = include_str!("../setup.doctest")]
    /// let shard = folder.path().join("0.tar");
    /// std::fs::write(&shard, [0; 1024]).unwrap();
    /// let path = folder.path().join("index");
    /// let mut writer = DatasetWriter::create(&session, &path, WriterOptions::default())?;
    /// writer.set_elsewhere(ExternalFiles::of(&path, Form::Tar, [(shard, 1024)]))?;
    /// # Ok::<(), outcore_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Value`](outcore_core::Error::Value) for other files than those of samples before.
    pub fn set_elsewhere(&mut self, elsewhere: ExternalFiles) -> Result<()> {
        if self.state.samples > 0 && self.state.elsewhere.as_ref() != Some(&elsewhere) {
            return Err(
                self.wrong("other files than those of the samples before, or of another length")
            );
        }
        self.starts = elsewhere.starts();
        self.state.elsewhere = Some(elsewhere);
        Ok(())
    }

    /// Up to where files of others have been read for the samples so far.
    pub(crate) fn place(&self) -> Option<SourcePlace> {
        self.state.place
    }

    /// Appends a sample of the files of others, which are read up to a place.
    pub(crate) fn write_from(
        &mut self,
        name: Option<&[u8]>,
        fields: &[&[u8]],
        place: SourcePlace,
    ) -> Result<()> {
        self.at(place, |writer| writer.write(name, fields))
    }

    /// Appends a sample that is in one of the files of others, by its number, from some byte on,
    /// and has these fields; behind the samples before.
    ///
    /// # Errors
    /// As [`write`](DatasetWriter::write).
    pub(crate) fn point(
        &mut self,
        name: Option<&[u8]>,
        file: usize,
        offset: u64,
        bytes: &[u8],
        fields: &[impl AsRef<[u8]>],
        place: SourcePlace,
    ) -> Result<()> {
        self.at(place, |writer| {
            writer.unless_failed(|writer| writer.push_place(name, file, offset, bytes, fields))
        })
    }

    /// Does what makes a sample durable together with the place behind it.
    fn at(
        &mut self,
        place: SourcePlace,
        act: impl FnOnce(&mut DatasetWriter) -> Result<()>,
    ) -> Result<()> {
        let before = self.state.place.replace(place);
        act(self).inspect_err(|_| self.state.place = before)
    }

    fn push_place(
        &mut self,
        name: Option<&[u8]>,
        file: usize,
        offset: u64,
        bytes: &[u8],
        fields: &[impl AsRef<[u8]>],
    ) -> Result<()> {
        let Some(schema) = &self.schema else {
            return Err(self.wrong("its fields are not known yet"));
        };
        self.check(name)?;
        let Some(len) = self
            .state
            .elsewhere
            .as_ref()
            .and_then(|there| Some(there.files.get(file)?.1))
        else {
            return Err(self.wrong(format!(
                "sample {}: there is no file {file}",
                self.state.samples
            )));
        };
        let is_inside = offset
            .checked_add(bytes.len() as u64)
            .is_some_and(|end| end <= len);
        let start = self.starts[file].saturating_add(offset);
        let end = start.saturating_add(bytes.len() as u64);
        if !is_inside || start < self.state.end {
            return Err(self.wrong(format!(
                "sample {}: it is not behind the one before, in its file",
                self.state.samples
            )));
        }
        self.state.named = name.is_some();
        self.state.clustering.add(schema, fields);
        self.state.end = end;
        self.add(name, start, end, checksum(bytes))
    }
}
