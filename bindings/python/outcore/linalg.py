"""Linear algebra on matrices bigger than memory.

Operands are arrays on SSD or NumPy arrays, their transposes and slices, of float32 or float64, all of one type; bool, integers
of 8 and 16 bits, float16 and bfloat16 count as float32, and are converted block by block. NumPy arrays are read in place; an
unaligned one, or one with gaps in both rows and columns, is copied first, and a large one of fewer bits is put into scratch.
Sparse matrices are on SSD (`outcore.Sparse`) or SciPy's. All functions take

memory : int or str, optional
    The part of its session's budget that the call may have, such as "2GiB"; default all of it. The call does what it would in a
    session of that budget, and takes the bytes from the session's while it runs, all or nothing. For those of other calls it
    waits if they come back with the pass over the data that goes on; where they are held for longer (by k-means, by what is
    streamed or loaded), and for more than the session's budget, it is an OverBudgetError.
progress : bool, optional
    Show a progress bar; default on a terminal and in a notebook, where it takes more than a second.

and raise ShapeError, DTypeError, OverBudgetError (before anything is read or written), DeviceError and, on Ctrl-C,
KeyboardInterrupt. The result does not depend on the number of threads; it may depend, in the last bits, on `memory`.
"""

from __future__ import annotations

from typing import Any, Literal, TypedDict, overload

import numpy as np
import numpy.typing as npt

from . import _native
from ._array import Array, Floats, native_operand, native_output, refuse_sparse, result_of, session_of, unmasked
from ._dtypes import computed, float_name
from ._settings import PathLike, full_path
from ._sparse import Sparse, is_scipy, native_sparse
from ._spectra import ConvergenceWarning, EigenPairs, Laplacian, SingularTriplets, eigsh, laplacian, svds
from ._team import together
from .errors import ArgumentError, DTypeError

__all__ = [
    "ConvergenceWarning",
    "EigenPairs",
    "Laplacian",
    "SingularTriplets",
    "axpby",
    "column_norms",
    "column_statistics",
    "csrcsc",
    "csrgemv",
    "csrmm",
    "eigsh",
    "gemm",
    "gram_product",
    "laplacian",
    "reduce",
    "row_norms",
    "scale",
    "scaled",
    "svds",
    "syrk",
]


def __dir__() -> list[str]:
    return sorted(__all__)


Operand = Array | npt.NDArray[Any]
Vector = npt.NDArray[np.float64]
Norm = Literal["l1", "l2", "max"]


class _Statistics(TypedDict):
    count: int
    mean: Vector
    variance: Vector
    min: Vector
    max: Vector


class ColumnStatistics(_Statistics, total=False):
    """What `column_statistics` returns."""

    nonzeros: npt.NDArray[np.uint64]


