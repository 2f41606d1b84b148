"""Sparse matrices as legs read them, and checks of what was made of them: a few rows or columns in double precision.

Errors are in units of what rounding explains, a few at most when right; where a place or a number of entries is wrong, infinite.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from legs.measure import CHECKED_COLS, CHECKED_ROWS

Array = npt.NDArray[Any]

EPS = float(np.finfo(np.float32).eps)
PARTS = ("indptr", "indices", "data")
# Checks hold little, for the memory of the whole leg is watched.
ROWS_AT_ONCE = 20_000
ENTRIES_AT_ONCE = 1 << 20
TAIL_BYTES = 1 << 20


def files(folder: str) -> list[str]:
    return [f"{folder}/{part}.npy" for part in PARTS]


def recall(spec: dict[str, Any], found: Array, checked: int = 10) -> float:
    """The share of the nearest rows of the first queries, by a plain search in f64, that were found."""
    q, k = load(spec["queries"], checked).astype(np.float64), spec["k"]
    # Only their columns matter, of millions.
    columns, q.indices = np.unique(q.indices, return_inverse=True)
    q = sp.csr_matrix((q.data, q.indices, q.indptr), shape=(checked, len(columns)))
    indptr, indices, values = mapped(spec["a"])
    distances, nearest = np.empty((checked, 0)), np.empty((checked, 0), np.int64)
    for start in range(0, len(indptr) - 1, ROWS_AT_ONCE):
        ends = np.array(indptr[start : start + ROWS_AT_ONCE + 1])
        entries, ends = slice(ends[0], ends[-1]), ends - ends[0]
        own, there = np.array(values[entries], np.float64), np.array(indices[entries])
        at = np.searchsorted(columns[:-1], there)
        rows = (len(ends) - 1, len(columns))
        x = sp.csr_matrix((own * (columns[at] == there), at, ends), shape=rows)
        squares = sp.csr_matrix((own * own, np.zeros_like(at), ends), shape=(rows[0], 1)).toarray().T
        # All of them have |q|^2 in common.
        distances = np.hstack([distances, squares - 2 * (q @ x.T).toarray()])
        nearest = np.hstack([nearest, np.broadcast_to(start + np.arange(rows[0]), (checked, rows[0]))])
        order = np.argsort(distances, axis=1, kind="stable")[:, :k]
        distances, nearest = (np.take_along_axis(side, order, 1) for side in (distances, nearest))
    return float(np.mean([len(np.intersect1d(a, b)) / k for a, b in zip(nearest, found[:checked], strict=True)]))


def load(folder: str, rows: int | None = None) -> Any:
    """The matrix or its first rows in memory, with offsets of the type of its indices, which SciPy and MKL want."""
    indptr, indices, values = mapped(folder)
    end = None if rows is None else int(indptr[rows])
    offsets = np.array(indptr[: None if rows is None else rows + 1], np.int32)
    return sp.csr_matrix(
        (np.array(values[:end]), np.array(indices[:end]), offsets), shape=(len(offsets) - 1, described(folder)[1])
    )


def parts(folder: str) -> Iterator[Any]:
    """The rows of a matrix, some at a time."""
    indptr, indices, values = mapped(folder)
    for start in range(0, len(indptr) - 1, ROWS_AT_ONCE):
        ends = np.array(indptr[start : start + ROWS_AT_ONCE + 1])
        entries = slice(ends[0], ends[-1])
        own = np.array(values[entries]), np.array(indices[entries]), ends - ends[0]
        yield sp.csr_matrix(own, shape=(len(ends) - 1, described(folder)[1]))


def mapped(folder: str) -> tuple[Array, Array, Array]:
    indptr, indices, values = (np.load(path, mmap_mode="r") for path in files(folder))
    return indptr, indices, values


def described(folder: str) -> tuple[int, int]:
    rows, columns = json.loads(Path(folder, "matrix.json").read_text())["shape"]
    return rows, columns


def product_error(c: Array, a: str, b: Array) -> float:
    """Of some entries of C = A B, over eps |a| |b|, where |b| counts the rows of B that the row of A meets."""
    indptr, indices, values = mapped(a)
    if c.shape != (len(indptr) - 1, b.shape[1]):
        return float("inf")
    start = min(b.shape[1] // 3, max(0, b.shape[1] - CHECKED_COLS))
    cols = slice(start, start + CHECKED_COLS)
    worst = 0.0
    for row in np.unique(np.linspace(0, len(c) - 1, 4 * CHECKED_ROWS).astype(int)):
        part = slice(indptr[row], indptr[row + 1])
        left, right = np.asarray(values[part], np.float64), np.asarray(b[indices[part], cols], np.float64)
        size = np.linalg.norm(left) * np.linalg.norm(right, axis=0) * EPS
        worst = max(worst, largest(np.asarray(c[row, cols], np.float64) - left @ right, size))
    return worst


def gram_error(y: Array, a: str, x: Array) -> float:
    """Of one column of Y = A^T (A X), over eps sqrt(k) (|A|^T |A| |x|) for columns of k entries: errors of sums add at random."""
    indptr, indices, values = mapped(a)
    column = x.shape[1] // 2
    if y.shape != x.shape:
        return float("inf")
    vector = np.asarray(x[:, column], np.float64)
    exact, size, counts = np.zeros(len(x)), np.zeros(len(x)), np.zeros(len(x))
    for start in range(0, len(indptr) - 1, ROWS_AT_ONCE):
        offsets = np.asarray(indptr[start : start + ROWS_AT_ONCE + 1])
        part = slice(offsets[0], offsets[-1])
        rows = sp.csr_matrix(
            (np.asarray(values[part], np.float64), indices[part], offsets - offsets[0]), shape=(len(offsets) - 1, len(x))
        )
        exact += rows.T @ (rows @ vector)
        size += abs(rows).T @ (abs(rows) @ abs(vector))
        counts += np.bincount(rows.indices, minlength=len(x))
    return largest(np.asarray(y[:, column], np.float64) - exact, size * np.sqrt(counts) * EPS)


def turned_error(parts: tuple[Array, Array, Array], a: str) -> float:
    """0 where `parts` are A in the other format: all offsets, and the entries of some columns, exactly."""
    indptr, indices, values = mapped(a)
    offsets, rows, turned = parts
    columns = described(a)[1]
    if not np.array_equal(offsets, np.append(0, np.cumsum(counts(indices, columns)))):
        return float("inf")
    for column in np.unique(np.linspace(0, columns - 1, CHECKED_ROWS).astype(int)):
        at, part = places(indices, column), slice(offsets[column], offsets[column + 1])
        right = np.array_equal(rows[part], np.searchsorted(indptr, at, side="right") - 1)
        if not right or not np.array_equal(turned[part], values[at]):
            return float("inf")
    return 0.0


def counts(indices: Array, columns: int) -> Array:
    """How often each column comes."""
    found = np.zeros(columns, np.int64)
    for start in range(0, len(indices), ENTRIES_AT_ONCE):
        found += np.bincount(indices[start : start + ENTRIES_AT_ONCE], minlength=columns)
    return found


def places(indices: Array, column: int) -> Array:
    """Where a column comes."""
    found = [
        np.flatnonzero(indices[start : start + ENTRIES_AT_ONCE] == column) + start
        for start in range(0, len(indices), ENTRIES_AT_ONCE)
    ]
    return np.concatenate([np.empty(0, np.int64), *found])


def text_error(a: Any, source: str, rows: int, nonzeros: int, row_of: Callable[[Any, int], Any] = sp.csr_matrix.getrow) -> float:
    """Of a matrix read from LIBSVM text, its first and last lines, over eps of each value. `row_of`: a row as SciPy has it."""
    if a.shape[0] != rows or a.nnz != nonzeros:
        return float("inf")
    worst = 0.0
    for row, line in checked_lines(source, rows):
        pairs = [entry.split(":") for entry in line.split()[1:]]
        found, exact = row_of(a, row), np.array([float(value) for _, value in pairs])
        if not np.array_equal(found.indices, [int(column) - 1 for column, _ in pairs]):
            return float("inf")
        worst = max(worst, largest(np.asarray(found.data, np.float64) - exact, np.abs(exact) * EPS))
    return worst


def checked_lines(source: str, rows: int) -> Iterator[tuple[int, str]]:
    count = min(CHECKED_ROWS, rows)
    with open(source, "rb") as text:
        for row in range(count):
            yield row, text.readline().decode()
        text.seek(max(0, Path(source).stat().st_size - TAIL_BYTES))
        last = text.read().decode().splitlines()[-count:]
    yield from enumerate(last, rows - count)


def largest(error: Array, size: Array) -> float:
    """The largest |error| / size; an error where there is nothing to round is infinite."""
    error = np.abs(error)
    if np.any(~(error <= 0) & (size == 0)):
        return float("inf")
    return float((error / np.where(size == 0, 1, size)).max(initial=0.0))
