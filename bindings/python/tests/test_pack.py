"""Datasets made of what is elsewhere: every source, what is wrong with it, and packing that is killed and goes on."""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import operator
import os
import struct
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from torch.utils.data import TensorDataset

from outcore import _native
from outcore.data import Dataset, Field, Writer, index, pack, shards
from outcore.data.sources import found
from outcore.errors import ArgumentError, CorruptError, ExistsError, MissingError, TruncatedError, UnsupportedError


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def picture(number: int, kind: str = "PNG") -> bytes:
    file = io.BytesIO()
    Image.fromarray(np.random.default_rng(number).integers(0, 255, (8, 6, 3), np.uint8)).save(file, kind)
    return file.getvalue()


def test_folders_of_images(folder: Path) -> None:
    for number in range(40):
        file = folder / "photos" / ("cats" if number % 3 else "dogs") / f"{number:02}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(picture(number))
    (folder / "photos" / ".thumbnails").mkdir()
    (folder / "photos" / ".thumbnails" / "0.png").write_bytes(b"")
    (folder / "photos" / "cats" / "notes.txt").write_text("no image")
    ds = pack("photos", "packed")
    assert len(ds) == 40
    assert ds["dogs/03.png"] == {"image": picture(3), "label": 1, "class": "dogs"}
    assert ds["cats/01.png"] == {"image": picture(1), "label": 0, "class": "cats"}
    assert list(ds.names()) == sorted(path.relative_to("photos").as_posix() for path in Path("photos").glob("[cd]*/*.png"))
    for threads in (1, 3):
        mixed = pack("photos", "mixed", shuffle=1, threads=threads)
        assert list(mixed.names()) != list(ds.names()) and sorted(mixed.names()) == list(ds.names())
        assert all(mixed[name] == ds[name] for name in ds.names())


def test_images_in_one_folder(folder: Path) -> None:
    for number in range(3):
        (folder / f"{number}.jpg").write_bytes(picture(number, "JPEG"))
    ds = pack(folder, "packed", format="images")
    assert ds["2.jpg"] == {"image": picture(2, "JPEG")}
    Path("class").mkdir()
    Path("class/1.jpg").write_bytes(b"")
    with pytest.raises(ArgumentError, match="beside folders"):
        pack(".", "other", format="images")


def test_an_empty_folder(folder: Path) -> None:
    (folder / "photos").mkdir()
    with pytest.raises(MissingError, match="photos: no images"):
        pack("photos", "packed")


def shard(path: str, samples: range) -> None:
    with tarfile.open(path, "w:gz" if path.endswith("gz") else "w") as archive:
        for number in samples:
            parts = {"png": picture(number), "cls": str(number % 7).encode(), "json": json.dumps({"n": number}).encode()}
            array = io.BytesIO()
            np.save(array, np.full((2, 2), number, np.float32))
            for ending, data in {**parts, "x.npy": array.getvalue(), "txt": "größe".encode()}.items():
                # Names that long need headers of their own.
                member = tarfile.TarInfo(f"{'long/' * (number % 2) * 30}{number:04}.{ending}")
                member.size = len(data)
                archive.addfile(member, io.BytesIO(data))


@pytest.mark.parametrize("ending", ["tar", "tar.gz"])
def test_tar_shards(folder: Path, ending: str) -> None:
    for number in range(3):
        shard(f"s-{number:03}.{ending}", range(number * 10, number * 10 + 10))
    several = [f"s-{{000..002}}.{ending}", f"*.{ending}", ".", [f"s-{number:03}.{ending}" for number in range(3)]]
    for source in several:
        ds = pack(source, "packed")
        assert len(ds) == 30
        found = ds["long/" * 30 + "0013"]
        assert (found["png"], found["cls"], found["txt"], json.loads(found["json"])) == (picture(13), 6, "größe", {"n": 13})
        np.testing.assert_array_equal(found["x.npy"], np.full((2, 2), 13, np.float32))
        assert list(ds[::10]["cls"]) == [0, 3, 6]


def test_damaged_tar_shards_are_told(folder: Path) -> None:
    shard("a.tar", range(20))
    whole = Path("a.tar").read_bytes()
    with tarfile.open("a.tar") as archive:
        offsets = [member.offset for member in archive]
    for length in (0, 100, offsets[7] + 700, offsets[7] + 100, offsets[7]):
        Path("a.tar").write_bytes(whole[:length])
        with pytest.raises(CorruptError, match=r"a\.tar"):
            pack("a.tar", "packed")
        assert not Path("packed").exists()
    flipped = bytearray(whole)
    flipped[offsets[7] + 3] ^= 1
    Path("a.tar").write_bytes(flipped)
    with pytest.raises(CorruptError, match=rf"a\.tar: corrupt at byte {offsets[7]}: a header whose checksum"):
        pack("a.tar", "packed")
    Path("a.tar.gz").write_bytes(gzip.compress(whole)[:-2000])
    with pytest.raises(CorruptError, match=r"a\.tar\.gz"):
        pack("a.tar.gz", "packed")


