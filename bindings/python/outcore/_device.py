"""Measures a folder's device through the engine, for `outcore bench-device`."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

from . import _native
from ._session import Session
from ._units import parse_bytes, show_bytes
from .errors import ArgumentError

LEAST_BYTES = 1 << 20
"""Less says nothing about a device."""

MOST_SECONDS = 86_400


def measure(session: Session, folder: str, size: int | str, seconds: float) -> dict[str, Any]:
    """Writes a file of `size` bytes in `folder`, reads it in order and at random places, removes it.

    Returns
    -------
    dict with `write_gb_s` and `read_gb_s` (10^9 bytes a second), `random_iops` (reads of 4 KiB a second), `driver`, `fallback`.
    """
    length = parse_bytes(size, "size") // 4096 * 4096
    if length < LEAST_BYTES:
        raise ArgumentError(f"size must be at least {show_bytes(LEAST_BYTES)}, not {size!r}")
    if not 0 < seconds <= MOST_SECONDS:
        raise ArgumentError(f"seconds must be between 0 and {MOST_SECONDS}, not {seconds}")
    inner, facts = session._inner, session.info()
    handle, name = tempfile.mkstemp(prefix=".outcore-bench-", dir=folder)
    os.close(handle)
    try:
        write_s = _native.device_write(inner, name, length)
        read_s = _native.device_read(inner, name)
        iops = _native.device_random(inner, name, seconds)
    finally:
        Path(name).unlink(missing_ok=True)
    return {
        "folder": folder,
        "bytes": length,
        "write_gb_s": length / write_s / 1e9,
        "read_gb_s": length / read_s / 1e9,
        "random_iops": iops,
        "driver": facts["driver"],
        "fallback": facts["fallback"],
    }
