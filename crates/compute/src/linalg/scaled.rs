//! A copy of a sparse matrix with other values: scaled by rows and columns, dampened, normalised,
//! or just stored.
//!
//! Shapes: A and the result are m x n. Cost: reads A, writes the result; every entry keeps its
//! place. A row is normalised by its own entries as they come by; where the lines of A are columns,
//! or a row is cut in several pieces, the squares of rows are added up in a pass before: a fold
//! across lines, or a map of them.

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use outcore_core::{Error, Job, RealType, Result, Session, with_real};
use outcore_kernels::{Lines, MatRef, Real, Squares};
use outcore_matrix::sparse::SparseShape;
use outcore_matrix::{Compressed, Sparse};

use crate::pass::{EntryMap, Fold, Map, Rows, entry_pieces, fold, map, map_entries};

/// What becomes of a value: first it is dampened, then scaled, then its row normalised.
#[derive(Clone, Debug, Default)]
pub struct Scaling {
    /// 1 + ln(value) in place of a value.
    pub logarithm: bool,
    /// A factor for each row.
    pub rows: Option<Vec<f64>>,
    /// A factor for each column.
    pub cols: Option<Vec<f64>>,
    /// Divide each row by its Euclidean norm, where that is not zero.
    pub unit_rows: bool,
    /// Element type of the result, if not that of A.
    pub dtype: Option<RealType>,
}

/// A copy of A with scaled values, in a new folder or in scratch.
///
/// Cost: reads A, writes as much. Values are computed in f64 and rounded once.
///
/// ```
#[doc = include_str!("../setup.doctest")]
/// use outcore_compute::linalg::{Scaling, scaled};
///
/// // a = [[1, 0, 2], [0, 3, 0]]
/// let scaling = Scaling { rows: Some(vec![2.0, 0.0]), ..Scaling::default() };
/// let b = scaled(&session, &a, scaling, None)?.run()?;
/// assert_eq!(bytemuck::cast_slice::<u8, f32>(&b.read()?.run()?.values), [2.0, 4.0, 0.0]);
/// # Ok::<(), outcore_core::Error>(())
/// ```
///
/// # Errors
/// [`Error::Shape`] for factors that are not as many as rows or columns; [`Error::OverBudget`];
/// what keeps the output from being made.
pub fn scaled(
    session: &Session,
    a: &Sparse,
    scaling: Scaling,
    out: Option<PathBuf>,
) -> Result<Job<Sparse>> {
    let [rows, cols] = a.shape();
    for (factors, needed, what) in [
        (&scaling.rows, rows, "rows"),
        (&scaling.cols, cols, "columns"),
    ] {
        if let Some(factors) = factors
            && factors.len() as u64 != needed
        {
            return Err(Error::shape(format!(
                "{} has {needed} {what}, there are {} factors for them",
                a.name(),
                factors.len()
            )));
        }
    }
    let real = scaling.dtype.unwrap_or(a.real());
    with_real!(a.real(), T => with_real!(real, U => plan::<T, U>(session, a, scaling, real, out)))
}

/// The factors, by what lines and minor indices of A are.
#[derive(Default)]
struct Factors {
    logarithm: bool,
    lines: Option<Vec<f64>>,
    minors: Option<Vec<f64>>,
}

impl Factors {
    #[inline]
    fn of(&self, line: usize, minor: usize, value: f64) -> f64 {
        let value = if self.logarithm {
            1.0 + value.ln()
        } else {
            value
        };
        let by = |factors: &Option<Vec<f64>>, at: usize| {
            factors.as_ref().map_or(1.0, |factors| factors[at])
        };
        value * by(&self.lines, line) * by(&self.minors, minor)
    }

    fn held_bytes(&self) -> u64 {
        let len = |factors: &Option<Vec<f64>>| factors.as_ref().map_or(0, Vec::len) as u64;
        8 * (len(&self.lines) + len(&self.minors))
    }

    fn are_one(&self) -> bool {
        !self.logarithm && self.lines.is_none() && self.minors.is_none()
    }
}

/// What rows are divided by.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Unit {
    No,
    /// The norm of each line, by itself.
    Line,
    /// By sums of squares that a pass before has made: of lines, or of minor indices.
    Lines,
    Minors,
}

