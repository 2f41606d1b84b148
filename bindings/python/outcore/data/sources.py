"""Where samples come from: folders of images, tar shards, TFRecord, Parquet, NumPy, datasets of PyTorch, whatever yields samples.

A source has its samples in an order that is the same every time, so that packing goes on where it was. Memory does not depend on
their number: a source reads some samples ahead, a row group of Parquet at most.
"""

from __future__ import annotations

import glob
import io
import itertools
import json
import lzma
import math
import operator
import os
import re
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from ..errors import ArgumentError, CorruptError, MissingError, OutcoreError, TruncatedError
from .fields import Name, Sample
from .tfrecord import example, records

if TYPE_CHECKING:
    from typing_extensions import Self

Named = tuple[Name | None, Sample]

IMAGES = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".ppm", ".pgm", ".tif", ".tiff", ".webp")
KINDS = ("images", "tar", "tfrecord", "safetensors", "parquet", "numpy")
ENDINGS = {
    ".tar": "tar",
    ".tar.gz": "tar",
    ".tgz": "tar",
    ".tfrecord": "tfrecord",
    ".tfrecords": "tfrecord",
    ".safetensors": "safetensors",
    ".parquet": "parquet",
    ".npy": "numpy",
    ".npz": "numpy",
}

ROWS = 1024
"""Of Parquet, made into samples at once."""


@dataclass
class Source:
    """Samples in an order: `samples` has those from a position on. `load`, where a source has it, has the one with a number."""

    samples: Callable[[int], Iterator[Named]] | None = None
    load: Callable[[int], Named] | None = None
    count: int | None = None
    fields: Mapping[str, Any] | None = None
    threads: int = 1
    fraction: Callable[[], float] | None = None
    """How far it is, where the number of its samples is not known."""


def found(source: Any, kind: str | None, columns: list[str] | None = None) -> Source:
    """What a source is, by its type, its name and what is in it."""
    if isinstance(source, str | os.PathLike):
        return _of_files([os.fspath(source)], kind, columns)
    if kind is not None and not _are_paths(source):
        raise ArgumentError(f"a format is that of files, and not of {type(source).__name__}")
    if isinstance(source, list | tuple) and source and _are_paths(source):
        return _of_files([os.fspath(path) for path in source], kind, columns)
    if isinstance(source, np.ndarray):
        return _arrays({"x": source})
    if isinstance(source, Mapping):
        return _arrays(source)
    if hasattr(source, "__len__") and hasattr(source, "__getitem__"):
        return Source(load=lambda number: _named(source[number]), count=len(source))
    if isinstance(source, Iterable):
        return Source(samples=lambda start: _behind(map(_named, source), start))
    raise ArgumentError(f"samples come from files, arrays, or whatever yields them, and not from {type(source).__name__}")


def _are_paths(source: Any) -> bool:
    return isinstance(source, list | tuple) and all(isinstance(path, str | os.PathLike) for path in source)


def _behind(samples: Iterator[Named], start: int) -> Iterator[Named]:
    for _ in range(start):
        next(samples, None)
    return samples


def _named(value: Any) -> Named:
    """A sample, or a name and a sample, as whoever yields them has them."""
    if isinstance(value, tuple) and len(value) == 2 and isinstance(value[0], str | bytes) and isinstance(value[1], Mapping):
        return value
    if isinstance(value, Mapping):
        return None, dict(value)
    values = value if isinstance(value, tuple | list) else (value,)
    # Pictures of PIL are arrays to NumPy.
    plain = [np.asarray(one) if hasattr(one, "__array_interface__") else one for one in values]
    return None, {str(number): one for number, one in enumerate(plain)}


def _of_files(paths: list[str], kind: str | None, columns: list[str] | None) -> Source:
    files, kind = files_of(paths, kind)
    if kind == "images":
        if len(files) > 1:
            raise ArgumentError("images are packed from one folder, whose folders are their classes")
        return _images(Path(files[0]))
    if kind == "numpy":
        if len(files) > 1:
            raise ArgumentError("NumPy arrays are packed from one .npy or .npz file")
        return _npz(files[0]) if files[0].endswith(".npz") else _npy(files[0])
    parquet = lambda path: _parquet(path, columns)  # noqa: E731
    return _one_by_one(files, {"tar": _tar, "tfrecord": _tfrecord, "safetensors": _safetensors, "parquet": parquet}[kind])


