"""Spark MLlib on all cores of this machine, in one Java process."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np

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
    os.environ["PYSPARK_PYTHON"] = sys.executable
    import pyspark
    from pyspark.mllib.common import _py2java, callJavaFunc, callMLlibFunc
    from pyspark.mllib.linalg import DenseVector

    path, count = os.path.abspath(spec["a"]), spec["clusters"]
    rows, start = len(np.load(path, mmap_mode="r")), start_centers(path, count)

    def vectors(first: int) -> Iterator[DenseVector]:
        x = np.load(path, mmap_mode="r")
        return map(DenseVector, np.asarray(x[first : first + ROWS_AT_ONCE], np.float64))

    settings = {"spark.driver.memory": spec["driver_memory"], "spark.ui.enabled": "false", "spark.log.level": "ERROR"}
    context: Any = pyspark.SparkContext(f"local[{os.cpu_count()}]", conf=pyspark.SparkConf().setAll(list(settings.items())))
    try:
        firsts = context.parallelize(range(0, rows, ROWS_AT_ONCE), 16 * (os.cpu_count() or 1))
        x = _py2java(context, firsts.flatMap(vectors))
        # The level at which MLlib itself keeps what it gets from Python.
        x.persist(context._jvm.org.apache.spark.storage.StorageLevel.MEMORY_AND_DISK())
        assert x.count() == rows
        assert all(kept.diskSize() == 0 for kept in context._jsc.sc().getRDDStorageInfo()), "not all rows are in memory"
        made: list[Any] = []

        def call() -> None:
            centers = [DenseVector(center) for center in start.astype(np.float64)]
            train = (count, spec["rounds"], "random", 0, 2, 0.0, centers, "euclidean")
            made[:] = callJavaFunc(context, callMLlibFunc("trainKMeansModel", x, *train).clusterCenters)

        # What this process itself uses says nothing of the one that works.
        found = {"seconds": sampled(call)["seconds"]}
        centers = np.array([center.toArray() for center in made])
    finally:
        context.stop()
    return {**found, "rounds": spec["rounds"], "inertia": inertia(path, centers, nearest_labels(path, centers))}
