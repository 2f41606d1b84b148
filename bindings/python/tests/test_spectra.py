"""Eigenpairs and singular triplets: those of LAPACK, whatever the matrix, the budget and the method."""

import contextlib
import resource
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import scipy.sparse.linalg as sla
from scipy.sparse.csgraph import laplacian as laplacian_of
from sklearn import cluster
from sklearn.metrics import adjusted_rand_score

import outcore as oc
from outcore import errors
from outcore.cluster import SpectralClustering
from outcore.decomposition import PCA, TruncatedSVD
from outcore.linalg import ConvergenceWarning, eigsh, laplacian, svds


def check_triplets(a: Any, found: Any, k: int, tol: float) -> None:
    """Against LAPACK: values, what is left of each pair, orthonormal vectors, order and signs."""
    left, values, right = (np.asarray(part) for part in found)
    dense = np.asarray(a.toarray() if sp.issparse(a) else a, "f8")
    expected = np.linalg.svd(dense, compute_uv=False)
    scale, rounding = expected[0], 20 * np.finfo(values.dtype).eps
    assert (left.shape, values.shape, right.shape) == ((dense.shape[0], k), (k,), (k, dense.shape[1]))
    np.testing.assert_allclose(values, expected[:k][::-1], atol=(tol**2 + rounding) * scale + 1e-300)
    assert (np.diff(values) >= 0).all()
    for rest in (dense @ right.T - left * values, dense.T @ left - right.T * values):
        assert np.linalg.norm(rest, axis=0).max() <= (tol + rounding) * scale
    for vectors in (left.T, right):
        np.testing.assert_allclose(vectors @ vectors.T, np.eye(k), atol=rounding + 1e-12)
    assert (np.take_along_axis(left, np.abs(left).argmax(axis=0)[None], axis=0) > 0).all()
    assert found.converged.all()
    assert found.residuals.max() <= tol * scale or scale == 0


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shape", [(400, 90), (90, 400), (41, 41), (1, 12), (12, 1)])
@pytest.mark.parametrize("place", ["numpy", "array", "csr", "csc", "stored"])
def test_singular_triplets_are_those_of_lapack(
    place: str, shape: tuple[int, int], dtype: str, tmp_path: Path, rng: np.random.Generator
) -> None:
    a = rng.standard_normal(shape).astype(dtype) * (rng.random(shape) < 0.3)
    k = min(5, *shape)
    places: dict[str, Any] = {
        "numpy": lambda: a,
        "array": lambda: oc.from_numpy(tmp_path / "a.npy", a, order="F"),
        "csr": lambda: sp.csr_matrix(a),
        "csc": lambda: sp.csc_matrix(a),
        "stored": lambda: oc.from_scipy(tmp_path / "a", sp.csr_matrix(a)),
    }
    found = svds(places[place](), k)
    assert found[1].dtype == dtype
    check_triplets(a, found, k, 1e-6)


@pytest.mark.parametrize(("dtype", "tol"), [("float64", 1e-6), ("float32", 1e-4)])
def test_ranks_repeated_values_and_all_of_them(dtype: str, tol: float, rng: np.random.Generator) -> None:
    cases: list[tuple[Any, int]] = [
        (np.zeros((40, 30)), 4),
        (np.eye(60), 7),
        (np.outer(np.arange(50.0), np.ones(40)), 6),
        (np.diag(np.repeat([5.0, 3.0, 1.0, 0.1], 50)), 60),
        (rng.standard_normal((20, 12)), 12),
        (np.diag(1 + 1e-9 * np.arange(80)), 5),
    ]
    for exact, k in cases:
        a = exact.astype(dtype)
        check_triplets(a, svds(a, k, tol=tol), k, tol)
    symmetric = rng.standard_normal((60, 60))
    symmetric += symmetric.T
    for k in (59, 60):
        np.testing.assert_allclose(eigsh(symmetric, k, which="LA")[0], np.linalg.eigvalsh(symmetric)[-k:], atol=1e-10)


@pytest.mark.parametrize("method", ["krylov", "randomized"])
@pytest.mark.parametrize(("dtype", "tol"), [("float64", 1e-6), ("float32", 1e-4)])
def test_many_more_pairs_than_the_rank(dtype: str, tol: float, method: Any, rng: np.random.Generator) -> None:
    for rank in (1, 4, 30):
        a = (rng.standard_normal((400, rank)) @ rng.standard_normal((rank, 250))).astype(dtype)
        for k in (50, 100, 200, 249, 250):
            check_triplets(a, svds(a, k, tol=tol, method=method), k, tol)


@pytest.mark.parametrize("which", ["LM", "LA", "SA"])
@pytest.mark.parametrize(("dtype", "tol", "rounding"), [("float64", 1e-6, 1e-12), ("float32", 1e-4, 2e-6)])
def test_eigenpairs_are_those_of_lapack(
    which: Any, dtype: str, tol: float, rounding: float, tmp_path: Path, rng: np.random.Generator
) -> None:
    a = rng.standard_normal((300, 300)).astype(dtype)
    a += a.T
    everything = np.linalg.eigvalsh(a.astype("f8"))
    order = {"LM": np.argsort(-np.abs(everything)), "LA": np.arange(300)[::-1], "SA": np.arange(300)}[which]
    expected = np.sort(everything[order[:6]])
    for x in (a, oc.from_numpy(tmp_path / "a.npy", a), sp.csr_matrix(a), sla.aslinearoperator(a)):
        found = eigsh(x, 6, which=which, tol=tol)
        values, vectors = found
        np.testing.assert_allclose(values, expected, atol=found.scale * max(tol**2, rounding))
        assert np.linalg.norm(a @ vectors - vectors * values, axis=0).max() <= tol * found.scale
        np.testing.assert_allclose(vectors.T @ vectors, np.eye(6), atol=rounding)
        assert (vectors[np.abs(vectors).argmax(axis=0), np.arange(6)] > 0).all()
    again = eigsh(a, 6, which=which)
    assert np.array_equal(again[1], eigsh(a, 6, which=which)[1])


