"""docs/format.md says all that a reader of a store has to know: this one knows nothing else."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

BLOCK = 4096
GOLDEN = Path(__file__).parents[3] / "crates/store/tests/golden/v1.store"


def crc_table() -> list[int]:
    table = []
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
        table.append(value)
    return table


TABLE = crc_table()


def crc(data: bytes) -> int:
    value = 0xFFFFFFFF
    for byte in data:
        value = value >> 8 ^ TABLE[(value ^ byte) & 0xFF]
    return value ^ 0xFFFFFFFF


class Reader:
    """A store, from its bytes."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        found = [self.superblock(number) for number in (0, 1)]
        _, _, _, _, generation, blocks, first, count, _, _, epoch = max(filter(None, found), key=lambda one: one[4])
        assert blocks * BLOCK <= len(data)
        assert epoch >> 32 == generation
        self.objects: dict[int, dict[str, Any]] = {}
        records, used = b"", 0
        for number in range(count):
            block = self.block(first + number)
            total, length, last, its_epoch, its_number, its_first = struct.unpack_from("<IHHQQQ", block)
            if (its_epoch, its_number, its_first) != (epoch, number, used) or crc(block[4:]) != total:
                break
            records += block[32 : 32 + length]
            if last:
                self.change(records)
                records, used = b"", number + 1

    def superblock(self, number: int) -> Any:
        block = self.block(number)
        found = struct.unpack_from("<8sII16sQQQQQQQ", block)
        whole = crc(block[:508]) == struct.unpack_from("<I", block, 508)[0]
        return found if whole and found[:3] == (b"OUTCORE\n", 1, BLOCK) else None

    def block(self, number: int) -> bytes:
        return self.data[number * BLOCK : (number + 1) * BLOCK]

    def change(self, records: bytes) -> None:
        at = 0

        def take(form: str) -> Any:
            nonlocal at
            found = struct.unpack_from("<" + form, records, at)
            at += struct.calcsize("<" + form)
            return found if len(found) > 1 else found[0]

        while at < len(records):
            kind, number = take("BQ")
            if kind == 2:
                self.objects.pop(number, None)
                continue
            length, _, condition = take("QqB")
            name = take(f"{take('H')}s").decode()
            take(f"{take('I')}s")
            runs = [[take("QQ") for _ in range(take("I"))] for _ in range(2)]
            blocks = [[first + place for first, count in part for place in range(count)] for part in runs]
            self.objects[number] = {"name": name, "length": length, "condition": condition, "blocks": blocks}
        assert at == len(records)

    def contents(self, name: str) -> bytes:
        (found,) = (one for one in self.objects.values() if one["name"] == name)
        data, sums = found["blocks"]
        whole = b""
        for number, place in enumerate(data):
            page = self.block(sums[number // 1023])
            assert crc(page[:4092]) == struct.unpack_from("<I", page, 4092)[0]
            expected = struct.unpack_from("<I", page, number % 1023 * 4)[0]
            block = self.block(place) if expected else bytes(BLOCK)
            assert not expected or found["condition"] or (crc(block) or 1) == expected
            whole += block
        return whole[: found["length"]]


def test_the_document_describes_the_golden_store() -> None:
    reader = Reader(GOLDEN.read_bytes())
    names = {one["name"]: one["condition"] for one in reader.objects.values()}
    assert names == {"a/updated": 0, "empty": 0, "half": 0, "marked": 1, "moved": 0}
    assert reader.contents("a/updated") == b"\1" * 4096 + b"\2" * 4096 + b"\1" * 1808
    assert reader.contents("half") == b"\3" * 4096 + bytes(904)
    assert (reader.contents("moved"), reader.contents("empty")) == (b"\5" * 777, b"")
    used = [place for one in reader.objects.values() for part in one["blocks"] for place in part]
    assert len(set(used)) == len(used)


@pytest.mark.parametrize("seed", range(5))
def test_the_reader_sees_damage(seed: int) -> None:
    data = bytearray(GOLDEN.read_bytes())
    found = Reader(bytes(data))
    (one,) = (one for one in found.objects.values() if one["name"] == "a/updated")
    rng = np.random.default_rng(seed)
    data[int(rng.choice(one["blocks"][0])) * BLOCK + int(rng.integers(BLOCK))] ^= 1
    with pytest.raises(AssertionError):
        Reader(bytes(data)).contents("a/updated")
