//! Import of foreign sparse data: LIBSVM, MatrixMarket, UCI bag of words, XC, SciPy's archives,
//! Parquet, and words of raw text.
//!
//! The result is a new folder with the matrix (see [`format`](outcore_core::format)), and what comes
//! with it in the same folder:
//!
//! ```text
//!   labels.npy        float64, one a row: labels of LIBSVM text, or numbers of the lines of classes.txt
//!   queries.npy       int64, one a row: what LIBSVM text has as qid, if it has it
//!   labels/           of data with many labels a row, a sparse matrix of ones: a row a row, a column a label
//!   vocabulary.txt    UTF-8, the word of each column, one a line
//!   classes.txt       UTF-8, the labels of a text's label column, one a line
//! ```
//!
//! Cost: one pass over the source, which is read ahead and parsed by all threads, in bounded
//! chunks; the result is written behind. Entries that do not come by rows are sorted by way of
//! scratch: the text is then begun again, entries are written and read there once (24 bytes each),
//! or more often where memory is very small. The result does not depend on threads or memory.
//!
//! What a header claims is compared with the bytes that its file has, and what is needed for it
//! with the space that is free, before anything is written.
//!
//! Imports leave a checkpoint every 256 MB of their source or ten seconds: one that died or failed
//! goes on from there when it is asked for again with `resume`, and gives the same bytes. Where
//! entries have to be sorted it begins anew.

mod checkpoint;
mod chunks;
mod lines;
mod matrix;
mod sort;
mod source;
mod triplets;

use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use outcore_engine::StreamOptions;
use outcore_formats::{Position, Precision, npz, parquet};
use serde::{Deserialize, Serialize};

pub use outcore_formats::parquet::Columns;

use self::chunks::Lanes;
use self::lines::Resumable;
use self::matrix::{Draft, LabelKind};
use self::source::{Anywhere, Foreign};
use outcore_core::MemorySplit;
use outcore_core::Session;
use outcore_core::format::FormatError;
use outcore_core::{Error, RealType, Result};
use outcore_core::{Job, Stage};
use outcore_matrix::sparse::Sparse;
use outcore_matrix::sparse::format::Compressed;

/// Which number the first feature of LIBSVM text has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Base {
    /// 0 if there is a feature 0 anywhere, else 1.
    #[default]
    Found,
    /// 0.
    Zero,
    /// 1; a feature 0 is refused.
    One,
}

/// How LIBSVM text is read.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Libsvm {
    /// Whole numbers with commas between them before the features, instead of one number.
    pub many_labels: bool,
    /// Number of the first feature.
    pub base: Base,
    /// Columns; none: as many as the largest feature needs.
    pub features: Option<u64>,
}

/// What a document of raw text is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Documents {
    /// A line.
    #[default]
    Lines,
    /// A file.
    Files,
}

/// How raw text is read. The defaults are those of scikit-learn's `CountVectorizer`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Text {
    /// What a document is. Files have no columns.
    pub documents: Documents,
    /// Characters that a word has at least.
    pub minimum_length: usize,
    /// Words that are left out, in lower case.
    pub stop_words: Vec<String>,
    /// How many neighbouring words are one.
    pub ngrams: RangeInclusive<usize>,
    /// Column with the text, from 0, of lines whose columns have tabs between them; none: the whole
    /// line.
    pub text_column: Option<usize>,
    /// Column with a label.
    pub label_column: Option<usize>,
    /// The words of the columns, where they are given; others are left out. None: all words, in
    /// order of first appearance.
    pub vocabulary: Option<Vec<String>>,
}

impl Default for Text {
    fn default() -> Text {
        Text {
            documents: Documents::Lines,
            minimum_length: 2,
            stop_words: Vec::new(),
            ngrams: 1..=1,
            text_column: None,
            label_column: None,
            vocabulary: None,
        }
    }
}

/// What a source is, and how it is read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Format {
    /// LIBSVM (svmlight) text.
    Libsvm(Libsvm),
    /// Text of the Extreme Classification repository.
    Xc,
    /// MatrixMarket text: entries with their places, or all values of a dense matrix, of which
    /// those that are not zero are kept.
    MatrixMarket,
    /// UCI bag of words, with a file of its words if there is one.
    BagOfWords {
        /// A word a line.
        vocabulary: Option<PathBuf>,
    },
    /// An archive of `scipy.sparse.save_npz`. What is compressed by columns stays so.
    Npz,
    /// Rows, columns and values as columns of a Parquet file.
    Parquet(Columns),
    /// Raw text.
    Text(Text),
}

