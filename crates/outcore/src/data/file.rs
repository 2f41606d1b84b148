//! One file as the engine sees it: its bytes, and who writes to them.

use std::collections::HashMap;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex, OnceLock, Weak};
use std::time::SystemTime;

use outcore_device::{Device, Limits, Route};
use outcore_engine::Extent;
use outcore_store::{Folder, Identity, InPlace, NewObject, Object, Stat, Store};

use crate::data::format::{self, Dense, FormatError, Vector};
use crate::error::{Error, Result};

/// What stands between the library and the devices that it opens: nothing, or a device that fails on purpose.
#[derive(Clone, Default)]
pub struct Between(Option<Arc<Wrap>>);

type Wrap = dyn Fn(Arc<dyn Device>) -> Arc<dyn Device> + Send + Sync;

impl Between {
    /// Every device is used by way of what `wrap` makes of it.
    pub fn new(wrap: impl Fn(Arc<dyn Device>) -> Arc<dyn Device> + Send + Sync + 'static) -> Between {
        Between(Some(Arc::new(wrap)))
    }

    pub(crate) fn wrap(&self, device: Arc<dyn Device>) -> Arc<dyn Device> {
        self.0.as_ref().map_or_else(|| Arc::clone(&device), |wrap| wrap(Arc::clone(&device)))
    }
}

impl std::fmt::Debug for Between {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if self.0.is_some() { "Between(..)" } else { "Between(nothing)" })
    }
}

/// A file that is open.
pub(crate) struct StoredFile {
    path: Option<PathBuf>,
    extent: Extent,
    between: Between,
    kind: Kind,
}

enum Kind {
    /// Takes its name when it is committed.
    Unfinished(Mutex<Option<NewObject>>),
    /// Belongs to nobody else; written without a mark.
    Unnamed,
    /// Has a name; written in place, marked.
    Named { folder: Folder, name: String, identity: Identity, interrupted: bool, writing: Mutex<Writing>, seen: Mutex<Seen> },
}

/// Time and length of a file when this process last had to do with it.
type Seen = (Option<SystemTime>, u64);

#[derive(Default)]
struct Writing {
    writers: usize,
    failed: bool,
    object: Option<Arc<InPlace>>,
}

impl StoredFile {
    pub(crate) fn named(
        path: &Path,
        folder: Folder,
        name: String,
        object: &Object,
        stat: &Stat,
        interrupted: bool,
        between: Between,
    ) -> StoredFile {
        let version = version_of(object.identity());
        let extent = Extent::versioned(path.display().to_string(), between.wrap(object.device()), version);
        let (identity, seen) = (object.identity(), Mutex::new((stat.modified, stat.len)));
        let kind = Kind::Named { folder, name, identity, interrupted, writing: Mutex::default(), seen };
        StoredFile { path: Some(path.to_owned()), extent, between, kind }
    }

    pub(crate) fn unnamed(object: &Object, between: Between) -> StoredFile {
        StoredFile::unnamed_as("scratch".into(), object.device(), between)
    }

    /// One that others give a name when it is whole.
    pub(crate) fn unnamed_as(name: String, device: Arc<dyn Device>, between: Between) -> StoredFile {
        StoredFile { path: None, extent: Extent::new(name, between.wrap(device)), between, kind: Kind::Unnamed }
    }

    pub(crate) fn unfinished(path: &Path, object: NewObject, between: Between) -> StoredFile {
        let extent = Extent::new(path.display().to_string(), between.wrap(object.device()));
        StoredFile { path: Some(path.to_owned()), extent, between, kind: Kind::Unfinished(Mutex::new(Some(object))) }
    }

    /// A file that is only planned with.
    pub(crate) fn imagined(name: String, len: u64, limits: Limits) -> StoredFile {
        let device = Arc::new(Imagined { name: name.clone(), len, limits });
        StoredFile { path: None, extent: Extent::new(name, device), between: Between::default(), kind: Kind::Unnamed }
    }

    pub(crate) fn path(&self) -> Option<&Path> {
        self.path.as_deref()
    }

    pub(crate) fn extent(&self) -> &Extent {
        &self.extent
    }

