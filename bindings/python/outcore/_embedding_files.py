"""Tables that are written: packed, made to change, or exported for other programs."""

from __future__ import annotations

import contextlib
import errno
import io
import json
import os
import tempfile
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from . import _native
from ._embedding import Optimizer, Table, _look_up
from ._embedding_calls import SAFETENSORS, Feature, Rows, dtype_named, integers
from ._embedding_placement import Placement
from ._files import refusal
from ._session import Session, default_session
from ._settings import PathLike, full_path
from .errors import ArgumentError, CorruptError, DTypeError, NoSpaceError, OutcoreError, ShapeError

PACKED_BYTES = 32 << 20
"""Rows that are packed or exported at a time, as float32."""

ORDERED_ROWS = 1 << 20
"""Rows of a placement that are brought into the order of their slots at a time."""

CHECKPOINTS = (".pt", ".pth", ".bin", ".ckpt")
"""Endings of PyTorch's own files."""


def pack(
    source: Table | PathLike | Sequence[PathLike] | npt.NDArray[Any],
    path: PathLike,
    encoding: str | None = None,
    *,
    tensor: str | None = None,
    placement: Placement | Mapping[str, npt.ArrayLike] | npt.ArrayLike | None = None,
    session: Session | None = None,
) -> Table:
    """Writes a packed table: pages of 4 KiB with checksums, of which a row is one read.

    Parameters
    ----------
    source : Table, path, list of paths or array
        What `Table.open` takes, a checkpoint of PyTorch (`.pt`, `.pth`, `.bin`, `.ckpt`: a state of modules, read by
        `torch.load(weights_only=True)`), or a NumPy array of rows.
    path : path
        Of the packed table: a file, or an object of a formatted store.
    encoding : str, optional
        `"float32"`, `"float16"`, `"bfloat16"`, `"float8_e4m3fn"`, `"float8_e5m2"`, `"int8"` or `"int4"`. Default: as the source.
    tensor : str, optional
        Its name in safetensors files and checkpoints, where they have several matrices.
    placement : Placement, mapping, or array of int, optional
        What `outcore.embedding.placement` returns, or the slot of each row: rows in neighbouring slots share a page. Replicas
        are packed too, of a `Placement` or of a mapping that has `slots` and `replicas` as it has them (`np.load` of what
        `outcore embed place --replicas` writes); their `rows_a_page` is that of the packed table.

    Returns
    -------
    Table
        The packed one, open.

    Raises
    ------
    Those of `Table.open`; ShapeError, ArgumentError, NoSpaceError.
    """
    session = session or default_session()
    rows = _Rows.of(source, tensor, session).within(session)
    encoding, name = encoding or rows.encoding, full_path(path)
    encoding = SHORT.get(encoding, encoding)
    slots, replicas = _placed(placement)
    if slots is None or replicas is None:
        writer = _native.RowWriter(session._inner, name, rows.count, rows.dim, encoding, slots)
    else:
        if len(slots) != rows.count:
            raise ArgumentError(f"{name}: a placement of {len(slots)} rows for a table of {rows.count}")
        writer = _native.RowWriter.placed(session._inner, name, rows.dim, encoding, slots, replicas)
    if slots is None:
        _write(writer, rows, [range(rows.count)], encoding)
    else:
        with contextlib.closing(_by_slot(slots, replicas, session)) as orders:
            _write(writer, rows, orders, encoding)
    return Table.open(path, session=session)


def _by_slot(
    slots: npt.NDArray[np.uint32], replicas: npt.NDArray[np.int64] | None, session: Session
) -> Generator[npt.NDArray[Any]]:
    """Numbers of rows in the order of their slots, then those of the pages of replicas."""
    held = session._engine.reserve("the order of rows", max(slots.nbytes, 1))
    try:
        order = np.empty_like(slots)
        for first in range(0, len(slots), ORDERED_ROWS):
            of_rows = slots[first : first + ORDERED_ROWS]
            order[of_rows] = np.arange(first, first + len(of_rows), dtype=np.uint32)
        yield order
        if replicas is not None:
            yield replicas[replicas >= 0]
    finally:
        held.release()


