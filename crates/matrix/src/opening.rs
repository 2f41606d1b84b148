//! How dense matrices come into being: opened, created, or made in scratch.

use std::path::Path;
use std::sync::Arc;

use outcore_core::file::{DESCRIPTION_BYTES, read_head, read_text};
use outcore_core::format::{self, Dense};
use outcore_core::{DType, Error, FormatError, Order, Result, Session, StoredFile};
use outcore_engine::{Plan, Region, Task};

use crate::array::Array;
use crate::layout::Layout;

impl Array {
    /// Opens a `.npy` file, or a raw file with a JSON description beside it (`<file>.json`).
    ///
    /// ```
    #[doc = include_str!("setup.doctest")]
    /// let path = folder.path().join("y.npy");
    /// Array::create(&session, &path, DType::F32, &[2, 3], Order::Row)?;
    /// let y = Array::open(&session, &path)?;
    /// assert_eq!((y.dtype(), y.shape()), (DType::F32, vec![2, 3]));
    /// # Ok::<(), outcore_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Store`] for a file that is not there or was left half written, [`Error::Format`]
    /// for one that is no matrix.
    pub fn open(session: &Session, path: impl AsRef<Path>) -> Result<Array> {
        Array::open_as(session, path.as_ref(), false)
    }

    /// As [`open`](Array::open), also where an earlier writer in place died half way.
    ///
    /// ```
    #[doc = include_str!("setup.doctest")]
    /// let path = folder.path().join("y.npy");
    /// Array::create(&session, &path, DType::F32, &[2, 3], Order::Row)?;
    /// assert_eq!(Array::open_interrupted(&session, &path)?.shape(), [2, 3]);
    /// # Ok::<(), outcore_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`open`](Array::open).
    pub fn open_interrupted(session: &Session, path: impl AsRef<Path>) -> Result<Array> {
        Array::open_as(session, path.as_ref(), true)
    }

    fn open_as(session: &Session, path: &Path, interrupted: bool) -> Result<Array> {
        let file = session.file(path, interrupted)?;
        let object = path.display().to_string();
        let dense = match read_head(path, &object)? {
            Some(dense) => dense,
            None => {
                let sidecar = format::sidecar_path(path);
                let text = read_text(&sidecar, DESCRIPTION_BYTES).map_err(|_| {
                    FormatError::Unsupported {
                        object: object.clone(),
                        reason: format!(
                            "no .npy file, and no description of a raw one in {}",
                            sidecar.display()
                        ),
                    }
                })?;
                format::parse_sidecar(&object, &text, file.extent().len())?
            }
        };
        Array::in_file(session, path, file, &dense, interrupted)
    }

    /// The matrix in an open file.
    fn in_file(
        session: &Session,
        path: &Path,
        file: Arc<StoredFile>,
        dense: &Dense,
        interrupted: bool,
    ) -> Result<Array> {
        let file = match dense.shift() {
            0 => file,
            shift => session.file_from(path, interrupted, shift)?,
        };
        Ok(Array::of(session, file, dense))
    }

    fn of(session: &Session, file: Arc<StoredFile>, dense: &Dense) -> Array {
        let layout = Layout::of(dense);
        Array::new(session.clone(), file, layout, dense.dtype, &dense.shape)
    }

    /// Opens a raw file by its description: `offset` bytes before the first element,
    /// `leading_dimension` elements from one row or column to the next, without gaps if `None`.
    ///
    /// ```
    #[doc = include_str!("setup.doctest")]
    /// let path = folder.path().join("y.bin");
    /// std::fs::write(&path, [9, 9, 1, 2, 3, 4, 5, 6]).unwrap();
    /// let y = Array::open_raw(&session, &path, DType::U8, &[2, 2], Order::Row, 2, Some(3))?;
    /// assert_eq!(y.to_vec::<u8>()?, [1, 2, 4, 5]);
    /// # Ok::<(), outcore_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`open`](Array::open).
    pub fn open_raw(
        session: &Session,
        path: impl AsRef<Path>,
        dtype: DType,
        shape: &[u64],
        order: Order,
        offset: u64,
        leading_dimension: Option<u64>,
    ) -> Result<Array> {
        let path = path.as_ref();
        let object = path.display().to_string();
        let file = session.file(path, false)?;
        let dense = format::raw(&object, dtype, shape, order, offset, leading_dimension)?;
        dense.check_len(&object, file.extent().len())?;
        Array::in_file(session, path, file, &dense, false)
    }

    /// A new matrix of zeros at a path, whole at once; write into it with [`Array::write`].
    ///
    /// ```
    #[doc = include_str!("setup.doctest")]
    /// let path = folder.path().join("y.npy");
    /// let y = Array::create(&session, &path, DType::F32, &[2, 2], Order::Row)?;
    /// y.copy_from_slice(&[1.0f32, 2.0, 3.0, 4.0])?;
    /// assert_eq!(path.metadata().unwrap().len(), 4096 + 16);
    /// # Ok::<(), outcore_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Store`] when there is no room, or the folder cannot be written.
    pub fn create(
        session: &Session,
        path: impl AsRef<Path>,
        dtype: DType,
        shape: &[u64],
        order: Order,
    ) -> Result<Array> {
        Array::draft(session, path, dtype, shape, order)?.finish()
    }

