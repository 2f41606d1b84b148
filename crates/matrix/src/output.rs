//! Where the result of an operation goes.

use std::path::PathBuf;
use std::sync::Arc;

use outcore_core::file::{FILE_BLOCK_BYTES, Writer};
use outcore_core::panels::cut;
use outcore_core::{DType, Error, Job, Order, Result, Segments, Session, Stage, StoredFile};
use outcore_engine::{Extent, ExtentRef, Plan, Region, Task};

use crate::array::Array;
use crate::operand::Operand;

/// Assumed of a write of a part of a block that was never written: ext4 lets one at a time into the
/// file.
const FIRST_WRITE_S: f64 = 1e-4;
/// Assumed of the device: bytes a second.
const DEVICE_BYTES_PER_S: f64 = 1.2e9;
/// Bytes of a request that writes zeros.
const CLEARED_BYTES: u64 = 1 << 20;

/// Where a result goes.
///
/// ```
#[doc = include_str!("setup.doctest")]
/// let copy = |out| convert(&session, (&x).into(), out, DType::F32, Order::Row)?.run();
/// let scratch = copy(Output::Scratch)?;
/// let new = copy(Output::New(folder.path().join("y.npy")))?;
/// let again = copy(Output::InPlace(new.clone()))?;
/// assert_eq!((scratch.path(), again.path()), (None, new.path()));
/// assert!(Output::InPlace(new.clone()).check_distinct(&[&new.into()]).is_err());
/// # Ok::<(), outcore_core::Error>(())
/// ```
#[derive(Clone, Default)]
pub enum Output {
    /// The session's scratch folder; it goes with its last view.
    #[default]
    Scratch,
    /// A new `.npy` file, there when it is whole.
    New(PathBuf),
    /// A matrix that is there, changed in place.
    InPlace(Array),
}

/// An output that a plan writes to.
///
/// ```
#[doc = include_str!("setup.doctest")]
/// use outcore_engine::{Plan, Task};
///
/// let mut plan = Plan::new("ones");
/// let target = Output::Scratch.target(&session, DType::F32, &[100, 10], Order::Row, &mut plan)?;
/// let into = target.region(&mut plan, 0..100, 0..10)?;
/// let job = target.job_in_segments(&session, plan, move |segments| {
///     segments.plan().task(Task::new("fill").write(into.region).run(move |cx| {
///         into.of_mut::<f32>(&mut cx.blocks[0])?.fill(1.0);
///         Ok(())
///     }));
///     segments.may_end()
/// })?;
/// assert_eq!(job.run()?.to_vec::<f32>()?, [1.0; 1000]);
/// # Ok::<(), outcore_core::Error>(())
/// ```
pub struct Target {
    /// The result.
    pub array: Array,
    /// What plans write to.
    pub extent: Extent,
    writer: Option<Writer>,
    unfinished: Option<Arc<StoredFile>>,
}

impl Output {
    /// Refuses an output in place that an operand may still be read from.
    pub fn check_distinct(&self, operands: &[&Operand]) -> Result<()> {
        let Output::InPlace(out) = self else {
            return Ok(());
        };
        let shares = |operand: &&&Operand| matches!(operand, Operand::Stored(array) if out.shares_bytes(array));
        match operands.iter().find(shares) {
            Some(_) => Err(Error::value(format!(
                "{} is both an operand and the output; write to another matrix",
                out.name()
            ))),
            None => Ok(()),
        }
    }

    /// Makes room for a result, or checks what is there.
    pub fn target(
        self,
        session: &Session,
        dtype: DType,
        shape: &[u64],
        order: Order,
        plan: &mut Plan,
    ) -> Result<Target> {
        match self {
            Output::Scratch => {
                let array = Array::temporary(session, dtype, shape, order)?;
                Ok(Target {
                    extent: array.extent().clone(),
                    array,
                    writer: None,
                    unfinished: None,
                })
            }
            Output::New(path) => {
                let array = Array::unfinished(session, &path, dtype, shape, order, plan)?;
                Ok(Target {
                    extent: array.extent().clone(),
                    unfinished: Some(Arc::clone(&array.file)),
                    array,
                    writer: None,
                })
            }
            Output::InPlace(array) => {
                if array.dtype() != dtype {
                    return Err(Error::DType {
                        what: format!(
                            "the result is {dtype}, {} is {}; give an array of {dtype}, or a path",
                            array.name(),
                            array.dtype()
                        ),
                    });
                }
                if array.shape() != shape {
                    return Err(Error::shape(format!(
                        "the result is {shape:?}, {} is {:?}",
                        array.name(),
                        array.shape()
                    )));
                }
                let writer = Writer::plan(&array.file);
                Ok(Target {
                    extent: writer.extent(),
                    array,
                    writer: Some(writer),
                    unfinished: None,
                })
            }
        }
    }
}

