"""What samples are made of: fields of bytes, text and arrays, and their bytes in a dataset."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import ArgumentError

Sample = dict[str, Any]
Name = str | bytes
Decode = str | tuple[str, int, int]

MODES = {"L": 1, "RGB": 3, "RGBA": 4}
"""Of pictures, and their channels."""


@dataclass(frozen=True)
class Field:
    """What a field of every sample is.

    Attributes
    ----------
    kind : {"bytes", "text", "array"}
    dtype : numpy.dtype, optional
        Of an array; a number is an array without axes.
    shape : tuple of int or None
        Of an array; axes that are `None` vary from sample to sample.
    """

    kind: str
    dtype: np.dtype[Any] | None = None
    shape: tuple[int | None, ...] = ()

    @staticmethod
    def of(value: Any) -> Field:
        """The field that a value would be; arrays have the shape of this one in every sample."""
        if isinstance(value, bytes | bytearray | memoryview):
            return Field("bytes")
        if isinstance(value, str):
            return Field("text")
        array = _array(value)
        return Field("array", array.dtype.newbyteorder("<"), array.shape)

    @staticmethod
    def parse(told: Any) -> Field:
        """`"bytes"`, `"text"`, a dtype, or a dtype and a shape."""
        if isinstance(told, Field):
            return told
        if told in ("bytes", "text"):
            return Field(told)
        dtype, shape = told if isinstance(told, tuple) else (told, ())
        try:
            return Field("array", np.dtype(dtype).newbyteorder("<"), tuple(shape))
        except TypeError as error:
            raise ArgumentError(f"a field is bytes, text, a dtype, or a dtype and a shape, and not {told!r}") from error

    @property
    def varies(self) -> bool:
        """Whether it has another length in other samples."""
        return self.kind != "array" or None in self.shape

    def _native(self, name: str) -> tuple[str, str, str, list[int | None]]:
        return name, self.kind, "" if self.dtype is None else self.dtype.str, list(self.shape)

    def _encode(self, name: str, value: Any) -> Any:
        """Bytes, or an array of them."""
        if self.kind == "bytes":
            return value
        if self.kind == "text":
            if not isinstance(value, str):
                raise ArgumentError(f"field {name!r} is text, not {type(value).__name__}")
            return value.encode()
        array, dtype = _array(value), np.dtype(self.dtype)
        fits = [want in (None, have) for want, have in zip(self.shape, array.shape, strict=False)]
        if len(array.shape) != len(self.shape) or not all(fits):
            hint = f"; fields={{{name!r}: ({dtype.str!r}, {(None,) * array.ndim})}} lets it vary"
            raise ArgumentError(f"field {name!r} has shape {array.shape}, where every sample has {self.shape}{hint}")
        if not np.can_cast(array.dtype, dtype, "same_kind"):
            raise ArgumentError(f"field {name!r} has dtype {array.dtype}, where every sample has {dtype}")
        data = np.ascontiguousarray(array, dtype).reshape(-1).view(np.uint8)
        varying = [have for want, have in zip(self.shape, array.shape, strict=True) if want is None]
        return np.concatenate([np.array(varying, "<u8").view(np.uint8), data]) if varying else data

    def _column(self, found: Any, count: int) -> Any:
        """Values of many samples, of what the native half has found."""
        if self.kind != "array":
            return found
        if not self.varies:
            return found.view(self.dtype).reshape(count, *self.shape)
        return [self._decode(data) for data in found]

    def _decode(self, data: bytes) -> npt.NDArray[Any]:
        varying = np.frombuffer(data, "<u8", self.shape.count(None))
        extents = iter(varying.tolist())
        shape = [next(extents) if extent is None else extent for extent in self.shape]
        return np.frombuffer(data, self.dtype, offset=varying.nbytes).reshape(shape).copy()


def _array(value: Any) -> npt.NDArray[Any]:
    array = value.numpy() if hasattr(value, "numpy") and not isinstance(value, np.ndarray) else np.asarray(value)
    if array.dtype.kind not in "biufc":
        raise ArgumentError(f"a field must be bytes, text, a number or an array of numbers, not {type(value).__name__}")
    return array


def fields_of(told: Sequence[tuple[str, str, str, list[int | None]]]) -> dict[str, Field]:
    return {name: Field(kind, np.dtype(dtype) if dtype else None, tuple(shape)) for name, kind, dtype, shape in told}


def picture(name: str, told: Decode) -> tuple[int, tuple[int, int] | None]:
    """Channels, and height and width where they are known."""
    mode, *size = (told,) if isinstance(told, str) else told
    if mode not in MODES or len(size) not in (0, 2):
        raise ArgumentError(
            f"decode[{name!r}] must be one of {', '.join(MODES)}, or one of them with height and width, not {told!r}"
        )
    return MODES[mode], (operator.index(size[0]), operator.index(size[1])) if size else None


def name_bytes(name: Name) -> bytes:
    return name.encode(errors="surrogateescape") if isinstance(name, str) else name


def name_text(name: bytes) -> str:
    return name.decode(errors="surrogateescape")
