//! The end of a dataset that is being written: what it has besides its samples, and its name.

use outcore_core::{Error, Job, Result, Stage};
use outcore_engine::StreamOptions;
use outcore_store::checksum;

use super::DatasetWriter;
use crate::manifest::{File, MANIFEST_BYTES, Manifest, parts};

impl DatasetWriter {
    /// Makes the dataset whole: all samples durable, their names found, and then it is there.
    ///
    /// # Errors
    /// Of the job: [`Error::Value`] for a name that two samples have, [`Error::OverBudget`] for a
    /// table of names that memory is too small for.
    pub fn finish(mut self) -> Result<Job<()>> {
        self.unless_failed(|_| Ok(()))?;
        if self.schema.is_none() {
            self.set_fields(Vec::new())?;
        }
        let session = self.session.clone();
        Job::driven(&session, Vec::new(), move |stage, _| self.end(stage))
    }

    fn end(mut self, stage: &mut Stage) -> Result<()> {
        let made = self.complete(stage);
        let unused = self.unused();
        let DatasetWriter {
            session,
            path,
            checkpoints,
            ..
        } = self;
        let home = checkpoints.into_home();
        if let Err(error) = made {
            // A name that comes twice comes twice again.
            if matches!(error, Error::Value { .. }) || !home.is_saved() {
                home.folder.discard();
            }
            return Err(error);
        }
        home.commit(&session, stage, &path, &unused)
    }

    /// Files that such a dataset does not have.
    fn unused(&self) -> Vec<&'static str> {
        let unnamed: &[usize] = if self.state.named {
            &[]
        } else {
            &[parts::NAMES, parts::NAME_GROUPS, parts::NAME_SUMS]
        };
        let body: &[usize] = if self.state.elsewhere.is_some() {
            &[parts::SAMPLES]
        } else {
            &[parts::ENDS, parts::END_BITS]
        };
        unnamed
            .iter()
            .chain(body)
            .map(|&part| parts::GROWING[part])
            .collect()
    }

    /// All that is not there yet besides the samples.
    fn complete(&mut self, stage: &mut Stage) -> Result<()> {
        self.checkpoints.wait(&mut || !stage.is_cancelled())?;
        if !self.state.group.is_empty() {
            self.close_group()?;
        }
        let mut home = self.checkpoints.home();
        self.files
            .iter_mut()
            .try_for_each(|file| file.finish(stage, &mut home.folder))?;
        drop(home);
        let mut files: Vec<(String, File)> = parts::GROWING
            .iter()
            .map(|name| (*name).to_owned())
            .zip(self.state.files)
            .collect();
        let unused = self.unused();
        files.retain(|(name, _)| !unused.contains(&name.as_str()));
        if self.state.named {
            let (lookup, _reserved) = self.lookup(stage)?;
            let table = lookup.encode();
            self.put(parts::LOOKUP, &table)?;
            files.push((
                parts::LOOKUP.into(),
                File {
                    bytes: table.len() as u64,
                    crc32c: checksum(&table),
                },
            ));
        }
        let schema = self.schema.as_ref().expect("known at the end");
        let clustering = self.state.clustering.clone().found(schema);
        let mut manifest = Manifest::new(
            schema.fields.clone(),
            self.state.samples,
            self.state.named,
            files,
            self.state.elsewhere.clone(),
            clustering,
            self.state.classes.clone(),
        );
        let text = manifest.encode();
        if text.len() as u64 > MANIFEST_BYTES {
            return Err(self.wrong(format!(
                "what is told of its files takes {} bytes, where {MANIFEST_BYTES} are the most",
                text.len()
            )));
        }
        self.put(parts::MANIFEST, &text)
    }

    /// A file that is made in one go.
    fn put(&mut self, name: &str, bytes: &[u8]) -> Result<()> {
        let device = self
            .checkpoints
            .home()
            .folder
            .create(name, bytes.len() as u64)?;
        let file = self
            .session
            .device_file(self.path.join(name).display().to_string(), device);
        let mut stream = self.session.engine().write_stream(
            file.extent(),
            0,
            StreamOptions {
                block_bytes: 64 << 10,
                ahead: 2,
            },
        )?;
        stream.write(bytes)?;
        Ok(stream.finish()?)
    }
}
