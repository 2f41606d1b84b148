"""Datasets of samples: written, read, loaded, shared, gone on with."""

from __future__ import annotations

import gc
import io
import json
import multiprocessing
import pickle
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import numpy.typing as npt
import pytest
import scipy.sparse
from PIL import Image

import outcore as oc
from outcore import _native
from outcore._loading import unevenness
from outcore.data import Dataset, Field, Loader, Writer, mount, pack
from outcore.errors import (
    ArgumentError,
    ClosedError,
    CorruptError,
    DTypeError,
    ExistsError,
    LockedError,
    MissingError,
    NoSpaceError,
    OutcoreError,
)


def sample(number: int) -> dict[str, Any]:
    random = np.random.default_rng(number)
    return {
        "image": random.bytes(int(random.integers(0, 3000))),
        "label": number % 10,
        "caption": "größe " * (number % 5),
        "pixels": random.integers(0, 255, (3, 4, 5), np.uint8),
        "boxes": random.standard_normal((number % 4, 4)).astype(np.float32),
    }


FIELDS = {"image": "bytes", "label": "int64", "caption": "text", "pixels": ("uint8", (3, 4, 5)), "boxes": ("float32", (None, 4))}


def same(found: Any, expected: Any) -> bool:
    return np.array_equal(found, expected) if isinstance(expected, np.ndarray) else bool(found == expected)


def is_sample(found: dict[str, Any], number: int) -> bool:
    expected = sample(number)
    return found.keys() == expected.keys() and all(same(found[name], value) for name, value in expected.items())


