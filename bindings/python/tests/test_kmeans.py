"""KMeans: a scikit-learn estimator, and scikit-learn's clusters, for data on SSD and in memory."""

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import scipy.sparse as sp
import sklearn.cluster
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.pipeline import make_pipeline
from sklearn.utils.estimator_checks import check_estimator

import outcore as oc
from outcore import errors
from outcore.cluster import KMeans
from outcore.decomposition import PCA


@pytest.mark.parametrize("estimator", [KMeans(3, init="k-means||"), KMeans(2, init="random", n_init=2)])
def test_scikit_learn_checks_of_other_beginnings(estimator: KMeans) -> None:
    """All but one more, which scikit-learn's KMeans fails too: a seed chooses other rows where some are repeated."""
    other = "a seed chooses other rows where some are repeated"
    failed = {f"check_sample_weight_equivalence_on_{kind}_data": other for kind in ("dense", "sparse")}
    check_estimator(estimator, on_skip=None, expected_failed_checks=failed)


@pytest.mark.parametrize("kind", [np.asarray, sp.csr_matrix])
def test_a_seed_takes_a_row_of_weight_w_for_w_rows(rng: np.random.Generator, kind: Any) -> None:
    x, weights = rng.integers(3, size=(200, 8)).astype("float32"), rng.integers(4, size=200)
    mixed = rng.permutation(np.repeat(np.arange(200), weights))
    weighted = KMeans(12, random_state=1, max_iter=1).fit(kind(x), sample_weight=weights)
    repeated = KMeans(12, random_state=1, max_iter=1).fit(kind(x[mixed]))
    np.testing.assert_allclose(weighted.cluster_centers_, repeated.cluster_centers_, rtol=1e-5)


@pytest.fixture
def x(rng: np.random.Generator) -> npt.NDArray[np.float64]:
    """Clouds that overlap."""
    return rng.standard_normal((12, 16))[rng.integers(12, size=60_000)] + rng.standard_normal((60_000, 16)) + 3


@pytest.mark.parametrize("where", ["memory", "stored", "copied"])
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_clusters_are_those_of_scikit_learn(tmp_path: Path, x: npt.NDArray[Any], where: str, order: Any, dtype: str) -> None:
    x = np.asarray(x, dtype, order)
    reference = sklearn.cluster.KMeans(10, init=x[:10], n_init=1, max_iter=15, tol=0, algorithm="lloyd").fit(x.astype(float))
    data = x if where == "memory" else oc.from_numpy(tmp_path / "x.npy", x, order=order)
    # The copy is read where the data are larger than the budget.
    km = KMeans(10, init=x[:10], max_iter=15, tol=0, memory="64MiB" if where != "copied" else "3MiB").fit(data)
    # In float32 a few rows in a million are on the border between two clusters.
    assert (km.labels_ != reference.labels_).sum() <= (3 if dtype == "float32" else 0)
    assert km.labels_.dtype == np.int32
    assert km.n_iter_ == reference.n_iter_
    np.testing.assert_allclose(km.inertia_, reference.inertia_, rtol=1e-5)
    np.testing.assert_allclose(km.cluster_centers_, reference.cluster_centers_, atol=2e-3 if dtype == "float32" else 1e-6)
    assert km.cluster_centers_.dtype == dtype
    np.testing.assert_array_equal(km.predict(data), km.labels_)
    np.testing.assert_allclose(km.score(data), -km.inertia_, rtol=1e-5)
    distances = km.transform(data)
    assert isinstance(distances, np.ndarray if where == "memory" else oc.Array)
    assert distances.dtype == dtype
    np.testing.assert_allclose(np.asarray(distances[:]), reference.transform(x), atol=5e-3 if dtype == "float32" else 1e-5)


