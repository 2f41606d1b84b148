//! Tall matrices: n rows and up to some thousands of columns, in memory or in scratch, which every
//! operation goes through in panels of rows. It is in f64; what is stored may be rounded to f32, where
//! what columns are made of has no more digits.
//!
//! Of each panel the columns lie one after another, so that columns are appended in place, and what is
//! read of a panel is one run:
//!
//! ```text
//!           lane 0                lane 1           rows; a lane is summed up in order
//! |-----------|-----------||-----------|-----|     panels: what a task has at once
//! |--|--|--|--|--|--|--|--||--|--|--|--|--|--|     chunks: what is multiplied and added at once
//! ```
//!
//! Chunks and lanes follow from the shape alone, and lanes are merged in order: the bits depend
//! neither on how many threads there are, nor on where a matrix lies, nor on the budget, which
//! decides only on the panels in scratch.

mod layout;

use std::ops::Range;
use std::sync::{Arc, Mutex};

use outcore_core::{DType, Order, RealType, Result, Session, Stage, with_real};
use outcore_device::Locked;
use outcore_engine::{Plan, Reservation, Task};
use outcore_kernels as kernels;
use outcore_kernels::{Mat, MatMut, MatRef};
use outcore_matrix::{Array, Layout, Tile};

use self::layout::{Cut, LANES, copied_bytes, sector_rows, task_bytes};
use super::orthonormal::Noise;
use super::panel::{Columns, Panel, Source, put};

pub(super) use self::layout::{SUMS, TallLayout};

/// A panel of less work is no task.
const TASK_FLOPS: usize = 1 << 20;

/// The same rows of a few columns, which are changed beside a tall matrix.
pub(super) type Panels = Arc<Vec<Mutex<Mat<f64>>>>;

/// n x `used`, of `capacity` columns at most.
pub(super) struct Tall {
    session: Session,
    rows: usize,
    used: usize,
    capacity: usize,
    /// Columns from one panel in scratch to the next.
    pitch: usize,
    /// Of what is stored.
    real: RealType,
    cut: Cut,
    storage: Storage,
}

enum Storage {
    Memory(Arc<Vec<Mutex<Columns>>>, Reservation),
    /// The second is what a rotation writes.
    Scratch(Box<[Array; 2]>),
    /// In scratch row after row, each array with some of the columns and numbers to be taken off them,
    /// and what all are multiplied with whenever they are read: a rotation writes nothing.
    Rows(Vec<(Array, Arc<[f64]>)>, Option<Arc<Mat<f64>>>),
}

