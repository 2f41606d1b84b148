//! Tall matrices of f64: n rows and up to some thousands of columns, in memory or in scratch, which
//! every operation goes through in panels of rows.
//!
//! Columns lie one after another, so that columns are appended in place and a panel is one long run
//! of each. Sums over panels are made in a fixed number of lanes, each in order, and merged in
//! order: the bits do not depend on the number of threads.

use std::ops::Range;
use std::sync::{Arc, Mutex};

use outcore_core::{DType, MemorySplit, Order, Result, Session, Stage};
use outcore_device::Locked;
use outcore_engine::{Plan, Reservation, Task};
use outcore_kernels as kernels;
use outcore_kernels::{Blas, Mat, MatMut, MatRef};
use outcore_matrix::{Array, Tile};

/// Sums that are added to at once.
const LANES: usize = 4;

/// Bytes of a panel in memory: all columns of it are in the cache of a core.
const PANEL_BYTES: usize = 1 << 20;

/// A panel of less work is no task.
const TASK_FLOPS: usize = 1 << 20;

/// Tasks that the engine keeps scratch memory for at the least.
const TASKS: usize = 2;

/// Rows of panels in scratch are whole sectors where they are so many.
const SECTOR_ROWS: usize = 512;

/// The same rows of a few columns, which are changed beside a tall matrix.
pub(super) type Panels = Arc<Vec<Mutex<Mat<f64>>>>;

/// n x `used`, of `capacity` columns at most.
pub(super) struct Tall {
    session: Session,
    rows: usize,
    used: usize,
    capacity: usize,
    /// Rows of a panel.
    step: usize,
    place: Place,
}

enum Place {
    Memory(Panels, Reservation),
    /// The second is what a rotation writes.
    Scratch(Box<[Array; 2]>),
}

/// Where a tall matrix is, and what it holds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Layout {
    pub(super) rows: usize,
    pub(super) capacity: usize,
    pub(super) in_memory: bool,
    step: usize,
}

impl Layout {
    pub(super) fn in_memory(rows: usize, capacity: usize) -> Layout {
        let step = PANEL_BYTES / (8 * capacity.max(1));
        Layout {
            rows,
            capacity,
            in_memory: true,
            step: step.clamp(64, 1 << 13).next_multiple_of(64),
        }
    }

    pub(super) fn in_scratch(split: &MemorySplit, rows: usize, capacity: usize) -> Layout {
        let step = split.panel_bytes() as usize / (8 * capacity.max(1));
        let step = match step >= SECTOR_ROWS {
            true => step / SECTOR_ROWS * SECTOR_ROWS,
            false => step.max(1),
        };
        Layout {
            rows,
            capacity,
            in_memory: false,
            step: step.min(rows.next_multiple_of(SECTOR_ROWS)),
        }
    }

    /// What is held all the time, or at least while a pass goes on.
    pub(super) fn bytes(&self) -> u64 {
        // The largest product is a rotation.
        let (panel, capacity) = (8 * self.step * self.capacity, self.capacity);
        let product = panel + product_bytes(self.step, capacity, capacity, &Blas::Builtin);
        let bytes = match self.in_memory {
            true => 8 * self.rows * capacity,
            false => 4 * panel,
        };
        (bytes + TASKS * product) as u64
    }

    /// What is read by an operation on all columns.
    pub(super) fn pass_bytes(&self) -> u64 {
        match self.in_memory {
            true => 0,
            false => (8 * self.rows * self.capacity) as u64,
        }
    }
}

/// What a pass does with a panel, the columns beside it, and the sum of its lane; it is told the
/// first row.
type Work =
    dyn Fn(usize, MatRef<'_, f64>, &mut Mat<f64>, MatMut<'_, f64>) -> Result<()> + Send + Sync;

