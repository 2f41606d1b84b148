//! One file as the engine sees it: its bytes, and its writers.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock, Mutex, OnceLock, Weak};
use std::time::SystemTime;

use outcore_device::{Buf, Device, Limits, Locked, Route, read_now};
use outcore_engine::{Changes, Extent};
use outcore_store::{Identity, InPlace, NewObject, Object, Stat, Store, locate};

use crate::error::{Error, Result};
use crate::format::{self, Dense, FormatError, Vector};
use crate::shifted::Shifted;

/// What file systems map, mark as written and lock at a time.
pub const FILE_BLOCK_BYTES: u64 = 4096;

/// What stands between the library and the devices that it opens: nothing, or a device that fails
/// on purpose.
///
/// ```
/// use std::sync::Arc;
/// use outcore_core::WrapDevice;
/// use outcore_device::{Device, MemoryDevice};
///
/// let wrap = WrapDevice::new(|device| {
///     println!("opened {} bytes", device.len());
///     device
/// });
/// assert_eq!(wrap.wrap(Arc::new(MemoryDevice::new("x", 8192))).len(), 8192);
/// ```
#[derive(Clone, Default)]
pub struct WrapDevice(Option<Arc<Wrap>>);

type Wrap = dyn Fn(Arc<dyn Device>) -> Arc<dyn Device> + Send + Sync;

impl WrapDevice {
    /// Every device is used by way of what `wrap` makes of it.
    pub fn new(
        wrap: impl Fn(Arc<dyn Device>) -> Arc<dyn Device> + Send + Sync + 'static,
    ) -> WrapDevice {
        WrapDevice(Some(Arc::new(wrap)))
    }

    /// The device that takes the place of this one.
    pub fn wrap(&self, device: Arc<dyn Device>) -> Arc<dyn Device> {
        self.0
            .as_ref()
            .map_or_else(|| Arc::clone(&device), |wrap| wrap(Arc::clone(&device)))
    }
}

impl std::fmt::Debug for WrapDevice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if self.0.is_some() {
            "WrapDevice(..)"
        } else {
            "WrapDevice(nothing)"
        })
    }
}

/// A file that is open.
pub struct StoredFile {
    path: Option<PathBuf>,
    extent: Extent,
    wrap_device: WrapDevice,
    /// Bytes of the file before the extent.
    shift: u64,
    kind: Kind,
}

enum Kind {
    /// Takes its name when it is committed, and has it then.
    Unfinished(Mutex<Option<NewObject>>, OnceLock<()>, Named),
    /// Private to its session; written without a mark.
    Unnamed,
    /// Has a name; written in place, marked.
    Named(Named),
}

struct Named {
    store: Arc<dyn Store>,
    name: String,
    identity: Identity,
    interrupted: bool,
    writing: Mutex<Writing>,
    seen: Mutex<Seen>,
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
    /// Without its first `shift` bytes, so that its elements begin at multiples of their size.
    #[expect(clippy::too_many_arguments, reason = "what describes an open file")]
    pub fn named(
        path: &Path,
        store: Arc<dyn Store>,
        name: String,
        object: &Object,
        stat: &Stat,
        interrupted: bool,
        wrap_device: WrapDevice,
        shift: u64,
    ) -> StoredFile {
        let changes = changes_of(object.identity());
        let device = Shifted::device(wrap_device.wrap(object.device()), shift);
        let extent = Extent::with_changes(path.display().to_string(), device, changes, shift);
        let (identity, seen) = (object.identity(), Mutex::new((stat.modified, stat.len)));
        let kind = Kind::Named(Named {
            store,
            name,
            identity,
            interrupted,
            writing: Mutex::default(),
            seen,
        });
        StoredFile {
            path: Some(path.to_owned()),
            extent,
            wrap_device,
            shift,
            kind,
        }
    }

    /// A file of the scratch folder.
    pub fn unnamed(object: &Object, wrap_device: WrapDevice) -> StoredFile {
        StoredFile::unnamed_as("scratch".into(), object.device(), wrap_device)
    }

