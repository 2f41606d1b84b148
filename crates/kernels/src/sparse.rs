//! Products of a sparse matrix with dense ones.
//!
//! A sparse matrix is in compressed rows (CSR): `offsets` of the entries of each row, `indices`
//! with the column of each entry, and `values`; without values every entry is one. A matrix in
//! compressed columns is the transpose of one in compressed rows. All work proceeds row by row: for
//! A X the rows of X named by a row of A are summed in registers, for A^T X a row of X is added to
//! the rows of the result named by a row of A, and A^T (A X) does both in turn, so that each row of
//! A is read once.
//!
//! Dense operands are row-major: an entry moves a contiguous row of X. An operand may be a window,
//! the rows from `first` on of one that is not all in memory; entries outside it are skipped. Cost:
//! 2 nnz d operations and nnz rows of X, of which cached ones are free; no scratch unless stated.
//! Determinism: entries are added in their order.
#![forbid(unsafe_code)]

use crate::caches::fetch;
use crate::view::{row_slice, row_slice_mut, view, view_mut, whole, whole_mut};
use crate::{Error, Real, fill, scale};
use bytemuck::Pod;
use faer::reborrow::ReborrowMut;
use faer::{MatMut, MatRef};
use pulp::{Simd, WithSimd};

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
    indices: &'a [I],
    values: &'a [T],
    /// The minor index that indices count from.
    base: usize,
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
    fn each_in(self, window: Window, mut f: impl FnMut(usize, T)) {
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
    fn each_ahead(
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
struct Window {
    first: usize,
    len: usize,
    is_all: bool,
}

impl Window {
    fn new(first: usize, len: usize, width: usize) -> Option<Window> {
        (first.checked_add(len)? <= width).then_some(Window {
            first,
            len,
            is_all: len == width,
        })
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

    /// Calls `f` with the number and the entries of each line, in order; parts of lines are visited
    /// as they are stored.
    fn each_line(self, f: impl FnMut(usize, Entries<'_, Self::Index, T>));
}

/// Some rows of a sparse matrix. The entries of row i are those from `offsets[i] - offsets[0]` up
/// to `offsets[i + 1] - offsets[0]`.
#[derive(Clone, Copy, Debug)]
pub struct Csr<'a, I, T> {
    cols: usize,
    offsets: &'a [i64],
    indices: &'a [I],
    /// Empty where all entries are one.
    values: &'a [T],
}

impl<'a, I: Index, T: Real> Csr<'a, I, T> {
    /// Rows of a matrix with `cols` columns; checks every number, so that later accesses are
    /// inside. `offsets` has one more element than there are rows, and may start at any number.
    ///
    /// # Errors
    /// [`Error::Sparse`] with the first invalid number.
    pub fn new(
        cols: usize,
        offsets: &'a [i64],
        indices: &'a [I],
        values: &'a [T],
    ) -> Result<Self, Error> {
        let wrong = |part, at, why: &str| {
            Err(Error::Sparse {
                part,
                at,
                why: why.to_owned(),
            })
        };
        let (Some(first), Some(last)) = (offsets.first(), offsets.last()) else {
            return wrong("offsets", 0, "there are none");
        };
        if let Some(at) = offsets.windows(2).position(|pair| pair[0] > pair[1]) {
            return wrong("offsets", at + 1, "it is less than the one before");
        }
        if last.checked_sub(*first) != i64::try_from(indices.len()).ok() {
            return wrong(
                "offsets",
                offsets.len() - 1,
                "it is not the number of entries",
            );
        }
        if !values.is_empty() && values.len() != indices.len() {
            return wrong(
                "values",
                values.len(),
                "there are not as many as column numbers",
            );
        }
        let largest = indices
            .iter()
            .fold(0, |largest, index| index.column().max(largest));
        if largest >= cols && !indices.is_empty() {
            let at = indices
                .iter()
                .position(|index| index.column() >= cols)
                .expect("the largest is one");
            return wrong("indices", at, &format!("the matrix has {cols} columns"));
        }
        Ok(Self {
            cols,
            offsets,
            indices,
            values,
        })
    }

    #[inline(always)]
    fn row(&self, row: usize) -> Entries<'a, I, T> {
        let range = (self.offsets[row] - self.offsets[0]) as usize
            ..(self.offsets[row + 1] - self.offsets[0]) as usize;
        let values = if self.values.is_empty() {
            &[]
        } else {
            &self.values[range.clone()]
        };
        Entries {
            indices: &self.indices[range],
            values,
            base: 0,
        }
    }
}

impl<I: Index, T: Real> Lines<T> for Csr<'_, I, T> {
    type Index = I;
    const WHOLE_LINES: bool = true;

    fn lines(&self) -> usize {
        self.offsets.len() - 1
    }

    fn width(&self) -> usize {
        self.cols
    }

    fn entries(&self) -> usize {
        self.indices.len()
    }

    #[inline(always)]
    fn each_line(self, mut f: impl FnMut(usize, Entries<'_, I, T>)) {
        for row in 0..self.lines() {
            f(row, self.row(row));
        }
    }
}

/// A tile: the entries of some lines in a band of 65,536 minor indices, each stored in 16 bits.
#[derive(Clone, Copy, Debug)]
pub struct Tile<'a, T> {
    /// The line from which its lines are counted.
    first_line: usize,
    base: usize,
    lines: &'a [u16],
    /// Number of entries of each of its lines, minus one.
    counts: &'a [u16],
    places: &'a [u16],
    /// Empty where all entries are one.
    values: &'a [T],
}

impl<'a, T: Real> Tile<'a, T> {
    /// A tile of the band that begins at `base`, of a block of `block_lines` lines from
    /// `first_line` on, in a matrix of `width` minor indices; checks every number.
    ///
    /// # Errors
    /// [`Error::Sparse`] with the first invalid number.
    #[expect(clippy::too_many_arguments, reason = "what a tile is made of")]
    pub fn new(
        first_line: usize,
        block_lines: usize,
        base: usize,
        width: usize,
        lines: &'a [u16],
        counts: &'a [u16],
        places: &'a [u16],
        values: &'a [T],
    ) -> Result<Self, Error> {
        let wrong = |part, at, why: &str| {
            Err(Error::Sparse {
                part,
                at,
                why: why.to_owned(),
            })
        };
        if let Some(at) = lines.windows(2).position(|pair| pair[0] >= pair[1]) {
            return wrong("lines", at + 1, "lines do not ascend");
        }
        if lines
            .last()
            .is_some_and(|&last| usize::from(last) >= block_lines)
        {
            return wrong(
                "lines",
                lines.len() - 1,
                &format!("the block has {block_lines} lines"),
            );
        }
        let entries: usize = counts.iter().map(|&count| usize::from(count) + 1).sum();
        if counts.len() != lines.len()
            || entries != places.len()
            || ![0, entries].contains(&values.len())
        {
            return wrong("counts", 0, "they are not the number of entries");
        }
        let largest = places.iter().copied().max().map_or(0, usize::from);
        if base + largest >= width && !places.is_empty() {
            let at = places
                .iter()
                .position(|&place| base + usize::from(place) >= width)
                .expect("the largest is one");
            return wrong("places", at, &format!("the matrix has {width} places"));
        }
        Ok(Self {
            first_line,
            base,
            lines,
            counts,
            places,
            values,
        })
    }
}

/// Lines in tiles, of which a range from `first` on is visited.
#[derive(Clone, Copy, Debug)]
pub struct Tiles<'a, T> {
    tiles: &'a [Tile<'a, T>],
    first: usize,
    lines: usize,
    width: usize,
}

