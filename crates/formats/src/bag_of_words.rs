//! UCI bag of words: three lines with a number each, then one line an entry: document, word and
//! count, numbered from 1.
//!
//! ```text
//!   1500                    documents
//!   7605                    words
//!   709477                  entries
//!   1 5 2                   document 1 has word 5 twice
//! ```
//!
//! A file of words beside it, one a line, is read by [`WordLines`](crate::WordLines). Source: UCI
//! machine learning repository, "Bag of Words", 2008.

use std::io::Read;

use crate::matrix_market::place;
use crate::number::{Cursor, Parsed};
use crate::print::push_index;
use crate::{Batch, Chunk, Error, Lines, Result, Tally, Triplets};

/// The first three lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Documents (D), the rows.
    pub rows: u64,
    /// Words (W), the columns.
    pub columns: u64,
    /// Entries (NNZ).
    pub entries: u64,
}

impl Header {
    /// Reads the header off the text.
    pub fn read<R: Read>(lines: &mut Lines<R>) -> Result<Header> {
        let mut number = |what: &str| {
            let line = lines.line()?.ok_or_else(|| {
                let reason = format!("the file ends where {what} is expected");
                Error::corrupt(lines.object(), lines.source().stored_bytes(), reason)
            })?;
            line.parsed(|mut text| {
                text.skip_blanks();
                let number = text.index(what)?;
                text.end_line()?;
                Ok(number)
            })
        };
        Ok(Header {
            rows: number("the number of documents")?,
            columns: number("the number of words")?,
            entries: number("the number of entries")?,
        })
    }

    /// The header as text.
    pub fn write(&self, out: &mut Vec<u8>) {
        let Header {
            rows,
            columns,
            entries,
        } = self;
        out.extend_from_slice(format!("{rows}\n{columns}\n{entries}\n").as_bytes());
    }

    /// A count to check [`Triplets::entries`] of all chunks against.
    #[must_use]
    pub fn tally(&self, object: &str) -> Tally {
        Tally::new(object, "entries", self.entries)
    }
}

/// Least bytes of the line of an entry.
pub const LEAST_LINE_BYTES: usize = "1 1 1\n".len();

/// Upper bound of the memory of [`Triplets`] while a chunk is read into them, bytes.
#[must_use]
pub fn bytes_to_parse(chunk: &Chunk) -> usize {
    24 * chunk.lines_of(LEAST_LINE_BYTES)
}

/// Reads the entries of a chunk into `triplets`.
///
/// Cost: one pass over the text. Errors: [`Error::Line`] for the first line that does not follow
/// the format or the header.
pub fn parse(chunk: &Chunk, header: &Header, triplets: &mut Triplets) -> Result<()> {
    triplets.clear(chunk.lines_of(LEAST_LINE_BYTES));
    chunk.parsed(|text| entries(text, header, triplets))?;
    triplets.entries = triplets.rows.len() as u64;
    Ok(())
}

fn entries(mut text: Cursor, header: &Header, triplets: &mut Triplets) -> Parsed<()> {
    while !text.is_at_end() {
        text.skip_blanks();
        if text.peek() == b'\n' {
            text.at += 1;
            continue;
        }
        let document = place(&mut text, "document", header.rows)?;
        text.skip_blanks();
        let word = place(&mut text, "word", header.columns)?;
        text.skip_blanks();
        let count = text.index("the count")?;
        text.end_line()?;
        triplets.push(document, word, count as f64);
    }
    Ok(())
}

/// Appends the entries of rows as text; the first row of `batch` is document `first_row` (from 0).
///
/// Errors: [`Error::Unsupported`] for a value that is not a count.
pub fn write(batch: &Batch, first_row: u64, out: &mut Vec<u8>) -> Result<()> {
    const LARGEST: f64 = (1_u64 << 53) as f64;
    for row in 0..batch.rows() {
        let (indices, values) = batch.row(row);
        for (&index, &value) in indices.iter().zip(values) {
            if !(0.0..=LARGEST).contains(&value) || value.fract() != 0.0 {
                let reason = format!(
                    "the value {value} of document {}: counts are whole numbers from 0",
                    first_row + row as u64 + 1
                );
                return Err(Error::unsupported("bag of words", reason));
            }
            for number in [first_row + row as u64 + 1, index + 1] {
                push_index(out, number);
                out.push(b' ');
            }
            push_index(out, value as u64);
            out.push(b'\n');
        }
    }
    Ok(())
}
