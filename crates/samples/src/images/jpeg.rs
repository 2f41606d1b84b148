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

use std::mem;

use super::Wrong;
use super::interrupt::{Poll, Wanted};

/// Codes up to this length are found at once.
const LOOK: u32 = 9;
/// Two codes, and the bits that follow the first, are found at once up to this length.
const LOOK_AT_TWO: u32 = 11;
/// From this length of a scan on, tables of two codes save more than they take, which is some ten
/// microseconds.
const LONG_BYTES: usize = 24 << 10;
/// Of a Huffman code, and of the bits that follow one.
const CODE_BITS_MOST: u32 = 16;
/// Steps that end a block go behind any coefficient that a run reaches.
const END_OF_BLOCK: u32 = 128;
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

/// Codes of a Huffman table.
struct Table {
    /// By the next bits: bits of a short code and of what follows it, and behind them, from bit 8
    /// on, how many coefficients it takes. Zero for longer codes.
    steps: [u16; 1 << LOOK],
    /// By the next bits: length and symbol of a short code.
    short: [(u8, u8); 1 << LOOK],
    /// By length: behind the last code, moved to the left of 16 bits; and what makes a code's place
    /// of a code.
    ends: [u32; 17],
    places: [i32; 17],
    symbols: [u8; 256],
    is_ac: bool,
    /// By the next bits, of up to two steps: bits of both, from bit 8 on how many coefficients both
    /// take, from bit 16 on how many the first takes. Empty for a short scan.
    twos: Vec<u32>,
}

impl Table {
    /// Of the numbers of codes by length, and their symbols; none for what is no table.
    fn new(told: &[u8], is_ac: bool) -> Option<Table> {
        let (counts, values) = told.split_first_chunk::<16>()?;
        let mut table = Table {
            steps: [0; 1 << LOOK],
            short: [(0, 0); 1 << LOOK],
            ends: [0; 17],
            places: [0; 17],
            symbols: [0; 256],
            is_ac,
            twos: Vec::new(),
        };
        table
            .symbols
            .get_mut(..values.len())?
            .copy_from_slice(values);
        if !is_ac && values.iter().any(|&bits| bits > 15) {
            return None;
        }
        let (mut code, mut place) = (0u32, 0usize);
        for (length, &count) in (1..).zip(counts) {
            table.places[length] = place as i32 - code as i32;
            for &symbol in values.get(place..place + usize::from(count))? {
                if length as u32 <= LOOK {
                    let (from, many) = (
                        (code as usize) << (LOOK - length as u32),
                        1 << (LOOK - length as u32),
                    );
                    table
                        .short
                        .get_mut(from..from + many)?
                        .fill((length as u8, symbol));
                    table.steps[from..from + many].fill(step(symbol, is_ac, length as u32));
                }
                code += 1;
            }
            place += usize::from(count);
            if code > 1 << length {
                return None;
            }
            table.ends[length] = code << (16 - length);
            code <<= 1;
        }
        Some(table)
    }

    /// Has steps found two at a time.
    fn pair(&mut self) {
        let step = |bits: usize, length: u32| {
            let step = u32::from(self.steps[bits >> (LOOK_AT_TWO - LOOK) & ((1 << LOOK) - 1)]);
            let code = u32::from(self.short[bits >> (LOOK_AT_TWO - LOOK) & ((1 << LOOK) - 1)].0);
            (step & 255, step >> 8, code > 0 && code <= length)
        };
        let two = |bits: usize| {
            let (some, first, is_short) = step(bits, LOOK_AT_TWO);
            if !is_short {
                return 0;
            }
            let left = LOOK_AT_TWO.saturating_sub(some);
            let (more, second, is_known) = step(bits << some, left.min(LOOK));
            match is_known && first < END_OF_BLOCK {
                true => first << 16 | (first + second) << 8 | (some + more),
                false => first << 16 | first << 8 | some,
            }
        };
        self.twos = (0..1 << LOOK_AT_TWO).map(two).collect();
    }

    /// Length and symbol of the code that 16 bits begin with.
    fn long(&self, bits: u32) -> Option<(u32, u8)> {
        let length = (1..=16).find(|&length| bits < self.ends[length])?;
        let place = (bits >> (16 - length)) as i32 + self.places[length];
        Some((length as u32, self.symbols[place as usize & 255]))
    }
}

