//! Pieces of memory that may be lent to the hardware.
//!
//! A [`Buf`] is an exclusive range of some [`Memory`]; a [`Shared`] is a read-only range with any
//! number of holders. Both keep their memory alive: it is freed when its last piece is dropped, by
//! whichever thread or driver holds that piece.
//!
//! Invariant, kept by this file alone: the ranges of all live `Buf`s of one origin are disjoint,
//! and a `Shared` lies inside a `Buf` that no other code can access. All `unsafe` below relies on
//! it.

use std::fmt;
use std::io;
use std::ops::{Deref, DerefMut, Range};
use std::ptr::NonNull;
use std::sync::Arc;

/// Memory of any origin: an anonymous map, a memfd, pinned pages, the caller's array.
///
/// # Safety
/// From construction until drop, `pointer()` must be valid for reads and writes of `len()`
/// initialised bytes and must not change, and the bytes must not be accessed in any other way while
/// a [`Buf`] made of this memory exists.
pub unsafe trait Memory: Send + Sync {
    /// The first byte.
    fn pointer(&self) -> NonNull<u8>;
    /// Length in bytes.
    fn len(&self) -> usize;
    /// Whether there is no byte at all.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Owner of the bytes of a piece.
enum Origin {
    Map(Map),
    Memory(#[expect(dead_code, reason = "held for its Drop")] Box<dyn Memory>),
    Lent(Buf),
}

/// Keeps a range mapped at its address, even after its `Buf` is dropped, without giving access to
/// its bytes.
pub struct Anchor {
    _origin: Option<Arc<Origin>>,
    range: Range<usize>,
}

impl Anchor {
    /// The addresses.
    pub fn range(&self) -> Range<usize> {
        self.range.clone()
    }
}

impl fmt::Debug for Anchor {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Anchor({:x?})", self.range)
    }
}

/// An exclusive range of a [`Memory`].
///
/// It dereferences to its bytes. [`split_to`](Buf::split_to) cuts it without copying; the memory is
/// freed when the last piece is dropped. The default is an empty range that holds no memory.
pub struct Buf {
    origin: Option<Arc<Origin>>,
    pointer: NonNull<u8>,
    len: usize,
}

// SAFETY: a `Buf` is the only way to its bytes (this file's invariant), and `Memory` is Send and
// Sync, so moving a `Buf` to another thread moves the right to use the bytes with it, and `&Buf`
// gives out `&[u8]` only.
unsafe impl Send for Buf {}
// SAFETY: as above.
unsafe impl Sync for Buf {}

impl Buf {
    /// The whole of `memory`.
    pub fn new(memory: Box<dyn Memory>) -> Buf {
        let (pointer, len) = (memory.pointer(), memory.len());
        Buf {
            origin: Some(Arc::new(Origin::Memory(memory))),
            pointer,
            len,
        }
    }

    /// Fresh zeroed memory, page aligned, allocated by the system page by page on first touch. From
    /// 2 MiB on it is aligned to huge pages, and huge pages are requested. The pages of a piece are
    /// returned to the system when that piece is dropped.
    pub fn anonymous(len: usize) -> io::Result<Buf> {
        if len == 0 {
            return Ok(Buf::default());
        }
        Ok(Buf::of_map(Map::anonymous(len)?, len))
    }

    /// The same, of pages that a forked child does not get: for memory that a device moves bytes to
    /// while a fork may copy it. In the child the addresses are not mapped, so no code there may
    /// look at the bytes; to drop the range there does nothing.
    pub fn not_inherited(len: usize) -> io::Result<Buf> {
        if len == 0 {
            return Ok(Buf::default());
        }
        let mut map = Map::anonymous(len)?;
        map.keep_from_children();
        Ok(Buf::of_map(map, len))
    }

    fn of_map(map: Map, len: usize) -> Buf {
        let pointer = map.pointer;
        Buf {
            origin: Some(Arc::new(Origin::Map(map))),
            pointer,
            len,
        }
    }

    /// Whether a forked child has the pages too.
    pub fn is_inherited(&self) -> bool {
        match self.origin.as_deref() {
            Some(Origin::Map(map)) => map.owner.is_none(),
            Some(Origin::Lent(buf)) => buf.is_inherited(),
            Some(Origin::Memory(_)) | None => true,
        }
    }

