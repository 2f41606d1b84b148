"""Memory split between tables while they are in use, against the best static split that a search finds.

Tables of different reuse are looked up in one set, which splits its memory by measured miss curves again and again. The search
weighs all splits in hundredths of the memory, by the misses of simulated caches of each table. What it finds is run, each table
with a cache of its own, so that misses of both are counted in the same way. The first third of the batches warms caches up. What
is looked up after it is either like it to the end, or changes half-way: each table then has the reuse that the next one had, and
other rows are popular.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt

from .. import _native
from .._embedding_profile import SLOT_BYTES
from .._settings import PathLike
from ..embedding import Feature, TableSet
from ..errors import ArgumentError
from .models import ModelSpec
from .tables import table_files
from .traces import Ids, TraceFactory

__all__ = ["bench_splits", "best_split"]

Counts = npt.NDArray[np.float64]
UNITS = 100


def __dir__() -> list[str]:
    return sorted(__all__)


def bench_splits(
    models: Sequence[ModelSpec],
    traces: Mapping[str, TraceFactory],
    share: float,
    *,
    folder: PathLike,
    batch_sizes: Sequence[int] = (64,),
    batches: int = 300,
    units: int = UNITS,
    seed: int = 123,
    told: Callable[[dict[str, Any]], None] | None = None,
) -> list[dict[str, Any]]:
    """Counts misses of each model, with each batch size, while popularity is steady, and where it changes.

    Parameters
    ----------
    models, folder, batch_sizes, seed, told
        As of `outcore.embedding_bench.run.bench`.
    traces : mapping of names to trace factories
        The tables of a model have them in turn.
    share : float
        Memory of the caches: for this part of the rows that are looked up. A set splits it while running where that is 3.3 MB a
        table or more.
    batches : int
        Of the trace.
    units : int
        Parts of the memory that the search gives to tables.

    Returns
    -------
    Two dicts for each case: `model`, `batch_size`, `tables`, `traces`, `popularity` ("steady" or "changes"), `cache_bytes`; of
    the batches that count `lookups` and misses: `misses_first` where memory stays split by the sizes of the tables, as it is at
    first, `misses_best` with the best static split, `misses_best_simulated` of the search, and `misses_running`; `ratio`, the
    misses while running over those of the best static split (None where it has none); and the rows of each table's cache:
    `rows_first`, `rows_best`, and `rows_running` at the end.
    """
    if batches < 3 or units < 1:
        raise ArgumentError(f"a third of the batches warms caches up, so 3 at least and one unit, not {batches} and {units}")
    if not (traces and 0 < share < float("inf")):
        raise ArgumentError(f"traces, and caches with room for a part of their rows, not for {share} of {len(traces)} traces")
    found = []
    for spec, batch_size in product(models, batch_sizes):
        paths = table_files(spec, folder)
        for popularity, stretches in (("steady", (batches,)), ("changes", (batches - batches // 3, batches // 3))):
            ids = _mixed(spec, list(traces.values()), stretches, batch_size, seed)
            facts = {"model": spec.name, "batch_size": batch_size, "tables": len(paths), "traces": list(traces)}
            found.append({**facts, "popularity": popularity, **_compared(paths, ids, share, units, spec.row_bytes + SLOT_BYTES)})
            if told is not None:
                told(found[-1])
    return found


def best_split(misses: Sequence[Sequence[float]]) -> list[int]:
    """Units of memory for each table, so that all of them together miss least: of all splits, by dynamic programming.

    `misses` has, for each table, its misses with 0, 1, 2, ... units, up to all of them.
    """
    units = len(misses[0])
    left = np.subtract.outer(np.arange(units), np.arange(units))  # of a total, by what a table takes
    least = np.zeros(units)
    taken: list[npt.NDArray[np.intp]] = []
    for own in misses:
        sums = np.where(left >= 0, least[left] + np.asarray(own), np.inf)
        least = sums.min(1)
        taken.append(sums.argmin(1))
    total, split = units - 1, [0] * len(taken)
    for table in reversed(range(len(taken))):
        split[table] = int(taken[table][total])
        total -= split[table]
    return split


def _mixed(spec: ModelSpec, factories: Sequence[TraceFactory], stretches: Sequence[int], batch_size: int, seed: int) -> list[Ids]:
    """Ids of each table: in each stretch of batches, those of the next factory."""
    parts: list[list[Ids]] = [[] for _ in spec.tables]
    for number, batches in enumerate(stretches):
        made = [factory(spec, batches, batch_size, seed + number) for factory in factories]
        for table, part in enumerate(parts):
            part.append(made[(table + number) % len(made)].ids[table])
    return [np.concatenate(part) for part in parts]


def _compared(paths: list[str], ids: list[Ids], share: float, units: int, row_cost: int) -> dict[str, Any]:
    cache_bytes = int(share * sum(len(np.unique(of_table)) for of_table in ids) * row_cost)
    unit_bytes = [number * cache_bytes // units for number in range(units + 1)]
    # A cache has whole chunks, so its rows are asked for, not computed.
    simulated = [
        _simulated(of_table, [_rows(TableSet([path], cache=own))[0] for own in unit_bytes])
        for path, of_table in zip(paths, ids, strict=True)
    ]
    split = best_split([misses.tolist() for misses in simulated])
    running, rows_first, rows_running = _run(paths, ids, cache_bytes)

    def static(cache_bytes: Sequence[int]) -> tuple[int, list[int]]:
        """Misses of caches that stay as they are, and their rows: tables one after the other, since none depends on others."""
        ran = [_run([path], [of_table], own) for path, of_table, own in zip(paths, ids, cache_bytes, strict=True)]
        return sum(misses for misses, _, _ in ran), [own[0] for _, _, own in ran]

    best, rows_best = static([unit_bytes[own] for own in split])
    return {
        "cache_bytes": cache_bytes,
        "lookups": sum(of_table[len(of_table) // 3 :].size for of_table in ids),
        "misses_first": static([rows * row_cost for rows in rows_first])[0],
        "misses_best": best,
        "misses_best_simulated": sum(float(misses[own]) for misses, own in zip(simulated, split, strict=True)),
        "misses_running": running,
        "ratio": running / best if best else None,
        "rows_first": rows_first,
        "rows_best": rows_best,
        "rows_running": rows_running,
    }


def _simulated(ids: Ids, rows: Sequence[int]) -> Counts:
    """Misses of S3-FIFO after the first third, by rows of the cache."""
    numbers = ids.astype(np.uint64)
    warm = numbers[: len(numbers) // 3]
    whole, before = (np.array(_native.cache_misses(some.ravel(), "s3-fifo", rows, 1.0)) for some in (numbers, warm))
    return whole - before


def _run(paths: Sequence[str], ids: Sequence[Ids], cache_bytes: int) -> tuple[int, list[int], list[int]]:
    """Misses after the first third, and rows of each table's cache, at first and at last."""
    tables = TableSet(paths, cache=cache_bytes)
    rows_first, before = _rows(tables), 0

    def missed() -> int:
        return sum(one.units_read for one in tables.statistics.values())

    for number, batch in enumerate(zip(*ids, strict=True)):
        if number == len(ids[0]) // 3:
            before = missed()
        tables.look_up([Feature(table, bags) for table, bags in enumerate(batch)])
    return missed() - before, rows_first, _rows(tables)


def _rows(tables: TableSet) -> list[int]:
    """For how many rows of each table there is room."""
    return [one.cache_rows for one in tables.statistics.values()]
