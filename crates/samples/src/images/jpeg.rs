//! Whether a JPEG file is whole: a walk over its markers and all its entropy-coded data, without an
//! inverse transform and without pixels.
//!
//! Decoders fill what is missing with grey, since a viewer is to show what there is. Training wants
//! to know. The walk reads every code of every scan and compares what it finds with what the
//! headers promise: each interval has all its blocks and nothing behind them, restart markers count
//! in order, no code is outside its table, no coefficient outside its block, every bit of every
//! coefficient was sent, and the file has its end marker. That is what libjpeg warns about, and
//! more: it passes over coefficients behind the end of a block and over scans that never came. What
//! follows the end marker is no part of the picture, and not looked at.
//!
//! The source is ITU-T T.81, annexes B, F and G. A walk takes about a tenth of the time of
//! decoding. Progressive files take 8 bytes for each block of 64 coefficients while they are
//! walked: which coefficients are not zero decides how later scans are read.

mod bits;
mod huffman;

use std::mem;

use super::Wrong;
use super::interrupt::{Poll, Wanted};
use bits::{Bad, Bits};
pub(super) use huffman::usual_tables;
use huffman::{Table, usual_table};

/// From this length of a scan on, tables of two codes save more than they take, which is some ten
/// microseconds.
const LONG_BYTES: usize = 24 << 10;
const COMPONENTS_MOST: usize = 4;
/// Blocks of one unit of an interleaved scan, of four components with sampling factors of four:
/// more than the ten of the standard.
const UNIT_BLOCKS_MOST: usize = COMPONENTS_MOST * 16;

const SOI: u8 = 0xD8;
const EOI: u8 = 0xD9;

type Walked<T> = Result<T, Wrong>;
type Tables = [Option<Box<Table>>; 8];

/// What else decoding wants to know of a file that is whole.
#[derive(Debug)]
pub(super) struct Whole<'a> {
    /// Its Exif block.
    pub(super) exif: Option<&'a [u8]>,
    /// It relies on the Huffman tables of the standard.
    pub(super) lacks_tables: bool,
    /// It has luminance and nothing else.
    pub(super) is_gray: bool,
    /// No component has more samples than the first, or an unusual number of them, and those of a
    /// sequential file come together.
    pub(super) is_plain: bool,
}

/// Goes through a file, as long as its picture is wanted. One that takes more than `most` bytes to
/// decode is not looked at.
///
/// # Errors
/// What is wrong with it.
pub(super) fn walk<'a>(bytes: &'a [u8], most: u64, wanted: &Wanted<'_>) -> Walked<Whole<'a>> {
    Walk::new(bytes, most, wanted).all()
}

fn damaged<T>(what: impl Into<String>) -> Walked<T> {
    Err(Wrong::Damaged(what.into()))
}

fn unsupported<T>(what: impl Into<String>) -> Walked<T> {
    Err(Wrong::Unsupported(what.into()))
}

struct Walk<'a, 'w> {
    wanted: &'w Wanted<'w>,
    bytes: &'a [u8],
    at: usize,
    most: u64,
    frame: Option<Frame>,
    /// Of the codes of DC coefficients, then of AC coefficients: as they are in the file.
    told: [Option<&'a [u8]>; 8],
    tables: Tables,
    /// Which quantization tables have come.
    quantizations: [bool; 4],
    /// Units between restart markers; 0 for none.
    interval: u64,
    scans: usize,
    exif: Option<&'a [u8]>,
    lacks_tables: bool,
    /// From this length on, a scan is long.
    long_bytes: usize,
}

struct Frame {
    is_progressive: bool,
    width: u64,
    height: u64,
    components: Vec<Component>,
    /// Sampling factors, at most.
    most: (u64, u64),
}

struct Component {
    id: u8,
    quantization: u8,
    sampling: (u64, u64),
    /// Blocks of a scan that has no other component.
    blocks: (u64, u64),
    /// Of each coefficient, the lowest bit that has been sent.
    sent: [Option<u8>; 64],
    /// By block, the coefficients that are not zero; empty before the first scan of AC
    /// coefficients.
    seen: Vec<u64>,
}

/// Of the header of a scan.
#[derive(Clone, Copy)]
struct Band {
    start: u32,
    end: u32,
    high: u8,
    low: u8,
}

/// The component of a scan, and its tables of DC and AC codes.
#[derive(Clone, Copy)]
struct ScanComponent {
    component: usize,
    dc: usize,
    ac: usize,
}

impl<'a, 'w> Walk<'a, 'w> {
    fn new(bytes: &'a [u8], most: u64, wanted: &'w Wanted<'w>) -> Walk<'a, 'w> {
        Walk {
            wanted,
            bytes,
            at: 0,
            most,
            frame: None,
            told: [None; 8],
            tables: Default::default(),
            quantizations: [false; 4],
            interval: 0,
            scans: 0,
            exif: None,
            lacks_tables: false,
            long_bytes: LONG_BYTES,
        }
    }

