"""Look-ups that go on before their turn."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from ._embedding import PendingLookUp, TableSet
from ._embedding_calls import Features
from .errors import ArgumentError, OutcoreError

Batch = TypeVar("Batch")


def look_ahead(
    tables: TableSet,
    batches: Iterable[Batch],
    features: Callable[[Batch], Features],
    *,
    steps: int = 4,
    known: int | None = None,
    on_failure: Callable[[Batch, OutcoreError], None] | None = None,
) -> Iterator[tuple[Batch, Any]]:
    """Goes through batches, such as those of an `outcore.data.Loader`, each with the rows that it looks up.

    The next batches are looked up while the caller computes. Of the rows in memory those stay that the batches known so far look
    up next: rows that are needed last are evicted first (Belady, IBM Systems Journal 1966). ::

        for batch, (users, items) in look_ahead(tables, loader, features):
            ...

    Threads of OpenMP, which PyTorch computes with, keep a core busy while they wait for work. `OMP_WAIT_POLICY=PASSIVE` in the
    environment, or `torch.set_num_threads(1)` where look-ups take most of the time, leaves that core to the look-ups.

    Parameters
    ----------
    tables : TableSet
        Opened for reading: of tables that are trained, what is looked up early would be older than the last step.
    batches : iterable
        It is asked for `known` batches more than have been returned.
    features : callable
        What a batch looks up. Results are in the order of the features.
    steps : int
        How many batches are looked up ahead, which is how many results there are at a time.
    known : int, optional
        How many batches ahead the cache knows what is looked up, at least `steps`, which is the default. The more of them, the
        fewer rows are read, until all rows in the cache have a known use. Each takes 96 bytes of memory for each id that it looks
        up.
    on_failure : callable, optional
        Called with a batch of which bags cannot be looked up, because a page is damaged or cannot be read, and with the error,
        whose `failed` says which bags: their rows are NaN, and the next batch follows. Default: the error is raised, and ends it.

    Yields
    ------
    batch, list of arrays or array
        As `TableSet.look_up` returns them.

    Raises
    ------
    Those of `TableSet.look_up` and `TableSet.announce`, when the batch has its turn or earlier; those of `batches`.
    """
    if steps < 1:
        raise ArgumentError(f"steps={steps}: rows are looked up at least one batch ahead")
    if any(table.writable for table in tables):
        raise ArgumentError("rows of writable tables change between a look-up ahead of time and its turn")
    announced: deque[tuple[Batch, Features, int]] = deque()
    coming: deque[tuple[Batch, PendingLookUp]] = deque()
    source, time = iter(batches), 0

    def go_on() -> None:
        nonlocal time
        while len(announced) + len(coming) < max(steps, known or 0):
            try:
                batch = next(source)
            except StopIteration:
                break
            asked = features(batch)
            time = tables.announce(asked)
            announced.append((batch, asked, time))
        while announced and len(coming) < steps:
            batch, asked, its_time = announced.popleft()
            coming.append((batch, tables.submit(asked, time=its_time)))

    try:
        go_on()
        while coming:
            batch, rows = coming.popleft()
            try:
                found = rows.result()
            except OutcoreError as error:
                if on_failure is None or not hasattr(error, "results"):
                    raise
                on_failure(batch, error)
                found = error.results
            go_on()
            yield batch, found
    finally:
        tables.withdraw(time)
