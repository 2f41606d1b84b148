"""Files that hold samples one behind another: tar shards, TFRecord, safetensors."""

from __future__ import annotations

import io
import itertools
import json
import math
import operator
import os
import tarfile
from collections.abc import Callable, Iterator
from functools import partial
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from ..errors import ArgumentError, CorruptError, TruncatedError
from .fields import Sample
from .source import Named, Part, Told
from .tfrecord import example, records

if TYPE_CHECKING:
    from typing_extensions import Self

HEADER_BYTES = 100_000_000
"""Of a safetensors file at most, as its authors have it."""


class _Header(tarfile.TarInfo):
    """Of a member. Damaged ones are errors: `tarfile` takes them for the end."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        try:
            header = super().frombuf(buf, encoding, errors)
        except tarfile.HeaderError as error:
            if len(buf) == tarfile.BLOCKSIZE and not any(buf):
                raise  # This is the end.
            raise tarfile.ReadError(str(error) if buf else "it ends without the mark of an end") from error
        if header.size < 0:  # It would come again and again.
            raise tarfile.ReadError(f"a member of {header.size} bytes")
        return header


Member = tuple[str, str, tarfile.TarInfo, Callable[[], bytes]]


def members(path: str) -> Iterator[Member]:
    """Of a tar archive: key, field, what it is, and what reads it, to be called before the next one is asked for.

    A key is the name up to its first dot behind folders, a field the rest.
    """
    with Told(path, "behind byte 0") as told, tarfile.open(path, "r:*", tarinfo=_Header) as archive:
        while (member := archive.next()) is not None:
            # Else it would remember all of them.
            archive.members = []  # type: ignore[attr-defined]
            told.where, told.at = f"behind byte {member.offset}", member.offset
            folder, slash, file = member.name.rpartition("/")
            stem, _, field = file.partition(".")
            if member.isfile() and stem:
                yield folder + slash + stem, field, member, partial(_content, archive, member)


def _content(archive: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    file = archive.extractfile(member)
    return file.read() if file else b""


def tar(path: str) -> Iterator[Part]:
    size = max(1, os.path.getsize(path))
    for key, parts in itertools.groupby(members(path), key=operator.itemgetter(0)):
        yield 1, _sample(path, size, key, parts)


def _sample(path: str, size: int, key: str, parts: Iterator[Member]) -> Iterator[tuple[float, Named]]:
    """Members of one key are a sample."""
    sample: Sample = {}
    with Told(path) as told:
        for _, field, member, read in parts:
            told.where, told.at = f"{member.name}, behind byte {member.offset}", member.offset
            if field in sample:
                raise ValueError("it comes twice")
            sample[field] = _member(field, read())
    yield min(1.0, told.at / size), (key, sample)


def _member(field: str, data: bytes) -> Any:
    """What a member of a tar shard is by its ending, as WebDataset has it."""
    ending = field.rpartition(".")[2].lower()
    if ending in ("cls", "cls2", "index", "id"):
        return int(data)
    if ending in ("txt", "text", "json", "transcript"):
        return data.decode()
    return np.lib.format.read_array(io.BytesIO(data), allow_pickle=False) if ending == "npy" else data


DTYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BOOL": "|b1", "U8": "|u1", "I8": "|i1"} | {
    f"{kind}{8 * size}": f"<{kind.lower()}{size}" for kind in "UI" for size in (2, 4, 8)
}
"""Of safetensors, as NumPy has them."""


def tensors(path: str) -> list[tuple[str, str, tuple[int, ...], int, int]]:
    """Of a safetensors file: name, dtype as it is there, shape, first byte, and end of each tensor, in their order."""
    size = os.path.getsize(path)
    try:
        with open(path, "rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if size < 8 or length > min(size - 8, HEADER_BYTES):
                raise ValueError(f"a header of {length} bytes in a file of {size}, where {HEADER_BYTES} are the most")
            header = json.loads(file.read(length))
        header.pop("__metadata__", None)
        start = 8 + length
        found = [
            (name, told["dtype"], tuple(told["shape"]), *(start + at for at in told["data_offsets"]))
            for name, told in header.items()
        ]
        found.sort(key=operator.itemgetter(3))
        for name, dtype, shape, first, end in found:
            are_counts = all(type(count) is int and count >= 0 for count in (*shape, first - start, end - first))
            width = np.dtype(DTYPES[dtype]).itemsize if dtype in DTYPES else None
            if not are_counts or (width is not None and math.prod(shape) * width != end - first):
                raise ValueError(f"{name!r} is said to be at bytes {first} to {end}, as {dtype} of {shape}")
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise CorruptError(f"{path}: its header: {error!r}", object=path, offset=0) from error
    end = found[-1][4] if found else start
    if end > size:
        raise TruncatedError(f"{path}: its tensors end at byte {end}, and it at {size}", object=path, expected=end, actual=size)
    return found


def safetensors(path: str) -> Iterator[Part]:
    size = max(1, os.path.getsize(path))
    with open(path, "rb") as file:
        for name, dtype, shape, first, end in tensors(path):
            if dtype not in DTYPES:
                raise ArgumentError(f"{path}: {name!r} has dtype {dtype}, which NumPy does not have")
            yield 1, _tensor(file, first / size, name, DTYPES[dtype], shape, first, end)


def _tensor(
    file: IO[bytes], within: float, name: str, dtype: str, shape: tuple[int, ...], first: int, end: int
) -> Iterator[tuple[float, Named]]:
    file.seek(first)
    yield within, (name, {"tensor": np.frombuffer(file.read(end - first), dtype).reshape(shape)})


def tfrecord(path: str) -> Iterator[Part]:
    size = max(1, os.path.getsize(path))
    for offset, read in records(path):
        yield 1, _example(path, size, offset, read)


def _example(path: str, size: int, offset: int, read: Callable[[], bytes]) -> Iterator[tuple[float, Named]]:
    record = read()
    with Told(path, f"the record at byte {offset} is no tf.train.Example", offset):
        sample = example(record)
    yield offset / size, (None, sample)