/// Of a code of a block of a sequential file: its bits and those behind it, and how many
/// coefficients it takes.
fn step(symbol: u8, is_ac: bool, length: u32) -> u16 {
    let (run, bits) = (u32::from(symbol >> 4), u32::from(symbol & 15));
    let coefficients = match (is_ac, run, bits) {
        (true, 0..=14, 0) => END_OF_BLOCK,
        _ => run + 1,
    };
    (coefficients << 8 | (length + bits)) as u16
}

/// What entropy-coded data cannot be, or that the caller has cancelled the walk.
#[derive(Clone, Copy, Debug)]
enum Bad {
    GivenUp,
    Code,
    Beyond,
    Run,
    Cut,
    Rest,
}

impl Bad {
    fn told(self, scan: usize, at: usize) -> Wrong {
        let what = match self {
            Bad::GivenUp => return Wrong::GivenUp,
            Bad::Code => "a code that its table does not have",
            Bad::Beyond => "a coefficient outside its block",
            Bad::Run => "a run of blocks beyond its end",
            Bad::Cut => {
                let what = format!("scan {scan} ends before its last block, at byte {at}");
                return Wrong::Damaged(what);
            }
            Bad::Rest => "bytes behind its last block, or one of its codes is wrong",
        };
        Wrong::Damaged(format!("scan {scan} has {what}, before byte {at}"))
    }
}

/// Bits of entropy-coded data up to a marker; behind that, zeros without end.
struct Bits<'a, 'w> {
    poll: Poll<'w>,
    bytes: &'a [u8],
    /// Of the next byte.
    at: usize,
    /// The next bits, from the highest on.
    next: u64,
    /// How many these are.
    count: u32,
    /// How many of these are zeros of our own.
    made_up: u32,
}

impl<'a, 'w> Bits<'a, 'w> {
    fn new(bytes: &'a [u8], at: usize, poll: Poll<'w>) -> Bits<'a, 'w> {
        Bits {
            poll,
            bytes,
            at,
            next: 0,
            count: 0,
            made_up: 0,
        }
    }

    /// Has at least 32 bits: a code and what follows it.
    #[inline(always)]
    fn refill(&mut self) {
        if self.count >= 2 * CODE_BITS_MOST {
            return;
        }
        if let Some(eight) = self
            .bytes
            .get(self.at..)
            .and_then(|rest| rest.first_chunk())
        {
            let eight = u64::from_be_bytes(*eight);
            if !has_ff(eight) {
                self.next |= eight >> self.count;
                self.at += (63 - self.count as usize) / 8;
                self.count |= 56;
                return;
            }
        }
        self.refill_by_bytes();
    }

    fn refill_by_bytes(&mut self) {
        while self.count <= 56 {
            let byte = match self.bytes.get(self.at..) {
                Some(&[0xFF, 0, ..]) => {
                    self.at += 2;
                    0xFF
                }
                // Some pad with more of them, which decoders pass over.
                Some(&[0xFF, 0xFF, ref rest @ ..])
                    if rest.iter().find(|&&byte| byte != 0xFF) == Some(&0) =>
                {
                    self.at += 1;
                    continue;
                }
                None | Some(&[0xFF, ..] | &[]) => {
                    self.made_up += 8;
                    0
                }
                Some(&[byte, ..]) => {
                    self.at += 1;
                    byte
                }
            };
            self.next |= u64::from(byte) << (56 - self.count);
            self.count += 8;
        }
    }

    #[inline(always)]
    fn skip(&mut self, bits: u32) {
        self.next <<= bits;
        self.count -= bits;
    }

    /// Any number of bits.
    fn skip_many(&mut self, mut bits: u32) {
        while bits > 0 {
            self.refill();
            let some = bits.min(2 * CODE_BITS_MOST);
            self.skip(some);
            bits -= some;
        }
    }

    /// The next bits, of which there may be none.
    fn take(&mut self, bits: u32) -> u32 {
        let taken = (self.next >> 32) as u32;
        self.skip(bits);
        taken.checked_shr(32 - bits).unwrap_or(0)
    }

    /// Goes behind a code and its bits; returns how many coefficients they take.
    #[inline(always)]
    fn step(&mut self, table: &Table) -> Result<u32, Bad> {
        self.refill();
        let mut step = table.steps[(self.next >> (64 - LOOK)) as usize];
        if step == 0 {
            let (length, symbol) = table.long((self.next >> 48) as u32).ok_or(Bad::Code)?;
            step = self::step(symbol, table.is_ac, length);
        }
        self.skip(u32::from(step & 255));
        Ok(u32::from(step >> 8))
    }