    fn all(mut self) -> Walked<Whole<'a>> {
        if self.next_marker()? != SOI {
            return damaged("it does not begin as one");
        }
        loop {
            match self.next_marker()? {
                // They have no place here, and do no harm.
                0x01 | 0xD0..=0xD7 => {}
                SOI => return damaged("another one begins within it"),
                EOI => {
                    let frame = self.check_sent()?;
                    let Some(is_plain) = frame.is_plain(self.scans) else {
                        return unsupported(
                            "a JPEG of which no component has the most samples both ways",
                        );
                    };
                    let is_gray = frame.components.len() == 1;
                    return Ok(Whole {
                        exif: self.exif,
                        lacks_tables: self.lacks_tables,
                        is_gray,
                        is_plain,
                    });
                }
                marker @ (0xC0..=0xC3 | 0xC5..=0xCB | 0xCD..=0xCF | 0xDE | 0xF7) => {
                    self.frame(marker)?
                }
                0xC4 => self.huffman_tables()?,
                0xDA => self.scan()?,
                0xDD => match *self.segment()? {
                    [high, low] => self.interval = u64::from(u16::from_be_bytes([high, low])),
                    _ => return damaged("its restart interval is none"),
                },
                0xE1 => {
                    let exif = self.segment()?.strip_prefix(b"Exif\0\0");
                    self.exif = self.exif.or(exif);
                }
                0xDB => self.quantization_tables()?,
                0xCC | 0xDC | 0xE0..=0xEF | 0xFE => drop(self.segment()?),
                other => return damaged(format!("there is no marker FF{other:02X}")),
            }
        }
    }

    /// The marker that is next, with any number of fill bytes before it.
    fn next_marker(&mut self) -> Walked<u8> {
        let rest = self.bytes.get(self.at..).unwrap_or_default();
        let fill = rest.iter().take_while(|&&byte| byte == 0xFF).count();
        match rest.get(fill) {
            None => damaged("it is cut off: it has no end marker"),
            Some(&marker) if fill > 0 && marker != 0 => {
                self.at += fill + 1;
                Ok(marker)
            }
            Some(_) => {
                let (at, next) = (
                    self.at,
                    rest.windows(2)
                        .find(|two| two[0] == 0xFF && !matches!(two[1], 0 | 0xFF)),
                );
                match next {
                    Some(two) => damaged(format!(
                        "bytes from {at} on belong to nothing, before marker FF{:02X}",
                        two[1]
                    )),
                    None => damaged(format!(
                        "bytes from {at} on belong to nothing, and it has no end marker"
                    )),
                }
            }
        }
    }

