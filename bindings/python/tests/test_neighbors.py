"""Nearest neighbours: those of a plain search, whatever the budget, and those of scikit-learn."""

import json
import multiprocessing
import pickle
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn import datasets, neighbors
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV

import outcore as oc
from outcore import errors
from outcore.neighbors import KNeighborsClassifier, KNeighborsRegressor, NearestNeighbors

METRICS = ("euclidean", "cosine", "inner_product")


def plain(x: Any, q: Any, k: int, metric: str, own: bool = False) -> tuple[Any, Any]:
    """In float64, by (distance, number)."""
    x, q = np.asarray(x, "f8"), np.asarray(q, "f8")
    if metric == "euclidean":
        distances = np.square(q[:, None, :] - x[None, :, :]).sum(axis=2)
    elif metric == "cosine":
        lengths = np.linalg.norm(q, axis=1)[:, None] * np.linalg.norm(x, axis=1)[None, :]
        distances = np.where(lengths == 0, 1, 1 - q @ x.T / np.where(lengths == 0, 1, lengths))
    else:
        distances = -(q @ x.T)
    if own:
        np.fill_diagonal(distances, np.inf)
    order = np.argsort(distances, axis=1, kind="stable")[:, :k]
    found = np.take_along_axis(distances, order, 1)
    return np.sqrt(found) if metric == "euclidean" else found, order


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("dtype", ["float32", "float64", "uint8"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_neighbors_are_those_of_a_plain_search(
    metric: Any, dtype: str, order: Any, tmp_path: Path, rng: np.random.Generator
) -> None:
    x, q = (rng.integers(0, 250, shape).astype(dtype) for shape in ((3000, 9), (170, 9)))
    rows = oc.from_numpy(tmp_path / "x.npy", x, order=order)
    queries = oc.from_numpy(tmp_path / "q.npy", q, order=order)
    expected = plain(x, q, 7, metric)
    for a, b in ((rows, queries), (x, q), (rows, q)):
        distances, numbers = NearestNeighbors(7, metric=metric).fit(a).kneighbors(b)
        assert (distances.dtype, numbers.dtype) == (np.float64, np.int64)
        # Sums in another order may differ in the last bit, and so may the order of what is that close.
        np.testing.assert_allclose(distances, expected[0], rtol=1e-12, atol=1e-12)
        if metric != "cosine":
            np.testing.assert_array_equal(numbers, expected[1])


@pytest.mark.parametrize("metric", METRICS)
def test_rows_are_left_out_of_their_own_lists(metric: Any, tmp_path: Path, rng: np.random.Generator) -> None:
    x = rng.integers(-9, 9, (700, 5)).astype("f4")
    x[300:310] = x[5]
    found = NearestNeighbors(4, metric=metric).fit(oc.from_numpy(tmp_path / "x.npy", x)).kneighbors()
    expected = plain(x, x, 4, metric, own=True)
    np.testing.assert_allclose(found[0], expected[0], atol=1e-12)
    if metric != "cosine":
        np.testing.assert_array_equal(found[1], expected[1])
    assert (found[1] != np.arange(700)[:, None]).all()


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("form", ["arrays", "tiles", "memory"])
def test_sparse_neighbors_are_those_of_a_plain_search(metric: Any, form: str, tmp_path: Path, rng: np.random.Generator) -> None:
    def made(rows: int) -> Any:
        s = sp.random(rows, 120, 0.04, "csr", np.float32, random_state=rng, data_rvs=lambda count: rng.integers(1, 4, count))
        s[3] = 0
        s.eliminate_zeros()
        return s

    x, q = made(500), made(170)
    rows = x if form == "memory" else oc.from_scipy(tmp_path / "x", x)
    if form == "tiles":
        tiled = rows.tiled()
        rows = rows if tiled is None else tiled
    queries = q if form == "memory" else oc.from_scipy(tmp_path / "q", q)
    for others, own in ((queries, False), (None, True)):
        distances, numbers = NearestNeighbors(6, metric=metric).fit(rows).kneighbors(others)
        expected = plain(x.toarray(), (x if own else q).toarray(), 6, metric, own)
        np.testing.assert_allclose(distances, expected[0], rtol=1e-12, atol=1e-12)
        if metric != "cosine":
            np.testing.assert_array_equal(numbers, expected[1])
    with pytest.raises(errors.ArgumentError, match="both must be dense, or both sparse"):
        NearestNeighbors(6).fit(rows).kneighbors(np.ones((3, 120), "f4"))


def test_sparse_rows_larger_than_the_budget(tmp_path: Path, rng: np.random.Generator) -> None:
    """Words of a corpus: few columns are in most rows, and most in few."""
    count, width = 60_000, 1_000_000
    columns = np.minimum(rng.zipf(1.3, count * 30), width - 1).reshape(count, 30)
    s = sp.csr_matrix((np.ones(columns.size, "f4"), columns.ravel(), np.arange(0, columns.size + 1, 30)), (count, width))
    s.sum_duplicates()
    oc.from_scipy(tmp_path / "s", s)
    found = set()
    for memory, threads in (("4MiB", 1), ("4MiB", 2), ("64MiB", 2)):
        oc.configure(memory, tmp_path, threads, allow_tmpfs_scratch=True)
        rows = oc.open(tmp_path / "s")
        distances, numbers = NearestNeighbors(5).fit(rows).kneighbors(rows.slice(100, 1100))
        found.add((distances.tobytes(), numbers.tobytes()))
    assert len(found) == 1
    theirs = neighbors.NearestNeighbors(n_neighbors=5, algorithm="brute").fit(s).kneighbors(s[100:200])
    np.testing.assert_allclose(distances[:100], theirs[0], atol=1e-3)
    labels = np.arange(count) % 3
    ours = KNeighborsClassifier(5).fit(rows, labels)
    assert ours.predict(rows.slice(0, 50)).shape == (50,)


def test_every_budget_gives_the_same_bytes(tmp_path: Path, rng: np.random.Generator) -> None:
    """More rows than the smallest budget holds, in clusters far from zero."""
    centers = rng.normal(0, 30, (20, 32))
    x, q = (
        (1000 + centers[rng.integers(0, 20, count)] + rng.standard_normal((count, 32))).astype("f4") for count in (60_000, 4000)
    )
    oc.from_numpy(tmp_path / "x.npy", x), oc.from_numpy(tmp_path / "q.npy", q)
    found = set()
    for memory, threads in (("6MiB", 1), ("6MiB", 2), ("64MiB", 2)):
        oc.configure(memory, tmp_path, threads, allow_tmpfs_scratch=True)
        rows, queries = oc.open(tmp_path / "x.npy"), oc.open(tmp_path / "q.npy")
        out = (tmp_path / "d.npy", tmp_path / "i.npy")
        distances, numbers = NearestNeighbors(10).fit(rows).kneighbors(queries, out=out)
        assert isinstance(numbers, oc.Array)
        found.add((distances.numpy().tobytes(), numbers.numpy().tobytes()))
        distances.close(), numbers.close()
    assert len(found) == 1
    expected = plain(x, q[:50], 10, "euclidean")
    np.testing.assert_array_equal(np.load(out[1])[:50], expected[1])


def within(x: Any, q: Any, radius: float, metric: str, own: bool = False) -> tuple[list[Any], list[Any]]:
    """In float64, in the order of the rows."""
    distances, order = plain(x, q, len(x) - own, metric, own)
    back = np.argsort(order, axis=1)
    rows, distances = np.take_along_axis(order, back, 1), np.take_along_axis(distances, back, 1)
    near = distances <= radius
    return [d[n] for d, n in zip(distances, near, strict=True)], [r[n] for r, n in zip(rows, near, strict=True)]


@pytest.mark.parametrize(("metric", "radius"), [("euclidean", 9.0), ("cosine", 0.3), ("inner_product", -150.0)])
@pytest.mark.parametrize("form", ["stored", "memory", "sparse", "tiles"])
def test_rows_within_a_radius_are_those_of_a_plain_search(
    metric: Any, radius: float, form: str, tmp_path: Path, rng: np.random.Generator
) -> None:
    x, q = (rng.integers(-9, 10, (count, 7)).astype("f4") for count in (900, 70))
    x[rng.random(x.shape) < 0.3] = 0
    x[5], q[3], q[4] = 0, 0, x[8]
    made = {"memory": lambda _, x: x, "stored": lambda name, x: oc.from_numpy(tmp_path / f"{name}.npy", x)}
    make: Any = made.get(form, lambda name, x: oc.from_scipy(tmp_path / name, sp.csr_matrix(x)))
    rows, queries = make("x", x), make("q", q)
    if form == "tiles":
        tiled = rows.tiled()
        rows = rows if tiled is None else tiled
    fitted = NearestNeighbors(radius=radius, metric=metric).fit(rows)
    for others, own in ((queries, False), (None, True)):
        expected = within(x, x if own else q, radius, metric, own)
        distances, numbers = fitted.radius_neighbors(others)
        stored = fitted.radius_neighbors(others, out=tmp_path / f"near{own}")
        ones = fitted.radius_neighbors_graph(others, out=tmp_path / f"ones{own}")
        assert isinstance(stored, oc.Sparse)
        assert distances.dtype == object
        np.testing.assert_array_equal([len(row) for row in numbers], [len(row) for row in expected[1]])
        np.testing.assert_array_equal(np.concatenate(numbers), np.concatenate(expected[1]))
        np.testing.assert_allclose(np.concatenate(distances), np.concatenate(expected[0]), atol=1e-12)
        graph, one = stored.scipy(), ones.scipy()
        np.testing.assert_array_equal(graph.data, np.concatenate(distances))
        np.testing.assert_array_equal(graph.indices, one.indices)
        assert (one.data == 1).all()
        sorted_distances, _ = fitted.radius_neighbors(others, sort_results=True)
        assert all((np.diff(row) >= 0).all() for row in sorted_distances)
        assert fitted.radius_neighbors_graph(others, mode="distance").shape == (len(x if own else q), 900)


def test_rows_within_a_radius_are_those_of_scikit_learn(tmp_path: Path) -> None:
    x = datasets.load_iris().data
    ours, theirs = NearestNeighbors(radius=0.487).fit(x), neighbors.NearestNeighbors(radius=0.487).fit(x)
    for q in (x, None):
        for a, b in zip(ours.radius_neighbors(q, sort_results=True), theirs.radius_neighbors(q, sort_results=True), strict=True):
            assert [len(row) for row in a] == [len(row) for row in b]
        for mode in ("connectivity", "distance"):
            a, b = (model.radius_neighbors_graph(q, mode=mode) for model in (ours, theirs))
            assert abs(a - b).max() < 1e-7


def test_what_is_found_within_a_radius_may_exceed_the_budget(tmp_path: Path, rng: np.random.Generator) -> None:
    """Some rows have few neighbours and some thousands, more than pairs have room for; every budget gives the same bytes."""
    x = np.concatenate([rng.standard_normal((12_000, 4)) * 50, rng.standard_normal((800, 4)) * 0.01]).astype("f4")
    x = x[rng.permutation(len(x))]
    oc.from_numpy(tmp_path / "x.npy", x), oc.from_scipy(tmp_path / "s", sp.csr_matrix(x))
    for name, count in (("x.npy", len(x)), ("s", 2000)):
        found = set()
        for memory, threads in (("4MiB", 1), ("5MiB", 2), ("256MiB", 2)):
            oc.configure(memory, tmp_path, threads, allow_tmpfs_scratch=True)
            rows: Any = oc.open(tmp_path / name)
            queries = rows.slice(0, count) if name == "s" else None
            graph = NearestNeighbors(radius=1.0).fit(rows).radius_neighbors(queries, out=tmp_path / "near")
            found.add(b"".join((tmp_path / "near" / part).read_bytes() for part in ("indptr.npy", "indices.npy", "data.npy")))
            assert graph.nnz > (600_000 if name == "x.npy" else 50_000)
        assert len(found) == 1


def test_a_row_may_find_more_than_memory_has_room_for(tmp_path: Path, rng: np.random.Generator) -> None:
    oc.configure("3MiB", tmp_path, 2, allow_tmpfs_scratch=True)
    x = rng.standard_normal((150_000, 2), dtype="f4")
    fitted = NearestNeighbors().fit(oc.from_numpy(tmp_path / "x.npy", x))
    graph = fitted.radius_neighbors(x[:2], np.inf, out=tmp_path / "near")
    assert graph.shape == (2, 150_000)
    assert graph.nnz == 300_000
    np.testing.assert_array_equal(np.load(tmp_path / "near" / "indices.npy"), np.tile(np.arange(150_000), 2))


def test_graphs_are_stored(tmp_path: Path, rng: np.random.Generator) -> None:
    x = rng.standard_normal((30_000, 5), dtype="f4")
    oc.from_numpy(tmp_path / "x.npy", x)
    for memory in ("4MiB", "64MiB"):
        oc.configure(memory, tmp_path, 2, allow_tmpfs_scratch=True)
        fitted = NearestNeighbors(4).fit(oc.open(tmp_path / "x.npy"))
        distances, numbers = fitted.kneighbors()
        graph = fitted.kneighbors_graph(mode="distance", out=tmp_path / "graph")
        assert isinstance(graph, oc.Sparse)
        found = graph.scipy()
        np.testing.assert_array_equal(found.indices.reshape(-1, 4), numbers)
        np.testing.assert_array_equal(found.data.reshape(-1, 4), distances)
        np.testing.assert_array_equal(found.indptr, np.arange(30_001) * 4)
        ones = fitted.kneighbors_graph(x[:100], 2, out=tmp_path / "ones")
        assert (ones.shape, ones.nnz) == ((100, 30_000), 200)


def test_lists_of_all_groups_stay_within_the_budget(tmp_path: Path, rng: np.random.Generator) -> None:
    """What one group of queries has found is gone when the next begins."""
    oc.configure("8MiB", tmp_path, 2, allow_tmpfs_scratch=True)
    rows = oc.from_numpy(tmp_path / "x.npy", rng.standard_normal((20_000, 4), dtype="f4"))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    NearestNeighbors(300).fit(rows).kneighbors(out=(tmp_path / "d.npy", tmp_path / "i.npy"))
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) << 10
    assert grown < 60 << 20, f"{20_000 * 300 * 16 >> 20} MiB of lists, {grown >> 20} MiB more memory"


def search_until_killed(folder: Path) -> None:
    oc.configure("6MiB", folder, 2, allow_tmpfs_scratch=True)
    fitted = NearestNeighbors(40).fit(oc.open(folder / "x.npy"))
    fitted.kneighbors(out=(folder / "d.npy", folder / "i.npy"), checkpoint=folder / "so_far")


def graph_until_killed(folder: Path) -> None:
    oc.configure("6MiB", folder, 2, allow_tmpfs_scratch=True)
    fitted = NearestNeighbors(40).fit(oc.open(folder / "x.npy"))
    fitted.kneighbors_graph(mode="distance", out=folder / "graph", checkpoint=folder / "so_far")


def radius_until_killed(folder: Path) -> None:
    oc.configure("3MiB", folder, 2, allow_tmpfs_scratch=True)
    fitted = NearestNeighbors(radius=5.0).fit(oc.open(folder / "x.npy"))
    fitted.radius_neighbors(out=folder / "near", checkpoint=folder / "so_far")


def kill_after(progress: int, work: Callable[[Path], None], folder: Path) -> list[list[int]]:
    """Kills a search that has kept something as often: how far it was each time."""
    process = multiprocessing.get_context("spawn").Process(target=work, args=(folder,))
    process.start()
    seen: list[list[int]] = []
    while process.is_alive() and len(seen) < progress:
        for found in folder.glob("*so_far*/checkpoint.json"):
            done = json.loads(found.read_text())[1]
            if done not in seen:
                seen.append(done)
    process.kill()
    process.join()
    return seen


def test_a_killed_search_goes_on(tmp_path: Path, rng: np.random.Generator) -> None:
    x = rng.integers(0, 9, (20_000, 6)).astype("f4")
    oc.from_numpy(tmp_path / "x.npy", x)
    expected = NearestNeighbors(40).fit(oc.open(tmp_path / "x.npy")).kneighbors()
    for progress in (1, 3):
        kill_after(progress, search_until_killed, tmp_path)
        assert not (tmp_path / "d.npy").exists()
    fitted = NearestNeighbors(41).fit(oc.open(tmp_path / "x.npy"))
    with pytest.raises(errors.ArgumentError, match="of another search"):
        fitted.kneighbors(checkpoint=tmp_path / "so_far")
    search_until_killed(tmp_path)
    np.testing.assert_array_equal(np.load(tmp_path / "d.npy"), expected[0])
    np.testing.assert_array_equal(np.load(tmp_path / "i.npy"), expected[1])
    assert sorted(path.name for path in tmp_path.glob("*so_far*")) == []
    kill_after(2, graph_until_killed, tmp_path)
    assert not (tmp_path / "graph").exists() and list(tmp_path.glob("*so_far*")) != []
    stored, labels = oc.open(tmp_path / "x.npy"), x[:, 0].astype(int)
    voting = [one(40).fit(stored, labels) for one in (KNeighborsClassifier, KNeighborsRegressor)]
    voted = [voting[0].predict, voting[0].predict_proba, voting[1].predict]
    for predict in voted:
        with pytest.raises(errors.ArgumentError, match="of another search"):
            predict(x[:50], checkpoint=tmp_path / "so_far")
    graph_until_killed(tmp_path)
    graph = oc.open(tmp_path / "graph").scipy()
    np.testing.assert_array_equal(graph.data, expected[0].ravel())
    np.testing.assert_array_equal(graph.indices, expected[1].ravel())
    assert sorted(path.name for path in tmp_path.glob("*so_far*")) == []
    for predict in voted:
        np.testing.assert_array_equal(predict(x[:50], checkpoint=tmp_path / "so_far"), predict(x[:50]))
    voting[0].set_params(weights=lambda distances: distances[:1])
    with pytest.raises(errors.ShapeError, match="weights gave"):
        voting[0].predict(x[:50], checkpoint=tmp_path / "so_far")
    # What was found is still there for another try.
    assert list(tmp_path.glob("*so_far*")) != []
    voting[0].set_params(weights="uniform").predict(x[:50], checkpoint=tmp_path / "so_far")
    assert list(tmp_path.glob("*so_far*")) == []
    with pytest.raises(errors.ArgumentError, match="has no name"):
        unnamed = oc.open(tmp_path / "x.npy").T @ x
        NearestNeighbors(2).fit(unnamed).kneighbors(checkpoint=tmp_path / "so_far")


def test_a_killed_search_within_a_radius_goes_on(tmp_path: Path, rng: np.random.Generator) -> None:
    x = rng.integers(0, 9, (12_000, 6)).astype("f4")
    oc.from_numpy(tmp_path / "x.npy", x)
    expected = NearestNeighbors(radius=5.0).fit(oc.open(tmp_path / "x.npy")).radius_neighbors_graph(mode="distance")
    first, second = (kill_after(3, radius_until_killed, tmp_path) for _ in range(2))
    assert not (tmp_path / "near").exists()
    # There are never fewer entries than the run before has left.
    assert 0 < first[0][1] < first[-1][1] <= second[0][1] < second[-1][1]
    fitted = NearestNeighbors(radius=4.0).fit(oc.open(tmp_path / "x.npy"))
    for search in (fitted.radius_neighbors, fitted.radius_neighbors_graph, fitted.kneighbors_graph):
        with pytest.raises(errors.ArgumentError, match="of another search"):
            search(checkpoint=tmp_path / "so_far")
    radius_until_killed(tmp_path)
    near = oc.open(tmp_path / "near").scipy()
    for part in ("data", "indices", "indptr"):
        np.testing.assert_array_equal(getattr(near, part), getattr(expected, part))
    assert list(tmp_path.glob("*so_far*")) == []


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("name", ["x.npy", "x"])
def test_rows_that_look_for_each_other_find_what_queries_find(
    metric: Any, name: str, tmp_path: Path, rng: np.random.Generator
) -> None:
    """Half of the products, groups by way of scratch: the same bytes as of a search with queries."""
    x = rng.integers(-3, 4, (15_000, 24)).astype("f4")
    if name == "x":
        x[rng.random(x.shape) < 0.5] = 0
        oc.from_scipy(tmp_path / name, sp.csr_matrix(x))
    else:
        oc.from_numpy(tmp_path / name, x)
    found = set()
    for memory, threads in (("3MiB", 1), ("6MiB", 2), ("64MiB", 2)):
        oc.configure(memory, tmp_path, threads, allow_tmpfs_scratch=True)
        rows = oc.open(tmp_path / name)
        distances, numbers = NearestNeighbors(5, metric=metric).fit(rows).kneighbors()
        found.add((distances.tobytes(), numbers.tobytes()))
    assert len(found) == 1
    # Each is in its own list; where others are as near, it may be behind five of them.
    theirs = NearestNeighbors(6, metric=metric).fit(rows).kneighbors(rows)
    for query in range(15_000):
        own = np.flatnonzero(theirs[1][query] == query)
        keep = np.delete(np.arange(6), own if len(own) else 5)
        assert (theirs[1][query][keep] == numbers[query]).all()
        assert (theirs[0][query][keep] == distances[query]).all()


def clustered(rng: np.random.Generator, middles: Any, count: int) -> Any:
    return (middles[rng.integers(len(middles), size=count)] + rng.standard_normal((count, middles.shape[1]))).astype("f4")


@pytest.mark.parametrize("form", ["stored", "by columns", "memory"])
def test_clusters_leave_out_blocks_and_change_no_byte(form: str, tmp_path: Path, rng: np.random.Generator) -> None:
    middles = 50 + 3 * rng.standard_normal((60, 20))
    x, q = clustered(rng, middles, 20_000), clustered(rng, middles, 3000)
    rows: Any = x
    if form != "memory":
        rows = oc.from_numpy(tmp_path / "x.npy", x, order="F" if form == "by columns" else "C")
    out = (tmp_path / "d.npy", tmp_path / "i.npy")
    for queries in (None, q):
        found, flops = [], []
        for algorithm in ("brute", "clusters"):
            fitted = NearestNeighbors(6, algorithm=algorithm).fit(rows)  # type: ignore[arg-type]
            for result in fitted.kneighbors(queries, out=out):
                result.close()
            flops.append(oc.last_trace().flops)
            found.append((out[0].read_bytes(), out[1].read_bytes()))
        assert found[0] == found[1]
        assert flops[1] < flops[0] / 2, f"{flops[1]} operations of {flops[0]}"


def test_clusters_are_searched_within_the_budget(tmp_path: Path, rng: np.random.Generator) -> None:
    """Rows of some times the budget, to new files; fewer bytes are read than by a search of everything."""
    middles = 3 * rng.standard_normal((60, 32))
    oc.from_numpy(tmp_path / "x.npy", clustered(rng, middles, 60_000))
    out, found, read = (tmp_path / "d.npy", tmp_path / "i.npy"), set(), []
    for algorithm, memory, threads in (("clusters", "5MiB", 1), ("clusters", "64MiB", 2), ("brute", "5MiB", 2)):
        oc.configure(memory, tmp_path, threads, allow_tmpfs_scratch=True)
        fitted = NearestNeighbors(5, algorithm=algorithm).fit(oc.open(tmp_path / "x.npy"))  # type: ignore[arg-type]
        for result in fitted.kneighbors(oc.open(tmp_path / "x.npy").slice(0, 30_000), out=out):
            result.close()
        found.add((out[0].read_bytes(), out[1].read_bytes()))
        read.append(oc.last_trace().actual["bytes_read"])
    assert len(found) == 1
    assert read[0] < read[2], read
    oc.configure("1MiB", tmp_path, 2, allow_tmpfs_scratch=True)
    with pytest.raises(errors.OverBudgetError):
        NearestNeighbors(5, algorithm="clusters").fit(oc.open(tmp_path / "x.npy")).kneighbors()


def test_what_clusters_cannot_search_is_searched_as_ever(rng: np.random.Generator) -> None:
    x = rng.standard_normal((300, 4))
    for rows, metric in ((x, "cosine"), (sp.csr_matrix(x), "euclidean")):
        ours, theirs = (NearestNeighbors(3, metric=metric, algorithm=name).fit(rows) for name in ("clusters", "brute"))  # type: ignore[arg-type]
        np.testing.assert_array_equal(ours.kneighbors()[1], theirs.kneighbors()[1])
    same = np.ones((40, 3))
    np.testing.assert_array_equal(
        NearestNeighbors(2, algorithm="clusters").fit(same).kneighbors()[1][:3], [[1, 2], [0, 2], [0, 1]]
    )
    votes = KNeighborsClassifier(3, algorithm="clusters").fit(x, np.arange(300) % 2)
    np.testing.assert_array_equal(votes.predict(x), KNeighborsClassifier(3).fit(x, np.arange(300) % 2).predict(x))
    assert votes.explain(x).name
    with pytest.raises(errors.ArgumentError, match="algorithm='tree' must be one of"):
        NearestNeighbors(algorithm="tree").fit(x)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["digits", "wine"])
