"""PCA: a scikit-learn estimator, and scikit-learn's numbers, for data on SSD and in memory."""

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import sklearn.decomposition
from sklearn.base import clone
from sklearn.pipeline import make_pipeline

import outcore as oc
from outcore import errors
from outcore.decomposition import PCA


@pytest.fixture
def x(rng: np.random.Generator) -> npt.NDArray[np.float64]:
    return rng.standard_normal((700, 8)) @ rng.standard_normal((8, 40)) + 0.1 * rng.standard_normal((700, 40)) + 5


@pytest.mark.parametrize("n_components", [1, 5, 40, 0.5, 0.99, None])
@pytest.mark.parametrize("whiten", [False, True])
@pytest.mark.parametrize("stored", [True, False])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_numbers_are_those_of_scikit_learn(
    tmp_path: Path, x: npt.NDArray[Any], n_components: float | None, whiten: bool, stored: bool, dtype: str
) -> None:
    if n_components is None and whiten and dtype == "float32":
        pytest.skip("directions of noise, scaled to one, differ by their rounding")
    x = x.astype(dtype)
    reference = sklearn.decomposition.PCA(n_components, whiten=whiten, svd_solver="covariance_eigh").fit(x.astype(float))
    data = oc.from_numpy(tmp_path / "x.npy", x) if stored else x
    pca = PCA(n_components, whiten=whiten).fit(data)
    tolerance = 2e-3 if dtype == "float32" else 1e-7
    assert pca.n_components_ == reference.n_components_
    for name in ("explained_variance_", "explained_variance_ratio_", "singular_values_", "mean_"):
        np.testing.assert_allclose(getattr(pca, name), getattr(reference, name), rtol=tolerance, err_msg=name)
    np.testing.assert_allclose(pca.noise_variance_, reference.noise_variance_, rtol=tolerance, atol=tolerance)
    # scikit-learn scales the components of a whitening PCA once too often here.
    covariance = sklearn.decomposition.PCA(n_components, svd_solver="covariance_eigh").fit(x.astype(float)).get_covariance()
    np.testing.assert_allclose(pca.get_covariance(), covariance, rtol=tolerance, atol=tolerance * 10)
    strong = reference.explained_variance_ > 0.5
    np.testing.assert_allclose(pca.components_[strong], reference.components_[strong], atol=tolerance)
    projected = pca.transform(data)
    assert isinstance(projected, oc.Array if stored else np.ndarray)
    assert projected.dtype == dtype
    np.testing.assert_allclose(np.asarray(projected)[:, strong], reference.transform(x)[:, strong], atol=20 * tolerance)
    rebuilt = pca.inverse_transform(projected)
    np.testing.assert_allclose(np.asarray(rebuilt), reference.inverse_transform(reference.transform(x)), atol=20 * tolerance)


@pytest.mark.parametrize("memory", ["7.5MiB", "9MiB", "12MiB"])
def test_a_covariance_larger_than_memory_has_the_same_components(tmp_path: Path, rng: np.random.Generator, memory: str) -> None:
    """800 features are 5 MB of covariance: it goes to scratch, and the search for its components is cut to what is left."""
    scales = 1 / np.arange(1, 801)
    x = (rng.standard_normal((3000, 800)) * scales) @ np.linalg.qr(rng.standard_normal((800, 800)))[0] + 3
    reference = sklearn.decomposition.PCA(12, svd_solver="covariance_eigh").fit(x)
    oc.from_numpy(tmp_path / "x.npy", x)
    session = oc.Session(memory, tmp_path, allow_tmpfs_scratch=True)
    pca = PCA(12).fit(session.open(tmp_path / "x.npy"))
    np.testing.assert_allclose(pca.explained_variance_, reference.explained_variance_, rtol=1e-8)
    np.testing.assert_allclose(pca.components_, reference.components_, atol=1e-6)
    np.testing.assert_allclose(pca.explained_variance_ratio_, reference.explained_variance_ratio_, rtol=1e-8)


def test_signs_are_those_of_scikit_learn(x: npt.NDArray[Any]) -> None:
    found = PCA(6).fit(x).components_
    assert (found[np.arange(6), np.abs(found).argmax(1)] > 0).all()


def test_results_go_where_they_are_told(tmp_path: Path, x: npt.NDArray[Any]) -> None:
    a = oc.from_numpy(tmp_path / "x.npy", x)
    pca = PCA(3)
    found = pca.fit_transform(a, out=tmp_path / "y.npy")
    assert found.path == tmp_path / "y.npy"
    expected = pca.transform(x)
    np.testing.assert_allclose(np.load(tmp_path / "y.npy"), expected, atol=1e-9)
    z = oc.create(tmp_path / "z.npy", (700, 3), "float64")
    assert pca.transform(x, out=z) is z
    np.testing.assert_allclose(z.numpy(), expected, atol=1e-9)


