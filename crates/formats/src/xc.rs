//! The text of the Extreme Classification repository: many labels a row, and a header with the
//! shape.
//!
//! ```text
//!   4880 1836 159           rows, features, labels
//!   3,5,44 0:1 5:0.25       labels and features begin with 0
//!    382:1 1044:1           a row without labels begins with a blank
//! ```
//!
//! Every line is a row, including blank ones. Features and labels may come in any order; a feature
//! that is repeated in a row is refused. Source: Bhatia et al., "The extreme classification
//! repository", 2016.

use std::io::Read;

use crate::libsvm::{self, Base, LabelKind, Options, Rules};
use crate::print::push_index;
use crate::{Batch, Chunk, Error, Lines, Precision, Result, Tally};

/// The first line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Rows (N).
    pub rows: u64,
    /// Features (D).
    pub columns: u64,
    /// Labels (L).
    pub labels: u64,
}

impl Header {
    /// Reads the header off the text.
    pub fn read<R: Read>(lines: &mut Lines<R>) -> Result<Header> {
        let line = lines.line()?.ok_or_else(|| {
            Error::corrupt(lines.object(), 0, "the file is empty, a header is expected")
        })?;
        line.parsed(|mut text| {
            let mut number = |what| {
                text.skip_blanks();
                text.index(what)
            };
            let header = Header {
                rows: number("the number of rows")?,
                columns: number("the number of features")?,
                labels: number("the number of labels")?,
            };
            text.end_line()?;
            Ok(header)
        })
    }

    /// The header as text.
    pub fn write(&self, out: &mut Vec<u8>) {
        let Header {
            rows,
            columns,
            labels,
        } = self;
        out.extend_from_slice(format!("{rows} {columns} {labels}\n").as_bytes());
    }

    /// A count to check [`Batch::rows`] of all chunks against.
    #[must_use]
    pub fn tally(&self, object: &str) -> Tally {
        Tally::new(object, "rows", self.rows)
    }
}

/// Reads the rows of a chunk into `batch`; values have to fit in `precision`.
///
/// Cost: one pass over the text. Errors: [`Error::Line`] for the first line that does not follow
/// the format or the header.
pub fn parse(
    chunk: &Chunk,
    header: &Header,
    precision: Precision,
    batch: &mut Batch,
) -> Result<()> {
    let columns = Some(header.columns);
    let options = Options {
        base: Base::Zero,
        labels: LabelKind::Many,
        columns,
        finds_base: false,
        precision,
    };
    libsvm::parse_rows(
        chunk,
        &Rules {
            options,
            label_count: header.labels,
            every_line_is_a_row: true,
        },
        batch,
    )
}

/// Appends rows as text. A single label a row is written if it is an integer from 0, and refused
/// otherwise.
pub fn write(batch: &Batch, precision: Precision, out: &mut Vec<u8>) -> Result<()> {
    for row in 0..batch.rows() {
        match batch.labels.get(row) {
            Some(&label) => match label >= 0.0 && label.fract() == 0.0 && label < i64::MAX as f64 {
                true => push_index(out, label as u64),
                false => {
                    return Err(Error::unsupported(
                        "XC text",
                        format!("the label {label}: labels are whole numbers from 0"),
                    ));
                }
            },
            None if batch.label_offsets.is_empty() => {}
            None => libsvm::write_labels(batch.row_labels(row), out),
        }
        libsvm::write_features(batch, row, Base::Zero, precision, out);
    }
    Ok(())
}
