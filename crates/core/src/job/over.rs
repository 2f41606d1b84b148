//! A job as one rank's part of what several do together.

use super::{Driver, Finish, Job, Stage, made};
use crate::error::Result;
use crate::ranks::Team;

impl<T: Send + 'static> Job<T> {
    /// This job on each rank, and what `merge` makes of their results there. The part may have
    /// failed; `merge` hands it to the team, so that all ranks know.
    ///
    /// ```
    #[doc = include_str!("../setup.doctest")]
    /// # use outcore_core::{Job, Team, ThreadRanks};
    /// # use outcore_engine::Plan;
    /// # use std::sync::Arc;
    /// let alone = Team::new(Arc::new(ThreadRanks::new(1).remove(0)));
    /// let count = Job::new(&session, vec![Plan::new("count")], |_| Ok(vec![3.0]))?;
    /// assert_eq!(count.over(&alone, 8, |part, team| team.sum(part)).run()?, [3.0]);
    /// # Ok::<(), outcore_core::Error>(())
    /// ```
    ///
    /// # Panics
    /// If the job writes files: they become whole on each rank alone.
    pub fn over<U: Send + 'static>(
        self,
        team: &Team,
        bytes: u64,
        merge: impl FnOnce(Result<T>, &Team) -> Result<U> + Send + 'static,
    ) -> Job<U> {
        assert!(
            self.writers.is_empty() && self.unfinished.is_empty(),
            "ranks merge what is in memory"
        );
        let (team, part) = (team.clone(), self.finish);
        let work: Driver<U> = Box::new(move |stage: &mut Stage, plans| {
            let part = || {
                let part = part.carry_out(stage, plans)?()?;
                Ok((part, stage.reserve("what ranks merge", bytes)?))
            };
            team.drive(|| match part() {
                Ok((part, _held)) => merge(Ok(part), &team),
                Err(error) => merge(Err(error), &team),
            })
            .map(made)
        });
        Job {
            session: self.session,
            plans: self.plans,
            is_inline: false,
            explanations: self.explanations,
            writers: self.writers,
            unfinished: self.unfinished,
            finish: Finish::Driven(work),
        }
    }
}
