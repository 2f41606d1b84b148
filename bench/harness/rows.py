"""The rows of a `.npy` file as other libraries keep them. Copied block by block from the file, which is there."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from harness.data import BLOCK_BYTES, settle
from harness.model import ROOT, RowsCopy

NAME = "x"
"""Of the dataset in a file of HDF5."""


def make(copy: RowsCopy, root: Path = ROOT) -> None:
    """Make `copy` unless it lies there whole already."""
    path, source = root / copy.path, copy.source
    layout = f"{source.rows}x{source.cols}.{source.seed}.{copy.chunk_rows}"
    made = path.with_name(f"{path.name}.{layout}.made")
    if made.exists() and path.exists():
        return
    for old in path.parent.glob(f"{path.name}.*.made"):
        old.unlink()
    if path.is_dir():
        shutil.rmtree(path)
    {"h5py": hdf5_file, "zarr": zarr_folder}[copy.form](copy, np.load(root / source.path, mmap_mode="r"), path)
    for file in path.rglob("*") if path.is_dir() else (path,):
        if file.is_file():
            with open(file, "rb") as open_file:
                settle(open_file)
    made.touch()


def hdf5_file(copy: RowsCopy, x: Any, path: Path) -> None:
    """By the newest version of the format, which finds chunks by their number, not by a search."""
    import h5py

    chunks = None if copy.chunk_rows is None else (min(copy.chunk_rows, len(x)), x.shape[1])
    with h5py.File(path, "w", libver="latest") as file:
        data = file.create_dataset(NAME, x.shape, x.dtype, chunks=chunks)
        for part in blocks(x, copy.chunk_rows or 1):
            data[part] = x[part]


def zarr_folder(copy: RowsCopy, x: Any, path: Path) -> None:
    """A file a chunk."""
    import zarr

    assert copy.chunk_rows is not None
    chunks = (min(copy.chunk_rows, len(x)), x.shape[1])
    data = zarr.create_array(path, shape=x.shape, dtype=x.dtype, chunks=chunks, compressors=None, zarr_format=3)
    for part in blocks(x, copy.chunk_rows):
        data[part] = x[part]


def blocks(x: Any, chunk_rows: int) -> Iterator[slice]:
    """Rows at a time: whole chunks."""
    rows = max(1, BLOCK_BYTES // x[:1].nbytes // chunk_rows) * chunk_rows
    return (slice(start, min(len(x), start + rows)) for start in range(0, len(x), rows))
