//! Entries in the rows of a Parquet file: a column with the matrix's row, one with its column, and
//! one with the value.
//!
//! Rows and columns are integers of any type, from 0; values are numbers or booleans, finite;
//! without a third column all are 1. Nulls are refused. Row groups are read independently of each
//! other, each page by page: a group in progress holds a page of each column (1 MiB before
//! compression with most writers) and the dictionaries of its columns.

use std::io::{BufReader, Read, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use ::parquet::basic::{
    Compression, ConvertedType, Encoding, LogicalType, Repetition, Type as Physical, ZstdLevel,
};
use ::parquet::column::reader::{ColumnReader, ColumnReaderImpl};
use ::parquet::data_type::{DataType, DoubleType, Int64Type};
use ::parquet::errors::{ParquetError, Result as ParquetResult};
use ::parquet::file::properties::{EnabledStatistics, WriterProperties};
use ::parquet::file::reader::{ChunkReader, FileReader, Length, SerializedFileReader};
use ::parquet::file::writer::{SerializedFileWriter, SerializedRowGroupWriter};
use ::parquet::schema::types::{ColumnDescriptor, ColumnPath, SchemaDescriptor, Type};
use bytes::Bytes;

use crate::bytes::{ReadAt, SeekingReader};
use crate::error::shown;
use crate::source::refuse_packed;
use crate::{Batch, Error, Result, Triplets};

/// Selection of the columns.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Columns {
    /// The first two, and the third if there is one.
    #[default]
    First,
    /// Those with these names; fields of structures as `structure.field`.
    Named {
        /// Rows of the matrix.
        row: String,
        /// Columns of the matrix.
        column: String,
        /// Values; `None`: all are 1.
        value: Option<String>,
    },
}

/// An open file. Its groups can be read by several threads at once.
pub struct Reader {
    object: String,
    file: SerializedFileReader<Stored>,
    length: u64,
    /// Row, column, and value if there is one.
    columns: Vec<usize>,
}

impl Reader {
    /// Opens a file and reads its footer. `object` is the file's name in errors.
    ///
    /// Errors: [`Error::Corrupt`], [`Error::Unsupported`] for columns that are missing or of other
    /// types.
    pub fn open(object: &str, file: Arc<dyn ReadAt>, columns: &Columns) -> Result<Reader> {
        refuse_packed(object, &*file)?;
        let length = file.length().map_err(Error::io(object))?;
        let file = guarded(|| SerializedFileReader::new(Stored { file, length }))
            .map_err(|error| failure(object, length, error))?;
        let schema = file.metadata().file_metadata().schema_descr();
        let columns =
            find_columns(schema, columns).map_err(|reason| Error::unsupported(object, reason))?;
        for (position, &column) in columns.iter().enumerate() {
            check_type(&schema.column(column), position == 2)
                .map_err(|reason| Error::unsupported(object, reason))?;
        }
        Ok(Reader {
            object: object.into(),
            file,
            length,
            columns,
        })
    }

    /// Row groups.
    #[must_use]
    pub fn groups(&self) -> usize {
        self.file.num_row_groups()
    }

    /// Entries of all groups.
    #[must_use]
    pub fn entries(&self) -> u64 {
        self.file
            .metadata()
            .row_groups()
            .iter()
            .map(|group| entries_of(group.num_rows()))
            .fold(0, u64::saturating_add)
    }

    /// Entries of one group. Panics if there is none of this number.
    #[must_use]
    pub fn entries_of(&self, group: usize) -> u64 {
        entries_of(self.file.metadata().row_groups()[group].num_rows())
    }

    /// Begins one group. Panics if there is none of this number.
    pub fn group(&self, group: usize) -> Result<Group> {
        assert!(group < self.groups(), "group {group} of {}", self.groups());
        let groups = self.file.metadata().row_groups();
        let count = |group: usize| entries_of(groups[group].num_rows());
        let first_entry = (0..group).map(count).fold(0, u64::saturating_add);
        let open = || {
            let group = self.file.get_row_group(group)?;
            self.columns
                .iter()
                .map(|&column| group.get_column_reader(column))
                .collect::<ParquetResult<Vec<_>>>()
        };
        let readers = guarded(open).map_err(|error| failure(&self.object, self.length, error))?;
        let columns = readers
            .into_iter()
            .zip(&self.columns)
            .map(|(reader, &column)| Column {
                reader,
                unsigned: is_unsigned(&groups[group].schema_descr().column(column)),
                start: groups[group].columns()[column].data_page_offset().max(0) as u64,
            });
        Ok(Group {
            object: self.object.clone(),
            columns: columns.collect(),
            next_entry: first_entry,
            left: count(group),
        })
    }
}

