"""Rows and columns by lists and masks, as NumPy picks them, and what scikit-learn does with them."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pytest
import scipy.sparse as sp
from sklearn import decomposition, linear_model
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV, cross_val_score, train_test_split
from sklearn.pipeline import make_pipeline

import outcore as oc
from outcore import _array, _sparse, errors
from outcore._dtypes import dtype_of
from outcore.cluster import KMeans
from outcore.decomposition import PCA
from outcore.random_projection import SparseRandomProjection
from outcore.text import TfidfTransformer

ROWS, COLS = 60, 7


@pytest.fixture(params=["C", "F"])
def pair(request: pytest.FixtureRequest, tmp_path: Path, rng: np.random.Generator) -> tuple[oc.Array, Any]:
    x = rng.standard_normal((ROWS, COLS), dtype=np.float32)
    return oc.from_numpy(tmp_path / "x.npy", x, order=request.param), x


MASK = np.arange(ROWS) % 3 == 1
COLUMN_MASK = np.arange(COLS) % 2 == 0
KEYS = [
    [5, 50, 3],
    [-1, 0, -1],
    [],
    range(3, 50, 7),
    np.array([4, 4, 2], np.uint8),
    np.array([-3, 9], np.int16),
    MASK,
    MASK.tolist(),
    ~MASK & False,
    (MASK, ...),
    (..., [1, 3]),
    ([5, 50, 3], slice(None)),
    ([5, 50, 3], slice(2, 5)),
    ([5, 50, 3], slice(None, None, -2)),
    ([5, 50, 3], 4),
    ([5, 50, 3], -1),
    ([5, 50, 3], [0, 6, 2]),
    (slice(None), COLUMN_MASK),
    (slice(3, 40, 5), [6, -7, 2]),
    (slice(40, 3, -5), COLUMN_MASK),
    (7, [6, 0]),
    np.ix_([5, 50, 3], [6, 0, 0]),
    np.ix_(MASK, COLUMN_MASK),
    np.ix_([-1], [-7]),
    np.ix_([], [2]),
    np.ix_([2], []),
]


@pytest.mark.parametrize("key", KEYS, ids=str)
def test_keys_pick_what_they_pick_in_numpy(pair: tuple[oc.Array, Any], key: Any) -> None:
    a, x = pair
    found = a[key]
    assert isinstance(found, np.ndarray)
    assert found.dtype == x.dtype
    np.testing.assert_array_equal(found, x[key])


@pytest.mark.parametrize(
    ("key", "told"),
    [
        ([60], "out of bounds for axis 0 with size 60"),
        ([-61], "index -61"),
        (np.ones(59, bool), "a mask of 59 for axis 0, which has 60"),
        ([1.5], "not by float64"),
        (["a"], "not by"),
        (np.ones((ROWS, COLS), bool), "one dimension"),
        ([[1, 2], [3, 4]], "one dimension"),
        ((slice(None), [7]), "axis 1"),
        (([1], [2], [3]), "too many"),
    ],
    ids=str,
)
def test_keys_that_pick_nothing_say_why(pair: tuple[oc.Array, Any], key: Any, told: str) -> None:
    with pytest.raises(IndexError, match=told):
        pair[0][key]


def test_views_are_picked_from(pair: tuple[oc.Array, Any]) -> None:
    a, x = pair
    np.testing.assert_array_equal(a.slice(10, 50, columns=(2, 6))[[3, 39, 0]], x[10:50, 2:6][[3, 39, 0]])
    np.testing.assert_array_equal(a.T[[6, 2]], x.T[[6, 2]])
    np.testing.assert_array_equal(a.slice(10, 50, columns=(2, 6)).take([3, 39, 0]).numpy(), x[10:50, 2:6][[3, 39, 0]])


def test_taken_rows_are_an_array_wherever_they_go(pair: tuple[oc.Array, Any], tmp_path: Path) -> None:
    a, x = pair
    rows = [59, 0, -1, 30]
    assert a.take(rows).path is None
    np.testing.assert_array_equal(a.take(rows).numpy(), x[rows])
    taken = a.take(MASK, out=tmp_path / "taken.npy")
    assert taken.path == tmp_path / "taken.npy"
    np.testing.assert_array_equal(np.load(tmp_path / "taken.npy"), x[MASK])
    into = oc.create(tmp_path / "into.npy", (4, COLS), "float32", order=a.order)
    assert a.take(rows, out=into) is into
    np.testing.assert_array_equal(into.numpy(), x[rows])
    with pytest.raises(errors.ShapeError):
        a.take([1, 2], out=into)
    with pytest.raises(IndexError):
        a.take([60])
    with pytest.raises(errors.ArgumentError):
        a.take(np.arange(ROWS), out=a)


def test_rows_beyond_memory_are_an_array(pair: tuple[oc.Array, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    a, x = pair

    def no_room(size: int, what: object, advice: str) -> None:
        raise errors.NoMemoryError("too large", needed=size, available=0)

    monkeypatch.setattr(_array, "check_room", no_room)
    found = a[MASK]
    assert isinstance(found, oc.Array)
    np.testing.assert_array_equal(found.numpy(force=True), x[MASK])
    with pytest.raises(errors.NoMemoryError):
        a[MASK, 2:4]


SELECTED = """
import resource, sys, numpy as np, outcore as oc
oc.configure("16MiB", scratch=sys.argv[1], allow_tmpfs_scratch=True)
x = oc.create(sys.argv[1] + "/x.npy", (400_000, 25), "float32")
x[:] = np.arange(400_000, dtype="f4")[:, None]
used = [int(count) << 12 for count in open("/proc/self/statm").read().split()]
limit, place = (resource.RLIMIT_AS, 0) if sys.argv[2] == "AS" else (resource.RLIMIT_DATA, 5)
resource.setrlimit(limit, (used[place] + (26 << 20),) * 2)
for count, kind in ((100_000, np.ndarray), (350_000, oc.Array)):
    found = x[np.arange(400_000) >= 400_000 - count]
    assert type(found) is kind and found[-3:, 24].tolist() == [399_997, 399_998, 399_999], type(found)
