"""Fields of samples: bytes, text and arrays, and their encoding in a dataset."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from .._files import text_of
from ..errors import ArgumentError

Sample = dict[str, Any]
Name = str | bytes
Decode = str | tuple[str, int, int]

MODES = {"L": 1, "RGB": 3, "RGBA": 4}
"""Of pictures, and their channels."""


@dataclass(frozen=True)
class Field:
    """The type of a field, the same in every sample.

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
    def of(value: Any, name: str | None = None) -> Field:
        """The field of a value; arrays have the shape of this value in every sample. Errors name the field."""
        if isinstance(value, bytes | bytearray | memoryview):
            return Field("bytes")
        if isinstance(value, str):
            return Field("text")
        array = _array(value, name)
        return Field("array", array.dtype.newbyteorder("<"), array.shape)

    @staticmethod
    def parse(told: Any) -> Field:
        """`"bytes"`, `"text"`, a dtype, or a dtype and a shape."""
        if isinstance(told, Field):
            return told
        if told in ("bytes", "text"):
            return Field(told)
        try:
            dtype, shape = told if isinstance(told, tuple) else (told, ())
            extents = tuple(None if extent is None else operator.index(extent) for extent in shape)
            if any(extent is not None and extent < 0 for extent in extents):
                raise ValueError
            return Field("array", np.dtype(dtype).newbyteorder("<"), extents)
        except (TypeError, ValueError) as error:
            raise ArgumentError(f"a field is bytes, text, a dtype, or a dtype and a shape, and not {told!r}") from error

    @property
    def varies(self) -> bool:
        """Whether its length varies between samples."""
        return self.kind != "array" or None in self.shape

    def _native(self, name: str) -> tuple[str, str, str, list[int | None]]:
        return name, self.kind, "" if self.dtype is None else self.dtype.str, list(self.shape)

    def _encode(self, name: str, value: Any) -> Any:
        """Bytes, or an array of them."""
        if self.kind != "array" and isinstance(value, str) != (self.kind == "text"):
            raise ArgumentError(f"field {name!r} is {self.kind}, not {type(value).__name__}")
        if self.kind == "bytes":
            try:
                memoryview(value)
            except TypeError:
                raise ArgumentError(f"field {name!r} is bytes, not {type(value).__name__}") from None
            return value
        if self.kind == "text":
            try:
                return value.encode()
            except UnicodeEncodeError as error:
                raise ArgumentError(f"field {name!r} is text, and {value!r} is none: {error}") from error
        array, dtype = _array(value, name), np.dtype(self.dtype)
        fits = [want in (None, have) for want, have in zip(self.shape, array.shape, strict=False)]
        if len(array.shape) != len(self.shape) or not all(fits):
            hint = f"; fields={{{name!r}: ({dtype.str!r}, {(None,) * array.ndim})}} lets it vary"
            raise ArgumentError(f"field {name!r} has shape {array.shape}, where every sample has {self.shape}{hint}")
        are_whole = array.dtype.kind in "iu" and dtype.kind in "iu"
        if not (are_whole or np.can_cast(array.dtype, dtype, "same_kind")):
            raise ArgumentError(f"field {name!r} has dtype {array.dtype}, where every sample has {dtype}")
        if are_whole and array.size and not np.can_cast(array.dtype, dtype):
            # NumPy would wrap them around.
            limits = np.iinfo(dtype)
            for value in (int(array.min()), int(array.max())):
                if not limits.min <= value <= limits.max:
                    raise ArgumentError(f"field {name!r} has {value}, which is out of the range of {dtype}")
        data = np.ascontiguousarray(array, dtype).reshape(-1).view(np.uint8)
        varying = [have for want, have in zip(self.shape, array.shape, strict=True) if want is None]
        return np.concatenate([np.array(varying, "<u8").view(np.uint8), data]) if varying else data

    def _column(self, found: Any, count: int) -> Any:
        """Values of many samples, from the buffers of the native half."""
        if self.kind != "array":
            return found
        if not self.varies:
            return found.view(self.dtype).reshape(count, *self.shape)
        data, ends = found
        return [self._decode(data[start:end]) for start, end in itertools.pairwise((0, *ends))]

    def _decode(self, data: npt.NDArray[np.uint8]) -> npt.NDArray[Any]:
        """A view of the memory of all, where numbers may lie there."""
        head = 8 * self.shape.count(None)
        extents = iter(data[:head].copy().view("<u8").tolist())
        shape = [next(extents) if extent is None else extent for extent in self.shape]
        numbers = data[head:]
        assert self.dtype is not None
        is_aligned = numbers.ctypes.data % self.dtype.alignment == 0
        return (numbers if is_aligned else numbers.copy()).view(self.dtype).reshape(shape)


def _array(value: Any, name: str | None) -> npt.NDArray[Any]:
    which = "a field" if name is None else f"field {name!r}"
    try:
        array = value.numpy() if hasattr(value, "numpy") and not isinstance(value, np.ndarray) else np.asarray(value)
    except (ValueError, TypeError, RuntimeError) as error:
        # Tensors that are elsewhere, that have gradients, or types that NumPy does not have.
        raise ArgumentError(f"{which} must be bytes, text, a number or an array of numbers: {text_of(error)}") from error
    if array.dtype.kind not in "biufc":
        kind = f"an array of {array.dtype}" if isinstance(value, np.ndarray | np.generic) else type(value).__name__
        raise ArgumentError(f"{which} must be bytes, text, a number or an array of numbers, not {kind}")
    if np.ma.is_masked(value):
        raise ArgumentError(f"{which} must have all its numbers, and this array has some that are masked")
    return array


def fields_of(told: Sequence[tuple[str, str, str, list[int | None]]]) -> dict[str, Field]:
    return {name: Field(kind, np.dtype(dtype) if dtype else None, tuple(shape)) for name, kind, dtype, shape in told}


def picture(name: str, told: Decode) -> tuple[int, tuple[int, int] | None]:
    """Channels, and height and width where they are known."""
    try:
        mode, *size = (told,) if isinstance(told, str) else told
        height, width = map(operator.index, size) if size else (0, 0)
        if mode not in MODES or not (0 <= height < 2**32 and 0 <= width < 2**32):
            raise ValueError
    except (TypeError, ValueError) as error:
        raise ArgumentError(
            f"decode[{name!r}] must be one of {', '.join(MODES)}, or one of them with height and width, not {told!r}"
        ) from error
    return MODES[mode], (height, width) if size else None


def name_bytes(name: Name) -> bytes:
    if isinstance(name, bytes):
        return name
    if not isinstance(name, str):
        raise ArgumentError(f"a name is text or bytes, not {type(name).__name__}")
    try:
        return name.encode(errors="surrogateescape")
    except UnicodeEncodeError as error:
        raise ArgumentError(f"{name!r} is no name: {error}") from error


def name_text(name: bytes) -> str:
    return name.decode(errors="surrogateescape")
