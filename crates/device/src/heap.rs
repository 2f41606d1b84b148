//! The heap of a program that computes within a memory budget.

use std::alloc::{GlobalAlloc, Layout, System};

/// Allocations from this size on have a map of their own; the kernel clears the pages of each.
const MAPPED_BYTES: usize = 1 << 20;

/// The system's allocator, but large allocations go back to the system when they are freed.
///
/// An allocator that keeps freed memory for the next allocation puts small ones into the gaps of
/// large ones: pages between them stay with the process, where no budget counts them. glibc maps
/// up to 32 MiB from its arenas once an allocation of that size has been freed.
///
/// ```
/// #[global_allocator]
/// static HEAP: outcore_device::Heap = outcore_device::Heap;
///
/// let mut large = vec![1u8; 5 << 20];
/// large.extend_from_slice(&[2; 5 << 20]);
/// large.truncate(3);
/// large.shrink_to_fit();
/// assert_eq!(large, [1, 1, 1]);
/// ```
pub struct Heap;

#[cfg(target_os = "linux")]
mod mapped {
    use std::alloc::Layout;
    use std::ptr::null_mut;

    use rustix::mm::{Advice, MapFlags, MremapFlags, ProtFlags};
    use rustix::mm::{madvise, mmap_anonymous, mremap, munmap};

    /// The smallest page: maps begin at a multiple of it.
    const PAGE_BYTES: usize = 4096;

    /// Whether an allocation has a map of its own: known from what it is freed with.
    pub(super) fn is(layout: Layout) -> bool {
        layout.size() >= super::MAPPED_BYTES && layout.align() <= PAGE_BYTES
    }

    pub(super) fn alloc(layout: Layout) -> *mut u8 {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a fresh anonymous map at an address of the kernel's choice overlaps no other memory.
        let map = unsafe { mmap_anonymous(null_mut(), layout.size(), access, MapFlags::PRIVATE) };
        map.map_or(null_mut(), <*mut _>::cast)
    }

    /// # Safety
    /// As of [`GlobalAlloc::dealloc`](super::GlobalAlloc::dealloc), of a mapped allocation.
    pub(super) unsafe fn dealloc(map: *mut u8, layout: Layout) {
        // SAFETY: it is all that `alloc` or `realloc` has mapped, which its owner uses no more. The
        // kernel merges adjacent maps, and refuses to split one where a process has as many as it
        // may: the pages go back then, and the addresses are lost.
        unsafe {
            if munmap(map.cast(), layout.size()).is_err() {
                _ = madvise(map.cast(), layout.size(), Advice::LinuxDontNeed);
            }
        }
    }

    /// # Safety
    /// As of [`GlobalAlloc::realloc`](super::GlobalAlloc::realloc), from a mapped allocation to
    /// another.
    pub(super) unsafe fn realloc(map: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: as above; where it fails the map stays as it is.
        let moved = unsafe { mremap(map.cast(), layout.size(), size, MremapFlags::MAYMOVE) };
        moved.map_or(null_mut(), <*mut _>::cast)
    }
}

/// Other systems' allocators are taken as they are.
#[cfg(not(target_os = "linux"))]
mod mapped {
    use std::alloc::Layout;

    pub(super) fn is(_layout: Layout) -> bool {
        false
    }

    pub(super) fn alloc(_layout: Layout) -> *mut u8 {
        unreachable!("none is mapped")
    }

    pub(super) unsafe fn dealloc(_map: *mut u8, _layout: Layout) {
        unreachable!("none is mapped")
    }

    pub(super) unsafe fn realloc(_map: *mut u8, _layout: Layout, _size: usize) -> *mut u8 {
        unreachable!("none is mapped")
    }
}

// SAFETY: an allocation is one of the system's allocator or a map, by its layout alone, and is freed
// as what it is. Maps are of whole pages, which are zeros at first.
unsafe impl GlobalAlloc for Heap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        match mapped::is(layout) {
            true => mapped::alloc(layout),
            // SAFETY: the caller's promise.
            false => unsafe { System.alloc(layout) },
        }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        match mapped::is(layout) {
            true => mapped::alloc(layout),
            // SAFETY: the caller's promise.
            false => unsafe { System.alloc_zeroed(layout) },
        }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        match mapped::is(layout) {
            // SAFETY: the caller's promise.
            true => unsafe { mapped::dealloc(at, layout) },
            // SAFETY: the caller's promise.
            false => unsafe { System.dealloc(at, layout) },
        }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the size is the caller's, who has it checked against the alignment.
        let new = unsafe { Layout::from_size_align_unchecked(size, layout.align()) };
        match (mapped::is(layout), mapped::is(new)) {
            // SAFETY: the caller's promise.
            (true, true) => unsafe { mapped::realloc(at, layout, size) },
            // SAFETY: the caller's promise.
            (false, false) => unsafe { System.realloc(at, layout, size) },
            _ => {
                // SAFETY: as above; what both have is copied, and they do not overlap.
                unsafe {
                    let moved = self.alloc(new);
                    if !moved.is_null() {
                        at.copy_to_nonoverlapping(moved, layout.size().min(size));
                        self.dealloc(at, layout);
                    }
                    moved
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[global_allocator]
    static HEAP: Heap = Heap;

    #[test]
    fn allocations_keep_their_bytes_from_one_size_to_another() {
        let sizes = [
            1,
            MAPPED_BYTES - 1,
            MAPPED_BYTES,
            MAPPED_BYTES + 4097,
            7 * MAPPED_BYTES,
        ];
        for from in sizes {
            for to in sizes {
                let mut bytes: Vec<u8> = (0..from).map(|at| at as u8).collect();
                bytes.shrink_to_fit();
                if to < from {
                    bytes.truncate(to);
                    bytes.shrink_to_fit();
                } else {
                    bytes.reserve_exact(to - from);
                    bytes.extend((from..to).map(|at| at as u8));
                }
                let kept = bytes.iter().enumerate().all(|(at, byte)| *byte == at as u8);
                assert!(kept && bytes.len() == to, "from {from} to {to}");
            }
        }
    }

    #[test]
    fn zeros_are_zeros_at_any_alignment() {
        for (size, align) in [(10, 1), (MAPPED_BYTES, 4096), (MAPPED_BYTES, 1 << 16)] {
            let layout = Layout::from_size_align(size, align).expect("a layout");
            // SAFETY: none is of size zero, and each is freed with its layout.
            unsafe {
                let at = HEAP.alloc_zeroed(layout);
                assert_eq!(at.align_offset(align), 0);
                let bytes = std::slice::from_raw_parts_mut(at, size);
                assert!(bytes.iter().all(|byte| *byte == 0));
                bytes.fill(1);
                HEAP.dealloc(at, layout);
            }
        }
    }
}