"""


@pytest.mark.parametrize("limit", ["AS", "DATA"])
def test_rows_within_a_limit_of_the_process(limit: str, tmp_path: Path) -> None:
    """A selection of 10 MB fits what is left, and one of 35 MB does not."""
    done = subprocess.run([sys.executable, "-c", SELECTED, str(tmp_path), limit], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("shape", "picked"),
    [
        ((20_000, 1000), lambda rng: np.tile(rng.permutation(20_000), 6)),
        ((2000, 1000), lambda rng: np.tile(rng.permutation(2000), 60)),
        ((200_000, 100), lambda rng: rng.integers(0, 200_000, 400_000)),
        ((100_000, 200), lambda rng: np.append(rng.permutation(100_000), np.full(100_000, 77))[rng.permutation(200_000)]),
    ],
    ids=["often", "all of it in memory", "bootstrap", "one row"],
)
def test_rows_that_come_often_fit_any_budget(
    shape: tuple[int, int], picked: Any, tmp_path: Path, rng: np.random.Generator
) -> None:
    rows = picked(rng)
    x = rng.integers(0, 255, shape, dtype=np.uint8)
    oc.configure("16MiB", scratch=tmp_path)
    taken = oc.from_numpy(tmp_path / "x.npy", x).take(rows)
    for start in range(0, len(rows), 20_000):
        assert (taken[start : start + 20_000] == x[rows[start : start + 20_000]]).all()


@pytest.mark.parametrize("rows", [0, 1, 5000])
def test_vectors_and_more_dimensions(rows: int, tmp_path: Path, rng: np.random.Generator) -> None:
    for shape in ((5000,), (5000, 1), (5000, 2, 3)):
        x = rng.integers(0, 255, shape, dtype=np.uint8)
        a = oc.from_numpy(tmp_path / "x.npy", x)
        picked = rng.integers(0, 5000, rows)
        np.testing.assert_array_equal(a[picked], x[picked])
        np.testing.assert_array_equal(a.take(picked).numpy(), x[picked])


def test_what_is_not_there_says_what_is(pair: tuple[oc.Array, Any]) -> None:
    a, x = pair
    for refused in (lambda: a == [3], lambda: x == a, lambda: 3 in a, lambda: x < a, lambda: np.equal(a, 3), lambda: a >= 3):
        with pytest.raises(errors.ArgumentError, match=r"x\[i:j\] == 3"):
            refused()
    for refused in (lambda: np.sqrt(a), lambda: x + a, lambda: np.float32(2) * a, lambda: round(a), lambda: divmod(a, 2)):
        with pytest.raises(errors.ArgumentError, match="axpby"):
            refused()
    for refused in (lambda: a == 3, lambda: a != x, lambda: a < 3, lambda: a + 1, lambda: 2 * a, lambda: -a, lambda: bool(a)):
        with pytest.raises(errors.ArgumentError, match=r"in memory|axpby|len\(x\)"):
            refused()
    for name in ("flatten", "argsort"):
        with pytest.raises(AttributeError, match=rf"x\.numpy\(\)\.{name}"):
            getattr(a, name)
    for name, instead in (("astype", r"outcore\.convert"), ("quantile", "histogram"), ("dot", "x @ y")):
        with pytest.raises(AttributeError, match=f"use .*{instead}"):
            getattr(a, name)
    with pytest.raises(errors.ArgumentError, match="take"):
        del a[0]  # type: ignore[attr-defined]
    with pytest.raises(AttributeError, match=r"no 'colour'$"):
        a.colour  # type: ignore[attr-defined]  # noqa: B018
    with pytest.raises(IndexError, match="not assigned to"):
        a[[1, 2]] = 0
    assert [row.tolist() for row in a] == x.tolist()
    assert a not in (None, "x")
    assert a in [a]
    assert len({a, a}) == 1


@pytest.mark.parametrize("axis", [None, 0, 1, -1])
@pytest.mark.parametrize("how", ["min", "max", "sum", "mean", "var", "std"])
def test_numbers_about_an_array(pair: tuple[oc.Array, Any], how: str, axis: Any) -> None:
    a, x = pair
    found, expected = getattr(a, how)(axis=axis), getattr(x.astype("f8"), how)(axis=axis)
    np.testing.assert_allclose(found, expected, rtol=1e-6 if how in ("min", "max") else 1e-10)
    assert np.shape(found) == np.shape(expected)
    assert (found.dtype == x.dtype) == (how in ("min", "max"))


@pytest.mark.parametrize("axis", [None, 0, 1])
@pytest.mark.parametrize("function", [np.min, np.max, np.sum, np.mean, np.var, np.std])
def test_functions_of_numpy_ask_the_array(
    pair: tuple[oc.Array, Any], function: Any, axis: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, x = pair
    monkeypatch.setattr(oc.Array, "numpy", None)
    np.testing.assert_allclose(function(a, axis=axis), function(x.astype("f8"), axis=axis), rtol=1e-6)
    for bad in ({"keepdims": True}, {"out": np.empty(COLS)}):
        with pytest.raises(errors.ArgumentError, match=f"{next(iter(bad))}= is for arrays in memory"):
            function(a, axis=0, **bad)
    with pytest.raises(errors.ArgumentError, match="number of one axis"):
        function(a, axis=(0, 1))
    with pytest.raises(TypeError, match="ddf"):
        a.var(ddf=1)


def test_numbers_about_integers(tmp_path: Path, rng: np.random.Generator) -> None:
    x = rng.integers(0, 255, (1000, 12), dtype=np.uint8)
    a = oc.from_numpy(tmp_path / "x.npy", x)
    for axis in (None, 0, 1):
        assert a.sum(axis).dtype == np.uint64
        np.testing.assert_array_equal(a.sum(axis), x.sum(axis))
        assert a.max(axis).dtype == np.uint8
        np.testing.assert_array_equal(a.min(axis), x.min(axis))
    np.testing.assert_allclose(a.var(ddof=1), x.var(ddof=1))
    with pytest.raises(errors.DTypeError, match=r"outcore\.convert"):
        oc.from_numpy(tmp_path / "i.npy", x.astype("i8")).sum()


@pytest.mark.parametrize("how", ["min", "max", "sum", "mean", "var", "std"])
@pytest.mark.parametrize("shape", [(500,), (40, 3, 5)])
def test_numbers_about_vectors_and_more_dimensions(
    shape: tuple[int, ...], how: str, tmp_path: Path, rng: np.random.Generator
) -> None:
    x = rng.integers(0, 255, shape, dtype=np.uint8)
    a = oc.from_numpy(tmp_path / "x.npy", x)
    for axis in (None, 0, -len(shape)):
        found, expected = getattr(a, how)(axis=axis), getattr(x, how)(axis=axis)
        np.testing.assert_allclose(found, expected)
        assert np.shape(found) == np.shape(expected)
    if len(shape) > 1:
        with pytest.raises(errors.ShapeError, match="reshape"):
            getattr(a, how)(axis=1)
    with pytest.raises(errors.ShapeError, match="no axis 3"):
        getattr(a, how)(axis=3)


def test_a_vector_is_seen_as_a_column(tmp_path: Path, rng: np.random.Generator) -> None:
    x = rng.standard_normal((500, 2))
    a = oc.from_numpy(tmp_path / "v.npy", x[:, 0].copy())
    np.testing.assert_array_equal(a.reshape(-1, 1).numpy(), x[:, :1])
    np.testing.assert_array_equal(a.histogram()[0], np.histogram(x[:, 0])[0])
    np.testing.assert_array_equal(a.reshape(500, 1).T.numpy(), x[:, :1].T)


@pytest.mark.parametrize("bins", [10, [-1.0, 0.0, 0.5, 3.0]])
@pytest.mark.parametrize("limits", [None, (-1.0, 1.0)])
def test_a_histogram_is_that_of_numpy(
    pair: tuple[oc.Array, Any], bins: Any, limits: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("outcore._statistics.BLOCK_BYTES", 100)
    counts, edges = pair[0].histogram(bins, limits)
    expected, expected_edges = np.histogram(pair[1], bins, limits)
    np.testing.assert_array_equal(counts, expected)
    np.testing.assert_allclose(edges, expected_edges, rtol=1e-5)


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("name", ["bool", "int8", "uint8", "int16", "uint16", "float16", "bfloat16", "float8_e5m2"])
def test_values_of_few_bits_are_counted_in_one_pass(
    name: str, order: Any, tmp_path: Path, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("outcore._statistics.BLOCK_BYTES", 100)
    monkeypatch.setattr("outcore._statistics.COUNTED_AT_ONCE", 7)
    x = (rng.standard_normal((50, 9)) * 20).astype("i1").astype(dtype_of(name))
    a, wide, read = oc.from_numpy(tmp_path / "x.npy", x, order=order), x.astype("f8"), 0
    whole_read = oc.Array._read

    def counted(part: oc.Array, progress: bool | None = None) -> Any:
        nonlocal read
        read += part.nbytes
        return whole_read(part, progress)

    monkeypatch.setattr(oc.Array, "_read", counted)
    monkeypatch.setattr("outcore._statistics.extreme", None)
    for bins, limits in ((10, None), (300, None), (7, (-3.5, 12.0)), ([-30.0, 0.0, 1.0, 30.0], None)):
        counts, edges = a.histogram(bins, limits)
        expected, expected_edges = np.histogram(wide, bins, limits)
        np.testing.assert_array_equal(counts, expected)
        np.testing.assert_array_equal(edges, expected_edges)
        assert counts.dtype == np.int64
    assert read == 4 * a.nbytes
    counts, edges = oc.create(tmp_path / "none.npy", (0, 3), x.dtype).histogram()
    assert not counts.any() and edges[[0, -1]].tolist() == [0, 1]


def test_dlpack_both_ways(pair: tuple[oc.Array, Any], tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    a, x = pair
    np.testing.assert_array_equal(torch.from_dlpack(a).numpy(), x)
    np.testing.assert_array_equal(np.from_dlpack(a), x)
    made = oc.from_numpy(tmp_path / "t.npy", torch.arange(12, dtype=torch.int16).reshape(3, 4))
    assert made.dtype == np.int16
    made[1] = torch.full((4,), 9, dtype=torch.int16)
    np.testing.assert_array_equal(made.numpy(), [[0, 1, 2, 3], [9, 9, 9, 9], [8, 9, 10, 11]])


@pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_dlpack_of_what_numpy_does_not_have(name: str, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    x = torch.tensor([[0.5, 1, 2], [3, 4, 6]]).to(getattr(torch, name))
    a = oc.from_numpy(tmp_path / "x.npy", x)
    assert a.dtype.name == name
    np.testing.assert_array_equal(a[:].astype("f4"), x.float().numpy())
    a[0] = x[1]
    found = torch.from_dlpack(a)
    assert found.dtype == x.dtype
    assert found.float().tolist() == [[3, 4, 6], [3, 4, 6]]
    with oc.append(tmp_path / "x.npy") as w:
        w.write(x)
    assert len(oc.open(tmp_path / "x.npy")) == 4


def test_tensors_are_fitted_and_multiplied_where_they_lie() -> None:
    torch = pytest.importorskip("torch")
    x = torch.rand(50, 5, generator=torch.Generator().manual_seed(0))
    for dtype, kind in ((torch.float32, "float32"), (torch.float64, "float64"), (torch.bfloat16, "float32")):
        assert PCA(2).fit(x.to(dtype)).components_.dtype == kind
    assert KMeans(2, random_state=0).fit(x).cluster_centers_.dtype == np.float32
    np.testing.assert_allclose(oc.linalg.gemm(x, x.T).numpy(), (x @ x.T).numpy(), rtol=1e-5)


def test_dlpack_without_a_copy_is_refused(pair: tuple[oc.Array, Any]) -> None:
    with pytest.raises(BufferError, match="always copied"):
        np.from_dlpack(pair[0], copy=False)


def test_scikit_learn_splits_searches_and_validates(pair: tuple[oc.Array, Any], tmp_path: Path) -> None:
    a, x = pair
    y = np.arange(ROWS)
    train, test, y_train, y_test = train_test_split(a, y, random_state=0)
    expected = train_test_split(x, y, random_state=0)
    for found, wanted in zip((train, test, y_train, y_test), expected, strict=True):
        np.testing.assert_array_equal(found, wanted)
    grid = {"n_components": [1, 2, 3]}
    ours = GridSearchCV(PCA(), grid, cv=3, scoring=_captured).fit(a)
    theirs = GridSearchCV(decomposition.PCA(svd_solver="covariance_eigh"), grid, cv=3, scoring=_captured).fit(x)
    np.testing.assert_allclose(ours.cv_results_["mean_test_score"], theirs.cv_results_["mean_test_score"], rtol=1e-3)
    assert len(cross_val_score(KMeans(2, random_state=0), a, cv=4)) == 4
    frame = make_pipeline(clone(PCA(2)).set_output(transform="pandas")).fit_transform(a)
    assert list(frame.columns) == ["pca0", "pca1"]
    joblib.dump({"x": a}, tmp_path / "dumped.joblib")
    np.testing.assert_array_equal(joblib.load(tmp_path / "dumped.joblib")["x"].numpy(), x)


def _captured(model: Any, x: Any, y: Any = None) -> float:
    """Of the variance, by the components."""
    x = np.asarray(x)
    centred = x - model.mean_
    return float(np.square(centred @ model.components_.T).sum() / np.square(centred).sum())


@pytest.fixture(params=["arrays", "tiles"])
def sparse_pair(request: pytest.FixtureRequest, tmp_path: Path, rng: np.random.Generator) -> tuple[oc.Sparse, Any]:
    s = sp.random(200, 90, 0.1, "csr", np.float32, random_state=rng)
    a = oc.from_scipy(tmp_path / "s", s)
    if request.param == "tiles":
        tiled = a.tiled()
        a = a if tiled is None else tiled
    return a, s


@pytest.mark.parametrize("gap_bytes", [0, 64 << 10])
@pytest.mark.parametrize(
    "key",
    [
        [5, 150, 3],
        [-1, 0, -1],
        [],
        np.arange(200) % 3 == 0,
        slice(150, 3, -7),
        ([7, 9], slice(2, 5)),
        (3, [5, 0]),
        np.ix_([7, 9, 7], [1, 0]),
        np.ix_(np.arange(200) % 3 == 0, np.arange(90) % 2 == 0),
        range(200),
    ],
    ids=str,
)
def test_rows_of_a_sparse_matrix(
    sparse_pair: tuple[oc.Sparse, Any], key: Any, gap_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("outcore._sparse.GAP_BYTES", gap_bytes)
    monkeypatch.setattr("outcore._sparse.SPAN_BYTES", 2000)
    a, s = sparse_pair
    np.testing.assert_array_equal(a[key].toarray(), s[key].toarray())
    if isinstance(key, tuple) and not np.isscalar(key[0]):
        turned = (key[1], key[0]) if isinstance(key[1], slice) else np.ix_(key[1][0], key[0][:, 0])
        np.testing.assert_array_equal(a.T[turned].toarray(), s.T[turned].toarray())


def test_lists_of_rows_and_columns_pick_pairs(sparse_pair: tuple[oc.Sparse, Any]) -> None:
    a, s = sparse_pair
    rows, cols = np.arange(200).tolist(), (np.arange(200) % 90).tolist()
    for key in ((rows, cols), ([3, 1], [4, 5]), ([3, -1], [-4, 5]), (np.arange(200) < 5, [8, 1, 1, 0, 2])):
        np.testing.assert_array_equal(a[key], s[key])
        np.testing.assert_array_equal(a.T[key[1], key[0]], s.T[key[1], key[0]])
    with pytest.raises(IndexError):
        a[[1, 2, 3], [4, 5]]
    with pytest.raises(IndexError, match="axis 1"):
        a[[1, 2], [90, 0]]


def test_rows_of_a_sparse_matrix_beyond_memory_are_one(
    sparse_pair: tuple[oc.Sparse, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, s = sparse_pair

    def no_room(size: int, what: object, advice: str) -> None:
        raise errors.NoMemoryError("too large", needed=size, available=0)

    monkeypatch.setattr(_sparse, "check_room", no_room)
    mask = np.arange(200) % 3 == 0
    for key in (mask, [5, 150, 3], slice(None, None, 7)):
        found = a[key]
        assert isinstance(found, oc.Sparse)
        np.testing.assert_array_equal(found.scipy(force=True).toarray(), s[key].toarray())
    assert isinstance(a.T[:, mask], oc.Sparse)
    np.testing.assert_array_equal(a.take(mask, out=tmp_path / "taken").scipy(force=True).toarray(), s[mask].toarray())
    with pytest.raises(errors.NoMemoryError):
        a[mask, 2:4]


def test_what_sparse_matrices_do_not_have_says_what_to_use(sparse_pair: tuple[oc.Sparse, Any]) -> None:
    a, s = sparse_pair
    for refused in (lambda: a == 3, lambda: a != a.T, lambda: a < 3, lambda: np.ones((200, 90)) == a):
        with pytest.raises(errors.ArgumentError, match=r"s\[i:j\] != 3"):
            refused()
    for refused in (lambda: a + 1, lambda: 2 * a, lambda: -a, lambda: np.sqrt(a)):
        with pytest.raises(errors.ArgumentError, match=r"linalg\.scaled"):
            refused()
    for name in ("sum", "toarray", "multiply"):
        with pytest.raises(AttributeError, match=rf"s\.scipy\(\)\.{name}"):
            getattr(a, name)
        assert hasattr(s, name)
    with pytest.raises(AttributeError, match=r"no 'colour'$"):
        a.colour  # noqa: B018
    with pytest.raises(IndexError, match="a number within 200, a slice, a list or a mask"):
        a[200]
    assert a in [a] and a not in (None, "x")
    np.testing.assert_allclose((np.ones((2, 200), "f4") @ a).numpy(), np.ones((2, 200), "f4") @ s, rtol=1e-5)
    np.testing.assert_allclose(np.matmul(a, np.ones((90, 2), "f4")).numpy(), s @ np.ones((90, 2), "f4"), rtol=1e-5)


def test_taken_rows_of_a_sparse_matrix(sparse_pair: tuple[oc.Sparse, Any], tmp_path: Path) -> None:
    a, s = sparse_pair
    mask = np.arange(200) % 7 == 2
    taken = a.take(mask, out=tmp_path / "taken")
    assert taken.path == tmp_path / "taken"
    np.testing.assert_array_equal(oc.open(tmp_path / "taken")[:].toarray(), s[mask].toarray())
    np.testing.assert_array_equal(a.take([-1, 0]).scipy().toarray(), s[[-1, 0]].toarray())
    with pytest.raises(IndexError, match="out of bounds"):
        a.take([200])
    with pytest.raises(errors.ArgumentError, match="csrcsc"):
        a.T.take([1])


@pytest.mark.parametrize("form", ["float32", "float64", "ones", "uint16"])
@pytest.mark.parametrize("memory", ["2MiB", "64MiB"])
def test_many_rows_are_taken_within_a_small_budget(form: str, memory: str, tmp_path: Path, rng: np.random.Generator) -> None:
    """Short rows, empty ones, and one that is longer than a panel; in order, in no order, again and again."""
    n, width = 30_000, 60_000
    lengths = rng.integers(0, 12, n)
    lengths[7], lengths[5000:6000] = width, 0
    offsets = np.r_[0, np.cumsum(lengths)]
    indices = np.concatenate([np.sort(rng.choice(width, count, replace=False)) for count in lengths])
    values = np.ones(len(indices)) if form == "ones" else rng.standard_normal(len(indices))
    s = sp.csr_matrix((values.astype("f8" if form in ("float64", "ones") else "f4"), indices, offsets), (n, width))
    path = tmp_path / "s"
    oc.from_scipy(path, s)
    if form == "uint16":
        np.save(path / "indices.npy", indices.astype(np.uint16))
    if form == "ones":
        (path / "data.npy").unlink()
    a = oc.open(path)
    for rows in (
        np.flatnonzero(rng.random(n) < 0.6),
        rng.permutation(n)[:20_000],
        rng.integers(0, n, 20_000),
        np.array([7, 3, 7]),
        np.arange(5000, 6000),
        np.empty(0, int),
    ):
        taken = a.take(rows, memory=memory)
        assert taken.dtype == s.dtype
        assert taken.index_dtype == a.index_dtype
        assert (taken.scipy() != s[rows]).nnz == 0
        assert (a[rows] != s[rows]).nnz == 0
        np.testing.assert_array_equal(a[rows].indptr, s[rows].indptr)
        part = a.slice(1000, 29_000)
        inside = rows[(rows >= 1000) & (rows < 29_000)] - 1000
        assert (part.take(inside, out=tmp_path / "taken", memory=memory).scipy() != s[inside + 1000]).nnz == 0
    with pytest.raises(errors.OverBudgetError):
        a.take(np.repeat(np.arange(n), 10), memory="2MiB")


def test_scikit_learn_splits_sparse_matrices(sparse_pair: tuple[oc.Sparse, Any], tmp_path: Path) -> None:
    a, s = sparse_pair
    for found, expected in zip(train_test_split(a, random_state=0), train_test_split(s, random_state=0), strict=True):
        np.testing.assert_array_equal(found.toarray(), expected.toarray())
    assert len(cross_val_score(KMeans(2, random_state=0), a, cv=4)) == 4
    if a.path is not None:
        joblib.dump(a, tmp_path / "dumped.joblib")
        np.testing.assert_array_equal(joblib.load(tmp_path / "dumped.joblib")[:].toarray(), s.toarray())


def test_scikit_learn_searches_and_chains_sparse_matrices(sparse_pair: tuple[oc.Sparse, Any]) -> None:
    a, s = sparse_pair
    y = np.arange(200) % 3 == 0
    grid: Any = {"n_clusters": [2, 3]}
    ours = [GridSearchCV(KMeans(random_state=0), grid, cv=3).fit(x).cv_results_["mean_test_score"] for x in (a, s)]
    np.testing.assert_allclose(*ours, rtol=1e-4)
    # Parts of a stored matrix are SciPy's.
    theirs = [cross_val_score(linear_model.LogisticRegression(), x, y, cv=3) for x in (a, s)]
    np.testing.assert_array_equal(*theirs)
    chained = [cross_val_score(make_pipeline(TfidfTransformer(), linear_model.Ridge()), x, y, cv=3) for x in (a, s)]
    np.testing.assert_allclose(*chained, rtol=1e-4)
    labels = [make_pipeline(TfidfTransformer(), KMeans(2, random_state=0)).fit_predict(x) for x in (a, s)]
    np.testing.assert_array_equal(*labels)


@pytest.mark.parametrize("kind", ["pandas", "polars"])
def test_data_frames_of_sparse_results_are_refused_as_scikit_learn_refuses_them(
    sparse_pair: tuple[oc.Sparse, Any], kind: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, s = sparse_pair
    model = TfidfTransformer().fit(a).set_output(transform=kind)
    with pytest.raises(ValueError, match="scipy sparse matrix") as theirs:
        model.transform(s)
    for act in (lambda: model.transform(a), lambda: model.fit_transform(a), lambda: model.transform(s, out=tmp_path / "t")):
        with pytest.raises(ValueError, match="scipy sparse matrix") as ours:
            act()
        assert str(ours.value) == str(theirs.value)
    assert not (tmp_path / "t").exists()
    model.set_output(transform="default")
    np.testing.assert_allclose(model.transform(a).scipy().toarray(), model.transform(s).toarray(), rtol=1e-6)


def test_data_frames_of_dense_results_of_sparse_matrices(sparse_pair: tuple[oc.Sparse, Any]) -> None:
    a, s = sparse_pair
    for model in (KMeans(3, random_state=0), SparseRandomProjection(4, random_state=0)):
        frames = [clone(model).set_output(transform="pandas").fit_transform(x) for x in (a, s)]
        assert frames[0].columns.tolist() == frames[1].columns.tolist()
        np.testing.assert_allclose(*frames, rtol=1e-4, atol=1e-5)
