"""Streams: data that is written once, in order, and read in order, any number of times.

Data that a program produces once and reads several times (parsed, normalised, shuffled rows of a training set, the output of one
stage for the next) need not be kept in memory: a stream prefetches it::

    from outcore.streams import StreamStore

    store = StreamStore("/mnt/ssd/cache.store", size="200GiB")      # a file, created on first use, or a block device
    with store.create("rows") as writer:
        for part in parts:
            writer.write_array(part)                                # NumPy arrays, the same number of columns each
    for epoch in range(20):
        for rows in store.open("rows"):                             # NumPy arrays, in memory that the stream lends
            step(rows)
    store.destroy("rows")

A stream is made of blocks of 4 MiB, each with a checksum. A writer is some blocks behind its caller and a reader some blocks
ahead of it, with direct I/O and within the memory budget of the session: one block of memory is reserved for a writer and two for
a reader, more is taken while it is unused. Bytes are not copied on the way: a writer lends the memory of its block
(`StreamWriter.buffer`), a reader that of the blocks that it has read.

After Bae et al., SSDStreamer: Specializing I/O Stack for Large-Scale Machine Learning (IEEE Micro 39(5), 2019).
"""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import os
import pickle
import struct
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from . import _native
from ._session import Session, default_session
from ._settings import PathLike, full_path
from ._units import parse_bytes
from .errors import ArgumentError, ClosedError, CorruptError, OutcoreError

if TYPE_CHECKING:
    import pyarrow as pa
    from typing_extensions import Buffer, Self

__all__ = ["Records", "StreamInfo", "StreamReader", "StreamStore", "StreamWriter"]


def __dir__() -> list[str]:
    return sorted(__all__)


Bytes = npt.NDArray[np.uint8]
Compression = Literal["lz4", "zstd"]

BLOCK = "4MiB"
ALIGNED = 64
"""Arrays inside of records begin at addresses that are multiples of it."""

_PICKLED = struct.Struct("<II")
_PART = struct.Struct("<QQ")


@dataclass(frozen=True)
class StreamInfo:
    """State of a stream.

    Attributes
    ----------
    name : str
    state : {"whole", "being written", "unfinished"}
        Only whole streams can be read. One that is unfinished was being written when its writer died, or was found damaged.
    nbytes, record_count : int
        Bytes and records written; 0 records for a stream of bytes.
    stored_bytes : int
        Bytes that it takes in the store.
    block_bytes : int
    compression : {None, "lz4", "zstd"}
    about : dict
        Metadata of its writer.
    """

    name: str
    state: str
    nbytes: int
    record_count: int
    stored_bytes: int
    block_bytes: int
    compression: Compression | None
    about: dict[str, Any]

    @staticmethod
    def _of(found: dict[str, Any]) -> StreamInfo:
        return StreamInfo(**{**found, "about": _about(found["about"])})


