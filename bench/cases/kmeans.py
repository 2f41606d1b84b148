"""k-means of rows that are larger than the budget, on three kinds of data."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from cases.limits import limit_legs
from harness.model import GIB, MIB, Bound, Case, Comparison, Context, DataFile, Leg

ROWS = 8_000_000
COLS = 64
CLUSTERS = 100
ROUNDS = 10
PASSES = ROUNDS + 1
"""scikit-learn and we label the rows once more when the last round has moved the centres."""
BUDGET = 256 * MIB
FITS_ROWS = 1_000_000
FITS_BUDGET = 4 * GIB
SMALLEST_BUDGET = 24 * MIB
"""For the sums of all threads and some blocks."""
HEADLINE_KIND = "clouds"
KINDS = {"noise": "normal", "clouds": "clouds", "images": "images"}

OURS = "outcore KMeans"
DEVICE = "reading the file once a pass"
SKLEARN = "scikit-learn KMeans in memory"
DASK = "dask-ml KMeans"
SPARK = "Spark MLlib KMeans in memory"
SPARK_MEMORY = "14g"
"""Heap of its process: rows of 8 M x 64 doubles with all that Java puts around them take 5."""


def rows_of(context: Context, name: str) -> DataFile:
    rows = max(20_000, context.count(ROWS))
    return DataFile(context.path(f"kmeans-{name}.npy"), rows, COLS, KINDS[name], seed=4)  # type: ignore[arg-type]


def work_on(file: DataFile) -> dict[str, Any]:
    return {"a": file.path, "clusters": CLUSTERS, "rounds": ROUNDS}


def session_of(context: Context) -> dict[str, Any]:
    memory = max(SMALLEST_BUDGET, int(BUDGET * min(1.0, context.scale)))
    return {"memory": memory, "scratch": context.path("scratch")}


def described(file: DataFile, name: str, memory: int) -> str:
    return (
        f"k-means of {file.nbytes / GIB:.1f} GiB of f32 rows of {COLS} ({name}), k = {CLUSTERS}, {ROUNDS} rounds from the same "
        f"centres, budget {memory >> 20} MiB"
    )


def bound(file: DataFile) -> Bound:
    return Bound(2.0 * PASSES * file.rows * COLS * CLUSTERS, float(file.nbytes), note="every row read once")


def kmeans(context: Context, name: str) -> Case:
    file, session = rows_of(context, name), session_of(context)
    common, cold = work_on(file), (file.path,)
    target = 0.9 if name == "noise" else 1.3
    return Case(
        f"kmeans-{name}",
        described(file, name, session["memory"]),
        "s",
        [
            Leg(OURS, "ours.kmeans", {**common, **session}, cold=cold),
            Leg(DEVICE, "ours.passes", {**session, "memory": BUDGET, "a": file.path, "passes": PASSES}, cold=cold),
            Leg(SKLEARN, "with_sklearn.kmeans", common, cold=cold, timeout_s=1800),
            *limit_legs(context, "read", file=(file.path, file.nbytes // MIB * MIB)),
        ],
        [
            Comparison(
                OURS, (DEVICE, SKLEARN), "the slower: a read of the file a pass, or scikit-learn in memory", target, slowest=True
            ),
            Comparison(OURS, (DEVICE,), "reading the file once a pass by our own stream"),
            Comparison(OURS, (SKLEARN,), "scikit-learn, all rows in memory, loading not timed", headline=name == HEADLINE_KIND),
        ],
        bound(file),
        [file],
        notes=(
            "Inertia is computed in f64 from centres and labels, alike for all: scikit-learn's own sum in float32 keeps three "
            "digits of eight million rows.",
        ),
        headline=(
            f"k-means of {file.rows / 1e6:.0f} M rows of {COLS}, k = {CLUSTERS}, {ROUNDS} rounds, "
            f"within {session['memory'] >> 20} MiB"
            if name == HEADLINE_KIND
            else ""
        ),
    )


def with_dask(context: Context, name: str) -> Case:
    """Apart, for it is installed by few."""
    file, session = rows_of(context, name), session_of(context)
    common, cold = work_on(file), (file.path,)
    return Case(
        f"dask-{name}",
        described(file, name, session["memory"]),
        "s",
        [
            Leg(OURS, "ours.kmeans", {**common, **session}, cold=cold),
            Leg(DASK, "with_dask.kmeans", common, cold=cold, timeout_s=3600, environment={"OPENBLAS_NUM_THREADS": "1"}),
        ],
        [Comparison(OURS, (DASK,), "dask-ml", 5.0)],
        bound(file),
        [file],
        needs=("dask_ml",),
    )


def fits_memory(context: Context) -> Case:
    """Rows in the caller's memory, for both."""
    file = DataFile(context.path("kmeans-fits.npy"), max(20_000, context.count(FITS_ROWS)), COLS, "clouds", seed=4)
    common = work_on(file)
    return Case(
        "kmeans-fits",
        f"k-means of {file.nbytes / MIB:.0f} MiB of f32 rows of {COLS} (clouds), k = {CLUSTERS}, {ROUNDS} rounds from the same "
        "centres, NumPy in, NumPy out",
        "s",
        [
            Leg(OURS, "ours.kmeans", {**common, **session_of(context), "memory": FITS_BUDGET, "in_memory": True}),
            Leg(SKLEARN, "with_sklearn.kmeans", common),
        ],
        [Comparison(OURS, (SKLEARN,), "scikit-learn", 1.0)],
        bound(file),
        [file],
    )


def with_spark(context: Context, name: str) -> Case:
    """Apart, for to bring the rows into the memory of Java takes minutes."""
    file, session = rows_of(context, name), session_of(context)
    common = work_on(file)
    return Case(
        f"spark-{name}",
        described(file, name, session["memory"]),
        "s",
        [
            Leg(OURS, "ours.kmeans", {**common, **session}, cold=(file.path,)),
            Leg(SPARK, "with_spark.kmeans", {**common, "driver_memory": SPARK_MEMORY}, timeout_s=3600),
        ],
        [Comparison(OURS, (SPARK,), "Spark MLlib with all rows in memory, not counting the time to load them", 5.0)],
        bound(file),
        [file],
        rounds=1,
        needs=("spark",),
    )


BUILDERS: dict[str, Callable[[Context], Case]] = {
    **{f"kmeans-{name}": partial(kmeans, name=name) for name in KINDS},
    "kmeans-fits": fits_memory,
    **{f"dask-{name}": partial(with_dask, name=name) for name in KINDS},
    **{f"spark-{name}": partial(with_spark, name=name) for name in KINDS},
}
