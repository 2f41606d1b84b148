//! What a sample is made of: fields, and how their bytes make the sample's. Pure.
//!
//! ```text
//!   sample   length u64 of each field that varies, but the last of them | fields of one length | fields that vary
//!   array    of a shape that varies: each extent that does, u64 | elements, the last index fastest
//! ```
//!
//! Numbers are little-endian. A sample of one field is that field's bytes and nothing else.

use std::fmt;
use std::ops::Range;

use serde::{Deserialize, Serialize};

/// NumPy has 64; one counts samples.
const AXES_MOST: usize = 63;

/// A field of every sample of a dataset.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Field {
    /// Its name.
    pub name: String,
    /// What its bytes are.
    #[serde(flatten)]
    pub kind: Kind,
}

/// What the bytes of a field are.
///
/// ```
/// use outcore_samples::Kind;
///
/// let image = Kind::Array { dtype: "|u1".into(), shape: vec![Some(8), Some(8)] };
/// assert_eq!((image.varies(), image.bytes()), (false, Some(64)));
/// assert_eq!((Kind::Text.varies(), Kind::Text.bytes()), (true, None));
/// println!("{image}");
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum Kind {
    /// Bytes of any number.
    Bytes,
    /// Text in UTF-8.
    Text,
    /// Numbers.
    Array {
        /// Their type as NumPy writes it, such as `<f4`, little-endian.
        dtype: String,
        /// Extents; those that are none vary from sample to sample.
        shape: Vec<Option<u64>>,
    },
}

impl Kind {
    /// Whether it has another length in other samples.
    #[must_use]
    pub fn varies(&self) -> bool {
        !matches!(self, Kind::Array { shape, .. } if shape.iter().all(Option::is_some))
    }

    /// Bytes of such a field, where that is the same for every sample.
    #[must_use]
    pub fn bytes(&self) -> Option<u64> {
        let Kind::Array { dtype, shape } = self else {
            return None;
        };
        shape.iter().try_fold(item_bytes(dtype)?, |bytes, &extent| {
            bytes.checked_mul(extent?)
        })
    }
}

/// As users tell it.
impl fmt::Display for Kind {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Kind::Bytes => out.write_str("bytes"),
            Kind::Text => out.write_str("text"),
            Kind::Array { dtype, .. } => out.write_str(&numpy_name(dtype)),
        }
    }
}

/// NumPy's long name of a type.
pub(super) fn numpy_name(dtype: &str) -> String {
    let (kind, bytes) = (
        dtype.get(1..2).unwrap_or_default(),
        item_bytes(dtype).unwrap_or(0),
    );
    match kind {
        "b" => "bool".into(),
        "u" => format!("uint{}", 8 * bytes),
        "i" => format!("int{}", 8 * bytes),
        "f" => format!("float{}", 8 * bytes),
        "c" => format!("complex{}", 8 * bytes),
        _ => dtype.into(),
    }
}

/// Bytes of one number; `None` for a type that no field has.
///
/// ```
/// use outcore_samples::item_bytes;
///
/// assert_eq!((item_bytes("<f4"), item_bytes("<U8")), (Some(4), None));
/// ```
#[must_use]
pub fn item_bytes(dtype: &str) -> Option<u64> {
    let bytes = dtype.get(2..)?.parse().ok()?;
    let known = match dtype.get(..2)? {
        "|b" => bytes == 1,
        "|i" | "|u" => bytes == 1,
        "<i" | "<u" => [2, 4, 8].contains(&bytes),
        "<f" => [2, 4, 8].contains(&bytes),
        "<c" => [8, 16].contains(&bytes),
        _ => false,
    };
    known.then_some(bytes)
}

/// Where the fields of a sample are.
#[derive(Clone, Debug)]
pub(crate) struct Schema {
    pub(crate) fields: Vec<Field>,
    /// By field: where it is, if it has the same length in every sample.
    fixed: Vec<Option<Range<usize>>>,
    /// Fields that vary.
    varying: usize,
    /// Bytes before the fields that vary.
    head: usize,
}

