//! Samples found in a text, in order.

use std::ops::Range;

use outcore_core::Result;
use outcore_core::format::safetensors::{HEADER_MOST, Tensor};
use outcore_engine::Reservation;

use super::kind::{masked, other, word};
use super::text::Text;
use super::{ShardOptions, wrong};
use crate::Form;
use crate::record_format::shown;
use crate::record_format::tar::{Feed, Header, What, key_of, next_header, position};
use crate::record_format::tensors::parse;

/// Length of a record, and its checksum.
const HEAD: u64 = 12;
/// Memory for what a header of tensors tells, by its bytes: names twice, and less than 200 bytes
/// beside for at least 50 of the header.
const TOLD_OF: u64 = 5;

/// A sample in memory.
pub(super) struct Sample {
    pub(super) name: Option<Vec<u8>>,
    /// Of what the text has kept.
    pub(super) bytes: Range<usize>,
    /// Its first byte in the file; and the one from which people would say that it begins.
    pub(super) first: u64,
    pub(super) shown_at: u64,
    /// Where to go on behind it.
    pub(super) behind: u64,
    pub(super) tensor: Option<Tensor>,
}

/// What is known of a sample when the one before it ends.
pub(super) enum Ahead {
    Nothing,
    Header(Header),
    End,
}

/// Where in a text the walk is.
pub(super) enum Walk {
    Tar(Ahead),
    TfRecord,
    Tensors(
        std::vec::IntoIter<Tensor>,
        #[expect(dead_code, reason = "held for the tensors")] Reservation,
    ),
}

impl Walk {
    /// Behind some samples of the file.
    pub(super) fn begin(form: Form, text: &mut Text, passed: u64) -> Result<Walk> {
        Ok(match form {
            Form::Tar => Walk::Tar(Ahead::Nothing),
            Form::TfRecord => Walk::TfRecord,
            Form::Safetensors => {
                let (mut tensors, reserved) = tensors(text)?;
                tensors.drain(..(passed as usize).min(tensors.len()));
                Walk::Tensors(tensors.into_iter(), reserved)
            }
        })
    }

    /// The next sample, where there is one.
    pub(super) fn next(
        &mut self,
        text: &mut Text,
        options: &ShardOptions,
        number: u64,
    ) -> Result<Option<Sample>> {
        match self {
            Walk::Tar(ahead) => members(text, ahead, options),
            Walk::TfRecord => record(text, number),
            Walk::Tensors(tensors, _) => tensors
                .next()
                .map(|tensor| elements(text, tensor))
                .transpose(),
        }
    }
}

/// All members of a key. Those that are not wanted are passed over, but in place, where they are
/// among the bytes of the sample.
fn members(text: &mut Text, ahead: &mut Ahead, options: &ShardOptions) -> Result<Option<Sample>> {
    let mut next = match std::mem::replace(ahead, Ahead::Nothing) {
        Ahead::Nothing => None,
        Ahead::Header(header) => Some(header),
        Ahead::End => return Ok(None),
    };
    text.forget(next.as_ref().map_or(text.len(), |header| header.begin));
    if let Some(header) = &mut next {
        header.begin = 0;
    }
    let is_wanted = |field: &[u8]| match &options.fields {
        None => true,
        Some(names) => position(names.iter().map(String::as_str), field).is_some(),
    };
    let mut sample: Option<Sample> = None;
    loop {
        let header = match next.take() {
            Some(header) => header,
            None => match next_header(text)? {
                Some(header) => header,
                None => {
                    *ahead = Ahead::End;
                    return Ok(sample);
                }
            },
        };
        let Some((key, field)) = key_of(&header.name).filter(|_| header.what != What::Other) else {
            if sample.is_some() && options.in_place {
                text.take(header.bytes, &|| shown(&header.name))?;
            } else {
                pass(text, &header)?;
            }
            continue;
        };
        if sample
            .as_ref()
            .is_some_and(|sample| sample.name.as_deref() != Some(key))
        {
            *ahead = Ahead::Header(header);
            return Ok(sample);
        }
        let sample = sample.get_or_insert_with(|| Sample {
            name: Some(key.to_vec()),
            bytes: header.begin..header.begin,
            first: header.at,
            shown_at: header.at,
            behind: header.at,
            tensor: None,
        });
        if options.in_place || is_wanted(field) {
            sample.bytes.end = text.take(header.bytes, &|| shown(&header.name))?.end;
        } else {
            pass(text, &header)?;
        }
        sample.behind = text.at();
    }
}