impl<'a, T: Real> Tiles<'a, T> {
    /// The lines from `first` on, `lines` of them, of a matrix of `width` minor indices.
    pub fn new(tiles: &'a [Tile<'a, T>], first: usize, lines: usize, width: usize) -> Self {
        Self {
            tiles,
            first,
            lines,
            width,
        }
    }
}

impl<T: Real> Lines<T> for Tiles<'_, T> {
    type Index = u16;
    const WHOLE_LINES: bool = false;

    fn lines(&self) -> usize {
        self.lines
    }

    fn width(&self) -> usize {
        self.width
    }

    fn entries(&self) -> usize {
        self.tiles.iter().map(|tile| tile.places.len()).sum()
    }

    #[inline(always)]
    fn each_line(self, mut f: impl FnMut(usize, Entries<'_, u16, T>)) {
        for tile in self.tiles {
            let (mut places, mut values) = (tile.places, tile.values);
            for (&line, &count) in tile.lines.iter().zip(tile.counts) {
                let count = usize::from(count) + 1;
                let (indices, rest) = places.split_at(count);
                let (here, others) = values.split_at(if values.is_empty() { 0 } else { count });
                (places, values) = (rest, others);
                let line = (tile.first_line + usize::from(line)).wrapping_sub(self.first);
                if line < self.lines {
                    f(
                        line,
                        Entries {
                            indices,
                            values: here,
                            base: tile.base,
                        },
                    );
                }
            }
        }
    }
}

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