@pytest.fixture(params=["folder", "store"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    oc.configure(memory="32MiB", scratch=tmp_path / "scratch")
    if request.param == "folder":
        return tmp_path / "data"
    oc._native.store_format(str(tmp_path / "disk.store"), 64 << 20)
    return tmp_path / "disk.store" / "data"


def written(path: Path, count: int, named: bool = False) -> Dataset:
    with Writer(path, FIELDS) as writer:
        for number in range(count):
            writer.write(sample(number), f"{number}.jpg" if named else None)
    return Dataset(path)


def test_samples_come_back(path: Path) -> None:
    ds = written(path, 300, named=True)
    assert len(ds) == 300 and ds.fields["label"] == Field("array", np.dtype("<i8"))
    assert all(is_sample(ds[number], number) for number in (0, 17, 299))
    assert is_sample(ds[-1], 299) and is_sample(ds["42.jpg"], 42) and is_sample(ds.read(b"7.jpg"), 7)
    batch = ds[[5, 2, 2, -1]]
    assert batch["pixels"].shape == (4, 3, 4, 5) and batch["label"].tolist() == [5, 2, 2, 9]
    assert [len(boxes) for boxes in batch["boxes"]] == [1, 2, 2, 3]
    assert all(is_sample(found, number) for found, number in zip(ds.__getitems__([3, 1]), (3, 1), strict=True))
    assert ds[10:20:3]["label"].tolist() == [0, 3, 6, 9] and ds[np.arange(300) == 8]["label"].tolist() == [8]
    assert ds[[]]["pixels"].shape == (0, 3, 4, 5)
    assert list(ds.names()) == [f"{number}.jpg" for number in range(300)] and ds.name(-1) == "299.jpg"
    assert "9.jpg" in ds and "x" not in ds and 9 not in ds
    assert all(is_sample(found, number) for number, found in enumerate(ds))
    for wrong in (300, -301, [1, 300]):
        with pytest.raises(IndexError, match="of 300"):
            ds[wrong]
    with pytest.raises(KeyError):
        ds["absent"]
    with pytest.raises(ArgumentError):
        ds[[0.5]]


@pytest.mark.parametrize("fields", [1, 2])
def test_samples_go_into_the_callers_arrays(path: Path, rng: np.random.Generator, fields: int) -> None:
    x, y = rng.standard_normal((500, 3, 7)).astype(np.float32), np.arange(500)
    with Writer(path) as writer:
        for number in range(500):
            writer.write({"x": x[number], "y": y[number]} if fields == 2 else {"x": x[number]})
    ds = Dataset(path)
    numbers = rng.integers(-500, 500, 300)
    out = {"x": np.empty((300, 3, 7), np.float32), "y": np.empty(300, np.int64)}
    out = dict(list(out.items())[:fields])
    found = ds.gather(numbers, out)
    assert all(found[name] is out[name] for name in out)
    np.testing.assert_array_equal(out["x"], x[numbers])
    assert fields == 1 or (out["y"] == y[numbers]).all()
    np.testing.assert_array_equal(ds.gather([3, 4])["x"], x[3:5])
    assert ds.gather([], {name: array[:0] for name, array in out.items()})["x"].shape == (0, 3, 7)
    read_only = np.empty((300, 3, 7), np.float32)
    read_only.flags.writeable = False
    for wrong in (out["x"][:299], out["x"].astype("f8"), np.empty((300, 7, 3), "f4").transpose(0, 2, 1), read_only):
        with pytest.raises(ArgumentError, match="'x'"):
            ds.gather(numbers, {**out, "x": wrong})
    with pytest.raises(ArgumentError, match="samples have"):
        ds.gather(numbers, {})
    with pytest.raises(IndexError):
        ds.gather([500], {name: array[:1] for name, array in out.items()})
    if path.parent.is_dir():
        data = bytearray((path / "samples").read_bytes())
        data[len(data) // 2] ^= 1
        (path / "samples").write_bytes(data)
        with pytest.raises(CorruptError, match="sample 250"):
            Dataset(path).gather(range(200, 500), out)


def test_fields_are_those_of_the_first_sample(path: Path) -> None:
    with Writer(path) as writer:
        writer.write({"x": np.arange(3, dtype=">i4"), "y": 1.5, "z": True})
        for wrong in (
            {"x": np.arange(3)},
            {"x": np.arange(4), "y": 0, "z": 0},
            {"x": [0.5] * 3, "y": 0, "z": 0},
            {"x": {}, "y": 0, "z": 0},
        ):
            with pytest.raises(ArgumentError):
                writer.write(wrong)
        writer.write({"x": [4, 5, 6], "y": 2, "z": False})
        assert len(writer) == 2
    ds = Dataset(path)
    assert ds[:]["x"].tolist() == [[0, 1, 2], [4, 5, 6]] and ds[:]["y"].tolist() == [1.5, 2.0] and ds[1]["z"] == np.False_


@pytest.mark.parametrize("count", [0, 1])
def test_few_samples(path: Path, count: int) -> None:
    ds = written(path, count)
    assert len(ds) == count and len(list(ds)) == count and list(ds.names()) == []
    for shuffle in (False, True, "chunk"):
        assert sum(len(batch["label"]) for batch in Loader(ds, 4, shuffle=shuffle)) == count
    ranks = [sum(len(batch["label"]) for batch in Loader(ds, 2, rank=rank, world_size=5)) for rank in range(5)]
    assert ranks == [count] * 5


def test_a_writer_that_died_is_gone_on_with(path: Path) -> None:
    with pytest.raises(ZeroDivisionError), Writer(path, FIELDS) as writer:
        for number in range(150):
            writer.write(sample(number))
            if number == 99:
                writer.save()
        with pytest.raises(LockedError):
            Writer(path)
        raise ZeroDivisionError
    del writer
    with pytest.raises(MissingError):
        Dataset(path)
    with Writer(path, resume=True) as writer:
        assert len(writer) == 100 and writer.fields is not None
        for number in range(100, 200):
            writer.write(sample(number))
    assert all(is_sample(found, number) for number, found in enumerate(Dataset(path)))


@pytest.mark.parametrize("shuffle", [False, True, "global", "chunk"])
def test_an_epoch_has_every_sample_once(path: Path, shuffle: Any) -> None:
    ds = written(path, 400)
    loader = Loader(ds, 32, shuffle=shuffle, seed=3)
    assert len(loader) == 13
    orders = []
    for epoch in range(2):
        assert loader.epoch == epoch
        images = [image for batch in loader for image in batch["image"]]
        orders.append(images)
        assert sorted(images) == sorted(sample(number)["image"] for number in range(400))
    assert (orders[0] == orders[1]) == (shuffle is False)
    assert [image for batch in Loader(ds, 7, shuffle=shuffle, seed=3) for image in batch["image"]] == orders[0]


@pytest.mark.parametrize("shuffle", [True, "chunk"])
def test_a_loader_goes_on_with_other_ranks(path: Path, shuffle: Any) -> None:
    ds = written(path, 200)

    def labels(batches: Any) -> list[bytes]:
        return [image for batch in batches for image in batch["image"]]

    whole = labels(Loader(ds, 1, shuffle=shuffle, seed=1))
    loaders = [Loader(ds, 5, shuffle=shuffle, seed=1, rank=rank, world_size=3) for rank in range(3)]
    first = []
    for loader in loaders:
        batches = iter(loader)
        first.append(labels([next(batches) for _ in range(4)]))
    assert [image for images in zip(*first, strict=True) for image in images] == whole[:60]
    states = [loader.state_dict() for loader in loaders]
    assert states[0] == states[1] == states[2] and states[0]["position"] == 60
    rest = []
    for rank in range(2):
        loader = Loader(ds, 8, rank=rank, world_size=2)
        loader.load_state_dict(pickle.loads(pickle.dumps(states[0])))
        rest.append(labels(loader))
        assert loader.epoch == 1
    assert [image for images in zip(*rest, strict=True) for image in images] == whole[60:]
    with pytest.raises(ArgumentError):
        loader.load_state_dict({**states[0], "dataset": 1})


def test_sequences_as_the_paper_has_them(path: Path) -> None:
    with Writer(path) as writer:
        for number in range(50):
            writer.write({"x": str(number)}, str(number))
    ds = mount(path)
    assert ds.open("17").read() == b"17"
    with pytest.raises(ArgumentError):
        ds.bread(3)
    ds.sequence(5)
    found = ds.bread(20)["x"] + ds.bread(7)["x"] + ds.bread(100)["x"]
    assert sorted(map(int, found)) == list(range(50)) and ds.bread(3) == {"x": []}
    ds.sequence(5)
    assert ds.bread(50)["x"] == found


def test_an_epoch_after_a_resume_is_the_one_that_was_left(path: Path) -> None:
    ds = written(path, 100)
    loader = Loader(ds, 10, shuffle=True, seed=1)
    whole = [batch["label"].tolist() for batch in loader]
    batches = iter(loader)
    for _ in range(3):
        next(batches)
    state = loader.state_dict()
    assert all(type(value) is int for value in state.values()) and (len(loader), loader.left) == (10, 7)
    again = Loader(ds, 10, shuffle=True, seed=1)
    again.load_state_dict(state)
    again.set_epoch(state["epoch"])
    assert [batch["label"].tolist() for batch in again] == [batch["label"].tolist() for batch in batches]
    again.set_epoch(0)
    assert [batch["label"].tolist() for batch in again] == whole
    with pytest.raises(ArgumentError):
        again.load_state_dict({**state, "shuffle": 7})


def test_the_surroundings_rank_is_not_that_of_all_samples(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ds = written(path, 30)
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "3")
    assert len(list(ds)) == 30 and sum(len(batch["label"]) for batch in Loader(ds, 4)) == 10
    monkeypatch.setenv("RANK", "one")
    with pytest.raises(ArgumentError, match="RANK"):
        next(iter(Loader(ds)))
    assert len(list(ds)) == 30


def in_child(act: Any) -> Any:
    """What a forked child finds."""
    here, there = multiprocessing.Pipe(False)
    child = multiprocessing.get_context("fork").Process(target=lambda: there.send(act()))
    child.start()
    assert here.poll(60)
    child.join()
    return here.recv()


@pytest.mark.parametrize("copied", ["forked", "pickled"])
def test_a_loader_in_another_process_is_where_it_was(path: Path, copied: str) -> None:
    written(path, 300)
    ds = Dataset(path, session=oc.Session(memory="12MiB"))
    loader = Loader(ds, 10, shuffle="chunk", seed=3, chunks=4)
    loader.load_state_dict({**loader.state_dict(), "epoch": 5, "seed": 9})
    batches = iter(loader)
    next(batches)

    def rest() -> Any:
        there = loader if copied == "forked" else pickle.loads(pickle.dumps(loader))
        state = there.state_dict()
        return state, [batch["label"].tolist() for batch in iter(there._next, None)], there.dataset._session.memory

    found = in_child(rest) if copied == "forked" else rest()
    assert found == (loader.state_dict(), [batch["label"].tolist() for batch in batches], 12 << 20)


def test_a_folder_with_anything_else_in_it_is_not_replaced(tmp_path: Path) -> None:
    photos = tmp_path / "photos"
    (photos / "class").mkdir(parents=True)
    (photos / "class/1.jpg").write_bytes(jpeg(1))
    for act in (lambda: Writer(photos), lambda: pack(photos, photos), lambda: pack(photos, tmp_path), lambda: pack(photos, "")):
        with pytest.raises((ExistsError, ArgumentError)):
            act()
    assert (photos / "class/1.jpg").exists() and not list(tmp_path.glob(".*"))
    x = scipy.sparse.eye(3, format="csr", dtype="float32")
    with pytest.raises(ExistsError, match="class"):
        oc.from_scipy(photos, x)
    for _ in range(2):
        pack(photos, tmp_path / "packed")
    oc.from_scipy(tmp_path / "matrix", x)
    with pytest.raises(ExistsError, match=r"matrix\.json|indptr|indices|data"):
        pack(photos, tmp_path / "matrix")
    _native.store_format(tmp_path / "cache.store", 16 << 20)
    oc.from_numpy(tmp_path / "cache.store/deep/x.npy", np.eye(3))
    with pytest.raises(ExistsError, match=r"x\.npy"):
        Writer(tmp_path / "cache.store/deep")


def test_what_was_left_is_compared_before_it_is_gone_on_with(tmp_path: Path) -> None:
    path = tmp_path / "data"

    def begin() -> Writer:
        writer = Writer(path)
        for number in range(200):
            writer.write({"x": number}, str(number))
        return writer

    with pytest.warns(ResourceWarning, match="200 samples are lost"):
        begin()
        gc.collect()
    unfinished = path.with_name(f".{path.name}.outcore-unfinished")
    assert not unfinished.exists()
    for name in ("names", "names.groups", "places", "sums"):
        with pytest.raises(ZeroDivisionError), begin() as writer:
            writer.save()
            raise ZeroDivisionError
        with open(unfinished / name, "r+b") as file:
            file.seek(10)
            byte = file.read(1)
            file.seek(10)
            file.write(bytes([byte[0] ^ 1]))
        with pytest.raises(CorruptError, match=name):
            Writer(path, resume=True)


def test_a_dataset_that_tells_nonsense_of_itself_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "data"
    with Writer(path, {"x": ("u1", (4,)), "b": "bytes", "y": ("f4", (None, 2))}) as writer:
        writer.write({"x": np.zeros(4, "u1"), "b": b"12345678", "y": np.zeros((3, 2))})
    file = path / "dataset.json"
    whole = file.read_bytes()

    def tell(change: Any) -> None:
        """As an attacker would."""
        told = json.loads(whole)
        change(told)
        text = json.dumps({**told, "crc32c": 0})
        head = text[: text.rindex('"crc32c"')]
        file.write_text(json.dumps({**told, "crc32c": _native.crc32c(head.encode())}))

    def shape(field: int, shape: list[Any]) -> Any:
        return lambda told: told["fields"][field].update(shape=shape)

    def text(told: Any) -> None:
        told["fields"][2] = {"name": "y", "kind": "text"}
        told["fields"][1] = {"name": "b", "kind": "array", "dtype": "<f8", "shape": [None]}

    tell(lambda told: None)
    assert Dataset(path)[0]["b"] == b"12345678"
    for change in (shape(0, [2147483648000]), shape(0, [2**63 - 1]), shape(2, [2**53, None]), shape(0, [1] * 64), text):
        tell(change)
        with pytest.raises(CorruptError):
            Dataset(path)[0]
    file.write_bytes(whole.replace(b'"name": "x"', b'"name": "z"'))
    with pytest.raises(CorruptError, match="checksum"):
        Dataset(path)


def test_what_is_asked_for_may_be_of_any_type(path: Path) -> None:
    ds = written(path, 1000)
    for kind in ("u1", "i1", "u2", "i8", "u8", ">i4"):
        assert [is_sample({k: v[i] for k, v in ds[np.array([1, 100], kind)].items()}, n) for i, n in enumerate((1, 100))]
    assert ds[np.array([-1], "i1")]["image"] == ds[999:]["image"]
    for wrong in (np.array([2**64 - 1], "u8"), np.array([1000], "u2"), np.array([-1001])):
        with pytest.raises(IndexError):
            ds[wrong]
    with pytest.raises(IndexError, match="1000"):
        Dataset(path).name(1000)


def test_numbers_that_do_not_fit_are_refused(path: Path) -> None:
    writer = Writer(path, {"x": "uint8", "f": ("f4", (2,))})
    writer.write({"x": 5, "f": np.zeros(2)})
    for wrong in ({"x": 300, "f": np.zeros(2)}, {"x": -1, "f": np.zeros(2)}, {"x": 1, "f": np.ma.array([1.0, 2.0], mask=[0, 1])}):
        with pytest.raises(ArgumentError):
            writer.write(wrong)
    writer.close()
    assert Dataset(path)[0]["x"] == 5
    with pytest.raises(ClosedError, match="data"):
        writer.write({"x": 5, "f": np.zeros(2)})
    for fields in ({"x": ("f4", (-1,))}, {"x": ("f4", ("a",))}, {"x": ("f4", (1.5,))}, "x", {1: "f4"}):
        with pytest.raises(ArgumentError):
            Writer(path, fields)  # type: ignore[arg-type]


def test_a_closed_dataset_says_so_and_its_loaders_go_on(path: Path) -> None:
    with written(path, 20) as ds:
        loader = Loader(ds, 5)
    with pytest.raises(ClosedError, match="data"):
        ds[0]
    assert sum(len(batch["label"]) for batch in loader) == 20


def test_damage_in_a_store_is_left_out_if_asked(tmp_path: Path) -> None:
    place = tmp_path / "disk.store"
    _native.store_format(place, 16 << 20)
    written(place / "data", 400)
    whole = place.read_bytes()
    at = whole.index(sample(250)["image"]) + 3
    with open(place, "r+b") as file:
        file.seek(at)
        file.write(bytes([whole[at] ^ 1]))
    ds = Dataset(place / "data", session=oc.Session(memory="16MiB"))
    lost = {fault["sample"] for fault in ds.verify()}
    assert 250 in lost and len(lost) < 200
    for shuffle in (False, True, "chunk"):
        loader = Loader(ds, 50, shuffle=shuffle, skip_damaged=True)
        assert sum(len(batch["label"]) for batch in loader) == 400 - len(lost) and loader.skipped == len(lost)
        with pytest.raises(OutcoreError, match="sample"):
            list(Loader(ds, 50, shuffle=shuffle))


def test_sorted_data_is_warned_of(path: Path) -> None:
    with Writer(path) as writer:
        for number in range(2000):
            writer.write({"x": bytes(2000), "label": number // 200, "other": number % 7})
    ds = Dataset(path)
    assert ds.clustering["label"] > 50 and ds.clustering["other"] < 2
    with pytest.warns(UserWarning, match="'label'"):
        Loader(ds, 32, shuffle="chunk")


def of_buffer(labels: np.ndarray, size: int) -> list[np.ndarray]:
    """Batches drawn from a buffer, which the next in line fill up."""
    random, buffer, drawn = np.random.default_rng(0), labels[:size].copy(), []
    for label, at in zip(labels[size:], random.integers(0, size, len(labels) - size), strict=True):
        drawn.append(buffer[at])
        buffer[at] = label
    return np.split(np.concatenate([drawn, random.permutation(buffer)]), range(256, len(labels), 256))


@pytest.mark.parametrize("order", ["mixed", "sorted"])
def test_shuffles_are_as_even_as_documented(path: Path, order: str) -> None:
    labels = np.repeat(np.arange(100), 400)
    if order == "mixed":
        np.random.default_rng(0).shuffle(labels)
    with Writer(path) as writer:
        for label in labels:
            writer.write({"x": bytes(1000), "label": label})
    found = {}
    for shuffle, memory in (("global", "16MiB"), ("chunk", "64MiB"), ("chunk", "16MiB")):
        dataset = Dataset(path, session=oc.Session(memory=memory))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            loader = Loader(dataset, 256, shuffle=shuffle, seed=1)
        found[shuffle, memory] = unevenness([batch["label"] for batch in loader], 256)
    buffered = unevenness(of_buffer(labels, 1000), 256)
    assert found["global", "16MiB"] < 1.3
    if order == "mixed":
        assert max(*found.values(), buffered) < 1.3
    else:
        assert 2 < found["chunk", "64MiB"] < found["chunk", "16MiB"] / 2
        assert found["chunk", "16MiB"] < buffered / 2


def test_damage_names_the_sample_and_is_left_out_if_asked(tmp_path: Path) -> None:
    path = tmp_path / "data"
    written(path, 100)
    file = path / "samples"
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    ds = Dataset(path)
    with pytest.raises(CorruptError, match="sample 5"):
        ds[:]
    loader = Loader(ds, 10, skip_damaged=True)
    assert sum(len(batch["label"]) for batch in loader) == 99
    assert loader.skipped == 1 and "checksum" in str(loader.first_skipped)


def jpeg(number: int, kind: str = "JPEG", size: tuple[int, int] = (48, 64)) -> bytes:
    """A picture without fine detail, which JPEG nearly keeps."""
    rows, columns = np.mgrid[: size[0], : size[1]]
    pixels = np.stack([rows * 3 + number, columns * 2, rows + columns], -1).astype(np.uint8) // 2
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, kind, quality=95)
    return file.getvalue()


def pixels_of(data: bytes, mode: str) -> npt.NDArray[np.uint8]:
    return np.asarray(Image.open(io.BytesIO(data)).convert(mode))


@pytest.mark.parametrize("mode", ["L", "RGB", "RGBA"])
def test_pictures_are_decoded(path: Path, mode: Any) -> None:
    files = [jpeg(number, "PNG" if number % 2 else "JPEG") for number in range(50)]
    with Writer(path) as writer:
        for number, file in enumerate(files):
            writer.write({"label": number, "image": file, "other": file[:number]})
    ds = Dataset(path, decode={"image": (mode, 48, 64)})
    channels = {"L": 1, "RGB": 3, "RGBA": 4}[mode]
    assert ds.fields["image"] == Field("array", np.dtype("u1"), (48, 64, channels))
    for batch in (*Loader(ds, 16, shuffle=True), ds[[3, 4, 3]]):
        assert batch["image"].shape == (len(batch["label"]), 48, 64, channels)
        for pixels, number, other in zip(batch["image"], batch["label"], batch["other"], strict=True):
            expected = pixels_of(files[number], mode).reshape(pixels.shape).astype(int)
            assert np.abs(pixels - expected).max() <= (0 if number % 2 else 6)
            assert other == files[number][:number]
    again = pickle.loads(pickle.dumps(ds))
    np.testing.assert_array_equal(again[5]["image"], ds[5]["image"])


def test_pictures_of_any_size(path: Path) -> None:
    with Writer(path) as writer:
        for number in range(20):
            writer.write({"image": jpeg(number, "PNG", (number + 1, 30 - number))})
    found = Dataset(path, decode={"image": "RGB"})[:]["image"]
    assert [image.shape for image in found] == [(number + 1, 30 - number, 3) for number in range(20)]
    np.testing.assert_array_equal(found[7], pixels_of(jpeg(7, "PNG", (8, 23)), "RGB"))


def test_what_is_no_picture_is_named_and_left_out_if_asked(path: Path) -> None:
    whole = jpeg(1, "PNG")
    with Writer(path) as writer:
        for image in (whole, b"text", whole[:100], jpeg(1, "PNG", (9, 9)), b"", whole, jpeg(1, "BMP")):
            writer.write({"image": image})
    ds = Dataset(path, decode={"image": ("RGB", 48, 64)})
    with pytest.raises(CorruptError, match='sample 1: field "image" is no picture: 4 bytes that begin with "text"'):
        list(Loader(ds, 2))
    with pytest.raises(CorruptError, match=r"sample 3: .* 9 by 9 pixels, where 48 by 64"):
        ds[3]
    loader = Loader(ds, 3, skip_damaged=True)
    assert [len(batch["image"]) for batch in loader] == [1, 1, 1] and loader.skipped == 4
    assert [fault["sample"] for fault in ds.verify()] == [1, 2, 3, 4] and Dataset(path).verify() == []
    for decode in ({"label": "RGB"}, {"image": "CMYK"}, {"image": ("RGB", 3)}):
        with pytest.raises(ArgumentError):
            Dataset(path, decode=decode)  # type: ignore[arg-type]


def test_verifying_names_every_damaged_sample(tmp_path: Path) -> None:
    path = tmp_path / "data"
    oc.configure(memory="4MiB", scratch=tmp_path / "scratch")
    with Writer(path) as writer:
        for number in range(300):
            writer.write({"data": bytes([number % 251]) * (6 << 20 if number == 100 else 20_000)}, f"n{number}")
    assert Dataset(path).verify() == []
    data = bytearray((path / "samples").read_bytes())
    for where in (5 * 20_000, 100 * 20_000 + 77, len(data) - 1):
        data[where] ^= 1
    (path / "samples").write_bytes(data)
    faults = Dataset(path).verify(progress=True)
    assert [(fault["sample"], fault["name"]) for fault in faults] == [(5, "n5"), (100, "n100"), (299, "n299")]
    assert all("checksum" in fault["reason"] for fault in faults)
    names = bytearray((path / "names").read_bytes())
    names[names.index(b"n200") + 1] = ord("X")
    (path / "names").write_bytes(names)
    # Names have a checksum for every 64.
    assert [fault["sample"] for fault in Dataset(path).verify()] == [5, 100, 192, 299]
    with pytest.raises(CorruptError, match="names of samples from 192 on"):
        Dataset(path).name(200)


def test_a_disk_that_fills_leaves_what_was_there(small_disk: Path, tmp_path: Path) -> None:
    oc.configure(memory="8MiB", scratch=tmp_path / "scratch", allow_tmpfs_scratch=True)
    oc._native.store_format(str(tmp_path / "disk.store"), 4 << 20)
    for path in (small_disk / "data", tmp_path / "disk.store" / "data"):
        with Writer(path) as writer:
            writer.write({"x": b"kept"})
        with pytest.raises(NoSpaceError, match="data"), Writer(path) as writer:
            for _ in range(100):
                writer.write({"x": bytes(100_000)})
        assert [sample["x"] for sample in Dataset(path)] == [b"kept"]
        with Writer(path) as writer:
            writer.write({"x": b"smaller"})
        assert [sample["x"] for sample in Dataset(path)] == [b"smaller"]


def test_a_sample_may_be_larger_than_the_budget(tmp_path: Path) -> None:
    long = np.arange(1 << 24, dtype=np.uint64).tobytes()
    with Writer(tmp_path / "data") as writer:
        for data in (b"before", long, b"", b"behind"):
            writer.write({"x": data})
    ds = Dataset(tmp_path / "data")
    assert ds[1]["x"] == long and ds[[3, 0]]["x"] == [b"behind", b"before"]
    assert [sample["x"] == data for sample, data in zip(ds, (b"before", long, b"", b"behind"), strict=True)] == [True] * 4


def test_two_writers_of_one_dataset(path: Path) -> None:
    code = "import sys; from outcore.data import Writer; Writer(sys.argv[1])"
    with Writer(path) as writer:
        writer.write({"x": 1})
        with pytest.raises(LockedError):
            Writer(path)
        ran = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True, timeout=60, check=False)
        assert ran.returncode == 1 and "LockedError" in ran.stderr
    assert len(Dataset(path)) == 1


READ = """
import json, os, signal, sys
import outcore as oc
from outcore.data import Dataset, Loader
path, log, shuffle, left = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
oc.configure(memory="32MiB", scratch=os.path.dirname(log) + "/scratch", allow_tmpfs_scratch=True)
loader = Loader(Dataset(path), 7, shuffle=shuffle, seed=5)
lines = open(log).read().splitlines()
if lines:
    loader.load_state_dict(json.loads(lines[-1])["state"])
for batch in loader:
    with open(log, "a") as file:
        print(json.dumps({"labels": batch["label"].tolist(), "state": loader.state_dict()}), file=file)
    left -= 1
    if not left:
        os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("shuffle", ["global", "chunk"])
def test_a_reader_that_is_killed_goes_on_at_the_very_sample(path: Path, tmp_path: Path, shuffle: Any) -> None:
    with Writer(path) as writer:
        for number in range(200):
            writer.write({"label": number})
    log = tmp_path / "log"
    log.touch()
    codes = []
    while not codes or codes[-1] != 0:
        words = [sys.executable, "-c", READ, path, log, shuffle, str(5 + len(codes))]
        ran = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
        assert ran.returncode in (0, -9), ran.stderr
        codes.append(ran.returncode)
    assert len(codes) > 3
    found = [label for line in log.read_text().splitlines() for label in json.loads(line)["labels"]]
    expected = [int(label) for batch in Loader(Dataset(path), 7, shuffle=shuffle, seed=5) for label in batch["label"]]
    assert found == expected and sorted(found) == list(range(200))


def _length(ds: Dataset, queue: Any) -> None:
    queue.put(int(ds[3]["label"]))


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_datasets_go_to_other_processes(tmp_path: Path, method: str) -> None:
    ds = written(tmp_path / "data", 10)
    assert is_sample(ds[3], 3)
    context = multiprocessing.get_context(method)
    queue = context.Queue()
    process = context.Process(target=_length, args=(ds, queue))
    process.start()
    assert queue.get(timeout=60) == 3
    process.join()


def test_numpy_and_notebooks_read_no_samples(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ds = written(path, 5)
    monkeypatch.setattr(Dataset, "_columns", None)
    with pytest.raises(DTypeError, match="not converted to a NumPy array"):
        np.asarray(ds)
    cells = {cell.text for cell in ElementTree.fromstring(f"<div>{ds._repr_html_()}</div>").iter("td")}
    assert {"boxes", "float32", "(None, 4)", "caption", "text"} <= cells
    ds.close()
    assert "closed" in repr(ds)
    ElementTree.fromstring(ds._repr_html_())
