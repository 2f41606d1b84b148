"""Arrays whose first axis counts samples: in memory, in .npy and in .npz files.

Files are read through the engine, some rows at a time, whatever their type of numbers and however many axes they have;
numbers of the other byte order are converted on the way. A column-major file is read in blocks of rows, a piece of each column
at a time, so in order only.
"""

from __future__ import annotations

import io
import math
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from .._files import EngineFile, seems
from ..errors import ArgumentError, CorruptError, TruncatedError, UnsupportedError
from .source import Named, Order, Source, Told, digest

if TYPE_CHECKING:
    from .._session import Session

CHUNK_BYTES = 4 << 20
ROWS = 1 << 16
"""Of a .npy file, read at once: as many rows as have these bytes, and at most this number of them."""
COLUMNS_PART = 4
"""Of a column-major file, as many rows at once as have this part of the budget: the more, the longer the pieces of columns."""
MEMBER_BYTES = 256 << 10
MEMBERS_BYTES = 16 << 20
"""Of each member of an archive, and of all of them, read at once."""
MAGIC = b"\x93NUMPY"


def arrays_source(arrays: Mapping[str, Any]) -> Source:
    """Arrays whose first axis counts samples."""
    count = _count({name: _shape(array) for name, array in arrays.items()})
    fields = {name: (array.dtype, array.shape[1:]) for name, array in arrays.items() if isinstance(array, np.ndarray)}
    load = lambda number: (None, {name: array[number] for name, array in arrays.items()})  # noqa: E731
    about = digest("arrays", [(name, type(array).__name__, _shape(array)) for name, array in arrays.items()])
    whole = len(fields) == len(arrays)
    nbytes = sum(array.nbytes for array in arrays.values()) if whole else None
    return Source(load=load, count=count, fields=fields if whole else None, nbytes=nbytes, about=about)


def _shape(array: Any) -> tuple[int, ...]:
    """Of anything with a length, at least that."""
    return tuple(array.shape) if hasattr(array, "shape") else (len(array),) if hasattr(array, "__len__") else ()


def _count(shapes: Mapping[str, tuple[int, ...]]) -> int:
    """The number of samples of arrays of these shapes."""
    single = next((name for name, shape in shapes.items() if not shape), None)
    if single is not None:
        raise ArgumentError(f"{single!r} is a single number and has no samples")
    lengths = {name: shape[0] for name, shape in shapes.items()}
    if len(set(lengths.values())) != 1:
        told = ", ".join(f"{name!r} has {length}" for name, length in lengths.items())
        raise ArgumentError(f"arrays with equally many samples make a dataset: {told or 'there are none'}")
    return next(iter(lengths.values()))


