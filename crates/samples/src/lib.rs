//! Samples: many small pieces of training data in one place, each found at once by number or by
//! name.
//!
//! A dataset is a folder, or objects below a name in a formatted store:
//!
//! ```text
//!   dataset.json          what samples are made of, how many there are, and length and checksum of every other file
//!   samples               their bytes, one after another, nothing between them
//!   places, places.bits   where each begins, in few bits (packed.rs)
//!   sums                  CRC-32C of each, u32
//!   names, names.groups   of each, length u32 and bytes; where every 64th begins, u64
//!   names.sums            CRC-32C of the names of every 64, u32
//!   lookup                which sample has a name (names.rs)
//!   ends, ends.bits       where each ends, instead of `samples`, where samples are in files of others (sample_storage.rs, record_format.rs)
//! ```
//!
//! All but `samples` and `names` is in memory while a dataset is open: 4 bytes a sample for its
//! checksum, up to 4 for its place (none where all are of one length), 4 more for its end in files
//! of others, and 4 where samples have names. Samples are read by one gather: deduplicated, sorted,
//! completed in any order, each checked.
//!
//! After Zhu et al., Efficient User-Level Storage Disaggregation for Deep Learning (CLUSTER 2019).

mod batch;
mod buffer_pool;
mod checkpoint;
mod clustering;
mod dataset;
mod images;
mod lanes;
mod loader;
mod manifest;
mod names;
mod opening;
mod order;
mod packed;
mod pending_batch;
mod reading;
mod record_format;
mod sample_cache;
mod sample_storage;
mod schema;
mod shards;
mod writer;

pub use self::batch::{Batch, Column};
pub use self::buffer_pool::Bytes;
pub use self::dataset::Dataset;
pub use self::images::{Channels, Decode};
pub use self::loader::{End, Loader, LoaderOptions, LoaderState};
pub use self::order::{Chunks, Shuffle};
pub use self::reading::{Reading, Samples};
pub use self::record_format::Form;
pub use self::sample_storage::ExternalFiles;
pub use self::schema::{Field, Kind, elements, item_bytes};
pub use self::shards::{ShardOptions, Shards};
pub use self::writer::{DatasetWriter, WriterOptions};
