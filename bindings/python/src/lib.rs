//! The native half of the Python package `outcore`: sessions, matrices and jobs of the facade,
//! callable from Python.
//!
//! It is thin on purpose. Planning is a call that returns a [`job::Job`]; starting it returns a
//! [`job::Running`], for which Python waits in short steps so that its own signal handlers run in
//! between. Every call that may take long releases the GIL. Names, defaults, progress bars and the
//! rest of the user interface are Python, in `bindings/python/outcore`.
//!
//! | module | what |
//! |---|---|
//! | [`error`] | the facade's errors as the exceptions of `outcore.errors` |
//! | [`owned`] | values that a forked child neither uses nor frees |
//! | [`adopted`] | memory of NumPy arrays, lent to the engine without a copy |
//! | [`job`] | planned work, running work, its result |
//! | [`session`], [`matrix`], [`trace`] | the objects |
//! | [`linalg`], [`sparse`], [`spectra`], [`pca`], [`kmeans`], [`topics`] | what is computed |
//! | [`ranks`] | the processes of one job, whose messages Python carries |
//! | [`foreign`] | import and export |
//! | [`store`], [`stream`], [`samples`] | formatted stores, streams, datasets |
//! | [`reader`] | files of others, read in pieces |
//! | [`device`] | what a device does through the engine |

use pyo3::prelude::*;

/// Of this module alone; Python and other modules have theirs.
#[global_allocator]
static HEAP: outcore::device::Heap = outcore::device::Heap;

mod adopted;
mod device;
mod error;
mod foreign;
mod job;
mod kmeans;
mod linalg;
mod matrix;
mod names;
mod neighbors;
mod owned;
mod pca;
mod placement;
mod ranks;
mod reader;
mod reuse;
mod samples;
mod session;
mod sparse;
mod spectra;
mod store;
mod stream;
mod tables;
mod topics;
mod trace;

/// The native half of `outcore`; use the package, not this module.
#[pymodule]
mod _native {
    #[pymodule_export]
    const VERSION: &str = env!("CARGO_PKG_VERSION");

    #[pymodule_export]
    use crate::device::{device_random, device_read, device_write};
    #[pymodule_export]
    use crate::foreign::{export_sparse, import_sparse};
    #[pymodule_export]
    use crate::job::{Job, Running};
    #[pymodule_export]
    use crate::kmeans::{
        kmeans_assign, kmeans_distances, kmeans_fit, kmeans_fit_columns, take_rows,
    };
    #[pymodule_export]
    use crate::linalg::{
        axpby, column_norms, column_statistics, gemm, reduce, row_norms, scale, syrk,
    };
    #[pymodule_export]
    use crate::matrix::{
        Matrix, convert, create_matrix, draft_matrix, open_matrix, open_raw, temporary_matrix,
    };
    #[pymodule_export]
    use crate::neighbors::{nearest_rows, neighbors_graph, remove_checkpoint};
    #[pymodule_export]
    use crate::pca::{affine, pca_fit, sparse_pca_fit};
    #[pymodule_export]
    use crate::placement::place_rows;
    #[pymodule_export]
    use crate::ranks::{MpiRanks, Team, mpi_finalize};
    #[pymodule_export]
    use crate::reader::FileReader;
    #[pymodule_export]
    use crate::reuse::{CacheMisses, ReuseCounts};
    #[pymodule_export]
    use crate::samples::{Dataset, DatasetWriter, Loader, Shards, shard_form};
    #[pymodule_export]
    use crate::session::{Reservation, Session, memory_allowed};
    #[pymodule_export]
    use crate::sparse::{
        SparseMatrix, SparseRows, csrcsc, csrmm, gram_product, open_sparse, project,
        sparse_column_statistics, sparse_in_memory, sparse_row_norms, sparse_scaled, sparse_tiled,
    };
    #[pymodule_export]
    use crate::spectra::{
        eigsh, eigsh_of_function, forget_checkpoint, graph_degrees, svds, svds_of_function,
    };
    #[pymodule_export]
    use crate::store::{
        crc32c, store_check, store_format, store_is_formatted, store_list, store_repair,
    };
    #[pymodule_export]
    use crate::stream::{StreamReader, StreamStore, StreamWriter, split_records};
    #[pymodule_export]
    use crate::tables::{PendingLookUp, RowWriter, Tables, TrainingStep};
    #[pymodule_export]
    use crate::topics::{
        TopicScales, topic_catchwords, topic_co_occurrences, topic_kept, topic_sum_digits,
        topic_sums, topic_thresholded, topic_thresholds, topic_weights,
    };
    #[pymodule_export]
    use crate::trace::{Trace, Traces};
}
