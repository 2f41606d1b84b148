//! Samples as others wrote them: from the bytes of one to those of its fields. Pure; the bytes may be anything.
//!
//! ```text
//!   tar           headers of 512 bytes, each with a member behind it, padded to 512: all members of one key. A field is what is behind the
//!                 first dot of a member's name
//!   tfrecord      a tf.train.Example: a map from names to lists of bytes, of float32 or of int64, as protocol buffers have it
//!   safetensors   the elements of a tensor
//! ```

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use super::schema::{Field, Kind, Schema, item_bytes};
use crate::data::format::parse_npy_array;

const BLOCK: usize = 512;

/// What a sample is, and what is in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Form {
    /// Members of a tar archive.
    Tar,
    /// A `tf.train.Example`.
    TfRecord,
    /// A tensor.
    Safetensors,
}

/// Words about what is wrong.
type Found<T> = Result<T, String>;

impl Form {
    /// The bytes of each field of a sample, as a schema has them. What it has no field for is passed over.
    pub(super) fn fields<'a>(self, sample: &'a [u8], schema: &Schema) -> Found<Vec<Cow<'a, [u8]>>> {
        let found = match self {
            Form::Tar => tar(sample, &schema.fields)?,
            Form::TfRecord => example(sample, &schema.fields)?,
            Form::Safetensors => {
                schema.fields.iter().map(|field| shaped(field, Cow::Borrowed(sample)).map(Some)).collect::<Found<_>>()?
            }
        };
        let of = |(field, found): (&Field, Option<Cow<'a, [u8]>>)| found.ok_or_else(|| format!("it has no {:?}", field.name));
        let fields: Vec<Cow<'a, [u8]>> = schema.fields.iter().zip(found).map(of).collect::<Found<_>>()?;
        schema.check(&fields)?;
        Ok(fields)
    }
}

/// Elements as a field has them: before those of a shape that varies, the extents that do. One that does is as long as all need.
fn shaped<'a>(field: &Field, elements: Cow<'a, [u8]>) -> Found<Cow<'a, [u8]>> {
    let Kind::Array { dtype, shape } = &field.kind else { return Ok(elements) };
    let varying = shape.iter().filter(|extent| extent.is_none()).count();
    if varying == 0 {
        return Ok(elements);
    }
    let known = shape.iter().flatten().try_fold(item_bytes(dtype).unwrap_or(0), |bytes, &extent| bytes.checked_mul(extent));
    match known {
        Some(known @ 1..) if varying == 1 && (elements.len() as u64).is_multiple_of(known) => {
            let extent = elements.len() as u64 / known;
            Ok(Cow::Owned([&extent.to_le_bytes(), &elements[..]].concat()))
        }
        _ => Err(format!("{:?} has {} bytes, which do not make its shape", field.name, elements.len())),
    }
}

/// Members by what is behind the first dot of their names.
fn tar<'a>(sample: &'a [u8], fields: &[Field]) -> Found<Vec<Option<Cow<'a, [u8]>>>> {
    let mut found = vec![None; fields.len()];
    let (mut rest, mut long_name, mut long_size) = (sample, None, None);
    while !rest.is_empty() {
        let (header, behind) = rest.split_at_checked(BLOCK).ok_or("it ends within a header")?;
        let size = match long_size.take() {
            Some(size) if matches!(header[156], b'0' | b'7' | 0) => size,
            _ => number(&header[124..136]).ok_or("a member without a size")?,
        };
        let size = usize::try_from(size).map_err(|_| "a member that is too long")?;
        let data = behind.get(..size).ok_or("it ends within a member")?;
        // The last member's padding may be missing.
        rest = behind.get(size.checked_next_multiple_of(BLOCK).unwrap_or(usize::MAX)..).unwrap_or_default();
        match header[156] {
            b'L' => long_name = Some(until_zero(data)),
            b'x' => (long_name, long_size) = extended(data)?,
            b'0' | b'7' | 0 => {
                let name = long_name.take().unwrap_or_else(|| until_zero(&header[..100]));
                let file = name.rsplit(|&byte| byte == b'/').next().unwrap_or_default();
                let Some(dot) = file.iter().position(|&byte| byte == b'.') else { continue };
                if let Some(field) = fields.iter().position(|field| field.name.as_bytes() == &file[dot + 1..]) {
                    found[field] = Some(member(&fields[field], data)?);
                }
            }
            _ => (long_name, long_size) = (None, None),
        }
    }
    Ok(found)
}

