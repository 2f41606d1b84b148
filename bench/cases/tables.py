"""Embedding tables: rows at random, and bags of the traces of the RecSSD paper."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from typing import Any

from outcore.embedding_bench.models import MODELS, OPERATOR
from outcore.embedding_bench.traces import SPACING

from cases.limits import limit_file, limit_legs, limit_names
from cases.pca import budget_of
from cases.sparse import check_room
from cases.streams import new_file_legs
from harness.model import GIB, KIB, MIB, BagTrace, Bound, Case, Comparison, Context, DataFile, Leg
from harness.traces import AS_SHIPPED

TOTAL, MEMORY = 4 * GIB, 256 * MIB
ROW_BYTES, ASKED = 128, 200_000
SECONDS = 5.0
SECTOR = f"randread {4 * KIB}"
CORE = (os.cpu_count() or 1) - 1
"""The first one has most of the machine's interrupts."""
BAGS_MEMORY, LEAST_BAGS_MEMORY, TIMES = 64 * MIB, 16 * MIB, 4
"""The rows of a trace have at least 4 times the bytes of our cache, and their pages 4 times those of the process limit."""
BAGS_SECONDS, BAGS_TIMEOUT_S = 4.0, 90.0
"""Of a leg's warm-up, and once more of what is timed."""
BATCH, LEAST_BATCHES = {"RMC1": 64, "RMC2": 32, "RMC3": 128}, 48
"""The first half of the batches warms caches up."""
NEW_SHARE, SPARE = 0.12, 1.1
"""Of the look-ups of a trace with K = 0, by the paper, those of rows that are not near the top of the stack."""
PAGE_BYTES = 4 * KIB

TRAIN_BATCH, TRAIN_STEPS = 512, 16
"""The first half of the steps warms caches up."""

MODEL_BATCH, MODEL_AHEAD, MODEL_SECONDS, MODEL_TIMEOUT_S = 64, 8, 3.0, 120.0
MODEL_BATCHES, MODEL_LOOKUPS = 400, 10_000_000
"""Batches for some seconds of a model that has not too many look-ups."""
NETWORK_THREADS = ({"network_threads": 1}, {"network_threads": 2})
MODEL_ENVIRONMENT = {
    "OMP_WAIT_POLICY": "PASSIVE",
    "MALLOC_MMAP_THRESHOLD_": "1000000",
    "MALLOC_TRIM_THRESHOLD_": "2000000",
}
"""Of all legs of a model, and of the trials that find what their imports take.

Threads of OpenMP that wait for work keep no core busy. glibc maps blocks that are longer than the first threshold one by one, and
gives them back; by itself it raises that to the longest block that was given back, up to 32 MB, and the second to twice that
(mallopt(3)). Then tensors come from a heap with gaps: that of DIN's network grows to 118 MB, where it needs 14, by how long the
network runs, so no trial tells how much is to be allowed for it.
"""
UNIFORM_SHARE = 0.4
"""Of look-ups, at least, that are of rows on pages not yet touched, until nearly all are."""
HOT_BATCH, HOT_SHARE, HOT_STEPS, HOT_KNOWN = 64, 0.05, 2, 16
HOT_PASSES = 100
"""Over the batches that are timed, where all rows are in memory: one takes some 20 ms."""
HOT_REUSE = {"2021": 6.9, "2022": 12.7}
"""Look-ups of a row, by the published histograms of a year."""

MAP_ROWS = 2560
"""Looked up at a time where the kernel reads ahead: each of the 40,000 faults of a batch may read megabytes, and take
milliseconds."""

OURS, NO_CACHE = "outcore", "outcore, no cache"
MAP, MAP_RANDOM = "torch.nn.EmbeddingBag on a memory map", "the same, MADV_RANDOM"
PAGES = "a page at a time, as in the paper"
ROCKSDB = "RocksDB MultiGet"
NETWORK = "the network alone"
LOOK_UPS = "outcore, look-ups alone"
IN_MEMORY = "torch.nn.EmbeddingBag, all rows in memory"
S3_FIFO = "outcore, S3-FIFO alone"
FORESEEN = "the longer of what Belady's policy misses at the device's limit, and processor time on all cores"


