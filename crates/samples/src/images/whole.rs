//! Whether files of pictures are whole, by how they are built: decoders stop where they have their
//! pixels, and pass over what is missing behind them.

use crc_fast::{CrcAlgorithm, checksum};

use super::Wrong;

type Checked<T> = Result<T, Wrong>;

fn damaged<T>(what: impl Into<String>) -> Checked<T> {
    Err(Wrong::Damaged(what.into()))
}

fn cut_off<T>() -> Checked<T> {
    damaged("it is cut off")
}

/// Chunks of a PNG, each with its checksum, up to the last one. Returns its Exif block, which may
/// be anywhere.
pub(super) fn png(bytes: &[u8]) -> Checked<Option<&[u8]>> {
    let (mut rest, mut exif) = (bytes.get(8..).unwrap_or_default(), None);
    loop {
        let Some((length, behind)) = rest.split_first_chunk() else {
            return cut_off();
        };
        let length = u32::from_be_bytes(*length) as usize;
        let Some((chunk, behind)) = length
            .checked_add(4)
            .and_then(|length| behind.split_at_checked(length))
        else {
            return cut_off();
        };
        let Some((sum, behind)) = behind.split_first_chunk() else {
            return cut_off();
        };
        let (kind, data) = chunk.split_at(4);
        if checksum(CrcAlgorithm::Crc32IsoHdlc, chunk) != u64::from(u32::from_be_bytes(*sum)) {
            return damaged(format!(
                "the checksum of its chunk \"{}\" differs",
                kind.escape_ascii()
            ));
        }
        match kind {
            b"IEND" => return Ok(exif),
            b"eXIf" => exif = exif.or(Some(data)),
            _ => {}
        }
        rest = behind;
    }
}

/// Blocks of a GIF, up to its end mark.
pub(super) fn gif(bytes: &[u8]) -> Checked<()> {
    let colours = |flags: u8| {
        if flags & 0x80 == 0 {
            0
        } else {
            3 << (usize::from(flags & 7) + 1)
        }
    };
    let Some(&flags) = bytes.get(10) else {
        return cut_off();
    };
    let Some(mut rest) = bytes.get(13 + colours(flags)..) else {
        return cut_off();
    };
    loop {
        let blocks = match rest {
            [0x3B, ..] => return Ok(()),
            [0x21, _, blocks @ ..] => Some(blocks),
            [0x2C, picture @ ..] => picture
                .get(8)
                .and_then(|&flags| picture.get(10 + colours(flags)..)),
            [] => return cut_off(),
            [other, ..] => return damaged(format!("a block of kind {other:#04x} is none")),
        };
        let Some(mut blocks) = blocks else {
            return cut_off();
        };
        loop {
            match blocks.split_first() {
                None => return cut_off(),
                Some((0, behind)) => {
                    rest = behind;
                    break;
                }
                Some((&length, behind)) => match behind.get(usize::from(length)..) {
                    Some(behind) => blocks = behind,
                    None => return cut_off(),
                },
            }
        }
    }
}

/// Chunks of a WebP, which take as many bytes as it says.
pub(super) fn webp(bytes: &[u8]) -> Checked<()> {
    let length = |bytes: &[u8]| {
        bytes
            .first_chunk()
            .map(|length| u32::from_le_bytes(*length) as usize)
    };
    let Some(mut rest) = length(&bytes[4..])
        .and_then(|length| bytes[8..].get(..length))
        .and_then(|rest| rest.get(4..))
    else {
        return cut_off();
    };
    while !rest.is_empty() {
        let Some(length) = rest.get(4..).and_then(length) else {
            return cut_off();
        };
        let Some(behind) = rest[8..].get(length..) else {
            return cut_off();
        };
        rest = behind.get(length % 2..).unwrap_or_default();
    }
    Ok(())
}