    /// Goes behind one or two codes of a block, and their bits; returns the coefficient that it is
    /// at then.
    #[inline(always)]
    fn steps(&mut self, table: &Table, coefficient: u32) -> Result<u32, Bad> {
        self.refill();
        let two = table.twos[(self.next >> (64 - LOOK_AT_TWO)) as usize];
        // What ends its block has no other step behind it.
        if two == 0 || coefficient + (two >> 16) > 63 {
            return Ok(coefficient + self.step(table)?);
        }
        self.skip(two & 255);
        Ok(coefficient + (two >> 8 & 255))
    }

    /// Goes behind a code; returns its symbol. The bits that follow it are there.
    #[inline(always)]
    fn symbol(&mut self, table: &Table) -> Result<(u32, u32), Bad> {
        self.refill();
        let (length, symbol) = match table.short[(self.next >> (64 - LOOK)) as usize] {
            (0, _) => table.long((self.next >> 48) as u32).ok_or(Bad::Code)?,
            (length, symbol) => (u32::from(length), symbol),
        };
        self.skip(length);
        Ok((u32::from(symbol >> 4), u32::from(symbol & 15)))
    }

    /// Whether all bits so far were there, and more are wanted.
    #[inline(always)]
    fn check(&mut self) -> Result<(), Bad> {
        if self.made_up > self.count {
            Err(Bad::Cut)
        } else if !self.poll.go_on(self.at) {
            Err(Bad::GivenUp)
        } else {
            Ok(())
        }
    }

    /// At the end of an interval, where only bits that fill a byte may be left.
    fn end(&mut self) -> Result<(), Bad> {
        self.check()?;
        let rest = self.bytes.get(self.at..).unwrap_or_default();
        let is_data = rest.first().is_some_and(|&byte| byte != 0xFF)
            || rest.iter().find(|&&byte| byte != 0xFF) == Some(&0);
        if self.count - self.made_up >= 8 || is_data {
            Err(Bad::Rest)
        } else {
            Ok(())
        }
    }

    /// Units of a sequential file, whose blocks have these tables.
    fn sequential<const IS_LONG: bool>(
        &mut self,
        units: u64,
        dc: &[&Table],
        ac: &[&Table],
    ) -> Result<(), Bad> {
        for _ in 0..units {
            for (dc, ac) in dc.iter().zip(ac) {
                self.step(dc)?;
                let mut coefficient = 1;
                while coefficient < 64 {
                    coefficient = if IS_LONG {
                        self.steps(ac, coefficient)?
                    } else {
                        coefficient + self.step(ac)?
                    };
                }
                if coefficient > 64 && coefficient < END_OF_BLOCK {
                    return Err(Bad::Beyond);
                }
                self.check()?;
            }
        }
        Ok(())
    }

    fn dc_first(&mut self, units: u64, tables: &[&Table]) -> Result<(), Bad> {
        for _ in 0..units {
            for table in tables {
                self.step(table)?;
            }
            self.check()?;
        }
        Ok(())
    }

    /// One more bit of every DC coefficient.
    fn dc_next(&mut self, units: u64, blocks: usize) -> Result<(), Bad> {
        for _ in 0..units {
            self.skip_many(blocks as u32);
            self.check()?;
        }
        Ok(())
    }

    fn ac_first(&mut self, table: &Table, band: Band, seen: &mut [u64]) -> Result<(), Bad> {
        let mut block = 0;
        while block < seen.len() {
            let mut coefficient = band.start;
            while coefficient <= band.end {
                match self.symbol(table)? {
                    (15, 0) => coefficient += 16,
                    (bits, 0) => {
                        let run = (1 << bits | self.take(bits)) as usize;
                        if run > seen.len() - block {
                            return Err(Bad::Run);
                        }
                        block += run - 1;
                        break;
                    }
                    (run, bits) => {
                        coefficient += run;
                        if coefficient > band.end {
                            return Err(Bad::Beyond);
                        }
                        self.skip(bits);
                        seen[block] |= 1 << coefficient;
                        coefficient += 1;
                    }
                }
            }
            if coefficient > band.end + 1 {
                return Err(Bad::Beyond);
            }
            block += 1;
            self.check()?;
        }
        Ok(())
    }

