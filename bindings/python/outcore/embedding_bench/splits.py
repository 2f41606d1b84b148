"""Memory split between tables while they are in use, against the best static split that a search finds.

Tables of different reuse are looked up in one set, which splits its memory by measured miss curves again and again. The search
weighs all splits in fiftieths of the memory, by the misses of simulated caches of each table. What it finds is run, each table
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

UNITS = 50


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
    the batches that count `lookups` and misses, rows that are read: `misses_best` with the best static split, `misses_running`,
    and `ratio`, the latter over the former (None where that is 0); simulated misses of one look-up after the other with static
    splits: the best one, `misses_best_simulated`, that at first, by the sizes of the tables, `misses_first_simulated`, and that
    at last, `misses_last_simulated`; and the rows of each table's cache: `rows_first`, `rows_best`, and `rows_running` at last.
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
    unit_rows = [[_rows(TableSet([path], cache=own))[0] for own in unit_bytes] for path in paths]
    running, rows_first, rows_running = _run(paths, ids, cache_bytes)
    rows = zip(unit_rows, rows_first, rows_running, strict=True)
    simulated = [_simulated(of_table, [*own, first, last]) for of_table, (own, first, last) in zip(ids, rows, strict=True)]
    split = best_split([misses[:-2] for misses in simulated])
    # Tables one after the other: none depends on others.
    best = [_run([path], [of_table], unit_bytes[own]) for path, of_table, own in zip(paths, ids, split, strict=True)]
    misses_best = sum(misses for misses, _, _ in best)
    return {
        "cache_bytes": cache_bytes,
        "lookups": sum(of_table[len(of_table) // 3 :].size for of_table in ids),
        "misses_first_simulated": sum(misses[-2] for misses in simulated),
        "misses_last_simulated": sum(misses[-1] for misses in simulated),
        "misses_best_simulated": sum(misses[own] for misses, own in zip(simulated, split, strict=True)),
        "misses_best": misses_best,
        "misses_running": running,
        "ratio": running / misses_best if misses_best else None,
        "rows_first": rows_first,
        "rows_best": [rows[0] for _, rows, _ in best],
        "rows_running": rows_running,
    }


def _simulated(ids: Ids, rows: Sequence[int]) -> list[float]:
    """Misses of S3-FIFO after the first third, by rows of the cache."""
    numbers, caches = ids.astype(np.uint64), _native.CacheMisses("s3-fifo", rows, 1.0)
    warm, rest = np.split(numbers, [len(numbers) // 3])
    caches.add(warm.ravel())
    before = caches.misses()
    caches.add(rest.ravel())
    return [misses - warming for misses, warming in zip(caches.misses(), before, strict=True)]


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