fn entries_of(rows: i64) -> u64 {
    rows.max(0) as u64
}

/// A row group, read from its first entry to its last.
pub struct Group {
    object: String,
    columns: Vec<Column>,
    next_entry: u64,
    left: u64,
}

impl Group {
    /// The next entries, at most `most`; false at the end of the group.
    ///
    /// Errors: [`Error::Entry`] for nulls, negative rows and columns, and values that are not
    /// finite; [`Error::Corrupt`].
    pub fn entries(&mut self, most: usize, triplets: &mut Triplets) -> Result<bool> {
        let count = self.left.min(most.max(1) as u64) as usize;
        triplets.clear(count);
        let (object, first) = (&self.object, self.next_entry);
        let [rows, columns, values @ ..] = &mut self.columns[..] else {
            unreachable!("two columns were found")
        };
        rows.read_places(object, first, count, &mut triplets.rows)?;
        columns.read_places(object, first, count, &mut triplets.columns)?;
        match values {
            [values, ..] => values.read_values(object, first, count, &mut triplets.values)?,
            [] => triplets.values.resize(count, 1.0),
        }
        triplets.entries = count as u64;
        self.next_entry += count as u64;
        self.left -= count as u64;
        Ok(count > 0)
    }
}

struct Column {
    reader: ColumnReader,
    /// Whether negative numbers represent those from 2^63 on.
    unsigned: bool,
    /// Offset of the group's part of it in the file.
    start: u64,
}

enum Numbers {
    Whole(Vec<i64>),
    Real(Vec<f64>),
}

impl Column {
    fn read_places(
        &mut self,
        object: &str,
        first: u64,
        count: usize,
        out: &mut Vec<u64>,
    ) -> Result<()> {
        let Numbers::Whole(places) = self.read(object, first, count)? else {
            unreachable!("the types of the columns were checked")
        };
        if let Some(position) = places.iter().position(|&place| place < 0) {
            let reason = match self.unsigned {
                true => format!("{} is larger than 2^63 - 1", places[position] as u64),
                false => format!("{} is negative", places[position]),
            };
            return Err(Error::entry(object, first + position as u64, reason));
        }
        out.extend(places.iter().map(|&place| place as u64));
        Ok(())
    }

    fn read_values(
        &mut self,
        object: &str,
        first: u64,
        count: usize,
        out: &mut Vec<f64>,
    ) -> Result<()> {
        match self.read(object, first, count)? {
            Numbers::Whole(values) if self.unsigned => {
                out.extend(values.iter().map(|&value| value as u64 as f64))
            }
            Numbers::Whole(values) => out.extend(values.iter().map(|&value| value as f64)),
            Numbers::Real(values) => *out = values,
        }
        match out.iter().position(|value| !value.is_finite()) {
            Some(position) => Err(Error::entry(
                object,
                first + position as u64,
                format!("the value {} is not finite", out[position]),
            )),
            None => Ok(()),
        }
    }

    fn read(&mut self, object: &str, first: u64, count: usize) -> Result<Numbers> {
        let unsigned = self.unsigned;
        let read = guarded(|| {
            Ok(match &mut self.reader {
                ColumnReader::BoolColumnReader(reader) => Numbers::Whole(
                    read_column(reader, count)?
                        .into_iter()
                        .map(i64::from)
                        .collect(),
                ),
                ColumnReader::Int32ColumnReader(reader) => {
                    let widen = |value: i32| {
                        if unsigned {
                            i64::from(value as u32)
                        } else {
                            value.into()
                        }
                    };
                    Numbers::Whole(read_column(reader, count)?.into_iter().map(widen).collect())
                }
                ColumnReader::Int64ColumnReader(reader) => {
                    Numbers::Whole(read_column(reader, count)?)
                }
                ColumnReader::FloatColumnReader(reader) => Numbers::Real(
                    read_column(reader, count)?
                        .into_iter()
                        .map(f64::from)
                        .collect(),
                ),
                ColumnReader::DoubleColumnReader(reader) => {
                    Numbers::Real(read_column(reader, count)?)
                }
                _ => return Err(Stop::Parquet(ParquetError::NYI("this type".into()))),
            })
        });
        read.map_err(|stop| match stop {
            Stop::Parquet(error) => failure(object, self.start, error),
            Stop::Null(position) => Error::entry(object, first + position as u64, "a null"),
        })
    }
}