    /// What a marker has behind it.
    fn segment(&mut self) -> Walked<&'a [u8]> {
        let rest = &self.bytes[self.at..];
        let Some((length, _)) = rest.split_first_chunk() else {
            return damaged("it is cut off in its headers");
        };
        let length = usize::from(u16::from_be_bytes(*length));
        if length < 2 {
            return damaged(format!("the header at byte {} has no length", self.at));
        }
        let Some(segment) = rest.get(2..length) else {
            return damaged("it is cut off in its headers");
        };
        self.at += length;
        Ok(segment)
    }

    fn frame(&mut self, marker: u8) -> Walked<()> {
        let what = match marker {
            0xC0..=0xC2 => "",
            0xC3 => "a lossless JPEG",
            0xC9..=0xCB => "a JPEG with arithmetic coding",
            0xF7 => "a JPEG-LS",
            0xC5..=0xC7 | 0xCD..=0xCF | 0xDE => "a hierarchical JPEG",
            _ => "a JPEG of a kind of its own",
        };
        if !what.is_empty() {
            return unsupported(what);
        }
        if self.frame.is_some() {
            return damaged("it has a second frame");
        }
        let segment = self.segment()?;
        let [bits, h1, h0, w1, w0, count, components @ ..] = segment else {
            return damaged("its frame header is too short");
        };
        if *bits != 8 {
            return unsupported(format!("a JPEG of {bits} bits a sample"));
        }
        let (height, width) = (
            u64::from(u16::from_be_bytes([*h1, *h0])),
            u64::from(u16::from_be_bytes([*w1, *w0])),
        );
        if height == 0 {
            return unsupported("a JPEG that tells its height behind its data");
        }
        let count = usize::from(*count);
        if width == 0 || count == 0 || components.len() != 3 * count {
            return damaged("its frame header is none");
        }
        if count > COMPONENTS_MOST || count == 2 {
            return unsupported(format!("a JPEG of {count} components"));
        }
        let sampling = |of: &[u8]| (u64::from(of[1] >> 4), u64::from(of[1] & 15));
        let factors: Vec<(u64, u64)> = components.chunks_exact(3).map(sampling).collect();
        if factors
            .iter()
            .any(|&(wide, high)| !(1..=4).contains(&wide) || !(1..=4).contains(&high))
        {
            return damaged("its sampling factors are none");
        }
        let is_progressive = marker == 0xC2;
        // A byte of each component, or three of a colour; a progressive one also has its
        // coefficients in memory.
        let each = count.max(3) + if is_progressive { 2 * count } else { 0 };
        let needed = width * height * each as u64;
        if needed > self.most {
            return Err(Wrong::TooLarge {
                height,
                width,
                needed,
            });
        }
        let most = factors
            .iter()
            .fold((1, 1), |most, &of| (most.0.max(of.0), most.1.max(of.1)));
        let component = |(of, &sampling): (&[u8], &(u64, u64))| Component {
            id: of[0],
            quantization: of[2],
            sampling,
            blocks: (
                (width * sampling.0).div_ceil(8 * most.0),
                (height * sampling.1).div_ceil(8 * most.1),
            ),
            sent: [None; 64],
            seen: Vec::new(),
        };
        let components = components
            .chunks_exact(3)
            .zip(&factors)
            .map(component)
            .collect();
        self.frame = Some(Frame {
            is_progressive,
            width,
            height,
            components,
            most,
        });
        Ok(())
    }

    fn quantization_tables(&mut self) -> Walked<()> {
        let mut segment = self.segment()?;
        while let [place, rest @ ..] = segment {
            let bytes = if place >> 4 == 0 { 64 } else { 128 };
            let (Some(behind), 0x00..=0x03 | 0x10..=0x13) = (rest.get(bytes..), *place) else {
                return damaged("a quantization table is none");
            };
            (self.quantizations[usize::from(place & 3)], segment) = (true, behind);
        }
        Ok(())
    }

    fn huffman_tables(&mut self) -> Walked<()> {
        let mut segment = self.segment()?;
        while let [place, rest @ ..] = segment {
            let codes = rest.get(..16).map(|counts| {
                counts
                    .iter()
                    .map(|&count| usize::from(count))
                    .sum::<usize>()
            });
            let table = codes.and_then(|codes| rest.get(..16 + codes));
            let (Some(table), 0x00..=0x03 | 0x10..=0x13) = (table, *place) else {
                return damaged("a Huffman table is none");
            };
            let number = usize::from(place >> 4) * 4 + usize::from(place & 3);
            (self.told[number], self.tables[number]) = (Some(table), None);
            segment = &rest[table.len()..];
        }
        Ok(())
    }

    /// Makes a table that codes are found in, unless it is there.
    fn make_table(&mut self, number: usize) -> Walked<()> {
        if self.tables[number].is_some() {
            return Ok(());
        }
        let told = match self.told[number] {
            Some(told) => told,
            None => {
                self.lacks_tables = true;
                let Some(table) = usual_table(number) else {
                    return damaged("a Huffman table is missing");
                };
                table
            }
        };
        let Some(table) = Table::new(told, number >= 4) else {
            return damaged("a Huffman table is none");
        };
        self.tables[number] = Some(Box::new(table));
        Ok(())
    }

    /// Every bit of every coefficient of every component must have come.
    fn check_sent(&self) -> Walked<&Frame> {
        let Some(frame) = &self.frame else {
            return damaged("it has no picture in it");
        };
        let missing = frame
            .components
            .iter()
            .position(|of| of.sent.iter().any(|&low| low != Some(0)));
        missing.map_or(Ok(frame), |number| {
            damaged(format!("scans of its component {number} are missing"))
        })
    }

    fn scan(&mut self) -> Walked<()> {
        let segment = self.segment()?;
        let Some(mut frame) = self.frame.take() else {
            return damaged("a scan comes before its frame header");
        };
        let (parts, band) = scan_header(segment, &mut frame)?;
        self.scans += 1;
        for part in &parts {
            let quantization = usize::from(frame.components[part.component].quantization);
            if self.quantizations.get(quantization) != Some(&true) {
                return damaged("a quantization table is missing");
            }
            if band.start == 0 && band.high == 0 {
                self.make_table(part.dc)?;
            }
            if band.end > 0 {
                self.make_table(part.ac)?;
            }
        }
        let mut tables = mem::take(&mut self.tables);
        if !frame.is_progressive && self.is_long() {
            parts
                .iter()
                .for_each(|part| tables[part.ac].iter_mut().for_each(|table| table.pair()));
        }
        let done = self.data(&mut frame, &parts, band, &tables);
        (self.frame, self.tables) = (Some(frame), tables);
        done
    }

    fn is_long(&self) -> bool {
        self.bytes.len() - self.at >= self.long_bytes
    }

    fn bits(&self) -> Bits<'a, 'w> {
        Bits::new(self.bytes, self.at, Poll::new(self.wanted, self.at))
    }

    /// The entropy-coded data of a scan, interval by interval.
    fn data(
        &mut self,
        frame: &mut Frame,
        parts: &[ScanComponent],
        band: Band,
        tables: &Tables,
    ) -> Walked<()> {
        let alone = (parts.len() == 1).then(|| parts[0].component);
        let (wide, high) = match alone {
            Some(number) => frame.components[number].blocks,
            None => (
                frame.width.div_ceil(8 * frame.most.0),
                frame.height.div_ceil(8 * frame.most.1),
            ),
        };
        let units = wide * high;
        let mut seen = Vec::new();
        if let Some(number) = alone.filter(|_| band.start > 0) {
            seen = mem::take(&mut frame.components[number].seen);
            seen.resize(units as usize, 0);
        }
        let unit = unit(frame, parts);
        let dc: Vec<&Table> = unit
            .iter()
            .filter_map(|part| tables[part.dc].as_deref())
            .collect();
        let ac: Vec<&Table> = unit
            .iter()
            .filter_map(|part| tables[part.ac].as_deref())
            .collect();
        let (mut bits, is_long) = (self.bits(), self.is_long());
        let (mut done, mut restarts) = (0, 0);
        loop {
            let next = if self.interval == 0 {
                units
            } else {
                units.min(done + self.interval)
            };
            let walked = match band {
                _ if !frame.is_progressive && is_long => {
                    bits.sequential::<true>(next - done, &dc, &ac)
                }
                _ if !frame.is_progressive => bits.sequential::<false>(next - done, &dc, &ac),
                Band {
                    start: 0, high: 0, ..
                } => bits.dc_first(next - done, &dc),
                Band { start: 0, .. } => bits.dc_next(next - done, unit.len()),
                Band { high: 0, .. } => {
                    bits.ac_first(ac[0], band, &mut seen[done as usize..next as usize])
                }
                _ => bits.ac_next(ac[0], band, &mut seen[done as usize..next as usize]),
            };
            walked
                .and_then(|()| bits.end())
                .map_err(|bad| bad.told(self.scans, bits.at))?;
            (self.at, done) = (bits.at, next);
            if done == units {
                break;
            }
            match self.next_marker()? {
                marker if marker == 0xD0 + restarts => {}
                marker @ 0xD0..=0xD7 => {
                    return damaged(format!(
                        "restart marker {} comes in place of {restarts}",
                        marker - 0xD0
                    ));
                }
                _ => return Err(Bad::Cut.told(self.scans, self.at)),
            }
            restarts = (restarts + 1) % 8;
            bits = self.bits();
        }
        if let Some(number) = alone.filter(|_| band.start > 0) {
            frame.components[number].seen = seen;
        }
        Ok(())
    }
}

