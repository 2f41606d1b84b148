"""Rows and columns picked by lists and masks: NumPy's advanced indexing, for the keys that tables need. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

__all__ = ["Lists", "is_list", "mesh_of", "numbers_of", "row_key"]

Lists: TypeAlias = Sequence[int] | Sequence[bool] | npt.NDArray[Any] | range
"""Row numbers, or a mask of rows."""

Numbers = npt.NDArray[np.uint64]


def is_list(part: Any) -> bool:
    """Whether a part of a key is a list or mask, not a slice, an integer or `...`."""
    if part is None or part is Ellipsis or isinstance(part, (slice, str, bytes)):
        return False
    return hasattr(part, "__len__") and getattr(part, "ndim", 1) > 0


def numbers_of(part: Any, length: int, axis: int) -> Numbers:
    """The numbers that a list, range or mask picks of a dimension of `length`, none negative.

    Raises
    ------
    IndexError
        For numbers outside, masks of another length, and what is neither.
    """
    found = np.asarray(part)
    if found.ndim != 1:
        raise IndexError(f"axis {axis} is picked by lists and masks of one dimension, not of {found.ndim}")
    if found.dtype == np.bool_:
        if len(found) != length:
            raise IndexError(f"a mask of {len(found)} for axis {axis}, which has {length}")
        return np.flatnonzero(found).astype(np.uint64)
    if not found.size:
        return np.empty(0, np.uint64)
    if found.dtype.kind not in "iu":
        raise IndexError(f"axis {axis} is picked by integers or a mask, not by {found.dtype}")
    outside = (found >= length) | (found < -length if found.dtype.kind == "i" else False)
    if outside.any():
        raise IndexError(f"index {found[outside][0]} is out of bounds for axis {axis} with size {length}")
    if found.dtype.kind == "i" and (found < 0).any():
        found = np.where(found < 0, found + length, found)
    return np.ascontiguousarray(found, np.uint64)


def mesh_of(key: Any) -> tuple[npt.NDArray[Any], npt.NDArray[Any]] | None:
    """The rows and columns of what `np.ix_(rows, cols)` gives, which picks all of these columns of all of these rows."""
    if not (isinstance(key, tuple) and len(key) == 2 and all(getattr(part, "ndim", 0) == 2 for part in key)):
        return None
    rows, cols = key
    return (rows[:, 0], cols[0]) if rows.shape[1] == cols.shape[0] == 1 else None


def row_key(key: Any, shape: tuple[int, ...]) -> tuple[Any, tuple[Any, ...]] | None:
    """The part of a key for rows, and the rest, where a list or mask is among them; else nothing.

    A mask of all elements is refused: what it picks lies anywhere.
    """
    parts = key if isinstance(key, tuple) else (key,)
    if not any(is_list(part) for part in parts):
        return None
    if any(getattr(part, "ndim", 1) > 1 for part in parts if is_list(part)):
        raise IndexError(
            "masks and lists of one dimension pick rows and columns of an array on SSD; take part after part in memory"
        )
    dots = [number for number, part in enumerate(parts) if part is Ellipsis]
    if dots:
        at = dots[0]
        parts = (*parts[:at], *[slice(None)] * (len(shape) - len(parts) + 1), *parts[at + 1 :])
    if len(parts) > len(shape):
        raise IndexError(f"too many indices: the array has {len(shape)} dimensions, the key {len(parts)}")
    return parts[0], tuple(parts[1:])