@pytest.mark.parametrize("which", ["LM", "LA", "SA"])
@pytest.mark.parametrize(("dtype", "tol", "rounding"), [("float64", 1e-6, 1e-12), ("float32", 1e-4, 2e-6)])
def test_eigenpairs_of_any_rank_and_multiplicity(
    which: Any, dtype: str, tol: float, rounding: float, rng: np.random.Generator
) -> None:
    some = rng.standard_normal((30, 30))
    cases: list[tuple[Any, int]] = [
        (np.zeros((40, 40)), 4),
        (np.eye(60), 7),
        (np.outer(np.arange(50), np.arange(50)), 6),
        (np.diag(np.repeat([5.0, 3.0, -4.0, 0.1], 20)), 25),
        (np.diag(1 + 1e-9 * np.arange(80)), 5),
        (some + some.T, 29),
        (some + some.T, 30),
    ]
    for exact, k in cases:
        a = exact.astype(dtype)
        everything = np.linalg.eigvalsh(a.astype("f8"))
        order = {"LM": np.argsort(-np.abs(everything)), "LA": np.argsort(-everything), "SA": np.argsort(everything)}[which]
        found: Any = eigsh(a, k, which=which, tol=tol)
        values, vectors = found
        np.testing.assert_allclose(values, np.sort(everything[order[:k]]), atol=found.scale * max(tol**2, rounding))
        assert np.linalg.norm(a @ vectors - vectors * values, axis=0).max() <= tol * found.scale
        np.testing.assert_allclose(vectors.T @ vectors, np.eye(k), atol=10 * rounding)
        assert found.converged.all()


def test_a_basis_of_all_columns_ends_the_search(rng: np.random.Generator) -> None:
    # Values next to each other, which no short basis tells apart.
    for order, options in ((63, {"method": "randomized"}), (48, {"block": 9}), (50, {"block": 7})):
        basis = np.linalg.qr(rng.standard_normal((order, order)))[0][:, : order - 10]
        a = basis * (1 + 1e-3 * rng.random(order - 10)) @ basis.T
        for found in (eigsh(a, 4, tol=1e-8, **options), svds(a, 4, tol=1e-8, **options)):
            assert found.basis == order
            assert found.restarts == 0
            assert found.residuals.max() < 1e-13


def test_small_values_of_single_precision_are_as_accurate_as_wanted(rng: np.random.Generator) -> None:
    # Values over three orders of magnitude.
    sides = [np.linalg.qr(rng.standard_normal((rows, 60)))[0] for rows in (500, 300)]
    falling = (sides[0] * np.geomspace(1, 1e-3, 60) @ sides[1].T).astype("f4")
    check_triplets(falling, svds(falling, 50, tol=1e-4), 50, 1e-4)


def test_eigenpairs_of_matrices_by_columns(tmp_path: Path, rng: np.random.Generator) -> None:
    a = rng.standard_normal((200, 200)) * (rng.random((200, 200)) < 0.2)
    a += a.T
    expected = eigsh(a, 5)
    for x in (sp.csc_matrix(a), oc.from_scipy(tmp_path / "a", sp.csc_matrix(a)), oc.from_numpy(tmp_path / "a.npy", a, order="F")):
        for one, other in zip(eigsh(x, 5), expected, strict=True):
            np.testing.assert_allclose(np.asarray(one), other, atol=1e-5)


def test_hundreds_of_pairs_with_the_basis_in_scratch(tmp_path: Path, rng: np.random.Generator) -> None:
    # A permuted diagonal: what is to be found is known without LAPACK.
    values = 0.99 ** np.arange(20_000)
    a = sp.csr_matrix((values, (rng.permutation(20_000), rng.permutation(20_000))))
    found: Any = svds(oc.from_scipy(tmp_path / "a", a), 200, memory="48MiB")
    assert not found.basis_in_memory and found.converged.all()
    np.testing.assert_allclose(found[1], values[199::-1], rtol=1e-9)
    left, right = (np.asarray(found[side]) for side in (0, 2))
    assert np.linalg.norm(a @ right.T - left * found[1], axis=0).max() <= 1e-6
    np.testing.assert_allclose(right @ right.T, np.eye(200), atol=1e-10)


def test_hundreds_of_pairs_are_those_of_lapack(tmp_path: Path) -> None:
    a = sp.random(4000, 1500, 0.02, "csr", rng=3) @ sp.diags(np.linspace(1, 4, 1500))
    stored = oc.from_scipy(tmp_path / "a", a.tocsr())
    found: Any = svds(stored, 400, memory="64MiB")
    np.testing.assert_allclose(found[1], np.linalg.svd(a.toarray(), compute_uv=False)[399::-1], rtol=1e-9)
    left, right = (np.asarray(found[side]) for side in (0, 2))
    assert np.linalg.norm(a.T @ left - right.T * found[1], axis=0).max() <= 1e-6 * found[1][-1]
    np.testing.assert_allclose(left.T @ left, np.eye(400), atol=1e-10)


def test_eigenpairs_of_a_graph_larger_than_the_budget(tmp_path: Path) -> None:
    graph = sp.random(30_000, 30_000, 0.001, "csr", rng=4)
    graph = (graph + graph.T + sp.diags(np.linspace(0, 40, 30_000))).tocsr()
    stored = oc.from_scipy(tmp_path / "g", graph)
    assert stored.nbytes > 20 << 20
    expected = np.sort(sla.eigsh(graph, 8, which="LA", tol=1e-12)[0])
    found: Any = eigsh(stored, 8, which="LA", memory="12MiB")
    trace = oc.last_trace()
    assert not found.basis_in_memory
    np.testing.assert_allclose(found[0], expected, rtol=1e-10)
    vectors = np.asarray(found[1])
    assert np.linalg.norm(graph @ vectors - vectors * found[0], axis=0).max() <= 1e-6 * found.scale
    plan = oc.explain(eigsh, stored, 8, which="LA", memory="12MiB")
    pass_bytes = int(plan.notes["bytes a pass"])
    assert pass_bytes == pytest.approx(stored.nbytes, rel=0.01)
    assert plan.bytes_read == int(plan.notes["passes at least"]) * pass_bytes
    assert plan.bytes_read < trace.actual["bytes_read"] + trace.bytes_reused
    assert int(plan.notes["passes at least"]) <= found.passes <= int(plan.notes["passes at most"])


