"""Singular triplets: outcore's and those of others, held to one residual.

What a rival reads is in memory before the clock starts. Options of rivals that decide on accuracy are tried before the rounds: a
search whose residuals are larger than they may be has failed, so that the fastest of those that reach them is measured.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from legs import sparse
from legs.measure import Array, sampled

Spec = dict[str, Any]
Result = dict[str, Any]

COLUMNS_AT_ONCE, ROWS_AT_ONCE = 8, 2000
"""Of what is checked: it stays below 20 MB for 80,000 words, beside memory that the search has not given back."""


def nothing(spec: Spec) -> Result:
    from legs.ours import nothing

    importlib.import_module("outcore.linalg")
    return nothing(spec)


def ours(spec: Spec) -> Result:
    """The matrix in tiles, as imports keep it; `in_memory`: it is SciPy's. Neither tiling nor loading is counted."""
    import outcore as oc

    from legs.ours import configure, trace

    configure(spec)
    x: Any = sparse.load(spec["a"]) if spec.get("in_memory") else oc.open(spec["a"])
    tiled = None if spec.get("in_memory") else x.tiled()
    x = x if tiled is None else tiled
    found: list[Any] = []

    def call() -> None:
        found[:] = [oc.linalg.svds(x, spec["k"], tol=spec["tol"])]

    told = {**sampled(call), "trace": trace()}
    (result,) = found
    facts = {name: getattr(result, name) for name in ("passes", "restarts", "block", "basis_in_memory")}
    return {**told, **facts, "bytes_of_plan": bytes_of_plan(told["trace"]), "residual": accurate(spec, *result)}


def bytes_of_plan(trace: Any) -> float | None:
    """What was read, from the device or from memory that still had it, by what the plans of all passes had said."""
    said = trace["predicted"]["bytes_read"]
    return (trace["actual"]["bytes_read"] + trace["bytes_reused"]) / said if said else None


def beside_lapack(spec: Spec) -> Result:
    """Of the first rows, by the tolerance: residuals, distances of values from LAPACK's, and vectors off orthonormal."""
    import outcore as oc

    from legs.ours import configure

    configure(spec)
    a = sparse.load(spec["a"], spec["rows"])
    found: list[Any] = []

    def call() -> None:
        found[:] = [oc.linalg.svds(a, spec["k"], tol=spec["tol"])]

    told = sampled(call)
    (result,) = found
    left, values, right = (np.asarray(part, np.float64) for part in result)
    wide = a.astype(np.float64)
    exact = np.sqrt(np.linalg.eigvalsh((wide @ wide.T).toarray())[-spec["k"] :].clip(0))
    residual = max(
        np.linalg.norm(wide @ right.T - left * values, axis=0).max(),
        np.linalg.norm(wide.T @ left - right.T * values, axis=0).max(),
    )
    off = {
        "residual": residual / exact[-1],
        "off_lapack": np.abs(values - exact).max() / exact[-1],
        "left_off_orthonormal": np.abs(left.T @ left - np.eye(len(exact))).max(),
        "right_off_orthonormal": np.abs(right @ right.T - np.eye(len(exact))).max(),
    }
    told |= {name: float(part / spec["tol"]) for name, part in off.items()}
    return {**told, "passes": result.passes, "restarts": result.restarts}


def arpack(spec: Spec) -> Result:
    """ARPACK's tolerance is of eigenvalues of A^T A, relative to each; SciPy takes the root of it."""
    from scipy.sparse.linalg import svds

    a = sparse.load(spec["a"])
    return measured(spec, lambda: svds(a, spec["k"], tol=spec["tolerance"] ** 0.5, solver="arpack", rng=0))


def arpack_mkl(spec: Spec) -> Result:
    """The same with products of MKL on all cores, of the matrix and of its transpose, which is in memory too."""
    import ctypes

    from scipy.linalg import svd
    from scipy.sparse.linalg import LinearOperator, eigsh

    from legs.with_mkl import multiply, prepared

    library, a = ctypes.CDLL(spec["library"]), sparse.load(spec["a"])
    turned = a.T.tocsr()
    (m, n), kind = a.shape, np.float32
    between, image = np.empty((m, 1), kind), np.empty((n, 1), kind)
    with prepared(library, a, slice(0, m), 1) as along, prepared(library, turned, slice(0, n), 1) as across:

        def gram(x: Array) -> Array:
            multiply(library, along, np.ascontiguousarray(x, kind).reshape(n, 1), between)
            multiply(library, across, between, image)
            return image.ravel().copy()

        def call() -> tuple[Array, Array, Array]:
            operator = LinearOperator((n, n), matvec=gram, dtype=kind)
            start = np.random.default_rng(0).standard_normal(n)
            vectors = np.linalg.qr(eigsh(operator, spec["k"], tol=spec["tolerance"], v0=start)[1])[0]
            left = np.empty((m, spec["k"]), kind)
            multiply(library, along, np.ascontiguousarray(vectors), left)
            left, values, right = svd(left, full_matrices=False, overwrite_a=True)
            return left, values, right @ vectors.T

        return measured(spec, call)