    /// Cuts off and returns the first `at` bytes; `self` keeps the rest.
    ///
    /// # Panics
    /// If `at` is beyond the end.
    pub fn split_to(&mut self, at: usize) -> Buf {
        assert!(
            at <= self.len,
            "split at {at} of a buffer of {} bytes",
            self.len
        );
        let head = Buf {
            origin: self.origin.clone(),
            pointer: self.pointer,
            len: at,
        };
        // SAFETY: `at <= len`, so the pointer stays within the range or one past its end.
        self.pointer = unsafe { self.pointer.add(at) };
        self.len -= at;
        head
    }

    /// Cuts off and returns the bytes from `at` on; `self` keeps the first `at`.
    ///
    /// # Panics
    /// If `at` is beyond the end.
    pub fn split_off(&mut self, at: usize) -> Buf {
        let head = self.split_to(at);
        std::mem::replace(self, head)
    }

    /// Adds the range that follows this one in the same memory.
    ///
    /// # Errors
    /// `next` again, if it is not that range.
    pub fn try_join(&mut self, mut next: Buf) -> Result<(), Buf> {
        let follows = self.pointer.as_ptr().wrapping_add(self.len) == next.pointer.as_ptr();
        match (&self.origin, &next.origin) {
            (Some(one), Some(other)) if follows && Arc::ptr_eq(one, other) => {
                self.len += std::mem::take(&mut next.len);
                Ok(())
            }
            _ => Err(next),
        }
    }

    /// Returns the pages of an [`anonymous`](Buf::anonymous) range to the system; the next access
    /// allocates fresh ones. Contents are unspecified afterwards.
    pub fn give_back(&mut self) {
        if let Some(Origin::Map(map)) = self.origin.as_deref() {
            map.give_back(self.pointer, self.len);
        }
    }

    /// Lends the range: the returned `Buf` may be cut and moved anywhere, and [`Whole::reclaim`]
    /// returns the range once every piece of it was dropped.
    pub fn lend(self) -> (Whole, Buf) {
        let (pointer, len) = (self.pointer, self.len);
        let origin = Arc::new(Origin::Lent(self));
        (
            Whole(Arc::clone(&origin)),
            Buf {
                origin: Some(origin),
                pointer,
                len,
            },
        )
    }

    /// Makes the range read-only, so that it can have several holders.
    pub fn freeze(self) -> Shared {
        let (pointer, len) = (self.pointer, self.len);
        Shared {
            frozen: Arc::new(self),
            pointer,
            len,
        }
    }

