//! Prefetching into the processor's caches, and writing around them.
#![allow(unsafe_code)]

use std::mem::MaybeUninit;

pub(crate) const LINE: usize = 64;
/// Bytes of a piece that are prefetched.
pub(crate) const FETCHED_BYTES: usize = 8 * LINE;

pub(crate) type Line = [u8; LINE];
pub(crate) type Room = [MaybeUninit<u8>; LINE];

/// Prefetches the cache line at any address, without waiting for it.
#[inline(always)]
pub(crate) fn fetch<T>(at: *const T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a hint, which touches nothing.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(at.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}

/// Prefetches the beginning of bytes that are copied next. Hardware prefetchers follow with the
/// rest, and sooner than if software prefetched all lines: a core can wait for few lines at a time.
pub fn fetch_bytes(bytes: &[u8]) {
    bytes[..bytes.len().min(FETCHED_BYTES)]
        .iter()
        .step_by(LINE)
        .for_each(|byte| fetch(byte));
}

/// Prefetches an element that is used soon, if it exists.
#[inline(always)]
pub fn fetch_from<T>(list: &[T], index: usize) {
    list.get(index)
        .into_iter()
        .for_each(|element| fetch(element));
}

/// Appends bytes that are not read soon: they are written around the caches to memory, whose lines
/// need not be read first.
pub fn append_past_caches(list: &mut Vec<u8>, bytes: &[u8]) {
    let (head, lines, tail) = lines(list, bytes);
    list.extend_from_slice(head);
    for (line, room) in lines
        .iter()
        .zip(list.spare_capacity_mut().as_chunks_mut().0)
    {
        // SAFETY: `head` ends where a line of the list begins.
        unsafe { store(line, room) };
    }
    // SAFETY: as many lines have been written, into room that `lines` reserved.
    unsafe { stored(list, lines.len()) };
    list.extend_from_slice(tail);
}

/// Splits bytes to be appended to a list, at the cache lines of the list, and reserves room for
/// them.
pub(crate) fn lines<'a>(list: &mut Vec<u8>, bytes: &'a [u8]) -> (&'a [u8], &'a [Line], &'a [u8]) {
    list.reserve(bytes.len());
    let (head, rest) = bytes.split_at(
        list.spare_capacity_mut()
            .as_ptr()
            .align_offset(LINE)
            .min(bytes.len()),
    );
    let (lines, tail) = rest.as_chunks();
    (head, lines, tail)
}

/// Writes a line around the caches.
///
/// # Safety
/// `room` begins at a multiple of [`LINE`], and is not read before [`stored`].
#[inline(always)]
pub(crate) unsafe fn store(line: &Line, room: &mut Room) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_stream_si128};
        for part in 0..LINE / size_of::<__m128i>() {
            // SAFETY: four parts are a line, and `room` is as long and aligned.
            unsafe {
                let from = line.as_ptr().cast::<__m128i>().add(part);
                _mm_stream_si128(
                    room.as_mut_ptr().cast::<__m128i>().add(part),
                    _mm_loadu_si128(from),
                );
            }
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    room.write_copy_of_slice(line);
}

/// Sets the length of a list after lines were written behind its end.
///
/// # Safety
/// `lines` lines were written.
pub(crate) unsafe fn stored(list: &mut Vec<u8>, lines: usize) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: an instruction of every such processor.
    unsafe {
        std::arch::x86_64::_mm_sfence();
    }
    // SAFETY: the caller's.
    unsafe { list.set_len(list.len() + LINE * lines) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_goes_past_the_caches_arrives() {
        let bytes: Vec<u8> = (0..1000).map(|number| number as u8).collect();
        for (before, len) in [
            (0, 0),
            (0, 1000),
            (1, 999),
            (63, 64),
            (64, 640),
            (7, 20),
            (100, 128),
        ] {
            let mut list = bytes[..before].to_vec();
            append_past_caches(&mut list, &bytes[..len]);
            assert_eq!(
                list,
                [&bytes[..before], &bytes[..len]].concat(),
                "{before} {len}"
            );
        }
    }
}
