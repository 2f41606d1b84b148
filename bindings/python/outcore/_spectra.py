"""Eigenpairs and singular triplets of matrices bigger than memory: `outcore.linalg.eigsh` and `svds`."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from numbers import Integral, Real
from typing import Any, Literal, ParamSpec, TypeVar

import numpy as np
import numpy.typing as npt

from . import _native
from ._array import Array, Floats, in_memory, session_of
from ._dtypes import computed, is_decoded
from ._session import Session
from ._settings import PathLike, full_path
from ._sparse import Sparse, is_scipy, native_rows, native_sparse
from .errors import ArgumentError, DTypeError, FailedError, ShapeError

__all__ = [
    "ConvergenceWarning",
    "EigenPairs",
    "Laplacian",
    "Method",
    "SingularTriplets",
    "components_of",
    "convergence",
    "eigenpairs",
    "eigsh",
    "forget_checkpoint",
    "found_vectors",
    "graph_operator",
    "laplacian",
    "native_options",
    "svds",
]

Method = Literal["auto", "krylov", "randomized"]
P = ParamSpec("P")
R = TypeVar("R")

MAXITER = 300
"""Restarts at most, where the caller does not say it."""
MOST = 1 << 40
"""Of any number that is given."""


class ConvergenceWarning(UserWarning):
    """Some pairs are not as accurate as they were to be; the result says which, and why."""


class _Found(tuple):  # type: ignore[type-arg]
    """a tuple with what is known of it.

    Attributes
    ----------
    residuals : ndarray of shape (k,), float64
        What is left of each pair when it is multiplied once more, measured after the search: of eigsh |A v - w v|, of svds
        |A^T u - s v| (A v is s u up to rounding).
    scale : float
        The largest |w| or s that was seen, which is the norm of A: a pair has converged if its residual is at most `tol` times
        this.
    converged : ndarray of shape (k,), bool
    not_converged : dict of int to str
        Why, for each pair that has not.
    missed_beyond : float or None
        With a probability of 1 - 1e-6 no pair beyond this value is missing, that is to say none of which the first start vectors
        had no part. A wide bound: beyond the next value after those found by up to one and a half times the width of the
        spectrum without them, of svds up to twice that value; more where `ncv` or wide blocks leave room for fewer passes. None
        where that was not looked at, or too little to say.
    passes : int
        Products with a block of vectors.
    restarts : int
    block, basis : int
        Columns of a product, and of the basis.
    basis_in_memory : bool
    """

    residuals: npt.NDArray[np.float64]
    scale: float
    converged: npt.NDArray[np.bool_]
    not_converged: dict[int, str]
    missed_beyond: float | None
    passes: int
    restarts: int
    block: int
    basis: int
    basis_in_memory: bool

    def _tell(self, found: dict[str, Any], tol: float, maxiter: int, stacklevel: int) -> None:
        self.residuals, self.scale = found["residuals"], found["largest"]
        self.converged, why = convergence(found, tol, maxiter, stacklevel=stacklevel)
        self.not_converged = {int(pair): why for pair in np.flatnonzero(~self.converged)}
        self.missed_beyond = found["missed_beyond"]
        self.passes, self.restarts = found["products"], found["restarts"]
        self.block, self.basis, self.basis_in_memory = found["block"], found["basis"], found["in_memory"]


def convergence(
    found: dict[str, Any], tol: float, maxiter: int = MAXITER, *, stacklevel: int
) -> tuple[npt.NDArray[np.bool_], str]:
    """Which pairs of a search have converged, and why others have not, of which a warning tells.

    A `tol` of 0 asks for residuals as small as rounding leaves them.
    """
    residuals, largest = found["residuals"], found["largest"]
    # Vectors of products are squared; those of A^T A have squares already.
    if 0 < largest < (1e-140 if "vectors" in found else 1e-70):
        raise ArgumentError(f"the elements of A are too small to be squared in float64: its largest value is {largest:.1e}")
    exact = tol == 0 and found["has_converged"]
    converged = np.ones(len(residuals), np.bool_) if exact else residuals <= tol * largest
    if found["has_converged"]:
        why = f"products are rounded to {found['epsilon']:.1e} of the largest value, and a search ends with residuals near that"
        if found["epsilon"] > np.finfo(np.float64).eps:
            why += "; with a tol below 1e-4 they are made in float64"
    elif found["may_miss"]:
        why = "each look for missed pairs has found further ones"
        warnings.warn(f"pairs may be missing: {why}, the last one too", ConvergenceWarning, stacklevel=stacklevel)
    elif found["restarts"] < maxiter:
        why = "the basis holds all vectors there are, and rounding leaves no smaller residual"
    else:
        why = f"the search ended after {found['restarts']} restarts, which is maxiter"
    if not converged.all():
        worst = float(residuals.max() / largest) if largest else float(residuals.max())
        pairs = f"{np.count_nonzero(~converged)} of {len(residuals)} pairs"
        told = f"{pairs} have residuals above tol={tol:g}, up to {worst:.1e}: {why}"
        warnings.warn(told, ConvergenceWarning, stacklevel=stacklevel)
    return converged, why


class EigenPairs(_Found):
    __doc__ = f"`w, V = eigsh(...)`: {_Found.__doc__}"


class SingularTriplets(_Found):
    __doc__ = f"`U, s, Vt = svds(...)`: {_Found.__doc__}"


class Laplacian:
    """The Laplacian of a graph, as an operator; made by `outcore.linalg.laplacian`.

    Attributes
    ----------
    shape : (n, n)
    degrees : ndarray of shape (n,), float64
        Without the weights of edges of nodes to themselves.
    """

    def __init__(self, graph: Any, degrees: npt.NDArray[np.float64], own: npt.NDArray[np.float64], form: str) -> None:
        self._graph, self._own, self._form = graph, own, form
        self.degrees = degrees
        self.shape: tuple[int, int] = graph.shape
        self.dtype = np.dtype(np.float64)


def laplacian(graph: Any, *, normed: bool = False, memory: int | str | None = None, progress: bool | None = None) -> Laplacian:
    """The Laplacian of a graph for `eigsh`, which is never made: D - W, or I - D^-1/2 W D^-1/2 with `normed`.

    Parameters
    ----------
    graph : Sparse, SciPy sparse matrix, Array or ndarray of shape (n, n)
        Symmetric; weights may be negative as long as the degree of no node is. Edges of a node to itself are left out, as in
        `scipy.sparse.csgraph.laplacian`.
    normed : bool
        Rows of nodes without edges are then zero.

    Returns
    -------
    Laplacian

    Raises
    ------
    ShapeError
        For a matrix that is not square. ArgumentError for a node of negative degree.
    """
    if not hasattr(graph, "ndim"):
        graph = np.asarray(graph)
    return graph_operator(graph, "normalized" if normed else "laplacian", session_of(graph, memory=memory), progress)


def graph_operator(graph: Any, form: str, session: Session, progress: bool | None) -> Laplacian:
    if graph.ndim != 2 or graph.shape[0] != graph.shape[1]:
        raise ShapeError(f"the graph is {graph!r}, but a graph has a square matrix, not one of shape {tuple(graph.shape)}")
    if isinstance(graph, np.ndarray) and graph.dtype.kind in "iub":
        graph = graph.astype(np.float64)
    job = _native.graph_degrees(session._inner, native_rows(graph, "the graph", session))
    some = np.ones(graph.shape[0])
    degrees, own = session._run(job, "degrees", progress, stand_in=lambda: (some, some))
    negative = np.flatnonzero(~(degrees >= 0))
    if len(negative):
        degree = degrees[negative[0]]
        raise ArgumentError(f"node {negative[0]} of the graph {graph!r} has degree {degree}, which must not be negative")
    return Laplacian(graph, degrees, own, form)


def _removes_checkpoint(search: Callable[P, R]) -> Callable[P, R]:
    """The search, which removes its checkpoint when it has its results; without this, the caller does it later."""

    @functools.wraps(search)
    def whole(*args: P.args, **kwargs: P.kwargs) -> R:
        found = search(*args, **kwargs)
        forget_checkpoint(kwargs.get("checkpoint"))
        return found

    return whole


def forget_checkpoint(path: Any) -> None:
    """Removes the checkpoint, if there is one, of a search whose results have been used."""
    if path is not None:
        _native.forget_checkpoint(full_path(path))


@_removes_checkpoint
def eigsh(
    A: Any,
    k: int = 6,
    *,
    which: Literal["LM", "LA", "SA"] = "LM",
    v0: npt.ArrayLike | None = None,
    ncv: int | None = None,
    maxiter: int = MAXITER,
    tol: float = 1e-6,
    shape: int | tuple[int, int] | None = None,
    method: Method = "auto",
    block: int | None = None,
    check: bool = True,
    checkpoint: PathLike | None = None,
    random_state: int = 0,
    memory: int | str | None = None,
    progress: bool | None = None,
) -> EigenPairs:
    """A few eigenpairs of a symmetric matrix, by passes over it.

    Parameters
    ----------
    A : matrix or operator of shape (n, n)
        Sparse, Array, SciPy sparse matrix or ndarray; `outcore.linalg.laplacian(graph)`; a
        `scipy.sparse.linalg.LinearOperator` or anything with `shape` and `matmat` or `matvec`; or a function that makes A X,
        of shape (n, c), of an ndarray X of that shape, together with `shape`.
    k : int
        Pairs, from 1 to n.
    which : {"LM", "LA", "SA"}
        Those of largest magnitude, the largest, or the smallest.
    v0 : array_like of shape (n,), optional
        The first of the start vectors; the others are random.
    ncv : int, optional
        Columns at which the basis is contracted, more than k; default some 2 k and six blocks, fewer where memory is short, or
        five blocks that are wider than k. Fewer than what the pairs and three blocks take count as that many.
    maxiter : int
        Restarts at most.
    tol : float
        Pairs are wanted with |A v - w v| <= tol times the norm of A; 0 asks for residuals as small as rounding leaves them.
    method : {"auto", "krylov", "randomized"}
        Narrow blocks and many passes, or blocks wider than k and few; the choice is made of `tol` and of what a pass takes to
        read and to compute: wide ones for dense matrices on SSD and a `tol` of 1e-4 or more. What it takes is told
        by the size of the matrix and fixed rates, not by a clock, so that the same call has the same bits.
    block : int, optional
        Columns of a product.
    check : bool
        Go on from a fresh random block, which shows pairs that the first start vectors had no part of: for eight passes, of svds
        five, and more with blocks of few columns and very long vectors. Where it brings pairs, another one follows.
    checkpoint : path, optional
        A file that is replaced after every restart. The same call in another process goes on from there, with the same bits; it
        is removed at the end. That of another search or matrix is refused.
    random_state : int
        Seed of the start vectors.

    Returns
    -------
    w : ndarray of shape (k,)
        Ascending, of the type of A, float64 for operators.
    V : ndarray of shape (n, k), or Array
        An Array in scratch where the basis is. The entry of largest magnitude of each column is positive.

    The tuple has attributes: see `EigenPairs`.

    Raises
    ------
    ArgumentError
        For k out of range, NaN or infinity, and for a matrix that is not symmetric. ShapeError for one that is not square, and
        for a function whose result has another shape.

    Notes
    -----
    Zhou and Saad, "Block Krylov-Schur method for large symmetric eigenvalue problems" (2008). The basis is in memory where it
    fits, else in scratch; a few blocks of columns must fit, and what the basis sees of A, some 40 bytes for the square of its
    columns: 0.2 GB for 2,000 pairs and the shortest basis. What does not fit is refused before anything is read. `explain` tells
    how many passes there are at least and at most, and how many a corpus takes, whose values fall off slowly. The bits are
    the same for any number of threads, and wherever the basis lies; the budget decides on them as far as it decides on `block`
    and `basis`, and on how passes over A are cut.
    """
    A = np.asarray(A) if isinstance(A, list) else A
    session = session_of(A._graph if isinstance(A, Laplacian) else A, memory=memory)
    options: dict[str, Any] = {"which": which, "v0": v0, "ncv": ncv, "maxiter": maxiter, "tol": tol, "method": method}
    options |= {"block": block, "check": check, "checkpoint": checkpoint, "random_state": random_state}
    return eigenpairs(A, k, session, progress, shape, **options)


def eigenpairs(
    A: Any, k: Any, session: Session, progress: bool | None, shape: int | tuple[int, int] | None = None, **options: Any
) -> EigenPairs:
    """`eigsh` in a given session."""
    found, dtype = _search(session, A, shape, native_options(k, **options), progress, symmetric=True)
    values = found["values"]
    vectors = found_vectors(session, found["vectors"], len(values), dtype)
    made = EigenPairs((values.astype(dtype, copy=False), vectors))
    made._tell(found, options["tol"], options.get("maxiter", MAXITER), stacklevel=6)
    return made


@_removes_checkpoint
def svds(
    A: Any,
    k: int = 6,
    *,
    v0: npt.ArrayLike | None = None,
    ncv: int | None = None,
    maxiter: int = MAXITER,
    tol: float = 1e-6,
    shape: tuple[int, int] | None = None,
    method: Method = "auto",
    block: int | None = None,
    check: bool = True,
    checkpoint: PathLike | None = None,
    random_state: int = 0,
    memory: int | str | None = None,
    progress: bool | None = None,
) -> SingularTriplets:
    """The largest singular values of a matrix and their vectors, by passes over it.

    Parameters
    ----------
    A : matrix or operator of shape (m, n)
        As of `eigsh`; operators have `rmatmat` or `rmatvec` too, and of functions there are two in a tuple: A X and A^T X.
    k : int
        Triplets, from 1 to min(m, n). Where the rank is lower, the last values are zero.
    tol : float
        Triplets are wanted with |A v - s u| and |A^T u - s v| at most tol times the largest s. From 1e-4 on, products with
        float32 matrices are made in float32, else in float64: values of less than some thousandths of the largest may take a tol
        below 1e-4, which `not_converged` then says.
    v0 : array_like, optional
        The first of the start vectors, of which each has an element for each column of A; for each row of an
        operator that has fewer rows, and of a matrix that has fewer than a quarter of the columns. Of a CSC matrix rows and
        columns change places here.
    ncv, maxiter, method, block, check, checkpoint, random_state
        As of `eigsh`.

    Returns
    -------
    U : ndarray of shape (m, k), or Array
    s : ndarray of shape (k,), ascending as in SciPy
    Vt : ndarray of shape (k, n), or Array
        Of the type of A, float64 for operators; Arrays in scratch where there is no room. The entry of largest magnitude of each
        column of U is positive, as scikit-learn's `svd_flip` has it.

    The tuple has attributes: see `SingularTriplets`.

    Raises
    ------
    ArgumentError
        For k out of range, and for NaN or infinity.

    Notes
    -----
    Of the block Krylov-Schur method of `eigsh` for A^T A, whose products take one pass over one copy of A, or two where its lines
    (rows, or columns of CSC) are more than four times as long as they are many, or too long for memory; then A V = Q R and the
    singular values of R, which have all their digits and take some 90 bytes for the square of k: 0.4 GB for 2,000 triplets.
    """
    options = native_options(k, "LA", v0, ncv, maxiter, tol, method, block, check, checkpoint, random_state)
    A = np.asarray(A) if isinstance(A, list) else A
    session = session_of(A, memory=memory)
    found, dtype = _search(session, A, shape, options, progress, symmetric=False)
    values = found["values"]
    left, right = (found_vectors(session, found[side], len(values), dtype) for side in ("left", "right"))
    made = SingularTriplets((left, values.astype(dtype, copy=False), right.T))
    made._tell(found, tol, maxiter, stacklevel=5)
    return made


def _search(
    session: Session,
    A: Any,
    shape: int | tuple[int, int] | None,
    options: dict[str, Any],
    progress: bool | None,
    *,
    symmetric: bool,
) -> tuple[dict[str, Any], np.dtype[Any]]:
    """What is found, and the type of results."""
    label = "eigenpairs" if symmetric else "singular triplets"
    double: np.dtype[Any] = np.dtype(np.float64)
    if symmetric and isinstance(A, Laplacian):
        graph = native_rows(A._graph, "the graph", session)
        job = _native.eigsh(session._inner, graph, options, (A.degrees, A._own), A._form)
        return session._run(job, label, progress), double
    if _is_matrix(A):
        rows, dtype = _rows(A, session)
        job = (_native.eigsh if symmetric else _native.svds)(session._inner, rows, options)
        return session._run(job, label, progress), dtype
    products = _Products(A, shape, symmetric=symmetric)
    native = _native.eigsh_of_function if symmetric else _native.svds_of_function
    job = native(session._inner, products.name, products.shape, products, options)
    return products.run(session, job, label, progress), double


def native_options(
    k: Any,
    which: str = "LA",
    v0: npt.ArrayLike | None = None,
    ncv: int | None = None,
    maxiter: int = MAXITER,
    tol: float = 1e-6,
    method: str = "auto",
    block: int | None = None,
    check: bool = True,
    checkpoint: PathLike | None = None,
    random_state: int = 0,
    left: bool = True,
) -> dict[str, Any]:
    """What the native searches take. `left`: whether left singular vectors are wanted.

    Raises
    ------
    ArgumentError
        For a value outside its range.
    """
    # sys.maxsize restarts mean no limit.
    maxiter = min(maxiter, MOST) if isinstance(maxiter, Integral) else maxiter
    least = {"k": 1, "ncv": 1, "block": 1, "maxiter": 0, "random_state": 0}
    given = {"k": k, "ncv": ncv, "block": block, "maxiter": maxiter, "random_state": random_state}
    for name, value in given.items():
        is_whole = isinstance(value, Integral) and not isinstance(value, bool)
        is_left_out = value is None and name in ("ncv", "block")
        most = (1 << 64) - 1 if name == "random_state" else MOST
        if not is_left_out and not (is_whole and least[name] <= value <= most):
            raise ArgumentError(f"{name}={value!r} must be a whole number from {least[name]} to {most}")
    accuracy = float(tol) if isinstance(tol, Real) else -1.0
    if not 0 <= accuracy < np.inf:
        raise ArgumentError(f"tol={tol!r} must be a number from 0 on")
    start = None if v0 is None else np.ascontiguousarray(v0, np.float64)
    if start is not None and start.ndim != 1:
        raise ShapeError(f"v0 has shape {start.shape}, but must be a vector")
    return {
        **{name: None if value is None else int(value) for name, value in given.items() if name != "random_state"},
        "seed": int(random_state),
        "which": which,
        "tol": accuracy,
        "method": method,
        "v0": start,
        "check": bool(check),
        "left": left,
        "checkpoint": None if checkpoint is None else full_path(checkpoint),
    }


def _is_matrix(x: Any) -> bool:
    return isinstance(x, (Array, Sparse, np.ndarray)) or (is_scipy(x) and not hasattr(x, "rmatvec")) or hasattr(x, "__dlpack__")


def _rows(x: Any, session: Session) -> tuple[Any, np.dtype[Any]]:
    """Rows as the engine takes them, and the type of results."""
    if not isinstance(x, (Array, Sparse, np.ndarray)) and not is_scipy(x):
        # A tensor, where it lies.
        x = in_memory(x)
    if x.dtype.kind == "c":
        raise DTypeError(f"A is {x.dtype}, but must be real")
    if isinstance(x, np.ndarray) and x.dtype.kind in "iub" and not is_decoded(x.dtype):
        x = x.astype(np.float64)
    if is_scipy(x):
        found = native_sparse(x, session, "A")
        return found, np.dtype(np.float32 if x.dtype == np.float32 else np.float64)
    if x.ndim != 2:
        raise ShapeError(f"A has {x.ndim} dimension(s), but must have 2")
    return native_rows(x, "A", session), computed(x)


def found_vectors(session: Session, found: Any, count: int, dtype: np.dtype[Any]) -> Any:
    """Columns that a search has found, in memory or in scratch."""
    if isinstance(found, np.ndarray):
        return found.reshape(count, -1).T.astype(dtype, copy=False)
    return Array._result(session, found)


COPIED_BYTES = 4 << 20


def components_of(session: Session, found: dict[str, Any]) -> Floats:
    """Right singular vectors in rows, by descending value, the entry of largest magnitude of each positive."""
    count = len(found["values"])
    vectors = found_vectors(session, found["right"], count, np.dtype(np.float64))
    features = vectors.shape[0]
    signed: Floats = np.empty((count, features))
    # Beside the result, some of the vectors at a time, which are columns.
    step = max(1, COPIED_BYTES // (8 * max(features, 1)))
    for first in range(0, count, step):
        some = np.asarray(vectors[:, first : first + step])
        signed[count - first - some.shape[1] : count - first] = some.T[::-1]
    for row in signed:
        if row[np.abs(row).argmax()] < 0:
            np.negative(row, out=row)
    return signed


class _Products:
    """Products with an operator of the caller's, for the native search."""

    def __init__(self, operator: Any, shape: int | tuple[int, int] | None, *, symmetric: bool) -> None:
        self.name = type(operator).__name__
        self._raised: BaseException | None = None
        self._sides: list[Callable[[Any], Any]]
        shape = getattr(operator, "shape", None) if shape is None else shape
        if shape is None:
            raise ArgumentError(f"A is a {self.name}, not a matrix; as an operator it needs shape=")
        sides = (shape, shape) if isinstance(shape, (int, np.integer)) else tuple(shape)
        if len(sides) != 2:
            raise ArgumentError(f"shape={shape!r} must be a number of rows and columns, or both")
        self.shape: tuple[int, int] = (int(sides[0]), int(sides[1]))
        if not all(0 <= side <= MOST for side in self.shape):
            raise ArgumentError(f"shape={shape!r}: a matrix has from 0 to {MOST} rows and columns")
        if np.dtype(getattr(operator, "dtype", None) or np.float64).kind == "c":
            raise DTypeError(f"A is a complex {self.name}, but must be real")
        if not symmetric and isinstance(operator, tuple) and len(operator) == 2 and all(map(callable, operator)):
            self._sides = list(operator)
            return
        forward = _side(operator, "matmat", "matvec") or (operator if callable(operator) else None)
        back = forward if symmetric else _side(operator, "rmatmat", "rmatvec")
        if forward is None or back is None:
            missing = "matmat or matvec" if forward is None else "rmatmat or rmatvec"
            raise ArgumentError(f"A is a {self.name}, which is no matrix and has no {missing}")
        self._sides = [forward, back]

    def __call__(self, transposed: bool, x: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        try:
            found = np.asarray(self._sides[transposed](x))
            expected = (self.shape[1 if transposed else 0], x.shape[1])
            if found.shape != expected:
                raise ShapeError(
                    f"the product of {self.name} with columns of shape {x.shape} has shape {found.shape}, not {expected}"
                )
            if found.dtype.kind not in "fiub":
                raise DTypeError(f"the product of {self.name} is {found.dtype}, but must be real")
            return found.astype(np.float64, copy=False)
        except BaseException as error:
            self._raised = error
            raise

    def run(self, session: Session, job: _native.Job, label: str, progress: bool | None) -> Any:
        """The result of the job; what a product has raised is raised."""
        try:
            return session._run(job, label, progress)
        except FailedError:
            if self._raised is not None:
                raise self._raised from None
            raise


def _side(operator: Any, matmat: str, matvec: str) -> Callable[[Any], Any] | None:
    """A X by `matmat`, or column by column."""
    many, one = getattr(operator, matmat, None), getattr(operator, matvec, None)
    if many is not None:
        found: Callable[[Any], Any] = many
        return found
    if one is None:
        return None
    return lambda x: np.stack([np.ravel(one(column)) for column in x.T], axis=1)