/// Rows of the dense operand are prefetched this many entries ahead.
const AHEAD: usize = 8;
/// Most vectors of a row that are prefetched by software; hardware fetches the others in time.
const FETCHED: usize = 16;

/// Operations of a product of `entries` entries with `width` dense columns.
pub fn csrmm_flops(entries: usize, width: usize) -> u64 {
    2 * (entries as u64).saturating_mul(width as u64)
}

/// c = alpha A x + beta c, where x has the rows from `first` on of the whole operand.
///
/// Shapes: A is m x n, x is at most n x d, c is m x d; x and c by rows. When `beta` is 0, c is only
/// written.
///
/// # Errors
/// [`Error::Shape`], also for operands that do not lie by rows.
pub fn csrmm<T: Real>(
    mut c: MatMut<'_, T>,
    alpha: T,
    a: impl Lines<T>,
    x: MatRef<'_, T>,
    first: usize,
    beta: T,
) -> Result<(), Error> {
    let window = Window::new(first, x.nrows(), a.width());
    let (Some(window), true) = (
        window,
        c.nrows() == a.lines() && c.ncols() == x.ncols() && by_rows(c.as_ref()) && by_rows(x),
    ) else {
        return Err(shapes("csrmm", (a.lines(), a.width()), x, c.as_ref()));
    };
    if !whole_lines(&a) && beta == T::ZERO {
        fill(c.rb_mut(), T::ZERO);
    } else if !whole_lines(&a) && beta != T::ONE {
        scale(c.rb_mut(), beta);
    }
    let beta = if whole_lines(&a) { beta } else { T::ONE };
    if x.ncols() == 1
        && let (Some(x), Some(c)) = (whole(x), whole_mut(&mut c))
    {
        a.each_line(
            #[inline(always)]
            |i, entries| {
                let mut sum = T::ZERO;
                entries.each_in(window, |k, value| sum += value * x[k]);
                c[i] = if beta == T::ZERO {
                    alpha * sum
                } else {
                    alpha * sum + beta * c[i]
                };
            },
        );
        return Ok(());
    }
    pulp::Arch::new().dispatch(Combine {
        c,
        alpha,
        a,
        window,
        x,
        beta,
    });
    Ok(())
}

/// Operations of a product between two looks at whether it is to end: some 0.1 s on half a core.
pub const CALL_FLOPS: u64 = 1 << 27;

/// Fewer columns are not cut: some vectors of either type.
const CALL_COLUMNS: usize = 64;

/// Columns of the dense operands of a product that take [`CALL_FLOPS`] with these lines, in whole
/// vectors; an element of the result that no entry meets costs an operation too.
fn call_columns<T: Real>(a: &impl Lines<T>) -> usize {
    let of_column = csrmm_flops(a.entries(), 1) + a.lines() as u64;
    ((CALL_FLOPS / of_column.max(1)) as usize / CALL_COLUMNS * CALL_COLUMNS).max(CALL_COLUMNS)
}

/// [`csrmm`] that ends soon after `stop` says so; c is then of no use.
///
/// # Errors
/// As [`csrmm`].
pub fn csrmm_until<T: Real>(
    mut c: MatMut<'_, T>,
    alpha: T,
    a: impl Lines<T>,
    x: MatRef<'_, T>,
    first: usize,
    beta: T,
    stop: &dyn Fn() -> bool,
) -> Result<(), Error> {
    let step = call_columns(&a);
    if x.ncols() <= step || c.ncols() != x.ncols() {
        return csrmm(c, alpha, a, x, first, beta);
    }
    for column in (0..x.ncols()).step_by(step) {
        if stop() {
            break;
        }
        let width = step.min(x.ncols() - column);
        let c = c.rb_mut().subcols_mut(column, width);
        csrmm(c, alpha, a, x.subcols(column, width), first, beta)?;
    }
    Ok(())
}

