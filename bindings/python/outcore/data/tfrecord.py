"""TFRecord files, of length, checksum, bytes and checksum for each record, and the `tf.train.Example` in them."""

from __future__ import annotations

import itertools
import os
import struct
from collections.abc import Callable, Iterator
from functools import partial
from typing import IO, Any

import numpy as np

from .. import _native
from ..errors import CorruptError, TruncatedError
from .fields import Sample

HEAD_BYTES = 12
"""Length of a record, and its checksum."""


def records(path: str) -> Iterator[tuple[int, Callable[[], bytes]]]:
    """Where the records of a TFRecord file begin, and what reads each of them; both of its checksums are compared."""
    size = os.path.getsize(path)
    with open(path, "rb") as file:
        at = 0
        while head := file.read(HEAD_BYTES):
            length = struct.unpack("<Q", head[:8])[0] if len(head) == HEAD_BYTES else 0
            if len(head) == HEAD_BYTES and _masked(head[:8]) != struct.unpack("<I", head[8:])[0]:
                raise CorruptError(
                    f"{path}: the length of the record at byte {at} is not what was written", object=path, offset=at
                )
            if at + HEAD_BYTES + length + 4 > size:
                message = f"{path}: it ends within the record at byte {at}"
                raise TruncatedError(message, object=path, expected=at + HEAD_BYTES + length + 4, actual=size)
            yield at, partial(_record, file, path, at, length)
            at += HEAD_BYTES + length + 4
            file.seek(at)


def _record(file: IO[bytes], path: str, at: int, length: int) -> bytes:
    file.seek(at + HEAD_BYTES)
    record = file.read(length)
    if _masked(record) != int.from_bytes(file.read(4), "little"):
        raise CorruptError(f"{path}: the record at byte {at} is not what was written", object=path, offset=at)
    return record


def _masked(data: bytes) -> int:
    """The checksum of TFRecord: CRC-32C, rotated, and a constant more."""
    crc = _native.crc32c(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def example(record: bytes) -> Sample:
    """The features of a `tf.train.Example`: one number, several as an array, or one byte string.

    Raises
    ------
    ValueError
        For bytes that are none.
    """
    sample: Sample = {}
    for features in _messages(record, 1):
        for entry in _messages(features, 1):
            (name,), feature = _messages(entry, 1), b"".join(_messages(entry, 2))
            sample[bytes(name).decode()] = _feature(feature)
    return dict(sorted(sample.items()))


def _feature(feature: bytes) -> Any:
    for kind, values in _fields(feature):
        if kind == 1:
            strings = [bytes(value) for value in _messages(values, 1)]
            if len(strings) != 1:
                raise ValueError(f"a feature of {len(strings)} byte strings, where one makes a field")
            return strings[0]
        if kind == 2:
            array = np.frombuffer(b"".join(_messages(values, 1)), "<f4")
        else:
            # One by one, or packed.
            found = [value for number, value in _fields(values) if number == 1]
            numbers = ([value] if isinstance(value, int) else _varints(value) for value in found)
            array = np.array(list(itertools.chain.from_iterable(numbers)), np.uint64).astype(np.int64)
        return array[0] if len(array) == 1 else array
    return np.zeros(0, np.float32)


def _messages(data: Any, wanted: int) -> list[memoryview]:
    """Those fields of a message that have a number, and bytes."""
    found = [value for number, value in _fields(data) if number == wanted]
    if any(isinstance(value, int) for value in found):
        raise ValueError("a number, where bytes belong")
    return found


def _fields(data: Any) -> Iterator[tuple[int, Any]]:
    """Fields of a message of protocol buffers: number, and value or bytes."""
    if isinstance(data, int):
        raise ValueError("a number, where a message belongs")
    view, at = memoryview(data), 0
    while at < len(view):
        tag, at = _varint(view, at)
        number, wire = tag >> 3, tag & 7
        if wire == 0:
            value, at = _varint(view, at)
            yield number, value
            continue
        length, at = _varint(view, at) if wire == 2 else ({1: 8, 5: 4}.get(wire, -1), at)
        if length < 0 or at + length > len(view):
            raise ValueError(f"a field of {length} bytes, where {len(view) - at} are left")
        yield number, view[at : at + length]
        at += length


def _varint(view: memoryview, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if at == len(view):
            raise ValueError("a number without an end")
        value |= (view[at] & 0x7F) << shift
        at += 1
        if view[at - 1] < 0x80:
            return value & 0xFFFFFFFFFFFFFFFF, at
    raise ValueError("a number of more than 64 bits")


def _varints(view: memoryview) -> Iterator[int]:
    at = 0
    while at < len(view):
        value, at = _varint(view, at)
        yield value