def table_rows(context: Context) -> Case:
    memory = budget_of(context, MEMORY)
    file = DataFile(context.path("table-128.npy"), context.count(TOTAL // ROW_BYTES), ROW_BYTES // 4, "numbered", seed=4)
    check_room(context, file.nbytes)
    spec: dict[str, Any] = {"a": file.path, "count": context.count(ASKED), "seconds": context.seconds(SECONDS), "memory": memory}
    ours = Leg(OURS, "tables.rows", {**spec, "core": CORE}, cold=(file.path,), limited=True)
    return Case(
        "table-rows",
        f"random rows of {ROW_BYTES} B out of a table of {file.nbytes / GIB:.1f} GiB, none in memory, one core, budget "
        f"{memory >> 20} MiB",
        "IOPS",
        [ours, *limit_legs(context, SECTOR, file=(file.path, file.nbytes // MIB * MIB), count="requests")],
        [Comparison(OURS, limit_names(SECTOR), "the device's limit, random reads of 4,096 B", 0.9)],
        Bound(note="the device's random reads"),
        [file],
        limit_over_bytes=memory,
        notes=("Counted are pages of 4,096 B that hold the rows, each once. fio may use all cores.",),
    )


def bag_trace(context: Context, model: str, k: int, limit: int, cache: int) -> BagTrace:
    """Whose rows have at least 4 times the bytes of `cache`, and their pages 4 times those of the limit."""
    shape = MODELS[model]
    pages = max(TIMES * limit // PAGE_BYTES, TIMES * cache // shape.row_bytes)
    new_share = (NEW_SHARE + k) / (1 + k)
    batches = max(LEAST_BATCHES, math.ceil(SPARE * pages / (new_share * BATCH[model] * shape.lookups)))
    return BagTrace(context.path(f"bags-{model}"), model, f"K={k}", pages * PAGE_BYTES, batches, BATCH[model], database=True)


def shipped_trace(context: Context, model: str, k: int) -> BagTrace:
    """As the paper's generator makes it: rows 128 apart in tables of a million, in the order of their pages."""
    shape = MODELS[model]
    touched_bytes = sum(table.rows // SPACING for table in shape.tables) * PAGE_BYTES
    folder, kind = context.path(f"bags-{model}-shipped"), f"K={k}{AS_SHIPPED}"
    return BagTrace(folder, model, kind, touched_bytes, LEAST_BATCHES, BATCH[model], database=True)


def bags(context: Context, model: str, k: int, *, shipped: bool = False) -> Case:
    """`shipped`: the rows that the paper's generator looks up, without a target: they fit our cache, but not their pages."""
    memory = max(LEAST_BAGS_MEMORY, int(BAGS_MEMORY * min(1.0, context.scale)))
    cache, limit = memory // 2, memory + 64 * MIB
    trace = shipped_trace(context, model, k) if shipped else bag_trace(context, model, k, limit, cache)
    check_room(context, 4 * (MODELS[model].table_bytes if shipped else trace.touched_bytes))
    spec: dict[str, Any] = {
        "trace": trace.facts_path,
        "ids": trace.ids_path,
        "folder": trace.path,
        "memory": memory,
        "cache": cache,
        "seconds": context.seconds(BAGS_SECONDS),
    }

    def leg(name: str, mode: str, **more: Any) -> Leg:
        return Leg(name, "tables.bags", {**spec, "mode": mode, **more}, limited=True, timeout_s=BAGS_TIMEOUT_S)

    a_page = PAGE_BYTES // MODELS[model].row_bytes
    rows_bytes = trace.touched_bytes // a_page
    times = "all of which fit" if shipped else f"{rows_bytes / cache:.1f} times"
    return Case(
        f"bags-{model}-K{k}{'-shipped' if shipped else ''}",
        f"{model} of the RecSSD paper, batches of {BATCH[model]}, trace {trace.kind.replace('=', ' = ')}: rows of "
        f"{rows_bytes >> 20} MiB, {times} our cache, on pages of {trace.touched_bytes >> 20} MiB; "
        f"budget {memory >> 20} MiB, process limited to {limit >> 20} MiB",
        "IOPS",
        [
            leg(OURS, "ours"),
            leg(NO_CACHE, "ours", cache=0),
            leg(MAP, "torch", samples=max(1, MAP_ROWS // MODELS[model].lookups)),
            leg(MAP_RANDOM, "torch", random=True),
            leg(PAGES, "pages"),
            leg(ROCKSDB, "rocksdb"),
            *limit_legs(context, SECTOR, count="requests"),
        ],
        [
            Comparison(OURS, (MAP, MAP_RANDOM), "torch.nn.EmbeddingBag on a memory map", None if shipped else 5),
            Comparison(OURS, (PAGES,), PAGES, None if shipped else 5),
            Comparison(NO_CACHE, (PAGES,), f"{PAGES}; ours without cache"),
            Comparison(OURS, (ROCKSDB,), ROCKSDB, None if shipped else 2),
        ],
        Bound(note="the device's random reads of what is not in memory"),
        [trace, limit_file(context)],
        limit_over_bytes=memory,
        needs=("rocksdict",),
        notes=(
            f"The rate counts row numbers looked up. Half of the batches warm caches up, or {BAGS_SECONDS:g} s; the sums of the "
            "first one after them are checked.",
            f"On a memory map on which the kernel reads ahead, a part of a batch is looked up at a time: {MAP_ROWS:,} rows or a "
            "sample.",
            f"Of the {a_page} rows of a page one is looked up, so memory that holds rows has up to {a_page} times as many useful "
            "ones as memory that holds pages. Where rows that are looked up lie together, the difference is smaller.",
            *(("All rows fit our cache: the result is an upper bound of what a cache of rows gains.",) if shipped else ()),
            "RocksDB reads directly, sorted and distinct keys of a table at a time, with half of the budget as block cache.",
        ),
    )


def train(context: Context) -> Case:
    memory = max(LEAST_BAGS_MEMORY, int(BAGS_MEMORY * min(1.0, context.scale)))
    limit = memory + 64 * MIB
    trace = BagTrace(context.path("train-RMC3"), "RMC3", "K=1", TIMES * limit, TRAIN_STEPS, TRAIN_BATCH)
    check_room(context, 4 * trace.touched_bytes)
    spec: dict[str, Any] = {
        "trace": trace.facts_path,
        "ids": trace.ids_path,
        "folder": trace.path,
        "cached_rows": trace.touched_bytes // PAGE_BYTES // 10,
        "memory": memory,
    }
    reads = limit_legs(context, SECTOR)
    writes = new_file_legs(context.path("fio-new.bin"), max(64 * MIB, context.count(GIB // MIB) * MIB))
    return Case(
        "table-train",
        f"steps of row-wise Adagrad, RMC3 of the RecSSD paper, batches of {TRAIN_BATCH}, trace K = 1: rows on pages of "
        f"{trace.touched_bytes >> 20} MiB, cache of a tenth of them, budget {memory >> 20} MiB, process limited to "
        f"{limit >> 20} MiB",
        "GB/s",
        [Leg(OURS, "tables.train", spec, limited=True), *reads, *writes],
        [
            Comparison(
                OURS,
                (*limit_names(SECTOR), *(leg.name for leg in writes)),
                "the device's limit: pages of rows not in memory, read at random twice, then written in order",
                1 / 1.4,
                passes=(SECTOR, SECTOR, "write"),
            )
        ],
        Bound(note="pages of the rows that are not in memory, each read twice and written once"),
        [trace, limit_file(context)],
        limit_over_bytes=memory,
        notes=(
            "The rate counts pages of rows that a look-up did not find in memory, once. A step is a look-up and a change of its "
            "rows. Their pages have several times the bytes of the budget, so they are read for the sums, and again once the "
            "gradient is known. Each row has a page of its own: nothing is gained by neighbours.",
        ),
    )


def model(context: Context, name: str, kind: str) -> Case:
    """A whole recommender: look-ups of one batch beside the network of the batch before."""
    memory = max(LEAST_BAGS_MEMORY, int(BAGS_MEMORY * min(1.0, context.scale)))
    limit, shape = memory + 64 * MIB, MODELS[name]
    pages = TIMES * limit // PAGE_BYTES
    touching = math.ceil(SPARE * pages / (UNIFORM_SHARE * MODEL_BATCH * shape.lookups))
    batches = max(LEAST_BATCHES, touching, min(MODEL_BATCHES, MODEL_LOOKUPS // (MODEL_BATCH * shape.lookups)))
    trace = BagTrace(context.path(f"model-{name}-{kind}"), name, kind, pages * PAGE_BYTES, batches, MODEL_BATCH)
    check_room(context, 2 * trace.touched_bytes)
    spec: dict[str, Any] = {
        "trace": trace.facts_path,
        "ids": trace.ids_path,
        "model": name,
        "memory": memory,
        "cache": memory // 2,
        "ahead": MODEL_AHEAD,
        "seconds": context.seconds(MODEL_SECONDS),
    }

    def leg(name: str, mode: str, **more: Any) -> Leg:
        limits = {"limited": True, "timeout_s": MODEL_TIMEOUT_S, "environment": MODEL_ENVIRONMENT}
        return Leg(name, "tables.model", {**spec, "mode": mode}, **limits, **more)

    return Case(
        f"model-{name}-{kind.replace('=', '')}",
        f"{name} of the RecSSD paper with its network, batches of {MODEL_BATCH}, {kind} trace: pages of "
        f"{trace.touched_bytes >> 20} MiB, budget {memory >> 20} MiB, process limited to {limit >> 20} MiB",
        "IOPS",
        [
            leg(OURS, "model", sweep=NETWORK_THREADS, sweep_s=MODEL_SECONDS),
            leg(NETWORK, "network", sweep=NETWORK_THREADS, sweep_s=MODEL_SECONDS),
            leg(LOOK_UPS, "look-ups"),
            *limit_legs(context, SECTOR),
        ],
        [
            Comparison(
                OURS,
                (NETWORK, LOOK_UPS),
                "the longest of the network alone, pages missed at the device's limit, and processor time of both on all cores",
                1 / 1.15,
                overlapped=SECTOR,
            ),
            Comparison(OURS, (NETWORK,), NETWORK),
        ],
        Bound(note="the network, the pages that are missed, and the processor time of both, which overlap"),
        [trace, limit_file(context)],
        limit_over_bytes=memory,
        turned=True,
        notes=(
            f"The rate counts samples; {MODEL_AHEAD} batches are looked up ahead. Half of the batches warm caches up, or "
            "as many as there is time for. OpenMP's threads sleep while they wait; its default takes a core from the look-ups.",
            "What the network computes with is allowed beside the budget, as its imports are; glibc maps blocks of a megabyte or "
            "more one by one for all legs.",
        ),
    )


def hot(context: Context, year: str, *, fits: bool = False) -> Case:
    """Bags of one table whose rows are looked up again as often as published ones are; `fits`: all of them are in memory."""
    memory = 2 * BAGS_MEMORY if fits else max(LEAST_BAGS_MEMORY, int(BAGS_MEMORY * min(1.0, context.scale)))
    limit = memory + 64 * MIB
    pages = TIMES * (BAGS_MEMORY + 64 * MIB) // PAGE_BYTES
    batches = math.ceil(HOT_REUSE[year] * 1.3 * pages / (HOT_BATCH * OPERATOR.lookups))
    folder = context.path(f"hot-{year}")
    trace = BagTrace(folder, OPERATOR.name, year, pages * PAGE_BYTES, batches, HOT_BATCH, cached_share=HOT_SHARE)
    check_room(context, 4 * trace.touched_bytes)
    spec: dict[str, Any] = {"trace": trace.facts_path, "ids": trace.ids_path, "memory": memory, "steps": HOT_STEPS}
    title = f"sums of {OPERATOR.lookups} rows of {OPERATOR.row_bytes} B, batches of {HOT_BATCH}, reuse as published in {year}"
    if fits:
        return Case(
            f"hot-{year}-fits",
            f"{title}; all rows in our cache, budget {memory >> 20} MiB",
            "IOPS",
            [
                Leg(OURS, "tables.hot", {**spec, "all_rows": True, "passes": HOT_PASSES}),
                Leg(IN_MEMORY, "tables.hot_in_memory", {**spec, "mode": "torch", "passes": HOT_PASSES}),
            ],
            [Comparison(OURS, (IN_MEMORY,), IN_MEMORY, 0.5)],
            files=[trace],
            turned=True,
            notes=(
                "The rate counts row numbers looked up. All batches are looked up once before; the second half is timed, "
                f"{HOT_PASSES} times.",
            ),
        )
    return Case(
        f"hot-{year}",
        f"{title}; cache of {HOT_SHARE:.0%} of the rows looked up, {HOT_KNOWN} batches known; pages of "
        f"{trace.touched_bytes >> 20} MiB, budget {memory >> 20} MiB, process limited to {limit >> 20} MiB",
        "IOPS",
        [
            Leg(OURS, "tables.hot", {**spec, "known": HOT_KNOWN}, limited=True),
            Leg(S3_FIFO, "tables.hot", spec, limited=True),
            *limit_legs(context, SECTOR),
        ],
        [
            Comparison(OURS, (), FORESEEN, 1 / 1.3, overlapped=SECTOR),
            Comparison(S3_FIFO, (), f"{FORESEEN}; S3-FIFO alone", overlapped=SECTOR),
        ],
        Bound(note="the pages that a cache which knows the future misses, and processor time"),
        [trace, limit_file(context)],
        limit_over_bytes=memory,
        notes=(
            "The rate counts row numbers looked up. The first half of the batches warms the cache up.",
            "Misses of the bound are those of Belady's policy with batches as its steps and the same number of rows. Where "
            "several rows of a page are missed by a batch, the page is read once.",
        ),
    )


BUILDERS: dict[str, Callable[[Context], Case]] = {
    "table-train": train,
    "table-rows": table_rows,
    **{
        f"bags-{model}-K{k}": (lambda context, model=model, k=k: bags(context, model, k))  # type: ignore[misc]
        for model in BATCH
        for k in (0, 1, 2)
    },
    **{
        f"bags-{model}-K{k}-shipped": (lambda context, model=model, k=k: bags(context, model, k, shipped=True))  # type: ignore[misc]
        for model in BATCH
        for k in (0, 1, 2)
    },
    **{
        f"model-{name}-{kind.replace('=', '')}": (lambda context, name=name, kind=kind: model(context, name, kind))  # type: ignore[misc]
        for name in MODELS
        for kind in ("uniform", "K=1")
    },
    **{f"hot-{year}": (lambda context, year=year: hot(context, year)) for year in HOT_REUSE},  # type: ignore[misc]
    **{f"hot-{year}-fits": (lambda context, year=year: hot(context, year, fits=True)) for year in HOT_REUSE},  # type: ignore[misc]
}
