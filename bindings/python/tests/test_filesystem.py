"""Datasets as a file system: the reading half of fsspec's own tests, and what others read through it."""

from __future__ import annotations

import datetime
import io
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import fsspec.tests.abstract as abstract
import numpy as np
import pyarrow as pa
import pyarrow.fs
import pyarrow.parquet as pq
import pytest
from fsspec.implementations.local import LocalFileSystem

import outcore as oc
from outcore import _native
from outcore.data import Dataset, Writer
from outcore.errors import ReadOnlyError
from outcore.filesystem import DatasetFileSystem


@pytest.fixture(autouse=True)
def session(tmp_path: Path) -> None:
    oc.configure(memory="32MiB", scratch=tmp_path / "scratch")


def written(path: Path, files: dict[str, bytes]) -> Dataset:
    with Writer(path, {"data": "bytes"}) as writer:
        for name, data in files.items():
            writer.write({"data": data}, name)
    return Dataset(path)


class Rewritten(DatasetFileSystem):
    """Writes a new dataset for every change, so that tests can make what they read."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.files, self.count = folder, {}, 0
        self._again()

    def _again(self) -> None:
        self.count += 1
        super().__init__(written(self.folder / str(self.count), self.files))

    def pipe_file(self, path: str, value: bytes, **_: Any) -> None:
        self.files[self._strip_protocol(path)] = value
        self._again()

    def touch(self, path: str, **_: Any) -> None:
        self.pipe_file(path, b"")

    def mkdir(self, path: str, *_: Any, **__: Any) -> None:
        pass

    makedirs = mkdir

    def rm(self, path: Any, recursive: bool = False, **_: Any) -> None:
        for one in [path] if isinstance(path, str) else path:
            name = self._strip_protocol(one)
            self.files = {file: data for file, data in self.files.items() if file != name and not file.startswith(f"{name}/")}
        self._again()

    def _open(self, path: str, mode: str = "rb", **options: Any) -> Any:
        if mode == "rb":
            return super()._open(path, mode, **options)
        if mode == "xb" and self.exists(path):
            raise FileExistsError(path)
        file = io.BytesIO()
        close = file.close

        def put() -> None:
            self.pipe_file(path, file.getvalue())
            close()

        file.close = put  # type: ignore[method-assign]
        return file


class Fixtures(abstract.AbstractFixtures):  # type: ignore[misc]
    @pytest.fixture
    def fs(self, tmp_path: Path) -> Rewritten:
        return Rewritten(tmp_path)

    @pytest.fixture
    def fs_path(self) -> str:
        return "top"

    @pytest.fixture
    def supports_empty_directories(self) -> bool:
        return False

    @pytest.fixture
    def local_fs(self) -> LocalFileSystem:
        return LocalFileSystem(auto_mkdir=True)


class TestGet(abstract.AbstractGetTests, Fixtures):  # type: ignore[misc]
    pass


class TestOpen(abstract.AbstractOpenTests, Fixtures):  # type: ignore[misc]
    pass


FILES = {"a/1.txt": b"one", "a/2.txt": b"two two", "a/b/3.txt": b"", "4.txt": bytes(range(256)), "a/b/größe": b"x"}


def test_folders_and_files(tmp_path: Path) -> None:
    fs = DatasetFileSystem(written(tmp_path / "data", FILES))
    assert fs.ls("", detail=False) == ["4.txt", "a"] and fs.ls("a", detail=False) == ["a/1.txt", "a/2.txt", "a/b"]
    assert fs.find("") == sorted(FILES) and fs.glob("a/*.txt") == ["a/1.txt", "a/2.txt"] and fs.glob("**/größe") == ["a/b/größe"]
    assert (
        fs.info("a")["type"] == "directory"
        and fs.info("outcore://a/2.txt").items() >= {"name": "a/2.txt", "size": 7, "type": "file"}.items()
    )
    assert fs.du("") == sum(map(len, FILES.values())) and fs.cat("a/*.txt")["a/2.txt"] == b"two two"
    assert fs.cat_file("4.txt", 3, 5) == bytes([3, 4]) and fs.cat_file("4.txt", -2) == bytes([254, 255])
    assert fs.exists("a/b") and fs.isdir("a/b") and fs.isfile("a/1.txt") and not fs.exists("a/5.txt")
    assert fs.cat_ranges(["4.txt", "a/1.txt"], [0, 1], [2, 3]) == [bytes([0, 1]), b"ne"]
    missing = fs.cat_ranges(["absent", "a/1.txt"], 0, None)
    assert isinstance(missing[0], FileNotFoundError) and missing[1] == b"one"
    with fs.open("a/2.txt", "rt") as file:
        assert file.read() == "two two"
    for wrong, kind in (("absent", FileNotFoundError), ("a", IsADirectoryError)):
        with pytest.raises(kind, match="data"):
            fs.cat_file(wrong)
    with pytest.raises(FileNotFoundError):
        fs.ls("absent")


def test_nothing_can_be_written(tmp_path: Path) -> None:
    fs = DatasetFileSystem(written(tmp_path / "data", FILES))
    acts: list[Callable[[], Any]] = [
        lambda: fs.open("new", "wb"),
        lambda: fs.pipe("new", b"x"),
        lambda: fs.rm("4.txt"),
        lambda: fs.mkdir("folder"),
        lambda: fs.cp("4.txt", "5.txt"),
        lambda: fs.touch("new"),
    ]
    for act in acts:
        with pytest.raises(ReadOnlyError, match="data"):
            act()
    assert fs.cat("4.txt") == FILES["4.txt"]


def test_samples_of_several_fields_are_folders(tmp_path: Path) -> None:
    fields = {"image": "bytes", "label": "int64", "boxes": ("float32", (None, 4)), "text": "text"}
    with Writer(tmp_path / "data", fields) as writer:
        for number in range(3):
            writer.write({"image": b"i" * number, "label": number, "boxes": np.ones((number, 4)), "text": "größe"}, f"x/{number}")
    fs = DatasetFileSystem(tmp_path / "data")
    assert fs.ls("x/2", detail=False) == ["x/2/boxes.npy", "x/2/image", "x/2/label.npy", "x/2/text"]
    assert fs.cat("x/2/image") == b"ii" and fs.cat("x/2/text").decode() == "größe"
    assert np.load(fs.open("x/2/label.npy")) == 2 and np.load(fs.open("x/2/boxes.npy")).shape == (2, 4)
    assert all(fs.info(path)["size"] == len(fs.cat_file(path)) for path in fs.find(""))
    assert len(fs.find("")) == 12 and fs.isdir("x/1") and not fs.exists("x/1/other")


def counted(fs: DatasetFileSystem, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many samples each read takes, from now on."""
    reads: list[int] = []
    batch = Dataset._batch

    def counting(self: Dataset, indices: Any) -> Any:
        reads.append(len(indices))
        return batch(self, indices)

    monkeypatch.setattr(Dataset, "_batch", counting)
    return reads