    /// One more bit of every AC coefficient: each that is not zero has a bit, and some that were
    /// zero come to be one or minus one.
    fn ac_next(&mut self, table: &Table, band: Band, seen: &mut [u64]) -> Result<(), Bad> {
        let (blocks, mut run) = (seen.len(), 0);
        for (block, seen) in seen.iter_mut().enumerate() {
            let mut coefficient = band.start;
            while run == 0 && coefficient <= band.end {
                let (zeros, bits) = match self.symbol(table)? {
                    (bits @ 0..=14, 0) => {
                        run = (1 << bits | self.take(bits)) as usize;
                        if run > blocks - block {
                            return Err(Bad::Run);
                        }
                        break;
                    }
                    (zeros, bits @ 0..=1) => (zeros, bits),
                    _ => return Err(Bad::Code),
                };
                // The zero after `zeros` others.
                let zero = nth_zero(*seen, coefficient, zeros)
                    .filter(|&zero| zero <= band.end)
                    .ok_or(Bad::Beyond)?;
                self.skip_many(bits + (*seen & between(coefficient, zero)).count_ones());
                *seen |= u64::from(bits) << zero;
                coefficient = zero + 1;
            }
            if run > 0 {
                self.skip_many((*seen & between(coefficient, band.end + 1)).count_ones());
                run -= 1;
            }
            self.check()?;
        }
        Ok(())
    }
}

const ONES: u64 = u64::MAX / 0xFF;

/// Whether one of eight bytes has all bits set.
#[inline(always)]
fn has_ff(eight: u64) -> bool {
    (!eight).wrapping_sub(ONES) & eight & (ONES << 7) != 0
}

/// The n-th bit, from 0, of those from `start` on that are not set.
fn nth_zero(mask: u64, start: u32, n: u32) -> Option<u32> {
    let mut zeros = !mask & between(start, 64);
    for _ in 0..n {
        zeros &= zeros.wrapping_sub(1);
    }
    (zeros != 0).then(|| zeros.trailing_zeros())
}

/// Bits from one up to another.
fn between(start: u32, end: u32) -> u64 {
    let below = |bit: u32| if bit >= 64 { u64::MAX } else { (1 << bit) - 1 };
    below(end) & !below(start)
}

/// A segment with the tables of T.81, annex K, which files without tables mean.
pub(super) fn usual_tables() -> Vec<u8> {
    let tables = [(0x00, 0), (0x01, 1), (0x10, 4), (0x11, 5)];
    let body: Vec<u8> = tables
        .into_iter()
        .flat_map(|(place, number)| [&[place], USUAL[number % 4 + number / 4 * 2]].concat())
        .collect();
    [
        &[0xFF, 0xC4][..],
        &(body.len() as u16 + 2).to_be_bytes(),
        &body,
    ]
    .concat()
}

fn usual_table(number: usize) -> Option<&'static [u8]> {
    (number % 4 < 2).then(|| USUAL[number % 4 + number / 4 * 2])
}

/// DC and AC of luminance and chrominance: numbers of codes by length, then symbols.
const USUAL: [&[u8]; 4] = [
    b"\x00\x01\x05\x01\x01\x01\x01\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x01\x02\x03\x04\x05\x06\x07\x08\x09\x0a\x0b",
    b"\x00\x03\x01\x01\x01\x01\x01\x01\x01\x01\x01\x00\x00\x00\x00\x00\x00\x01\x02\x03\x04\x05\x06\x07\x08\x09\x0a\x0b",
    &AC_LUMINANCE,
    &AC_CHROMINANCE,
];

