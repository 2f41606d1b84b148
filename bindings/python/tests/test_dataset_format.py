"""docs/dataset.md says all that a reader of a dataset has to know: this one knows nothing else."""

from __future__ import annotations

import json
import os
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xxhash
from test_store_format import crc

from outcore.data import Dataset, Loader, Writer

GOLDEN = Path(__file__).parents[3] / "crates/outcore/tests/golden/dataset-1"
MASK = 2**64 - 1
FIELDS = {"image": "bytes", "caption": "text", "label": "int64", "boxes": ("float32", (None, 4))}


def sample(number: int) -> dict[str, Any]:
    """Of lengths that differ, one of them a long one."""
    random = np.random.default_rng(number)
    return {
        "image": random.bytes(3000 if number == 100 else number % 23),
        "caption": "ä" * (number % 5),
        "label": number % 10,
        "boxes": random.standard_normal((number % 3, 4)).astype("f4"),
    }


def name(number: int) -> bytes:
    return b"\xff\0" if number == 7 else f"{number % 3}/{number}.jpg".encode()


def make(path: Path) -> None:
    with Writer(path, FIELDS) as writer:
        for number in range(150):
            writer.write(sample(number), name(number))


def same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return one.keys() == other.keys() and all(np.array_equal(one[key], other[key]) for key in one)


def mix(x: int) -> int:
    x = (x + 0x9E3779B97F4A7C15) & MASK
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 & MASK
    x = (x ^ x >> 27) * 0x94D049BB133111EB & MASK
    return x ^ x >> 31


def scale(x: int, count: int) -> int:
    return x * count >> 64


def bits(words: bytes, first: int, width: int) -> int:
    return int.from_bytes(words, "little") >> first & (1 << width) - 1


class Reader:
    """A dataset, from its files."""

    def __init__(self, path: Path) -> None:
        text = (path / "dataset.json").read_bytes()
        self.about = json.loads(text)
        assert crc(text[: text.rindex(b'"crc32c"')]) == self.about["crc32c"]
        self.files = {}
        for file, told in self.about["files"]:
            data = self.files[file] = (path / file).read_bytes()
            assert len(data) == told["bytes"] and (file == "samples" or crc(data) == told["crc32c"])

    def place(self, number: int) -> int:
        if number == self.about["samples"]:
            return len(self.files["samples"])
        base, slope, packed = struct.unpack_from("<QQQ", self.files["places"], 24 * (number // 64))
        k, width = number % 64, packed & 0xFF
        return base + k * slope + bits(self.files["places.bits"], (packed >> 8) + k * width, width)

    def sample(self, number: int) -> dict[str, Any]:
        data = self.files["samples"][self.place(number) : self.place(number + 1)]
        assert crc(data) == struct.unpack_from("<I", self.files["sums"], 4 * number)[0]
        fields = self.about["fields"]
        varies = [field["kind"] != "array" or None in field["shape"] for field in fields]
        count = sum(varies)
        lengths = list(struct.unpack_from(f"<{max(0, count - 1)}Q", data))
        at, found = 8 * len(lengths), {}
        for field in (field for field, vary in zip(fields, varies, strict=True) if not vary):
            numbers = np.frombuffer(data, field["dtype"], int(np.prod(field["shape"])), at)
            at, found[field["name"]] = at + numbers.nbytes, numbers.reshape(field["shape"])
        for field in (field for field, vary in zip(fields, varies, strict=True) if vary):
            part = data[at : at + lengths.pop(0)] if lengths else data[at:]
            at, value = at + len(part), part
            if field["kind"] == "text":
                value = part.decode()
            if field["kind"] == "array":
                axes = field["shape"].count(None)
                extents = iter(struct.unpack_from(f"<{axes}Q", part))
                shape = [next(extents) if extent is None else extent for extent in field["shape"]]
                value = np.frombuffer(part, field["dtype"], offset=8 * axes).reshape(shape)
            found[field["name"]] = value
        return {field["name"]: found[field["name"]] for field in fields}

    def name(self, number: int) -> bytes:
        names, group = self.files["names"], number // 64
        starts = [start for (start,) in struct.iter_unpack("<Q", self.files["names.groups"])] + [len(names)]
        part = names[starts[group] : starts[group + 1]]
        assert crc(part) == struct.unpack_from("<I", self.files["names.sums"], 4 * group)[0]
        for _ in range(number % 64):
            part = part[4 + int.from_bytes(part[:4], "little") :]
        return part[4 : 4 + int.from_bytes(part[:4], "little")]

    def find(self, wanted: bytes) -> int | None:
        table = self.files["lookup"]
        seed, parts = struct.unpack_from("<QQ", table)
        before = struct.unpack_from(f"<{parts + 1}Q", table, 16)
        width, all_names = before[-1].bit_length(), before[-1]
        start = 16 + 8 * (parts + 1)
        slots_bytes = 8 * -(-(all_names + all_names // 32 + 2 * parts) * width // 64)
        slots, pilots = table[start : start + slots_bytes], table[start + slots_bytes :]
        whole = xxhash.xxh3_128_intdigest(wanted, seed)
        high, low = whole >> 64, whole & MASK
        part = scale(high, parts)
        m = before[part + 1] - before[part]
        (pilot,) = struct.unpack_from("<H", pilots, 2 * (before[part] // 4 + part + scale(low, -(-m // 4))))
        turned = (low << 32 | low >> 32) & MASK
        slot = before[part] + before[part] // 32 + 2 * part + scale(mix(high ^ turned ^ mix(pilot)), m + m // 32 + 1)
        number = bits(slots, slot * width, width)
        return number if number < all_names and self.name(number) == wanted else None


@pytest.mark.parametrize("made", ["now", "golden"])
def test_the_document_says_it_all(tmp_path: Path, made: str) -> None:
    path = GOLDEN if made == "golden" else tmp_path / "data"
    if made == "now":
        make(path)
    reader = Reader(path)
    for number in range(150):
        assert same(reader.sample(number), sample(number))
        assert reader.name(number) == name(number) and reader.find(name(number)) == number
    assert reader.find(b"absent") is None


def test_what_was_written_before_is_read() -> None:
    ds = Dataset(GOLDEN)
    assert all(same(ds[number], sample(number)) and ds.index(name(number)) == number for number in range(150))
    assert ds.verify() == [] and len(ds) == 150
    # An order is the same for ever: a loader that goes on with an old state has the samples that are left.
    for shuffle, expected in json.loads((GOLDEN.with_suffix(".orders.json")).read_text()).items():
        loader = Loader(ds, 10, shuffle=shuffle, seed=5, chunks=4)  # type: ignore[arg-type]
        assert [batch["label"].tolist() for batch in loader] == expected


if __name__ == "__main__":
    # Once for a version of the format: python bindings/python/tests/test_dataset_format.py
    os.makedirs(GOLDEN.parent, exist_ok=True)
    make(GOLDEN)
    orders = {
        shuffle: [batch["label"].tolist() for batch in Loader(Dataset(GOLDEN), 10, shuffle=shuffle, seed=5, chunks=4)]  # type: ignore[arg-type]
        for shuffle in ("global", "chunk")
    }
    GOLDEN.with_suffix(".orders.json").write_text(json.dumps(orders) + "\n")