class StreamStore:
    """Named streams in one file or block device, which may hold other objects too.

    Streams are made with `create` and read with `open`. Leaving its context, or `close`, closes the file.

    May be used from any thread. A store is open in one process that writes, or in any number of processes that
    read. A path that this process has open already is the same store.

    Parameters
    ----------
    path : path
        A file or block device that was formatted (also by `outcore format`).
    size : int or str, optional
        Bytes of the file, which is created and formatted if it does not exist (`"200GiB"`). Its space is set aside at once.
    session : Session, optional
        Whose memory budget streams use. Default: the default session.
    read_only : bool
        Open it to read, as other processes may too.

    Raises
    ------
    MissingError, UnsupportedError (not formatted), CorruptError, LockedError, NoSpaceError, DeniedError.
    """

    def __init__(
        self, path: PathLike, size: int | str | None = None, *, session: Session | None = None, read_only: bool = False
    ) -> None:
        self.path = full_path(path)
        self._session = session or default_session()
        if size is not None and not read_only and not os.path.exists(self.path):
            _native.store_format(self.path, parse_bytes(size, "size"))
        self._store: _native.StreamStore | None = _native.StreamStore(self._session._inner, self.path, read_only)
        self._writers: weakref.WeakSet[StreamWriter] = weakref.WeakSet()

    @property
    def _opened(self) -> _native.StreamStore:
        if self._store is None:
            raise ClosedError(f"{self.path}: the store is closed")
        return self._store

    def close(self) -> None:
        """Lets go of the store, which others may then write once the streams that are read have been closed too.

        Streams still being written are discarded; a `ResourceWarning` names each of them. Closing it again has no effect.
        """
        self._store = None
        for writer in list(self._writers):
            writer._lose()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if kind is not None:
            for writer in list(self._writers):
                writer._give_up()
        self.close()

    def create(
        self,
        name: str,
        *,
        overwrite: bool = False,
        compression: Compression | None = None,
        block: int | str = BLOCK,
        ahead: int = 4,
        frames: Sequence[Bytes] = (),
        about: dict[str, Any] | None = None,
    ) -> StreamWriter:
        """Begins a stream, which gets its name when it is closed.

        Parameters
        ----------
        name : str
            Relative, with `/` between its parts.
        overwrite : bool
            Replace an existing stream of the name when the new one is complete. Otherwise an existing name is an error.
        compression : {None, "lz4", "zstd"}
            Of data, in pieces of 512 KiB.
        block : int or str
            Bytes of a block, a multiple of 4096.
        ahead : int
            Blocks in memory at once, at most. One is reserved, for reading two, which is the least; the others are there while
            their memory is unused.
        frames : sequence of numpy.ndarray
            Memory for the blocks instead: contiguous arrays of uint8, each at least a block long, at addresses that are multiples
            of 4096 (as those of `mmap`). They are the stream's until it was closed, and charged to the session's budget.
        about : dict, optional
            What `StreamInfo.about` is to say; JSON.

        Raises
        ------
        ExistsError, LockedError, ObjectNameError, OverBudgetError, NoSpaceError.
        """
        block_bytes = parse_bytes(block, "block")
        if block_bytes >= 1 << 32:
            raise ArgumentError(f"block must be 1GiB at most, not {block!r}")
        native = self._opened.write(name, _ahead(ahead), list(frames), block_bytes, compression or "none", overwrite)
        writer = StreamWriter(native, dict(about or {}), f"{self.path}/{name}")
        self._writers.add(writer)
        return writer

    def open(self, name: str, *, destroy: bool = False, ahead: int = 4, frames: Sequence[Bytes] = ()) -> StreamReader:
        """Opens a stream at its beginning.

        Parameters
        ----------
        name : str
        destroy : bool
            Remove the stream now, and free its space as it is read.
        ahead, frames
            As for `create`.

        Raises
        ------
        MissingError; InterruptedWriteError for a stream that was not finished; LockedError, to destroy one that is being read;
        OverBudgetError.
        """
        return StreamReader(self._opened.read(name, _ahead(ahead, 2), list(frames), destroy))

    def destroy(self, name: str) -> None:
        """Removes a stream, complete or not. Its space is reused once no reader has it open."""
        self._opened.destroy(name)

    def rename(self, name: str, new: str) -> None:
        """Renames a stream atomically, also to a name that exists."""
        self._opened.rename(name, new)

    def info(self, name: str) -> StreamInfo:
        """State of a stream."""
        return StreamInfo._of(self._opened.info(name))

    def streams(self) -> list[StreamInfo]:
        """All streams, by name."""
        return [StreamInfo._of(found) for found in self._opened.streams()]

    def __iter__(self) -> Iterator[str]:
        return (found.name for found in self.streams())

    def __contains__(self, name: object) -> bool:
        return any(found == name for found in self)

    @property
    def free_bytes(self) -> int:
        """Bytes that may still be written."""
        return self._opened.free_bytes()

    def __repr__(self) -> str:
        return f"<streams in {self.path}>"


