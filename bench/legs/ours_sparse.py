"""outcore's sparse matrices, through the face that its users see."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import outcore as oc

from legs import sparse
from legs.measure import cold, sampled, timed
from legs.ours import configure, trace
from legs.ours import nothing as nothing

Spec = dict[str, Any]
Result = dict[str, Any]


def csrmm(spec: Spec) -> Result:
    """A folder times a file into a file."""
    configure(spec)
    out = Path(spec["out"])

    def before() -> None:
        out.unlink(missing_ok=True)
        cold([*sparse.files(spec["a"]), spec["b"]])

    call = lambda: oc.linalg.csrmm(oc.open(spec["a"]), oc.open(spec["b"]), out=str(out))  # noqa: E731
    found = {**sampled(call, seconds=spec.get("seconds", 0.0), before=before), "trace": trace()}
    c, b = (np.load(path, mmap_mode="r") for path in (out, spec["b"]))
    return {**found, "error": sparse.product_error(c, spec["a"], b)}


def csrmm_memory(spec: Spec) -> Result:
    """A SciPy matrix and a NumPy array to a new array."""
    configure(spec)
    a, b = sparse.load(spec["a"]), np.load(spec["b"])
    made: list[Any] = []

    def call() -> None:
        made.clear()
        made.append(oc.linalg.csrmm(a, b))

    return {**timed(call, spec), "error": sparse.product_error(made[0], spec["a"], b)}


def csrmm_kernel(spec: Spec) -> Result:
    """The kernel's speed: the first `rows` rows, into an array whose pages are there."""
    configure(spec)
    a, b = sparse.load(spec["a"], spec["rows"]), np.load(spec["b"])
    c = np.empty((a.shape[0], b.shape[1]), b.dtype)
    c.fill(0)
    return {**timed(lambda: oc.linalg.csrmm(a, b, out=c), spec), "work": 2.0 * a.nnz * b.shape[1]}


def gram(spec: Spec) -> Result:
    """A^T (A X) of a folder and a file into a file."""
    configure(spec)
    out = Path(spec["out"])

    def before() -> None:
        out.unlink(missing_ok=True)
        cold([*sparse.files(spec["a"]), spec["b"]])

    call = lambda: oc.linalg.gram_product(oc.open(spec["a"]), oc.open(spec["b"]), out=str(out))  # noqa: E731
    found = {**sampled(call, before=before), "trace": trace()}
    y, x = (np.load(path, mmap_mode="r") for path in (out, spec["b"]))
    return {**found, "error": sparse.gram_error(y, spec["a"], x)}


def gram_memory(spec: Spec) -> Result:
    """The same kernel on a SciPy matrix and a NumPy array."""
    configure(spec)
    a, x = sparse.load(spec["a"]), np.load(spec["b"])
    made: list[Any] = []

    def call() -> None:
        made[:] = [oc.linalg.gram_product(a, x)]

    found = timed(call, spec)
    return {**found, "work": 4.0 * a.nnz * x.shape[1], "error": sparse.gram_error(made[0].numpy(), spec["a"], x)}


def csrcsc(spec: Spec) -> Result:
    """A folder in the other format, a new folder."""
    configure(spec)
    out = spec["out"]

    def before() -> None:
        shutil.rmtree(out, ignore_errors=True)
        cold(sparse.files(spec["a"]))

    found = {**sampled(lambda: oc.linalg.csrcsc(oc.open(spec["a"]), out), before=before), "trace": trace()}
    return {**found, "error": sparse.turned_error(sparse.mapped(out), spec["a"])}


def libsvm(spec: Spec) -> Result:
    """Text into a folder."""
    configure(spec)
    out = spec["out"]

    def before() -> None:
        shutil.rmtree(out, ignore_errors=True)
        cold([spec["source"]])

    found = {**sampled(lambda: oc.import_libsvm(out, spec["source"]), before=before), "trace": trace()}
    with oc.open(out) as a:
        row_of = lambda a, row: a.slice(row, row + 1).scipy()  # noqa: E731
        error = sparse.text_error(a, spec["source"], spec["rows"], spec["nonzeros"], row_of)
        return {**found, "tiled": a.is_tiled, "error": error}


def neighbors(spec: Spec) -> Result:
    """Rows and queries on SSD, the result in memory."""
    from outcore.neighbors import NearestNeighbors

    configure(spec)
    rows, queries, found = oc.open(spec["a"]), oc.open(spec["queries"]), []

    def call() -> None:
        found[:] = [NearestNeighbors(n_neighbors=spec["k"]).fit(rows).kneighbors(queries, return_distance=False)]

    before = lambda: cold([*sparse.files(spec["a"]), *sparse.files(spec["queries"])])  # noqa: E731
    told = {**sampled(call, before=before), "trace": trace()}
    return {**told, "recall": sparse.recall(spec, found[0])}
