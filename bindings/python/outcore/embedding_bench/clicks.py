"""Multi-hot look-ups of a real click log: the recipe of MLPerf's DLRM-v2.

A line of a log as Criteo publishes it has a label, 13 numbers and 26 categories of 8 hexadecimal digits, between tabs; what is
not known is empty. A category is a row of its table (its number modulo the rows). Where a sample looks up several rows of a
table, the further ones are random but always the same for the same category. MLPerf keeps them in tables of random numbers as
large as 16 GB; here they are hashes of category and place. Source: facebookresearch/dlrm, `torchrec_dlrm/multi_hot.py`.
"""

from __future__ import annotations

import gzip
import os
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from .._files import read_regular
from .._settings import PathLike
from ..errors import ArgumentError, CorruptError
from .models import ModelSpec, TableSpec
from .traces import Ids, Trace, _each

__all__ = ["Clicks", "read_clicks"]

NUMBERS, CATEGORIES = 13, 26
Hashes = npt.NDArray[np.uint64]


def __dir__() -> list[str]:
    return sorted(__all__)


def read_clicks(path: PathLike) -> Hashes:
    """The categories of a click log, plain or gzipped, a line a sample; 0 for those that are not known.

    Raises
    ------
    CorruptError
        For a line that is not one of a log. Also MissingError, NotAFileError, DeniedError.
    """
    name = os.fsdecode(path)
    try:
        raw = read_regular(name)
        text = (gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw).decode("ascii")
        lines = [line.split("\t") for line in text.splitlines()]
        for number, line in enumerate(lines, 1):
            if len(line) != 1 + NUMBERS + CATEGORIES:
                raise ValueError(f"line {number} has {len(line)} fields, not {1 + NUMBERS + CATEGORIES}")
        found = [[int(category or "0", 16) for category in line[1 + NUMBERS :]] for line in lines]
        return np.array(found, np.uint64).reshape(-1, CATEGORIES)
    except (ValueError, OverflowError, EOFError, gzip.BadGzipFile) as error:
        raise CorruptError(f"{name}: not a click log: {error}", object=name, offset=0) from error


@dataclass(frozen=True)
class Clicks:
    """The look-ups of a click log, over and over where the log is shorter than the trace, for a model of 26 tables.

    Attributes
    ----------
    path : path
    spread : {"uniform", "pareto"}
        How the further rows of a category are distributed: each as probable as any, as in MLPerf, or most of them few rows (a
        Pareto distribution with exponent 0.25, the recipe's other choice).

    Examples
    --------
    >>> Clicks("criteo.tsv.gz")(MLPERF.scaled(0.01), 40, 64, 0)
    """

    path: PathLike
    spread: Literal["uniform", "pareto"] = "uniform"

    def __call__(self, spec: ModelSpec, batches: int, batch_size: int, seed: int = 0) -> Trace:
        if len(spec.tables) != CATEGORIES:
            raise ArgumentError(f"a click log has {CATEGORIES} categories, but {spec.name} has {len(spec.tables)} tables")
        if self.spread not in ("uniform", "pareto"):
            raise ArgumentError(f"spread must be 'uniform' or 'pareto', not {self.spread!r}")
        log = read_clicks(self.path)
        if not len(log):
            raise ArgumentError(f"{os.fsdecode(self.path)}: there are no samples in it")
        samples = log[np.arange(batches * batch_size) % len(log)]
        return _each(spec, batches, batch_size, lambda table, number: self._rows(samples[:, number], table, number, seed))

    def _rows(self, categories: Hashes, table: TableSpec, number: int, seed: int) -> Ids:
        rows = np.uint64(table.rows)
        own = categories % rows
        places = np.arange(1, table.lookups, dtype=np.uint64)
        origin = _mixed(np.array([(seed << 16) + number], np.uint64))
        hashes = _mixed(_mixed(own ^ origin)[:, None] + places)
        if self.spread == "pareto":
            chance = ((hashes >> np.uint64(11)) + np.uint64(1)).astype(np.float64) / 2.0**53
            hashes = np.minimum(chance**-4.0 - 1, 2.0**62).astype(np.uint64)
        return np.concatenate([own[:, None], hashes % rows], 1).astype(np.int64)


def _mixed(x: Hashes) -> Hashes:
    """The finaliser of SplitMix64: each bit of the result depends on each of `x`."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
