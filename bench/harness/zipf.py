"""Sparse rows of many columns, of which few are common: a column's share is nearly one over its number."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from harness import csr
from harness.data import whole_folder
from harness.model import ZipfFolder

BLOCK_ROWS = 1 << 15


def make(file: ZipfFolder, root: Path) -> None:
    """Write `file` unless it is there: its name tells all of its description, and it is renamed only when whole."""
    path = root / file.path
    if path.exists():
        return
    random = np.random.default_rng(file.seed)
    with whole_folder(path) as folder, csr.writing(folder, (file.rows, file.columns), file.nonzeros) as outs:
        outs["indptr"].write((np.arange(file.rows + 1) * file.per_row).data)
        for start in range(0, file.rows, BLOCK_ROWS):
            shape = (min(BLOCK_ROWS, file.rows - start), file.per_row)
            outs["indices"].write(columns(file.columns, shape, random).data)
            outs["data"].write((1 - random.random(shape, dtype=np.float32)).data)


def columns(count: int, shape: tuple[int, int], random: np.random.Generator) -> np.ndarray[tuple[int, int], np.dtype[np.int32]]:
    """Different ones in each row, in order: of two that are equal, one moves to the next column."""
    drawn = np.exp(random.random(shape) * np.log(count - shape[1])).astype(np.int64) - 1
    drawn.sort(axis=1)
    beside = np.arange(shape[1])
    return (np.maximum.accumulate(drawn - beside, axis=1) + beside).astype(np.int32)