impl Schema {
    /// # Errors
    /// Words about a field that cannot be.
    pub(crate) fn new(fields: Vec<Field>) -> Result<Schema, String> {
        for (number, field) in fields.iter().enumerate() {
            if fields[..number]
                .iter()
                .any(|other| other.name == field.name)
            {
                return Err(format!("two fields are called {:?}", field.name));
            }
            if let Kind::Array { dtype, shape } = &field.kind {
                if item_bytes(dtype).is_none() {
                    return Err(format!(
                        "field {:?}: {dtype:?} is no type of numbers of a field",
                        field.name
                    ));
                }
                if shape.len() > AXES_MOST {
                    return Err(format!(
                        "field {:?} has {} axes, where {AXES_MOST} are the most",
                        field.name,
                        shape.len()
                    ));
                }
            }
        }
        let varying = fields.iter().filter(|field| field.kind.varies()).count();
        let mut head = 8 * varying.saturating_sub(1);
        let mut fixed = Vec::with_capacity(fields.len());
        for field in &fields {
            if field.kind.varies() {
                fixed.push(None);
                continue;
            }
            let end = field
                .kind
                .bytes()
                .and_then(|bytes| head.checked_add(usize::try_from(bytes).ok()?));
            let end = end.ok_or_else(|| format!("field {:?} is too long", field.name))?;
            fixed.push(Some(head..end));
            head = end;
        }
        Ok(Schema {
            fields,
            fixed,
            varying,
            head,
        })
    }

    /// The pieces of a sample, in order, given the bytes of its fields.
    ///
    /// # Errors
    /// Words about a field that does not have its length.
    pub(crate) fn pieces<'a>(
        &self,
        fields: &[&'a [u8]],
        lengths: &'a mut Vec<u8>,
    ) -> Result<Vec<&'a [u8]>, String> {
        self.check(fields)?;
        let of = |varies: bool| {
            fields
                .iter()
                .zip(&self.fixed)
                .filter(move |(_, fixed)| fixed.is_none() == varies)
                .map(|(bytes, _)| *bytes)
        };
        lengths.clear();
        lengths.extend(
            of(true)
                .take(self.varying.saturating_sub(1))
                .flat_map(|bytes| (bytes.len() as u64).to_le_bytes()),
        );
        Ok([&lengths[..]]
            .into_iter()
            .chain(of(false))
            .chain(of(true))
            .filter(|piece| !piece.is_empty())
            .collect())
    }

    /// Whether bytes make the fields of a sample.
    ///
    /// # Errors
    /// Words about a field that does not have its length, or is none.
    pub(crate) fn check(&self, fields: &[impl AsRef<[u8]>]) -> Result<(), String> {
        if fields.len() != self.fields.len() {
            return Err(format!(
                "{} fields, where a sample has {}",
                fields.len(),
                self.fields.len()
            ));
        }
        for ((bytes, field), fixed) in fields
            .iter()
            .map(AsRef::as_ref)
            .zip(&self.fields)
            .zip(&self.fixed)
        {
            match fixed {
                Some(place) if place.len() != bytes.len() => {
                    let (name, have, want) = (&field.name, bytes.len(), place.len());
                    return Err(format!(
                        "field {name:?} has {have} bytes, where every sample has {want}"
                    ));
                }
                None => check_varying(field, bytes)?,
                Some(_) => {}
            }
        }
        Ok(())
    }

    /// By field: where it is in every sample, if it has the same length in all.
    pub(crate) fn places(&self) -> &[Option<Range<usize>>] {
        &self.fixed
    }

    /// Fields that vary.
    pub(crate) fn varying(&self) -> usize {
        self.varying
    }

    /// Bytes before the fields that vary.
    pub(crate) fn head(&self) -> usize {
        self.head
    }

    /// Where each field of a sample is. `places` are empty, or another sample's: where all samples
    /// have the same, they stay.
    ///
    /// # Errors
    /// Words about a sample that is none.
    #[inline]
    pub(crate) fn split(
        &self,
        sample: &[u8],
        places: &mut Vec<Range<usize>>,
    ) -> Result<(), String> {
        if self.varying == 0 && sample.len() == self.head && places.len() == self.fixed.len() {
            return Ok(());
        }
        self.split_anew(sample, places)
    }

    fn split_anew(&self, sample: &[u8], places: &mut Vec<Range<usize>>) -> Result<(), String> {
        places.clear();
        if sample.len() < self.head || (self.varying == 0 && sample.len() > self.head) {
            return Err(format!(
                "a sample of {} bytes, whose fields take {}",
                sample.len(),
                self.head
            ));
        }
        let (mut at, mut number) = (self.head, 0);
        for fixed in &self.fixed {
            if let Some(place) = fixed {
                places.push(place.clone());
                continue;
            }
            let end = match number + 1 < self.varying {
                true => {
                    let length = u64::from_le_bytes(
                        sample[8 * number..8 * number + 8]
                            .try_into()
                            .expect("eight bytes"),
                    );
                    usize::try_from(length)
                        .ok()
                        .and_then(|length| at.checked_add(length))
                        .filter(|&end| end <= sample.len())
                }
                false => Some(sample.len()),
            };
            let end = end.ok_or_else(|| {
                format!(
                    "a field of a sample of {} bytes ends behind it",
                    sample.len()
                )
            })?;
            check_varying(&self.fields[places.len()], &sample[at..end])?;
            places.push(at..end);
            (at, number) = (end, number + 1);
        }
        Ok(())
    }
}