    /// As [`create`](Array::create), for a path where nothing is: what is there, or comes to be
    /// there meanwhile, is not replaced.
    ///
    /// ```
    #[doc = include_str!("setup.doctest")]
    /// let path = folder.path().join("y.npy");
    /// assert!(Array::create_new(&session, &path, DType::F32, &[2, 2], Order::Row).is_ok());
    /// assert!(Array::create_new(&session, &path, DType::F32, &[2, 2], Order::Row).is_err());
    /// # Ok::<(), outcore_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Store`] also for a path that is taken, or about to be by another writer.
    pub fn create_new(
        session: &Session,
        path: impl AsRef<Path>,
        dtype: DType,
        shape: &[u64],
        order: Order,
    ) -> Result<Array> {
        Array::begun(session, path.as_ref(), dtype, shape, order, true)?.finish()
    }

    /// A new matrix of zeros that is to have a path: write into it, then give it its name with
    /// [`Array::finish`]. Until then a file that has the name is what it was, and a process that
    /// dies leaves it so.
    ///
    /// ```
    #[doc = include_str!("setup.doctest")]
    /// let path = folder.path().join("y.npy");
    /// let draft = Array::draft(&session, &path, DType::U8, &[2], Order::Row)?;
    /// draft.copy_from_slice(&[1u8, 2])?;
    /// assert_eq!(draft.finish()?.path(), Some(&*path));
    /// # Ok::<(), outcore_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`create`](Array::create).
    pub fn draft(
        session: &Session,
        path: impl AsRef<Path>,
        dtype: DType,
        shape: &[u64],
        order: Order,
    ) -> Result<Array> {
        Array::begun(session, path.as_ref(), dtype, shape, order, false)
    }

    fn begun(
        session: &Session,
        path: &Path,
        dtype: DType,
        shape: &[u64],
        order: Order,
        is_new: bool,
    ) -> Result<Array> {
        if session.plans_only() {
            return Err(Error::value("a planner makes no files"));
        }
        let mut plan = Plan::new("create");
        let made = Array::unfinished_as(session, path, dtype, shape, order, is_new, &mut plan)?;
        session.engine().run(plan)?.wait()?;
        Ok(made)
    }

    /// A matrix that lives in the scratch folder until its last view goes.
    ///
    /// ```
    #[doc = include_str!("setup.doctest")]
    /// let y = Array::temporary(&session, DType::F64, &[100, 50], Order::Row)?;
    /// assert_eq!((y.nbytes(), y.path()), (40_000, None));
    /// # Ok::<(), outcore_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Store`] when there is no room.
    pub fn temporary(
        session: &Session,
        dtype: DType,
        shape: &[u64],
        order: Order,
    ) -> Result<Array> {
        let dense = format::raw("scratch", dtype, shape, order, 0, None)?;
        let file = session.scratch_file(None, dense.file_bytes())?;
        Ok(Array::of(session, file, &dense))
    }

    /// A new matrix that takes its name when the job that writes it is done. The plan writes its
    /// header.
    ///
    /// ```
    #[doc = include_str!("setup.doctest")]
    /// use outcore_engine::Plan;
    ///
    /// let mut plan = Plan::new("zeros");
    /// let path = folder.path().join("y.npy");
    /// let y = Array::unfinished(&session, &path, DType::U8, &[2], Order::Row, &mut plan)?;
    /// assert_eq!(plan.len(), 1);
    /// assert!(y.shape() == [2] && !path.exists());
    /// # Ok::<(), outcore_core::Error>(())
    /// ```
    pub fn unfinished(
        session: &Session,
        path: &Path,
        dtype: DType,
        shape: &[u64],
        order: Order,
        plan: &mut Plan,
    ) -> Result<Array> {
        Array::unfinished_as(session, path, dtype, shape, order, false, plan)
    }

    /// The same, where need be at a path where nothing is.
    fn unfinished_as(
        session: &Session,
        path: &Path,
        dtype: DType,
        shape: &[u64],
        order: Order,
        is_new: bool,
        plan: &mut Plan,
    ) -> Result<Array> {
        let (dense, header) = format::npy(&path.display().to_string(), dtype, shape, order)?;
        let file = session.new_file(path, dense.file_bytes(), is_new)?;
        let region = Region::span(plan.extent(file.extent()), 0, header.len() as u64);
        plan.task(Task::new("header").write(region).run(move |cx| {
            cx.blocks[0].bytes_mut().copy_from_slice(&header);
            Ok(())
        }));
        Ok(Array::of(session, file, &dense))
    }
}
