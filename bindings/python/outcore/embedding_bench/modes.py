"""Where the tables are while a model runs: each mode makes, of a model and a folder, what sums up rows of a batch.

memory      `torch.nn.EmbeddingBag` on tables that were read into memory
map         the same on a memory map, whose pages the kernel reads as they are touched
map-random  the same, and the kernel is told that accesses are random, so it reads no page but that
pages       RecSSD's baseline: for one row after the other, its page is read past the page cache, and waited for
outcore     this library's tables
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from .._files import refusal
from ..embedding import JaggedBatch, PendingLookUp, TableSet
from ..errors import UnsupportedError
from .models import FLOAT_BYTES, ModelSpec
from .networks import Bags, Lookup
from .tables import HEADER_BYTES, table_files

__all__ = [
    "MODES",
    "ModeFactory",
    "PageBags",
    "TableBags",
    "TorchBags",
    "in_memory",
    "mapped",
    "mapped_random",
    "outcore",
    "pages",
]

ModeFactory = Callable[[ModelSpec, str], Bags]
"""Called with a model and the folder of its tables. What it returns may have `prefetch(lookups)`, called with the look-ups of the
next batch before the network of this one runs; `facts()`, a dict that is added to the result, as of hit rates since the last
call; and `close()`."""

PAGE_BYTES = 4096


def __dir__() -> list[str]:
    return sorted(__all__)


class TorchBags:
    """`torch.nn.EmbeddingBag` for each table, on arrays in whatever memory they are."""

    def __init__(self, arrays: Sequence[np.ndarray[Any, Any]]) -> None:
        self.bags = [nn.EmbeddingBag.from_pretrained(torch.from_numpy(array), mode="sum") for array in arrays]

    def __call__(self, lookups: Sequence[Lookup]) -> list[Tensor]:
        return [bag(*lookup) for bag, lookup in zip(self.bags, lookups, strict=True)]


class PageBags:
    """Reads the page of each row, synchronously and one at a time, past the page cache, and adds the row up."""

    def __init__(self, paths: Sequence[str], dim: int) -> None:
        self.dim, self.row_bytes = dim, FLOAT_BYTES * dim
        # A row that is no power of two may go on in the next page, and one above a page always does.
        length = PAGE_BYTES * (1 + (self.row_bytes + PAGE_BYTES - 2) // PAGE_BYTES)
        self.memory = mmap.mmap(-1, length)
        self.floats = np.frombuffer(self.memory, np.float32)
        self.files: list[int] = []
        for path in paths:
            self.files.append(_opened(path))

    def __call__(self, lookups: Sequence[Lookup]) -> list[Tensor]:
        return [self._sums(file, *lookup) for file, lookup in zip(self.files, lookups, strict=True)]

    def _sums(self, file: int, ids: Tensor, offsets: Tensor) -> Tensor:
        sums = np.zeros((len(offsets), self.dim), np.float32)
        begins = [*offsets.tolist(), len(ids)]
        rows = ids.tolist()
        for bag, total in enumerate(sums):
            for row in rows[begins[bag] : begins[bag + 1]]:
                total += self._row(file, row)
        return torch.from_numpy(sums)

    def _row(self, file: int, row: int) -> np.ndarray[Any, np.dtype[np.float32]]:
        first, within = divmod(HEADER_BYTES + row * self.row_bytes, PAGE_BYTES)
        length = -(-(within + self.row_bytes) // PAGE_BYTES) * PAGE_BYTES
        os.preadv(file, [memoryview(self.memory)[:length]], first * PAGE_BYTES)
        begin = within // FLOAT_BYTES
        return self.floats[begin : begin + self.dim]

    def close(self) -> None:
        while self.files:
            os.close(self.files.pop())


def _opened(path: str) -> int:
    try:
        return os.open(path, os.O_RDONLY | os.O_DIRECT)
    except OSError as error:
        if os.path.exists(path):
            raise UnsupportedError(f"{path}: this file system has no reads past the page cache") from error
        raise refusal(error, path) from error


def in_memory(spec: ModelSpec, folder: str) -> Bags:
    return TorchBags([np.load(path) for path in table_files(spec, folder)])


def mapped(spec: ModelSpec, folder: str) -> Bags:
    return TorchBags(_maps(spec, folder))


def mapped_random(spec: ModelSpec, folder: str) -> Bags:
    maps = _maps(spec, folder)
    for array in maps:
        array._mmap.madvise(mmap.MADV_RANDOM)
    return TorchBags(maps)


def _maps(spec: ModelSpec, folder: str) -> list[Any]:
    # "c": torch takes writable memory only; what is written (nothing is) would stay in this process.
    return [np.load(path, mmap_mode="c") for path in table_files(spec, folder)]


def pages(spec: ModelSpec, folder: str) -> Bags:
    return PageBags(table_files(spec, folder), spec.dim)


class TableBags:
    """This library's tables, all of a model in one set: a call reads for all of them at once. Options are those of `TableSet`."""

    def __init__(self, paths: Sequence[str], *, cache: int | None = None, readers: int = 2) -> None:
        self.tables = TableSet(paths, cache=cache, readers=readers)
        self.ahead: tuple[Sequence[Lookup], PendingLookUp] | None = None
        self._told = (0, 0, 0)

    def submit(self, lookups: Sequence[Lookup]) -> PendingLookUp:
        """Looks a batch up while the caller computes."""
        return self.tables.submit(_batch(lookups))

    def prefetch(self, lookups: Sequence[Lookup]) -> None:
        """Looks the next batch up while the network of this one runs."""
        self.ahead = lookups, self.submit(lookups)

    def __call__(self, lookups: Sequence[Lookup]) -> list[Tensor]:
        ahead, self.ahead = self.ahead, None
        if ahead is not None and ahead[0] is lookups:
            return _tensors(ahead[1].result())
        return _tensors(self.tables.look_up(_batch(lookups)))

    def facts(self) -> dict[str, Any]:
        """Hit rate, and units that were read, since the last call."""
        known = self.tables.statistics.values()
        now = (sum(one.looked_up for one in known), sum(one.hits for one in known), sum(one.units_read for one in known))
        looked_up, hits, units_read = (count - before for count, before in zip(now, self._told, strict=True))
        self._told = now
        return {"hit_rate": hits / looked_up if looked_up else 0.0, "units_read": units_read}


def _tensors(arrays: Sequence[np.ndarray[Any, Any]]) -> list[Tensor]:
    return [torch.from_numpy(array) for array in arrays]


def _batch(lookups: Sequence[Lookup]) -> JaggedBatch:
    """Look-ups of as many samples each in all tables."""
    counts = torch.tensor([len(ids) for ids, _ in lookups])
    starts = torch.stack([offsets for _, offsets in lookups]) + (counts.cumsum(0) - counts)[:, None]
    offsets = torch.cat([starts.flatten(), counts.sum()[None]])
    return JaggedBatch(torch.cat([ids for ids, _ in lookups]).numpy(), offsets=offsets.numpy())


def outcore(spec: ModelSpec, folder: str, *, readers: int = 2) -> Bags:
    """This library's tables, in the default session, on the files as they are."""
    return TableBags(table_files(spec, folder), readers=readers)


MODES: dict[str, ModeFactory] = {
    "memory": in_memory,
    "map": mapped,
    "map-random": mapped_random,
    "pages": pages,
    "outcore": outcore,
}
