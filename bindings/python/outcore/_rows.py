"""Rows and columns of arrays on SSD by lists and masks, and arrays of more than two dimensions by their first."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from . import _native
from ._index import Pick, parse_key
from ._selection import is_list, numbers_of

__all__ = ["by_first", "meshed", "selected"]

BLOCK_BYTES = 16 << 20
"""Of rows that are in memory at once, where less of them is picked."""


class Picked(Protocol):
    """What of an array is used here."""

    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def ndim(self) -> int: ...
    @property
    def dtype(self) -> np.dtype[Any]: ...
    @property
    def order(self) -> str: ...
    @property
    def _width(self) -> int: ...
    @property
    def _flat(self) -> Any: ...
    @property
    def _inner(self) -> _native.Matrix: ...
    def take(self, rows: Any) -> Any: ...
    def _taken(self, numbers: Any, out: None, memory: None) -> Any: ...
    def _exceeds(self, size: int) -> bool: ...
    def _check_room(self, size: int) -> None: ...
    def _pieces(self, pick: Pick) -> Iterator[tuple[npt.NDArray[Any], slice]]: ...


def by_first(x: Picked, key: Any) -> Any:
    """Of more than two dimensions: picked by the first, and by the others in memory, a few MiB of rows at a time."""
    parts = _whole_key(key if isinstance(key, tuple) else (key,), x.ndim)
    rows, rest = parts[0], parts[1:]
    if all(isinstance(part, slice) and part == slice(None) for part in rest):
        found = x._flat[rows]
        return found.reshape(*found.shape[:-1], *x.shape[1:])
    if not isinstance(rows, slice):
        return x._flat[rows].reshape(x.shape[1:])[rest]
    numbers, beside = range(*rows.indices(x.shape[0])), (slice(None), *rest)
    # One row that takes no memory tells what is picked of each, and which keys are refused.
    one = np.broadcast_to(np.zeros((), x.dtype), (1, *x.shape[1:]))[beside]
    x._check_room(len(numbers) * one.size * x.dtype.itemsize)
    found = np.empty((len(numbers), *one.shape[1:]), x.dtype)
    step = max(1, BLOCK_BYTES // max(1, x._width * x.dtype.itemsize * abs(numbers.step)))
    for start in range(0, len(numbers), step):
        part = numbers[start : start + step]
        end = part[-1] + part.step
        block = x._flat[slice(part[0], None if end < 0 else end, part.step)]
        found[start : start + step] = block.reshape(len(part), *x.shape[1:])[beside]
    return found


def _whole_key(parts: tuple[Any, ...], ndim: int) -> tuple[Any, ...]:
    """The key with a part for the first dimension, and without `...`."""
    dots = [number for number, part in enumerate(parts) if part is Ellipsis]
    if len(dots) > 1:
        raise IndexError("an index can only have a single ellipsis ('...')")
    at = dots[0] if dots else len(parts)
    given = sum(part is not None and part is not Ellipsis for part in parts)
    if given > ndim:
        raise IndexError(f"too many indices: the array has {ndim} dimensions, the key {given}")
    found = (*parts[:at], *[slice(None)] * (ndim - given), *parts[at + 1 :])
    if found[0] is None:
        raise IndexError(f"an array of {ndim} dimensions is picked by its first one, as in x[i:j]")
    return found


def meshed(x: Picked, rows: Any, cols: Any) -> npt.NDArray[Any]:
    """The elements where some rows meet some columns, as `np.ix_` picks them; what lies between the columns is read too."""
    numbers, columns = numbers_of(rows, x.shape[0], 0), numbers_of(cols, x.shape[1], 1)
    first, end = _column_span(x, columns)
    x._check_room(len(numbers) * (end - first) * x.dtype.itemsize)
    return _gathered(x, numbers, (first, end))[:, columns.astype(np.int64) - first]


def selected(x: Picked, rows: Any, rest: tuple[Any, ...]) -> Any:
    """Rows by a list or mask, or columns beside other rows."""
    if not is_list(rows):
        return _columns(x, rows, rest)
    numbers = numbers_of(rows, x.shape[0], 0)
    whole = all(isinstance(part, slice) and part == slice(None) for part in rest)
    if whole and x._exceeds(len(numbers) * x._width * x.dtype.itemsize):
        return x.take(numbers)
    first, end = _column_span(x, rest[0]) if rest and x.ndim == 2 else (0, x._width)
    x._check_room(len(numbers) * (end - first) * x.dtype.itemsize)
    found = _gathered(x, numbers, (first, end))
    if whole or x.ndim > 2:
        found = found.reshape(len(numbers), *x.shape[1:])
        beside = (slice(None), *rest)
        return found if whole else found[beside]
    column = rest[0]
    if is_list(column):
        # Lists beside each other pick elements, as NumPy has it.
        return found[np.arange(len(numbers)), numbers_of(column, x.shape[1], 1).astype(np.int64) - first]
    if isinstance(column, slice):
        picked = range(*column.indices(x.shape[1]))
        return found if picked.step == 1 else found[:, [at - first for at in picked]]
    return found[:, 0]


def _column_span(x: Picked, part: Any) -> tuple[int, int]:
    """The columns from the first to the last that a part of a key picks."""
    if is_list(part):
        numbers = numbers_of(part, x.shape[1], 1)
        return (int(numbers.min()), int(numbers.max()) + 1) if len(numbers) else (0, 0)
    return parse_key((slice(None), part), x.shape).bounds[1]


def _columns(x: Picked, rows: Any, rest: tuple[Any, ...]) -> npt.NDArray[Any]:
    """Columns by a list or mask, of rows by a slice or number: whole spans are read, a few MiB at a time."""
    if x.ndim != 2:
        raise IndexError(f"an array of {x.ndim} dimension(s) is picked by its first one, as in x[rows]")
    first, end = _column_span(x, rest[0])
    numbers = numbers_of(rest[0], x.shape[1], 1).astype(np.int64) - first
    pick = parse_key((rows, slice(first, end)), x.shape)
    x._check_room(pick.counts[0] * len(numbers) * x.dtype.itemsize)
    found = np.empty((pick.counts[0], len(numbers)), x.dtype)
    if found.size:
        for part, into in x._pieces(pick):
            found[into] = part[:, numbers]
    return found[0] if pick.taken[0] else found


def _gathered(x: Picked, numbers: npt.NDArray[np.uint64], cols: tuple[int, int]) -> npt.NDArray[Any]:
    """Rows in one batch; of an array by columns by way of scratch."""
    found = np.empty((len(numbers), cols[1] - cols[0]), x.dtype)
    if found.size and x.order == "F" and x._width > 1:
        taken = x._taken(numbers, None, None)
        return taken.slice(columns=cols)._read()
    if found.size:
        x._inner.gather_rows(numbers, cols, found)
    return found
