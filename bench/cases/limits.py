"""The device's limit as legs of a case: fio, measured in the same rounds, the best of small and huge pages over depths.

A device is told its buffers by pages. One that reads 4 to 5 GB/s into huge pages may read 1 GB/s into small ones, or as fast, by
where these happen to lie; outcore's memory is huge pages where the system has them. The limit of a round is the faster of both.
"""

from __future__ import annotations

import os
from typing import Any

from harness import device
from harness.model import GIB, MIB, Context, Leg, RandomFile

SECONDS, SWEEP_S = 3.0, 1.0
FILE_BYTES = 4 * GIB
STREAM_DEPTHS, RANDOM_DEPTHS = (4, 8, 32), (64, 128, 256)
LARGE = 128 << 10
"""From here on a depth of a stream fills every queue."""
ACCESSES = {"read": "sequential read", "write": "sequential write", "randread": "random read"}


def limit_file(context: Context) -> RandomFile:
    """One for all cases whose own files are too small or of a shape that fio has no use for."""
    return RandomFile(context.path("fio.bin"), max(64 * MIB, MIB * context.count(FILE_BYTES // MIB)))


def limit_legs(context: Context, *accesses: str, file: tuple[str, int] | None = None, count: str = "bytes") -> list[Leg]:
    """Legs for each of `accesses`: `read`, `write`, `randread 4096`. `file`: path and bytes."""
    path, size = file or (limit_file(context).path, limit_file(context).nbytes)
    spec: dict[str, Any] = {"file": path, "size_bytes": size, "seconds": context.seconds(SECONDS), "count": count}
    return [
        Leg(
            limit_name(access, pages),
            "tools.fio",
            {**spec, **options_of(access), **memory},
            cold=(path,),
            sweep=sweep_of(access)[0 if context.scale == 1 else -2 :],
            sweep_s=SWEEP_S,
            access=access,
        )
        for access in accesses
        for pages, memory in buffers().items()
    ]


def buffers() -> dict[str, dict[str, Any]]:
    return {"small pages": {}, **({"huge pages": device.HUGE} if device.has_huge_pages() else {})}


def limit_name(access: str, pages: str) -> str:
    return f"fio, {described(access)}, {pages}"


def limit_names(access: str) -> tuple[str, ...]:
    return tuple(limit_name(access, pages) for pages in buffers())


def described(access: str) -> str:
    kind, _, size = access.partition(" ")
    return f"{ACCESSES[kind]}{f' of {size} B' if size else ''}"


def options_of(access: str) -> dict[str, Any]:
    kind, _, size = access.partition(" ")
    return {"rw": kind, "bs": int(size) if size else MIB}


def sweep_of(access: str) -> tuple[dict[str, Any], ...]:
    """Registered at every depth, and once not: a system may refuse to pin that much memory.

    Small requests also by a process a core: to ask for them takes a core all of its time.
    """
    size = options_of(access)["bs"]
    depths = RANDOM_DEPTHS if size < LARGE else STREAM_DEPTHS
    together = {"iodepth": depths[0], **device.REGISTERED, "numjobs": os.cpu_count() or 1, "group_reporting": 1}
    by_all_cores = [together] if size < LARGE else []
    return (*({"iodepth": depth, **device.REGISTERED} for depth in depths), *by_all_cores, {"iodepth": depths[1]})
