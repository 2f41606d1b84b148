//! Nearest neighbours over ranks: each has its rows on its own SSD, and its queries.
//!
//! ```text
//!   SSD of a rank --> slot of the ring --> slot of the next rank --> ...
//!                          x
//!                  group of queries, with the k nearest of each so far
//! ```
//!
//! A slot is what rows are read ahead into, whether they come from SSD or from the left neighbour. A thread of its
//! own moves them while others compare what is there, so transfers go on that move only inside calls of a library.
//! Where the queries of a rank do not stay in its memory together, the rows go round once for each group of them.
//!
//! Rows have the numbers that they have in the matrix of all ranks' rows, one rank's after the other's.
//!
//! With a checkpoint, each rank keeps what a group has found before the next one begins. Ranks need not be equally far:
//! a rank that has more groups left goes on, and rows go round for it alone.
//!
//! Determinism: the bits of a search on one machine, for every number of ranks and every way to move rows.
//! Source: Lin et al., "Accelerating k-NN algorithm with hybrid MPI and OpenSHMEM", OpenSHMEM 2015.

mod block;

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use outcore_core::ranks::Team;
use outcore_core::ring::{HeapSlot, Ring, RingRanks, RingShape, Slot, wait_until};
use outcore_core::with_real;
use outcore_core::{Error, Job, MemorySplit, RealType, Result, Session, Stage};
use outcore_device::Locked;
use outcore_engine::{Plan, Task};
use outcore_kernels::{Comparison, Neighbor, NeighborTile, Real};
use outcore_matrix::{Array, Rows};

use self::block::{Blocks, HEADER_BYTES, Header, Prepared, prepared};
use super::nearest::{put_arrays, targets};
use super::resumed::Kept;
use super::{Checkpoint, NEIGHBOR_BYTES, NeighborOptions, NeighborOutputs, Targets, check};

/// How long the thread that moves blocks sleeps between two looks.
const LOOK: Duration = Duration::from_micros(200);

/// Where a rank's time went.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RingTimes {
    /// Rounds of all groups of queries.
    pub rounds: u64,
    /// Bytes that this rank sent to the next.
    pub bytes_sent: u64,
    /// Seconds of each round that nothing was computed, since its block was not there.
    pub waiting_s: Vec<f32>,
    /// Seconds of each round that were computed.
    pub computing_s: Vec<f32>,
    /// Seconds of each round that nothing was computed, since blocks were exchanged.
    pub exchanging_s: Vec<f32>,
    /// Seconds that a thread beside read own blocks.
    pub loading_s: f64,
}

/// The k nearest rows, of all ranks, to each of this rank's queries, or to each of its rows but itself; as
/// [`nearest_rows`](super::nearest_rows). Every rank calls it.
///
/// ```
#[doc = include_str!("../setup.doctest")]
/// use std::sync::Arc;
/// use outcore_compute::neighbors::{NeighborOptions, nearest_rows_over_ranks};
/// use outcore_core::ranks::Team;
/// use outcore_core::ring::ThreadTeam;
/// use outcore_kernels::Metric;
///
/// // x = [[1, 2], [3, 4], [5, 6]], and the other rank has the same rows.
/// let options = NeighborOptions { k: 2, metric: Metric::Euclidean };
/// let threads: Vec<_> = ThreadTeam::all(2).into_iter().map(|ranks| {
///     let (session, x) = (session.part(1 << 22).unwrap(), x.clone());
///     std::thread::spawn(move || {
///         let ranks = Arc::new(ranks);
///         let team = Team::new(ranks.clone());
///         let job = nearest_rows_over_ranks(&session, &team, ranks, (&x).into(), None, options, Default::default())?;
///         job.run()?.0[1].to_vec::<i64>()
///     })
/// }).collect();
/// let rows: Vec<_> = threads.into_iter().map(|thread| thread.join().unwrap().unwrap()).collect();
/// assert_eq!(rows[0], [3, 1, 4, 0, 5, 1]);
/// assert_eq!(rows[1], [0, 1, 1, 0, 2, 1]);
/// # Ok::<(), outcore_core::Error>(())
/// ```
///
/// # Errors
/// Those of one machine, and [`Error::Value`] where some ranks give a checkpoint and others do not; where one rank has
/// an error, all have it, with the number of the rank.
pub fn nearest_rows_over_ranks(
    session: &Session,
    team: &Team,
    ranks: Arc<dyn RingRanks>,
    rows: Rows,
    queries: Option<Rows>,
    options: NeighborOptions,
    outputs: NeighborOutputs,
) -> Result<Job<([Array; 2], RingTimes)>> {
    let team = team.clone();
    let real = check(&rows, queries.as_ref())
        .and_then(|_| outputs.check_distinct(&rows, queries.as_ref()))
        .and_then(|()| rows.real());
    let job = real.and_then(|real| {
        with_real!(real, T => {
            let search = RingSearch::<T>::new(session, ranks, team.clone(), rows, queries, options)?;
            search.job(outputs)
        })
    });
    job.or_else(|error| {
        Job::driven(session, Vec::new(), move |_, _| {
            team.drive(|| Err::<([Array; 2], RingTimes), _>(error))
        })
    })
}

