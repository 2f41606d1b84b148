//! A session: one budget, its threads, its scratch folder, and the files that it has open.
//!
//! The sessions of a process divide what it may use: each takes its share when it is made, and
//! gives it back when the last clone, and the last of what was opened with it, is dropped. A call
//! with a budget of its own has a part of its session's ([`Session::part`]).

use std::collections::HashMap;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};

use outcore_device::{Choice, Device, Limits, Locked};
use outcore_engine::{Config, Engine, Trace};
use outcore_kernels::Blas;
use outcore_store::{Folder, Identity, Scratch, Tmpfs, locate};

use crate::error::{Error, Result};
use crate::file::{FILE_BLOCK_BYTES, StoredFile, WrapDevice, length, read_text};
use crate::limits::{SESSION_BYTES_MIN, take_share};

/// Plans are cut for this many threads, however many workers there are: the bits of a result depend
/// on how it was cut.
pub const PLAN_THREADS: u64 = 8;

/// How a session is made.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// Bytes that the library may hold, a share of what all sessions of the process may have
    /// together; `None` for a quarter of that, or what other sessions have left if that is less.
    pub memory_bytes: Option<u64>,
    /// Folder for unnamed results; `None` for `$OUTCORE_SCRATCH`, else `$TMPDIR`, else `/var/tmp`.
    pub scratch: Option<PathBuf>,
    /// Accept a scratch folder that lies in memory.
    pub allow_tmpfs_scratch: bool,
    /// Compute threads; 0 for one a core.
    pub threads: usize,
    /// How bytes reach devices.
    pub driver: Choice,
    /// The BLAS that multiplies blocks.
    pub blas: Blas,
    /// What stands between the library and its devices; for tests with faults.
    pub wrap_device: WrapDevice,
}

/// Budget, threads, scratch and open files. Clones are the same session; it may be used from any
/// thread.
///
/// ```
/// use outcore_core::{Session, Settings};
///
/// # let folder = tempfile::tempdir().unwrap();
/// # let scratch = Some(folder.path().into());
/// let settings = Settings { memory_bytes: Some(16 << 20), scratch, ..Settings::default() };
/// # let settings = Settings { allow_tmpfs_scratch: true, ..settings };
/// let session = Session::new(settings)?;
/// assert_eq!(session.memory_bytes(), 16 << 20);
/// assert!(session.memory_free() <= session.memory_bytes());
/// let info = session.info()?;
/// println!("{} on {} threads, {}", info.driver, session.threads(), session.blas().name());
/// assert_eq!(session.engine().budget().total(), session.memory_bytes());
/// assert!(session.last_trace().is_none());
/// # Ok::<(), outcore_core::Error>(())
/// ```
#[derive(Clone)]
pub struct Session {
    inner: Arc<Inner>,
    /// That of all its calls, or with a part of its budget.
    engine: Engine,
    /// Its jobs are only looked at.
    plans_only: bool,
    /// Of which plans are made, if it is not all of the budget.
    planned_bytes: Option<u64>,
}

struct Inner {
    engine: Engine,
    blas: Blas,
    wrap_device: WrapDevice,
    scratch_folder: PathBuf,
    tmpfs: Tmpfs,
    scratch: OnceLock<Scratch>,
    swept: AtomicBool,
    /// By the bytes that are left out of them, too.
    files: Mutex<HashMap<(Identity, u64), Weak<StoredFile>>>,
    last_trace: Mutex<Option<Arc<Trace>>>,
}

/// What a session runs on.
#[derive(Clone, Debug)]
pub struct Info {
    /// Budget, bytes.
    pub memory_bytes: u64,
    /// Compute threads.
    pub threads: usize,
    /// `"io_uring"` or `"threads"`.
    pub driver: &'static str,
    /// Requests that the driver keeps at the device.
    pub queue_depth: usize,
    /// Bytes of memory registered with the ring.
    pub registered_bytes: usize,
    /// Why io_uring is not used, where it is not.
    pub fallback: Option<String>,
    /// Name of the BLAS.
    pub blas: String,
    /// Its version.
    pub blas_version: String,
    /// Folder for unnamed results.
    pub scratch: PathBuf,
}

