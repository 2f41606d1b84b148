//! Ranges of rows, cut to what fits memory.

use std::ops::Range;

/// The most bytes of a panel: enough that the device is busy with one, few enough that many are
/// under way, and that a kernel which passes over one at 1 GB/s ends within 10 ms of a cancellation.
/// A panel is at least one row, though: what takes rows of any length checks for it by itself.
const PANEL_BYTES: u64 = 8 << 20;

/// Cuts `0..end` as [`panels`] does, into ranges short enough that also the frame of one, padding
/// included, is within budget.
pub fn panels_that_fit(
    end: u64,
    bytes_each: u64,
    budget: u64,
    frame_bytes: impl Fn(Range<u64>) -> u64,
) -> Vec<Range<u64>> {
    let mut all = panels(end, bytes_each, budget);
    while let Some(first) = all.first().filter(|first| first.end > 1).cloned() {
        let (half, bytes) = (panels(end, 1, first.end / 2), frame_bytes(first));
        // Pieces of sectors take whole ones: from some length on, shorter pieces save nothing.
        if bytes <= budget.min(2 * PANEL_BYTES) || frame_bytes(half[0].clone()) >= bytes {
            break;
        }
        all = half;
    }
    all
}

/// Cuts `0..end` into ranges of equal length whose `bytes_each` add up to at most `budget`, at
/// least one each.
pub fn panels(end: u64, bytes_each: u64, budget: u64) -> Vec<Range<u64>> {
    let longest = (budget.min(PANEL_BYTES) / bytes_each.max(1)).clamp(1, end.max(1));
    let count = end.div_ceil(longest);
    let length = end.div_ceil(count.max(1)).max(1);
    (0..count)
        .map(|index| index * length..((index + 1) * length).min(end))
        .filter(|range| !range.is_empty())
        .collect()
}

/// A range in steps; the last may be shorter.
pub fn cut(range: Range<u64>, step: u64) -> Vec<Range<u64>> {
    let step = step.max(1);
    range
        .clone()
        .step_by(step as usize)
        .map(|start| start..(start + step).min(range.end))
        .collect()
}
