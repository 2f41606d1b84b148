//! Verification and repair of a store.

use std::io;
use std::path::Path;
use std::sync::Arc;

use outcore_device::Device;

use super::body::{Body, wrong_blocks};
use super::catalog::{Catalog, Found};
use super::claim::Claim;
use super::layout::{Condition, Entry};
use super::sums::Cache;
use super::{Access, Formatted, Inner, draw, stream};
use crate::Store;
use crate::error::Error;

/// The result of a [check](Formatted::check).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Findings {
    /// Number of objects checked.
    pub objects: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Bytes that are free.
    pub free_bytes: u64,
    /// Faults found; empty for an intact store.
    pub faults: Vec<Fault>,
}

/// A fault of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The object's name.
    pub name: String,
    /// The reason.
    pub reason: String,
}

impl Formatted {
    /// Reads every block of every object. `progress` is called with the bytes done and the total,
    /// and ends the check by returning false.
    ///
    /// # Errors
    /// That of the device; a wrong checksum is not an error but one of the faults. [`Error::Io`] of
    /// kind `Interrupted` if the check was ended.
    pub fn check(&self, mut progress: impl FnMut(u64, u64) -> bool) -> Result<Findings, Error> {
        let store = &self.0;
        let entries: Vec<Arc<Entry>> = store
            .lock()
            .catalog
            .names()
            .map(|(_, entry)| Arc::clone(entry))
            .collect();
        let all = entries.iter().map(|entry| entry.len).sum();
        let mut findings = Findings {
            free_bytes: self.free_bytes()?,
            ..Findings::default()
        };
        for entry in entries {
            let held = {
                let mut state = store.lock();
                // It may have been replaced meanwhile, or be being written.
                let is_same = state
                    .catalog
                    .get(entry.id)
                    .is_some_and(|now| Arc::ptr_eq(now, &entry));
                (is_same && !state.writers.contains_key(&entry.name))
                    .then(|| state.hold_open(store, &entry))
            };
            let Some(_held) = held else { continue };
            let mut fault = |reason: String| {
                findings.faults.push(Fault {
                    name: entry.name.clone(),
                    reason,
                })
            };
            findings.objects += 1;
            findings.bytes += entry.len;
            let before = findings.bytes - entry.len;
            if entry.condition != Condition::Whole {
                fault(
                    if entry.is_stream {
                        "not finished, or damaged"
                    } else {
                        "a write in place was interrupted"
                    }
                    .into(),
                );
                continue;
            }
            let mut told = |done| {
                if progress(before + done, all) {
                    Ok(())
                } else {
                    Err(io::ErrorKind::Interrupted.into())
                }
            };
            let looked = if entry.is_stream {
                fault_of_stream(store, &entry, &mut told)
            } else {
                fault_of(store, &entry, &mut told)
            };
            let is_same = store
                .lock()
                .catalog
                .get(entry.id)
                .is_some_and(|now| Arc::ptr_eq(now, &entry));
            match looked {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {
                    return Err(Error::from_io(&store.full(&entry.name), "check", error));
                }
                // A write in place has begun since, or the object was removed.
                _ if !is_same => {}
                Err(error) => fault(error.to_string()),
                Ok(found) => found.into_iter().for_each(fault),
            }
        }
        Ok(findings)
    }

    /// Opens a file or block device that may be damaged, and repairs it as far as possible:
    /// superblocks and catalog are rewritten from their remains; objects with damaged bytes are
    /// marked as [interrupted](Error::Interrupted). Returns the damage found.
    ///
    /// # Errors
    /// [`Error::Unformatted`] if nothing remains of a store; [`Error::Locked`]; that of the device.
    pub fn repair(
        path: impl AsRef<Path>,
        progress: impl FnMut(u64, u64) -> bool,
    ) -> Result<Vec<Fault>, Error> {
        let (device, claim) = Claim::open(path.as_ref(), Access::Write)?;
        Formatted::repair_opened(device, Some(claim), progress)
    }

    /// As [`repair`](Formatted::repair), for a device without another user.
    ///
    /// # Errors
    /// As [`repair`](Formatted::repair).
    pub fn repair_device(
        device: Arc<dyn Device>,
        progress: impl FnMut(u64, u64) -> bool,
    ) -> Result<Vec<Fault>, Error> {
        Formatted::repair_opened(device, None, progress)
    }

    fn repair_opened(
        device: Arc<dyn Device>,
        claim: Option<Claim>,
        progress: impl FnMut(u64, u64) -> bool,
    ) -> Result<Vec<Fault>, Error> {
        let mut faults = Vec::new();
        let opened = Catalog::open(Arc::clone(&device), draw());
        let Found {
            mut catalog,
            mut space,
            is_torn,
            old_logs,
        } = match opened {
            Ok(found) => found,
            Err(Error::Corrupt { .. } | Error::Unformatted { .. }) => {
                let (found, lost) = Catalog::salvage(Arc::clone(&device), draw())?;
                faults.extend(lost.into_iter().map(|reason| Fault {
                    name: String::new(),
                    reason,
                }));
                found
            }
            Err(error) => return Err(error),
        };
        // The state that was found is made durable before later changes rely on it.
        super::catalog::flush(&device)?;
        if is_torn {
            match catalog.begin_anew(&mut space, 0) {
                Err(Error::NoSpace { .. }) if !old_logs.is_empty() => {
                    old_logs.into_iter().for_each(|range| space.give(range));
                    catalog.begin_anew(&mut space, 0)?;
                }
                begun => begun?,
            }
        }
        let store = Formatted::with(device, claim, catalog, space, false);
        store.0.lock().allow(&store.0.device, Access::Write)?;
        for fault in store.check(progress)?.faults {
            let mut state = store.0.lock();
            let entry = state.entry(&store.0, &fault.name)?;
            if entry.condition == Condition::Whole {
                state.put(Entry {
                    condition: Condition::Marked,
                    ..Entry::clone(&entry)
                })?;
            }
            faults.push(fault);
        }
        Ok(faults)
    }
}

/// The fault in the blocks of an object, if any. `told` is called with the bytes read.
fn fault_of(
    store: &Inner,
    entry: &Entry,
    told: &mut impl FnMut(u64) -> io::Result<()>,
) -> io::Result<Option<String>> {
    // A separate body without cached checksums.
    let body = Body::new(
        &store.device,
        &Cache::new(&store.device),
        entry,
        false,
        Arc::default(),
    );
    let (mut damaged, mut first) = (0, None);
    body.each_part(|at, sums, bytes| {
        for offset in wrong_blocks(sums, bytes) {
            damaged += 1;
            first.get_or_insert(at + offset);
        }
        told((at + bytes.len() as u64).min(entry.len))
    })?;
    Ok(
        first
            .map(|first| format!("{damaged} of its blocks are damaged, the first at byte {first}")),
    )
}

/// The fault in the blocks of a stream, if any.
fn fault_of_stream(
    store: &Inner,
    entry: &Entry,
    told: &mut impl FnMut(u64) -> io::Result<()>,
) -> io::Result<Option<String>> {
    let (mut damaged, mut first) = (0, None);
    stream::each_block(store, entry, |done, block| {
        if let Err(wrong) = block {
            damaged += 1;
            first.get_or_insert(wrong);
        }
        told(done)
    })?;
    Ok(first.map(|first| format!("{damaged} of its blocks are damaged; {first}")))
}