@pytest.mark.parametrize("weights", ["uniform", "distance", np.exp])
def test_classes_are_those_of_scikit_learn(name: str, weights: Any) -> None:
    x, y = getattr(datasets, f"load_{name}")(return_X_y=True)
    y = np.array([f"class {label}" for label in y])
    ours = KNeighborsClassifier(5, weights=weights).fit(x[::2], y[::2])
    theirs = neighbors.KNeighborsClassifier(5, weights=weights, algorithm="brute").fit(x[::2], y[::2])
    same = (ours.kneighbors(x[1::2])[1] == theirs.kneighbors(x[1::2])[1]).all(axis=1)
    assert same.mean() > 0.95
    np.testing.assert_allclose(ours.predict_proba(x[1::2])[same], theirs.predict_proba(x[1::2])[same])
    np.testing.assert_array_equal(ours.predict(x[1::2])[same], theirs.predict(x[1::2])[same])
    assert ours.score(x[1::2], y[1::2]) > 0.65


def test_targets_are_those_of_scikit_learn(rng: np.random.Generator) -> None:
    x, y = rng.standard_normal((500, 4)), rng.standard_normal((500, 2))
    for weights in ("uniform", "distance"):
        for targets in (y, y[:, 0]):
            ours, theirs = (
                kind(3, weights=weights).fit(x[100:], targets[100:])
                for kind in (KNeighborsRegressor, neighbors.KNeighborsRegressor)
            )
            np.testing.assert_allclose(ours.predict(x[:100]), theirs.predict(x[:100]))


