//! Pictures in samples: JPEG and PNG, made into arrays of bytes while batches are made.

use std::io::Cursor;

use image::{ColorType, DynamicImage, ImageDecoder, ImageFormat, ImageReader, Limits};

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

impl Channels {
    /// What a decoder calls it.
    fn color(self) -> ColorType {
        match self {
            Channels::Gray => ColorType::L8,
            Channels::Rgb => ColorType::Rgb8,
            Channels::Rgba => ColorType::Rgba8,
        }
    }
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

    /// Appends a picture to others, as an array of height, width and channels; where its size varies, height and width come first, u64 each.
    /// One that takes more than `most` bytes is not decoded.
    ///
    /// # Errors
    /// Words about bytes that are no such picture.
    pub(super) fn decode(&self, bytes: &[u8], most: u64, pixels: &mut Vec<u8>) -> Result<(), String> {
        let name = &self.field;
        let format = match image::guess_format(bytes) {
            Ok(format @ (ImageFormat::Jpeg | ImageFormat::Png)) => format,
            _ => return Err(format!("field {name:?} is neither JPEG nor PNG")),
        };
        let broken = |error| format!("field {name:?} is no picture: {error}");
        let mut reader = ImageReader::with_format(Cursor::new(bytes), format);
        let mut limits = Limits::no_limits();
        limits.max_alloc = Some(most);
        reader.limits(limits);
        let decoder = reader.into_decoder().map_err(broken)?;
        let ((width, height), color) = (decoder.dimensions(), decoder.color_type());
        match self.size {
            Some((high, wide)) if (high, wide) != (height, width) => {
                return Err(format!(
                    "field {name:?} is a picture of {height} by {width} pixels, where {high} by {wide} were asked for"
                ));
            }
            Some(_) => {}
            None => pixels.extend([u64::from(height), u64::from(width)].into_iter().flat_map(u64::to_le_bytes)),
        }
        // One that is of another kind is there twice, before and after.
        let times = if color == self.channels.color() { 1 } else { 2 };
        if decoder.total_bytes().saturating_mul(times) > most {
            return Err(format!("field {name:?} is a picture of {height} by {width} pixels, which the memory is too small for"));
        }
        if color == self.channels.color() {
            let start = pixels.len();
            pixels.resize(start + decoder.total_bytes() as usize, 0);
            return decoder.read_image(&mut pixels[start..]).map_err(broken);
        }
        let picture = DynamicImage::from_decoder(decoder).map_err(broken)?;
        match self.channels {
            Channels::Gray if !color.has_color() => pixels.extend_from_slice(&picture.into_luma8()),
            Channels::Gray => pixels.extend(picture.into_rgb8().pixels().map(|pixel| luma(pixel.0))),
            Channels::Rgb => pixels.extend_from_slice(&picture.into_rgb8()),
            Channels::Rgba => pixels.extend_from_slice(&picture.into_rgba8()),
        }
        Ok(())
    }
}
