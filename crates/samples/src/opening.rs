//! What finds samples, read into memory when a dataset is opened, and compared with what its
//! manifest tells.

use std::path::Path;
use std::sync::Arc;

use bytemuck::Pod;
use outcore_core::file::read_text;
use outcore_core::limits::allow_files;
use outcore_core::{Error, FormatError, Result, Session, StoredFile};
use outcore_device::{Buf, read_now};
use outcore_engine::{GatherOptions, Item};
use outcore_store::{checksum, checksum_on};
use twox_hash::XxHash3_128;

use super::dataset::{Dataset, Inner};
use super::manifest::{FORMAT, File, MANIFEST_BYTES, Manifest, VERSION, parts, summed};
use super::names::Lookup;
use super::packed::{GROUP, Group, PackedNumbers};
use super::sample_storage::{ExternalFiles, SampleStorage};
use super::schema::Schema;

/// Read at once, between two looks at whether opening is to end.
const LOAD_BYTES: usize = 1 << 20;

impl Dataset {
    /// Opens a dataset, and reads what finds its samples.
    ///
    /// ```
    #[doc = include_str!("setup.doctest")]
    /// let dataset = Dataset::open(&session, &path)?;
    /// assert_eq!(dataset.len(), 4);
    /// assert!(Dataset::open_until(&session, &path, &|| false).is_ok());
    /// # Ok::<(), outcore_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Store`] for one that is not there, [`Error::Format`] for one that is damaged or of
    /// another version, [`Error::OverBudget`] when what finds its samples does not fit.
    pub fn open(session: &Session, path: impl AsRef<Path>) -> Result<Dataset> {
        Dataset::open_until(session, path, &|| false)
    }

    /// As [`open`](Dataset::open), until `stop` says so: what finds very many samples takes
    /// gigabytes, and they may lie in very many files.
    ///
    /// # Errors
    /// As [`open`](Dataset::open); [`Error::Cancelled`].
    pub fn open_until(
        session: &Session,
        path: impl AsRef<Path>,
        stop: &dyn Fn() -> bool,
    ) -> Result<Dataset> {
        let path = path.as_ref();
        loop {
            // Another dataset may take this one's name between the opening of two of its files.
            let text = read_text(&path.join(parts::MANIFEST), MANIFEST_BYTES)?;
            let opened = Dataset::open_parts(session, path, &text, stop);
            if read_text(&path.join(parts::MANIFEST), MANIFEST_BYTES).is_ok_and(|now| now == text) {
                return opened;
            }
        }
    }

