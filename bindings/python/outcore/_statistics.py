"""Numbers about an array on SSD, as NumPy's methods give them: each one pass, but for some histograms without a range."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

from . import _native
from .errors import ArgumentError, ShapeError

__all__ = ["Axis", "extreme", "histogram", "mean", "moment", "total"]

Axis = Literal[0, 1, -1, -2] | None
BLOCK_BYTES = 16 << 20
COUNTED_AT_ONCE = 1 << 20
"""Elements: NumPy makes 8 bytes of each to count it."""
NOTHING: Mapping[str, None] = MappingProxyType({})


class Counted(Protocol):
    """What of an array is used here."""

    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def ndim(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def dtype(self) -> np.dtype[Any]: ...
    @property
    def order(self) -> str: ...
    @property
    def T(self) -> Any: ...  # noqa: N802
    @property
    def _inner(self) -> _native.Matrix: ...
    @property
    def _flat(self) -> Any: ...

    _session: Any

    def __len__(self) -> int: ...
    def __getitem__(self, key: slice) -> npt.NDArray[Any]: ...


def extreme(x: Counted, how: Literal["min", "max"], axis: Axis, of_numpy: Mapping[str, None] = NOTHING) -> Any:
    """The least or greatest element, of the type of the array."""
    _refuse(of_numpy)
    if not x.size:
        raise ArgumentError(f"{x!r} has no elements, and so no {how}imum")
    found = _reduced(x, how) if _is_whole(x, axis) else _by_axis(x, axis)[how]
    return np.asarray(found).astype(x.dtype)[()]


def total(x: Counted, axis: Axis, of_numpy: Mapping[str, None] = NOTHING) -> Any:
    """The sum; of integers an integer, of 64 bits as NumPy's."""
    _refuse(of_numpy)
    if _is_whole(x, axis):
        found: Any = _reduced(x, "sum")
    else:
        statistics = _by_axis(x, axis)
        found = statistics["mean"] * statistics["count"] if statistics["count"] else np.zeros_like(statistics["mean"])
    if x.dtype.kind in "biu":
        found = np.rint(found).astype(np.uint64 if x.dtype.kind == "u" else np.int64)
    return np.float64(found) if np.ndim(found) == 0 and x.dtype.kind not in "biu" else found


def mean(x: Counted, axis: Axis, of_numpy: Mapping[str, None] = NOTHING) -> Any:
    _refuse(of_numpy)
    if _is_whole(x, axis):
        return np.float64(_reduced(x, "sum") / x.size) if x.size else np.float64("nan")
    return _by_axis(x, axis)["mean"]


def moment(x: Counted, axis: Axis, ddof: int, of_numpy: Mapping[str, None] = NOTHING) -> Any:
    """The variance; of all elements, merged from those of the columns."""
    _refuse(of_numpy)
    if not _is_whole(x, axis):
        return _by_axis(x, axis, ddof)["variance"]
    found = _by_axis(x, 0)
    count, means = found["count"], found["mean"]
    with np.errstate(invalid="ignore", divide="ignore"):
        squares = count * found["variance"].sum() + count * np.square(means - means.mean()).sum()
        return np.float64(squares / np.float64(x.size - ddof))


def histogram(x: Counted, bins: Any, limits: tuple[float, float] | None) -> tuple[npt.NDArray[np.int64], npt.NDArray[Any]]:
    """As `numpy.histogram` of all elements, a block of rows at a time."""
    if isinstance(bins, str):
        raise ArgumentError(f"bins must be a number or edges, not {bins!r}, which needs all elements in memory")
    if x.dtype.itemsize <= 2:
        values, counts = _counted(x)
        return np.histogram(values, bins, limits, weights=counts)
    if limits is None and np.ndim(bins) == 0:
        limits = (float(extreme(x, "min", None)), float(extreme(x, "max", None))) if x.size else (0.0, 1.0)
    edges = np.histogram_bin_edges(np.empty(0, np.float64), bins, limits)
    counts = np.zeros(len(edges) - 1, np.int64)
    uniform = np.ndim(bins) == 0
    for block in _blocks(x):
        counts += np.histogram(block, len(counts), limits)[0] if uniform else np.histogram(block, edges)[0]
    return counts, edges


def _counted(x: Counted) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64]]:
    """The values of elements of 8 or 16 bits, as float64, and how often each comes."""
    bits = np.dtype(f"uint{8 * x.dtype.itemsize}")
    counts = np.zeros(1 << 8 * bits.itemsize, np.int64)
    for block in _blocks(x):
        flat = block.ravel("K").view(bits)
        for start in range(0, len(flat), COUNTED_AT_ONCE):
            counts += np.bincount(flat[start : start + COUNTED_AT_ONCE], minlength=len(counts))
    found = np.flatnonzero(counts)
    return found.astype(bits).view(x.dtype).astype(np.float64), counts[found]


def _blocks(x: Counted) -> Iterator[npt.NDArray[Any]]:
    """All elements, some lines at a time."""
    lines = x.T if x.ndim == 2 and x.order == "F" else x
    step = max(1, BLOCK_BYTES // max(1, x.nbytes // max(1, len(lines))))
    for start in range(0, len(lines), step):
        yield lines[start : start + step]


def _refuse(of_numpy: Mapping[str, None]) -> None:
    """What NumPy's functions pass along, and what their callers could ask for."""
    given = [name for name, value in of_numpy.items() if value is not None and value is not False]
    if unknown := sorted(of_numpy.keys() - {"dtype", "out", "keepdims", "where", "initial"}):
        raise TypeError(f"there is no argument {unknown[0]!r}")
    if given:
        raise ArgumentError(f"{given[0]}= is for arrays in memory; change the result, as with .astype or [:, None]")


def _is_whole(x: Counted, axis: Axis) -> bool:
    """Whether one number comes of all elements: a vector has but one axis."""
    if axis is None:
        return True
    if not isinstance(axis, (int, np.integer)):
        raise ArgumentError(f"axis must be None (all elements) or the number of one axis, not {axis!r}")
    if not -x.ndim <= axis < x.ndim:
        raise ShapeError(f"{x!r} has no axis {axis} to go along")
    return x.ndim == 1


def _by_axis(x: Counted, axis: Axis, ddof: int = 0) -> Any:
    """Statistics of each column (axis 0), of the shape of a row, or of each row of a matrix."""
    assert axis is not None, "that is all elements"
    if x.ndim > 2 and axis % x.ndim:
        raise ShapeError(f"{x!r} goes along its first axis only; see it as a matrix with x.reshape(len(x), -1) for the second")
    along = x.T if x.ndim == 2 and axis % 2 == 1 else x._flat
    found = x._session._run(_native.column_statistics(x._session._inner, along._inner, None), "column statistics", None)
    if x.ndim > 2:
        found = {name: np.reshape(value, x.shape[1:]) if np.ndim(value) else value for name, value in found.items()}
    with np.errstate(invalid="ignore", divide="ignore"):
        found["variance"] = found["m2"] / np.float64(found["count"] - ddof)
    return found


def _reduced(x: Counted, how: str) -> float:
    """All elements as one number."""
    found: float = x._session._run(_native.reduce(x._session._inner, x._flat._inner, how), how, None)
    return found
