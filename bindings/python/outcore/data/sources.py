"""Where samples come from: folders of images, tar shards, TFRecord, Parquet, NumPy, datasets of PyTorch, whatever yields samples.

A source has its samples in an order that is the same every time, so that packing goes on where it was. Memory does not depend on
their number: a source reads some samples ahead, a row group of Parquet at most.
"""

from __future__ import annotations

import errno
import glob
import hashlib
import io
import itertools
import json
import lzma
import math
import operator
import os
import re
import tarfile
import tokenize
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from ..errors import ArgumentError, CorruptError, MissingError, OutcoreError, TruncatedError
from .dataset import Dataset
from .fields import Name, Sample
from .tfrecord import example, records

if TYPE_CHECKING:
    from typing_extensions import Self

Named = tuple[Name | None, Sample]

Part = tuple[int, Iterator[tuple[float, Named]]]
"""How many samples come next in a file, and these, each with how much of the file has been read. Nothing of a part is read before
its first sample is asked for, so that whoever passes over it only pays for finding the next one."""

IMAGES = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".ppm", ".pgm", ".tif", ".tiff", ".webp")
KINDS = ("dataset", "images", "tar", "tfrecord", "safetensors", "parquet", "numpy")
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
BATCH_BYTES = 8 << 20
"""Of Parquet, made into samples at once: as many rows as have these bytes."""

HEADER_BYTES = 100_000_000
"""Of a safetensors file at most, as its authors have it."""


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
    dataset: Dataset | None = None
    """Of outcore's own, which is copied."""
    about: str = ""
    """What tells it from other sources, and files from what they were before they changed."""


def found(source: Any, kind: str | None, columns: list[str] | None = None) -> Source:
    """What a source is, by its type, its name and what is in it."""
    if isinstance(source, str | bytes | os.PathLike):
        return _of_files([os.fsdecode(source)], kind, columns)
    if kind is not None and not _are_paths(source):
        raise ArgumentError(f"a format is that of files, and not of {type(source).__name__}")
    if isinstance(source, list | tuple) and source and _are_paths(source):
        return _of_files([os.fsdecode(path) for path in source], kind, columns)
    if isinstance(source, Dataset) and not source.decode:
        return _dataset(source)
    if isinstance(source, np.ndarray):
        return _arrays({"x": source})
    if isinstance(source, Mapping):
        return _arrays(source)
    about = f"{type(source).__module__}.{type(source).__qualname__}"
    if hasattr(source, "__len__") and hasattr(source, "__getitem__"):
        return Source(load=lambda number: _named(source[number]), count=len(source), about=f"{about} of {len(source)}")
    if isinstance(source, Iterable):
        return Source(samples=lambda start: _behind(map(_named, source), start), about=about)
    raise ArgumentError(f"samples come from files, arrays, or whatever yields them, and not from {type(source).__name__}")


def _are_paths(source: Any) -> bool:
    return isinstance(source, list | tuple) and all(isinstance(path, str | os.PathLike) for path in source)


def _behind(samples: Iterator[Named], start: int) -> Iterator[Named]:
    if sum(1 for _ in itertools.islice(samples, start)) < start:
        raise ArgumentError(f"the {start} samples that were packed are more than there are; begin anew without resume")
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


def _dataset(dataset: Dataset) -> Source:
    return Source(count=len(dataset), dataset=dataset, about=f"dataset {dataset._inner.digest()}")


def _of_files(paths: list[str], kind: str | None, columns: list[str] | None) -> Source:
    if kind == "dataset" or (kind is None and os.path.exists(os.path.join(paths[0], "dataset.json"))):
        if len(paths) > 1:
            raise ArgumentError("a dataset is packed from one other")
        return _dataset(Dataset(paths[0]))
    files, kind = files_of(paths, kind)
    if kind == "images":
        if len(files) > 1 or not os.path.isdir(files[0]):
            raise ArgumentError("images are packed from one folder, whose folders are their classes")
        return _images(files[0])
    if kind == "numpy":
        if len(files) > 1:
            raise ArgumentError("NumPy arrays are packed from one .npy or .npz file")
        source = _npz(files[0]) if files[0].endswith(".npz") else _npy(files[0])
    else:
        parquet = lambda path: _parquet(path, columns)  # noqa: E731
        source = _one_by_one(files, {"tar": _tar, "tfrecord": _tfrecord, "safetensors": _safetensors, "parquet": parquet}[kind])
    found = [(os.path.abspath(path), os.stat(path)) for path in files]
    source.about = _digest(kind, [(path, status.st_size, status.st_mtime_ns) for path, status in found])
    return source


def _digest(kind: str, told: object) -> str:
    return f"{kind} {hashlib.blake2b(repr(told).encode(), digest_size=16).hexdigest()}"


