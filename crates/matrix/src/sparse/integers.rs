//! Whole numbers beside a matrix.

use std::ops::Range;
use std::path::Path;

use outcore_core::panels::cut;
use outcore_core::{DType, Error, FormatError, Job, MemorySplit, Result, Session};
use outcore_device::Buf;
use outcore_engine::{Plan, Task};

use super::vector::BackedVector;

/// Whole numbers of 64 bits that lie beside a matrix: the queries of its rows.
///
/// ```
#[doc = include_str!("../setup.doctest")]
/// use outcore_matrix::sparse::Integers;
///
/// let path = folder.path().join("queries.npy");
/// Array::create(&session, &path, DType::I64, &[3], Order::Row)?.copy_from_slice(&[7i64, 7, 8])?;
/// let queries = Integers::open(&session, &path)?;
/// assert!(queries.len() == 3 && !queries.is_empty());
/// let read = queries.read_into(1..3, Buf::anonymous(16)?)?.run()?;
/// assert_eq!(bytemuck::cast_slice::<u8, i64>(&read), [7, 8]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Integers {
    session: Session,
    part: BackedVector,
}

impl Integers {
    /// # Errors
    /// [`Error::Store`] for a file that is not there, [`Error::Format`] for one that holds
    /// something else.
    pub fn open(session: &Session, path: impl AsRef<Path>) -> Result<Integers> {
        let part = BackedVector::open(session, path.as_ref())?;
        match part.vector.element {
            DType::I64 => Ok(Integers {
                session: session.clone(),
                part,
            }),
            other => {
                let reason = format!("dtype {other}, where int64 is needed");
                Err(FormatError::Unsupported {
                    object: part.name().to_owned(),
                    reason,
                }
                .into())
            }
        }
    }

    /// How many there are.
    pub fn len(&self) -> u64 {
        self.part.vector.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Reads some of them into the caller's memory, of exactly the right length.
    ///
    /// # Errors
    /// [`Error::Shape`] for memory of another length, and for numbers that are not all there;
    /// [`Error::OverBudget`].
    pub fn read_into(&self, range: Range<u64>, into: Buf) -> Result<Job<Buf>> {
        if range.start > range.end
            || range.end > self.len()
            || into.len() as u64 != 8 * (range.end - range.start)
        {
            let (name, len) = (self.part.name(), self.len());
            return Err(Error::shape(format!(
                "numbers {range:?} of {name}, which has {len}, into {} bytes",
                into.len()
            )));
        }
        let mut plan = Plan::new(format!("read {}", self.part.name()));
        let (extent, (whole, mut rest)) = (self.part.extent(&mut plan), into.lend());
        let at_once = MemorySplit::new(&self.session).block_bytes(1 << 20) / 8;
        for range in cut(range, at_once)
            .into_iter()
            .filter(|range| !range.is_empty())
        {
            let mut piece = rest.split_to(8 * (range.end - range.start) as usize);
            plan.task(
                Task::new("read")
                    .read(self.part.region(extent, range))
                    .run(move |cx| {
                        piece.copy_from_slice(cx.blocks[0].bytes());
                        Ok(())
                    }),
            );
        }
        drop(rest);
        let taken = |_| Error::Failed {
            what: "a task still holds memory of the result".into(),
        };
        Job::new(&self.session, vec![plan], move |_| {
            whole.reclaim().map_err(taken)
        })
    }
}
