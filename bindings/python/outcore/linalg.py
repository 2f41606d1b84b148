"""Dense linear algebra on matrices bigger than memory.

Operands are arrays on SSD or NumPy arrays, their transposes and slices, of float32 or float64, all of one type. NumPy arrays are
read where they lie; one that is not aligned, or whose rows and columns both have gaps, is copied first. All functions take

memory : int or str, optional
    A budget for this call, beside that of the session.
progress : bool, optional
    Show a progress bar; default when standard error is a terminal and it takes more than a second.
explain : bool or "json"
    Print, in words or as JSON, what the call would read, write and hold, instead; nothing is moved and nothing returned.

and raise ShapeError, DTypeError, OverBudgetError (before anything is read or written), DeviceError and, on Ctrl-C,
KeyboardInterrupt. The result does not depend on the number of threads; it may depend, in the last bits, on `memory`.
"""

from __future__ import annotations

from typing import Any, Literal, overload

import numpy as np
import numpy.typing as npt

from . import _native
from ._array import Array, native_operand, native_output, session_of, unmasked
from ._session import PathLike, Session
from .errors import ArgumentError, DTypeError

__all__ = ["axpby", "column_norms", "column_statistics", "gemm", "reduce", "row_norms", "scale", "syrk"]

Operand = Array | npt.NDArray[Any]
Vector = npt.NDArray[np.float64]
Norm = Literal["l1", "l2", "max"]
Explain = bool | Literal["json"]


def _carry_out(session: Session, job: _native.Job, label: str, progress: bool | None, explain: Explain) -> Any:
    if explain:
        print(job.json() if explain == "json" else job.text())
        return None
    return session._run(job, label, progress)


def _array(session: Session, found: Any, out: Any) -> Any:
    """The result as an array: `out` itself where it was given as one; nothing where the plan was only explained."""
    if found is None or isinstance(out, Array):
        return out if found is not None else None
    return Array._result(session, found)


@overload
def gemm(
    a: Operand,
    b: Operand,
    out: PathLike | Array | None = None,
    *,
    alpha: float = 1.0,
    beta: float = 0.0,
    trans_a: bool = False,
    trans_b: bool = False,
    memory: int | str | None = None,
    progress: bool | None = None,
    explain: Literal[False] = False,
) -> Array: ...
@overload
def gemm(
    a: Operand,
    b: Operand,
    out: npt.NDArray[Any],
    *,
    alpha: float = 1.0,
    beta: float = 0.0,
    trans_a: bool = False,
    trans_b: bool = False,
    memory: int | str | None = None,
    progress: bool | None = None,
    explain: Literal[False] = False,
) -> npt.NDArray[Any]: ...
@overload
def gemm(
    a: Operand,
    b: Operand,
    out: PathLike | Array | npt.NDArray[Any] | None = None,
    *,
    alpha: float = 1.0,
    beta: float = 0.0,
    trans_a: bool = False,
    trans_b: bool = False,
    memory: int | str | None = None,
    progress: bool | None = None,
    explain: Explain,
) -> Array | npt.NDArray[Any] | None: ...
def gemm(
    a: Operand,
    b: Operand,
    out: PathLike | Array | npt.NDArray[Any] | None = None,
    *,
    alpha: float = 1.0,
    beta: float = 0.0,
    trans_a: bool = False,
    trans_b: bool = False,
    memory: int | str | None = None,
    progress: bool | None = None,
    explain: Explain = False,
) -> Array | npt.NDArray[Any] | None:
    """C = alpha op(A) op(B) + beta C.

    Parameters
    ----------
    a : Array or ndarray of shape (m, k), or (k, m) with `trans_a`
    b : Array or ndarray of shape (k, n), or (n, k) with `trans_b`
    out : path, Array or ndarray of shape (m, n), optional
        A new `.npy` file, there when it is whole; an array that is changed in place; or a C-contiguous NumPy array for a
        result that fits in memory. Default: an unnamed array in the scratch folder.
    alpha, beta : float
        `beta` other than 0 needs an Array as `out`.
    trans_a, trans_b : bool
        Use the transpose; the same as `a.T` and `b.T`.

    Returns
    -------
    Array of shape (m, n), or `out` where that is an array.

    Notes
    -----
    2 m n k operations; reads and writes close to max(size of A, B and C; 2 m n k / sqrt(M) + m n) elements for a budget of
    M elements. After BLAS-on-flash (Subramanya et al., NSDI 2019).
    """
    session = session_of(a, b, out, memory=memory)
    left, right = native_operand(a, "a"), native_operand(b, "b")
    if isinstance(out, np.ndarray):
        if beta:
            raise ArgumentError("beta needs an array on SSD as out, not a NumPy array")
        unmasked(out, "out")
        if out.dtype != a.dtype:
            raise DTypeError(f"out is {out.dtype}, where the result is {a.dtype}")
        if not (out.flags.c_contiguous and out.flags.writeable and out.flags.aligned):
            raise ArgumentError("out must be a C-contiguous, aligned and writable NumPy array")
        if any(np.may_share_memory(out, x) for x in (a, b) if isinstance(x, np.ndarray)):
            raise ArgumentError("out shares memory with an operand")
        target: Any = out
    else:
        target = native_output(out)
    job = _native.gemm(session._for(explain), left, right, trans_a, trans_b, alpha, beta, target)
    found = _carry_out(session, job, "gemm", progress, explain)
    if isinstance(out, np.ndarray):
        return None if explain else out
    return _array(session, found, out)


