//! What kind of picture bytes are, by what they begin with.

use image::ImageFormat;

use super::Wrong;

/// How far the first element of an SVG may be from its beginning, behind a declaration and
/// comments.
const SVG_BYTES: usize = 4 << 10;
/// Shown of what is no picture.
const SHOWN_BYTES: usize = 16;

/// By their first bytes: pictures of kinds that are not decoded.
const FOREIGN: [(&[u8], &str); 18] = [
    (b"\x00\x00\x00\x0CjP  \r\n\x87\n", "JPEG 2000"),
    (b"\xFF\x4F\xFF\x51\x00", "JPEG 2000"),
    (b"\x00\x00\x00\x0CJXL \r\n\x87\n", "JPEG XL"),
    (b"\xFF\x0A", "JPEG XL"),
    (b"II\xBC", "JPEG XR"),
    (b"8BPS\x00", "PSD"),
    (b"\x00\x00\x01\x00", "ICO"),
    (b"\x00\x00\x02\x00", "CUR"),
    (b"\x76\x2F\x31\x01", "OpenEXR"),
    (b"#?RADIANCE", "Radiance HDR"),
    (b"#?RGBE", "Radiance HDR"),
    (b"qoif", "QOI"),
    (b"DDS ", "DDS"),
    (b"farbfeld", "farbfeld"),
    (b"FLIF", "FLIF"),
    (b"BPG\xFB", "BPG"),
    (b"\x8AMNG\r\n\x1A\n", "MNG"),
    (b"gimp xcf ", "XCF"),
];

/// Which of the kinds that are decoded.
///
/// # Errors
/// What else it is.
pub(super) fn kind_of(bytes: &[u8]) -> Result<ImageFormat, Wrong> {
    let begins = |with: &[u8]| bytes.starts_with(with);
    let has_at =
        |at: usize, what: &[u8]| bytes.get(at..).is_some_and(|rest| rest.starts_with(what));
    match bytes {
        _ if begins(b"\xFF\xD8\xFF") => Ok(ImageFormat::Jpeg),
        _ if begins(b"\x89PNG\r\n\x1A\n") => Ok(ImageFormat::Png),
        _ if begins(b"GIF87a") || begins(b"GIF89a") => Ok(ImageFormat::Gif),
        _ if begins(b"RIFF") && has_at(8, b"WEBP") => Ok(ImageFormat::WebP),
        _ if begins(b"II*\0") || begins(b"MM\0*") || begins(b"II+\0") || begins(b"MM\0+") => {
            Ok(ImageFormat::Tiff)
        }
        _ if begins(b"BM") => Ok(ImageFormat::Bmp),
        [b'P', b'1'..=b'7', b' ' | b'\t' | b'\r' | b'\n' | b'#', ..] => Ok(ImageFormat::Pnm),
        _ => Err(foreign(bytes).map_or_else(
            || Wrong::Damaged(shown(bytes)),
            |kind| Wrong::Unsupported(format!("a picture in {kind}")),
        )),
    }
}

fn foreign(bytes: &[u8]) -> Option<&'static str> {
    let known = FOREIGN.iter().find(|(first, _)| bytes.starts_with(first));
    known
        .map(|&(_, kind)| kind)
        .or_else(|| of_boxes(bytes))
        .or_else(|| is_svg(bytes).then_some("SVG"))
}

/// Of a file in boxes of ISO/IEC 14496-12, which may be a film as well.
fn of_boxes(bytes: &[u8]) -> Option<&'static str> {
    let (length, rest) = bytes.split_first_chunk()?;
    let rest = rest.strip_prefix(b"ftyp")?;
    let length = (u32::from_be_bytes(*length) as usize)
        .saturating_sub(8)
        .min(rest.len());
    rest[..length]
        .chunks_exact(4)
        .find_map(|brand| match brand {
            b"avif" | b"avis" => Some("AVIF"),
            b"heic" | b"heix" | b"hevc" | b"hevx" | b"heim" | b"heis" | b"mif1" | b"msf1" => {
                Some("HEIC")
            }
            _ => None,
        })
}

fn is_svg(bytes: &[u8]) -> bool {
    let text = bytes
        .strip_prefix(b"\xEF\xBB\xBF")
        .unwrap_or(bytes)
        .trim_ascii_start();
    let text = &text[..text.len().min(SVG_BYTES)];
    let at = |what: &[u8]| {
        text.windows(what.len())
            .position(|some| some.eq_ignore_ascii_case(what))
    };
    text.first() == Some(&b'<')
        && at(b"<svg")
            .is_some_and(|svg| at(b"<html").is_none_or(|page| svg < page) && !has_page(text))
}

/// Whether a page says that it is one.
fn has_page(text: &[u8]) -> bool {
    text.get(..14)
        .is_some_and(|first| first.eq_ignore_ascii_case(b"<!doctype html"))
}

fn shown(bytes: &[u8]) -> String {
    match bytes {
        [] => "no picture: it is empty".into(),
        _ => format!(
            "no picture: {} bytes that begin with \"{}\"",
            bytes.len(),
            bytes[..bytes.len().min(SHOWN_BYTES)].escape_ascii()
        ),
    }
}
