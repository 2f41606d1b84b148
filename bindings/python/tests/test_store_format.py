"""docs/format.md says all that a reader of a store has to know: this one knows nothing else."""

from __future__ import annotations

import itertools
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from outcore import _store, errors
from outcore.streams import StreamStore

BLOCK = 4096
CRATES = Path(__file__).parents[3] / "crates"
GOLDEN = CRATES / "store/tests/golden/v1.store"
STREAMS = CRATES / "outcore/tests/golden/streams-1.store"


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
        _, _, _, _, generation, blocks, first, count, _, _, log = max(filter(None, found), key=lambda one: one[4])
        assert blocks * BLOCK <= len(data)
        assert log >> 32 == generation
        self.objects: dict[int, dict[str, Any]] = {}
        records, used = b"", 0
        for number in range(count):
            block = self.block(first + number)
            total, length, last, its_log, its_number, its_first = struct.unpack_from("<IHHQQQ", block)
            if (its_log, its_number, its_first) != (log, number, used) or crc(block[4:]) != total:
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
            about = take(f"{take('I')}s")
            runs = [[take("QQ") for _ in range(take("I"))] for _ in range(2)]
            blocks = [[first + place for first, count in part for place in range(count)] for part in runs]
            self.objects[number] = {
                "number": number,
                "name": name,
                "length": length,
                "condition": condition,
                "blocks": blocks,
                "runs": runs[0],
                "about": about,
            }
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

    def stream(self, name: str) -> tuple[bytes, list[bytes], bytes]:
        """Bytes, records and what its writer says of a stream that is not compressed."""
        (found,) = (one for one in self.objects.values() if one["name"] == name)
        block_bytes, mark, compression, length, count = struct.unpack_from("<IQBQQ", found["about"])
        assert (found["condition"], compression) == (16, 0)
        places = [
            (first * BLOCK + at, first * BLOCK + min(at + block_bytes, blocks * BLOCK))
            for first, blocks in found["runs"]
            for at in range(0, blocks * BLOCK, block_bytes)
        ]
        whole, records, begun = b"", [], b""
        for number, (begin, end) in enumerate(places):
            block = self.data[begin:end]
            *marks, data, ends, size, last, after, its_mark, zero, total = struct.unpack_from(
                "<QQIIIIQQ12sI", block, end - begin - 64
            )
            assert marks == [found["number"], number]
            assert (size, its_mark, zero, total) == (end - begin, mark, bytes(12), crc(block[:-4]))
            assert last == (number + 1 == len(places))
            assert after * BLOCK == (0 if last else places[number + 1][0])
            bytes_here = block[:data]
            listed = struct.unpack_from(f"<{ends}I", block, size - 64 - 4 * ends)
            if listed:
                if begun:
                    records.append(begun + bytes_here[: listed[0]])
                records += [bytes_here[one:other] for one, other in itertools.pairwise(listed)]
                begun = b""
            begun += bytes_here[listed[-1] if listed else 0 :]
            whole += bytes_here
        assert (len(whole), len(records)) == (length, count)
        return whole, records, found["about"][29:]


def pattern(length: int, seed: int) -> bytes:
    return bytes((at * 31 + at // 251 + seed * 7) & 255 for at in range(length))


def test_the_document_describes_streams() -> None:
    reader = Reader(STREAMS.read_bytes())
    names = {one["name"]: one["condition"] for one in reader.objects.values()}
    assert names == {"bytes": 16, "empty": 16, "lz4": 16, "records": 16, "unfinished": 18, "zstd": 16}
    assert reader.stream("bytes") == (pattern(10_000, 3), [], b'{"made by": "a test"}')
    assert reader.stream("empty") == (b"", [], b"")
    expected = [*(pattern(number % 40, number) for number in range(300)), pattern(20_000, 1), b"", b"last"]
    assert reader.stream("records")[:2] == (b"".join(expected), expected)


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


def test_a_store_whose_formatting_has_not_finished_says_so_and_can_be_formatted(tmp_path: Path) -> None:
    data, path = bytearray(GOLDEN.read_bytes()), tmp_path / "half.store"
    for number in (0, 1):
        # Where only the first is so, it is still what it was.
        path.write_bytes(data)
        StreamStore(path, read_only=True).close()
        start = number * BLOCK
        data[start + 8 : start + 12] = struct.pack("<I", 0)
        data[start + 508 : start + 512] = struct.pack("<I", crc(bytes(data[start : start + 508])))
    path.write_bytes(data)
    assert not _store.is_store(str(path))
    with pytest.raises(errors.UnsupportedError, match=r"half\.store: not a store: formatting .* format it again"):
        StreamStore(path)
    _store.format_store(str(path), None, overwrite=True)
    with StreamStore(path) as store:
        assert list(store) == [] and _store.list_store(str(path))["objects"] == []