def test_each_method_and_budget_finds_the_same(tmp_path: Path) -> None:
    a = sp.random(4000, 1500, 0.01, "csr", np.float64, random_state=3)
    stored = oc.from_scipy(tmp_path / "a", a)
    expected = np.sort(sla.svds(a, 12, tol=1e-12)[1])
    for memory, options in (
        ("64MiB", {}),
        ("64MiB", {"method": "randomized", "tol": 1e-4}),
        ("64MiB", {"method": "krylov", "tol": 1e-4}),
        ("16MiB", {}),
        ("4608KiB", {"block": 16}),
        ("4608KiB", {"block": 16, "tol": 1e-4}),
    ):
        found: Any = svds(stored, 12, memory=memory, **options)
        assert found.basis_in_memory == (memory != "4608KiB"), memory
        assert found.block == (20 if options.get("method") == "randomized" else 16)
        told = oc.explain(svds, stored, 12, memory=memory, **options).notes
        assert int(told["passes at least"]) <= found.passes <= int(told["passes at most"])
        assert told["basis lies"] == ("in memory" if found.basis_in_memory else "in scratch")
        np.testing.assert_allclose(found[1], expected, rtol=1e-6)
        left, values, right = (np.asarray(part) for part in found)
        rest = np.linalg.norm(a.T @ left - right.T * values, axis=0)
        np.testing.assert_allclose(rest, found.residuals, atol=1e-10 * expected[-1])
        assert rest.max() <= options.get("tol", 1e-6) * expected[-1]
    # Of few long rows the shorter side is searched, along which none is used twice in one pass.
    few = a[:300].tocsr()
    tall, wide = (oc.from_scipy(tmp_path / name, x) for name, x in (("tall", few.T.tocsr()), ("wide", few)))
    once, twice = (int(oc.explain(svds, x, 12).notes["bytes a pass"]) for x in (tall, wide))
    assert twice > 1.5 * once > 0
    with pytest.raises(errors.OverBudgetError) as caught:
        svds(stored, 500, memory="2MiB")
    assert caught.value.needed > 2 << 20


@pytest.mark.parametrize(("dtype", "tol"), [("float32", 1e-4), ("float32", 1e-6), ("float64", 1e-6)])
@pytest.mark.parametrize("place", ["sparse", "dense", "cut"])
def test_left_vectors_that_memory_has_no_room_for(place: str, dtype: Any, tol: float, tmp_path: Path) -> None:
    """They go to scratch row by row in a few passes; where values are zero, one block after another."""
    shape, k = (60_000, 120), 10
    rng = np.random.default_rng(5)
    a = sp.random(*shape, 0.05, "csr", dtype, rng=rng) @ sp.diags(np.linspace(1, 3, shape[1], dtype=dtype)).tocsr()
    if place == "cut":
        a = sp.vstack([a, sp.csr_matrix(np.ones((1, shape[1]), dtype))]).tocsr()
    dense = a.toarray().astype("f8")
    x: Any = oc.from_scipy(tmp_path / "a", a) if place in ("sparse", "cut") else oc.from_numpy(tmp_path / "a.npy", a.toarray())
    plan = oc.explain(svds, x, k, tol=tol, memory="6MiB")
    assert plan.notes["left vectors"] == f"row by row, {k} at once"
    found = svds(x, k, tol=tol, memory="6MiB")
    left, values, right = (np.asarray(part, "f8") for part in found)
    rounding = 20 * np.finfo(dtype).eps
    np.testing.assert_allclose(values, np.linalg.svd(dense, compute_uv=False)[:k][::-1], rtol=tol)
    np.testing.assert_allclose(left.T @ left, np.eye(k), atol=rounding)
    rest = np.linalg.norm(dense.T @ left - right.T * values, axis=0)
    assert rest.max() <= (tol + rounding) * values[-1]
    np.testing.assert_allclose(rest, found.residuals, atol=rounding * values[-1])
    assert np.linalg.norm(dense @ right.T - left * values, axis=0).max() <= 10 * rounding * values[-1]
    # Of rank 3: the other vectors are any that are orthonormal.
    low = sp.csr_matrix(dense[:, :3].astype(dtype)) @ sp.csr_matrix(rng.standard_normal((3, shape[1])).astype(dtype))
    low_rank = svds(oc.from_scipy(tmp_path / "low", low.tocsr()), k, tol=tol, memory="6MiB")
    left, values = np.asarray(low_rank[0], "f8"), np.asarray(low_rank[1])
    np.testing.assert_allclose(left.T @ left, np.eye(k), atol=rounding)
    np.testing.assert_allclose(values[:-3], 0, atol=1e-5 * values[-1])


@pytest.mark.parametrize("rank", [0, 3, 8])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_left_vectors_of_which_memory_does_not_hold_one(dtype: Any, rank: int, tmp_path: Path) -> None:
    """Row by row only: noise takes the place of those that the matrix has not."""
    shape, k = (1_500_000, 8), 6
    rng = np.random.default_rng(7)
    a = (rng.standard_normal((shape[0], rank)) @ rng.standard_normal((rank, shape[1]))).astype(dtype)
    x = oc.from_numpy(tmp_path / "a.npy", a)
    plan = oc.explain(svds, x, k, memory="8MiB")
    assert plan.notes["left vectors"] == f"row by row, {k} at once"
    found = svds(x, k, memory="8MiB")
    left, values, right = (np.asarray(part, "f8") for part in found)
    expected = np.sqrt(np.maximum(np.linalg.eigvalsh(a.T.astype("f8") @ a)[-k:], 0))
    expected[: max(k - rank, 0)] = 0
    rounding = 20 * np.finfo(dtype).eps
    np.testing.assert_allclose(values, expected, rtol=1e-6, atol=300 * np.finfo(dtype).eps * expected[-1])
    np.testing.assert_allclose(left.T @ left, np.eye(k), atol=rounding)
    np.testing.assert_allclose(right @ right.T, np.eye(k), atol=rounding)
    assert np.linalg.norm(a @ right.T - left * values, axis=0).max() <= 300 * rounding * values[-1]
    rest = np.linalg.norm(a.T @ left - right.T * values, axis=0)
    assert (rest <= found.residuals + 300 * rounding * values[-1]).all()
    assert max(found.residuals) <= 1e-6 * values[-1]


def test_components_of_more_rows_and_features_than_memory_has_room_for() -> None:
    """Six left vectors take 11 MiB, the covariance 17."""
    shape = (250_000, 1500)
    a = sp.random(*shape, 0.002, "csr", rng=np.random.default_rng(5)) @ sp.diags(np.linspace(1, 3, shape[1])).tocsr()
    mean = np.asarray(a.mean(axis=0)).ravel()
    covariance = (a.T @ a).toarray() - shape[0] * np.outer(mean, mean)
    found = PCA(6, memory="16MiB").fit(a)
    np.testing.assert_allclose(found.singular_values_**2, np.linalg.eigvalsh(covariance)[:-7:-1], rtol=1e-6)


