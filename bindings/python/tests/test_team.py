"""Estimators and statistics of rows over ranks: as of one process with all rows, and the same on every rank."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from scipy import sparse
from sklearn.base import clone

import outcore as oc
from outcore.cluster import KMeans
from outcore.decomposition import PCA
from outcore.errors import ArgumentError, DTypeError, FailedError, NotFiniteError, ShapeError
from outcore.ranks import Ranks, threads

MPIRUN = shutil.which("mpirun", path=str(Path(sys.executable).parent)) or ""
"""The launcher of the wheel, whose library mpi4py takes."""

PROGRAM = Path(__file__).parent / "team_program.py"
SPLITS = [[60], [41, 19], [20, 0, 40], [0, 60], [1, 24, 9, 0, 26]]


def rows(count: int, columns: int, kind: npt.DTypeLike = np.float64) -> npt.NDArray[Any]:
    random = np.random.default_rng(7)
    middles = random.normal(size=(5, columns)) * 8
    drift = np.linspace(0, 3, count)[:, None]
    return (
        middles[random.integers(5, size=count)] + random.normal(size=(count, columns)) * np.arange(1, columns + 1) + drift
    ).astype(kind)


def cut(x: Any, counts: Sequence[int]) -> list[Any]:
    ends = np.cumsum(counts)
    return [x[end - count : end] for count, end in zip(counts, ends, strict=True)]


def on_ranks(size: int, work: Callable[[int, Ranks], Any]) -> list[Any]:
    """What each of as many threads makes; an exception is what it makes, too."""
    found: list[Any] = [None] * size

    def carry_out(rank: int, comm: Ranks) -> None:
        try:
            found[rank] = work(rank, comm)
        except Exception as error:
            found[rank] = error

    started = [threading.Thread(target=carry_out, args=(rank, comm), daemon=True) for rank, comm in enumerate(threads(size))]
    for thread in started:
        thread.start()
    for thread in started:
        thread.join(60)
    assert not any(thread.is_alive() for thread in started), "no rank waits for ever"
    return found


def learned(model: Any, names: str) -> dict[str, Any]:
    return {name: getattr(model, name) for name in names.split()}


@pytest.mark.parametrize("counts", SPLITS, ids=str)
@pytest.mark.parametrize("kind", ["stored", "in memory", "sparse"])
def test_components_are_those_of_one_process(counts: list[int], kind: str, tmp_path: Path) -> None:
    x = rows(60, 6)
    x = np.where(np.abs(x) < 2, 0, x) if kind == "sparse" else x
    parts = cut(x, counts)

    def fitted(rank: int, comm: Ranks) -> PCA:
        own: Any = parts[rank]
        if kind != "in memory":
            own = sparse.csr_matrix(own) if kind == "sparse" else oc.from_numpy(tmp_path / f"{rank}.npy", own)
        return PCA(3, comm=comm).fit(own)

    one, all_ranks = PCA(3).fit(x), on_ranks(len(counts), fitted)
    names = "mean_ components_ explained_variance_ explained_variance_ratio_ singular_values_ noise_variance_ n_samples_"
    for model in all_ranks:
        for name, value in learned(model, names).items():
            np.testing.assert_allclose(value, getattr(one, name), rtol=1e-9, atol=1e-9, err_msg=name)
            np.testing.assert_array_equal(value, getattr(all_ranks[0], name))
    np.testing.assert_allclose(all_ranks[0].transform(x), one.transform(x), atol=1e-8)


@pytest.mark.parametrize("counts", SPLITS, ids=str)
@pytest.mark.parametrize("init", ["random", "k-means++", "k-means||", "array", "callable"])
@pytest.mark.parametrize("kind", ["dense", "sparse", "weighted"])
def test_centres_are_those_of_one_process(counts: list[int], init: str, kind: str, tmp_path: Path) -> None:
    x = rows(60, 4)
    weights = np.arange(60) % 3 + 0.5 if kind == "weighted" else None
    made: Any = {"array": x[:5], "callable": lambda X, k, random_state: x[5 : 5 + k]}.get(init, init)
    matrix = sparse.csr_matrix(np.where(np.abs(x) < 2, 0, x)) if kind == "sparse" else x
    parts, own_weights = cut(matrix, counts), cut(weights, counts) if weights is not None else [None] * len(counts)

    def fitted(rank: int, comm: Ranks) -> KMeans:
        own: Any = parts[rank]
        if kind == "dense":
            own = oc.from_numpy(tmp_path / f"{rank}.npy", own)
        return KMeans(5, init=made, n_init=2, random_state=3, comm=comm).fit(own, sample_weight=own_weights[rank])

    whole = oc.from_numpy(tmp_path / "all.npy", matrix) if kind == "dense" else matrix
    one = KMeans(5, init=made, n_init=2, random_state=3).fit(whole, sample_weight=weights)
    all_ranks = on_ranks(len(counts), fitted)
    for model in all_ranks:
        np.testing.assert_array_equal(model.cluster_centers_, all_ranks[0].cluster_centers_)
        np.testing.assert_allclose(model.cluster_centers_, one.cluster_centers_, rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(model.inertia_, one.inertia_, rtol=1e-9)
        assert model.n_iter_ == one.n_iter_
    np.testing.assert_array_equal(np.concatenate([model.labels_ for model in all_ranks]), one.labels_)


@pytest.mark.parametrize("counts", SPLITS, ids=str)
@pytest.mark.parametrize("kind", ["rows", "columns", "sparse"])
def test_statistics_are_those_of_one_process(counts: list[int], kind: str) -> None:
    x = rows(60, 6)
    matrix = sparse.csr_matrix(np.where(np.abs(x) < 2, 0, x)) if kind == "sparse" else x
    parts = cut(matrix, counts)
    if kind == "columns":
        parts = [np.asfortranarray(part) for part in parts]
    one = oc.linalg.column_statistics(matrix)
    for found in on_ranks(len(counts), lambda rank, comm: oc.linalg.column_statistics(parts[rank], comm=comm)):
        assert found.keys() == one.keys()
        for name, value in one.items():
            np.testing.assert_allclose(found[name], value, rtol=1e-12, atol=1e-12, err_msg=name)


def broken(rank: int, x: npt.NDArray[Any], how: str) -> npt.NDArray[Any]:
    if rank != 1:
        return x
    if how == "nan":
        x = x.copy()
        x[3, 1] = np.nan
    return {"columns": x[:, 1:], "type": x.astype(np.float32), "dimension": x[0]}.get(how, x)


@pytest.mark.parametrize(
    ("how", "error", "words"),
    [
        ("nan", NotFiniteError, "row 3, column 1"),
        ("columns", ShapeError, "rank 1 has rows of 3 columns, rank 0 of 4"),
        ("type", DTypeError, "rank 1 computes in float32, rank 0 in float64"),
        ("dimension", ShapeError, "dimension"),
    ],
)
@pytest.mark.parametrize("model", [PCA(2), KMeans(2, init="random"), KMeans(2)], ids=repr)
def test_all_ranks_fail_where_one_does(how: str, error: type[Exception], words: str, model: Any, tmp_path: Path) -> None:
    def fitted(rank: int, comm: Ranks) -> None:
        own = oc.from_numpy(tmp_path / f"{rank}.npy", broken(rank, rows(20, 4), how))
        clone(model).set_params(comm=comm).fit(own)

    found = on_ranks(3, fitted)
    assert isinstance(found[1], error) and words in str(found[1])
    for other in (found[0], found[2]):
        assert isinstance(other, (FailedError, error)) and "rank 1" in str(other) and words in str(other)


def test_parameters_that_differ_and_too_few_rows_are_errors() -> None:
    x = rows(4, 3)
    found = on_ranks(2, lambda rank, comm: KMeans(2 + rank, comm=comm).fit(x))
    assert all(isinstance(error, ArgumentError) and "rank 1 was asked for" in str(error) for error in found)
    found = on_ranks(2, lambda rank, comm: KMeans(9, comm=comm).fit(x))
    assert all("n_samples=8 should be >= n_clusters=9" in str(error) for error in found)
    found = on_ranks(2, lambda rank, comm: PCA(comm=comm).fit(x[: 1 - rank]))
    assert all("1 sample(s)" in str(error) for error in found)
    with pytest.raises(ArgumentError, match="comm must be"):
        PCA(comm=3).fit(x)
    with pytest.raises(ArgumentError, match="init_process_group"):
        PCA(comm=True).fit(x)


def test_a_communicator_serves_again_after_a_failure() -> None:
    x = rows(20, 4)

    def twice(rank: int, comm: Ranks) -> Any:
        with pytest.raises((NotFiniteError, ValueError, FailedError)):
            PCA(2, comm=comm).fit(np.where(x == x[0, 0], np.inf, x) if rank == 1 else x)
        return PCA(2, comm=comm).fit(x).n_samples_

    assert on_ranks(2, twice) == [40, 40]


def test_a_plan_is_that_of_the_own_rows() -> None:
    x = rows(20, 4)
    assert "pca fit" in str(PCA(2, comm=threads(2)[0]).explain(x))
    assert "k-means" in str(KMeans(2, comm=threads(2)[0]).explain(x))


def run(*command: str, **variables: str) -> None:
    done = subprocess.run(command, env={**os.environ, **variables}, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_ranks_of_torchrun(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    run(sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(PROGRAM), "torch", str(tmp_path))
    assert sorted(path.name for path in tmp_path.glob("*.done")) == ["0.done", "1.done"]


@pytest.mark.skipif(not importlib.util.find_spec("mpi4py") or not MPIRUN, reason="needs mpi4py and mpirun")
def test_ranks_of_mpirun(tmp_path: Path) -> None:
    root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    run(MPIRUN, "-n", "2", "--oversubscribe", sys.executable, str(PROGRAM), "mpi", str(tmp_path), **root)
    assert sorted(path.name for path in tmp_path.glob("*.done")) == ["0.done", "1.done"]


def test_ctrl_c_does_not_wait_for_ranks_that_never_answer() -> None:
    script = f"""
import sys; sys.path.insert(0, {str(PROGRAM.parent)!r})
import numpy as np, outcore.ranks
from outcore.decomposition import PCA
comm = outcore.ranks.threads(2)[0]
print("waiting", flush=True)
try:
    PCA(2, comm=comm).fit(np.eye(9))
except KeyboardInterrupt:
    print("interrupted", flush=True)
import os; os._exit(0)
"""
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "waiting\n"
        time.sleep(1.0)
        process.send_signal(2)
        assert process.communicate(timeout=30)[0] == "interrupted\n"
