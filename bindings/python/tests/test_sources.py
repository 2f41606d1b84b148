"""Sources of samples: folders with links and empty classes, types of Parquet, arrays through the engine, what is no such file."""

from __future__ import annotations

import datetime
import decimal
import gzip
import io
import os
import socket
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from click.testing import CliRunner

import outcore as oc
from outcore._files import EngineFile, read_regular, seems
from outcore.cli import cli
from outcore.data import Dataset, Writer, index, pack
from outcore.data.arrays import CHUNK_BYTES
from outcore.errors import (
    ArgumentError,
    CorruptError,
    FileError,
    MissingError,
    NotAFileError,
    OutcoreError,
    OverBudgetError,
    TruncatedError,
    UnsupportedError,
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def put(*files: str) -> None:
    """Files whose bytes are their names."""
    for file in files:
        Path(file).parent.mkdir(parents=True, exist_ok=True)
        Path(file).write_bytes(file.encode())


def labels(ds: Dataset) -> dict[str, int]:
    return {name: int(ds[name]["label"]) for name in ds.names()}


# Folders of images.


def test_links_to_classes_and_to_images_are_followed(folder: Path) -> None:
    put("f/ant/1.jpg", "elsewhere/cats/a.jpg", "elsewhere/cats/deep/b.JPG", "elsewhere/c.png")
    os.symlink(folder / "elsewhere/cats", "f/kitten")
    os.symlink("../../elsewhere/c.png", "f/ant/2.png")
    ds = pack("f", "packed")
    assert labels(ds) == {"ant/1.jpg": 0, "ant/2.png": 0, "kitten/a.jpg": 1, "kitten/deep/b.JPG": 1}
    assert ds["kitten/a.jpg"]["class"] == "kitten" and ds["kitten/a.jpg"]["image"] == b"elsewhere/cats/a.jpg"
    assert ds.classes == ["ant", "kitten"]
    # Two classes may be one folder: it does not lie in itself.
    os.symlink(folder / "elsewhere/cats", "f/kitten2")
    assert labels(pack("f", "packed"))["kitten2/a.jpg"] == 2


@pytest.mark.parametrize("where", ["f/loop", "f/ant/loop", "f/ant/deep/loop"])
def test_a_folder_that_lies_in_itself_is_refused(folder: Path, where: str) -> None:
    put("f/ant/deep/1.jpg")
    os.symlink(folder / "f", where)
    with pytest.raises(ArgumentError, match=f"{where}: a link to a folder that contains it"):
        pack("f", "packed")
    assert not Path("packed").exists()


def test_links_that_lead_nowhere_are_told(folder: Path) -> None:
    put("f/ant/1.jpg")
    os.symlink("gone", "f/bee")
    with pytest.raises(MissingError, match="f/bee: a link to gone, which is not there"):
        pack("f", "packed")
    os.remove("f/bee")
    os.symlink("2.jpg", "f/ant/2.jpg")
    with pytest.raises(FileError, match=r"f/ant/2\.jpg: a link that leads to itself"):
        pack("f", "packed")
    os.remove("f/ant/2.jpg")
    os.mkfifo("f/ant/3.jpg")
    with pytest.raises(NotAFileError, match=r"f/ant/3\.jpg: a pipe"):
        pack("f", "packed")
    os.remove("f/ant/3.jpg")
    os.symlink("gone", "f/ant/.#hidden")
    assert len(pack("f", "packed")) == 1


def test_a_class_without_images_has_its_number(folder: Path) -> None:
    put("train/ant/1.jpg", "train/bee/1.jpg", "train/cat/1.jpg", "valid/ant/2.jpg", "valid/cat/2.jpg", "valid/bee/notes.txt")
    train, valid = pack("train", "a"), pack("valid", "b")
    assert train.classes == valid.classes == ["ant", "bee", "cat"]
    assert labels(valid) == {"ant/2.jpg": 0, "cat/2.jpg": 2}
    # Images alone have no classes, whatever is beside them.
    put("plain/1.jpg", "plain/notes/a.txt")
    assert pack("plain", "c").classes is None and list(Dataset("c").fields) == ["image"]


def test_classes_that_are_told(folder: Path) -> None:
    put("f/ant/1.jpg", "f/cat/1.jpg")
    Path("f/.hidden").mkdir()
    ds = pack("f", "packed", classes=["cat", "bee", "ant"])
    assert ds.classes == ["cat", "bee", "ant"] and labels(ds) == {"ant/1.jpg": 2, "cat/1.jpg": 0}
    for wrong, told in ((["cat"], "folder 'ant' is none of the classes cat"), (["cat", "cat"], "'cat' is told twice")):
        with pytest.raises(ArgumentError, match=told):
            pack("f", "other", classes=wrong)
    for odd in ("cat", ["cat", 1], ["a/b"], [""], ["\udcff"]):
        with pytest.raises(ArgumentError, match="classes are told as a list"):
            pack("f", "other", classes=odd)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="of a folder of images"):
        pack({"label": np.arange(3)}, "other", classes=["cat"])
    put("plain/1.jpg")
    with pytest.raises(ArgumentError, match="leave classes= out"):
        pack("plain", "other", classes=["cat"])