/// [`csrmm_transposed`] that ends soon after `stop` says so; c is then of no use.
///
/// # Errors
/// As [`csrmm_transposed`].
pub fn csrmm_transposed_until<T: Real>(
    mut c: MatMut<'_, T>,
    alpha: T,
    a: impl Lines<T>,
    x: MatRef<'_, T>,
    first: usize,
    stop: &dyn Fn() -> bool,
) -> Result<(), Error> {
    let step = call_columns(&a);
    if x.ncols() <= step || c.ncols() != x.ncols() {
        return csrmm_transposed(c, alpha, a, x, first);
    }
    for column in (0..x.ncols()).step_by(step) {
        if stop() {
            break;
        }
        let width = step.min(x.ncols() - column);
        let c = c.rb_mut().subcols_mut(column, width);
        csrmm_transposed(c, alpha, a, x.subcols(column, width), first)?;
    }
    Ok(())
}

/// c += alpha A^T x, where c has the rows from `first` on of the whole result.
///
/// Shapes: A is m x n, x is m x d, c is at most n x d; x and c by rows.
///
/// # Errors
/// [`Error::Shape`], also for operands that do not lie by rows.
pub fn csrmm_transposed<T: Real>(
    mut c: MatMut<'_, T>,
    alpha: T,
    a: impl Lines<T>,
    x: MatRef<'_, T>,
    first: usize,
) -> Result<(), Error> {
    let window = Window::new(first, c.nrows(), a.width());
    let (Some(window), true) = (
        window,
        x.nrows() == a.lines() && c.ncols() == x.ncols() && by_rows(c.as_ref()) && by_rows(x),
    ) else {
        return Err(shapes(
            "csrmm of a transpose",
            (a.width(), a.lines()),
            x,
            c.as_ref(),
        ));
    };
    if x.ncols() == 1
        && let (Some(x), Some(c)) = (whole(x), whole_mut(&mut c))
    {
        a.each_line(
            #[inline(always)]
            |i, entries| {
                let factor = alpha * x[i];
                entries.each_in(window, |k, value| c[k] += factor * value);
            },
        );
        return Ok(());
    }
    pulp::Arch::new().dispatch(Scatter {
        c,
        alpha,
        a,
        window,
        x,
    });
    Ok(())
}

/// c += A^T (A x), reading each row of A once if rows are whole. `between` has room for
/// [`gram_rows`] rows of A x.
///
/// Shapes: A is m x n, x and c are n x d, by rows.
///
/// # Errors
/// [`Error::Shape`], also for operands that do not lie by rows.
pub fn csr_gram<T: Real>(
    c: MatMut<'_, T>,
    a: impl Lines<T>,
    x: MatRef<'_, T>,
    between: &mut [T],
) -> Result<(), Error> {
    let rows = gram_rows(&a);
    let fits =
        x.nrows() == a.width() && c.shape() == x.shape() && between.len() == rows * x.ncols();
    if !fits || !by_rows(c.as_ref()) || !by_rows(x) {
        return Err(shapes("A^T A x", (a.lines(), a.width()), x, c.as_ref()));
    }
    if !whole_lines(&a) {
        let d = x.ncols();
        csrmm(view_mut(between, rows, d, d, 1)?, T::ONE, a, x, 0, T::ZERO)?;
        return csrmm_transposed(c, T::ONE, a, view(between, rows, d, d, 1)?, 0);
    }
    let all = Window {
        first: 0,
        len: a.width(),
        is_all: true,
    };
    pulp::Arch::new().dispatch(Both {
        c,
        a,
        all,
        x,
        between,
    });
    Ok(())
}

/// Rows of A x that [`csr_gram`] keeps at once: one, or all if rows come in parts.
pub fn gram_rows<T: Real, A: Lines<T>>(a: &A) -> usize {
    if A::WHOLE_LINES { 1 } else { a.lines() }
}

