"""outcore: machine learning on data bigger than memory.

An SSD is used as working memory, within a memory budget that holds::

    import outcore as oc

    oc.configure(memory="2GiB", scratch="/mnt/ssd")
    a = oc.open("a.npy")            # a matrix on SSD; nothing is read
    c = a @ a.T                     # a new matrix on SSD
    c[:10, :10]                     # a NumPy array

`outcore.linalg` has products, norms and statistics, `outcore.decomposition` the scikit-learn estimator PCA, `outcore.errors` the
exceptions. Long calls show progress, on a terminal or in a notebook, and stop within half a second of Ctrl-C.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, overload

import numpy.typing as npt

from . import errors, linalg
from ._append import Appender
from ._array import Array, refuse_sparse, session_of
from ._convert import converted
from ._foreign import (
    export_bow,
    export_libsvm,
    export_mtx,
    export_npz,
    export_parquet,
    export_xc,
    import_bow,
    import_libsvm,
    import_mtx,
    import_npz,
    import_parquet,
    import_text,
    import_xc,
)
from ._native import VERSION as __version__  # noqa: N811
from ._plan import Plan, explain
from ._session import Session, default_session, last_run, replace_default
from ._settings import Driver, Info, Mode, Order, PathLike, settings_of
from ._sparse import Sparse
from ._trace import Trace

__all__ = [
    "Array",
    "Plan",
    "Session",
    "Sparse",
    "Trace",
    "__version__",
    "accept",
    "append",
    "configure",
    "convert",
    "create",
    "errors",
    "explain",
    "export_bow",
    "export_libsvm",
    "export_mtx",
    "export_npz",
    "export_parquet",
    "export_xc",
    "from_numpy",
    "from_scipy",
    "import_bow",
    "import_libsvm",
    "import_mtx",
    "import_npz",
    "import_parquet",
    "import_text",
    "import_xc",
    "info",
    "last_trace",
    "linalg",
    "open",
]

_MODULES = ("cluster", "data", "decomposition", "filesystem", "random_projection", "streams", "text", "topics", "torch")


def __dir__() -> list[str]:
    # Modules that are imported on demand are listed once they have been imported.
    return sorted([*__all__, *(name for name in _MODULES if name in globals())])


def configure(
    memory: int | str | None = None,
    scratch: PathLike | None = None,
    threads: int | None = None,
    *,
    driver: Driver = "auto",
    blas: PathLike | None = None,
    allow_tmpfs_scratch: bool = False,
) -> Session:
    """Sets the default session, which the functions of this package use for operands in memory.

    The default session before gives its memory back first, if nothing is open in it; arrays that are open keep it, and its
    memory. Where both do not fit what the process may use, the same settings keep the session that there is, and others are
    refused. Parameters, errors: see `Session`.

    Returns
    -------
    The new default session.
    """
    return replace_default(settings_of(memory, scratch, threads, driver, blas, allow_tmpfs_scratch))


@overload
def open(
    path: PathLike,
    *,
    dtype: npt.DTypeLike,
    shape: int | Sequence[int],
    order: Order = ...,
    offset: int = ...,
    leading_dimension: int | None = ...,
    interrupted: bool = ...,
) -> Array: ...
@overload
def open(path: PathLike, *, interrupted: Literal[True]) -> Array: ...
@overload
def open(
    path: PathLike,
    *,
    dtype: npt.DTypeLike | None = ...,
    shape: int | Sequence[int] | None = ...,
    order: Order = ...,
    offset: int = ...,
    leading_dimension: int | None = ...,
    interrupted: bool = ...,
) -> Array | Sparse: ...
def open(
    path: PathLike,
    *,
    dtype: npt.DTypeLike | None = None,
    shape: int | Sequence[int] | None = None,
    order: Order = "C",
    offset: int = 0,
    leading_dimension: int | None = None,
    interrupted: bool = False,
) -> Array | Sparse:
    """Opens a matrix or vector on SSD. Reads only its header; for a sparse matrix, also the offsets of its lines.

    Parameters
    ----------
    path : path
        A folder that holds a sparse matrix; a `.npy` file; or a raw one: described by `dtype` and `shape`, or by a JSON file
        beside it (`x.bin.json` for `x.bin`). A path may go on behind a store (`disk.store/x.npy`), as everywhere in outcore.
    dtype, shape, order, offset, leading_dimension
        What a raw file holds: any type of an `Array`; one number or more; rows ("C") or columns ("F") next to each other; bytes
        before the first element; elements from the start of one row (or column) to that of the next, without gaps if None.
        `dtype` alone names the type of a `.npy` file in which NumPy has saved bfloat16 or float8, as bytes without a name.
    interrupted : bool
        Open it also where an earlier write in place did not finish.

    Returns
    -------
    Array, or Sparse for a folder. Which of the two it is, only the path tells: a type checker is told by ``isinstance``.

    Raises
    ------
    MissingError, TruncatedError, CorruptError, UnsupportedError, InterruptedWriteError, DeniedError; LockedError for a store that
    another process writes.
    """
    return default_session().open(
        path,
        dtype=dtype,
        shape=shape,
        order=order,
        offset=offset,
        leading_dimension=leading_dimension,
        interrupted=interrupted,
    )


def accept(path: PathLike) -> None:
    """Accepts a file in which a write in place was interrupted: clears its mark and leaves its content as it is.

    The mark of an unfinished write belongs to the file, and stays when another program writes it: rewriting the file (as
    `np.save` does) leaves the mark on it, and only its user knows that the content is whole. Where the file is made anew by this
    library, or a write to `open(path, interrupted=True)` ends, the mark goes by itself.

    Raises
    ------
    LockedError
        While it is being written. Also MissingError, DeniedError.
    """
    default_session().accept(path)


def append(path: PathLike) -> Appender:
    """Appends rows to a `.npy` file, or to a new one.

    Rows that were written are part of the array after `flush` and at the end of the `with` block. Until then, and where the block
    ends with an exception or the process dies, the array is what it was. Arrays that have the file open keep their shape and are
    read as before; to be written to, the file is opened again.

    Parameters
    ----------
    path : path
        An array by rows of any type; of a file that is not there, the first block says type and shape of its rows.

    Examples
    --------
    >>> with outcore.append("x.npy") as w:
    ...     w.write(block)

    Raises
    ------
    LockedError
        While it is being written. Also UnsupportedError for files that are not `.npy`, DeniedError.
    """
    return Appender(default_session(), path)


def create(
    path: PathLike, shape: int | Sequence[int], dtype: npt.DTypeLike = "float32", *, order: Order = "C", mode: Mode = "x"
) -> Array:
    """A new `.npy` file of zeros, to be written with `a[i:j] = x`.

    Parameters
    ----------
    path : path
    shape : int or sequence of int
    dtype : dtype
        Any integer, float or complex type of NumPy, bool; bfloat16 and float8 with the package `ml_dtypes`.
    order : {"C", "F"}
        Whether the elements of a row or of a column lie next to each other.
    mode : {"x", "w"}
        "x": the call fails if the file exists. "w": an existing file is replaced atomically;
        arrays that have it open keep it. What writes all of a file (`from_numpy`, `convert`, results with a path) replaces.

    Raises
    ------
    ExistsError
        With "x", for a name that is taken or that another writer is about to take: of several that create it at once, one does.
    NoSpaceError
        Before the first byte is written. Also DeniedError, ReadOnlyError, MissingError for the folder, and with "w" LockedError.
    """
    return default_session().create(path, shape, dtype, order=order, mode=mode)


def from_numpy(
    path: PathLike,
    x: npt.ArrayLike,
    *,
    dtype: npt.DTypeLike | None = None,
    order: Order | None = None,
    progress: bool | None = None,
) -> Array:
    """Writes a NumPy array to a new `.npy` file, which gets its name when it is complete; an existing file is replaced.

    The array is read in place. An unaligned one, or one with gaps in both rows and columns, is copied first;
    elements of another type are converted a few MiB at a time.

    Parameters
    ----------
    path : path
    x : array_like of one or more dimensions
    dtype : dtype, optional
        Default: that of `x`.
    order : {"C", "F"}, optional
        Default: that of `x`.
    """
    return default_session().from_numpy(path, x, dtype=dtype, order=order, progress=progress)


def from_scipy(path: PathLike, x: Any, *, dtype: npt.DTypeLike | None = None, progress: bool | None = None) -> Sparse:
    """Writes a SciPy sparse matrix to a new folder, which gets its name when it is complete; an existing matrix is replaced.

    Parameters
    ----------
    path : path
    x : scipy.sparse matrix or array
        CSR and CSC are kept; another format becomes CSR. Duplicate entries are added.
    dtype : float32 or float64, optional
        Default: that of `x`; float64 for other numbers.
    """
    return default_session().from_scipy(path, x, dtype=dtype, progress=progress)


def convert(
    a: Array,
    out: PathLike | Array | None = None,
    *,
    dtype: npt.DTypeLike | None = None,
    order: Order | None = None,
    memory: int | str | None = None,
    progress: bool | None = None,
) -> Array:
    """Copies a matrix with another element type, order or path.

    Parameters
    ----------
    a : Array
    out : path or Array, optional
        A `.npy` file, which replaces an existing one when it is complete; an array of the same shape; or
        (default) an unnamed array.
    dtype : dtype, optional
        As NumPy's `astype` converts: floats to integers towards zero, complex numbers lose their imaginary part.
    order : {"C", "F"}, optional
    memory, progress
        As in `outcore.linalg`.

    Returns
    -------
    Array, or `out` where that is one.
    """
    refuse_sparse(a, "a", "Sparse.tiled, outcore.linalg.scaled and csrcsc make copies of sparse matrices")
    session = session_of(a, memory=memory)
    if not isinstance(a, Array):
        raise errors.ArgumentError(f"a must be an outcore array, not {type(a).__name__}; see from_numpy")
    order = order or (out.order if isinstance(out, Array) else a.order)
    return converted(session, a, out, a.dtype if dtype is None else dtype, order, progress)


def info() -> Info:
    """The settings of the default session: budget in bytes, threads, driver, BLAS, scratch folder."""
    return default_session().info()


def last_trace() -> Trace:
    """The trace of the last call of this process, in any session: all of its runs, and all of a `fit`.

    Raises
    ------
    ArgumentError
        Before the first run.
    """
    return last_run()