def test_names_that_come_twice(folder: Path) -> None:
    shard("a.tar", range(5))
    Path("b.tar").write_bytes(Path("a.tar").read_bytes())
    with pytest.raises(ArgumentError, match="0000"):
        pack("*.tar", "packed")
    assert len(pack("*.tar", "packed", names=False)) == 10


def varint(value: int) -> bytes:
    value %= 1 << 64
    head = bytearray()
    while value >= 0x80:
        head.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*head, value])


def message(number: int, data: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(data)) + data


def example(features: dict[str, Any]) -> bytes:
    """A `tf.train.Example`, as protocol buffers lay it out."""

    def feature(value: Any) -> bytes:
        if isinstance(value, bytes):
            return message(1, message(1, value))
        if isinstance(value, float):
            return message(2, message(1, struct.pack("<f", value)))
        if isinstance(value, int):  # Not packed, as old writers do.
            return message(3, varint(8) + varint(value))
        kind, data = (2, value.tobytes()) if value.dtype.kind == "f" else (3, b"".join(varint(int(one)) for one in value))
        return message(kind, message(1, data))

    return message(
        1, b"".join(message(1, message(1, name.encode()) + message(2, feature(value))) for name, value in features.items())
    )


def tfrecord(path: str, records: list[bytes]) -> list[int]:
    def masked(data: bytes) -> bytes:
        crc = _native.crc32c(data)
        return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)

    offsets = []
    with open(path, "wb") as file:
        for record in records:
            offsets.append(file.tell())
            head = struct.pack("<Q", len(record))
            file.write(head + masked(head) + record + masked(record))
    return offsets


def features(number: int) -> dict[str, Any]:
    return {
        "image": picture(number),
        "label": number - 5,
        "weight": number / 2,
        "box": np.arange(4, dtype=np.float32) + number,
        "ids": np.array([number, -number, 1 << 40], np.int64),
    }


def test_tfrecord(folder: Path) -> None:
    tfrecord("a.tfrecord", [example(features(number)) for number in range(30)])
    ds = pack("a.tfrecord", "packed")
    assert len(ds) == 30 and ds.fields["box"] == Field("array", np.dtype("<f4"), (4,))
    for number in (0, 7, 29):
        found = ds[number]
        for name, value in features(number).items():
            np.testing.assert_array_equal(found[name], value)


def test_the_checksum_of_tfrecord_is_that_of_its_authors() -> None:
    # CRC-32C of "123456789" is 0xE3069283, which TensorFlow's crc32c_test has too.
    assert _native.crc32c(b"123456789") == 0xE3069283


def test_damaged_tfrecords_are_told(folder: Path) -> None:
    offsets = tfrecord("a.tfrecord", [example(features(number)) for number in range(10)])
    whole = Path("a.tfrecord").read_bytes()
    for length in (offsets[4] + 5, offsets[4] + 40, len(whole) - 1):
        Path("a.tfrecord").write_bytes(whole[:length])
        with pytest.raises(TruncatedError, match=r"a\.tfrecord.*byte"):
            pack("a.tfrecord", "packed")
    for where in (offsets[4] + 1, offsets[4] + 9, offsets[4] + 40, offsets[5] - 1):
        flipped = bytearray(whole)
        flipped[where] ^= 4
        Path("a.tfrecord").write_bytes(flipped)
        with pytest.raises(CorruptError, match=f"byte {offsets[4]}"):
            pack("a.tfrecord", "packed")


@pytest.mark.parametrize("record", [b"\x0a\xff", b"\x0b", message(1, message(1, message(2, b"no name"))), b"\x0a\x80"])
def test_records_that_are_no_examples(folder: Path, record: bytes) -> None:
    tfrecord("a.tfrecord", [record])
    with pytest.raises(CorruptError, match=r"byte 0: record 0: it is no tf\.train\.Example"):
        pack("a.tfrecord", "packed")


def test_parquet(folder: Path) -> None:
    rows = 2500
    columns = {
        "image": [{"bytes": bytes([number % 256]) * 3, "path": f"{number}.jpg"} for number in range(rows)],
        "label": list(range(rows)),
        "text": [f"größe {number}" for number in range(rows)],
        "x": [[number, number + 0.5] for number in range(rows)],
    }
    pq.write_table(pa.table(columns), "a.parquet", row_group_size=700)
    ds = pack("a.parquet", "packed")
    assert len(ds) == rows
    found = ds[2001]
    assert (found["image.bytes"], found["image.path"], found["label"], found["text"]) == (
        bytes([2001 % 256]) * 3,
        "2001.jpg",
        2001,
        "größe 2001",
    )
    np.testing.assert_array_equal(found["x"], [2001, 2001.5])
    chosen = pack("a.parquet", "chosen", fields={"label": "int32", "x": ("float32", (None,))})
    assert chosen[5]["x"].dtype == np.float32 and set(chosen.fields) == {"label", "x"}


