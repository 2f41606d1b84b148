//! Numbers of others as a field has them: text, arrays of NumPy's, and numbers of other types.
//! Pure.
//!
//! Types follow NumPy's rule of the same kind: whole numbers become whole or real ones, real ones
//! real or complex ones. Whole numbers that the field's type does not have are refused, where NumPy
//! would wrap them around.

use std::borrow::Cow;

use half::f16;
use outcore_core::FormatError;
use outcore_core::format::{is_npy, parse_npy_array};

use super::{Fault, Found, quoted, shown, with_extents};
use crate::schema::{Field, Kind, item_bytes, numpy_name};

/// A member of an archive as a field: its bytes, a number in digits, or an array of NumPy's.
pub(super) fn member<'a>(field: &Field, data: &'a [u8]) -> Found<Cow<'a, [u8]>> {
    let Kind::Array { dtype, shape } = &field.kind else {
        if field.kind == Kind::Text {
            let hint = |error| {
                Fault::Unfit(format!(
                    "is no text: {error}; fields={{{}: 'bytes', ...}} takes it as it is",
                    quoted(&field.name)
                ))
            };
            std::str::from_utf8(data).map_err(hint)?;
        }
        return Ok(Cow::Borrowed(data));
    };
    if is_npy(data) || field.name.rsplit('.').next() == Some("npy") {
        let array = Array::parse(data)?;
        let numbers = cast(&array.dtype, dtype, array.elements)?;
        return with_extents(field, &array.shape, numbers);
    }
    let text = std::str::from_utf8(data).ok().map(str::trim);
    let number = text
        .filter(|_| shape.is_empty())
        .and_then(|text| match &dtype[1..2] {
            "f" | "c" => text.parse().ok().map(Number::Real),
            _ => text.parse().ok().map(Number::Whole),
        });
    let number = number.ok_or_else(|| {
        let what = if shape.is_empty() {
            format!("number of {}", numpy_name(dtype))
        } else {
            "array of NumPy".into()
        };
        let hint = format!(
            "fields={{{}: 'text', ...}} takes it as text",
            quoted(&field.name)
        );
        Fault::Unfit(format!(
            "is no {what}: {}; {hint}",
            shown(&data[..data.len().min(40)])
        ))
    })?;
    let mut bytes = Vec::with_capacity(16);
    number.write(dtype, &mut bytes)?;
    Ok(Cow::Owned(bytes))
}

/// What a field is that has this array of NumPy's in a sample.
pub(super) fn kind_of_npy(data: &[u8]) -> Found<Kind> {
    let array = Array::parse(data)?;
    Ok(Kind::Array {
        dtype: array.dtype,
        shape: array.shape.into_iter().map(Some).collect(),
    })
}

/// An array of NumPy's, little-endian and by rows.
struct Array<'a> {
    dtype: String,
    shape: Vec<u64>,
    elements: Cow<'a, [u8]>,
}

impl Array<'_> {
    fn parse(data: &[u8]) -> Found<Array<'_>> {
        let array = parse_npy_array("npy", data).map_err(|error| match error {
            FormatError::Corrupt { offset, reason, .. } => {
                Fault::damaged(offset, format!("is no .npy file: {reason}"))
            }
            FormatError::Unsupported { reason, .. } => {
                Fault::Unsupported(format!("is an array that is not read: {reason}"))
            }
            FormatError::Truncated {
                expected, actual, ..
            } => Fault::damaged(
                actual,
                format!("ends within its header of {expected} bytes"),
            ),
        })?;
        let (dtype, is_swapped) = dtype_of(&array.descr).ok_or_else(|| {
            Fault::Unsupported(format!(
                "is an array of {}, which no field is",
                shown(array.descr.as_bytes())
            ))
        })?;
        let item = item_bytes(&dtype).unwrap_or(1);
        let count = array
            .shape
            .iter()
            .try_fold(item, |bytes, &extent| bytes.checked_mul(extent));
        let elements = data.get(array.data_offset as usize..).unwrap_or_default();
        if count != Some(elements.len() as u64) {
            let why = format!(
                "has {} bytes, which do not make its shape {:?} of {}",
                elements.len(),
                array.shape,
                numpy_name(&dtype)
            );
            return Err(Fault::damaged(array.data_offset, why));
        }
        let mut elements = match array.by_columns && array.shape.len() > 1 {
            true => Cow::Owned(by_rows(elements, &array.shape, item as usize)),
            false => Cow::Borrowed(elements),
        };
        if is_swapped {
            let each = if &dtype[1..2] == "c" { item / 2 } else { item };
            elements
                .to_mut()
                .chunks_exact_mut(each as usize)
                .for_each(<[u8]>::reverse);
        }
        Ok(Array {
            dtype,
            shape: array.shape,
            elements,
        })
    }
}

/// The little-endian type of a field for one of NumPy's, and whether its bytes lie the other way
/// round.
fn dtype_of(descr: &str) -> Option<(String, bool)> {
    let (order, rest) = descr.split_at_checked(1)?;
    let is_single = rest.get(1..) == Some("1");
    let dtype = format!("{}{rest}", if is_single { "|" } else { "<" });
    item_bytes(&dtype)?;
    matches!(order, "<" | ">" | "=" | "|").then_some((dtype, order == ">" && !is_single))
}

