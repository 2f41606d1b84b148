//! When bytes move: one memory budget, and the runs, streams and gathers within it.
//!
//! A [`Plan`] is a graph of tasks that declare the strided bytes they read and write. The engine
//! derives their order, prefetches, computes, writes back, and compares the traffic with the
//! prediction of the plan. It knows budgets, tasks and extents; it does not know dtypes or
//! algorithms.
//!
//! ```
//! use std::sync::Arc;
//! use outcore_device::MemoryDevice;
//! use outcore_engine::{Config, Engine, Extent, Plan, Region, Task};
//!
//! let engine = Engine::new(Config { memory_bytes: 1 << 20, ..Config::default() });
//! let numbers = Extent::new("numbers", Arc::new(MemoryDevice::new("numbers", 8192)));
//! let mut plan = Plan::new("fill");
//! let extent = plan.extent(&numbers);
//! plan.task(Task::new("ones").write(Region::span(extent, 0, 8192)).run(|cx| {
//!     cx.blocks[0].slice_mut::<f32>().fill(1.0);
//!     Ok(())
//! }));
//! let outcome = engine.run(plan)?.wait()?;
//! assert_eq!(outcome.trace.actual.bytes_written, 8192);
//! # Ok::<(), outcore_engine::Error>(())
//! ```
#![forbid(unsafe_code)]

pub mod cache;
mod decoder;
mod deferred;
mod edges;
mod engine;
mod error;
mod event;
mod extent;
mod extent_locks;
mod frame_size;
mod gather;
mod gather_layout;
mod gathering;
mod given;
mod given_block;
mod inline;
mod items;
mod memory;
mod plan;
mod planning;
mod pump;
mod read_stream;
mod reclaimable;
mod region;
mod run;
mod scatter;
mod schedule;
mod sectors;
mod stream;
mod ticket;
mod trace;
mod workers;
mod write_stream;
mod written;

pub use decoder::Decoder;
pub use deferred::Deferred;
pub use engine::{Config, Engine, Info};
pub use error::{Error, Result, TaskError};
pub use event::Event;
pub use extent::{Changes, Extent};
pub use gather::{Arrivals, GatherOptions, Gathered};
pub use gather_layout::Item;
pub use given::Given;
pub use given_block::GivenBlock;
pub use memory::{Budget, Cap, Reservation, Share};
pub use plan::{Access, Block, Context, Mode, Plan, Task};
pub use planning::{go_on, plan_until};
pub use read_stream::{Lent, ReadStream};
pub use reclaimable::{Pieces, ReclaimablePool};
pub use region::{ExtentRef, Region};
pub use run::Outcome;
pub use schedule::{Explanation, Totals};
pub use stream::{StreamOptions, Supply};
pub use ticket::{Progress, Ticket};
pub use trace::{Span, Trace};
pub use write_stream::WriteStream;
