//! The writer of an object with versions: it hands out free places, and knows which versions hold others.

use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use outcore_device::Device;

use super::commit::{NextVersion, finish_group, lock_writer};
use super::head::{Head, map_bytes, parse_map};
use super::reader::{Version, last_head, read_head};
use super::{GROUP, HEAD, PAGES, map_path};
use crate::error::Error;
use crate::faults::{Faults, Step};
use crate::lock;
use crate::new_folder::NewFolder;

/// The one writer of an object.
pub struct VersionWriter {
    folder: PathBuf,
    faults: Arc<Faults>,
    /// Of the last version.
    head: Head,
    places: u32,
    free: Vec<u32>,
    /// Places of the last version that the next one has no use for.
    retired: Vec<u32>,
    /// By page: it has a place that no version refers to.
    is_fresh: Vec<bool>,
    /// Versions before the last one, with the places that are free once they are not held.
    old: VecDeque<(u64, Vec<u32>)>,
    /// It is not known which version a crash would leave.
    is_lost: bool,
    lock: File,
}

impl VersionWriter {
    /// Bytes that a writer holds for each page, at most: places that are free or will be, whether its own is
    /// fresh, and the map of a version that is being committed.
    pub const PAGE_STATE_BYTES: u64 = 4 + 4 + 1 + 4;

    /// What version 0 is in a new folder, with pages in the order of their numbers: the device of the pages,
    /// which the caller fills before it commits the folder.
    ///
    /// # Errors
    /// As [`NewFolder::create`].
    pub fn begin(
        folder: &mut NewFolder,
        page_bytes: u64,
        pages: u64,
        description: Vec<u8>,
    ) -> Result<Arc<dyn Device>, Error> {
        let object = folder.name().to_owned();
        let needed = pages.saturating_mul(page_bytes);
        let Some(end) = u32::try_from(pages).ok().filter(|end| *end < u32::MAX) else {
            return Err(Error::too_large(&object, needed));
        };
        let head = Head {
            number: 0,
            page_bytes,
            pages,
            places: pages,
            description,
        };
        let files = [
            (map_path(Path::new(""), 0), map_bytes(0..end)),
            (PathBuf::from(HEAD), head.bytes()),
        ];
        for (name, bytes) in files {
            let path = folder.path().join(&name);
            folder.create(&name.to_string_lossy(), bytes.len() as u64)?;
            let written = OpenOptions::new().write(true).open(&path);
            written
                .and_then(|mut file| file.write_all(&bytes))
                .map_err(|error| Error::from_io(&object, "write its version", error))?;
        }
        folder.check_space(PAGES, needed)?;
        folder.create(PAGES, needed)
    }

    /// The writer, and the last version, whose pages it changes. What a writer that has died left
    /// unfinished is gone, or finished where it was committed.
    ///
    /// # Errors
    /// [`Error::Locked`] while there is another writer; otherwise as [`Version::open`].
    pub fn open(folder: &Path) -> Result<(VersionWriter, Version), Error> {
        VersionWriter::open_with(folder, Arc::new(Faults::none()))
    }

    /// As [`open`](VersionWriter::open), with injected faults.
    ///
    /// # Errors
    /// As there.
    pub fn open_with(
        folder: &Path,
        faults: Arc<Faults>,
    ) -> Result<(VersionWriter, Version), Error> {
        read_head(folder, HEAD)?;
        let Some(lock) = lock_writer(folder, &faults)? else {
            let object = folder.display().to_string();
            return Err(Error::Locked { object });
        };
        finish_group(folder, &faults)?;
        let (head, version) = (read_head(folder, HEAD)?, Version::open(folder)?);
        let mut writer = VersionWriter {
            folder: folder.to_owned(),
            faults,
            places: head.places as u32,
            free: Vec::new(),
            retired: Vec::new(),
            is_fresh: vec![false; head.pages as usize],
            old: VecDeque::new(),
            is_lost: false,
            head,
            lock,
        };
        writer.find_free(&version)?;
        Ok((writer, version))
    }

    /// Places that neither the last version nor one that is still held refers to.
    fn find_free(&mut self, last: &Version) -> Result<(), Error> {
        let mut is_used = vec![false; self.places as usize];
        last.map
            .iter()
            .for_each(|&place| is_used[place as usize] = true);
        for number in self.numbers_of_maps()? {
            let path = map_path(&self.folder, number);
            if number == last.number || self.remove_map(number)? {
                continue;
            }
            let object = path.display().to_string();
            let bytes =
                std::fs::read(&path).map_err(|error| Error::from_io(&object, "open", error))?;
            let of_old = parse_map(&object, &bytes, &self.head)?;
            let mut only_there = Vec::new();
            for place in of_old {
                if !std::mem::replace(&mut is_used[place as usize], true) {
                    only_there.push(place);
                }
            }
            self.old.push_back((number, only_there));
        }
        self.free = (0..self.places)
            .rev()
            .filter(|&place| !is_used[place as usize])
            .collect();
        Ok(())
    }