/// What a pass does with a chunk, the columns beside it, and the sum of its lane; it is told the
/// first row.
type Work =
    dyn Fn(usize, MatRef<'_, f64>, MatMut<'_, f64>, MatMut<'_, f64>) -> Result<()> + Send + Sync;

impl Tall {
    pub(super) fn new(session: &Session, layout: TallLayout, stage: &Stage) -> Result<Tall> {
        let TallLayout {
            rows,
            capacity,
            real,
            cut,
            ..
        } = layout;
        let storage = if layout.in_memory {
            let held = stage.reserve("a basis of vectors", layout.held_bytes(capacity))?;
            let panels = cut
                .panels()
                .map(|range| Mutex::new(Columns::zeros(real, range.len(), capacity)))
                .collect();
            Storage::Memory(Arc::new(panels), held)
        } else {
            // Columns begin with sectors, as panels do.
            let elements = (rows.next_multiple_of(sector_rows(real)) * capacity) as u64;
            let array = || Array::temporary(session, real.into(), &[elements], Order::Row);
            Storage::Scratch(Box::new([array()?, array()?]))
        };
        Ok(Tall {
            session: session.clone(),
            rows,
            used: 0,
            capacity,
            pitch: capacity,
            real,
            cut,
            storage,
        })
    }

    /// With no columns yet: those that are appended lie in scratch row after row.
    pub(super) fn of_rows(session: &Session, layout: TallLayout) -> Tall {
        Tall {
            session: session.clone(),
            rows: layout.rows,
            used: 0,
            capacity: layout.capacity,
            pitch: layout.capacity,
            real: layout.real,
            cut: layout.cut,
            storage: Storage::Rows(Vec::new(), None),
        }
    }

    pub(super) fn rows(&self) -> usize {
        self.rows
    }

    /// Columns that it has.
    pub(super) fn used(&self) -> usize {
        self.used
    }

    pub(super) fn capacity(&self) -> usize {
        self.capacity
    }

    /// Some columns of a panel in scratch, with the rest of its last sectors.
    fn tile(
        &self,
        plan: &mut Plan,
        array: &Array,
        rows: &Range<usize>,
        columns: Range<usize>,
    ) -> Tile {
        let (element, unit) = (self.real.bytes(), sector_rows(self.real));
        let height = rows.len().next_multiple_of(unit) as u64;
        let panel = Layout {
            offset: (element * rows.start * self.pitch) as u64,
            rows: height,
            cols: self.pitch as u64,
            row_stride: 1,
            col_stride: height,
            element: element as u64,
        };
        let columns = columns.start as u64..columns.end as u64;
        panel.tile(plan.extent(array.extent()), 0..height, columns)
    }

    /// A panel with its first columns, in scratch.
    fn source(&self, plan: &mut Plan, rows: &Range<usize>, used: usize) -> Source {
        let (parts, turn) = match &self.storage {
            Storage::Scratch(arrays) => {
                let tile = self.tile(plan, &arrays[0], rows, 0..used);
                return Source::Panel(tile, self.real);
            }
            Storage::Rows(parts, turn) => (parts, turn),
            Storage::Memory(..) => unreachable!("it is in scratch"),
        };
        let lines = rows.start as u64..rows.end as u64;
        let tiles = parts.iter().map(|(array, offsets)| {
            let extent = plan.extent(array.extent());
            let columns = 0..offsets.len() as u64;
            let tile = array.layout().tile(extent, lines.clone(), columns);
            (tile, real_of(array), Arc::clone(offsets))
        });
        Source::Rows {
            tiles: tiles.collect(),
            turn: turn.clone(),
            blas: self.session.blas().clone(),
        }
    }

    /// What a task holds of rows that are made of what it reads.
    fn made_bytes(&self) -> usize {
        match self.storage {
            Storage::Rows(ref parts, _) => {
                let columns: usize = parts.iter().map(|(_, offsets)| offsets.len()).sum();
                16 * self.cut.chunk * columns.max(self.capacity)
            }
            Storage::Memory(..) | Storage::Scratch(_) => {
                copied_bytes(self.real, &self.cut, self.capacity)
            }
        }
    }

    fn ranges(&self) -> impl Iterator<Item = Range<usize>> + use<> {
        self.cut.panels()
    }

    /// Panels with their numbers, the first of each lane before the second ones.
    fn in_turns(&self) -> Vec<(usize, Range<usize>)> {
        let mut panels: Vec<_> = self.ranges().enumerate().collect();
        panels.sort_by_key(|(_, range)| range.start % self.cut.lane);
        panels
    }

    /// A few columns in panels as this has them.
    pub(super) fn split(&self, columns: MatRef<'_, f64>) -> Panels {
        let panel =
            |range: Range<usize>| Mutex::new(columns.subrows(range.start, range.len()).to_owned());
        Arc::new(self.ranges().map(panel).collect())
    }

    /// Goes through all chunks beside those of `beside`, and returns the sum of what `work` adds up,
    /// of this shape.
    pub(super) fn pass(
        &self,
        name: &'static str,
        beside: &Panels,
        sum: [usize; 2],
        stage: &mut Stage,
        work: impl Fn(usize, MatRef<'_, f64>, MatMut<'_, f64>, MatMut<'_, f64>) -> Result<()>
        + Send
        + Sync
        + 'static,
    ) -> Result<Mat<f64>> {
        self.pass_of(name, self.used, beside, sum, stage, Box::new(work))
    }

    fn pass_of(
        &self,
        name: &'static str,
        used: usize,
        beside: &Panels,
        sum: [usize; 2],
        stage: &mut Stage,
        work: Box<Work>,
    ) -> Result<Mat<f64>> {
        let width = block_width(beside);
        let flops = 4 * used.max(width) * width.max(sum[1]).max(1);
        let lanes: Arc<Vec<_>> = Arc::new(
            (0..self.cut.lanes())
                .map(|_| Mutex::new(Mat::<f64>::zeros(sum[0], sum[1])))
                .collect(),
        );
        let (cut, all, sums) = (self.cut, Arc::clone(beside), Arc::clone(&lanes));
        // The chunks of a panel, in order.
        let run = move |at: usize, range: &Range<usize>, panel: Panel<'_>| -> Result<()> {
            let (mut beside, mut lane) = (all[at].locked(), sums[cut.lane_of(range)].locked());
            let mut made = Mat::new();
            for chunk in cut.chunks(range) {
                let (first, rows) = (chunk.start, chunk.len());
                let beside = beside.as_mut().subrows_mut(first, rows);
                let panel = panel.rows(chunk, &mut made)?;
                work(range.start + first, panel, beside, lane.as_mut())?;
            }
            Ok(())
        };
        if let (Storage::Memory(panels, _), true) =
            (&self.storage, self.rows * flops < LANES * TASK_FLOPS)
        {
            for (at, range) in self.ranges().enumerate() {
                let panel = panels[at].locked();
                run(at, &range, Panel::Memory(&panel, used))?;
            }
            return Ok(merged(&lanes));
        }
        let run = Arc::new(run);
        let mut plan = Plan::new(name);
        let orders: Vec<_> = lanes.iter().map(|_| plan.serial()).collect();
        let held =
            task_bytes(&cut, used, width.max(sum[1]), self.session.blas()) + self.made_bytes();
        for (at, range) in self.in_turns() {
            let run = Arc::clone(&run);
            let task = Task::new(name)
                .flops((range.len() * flops) as u64)
                .held(held);
            // What a task reads is its first block.
            let lane = cut.lane_of(&range);
            let ordered = |task: Task| match sum {
                [0, _] => task,
                _ => task.update(orders[lane]),
            };
            match &self.storage {
                Storage::Memory(panels, _) => {
                    let panels = Arc::clone(panels);
                    plan.task(ordered(task).run(move |_| {
                        let panel = panels[at].locked();
                        Ok(run(at, &range, Panel::Memory(&panel, used))?)
                    }));
                }
                Storage::Scratch(_) | Storage::Rows(..) if used > 0 => {
                    let source = self.source(&mut plan, &range, used);
                    let task = ordered(source.read_by(task));
                    plan.task(
                        task.run(move |cx| Ok(run(at, &range, Panel::Read(&source, cx.blocks))?)),
                    );
                }
                Storage::Scratch(_) | Storage::Rows(..) => {
                    let none = Columns::zeros(self.real, range.len(), 0);
                    let run = move || run(at, &range, Panel::Memory(&none, 0));
                    plan.task(ordered(task).run(move |_| Ok(run()?)));
                }
            }
        }
        let fraction = stage.fraction();
        stage.run(plan, fraction)?;
        Ok(merged(&lanes))
    }

    /// The same without the tall matrix itself: nothing of it is read.
    pub(super) fn beside(
        &self,
        name: &'static str,
        beside: &Panels,
        stage: &mut Stage,
        work: impl Fn(MatMut<'_, f64>) -> Result<()> + Send + Sync + 'static,
    ) -> Result<()> {
        let work = Box::new(
            move |_: usize, _: MatRef<'_, f64>, beside: MatMut<'_, f64>, _: MatMut<'_, f64>| {
                work(beside)
            },
        );
        self.pass_of(name, 0, beside, [0, 0], stage, work).map(drop)
    }

    /// Gives back the memory of columns that it does not have, and grows no more.
    pub(super) fn shrink(&mut self) {
        self.capacity = self.used;
        if let Storage::Memory(panels, held) = &mut self.storage {
            panels
                .iter()
                .for_each(|panel| panel.locked().keep(self.used));
            held.shrink((self.real.bytes() * self.rows * self.used) as u64);
        }
    }

    /// Appends columns.
    pub(super) fn append(&mut self, columns: &Panels, stage: &mut Stage) -> Result<()> {
        let width = block_width(columns);
        assert!(self.used + width <= self.capacity, "there is room");
        let (into, from) = (self.used..self.used + width, columns);
        if let Storage::Memory(panels, _) = &self.storage {
            for (panel, from) in panels.iter().zip(from.iter()) {
                panel.locked().put(0, into.start, from.locked().as_ref());
            }
        } else if width > 0 {
            self.write_panels("append columns", into, from, stage)?;
        }
        self.used += width;
        Ok(())
    }

    /// Appends the columns of an array that lies row after row, less a number for each.
    pub(super) fn append_rows(&mut self, rows: Array, offsets: Vec<f64>) {
        self.used += offsets.len();
        match &mut self.storage {
            Storage::Rows(parts, None) => parts.push((rows, offsets.into())),
            _ => unreachable!("it was made for rows, and is turned when it has all"),
        }
    }

    /// Appends columns of noise to those that lie row after row.
    pub(super) fn append_noise(
        &mut self,
        columns: usize,
        noise: &mut Noise,
        stage: &mut Stage,
    ) -> Result<()> {
        let (shape, real) = ([self.rows as u64, columns as u64], self.real);
        let made = Array::temporary(&self.session, real.into(), &shape, Order::Row)?;
        let (mut plan, drawn) = (Plan::new("noise"), *noise);
        let extent = plan.extent(made.extent());
        let tile = |range: &Range<usize>| {
            let rows = range.start as u64..range.end as u64;
            made.layout().tile(extent, rows, 0..shape[1])
        };
        let panels: Vec<_> = self.ranges().map(|range| tile(&range).region).collect();
        let bytes = panels.iter().map(|region| region.bytes()).max();
        made.cleared_for(&mut plan, extent, panels.into_iter(), bytes.unwrap_or(1));
        for range in self.ranges() {
            let (tile, cut) = (tile(&range), self.cut);
            let task = Task::new("noise").held(8 * cut.chunk * columns);
            plan.task(task.write(tile.region).run(move |cx| {
                for chunk in cut.chunks(&range) {
                    let rows = range.start + chunk.start..range.start + chunk.end;
                    let from = drawn.rows(rows, columns);
                    with_real!(real, T => {
                        let into = tile.of_mut::<T>(&mut cx.blocks[0])?;
                        put(from.as_ref(), into.subrows_mut(chunk.start, chunk.len()));
                    });
                }
                Ok(())
            }));
        }
        let fraction = stage.fraction();
        stage.run(plan, fraction)?;
        noise.made += columns as u64;
        self.append_rows(made, vec![0.0; columns]);
        Ok(())
    }

    /// V^T V.
    pub(super) fn gram(&self, stage: &mut Stage) -> Result<Mat<f64>> {
        let (used, blas) = (self.used, self.session.blas().clone());
        let lower = self.pass(
            "Gram matrix",
            &self.nothing(),
            [used, used],
            stage,
            move |_, v, _, sum| Ok(kernels::syrk(sum, 1.0, v.transpose(), 1.0, &blas)?),
        )?;
        Ok(Mat::from_fn(used, used, |i, j| lower[(i.max(j), i.min(j))]))
    }

    /// No columns beside it.
    fn nothing(&self) -> Panels {
        let nothing = |range: Range<usize>| Mutex::new(Mat::zeros(range.len(), 0));
        Arc::new(self.ranges().map(nothing).collect())
    }

    fn write_panels(
        &self,
        name: &'static str,
        columns: Range<usize>,
        from: &Panels,
        stage: &mut Stage,
    ) -> Result<()> {
        let Storage::Scratch(arrays) = &self.storage else {
            unreachable!("what is in memory is changed where it is")
        };
        let (mut plan, real) = (Plan::new(name), self.real);
        for (at, range) in self.ranges().enumerate() {
            let tile = self.tile(&mut plan, &arrays[0], &range, columns.clone());
            let from = Arc::clone(from);
            plan.task(Task::new(name).write(tile.region).run(move |cx| {
                with_real!(real, T => {
                    let mut into = tile.of_mut::<T>(&mut cx.blocks[0])?;
                    let (rows, padding) = (range.len(), tile.rows - range.len());
                    put(from[at].locked().as_ref(), into.as_mut().subrows_mut(0, rows));
                    into.subrows_mut(rows, padding).fill(0.0);
                });
                Ok(())
            }));
        }
        let fraction = stage.fraction();
        stage.run(plan, fraction)?;
        Ok(())
    }

    /// Some columns, in memory.
    pub(super) fn columns(&self, columns: Range<usize>, stage: &mut Stage) -> Result<Mat<f64>> {
        assert!(columns.end <= self.used, "columns that are there");
        let (width, real) = (columns.len(), self.real);
        let found = Arc::new(Mutex::new(Mat::zeros(self.rows, width)));
        let part = {
            let found = Arc::clone(&found);
            move |range: &Range<usize>, panel: MatRef<'_, f64>| {
                let mut found = found.locked();
                let mut into = found.as_mut().subrows_mut(range.start, range.len());
                into.copy_from(panel);
            }
        };
        let part = Arc::new(part);
        match &self.storage {
            Storage::Memory(panels, _) => {
                let mut made = Mat::new();
                for (range, panel) in self.ranges().zip(panels.iter()) {
                    let panel = panel.locked();
                    part(
                        &range,
                        panel.part(0..range.len(), columns.clone(), &mut made),
                    );
                }
            }
            Storage::Rows(..) => {
                unreachable!("columns that lie row after row are read all at once")
            }
            Storage::Scratch(arrays) => {
                let mut plan = Plan::new("read columns");
                for range in self.ranges().filter(|_| width > 0) {
                    let tile = self.tile(&mut plan, &arrays[0], &range, columns.clone());
                    let part = Arc::clone(&part);
                    plan.task(Task::new("read columns").read(tile.region).run(move |cx| {
                        let source = Source::Panel(tile, real);
                        let mut made = Mat::new();
                        part(&range, source.rows(cx.blocks, 0..range.len(), &mut made)?);
                        Ok(())
                    }));
                }
                let fraction = stage.fraction();
                stage.run(plan, fraction)?;
            }
        }
        Ok(std::mem::replace(&mut *found.locked(), Mat::new()))
    }

    /// The first columns become V Y, those of `kept` come after them, and there are no others. Of those
    /// that lie row after row all do, whenever they are read.
    pub(super) fn rotate(
        &mut self,
        y: MatRef<'_, f64>,
        kept: Range<usize>,
        stage: &mut Stage,
    ) -> Result<()> {
        let (depth, width) = y.shape();
        let used = width + kept.len();
        assert!(
            kept.end <= self.used && used <= self.capacity,
            "there is room"
        );
        let y = Arc::new(y.to_owned());
        if let Storage::Rows(_, turn) = &mut self.storage {
            assert!(kept.is_empty() && depth == self.used, "all columns");
            let before = turn.take();
            *turn = Some(before.map_or(Arc::clone(&y), |before| Arc::new(&*before * &*y)));
            self.used = used;
            return Ok(());
        }
        let mut plan = Plan::new("rotate the basis");
        let (cut, real, blas) = (self.cut, self.real, self.session.blas().clone());
        let held = task_bytes(&cut, depth, used, &blas) + self.made_bytes();
        let rotated = move |panel: MatRef<'_, f64>| -> Result<Mat<f64>> {
            let mut made = Mat::zeros(panel.nrows(), used);
            let (from, new) = (panel.subcols(0, depth), made.as_mut().subcols_mut(0, width));
            kernels::gemm(new, 1.0, from, (*y).as_ref(), 0.0, &blas)?;
            let into = made.as_mut().subcols_mut(width, kept.len());
            put(panel.subcols(kept.start, kept.len()), into);
            Ok(made)
        };
        let (rotated, before) = (Arc::new(rotated), self.used);
        for (at, range) in self.ranges().enumerate() {
            let rotated = Arc::clone(&rotated);
            let task = Task::new("rotate")
                .flops((2 * range.len() * depth * width) as u64)
                .held(held);
            match &self.storage {
                Storage::Memory(panels, _) => {
                    let panels = Arc::clone(panels);
                    plan.task(task.run(move |_| {
                        let (mut panel, mut made) = (panels[at].locked(), Mat::new());
                        for chunk in cut.chunks(&range) {
                            let first = chunk.start;
                            let new = rotated(panel.part(chunk, 0..before, &mut made))?;
                            panel.put(first, 0, new.as_ref());
                        }
                        Ok(())
                    }));
                }
                Storage::Rows(..) => unreachable!("returned above"),
                Storage::Scratch(arrays) => {
                    let from = self.source(&mut plan, &range, before);
                    let into = self.tile(&mut plan, &arrays[1], &range, 0..used);
                    let task = from.read_by(task).write(into.region);
                    plan.task(task.run(move |cx| {
                        let (read, written) = cx.blocks.split_at_mut(1);
                        let mut made = Mat::new();
                        with_real!(real, T => {
                            let mut into = into.of_mut::<T>(&mut written[0])?;
                            for chunk in cut.chunks(&range) {
                                let (first, rows) = (chunk.start, chunk.len());
                                let new = rotated(from.rows(read, chunk, &mut made)?)?;
                                put(new.as_ref(), into.as_mut().subrows_mut(first, rows));
                            }
                            let (rows, padding) = (range.len(), into.nrows() - range.len());
                            into.subrows_mut(rows, padding).fill(0.0);
                        });
                        Ok(())
                    }));
                }
            }
        }
        let fraction = stage.fraction();
        stage.run(plan, fraction)?;
        if let Storage::Scratch(arrays) = &mut self.storage {
            arrays.swap(0, 1);
        }
        self.used = used;
        Ok(())
    }

    /// What a column is multiplied by to have the entry of largest magnitude positive; the first of
    /// several such decides.
    pub(super) fn signs(&self, stage: &mut Stage) -> Result<Vec<f64>> {
        let none = self.nothing();
        let found = Arc::new(Mutex::new(vec![(0.0f64, usize::MAX); self.used]));
        let into = Arc::clone(&found);
        self.pass("signs", &none, [0, 0], stage, move |first, panel, _, _| {
            for column in 0..panel.ncols() {
                let mut largest = (0.0f64, usize::MAX);
                for (row, &value) in panel.col(column).iter().enumerate() {
                    if value.abs() > largest.0.abs() {
                        largest = (value, first + row);
                    }
                }
                let best = &mut into.locked()[column];
                let is_larger = largest.0.abs() > best.0.abs();
                if is_larger || largest.0.abs() == best.0.abs() && largest.1 < best.1 {
                    *best = largest;
                }
            }
            Ok(())
        })?;
        let found = found.locked();
        Ok(found
            .iter()
            .map(|(value, _)| if *value < 0.0 { -1.0 } else { 1.0 })
            .collect())
    }

    /// All columns, each multiplied by its factor: in memory, one after another, with what these take,
    /// or in scratch.
    pub(super) fn finish(
        self,
        factors: Vec<f64>,
        dtype: DType,
        stage: &mut Stage,
    ) -> Result<(Vectors, Option<Reservation>)> {
        let (rows, columns) = (self.rows, self.used);
        assert_eq!(factors.len(), columns);
        if let Storage::Memory(panels, held) = self.storage {
            let made_held = stage.reserve("vectors", 8 * (rows * columns) as u64)?;
            let mut values = vec![0.0; rows * columns];
            let mut made = Mat::new();
            for (range, panel) in self.cut.panels().zip(panels.iter()) {
                let panel = panel.locked();
                let panel = panel.part(0..range.len(), 0..columns, &mut made);
                for (column, factor) in factors.iter().enumerate() {
                    let into = &mut values[column * rows..][range.clone()];
                    let from = panel.col(column).iter();
                    into.iter_mut().zip(from).for_each(|(y, x)| *y = factor * x);
                }
            }
            drop(held);
            let vectors = Vectors::Memory {
                values,
                rows,
                columns,
            };
            return Ok((vectors, Some(made_held)));
        }
        let shape = [rows as u64, columns as u64];
        let made = Array::temporary(&self.session, dtype, &shape, Order::Column)?;
        let real = real_of(&made);
        let factors = Arc::new(factors);
        let mut plan = Plan::new("vectors");
        let extent = plan.extent(made.extent());
        let panel = |range: Range<usize>| {
            let rows = range.start as u64..range.end as u64;
            made.layout().tile(extent, rows, 0..columns as u64)
        };
        let panels: Vec<_> = self.ranges().map(|range| panel(range).region).collect();
        let bytes = panels.iter().map(|region| region.bytes()).max();
        made.cleared_for(&mut plan, extent, panels.into_iter(), bytes.unwrap_or(1));
        for range in self.ranges() {
            let (from, into) = (
                self.source(&mut plan, &range, columns),
                panel(range.clone()),
            );
            let (cut, factors) = (self.cut, Arc::clone(&factors));
            let task = Task::new("vectors").held(self.made_bytes());
            plan.task(from.read_by(task).write(into.region).run(move |cx| {
                let (read, written) = cx.blocks.split_at_mut(from.count());
                let mut made = Mat::new();
                for chunk in cut.chunks(&range) {
                    let (first, rows) = (chunk.start, chunk.len());
                    let from = from.rows(read, chunk, &mut made)?;
                    with_real!(real, T => {
                        let into = into.of_mut::<T>(&mut written[0])?;
                        put_scaled(from, into.subrows_mut(first, rows), &factors);
                    });
                }
                Ok(())
            }));
        }
        let fraction = stage.fraction();
        stage.run(plan, fraction)?;
        Ok((Vectors::Scratch(made), None))
    }
}