def test_sizes_are_read_in_parts_and_only_where_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Writer(tmp_path / "data", {"x": ("int64", (None,))}) as writer:
        for number in range(600):
            writer.write({"x": np.arange(number % 5)}, f"a/{number:03}")
    fs = DatasetFileSystem(tmp_path / "data")
    reads = counted(fs, monkeypatch)
    names = fs.ls("a", detail=False)
    assert fs.find("") == names == fs.glob("a/*") == [f"a/{number:03}" for number in range(600)]
    assert [len(files) for _, _, files in fs.walk("")] == [0, 600] and reads == []
    assert [entry["size"] for entry in fs.ls("a")] == [128 + 8 * (number % 5) for number in range(600)]
    assert reads == [256, 256, 88]
    assert fs.du("") == sum(entry["size"] for entry in fs.find("", detail=True).values()) == 600 * 144
    reads.clear()
    monkeypatch.setattr("outcore.filesystem.READ_BYTES", 5 * fs.dataset.nbytes // 600)
    fs.du("")
    assert max(reads) <= 6


def test_the_folder_of_a_sample_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Writer(tmp_path / "data", {"a": "bytes", "b": "bytes", "c": "text"}) as writer:
        for number in range(9):
            writer.write({"a": b"a" * number, "b": b"", "c": "ü"}, f"{number}")
    fs = DatasetFileSystem(tmp_path / "data")
    reads = counted(fs, monkeypatch)
    assert len(fs.find("")) == 27 and fs.ls("3", detail=False) == ["3/a", "3/b", "3/c"] and reads == []
    assert fs.du("", total=False)["7/a"] == 7 and fs.du("") == 36 + 18 and reads == [1] * 18


def test_samples_without_names_have_numbers(tmp_path: Path) -> None:
    with Writer(tmp_path / "data") as writer:
        for number in range(12):
            writer.write({"x": np.full(3, number)})
    fs = DatasetFileSystem(tmp_path / "data")
    assert len(fs.ls("")) == 12 and np.load(fs.open("11")).tolist() == [11, 11, 11]
    assert not fs.exists("12") and not fs.exists("011") and not fs.exists("x")


def test_odd_names_and_pickles(tmp_path: Path) -> None:
    with Writer(tmp_path / "data") as writer:
        writer.write({"x": b"odd"}, b"a/\xff\xfe b")
        writer.write({"x": b"even"}, b"a/[b]")
    fs = pickle.loads(pickle.dumps(DatasetFileSystem(tmp_path / "data")))
    (odd,) = (path for path in fs.ls("a", detail=False) if "[" not in path)
    assert fs.cat_file(odd) == b"odd" and fs.cat_file("a/[b]") == b"even"


def test_others_read_through_it(tmp_path: Path) -> None:
    table = pa.table({"a": list(range(1000)), "b": [str(number) for number in range(1000)]})
    file = io.BytesIO()
    pq.write_table(table, file)
    written(tmp_path / "data", {"tables/1.parquet": file.getvalue(), "2.csv": b"a,b\n1,2\n"})
    fs = fsspec.filesystem("outcore", fo=str(tmp_path / "data"))
    handler = pyarrow.fs.PyFileSystem(pyarrow.fs.FSSpecHandler(fs))
    assert pq.read_table("tables/1.parquet", filesystem=handler) == table
    with fsspec.open("outcore://2.csv", fo=str(tmp_path / "data")) as opened:
        assert opened.read() == b"a,b\n1,2\n"


def test_files_are_as_old_as_the_dataset(tmp_path: Path) -> None:
    _native.store_format(tmp_path / "disk.store", 16 << 20)
    fs = DatasetFileSystem(written(tmp_path / "data", FILES))
    stored = DatasetFileSystem(written(tmp_path / "disk.store/data", FILES))
    os.utime(tmp_path / "data/dataset.json", (5, 1_600_000_000.25))
    fs = DatasetFileSystem(tmp_path / "data")
    when = datetime.datetime(2020, 9, 13, 12, 26, 40, 250_000, tzinfo=datetime.timezone.utc)
    for path in ("a/1.txt", "a", "", "outcore://4.txt"):
        assert fs.modified(path) == fs.created(path) == when and fs.info(path)["mtime"] == when.timestamp()
    assert {entry["mtime"] for entry in (*fs.ls("a"), *fs.find("", detail=True).values())} == {when.timestamp()}
    assert abs(stored.modified("a").timestamp() - (tmp_path / "disk.store").stat().st_mtime) < 1e-3
    for ask in (fs.modified, fs.created, fs.ukey, fs.checksum):
        with pytest.raises(FileNotFoundError, match="data: absent"):
            ask("absent")
    (info,) = pyarrow.fs.PyFileSystem(pyarrow.fs.FSSpecHandler(fs)).get_file_info(["a/1.txt"])
    assert info.size == 3 and info.mtime == when


def test_files_are_told_apart_by_what_is_in_them(tmp_path: Path) -> None:
    one = DatasetFileSystem(written(tmp_path / "one", FILES))
    again, other = (
        DatasetFileSystem(written(tmp_path / name, files)) for name, files in (("2", FILES), ("3", {"4.txt": b"x" * 256}))
    )
    assert one.ukey("4.txt") == again.ukey("outcore://4.txt") != other.ukey("4.txt")
    assert len({fs.checksum(path) for fs in (one, again) for path in FILES}) == len(FILES)
    assert one.checksum("4.txt") == int(one.ukey("4.txt"), 16) and one.checksum("4.txt") != other.checksum("4.txt")


def test_duckdb_reads_through_it(tmp_path: Path) -> None:
    duckdb = pytest.importorskip("duckdb")
    files = {}
    for number in range(3):
        file = io.BytesIO()
        pq.write_table(pa.table({"a": range(1000 * number, 1000 * number + 1000), "b": ["x" * number] * 1000}), file)
        files[f"tables/{number}.parquet"] = file.getvalue()
    fs = DatasetFileSystem(written(tmp_path / "data", {**files, "rows.csv": b"a,b\n1,2\n3,4\n"}))
    with duckdb.connect() as connection:
        connection.register_filesystem(fs)
        query = "select count(*), sum(a), max(length(b)) from read_parquet('outcore://tables/*.parquet')"
        assert connection.execute(query).fetchall() == [(3000, sum(range(3000)), 2)]
        assert connection.execute("select a from 'outcore://tables/1.parquet' where a = 1500").fetchall() == [(1500,)]
        assert connection.execute("select sum(b) from read_csv('outcore://rows.csv')").fetchall() == [(6,)]
