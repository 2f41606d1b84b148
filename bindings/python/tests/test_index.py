"""Samples that stay where they are: found in tar shards, TFRecord and safetensors files."""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_pack import example, features, picture, shard, tfrecord

import outcore as oc
from outcore.data import Dataset, Field, Loader, index, pack
from outcore.errors import ArgumentError, CorruptError, MissingError, TruncatedError


@pytest.fixture(params=["folder", "store"])
def target(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the dataset is to be; tests lie in the folder around."""
    monkeypatch.chdir(tmp_path)
    if request.param == "folder":
        return tmp_path / "data"
    oc._native.store_format(str(tmp_path / "disk.store"), 16 << 20)
    return tmp_path / "disk.store" / "data"


def safetensors(path: str, tensors: dict[str, np.ndarray[Any, Any]], kinds: dict[str, str] | None = None) -> None:
    header, data = {"__metadata__": {"format": "np"}}, b""
    for name, tensor in tensors.items():
        kind = (kinds or {}).get(name, {"float32": "F32", "int64": "I64"}.get(tensor.dtype.name, ""))
        header[name] = {"dtype": kind, "shape": tensor.shape, "data_offsets": [len(data), len(data) + tensor.nbytes]}  # type: ignore[dict-item]
        data += tensor.tobytes()
    text = json.dumps(header).encode()
    Path(path).write_bytes(len(text).to_bytes(8, "little") + text + data)


def same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return one.keys() == other.keys() and all(np.array_equal(one[name], other[name]) for name in one)


def check(ds: Dataset, packed: Dataset) -> None:
    """Whatever is asked of it, it has what a packed dataset has."""
    assert ds.is_in_place and not packed.is_in_place and len(ds) == len(packed)
    assert ds.fields == packed.fields and ds.is_named == packed.is_named
    assert all(same(ds[number], packed[number]) for number in range(len(packed)))
    assert list(ds.names()) == list(packed.names()) and ds.verify() == []
    for name in list(ds.names())[::7]:
        assert same(ds[name], packed[name])
    for shuffle in (False, "global", "chunk"):
        for _ in range(2):
            seen: list[Any] = []
            for batch in Loader(ds, 7, shuffle=shuffle, seed=3):  # type: ignore[arg-type]
                rows = [dict(zip(batch, values, strict=True)) for values in zip(*batch.values(), strict=True)]
                key = next(name for name in ("cls", "label", "tensor") if name in batch)
                seen += [(row[key].tobytes(), row) for row in rows]
            assert len(seen) == len(packed)
    assert same(pickled(ds)[3], packed[3])


def pickled(ds: Dataset) -> Dataset:
    import pickle

    found: Dataset = pickle.loads(pickle.dumps(ds))
    return found


def test_tar_shards(target: Path) -> None:
    for number in range(3):
        shard(f"s-{number}.tar", range(number * 70, number * 70 + 70))
    packed = pack("*.tar", "packed")
    check(index("s-{0..2}.tar", target), packed)
    labels = [int(row) for batch in Loader(Dataset(target), 16, shuffle="chunk") for row in batch["cls"]]
    assert sorted(labels) == sorted(packed[:]["cls"])
    few = index("*.tar", target, fields={"cls": "int64", "png": "bytes"}, names=False)
    assert set(few.fields) == {"cls", "png"} and not few.is_named and few[100]["png"] == picture(100)
    pictures = Dataset(target, decode={"png": "RGB"})
    assert pictures[[5, 6]]["png"][1].shape == (8, 6, 3)


def test_tfrecord(target: Path) -> None:
    for number in range(2):
        tfrecord(f"{number}.tfrecord", [example(features(number * 50 + one)) for one in range(50)])
    packed = pack("*.tfrecord", "packed")
    check(index("*.tfrecord", target), packed)
    assert list(index("*.tfrecord", target, fields={"ids": ("int64", (None,))})[99]["ids"]) == [99, -99, 1 << 40]


def test_safetensors(target: Path, rng: np.random.Generator) -> None:
    tensors = {f"layer.{number}": rng.standard_normal((number % 5 + 1, 8)).astype("f4") for number in range(60)}
    safetensors("a.safetensors", dict(list(tensors.items())[:30]))
    safetensors("b.safetensors", dict(list(tensors.items())[30:]))
    ds = index("*.safetensors", target)
    assert ds.fields == {"tensor": Field("array", np.dtype("<f4"), (None, 8))}
    check(ds, pack("*.safetensors", "packed", fields={"tensor": ("float32", (None, 8))}))
    safetensors("a.safetensors", {name: tensor[:1] for name, tensor in tensors.items()})
    fixed = index("a.safetensors", target)
    assert fixed[:]["tensor"].shape == (60, 1, 8) and (fixed["layer.7"]["tensor"] == tensors["layer.7"][:1]).all()
    safetensors("c.safetensors", {"x": tensors["layer.0"], "y": np.arange(3), "z": np.zeros(2, "u1")}, {"z": "F8_E4M3"})
    with pytest.raises(ArgumentError, match=r"'x' is F32 of 2 axes, 'y' is I64 of 1 axes"):
        index("c.safetensors", target)
    assert index("c.safetensors", target, fields={"tensor": "bytes"})["y"]["tensor"] == np.arange(3).tobytes()


def test_what_cannot_be_indexed(target: Path) -> None:
    shard("a.tar.gz", range(3))
    np.save("x.npy", np.zeros(3))
    shutil.copy("a.tar.gz", "b.tar")
    for source, words in (
        ("a.tar.gz", r"a\.tar\.gz.*compressed"),
        ("b.tar", r"b\.tar.*compressed.*pack"),
        ("x.npy", r"x\.npy.*numpy cannot be indexed"),
    ):
        with pytest.raises(ArgumentError, match=words):
            index(source, target)
    tfrecord("a.tfrecord", [example({"x": 1}), example({"x": 1.5})])
    with pytest.raises(
        ArgumentError, match=r"a\.tfrecord: record 1, at byte .*: 'x' has dtype float32, where every sample has int64"
    ):
        index("a.tfrecord", target)
    tfrecord("a.tfrecord", [])
    with pytest.raises(ArgumentError, match="needs fields="):
        index("a.tfrecord", target)
    assert len(index("a.tfrecord", target, fields={"x": "bytes"})) == 0
    with pytest.raises(MissingError):
        index("gone.tar", target)


def told(shape: str, offsets: str) -> bytes:
    return f'{{"x": {{"dtype": "F32", "shape": {shape}, "data_offsets": {offsets}}}}}'.encode()


@pytest.mark.parametrize(
    "header",
    [
        *(b"{", b"[]", b'{"x": 3}', b"[" * 50_000, told("[2]", "[0, 4]"), told("[-1, -1]", "[0, 4]"), told("[1.0]", "[0, 4]")),
        *(told("[1]", "[0.0, 4.0]"), told("[1]", "[]"), told("[1]", "[4]"), told("[1]", "[-4, 0]"), told("[true]", "[0, 4]")),
    ],
)
def test_damaged_safetensors(target: Path, header: bytes) -> None:
    Path("a.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(8))
    with pytest.raises(CorruptError, match=r"a\.safetensors"):
        index("a.safetensors", target)
    safetensors("b.safetensors", {"x": np.zeros(9, "f4")})
    Path("b.safetensors").write_bytes(Path("b.safetensors").read_bytes()[:-1])
    with pytest.raises(TruncatedError, match=r"b\.safetensors"):
        index("b.safetensors", target)
    Path("c.safetensors").write_bytes(b"1234567")
    with pytest.raises(CorruptError, match=r"c\.safetensors"):
        index("c.safetensors", target)
    with open("d.safetensors", "wb") as file:  # Of holes.
        file.write((100_000_001).to_bytes(8, "little"))
        file.truncate(100_000_100)
    with pytest.raises(CorruptError, match=r"d\.safetensors.*100000000 are the most"):
        index("d.safetensors", target)


def test_files_that_changed_are_told(target: Path) -> None:
    shard("a.tar", range(30))
    index("a.tar", target)
    whole = bytearray(Path("a.tar").read_bytes())
    whole[whole.index(picture(17)) + 20] ^= 1
    Path("a.tar").write_bytes(whole)
    ds = Dataset(target)
    with pytest.raises(CorruptError, match=r"a\.tar.*sample 17"):
        ds[:]
    assert [fault["sample"] for fault in ds.verify()] == [17]
    assert sum(len(batch["cls"]) for batch in Loader(ds, 8, shuffle=True, skip_damaged=True)) == 29
    Path("a.tar").write_bytes(whole[:-512])
    with pytest.raises(TruncatedError, match=r"a\.tar"):
        Dataset(target)
    Path("a.tar").unlink()
    with pytest.raises(MissingError, match=r"a\.tar"):
        Dataset(target)


def test_a_dataset_goes_elsewhere_with_its_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here" / "shards").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "here")
    shard("shards/a.tar", range(9))
    index("shards", "data")
    monkeypatch.chdir(tmp_path)
    shutil.move("here", "there")
    assert len(Dataset("there/data")[:]["cls"]) == 9
    assert not os.path.exists("here")


def test_large_members_are_read_in_pieces(tmp_path: Path) -> None:
    import tarfile

    oc.configure(memory="4MiB", scratch=tmp_path / "scratch", allow_tmpfs_scratch=True)
    data = np.random.default_rng(0).bytes(7 << 20)
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        for number in range(3):
            member = tarfile.TarInfo(f"{number}.bin")
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    ds = index(tmp_path / "a.tar", tmp_path / "data")
    assert [sample["bin"] == data for sample in ds] == [True] * 3


MANY = """
import resource, sys
from outcore.data import Dataset, index
resource.setrlimit(resource.RLIMIT_NOFILE, (120, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
index("many", "data")
ds = Dataset("data")
assert len(ds) == 300 and all(int(ds[number]["tensor"][0]) == number for number in range(300))
"""


def test_there_may_be_more_files_than_are_open_as_a_rule(tmp_path: Path) -> None:
    (tmp_path / "many").mkdir()
    for number in range(300):
        safetensors(str(tmp_path / f"many/{number:03}.safetensors"), {f"x{number}": np.full(3, number, np.int64)})
    subprocess.run([sys.executable, "-c", MANY], cwd=tmp_path, check=True, timeout=120)