fn real_of(array: &Array) -> RealType {
    let real = array.dtype().real();
    real.expect("vectors have real elements")
}

fn put_scaled<T: kernels::Real>(from: MatRef<'_, f64>, mut into: MatMut<'_, T>, factors: &[f64]) {
    for (column, factor) in factors.iter().enumerate() {
        for row in 0..from.nrows() {
            into[(row, column)] = T::of(factor * from[(row, column)]);
        }
    }
}

/// Vectors as columns.
pub enum Vectors {
    /// Column after column, of f64.
    Memory {
        /// The elements.
        values: Vec<f64>,
        /// Elements of a column.
        rows: usize,
        /// How many columns there are.
        columns: usize,
    },
    /// Where the search had them; of the type of the matrix.
    Scratch(Array),
}

/// Columns of panels.
pub(super) fn block_width(panels: &Panels) -> usize {
    panels.first().map_or(0, |panel| panel.locked().ncols())
}

fn merged(lanes: &[Mutex<Mat<f64>>]) -> Mat<f64> {
    let mut lanes = lanes
        .iter()
        .map(|lane| std::mem::replace(&mut *lane.locked(), Mat::new()));
    let mut sum = lanes.next().expect("there is one lane at least");
    lanes.for_each(|lane| sum += lane);
    sum
}

