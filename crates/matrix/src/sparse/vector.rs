//! The arrays of a sparse matrix, on SSD or in memory.

use std::ops::Range;
use std::path::Path;
use std::sync::{Arc, Mutex};

use outcore_core::file::read_vector_head;
use outcore_core::format::Vector;
use outcore_core::panels::cut;
use outcore_core::{Error, FormatError, Result, Session, StoredFile};
use outcore_device::{Locked, Shared};
use outcore_engine::{ExtentRef, Plan, Region, Task};

use super::Stop;

/// An array of a sparse matrix.
#[derive(Clone)]
pub(super) struct BackedVector {
    pub(super) vector: Vector,
    pub(super) backing: Backing,
}

/// Where an array is.
#[derive(Clone)]
pub(super) enum Backing {
    Stored(Arc<StoredFile>),
    Memory(Shared),
}

impl BackedVector {
    pub(super) fn open(session: &Session, path: &Path) -> Result<BackedVector> {
        let file = session.file(path, false)?;
        let vector = read_vector_head(path, file.extent().name())?;
        Ok(match vector.shift() {
            0 => BackedVector {
                vector,
                backing: Backing::Stored(file),
            },
            shift => {
                let data_offset = vector.data_offset - shift;
                let file = session.file_from(path, false, shift)?;
                BackedVector {
                    vector: Vector {
                        data_offset,
                        ..vector
                    },
                    backing: Backing::Stored(file),
                }
            }
        })
    }

    pub(super) fn name(&self) -> &str {
        match &self.backing {
            Backing::Stored(file) => file.extent().name(),
            Backing::Memory(_) => "array in memory",
        }
    }

    pub(super) fn extent(&self, plan: &mut Plan) -> ExtentRef {
        match &self.backing {
            Backing::Stored(file) => plan.extent(file.extent()),
            Backing::Memory(bytes) => plan.resident("array in memory", bytes.clone()),
        }
    }

    pub(super) fn region(&self, extent: ExtentRef, range: Range<u64>) -> Region {
        let size = self.vector.element.bytes();
        Region::span(
            extent,
            self.vector.data_offset + range.start * size,
            (range.end - range.start) * size,
        )
    }

    /// All its numbers, of 64 bits.
    pub(super) fn numbers(&self, session: &Session, stop: Stop<'_>) -> Result<Vec<i64>> {
        let mut plan = Plan::new("read numbers");
        let (extent, found) = (
            self.extent(&mut plan),
            Arc::new(Mutex::new(vec![0; self.vector.len as usize])),
        );
        for range in cut(0..self.vector.len, 1 << 16) {
            let found = Arc::clone(&found);
            plan.task(
                Task::new("numbers")
                    .read(self.region(extent, range.clone()))
                    .run(move |cx| {
                        let mut found = found.locked();
                        found[range.start as usize..range.end as usize]
                            .copy_from_slice(cx.blocks[0].slice());
                        Ok(())
                    }),
            );
        }
        session.run_until(plan, stop)?;
        let numbers = std::mem::take(&mut *found.locked());
        Ok(numbers)
    }

    pub(super) fn sector(&self) -> u64 {
        match &self.backing {
            Backing::Stored(file) => u64::from(file.extent().sector()),
            Backing::Memory(_) => 1,
        }
    }

    pub(super) fn corrupt(&self, number: u64, reason: String) -> Error {
        let offset = self.vector.data_offset + number * self.vector.element.bytes();
        FormatError::Corrupt {
            object: self.name().to_owned(),
            offset,
            reason,
        }
        .into()
    }
}
