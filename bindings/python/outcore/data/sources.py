"""Sources of samples: folders of images, tar shards, TFRecord, Parquet, NumPy, datasets of PyTorch, iterables of samples.

A source has its samples in an order that is the same every time, so that packing goes on where it was. Memory does not depend on
their number: a source reads some samples ahead, some MiB of Parquet.
"""

from __future__ import annotations

import glob
import itertools
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np

from .._files import compression_of, regular
from .._session import Session, default_session
from ..errors import ArgumentError, MissingError
from .arrays import arrays_source, numpy_file
from .dataset import Dataset
from .folders import checked, images
from .parquet import parquet
from .shards import FORMS, Shards, form_by_name, form_of
from .source import Named, Source, digest, one_by_one

KINDS = ("dataset", "images", "tar", "tfrecord", "safetensors", "parquet", "numpy")
ENDINGS = {".parquet": "parquet", ".npy": "numpy", ".npz": "numpy"}


def found(
    source: Any,
    kind: str | None,
    columns: list[str] | None = None,
    *,
    classes: Any = None,
    session: Session | None = None,
) -> Source:
    """The kind of a source, by its type, name and content; for Parquet, with these columns only."""
    given = None if classes is None else checked(classes)
    one = _found(source, kind, columns, given, session or default_session())
    if given is not None and one.classes != given:
        raise ArgumentError("classes= are those of a folder of images; other samples have their labels already")
    return one


def _found(source: Any, kind: str | None, columns: list[str] | None, classes: list[str] | None, session: Session) -> Source:
    if isinstance(source, str | bytes | os.PathLike):
        return _of_files([os.fsdecode(source)], kind, columns, classes, session)
    if kind is not None and not _are_paths(source):
        raise ArgumentError(f"a format is that of files, and not of {type(source).__name__}")
    if isinstance(source, list | tuple) and source and _are_paths(source):
        return _of_files([os.fsdecode(path) for path in source], kind, columns, classes, session)
    if isinstance(source, Dataset) and not source.decode:
        return _dataset(source)
    if isinstance(source, np.ndarray):
        return arrays_source({"x": source})
    if isinstance(source, Mapping):
        return arrays_source(source)
    about = f"{type(source).__module__}.{type(source).__qualname__}"
    if hasattr(source, "__len__") and hasattr(source, "__getitem__"):
        known = source.classes if isinstance(source, Dataset) else None
        load = lambda number: _named(source[number])  # noqa: E731
        return Source(load=load, count=len(source), about=f"{about} of {len(source)}", classes=known)
    if isinstance(source, Iterable):
        return Source(samples=lambda start: _behind(map(_named, source), start), about=about)
    raise ArgumentError(f"samples come from files, arrays, or whatever yields them, and not from {type(source).__name__}")


def _are_paths(source: Any) -> bool:
    return isinstance(source, list | tuple) and all(isinstance(path, str | os.PathLike) for path in source)


def _behind(samples: Iterator[Named], start: int) -> Iterator[Named]:
    if sum(1 for _ in itertools.islice(samples, start)) < start:
        raise ArgumentError(f"the {start} packed samples are more than the source has; start again without resume")
    return samples


def _named(value: Any) -> Named:
    """A sample, or a name and a sample, as the iterable yields them."""
    if isinstance(value, tuple) and len(value) == 2 and isinstance(value[0], str | bytes) and isinstance(value[1], Mapping):
        return value
    if isinstance(value, Mapping):
        return None, dict(value)
    values = value if isinstance(value, tuple | list) else (value,)
    # Pictures of PIL are arrays to NumPy.
    plain = [np.asarray(one) if hasattr(one, "__array_interface__") else one for one in values]
    return None, {str(number): one for number, one in enumerate(plain)}


