//! Pictures in samples, made into arrays of bytes while batches are made: JPEG, PNG, GIF, WebP,
//! BMP, TIFF and PNM.
//!
//! A picture is refused for one of three reasons, which callers tell apart ([`Wrong`]): its file is
//! damaged, it is of a kind that is not decoded, or it is larger than the memory allows. Decoders
//! are made for viewers, and many pass over damage; so files are looked at first (`images/jpeg.rs`,
//! `images/whole.rs`), and what is decoded was all there. Decoding ends soon after it is not wanted any
//! longer (`images/interrupt.rs`).
//!
//! Pixels are those of Pillow: luminance by its whole numbers, the upper byte of 16 bits, opacity
//! left out where none was asked for. Of several frames it is the first.

mod interrupt;
mod jpeg;
mod kinds;
mod whole;

use std::borrow::Cow;
use std::fmt::Display;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};

use image::error::DecodingError;
use image::metadata::Orientation;
use image::{
    ColorType, DynamicImage, ImageBuffer, ImageDecoder, ImageError, ImageFormat, ImageReader,
    ImageResult, Limits, Pixel,
};
use jpeg_decoder::PixelFormat;
use zune_core::colorspace::ColorSpace;
use zune_core::options::DecoderOptions;

use self::interrupt::{Bytes, Wanted};

/// A field that is decoded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decode {
    /// Its name.
    pub field: String,
    /// What its pixels are to be.
    pub channels: Channels,
    /// Height and width that every picture has; none where they vary.
    pub size: Option<(u32, u32)>,
    /// Whether pictures are turned as their EXIF orientation says; sizes are those after that.
    pub turned: bool,
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

/// Why a field is not decoded.
#[derive(Debug)]
pub(super) enum Wrong {
    /// Its bytes are not what they should be, for this reason.
    Damaged(String),
    /// It is a picture of this other kind.
    Unsupported(String),
    /// It is sound, and not of the size that was asked for.
    Size { height: u32, width: u32 },
    /// It is larger than memory.
    TooLarge {
        height: u64,
        width: u64,
        needed: u64,
    },
    /// The caller has cancelled the decoding.
    GivenUp,
}

/// Luma of BT.601 in the whole numbers that Pillow uses, and with it most training pipelines.
fn luma([red, green, blue]: [u8; 3]) -> u8 {
    ((u32::from(red) * 19595 + u32::from(green) * 38470 + u32::from(blue) * 7471 + 0x8000) >> 16)
        as u8
}

impl Decode {
    /// Bytes that a picture takes as an array, if all take the same.
    pub(super) fn bytes(&self) -> Option<usize> {
        let (height, width) = self.size?;
        (height as usize)
            .checked_mul(width as usize)?
            .checked_mul(self.channels as usize)
    }