fn until_zero(bytes: &[u8]) -> &[u8] {
    bytes.split(|&byte| byte == 0).next().unwrap_or_default()
}

/// A number in a header: octal digits, or where the highest bit is set, bytes.
fn number(text: &[u8]) -> Option<u64> {
    if text[0] & 0x80 != 0 {
        let (high, low) = text.split_at(text.len() - 8);
        let fits = high[0] & 0x7f == 0 && high[1..].iter().all(|&byte| byte == 0);
        return fits.then(|| u64::from_be_bytes(low.try_into().expect("eight bytes")));
    }
    let digits = until_zero(text).trim_ascii();
    digits.iter().try_fold(0u64, |number, &digit| match digit {
        b'0'..=b'7' => number.checked_mul(8)?.checked_add(u64::from(digit - b'0')),
        _ => None,
    })
}

/// Name and size in an extended header: lines of length, key and value.
fn extended(mut data: &[u8]) -> Found<(Option<&[u8]>, Option<u64>)> {
    let (mut name, mut size) = (None, None);
    let wrong = || "an extended header of no lines".to_owned();
    while !data.is_empty() {
        let space = data.iter().position(|&byte| byte == b' ').ok_or_else(wrong)?;
        let len: usize = std::str::from_utf8(&data[..space]).ok().and_then(|len| len.parse().ok()).ok_or_else(wrong)?;
        let line = data.get(space + 1..len.saturating_sub(1)).ok_or_else(wrong)?;
        if let Some(path) = line.strip_prefix(b"path=") {
            name = Some(path);
        }
        if let Some(text) = line.strip_prefix(b"size=") {
            size = Some(std::str::from_utf8(text).ok().and_then(|text| text.parse().ok()).ok_or_else(wrong)?);
        }
        data = data.get(len..).ok_or_else(wrong)?;
    }
    Ok((name, size))
}

/// What a member is as a field: a number in digits, an array of NumPy's, or its bytes.
fn member<'a>(field: &Field, data: &'a [u8]) -> Found<Cow<'a, [u8]>> {
    let Kind::Array { dtype, shape } = &field.kind else { return Ok(Cow::Borrowed(data)) };
    let name = &field.name;
    if name.rsplit('.').next() != Some("npy") {
        let number = std::str::from_utf8(data).ok().and_then(|text| text.trim().parse::<i64>().ok());
        return match number.filter(|_| dtype == "<i8" && shape.is_empty()) {
            Some(number) => Ok(Cow::Owned(number.to_le_bytes().to_vec())),
            None => Err(format!("{name:?} is no whole number")),
        };
    }
    let array = parse_npy_array(name, data).map_err(|error| error.to_string())?;
    let elements = data.get(array.data_offset as usize..).unwrap_or_default();
    if array.descr.replacen('=', "<", 1) != *dtype || (array.by_columns && array.shape.len() > 1) {
        return Err(format!(
            "{name:?} is an array of {:?} by {}",
            array.descr,
            if array.by_columns { "columns" } else { "rows" }
        ));
    }
    let fits = array.shape.len() == shape.len()
        && array.shape.iter().zip(shape).all(|(have, want)| want.is_none_or(|want| want == *have));
    if !fits {
        return Err(format!("{name:?} is an array of shape {:?}", array.shape));
    }
    let extents: Vec<u8> =
        array.shape.iter().zip(shape).filter(|(_, want)| want.is_none()).flat_map(|(have, _)| have.to_le_bytes()).collect();
    Ok(if extents.is_empty() { Cow::Borrowed(elements) } else { Cow::Owned([&extents, elements].concat()) })
}

/// Features by name.
fn example<'a>(record: &'a [u8], fields: &[Field]) -> Found<Vec<Option<Cow<'a, [u8]>>>> {
    let mut found = vec![None; fields.len()];
    for features in Message(record).all_of(1) {
        for entry in Message(features?).all_of(1) {
            let entry = Message(entry?);
            let name = entry.all_of(1).last().transpose()?.unwrap_or_default();
            if let Some(at) = fields.iter().position(|field| field.name.as_bytes() == name) {
                found[at] = entry.all_of(2).last().transpose()?.map(|bytes| feature(&fields[at], bytes)).transpose()?;
            }
        }
    }
    Ok(found)
}