def test_classes_stay_with_copies_and_after_going_on(folder: Path) -> None:
    put(*(f"f/{name}/{number}.jpg" for name in ("ant", "bee") for number in range(9)))
    ds = pack("f", "packed", classes=["none", "bee", "ant"])
    assert pack(ds, "copy", shuffle=1).classes == pack("packed", "copy").classes == ["none", "bee", "ant"]
    assert Dataset("packed").classes == ds.classes
    with pytest.raises(ArgumentError, match="of a folder of images"):
        pack(ds, "copy", classes=["bee", "none", "ant"])
    with Writer("w", {"label": "int64"}, classes=["a", "b"]) as writer:
        writer.write({"label": 1})
        writer.save()
        writer._writer.leave()
        writer._open = False
    with pytest.raises(ArgumentError, match="other classes than those of the samples before"):
        Writer("w", resume=True, classes=["b", "a"])
    with Writer("w", resume=True) as writer:
        assert writer.classes == ["a", "b"] and len(writer) == 1
    assert Dataset("w").classes == ["a", "b"]
    with pytest.raises(ArgumentError, match="is no name of a class"):
        Writer("x", classes=["\udcff"])


def test_the_command_line_has_classes(folder: Path) -> None:
    put("f/ant/1.jpg", "f/cat/1.jpg")
    ran = CliRunner().invoke(cli, ["pack", "f", "packed", "--classes", "cat,bee", "--classes", "ant"])
    assert ran.exit_code == 0 and "3: cat, bee, ant" in ran.output, ran.output
    assert Dataset("packed").classes == ["cat", "bee", "ant"]
    assert '"classes": ["cat", "bee", "ant"]' in CliRunner().invoke(cli, ["inspect", "packed", "--json"]).output
    assert "--classes" in CliRunner().invoke(cli, ["pack", "--help"]).output
    assert CliRunner().invoke(cli, ["pack", "a.tar", "x", "--in-place", "--classes", "a"]).exit_code == 2


# Parquet.

TYPES = {
    "f2": pa.float16(),
    "f4": pa.float32(),
    "f8": pa.float64(),
    **{f"{kind[0]}{size // 8}": getattr(pa, f"{kind}{size}")() for kind in ("int", "uint") for size in (8, 16, 32, 64)},
}


def packed(table: pa.Table, **options: Any) -> Dataset:
    pq.write_table(table, "a.parquet", row_group_size=3)
    return pack("a.parquet", "packed", **options)


@pytest.mark.parametrize("wrap", ["alone", "list", "large_list", "fixed", "dictionary", "struct"])
def test_numbers_of_parquet_keep_their_types(folder: Path, wrap: str) -> None:
    kinds = {name: kind for name, kind in TYPES.items() if not (wrap == "dictionary" and name == "f2")}
    columns = {}
    for name, kind in kinds.items():
        numbers = pa.array(np.arange(14).astype(kind.to_pandas_dtype()), kind)
        columns[name] = {
            "alone": lambda numbers=numbers: numbers.slice(0, 7),
            "list": lambda numbers=numbers: pa.ListArray.from_arrays(range(0, 15, 2), numbers),
            "large_list": lambda numbers=numbers: pa.LargeListArray.from_arrays(range(0, 15, 2), numbers),
            "fixed": lambda numbers=numbers: pa.FixedSizeListArray.from_arrays(numbers, 2),
            "dictionary": lambda numbers=numbers: numbers.slice(0, 7).dictionary_encode(),
            "struct": lambda numbers=numbers: pa.StructArray.from_arrays([numbers.slice(0, 7)], ["in"]),
        }[wrap]()
    columns["bool"] = pa.array([True, False, True, False, True, True, False])
    ds = packed(pa.table(columns))
    for name, kind in kinds.items():
        field = name + (".in" if wrap == "struct" else "")
        want = np.dtype(kind.to_pandas_dtype())
        assert ds.fields[field].dtype == want
        rows = np.arange(14).reshape(7, 2) if wrap in ("list", "large_list", "fixed") else np.arange(7)
        np.testing.assert_array_equal(ds[:][field], rows.astype(want))
    assert ds[:]["bool"].dtype == bool and ds[:]["bool"].tolist() == [True, False, True, False, True, True, False]


