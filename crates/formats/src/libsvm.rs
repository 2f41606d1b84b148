//! LIBSVM (svmlight) text: one line a row, labels first, then `feature:value`.
//!
//! ```text
//!   +1 3:0.5 7:1            one label            # what follows is a comment
//!   -1 qid:4 1:2            with a query
//!   1,5,7 3:0.5             many labels
//!   3:0.5                   many labels, of which this row has none
//! ```
//!
//! Blank lines, with or without a comment, are not rows. Features may come in any order and are
//! sorted; a feature that is repeated in a row is refused, since it is ambiguous. `qid:` is kept,
//! and either all rows of a chunk have it or none. Source: LIBSVM's README, and
//! `sklearn.datasets.load_svmlight_file`.

use crate::error::Fault;
use crate::number::{Cursor, Parsed};
use crate::print::{push_index, push_number};
use crate::{Batch, Chunk, Error, Precision, Result};

/// Number of the first feature.
///
/// To detect it, read as [`Base::Zero`]: if no feature of the whole file is 0, the file is
/// one-based, and all columns have to be lowered by one, as scikit-learn's `zero_based="auto"`
/// does; [`Batch::index_range`] has the smallest of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Base {
    /// Features are columns.
    Zero,
    /// Features are columns + 1; a feature 0 is refused.
    One,
}

/// The labels before the features.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LabelKind {
    /// One number, into [`Batch::labels`].
    One,
    /// Whole numbers from 0 with commas between them, or nothing, into [`Batch::label_indices`].
    Many,
}

/// Options of the parser.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Number of the first feature.
    pub base: Base,
    /// The labels before the features.
    pub labels: LabelKind,
    /// Number of columns; `None`: any.
    pub columns: Option<u64>,
    /// Read as [`Base::Zero`] to detect the base: one more column is accepted, which is the last
    /// one of features from 1.
    pub finds_base: bool,
    /// The precision that has to represent the values.
    pub precision: Precision,
}

/// Reads the rows of a chunk into `batch`.
///
/// Cost: one pass over the text. Errors: [`Error::Line`] for the first line that does not follow
/// the format.
pub fn parse(chunk: &Chunk, base: Base, labels: LabelKind, batch: &mut Batch) -> Result<()> {
    parse_as(
        chunk,
        &Options {
            base,
            labels,
            columns: None,
            finds_base: false,
            precision: Precision::Double,
        },
        batch,
    )
}

/// As [`parse`], with options: a line that violates them is an [`Error::Line`].
pub fn parse_as(chunk: &Chunk, options: &Options, batch: &mut Batch) -> Result<()> {
    parse_rows(
        chunk,
        &Rules {
            options: *options,
            label_count: u64::MAX,
            every_line_is_a_row: false,
        },
        batch,
    )
}

/// The line, from 1, of a row of a chunk of LIBSVM text, which [`parse`] has counted from 0.
#[must_use]
pub fn line_of(chunk: &Chunk, row: usize) -> u64 {
    let is_row = |line: &[u8]| !matches!(line.trim_ascii_start().first(), None | Some(b'#'));
    let mut rows = chunk
        .bytes
        .split(|&byte| byte == b'\n')
        .zip(chunk.position.line..)
        .filter(|(line, _)| is_row(line));
    rows.nth(row).map_or(chunk.position.line, |(_, line)| line)
}

/// Upper bound of the additional memory of a [`Batch`] while a chunk of LIBSVM or XC text is read
/// into it, bytes. Costs two passes over the text, at the speed of memory.
#[must_use]
pub fn bytes_to_parse(chunk: &Chunk) -> usize {
    // An entry has a column and a value, and a copy of both while its row is sorted.
    32 * chunk.count(b':') + 8 * chunk.count(b',') + 64 * (chunk.line_count() + 1)
}

