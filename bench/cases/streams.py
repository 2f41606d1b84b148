"""Streams: whole ones against fio, many at once, small records, and the iterative algorithms of SSDStreamer's paper."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from harness.model import GIB, MIB, Bound, Case, Comparison, Context, Leg, Measure

BLOCK = 4 * MIB
MANY_BLOCK = MIB
AHEAD, DEPTHS = (2, 4), (2, 4, 8)
"""Blocks in memory at once, ours and fio's: more of ours are no faster, and out of the core's cache when they are summed."""
TOTAL = 8 * GIB
BUDGET = 64 * MIB
MANY_BUDGET = 256 * MIB
STREAMS = 64
CORE = 0

RECORD_BYTES, RECORDS_A_BATCH, RECORD_BATCHES = 100, 10_000, 1000

ITERATIVE_LIMIT = 512 * MIB
COLUMNS, PART_ROWS = 64, 16_000
"""A part of the data is 4.16 MB, as near to a block as its rows come."""
EPOCHS = {"logistic": 10, "kmeans": 6}
CLUSTERS = 192


def whole(context: Context, kind: str) -> Case:
    file, total = context.path("streams.store"), BLOCK * context.count(TOTAL // BLOCK)
    spec: dict[str, Any] = {"file": file, "bytes": total, "block": BLOCK, "memory": BUDGET}
    sweep = tuple({"ahead": blocks} for blocks in AHEAD)
    lent, copied = (
        Leg(
            name,
            f"streams.{kind}",
            {**spec, "copy": copy},
            work=total,
            outputs=(file,),
            limited=True,
            sweep=sweep,
            environment={"OPENBLAS_NUM_THREADS": "1"},
        )
        for name, copy in (("outcore, lent buffers", False), ("outcore, one copy", True))
    )
    fio = Leg(
        f"fio io_uring {kind}, new file",
        "tools.fio_once",
        {"file": file, "size_bytes": total, "rw": kind, "bs": BLOCK},
        work=total,
        outputs=(file,),
        sweep=tuple({"iodepth": depth} for depth in DEPTHS),
    )
    bound = {"read": Bound(read_bytes=total), "write": Bound(written_bytes=total)}[kind]
    return Case(
        f"streams-{kind}",
        f"{kind} a stream of {total / GIB:.1f} GiB, blocks of 4 MiB, checksums on, budget 64 MiB, process limited to 64 MiB more",
        "GB/s",
        [lent, copied, fio],
        [
            Comparison(lent.name, (fio.name,), "fio io_uring, same block size, direct, new file", 0.95),
            Comparison(copied.name, (fio.name,), "fio io_uring, same block size, direct, new file", 0.95),
        ],
        bound,
        limit_over_bytes=BUDGET,
        needs=("fio",),
        notes=(
            "Space is set aside before the clock starts and what is written is durable when it stops, on both sides; our blocks "
            "carry checksums, which are checked when they are read. Blocks ahead and fio's depth are each chosen by a sweep.",
        ),
        measures=(
            Measure(lent.name, "cores", "one core, with lent buffers", at_most=0.20),
            Measure(copied.name, "cores", "one core, with one copy", at_most=0.35),
        ),
    )


def many(context: Context) -> Case:
    file, total = context.path("streams.store"), BLOCK * STREAMS * context.count(TOTAL // (BLOCK * STREAMS))
    spec: dict[str, Any] = {"file": file, "bytes": total, "block": MANY_BLOCK, "memory": MANY_BUDGET, "ahead": 4}
    together = Leg(
        f"outcore, {STREAMS} streams at once", "streams.many", {**spec, "streams": STREAMS}, outputs=(file,), limited=True
    )
    alone = Leg("outcore, one stream", "streams.many", {**spec, "streams": 1}, outputs=(file,), limited=True)
    return Case(
        "streams-many",
        f"write and read {total / GIB:.1f} GiB as {STREAMS} streams at once, blocks of 1 MiB, budget 256 MiB",
        "GB/s",
        [together, alone],
        [Comparison(together.name, (alone.name,), "one stream", 0.9)],
        Bound(read_bytes=total, written_bytes=total),
        limit_over_bytes=MANY_BUDGET,
        notes=("A thread each reads the streams. Their rates, the slowest's against the fastest's, tell how fair that is.",),
        measures=(Measure(together.name, "slowest", "the fastest stream, by the slowest", at_least=0.7),),
    )


def records(context: Context) -> Case:
    file, batches = context.path("records"), context.count(RECORD_BATCHES)
    spec = {"file": file, "length": RECORD_BYTES, "batch": RECORDS_A_BATCH, "batches": batches, "memory": BUDGET, "core": CORE}
    total = batches * RECORDS_A_BATCH

    def leg(name: str, way: str) -> Leg:
        return Leg(name, "streams.records", {**spec, "way": way}, work=total, outputs=(file,))

    ours, one, lists = (
        leg("outcore", "outcore"),
        leg("pickle, one by one", "pickle"),
        leg("pickle, lists of 10,000", "pickle lists"),
    )
    arrow, joblib = leg("Arrow IPC, batches of 10,000", "arrow"), leg("joblib, lists of 10,000", "joblib")
    moved = total * RECORD_BYTES
    return Case(
        "streams-records",
        f"write, fsync and read {total:,} records of {RECORD_BYTES} B, bytes objects on both sides, one core",
        "IOPS",
        [ours, one, lists, arrow, joblib],
        [
            Comparison(ours.name, (one.name,), "pickle, a record at a time", 5),
            Comparison(ours.name, (lists.name,), "pickle of lists made by hand"),
            Comparison(ours.name, (arrow.name,), "Arrow IPC", 2),
            Comparison(ours.name, (joblib.name,), "joblib"),
        ],
        Bound(read_bytes=moved, written_bytes=moved),
        notes=("A rate counts records that were both written and read. Files leave the kernel's cache in between.",),
    )


def iterative(context: Context, algorithm: str, title: str, hides: bool) -> Case:
    limit = max(32 * MIB, int(ITERATIVE_LIMIT * context.scale))
    part_bytes = 4 * PART_ROWS * (COLUMNS + 1)
    parts, epochs = 4 * limit // part_bytes, max(2, context.count(EPOCHS[algorithm]))
    folder = context.path("iterative")
    spec: dict[str, Any] = {
        "folder": folder,
        "algorithm": algorithm,
        "parts": parts,
        "part_rows": PART_ROWS,
        "columns": COLUMNS,
        "clusters": CLUSTERS,
        "epochs": epochs,
    }

    def leg(name: str, model: str, memory: int, *, limited: bool = True) -> Leg:
        return Leg(
            name,
            "iterative.run",
            {**spec, "model": model, "memory": memory},
            cold=(folder,),
            outputs=(folder,),
            limited=limited,
            environment={"OPENBLAS_NUM_THREADS": "1"} if hides else {},
        )

    ours = leg("outcore streams", "streams", BUDGET)
    two = leg("memory and disk, two levels", "two levels", limit * 3 // 4)
    files = leg("plain files", "plain files", 0)
    prefetching = leg("prefetching without direct I/O", "prefetching", 0)
    direct = leg("direct I/O without prefetching", "direct", 0)
    memory = leg("all in memory", "in memory", 0, limited=False)
    total = parts * part_bytes
    return Case(
        f"iterative-{algorithm}",
        f"{title}: {epochs} passes over {total / GIB:.1f} GiB within {limit >> 20} MiB",
        "s",
        [ours, two, files, prefetching, direct, memory],
        [
            Comparison(ours.name, (two.name,), "two-level caching", 1.5),
            Comparison(ours.name, (files.name,), "plain files", 1.34),
            Comparison(ours.name, (prefetching.name,), "prefetching without direct I/O"),
            Comparison(ours.name, (direct.name,), "direct I/O without prefetching"),
            Comparison(ours.name, (memory.name,), "all in memory", 1 / 1.1 if hides else None),
        ],
        Bound(read_bytes=total * epochs, written_bytes=total, note="written once, read once a pass"),
        limit_over_bytes=limit,
        notes=(
            "The process limit counts the page cache too. Two levels keep three quarters of it as objects, ours has a budget of "
            "64 MiB. Making the rows is not timed; writing them is, and making them durable.",
            *(("NumPy multiplies with one thread in all models: a core is free for whoever moves bytes.",) if hides else ()),
        ),
    )


BUILDERS: dict[str, Callable[[Context], Case]] = {
    "streams-write": lambda context: whole(context, "write"),
    "streams-read": lambda context: whole(context, "read"),
    "streams-many": many,
    "streams-records": records,
    "iterative-logistic": lambda context: iterative(context, "logistic", "logistic regression by the full gradient", False),
    "iterative-kmeans": lambda context: iterative(context, "kmeans", f"k-means of {CLUSTERS} clusters", True),
}
