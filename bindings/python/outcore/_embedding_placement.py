"""Which rows of a packed table share a page, learned from a log of look-ups."""

from __future__ import annotations

from collections.abc import Sized
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from . import _native
from ._session import Session, default_session
from .errors import ArgumentError, ShapeError

__all__ = ["PagesTouched", "Placement", "PlacementMethod", "placement"]

PlacementMethod = Literal["co-appearance", "frequency"]
METHODS = ("co-appearance", "frequency")

ROWS_MOST = (1 << 32) - 1
ROWS_A_PAGE_MOST = 4092
"""Of a packed table: rows of one byte, beside the checksum of a page."""


@dataclass(frozen=True)
class PagesTouched:
    """What some queries read."""

    queries: int
    """Those with a row at least."""
    look_ups: int
    """Rows of all queries, a row that a query has twice counted once."""
    pages: int
    """Pages of all queries, each counted once a query."""

    @property
    def pages_a_look_up(self) -> float:
        """1 where each row takes a page of its own."""
        return self.pages / max(1, self.look_ups)

    @property
    def rows_a_read(self) -> float:
        """Rows of a query that one of its pages has, in the mean."""
        return self.look_ups / max(1, self.pages)


@dataclass(frozen=True)
class Placement:
    """Where each row is, and what that saves on the queries that were held out.

    `pack(source, path, placement=placement)` writes a table so.
    """

    slots: npt.NDArray[np.uint32]
    """The slot of each row: a permutation. Slot s is on page s // rows_a_page."""
    rows_a_page: int
    method: PlacementMethod
    given: PagesTouched
    """By the queries that were held out, with rows in the order of their numbers."""
    placed: PagesTouched
    """By the same queries, with rows in these slots, and the fewest pages chosen where replicas give the choice."""
    replicas: npt.NDArray[np.int64]
    """Pages x rows_a_page: rows that lie once more, on pages after those of all rows; -1 behind the last of a page."""

    def facts(self) -> dict[str, Any]:
        """Numbers that tell what the placement saves."""
        return {
            "method": self.method,
            "rows": len(self.slots),
            "rows_a_page": self.rows_a_page,
            "replica_pages": len(self.replicas),
            "queries_held_out": self.placed.queries,
            "look_ups_held_out": self.placed.look_ups,
            "pages_a_look_up_given": self.given.pages_a_look_up,
            "pages_a_look_up": self.placed.pages_a_look_up,
            "rows_a_read_given": self.given.rows_a_read,
            "rows_a_read": self.placed.rows_a_read,
        }


def placement(
    queries: npt.ArrayLike | tuple[npt.ArrayLike, npt.ArrayLike],
    rows: int | Sized,
    rows_a_page: int,
    method: PlacementMethod = "co-appearance",
    *,
    replicas: float = 0.0,
    held_out: float = 0.1,
    session: Session | None = None,
) -> Placement:
    """Learns from a log of queries which rows are to share a page, so that a query reads few pages.

    Parameters
    ----------
    queries : (ids, offsets), or array of queries x row numbers
        Row numbers that are looked up together, such as bags, samples or batches, oldest first: one-dimensional integers, and
        where each query begins in them, as `torch.nn.EmbeddingBag` takes them. `offsets` may end with the number of ids.
    rows : int or Table
        Rows of the table, less than 2^32 - 1.
    rows_a_page : int
        Rows of a page of the packed table: 4,092 over the bytes of a row, rounded down.
    method : {"co-appearance", "frequency"}
        Rows that appear in the same queries share a page (Social Hash Partitioner: recursive bisection, with the neighbours of
        each row), or rows of equal frequency do. Co-appearance gives rows by frequency, or as they are, where that is better.
    replicas : float
        Pages of rows that lie once more, beside others, for each page of rows: they save reads of rows that belong to several
        groups (MaxEmbed), and take that part of the table's size again, and 8 bytes of the budget a row of theirs.
    held_out : float
        Share of the queries, the last ones, that nothing is learned from: on these, pages are counted. 0 learns from all.
    session : Session, optional
        Its threads learn, within its budget.

    Returns
    -------
    Placement
        It depends on queries and method, not on the number of threads. Memory, of the budget: 32 bytes an id, by co-appearance
        60 more, 20 a row, and 24 a replica.

    Raises
    ------
    ArgumentError
        For a row number that the table does not have, offsets that decrease, no row a page, an unknown method, a negative
        number of replicas.
    ShapeError
        For ids or offsets of other dimensions.
    OverBudgetError
        Before anything is learned.
    """
    if method not in METHODS:
        raise ArgumentError(f"method is 'co-appearance' or 'frequency', not {method!r}")
    if not 0 <= held_out < 1:
        raise ArgumentError(f"held_out is a share of the queries, at least 0 and less than 1, not {held_out}")
    if not 0 <= replicas < float("inf"):
        raise ArgumentError(f"replicas are 0 or more, and not without end: {replicas}")
    if not 1 <= rows_a_page < 1 << 32:
        raise ArgumentError(f"a page has at least one row, not {rows_a_page}")
    if replicas and rows_a_page > ROWS_A_PAGE_MOST:
        raise ArgumentError(f"no packed table has {rows_a_page} rows a page, and replicas are packed")
    ids, offsets = _queries(queries)
    count = len(offsets) - 1
    learned = count - int(held_out * count)
    table_rows = rows if isinstance(rows, int) else len(rows)
    if table_rows >= ROWS_MOST:
        raise ArgumentError(f"a table that is placed has fewer than {ROWS_MOST} rows, not {table_rows}")
    session = session or default_session()
    slots, pages, given, placed = _native.place_rows(
        session._inner, ids, offsets, learned, table_rows, rows_a_page, method, replicas
    )
    return Placement(slots, rows_a_page, method, PagesTouched(*given), PagesTouched(*placed), pages)


def _queries(queries: Any) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64]]:
    """Row numbers, and where each query begins and the last one ends."""
    if not isinstance(queries, tuple):
        ids = np.asarray(queries)
        if ids.ndim != 2:
            raise ShapeError(f"queries of shape {ids.shape}: (ids, offsets), or an array of two dimensions")
        return _numbers(ids, "ids"), np.arange(len(ids) + 1, dtype=np.uint64) * np.uint64(ids.shape[1])
    if len(queries) != 2:
        raise ArgumentError(f"queries are (ids, offsets), not {len(queries)} arrays")
    ids, offsets = np.asarray(queries[0]), np.asarray(queries[1])
    if ids.ndim != 1 or offsets.ndim != 1:
        raise ShapeError(f"ids of shape {ids.shape} and offsets of shape {offsets.shape} are not one-dimensional")
    begins = _numbers(offsets, "offsets")
    if (begins[1:] < begins[:-1]).any() or (len(begins) and (begins[0] != 0 or begins[-1] > len(ids))):
        raise ArgumentError(f"offsets begin with 0, do not decrease and do not exceed the {len(ids)} ids")
    if len(ids) and not len(begins):
        raise ArgumentError("ids without offsets")
    has_end = len(begins) and begins[-1] == len(ids)
    return _numbers(ids, "ids"), begins if has_end else np.append(begins, np.uint64(len(ids)))


def _numbers(found: npt.NDArray[Any], what: str) -> npt.NDArray[np.uint64]:
    if found.size and found.dtype.kind not in "iu":
        raise ArgumentError(f"{what} are integers, not {found.dtype}")
    if found.size and found.min() < 0:
        raise ArgumentError(f"{what} are not negative, as {found.min()} is")
    return np.ascontiguousarray(found.ravel(), np.uint64)