def propack(spec: Spec) -> Result:
    """Without restarts, as SciPy calls it. Its tolerance is of singular values, whose errors are squares of those of vectors."""
    from scipy.sparse.linalg import svds

    a = sparse.load(spec["a"]).astype(spec["dtype"])
    options: dict[str, Any] = {"solver": "propack", "maxiter": spec["basis"], "rng": 0}
    return measured(spec, lambda: svds(a, spec["k"], tol=spec["tolerance"] ** 0.5, **options))


def primme(spec: Spec) -> Result:
    """Its tolerance is of residuals, relative to the norm, as ours."""
    primme = importlib.import_module("primme")
    a = sparse.load(spec["a"])
    options: dict[str, Any] = {"tol": spec["tolerance"], "maxBlockSize": spec["block"], "which": "LM"}
    return measured(spec, lambda: primme.svds(a, spec["k"], **options))


def randomized(spec: Spec) -> Result:
    """With as many columns more as there are triplets: their cost is less than that of the iterations that they save."""
    from sklearn.utils.extmath import randomized_svd

    a = sparse.load(spec["a"])
    options: dict[str, Any] = {"n_oversamples": spec["k"], "n_iter": spec["iterations"], "random_state": 0}
    return measured(spec, lambda: randomized_svd(a, spec["k"], **options))


def measured(spec: Spec, call: Callable[[], Any]) -> Result:
    found: list[Any] = []

    def kept() -> None:
        found[:] = [call()]

    return {**sampled(kept), "residual": accurate(spec, *found[0])}


def accurate(spec: Spec, left: Any, values: Any, right: Any) -> float:
    """The largest residual, over what it may be."""
    worst = worst_residual(spec["a"], left, values, right) / spec["tol"]
    if not worst <= 1:
        raise SystemExit(f"residuals are up to {worst:.3g} times what they may be")
    return worst


def worst_residual(a: str, left: Any, values: Any, right: Any) -> float:
    """The largest |A v - s u| or |A^T u - s v|, by the largest s; `left` is None where it is A v / s.

    In f64, some triplets and some rows at a time.
    """
    values = np.asarray(values, np.float64)
    shapes = [(len(values), sparse.described(a)[1]), *([] if left is None else [(sparse.described(a)[0], len(values))])]
    if [right.shape, *([] if left is None else [left.shape])] != shapes or not values.max() > 0:
        return float("inf")
    worst = 0.0
    for first in range(0, len(values), COLUMNS_AT_ONCE):
        part = slice(first, first + COLUMNS_AT_ONCE)
        own, v = values[part], np.asarray(right[part], np.float64).T
        away, image = np.zeros(len(own)), np.zeros(v.shape)
        for rows, x in blocks(a):
            along = x @ v
            u = along / own if left is None else np.asarray(left[rows, part], np.float64)
            away += np.square(along - u * own).sum(axis=0)
            image += x.T @ u
        image -= v * own
        # What is not a number is as wrong as can be.
        worst = float(np.max([worst, np.sqrt(away.max()), np.linalg.norm(image, axis=0).max()]))
    return worst / float(values.max())


def blocks(a: str) -> Iterator[tuple[slice, Any]]:
    """Rows of the matrix, in f64."""
    import scipy.sparse as sp

    indptr, indices, values = sparse.mapped(a)
    for start in range(0, len(indptr) - 1, ROWS_AT_ONCE):
        ends = np.array(indptr[start : start + ROWS_AT_ONCE + 1])
        entries = slice(ends[0], ends[-1])
        part = (np.array(values[entries], np.float64), np.array(indices[entries]), ends - ends[0])
        rows = slice(start, start + len(ends) - 1)
        yield rows, sp.csr_matrix(part, shape=(len(ends) - 1, sparse.described(a)[1]))