    /// Whether the file is as this process knows it: nobody else has changed it since.
    pub(crate) fn is_current(&self, stat: &Stat) -> bool {
        match &self.kind {
            Kind::Named { writing, seen, .. } => {
                let written = writing.lock().expect("no panic while held").writers > 0;
                written || *seen.lock().expect("no panic while held") == (stat.modified, stat.len)
            }
            _ => false,
        }
    }

    /// Whether both are the same bytes, whichever session has opened them.
    pub(crate) fn is_same(&self, other: &StoredFile) -> bool {
        match (&self.kind, &other.kind) {
            (Kind::Named { identity, .. }, Kind::Named { identity: other, .. }) => identity == other,
            _ => std::ptr::eq(self, other),
        }
    }

    pub(crate) fn is_draft(&self) -> bool {
        matches!(&self.kind, Kind::Unfinished(object) if object.lock().expect("no panic while held").is_some())
    }

    /// Removes a new file that has no name yet.
    pub(crate) fn discard(&self) {
        if let Kind::Unfinished(object) = &self.kind {
            object.lock().expect("no panic while held").take();
        }
    }

    /// Gives a new file its name.
    pub(crate) fn commit(&self) -> Result<()> {
        let Kind::Unfinished(object) = &self.kind else { return Ok(()) };
        match object.lock().expect("no panic while held").take() {
            Some(object) => object.commit().map(drop).map_err(Error::from),
            None => Ok(()),
        }
    }
}

/// Changes with every write in place of this process, whichever session it belongs to.
fn version_of(identity: Identity) -> Arc<AtomicU64> {
    static VERSIONS: LazyLock<Mutex<HashMap<Identity, Arc<AtomicU64>>>> = LazyLock::new(Mutex::default);
    let mut versions = VERSIONS.lock().expect("no panic while held");
    versions.retain(|_, version| Arc::strong_count(version) > 1);
    Arc::clone(versions.entry(identity).or_default())
}

/// The right to write to a file. Planned first, begun when the job starts, finished when it is done.
pub(crate) struct Writer {
    file: Arc<StoredFile>,
    device: Arc<Late>,
    begun: bool,
}

impl Writer {
    pub(crate) fn plan(file: &Arc<StoredFile>) -> Writer {
        let device = Arc::new(Late::new(Arc::clone(file.extent.device())));
        if !matches!(file.kind, Kind::Named { .. }) {
            device.set(Arc::clone(file.extent.device()));
        }
        Writer { file: Arc::clone(file), device, begun: false }
    }

    /// What plans write to.
    pub(crate) fn extent(&self) -> Extent {
        self.file.extent.through(Arc::clone(&self.device) as Arc<dyn Device>)
    }

    /// Marks the file as being written, durably.
    pub(crate) fn begin(&mut self) -> Result<()> {
        let Kind::Named { folder, name, identity, interrupted, writing, .. } = &self.file.kind else { return Ok(()) };
        let mut writing = writing.lock().expect("no panic while held");
        if writing.object.is_none() {
            let object = if *interrupted { folder.open_in_place_interrupted(name)? } else { folder.open_in_place(name)? };
            if object.identity() != *identity {
                let name = self.file.extent.name();
                return Err(Error::value(format!("{name}: another file has this name since it was opened; open it again")));
            }
            if object.len() != self.file.extent.len() {
                let (expected, actual) = (self.file.extent.len(), object.len());
                return Err(FormatError::Truncated { object: self.file.extent.name().to_owned(), expected, actual }.into());
            }
            *writing = Writing { writers: 0, failed: false, object: Some(Arc::new(object)) };
        }
        self.device.come(writing.object.as_ref().expect("open"), &self.file.between);
        writing.writers += 1;
        self.begun = true;
        Ok(())
    }

    /// All was written: the last of several writers clears the mark.
    pub(crate) fn finish(mut self) -> Result<()> {
        self.end(false)
    }