/// How an import is done.
#[derive(Clone, Debug)]
pub struct Options {
    /// What the sources are.
    pub format: Format,
    /// Type of the values.
    pub dtype: RealType,
    /// In tiles where they pay: four fifths of the bytes or fewer. Else in arrays, which other
    /// programs read.
    pub tiled: bool,
    /// Go on with an import of the same sources that died or failed, where it has left a
    /// checkpoint.
    pub resume: bool,
    /// Bytes of text, or of entries, from checkpoint to checkpoint; ten seconds are enough as well.
    pub checkpoint_bytes: u64,
    /// Of plain LIBSVM text in one file, only the lines of one of several equal parts: the number of
    /// the part, from 0, and the number of parts.
    pub part: Option<[u64; 2]>,
}

impl Options {
    /// Values of float32, in arrays, from the start.
    ///
    /// ```
    /// use outcore_exchange::import::{Format, Options};
    ///
    /// let options = Options { tiled: true, ..Options::new(Format::MatrixMarket) };
    /// assert!(!options.resume);
    /// ```
    #[must_use]
    pub fn new(format: Format) -> Options {
        Options {
            format,
            dtype: RealType::F32,
            tiled: false,
            resume: false,
            checkpoint_bytes: 256 << 20,
            part: None,
        }
    }

    /// What values have to fit in.
    fn precision(&self) -> Precision {
        match self.dtype {
            RealType::F32 => Precision::Single,
            RealType::F64 => Precision::Double,
        }
    }

    /// As text, for a comparison.
    fn text(&self) -> String {
        let Options {
            format,
            dtype,
            part,
            ..
        } = self;
        match part {
            None => format!("{format:?} as {dtype}"),
            Some([part, parts]) => format!("{format:?} as {dtype}, part {part} of {parts}"),
        }
    }
}

/// What an import has made.
#[derive(Clone, Debug)]
pub struct Imported {
    /// The matrix, opened.
    pub matrix: Sparse,
    /// Bytes of the sources' text that an earlier import had done, in the source where it stopped;
    /// entries of a table or an archive, or its compressed lines.
    pub resumed_at: u64,
}

/// Imports files, one after another as if they were one, to a new folder. LIBSVM text and raw text
/// may be several files; others are one. Text may be compressed by gzip, bzip2, xz or zstd, which
/// its first bytes tell, whatever its name.
///
/// ```
#[doc = include_str!("setup.doctest")]
/// use outcore_exchange::import::{Format, Libsvm, Options, import};
///
/// let source = folder.path().join("rows.svm");
/// std::fs::write(&source, "1 1:1 3:2\n-1 2:3\n").unwrap();
/// let options = Options::new(Format::Libsvm(Libsvm::default()));
/// let imported = import(&session, folder.path().join("a"), &[source], options)?.run()?;
/// assert_eq!((imported.matrix.shape(), imported.matrix.nonzeros()), ([2, 3], 3));
/// let labels = Array::open(&session, folder.path().join("a/labels.npy"))?;
/// assert_eq!(labels.to_vec::<f64>()?, [1.0, -1.0]);
/// # Ok::<(), outcore_core::Error>(())
/// ```
///
/// # Errors
/// [`Error::Store`] for sources that cannot be opened, [`Error::Value`] for options that contradict
/// each other. Of the job: [`Error::Line`] for the first line that does not follow the format,
/// [`Error::Format`] for damage and for what cannot be a matrix, [`Error::Store`] with the bytes
/// that are needed and free where the disk is too small for what headers claim,
/// [`Error::OverBudget`] for lines or vocabularies that memory is too small for. Nothing then has
/// the name that had it not before.
pub fn import(
    session: &Session,
    path: impl AsRef<Path>,
    sources: &[PathBuf],
    options: Options,
) -> Result<Job<Imported>> {
    let several = matches!(options.format, Format::Libsvm(_) | Format::Text(_));
    match sources.len() {
        0 => return Err(Error::value("no file to import")),
        1 => {}
        _ if several => {}
        count => {
            return Err(Error::value(format!(
                "{count} files to import, where the format has one"
            )));
        }
    }
    let one_text = sources.len() == 1 && matches!(options.format, Format::Libsvm(_));
    let foreign = sources.iter().map(|path| {
        let whole = Foreign::open(session, path)?;
        match options.part {
            None => Ok(whole),
            Some([part, parts]) if one_text && part < parts => whole.part(session, part, parts),
            Some([part, parts]) => Err(Error::value(format!(
                "part {part} of {parts}: parts are counted from 0, and those of one LIBSVM text"
            ))),
        }
    });
    let foreign = foreign.collect::<Result<Vec<_>>>()?;
    check(&options.format)?;
    let memory = Shares::of(session);
    let (path, session) = (path.as_ref().to_owned(), session.clone());
    let context = Context {
        session: session.clone(),
        path,
        foreign,
        options,
        memory,
        stop: Arc::default(),
    };
    Job::driven(&session, Vec::new(), move |stage, _| context.run(stage))
}

