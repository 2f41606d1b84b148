"""k-means of rows that are larger than the budget, on three kinds of data."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from typing import Any

from harness.model import GIB, MIB, Bound, Case, Comparison, Context, DataFile, Leg

ROWS = 8_000_000
COLS = 64
CLUSTERS = 100
ROUNDS = 10
PASSES = ROUNDS + 1
"""scikit-learn and we label the rows once more when the last round has moved the centres."""
BUDGET = 256 * MIB
SMALLEST_BUDGET = 24 * MIB
"""For the sums of all threads and some blocks."""
KINDS = {"noise": "normal", "clouds": "clouds", "images": "images"}

OURS = "outcore KMeans"
DEVICE = "reading the file once a pass"
SKLEARN = "scikit-learn KMeans in memory"
DASK = "dask-ml KMeans"
SPARK = "Spark MLlib KMeans in memory"
SPARK_MEMORY = "14g"
"""Heap of its process: rows of 8 M x 64 doubles with all that Java puts around them take 5."""


def kmeans(context: Context, name: str) -> Case:
    rows = max(20_000, context.count(ROWS))
    file = DataFile(context.path(f"kmeans-{name}.npy"), rows, COLS, KINDS[name], seed=4)  # type: ignore[arg-type]
    memory = max(SMALLEST_BUDGET, int(BUDGET * min(1.0, context.scale)))
    common: dict[str, Any] = {"a": file.path, "clusters": CLUSTERS, "rounds": ROUNDS}
    session: dict[str, Any] = {"memory": memory, "scratch": context.path("scratch")}
    cold = (file.path,)
    legs = [
        Leg(OURS, "ours.kmeans", {**common, **session}, cold=cold),
        Leg(DEVICE, "ours.passes", {**session, "memory": BUDGET, "a": file.path, "passes": PASSES}, cold=cold),
        Leg(SKLEARN, "with_sklearn.kmeans", common, cold=cold, timeout_s=1800),
        Leg(DASK, "with_dask.kmeans", common, cold=cold, timeout_s=3600, environment={"OPENBLAS_NUM_THREADS": "1"}),
    ]
    spark = Leg(SPARK, "with_spark.kmeans", {**common, "driver_memory": SPARK_MEMORY}, timeout_s=3600)
    has_spark = shutil.which("java") is not None and find_spec("pyspark") is not None
    target = 0.9 if name == "noise" else 1.3
    return Case(
        f"kmeans-{name}",
        f"k-means of {file.nbytes / GIB:.1f} GiB of f32 rows of {COLS} ({name}), k = {CLUSTERS}, {ROUNDS} rounds from the same "
        f"centres, budget {memory >> 20} MiB",
        "s",
        [*legs, *([spark] if has_spark else [])],
        [
            Comparison(
                OURS, (DEVICE, SKLEARN), "the lower limit: the device's, or scikit-learn's in memory", target, slowest=True
            ),
            Comparison(OURS, (DEVICE,), "reading the file once a pass at the device's speed"),
            Comparison(OURS, (SKLEARN,), "scikit-learn with all rows in memory, not counting the time to load them"),
            Comparison(OURS, (DASK,), "dask-ml", 5.0),
            *([Comparison(OURS, (SPARK,), "Spark MLlib with all rows in memory", 5.0)] if has_spark else []),
        ],
        Bound(2.0 * PASSES * rows * COLS * CLUSTERS, float(file.nbytes), note="every row read once"),
        [file],
        rounds=2,
        notes=(
            "inertia is computed in f64 from centres and labels, for everyone alike: scikit-learn's own sum in float32 keeps "
            "three digits of so many rows.",
            *(() if has_spark else ("Left out: Spark, for Java or pyspark is not installed.",)),
        ),
    )


BUILDERS: dict[str, Callable[[Context], Case]] = {f"kmeans-{name}": partial(kmeans, name=name) for name in KINDS}