    /// One that others give a name when it is whole.
    pub(crate) fn unnamed_as(
        name: String,
        device: Arc<dyn Device>,
        wrap_device: WrapDevice,
    ) -> StoredFile {
        StoredFile {
            path: None,
            extent: Extent::new(name, wrap_device.wrap(device)),
            wrap_device,
            shift: 0,
            kind: Kind::Unnamed,
        }
    }

    /// A new file that takes its name when it is committed.
    pub fn unfinished(
        path: &Path,
        store: Arc<dyn Store>,
        name: String,
        object: NewObject,
        wrap_device: WrapDevice,
    ) -> StoredFile {
        let (device, identity) = (wrap_device.wrap(object.device()), object.identity());
        let changes = changes_of(identity);
        let extent = Extent::with_changes(path.display().to_string(), device, changes, 0);
        let (writing, seen) = (Mutex::default(), Mutex::default());
        let named = Named {
            store,
            name,
            identity,
            interrupted: false,
            writing,
            seen,
        };
        let kind = Kind::Unfinished(Mutex::new(Some(object)), OnceLock::new(), named);
        StoredFile {
            path: Some(path.to_owned()),
            extent,
            wrap_device,
            shift: 0,
            kind,
        }
    }

    /// A file that is only planned with.
    pub(crate) fn imagined(name: String, len: u64, limits: Limits) -> StoredFile {
        let device = Arc::new(Imagined {
            name: name.clone(),
            len,
            limits,
        });
        StoredFile {
            path: None,
            extent: Extent::new(name, device),
            wrap_device: WrapDevice::default(),
            shift: 0,
            kind: Kind::Unnamed,
        }
    }

    /// Where it is, or is going to be; `None` for an unnamed one.
    pub fn path(&self) -> Option<&Path> {
        self.path.as_deref()
    }

    /// Its bytes as the engine sees them.
    pub fn extent(&self) -> &Extent {
        &self.extent
    }

    /// Bytes of the file before the extent.
    pub fn shift(&self) -> u64 {
        self.shift
    }

    fn as_named(&self) -> Option<&Named> {
        match &self.kind {
            Kind::Named(named) => Some(named),
            Kind::Unfinished(_, has_name, named) => has_name.get().map(|()| named),
            Kind::Unnamed => None,
        }
    }

    /// Which file has its name, once it has one.
    pub fn identity(&self) -> Option<Identity> {
        Some(self.as_named()?.identity)
    }

    /// Whether the file is as it was last seen here: no other session or process has changed it
    /// since.
    pub(crate) fn is_current(&self, stat: &Stat) -> bool {
        self.as_named().is_some_and(|Named { writing, seen, .. }| {
            let written = writing.locked().writers > 0;
            written || *seen.locked() == (stat.modified, stat.len)
        })
    }

    /// Whether both are the same bytes, whichever session has opened them.
    pub fn is_same(&self, other: &StoredFile) -> bool {
        match (self.identity(), other.identity()) {
            (Some(one), Some(other)) => one == other,
            _ => std::ptr::eq(self, other),
        }
    }

    /// Whether it is new and has no name yet.
    pub fn is_draft(&self) -> bool {
        matches!(&self.kind, Kind::Unfinished(object, ..) if object.locked().is_some())
    }

    /// Removes a new file that has no name yet.
    pub fn discard(&self) {
        if let Kind::Unfinished(object, ..) = &self.kind {
            object.locked().take();
        }
    }

    /// Gives a new file its name. From then on it is written in place, marked.
    pub fn commit(&self) -> Result<()> {
        let Kind::Unfinished(object, has_name, named) = &self.kind else {
            return Ok(());
        };
        // Without the lock: a file system may take long to make a file durable.
        let object = object.locked().take();
        if let Some(object) = object {
            object.commit()?;
            named.look();
            let _ = has_name.set(());
        }
        Ok(())
    }
}

