"""Rows by chance: as many entries as asked for, in order, and common columns first."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from harness import zipf
from harness.model import ZipfFolder


def test_rows_have_different_columns_in_order_and_common_ones_are_first(tmp_path: Path) -> None:
    file = ZipfFolder("rows", rows=2000, columns=100_000, per_row=35, seed=1)
    zipf.make(file, tmp_path)
    indices = np.load(tmp_path / "rows" / "indices.npy").reshape(file.rows, file.per_row)
    assert (np.diff(indices, axis=1) > 0).all() and indices.min() >= 0 and indices.max() < file.columns
    counts = np.bincount(indices.ravel(), minlength=1000)
    assert counts[:10].min() > 10 * counts[900:1000].max()
    assert np.load(tmp_path / "rows" / "indptr.npy")[-1] == file.nonzeros
