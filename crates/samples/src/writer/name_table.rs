//! The table that finds samples by their names, made of all names at the end.

use std::io::{BufReader, Read};
use std::sync::Arc;

use outcore_core::bytes::Bytes;
use outcore_core::{MemorySplit, Result, Stage};
use outcore_engine::{Reservation, StreamOptions};

use super::DatasetWriter;
use super::state::{block_bytes, failed};
use crate::manifest::parts;
use crate::names::{Hash, Lookup, Unplaced, parts_of};

impl DatasetWriter {
    /// The table of names: those of some parts at a time, as many as memory is free for.
    pub(super) fn lookup(&self, stage: &Stage) -> Result<(Lookup, Reservation)> {
        let parts = parts_of(self.state.samples);
        let mut seed = 0;
        loop {
            let mut counts = vec![0; parts as usize];
            self.each_name(stage, |_, name| {
                counts[Hash::of(name, seed).part(parts) as usize] += 1
            })?;
            // It, and its file.
            let reserved = stage.reserve("the table of names", 2 * Lookup::bytes_for(&counts))?;
            let mut lookup = Lookup::empty(seed, &counts);
            match self.fill(stage, &mut lookup, seed, &counts)? {
                None => return Ok((lookup, reserved)),
                Some(Unplaced::Twins(one, other)) => {
                    let mut names = Vec::new();
                    self.each_name(stage, |sample, name| {
                        names.extend([one, other].contains(&sample).then(|| name.to_vec()))
                    })?;
                    if names[0] == names[1] {
                        let name = String::from_utf8_lossy(&names[0]).into_owned();
                        return Err(self.wrong(format!(
                            "samples {one} and {other} are both called {name:?}"
                        )));
                    }
                }
                Some(Unplaced::Crowd) => {}
            }
            seed += 1;
        }
    }

    /// What stands against this seed, if anything.
    fn fill(
        &self,
        stage: &Stage,
        lookup: &mut Lookup,
        seed: u64,
        counts: &[u64],
    ) -> Result<Option<Unplaced>> {
        const NAME: u64 = size_of::<(Hash, u64)>() as u64;
        let most = counts.iter().copied().max().unwrap_or(0);
        let at_once = (MemorySplit::new(&self.session).free_collected_bytes() / NAME).max(most);
        let _names = stage.reserve("names to sort", at_once.min(self.state.samples) * NAME)?;
        let mut first = 0;
        while first < counts.len() {
            let mut sum = 0;
            let end = counts[first..].iter().position(|count| {
                sum += count;
                sum > at_once
            });
            let end = end.map_or(counts.len(), |within| first + within);
            let mut parts: Vec<Vec<(Hash, u64)>> = counts[first..end]
                .iter()
                .map(|&count| Vec::with_capacity(count as usize))
                .collect();
            self.each_name(stage, |sample, name| {
                let hash = Hash::of(name, seed);
                let part = hash.part(counts.len() as u64) as usize;
                if (first..end).contains(&part) {
                    parts[part - first].push((hash, sample));
                }
            })?;
            for (part, names) in parts.iter_mut().enumerate() {
                if let Err(unplaced) = lookup.fill(first + part, names) {
                    return Ok(Some(unplaced));
                }
            }
            first = end;
        }
        Ok(None)
    }

    /// Reads all names again.
    fn each_name(&self, stage: &Stage, mut f: impl FnMut(u64, &[u8])) -> Result<()> {
        let names = &self.files[parts::NAMES];
        let options = StreamOptions {
            block_bytes: block_bytes(&self.session),
            ahead: 2,
        };
        let bytes = Bytes::of(
            &self.session,
            names.extent(),
            0..names.len(),
            options,
            &Arc::default(),
        )?;
        let mut read = BufReader::new(bytes);
        let failed = |source| failed(names.extent(), source);
        let mut name = Vec::new();
        for sample in 0..self.state.samples {
            if sample % (1 << 16) == 0 {
                stage.check()?;
            }
            let mut len = [0; 4];
            read.read_exact(&mut len).map_err(failed)?;
            name.resize(u32::from_le_bytes(len) as usize, 0);
            read.read_exact(&mut name).map_err(failed)?;
            f(sample, &name);
        }
        Ok(())
    }
}
