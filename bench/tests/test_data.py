import dataclasses
from pathlib import Path

import numpy as np
import pytest

from harness import data
from harness.model import DataFile
from legs.measure import product_error, sampled
from legs.with_numpy import block_side
from legs.with_sklearn import batches


@pytest.mark.parametrize("kind", data.KINDS)
@pytest.mark.parametrize("aligned", [True, False])
def test_numpy_reads_the_files_and_they_are_the_same_each_time(tmp_path: Path, kind: str, aligned: bool) -> None:
    file = DataFile("x.npy", 37, 11, kind=kind, aligned=aligned, seed=5)  # type: ignore[arg-type]
    data.make(file, tmp_path)
    first = np.load(tmp_path / "x.npy")
    assert first.shape == (37, 11) and first.dtype == np.float32
    assert (tmp_path / "x.npy").stat().st_size == file.nbytes
    (tmp_path / "x.npy").unlink()
    data.make(file, tmp_path)
    assert np.array_equal(first, np.load(tmp_path / "x.npy"))


def test_another_description_makes_other_data(tmp_path: Path) -> None:
    file = DataFile("x.npy", 8, 8)
    data.make(file, tmp_path)
    first = np.load(tmp_path / "x.npy")
    data.make(dataclasses.replace(file, seed=1), tmp_path)
    assert not np.array_equal(first, np.load(tmp_path / "x.npy"))


def test_a_wrong_product_is_seen() -> None:
    random = np.random.default_rng(0)
    a, b = (random.random((64, 64), dtype=np.float32) for _ in "ab")
    c = a @ b
    assert product_error(c, a, b) < 5
    c[-1] *= 1.001
    assert product_error(c, a, b) > 10


def test_samples_go_on_until_the_time_is_full() -> None:
    calls: list[int] = []
    found = sampled(lambda: calls.append(1), seconds=0.001)
    assert len(found["seconds"]) == len(calls) > 1


def test_batches_cover_all_rows_and_none_is_too_small() -> None:
    found = batches(rows=103, batch=50, components=10)
    assert [(part.start, part.stop) for part in found] == [(0, 50), (50, 103)]
    assert [(part.start, part.stop) for part in batches(20, 50, 10)] == [(0, 20)]


def test_four_hand_made_blocks_take_half_the_budget() -> None:
    assert block_side(512 << 20) == 4096
