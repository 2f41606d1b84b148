"""Medians, spreads, and what may be said about a ratio.

Few rounds are run, so a spread is the whole range seen, lowest to highest, and never a standard error. Ratios are taken pair by
pair: ours of a round over the rival's of the same round, so that what drifts slowly on a machine cancels.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Spread:
    median: float
    low: float
    high: float
    count: int


def spread(values: Sequence[float]) -> Spread:
    if not values:
        raise ValueError("no values")
    return Spread(statistics.median(values), min(values), max(values), len(values))


def against_target(ratio: Spread, target: float) -> str:
    """Whether a target was reached, and whether the noise leaves room for the other answer."""
    word = "reached" if ratio.median >= target else "missed"
    clear = ratio.low >= target or ratio.high < target
    return word if clear else f"{word}, within the noise"


def against_rival(ratio: Spread) -> str:
    """The difference in words; one whose range holds 1 is no difference."""
    if ratio.low <= 1 <= ratio.high and ratio.count > 1:
        return "no difference beyond the noise"
    return "faster" if ratio.median > 1 else "slower" if ratio.median < 1 else "equal"
