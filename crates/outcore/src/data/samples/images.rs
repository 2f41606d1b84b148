//! Pictures in samples: JPEG and PNG, made into arrays of bytes while batches are made.

use std::io::Cursor;

use image::{ImageFormat, ImageReader};

/// A field that is decoded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decode {
    /// Its name.
    pub field: String,
    /// What its pixels are to be.
    pub channels: Channels,
    /// Height and width that every picture has; none where they vary.
    pub size: Option<(u32, u32)>,
}

/// What a pixel is, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Channels {
    /// Luminance.
    Gray = 1,
    /// Red, green, blue.
    Rgb = 3,
    /// Red, green, blue, opacity.
    Rgba = 4,
}

/// Of BT.601, as others have it who train networks, in whole numbers that Pillow uses too.
fn luma([red, green, blue]: [u8; 3]) -> u8 {
    ((u32::from(red) * 19595 + u32::from(green) * 38470 + u32::from(blue) * 7471 + 0x8000) >> 16) as u8
}

impl Decode {
    /// Bytes that a picture takes as an array, if all take the same.
    pub(super) fn bytes(&self) -> Option<usize> {
        let (height, width) = self.size?;
        (height as usize).checked_mul(width as usize)?.checked_mul(self.channels as usize)
    }

    /// A picture as an array of height, width and channels; where its size varies, height and width come first, u64 each.
    ///
    /// # Errors
    /// Words about bytes that are no such picture.
    pub(super) fn decode(&self, bytes: &[u8]) -> Result<Vec<u8>, String> {
        let name = &self.field;
        let format = match image::guess_format(bytes) {
            Ok(format @ (ImageFormat::Jpeg | ImageFormat::Png)) => format,
            _ => return Err(format!("field {name:?} is neither JPEG nor PNG")),
        };
        let picture = ImageReader::with_format(Cursor::new(bytes), format).decode();
        let picture = picture.map_err(|error| format!("field {name:?} is no picture: {error}"))?;
        let (height, width) = (picture.height(), picture.width());
        let pixels = match self.channels {
            Channels::Gray if !picture.color().has_color() => picture.into_luma8().into_raw(),
            Channels::Gray => picture.into_rgb8().pixels().map(|pixel| luma(pixel.0)).collect(),
            Channels::Rgb => picture.into_rgb8().into_raw(),
            Channels::Rgba => picture.into_rgba8().into_raw(),
        };
        match self.size {
            Some((high, wide)) if (high, wide) != (height, width) => {
                Err(format!("field {name:?} is a picture of {height} by {width} pixels, where {high} by {wide} were asked for"))
            }
            Some(_) => Ok(pixels),
            None => Ok([u64::from(height), u64::from(width)].map(u64::to_le_bytes).concat().into_iter().chain(pixels).collect()),
        }
    }
}
