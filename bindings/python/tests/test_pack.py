"""Datasets made of what is elsewhere: every source, what is wrong with it, and packing that is killed and goes on."""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import os
import struct
import subprocess
import sys
import tarfile
from collections.abc import Iterator
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
from outcore.data import Dataset, Field, pack
from outcore.data.tfrecord import example as parse
from outcore.errors import ArgumentError, CorruptError, MissingError, TruncatedError


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
    assert len(pack("photos", "packed")) == 0


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
    with pytest.raises(CorruptError, match=str(offsets[6])):
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
    with pytest.raises(CorruptError, match=r"byte 0 is no tf\.train\.Example"):
        pack("a.tfrecord", "packed")


@given(edits=st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255)), min_size=1, max_size=8))
def test_any_bytes_are_an_example_or_told(edits: list[tuple[int, int]]) -> None:
    record = bytearray(example({**features(3), "image": b"image"}))
    for where, byte in edits:
        record[where % len(record)] = byte
    with contextlib.suppress(ValueError):
        parse(bytes(record))


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
    with pytest.raises(CorruptError, match=r"a\.npy"):
        pack("a.npy", "a")
    np.save("a.npy", np.array([{}]), allow_pickle=True)
    with pytest.raises(CorruptError, match=r"a\.npy"):
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
    with pytest.raises(ArgumentError, match="packed from other samples"):
        pack({"x": np.arange(1000), "y": np.arange(3000.0).reshape(1000, 3)}, "packed", shuffle=6, resume=True)
    assert len(pack({"x": np.arange(10)}, "packed")) == 10
