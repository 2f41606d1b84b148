"""Searches in processes of their own, and what they took.

A result tells of one search: `seconds`, without reading the matrix for those that need it in memory, `residual`, the largest
|A^T u - s v| or |A v - s u| by the largest s, and `rss_bytes`, the most memory that the process had. Of ours `passes`, `block`
and `basis_in_memory` too; of scikit-learn `iterations` and of SciPy `asked`, its tolerance: the fewest and the loosest of those
tried that give residuals of ours.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from scipy.sparse.linalg import svds as scipy_svds

from ..errors import FailedError

OURS = ("krylov", "randomized", "auto")
RIVALS = ("arpack", "propack", "scikit-learn", "primme")
ITERATIONS = (1, 2, 4, 7, 10, 15, 20, 30)
ASKED = {
    "arpack": lambda tol: [times * tol for times in (300, 100, 30, 10, 1)],
    "propack": lambda tol: [tol**power for power in (1.0, 1.5, 2.0)],
}
"""Of our tolerance: ARPACK's is of eigenvalues of A^T A and relative to each, PROPACK's of singular values, whose errors are
squares of those of vectors."""
PRIMME_SHARE = 0.5
"""Of our tolerance: with all of it, its residuals are up to 1.7 times what they may be."""
MODULES = {"scikit-learn": "sklearn", "primme": "primme"}


def installed() -> list[str]:
    """Rivals that there are here."""
    from importlib.util import find_spec

    return [name for name in RIVALS if find_spec(MODULES.get(name, "scipy")) is not None]


def measure(
    matrix: Path,
    who: str,
    count: int,
    tol: float,
    *,
    memory: int | None = None,
    options: Sequence[str] = (),
    timeout_s: float = 600,
) -> dict[str, Any]:
    """One search: by ours with this `method` and `memory`, or by a rival, which has the matrix in memory.

    Raises
    ------
    FailedError
        For a search that failed or took too long.
    """
    case = {
        "matrix": os.fspath(matrix.resolve()),
        "who": who,
        "count": count,
        "tol": tol,
        "memory": memory,
    }
    found = told_by_process("outcore.spectra_bench.run", case, options, f"{who}, {count} triplets", timeout_s)
    return {**found, "who": who, "count": count, "tol": tol, "memory_bytes": memory}


def told_by_process(module: str, case: dict[str, Any], options: Sequence[str], what: str, timeout_s: float) -> dict[str, Any]:
    """What a module, run as a program, prints of a case."""
    own = Path(__file__).parents[2]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [str(own), os.environ.get("PYTHONPATH")]))}
    words = [sys.executable, "-m", module, json.dumps({**case, **dict(_pairs(options))})]
    loads = os.getloadavg()
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=timeout_s, env=environment, check=False)
    except subprocess.TimeoutExpired as error:
        raise FailedError(f"{what}: it took longer than {timeout_s:g} s") from error
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
        raise FailedError(f"{what}: {last}")
    found: dict[str, Any] = json.loads(done.stdout)
    return {**found, "load_average": loads[0]}


def _pairs(options: Sequence[str]) -> list[tuple[str, str]]:
    return [(name.removeprefix("--"), value) for name, value in zip(options[::2], options[1::2], strict=True)]


def configured(case: dict[str, Any]) -> None:
    import outcore

    names = {"scratch": str, "threads": int, "driver": str, "blas": str}
    settings: dict[str, Any] = {name: kind(case[name]) for name, kind in names.items() if name in case}
    outcore.configure(case["memory"], **settings)


def _ours(case: dict[str, Any]) -> tuple[Any, float, dict[str, Any]]:
    import outcore

    configured(case)
    with outcore.open(case["matrix"]) as matrix:
        outcore.linalg.svds(matrix, 1, tol=0.5, check=False)
        began = time.perf_counter()
        found = outcore.linalg.svds(matrix, case["count"], tol=case["tol"], method=case["who"])
        seconds = time.perf_counter() - began
    facts = {"passes": found.passes, "restarts": found.restarts, "block": found.block, "basis_in_memory": found.basis_in_memory}
    return found, seconds, facts


def _rival(case: dict[str, Any], a: Any) -> tuple[Any, float, dict[str, Any]]:
    count, tol, who = case["count"], case["tol"], case["who"]
    if who == "primme":
        primme = import_module("primme")
        began = time.perf_counter()
        return primme.svds(a, count, tol=PRIMME_SHARE * tol), time.perf_counter() - began, {}
    tries: list[tuple[dict[str, float], Any]]
    if who in ASKED:
        # SciPy squares what it is given.
        tries = [({"asked": one}, partial(scipy_svds, a, count, tol=one**0.5, solver=who, rng=0)) for one in ASKED[who](tol)]
    else:
        from sklearn.utils.extmath import randomized_svd

        # As many columns more as there are triplets cost less than the iterations that they save.
        options = {"n_oversamples": count, "random_state": 0}
        tries = [({"iterations": n}, partial(randomized_svd, a, count, n_iter=n, **options)) for n in ITERATIONS]
    for facts, search in tries:
        began = time.perf_counter()
        result = search(), time.perf_counter() - began, facts
        if _residual(a, result[0]) <= tol:
            break
    return result


def in_memory(path: str) -> Any:
    import outcore

    matrix: Any = outcore.open(path)
    with matrix:
        return matrix.scipy(progress=False)


def _residual(a: Any, found: Any) -> float:
    left, values, right = (np.asarray(part, np.float64) for part in found)
    rests = [a @ right.T - left * values, a.T @ left - right.T * values]
    return float(max(np.linalg.norm(rest, axis=0).max() for rest in rests) / values.max())


def _main(text: str) -> None:
    import outcore

    case = json.loads(text)
    if case["who"] in OURS:
        found, seconds, facts = _ours(case)
        facts["rss_bytes"] = rss_bytes()
        found = tuple(part.numpy() if isinstance(part, outcore.Array) else part for part in found)
        a = in_memory(case["matrix"])
    else:
        a = in_memory(case["matrix"])
        found, seconds, facts = _rival(case, a)
        facts["rss_bytes"] = rss_bytes()
    facts |= {"seconds": seconds, "residual": _residual(a, found), "nonzeros": int(a.nnz), "shape": list(a.shape)}
    print(json.dumps(facts))


def rss_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


if __name__ == "__main__":
    _main(sys.argv[1])
