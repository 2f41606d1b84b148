"""Traces from published production tables: how often rows are looked up again.

Meta publishes, for some hundred embedding tables, a histogram of how often each row was looked up in one large batch. It says
nothing of the order and of the ids. `Reuse` makes ids of which as many look-ups go to rows of each frequency as published; which
rows those are, and the order, are random. Source: facebookresearch/dlrm_datasets (MIT), `embedding_bag/*/locality_stats.txt`.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .._files import read_regular
from .._settings import PathLike
from ..errors import ArgumentError, CorruptError
from .models import ModelSpec, TableSpec
from .traces import Ids, Trace, _each

__all__ = ["EDGES", "META_2021", "META_2022", "Histogram", "Reuse", "histogram_of", "read_histograms", "reuse_counts"]

Floats = npt.NDArray[np.float64]
Counts = npt.NDArray[np.int64]

EDGES = (0, *(1 << power for power in range(16)), 1 << 20)
"""A bin is the rows that were looked up more often than one edge says, and not more often than the next. The last bin has no end
in what is published."""


def __dir__() -> list[str]:
    return sorted(__all__)


@dataclass(frozen=True)
class Histogram:
    """How often the rows of tables are looked up.

    Attributes
    ----------
    name : str
    reuse : float
        Look-ups of a row, in the mean.
    rows, lookups : tuple of float
        For each bin between `EDGES`, the share of the rows, and of the look-ups of them.
    """

    name: str
    reuse: float
    rows: tuple[float, ...]
    lookups: tuple[float, ...]


META_2021 = Histogram(
    "Meta 2021, 856 tables",
    6.9,
    (0.473, 0.152, 0.139, 0.112, 0.072, 0.032, 0.011, 0.005, 0.002, 0.001, 0, 0, 0, 0, 0, 0, 0),
    (0.069, 0.044, 0.068, 0.101, 0.121, 0.104, 0.073, 0.058, 0.052, 0.050, 0.049, 0.048, 0.048, 0.043, 0.031, 0.023, 0.019),
)
META_2022 = Histogram(
    "Meta 2022, 788 tables",
    12.7,
    (0.342, 0.144, 0.149, 0.138, 0.112, 0.068, 0.029, 0.010, 0.004, 0.002, 0.001, 0.001, 0, 0, 0, 0, 0),
    (0.027, 0.023, 0.040, 0.068, 0.105, 0.120, 0.099, 0.070, 0.059, 0.054, 0.040, 0.072, 0.064, 0.047, 0.021, 0.017, 0.076),
)


def read_histograms(path: PathLike) -> list[Histogram]:
    """The histograms of a published `locality_stats.txt`: one for each file of the data set.

    Raises
    ------
    CorruptError
        For a text without histograms. Also MissingError, NotAFileError, DeniedError.
    """
    name = os.fsdecode(path)
    found = []
    for part in re.split(r"^(?=fbgemm\S*$)", read_regular(name).decode("utf-8", "replace"), flags=re.M):
        shares = [float(share) for share in re.findall(r"^\(\d+(?:, \d+\]|\+): ([\d.]+)$", part, re.M)]
        mean = re.search(r"^Avg col size: ([\d.]+)$", part, re.M)
        if mean and len(shares) == 2 * (len(EDGES) - 1):
            half = len(shares) // 2
            found.append(Histogram(part.split("\n", 1)[0], float(mean[1]), tuple(shares[:half]), tuple(shares[half:])))
    if not found:
        raise CorruptError(f"{name}: there are no histograms of reuse in it", object=name, offset=0)
    return found


def histogram_of(ids: Ids, name: str = "") -> Histogram:
    """The histogram of what was looked up in one table, or, with ids of their own for every table, in several."""
    counts = np.unique(ids, return_counts=True)[1]
    bins = np.searchsorted(EDGES, counts) - 1
    rows, lookups = np.bincount(bins, minlength=len(EDGES) - 1), np.bincount(bins, counts, len(EDGES) - 1)
    return Histogram(name, float(counts.mean()), tuple((rows / rows.sum()).tolist()), tuple((lookups / lookups.sum()).tolist()))


@dataclass(frozen=True)
class Reuse:
    """Look-ups of which as many go to rows of each frequency as a histogram says, in each table.

    Attributes
    ----------
    histogram : Histogram
    unique : int, optional
        Rows that are looked up, of each table; default what the mean of the histogram says.
    lifetime : float
        The part of the trace in which the look-ups of one row lie, from somewhere on: 1 for an order in which each look-up is
        independent of the others, less for rows that are popular for a while. What is published says nothing of it.

    Examples
    --------
    >>> Reuse(META_2021)(MODELS["RMC1"], 400, 32, 0)
    """

    histogram: Histogram
    unique: int | None = None
    lifetime: float = 1.0

    def __call__(self, spec: ModelSpec, batches: int, batch_size: int, seed: int = 0) -> Trace:
        if not 0 < self.lifetime <= 1:
            raise ArgumentError(f"lifetime must be a part of the trace, above 0 and up to 1, not {self.lifetime}")

        def ids(table: TableSpec, number: int) -> Ids:
            random = np.random.default_rng([seed, number])
            counts = reuse_counts(self.histogram, batches * batch_size * table.lookups, self.unique)
            if len(counts) > table.rows:
                raise ArgumentError(
                    f"{len(counts)} rows are looked up with this reuse, but the table has {table.rows}; see scaled"
                )
            rows = random.choice(table.rows, len(counts), replace=False)
            return self._ordered(np.repeat(rows, counts), counts, random)

        return _each(spec, batches, batch_size, ids)

    def _ordered(self, ids: Ids, counts: Counts, random: np.random.Generator) -> Ids:
        if self.lifetime == 1:
            random.shuffle(ids)
            return ids
        begin = np.repeat((1 - self.lifetime) * random.random(len(counts)), counts)
        return ids[np.argsort(begin + self.lifetime * random.random(len(ids)))]


def reuse_counts(histogram: Histogram, lookups: int, unique: int | None = None) -> Counts:
    """How often each row is looked up, so that look-ups are shared out over the bins as in the histogram.

    Inside a bin from a to b, rows have frequencies a (b/a)^(q^p) at quantiles q, and one p for all bins gives the number of rows.
    What is too little for one row of a bin goes to the bin below it. `unique` is by default what the mean of the histogram says.

    Raises
    ------
    ArgumentError
        Where no frequencies inside the bins give this number of rows.
    """
    low, high = np.array(EDGES[:-1]) + 1, np.array(EDGES[1:])
    shared = _shared(histogram.lookups, lookups, low, high)
    high[-1] = max(low[-1], min(high[-1], shared[-1]))
    least, most = -(-shared // high), shared // low
    if unique is None:
        unique = int(np.clip(round(lookups / histogram.reuse), least.sum(), most.sum()))
    if not least.sum() <= unique <= most.sum():
        raise ArgumentError(f"{lookups} such look-ups are of {least.sum()} to {most.sum()} rows, not of {unique}")
    power, rows = _rows(shared, low, high, unique)
    bins = zip(low.tolist(), high.tolist(), rows.tolist(), shared.tolist(), strict=True)
    return np.concatenate([_inside(*bin_, power) for bin_ in bins])


def _shared(shares: tuple[float, ...], lookups: int, low: Counts, high: Counts) -> Counts:
    """Look-ups of each bin; what no rows of a bin can have together (less than one has, or an odd number of pairs) goes below."""
    cuts = np.rint(lookups * np.cumsum([0, *shares]) / sum(shares)).astype(np.int64)
    found = np.diff(cuts)
    for bin_ in range(len(found) - 1, 0, -1):
        excess = max(0, found[bin_] - found[bin_] // low[bin_] * high[bin_])
        found[bin_] -= excess
        found[bin_ - 1] += excess
    return found


def _means(low: Counts, high: Counts, power: float) -> Floats:
    """The mean frequency in each bin."""
    quantiles = (np.arange(256) + 0.5) / 256
    return (low[:, None] * (high / low)[:, None] ** quantiles**power).mean(1)


def _rows(shared: Counts, low: Counts, high: Counts, unique: int) -> tuple[float, Counts]:
    """The power of frequencies inside bins, and the rows of each bin, `unique` together."""
    least, most = -(-shared // high), shared // low
    slow, fast = -12.0, 12.0
    for _ in range(50):
        power = 2.0 ** ((slow + fast) / 2)
        rows = np.clip(np.rint(shared / _means(low, high, power)).astype(np.int64), least, most)
        slow, fast = ((slow + fast) / 2, fast) if rows.sum() < unique else (slow, (slow + fast) / 2)
    return power, _adding_up(rows, least, most, unique)


def _inside(low: int, high: int, rows: int, lookups: int, power: float) -> Counts:
    """Frequencies from `low` to `high` of `rows` rows, `lookups` together."""
    quantiles = (np.arange(rows) + 0.5) / max(1, rows)
    counts = np.rint(low * (high / low) ** quantiles**power).astype(np.int64)
    return _adding_up(counts, np.full(rows, low), np.full(rows, high), lookups)


def _adding_up(numbers: Counts, least: Counts, most: Counts, total: int) -> Counts:
    """Numbers changed as evenly as their limits allow, so that they add up to a total that is within the limits."""
    while missing := total - int(numbers.sum()):
        free = np.flatnonzero(numbers < most if missing > 0 else numbers > least)
        each = max(1, abs(missing) // len(free))
        some = free[np.linspace(0, len(free) - 1, min(len(free), abs(missing))).astype(np.int64)]
        numbers[some] = np.clip(numbers[some] + int(np.sign(missing)) * each, least[some], most[some])
    return numbers
