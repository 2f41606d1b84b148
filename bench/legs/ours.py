"""outcore, through the face that its users see."""

from __future__ import annotations

import importlib
import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import outcore as oc

from legs.measure import (
    Array,
    captured_variance,
    cold,
    component_error,
    inertia,
    product_error,
    recall,
    sampled,
    start_centers,
    timed,
)
from legs.rows import rows_error, seed_of, timed_rows

Spec = dict[str, Any]
Result = dict[str, Any]


def nothing(spec: Spec) -> Result:
    for module in spec.get("imports", ()):
        importlib.import_module(module)
    return {"seconds": [0.0]}


def configure(spec: Spec) -> None:
    options = {key: spec[key] for key in ("memory", "scratch", "threads", "blas") if spec.get(key) is not None}
    if "scratch" in options:
        Path(options["scratch"]).mkdir(parents=True, exist_ok=True)
    oc.configure(**options)


def gemm(spec: Spec) -> Result:
    """A file times a file into a file. `syrk`: A A^T, both triangles, by the symmetric routine; `by_itself`: by gemm."""
    configure(spec)
    out = Path(spec["out"])

    def call() -> None:
        a = oc.open(spec["a"])
        if spec.get("syrk"):
            oc.linalg.syrk(a, out=str(out))
        else:
            oc.linalg.gemm(a, a.T if spec.get("by_itself") else oc.open(spec["b"]), out=str(out))

    def before() -> None:
        out.unlink(missing_ok=True)
        cold([spec["a"], spec["b"]])

    found = {**sampled(call, seconds=spec.get("seconds", 0.0), before=before), "trace": trace()}
    a = np.load(spec["a"], mmap_mode="r")
    right = a.T if spec.get("syrk") or spec.get("by_itself") else np.load(spec["b"], mmap_mode="r")
    c = np.load(out, mmap_mode="r")
    return {**found, "error": product_error(c, a, right)}


def gemm_memory(spec: Spec) -> Result:
    """The same kernel with everything in memory: NumPy arrays in and out. `cols`: a number of columns of B instead of all."""
    configure(spec)
    a, b = np.load(spec["a"]), np.load(spec["b"], mmap_mode="r")
    b = np.array(b[:, : spec.get("cols")])
    c = np.zeros((a.shape[0], b.shape[1]), a.dtype)
    found = timed(lambda: oc.linalg.gemm(a, b, out=c), spec)
    return {**found, "work": 2.0 * a.size * b.shape[1], "error": product_error(c, a, b)}


def pca_memory(spec: Spec) -> Result:
    """The same of rows in memory."""
    from outcore.decomposition import PCA

    configure(spec)
    x = np.ascontiguousarray(np.load(spec["a"], mmap_mode="r")[: spec["rows"]])
    flops = float(x.shape[0]) * x.shape[1] * (x.shape[1] + 1)
    model = PCA(n_components=spec["components"], random_state=0)
    return {**timed(lambda: model.fit(x), spec), "work": flops}


def pca(spec: Spec) -> Result:
    from outcore.decomposition import PCA

    configure(spec)
    models: list[Any] = []

    def call() -> None:
        models[:] = [PCA(n_components=spec["components"], random_state=0).fit(oc.open(spec["a"]))]

    found = {**sampled(call, before=lambda: cold([spec["a"]])), "trace": trace()}
    (model,) = models
    return {
        **found,
        "explained_variance_ratio": float(np.sum(model.explained_variance_ratio_)),
        "captured_variance": captured_variance(spec["a"], model.components_, model.mean_),
        "error": component_error(spec["a"], model.components_, model.mean_, model.explained_variance_),
    }


def kmeans(spec: Spec) -> Result:
    """`in_memory`: the rows are a NumPy array, and the time to load them is not counted."""
    from outcore.cluster import KMeans

    configure(spec)
    start, models = start_centers(spec["a"], spec["clusters"]), []
    x = np.load(spec["a"]) if spec.get("in_memory") else oc.open(spec["a"])

    def call() -> None:
        model = KMeans(spec["clusters"], init=start, max_iter=spec["rounds"], tol=0)
        models[:] = [model.fit(x)]

    found = {**sampled(call, before=lambda: cold([spec["a"]])), "trace": trace()}
    (model,) = models
    size = oc.open(spec["a"]).nbytes * (model.n_iter_ + 1)
    return {
        **found,
        "rounds": model.n_iter_,
        "rows_compared": model.compared_,
        "bytes_not_read": 1 - found["trace"]["actual"]["bytes_read"] / size,
        "inertia": inertia(spec["a"], model.cluster_centers_, model.labels_),
    }