def test_weights_are_those_of_scikit_learn(tmp_path: Path, x: npt.NDArray[Any], rng: np.random.Generator) -> None:
    weights = rng.integers(0, 4, len(x)).astype(float)
    reference = sklearn.cluster.KMeans(6, init=x[:6], n_init=1, tol=0, max_iter=9).fit(x, sample_weight=weights)
    km = KMeans(6, init=x[:6], tol=0, max_iter=9)
    data = oc.from_numpy(tmp_path / "x.npy", x)
    np.testing.assert_array_equal(km.fit_predict(data, sample_weight=weights), reference.labels_)
    np.testing.assert_allclose(km.inertia_, reference.inertia_, rtol=1e-9)
    np.testing.assert_allclose(km.score(data, sample_weight=weights), reference.score(x, sample_weight=weights), rtol=1e-9)
    with pytest.raises(errors.ShapeError):
        km.fit(data, sample_weight=weights[1:])
    with pytest.raises(errors.ArgumentError, match="non-negative"):
        km.fit(data, sample_weight=-weights)


@pytest.mark.parametrize("init", ["k-means++", "k-means||", "random"])
@pytest.mark.parametrize("stored", [True, False])
def test_every_beginning_leads_to_clusters_as_good(tmp_path: Path, rng: np.random.Generator, init: str, stored: bool) -> None:
    middles = 30 * rng.standard_normal((5, 4))
    x = middles[rng.integers(5, size=4000)] + rng.standard_normal((4000, 4))
    data = oc.from_numpy(tmp_path / "x.npy", x) if stored else x
    km = KMeans(5, init=init, n_init=8, random_state=0).fit(data)
    best = sklearn.cluster.KMeans(5, n_init=10, random_state=0).fit(x)
    np.testing.assert_allclose(km.inertia_, best.inertia_, rtol=1e-6)
    again = KMeans(5, init=init, n_init=8, random_state=0).fit(data)
    np.testing.assert_array_equal(km.cluster_centers_, again.cluster_centers_)


def test_bounds_and_the_copy_save_work_that_the_trace_shows(tmp_path: Path, x: npt.NDArray[Any]) -> None:
    data = oc.from_numpy(tmp_path / "x.npy", x.astype(np.float32))
    km = KMeans(4, init=x[:4], tol=0, max_iter=40, memory="3MiB").fit(data)
    assert km.trace_.runs >= km.n_iter_
    assert "k-means first round" in km.trace_.plan
    assert "k-means round" in km.trace_.plan
    assert km.trace_.actual["bytes_read"] > 1.5 * data.nbytes
    assert km.trace_.actual["bytes_read"] < data.nbytes * (1 + km.n_iter_ * 0.7)
    assert km.trace_.actual["peak_bytes"] <= 3 << 20
    assert 0 < km.compared_ < 0.9


