"""What the models look up: ids in order, for every table, from generators with a seed.

A generator is called with a model, a number of batches, the samples of each and a seed, and returns a `Trace`. Here are the
generators of RecSSD: uniform, sequential and strided ids, and `Locality`, the stack of lines whose reuse follows an exponential
distribution of distances (parameter K). `reuse` has those that follow published production tables, `clicks` a real log.
Source: Wilkening et al., RecSSD, ASPLOS 2021, section 5; RecSSD-RecInfra, `models/input/gen_dist.py`, `data_generator`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import ArgumentError
from ._stack import references
from .models import ModelSpec, TableSpec

__all__ = ["Locality", "Trace", "TraceFactory", "lru_hits", "sequential", "strided", "top_hits", "uniform"]

Ids = npt.NDArray[np.int64]
PAGE_BYTES = 4096

TraceFactory = Callable[[ModelSpec, int, int, int], "Trace"]
"""Called with a model, batches, samples a batch and a seed."""


def __dir__() -> list[str]:
    return sorted(__all__)


@dataclass(frozen=True)
class Trace:
    """Ids that a model looks up.

    Attributes
    ----------
    spec : ModelSpec
    ids : tuple of int64 arrays, one for each table
        Of shape [batches, samples, look-ups of a sample].
    """

    spec: ModelSpec
    ids: tuple[Ids, ...]

    @property
    def batches(self) -> int:
        return len(self.ids[0])

    @property
    def batch_size(self) -> int:
        """Samples of each batch."""
        return self.ids[0].shape[1]

    def first(self, batches: int) -> Trace:
        """The first batches of the trace."""
        return Trace(self.spec, tuple(ids[:batches] for ids in self.ids))

    def batch(self, number: int) -> list[tuple[Ids, Ids]]:
        """For each table ids and offsets, as `torch.nn.EmbeddingBag` takes them: a bag for each sample."""
        found = [ids[number] for ids in self.ids]
        return [(ids.reshape(-1), np.arange(len(ids), dtype=np.int64) * ids.shape[1]) for ids in found]

    def facts(self) -> dict[str, Any]:
        """How many different rows are looked up, and how many bytes the pages have that they lie on."""
        tables = list(zip(self.spec.tables, self.ids, strict=True))
        rows = sum(_marked(ids, table.rows) for table, ids in tables)
        a_page = max(1, PAGE_BYTES // self.spec.row_bytes)
        pages = sum(_marked(ids // a_page, -(-table.rows // a_page)) for table, ids in tables)
        row_pages = max(1, -(-self.spec.row_bytes // PAGE_BYTES))
        return {"unique_rows": rows, "touched_bytes": pages * row_pages * PAGE_BYTES}


def _marked(ids: Ids, count: int) -> int:
    seen = np.zeros(count, np.bool_)
    seen[ids] = True
    return int(np.count_nonzero(seen))


def lru_hits(ids: Iterable[int], rows: int) -> float:
    """The share of look-ups in one table that a cache of `rows` rows serves, when it evicts the least recently used."""
    cache: OrderedDict[int, None] = OrderedDict()
    hits = count = 0
    for row in ids:
        count += 1
        if row in cache:
            hits += 1
            cache.move_to_end(row)
        else:
            cache[row] = None
            if len(cache) > rows:
                cache.popitem(last=False)
    return hits / max(1, count)


def top_hits(ids: Ids, rows: int) -> float:
    """The share of look-ups in one table that its `rows` most frequent rows serve: RecSSD's static partition."""
    counts = np.sort(np.unique(ids, return_counts=True)[1])[::-1]
    return float(counts[:rows].sum() / max(1, ids.size))


def uniform(spec: ModelSpec, batches: int, batch_size: int, seed: int = 0) -> Trace:
    """Random ids, each row as probable as any, and none twice in a bag."""

    def ids(table: TableSpec, number: int) -> Ids:
        random = np.random.default_rng([seed, number])
        bags = random.integers(0, table.rows, (batches * batch_size, table.lookups))
        again = np.arange(len(bags))
        while table.lookups > 1 and len(again):
            ordered = np.sort(bags[again], 1)
            again = again[(ordered[:, 1:] == ordered[:, :-1]).any(1)]
            if 2 * table.lookups > table.rows:  # most bags would have duplicates, and be drawn many times
                return np.stack([random.permutation(table.rows)[: table.lookups] for _ in range(len(bags))])
            bags[again] = random.integers(0, table.rows, (len(again), table.lookups))
        return bags

    return _each(spec, batches, batch_size, ids)


def sequential(spec: ModelSpec, batches: int, batch_size: int, seed: int = 0) -> Trace:
    """Rows one after the other: figure 8's SEQ."""
    return _each(spec, batches, batch_size, lambda table, _: _counted(table, batches * batch_size) % table.rows)


