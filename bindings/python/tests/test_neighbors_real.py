"""Nearest neighbours of real data: those of an exact search, ties by the number of the row, and the classes of scikit-learn.

Values are whole numbers, so that squares of distances are exact in float64. Digits are those of `data/mnist`; $OUTCORE_REAL_DATA
is a folder with `a9a.gz`, `a9a.t.gz` and `w8a.gz` of the LIBSVM data collection.
"""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn import neighbors
from sklearn.datasets import load_svmlight_file

import outcore as oc
from outcore.neighbors import KNeighborsClassifier

DIGITS = Path(__file__).parents[3] / "data" / "mnist"
K = 5


def digits() -> tuple[Any, ...]:
    pytest.importorskip("PIL")
    if not DIGITS.exists():
        pytest.skip(f"{DIGITS} is missing")
    from outcore.demo.images import ImageSet

    images = ImageSet(DIGITS)
    labels, blocks, count = images.survey().labels[:6500], [], 0
    for block in images.blocks():
        blocks.append(np.array(block).reshape(len(block), -1))
        count += len(block)
        if count >= 6500:
            break
    x = np.concatenate(blocks)[:6500].astype("f4")
    return x[:6000], labels[:6000], x[6000:], labels[6000:]


def rows_of(name: str, test: str | None) -> tuple[Any, ...]:
    folder = os.environ.get("OUTCORE_REAL_DATA")
    if folder is None or not (Path(folder) / f"{name}.gz").exists():
        pytest.skip("$OUTCORE_REAL_DATA names no folder with it")
    x, y = load_svmlight_file(Path(folder) / f"{name}.gz", dtype=np.float32)
    if test is None:
        return x[:-500], y[:-500], x[-500:], y[-500:]
    q, asked = load_svmlight_file(Path(folder) / f"{test}.gz", dtype=np.float32, n_features=x.shape[1])
    return x, y, q[:500], asked[:500]


@pytest.mark.parametrize("name", ["digits", "a9a", "w8a"])
def test_neighbors_and_classes_of_real_data(name: str, tmp_path: Path) -> None:
    x, y, q, asked = digits() if name == "digits" else rows_of(name, "a9a.t" if name == "a9a" else None)
    oc.configure("16MiB", tmp_path, 2, allow_tmpfs_scratch=True)
    rows: Any = oc.from_scipy(tmp_path / "x", x) if sp.issparse(x) else oc.from_numpy(tmp_path / "x.npy", x)
    ours = KNeighborsClassifier(K).fit(rows, y)
    theirs = neighbors.KNeighborsClassifier(K, algorithm="brute").fit(x.astype("f8"), y)
    distances, numbers = ours.kneighbors(q)
    x8, q8 = x.astype("f8"), q.astype("f8")
    products = (q8 @ x8.T).toarray() if sp.issparse(x) else q8 @ x8.T
    of_rows, of_queries = (
        np.asarray(z.multiply(z).sum(axis=1) if sp.issparse(z) else (z * z).sum(axis=1)).ravel() for z in (x8, q8)
    )
    squares = of_queries[:, None] + of_rows[None, :] - 2 * products
    expected = np.argsort(squares, axis=1, kind="stable")[:, :K]
    np.testing.assert_array_equal(numbers, expected)
    np.testing.assert_array_equal(distances, np.sqrt(np.take_along_axis(squares, expected, 1)))
    their_distances, their_numbers = theirs.kneighbors(q8)
    np.testing.assert_allclose(distances, their_distances, atol=1e-6)
    same = (np.sort(numbers, axis=1) == np.sort(their_numbers, axis=1)).all(axis=1)
    classes, their_classes = ours.predict(q), theirs.predict(q8)
    np.testing.assert_array_equal(classes[same], their_classes[same])
    # Queries whose last neighbours are as near as others may be of another class.
    assert abs((classes == asked).mean() - (their_classes == asked).mean()) <= (1 - same.mean()) / 2
