//! Export of sparse matrices as foreign files: LIBSVM, MatrixMarket, UCI bag of words, XC, SciPy's
//! archives, Parquet.
//!
//! Cost: reads the matrix once (an archive: three times, an array after the other) and writes the
//! file behind. Some rows at a time are read and made text of by all threads; compression, where
//! the name ends in `.gz` or `.zst`, is one thread's. The file takes its name when it is whole.
//! Entries of a row are put in order; two of one place are added up in formats that cannot have
//! both.

use std::io::{self, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};

use outcore_core::growing::out_of_room;
use outcore_core::{DType, Error, Job, MemorySplit, RealType, Result, Session, Stage};
use outcore_engine::{StreamOptions, WriteStream};
use outcore_formats::{
    Batch, Precision, Sink, bag_of_words, libsvm, matrix_market, npz, parquet, xc,
};
use outcore_matrix::{Compressed, Sparse, SparseBufs};
use outcore_store::{Folder, NewObject};

/// Labels that go with the rows.
#[derive(Clone, Debug, Default)]
pub enum Labels {
    /// None are written, or 0 where the format needs one.
    #[default]
    None,
    /// One number a row.
    One(Vec<f64>),
    /// The columns of the entries of a matrix in CSR with as many rows.
    Many(Sparse),
}

/// What is written.
#[derive(Clone, Debug)]
pub enum Format {
    /// LIBSVM (svmlight) text, features from 1.
    Libsvm {
        /// Labels of the rows.
        labels: Labels,
        /// The query of each row, below 2^63.
        queries: Option<Vec<u64>>,
    },
    /// MatrixMarket coordinate text, general; `pattern` where all entries are one.
    MatrixMarket,
    /// UCI bag of words: values are counts.
    BagOfWords,
    /// Text of the Extreme Classification repository.
    Xc(Sparse),
    /// What `scipy.sparse.load_npz` reads.
    Npz,
    /// Columns `row`, `column`, `value`.
    Parquet,
}

/// Writes a matrix in CSR (an archive: also in CSC) to a file.
///
/// ```
#[doc = include_str!("setup.doctest")]
/// use outcore_exchange::export::{Format, Labels, export};
///
/// // a = [[1, 0, 2], [0, 3, 0]]
/// let path = folder.path().join("rows.svm");
/// let format = Format::Libsvm { labels: Labels::One(vec![1.0, -1.0]), queries: None };
/// export(&session, &a, &path, format)?.run()?;
/// assert_eq!(std::fs::read_to_string(&path).unwrap(), "1 1:1 3:2\n-1 2:3\n");
/// # Ok::<(), outcore_core::Error>(())
/// ```
///
/// # Errors
/// [`Error::Shape`] for labels of other rows, [`Error::Value`] for a matrix in CSC. Of the job:
/// [`Error::NotFinite`], [`Error::Format`] for values that the format cannot have; those of reading
/// and writing.
pub fn export(
    session: &Session,
    a: &Sparse,
    path: impl AsRef<Path>,
    format: Format,
) -> Result<Job<()>> {
    let columns = a.format() == Compressed::Columns;
    if columns && !matches!(format, Format::Npz) {
        let what = format!(
            "{} is compressed by columns, and is written by rows; csrcsc makes a matrix whose rows lie together",
            a.name()
        );
        return Err(Error::value(what));
    }
    if let Some("bz2" | "xz") = path.as_ref().extension().and_then(|ending| ending.to_str()) {
        let what = format!(
            "{}: written files are plain, or compressed by the names .gz and .zst",
            path.as_ref().display()
        );
        return Err(Error::value(what));
    }
    let labels = match &format {
        Format::Libsvm { labels, queries } => {
            if let Some(count) = queries
                .as_ref()
                .map(Vec::len)
                .filter(|&count| count as u64 != a.rows())
            {
                return Err(Error::shape(format!(
                    "queries for {count} rows of a matrix with {}",
                    a.rows()
                )));
            }
            labels.clone()
        }
        Format::Xc(labels) => Labels::Many(labels.clone()),
        _ => Labels::None,
    };
    let count = match &labels {
        Labels::None => a.rows(),
        Labels::One(labels) => labels.len() as u64,
        Labels::Many(labels) if labels.format() == Compressed::Columns => {
            return Err(Error::value(
                "labels are written by rows: a matrix in CSR is needed",
            ));
        }
        Labels::Many(labels) => labels.rows(),
    };
    if count != a.rows() {
        return Err(Error::shape(format!(
            "labels for {count} rows of a matrix with {}",
            a.rows()
        )));
    }
    let path = path.as_ref().to_owned();
    let (session, a) = (session.clone(), if columns { a.t() } else { a.clone() });
    Job::driven(&session.clone(), Vec::new(), move |stage, _| {
        let export = Export {
            session,
            a,
            labels,
            format,
        };
        export.run(stage, &path, columns)
    })
}

