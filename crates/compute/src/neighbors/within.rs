//! All rows within a radius of each query, which may be any number of them.
//!
//! A group of queries meets all rows, with room for as many pairs as groups before it have found.
//! Pairs for which there is no room are counted: queries from the first such block on begin again,
//! each with room for what it was counted to find. A query that finds more than memory has room for
//! meets some panels of rows at a time.

use std::collections::VecDeque;
use std::ops::Range;

use outcore_core::{Job, Result, Session, Stage};
use outcore_engine::{Outcome, Plan, Region};
use outcore_kernels::{Metric, Neighbor, Pair};
use outcore_matrix::Sparse;

use super::grown::Grown;
use super::{GraphOutput, PAIR_BYTES, RadiusOptions, Side, Sought, Wanted, groups, meet};

/// Entries that are written at a time.
const STEP: usize = 4096;
/// Of a query, in the beginning: at least, and at most.
const PAIRS: [u64; 2] = [16, 4096];

pub(super) fn graph<S: Side>(
    session: &Session,
    side: S,
    options: RadiusOptions,
    output: GraphOutput,
) -> Result<Job<Sparse>> {
    let held_bytes = Grown::held_bytes(session);
    let RadiusOptions { radius, metric } = options;
    let mut search = Search {
        panels: side.panels(PAIR_BYTES),
        // The rest is for the order of pairs by query.
        room: side.staying(held_bytes).left() / 4 * 3,
        known: VecDeque::new(),
        pairs_each: 0,
        next: 0,
        session: session.clone(),
        side,
        radius,
        metric,
    };
    let m = search.side.queries().end;
    search.pairs_each = (search.room / PAIR_BYTES / 2)
        .checked_div(m)
        .unwrap_or(0)
        .clamp(PAIRS[0], PAIRS[1])
        .min(search.side.rows().max(1));
    let first = search.group()?;
    let (mut plan, first) = match first {
        Some(first) => (first.plan, Some(first.blocks)),
        None => (Plan::new("rows within a radius"), None),
    };
    plan.hold(held_bytes);
    Job::driven(session, vec![plan], move |stage, _| {
        drop(first);
        let name = format!(
            "rows within {radius:?}, {metric:?}, {}",
            output.has_distances
        );
        let mut grown = Grown::make(&search.session, &output, search.side.rows(), &name)?;
        search.next = grown.rows();
        match search.run(stage, &mut grown) {
            Ok(()) => grown.finish(stage),
            Err(error) => {
                grown.discard();
                Err(error)
            }
        }
    })
}

struct Search<S: Side> {
    session: Session,
    side: S,
    radius: f64,
    metric: Metric,
    panels: Vec<S::RowRange>,
    /// Bytes of queries and pairs.
    room: u64,
    /// What the next queries were counted to find.
    known: VecDeque<u64>,
    /// What a query finds, as far as is known.
    pairs_each: u64,
    /// The first query that is not written.
    next: u64,
}

/// Queries that meet all rows together.
struct Group {
    plan: Plan,
    blocks: Vec<(Range<u64>, Sought, Region)>,
}

impl<S: Side> Search<S> {
    fn run(&mut self, stage: &mut Stage, grown: &mut Grown) -> Result<()> {
        let m = self.side.queries().end;
        while self.next < m {
            let before = self.next;
            if self
                .known
                .front()
                .is_some_and(|&pairs| pairs * PAIR_BYTES > self.room)
            {
                self.long_row(stage, grown)?;
            } else if let Some(group) = self.group()? {
                let reached = (self.next as f64 / m as f64).max(stage.fraction());
                let outcome = stage.run(group.plan, reached)?;
                self.put(stage, grown, &outcome, group.blocks)?;
            }
            if self.next > before {
                grown.keep()?;
            }
            stage.reach(self.next as f64 / m as f64);
        }
        Ok(())
    }

