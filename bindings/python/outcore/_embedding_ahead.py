"""Batches whose rows are read before their turn."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

from ._embedding import Feature, PendingLookUp, TableSet
from .errors import ArgumentError

Batch = TypeVar("Batch")


def look_ahead(
    tables: TableSet,
    batches: Iterable[Batch],
    features: Callable[[Batch], Sequence[Feature]],
    *,
    steps: int = 4,
) -> Iterator[tuple[Batch, list[Any]]]:
    """Goes through batches, such as those of an `outcore.data.Loader`, each with the rows that it looks up.

    The rows of the next batches are read while the caller computes, and stay in the cache until their turn: which of them are
    needed again soonest is known, so those that are needed last are evicted. The look-up of the next batch goes on beside the
    caller, too::

        for batch, (users, items) in look_ahead(tables, loader, features):
            ...

    Parameters
    ----------
    tables : TableSet
        Opened for reading: of tables that are trained, what is looked up early would be older than the last step.
    batches : iterable
        It is asked for `steps` batches more than have been returned.
    features : callable
        What a batch looks up. Results are in the order of the features.
    steps : int
        How many batches ahead rows are read. Their rows should fit the cache.

    Yields
    ------
    batch, list of arrays
        As `TableSet.look_up` returns them.

    Raises
    ------
    Those of `TableSet.look_up`, when the batch has its turn or earlier; those of `batches`.
    """
    if steps < 1:
        raise ArgumentError(f"steps={steps}: rows are read at least one batch ahead")
    if any(table.writable for table in tables):
        raise ArgumentError("rows of writable tables change between a look-up ahead of time and its turn")
    known: deque[tuple[Batch, Sequence[Feature], Future[int]]] = deque()
    coming: deque[tuple[Batch, PendingLookUp]] = deque()
    source = iter(batches)
    reader = ThreadPoolExecutor(1, "outcore-ahead")

    def read_on() -> None:
        while len(known) < steps:
            try:
                batch = next(source)
            except StopIteration:
                return
            asked = features(batch)
            known.append((batch, asked, reader.submit(tables.prefetch, asked)))

    def begin_look_up() -> None:
        batch, asked, read = known.popleft()
        coming.append((batch, tables.submit(asked, time=read.result())))

    try:
        read_on()
        while known or coming:
            if not coming:
                begin_look_up()
                read_on()
            if known and known[0][2].done():
                begin_look_up()
            batch, rows = coming.popleft()
            yield batch, rows.result()
            read_on()
    finally:
        reader.shutdown(cancel_futures=True)
