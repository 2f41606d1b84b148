//! A copy of a sparse matrix with other values: scaled by rows and columns, dampened, normalised,
//! or just stored.
//!
//! One pass: reads A, writes the result; every entry keeps its place. A row is normalised by its
//! own entries as they come by; where the lines of A are columns, or a row is cut in several
//! pieces, the squares of rows are added up in a pass before.

use std::ops::Range;
use std::path::PathBuf;
use std::sync::{Arc, RwLock};

use outcore_core::{DType, Element, Error, Job, MemorySplit, Result, Session, with_real};
use outcore_engine::{Block, Plan, Region, Task};
use outcore_kernels::{Lines, Real, Squares};
use outcore_matrix::sparse::{NewSparse, Piece, PieceBlocks, SparseShape, in_lines, with_lines};
use outcore_matrix::{Compressed, Sparse};

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
    pub dtype: Option<DType>,
}

/// A copy of A with scaled values, in a new folder or in scratch.
///
/// Cost: reads A, writes as much. Values are computed in f64 and rounded once.
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
    let dtype = scaling.dtype.unwrap_or(a.dtype());
    with_real!(a.dtype(), T => with_real!(dtype, U => plan::<T, U>(session, a, scaling, dtype, out)))
}

/// The factors, by what lines and places of A are, and sums of squares where they are made before.
struct Values {
    logarithm: bool,
    lines: Option<Vec<f64>>,
    places: Option<Vec<f64>>,
    unit: Option<Unit>,
}

enum Unit {
    /// Of each line by itself.
    Line,
    /// By sums of squares that an earlier plan has made: of lines, or of places.
    Lines(Arc<RwLock<Vec<Squares>>>),
    Places(Arc<RwLock<Vec<Squares>>>),
}

impl Values {
    #[inline]
    fn of(&self, line: usize, place: usize, value: f64) -> f64 {
        let value = if self.logarithm {
            1.0 + value.ln()
        } else {
            value
        };
        let by = |factors: &Option<Vec<f64>>, at: usize| {
            factors.as_ref().map_or(1.0, |factors| factors[at])
        };
        value * by(&self.lines, line) * by(&self.places, place)
    }

    fn is_plain(&self) -> bool {
        !self.logarithm && self.lines.is_none() && self.places.is_none() && self.unit.is_none()
    }
}

fn plan<T: Real, U: Real>(
    session: &Session,
    a: &Sparse,
    scaling: Scaling,
    dtype: DType,
    out: Option<PathBuf>,
) -> Result<Job<Sparse>> {
    let Scaling {
        logarithm,
        rows,
        cols,
        unit_rows,
        ..
    } = scaling;
    let held = 8 * [&rows, &cols]
        .map(|factors| factors.as_ref().map_or(0, Vec::len))
        .iter()
        .sum::<usize>() as u64;
    let by_rows = a.format() == Compressed::Rows;
    let (lines, places) = if by_rows { (rows, cols) } else { (cols, rows) };
    let line_bytes = if unit_rows && by_rows {
        size_of::<Squares>() as u64
    } else {
        0
    };
    let pieces = a.pieces(
        MemorySplit::new(session).hold(held).moved_panel_bytes() / 2,
        |lines| lines * line_bytes,
    );
    let cut = pieces.iter().any(|piece| piece.breaks_off);
    let sums = Arc::new(RwLock::new(Vec::new()));
    let unit = unit_rows.then(|| match (by_rows, cut) {
        (true, false) => Unit::Line,
        (true, true) => Unit::Lines(Arc::clone(&sums)),
        (false, _) => Unit::Places(Arc::clone(&sums)),
    });
    let summed = matches!(unit, Some(Unit::Lines(_) | Unit::Places(_)));
    let values = Arc::new(Values {
        logarithm,
        lines,
        places,
        unit,
    });
    let held = held
        + if summed {
            size_of::<Squares>() as u64 * a.rows()
        } else {
            0
        };
    let mut plans = Vec::new();
    if summed {
        plans.push(sums_plan::<T>(a, &pieces, &values, sums, held));
    }

    let mut plan = Plan::new(format!("scale {}", a.name()));
    plan.hold(held);
    let has_values = a.has_values() || !values.is_plain();
    let shape = SparseShape {
        dtype,
        has_values,
        ..SparseShape::of(a)
    };
    let new = NewSparse::make(session, out, shape, &mut plan)?;
    let last = Task::new("end").write(new.offsets(&mut plan, a.lines()..a.lines() + 1));
    let entries = a.nonzeros() as i64;
    plan.task(last.run(move |cx| {
        cx.blocks[0].slice_mut::<i64>()[0] = entries;
        Ok(())
    }));
    let mut at = 0;
    for piece in &pieces {
        let range = at..at + piece.entries();
        at = range.end;
        let written = Written::declare(&mut plan, &new, piece, range.clone());
        let lines = piece.lines().end - piece.lines().start;
        let task = Task::new("scale")
            .flops(2 * piece.entries())
            .held((lines * line_bytes) as usize);
        let task = a
            .regions(&mut plan, piece)
            .into_iter()
            .fold(task, Task::read);
        let task = written
            .regions
            .iter()
            .fold(task, |task, region| task.write(*region));
        let (lines, values) = (a.blocks(piece), Arc::clone(&values));
        plan.task(task.run(move |cx| {
            let (read, blocks) = cx.blocks.split_at_mut(lines.count());
            Ok(written.fill::<T, U>(&lines, read, blocks, range.start, &values)?)
        }));
    }
    plan.bound(a.stored_bytes() + new.nbytes());
    plans.push(plan);
    Job::new(session, plans, move |_| new.finish())
}