/// What a rank has.
struct RingSearch<T> {
    session: Session,
    ranks: Arc<dyn RingRanks>,
    team: Team,
    rows: Blocks<T>,
    queries: Blocks<T>,
    of_themselves: bool,
    options: NeighborOptions,
}

/// What all ranks have agreed on.
struct Agreed {
    slot_bytes: usize,
    /// Blocks of the rank that has most.
    blocks: u64,
    /// This rank's queries, in groups that stay together while rows go round.
    groups: Vec<Vec<block::BlockRows>>,
    /// Groups of the rank that has most.
    most_groups: u64,
    /// The number of this rank's first row.
    first: u64,
}

/// Queries that stay while rows go round.
struct Group {
    blocks: Vec<QueryBlock>,
}

/// Some of them, which one thread compares at a time.
struct QueryBlock {
    memory: Arc<HeapSlot>,
    nearest: Mutex<Vec<Neighbor>>,
}

impl<T: Real> RingSearch<T> {
    fn new(
        session: &Session,
        ranks: Arc<dyn RingRanks>,
        team: Team,
        rows: Rows,
        queries: Option<Rows>,
        options: NeighborOptions,
    ) -> Result<RingSearch<T>> {
        let of_themselves = queries.is_none();
        let share = MemorySplit::new(session).ring_piece_bytes();
        let rows = Blocks::new(rows, share)?;
        let queries = match queries {
            Some(queries) => Blocks::new(queries, share)?,
            None => rows.clone(),
        };
        if rows.is_sparse() != queries.is_sparse() {
            return Err(Error::value(
                "rows and queries must be both dense, or both sparse",
            ));
        }
        Ok(RingSearch {
            session: session.clone(),
            ranks,
            team,
            rows,
            queries,
            of_themselves,
            options,
        })
    }

    fn job(self, outputs: NeighborOutputs) -> Result<Job<([Array; 2], RingTimes)>> {
        let (m, k) = (self.queries.count(), self.options.k);
        let mut first = Plan::new("nearest rows over ranks");
        let session = self.session.clone();
        let checkpoint = outputs.checkpoint.clone();
        let [distances, numbers] = targets(&session, [m, k], outputs, &mut first)?;
        let targets =
            [&distances, &numbers].map(|target| (target.extent.clone(), target.array.layout()));
        let work = move |stage: &mut Stage, mut plans: Vec<Plan>| {
            let team = self.team.clone();
            team.drive(|| {
                let began = plans.pop().map(|plan| stage.run(plan, 0.0)).transpose();
                let mut found = self.begin(began.map(|_| ()), checkpoint)?;
                let agreed = self.agree(found.as_ref().map_or(0, Kept::done))?;
                self.run(stage, agreed, &targets, found.as_mut())
            })
        };
        distances.driven_beside(numbers, &session, vec![first], work)
    }

    /// What an earlier run found. Either all ranks give a checkpoint or none does; each has a folder of its own,
    /// for the rows and queries of all.
    fn begin(&self, began: Result<()>, checkpoint: Option<Checkpoint>) -> Result<Option<Kept>> {
        let search = checkpoint.as_ref().map(|checkpoint| &checkpoint.search);
        let all = self
            .team
            .all_gather(began.map(|()| format!("{search:?}").into_bytes()))?;
        let all: Vec<_> = all.iter().map(|one| String::from_utf8_lossy(one)).collect();
        let (rank, ranks) = (self.team.rank(), all.len());
        let keeps = |search: &str| search != "None";
        if let Some(other) = all.iter().position(|one| keeps(one) != keeps(&all[0])) {
            let [one, other] = match keeps(&all[0]) {
                true => [0, other],
                false => [other, 0],
            };
            return Err(Error::value(format!(
                "rank {one} keeps a checkpoint, rank {other} does not"
            )));
        }
        let begun = checkpoint.map(|checkpoint| {
            let own = Checkpoint {
                search: format!("rank {rank} of {ranks}: {}", all.join("; ")),
                ..checkpoint.of_rank(rank)?
            };
            Kept::begin(&self.session, self.queries.count(), self.options, &own)
        });
        self.team.agree(begun.transpose())
    }