impl Array {
    /// Writes zeros to all of a file that is new, where that is faster than to have `regions`, which
    /// the plan is to write, be the first that their blocks see. `panel_bytes` are written at once.
    ///
    /// ```
    #[doc = include_str!("setup.doctest")]
    /// use outcore_engine::Plan;
    ///
    /// let y = Array::temporary(&session, DType::F32, &[3, 2], Order::Column)?;
    /// let mut plan = Plan::new("columns");
    /// let into = plan.extent(y.extent());
    /// let column = |at| y.layout().tile(into, 0..3, at..at + 1).region;
    /// y.cleared_for(&mut plan, into, (0..2).map(column), 1 << 20);
    /// assert_eq!(plan.len(), 1);
    /// # Ok::<(), outcore_core::Error>(())
    /// ```
    pub fn cleared_for(
        &self,
        plan: &mut Plan,
        into: ExtentRef,
        regions: impl Iterator<Item = Region>,
        panel_bytes: u64,
    ) {
        let is_part = |region: &Region| {
            let edges = [region.offset, region.row_bytes, region.stride];
            edges
                .iter()
                .any(|edge| !edge.is_multiple_of(FILE_BLOCK_BYTES))
        };
        let parts: u64 = regions.filter(is_part).map(|region| region.rows).sum();
        let (start, bytes) = (self.layout().offset, self.nbytes());
        if parts as f64 * FIRST_WRITE_S > bytes as f64 / DEVICE_BYTES_PER_S {
            for panel in cut(start..start + bytes, panel_bytes.min(CLEARED_BYTES)) {
                let region = Region::span(into, panel.start, panel.end - panel.start);
                plan.task(Task::new("clear").write(region).run(|cx| {
                    cx.blocks[0].slice_mut::<u8>().fill(0);
                    Ok(())
                }));
            }
        }
    }
}

/// A new file is opened like any other, so that it is written in place like any other.
fn finished(session: &Session, array: Array, is_new: bool) -> Result<Array> {
    match array.path().filter(|_| is_new) {
        Some(path) => Array::open(session, path),
        None => Ok(array),
    }
}

/// A job that fills two targets.
fn filled(targets: [Target; 2], session: &Session, job: Job<[Array; 2]>) -> Job<[Array; 2]> {
    let are_new = [0, 1].map(|side: usize| targets[side].unfinished.is_some());
    let job = targets.into_iter().fold(job, |job, target| {
        job.writes(target.writer, target.unfinished)
    });
    let session = session.clone();
    job.map(move |[one, other]| {
        let [is_one_new, is_other_new] = are_new;
        Ok([
            finished(&session, one, is_one_new)?,
            finished(&session, other, is_other_new)?,
        ])
    })
}

impl Target {
    /// As [`Array::cleared_for`], where the file is new.
    pub(crate) fn cleared_for(
        &self,
        plan: &mut Plan,
        into: ExtentRef,
        regions: impl Iterator<Item = Region>,
        panel_bytes: u64,
    ) {
        if self.writer.is_none() {
            self.array.cleared_for(plan, into, regions, panel_bytes);
        }
    }

    /// The job that fills it; its result is the array.
    ///
    /// ```
    #[doc = include_str!("setup.doctest")]
    /// use outcore_engine::{Plan, Task};
    ///
    /// let mut plan = Plan::new("ones");
    /// let target = Output::Scratch.target(&session, DType::F32, &[2, 2], Order::Row, &mut plan)?;
    /// let into = target.region(&mut plan, 0..2, 0..2)?;
    /// plan.task(Task::new("fill").write(into.region).run(move |cx| {
    ///     into.of_mut::<f32>(&mut cx.blocks[0])?.fill(1.0);
    ///     Ok(())
    /// }));
    /// assert_eq!(target.job(&session, vec![plan])?.run()?.to_vec::<f32>()?, [1.0; 4]);
    /// # Ok::<(), outcore_core::Error>(())
    /// ```
    pub fn job(self, session: &Session, plans: Vec<Plan>) -> Result<Job<Array>> {
        let array = self.array.clone();
        let job = Job::new(session, plans, move |_| Ok(array))?;
        self.filled_by(session, job)
    }