struct Export {
    session: Session,
    /// In CSR; of a matrix in CSC its transpose.
    a: Sparse,
    labels: Labels,
    format: Format,
}

/// Some rows in memory.
struct Rows {
    rows: Range<u64>,
    bufs: SparseBufs,
    labels: Option<SparseBufs>,
}

impl Export {
    fn run(&self, stage: &mut Stage, path: &Path, columns: bool) -> Result<()> {
        let object = path.display().to_string();
        let memory = MemorySplit::new(&self.session).of_free();
        // An entry is there as it is stored, as row and column, and as text.
        let entries = (memory.collected_bytes() / 96).clamp(1 << 8, 1 << 18);
        let pieces = self.row_pieces(entries);
        let most = pieces
            .iter()
            .map(|(_, entries)| *entries)
            .max()
            .unwrap_or(0);
        let longest = pieces
            .iter()
            .map(|(rows, _)| rows.end - rows.start)
            .max()
            .unwrap_or(0);
        let _held = stage.reserve("rows on their way out", 96 * most + 64 * longest)?;
        let (folder, name) = Folder::split(path)?;
        let new = folder.create_growing(&name)?;
        let out = Out::new(&self.session, &object, &new, folder.path())?;
        let pieces = pieces.into_iter().map(|(rows, _)| rows).collect::<Vec<_>>();
        let out = match self.format {
            Format::Npz => self.archive(stage, &object, out, &pieces, columns)?,
            Format::Parquet => {
                let mut writer = parquet::Writer::new(&object, out)?;
                self.each(stage, &pieces, 0.0..0.98, |rows| {
                    Ok(writer.write(&self.batch(&rows, rows.rows.clone())?, rows.rows.start)?)
                })?;
                writer.finish()?
            }
            _ => {
                let mut sink = Sink::new(&name, out).map_err(|error| failed(&object, error))?;
                let mut header = Vec::new();
                self.header(&mut header);
                sink.write_all(&header)
                    .map_err(|error| failed(&object, error))?;
                self.each(stage, &pieces, 0.0..0.98, |rows| {
                    let texts = self.texts(&rows)?;
                    texts
                        .iter()
                        .try_for_each(|text| sink.write_all(text))
                        .map_err(|error| failed(&object, error))
                })?;
                sink.finish().map_err(|error| failed(&object, error))?
            }
        };
        stage.check()?;
        out.finish(new)
    }

    /// Whole rows with about `entries` entries together, and how many.
    fn row_pieces(&self, entries: u64) -> Vec<(Range<u64>, u64)> {
        let mut found: Vec<(Range<u64>, u64)> = Vec::new();
        let mut goes_on = false;
        for piece in self.a.pieces(8 * entries, |_| 0) {
            match found.last_mut() {
                Some((rows, count)) if goes_on => {
                    (rows.end, *count) = (piece.lines().end, *count + piece.entries())
                }
                _ => found.push((piece.lines(), piece.entries())),
            }
            goes_on = piece.breaks_off;
        }
        found
    }

    /// Reads pieces one after another; the job goes from one fraction to another meanwhile.
    fn each(
        &self,
        stage: &Stage,
        pieces: &[Range<u64>],
        fractions: Range<f64>,
        mut f: impl FnMut(Rows) -> Result<()>,
    ) -> Result<()> {
        for (number, rows) in pieces.iter().enumerate() {
            stage.check()?;
            let bufs = self.a.slice(rows.clone())?.read()?.run()?;
            let labels = match &self.labels {
                Labels::Many(labels) => Some(labels.slice(rows.clone())?.read()?.run()?),
                _ => None,
            };
            f(Rows {
                rows: rows.clone(),
                bufs,
                labels,
            })?;
            stage.reach(
                fractions.start
                    + (fractions.end - fractions.start) * (number + 1) as f64 / pieces.len() as f64,
            );
        }
        Ok(())
    }

    fn precision(&self) -> Precision {
        match self.a.real() {
            RealType::F32 => Precision::Single,
            RealType::F64 => Precision::Double,
        }
    }

    fn field(&self) -> matrix_market::Field {
        if self.a.has_values() {
            matrix_market::Field::Real
        } else {
            matrix_market::Field::Pattern
        }
    }