def _dataset(dataset: Dataset) -> Source:
    # Of samples in files of others, those files are longer than the samples.
    nbytes = None if dataset._inner.is_in_place() else dataset._inner.nbytes()[0]
    about = f"dataset {dataset._inner.digest()}"
    return Source(count=len(dataset), dataset=dataset, nbytes=nbytes, about=about, classes=dataset.classes)


def _of_files(
    paths: list[str], kind: str | None, columns: list[str] | None, classes: list[str] | None, session: Session
) -> Source:
    if kind == "dataset" or (kind is None and os.path.exists(os.path.join(paths[0], "dataset.json"))):
        if len(paths) > 1:
            raise ArgumentError("a dataset is packed from one other")
        return _dataset(Dataset(paths[0], session=session))
    files, kind = files_of(paths, kind)
    if kind == "images":
        if len(files) > 1 or not os.path.isdir(files[0]):
            raise ArgumentError("images are packed from one folder, whose folders are their classes")
        return images(files[0], classes)
    if kind == "numpy":
        if len(files) > 1:
            raise ArgumentError("NumPy arrays are packed from one .npy or .npz file")
        source = numpy_file(files[0], session)
    elif kind == "parquet":
        source = one_by_one(files, partial(parquet, columns=columns, session=session), "row")
    else:
        source = Source(shards=Shards(kind, files))
    found = [(os.path.abspath(path), os.stat(path)) for path in files]
    source.about = digest(kind, [(path, status.st_size, status.st_mtime_ns) for path, status in found])
    return source


def files_of(paths: list[str], kind: str | None) -> tuple[list[str], str]:
    """The files that paths stand for, and what they are. But for folders of images, and datasets, all are regular files.

    Raises
    ------
    MissingError, NotAFileError, DeniedError, FileError, ArgumentError.
    """
    files = [file for path in paths for file in expanded(path)]
    kind = kind or kind_of(files[0])
    if kind not in ("images", "dataset"):
        files = [file for path in files for file in (_inside(path, kind) if os.path.isdir(path) else [path])]
        for file in files:
            regular(file)
    return files, kind


def expanded(pattern: str) -> list[str]:
    """The files of `shard-{000..009}.tar`, `*.tar` or a path."""
    braces = re.search(r"\{(\d+)\.\.(\d+)\}", pattern)
    if braces:
        first, last = braces.groups()
        numbers = (f"{number:0{len(first)}d}" for number in range(int(first), int(last) + 1))
        return [file for number in numbers for file in expanded(pattern[: braces.start()] + number + pattern[braces.end() :])]
    # A link that leads nowhere is told as one.
    files = [pattern] if os.path.lexists(pattern) else sorted(glob.glob(pattern))
    if not files:
        raise MissingError(f"{pattern}: no such file", object=pattern)
    return files


def kind_of(path: str) -> str:
    """The kind of a file, or of the files in a folder."""
    if os.path.isdir(path):
        kinds = {_kind_by_name(file) for file in os.listdir(path)} - {None}
        return str(kinds.pop()) if len(kinds) == 1 else "images"
    regular(path)
    kind = _kind_by_name(path)
    packed = compression_of(path) if kind is None else None
    if packed is not None and _kind_by_name(packed[0]) is not None:
        raise ArgumentError(
            f"{path}: compressed by {packed[1]}, which is not read; unpack it first ({packed[1]} -d), or write .npz or Parquet, "
            "which compress by themselves"
        )
    if kind is None or kind in FORMS:
        kind = form_of(path)
    if kind is None:
        raise ArgumentError(f"{path}: its name does not tell what it is; say format=, one of {', '.join(KINDS)}")
    return kind


def _kind_by_name(path: str) -> str | None:
    return next((kind for ending, kind in ENDINGS.items() if path.endswith(ending)), None) or form_by_name(path)


def _inside(folder: str, kind: str) -> list[str]:
    files = [os.path.join(folder, file) for file in sorted(os.listdir(folder)) if _kind_by_name(file) == kind]
    if not files:
        raise MissingError(f"{folder}: no files of {kind} in it", object=folder)
    return files