def test_a_column_major_matrix_and_a_slice_are_data_too(tmp_path: Path, x: npt.NDArray[Any]) -> None:
    a = oc.from_numpy(tmp_path / "x.npy", x, order="F").slice(100, 400, columns=(3, 30))
    np.testing.assert_allclose(PCA(4).fit(a).components_, PCA(4).fit(x[100:400, 3:30]).components_, atol=1e-9)


def test_data_far_from_zero_lose_no_digits(tmp_path: Path, x: npt.NDArray[Any]) -> None:
    a = oc.from_numpy(tmp_path / "x.npy", x + 1e6)
    np.testing.assert_allclose(PCA(4).fit(a).explained_variance_, PCA(4).fit(x).explained_variance_, rtol=1e-6)


def test_a_value_that_is_not_finite_is_found(tmp_path: Path, x: npt.NDArray[Any]) -> None:
    for value in (np.nan, np.inf):
        a = oc.from_numpy(tmp_path / "x.npy", x)
        a[351, 17] = value
        with pytest.raises(ValueError, match=r"x\.npy has a value that is not finite at row 351, column 17") as caught:
            PCA(2).fit(a)
        assert isinstance(caught.value, errors.NotFiniteError)
        assert (caught.value.row, caught.value.column) == (351, 17)


def test_bad_parameters_are_refused(tmp_path: Path, x: npt.NDArray[Any]) -> None:
    a = oc.from_numpy(tmp_path / "x.npy", x)
    for wanted in (0, 41, -1, 1.5, 0.0, "mle", True, float("nan")):
        with pytest.raises(ValueError, match="n_components="):
            PCA(wanted).fit(a)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="at least 2"):
        PCA().fit(a.slice(0, 1))
    pca = PCA(2).fit(a)
    with pytest.raises(errors.ShapeError, match="40 features"):
        pca.transform(a.T)
    with pytest.raises(errors.ShapeError, match="2 columns"):
        pca.inverse_transform(a)
    with pytest.raises(errors.OverBudgetError):
        PCA(memory="1MiB").fit(oc.create(tmp_path / "wide.npy", (10, 5000)))


def test_the_estimator_travels(tmp_path: Path, x: npt.NDArray[Any]) -> None:
    a = oc.from_numpy(tmp_path / "x.npy", x)
    pca = PCA(3, whiten=True).fit(a)
    assert pca.trace_.actual["bytes_read"] >= x.nbytes
    again = pickle.loads(pickle.dumps(pca))
    np.testing.assert_array_equal(again.transform(x), pca.transform(x))
    assert clone(pca).get_params() == pca.get_params()
    assert list(pca.get_feature_names_out()) == ["pca0", "pca1", "pca2"]
    assert make_pipeline(PCA(10), PCA(2)).fit(x).transform(x).shape == (700, 2)


def test_threads_do_not_change_a_bit(tmp_path: Path, x: npt.NDArray[Any]) -> None:
    oc.from_numpy(tmp_path / "x.npy", x)
    found = []
    for threads in (1, 3):
        session = oc.Session("8MiB", tmp_path / "scratch", threads, allow_tmpfs_scratch=True)
        found.append(PCA(5).fit(session.open(tmp_path / "x.npy")).components_)
    np.testing.assert_array_equal(*found)


def test_constant_data_has_one_component_as_in_scikit_learn(tmp_path: Path) -> None:
    x = np.full((10, 4), 3.0)
    for data in (x, oc.from_numpy(tmp_path / "x.npy", x)):
        pca = PCA(0.5).fit(data)
        assert (pca.n_components_, pca.components_.shape, pca.noise_variance_) == (1, (1, 4), 0)
        assert np.asarray(pca.transform(data)).shape == (10, 1)
        assert PCA().fit(data).n_components_ == 4


def test_a_seed_is_a_number_of_64_bits(x: npt.NDArray[Any]) -> None:
    for seed in (-1, 1 << 64, 10**30):
        with pytest.raises(errors.ArgumentError, match="random_state"):
            PCA(1, random_state=seed).fit(x)
    assert PCA(1, random_state=(1 << 64) - 1).fit(x).n_components_ == 1


def test_explaining_leaves_what_was_fitted(tmp_path: Path, rng: np.random.Generator) -> None:
    x = rng.standard_normal((50, 6))
    pca = PCA(2).fit(x)
    assert pca.explain(oc.from_numpy(tmp_path / "other.npy", rng.standard_normal((40, 9)))).name == "pca fit"
    assert pca.transform(x).shape == (50, 2)
    with pytest.raises(AttributeError):
        PCA(2).n_features_in_  # noqa: B018