def files_of(paths: list[str], kind: str | None) -> tuple[list[str], str]:
    """The files that paths stand for, and what they are."""
    files = [file for path in paths for file in expanded(path)]
    kind = kind or kind_of(files[0])
    if kind != "images":
        files = [file for path in files for file in (_inside(path, kind) if os.path.isdir(path) else [path])]
    return files, kind


def _one_by_one(files: list[str], read: Callable[[str], Iterator[Part]]) -> Source:
    """Samples of files, one file after the other: reading several in threads at once only makes them wait for Python's lock."""
    place = 0.0

    def samples(start: int) -> Iterator[Named]:
        nonlocal place
        for number, path in enumerate(files):
            for count, part in read(path):
                if count > start:
                    for within, named in itertools.islice(part, start, None):
                        place = (number + within) / len(files)
                        yield named
                start = max(0, start - count)

    return Source(samples=samples, fraction=lambda: place)


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


def _images(folder: str) -> Source:
    """Files below folders that are their classes, as torchvision has them; without such folders, files alone."""
    found = sorted(_below(folder))
    files = [file for file, _ in found]
    if not files:
        raise MissingError(f"{folder}: no images in it", object=folder)
    classes = sorted({file.partition("/")[0] for file in files if "/" in file})
    if classes and not all("/" in file for file in files):
        raise ArgumentError(
            f"{folder}: images beside folders of images; either all are in folders, which are their classes, or none is"
        )
    labels = {name: number for number, name in enumerate(classes)}

    def load(number: int) -> Named:
        file = files[number]
        sample: Sample = {"image": Path(folder, file).read_bytes()}
        if classes:
            name = file.partition("/")[0]
            sample |= {"label": labels[name], "class": name}
        return file, sample

    fields = {"image": "bytes", **({"label": "int64", "class": "text"} if classes else {})}
    about = _digest("images", (os.path.abspath(folder), found))
    return Source(load=load, count=len(files), fields=fields, threads=8, about=about)


def _below(folder: str, within: str = "") -> Iterator[tuple[str, int]]:
    """Images, by their paths below a folder, and their bytes."""
    with os.scandir(os.path.join(folder, within)) as entries:
        for entry in entries:
            path = within + entry.name
            if entry.name.startswith("."):
                continue
            if entry.is_dir(follow_symlinks=False):
                yield from _below(folder, path + "/")
            elif path.lower().endswith(IMAGES) and entry.is_file():
                yield path, entry.stat().st_size


def _arrays(arrays: Mapping[str, Any]) -> Source:
    """Arrays whose first axis counts samples."""
    count = _count({name: _shape(array) for name, array in arrays.items()})
    fields = {name: (array.dtype, array.shape[1:]) for name, array in arrays.items() if isinstance(array, np.ndarray)}
    load = lambda number: (None, {name: array[number] for name, array in arrays.items()})  # noqa: E731
    about = _digest("arrays", [(name, type(array).__name__, _shape(array)) for name, array in arrays.items()])
    return Source(load=load, count=count, fields=fields if len(fields) == len(arrays) else None, about=about)


def _shape(array: Any) -> tuple[int, ...]:
    """Of anything with a length, at least that."""
    return tuple(array.shape) if hasattr(array, "shape") else (len(array),) if hasattr(array, "__len__") else ()


def _count(shapes: Mapping[str, tuple[int, ...]]) -> int:
    """How many samples arrays of these shapes are."""
    single = next((name for name, shape in shapes.items() if not shape), None)
    if single is not None:
        raise ArgumentError(f"{single!r} is a single number, and has no samples")
    lengths = {name: shape[0] for name, shape in shapes.items()}
    if len(set(lengths.values())) != 1:
        told = ", ".join(f"{name!r} has {length}" for name, length in lengths.items())
        raise ArgumentError(f"arrays with equally many samples make a dataset: {told or 'there are none'}")
    return next(iter(lengths.values()))


def _npy(path: str) -> Source:
    with _Told(path):
        return _arrays({"x": np.lib.format.open_memmap(path, mode="r")})


def _npz(path: str) -> Source:
    """Members are read side by side, a sample at a time, so that memory does not depend on their length."""
    with _Told(path):
        archive = zipfile.ZipFile(path)
    headers, members = {}, {name.removesuffix(".npy"): name for name in archive.namelist()}
    with archive:
        for field, name in members.items():
            with _Told(path, name), archive.open(name) as file:
                headers[field] = _npy_header(file)
    with _Told(path):
        count = _count({field: shape for field, (shape, _) in headers.items()})

    def samples(start: int) -> Iterator[Named]:
        with ExitStack() as stack:
            with _Told(path):
                archive = stack.enter_context(zipfile.ZipFile(path))
                files = {field: stack.enter_context(archive.open(name)) for field, name in members.items()}
                for file in files.values():
                    _npy_header(file)
            for number in range(count):
                with _Told(path, f"sample {number}"):
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
    if min(shape, default=0) < 0:
        raise ValueError(f"an array of shape {shape}")
    if dtype.hasobject or (in_columns and len(shape) > 1):
        raise ArgumentError(
            f"an array of {'objects' if dtype.hasobject else 'columns'} in a .npz file cannot be read a sample at a time"
        )
    return shape, dtype


