"""What a cache of any size would save: how often rows are looked up again, and the misses of each policy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from . import _native
from ._units import show_bytes
from .errors import ArgumentError

__all__ = ["POLICIES", "Profile", "draw", "hottest", "profile_of"]

POLICIES = ("static", "lru", "s3-fifo", "belady")
"""The rows that occur most; the two that a table can have; and the best that is possible where all look-ups are known."""
EXACT_LOOKUPS = 2_000_000
SAMPLED_ROWS = 100_000
"""Rows that are followed of a list that is longer."""
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
    """The profile of row numbers in the order in which they are looked up, as from an array of any shape."""
    numbers = np.asarray(ids).ravel()
    if numbers.dtype.kind not in "iu" or (numbers.size and numbers.min() < 0):
        raise ArgumentError("row numbers are integers, none of them negative")
    numbers = np.ascontiguousarray(numbers, np.uint64)
    shares, rows = _native.reuse_shares(numbers)
    cache_rows = sorted({max(1, rows >> power) for power in range(12)})
    rate = 1.0 if len(numbers) <= EXACT_LOOKUPS else min(1.0, SAMPLED_ROWS / max(1, rows))
    count = max(1, len(numbers))
    misses = {
        policy: tuple(one / count for one in _native.cache_misses(numbers, policy, cache_rows, rate)) for policy in policies
    }
    return Profile(len(numbers), rows, tuple(shares), tuple(cache_rows), misses, row_bytes)


def hottest(ids: npt.ArrayLike, rows: int) -> npt.NDArray[np.uint64]:
    """The `rows` row numbers that are looked up most, most first: for `Table.keep`."""
    found, counts = np.unique(np.asarray(ids).ravel(), return_counts=True)
    return found[np.argsort(-counts, kind="stable")[:rows]].astype(np.uint64)


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
