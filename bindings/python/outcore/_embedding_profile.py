"""What a cache of any size would save: how often rows are looked up again, and the misses of each policy."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from . import _native
from ._units import show_bytes
from .errors import ArgumentError

T = TypeVar("T")

__all__ = ["POLICIES", "Profile", "draw", "hottest", "profile_of"]

POLICIES = ("static", "lru", "s3-fifo", "belady")
"""The rows that occur most; the two that a table can have; and the best that is possible where all look-ups are known."""
EXACT_LOOKUPS = 2_000_000
SAMPLED_ROWS = 100_000
"""Rows that are followed of a list that is longer."""
SAMPLED_LOOKUPS, LEAST_ROWS = 1_000_000, 1000
"""Look-ups that are kept, some 70 bytes each, where all have to be known before the first miss is: about as many, unless they
were of fewer rows than these."""
COUNTED_ROWS = 2_000_000
"""Rows whose look-ups are counted at a time, 24 bytes each; lists of more rows are gone through several times."""
CHUNK_IDS = 1 << 20
SLOT_BYTES = 120
"""What a row takes in a cache besides its own bytes: index, policy and statistics."""


@dataclass(frozen=True)
class Profile:
    """Of a list of row numbers that are looked up one after another."""

    lookups: int
    rows: int
    """Different ones."""
    shares: tuple[float, ...]
    """Of the look-ups, by how often their row occurs: once, twice, 3 to 4 times, 5 to 8, and so on."""
    cache_rows: tuple[int, ...]
    misses: dict[str, tuple[float, ...]]
    """By policy: the part of the look-ups that miss in a cache of each of `cache_rows`."""
    row_bytes: int

    @property
    def cache_bytes(self) -> tuple[int, ...]:
        """Memory of the caches, their tables included."""
        return tuple(rows * (self.row_bytes + SLOT_BYTES) for rows in self.cache_rows)

    def lines(self) -> list[str]:
        """A table: what budget buys what."""
        head = f"{'budget':>10} {'rows':>12}  " + "  ".join(f"{policy:>8}" for policy in self.misses)
        body = [
            f"{show_bytes(size):>10} {rows:>12,}  " + "  ".join(f"{1 - of[at]:>8.1%}" for of in self.misses.values())
            for at, (size, rows) in enumerate(zip(self.cache_bytes, self.cache_rows, strict=True))
        ]
        return [f"{self.lookups:,} look-ups of {self.rows:,} rows; hit rates:", head, *body]


def profile_of(ids: npt.ArrayLike, row_bytes: int, *, policies: Sequence[str] = POLICIES) -> Profile:
    """The profile of row numbers in the order in which they are looked up, as from an array of any shape, or a memory map.

    Of more than two million look-ups, the misses of all policies but the static one are estimated from a sample of the rows.
    Memory: some 200 MB, however long the list is, unless a thousand rows have most of the look-ups.
    """
    times, rows_of = _occurrences(ids)
    lookups, rows = int((times * rows_of).sum()), int(rows_of.sum())
    cache_rows = sorted({max(1, rows >> power) for power in range(12)})
    rate = rate_of_kept = 1.0
    if lookups > EXACT_LOOKUPS:
        rate = min(1.0, SAMPLED_ROWS / rows)
        rate_of_kept = min(rate, max(SAMPLED_LOOKUPS / lookups, LEAST_ROWS / rows))
    caches = {
        policy: _native.CacheMisses(policy, cache_rows, rate_of_kept if policy == "belady" else rate)
        for policy in policies
        if policy != "static"
    }
    for chunk in _chunks(ids):
        for cache in caches.values():
            cache.add(chunk)
    count = max(1, lookups)
    missed = {policy: cache.misses() for policy, cache in caches.items()}
    missed["static"] = _static_misses(times, rows_of, cache_rows)
    misses = {policy: tuple(one / count for one in missed[policy]) for policy in policies}
    bins = np.bincount([int(often - 1).bit_length() for often in times], times * rows_of)
    return Profile(lookups, rows, tuple((bins / count).tolist()), tuple(cache_rows), misses, row_bytes)


def hottest(ids: npt.ArrayLike, rows: int) -> npt.NDArray[np.uint64]:
    """The `rows` row numbers that are looked up most, most first: for `Table.keep`."""
    found = times = np.empty(0, np.uint64)
    for ids_of_part, times_of_part in _counted(ids, lambda counts: counts.hottest(rows)):
        found, times = np.concatenate([found, ids_of_part]), np.concatenate([times, times_of_part])
        most_first = np.lexsort((found, -times.astype(np.int64)))[:rows]
        found, times = found[most_first], times[most_first]
    return found


def _chunks(ids: npt.ArrayLike) -> Iterator[npt.NDArray[np.uint64]]:
    numbers = np.asarray(ids).reshape(-1)
    if numbers.dtype.kind not in "iu":
        raise ArgumentError("row numbers are integers, none of them negative")
    for first in range(0, len(numbers), CHUNK_IDS):
        some = numbers[first : first + CHUNK_IDS]
        if some.min() < 0:
            raise ArgumentError("row numbers are integers, none of them negative")
        yield np.ascontiguousarray(some, np.uint64)


def _counted(ids: npt.ArrayLike, take: Callable[[_native.ReuseCounts], T]) -> Iterator[T]:
    """What is taken of how often rows occur, part by part of the rows, each small enough for memory."""
    part, bits = 0, 0
    while part < 1 << bits:
        counts = _native.ReuseCounts(part, bits)
        for chunk in _chunks(ids):
            counts.add(chunk)
            if counts.rows > COUNTED_ROWS:
                part, bits = 2 * part, bits + 1
                break
        else:
            taken = take(counts)
            # The next ones are not beside them.
            del counts
            yield taken
            part += 1


def _occurrences(ids: npt.ArrayLike) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """How often rows occur, most often first, and how many rows occur so often."""
    histograms = list(_counted(ids, lambda counts: counts.histogram()))
    times, places = np.unique(np.concatenate([times for times, _ in histograms]), return_inverse=True)
    rows = np.bincount(places, np.concatenate([rows for _, rows in histograms]), minlength=len(times))
    return times[::-1].astype(np.int64), rows[::-1].astype(np.int64)


def _static_misses(times: npt.NDArray[np.int64], rows: npt.NDArray[np.int64], cache_rows: Sequence[int]) -> list[float]:
    """Look-ups of all rows but those that occur most."""
    before = rows.cumsum() - rows
    return [float((times * (rows - np.clip(held - before, 0, rows))).sum()) for held in cache_rows]


def draw(profile: Profile, path: str) -> None:
    """A picture of reuse and of the miss curves."""
    try:
        import matplotlib as mpl
    except ImportError as error:
        raise ImportError("pictures need matplotlib: pip install outcore[demo]") from error
    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
    names = ["1", "2"] + [f"{(1 << power - 1) + 1:,}-{1 << power:,}" for power in range(2, len(profile.shares))]
    left.bar(range(len(profile.shares)), [100 * share for share in profile.shares])
    left.set_xticks(range(len(profile.shares)), names[: len(profile.shares)], rotation=60, ha="right")
    left.set(xlabel="times that the row is looked up", ylabel="% of the look-ups", title="Reuse")
    for policy, misses in profile.misses.items():
        right.plot(profile.cache_bytes, [100 * part for part in misses], marker="o", markersize=3, label=policy)
    right.set(
        xscale="log", ylim=(0, 102), xlabel="memory of the cache, bytes", ylabel="% of the look-ups that miss", title="Misses"
    )
    right.legend()
    right.grid(alpha=0.3)
    figure.savefig(path, dpi=120)
    plt.close(figure)


def facts(profile: Profile) -> dict[str, Any]:
    """The same as numbers."""
    return {
        "lookups": profile.lookups,
        "rows": profile.rows,
        "shares": list(profile.shares),
        "cache_rows": list(profile.cache_rows),
        "cache_bytes": list(profile.cache_bytes),
        "misses": {policy: list(of) for policy, of in profile.misses.items()},
    }
