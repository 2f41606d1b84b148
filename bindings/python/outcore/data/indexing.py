"""Finds samples in files that stay as they are: tar shards, TFRecord, safetensors."""

from __future__ import annotations

import itertools
import operator
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import IO, Any

import numpy as np

from .._run import Bar
from .._session import PathLike, Session, full_path
from ..errors import ArgumentError
from .dataset import Dataset
from .fields import Field, name_bytes
from .shards import DTYPES, members, tensors
from .sources import files_of, found
from .tfrecord import HEAD_BYTES, records
from .writer import Writer

FORMS = ("tar", "tfrecord", "safetensors")

Point = tuple[str | None, int, Callable[[], bytes]]
"""Name, first byte in its file, and what reads all bytes of a sample."""


def index(
    source: PathLike | Sequence[PathLike],
    path: PathLike,
    *,
    format: str | None = None,  # noqa: A002
    fields: Mapping[str, Any] | None = None,
    names: bool = True,
    resume: bool = False,
    session: Session | None = None,
    progress: bool | None = None,
) -> Dataset:
    """Makes a dataset of samples that stay where they are. Files are read once, and must stay as they are.

    Samples are as `pack` would have them, but what is not told by `fields` is passed over, and features of TFRecord are float32
    and int64 as they are there. They take some bytes more than packed ones, such as the headers of tar.

    Parameters
    ----------
    source : path or list of paths
        - tar shards, not compressed;
        - TFRecord files of `tf.train.Example`;
        - safetensors files: a tensor is a sample with its name, and field `tensor`.

        Several files may also be given as `*.tar`, or as `shard-{000..009}.tar`. Files in the folder in which the dataset will
        lie, or below it, may go with it to another place.
    path : path
        Of the dataset; one that is there is replaced at the end.
    format : {"tar", "tfrecord", "safetensors"}, optional
        What files are. Default: by their names.
    fields : mapping, optional
        As of `Writer`. Default: those of the first sample; of tensors, an axis varies if it does.
    names : bool
        Keep the names of samples.
    resume : bool
        Go on where indexing the same files died or failed.
    session : Session, optional
    progress : bool, optional

    Raises
    ------
    ArgumentError (compressed files, samples without the fields), CorruptError and TruncatedError (naming the file and where in
    it), MissingError, and those of `Writer`.
    """
    given = [source] if isinstance(source, str | bytes | os.PathLike) else source
    files, form = files_of([full_path(one) for one in given], format)
    if form not in FORMS:
        raise ArgumentError(f"files of {form} cannot be indexed in place; pack them")
    compressed = next((file for file in files if form == "tar" and not file.endswith(".tar")), None)
    if compressed is not None:
        raise ArgumentError(f"{compressed}: a compressed archive cannot be indexed in place; pack it")
    files = [os.path.abspath(file) for file in files]
    sizes = [os.path.getsize(file) for file in files]
    with Writer(path, fields or _fields(files, form), resume=resume, session=session, progress=progress) as writer:
        writer._writer.set_elsewhere(os.path.abspath(writer.path), form, list(zip(files, sizes, strict=True)))
        points = ((number, *point) for number, file in enumerate(files) for point in _points(file, form))
        with Bar("index", progress) as bar:
            for number, name, offset, read in itertools.islice(points, len(writer), None):
                writer._writer.point(None if name is None or not names else name_bytes(name), number, offset, read())
                bar.update(partial(operator.truediv, number + offset / sizes[number], len(files)))
    return Dataset(path, session=session)


def _points(path: str, form: str) -> Iterator[Point]:
    if form == "tfrecord":
        for at, read in records(path):
            yield None, at + HEAD_BYTES, read
        return
    with open(path, "rb") as file:
        for name, first, end in _members(path) if form == "tar" else _tensors(path):
            yield name, first, partial(_piece, file, first, end)


def _piece(file: IO[bytes], first: int, end: int) -> bytes:
    file.seek(first)
    return file.read(end - first)


def _members(path: str) -> Iterator[tuple[str, int, int]]:
    """Of a tar archive: keys, and what of it their members are, from the first one's header on."""
    for key, parts in itertools.groupby(members(path), key=operator.itemgetter(0)):
        headers = [member for _, _, member, _ in parts]
        yield key, headers[0].offset, headers[-1].offset_data + headers[-1].size


def _tensors(path: str) -> Iterator[tuple[str, int, int]]:
    return ((name, first, end) for name, _, _, first, end in tensors(path))


def _fields(files: list[str], form: str) -> Mapping[str, Field]:
    if form == "safetensors":
        return {
            "tensor": _field_of_tensors([(name, dtype, shape) for file in files for name, dtype, shape, _, _ in tensors(file)])
        }
    samples = found(files, form).samples
    assert samples is not None
    first = next(samples(0), None)
    if first is None:
        raise ArgumentError(f"{files[0]}: a dataset of no samples needs fields=")
    return {name: Field.of(value) for name, value in first[1].items()}


def _field_of_tensors(told: list[tuple[str, str, tuple[int, ...]]]) -> Field:
    kinds = {(dtype, len(shape)): name for name, dtype, shape in told}
    if len(kinds) != 1:
        some = (
            ", ".join(f"{name!r} is {dtype} of {axes} axes" for (dtype, axes), name in list(kinds.items())[:2])
            or "there are none"
        )
        raise ArgumentError(
            f"tensors of one dtype and as many axes are samples with a field: {some}; or fields={{'tensor': 'bytes'}}"
        )
    ((dtype, _),) = kinds
    shape = tuple(
        extents[0] if len(set(extents)) == 1 else None for extents in zip(*(shape for _, _, shape in told), strict=True)
    )
    if dtype not in DTYPES or shape.count(None) > 1:
        why = f"NumPy has no {dtype}" if dtype not in DTYPES else "more than one axis varies"
        raise ArgumentError(f"tensors that are no arrays in place, since {why}; fields={{'tensor': 'bytes'}} makes them bytes")
    return Field("array", np.dtype(DTYPES[dtype]), shape)