/// Why a column returned no numbers.
enum Stop {
    Parquet(ParquetError),
    /// Its position.
    Null(usize),
}

impl From<ParquetError> for Stop {
    fn from(error: ParquetError) -> Stop {
        Stop::Parquet(error)
    }
}

/// Reads exactly `count` values; a read ends at each page, so there are several.
fn read_column<T: DataType>(
    reader: &mut ColumnReaderImpl<T>,
    count: usize,
) -> std::result::Result<Vec<T::T>, Stop> {
    let (mut values, mut levels) = (Vec::with_capacity(count), Vec::new());
    while values.len() < count {
        levels.clear();
        let before = values.len();
        let (records, given, _) =
            reader.read_records(count - before, Some(&mut levels), None, &mut values)?;
        if given < records {
            let present = levels.iter().max().copied().unwrap_or(0);
            let null = levels
                .iter()
                .position(|&level| level < present)
                .unwrap_or(0);
            return Err(Stop::Null(before + null));
        }
        if given == 0 {
            return Err(ParquetError::EOF(format!(
                "the column ends after {before} of {count} values"
            ))
            .into());
        }
    }
    Ok(values)
}

fn find_columns(
    schema: &SchemaDescriptor,
    columns: &Columns,
) -> std::result::Result<Vec<usize>, String> {
    let names: Vec<String> = schema
        .columns()
        .iter()
        .map(|column| column.path().string())
        .collect();
    match columns {
        Columns::First if names.len() < 2 => Err(format!(
            "{} columns, at least two are needed: row and column",
            names.len()
        )),
        Columns::First => Ok((0..names.len().min(3)).collect()),
        Columns::Named { row, column, value } => {
            let wanted = [Some(row), Some(column), value.as_ref()]
                .into_iter()
                .flatten();
            let find = |wanted: &String| {
                let found = names.iter().position(|name| name == wanted);
                found.ok_or_else(|| {
                    format!(
                        "no column '{}'; there are {}",
                        shown(wanted),
                        some_of(&names)
                    )
                })
            };
            wanted.map(find).collect()
        }
    }
}

/// Names in a line that fits a screen.
fn some_of(names: &[String]) -> String {
    const MOST: usize = 5;
    let some = names
        .iter()
        .take(MOST)
        .map(|name| shown(name))
        .collect::<Vec<_>>()
        .join(", ");
    if names.len() > MOST {
        format!("{some} and {} more", names.len() - MOST)
    } else {
        some
    }
}

fn check_type(column: &ColumnDescriptor, is_value: bool) -> std::result::Result<(), String> {
    let name = shown(&column.path().string());
    let plain = match column.logical_type_ref() {
        None => {
            matches!(column.converted_type(), ConvertedType::NONE)
                || integer_width(column.converted_type())
        }
        Some(logical) => matches!(logical, LogicalType::Integer(_)),
    };
    match column.physical_type() {
        _ if column.max_rep_level() > 0 => Err(format!(
            "the column '{name}' has lists; one number a row is needed"
        )),
        Physical::INT32 | Physical::INT64 if plain => Ok(()),
        Physical::FLOAT | Physical::DOUBLE | Physical::BOOLEAN if is_value => Ok(()),
        other => Err(format!(
            "the column '{name}' of the type {other}; {} are needed",
            if is_value { "numbers" } else { "whole numbers" }
        )),
    }
}

fn integer_width(converted: ConvertedType) -> bool {
    use ConvertedType::{INT_8, INT_16, INT_32, INT_64, UINT_8, UINT_16, UINT_32, UINT_64};
    matches!(
        converted,
        INT_8 | INT_16 | INT_32 | INT_64 | UINT_8 | UINT_16 | UINT_32 | UINT_64
    )
}

fn is_unsigned(column: &ColumnDescriptor) -> bool {
    use ConvertedType::{UINT_8, UINT_16, UINT_32, UINT_64};
    matches!(
        column.converted_type(),
        UINT_8 | UINT_16 | UINT_32 | UINT_64
    )
}

/// Catches panics of the library below, which some invalid bytes cause: a negative offset in the
/// metadata, a page without its dictionary.
fn guarded<T, E: From<ParquetError>>(
    read: impl FnOnce() -> std::result::Result<T, E>,
) -> std::result::Result<T, E> {
    // The reader that panicked is not used again: the caller gets an error and drops it.
    catch_unwind(AssertUnwindSafe(read))
        .unwrap_or_else(|_| Err(ParquetError::General("the file is damaged".into()).into()))
}

