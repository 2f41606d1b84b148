"""DLPack of elements that NumPy has no type of its own for: bfloat16 and float8.

NumPy's capsules are those of unsigned integers of the same size, with the code of the type exchanged. The consumer of
a capsule owns it, and the description in it.

    DLTensor: data, 8 bytes | device, 8 | ndim, 4 | code, 1 | bits, 1 | lanes, 2 | ...
    "dltensor": a DLTensor | ...        "dltensor_versioned": 32 bytes | a DLTensor | ...
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import numpy.typing as npt

from ._dtypes import dtype_of

__all__ = ["exported", "imported"]

CODES = {
    "bfloat16": 4,
    "float8_e3m4": 7,
    "float8_e4m3": 8,
    "float8_e4m3b11fnuz": 9,
    "float8_e4m3fn": 10,
    "float8_e4m3fnuz": 11,
    "float8_e5m2": 12,
    "float8_e5m2fnuz": 13,
    "float8_e8m0fnu": 14,
}
NAMES = {code: name for name, code in CODES.items()}
UNSIGNED = 1
CODE_AT = {b"dltensor": 20, b"dltensor_versioned": 52}


def exported(values: npt.NDArray[Any], **options: Any) -> Any:
    """The capsule of an array in memory."""
    code = CODES.get(values.dtype.name)
    if code is None:
        return values.__dlpack__(**options)
    capsule = values.view(f"u{values.itemsize}").__dlpack__(**options)
    _code_of(capsule).value = code
    return capsule


def imported(value: Any) -> npt.NDArray[Any]:
    """The array of what has DLPack."""
    given = _Integers(value)
    found = np.from_dlpack(given)
    return found if given.name is None else found.view(dtype_of(given.name))


class _Integers:
    """What has DLPack, with types that NumPy does not have as integers."""

    def __init__(self, value: Any) -> None:
        self._value, self.name = value, None

    name: str | None

    def __dlpack_device__(self) -> Any:
        return self._value.__dlpack_device__()

    def __dlpack__(self, **options: Any) -> Any:
        capsule = self._value.__dlpack__(**options)
        code = _code_of(capsule)
        self.name = NAMES.get(code.value)
        if self.name is not None:
            code.value = UNSIGNED
        return capsule


def _code_of(capsule: Any) -> ctypes.c_uint8:
    name_of, address_of = ctypes.pythonapi.PyCapsule_GetName, ctypes.pythonapi.PyCapsule_GetPointer
    name_of.restype, name_of.argtypes = ctypes.c_char_p, [ctypes.py_object]
    address_of.restype, address_of.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    name = name_of(capsule)
    return ctypes.c_uint8.from_address(address_of(capsule, name) + CODE_AT[name])