fn plan<T: Real, U: Real>(
    session: &Session,
    a: &Sparse,
    scaling: Scaling,
    real: RealType,
    out: Option<PathBuf>,
) -> Result<Job<Sparse>> {
    let by_rows = a.format() == Compressed::Rows;
    let (lines, minors) = if by_rows {
        (scaling.rows, scaling.cols)
    } else {
        (scaling.cols, scaling.rows)
    };
    let factors = Arc::new(Factors {
        logarithm: scaling.logarithm,
        lines,
        minors,
    });
    let of_line = if scaling.unit_rows && by_rows {
        Unit::Line
    } else {
        Unit::No
    };
    let pieces = entry_pieces(session, a, factors.held_bytes(), of_line.line_bytes());
    let is_cut = pieces.iter().any(|piece| piece.breaks_off);
    let unit = match (scaling.unit_rows, by_rows) {
        (false, _) => Unit::No,
        (true, true) if is_cut => Unit::Lines,
        (true, true) => Unit::Line,
        (true, false) => Unit::Minors,
    };
    let has_values = a.has_values() || !factors.are_one() || unit != Unit::No;
    let shape = SparseShape {
        real,
        has_values,
        ..SparseShape::of(a)
    };
    let sums = Arc::new(OnceLock::new());
    let values = Values {
        factors: Arc::clone(&factors),
        unit,
        rows: a.rows(),
        sums: Arc::clone(&sums),
    };
    let rows = Rows::Sparse(a.clone());
    let norms = match unit {
        Unit::No | Unit::Line => None,
        Unit::Lines => Some(map::<T, _>(session, "norms", &rows, LineSquares(factors))?),
        Unit::Minors => {
            let squares = MinorSquares {
                factors,
                width: a.rows() as usize,
            };
            Some(fold::<T, _>(session, "norms", &rows, squares)?)
        }
    };
    let scaled = map_entries::<T, U, _>(session, "scale", a, &pieces, values, shape, out)?;
    Ok(match norms {
        None => scaled,
        Some(norms) => norms.feeding(
            move |found| assert!(sums.set(found).is_ok(), "one pass makes them"),
            scaled,
        ),
    })
}

impl Unit {
    fn line_bytes(self) -> u64 {
        if self == Unit::Line {
            size_of::<Squares>() as u64
        } else {
            0
        }
    }
}

/// The pass over entries.
struct Values {
    factors: Arc<Factors>,
    unit: Unit,
    rows: u64,
    /// Of all rows, once the pass before has ended.
    sums: Arc<OnceLock<Vec<Squares>>>,
}

impl<T: Real> EntryMap<T> for Values {
    /// The squares of lines that are normalised by themselves.
    type OfLines = Vec<Squares>;

    fn held_bytes(&self) -> u64 {
        let sums = match self.unit {
            Unit::No | Unit::Line => 0,
            Unit::Lines | Unit::Minors => size_of::<Squares>() as u64 * self.rows,
        };
        self.factors.held_bytes() + sums
    }

    fn line_bytes(&self) -> u64 {
        self.unit.line_bytes()
    }

    fn look(&self, first: usize, lines: impl Lines<T>) -> Vec<Squares> {
        if self.unit != Unit::Line {
            return Vec::new();
        }
        let mut squares = vec![Squares::default(); lines.lines()];
        add_lines(&self.factors, &mut squares, first, lines);
        squares
    }

    #[inline]
    fn value(
        &self,
        squares: &Vec<Squares>,
        first: usize,
        line: usize,
        minor: usize,
        value: f64,
    ) -> f64 {
        let value = self.factors.of(first + line, minor, value);
        let sum_of = |at: usize| self.sums.get().expect("the pass before has ended")[at].root();
        let length = match self.unit {
            Unit::No => 1.0,
            Unit::Line => squares[line].root(),
            Unit::Lines => sum_of(first + line),
            Unit::Minors => sum_of(minor),
        };
        if length > 0.0 { value / length } else { value }
    }
}

fn add_lines<T: Real>(
    factors: &Factors,
    squares: &mut [Squares],
    first: usize,
    lines: impl Lines<T>,
) {
    lines.each_line(|line, entries| {
        entries.each(|minor, value| {
            squares[line].add(factors.of(first + line, minor, value.f64()));
        });
    });
}

/// The squares of each line.
struct LineSquares(Arc<Factors>);

impl<T: Real> Map<T> for LineSquares {
    type Element = Squares;

    fn held_bytes(&self) -> u64 {
        self.0.held_bytes()
    }

    fn dense(&self, _into: &mut [Squares], _rows: MatRef<'_, T>) -> Result<()> {
        Err(Error::value("this takes sparse lines"))
    }

    fn sparse(&self, into: &mut [Squares], first: u64, lines: impl Lines<T>) -> Result<()> {
        add_lines(&self.0, into, first as usize, lines);
        Ok(())
    }

    fn merge(&self, into: &mut Squares, other: &Squares) {
        into.merge(other);
    }
}

/// The squares of each minor index, over all lines.
struct MinorSquares {
    factors: Arc<Factors>,
    width: usize,
}

impl<T: Real> Fold<T> for MinorSquares {
    type Element = Squares;

    fn elements(&self) -> usize {
        self.width
    }

    fn held_bytes(&self) -> u64 {
        self.factors.held_bytes()
    }

    fn dense(&self, _state: &mut [Squares], _first: u64, _rows: MatRef<'_, T>) -> Result<()> {
        Err(Error::value("this takes sparse lines"))
    }

    fn sparse(&self, state: &mut [Squares], first: u64, lines: impl Lines<T>) -> Result<()> {
        lines.each_line(|line, entries| {
            entries.each(|minor, value| {
                let line = first as usize + line;
                state[minor].add(self.factors.of(line, minor, value.f64()));
            });
        });
        Ok(())
    }

    fn merge(&self, into: &mut [Squares], other: &[Squares]) {
        into.iter_mut()
            .zip(other)
            .for_each(|(into, other)| into.merge(other));
    }
}
