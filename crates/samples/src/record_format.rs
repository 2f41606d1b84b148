//! Samples as others wrote them: from the bytes of one to those of its fields. Pure; the bytes may
//! be anything.
//!
//! ```text
//!   tar           headers of 512 bytes, each with a member behind it, padded to 512: all members of one key (form/tar.rs). A field is
//!                 what is behind the first dot of a member's name, in lower case
//!   tfrecord      a tf.train.Example, a map from names to lists of bytes, of float32 or of int64, or a tf.train.SequenceExample, which
//!                 has lists of such lists besides, as protocol buffers have them (form/example.rs)
//!   safetensors   the elements of a tensor (form/tensors.rs has the header that tells of them)
//! ```
//!
//! A field is parsed as what it is told to be, whatever its name suggests; what is not told is
//! passed over. Where nothing is told, [`guess`](Form::guess) says what the fields of a sample are.

pub(super) mod example;
pub(super) mod numbers;
pub(super) mod tar;
pub(super) mod tensors;
#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::fmt;

use serde::{Deserialize, Serialize};

use self::numbers::shape_name;
use super::schema::{Field, Kind, Schema, item_bytes, numpy_name};

/// What a sample is, and what is in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Form {
    /// Members of a tar archive.
    Tar,
    /// A `tf.train.Example`, or a `tf.train.SequenceExample`.
    TfRecord,
    /// A tensor.
    Safetensors,
}

/// Why bytes are not the fields of a sample.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// They do not follow their format, from this byte of them on.
    Damaged { at: u64, why: String },
    /// They do, but are not what the fields say.
    Unfit(String),
    /// They do, in a way that is not read.
    Unsupported(String),
}

impl Fault {
    pub(super) fn damaged(at: u64, why: impl Into<String>) -> Fault {
        Fault::Damaged {
            at,
            why: why.into(),
        }
    }

    /// The same of bytes that begin so far on, as words about whose they are.
    fn within(self, start: u64, whose: impl fmt::Display) -> Fault {
        match self {
            Fault::Damaged { at, why } => Fault::Damaged {
                at: start.saturating_add(at),
                why: format!("{whose} {why}"),
            },
            Fault::Unfit(why) => Fault::Unfit(format!("{whose} {why}")),
            Fault::Unsupported(why) => Fault::Unsupported(format!("{whose} {why}")),
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::Damaged { why, .. } | Fault::Unfit(why) | Fault::Unsupported(why) => {
                out.write_str(why)
            }
        }
    }
}

type Found<T> = Result<T, Fault>;

impl Form {
    /// The form that a user calls so.
    #[must_use]
    pub fn called(name: &str) -> Option<Form> {
        Some(match name {
            "tar" => Form::Tar,
            "tfrecord" => Form::TfRecord,
            "safetensors" => Form::Safetensors,
            _ => return None,
        })
    }

    /// What users call it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Form::Tar => "tar",
            Form::TfRecord => "tfrecord",
            Form::Safetensors => "safetensors",
        }
    }

    /// The bytes of each field of a sample, as a schema has them. What it has no field for is
    /// passed over.
    pub(super) fn fields<'a>(self, sample: &'a [u8], schema: &Schema) -> Found<Vec<Cow<'a, [u8]>>> {
        let found = match self {
            Form::Tar => tar::fields(sample, &schema.fields)?,
            Form::TfRecord => example::fields(sample, &schema.fields).map_err(no_example)?,
            Form::Safetensors => schema
                .fields
                .iter()
                .map(|field| shaped(field, Cow::Borrowed(sample)).map(Some))
                .collect::<Found<_>>()?,
        };
        let of = |(field, found): (&Field, Option<Cow<'a, [u8]>>)| {
            found.ok_or_else(|| {
                Fault::Unfit(format!(
                    "it has no {}{}",
                    quoted(&field.name),
                    self.hint_of_missing()
                ))
            })
        };
        let fields: Vec<Cow<'a, [u8]>> = schema
            .fields
            .iter()
            .zip(found)
            .map(of)
            .collect::<Found<_>>()?;
        schema.check(&fields).map_err(Fault::Unfit)?;
        Ok(fields)
    }

    fn hint_of_missing(self) -> &'static str {
        match self {
            Form::Tar => "; the members of a key must lie together, and every key has the same",
            Form::TfRecord | Form::Safetensors => "",
        }
    }

    /// What the fields of a sample are, if nothing else is told; no fields for a sample that has
    /// none. Tensors are told of by headers.
    pub(super) fn guess(self, sample: &[u8]) -> Found<Vec<Field>> {
        match self {
            Form::Tar => tar::guess(sample),
            Form::TfRecord => example::guess(sample).map_err(no_example),
            Form::Safetensors => Ok(Vec::new()),
        }
    }

    /// Something that a sample has besides the fields.
    pub(super) fn beyond(self, sample: &[u8], fields: &[Field]) -> Found<Option<String>> {
        match self {
            Form::Tar => tar::beyond(sample, fields),
            Form::TfRecord => example::beyond(sample, fields).map_err(no_example),
            Form::Safetensors => Ok(None),
        }
    }
}