    /// Agrees with the others on what all must know. `done`: how many of this rank's queries are finished.
    fn agree(&self, done: u64) -> Result<Agreed> {
        let split = MemorySplit::new(&self.session);
        let slots = self.ranks.slots() as u64;
        let most = split.ring_bytes().min(self.ranks.memory_bytes()) / slots;
        let facts = [
            self.rows.count(),
            self.rows.width(),
            u64::from(T::DTYPE == RealType::F64),
            u64::from(self.rows.is_sparse()),
            self.options.k,
            self.options.metric as u64,
            slots,
            of_name(self.ranks.design()),
            u64::from(self.of_themselves),
            most / 64 * 64,
            self.rows.longest_bytes() as u64,
        ];
        let all = self.gather(facts)?;
        let agreed = self.agree_on(&all);
        let slot_bytes = agreed? as usize;
        let most = self.group_bytes(slot_bytes);
        let blocks = self.rows.blocks(slot_bytes).len() as u64;
        let groups = self.groups(done, most);
        let counts = self.gather([blocks, groups.len() as u64])?;
        Ok(Agreed {
            slot_bytes,
            blocks: counts
                .iter()
                .map(|count| count[0])
                .max()
                .unwrap_or(0)
                .max(1),
            groups,
            most_groups: counts.iter().map(|count| count[1]).max().unwrap_or(0),
            first: all[..self.team.rank()].iter().map(|facts| facts[0]).sum(),
        })
    }

    fn gather<const N: usize>(&self, facts: [u64; N]) -> Result<Vec<[u64; N]>> {
        let bytes = bytemuck::cast_slice(&facts).to_vec();
        let all = self.team.all_gather(Ok(bytes))?;
        let of = |bytes: Vec<u8>| {
            let mut facts = [0; N];
            let count = bytes.len().min(8 * N);
            bytemuck::cast_slice_mut(&mut facts)[..count].copy_from_slice(&bytes[..count]);
            facts
        };
        Ok(all.into_iter().map(of).collect())
    }

    /// The bytes of a slot, where all ranks look for the same in rows of one kind. Each rank comes to the same.
    fn agree_on(&self, all: &[[u64; 11]]) -> Result<u64> {
        const WHAT: [&str; 7] = [
            "columns",
            "element types",
            "kinds of rows (dense, sparse)",
            "numbers of neighbours",
            "metrics",
            "slots",
            "designs",
        ];
        // A rank without rows has no say in what rows are like.
        let with_rows = |facts: &&[u64; 11]| facts[0] > 0;
        let first = all.iter().find(with_rows).unwrap_or(&all[0]);
        for (rank, facts) in all.iter().enumerate() {
            let differs = |at: &usize| facts[*at] != first[*at];
            if let Some(at) = (1..8).find(differs) {
                return Err(Error::value(format!(
                    "ranks have different {}: rank {rank} {}, others {}",
                    WHAT[at - 1],
                    told(at, facts[at]),
                    told(at, first[at])
                )));
            }
        }
        let count: u64 = all.iter().map(|facts| facts[0]).sum();
        let others = count.saturating_sub(u64::from(self.of_themselves));
        if self.options.k == 0 || self.options.k > others {
            return Err(Error::value(format!(
                "{} neighbours of each query are looked for among {others} rows of {} ranks",
                self.options.k,
                all.len()
            )));
        }
        let longest = all.iter().map(|facts| facts[10]).max().unwrap_or(0) + HEADER_BYTES as u64;
        let slot_bytes = all.iter().map(|facts| facts[9]).min().unwrap_or(0);
        match longest <= slot_bytes {
            true => Ok(slot_bytes.min(i32::MAX as u64 / 64 * 64)),
            false => Err(Error::OverBudget {
                what: "a block of one row in each slot of the ring".into(),
                needed: MemorySplit::needed_for_ring(longest * self.ranks.slots() as u64),
                available: slot_bytes * self.ranks.slots() as u64,
                budget: self.session.memory_bytes(),
            }),
        }
    }