def test_texts_and_bytes_of_parquet(folder: Path) -> None:
    texts, data = ["a", "", "größe", "a", "ü" * 300], [b"\xff", b"", b"ab", b"\0", b"x" * 300]
    columns = {
        **{str(kind): pa.array(texts, kind) for kind in (pa.string(), pa.large_string(), pa.string_view())},
        **{str(kind): pa.array(data, kind) for kind in (pa.binary(), pa.large_binary(), pa.binary_view())},
        "dictionary": pa.array(texts).dictionary_encode(),
        "fixed": pa.array([b"abc", b"def", b"\0\0\0", b"xyz", b"123"], pa.binary(3)),
        "deep": pa.array([{"a": {"b": text}} for text in texts]),
    }
    ds = packed(pa.table(columns))
    for number, (text, piece) in enumerate(zip(texts, data, strict=True)):
        found = ds[number]
        assert {found[name] for name in ("string", "large_string", "string_view", "dictionary", "deep.a.b")} == {text}
        assert {found[name] for name in ("binary", "large_binary", "binary_view")} == {piece}
    assert ds[3]["fixed"] == b"xyz"


def test_lists_of_parquet_are_arrays(folder: Path) -> None:
    rows = [[[1.5, 2], [3, 4], [5, 6]], [[7, 8]], [], [[1, 2], [3, 4]]]
    columns = {
        "short": pa.array([[1], [], [2, 3], []], pa.list_(pa.int8())),
        "nested": pa.array(rows, pa.list_(pa.list_(pa.float32()))),
        "pairs": pa.array(rows, pa.list_(pa.list_(pa.float32(), 2))),
        "flags": pa.array([[True, False], [False], [], [True]], pa.list_(pa.bool_())),
        "tensor": pa.FixedShapeTensorArray.from_numpy_ndarray(np.arange(24, dtype="f4").reshape(4, 2, 3)),
    }
    two = (None, None)
    fields = {"short": ("int8", (None,)), "nested": ("float32", two), "pairs": ("float32", (None, 2)), "flags": ("bool", (None,))}
    ds = packed(pa.table(columns), fields={**fields, "tensor": ("float32", (2, 3))})
    assert [sample["short"].tolist() for sample in ds] == [[1], [], [2, 3], []] and ds[1]["short"].dtype == np.int8
    for name in ("nested", "pairs"):
        assert [sample[name].tolist() for sample in ds] == [[*row] for row in rows]
    assert ds[0]["flags"].tolist() == [True, False]
    np.testing.assert_array_equal(ds[:]["tensor"], np.arange(24).reshape(4, 2, 3))
    with pytest.raises(ArgumentError, match=r"a\.parquet: row 4: column 'x' has lists of different lengths"):
        packed(
            pa.table({"x": pa.array([*rows, [[1, 2], [3]]], pa.list_(pa.list_(pa.float32())))}), fields={"x": ("float32", two)}
        )