    /// Appends a picture to others, as an array of height, width and channels; where its size
    /// varies, height and width come first, u64 each. One that takes more than `most` bytes is not
    /// decoded. `go_on` is asked every ten milliseconds or so.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(super) fn decode(
        &self,
        bytes: &[u8],
        most: u64,
        pixels: &mut Vec<u8>,
        go_on: &dyn Fn() -> bool,
    ) -> Result<(), Wrong> {
        let format = kinds::kind_of(bytes)?;
        let wanted = Wanted::new(go_on);
        // Decoders are made of much code of others, which meets bytes of others.
        let appended = catch_unwind(AssertUnwindSafe(|| {
            self.append(bytes, format, most, pixels, &wanted)
        }));
        // A decoder may have filled what it did not get.
        if wanted.is_given_up() {
            return Err(Wrong::GivenUp);
        }
        let given_up = || {
            Err(Wrong::Unsupported(format!(
                "a {} that the decoder fails at",
                name_of(format)
            )))
        };
        appended
            .unwrap_or_else(|_| given_up())
            .map_err(|wrong| match wrong {
                Wrong::Damaged(what) => {
                    Wrong::Damaged(format!("a damaged {}: {what}", name_of(format)))
                }
                other => other,
            })
    }

    fn append(
        &self,
        bytes: &[u8],
        format: ImageFormat,
        most: u64,
        pixels: &mut Vec<u8>,
        wanted: &Wanted<'_>,
    ) -> Result<(), Wrong> {
        let exif = match format {
            ImageFormat::Jpeg => {
                let whole = jpeg::walk(bytes, most, wanted)?;
                let exif = whole.exif;
                return self.put(
                    Jpeg::new(bytes, &whole, wanted)?,
                    Source { format, exif, most },
                    pixels,
                );
            }
            ImageFormat::Png => whole::png(bytes)?,
            ImageFormat::Gif => whole::gif(bytes).map(|()| None)?,
            ImageFormat::WebP => whole::webp(bytes).map(|()| None)?,
            _ => None,
        };
        let source = Source { format, exif, most };
        let mut reader = ImageReader::with_format(Bytes::new(bytes, wanted), format);
        let mut limits = Limits::no_limits();
        limits.max_alloc = Some(most);
        reader.limits(limits);
        // Its size may be unknown.
        let decoder = reader
            .into_decoder()
            .map_err(|error| source.wrong(error, (0, 0), 0))?;
        self.put(decoder, source, pixels)
    }

    /// Appends the pixels of a decoder.
    fn put(
        &self,
        mut decoder: impl ImageDecoder,
        source: Source<'_>,
        pixels: &mut Vec<u8>,
    ) -> Result<(), Wrong> {
        let (size, color, all) = (
            decoder.dimensions(),
            decoder.color_type(),
            decoder.total_bytes(),
        );
        let orientation = match (self.turned, source.exif) {
            (false, _) => Orientation::NoTransforms,
            (true, Some(exif)) => {
                Orientation::from_exif_chunk(exif).unwrap_or(Orientation::NoTransforms)
            }
            // What it says of itself may be damaged, and the picture whole.
            (true, None) => decoder.orientation().unwrap_or(Orientation::NoTransforms),
        };
        let (width, height) = if lies(orientation) {
            (size.1, size.0)
        } else {
            size
        };
        match self.size {
            Some(asked) if asked != (height, width) => return Err(Wrong::Size { height, width }),
            Some(_) => {}
            None => pixels.extend(
                [u64::from(height), u64::from(width)]
                    .into_iter()
                    .flat_map(u64::to_le_bytes),
            ),
        }
        let is_it = color == self.channels.color() && orientation == Orientation::NoTransforms;
        // One that is of another kind is there twice, before and after.
        let needed = all.saturating_mul(if is_it { 1 } else { 2 });
        if needed > source.most {
            return Err(too_large(size, needed));
        }
        let wrong = |error| source.wrong(error, size, needed);
        if is_it {
            let start = pixels.len();
            pixels.resize(start + all as usize, 0);
            return decoder.read_image(&mut pixels[start..]).map_err(wrong);
        }
        let mut picture = DynamicImage::from_decoder(decoder).map_err(wrong)?;
        picture.apply_orientation(orientation);
        self.append_pixels(in_bytes(picture, source.format)?, pixels);
        Ok(())
    }

    fn append_pixels(&self, picture: DynamicImage, pixels: &mut Vec<u8>) {
        match self.channels {
            Channels::Gray if !picture.color().has_color() => {
                pixels.extend_from_slice(&picture.into_luma8())
            }
            Channels::Gray => {
                pixels.extend(picture.into_rgb8().pixels().map(|pixel| luma(pixel.0)))
            }
            Channels::Rgb => pixels.extend_from_slice(&picture.into_rgb8()),
            Channels::Rgba => pixels.extend_from_slice(&picture.into_rgba8()),
        }
    }
}

/// What pictures are decoded from.
#[derive(Clone, Copy)]
struct Source<'a> {
    format: ImageFormat,
    /// Its Exif block, where decoders do not find it by themselves.
    exif: Option<&'a [u8]>,
    /// Bytes that a picture may take.
    most: u64,
}

impl Source<'_> {
    /// What a decoder says of a picture of some width and height, which needs so much memory, or
    /// more than there is.
    fn wrong(&self, error: ImageError, size: (u32, u32), needed: u64) -> Wrong {
        match error {
            // A JPEG was looked at to its end, so that nothing is wrong with it.
            ImageError::Decoding(_) if self.format == ImageFormat::Jpeg => unread(&error),
            ImageError::Unsupported(_) => Wrong::Unsupported(format!(
                "a {} of another kind ({error})",
                name_of(self.format)
            )),
            ImageError::Limits(_) => too_large(size, needed.max(self.most.saturating_add(1))),
            ImageError::IoError(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                Wrong::Damaged("it is cut off".into())
            }
            other => Wrong::Damaged(other.to_string()),
        }
    }
}

fn too_large((width, height): (u32, u32), needed: u64) -> Wrong {
    Wrong::TooLarge {
        height: height.into(),
        width: width.into(),
        needed,
    }
}

/// Of a JPEG that is whole.
fn unread(error: &dyn Display) -> Wrong {
    Wrong::Unsupported(format!("a JPEG of another kind ({error})"))
}

/// A JPEG, whose headers are parsed once: of small pictures these take as long as pixels.
struct Jpeg<'a> {
    decoder: Decoder<'a>,
    size: (u32, u32),
    color: ColorType,
}