def test_parquet_that_is_not_whole(folder: Path) -> None:
    pq.write_table(pa.table({"x": [1, None, 3], "y": [1, 2, 3]}), "a.parquet")
    with pytest.raises(ArgumentError, match="'x' has no value in row 1"):
        pack("a.parquet", "packed")
    assert list(pack("a.parquet", "packed", fields={"y": "int64"})[:]["y"]) == [1, 2, 3]
    whole = Path("a.parquet").read_bytes()
    for damaged in (whole[: len(whole) // 2], b"", b"PAR1" + bytes(100)):
        Path("a.parquet").write_bytes(damaged)
        with pytest.raises(CorruptError, match=r"a\.parquet"):
            pack("a.parquet", "packed")


def test_arrays(folder: Path, rng: np.random.Generator) -> None:
    arrays = {"x": rng.standard_normal((50, 3, 2)).astype(">f4"), "y": np.arange(50)}
    np.save("x.npy", arrays["x"])
    np.savez("stored.npz", **arrays)
    np.savez_compressed("packed.npz", **arrays)
    np.testing.assert_array_equal(pack("x.npy", "a")[:]["x"], arrays["x"])
    for source in (arrays, "stored.npz", "packed.npz"):
        ds = pack(source, "b")
        np.testing.assert_array_equal(ds[:]["x"], arrays["x"])
        assert list(ds[40:]["y"]) == list(range(40, 50))
    mixed = pack(arrays, "c", shuffle=3)[:]
    assert list(mixed["y"]) != list(range(50))
    np.testing.assert_array_equal(mixed["x"], arrays["x"][mixed["y"]])
    assert len(pack(np.zeros((0, 4)), "d")) == 0


def test_arrays_that_make_no_dataset(folder: Path) -> None:
    with pytest.raises(ArgumentError, match="'x' has 3, 'y' has 4"):
        pack({"x": np.zeros(3), "y": np.zeros(4)}, "a")
    np.savez("a.npz", x=np.zeros(3), y=np.zeros(4))
    with pytest.raises(ArgumentError, match="'x' has 3, 'y' has 4"):
        pack("a.npz", "a")
    np.savez("a.npz", x=np.zeros(30_000), y=np.zeros(30_000))
    whole = bytearray(Path("a.npz").read_bytes())
    whole[100_000] ^= 1
    Path("a.npz").write_bytes(whole)
    with pytest.raises(CorruptError, match=r"a\.npz"):
        pack("a.npz", "a")
    Path("a.npz").write_bytes(whole[:1000])
    with pytest.raises(CorruptError, match=r"a\.npz"):
        pack("a.npz", "a")
    np.save("a.npy", np.zeros(100))
    Path("a.npy").write_bytes(Path("a.npy").read_bytes()[:300])
    with pytest.raises(TruncatedError, match=r"a\.npy: 300 bytes.*byte 928"):
        pack("a.npy", "a")
    np.save("a.npy", np.array([{}]), allow_pickle=True)
    with pytest.raises(UnsupportedError, match=r"a\.npy: an array of Python objects"):
        pack("a.npy", "a")


def test_what_yields_samples(folder: Path) -> None:
    def named() -> Iterator[tuple[str, dict[str, Any]]]:
        for number in range(20):
            yield f"{number}", {"x": number}

    assert pack(named(), "a")["17"]["x"] == 17
    assert list(pack(({"x": number} for number in range(9)), "b")[:]["x"]) == list(range(9))
    torch_ds = pack(TensorDataset(torch.arange(12).reshape(6, 2), torch.arange(6)), "c")
    np.testing.assert_array_equal(torch_ds[:]["0"], np.arange(12).reshape(6, 2))
    pictures = [(Image.fromarray(np.full((2, 3, 3), number, np.uint8)), number) for number in range(4)]
    assert pack(pictures, "d")[:]["0"].shape == (4, 2, 3, 3)
    assert list(pack([1.5, 2.5], "e")[:]["0"]) == [1.5, 2.5]
    with pytest.raises(ArgumentError, match="needs fields="):
        pack(iter([]), "f")
    assert len(pack(iter([]), "f", fields={"x": "bytes"})) == 0


def test_what_cannot_be_packed(folder: Path) -> None:
    with pytest.raises(MissingError, match=r"none-\*\.tar"):
        pack("none-*.tar", "a")
    with pytest.raises(MissingError, match="no files of tar"):
        Path("empty").mkdir()
        pack("empty", "a", format="tar")
    Path("x.what").write_bytes(b"")
    with pytest.raises(ArgumentError, match="say format="):
        pack("x.what", "a")
    with pytest.raises(ArgumentError, match="format must be one of"):
        pack("x.what", "a", format="what")
    with pytest.raises(ArgumentError, match="not from int"):
        pack(3, "a")
    with pytest.raises(ArgumentError, match="cannot be shuffled"):
        pack(iter([{"x": 1}]), "a", shuffle=0)
    with pytest.raises(ArgumentError, match=r"\['y'\].*\['x'\]"):
        pack([{"x": 1}, {"y": 1}], "a")
    assert not Path("a").exists()


WRITE = """
import os, signal, sys
import numpy as np
import outcore as oc
from outcore.data import pack
from outcore.data.packing import Writer

write, left = Writer.write, int(sys.argv[1])
def killed(self, sample, name=None):
    global left
    write(self, sample, name)
    left -= 1
    if left % 50 == 0:
        self.save()
    if left <= 0:
        os.kill(os.getpid(), signal.SIGKILL)
Writer.write = killed
oc.configure(memory="32MiB", scratch="scratch", allow_tmpfs_scratch=True)
pack({"x": np.arange(1000), "y": np.arange(3000.0).reshape(1000, 3)}, "packed", shuffle=5, resume=True)
"""


def test_packing_that_is_killed_goes_on(folder: Path) -> None:
    runs = 0
    while not (folder / "packed").exists():
        ran = subprocess.run(
            [sys.executable, "-c", WRITE, "330"], cwd=folder, capture_output=True, text=True, timeout=60, check=False
        )
        assert ran.returncode in (0, -9), ran.stderr
        runs += 1
        assert runs < 9
    assert runs > 3
    found = Dataset("packed")[:]
    np.testing.assert_array_equal(found["x"], np.random.default_rng(5).permutation(1000))
    np.testing.assert_array_equal(found["y"][:, 0], 3.0 * found["x"])


def test_going_on_with_something_else_is_refused(folder: Path) -> None:
    def broken() -> Iterator[dict[str, int]]:
        yield {"x": 1}
        raise OSError(5, "gone")

    with pytest.raises(OSError, match="gone"):
        pack(broken(), "packed")
    assert os.listdir(folder) == ["scratch"] or not Path("packed").exists()
    ran = subprocess.run([sys.executable, "-c", WRITE, "60"], cwd=folder, capture_output=True, text=True, timeout=60, check=False)
    assert ran.returncode == -9, ran.stderr
    with pytest.raises(ArgumentError, match="in another order"):
        pack({"x": np.arange(1000), "y": np.arange(3000.0).reshape(1000, 3)}, "packed", shuffle=6, resume=True)
    with pytest.raises(ArgumentError, match="another source"):
        pack({"x": np.arange(900), "y": np.arange(2700.0).reshape(900, 3)}, "packed", shuffle=5, resume=True)
    assert len(pack({"x": np.arange(10)}, "packed")) == 10


def begun(source: Any, count: int, make: Callable[..., Dataset] = pack, **options: Any) -> None:
    """Packing that stops behind some samples, which are durable."""
    write, left = Writer.write, count
    writers: list[Writer] = []

    def stopped(self: Writer, *sample: Any) -> None:
        nonlocal left
        if left == 0:
            self.save()
            raise KeyboardInterrupt
        left -= 1
        write(self, *sample)

    def entered(self: Writer) -> Writer:
        writers.append(self)
        return self

    def taken(*_: Any) -> None:
        if len(writers[0]) == count:
            writers[0].save()
            raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Writer, "write", stopped)
        patch.setattr(Writer, "__enter__", entered)
        patch.setattr(shards, "AT_ONCE", 1)
        patch.setattr(shards.Bar, "update", taken)
        make(source, "packed", **options)


def some_files(kind: str, first: int) -> None:
    """Three files of 30 samples, counted from some number on."""
    for file in range(3):
        numbers = range(first + 30 * file, first + 30 * file + 30)
        if kind == "tar":
            shard(f"{file}.tar", numbers)
        elif kind == "tfrecord":
            tfrecord(f"{file}.tfrecord", [example({"x": number}) for number in numbers])
        elif kind == "parquet":
            pq.write_table(pa.table({"x": list(numbers)}), f"{file}.parquet", row_group_size=7)
        else:
            header = {str(n): {"dtype": "I64", "shape": [1], "data_offsets": [8 * i, 8 * i + 8]} for i, n in enumerate(numbers)}
            text = json.dumps(header).encode()
            data = np.array(numbers, "<i8").tobytes()
            Path(f"{file}.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + data)


@pytest.mark.parametrize("kind", ["tar", "tfrecord", "parquet", "safetensors"])
@pytest.mark.parametrize("count", [1, 30, 44, 89])
def test_files_are_gone_on_with_where_packing_stopped(folder: Path, kind: str, count: int) -> None:
    some_files(kind, 0)
    whole = pack(f"*.{kind}", "whole")
    for make in (pack,) if kind == "parquet" else (pack, index):
        begun(f"*.{kind}", count, make)
        ds = make(f"*.{kind}", "packed", resume=True)
        assert len(ds) == 90 and list(ds.names()) == list(whole.names())
        for name, column in whole[:].items():
            np.testing.assert_array_equal(ds[:][name], column)


@pytest.mark.parametrize("kind", ["tar", "tfrecord", "parquet", "safetensors"])
def test_files_that_changed_since_are_not_gone_on_with(folder: Path, kind: str) -> None:
    some_files(kind, 0)
    begun(f"*.{kind}", 44)
    Path("elsewhere").mkdir()
    os.chdir("elsewhere")
    some_files(kind, 1000)
    os.chdir(folder)
    with pytest.raises(ArgumentError, match="another source, or it has changed since"):
        pack(f"elsewhere/*.{kind}", "packed", resume=True)
    os.utime(f"1.{kind}", ns=(5, 5))
    with pytest.raises(ArgumentError, match="another source, or it has changed since"):
        pack(f"*.{kind}", "packed", resume=True)
    if kind != "parquet":
        begun(f"*.{kind}", 44, index)
        os.utime(f"1.{kind}", ns=(6, 6))
        with pytest.raises(ArgumentError, match="another source, or it has changed since"):
            index(f"*.{kind}", "packed", resume=True)


def test_folders_of_images_are_gone_on_with_as_they_were(folder: Path) -> None:
    Path("photos").mkdir()
    for number in range(20):
        Path(f"photos/{number:02}.png").write_bytes(picture(number))
    begun("photos", 7)
    Path("photos/19.png").rename("photos/20.png")
    with pytest.raises(ArgumentError, match="another source"):
        pack("photos", "packed", resume=True)
    Path("photos/20.png").rename("photos/19.png")
    ds = pack(folder / "photos", "packed", resume=True)
    assert [sample["image"] for sample in map(ds.__getitem__, range(20))] == [picture(number) for number in range(20)]


def test_going_on_with_fewer_samples_is_refused(folder: Path) -> None:
    begun(({"x": number} for number in range(20)), 10)
    with pytest.raises(ArgumentError, match="the 10 packed samples"):
        pack(({"x": number} for number in range(9)), "packed", resume=True)
    with pytest.raises(ArgumentError, match="another source"):
        pack([{"x": number} for number in range(20)], "packed", resume=True)
    ds = pack(({"x": number} for number in range(20)), "packed", resume=True)
    assert list(ds[:]["x"]) == list(range(20))


def test_what_is_packed_already_is_not_read_again(folder: Path) -> None:
    some_files("tar", 0)
    with tarfile.open("1.tar") as archive:
        within = next(member.offset_data for member in archive if member.name.endswith("0031.x.npy"))
    begun("*.tar", 44)
    for file, at in (("1.tar", within), ("0.tar", 520)):
        status, data = os.stat(file), bytearray(Path(file).read_bytes())
        data[at] ^= 1
        Path(file).write_bytes(data)
        os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    with pytest.raises(CorruptError, match=r"1\.tar: corrupt at byte .*long/.*0031\.x\.npy"):
        pack("1.tar", "other")
    assert len(pack("*.tar", "packed", resume=True)) == 90


def test_rows_of_parquet_are_read_by_their_bytes(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(0)
    pq.write_table(pa.table({"x": [random.bytes(1 << 20) for _ in range(20)]}), "a.parquet")
    sizes, from_batches = [], pa.Table.from_batches

    class Counted(pa.Table):  # type: ignore[misc]
        @staticmethod
        def from_batches(batches: list[Any]) -> Any:
            sizes.append(len(batches[0]))
            return from_batches(batches)

    monkeypatch.setattr(pa, "Table", Counted)
    assert len(pack("a.parquet", "packed")) == 20
    assert sum(sizes) == 20 and max(sizes) in (7, 8)


def test_columns_that_parquet_does_not_have(folder: Path) -> None:
    pq.write_table(pa.table({"x": [1], "y": [2]}), "a.parquet")
    with pytest.raises(ArgumentError, match=r"a\.parquet: no column 'z'; there are x, y"):
        pack("a.parquet", "packed", fields={"z": "int64"})


@pytest.mark.parametrize("dtype", ["int8", "int16", "int32", "uint8"])
def test_integers_that_do_not_fit_are_refused(folder: Path, dtype: str) -> None:
    limits, kind = np.iinfo(dtype), np.uint64 if dtype.startswith("u") else np.int64
    fitting = np.array([limits.min, limits.max], kind)
    assert pack([{"x": fitting}], "packed", fields={"x": (dtype, (2,))})[0]["x"].tolist() == fitting.tolist()
    for value in {limits.max + 1, max(limits.min - 1, 0) if dtype == "uint8" else limits.min - 1} - {0}:
        with pytest.raises(ArgumentError, match=rf"sample 1: field 'x' has {value}, which is out of the range of {dtype}"):
            pack([{"x": fitting}, {"x": np.array([0, value], kind)}], "packed", fields={"x": (dtype, (2,))})
    assert pack([{"x": 0.1}], "packed", fields={"x": "float32"})[0]["x"] == np.float32(0.1)


def test_what_is_wrong_is_told_with_its_place(folder: Path) -> None:
    with tarfile.open("a.tar", "w") as archive:
        for name, data in (("1.cls", b"1"), ("2.cls", b"2"), ("2.cls", b"3")):
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    with pytest.raises(CorruptError, match=r"a\.tar: corrupt at byte 2048: .*2\.cls': its field 'cls' comes twice"):
        pack("a.tar", "packed")
    np.save("a.npy", np.float32(3))
    with pytest.raises(ArgumentError, match=r"a\.npy: 'x' is a single number"):
        pack("a.npy", "packed")
    for single in (np.array(3), {"x": 3}):
        with pytest.raises(ArgumentError, match="'x' is a single number"):
            pack(single, "packed")
    with pytest.raises(ArgumentError, match="from one folder"):
        pack("a.npy", "packed", format="images")
    for value, field in (("text", "bytes"), (b"bytes", "text"), ("\udcff", "text")):
        with pytest.raises(ArgumentError, match="sample 0: field 'x'"):
            pack([{"x": value}], "packed", fields={"x": field})


@given(edits=st.lists(st.tuples(st.integers(0, 700), st.integers(0, 255)), min_size=1, max_size=4), data=st.data())
def test_any_bytes_are_samples_or_told(
    edits: list[tuple[int, int]], data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.getbasetemp() / f"a.{data.draw(st.sampled_from(['tar', 'npy', 'npz', 'parquet']))}"
    if path.suffix == ".tar":
        shard(str(path), range(1))
    elif path.suffix == ".parquet":
        pq.write_table(pa.table({"x": [1, 2], "y": ["one", "two"]}), path)
    else:
        (np.save if path.suffix == ".npy" else np.savez)(path, np.arange(6).reshape(3, 2))
    damaged = bytearray(path.read_bytes())
    for where, byte in edits:
        damaged[where % len(damaged)] = byte
    path.write_bytes(damaged)
    with contextlib.suppress(ArgumentError, CorruptError, TruncatedError, UnsupportedError):
        source = found(path, path.suffix[1:] if path.suffix in (".tar", ".parquet") else "numpy")
        assert source.samples is None or all(True for _ in source.samples(0))
        assert source.rows is None or all(True for _ in source.rows(range(source.count or 0)))
        if source.shards is not None:
            pack(path, path.with_name("packed"), format="tar")


def archive(path: str, members: list[tuple[str, bytes]]) -> None:
    with tarfile.open(path, "w") as file:
        for name, data in members:
            member = tarfile.TarInfo(name)
            member.size = len(data)
            file.addfile(member, io.BytesIO(data))


MAKES = pytest.mark.parametrize("make", [pack, index])


@MAKES
def test_names_in_tar_are_those_of_webdataset(folder: Path, make: Callable[..., Dataset]) -> None:
    no_samples = [("README", b"a"), ("a/.DS_Store", b"b"), ("._1.jpg", b"c"), ("__meta__/info.json", b"{}"), ("LICENSE", b"d")]
    samples = [("v2.0/1.left.JPG", b"L"), ("v2.0/1.CLS", b"4"), ("v2.0/2.left.jpg", b"R"), ("v2.0/2.cls", b"5\n")]
    archive("a.tar", [*no_samples, *samples[:2], ("v2.0/notes", b"n"), *samples[2:], *no_samples])
    ds = make("a.tar", "made")
    assert list(ds.names()) == ["v2.0/1", "v2.0/2"]
    assert [ds[0], ds[1]] == [{"left.jpg": b"L", "cls": 4}, {"left.jpg": b"R", "cls": 5}]
    archive("b.tar", no_samples)
    with pytest.raises(ArgumentError, match=r"b\.tar: no samples.*needs fields="):
        make("b.tar", "made")


@MAKES
def test_members_are_what_fields_tell(folder: Path, make: Callable[..., Dataset]) -> None:
    archive(
        "a.tar", [("1.cls", b"cat"), ("1.txt", b"caf\xe9"), ("1.n", b"0.5"), ("2.json", b"{"), ("2.cls", b"dog"), ("2.n", b"7")]
    )
    ds = make("a.tar", "made", fields={"cls": "text", "n": "float32"})
    assert [(ds[number]["cls"], float(ds[number]["n"])) for number in (0, 1)] == [("cat", 0.5), ("dog", 7.0)]
    for fields, words in (
        ({"txt": "text"}, "sample '1', at byte 0: '1.txt' is no text.*fields={'txt': 'bytes'"),
        ({"cls": "int64"}, "sample '1', at byte 0: '1.cls' is no number of int64: 'cat'"),
        ({"txt": "bytes"}, "sample '2', at byte 3072: it has no 'txt'"),
        ({"n": "int8", "N": "int8"}, "'N': fields of tar archives are in lower case, 'n'"),
        (None, "'1.cls' is no number of int64.*fields={'cls': 'text'"),
    ):
        with pytest.raises(ArgumentError, match=rf"{words}"):
            make("a.tar", "made", fields=fields)


@MAKES
@pytest.mark.parametrize("kind", [tarfile.LNKTYPE, tarfile.SYMTYPE])
def test_links_in_tar_are_refused_where_they_are_wanted(folder: Path, make: Callable[..., Dataset], kind: bytes) -> None:
    with tarfile.open("a.tar", "w") as file:
        for name, linked in (("1.txt", ""), ("1.jpg", ""), ("2.txt", ""), ("2.jpg", "1.jpg")):
            member = tarfile.TarInfo(name)
            member.type, member.linkname = (kind, linked) if linked else (tarfile.REGTYPE, "")
            file.addfile(member)
    with pytest.raises(UnsupportedError, match=r"a\.tar.*sample '2', at byte 1024: '2\.jpg' is a (hard|symbolic) link"):
        make("a.tar", "made")
    assert len(make("a.tar", "made", fields={"txt": "text"})) == 2


@MAKES
@pytest.mark.parametrize("options", [["gnu"], ["pax", "1.0"], ["pax", "0.1"], ["pax", "0.0"]])
def test_sparse_members_of_tar_are_refused_by_name(folder: Path, make: Callable[..., Dataset], options: list[str]) -> None:
    if b"GNU tar" not in subprocess.run(["tar", "--version"], capture_output=True, check=False).stdout:
        pytest.skip("no GNU tar")
    with open("1.bin", "wb") as file:
        for number in range(9):  # More holes than a header of GNU's has places for.
            file.seek(number << 20)
            file.write(b"data")
    Path("1.cls").write_bytes(b"1")
    command = ["tar", "--sparse", f"--format={options[0]}", *(f"--sparse-version={one}" for one in options[1:])]
    subprocess.run([*command, "-cf", "a.tar", "1.bin", "1.cls"], check=True)
    with pytest.raises(UnsupportedError, match=r"a\.tar.*1\.bin' is a sparse file"):
        make("a.tar", "made")
    assert make("a.tar", "made", fields={"cls": "int64"})["1"]["cls"] == 1


@MAKES
def test_features_of_any_length_are_as_fields_tell(folder: Path, make: Callable[..., Dataset]) -> None:
    boxes = [np.arange(count, dtype=np.float32) for count in (4, 8, 0)]
    words = message(1, message(1, b"a") + message(1, b"b"))
    records = [example({"box": box, "label": 3}) for box in boxes]
    tfrecord("a.tfrecord", records)
    ds = make("a.tfrecord", "made", fields={"box": ("float64", (None, 4)), "label": "int8"})
    assert [ds[number]["box"].shape for number in range(3)] == [(1, 4), (2, 4), (0, 4)]
    assert ds[1]["box"].dtype == np.float64 and ds[1]["box"].tolist() == np.arange(8).reshape(2, 4).tolist()
    with pytest.raises(
        ArgumentError, match=r"record 1, at byte \d+: 'box' has shape \(8,\).*fields={'box': \('float32', \(None,\)\)"
    ):
        make("a.tfrecord", "made")
    tfrecord("a.tfrecord", [message(1, message(1, message(1, b"words") + message(2, words)) + records[0][2:])])
    with pytest.raises(UnsupportedError, match=r"record 0, at byte 0: 'words' is a list of 2 byte strings"):
        make("a.tfrecord", "made")
    assert make("a.tfrecord", "made", fields={"label": "int64"})[0]["label"] == 3


@MAKES
def test_feature_lists_are_read_or_refused(folder: Path, make: Callable[..., Dataset]) -> None:
    def steps(values: list[list[float]]) -> bytes:
        return b"".join(message(1, message(2, message(1, np.array(step, "<f4").tobytes()))) for step in values)

    def record(lists: dict[str, bytes]) -> bytes:
        entries = b"".join(message(1, message(1, name.encode()) + message(2, value)) for name, value in lists.items())
        return example({"label": 1}) + message(2, entries)

    tracks = [[[1.0, 2.0], [3.0, 4.0]], [[5.0, 6.0]], []]
    tfrecord("a.tfrecord", [record({"track": steps(track)}) for track in tracks])
    ds = make("a.tfrecord", "made")
    assert ds.fields == {"label": Field("array", np.dtype("<i8")), "track": Field("array", np.dtype("<f4"), (None, 2))}
    assert [ds[number]["track"].tolist() for number in range(3)] == tracks
    tfrecord("a.tfrecord", [record({"track": message(1, message(1, message(1, b"word")))})])
    with pytest.raises(UnsupportedError, match=r"record 0, at byte 0: 'track' is a feature list of byte strings"):
        make("a.tfrecord", "made")
    assert len(make("a.tfrecord", "made", fields={"label": "int64"})) == 1


def test_files_are_known_by_their_bytes_and_names(folder: Path) -> None:
    names = ["train.tfrecord-00000-of-00002", "train.tfrecord-00001-of-00002", "train-00000-of-00001", "x.tar"]
    for name in names:
        tfrecord(name, [example({"x": 1})])
    assert len(pack("train.tfrecord-*", "packed")) == 2 and len(index(names, "there")) == 4
    tfrecord("empty.tfrecords-00000-of-00001", [])
    assert len(pack("empty.tfrecords-00000-of-00001", "packed", fields={"x": "int64"})) == 0
    Path("gz").mkdir()
    for name in ("gz/a.tfrecord.gz", "gz/b.tfrecord"):
        Path(name).write_bytes(gzip.compress(Path(names[0]).read_bytes()))
        assert len(pack(name, "packed")) == 1
        with pytest.raises(ArgumentError, match=rf"{name}.*compressed.*pack"):
            index(name, "there")
    assert len(pack("gz", "packed")) == 2


@MAKES
@pytest.mark.parametrize("form", ["tar", "tfrecord", "safetensors"])
def test_what_is_something_else_is_no_damage(folder: Path, make: Callable[..., Dataset], form: str) -> None:
    for number, data in enumerate(
        (b"<html><body>404</body></html>", b"<!doctype html>" + bytes(999), picture(1), picture(1, "JPEG"))
    ):
        Path(f"{number}.{form}").write_bytes(data)
        with pytest.raises(
            UnsupportedError, match=rf"(?i){number}\.{form}.*is no .*{form}.*, but an? (HTML page|PNG picture|JPEG picture)"
        ):
            make(f"{number}.{form}", "made")


@MAKES
def test_tensors_that_numpy_does_not_have(folder: Path, make: Callable[..., Dataset]) -> None:
    header = json.dumps({"x": {"dtype": "BF16", "shape": [2], "data_offsets": [0, 4]}}).encode()
    Path("a.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + b"1234")
    with pytest.raises(ArgumentError, match=r"a\.safetensors.*'x' has dtype BF16.*fields={'tensor': 'bytes'}"):
        make("a.safetensors", "made")
    with pytest.raises(UnsupportedError, match=r"a\.safetensors.*'x', at byte \d+: it has dtype BF16"):
        make("a.safetensors", "made", fields={"tensor": ("float32", (2,))})
    assert make("a.safetensors", "made", fields={"tensor": "bytes"})["x"]["tensor"] == b"1234"


PARTS = st.sampled_from(["jpg", "JPG", "cls", "json", "x.left", "npy"])


@given(
    members=st.lists(st.tuples(st.integers(0, 3), PARTS, st.binary(max_size=700)), max_size=9),
    edits=st.lists(st.tuples(st.integers(0), st.integers(0, 255)), max_size=2),
    told=st.sampled_from([None, {"jpg": "bytes"}, {"cls": "text"}, {"json": "text", "x.left": "bytes"}]),
    form=st.sampled_from([tarfile.PAX_FORMAT, tarfile.GNU_FORMAT, tarfile.USTAR_FORMAT]),
)
def test_packed_and_indexed_are_the_same_whatever_an_archive_has(
    members: list[tuple[int, str, bytes]],
    edits: list[tuple[int, int]],
    told: dict[str, str] | None,
    form: int,
    folder: Path,
) -> None:
    with tarfile.open("a.tar", "w", format=form) as file:
        for key, ending, data in sorted(members, key=operator.itemgetter(0)):
            member = tarfile.TarInfo(f"{'größe/' * (key % 2) * 12}{key}.{ending}")
            member.size = len(data)
            file.addfile(member, io.BytesIO(data))
    bytes_now = bytearray(Path("a.tar").read_bytes())
    for at, byte in edits:
        bytes_now[at % len(bytes_now)] = byte
    Path("a.tar").write_bytes(bytes_now)
    found = []
    for make in (pack, index):
        try:
            ds = make("a.tar", "made", fields=told, format="tar")
            found.append([(name, ds[name]) for name in ds.names()])
        except (ArgumentError, CorruptError, UnsupportedError) as error:
            assert "a.tar" in str(error) or "are both called" in str(error)
            assert len(str(error)) < 400
            found.append((type(error), str(error).replace(f"{folder}/", "")))
    assert str(found[0]) == str(found[1])


def same(one: Any, other: Any) -> bool:
    """Of samples, or batches of them."""
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[name], other[name]) for name in one)
    return len(one) == len(other) and all(map(same, one, other)) if isinstance(one, list) else np.array_equal(one, other)


def test_a_dataset_is_written_in_another_order(folder: Path) -> None:
    for number in range(3):
        shard(f"s-{number}.tar", range(number * 100, number * 100 + 100))
    first = pack("s-{0..2}.tar", "first")
    index("s-{0..2}.tar", "there")
    _native.store_format(folder / "disk.store", 16 << 20)
    for source in (first, "first", Dataset("there")):
        mixed = pack(source, "disk.store/mixed", shuffle=3)
        assert sorted(mixed.names()) == sorted(first.names()) and list(mixed.names()) != list(first.names())
        assert mixed.fields == first.fields and not mixed.is_in_place
        for name in list(first.names())[::9]:
            assert same(mixed[name], first[name])
    assert same(pack(first, "again", names=False)[:], first[:])
    assert len(pack(pack([{"x": 1}], "one"), "other")) == 1
    with pytest.raises(ArgumentError, match="other fields"):
        pack(first, "changed", fields={"x": "bytes"})
    with pytest.raises(ExistsError):
        pack(first, ".")


def test_what_a_dataset_decodes_is_packed(folder: Path) -> None:
    pack([{"image": picture(number, "PNG"), "label": number} for number in range(5)], "files")
    decoded = Dataset("files", decode={"image": "RGB"})
    fields = {"image": ("uint8", (None, None, 3)), "label": "int64"}
    found = pack(decoded, "pixels", fields=fields)
    assert all(same(found[number], decoded[number]) for number in range(5))
