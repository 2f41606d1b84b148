"""Import of foreign sparse data, and export.

An import reads text, an archive or a table of any size, within the memory budget, into a new folder with a sparse matrix and its
labels, words or names of classes. An export writes one file.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from . import _native
from ._dtypes import float_name
from ._session import Session, default_session
from ._settings import PathLike, full_path
from ._sparse import Sparse, canonical, is_scipy, native_sparse
from .errors import ArgumentError

__all__ = [
    "export_bow",
    "export_libsvm",
    "export_mtx",
    "export_npz",
    "export_parquet",
    "export_xc",
    "import_bow",
    "import_libsvm",
    "import_mtx",
    "import_npz",
    "import_parquet",
    "import_text",
    "import_xc",
]

CHECKPOINT_BYTES = 256 << 20
"""Text between two places from where an import can be gone on with."""

Source = PathLike | Sequence[PathLike]


def import_libsvm(
    path: PathLike,
    source: Source,
    *,
    many_labels: bool = False,
    zero_based: bool | Literal["auto"] = "auto",
    n_features: int | None = None,
    dtype: npt.DTypeLike = "float32",
    tiled: bool = True,
    resume: bool = False,
    part: tuple[int, int] | None = None,
    memory: int | str | None = None,
    progress: bool | None = None,
) -> Sparse:
    """Imports LIBSVM (svmlight) text: a row a line, its label, then `feature:value` pairs; `#` begins a comment.

    The `qid:` of a row, its query in ranking data, is kept as a 64-bit integer: `Sparse.queries`.
    All rows have one, or none has. Features may come in any order; zeros that are written are kept as entries.

    Parameters
    ----------
    path : path
        The new folder. An existing matrix is replaced when the new one is complete.
    source : path or list of paths
        Text, plain or compressed by gzip, bzip2, xz or zstd, told by its first bytes (windows of up to 32 MiB: all levels of
        gzip and bzip2, xz up to level 8, zstd up to level 20). Several are read one after another as if they were one.
    many_labels : bool
        Rows begin with whole numbers with commas between them, or with none; default one number.
    zero_based : bool or "auto"
        Whether the first feature is 0. "auto": it is 1 unless there is a feature 0 anywhere, as scikit-learn has it.
    n_features : int, optional
        Columns; default as many as the largest feature needs. A row with a larger feature is a BadLineError.
    dtype : float32 or float64
    tiled : bool
        Keep entries in tiles of two to six bytes where these take four fifths of the bytes of arrays or fewer (`Sparse.tiled`);
        other programs read arrays only.
    resume : bool
        Go on with an import of the same source and options that died or failed; it begins anew where there is nothing. Every
        256 MB of text, or ten seconds, it leaves a place to go on from. The result is the same.
    part : (int, int), optional
        Of one plain text, the lines of one of several equal parts: the number of the part, from 0, and the number of parts. Each
        rank reads a text by its own part.
    memory : int or str, optional
        The part of the session's budget that this import may have; default all of it.
    progress : bool, optional
        Show a progress bar; default on a terminal and in a notebook, where it takes more than a second.

    Returns
    -------
    Sparse
        In CSR. `labels()` has the labels, `queries()` the queries.

    Raises
    ------
    BadLineError
        For the first line that does not follow the format, has a feature beyond `n_features`, or a value that `dtype` cannot
        hold; it names file and line, and nothing has the name then. Also CorruptError for damaged compressed data,
        UnsupportedError for what is packed in another way, OverBudgetError, ArgumentError to resume what has changed.
    """
    if zero_based not in (True, False, "auto"):
        raise ArgumentError(f"zero_based must be True, False or 'auto', not {zero_based!r}")
    options = {
        "many_labels": bool(many_labels),
        "zero_based": None if zero_based == "auto" else bool(zero_based),
        "features": None if n_features is None else _count(n_features, "n_features"),
    }
    return _import(path, source, "libsvm", options, dtype, memory, progress, tiled=tiled, resume=resume, part=part)


def import_mtx(
    path: PathLike,
    source: PathLike,
    *,
    dtype: npt.DTypeLike = "float32",
    tiled: bool = True,
    resume: bool = False,
    memory: int | str | None = None,
    progress: bool | None = None,
) -> Sparse:
    """Imports MatrixMarket text, general, symmetric or skew-symmetric, of real, integer or pattern values.

    Entries may come in any order; those of one place are added up. Where they do not come by rows, or the matrix is symmetric,
    they are sorted by way of scratch (24 bytes each), and such an import cannot be resumed: it begins anew. The same is true of
    the layout `array`, a dense matrix, of which the values that are not zero become entries. Parameters, errors: see
    `import_libsvm`.

    Returns
    -------
    Sparse
        In CSR.

    Raises
    ------
    BadLineError
        As in `import_libsvm`. Also CorruptError for a header that says more entries than there are, NoSpaceError for one that
        says more than the disk has room for, UnsupportedError for complex values.
    """
    return _import(path, source, "mtx", {}, dtype, memory, progress, tiled=tiled, resume=resume)


def import_bow(
    path: PathLike,
    source: PathLike,
    vocabulary: PathLike | None = None,
    *,
    dtype: npt.DTypeLike = "float32",
    tiled: bool = True,
    resume: bool = False,
    memory: int | str | None = None,
    progress: bool | None = None,
) -> Sparse:
    """Imports a UCI bag of words: documents are rows, words columns, counts values.

    Parameters
    ----------
    vocabulary : path, optional
        The words, one a line (UTF-8, whatever the line ends, also compressed), as many as there are columns; empty lines at the
        end are none.
    path, source, dtype, resume, memory, progress
        As in `import_mtx`.

    Returns
    -------
    Sparse
        In CSR. `vocabulary()` has the words, if they were given.

    Raises
    ------
    UnsupportedError
        When there are more or fewer words than columns. Also BadLineError, for the counts or the words, as in `import_mtx`.
    """
    options = {"vocabulary": None if vocabulary is None else full_path(vocabulary)}
    return _import(path, source, "bow", options, dtype, memory, progress, tiled=tiled, resume=resume)


def import_xc(
    path: PathLike,
    source: PathLike,
    *,
    dtype: npt.DTypeLike = "float32",
    tiled: bool = True,
    resume: bool = False,
    memory: int | str | None = None,
    progress: bool | None = None,
) -> Sparse:
    """Imports text of the Extreme Classification repository: a header, then rows with many labels each.

    Parameters, errors: see `import_libsvm`.

    Returns
    -------
    Sparse
        In CSR. `labels()` has the labels, a sparse matrix.
    """
    return _import(path, source, "xc", {}, dtype, memory, progress, tiled=tiled, resume=resume)


def import_npz(
    path: PathLike,
    source: PathLike,
    *,
    dtype: npt.DTypeLike = "float32",
    tiled: bool = True,
    resume: bool = False,
    memory: int | str | None = None,
    progress: bool | None = None,
) -> Sparse:
    """Imports what `scipy.sparse.save_npz` has written: csr, csc (which stays so) or coo (which becomes csr).

    Entries of one place of coo are added up; in csr and csc they are an error. The archive is read at many places, and not
    compressed once more as a whole (UnsupportedError). An error names the entry. Parameters, errors: see `import_mtx`.
    """
    return _import(path, source, "npz", {}, dtype, memory, progress, tiled=tiled, resume=resume)


def import_parquet(
    path: PathLike,
    source: PathLike,
    columns: Sequence[str] | None = None,
    *,
    dtype: npt.DTypeLike = "float32",
    tiled: bool = True,
    resume: bool = False,
    memory: int | str | None = None,
    progress: bool | None = None,
) -> Sparse:
    """Imports a Parquet file with an entry a row: columns with its row and its column from 0, and its value.

    Entries of one place are added up; columns that are not named are left out.

    Parameters
    ----------
    columns : two or three names, optional
        The columns with rows, columns and values; without the third all values are one. Default: the first three of the file.
    path, source, dtype, resume, memory, progress
        As in `import_mtx`.

    Returns
    -------
    Sparse
        In CSR, with as many rows and columns as the largest need.
    """
    names = None if columns is None else [str(name) for name in columns]
    return _import(path, source, "parquet", {"columns": names}, dtype, memory, progress, tiled=tiled, resume=resume)


def import_text(
    path: PathLike,
    source: Source,
    *,
    documents: Literal["lines", "files"] | None = None,
    text_column: int | None = None,
    label_column: int | None = None,
    stop_words: Iterable[str] | None = None,
    ngram_range: tuple[int, int] = (1, 1),
    min_length: int = 2,
    vocabulary: Iterable[str] | None = None,
    dtype: npt.DTypeLike = "float32",
    tiled: bool = True,
    resume: bool = False,
    memory: int | str | None = None,
    progress: bool | None = None,
) -> Sparse:
    r"""Counts the words of raw text (UTF-8), with one document a line or one a file.

    A word is what scikit-learn's `CountVectorizer` takes for one: runs of two or more letters, numbers and `_` (``\w\w+``) of the
    text in lower case. Columns are words in order of first appearance.

    Parameters
    ----------
    documents : "lines" or "files"
        Unit of a row: "lines" of all sources, one after another, or whole sources, whose lines are only blanks between words
        (each has to fit a part of the memory). Default: lines, of one source; of a list of several it has to be said.
    text_column, label_column : int, optional
        Columns, from 0, of lines whose columns have tabs between them: that with the text, and one with a label. Default: the
        whole line, and no label.
    stop_words : iterable of str, optional
        Words in lower case that are left out.
    ngram_range : (int, int)
        How many neighbouring words are one, from and to.
    min_length : int
        Characters that a word has at least.
    vocabulary : iterable of str, optional
        The words of the columns, as those of another matrix; others are left out.
    path, source, dtype, resume, memory, progress
        As in `import_libsvm`.

    Returns
    -------
    Sparse
        In CSR. `vocabulary()` has the words, `labels()` the number of each row's label in `classes()`.

    Raises
    ------
    OverBudgetError
        When the vocabulary outgrows the memory. Also BadLineError for a line that is not UTF-8 or lacks a column, ArgumentError
        for several sources without `documents`.
    """
    least, most = ngram_range
    sources = _sources(source)
    if documents not in ("lines", "files", None):
        raise ArgumentError(f"documents must be 'lines' or 'files', not {documents!r}")
    if documents is None and len(sources) > 1:
        raise ArgumentError(
            f"{len(sources)} sources: give documents='lines' if each line is a document, "
            "or documents='files' if each source is one"
        )
    options = {
        "files": documents == "files",
        "text_column": None if text_column is None else _count(text_column, "text_column"),
        "label_column": None if label_column is None else _count(label_column, "label_column"),
        "stop_words": _words(stop_words, "stop_words") if stop_words is not None else [],
        "ngram_range": (_count(least, "ngram_range"), _count(most, "ngram_range")),
        "min_length": _count(min_length, "min_length"),
        "vocabulary": None if vocabulary is None else _words(vocabulary, "vocabulary"),
    }
    return _import(path, sources, "text", options, dtype, memory, progress, tiled=tiled, resume=resume)


def _import(
    path: PathLike,
    source: Source,
    kind: str,
    options: dict[str, Any],
    dtype: npt.DTypeLike,
    memory: int | str | None,
    progress: bool | None,
    *,
    tiled: bool,
    resume: bool = False,
    part: tuple[int, int] | None = None,
) -> Sparse:
    session = default_session()._with(memory)
    paths = [full_path(one) for one in _sources(source)]
    target = full_path(path)
    job = _native.import_sparse(
        session._inner, target, paths, kind, options, float_name(dtype), bool(tiled), bool(resume), CHECKPOINT_BYTES, part
    )
    return Sparse._result(session, session._run(job, "importing", progress))


def _sources(source: Source) -> list[PathLike]:
    return [source] if isinstance(source, (str, bytes, os.PathLike)) else list(source)


def export_libsvm(
    a: Any,
    target: PathLike,
    labels: Any = None,
    *,
    queries: Any = None,
    memory: int | str | None = None,
    progress: bool | None = None,
) -> None:
    """Writes LIBSVM (svmlight) text, features from 1; compressed if the name ends in `.gz` or `.zst`.

    Names that end in `.bz2` or `.xz` are refused: these compressions are read only.

    Parameters
    ----------
    a : Sparse in CSR, or SciPy sparse matrix
    target : path
        The new file. An existing one is replaced when the new one is complete.
    labels : array_like of one number a row, or sparse matrix of many labels (columns) a row, optional
        Default: 0 for every row; `a.labels()` are those that were imported.
    queries : array_like of one whole number a row, optional
        What is written as `qid:`; `a.queries()` are those that were imported. Default: none.
    memory, progress
        As in `import_libsvm`.

    Raises
    ------
    ShapeError, NotFiniteError, NoSpaceError. ArgumentError for a matrix in CSC.
    """
    session = _session_of(a, memory)
    if isinstance(labels, Sparse) or is_scipy(labels):
        labels = _matrix(labels, session, "labels")
    elif labels is not None:
        labels = np.ascontiguousarray(labels, np.float64).ravel()
    if queries is not None:
        queries = np.asarray(queries)
        if queries.ndim != 1 or (queries.dtype.kind not in "iu" and queries.size):
            raise ArgumentError(f"queries must be one integer a row, not {queries.dtype} of shape {queries.shape}")
        if queries.size and queries.max() > np.iinfo(np.int64).max:
            raise ArgumentError(f"the query {queries.max()} is larger than 2^63 - 1")
        queries = np.ascontiguousarray(queries, np.int64)
    _export(session, a, target, "libsvm", labels, progress, queries)


def export_mtx(a: Any, target: PathLike, *, memory: int | str | None = None, progress: bool | None = None) -> None:
    """Writes MatrixMarket coordinate text, as `export_libsvm` writes LIBSVM text."""
    _export(_session_of(a, memory), a, target, "mtx", None, progress)


def export_bow(a: Any, target: PathLike, *, memory: int | str | None = None, progress: bool | None = None) -> None:
    """Writes a UCI bag of words, as `export_libsvm` writes LIBSVM text. Values must be counts (UnsupportedError)."""
    _export(_session_of(a, memory), a, target, "bow", None, progress)


def export_xc(a: Any, labels: Any, target: PathLike, *, memory: int | str | None = None, progress: bool | None = None) -> None:
    """Writes text of the Extreme Classification repository, as `export_libsvm` writes LIBSVM text.

    Parameters
    ----------
    labels : Sparse in CSR, or SciPy sparse matrix
        A row a row; its entries' columns are the labels.
    """
    session = _session_of(a, memory)
    _export(session, a, target, "xc", _matrix(labels, session, "labels"), progress)


def export_npz(a: Any, target: PathLike, *, memory: int | str | None = None, progress: bool | None = None) -> None:
    """Writes what `scipy.sparse.load_npz` reads, of a matrix in CSR or CSC; deflated, and else as `export_libsvm`."""
    _export(_session_of(a, memory), a, target, "npz", None, progress)


def export_parquet(a: Any, target: PathLike, *, memory: int | str | None = None, progress: bool | None = None) -> None:
    """Writes a Parquet file with the columns `row`, `column` and `value`, an entry a row; else as `export_libsvm`."""
    _export(_session_of(a, memory), a, target, "parquet", None, progress)


def _export(
    session: Session, a: Any, target: PathLike, kind: str, labels: Any, progress: bool | None, queries: Any = None
) -> None:
    matrix = _matrix(a, session, "a") if not is_scipy(a) or kind == "npz" else _matrix(a.tocsr(), session, "a")
    session._run(_native.export_sparse(session._inner, matrix, full_path(target), kind, labels, queries), "exporting", progress)


def _matrix(x: Any, session: Session, name: str) -> _native.SparseMatrix:
    return native_sparse(canonical(x) if is_scipy(x) else x, session, name)


def _session_of(a: Any, memory: int | str | None) -> Session:
    return (a.session if isinstance(a, Sparse) else default_session())._with(memory)


def _words(words: Iterable[str], name: str) -> list[str]:
    found = [words] if isinstance(words, str) else list(words)
    if isinstance(words, str) or not all(isinstance(word, str) for word in found):
        raise ArgumentError(f"{name} must be a list of words, not {words!r:.100}")
    broken = next((word for word in found if "\n" in word or "\r" in word), None)
    if broken is not None:
        raise ArgumentError(f"{name} has a word that contains a line end: {broken!r:.100}")
    return found


def _count(value: Any, name: str) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or not 0 <= value < 1 << 63:
        raise ArgumentError(f"{name} must be a non-negative integer, not {value!r}")
    return int(value)
