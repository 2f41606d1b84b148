//! What a file is, by its first bytes.

use std::path::Path;

use outcore_core::Result;
use outcore_core::file::read_start;
use outcore_formats::{Compression, Source};
use outcore_store::checksum;

use crate::Form;
use crate::record_format::tar;

/// Bytes of a file that tell what it is.
pub(super) const HEAD: usize = tar::BLOCK as usize;
/// Of a compressed file: more than any decompressor takes before it has something to show, but
/// bzip2 and xz for large blocks.
const PACKED_HEAD: u64 = 256 << 10;

impl Form {
    /// What the first bytes of a file, decompressed where they are compressed, say for certain.
    ///
    /// ```
    /// # let folder = tempfile::tempdir().unwrap();
    /// use outcore_samples::Form;
    ///
    /// let path = folder.path().join("notes.txt");
    /// std::fs::write(&path, "no shard").unwrap();
    /// assert_eq!(Form::of_file(&path)?, None);
    /// # Ok::<(), outcore_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// Those of opening and reading it.
    pub fn of_file(path: &Path) -> Result<Option<Form>> {
        let head = read_start(path, PACKED_HEAD)?;
        if let Some(form) = Form::of_head(&head) {
            return Ok(Some(form));
        }
        if packed(&head).is_none() {
            return Ok(None);
        }
        // What cannot be told from so little is told when it is read.
        Ok(unpacked(&head).ok().and_then(|first| Form::of_head(&first)))
    }

    pub(super) fn of_head(head: &[u8]) -> Option<Form> {
        [Form::Tar, Form::TfRecord, Form::Safetensors]
            .into_iter()
            .find(|form| form.is_sure(head))
    }

    /// Whether bytes can hardly be the start of something else.
    pub(super) fn is_sure(self, head: &[u8]) -> bool {
        match self {
            Form::Tar => head
                .get(..HEAD)
                .is_some_and(|block| tar::is_header(block) && block.iter().any(|&byte| byte != 0)),
            Form::TfRecord => head
                .get(..12)
                .is_some_and(|head| masked(&head[..8]) == word(&head[8..])),
            Form::Safetensors => {
                head.len() > 8 && head[4..8] == [0; 4] && head[8] == b'{' && head[..4] != [0; 4]
            }
        }
    }
}

/// The first bytes of what is compressed; none where it is not read.
fn unpacked(head: &[u8]) -> outcore_formats::Result<Vec<u8>> {
    let mut source = Source::open("", head)?;
    if source.compression() == Compression::Plain {
        return Ok(Vec::new());
    }
    let mut first = vec![0; HEAD];
    let len = source.read_full(&mut first)?;
    first.truncate(len);
    Ok(first)
}

/// The checksum of TFRecord: CRC-32C, rotated, and a constant more.
pub(super) fn masked(bytes: &[u8]) -> u32 {
    checksum(bytes).rotate_right(15).wrapping_add(0xa282_ead8)
}

pub(super) fn word(bytes: &[u8]) -> u32 {
    u32::from_le_bytes(bytes[..4].try_into().expect("four bytes"))
}

/// How a file is compressed, by the bytes that such a file begins with.
pub(super) fn packed(head: &[u8]) -> Option<&'static str> {
    match *head {
        [0x1f, 0x8b, 8, ..] => Some("gzip"),
        [0x28, 0xb5, 0x2f, 0xfd, ..] | [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..] => Some("zstd"),
        [b'B', b'Z', b'h', b'1'..=b'9', ..] => Some("bzip2"),
        [0xfd, b'7', b'z', b'X', b'Z', 0, ..] => Some("xz"),
        _ => None,
    }
}

/// What a file is that is not what it should be, where that is known.
pub(super) fn other(head: &[u8]) -> Option<&'static str> {
    let text = head.trim_ascii_start();
    let begins = |word: &str| {
        text.get(..word.len())
            .is_some_and(|start| start.eq_ignore_ascii_case(word.as_bytes()))
    };
    let known: [(&[u8], &str); 10] = [
        (b"\x89PNG", "a PNG picture"),
        (b"\xff\xd8\xff", "a JPEG picture"),
        (b"GIF8", "a GIF picture"),
        (b"RIFF", "a RIFF file, such as a WebP picture"),
        (b"%PDF", "a PDF document"),
        (b"PK\x03\x04", "a zip archive"),
        (b"PAR1", "a Parquet file"),
        (b"\x93NUMPY", "an array of NumPy"),
        (b"\x89HDF", "an HDF5 file"),
        (b"7z\xbc\xaf", "a 7z archive"),
    ];
    match Form::of_head(head) {
        _ if ["<!doctype", "<html", "<head"].into_iter().any(begins) => Some("an HTML page"),
        _ if begins("<?xml") => Some("an XML document"),
        Some(Form::Tar) => Some("a tar archive"),
        Some(Form::TfRecord) => Some("a TFRecord file"),
        Some(Form::Safetensors) => Some("a safetensors file"),
        None => known
            .into_iter()
            .find(|(magic, _)| head.starts_with(magic))
            .map(|(_, what)| what),
    }
}

/// Words about such a file.
pub(super) fn but_other(head: &[u8]) -> String {
    other(head).map_or_else(String::new, |what| format!(", but {what}"))
}