impl Frame {
    /// Whether it is as nearly all files are; none where no decoder makes the right picture of it.
    fn is_plain(&self, scans: usize) -> Option<bool> {
        let all = || self.components.iter().map(|component| component.sampling);
        let is_usual = |(wide, high)| [1, 2, 4].contains(&wide) && [1, 2].contains(&high);
        if scans > 1 && !all().any(|of| of == self.most) {
            return None;
        }
        Some(
            all().next() == Some(self.most)
                && all().all(is_usual)
                && (self.is_progressive || scans == 1),
        )
    }
}

/// The components of a scan and what is sent of them, which is noted.
fn scan_header(segment: &[u8], frame: &mut Frame) -> Walked<(Vec<ScanComponent>, Band)> {
    let none = || damaged("a scan header is none");
    let Some((&count, rest)) = segment.split_first() else {
        return none();
    };
    let Some((of, [start, end, bits])) = rest.split_at_checked(2 * usize::from(count)) else {
        return none();
    };
    let mut parts = Vec::with_capacity(of.len() / 2);
    for two in of.chunks_exact(2) {
        let Some(component) = frame
            .components
            .iter()
            .position(|component| component.id == two[0])
        else {
            return none();
        };
        let (dc, ac) = (usize::from(two[1] >> 4), usize::from(two[1] & 15));
        if dc > 3
            || ac > 3
            || parts
                .iter()
                .any(|part: &ScanComponent| part.component == component)
        {
            return none();
        }
        parts.push(ScanComponent {
            component,
            dc,
            ac: 4 + ac,
        });
    }
    let band = Band {
        start: u32::from(*start),
        end: u32::from(*end),
        high: bits >> 4,
        low: bits & 15,
    };
    let may_be = match frame.is_progressive {
        true if band.start == 0 => band.end == 0,
        true => band.start <= band.end && band.end < 64 && parts.len() == 1,
        false => (band.start, band.end, band.high, band.low) == (0, 63, 0, 0),
    };
    let goes_on = band.high == 0 || band.low + 1 == band.high;
    if parts.is_empty() || parts.len() > COMPONENTS_MOST || !may_be || !goes_on || band.low > 13 {
        return none();
    }
    let expected = (band.high > 0).then_some(band.high);
    for part in &parts {
        let sent = &mut frame.components[part.component].sent;
        let comes_early = band.start > 0 && sent[0].is_none();
        for low in &mut sent[band.start as usize..=band.end as usize] {
            if comes_early || (frame.is_progressive && *low != expected) {
                return damaged("its scans are not in order: one is missing, or comes twice");
            }
            *low = Some(band.low);
        }
    }
    Ok((parts, band))
}

