"""The files of the tables that a benchmark looks up: made once, by what their names say.

A table is a `.npy` file of float32 whose header has 4096 bytes, so that no row of up to a page that is a power of two lies on two
pages. Values are uniform within 1 / sqrt(rows), as in RecSSD's artifact.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from .._files import refusal
from .._settings import PathLike
from .models import FLOAT_BYTES, ModelSpec

__all__ = ["HEADER_BYTES", "forgotten", "table_files"]

HEADER_BYTES = 4096
BLOCK_FLOATS = 1 << 22


def __dir__() -> list[str]:
    return sorted(__all__)


def table_files(spec: ModelSpec, folder: PathLike, *, seed: int = 0) -> list[str]:
    """The paths of the tables of a model in a folder. Those that are not there yet are written.

    Files depend on number and shape of a table and on the seed only, so models share them.

    Raises
    ------
    MissingError, DeniedError, FileError
    """
    paths = []
    for number, table in enumerate(spec.tables):
        path = os.path.join(os.fsdecode(folder), f"table-{number}-{table.rows}x{spec.dim}-{seed}.npy")
        with _told(path):
            if not os.path.exists(path):
                _write(path, table.rows, spec.dim, [seed, number])
        paths.append(path)
    return paths


def forgotten(paths: list[str]) -> None:
    """Takes files out of the page cache, as far as the system does what it is asked."""
    for path in paths:
        with _told(path), open(path, "rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _write(path: str, rows: int, dim: int, seed: list[int]) -> None:
    """Under another name first: a file with this name is whole."""
    random, reach = np.random.default_rng(seed), np.float32(1 / np.sqrt(rows))
    unfinished = f"{path}.{os.getpid()}"
    try:
        with open(unfinished, "wb") as file:
            file.write(_header(rows, dim))
            for begin in range(0, rows * dim, BLOCK_FLOATS):
                values = random.random(min(BLOCK_FLOATS, rows * dim - begin), np.float32)
                file.write(((2 * values - 1) * reach).tobytes())
            file.flush()
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, HEADER_BYTES + FLOAT_BYTES * rows * dim, os.POSIX_FADV_DONTNEED)
        os.replace(unfinished, path)
    except BaseException:
        with _told(path):
            os.unlink(unfinished)
        raise


def _header(rows: int, dim: int) -> bytes:
    """A header of version 1.0: magic string, length of the rest, the rest as a line of text."""
    usual = io.BytesIO()
    np.lib.format.write_array_header_1_0(usual, {"descr": "<f4", "fortran_order": False, "shape": (rows, dim)})
    text = usual.getvalue()[10:].rstrip()
    return usual.getvalue()[:8] + (HEADER_BYTES - 10).to_bytes(2, "little") + text.ljust(HEADER_BYTES - 11) + b"\n"


@contextmanager
def _told(path: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise refusal(error, path) from error
