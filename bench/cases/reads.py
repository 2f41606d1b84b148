"""The engine's sequential and random reads against fio on the same file."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cases.pca import tall_file
from harness.model import MIB, Bound, Case, Comparison, Context, Leg, Measure, relative

BLOCK = MIB
STREAM_DEPTHS = (4, 8, 16, 32)
GATHER_DEPTHS = (32, 64, 128, 256)
GATHER_BATCHES = (1024, 4096, 16384)
PLACES_PER_REQUEST = 256
"""A batch that holds more of the file's places has neighbours and repeats, which gather reads once: no like for like with fio."""
CORE = 0
EXAMPLE_BUDGET = 256 * MIB
"""What the example gives its engine."""


def program() -> str:
    """Relative, and with a slash in it, so that the shell's search path plays no part."""
    target = Path(os.environ.get("CARGO_TARGET_DIR", "target"))
    return relative(target / "release" / "examples" / "stream_and_gather")


def stream(context: Context) -> Case:
    file = tall_file(context)
    timing: dict[str, Any] = {"seconds": context.seconds}
    ours = Leg(
        "outcore stream",
        "tools.example",
        {**timing, "program": program()},
        cold=(file.path,),
        limited=True,
        sweep=tuple({"arguments": ["stream", file.path, BLOCK, depth]} for depth in STREAM_DEPTHS),
    )
    fio = Leg(
        "fio io_uring read",
        "tools.fio",
        {**timing, "file": file.path, "size_bytes": file.nbytes // BLOCK * BLOCK, "rw": "read", "bs": BLOCK, "count": "bytes"},
        cold=(file.path,),
        sweep=tuple({"iodepth": depth} for depth in STREAM_DEPTHS),
    )
    return Case(
        "stream",
        f"stream over {file.nbytes / 2**30:.1f} GiB in blocks of 1 MiB, budget 256 MiB, process limited to 64 MiB more",
        "GB/s",
        [ours, fio],
        [Comparison(ours.name, (fio.name,), "fio io_uring, same block size, direct", 0.95)],
        Bound(note="the device's sequential read"),
        [file],
        limit_over_bytes=EXAMPLE_BUDGET,
        needs=("fio", "example"),
        notes=("Read-ahead and fio's depth are each chosen by a sweep.",),
        measures=(Measure(ours.name, "cores", "one core", at_most=0.10),),
    )


def gather(context: Context, size: int) -> Case:
    file = tall_file(context)
    count = context.count(1_000_000)
    timing: dict[str, Any] = {"seconds": context.seconds, "core": CORE}
    ours = Leg(
        "outcore gather",
        "tools.example",
        {**timing, "program": program(), "requests": count},
        cold=(file.path,),
        sweep=tuple({"arguments": ["gather", file.path, size, count, batch]} for batch in batches(file.nbytes // size)),
    )
    registered = {"fixedbufs": 1, "registerfiles": 1}
    fio = Leg(
        "fio io_uring randread",
        "tools.fio",
        {
            **timing,
            "file": file.path,
            "size_bytes": file.nbytes // size * size,
            "rw": "randread",
            "bs": size,
            "count": "requests",
        },
        cold=(file.path,),
        sweep=tuple({"iodepth": depth, **more} for depth in GATHER_DEPTHS for more in ({}, registered)),
    )
    return Case(
        f"gather-{size}B",
        f"gather of {size} B at random from a cold file of {file.nbytes / 2**30:.1f} GiB, one core",
        "IOPS",
        [ours, fio],
        [Comparison(ours.name, (fio.name,), "fio io_uring randread at its best depth", 0.9)],
        Bound(note="the device's random reads"),
        [file],
        needs=("fio", "example"),
        notes=(
            "fio's depth, with and without registered buffers and files, and the batch of gather are each chosen by a sweep.",
        ),
    )


def batches(places: int) -> list[int]:
    most = max(1, places // PLACES_PER_REQUEST)
    return [batch for batch in GATHER_BATCHES if batch <= most] or [most]


BUILDERS: dict[str, Callable[[Context], Case]] = {
    "stream": stream,
    "gather-4096B": lambda context: gather(context, 4096),
    "gather-512B": lambda context: gather(context, 512),
}
