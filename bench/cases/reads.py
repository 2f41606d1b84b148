"""The engine's sequential and random reads against fio on the same file."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cases.limits import limit_legs, limit_names
from cases.pca import tall_file
from harness.model import MIB, Bound, Case, Comparison, Context, Leg, Measure, relative

BLOCK = MIB
STREAM_DEPTHS = (4, 8, 16, 32)
GATHER_BATCHES = (1024, 4096, 16384)
PLACES_PER_REQUEST = 256
"""A batch that holds more of the file's places has neighbours and repeats, which gather reads once: no like for like with fio."""
SECONDS = 30.0
CORE = 0
EXAMPLE_BUDGET = 256 * MIB
"""What the example gives its engine."""


def program() -> str:
    """Relative, and with a slash in it, so that the shell's search path plays no part."""
    target = Path(os.environ.get("CARGO_TARGET_DIR", "target"))
    return relative(target / "release" / "examples" / "stream_and_gather")


def stream(context: Context) -> Case:
    file = tall_file(context)
    timing: dict[str, Any] = {"seconds": context.seconds(SECONDS)}
    ours = Leg(
        "outcore stream",
        "tools.example",
        {**timing, "program": program()},
        cold=(file.path,),
        limited=True,
        sweep=tuple({"arguments": ["stream", file.path, BLOCK, depth]} for depth in STREAM_DEPTHS),
    )
    size = file.nbytes // BLOCK * BLOCK
    return Case(
        "stream",
        f"stream over {file.nbytes / 2**30:.1f} GiB in blocks of 1 MiB, budget 256 MiB, process limited to 64 MiB more",
        "GB/s",
        [ours, *limit_legs(context, "read", file=(file.path, size))],
        [Comparison(ours.name, limit_names("read"), "the device's limit, sequential read", 0.95)],
        Bound(note="the device's sequential read"),
        [file],
        limit_over_bytes=EXAMPLE_BUDGET,
        needs=("example",),
        notes=("Read-ahead is chosen by a sweep.",),
        measures=(Measure(ours.name, "cores", "one core", at_most=0.10),),
    )


def gather(context: Context, size: int) -> Case:
    file = tall_file(context)
    count = context.count(1_000_000)
    timing: dict[str, Any] = {"seconds": context.seconds(SECONDS), "core": CORE}
    ours = Leg(
        "outcore gather",
        "tools.example",
        {**timing, "program": program(), "requests": count},
        cold=(file.path,),
        sweep=tuple({"arguments": ["gather", file.path, size, count, batch]} for batch in batches(file.nbytes // size)),
    )
    access, whole = f"randread {size}", (file.path, file.nbytes // size * size)
    return Case(
        f"gather-{size}B",
        f"gather of {size} B at random from a cold file of {file.nbytes / 2**30:.1f} GiB, one core",
        "IOPS",
        [ours, *limit_legs(context, access, file=whole, count="requests")],
        [Comparison(ours.name, limit_names(access), "the device's limit, random reads", 0.9)],
        Bound(note="the device's random reads"),
        [file],
        needs=("example",),
        notes=("The batch of gather is chosen by a sweep.",),
    )


def batches(places: int) -> list[int]:
    most = max(1, places // PLACES_PER_REQUEST)
    return [batch for batch in GATHER_BATCHES if batch <= most] or [most]


BUILDERS: dict[str, Callable[[Context], Case]] = {
    "stream": stream,
    "gather-4096B": lambda context: gather(context, 4096),
    "gather-512B": lambda context: gather(context, 512),
}
