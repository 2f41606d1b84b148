//! Bytes of a frame for bytes that are to be held.

const PAGE: usize = 4096;
/// Longer frames have exactly the requested size: there are few of them, and a sixteenth of one is
/// a lot.
const ALIKE_BYTES_MAX: usize = 16 << 20;

/// Bytes of a frame for `bytes` bytes. Requests of similar size get frames of equal size, at most
/// an eighth or a page larger, so that one can reuse the frame of another.
pub(crate) fn frame_bytes(bytes: usize) -> u64 {
    let bytes = bytes.max(1);
    let step = if bytes <= ALIKE_BYTES_MAX {
        bytes.next_power_of_two() / 16
    } else {
        PAGE
    };
    bytes.next_multiple_of(step.max(PAGE)) as u64
}