    fn open_parts(
        session: &Session,
        path: &Path,
        text: &[u8],
        stop: &dyn Fn() -> bool,
    ) -> Result<Dataset> {
        let object = path.join(parts::MANIFEST).display().to_string();
        let corrupt = |reason: String| FormatError::Corrupt {
            object: object.clone(),
            offset: 0,
            reason,
        };
        let manifest: Manifest =
            serde_json::from_slice(text).map_err(|error| corrupt(error.to_string()))?;
        if manifest.format != FORMAT || manifest.version != VERSION {
            let reason = format!(
                "{} of version {}, where version {VERSION} is read",
                manifest.format, manifest.version
            );
            return Err(FormatError::Unsupported { object, reason }.into());
        }
        if summed(text).map(checksum) != Some(manifest.crc32c) {
            return Err(corrupt("it is not what was written: its checksum differs".into()).into());
        }
        let schema = Schema::new(manifest.fields.clone()).map_err(&corrupt)?;
        let part = |name: &str| {
            manifest
                .files
                .iter()
                .find(|(other, _)| other == name)
                .map(|(_, file)| *file)
        };
        let need = |name: &str| {
            part(name).ok_or_else(|| Error::from(corrupt(format!("it does not tell of {name}"))))
        };
        let of = |part: usize| parts::GROWING[part];
        let (indexed, ends) = (
            [of(parts::PLACES), of(parts::BITS), of(parts::SUMS)],
            [of(parts::ENDS), of(parts::END_BITS)],
        );
        let named = [of(parts::NAME_GROUPS), of(parts::NAME_SUMS), parts::LOOKUP];
        let loaded = indexed
            .iter()
            .chain(if manifest.named { &named[..] } else { &[] });
        let loaded = loaded.chain(if manifest.elsewhere.is_some() {
            &ends[..]
        } else {
            &[]
        });
        let load = Load {
            session,
            path,
            stop,
        };
        let bytes = loaded
            .map(|name| Ok(load.file(name, need(name)?.bytes)?.extent().len()))
            .sum::<Result<u64>>()?;
        let mut directory = session
            .engine()
            .reserve(&format!("the directory of {}", path.display()), bytes)?;
        // The table of names is made of its file.
        let table = part(parts::LOOKUP)
            .filter(|_| manifest.named)
            .map_or(0, |file| file.bytes);
        let _table = session
            .engine()
            .reserve(&format!("the table of names of {}", path.display()), table)?;
        let samples = manifest.samples;
        let mut packed = |groups: &str, bits: &str| {
            let (groups_file, bits_file) = (need(groups)?, need(bits)?);
            let found = PackedNumbers::new(
                samples,
                load.list::<Group>(groups, groups_file)?,
                load.list(bits, bits_file)?,
            );
            let found = found.ok_or_else(|| {
                Error::from(corrupt(format!("{groups} does not have its places")))
            })?;
            directory
                .shrink(directory.bytes() + found.bytes() - groups_file.bytes - bits_file.bytes);
            Ok::<_, Error>(found)
        };
        let places = packed(indexed[0], indexed[1])?;
        let sums: Vec<u32> = load.list(indexed[2], need(indexed[2])?)?;
        if sums.len() as u64 != samples {
            return Err(corrupt(format!("{} checksums of {samples} samples", sums.len())).into());
        }
        let names = match manifest.named {
            true => Some(Names::load(&load, named, need, samples)?),
            false => None,
        };
        let storage = match &manifest.elsewhere {
            None => {
                let bytes = need(of(parts::SAMPLES))?.bytes;
                let least = samples
                    .checked_mul(schema.head() as u64)
                    .filter(|&least| least <= bytes);
                if least.is_none() || (schema.varying() == 0 && least != Some(bytes)) {
                    return Err(corrupt(format!(
                        "{bytes} bytes do not make {samples} samples of such fields"
                    ))
                    .into());
                }
                SampleStorage::own(load.file(of(parts::SAMPLES), bytes)?, samples, places)
            }
            Some(ExternalFiles { form, files }) => {
                // A relative path begins at the folder that the dataset lies in.
                let around = Load {
                    session,
                    path: path.parent().unwrap_or(Path::new("")),
                    stop,
                };
                allow_files(files.len() as u64);
                let files = files
                    .iter()
                    .map(|(file, bytes)| around.file(file, *bytes))
                    .collect::<Result<_>>()?;
                SampleStorage::elsewhere(files, samples, places, packed(ends[0], ends[1])?, *form)
            }
        };
        let inner = Inner {
            session: session.clone(),
            path: path.to_owned(),
            schema,
            // What keeps states may have whole numbers of 63 bits only.
            digest: XxHash3_128::oneshot(text) as u64 >> 1,
            storage,
            sums,
            names,
            directory,
            manifest,
        };
        Ok(Dataset {
            inner: Arc::new(inner),
            decoded: Arc::new([]),
        })
    }
}

/// Which sample has a name, and where the names are.
pub(super) struct Names {
    pub(super) lookup: Lookup,
    /// Where each group of names begins, and its checksum.
    groups: Vec<u64>,
    sums: Vec<u32>,
    file: Arc<StoredFile>,
}

/// Files of a dataset that is being opened.
struct Load<'a> {
    session: &'a Session,
    path: &'a Path,
    stop: &'a dyn Fn() -> bool,
}

impl Load<'_> {
    fn check(&self) -> Result<()> {
        match (self.stop)() {
            true => Err(Error::Cancelled),
            false => Ok(()),
        }
    }

    fn file(&self, name: impl AsRef<Path>, bytes: u64) -> Result<Arc<StoredFile>> {
        self.check()?;
        let file = self.session.file(&self.path.join(name), false)?;
        match (file.extent().name().to_owned(), file.extent().len()) {
            (_, actual) if actual == bytes => Ok(file),
            (object, actual) if actual < bytes => Err(FormatError::Truncated {
                object,
                expected: bytes,
                actual,
            }
            .into()),
            (object, actual) => Err(FormatError::Corrupt {
                object,
                offset: bytes,
                reason: format!("{actual} bytes, where {bytes} were written"),
            }
            .into()),
        }
    }

    /// All of a file, checked.
    fn list<T: Pod>(&self, name: &str, File { bytes, crc32c }: File) -> Result<Vec<T>> {
        let file = self.file(name, bytes)?;
        let object = || file.extent().name().to_owned();
        let failed = |source| Error::Device {
            object: object(),
            source,
        };
        let count = (bytes / size_of::<T>() as u64) as usize;
        let mut list = vec![T::zeroed(); count];
        let into: &mut [u8] = bytemuck::cast_slice_mut(&mut list);
        let mut buffer = Buf::anonymous(LOAD_BYTES).map_err(failed)?;
        let (mut at, mut sum) = (0, 0);
        while at < into.len() {
            self.check()?;
            let len = LOAD_BYTES.min(into.len() - at);
            let sectors = len.next_multiple_of(file.extent().sector() as usize);
            read_now(&**file.extent().device(), &mut buffer[..sectors], at as u64)
                .map_err(failed)?;
            into[at..at + len].copy_from_slice(&buffer[..len]);
            sum = checksum_on(sum, &buffer[..len]);
            at += len;
        }
        if into.len() as u64 != bytes || sum != crc32c {
            let reason = "it is not what was written: its checksum differs".into();
            return Err(FormatError::Corrupt {
                object: object(),
                offset: 0,
                reason,
            }
            .into());
        }
        Ok(list)
    }
}

