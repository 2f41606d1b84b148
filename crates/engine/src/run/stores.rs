//! Stores of a run: blocks and shared sectors go to their device, frames return to the memory.

use super::*;

impl Run {
    /// Returns a frame. Its bytes are kept as an idle block if no task of this run can change them
    /// and a later run can reuse them. That excludes areas larger than memory, whose first blocks
    /// would be evicted before the last have been read, unless the plan says that the next one runs
    /// backwards: each idle block would make the run use untouched memory, which can cost more than
    /// reading.
    pub(super) fn retire(&mut self, core: &mut Core<'_>, residency: u32, bytes: Shared) {
        if let Some(place) = &self.block_of(residency).given {
            return place.put(sole(bytes));
        }
        let block = self.block_of(residency);
        let fits =
            self.keeps || self.covered[block.region.extent.0 as usize] <= core.memory.total();
        let steady = !self.written.contains(&block.region.extent) || block.overlapping.is_empty();
        match (&self.area_of(residency).backing, self.idle_key(residency)) {
            (Backing::Device(extent), Some(key)) if steady && fits => {
                let life = extent.life();
                let date = self.dates[block.region.extent.0 as usize];
                core.memory
                    .give_idle(&mut self.account, key, date, life, bytes);
            }
            _ => self.give(core, bytes),
        }
    }

    pub(super) fn give(&mut self, core: &mut Core<'_>, bytes: Shared) {
        core.memory.give(&mut self.account, sole(bytes));
    }

    pub(super) fn start_store(&mut self, core: &mut Core<'_>, residency: u32, bytes: Shared) {
        let rows = 0..self.block_of(residency).run_count();
        let requests = self.bounce_store(residency);
        self.residencies[residency as usize].state = State::Storing {
            bytes,
            requests,
            since: Instant::now(),
            rows,
        };
        self.to_store.push_back(residency);
        self.store_what_may(core);
    }

    /// Continues stores in the order in which they began, as far as there is room for shared
    /// sectors.
    pub(super) fn store_what_may(&mut self, core: &mut Core<'_>) {
        while let Some(&residency) = self.to_store.front().filter(|_| self.error.is_none()) {
            let mut transfers = Vec::new();
            let sent = self.store_rows(core, residency, &mut transfers);
            self.submit_sectors(core, transfers);
            match sent {
                Ok(true) => _ = self.to_store.pop_front(),
                Ok(false) => return,
                Err(source) => {
                    let bytes = self.schedule.sector_bytes;
                    self.error.get_or_insert(Error::NoMemory { bytes, source });
                }
            }
        }
    }

    /// True when the last row of a residency has been sent.
    pub(super) fn store_rows(
        &mut self,
        core: &mut Core<'_>,
        residency: u32,
        transfers: &mut Vec<Transfer>,
    ) -> io::Result<bool> {
        let block =
            &self.schedule.blocks[self.schedule.residencies[residency as usize].block as usize];
        let (region, layout, area) = (
            block.region,
            block.layout,
            &self.areas[block.region.extent.0 as usize],
        );
        let Backing::Device(extent) = &area.backing else {
            unreachable!("only devices are written to")
        };
        let (unit, device) = (area.sector(), extent.device());
        let State::Storing {
            bytes,
            requests,
            rows,
            ..
        } = &mut self.residencies[residency as usize].state
        else {
            unreachable!("it is being stored")
        };
        let (mut begun, mut moved, mut room) = (0, 0, Ok(true));
        for row in rows.clone() {
            let run = block.run(row);
            let in_frame =
                |byte: u64| layout.lead + row as usize * layout.pitch + (byte - run.start) as usize;
            let Split { direct, edges } = split(&run, unit, area.bytes);
            let direct = match &block.given {
                None => direct,
                Some(place) => place.geometry.straight(direct, &run),
            };
            if edges.iter().any(Option::is_some) {
                room = self.sectors.has_room(unit as u32, transfers);
            }
            if !matches!(room, Ok(true)) {
                break;
            }
            let put = edges.into_iter().flatten().try_for_each(|edge| {
                let part = &bytes[in_frame(edge.bytes.start)..in_frame(edge.bytes.end)];
                self.sectors
                    .put(region.extent, unit as u32, &edge, part, transfers)
            });
            if let Err(error) = put {
                room = Err(error);
                break;
            }
            for (offset, length) in pieces(direct) {
                let from = in_frame(offset);
                core.submit(
                    residency,
                    device,
                    offset,
                    Op::Write(bytes.slice(from..from + length as usize)),
                );
                begun += 1;
                moved += length;
            }
            rows.start = row + 1;
        }
        *requests += begun;
        let over = rows.start == rows.end && *requests == 0;
        self.moved[region.extent.0 as usize].1 += moved;
        self.begin_requests(begun);
        if over {
            self.residency_stored(core, residency);
        }
        room
    }

