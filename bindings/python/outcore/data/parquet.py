"""Rows of Parquet files, read by pyarrow a row group at a time, through the engine.

Columns become fields at their own types, from Arrow's buffers: numbers and booleans stay what they are, text and bytes are told
apart, lists are arrays (also fixed-size lists, lists of lists and tensors of fixed shape), dictionaries are what they stand for,
and members of structures are columns of their own. What no field has, such as a date, a decimal or a list of texts, is refused by
its column.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from .._files import EngineFile, seems
from ..errors import ArgumentError, CorruptError, UnsupportedError
from .source import Named, Part, Told, listed

if TYPE_CHECKING:
    from .._session import Session

ROWS = 1024
BATCH_BYTES = 8 << 20
"""Of Parquet, made into samples at once: as many rows as have these bytes."""
PROBED = 16
"""Rows that are looked at for how long they are in memory."""
PAGE_BYTES = 1 << 20
"""Of each column, read at once."""
MARK = b"PAR1"
"""How a file begins and ends."""

Value = Callable[[int], Any]
"""What a column has in a row of a batch."""


def parquet(path: str, columns: list[str] | None, session: Session) -> Iterator[Part]:
    """Row groups."""
    try:
        import pyarrow.parquet as pq
    except ImportError as error:
        raise ImportError("Parquet needs pyarrow: pip install pyarrow") from error
    source = EngineFile(session, path)
    _check_marks(source)
    with Told(path, "its description at its end", source.size):
        file = pq.ParquetFile(source, buffer_size=PAGE_BYTES, pre_buffer=False, page_checksum_verification=True)
        there = dict(_members(file.schema_arrow))
    with file:
        missing = [name for name in columns or [] if name not in there]
        if missing:
            raise ArgumentError(f"{path}: no column {missing[0]!r}; there are {listed(there)}")
        for name, kind in there.items():
            if columns is None or name in columns:
                _check_type(path, name, kind)
        row = 0
        for group in range(file.metadata.num_row_groups):
            count = file.metadata.row_group(group).num_rows
            yield count, _rows(path, file, group, row, columns)
            row += count


def _check_marks(source: EngineFile) -> None:
    """Tells what is no Parquet at all from what is damaged."""
    path, head = source.path, source.head()
    if head and not head.startswith(MARK):
        encrypted = "; it has to be written without encryption" if head.startswith(b"PARE") else ""
        raise UnsupportedError(f"{path}: no Parquet file; it seems to be {seems(head)}{encrypted}", object=path)
    source.seek(max(0, source.size - len(MARK)))
    end = source.read()
    source.seek(0)
    if source.size < 12 or end != MARK:
        reason = "empty" if not head else f"{source.size} bytes that do not end as Parquet does: it was cut off, or is damaged"
        raise CorruptError(f"{path}: {reason}", object=path, offset=max(0, source.size - len(MARK)))


def _members(fields: Any, around: str = "") -> Iterator[tuple[str, Any]]:
    """Columns and their types: of a structure those of its members, as `image.bytes`."""
    import pyarrow as pa

    for field in fields:
        if pa.types.is_struct(field.type):
            yield from _members(map(field.type.field, range(field.type.num_fields)), f"{around}{field.name}.")
        else:
            yield around + field.name, field.type


def _flat(table: Any) -> Any:
    """A table with such columns."""
    import pyarrow as pa

    while any(pa.types.is_struct(kind) for kind in table.schema.types):
        table = table.flatten()
    return table


def _check_type(path: str, name: str, kind: Any) -> None:
    inner = _leaf(kind)
    if not _is_field(inner) or (_is_list(_stored(kind)) and not _is_number(inner)):
        cast = f", or cast it to {_instead(inner)}" if _instead(inner) else ""
        raise UnsupportedError(
            f"{path}: column {name!r} is {str(kind)[:80]}, which is no field; leave it out by fields={cast}", object=path
        )


def _instead(kind: Any) -> str:
    """The type that a column may be cast to, where there is one."""
    import pyarrow as pa

    if pa.types.is_temporal(kind):
        return "int32" if kind.bit_width == 32 else "int64"
    return "float64" if pa.types.is_decimal(kind) else ""


def _stored(kind: Any) -> Any:
    """The type of what is there, for an extension type or a dictionary."""
    import pyarrow as pa

    while isinstance(kind, pa.BaseExtensionType) or pa.types.is_dictionary(kind):
        kind = kind.value_type if pa.types.is_dictionary(kind) else kind.storage_type
    return kind


def _leaf(kind: Any) -> Any:
    """What lists of lists are made of."""
    kind = _stored(kind)
    while _is_list(kind):
        kind = _stored(kind.value_type)
    return kind


def _is_list(kind: Any) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def _is_number(kind: Any) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind))


def _is_field(kind: Any) -> bool:
    import pyarrow as pa

    return _is_number(kind) or _is_text(kind) or _is_bytes(kind) or bool(pa.types.is_null(kind))


def _is_text(kind: Any) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def _is_bytes(kind: Any) -> bool:
    import pyarrow as pa

    kinds = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_fixed_size_binary, pa.types.is_binary_view)
    return any(is_it(kind) for is_it in kinds)


def _rows_at_once(file: Any, group: int, columns: list[str] | None) -> int:
    """Of a group, as many rows as have some bytes in memory: a text that a dictionary has once may be in every row."""
    about = file.metadata.row_group(group)
    rows = max(1, min(ROWS, BATCH_BYTES * about.num_rows // max(1, about.total_byte_size)))
    chunks = map(about.column, range(about.num_columns))
    if any(chunk.physical_type == "BYTE_ARRAY" and chunk.has_dictionary_page for chunk in chunks):
        first = next(file.iter_batches(min(PROBED, rows), row_groups=[group], columns=columns), None)
        if first is not None and first.nbytes:
            rows = max(1, min(rows, BATCH_BYTES * len(first) // first.nbytes))
    return rows


def _rows(path: str, file: Any, group: int, row: int, columns: list[str] | None) -> Iterator[tuple[float, Named]]:
    """Rows of a group, which begins with some row."""
    import pyarrow as pa

    with Told(path, f"from row {row} on"):
        batches = file.iter_batches(_rows_at_once(file, group, columns), row_groups=[group], columns=columns)
    while True:
        with Told(path, f"from row {row} on"):
            batch = next(batches, None)
            if batch is None:
                return
            table = _flat(pa.Table.from_batches([batch]))
            values = {name: _column(path, name, _whole(table.column(name)), row) for name in table.column_names}
        for index in range(len(batch)):
            with Told(path, f"row {row}"):
                sample = {name: value(index) for name, value in values.items()}
            yield row / file.metadata.num_rows, (None, sample)
            row += 1


def _whole(column: Any) -> Any:
    """A column of a batch, whose values are of the type that is stored."""
    import pyarrow as pa

    array = column.combine_chunks()
    if isinstance(array, pa.ChunkedArray):
        array = array.chunk(0)
    shape = None
    while True:
        if isinstance(array, pa.ExtensionArray):
            shape = _shape(array.type) or shape
            array = array.storage
        elif isinstance(array, pa.DictionaryArray):
            array = array.dictionary_decode()
        elif pa.types.is_string_view(array.type) or pa.types.is_binary_view(array.type):
            array = array.cast(pa.large_string() if pa.types.is_string_view(array.type) else pa.large_binary())
        else:
            return array if shape is None else _reshaped(array, shape)


def _shape(kind: Any) -> tuple[int, ...] | None:
    """Of tensors that all have one."""
    import pyarrow as pa

    if not isinstance(kind, pa.FixedShapeTensorType):
        return None
    if kind.permutation not in (None, list(range(len(kind.shape)))):
        raise ArgumentError(f"tensors whose axes are permuted, {kind.permutation}")
    return tuple(kind.shape)


def _reshaped(array: Any, shape: tuple[int, ...]) -> Any:
    """Tensors as lists of lists."""
    import pyarrow as pa

    values = array.flatten()
    for extent in reversed(shape):
        values = pa.FixedSizeListArray.from_arrays(values, extent)
    return values


def _column(path: str, name: str, array: Any, first: int) -> Value:
    """What a column has in each row of a batch whose first row is `first`.

    Raises
    ------
    ArgumentError
        For a row without a value.
    """
    levels: list[npt.NDArray[np.int64] | int] = []
    while True:
        if array.null_count:
            element = int(np.flatnonzero(array.is_null().to_numpy(zero_copy_only=False))[0])
            what = "no value" if not levels else "a list in which a value is missing,"
            row = first + _row_of(element, levels)
            raise ArgumentError(f"{path}: column {name!r} has {what} in row {row}; fields= says which columns are wanted")
        if not _is_list(array.type):
            break
        level, array = _opened(array)
        levels.append(level)
        array = _whole_of(array)
    if _is_number(array.type):
        return _arrays(array.to_numpy(zero_copy_only=False), levels, name)
    pieces = _pieces(array)
    return (lambda index: str(pieces(index), "utf-8")) if _is_text(array.type) else (lambda index: bytes(pieces(index)))


def _whole_of(array: Any) -> Any:
    import pyarrow as pa

    return _whole(pa.chunked_array([array]))


def _opened(array: Any) -> tuple[npt.NDArray[np.int64] | int, Any]:
    """Lists, none of which is missing: where each ends in their values, or how many each has; and the values."""
    import pyarrow as pa

    if pa.types.is_fixed_size_list(array.type):
        return array.type.list_size, array.flatten()
    offsets = array.offsets.to_numpy().astype(np.int64)
    values = array.values.slice(offsets[0], offsets[-1] - offsets[0]) if len(offsets) else array.values.slice(0, 0)
    return offsets - offsets[:1], values


def _row_of(element: int, levels: list[npt.NDArray[np.int64] | int]) -> int:
    """The row of a batch in which a value of the innermost lists is."""
    for level in reversed(levels):
        element = element // level if isinstance(level, int) else int(np.searchsorted(level, element, "right")) - 1
    return element


def _arrays(values: npt.NDArray[Any], levels: list[npt.NDArray[np.int64] | int], name: str) -> Value:
    """Numbers, or the arrays that lists of them are."""
    if not levels:
        return lambda index: values[index]

    def array(index: int) -> npt.NDArray[Any]:
        start, end, shape = index, index + 1, []
        for level in levels:
            if isinstance(level, int):
                extent, start, end = level, start * level, end * level
            else:
                lengths = np.diff(level[start : end + 1])
                if len(lengths) and (lengths != lengths[0]).any():
                    raise ArgumentError(f"column {name!r} has lists of different lengths in one list, which make no array")
                extent, start, end = int(lengths[0]) if len(lengths) else 0, int(level[start]), int(level[end])
            shape.append(extent)
        return values[start:end].reshape(shape)

    return array


def _pieces(array: Any) -> Callable[[int], memoryview]:
    """Bytes of texts, or of bytes."""
    import pyarrow as pa

    buffers, first = array.buffers(), array.offset
    data = memoryview(buffers[-1]) if buffers[-1] is not None else memoryview(b"")
    if pa.types.is_fixed_size_binary(array.type):
        size = array.type.byte_width
        return lambda index: data[(first + index) * size : (first + index + 1) * size]
    is_large = pa.types.is_large_binary(array.type) or pa.types.is_large_string(array.type)
    kind = np.dtype(np.int64 if is_large else np.int32)
    ends = np.frombuffer(buffers[1], kind, len(array) + 1, first * kind.itemsize) if buffers[1] is not None else np.zeros(1, kind)
    return lambda index: data[ends[index] : ends[index + 1]]