@overload
def syrk(
    a: Operand,
    out: PathLike | Array | None = None,
    *,
    trans: bool = False,
    alpha: float = 1.0,
    beta: float = 0.0,
    full: bool = True,
    memory: int | str | None = None,
    progress: bool | None = None,
    explain: Literal[False] = False,
) -> Array: ...
@overload
def syrk(
    a: Operand,
    out: PathLike | Array | None = None,
    *,
    trans: bool = False,
    alpha: float = 1.0,
    beta: float = 0.0,
    full: bool = True,
    memory: int | str | None = None,
    progress: bool | None = None,
    explain: Explain,
) -> Array | None: ...
def syrk(
    a: Operand,
    out: PathLike | Array | None = None,
    *,
    trans: bool = False,
    alpha: float = 1.0,
    beta: float = 0.0,
    full: bool = True,
    memory: int | str | None = None,
    progress: bool | None = None,
    explain: Explain = False,
) -> Array | None:
    """C = alpha A A^T + beta C, or alpha A^T A + beta C with `trans`: half the arithmetic of `gemm`.

    Parameters
    ----------
    a : Array or ndarray of shape (n, k), or (k, n) with `trans`
    out : path or Array of shape (n, n), optional
        As in `gemm`.
    full : bool
        Fill the upper triangle too; otherwise it is left as it was, zero in a new matrix.

    Returns
    -------
    Array of shape (n, n), or `out` where that is an array.

    Notes
    -----
    n (n + 1) k operations. Tiles after Beaumont et al., SPAA 2022 (arXiv:2202.10217).
    """
    session = session_of(a, out, memory=memory)
    job = _native.syrk(session._for(explain), native_operand(a, "a"), trans, alpha, beta, full, native_output(out))
    return _array(session, _carry_out(session, job, "syrk", progress, explain), out)


@overload
def axpby(
    x: Operand,
    y: Array,
    *,
    alpha: float = 1.0,
    beta: float = 1.0,
    memory: int | str | None = None,
    progress: bool | None = None,
    explain: Literal[False] = False,
) -> Array: ...
@overload
def axpby(
    x: Operand,
    y: Array,
    *,
    alpha: float = 1.0,
    beta: float = 1.0,
    memory: int | str | None = None,
    progress: bool | None = None,
    explain: Explain,
) -> Array | None: ...
def axpby(
    x: Operand,
    y: Array,
    *,
    alpha: float = 1.0,
    beta: float = 1.0,
    memory: int | str | None = None,
    progress: bool | None = None,
    explain: Explain = False,
) -> Array | None:
    """y = alpha x + beta y, in place. With `beta` 0 the old content of y is not read.

    Parameters
    ----------
    x : Array or ndarray of shape (m, n)
    y : Array of shape (m, n)

    Returns
    -------
    y.
    """
    session = session_of(y, x, memory=memory)
    job = _native.axpby(session._for(explain), native_operand(x, "x"), _stored(y, "y"), alpha, beta)
    return _array(session, _carry_out(session, job, "axpby", progress, explain), y)


@overload
def scale(
    x: Array, alpha: float, *, memory: int | str | None = None, progress: bool | None = None, explain: Literal[False] = False
) -> Array: ...
@overload
def scale(
    x: Array, alpha: float, *, memory: int | str | None = None, progress: bool | None = None, explain: Explain
) -> Array | None: ...
def scale(
    x: Array, alpha: float, *, memory: int | str | None = None, progress: bool | None = None, explain: Explain = False
) -> Array | None:
    """x = alpha x, in place.

    Parameters
    ----------
    x : Array of any shape
    alpha : float

    Returns
    -------
    x.
    """
    session = session_of(x, memory=memory)
    job = _native.scale(session._for(explain), _stored(x, "x"), alpha)
    return _array(session, _carry_out(session, job, "scale", progress, explain), x)


