//! Loads of a run: residencies get frames in the order of the schedule, and their content.

use super::*;

/// Initial limit of the bytes that are admitted before a task uses them: enough to keep any device
/// busy. Using untouched memory costs more than reading into it, so a run begins with little and
/// raises the limit when it has waited for the device.
pub(super) const AHEAD_BYTES: u64 = 64 << 20;

impl Run {
    pub(super) fn admit(&mut self, core: &mut Core<'_>) {
        while self.admitted < self.residencies.len()
            && self.ahead < self.ahead_most
            && self.error.is_none()
        {
            let residency = self.admitted as u32;
            match &self.area_of(residency).backing {
                Backing::Resident(bytes) => {
                    let bytes = bytes.clone();
                    self.admitted += 1;
                    self.becomes_ready(residency, bytes);
                    continue;
                }
                Backing::Device(_) | Backing::Volatile => {}
            }
            if self.block_of(residency).given.is_some() {
                if !self.admit_given(residency) {
                    return;
                }
                continue;
            }
            if let Some(bytes) = self.reuse(core, residency) {
                self.admitted += 1;
                self.becomes_ready(residency, bytes);
                continue;
            }
            let bytes = self.block_of(residency).loaded.bytes;
            // The caller gets volatile blocks as results.
            let for_use = match self.area_of(residency).is_device() {
                true => FrameUse::Internal,
                false => FrameUse::Lent,
            };
            let Some(frame) = self.take(core, bytes, for_use) else {
                return;
            };
            self.admitted += 1;
            let state = &mut self.residencies[residency as usize];
            state.ahead = frame.len() as u64;
            self.ahead += state.ahead;
            state.state = State::Admitted(frame);
            self.to_load.push_back(residency);
        }
    }

    /// Whether to raise the limit: threads are idle, and at some time no request was in flight
    /// because the limit held further loads back.
    pub(super) fn looks_further(&mut self, core: &Core<'_>) -> bool {
        let is_held_up = self.admitted < self.residencies.len()
            && self.ahead >= self.ahead_most
            && self.error.is_none();
        self.has_paused |= is_held_up && self.requests == 0;
        let further = is_held_up
            && self.has_paused
            && self.running < self.schedule.concurrency.min(core.workers.count());
        if further {
            self.ahead_most = self.ahead_most.saturating_mul(2);
            self.has_paused = false;
        }
        further
    }

    /// A frame now, or none because it has to wait (or because the system refused, which ends the
    /// run).
    fn take(&mut self, core: &mut Core<'_>, bytes: usize, for_use: FrameUse) -> Option<Buf> {
        let frame = core
            .memory
            .take(&mut self.account, bytes, for_use)
            .unwrap_or_else(|source| {
                self.error.get_or_insert(Error::NoMemory {
                    bytes: bytes as u64,
                    source,
                });
                None
            });
        self.peak = self.peak.max(self.account.held);
        frame
    }

    /// The bytes of an idle block, in place of a load.
    fn reuse(&mut self, core: &mut Core<'_>, residency: u32) -> Option<Shared> {
        let scheduled = &self.schedule.residencies[residency as usize];
        if !scheduled.load || !scheduled.after.is_empty() {
            return None;
        }
        let key = self.idle_key(residency)?;
        let bytes = core.memory.reuse(&mut self.account, &key)?;
        self.peak = self.peak.max(self.account.held);
        let block = self.block_of(residency);
        self.reused += block.region.load_bytes(self.area_of(residency).sector());
        Some(bytes)
    }

    /// The key of an idle block: in place of an extent of this plan, its region has the form of the
    /// block.
    pub(super) fn idle_key(&self, residency: u32) -> Option<IdleKey> {
        let Backing::Device(extent) = &self.area_of(residency).backing else {
            return None;
        };
        let region = self.block_of(residency).region;
        Some((
            extent.id(),
            Region {
                extent: ExtentRef(self.area_of(residency).form()),
                ..region
            },
        ))
    }

    pub(super) fn load_what_may(&mut self, core: &mut Core<'_>) {
        for _ in 0..self.to_load.len() {
            let residency = self.to_load.pop_front().expect("counted");
            if self.error.is_some() || !self.try_load(core, residency) {
                self.to_load.push_back(residency);
            }
        }
    }

