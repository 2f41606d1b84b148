//! Lines of a sparse matrix in memory, whatever form they are stored in: what every product reads.

use std::ops::Range;

use bytemuck::Pod;

use crate::Real;

/// Rows of the dense operand are prefetched this many entries ahead.
const AHEAD: usize = 8;

mod sealed {
    pub trait Sealed {}
    impl Sealed for u16 {}
    impl Sealed for i32 {}
    impl Sealed for i64 {}
}

/// The type of column numbers: 32 or 64 bits, signed as in SciPy, or 16 bits counted from the first
/// column of a tile.
pub trait Index: sealed::Sealed + Pod + Ord + Send + Sync + 'static {
    /// The column; for a negative number, a column beyond every matrix.
    fn column(self) -> usize;
}

impl Index for u16 {
    #[inline(always)]
    fn column(self) -> usize {
        usize::from(self)
    }
}

impl Index for i32 {
    #[inline(always)]
    fn column(self) -> usize {
        self as u32 as usize
    }
}

impl Index for i64 {
    #[inline(always)]
    fn column(self) -> usize {
        self as u64 as usize
    }
}

/// The entries of one line: their minor indices and values; no values if all are one.
#[derive(Clone, Copy, Debug)]
pub struct Entries<'a, I, T> {
    pub(super) indices: &'a [I],
    pub(super) values: &'a [T],
    /// The minor index that indices count from.
    pub(super) base: usize,
}

impl<I: Index, T: Real> Entries<'_, I, T> {
    /// Calls `f` with minor index and value of each entry.
    #[inline(always)]
    pub fn each(self, mut f: impl FnMut(usize, T)) {
        // Plain loops: the body of a closure would be compiled for the baseline processor.
        if self.values.is_empty() {
            for index in self.indices {
                f(self.base + index.column(), T::ONE);
            }
        } else {
            for (index, &value) in self.indices.iter().zip(self.values) {
                f(self.base + index.column(), value);
            }
        }
    }

    /// Calls `f` with the entries in a window, with minor indices counted from its first.
    #[inline(always)]
    pub(super) fn each_in(self, window: Window, mut f: impl FnMut(usize, T)) {
        match window.is_all {
            true => self.each(f),
            false => self.each(
                #[inline(always)]
                |k, value| {
                    let k = k.wrapping_sub(window.first);
                    if k < window.len {
                        f(k, value);
                    }
                },
            ),
        }
    }

    /// As above; if requested, `ahead` is called with the minor indices of later entries.
    #[inline(always)]
    pub(super) fn each_ahead(
        self,
        window: Window,
        asked: bool,
        mut ahead: impl FnMut(usize),
        mut f: impl FnMut(usize, T),
    ) {
        if !asked {
            return self.each_in(window, f);
        }
        let (indices, values) = (self.indices, self.values);
        for (n, index) in indices.iter().enumerate() {
            if let Some(k) = indices
                .get(n + AHEAD)
                .and_then(|next| window.place(self.base + next.column()))
            {
                ahead(k);
            }
            if let Some(k) = window.place(self.base + index.column()) {
                f(k, if values.is_empty() { T::ONE } else { values[n] });
            }
        }
    }

    /// Number of entries.
    pub fn len(self) -> usize {
        self.indices.len()
    }

    /// Whether there are no entries.
    pub fn is_empty(self) -> bool {
        self.indices.is_empty()
    }
}

/// The range of minor indices that an operand in memory covers.
#[derive(Clone, Copy)]
pub(super) struct Window {
    first: usize,
    len: usize,
    is_all: bool,
}

impl Window {
    pub(super) fn new(first: usize, len: usize, width: usize) -> Option<Window> {
        (first.checked_add(len)? <= width).then_some(Window {
            first,
            len,
            is_all: len == width,
        })
    }

    pub(super) fn all(width: usize) -> Window {
        Window {
            first: 0,
            len: width,
            is_all: true,
        }
    }

    /// The minor index counted from the first, if it is inside.
    #[inline(always)]
    fn place(self, k: usize) -> Option<usize> {
        let place = k.wrapping_sub(self.first);
        (self.is_all || place < self.len).then_some(place)
    }
}

/// Lines of a sparse matrix in memory, checked when they are made: no entry is outside.
pub trait Lines<T: Real>: Copy {
    /// The type of the minor indices in a line.
    type Index: Index;
    /// Whether every line is visited once, including those without entries; otherwise only parts of
    /// lines with entries.
    const WHOLE_LINES: bool;

    /// Number of lines.
    fn lines(&self) -> usize;

    /// Number of minor indices in a line.
    fn width(&self) -> usize;

    /// Number of entries.
    fn entries(&self) -> usize;

    /// Some of the lines, counted from the first of them.
    #[must_use]
    fn part(self, lines: Range<usize>) -> Self;

    /// Calls `f` with the number and the entries of each line, in order; parts of lines are visited
    /// as they are stored.
    fn each_line(self, f: impl FnMut(usize, Entries<'_, Self::Index, T>));
}
