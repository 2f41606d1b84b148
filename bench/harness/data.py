"""The files that legs read: made once in blocks of a few MiB, the same bytes for the same description."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import numpy as np
import numpy.typing as npt

from harness.model import MIB, ROOT, DataFile

Floats = npt.NDArray[np.float32]
TYPES = {"float32": "<f4", "uint8": "|u1"}

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
        out.write(npy_header(TYPES[file.dtype], (file.rows, file.cols), file.header_bytes))
        for block in blocks(file):
            out.write(block.astype(file.dtype, copy=False).data)
        settle(out)
    partial.rename(path)
    for old in path.parent.glob(f"{path.name}.*.made"):
        old.unlink()
    stamp(file, path).touch()


def stamp(file: DataFile, path: Path) -> Path:
    """An empty file beside the data that says which data it is."""
    return path.with_name(f"{path.name}.{file.rows}x{file.cols}.{file.dtype}.{file.kind.replace(' ', '-')}.{file.seed}.made")


def npy_header(kind: str, shape: tuple[int, ...], length_bytes: int) -> bytes:
    """A `.npy` header, version 1, padded with spaces to the wanted length."""
    words = str({"descr": kind, "fortran_order": False, "shape": shape}).encode()
    room = length_bytes - 10
    return b"\x93NUMPY\x01\x00" + room.to_bytes(2, "little") + words.ljust(room - 1) + b"\n"


def blocks(file: DataFile) -> Iterator[Floats]:
    random = np.random.default_rng(file.seed)
    model = KINDS[file.kind](file.cols, random)
    rows_at_once = max(1, BLOCK_BYTES // (4 * file.cols))
    for start in range(0, file.rows, rows_at_once):
        yield model.rows(min(rows_at_once, file.rows - start))


class Uniform:
    def __init__(self, cols: int, random: np.random.Generator) -> None:
        self.cols, self.random = cols, random

    def rows(self, rows: int) -> Floats:
        return self.random.random((rows, self.cols), dtype=np.float32) - np.float32(0.5)


class Numbered(Uniform):
    """The first two columns tell the number of the row, its thousands of 4096 and what is left: both are exact in float32."""

    def __init__(self, cols: int, random: np.random.Generator) -> None:
        super().__init__(cols, random)
        self.next = 0

    def rows(self, rows: int) -> Floats:
        found = super().rows(rows)
        found[:, 0], found[:, 1] = np.divmod(np.arange(self.next, self.next + rows), 4096)
        self.next += rows
        return found


class Normal(Uniform):
    """Rows without any structure: clusters have nothing but noise to part them."""

    def rows(self, rows: int) -> Floats:
        return self.random.standard_normal((rows, self.cols), dtype=np.float32)


class Clouds(Normal):
    """Twice as many clouds as there are to be clusters, which overlap: their middles are half as far spread as their rows."""

    def __init__(self, cols: int, random: np.random.Generator) -> None:
        super().__init__(cols, random)
        self.middles = np.float32(0.5) * random.standard_normal((200, cols), dtype=np.float32)

    def rows(self, rows: int) -> Floats:
        return self.middles[self.random.integers(len(self.middles), size=rows)] + super().rows(rows)


class Clusters(Normal):
    """A thousand clusters, whose middles are twice as far spread as their rows: in each column they overlap."""

    def __init__(self, cols: int, random: np.random.Generator) -> None:
        super().__init__(cols, random)
        self.middles = np.float32(2) * random.standard_normal((1000, cols), dtype=np.float32)

    def rows(self, rows: int) -> Floats:
        return self.middles[self.random.integers(len(self.middles), size=rows)] + super().rows(rows)


class Images(Normal):
    """Principal components of handwritten digits, drawn again and again with noise of three tenths of their deviation."""

    def __init__(self, cols: int, random: np.random.Generator) -> None:
        super().__init__(cols, random)
        from outcore.demo.images import ImageSet

        blocks = ImageSet(ROOT / "data" / "mnist").blocks()
        digits = np.concatenate([block.reshape(len(block), -1).astype(np.float32) for block in blocks])
        digits -= digits.mean(axis=0)
        axes = np.linalg.eigh(digits.T @ digits)[1][:, ::-1][:, :cols]
        self.features = digits @ axes
        self.features /= self.features.std(axis=0).mean()
        self.deviation = np.float32(0.3) * self.features.std(axis=0)

    def rows(self, rows: int) -> Floats:
        drawn = self.features[self.random.integers(len(self.features), size=rows)]
        return drawn + self.deviation * super().rows(rows)


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


class Patches:
    """Whole numbers from 0 to 255, as of parts of photographs, 8 x 8 pixels of three colours: near pixels are alike, and so are
    the colours of a pixel.
    """

    def __init__(self, cols: int, random: np.random.Generator) -> None:
        self.random = random
        pixel, colour = np.divmod(np.arange(cols), 3)
        y, x = np.divmod(pixel, 8)
        away = np.hypot(y[:, None] - y, x[:, None] - x)
        alike = np.exp(-away / 6) * np.where(colour[:, None] == colour, 1.0, 0.9)
        values, vectors = np.linalg.eigh(alike)
        best = slice(-1, -min(RANK, cols) - 1, -1)
        self.loadings = (50 * np.sqrt(np.maximum(values[best], 0)) * vectors[:, best]).T.astype(np.float32)

    def rows(self, rows: int) -> Floats:
        found = self.random.standard_normal((rows, len(self.loadings)), dtype=np.float32) @ self.loadings
        noise = self.random.random(found.shape, dtype=np.float32)
        found += np.float32(10) * noise + np.float32(123)
        return np.clip(np.rint(found, out=found), 0, 255, out=found)


KINDS: dict[str, Callable[[int, np.random.Generator], Uniform | LowRank | Patches]] = {
    "uniform": Uniform,
    "numbered": Numbered,
    "low rank": LowRank,
    "normal": Normal,
    "clouds": Clouds,
    "clusters": Clusters,
    "images": Images,
    "patches": Patches,
}


@contextmanager
def whole_folder(path: Path) -> Iterator[Path]:
    """A new folder to write into, which gets the name `path` when all of it is written."""
    partial = path.with_name(f"{path.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    yield partial
    partial.rename(path)


def settle(out: IO[bytes]) -> None:
    """On the device, and out of the kernel's cache."""
    out.flush()
    os.fsync(out.fileno())
    forget(out.name)


def forget(path: str | os.PathLike[str]) -> None:
    if hasattr(os, "posix_fadvise"):
        with open(path, "rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