/// Sums of squares of rows.
fn sums_plan<T: Real>(
    a: &Sparse,
    pieces: &[Piece],
    values: &Arc<Values>,
    sums: Arc<RwLock<Vec<Squares>>>,
    held: u64,
) -> Plan {
    let mut plan = Plan::new(format!("norms of {}", a.name()));
    plan.hold(held);
    plan.bound(a.stored_bytes());
    let (turn, rows) = (plan.serial(), a.rows() as usize);
    for piece in pieces {
        let (lines, values, sums) = (a.blocks(piece), Arc::clone(values), Arc::clone(&sums));
        let task = a
            .regions(&mut plan, piece)
            .into_iter()
            .fold(Task::new("norms"), Task::read);
        plan.task(task.update(turn).run(move |cx| {
            let mut sums = sums.write().expect("no panic while held");
            sums.resize(rows, Squares::default());
            let first = lines.piece.lines().start as usize;
            let by_lines = matches!(values.unit, Some(Unit::Lines(_)));
            with_lines!(lines, cx.blocks, T, a => a.each_line(|line, entries| entries.each(|place, value| {
                let line = first + line;
                sums[if by_lines { line } else { place }].add(values.of(line, place, value.f64()));
            })));
            Ok(())
        }));
    }
    plan
}

/// What a task writes of a new matrix.
struct Written {
    regions: Vec<Region>,
    has_offsets: bool,
    has_values: bool,
    index: Element,
}

impl Written {
    /// The offsets of the lines that the piece begins, its indices and its values.
    fn declare(plan: &mut Plan, new: &NewSparse, piece: &Piece, entries: Range<u64>) -> Written {
        let offsets = (!piece.continues).then(|| new.offsets(plan, piece.lines()));
        let (has_offsets, indices) = (offsets.is_some(), new.indices(plan, entries.clone()));
        let values = new.values(plan, entries);
        let has_values = values.is_some();
        Written {
            regions: offsets.into_iter().chain([indices]).chain(values).collect(),
            has_offsets,
            has_values,
            index: new.shape().index,
        }
    }

    fn fill<T: Real, U: Real>(
        &self,
        lines: &PieceBlocks,
        read: &[Block],
        blocks: &mut [Block],
        first_entry: u64,
        values: &Values,
    ) -> Result<()> {
        let (offsets, rest) = blocks.split_at_mut(usize::from(self.has_offsets));
        let (indices, rest) = rest.split_at_mut(1);
        let first = lines.piece.lines().start as usize;
        let by_itself = matches!(values.unit, Some(Unit::Line));
        with_lines!(lines, read, T, a => {
            let mut squares = vec![Squares::default(); if by_itself { a.lines() } else { 0 }];
            if by_itself {
                a.each_line(|line, entries| entries.each(|place, value| squares[line].add(values.of(first + line, place, value.f64()))));
            }
            let sums = match &values.unit {
                Some(Unit::Lines(sums) | Unit::Places(sums)) => Some(sums.read().expect("no panic while held")),
                _ => None,
            };
            let length = |line: usize, place: usize| match (&values.unit, &sums) {
                (Some(Unit::Line), _) => squares[line].root(),
                (Some(Unit::Lines(_)), Some(sums)) => sums[first + line].root(),
                (Some(Unit::Places(_)), Some(sums)) => sums[place].root(),
                _ => 1.0,
            };
            let into = if self.has_values { rest[0].slice_mut::<U>() } else { &mut [] };
            let value_of = |line: usize, place: usize, value: T| {
                let (value, length) = (values.of(first + line, place, value.f64()), length(line, place));
                U::of(if length > 0.0 { value / length } else { value })
            };
            let mut put = |at: usize, line: usize, place: usize, value: T| {
                if let Some(into) = into.get_mut(at) {
                    *into = value_of(line, place, value);
                }
            };
            let found = match self.index {
                Element::U16 => {
                    let indices = indices[0].slice_mut::<u16>();
                    in_lines(a, |at, line, place, value| (indices[at] = place as u16, put(at, line, place, value)).1)
                }
                Element::I32 => {
                    let indices = indices[0].slice_mut::<i32>();
                    in_lines(a, |at, line, place, value| (indices[at] = place as i32, put(at, line, place, value)).1)
                }
                _ => {
                    let indices = indices[0].slice_mut::<i64>();
                    in_lines(a, |at, line, place, value| (indices[at] = place as i64, put(at, line, place, value)).1)
                }
            };
            if let Some(offsets) = offsets.first_mut() {
                let into = offsets.slice_mut::<i64>().iter_mut();
                into.zip(found).for_each(|(into, at)| *into = (first_entry + at) as i64);
            }
        });
        Ok(())
    }
}
