//! How sparse matrices come into being: opened, or made of arrays or tiles that are there already.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use outcore_core::file::{DESCRIPTION_BYTES, read_text};
use outcore_core::format::Vector;
use outcore_core::{DType, Error, FormatError, RealType, Result, Session, StoredFile};
use outcore_device::Shared;
use outcore_store::{Error as StoreError, Identity, locate};

use super::format::{self, Compressed, Description};
use super::tiles::{self, Tiled};
use super::{BackedVector, Backing, Form, Parts, Sparse, Stop, names, pieces};

impl Sparse {
    /// A matrix of known parts, after a look at its offsets.
    fn new(
        session: &Session,
        mut parts: Parts,
        format: Compressed,
        stop: Stop<'_>,
    ) -> Result<Sparse> {
        parts.check()?;
        parts.cuts = pieces::find_cuts(session, &parts, stop)?;
        let (lines, entries) = (0..parts.lines, 0..parts.entries);
        Ok(Sparse {
            session: session.clone(),
            parts: Arc::new(parts),
            lines,
            entries,
            format,
        })
    }

    /// Which matrix lies at a path, if one does.
    pub fn identity(path: &Path) -> Option<Identity> {
        let (store, name) = locate(&path.join(names::DESCRIPTION)).ok()?;
        Some(store.stat(&name).ok()?.identity)
    }

    /// Opens a sparse matrix, a folder of arrays (see [`mod@format`]), and reads its offsets once.
    ///
    /// ```
    #[doc = include_str!("../setup.doctest")]
    /// let path = folder.path().join("a");
    /// # std::fs::create_dir(&path).unwrap();
    /// # let create = |name, dtype, len| Array::create(&session, path.join(name), dtype, &[len], Order::Row);
    /// std::fs::write(path.join("matrix.json"), r#"{"format": "csr", "shape": [2, 3]}"#).unwrap();
    /// create("indptr.npy", DType::I64, 3)?.copy_from_slice(&[0i64, 2, 3])?;
    /// create("indices.npy", DType::I32, 3)?.copy_from_slice(&[0i32, 2, 1])?;
    /// create("data.npy", DType::F32, 3)?.copy_from_slice(&[1.0f32, 2.0, 3.0])?;
    /// let a = Sparse::open(&session, &path)?;
    /// assert_eq!((a.shape(), a.nonzeros()), ([2, 3], 3));
    /// assert!(Sparse::is_at(&path) && Sparse::identity(&path).is_some());
    /// assert!(Sparse::open_until(&session, &path, &|| false).is_ok());
    /// # Ok::<(), outcore_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Store`] for files that are not there, [`Error::Format`] for what is no sparse
    /// matrix.
    pub fn open(session: &Session, path: impl AsRef<Path>) -> Result<Sparse> {
        Sparse::open_until(session, path, &|| false)
    }

    /// As [`open`](Sparse::open), until `stop` says so.
    ///
    /// # Errors
    /// As [`open`](Sparse::open); [`Error::Cancelled`].
    pub fn open_until(session: &Session, path: impl AsRef<Path>, stop: Stop<'_>) -> Result<Sparse> {
        let path = path.as_ref();
        loop {
            // Another folder may take this one's name between the opening of two of its files.
            let before = Sparse::identity(path);
            let opened = Sparse::open_parts(session, path, stop);
            if Sparse::identity(path) == before {
                return opened;
            }
        }
    }

    /// Whether a sparse matrix may lie at a path: a folder is there, or a store has the
    /// description of a matrix under that name.
    pub fn is_at(path: impl AsRef<Path>) -> bool {
        match std::fs::metadata(path.as_ref()) {
            Ok(found) => found.is_dir(),
            Err(_) => Sparse::identity(path.as_ref()).is_some(),
        }
    }

