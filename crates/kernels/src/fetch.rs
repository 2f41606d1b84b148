//! Asking for memory ahead of its use.
#![allow(unsafe_code)]

/// Asks for the cache line at an address, whatever lies there, without waiting for it.
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

/// Asks for the beginning of bytes that are copied next, without waiting for it. Processors find the rest by themselves, and sooner than
/// where all lines are asked for at once: those that wait for memory are few.
pub fn fetch_bytes(bytes: &[u8]) {
    const LINE: usize = 64;
    const MOST: usize = 8 * LINE;
    bytes[..bytes.len().min(MOST)].iter().step_by(LINE).for_each(|byte| fetch(byte));
}