/// Refuses bytes that do not make such a field.
fn check_varying(field: &Field, bytes: &[u8]) -> Result<(), String> {
    match &field.kind {
        Kind::Bytes => Ok(()),
        Kind::Text => std::str::from_utf8(bytes)
            .map(drop)
            .map_err(|error| format!("field {:?}: {error}", field.name)),
        Kind::Array { dtype, shape } => match elements(dtype, shape, bytes) {
            Some(_) => Ok(()),
            None => Err(format!(
                "field {:?}: {} bytes do not make its shape",
                field.name,
                bytes.len()
            )),
        },
    }
}

/// Shape and elements of an array whose shape varies; `None` for bytes that are none.
///
/// ```
/// use outcore_samples::elements;
///
/// let bytes = [&2u64.to_le_bytes()[..], &[1, 2, 3, 4, 5, 6]].concat();
/// let (shape, elements) = elements("|u1", &[None, Some(3)], &bytes).expect("two rows of three");
/// assert_eq!((shape, elements), (vec![2, 3], &[1, 2, 3, 4, 5, 6][..]));
/// ```
#[must_use]
pub fn elements<'a>(
    dtype: &str,
    shape: &[Option<u64>],
    bytes: &'a [u8],
) -> Option<(Vec<u64>, &'a [u8])> {
    let varying = shape.iter().filter(|extent| extent.is_none()).count();
    let (extents, data) = bytes.split_at_checked(8 * varying)?;
    let mut extents = extents
        .chunks_exact(8)
        .map(|extent| u64::from_le_bytes(extent.try_into().expect("eight bytes")));
    let found: Vec<u64> = shape
        .iter()
        .map(|extent| extent.or_else(|| extents.next()))
        .collect::<Option<_>>()?;
    let count = found
        .iter()
        .try_fold(1u64, |count, &extent| count.checked_mul(extent))?;
    (count.checked_mul(item_bytes(dtype)?)? == data.len() as u64).then_some((found, data))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn field(name: &str, kind: Kind) -> Field {
        Field {
            name: name.into(),
            kind,
        }
    }

    fn array(dtype: &str, shape: &[Option<u64>]) -> Kind {
        Kind::Array {
            dtype: dtype.into(),
            shape: shape.to_vec(),
        }
    }

    #[test]
    fn fields_come_back() {
        let schema = Schema::new(vec![
            field("image", Kind::Bytes),
            field("label", array("<i8", &[])),
            field("caption", Kind::Text),
            field("boxes", array("<f4", &[None, Some(4)])),
            field("mask", array("|b1", &[Some(2), Some(3)])),
        ])
        .unwrap();
        let boxes: Vec<u8> = 2u64.to_le_bytes().into_iter().chain([7; 32]).collect();
        let fields: [&[u8]; 5] = [b"", &[1; 8], "größe".as_bytes(), &boxes, &[1; 6]];
        let (mut lengths, mut places) = (Vec::new(), Vec::new());
        let sample = schema.pieces(&fields, &mut lengths).unwrap().concat();
        schema.split(&sample, &mut places).unwrap();
        assert!(
            places
                .iter()
                .zip(fields)
                .all(|(place, field)| &sample[place.clone()] == field)
        );
        for len in 0..sample.len() {
            if schema.split(&sample[..len], &mut places).is_ok() {
                assert!(len + boxes.len() >= sample.len());
            }
        }
        let refusal = |fields: [&[u8]; 5]| schema.pieces(&fields, &mut Vec::new()).unwrap_err();
        assert_eq!(
            refusal([b"", &[1; 7], b"", &boxes, &[1; 6]]),
            "field \"label\" has 7 bytes, where every sample has 8"
        );
        assert_eq!(
            refusal([b"", &[1; 8], b"", &boxes[..9], &[1; 6]]),
            "field \"boxes\": 9 bytes do not make its shape"
        );
        assert!(refusal([b"", &[1; 8], b"\xff", &boxes, &[1; 6]]).contains("utf-8"));
    }

    #[test]
    fn one_field_is_the_sample() {
        let schema = Schema::new(vec![field("x", Kind::Bytes)]).unwrap();
        assert_eq!(
            schema.pieces(&[b"abc"], &mut Vec::new()).unwrap().concat(),
            b"abc"
        );
        let schema = Schema::new(vec![field("x", array("<f4", &[Some(1024)]))]).unwrap();
        assert_eq!(schema.head, 4096);
        assert!(Schema::new(vec![field("x", Kind::Bytes), field("x", Kind::Text)]).is_err());
        assert!(Schema::new(vec![field("x", array("O", &[]))]).is_err());
        assert!(Schema::new(vec![field("x", array("<f4", &[Some(u64::MAX), Some(8)]))]).is_err());
    }
}
