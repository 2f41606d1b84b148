"""Exact nearest neighbours of dense and of sparse rows, four times the budget."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from cases.limits import limit_legs
from cases.products import RESIDENT_BYTES
from harness import machine
from harness.model import GIB, MIB, Bound, Case, Comparison, Context, DataFile, Leg, Measure, ZipfFolder

ROWS = 4_000_000
COLS = 128
QUERIES = 10_000
NEIGHBORS = 10
BUDGET = 512 * MIB
SMALLEST_BUDGET = 16 * MIB

WITH_TILES = 4.0
"""What is to be reached on processors with AMX, which multiply bf16 in a twentieth of the time of f32."""

CLUSTERED_COLS = 32

SPARSE_ROWS = 1_000_000
SPARSE_COLS = 20_000_000
ENTRIES_PER_ROW = 35
SOME_QUERIES = 100
"""Of the slow rivals."""

OURS = "outcore NearestNeighbors"
IN_MEMORY = "outcore NearestNeighbors, all rows in memory"
FAISS = "faiss IndexFlatL2 in memory"
SKLEARN = "scikit-learn brute in memory"
TOPN = "sparse_dot_topn in memory, inner products"
SOME_SKLEARN = f"scikit-learn brute in memory, {SOME_QUERIES} queries scaled"
MERGE = f"merge join in memory, {SOME_QUERIES} queries scaled"


def dense(context: Context) -> Case:
    rows = DataFile(context.path("neighbors-rows.npy"), max(20_000, context.count(ROWS)), COLS, "clouds", seed=5)
    queries = DataFile(context.path("neighbors-queries.npy"), max(200, context.count(QUERIES)), COLS, "clouds", seed=5)
    memory = max(SMALLEST_BUDGET, int(BUDGET * min(1.0, context.scale)))
    common: dict[str, Any] = {"a": rows.path, "queries": queries.path, "k": NEIGHBORS}
    session = {"memory": memory, "scratch": context.path("scratch"), "imports": ["outcore.neighbors"]}
    cold, flops = (rows.path, queries.path), 2.0 * rows.rows * queries.rows * COLS
    in_memory = {**common, **session, "memory": RESIDENT_BYTES, "in_memory": True}
    return Case(
        "neighbors",
        f"{NEIGHBORS} nearest of {rows.nbytes / GIB:.1f} GiB of f32 rows of {COLS} to {queries.rows:,} queries, exactly, "
        f"budget {memory >> 20} MiB, process limited to 64 MiB more",
        "s",
        [
            Leg(OURS, "ours.neighbors", {**common, **session}, cold=cold, limited=True),
            Leg(IN_MEMORY, "ours.neighbors", in_memory, work=flops),
            Leg(FAISS, "with_faiss.neighbors", common, cold=cold, timeout_s=1800),
            Leg(SKLEARN, "with_sklearn.neighbors", common, cold=cold, timeout_s=1800),
            *limit_legs(context, "read", file=(rows.path, rows.nbytes // MIB * MIB)),
        ],
        [
            Comparison(
                OURS,
                (FAISS, SKLEARN),
                "the faster of faiss and scikit-learn, all rows in memory, loading not timed",
                WITH_TILES if "amx_bf16" in machine.instructions() else 1.0,
            ),
            Comparison(OURS, (FAISS,), "faiss, all rows in memory"),
            Comparison(OURS, (SKLEARN,), "scikit-learn, all rows in memory"),
        ],
        Bound(flops, float(rows.nbytes), core_leg=IN_MEMORY, note="every row read once"),
        [rows, queries],
        limit_over_bytes=memory,
        needs=("faiss",),
        notes=("Recall is the share of neighbours that a search in f64 of the first queries finds too, alike for all.",),
    )


def sparse(context: Context) -> Case:
    rows = zipf(context, "rows", max(20_000, context.count(SPARSE_ROWS)), seed=6)
    queries = zipf(context, "queries", max(200, context.count(QUERIES)), seed=7)
    memory = max(SMALLEST_BUDGET, rows.nbytes // 4)
    common: dict[str, Any] = {"a": rows.path, "queries": queries.path, "k": NEIGHBORS}
    some = {**common, "count": SOME_QUERIES, "scaled": queries.rows / SOME_QUERIES}
    session = {"memory": memory, "scratch": context.path("scratch"), "imports": ["outcore.neighbors"]}
    sizes = {"rows": rows.rows, "per_row": ENTRIES_PER_ROW, "threads": len(os.sched_getaffinity(0))}
    program = {"program": context.path("programs/merge_join")}
    return Case(
        "neighbors-sparse",
        f"{NEIGHBORS} nearest of {rows.rows:,} rows of {SPARSE_COLS:,} columns with {ENTRIES_PER_ROW} entries each to "
        f"{queries.rows:,} queries, exactly, budget {memory >> 20} MiB, process limited to 64 MiB more",
        "s",
        [
            Leg(OURS, "ours_sparse.neighbors", {**common, **session}, cold=(*rows.parts, *queries.parts), limited=True),
            Leg(TOPN, "with_sparse_dot_topn.neighbors", common),
            Leg(SOME_SKLEARN, "with_sklearn.sparse_neighbors", some),
            Leg(MERGE, "tools.merge_join", {**some, **sizes, **program}),
        ],
        [
            Comparison(OURS, (TOPN,), "sparse_dot_topn, all rows in memory by columns, loading not timed", 1.0),
            Comparison(OURS, (SOME_SKLEARN,), "scikit-learn, all rows in memory, loading not timed", 10.0),
            Comparison(OURS, (MERGE,), "a merge of each query with each row in C, loading not timed"),
        ],
        Bound(read_bytes=float(rows.nbytes), note="every row read once"),
        [rows, queries],
        limit_over_bytes=memory,
        needs=("sparse_dot_topn", "cc"),
        notes=(
            "Recall is the share of neighbours that a search in f64 of the first queries finds too.",
            "sparse_dot_topn finds the largest inner products, the others the smallest distances.",
            f"scikit-learn and the merge join search for {SOME_QUERIES} queries; their time is scaled to all of them.",
        ),
    )


def clustered(context: Context) -> Case:
    """All rows look for each other, so that each of many groups reads what is near it, and no other."""
    rows = DataFile(context.path("neighbors-clusters.npy"), max(50_000, context.count(ROWS)), CLUSTERED_COLS, "clusters", seed=8)
    memory = max(SMALLEST_BUDGET, rows.nbytes // 4)
    spec = {"a": rows.path, "k": NEIGHBORS, "out": context.path("found")}
    session = {"memory": memory, "scratch": context.path("scratch"), "imports": ["outcore.neighbors"]}
    return Case(
        "neighbors-clustered",
        f"{NEIGHBORS} nearest of each of {rows.rows:,} f32 rows of {CLUSTERED_COLS} to it, in 1,000 overlapping clusters and "
        f"random order, exactly, budget {memory >> 20} MiB, process limited to 64 MiB more",
        "s",
        [
            Leg(
                OURS,
                "ours.neighbors_by_clusters",
                {**spec, **session},
                cold=(rows.path,),
                limited=True,
                timeout_s=7200,
            )
        ],
        [],
        Bound(read_bytes=float(rows.nbytes), note="every row read once"),
        [rows],
        limit_over_bytes=memory,
        rounds=1,
        measures=(
            Measure(OURS, "computed", "a search that leaves nothing out", at_most=0.25),
            Measure(OURS, "read", "a search that leaves nothing out", at_most=0.25),
        ),
        notes=(
            "`computed` and `read` are shares of the operations and bytes of a search that leaves nothing out, as its plan says, "
            "in which rows that look for each other meet once for both; to put rows in order is counted. Operations are those "
            "planned: of the queries that meet a block, only those are compared that may have a neighbour in it.",
        ),
    )


def zipf(context: Context, name: str, rows: int, seed: int) -> ZipfFolder:
    path = context.path(f"zipf-{name}-{rows}x{ENTRIES_PER_ROW}-seed{seed}")
    return ZipfFolder(path, rows, SPARSE_COLS, ENTRIES_PER_ROW, seed)


BUILDERS: dict[str, Callable[[Context], Case]] = {
    "neighbors": dense,
    "neighbors-sparse": sparse,
    "neighbors-clustered": clustered,
}