    fn open_parts(session: &Session, path: &Path, stop: Stop<'_>) -> Result<Sparse> {
        let object = path.join(names::DESCRIPTION);
        let text = read_text(&object, DESCRIPTION_BYTES).map_err(|error| match error {
            Error::Store(StoreError::Missing { .. } | StoreError::NotAFolder { .. }) => {
                Error::from(StoreError::NotAFile {
                    object: path.display().to_string(),
                    kind: "a folder without matrix.json, which would say what matrix it holds",
                })
            }
            _ => error,
        })?;
        let description = format::parse_description(&object.display().to_string(), &text)?;
        if description.layout == format::Entries::Tiled {
            return Sparse::open_tiled(session, path, &description, stop);
        }
        let part = |name| BackedVector::open(session, &path.join(name));
        let (offsets, indices) = (part(names::OFFSETS)?, part(names::INDICES)?);
        let values = match part(names::VALUES) {
            Err(Error::Store(StoreError::Missing { .. })) => None,
            part => Some(part?),
        };
        let Description {
            format,
            shape,
            nonzeros,
            dtype,
            ..
        } = description;
        let found = values.as_ref().map(|part| part.vector.element);
        let real = match (found, dtype) {
            (Some(found), Some(said)) if said != found => Err(format!(
                "dtype {found}, where {} says {said}",
                names::DESCRIPTION
            )),
            (Some(either), _) | (None, Some(either)) => RealType::try_from(either),
            (None, None) => Ok(RealType::F32),
        };
        let real = real.map_err(|reason| {
            let name = if found.is_some() {
                names::VALUES
            } else {
                names::DESCRIPTION
            };
            let object = path.join(name).display().to_string();
            FormatError::Unsupported { object, reason }
        })?;
        if nonzeros.is_some_and(|said| said != indices.vector.len) {
            let reason = format!(
                "it says {} entries, {} has {}",
                nonzeros.unwrap_or(0),
                indices.name(),
                indices.vector.len
            );
            return Err(FormatError::Corrupt {
                object: object.display().to_string(),
                offset: 0,
                reason,
            }
            .into());
        }
        let [lines, width] = format.lines_first(shape);
        let name = path.display().to_string();
        Sparse::new(
            session,
            Parts {
                name,
                path: Some(path.to_owned()),
                lines,
                width,
                entries: indices.vector.len,
                real,
                form: Form::Arrays {
                    offsets,
                    indices,
                    values,
                },
                cuts: Vec::new(),
            },
            format,
            stop,
        )
    }

    /// A matrix of arrays that have no name yet: offsets, indices and, where there are any, values.
    pub fn of_files(
        session: &Session,
        name: String,
        format: Compressed,
        [lines, width]: [u64; 2],
        real: RealType,
        files: Vec<(Vector, Arc<StoredFile>)>,
        stop: Stop<'_>,
    ) -> Result<Sparse> {
        let mut parts = files.into_iter().map(|(vector, file)| BackedVector {
            vector,
            backing: Backing::Stored(file),
        });
        let (Some(offsets), Some(indices), values) = (parts.next(), parts.next(), parts.next())
        else {
            unreachable!("there are two or three")
        };
        let (entries, form) = (
            indices.vector.len,
            Form::Arrays {
                offsets,
                indices,
                values,
            },
        );
        Sparse::new(
            session,
            Parts {
                name,
                path: None,
                lines,
                width,
                entries,
                real,
                form,
                cuts: Vec::new(),
            },
            format,
            stop,
        )
    }

    fn open_tiled(
        session: &Session,
        path: &Path,
        description: &Description,
        stop: Stop<'_>,
    ) -> Result<Sparse> {
        let (object, tiles) = (
            path.join(names::DESCRIPTION).display().to_string(),
            path.join(names::TILES),
        );
        let (Some(entries), Some(dtype)) = (description.nonzeros, description.dtype) else {
            let reason = "a tiled matrix needs nonzeros and dtype".to_owned();
            return Err(FormatError::Corrupt {
                object,
                offset: 0,
                reason,
            }
            .into());
        };
        let real = RealType::try_from(dtype).map_err(|reason| FormatError::Unsupported {
            object: object.clone(),
            reason,
        })?;
        let numbers = BackedVector::open(session, &tiles)?;
        let vector = numbers.vector;
        if vector.element != DType::I64 || !vector.len.is_multiple_of(tiles::NUMBERS as u64) {
            let reason = format!("int64 in rows of {} is needed", tiles::NUMBERS);
            return Err(FormatError::Unsupported {
                object: tiles.display().to_string(),
                reason,
            }
            .into());
        }
        let numbers = numbers.numbers(session, stop)?;
        let sides = description.format.lines_first(description.shape);
        let entries_file = session.file(&path.join(names::ENTRIES), false)?;
        let tiled = Tiled::new(
            &tiles.display().to_string(),
            &numbers,
            entries_file,
            real,
            sides,
            entries,
        )?;
        Sparse::tiled(
            session,
            Some(path.to_owned()),
            description.format,
            sides,
            real,
            entries,
            tiled,
        )
    }

