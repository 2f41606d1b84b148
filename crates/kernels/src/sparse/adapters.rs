//! Lines made of other lines while they are visited: some of them, or with values of another type.

use std::ops::Range;

use super::lines::{Entries, Lines};
use crate::Real;

/// A selection of lines.
#[derive(Clone, Copy, Debug)]
pub struct Picked<'a, A> {
    lines: A,
    picked: &'a [bool],
}

impl<'a, A> Picked<'a, A> {
    /// The lines for which `picked` is true; it has one element a line.
    pub fn new<T: Real>(lines: A, picked: &'a [bool]) -> Self
    where
        A: Lines<T>,
    {
        assert_eq!(picked.len(), lines.lines());
        Self { lines, picked }
    }
}

impl<T: Real, A: Lines<T>> Lines<T> for Picked<'_, A> {
    type Index = A::Index;
    const WHOLE_LINES: bool = false;

    fn lines(&self) -> usize {
        self.lines.lines()
    }

    fn width(&self) -> usize {
        self.lines.width()
    }

    fn entries(&self) -> usize {
        self.lines.entries()
    }

    fn part(self, lines: Range<usize>) -> Self {
        Self {
            picked: &self.picked[lines.clone()],
            lines: self.lines.part(lines),
        }
    }

    #[inline(always)]
    fn each_line(self, mut f: impl FnMut(usize, Entries<'_, A::Index, T>)) {
        self.lines.each_line(
            #[inline(always)]
            |line, entries| {
                if self.picked[line] {
                    f(line, entries);
                }
            },
        );
    }
}

/// The same lines with values of another type.
#[derive(Clone, Copy, Debug)]
pub struct Converted<A, T> {
    lines: A,
    from: std::marker::PhantomData<T>,
}

impl<T: Real, A: Lines<T>> Converted<A, T> {
    /// Each line is converted when it is visited.
    pub fn new(lines: A) -> Self {
        Self {
            lines,
            from: std::marker::PhantomData,
        }
    }
}

impl<T: Real, U: Real, A: Lines<T>> Lines<U> for Converted<A, T> {
    type Index = A::Index;
    const WHOLE_LINES: bool = A::WHOLE_LINES;

    fn lines(&self) -> usize {
        self.lines.lines()
    }

    fn width(&self) -> usize {
        self.lines.width()
    }

    fn entries(&self) -> usize {
        self.lines.entries()
    }

    fn part(self, lines: Range<usize>) -> Self {
        Self::new(self.lines.part(lines))
    }

    #[inline(always)]
    fn each_line(self, mut f: impl FnMut(usize, Entries<'_, A::Index, U>)) {
        let mut values = Vec::new();
        self.lines.each_line(
            #[inline(always)]
            |line, entries| {
                values.clear();
                values.extend(entries.values.iter().map(|value| U::of(value.f64())));
                let Entries { indices, base, .. } = entries;
                let values = &values[..];
                f(
                    line,
                    Entries {
                        indices,
                        values,
                        base,
                    },
                );
            },
        );
    }
}