    /// All bytes of a residency are on the device or in the shared sectors.
    pub(super) fn residency_stored(&mut self, core: &mut Core<'_>, residency: u32) {
        let State::Storing { bytes, .. } =
            std::mem::replace(&mut self.residencies[residency as usize].state, State::Gone)
        else {
            unreachable!("it is being stored")
        };
        self.retire(core, residency, bytes);
    }

    pub(super) fn submit_sectors(&mut self, core: &mut Core<'_>, transfers: Vec<Transfer>) {
        self.begin_requests(transfers.len());
        for Transfer {
            token,
            extent,
            offset,
            op,
        } in transfers
        {
            let Backing::Device(on) = &self.areas[extent.0 as usize].backing else {
                unreachable!("only devices have sectors")
            };
            match &op {
                Op::Read(sector) => self.moved[extent.0 as usize].0 += sector.len() as u64,
                Op::Write(sector) => self.moved[extent.0 as usize].1 += sector.len() as u64,
                _ => {}
            }
            core.submit(SECTOR_TOKENS | token, on.device(), offset, op);
        }
    }

    /// True if no shared sector with these bytes is pending; otherwise sends such sectors to the
    /// device.
    pub(super) fn sectors_clear(&mut self, core: &mut Core<'_>, region: Option<&Region>) -> bool {
        if self.sectors.is_clear(region) {
            return true;
        }
        let mut transfers = Vec::new();
        if let Err(source) = self.sectors.flush(region, &mut transfers) {
            self.error.get_or_insert(Error::NoMemory {
                bytes: self.schedule.sector_bytes,
                source,
            });
        }
        self.submit_sectors(core, transfers);
        false
    }

    pub(super) fn device_error(&self, token: u32, source: DeviceError) -> Error {
        let object = match token & SECTOR_TOKENS {
            0 => self.area_of(self.residency_of(token)).name.clone(),
            _ => source.device.clone(),
        };
        Error::Device { object, source }
    }

    /// The requests of a residency that were in flight have completed.
    pub(super) fn residency_moved(&mut self, core: &mut Core<'_>, residency: u32) {
        let region = self.block_of(residency).region;
        let name = &self.areas[region.extent.0 as usize].name;
        match &self.residencies[residency as usize].state {
            State::Storing { rows, .. } if !rows.is_empty() => return,
            State::Storing { since, .. } => {
                self.recorder
                    .moved(|| format!("write {name}"), *since, region.bytes());
                return self.residency_stored(core, residency);
            }
            _ => {}
        }
        let State::Loading { whole, since, .. } =
            std::mem::replace(&mut self.residencies[residency as usize].state, State::Lent)
        else {
            unreachable!("only what moves completes")
        };
        self.bounces.has_loaded(residency);
        self.recorder
            .moved(|| format!("read {name}"), since, region.bytes());
        let frame = whole
            .reclaim()
            .unwrap_or_else(|_| unreachable!("every piece has come back"));
        match (self.error.is_some(), self.area_of(residency).decoder) {
            (true, _) => self.residencies[residency as usize].state = State::Ready(frame.freeze()),
            (false, Some(decoder)) => self.start_decoding(core, residency, decoder, frame),
            (false, None) => self.becomes_ready(residency, frame.freeze()),
        }
    }
}
/// The memory of a block that no task reads any more.
pub(super) fn sole(bytes: Shared) -> Buf {
    bytes
        .try_thaw()
        .unwrap_or_else(|_| unreachable!("dependencies leave one holder"))
}