def test_the_bits_do_not_depend_on_the_number_of_threads(tmp_path: Path) -> None:
    a = sp.random(3000, 700, 0.02, "csr", np.float32, random_state=3)
    found = []
    for threads in (1, 3):
        with oc.Session("64MiB", tmp_path / "scratch", threads, allow_tmpfs_scratch=True) as session:
            path = tmp_path / str(threads)
            found.append([np.asarray(part) for part in svds(session.from_scipy(path, a), 8, tol=1e-4)])
    for one, other in zip(*found, strict=True):
        np.testing.assert_array_equal(one, other)


def test_what_a_budget_is_too_small_for_is_refused_before_a_pass_has_tasks(tmp_path: Path) -> None:
    """Where little is left to rows, each of 20 million rows would be a task."""
    np.lib.format.open_memmap(tmp_path / "a.npy", "w+", np.float32, (20_000_000, 4))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(errors.OverBudgetError, match=r"a\.npy") as caught:
        svds(oc.open(tmp_path / "a.npy"), 2, memory="2MiB")
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) << 10 < 300 << 20
    assert 2 << 20 < caught.value.needed < 8 << 20


@pytest.mark.parametrize("place", ["stored", "array"])
def test_a_budget_is_refused_at_once_or_gives_what_any_number_of_threads_gives(place: str, tmp_path: Path) -> None:
    a = sp.random(1500, 700, 0.02, "csr", np.float32, random_state=3)
    oc.from_scipy(tmp_path / "stored", a)
    oc.from_numpy(tmp_path / "array.npy", a.toarray())
    path, expected = {"stored": "stored", "array": "array.npy"}[place], np.linalg.svd(a.toarray(), compute_uv=False)[:6][::-1]

    def search(memory: int, threads: int) -> Any:
        with oc.Session(memory, tmp_path / "scratch", threads, allow_tmpfs_scratch=True) as session:
            stored = session.open(tmp_path / path)
            try:
                job = oc.explain(svds, stored, 6)
            except errors.OverBudgetError as refused:
                return refused
            assert "passes at least" in job.notes
            found = svds(stored, 6)
            np.testing.assert_allclose(found[1], expected, rtol=1e-5)
            return [np.asarray(part) for part in found], found.basis_in_memory

    places = []
    for memory in [(1 << 20) * size // 4 for size in (4, 6, 10, 14, 20, 28, 40, 64)]:
        first, *others = (search(memory, threads) for threads in (1, 5))
        if isinstance(first, errors.OverBudgetError):
            assert not places
            assert all(isinstance(other, errors.OverBudgetError) and other.needed == first.needed for other in others)
            assert first.needed > memory
            assert not isinstance(search(first.needed, 2), errors.OverBudgetError)
            continue
        places.append(first[1])
        for other in others:
            assert other[1] == first[1]
            for one, same in zip(first[0], other[0], strict=True):
                np.testing.assert_array_equal(one, same)
    assert 3 < len(places) < 8


def test_bits_do_not_depend_on_where_the_basis_lies(rng: np.random.Generator) -> None:
    a, scale = rng.standard_normal((20_000, 40)), np.linspace(1, 2, 40)[:, None]
    options: dict[str, Any] = {"block": 4, "ncv": 24, "tol": 1e-8, "shape": 20_000}
    found = [eigsh(lambda x: a @ (scale * (a.T @ x)), 5, memory=memory, **options) for memory in ("64MiB", "6MiB")]
    assert [each.basis_in_memory for each in found] == [True, False]
    for one, other in zip(*found, strict=True):
        np.testing.assert_array_equal(np.asarray(one), np.asarray(other))


def test_a_pair_that_the_start_vector_has_no_part_of_is_found() -> None:
    a = np.diag(np.r_[10.0, 9.0, 8.0, np.linspace(0, 1, 197)])
    start = np.ones(200)
    start[0] = 0
    unchecked = eigsh(a, 2, which="LA", v0=start, block=1, check=False)
    np.testing.assert_allclose(unchecked[0], [8, 9], atol=1e-6)
    assert unchecked.missed_beyond is None
    np.testing.assert_allclose(eigsh(a, 2, which="LA", v0=start, block=1)[0], [9, 10], atol=1e-6)
    bounded = eigsh(a, 2, which="LA", v0=start)
    np.testing.assert_allclose(bounded[0], [9, 10], atol=1e-6)
    assert bounded.missed_beyond is not None
    assert bounded.missed_beyond >= 8


def test_a_triplet_that_the_start_vector_has_no_part_of_is_found(tmp_path: Path) -> None:
    a = np.diag(np.r_[10.0, 9.0, 8.0, np.linspace(0, 1, 197)])
    start = np.ones(200)
    start[0] = 0
    np.testing.assert_allclose(svds(a, 2, v0=start, block=1, check=False)[1], [8, 9], atol=1e-6)
    for block in (1, 16):
        found: Any = svds(a, 2, v0=start, block=block)
        np.testing.assert_allclose(found[1], [9, 10], atol=1e-6)
        assert 8 <= found.missed_beyond <= 16
    # The start vector is of the shorter side, whichever that is.
    tall = np.vstack([a, np.zeros((800, 200))])
    for x in (tall, tall.T, sp.csr_matrix(tall), sp.csc_matrix(tall.T), oc.from_numpy(tmp_path / "wide.npy", tall.T.copy())):
        np.testing.assert_allclose(svds(x, 2, v0=start, block=1, check=False)[1], [8, 9], atol=1e-6)
        np.testing.assert_allclose(svds(x, 2, v0=start, block=1)[1], [9, 10], atol=1e-6)


@pytest.mark.parametrize(
    ("values", "count", "options"),
    [
        (np.r_[6, 6, 6, 5, 4, np.linspace(0, 1, 195)], 3, {"block": 1, "tol": 1e-4}),
        (np.r_[np.full(100, 6.0), np.linspace(3, 5, 45), np.linspace(0, 1, 5000)], 60, {"tol": 1e-4}),
    ],
)
def test_more_copies_of_a_value_than_a_block_has_columns(values: Any, count: int, options: Any) -> None:
    found = eigsh(lambda x: values[:, None] * x, count, which="LA", shape=len(values), **options)
    np.testing.assert_allclose(found[0], np.full(count, 6.0), atol=1e-4 * 6)
    assert found.converged.all()


def test_as_many_pairs_as_rows_without_a_restart(rng: np.random.Generator) -> None:
    a = rng.standard_normal((50, 50))
    a += a.T
    found = eigsh(a, 40, maxiter=0)
    np.testing.assert_allclose(found[0], np.sort(sla.eigsh(a, 40)[0]), atol=1e-6)


def test_products_of_few_digits_go_on_from_their_checkpoint(tmp_path: Path, rng: np.random.Generator) -> None:
    a, checkpoint, calls = rng.standard_normal((300, 200)), tmp_path / "checkpoint", 0

    def search(most: int) -> Any:
        nonlocal calls
        calls = 0

        def product(x: Any, of: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls > most:
                raise RuntimeError("the machine stops")
            return (of @ x).astype("f2").astype("f8")

        operator = sla.LinearOperator(
            a.shape,
            matvec=lambda x: product(x, a),
            matmat=lambda x: product(x, a),
            rmatvec=lambda x: product(x, a.T),
            rmatmat=lambda x: product(x, a.T),
            dtype=np.float64,
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return svds(operator, 6, tol=1e-3, block=2, ncv=18, checkpoint=checkpoint)

    whole = search(10**6)
    with pytest.raises(RuntimeError):
        search(2 * calls // 3)
    assert checkpoint.exists()
    (tmp_path / "checkpoint.new").write_bytes(b"a writer was killed")
    again = search(10**6)
    for one, other in zip(whole, again, strict=True):
        np.testing.assert_array_equal(np.asarray(one), np.asarray(other))
    assert list(tmp_path.glob("checkpoint*")) == []


def test_both_ends_are_bounded_where_both_are_wanted(rng: np.random.Generator) -> None:
    values = np.r_[-7.0, 6.0, 5.0, -4.5, np.linspace(-3, 4, 4996)]
    found = eigsh(lambda x: values[:, None] * x, 4, which="LM", shape=len(values))
    np.testing.assert_allclose(found[0], [-7, -4.5, 5, 6], atol=1e-5)
    assert found.missed_beyond is not None
    assert 4 <= found.missed_beyond < 40
    one_end = eigsh(lambda x: values[:, None] * x, 4, which="LA", shape=len(values))
    assert one_end.missed_beyond is not None
    assert 4 <= one_end.missed_beyond < 12
    # One column at a time takes more passes to say as much.
    narrow = eigsh(lambda x: values[:, None] * x, 4, which="LA", shape=len(values), block=1)
    assert narrow.missed_beyond is not None
    assert 4 <= narrow.missed_beyond < 37


def test_operators_of_the_caller(rng: np.random.Generator) -> None:
    a = rng.standard_normal((80, 50))
    check_triplets(a, svds(sla.aslinearoperator(a), 4), 4, 1e-6)
    columns = sla.LinearOperator(a.shape, matvec=lambda x: a @ x, rmatvec=lambda x: a.T @ x, dtype=np.float64)
    check_triplets(a, svds(columns, 4), 4, 1e-6)
    np.testing.assert_allclose(eigsh(lambda x: 2 * x, 3, shape=30)[0], 2)
    with pytest.raises(errors.ShapeError, match=r"has shape \(29, 16\), not \(30, 16\)"):
        eigsh(lambda x: x[:-1], 3, shape=30)
    with pytest.raises(ZeroDivisionError):
        eigsh(lambda x: x / (1 // 0), 3, shape=30)
    made = []

    def shrinks(x: Any) -> Any:
        made.append(x)
        return (np.arange(2000.0)[:, None] * x)[: 2000 - (len(made) > 2)]

    with pytest.raises(errors.ShapeError, match=r"has shape \(1999, 16\), not \(2000, 16\)"):
        eigsh(shrinks, 3, shape=2000)
    np.testing.assert_allclose(eigsh([[2.0, 1.0], [1.0, 2.0]], 1)[0], 3)
    with pytest.raises(errors.ArgumentError, match="needs shape="):
        eigsh(lambda x: x, 3)
    with pytest.raises(errors.ArgumentError, match="rows and columns"):
        eigsh(lambda x: x, 3, shape=(30,))  # type: ignore[arg-type]
    check_triplets(a, svds((lambda x: a @ x, lambda x: a.T @ x), 4, shape=(80, 50)), 4, 1e-6)
    with pytest.raises(errors.ArgumentError, match="rmatmat"):
        svds(lambda x: x, 3, shape=(30, 30))


def test_values_that_cannot_be_squared_are_refused() -> None:
    a = np.diag(np.arange(1.0, 401))
    np.testing.assert_allclose(eigsh(1e-100 * a, 3)[0], [398e-100, 399e-100, 400e-100])
    np.testing.assert_allclose(svds(1e-50 * a, 3)[1], [398e-50, 399e-50, 400e-50])
    for search, scale in ((eigsh, 1e-170), (svds, 1e-90)):
        with pytest.raises(errors.ArgumentError, match="too small to be squared"):
            search(scale * a, 3)
    np.testing.assert_allclose(eigsh(1e140 * a, 3)[0], [398e140, 399e140, 400e140])
    for search, scale in ((eigsh, 1e160), (eigsh, 1e200), (svds, 1e80), (svds, 1e100)):
        with pytest.raises(errors.ArgumentError, match="too large to be squared"):
            search(scale * a, 3)


def test_wide_products_in_narrow_blocks(rng: np.random.Generator) -> None:
    """A basis of five blocks would hold fewer vectors than are wanted."""
    a = rng.standard_normal((300, 200))
    check_triplets(a, svds(a, 50, method="randomized", block=2), 50, 1e-6)


def test_what_cannot_be_searched_is_refused(rng: np.random.Generator, tmp_path: Path) -> None:
    a = rng.standard_normal((30, 20))
    for k in (0, 21, 2.0, True):
        with pytest.raises(errors.ArgumentError):
            svds(a, k)  # type: ignore[arg-type]
    for wrong in (
        {"tol": -1},
        {"tol": np.nan},
        {"tol": "1e-4"},
        {"method": "power"},
        {"block": 0},
        {"ncv": 3},
        {"v0": np.zeros(20)},
        {"maxiter": -1},
        {"random_state": 1 << 64},
    ):
        with pytest.raises(errors.ArgumentError):
            svds(a, 5, **wrong)
    with pytest.raises(errors.ShapeError, match="start vector"):
        svds(a, 5, v0=np.ones(3))
    with pytest.raises(errors.ShapeError, match="30 x 20"):
        eigsh(a, 2)
    with pytest.raises(errors.ArgumentError, match="not symmetric"):
        eigsh(np.triu(np.ones((30, 30))), 2)
    with pytest.raises(errors.ArgumentError, match="not symmetric"):
        eigsh(np.triu(np.ones((30, 30))), 2, block=1)
    # Products of few digits are not what symmetry says, but good enough for pairs of fewer.
    symmetric = (a @ a.T).astype(np.float16)
    found, _ = eigsh(lambda x: (symmetric @ x.astype("f2")).astype("f8"), 2, shape=30, tol=0.02)
    np.testing.assert_allclose(found, np.linalg.eigvalsh(a @ a.T)[-2:], rtol=0.02)
    skew = sla.LinearOperator((30, 20), matvec=lambda x: a @ x, rmatvec=lambda x: -(a.T @ x), dtype=a.dtype)
    other = sla.LinearOperator((30, 20), matvec=lambda x: a @ x, rmatvec=lambda x: a[::-1].T @ x, dtype=a.dtype)
    for operator in (skew, other):
        with pytest.raises(errors.ArgumentError, match="transpose of A"):
            svds(operator, 2)
    for bad in (np.nan, np.inf, 1e300):
        with pytest.raises(errors.ArgumentError, match="not finite"):
            svds(np.full((30, 20), bad), 2)
    square = a @ a.T
    for k in (0, 31):
        with pytest.raises(errors.ArgumentError, match=r"k=0|31"):
            eigsh(square, k)
    for bad in (np.nan, np.inf):
        square[3, 4] = square[4, 3] = bad
        for x in (square, sp.csr_matrix(square), oc.from_scipy(tmp_path / f"{bad}", sp.csr_matrix(square))):
            for search in (eigsh, svds):
                with pytest.raises(errors.ArgumentError, match="not finite"):
                    search(x, 2)
    with pytest.raises(errors.DTypeError, match="complex"):
        svds(a * 1j, 2)
    assert "passes at least" in oc.explain(svds, a, 2).notes
    assert TruncatedSVD(2).explain(a).name == "column statistics, singular triplets"


def test_a_tolerance_of_zero_asks_for_what_rounding_leaves(rng: np.random.Generator) -> None:
    a = rng.normal(size=(60, 40))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = svds(a, 5, tol=0)
    assert found.converged.all() and found.residuals.max() < 1e-10 * found.scale
    with pytest.warns(ConvergenceWarning, match="rounded"):
        TruncatedSVD(5, tol=1e-17).fit(rng.normal(size=(900, 700)))


def test_what_has_not_converged_is_told(rng: np.random.Generator) -> None:
    a = sp.diags([2 * np.ones(900), -np.ones(899), -np.ones(899)], [0, 1, -1]).tocsr()
    with pytest.warns(ConvergenceWarning, match="maxiter") as caught:
        found = eigsh(a, 5, which="SA", maxiter=2)
    assert caught[0].filename == __file__
    assert found.not_converged
    assert not found.converged.all()
    assert found.restarts == 2
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        eigsh(a, 5, which="LA", tol=1e-3)
    # Squares of small values are rounded away in float32.
    sides = [np.linalg.qr(rng.standard_normal((rows, 250)))[0] for rows in (420, 380)]
    graded = (sides[0] * np.geomspace(1, 1e-9, 250) @ sides[1].T).astype("f4")
    with pytest.warns(ConvergenceWarning, match="tol below 1e-4 they are made in float64"):
        assert svds(graded, 180, tol=1e-4).not_converged
    check_triplets(graded, svds(graded, 180, tol=9e-5), 180, 9e-5)


PROGRAM = """
import os, sys
import numpy as np, outcore as oc
from outcore import _native
oc.configure("64MiB", sys.argv[1], 2, allow_tmpfs_scratch=True)
a = np.load(sys.argv[2])
calls = 0
def product(x):
    global calls
    calls += 1
    if calls > int(sys.argv[4]):
        os._exit(9)
    return a @ x
w, V = oc.linalg.eigsh(product, 4, shape=len(a), checkpoint=sys.argv[3], block=4, ncv=24)
np.savez(sys.argv[5], w=w, V=V)
"""


def test_a_killed_search_goes_on_with_the_same_bits(tmp_path: Path, rng: np.random.Generator) -> None:
    a = rng.standard_normal((120, 120))
    a += a.T
    np.save(tmp_path / "a.npy", a)
    checkpoint = tmp_path / "checkpoint"

    def run(calls: int, name: str) -> int:
        arguments = [tmp_path / "scratch", tmp_path / "a.npy", checkpoint, str(calls), tmp_path / name]
        return subprocess.run([sys.executable, "-c", PROGRAM, *arguments], check=False).returncode

    assert run(10**6, "whole.npz") == 0
    assert not checkpoint.exists()
    killed = 0
    while run(11, "parts.npz"):
        killed += 1
        assert checkpoint.exists()
        assert killed < 40
    assert killed > 1
    assert not checkpoint.exists()
    whole, parts = np.load(tmp_path / "whole.npz"), np.load(tmp_path / "parts.npz")
    for name in ("w", "V"):
        np.testing.assert_array_equal(whole[name], parts[name])
    assert run(11, "other.npz")
    with pytest.raises(errors.ArgumentError, match="another search"):
        eigsh(a, 5, checkpoint=checkpoint)
    other = a + 0.01 * np.diag(rng.standard_normal(120))
    for x, message in ((other, "another matrix"), (a[:119, :119], "another search")):
        with pytest.raises(errors.ArgumentError, match=f"{checkpoint} .*{message}"):
            eigsh(lambda v, x=x: x @ v, 4, shape=len(x), checkpoint=checkpoint, block=4, ncv=24)
    with pytest.raises(errors.ArgumentError, match="another search"):
        eigsh(lambda v: a @ v, 4, shape=120, checkpoint=checkpoint, block=4, ncv=24, v0=np.ones(120))
    checkpoint.write_bytes(b"{}")
    with pytest.raises(errors.CorruptError, match="no checkpoint"):
        eigsh(a, 5, checkpoint=checkpoint)


STORED = """
import sys
import numpy as np, outcore as oc
oc.configure("64MiB", sys.argv[1], 2, allow_tmpfs_scratch=True)
tol = float(sys.argv[5])
found = oc.linalg.svds(oc.open(sys.argv[2]), 12, memory="4608KiB", block=16, tol=tol, checkpoint=sys.argv[3])
assert found.basis_in_memory == (tol == 1e-4)
np.savez(sys.argv[4], *found)
"""


@pytest.mark.parametrize(("dtype", "tol", "kills"), [("float64", 1e-9, (1, 2)), ("float32", 1e-4, (1,))])
def test_a_killed_search_of_a_stored_matrix_goes_on_wherever_its_basis_lies(
    dtype: Any, tol: float, kills: tuple[int, ...], tmp_path: Path
) -> None:
    oc.from_scipy(tmp_path / "a", sp.random(4000, 1500, 0.01, "csr", dtype, random_state=3))
    checkpoint = tmp_path / "checkpoint"

    def started(name: str) -> subprocess.Popen[bytes]:
        arguments = [tmp_path / "scratch", tmp_path / "a", checkpoint, tmp_path / name, str(tol)]
        return subprocess.Popen([sys.executable, "-c", STORED, *arguments])

    assert started("whole.npz").wait() == 0
    for restarts in kills:
        search, seen = started("parts.npz"), set()
        while search.poll() is None and len(seen) < restarts:
            with contextlib.suppress(FileNotFoundError):
                seen.add(checkpoint.stat().st_mtime_ns)
        search.kill()
        search.wait()
        assert len(seen) == restarts and not (tmp_path / "parts.npz").exists()
    assert started("parts.npz").wait() == 0
    assert not checkpoint.exists()
    whole, parts = np.load(tmp_path / "whole.npz"), np.load(tmp_path / "parts.npz")
    for name in whole:
        np.testing.assert_array_equal(whole[name], parts[name])


def test_a_search_that_ended_while_it_was_checked_goes_on_with_its_matrix_only(tmp_path: Path, rng: np.random.Generator) -> None:
    a = rng.standard_normal((120, 120))
    a += a.T
    checkpoint = tmp_path / "checkpoint"
    calls = 0

    def search(x: Any, most: int) -> Any:
        nonlocal calls
        calls = 0

        def product(v: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls > most:
                raise RuntimeError("the machine stops")
            return x @ v

        return eigsh(product, 4, shape=np.int64(120), checkpoint=checkpoint, block=4, ncv=24)

    whole = search(a, 10**6)
    # The last product is that of the residuals, and before it are those of the check.
    with pytest.raises(RuntimeError):
        search(a, calls - 3)
    with pytest.raises(errors.ArgumentError, match="another matrix"):
        search(a + 0.01 * np.diag(rng.standard_normal(120)), 10**6)
    again = search(a, 10**6)
    np.testing.assert_array_equal(again[0], whole[0])
    np.testing.assert_array_equal(again[1], whole[1])


def test_tensors_and_elements_too_small_to_be_squared() -> None:
    import torch

    x = torch.rand(30, 20, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    np.testing.assert_allclose(svds(x, 3)[1], np.linalg.svd(x.numpy(), compute_uv=False)[2::-1])
    assert eigsh(np.diag([5.0, -4.0, 1.0]), 1).missed_beyond == pytest.approx(4)
    with pytest.raises(errors.ArgumentError, match="too small to be squared"):
        svds(np.eye(30, dtype="f4") * np.float32(1e-25), 3, tol=1e-4)
    assert (svds(np.zeros((30, 20), "f4"), 3)[1] == 0).all()


def test_a_graph_of_whole_numbers_has_a_laplacian() -> None:
    chain = np.diag(np.ones(3, int), 1)
    found = eigsh(laplacian(chain + chain.T), 2, which="LA")
    np.testing.assert_allclose(found[0], [2, 2 + 2**0.5], atol=1e-6)


def test_a_graph_may_be_a_list() -> None:
    np.testing.assert_allclose(eigsh(laplacian([[0, 1], [1, 0]]), 2)[0], [0, 2], atol=1e-12)


def test_laplacians_of_graphs(tmp_path: Path) -> None:
    graph = sp.random(300, 300, 0.02, "csr", random_state=2)
    graph = graph + graph.T
    graph.setdiag(0)
    graph[5] = 0
    graph[:, 5] = 0
    graph.eliminate_zeros()
    for x in (graph, oc.from_scipy(tmp_path / "g", graph), graph.toarray()):
        for normed in (False, True):
            expected = np.linalg.eigvalsh(laplacian_of(graph, normed=normed).toarray())
            operator = laplacian(x, normed=normed)
            np.testing.assert_allclose(eigsh(operator, 4, which="SA")[0], expected[:4], atol=1e-6)
            np.testing.assert_allclose(eigsh(operator, 4, which="LA")[0], expected[-4:], atol=1e-6)
    loops = graph.copy()
    loops.setdiag(np.arange(300) % 4)
    for x in (loops, oc.from_scipy(tmp_path / "loops", loops), oc.from_numpy(tmp_path / "loops.npy", loops.toarray())):
        for normed in (False, True):
            same, degrees = laplacian_of(loops, normed=normed, return_diag=True)
            operator = laplacian(x, normed=normed)
            np.testing.assert_allclose(
                np.where(degrees == 1, 0, np.sqrt(operator.degrees)) if normed else operator.degrees,
                np.where(degrees == 1, 0, degrees) if normed else degrees,
            )
            expected = np.linalg.eigvalsh(same.toarray())
            np.testing.assert_allclose(eigsh(operator, 4, which="SA")[0], expected[:4], atol=1e-6)
            np.testing.assert_allclose(eigsh(operator, 4, which="LA")[0], expected[-4:], atol=1e-6)
    with pytest.raises(errors.ArgumentError, match="negative"):
        laplacian(-graph)
    with pytest.raises(errors.ShapeError, match="square"):
        laplacian(graph[:5])


def test_spectral_clustering_finds_components(tmp_path: Path, rng: np.random.Generator) -> None:
    x = np.concatenate([rng.standard_normal((60, 2)) + at for at in ([0, 0], [30, 0], [0, 30])])
    labels = np.repeat([0, 1, 2], 60)
    for rows in (x, oc.from_numpy(tmp_path / "x.npy", x)):
        assert adjusted_rand_score(SpectralClustering(3, random_state=0).fit_predict(rows), labels) == 1
    blocks = sp.block_diag([np.ones((20, 20)), np.ones((30, 30))]).tocsr()
    stored = oc.from_scipy(tmp_path / "g", blocks)
    found = SpectralClustering(2, affinity="precomputed", random_state=0).fit(stored)
    assert adjusted_rand_score(found.labels_, np.repeat([0, 1], [20, 30])) == 1
    np.testing.assert_allclose(found.eigenvalues_, 0, atol=1e-9)


def test_spectral_clustering_is_that_of_scikit_learn(tmp_path: Path, rng: np.random.Generator) -> None:
    x = np.concatenate([rng.standard_normal((200, 2)) + at for at in ([0, 0], [4, 0], [0, 4])])
    expected = cluster.SpectralClustering(3, affinity="nearest_neighbors", n_neighbors=12, random_state=0).fit(x)
    found = SpectralClustering(3, n_neighbors=12, random_state=0).fit(x)
    np.testing.assert_allclose(found.affinity_matrix_.toarray(), expected.affinity_matrix_.toarray())
    assert adjusted_rand_score(found.labels_, expected.labels_) > 0.98
    blocks = sp.kron(sp.identity(50), np.ones((60, 60))).tocsr()
    blocks[0, 2999] = blocks[2999, 0] = 0.01
    stored = oc.from_scipy(tmp_path / "g", blocks)
    model = SpectralClustering(50, affinity="precomputed", random_state=0, n_init=1, memory="8MiB").fit(stored)
    assert adjusted_rand_score(model.labels_, np.repeat(np.arange(50), 60)) > 0.9
    with oc.Session("64MiB", tmp_path / "scratch", allow_tmpfs_scratch=True) as session:
        kept = session._engine.reserve("something else", 8 << 20)
        for memory in ("40MiB", None):
            other = SpectralClustering(50, affinity="precomputed", random_state=0, n_init=1, memory=memory)
            assert adjusted_rand_score(other.fit(session.open(tmp_path / "g")).labels_, model.labels_) > 0.9
        kept.release()
    with pytest.raises(errors.OverBudgetError, match="held between runs"):
        SpectralClustering(50, affinity="precomputed", memory="2MiB").fit(stored)
    plan = SpectralClustering(50, affinity="precomputed").explain(stored)
    assert plan.name == "degrees, eigenpairs"
    for wrong in (0, 3001, 2.0):
        with pytest.raises(errors.ArgumentError, match="n_clusters"):
            SpectralClustering(wrong, affinity="precomputed").fit(stored)  # type: ignore[arg-type]
    bad = blocks.toarray()
    bad[0, 1] = 5
    with pytest.raises(errors.ArgumentError, match="not symmetric"):
        SpectralClustering(2, affinity="precomputed").fit(bad)
    with pytest.raises(errors.ArgumentError, match="negative"):
        SpectralClustering(2, affinity="precomputed").fit(-blocks)
    bad[0, 1] = np.nan
    with pytest.raises(ValueError, match="NaN"):
        SpectralClustering(2, affinity="precomputed").fit(bad)


def test_the_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from click.testing import CliRunner

    from outcore.cli import cli

    a = sp.random(400, 200, 0.1, "csr", random_state=1)
    oc.from_scipy(tmp_path / "a", a)
    session = ["--memory", "64MiB", "--scratch", str(tmp_path)]
    command = ["svd", str(tmp_path / "a"), str(tmp_path / "out"), "-k", "3", *session]
    plan = CliRunner().invoke(cli, [*command, "--explain"])
    assert plan.exit_code == 0 and "passes at least" in plan.output and not (tmp_path / "out").exists()
    found = CliRunner().invoke(cli, command)
    assert found.exit_code == 0, found.output
    left, values, right = (np.load(tmp_path / "out" / f"{name}.npy") for name in ("U", "s", "Vt"))
    np.testing.assert_allclose((left * values) @ right @ right.T, a @ right.T, atol=1e-9)
    assert "not empty" in str(CliRunner().invoke(cli, command).exception)
    # A checkpoint and some of the results, as a search that was killed leaves them.
    again = [*command, "--checkpoint", str(tmp_path / "out" / "kept"), "--maxiter", "300"]
    (tmp_path / "out" / "kept").write_bytes(b"")
    assert "not empty" not in str(CliRunner().invoke(cli, again).exception)
    symmetric = a.T @ a
    oc.from_scipy(tmp_path / "g", symmetric.tocsr())
    arguments = ["eigsh", str(tmp_path / "g"), str(tmp_path / "pairs"), "-k", "3", "--which", "LA", *session]
    found = CliRunner().invoke(cli, arguments)
    assert found.exit_code == 0, found.output
    np.testing.assert_allclose(np.load(tmp_path / "pairs" / "w.npy"), values**2, rtol=1e-6)
    # What could not be written is not searched for again.
    kept = tmp_path / "kept"
    command = ["svd", str(tmp_path / "a"), str(tmp_path / "again"), "-k", "3", "--checkpoint", str(kept), *session]
    with monkeypatch.context() as patch:
        patch.setattr(np, "save", lambda *_: (_ for _ in ()).throw(OSError("the device is full")))
        assert "full" in str(CliRunner().invoke(cli, command).exception)
    assert kept.exists()
    found = CliRunner().invoke(cli, command)
    assert found.exit_code == 0 and not kept.exists(), found.output
    np.testing.assert_array_equal(np.load(tmp_path / "again" / "s.npy"), values)
    arguments = [
        "eigsh",
        str(tmp_path / "g"),
        str(tmp_path / "cut"),
        "-k",
        "2",
        "--which",
        "SA",
        "--laplacian",
        "normed",
        *session,
    ]
    plan = CliRunner().invoke(cli, [*arguments, "--explain"])
    assert "plan        degrees" in plan.output and "plan        eigenpairs" in plan.output, plan.output
    found = CliRunner().invoke(cli, arguments)
    assert found.exit_code == 0, found.output
    expected = np.linalg.eigvalsh(laplacian_of(symmetric.toarray(), normed=True))[:2]
    np.testing.assert_allclose(np.load(tmp_path / "cut" / "w.npy"), expected, atol=1e-6)