    /// Bytes of queries that stay while blocks go round: what slots and comparing leave, if that is less
    /// than their share.
    fn group_bytes(&self, slot_bytes: usize) -> u64 {
        let split = MemorySplit::new(&self.session);
        let all = self.queries.blocks(usize::MAX);
        let threads = self.session.threads() as u64;
        let bytes = [
            split.ring_compared_bytes(threads),
            split.rounded_bytes(threads),
        ];
        let blas = self.session.blas();
        let compared = threads * self.queries.most_compared_bytes(&all, bytes, blas);
        let slots = (self.ranks.slots() * slot_bytes) as u64;
        let passing = slots + compared + split.ring_reading_bytes();
        split
            .ring_group_bytes()
            .min(split.free().saturating_sub(passing))
    }

    /// How blocks of queries are compared with blocks of rows, and the bytes that all threads take for it.
    fn compared(&self, parts: &[block::BlockRows]) -> (NeighborTile, u64) {
        let split = MemorySplit::new(&self.session);
        let threads = self.session.threads() as u64;
        let compared_bytes = split.ring_compared_bytes(threads);
        let tile = (self.queries).tile(parts, compared_bytes, split.rounded_bytes(threads));
        let each = (self.queries).compared_bytes(parts, tile, self.session.blas());
        (tile, threads * each)
    }

    /// Queries of blocks, and blocks of groups, that stay in `most` bytes, the queries from `from` on.
    fn groups(&self, from: u64, most: u64) -> Vec<Vec<block::BlockRows>> {
        let per_query = 2 * (NEIGHBOR_BYTES * self.options.k) as usize;
        let share = (most / 4 / self.session.threads() as u64) as usize;
        let (mut groups, mut filled) = (Vec::<Vec<block::BlockRows>>::new(), 0);
        for part in self.queries.blocks_beside(from, share, per_query) {
            let bytes = self.queries.held_bytes(&part) as u64 + part.rows() * per_query as u64;
            match groups.last_mut() {
                Some(group) if filled + bytes <= most => group.push(part),
                _ => {
                    groups.push(vec![part]);
                    filled = 0;
                }
            }
            filled += bytes;
        }
        groups
    }

    fn run(
        &self,
        stage: &mut Stage,
        agreed: Agreed,
        targets: &Targets,
        mut kept: Option<&mut Kept>,
    ) -> Result<RingTimes> {
        let mut times = RingTimes::default();
        let mut parts = agreed.groups.iter();
        for number in 0..agreed.most_groups {
            let parts = parts.next().map_or(&[][..], |group| group);
            let (tile, compared) = self.compared(parts);
            let slots = self.ranks.slots() as u64 * agreed.slot_bytes as u64;
            let held = self.queries_bytes(parts) + slots + compared;
            // No rank goes into a round that another one does not come to.
            let held = self.team.agree(stage.reserve("blocks of a ring", held))?;
            let group = self.load_queries(stage, parts, agreed.first);
            // A rank that could not read its queries goes on, so that others end.
            let (group, failed) = match group {
                Ok(group) => (group, None),
                Err(error) => (Group { blocks: Vec::new() }, Some(error)),
            };
            let shape = RingShape {
                ranks: self.team.size(),
                rounds: agreed.blocks * self.team.size() as u64,
                slots: self.ranks.slots(),
                slot_bytes: agreed.slot_bytes,
            };
            let ring = self.team.agree(self.ranks.ring(shape))?;
            let passed = Pass {
                search: self,
                ring: &*ring,
                group: &group,
                tile,
                first: agreed.first,
                failed: AtomicBool::new(failed.is_some()),
                error: Mutex::new(failed),
                done: AtomicBool::new(false),
                broken: AtomicBool::new(false),
            };
            let went = passed.go_round(stage, &mut times);
            self.team.agree(went)?;
            let into = kept.as_ref().map_or(targets, |kept| kept.files());
            let mut written = self.write(stage, &group, into);
            if let (Some(kept), Some(last)) = (&mut kept, parts.last()) {
                written = written.and_then(|()| kept.keep(last.end()));
            }
            self.team.agree(written)?;
            drop(held);
            stage.reach((number + 1) as f64 / agreed.most_groups as f64);
        }
        if let Some(kept) = kept {
            let mut plan = Plan::new("put nearest rows");
            kept.copy(&mut plan, targets);
            self.team.agree(stage.beside().run(plan, 1.0))?;
        }
        Ok(times)
    }