def files_of(paths: list[str], kind: str | None) -> tuple[list[str], str]:
    """The files that paths stand for, and what they are."""
    files = [file for path in paths for file in expanded(path)]
    kind = kind or kind_of(files[0])
    if kind != "images":
        files = [file for path in files for file in (_inside(path, kind) if os.path.isdir(path) else [path])]
    return files, kind


def _one_by_one(files: list[str], read: Callable[[str], Iterator[tuple[float, Named]]]) -> Source:
    """Samples of files, each of which tells how much of it has been read."""
    place = 0.0

    def samples() -> Iterator[Named]:
        nonlocal place
        for number, path in enumerate(files):
            for within, named in read(path):
                place = (number + within) / len(files)
                yield named

    return Source(samples=lambda start: _behind(samples(), start), fraction=lambda: place)


def expanded(pattern: str) -> list[str]:
    """The files of `shard-{000..009}.tar`, `*.tar` or a path."""
    braces = re.search(r"\{(\d+)\.\.(\d+)\}", pattern)
    if braces:
        first, last = braces.groups()
        numbers = (f"{number:0{len(first)}d}" for number in range(int(first), int(last) + 1))
        return [file for number in numbers for file in expanded(pattern[: braces.start()] + number + pattern[braces.end() :])]
    files = [pattern] if os.path.exists(pattern) else sorted(glob.glob(pattern))
    if not files:
        raise MissingError(f"{pattern}: no such file", object=pattern)
    return files


def kind_of(path: str) -> str:
    """What a file is, or what a folder has."""
    if os.path.isdir(path):
        kinds = {_kind_by_name(file) for file in os.listdir(path)} - {None}
        return str(kinds.pop()) if len(kinds) == 1 else "images"
    kind = _kind_by_name(path)
    if kind is None:
        raise ArgumentError(f"{path}: its name does not tell what it is; say format=, one of {', '.join(KINDS)}")
    return kind


def _kind_by_name(path: str) -> str | None:
    return next((kind for ending, kind in ENDINGS.items() if path.endswith(ending)), None)


def _inside(folder: str, kind: str) -> list[str]:
    files = [os.path.join(folder, file) for file in sorted(os.listdir(folder)) if _kind_by_name(file) == kind]
    if not files:
        raise MissingError(f"{folder}: no files of {kind} in it", object=folder)
    return files


def _images(folder: Path) -> Source:
    """Files below folders that are their classes, as torchvision has them; without such folders, files alone."""
    files = sorted(path.relative_to(folder) for path in folder.rglob("*") if path.suffix.lower() in IMAGES and path.is_file())
    files = [file for file in files if not any(part.startswith(".") for part in file.parts)]
    classes = sorted({file.parts[0] for file in files if len(file.parts) > 1})
    if classes and any(len(file.parts) == 1 for file in files):
        raise ArgumentError(
            f"{folder}: images beside folders of images; either all are in folders, which are their classes, or none is"
        )
    labels = {name: number for number, name in enumerate(classes)}

    def load(number: int) -> Named:
        file = files[number]
        sample: Sample = {"image": (folder / file).read_bytes()}
        if classes:
            sample |= {"label": labels[file.parts[0]], "class": file.parts[0]}
        return file.as_posix(), sample

    fields = {"image": "bytes", **({"label": "int64", "class": "text"} if classes else {})}
    return Source(load=load, count=len(files), fields=fields, threads=8)


def _arrays(arrays: Mapping[str, Any]) -> Source:
    """Arrays whose first axis counts samples."""
    lengths = {name: len(array) for name, array in arrays.items()}
    _equal(lengths)
    fields = {name: (array.dtype, array.shape[1:]) for name, array in arrays.items() if isinstance(array, np.ndarray)}
    count = next(iter(lengths.values()))
    load = lambda number: (None, {name: array[number] for name, array in arrays.items()})  # noqa: E731
    return Source(load=load, count=count, fields=fields if len(fields) == len(arrays) else None)


