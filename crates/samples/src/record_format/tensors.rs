//! The header of a safetensors file, and what its tensors are as fields. Pure.
//!
//! ```text
//!   length u64 | header, JSON: {name: {"dtype": "F32", "shape": [2, 3], "data_offsets": [begin, end]}, ...} | elements
//! ```
//!
//! Source: the safetensors README, "Format".

use std::borrow::Cow;
use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, Visitor};

use super::{Fault, Found, cast_to, shown, with_extents};
use crate::schema::{Field, Kind, item_bytes};

/// Of a header at most, as its authors have it.
pub(crate) const HEADER_MOST: u64 = 100_000_000;
/// The only field.
pub(crate) const FIELD: &str = "tensor";

/// A tensor, and which bytes of its file it is.
#[derive(Clone, Debug)]
pub(crate) struct Tensor {
    pub(crate) name: String,
    pub(crate) dtype: String,
    pub(crate) shape: Vec<u64>,
    pub(crate) first: u64,
    pub(crate) end: u64,
}

/// NumPy's type for one of safetensors'.
fn numpy(dtype: &str) -> Option<&'static str> {
    Some(match dtype {
        "BOOL" => "|b1",
        "U8" => "|u1",
        "I8" => "|i1",
        "U16" => "<u2",
        "I16" => "<i2",
        "U32" => "<u4",
        "I32" => "<i4",
        "U64" => "<u8",
        "I64" => "<i8",
        "F16" => "<f2",
        "F32" => "<f4",
        "F64" => "<f8",
        "C64" => "<c8",
        _ => return None,
    })
}

#[derive(Deserialize)]
struct Told {
    dtype: String,
    shape: Vec<u64>,
    data_offsets: (u64, u64),
}

struct Header(Vec<(String, Told)>);

impl<'de> Deserialize<'de> for Header {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Header, D::Error> {
        struct Entries;
        impl<'de> Visitor<'de> for Entries {
            type Value = Header;

            fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
                out.write_str("tensors by their names")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Header, A::Error> {
                let mut found = Vec::new();
                while let Some(name) = map.next_key::<String>()? {
                    match name == "__metadata__" {
                        true => drop(map.next_value::<IgnoredAny>()?),
                        false => found.push((name, map.next_value()?)),
                    }
                }
                Ok(Header(found))
            }
        }
        deserializer.deserialize_map(Entries)
    }
}

/// The tensors of a header, in the order of their bytes, which begin at some byte of the file.
pub(crate) fn parse(header: &[u8], start: u64) -> Found<Vec<Tensor>> {
    let Header(told) = serde_json::from_slice(header).map_err(|error| {
        // What is behind the place is in the message too.
        Fault::damaged(
            8,
            format!(
                "its header: {}",
                error.to_string().chars().take(200).collect::<String>()
            ),
        )
    })?;
    let tensor = |(
        name,
        Told {
            dtype,
            shape,
            data_offsets: (begin, end),
        },
    ): (String, Told)| {
        let bytes = numpy(&dtype).and_then(item_bytes).map(|width| {
            shape
                .iter()
                .try_fold(width, |bytes, &extent| bytes.checked_mul(extent))
        });
        let fits = begin <= end
            && start.checked_add(end).is_some()
            && bytes.is_none_or(|bytes| bytes == Some(end - begin));
        match fits {
            true => Ok(Tensor {
                name,
                dtype,
                shape,
                first: start + begin,
                end: start + end,
            }),
            false => Err(Fault::damaged(
                8,
                format!(
                    "its header: {} is said to be bytes {begin} to {end}, as {dtype} of {shape:?}",
                    shown(name.as_bytes())
                ),
            )),
        }
    };
    let mut tensors = told
        .into_iter()
        .map(tensor)
        .collect::<Found<Vec<Tensor>>>()?;
    tensors.sort_by_key(|tensor| (tensor.first, tensor.end));
    if let Some(pair) = tensors.windows(2).find(|pair| pair[0].end > pair[1].first) {
        let (one, other) = (
            shown(pair[0].name.as_bytes()),
            shown(pair[1].name.as_bytes()),
        );
        return Err(Fault::damaged(
            8,
            format!("its header: {one} and {other} have bytes in common"),
        ));
    }
    Ok(tensors)
}

