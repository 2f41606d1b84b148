"""Rivals answer rightly, and are not held back."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness import corpus, data, samples
from harness.model import DataFile, LibsvmFile, SampleSet, SparseFolder
from legs import iterative, tools, with_numpy, with_sklearn


@pytest.fixture
def rows(tmp_path: Path) -> str:
    file = DataFile(str(tmp_path / "rows.npy"), 5000, 40, "low rank", seed=3)
    data.make(file, Path("/"))
    return file.path


@pytest.mark.parametrize("ahead", [False, True])
def test_blocks_by_hand_find_the_components_of_all_rows(rows: str, ahead: bool) -> None:
    found = with_numpy.pca({"a": rows, "components": 5, "block_bytes": 100_000, "ahead": ahead})
    exact = with_sklearn.pca_memory({"a": rows, "components": 5})
    for key in ("captured_variance", "explained_variance_ratio"):
        assert found[key] == pytest.approx(exact[key], rel=1e-5)


def test_blocks_read_ahead_are_those_of_the_file(rows: str) -> None:
    x = np.load(rows, mmap_mode="r")
    blocks = [block.copy() for block in with_numpy.read_ahead(x, 777)]
    assert np.array_equal(np.concatenate(blocks), x) and len(blocks) == 7


def test_text_is_read_by_a_process_a_core_without_losing_a_line(tmp_path: Path) -> None:
    matrix = SparseFolder("m", rows=3000, nonzeros=51 * 3000, seed=3)
    corpus.make(LibsvmFile("m.libsvm", matrix), tmp_path)
    spec = {"source": str(tmp_path / "m.libsvm"), "rows": 3000, "nonzeros": 51 * 3000, "columns": matrix.columns}
    assert with_sklearn.load_svmlight_parts({**spec, "out": str(tmp_path / "parts")})["error"] < 10


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> str:
    if not shutil.which("cc"):
        pytest.skip("no C compiler is installed")
    return str(tmp_path_factory.mktemp("programs") / "file_reader")


def reading(tmp_path: Path, program: str, **more: Any) -> dict[str, Any]:
    samples.make(SampleSet(str(tmp_path / "files"), 64, 2500, "files"), Path("/"))
    return {"program": program, "path": str(tmp_path / "files"), "count": 2500, "size": 64, "seconds": 60, **more}


@pytest.mark.parametrize("threads", [1, 32])
def test_the_reader_of_files_reads_each_once_and_whole(tmp_path: Path, program: str, threads: int) -> None:
    found = tools.file_reader(reading(tmp_path, program, threads=threads))
    assert (found["files"], found["work"]) == (2500, 2500 * 64)


def test_the_reader_of_files_sees_one_that_is_missing_or_short(tmp_path: Path, program: str) -> None:
    spec = reading(tmp_path, program, threads=2)
    (tmp_path / "files/000001/000001500").write_bytes(b"short")
    with pytest.raises(SystemExit, match="000001500: size"):
        tools.file_reader(spec)
    (tmp_path / "files/000001/000001500").unlink()
    with pytest.raises(SystemExit, match="000001500: open"):
        tools.file_reader(spec)


def test_a_cache_of_two_levels_evicts_nothing_of_the_data_set_that_is_read(tmp_path: Path) -> None:
    spec = {"part_rows": 4, "columns": 3, "memory": 3 * 4 * 4 * 4}
    clock = iterative.Clock()
    model = iterative.TwoLevels(spec, tmp_path, clock)
    parts = [iterative.made(spec, number) for number in range(5)]
    for number, part in enumerate(parts):
        model.put(number, part)
    for _ in range(3):
        assert all(np.array_equal(found["x"], part["x"]) for found, part in zip(model.epoch(), parts, strict=True))
        assert sorted(model.memory) == [0, 1, 2]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["3.pickle", "4.pickle"]
    assert all(model.load(number) is parts[number] for number in range(3))
