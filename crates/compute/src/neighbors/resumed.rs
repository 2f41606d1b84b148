//! A search that can be gone on with: what groups of queries have found is kept in a folder, beside
//! how far the search is, until the results are whole.

use std::path::Path;

use outcore_core::panels::cut;
use outcore_core::staging::StagingFolder;
use outcore_core::{Error, Job, MemorySplit, Result, Session, Stage};
use outcore_engine::{Plan, Task};
use outcore_kernels::copy_into;
use outcore_matrix::sparse::{NewArrays, NewSparse};
use outcore_matrix::{Array, Layout, Sparse, Target};

use super::nearest::{Into, add_group, graph_rows, groups_of, put_graph};
use super::{Checkpoint, NeighborOptions, Side, Targets};

const FILES: [&str; 2] = ["distances.bin", "rows.bin"];
/// Bytes of results that are copied at a time.
pub(super) const COPIED_BYTES: u64 = 1 << 20;

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
    let within = session.clone();
    let work = move |stage: &mut Stage, plans: Vec<Plan>| {
        let m = side.queries().end;
        let mut found = Kept::begin(&within, m, options, &checkpoint)?;
        search(stage, &side, options, &mut found)?;
        for mut plan in plans {
            found.copy(&mut plan, &targets);
            stage.run(plan, 1.0)?;
        }
        Ok(())
    };
    distances.job_beside(rows, &session, vec![plan], work)
}

/// Makes a sparse matrix; `plan` is what comes before.
pub(super) fn graph<S: Side>(
    session: &Session,
    side: &S,
    plan: Plan,
    options: NeighborOptions,
    new: NewSparse,
    checkpoint: Checkpoint,
) -> Result<Job<Sparse>> {
    let (within, side) = (session.clone(), side.clone());
    Job::driven(session, vec![plan], move |stage, plans| {
        let m = side.queries().end;
        let mut found = Kept::begin(&within, m, options, &checkpoint)?;
        search(stage, &side, options, &mut found)?;
        for mut plan in plans {
            found.copy_to_graph(&mut plan, new.arrays());
            stage.run(plan, 1.0)?;
        }
        new.finish(&|| stage.is_cancelled())
    })
}

impl Checkpoint {
    /// That of a rank: its number is added to the name.
    ///
    /// ```
    /// use outcore_compute::neighbors::Checkpoint;
    ///
    /// let all = Checkpoint { path: "so_far".into(), search: "rows of today".into() };
    /// assert_eq!(all.of_rank(2)?.path.to_str(), Some("so_far.rank-2"));
    /// # Ok::<(), outcore_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Value`] for a path without a name.
    pub fn of_rank(&self, rank: usize) -> Result<Checkpoint> {
        let name = self.path.file_name().ok_or_else(|| {
            Error::value(format!(
                "the checkpoint {} has no name",
                self.path.display()
            ))
        })?;
        let mut name = name.to_owned();
        name.push(format!(".rank-{rank}"));
        Ok(Checkpoint {
            path: self.path.with_file_name(name),
            search: self.search.clone(),
        })
    }

    /// Removes what is kept, when it is of no more use.
    ///
    /// ```
    #[doc = include_str!("../setup.doctest")]
    /// use outcore_compute::neighbors::{Checkpoint, NeighborOptions, NeighborOutputs, nearest_rows};
    /// use outcore_kernels::Metric;
    ///
    /// // x = [[1, 2], [3, 4], [5, 6]]
    /// let kept = Checkpoint { path: folder.path().join("so_far"), search: "x".into() };
    /// let outputs = NeighborOutputs { checkpoint: Some(kept.clone()), ..Default::default() };
    /// let options = NeighborOptions { k: 1, metric: Metric::Euclidean };
    /// let [_, rows] = nearest_rows(&session, (&x).into(), None, options, outputs)?.run()?;
    /// assert_eq!(rows.to_vec::<i64>()?, [1, 0, 1]);
    /// kept.remove(&session)?;
    /// # Ok::<(), outcore_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// What keeps the folder from being opened.
    pub fn remove(&self, session: &Session) -> Result<()> {
        StagingFolder::claim(session, &self.path, &FILES)?
            .folder
            .discard();
        Ok(())
    }
}

