"""Rows by their numbers: the same ones for every contestant, what is wrong is seen, and what the cases promise."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from cases import BUILDERS
from cases.rows import CALLER_BYTES
from harness import data, rows, runner
from harness.model import GIB, MIB, Context, DataFile, RowsCopy, Skip
from legs import ours, with_numpy
from legs.measure import component_error
from legs.rows import least_sectors, rows_error, seed_of, timed_rows
from legs.with_sklearn import pca_memory

ROWS, COLS, COUNT = 5000, 100, 300
LIMIT = runner.LARGEST_ERROR


@pytest.fixture
def numbered(tmp_path: Path) -> DataFile:
    file = DataFile(str(tmp_path / "rows.npy"), ROWS, COLS, "numbered", seed=4)
    data.make(file, Path("/"))
    return file


def spec_of(file: DataFile, **more: Any) -> dict[str, Any]:
    folder = Path(file.path).parent
    return {"a": file.path, "count": COUNT, "seconds": 0.0, "memory": 32 * MIB, "scratch": str(folder / "scratch"), **more}


def copied(file: DataFile, form: Any, chunk_rows: int | None) -> RowsCopy:
    copy = RowsCopy(f"{file.path}.{form}", file, form, chunk_rows)
    rows.make(copy, Path("/"))
    return copy


def checked(found: dict[str, Any]) -> None:
    assert found["error"] == 0 and found["rows"] == COUNT
    # A row lies in one sector or two, and some share theirs.
    assert COUNT // 2 < found["work"] < 2 * COUNT


def test_rows_tell_their_numbers_beyond_what_one_float_could(tmp_path: Path) -> None:
    made = data.Numbered(3, np.random.default_rng(0))
    made.next = 1 << 25
    made.rows(4)
    found = made.rows(2).astype(np.float64)
    assert (found[:, 0] * 4096 + found[:, 1]).tolist() == [(1 << 25) + 4, (1 << 25) + 5]


def test_images_are_the_same_values_as_bytes_and_as_floats(tmp_path: Path) -> None:
    images = DataFile(str(tmp_path / "images.npy"), 1000, 192, "patches", seed=3, dtype="uint8")
    floats = dataclasses.replace(images, path=str(tmp_path / "floats.npy"), dtype="float32")
    for file in (images, floats):
        data.make(file, Path("/"))
        assert Path(file.path).stat().st_size == file.nbytes
    found, same = np.load(images.path), np.load(floats.path)
    assert (found.dtype, same.dtype) == (np.uint8, np.float32) and np.array_equal(found, same)
    # Values over the whole range, and neighbours and colours alike, but not equal.
    assert found.min() == 0 and found.max() == 255 and 30 < found.std() < 70
    assert 0.7 < np.corrcoef(same[:, 0], same[:, 3])[0, 1] < 0.95 and 0.7 < np.corrcoef(same[:, 0], same[:, 1])[0, 1] < 0.95


def test_another_type_is_made_again(tmp_path: Path) -> None:
    file = DataFile(str(tmp_path / "x.npy"), 16, 192, "patches", dtype="uint8")
    data.make(file, Path("/"))
    data.make(dataclasses.replace(file, dtype="float32"), Path("/"))
    assert np.load(file.path).dtype == np.float32


def test_our_rows_are_right(numbered: DataFile) -> None:
    checked(ours.rows(spec_of(numbered)))


@pytest.mark.parametrize("random", [True, False])
def test_rows_of_a_memory_map_are_right(numbered: DataFile, random: bool) -> None:
    checked(with_numpy.rows(spec_of(numbered, random=random)))


@pytest.mark.parametrize("chunk_rows", [70, None])
@pytest.mark.parametrize("at_once", [1, 100])
def test_rows_of_h5py_are_right(numbered: DataFile, chunk_rows: int | None, at_once: int) -> None:
    h5py = pytest.importorskip("h5py")
    from legs import with_h5py

    copy = copied(numbered, "h5py", chunk_rows)
    with h5py.File(copy.path) as file:
        assert file["x"].chunks == (chunk_rows and (chunk_rows, COLS))
        assert np.array_equal(file["x"], np.load(numbered.path))
    checked(with_h5py.rows(spec_of(numbered, path=copy.path, at_once=at_once)))


@pytest.mark.parametrize("concurrency", [1, 64])
def test_rows_of_zarr_are_right(numbered: DataFile, concurrency: int) -> None:
    zarr = pytest.importorskip("zarr", minversion="3.0")
    from legs import with_zarr

    copy = copied(numbered, "zarr", 70)
    x = zarr.open_array(copy.path, mode="r")
    assert x.metadata.zarr_format == 3 and x.chunks == (70, COLS) and x.compressors == ()
    assert np.array_equal(x[:], np.load(numbered.path))
    checked(with_zarr.rows(spec_of(numbered, path=copy.path, concurrency=concurrency)))


def test_a_copy_is_made_once_and_again_for_other_chunks(numbered: DataFile, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[RowsCopy] = []

    def make(copy: RowsCopy, _: Any, path: Path) -> None:
        made.append(copy)
        path.write_bytes(b"")

    monkeypatch.setattr(rows, "hdf5_file", make)
    for chunk_rows in (70, 70, None, 70):
        copied(numbered, "h5py", chunk_rows)
    assert [copy.chunk_rows for copy in made] == [70, None, 70]


WRONG: dict[str, Callable[[Any], Any]] = {
    "other order": lambda found: found[::-1],
    "one row for another": lambda found: np.concatenate([found[:-1], found[:1]]),
    "one too few": lambda found: found[:-1],
    "a column too few": lambda found: found[:, :-1],
    "another type": lambda found: found.astype(np.float64),
    "other values": lambda found: np.concatenate([found[:, :-1], found[:, -1:] + 1], axis=1),
}


@pytest.mark.parametrize("change", WRONG.values(), ids=WRONG)
def test_wrong_rows_are_seen(numbered: DataFile, change: Callable[[Any], Any]) -> None:
    x = np.load(numbered.path)
    assert timed_rows(spec_of(numbered), lambda numbers: x[numbers], [])["error"] == 0
    assert timed_rows(spec_of(numbered), lambda numbers: change(x[numbers]), [])["error"] > LIMIT


def test_wrong_rows_of_a_sample_before_the_last_are_seen(numbered: DataFile) -> None:
    x, calls = np.load(numbered.path), []

    def take(numbers: Any) -> Any:
        calls.append(numbers)
        return x[numbers if len(calls) > 1 else numbers + 1 - 2 * (numbers > 0)]

    assert timed_rows(spec_of(numbered, seconds=0.002), take, [])["error"] > LIMIT and len(calls) > 1


def test_each_sample_and_each_process_asks_for_other_rows_and_a_seed_for_the_same_again(numbered: DataFile) -> None:
    x, asked = np.load(numbered.path), []

    def take(numbers: Any) -> Any:
        asked.append(numbers)
        return x[numbers]

    found = timed_rows(spec_of(numbered), take, [])
    timed_rows(spec_of(numbered), take, [])
    timed_rows(spec_of(numbered, seed=int(json.loads(json.dumps(found))["seed"])), take, [])
    assert not np.array_equal(asked[0], asked[1]) and np.array_equal(asked[0], asked[2])
    count = len(asked)
    timed_rows(spec_of(numbered, seconds=0.002), take, [])
    assert not np.array_equal(asked[count], asked[count + 1])


def test_what_is_kept_of_a_leg_is_json(numbered: DataFile) -> None:
    assert json.loads(json.dumps(ours.rows(spec_of(numbered))))["error"] == 0


def test_a_sector_counts_once_and_a_row_across_two_twice() -> None:
    numbers = np.random.default_rng(0).integers(0, 1000, 200)
    held = {at // 4096 for row in numbers.tolist() for at in range(4096 + 400 * row, 4096 + 400 * (row + 1))}
    assert least_sectors(numbers, 400, 4096) == len(held)
    assert least_sectors(np.array([0, 1, 0]), 400, 4096) == 1
    assert least_sectors(np.array([10]), 400, 4096) == 2
    assert least_sectors(np.array([1]), 3 * 4096, 128) == 4


@pytest.mark.parametrize("cols", [100, 1024])
def test_a_split_has_every_row_in_one_of_its_parts(tmp_path: Path, cols: int) -> None:
    file = DataFile(str(tmp_path / "rows.npy"), 1000, cols, "numbered", seed=4)
    data.make(file, Path("/"))
    out = tmp_path / "split"
    assert ours.split(spec_of(file, out=str(out), share=0.8))["error"] == 0
    train, test = (np.load(out / f"{name}.npy") for name in ("train", "test"))
    assert (len(train), len(test)) == (800, 200)
    numbers = np.concatenate([train, test])[:, :2].astype(np.int64) @ np.array([4096, 1])
    assert not np.array_equal(numbers, np.sort(numbers)) and np.array_equal(np.sort(numbers), np.arange(1000))


def test_a_wrong_split_is_seen(numbered: DataFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[float] = []
    monkeypatch.setattr(ours, "rows_error", lambda rows, *others: found.append(rows_error(rows[::-1], *others)) or found[-1])
    assert ours.split(spec_of(numbered, out=str(tmp_path / "split"), share=0.8))["error"] > LIMIT
    assert len(found) == 2


def images(folder: Path, dtype: Any) -> str:
    file = DataFile(str(folder / f"{dtype}.npy"), 20_000, 192, "patches", seed=3, dtype=dtype)
    data.make(file, Path("/"))
    return file.path


@pytest.mark.parametrize("dtype", ["uint8", "float32"])
def test_our_components_of_images_are_right(tmp_path: Path, dtype: str) -> None:
    spec = {"a": images(tmp_path, dtype), "components": 50, "memory": 64 * MIB, "scratch": str(tmp_path / "scratch")}
    found, exact = ours.pca(spec), pca_memory({"a": images(tmp_path, "float32"), "components": 50})
    assert found["error"] < LIMIT
    for key in ("captured_variance", "explained_variance_ratio"):
        assert found[key] == pytest.approx(exact[key], rel=1e-5)


def test_wrong_components_are_seen(tmp_path: Path) -> None:
    path = images(tmp_path, "float32")
    x = np.load(path)
    mean = x.mean(axis=0, dtype=np.float64)
    values, vectors = np.linalg.eigh(np.cov(x, rowvar=False))
    components, variances = vectors[:, ::-1][:, :20].T, values[::-1][:20]
    assert component_error(path, components, mean, variances) < LIMIT / 2
    turned = components.copy()
    turned[:2] = [[0.8, 0.6], [-0.6, 0.8]] @ components[:2]
    # As of bytes taken for numbers with a sign.
    signed = np.where(x > 127, x - 256, x)
    wrong = {
        "mean": (components, mean + 10, variances),
        "signs": (components, signed.mean(axis=0), variances),
        "variances": (components, mean, variances * 1.2),
        "turned": (turned, mean, variances),
        "the first left out": (components[1:], mean, variances[1:]),
        "not orthonormal": (components * 1.01, mean, variances * 1.01**2),
        "not numbers": (components * np.nan, mean, variances),
    }
    for name, found in wrong.items():
        assert component_error(path, *found) > LIMIT, name


def test_cases_have_the_sizes_of_the_protocol() -> None:
    case = BUILDERS["rows"](Context("x"))
    file = case.files[0]
    assert isinstance(file, DataFile) and file.row_bytes == 400 and 0 <= 8 * GIB - file.rows * 400 < 400
    assert case.limit_over_bytes == case.legs[0].spec["memory"] == GIB and case.legs[0].spec["count"] == 100_000
    pca = BUILDERS["pca-uint8"](Context("x"))
    images, floats = pca.files
    assert isinstance(images, DataFile) and isinstance(floats, DataFile)
    assert images.nbytes == pytest.approx(4 * GIB, rel=1e-3) and pca.limit_over_bytes == GIB
    assert floats.nbytes == pytest.approx(4 * images.nbytes, rel=1e-3)
    for name, row_bytes in (("split", 32 << 10), ("split-short", 400)):
        split = BUILDERS[name](Context("x"))
        file = split.files[0]
        assert isinstance(file, DataFile) and file.row_bytes == row_bytes and split.limit_over_bytes == GIB
        left = GIB - split.legs[0].spec["memory"] - CALLER_BYTES * file.rows
        assert 0 <= left < MIB and split.legs[0].spec["memory"] >= GIB // 2 - 16 * MIB


@pytest.mark.parametrize("name", ["rows", "pca-uint8", "split", "split-short"])
def test_every_contestant_is_cold_and_within_the_limit(name: str) -> None:
    case = BUILDERS[name](Context("scratch/outcore-bench", scale=0.02))
    for leg in case.legs:
        if not leg.access and leg.name != case.bound.core_leg:
            assert leg.limited and leg.cold
    told = [entry.against for entry in (*case.comparisons, *case.measures)]
    assert len(set(told)) == len(told) and not any(entry.headline for entry in case.comparisons)


def test_a_split_is_held_against_as_many_passes_as_it_makes() -> None:
    for name, passes in (("split", 2), ("split-short", 4)):
        case = BUILDERS[name](Context("x"))
        comparison, *in_place = case.comparisons
        assert len(comparison.passes) == passes and comparison.at_least == 0.7 and case.unit == "GB/s"
        assert set(comparison.passes) == {"read", "write"}
        # Long rows are read where they are: also held against the device's reads of their length, which has no target.
        assert [(other.passes, other.at_least) for other in in_place] == [(("randread 32768", "write"), None)] * (passes == 2)
        assert {leg.access for leg in case.legs if leg.access} == {one for other in case.comparisons for one in other.passes}
        assert case.bound.read_bytes == case.bound.written_bytes == passes // 2 * case.legs[0].work
        with pytest.raises(Skip, match="fio"):
            runner.without_device(case)


def test_fio_writes_to_no_file_that_is_read() -> None:
    for name in ("rows", "split", "split-short"):
        case = BUILDERS[name](Context("x"))
        written = {leg.spec["file"] for leg in case.legs if leg.access == "write"}
        assert not written & {file.path for file in case.files if isinstance(file, DataFile)}


def test_rows_of_h5py_and_zarr_need_their_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "find_spec", lambda name: None if name == "zarr" else ModuleType(name))
    with pytest.raises(Skip, match="zarr is not installed; make rivals"):
        runner.check_needs(BUILDERS["rows"](Context("x")))


def test_a_full_disk_is_told() -> None:
    for name in ("rows", "pca-uint8", "split", "split-short"):
        with pytest.raises(Skip, match="no room"):
            BUILDERS[name](Context("x", room_bytes=20 * GIB))


def test_a_seed_is_of_a_spec_or_new() -> None:
    assert seed_of({"seed": "17"}) == 17 and seed_of({}) != seed_of({})
