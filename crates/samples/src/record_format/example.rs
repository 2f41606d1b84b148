//! Records of TFRecord: `tf.train.Example` and `tf.train.SequenceExample`, as protocol buffers have
//! them. Pure.
//!
//! ```text
//!   Example           1: features
//!   SequenceExample   1: context, which are features   2: feature lists
//!   features          1: entries of a name, 1, and a feature, 2
//!   feature lists     1: entries of a name, 1, and steps, 2, each a feature, 1
//!   feature           1: byte strings   2: float32   3: int64; each a list, 1, of any length
//! ```
//!
//! Source: `tensorflow/core/example/{example,feature}.proto`. A feature is a field: one byte
//! string, one number, or numbers, whose shape the field tells (of more axes than one if only one
//! extent varies). A feature list of numbers, with as many in every step, is an array over steps:
//! of shape (steps,) where a step is one number, else (steps, numbers of a step), of which the
//! second may be told as several axes. Byte strings that are not exactly one, and steps of
//! different lengths, are refused where they are wanted.

use std::borrow::Cow;

use super::{Fault, Found, cast_to, quoted, shaped, unfit_shape, with_extents};
use crate::schema::{Field, Kind};

/// What a name stands for in a record.
#[derive(Clone, Copy)]
enum Entry<'a> {
    Feature(&'a [u8]),
    Steps(&'a [u8]),
}

/// A list of a feature.
enum List<'a> {
    Nothing,
    Strings(Vec<&'a [u8]>),
    Floats(Cow<'a, [u8]>),
    Integers(Vec<u8>),
}

/// The features of a record by name, where it has those of the fields.
pub(super) fn fields<'a>(record: &'a [u8], fields: &[Field]) -> Found<Vec<Option<Cow<'a, [u8]>>>> {
    let mut found = vec![None; fields.len()];
    each(record, |name, entry| {
        if let Some(at) = fields
            .iter()
            .position(|field| field.name.as_bytes() == name)
        {
            if found[at].is_some_and(|known| {
                std::mem::discriminant(&known) != std::mem::discriminant(&entry)
            }) {
                return Err(Fault::Unsupported(format!(
                    "{} is a feature, and a feature list too",
                    quoted(&fields[at].name)
                )));
            }
            // Of a map the last one counts.
            found[at] = Some(entry);
        }
        Ok(())
    })?;
    let value = |(field, entry): (&Field, Option<Entry<'a>>)| {
        let value = entry.map(|entry| match entry {
            Entry::Feature(feature) => feature_value(field, feature),
            Entry::Steps(steps) => steps_value(field, steps),
        });
        value
            .transpose()
            .map_err(|fault| fault.within(0, quoted(&field.name)))
    };
    fields.iter().zip(found).map(value).collect()
}

/// What the features of a record are, by their names in order.
pub(super) fn guess(record: &[u8]) -> Found<Vec<Field>> {
    let mut entries: Vec<(String, Entry<'_>)> = Vec::new();
    each(record, |name, entry| {
        let name = std::str::from_utf8(name)
            .map_err(|_| Fault::damaged(0, "a feature whose name is no text"))?;
        match entries.iter_mut().find(|(other, _)| other == name) {
            Some((_, known)) => *known = entry,
            None => entries.push((name.to_owned(), entry)),
        }
        Ok(())
    })?;
    entries.sort_by(|(one, _), (other, _)| one.cmp(other));
    let field = |(name, entry): (String, Entry<'_>)| {
        let kind = match entry {
            Entry::Feature(feature) => kind_of_feature(feature),
            Entry::Steps(steps) => kind_of_steps(steps),
        };
        let kind = kind.map_err(|fault| fault.within(0, quoted(&name)))?;
        Ok(Field { name, kind })
    };
    entries.into_iter().map(field).collect()
}

/// The first feature of a record that is not among the fields.
pub(super) fn beyond(record: &[u8], fields: &[Field]) -> Found<Option<String>> {
    let mut found = None;
    each(record, |name, _| {
        if found.is_none() && !fields.iter().any(|field| field.name.as_bytes() == name) {
            found = Some(String::from_utf8_lossy(name).into_owned());
        }
        Ok(())
    })?;
    Ok(found)
}

/// Does something with every feature and every feature list of a record.
fn each<'a>(record: &'a [u8], mut act: impl FnMut(&'a [u8], Entry<'a>) -> Found<()>) -> Found<()> {
    for part in Message(record) {
        let (number, value) = part?;
        if !matches!(number, 1 | 2) {
            continue;
        }
        for entry in Message(value.bytes()?).all_of(1) {
            let (mut name, mut bytes) = (None, &[][..]);
            for part in Message(entry?) {
                match part? {
                    (1, value) => name = Some(value.bytes()?),
                    (2, value) => bytes = value.bytes()?,
                    _ => {}
                }
            }
            let name = name.ok_or_else(|| Fault::damaged(0, "a feature without a name"))?;
            act(
                name,
                if number == 1 {
                    Entry::Feature(bytes)
                } else {
                    Entry::Steps(bytes)
                },
            )?;
        }
    }
    Ok(())
}