def test_stored_rows_go_through_scikit_learn(tmp_path: Path) -> None:
    x, y = datasets.load_iris(return_X_y=True)
    rows = oc.from_numpy(tmp_path / "x.npy", x.astype("f4"))
    found = GridSearchCV(KNeighborsClassifier(), {"n_neighbors": [1, 5]}, cv=3).fit(rows, y)
    assert found.best_score_ > 0.9
    fitted = KNeighborsClassifier(3).fit(rows, y)
    again = pickle.loads(pickle.dumps(fitted))
    np.testing.assert_array_equal(again.predict(rows), fitted.predict(rows))
    assert clone(fitted).n_neighbors == 3
    graph = NearestNeighbors(4).fit(rows).kneighbors_graph(mode="distance")
    expected = neighbors.NearestNeighbors(n_neighbors=4).fit(x.astype("f4")).kneighbors_graph(mode="distance")
    np.testing.assert_allclose(graph.sum(axis=1), expected.sum(axis=1), rtol=1e-5)
    assert graph.shape == (150, 150)


def test_what_cannot_be_looked_for_says_so(tmp_path: Path) -> None:
    x = np.random.default_rng(0).standard_normal((20, 3)).astype("f4")
    rows = oc.from_numpy(tmp_path / "x.npy", x)
    fitted = NearestNeighbors().fit(rows)
    for k, queries in ((21, x), (20, None)):
        with pytest.raises(errors.ArgumentError, match="n_neighbors <= n_samples_fit"):
            fitted.kneighbors(queries, k)
    with pytest.raises(errors.ArgumentError, match="n_neighbors > 0"):
        fitted.kneighbors(x, 0)
    for radius in (-1, "1", np.nan):
        with pytest.raises(errors.ArgumentError, match="radius="):
            fitted.radius_neighbors(x, radius)
    with pytest.raises(errors.ArgumentError, match="sorts in memory"):
        fitted.radius_neighbors(x, sort_results=True, out=tmp_path / "near")
    with pytest.raises(errors.ArgumentError, match="return_distance must be True"):
        fitted.radius_neighbors(x, return_distance=False, sort_results=True)
    with pytest.raises(errors.ArgumentError, match="mode="):
        fitted.kneighbors_graph(x, mode="both")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="3 features"):
        fitted.kneighbors(x[:, :2])
    with pytest.raises(errors.ArgumentError, match="must be one of"):
        NearestNeighbors(metric="manhattan").fit(rows)
    x[7, 1] = np.nan
    bad = oc.from_numpy(tmp_path / "bad.npy", x)
    with pytest.raises(errors.NotFiniteError, match=r"bad\.npy has a value that is not finite at row 7, column 1"):
        NearestNeighbors().fit(bad).kneighbors()
    with pytest.raises(errors.NotFiniteError, match=r"bad\.npy"):
        fitted.kneighbors(bad)
    with pytest.raises(errors.NotFiniteError, match=r"bad\.npy.* row 7, column 1"):
        NearestNeighbors().fit(bad).radius_neighbors(out=tmp_path / "near")
    assert not (tmp_path / "near").exists()
    with pytest.raises(errors.ArgumentError, match="none"):
        KNeighborsClassifier(metric="inner_product", weights="distance").fit(rows, np.arange(20) % 2).predict(rows)
    with pytest.raises(errors.DTypeError, match=r"outcore\.convert"):
        fitted.kneighbors(oc.from_numpy(tmp_path / "q.npy", np.ones((2, 3))))
    one = KNeighborsClassifier().fit(rows, np.full(20, "a"))
    assert set(one.predict(rows)) == {"a"}