fn check(format: &Format) -> Result<()> {
    match format {
        Format::Text(text)
            if text.documents == Documents::Files
                && (text.text_column.is_some() || text.label_column.is_some()) =>
        {
            Err(Error::value(
                "columns are those of lines, where every file is a document",
            ))
        }
        Format::Text(text) if *text.ngrams.start() == 0 || text.ngrams.is_empty() => {
            Err(Error::value(format!(
                "n-grams of {} to {} words: from 1 word on",
                text.ngrams.start(),
                text.ngrams.end()
            )))
        }
        _ => Ok(()),
    }
}

/// A minor index and a value, as an archive is read.
const ENTRY_BYTES: u64 = 16;

/// How memory is divided.
#[derive(Clone, Copy)]
struct Shares {
    /// Of each file that is written, and of the source.
    stream: StreamOptions,
    lanes: Lanes,
    /// Entries of an archive that are read at once.
    batch_entries: usize,
    longest_line: usize,
    /// What entries are sorted in, bytes.
    sort: u64,
}

impl Shares {
    /// What streams and chunks take of the largest memory.
    fn most_bytes(session: &Session) -> u64 {
        Lanes::new(session.threads(), 1 << 30).bytes() + 7 * (4 << 20)
    }

    fn of(session: &Session) -> Shares {
        let memory = MemorySplit::new(session).of_free();
        // Six streams at most are written and one is read, three steps each; chunks take a third.
        let block = memory
            .step_bytes()
            .next_power_of_two()
            .clamp(64 << 10, 2 << 20)
            / 2;
        let block = (block as usize).max(32 << 10);
        let lanes = Lanes::new(session.threads(), memory.third().left().min(1 << 30));
        let batch_bytes = MemorySplit::of(lanes.bytes()).decoded_batch_bytes();
        Shares {
            stream: StreamOptions {
                block_bytes: block,
                ahead: 3,
            },
            lanes,
            batch_entries: (batch_bytes / ENTRY_BYTES).clamp(1 << 10, 1 << 20) as usize,
            longest_line: usize::try_from(memory.block_of_rows_bytes())
                .unwrap_or(usize::MAX)
                .min(1 << 30),
            sort: memory.collected_bytes(),
        }
    }
}

/// All that the parts of an import share.
struct Context {
    session: Session,
    path: PathBuf,
    foreign: Vec<Foreign>,
    options: Options,
    memory: Shares,
    /// The job is over, or given up: readers look at it.
    stop: Arc<AtomicBool>,
}

impl Context {
    fn run(self, stage: &mut Stage) -> Result<Imported> {
        match &self.options.format {
            Format::Libsvm(_) | Format::Xc | Format::Text(_) => lines::run(&self, stage),
            Format::MatrixMarket | Format::BagOfWords { .. } => triplets::run_text(&self, stage),
            Format::Npz => self.npz(stage),
            Format::Parquet(columns) => self.parquet(stage, columns),
        }
    }

    fn draft(&self) -> Draft {
        Draft {
            dtype: self.options.dtype,
            format: Compressed::Rows,
            tiled: self.options.tiled,
            labels: LabelKind::None,
            words: false,
            classes: false,
            finds_base: false,
            width: None,
            label_count: None,
            queries: false,
            lines: None,
            entries: None,
        }
    }

    fn source_bytes(&self) -> u64 {
        self.foreign.iter().map(|foreign| foreign.bytes()).sum()
    }

    /// Whether float32 can hold the values of a binary file, where it has to; `first` entries are
    /// before them.
    fn check_values(
        &self,
        values: &[f64],
        first: u64,
        place: impl Fn(usize) -> (u64, u64),
    ) -> Result<()> {
        if self.options.dtype == RealType::F64 {
            return Ok(());
        }
        let Some(at) = values
            .iter()
            .position(|&value| (value as f32).is_infinite())
        else {
            return Ok(());
        };
        let ((row, column), value) = (place(at), values[at]);
        let entry = first + at as u64;
        let reason = format!(
            "entry {entry}, at row {row}, column {column} (all from 0): {value:e} is beyond float32; import it as float64"
        );
        Err(FormatError::Unsupported {
            object: self.foreign[0].name().to_owned(),
            reason,
        }
        .into())
    }

