//! A search that can be gone on with: what groups of queries have found is kept in a folder, beside
//! how far the search is, until the results are whole.

use std::path::Path;
use std::sync::{Arc, Mutex};

use outcore_core::panels::cut;
use outcore_core::staging::StagingFolder;
use outcore_core::{Error, Job, MemorySplit, Result, Session, Stage};
use outcore_device::Locked;
use outcore_engine::{Extent, Plan, Task};
use outcore_kernels::copy_into;
use outcore_matrix::{Array, Layout, Target};

use super::nearest::{Into, add_group, groups_of};
use super::{Checkpoint, NeighborOptions, Side};

const FILES: [&str; 2] = ["distances.bin", "rows.bin"];
/// Bytes of results that are copied at a time.
const COPIED_BYTES: u64 = 1 << 20;

/// Fills two targets; `plan` is what comes before.
pub(super) fn arrays<S: Side>(
    session: &Session,
    side: &S,
    plan: Plan,
    options: NeighborOptions,
    [distances, rows]: [Target; 2],
    checkpoint: Checkpoint,
) -> Result<Job<[Array; 2]>> {
    let (session, side) = (session.clone(), side.clone());
    let targets = [&distances, &rows].map(|target| (target.extent.clone(), target.array.layout()));
    let kept: Arc<Mutex<Option<StagingFolder>>> = Arc::default();
    let keep = Arc::clone(&kept);
    let within = session.clone();
    let work = move |stage: &mut Stage, plans: Vec<Plan>| {
        let mut search = Search::begin(&within, side, options, &checkpoint)?;
        search.run(stage)?;
        for mut plan in plans {
            search.copy(&mut plan, &targets);
            stage.run(plan, 1.0)?;
        }
        *keep.locked() = Some(search.home);
        Ok(())
    };
    let job = distances.job_beside(rows, &session, vec![plan], work)?;
    Ok(job.map(move |arrays| {
        if let Some(home) = kept.locked().take() {
            home.folder.discard();
        }
        Ok(arrays)
    }))
}

struct Search<S> {
    session: Session,
    side: S,
    options: NeighborOptions,
    home: StagingFolder,
    /// What the search is, in words.
    name: String,
    /// Queries that are done.
    done: u64,
    files: [(Extent, Layout); 2],
}

impl<S: Side> Search<S> {
    fn begin(
        session: &Session,
        side: S,
        options: NeighborOptions,
        checkpoint: &Checkpoint,
    ) -> Result<Search<S>> {
        let path: &Path = &checkpoint.path;
        let mut home = StagingFolder::claim(session, path, &FILES)?;
        let (m, k) = (side.queries().end, options.k);
        let name = format!(
            "{} neighbors of {m}, {:?}: {}",
            k, options.metric, checkpoint.search
        );
        let done = match home.saved::<(String, u64)>()? {
            None => {
                home.folder.empty()?;
                home.check_room(path, 16 * m * k)?;
                0
            }
            Some((saved, done)) if saved == name && done <= m => {
                home.folder.empty_but(&FILES)?;
                done
            }
            Some(_) => {
                return Err(Error::value(format!(
                    "the checkpoint {} is of another search; remove the folder {}, or give another path",
                    path.display(),
                    home.folder.path().display()
                )));
            }
        };
        let layout = Layout {
            offset: 0,
            rows: m,
            cols: k,
            row_stride: k,
            col_stride: 1,
            element: 8,
        };
        let mut file = |name: &str| {
            let device = home.folder.create_growing(name)?;
            let file = session.device_file(path.join(name).display().to_string(), device);
            Ok::<_, Error>((file.extent().clone(), layout))
        };
        let files = [file(FILES[0])?, file(FILES[1])?];
        Ok(Search {
            session: session.clone(),
            side,
            options,
            home,
            name,
            done,
            files,
        })
    }

    /// Group after group, from the first query that is not done.
    fn run(&mut self, stage: &mut Stage) -> Result<()> {
        let m = self.side.queries().end;
        let side = self.side.of_queries(self.done..m)?;
        let (panels, into) = (side.panels(0), Into::Arrays(self.files.clone()));
        for group in groups_of(&side, self.options.k) {
            let end = group.last().map_or(m, |last| side.numbers(last).end);
            let mut plan = Plan::new(super::nearest::NAME);
            add_group(&side, &mut plan, group, &panels, self.options, &into)?;
            stage.run(plan, end as f64 / (m + 1) as f64)?;
            self.home.folder.sync()?;
            self.home.save(&(&self.name, end))?;
            self.done = end;
        }
        Ok(())
    }

    /// Adds tasks that copy what was found.
    fn copy(&self, plan: &mut Plan, targets: &[(Extent, Layout); 2]) {
        let (m, k) = (self.side.queries().end, self.options.k);
        let rows = MemorySplit::new(&self.session).block_bytes(COPIED_BYTES) / (8 * k);
        for ((from, layout), (to, written)) in self.files.iter().zip(targets) {
            let (from, to) = (plan.extent(from), plan.extent(to));
            for rows in cut(0..m, rows) {
                let read = layout.tile(from, rows.clone(), 0..k);
                let write = written.tile(to, rows, 0..k);
                let task = Task::new("copy").read(read.region).write(write.region);
                plan.task(task.run(move |cx| {
                    let (from, to) = cx.blocks.split_at_mut(1);
                    let into = write.of_mut::<u64>(&mut to[0])?;
                    Ok(copy_into(into, read.of::<u64>(&from[0])?)?)
                }));
            }
        }
    }
}