impl Named {
    /// It is as this process has left it.
    fn look(&self) {
        if let Ok(stat) = self.store.stat(&self.name) {
            *self.seen.locked() = (stat.modified, stat.len);
        }
    }
}

/// What this process has written to a file, whichever session wrote it.
fn changes_of(identity: Identity) -> Arc<Changes> {
    static CHANGES: LazyLock<Mutex<HashMap<Identity, Arc<Changes>>>> =
        LazyLock::new(Mutex::default);
    let mut changes = CHANGES.locked();
    changes.retain(|_, changes| Arc::strong_count(changes) > 1);
    Arc::clone(changes.entry(identity).or_default())
}

/// The right to write to a file. Planned first, begun when the job starts, finished when it is
/// done.
pub struct Writer {
    file: Arc<StoredFile>,
    device: Arc<Late>,
    /// The file had its name when this was planned.
    had_name: bool,
    begun: bool,
}

impl Writer {
    /// The right to write to a file, planned.
    pub fn plan(file: &Arc<StoredFile>) -> Writer {
        let device = Arc::new(Late::new(Arc::clone(file.extent.device()), file.shift));
        let had_name = file.as_named().is_some();
        if !had_name {
            device.set(Arc::clone(file.extent.device()));
        }
        Writer {
            file: Arc::clone(file),
            device,
            had_name,
            begun: false,
        }
    }

    /// What plans write to.
    pub fn extent(&self) -> Extent {
        self.file
            .extent
            .through(Arc::clone(&self.device) as Arc<dyn Device>)
    }

    /// Marks the file as being written, durably.
    pub fn begin(&mut self) -> Result<()> {
        let Some(Named {
            store,
            name,
            identity,
            interrupted,
            writing,
            ..
        }) = self.file.as_named()
        else {
            return Ok(());
        };
        if !self.had_name {
            let name = self.file.extent.name();
            return Err(Error::value(format!(
                "{name}: the write was planned before it had its name; plan it again"
            )));
        }
        let mut writing = writing.locked();
        if writing.object.is_none() {
            let object = if *interrupted {
                store.open_in_place_interrupted(name)?
            } else {
                store.open_in_place(name)?
            };
            if object.identity() != *identity {
                let name = self.file.extent.name();
                return Err(Error::value(format!(
                    "{name}: another file has this name since it was opened; open it again"
                )));
            }
            let expected = self.file.extent.len() + self.file.shift;
            if object.len() != expected {
                let actual = object.len();
                return Err(FormatError::Truncated {
                    object: self.file.extent.name().to_owned(),
                    expected,
                    actual,
                }
                .into());
            }
            *writing = Writing {
                writers: 0,
                failed: false,
                object: Some(Arc::new(object)),
            };
        }
        self.device.come(
            writing.object.as_ref().expect("open"),
            &self.file.wrap_device,
        );
        writing.writers += 1;
        self.begun = true;
        Ok(())
    }

    /// All was written: the last of several writers clears the mark.
    pub fn finish(mut self) -> Result<()> {
        self.end(false)
    }

    fn end(&mut self, failed: bool) -> Result<()> {
        let Some(named) = self.file.as_named() else {
            return Ok(());
        };
        if !std::mem::take(&mut self.begun) {
            return Ok(());
        }
        let mut writing = named.writing.locked();
        writing.writers -= 1;
        writing.failed |= failed;
        if writing.writers > 0 {
            return Ok(());
        }
        let Writing { object, failed, .. } = std::mem::take(&mut *writing);
        // The last writer: other references last only while `Late::device` asks for the device.
        let object = object.and_then(|object| {
            if failed {
                None
            } else {
                Arc::into_inner(object)
            }
        });
        object.map_or(Ok(()), InPlace::finish)?;
        named.look();
        Ok(())
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        let _ = self.end(true);
    }
}

