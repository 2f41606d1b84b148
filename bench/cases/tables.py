"""Embedding tables: rows at random, and bags of the traces of the RecSSD paper."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from cases.limits import limit_file, limit_legs, limit_names
from cases.pca import budget_of
from cases.sparse import check_room
from harness.model import GIB, KIB, MIB, BagTrace, Bound, Case, Comparison, Context, DataFile, Leg

TOTAL, MEMORY = 4 * GIB, 256 * MIB
ROW_BYTES, ASKED = 128, 200_000
SECONDS = 5.0
SECTOR = f"randread {4 * KIB}"
CORE = (os.cpu_count() or 1) - 1
"""The first one has most of the machine's interrupts."""
BAGS_MEMORY, TIMES = 64 * MIB, 4
"""The pages that a trace touches are so many times the limit of the process."""
BATCH, BATCHES = {"RMC1": 64, "RMC2": 32, "RMC3": 128}, 48
"""The first half warms caches up."""

OURS = "outcore"
MAP, MAP_RANDOM = "torch.nn.EmbeddingBag on a memory map", "the same, MADV_RANDOM"
PAGES = "a page at a time, as in the paper"
ROCKSDB = "RocksDB MultiGet"


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


def bags(context: Context, model: str, k: int) -> Case:
    memory = budget_of(context, BAGS_MEMORY)
    limit = memory + 64 * MIB
    batch_size = BATCH[model]
    trace = BagTrace(context.path(f"bags-{model}-{k}"), model, k, TIMES * limit, BATCHES, batch_size)
    check_room(context, 4 * trace.touched_bytes)
    spec: dict[str, Any] = {"folder": trace.path, "memory": memory, "seconds": context.seconds(SECONDS)}

    def leg(name: str, mode: str, **more: Any) -> Leg:
        return Leg(name, "tables.bags", {**spec, "mode": mode, **more}, limited=True)

    whole = limit_legs(context, SECTOR, count="requests")
    return Case(
        f"bags-{model}-K{k}",
        f"{model} of the RecSSD paper, batches of {batch_size}, trace K = {k} whose pages are {trace.touched_bytes >> 20} MiB, "
        f"budget {memory >> 20} MiB, process limited to {limit >> 20} MiB",
        "IOPS",
        [
            leg(OURS, "ours"),
            leg(MAP, "torch"),
            leg(MAP_RANDOM, "torch", random=True),
            leg(PAGES, "pages"),
            leg(ROCKSDB, "rocksdb"),
            *whole,
        ],
        [
            Comparison(OURS, (MAP, MAP_RANDOM), "torch.nn.EmbeddingBag on a memory map", 5),
            Comparison(OURS, (PAGES,), PAGES, 5),
            Comparison(OURS, (ROCKSDB,), ROCKSDB, 2),
        ],
        Bound(note="the device's random reads of what is not in memory"),
        [trace, limit_file(context)],
        limit_over_bytes=memory,
        needs=("rocksdict",),
        notes=(
            "The rate counts row numbers looked up. Half of the batches warm caches up; the sums of the first one after them are "
            "checked.",
            "RocksDB reads directly, sorted and distinct keys of a table at a time, with half of the budget as block cache.",
        ),
    )


BUILDERS: dict[str, Callable[[Context], Case]] = {
    "table-rows": table_rows,
    **{
        f"bags-{model}-K{k}": (lambda context, model=model, k=k: bags(context, model, k))  # type: ignore[misc]
        for model in BATCH
        for k in (0, 1, 2)
    },
}