def test_lists_are_queries_and_parameters_are_checked_before_a_search() -> None:
    fitted = NearestNeighbors(1).fit([[0.0], [1.0]])
    assert fitted.kneighbors([[0.9]], return_distance=False).tolist() == [[1]]
    with pytest.raises(errors.ArgumentError, match="n_samples_fit"):
        fitted.kneighbors([[0.5]], 3)
    with pytest.raises(NotFittedError):
        NearestNeighbors().kneighbors_graph([[0.5]])
    for wrong in ({"n_neighbors": 0}, {"weights": "far"}):
        with pytest.raises(errors.ArgumentError):
            KNeighborsClassifier(**wrong).fit([[0.0], [1.0]], [0, 1])
    assert KNeighborsClassifier(1, weights=None).fit([[0.0], [1.0]], [0, 1]).predict([[0.9]]).tolist() == [1]


@pytest.mark.parametrize("weights", ["uniform", "distance"])
def test_several_outputs_are_those_of_scikit_learn(weights: Any, rng: np.random.Generator) -> None:
    x, q = rng.standard_normal((200, 4)), rng.standard_normal((50, 4))
    y = np.stack([rng.integers(0, 3, 200), rng.integers(5, 7, 200)], axis=1)
    ours = KNeighborsClassifier(7, weights=weights).fit(x, y)
    theirs = neighbors.KNeighborsClassifier(7, weights=weights, algorithm="brute").fit(x, y)
    np.testing.assert_array_equal(ours.predict(q), theirs.predict(q))
    for own, expected in zip(ours.predict_proba(q), theirs.predict_proba(q), strict=True):
        np.testing.assert_allclose(own, expected, atol=1e-12)
    assert ours.outputs_2d_ and [classes.tolist() for classes in ours.classes_] == [[0, 1, 2], [5, 6]]