    fn npz(&self, stage: &mut Stage) -> Result<Imported> {
        let foreign = &self.foreign[0];
        let file = foreign.file(&self.session)?;
        let mut reader = npz::Reader::open(
            foreign.name(),
            Anywhere::new(&self.session, &file, &self.stop),
        )?;
        let _batch = stage.reserve("the entries of an archive", self.memory.lanes.bytes())?;
        let (most, entries) = (self.memory.batch_entries, reader.entry_count.max(1) as f64);
        let count = Some(reader.entry_count);
        if reader.layout == npz::Layout::Coo {
            let (width, lines) = (Some(reader.column_count), Some(reader.row_count));
            let draft = Draft {
                width,
                lines,
                entries: count,
                ..self.draft()
            };
            let (rows, mut read) = (Some(reader.row_count), 0);
            return triplets::run_batches(self, stage, draft, rows, |begin, stage, triplets| {
                if begin.is_some() {
                    let file = Anywhere::new(&self.session, &file, &self.stop);
                    (reader, read) = (npz::Reader::open(foreign.name(), file)?, 0);
                }
                stage.check()?;
                let found = reader.entries(most, triplets)?;
                self.check_values(&triplets.values, read, |entry| {
                    (triplets.rows[entry], triplets.columns[entry])
                })?;
                read += triplets.entries;
                stage.reach(0.5 * read as f64 / entries);
                Ok(found)
            });
        }
        let (format, lines, width) = match reader.layout {
            npz::Layout::Csc => (Compressed::Columns, reader.column_count, reader.row_count),
            _ => (Compressed::Rows, reader.row_count, reader.column_count),
        };
        let (lines, width) = (Some(lines), Some(width));
        let mut import = Resumable::begin(
            self,
            Draft {
                format,
                lines,
                width,
                entries: count,
                ..self.draft()
            },
        )?;
        let done = (|| {
            let (mut batch, mut lines, mut read) = (outcore_formats::Batch::default(), 0, 0);
            while reader.rows(most, &mut batch)? {
                stage.check()?;
                self.check_values(&batch.values, read, |entry| {
                    let line = lines
                        + batch.offsets.partition_point(|&end| end <= entry as u64) as u64
                        - 1;
                    let [row, column] = format.lines_first([line, batch.indices[entry]]);
                    (row, column)
                })?;
                read += batch.indices.len() as u64;
                lines += batch.rows() as u64;
                let more = lines
                    .saturating_sub(import.new.state.lines)
                    .min(batch.rows() as u64);
                batch.drop_rows(batch.rows() - more as usize);
                import.new.push(stage, &batch)?;
                stage.reach(0.99 * import.new.state.entries as f64 / entries);
                if import.is_due(16 * batch.indices.len()) {
                    import.save(
                        0,
                        Position {
                            byte: import.new.state.lines,
                            ..Position::START
                        },
                    )?;
                }
            }
            Ok(())
        })();
        import.end(stage, done)
    }

    fn parquet(&self, stage: &mut Stage, columns: &Columns) -> Result<Imported> {
        let foreign = &self.foreign[0];
        let file = Anywhere::new(&self.session, &foreign.file(&self.session)?, &self.stop);
        let reader = parquet::Reader::open(foreign.name(), file, columns)?;
        let _batch = stage.reserve("the entries of a table", self.memory.lanes.bytes())?;
        let most = self.memory.batch_entries;
        let (mut number, mut group, mut read) = (0, None, 0);
        let draft = Draft {
            entries: Some(reader.entries()),
            ..self.draft()
        };
        triplets::run_batches(self, stage, draft, None, |begin, stage, triplets| {
            if let Some(passed) = begin {
                (number, group, read) = (0, None, 0);
                while number < reader.groups() && reader.entries_of(number) <= *passed {
                    *passed -= reader.entries_of(number);
                    read += reader.entries_of(number);
                    number += 1;
                }
            }
            loop {
                stage.check()?;
                if group.is_none() {
                    if number == reader.groups() {
                        return Ok(false);
                    }
                    group = Some(reader.group(number)?);
                    number += 1;
                    stage.reach(0.99 * number as f64 / reader.groups() as f64);
                }
                if group
                    .as_mut()
                    .expect("begun above")
                    .entries(most, triplets)?
                {
                    self.check_values(&triplets.values, read, |entry| {
                        (triplets.rows[entry], triplets.columns[entry])
                    })?;
                    read += triplets.entries;
                    return Ok(true);
                }
                group = None;
            }
        })
    }
}