def test_interrupted_rounds_are_kept(tmp_path: Path, x: npt.NDArray[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    data = oc.from_numpy(tmp_path / "x.npy", x)
    km = KMeans(200, init=x[:200], tol=0, max_iter=100_000)

    class Impatient:
        def __init__(self, label: str, progress: bool | None) -> None: ...

        def __enter__(self) -> Any:
            return self

        def __exit__(self, *_: object) -> None: ...

        def update(self, fraction: Any) -> None:
            if fraction() > 2 / 100_000:
                raise KeyboardInterrupt

    monkeypatch.setattr("outcore._run.Bar", Impatient)
    with pytest.raises(KeyboardInterrupt):
        km.fit(data)
    assert km.n_iter_ >= 1
    assert not hasattr(km, "labels_")
    monkeypatch.undo()
    straight = KMeans(200, init=x[:200], tol=0, max_iter=km.n_iter_).fit(data)
    np.testing.assert_array_equal(km.cluster_centers_, straight.cluster_centers_)
    rest = km.set_params(init=km.cluster_centers_, max_iter=3).fit(data)
    assert rest.inertia_ < straight.inertia_
    assert rest.predict(data).shape == (len(x),)


def test_what_is_not_finite_is_named(tmp_path: Path, x: npt.NDArray[Any]) -> None:
    x[1234, 5] = np.inf
    data = oc.from_numpy(tmp_path / "x.npy", x)
    with pytest.raises(errors.NotFiniteError, match="row 1234, column 5"):
        KMeans(3, init=x[:3]).fit(data)
    with pytest.raises(errors.NotFiniteError) as caught:
        KMeans(3, max_iter=2).fit(data)
    assert (caught.value.row, caught.value.column) == (1234, 5)


def test_arguments_without_sense_are_refused(tmp_path: Path, x: npt.NDArray[Any]) -> None:
    data = oc.from_numpy(tmp_path / "x.npy", x)
    for wrong in (
        {"n_clusters": 0},
        {"n_clusters": 1.5},
        {"n_clusters": 70_000},
        {"max_iter": 0},
        {"tol": -1},
        {"n_init": 0},
        {"n_init": "often"},
        {"init": "far"},
        {"init": np.full((8, 16), np.nan)},
    ):
        with pytest.raises(errors.ArgumentError):
            KMeans(**wrong).fit(data)
    with pytest.raises(errors.ShapeError):
        KMeans(3, init=x[:4]).fit(data)
    with pytest.raises(errors.ShapeError):
        KMeans(3).fit(data).predict(oc.from_numpy(tmp_path / "y.npy", x[:, :5].copy()))
    with pytest.raises(errors.OverBudgetError):
        KMeans(3000, init=x[:3000], memory="1MiB").fit(data)


def test_equal_rows_leave_clusters_without_any() -> None:
    with pytest.warns(ConvergenceWarning, match=r"distinct clusters \(1\)"):
        km = KMeans(3).fit(np.ones((10, 2)))
    assert km.inertia_ == 0


def test_sums_that_memory_holds_once_have_the_same_bits_for_any_number_of_threads(tmp_path: Path) -> None:
    """Of 40 centres of 20,000 columns a lane takes more than a quarter of the budget."""
    rows = sp.random(4000, 20_000, 0.002, "csr", np.float32, rng=1)
    rows.data[:] = np.random.default_rng(2).integers(1, 5, rows.nnz)
    weights, start = np.linspace(0.5, 2, 4000), rows[::100].toarray()
    oc.from_scipy(tmp_path / "x", rows)
    found = []
    for threads in (1, 2, 5):
        with oc.Session("24MiB", tmp_path / "scratch", threads, allow_tmpfs_scratch=True) as session:
            model = KMeans(40, init=start, n_init=1, max_iter=4, tol=0).fit(session.open(tmp_path / "x"), sample_weight=weights)
            assert model.explain(session.open(tmp_path / "x")).tasks > 2 * 8
            found.append(model)
    for other in found[1:]:
        np.testing.assert_array_equal(other.labels_, found[0].labels_)
        np.testing.assert_array_equal(other.cluster_centers_, found[0].cluster_centers_)
        assert other.inertia_ == found[0].inertia_
    expected = sklearn.cluster.KMeans(40, init=start, n_init=1, max_iter=4, tol=0, algorithm="lloyd").fit(
        rows, sample_weight=weights
    )
    assert (found[0].labels_ == expected.labels_).mean() > 0.99
    np.testing.assert_allclose(found[0].inertia_, expected.inertia_, rtol=1e-4)


def test_explain_has_plans_and_moves_nothing(tmp_path: Path, x: npt.NDArray[Any]) -> None:
    data = oc.from_numpy(tmp_path / "x.npy", x)
    km = KMeans(5, memory="3MiB")
    plan = km.explain(data)
    assert [part.name for part in plan.parts] == ["k-means first round", "k-means round"]
    assert plan.bytes_read == sum(part.bytes_read for part in plan.parts) and "k-means round" in str(plan)
    assert oc.explain(km.fit, data).json() == plan.json()
    assert not hasattr(km, "n_features_in_")


def test_it_is_a_citizen_of_scikit_learn(tmp_path: Path, x: npt.NDArray[Any]) -> None:
    data = oc.from_numpy(tmp_path / "x.npy", x)
    model = make_pipeline(PCA(4), KMeans(3, random_state=0)).fit(data)
    assert model.predict(data).shape == (len(x),)
    km = KMeans(3, random_state=0).fit(data)
    back = pickle.loads(pickle.dumps(km))
    np.testing.assert_array_equal(back.predict(x[:50]), km.labels_[:50])
    assert clone(km).get_params() == km.get_params()
    assert list(km.get_feature_names_out()) == ["kmeans0", "kmeans1", "kmeans2"]


def test_distances_are_written_where_they_shall_be(tmp_path: Path, x: npt.NDArray[Any]) -> None:
    data = oc.from_numpy(tmp_path / "x.npy", x)
    km = KMeans(3, random_state=0, max_iter=3).fit(x)
    found = km.transform(data, out=tmp_path / "d.npy")
    np.testing.assert_allclose(np.load(tmp_path / "d.npy"), km.transform(x), rtol=1e-6)
    assert km.transform(x, out=found) is found


def sparse_rows(n: int = 3000, d: int = 80, clusters: int = 6, seed: int = 0) -> Any:
    """Rows of few words each, most of them from the words of one of some topics."""
    rng = np.random.default_rng(seed)
    topics = rng.integers(0, clusters, n)
    words = np.where(rng.random((n, 8)) < 0.8, topics[:, None] * (d // clusters) + rng.integers(0, d // clusters, (n, 8)), 0)
    noise = rng.integers(0, d, (n, 8))
    places = np.where(words > 0, words, noise)
    values = rng.random((n, 8)) + 0.5
    return sp.csr_matrix((values.ravel(), (np.repeat(np.arange(n), 8), places.ravel())), shape=(n, d))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("weighted", [False, True])
def test_sparse_rows_get_the_labels_of_scikit_learn(tmp_path: Path, dtype: Any, weighted: bool) -> None:
    x = sparse_rows().astype(dtype)
    weights = np.random.default_rng(2).random(x.shape[0]) if weighted else None
    start = x[:: x.shape[0] // 6][:6].toarray()
    theirs = sklearn.cluster.KMeans(6, init=start, n_init=1, max_iter=12, tol=0).fit(x, sample_weight=weights)
    for rows in (oc.from_scipy(tmp_path / "x", x), x, x.tocsc()):
        ours = KMeans(6, init=start, max_iter=12, tol=0, memory="4MiB").fit(rows, sample_weight=weights)
        assert (ours.labels_ != theirs.labels_).mean() < 2e-3
        assert ours.inertia_ == pytest.approx(theirs.inertia_, rel=1e-4 if dtype == np.float32 else 1e-9)
        np.testing.assert_array_equal(ours.predict(rows), ours.labels_)
        assert ours.score(rows, sample_weight=weights) == pytest.approx(-ours.inertia_, rel=1e-5)
        distances = ours.transform(rows)
        distances = distances.numpy() if isinstance(distances, oc.Array) else distances
        np.testing.assert_allclose(distances, theirs.transform(x), rtol=1e-2 if dtype == np.float32 else 1e-9, atol=1e-2)


@pytest.mark.parametrize("init", ["k-means++", "k-means||", "random"])
def test_sparse_rows_are_seeded(tmp_path: Path, init: str) -> None:
    x = oc.from_scipy(tmp_path / "x", sparse_rows())
    found = KMeans(6, init=init, n_init=3, random_state=1).fit(x)
    again = KMeans(6, init=init, n_init=3, random_state=1).fit(x)
    np.testing.assert_array_equal(found.labels_, again.labels_)
    best = sklearn.cluster.KMeans(6, n_init=10, random_state=0).fit(sparse_rows()).inertia_
    assert found.inertia_ < 1.2 * best


def test_sparse_clusters_without_rows_get_the_farthest(tmp_path: Path) -> None:
    x = sparse_rows(400)
    start = np.vstack([x[:3].toarray(), np.full((2, x.shape[1]), 50.0)])
    theirs = sklearn.cluster.KMeans(5, init=start, n_init=1, max_iter=5, tol=0).fit(x)
    ours = KMeans(5, init=start, max_iter=5, tol=0).fit(oc.from_scipy(tmp_path / "x", x))
    np.testing.assert_array_equal(ours.labels_, theirs.labels_)


def test_a_sparse_value_that_is_not_finite_is_named(tmp_path: Path) -> None:
    x = sparse_rows(100)
    x.data[x.indptr[40] + 1] = np.nan
    with pytest.raises(errors.NotFiniteError) as caught:
        KMeans(2, init=np.zeros((2, 80)) + [[0.0], [1.0]]).fit(oc.from_scipy(tmp_path / "x", x))
    assert (caught.value.row, caught.value.column) == (40, x.indices[x.indptr[40] + 1])
    with pytest.raises(errors.ArgumentError, match="csrcsc"):
        KMeans(2).fit(oc.from_scipy(tmp_path / "y", sparse_rows().tocsc()))