MISSING: dict[str, tuple[pa.Array, str, str]] = {
    "number": (pa.array([1, 2, 3, 4, None]), "x", "no value in row 4"),
    "text": (pa.array(["a", "b", "c", None, "d"]), "x", "no value in row 3"),
    "list": (pa.array([[1], [], [2], [3], None]), "x", "no value in row 4"),
    "in a list": (pa.array([[1], [], [2, 3], [], [4, None]]), "x", ".*a list in which a value is missing, in row 4"),
    "in a fixed list": (
        pa.array([[1, 2], [3, 4], [5, 6], [7, None], [8, 9]], pa.list_(pa.int8(), 2)),
        "x",
        ".*missing, in row 3",
    ),
    "deep": (pa.array([[[1]], [[1], [2]], [], [[3], [None]], []]), "x", ".*missing, in row 3"),
    "a list in a list": (pa.array([[[1]], [[1], [2]], [], [[3], None], []]), "x", ".*missing, in row 3"),
    "member": (pa.array([{"a": 1}, {"a": 2}, {"a": 3}, {"a": 4}, {"a": None}]), r"x\.a", "no value in row 4"),
    "structure": (pa.array([{"a": 1}, {"a": 2}, {"a": 3}, None, {"a": 4}]), r"x\.a", "no value in row 3"),
    "dictionary": (pa.array(["a", "b", "a", "b", None]).dictionary_encode(), "x", "no value in row 4"),
    "nothing": (pa.nulls(5), "x", "no value in row 0"),
}


@pytest.mark.parametrize("case", MISSING)
def test_missing_values_are_told_by_column_and_row(folder: Path, case: str) -> None:
    column, name, told = MISSING[case]
    table = pa.table({"x": column, "y": range(5)})
    axes = str(column.type).count("list")
    fields = {"x": ("int64", (None,) * axes), "y": "int64"} if axes else None
    with pytest.raises(ArgumentError, match=rf"a\.parquet: column '{name}' has {told}"):
        packed(table, fields=fields)
    assert packed(table, fields={"y": "int64"})[4] == {"y": 4}


@pytest.mark.parametrize(
    ("column", "told"),
    [
        (pa.array([datetime.date(2020, 1, 1)]), "date32.*cast it to int32"),
        (pa.array([datetime.datetime(2020, 1, 1)]), "timestamp.*cast it to int64"),
        (pa.array([datetime.timedelta(1)]), "duration.*cast it to int64"),
        (pa.array([decimal.Decimal("1.5")]), "decimal.*cast it to float64"),
        (pa.array([["a"]]), "list<.*leave it out by fields="),
        (pa.array([[{"a": 1}]]), "list<.*struct"),
        (pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int64())), "map<"),
    ],
)
def test_columns_that_are_no_fields_are_refused_by_name(folder: Path, column: pa.Array, told: str) -> None:
    table = pa.table({"x": column, "y": [1]})
    with pytest.raises(UnsupportedError, match=rf"a\.parquet: column 'x' is {told}") as caught:
        packed(table)
    assert len(str(caught.value)) < 400
    assert packed(table, fields={"y": "int64"})[0] == {"y": 1}


def test_rows_that_do_not_fit_are_told(folder: Path) -> None:
    with pytest.raises(ArgumentError, match=r"sample 4 in a\.parquet, row 4: field 'x' has shape \(1,\)"):
        packed(pa.table({"x": [[1, 2]] * 4 + [[1]]}))
    pq.write_table(pa.table({"y": [1]}), "b.parquet")
    pq.write_table(pa.table({"x": [1, 2]}), "a.parquet")
    with pytest.raises(ArgumentError, match=r"sample 2 in b\.parquet, row 0: a sample with the fields \['y'\]"):
        pack(["a.parquet", "b.parquet"], "packed")