fn feature<'a>(field: &Field, feature: &'a [u8]) -> Found<Cow<'a, [u8]>> {
    let name = &field.name;
    let (kind, value) = Message(feature).last().transpose()?.unwrap_or((2, Value::Bytes(&[])));
    let Value::Bytes(values) = value else { return Err(format!("{name:?} is no list")) };
    let values = Message(values);
    match (&field.kind, kind) {
        (Kind::Bytes | Kind::Text, 1) => {
            let strings: Vec<&[u8]> = values.all_of(1).collect::<Found<_>>()?;
            match strings[..] {
                [one] => Ok(Cow::Borrowed(one)),
                _ => Err(format!("{name:?} is a list of {} byte strings, where one makes a field", strings.len())),
            }
        }
        (Kind::Array { dtype, .. }, 2) if dtype == "<f4" => {
            let runs: Vec<&[u8]> = values.all_of(1).collect::<Found<_>>()?;
            let numbers = if let [one] = runs[..] { Cow::Borrowed(one) } else { Cow::Owned(runs.concat()) };
            shaped(field, numbers)
        }
        (Kind::Array { dtype, .. }, 3) if dtype == "<i8" => {
            let mut numbers = Vec::new();
            for value in values {
                match value? {
                    (1, Value::Number(number)) => numbers.extend(number.to_le_bytes()),
                    (1, Value::Bytes(mut run)) => {
                        while !run.is_empty() {
                            numbers.extend(varint(&mut run)?.to_le_bytes());
                        }
                    }
                    _ => {}
                }
            }
            shaped(field, Cow::Owned(numbers))
        }
        _ => Err(format!(
            "{name:?} is a list of {}",
            ["bytes", "float32", "int64"].get((kind as usize).wrapping_sub(1)).unwrap_or(&"nothing known")
        )),
    }
}

/// A message of protocol buffers: numbers of fields, and their values.
#[derive(Clone, Copy)]
struct Message<'a>(&'a [u8]);

enum Value<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

impl<'a> Message<'a> {
    /// The values of a field, which are bytes.
    fn all_of(self, number: u64) -> impl Iterator<Item = Found<&'a [u8]>> {
        self.filter_map(move |field| match field {
            Ok((found, Value::Bytes(bytes))) if found == number => Some(Ok(bytes)),
            Ok((found, Value::Number(_))) if found == number => Some(Err("a number, where bytes belong".to_owned())),
            Ok(_) => None,
            Err(error) => Some(Err(error)),
        })
    }

    fn field(&mut self) -> Found<(u64, Value<'a>)> {
        let tag = varint(&mut self.0)?;
        let len = match tag & 7 {
            0 => return Ok((tag >> 3, Value::Number(varint(&mut self.0)?))),
            1 => 8,
            2 => varint(&mut self.0)?,
            5 => 4,
            wire => return Err(format!("a field of wire type {wire}")),
        };
        let split = usize::try_from(len).ok().and_then(|len| self.0.split_at_checked(len));
        let (bytes, rest) = split.ok_or_else(|| format!("a field of {len} bytes, where {} are left", self.0.len()))?;
        self.0 = rest;
        Ok((tag >> 3, Value::Bytes(bytes)))
    }
}

impl<'a> Iterator for Message<'a> {
    type Item = Found<(u64, Value<'a>)>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let field = self.field();
        if field.is_err() {
            self.0 = &[];
        }
        Some(field)
    }
}

