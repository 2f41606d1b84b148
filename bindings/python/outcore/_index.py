"""The elements that a key such as `a[3, ::-2]` selects. Pure: no array is accessed."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

__all__ = ["Pick", "parse_key", "spans"]


@dataclass(frozen=True)
class Pick:
    """A parsed key.

    `bounds`: the first element and the one behind the last, for each dimension. `steps`: their distance, negative if backwards.
    `counts`: how many there are. `taken`: whether an integer chose the dimension, which the result then does not have.
    """

    bounds: tuple[tuple[int, int], ...]
    steps: tuple[int, ...]
    counts: tuple[int, ...]
    taken: tuple[bool, ...]

    @property
    def plain(self) -> bool:
        """Whether everything between the bounds is picked, in order."""
        return all(step == 1 for step in self.steps)

    @property
    def size(self) -> int:
        size = 1
        for count in self.counts:
            size *= count
        return size

    @property
    def shape(self) -> tuple[int, ...]:
        """That of the result."""
        return tuple(count for count, taken in zip(self.counts, self.taken, strict=True) if not taken)

    @property
    def squeeze(self) -> tuple[Any, ...]:
        """The key that takes dimensions chosen by an integer out of the result; empty if there are none."""
        return tuple(0 if taken else slice(None) for taken in self.taken) if any(self.taken) else ()


def parse_key(key: Any, shape: tuple[int, ...]) -> Pick:
    """Integers, slices and `...`, as NumPy understands them.

    Raises
    ------
    IndexError
        For an integer outside the array, too many of them, or another kind of key.
    """
    parts = _full(key if isinstance(key, tuple) else (key,), len(shape))
    found = [_dimension(part, length, axis) for axis, (part, length) in enumerate(zip(parts, shape, strict=True))]
    bounds, steps, counts, taken = zip(*found, strict=True)
    return Pick(bounds, steps, counts, taken)


def _full(parts: tuple[Any, ...], ndim: int) -> list[Any]:
    """One part for each dimension."""
    dots = [index for index, part in enumerate(parts) if part is Ellipsis]
    if len(dots) > 1:
        raise IndexError("an index can only have a single ellipsis ('...')")
    given = len(parts) - len(dots)
    if given > ndim:
        raise IndexError(f"too many indices: the array has {ndim} dimensions, the key {given}")
    at = dots[0] if dots else len(parts)
    return [*parts[:at], *[slice(None)] * (ndim - given), *parts[at + len(dots) :]]


def _dimension(part: Any, length: int, axis: int) -> tuple[tuple[int, int], int, int, bool]:
    if isinstance(part, slice):
        start, stop, step = part.indices(length)
        picked = range(start, stop, step)
        if not picked:
            return (0, 0), 1, 0, False
        first, last = min(picked[0], picked[-1]), max(picked[0], picked[-1])
        return (first, last + 1), 1 if len(picked) == 1 else step, len(picked), False
    if isinstance(part, bool) or not hasattr(part, "__index__") or getattr(part, "ndim", False):
        raise IndexError(f"integers, slices and '...' can index an array on SSD, not {part!r}")
    index = operator.index(part)
    if not -length <= index < length:
        raise IndexError(f"index {index} is out of bounds for axis {axis} with size {length}")
    index %= length
    return (index, index + 1), 1, 1, True


def spans(pick: Pick, row_bytes: int, chunk_bytes: int) -> Iterator[tuple[tuple[int, int], slice, tuple[slice, ...]]]:
    """The picked rows in groups whose cover takes at most `chunk_bytes`, at least one row each.

    Yields the rows to read, counted from the first bound; which rows of the result they are; which elements of the read block.
    """
    step, count = pick.steps[0], pick.counts[0]
    stride = abs(step)
    group = max(1, chunk_bytes // (row_bytes * stride))
    columns = tuple(slice(None, None, step) for step in pick.steps[1:])
    for begin in range(0, count, group):
        end = min(count, begin + group)
        covered = (begin * stride, (end - 1) * stride + 1)
        rows = slice(begin, end) if step > 0 else slice(count - end, count - begin)
        yield covered, rows, (slice(None, None, step), *columns)