/// y += X R for a sparse X and a sparse R.
///
/// Shapes: X is m x n, R is n x k, y is m x k, by rows. Cost: two operations for each entry of X
/// and each of the row of R it meets.
///
/// # Errors
/// [`Error::Shape`], also for a y that does not lie by rows.
pub fn sparse_times_sparse<T: Real>(
    mut y: MatMut<'_, T>,
    x: impl Lines<T>,
    r: Csr<'_, impl Index, T>,
) -> Result<(), Error> {
    if y.nrows() != x.lines()
        || x.width() != r.lines()
        || y.ncols() != r.width()
        || !by_rows(y.as_ref())
    {
        return Err(Error::shape(
            "sparse times sparse",
            &[
                ("y", &y.shape()),
                ("X", &(x.lines(), x.width())),
                ("R", &(r.lines(), r.width())),
            ],
        ));
    }
    x.each_line(|i, entries| {
        let y = row_slice_mut(&mut y, i).expect("by rows (checked)");
        entries.each(|k, value| r.row(k).each(|j, weight| y[j] += value * weight));
    });
    Ok(())
}

/// y += x R for a dense x and a sparse R.
///
/// Shapes: x is m x n, R is n x k, y is m x k; x and y by rows.
///
/// # Errors
/// [`Error::Shape`], also for operands that do not lie by rows.
pub fn dense_times_sparse<T: Real>(
    mut y: MatMut<'_, T>,
    x: MatRef<'_, T>,
    r: Csr<'_, impl Index, T>,
) -> Result<(), Error> {
    if y.nrows() != x.nrows()
        || x.ncols() != r.lines()
        || y.ncols() != r.width()
        || !by_rows(y.as_ref())
        || !by_rows(x)
    {
        return Err(shapes(
            "dense times sparse",
            (r.lines(), r.width()),
            x,
            y.as_ref(),
        ));
    }
    for i in 0..x.nrows() {
        let (x, y) = (
            row_slice(x, i).expect("by rows (checked)"),
            row_slice_mut(&mut y, i).expect("by rows (checked)"),
        );
        for (k, &value) in x.iter().enumerate() {
            r.row(k).each(|j, weight| y[j] += value * weight);
        }
    }
    Ok(())
}

// Functions compiled for the processor at hand. They are not closures: a closure that is too long
// to be inlined would be compiled for the baseline processor.

struct Combine<'a, A, T: Real> {
    c: MatMut<'a, T>,
    alpha: T,
    a: A,
    window: Window,
    x: MatRef<'a, T>,
    beta: T,
}

impl<A: Lines<T>, T: Real> WithSimd for Combine<'_, A, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Combine {
            mut c,
            alpha,
            a,
            window,
            x,
            beta,
        } = self;
        match whole(x) {
            Some(all) => {
                let x = Whole {
                    all,
                    width: x.ncols(),
                };
                a.each_line(
                    #[inline(always)]
                    |i, entries| {
                        combine(
                            simd,
                            entries,
                            window,
                            x,
                            row_slice_mut(&mut c, i).expect("by rows (checked)"),
                            alpha,
                            beta,
                        )
                    },
                );
            }
            None => a.each_line(
                #[inline(always)]
                |i, entries| {
                    combine(
                        simd,
                        entries,
                        window,
                        x,
                        row_slice_mut(&mut c, i).expect("by rows (checked)"),
                        alpha,
                        beta,
                    )
                },
            ),
        }
    }
}

struct Scatter<'a, A, T: Real> {
    c: MatMut<'a, T>,
    alpha: T,
    a: A,
    window: Window,
    x: MatRef<'a, T>,
}

impl<A: Lines<T>, T: Real> WithSimd for Scatter<'_, A, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Scatter {
            mut c,
            alpha,
            a,
            window,
            x,
        } = self;
        a.each_line(
            #[inline(always)]
            |i, entries| {
                scatter(
                    simd,
                    entries,
                    window,
                    row_slice(x, i).expect("by rows (checked)"),
                    &mut c,
                    alpha,
                )
            },
        );
    }
}

struct Both<'a, A, T: Real> {
    c: MatMut<'a, T>,
    a: A,
    all: Window,
    x: MatRef<'a, T>,
    between: &'a mut [T],
}

impl<A: Lines<T>, T: Real> WithSimd for Both<'_, A, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Both {
            mut c,
            a,
            all,
            x,
            between,
        } = self;
        a.each_line(
            #[inline(always)]
            |_, entries| {
                combine(simd, entries, all, x, between, T::ONE, T::ZERO);
                scatter(simd, entries, all, between, &mut c, T::ONE);
            },
        );
    }
}