/// Appends rows as text. Data without labels gets the label 0; labels are exact, whatever the
/// precision of values.
///
/// Errors: [`Error::Unsupported`] for a row with neither labels nor entries in data with many
/// labels, which the format cannot express.
pub fn write(batch: &Batch, base: Base, precision: Precision, out: &mut Vec<u8>) -> Result<()> {
    for row in 0..batch.rows() {
        match (batch.labels.get(row), batch.label_offsets.is_empty()) {
            (Some(&label), _) => push_number(out, label, Precision::Double),
            (None, true) => out.push(b'0'),
            (None, false) if batch.row_labels(row).is_empty() && batch.row(row).0.is_empty() => {
                let reason = "a row without labels and entries would be a blank line in LIBSVM text, which is not a row; the XC format keeps it";
                return Err(Error::unsupported("LIBSVM text", reason));
            }
            (None, false) => write_labels(batch.row_labels(row), out),
        }
        if let Some(&query) = batch.queries.get(row) {
            out.extend_from_slice(b" qid:");
            push_index(out, query);
        }
        write_features(batch, row, base, precision, out);
    }
    Ok(())
}

pub(crate) fn write_labels(labels: &[u64], out: &mut Vec<u8>) {
    for (position, &label) in labels.iter().enumerate() {
        if position > 0 {
            out.push(b',');
        }
        push_index(out, label);
    }
}

/// Features, each after a blank, and the end of the line.
pub(crate) fn write_features(
    batch: &Batch,
    row: usize,
    base: Base,
    precision: Precision,
    out: &mut Vec<u8>,
) {
    let (indices, values) = batch.row(row);
    for (&index, &value) in indices.iter().zip(values) {
        out.push(b' ');
        push_index(out, index + u64::from(base == Base::One));
        out.push(b':');
        push_number(out, value, precision);
    }
    out.push(b'\n');
}

/// Rules for a line.
pub(crate) struct Rules {
    pub(crate) options: Options,
    /// Labels are below this.
    pub(crate) label_count: u64,
    /// As in XC text: blank lines are rows, and a leading blank means that there are no labels.
    pub(crate) every_line_is_a_row: bool,
}

impl Rules {
    /// Exclusive bound of the columns.
    fn limit(&self) -> u64 {
        self.options.columns.map_or(u64::MAX, |columns| {
            columns.saturating_add(u64::from(self.options.finds_base))
        })
    }
}

pub(crate) fn parse_rows(chunk: &Chunk, rules: &Rules, batch: &mut Batch) -> Result<()> {
    let rows = chunk.lines_of(if rules.every_line_is_a_row { 1 } else { 2 });
    batch.clear(rows, chunk.count(b':'));
    match rules.options.labels {
        LabelKind::One => batch.labels.reserve_exact(rows),
        LabelKind::Many => {
            batch.label_offsets.reserve_exact(rows + 1);
            batch.label_indices.reserve_exact(rows + chunk.count(b','));
            batch.label_offsets.push(0);
        }
    }
    chunk.parsed(|text| rows_of(text, rules, batch))
}

fn rows_of(mut text: Cursor, rules: &Rules, batch: &mut Batch) -> Parsed<()> {
    while !text.is_at_end() {
        let line = text.at;
        text.skip_blanks();
        if matches!(text.peek(), b'\n' | b'#') && !rules.every_line_is_a_row {
            text.skip_line();
            continue;
        }
        match rules.options.labels {
            LabelKind::One => label(&mut text, batch)?,
            LabelKind::Many if rules.every_line_is_a_row && text.at > line => batch.end_labels(),
            LabelKind::Many => labels(&mut text, rules, batch)?,
        }
        features(&mut text, rules, batch)?;
    }
    Ok(())
}

#[inline(always)]
fn label(text: &mut Cursor, batch: &mut Batch) -> Parsed<()> {
    let start = text.at;
    let label = text.number("the label")?;
    let reason = match text.peek() {
        b',' => "several labels in data that is read with one label a row",
        b':' => "a label is expected before the features",
        _ => {
            batch.labels.push(label);
            return Ok(());
        }
    };
    text.at = start;
    Err(text.fault(format!("{reason}, found {}", text.token())))
}