impl Names {
    fn load(
        load: &Load<'_>,
        [groups, sums, lookup]: [&str; 3],
        need: impl Fn(&str) -> Result<File>,
        samples: u64,
    ) -> Result<Names> {
        let table: Vec<u8> = load.list(lookup, need(lookup)?)?;
        let lookup = Lookup::decode(&table);
        let groups: Vec<u64> = load.list(groups, need(groups)?)?;
        let sums: Vec<u32> = load.list(sums, need(sums)?)?;
        let are_all = |count: usize| count as u64 == samples.div_ceil(GROUP as u64);
        let file = load.file(
            parts::GROWING[parts::NAMES],
            need(parts::GROWING[parts::NAMES])?.bytes,
        )?;
        match lookup {
            Some(lookup)
                if lookup.len() == samples && are_all(groups.len()) && are_all(sums.len()) =>
            {
                Ok(Names {
                    lookup,
                    groups,
                    sums,
                    file,
                })
            }
            _ => {
                let object = load.path.join(parts::LOOKUP).display().to_string();
                Err(FormatError::Corrupt {
                    object,
                    offset: 0,
                    reason: format!("it is no table of {samples} names"),
                }
                .into())
            }
        }
    }

    /// The names of some groups, by one batch of reads.
    pub(super) fn of_groups(
        &self,
        session: &Session,
        groups: &[usize],
        samples: u64,
    ) -> Result<Vec<Vec<Vec<u8>>>> {
        let extent = self.file.extent();
        let item = |&group: &usize| {
            let (offset, end) = (
                self.groups[group],
                self.groups.get(group + 1).copied().unwrap_or(extent.len()),
            );
            let len = end
                .checked_sub(offset)
                .ok_or_else(|| self.wrong(group, "end elsewhere"))?;
            Ok(Item {
                extent,
                offset,
                len: len as usize,
            })
        };
        let items = groups.iter().map(item).collect::<Result<Vec<_>>>()?;
        let gathered = session
            .engine()
            .gather(&items, &GatherOptions::default())?
            .wait()?;
        groups
            .iter()
            .zip(gathered.iter())
            .map(|(&group, bytes)| self.of_group(group, bytes, samples))
            .collect()
    }

    fn of_group(&self, group: usize, bytes: &[u8], samples: u64) -> Result<Vec<Vec<u8>>> {
        if checksum(bytes) != self.sums[group] {
            return Err(self.wrong(group, "are not what was written: their checksum differs"));
        }
        let count = (samples - (group * GROUP) as u64).min(GROUP as u64);
        let names =
            split_names(bytes, count as usize).ok_or_else(|| self.wrong(group, "end elsewhere"))?;
        Ok(names.into_iter().map(<[u8]>::to_vec).collect())
    }

    fn wrong(&self, group: usize, how: &str) -> Error {
        let (object, offset) = (self.file.extent().name().to_owned(), self.groups[group]);
        FormatError::Corrupt {
            object,
            offset,
            reason: format!("the names of samples from {} on {how}", group * GROUP),
        }
        .into()
    }
}

/// `count` names, which take all the bytes.
fn split_names(mut bytes: &[u8], count: usize) -> Option<Vec<&[u8]>> {
    let mut names = Vec::with_capacity(count);
    for _ in 0..count {
        let (len, rest) = bytes.split_first_chunk()?;
        let (name, rest) = rest.split_at_checked(u32::from_le_bytes(*len) as usize)?;
        names.push(name);
        bytes = rest;
    }
    bytes.is_empty().then_some(names)
}