/// The blocks of a unit, one after another.
fn unit(frame: &Frame, parts: &[ScanComponent]) -> Vec<ScanComponent> {
    if let [alone] = parts {
        return vec![*alone];
    }
    let mut unit = Vec::with_capacity(UNIT_BLOCKS_MOST);
    for part in parts {
        let (wide, high) = frame.components[part.component].sampling;
        unit.resize(unit.len() + (wide * high) as usize, *part);
    }
    unit
}

#[cfg(test)]
mod tests {
    use image::codecs::jpeg::JpegEncoder;
    use image::{ExtendedColorType, ImageEncoder};
    use proptest::prelude::*;

    use super::*;

    /// A file of pixels that have all kinds of codes: smooth ones and noise.
    fn file(width: u32, height: u32, gray: bool, quality: u8) -> Vec<u8> {
        let (channels, color) = if gray {
            (1, ExtendedColorType::L8)
        } else {
            (3, ExtendedColorType::Rgb8)
        };
        let noise =
            |at: u32| (at.wrapping_mul(2_654_435_761) >> 24) % if at % 512 < 300 { 6 } else { 160 };
        let pixels: Vec<u8> = (0..width * height * channels)
            .map(|at| (at % (width * channels) / 4 + noise(at)) as u8)
            .collect();
        let mut bytes = Vec::new();
        JpegEncoder::new_with_quality(&mut bytes, quality)
            .write_image(&pixels, width, height, color)
            .unwrap();
        bytes
    }