class StreamWriter:
    """A stream that is being written. Leaving its `with` block, or `close`, completes it durably. After an error in the `with`
    block, or without `close`, there is no stream; the latter warns of the loss (`ResourceWarning`).
    """

    def __init__(self, native: _native.StreamWriter, about: dict[str, Any], path: str) -> None:
        self._native = native
        self._about = about
        self._path = path
        self._row: tuple[Any, list[int]] | None = None
        self._closed = False
        self._process = os.getpid()

    # bytes

    def write(self, data: Buffer) -> None:
        """Copies the bytes of any buffer."""
        self._native.write(_flat(data), 1)

    def buffer(self, least: int = 1) -> memoryview:
        """The memory of the next bytes, at least `least` of them, to be filled in place; `advance` counts those that were filled.

        It is the block's own, so nothing is copied. Drop it, and whatever was made of it, before the writer goes on.

        Raises
        ------
        ArgumentError, if a block has room for fewer. NoSpaceError.
        """
        return self._native.buffer(least).data

    def fileno(self) -> int:
        """A descriptor for `select`, `poll` and event loops: readable while a write of a few bytes would not wait for the device.

        It belongs to the stream, and closes with it. Do not read from it.
        """
        return self._native.fileno()

    def advance(self, count: int) -> None:
        """Counts the first `count` bytes of `buffer` as written.

        Raises
        ------
        BufferError, while the buffer is in use.
        """
        self._native.advance(count)

    def end_block(self) -> None:
        """Starts a new block for the next data."""
        self._native.end_block()

    # arrays

    def write_array(self, rows: npt.ArrayLike) -> None:
        """Copies rows in: an array with the same dtype and the same shape but for the first dimension each time. No row lies in
        two blocks, so that `StreamReader.arrays` has them without a copy.

        Raises
        ------
        ArgumentError for another shape or dtype than before, and for rows longer than a block.
        """
        array = np.asarray(rows)
        if array.ndim == 0 or array.dtype.hasobject:
            raise ArgumentError(f"rows must be an array of one dimension or more, not {array.ndim} of {array.dtype}")
        row: tuple[Any, list[int]] = (np.lib.format.dtype_to_descr(array.dtype), list(array.shape[1:]))
        if self._row is None:
            self._row = row
            self._about = {**self._about, "dtype": row[0], "shape": row[1]}
        if row != self._row:
            raise ArgumentError(f"rows of {row[1]} {row[0]} in a stream of rows of {self._row[1]} {self._row[0]}")
        length = array.dtype.itemsize * int(np.prod(array.shape[1:]))
        if length and array.size:
            self._native.write(_flat(array), length)

    # records

    def end_record(self) -> None:
        """Ends a record: the bytes since the last one. It may be longer than a block."""
        self._native.end_record()

    def write_record(self, record: Buffer) -> None:
        """Writes one record. Several are written faster by `write_records`."""
        self._native.write_record(record if isinstance(record, bytes) else _flat(record))

    def write_records(self, records: Iterable[Buffer] | npt.NDArray[Any] | pa.BinaryArray) -> None:
        """Records: those of an iterable of `bytes` (or other buffers), the rows of an array of two dimensions or the elements of
        one, or the elements of a pyarrow array of binary or string. The last two at the speed of memory.
        """
        if isinstance(records, np.ndarray):
            flat = np.ascontiguousarray(records)
            if flat.ndim == 0 or flat.dtype.hasobject:
                raise ArgumentError(f"records must be the rows of an array, not {flat.ndim} dimensions of {flat.dtype}")
            length = flat.dtype.itemsize * int(np.prod(flat.shape[1:]))
            if flat.size:
                self._native.write_rows(_flat(flat), length)
        elif hasattr(records, "buffers") and hasattr(records, "null_count"):
            self._native.write_slices(*_slices(records))
        else:
            self._native.write_records(records)

    def dump(self, value: object) -> None:
        """A Python object, pickled, as one record. Arrays in it are copied once, and `StreamReader.load` copies none."""
        parts: list[pickle.PickleBuffer] = []
        head = pickle.dumps(value, protocol=5, buffer_callback=parts.append)
        bodies = [np.frombuffer(head, np.uint8), *(np.frombuffer(part.raw(), np.uint8) for part in parts)]
        self._native.keep_together(sum(ALIGNED + _PART.size + body.nbytes for body in bodies) + ALIGNED)
        start = self._native.alignment() % ALIGNED
        at = _PICKLED.size + _PART.size * len(bodies)
        places = []
        for body in bodies:
            at += -(start + at) % ALIGNED
            places.append(_PART.pack(at, body.nbytes))
            at += body.nbytes
        written = 0

        def put(data: Any) -> None:
            nonlocal written
            self._native.write(data, 1)
            written += len(data)

        put(_PICKLED.pack(len(bodies), 0) + b"".join(places))
        for body in bodies:
            put(bytes(-(start + written) % ALIGNED))
            put(body)
        self.end_record()

    def write_batch(self, batch: pa.RecordBatch) -> None:
        """An Arrow record batch, in the IPC format, as one record. `StreamReader.batches` has it without a copy."""
        import pyarrow as pa

        size = pa.MockOutputStream()
        _write_ipc(pa, size, batch)
        length = size.size()
        try:
            memory = self._native.buffer(length + ALIGNED)
        except ArgumentError:
            # It spans several blocks.
            lead = ALIGNED - self._native.alignment() % ALIGNED
            sink = pa.BufferOutputStream()
            _write_ipc(pa, sink, batch)
            self._native.write(bytes([lead]) + bytes(lead - 1), 1)
            self._native.write(_flat(sink.getvalue()), 1)
        else:
            lead = ALIGNED - memory.ctypes.data % ALIGNED
            memory[:lead] = lead
            sink = pa.FixedSizeBufferWriter(pa.py_buffer(memory[lead : lead + length]))
            _write_ipc(pa, sink, batch)
            sink.close()
            del sink, memory
            self._native.advance(lead + length)
        self.end_record()

    # end

    @property
    def nbytes(self) -> int:
        """Bytes written so far."""
        return self._native.so_far()[1]

    @property
    def record_count(self) -> int:
        """Records written so far."""
        return self._native.so_far()[2]

    def close(self) -> None:
        """Completes the stream durably. Closing it again has no effect."""
        if self._closed:
            return
        self._native.set_about(json.dumps(self._about).encode() if self._about else b"")
        try:
            self._native.finish()
        except (BufferError, KeyboardInterrupt):
            # Not an end: lent memory can be dropped and the wait repeated.
            raise
        except BaseException:
            self._closed = True
            raise
        self._closed = True

    def discard(self) -> None:
        """Discards the stream."""
        self._native.discard()
        self._closed = True

    def _give_up(self) -> None:
        # Clearing the traceback drops its references to the buffer, and then the writer.
        with contextlib.suppress(BufferError):
            self._closed = True
            self._native.discard()

    def _lose(self, warn: Callable[..., None] = warnings.warn) -> None:
        # A forked child must not touch its copy.
        if self._closed or self._process != os.getpid():
            return
        with contextlib.suppress(OutcoreError):
            warn(f"{self._path}: the stream was not closed, its {self.nbytes} bytes are lost", ResourceWarning, 3, self)
        self._give_up()

    def __del__(self) -> None:
        self._lose()

    def as_file(self) -> io.RawIOBase:
        """A binary file, for whatever writes to files. Closing it closes the stream; what leaves its `with` by an error, or never
        closes it, leaves no stream.
        """
        return _Sink(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if kind is None:
            self.close()
        else:
            self._give_up()


class Records(Sequence[memoryview]):
    """Records that lie one after another in memory: a sequence of memoryviews, or `data` and `offsets` to use them all at once.

    Attributes
    ----------
    data : numpy.ndarray of uint8
        What has the bytes of all of them, read-only.
    offsets : numpy.ndarray of uint32, shape (len + 1,)
        Record `i` is `data[offsets[i]:offsets[i + 1]]`.
    """

    def __init__(self, data: Bytes, offsets: Bytes) -> None:
        self.data = data
        self.offsets: npt.NDArray[np.uint32] = offsets.view("<u4")

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[at] for at in range(*index.indices(len(self)))]
        at = index + len(self) if index < 0 else index
        if not 0 <= at < len(self):
            raise IndexError(index)
        return self.data.data[self.offsets[at] : self.offsets[at + 1]]

    def __iter__(self) -> Iterator[memoryview]:
        ends = self.offsets.tolist()
        return map(self.data.data.__getitem__, map(slice, ends, itertools.islice(ends, 1, None)))

    def to_bytes(self) -> list[bytes]:
        """Copies of them."""
        return _native.split_records(self.data, self.offsets)

    def to_numpy(self, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        """Records of equal length as elements, without a copy.

        Raises
        ------
        ArgumentError, if one has another length than the dtype.
        """
        kind = np.dtype(dtype)
        if np.any(np.diff(self.offsets) != kind.itemsize):
            raise ArgumentError(f"not every record has the {kind.itemsize} bytes of {kind}")
        return self.data[self.offsets[0] : self.offsets[-1]].view(kind)

    def to_arrow(self) -> pa.BinaryArray:
        """An Arrow array of binary, without a copy.

        Raises
        ------
        ArgumentError, for a record of 2 GiB or more.
        """
        import pyarrow as pa

        if self.offsets[-1] > np.iinfo(np.int32).max:
            raise ArgumentError("a record of 2 GiB or more has no place in an Arrow array of binary")
        buffers = [None, pa.py_buffer(self.offsets), pa.py_buffer(self.data)]
        return pa.Array.from_buffers(pa.binary(), len(self), buffers)


class StreamReader:
    """A stream from its beginning to its end, once. Iterating it gives arrays, if it was written as arrays, else its blocks.

    Lent blocks are read-only and do not change; their memory is reused when they, and all arrays made of them, have been dropped.
    Holding more than `ahead` blocks, or more than the budget allows, raises LentError.
    """

    def __init__(self, native: _native.StreamReader) -> None:
        self._native = native
        self.name, self.nbytes, self.record_count, about = native.about()
        self.about: dict[str, Any] = _about(about)
        self._left = memoryview(b"")
        self._records: Iterator[memoryview] = iter(())

    def fileno(self) -> int:
        """A descriptor for `select`, `poll` and event loops: readable while the next block or records can be had
        without waiting for the device. What `read` has left over of a block can be had anyway.

        It belongs to the stream, and closes with it. Do not read from it.
        """
        return self._native.fileno()

    def blocks(self) -> Iterator[memoryview]:
        """The bytes, as many at once as lie together."""
        if self._left:
            left, self._left = self._left, memoryview(b"")
            yield left
            del left
        for block in self._blocks():
            yield block.data
            del block

    def _blocks(self) -> Iterator[Bytes]:
        while True:
            block = self._native.next_block()
            if block is None:
                return
            yield block
            del block

    def arrays(self, dtype: npt.DTypeLike | None = None, shape: Sequence[int] | None = None) -> Iterator[npt.NDArray[Any]]:
        """Rows, as many at once as lie together, without a copy: what `StreamWriter.write_array` was given, or bytes as rows of
        `shape` and `dtype`.

        Raises
        ------
        ArgumentError, if that is not known, or a block has a part of a row.
        """
        if dtype is None:
            if "dtype" not in self.about:
                raise ArgumentError(f"{self.name} was not written as arrays; give dtype and shape")
            dtype = _dtype(self.about["dtype"])
        kind, row = np.dtype(dtype), tuple(self.about.get("shape", ()) if shape is None else shape)
        length = kind.itemsize * int(np.prod(row))
        for block in self._blocks():
            if length == 0 or len(block) % length:
                raise ArgumentError(f"{self.name}: a block has {len(block)} bytes, not a multiple of rows of {length}")
            yield block.view(kind).reshape(-1, *row)
            del block

    def record_batches(self) -> Iterator[Records]:
        """Records, as many at once as lie together; one that lies in several blocks is put together, and comes alone."""
        while True:
            found = self._native.next_records()
            if found is None:
                return
            yield Records(*found)
            del found

    def records(self) -> Iterator[memoryview]:
        """The records one by one. `record_batches` is faster for short ones."""
        while True:
            # The next iterator continues with the rest of the last one.
            yield from self._records
            self._records = iter(())
            batch = next(self.record_batches(), None)
            if batch is None:
                return
            self._records = iter(batch)
            del batch

    def load(self) -> Iterator[Any]:
        """The objects that `StreamWriter.dump` was given. Their arrays are in memory that the stream lends, and read-only.

        As with every pickle, use it only on trusted streams.
        """
        for record in self.records():
            yield _unpickled(self.name, record)
            del record

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The Arrow record batches that `StreamWriter.write_batch` was given, in memory that the stream lends."""
        import pyarrow as pa

        for record in self.records():
            yield from pa.ipc.open_stream(pa.py_buffer(record[record[0] :]))
            del record

    def read(self, count: int = -1) -> bytes:
        """Up to `count` bytes, all that are left without a count; none at the end."""
        if count < 0:
            return b"".join(map(bytes, self.blocks()))
        found = bytearray(count)
        return bytes(memoryview(found)[: self.readinto(found)])

    def readinto(self, data: Buffer) -> int:
        """Fills memory with the next bytes; how many there were."""
        view = memoryview(data).cast("B")
        filled = 0
        while filled < len(view):
            if not self._left:
                self._left = memoryview(b"")
                block = self._native.next_block()
                if block is None:
                    break
                self._left = block.data
                del block
            count = min(len(self._left), len(view) - filled)
            view[filled : filled + count] = self._left[:count]
            self._left = self._left[count:]
            filled += count
        return filled

    def as_file(self) -> io.RawIOBase:
        """A binary file, for whatever reads files."""
        return _Source(self)

    def close(self) -> None:
        """Ends it early. Lent blocks stay valid."""
        self._left = memoryview(b"")
        self._native.close()

    def __iter__(self) -> Iterator[Any]:
        return self.arrays() if "dtype" in self.about else self.blocks()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Sink(io.RawIOBase):
    def __init__(self, writer: StreamWriter) -> None:
        self._writer = writer

    def writable(self) -> bool:
        return True

    def write(self, data: Buffer) -> int:
        view = memoryview(data).cast("B")
        self._writer.write(view)
        return len(view)

    def close(self) -> None:
        if not self.closed:
            super().close()
            self._writer.close()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if kind is not None:
            self._give_up()
        super().__exit__(kind, error, trace)

    def __del__(self) -> None:
        # A stream that was never closed is incomplete.
        if not self.closed:
            super().close()
            self._writer._lose()

    def _give_up(self) -> None:
        if not self.closed:
            super().close()
            self._writer._give_up()


class _Source(io.RawIOBase):
    def __init__(self, reader: StreamReader) -> None:
        self._reader = reader

    def readable(self) -> bool:
        return True

    def readinto(self, data: Buffer) -> int:
        return self._reader.readinto(data)

    def close(self) -> None:
        super().close()
        self._reader.close()


def _flat(data: Any) -> Any:
    """The bytes of an array or another buffer, copied only where they do not lie together."""
    if isinstance(data, bytes):
        return data
    if isinstance(data, np.ndarray):
        return np.ascontiguousarray(data).reshape(-1).view(np.uint8)
    try:
        return np.frombuffer(data, np.uint8)
    except (ValueError, BufferError):
        return np.frombuffer(memoryview(data).tobytes(), np.uint8)


def _slices(array: Any) -> tuple[Any, npt.NDArray[np.int64]]:
    """Data and offsets of a pyarrow array of binary or string."""
    import pyarrow as pa

    if array.null_count or not any(
        test(array.type) for test in (pa.types.is_binary, pa.types.is_string, pa.types.is_large_binary, pa.types.is_large_string)
    ):
        raise ArgumentError(f"records must be an array of binary or string without nulls, not {array.type}")
    _, offsets, data = array.buffers()
    wide = pa.types.is_large_binary(array.type) or pa.types.is_large_string(array.type)
    ends = np.frombuffer(offsets, np.int64 if wide else np.int32)[array.offset : array.offset + len(array) + 1]
    return _flat(data if data is not None else b""), ends.astype(np.int64)


def _write_ipc(pa: Any, sink: Any, batch: pa.RecordBatch) -> None:
    with pa.ipc.new_stream(sink, batch.schema) as stream:
        stream.write_batch(batch)


def _unpickled(name: str, record: memoryview) -> Any:
    try:
        count, _ = _PICKLED.unpack_from(record)
        places = [_PART.unpack_from(record, _PICKLED.size + _PART.size * at) for at in range(count)]
        head, *bodies = [record[begin : begin + length] for begin, length in places]
    except (struct.error, ValueError) as error:
        raise CorruptError(f"{name}: not a record made by dump", object=name, offset=0) from error
    return pickle.loads(head, buffers=bodies)


def _about(data: bytes) -> dict[str, Any]:
    try:
        found = json.loads(data or b"{}")
    except ValueError:
        found = {}
    return found if isinstance(found, dict) else {}


def _dtype(descr: Any) -> np.dtype[Any]:
    """A dtype from what JSON has made of its description."""
    return np.lib.format.descr_to_dtype(_tuples(descr))


def _tuples(descr: Any) -> Any:
    if isinstance(descr, str):
        return descr
    named = [(tuple(name) if isinstance(name, list) else name, _tuples(kind), *rest) for name, kind, *rest in descr]
    return [(name, kind, *map(tuple, shape)) for name, kind, *shape in named]


def _ahead(ahead: int, least: int = 1) -> int:
    if isinstance(ahead, bool) or not isinstance(ahead, int) or not least <= ahead <= 1 << 16:
        raise ArgumentError(f"ahead must be a number of blocks, at least {least}, not {ahead!r}")
    return ahead