SHORT = {"int8": "int8_scale_first", "int4": "int4_scale_first"}
"""Encodings that have a shorter name."""


def _placed(placement: Any) -> tuple[npt.NDArray[np.uint32] | None, npt.NDArray[np.int64] | None]:
    """The slot of each row, and pages x rows of replicas where there are some."""
    if placement is None:
        return None, None
    slots: Any = placement
    replicas: Any = None
    if isinstance(placement, Placement):
        slots, replicas = placement.slots, placement.replicas
    elif isinstance(placement, Mapping):
        missing = {"slots", "replicas"} - set(placement)
        if missing:
            raise ArgumentError(f"a placement has slots and replicas; there are no {' and no '.join(sorted(missing))}")
        slots, replicas = placement["slots"], placement["replicas"]
    slots = np.ascontiguousarray(slots, np.uint32)
    if replicas is None or np.size(replicas) == 0:
        return slots, None
    found = np.ascontiguousarray(integers(replicas, "replicas"), np.int64)
    if found.ndim != 2:
        raise ShapeError(f"replicas of shape {found.shape}, which are not pages x rows")
    if (found[:, 1:] >= 0)[found[:, :-1] < 0].any():
        raise ArgumentError("the rows of a page of replicas come before its -1")
    return slots, found


def create(
    source: Table | PathLike | Sequence[PathLike] | npt.NDArray[Any] | tuple[int, int],
    path: PathLike,
    optimizer: Optimizer | None = None,
    *,
    init: Callable[[npt.NDArray[np.int64]], npt.ArrayLike] | None = None,
    tensor: str | None = None,
    session: Session | None = None,
) -> None:
    """Makes a table that changes: it is trained or updated by one writer, and others read the versions that it commits.

    Parameters
    ----------
    source : Table, path, list of paths, array, or a shape
        What `pack` takes, or (rows, elements) of a table that `init` fills.
    path : path
        Of the table: a folder, in a folder of files.
    optimizer : {"sgd", "rowwise_adagrad", "adam"}, optional
        There is room for its state beside each row: nothing, one number, two for each element.
    init : callable, optional
        Gives rows by their numbers, as float32: n x elements. Default: zeros.
    tensor : str, optional
        As of `pack`.

    Raises
    ------
    Those of `pack`.
    """
    session = session or default_session()
    if isinstance(source, tuple) and all(isinstance(size, Integral) for size in source):
        rows = _Rows.filled(cast(tuple[int, int], source), init)
    else:
        rows = _Rows.of(cast(Any, source), tensor, session)
    rows.within(session)
    encoding = "float32" if optimizer else rows.encoding
    writer = _native.RowWriter.versioned(session._inner, full_path(path), rows.count, rows.dim, encoding, optimizer)
    _write(writer, rows, [range(rows.count)], encoding)


def export(
    source: Table | PathLike | Sequence[PathLike],
    path: PathLike,
    *,
    tensor: str = "weight",
    dtype: npt.DTypeLike | None = None,
    session: Session | None = None,
) -> None:
    """Writes the rows of a table, decoded, as a matrix that other programs read.

    Parameters
    ----------
    source : Table, path or list of paths
    path : path
        A `.npy` or `.safetensors` file, or a checkpoint of PyTorch (`.pt`, `.pth`), for which the rows are written to the scratch
        folder first. A file that has the name is replaced when the new one is whole.
    tensor : str
        The name of the tensor in a safetensors file or a checkpoint.
    dtype : dtype, optional
        float32, float16 or bfloat16. Default: the table's, float32 for quantized rows.
    """
    session = session or default_session()
    rows = _Rows.of(source, None, session).within(session)
    if rows.table is None:
        raise ArgumentError(f"{source!r} is exported from a table, which `pack` makes of it")
    kind = dtype_named(dtype) or rows.table.dtype
    name, ending = full_path(path), os.path.splitext(os.fsdecode(path))[1]
    if ending not in (".npy", ".safetensors", ".pt", ".pth"):
        raise ArgumentError(f"{name}: a table is exported to a .npy, .safetensors, .pt or .pth file")
    unfinished = f"{name}.{os.getpid()}.unfinished"
    try:
        if ending in CHECKPOINTS:
            _write_checkpoint(unfinished, tensor, kind, rows, str(session.info()["scratch"]))
        else:
            _write_file(unfinished, _head(ending, tensor, kind, rows), kind, rows)
        os.replace(unfinished, name)
    except OSError as error:
        if isinstance(error, OutcoreError):
            raise
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise NoSpaceError(f"{name}: no room for {rows.count} rows", object=name, errno=error.errno) from error
        raise refusal(error, name) from error
    finally:
        with contextlib.suppress(OSError):
            os.unlink(unfinished)