/// Group after group, from the first query that is not done.
fn search<S: Side>(
    stage: &mut Stage,
    side: &S,
    options: NeighborOptions,
    found: &mut Kept,
) -> Result<()> {
    let m = side.queries().end;
    let side = side.of_queries(found.done..m)?;
    let (panels, into) = (side.panels(0), Into::Arrays(found.files.clone()));
    for group in groups_of(&side, options.k) {
        let end = group.last().map_or(m, |last| side.numbers(last).end);
        let mut plan = Plan::new(super::nearest::NAME);
        add_group(&side, &mut plan, group, &panels, options, &into)?;
        stage.run(plan, end as f64 / (m + 1) as f64)?;
        found.keep(end)?;
    }
    Ok(())
}

/// What the search is, in words; how many queries are done, and how many entries they have where that differs.
pub(super) type State = (String, [u64; 2]);

/// What is said of a checkpoint that is not of this search.
pub(super) fn other_search(path: &Path, home: &StagingFolder) -> Error {
    Error::value(format!(
        "the checkpoint {} is of another search; remove the folder {}, or give another path",
        path.display(),
        home.folder.path().display()
    ))
}

/// What queries have found so far, in a folder.
pub(super) struct Kept {
    session: Session,
    home: StagingFolder,
    /// What the search is, in words.
    name: String,
    /// Neighbours of each query.
    k: u64,
    /// Queries whose results are durable: those before this one.
    done: u64,
    /// All queries.
    queries: u64,
    files: Targets,
}

impl Kept {
    /// What there is of this search, or nothing so far.
    pub(super) fn begin(
        session: &Session,
        queries: u64,
        options: NeighborOptions,
        checkpoint: &Checkpoint,
    ) -> Result<Kept> {
        let path: &Path = &checkpoint.path;
        let mut home = StagingFolder::claim(session, path, &FILES)?;
        let (m, k) = (queries, options.k);
        let name = format!(
            "{} neighbors of {m}, {:?}: {}",
            k, options.metric, checkpoint.search
        );
        let done = match home.saved::<State>()? {
            None => {
                home.folder.empty()?;
                home.check_room(path, 16 * m * k)?;
                0
            }
            Some((saved, done)) if saved == name && done[0] <= m => {
                home.folder.empty_but(&FILES)?;
                done[0]
            }
            Some(_) => return Err(other_search(path, &home)),
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
        Ok(Kept {
            session: session.clone(),
            home,
            name,
            k,
            done,
            queries,
            files,
        })
    }

    /// Queries that are done.
    pub(super) fn done(&self) -> u64 {
        self.done
    }

    /// Where what queries find is kept.
    pub(super) fn files(&self) -> &Targets {
        &self.files
    }

    /// Makes the results of the queries before `done` durable, and says so.
    pub(super) fn keep(&mut self, done: u64) -> Result<()> {
        self.home.folder.sync()?;
        self.home.save(&(&self.name, [done, 0]))?;
        self.done = done;
        Ok(())
    }

    /// Adds tasks that copy what was found to the rows of a graph.
    fn copy_to_graph(&self, plan: &mut Plan, new: &NewArrays) {
        let (k, index) = (self.k, new.shape().index);
        let rows = MemorySplit::new(&self.session).block_bytes(COPIED_BYTES) / (16 * k);
        for queries in cut(0..self.queries, rows) {
            let [distances, numbers] = [0, 1].map(|side: usize| {
                let (file, layout) = &self.files[side];
                let file = plan.extent(file);
                layout.tile(file, queries.clone(), 0..k)
            });
            let task = Task::new("copy")
                .read(distances.region)
                .read(numbers.region);
            let task = graph_rows(new, plan, queries.clone(), k, task);
            plan.task(task.run(move |cx| {
                let (from, written) = cx.blocks.split_at_mut(2);
                let (distances, numbers) =
                    (distances.of::<f64>(&from[0])?, numbers.of::<u64>(&from[1])?);
                let places = (0..distances.nrows())
                    .flat_map(|query| (0..k as usize).map(move |at| (query, at)));
                let found = places.map(|place| (numbers[place], distances[place]));
                put_graph(found, k, (queries.start, index), written);
                Ok(())
            }));
        }
    }

    /// Adds tasks that copy what was found.
    pub(super) fn copy(&self, plan: &mut Plan, targets: &Targets) {
        let k = self.k;
        let rows = MemorySplit::new(&self.session).block_bytes(COPIED_BYTES) / (8 * k);
        for ((from, layout), (to, written)) in self.files.iter().zip(targets) {
            let (from, to) = (plan.extent(from), plan.extent(to));
            for rows in cut(0..self.queries, rows) {
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
