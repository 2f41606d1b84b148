"""Matrices and vectors on SSD, with the habits of NumPy's arrays.

An `Array` is a view of a file: a range of rows and columns, possibly transposed. Reading returns NumPy arrays of the caller;
assignments are written through to the file. Indexing is in `_index`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from types import EllipsisType
from typing import Any, ClassVar, SupportsIndex, TypeAlias, overload

import numpy as np
import numpy.typing as npt

from . import _html, _native
from ._index import Pick, parse_key, spans
from ._session import Order, Session, default_session, full_path, type_name
from ._stored import DType, Stored, absolute
from ._units import check_room, show_bytes
from .errors import ArgumentError, DTypeError, ShapeError

__all__ = ["Array", "DType", "Floats", "memory_operand", "native_operand", "native_output", "numbers"]

Floats: TypeAlias = npt.NDArray[np.float32] | npt.NDArray[np.float64]
"""What leaves an array: which of the two, its `dtype` says."""

Slice: TypeAlias = slice
Index: TypeAlias = SupportsIndex | Slice | EllipsisType
Key: TypeAlias = Index | tuple[Index, ...]

CHUNK_BYTES = 16 << 20
"""Memory besides the budget that assignments and steps use where values need to be converted, broadcast or picked."""


@dataclass(frozen=True)
class Origin:
    """Arguments to open a file, for the first time or again."""

    path: str
    raw: tuple[str, list[int], Order, int, int | None] | None = None
    interrupted: bool = False

    def open(self, session: Session) -> _native.Matrix:
        if self.raw is None:
            return _native.open_matrix(session._engine, self.path, self.interrupted)
        return _native.open_raw(session._engine, self.path, *self.raw)


@dataclass(frozen=True)
class Part:
    """The part of a file that a view covers: rows and columns in the order of the file, and whether they are transposed."""

    rows: tuple[int, int]
    cols: tuple[int, int]
    swapped: bool = False

    def of(self, matrix: _native.Matrix) -> _native.Matrix:
        found = matrix.slice(self.rows, self.cols)
        return found.t() if self.swapped else found

    def turned(self) -> Part:
        return Part(self.rows, self.cols, not self.swapped)

    def sliced(self, rows: tuple[int, int], cols: tuple[int, int]) -> Part:
        if self.swapped:
            rows, cols = cols, rows
        return Part(
            (self.rows[0] + rows[0], self.rows[0] + rows[1]), (self.cols[0] + cols[0], self.cols[0] + cols[1]), self.swapped
        )


class Array(Stored[_native.Matrix]):
    """A dense matrix (two dimensions) or vector (one) of float32 or float64 on SSD, or a view of one.

    Made by `outcore.open`, `outcore.create`, `outcore.from_numpy` and by computations. Views share the file and see each other's
    writes. A result without a name is in the scratch folder and is removed with its last view. An array may be used from any
    thread; pickled, it travels as its path; in a forked child it opens its file again on first use.

    Examples
    --------
    >>> a = outcore.open("a.npy")
    >>> a[10:20]                    # a NumPy array, read now
    >>> a[10:20, 3] = 0             # written now, in place
    >>> a.slice(0, 1000)            # a view of 1000 rows; nothing is read
    >>> c = a @ a.T                 # a new matrix on SSD
    """

    __slots__ = ("_origin", "_part", "_shape")

    _NOUN: ClassVar[str] = "array"

    def __init__(self, session: Session, matrix: _native.Matrix, origin: Origin | None, part: Part | None = None) -> None:
        super().__init__(session, matrix)
        self._origin = origin
        self._shape = tuple(matrix.shape)
        self._part = part or Part((0, self._shape[0]), (0, self._shape[1] if len(self._shape) == 2 else 1))

    @classmethod
    def _open(cls, session: Session, origin: Origin, part: Part | None = None) -> Array:
        matrix = origin.open(session)
        return cls(session, matrix if part is None else part.of(matrix), origin, part)

    @classmethod
    def _result(cls, session: Session, matrix: _native.Matrix) -> Array:
        """The result of a computation: unnamed, or a file of its own."""
        path = absolute(matrix.path)
        return cls(session, matrix, None if path is None else Origin(path))

    @property
    def _file(self) -> str | None:
        return None if self._origin is None else self._origin.path

    def _reopened(self) -> _native.Matrix:
        assert self._origin is not None, "only what has a path is opened again"
        return self._part.of(self._origin.open(self._session))

    # What it is

    @property
    def shape(self) -> tuple[int, ...]:
        """Rows and columns; of a vector, its length."""
        return self._shape

    @property
    def ndim(self) -> int:
        """1 or 2."""
        return len(self._shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return int(np.prod(self._shape, dtype=object))

    @property
    def nbytes(self) -> int:
        """Bytes of the elements, without gaps."""
        return self.size * self.dtype.itemsize

    @property
    def order(self) -> Order:
        """`"C"` if rows are contiguous, `"F"` if columns are."""
        return self._inner.order

    def __len__(self) -> int:
        return self._shape[0]

    def __repr__(self) -> str:
        if self._matrix is None:
            return "<outcore array, closed>"
        return f"<outcore array {self._shape} {self.dtype}, {show_bytes(self.nbytes)}, {self._where}>"

    def _repr_html_(self) -> str:
        """HTML for notebooks. Nothing is read, and no file is opened."""
        if self._matrix is None:
            return _html.card("outcore array, closed", [])
        facts = [("shape", str(self._shape)), ("dtype", str(self.dtype)), ("bytes", show_bytes(self.nbytes))]
        if not self._is_open:
            return _html.card("outcore array", [*facts, ("path", self._where)])
        facts += [("order", "rows (C)" if self.order == "C" else "columns (F)"), ("path", self._where)]
        facts += [("budget", show_bytes(self._session.memory))]
        drawn = _html.picture(self._shape, self.nbytes, self._session.memory, by_columns=self.order == "F")
        return _html.card("outcore array", facts, drawn)

    # Views

    @property
    def T(self) -> Array:  # noqa: N802
        """The transpose, a view. A vector is its own."""
        return self if self.ndim == 1 else self._view(self._inner.t(), self._part.turned())

    def slice(self, start: int = 0, stop: int | None = None, columns: tuple[int, int | None] = (0, None)) -> Array:
        """Some rows and columns as a view: nothing is read.

        Parameters
        ----------
        start, stop : int
            Rows, with the meaning that they have in `x[start:stop]`.
        columns : (int, int or None)
            Columns likewise.

        Returns
        -------
        Array of shape (stop - start, columns[1] - columns[0]), or (stop - start,) for a vector.
        """
        rows = _bounds(slice(start, stop), self._shape[0])
        if self.ndim == 1:
            if tuple(columns) != (0, None):
                raise ShapeError("a vector has no columns to slice")
            cols = (0, 1)
        else:
            cols = _bounds(slice(*columns), self._shape[1])
        return self._view(self._inner.slice(rows, cols), self._part.sliced(rows, cols))

    def _view(self, matrix: _native.Matrix, part: Part) -> Array:
        return Array(self._session, matrix, self._origin, part)

    # Out of it

    def numpy(self, *, force: bool = False, progress: bool | None = None) -> Floats:
        """The whole matrix as a NumPy array, in its order on SSD.

        Parameters
        ----------
        force : bool
            Read it even if it is larger than the memory available now.
        progress : bool, optional
            Show a progress bar; default on a terminal and in a notebook, where it takes more than a second.

        Raises
        ------
        NoMemoryError
            When it is larger than the memory available.
        """
        self._check_room(self.nbytes, force)
        return self._read(progress)

    def _check_room(self, size: int, force: bool = False) -> None:
        if not force:
            check_room(size, self, "take a part, or .numpy(force=True)")

    def _read(self, progress: bool | None = None) -> Floats:
        matrix = self._inner
        by_columns = self.ndim == 2 and matrix.order == "F"
        found: Floats = np.empty(self._shape[::-1] if by_columns else self._shape, self.dtype)
        if found.size:
            self._session._run((matrix.t() if by_columns else matrix).read_into(found), "reading", progress)
        return found.T if by_columns else found

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> npt.NDArray[Any]:
        """The whole matrix, as `numpy` reads it; called by NumPy and scikit-learn.

        Raises
        ------
        NoMemoryError
            When it is larger than the memory available. ValueError, where no copy is wanted.
        """
        if copy is False:
            raise ValueError("an array on SSD is always copied to become a NumPy array")
        found = self.numpy()
        return found if dtype is None else np.asarray(found, dtype)

    # Of a vector, a[i] is a number; a checker takes it for an array of no dimensions, which does the same.
    @overload
    def __getitem__(  # type: ignore[overload-overlap]
        self, key: tuple[SupportsIndex, SupportsIndex]
    ) -> np.float32 | np.float64: ...
    @overload
    def __getitem__(self, key: Key) -> Floats: ...
    def __getitem__(self, key: Key) -> Floats | np.float32 | np.float64:
        """The elements that integers, slices and `...` pick, as NumPy picks them, read at once into a new array.

        Raises
        ------
        IndexError
            For other keys, such as lists. NoMemoryError, for more than the memory available.
        """
        pick = parse_key(key, self._shape)
        item = self.dtype.itemsize
        self._check_room(pick.size * item)
        if pick.plain:
            found = self._covered(pick)._read()
        else:
            found = np.empty(pick.counts, self.dtype)
            for part, rows in self._pieces(pick):
                found[rows] = part
        return found[pick.squeeze] if pick.squeeze else found

    def _covered(self, pick: Pick) -> Array:
        """The view of all that lies between the first and the last element."""
        return self.slice(*pick.bounds[0], *(pick.bounds[1:2]))

    def _pieces(self, pick: Pick) -> Iterator[tuple[Floats, Slice]]:
        """Rows that a key with steps picks, a few at a time: the elements, and which rows of the result they are."""
        covered = self._covered(pick)
        width = max(1, covered.nbytes // max(1, len(covered)))
        for part, rows, inside in spans(pick, width, CHUNK_BYTES):
            yield covered.slice(*part)._read()[inside], rows

    # Into it

    def __setitem__(self, key: Key, value: Array | npt.ArrayLike) -> None:
        """Writes at once, in place, to the elements that a key picks. Values are broadcast and converted as NumPy does.

        An interrupted write (Ctrl-C included) leaves the file marked as partly new, which opening it reports.

        Raises
        ------
        ShapeError, DTypeError
            Before anything is written. LockedError, ReadOnlyError, DeviceError.
        """
        pick = parse_key(key, self._shape)
        if pick.plain and pick.size:
            self._assign(key, value, None)
            return
        values = _expanded(numbers(value), pick)
        if not pick.size:
            return
        covered = self._covered(pick)
        width = max(1, covered.nbytes // max(1, len(covered)))
        for part, rows, inside in spans(pick, width, CHUNK_BYTES):
            view = covered.slice(*part)
            block = view._read()
            block[inside] = values[rows]
            view._write_mapped(block, None)

    def _assign(self, key: Any, value: Any, progress: bool | None) -> None:
        """Writes a part without steps: in one go where the value lies in memory as it will on SSD, else in pieces."""
        pick = parse_key(key, self._shape)
        into = self._covered(pick)
        if isinstance(value, Array) and value.shape == pick.shape == pick.counts and value.dtype == self.dtype:
            into._write(_native.axpby(self._session._inner, value._inner, into._inner, 1.0, 0.0), progress)
            return
        values = _expanded(numbers(value), pick)
        if values.dtype == self.dtype and _mapped(values):
            into._write_mapped(values, progress)
            return
        rows = max(1, CHUNK_BYTES // max(1, into.nbytes // max(1, len(into))))
        for start in range(0, len(into), rows):
            part = _packed(values[start : start + rows], self.dtype)
            into.slice(start, start + rows)._write_mapped(part, progress)

    def _write_mapped(self, values: npt.NDArray[Any], progress: bool | None) -> None:
        if not values.size:
            return
        if values.flags.c_contiguous:
            self._write(self._inner.write(values), progress)
        elif values.flags.f_contiguous and self.ndim == 2:
            self._write(self._inner.t().write(values.T), progress)
        else:
            self._write(_native.axpby(self._session._inner, values, self._inner, 1.0, 0.0), progress)

    def _write(self, job: _native.Job, progress: bool | None) -> None:
        self._session._run(job, "writing", progress)

    # Products

    def __matmul__(self, other: Array | npt.NDArray[Any]) -> Array | Floats:
        """A product of matrices is a new matrix on SSD, as of `outcore.linalg.gemm`; with a vector it is a vector in memory."""
        from .linalg import gemm

        if isinstance(other, (Array, np.ndarray)) and 1 in (self.ndim, other.ndim):
            return _vector_product(self, other)
        return gemm(self, other) if isinstance(other, (Array, np.ndarray)) else NotImplemented

    def __rmatmul__(self, other: npt.NDArray[Any]) -> Array | Floats:
        from .linalg import gemm

        if isinstance(other, np.ndarray) and 1 in (self.ndim, other.ndim):
            return _vector_product(other, self)
        return gemm(other, self) if isinstance(other, np.ndarray) else NotImplemented

    # Life

    def __reduce__(self) -> tuple[Any, ...]:
        self._refuse_pickling()
        return _unpickle, (self._origin, self._part)


def _unpickle(origin: Origin, part: Part) -> Array:
    return Array._open(default_session(), origin, part)


def _bounds(part: slice, length: int) -> tuple[int, int]:
    start, stop, _ = part.indices(length)
    return start, max(start, stop)


def numbers(value: Any, name: str = "the value") -> npt.NDArray[Any]:
    """Converts array-like real numbers to a NumPy array.

    Raises
    ------
    DTypeError, ArgumentError
        For other elements, and for masked arrays.
    """
    refuse_sparse(value, name)
    found = unmasked(np.asanyarray(value), name)
    if found.dtype.kind not in "fiub":
        raise DTypeError(f"{found.dtype} values cannot be written to an array of floats")
    return found


def refuse_sparse(x: object, name: str, advice: str | None = None) -> None:
    """Refuses a sparse matrix, on SSD or SciPy's, where a dense one is required, before any of it is read.

    Raises
    ------
    DTypeError
    """
    from ._sparse import Sparse, is_scipy

    if isinstance(x, Sparse):
        advice = advice or f"{name}.scipy().toarray() makes a dense one in memory"
        raise DTypeError(f"{name} is sparse, but must be dense: {x!r}; {advice}")
    if is_scipy(x):
        advice = advice or f"{name}.toarray() makes a dense one"
        raise DTypeError(f"{name} is a sparse matrix of SciPy, but must be dense; {advice}")


def unmasked(x: Any, name: str) -> Any:
    """`x` itself; a masked array is refused, because its mask would be lost silently."""
    if isinstance(x, np.ma.MaskedArray):
        raise ArgumentError(f"{name} is a masked array, and masks are not supported; fill it first, as with x.filled(0)")
    return x


def _expanded(values: npt.NDArray[Any], pick: Pick) -> npt.NDArray[Any]:
    """Broadcast as NumPy would in an assignment, with the dimensions back that integers in the key take away."""
    surplus = max(0, values.ndim - len(pick.shape))
    shape = values.shape[surplus:]
    try:
        if any(count != 1 for count in values.shape[:surplus]) or (values.ndim and all(pick.taken)):
            raise ValueError
        return np.broadcast_to(values.reshape(shape), pick.shape).reshape(pick.counts)
    except ValueError:
        raise ShapeError(f"could not broadcast values of shape {values.shape} to shape {pick.shape}") from None


def _mapped(values: npt.NDArray[Any]) -> bool:
    """Whether the engine can read them where they are: aligned, rows or columns without gaps, neither running backwards."""
    if values.ndim not in (1, 2) or not values.flags.aligned or not values.dtype.isnative:
        return False
    if values.flags.c_contiguous or values.flags.f_contiguous:
        return True
    item = values.itemsize
    steps = [step for step, count in zip(values.strides, values.shape, strict=True) if count > 1]
    gaps = [step // item for step in steps]
    if any(step <= 0 or step % item for step in steps):
        return False
    if len(gaps) == 1:
        return True
    (row, col), (rows, cols) = gaps, values.shape
    return (col == 1 and row >= cols) or (row == 1 and col >= rows)


def _packed(values: npt.NDArray[Any], dtype: npt.DTypeLike | None = None) -> npt.NDArray[Any]:
    """Row after row and aligned; a copy if need be."""
    return np.require(values, dtype, ["C", "A"])


def native_operand(x: Any, name: str) -> Any:
    """An operand of the native functions: the matrix of an `Array`, or a NumPy array, copied only if the engine cannot read it.

    Raises
    ------
    DTypeError, ShapeError, ArgumentError
        For what is neither, or not of one or two dimensions, or not float32 or float64; for a masked array.
    """
    if isinstance(x, Array):
        return x._inner
    refuse_sparse(x, name)
    if not isinstance(x, np.ndarray):
        raise ArgumentError(f"{name} must be an outcore array or a NumPy array, not {type(x).__name__}")
    type_name(unmasked(x, name).dtype)
    if x.ndim not in (1, 2):
        raise ShapeError(f"{name} has {x.ndim} dimensions, but must have 1 or 2")
    return x if _mapped(x) else _packed(x)


def memory_operand(values: npt.NDArray[Any], kind: str) -> npt.NDArray[Any] | None:
    """A matrix of numbers as the engine can store it in one go; nothing for vectors, and for much of another type."""
    if values.ndim != 2:
        return None
    if values.dtype in (np.float32, np.float64) and values.dtype.isnative:
        return values if _mapped(values) else _packed(values)
    small = values.size * np.dtype(kind).itemsize <= CHUNK_BYTES
    return _packed(values, kind) if small else None


def native_output(out: Any) -> Any:
    """The destination for the native functions: None, a path, or the matrix of an `Array`."""
    if out is None:
        return None
    if isinstance(out, Array):
        return out._inner
    if isinstance(out, (str, bytes, os.PathLike)):
        return full_path(out)
    raise ArgumentError(f"out must be a path, an outcore array or None, not {type(out).__name__}")


def result_of(session: Session, found: Any, out: Any) -> Array:
    """The result of a computation as an array: `out` itself if it is one."""
    return out if isinstance(out, Array) else Array._result(session, found)


def session_of(*operands: Any, memory: int | str | None = None) -> Session:
    """The session of the first operand on SSD, else the default one, with the given budget."""
    from ._sparse import Sparse

    arrays = (x for x in operands if isinstance(x, (Array, Sparse)))
    first = next(arrays, None)
    return (default_session() if first is None else first._session)._with(memory)


def _vector_product(a: Any, b: Any) -> Floats:
    """A product with a vector: the result is a vector, and a NumPy array."""
    from .linalg import gemm

    left, right = (x.numpy() if isinstance(x, Array) and x.ndim == 1 else unmasked(x, "an operand") for x in (a, b))
    if left.shape[-1] != right.shape[0]:
        raise ShapeError(f"matmul: shapes {tuple(left.shape)} and {tuple(right.shape)} do not fit: the inner dimensions differ")
    if left.ndim == 1 and right.ndim == 1:
        return np.asarray(left @ right)
    rows = left.reshape(1, -1) if left.ndim == 1 else left
    cols = right.reshape(-1, 1) if right.ndim == 1 else right
    found = np.empty((rows.shape[0], cols.shape[1]), left.dtype)
    gemm(rows, cols, out=found)
    return found.ravel()
