"""Spark MLlib on all cores of this machine, in one Java process."""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from legs import sparse
from legs.measure import inertia, nearest_labels, sampled, start_centers

ROWS_AT_ONCE = 1 << 14

Spec = dict[str, Any]
Result = dict[str, Any]


def nothing(spec: Spec) -> Result:
    return {"seconds": [0.0]}


def kmeans(spec: Spec) -> Result:
    """All rows in the memory of the Java process before the clock starts; nothing crosses to Python while it runs.

    `driver_memory`: heap of that process, "14g".
    """
    from pyspark.mllib.common import callJavaFunc, callMLlibFunc
    from pyspark.mllib.linalg import DenseVector

    path, count = os.path.abspath(spec["a"]), spec["clusters"]
    rows, start = len(np.load(path, mmap_mode="r")), start_centers(path, count)

    def vectors(first: int) -> Iterator[DenseVector]:
        x = np.load(path, mmap_mode="r")
        return map(DenseVector, np.asarray(x[first : first + ROWS_AT_ONCE], np.float64))

    with in_memory(spec, rows, vectors) as (context, x):
        made: list[Any] = []

        def call() -> None:
            centers = [DenseVector(center) for center in start.astype(np.float64)]
            train = (count, spec["rounds"], "random", 0, 2, 0.0, centers, "euclidean")
            made[:] = callJavaFunc(context, callMLlibFunc("trainKMeansModel", x, *train).clusterCenters)

        # What this process itself uses says nothing of the one that works.
        found = {"seconds": sampled(call)["seconds"]}
        centers = np.array([center.toArray() for center in made])
    return {**found, "rounds": spec["rounds"], "inertia": inertia(path, centers, nearest_labels(path, centers))}


def svds(spec: Spec) -> Result:
    """By ARPACK in the process of the driver, products by all cores, to our tolerance: the public method asks for 1e-10.

    Left vectors are made, and left where they are made; A v / s is what they are checked as.
    """
    from pyspark.mllib.common import _java2py, callMLlibFunc
    from pyspark.mllib.linalg import SparseVector

    from legs.spectra import accurate

    path = os.path.abspath(spec["a"])
    files, (rows, columns) = sparse.files(path), sparse.described(path)

    # Processes of Spark do not find the modules of legs.
    def vectors(first: int) -> Iterator[SparseVector]:
        indptr, indices, values = (np.load(file, mmap_mode="r") for file in files)
        ends = np.array(indptr[first : first + ROWS_AT_ONCE + 1])
        for start, stop in itertools.pairwise(ends):
            yield SparseVector(columns, np.array(indices[start:stop]), np.array(values[start:stop], np.float64))

    with in_memory(spec, rows, vectors) as (context, x):
        matrix = callMLlibFunc("createRowMatrix", x, rows, columns)
        made: list[Any] = []

        def call() -> None:
            iterations = max(300, 3 * spec["k"])
            found = matrix.computeSVD(spec["k"], True, 1e-9, iterations, spec["tol"], "auto")
            assert found.U().rows().count() == rows
            made[:] = [found]

        found = {"seconds": sampled(call)["seconds"]}
        values, right = (_java2py(context, part) for part in (made[0].s(), made[0].V()))
    return {**found, "residual": accurate({**spec, "a": path}, None, values.toArray(), right.toArray().T)}


@contextmanager
def in_memory(spec: Spec, rows: int, vectors: Callable[[int], Iterator[Any]]) -> Iterator[tuple[Any, Any]]:
    """A context of Spark, and its rows in the memory of the Java process, from what `vectors` makes of each `ROWS_AT_ONCE`."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    import pyspark
    from pyspark.mllib.common import _py2java

    settings = {"spark.driver.memory": spec["driver_memory"], "spark.ui.enabled": "false", "spark.log.level": "ERROR"}
    context: Any = pyspark.SparkContext(f"local[{os.cpu_count()}]", conf=pyspark.SparkConf().setAll(list(settings.items())))
    try:
        firsts = context.parallelize(range(0, rows, ROWS_AT_ONCE), 16 * (os.cpu_count() or 1))
        x = _py2java(context, firsts.flatMap(vectors))
        # The level at which MLlib itself keeps what it gets from Python.
        x.persist(context._jvm.org.apache.spark.storage.StorageLevel.MEMORY_AND_DISK())
        assert x.count() == rows
        assert all(kept.diskSize() == 0 for kept in context._jsc.sc().getRDDStorageInfo()), "not all rows are in memory"
        yield context, x
    finally:
        context.stop()