fn pass(text: &mut Text, header: &Header) -> Result<()> {
    text.cut(header.begin);
    text.pass_member(header.bytes, &header.name)
}

fn record(text: &mut Text, number: u64) -> Result<Option<Sample>> {
    text.forget(text.len());
    let at = text.at();
    let read = text.keep(HEAD)?;
    let head = text.get(0..text.len());
    if at == 0 && read > 0 {
        let sound = read == HEAD && masked(&head[..8]) == word(&head[8..]);
        // No record is that long: it is no length.
        if !sound
            && (other(head).is_some()
                || !head.contains(&0)
                || (read == HEAD && word(&head[4..]) != 0))
        {
            return Err(text.is_no("TFRecord file", head));
        }
    }
    let which = || format!("record {number}, from byte {at} on");
    match read {
        0 => return Ok(None),
        HEAD => {}
        _ => return Err(text.ends_within(&which(), at + HEAD + 4)),
    }
    if masked(&head[..8]) != word(&head[8..]) {
        return Err(text.damaged(
            at,
            format!("record {number}: its length is not what was written: its checksum differs"),
        ));
    }
    let len = u64::from_le_bytes(head[..8].try_into().expect("eight bytes"));
    let expected = at
        .saturating_add(HEAD)
        .saturating_add(len)
        .saturating_add(4);
    if text.end().is_some_and(|end| end < expected)
        || text.keep(len.saturating_add(4))? < len.saturating_add(4)
    {
        text.skip(u64::MAX)?;
        return Err(text.ends_within(&which(), expected));
    }
    let bytes = HEAD as usize..text.len() - 4;
    if masked(text.get(bytes.clone())) != word(text.get(bytes.end..text.len())) {
        return Err(text.damaged(
            at,
            format!("record {number}: it is not what was written: its checksum differs"),
        ));
    }
    Ok(Some(Sample {
        name: None,
        bytes,
        first: at + HEAD,
        shown_at: at,
        behind: expected,
        tensor: None,
    }))
}

/// The tensors of a file, in order, and memory that is reserved for them.
pub(super) fn tensors(text: &mut Text) -> Result<(Vec<Tensor>, Reservation)> {
    let read = text.keep(8)?;
    let head = text.get(0..text.len()).to_vec();
    if read < 8 {
        return Err(match other(&head) {
            Some(_) => text.is_no("safetensors file", &head),
            None => text.damaged(
                0,
                format!("{read} bytes, where 8 tell the length of its header"),
            ),
        });
    }
    let len = u64::from_le_bytes(head[..8].try_into().expect("eight bytes"));
    let left = text.end().map_or(u64::MAX, |end| end - 8);
    if len > HEADER_MOST {
        let more = text.keep(left.min(64))?;
        let head = text.get(0..8 + more as usize);
        return Err(match len > left || word(&head[4..]) != 0 {
            true => text.is_no("safetensors file", head),
            false => text.damaged(
                0,
                format!("a header of {len} bytes, where {HEADER_MOST} are the most"),
            ),
        });
    }
    let told_bytes = len.min(left) * TOLD_OF;
    let reserved = text
        .session()
        .engine()
        .reserve(&format!("the header of {}", text.name()), told_bytes)?;
    if len > left || text.keep(len)? < len {
        return Err(text.damaged(
            0,
            format!(
                "a header of {len} bytes, of which {} are there",
                left.min(text.len() as u64 - 8)
            ),
        ));
    }
    let found = parse(text.get(8..text.len()), 8 + len)
        .map_err(|fault| wrong(text.name(), String::new(), 8, fault))?;
    if let (Some(last), Some(end)) = (found.last(), text.end())
        && last.end > end
    {
        text.skip(u64::MAX)?;
        return Err(text.ends_within(&shown(last.name.as_bytes()), last.end));
    }
    text.forget(text.len());
    Ok((found, reserved))
}

fn elements(text: &mut Text, tensor: Tensor) -> Result<Sample> {
    text.forget(text.len());
    let before = tensor.first.saturating_sub(text.at());
    let len = tensor.end - tensor.first;
    if text.skip(before)? < before || text.keep(len)? < len {
        return Err(text.ends_within(&shown(tensor.name.as_bytes()), tensor.end));
    }
    Ok(Sample {
        name: Some(tensor.name.clone().into_bytes()),
        bytes: 0..text.len(),
        first: tensor.first,
        shown_at: tensor.first,
        behind: 0,
        tensor: Some(tensor),
    })
}
