"""Exact nearest neighbours of dense rows, four times the budget."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cases.limits import limit_legs
from harness.model import GIB, MIB, Bound, Case, Comparison, Context, DataFile, Leg

ROWS = 4_000_000
COLS = 128
QUERIES = 10_000
NEIGHBORS = 10
BUDGET = 512 * MIB
SMALLEST_BUDGET = 16 * MIB

OURS = "outcore NearestNeighbors"
FAISS = "faiss IndexFlatL2 in memory"
SKLEARN = "scikit-learn brute in memory"


def dense(context: Context) -> Case:
    rows = DataFile(context.path("neighbors-rows.npy"), max(20_000, context.count(ROWS)), COLS, "clouds", seed=5)
    queries = DataFile(context.path("neighbors-queries.npy"), max(200, context.count(QUERIES)), COLS, "clouds", seed=5)
    memory = max(SMALLEST_BUDGET, int(BUDGET * min(1.0, context.scale)))
    common: dict[str, Any] = {"a": rows.path, "queries": queries.path, "k": NEIGHBORS}
    session = {"memory": memory, "scratch": context.path("scratch")}
    cold = (rows.path, queries.path)
    return Case(
        "neighbors",
        f"{NEIGHBORS} nearest of {rows.nbytes / GIB:.1f} GiB of f32 rows of {COLS} to {queries.rows:,} queries, exactly, "
        f"budget {memory >> 20} MiB, process limited to 64 MiB more",
        "s",
        [
            Leg(OURS, "ours.neighbors", {**common, **session}, cold=cold, limited=True),
            Leg(FAISS, "with_faiss.neighbors", common, cold=cold, timeout_s=1800),
            Leg(SKLEARN, "with_sklearn.neighbors", common, cold=cold, timeout_s=1800),
            *limit_legs(context, "read", file=(rows.path, rows.nbytes // MIB * MIB)),
        ],
        [
            Comparison(
                OURS, (FAISS, SKLEARN), "the faster of faiss and scikit-learn, all rows in memory, loading not timed", 1.0
            ),
            Comparison(OURS, (FAISS,), "faiss, all rows in memory"),
            Comparison(OURS, (SKLEARN,), "scikit-learn, all rows in memory"),
        ],
        Bound(2.0 * rows.rows * queries.rows * COLS, float(rows.nbytes), note="every row read once"),
        [rows, queries],
        limit_over_bytes=memory,
        needs=("faiss",),
        notes=("Recall is the share of neighbours that a search in f64 of the first queries finds too, alike for all.",),
    )


BUILDERS: dict[str, Callable[[Context], Case]] = {"neighbors": dense}
