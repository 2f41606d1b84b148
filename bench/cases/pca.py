"""Principal components of as many dense rows as the disk holds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from harness.model import GIB, MIB, Bound, Case, Comparison, Context, DataFile, Leg, Skip

TALL_FILE = "tall.npy"
COLS = 512
COMPONENTS = 50
WANTED_BYTES = 20 * GIB
LEFT_FREE_BYTES = 15 * GIB
BATCH = 5 * COLS
"""scikit-learn's own default for IncrementalPCA."""
DASK_BATCH = 16 * COLS

OURS = "outcore PCA"
SKLEARN = "scikit-learn IncrementalPCA"
DASK_TSQR = "dask-ml PCA"
DASK_INCREMENTAL = "dask-ml IncrementalPCA"


def tall_file(context: Context) -> DataFile:
    """20 GiB of rows, or what leaves 15 GiB of the disk free; also the large file of `stream` and `gather`."""
    cols = min(COLS, max(128, context.side(COLS)))
    room = context.room_bytes - (LEFT_FREE_BYTES if context.scale >= 1 else GIB)
    rows = min(context.count(WANTED_BYTES // (4 * COLS)), room // (4 * cols)) // 1024 * 1024
    if rows < 1024:
        raise Skip(f"the disk has no room: {context.room_bytes >> 20} MiB are free")
    return DataFile(context.path(TALL_FILE), rows, cols, "low rank", seed=3)


def pca(context: Context) -> Case:
    file, memory = tall_file(context), max(32 * MIB, int(512 * MIB * min(1.0, context.scale)))
    n, d = file.rows, file.cols
    # A fraction of the file, one GiB at most, tells the speed of the cores at the covariance's shape.
    kernel_rows = min(n, GIB // (4 * d))
    common: dict[str, Any] = {"a": file.path, "components": COMPONENTS}
    ours: dict[str, Any] = {"a": file.path, "scratch": context.path("scratch")}
    cold, one_thread = (file.path,), {"OPENBLAS_NUM_THREADS": "1"}
    kernel = Leg(
        "covariance kernel in memory",
        "ours.syrk_memory",
        {**ours, "memory": 8 * GIB, "rows": kernel_rows, "seconds": context.seconds},
    )
    dask: dict[str, Any] = {**common, "batch": DASK_BATCH}
    legs = [
        Leg(OURS, "ours.pca", {**common, **ours, "memory": memory}, cold=cold),
        kernel,
        Leg(SKLEARN, "with_sklearn.pca", {**common, "batch": BATCH}, cold=cold, timeout_s=1800),
        Leg(
            DASK_TSQR,
            "with_dask.pca",
            {**dask, "estimator": "PCA", "solver": "full"},
            environment=one_thread,
            cold=cold,
            timeout_s=1800,
        ),
        Leg(
            DASK_INCREMENTAL,
            "with_dask.pca",
            {**dask, "estimator": "IncrementalPCA"},
            environment=one_thread,
            cold=cold,
            timeout_s=1800,
        ),
    ]
    return Case(
        "pca",
        f"PCA of {file.nbytes / GIB:.1f} GiB of f32 rows of {d}, {COMPONENTS} components, budget {memory >> 20} MiB",
        "s",
        legs,
        [
            Comparison(OURS, (SKLEARN,), "scikit-learn IncrementalPCA on a memory map", 5.0),
            Comparison(OURS, (DASK_TSQR, DASK_INCREMENTAL), "dask-ml", 5.0),
        ],
        Bound(float(n) * d * (d + 1), float(file.nbytes), 0.0, kernel.name, None, "every row read once"),
        [file],
        rounds=2,
        notes=(
            "The rivals run complete, over every row, with all the memory of the machine: no process limit.",
            "Captured variance is measured on the same 8192 rows for everyone; explained_variance_ratio_ is what each says.",
        ),
    )


BUILDERS: dict[str, Callable[[Context], Case]] = {"pca": pca}
