"""Formatted stores as wholes: made, listed, checked and mended, for the command line."""

from __future__ import annotations

import os
import stat
from typing import Any

from . import _native
from ._run import Bar
from ._session import full_path
from ._units import parse_bytes
from .errors import ArgumentError, ExistsError


def is_store(path: str) -> bool:
    """Whether a file or block device was formatted. What is neither is not opened."""
    try:
        mode = os.stat(path).st_mode
    except OSError:
        return False
    return (stat.S_ISREG(mode) or stat.S_ISBLK(mode)) and _native.store_is_formatted(full_path(path))


def format_store(path: str, size: int | str | None, *, overwrite: bool) -> None:
    """A new file of `size`; what is there already, a file or block device, loses everything, and only where that is asked for.

    Raises
    ------
    ExistsError, LockedError while a process has it open or it is mounted, NoSpaceError.
    """
    if not os.path.lexists(path):
        if size is None:
            raise ArgumentError(f"{path}: there is no such file; say how long it is to be")
        _native.store_format(full_path(path), parse_bytes(size, "size"))
        return
    if not overwrite:
        raise ExistsError(f"{path}: is there already, and would lose everything that is on it; --overwrite", object=path)
    if size is not None:
        raise ArgumentError(f"{path}: is there already, and stays as long as it is; no size")
    _native.store_format(full_path(path), None)


def list_store(path: str) -> dict[str, Any]:
    """What a store holds: `objects` with name, kind, bytes, state and the time of their last change, and `free_bytes`."""
    objects, free = _native.store_list(full_path(path))
    return {"objects": objects, "free_bytes": free}


def check_store(path: str, progress: bool | None = None) -> dict[str, Any]:
    """Reads every block of every object and stream: `objects`, `bytes`, and `faults` with name and reason."""
    with Bar("checking", progress) as bar:
        objects, size, faults = _native.store_check(full_path(path), lambda done, whole: bar.update(lambda: done / max(1, whole)))
    return {"objects": objects, "bytes": size, "faults": [{"name": name, "reason": reason} for name, reason in faults]}


def repair_store(path: str, progress: bool | None = None) -> list[dict[str, str]]:
    """Mends what can be: superblocks and catalog are written anew from what is left of them, and objects with damaged bytes are
    marked, so that they are not taken for whole. What was wrong, by name; no name where it is the catalog.
    """
    with Bar("repairing", progress) as bar:
        faults = _native.store_repair(full_path(path), lambda done, whole: bar.update(lambda: done / max(1, whole)))
    return [{"name": name, "reason": reason} for name, reason in faults]
