"""Types of elements: what arrays on SSD hold, and what is computed with."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from .errors import DTypeError

__all__ = ["DECODED", "computed", "dtype_of", "float_name", "is_decoded", "type_name"]

NUMPY_KINDS = "biufc"
LONGDOUBLES = {"longdouble", "clongdouble", "float96", "float128", "complex192", "complex256"}
ML_DTYPES = {
    "bfloat16",
    "float8_e3m4",
    "float8_e4m3",
    "float8_e4m3b11fnuz",
    "float8_e4m3fn",
    "float8_e4m3fnuz",
    "float8_e5m2",
    "float8_e5m2fnuz",
    "float8_e8m0fnu",
}
"""What NumPy does not have, and the package of this name does."""
DECODED = ("bool", "int8", "uint8", "int16", "uint16", "float16", "bfloat16")
"""What operations make float32 of, on the way."""


def dtype_of(name: str) -> np.dtype[Any]:
    """The NumPy dtype of a type of elements.

    Raises
    ------
    DTypeError
        For bfloat16 and float8 where `ml_dtypes` is not installed.
    """
    if name not in ML_DTYPES:
        return np.dtype(name)
    try:
        import ml_dtypes
    except ImportError:
        raise DTypeError(f"{name} needs the package ml_dtypes: pip install ml_dtypes") from None
    return np.dtype(getattr(ml_dtypes, name))


def type_name(dtype: npt.DTypeLike | None) -> str:
    """The name of a type that arrays on SSD hold: integers, floats, bool, complex; bfloat16 and float8.

    Raises
    ------
    DTypeError
        For every other type, also for those with the bytes in the other order.
    """
    if isinstance(dtype, str) and dtype in ML_DTYPES:
        return dtype_of(dtype).name
    try:
        found = np.dtype(dtype)
    except TypeError:
        raise DTypeError(f"{dtype!r} is not a dtype; use one such as float32 or uint8") from None
    if not found.isnative:
        raise DTypeError(f"dtype {found} is big-endian; convert it first, as with x.astype(x.dtype.newbyteorder('='))")
    if found.name in LONGDOUBLES:
        raise DTypeError(
            f"dtype {found} (longdouble) has bytes that depend on the machine; convert it first, as with x.astype('float64')"
        )
    if found.kind not in NUMPY_KINDS and found.name not in ML_DTYPES:
        raise DTypeError(f"dtype {found} is not supported: numbers are, as with x.astype('float32')")
    return str(found.name)


def float_name(dtype: npt.DTypeLike | None) -> str:
    """`"float32"` or `"float64"`.

    Raises
    ------
    DTypeError
        For every other type.
    """
    name = type_name(dtype)
    if name not in ("float32", "float64"):
        wide = name in ("int32", "uint32", "int64", "uint64")
        advice = (
            "take x.real or x.imag" if "complex" in name else f"convert it first, as with x.astype('float{64 if wide else 32}')"
        )
        raise DTypeError(f"dtype {name} is neither float32 nor float64; {advice}")
    return name


def computed(x: Any) -> np.dtype[Any]:
    """The type that operations compute in with `x`: float32 for an array of fewer bits.

    Raises
    ------
    DTypeError
        For an array on SSD of a type that operations do not take.
    """
    if hasattr(type(x), "_computed"):
        found: np.dtype[Any] = x._computed
        return found
    return np.dtype(np.float32 if is_decoded(x.dtype) else x.dtype)


def is_decoded(dtype: np.dtype[Any]) -> bool:
    """Whether operations make float32 of such elements."""
    return dtype.name in DECODED and dtype.isnative