/// Runs `$step` with `$N` vectors from column `$at` on, as many at a time as fit into registers,
/// until fewer than one is left; then `$rest`.
macro_rules! in_vectors {
    ($len:expr, $lanes:expr, $at:ident, $N:ident => $step:expr, $rest:expr) => {{
        let (len, lanes, mut $at) = ($len, $lanes, 0);
        while len - $at >= lanes {
            $at += lanes
                * match (len - $at) / lanes {
                    16.. if S::REGISTER_COUNT >= 32 => in_vectors!(@ 16, $N => $step),
                    8.. => in_vectors!(@ 8, $N => $step),
                    4.. => in_vectors!(@ 4, $N => $step),
                    2.. => in_vectors!(@ 2, $N => $step),
                    _ => in_vectors!(@ 1, $N => $step),
                };
        }
        if $at < len {
            $rest;
        }
    }};
    (@ $count:literal, $N:ident => $step:expr) => {{
        const $N: usize = $count;
        $step;
        $N
    }};
}

/// Contiguous rows.
trait Rows<T: Real>: Copy {
    /// Row `k`.
    fn row(&self, k: usize) -> &[T];

    /// Address of row `k`.
    fn place(&self, k: usize) -> *const T;

    /// Prefetches `len` elements of row `k` from `at` on.
    #[inline(always)]
    fn fetch(&self, k: usize, at: usize, len: usize) {
        let start = self.place(k).wrapping_add(at);
        for line in (0..len).step_by(64 / size_of::<T>()) {
            fetch(start.wrapping_add(line));
        }
    }
}

impl<T: Real> Rows<T> for MatRef<'_, T> {
    #[inline(always)]
    fn row(&self, k: usize) -> &[T] {
        row_slice(*self, k).expect("by rows (checked)")
    }

    #[inline(always)]
    fn place(&self, k: usize) -> *const T {
        self.as_ptr()
            .wrapping_offset((k as isize).wrapping_mul(self.row_stride()))
    }
}

/// Rows without gaps, whose addresses take one multiplication.
#[derive(Clone, Copy)]
struct Whole<'a, T> {
    all: &'a [T],
    width: usize,
}

impl<T: Real> Rows<T> for Whole<'_, T> {
    #[inline(always)]
    fn row(&self, k: usize) -> &[T] {
        &self.all[k * self.width..][..self.width]
    }

    #[inline(always)]
    fn place(&self, k: usize) -> *const T {
        self.all.as_ptr().wrapping_add(k.wrapping_mul(self.width))
    }
}

/// c = alpha (a x) + beta c, for one line a of the sparse matrix: sums stay in registers.
#[inline(always)]
fn combine<S: Simd, I: Index, T: Real>(
    simd: S,
    a: Entries<'_, I, T>,
    window: Window,
    x: impl Rows<T>,
    c: &mut [T],
    alpha: T,
    beta: T,
) {
    let (zero, factor, before) = (
        T::splat(simd, T::ZERO),
        T::splat(simd, alpha),
        T::splat(simd, beta),
    );
    in_vectors!(c.len(), T::lanes::<S>(), at, N => {
        let mut sums = [zero; N];
        a.each_ahead(
            window,
            N >= FETCHED,
            #[inline(always)]
            |k| x.fetch(k, at, N * T::lanes::<S>()),
            #[inline(always)]
            |k, value| {
                let (value, x): (_, &[T::Vector<S>; N]) = (T::splat(simd, value), T::vectors(simd, &x.row(k)[at..]));
                for j in 0..N {
                    sums[j] = T::fma(simd, value, x[j], sums[j]);
                }
            },
        );
        let c: &mut [T::Vector<S>; N] = T::vectors_mut(simd, &mut c[at..]);
        for j in 0..N {
            let kept = if beta == T::ZERO { zero } else { T::times(simd, before, c[j]) };
            c[j] = T::fma(simd, factor, sums[j], kept);
        }
    }, {
        let mut sum = zero;
        a.each_in(
            window,
            #[inline(always)]
            |k, value| sum = T::fma(simd, T::splat(simd, value), T::load(simd, &x.row(k)[at..]), sum),
        );
        let c = &mut c[at..];
        let kept = if beta == T::ZERO { zero } else { T::times(simd, before, T::load(simd, c)) };
        T::store(simd, c, T::fma(simd, factor, sum, kept));
    });
}