def _equal(lengths: Mapping[str, int]) -> None:
    if len(set(lengths.values())) != 1:
        told = ", ".join(f"{name!r} has {length}" for name, length in lengths.items())
        raise ArgumentError(f"arrays with equally many samples make a dataset: {told or 'there are none'}")


def _npy(path: str) -> Source:
    with _told(path):
        return _arrays({"x": np.load(path, mmap_mode="r")})


def _npz(path: str) -> Source:
    """Members are read side by side, a sample at a time, so that memory does not depend on their length."""
    with _told(path), zipfile.ZipFile(path) as archive:
        members = {name.removesuffix(".npy"): name for name in archive.namelist()}
        headers = {}
        for field, name in members.items():
            with archive.open(name) as file:
                headers[field] = _npy_header(file)
    shapes = {field: shape for field, (shape, _) in headers.items()}
    lengths = {field: shape[0] if shape else 1 for field, shape in shapes.items()}
    _equal(lengths)
    if not all(shapes.values()):
        raise ArgumentError(
            f"{path}: {next(field for field in shapes if not shapes[field])!r} is a single number, and has no samples"
        )
    count = next(iter(lengths.values()))

    def samples(start: int) -> Iterator[Named]:
        with _told(path), ExitStack() as stack:
            archive = stack.enter_context(zipfile.ZipFile(path))
            files = {field: stack.enter_context(archive.open(name)) for field, name in members.items()}
            for file in files.values():
                _npy_header(file)
            for number in range(count):
                sample = {field: _item(file, headers[field]) for field, file in files.items()}
                if number >= start:
                    yield None, sample

    return Source(samples=samples, count=count, fields={field: (dtype, shape[1:]) for field, (shape, dtype) in headers.items()})


def _npy_header(file: IO[bytes]) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Shape and dtype of what follows."""
    read = {1: np.lib.format.read_array_header_1_0, 2: np.lib.format.read_array_header_2_0}
    version = np.lib.format.read_magic(file)[0]
    if version not in read:
        raise ValueError(f"version {version} of NumPy's format")
    shape, in_columns, dtype = read[version](file)
    if dtype.hasobject or (in_columns and len(shape) > 1):
        raise ArgumentError(
            f"an array of {'objects' if dtype.hasobject else 'columns'} in a .npz file cannot be read a sample at a time"
        )
    return shape, dtype


def _item(file: IO[bytes], header: tuple[tuple[int, ...], np.dtype[Any]]) -> Any:
    shape, dtype = header[0][1:], header[1]
    data = file.read(math.prod(shape) * dtype.itemsize)
    return np.frombuffer(data, dtype, math.prod(shape)).reshape(shape)


@contextmanager
def _told(path: str) -> Iterator[None]:
    """What is wrong with a file is told with its name."""
    try:
        yield
    except OutcoreError:
        raise
    except (ValueError, EOFError, OSError, zipfile.BadZipFile, zlib.error) as error:
        if isinstance(error, OSError) and error.errno:
            raise
        raise CorruptError(f"{path}: {error}", object=path, offset=0) from error


class _Header(tarfile.TarInfo):
    """Of a member. Damaged ones are errors: `tarfile` takes them for the end."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        try:
            return super().frombuf(buf, encoding, errors)
        except tarfile.HeaderError as error:
            if len(buf) == tarfile.BLOCKSIZE and not any(buf):
                raise  # This is the end.
            raise tarfile.ReadError(str(error) if buf else "it ends without the mark of an end") from error


def members(path: str, read: bool = True) -> Iterator[tuple[str, str, tarfile.TarInfo, bytes]]:
    """Of a tar archive: key, field, and what it is. A key is the name up to its first dot behind folders, a field the rest."""
    at = 0
    try:
        with tarfile.open(path, "r:*", tarinfo=_Header) as archive:
            while (member := archive.next()) is not None:
                # Else it would remember all of them.
                archive.members = []  # type: ignore[attr-defined]
                at = member.offset
                folder, slash, file = member.name.rpartition("/")
                stem, _, field = file.partition(".")
                if member.isfile() and stem:
                    data = archive.extractfile(member) if read else None
                    yield folder + slash + stem, field, member, data.read() if data else b""
    except (tarfile.TarError, EOFError, OSError, zlib.error, lzma.LZMAError) as error:
        if isinstance(error, OSError) and error.errno:
            raise
        raise CorruptError(f"{path}: behind byte {at}: {error}", object=path, offset=at) from error