    pub(super) fn tiled(
        session: &Session,
        path: Option<PathBuf>,
        format: Compressed,
        [lines, width]: [u64; 2],
        real: RealType,
        entries: u64,
        tiled: Tiled,
    ) -> Result<Sparse> {
        let name = path
            .as_ref()
            .map_or_else(|| "scratch".into(), |path| path.display().to_string());
        Sparse::new(
            session,
            Parts {
                name,
                path,
                lines,
                width,
                entries,
                real,
                form: Form::Tiled(tiled),
                cuts: Vec::new(),
            },
            format,
            // The cuts of tiles are known.
            &|| false,
        )
    }

    /// A matrix in the caller's memory, as SciPy has it; `values` may be missing where all are one.
    ///
    /// ```
    #[doc = include_str!("../setup.doctest")]
    /// // [[1, 0, 2], [0, 3, 0]]
    /// let offsets = (DType::I64, shared(&[0i64, 2, 3]));
    /// let indices = (DType::I32, shared(&[0i32, 2, 1]));
    /// let values = Some((RealType::F32, shared(&[1.0f32, 2.0, 3.0])));
    /// let a = Sparse::in_memory(&session, Compressed::Rows, [2, 3], offsets, indices, values)?;
    /// assert_eq!(a.nonzeros(), 3);
    /// # Ok::<(), outcore_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Shape`] for arrays that do not belong together.
    pub fn in_memory(
        session: &Session,
        format: Compressed,
        shape: [u64; 2],
        offsets: (DType, Shared),
        indices: (DType, Shared),
        values: Option<(RealType, Shared)>,
    ) -> Result<Sparse> {
        let part = |(element, bytes): (DType, Shared)| {
            let vector = Vector {
                data_offset: 0,
                ..Vector::new(element, bytes.len() as u64 / element.bytes())
            };
            BackedVector {
                vector,
                backing: Backing::Memory(bytes),
            }
        };
        let real = values.as_ref().map_or(RealType::F32, |(real, _)| *real);
        let [lines, width] = format.lines_first(shape);
        let values = values.map(|(real, bytes)| part((real.into(), bytes)));
        let (offsets, indices) = (part(offsets), part(indices));
        let parts = Parts {
            name: "sparse matrix in memory".into(),
            path: None,
            lines,
            width,
            entries: indices.vector.len,
            real,
            form: Form::Arrays {
                offsets,
                indices,
                values,
            },
            cuts: Vec::new(),
        };
        Sparse::new(session, parts, format, &|| false)
    }
}

impl Parts {
    /// Whether the arrays have the types and lengths of one matrix.
    fn check(&self) -> Result<()> {
        let refuse = |part: &BackedVector, reason: String| {
            Err(Error::from(FormatError::Unsupported {
                object: part.name().to_owned(),
                reason,
            }))
        };
        let Parts { lines, width, .. } = self;
        let Form::Arrays {
            offsets,
            indices,
            values,
        } = &self.form
        else {
            return Ok(());
        };
        if !matches!(offsets.vector.element, DType::I32 | DType::I64) {
            return refuse(
                offsets,
                format!(
                    "dtype {}, where int32 or int64 is needed",
                    offsets.vector.element
                ),
            );
        }
        if !matches!(indices.vector.element, DType::U16 | DType::I32 | DType::I64) {
            return refuse(
                indices,
                format!(
                    "dtype {}, where int32, int64 or uint16 is needed",
                    indices.vector.element
                ),
            );
        }
        // Of a file, what it claims is what is not true.
        let disagree = |part: &BackedVector, reason: String| match part.backing {
            Backing::Stored(_) => Err(part.corrupt(0, reason)),
            Backing::Memory(_) => refuse(part, reason),
        };
        if offsets.vector.len != lines + 1 {
            return disagree(
                offsets,
                format!(
                    "{} numbers, where {lines} lines need {}",
                    offsets.vector.len,
                    lines + 1
                ),
            );
        }
        if let Some(values) = values
            && values.vector.len != indices.vector.len
        {
            return disagree(
                values,
                format!(
                    "{} values for {} indices",
                    values.vector.len, indices.vector.len
                ),
            );
        }
        let most = match indices.vector.element {
            DType::U16 => 1 << 16,
            DType::I32 => 1 << 31,
            _ => 1 << 63,
        };
        match *width <= most {
            true => Ok(()),
            false => refuse(
                indices,
                format!("{} for numbers up to {width}", indices.vector.element),
            ),
        }
    }
}
