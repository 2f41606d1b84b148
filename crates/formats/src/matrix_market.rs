//! MatrixMarket text: an entry a line, rows and columns from 1, or all values of a dense matrix.
//!
//! ```text
//!   %%MatrixMarket matrix coordinate real general        or pattern, integer;  symmetric, skew-symmetric
//!   % comments
//!   3 4 2                                                rows, columns, entries
//!   1 4 0.5
//!   3 1 2
//!
//!   %%MatrixMarket matrix array real general             or integer;  symmetric, skew-symmetric
//!   2 2                                                  rows, columns
//!   1                                                    a value a line, column after column; of symmetric matrices the
//!   0                                                    lower triangle, of skew-symmetric ones without the diagonal
//!   0.5
//!   2
//! ```
//!
//! Of symmetric matrices only one half is stored; both halves are returned. Integers beyond 2^53
//! are rounded to the nearest `f64`. Of an array the non-zero values are returned: [`parse`] only
//! counts the values of its chunk, [`place_values`] computes their rows and columns. Source:
//! Boisvert, Pozo, Remington, "The Matrix Market exchange formats: initial design", NISTIR 5935,
//! 1996.

use std::io::Read;

use crate::error::shown;
use crate::number::{Cursor, Parsed};
use crate::print::{push_index, push_number};
use crate::{Batch, Chunk, Error, Lines, Precision, Result, Tally, Triplets};

/// Layout of the entries in the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// Single entries with row and column.
    Coordinate,
    /// All values, column after column.
    Array,
}

/// Type of the values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Field {
    /// Any number.
    Real,
    /// Whole numbers.
    Integer,
    /// No values: all are 1.
    Pattern,
}

/// Symmetry, which implies the entries that are not stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Symmetry {
    /// All entries are stored.
    General,
    /// The other half is equal.
    Symmetric,
    /// The other half has the opposite sign; the diagonal is 0.
    SkewSymmetric,
}

/// The header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Layout of the entries in the text.
    pub layout: Layout,
    /// Type of the values.
    pub field: Field,
    /// Symmetry, which implies the entries that are not stored.
    pub symmetry: Symmetry,
    /// Rows.
    pub rows: u64,
    /// Columns.
    pub columns: u64,
    /// Number of stored entries; for an array, of stored values.
    pub entries: u64,
}

impl Header {
    /// Reads the banner, the comments and the line with the size off the text.
    pub fn read<R: Read>(lines: &mut Lines<R>) -> Result<Header> {
        let banner = lines.line()?.ok_or_else(|| {
            missing(
                lines,
                "the file is empty, a MatrixMarket banner is expected",
            )
        })?;
        let (layout, field, symmetry) = banner
            .parsed(read_banner)?
            .map_err(|reason| Error::unsupported(lines.object(), reason))?;
        let size = loop {
            let line = lines.line()?.ok_or_else(|| {
                missing(
                    lines,
                    "the file ends before the line with rows, columns and entries",
                )
            })?;
            let first = line.bytes.iter().find(|byte| !byte.is_ascii_whitespace());
            if first.is_some_and(|&byte| byte != b'%') {
                break line;
            }
        };
        size.parsed(|mut text| {
            let mut number = |what| {
                text.skip_blanks();
                text.index(what)
            };
            let (rows, columns) = (
                number("the number of rows")?,
                number("the number of columns")?,
            );
            let entries = match layout {
                Layout::Coordinate => Some(number("the number of entries")?),
                Layout::Array => stored_values(rows, columns, symmetry),
            };
            text.end_line()?;
            text.at = 0;
            if symmetry != Symmetry::General && rows != columns {
                return Err(text.fault(format!(
                    "a symmetric matrix of {rows} rows and {columns} columns"
                )));
            }
            let too_many = || {
                text.fault(format!(
                    "{rows} rows and {columns} columns have more values than any file"
                ))
            };
            Ok(Header {
                layout,
                field,
                symmetry,
                rows,
                columns,
                entries: entries.ok_or_else(too_many)?,
            })
        })
    }

    /// Upper bound of the memory of [`Triplets`] while a chunk is read into them, bytes.
    #[must_use]
    pub fn bytes_to_parse(&self, chunk: &Chunk) -> usize {
        24 * self.room(chunk)
    }

    /// Most entries of a chunk, counting both halves.
    fn room(&self, chunk: &Chunk) -> usize {
        let halves = if self.symmetry == Symmetry::General {
            1
        } else {
            2
        };
        halves * chunk.lines_of(self.least_line_bytes())
    }

    /// Least bytes of the line of an entry.
    #[must_use]
    pub fn least_line_bytes(&self) -> usize {
        match (self.layout, self.field) {
            (Layout::Array, _) => "0\n".len(),
            (Layout::Coordinate, Field::Pattern) => "1 1\n".len(),
            (Layout::Coordinate, _) => "1 1 1\n".len(),
        }
    }