/// A device that is known before it is there: a plan needs its limits, a run its bytes. The object
/// is asked for its device with the first request, so that a run which fails before leaves no mark.
struct Late {
    like: Arc<dyn Device>,
    shift: u64,
    object: OnceLock<(Weak<InPlace>, WrapDevice)>,
    device: OnceLock<Arc<dyn Device>>,
}

impl Late {
    fn new(like: Arc<dyn Device>, shift: u64) -> Late {
        Late {
            like,
            shift,
            object: OnceLock::new(),
            device: OnceLock::new(),
        }
    }

    fn set(&self, device: Arc<dyn Device>) {
        let _ = self.device.set(device);
    }

    fn come(&self, object: &Arc<InPlace>, wrap_device: &WrapDevice) {
        let _ = self
            .object
            .set((Arc::downgrade(object), wrap_device.clone()));
    }

    fn device(&self) -> &Arc<dyn Device> {
        if let Some(device) = self.device.get() {
            return device;
        }
        match self
            .object
            .get()
            .and_then(|(object, wrap_device)| Some((object.upgrade()?, wrap_device)))
        {
            Some((object, wrap_device)) => self
                .device
                .get_or_init(|| Shifted::device(wrap_device.wrap(object.device()), self.shift)),
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
pub fn read_head(path: &Path, object: &str) -> Result<Option<Dense>> {
    let Some((head, len)) = head_of(path, object)? else {
        return Ok(None);
    };
    Ok(Some(format::parse_npy(object, &head, len)?))
}

/// The same of a file that holds a part of a sparse matrix.
pub fn read_vector_head(path: &Path, object: &str) -> Result<Vector> {
    let Some((head, len)) = head_of(path, object)? else {
        let (object, reason) = (object.to_owned(), "it is no .npy file".to_owned());
        return Err(FormatError::Unsupported { object, reason }.into());
    };
    Ok(format::parse_npy_vector(object, &head, len)?)
}

/// The first bytes of a `.npy` file, its whole header among them, and its length.
fn head_of(path: &Path, object: &str) -> Result<Option<(Vec<u8>, u64)>> {
    let found = opened(path)?;
    let mut head = read_first(&found, format::HEAD_BYTES as u64)?;
    if !format::is_npy(&head) {
        return Ok(None);
    }
    if head.len() >= 12 {
        let needed = format::npy_head_bytes(object, &head)?;
        if needed > head.len() {
            head = read_first(&found, needed as u64)?;
        }
    }
    Ok(Some((head, found.len())))
}

/// No description of a matrix is longer.
pub const DESCRIPTION_BYTES: u64 = 1 << 20;

/// A text beside a matrix.
///
/// # Errors
/// Also for one that is longer than `most` bytes.
pub fn read_text(path: &Path, most: u64) -> Result<Vec<u8>> {
    let found = opened(path)?;
    if found.len() > most {
        let reason = format!("{} bytes, where a description is expected", found.len());
        return Err(FormatError::Unsupported {
            object: found.name().to_owned(),
            reason,
        }
        .into());
    }
    read_first(&found, most)
}

/// Bytes of a file or object.
pub(crate) fn length(path: &Path) -> Result<u64> {
    Ok(opened(path)?.len())
}

/// The first `count` bytes of a file, or all.
pub fn read_start(path: &Path, count: u64) -> Result<Vec<u8>> {
    read_first(&opened(path)?, count)
}

fn opened(path: &Path) -> Result<Object> {
    let (store, name) = locate(path)?;
    Ok(store.open_interrupted(&name)?)
}

/// The first `count` bytes, or all.
fn read_first(object: &Object, count: u64) -> Result<Vec<u8>> {
    let failed = |source| Error::Device {
        object: object.name().to_owned(),
        source,
    };
    let (device, count) = (object.device(), count.min(object.len()) as usize);
    let mut bytes =
        Buf::anonymous(count.next_multiple_of(device.limits().sector as usize)).map_err(failed)?;
    read_now(&*device, &mut bytes, 0).map_err(failed)?;
    Ok(bytes[..count].to_vec())
}
