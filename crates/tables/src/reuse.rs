//! How often and how soon rows are looked up again, and what a cache of any size would save.
//!
//! Keys are numbers of rows. Everything here works on ids alone: it reads no table. Exact where that
//! is asked for; otherwise on a sample of the keys, chosen by hash, so that a key is followed at all
//! of its look-ups or at none (SHARDS: Waldspurger et al., FAST 2015).
//!
//! ```
//! use outcore_engine::cache::PolicyKind;
//! use outcore_tables::reuse::{ReuseCounts, ReuseProfile, belady, simulate};
//!
//! let trace = [1, 2, 3, 1, 2, 1, 4, 1];
//! let (mut profile, mut counts) = (ReuseProfile::exact(), ReuseCounts::default());
//! for id in trace {
//!     profile.add(id);
//!     counts.add(id);
//! }
//! let curve = profile.miss_curve();
//! assert_eq!([0, 1, 2, 3].map(|rows| curve.misses(rows)), [8.0, 8.0, 6.0, 4.0]);
//! assert_eq!(simulate(PolicyKind::Lru, 2, trace), 2);
//! assert_eq!(belady(&trace, 2), 3);
//! assert_eq!(counts.histogram(), [(1, 2), (2, 1), (4, 1)], "two rows occur once, one twice, one four times");
//! ```

mod counts;
mod curve;
mod profile;
mod recency;
mod running;
mod sample;
mod simulation;
#[cfg(test)]
mod tests;
#[cfg(test)]
pub(crate) mod traces;

pub use counts::ReuseCounts;
pub use curve::MissCurve;
pub use profile::ReuseProfile;
pub use running::RunningCurve;
pub use simulation::{Miniatures, SampledBelady, Simulation, belady, simulate};
