"""Singular triplets of a real corpus, four times the budget, to a residual that all legs are held to."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from cases.limits import limit_legs
from cases.sparse import described, quarter
from harness.model import Bound, Case, Comparison, Context, Leg, SparseFolder

ROWS = 1_000_000
ENTRIES_PER_ROW = 51
COUNTS = (50, 200, 500)
TOLERANCE = 1e-4

OURS = "outcore svds"
ARPACK = "scipy svds (ARPACK) in memory"
RANDOMIZED = "scikit-learn randomized_svd in memory"


def svds(context: Context, count: int) -> Case:
    m = max(20_000, context.count(ROWS))
    nonzeros = ENTRIES_PER_ROW * m
    a = SparseFolder(context.path(f"corpus-{m}x{nonzeros}-seed6"), m, nonzeros, seed=6)
    k, memory = max(5, context.count(count)), quarter(a.nbytes)
    common: dict[str, Any] = {"a": a.path, "k": k, "tol": TOLERANCE}
    ours = {**common, "memory": memory, "scratch": context.path("scratch")}
    return Case(
        f"svds-{count}",
        f"{k} singular triplets of {described(a)}, f32, residuals of {TOLERANCE:g} s_1, budget {memory >> 20} MiB",
        "s",
        [
            Leg(OURS, "spectra.ours", ours, cold=a.parts),
            Leg(ARPACK, "spectra.arpack", common, timeout_s=3600),
            Leg(RANDOMIZED, "spectra.randomized", common, timeout_s=3600),
            *limit_legs(context, "read"),
        ],
        [
            Comparison(
                OURS, (ARPACK, RANDOMIZED), "the faster of scipy and scikit-learn, the matrix in memory, loading not timed", 1.0
            ),
            Comparison(OURS, (ARPACK,), "scipy svds, in memory"),
            Comparison(OURS, (RANDOMIZED,), "scikit-learn randomized_svd, in memory"),
        ],
        Bound(4.0 * nonzeros * k, float(a.nbytes), note="A read once, two products with k columns"),
        [a],
        notes=(
            "Errors are the largest |A^T u - s v| over tol s_1: at most 1 where all triplets are as accurate as they were to be. "
            "scikit-learn gets the fewest power iterations that reach that, found before the clock starts.",
        ),
    )


BUILDERS: dict[str, Callable[[Context], Case]] = {f"svds-{count}": partial(svds, count=count) for count in COUNTS}
