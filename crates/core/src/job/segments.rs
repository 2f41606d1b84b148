//! Long plans in segments.
//!
//! What a plan takes itself grows with its tasks, and those of products grow faster than the data.
//! So a plan of very many tasks is never there as a whole: what makes it is asked twice, to be
//! looked at and to be carried out, and hands it over in segments, which run one after another. The
//! schedule of the first one is kept; those of others are made again when their turn comes, since
//! to keep them would take the memory that segments are there to save.

use outcore_engine::Plan;

use crate::error::Result;

/// Tasks of a segment, at least: they and what the engine knows of them take some megabytes.
const SEGMENT_TASKS: usize = 1 << 11;

/// What takes a segment.
pub(super) type Take<'a> = &'a mut dyn FnMut(Plan) -> Result<()>;

/// A plan that is being made.
///
/// ```
#[doc = include_str!("../setup.doctest")]
/// use outcore_core::Job;
/// use outcore_engine::{Plan, Task};
///
/// let job = Job::in_segments(&session, Plan::new("count"), |segments| {
///     for _ in 0..3 {
///         segments.group()?;
///         segments.plan().task(Task::new("one").flops(1));
///     }
///     segments.may_end()?;
///     // Here it is to end.
///     segments.split()?;
///     segments.plan().task(Task::new("last").flops(1));
///     Ok(())
/// }, ())?;
/// assert_eq!((job.explain()[0].tasks, job.explain()[0].flops), (4, 4));
/// # Ok::<(), outcore_core::Error>(())
/// ```
pub struct Segments<'a> {
    plan: Plan,
    take: Take<'a>,
    /// Tasks that it had before, which count for no segment: segments end at the same places
    /// without them.
    before: usize,
    /// What is added now goes on with what a segment before has changed.
    goes_on: bool,
}

impl<'a> Segments<'a> {
    pub(super) fn new(plan: Plan, take: Take<'a>) -> Segments<'a> {
        Segments {
            before: plan.len(),
            plan,
            take,
            goes_on: false,
        }
    }

    /// What tasks are added to now.
    pub fn plan(&mut self) -> &mut Plan {
        &mut self.plan
    }

    /// Tasks added from here on are ordered after those added before; here a segment may end.
    ///
    /// # Errors
    /// Those of the segment.
    pub fn group(&mut self) -> Result<()> {
        self.plan.group();
        self.may_end()?;
        self.goes_on = false;
        Ok(())
    }

    /// Here a segment may end: what was changed is written out then, and stays in memory for the
    /// next.
    ///
    /// # Errors
    /// Those of the segment.
    pub fn may_end(&mut self) -> Result<()> {
        if std::mem::take(&mut self.goes_on) {
            // What was changed comes in as a whole before anything else is computed: it is what
            // stays in memory.
            self.plan.group();
        }
        if self.plan.len() - self.before < SEGMENT_TASKS {
            return Ok(());
        }
        let next = self.plan.of_the_same_extents();
        let mut segment = std::mem::replace(&mut self.plan, next);
        segment.keeps();
        (self.before, self.goes_on) = (0, true);
        (self.take)(segment)
    }

    /// Here a segment ends, however short it is: what is only in memory ends with it, and references to extents too.
    ///
    /// # Errors
    /// Those of the segment.
    pub fn split(&mut self) -> Result<()> {
        let next = Plan::new(self.plan.name());
        (self.before, self.goes_on) = (0, false);
        (self.take)(std::mem::replace(&mut self.plan, next))
    }

    /// Hands over the last one.
    pub(super) fn end(self) -> Result<()> {
        (self.take)(self.plan)
    }
}

#[cfg(test)]
mod tests {
    use outcore_device::{Buf, read_now};
    use outcore_engine::{Region, Task};

    use super::*;
    use crate::job::Job;
    use crate::session::{Session, Settings};

    #[test]
    fn a_long_plan_runs_in_segments_and_is_one_to_look_at() {
        const GROUP: u64 = 100;
        let folder = tempfile::tempdir().expect("a folder can be made");
        let scratch = Some(folder.path().to_owned());
        let settings = Settings {
            memory_bytes: Some(1 << 20),
            scratch,
            allow_tmpfs_scratch: true,
            ..Settings::default()
        };
        let session = Session::new(settings).expect("a budget is all it takes");
        for groups in [1, 21, 22, 100] {
            let file = session
                .scratch_file(None, 8 * (GROUP * groups + 1))
                .expect("there is space");
            let mut plan = Plan::new("count");
            let extent = plan.extent(file.extent());
            plan.bound(5);
            let header = Region::span(extent, 8 * GROUP * groups, 8);
            plan.task(Task::new("header").write(header).run(|cx| {
                cx.blocks[0].slice_mut::<f64>()[0] = -1.0;
                Ok(())
            }));
            let make = move |segments: &mut Segments<'_>| {
                for group in 0..groups {
                    segments.group()?;
                    for number in group * GROUP..(group + 1) * GROUP {
                        let region = Region::span(extent, 8 * number, 8);
                        segments
                            .plan()
                            .task(Task::new("count").flops(1).write(region).run(move |cx| {
                                cx.blocks[0].slice_mut::<f64>()[0] = number as f64;
                                Ok(())
                            }));
                    }
                }
                Ok(())
            };
            let job = Job::in_segments(&session, plan, make, ()).expect("it fits");
            let explained = job.explain().to_vec();
            assert_eq!(
                (
                    explained.len(),
                    explained[0].tasks as u64,
                    explained[0].bound_bytes
                ),
                (1, GROUP * groups + 1, 5)
            );
            job.run().expect("nothing can fail");
            let trace = session.last_trace().expect("something was run");
            assert_eq!(
                (trace.flops, trace.runs),
                (GROUP * groups, groups.div_ceil(21))
            );
            assert_eq!(trace.predicted, explained[0].predicted);
            let mut found = Buf::anonymous(file.extent().len().next_multiple_of(4096) as usize)
                .expect("there is memory");
            read_now(&**file.extent().device(), &mut found, 0).expect("it is there");
            let found: &[f64] = bytemuck::cast_slice(&found);
            assert_eq!(found[(GROUP * groups) as usize], -1.0);
            assert!((0..GROUP * groups).all(|number| found[number as usize] == number as f64));
        }
    }
}