    /// The same, in segments.
    pub fn job_in_segments(
        self,
        session: &Session,
        plan: Plan,
        make: impl Fn(&mut Segments<'_>) -> Result<()> + Send + 'static,
    ) -> Result<Job<Array>> {
        let job = Job::in_segments(session, plan, make, self.array.clone())?;
        self.filled_by(session, job)
    }

    /// The same of this one and another.
    ///
    /// ```
    #[doc = include_str!("setup.doctest")]
    /// use outcore_engine::{Plan, Task};
    ///
    /// let mut plan = Plan::new("ones");
    /// let mut target = || Output::Scratch.target(&session, DType::F32, &[2, 2], Order::Row, &mut plan);
    /// let (one, other) = (target()?, target()?);
    /// let (arrays, into) = ([&one, &other].map(|target| target.extent.clone()), one.array.layout());
    /// let job = one.both_in_segments(other, &session, plan, move |segments| {
    ///     for array in &arrays {
    ///         let extent = segments.plan().extent(array);
    ///         let tile = into.tile(extent, 0..2, 0..2);
    ///         segments.plan().task(Task::new("fill").write(tile.region).run(move |cx| {
    ///             tile.of_mut::<f32>(&mut cx.blocks[0])?.fill(1.0);
    ///             Ok(())
    ///         }));
    ///         segments.split()?;
    ///     }
    ///     Ok(())
    /// })?;
    /// let [one, other] = job.run()?;
    /// assert_eq!(one.to_vec::<f32>()?, other.to_vec::<f32>()?);
    /// # Ok::<(), outcore_core::Error>(())
    /// ```
    pub fn both_in_segments(
        self,
        other: Target,
        session: &Session,
        plan: Plan,
        make: impl Fn(&mut Segments<'_>) -> Result<()> + Send + 'static,
    ) -> Result<Job<[Array; 2]>> {
        let arrays = [self.array.clone(), other.array.clone()];
        let job = Job::in_segments(session, plan, make, arrays)?;
        Ok(filled([self, other], session, job))
    }

    /// The job that fills it and another one, driven by `work`, which is handed these plans.
    ///
    /// ```
    #[doc = include_str!("setup.doctest")]
    /// use outcore_core::Stage;
    /// use outcore_engine::{Plan, Task};
    ///
    /// let mut plan = Plan::new("ones");
    /// let mut target = || Output::Scratch.target(&session, DType::F32, &[2, 2], Order::Row, &mut plan);
    /// let (one, other) = (target()?, target()?);
    /// let into = [&one, &other].map(|target| target.region(&mut plan, 0..2, 0..2));
    /// for tile in into {
    ///     let tile = tile?;
    ///     plan.task(Task::new("fill").write(tile.region).run(move |cx| {
    ///         tile.of_mut::<f32>(&mut cx.blocks[0])?.fill(1.0);
    ///         Ok(())
    ///     }));
    /// }
    /// let run = |stage: &mut Stage, plans: Vec<Plan>| {
    ///     plans.into_iter().try_for_each(|plan| stage.run(plan, 1.0).map(drop))
    /// };
    /// let [one, other] = one.job_beside(other, &session, vec![plan], run)?.run()?;
    /// assert_eq!(one.to_vec::<f32>()?, other.to_vec::<f32>()?);
    /// # Ok::<(), outcore_core::Error>(())
    /// ```
    pub fn job_beside(
        self,
        other: Target,
        session: &Session,
        plans: Vec<Plan>,
        work: impl FnOnce(&mut Stage, Vec<Plan>) -> Result<()> + Send + 'static,
    ) -> Result<Job<[Array; 2]>> {
        let arrays = [self.array.clone(), other.array.clone()];
        let job = Job::driven(session, plans, move |stage, plans| {
            work(stage, plans).map(|()| arrays)
        })?;
        Ok(filled([self, other], session, job))
    }

    /// The same of a job that is driven, with what else it comes to.
    ///
    /// ```
    #[doc = include_str!("setup.doctest")]
    /// use outcore_engine::{Plan, Task};
    ///
    /// let mut plan = Plan::new("ones");
    /// let mut target = || Output::Scratch.target(&session, DType::F32, &[2, 2], Order::Row, &mut plan);
    /// let (one, other) = (target()?, target()?);
    /// for target in [&one, &other] {
    ///     let tile = target.region(&mut plan, 0..2, 0..2)?;
    ///     plan.task(Task::new("fill").write(tile.region).run(move |cx| {
    ///         tile.of_mut::<f32>(&mut cx.blocks[0])?.fill(1.0);
    ///         Ok(())
    ///     }));
    /// }
    /// let job = one.driven_beside(other, &session, vec![plan], |stage, mut plans| {
    ///     stage.run(plans.remove(0), 1.0)?;
    ///     Ok("filled")
    /// })?;
    /// let ([one, other], how) = job.run()?;
    /// assert_eq!((one.to_vec::<f32>()?, how), (other.to_vec::<f32>()?, "filled"));
    /// # Ok::<(), outcore_core::Error>(())
    /// ```
    pub fn driven_beside<T: Send + 'static>(
        self,
        other: Target,
        session: &Session,
        plans: Vec<Plan>,
        work: impl FnOnce(&mut Stage, Vec<Plan>) -> Result<T> + Send + 'static,
    ) -> Result<Job<([Array; 2], T)>> {
        let targets = [self, other];
        let arrays = [0, 1].map(|side: usize| targets[side].array.clone());
        let are_new = [0, 1].map(|side: usize| targets[side].unfinished.is_some());
        let job = Job::driven(session, plans, work)?;
        let job = targets.into_iter().fold(job, |job, target| {
            job.writes(target.writer, target.unfinished)
        });
        let session = session.clone();
        Ok(job.map(move |rest| {
            let [one, other] = arrays;
            let [is_one_new, is_other_new] = are_new;
            let arrays = [
                finished(&session, one, is_one_new)?,
                finished(&session, other, is_other_new)?,
            ];
            Ok((arrays, rest))
        }))
    }

    fn filled_by(self, session: &Session, job: Job<Array>) -> Result<Job<Array>> {
        let (is_new, session) = (self.unfinished.is_some(), session.clone());
        let job = job.writes(self.writer, self.unfinished);
        Ok(match is_new {
            true => job.map(move |array| finished(&session, array, true)),
            false => job,
        })
    }
}
