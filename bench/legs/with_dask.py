"""dask.array and dask-ml, on their threaded scheduler, a BLAS thread a worker as their documentation advises."""

from __future__ import annotations

import os
from typing import Any

import dask
import dask.array
import numpy as np

from legs.measure import captured_variance, cold, inertia, product_error, sampled, start_centers

da: Any = dask.array
KMEANS_ROWS = 1 << 17
"""Rows of a chunk: 32 MiB, of which the distances to a hundred centres take 50."""

Spec = dict[str, Any]
Result = dict[str, Any]


def nothing(spec: Spec) -> Result:
    return {"seconds": [0.0]}


def gemm(spec: Spec) -> Result:
    def call() -> None:
        a, b = (da.from_array(np.load(spec[key], mmap_mode="r"), chunks=spec["chunk"]) for key in ("a", "b"))
        c = np.lib.format.open_memmap(spec["out"], mode="w+", dtype=np.float32, shape=(a.shape[0], b.shape[1]))
        with threads():
            da.store(da.matmul(a, b), c)
        c.flush()

    found = sampled(call)
    return {**found, "error": product_error(*(np.load(spec[key], mmap_mode="r") for key in ("out", "a", "b")))}


def pca(spec: Spec) -> Result:
    """`estimator`: PCA (its solver for tall matrices, which needs all rows in memory at once) or IncrementalPCA."""
    from dask_ml.decomposition import PCA, IncrementalPCA

    if spec["estimator"] == "PCA":
        model = PCA(n_components=spec["components"], svd_solver=spec["solver"], random_state=0)
    else:
        model = IncrementalPCA(n_components=spec["components"], batch_size=spec["batch"])

    def call() -> None:
        x = da.from_array(np.load(spec["a"], mmap_mode="r"), chunks=(spec["batch"], -1))
        with threads():
            model.fit(x)

    found = sampled(call, before=lambda: cold([spec["a"]]))
    return {
        **found,
        "explained_variance_ratio": float(np.sum(model.explained_variance_ratio_)),
        "captured_variance": captured_variance(spec["a"], model.components_, model.mean_),
    }


def kmeans(spec: Spec) -> Result:
    from dask_ml.cluster import KMeans

    start = start_centers(spec["a"], spec["clusters"])
    model = KMeans(spec["clusters"], init=start, max_iter=spec["rounds"], tol=0, random_state=0)

    def call() -> None:
        x = da.from_array(np.load(spec["a"], mmap_mode="r"), chunks=(KMEANS_ROWS, -1))
        with threads():
            model.fit(x)

    found = sampled(call, before=lambda: cold([spec["a"]]))
    labels = np.asarray(model.labels_)
    return {**found, "rounds": int(model.n_iter_), "inertia": inertia(spec["a"], np.asarray(model.cluster_centers_), labels)}


def threads() -> Any:
    return dask.config.set(scheduler="threads", num_workers=os.cpu_count())
