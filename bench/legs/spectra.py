"""Singular triplets: outcore's, ARPACK's and scikit-learn's, held to one residual."""

from __future__ import annotations

from typing import Any

import numpy as np

from legs import sparse
from legs.measure import sampled

Spec = dict[str, Any]
Result = dict[str, Any]

MOST_ITERATIONS = 64


def ours(spec: Spec) -> Result:
    import outcore as oc

    from legs.ours import configure, trace

    configure(spec)
    found: list[Any] = []

    def call() -> None:
        found[:] = [oc.linalg.svds(oc.open(spec["a"]), spec["k"], tol=spec["tol"])]

    told = {**sampled(call), "trace": trace()}
    left, values, right = (np.asarray(part) for part in found[0])
    return {**told, "error": _error(spec, left, values, right), "passes": found[0].passes}


def arpack(spec: Spec) -> Result:
    from scipy.sparse.linalg import svds

    a, found = sparse.load(spec["a"]), []

    def call() -> None:
        # ARPACK's tolerance is of values of A^T A, relative to each.
        found[:] = [svds(a, spec["k"], tol=spec["tol"], solver="arpack")]

    return {**sampled(call), "error": _error(spec, *found[0])}


def randomized(spec: Spec) -> Result:
    from sklearn.utils.extmath import randomized_svd

    a, found, iterations = sparse.load(spec["a"]), [], 2

    def call() -> None:
        found[:] = [randomized_svd(a, spec["k"], n_iter=iterations, random_state=0)]

    call()
    while _error(spec, *found[0]) > 1 and iterations < MOST_ITERATIONS:
        iterations *= 2
        call()
    return {**sampled(call), "error": _error(spec, *found[0]), "iterations": iterations}


def _error(spec: Spec, left: Any, values: Any, right: Any) -> float:
    """The largest residual, over what it may be."""
    a = sparse.load(spec["a"])
    rest = a.T @ np.asarray(left, np.float64) - np.asarray(right, np.float64).T * values
    other = a @ np.asarray(right, np.float64).T - np.asarray(left, np.float64) * values
    worst = max(np.linalg.norm(part, axis=0).max() for part in (rest, other))
    return float(worst / (spec["tol"] * values.max()))