const AS_BYTES: &str = "fields={'tensor': 'bytes'} takes them as they are";

/// A tensor as the field; in place, a number has to lie there as it is.
pub(crate) fn value<'a>(
    tensor: &Tensor,
    field: &Field,
    bytes: &'a [u8],
    in_place: bool,
) -> Found<Cow<'a, [u8]>> {
    if field.name != FIELD {
        return Err(Fault::Unfit(format!(
            "it has no {:?}: the only field of tensors is 'tensor'",
            field.name
        )));
    }
    let Kind::Array { dtype, shape } = &field.kind else {
        return Ok(Cow::Borrowed(bytes));
    };
    let from = numpy(&tensor.dtype).ok_or_else(|| {
        Fault::Unsupported(format!(
            "it has dtype {}, which NumPy does not have; {AS_BYTES}",
            tensor.dtype
        ))
    })?;
    if in_place && from != dtype {
        return Err(Fault::Unfit(format!(
            "it has dtype {}, where every sample has {}; pack converts it",
            tensor.dtype, field.kind
        )));
    }
    if in_place && shape.iter().filter(|extent| extent.is_none()).count() > 1 {
        return Err(Fault::Unfit(format!(
            "in place it has more than one extent that varies; pack it, or {AS_BYTES}"
        )));
    }
    let value = cast_to(field, from, Cow::Borrowed(bytes))
        .and_then(|numbers| with_extents(field, &tensor.shape, numbers));
    value.map_err(|fault| fault.within(0, "it"))
}

/// What all tensors have in common, seen one after the other.
#[derive(Default)]
pub(crate) struct Common {
    /// Name and dtype of the first, and its shape, of which what others have otherwise varies.
    first: Option<(String, String, Vec<Option<u64>>)>,
}

impl Common {
    pub(crate) fn add(&mut self, tensor: &Tensor) -> Found<()> {
        let Tensor {
            name, dtype, shape, ..
        } = tensor;
        let Some((first, known, extents)) = &mut self.first else {
            self.first = Some((
                name.clone(),
                dtype.clone(),
                shape.iter().copied().map(Some).collect(),
            ));
            return Ok(());
        };
        if known != dtype || extents.len() != shape.len() {
            return Err(Fault::Unfit(format!(
                "tensors of one dtype and as many axes are samples with a field: {} is {known} of {} axes, {} is {dtype} of {} axes; \
                 {AS_BYTES}",
                shown(first.as_bytes()),
                extents.len(),
                shown(name.as_bytes()),
                shape.len(),
            )));
        }
        extents
            .iter_mut()
            .zip(shape)
            .filter(|(known, have)| **known != Some(**have))
            .for_each(|(known, _)| *known = None);
        Ok(())
    }

    /// The field that they are, if there are any.
    pub(crate) fn field(self, in_place: bool) -> Found<Option<Field>> {
        let Some((name, dtype, shape)) = self.first else {
            return Ok(None);
        };
        let known = numpy(&dtype).ok_or_else(|| {
            Fault::Unfit(format!(
                "{} has dtype {dtype}, which NumPy does not have; {AS_BYTES}",
                shown(name.as_bytes())
            ))
        })?;
        if in_place && shape.iter().filter(|extent| extent.is_none()).count() > 1 {
            return Err(Fault::Unfit(format!(
                "more than one axis of the tensors varies; pack them, or {AS_BYTES}"
            )));
        }
        Ok(Some(Field {
            name: FIELD.into(),
            kind: Kind::Array {
                dtype: known.into(),
                shape,
            },
        }))
    }
}