    fn numbers_of_maps(&self) -> Result<Vec<u64>, Error> {
        let object = self.folder.display().to_string();
        let listed = std::fs::read_dir(&self.folder)
            .map_err(|error| Error::from_io(&object, "list", error))?;
        let mut numbers: Vec<u64> = listed
            .filter_map(|entry| {
                entry
                    .ok()?
                    .file_name()
                    .to_str()?
                    .strip_prefix("map.")?
                    .parse()
                    .ok()
            })
            .collect();
        numbers.sort_unstable();
        Ok(numbers)
    }

    /// Removes the map of a version that is not the last one; false while it is held.
    fn remove_map(&self, number: u64) -> Result<bool, Error> {
        let path = map_path(&self.folder, number);
        let object = path.display().to_string();
        let failed = |error| Error::from_io(&object, "remove", error);
        let file = File::open(&path).map_err(failed)?;
        let is_alone = match file.try_lock() {
            Ok(()) => true,
            Err(std::fs::TryLockError::WouldBlock) => false,
            Err(std::fs::TryLockError::Error(error)) => return Err(failed(error)),
        };
        if is_alone {
            self.faults
                .step(Step::Remove)
                .and_then(|()| std::fs::remove_file(&path))
                .map_err(failed)?;
        }
        Ok(is_alone)
    }

    /// Number of the last version.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.head.number
    }

    /// What is said of the last version.
    #[must_use]
    pub fn description(&self) -> &[u8] {
        &self.head.description
    }

    /// That it is known which version is the last one.
    ///
    /// # Errors
    /// [`Error::Lost`] after a commit that failed at its very end.
    pub fn check(&self) -> Result<(), Error> {
        match self.is_lost {
            true => Err(Error::Lost {
                object: self.folder.display().to_string(),
            }),
            false => Ok(()),
        }
    }

    /// Free places, in the order of the file.
    ///
    /// # Errors
    /// [`Error::TooLarge`] where there is no further number of a place; as [`check`](VersionWriter::check).
    pub fn take(&mut self, count: usize) -> Result<Vec<u32>, Error> {
        self.check()?;
        if self.free.len() < count {
            self.release_old();
        }
        let kept = self.free.len().saturating_sub(count);
        let mut places = self.free.split_off(kept);
        let more = (count - places.len()) as u64;
        let end = u64::from(self.places) + more;
        if end >= u64::from(u32::MAX) {
            self.free.append(&mut places);
            return Err(Error::TooLarge {
                object: self.folder.join(PAGES).display().to_string(),
                needed: end.saturating_mul(self.head.page_bytes),
                limit: Some(u64::from(u32::MAX) * self.head.page_bytes),
            });
        }
        places.extend(self.places..end as u32);
        self.places = end as u32;
        places.sort_unstable();
        Ok(places)
    }

    /// Places that were taken and are not used.
    pub fn give_back(&mut self, places: &[u32]) {
        self.free.extend(places);
    }

    /// A page lies elsewhere now; this was its place.
    pub fn replaced(&mut self, page: u64, place: u32) {
        match std::mem::replace(&mut self.is_fresh[page as usize], true) {
            true => self.free.push(place),
            false => self.retired.push(place),
        }
    }

    /// Versions that are not held any more give their places back, the oldest first: a place that several
    /// old versions share is with the youngest of them.
    fn release_old(&mut self) {
        while let Some(&(number, _)) = self.old.front() {
            match self.remove_map(number) {
                Ok(true) => {
                    let (_, places) = self.old.pop_front().expect("looked at");
                    self.free.extend(places);
                }
                // It is tried again; until then its places are in use.
                Ok(false) | Err(_) => return,
            }
        }
    }

    /// Begins the next version, with pages in these places. Pages may be replaced from now on, but those of
    /// this version stay. To be followed by [`commit`](super::commit), which needs no writer, and
    /// [`settle`](VersionWriter::settle).
    ///
    /// # Panics
    /// Where [`check`](VersionWriter::check) fails.
    pub fn next(&mut self, map: impl Iterator<Item = u32>, description: Vec<u8>) -> NextVersion {
        assert!(!self.is_lost, "a version after one that is not known");
        self.is_fresh.fill(false);
        NextVersion {
            folder: self.folder.clone(),
            faults: Arc::clone(&self.faults),
            head: Head {
                number: self.head.number + 1,
                places: u64::from(self.places),
                description,
                ..self.head
            },
            map: map_bytes(map),
            retired: std::mem::take(&mut self.retired),
        }
    }

    /// Takes note of what came of a version that was begun.
    pub fn settle(&mut self, next: NextVersion, outcome: &Result<(), Error>) {
        let is_last = outcome.is_ok() || !self.is_last();
        match (outcome, is_last) {
            (Ok(()), _) => {
                self.old.push_back((self.head.number, next.retired));
                self.head = next.head;
                self.release_old();
            }
            (Err(_), false) => {
                let map = map_path(&self.folder, next.head.number);
                for path in [self.folder.join(GROUP), map] {
                    let _ = std::fs::remove_file(path);
                }
                self.retired.extend(next.retired);
            }
            // Either of the two may be the last one after a crash, so no place of them is free.
            (Err(_), true) => self.is_lost = true,
        }
    }

    /// Whether the version that this writer knows as the last one is.
    fn is_last(&self) -> bool {
        last_head(&self.folder).is_ok_and(|head| head.number == self.head.number)
    }
}

impl Drop for VersionWriter {
    fn drop(&mut self) {
        lock::release(&self.lock);
    }
}