/// Adds alpha times a row of x to the rows of c named by a line of the sparse matrix, each times
/// its entry.
#[inline(always)]
fn scatter<S: Simd, I: Index, T: Real>(
    simd: S,
    a: Entries<'_, I, T>,
    window: Window,
    x: &[T],
    c: &mut MatMut<'_, T>,
    alpha: T,
) {
    let factor = T::splat(simd, alpha);
    in_vectors!(x.len(), T::lanes::<S>(), at, N => {
        let mut scaled: [T::Vector<S>; N] = *T::vectors(simd, &x[at..]);
        for value in &mut scaled {
            *value = T::times(simd, factor, *value);
        }
        a.each_in(
            window,
            #[inline(always)]
            |k, value| {
                let mut c = c.rb_mut();
                let row = row_slice_mut(&mut c, k).expect("by rows (checked)");
                let (value, c): (_, &mut [T::Vector<S>; N]) = (T::splat(simd, value), T::vectors_mut(simd, &mut row[at..]));
                for j in 0..N {
                    c[j] = T::fma(simd, value, scaled[j], c[j]);
                }
            },
        );
    }, {
        let scaled = T::times(simd, factor, T::load(simd, &x[at..]));
        a.each_in(
            window,
            #[inline(always)]
            |k, value| {
                let mut c = c.rb_mut();
                let c = &mut row_slice_mut(&mut c, k).expect("by rows (checked)")[at..];
                let sum = T::fma(simd, T::splat(simd, value), scaled, T::load(simd, c));
                T::store(simd, c, sum);
            },
        );
    });
}

fn whole_lines<T: Real, A: Lines<T>>(_: &A) -> bool {
    A::WHOLE_LINES
}

/// Rows are runs of memory.
fn by_rows<T: Real>(a: MatRef<'_, T>) -> bool {
    a.col_stride() == 1 || a.ncols() <= 1
}

fn shapes<T: Real>(
    operation: &'static str,
    a: (usize, usize),
    x: MatRef<'_, T>,
    c: MatRef<'_, T>,
) -> Error {
    let strides = |of: MatRef<'_, T>| {
        format!(
            "{:?} with strides ({}, {})",
            of.shape(),
            of.row_stride(),
            of.col_stride()
        )
    };
    Error::shape(
        operation,
        &[
            ("the sparse matrix", &a),
            ("the operand", &strides(x)),
            ("the result", &strides(c)),
        ],
    )
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn long_products_end_where_they_are_stopped_and_are_else_those_of_one_call() {
        // One line, of which a column takes a bit more than a hundredth of a call.
        let (entries, places, d) = (600_000usize, 50, 3 * CALL_COLUMNS + 1);
        let offsets = [0, entries as i64];
        let indices: Vec<i32> = (0..entries).map(|at| (at / 12_000) as i32).collect();
        let values: Vec<f32> = (0..entries).map(|at| (at % 13) as f32 - 6.0).collect();
        let a = Csr::new(places, &offsets, &indices, &values).unwrap();
        assert_eq!(call_columns(&a), CALL_COLUMNS);
        let x: Vec<f32> = (0..places * d).map(|at| (at % 17) as f32 / 4.0).collect();
        let wide = view(&x, places, d, d, 1).unwrap();
        let line = view(&x[..d], 1, d, d, 1).unwrap();
        for is_transposed in [false, true] {
            let rows = if is_transposed { places } else { 1 };
            let product = |stop: Option<&dyn Fn() -> bool>| {
                let mut c = vec![1f32; rows * d];
                let into = view_mut(&mut c, rows, d, d, 1).unwrap();
                match (is_transposed, stop) {
                    (false, None) => csrmm(into, 1.5, a, wide, 0, 0.5),
                    (false, Some(stop)) => csrmm_until(into, 1.5, a, wide, 0, 0.5, stop),
                    (true, None) => csrmm_transposed(into, 1.5, a, line, 0),
                    (true, Some(stop)) => csrmm_transposed_until(into, 1.5, a, line, 0, stop),
                }
                .unwrap();
                c
            };
            let all = product(None);
            assert_eq!(product(Some(&|| false)), all);
            let asked = Cell::new(0);
            let part = product(Some(&|| asked.replace(asked.get() + 1) == 1));
            for (part, all) in part.chunks(d).zip(all.chunks(d)) {
                assert_eq!(part[..CALL_COLUMNS], all[..CALL_COLUMNS]);
                assert!(part[CALL_COLUMNS..].iter().all(|&c| c == 1.0));
            }
        }
    }
}