impl Tall {
    pub(super) fn new(session: &Session, layout: Layout, stage: &Stage) -> Result<Tall> {
        let Layout {
            rows,
            capacity,
            step,
            ..
        } = layout;
        let place = if layout.in_memory {
            let held = stage.reserve("a basis of vectors", layout.bytes())?;
            let panels = ranges(rows, step)
                .map(|range| Mutex::new(Mat::zeros(range.len(), capacity)))
                .collect();
            Place::Memory(Arc::new(panels), held)
        } else {
            // Columns begin with sectors, as panels do.
            let padded = rows.next_multiple_of(SECTOR_ROWS) as u64;
            let array = || {
                Array::temporary(
                    session,
                    DType::F64,
                    &[padded, capacity as u64],
                    Order::Column,
                )
            };
            Place::Scratch(Box::new([array()?, array()?]))
        };
        Ok(Tall {
            session: session.clone(),
            rows,
            used: 0,
            capacity,
            step,
            place,
        })
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

    fn ranges(&self) -> impl Iterator<Item = Range<usize>> + use<> {
        ranges(self.rows, self.step)
    }

    /// A few columns in panels as this has them.
    pub(super) fn split(&self, columns: MatRef<'_, f64>) -> Panels {
        let panel =
            |range: Range<usize>| Mutex::new(columns.subrows(range.start, range.len()).to_owned());
        Arc::new(self.ranges().map(panel).collect())
    }

    pub(super) fn join(&self, panels: &Panels) -> Mat<f64> {
        let width = panels.first().map_or(0, |panel| panel.locked().ncols());
        let mut columns = Mat::zeros(self.rows, width);
        for (range, panel) in self.ranges().zip(panels.iter()) {
            let mut into = columns.as_mut().subrows_mut(range.start, range.len());
            into.copy_from(&*panel.locked());
        }
        columns
    }

    /// Goes through all panels beside those of `beside`, and returns the sum of what `work` adds up,
    /// of this shape.
    pub(super) fn pass(
        &self,
        name: &'static str,
        beside: &Panels,
        sum: [usize; 2],
        stage: &mut Stage,
        work: impl Fn(usize, MatRef<'_, f64>, &mut Mat<f64>, MatMut<'_, f64>) -> Result<()>
        + Send
        + Sync
        + 'static,
    ) -> Result<Mat<f64>> {
        self.pass_of(name, self.used, beside, sum, stage, work)
    }

    fn pass_of(
        &self,
        name: &'static str,
        used: usize,
        beside: &Panels,
        sum: [usize; 2],
        stage: &mut Stage,
        work: impl Fn(usize, MatRef<'_, f64>, &mut Mat<f64>, MatMut<'_, f64>) -> Result<()>
        + Send
        + Sync
        + 'static,
    ) -> Result<Mat<f64>> {
        let width = beside.first().map_or(0, |panel| panel.locked().ncols());
        let flops = 4 * used.max(width) * width.max(1);
        let lanes: Arc<Vec<_>> = Arc::new(
            (0..LANES.min(self.ranges().count().max(1)))
                .map(|_| Mutex::new(Mat::<f64>::zeros(sum[0], sum[1])))
                .collect(),
        );
        let work: Arc<Work> = Arc::new(work);
        if let (Place::Memory(panels, _), true) =
            (&self.place, self.rows * flops < LANES * TASK_FLOPS)
        {
            for (at, range) in self.ranges().enumerate() {
                let panel = panels[at].locked();
                let mut lane = lanes[at % lanes.len()].locked();
                work(
                    range.start,
                    panel.as_ref().subcols(0, used),
                    &mut beside[at].locked(),
                    lane.as_mut(),
                )?;
            }
            return Ok(merged(&lanes));
        }
        let mut plan = Plan::new(name);
        let orders: Vec<_> = lanes.iter().map(|_| plan.serial()).collect();
        let held = product_bytes(self.step, used, width, self.session.blas());
        for (at, range) in self.ranges().enumerate() {
            let (beside, lanes, work) = (Arc::clone(beside), Arc::clone(&lanes), Arc::clone(&work));
            let (lane, first) = (at % lanes.len(), range.start);
            let task = Task::new(name)
                .flops((range.len() * flops) as u64)
                .held(held);
            // What a task reads is its first block.
            let ordered = |task: Task| match sum {
                [0, _] => task,
                _ => task.update(orders[lane]),
            };
            let run = move |panel: MatRef<'_, f64>| {
                let (mut beside, mut lane) = (beside[at].locked(), lanes[lane].locked());
                work(first, panel, &mut beside, lane.as_mut())
            };
            match &self.place {
                Place::Memory(panels, _) => {
                    let panels = Arc::clone(panels);
                    plan.task(
                        ordered(task)
                            .run(move |_| Ok(run(panels[at].locked().as_ref().subcols(0, used))?)),
                    );
                }
                Place::Scratch(arrays) if used > 0 => {
                    let tile = tile(&mut plan, &arrays[0], range, 0..used);
                    let task = ordered(task.read(tile.region));
                    plan.task(task.run(move |cx| Ok(run(tile.of(&cx.blocks[0])?)?)));
                }
                Place::Scratch(_) => {
                    let none = Mat::zeros(range.len(), 0);
                    plan.task(ordered(task).run(move |_| Ok(run(none.as_ref())?)));
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
        work: impl Fn(usize, MatRef<'_, f64>, &mut Mat<f64>, MatMut<'_, f64>) -> Result<()>
        + Send
        + Sync
        + 'static,
    ) -> Result<()> {
        self.pass_of(name, 0, beside, [0, 0], stage, work).map(drop)
    }

    /// Appends columns.
    pub(super) fn append(&mut self, columns: &Panels, stage: &mut Stage) -> Result<()> {
        let width = columns.first().map_or(0, |panel| panel.locked().ncols());
        assert!(self.used + width <= self.capacity, "there is room");
        let (into, from) = (self.used..self.used + width, columns);
        if let Place::Memory(panels, _) = &self.place {
            for (panel, from) in panels.iter().zip(from.iter()) {
                let mut panel = panel.locked();
                let mut into = panel.as_mut().subcols_mut(into.start, width);
                into.copy_from(&*from.locked());
            }
        } else if width > 0 {
            self.write_panels("append columns", into, from, stage)?;
        }
        self.used += width;
        Ok(())
    }

    fn write_panels(
        &self,
        name: &'static str,
        columns: Range<usize>,
        from: &Panels,
        stage: &mut Stage,
    ) -> Result<()> {
        let Place::Scratch(arrays) = &self.place else {
            unreachable!("what is in memory is changed where it is")
        };
        let mut plan = Plan::new(name);
        for (at, range) in self.ranges().enumerate() {
            let tile = tile(&mut plan, &arrays[0], range, columns.clone());
            let from = Arc::clone(from);
            plan.task(Task::new(name).write(tile.region).run(move |cx| {
                tile.of_mut::<f64>(&mut cx.blocks[0])?
                    .copy_from(&*from[at].locked());
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
        let width = columns.len();
        let panels = match &self.place {
            Place::Memory(panels, _) => {
                let part = |panel: &Mutex<Mat<f64>>| {
                    let panel = panel.locked();
                    Mutex::new(panel.as_ref().subcols(columns.start, width).to_owned())
                };
                Arc::new(panels.iter().map(part).collect())
            }
            Place::Scratch(arrays) => {
                let found: Panels =
                    Arc::new(self.ranges().map(|_| Mutex::new(Mat::new())).collect());
                let mut plan = Plan::new("read columns");
                for (at, range) in self.ranges().enumerate().filter(|_| width > 0) {
                    let tile = tile(&mut plan, &arrays[0], range, columns.clone());
                    let found = Arc::clone(&found);
                    plan.task(Task::new("read columns").read(tile.region).run(move |cx| {
                        *found[at].locked() = tile.of::<f64>(&cx.blocks[0])?.to_owned();
                        Ok(())
                    }));
                }
                let fraction = stage.fraction();
                stage.run(plan, fraction)?;
                found
            }
        };
        Ok(self.join(&panels))
    }

    /// The first columns become V Y, those of `kept` come after them, and there are no others.
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
        let mut plan = Plan::new("rotate the basis");
        let held =
            product_bytes(self.step, depth, width, self.session.blas()) + 8 * self.step * used;
        for (at, range) in self.ranges().enumerate() {
            let (y, kept, blas) = (Arc::clone(&y), kept.clone(), self.session.blas().clone());
            let task = Task::new("rotate")
                .flops((2 * range.len() * depth * width) as u64)
                .held(held);
            let rotated = move |panel: MatRef<'_, f64>, mut into: MatMut<'_, f64>| -> Result<()> {
                let (from, new) = (panel.subcols(0, depth), into.as_mut().subcols_mut(0, width));
                kernels::gemm(new, 1.0, from, (*y).as_ref(), 0.0, &blas)?;
                into.subcols_mut(width, kept.len())
                    .copy_from(panel.subcols(kept.start, kept.len()));
                Ok(())
            };
            match &self.place {
                Place::Memory(panels, _) => {
                    let panels = Arc::clone(panels);
                    plan.task(task.run(move |_| {
                        let mut panel = panels[at].locked();
                        let mut new = Mat::zeros(panel.nrows(), used);
                        rotated(panel.as_ref(), new.as_mut())?;
                        panel.as_mut().subcols_mut(0, used).copy_from(&new);
                        Ok(())
                    }));
                }
                Place::Scratch(arrays) => {
                    let from = tile(&mut plan, &arrays[0], range.clone(), 0..self.used);
                    let into = tile(&mut plan, &arrays[1], range, 0..used);
                    let task = task.read(from.region).write(into.region);
                    plan.task(task.run(move |cx| {
                        let (read, written) = cx.blocks.split_at_mut(1);
                        Ok(rotated(from.of(&read[0])?, into.of_mut(&mut written[0])?)?)
                    }));
                }
            }
        }
        let fraction = stage.fraction();
        stage.run(plan, fraction)?;
        if let Place::Scratch(arrays) = &mut self.place {
            arrays.swap(0, 1);
        }
        self.used = used;
        Ok(())
    }

    /// What a column is multiplied by to have the entry of largest magnitude positive; the first of
    /// several such decides.
    pub(super) fn signs(&self, stage: &mut Stage) -> Result<Vec<f64>> {
        let none: Panels = Arc::new(self.ranges().map(|_| Mutex::new(Mat::new())).collect());
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

    /// All columns, each multiplied by its factor: in memory, one after another, or in scratch.
    pub(super) fn finish(
        self,
        factors: Vec<f64>,
        dtype: DType,
        stage: &mut Stage,
    ) -> Result<Vectors> {
        let (rows, columns) = (self.rows, self.used);
        assert_eq!(factors.len(), columns);
        if let Place::Memory(panels, held) = self.place {
            let mut values = vec![0.0; rows * columns];
            let ranges = ranges(rows, self.step);
            for (range, panel) in ranges.zip(panels.iter()) {
                let panel = panel.locked();
                for (column, factor) in factors.iter().enumerate() {
                    let into = &mut values[column * rows..][range.clone()];
                    let from = panel.col(column).iter();
                    into.iter_mut().zip(from).for_each(|(y, x)| *y = factor * x);
                }
            }
            drop(held);
            return Ok(Vectors::Memory {
                values,
                rows,
                columns,
            });
        }
        let Place::Scratch(arrays) = &self.place else {
            unreachable!("it is in one of the two")
        };
        let shape = [rows as u64, columns as u64];
        let made = Array::temporary(&self.session, dtype, &shape, Order::Column)?;
        let factors = Arc::new(factors);
        let mut plan = Plan::new("vectors");
        for range in self.ranges() {
            let from = tile(&mut plan, &arrays[0], range.clone(), 0..columns);
            let into = tile(&mut plan, &made, range, 0..columns);
            let factors = Arc::clone(&factors);
            let task = Task::new("vectors").read(from.region).write(into.region);
            plan.task(task.run(move |cx| {
                let (read, written) = cx.blocks.split_at_mut(1);
                let from = from.of::<f64>(&read[0])?;
                match dtype {
                    DType::F32 => put(from, into.of_mut::<f32>(&mut written[0])?, &factors),
                    _ => put(from, into.of_mut::<f64>(&mut written[0])?, &factors),
                }
                Ok(())
            }));
        }
        let fraction = stage.fraction();
        stage.run(plan, fraction)?;
        Ok(Vectors::Scratch(made))
    }
}

fn put<T: kernels::Real>(from: MatRef<'_, f64>, mut into: MatMut<'_, T>, factors: &[f64]) {
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

fn ranges(rows: usize, step: usize) -> impl Iterator<Item = Range<usize>> {
    (0..rows)
        .step_by(step)
        .map(move |first| first..rows.min(first + step))
}

/// What a product of a panel with a few columns packs, on either side.
fn product_bytes(step: usize, used: usize, width: usize, blas: &Blas) -> usize {
    let shapes = [
        (used, width, step),
        (step, width, used),
        (width, width, step),
    ];
    shapes
        .map(|(m, n, k)| kernels::gemm_scratch_bytes::<f64>(m, n, k, blas))
        .into_iter()
        .fold(0, usize::max)
}

fn tile(plan: &mut Plan, array: &Array, rows: Range<usize>, columns: Range<usize>) -> Tile {
    let wide = |range: Range<usize>| range.start as u64..range.end as u64;
    let extent = plan.extent(array.extent());
    array.layout().tile(extent, wide(rows), wide(columns))
}

fn merged(lanes: &[Mutex<Mat<f64>>]) -> Mat<f64> {
    let mut lanes = lanes
        .iter()
        .map(|lane| std::mem::replace(&mut *lane.locked(), Mat::new()));
    let mut sum = lanes.next().expect("there is one lane at least");
    lanes.for_each(|lane| sum += lane);
    sum
}