def test_of_distances_that_are_told_alike_the_first_row_comes_first() -> None:
    rows = np.array([[1, 2.0**-26], [1, 0], [2, 0]])
    for of in (np.asarray, sp.csr_matrix):
        for k in (1, 2):
            distances, numbers = NearestNeighbors(k).fit(of(rows)).kneighbors(of([[0.0, 0.0]]))
            assert (distances[0].tolist(), numbers[0].tolist()) == ([1.0, 1.0][:k], [0, 1][:k])


def test_votes_of_many_classes_take_little_memory() -> None:
    rows = np.arange(20_000, dtype="f8")[:, None]
    fitted = KNeighborsClassifier(1).fit(rows, np.arange(20_000))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert (fitted.predict(rows) == np.arange(20_000)).all()
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) << 10 < 300 << 20


def test_a_plan_is_told(tmp_path: Path, rng: np.random.Generator) -> None:
    rows = oc.from_numpy(tmp_path / "x.npy", rng.standard_normal((5000, 8), dtype="f4"))
    fitted = NearestNeighbors().fit(rows)
    plan = fitted.explain(rows[:100])
    assert plan.bytes_read >= rows.nbytes


def test_rows_below_normal_numbers_and_parts_of_elements_are_compared_exactly() -> None:
    rows = sp.csr_matrix(np.array([[1, -1], [1e-40, 0]], "f4"))
    queries = sp.csr_matrix(np.array([[-1, 1]], "f4"))
    for of in (lambda x: x, lambda x: x.toarray()):
        distances, numbers = NearestNeighbors(1, metric="cosine").fit(of(rows)).kneighbors(of(queries))
        assert numbers == [[1]] and distances[0, 0] == pytest.approx(1 + 0.5**0.5)
    parts = sp.csr_matrix(([1.0, 1.0], [0, 0], [0, 2]), shape=(1, 2))
    assert NearestNeighbors(1).fit(parts).kneighbors(sp.csr_matrix([[2.0, 0.0]]))[0] == [[0]]