fn varint(bytes: &mut &[u8]) -> Found<u64> {
    let mut value = 0;
    for shift in (0..70).step_by(7) {
        let (&byte, rest) = bytes.split_first().ok_or("a number without an end")?;
        *bytes = rest;
        value |= u64::from(byte & 0x7f).checked_shl(shift).unwrap_or(0);
        if byte < 0x80 {
            return Ok(value);
        }
    }
    Err("a number of more than 64 bits".into())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn schema(fields: &[(&str, Kind)]) -> Schema {
        Schema::new(fields.iter().map(|(name, kind)| Field { name: (*name).into(), kind: kind.clone() }).collect()).unwrap()
    }

    fn array(dtype: &str, shape: &[Option<u64>]) -> Kind {
        Kind::Array { dtype: dtype.into(), shape: shape.to_vec() }
    }

    fn message(number: u8, bytes: &[u8]) -> Vec<u8> {
        [&[number << 3 | 2, bytes.len() as u8], bytes].concat()
    }

    fn record() -> Vec<u8> {
        let entry = |name: &str, feature: Vec<u8>| message(1, &[message(1, name.as_bytes()), message(2, &feature)].concat());
        let entries = [
            entry("image", message(1, &message(1, b"picture"))),
            entry("box", message(2, &message(1, &[1.0f32, 2.5].map(f32::to_le_bytes).concat()))),
            entry("label", message(3, &[8, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1])),
            entry("ids", message(3, &message(1, &[1, 0x80, 1]))),
            entry("other", message(3, &[8, 1])),
        ];
        message(1, &entries.concat())
    }

    fn header(name: &[u8], size: usize, kind: u8) -> Vec<u8> {
        let mut header = vec![0; BLOCK];
        header[..name.len()].copy_from_slice(name);
        header[124..135].copy_from_slice(format!("{size:011o}").as_bytes());
        header[156] = kind;
        header
    }

    fn members() -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut put = |name: &[u8], kind: u8, data: &[u8]| {
            bytes.extend(header(name, data.len(), kind));
            bytes.extend(data);
            bytes.resize(bytes.len().next_multiple_of(BLOCK), 0);
        };
        put(b"a/key.cls", b'0', b"-12\n");
        put(b"././@LongLink", b'L', b"a/b.c/key.left.png\0");
        put(b"a/b.c/", b'0', b"pixels");
        put(b"ignored", b'x', b"19 path=a/key.json\n");
        put(b"short", b'0', b"{}");
        bytes
    }

    #[test]
    fn a_record_has_its_features() {
        let kinds = [
            ("label", array("<i8", &[])),
            ("image", Kind::Bytes),
            ("box", array("<f4", &[Some(2)])),
            ("ids", array("<i8", &[None])),
        ];
        let record = record();
        let found = Form::TfRecord.fields(&record, &schema(&kinds)).unwrap();
        assert_eq!(found[0][..], (-1i64).to_le_bytes());
        assert_eq!(found[1], &b"picture"[..]);
        assert_eq!(found[2], [1.0f32, 2.5].map(f32::to_le_bytes).concat());
        assert_eq!(found[3], [2u64, 1, 128].map(u64::to_le_bytes).concat());
        let refusal = |name, kind| Form::TfRecord.fields(&record, &schema(&[(name, kind)])).unwrap_err();
        assert_eq!(refusal("mask", Kind::Bytes), "it has no \"mask\"");
        assert_eq!(refusal("ids", Kind::Bytes), "\"ids\" is a list of int64");
        assert_eq!(refusal("box", array("<f4", &[Some(3)])), "field \"box\" has 8 bytes, where every sample has 12");
    }

    #[test]
    fn members_of_a_key_are_its_fields() {
        let kinds = [("left.png", Kind::Bytes), ("cls", array("<i8", &[])), ("json", Kind::Text)];
        let members = members();
        let found = Form::Tar.fields(&members, &schema(&kinds)).unwrap();
        assert_eq!(found, [&b"pixels"[..], &(-12i64).to_le_bytes(), b"{}"]);
        // Without the padding behind the last one.
        assert_eq!(Form::Tar.fields(&members[..members.len() - 510], &schema(&kinds)).unwrap()[2], &b"{}"[..]);
        assert!(Form::Tar.fields(&members[..members.len() - 511], &schema(&kinds)).is_err());
        assert_eq!(Form::Tar.fields(&members, &schema(&[("txt", Kind::Text)])).unwrap_err(), "it has no \"txt\"");
    }

    #[test]
    fn a_tensor_is_its_elements() {
        let bytes = [0; 24];
        assert_eq!(Form::Safetensors.fields(&bytes, &schema(&[("x", array("<f4", &[Some(2), Some(3)]))])).unwrap()[0][..], bytes);
        let varying = Form::Safetensors.fields(&bytes, &schema(&[("x", array("<f4", &[None, Some(3)]))])).unwrap();
        assert_eq!(varying[0], [&2u64.to_le_bytes(), &bytes[..]].concat());
        assert!(Form::Safetensors.fields(&bytes, &schema(&[("x", array("<f4", &[None, Some(5)]))])).is_err());
        assert!(Form::Safetensors.fields(&bytes, &schema(&[("x", array("<f4", &[None, None]))])).is_err());
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_sample_or_refused(edits in proptest::collection::vec((0usize..4096, any::<u8>()), 1..8), cut in 0usize..4096) {
            let kinds = [("image", Kind::Bytes), ("box", array("<f4", &[None])), ("ids", array("<i8", &[None])), ("x.npy", array("<f4", &[None]))];
            for (form, mut bytes) in [(Form::TfRecord, record()), (Form::Tar, members())] {
                for &(at, byte) in &edits {
                    let at = at % bytes.len();
                    bytes[at] = byte;
                }
                bytes.truncate(cut.max(1));
                for kind in &kinds {
                    let _ = form.fields(&bytes, &schema(std::slice::from_ref(kind)));
                }
            }
        }
    }
}
