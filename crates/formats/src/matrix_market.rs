//! MatrixMarket coordinate text: an entry a line, rows and columns from 1.
//!
//! ```text
//!   %%MatrixMarket matrix coordinate real general        or pattern, integer;  symmetric, skew-symmetric
//!   % comments
//!   3 4 2                                                rows, columns, entries
//!   1 4 0.5
//!   3 1 2
//! ```
//!
//! Of symmetric matrices only one half is stored; both are given. Integers beyond 2^53 are rounded to the nearest `f64`. Source:
//! Boisvert, Pozo, Remington, "The Matrix Market exchange formats: initial design", NISTIR 5935, 1996.

use std::io::Read;

use crate::number::{Cursor, Parsed};
use crate::print::{push_index, push_number};
use crate::{Batch, Chunk, Error, Lines, Precision, Result, Tally, Triplets};

/// What the values are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Field {
    /// Any number.
    Real,
    /// Whole numbers.
    Integer,
    /// Not there: all are 1.
    Pattern,
}

/// Which entries are not stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Symmetry {
    /// None.
    General,
    /// Those of the other half, which are the same.
    Symmetric,
    /// Those of the other half, which have the opposite sign; the diagonal is 0.
    SkewSymmetric,
}

/// What stands before the entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// What the values are.
    pub field: Field,
    /// Which entries are not stored.
    pub symmetry: Symmetry,
    /// Rows.
    pub rows: u64,
    /// Columns.
    pub columns: u64,
    /// Stored entries.
    pub entries: u64,
}

impl Header {
    /// Takes the banner, the comments and the line with the size off the text.
    pub fn read<R: Read>(lines: &mut Lines<R>) -> Result<Header> {
        let banner = lines.line()?.ok_or_else(|| missing(lines, "the file is empty, a MatrixMarket banner is expected"))?;
        let (field, symmetry) = banner.parsed(read_banner)?.map_err(|reason| Error::unsupported(lines.object(), reason))?;
        let size = loop {
            let line =
                lines.line()?.ok_or_else(|| missing(lines, "the file ends before the line with rows, columns and entries"))?;
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
            let (rows, columns, entries) =
                (number("the number of rows")?, number("the number of columns")?, number("the number of entries")?);
            text.end_line()?;
            if symmetry != Symmetry::General && rows != columns {
                text.at = 0;
                return Err(text.fault(format!("a symmetric matrix of {rows} rows and {columns} columns")));
            }
            Ok(Header { field, symmetry, rows, columns, entries })
        })
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
        let Header { rows, columns, entries, .. } = self;
        out.extend_from_slice(
            format!("%%MatrixMarket matrix coordinate {field} {symmetry}\n{rows} {columns} {entries}\n").as_bytes(),
        );
    }

    /// To count [`Triplets::entries`] of all chunks with.
    #[must_use]
    pub fn tally(&self, object: &str) -> Tally {
        Tally::new(object, "entries", self.entries)
    }
}

fn missing<R: Read>(lines: &Lines<R>, reason: &str) -> Error {
    Error::corrupt(lines.object(), lines.source().stored_bytes(), reason)
}

/// A banner that is none is a fault; one of a matrix that we do not read is an error in words.
fn read_banner(text: Cursor) -> Parsed<std::result::Result<(Field, Symmetry), String>> {
    let line = String::from_utf8_lossy(text.bytes).to_lowercase();
    let words: Vec<&str> = line.split_ascii_whitespace().collect();
    let [banner, "matrix", layout, field, symmetry] = words[..] else {
        return Err(text.fault(format!(
            "a banner like '%%MatrixMarket matrix coordinate real general' is expected, found {}",
            text.token()
        )));
    };
    if banner != "%%matrixmarket" {
        return Err(text.fault(format!("a banner that begins with %%MatrixMarket is expected, found {}", text.token())));
    }
    if layout != "coordinate" {
        return Ok(Err(format!("the layout '{layout}', a dense matrix; only coordinate, of sparse ones, is read")));
    }
    let field = match field {
        "real" | "double" => Field::Real,
        "integer" | "unsigned-integer" => Field::Integer,
        "pattern" => Field::Pattern,
        other => return Ok(Err(format!("values of the kind '{other}'; real, integer and pattern are read"))),
    };
    let symmetry = match symmetry {
        "general" => Symmetry::General,
        "symmetric" => Symmetry::Symmetric,
        "skew-symmetric" => Symmetry::SkewSymmetric,
        other => return Ok(Err(format!("the symmetry '{other}'; general, symmetric and skew-symmetric are read"))),
    };
    Ok(Ok((field, symmetry)))
}

/// Reads the entries of a chunk into `triplets`, both halves of symmetric matrices.
///
/// Cost: one pass over the text. Errors: [`Error::Line`] for the first line that does not follow the format or the header.
pub fn parse(chunk: &Chunk, header: &Header, triplets: &mut Triplets) -> Result<()> {
    let halves = if header.symmetry == Symmetry::General { 1 } else { 2 };
    triplets.clear(halves * chunk.lines_of("1 1\n".len()));
    chunk.parsed(|text| entries(text, header, triplets))
}

fn entries(mut text: Cursor, header: &Header, triplets: &mut Triplets) -> Parsed<()> {
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
            field => value(&mut text, field)?,
        };
        text.end_line()?;
        triplets.entries += 1;
        triplets.push(row, column, value);
        match header.symmetry {
            Symmetry::General => {}
            Symmetry::SkewSymmetric if row == column => {
                text.at = line;
                return Err(text.fault("an entry on the diagonal of a skew-symmetric matrix, where all are 0"));
            }
            Symmetry::Symmetric if row != column => triplets.push(column, row, value),
            Symmetry::Symmetric => {}
            Symmetry::SkewSymmetric => triplets.push(column, row, -value),
        }
    }
    Ok(())
}

/// A row or column from 1 to `count`, given from 0.
#[inline(always)]
pub(crate) fn place(text: &mut Cursor, what: &str, count: u64) -> Parsed<u64> {
    let start = text.at;
    let place = text.index(what)?.wrapping_sub(1);
    if place >= count {
        text.at = start;
        return Err(text.fault(format!("{what} {} of a matrix with {count}, which begin with 1", text.token())));
    }
    Ok(place)
}

#[inline(always)]
fn value(text: &mut Cursor, field: Field) -> Parsed<f64> {
    text.skip_blanks();
    let start = text.at;
    let value = text.number("the value")?;
    if field == Field::Integer && value.fract() != 0.0 {
        text.at = start;
        return Err(text.fault(format!("{} in a matrix of whole numbers", text.token())));
    }
    Ok(value)
}

/// Appends the entries of rows as text; the first row of `batch` is row `first_row` (from 0) of the matrix. The header has to say
/// `general`, and fit the values.
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