/// Of rare kinds, the fast one makes something else: where the first component is not that with the
/// most samples, and where components of a sequential file come one after another.
enum Decoder<'a> {
    Fast(Box<zune_jpeg::JpegDecoder<Bytes<'a>>>),
    Thorough(Box<jpeg_decoder::Decoder<Bytes<'a>>>),
}

impl<'a> Jpeg<'a> {
    fn new(
        bytes: &'a [u8],
        whole: &jpeg::Whole<'a>,
        wanted: &'a Wanted<'a>,
    ) -> Result<Jpeg<'a>, Wrong> {
        let bytes: Cow<'_, [u8]> = match whole.lacks_tables {
            true => [&bytes[..2], &jpeg::usual_tables(), &bytes[2..]]
                .concat()
                .into(),
            false => bytes.into(),
        };
        let bytes = Bytes::new(bytes, wanted);
        if !whole.is_plain {
            let mut decoder = jpeg_decoder::Decoder::new(bytes);
            decoder.read_info().map_err(|error| unread(&error))?;
            let info = decoder.info().map(|info| {
                (
                    u32::from(info.width),
                    u32::from(info.height),
                    info.pixel_format,
                )
            });
            let (size, color) = match info {
                Some((width, height, PixelFormat::L8)) => ((width, height), ColorType::L8),
                Some((width, height, PixelFormat::RGB24)) => ((width, height), ColorType::Rgb8),
                _ => {
                    return Err(Wrong::Unsupported(
                        "a JPEG of four components in an unusual order".into(),
                    ));
                }
            };
            return Ok(Jpeg {
                decoder: Decoder::Thorough(Box::new(decoder)),
                size,
                color,
            });
        }
        let (color, space) = if whole.is_gray {
            (ColorType::L8, ColorSpace::Luma)
        } else {
            (ColorType::Rgb8, ColorSpace::RGB)
        };
        let options = DecoderOptions::default()
            .set_strict_mode(false)
            .set_max_width(usize::MAX)
            .set_max_height(usize::MAX);
        let options = options.jpeg_set_out_colorspace(space);
        let mut decoder = zune_jpeg::JpegDecoder::new_with_options(bytes, options);
        decoder.decode_headers().map_err(|error| unread(&error))?;
        let size = decoder
            .dimensions()
            .map(|(width, height)| (width as u32, height as u32))
            .unwrap_or_default();
        Ok(Jpeg {
            decoder: Decoder::Fast(Box::new(decoder)),
            size,
            color,
        })
    }
}

impl ImageDecoder for Jpeg<'_> {
    fn dimensions(&self) -> (u32, u32) {
        self.size
    }

    fn color_type(&self) -> ColorType {
        self.color
    }

    fn read_image(self, pixels: &mut [u8]) -> ImageResult<()> {
        let failed = |error: String| {
            ImageError::Decoding(DecodingError::new(ImageFormat::Jpeg.into(), error))
        };
        match self.decoder {
            Decoder::Fast(mut decoder) => decoder
                .decode_into(pixels)
                .map_err(|error| failed(error.to_string())),
            Decoder::Thorough(mut decoder) => {
                let found = decoder
                    .decode()
                    .map_err(|error| failed(error.to_string()))?;
                if found.len() != pixels.len() {
                    return Err(failed("it has another number of pixels".into()));
                }
                pixels.copy_from_slice(&found);
                Ok(())
            }
        }
    }

    fn read_image_boxed(self: Box<Self>, pixels: &mut [u8]) -> ImageResult<()> {
        (*self).read_image(pixels)
    }
}

/// Whether a picture that is turned so has its width for its height.
fn lies(orientation: Orientation) -> bool {
    use Orientation::{Rotate90, Rotate90FlipH, Rotate270, Rotate270FlipH};
    matches!(
        orientation,
        Rotate90 | Rotate90FlipH | Rotate270 | Rotate270FlipH
    )
}

/// Numbers of 16 bits by their upper bytes.
///
/// # Errors
/// [`Wrong::Unsupported`] for numbers that have no largest one.
fn in_bytes(picture: DynamicImage, format: ImageFormat) -> Result<DynamicImage, Wrong> {
    Ok(match picture {
        DynamicImage::ImageLuma16(of) => DynamicImage::ImageLuma8(upper(&of)),
        DynamicImage::ImageLumaA16(of) => DynamicImage::ImageLumaA8(upper(&of)),
        DynamicImage::ImageRgb16(of) => DynamicImage::ImageRgb8(upper(&of)),
        DynamicImage::ImageRgba16(of) => DynamicImage::ImageRgba8(upper(&of)),
        DynamicImage::ImageRgb32F(_) | DynamicImage::ImageRgba32F(_) => {
            return Err(Wrong::Unsupported(format!(
                "a {} of floating-point numbers",
                name_of(format)
            )));
        }
        other => other,
    })
}

fn upper<P, Q>(picture: &ImageBuffer<P, Vec<u16>>) -> ImageBuffer<Q, Vec<u8>>
where
    P: Pixel<Subpixel = u16>,
    Q: Pixel<Subpixel = u8>,
{
    let bytes = picture
        .as_raw()
        .iter()
        .map(|number| (number >> 8) as u8)
        .collect();
    ImageBuffer::from_raw(picture.width(), picture.height(), bytes)
        .expect("as many numbers a pixel")
}

fn name_of(format: ImageFormat) -> &'static str {
    match format {
        ImageFormat::Jpeg => "JPEG",
        ImageFormat::Png => "PNG",
        ImageFormat::Gif => "GIF",
        ImageFormat::WebP => "WebP",
        ImageFormat::Bmp => "BMP",
        ImageFormat::Tiff => "TIFF",
        _ => "PNM",
    }
}