    fn end(&mut self, failed: bool) -> Result<()> {
        let Kind::Named { folder, name, identity, writing, seen, .. } = &self.file.kind else { return Ok(()) };
        if !std::mem::take(&mut self.begun) {
            return Ok(());
        }
        version_of(*identity).fetch_add(1, Ordering::AcqRel);
        let mut writing = writing.lock().expect("no panic while held");
        writing.writers -= 1;
        writing.failed |= failed;
        if writing.writers > 0 {
            return Ok(());
        }
        let Writing { object, failed, .. } = std::mem::take(&mut *writing);
        // Nobody else holds it for longer than it takes to ask it for its device.
        let object = object.and_then(|object| if failed { None } else { Arc::into_inner(object) });
        object.map_or(Ok(()), InPlace::finish)?;
        if let Ok(stat) = folder.stat(name) {
            *seen.lock().expect("no panic while held") = (stat.modified, stat.len);
        }
        Ok(())
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        let _ = self.end(true);
    }
}

/// A device that is known before it is there: a plan needs its limits, a run its bytes. The object is asked for its device
/// with the first request, so that a run which fails before leaves no mark.
struct Late {
    like: Arc<dyn Device>,
    object: OnceLock<(Weak<InPlace>, Between)>,
    device: OnceLock<Arc<dyn Device>>,
}

impl Late {
    fn new(like: Arc<dyn Device>) -> Late {
        Late { like, object: OnceLock::new(), device: OnceLock::new() }
    }

    fn set(&self, device: Arc<dyn Device>) {
        let _ = self.device.set(device);
    }

    fn come(&self, object: &Arc<InPlace>, between: &Between) {
        let _ = self.object.set((Arc::downgrade(object), between.clone()));
    }

    fn device(&self) -> &Arc<dyn Device> {
        if let Some(device) = self.device.get() {
            return device;
        }
        match self.object.get().and_then(|(object, between)| Some((object.upgrade()?, between))) {
            Some((object, between)) => self.device.get_or_init(|| between.wrap(object.device())),
            None => &self.like,
        }
    }
}

impl Device for Late {
    fn name(&self) -> &str {
        self.like.name()
    }

    fn limits(&self) -> Limits {
        self.like.limits()
    }

    fn len(&self) -> u64 {
        self.like.len()
    }

    fn route(&self) -> Route<'_> {
        self.device().route()
    }
}

/// What a plan would make: it has a length and limits, but no bytes.
struct Imagined {
    name: String,
    len: u64,
    limits: Limits,
}

impl Device for Imagined {
    fn name(&self) -> &str {
        &self.name
    }

    fn limits(&self) -> Limits {
        self.limits
    }

    fn len(&self) -> u64 {
        self.len
    }

    fn route(&self) -> Route<'_> {
        unreachable!("a job that is only looked at does not start")
    }
}

/// The description in a `.npy` file; `None` for a file of another kind.
pub(crate) fn read_head(path: &Path, object: &str) -> Result<Option<Dense>> {
    let Some((head, len)) = head_of(path, object)? else { return Ok(None) };
    Ok(Some(format::parse_npy(object, &head, len)?))
}

/// The same of a file that holds a part of a sparse matrix.
pub(crate) fn read_vector_head(path: &Path, object: &str) -> Result<Vector> {
    let Some((head, len)) = head_of(path, object)? else {
        let (object, reason) = (object.to_owned(), "it is no .npy file".to_owned());
        return Err(FormatError::Unsupported { object, reason }.into());
    };
    Ok(format::parse_npy_vector(object, &head, len)?)
}

/// The first bytes of a `.npy` file, its whole header among them, and its length.
fn head_of(path: &Path, object: &str) -> Result<Option<(Vec<u8>, u64)>> {
    let failed = |source| Error::Device { object: object.to_owned(), source };
    let mut file = std::fs::File::open(path).map_err(failed)?;
    let len = file.metadata().map_err(failed)?.len();
    let mut head = Vec::new();
    Read::by_ref(&mut file).take(format::HEAD_BYTES as u64).read_to_end(&mut head).map_err(failed)?;
    if !format::is_npy(&head) {
        return Ok(None);
    }
    if head.len() >= 12 {
        let needed = format::npy_head_bytes(object, &head)?;
        let more = needed.saturating_sub(head.len()) as u64;
        file.take(more).read_to_end(&mut head).map_err(failed)?;
    }
    Ok(Some((head, len)))
}
