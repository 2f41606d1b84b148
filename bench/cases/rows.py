"""Rows by their numbers: some at random, and all of them in random order as two files."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cases.limits import limit_legs, limit_names
from cases.pca import budget_of
from cases.sparse import check_room
from cases.streams import new_file_legs
from harness.model import GIB, KIB, MIB, Bound, Case, Comparison, Context, DataFile, Leg, RowsCopy

TOTAL, MEMORY = 8 * GIB, GIB
SHORT, LONG = 400, 32 * KIB
"""Bytes of a row."""
ASKED = 100_000
SECONDS = 5.0
SECTOR = f"randread {4 * KIB}"
"""What a row is read by, at least."""
CHUNK_BYTES = MIB
"""Of h5py and Zarr: as fast for these rows as any, where smaller chunks cost more to find than to read."""
TRAIN = 0.8
CALLER_BYTES = 24
"""For each row, beside our budget: its number as the caller has it, without a sign, and as the engine has it."""

OURS = "outcore"
NUMPY = "numpy, a memory map"
H5PY = "h5py"
ZARR = "Zarr"


def numbered(context: Context, row_bytes: int) -> DataFile:
    rows = context.count(TOTAL // row_bytes)
    return DataFile(context.path(f"rows-{row_bytes}.npy"), rows, row_bytes // 4, "numbered", seed=4)


def rows(context: Context) -> Case:
    file, memory, count = numbered(context, SHORT), budget_of(context, MEMORY), context.count(ASKED)
    chunked = RowsCopy(context.path("rows-chunked.h5"), file, "h5py", CHUNK_BYTES // file.row_bytes)
    whole = RowsCopy(context.path("rows-whole.h5"), file, "h5py")
    zarr = RowsCopy(context.path("rows.zarr"), file, "zarr", CHUNK_BYTES // file.row_bytes)
    copies = (chunked, whole, zarr)
    check_room(context, file.nbytes * (1 + len(copies)))
    spec: dict[str, Any] = {"a": file.path, "count": count, "seconds": context.seconds(SECONDS)}
    ours = Leg(OURS, "ours.rows", {**spec, "memory": memory, "scratch": context.path("scratch")}, cold=(file.path,), limited=True)
    numpy = Leg(NUMPY, "with_numpy.rows", spec, cold=(file.path,), limited=True, sweep=({"random": True}, {"random": False}))
    h5py = Leg(
        H5PY,
        "with_h5py.rows",
        spec,
        cold=(chunked.path, whole.path),
        limited=True,
        sweep=tuple({"path": copy.path, "at_once": at_once} for copy in (chunked, whole) for at_once in (1, 100)),
    )
    zarr_leg = Leg(
        ZARR,
        "with_zarr.rows",
        {**spec, "path": zarr.path},
        cold=(zarr.path,),
        limited=True,
        sweep=tuple({"concurrency": concurrency} for concurrency in (1, 10, 64)),
    )
    return Case(
        "rows",
        f"{count:,} random rows of {file.row_bytes} B out of {file.nbytes / GIB:.1f} GiB as a NumPy array, budget "
        f"{memory >> 20} MiB, process limited to 64 MiB more",
        "IOPS",
        [ours, numpy, h5py, zarr_leg, *limit_legs(context, SECTOR, file=(file.path, file.nbytes // MIB * MIB), count="requests")],
        [
            Comparison(OURS, (NUMPY, H5PY, ZARR), "the fastest of a memory map, h5py and Zarr", 5),
            *(Comparison(OURS, (name,), name) for name in (NUMPY, H5PY, ZARR)),
            Comparison(OURS, limit_names(SECTOR), "the device's limit, random reads of 4,096 B"),
        ],
        Bound(note="the device's random reads"),
        [file, *copies],
        limit_over_bytes=memory,
        needs=("h5py", "zarr"),
        notes=(
            "Counted are sectors of 4,096 B that hold the rows of the `.npy` file, each once: what has to be read at least. "
            "Nearly a tenth of the rows lie in two.",
            "Opening is timed. Rows differ from leg to leg and sample to sample. Rivals read them in ascending order and put "
            "them in the order asked for; files of h5py and Zarr hold the same rows, not compressed.",
        ),
    )


def split(context: Context, name: str, row_bytes: int, passes: tuple[str, ...]) -> Case:
    file, limit_over = numbered(context, row_bytes), budget_of(context, MEMORY)
    memory, out = (limit_over - CALLER_BYTES * file.rows) // MIB * MIB, context.path("split")
    total = file.rows * file.row_bytes
    moved = total * len(passes) // 2
    check_room(context, total * (1 + len(passes) // 2) + total // 2)
    ours = Leg(
        OURS,
        "ours.split",
        {"a": file.path, "out": out, "share": TRAIN, "memory": memory, "scratch": context.path("scratch")},
        work=total,
        cold=(file.path,),
        outputs=(out,),
        limited=True,
    )
    by_rows = f"randread {row_bytes}"
    in_place = (by_rows,) if len(passes) == 2 else ()
    reads = limit_legs(context, "read", *in_place, file=(file.path, file.nbytes // MIB * MIB))
    writes = new_file_legs(context.path("fio-new.bin"), max(64 * MIB, total // 2 // MIB * MIB))
    ways = " and ".join(dict.fromkeys(passes))
    return Case(
        name,
        f"a random split of {total / GIB:.1f} GiB of rows of {row_bytes:,} B into {TRAIN:.0%} and the rest, both in random "
        f"order, budget {memory >> 20} MiB, process limited to {(limit_over >> 20) + 64} MiB",
        "GB/s",
        [ours, *reads, *writes],
        [
            Comparison(
                OURS,
                (*limit_names("read"), *(leg.name for leg in writes)),
                f"the device's limit, {len(passes)} passes: {ways}, one after another",
                0.7,
                passes=passes,
            ),
            *(
                Comparison(
                    OURS,
                    (*limit_names(access), *(leg.name for leg in writes)),
                    "the same, its reads a row each and in random order",
                    passes=(access, "write"),
                )
                for access in in_place
            ),
        ],
        Bound(read_bytes=moved, written_bytes=moved, note=f"all rows read and written {'once' if len(passes) == 2 else 'twice'}"),
        [file],
        limit_over_bytes=limit_over,
        notes=(
            "The rate counts the bytes of all rows once. The bound lets reading and writing overlap, as that of every case; the "
            "passes of the comparison follow each other. Written are new files, on both sides: their space is set aside, and "
            "they are synced at the end. Two calls read short rows once more than the bound has it: each reads the whole file.",
            f"The numbers of the rows are the caller's: the budget leaves {CALLER_BYTES} bytes for each within the limit.",
        ),
    )


BUILDERS: dict[str, Callable[[Context], Case]] = {
    "rows": rows,
    "split-short": lambda context: split(context, "split-short", SHORT, ("read", "write", "read", "write")),
    "split": lambda context: split(context, "split", LONG, ("read", "write")),
}
