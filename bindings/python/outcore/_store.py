"""Formatting, listing, checking and repairing of stores, for the command line."""

from __future__ import annotations

import os
import stat
from typing import Any

from . import _native
from ._run import Bar
from ._settings import full_path
from ._units import parse_bytes
from .errors import ArgumentError, ExistsError


def is_store(path: str) -> bool:
    """Whether a file or block device was formatted. Other kinds of files are not opened."""
    try:
        mode = os.stat(path).st_mode
    except OSError:
        return False
    return (stat.S_ISREG(mode) or stat.S_ISBLK(mode)) and _native.store_is_formatted(full_path(path))


def format_store(path: str, size: int | str | None, *, overwrite: bool) -> None:
    """Formats a new file of `size`; or, only if requested, an existing file or block device, whose content is lost.

    Raises
    ------
    ExistsError, LockedError while a process has it open or it is mounted, NoSpaceError.
    """
    if not os.path.lexists(path):
        if size is None:
            raise ArgumentError(f"{path}: no such file; give its size to create it")
        _native.store_format(full_path(path), parse_bytes(size, "size"))
        return
    if not overwrite:
        raise ExistsError(f"{path}: already exists, and its content would be lost; --overwrite formats it", object=path)
    if size is not None:
        raise ArgumentError(f"{path}: already exists and keeps its length; give no size")
    _native.store_format(full_path(path), None)


def list_store(path: str) -> dict[str, Any]:
    """The content of a store: `objects` with name, kind, bytes, state and the time of their last change, and `free_bytes`."""
    objects, free = _native.store_list(full_path(path))
    return {"objects": objects, "free_bytes": free}


def check_store(path: str, progress: bool | None = None) -> dict[str, Any]:
    """Reads every block of every object and stream: `objects`, `bytes`, and `faults` with name and reason."""
    with Bar("checking", progress) as bar:
        objects, size, faults = _native.store_check(full_path(path), lambda done, whole: bar.update(lambda: done / max(1, whole)))
    return {"objects": objects, "bytes": size, "faults": [{"name": name, "reason": reason} for name, reason in faults]}


def repair_store(path: str, progress: bool | None = None) -> list[dict[str, str]]:
    """Repairs a store as far as possible: superblocks and catalog are rewritten from their remains, and damaged objects are
    marked. Returns the faults by name, without a name for those of the catalog.
    """
    with Bar("repairing", progress) as bar:
        faults = _native.store_repair(full_path(path), lambda done, whole: bar.update(lambda: done / max(1, whole)))
    return [{"name": name, "reason": reason} for name, reason in faults]