    /// The header as text.
    pub fn write(&self, out: &mut Vec<u8>) {
        let field = match self.field {
            Field::Real => "real",
            Field::Integer => "integer",
            Field::Pattern => "pattern",
        };
        let symmetry = match self.symmetry {
            Symmetry::General => "general",
            Symmetry::Symmetric => "symmetric",
            Symmetry::SkewSymmetric => "skew-symmetric",
        };
        let Header {
            rows,
            columns,
            entries,
            ..
        } = self;
        let text = match self.layout {
            Layout::Coordinate => format!(
                "%%MatrixMarket matrix coordinate {field} {symmetry}\n{rows} {columns} {entries}\n"
            ),
            Layout::Array => {
                format!("%%MatrixMarket matrix array {field} {symmetry}\n{rows} {columns}\n")
            }
        };
        out.extend_from_slice(text.as_bytes());
    }

    /// A count to check [`Triplets::entries`] of all chunks against.
    #[must_use]
    pub fn tally(&self, object: &str) -> Tally {
        let what = if self.layout == Layout::Array {
            "values"
        } else {
            "entries"
        };
        Tally::new(object, what, self.entries)
    }
}

/// Number of values of an array; `None` if no file can hold as many.
fn stored_values(rows: u64, columns: u64, symmetry: Symmetry) -> Option<u64> {
    let (rows, columns) = (u128::from(rows), u128::from(columns));
    let count = match symmetry {
        Symmetry::General => rows * columns,
        Symmetry::Symmetric => rows * (rows + 1) / 2,
        Symmetry::SkewSymmetric => rows * rows.saturating_sub(1) / 2,
    };
    i64::try_from(count).ok().map(|count| count as u64)
}

fn missing<R: Read>(lines: &Lines<R>, reason: &str) -> Error {
    Error::corrupt(lines.object(), lines.source().stored_bytes(), reason)
}

/// An invalid banner is a fault; the banner of an unsupported matrix is an error text.
fn read_banner(text: Cursor) -> Parsed<std::result::Result<(Layout, Field, Symmetry), String>> {
    let line = String::from_utf8_lossy(&text.bytes[text.at..]).to_lowercase();
    let words: Vec<&str> = line.split_ascii_whitespace().collect();
    let [banner, "matrix", layout, field, symmetry] = words[..] else {
        return Err(text.fault(format!(
            "a banner like '%%MatrixMarket matrix coordinate real general' is expected, found {}",
            text.token()
        )));
    };
    if banner != "%%matrixmarket" {
        return Err(text.fault(format!(
            "a banner that begins with %%MatrixMarket is expected, found {}",
            text.token()
        )));
    }
    let layout = match layout {
        "coordinate" => Layout::Coordinate,
        "array" => Layout::Array,
        other => {
            return Ok(Err(format!(
                "the layout '{}'; coordinate and array are read",
                shown(other)
            )));
        }
    };
    let field = match field {
        "real" | "double" => Field::Real,
        "integer" | "unsigned-integer" => Field::Integer,
        "pattern" if layout == Layout::Array => {
            return Ok(Err(
                "an array of patterns, which would have no values".into()
            ));
        }
        "pattern" => Field::Pattern,
        "complex" => {
            return Ok(Err("complex values; real, integer and pattern are read. Write the real and the imaginary part as two \
                           files: scipy.io.mmwrite(path, X.real), scipy.io.mmwrite(path, X.imag)"
                .into()));
        }
        other => {
            return Ok(Err(format!(
                "values of the kind '{}'; real, integer and pattern are read",
                shown(other)
            )));
        }
    };
    let symmetry = match symmetry {
        "general" => Symmetry::General,
        "symmetric" => Symmetry::Symmetric,
        "skew-symmetric" => Symmetry::SkewSymmetric,
        other => {
            let other = shown(other);
            return Ok(Err(format!(
                "the symmetry '{other}'; general, symmetric and skew-symmetric are read"
            )));
        }
    };
    Ok(Ok((layout, field, symmetry)))
}

/// Reads the entries of a chunk into `triplets`, both halves of symmetric matrices; values have to
/// fit in `precision`. For an array, call [`place_values`] next.
///
/// Cost: one pass over the text. Errors: [`Error::Line`] for the first line that does not follow
/// the format or the header.
pub fn parse(
    chunk: &Chunk,
    header: &Header,
    precision: Precision,
    triplets: &mut Triplets,
) -> Result<()> {
    triplets.clear(header.room(chunk));
    chunk.parsed(|text| match header.layout {
        Layout::Coordinate => entries(text, header, precision, triplets),
        Layout::Array => values(text, header, precision, triplets),
    })
}

