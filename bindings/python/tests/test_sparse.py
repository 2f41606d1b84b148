"""Sparse matrices from Python: SciPy is the reference, for what they are and for what is computed from them."""

from __future__ import annotations

import json
import multiprocessing
import pickle
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.decomposition import TruncatedSVD as SklearnSVD
from sklearn.feature_extraction.text import TfidfTransformer as SklearnTfidf
from sklearn.preprocessing import normalize

import outcore as oc
from outcore import errors
from outcore.random_projection import SparseRandomProjection
from outcore.text import TfidfTransformer


@pytest.fixture(autouse=True)
def session(tmp_path: Path) -> None:
    oc.configure(memory="16MiB", scratch=tmp_path / "scratch")


def made(rows: int = 2000, cols: int = 300, density: float = 0.02, dtype: Any = np.float32, seed: int = 0) -> Any:
    found = sp.random(rows, cols, density, "csr", dtype, random_state=np.random.default_rng(seed))
    found.sort_indices()
    return found


def same(a: Any, b: Any) -> bool:
    return a.shape == b.shape and a.dtype == b.dtype and (a != b).nnz == 0


@pytest.mark.parametrize("form", ["csr", "csc"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_what_is_stored_comes_back(tmp_path: Path, form: str, dtype: Any) -> None:
    x = made(dtype=dtype).asformat(form)
    a = oc.from_scipy(tmp_path / "a", x)
    assert (a.shape, a.nnz, a.dtype, a.format) == (x.shape, x.nnz, x.dtype, form)
    assert same(a.scipy(), x)
    assert same(a.T.scipy(), x.T)
    b = oc.open(tmp_path / "a")
    assert isinstance(b, oc.Sparse)
    assert same(b.scipy(), x)
    assert "2000, 300" in repr(b)


def test_the_folder_is_one_that_numpy_reads(tmp_path: Path) -> None:
    x = made()
    oc.from_scipy(tmp_path / "a", x)
    told = json.loads((tmp_path / "a" / "matrix.json").read_text())
    parts = [np.load(tmp_path / "a" / f"{name}.npy") for name in ("data", "indices", "indptr")]
    assert same(sp.csr_matrix(tuple(parts), shape=told["shape"]), x)
    assert (told["format"], told["nonzeros"]) == ("csr", x.nnz)


def test_a_folder_made_by_numpy_is_opened(tmp_path: Path) -> None:
    x = made()
    for name, part in {"indptr": x.indptr, "indices": x.indices}.items():
        np.save(tmp_path / f"{name}.npy", part)
    (tmp_path / "matrix.json").write_text(json.dumps({"format": "csr", "shape": x.shape, "dtype": "float64"}))
    ones = sp.csr_matrix((np.ones(x.nnz), x.indices, x.indptr), shape=x.shape)
    a = oc.open(tmp_path)
    assert same(a.scipy(), ones)
    np.testing.assert_allclose(a @ np.ones(300), ones @ np.ones(300))


def test_more_entries_than_32_bits_count(tmp_path: Path) -> None:
    """The file is a hole but for its last row, which lies behind byte 2^34."""
    rows, each = 2**16 + 2, 2**16 + 1
    np.save(tmp_path / "indptr.npy", np.arange(rows + 1, dtype=np.int64) * each)
    indices = np.lib.format.open_memmap(tmp_path / "indices.npy", "w+", np.int32, (rows * each,))
    indices[-each:] = np.arange(each)
    del indices
    (tmp_path / "matrix.json").write_text(json.dumps({"format": "csr", "shape": [rows, 70_000], "dtype": "float32"}))
    a = oc.open(tmp_path)
    assert a.nnz == rows * each > 2**32
    last = a.slice(rows - 2)
    x = sp.csr_matrix((np.ones(2 * each, np.float32), np.r_[np.zeros(each), np.arange(each)], [0, each, 2 * each]), last.shape)
    b = np.random.default_rng(0).random((70_000, 3), np.float32)
    np.testing.assert_allclose(oc.linalg.csrmm(last, b)[:], x @ b, rtol=1e-4)
    np.testing.assert_allclose(oc.linalg.csrgemv(last, np.float32([2, 3]), trans_a=True), x.T @ np.float32([2, 3]))
    assert same(a[rows - 1 : rows], x[1:])


def test_rows_are_sliced_as_views_and_read_by_index(tmp_path: Path) -> None:
    x = made()
    a = oc.from_scipy(tmp_path / "a", x)
    assert same(a[10:20], x[10:20])
    assert same(a[-3], x[-3])
    assert same(a[5:50, 3], x[5:50, [3]])
    assert same(a.slice(100, 900).slice(10, 20).scipy(), x[110:120])
    assert same(a.T[:, 7:9], x.T[:, 7:9])
    assert same(a[3:3], x[3:3])
    with pytest.raises(errors.ArgumentError, match="csrcsc"):
        a.T.slice(0, 3)
    with pytest.raises(IndexError):
        a[2000]


def test_products_are_those_of_scipy(tmp_path: Path) -> None:
    x = made()
    a = oc.from_scipy(tmp_path / "a", x)
    rng = np.random.default_rng(1)
    b, c = rng.random((300, 17), np.float32), rng.random((2000, 5), np.float32)
    stored = oc.from_numpy(tmp_path / "b.npy", b, order="F")
    for found, expected in [
        ((a @ b).numpy(), x @ b),
        ((a @ stored).numpy(), x @ b),
        ((a.T @ c).numpy(), x.T @ c),
        ((c.T @ a).numpy(), c.T @ x),
        (a @ b[:, 0], x @ b[:, 0]),
        (c[:, 0] @ a, c[:, 0] @ x),
        (oc.linalg.csrmm(x, b), x @ b),
        (oc.linalg.csrgemv(x, c[:, 0], trans_a=True), x.T @ c[:, 0]),
        (oc.linalg.csrgemv(a, stored.slice(columns=(2, 3)).numpy()[:, 0]), x @ b[:, 2]),
        (oc.linalg.gram_product(a, b).numpy(), x.T @ (x @ b)),
        (oc.linalg.gram_product(a.T, c).numpy(), x @ (x.T @ c)),
    ]:
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    out = oc.from_numpy(tmp_path / "out.npy", np.ones((2000, 17), np.float32))
    assert oc.linalg.csrmm(a, b, out, alpha=2, beta=3) is out
    np.testing.assert_allclose(out.numpy(), 2 * (x @ b) + 3, rtol=1e-4)
    memory = np.empty((2000, 17), np.float32)
    assert oc.linalg.csrmm(a, b, memory) is memory
    np.testing.assert_allclose(memory, x @ b, rtol=1e-4, atol=1e-5)


def test_the_other_format_holds_the_same(tmp_path: Path) -> None:
    x = made()
    a = oc.from_scipy(tmp_path / "a", x)
    b = oc.linalg.csrcsc(a, tmp_path / "b")
    assert b is not None
    assert b.format == "csc"
    assert same(b.scipy(), x.tocsc())
    back = oc.linalg.csrcsc(b)
    assert back is not None
    assert same(back.scipy(), x)


def test_norms_and_statistics_are_those_of_all_elements(tmp_path: Path) -> None:
    x = made(dtype=np.float64)
    dense = x.toarray()
    for a in (oc.from_scipy(tmp_path / "a", x), x, oc.from_scipy(tmp_path / "b", x.tocsc())):
        np.testing.assert_allclose(oc.linalg.row_norms(a), np.linalg.norm(dense, axis=1))
        np.testing.assert_allclose(oc.linalg.column_norms(a, "l1"), np.abs(dense).sum(0))
        np.testing.assert_allclose(oc.linalg.column_norms(a, "max"), np.abs(dense).max(0))
        found = oc.linalg.column_statistics(a, ddof=1)
        np.testing.assert_allclose(found["mean"], dense.mean(0))
        np.testing.assert_allclose(found["variance"], dense.var(0, ddof=1))
        np.testing.assert_array_equal(found["max"], dense.max(0))
        np.testing.assert_array_equal(found["nonzeros"], (dense != 0).sum(0))


@pytest.mark.parametrize("kind", ["csr", "csc"])
def test_norms_are_told_where_squares_leave_the_range(tmp_path: Path, kind: str) -> None:
    x = sp.csr_matrix([[1e200, 1e200, 0], [3e-200, 0, 4e-200], [np.inf, 1, -np.inf], [np.nan, np.inf, 0], [0, 0, 0]])
    a = oc.from_scipy(tmp_path / "a", x.asformat(kind))
    norms = [2**0.5 * 1e200, 5e-200, np.inf, np.nan, 0]
    np.testing.assert_allclose(oc.linalg.row_norms(a), norms, rtol=1e-15)
    np.testing.assert_allclose(oc.linalg.column_norms(a.T), norms, rtol=1e-15)
    unit = oc.linalg.scaled(oc.from_scipy(tmp_path / "b", x[:2].asformat(kind)), unit_rows=True)
    np.testing.assert_allclose(unit.scipy().toarray(), [[0.5**0.5, 0.5**0.5, 0], [0.6, 0, 0.8]], rtol=1e-15)


@pytest.mark.parametrize("tiled", [False, True])
def test_numpy_is_refused_before_a_row_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tiled: bool) -> None:
    a: Any = oc.from_scipy(tmp_path / "a", made())
    a = a.tiled() if tiled else a

    def run(*_: object) -> None:
        raise AssertionError("something was read")

    monkeypatch.setattr(oc.Session, "_run", run)
    for attempt in (np.asarray, np.array, np.ascontiguousarray, SklearnSVD(2).fit, lambda x: np.array([x, x])):
        with pytest.raises(errors.DTypeError, match=r"sparse.*\.scipy\(\)") as caught:
            attempt(a)
        assert len(str(caught.value)) < 400


def test_notebooks_show_a_table_and_a_picture(tmp_path: Path) -> None:
    a = oc.from_scipy(tmp_path / "<i>", made())
    root = ElementTree.fromstring(f"<div>{a._repr_html_()}</div>")
    cells = {cell.text for cell in root.iter("td")}
    assert {"(2000, 300)", "float32", "12,000", "0.02", "CSR", str(tmp_path / "<i>")} <= cells
    assert len(list(root.iter("rect"))) == 1
    assert "CSC" in a.T._repr_html_()
    a.close()
    assert "closed" in repr(a)
    assert "closed" in a._repr_html_()


def test_values_are_scaled_in_their_places(tmp_path: Path) -> None:
    x = made(dtype=np.float64)
    a = oc.from_scipy(tmp_path / "a", x)
    rows, columns = np.arange(1.0, 2001.0), np.linspace(1, 2, 300)
    b = oc.linalg.scaled(a, tmp_path / "b", rows=rows, columns=columns, unit_rows=True, dtype=np.float32)
    assert b is not None
    expected = normalize(sp.diags_array(rows) @ x @ sp.diags_array(columns))
    assert b.dtype == np.float32
    np.testing.assert_allclose(b.scipy().toarray(), expected.toarray(), rtol=1e-6)


@pytest.mark.parametrize("options", [{}, {"norm": None}, {"sublinear_tf": True, "smooth_idf": False}, {"use_idf": False}])
def test_words_are_weighed_as_by_scikit_learn(tmp_path: Path, options: dict[str, Any]) -> None:
    counts = made(dtype=np.float64)
    counts.data = np.ceil(counts.data * 5)
    a = oc.from_scipy(tmp_path / "a", counts)
    found = TfidfTransformer(**options).fit_transform(a, out=tmp_path / "b")
    expected = SklearnTfidf(**options).fit_transform(counts)
    assert isinstance(found, oc.Sparse)
    np.testing.assert_allclose(found.scipy().toarray(), expected.toarray(), rtol=1e-12)
    np.testing.assert_allclose(TfidfTransformer(**options).fit_transform(counts).toarray(), expected.toarray(), rtol=1e-12)


def test_distances_survive_a_random_projection(tmp_path: Path) -> None:
    x = made(dtype=np.float64)
    a = oc.from_scipy(tmp_path / "a", x)
    model = SparseRandomProjection(200, random_state=0).fit(a)
    y = model.transform(a, out=tmp_path / "y.npy")
    np.testing.assert_allclose(y.numpy(), (x @ model.components_.T).toarray(), rtol=1e-9, atol=1e-12)
    dense = oc.from_numpy(tmp_path / "x.npy", x.toarray())
    np.testing.assert_allclose(model.transform(dense).numpy(), y.numpy(), rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(model.transform(x), y.numpy(), rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(model.transform(x.toarray()), y.numpy(), rtol=1e-9, atol=1e-12)
    before, after = np.linalg.norm(x.toarray()[:50], axis=1), np.linalg.norm(y[:50], axis=1)
    kept = after[before > 0] / before[before > 0]
    assert abs(kept.mean() - 1) < 0.1


def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    a = oc.from_scipy(tmp_path / "a", made())
    with pytest.raises(errors.ShapeError):
        a @ np.ones((17, 3), np.float32)
    with pytest.raises(errors.DTypeError):
        a @ np.ones((300, 3))
    with pytest.raises(errors.DTypeError, match="a is dense"):
        oc.linalg.csrmm(np.ones((3, 3)), np.ones((3, 3)))
    with pytest.raises(errors.ArgumentError, match="not list"):
        oc.linalg.csrmm([[1.0]], np.ones((3, 3)))
    with pytest.raises(errors.ArgumentError):
        oc.open(tmp_path / "a", dtype="float32", shape=3)
    with pytest.raises(errors.OverBudgetError):
        oc.explain(oc.linalg.gram_product, a, np.ones((300, 200_000), np.float32), memory="1MiB")
    (tmp_path / "empty").mkdir()
    with pytest.raises(errors.NotAFileError, match=r"matrix\.json"):
        oc.open(tmp_path / "empty")


def test_explain_makes_nothing(tmp_path: Path) -> None:
    a = oc.from_scipy(tmp_path / "a", made())
    assert oc.explain(oc.linalg.csrmm, a, np.ones((300, 4), np.float32), tmp_path / "c.npy").bytes_read > 0
    assert "csrcsc" in oc.explain(oc.linalg.csrcsc, a, tmp_path / "t").name
    assert oc.explain(oc.linalg.scaled, a, tmp_path / "s").bytes_written > 0
    assert oc.explain(SparseRandomProjection(3).fit_transform, a).bytes_read > 0
    assert SparseRandomProjection(3).explain(a).bytes_read > 0
    assert TfidfTransformer().explain(a).bytes_written == 0
    assert sorted(path.name for path in tmp_path.iterdir() if path.name != "scratch") == ["a"]


def _child(path: str, queue: Any) -> None:
    queue.put(float((oc.open(path) @ np.ones(300, np.float32)).sum()))


def test_views_travel_by_pickle_and_into_children(tmp_path: Path) -> None:
    x = made()
    a = oc.from_scipy(tmp_path / "a", x)
    again = pickle.loads(pickle.dumps(a.slice(5, 50).T))
    assert same(again.scipy(), x[5:50].T)
    with pytest.raises(TypeError):
        pickle.dumps(oc.linalg.csrcsc(a))
    queue = multiprocessing.get_context("fork").Queue()
    child = multiprocessing.get_context("fork").Process(target=_child, args=(str(tmp_path / "a"), queue))
    child.start()
    assert queue.get(timeout=60) == pytest.approx(float(x.sum()), rel=1e-4)
    child.join()
    with a:
        pass
    with pytest.raises(errors.ClosedError):
        a.scipy()


def test_an_old_folder_stays_until_the_new_one_is_whole(tmp_path: Path) -> None:
    x, y = made(), made(seed=1)
    a = oc.from_scipy(tmp_path / "a", x)
    oc.from_scipy(tmp_path / "a", y)
    assert same(oc.open(tmp_path / "a").scipy(), y)
    assert same(a.scipy(), x)
    assert sorted(path.name for path in tmp_path.iterdir() if path.name != "scratch") == ["a"]


def test_a_description_that_claims_other_lengths_is_refused(tmp_path: Path) -> None:
    x = sp.random(300, 50, 0.1, "csr", random_state=0, dtype=np.float32)
    for tiled in (False, True):
        path = tmp_path / f"x{tiled}"
        made = oc.from_scipy(tmp_path / "arrays", x)
        if tiled:
            made.tiled(path)
        else:
            (tmp_path / "arrays").rename(path)
        description = path / "matrix.json"
        text = description.read_text()
        assert '"shape":[300,50]' in text
        description.write_text(text.replace("[300,", "[4294967296,"))
        if tiled:
            # Rows without entries leave no trace in tiles, but memory for them is asked for first.
            with pytest.raises(errors.NoMemoryError):
                oc.open(path).scipy()
        else:
            with pytest.raises(errors.CorruptError, match=r"indptr\.npy.*4294967296 lines need"):
                oc.open(path)
        description.write_text(text)
        np.save(path / "labels.npy", np.zeros(299))
        with pytest.raises(errors.CorruptError, match=r"labels\.npy: has 299 rows, but the matrix has 300"):
            oc.open(path).labels()
        assert oc.open(path).slice(0, 100).labels().shape == (100,)
    entries = tmp_path / "xTrue" / "tiles.bin"
    entries.write_bytes(entries.read_bytes()[:-65])
    with pytest.raises(errors.TruncatedError, match=r"tiles\.bin") as caught:
        oc.open(tmp_path / "xTrue")
    assert caught.value.actual < caught.value.expected
    (tmp_path / "xFalse" / "vocabulary.txt").write_bytes(b"a\ncaf\xe9\n")
    with pytest.raises(errors.CorruptError, match=r"vocabulary\.txt, line 2: it is not UTF-8"):
        oc.open(tmp_path / "xFalse").vocabulary()


def test_arrays_of_a_folder_may_begin_anywhere(tmp_path: Path) -> None:
    x = sp.random(300, 50, 0.1, "csr", random_state=0, dtype=np.float32)
    oc.from_scipy(tmp_path / "x", x)
    for name in ("indptr", "indices", "data"):
        path = tmp_path / "x" / f"{name}.npy"
        values = np.load(path)
        header = f"{{'descr': '{values.dtype.str}', 'fortran_order': False, 'shape': {values.shape}, }}"
        header += " " * ((3 - 11 - len(header)) % 16) + "\n"
        path.write_bytes(b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode() + values.tobytes())
    found = oc.open(tmp_path / "x")
    assert (found.scipy() != x).nnz == 0
    np.testing.assert_allclose((found @ np.eye(50, dtype=np.float32)).numpy(), x.toarray(), rtol=1e-6)


def test_tiles_are_smaller_and_work_as_any_other(tmp_path: Path) -> None:
    x = made(4000, 70_000, 0.002)
    a = oc.from_scipy(tmp_path / "a", x)
    b = a.tiled(tmp_path / "b")
    assert b is not None
    assert b.is_tiled
    assert b.nbytes < 0.8 * a.nbytes
    again = oc.open(tmp_path / "b")
    assert same(again.scipy(), x)
    assert same(again[100:203], x[100:203])
    y = np.random.default_rng(0).random((70_000, 3), np.float32)
    np.testing.assert_allclose((again @ y).numpy(), x @ y, rtol=1e-4, atol=1e-5)
    assert oc.from_scipy(tmp_path / "c", sp.csr_matrix((5, 5), dtype=np.float32)).tiled() is None