const NO_VALUE: &str = "has no value in the first record; fields= tells what it is";

fn array(dtype: &str, shape: &[Option<u64>]) -> Kind {
    Kind::Array {
        dtype: dtype.into(),
        shape: shape.to_vec(),
    }
}

fn kind_of_feature(feature: &[u8]) -> Found<Kind> {
    let list = List::of(feature)?;
    let shape = |count: u64| {
        if count == 1 {
            Vec::new()
        } else {
            vec![Some(count)]
        }
    };
    match &list {
        List::Nothing => Err(Fault::Unfit(NO_VALUE.into())),
        List::Strings(strings) => one_string(strings).map(|_| Kind::Bytes),
        List::Floats(_) => Ok(array("<f4", &shape(list.count()))),
        List::Integers(_) => Ok(array("<i8", &shape(list.count()))),
    }
}

fn kind_of_steps(steps: &[u8]) -> Found<Kind> {
    let Steps { list, each, .. } = Steps::of(steps)?;
    let dtype = match list {
        List::Floats(_) => "<f4",
        List::Integers(_) => "<i8",
        List::Nothing | List::Strings(_) => return Err(Fault::Unfit(NO_VALUE.into())),
    };
    Ok(if each == 1 {
        array(dtype, &[None])
    } else {
        array(dtype, &[None, Some(each)])
    })
}

fn feature_value<'a>(field: &Field, feature: &'a [u8]) -> Found<Cow<'a, [u8]>> {
    let list = List::of(feature)?;
    let count = list.count();
    let Kind::Array { shape, .. } = &field.kind else {
        return match list {
            List::Strings(strings) => Ok(Cow::Borrowed(one_string(&strings)?)),
            other => Err(other.is_not(field)),
        };
    };
    let numbers = list.numbers(field)?;
    match shape.len() {
        0 if count == 1 => Ok(numbers),
        0 | 1 => with_extents(field, &[count], numbers),
        _ => shaped(field, numbers),
    }
}

fn steps_value<'a>(field: &Field, steps: &'a [u8]) -> Found<Cow<'a, [u8]>> {
    let Steps { list, steps, each } = Steps::of(steps)?;
    let Kind::Array { shape, .. } = &field.kind else {
        return Err(list.is_not(field));
    };
    let numbers = list.numbers(field)?;
    let have = [steps, each];
    match &shape[..] {
        [] => Err(unfit_shape(field, &have[..if each == 1 { 1 } else { 2 }])),
        [_] if each == 1 || steps == 0 => with_extents(field, &[steps], numbers),
        [_] => Err(unfit_shape(field, &have)),
        [first, rest @ ..] => {
            let known = rest
                .iter()
                .flatten()
                .try_fold(1u64, |product, &extent| product.checked_mul(extent));
            let varying = rest.iter().filter(|extent| extent.is_none()).count();
            let extent = match (varying, known) {
                (0, Some(known)) if known == each || steps == 0 => Some(0),
                (1, Some(known @ 1..)) if each.is_multiple_of(known) => Some(each / known),
                _ => None,
            };
            let extent = extent
                .filter(|_| first.is_none_or(|first| first == steps))
                .ok_or_else(|| unfit_shape(field, &have))?;
            let whole: Vec<u64> = [steps]
                .into_iter()
                .chain(rest.iter().map(|known| known.unwrap_or(extent)))
                .collect();
            with_extents(field, &whole, numbers)
        }
    }
}

fn one_string<'a>(strings: &[&'a [u8]]) -> Found<&'a [u8]> {
    match strings {
        [one] => Ok(one),
        _ => Err(Fault::Unsupported(format!(
            "is a list of {} byte strings, where one makes a field; fields= that leave it out pass it over",
            strings.len()
        ))),
    }
}

/// The lists of all steps, one behind the other; as many numbers in each.
struct Steps<'a> {
    list: List<'a>,
    steps: u64,
    each: u64,
}

