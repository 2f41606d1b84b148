"""Streams: whole ones against fio, many at once, small records, and the iterative algorithms of SSDStreamer's paper."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cases.limits import STREAM_DEPTHS, buffers, limit_file, limit_legs, limit_name
from harness.device import REGISTERED
from harness.model import GIB, MIB, Bound, Case, Comparison, Context, Leg, Measure

BLOCK = 4 * MIB
MANY_BLOCK = MIB
AHEAD = (2, 4)
"""Blocks in memory at once: more are no faster, and out of the core's cache when they are summed."""
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
    limits = read_back_legs(file, total) if kind == "read" else new_file_legs(file, total)
    device = tuple(leg.name for leg in limits)
    against = "the device's limit, " + ("sequential read" if kind == "read" else "a new file written and synced")
    bound = {"read": Bound(read_bytes=total), "write": Bound(written_bytes=total)}[kind]
    return Case(
        f"streams-{kind}",
        f"{kind} a stream of {total / GIB:.1f} GiB, blocks of 4 MiB, checksums on, budget 64 MiB, process limited to 64 MiB more",
        "GB/s",
        [lent, copied, *limits],
        [
            Comparison(lent.name, device, against, 0.95, headline=True),
            Comparison(copied.name, device, f"{against}; one copy of ours", 0.95),
        ],
        bound,
        [],
        limit_over_bytes=BUDGET,
        notes=(
            "Space is set aside before the clock starts and what is written is durable when it stops, on both sides; our blocks "
            "carry checksums, which are checked when they are read. Blocks ahead of ours are chosen by a sweep.",
        ),
        headline=f"a stream of {total / GIB:.0f} GiB, {kind}, within {BUDGET >> 20} MiB, checksums on",
        measures=(
            Measure(lent.name, "cores", "one core, with lent buffers", at_most=0.20),
            Measure(copied.name, "cores", "one core, with one copy", at_most=0.35),
        ),
    )


def read_back_legs(file: str, total: int) -> list[Leg]:
    """The device's limit of reading, by fio, under the conditions of ours: a file that was written just before."""
    settings = [
        *({"bs": MIB, "iodepth": depth, **REGISTERED} for depth in STREAM_DEPTHS),
        {"bs": MIB, "iodepth": STREAM_DEPTHS[1]},
    ]
    return [
        Leg(
            limit_name("read", pages),
            "tools.fio_written",
            {"file": file, "size_bytes": total, "rw": "read", **memory},
            work=total,
            outputs=(file,),
            sweep=tuple(settings),
            access="read",
        )
        for pages, memory in buffers().items()
    ]


def new_file_legs(file: str, total: int) -> list[Leg]:
    """The device's limit of writing, by fio, under the conditions of ours: a new file, its space set aside, synced at the end."""
    settings = ({"bs": MIB, "iodepth": 8}, {"bs": MIB, "iodepth": 32}, {"bs": BLOCK, "iodepth": 4})
    return [
        Leg(
            f"fio, new file, {pages}",
            "tools.fio_once",
            {"file": file, "size_bytes": total, "rw": "write", **memory},
            work=total,
            outputs=(file,),
            sweep=(*({**setting, **REGISTERED} for setting in settings), settings[0]),
            access="write",
        )
        for pages, memory in buffers().items()
    ]


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
        needs=("pyarrow",),
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
        [ours, two, files, prefetching, direct, memory, *limit_legs(context, "read", "write")],
        [
            Comparison(ours.name, (two.name,), "two-level caching by Spark's rule"),
            Comparison(ours.name, (files.name,), "plain files", 1.34),
            Comparison(ours.name, (prefetching.name,), "prefetching without direct I/O"),
            Comparison(ours.name, (direct.name,), "direct I/O without prefetching"),
            Comparison(ours.name, (memory.name,), "all in memory", 1 / 1.1 if hides else None),
        ],
        Bound(read_bytes=total * epochs, written_bytes=total, note="written once, read once a pass"),
        [limit_file(context)],
        limit_over_bytes=limit,
        notes=(
            "The process limit counts the page cache too. Two levels keep three quarters of it as objects, the first that fit, "
            "as a block of Spark's never evicts another one of its own data set; ours has a budget of 64 MiB. Writing counts "
            "pickling and reading counts unpickling, for all. Making the rows is not timed; writing and syncing them is.",
            *(("NumPy multiplies with one thread in all models: the other core is free for moving bytes.",) if hides else ()),
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
