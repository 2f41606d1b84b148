"""scikit-learn: IncrementalPCA over a memory map, KMeans in memory, and its reader of LIBSVM text."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.cluster import KMeans
from sklearn.decomposition import IncrementalPCA

from legs.measure import captured_variance, cold, inertia, sampled, start_centers
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


def load_svmlight(spec: Spec) -> Result:
    """Into memory, with all that it wants of it."""
    from sklearn.datasets import load_svmlight_file

    made: list[Any] = []

    def call() -> None:
        made[:] = load_svmlight_file(spec["source"], n_features=spec["columns"], dtype=np.float32, zero_based=False)

    found = sampled(call, before=lambda: cold([spec["source"]]))
    return {**found, "error": text_error(made[0], spec["source"], spec["rows"], spec["nonzeros"])}


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