@dataclass(frozen=True)
class Header:
    """The content of a .npy file."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    by_columns: bool
    start: int
    """Bytes before the first number."""

    @property
    def row_bytes(self) -> int:
        return math.prod(self.shape[1:]) * self.dtype.itemsize


def numpy_file(path: str, session: Session) -> Source:
    """One array, or an archive of several: by its name, else by what is in it."""
    source = EngineFile(session, path)
    is_archive = path.endswith(".npz") or (not path.endswith(".npy") and source.head().startswith(b"PK"))
    return npz(source, session) if is_archive else npy(source, session)


def npy(source: EngineFile, session: Session) -> Source:
    path = source.path
    header = _header(source, path, path)
    with Told(path):
        count = _count({"x": header.shape})
    _check_length(path, path, header, source.size)
    in_columns = header.by_columns and len(header.shape) > 1 and min(header.shape) > 0

    def rows(order: Order) -> Iterator[Named]:
        found = _by_columns(source, header, order, session.memory) if in_columns else _by_rows(source, header, order)
        return ((None, {"x": row}) for block in found for row in block)

    return Source(rows=rows, count=count, fields={"x": (header.dtype, header.shape[1:])})


def _check_length(where: str, path: str, header: Header, actual: int) -> None:
    end = header.start + math.prod(header.shape) * header.dtype.itemsize
    if actual < end:
        told = f"{where}: {actual} bytes, where an array of shape {header.shape} and {header.dtype} ends at byte {end}"
        raise TruncatedError(told, object=path, expected=end, actual=actual)


def _by_rows(source: EngineFile, header: Header, order: Order) -> Iterator[npt.NDArray[Any]]:
    """Rows in an order, many of them at a time."""
    size = header.row_bytes
    at_once = max(1, min(ROWS, CHUNK_BYTES // max(1, size)))
    for first in range(0, len(order), at_once):
        numbers = np.asarray(order[first : first + at_once], np.uint64)
        # A new one each time, since the caller may keep rows.
        block = np.empty(len(numbers) * size, np.uint8)
        if size:
            source.reader.read(numbers * np.uint64(size) + np.uint64(header.start), size, block)
        yield block.view(header.dtype).reshape(len(numbers), *header.shape[1:]) if size else _nothing(header, len(numbers))


def _nothing(header: Header, count: int) -> npt.NDArray[Any]:
    return np.empty((count, *header.shape[1:]), header.dtype)


def _by_columns(source: EngineFile, header: Header, order: Order, memory: int) -> Iterator[npt.NDArray[Any]]:
    """Blocks of rows that follow one another: of each column, the piece that they have of it."""
    if not isinstance(order, range):
        raise ArgumentError(
            f"{source.path}: an array in column-major order cannot be read in random order; pack it as it is, "
            "and then that dataset with shuffle="
        )
    count, width = header.shape[0], header.dtype.itemsize
    columns = header.row_bytes // width
    # The block, and the rows that are made of it.
    at_once = max(1, min(count, max(CHUNK_BYTES, memory // COLUMNS_PART) // (2 * header.row_bytes)))
    source.reader.hold(2 * at_once * header.row_bytes + 8 * columns)
    starts = header.start + np.arange(columns, dtype=np.uint64) * np.uint64(count * width)
    for first in range(order.start, order.stop, at_once):
        rows = min(at_once, order.stop - first)
        block = np.empty(columns * rows * width, np.uint8)
        source.reader.read(starts + np.uint64(first * width), rows * width, block)
        # The first index is the fastest there, of rows as well.
        found = block.view(header.dtype).reshape(*reversed(header.shape[1:]), rows)
        yield np.ascontiguousarray(found.T)


def npz(source: EngineFile, session: Session) -> Source:
    """Members are read side by side, a sample at a time, so that memory does not depend on their length."""
    path, head = source.path, source.head()
    if head and not head.startswith(b"PK"):
        raise UnsupportedError(f"{path}: no .npz file; it seems to be {seems(head)}", object=path)
    with Told(path, "its list of members", source.size), zipfile.ZipFile(source) as archive:
        members = {info.filename.removesuffix(".npy"): info for info in archive.infolist() if not info.is_dir()}
        headers = {}
        for field, info in members.items():
            where = f"{path}: member {info.filename!r}"
            if info.flag_bits & 1:
                raise UnsupportedError(f"{where} is encrypted", object=path)
            with Told(path, info.filename, info.header_offset), archive.open(info) as file:
                headers[field] = _sequential(_header(file, path, where), path, where)
            _check_length(where, path, headers[field], info.file_size)
    with Told(path):
        count = _count({field: header.shape for field, header in headers.items()})
    buffered = min(MEMBER_BYTES, max(4096, MEMBERS_BYTES // len(members)))

    def samples(start: int) -> Iterator[Named]:
        with ExitStack() as stack:
            files = {}
            for field, info in members.items():
                with Told(path, info.filename, info.header_offset):
                    # Each has a place of its own, so that what is read ahead of one member is not in another's way.
                    raw = io.BufferedReader(EngineFile(session, path), buffered)
                    archive = stack.enter_context(zipfile.ZipFile(raw))
                    files[field] = stack.enter_context(archive.open(info))
                    files[field].read(headers[field].start)
            for number in range(count):
                sample = {}
                for field, file in files.items():
                    with Told(path, f"{members[field].filename}, row {number}", members[field].header_offset):
                        sample[field] = _item(file, headers[field])
                if number >= start:
                    yield None, sample

    fields = {field: (header.dtype, header.shape[1:]) for field, header in headers.items()}
    nbytes = sum(header.row_bytes * count for header in headers.values())
    return Source(samples=samples, count=count, fields=fields, nbytes=nbytes)


def _header(file: Any, path: str, where: str) -> Header:
    """Shape and dtype of what follows.

    Raises
    ------
    UnsupportedError (no .npy file, or none of numbers), CorruptError.
    """
    head = file.read(len(MAGIC) + 2)
    if head[: len(MAGIC)] != MAGIC[: len(head)]:
        raise UnsupportedError(f"{where}: no .npy file; it seems to be {seems(head + file.read(504))}", object=path)
    if len(head) < len(MAGIC) + 2:
        raise CorruptError(f"{where}: {'it ends within its header' if head else 'empty'}", object=path, offset=len(head))
    # Version 3 differs from 2 by letters that only names of fields have.
    read = {
        1: np.lib.format.read_array_header_1_0,
        2: np.lib.format.read_array_header_2_0,
        3: np.lib.format.read_array_header_2_0,
    }
    if head[6] not in read:
        raise UnsupportedError(f"{where}: version {head[6]} of NumPy's format", object=path)
    text = _Counted(file, len(head))
    with Told(path, "its header" if where == path else f"the header of {where.removeprefix(path + ': ')}", len(head)):
        shape, by_columns, dtype = read[head[6]](text)  # type: ignore[arg-type]
        if min(shape, default=0) < 0:
            raise ValueError(f"an array of shape {shape}")
    kind = "Python objects" if dtype.hasobject else "records" if dtype.names else f"{dtype}"
    if dtype.kind not in "biufc" or dtype.itemsize > (16 if dtype.kind == "c" else 8):
        raise UnsupportedError(
            f"{where}: an array of {kind}, where a field has numbers of 1 to 8 bytes, or complex ones", object=path
        )
    return Header(shape, dtype, by_columns, text.at)


class _Counted:
    """A file that counts the bytes read."""

    def __init__(self, file: Any, at: int) -> None:
        self.file, self.at = file, at

    def read(self, size: int) -> bytes:
        data: bytes = self.file.read(size)
        self.at += len(data)
        return data


def _sequential(header: Header, path: str, where: str) -> Header:
    if header.by_columns and len(header.shape) > 1 and min(header.shape) > 0:
        raise UnsupportedError(
            f"{where}: an array in column-major order in an archive cannot be read a sample at a time; save it as .npy, or as "
            "np.ascontiguousarray has it",
            object=path,
        )
    return header


def _item(file: IO[bytes], header: Header) -> Any:
    size = header.row_bytes
    data = file.read(size)
    if len(data) < size:
        raise ValueError(f"it ends behind {len(data)} bytes of {size}")
    return np.frombuffer(data, header.dtype, math.prod(header.shape[1:])).reshape(header.shape[1:])