def _write(writer: _native.RowWriter, rows: _Rows, orders: Iterable[range | npt.NDArray[Any]], encoding: str) -> None:
    """Writes the rows with these numbers; a range takes no memory for tables of hundreds of millions."""
    try:
        for order in orders:
            for first in range(0, len(order), rows.at_once):
                numbers = np.asarray(order[first : first + rows.at_once], np.int64)
                if rows.table is not None and rows.encoding == encoding:
                    writer.write_stored(rows.table._served.native.read_stored(rows.table._number, numbers.astype(np.uint64)))
                else:
                    writer.write(rows.read(numbers))
        writer.finish()
    except BaseException:
        writer.discard()
        raise


def _write_file(path: str, head: bytes, kind: np.dtype[Any], rows: _Rows) -> None:
    with open(path, "wb") as file:
        # What has no room is refused before the first byte.
        if size := len(head) + rows.count * rows.dim * kind.itemsize:
            os.posix_fallocate(file.fileno(), 0, size)
        file.write(head)
        for first in range(0, rows.count, rows.at_once):
            numbers = np.arange(first, min(first + rows.at_once, rows.count))
            file.write(rows.read(numbers, kind).tobytes())
        file.flush()
        os.fsync(file.fileno())


def _write_checkpoint(path: str, tensor: str, kind: np.dtype[Any], rows: _Rows, scratch: str) -> None:
    """PyTorch writes a tensor that is mapped without reading all of it into memory."""
    try:
        import torch
    except ImportError as error:
        raise ImportError("checkpoints need PyTorch: pip install outcore[torch]") from error
    with tempfile.TemporaryDirectory(dir=scratch) as folder:
        beside = os.path.join(folder, "rows")
        _write_file(beside, b"", kind, rows)
        size, dtype = rows.count * rows.dim, getattr(torch, kind.name)
        mapped = torch.from_file(beside, size=size, dtype=dtype) if size else torch.empty(0, dtype=dtype)
        torch.save({tensor: mapped.view(rows.count, rows.dim)}, path)
        del mapped
    with open(path, "rb") as file:
        os.fsync(file.fileno())


def _head(ending: str, tensor: str, dtype: np.dtype[Any], rows: _Rows) -> bytes:
    if ending == ".npy" and dtype.name == "bfloat16":
        # NumPy knows it as void; the comment names it, which other readers skip.
        line = f"{{'descr': '|V2', 'fortran_order': False, 'shape': ({rows.count}, {rows.dim}), }} # bfloat16"
        padded = line + " " * (-(10 + len(line) + 1) % 64) + "\n"
        return b"\x93NUMPY\x01\x00" + len(padded).to_bytes(2, "little") + padded.encode()
    if ending == ".npy":
        text = io.BytesIO()
        descr = np.lib.format.dtype_to_descr(dtype)
        np.lib.format.write_array_header_1_0(text, {"descr": descr, "fortran_order": False, "shape": (rows.count, rows.dim)})
        return text.getvalue()
    size = rows.count * rows.dim * dtype.itemsize
    entry = {"dtype": SAFETENSORS[dtype.name], "shape": [rows.count, rows.dim], "data_offsets": [0, size]}
    json_text = json.dumps({tensor: entry}).encode()
    json_text += b" " * (-len(json_text) % 8)
    return len(json_text).to_bytes(8, "little") + json_text