def _item(file: IO[bytes], header: tuple[tuple[int, ...], np.dtype[Any]]) -> Any:
    shape, dtype = header[0][1:], header[1]
    size = math.prod(shape) * dtype.itemsize
    data = file.read(size)
    if len(data) < size:
        raise ValueError(f"it ends behind {len(data)} bytes of {size}")
    return np.frombuffer(data, dtype, math.prod(shape)).reshape(shape)


DAMAGED = (
    *(ValueError, TypeError, SyntaxError, LookupError, OverflowError, RuntimeError, EOFError, OSError),
    *(tokenize.TokenError, zipfile.BadZipFile, tarfile.TarError, zlib.error, lzma.LZMAError),
)
"""What NumPy, pyarrow, `tarfile` and `zipfile` say of bytes that they cannot read."""


@dataclass
class _Told:
    """What is wrong with a file is told with its name, and where in it that is."""

    path: str
    where: str = ""
    at: int = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        place = f"{self.path}: {self.where}" if self.where else self.path
        if isinstance(error, ArgumentError):
            raise ArgumentError(f"{place}: {error}") from error
        # Of what the system says, only a place before the first byte is the file's fault.
        is_of_system = isinstance(error, OSError) and error.errno not in (None, errno.EINVAL)
        if isinstance(error, DAMAGED) and not isinstance(error, OutcoreError) and not is_of_system:
            raise CorruptError(f"{place}: {error}", object=self.path, offset=self.at) from error


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
    with _Told(path, "behind byte 0") as told, tarfile.open(path, "r:*", tarinfo=_Header) as archive:
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


def _tar(path: str) -> Iterator[Part]:
    size = max(1, os.path.getsize(path))
    for key, parts in itertools.groupby(members(path), key=operator.itemgetter(0)):
        yield 1, _sample(path, size, key, parts)


def _sample(path: str, size: int, key: str, parts: Iterator[Member]) -> Iterator[tuple[float, Named]]:
    """Members of one key are a sample."""
    sample: Sample = {}
    with _Told(path) as told:
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


def _parquet(path: str, columns: list[str] | None) -> Iterator[Part]:
    """Row groups."""
    try:
        import pyarrow.parquet as pq
    except ImportError as error:
        raise ImportError("Parquet needs pyarrow: pip install pyarrow") from error
    with _Told(path):
        file = pq.ParquetFile(path)
        there = file.schema_arrow.empty_table().flatten().column_names
    with file:
        missing = [name for name in columns or [] if name not in there]
        if missing:
            raise ArgumentError(f"{path}: no column {missing[0]!r}; there are {', '.join(there)}")
        row = 0
        for group in range(file.metadata.num_row_groups):
            count = file.metadata.row_group(group).num_rows
            yield count, _rows(path, file, group, row, columns)
            row += count


def _rows(path: str, file: Any, group: int, row: int, columns: list[str] | None) -> Iterator[tuple[float, Named]]:
    """Rows of a group, which begins with some row; of a column of structures, its members, as `image.bytes`."""
    import pyarrow as pa

    about = file.metadata.row_group(group)
    at_once = max(1, min(ROWS, BATCH_BYTES * about.num_rows // max(1, about.total_byte_size)))
    batches = file.iter_batches(at_once, row_groups=[group], columns=columns)
    while True:
        with _Told(path, f"from row {row} on"):
            batch = next(batches, None)
            if batch is None:
                return
            table = pa.Table.from_batches([batch]).flatten()
            values = {name: table.column(name).to_pylist() for name in table.column_names}
        for name in values:
            if table.column(name).null_count:
                missing = row + values[name].index(None)
                raise ArgumentError(
                    f"{path}: column {name!r} has no value in row {missing}; fields= says which columns are wanted"
                )
        for sample in zip(*values.values(), strict=True):
            yield row / file.metadata.num_rows, (None, dict(zip(values, sample, strict=True)))
            row += 1


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


def _safetensors(path: str) -> Iterator[Part]:
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


def _tfrecord(path: str) -> Iterator[Part]:
    size = max(1, os.path.getsize(path))
    for offset, read in records(path):
        yield 1, _example(path, size, offset, read)


def _example(path: str, size: int, offset: int, read: Callable[[], bytes]) -> Iterator[tuple[float, Named]]:
    record = read()
    with _Told(path, f"the record at byte {offset} is no tf.train.Example", offset):
        sample = example(record)
    yield offset / size, (None, sample)