    /// The next queries, as many as have room.
    fn group(&self) -> Result<Option<Group>> {
        let m = self.side.queries().end;
        if self.next == m {
            return Ok(None);
        }
        let end = match self.known.is_empty() {
            true => {
                let each = 8 + self.pairs_each * PAIR_BYTES;
                m.min(self.next + (self.room / each).max(1))
            }
            false => {
                let mut filled = 0;
                let fits = |pairs: &&u64| {
                    filled += **pairs * PAIR_BYTES;
                    filled <= self.room
                };
                self.next + self.known.iter().take_while(fits).count() as u64
            }
        };
        let side = self.side.of_queries(self.next..end)?;
        let pairs = |queries: &Range<u64>| match self.known.is_empty() {
            true => (queries.end - queries.start) * self.pairs_each,
            false => {
                let known =
                    (queries.start - self.next) as usize..(queries.end - self.next) as usize;
                self.known.range(known).sum()
            }
        };
        let beside = match self.known.is_empty() {
            true => 8 + self.pairs_each * PAIR_BYTES,
            false => 8,
        };
        let blocks = side.blocks(beside).into_iter().map(|(block, bytes)| {
            let queries = side.numbers(&block);
            let wanted = self.wanted(pairs(&queries));
            let sought = Sought::new(self.metric, wanted, queries);
            ((block, sought), bytes + sought.bytes())
        });
        // Places of pairs are numbers of 32 bits.
        let most = self.room.min(PAIR_BYTES << 32);
        let Some(blocks) = groups(blocks, most).into_iter().next() else {
            return Ok(None);
        };
        self.plan(&side, blocks, &self.panels).map(Some)
    }

    fn wanted(&self, pairs: u64) -> Wanted {
        Wanted::Within {
            radius: self.radius,
            pairs,
        }
    }

    fn plan(
        &self,
        side: &S,
        blocks: Vec<(S::RowRange, Sought)>,
        panels: &[S::RowRange],
    ) -> Result<Group> {
        let mut plan = Plan::new("rows within a radius");
        let ranges: Vec<_> = blocks
            .iter()
            .map(|(block, _)| side.numbers(block))
            .collect();
        let ends = ranges.first().zip(ranges.last());
        let queries = ends.map_or(0..0, |(first, last)| first.start..last.end);
        plan.bound(side.stored_bytes(queries));
        let states = meet(side, &mut plan, &blocks, panels)?;
        let blocks = ranges.into_iter().zip(blocks).zip(states);
        Ok(Group {
            blocks: blocks
                .map(|((range, (_, sought)), state)| (range, sought, state))
                .collect(),
            plan,
        })
    }

    /// Writes what blocks have found, up to the first that has found more than it had room for.
    fn put(
        &mut self,
        stage: &Stage,
        grown: &mut Grown,
        outcome: &Outcome,
        blocks: Vec<(Range<u64>, Sought, Region)>,
    ) -> Result<()> {
        let bytes: u64 = blocks.iter().map(|(_, sought, _)| sought.bytes()).sum();
        let _found = stage.reserve("rows within a radius", bytes)?;
        let mut is_overflown = false;
        let (mut queries, mut found) = (0, 0);
        let was_known = !self.known.is_empty();
        for (range, sought, state) in blocks {
            let pairs = Pairs::of(outcome, &sought, &state);
            (queries, found) = (queries + pairs.counts.len() as u64, found + pairs.found);
            is_overflown |= pairs.is_overflown();
            if is_overflown {
                self.known.extend(pairs.counts);
                continue;
            }
            pairs.write(stage, grown)?;
            self.next = range.end;
            if was_known {
                self.known.drain(..pairs.counts.len());
            }
        }
        if !was_known {
            // Half as many again, since queries differ.
            let each = (found * 3 / 2).div_ceil(queries.max(1));
            let most = (self.room / PAIR_BYTES).max(PAIRS[0]);
            self.pairs_each = each.clamp(PAIRS[0], most);
        }
        Ok(())
    }