fn failure(object: &str, offset: u64, error: ParquetError) -> Error {
    match error {
        ParquetError::External(source) => match source.downcast::<std::io::Error>() {
            Ok(source) => Error::Io {
                object: object.into(),
                source: *source,
            },
            Err(source) => Error::corrupt(object, offset, source.to_string()),
        },
        ParquetError::NYI(what) => Error::unsupported(object, what),
        error => Error::corrupt(object, offset, error.to_string()),
    }
}

/// The source of the library.
struct Stored {
    file: Arc<dyn ReadAt>,
    length: u64,
}

impl Length for Stored {
    fn len(&self) -> u64 {
        self.length
    }
}

impl ChunkReader for Stored {
    type T = BufReader<SeekingReader>;

    fn get_read(&self, offset: u64) -> ParquetResult<Self::T> {
        Ok(BufReader::new(SeekingReader {
            file: self.file.clone(),
            offset,
        }))
    }

    fn get_bytes(&self, offset: u64, length: usize) -> ParquetResult<Bytes> {
        if offset
            .checked_add(length as u64)
            .is_none_or(|end| end > self.length)
        {
            return Err(ParquetError::EOF(format!(
                "{length} bytes at {offset} of a file of {}",
                self.length
            )));
        }
        let mut bytes = vec![0; length];
        self.get_read(offset)?.read_exact(&mut bytes)?;
        Ok(bytes.into())
    }
}

/// Writes entries as the columns `row` and `column` (int64) and `value` (double), compressed with
/// zstd; one row group a batch, which should have some hundred thousand entries. A second,
/// compressed copy of a batch is held while it is written.
pub struct Writer<W: Write + Send> {
    object: String,
    file: SerializedFileWriter<W>,
}

impl<W: Write + Send> Writer<W> {
    /// Begins a file. `object` is its name in errors.
    pub fn new(object: &str, sink: W) -> Result<Writer<W>> {
        let column = |name, physical| {
            Type::primitive_type_builder(name, physical)
                .with_repetition(Repetition::REQUIRED)
                .build()
                .map(Arc::new)
        };
        let schema = || {
            let fields = vec![
                column("row", Physical::INT64)?,
                column("column", Physical::INT64)?,
                column("value", Physical::DOUBLE)?,
            ];
            Type::group_type_builder("entries")
                .with_fields(fields)
                .build()
        };
        let mut properties = WriterProperties::builder()
            .set_compression(Compression::ZSTD(ZstdLevel::default()))
            .set_statistics_enabled(EnabledStatistics::Chunk)
            .set_created_by("outcore".into());
        for name in ["row", "column"] {
            let path = ColumnPath::from(name);
            properties = properties
                .set_column_dictionary_enabled(path.clone(), false)
                .set_column_encoding(path, Encoding::DELTA_BINARY_PACKED);
        }
        let file = schema().and_then(|schema| {
            SerializedFileWriter::new(sink, Arc::new(schema), Arc::new(properties.build()))
        });
        Ok(Writer {
            object: object.into(),
            file: file.map_err(|error| failure(object, 0, error))?,
        })
    }

    /// Writes the entries of rows; the first row of `batch` is row `first_row` of the matrix.
    pub fn write(&mut self, batch: &Batch, first_row: u64) -> Result<()> {
        if batch.indices.is_empty() {
            return Ok(());
        }
        let lengths = batch
            .offsets
            .windows(2)
            .map(|ends| (ends[1] - ends[0]) as usize);
        let rows: Vec<i64> = lengths
            .zip(first_row..)
            .flat_map(|(length, row)| std::iter::repeat_n(row as i64, length))
            .collect();
        let columns: Vec<i64> = batch.indices.iter().map(|&index| index as i64).collect();
        let mut write = || {
            let mut group = self.file.next_row_group()?;
            write_column::<Int64Type, W>(&mut group, &rows)?;
            write_column::<Int64Type, W>(&mut group, &columns)?;
            write_column::<DoubleType, W>(&mut group, &batch.values)?;
            group.close()
        };
        write()
            .map(drop)
            .map_err(|error| failure(&self.object, 0, error))
    }

    /// Writes the footer, and returns the sink.
    pub fn finish(self) -> Result<W> {
        self.file
            .into_inner()
            .map_err(|error| failure(&self.object, 0, error))
    }
}

fn write_column<T: DataType, W: Write + Send>(
    group: &mut SerializedRowGroupWriter<W>,
    values: &[T::T],
) -> ParquetResult<()> {
    let mut column = group.next_column()?.expect("the schema has three columns");
    column.typed::<T>().write_batch(values, None, None)?;
    column.close()
}