#[cfg(test)]
mod tests {
    use outcore_core::{Job, MemorySplit};
    use outcore_kernels::Blas;

    use super::*;
    use crate::spectra::testing::{by_columns, noise, session};

    /// What a tall matrix of two blocks of 8 columns comes to in a pass, a rotation and at its end.
    fn results(layout: TallLayout, threads: usize, is_widened: bool) -> [Mat<f64>; 3] {
        let (_folder, session) = session(32 << 20, threads);
        let split = MemorySplit::new(&session);
        let layout = if is_widened {
            layout.widened(&split)
        } else {
            layout
        };
        let (own, rows) = (session.clone(), layout.rows);
        let job = Job::driven(&session, vec![], move |stage, _| {
            let mut tall = Tall::new(&own, layout, stage)?;
            for seed in 0..2 {
                let block = tall.split(noise(rows, 8, seed).as_ref());
                tall.append(&block, stage)?;
            }
            let beside = tall.split(noise(rows, 3, 2).as_ref());
            let work = |_: usize, v: MatRef<'_, f64>, w: MatMut<'_, f64>, sum: MatMut<'_, f64>| {
                let v = v.transpose();
                Ok(kernels::gemm(sum, 1.0, v, w.as_ref(), 1.0, &Blas::Builtin)?)
            };
            let sum = tall.pass("sum", &beside, [16, 3], stage, work)?;
            tall.rotate(noise(16, 5, 3).as_ref(), 14..16, stage)?;
            assert_eq!(tall.used(), 7);
            tall.shrink();
            let rotated = tall.columns(0..7, stage)?;
            let signs = tall.signs(stage)?;
            Ok((sum, rotated, tall.finish(signs, DType::F64, stage)?.0))
        });
        let (sum, rotated, finished) = job.expect("it fits").run().expect("nothing can fail");
        let finished = by_columns(&finished);
        let finished = Mat::from_fn(rows, 7, |row, column| finished[column * rows + row]);
        [sum, rotated, finished]
    }

    #[test]
    fn products_are_those_of_plain_loops_with_the_same_bits_wherever_it_lies() {
        for (rows, real) in [1, 77, 512, 9001].into_iter().flat_map(|rows| {
            let reals = [(RealType::F64, 1e-11), (RealType::F32, 1e-5)];
            reals.map(|real| (rows, real))
        }) {
            let (real, tolerance) = real;
            let blocks = [0, 1].map(|seed| noise(rows, 8, seed));
            let v = Mat::from_fn(rows, 16, |row, column| {
                blocks[column / 8][(row, column % 8)]
            });
            let expected = [v.transpose() * noise(rows, 3, 2), &v * noise(16, 5, 3)];
            let in_memory = TallLayout::in_memory(real, rows, 40);
            let in_scratch = TallLayout::in_scratch(real, rows, 40);
            let [first, rest @ ..] = [
                results(in_memory, 1, false),
                results(in_memory, 3, false),
                results(in_scratch, 2, false),
                results(in_scratch, 3, true),
            ];
            for (found, expected) in first.iter().zip(&expected) {
                let found = found.as_ref().subcols(0, expected.ncols());
                let off = (found - expected).norm_max();
                assert!(off < tolerance * (rows as f64).sqrt(), "{rows} rows: {off}");
            }
            assert!((first[1].subcols(5, 2) - v.subcols(14, 2)).norm_max() < tolerance);
            for column in 0..7 {
                let column = first[2].col(column);
                let least = column.iter().copied().fold(f64::INFINITY, f64::min);
                assert!(column.norm_max() >= -least);
            }
            assert!(rest.iter().all(|other| *other == first), "{rows} rows");
        }
    }
}
