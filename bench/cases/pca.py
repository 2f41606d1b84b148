"""Principal components of rows that a machine with much memory could hold, and of as many as the disk holds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from cases.limits import limit_legs
from cases.products import steering, steering_notes
from cases.sparse import check_room
from harness.model import GIB, MIB, Bound, Case, Comparison, Context, DataFile, Leg, Skip

TALL_FILE = "tall.npy"
HEADLINE_BYTES = 4 * GIB
KERNEL_SECONDS = 5.0
COLS = 512
COMPONENTS = 50
WANTED_BYTES = 20 * GIB
LEFT_FREE_BYTES = 15 * GIB
IMAGE_COLS = 8 * 8 * 3
IMAGE_BYTES, IMAGE_MEMORY = 4 * GIB, GIB
BATCH = 5 * COLS
"""scikit-learn's own default for IncrementalPCA."""
DASK_BATCH = 16 * COLS

OURS = "outcore PCA"
OURS_BYTES, OURS_FLOATS = "outcore PCA of uint8", "outcore PCA of float32"
SKLEARN = "scikit-learn IncrementalPCA"
SKLEARN_MEMORY = "scikit-learn PCA, covariance_eigh, in memory"
BY_HAND = "NumPy, blocks by hand"
DASK_TSQR = "dask-ml PCA"
DASK_INCREMENTAL = "dask-ml IncrementalPCA"