    fn queries_bytes(&self, parts: &[block::BlockRows]) -> u64 {
        let k = self.options.k;
        let bytes = |part: &block::BlockRows| {
            self.queries.held_bytes(part) as u64 + 2 * part.rows() * NEIGHBOR_BYTES * k
        };
        parts.iter().map(bytes).sum()
    }

    fn load_queries(
        &self,
        stage: &mut Stage,
        parts: &[block::BlockRows],
        first: u64,
    ) -> Result<Group> {
        let first = if self.of_themselves { first } else { 0 };
        let mut blocks = Vec::new();
        for part in parts {
            let memory = Arc::new(HeapSlot::new(self.queries.bytes(part)));
            let slot: Arc<dyn Slot> = Arc::clone(&memory) as Arc<dyn Slot>;
            stage
                .beside()
                .run(self.queries.load(part, slot, first), stage.fraction())?;
            let k = self.options.k as usize;
            blocks.push(QueryBlock {
                memory,
                nearest: Mutex::new(vec![Neighbor::NONE; part.rows() as usize * k]),
            });
        }
        Ok(Group { blocks })
    }

    /// Writes what was found to the results.
    fn write(&self, stage: &mut Stage, group: &Group, targets: &Targets) -> Result<()> {
        let (k, metric) = (self.options.k, self.options.metric);
        for block in &group.blocks {
            let mut plan = Plan::new("put nearest rows");
            let header = block.memory.with(Header::of)?;
            let start = header.first - header.origin;
            let tiles = [0, 1].map(|side: usize| {
                let (extent, layout) = &targets[side];
                let extent = plan.extent(extent);
                layout.tile(extent, start..start + header.rows, 0..k)
            });
            let nearest = std::mem::take(&mut *block.nearest.locked());
            let task = tiles
                .iter()
                .fold(Task::new("put"), |task, tile| task.write(tile.region));
            plan.task(
                task.run(move |cx| put_arrays(&nearest, (metric, k as usize), &tiles, cx.blocks)),
            );
            stage.beside().run(plan, stage.fraction())?;
        }
        Ok(())
    }
}

/// All rows go round once.
struct Pass<'a, T> {
    search: &'a RingSearch<T>,
    ring: &'a dyn Ring,
    group: &'a Group,
    tile: NeighborTile,
    first: u64,
    /// This rank or another one has: nothing is read or computed any more.
    failed: AtomicBool,
    error: Mutex<Option<Error>>,
    done: AtomicBool,
    /// Blocks go round no more: a rank cannot be reached.
    broken: AtomicBool,
}