@dataclass
class _Rows:
    """Rows to be written elsewhere, some at a time."""

    count: int
    dim: int
    encoding: str
    table: Table | None = None
    array: Any = None
    init: Callable[[npt.NDArray[np.int64]], npt.ArrayLike] | None = None
    packed_bytes: int = PACKED_BYTES

    @classmethod
    def filled(cls, shape: tuple[int, int], init: Callable[[npt.NDArray[np.int64]], npt.ArrayLike] | None) -> _Rows:
        return cls(*shape, "float32", init=init)

    @property
    def at_once(self) -> int:
        return max(self.packed_bytes // (4 * self.dim), 1)

    def within(self, session: Session) -> _Rows:
        """The same, with a part of the session's budget for what is in between."""
        self.packed_bytes = min(PACKED_BYTES, int(session.info()["memory_bytes"]) // 16)
        return self

    @classmethod
    def of(cls, source: Table | PathLike | Sequence[PathLike] | npt.NDArray[Any], tensor: str | None, session: Session) -> _Rows:
        given: Any = source
        if isinstance(source, str | bytes | os.PathLike) and os.path.splitext(os.fsdecode(source))[1] in CHECKPOINTS:
            given = _checkpoint(os.fsdecode(source), tensor)
        if isinstance(given, Table) or not hasattr(given, "dtype"):
            table = given if isinstance(given, Table) else Table.open(given, tensor, cache=0, session=session)
            return cls(len(table), table.dim, table.encoding, table=table)
        if given.ndim != 2:
            raise ShapeError(f"a table is a matrix, not of shape {tuple(given.shape)}")
        rows, dim = given.shape
        encoding = str(given.dtype).removeprefix("torch.")
        if encoding not in ("float16", "bfloat16", "float32", "float64"):
            name = os.fsdecode(source) if isinstance(source, str | bytes | os.PathLike) else "the matrix"
            raise DTypeError(f"{name} is of {given.dtype}: rows are packed from floats, and quantized ones are opened in place")
        return cls(rows, dim, "float32" if encoding == "float64" else encoding, array=given)

    def read(self, numbers: npt.NDArray[Any], dtype: npt.DTypeLike = np.float32) -> Rows:
        if self.table is not None:
            return _look_up(Feature(self.table._number, numbers, dtype=dtype), self.table)
        if self.array is None:
            made = np.zeros((len(numbers), self.dim)) if self.init is None else self.init(numbers)
            rows = np.ascontiguousarray(made, np.float32)
            if rows.shape != (len(numbers), self.dim):
                raise ShapeError(f"init gives {rows.shape} for {len(numbers)} rows of {self.dim}")
            return rows
        part = self.array[numbers]
        part = part if isinstance(part, np.ndarray) else part.float().numpy()
        return np.ascontiguousarray(part, np.float32)


def _checkpoint(path: str, tensor: str | None) -> Any:
    """A matrix of a checkpoint, mapped where its file allows it."""
    try:
        import torch
    except ImportError as error:
        raise ImportError("checkpoints need PyTorch: pip install outcore[torch]") from error
    try:
        try:
            state = torch.load(path, map_location="cpu", mmap=True, weights_only=True)
        except RuntimeError:
            # The format that PyTorch wrote before 1.6 cannot be mapped.
            state = torch.load(path, map_location="cpu", weights_only=True)
    except OSError as error:
        raise refusal(error, path) from error
    except Exception as error:
        raise CorruptError(f"{path}: no checkpoint of PyTorch: {error}", object=path, offset=0) from error
    state = state.get("state_dict", state) if isinstance(state, Mapping) else {"tensor": state}
    matrices = {name: value for name, value in state.items() if isinstance(value, torch.Tensor) and value.ndim == 2}
    if tensor is not None and tensor in matrices:
        return matrices[tensor]
    if tensor is not None or len(matrices) != 1:
        names = ", ".join(list(matrices)[:8]) or "none"
        raise ArgumentError(f"{path}: name one of its {len(matrices)} matrices as tensor: {names}")
    return next(iter(matrices.values()))