    /// One query, some panels at a time: a panel has room, whatever the query finds in it.
    fn long_row(&mut self, stage: &mut Stage, grown: &mut Grown) -> Result<()> {
        let side = self.side.of_queries(self.next..self.next + 1)?;
        let parts = self.panels.iter().map(|panel| {
            let rows = S::rows_of(panel);
            let bytes = (rows.end - rows.start) * PAIR_BYTES;
            ((panel.clone(), rows), bytes)
        });
        for panels in groups(parts, self.room) {
            let pairs = panels.iter().map(|(_, rows)| rows.end - rows.start).sum();
            let panels: Vec<S::RowRange> = panels.into_iter().map(|(panel, _)| panel).collect();
            let sought = Sought::new(self.metric, self.wanted(pairs), 0..1);
            let blocks = side.blocks(8).into_iter();
            let blocks = blocks.map(|(block, _)| (block, sought)).collect();
            let group = self.plan(&side, blocks, &panels)?;
            let fraction = stage.fraction();
            let outcome = stage.run(group.plan, fraction)?;
            let _found = stage.reserve("rows within a radius", sought.bytes())?;
            for (_, sought, state) in &group.blocks {
                Pairs::of(&outcome, sought, state).write_part(grown)?;
            }
        }
        grown.end_row()?;
        self.known.pop_front();
        self.next += 1;
        Ok(())
    }
}

/// What a block has found, in the order of the rows.
struct Pairs<'a> {
    /// Of each query.
    counts: &'a [u64],
    found: u64,
    /// Those for which there was room.
    pairs: &'a [Pair],
    metric: Metric,
}

impl<'a> Pairs<'a> {
    fn of(outcome: &'a Outcome, sought: &Sought, state: &Region) -> Pairs<'a> {
        let Some(bytes) = outcome.result(state) else {
            unreachable!("every block has met some rows")
        };
        let (counts, pairs) = bytes.split_at(8 * (1 + sought.queries));
        let counts: &[u64] = bytemuck::cast_slice(counts);
        Pairs {
            counts: &counts[1..],
            found: counts[0],
            pairs: bytemuck::cast_slice(pairs),
            metric: sought.metric,
        }
    }

    fn is_overflown(&self) -> bool {
        self.found > self.pairs.len() as u64
    }

    /// Writes the rows of all queries, which are whole.
    fn write(&self, stage: &Stage, grown: &mut Grown) -> Result<()> {
        let found = self.found as usize;
        let bytes = 4 * found + 8 * self.counts.len();
        let _order = stage.reserve("the order of pairs", bytes as u64)?;
        let order = self.by_query();
        let mut rest = &order[..];
        for &count in self.counts {
            stage.check()?;
            let (row, others) = rest.split_at(count as usize);
            rest = others;
            for some in row.chunks(STEP) {
                self.extend(grown, some.iter().map(|&at| &self.pairs[at as usize]))?;
            }
            grown.end_row()?;
        }
        Ok(())
    }

    /// The numbers of pairs by query, those of each in the order of the rows.
    fn by_query(&self) -> Vec<u32> {
        let mut next = Vec::with_capacity(self.counts.len());
        let mut end = 0;
        for &count in self.counts {
            next.push(end);
            end += count as usize;
        }
        let mut order = vec![0; end];
        for (at, pair) in self.pairs[..end].iter().enumerate() {
            let place = &mut next[pair.query as usize];
            order[*place] = at as u32;
            *place += 1;
        }
        order
    }

    /// Writes a part of the row of one query.
    fn write_part(&self, grown: &mut Grown) -> Result<()> {
        let pairs = &self.pairs[..self.found as usize];
        pairs
            .chunks(STEP)
            .try_for_each(|some| self.extend(grown, some.iter()))
    }

    fn extend<'b>(&self, grown: &mut Grown, pairs: impl Iterator<Item = &'b Pair>) -> Result<()> {
        let shown = |pair: &Pair| {
            let Neighbor { row, distance } = pair.neighbor;
            (row, self.metric.shown(distance))
        };
        grown.extend(&pairs.map(shown).collect::<Vec<_>>())
    }
}
