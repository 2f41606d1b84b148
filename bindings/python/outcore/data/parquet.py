"""Rows of Parquet files, read by pyarrow a row group at a time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..errors import ArgumentError
from .source import Named, Part, Told

ROWS = 1024
BATCH_BYTES = 8 << 20
"""Of Parquet, made into samples at once: as many rows as have these bytes."""


def parquet(path: str, columns: list[str] | None) -> Iterator[Part]:
    """Row groups."""
    try:
        import pyarrow.parquet as pq
    except ImportError as error:
        raise ImportError("Parquet needs pyarrow: pip install pyarrow") from error
    with Told(path):
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
        with Told(path, f"from row {row} on"):
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