    fn header(&self, out: &mut Vec<u8>) {
        let ([rows, columns], entries) = (self.a.shape(), self.a.nonzeros());
        match &self.format {
            Format::MatrixMarket => {
                let symmetry = matrix_market::Symmetry::General;
                let layout = matrix_market::Layout::Coordinate;
                matrix_market::Header {
                    layout,
                    field: self.field(),
                    symmetry,
                    rows,
                    columns,
                    entries,
                }
                .write(out);
            }
            Format::BagOfWords => bag_of_words::Header {
                rows,
                columns,
                entries,
            }
            .write(out),
            Format::Xc(labels) => xc::Header {
                rows,
                columns,
                labels: labels.cols(),
            }
            .write(out),
            _ => {}
        }
    }

    /// The rows as text, a part of them by each thread.
    fn texts(&self, rows: &Rows) -> Result<Vec<Vec<u8>>> {
        let count = rows.rows.end - rows.rows.start;
        let part = count.div_ceil(self.session.threads() as u64).max(64);
        let parts = (0..count.div_ceil(part)).map(|number| {
            rows.rows.start + number * part..rows.rows.start + ((number + 1) * part).min(count)
        });
        std::thread::scope(|scope| {
            let spawn = |part: Range<u64>| {
                let own = part.clone();
                (
                    part,
                    std::thread::Builder::new().spawn_scoped(scope, move || self.text(rows, own)),
                )
            };
            let threads: Vec<_> = parts.map(spawn).collect();
            let joined = threads.into_iter().map(|(part, thread)| match thread {
                Ok(thread) => thread
                    .join()
                    .unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
                // A thread that the system refuses leaves its part to this one.
                Err(_) => self.text(rows, part),
            });
            joined.collect()
        })
    }

    fn text(&self, rows: &Rows, part: Range<u64>) -> Result<Vec<u8>> {
        let mut out = Vec::new();
        let (first, precision) = (part.start, self.precision());
        let batch = self.batch(rows, part)?;
        match &self.format {
            Format::Libsvm { .. } => libsvm::write(&batch, libsvm::Base::One, precision, &mut out)?,
            Format::Xc(_) => xc::write(&batch, precision, &mut out)?,
            Format::MatrixMarket => {
                matrix_market::write(&batch, first, self.field(), precision, &mut out)
            }
            _ => bag_of_words::write(&batch, first, &mut out)?,
        }
        Ok(out)
    }

    /// Some of the rows in order, with their labels.
    fn batch(&self, rows: &Rows, part: Range<u64>) -> Result<Batch> {
        let once = matches!(self.format, Format::Libsvm { .. } | Format::Xc(_));
        let mut batch = Batch::default();
        let within = (part.start - rows.rows.start) as usize..(part.end - rows.rows.start) as usize;
        let offsets = offsets_of(&rows.bufs);
        batch.clear(
            within.len(),
            (offsets[within.end] - offsets[within.start]) as usize,
        );
        let mut row = Vec::new();
        for (line, number) in within.clone().zip(part.start..) {
            row.clear();
            for entry in offsets[line] as usize..offsets[line + 1] as usize {
                let (column, value) = (
                    index_at(&rows.bufs, self.a.index_element(), entry),
                    self.value_at(&rows.bufs, entry),
                );
                if !value.is_finite() {
                    return Err(Error::NotFinite {
                        object: self.a.name().to_owned(),
                        row: number,
                        column,
                    });
                }
                row.push((column, value));
            }
            if !row.is_sorted_by(|left, right| left.0 < right.0) {
                row.sort_by_key(|entry| entry.0);
                if once {
                    row.dedup_by(|later, first| {
                        later.0 == first.0 && {
                            first.1 += later.1;
                            true
                        }
                    });
                }
            }
            batch.indices.extend(row.iter().map(|entry| entry.0));
            batch.values.extend(row.iter().map(|entry| entry.1));
            batch.offsets.push(batch.indices.len() as u64);
        }
        match (&self.labels, &rows.labels) {
            (Labels::One(labels), _) => batch
                .labels
                .extend(&labels[part.start as usize..part.end as usize]),
            (Labels::Many(labels), Some(bufs)) => many_labels(&mut batch, labels, bufs, within),
            _ => {}
        }
        if let Format::Libsvm {
            queries: Some(queries),
            ..
        } = &self.format
        {
            batch
                .queries
                .extend(&queries[part.start as usize..part.end as usize]);
        }
        Ok(batch)
    }