impl Session {
    /// A session; threads, rings and the scratch folder come into being with first use, which also
    /// sweeps scratch of dead processes.
    ///
    /// # Errors
    /// [`Error::Value`] for a budget below 1 MiB, [`Error::OverCap`] for one that other sessions of
    /// the process have no room for.
    pub fn new(settings: Settings) -> Result<Session> {
        let share = take_share(settings.memory_bytes)?;
        let scratch_folder = settings.scratch.unwrap_or_else(|| {
            let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty());
            variable("OUTCORE_SCRATCH")
                .or_else(|| variable("TMPDIR"))
                .map_or_else(|| "/var/tmp".into(), PathBuf::from)
        });
        let config = Config {
            memory_bytes: share.bytes(),
            threads: settings.threads,
            driver: settings.driver,
        };
        let engine = Engine::sharing(config, share);
        let inner = Arc::new(Inner {
            engine: engine.clone(),
            blas: settings.blas,
            wrap_device: settings.wrap_device,
            scratch_folder,
            tmpfs: if settings.allow_tmpfs_scratch {
                Tmpfs::Allow
            } else {
                Tmpfs::Refuse
            },
            scratch: OnceLock::new(),
            swept: AtomicBool::new(false),
            files: Mutex::default(),
            last_trace: Mutex::default(),
        });
        Ok(Session {
            inner,
            engine,
            plans_only: false,
            planned_bytes: None,
        })
    }

    /// The same session for calls that may have `bytes` of its budget: their plans, and so their
    /// bits, are those of a session with that budget; files, views and caches are this one's. The
    /// bytes are taken from the session's budget while anything of such a call is reserved, all or
    /// nothing: runs wait for those of other runs, and fail with [`Error::OverBudget`] where a job
    /// or a reader holds them. What a call makes has the part, too; [`whole`](Session::whole)
    /// is the session with all of its budget.
    ///
    /// ```
    #[doc = include_str!("setup.doctest")]
    /// let part = session.part(4 << 20)?;
    /// assert_eq!(part.memory_bytes(), 4 << 20);
    /// assert_eq!(part.whole().memory_bytes(), 16 << 20);
    /// # Ok::<(), outcore_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Value`] for less than 1 MiB, [`Error::OverPart`] for more than the budget.
    pub fn part(&self, bytes: u64) -> Result<Session> {
        if bytes < SESSION_BYTES_MIN {
            return Err(Error::value(format!(
                "memory must be at least 1 MiB, not {bytes} bytes"
            )));
        }
        let whole = &self.inner.engine;
        let budget = whole.budget().total();
        if bytes > budget {
            let needed = bytes;
            return Err(Error::OverPart { needed, budget });
        }
        Ok(Session {
            engine: whole.part("a call", bytes)?,
            planned_bytes: None,
            ..self.clone()
        })
    }

    /// The same session for calls beside which their caller has reserved the rest of the budget: their
    /// plans, and so their bits, are those of a session with `bytes`.
    ///
    /// ```
    #[doc = include_str!("setup.doctest")]
    /// let _arrays = session.engine().reserve("arrays", 4 << 20)?;
    /// let narrowed = session.narrowed(12 << 20)?;
    /// assert_eq!(narrowed.memory_bytes(), 12 << 20);
    /// assert_eq!(narrowed.whole().memory_bytes(), 16 << 20);
    /// # Ok::<(), outcore_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// As of [`part`](Session::part).
    pub fn narrowed(&self, bytes: u64) -> Result<Session> {
        let budget = self.memory_bytes();
        match bytes {
            ..SESSION_BYTES_MIN => Err(Error::value(format!(
                "memory must be at least 1 MiB, not {bytes} bytes"
            ))),
            needed if needed > budget => Err(Error::OverPart { needed, budget }),
            _ => Ok(Session {
                planned_bytes: Some(bytes),
                ..self.clone()
            }),
        }
    }

    /// The session with all of its budget.
    #[must_use]
    pub fn whole(&self) -> Session {
        Session {
            engine: self.inner.engine.clone(),
            planned_bytes: None,
            ..self.clone()
        }
    }

    /// The same session for jobs that are only looked at: they make no file, take no space, and do
    /// not start.
    ///
    /// ```
    #[doc = include_str!("setup.doctest")]
    /// let planner = session.planner();
    /// assert!(planner.plans_only() && !session.plans_only());
    /// let imagined = planner.scratch_file(None, 1 << 50)?;
    /// assert_eq!(imagined.extent().len(), 1 << 50);
    /// # Ok::<(), outcore_core::Error>(())
    /// ```
    #[must_use]
    pub fn planner(&self) -> Session {
        Session {
            plans_only: true,
            ..self.clone()
        }
    }

    /// Whether it is a [`planner`](Session::planner).
    pub fn plans_only(&self) -> bool {
        self.plans_only
    }

    /// The engine below.
    pub fn engine(&self) -> &Engine {
        self.begin();
        &self.engine
    }

    /// With the first use of a session goes what dead processes have left in its scratch folder, on
    /// a thread that nothing waits for.
    fn begin(&self) {
        if self.plans_only
            || self.inner.swept.load(Ordering::Relaxed)
            || self.inner.swept.swap(true, Ordering::Relaxed)
        {
            return;
        }
        let folder = self.inner.scratch_folder.clone();
        // Without a thread it is left to whatever makes scratch.
        drop(
            std::thread::Builder::new()
                .name("outcore-sweep".into())
                .spawn(move || Scratch::sweep(&folder)),
        );
    }

    /// Budget, bytes. It alone decides how what is added up is cut, so that the bits of a result do
    /// not depend on memory that others have reserved.
    pub fn memory_bytes(&self) -> u64 {
        let total = self.engine.budget().total();
        self.planned_bytes.unwrap_or(total)
    }

    /// Bytes of it that a run may have, if need be after those that go on now: what is only moved,
    /// and what is added up elsewhere, may be cut by it.
    pub fn memory_free(&self) -> u64 {
        self.engine.budget().plannable().min(self.memory_bytes())
    }

    /// Compute threads.
    pub fn threads(&self) -> usize {
        self.engine.threads()
    }

    /// The BLAS that multiplies blocks.
    pub fn blas(&self) -> &Blas {
        &self.inner.blas
    }

    /// Starts the engine if need be, and says what it runs on.
    ///
    /// # Errors
    /// [`Error::Device`] when there is no driver.
    pub fn info(&self) -> Result<Info> {
        let engine = self.engine.info()?;
        Ok(Info {
            memory_bytes: engine.memory_bytes,
            threads: engine.threads,
            driver: engine.driver.name,
            queue_depth: engine.driver.depth,
            registered_bytes: engine.driver.registered_bytes,
            fallback: engine.driver.fallback,
            blas: self.inner.blas.name().to_owned(),
            blas_version: self.inner.blas.version().to_owned(),
            scratch: self.inner.scratch_folder.clone(),
        })
    }

    /// How the last run of this session went.
    pub fn last_trace(&self) -> Option<Arc<Trace>> {
        self.inner.last_trace.locked().clone()
    }

    pub(crate) fn keep_trace(&self, trace: Trace) {
        *self.inner.last_trace.locked() = Some(Arc::new(trace));
    }

    /// All bytes of a file or object that lies beside a matrix, such as its vocabulary.
    ///
    /// ```
    #[doc = include_str!("setup.doctest")]
    /// let path = folder.path().join("classes.txt");
    /// std::fs::write(&path, "cat\ndog\n").unwrap();
    /// assert_eq!(session.read_all(&path)?, b"cat\ndog\n");
    /// # Ok::<(), outcore_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Store`] for one that is not there; [`Error::OverBudget`] for one that is larger than the budget.
    pub fn read_all(&self, path: impl AsRef<Path>) -> Result<Vec<u8>> {
        let (path, budget) = (path.as_ref(), self.memory_bytes());
        let length = length(path)?;
        // As they are read, and as they are returned.
        let needed = 2 * length;
        if needed > budget {
            return Err(Error::OverBudget {
                what: format!("all of {}", path.display()),
                needed,
                available: self.memory_free(),
                budget,
            });
        }
        read_text(path, length)
    }

    /// The open file behind a path; one for each file, so that all views of it see each other's
    /// writes.
    ///
    /// ```
    #[doc = include_str!("setup.doctest")]
    /// # use std::sync::Arc;
    /// let path = folder.path().join("x.bin");
    /// std::fs::write(&path, [0; 8196]).unwrap();
    /// let file = session.file(&path, false)?;
    /// assert!(Arc::ptr_eq(&file, &session.file(&path, false)?));
    /// let rest = session.file_from(&path, false, 4)?;
    /// assert_eq!((file.extent().len(), rest.extent().len()), (8196, 8192));
    /// # Ok::<(), outcore_core::Error>(())
    /// ```
    pub fn file(&self, path: &Path, interrupted: bool) -> Result<Arc<StoredFile>> {
        self.file_from(path, interrupted, 0)
    }

    /// The same without its first `shift` bytes.
    pub fn file_from(&self, path: &Path, interrupted: bool, shift: u64) -> Result<Arc<StoredFile>> {
        self.begin();
        let (store, name) = locate(path)?;
        let object = if interrupted {
            store.open_interrupted(&name)?
        } else {
            store.open(&name)?
        };
        let stat = store.stat(&name)?;
        let mut files = self.inner.files.locked();
        files.retain(|_, file| file.strong_count() > 0);
        let key = (object.identity(), shift);
        if let Some(known) = files.get(&key).and_then(Weak::upgrade)
            && known.is_current(&stat)
        {
            return Ok(known);
        }
        let wrap_device = self.inner.wrap_device.clone();
        let file = Arc::new(StoredFile::named(
            path,
            store,
            name,
            &object,
            &stat,
            interrupted,
            wrap_device,
            shift,
        ));
        files.insert(key, Arc::downgrade(&file));
        Ok(file)
    }

    /// Gives a new file its name: opened from now on, it is this one.
    pub fn commit(&self, file: &Arc<StoredFile>) -> Result<()> {
        file.commit()?;
        if let Some(identity) = file.identity() {
            self.inner
                .files
                .locked()
                .insert((identity, 0), Arc::downgrade(file));
        }
        Ok(())
    }

    /// Takes a file for whole that a writer in place has left half written, because another program
    /// has written it anew since.
    ///
    /// ```
    #[doc = include_str!("setup.doctest")]
    /// let path = folder.path().join("x.bin");
    /// std::fs::write(&path, [0; 8]).unwrap();
    /// session.accept(&path)?;
    /// assert!(session.file(&path, false).is_ok());
    /// # Ok::<(), outcore_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Store`].
    pub fn accept(&self, path: impl AsRef<Path>) -> Result<()> {
        let (store, name) = locate(path.as_ref())?;
        Ok(store.clear_mark(&name)?)
    }

    /// A device as the session uses it.
    ///
    /// ```
    #[doc = include_str!("setup.doctest")]
    /// use std::sync::Arc;
    /// use outcore_device::MemoryDevice;
    ///
    /// let device = session.wrap_device(Arc::new(MemoryDevice::new("numbers", 8192)));
    /// let file = session.device_file("numbers".into(), device);
    /// assert_eq!(file.extent().len(), 8192);
    /// # Ok::<(), outcore_core::Error>(())
    /// ```
    pub fn wrap_device(&self, device: Arc<dyn Device>) -> Arc<dyn Device> {
        self.inner.wrap_device.wrap(device)
    }

    /// A file on a device whose object the caller names.
    pub fn device_file(&self, name: String, device: Arc<dyn Device>) -> StoredFile {
        StoredFile::unnamed_as(name, device, self.inner.wrap_device.clone())
    }

    /// A file of the scratch folder, or what a plan that is only looked at takes for it; then
    /// `path` says where it would be.
    ///
    /// ```
    #[doc = include_str!("setup.doctest")]
    /// session.expect_scratch("a sum", 2 * 8192)?;
    /// let file = session.scratch_file(None, 8192)?;
    /// assert_eq!((file.extent().len(), file.path()), (8192, None));
    /// # Ok::<(), outcore_core::Error>(())
    /// ```
    pub fn scratch_file(&self, path: Option<&Path>, len: u64) -> Result<Arc<StoredFile>> {
        Ok(Arc::new(match self.plans_only {
            true => {
                let name = path.map_or_else(|| "scratch".into(), |path| path.display().to_string());
                self.imagined(path.unwrap_or(&self.inner.scratch_folder), name, len)
            }
            false => StoredFile::unnamed(
                &self.scratch()?.create(len)?,
                self.inner.wrap_device.clone(),
            ),
        }))
    }

    /// Whether the scratch folder has room for `needed` bytes, of which files are going to be made
    /// one after another.
    pub fn expect_scratch(&self, what: &str, needed: u64) -> Result<()> {
        match needed > 0 && !self.plans_only {
            true => Ok(self.scratch()?.check_space(
                &format!("{what}, scratch in {}", self.inner.scratch_folder.display()),
                needed,
            )?),
            false => Ok(()),
        }
    }

    /// A file that a plan would make at a path: with the limits of the store there, or of files
    /// that are open on the same file system.
    fn imagined(&self, path: &Path, name: String, len: u64) -> StoredFile {
        let there = path
            .ancestors()
            .find_map(|folder| Identity::of_path(folder).ok());
        let files = self.inner.files.locked();
        let near = files
            .iter()
            .filter(|((identity, _), _)| there.is_some_and(|there| there.is_near(identity)));
        let near = near
            .filter_map(|(_, file)| file.upgrade())
            .map(|file| file.extent().device().limits())
            .next();
        let limits = locate(path)
            .ok()
            .and_then(|(store, _)| store.limits())
            .or(near);
        StoredFile::imagined(
            name,
            len,
            limits.unwrap_or(Limits {
                sector: FILE_BLOCK_BYTES as u32,
                max_transfer: 1 << 30,
            }),
        )
    }

    /// A new file of a store, or what a plan that is only looked at takes for it: it has its name
    /// once it is committed. With `is_new` nothing may be at the path, then as now.
    ///
    /// ```
    #[doc = include_str!("setup.doctest")]
    /// let path = folder.path().join("x.bin");
    /// let file = session.new_file(&path, 8192, true)?;
    /// assert!(file.is_draft() && !path.exists());
    /// session.commit(&file)?;
    /// assert!(!file.is_draft() && path.exists());
    /// # Ok::<(), outcore_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Store`] when there is no room, or the folder cannot be written.
    pub fn new_file(&self, path: &Path, len: u64, is_new: bool) -> Result<Arc<StoredFile>> {
        let (store, name) = locate(path)?;
        if self.plans_only {
            let file = self.imagined(path, path.display().to_string(), len);
            return Ok(Arc::new(file));
        }
        let object = if is_new {
            store.create_new(&name, len)?
        } else {
            store.create(&name, len)?
        };
        let wrap_device = self.inner.wrap_device.clone();
        Ok(Arc::new(StoredFile::unfinished(
            path,
            store,
            name,
            object,
            wrap_device,
        )))
    }

    fn scratch(&self) -> Result<&Scratch> {
        if let Some(scratch) = self.inner.scratch.get() {
            return Ok(scratch);
        }
        let object = self.inner.scratch_folder.display().to_string();
        std::fs::create_dir_all(&self.inner.scratch_folder).map_err(|source| {
            match source.kind() {
                ErrorKind::AlreadyExists | ErrorKind::NotADirectory => {
                    Error::Store(outcore_store::Error::NotAFolder { object })
                }
                ErrorKind::PermissionDenied => Error::Store(outcore_store::Error::Denied {
                    object,
                    action: "create it",
                }),
                _ => Error::of_io(object, source),
            }
        })?;
        let made = Scratch::new(&self.inner.scratch_folder, self.inner.tmpfs)?;
        Ok(self.inner.scratch.get_or_init(|| made))
    }

    /// A folder for what may be gone on with when this process has died.
    pub(crate) fn lasting_scratch(&self) -> Result<Folder> {
        Ok(self.scratch()?.lasting()?)
    }
}