fn entries(
    mut text: Cursor,
    header: &Header,
    precision: Precision,
    triplets: &mut Triplets,
) -> Parsed<()> {
    while !text.is_at_end() {
        text.skip_blanks();
        if matches!(text.peek(), b'\n' | b'%') {
            text.skip_line();
            continue;
        }
        let line = text.at;
        let row = place(&mut text, "row", header.rows)?;
        text.skip_blanks();
        let column = place(&mut text, "column", header.columns)?;
        let value = match header.field {
            Field::Pattern => 1.0,
            field => value(&mut text, field, precision)?,
        };
        text.end_line()?;
        triplets.entries += 1;
        triplets.push(row, column, value);
        match header.symmetry {
            Symmetry::General => {}
            Symmetry::SkewSymmetric if row == column => {
                text.at = line;
                return Err(text.fault(
                    "an entry on the diagonal of a skew-symmetric matrix, where all are 0",
                ));
            }
            Symmetry::Symmetric if row != column => triplets.push(column, row, value),
            Symmetry::Symmetric => {}
            Symmetry::SkewSymmetric => triplets.push(column, row, -value),
        }
    }
    Ok(())
}

/// The non-zero values of an array, each with its number in the chunk in place of a row.
fn values(
    mut text: Cursor,
    header: &Header,
    precision: Precision,
    triplets: &mut Triplets,
) -> Parsed<()> {
    while !text.is_at_end() {
        text.skip_blanks();
        if matches!(text.peek(), b'\n' | b'%') {
            text.skip_line();
            continue;
        }
        let value = value(&mut text, header.field, precision)?;
        text.end_line()?;
        if value != 0.0 {
            triplets.push(triplets.entries, 0, value);
        }
        triplets.entries += 1;
    }
    Ok(())
}

/// Computes rows and columns of the values that [`parse`] has found in a chunk of an array;
/// `before` values are in the chunks before it. Adds the other half of symmetric matrices, and
/// drops values beyond the last one of the header.
pub fn place_values(header: &Header, before: u64, triplets: &mut Triplets) {
    let n = header.rows;
    // Number of the first value of a column.
    let start = |column: u64| match header.symmetry {
        Symmetry::General => u128::from(column) * u128::from(n),
        Symmetry::Symmetric => u128::from(column) * u128::from(2 * n + 1 - column) / 2,
        Symmetry::SkewSymmetric => u128::from(column) * u128::from(2 * n - 1 - column) / 2,
    };
    let kept = triplets
        .rows
        .partition_point(|&number| before.saturating_add(number) < header.entries);
    triplets.rows.truncate(kept);
    triplets.columns.truncate(kept);
    triplets.values.truncate(kept);
    let mut column = first_column(
        header.columns,
        triplets.rows.first().map(|&number| before + number),
        start,
    );
    for entry in 0..kept {
        let number = u128::from(before + triplets.rows[entry]);
        while start(column + 1) <= number {
            column += 1;
        }
        let within = (number - start(column)) as u64;
        let row = match header.symmetry {
            Symmetry::General => within,
            Symmetry::Symmetric => column + within,
            Symmetry::SkewSymmetric => column + 1 + within,
        };
        (triplets.rows[entry], triplets.columns[entry]) = (row, column);
        match header.symmetry {
            Symmetry::Symmetric if row != column => {
                triplets.push(column, row, triplets.values[entry])
            }
            Symmetry::SkewSymmetric => triplets.push(column, row, -triplets.values[entry]),
            _ => {}
        }
    }
}

/// The column of a value, by bisection.
fn first_column(columns: u64, number: Option<u64>, start: impl Fn(u64) -> u128) -> u64 {
    let Some(number) = number else { return 0 };
    let (mut low, mut high) = (0, columns);
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        match start(middle) <= u128::from(number) {
            true => low = middle,
            false => high = middle,
        }
    }
    low
}

/// A row or column number from 1 to `count`, returned from 0.
#[inline(always)]
pub(crate) fn place(text: &mut Cursor, what: &str, count: u64) -> Parsed<u64> {
    let start = text.at;
    let place = text.index(what)?.wrapping_sub(1);
    if !matches!(text.peek(), b' ' | b'\t' | b'\r' | b'\n') {
        text.at = start;
        return Err(text.fault(format!(
            "{what} is expected to be a whole number, found {}",
            text.token()
        )));
    }
    if place >= count {
        text.at = start;
        return Err(text.fault(format!(
            "{what} {} of a matrix with {count}, which begin with 1",
            text.token()
        )));
    }
    Ok(place)
}

#[inline(always)]
fn value(text: &mut Cursor, field: Field, precision: Precision) -> Parsed<f64> {
    text.skip_blanks();
    let start = text.at;
    let value = text.value(precision)?;
    if field == Field::Integer && value.fract() != 0.0 {
        text.at = start;
        return Err(text.fault(format!("{} in a matrix of whole numbers", text.token())));
    }
    Ok(value)
}

/// Appends the entries of rows as text; the first row of `batch` is row `first_row` (from 0) of the
/// matrix. The header has to say `general` and to fit the values.
pub fn write(batch: &Batch, first_row: u64, field: Field, precision: Precision, out: &mut Vec<u8>) {
    for row in 0..batch.rows() {
        let (indices, values) = batch.row(row);
        for (&index, &value) in indices.iter().zip(values) {
            push_index(out, first_row + row as u64 + 1);
            out.push(b' ');
            push_index(out, index + 1);
            if field != Field::Pattern {
                out.push(b' ');
                push_number(out, value, precision);
            }
            out.push(b'\n');
        }
    }
}
