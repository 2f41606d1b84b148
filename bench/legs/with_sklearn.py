"""scikit-learn: PCA in memory and over a memory map, KMeans in memory, and its reader of LIBSVM text, on one core and on all."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import time
from concurrent.futures import ProcessPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from sklearn.cluster import KMeans
from sklearn.decomposition import PCA, IncrementalPCA
from sklearn.neighbors import NearestNeighbors

from legs import sparse
from legs.measure import captured_variance, cold, inertia, recall, sampled, start_centers
from legs.sparse import text_error

Spec = dict[str, Any]
Result = dict[str, Any]


def nothing(spec: Spec) -> Result:
    return {"seconds": [0.0]}


def pca(spec: Spec) -> Result:
    """Batch by batch, because `fit` copies the whole map into memory first."""
    model = IncrementalPCA(n_components=spec["components"], batch_size=spec["batch"])

    def call() -> None:
        x = np.load(spec["a"], mmap_mode="r")
        for start in batches(len(x), spec["batch"], spec["components"]):
            model.partial_fit(x[start], check_input=True)

    found = sampled(call, before=lambda: cold([spec["a"]]))
    return {
        **found,
        "explained_variance_ratio": float(np.sum(model.explained_variance_ratio_)),
        "captured_variance": captured_variance(spec["a"], model.components_, model.mean_),
    }


def pca_memory(spec: Spec) -> Result:
    """scikit-learn's fastest solver for tall rows, all of them in memory; the time to load them is not counted."""
    x = np.load(spec["a"])
    model = PCA(n_components=spec["components"], svd_solver="covariance_eigh", copy=False)
    found = sampled(lambda: model.fit(x))
    return {
        **found,
        "explained_variance_ratio": float(np.sum(model.explained_variance_ratio_)),
        "captured_variance": captured_variance(spec["a"], model.components_, model.mean_),
    }


def neighbors(spec: Spec) -> Result:
    """The time to load the rows is not counted."""
    x, q, found = np.load(spec["a"]), np.load(spec["queries"]), []
    model = NearestNeighbors(n_neighbors=spec["k"], algorithm="brute").fit(x)

    def call() -> None:
        found[:] = [model.kneighbors(q, return_distance=False)]

    return {**sampled(call), "recall": recall(spec["a"], q, found[0])}


def sparse_neighbors(spec: Spec) -> Result:
    """Of the first `count` queries, their time scaled to all; the time to load the rows is not counted."""
    x, q, found = sparse.load(spec["a"]), sparse.load(spec["queries"], spec["count"]), []
    model = NearestNeighbors(n_neighbors=spec["k"], algorithm="brute").fit(x)

    def call() -> None:
        found[:] = [model.kneighbors(q, return_distance=False)]

    told = sampled(call)
    seconds = [each * spec["scaled"] for each in told["seconds"]]
    cpu = told["cpu_seconds"] * spec["scaled"]
    return {**told, "seconds": seconds, "cpu_seconds": cpu, "recall": sparse.recall(spec, found[0])}


def load_svmlight(spec: Spec) -> Result:
    """Into memory, with all that it wants of it."""
    from sklearn.datasets import load_svmlight_file

    made: list[Any] = []

    def call() -> None:
        made[:] = load_svmlight_file(spec["source"], n_features=spec["columns"], dtype=np.float32, zero_based=False)

    found = sampled(call, before=lambda: cold([spec["source"]]))
    return {**found, "error": text_error(made[0], spec["source"], spec["rows"], spec["nonzeros"])}


def load_svmlight_parts(spec: Spec) -> Result:
    """A process a core, each with a range of bytes, which are cut at line ends; a part of the matrix a process, in its files."""
    out, size = Path(spec["out"]), Path(spec["source"]).stat().st_size
    count = os.cpu_count() or 1
    bounds = [size * number // count for number in range(count + 1)]
    # A length of -1 reads to the end; the line that a range ends in belongs to it.
    ranges = [(start, stop - start if stop < size else -1) for start, stop in pairwise(bounds)]
    with ProcessPoolExecutor(count, mp_context=multiprocessing.get_context("spawn")) as pool:
        list(pool.map(warm, range(count)))

        def call() -> None:
            tasks = [pool.submit(load_range, spec, where, str(out / f"{n}")) for n, where in enumerate(ranges)]
            for task in tasks:
                task.result()

        def before() -> None:
            shutil.rmtree(out, ignore_errors=True)
            out.mkdir(parents=True)
            cold([spec["source"]])

        found = sampled(call, before=before)
    parts = [saved(str(out / f"{n}"), spec["columns"]) for n in range(count)]
    whole = sp.vstack(parts, format="csr")
    return {"seconds": found["seconds"], "error": text_error(whole, spec["source"], spec["rows"], spec["nonzeros"])}


PARTS = ("data", "indices", "indptr")


def warm(_: int) -> None:
    """Imports, off the clock. It lasts a while, so that every process of a pool gets one."""
    from sklearn.datasets import load_svmlight_file

    assert load_svmlight_file
    time.sleep(1)


def load_range(spec: Spec, where: tuple[int, int], out: str) -> None:
    from sklearn.datasets import load_svmlight_file

    offset, length = where
    options = {"n_features": spec["columns"], "dtype": np.float32, "zero_based": False}
    x, y = load_svmlight_file(spec["source"], offset=offset, length=length, **options)
    np.save(f"{out}.labels.npy", y)
    for part in PARTS:
        np.save(f"{out}.{part}.npy", getattr(x, part))


def saved(out: str, columns: int) -> Any:
    data, indices, indptr = (np.load(f"{out}.{part}.npy", mmap_mode="r") for part in PARTS)
    return sp.csr_matrix((data, indices, indptr), shape=(len(indptr) - 1, columns))


def kmeans(spec: Spec) -> Result:
    """All rows in memory; the time to load them is not counted."""
    x, start = np.load(spec["a"]), start_centers(spec["a"], spec["clusters"])
    model = KMeans(spec["clusters"], init=start, n_init=1, max_iter=spec["rounds"], tol=0, algorithm="lloyd", copy_x=False)
    found = sampled(lambda: model.fit(x))
    return {**found, "rounds": model.n_iter_, "inertia": inertia(spec["a"], model.cluster_centers_, model.labels_)}


def batches(rows: int, batch: int, components: int) -> list[slice]:
    """A last batch smaller than the number of components joins the one before: the estimator refuses it."""
    starts = list(range(0, rows, batch))
    if len(starts) > 1 and rows - starts[-1] < components:
        starts.pop()
    return [slice(start, stop) for start, stop in zip(starts, [*starts[1:], rows], strict=True)]
