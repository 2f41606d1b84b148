"""Components by an iteration: TruncatedSVD, and PCA of sparse rows and of very many features, are those of scikit-learn."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn import decomposition

import outcore as oc
from outcore import errors
from outcore.decomposition import PCA, TruncatedSVD


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_truncated_svd_is_that_of_scikit_learn(dtype: str, tmp_path: Path) -> None:
    a = sp.random(500, 80, 0.1, "csr", dtype, random_state=1)
    expected = decomposition.TruncatedSVD(5, algorithm="arpack").fit(a.astype("f8"))
    close = {"atol": 1e-4 if dtype == "float32" else 1e-8}
    for x in (a, oc.from_scipy(tmp_path / "a", a), a.toarray(), oc.from_numpy(tmp_path / "a.npy", a.toarray())):
        found = TruncatedSVD(5, tol=1e-8 if dtype == "float64" else 1e-5).fit(x)
        for name in ("components_", "singular_values_", "explained_variance_", "explained_variance_ratio_"):
            np.testing.assert_allclose(getattr(found, name), getattr(expected, name), **close)
            assert getattr(found, name).dtype == dtype
        coordinates = found.transform(x)
        np.testing.assert_allclose(np.asarray(coordinates), expected.transform(a), **close)
        back = found.inverse_transform(coordinates)
        np.testing.assert_allclose(np.asarray(back), expected.inverse_transform(expected.transform(a)), **close)
    with pytest.raises(errors.NotFiniteError, match="column 7"):
        a[3, 7] = np.nan
        TruncatedSVD(2).fit(oc.from_scipy(tmp_path / "bad", a))


def test_a_warm_start_saves_passes(tmp_path: Path, rng: np.random.Generator) -> None:
    # Topics, each of some words, so that values fall off as those of a corpus.
    topics = rng.random((30, 600)) ** 8
    rows = rng.poisson((rng.random((4000, 30)) ** 12) @ topics).astype(np.float64)
    before, after = (oc.from_scipy(tmp_path / str(count), sp.csr_matrix(rows[:count])) for count in (3600, 4000))
    warm, cold = TruncatedSVD(20, warm_start=True), TruncatedSVD(20)
    first = warm.fit(before).passes_
    passes = warm.fit(after).passes_
    assert passes < first
    assert passes < cold.fit(after).passes_
    np.testing.assert_allclose(warm.singular_values_, np.linalg.svd(rows, compute_uv=False)[:20], rtol=1e-6)
    assert cold.fit(after).passes_ == TruncatedSVD(20).fit(after).passes_
    # In narrow blocks, which have sums of what is known.
    narrow = TruncatedSVD(20, method="krylov", warm_start=True).fit(before)
    assert narrow.fit(after).passes_ < TruncatedSVD(20, method="krylov").fit(after).passes_
    # From a basis of the other side.
    fewer, more = (oc.from_scipy(tmp_path / f"{count} by columns", sp.csc_matrix(rows[:count])) for count in (1800, 2000))
    turned = TruncatedSVD(20, warm_start=True).fit(fewer)
    assert turned.fit(more).passes_ < TruncatedSVD(20).fit(more).passes_
    np.testing.assert_allclose(turned.singular_values_, np.linalg.svd(rows[:2000], compute_uv=False)[:20], rtol=1e-6)
    # Words that are not there any more have no images.
    gone = sp.csc_matrix(rows[:2000] * (np.arange(600) < 3))
    assert (turned.fit(gone).singular_values_[3:] < 1e-6 * turned.singular_values_[0]).all()
    # Other features: from the beginning.
    other = oc.from_scipy(tmp_path / "other", sp.csr_matrix(rows[:, :500]))
    assert warm.fit(other).components_.shape == (20, 500)


@pytest.mark.parametrize("lay", [sp.csr_matrix, np.asarray])
@pytest.mark.parametrize(("samples", "words"), [(4000, 600), (450, 2000)])
def test_components_from_an_iteration_begin_with_earlier_ones(
    samples: int, words: int, lay: Any, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    from outcore import decomposition as module

    monkeypatch.setattr(module, "_is_iterated", lambda *_: True)
    monkeypatch.setattr(module, "_is_summed", lambda *_: False)
    passes: list[int] = []
    of, tol = module.convergence, module.ITERATION_TOL

    def counted(found: Any, *_: Any, **__: Any) -> Any:
        passes.append(found["products"])
        return of(found, tol, stacklevel=1)

    monkeypatch.setattr(module, "convergence", counted)
    topics = rng.random((30, words)) ** 8
    rows = rng.poisson((rng.random((samples, 30)) ** 12) @ topics).astype(np.float64)
    warm, cold = PCA(8, warm_start=True), PCA(8)
    warm.fit(lay(rows[: samples * 9 // 10]))
    for fitted in (warm, cold):
        fitted.fit(lay(rows))
    assert passes[1] < passes[2]
    expected = decomposition.PCA(8, svd_solver="full").fit(rows)
    for name in ("components_", "explained_variance_", "mean_"):
        np.testing.assert_allclose(getattr(warm, name), getattr(expected, name), atol=1e-5)


@pytest.mark.parametrize("shape", [(500, 60), (30, 200)])
def test_components_of_sparse_rows_are_those_of_dense_ones(shape: tuple[int, int], tmp_path: Path) -> None:
    a = sp.random(*shape, 0.1, "csr", random_state=1)
    a.data += 1
    expected = decomposition.PCA(5, svd_solver="full").fit(a.toarray())
    for x in (a, oc.from_scipy(tmp_path / "a", a), a.tocsc()):
        found = PCA(5).fit(x)
        for name in ("components_", "explained_variance_", "explained_variance_ratio_", "singular_values_", "mean_"):
            np.testing.assert_allclose(getattr(found, name), getattr(expected, name), atol=1e-5)
        assert found.noise_variance_ == pytest.approx(expected.noise_variance_)
        rows = x if not sp.issparse(x) else a
        np.testing.assert_allclose(np.asarray(found.transform(rows)), expected.transform(a.toarray()), atol=1e-4)
    for wanted in (0.5, 0.99, None):
        found, other = PCA(wanted).fit(a), decomposition.PCA(wanted, svd_solver="full").fit(a.toarray())
        np.testing.assert_allclose(found.explained_variance_, other.explained_variance_, rtol=1e-4, atol=1e-9)
    with pytest.raises(errors.ArgumentError, match="stored by rows"):
        PCA(0.5).fit(oc.from_scipy(tmp_path / "turned", a.tocsc()))


def test_a_covariance_of_sparse_rows_takes_memory_or_gives_way_to_the_iteration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from outcore import _native

    fit, fitted = _native.sparse_pca_fit, []
    monkeypatch.setattr(_native, "sparse_pca_fit", lambda *given: fitted.append(fit(*given)) or fitted[-1])
    a = sp.random(30_000, 600, 0.02, "csr", random_state=2)
    expected = decomposition.PCA(svd_solver="covariance_eigh").fit(a.toarray())
    stored = oc.from_scipy(tmp_path / "a", a)
    # A few components of 600 features take some 5 MB of it, all of them some 20.
    for memory, count in ((None, 1), ("4MiB", 0)):
        fitted.clear()
        found = PCA(4, memory=memory).fit(stored)
        assert len(fitted) == count
        np.testing.assert_allclose(found.explained_variance_, expected.explained_variance_[:4], rtol=1e-5)
        np.testing.assert_allclose(found.components_, expected.components_[:4], atol=1e-3)
    # Full columns far from zero keep their digits.
    far = sp.hstack([np.random.default_rng(0).normal(1e8, [1, 2], (30_000, 2)), a[:, :20]], format="csr")
    exact = np.linalg.eigvalsh(np.cov(far.toarray() - far.mean(axis=0), rowvar=False))[::-1]
    np.testing.assert_allclose(PCA(0.9999).fit(far).explained_variance_[:2], exact[:2], rtol=1e-6)
    fitted.clear()
    far = sp.hstack([np.random.default_rng(0).normal(1e8, 1, (30_000, 1)), a], format="csr")
    exact = np.linalg.eigvalsh(np.cov(far.toarray() - far.mean(axis=0), rowvar=False))[::-1]
    np.testing.assert_allclose(PCA(3, memory="4MiB").fit(far).explained_variance_, exact[:3], rtol=1e-5)
    assert not fitted
    share = expected.explained_variance_ratio_.cumsum()
    assert PCA(0.3).fit(stored).n_components_ == int((share <= 0.3).sum()) + 1
    with pytest.raises(errors.OverBudgetError, match="covariance of 600 features"):
        PCA(0.3, memory="4MiB").fit(stored)


def test_components_of_very_many_features_come_from_an_iteration(tmp_path: Path, rng: np.random.Generator) -> None:
    a = (rng.standard_normal((150, 8)) * np.arange(8, 0, -1)) @ rng.standard_normal((8, 9000)) + rng.standard_normal((150, 9000))
    expected = decomposition.PCA(3, svd_solver="full").fit(a)
    far = a[:, :50] + 1e6
    for x in (a, oc.from_numpy(tmp_path / "a.npy", a.astype("f4"))):
        # A covariance takes some 650 MB.
        found = PCA(3, memory="64MiB").fit(x)
        for name in ("components_", "explained_variance_", "explained_variance_ratio_", "singular_values_", "mean_"):
            np.testing.assert_allclose(getattr(found, name), getattr(expected, name), rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(found.noise_variance_, expected.noise_variance_, rtol=1e-5)
        np.testing.assert_allclose(np.asarray(found.transform(x)), expected.transform(a), atol=1e-2)
    np.testing.assert_allclose(PCA(3).fit(far).explained_variance_, decomposition.PCA(3).fit(far).explained_variance_, rtol=1e-6)


def test_components_come_from_an_iteration_where_a_covariance_would_take_more_passes(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    from outcore import _native

    fit, fitted = _native.pca_fit, []
    monkeypatch.setattr(_native, "pca_fit", lambda *given: fitted.append(fit(*given)) or fitted[-1])
    a = ((rng.standard_normal((300, 8)) * np.arange(8, 0, -1)) @ rng.standard_normal((8, 4000))).astype("f4")
    expected = decomposition.PCA(3, svd_solver="full").fit(a)
    # Of 64 MB: in three parts, and in thirteen.
    for memory, count in (("64MiB", 1), ("12MiB", 0)):
        fitted.clear()
        found = PCA(3, memory=memory).fit(a)
        assert len(fitted) == count
        np.testing.assert_allclose(found.explained_variance_, expected.explained_variance_, rtol=1e-4)
        np.testing.assert_allclose(found.components_, expected.components_, atol=1e-4)
