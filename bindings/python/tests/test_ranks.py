"""Shares of ranks: where a loader has its own from, and that real ranks together have every sample, and none of them twice."""

from __future__ import annotations

import contextlib
import copy
import itertools
import json
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import warnings
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from outcore.data import Dataset, Loader, Writer
from outcore.data.ranks import Ranks, Share, warn_of_uneven_ranks
from outcore.errors import ArgumentError, ClosedError
from outcore.torch import IterableDataset

PROGRAM = Path(__file__).parent / "rank_programs.py"
VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK", "GROUP_RANK")
COUNT = 24


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


def written(path: Path, count: int) -> Dataset:
    with Writer(path) as writer:
        for number in range(count):
            writer.write({"y": number})
    return Dataset(path)


@pytest.fixture
def dataset(tmp_path: Path) -> Dataset:
    return written(tmp_path / "data", COUNT)


def numbers(batches: Any) -> list[int]:
    return [number for batch in batches for number in batch["y"].tolist()]


@pytest.mark.parametrize(
    ("variables", "share"),
    [
        ({}, (0, 1)),
        ({"WORLD_SIZE": "1"}, (0, 1)),
        ({"WORLD_SIZE": "", "RANK": " "}, (0, 1)),
        ({"RANK": "1", "WORLD_SIZE": "3"}, (1, 3)),
        ({"RANK": "1", "WORLD_SIZE": "3", "LOCAL_RANK": "0", "NODE_RANK": "7"}, (1, 3)),
        ({"LOCAL_RANK": "1", "WORLD_SIZE": "2", "NODE_RANK": "0"}, (1, 2)),
        ({"LOCAL_RANK": "1", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}, (1, 2)),
        ({"LOCAL_RANK": "1", "WORLD_SIZE": "6", "LOCAL_WORLD_SIZE": "2", "NODE_RANK": "2"}, (5, 6)),
        ({"LOCAL_RANK": "1", "WORLD_SIZE": "6", "NODE_RANK": "0"}, (1, 6)),
        ({"LOCAL_RANK": "0", "WORLD_SIZE": "1"}, (0, 1)),
        ({"LOCAL_RANK": "0"}, (0, 1)),
        ({"NODE_RANK": "1"}, (0, 1)),
        ({"RANK": "1"}, "RANK is 1, but WORLD_SIZE is not set"),
        ({"RANK": "0"}, "RANK is 0, but WORLD_SIZE is not set"),
        ({"LOCAL_RANK": "1"}, "LOCAL_RANK is 1, but WORLD_SIZE is not set"),
        ({"WORLD_SIZE": "2"}, "WORLD_SIZE is 2, but none of .* says which rank"),
        ({"WORLD_SIZE": "2", "NODE_RANK": "1"}, "WORLD_SIZE is 2, but none of .* says which rank"),
        ({"WORLD_SIZE": "0"}, "WORLD_SIZE is 0"),
        ({"RANK": "2", "WORLD_SIZE": "2"}, "RANK is 2 and WORLD_SIZE 2: rank 2 of 2 does not exist"),
        ({"RANK": "-1", "WORLD_SIZE": "2"}, "rank -1 of 2"),
        ({"RANK": "one", "WORLD_SIZE": "2"}, "RANK must be a whole number, and is 'one'"),
        ({"RANK": "0", "WORLD_SIZE": "2.5"}, r"WORLD_SIZE must be a whole number, and is '2\.5'"),
        ({"LOCAL_RANK": "x", "WORLD_SIZE": "2"}, "LOCAL_RANK must be"),
        ({"LOCAL_RANK": "1", "WORLD_SIZE": "2"}, "set NODE_RANK"),
        ({"LOCAL_RANK": "1", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2"}, "set NODE_RANK"),
        ({"LOCAL_RANK": "1", "WORLD_SIZE": "4", "NODE_RANK": "1"}, "set LOCAL_WORLD_SIZE"),
        ({"LOCAL_RANK": "2", "WORLD_SIZE": "4", "NODE_RANK": "0", "LOCAL_WORLD_SIZE": "2"}, "no such rank"),
        ({"LOCAL_RANK": "1", "WORLD_SIZE": "4", "NODE_RANK": "-1", "LOCAL_WORLD_SIZE": "2"}, "no such rank"),
        ({"LOCAL_RANK": "1", "WORLD_SIZE": "4", "NODE_RANK": "2", "LOCAL_WORLD_SIZE": "2"}, "rank 5 of 4 does not exist"),
        ({"LOCAL_RANK": "1", "WORLD_SIZE": "2", "NODE_RANK": "0", "LOCAL_WORLD_SIZE": "many"}, "LOCAL_WORLD_SIZE must be"),
    ],
)
def test_a_share_of_the_environment(variables: dict[str, str], share: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    ranks = Ranks(None, None)
    if isinstance(share, str):
        with pytest.raises(ArgumentError, match=share):
            ranks.now()
    else:
        assert ranks.now() == share


def test_a_share_that_is_given_is_fixed(dataset: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    loader, samples = Loader(dataset, rank=1, world_size=3), IterableDataset(dataset, rank=1, world_size=3)
    monkeypatch.setenv("WORLD_SIZE", "2")
    for one in (loader, samples, pickle.loads(pickle.dumps(loader)), pickle.loads(pickle.dumps(samples))):
        assert (one.rank, one.world_size) == (1, 3) and numbers(one) == list(range(1, COUNT, 3))
    for rank, world_size in ((3, 3), (-1, 3), (0, 0), (None, 3), (0, None)):
        for kind in (Loader, IterableDataset):
            with pytest.raises(ArgumentError, match="rank"):
                kind(dataset, rank=rank, world_size=world_size)


def test_a_share_is_looked_up_when_iteration_begins(dataset: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    loader, samples = Loader(dataset, 4), IterableDataset(dataset, 4)
    acts: list[Any] = [lambda: next(iter(loader)), lambda: len(loader), lambda: loader.left, lambda: loader.rank]
    for act in (*acts, lambda: next(iter(samples)), lambda: samples.world_size):
        with pytest.raises(ArgumentError, match="WORLD_SIZE is 2"):
            act()
    assert loader.state_dict()["position"] == 0 and loader.epoch == 0
    pickle.loads(pickle.dumps(loader)), pickle.loads(pickle.dumps(samples))
    monkeypatch.setenv("RANK", "1")
    assert (len(loader), loader.left, loader.rank, loader.world_size) == (3, 3, 1, 2)
    assert (samples.rank, samples.world_size) == (1, 2)
    assert numbers(loader) == numbers(samples) == list(range(1, COUNT, 2))


def test_an_epoch_keeps_the_share_that_it_began_with(dataset: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    loader = Loader(dataset, 4)
    batches = iter(loader)
    begun = next(batches)["y"].tolist()
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert (loader.rank, loader.world_size, len(loader), loader.left) == (0, 1, 6, 5)
    assert begun + numbers(batches) == list(range(COUNT))
    assert (loader.rank, loader.world_size, len(loader)) == (1, 2, 3)
    assert numbers(loader) == list(range(1, COUNT, 2)) and loader.epoch == 2
    # An epoch that was left early has ended, too.
    next(iter(loader))
    monkeypatch.setenv("RANK", "0")
    assert numbers(loader) == list(range(0, COUNT, 2)) and loader.epoch == 4


def test_a_state_goes_on_with_the_share_at_that_time(dataset: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = numbers(Loader(dataset, 4, shuffle=True, seed=5))
    first = Loader(dataset, 4, shuffle=True, seed=5)
    next(iter(first))
    again, samples = Loader(dataset, 2, shuffle=True), IterableDataset(dataset, 2, shuffle=True)
    for one in (again, samples):
        one.load_state_dict(first.state_dict())
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert (len(again), again.left) == (6, 5)
    assert numbers(again) == numbers(samples) == whole[5::2]


def test_a_state_within_an_epoch_is_that_of_its_share(dataset: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    samples = IterableDataset(dataset, 4)
    batches = iter(samples)
    next(batches)
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert samples.state_dict()["position"] == 4
    assert numbers(batches) == list(range(4, COUNT))


def test_a_loader_of_a_closed_dataset_stays_with_its_share(dataset: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    loader = Loader(dataset, 4)
    dataset.close()
    with monkeypatch.context() as variables:
        variables.setenv("RANK", "1")
        variables.setenv("WORLD_SIZE", "2")
        for _ in range(2):
            with pytest.raises(ClosedError):
                next(iter(loader))
    assert numbers(loader) == list(range(COUNT))


def test_skipped_samples_are_counted_over_all_shares(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Writer(tmp_path / "data") as writer:
        for number in range(8):
            writer.write({"y": number, "image": b"no picture"})
    loader = Loader(Dataset(tmp_path / "data", decode={"image": "RGB"}), 2, skip_damaged=True)
    assert numbers(loader) == [] and loader.skipped == 8
    first = loader.first_skipped
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert len(loader) == 2 and loader.skipped == 8 and loader.first_skipped == first is not None
    assert numbers(loader) == [] and loader.skipped == 12


def share_there(pickled: bytes) -> Share:
    return pickle.loads(pickled).now()


def test_a_group_is_that_of_the_processes_that_it_has_started(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pickle that a rank left in a file says nothing to others; what a worker has of a rank, its own children have too."""
    ranks = Ranks(None, None)
    here = [Share(1, 2)]
    monkeypatch.setattr("outcore.data.ranks._initialised", lambda: here[0] if here else None)
    pickled = pickle.dumps(ranks)
    here.clear()
    assert share_there(pickled) == (0, 1)
    with ProcessPoolExecutor(1, multiprocessing.get_context("fork")) as child:
        assert child.submit(share_there, pickled).result(60) == (1, 2)
        grandchild = child.submit(share_of_grandchild, pickled).result(60)
    assert grandchild == [(1, 2), (1, 2)]
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "3")
    assert share_there(pickled) == (0, 3)


def share_of_grandchild(pickled: bytes) -> list[Share]:
    """Of a copy in the child, and of one in a process that the child has started."""
    copied = copy.deepcopy(pickle.loads(pickled))
    with ProcessPoolExecutor(1, multiprocessing.get_context("fork")) as child:
        return [copied.now(), child.submit(share_there, pickle.dumps(copied)).result(60)]


def batches_of(dataset: Dataset, rank: int, world_size: int, workers: int, batch_size: int, drop_last: bool) -> int:
    """Of all workers of a rank, as many as their loaders have."""
    parts = range(rank * workers, (rank + 1) * workers)
    options: Any = {"end": "uneven", "drop_last": drop_last, "world_size": world_size * workers}
    return sum(len(Loader(dataset, batch_size, rank=part, **options)) for part in parts)


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("count", [0, 1, 5, 12, 13])
def test_warnings_tell_uneven_ranks_as_loaders_have_them(tmp_path: Path, count: int, workers: int, drop_last: bool) -> None:
    dataset = written(tmp_path / "data", count)
    for world_size, batch_size in itertools.product((2, 3, 5), (1, 2, 4)):
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            options: Any = {"batch_size": batch_size, "drop_last": drop_last, "workers": workers}
            uneven = warn_of_uneven_ranks("x", count, world_size, **options)
        counts = [batches_of(dataset, rank, world_size, workers, batch_size, drop_last) for rank in range(world_size)]
        assert uneven == (len(set(counts)) > 1) == (len(told) == 1)
        if uneven:
            assert f"has {max(counts)} batches" in str(told[0].message) and f"rank {min(counts)};" in str(told[0].message)


def test_uneven_ranks_without_a_group_do_not_warn(dataset: Dataset, recwarn: pytest.WarningsRecorder) -> None:
    assert len(numbers(Loader(dataset, 1, end="uneven", rank=0, world_size=7))) == 4
    assert not list(recwarn)


def started(program: str, dataset: Dataset, out: Path, *launcher: str, **variables: str) -> subprocess.Popen[str]:
    """One process, or a launcher of all of them, that must find the ranks on this machine and no other."""
    words = [sys.executable, *launcher, str(PROGRAM), program, dataset.path, str(out)]
    here = {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", "HF_HOME": str(out)}
    here["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    environment = {**os.environ, **here, **variables}
    output: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    return subprocess.Popen(words, env=environment, cwd=out, start_new_session=True, **output)


def found_by(out: Path, *processes: subprocess.Popen[str]) -> list[dict[str, Any]]:
    """What the ranks have written, in order, when all have ended."""
    try:
        for process in processes:
            told, _ = process.communicate(timeout=240)
            assert process.returncode == 0, told
    finally:
        for process in processes:
            # Ranks that wait for each other outlive their launcher.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    return [json.loads((out / f"{rank}.json").read_text()) for rank in range(2)]


def shares(found: list[dict[str, Any]], way: str) -> bool:
    """Whether the shares of the ranks are equally large and disjoint, and together all samples."""
    one, other = (rank[way] for rank in found)
    return len(one) == len(other) == COUNT // 2 and sorted(one + other) == list(range(COUNT))


@pytest.fixture
def out(tmp_path: Path) -> Path:
    (tmp_path / "out").mkdir()
    return tmp_path / "out"


def test_ranks_of_the_environment(dataset: Dataset, out: Path) -> None:
    ranks = [started("environment", dataset, out, RANK=str(rank), WORLD_SIZE="2") for rank in range(2)]
    found = found_by(out, *ranks)
    assert shares(found, "loader")
    assert not any(rank["has_torch"] for rank in found)


def test_ranks_of_torchrun(dataset: Dataset, out: Path) -> None:
    launcher = "-m", "torch.distributed.run", "--standalone", "--local-addr=localhost", "--nproc-per-node=2"
    found = found_by(out, started("torchrun", dataset, out, *launcher))
    assert [rank["alone"] for rank in found] == [1, 1]
    assert shares(found, "by_environment") and shares(found, "by_group")


def test_ranks_of_a_process_group(dataset: Dataset, out: Path) -> None:
    """Variables say that there is one rank: in ranks, in their workers and in their other children, the group knows better."""
    found = found_by(out, started("group", dataset, out))
    assert [rank["alone"] for rank in found] == [[1, 1]] * 2
    for way in ("of_launcher", "before", "in_child", "here", "forked", "spawned"):
        assert shares(found, way), way


def test_ranks_of_lightning(dataset: Dataset, out: Path) -> None:
    pytest.importorskip("lightning")
    found = found_by(out, started("lightning", dataset, out))
    assert not any(rank["has_rank"] for rank in found)
    for way in ("first", "second", "validated"):
        assert shares(found, way), way
    assert found[0]["first"] != found[0]["second"]


def test_ranks_of_accelerate(dataset: Dataset, out: Path) -> None:
    pytest.importorskip("accelerate")
    # The launcher of several processes, whatever they compute on.
    options = ["--multi_gpu", "--num_processes=2", "--num_machines=1", "--mixed_precision=no", "--dynamo_backend=no"]
    options += ["--rdzv_backend=c10d", "--main_process_ip=127.0.0.1", "--main_process_port=0"]
    found = found_by(out, started("accelerate", dataset, out, "-m", "accelerate.commands.launch", *options))
    divided = "divided", "divided_in_workers", "divided_in_spawned_workers", "divided_by_itself", "sifted"
    for way in ("before", "prepared", "in_workers", *divided):
        assert shares(found, way), way


def test_uneven_ranks_end_within_join_and_are_told_before_they_wait_without(tmp_path: Path, out: Path) -> None:
    """13 and 12 samples in batches of 4: rank 0 has a batch more.

    Within `Join` all end, with the same weights, and had every sample once. Without it the rank that has a batch more waits for
    the other one in vain, as long as the process group lets it; it was told so.
    """
    ranks = found_by(out, started("uneven", written(tmp_path / "odd", 25), out))
    found = [rank["join"] for rank in ranks]
    assert [[len(had) for had in rank["batches"]] for rank in found] == [[4, 4, 4], [3, 3, 3]]
    for epoch in range(3):
        had = [number for rank in found for batch in rank["batches"][epoch] for number in batch]
        assert sorted(had) == list(range(25))
    np.testing.assert_allclose(found[0]["weights"][0], found[1]["weights"][0])
    assert [len(rank["told"]) for rank in found] == [len(rank["told_of_samples"]) for rank in found] == [1, 0]
    assert all(word in found[0]["told"][0] for word in ("4 batches", "last rank 3", "Join([model])", "end='pad'"))
    assert not any(rank["told_not"] for rank in found)
    found = [rank["alone"] for rank in ranks]
    assert [rank["batches"] for rank in found] == [3, 3] and [rank["waited"] for rank in found] == [True, False]
    assert [len(rank["told_first"]) for rank in found] == [1, 0]
    assert all(word in found[0]["told_first"][0] for word in ("4 batches", "last rank 3", "hangs", "Join([model])", "end='pad'"))