impl<'a> Steps<'a> {
    fn of(entry: &'a [u8]) -> Found<Steps<'a>> {
        let mut all = Steps {
            list: List::Nothing,
            steps: 0,
            each: 0,
        };
        for step in Message(entry).all_of(1) {
            let list = List::of(step?)?;
            let count = list.count();
            if all.steps > 0 && count != all.each {
                let (each, steps) = (all.each, all.steps);
                return Err(Fault::Unsupported(format!(
                    "is a feature list whose step 0 has {each} numbers and step {steps} {count}; fields= that leave it out pass it over"
                )));
            }
            (all.each, all.steps) = (count, all.steps + 1);
            all.list = match (all.list, list) {
                (_, List::Strings(_)) => {
                    let why = "is a feature list of byte strings, which no field is; fields= that leave it out pass it over";
                    return Err(Fault::Unsupported(why.into()));
                }
                (List::Nothing, list) | (list, List::Nothing) => list,
                (List::Floats(mut all), List::Floats(more)) => {
                    all.to_mut().extend_from_slice(&more);
                    List::Floats(all)
                }
                (List::Integers(mut all), List::Integers(more)) => {
                    all.extend(more);
                    List::Integers(all)
                }
                _ => {
                    return Err(Fault::Unsupported(
                        "is a feature list of float32 and of int64".into(),
                    ));
                }
            };
        }
        Ok(all)
    }
}

impl<'a> List<'a> {
    fn of(feature: &'a [u8]) -> Found<List<'a>> {
        let mut list = List::Nothing;
        for part in Message(feature) {
            let (number, value) = part?;
            let values = match number {
                1..=3 => Message(value.bytes()?),
                _ => continue,
            };
            list = match number {
                1 => List::Strings(values.all_of(1).collect::<Found<_>>()?),
                2 => List::Floats(floats(values)?),
                _ => List::Integers(integers(values)?),
            };
        }
        Ok(list)
    }

    fn count(&self) -> u64 {
        match self {
            List::Nothing => 0,
            List::Strings(strings) => strings.len() as u64,
            List::Floats(bytes) => bytes.len() as u64 / 4,
            List::Integers(bytes) => bytes.len() as u64 / 8,
        }
    }

    /// As the type of a field.
    fn numbers(self, field: &Field) -> Found<Cow<'a, [u8]>> {
        match self {
            List::Nothing => Ok(Cow::Borrowed(&[])),
            List::Floats(numbers) => cast_to(field, "<f4", numbers),
            List::Integers(numbers) => cast_to(field, "<i8", Cow::Owned(numbers)),
            strings @ List::Strings(_) => Err(strings.is_not(field)),
        }
    }

    fn is_not(&self, field: &Field) -> Fault {
        let what = match self {
            List::Nothing => "nothing",
            List::Strings(_) => "byte strings",
            List::Floats(_) => "float32",
            List::Integers(_) => "int64",
        };
        Fault::Unfit(format!(
            "is a list of {what}, where every sample has {}",
            field.kind
        ))
    }
}

fn floats(values: Message<'_>) -> Found<Cow<'_, [u8]>> {
    let mut numbers = Cow::Borrowed(&[][..]);
    for part in values {
        let run = match part? {
            (1, Value::Bytes(run)) if run.len().is_multiple_of(4) => run,
            (1, Value::Fixed(one)) if one.len() == 4 => one,
            (1, _) => {
                return Err(Fault::damaged(
                    0,
                    "is a list of float32 with something else in it",
                ));
            }
            _ => continue,
        };
        match numbers.is_empty() {
            true => numbers = Cow::Borrowed(run),
            false => numbers.to_mut().extend_from_slice(run),
        }
    }
    Ok(numbers)
}

fn integers(values: Message<'_>) -> Found<Vec<u8>> {
    let mut numbers = Vec::new();
    for part in values {
        match part? {
            (1, Value::Number(number)) => numbers.extend(number.to_le_bytes()),
            (1, Value::Bytes(mut run)) => {
                while !run.is_empty() {
                    numbers.extend(varint(&mut run)?.to_le_bytes());
                }
            }
            (1, Value::Fixed(_)) => {
                return Err(Fault::damaged(
                    0,
                    "is a list of int64 with something else in it",
                ));
            }
            _ => {}
        }
    }
    Ok(numbers)
}

/// A message of protocol buffers: numbers of fields, and their values.
#[derive(Clone, Copy)]
struct Message<'a>(&'a [u8]);

enum Value<'a> {
    Number(u64),
    /// Of 4 bytes or 8.
    Fixed(&'a [u8]),
    Bytes(&'a [u8]),
}

impl<'a> Value<'a> {
    fn bytes(self) -> Found<&'a [u8]> {
        match self {
            Value::Bytes(bytes) => Ok(bytes),
            _ => Err(Fault::damaged(0, "a number, where bytes belong")),
        }
    }
}

impl<'a> Message<'a> {
    /// The values of a field, which are bytes.
    fn all_of(self, number: u64) -> impl Iterator<Item = Found<&'a [u8]>> {
        self.filter_map(move |field| match field {
            Ok((found, value)) => (found == number).then(|| value.bytes()),
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
            wire => return Err(Fault::damaged(0, format!("a field of wire type {wire}"))),
        };
        let split = usize::try_from(len)
            .ok()
            .and_then(|len| self.0.split_at_checked(len));
        let (bytes, rest) = split.ok_or_else(|| {
            Fault::damaged(
                0,
                format!("a field of {len} bytes, where {} are left", self.0.len()),
            )
        })?;
        self.0 = rest;
        Ok((
            tag >> 3,
            if tag & 7 == 2 {
                Value::Bytes(bytes)
            } else {
                Value::Fixed(bytes)
            },
        ))
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
        let (&byte, rest) = bytes
            .split_first()
            .ok_or_else(|| Fault::damaged(0, "a number without an end"))?;
        *bytes = rest;
        value |= u64::from(byte & 0x7f).checked_shl(shift).unwrap_or(0);
        if byte < 0x80 {
            return Ok(value);
        }
    }
    Err(Fault::damaged(0, "a number of more than 64 bits"))
}