impl<T: Real> Pass<'_, T> {
    fn go_round(&self, stage: &Stage, times: &mut RingTimes) -> Result<()> {
        let prepared: Vec<Prepared<T>> = self
            .group
            .blocks
            .iter()
            .map(|block| block.memory.with(prepared))
            .collect::<Result<_>>()
            .unwrap_or_else(|error| {
                self.fail(error);
                Vec::new()
            });
        let moved = std::thread::scope(|scope| {
            let mover = scope.spawn(|| self.noticed(self.move_blocks(&stage.beside())));
            let went = self.noticed(self.compare_all(stage, &prepared, times));
            self.done.store(true, Ordering::Release);
            let loading = mover
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            match (went, loading) {
                // It waited for what the other could not do.
                (Err(Error::Cancelled), Err(error)) => Err(error),
                (went, loading) => went.and(loading),
            }
        });
        times.loading_s += moved?;
        self.ring.close()?;
        times.rounds += self.ring.shape().rounds;
        times.bytes_sent += self.ring.bytes_sent();
        let error = self.error.locked().take();
        error.map_or(Ok(()), Err)
    }

    /// After an error of the ring, neither thread waits for its blocks any more.
    fn noticed<R>(&self, result: Result<R>) -> Result<R> {
        result.inspect_err(|_| self.broken.store(true, Ordering::Release))
    }

    /// What is asked of the ring while it is whole.
    fn while_whole(&self, answer: Result<bool>) -> Result<bool> {
        match self.broken.load(Ordering::Acquire) {
            true => Err(Error::Cancelled),
            false => answer,
        }
    }

    fn fail(&self, error: Error) {
        self.failed.store(true, Ordering::Release);
        let mut kept = self.error.locked();
        kept.get_or_insert(error);
    }

    /// Reads own blocks into slots that are free, and has the ring move on what is there.
    fn move_blocks(&self, stage: &Stage) -> Result<f64> {
        let shape = self.ring.shape();
        let mut parts = self.search.rows.blocks(shape.slot_bytes).into_iter();
        let mut loading_s = 0.0;
        let pause = |is_so: &dyn Fn() -> Result<bool>| -> Result<()> {
            while !self.while_whole(is_so())? {
                std::thread::sleep(LOOK);
            }
            Ok(())
        };
        for round in (0..shape.rounds).filter(|round| shape.is_own(*round)) {
            pause(&|| self.ring.is_free(round))?;
            let began = Instant::now();
            let slot = self.ring.slot(round);
            let part = parts
                .next()
                .filter(|_| !self.failed.load(Ordering::Acquire));
            if let Some(part) = part {
                let plan = self.search.rows.load(&part, Arc::clone(&slot), self.first);
                let run = stage
                    .check()
                    .and_then(|()| stage.beside().run(plan, stage.fraction()).map(|_| ()));
                if let Err(error) = run {
                    self.fail(error);
                    block::clear(&*slot, true);
                }
            } else {
                block::clear(&*slot, self.failed.load(Ordering::Acquire));
            }
            loading_s += began.elapsed().as_secs_f64();
            self.ring.filled(round)?;
        }
        pause(&|| Ok(self.ring.is_done()? || self.done.load(Ordering::Acquire)))?;
        Ok(loading_s)
    }

    /// Compares each block that comes with all queries.
    fn compare_all(
        &self,
        stage: &Stage,
        prepared: &[Prepared<T>],
        times: &mut RingTimes,
    ) -> Result<()> {
        for round in 0..self.ring.shape().rounds {
            let began = Instant::now();
            wait_until(|| self.while_whole(self.ring.is_here(round)))?;
            let came = Instant::now();
            self.ring.slot(round).read(&mut |slot| {
                let compared = stage
                    .check()
                    .and_then(|()| self.compare(stage, prepared, slot));
                if let Err(error) = compared {
                    self.fail(error);
                }
            });
            let compared = Instant::now();
            self.ring.finish(round)?;
            times.waiting_s.push((came - began).as_secs_f32());
            times.computing_s.push((compared - came).as_secs_f32());
            times.exchanging_s.push(compared.elapsed().as_secs_f32());
        }
        wait_until(|| self.while_whole(self.ring.is_done()))
    }

    fn compare(&self, stage: &Stage, prepared: &[Prepared<T>], slot: &[u8]) -> Result<()> {
        let header = Header::of(slot)?;
        if header.failed {
            self.failed.store(true, Ordering::Release);
        }
        if header.rows == 0 || self.failed.load(Ordering::Acquire) {
            return Ok(());
        }
        let next = AtomicUsize::new(0);
        let work = || -> Result<()> {
            let mut scratch = Vec::new();
            loop {
                let at = next.fetch_add(1, Ordering::Relaxed);
                let Some(block) = self.group.blocks.get(at) else {
                    return Ok(());
                };
                let mut nearest = block.nearest.locked();
                block.memory.with(|queries| {
                    block::compare(
                        queries,
                        &prepared[at],
                        slot,
                        &mut nearest,
                        Comparison {
                            metric: self.search.options.metric,
                            leaves_out_itself: self.search.of_themselves,
                            tile: self.tile,
                            blas: self.search.session.blas(),
                            stop: &|| stage.is_cancelled(),
                        },
                        &mut scratch,
                    )
                })?;
            }
        };
        let threads = self.search.session.threads().min(self.group.blocks.len());
        std::thread::scope(|scope| {
            let others: Vec<_> = (1..threads).map(|_| scope.spawn(work)).collect();
            let own = work();
            let joined = others.into_iter().map(|thread| {
                thread
                    .join()
                    .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            });
            joined.fold(own, |all, one| all.and(one))
        })
    }
}

/// A short name as a number.
fn of_name(name: &str) -> u64 {
    let mut bytes = [0; 8];
    let len = name.len().min(8);
    bytes[..len].copy_from_slice(&name.as_bytes()[..len]);
    u64::from_le_bytes(bytes)
}

/// What ranks say of each other, by its number among the facts, in words.
fn told(at: usize, fact: u64) -> String {
    let words: &[&str] = match at {
        2 => &["float32", "float64"],
        3 => &["dense", "sparse"],
        5 => &["euclidean", "cosine", "inner_product"],
        7 => {
            let name = fact.to_le_bytes();
            return String::from_utf8_lossy(&name)
                .trim_end_matches('\0')
                .to_owned();
        }
        _ => &[],
    };
    let word = words.get(fact as usize);
    word.map_or_else(|| fact.to_string(), |word| (*word).to_owned())
}