    fn value_at(&self, bufs: &SparseBufs, entry: usize) -> f64 {
        match self.a.real() {
            RealType::F32 => f64::from(bytemuck::cast_slice::<u8, f32>(&bufs.values)[entry]),
            RealType::F64 => bytemuck::cast_slice::<u8, f64>(&bufs.values)[entry],
        }
    }

    /// An array after the other.
    fn archive(
        &self,
        stage: &Stage,
        object: &str,
        out: Out,
        pieces: &[Range<u64>],
        columns: bool,
    ) -> Result<Out> {
        let [lines, width] = self.a.shape();
        let (layout, rows, cols) = if columns {
            (npz::Layout::Csc, width, lines)
        } else {
            (npz::Layout::Csr, lines, width)
        };
        let mut writer = npz::Writer::new(
            object,
            out,
            layout,
            rows,
            cols,
            self.a.nonzeros(),
            self.precision(),
        )?;
        let (mut base, mut numbers, mut values) = (0, Vec::new(), Vec::new());
        writer.offsets(&[0])?;
        self.each(stage, pieces, 0.0..0.2, |rows| {
            let offsets = offsets_of(&rows.bufs);
            numbers.clear();
            numbers.extend(offsets[1..].iter().map(|&end| base + end as u64));
            base = numbers.last().copied().unwrap_or(base);
            Ok(writer.offsets(&numbers)?)
        })?;
        self.each(stage, pieces, 0.2..0.6, |rows| {
            let count = offsets_of(&rows.bufs).last().map_or(0, |&end| end as usize);
            numbers.clear();
            numbers.extend(
                (0..count).map(|entry| index_at(&rows.bufs, self.a.index_element(), entry)),
            );
            Ok(writer.indices(&numbers)?)
        })?;
        self.each(stage, pieces, 0.6..0.98, |rows| {
            let count = offsets_of(&rows.bufs).last().map_or(0, |&end| end as usize);
            values.clear();
            values.extend((0..count).map(|entry| self.value_at(&rows.bufs, entry)));
            Ok(writer.values(&values)?)
        })?;
        Ok(writer.finish()?)
    }
}

fn many_labels(batch: &mut Batch, labels: &Sparse, bufs: &SparseBufs, within: Range<usize>) {
    let offsets = offsets_of(bufs);
    batch.label_offsets.push(0);
    for line in within {
        let start = batch.label_indices.len();
        let found = (offsets[line] as usize..offsets[line + 1] as usize)
            .map(|entry| index_at(bufs, labels.index_element(), entry));
        batch.label_indices.extend(found);
        batch.label_indices[start..].sort_unstable();
        batch.label_offsets.push(batch.label_indices.len() as u64);
    }
}

fn offsets_of(bufs: &SparseBufs) -> &[i64] {
    bytemuck::cast_slice(&bufs.offsets)
}

fn index_at(bufs: &SparseBufs, element: DType, entry: usize) -> u64 {
    match element {
        DType::U16 => u64::from(bytemuck::cast_slice::<u8, u16>(&bufs.indices)[entry]),
        DType::I32 => bytemuck::cast_slice::<u8, i32>(&bufs.indices)[entry].max(0) as u64,
        _ => bytemuck::cast_slice::<u8, i64>(&bufs.indices)[entry].max(0) as u64,
    }
}

/// An error of a writer, or the library's own behind it.
fn failed(object: &str, error: io::Error) -> Error {
    match error.downcast::<Error>() {
        Ok(own) => own,
        Err(source) => Error::of_io(object, source),
    }
}

/// A new file, written behind.
struct Out {
    stream: WriteStream,
    len: u64,
    /// The folder that it is in.
    at: PathBuf,
}

impl Out {
    fn new(session: &Session, object: &str, new: &NewObject, at: &Path) -> Result<Out> {
        let file = session.device_file(object.to_owned(), new.device());
        let block_bytes = MemorySplit::new(session).block_bytes(1 << 20).max(64 << 10) as usize;
        let stream = session.engine().write_stream(
            file.extent(),
            0,
            StreamOptions {
                block_bytes,
                ahead: 3,
            },
        );
        Ok(Out {
            stream: stream.map_err(|error| out_of_room(error, at))?,
            len: 0,
            at: at.to_owned(),
        })
    }

    fn finish(self, mut new: NewObject) -> Result<()> {
        self.stream.finish()?;
        new.cut(self.len);
        new.commit()?;
        Ok(())
    }
}

impl Write for Out {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream
            .write(bytes)
            .map_err(|error| io::Error::other(out_of_room(error, &self.at)))?;
        self.len += bytes.len() as u64;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