/// Elements that lie by columns.
fn by_rows(elements: &[u8], shape: &[u64], item: usize) -> Vec<u8> {
    let shape: Vec<usize> = shape.iter().map(|&extent| extent as usize).collect();
    let strides: Vec<usize> = shape
        .iter()
        .scan(item, |stride, &extent| {
            Some(std::mem::replace(stride, *stride * extent))
        })
        .collect();
    let (mut index, mut at, mut rows) =
        (vec![0; shape.len()], 0, Vec::with_capacity(elements.len()));
    while rows.len() < elements.len() {
        rows.extend_from_slice(&elements[at..at + item]);
        for axis in (0..shape.len()).rev() {
            (index[axis], at) = (index[axis] + 1, at + strides[axis]);
            if index[axis] < shape[axis] {
                break;
            }
            at -= strides[axis] * shape[axis];
            index[axis] = 0;
        }
    }
    rows
}

/// A shape as Python writes it.
pub(super) fn shape_name(shape: &[Option<u64>]) -> String {
    let extents: Vec<String> = shape
        .iter()
        .map(|extent| extent.map_or("None".into(), |extent| extent.to_string()))
        .collect();
    match &extents[..] {
        [one] => format!("({one},)"),
        all => format!("({})", all.join(", ")),
    }
}

/// A number of any type.
#[derive(Clone, Copy)]
enum Number {
    Whole(i128),
    Real(f64),
    Complex(f64, f64),
}

/// Little-endian numbers of a type as those of another.
pub(super) fn cast<'a>(from: &str, to: &str, numbers: Cow<'a, [u8]>) -> Found<Cow<'a, [u8]>> {
    if from == to {
        return Ok(numbers);
    }
    let rank = |dtype: &str| "b u i f c".find(&dtype[1..2]);
    let both_whole = |dtype: &str| matches!(&dtype[1..2], "u" | "i");
    let fits = rank(from) <= rank(to) || (both_whole(from) && both_whole(to));
    if !fits {
        return Err(Fault::Unfit(format!(
            "has dtype {}, where every sample has {}",
            numpy_name(from),
            numpy_name(to)
        )));
    }
    let item = item_bytes(from).unwrap_or(1) as usize;
    let count = numbers.len() / item;
    let mut found = Vec::with_capacity(count * item_bytes(to).unwrap_or(1) as usize);
    numbers
        .chunks_exact(item)
        .try_for_each(|bytes| Number::read(from, bytes).write(to, &mut found))?;
    Ok(Cow::Owned(found))
}

impl Number {
    fn read(dtype: &str, bytes: &[u8]) -> Number {
        let mut wide = [0; 16];
        wide[..bytes.len()].copy_from_slice(bytes);
        let real = |bytes: &[u8]| match *bytes {
            [a, b] => f16::from_le_bytes([a, b]).to_f64(),
            [a, b, c, d] => f64::from(f32::from_le_bytes([a, b, c, d])),
            _ => f64::from_le_bytes(bytes.try_into().unwrap_or_default()),
        };
        match &dtype[1..2] {
            "f" => Number::Real(real(bytes)),
            "c" => {
                let (one, other) = bytes.split_at(bytes.len() / 2);
                Number::Complex(real(one), real(other))
            }
            "i" => {
                let unused = 128 - 8 * bytes.len() as u32;
                Number::Whole(i128::from_le_bytes(wide) << unused >> unused)
            }
            _ => Number::Whole(i128::from_le_bytes(wide)),
        }
    }

    fn write(self, dtype: &str, into: &mut Vec<u8>) -> Found<()> {
        let bytes = item_bytes(dtype).unwrap_or(1) as usize;
        let (real, imaginary) = match self {
            Number::Whole(number) => (number as f64, 0.0),
            Number::Real(number) => (number, 0.0),
            Number::Complex(real, imaginary) => (real, imaginary),
        };
        let mut put = |number: f64, bytes: usize| match bytes {
            2 => into.extend(f16::from_f64(number).to_le_bytes()),
            4 => into.extend((number as f32).to_le_bytes()),
            _ => into.extend(number.to_le_bytes()),
        };
        match (&dtype[1..2], self) {
            ("f", _) => put(real, bytes),
            ("c", _) => {
                put(real, bytes / 2);
                put(imaginary, bytes / 2);
            }
            (kind, Number::Whole(number)) => {
                let bits = 8 * bytes as u32;
                let (least, most) = match kind {
                    "i" => (-(1i128 << (bits - 1)), (1i128 << (bits - 1)) - 1),
                    "b" => (0, 1),
                    _ => (0, (1i128 << bits) - 1),
                };
                if !(least..=most).contains(&number) {
                    return Err(Fault::Unfit(format!(
                        "has {number}, which is out of the range of {}",
                        numpy_name(dtype)
                    )));
                }
                into.extend(&number.to_le_bytes()[..bytes]);
            }
            _ => {
                return Err(Fault::Unfit(format!(
                    "is no number of {}",
                    numpy_name(dtype)
                )));
            }
        }
        Ok(())
    }
}
