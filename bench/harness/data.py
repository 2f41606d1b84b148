"""The files that legs read: made once in blocks of a few MiB, the same bytes for the same description."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import numpy as np
import numpy.typing as npt

from harness.model import MIB, DataFile

Floats = npt.NDArray[np.float32]

BLOCK_BYTES = 32 * MIB
RANK = 100


def make(file: DataFile, root: Path) -> None:
    """Write `file` unless it lies there whole already (it is renamed only when whole)."""
    path = root / file.path
    if path.exists() and path.stat().st_size == file.nbytes and stamp(file, path).exists():
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    with open(partial, "wb") as out:
        out.write(npy_header("<f4", (file.rows, file.cols), file.header_bytes))
        for block in blocks(file):
            out.write(block.data)
        settle(out)
    partial.rename(path)
    for old in path.parent.glob(f"{path.name}.*.made"):
        old.unlink()
    stamp(file, path).touch()


def stamp(file: DataFile, path: Path) -> Path:
    """An empty file beside the data that says which data it is."""
    return path.with_name(f"{path.name}.{file.rows}x{file.cols}.{file.kind.replace(' ', '-')}.{file.seed}.made")


def npy_header(kind: str, shape: tuple[int, ...], length_bytes: int) -> bytes:
    """A `.npy` header, version 1, padded with spaces to the wanted length."""
    words = str({"descr": kind, "fortran_order": False, "shape": shape}).encode()
    room = length_bytes - 10
    return b"\x93NUMPY\x01\x00" + room.to_bytes(2, "little") + words.ljust(room - 1) + b"\n"


def blocks(file: DataFile) -> Iterator[Floats]:
    random = np.random.default_rng(file.seed)
    model = LowRank(file.cols, random) if file.kind == "low rank" else None
    rows_at_once = max(1, BLOCK_BYTES // (4 * file.cols))
    for start in range(0, file.rows, rows_at_once):
        rows = min(rows_at_once, file.rows - start)
        yield model.rows(rows) if model else random.random((rows, file.cols), dtype=np.float32) - np.float32(0.5)


class LowRank:
    """Rows = mean + factors of falling strength + noise: data whose leading components are worth finding."""

    def __init__(self, cols: int, random: np.random.Generator) -> None:
        self.random = random
        self.rank = min(RANK, cols)
        strength = 4.0 / np.arange(1, self.rank + 1) ** 0.5
        basis = np.linalg.qr(random.standard_normal((cols, self.rank)))[0]
        self.loadings = (basis * strength).T.astype(np.float32)
        self.mean = random.standard_normal(cols, dtype=np.float32)

    def rows(self, rows: int) -> Floats:
        factors = self.random.standard_normal((rows, self.rank), dtype=np.float32)
        # Uniform noise of standard deviation 0.05: drawn four times as fast as normal noise, and as good here.
        noise = self.random.random((rows, len(self.mean)), dtype=np.float32)
        noise -= np.float32(0.5)
        noise *= np.float32(0.05 * 12**0.5)
        noise += factors @ self.loadings
        noise += self.mean
        return noise


def settle(out: IO[bytes]) -> None:
    """On the device, and out of the kernel's cache."""
    out.flush()
    os.fsync(out.fileno())
    forget(out.name)


def forget(path: str | os.PathLike[str]) -> None:
    if hasattr(os, "posix_fadvise"):
        with open(path, "rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