/// Says what damaged bytes should be.
fn no_example(fault: Fault) -> Fault {
    match fault {
        // Where in it is not told: a record has its own checksum, so it is the record as a whole
        // that is no example.
        Fault::Damaged { why, .. } => {
            Fault::damaged(0, format!("it is no tf.train.Example: {why}"))
        }
        other => other,
    }
}

/// Elements as a field has them, of which nothing is known but their number: before those of a
/// shape that varies, the extents that do. One that does is as long as all need.
fn shaped<'a>(field: &Field, elements: Cow<'a, [u8]>) -> Found<Cow<'a, [u8]>> {
    let Kind::Array { dtype, shape } = &field.kind else {
        return Ok(elements);
    };
    let varying = shape.iter().filter(|extent| extent.is_none()).count();
    let known = shape
        .iter()
        .flatten()
        .try_fold(item_bytes(dtype).unwrap_or(0), |bytes, &extent| {
            bytes.checked_mul(extent)
        });
    let len = elements.len() as u64;
    match known {
        Some(known) if varying == 0 && known == len => Ok(elements),
        Some(known @ 1..) if varying == 1 && len.is_multiple_of(known) => {
            let extent = len / known;
            Ok(Cow::Owned([&extent.to_le_bytes(), &elements[..]].concat()))
        }
        _ => Err(unfit_shape(
            field,
            &[len / item_bytes(dtype).unwrap_or(1).max(1)],
        )),
    }
}

/// The same of elements whose shape is known.
fn with_extents<'a>(field: &Field, have: &[u64], elements: Cow<'a, [u8]>) -> Found<Cow<'a, [u8]>> {
    let Kind::Array { shape: want, .. } = &field.kind else {
        return Ok(elements);
    };
    let fits = want.len() == have.len()
        && want
            .iter()
            .zip(have)
            .all(|(want, have)| want.is_none_or(|want| want == *have));
    if !fits {
        return Err(unfit_shape(field, have));
    }
    let extents: Vec<u8> = want
        .iter()
        .zip(have)
        .filter(|(want, _)| want.is_none())
        .flat_map(|(_, have)| have.to_le_bytes())
        .collect();
    Ok(if extents.is_empty() {
        elements
    } else {
        Cow::Owned([&extents, &elements[..]].concat())
    })
}

/// Numbers of a type as a field has them.
fn cast_to<'a>(field: &Field, from: &str, numbers: Cow<'a, [u8]>) -> Found<Cow<'a, [u8]>> {
    match &field.kind {
        Kind::Array { dtype, .. } => numbers::cast(from, dtype, numbers),
        _ => Ok(numbers),
    }
}

/// Says which shape a field has, and what would let it vary.
fn unfit_shape(field: &Field, have: &[u64]) -> Fault {
    let Kind::Array { dtype, shape } = &field.kind else {
        return Fault::Unfit("has a shape".into());
    };
    let have: Vec<Option<u64>> = have.iter().copied().map(Some).collect();
    let any = vec![None; have.len().max(1)];
    Fault::Unfit(format!(
        "has shape {}, where every sample has {}; fields={{{}: ('{}', {}), ...}} lets it vary",
        shape_name(&have),
        shape_name(shape),
        quoted(&field.name),
        numpy_name(dtype),
        shape_name(&any),
    ))
}

/// Longer names are cut at their front, where those of a shard are alike.
const SHOWN: usize = 80;

/// A name as errors have it, in a line that fits a screen.
pub(super) fn shown(name: &[u8]) -> String {
    let text = String::from_utf8_lossy(name);
    let skipped = text.chars().count().saturating_sub(SHOWN);
    let end: String = text.chars().skip(skipped).collect();
    match skipped {
        0 => quoted(&end),
        _ => quoted(&format!("...{end}")),
    }
}

/// As Python writes it.
fn quoted(text: &str) -> String {
    format!("'{}'", text.escape_debug())
}