    fn try_load(&mut self, core: &mut Core<'_>, residency: u32) -> bool {
        let gone = |other: &u32| matches!(self.residencies[*other as usize].state, State::Gone);
        if !self.schedule.residencies[residency as usize]
            .after
            .iter()
            .all(gone)
        {
            return false;
        }
        let region = self.block_of(residency).region;
        let load = self.schedule.residencies[residency as usize].load;
        let older_stores = !self.schedule.residencies[residency as usize]
            .after
            .is_empty();
        if (load || older_stores) && !self.sectors_clear(core, Some(&region)) {
            return false;
        }
        let State::Admitted(mut frame) =
            std::mem::replace(&mut self.residencies[residency as usize].state, State::Lent)
        else {
            unreachable!("only admitted residencies wait to load")
        };
        match &self.area_of(residency).backing {
            Backing::Device(extent) if load => {
                let device = Arc::clone(extent.device());
                self.start_load(core, residency, &device, frame);
            }
            Backing::Volatile => {
                frame.fill(0);
                self.becomes_ready(residency, frame.freeze());
            }
            _ => self.becomes_ready(residency, frame.freeze()),
        }
        true
    }

    fn start_load(
        &mut self,
        core: &mut Core<'_>,
        residency: u32,
        device: &Arc<dyn Device>,
        frame: Buf,
    ) {
        if let Some(place) = self.block_of(residency).given.clone() {
            return self.start_given_load(core, residency, device, frame, &place);
        }
        let block = self.block_of(residency);
        let (whole, mut rest) = frame.lend();
        let (mut at, mut requests) = (0, 0);
        let mut bytes = 0;
        for (offset, place) in block
            .region
            .loads(&block.loaded, u64::from(device.limits().sector))
        {
            drop(rest.split_to(place.start - at));
            at = place.end;
            bytes += place.len() as u64;
            for (offset, length) in pieces(offset..offset + place.len() as u64) {
                core.submit(
                    residency,
                    device,
                    offset,
                    Op::Read(rest.split_to(length as usize)),
                );
                requests += 1;
            }
        }
        drop(rest);
        let extent = block.region.extent;
        self.moved[extent.0 as usize].0 += bytes;
        self.begin_requests(requests);
        if requests == 0 {
            return self.becomes_ready(
                residency,
                whole
                    .reclaim()
                    .unwrap_or_else(|_| unreachable!("no piece is out"))
                    .freeze(),
            );
        }
        self.residencies[residency as usize].state = State::Loading {
            whole,
            requests,
            since: Instant::now(),
        };
    }

    /// Has a compute thread decode what was loaded.
    pub(super) fn start_decoding(
        &mut self,
        core: &mut Core<'_>,
        residency: u32,
        decoder: Decoder,
        mut frame: Buf,
    ) {
        let (region, loaded) = (
            self.block_of(residency).region,
            self.block_of(residency).loaded,
        );
        let (mailbox, cancelled) = (core.mailbox.clone(), Arc::clone(&self.ticket.cancelled));
        self.residencies[residency as usize].state = State::Decoding;
        self.decoding += 1;
        core.workers.run(move |core| {
            let since = Instant::now();
            let result = caught(|| {
                if !cancelled.load(Ordering::Acquire) {
                    decoder.decode_frame(&mut frame, &region, &loaded);
                }
                Ok(())
            });
            mailbox.send(Decoded {
                residency,
                core,
                frame,
                since,
                until: Instant::now(),
                result,
            });
        });
    }

    pub(super) fn decoded(&mut self, decoded: Decoded) {
        let Decoded {
            residency,
            core,
            frame,
            since,
            until,
            result,
        } = decoded;
        self.decoding -= 1;
        // What was to be decoded may not have been.
        self.look_for_cancel();
        self.recorder.worked(core, "decode", since, until);
        if let Err(source) = result {
            let task = format!("decode of {}", self.area_of(residency).name);
            self.error.get_or_insert(Error::Task { task, source });
        }
        match self.error.is_some() {
            true => self.residencies[residency as usize].state = State::Ready(frame.freeze()),
            false => self.becomes_ready(residency, frame.freeze()),
        }
    }

    pub(super) fn becomes_ready(&mut self, residency: u32, bytes: Shared) {
        self.residencies[residency as usize].state = State::Ready(bytes);
        for index in 0..self.residencies[residency as usize].users.len() {
            let node = self.residencies[residency as usize].users[index];
            self.nodes[node as usize].missing -= 1;
            self.enlist(node);
        }
    }
}
