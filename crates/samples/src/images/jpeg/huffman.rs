//! Huffman tables of a JPEG file: what its codes mean, by the next bits.

/// Codes up to this length are found at once.
pub(super) const LOOK: u32 = 9;
/// Two codes, and the bits that follow the first, are found at once up to this length.
pub(super) const LOOK_AT_TWO: u32 = 11;
/// Of a Huffman code, and of the bits that follow one.
pub(super) const CODE_BITS_MOST: u32 = 16;
/// Steps that end a block go behind any coefficient that a run reaches.
pub(super) const END_OF_BLOCK: u32 = 128;

/// Codes of a Huffman table.
pub(super) struct Table {
    /// By the next bits: bits of a short code and of what follows it, and behind them, from bit 8
    /// on, how many coefficients it takes. Zero for longer codes.
    pub(super) steps: [u16; 1 << LOOK],
    /// By the next bits: length and symbol of a short code.
    pub(super) short: [(u8, u8); 1 << LOOK],
    /// By length: behind the last code, moved to the left of 16 bits; and what makes a code's place
    /// of a code.
    ends: [u32; 17],
    places: [i32; 17],
    symbols: [u8; 256],
    pub(super) is_ac: bool,
    /// By the next bits, of up to two steps: bits of both, from bit 8 on how many coefficients both
    /// take, from bit 16 on how many the first takes. Empty for a short scan.
    pub(super) twos: Vec<u32>,
}

impl Table {
    /// Of the numbers of codes by length, and their symbols; none for what is no table.
    pub(super) fn new(told: &[u8], is_ac: bool) -> Option<Table> {
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
    pub(super) fn pair(&mut self) {
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
    pub(super) fn long(&self, bits: u32) -> Option<(u32, u8)> {
        let length = (1..=16).find(|&length| bits < self.ends[length])?;
        let place = (bits >> (16 - length)) as i32 + self.places[length];
        Some((length as u32, self.symbols[place as usize & 255]))
    }
}

/// Of a code of a block of a sequential file: its bits and those behind it, and how many
/// coefficients it takes.
pub(super) fn step(symbol: u8, is_ac: bool, length: u32) -> u16 {
    let (run, bits) = (u32::from(symbol >> 4), u32::from(symbol & 15));
    let coefficients = match (is_ac, run, bits) {
        (true, 0..=14, 0) => END_OF_BLOCK,
        _ => run + 1,
    };
    (coefficients << 8 | (length + bits)) as u16
}

/// A segment with the tables of T.81, annex K, which files without tables mean.
pub(in super::super) fn usual_tables() -> Vec<u8> {
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

pub(super) fn usual_table(number: usize) -> Option<&'static [u8]> {
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
