"""Sparse matrices on SSD, with the habits of SciPy's.

A `Sparse` is a folder of arrays, compressed by rows (CSR) or by columns (CSC), or a view of it: its transpose, or some of its
rows. Reading returns SciPy matrices of the caller.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from types import EllipsisType
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NoReturn, SupportsIndex, TypeAlias

import numpy as np
import numpy.typing as npt

from . import _html, _native
from ._dtypes import computed
from ._selection import Lists, is_list, mesh_of, numbers_of
from ._session import Session, Stored, absolute, default_session
from ._settings import PathLike, full_path
from ._units import check_room, show_bytes
from .errors import ArgumentError, CorruptError, DTypeError, MissingError, NoMemoryError, OverBudgetError, ShapeError

if TYPE_CHECKING:
    from scipy.sparse import csc_matrix, csr_matrix

    from ._array import Array, Floats

    # Without stubs for SciPy a type checker treats it as Any.
    ScipyMatrix: TypeAlias = csr_matrix | csc_matrix

__all__ = ["Sparse", "is_scipy", "native_rows", "native_sparse"]

Rows: TypeAlias = SupportsIndex | slice | Lists

GAP_BYTES = 64 << 10
"""Rows this near to each other are read together: a read by itself costs as much."""

SPAN_BYTES = 16 << 20
"""Of rows that are read together, at most."""

STRING_BYTES = 64
"""Of a string and its place in a list, besides its characters."""


class Sparse(Stored[_native.SparseMatrix]):
    """A sparse matrix of float32 or float64 on SSD, or a view of one.

    Made by `outcore.open`, `outcore.from_scipy`, the importers and computations. Its folder holds `indptr.npy`, `indices.npy`,
    `data.npy` (not where every entry is one) and `matrix.json`, which any other program can read. It may be used from any thread;
    pickled, it travels as its path; in a forked child it opens its files again on first use.

    Examples
    --------
    >>> a = outcore.open("corpus")          # a folder
    >>> a[10:20]                            # rows, a SciPy matrix, read now
    >>> y = a @ x                           # a product with a dense matrix: a new matrix on SSD
    >>> a.T @ y                             # no transpose is made for it
    """

    __slots__ = ("_lines", "_path", "_shape", "_turned")

    _NOUN: ClassVar[str] = "matrix"
    _WHAT: ClassVar[str] = "a sparse matrix"
    _COMPARED: ClassVar[str] = (
        "sparse matrices on SSD are not compared element by element; compare rows in memory, as in s[i:j] != 3, "
        "and whole matrices in memory with s.scipy() != t"
    )
    _CALCULATED: ClassVar[str] = (
        "sparse matrices on SSD have no element-wise arithmetic; outcore.linalg.scaled makes a copy with scaled rows or columns, "
        "s[i:j] gives rows in memory"
    )
    _IN_MEMORY: ClassVar[str] = "s.scipy()"
    _INSTEAD: ClassVar[Mapping[str, str]] = {
        **dict.fromkeys(("histogram", "max", "mean", "min", "std", "var"), "outcore.linalg.column_statistics(s)"),
        "dot": "s @ x",
        "transpose": "s.T",
    }
    _OF_MEMORY: ClassVar[frozenset[str]] = frozenset(
        ("A", "H", "argmax", "argmin", "asformat", "astype", "copy", "data", "diagonal", "dot", "getcol", "getrow", "indices")
        + ("indptr", "max", "maximum", "mean", "min", "minimum", "multiply", "nonzero", "power", "sqrt", "sum", "toarray")
        + ("tobsr", "tocoo", "tocsc", "tocsr", "todense", "todia", "todok", "tolil", "transpose")
    )

    def __init__(
        self,
        session: Session,
        matrix: _native.SparseMatrix,
        path: str | None,
        lines: tuple[int, int] | None = None,
        turned: bool = False,
    ) -> None:
        super().__init__(session, matrix)
        self._shape = matrix.shape
        self._path = path
        self._lines = lines
        self._turned = turned

    @classmethod
    def _open(cls, session: Session, path: str, lines: tuple[int, int] | None = None, turned: bool = False) -> Sparse:
        matrix = _native.open_sparse(session._engine, path)
        return cls(session, _part(matrix, lines, turned), path, lines, turned)

    @classmethod
    def _result(cls, session: Session, matrix: _native.SparseMatrix) -> Sparse:
        """What a computation made: unnamed, or a folder of its own."""
        return cls(session, matrix, absolute(matrix.path))

    @property
    def _file(self) -> str | None:
        return self._path

    def _reopened(self) -> _native.SparseMatrix:
        assert self._path is not None, "only what has a path is opened again"
        return _part(_native.open_sparse(self._session._engine, self._path), self._lines, self._turned)

    # What it is

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        return self._shape

    @property
    def ndim(self) -> int:
        """2."""
        return 2

    @property
    def nnz(self) -> int:
        """Number of stored entries."""
        return self._inner.nonzeros

    @property
    def index_dtype(self) -> np.dtype[np.uint16] | np.dtype[np.int32] | np.dtype[np.int64]:
        """The type of the column (or row) numbers."""
        return np.dtype(self._inner.index_dtype)

    @property
    def format(self) -> Literal["csr", "csc"]:
        """`"csr"` if the entries of a row are contiguous, `"csc"` if those of a column are."""
        return self._inner.format

    @property
    def is_tiled(self) -> bool:
        """Whether entries are in tiles, of two to six bytes each; see `tiled`."""
        return self._inner.is_tiled

    @property
    def nbytes(self) -> int:
        """Bytes of its arrays."""
        return self._inner.nbytes

    def __len__(self) -> int:
        return self.shape[0]

    def __repr__(self) -> str:
        if self._matrix is None:
            return "<outcore sparse matrix, closed>"
        about = f"{self._shape} {self.dtype}"
        if self._is_open:
            about = f"{self.format} matrix {about}, {self.nnz} entries, {show_bytes(self.nbytes)}"
        else:
            # No file is opened again just for display.
            about = f"sparse matrix {about}"
        return f"<outcore {about}, {self._where}>"

    def _repr_html_(self) -> str:
        """HTML for notebooks. Nothing is read, and no file is opened."""
        if self._matrix is None:
            return _html.card("outcore sparse matrix, closed", [])
        facts = [("shape", str(self._shape)), ("dtype", str(self.dtype))]
        if not self._is_open:
            return _html.card("outcore sparse matrix", [*facts, ("path", self._where)])
        density = self.nnz / max(1, self._shape[0] * self._shape[1])
        facts += [("entries", f"{self.nnz:,}"), ("density", f"{density:.3g}"), ("bytes", show_bytes(self.nbytes))]
        facts += [("format", self.format.upper() + (", in tiles" if self.is_tiled else "")), ("path", self._where)]
        facts += [("budget", show_bytes(self._session.memory))]
        by_columns = self.format == "csc"
        drawn = _html.picture(self._shape, self.nbytes, self._session.memory, by_columns=by_columns, shade=density)
        return _html.card("outcore sparse matrix", facts, drawn)

    # Views

    @property
    def T(self) -> Sparse:  # noqa: N802
        """The transpose, a view: the rows of one are the columns of the other."""
        return Sparse(self._session, self._inner.t(), self._path, self._lines, not self._turned)

    def slice(self, start: int = 0, stop: int | None = None) -> Sparse:
        """Some rows of a matrix in CSR as a view: two offsets are read.

        Parameters
        ----------
        start, stop : int
            With the meaning that they have in `x[start:stop]`.

        Raises
        ------
        ArgumentError
            For a matrix in CSC, whose rows do not lie together; `outcore.linalg.csrcsc` makes one whose rows do.
        """
        first, last, _ = slice(start, stop).indices(self.shape[0])
        last = max(first, last)
        matrix = self._inner.slice((first, last))
        base = self._lines[0] if self._lines is not None else 0
        return Sparse(self._session, matrix, self._path, (base + first, base + last), self._turned)

    def tiled(self, out: PathLike | None = None, *, progress: bool | None = None) -> Sparse | None:
        """The same matrix in tiles, which take fewer bytes: places in 16 bits, and values only where not all are one.

        Parameters
        ----------
        out : path, optional
            A folder, which replaces an existing matrix when it is complete. Default: an unnamed matrix in scratch.

        Returns
        -------
        Sparse, or None where tiles would take more than four fifths of the bytes, or a place has two entries. Everything works on
        it as on any other; other programs do not read it.
        """
        session = self._session
        job = _native.sparse_tiled(session._inner, self._inner, None if out is None else full_path(out))
        found = session._run(job, "tiling", progress)
        return None if found is None else Sparse._result(session, found)

    # Out of it

    def scipy(self, *, force: bool = False, progress: bool | None = None) -> ScipyMatrix:
        """The whole matrix as a `scipy.sparse` matrix, in its format on SSD.

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
        matrix = self._inner
        lines = self.shape[0 if self.format == "csr" else 1]
        if not force:
            size = 8 * (lines + 1) + self.nnz * (self.index_dtype.itemsize + self.dtype.itemsize)
            check_room(size, self, "take some rows, or .scipy(force=True)")
        offsets = np.empty(lines + 1, np.int64)
        indices, values = np.empty(self.nnz, self.index_dtype), np.empty(self.nnz, self.dtype)
        self._session._run(matrix.read_into(offsets, indices, values), "reading", progress)
        return _scipy_matrix(self.format, self.shape, offsets, indices, values)

    # A checker is not told of it, so that it takes no matrix for what NumPy makes an array of.
    if not TYPE_CHECKING:

        def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> NoReturn:
            """Refuses: NumPy would otherwise take the matrix for a sequence, and read it row by row into an array of objects."""
            raise DTypeError(
                f"{self!r} is sparse and is not converted to a dense NumPy array implicitly; use .scipy() for a SciPy matrix, "
                ".scipy().toarray() for a dense array in memory"
            )

    def __getitem__(self, key: Rows | EllipsisType | tuple[Rows | EllipsisType, Any]) -> Any:
        """Some rows as a SciPy matrix, read now; of a matrix in CSC some columns, as in `a[:, 3:5]`.

        Rows are picked by a number, a slice, a list of numbers or a mask; those of a list or mask come in one batch. Columns of a
        matrix in CSR may be picked too, by anything that SciPy takes, once the rows are in memory: whole rows are read for them.
        Two lists pick pairs of rows and columns, as in SciPy; `np.ix_(rows, cols)` all of their columns.

        Returns
        -------
        SciPy matrix; for rows by a list or mask that do not fit the memory available, an unnamed `Sparse`, as from `take`.

        Raises
        ------
        IndexError
            For other keys. NoMemoryError, for more than the memory available.
        """
        rows, cols = key if isinstance(key, tuple) and len(key) == 2 else (key, slice(None))
        if rows is Ellipsis:
            rows = slice(None)
        mesh = mesh_of((rows, cols))
        if self.format == "csc":
            turned: Any = np.ix_(mesh[1], mesh[0]) if mesh else (cols, rows)
            found = self.T[turned]
            return found.T if isinstance(found, Sparse) or is_scipy(found) else found
        whole = isinstance(cols, slice) and cols == slice(None)
        if mesh:
            rows, cols = mesh
        if isinstance(rows, slice) and rows.step in (None, 1):
            found = self.slice(*rows.indices(self.shape[0])[:2]).scipy()
        elif isinstance(rows, slice) or is_list(rows):
            picked = range(*rows.indices(self.shape[0])) if isinstance(rows, slice) else rows
            numbers = numbers_of(picked, self.shape[0], 0)
            found = self._picked(numbers, whole)
            if is_list(rows) and is_list(cols) and not mesh:
                return found[np.arange(len(numbers)), numbers_of(cols, self.shape[1], 1).astype(np.int64)]
        else:
            row = _whole(rows, self.shape[0])
            found = self.slice(row, row + 1).scipy()
        return found if whole else found[:, cols]

    def take(
        self, rows: Lists, out: PathLike | None = None, *, memory: int | str | None = None, progress: bool | None = None
    ) -> Sparse:
        """Rows of a matrix in CSR by numbers or a mask as a new matrix, whatever they take together.

        Parameters
        ----------
        rows : list, range, ndarray of integers, or mask of shape (m,)
            In the order of the result; negative numbers count from the end, and one may come more than once.
        out : path, optional
            A folder, which replaces an existing matrix when it is complete. Default: an unnamed matrix in scratch.
        memory, progress
            As in `outcore.linalg`.

        Returns
        -------
        Sparse, in arrays also where this one is in tiles.

        Notes
        -----
        Where the rows begin is read first, 16 bytes a row, which are held within the budget. Rows are read where they are,
        neighbours together. Many short rows in no order are moved twice, by way of scratch: the matrix is read once, and the
        rows are written, read and written again, in long transfers. Tiles are copied to arrays first, in scratch.
        """
        self._check_rows_together()
        session = self._session._with(memory)
        path = None if out is None else full_path(out)
        numbers = numbers_of(rows, self.shape[0], 0)
        source = self._in_arrays(session, progress) if self.is_tiled else self
        job = source._inner.pick_rows(numbers).take(session._inner, path)
        return Sparse._result(session, session._run(job, "taking rows", progress))

    def _check_rows_together(self) -> None:
        if self.format == "csc":
            raise ArgumentError(f"{self!r} is in CSC; rows are picked from a matrix in CSR, which outcore.linalg.csrcsc makes")

    def _in_arrays(self, session: Session, progress: bool | None) -> Sparse:
        """A copy in scratch, of which rows are read one by one."""
        job = _native.sparse_scaled(session._inner, self._inner, None, None, None, None, False, False)
        return Sparse._result(session, session._run(job, "copying tiles", progress))

    def _picked(self, numbers: npt.NDArray[np.uint64], whole: bool) -> Any:
        """Rows by number as a SciPy matrix, or where they are `whole` and do not fit the memory available as one on SSD."""
        self._check_rows_together()
        if self.is_tiled:
            if whole and self._exceeds(2 * self._row_bytes * len(numbers)):
                return self.take(numbers)
            return self._gathered(numbers)
        found = self._inner.pick_rows(numbers)
        size = self._bytes_of(found, len(numbers))
        if whole and self._exceeds(size):
            return Sparse._result(self._session, self._session._run(found.take(self._session._inner, None), "taking rows", None))
        check_room(size, self, "take fewer rows")
        return _scipy_matrix("csr", (len(numbers), self.shape[1]), *self._read_rows(found, len(numbers)))

    def _bytes_of(self, rows: _native.SparseRows, count: int) -> int:
        return 8 * (count + 1) + rows.nonzeros * (max(4, self.index_dtype.itemsize) + self.dtype.itemsize)

    def _read_rows(self, rows: _native.SparseRows, count: int) -> tuple[npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[Any]]:
        """Offsets, indices and values, in one batch."""
        offsets = np.empty(count + 1, np.int64)
        indices, values = np.empty(rows.nonzeros, self.index_dtype), np.empty(rows.nonzeros, self.dtype)
        rows.read_into(offsets, indices, values)
        return offsets, indices, values

    def _exceeds(self, size: int) -> bool:
        """Whether a number of bytes does not fit the memory available."""
        try:
            check_room(size, self, "take fewer rows")
        except NoMemoryError:
            return True
        return False

    @property
    def _row_bytes(self) -> int:
        """Of an average row."""
        return max(1, self.nbytes // max(1, self.shape[0]))

    def _gathered(self, numbers: npt.NDArray[np.uint64]) -> ScipyMatrix:
        """Rows in tiles by number: neighbours are read together, each once."""
        import scipy.sparse

        ascending, places = np.unique(numbers.astype(np.int64), return_inverse=True)
        if not len(ascending):
            return self.slice(0, 0).scipy()
        check_room(2 * self._row_bytes * len(numbers), self, "take fewer rows")
        near, most = max(1, GAP_BYTES // self._row_bytes), max(1, SPAN_BYTES // self._row_bytes)
        # A span ends before a row that is far from the one before it, or far from the span's first.
        starts = [0]
        for at in np.flatnonzero(np.diff(ascending) > near) + 1:
            starts.append(int(at))
        parts = []
        for first, end in zip(starts, [*starts[1:], len(ascending)], strict=True):
            while first < end:
                last = min(end, int(np.searchsorted(ascending, ascending[first] + most)))
                base = int(ascending[first])
                span = self.slice(base, int(ascending[last - 1]) + 1).scipy()
                parts.append(span[ascending[first:last] - base])
                first = last
        found = scipy.sparse.vstack(parts, format="csr") if len(parts) > 1 else parts[0]
        return found if np.array_equal(places, np.arange(len(ascending))) else found[places]

    # What lies beside it

    def labels(self) -> npt.NDArray[np.float64] | ScipyMatrix | None:
        """The labels of the rows, if they were imported with the matrix.

        Returns
        -------
        ndarray of float64, one a row; a SciPy matrix with a column a label, for data with many; or None where there are none.
        """
        if self._path is None:
            return None
        beside = os.path.join(self._path, "labels")
        if self._session._inner.is_sparse(beside):
            many = Sparse._open(self._session, beside)
            first, last = self._rows_of(beside, len(many))
            return many[first:last]
        try:
            found = self._session.open(beside + ".npy")
        except MissingError:
            return None
        first, last = self._rows_of(beside + ".npy", len(found))
        return np.asarray(found[first:last], np.float64)

    def queries(self) -> npt.NDArray[np.int64] | None:
        """The query of each row (`qid:` of LIBSVM text), if they were imported with the matrix.

        Returns
        -------
        ndarray of int64, one a row; None where there are none.
        """
        if self._path is None:
            return None
        beside = os.path.join(self._path, "queries.npy")
        try:
            count = self._session._inner.count_integers(beside)
        except MissingError:
            return None
        first, last = self._rows_of(beside, count)
        check_room(8 * (last - first), self, "take some rows: a.slice(start, stop).queries()")
        found = np.empty(last - first, np.int64)
        self._session._run(self._session._inner.read_integers(beside, first, found), "reading", None)
        return found

    def _rows_of(self, beside: str, count: int) -> tuple[int, int]:
        """The rows of this view, of `count` that the file beside the matrix is about."""
        by_rows = (self.format == "csr") != self._turned
        if self._lines is not None and by_rows:
            rows, wanted = self._lines, self._lines[1]
            fits = count >= wanted
        else:
            wanted = self.shape[1 if self._turned else 0]
            rows, fits = (0, wanted), count == wanted
        if not fits:
            raise CorruptError(f"{beside}: has {count} rows, but the matrix has {wanted}", object=beside, offset=0)
        return rows

    def vocabulary(self) -> list[str] | None:
        """The word of each column, if they were imported with the matrix.

        Raises
        ------
        OverBudgetError
            For one whose strings are more than the budget.
        """
        return self._list("vocabulary.txt")

    def classes(self) -> list[str] | None:
        """The names of the labels, if they were imported with the matrix: a label is an index into this list."""
        return self._list("classes.txt")

    def _list(self, name: str, session: Session | None = None) -> list[str] | None:
        """Lines of a file beside the matrix, within the budget of the session."""
        if self._path is None:
            return None
        path, session = os.path.join(self._path, name), self._session if session is None else session
        try:
            data = session._inner.read_all(path)
        except MissingError:
            return None
        # The bytes, all of them as one string of up to 4 bytes a character, and the strings.
        needed, memory = 9 * len(data) + STRING_BYTES * (data.count(b"\n") + 1), session.memory
        if needed > memory:
            told = f"{path}: its lines take some {show_bytes(needed)} as strings; the budget is {show_bytes(memory)}"
            raise OverBudgetError(told, needed=needed, available=memory, budget=memory)
        session._make_room(needed)
        try:
            text = data.decode()
        except UnicodeDecodeError as error:
            line = data.count(b"\n", 0, error.start) + 1
            raise CorruptError(f"{path}, line {line}: it is not UTF-8", object=path, offset=error.start) from None
        return text.removesuffix("\n").split("\n") if text else []

    # Products

    def __matmul__(self, other: Array | npt.NDArray[Any]) -> Array | Floats:
        """A product with a dense matrix is a new one on SSD, as of `outcore.linalg.csrmm`; with a vector, a vector in memory."""
        from ._array import Array, in_memory

        other = in_memory(other)
        return self._times(other) if isinstance(other, (Array, np.ndarray)) else NotImplemented

    def __rmatmul__(self, other: Array | npt.NDArray[Any]) -> Array | Floats:
        from ._array import Array, in_memory

        other = in_memory(other)
        return self.T._times(other.T).T if isinstance(other, (Array, np.ndarray)) else NotImplemented

    def _times(self, other: Any) -> Any:
        from ._array import Array, native_operand, session_of

        session = session_of(self, other)
        out = np.empty(self.shape[0], computed(other)) if other.ndim == 1 else None
        job = _native.csrmm(session._inner, self._inner, native_operand(other, "b", session), 1.0, 0.0, out)
        found = session._run(job, "csrmm", None)
        return out if out is not None else Array._result(session, found)

    # Life

    def __reduce__(self) -> tuple[Any, ...]:
        self._refuse_pickling()
        return _unpickle, (self._path, self._lines, self._turned)


def _unpickle(path: str, lines: tuple[int, int] | None, turned: bool) -> Sparse:
    return Sparse._open(default_session(), path, lines, turned)


def _part(matrix: _native.SparseMatrix, lines: tuple[int, int] | None, turned: bool) -> _native.SparseMatrix:
    """Lines are contiguous in the files, also for a transposed view."""
    if lines is not None:
        matrix = matrix.slice(lines) if matrix.format == "csr" else matrix.t().slice(lines).t()
    return matrix.t() if turned else matrix


def _whole(row: Any, count: int) -> int:
    try:
        found = range(count)[row]
    except (TypeError, IndexError):
        raise IndexError(
            f"rows of a sparse matrix are picked by a number within {count}, a slice, a list or a mask, not by {row!r}"
        ) from None
    return int(found)


def _scipy_matrix(
    form: str, shape: tuple[int, int], offsets: npt.NDArray[np.int64], indices: npt.NDArray[Any], values: npt.NDArray[Any]
) -> ScipyMatrix:
    import scipy.sparse

    if indices.dtype == np.uint16:
        indices = indices.astype(np.int32)
    kind = scipy.sparse.csr_matrix if form == "csr" else scipy.sparse.csc_matrix
    return kind((values, indices, offsets.astype(indices.dtype) if _fits(offsets, indices) else offsets), shape=shape)


def _fits(offsets: npt.NDArray[np.int64], indices: npt.NDArray[Any]) -> bool:
    return indices.dtype == np.int32 and int(offsets[-1]) < 1 << 31


def is_scipy(x: Any) -> bool:
    """Whether `x` is a sparse matrix or array of SciPy, found without importing it."""
    return type(x).__module__.startswith("scipy.sparse")


def native_rows(x: Any, name: str, session: Session) -> Any:
    """Rows as the engine takes them, dense or sparse."""
    from ._array import native_operand

    if is_scipy(x):
        # Squares and distances are of elements, not of the parts of one.
        return native_sparse(canonical(x), session, name)
    return native_sparse(x, session, name) if isinstance(x, Sparse) else native_operand(x, name, session)


def native_sparse(x: Any, session: Session, name: str = "A") -> _native.SparseMatrix:
    """The engine's matrix behind a `Sparse`, or over the arrays of a SciPy matrix, where they lie."""
    if isinstance(x, Sparse):
        return x._inner
    if not is_scipy(x):
        refuse_dense(x, name)
        raise ArgumentError(f"{name} must be an outcore or SciPy sparse matrix, not {type(x).__name__}")
    if x.ndim != 2:
        raise ShapeError(f"{name} has {x.ndim} dimensions, but must have 2")
    if x.format not in ("csr", "csc"):
        x = x.tocsr()
    if x.dtype.kind not in "fiub":
        raise DTypeError(f"{name} has {x.dtype} values, but must have real numbers")
    values = x.data if x.dtype in (np.float32, np.float64) and x.dtype.isnative else x.data.astype(np.float64)
    indptr, indices, values = (np.ascontiguousarray(part) for part in (x.indptr, x.indices, values))
    return _native.sparse_in_memory(session._inner, x.format, x.shape, indptr, indices, values)


def refuse_dense(x: object, name: str) -> None:
    """Refuses a dense matrix where a sparse one is required, before any of it is read.

    Raises
    ------
    DTypeError
    """
    from ._array import Array

    if isinstance(x, (Array, np.ndarray)):
        what = repr(x) if isinstance(x, Array) else "a NumPy array"
        raise DTypeError(f"{name} is dense, but must be sparse: {what}; scipy.sparse.csr_matrix converts arrays in memory")


def canonical(x: Any) -> Any:
    """A SciPy matrix in CSR or CSC without two entries of one place; `x` itself if it is one."""
    if not is_scipy(x):
        refuse_dense(x, "x")
        raise ArgumentError(f"x must be a SciPy sparse matrix, not {type(x).__name__}")
    found = x if x.format in ("csr", "csc") else x.tocsr()
    if not found.has_canonical_format:
        found = found.copy() if found is x else found
        found.sum_duplicates()
    return found