def neighbors(spec: Spec) -> Result:
    """Rows and queries on SSD, or `in_memory`; the result in memory."""
    from outcore.neighbors import NearestNeighbors

    configure(spec)
    found: list[Any] = []
    rows, queries = (np.load(spec[name]) if spec.get("in_memory") else oc.open(spec[name]) for name in ("a", "queries"))

    def call() -> None:
        found[:] = [NearestNeighbors(spec["k"]).fit(rows).kneighbors(queries, return_distance=False)]

    told = {**sampled(call, before=lambda: cold([spec["a"], spec["queries"]])), "trace": trace()}
    return {**told, "recall": recall(spec["a"], queries[: len(found[0])], found[0])}


def neighbors_by_clusters(spec: Spec) -> Result:
    """The neighbours of the rows themselves, on SSD too: what was read and computed, the order of rows counted, as a share of
    what a search that leaves nothing out would.
    """
    from outcore.neighbors import NearestNeighbors

    configure(spec)
    rows, out = oc.open(spec["a"]), [Path(spec["out"]) / name for name in ("distances.npy", "rows.npy")]
    Path(spec["out"]).mkdir(parents=True, exist_ok=True)
    fitted = NearestNeighbors(spec["k"], algorithm="clusters").fit(rows)
    told = {**sampled(lambda: fitted.kneighbors(out=(out[0], out[1])), before=lambda: cold([spec["a"]])), "trace": trace()}
    plan, last = NearestNeighbors(spec["k"]).fit(rows).explain(None), oc.last_trace()
    flops = sum(part["flops"] for part in json.loads(plan.json()))
    shares = {"computed": last.flops / flops, "read": last.actual["bytes_read"] / plan.bytes_read}
    # A row is the nearest to itself, and left out of its list.
    found = np.column_stack([np.arange(200), np.load(out[1], mmap_mode="r")[:200]])
    return {**told, **shares, "recall": recall(spec["a"], rows[:200], found)}


def rows(spec: Spec) -> Result:
    """Random rows as a NumPy array."""
    configure(spec)

    def take(numbers: Array) -> Array:
        return oc.open(spec["a"])[numbers]

    return timed_rows(spec, take, [])


def split(spec: Spec) -> Result:
    """All rows in random order as two files: `share` of them in one, the others in the other."""
    configure(spec)
    seed, x, folder = seed_of(spec), np.load(spec["a"], mmap_mode="r"), Path(spec["out"])
    order = np.random.default_rng(seed).permutation(len(x))
    cut = round(len(x) * spec["share"])
    parts = {folder / "train.npy": order[:cut], folder / "test.npy": order[cut:]}

    def call() -> None:
        source = oc.open(spec["a"])
        for path, numbers in parts.items():
            source.take(numbers, out=path)

    def before() -> None:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        cold([spec["a"]])

    found = {**sampled(call, before=before), "trace": trace(), "seed": str(seed)}
    return {**found, "error": max(rows_error(np.load(path, mmap_mode="r"), numbers, x) for path, numbers in parts.items())}


def passes(spec: Spec) -> Result:
    """The device's own speed at the bytes of some passes over a file."""
    from outcore import _native

    configure(spec)
    session = oc.Session(spec["memory"], spec["scratch"])

    def call() -> None:
        for _ in range(spec["passes"]):
            _native.device_read(session._inner, spec["a"])

    return sampled(call, before=lambda: cold([spec["a"]]))


def trace() -> Any:
    """The last run's own account, without its timeline."""
    last = oc.last_trace()
    if last is None:
        return None
    told = json.dumps({key: value for key, value in last.to_dict().items() if key != "spans"})
    # Objects are named by their whole path; what is kept names no folder of this machine.
    return json.loads(told.replace(f"{os.getcwd()}{os.sep}", ""))