def _check_memory_out(out: npt.NDArray[Any], dtype: Any, beta: float, *operands: Any) -> None:
    """Refuses a NumPy array into which a result cannot be written in place."""
    if beta:
        raise ArgumentError("beta needs an array on SSD as out, not a NumPy array")
    unmasked(out, "out")
    if out.dtype != dtype:
        raise DTypeError(f"out is {out.dtype}, but the result is {dtype}")
    if not (out.flags.c_contiguous and out.flags.writeable and out.flags.aligned):
        raise ArgumentError("out must be a C-contiguous, aligned and writable NumPy array")
    if any(np.may_share_memory(out, x) for x in operands if isinstance(x, np.ndarray)):
        raise ArgumentError("out shares memory with an operand")


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
) -> Floats: ...
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
) -> Array | Floats:
    """C = alpha op(A) op(B) + beta C.

    Parameters
    ----------
    a : Array or ndarray of shape (m, k), or (k, m) with `trans_a`
    b : Array or ndarray of shape (k, n), or (n, k) with `trans_b`
    out : path, Array or ndarray of shape (m, n), optional
        A `.npy` file, which replaces an existing one when it is complete; an array that is changed in place; or a
        C-contiguous NumPy array for a result that fits in memory. Default: an unnamed array in the scratch folder.
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
    refuse_sparse(a, "a", "outcore.linalg.csrmm multiplies sparse matrices")
    refuse_sparse(b, "b", "outcore.linalg.csrmm multiplies sparse matrices; A B is (B^T A^T)^T")
    session = session_of(a, b, out, memory=memory)
    left, right = native_operand(a, "a", session), native_operand(b, "b", session)
    if isinstance(out, np.ndarray):
        _check_memory_out(out, computed(a), beta, a, b)
        target: Any = out
    else:
        target = native_output(out)
    job = _native.gemm(session._inner, left, right, trans_a, trans_b, alpha, beta, target)
    found = session._run(job, "gemm", progress)
    if isinstance(out, np.ndarray):
        return out
    return result_of(session, found, out)


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
) -> Array:
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
    job = _native.syrk(session._inner, native_operand(a, "a", session), trans, alpha, beta, full, native_output(out))
    return result_of(session, session._run(job, "syrk", progress), out)


def axpby(
    x: Operand,
    y: Array,
    *,
    alpha: float = 1.0,
    beta: float = 1.0,
    memory: int | str | None = None,
    progress: bool | None = None,
) -> Array:
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
    job = _native.axpby(session._inner, native_operand(x, "x", session), _stored(y, "y"), alpha, beta)
    return result_of(session, session._run(job, "axpby", progress), y)


def scale(x: Array, alpha: float, *, memory: int | str | None = None, progress: bool | None = None) -> Array:
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
    job = _native.scale(session._inner, _stored(x, "x"), alpha)
    return result_of(session, session._run(job, "scale", progress), x)


def row_norms(
    x: Operand | Sparse,
    norm: Norm = "l2",
    *,
    memory: int | str | None = None,
    progress: bool | None = None,
) -> Vector:
    """The norm of each row, summed in float64.

    Parameters
    ----------
    x : Array, ndarray, Sparse or SciPy sparse matrix of shape (m, n)
    norm : {"l1", "l2", "max"}

    Returns
    -------
    ndarray of shape (m,), float64. A Euclidean norm neither overflows nor underflows by its squares: it is infinite only if
    the norm itself is beyond 1.8e308 or an element is infinite. Any NaN makes it NaN.
    """
    session = session_of(x, memory=memory)
    if isinstance(x, Sparse) or is_scipy(x):
        job = _native.sparse_row_norms(session._inner, native_sparse(x, session, "x"), norm)
    else:
        job = _native.row_norms(session._inner, native_operand(x, "x", session), norm)
    return session._run(job, "row norms", progress)


def column_norms(
    x: Operand | Sparse,
    norm: Norm = "l2",
    *,
    memory: int | str | None = None,
    progress: bool | None = None,
) -> Vector:
    """The norm of each column, summed in float64.

    Parameters
    ----------
    x : Array, ndarray, Sparse or SciPy sparse matrix of shape (m, n)
    norm : {"l1", "l2", "max"}

    Returns
    -------
    ndarray of shape (n,), float64, as `row_norms` has them.
    """
    session = session_of(x, memory=memory)
    if isinstance(x, Sparse) or is_scipy(x):
        job = _native.sparse_row_norms(session._inner, native_sparse(x, session, "x").t(), norm)
    else:
        job = _native.column_norms(session._inner, native_operand(x, "x", session), norm)
    return session._run(job, "column norms", progress)


def column_statistics(
    x: Operand | Sparse, *, ddof: int = 0, memory: int | str | None = None, progress: bool | None = None, comm: Any = None
) -> ColumnStatistics:
    """Count, mean, variance, least and greatest element of each column in one pass, in float64.

    Parameters
    ----------
    x : Array, ndarray, Sparse or SciPy sparse matrix of shape (m, n)
        Of a sparse matrix the zeros that are not stored count too.
    ddof : int
        The variance is the sum of squared deviations over m - ddof.
    comm : optional
        Of the rows of all ranks of a job, see `outcore.ranks`: each calls this with its own rows.

    Returns
    -------
    dict with `count` (int) and `mean`, `variance`, `min`, `max` (ndarrays of shape (n,)), and for a sparse matrix `nonzeros`, the
    entries of each column. A NaN in a column makes its numbers NaN.

    Notes
    -----
    Merged by the formula of Chan, Golub and LeVeque (1979), accurate if the mean is much larger than the deviation.
    A variance has the square of the data's unit: it is infinite where deviations are beyond 1e154, and loses digits or is 0 where
    they are below 1e-154. The mean of elements near 1e308 overflows in its sum.
    """
    session = session_of(x, memory=memory)
    with together(comm) as team:
        if isinstance(x, Sparse) or is_scipy(x):
            job = _native.sparse_column_statistics(session._inner, native_sparse(x, session, "x"), team)
        else:
            job = _native.column_statistics(session._inner, native_operand(x, "x", session), team)
        found = session._run(job, "column statistics", progress)
    with np.errstate(invalid="ignore", divide="ignore"):
        variance = found.pop("m2") / np.float64(found["count"] - ddof)
    told: ColumnStatistics = {
        "count": found["count"],
        "mean": found["mean"],
        "variance": variance,
        "min": found["min"],
        "max": found["max"],
    }
    if "nonzeros" in found:
        told["nonzeros"] = found["nonzeros"]
    return told


def reduce(
    x: Operand,
    how: Literal["sum", "sum_of_squares", "min", "max"] = "sum",
    *,
    memory: int | str | None = None,
    progress: bool | None = None,
) -> float:
    """Reduces all elements to one number, in float64. Any NaN makes it NaN.

    Parameters
    ----------
    x : Array or ndarray of any shape
    how : {"sum", "sum_of_squares", "min", "max"}

    Returns
    -------
    float; of an empty array 0 for the sums, infinity and minus infinity for `min` and `max`. A sum beyond the range of float64 is
    infinite, so that of squares is where elements are beyond 1e154; see `row_norms` for their root.
    """
    session = session_of(x, memory=memory)
    job = _native.reduce(session._inner, native_operand(x, "x", session), how)
    return session._run(job, how, progress)


def _stored(x: Any, name: str) -> _native.Matrix:
    refuse_sparse(x, name)
    if not isinstance(x, Array):
        raise ArgumentError(f"{name} is changed in place and must be an outcore array, not {type(x).__name__}")
    return x._inner


@overload
def csrmm(
    a: Sparse,
    b: Operand,
    out: PathLike | Array | None = None,
    *,
    alpha: float = 1.0,
    beta: float = 0.0,
    trans_a: bool = False,
    memory: int | str | None = None,
    progress: bool | None = None,
) -> Array: ...
@overload
def csrmm(
    a: Any,
    b: Operand,
    out: PathLike | Array,
    *,
    alpha: float = 1.0,
    beta: float = 0.0,
    trans_a: bool = False,
    memory: int | str | None = None,
    progress: bool | None = None,
) -> Array: ...
@overload
def csrmm(
    a: Any,
    b: Operand,
    out: npt.NDArray[Any],
    *,
    alpha: float = 1.0,
    beta: float = 0.0,
    trans_a: bool = False,
    memory: int | str | None = None,
    progress: bool | None = None,
) -> Floats: ...
@overload
def csrmm(
    a: Any,
    b: Operand,
    out: None = None,
    *,
    alpha: float = 1.0,
    beta: float = 0.0,
    trans_a: bool = False,
    memory: int | str | None = None,
    progress: bool | None = None,
) -> Array | Floats: ...
def csrmm(
    a: Any,
    b: Operand,
    out: PathLike | Array | npt.NDArray[Any] | None = None,
    *,
    alpha: float = 1.0,
    beta: float = 0.0,
    trans_a: bool = False,
    memory: int | str | None = None,
    progress: bool | None = None,
) -> Array | Floats:
    """C = alpha op(A) B + beta C for a sparse A. No transpose is made for op(A) = A^T.

    Parameters
    ----------
    a : Sparse or SciPy sparse matrix of shape (m, n), or (n, m) with `trans_a`
    b : Array or ndarray of shape (n, d), rows or columns first
    out : path, Array or ndarray of shape (m, d), optional
        As in `gemm`. Default: a NumPy array where neither operand is on SSD, else an unnamed array there.
    alpha, beta : float
        `beta` other than 0 needs an Array as `out`.
    trans_a : bool
        The same as `a.T`.

    Returns
    -------
    Array or ndarray of shape (m, d), or `out` where that is an array.

    Notes
    -----
    2 nnz d operations. Reads A and B and writes C once where B (or C, for a matrix whose columns lie together) fits half of the
    budget; else B passes by once for each part of C that fits.
    """
    session = session_of(a, b, out, memory=memory)
    left = native_sparse(a, session, "a")
    left = left.t() if trans_a else left
    right = native_operand(b, "b", session)
    if out is None and not isinstance(a, Sparse) and not isinstance(b, Array):
        out = np.empty((left.shape[0], *b.shape[1:]), computed(b))
    if isinstance(out, np.ndarray):
        _check_memory_out(out, computed(b), beta, b)
    into = out if isinstance(out, np.ndarray) else native_output(out)
    job = _native.csrmm(session._inner, left, right, alpha, beta, into)
    found = session._run(job, "csrmm", progress)
    if isinstance(out, np.ndarray):
        return out
    return result_of(session, found, out)


def csrgemv(
    a: Any,
    x: Operand,
    *,
    trans_a: bool = False,
    memory: int | str | None = None,
    progress: bool | None = None,
) -> Floats:
    """y = op(A) x for a sparse A and vectors in memory.

    Parameters
    ----------
    a : Sparse or SciPy sparse matrix of shape (m, n), or (n, m) with `trans_a`
    x : Array or ndarray of shape (n,)
    trans_a : bool
        The same as `a.T`.

    Returns
    -------
    ndarray of shape (m,), of the type of A. It is held besides the budget.
    """
    refuse_sparse(x, "x")
    if x.ndim != 1:
        raise ArgumentError(f"x has {x.ndim} dimensions, but csrgemv takes a vector; see csrmm")
    rows = a.shape[1 if trans_a else 0]
    y: Floats = np.empty(rows, computed(x))
    csrmm(a, x, y, trans_a=trans_a, memory=memory, progress=progress)
    return y


def gram_product(
    a: Any,
    x: Operand,
    out: PathLike | Array | None = None,
    *,
    memory: int | str | None = None,
    progress: bool | None = None,
) -> Array:
    """Y = A^T (A X) for a sparse A, in one pass over A.

    Parameters
    ----------
    a : Sparse or SciPy sparse matrix of shape (m, n)
    x : Array or ndarray of shape (n, d)
    out : path or Array of shape (n, d), optional
        As in `gemm`.

    Returns
    -------
    Array of shape (n, d), or `out` where that is an array.

    Notes
    -----
    4 nnz d operations. X and up to eight copies of Y wait in memory; where they do not fit, or where the columns of A lie
    together and not its rows, A X is made in scratch and A is read twice.
    """
    session = session_of(a, x, out, memory=memory)
    job = _native.gram_product(
        session._inner, native_sparse(a, session, "a"), native_operand(x, "x", session), native_output(out)
    )
    return result_of(session, session._run(job, "gram product", progress), out)


def scaled(
    a: Any,
    out: PathLike | None = None,
    *,
    rows: npt.ArrayLike | None = None,
    columns: npt.ArrayLike | None = None,
    logarithm: bool = False,
    unit_rows: bool = False,
    dtype: npt.DTypeLike | None = None,
    memory: int | str | None = None,
    progress: bool | None = None,
) -> Sparse:
    """A copy of a sparse matrix with other values in the same places.

    Parameters
    ----------
    a : Sparse or SciPy sparse matrix of shape (m, n)
    out : path, optional
        A folder, which replaces an existing matrix when it is complete. Default: an unnamed matrix in scratch.
    rows, columns : array_like of shape (m,), (n,), optional
        Factors of rows and columns.
    logarithm : bool
        First put 1 + ln(value) in the place of each value.
    unit_rows : bool
        At last divide each row by its Euclidean norm.
    dtype : float32 or float64, optional
        Type of the new values; default that of `a`.

    Returns
    -------
    Sparse of shape (m, n), in the format of `a`.
    """
    session = session_of(a, memory=memory)
    kind = None if dtype is None else float_name(dtype)
    down, across = (None if part is None else np.ascontiguousarray(part, np.float64) for part in (rows, columns))
    path = None if out is None else full_path(out)
    matrix = native_sparse(a, session, "a")
    job = _native.sparse_scaled(session._inner, matrix, path, kind, down, across, logarithm, unit_rows)
    found = session._run(job, "scaling", progress)
    return Sparse._result(session, found)


def csrcsc(
    a: Any,
    out: PathLike | None = None,
    *,
    memory: int | str | None = None,
    progress: bool | None = None,
) -> Sparse:
    """The same matrix in the other format: CSC for CSR, CSR for CSC.

    Parameters
    ----------
    a : Sparse or SciPy sparse matrix of shape (m, n)
    out : path, optional
        A folder, which replaces an existing matrix when it is complete. Default: an unnamed matrix in scratch.

    Returns
    -------
    Sparse of shape (m, n). Entries of a column (of CSR: row) come in the order of rows (columns).

    Notes
    -----
    Reads A and writes the result; where entries do not fit three fifths of the budget, the rest goes by way of scratch, about
    seven bytes an entry.
    """
    session = session_of(a, memory=memory)
    path = None if out is None else full_path(out)
    job = _native.csrcsc(session._inner, native_sparse(a, session, "a"), path)
    found = session._run(job, "csrcsc", progress)
    return Sparse._result(session, found)
