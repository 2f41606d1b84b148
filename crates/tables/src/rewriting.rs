//! Pages of a table that is written: read, changed, and written to free places, in windows.

use std::collections::VecDeque;

use outcore_core::{Error, Result};
use outcore_device::Buf;
use outcore_engine::Ticket;

use crate::call::WINDOWS;
use crate::error::of_row;
use crate::packed::seal;
use crate::readers::{CHECK_EVERY, now_and_then};
use crate::reading::{Read, Reading};
use crate::served::{Served, Service};
use crate::versioned::{Versioned, Writer};
use crate::window::Window;

/// Where a page goes, until all of them are written.
pub(crate) const MOVED_BYTES: u64 = size_of::<(u64, u32)>() as u64;

/// Rewrites the pages of rows, which come in ascending order; `change` gets each record by its number here.
/// Where the pages lie then, which counts once the caller says so: after an error the table is as it was.
pub(crate) fn rewrite(
    service: &Service,
    tables: &[Served],
    number: usize,
    writer: &mut Writer,
    rows: impl Iterator<Item = u64>,
    go_on: &mut dyn FnMut() -> bool,
    change: &mut dyn FnMut(usize, &mut [u8]),
) -> Result<Vec<(u64, u32)>> {
    let mut rewriting = Rewriting {
        service,
        tables,
        number,
        versioned: tables[number]
            .table
            .versioned()
            .expect("checked by the caller"),
        bufs: Vec::new(),
        writing: None,
        moved: Vec::new(),
    };
    let outcome = rewriting.run(writer, rows, go_on, change);
    // Also after an error nothing is in flight that the places are for.
    let landed = rewriting.land(&mut || true);
    match outcome.and(landed) {
        Ok(()) => Ok(rewriting.moved),
        Err(error) => {
            let places: Vec<u32> = rewriting.moved.iter().map(|(_, place)| *place).collect();
            writer.versions.give_back(&places);
            Err(error)
        }
    }
}

struct Rewriting<'a> {
    service: &'a Service,
    tables: &'a [Served],
    number: usize,
    versioned: &'a Versioned,
    /// Memory for a window of pages each.
    bufs: Vec<Buf>,
    writing: Option<Ticket<Buf>>,
    /// Pages and their new places.
    moved: Vec<(u64, u32)>,
}

impl Rewriting<'_> {
    fn run(
        &mut self,
        writer: &mut Writer,
        rows: impl Iterator<Item = u64>,
        go_on: &mut dyn FnMut() -> bool,
        change: &mut dyn FnMut(usize, &mut [u8]),
    ) -> Result<()> {
        let (service, tables, go_on) = (self.service, self.tables, &mut now_and_then(go_on));
        let mut rows = rows.peekable();
        if rows.peek().is_none() {
            return Ok(());
        }
        let _permit = service.readers.acquire(go_on)?;
        let buf_bytes = service.units_at_once * self.versioned.layout.header.page_bytes;
        let _held = service
            .session
            .engine()
            .reserve("pages that are written", (WINDOWS * buf_bytes) as u64)?;
        for _ in 0..WINDOWS {
            let buf = Buf::not_inherited(buf_bytes).map_err(|source| {
                outcore_engine::Error::NoMemory {
                    bytes: buf_bytes as u64,
                    source,
                }
            })?;
            self.bufs.push(buf);
        }
        let mut reading: VecDeque<Reading<'_>> = VecDeque::new();
        let mut changed = 0;
        loop {
            if !go_on() {
                return Err(Error::Cancelled);
            }
            while reading.len() < WINDOWS && rows.peek().is_some() {
                let mut window = Window::to_change();
                // Rows of a page follow each other, so a page is in one window.
                while let Some(&row) = rows.peek() {
                    let (number, served) = (self.number as u32, &tables[self.number]);
                    if service.is_full(&window) && window.begins_unit(number, served, row) {
                        break;
                    }
                    window.miss(number, served, row);
                    rows.next();
                }
                reading.push_back(Reading::begin(service, tables, window)?);
            }
            let Some(first) = reading.pop_front() else {
                return Ok(());
            };
            let read = first.finish(go_on)?;
            self.write(writer, &read, go_on, &mut |at, record| {
                change(changed + at, record);
            })?;
            changed += read.window.missing.len();
        }
    }

    /// Changes the rows of a window, and begins to write its pages.
    fn write(
        &mut self,
        writer: &mut Writer,
        read: &Read,
        go_on: &mut dyn FnMut() -> bool,
        change: &mut dyn FnMut(usize, &mut [u8]),
    ) -> Result<()> {
        if self.bufs.is_empty() {
            self.land(go_on)?;
        }
        let layout = &self.versioned.layout;
        let page_bytes = layout.header.page_bytes;
        let mut buf = self.bufs.pop().expect("landed above");
        for (unit, page) in
            (0..read.window.units.len() as u32).zip(buf.chunks_exact_mut(page_bytes))
        {
            let bytes = read
                .unit(unit)
                .map_err(|error| self.lost(read, unit, &error))?;
            page.copy_from_slice(bytes);
        }
        for (number, missing) in read.window.missing.iter().enumerate() {
            let at = missing.unit as usize * page_bytes + missing.at;
            change(number, &mut buf[at..][..layout.record_bytes()]);
        }
        let count = read.window.units.len();
        buf.chunks_exact_mut(page_bytes).take(count).for_each(seal);
        let places = writer.versions.take(count)?;
        let pages = read.window.units.iter().map(|(key, _)| key.unit);
        self.moved.extend(pages.zip(places.iter().copied()));
        let offsets: Vec<u64> = places
            .iter()
            .map(|&place| self.versioned.offset(place))
            .collect();
        self.land(go_on)?;
        let engine = self.service.session.engine();
        let extent = self.versioned.file.extent();
        self.writing = Some(engine.scatter(extent, buf, page_bytes, &offsets)?);
        Ok(())
    }

    /// Waits for the pages that are being written.
    fn land(&mut self, go_on: &mut dyn FnMut() -> bool) -> Result<()> {
        let Some(ticket) = self.writing.take() else {
            return Ok(());
        };
        let mut is_wanted = true;
        while !ticket.wait_timeout(CHECK_EVERY) {
            if is_wanted && !go_on() {
                is_wanted = false;
                ticket.cancel();
            }
        }
        let buf = ticket.wait()?;
        self.bufs.push(buf);
        match is_wanted {
            true => Ok(()),
            false => Err(Error::Cancelled),
        }
    }

    fn lost(&self, read: &Read, unit: u32, error: &Error) -> Error {
        let missing = read
            .window
            .missing
            .iter()
            .find(|missing| missing.unit == unit);
        let row = missing.expect("a page is read for a row").row;
        of_row(self.tables[self.number].table.name(), row, error)
    }
}
