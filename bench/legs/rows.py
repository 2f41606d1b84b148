"""Rows by their numbers, by every contestant of `rows` and `split`: which ones, what there is to read of them, and whether those
that came are right.

The rows are those of `harness.data.Numbered`, whose first two columns tell their number. Which ones are asked for differs from
process to process, as fio's places do, so that no contestant finds in a cache of the device what another one read; the seed is
kept with the result, and a spec with that `seed` asks for them again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from legs.measure import Array, cold, sampled

Spec = dict[str, Any]
Result = dict[str, Any]

SECTOR_BYTES = 4096
CHECKED_WHOLE = 64
CHECKED_AT_ONCE_BYTES = 8 << 20


def seed_of(spec: Spec) -> int:
    return int(spec.get("seed", np.random.SeedSequence().entropy))


def timed_rows(spec: Spec, take: Callable[[Array], Array], paths: Sequence[str]) -> Result:
    """Some rows at random, others each time; `paths` are what is read, and leave the kernel's cache before."""
    seed, error = seed_of(spec), 0.0
    random = np.random.default_rng(seed)
    asked: list[Array] = []
    found: list[Array] = []
    sectors: list[int] = []

    def before() -> None:
        nonlocal error
        error = max(error, check())
        x = np.load(spec["a"], mmap_mode="r")
        asked[:], found[:] = [random.integers(0, len(x), spec["count"])], []
        sectors.append(least_sectors(asked[0], x[:1].nbytes, x.offset))
        # What is mapped does not leave the cache.
        del x
        cold([spec["a"], *paths])

    def check() -> float:
        x = np.load(spec["a"], mmap_mode="r")
        return max((rows_error(rows, numbers, x) for rows, numbers in zip(found, asked, strict=False)), default=0.0)

    timed = sampled(lambda: found.append(take(asked[0])), seconds=spec["seconds"], before=before)
    return {**timed, "work": float(np.mean(sectors)), "rows": spec["count"], "seed": str(seed), "error": max(error, check())}


def least_sectors(numbers: Array, row_bytes: int, header_bytes: int) -> int:
    """Sectors of the file that hold rows, each counted once: what has to be read of it whatever the way."""
    first = (header_bytes + numbers * row_bytes) // SECTOR_BYTES
    last = (header_bytes + (numbers + 1) * row_bytes - 1) // SECTOR_BYTES
    across = np.arange(int((last - first).max(initial=0)) + 1)
    touched = first[:, None] + across
    return len(np.unique(touched[touched <= last[:, None]]))


def rows_error(found: Array, numbers: Array, x: Array) -> float:
    """0 where all rows have their numbers and some their values, else infinite. `found` may be a memory map."""
    if found.shape != (len(numbers), x.shape[1]) or found.dtype != x.dtype:
        return np.inf
    at_once = max(1, CHECKED_AT_ONCE_BYTES // x[:1].nbytes)
    for start in range(0, len(numbers), at_once):
        thousands, rest = np.asarray(found[start : start + at_once, :2], np.float64).T
        if not np.array_equal(thousands * 4096 + rest, numbers[start : start + at_once]):
            return np.inf
    for place in np.unique(np.linspace(0, len(numbers) - 1, CHECKED_WHOLE).astype(np.int64)):
        if not np.array_equal(found[place], x[numbers[place]]):
            return np.inf
    return 0.0