#[inline(always)]
fn labels(text: &mut Cursor, rules: &Rules, batch: &mut Batch) -> Parsed<()> {
    let start = text.at;
    let mut more = !matches!(text.peek(), b'\n' | b'#' | b'q');
    while more {
        let at = text.at;
        let label = text.index("the label")?;
        let after = text.peek();
        if after == b':' && at == start {
            // The number already read is the first feature.
            text.at = start;
            break;
        }
        if !matches!(after, b',' | b' ' | b'\t' | b'\r' | b'\n' | b'#') {
            text.at = at;
            return Err(text.fault(format!(
                "labels are expected to be whole numbers with commas between them, found {}",
                text.token()
            )));
        }
        if label >= rules.label_count {
            text.at = at;
            return Err(text.fault(format!(
                "label {label} in data with {} labels, which begin with 0",
                rules.label_count
            )));
        }
        batch.label_indices.push(label);
        more = after == b',';
        text.at += usize::from(more);
    }
    batch.end_labels();
    Ok(())
}

#[inline(always)]
fn features(text: &mut Cursor, rules: &Rules, batch: &mut Batch) -> Parsed<()> {
    let line = text.at;
    let (first, limit) = (u64::from(rules.options.base == Base::One), rules.limit());
    let (mut ascending, mut lowest_next) = (true, 0);
    loop {
        text.skip_blanks();
        let start = text.at;
        let (feature, value) = match text.short_pair() {
            Some(pair) => pair,
            None => match after_short_pairs(text, rules.options.precision, batch)? {
                Next::Pair(feature, value) => (feature, value),
                Next::Query => continue,
                Next::EndOfRow => break,
            },
        };
        let index = feature.wrapping_sub(first);
        if index >= limit {
            text.at = start;
            return Err(text.fault(out_of_range(feature, rules)));
        }
        ascending &= index >= lowest_next;
        lowest_next = index + 1;
        batch.indices.push(index);
        batch.values.push(value);
    }
    if !batch.queries.is_empty() && batch.queries.len() < batch.offsets.len() {
        text.at = line;
        return Err(text.fault("this row has no qid, but the rows before it have one"));
    }
    batch.end_row(ascending).map_err(|twice| {
        text.at = line;
        text.fault(format!("feature {} is repeated in this row", twice + first))
    })
}

enum Next {
    Pair(u64, f64),
    Query,
    EndOfRow,
}

/// The general case of a row: anything besides pairs of short numbers.
#[inline(always)]
fn after_short_pairs(text: &mut Cursor, precision: Precision, batch: &mut Batch) -> Parsed<Next> {
    match text.peek() {
        b'\n' => {
            text.at += 1;
            Ok(Next::EndOfRow)
        }
        b'#' => {
            text.skip_line();
            Ok(Next::EndOfRow)
        }
        b'q' => query(text, batch).map(|()| Next::Query),
        b'-' => Err(text.fault(format!("a feature is negative: {}", text.token()))),
        b'0'..=b'9' => long_pair(text, precision),
        _ => Err(not_a_pair(text)),
    }
}

fn long_pair(text: &mut Cursor, precision: Precision) -> Parsed<Next> {
    let start = text.at;
    let feature = text.index("the feature")?;
    if text.peek() != b':' {
        text.at = start;
        return Err(not_a_pair(text));
    }
    text.at += 1;
    Ok(Next::Pair(feature, text.value(precision)?))
}

#[cold]
fn not_a_pair(text: &Cursor) -> Fault {
    text.fault(format!("feature:value is expected, found {}", text.token()))
}

#[cold]
fn out_of_range(feature: u64, rules: &Rules) -> String {
    let Options {
        base,
        columns,
        finds_base,
        ..
    } = rules.options;
    let columns = columns.unwrap_or(i64::MAX as u64);
    match base {
        Base::One if feature == 0 => "feature 0 in data whose features begin with 1".into(),
        _ if finds_base => format!("feature {feature} in data with {columns} features"),
        _ => format!(
            "feature {feature} in data with {columns} features, which begin with {}",
            u64::from(base == Base::One)
        ),
    }
}

fn query(text: &mut Cursor, batch: &mut Batch) -> Parsed<()> {
    if !text.bytes[text.at..].starts_with(b"qid:") {
        return Err(not_a_pair(text));
    }
    if batch.queries.len() + 1 != batch.offsets.len() {
        return Err(text.fault("a second qid in this row, or rows without one before it"));
    }
    text.at += "qid:".len();
    batch.queries.push(text.index("the qid")?);
    Ok(())
}
