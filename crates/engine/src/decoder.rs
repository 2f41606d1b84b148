//! Blocks whose bytes in memory are made of those on the device: other numbers of the same values,
//! say, of which the device holds a quarter of the bytes.
//!
//! A frame has room for the decoded bytes. The stored bytes are loaded to its end and decoded in
//! place from its beginning, once a load, by a compute thread:
//!
//! ```text
//!   loaded    |                          |lead|stored row|gap|stored row|gap|
//!   decoded   |decoded row|decoded row|..............|
//! ```
//!
//! Decoded bytes never reach stored ones that are still to be read: a byte more is decoded for each
//! that is stored, `factor` times, and the stored bytes begin `factor - 1` times their length behind
//! the start.

use crate::region::{FrameLayout, Region};

/// Makes the bytes that tasks find of those that an extent holds. Tasks only read them.
#[derive(Clone, Copy, Debug)]
pub struct Decoder {
    /// A number that equal decoders share and others do not; not 0. Decoded blocks of one run are
    /// found by the next one by it.
    pub form: u32,
    /// Bytes that tasks find for each stored byte; 1 or more.
    pub factor: usize,
    /// Makes the bytes in the second slice, which is `factor` times as long as the first. It is
    /// called with whole rows of a region, or parts of them that are multiples of 64 bytes away from
    /// their start.
    pub decode: fn(&[u8], &mut [u8]),
}

/// Stored bytes that are decoded at a time: they are copied out of the way first, which costs little
/// as long as they stay in the first-level cache.
const PART_BYTES: usize = 4096;

impl Decoder {
    /// The layouts of a region's block: of what is loaded, and of what tasks find.
    pub(crate) fn layouts(&self, region: &Region, sector_bytes: u64) -> [FrameLayout; 2] {
        let stored = region.layout(sector_bytes);
        let ahead =
            ((self.factor as u64 - 1) * region.bytes()).next_multiple_of(sector_bytes) as usize;
        let loaded = FrameLayout {
            lead: stored.lead + ahead,
            bytes: stored.bytes + ahead,
            ..stored
        };
        let decoded = FrameLayout {
            lead: 0,
            pitch: region.row_bytes as usize * self.factor,
            bytes: region.bytes() as usize * self.factor,
            spanned: true,
        };
        [loaded, decoded]
    }

    /// Decodes a frame with the stored bytes of a region in place.
    pub(crate) fn decode_frame(&self, frame: &mut [u8], region: &Region, loaded: &FrameLayout) {
        let (row_bytes, mut to) = (region.row_bytes as usize, 0);
        let mut part = [0u64; PART_BYTES / 8];
        let stored: &mut [u8] = bytemuck::cast_slice_mut(&mut part);
        for row in 0..region.rows as usize {
            let start = loaded.lead + row * loaded.pitch;
            for at in (0..row_bytes).step_by(PART_BYTES) {
                let len = PART_BYTES.min(row_bytes - at);
                stored[..len].copy_from_slice(&frame[start + at..][..len]);
                let decoded = len * self.factor;
                (self.decode)(&stored[..len], &mut frame[to..to + decoded]);
                to += decoded;
            }
        }
    }
}