#[rustfmt::skip]
const AC_LUMINANCE: [u8; 178] = [
    0x00, 0x02, 0x01, 0x03, 0x03, 0x02, 0x04, 0x03, 0x05, 0x05, 0x04, 0x04, 0x00, 0x00, 0x01, 0x7d, 0x01, 0x02, 0x03, 0x00,
    0x04, 0x11, 0x05, 0x12, 0x21, 0x31, 0x41, 0x06, 0x13, 0x51, 0x61, 0x07, 0x22, 0x71, 0x14, 0x32, 0x81, 0x91, 0xa1, 0x08,
    0x23, 0x42, 0xb1, 0xc1, 0x15, 0x52, 0xd1, 0xf0, 0x24, 0x33, 0x62, 0x72, 0x82, 0x09, 0x0a, 0x16, 0x17, 0x18, 0x19, 0x1a,
    0x25, 0x26, 0x27, 0x28, 0x29, 0x2a, 0x34, 0x35, 0x36, 0x37, 0x38, 0x39, 0x3a, 0x43, 0x44, 0x45, 0x46, 0x47, 0x48, 0x49,
    0x4a, 0x53, 0x54, 0x55, 0x56, 0x57, 0x58, 0x59, 0x5a, 0x63, 0x64, 0x65, 0x66, 0x67, 0x68, 0x69, 0x6a, 0x73, 0x74, 0x75,
    0x76, 0x77, 0x78, 0x79, 0x7a, 0x83, 0x84, 0x85, 0x86, 0x87, 0x88, 0x89, 0x8a, 0x92, 0x93, 0x94, 0x95, 0x96, 0x97, 0x98,
    0x99, 0x9a, 0xa2, 0xa3, 0xa4, 0xa5, 0xa6, 0xa7, 0xa8, 0xa9, 0xaa, 0xb2, 0xb3, 0xb4, 0xb5, 0xb6, 0xb7, 0xb8, 0xb9, 0xba,
    0xc2, 0xc3, 0xc4, 0xc5, 0xc6, 0xc7, 0xc8, 0xc9, 0xca, 0xd2, 0xd3, 0xd4, 0xd5, 0xd6, 0xd7, 0xd8, 0xd9, 0xda, 0xe1, 0xe2,
    0xe3, 0xe4, 0xe5, 0xe6, 0xe7, 0xe8, 0xe9, 0xea, 0xf1, 0xf2, 0xf3, 0xf4, 0xf5, 0xf6, 0xf7, 0xf8, 0xf9, 0xfa,
];

#[rustfmt::skip]
const AC_CHROMINANCE: [u8; 178] = [
    0x00, 0x02, 0x01, 0x02, 0x04, 0x04, 0x03, 0x04, 0x07, 0x05, 0x04, 0x04, 0x00, 0x01, 0x02, 0x77, 0x00, 0x01, 0x02, 0x03,
    0x11, 0x04, 0x05, 0x21, 0x31, 0x06, 0x12, 0x41, 0x51, 0x07, 0x61, 0x71, 0x13, 0x22, 0x32, 0x81, 0x08, 0x14, 0x42, 0x91,
    0xa1, 0xb1, 0xc1, 0x09, 0x23, 0x33, 0x52, 0xf0, 0x15, 0x62, 0x72, 0xd1, 0x0a, 0x16, 0x24, 0x34, 0xe1, 0x25, 0xf1, 0x17,
    0x18, 0x19, 0x1a, 0x26, 0x27, 0x28, 0x29, 0x2a, 0x35, 0x36, 0x37, 0x38, 0x39, 0x3a, 0x43, 0x44, 0x45, 0x46, 0x47, 0x48,
    0x49, 0x4a, 0x53, 0x54, 0x55, 0x56, 0x57, 0x58, 0x59, 0x5a, 0x63, 0x64, 0x65, 0x66, 0x67, 0x68, 0x69, 0x6a, 0x73, 0x74,
    0x75, 0x76, 0x77, 0x78, 0x79, 0x7a, 0x82, 0x83, 0x84, 0x85, 0x86, 0x87, 0x88, 0x89, 0x8a, 0x92, 0x93, 0x94, 0x95, 0x96,
    0x97, 0x98, 0x99, 0x9a, 0xa2, 0xa3, 0xa4, 0xa5, 0xa6, 0xa7, 0xa8, 0xa9, 0xaa, 0xb2, 0xb3, 0xb4, 0xb5, 0xb6, 0xb7, 0xb8,
    0xb9, 0xba, 0xc2, 0xc3, 0xc4, 0xc5, 0xc6, 0xc7, 0xc8, 0xc9, 0xca, 0xd2, 0xd3, 0xd4, 0xd5, 0xd6, 0xd7, 0xd8, 0xd9, 0xda,
    0xe2, 0xe3, 0xe4, 0xe5, 0xe6, 0xe7, 0xe8, 0xe9, 0xea, 0xf2, 0xf3, 0xf4, 0xf5, 0xf6, 0xf7, 0xf8, 0xf9, 0xfa,
];

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

        #[test]
        fn bits_of_a_mask(mask: u64, start in 0..64u32, n in 0..16u32) {
            let zeros: Vec<u32> = (start..64).filter(|bit| mask >> bit & 1 == 0).collect();
            prop_assert_eq!(nth_zero(mask, start, n), zeros.get(n as usize).copied());
            prop_assert_eq!((mask & between(start, 64)).count_ones() as usize, (64 - start) as usize - zeros.len());
            prop_assert_eq!(has_ff(mask), mask.to_be_bytes().contains(&0xFF));
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