@overload
def row_norms(
    x: Operand,
    norm: Norm = "l2",
    *,
    memory: int | str | None = None,
    progress: bool | None = None,
    explain: Literal[False] = False,
) -> Vector: ...
@overload
def row_norms(
    x: Operand, norm: Norm = "l2", *, memory: int | str | None = None, progress: bool | None = None, explain: Explain
) -> Vector | None: ...
def row_norms(
    x: Operand, norm: Norm = "l2", *, memory: int | str | None = None, progress: bool | None = None, explain: Explain = False
) -> Vector | None:
    """The norm of each row, summed in float64.

    Parameters
    ----------
    x : Array or ndarray of shape (m, n)
    norm : {"l1", "l2", "max"}

    Returns
    -------
    ndarray of shape (m,), float64.
    """
    session = session_of(x, memory=memory)
    job = _native.row_norms(session._for(explain), native_operand(x, "x"), norm)
    return _carry_out(session, job, "row norms", progress, explain)


@overload
def column_norms(
    x: Operand,
    norm: Norm = "l2",
    *,
    memory: int | str | None = None,
    progress: bool | None = None,
    explain: Literal[False] = False,
) -> Vector: ...
@overload
def column_norms(
    x: Operand, norm: Norm = "l2", *, memory: int | str | None = None, progress: bool | None = None, explain: Explain
) -> Vector | None: ...
def column_norms(
    x: Operand, norm: Norm = "l2", *, memory: int | str | None = None, progress: bool | None = None, explain: Explain = False
) -> Vector | None:
    """The norm of each column, summed in float64.

    Parameters
    ----------
    x : Array or ndarray of shape (m, n)
    norm : {"l1", "l2", "max"}

    Returns
    -------
    ndarray of shape (n,), float64.
    """
    session = session_of(x, memory=memory)
    job = _native.column_norms(session._for(explain), native_operand(x, "x"), norm)
    return _carry_out(session, job, "column norms", progress, explain)


@overload
def column_statistics(
    x: Operand, *, ddof: int = 0, memory: int | str | None = None, progress: bool | None = None, explain: Literal[False] = False
) -> dict[str, Any]: ...
@overload
def column_statistics(
    x: Operand, *, ddof: int = 0, memory: int | str | None = None, progress: bool | None = None, explain: Explain
) -> dict[str, Any] | None: ...
def column_statistics(
    x: Operand, *, ddof: int = 0, memory: int | str | None = None, progress: bool | None = None, explain: Explain = False
) -> dict[str, Any] | None:
    """Count, mean, variance, least and greatest element of each column in one pass, in float64.

    Parameters
    ----------
    x : Array or ndarray of shape (m, n)
    ddof : int
        The variance is the sum of squared deviations over m - ddof.

    Returns
    -------
    dict with `count` (int) and `mean`, `variance`, `min`, `max` (ndarrays of shape (n,)). A NaN in a column makes its
    numbers NaN.

    Notes
    -----
    Merged by the formula of Chan, Golub and LeVeque (1979), which loses nothing when the mean is large against the deviation.
    """
    session = session_of(x, memory=memory)
    job = _native.column_statistics(session._for(explain), native_operand(x, "x"))
    found = _carry_out(session, job, "column statistics", progress, explain)
    if found is None:
        return None
    with np.errstate(invalid="ignore", divide="ignore"):
        variance = found.pop("m2") / np.float64(found["count"] - ddof)
    return {"count": found["count"], "mean": found["mean"], "variance": variance, "min": found["min"], "max": found["max"]}


@overload
def reduce(
    x: Operand,
    how: Literal["sum", "sum_of_squares", "min", "max"] = "sum",
    *,
    memory: int | str | None = None,
    progress: bool | None = None,
    explain: Literal[False] = False,
) -> float: ...
@overload
def reduce(
    x: Operand,
    how: Literal["sum", "sum_of_squares", "min", "max"] = "sum",
    *,
    memory: int | str | None = None,
    progress: bool | None = None,
    explain: Explain,
) -> float | None: ...
def reduce(
    x: Operand,
    how: Literal["sum", "sum_of_squares", "min", "max"] = "sum",
    *,
    memory: int | str | None = None,
    progress: bool | None = None,
    explain: Explain = False,
) -> float | None:
    """All elements to one number, in float64. NaN wins.

    Parameters
    ----------
    x : Array or ndarray of any shape
    how : {"sum", "sum_of_squares", "min", "max"}

    Returns
    -------
    float; of an empty array 0 for the sums, infinity and minus infinity for `min` and `max`.
    """
    session = session_of(x, memory=memory)
    job = _native.reduce(session._for(explain), native_operand(x, "x"), how)
    return _carry_out(session, job, how, progress, explain)


def _stored(x: Any, name: str) -> _native.Matrix:
    if not isinstance(x, Array):
        raise ArgumentError(f"{name} is changed in place and must be an outcore array, not {type(x).__name__}")
    return x._inner
