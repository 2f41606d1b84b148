//! The header of a safetensors file. Pure.
//!
//! ```text
//!   length u64 | header, JSON: {name: {"dtype": "F32", "shape": [2, 3], "data_offsets": [begin, end]}, ...} | elements
//! ```
//!
//! Source: the safetensors README, "Format".
//!
//! ```
//! use outcore_core::DType;
//! use outcore_core::format::safetensors::{dtype, header, name_of, parse};
//!
//! let head = header(&[("weight", DType::BF16, &[3, 4])])?;
//! let tensors = parse(&head[8..], head.len() as u64)?;
//! assert_eq!((tensors[0].name.as_str(), tensors[0].end - tensors[0].first), ("weight", 24));
//! assert_eq!((dtype(&tensors[0].dtype), name_of(DType::BF16)), (Some(DType::BF16), Some("BF16")));
//! # Ok::<(), String>(())
//! ```

use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, Visitor};

use super::DType;

/// Bytes of a header at most, as its authors have it.
pub const HEADER_MOST: u64 = 100_000_000;

/// A tensor, and which bytes of its file it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tensor {
    /// Its name.
    pub name: String,
    /// The type of its elements, as the file names it.
    pub dtype: String,
    /// Its extents.
    pub shape: Vec<u64>,
    /// Its first byte.
    pub first: u64,
    /// The byte behind its last.
    pub end: u64,
}

/// The type that a file names so; `None` for one that is not known.
#[must_use]
pub fn dtype(name: &str) -> Option<DType> {
    Some(match name {
        "BOOL" => DType::Bool,
        "U8" => DType::U8,
        "I8" => DType::I8,
        "U16" => DType::U16,
        "I16" => DType::I16,
        "U32" => DType::U32,
        "I32" => DType::I32,
        "U64" => DType::U64,
        "I64" => DType::I64,
        "F16" => DType::F16,
        "BF16" => DType::BF16,
        "F32" => DType::F32,
        "F64" => DType::F64,
        "C64" => DType::C64,
        "F8_E4M3" => DType::F8E4M3FN,
        "F8_E5M2" => DType::F8E5M2,
        "F8_E8M0" => DType::F8E8M0FNU,
        _ => return None,
    })
}

/// What files call a type; `None` for one that they cannot have.
#[must_use]
pub fn name_of(wanted: DType) -> Option<&'static str> {
    const NAMES: [&str; 17] = [
        "BOOL", "U8", "I8", "U16", "I16", "U32", "I32", "U64", "I64", "F16", "BF16", "F32", "F64",
        "C64", "F8_E4M3", "F8_E5M2", "F8_E8M0",
    ];
    NAMES.into_iter().find(|name| dtype(name) == Some(wanted))
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

/// The tensors of a header, in the order of their bytes, which begin at byte `start` of the file.
///
/// # Errors
/// The reason, for what is no such header, and for tensors whose bytes do not fit their shape or are
/// those of another one.
pub fn parse(header: &[u8], start: u64) -> Result<Vec<Tensor>, String> {
    let Header(told) = serde_json::from_slice(header)
        // What is behind the place is in the message too.
        .map_err(|error| error.to_string().chars().take(200).collect::<String>())?;
    let mut tensors = told
        .into_iter()
        .map(|(name, told)| tensor(name, told, start))
        .collect::<Result<Vec<Tensor>, String>>()?;
    tensors.sort_by_key(|tensor| (tensor.first, tensor.end));
    match tensors.windows(2).find(|pair| pair[0].end > pair[1].first) {
        Some(pair) => Err(format!(
            "{} and {} have bytes in common",
            shown(&pair[0].name),
            shown(&pair[1].name)
        )),
        None => Ok(tensors),
    }
}

fn tensor(name: String, told: Told, start: u64) -> Result<Tensor, String> {
    let Told {
        dtype: type_name,
        shape,
        data_offsets: (begin, end),
    } = told;
    let bytes = dtype(&type_name).map(|dtype| {
        shape
            .iter()
            .try_fold(dtype.bytes(), |bytes, &extent| bytes.checked_mul(extent))
    });
    let fits = begin <= end
        && start.checked_add(end).is_some()
        && bytes.is_none_or(|bytes| bytes == Some(end - begin));
    match fits {
        true => Ok(Tensor {
            name,
            dtype: type_name,
            shape,
            first: start + begin,
            end: start + end,
        }),
        false => Err(format!(
            "{} is said to be bytes {begin} to {end}, as {} of {:?}",
            shown(&name),
            shown(&type_name),
            &shape[..shape.len().min(8)]
        )),
    }
}

/// The end of a name, as Python writes it: a damaged header may have one of any length.
pub(super) fn shown(name: &str) -> String {
    const SHOWN: usize = 64;
    let skipped = name.chars().count().saturating_sub(SHOWN);
    let end: String = name.chars().skip(skipped).collect();
    let dots = if skipped > 0 { "..." } else { "" };
    format!("'{dots}{}'", end.escape_debug())
}

/// The bytes of a file before its elements, for tensors that follow each other without gaps.
///
/// # Errors
/// The reason, for a type that such files cannot have.
pub fn header(tensors: &[(&str, DType, &[u64])]) -> Result<Vec<u8>, String> {
    let mut entries = serde_json::Map::new();
    let mut at = 0u64;
    for (name, dtype, shape) in tensors {
        let type_name =
            name_of(*dtype).ok_or_else(|| format!("safetensors files have no {dtype}"))?;
        let bytes = shape.iter().product::<u64>() * dtype.bytes();
        entries.insert(
            (*name).to_owned(),
            serde_json::json!({"dtype": type_name, "shape": shape, "data_offsets": [at, at + bytes]}),
        );
        at += bytes;
    }
    let mut json = serde_json::to_vec(&entries).expect("numbers and names have no way to fail");
    // Elements begin at a multiple of 8, as the format's own writer has them.
    json.resize(json.len().next_multiple_of(8), b' ');
    let mut head = (json.len() as u64).to_le_bytes().to_vec();
    head.extend(json);
    Ok(head)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_header_says_is_what_was_written() {
        let head = header(&[("a", DType::F32, &[2, 3]), ("b", DType::BF16, &[5])]).unwrap();
        let start = head.len() as u64;
        assert_eq!(start % 8, 0);
        let found = parse(&head[8..], start).unwrap();
        let short: Vec<_> = found
            .iter()
            .map(|found| (found.name.as_str(), found.first - start, found.end - start))
            .collect();
        assert_eq!(short, [("a", 0, 24), ("b", 24, 34)]);
        assert_eq!(dtype(&found[1].dtype), Some(DType::BF16));
        assert!(header(&[("a", DType::C128, &[1])]).is_err());
    }

    #[test]
    fn damaged_headers_are_refused() {
        for bad in [
            r#"{"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 7]}}"#,
            r#"{"a": {"dtype": "F32", "shape": [2], "data_offsets": [8, 0]}}"#,
            r#"{"a": {"dtype": "U8", "shape": [2], "data_offsets": [0, 2]}, "b": {"dtype": "U8", "shape": [2], "data_offsets": [1, 3]}}"#,
            r#"{"a": {"dtype": "F32", "shape": [18446744073709551615, 4], "data_offsets": [0, 8]}}"#,
            "[]",
            "{",
        ] {
            assert!(parse(bad.as_bytes(), 100).is_err(), "{bad}");
        }
        assert!(
            parse(b"{\"__metadata__\": {\"format\": \"pt\"}}", 8)
                .unwrap()
                .is_empty()
        );
    }
}