def _tar(path: str) -> Iterator[tuple[float, Named]]:
    """Members of one key are a sample."""
    size = max(1, os.path.getsize(path))
    for key, parts in itertools.groupby(members(path), key=operator.itemgetter(0)):
        sample, at = {}, 0
        for _, field, member, data in parts:
            at = member.offset
            try:
                sample[field] = _member(field, data)
            except ValueError as error:
                raise CorruptError(f"{path}: {member.name}: {error}", object=path, offset=at) from error
        yield min(1.0, at / size), (key, sample)


def _member(field: str, data: bytes) -> Any:
    """What a member of a tar shard is by its ending, as WebDataset has it."""
    ending = field.rpartition(".")[2].lower()
    if ending in ("cls", "cls2", "index", "id"):
        return int(data)
    if ending in ("txt", "text", "json", "transcript"):
        return data.decode()
    return np.load(io.BytesIO(data), allow_pickle=False) if ending == "npy" else data


def _parquet(path: str, columns: list[str] | None) -> Iterator[tuple[float, Named]]:
    """Rows; of a column of structures, its members, as `image.bytes`."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as error:
        raise ImportError("Parquet needs pyarrow: pip install pyarrow") from error
    row = 0
    try:
        with pq.ParquetFile(path) as file:
            rows = max(1, file.metadata.num_rows)
            for batch in file.iter_batches(ROWS, columns=columns):
                table = pa.Table.from_batches([batch]).flatten()
                values = {name: table.column(name).to_pylist() for name in table.column_names}
                for name in values:
                    if table.column(name).null_count:
                        missing = row + values[name].index(None)
                        raise ArgumentError(
                            f"{path}: column {name!r} has no value in row {missing}; fields= says which columns are wanted"
                        )
                for number, sample in enumerate(zip(*values.values(), strict=True)):
                    yield (row + number) / rows, (None, dict(zip(values, sample, strict=True)))
                row += len(batch)
    except pa.ArrowException as error:
        raise CorruptError(f"{path}: from row {row} on: {error}", object=path, offset=0) from error


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
            if size < 8 or length > size - 8:
                raise ValueError(f"a header of {length} bytes in a file of {size}")
            header = json.loads(file.read(length))
        header.pop("__metadata__", None)
        start = 8 + length
        found = [
            (name, told["dtype"], tuple(told["shape"]), *(start + at for at in told["data_offsets"]))
            for name, told in header.items()
        ]
        found.sort(key=operator.itemgetter(3))
        for name, dtype, shape, first, end in found:
            width = np.dtype(DTYPES[dtype]).itemsize if dtype in DTYPES else None
            if not start <= first <= end or (width is not None and math.prod(shape) * width != end - first):
                raise ValueError(f"{name!r} is said to be at bytes {first} to {end}, as {dtype} of {shape}")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CorruptError(f"{path}: {error}", object=path, offset=0) from error
    end = found[-1][4] if found else start
    if end > size:
        raise TruncatedError(f"{path}: its tensors end at byte {end}, and it at {size}", object=path, expected=end, actual=size)
    return found


def _safetensors(path: str) -> Iterator[tuple[float, Named]]:
    size = max(1, os.path.getsize(path))
    with open(path, "rb") as file:
        for name, dtype, shape, first, end in tensors(path):
            if dtype not in DTYPES:
                raise ArgumentError(f"{path}: {name!r} has dtype {dtype}, which NumPy does not have")
            file.seek(first)
            yield first / size, (name, {"tensor": np.frombuffer(file.read(end - first), DTYPES[dtype]).reshape(shape)})


def _tfrecord(path: str) -> Iterator[tuple[float, Named]]:
    size = max(1, os.path.getsize(path))
    for offset, record in records(path):
        try:
            yield offset / size, (None, example(record))
        except ValueError as error:
            raise CorruptError(
                f"{path}: the record at byte {offset} is no tf.train.Example: {error}", object=path, offset=offset
            ) from error