def test_texts_that_come_again_do_not_fill_memory(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = ["a" * 200_000, "b" * 200_000]
    pq.write_table(pa.table({"x": [texts[number % 2] for number in range(500)]}), "a.parquet")
    assert Path("a.parquet").stat().st_size < 1 << 20
    sizes, from_batches = [], pa.Table.from_batches

    class Counted(pa.Table):  # type: ignore[misc]
        @staticmethod
        def from_batches(batches: list[Any]) -> Any:
            sizes.append(batches[0].nbytes)
            return from_batches(batches)

    monkeypatch.setattr(pa, "Table", Counted)
    ds = pack("a.parquet", "packed")
    assert len(ds) == 500 and max(sizes) < 10 << 20 and ds[499]["x"] == texts[1]


def test_columns_that_are_left_out_are_not_read(folder: Path) -> None:
    rng = np.random.default_rng(0)
    pq.write_table(pa.table({"x": [rng.bytes(100_000) for _ in range(40)], "y": range(40)}), "a.parquet", compression="none")
    data = bytearray(Path("a.parquet").read_bytes())
    data[1000:2_000_000] = bytes(1_999_000)
    Path("a.parquet").write_bytes(data)
    assert pack("a.parquet", "packed", fields={"y": "int64"})[:]["y"].tolist() == list(range(40))


# Arrays.

NUMBERS = [
    "b1",
    "i1",
    "u1",
    "<i2",
    ">i2",
    "<u2",
    "<i4",
    ">i4",
    "<u4",
    "<i8",
    ">u8",
    "<f2",
    ">f2",
    "<f4",
    ">f4",
    "<f8",
    ">c8",
    "<c16",
]


@pytest.mark.parametrize("dtype", NUMBERS)
@pytest.mark.parametrize("order", ["C", "F"])
def test_arrays_in_files_are_read_as_they_are(folder: Path, dtype: str, order: str, rng: np.random.Generator) -> None:
    for shape in ((7,), (7, 3), (5, 2, 3), (4, 2, 1, 3)):
        array = np.asarray(rng.integers(0, 100, shape).astype(dtype), order=order)  # type: ignore[call-overload]
        np.save("a.npy", array)
        ds = pack("a.npy", "packed")
        assert ds.fields["x"].dtype == np.dtype(dtype).newbyteorder("<") and ds.fields["x"].shape == shape[1:]
        np.testing.assert_array_equal(ds[:]["x"], array)


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (0,), (2, 0, 3)])
@pytest.mark.parametrize("order", ["C", "F"])
def test_arrays_without_numbers(folder: Path, shape: tuple[int, ...], order: str) -> None:
    np.save("a.npy", np.zeros(shape, "f4", order=order))  # type: ignore[arg-type]
    ds = pack("a.npy", "packed")
    assert len(ds) == shape[0] and ds.fields["x"].shape == shape[1:]


def test_long_arrays_are_read_in_any_order(folder: Path) -> None:
    rows = 3 * CHUNK_BYTES // 400 + 17
    array = np.arange(rows * 100, dtype="f4").reshape(rows, 100)
    np.save("a.npy", array)
    np.testing.assert_array_equal(pack("a.npy", "packed")[:]["x"], array)
    mixed = pack("a.npy", "mixed", shuffle=3)[:]["x"]
    np.testing.assert_array_equal(mixed, array[np.random.default_rng(3).permutation(rows)])
    np.save("f.npy", np.asfortranarray(array))
    np.testing.assert_array_equal(pack("f.npy", "packed")[:]["x"], array)
    with pytest.raises(ArgumentError, match=r"f\.npy: an array in column-major order cannot be read in random order"):
        pack("f.npy", "packed", shuffle=3)


def test_blocks_of_columns_are_of_the_budget(folder: Path) -> None:
    np.save("f.npy", np.zeros((1000, 4000), "f8", order="F"))
    oc.configure("8MiB", folder / "scratch", 1, allow_tmpfs_scratch=True)
    assert len(pack("f.npy", "packed")) == 1000
    np.save("f.npy", np.zeros((2, 1_000_000), "f8", order="F"))
    with pytest.raises(OverBudgetError, match=r"f\.npy"):
        pack("f.npy", "packed")


MEMORY = """
import sys
import outcore as oc
from outcore.data import pack

def told(name):
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith(name)) >> 10

oc.configure("32MiB", "scratch", 1, allow_tmpfs_scratch=True)
pack("small" + sys.argv[1], "packed")
before = told("VmHWM")
pack("large" + sys.argv[1], "packed")
print(told("VmHWM") - before)
"""