    /// Keeps the range mapped at its address.
    pub fn anchor(&self) -> Anchor {
        let start = self.pointer.as_ptr() as usize;
        Anchor {
            _origin: self.origin.clone(),
            range: start..start + self.len,
        }
    }
}

impl Drop for Buf {
    fn drop(&mut self) {
        if let Some(origin) = &self.origin
            && let Origin::Map(map) = &**origin
            && Arc::strong_count(origin) > 1
        {
            map.give_back(self.pointer, self.len);
            map.keep_small(self.pointer, self.len);
        }
    }
}

/// An empty range has an address aligned for any type, so that it can be cast to an empty slice of
/// that type.
#[repr(align(4096))]
struct Page;

impl Default for Buf {
    fn default() -> Self {
        Buf {
            origin: None,
            pointer: NonNull::<Page>::dangling().cast(),
            len: 0,
        }
    }
}

impl Deref for Buf {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: the range lies in memory that `origin` keeps valid and initialised (or is empty
        // and dangling), and exclusive access is ours, so no write happens while this borrow lives.
        unsafe { std::slice::from_raw_parts(self.pointer.as_ptr(), self.len) }
    }
}

impl DerefMut for Buf {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`; `&mut self` makes the access unique.
        unsafe { std::slice::from_raw_parts_mut(self.pointer.as_ptr(), self.len) }
    }
}

impl fmt::Debug for Buf {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Buf({:p}, {} bytes)", self.pointer, self.len)
    }
}

// SAFETY: a `Buf`'s bytes are valid and stable until it is dropped, and a `Buf` that was lent is
// reachable only through the pieces made of the loan.
unsafe impl Memory for Buf {
    fn pointer(&self) -> NonNull<u8> {
        self.pointer
    }
    fn len(&self) -> usize {
        self.len
    }
}

/// The right to get a lent [`Buf`] back.
pub struct Whole(Arc<Origin>);

impl Whole {
    /// The lent range again, or `self` back while a piece of it still lives.
    pub fn reclaim(self) -> Result<Buf, Whole> {
        match Arc::try_unwrap(self.0) {
            Ok(Origin::Lent(buf)) => Ok(buf),
            Ok(Origin::Map(_) | Origin::Memory(_)) => unreachable!("only `lend` makes a `Whole`"),
            Err(origin) => Err(Whole(origin)),
        }
    }

    /// Whether [`reclaim`](Whole::reclaim) would succeed now. Once true it stays true.
    pub fn is_idle(&self) -> bool {
        Arc::strong_count(&self.0) == 1
    }
}

impl fmt::Debug for Whole {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            formatter,
            "Whole({} pieces)",
            Arc::strong_count(&self.0) - 1
        )
    }
}

/// A read-only range with any number of holders.
#[derive(Clone)]
pub struct Shared {
    frozen: Arc<Buf>,
    pointer: NonNull<u8>,
    len: usize,
}

// SAFETY: `Shared` gives out `&[u8]` only, of bytes that cannot be written while `frozen` is held.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

impl Shared {
    /// A part of this range.
    ///
    /// # Panics
    /// If `range` is not inside.
    pub fn slice(&self, range: Range<usize>) -> Shared {
        assert!(
            range.start <= range.end && range.end <= self.len,
            "slice {range:?} of a shared buffer of {} bytes",
            self.len
        );
        Shared {
            frozen: Arc::clone(&self.frozen),
            // SAFETY: `start <= len`, so the pointer stays within the range or one past its end.
            pointer: unsafe { self.pointer.add(range.start) },
            len: range.end - range.start,
        }
    }

    /// The whole [`Buf`] that was frozen, whatever part of it `self` is; only for the sole holder.
    /// Otherwise returns `self`.
    pub fn try_thaw(self) -> Result<Buf, Shared> {
        let Shared {
            frozen,
            pointer,
            len,
        } = self;
        Arc::try_unwrap(frozen).map_err(|frozen| Shared {
            frozen,
            pointer,
            len,
        })
    }
}

impl Deref for Shared {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: the range lies inside `frozen`, which keeps it valid and allows no write.
        unsafe { std::slice::from_raw_parts(self.pointer.as_ptr(), self.len) }
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Shared({:p}, {} bytes)", self.pointer, self.len)
    }
}

/// Anonymous private pages.
struct Map {
    pointer: NonNull<u8>,
    len: usize,
    /// The process whose pages these are, where its children do not have them: there the addresses
    /// may belong to something else.
    owner: Option<u32>,
}

/// Below this size a huge page cannot be used whole.
const HUGE_PAGE_BYTES: usize = 2 << 20;

impl Map {
    fn anonymous(len: usize) -> io::Result<Map> {
        use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
        let slack = if len >= HUGE_PAGE_BYTES {
            HUGE_PAGE_BYTES
        } else {
            0
        };
        let reserved = len.saturating_add(slack);
        // SAFETY: a fresh anonymous map at an address of the kernel's choice overlaps no other
        // memory.
        let address = unsafe {
            mmap_anonymous(
                std::ptr::null_mut(),
                reserved,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE,
            )
        }?;
        let pointer = NonNull::new(address.cast()).expect("a map is never at address 0");
        let mut map = Map {
            pointer,
            len: reserved,
            owner: None,
        };
        if slack > 0 {
            map.trim(len);
            map.ask_for_huge_pages();
        }
        Ok(map)
    }

    /// Keeps `len` bytes from the first address where a huge page can begin.
    fn trim(&mut self, len: usize) {
        let head = self.pointer.align_offset(HUGE_PAGE_BYTES);
        let tail = (head + len).next_multiple_of(rustix::param::page_size());
        let unmap = |from: usize, to: usize| {
            if from < to {
                // Refused only where a process has as many maps as it may: the range stays
                // reserved then, which costs address space alone.
                // SAFETY: the range lies inside this map, on pages that were never handed out.
                _ = unsafe {
                    rustix::mm::munmap(self.pointer.as_ptr().add(from).cast(), to - from)
                };
            }
        };
        unmap(0, head);
        unmap(tail, self.len);
        // SAFETY: the map is a huge page longer than `len`, so that `head` and `len` bytes more are
        // inside.
        self.pointer = unsafe { self.pointer.add(head) };
        self.len = len;
    }

    /// The advice is for the map as a whole, so that it is not split and huge pages stay whole.
    fn keep_from_children(&mut self) {
        #[cfg(target_os = "linux")]
        {
            use rustix::mm::{Advice, madvise};
            let (address, len) = (self.pointer.as_ptr().cast(), self.len);
            // SAFETY: the map is ours, and this advice changes what a fork copies, never contents.
            match unsafe { madvise(address, len, Advice::LinuxDontFork) } {
                Ok(()) => self.owner = Some(std::process::id()),
                Err(error) => log::debug!("a child will have {len} bytes: {error}"),
            }
        }
    }

    /// Whether the pages are there: not in a child that did not get them.
    fn is_here(&self) -> bool {
        self.owner.is_none_or(|owner| owner == std::process::id())
    }

    /// Gives whole pages back to the system, of a range with no other owner. They stay mapped, and
    /// would read as zero.
    fn give_back(&self, pointer: NonNull<u8>, len: usize) {
        #[cfg(target_os = "linux")]
        self.advise(pointer, len, rustix::mm::Advice::LinuxDontNeed);
    }

    /// Without this, the system would collapse returned pages into huge pages where their
    /// neighbours are huge.
    fn keep_small(&self, pointer: NonNull<u8>, len: usize) {
        #[cfg(target_os = "linux")]
        if self.len >= HUGE_PAGE_BYTES {
            self.advise(pointer, len, rustix::mm::Advice::LinuxNoHugepage);
        }
    }

    #[cfg(target_os = "linux")]
    fn advise(&self, pointer: NonNull<u8>, len: usize, advice: rustix::mm::Advice) {
        let page = rustix::param::page_size();
        let from = pointer.align_offset(page);
        let bytes = len.saturating_sub(from) / page * page;
        if bytes == 0 || !self.is_here() {
            return;
        }
        // SAFETY: the caller's range is its own and lies in this map; its bytes are unspecified
        // afterwards.
        let advised =
            unsafe { rustix::mm::madvise(pointer.as_ptr().add(from).cast(), bytes, advice) };
        if let Err(error) = advised {
            log::debug!("{advice:?} for {bytes} bytes: {error}");
        }
    }

    #[cfg(target_os = "linux")]
    fn ask_for_huge_pages(&self) {
        let address = self.pointer.as_ptr().cast();
        // SAFETY: the range is ours, and this advice changes page sizes, never contents. Refusal
        // costs speed only.
        let advised =
            unsafe { rustix::mm::madvise(address, self.len, rustix::mm::Advice::LinuxHugepage) };
        if let Err(error) = advised {
            log::debug!("huge pages refused: {error}");
        }
    }

    #[cfg(not(target_os = "linux"))]
    fn ask_for_huge_pages(&self) {}
}

impl Drop for Map {
    fn drop(&mut self) {
        if !self.is_here() {
            return;
        }
        // Refused only where the process has its most maps; the memory then stays mapped.
        // SAFETY: the map was made with this address and length, and no piece of it is left: this
        // is the last owner.
        _ = unsafe { rustix::mm::munmap(self.pointer.as_ptr().cast(), self.len) };
    }
}

// SAFETY: the map is private to this value, and plain bytes may be used from any thread.
unsafe impl Send for Map {}
// SAFETY: as above.
unsafe impl Sync for Map {}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering};

    struct Watched {
        bytes: Vec<u8>,
        gone: Arc<AtomicBool>,
    }

    impl Drop for Watched {
        fn drop(&mut self) {
            self.gone.store(true, Ordering::SeqCst);
        }
    }

    // SAFETY: the vector is never touched again except through `pointer`, and never reallocates.
    unsafe impl Memory for Watched {
        fn pointer(&self) -> NonNull<u8> {
            NonNull::new(self.bytes.as_ptr().cast_mut()).unwrap()
        }
        fn len(&self) -> usize {
            self.bytes.len()
        }
    }

    fn watched(len: usize) -> (Buf, Arc<AtomicBool>) {
        let gone = Arc::new(AtomicBool::new(false));
        (
            Buf::new(Box::new(Watched {
                bytes: vec![0; len],
                gone: Arc::clone(&gone),
            })),
            gone,
        )
    }

    #[test]
    fn memory_lives_as_long_as_any_piece() {
        let (mut buf, gone) = watched(100);
        let head = buf.split_to(40);
        let tail = buf.split_off(50);
        assert_eq!((head.len(), buf.len(), tail.len()), (40, 50, 10));
        drop(head);
        drop(buf);
        assert!(!gone.load(Ordering::SeqCst));
        drop(tail);
        assert!(gone.load(Ordering::SeqCst));
    }

    #[test]
    fn a_loan_comes_back_whole_after_its_last_piece() {
        let (buf, gone) = watched(64);
        let (whole, mut lent) = buf.lend();
        lent[63] = 9;
        let head = lent.split_to(10);
        let whole = whole.reclaim().unwrap_err();
        drop(lent);
        assert!(!whole.is_idle());
        let whole = whole.reclaim().unwrap_err();
        drop(head);
        assert!(whole.is_idle());
        let buf = whole.reclaim().unwrap();
        assert_eq!((buf.len(), buf[63]), (64, 9));
        assert!(!gone.load(Ordering::SeqCst));
        drop(buf);
        assert!(gone.load(Ordering::SeqCst));
    }

    #[test]
    fn thawing_any_slice_gives_the_whole_to_the_sole_holder() {
        let mut buf = Buf::anonymous(4096).unwrap();
        buf[100] = 5;
        let shared = buf.freeze();
        let slice = shared.slice(100..200);
        assert_eq!((slice.len(), slice[0]), (100, 5));
        let slice = slice.try_thaw().unwrap_err();
        drop(shared);
        assert_eq!(slice.try_thaw().unwrap().len(), 4096);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn pages_go_back_with_their_piece() {
        const PIECE: usize = 1 << 20;
        let resident_bytes = || {
            let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
            statm.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * rustix::param::page_size()
        };
        let mut buf = Buf::anonymous(128 * PIECE).unwrap();
        buf.fill(3);
        let mut pieces: Vec<Buf> = (0..128).map(|_| buf.split_to(PIECE)).collect();
        let before = resident_bytes();
        let mut index = 0;
        pieces.retain(|_| (index += 1, index % 2 == 0).1);
        assert!(before - resident_bytes() > 48 * PIECE);
        assert!(
            pieces
                .iter()
                .all(|piece| piece.iter().all(|&byte| byte == 3))
        );
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn children_are_kept_from_all_of_a_map_or_nothing_of_it() {
        let mut buf = Buf::not_inherited(64 << 20).unwrap();
        let inherited = Buf::anonymous(8 << 20).unwrap();
        assert!(!buf.is_inherited() && inherited.is_inherited());
        let piece = buf.split_to(1 << 20);
        let (whole, lent) = piece.lend();
        assert!(!lent.is_inherited());
        drop((whole, lent));
        assert!(Buf::not_inherited(0).unwrap().is_empty());
        // `dc`: do not copy on fork.
        let is_kept = |buf: &Buf| {
            let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
            let (start, mut inside, mut flags) = (buf.as_ptr() as usize, false, Vec::new());
            for line in maps.lines() {
                let range = line
                    .split(' ')
                    .next()
                    .and_then(|range| range.split_once('-'));
                let address = |text| usize::from_str_radix(text, 16).ok();
                if let Some((Some(from), Some(to))) =
                    range.map(|(from, to)| (address(from), address(to)))
                {
                    inside = from < start + buf.len() && start < to;
                } else if inside && line.starts_with("VmFlags:") {
                    flags.push(line.split(' ').any(|flag| flag == "dc"));
                }
            }
            assert!(!flags.is_empty());
            flags
        };
        assert!(is_kept(&buf).iter().all(|&kept| kept));
        assert!(is_kept(&inherited).iter().all(|&kept| !kept));
    }

    #[test]
    fn anonymous_memory_is_zeroed_and_page_aligned() {
        for len in [0, 1, 4096, HUGE_PAGE_BYTES + 5] {
            let buf = Buf::anonymous(len).unwrap();
            assert_eq!(
                buf.as_ptr() as usize
                    % if len < HUGE_PAGE_BYTES {
                        4096
                    } else {
                        HUGE_PAGE_BYTES
                    },
                0
            );
            assert!(buf.iter().all(|&byte| byte == 0));
        }
        assert!(Buf::anonymous(0).unwrap().is_empty());
        assert!(Buf::anonymous(usize::MAX).is_err());
    }
}