def tall_file(context: Context) -> DataFile:
    """20 GiB of rows, or what leaves 15 GiB of the disk free; also of `stream` and `gather`."""
    cols = min(COLS, max(128, context.side(COLS)))
    room = context.room_bytes - (LEFT_FREE_BYTES if context.scale >= 1 else GIB)
    rows = min(context.count(WANTED_BYTES // (4 * COLS)), room // (4 * cols)) // 1024 * 1024
    if rows < 1024:
        raise Skip(f"the disk has no room: {context.room_bytes >> 20} MiB are free")
    return DataFile(context.path(TALL_FILE), rows, cols, "low rank", seed=3)


def smaller_file(context: Context) -> DataFile:
    """Rows that fit in memory, where scikit-learn's fastest solver needs them."""
    cols = min(COLS, max(128, context.side(COLS)))
    rows = max(2048, context.count(HEADLINE_BYTES // (4 * COLS))) // 1024 * 1024
    return DataFile(context.path("rows.npy"), rows, cols, "low rank", seed=3)


def budget_of(context: Context, memory: int) -> int:
    return max(32 * MIB, int(memory * min(1.0, context.scale)))


def own_legs(context: Context, file: DataFile, memory: int) -> tuple[Leg, Leg]:
    """Ours, and the speed of the cores: the same of rows in memory, four GiB of the file at most."""
    ours: dict[str, Any] = {"a": file.path, "scratch": context.path("scratch")}
    rows = min(file.rows, 4 * GIB * file.rows // file.nbytes)
    told = {"components": COMPONENTS, "imports": ["outcore.decomposition"]}
    memory_leg = {**ours, **told, "memory": 8 * GIB, "rows": rows, "seconds": context.seconds(KERNEL_SECONDS)}
    return (
        Leg(
            OURS,
            "ours.pca",
            {**ours, **told, "memory": memory},
            cold=(file.path,),
            limited=True,
        ),
        Leg(f"{OURS}, rows in memory", "ours.pca_memory", memory_leg),
    )


def bound_of(file: DataFile, kernel: Leg, *, headline: bool = False) -> Bound:
    n, d = file.rows, file.cols
    return Bound(float(n) * d * (d + 1), float(file.nbytes), 0.0, kernel.name, None, "every row read once", headline=headline)


VARIANCE_NOTE = "Captured variance is measured on the same 8192 rows for all; explained_variance_ratio_ is what each says."


def pca(context: Context) -> Case:
    """Against what one would use where the rows fit in memory, and what one would write by hand where they do not."""
    file, memory = smaller_file(context), budget_of(context, 256 * MIB)
    ours, kernel = own_legs(context, file, memory)
    common: dict[str, Any] = {"a": file.path, "components": COMPONENTS}
    sklearn = Leg(SKLEARN_MEMORY, "with_sklearn.pca_memory", common, unset=steering())
    by_hand = Leg(
        BY_HAND,
        "with_numpy.pca",
        {**common, "block_bytes": max(4096, memory // 8)},
        cold=(file.path,),
        limited=True,
        unset=steering(),
        sweep=({"ahead": False}, {"ahead": True}),
    )
    return Case(
        "pca",
        f"PCA of {file.nbytes / GIB:.1f} GiB of f32 rows of {file.cols}, {COMPONENTS} components, budget {memory >> 20} MiB, "
        "process limited to 64 MiB more",
        "s",
        [ours, kernel, by_hand, sklearn, *limit_legs(context, "read", file=(file.path, file.nbytes // MIB * MIB))],
        [
            Comparison(OURS, (BY_HAND,), "NumPy, a covariance of blocks by hand, within the same limit", 1.0, headline=True),
            Comparison(
                OURS, (SKLEARN_MEMORY,), "scikit-learn covariance_eigh, all rows in memory, loading not timed", headline=True
            ),
        ],
        bound_of(file, kernel, headline=True),
        [file],
        limit_over_bytes=memory,
        notes=(
            "By hand: the sums and the product of each block of rows with itself, in blocks of an eighth of the budget, from a "
            "memory map or read ahead by a thread, whichever a sweep finds faster.",
            VARIANCE_NOTE,
            *steering_notes(),
        ),
        headline=f"PCA of {file.nbytes / GIB:.0f} GiB, {file.cols} features, {COMPONENTS} components, within {memory >> 20} MiB",
    )


def pca_tall(context: Context) -> Case:
    """Against the estimators of others that take rows batch by batch."""
    file, memory = tall_file(context), budget_of(context, 512 * MIB)
    ours, kernel = own_legs(context, file, memory)
    common: dict[str, Any] = {"a": file.path, "components": COMPONENTS}
    cold, one_thread = (file.path,), {"OPENBLAS_NUM_THREADS": "1"}
    dask: dict[str, Any] = {**common, "batch": DASK_BATCH}

    def with_dask(name: str, spec: dict[str, Any]) -> Leg:
        return Leg(name, "with_dask.pca", {**dask, **spec}, environment=one_thread, cold=cold, timeout_s=1800)

    return Case(
        "pca-tall",
        f"PCA of {file.nbytes / GIB:.1f} GiB of f32 rows of {file.cols}, {COMPONENTS} components, budget {memory >> 20} MiB",
        "s",
        [
            replace(ours, limited=False),
            kernel,
            Leg(SKLEARN, "with_sklearn.pca", {**common, "batch": BATCH}, cold=cold, timeout_s=1800),
            with_dask(DASK_TSQR, {"estimator": "PCA", "solver": "full"}),
            with_dask(DASK_INCREMENTAL, {"estimator": "IncrementalPCA"}),
            *limit_legs(context, "read", file=(file.path, file.nbytes // MIB * MIB)),
        ],
        [
            Comparison(OURS, (SKLEARN,), "scikit-learn IncrementalPCA on a memory map", 5.0),
            Comparison(OURS, (DASK_TSQR, DASK_INCREMENTAL), "dask-ml", 5.0),
        ],
        bound_of(file, kernel),
        [file],
        rounds=2,
        needs=("dask_ml",),
        notes=("The rivals run complete, over every row, with all the memory of the machine: no process limit.", VARIANCE_NOTE),
    )


def pca_uint8(context: Context) -> Case:
    """Images as they are stored, against the same values converted before."""
    rows = max(2048, context.count(IMAGE_BYTES // IMAGE_COLS)) // 1024 * 1024
    images = DataFile(context.path("images.npy"), rows, IMAGE_COLS, "patches", seed=3, dtype="uint8")
    floats = replace(images, path=context.path("images-float32.npy"), dtype="float32")
    check_room(context, images.nbytes + floats.nbytes)
    memory = budget_of(context, IMAGE_MEMORY)
    of_floats, _ = own_legs(context, floats, memory)
    of_images, kernel = own_legs(context, images, memory)
    return Case(
        "pca-uint8",
        f"PCA of {images.nbytes / GIB:.1f} GiB of uint8 rows of {IMAGE_COLS}, {COMPONENTS} components, budget {memory >> 20} "
        "MiB, process limited to 64 MiB more",
        "s",
        [
            replace(of_images, name=OURS_BYTES),
            replace(of_floats, name=OURS_FLOATS),
            kernel,
            *limit_legs(context, "read", file=(images.path, images.nbytes // MIB * MIB)),
        ],
        [Comparison(OURS_BYTES, (OURS_FLOATS,), "the same values as float32", 2.5)],
        bound_of(images, kernel),
        [images, floats],
        limit_over_bytes=memory,
        notes=(
            "Rows are images of 8 x 8 pixels and three colours; as float32 they are four times as many bytes. The bound is that "
            "of uint8.",
            VARIANCE_NOTE,
        ),
    )


BUILDERS: dict[str, Callable[[Context], Case]] = {"pca": pca, "pca-uint8": pca_uint8, "pca-tall": pca_tall}
