"""Copies of arrays with another type of elements."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from . import _native
from ._array import CHUNK_BYTES, Array, native_output, result_of
from ._dtypes import DECODED, type_name
from ._session import Session
from ._settings import Order, full_path
from .errors import ShapeError

__all__ = ["converted"]

FLOATS = ("float32", "float64")


def converted(session: Session, a: Array, out: Any, dtype: Any, order: Order, progress: bool | None) -> Array:
    """By the engine where it has a way, else by NumPy, a few MiB at a time."""
    kind = type_name(dtype)
    if kind == a.dtype.name or (kind in FLOATS and a.dtype.name in (*DECODED, *FLOATS)):
        job = _native.convert(session._inner, a._inner, native_output(out), kind, order)
        return result_of(session, session._run(job, "convert", progress), out)
    if isinstance(out, Array):
        if out.shape != a.shape:
            raise ShapeError(f"a is {a.shape}, out is {out.shape}")
        _copy(a, out)
        return out
    if out is None:
        unnamed = Array._result(session, _native.temporary_matrix(session._engine, kind, list(a.shape), order))
        _copy(a, unnamed)
        return unnamed
    draft = _native.draft_matrix(session._engine, full_path(out), kind, list(a.shape), order)
    try:
        _copy(a, Array(session, draft, None))
        finished = draft.finish()
    finally:
        # A stored traceback must not keep the file open.
        draft.discard()
    return Array._result(session, finished)


def _copy(a: Array, into: Array) -> None:
    """Rows, or columns where these lie together, a few MiB at a time."""
    by_columns = a.ndim == 2 and a.order == into.order == "F"
    source, target = (a.T, into.T) if by_columns else (a, into)
    widest = max(a.dtype.itemsize, into.dtype.itemsize)
    lines = max(1, CHUNK_BYTES // max(1, widest * (source.size // max(1, len(source)))))
    with np.errstate(invalid="ignore", over="ignore"):
        for start in range(0, len(source), lines):
            target[start : start + lines] = _cast(source[start : start + lines], into.dtype)


def _cast(values: npt.NDArray[Any], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """As `astype`; between two types of float8 by way of float32, where ml_dtypes has no way of its own."""
    try:
        return values.astype(dtype)
    except TypeError:
        return values.astype(np.float32).astype(dtype)
