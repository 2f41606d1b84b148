"""Arguments of sessions and files, checked."""

from __future__ import annotations

import gc
import operator
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypedDict

from . import _native
from ._units import parse_bytes
from .errors import ArgumentError, OverBudgetError

__all__ = ["Driver", "Info", "Mode", "Order", "PathLike", "Settings", "full_path", "settings_of", "shape_of", "whole_number"]

PathLike = str | bytes | os.PathLike[str] | os.PathLike[bytes]
Order = Literal["C", "F"]
Driver = Literal["auto", "io_uring", "threads"]
Mode = Literal["x", "w"]
"""A new file, or one that may replace another."""

MOST_THREADS = 1024

_LIBRARIES = {
    "mkl": ("libmkl_rt.so.2", "libmkl_rt.so.*", "libmkl_rt.so"),
    "openblas": ("libopenblas.so.0", "libopenblas*.so*"),
    "blis": ("libblis.so.4", "libblis.so*"),
}


class Info(TypedDict):
    """The settings of a session."""

    version: str
    memory_bytes: int
    threads: int
    driver: str
    queue_depth: int
    registered_bytes: int
    fallback: str | None
    blas: str
    blas_version: str
    scratch: Path


@dataclass(frozen=True)
class Settings:
    """Arguments of a session, in bytes; `None` and 0 for the library's choice."""

    memory_bytes: int | None = None
    scratch: str | None = None
    threads: int = 0
    driver: Driver = "auto"
    blas: str | None = None
    allow_tmpfs_scratch: bool = False

    def native(self) -> _native.Session:
        blas = _find_blas(self.blas)
        make = (self.memory_bytes, self.scratch, self.allow_tmpfs_scratch, self.threads, self.driver, blas)
        try:
            return _native.Session(*make)
        except OverBudgetError:
            # A session that only a cycle of references keeps, such as that of an exception, has its share still.
            gc.collect()
            return _native.Session(*make)


def settings_of(
    memory: int | str | None,
    scratch: PathLike | None,
    threads: int | None,
    driver: Driver,
    blas: PathLike | None,
    allow_tmpfs_scratch: bool,
) -> Settings:
    """The arguments of `Session`, checked."""
    whole = isinstance(threads, int) and not isinstance(threads, bool)
    if threads is not None and not (whole and 1 <= threads <= MOST_THREADS):
        raise ArgumentError(f"threads must be an integer from 1 to {MOST_THREADS}, or None for one a core, not {threads!r}")
    return Settings(
        memory_bytes=None if memory is None else parse_bytes(memory),
        scratch=None if scratch is None else full_path(scratch),
        threads=threads or 0,
        driver=driver,
        blas=None if blas is None else os.fsdecode(blas),
        allow_tmpfs_scratch=allow_tmpfs_scratch,
    )


def shape_of(shape: int | Sequence[int]) -> list[int]:
    """One or more whole numbers, none negative."""
    try:
        numbers = [operator.index(n) for n in (shape if isinstance(shape, Sequence) else (shape,))]
    except TypeError:
        raise ArgumentError(f"shape must be one or more integers, not {shape!r}") from None
    if not numbers or any(n < 0 or n >= 1 << 63 for n in numbers):
        raise ArgumentError(f"shape must be one or more non-negative integers, not {shape!r}")
    return numbers


def full_path(path: PathLike) -> str:
    """Absolute, as text; bytes are what the system has for it (`os.fsencode`)."""
    return os.path.abspath(os.fsdecode(path))


def whole_number(value: int, name: str, unit: str) -> int:
    try:
        found = operator.index(value)
    except TypeError:
        found = -1
    if not 0 <= found < 1 << 63:
        raise ArgumentError(f"{name} must be a number of {unit}, not {value!r}")
    return found


def _find_blas(name: str | None) -> str | None:
    """A library by its short name: that of this Python environment first, else what the system's loader finds."""
    if name is None or name not in _LIBRARIES:
        return name
    for folder in (Path(sys.prefix, "lib"), Path(sys.prefix, "lib64")):
        for pattern in _LIBRARIES[name]:
            found = sorted(folder.glob(pattern))
            if found:
                return str(found[0])
    return _LIBRARIES[name][0]
