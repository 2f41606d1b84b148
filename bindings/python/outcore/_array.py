"""Matrices and vectors on SSD, with the habits of NumPy's arrays.

An `Array` is a view of a file: a range of rows and columns, possibly transposed. Reading returns NumPy arrays of the caller;
assignments are written through to the file. Indexing is in `_index`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import EllipsisType
from typing import Any, ClassVar, SupportsIndex, TypeAlias, overload

import numpy as np
import numpy.typing as npt

from . import _html, _native
from ._dlpack import exported, imported
from ._dtypes import ML_DTYPES, computed, float_name, is_decoded
from ._index import Pick, parse_key, spans
from ._rows import by_first, meshed, selected
from ._selection import Lists, is_list, mesh_of, numbers_of, row_key
from ._session import DType, Session, Stored, absolute, default_session, is_planning
from ._settings import Order, PathLike, full_path, shape_of
from ._statistics import Axis, extreme, histogram, mean, moment, total
from ._units import check_room, show_bytes
from .errors import ArgumentError, DTypeError, NoMemoryError, ShapeError

__all__ = ["Array", "DType", "Floats", "memory_operand", "native_operand", "native_output", "numbers"]

Floats: TypeAlias = npt.NDArray[np.float32] | npt.NDArray[np.float64]
"""What is computed: which of the two, the `dtype` of the operands says."""

Numbers: TypeAlias = npt.NDArray[Any]
"""What leaves an array: of its `dtype`."""

Slice: TypeAlias = slice
Index: TypeAlias = SupportsIndex | Slice | EllipsisType
Key: TypeAlias = Index | Lists | tuple[Index | Lists, ...]

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
    """The part of a file that a view covers: rows and columns in the order of the file, and whether they are transposed.

    `row_shape`: where a row has another shape than in the file.
    """

    rows: tuple[int, int]
    cols: tuple[int, int]
    swapped: bool = False
    row_shape: tuple[int, ...] | None = None

    def of(self, matrix: _native.Matrix) -> _native.Matrix:
        found = matrix.slice(self.rows, self.cols)
        if self.row_shape is not None:
            found = found.reshape([self.rows[1] - self.rows[0], *self.row_shape])
        return found.t() if self.swapped else found

    def turned(self) -> Part:
        return Part(self.rows, self.cols, not self.swapped, self.row_shape)

    def sliced(self, rows: tuple[int, int], cols: tuple[int, int]) -> Part:
        if self.swapped:
            rows, cols = cols, rows
        rows = (self.rows[0] + rows[0], self.rows[0] + rows[1])
        cols = (self.cols[0] + cols[0], self.cols[0] + cols[1])
        kept = self.row_shape if cols == self.cols else None if self.row_shape is None else (cols[1] - cols[0],)
        return Part(rows, cols, self.swapped, kept)


class Array(Stored[_native.Matrix]):
    """A dense matrix (two dimensions), vector (one) or array of more dimensions on SSD, or a view of one.

    Elements are of any integer, float or complex type of NumPy, bool, bfloat16 or float8. Algorithms compute with float32 and
    float64, and convert uint8, int8, uint16, int16, bool, float16 and bfloat16 to float32 block by block; `convert` makes a copy
    for them of the other types. An array of more than two dimensions is read and written by its first, and seen as rows by
    `reshape`.

    Made by `outcore.open`, `outcore.create`, `outcore.from_numpy` and by computations. Views share the file and see each other's
    writes. A result without a name is in the scratch folder and is removed with its last view. An array may be used from any
    thread; pickled, it travels as its path; in a forked child it opens its file again on first use.

    Examples
    --------
    >>> a = outcore.open("a.npy")
    >>> a[10:20]                    # a NumPy array, read now
    >>> a[10:20, 3] = 0             # written now, in place
    >>> a[[5, 100, 3]], a[mask]     # rows by numbers or a mask, read in one batch
    >>> a.take(rows, out="b.npy")   # as many as there are, as a new array
    >>> a.slice(0, 1000)            # a view of 1000 rows; nothing is read
    >>> c = a @ a.T                 # a new matrix on SSD
    """

    __slots__ = ("_origin", "_part", "_shape")

    _NOUN: ClassVar[str] = "array"
    _WHAT: ClassVar[str] = "an array"
    _COMPARED: ClassVar[str] = (
        "arrays on SSD are not compared element by element; compare parts in memory, as in x[i:j] == 3, "
        "and whole arrays in memory with x.numpy() == y"
    )
    _CALCULATED: ClassVar[str] = (
        "arrays on SSD have no element-wise arithmetic; outcore.linalg.axpby and scale change them in place, "
        "x[i:j] gives parts in memory"
    )
    _IN_MEMORY: ClassVar[str] = "x.numpy()"
    _INSTEAD: ClassVar[Mapping[str, str]] = {
        "append": "outcore.append(path)",
        "astype": "outcore.convert(x, path, dtype=...)",
        "copy": "outcore.convert(x, path)",
        "dot": "x @ y",
        "median": "x.histogram",
        "percentile": "x.histogram",
        "quantile": "x.histogram",
        "to_numpy": "x.numpy()",
        "tofile": "outcore.convert(x, path)",
        "transpose": "x.T",
        "values": "x.numpy()",
    }
    _OF_MEMORY: ClassVar[frozenset[str]] = frozenset(name for name in dir(np.ndarray) if not name.startswith("_"))

    def __init__(self, session: Session, matrix: _native.Matrix, origin: Origin | None, part: Part | None = None) -> None:
        super().__init__(session, matrix)
        self._origin = origin
        self._shape = tuple(matrix.shape)
        self._part = part or Part((0, self._shape[0]), (0, self._width))

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
        """Number of dimensions, 1 or more."""
        return len(self._shape)

    @property
    def _computed(self) -> np.dtype[Any]:
        """The type that operations compute in with it."""
        return np.dtype(self._inner.real)

    @property
    def _width(self) -> int:
        """Elements of a row."""
        return int(np.prod(self._shape[1:], dtype=object))

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
        """The transpose, a view. A vector is its own.

        Raises
        ------
        ShapeError
            For more than two dimensions; `reshape` sees them as rows.
        """
        if self.ndim > 2:
            raise ShapeError(f"{self!r} has no transpose; x.reshape(len(x), -1).T has")
        return self if self.ndim == 1 else self._view(self._inner.t(), self._part.turned())

    def reshape(self, *shape: int | Sequence[int]) -> Array:
        """The same elements with other dimensions behind the first, a view: `x.reshape(len(x), -1)` sees images as rows.

        Parameters
        ----------
        *shape : int
            The new shape; one number may be -1. The first must be the number of rows.

        Raises
        ------
        ShapeError
            For another number of rows or elements, and for matrices by columns.
        """
        given: Any = shape[0] if len(shape) == 1 and isinstance(shape[0], Sequence) else shape
        sizes = [int(size) for size in given]
        if sizes.count(-1) == 1:
            others = int(np.prod([size for size in sizes if size != -1], dtype=object))
            sizes[sizes.index(-1)] = self.size // others if others else 0
        found = self._inner.reshape(shape_of(sizes))
        return self._view(found, Part(self._part.rows, self._part.cols, self._part.swapped, tuple(sizes[1:])))

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
        Array of shape (stop - start, columns[1] - columns[0]); for a vector, and for more than two dimensions, all of each row.
        """
        rows = _bounds(slice(start, stop), self._shape[0])
        if self.ndim != 2:
            if tuple(columns) != (0, None):
                raise ShapeError(f"an array of {self.ndim} dimension(s) has no columns to slice")
            cols = (0, self._width)
        else:
            cols = _bounds(slice(*columns), self._shape[1])
        return self._view(self._inner.slice(rows, cols), self._part.sliced(rows, cols))

    def _view(self, matrix: _native.Matrix, part: Part) -> Array:
        return Array(self._session, matrix, self._origin, part)

    # Out of it

    def numpy(self, *, force: bool = False, progress: bool | None = None) -> Numbers:
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
            check_room(size, self, "take a part, rows by x.take(rows, out=path), or all by .numpy(force=True)")

    def _read(self, progress: bool | None = None) -> Numbers:
        matrix = self._inner
        by_columns = self.ndim == 2 and matrix.order == "F"
        found: Numbers = np.empty(self._shape[::-1] if by_columns else self._shape, self.dtype)
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

    def __iter__(self) -> Iterator[Any]:
        """Rows as NumPy arrays, a few MiB read at a time; of a vector its elements."""
        step = max(1, CHUNK_BYTES // max(1, self._width * self.dtype.itemsize))
        for start in range(0, len(self), step):
            yield from self[start : start + step]

    def __dlpack__(self, **options: Any) -> Any:
        """The whole array in memory, for libraries that take DLPack; as `numpy` reads it.

        Raises
        ------
        NoMemoryError
            When it is larger than the memory available. BufferError, where no copy is wanted.
        """
        if options.pop("copy", None) is False:
            raise BufferError("an array on SSD is always copied into memory")
        return exported(self.numpy(), **options)

    def __dlpack_device__(self) -> tuple[int, int]:
        """Memory of the CPU."""
        return (1, 0)

    # Of a vector, a[i] is a number; a checker takes it for an array of no dimensions, which does the same.
    @overload
    def __getitem__(self, key: tuple[SupportsIndex, SupportsIndex]) -> Any: ...
    @overload
    def __getitem__(self, key: Index | tuple[Index, ...]) -> Numbers: ...
    @overload
    def __getitem__(self, key: Key) -> Numbers | Array: ...
    def __getitem__(self, key: Key) -> Any:
        """The elements that a key picks, as NumPy picks them, read at once into a new array.

        Keys are integers, slices and `...`; lists of numbers and masks for rows, and for columns beside them; what `np.ix_`
        makes of two of these. Rows come in one batch. Rows alone that do not fit the memory available come as an unnamed
        `Array`, as from `take`.

        Raises
        ------
        IndexError
            For other keys. NoMemoryError, for more than the memory available.
        """
        mesh = mesh_of(key) if self.ndim == 2 else None
        if mesh is not None:
            return meshed(self, *mesh)
        listed = row_key(key, self._shape)
        if listed is not None:
            return selected(self, *listed)
        if self.ndim > 2:
            return by_first(self, key)
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

    @property
    def _flat(self) -> Array:
        """Its rows."""
        return self.reshape(self._shape[0], self._width)

    def _exceeds(self, size: int) -> bool:
        """Whether a number of bytes does not fit the memory available."""
        try:
            self._check_room(size)
        except NoMemoryError:
            return True
        return False

    def take(
        self,
        rows: Lists,
        out: PathLike | Array | None = None,
        *,
        memory: int | str | None = None,
        progress: bool | None = None,
    ) -> Array:
        """Rows by numbers or a mask as a new array, whatever they take together.

        Parameters
        ----------
        rows : list, range, ndarray of integers, or mask of shape (len(x),)
            In the order of the result; negative numbers count from the end, and one may come more than once.
        out : path or Array, optional
            A `.npy` file, which replaces an existing one when it is complete; an array of that shape; or (default) an unnamed
            array.
        memory, progress
            As in `outcore.linalg`.

        Returns
        -------
        Array of shape (n, ...), or `out` where that is one.

        Notes
        -----
        Rows are read where they are, in one pass if they ascend. Many short rows in no order are moved twice, by way of scratch:
        the array is read once, and the rows are written, read and written again, in long transfers. Besides the numbers
        themselves, 8 bytes a row are held, within the budget.
        """
        return self._taken(numbers_of(rows, self._shape[0], 0), out, memory, progress)

    def _taken(self, numbers: Any, out: Any, memory: int | str | None, progress: bool | None = None) -> Array:
        session = session_of(self, memory=memory)
        job = self._inner.take(session._inner, numbers, native_output(out))
        return result_of(session, session._run(job, "taking rows", progress), out)

    # Numbers about it. `numpy.sum(x, axis=0)` and its like call them, with `dtype=None` and `out=None`.

    def min(self, axis: Axis = None, **of_numpy: None) -> Any:
        """The least element, or that of each column (`axis=0`) or row (`axis=1`); NaN where there is any. One pass."""
        return extreme(self, "min", axis, of_numpy)

    def max(self, axis: Axis = None, **of_numpy: None) -> Any:
        """The greatest element, or that of each column (`axis=0`) or row (`axis=1`); NaN where there is any. One pass."""
        return extreme(self, "max", axis, of_numpy)

    def sum(self, axis: Axis = None, **of_numpy: None) -> Any:
        """The sum of all elements, of each column (`axis=0`) or row (`axis=1`), added up in float64. One pass."""
        return total(self, axis, of_numpy)

    def mean(self, axis: Axis = None, **of_numpy: None) -> Any:
        """The mean of all elements, of each column (`axis=0`) or row (`axis=1`), in float64. One pass."""
        return mean(self, axis, of_numpy)

    def var(self, axis: Axis = None, *, ddof: int = 0, **of_numpy: None) -> Any:
        """The variance of all elements, of each column (`axis=0`) or row (`axis=1`), in float64. One pass.

        Parameters
        ----------
        ddof : int
            Squared deviations are divided by their number less this.
        """
        return moment(self, axis, ddof, of_numpy)

    def std(self, axis: Axis = None, *, ddof: int = 0, **of_numpy: None) -> Any:
        """The square root of `var`."""
        return np.sqrt(moment(self, axis, ddof, of_numpy))

    def histogram(
        self,
        bins: int | npt.ArrayLike = 10,
        range: tuple[float, float] | None = None,  # noqa: A002
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[Any]]:
        """Counts of elements by their value, as `numpy.histogram`.

        One pass, if elements have 8 or 16 bits, or if `range` or edges are given. Else two: the range must be known before the
        first element is counted, and is looked for first.

        Parameters
        ----------
        bins : int or array_like of shape (k + 1,)
            Number of bins of equal width, or their edges.
        range : (float, float), optional
            Of bins of equal width. Default: from the least to the greatest element.

        Returns
        -------
        ndarray of shape (k,), int64, and the edges, of shape (k + 1,).
        """
        return histogram(self, bins, range)

    def _covered(self, pick: Pick) -> Array:
        """The view of all that lies between the first and the last element."""
        return self.slice(*pick.bounds[0], *(pick.bounds[1:2]))

    def _pieces(self, pick: Pick) -> Iterator[tuple[Numbers, Slice]]:
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
        listed = row_key(key, self._shape)
        if listed is not None:
            raise IndexError(
                "lists and masks pick elements of an array on SSD, but are not assigned to; write parts, as in x[i:j] = b"
            )
        if self.ndim > 2:
            self._assign_rows(key, value)
            return
        pick = parse_key(key, self._shape)
        if pick.plain and pick.size:
            self._assign(key, value, None)
            return
        values = _expanded(numbers(value, into=self.dtype), pick)
        if not pick.size:
            return
        covered = self._covered(pick)
        width = max(1, covered.nbytes // max(1, len(covered)))
        for part, rows, inside in spans(pick, width, CHUNK_BYTES):
            view = covered.slice(*part)
            block = view._read()
            block[inside] = values[rows]
            view._write_mapped(block, None)

    def _assign_rows(self, key: Any, value: Any) -> None:
        """Of more than two dimensions: whole rows."""
        parts = key if isinstance(key, tuple) else (key,)
        if len(parts) > 1 or (parts and is_list(parts[0])):
            raise IndexError(f"an array of {self.ndim} dimensions is assigned to by whole rows, as in x[i:j] = b")
        rows = slice(None) if not parts or parts[0] is Ellipsis else parts[0]
        if isinstance(value, Array):
            if value.shape != self.shape or rows != slice(None):
                raise ShapeError(f"{value!r} is assigned to all of an array of its shape, or part after part from memory")
            self._flat[...] = value._flat
            return
        flat, first = self._flat, parse_key(rows, self._shape[:1])
        values = numbers(value, into=self.dtype)
        surplus = max(0, values.ndim - self.ndim)
        if any(size != 1 for size in values.shape[:surplus]):
            raise ShapeError(f"could not broadcast values of shape {values.shape} to rows of shape {self._shape[1:]}")
        try:
            values = np.broadcast_to(values.reshape(values.shape[surplus:]), (*first.counts, *self._shape[1:]))
        except ValueError:
            raise ShapeError(
                f"could not broadcast values of shape {values.shape} to shape {(*first.shape, *self._shape[1:])}"
            ) from None
        step = max(1, CHUNK_BYTES // max(1, self._width * self.dtype.itemsize))
        numbered = range(len(self))[rows] if isinstance(rows, slice) else [first.bounds[0][0]]
        for start in range(0, len(values), step):
            part = np.ascontiguousarray(values[start : start + step])
            picked = numbered[start : start + step]
            end = None if picked[-1] + (stride := picked[1] - picked[0] if len(picked) > 1 else 1) < 0 else picked[-1] + stride
            flat[slice(picked[0], end, stride)] = part.reshape(len(part), self._width)

    def _assign(self, key: Any, value: Any, progress: bool | None) -> None:
        """Writes a part without steps: in one go where the value lies in memory as it will on SSD, else in pieces."""
        if self.ndim > 2:
            self._assign_rows(key, value)
            return
        pick = parse_key(key, self._shape)
        into = self._covered(pick)
        if isinstance(value, Array) and value.shape == pick.shape == pick.counts and value.dtype == self.dtype:
            into._write(_native.convert(self._session._inner, value._inner, into._inner, self.dtype.name, into.order), progress)
            return
        values = _expanded(numbers(value, into=self.dtype), pick)
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
            self._write(self._inner.write(_packed(values)), progress)

    def _write(self, job: _native.Job, progress: bool | None) -> None:
        self._session._run(job, "writing", progress)

    # Products

    def __matmul__(self, other: Array | npt.NDArray[Any]) -> Array | Floats:
        """A product of matrices is a new matrix on SSD, as of `outcore.linalg.gemm`; with a vector it is a vector in memory."""
        other = in_memory(other)
        if not isinstance(other, (Array, np.ndarray)):
            return NotImplemented
        return _vector_product(self, other) if 1 in (self.ndim, other.ndim) else _product(self, other)

    def __rmatmul__(self, other: npt.NDArray[Any]) -> Array | Floats:
        other = in_memory(other)
        if not isinstance(other, np.ndarray):
            return NotImplemented
        return _vector_product(other, self) if 1 in (self.ndim, other.ndim) else _product(other, self)

    # Life

    def __reduce__(self) -> tuple[Any, ...]:
        self._refuse_pickling()
        return _unpickle, (self._origin, self._part)


def _unpickle(origin: Origin, part: Part) -> Array:
    return Array._open(default_session(), origin, part)


def _bounds(part: slice, length: int) -> tuple[int, int]:
    start, stop, _ = part.indices(length)
    return start, max(start, stop)


def numbers(value: Any, name: str = "the value", *, into: np.dtype[Any] | None = None) -> npt.NDArray[Any]:
    """Converts array-like numbers to a NumPy array, also those of another library that has DLPack.

    Raises
    ------
    DTypeError, ArgumentError
        For other elements, and for masked arrays.
    """
    refuse_sparse(value, name)
    if hasattr(value, "__dlpack__") and not isinstance(value, (np.ndarray, np.generic, Array)):
        value = imported(value)
    found = unmasked(np.asanyarray(value), name)
    if found.dtype.kind not in "fiubc" and found.dtype.name not in ML_DTYPES:
        raise DTypeError(
            f"{found.dtype} values cannot be written to an array of numbers; convert them first, as with x.astype('float32')"
        )
    if into is not None and found.dtype.kind == "c" and into.kind != "c":
        raise DTypeError(f"{found.dtype} values cannot be written to an array of {into}; take x.real or x.imag")
    return found


def refuse_sparse(x: object, name: str, advice: str | None = None) -> None:
    """Refuses a sparse matrix, on SSD or SciPy's, where a dense one is required, before any of it is read.

    Raises
    ------
    DTypeError
    """
    from ._sparse import is_scipy

    if isinstance(x, Stored) and not isinstance(x, Array):
        advice = advice or f"{name}.scipy().toarray() makes a dense one in memory"
        raise DTypeError(f"{name} is sparse, but must be dense: {x!r}; {advice}")
    if is_scipy(x):
        advice = advice or f"{name}.toarray() makes a dense one"
        raise DTypeError(f"{name} is a sparse matrix of SciPy, but must be dense; {advice}")


def in_memory(x: Any) -> Any:
    """The NumPy array over the memory of a tensor of another library that has DLPack; anything else as it is."""
    if isinstance(x, (np.ndarray, np.generic, Stored)) or not hasattr(x, "__dlpack__"):
        return x
    try:
        return imported(x)
    except (BufferError, RuntimeError, TypeError) as error:
        raise ArgumentError(f"a {type(x).__name__} is computed with where NumPy reads its memory, on the CPU: {error}") from None


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


def native_operand(x: Any, name: str, session: Session) -> Any:
    """An operand of the native functions: the matrix of an `Array`, or a NumPy array, copied only if the engine cannot read it.
    A tensor of another library is the NumPy array over its memory.

    One of fewer bits becomes float32 where that takes little memory; else it goes to scratch, and is converted on the way.

    Raises
    ------
    DTypeError, ShapeError, ArgumentError
        For what is neither, or not of one or two dimensions, or of a type that is not computed with; for a masked array.
    """
    if isinstance(x, Array):
        if x.ndim > 2:
            raise ShapeError(f"{name} has {x.ndim} dimensions, but must have 1 or 2; see it as rows with x.reshape(len(x), -1)")
        return x._inner
    refuse_sparse(x, name)
    x = in_memory(x)
    if not isinstance(x, np.ndarray):
        raise ArgumentError(f"{name} must be an outcore array, a NumPy array or a tensor on the CPU, not {type(x).__name__}")
    is_small = is_decoded(unmasked(x, name).dtype)
    if not is_small:
        float_name(x.dtype)
    if x.ndim not in (1, 2):
        raise ShapeError(f"{name} has {x.ndim} dimensions, but must have 1 or 2")
    if is_small and 4 * x.size > CHUNK_BYTES:
        return in_scratch(x, session)._inner
    return _packed(x, np.float32) if is_small else x if _mapped(x) else _packed(x)


def in_scratch(x: npt.NDArray[Any], session: Session, dtype: np.dtype[Any] | None = None, order: Order | None = None) -> Array:
    """A copy in scratch, of the same type and order by default; of a call that is only planned, the space for it."""
    if order is None:
        order = "F" if x.ndim == 2 and x.flags.f_contiguous and not x.flags.c_contiguous else "C"
    matrix = _native.temporary_matrix(session._inner, (dtype or x.dtype).name, list(x.shape), order)
    made = Array._result(session, matrix)
    if not is_planning():
        made._assign(..., x, False)
    return made


def memory_operand(values: npt.NDArray[Any], kind: str) -> npt.NDArray[Any] | None:
    """A matrix of numbers as the engine can store it in one go; nothing for vectors, and for much of another type."""
    if values.ndim != 2 or kind not in ("float32", "float64"):
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
    first = next((x for x in operands if isinstance(x, Stored)), None)
    return (default_session() if first is None else first._session)._with(memory)


def _product(a: Any, b: Any) -> Array:
    """A product of matrices, unnamed."""
    session = session_of(a, b)
    operands = native_operand(a, "a", session), native_operand(b, "b", session)
    job = _native.gemm(session._inner, *operands, False, False, 1.0, 0.0, None)
    return Array._result(session, session._run(job, "gemm", None))


def _vector_product(a: Any, b: Any) -> Floats:
    """A product with a vector: the result is a vector, and a NumPy array."""
    left, right = (x.numpy() if isinstance(x, Array) and x.ndim == 1 else unmasked(x, "an operand") for x in (a, b))
    if left.ndim == 1 and right.ndim == 1:
        left, right = (x.astype(computed(x), copy=False) for x in (left, right))
    if left.shape[-1] != right.shape[0]:
        raise ShapeError(f"matmul: shapes {tuple(left.shape)} and {tuple(right.shape)} do not fit: the inner dimensions differ")
    if left.ndim == 1 and right.ndim == 1:
        return np.asarray(left @ right)
    rows = left.reshape(1, -1) if left.ndim == 1 else left
    cols = right.reshape(-1, 1) if right.ndim == 1 else right
    found = np.empty((rows.shape[0], cols.shape[1]), computed(left))
    session = session_of(a, b)
    operands = native_operand(rows, "a", session), native_operand(cols, "b", session)
    session._run(_native.gemm(session._inner, *operands, False, False, 1.0, 0.0, found), "gemm", None)
    return found.ravel()