    fn outcome(bytes: &[u8], long_bytes: usize) -> Option<String> {
        let wanted = Wanted::new(&|| true);
        let walk = Walk {
            long_bytes,
            ..Walk::new(bytes, u64::MAX, &wanted)
        };
        walk.all().err().map(|wrong| format!("{wrong:?}"))
    }

    /// From which byte on there is entropy-coded data.
    fn data(bytes: &[u8]) -> usize {
        let scan = bytes
            .windows(2)
            .position(|two| two == [0xFF, 0xDA])
            .unwrap();
        scan + 2 + usize::from(u16::from_be_bytes([bytes[scan + 2], bytes[scan + 3]]))
    }

    proptest! {
        #[test]
        fn a_whole_file_passes_and_a_cut_one_does_not(
            width in 1..80u32, height in 1..60u32, gray: bool, quality in 1..=100u8, cut: prop::sample::Index, tail: Vec<u8>,
        ) {
            let bytes = file(width, height, gray, quality);
            prop_assert_eq!(outcome(&bytes, LONG_BYTES), None);
            prop_assert_eq!(outcome(&[&bytes[..], &tail].concat(), LONG_BYTES), None);
            let cut = &bytes[..cut.index(bytes.len())];
            prop_assert!(outcome(cut, LONG_BYTES).is_some());
            // An end marker does not make it whole.
            if cut.len() > data(&bytes) && cut.len() < bytes.len() - 3 && !cut.ends_with(&[0xFF]) {
                prop_assert!(outcome(&[cut, &[0xFF, EOI]].concat(), LONG_BYTES).is_some());
            }
        }

        /// Whatever bytes say, there is an outcome, and it does not depend on how codes are looked
        /// up.
        #[test]
        fn two_codes_at_once_are_two_codes(
            width in 1..80u32, height in 1..60u32, quality in 1..=100u8, changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
        ) {
            let mut bytes = file(width, height, quality % 2 == 0, quality);
            changes.into_iter().for_each(|(at, byte)| *at.get_mut(&mut bytes) = byte);
            prop_assert_eq!(outcome(&bytes, 0).is_some(), outcome(&bytes, usize::MAX).is_some());
        }
    }

    #[test]
    fn what_is_wrong_is_said() {
        let bytes = file(40, 30, false, 80);
        let (begin, end) = bytes.split_at(bytes.len() - 2);
        let told = |bytes: &[u8]| outcome(bytes, LONG_BYTES).unwrap_or_default();
        assert!(told(begin).contains("it has no end marker"));
        assert!(
            told(&[begin, &[0x12, 0x34], end].concat())
                .contains("scan 1 has bytes behind its last block")
        );
        assert_eq!(told(&[begin, &[0xFF, 0xFF], end].concat()), "");
        let mut other = bytes.clone();
        let frame = bytes
            .windows(2)
            .position(|two| two == [0xFF, 0xC0])
            .unwrap();
        for (marker, kind) in [
            (0xC3, "lossless"),
            (0xC9, "arithmetic"),
            (0xCD, "hierarchical"),
            (0xF7, "JPEG-LS"),
        ] {
            other[frame + 1] = marker;
            assert!(told(&other).contains(kind) && told(&other).starts_with("Unsupported"));
        }
        other = bytes.clone();
        other[frame + 4] = 12;
        assert!(told(&other).contains("12 bits a sample"));
        let large = walk(&bytes, 40 * 30 * 3 - 1, &Wanted::new(&|| true)).unwrap_err();
        assert!(matches!(
            large,
            Wrong::TooLarge {
                height: 30,
                width: 40,
                needed: 3600
            }
        ));
    }

    #[test]
    fn a_file_without_tables_means_those_of_the_standard() {
        let bytes = file(40, 30, false, 80);
        let mut bare = bytes.clone();
        while let Some(at) = bare.windows(2).position(|two| two == [0xFF, 0xC4]) {
            let length = usize::from(u16::from_be_bytes([bare[at + 2], bare[at + 3]]));
            bare.drain(at..at + 2 + length);
        }
        let lacks_tables = |bytes: &[u8]| {
            let wanted = Wanted::new(&|| true);
            walk(bytes, u64::MAX, &wanted).unwrap().lacks_tables
        };
        assert!(lacks_tables(&bare) && !lacks_tables(&bytes));
        let whole = [&bare[..2], &usual_tables(), &bare[2..]].concat();
        assert!(!lacks_tables(&whole));
    }
}