def strided(spec: ModelSpec, batches: int, batch_size: int, seed: int = 0) -> Trace:
    """Every row on another page than the one before, until all pages were there: figure 8's STR."""
    stride = max(1, PAGE_BYTES // spec.row_bytes)

    def ids(table: TableSpec, _: int) -> Ids:
        pages = max(1, table.rows // stride)
        turn, page = np.divmod(_counted(table, batches * batch_size), pages)
        return (page * stride + turn % stride) % table.rows

    return _each(spec, batches, batch_size, ids)


def _counted(table: TableSpec, samples: int) -> Ids:
    return np.arange(samples * table.lookups, dtype=np.int64)


def _each(spec: ModelSpec, batches: int, batch_size: int, ids: Callable[[TableSpec, int], Ids]) -> Trace:
    if batches < 1 or batch_size < 1:
        raise ArgumentError(f"a trace has at least one batch of one sample, not {batches} of {batch_size}")
    made = (ids(table, number).reshape(batches, batch_size, table.lookups) for number, table in enumerate(spec.tables))
    return Trace(spec, tuple(made))


SAMPLES, BINS = 1000, 50
SPACING = 128


@dataclass(frozen=True)
class Locality:
    """RecSSD's traces: distances of reuse are exponentially distributed, and K says how many look-ups are of new rows.

    A table has lines, `spacing` rows apart, of which only the first row is looked up. They lie on a stack. A look-up takes the
    line at a distance that is drawn, or the one at the bottom where that is 0, and moves it to the top. Distances are multiples
    of the look-ups of a sample, so that no sample looks up a row twice. As many look-ups again are made before and left out. The
    look-ups of new lines are (p + K) / (1 + K) of all (K up to its rounding), where p is 0.12 with the default seed.

    Attributes
    ----------
    k : int
        0, 1 and 2 in the paper: 12 %, 55 % and 70 % of look-ups are of new rows.
    lines : int, optional
        Of each table; default what its rows allow.
    spacing : int
        Rows from one line to the next: 128 puts each on a page of 16 KiB of its own, as the paper assumes. Of a table that is too
        small for that, less, so that there are lines at all distances.
    shuffled : bool
        Whether new lines come in an order of their own. In the paper's generator they come in that of their pages, from the last
        to the first, which read-ahead of a memory map gains from.

    Examples
    --------
    >>> Locality(k=1)(MODELS["RMC1"], 400, 32, 123)
    """

    k: int = 1
    lines: int | None = None
    spacing: int = SPACING
    shuffled: bool = False

    def __call__(self, spec: ModelSpec, batches: int, batch_size: int, seed: int = 123) -> Trace:
        shares = distances(self.k, seed)

        def ids(table: TableSpec, number: int) -> Ids:
            lines, spacing = self._lines(table)
            steps = _steps(shares, 2 * batches * batch_size * table.lookups, np.random.default_rng([seed, number]))
            found = references(steps, table.lookups, lines)[len(steps) // 2 :].astype(np.int64)
            if self.shuffled:
                found = np.random.default_rng([seed, number, 1]).permutation(lines)[found]
            return found * spacing

        return _each(spec, batches, batch_size, ids)

    def covering(self, spec: ModelSpec, memory_bytes: int, *, times: float = 4) -> tuple[ModelSpec, Locality]:
        """The model with larger tables, where necessary, and the trace with as many lines that their pages are `times` the
        memory.

        Each line has a page of 4 KiB to itself. All of them are looked up once the trace is long enough; `Trace.facts` tells.
        """
        spacing = max(1, PAGE_BYTES // spec.row_bytes)
        a_line = PAGE_BYTES * max(1, -(-spec.row_bytes // PAGE_BYTES))
        lines = max(int(-(-times * memory_bytes // (a_line * len(spec.tables)))), *(BINS * t.lookups for t in spec.tables))
        return spec.with_rows(lines * spacing), replace(self, lines=lines, spacing=spacing)

    def _lines(self, table: TableSpec) -> tuple[int, int]:
        """How many lines a table has, and how far they are apart."""
        least = (BINS - 1) * table.lookups + 1
        spacing = self.spacing if self.lines else min(self.spacing, max(1, table.rows // least))
        lines = self.lines or table.rows // spacing
        if lines < least:
            raise ArgumentError(f"{table.lookups} look-ups a sample need at least {least} lines, but there are {lines}")
        if lines * spacing > table.rows:
            raise ArgumentError(f"{lines} lines, {spacing} rows apart, do not fit {table.rows} rows")
        return lines, spacing


def distances(k: float, seed: int = 123) -> npt.NDArray[np.float64]:
    """The share of each distance and of those before it: of 0, which is a new line, of 1 and so on to 49."""
    drawn = np.random.default_rng(seed).exponential(1.0, SAMPLES)
    density, _ = np.histogram(drawn, BINS, density=True)
    density[0] += int(density.sum() * k)
    shares = np.cumsum(density) / density.sum()
    shares[-1] = 1
    return shares


def _steps(shares: npt.NDArray[np.float64], count: int, random: np.random.Generator) -> npt.NDArray[np.uint8]:
    """Distances that are drawn; the first ones reach no further than there were new lines before them."""
    drawn = random.random(count)
    new = first = 0
    while new < len(shares) - 1 and first < count:
        drawn[first] *= shares[new]
        new += bool(drawn[first] <= shares[0])
        first += 1
    return np.searchsorted(shares, drawn).astype(np.uint8)
