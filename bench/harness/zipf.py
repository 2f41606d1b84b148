"""Sparse rows of many columns, of which few are common: a column's share is nearly one over its number."""

from __future__ import annotations

import json
import shutil
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from harness.data import npy_header, settle
from harness.model import ZipfFolder

BLOCK_ROWS = 1 << 15


def make(file: ZipfFolder, root: Path) -> None:
    """Write `file` unless it is there: its name tells all of its description, and it is renamed only when whole."""
    path = root / file.path
    if path.exists():
        return
    partial = path.with_name(f"{path.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    with ExitStack() as stack:
        outs = {name: stack.enter_context(open(partial / f"{name}.npy", "wb")) for name in ("indptr", "indices", "data")}
        for name, kind, length in (
            ("indptr", "<i8", file.rows + 1),
            ("indices", "<i4", file.nonzeros),
            ("data", "<f4", file.nonzeros),
        ):
            outs[name].write(npy_header(kind, (length,), 4096))
        outs["indptr"].write((np.arange(file.rows + 1) * file.per_row).data)
        random = np.random.default_rng(file.seed)
        for start in range(0, file.rows, BLOCK_ROWS):
            shape = (min(BLOCK_ROWS, file.rows - start), file.per_row)
            outs["indices"].write(columns(file.columns, shape, random).data)
            outs["data"].write((1 - random.random(shape, dtype=np.float32)).data)
        for out in outs.values():
            settle(out)
    told = {"format": "csr", "shape": [file.rows, file.columns], "nonzeros": file.nonzeros, "dtype": "float32"}
    (partial / "matrix.json").write_text(json.dumps(told) + "\n")
    partial.rename(path)


def columns(count: int, shape: tuple[int, int], random: np.random.Generator) -> np.ndarray[tuple[int, int], np.dtype[np.int32]]:
    """Different ones in each row, in order: of two that are equal, one moves to the next column."""
    drawn = np.exp(random.random(shape) * np.log(count - shape[1])).astype(np.int64) - 1
    drawn.sort(axis=1)
    beside = np.arange(shape[1])
    return (np.maximum.accumulate(drawn - beside, axis=1) + beside).astype(np.int32)
