//! What ranks have to know of each other's rows before anything is read.

use outcore_core::ranks::Team;
use outcore_core::{Error, RealType, Result};

/// The rows of all ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AllRows {
    /// How many there are.
    pub(crate) count: u64,
    /// How many ranks before this one have.
    pub(crate) first: u64,
}

impl AllRows {
    /// Tells the others of this rank's rows, and what is asked for. A rank may have none.
    ///
    /// # Errors
    /// [`Error::Shape`] and [`Error::DType`] for ranks whose rows do not fit together,
    /// [`Error::Value`] for such as are asked for something else; the same on every rank.
    pub(crate) fn of(
        team: &Team,
        [rows, columns]: [u64; 2],
        real: Result<RealType>,
        asked: &str,
    ) -> Result<AllRows> {
        let told = real.map(|real| {
            let facts = Facts {
                rows,
                columns,
                real,
                asked,
            };
            facts.bytes()
        });
        let all = team.all_gather(told)?;
        team.alike(AllRows::fitting(team.rank(), &all))
    }

    fn fitting(rank: usize, all: &[Vec<u8>]) -> Result<AllRows> {
        let all: Vec<Facts<'_>> = all
            .iter()
            .map(|bytes| Facts::read(bytes))
            .collect::<Result<_>>()?;
        for (other, facts) in all.iter().enumerate() {
            facts.check(other, &all[0])?;
        }
        let rows = |ranks: &[Facts<'_>]| ranks.iter().map(|facts| facts.rows).sum();
        Ok(AllRows {
            count: rows(&all),
            first: rows(&all[..rank]),
        })
    }
}

/// Numbers as ranks send them, all on processors of one byte order.
pub(crate) fn told(numbers: &[f64]) -> Vec<u8> {
    bytemuck::cast_slice(numbers).to_vec()
}

/// What [`told`] has made bytes of.
pub(crate) fn heard(bytes: &[u8]) -> Vec<f64> {
    let numbers = bytes.as_chunks::<8>().0.iter();
    numbers.map(|bytes| f64::from_ne_bytes(*bytes)).collect()
}

/// What a rank tells of itself.
struct Facts<'a> {
    rows: u64,
    columns: u64,
    real: RealType,
    /// Parameters, in words.
    asked: &'a str,
}

impl Facts<'_> {
    fn bytes(&self) -> Vec<u8> {
        let numbers = [self.rows, self.columns, self.real.bytes() as u64];
        let numbers = numbers.into_iter().flat_map(u64::to_le_bytes);
        numbers.chain(self.asked.bytes()).collect()
    }

    fn read(bytes: &[u8]) -> Result<Facts<'_>> {
        let strange = || Error::Failed {
            what: "what a rank tells of its rows has no sense".into(),
        };
        let number = |at: usize| -> Result<u64> {
            let bytes = bytes.get(8 * at..8 * at + 8).ok_or_else(strange)?;
            Ok(u64::from_le_bytes(bytes.try_into().expect("8 were taken")))
        };
        Ok(Facts {
            rows: number(0)?,
            columns: number(1)?,
            real: if number(2)? == 4 {
                RealType::F32
            } else {
                RealType::F64
            },
            asked: std::str::from_utf8(&bytes[24..]).map_err(|_| strange())?,
        })
    }

    fn check(&self, rank: usize, first: &Facts<'_>) -> Result<()> {
        if self.columns != first.columns {
            return Err(Error::shape(format!(
                "rank {rank} has rows of {} columns, rank 0 of {}",
                self.columns, first.columns
            )));
        }
        if self.real != first.real {
            return Err(Error::DType {
                what: format!(
                    "rank {rank} computes in {}, rank 0 in {}",
                    self.real, first.real
                ),
            });
        }
        if self.asked != first.asked {
            return Err(Error::value(format!(
                "rank {rank} was asked for {}, rank 0 for {}",
                self.asked, first.asked
            )));
        }
        Ok(())
    }
}
