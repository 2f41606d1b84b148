"""Checks of the sparse legs see what is wrong, and rivals are called rightly."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import outcore as oc
import pytest
import scipy.sparse as sp

from harness.machine import mkl_library
from legs import ours_sparse, sparse, with_mkl, with_scipy

ROWS, COLUMNS = 301, 53
LIMIT = 10.0
"""harness.runner.LARGEST_ERROR."""


@pytest.fixture
def folder(tmp_path: Path) -> tuple[str, Any]:
    """With an empty row, an empty column, and a row full but for that."""
    a = sp.random(ROWS, COLUMNS, 0.2, format="lil", dtype=np.float32, random_state=np.random.default_rng(0))
    a[0], a[ROWS - 1], a[:, 3] = 0, 1, 0
    a = a.tocsr()
    a.eliminate_zeros()
    a.sort_indices()
    (path := tmp_path / "a").mkdir()
    for name, array in (("indptr", a.indptr.astype(np.int64)), ("indices", a.indices), ("data", a.data)):
        np.save(path / f"{name}.npy", array)
    (path / "matrix.json").write_text(json.dumps({"format": "csr", "shape": a.shape, "nonzeros": a.nnz, "dtype": "float32"}))
    return str(path), a


def dense(columns: int) -> Any:
    return np.random.default_rng(1).random((COLUMNS, columns), dtype=np.float32) - np.float32(0.5)


@pytest.mark.parametrize("columns", [1, 7, 40])
def test_a_wrong_product_is_seen(folder: tuple[str, Any], columns: int) -> None:
    path, a = folder
    b = dense(columns)
    c = a @ b
    assert sparse.product_error(c, path, b) < LIMIT
    for row in (0, ROWS - 1):
        wrong = c.copy()
        wrong[row] += 0.001
        assert sparse.product_error(wrong, path, b) > LIMIT
    assert sparse.product_error(c[:-1], path, b) == np.inf
    assert sparse.product_error(c * np.nan, path, b) > LIMIT


def test_a_wrong_gram_product_is_seen(folder: tuple[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sparse, "ROWS_AT_ONCE", 100)
    path, a = folder
    x = dense(5)
    y = a.T @ (a @ x)
    assert sparse.gram_error(y, path, x) < LIMIT
    without_a_row = a[:-1].T @ (a[:-1] @ x)
    assert sparse.gram_error(without_a_row, path, x) > LIMIT
    y[3] = 1e-6
    assert sparse.gram_error(y, path, x) == np.inf


def test_a_wrong_turn_is_seen(folder: tuple[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sparse, "ENTRIES_AT_ONCE", 1000)
    path, a = folder
    turned = a.tocsc()
    assert sparse.turned_error((turned.indptr, turned.indices, turned.data), path) == 0
    values = turned.data.copy()
    values[-1] += 1
    assert sparse.turned_error((turned.indptr, turned.indices, values), path) == np.inf
    assert sparse.turned_error((turned.indptr, turned.indices[::-1], turned.data), path) == np.inf
    assert sparse.turned_error((turned.indptr[::-1], turned.indices, turned.data), path) == np.inf


def test_a_wrong_reading_of_text_is_seen(tmp_path: Path) -> None:
    text = tmp_path / "x.libsvm"
    text.write_text("".join(f"1 {row + 1}:0.{row + 1}25 {row + 20}:3e-05\n" for row in range(9)))
    values = np.array([[float(f"0.{row + 1}25"), 3e-5] for row in range(9)], np.float32).ravel()
    indices = np.array([[row, row + 19] for row in range(9)]).ravel()
    indptr = np.arange(0, 19, 2)
    matrix = lambda indices, values: sp.csr_matrix((values, indices, indptr))  # noqa: E731
    assert sparse.text_error(matrix(indices, values), str(text), 9, 18) < 1
    assert sparse.text_error(matrix(indices + 1, values), str(text), 9, 18) == np.inf
    assert sparse.text_error(matrix(indices, values * np.float32(1.00001)), str(text), 9, 18) > LIMIT
    assert sparse.text_error(matrix(indices, values), str(text), 9, 19) == np.inf


@pytest.mark.skipif(mkl_library() is None, reason="MKL is not installed")
@pytest.mark.parametrize("most", [(1 << 31) - 1, 70])
def test_mkl_answers_rightly_also_where_its_counters_force_parts(
    folder: tuple[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    monkeypatch.setattr(with_mkl, "MOST_ELEMENTS", most)
    np.save(tmp_path / "b.npy", dense(7))
    found = with_mkl.csrmm_memory({"a": folder[0], "b": str(tmp_path / "b.npy"), "library": mkl_library()})
    assert found["error"] < LIMIT


def test_scipy_legs_check_what_they_made(folder: tuple[str, Any], tmp_path: Path) -> None:
    np.save(tmp_path / "b.npy", dense(7))
    spec = {"a": folder[0], "b": str(tmp_path / "b.npy"), "out": str(tmp_path / "c.npy")}
    legs = (with_scipy.csrmm_memory, with_scipy.csrmm_load_save, with_scipy.gram_memory, with_scipy.tocsc_memory)
    assert all(leg(spec)["error"] < LIMIT for leg in legs)


@pytest.mark.parametrize("leg", ["csrmm", "csrmm_memory", "gram", "gram_memory", "csrcsc"])
def test_our_legs_answer_rightly(folder: tuple[str, Any], tmp_path: Path, leg: str) -> None:
    if not hasattr(oc.linalg, leg.partition("_")[0].replace("gram", "gram_product")):
        pytest.skip("not in this build")
    np.save(tmp_path / "b.npy", dense(7))
    spec = {"a": folder[0], "b": str(tmp_path / "b.npy"), "out": str(tmp_path / "out.npy"), "memory": 8 << 20}
    assert getattr(ours_sparse, leg)({**spec, "scratch": str(tmp_path / "scratch")})["error"] < LIMIT


def test_the_kernel_is_measured_on_the_rows_asked_for(folder: tuple[str, Any], tmp_path: Path) -> None:
    np.save(tmp_path / "b.npy", dense(7))
    spec = {"a": folder[0], "b": str(tmp_path / "b.npy"), "rows": 10, "memory": 8 << 20, "scratch": str(tmp_path / "scratch")}
    assert ours_sparse.csrmm_kernel(spec)["work"] == 2 * folder[1][:10].nnz * 7