@pytest.mark.parametrize("ending", [".npy", ".npz", ".f.npy", ".parquet"])
def test_memory_does_not_grow_with_a_file(folder: Path, ending: str) -> None:
    for name, rows in (("small", 2_000), ("large", 200_000)):
        array = np.random.default_rng(0).standard_normal((rows, 125)).astype("f4")
        if ending == ".parquet":
            lists = pa.FixedSizeListArray.from_arrays(pa.array(array.reshape(-1)), 125)
            pq.write_table(pa.table({"x": lists}), name + ending)
        elif ending == ".npz":
            np.savez(name + ending, x=array, y=np.arange(rows))
        else:
            np.save(name + ending, np.asfortranarray(array) if ending == ".f.npy" else array)
        del array
    ran = subprocess.run([sys.executable, "-c", MEMORY, ending], cwd=folder, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    # The file has 95 MiB.
    assert int(ran.stdout) < 60


def cached(path: str) -> int:
    """Pages of a file in the page cache."""
    ran = subprocess.run(["fincore", "-b", "-n", "-o", "RES", path], capture_output=True, text=True, check=False)
    if ran.returncode:
        pytest.skip("no fincore")
    return int(ran.stdout)


@pytest.mark.parametrize("ending", [".npy", ".npz", ".parquet", ""])
def test_what_is_read_leaves_no_page_cache(folder: Path, ending: str) -> None:
    array, path = np.random.default_rng(0).standard_normal((50_000, 20)), "a" + ending
    if ending == ".parquet":
        pq.write_table(pa.table({"x": list(array)}), path)
    elif ending:
        (np.save if ending == ".npy" else np.savez)(path, array)
    else:
        Path("photos").mkdir()
        path = "photos/1.jpg"
        Path(path).write_bytes(array.tobytes())
    with open(path, "rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    if cached(path):
        pytest.skip("files live in memory here")
    pack(path if ending else "photos", "packed")
    assert cached(path) == 0


# What is no such file.


def pipe(path: str) -> None:
    os.mkfifo(path)


def bound(path: str) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path)


ODD: dict[str, tuple[Callable[[str], None], type[OutcoreError], str]] = {
    "pipe": (pipe, NotAFileError, "a pipe"),
    "socket": (bound, NotAFileError, "a socket"),
    "device": (lambda path: os.symlink("/dev/zero", path), NotAFileError, "a device"),
    "dangling": (lambda path: os.symlink("gone", path), MissingError, "a link to gone"),
    "loop": (lambda path: os.symlink(os.path.basename(path), path), FileError, "leads to itself"),
}


@pytest.mark.parametrize("ending", [".npy", ".npz", ".parquet", ".tar", ".tfrecord", ".safetensors"])
@pytest.mark.parametrize("odd", ODD)
def test_what_is_no_file_is_refused_by_name(folder: Path, odd: str, ending: str) -> None:
    make, kind, told = ODD[odd]
    make(f"a{ending}")
    acts: list[Callable[[], Any]] = [lambda: pack(f"a{ending}", "packed"), lambda: pack([f"a{ending}"], "packed")]
    if ending in (".tar", ".tfrecord", ".safetensors"):
        acts.append(lambda: index(f"a{ending}", "packed"))
    for act in acts:
        with pytest.raises(kind, match=rf"a\{ending}: .*{told}"):
            act()
    assert not Path("packed").exists()


@pytest.mark.parametrize("odd", ODD)
def test_what_is_no_dataset_is_refused(folder: Path, odd: str) -> None:
    make = ODD[odd][0]
    Path("data").mkdir()
    make("data/dataset.json")
    make("a")
    for path in ("data", "a"):
        with pytest.raises(OutcoreError, match=path):
            Dataset(path)
        with pytest.raises(OutcoreError, match=path):
            pack(path, "packed", format="dataset")
    with pytest.raises(OutcoreError, match="a"):
        pack("a", "packed")


def test_lists_of_words_are_files(folder: Path) -> None:
    Path("a.txt").write_text("one two\n")
    pipe("words")
    for wrong, kind in (("words", NotAFileError), ("gone", MissingError)):
        ran = CliRunner().invoke(cli, ["import", "a.txt", "counts", "--format", "text", "--stop-words", wrong])
        assert isinstance(ran.exception, kind) and str(ran.exception).startswith(wrong)
    Path("latin").write_bytes(b"word\nw\xf6rd\n")
    ran = CliRunner().invoke(cli, ["import", "a.txt", "counts", "--format", "text", "--stop-words", "latin"])
    assert isinstance(ran.exception, CorruptError) and ran.exception.offset == 6
    with pytest.raises(OutcoreError, match="words"):
        oc.open("words")
    ran = CliRunner().invoke(cli, ["check", "words"])
    assert "words" in ran.output and ran.exit_code


def test_a_folder_where_a_file_belongs(folder: Path) -> None:
    Path("in/a.npy").mkdir(parents=True)
    with pytest.raises(NotAFileError, match=r"in/a\.npy: a folder"):
        pack("in", "packed")


def test_files_are_read_whole_or_in_pieces(folder: Path) -> None:
    data = bytes(range(256)) * 5000
    Path("a").write_bytes(data)
    assert read_regular("a") == data
    file = EngineFile(oc.configure(), str(folder / "a"))
    assert file.head() == data[:512] and file.tell() == 0
    assert file.seek(-3, io.SEEK_END) == len(data) - 3 and file.read(10) == data[-3:] and file.read(1) == b""
    file.seek(1000)
    assert file.read(5) == data[1000:1005] and file.seek(2, io.SEEK_CUR) == 1007 and file.readall() == data[1007:]
    file.seek(len(data) + 5)
    assert file.read() == b""
    with pytest.raises(ValueError, match="-1"):
        file.seek(-1)


def table_bytes() -> bytes:
    file = io.BytesIO()
    pq.write_table(pa.table({"x": range(1000)}), file)
    return file.getvalue()


def array_bytes() -> bytes:
    file = io.BytesIO()
    np.save(file, np.arange(1000))
    return file.getvalue()


def archive_bytes() -> bytes:
    file = io.BytesIO()
    np.savez(file, x=np.arange(1000))
    return file.getvalue()


OTHERS = {
    "gzip": gzip.compress(b"x" * 1000),
    "text": "größe,1\n".encode() * 100,
    "zeros": bytes(1000),
    "PNG": b"\x89PNG\r\n\x1a\n" + bytes(100),
    "something else": bytes(range(256)),
}


@pytest.mark.parametrize("ending", [".npy", ".npz", ".parquet"])
def test_files_of_other_formats_are_told_as_such(folder: Path, ending: str) -> None:
    own = {".npy": array_bytes(), ".npz": archive_bytes(), ".parquet": table_bytes()}
    others = OTHERS | {kind[1:]: data for kind, data in own.items() if kind != ending}
    words = {"npy": r"a \.npy file", "npz": r"\.npz", "parquet": "a Parquet file"}
    for kind, data in others.items():
        Path(f"a{ending}").write_bytes(data)
        with pytest.raises(UnsupportedError, match=rf"a\{ending}: no .*it seems to be .*{words.get(kind, kind)}"):
            pack(f"a{ending}", "packed")
    # Without a name that tells, what is in an archive of NumPy does.
    Path("a").write_bytes(archive_bytes())
    assert len(pack("a", "packed", format="numpy")) == 1000


@pytest.mark.parametrize("ending", [".npy", ".npz", ".parquet"])
def test_damaged_files_are_told_with_their_place(folder: Path, ending: str) -> None:
    whole = {".npy": array_bytes(), ".npz": archive_bytes(), ".parquet": table_bytes()}[ending]
    for length in (0, 6, 7, 9, 40, len(whole) // 2, len(whole) - 1):
        Path(f"a{ending}").write_bytes(whole[:length])
        with pytest.raises((CorruptError, TruncatedError), match=rf"a\{ending}: ") as caught:
            pack(f"a{ending}", "packed")
        assert len(str(caught.value)) < 400 and "\n" not in str(caught.value)


def test_members_of_archives_that_are_no_arrays_of_numbers(folder: Path) -> None:
    for array, told in (
        (np.array([{}]), "Python objects"),
        (np.array(["a"]), "<U1"),
        (np.zeros(3, "f4,i4"), "records"),
        (np.zeros(3, np.longdouble), "float128|longdouble"),
        (np.zeros(3, "M8[s]"), "datetime64"),
    ):
        np.savez("a.npz", x=array)
        np.save("a.npy", array)
        for path in ("a.npz", "a.npy"):
            with pytest.raises(UnsupportedError, match=rf"{path}: .*an array of ({told})"):
                pack(path, "packed")
    with zipfile.ZipFile("a.npz", "w") as archive:
        archive.writestr("x.npy", array_bytes()[:-1])
    with pytest.raises(TruncatedError, match=r"a\.npz: member 'x\.npy': 8127 bytes.*byte 8128"):
        pack("a.npz", "packed")
    with zipfile.ZipFile("a.npz", "w") as archive:
        archive.writestr("notes.txt", "größe")
    with pytest.raises(UnsupportedError, match=r"a\.npz: member 'notes\.txt': no \.npy file; it seems to be text"):
        pack("a.npz", "packed")
    np.savez("a.npz", x=np.zeros((3, 2), order="F"))
    with pytest.raises(UnsupportedError, match=r"a\.npz: member 'x\.npy': an array in column-major order.*ascontiguousarray"):
        pack("a.npz", "packed")
    np.savez("a.npz", x=np.zeros((3, 1), order="F"), y=np.zeros((3,), order="F"))
    assert len(pack("a.npz", "packed")) == 3


@pytest.mark.parametrize("name", ["a.npy.gz", "a.parquet.gz", "a.npz.xz", "a.parquet.zst", "a.npy.bz2"])
def test_compressed_files_say_what_to_do(folder: Path, name: str) -> None:
    Path(name).write_bytes(b"")
    with pytest.raises(ArgumentError, match=rf"{name}: compressed by .*unpack it first \((gzip|xz|zstd|bzip2) -d\)"):
        pack(name, "packed")


def test_kinds_of_files_are_told_by_their_first_bytes() -> None:
    assert seems(b"") == "empty" and seems(bytes(300)) == "zeros"
    assert seems("ü".encode() * 255 + "ü".encode()[:1]) == "text" and seems(b"\xff\xfe\xfd") == "something else"
    assert seems(bytes(257) + b"ustar") == "a tar archive" and seems(b"version https://git-lfs.github.com/spec/v1\n").startswith(
        "a pointer of Git LFS"
    )


# What others yield.


class Broken:
    """A data set that has all but one of its samples."""

    def __len__(self) -> int:
        return 10

    def __getitem__(self, number: int) -> Any:
        if number == 7:
            raise KeyError("no seven")
        return {"x": number}


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ("text", "must be .* array of numbers, not str"),
        (np.zeros(3), r"has shape \(3,\)"),
        (object(), "must be bytes, text, a number or an array of numbers, not object"),
        (np.array("2020", "M8[s]"), "must be .*, not an array of datetime64"),
        ([[1], [1, 2]], "must be bytes, text, a number or an array of numbers: .*inhomogeneous"),
        (torch.ones((), requires_grad=True), "must be .*grad"),
        (torch.ones((), dtype=torch.bfloat16), "must be .*BFloat16"),
    ],
)
@pytest.mark.parametrize("at", [0, 2])
def test_samples_that_are_wrong_are_told_by_number_and_field(folder: Path, value: Any, told: str, at: int) -> None:
    samples = [{"x": 1.0, "y": 1}] * at + [{"x": value, "y": 1}]
    if at == 0 and (isinstance(value, str) or told.startswith("has shape")):
        assert len(pack(samples, "packed")) == 1
        return
    for source in (samples, iter(samples)):
        with pytest.raises(ArgumentError, match=rf"sample {at}: field 'x' {told}") as caught:
            pack(source, "packed")
        assert len(str(caught.value)) < 400
    named = [(f"n{number}", sample) for number, sample in enumerate(samples)]
    with pytest.raises(ArgumentError, match=rf"sample {at}, 'n{at}': field 'x' {told}"):
        pack(named, "packed")


def test_other_mistakes_of_samples(folder: Path) -> None:
    with pytest.raises(ArgumentError, match="sample 0: a field is called by text, and not by 3"):
        pack([{3: 1}], "packed")
    with pytest.raises(ArgumentError, match="sample 0: field 'x' is bytes, not int"):
        pack([{"x": 1}], "packed", fields={"x": "bytes"})
    many = {f"field-{number}": number for number in range(1000)}
    with pytest.raises(ArgumentError, match="sample 1: a sample with the fields") as caught:
        pack([many, {"x": 1}], "packed")
    assert len(str(caught.value)) < 400
    with pytest.raises(KeyError, match="no seven") as broken:
        pack(Broken(), "packed")
    if sys.version_info >= (3, 11):
        assert "sample 7" in broken.value.__notes__[0]

    def yields() -> Iterator[Any]:
        yield {"x": 1}
        raise RuntimeError("no more")

    with pytest.raises(RuntimeError, match="no more") as stopped:
        pack(yields(), "packed")
    if sys.version_info >= (3, 11):
        assert "sample 1 of" in stopped.value.__notes__[0]
