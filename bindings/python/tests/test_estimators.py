"""Every estimator of the package keeps the conventions of scikit-learn, and refuses at once what it cannot take."""

import importlib
import pickle
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.base import BaseEstimator
from sklearn.exceptions import DataDimensionalityWarning
from sklearn.utils.estimator_checks import parametrize_with_checks

import outcore as oc
from outcore import errors
from outcore.cluster import KMeans, SpectralClustering
from outcore.decomposition import PCA, TruncatedSVD
from outcore.neighbors import KNeighborsClassifier, KNeighborsRegressor, NearestNeighbors
from outcore.random_projection import SparseRandomProjection
from outcore.text import TfidfTransformer
from outcore.topics import TopicModel

ESTIMATORS = [
    PCA(),
    PCA(1, whiten=True),
    TruncatedSVD(),
    SpectralClustering(n_init=2),
    KMeans(),
    SparseRandomProjection(n_components=2),
    SparseRandomProjection(),
    TfidfTransformer(),
    TopicModel(2),
    NearestNeighbors(),
    KNeighborsClassifier(),
    KNeighborsRegressor(weights="distance"),
]


@parametrize_with_checks(ESTIMATORS)
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.DataDimensionalityWarning")
def test_scikit_learn_checks(estimator: Any, check: Any) -> None:
    check(estimator)


def test_every_estimator_is_checked() -> None:
    found = set()
    for name in ("cluster", "decomposition", "neighbors", "random_projection", "text", "topics"):
        module = importlib.import_module(f"outcore.{name}")
        found |= {kind for kind in (getattr(module, name) for name in module.__all__) if issubclass(kind, BaseEstimator)}
    assert found == {type(estimator) for estimator in ESTIMATORS}


def nothing_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(*_: object) -> None:
        raise AssertionError("something was read")

    monkeypatch.setattr(oc.Session, "_run", run)


FITTED = [PCA(2), KMeans(2), SparseRandomProjection(2), TfidfTransformer(), TopicModel(2)]


def stored(path: Path, estimator: Any, features: int) -> Any:
    """Counts of words for some, rows for the others."""
    x = np.random.default_rng(features).integers(0, 3, (40, features)).astype("f")
    return (
        oc.from_scipy(path, sp.csr_matrix(x)) if isinstance(estimator, (TfidfTransformer, TopicModel)) else oc.from_numpy(path, x)
    )


@pytest.mark.parametrize("estimator", FITTED, ids=lambda estimator: type(estimator).__name__)
def test_a_fit_that_ends_early_leaves_the_model_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, estimator: Any
) -> None:
    x, other = (stored(tmp_path / f"{features}.npy", estimator, features) for features in (8, 5))
    estimator.fit(x)
    before = dict(vars(estimator))
    with monkeypatch.context() as patch:
        # A projection is drawn without a run.
        for name in ("outcore.Session._run", "outcore.random_projection._drawn"):
            patch.setattr(name, interrupt)
        with pytest.raises(KeyboardInterrupt):
            estimator.fit(other)
    assert vars(estimator) == before
    assert estimator.transform(x).shape[0] == 40


def interrupt(*_: object) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("estimator", FITTED, ids=lambda estimator: type(estimator).__name__)
def test_the_trace_of_a_fit_is_of_all_its_runs(tmp_path: Path, estimator: Any) -> None:
    x = stored(tmp_path / "x.npy", estimator, 8)
    estimator.fit(x)
    runs = not isinstance(estimator, SparseRandomProjection)
    assert hasattr(estimator, "trace_") == runs
    if runs:
        assert estimator.trace_.actual["bytes_read"] > 0
        assert estimator.trace_.to_dict() == x.session.last_trace().to_dict()
    assert not hasattr(pickle.loads(pickle.dumps(estimator)), "trace_")


def test_tfidf_refuses_a_dense_matrix_on_ssd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    a = oc.from_numpy(tmp_path / "a.npy", np.ones((3, 2)))
    tfidf = TfidfTransformer().fit(np.ones((3, 2)))
    nothing_runs(monkeypatch)
    for attempt in (TfidfTransformer().fit, tfidf.transform):
        with pytest.raises(errors.DTypeError, match="dense"):
            attempt(a)


def test_kmeans_refuses_columns_before_it_reads_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x = oc.from_scipy(tmp_path / "x", sp.random(40, 20, 0.3, "csc", random_state=0))
    nothing_runs(monkeypatch)
    for init in ("k-means++", "k-means||", "random", np.zeros((2, 20))):
        with pytest.raises(errors.OutcoreError, match="columns"):
            KMeans(2, init=init).fit(x)


def test_a_projection_that_cannot_reduce_keeps_what_there_is() -> None:
    x = np.random.default_rng(0).standard_normal((50, 8))
    with pytest.warns(DataDimensionalityWarning, match="8 features"):
        y = SparseRandomProjection().fit_transform(x)
    np.testing.assert_array_equal(y, x)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        SparseRandomProjection(eps=0.5).fit(np.zeros((50, 400)))
