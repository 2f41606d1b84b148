"""Stand-ins for the paper's data: seeded rows of some 37 entries of 20 million columns, as LIBSVM text.

Columns are D^(u^0.7) for even u, so that few of them are in many rows, as words are. A class has three in ten of its columns odd
or even of its own, which is what neighbours vote by.

With `skew`, that share of the entries is of one of two topics, of 100 columns each. Rows change topics every eighth of the file;
the first half of the queries is of one topic, the other half of the other. So a rank is slow with rows of its own topic, while
ranks with other queries are fast; later it is the other way round. Blocks have the same bytes, and all ranks do as much in all.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import ArgumentError

COLUMNS = 20_216_830
"""Of KDD Cup 2010, algebra."""
DRAWN = 38
"""Columns of a row, of which some are drawn twice."""
TOPICS = (1_000_001, 2_000_001)
"""First columns of both."""
TOPIC_COLUMNS = 100
STRETCHES = 8
"""Of rows of one topic."""
STEP = 20_000
"""Rows that are made at a time."""


@dataclass(frozen=True)
class Workload:
    """Numbers of rows to compare with, and of rows to classify."""

    name: str
    rows: int
    queries: int


WORKLOADS = {
    one.name: one for one in (Workload("xs", 100_000, 1000), Workload("1m", 1_000_000, 2000), Workload("kdd", 8_407_752, 510_302))
}
"""A truncated KDD Cup 2010 (30 MB), a larger part of it, and all (2.5 GB)."""


def write(path: str | os.PathLike[str], rows: int, *, seed: int, skew: float = 0.0, stretches: int = STRETCHES) -> None:
    """Writes a number of rows to a new file, which is there when it is whole."""
    if rows < 1 or not 0 <= skew <= 1:
        raise ArgumentError(f"rows={rows} must be positive, and skew={skew} from 0 to 1")
    random, beside = np.random.default_rng(seed), f"{os.fspath(path)}.part"
    with open(beside, "wb") as file:
        for first in range(0, rows, STEP):
            count = min(STEP, rows - first)
            topics = np.arange(first, first + count) * stretches // rows % 2
            file.write(_text(*_drawn(random, topics, skew)))
    os.replace(beside, path)


def written(folder: str | os.PathLike[str], workload: Workload, *, seed: int, skew: float = 0.0) -> tuple[Path, Path]:
    """The files of rows and of queries, which are made if they are not there."""
    paths = []
    for kind, rows, stretches in (("train", workload.rows, STRETCHES), ("test", workload.queries, 2)):
        name = f"{kind}-{rows}-{seed}" + (f"-skew{skew:g}" if skew else "")
        path = Path(folder, f"{name}.svm")
        if not path.exists():
            write(path, rows, seed=2 * seed + (kind == "test"), skew=skew, stretches=stretches)
        paths.append(path)
    return paths[0], paths[1]


def _drawn(random: np.random.Generator, topics: Any, skew: float) -> tuple[Any, Any, Any]:
    """Labels, columns in order, and which of these are there."""
    count = len(topics)
    labels = random.integers(0, 2, count)
    columns = (COLUMNS ** (random.random((count, DRAWN)) ** 0.7)).astype(np.int64)
    of_topic = random.random((count, DRAWN)) < skew
    topical = np.array(TOPICS)[topics][:, None] + random.integers(0, TOPIC_COLUMNS, (count, DRAWN))
    columns = np.where(of_topic, topical, columns)
    told = random.random((count, DRAWN)) < 0.3
    columns = np.where(told, columns // 2 * 2 + labels[:, None], columns)
    columns = np.sort(np.clip(columns, 1, COLUMNS), axis=1)
    there = np.ones(columns.shape, bool)
    there[:, 1:] = columns[:, 1:] != columns[:, :-1]
    return labels, columns, there


def _text(labels: Any, columns: Any, there: Any) -> bytes:
    """`label column:1 column:1 ...`: all digits of all columns as an array, and which bytes of it are written."""
    count, entries = columns.shape
    digits = len(str(COLUMNS))
    width = 1 + digits + 2
    text = np.empty((count, 1 + entries * width + 1), np.uint8)
    kept = np.ones(text.shape, bool)
    text[:, 0], text[:, -1] = labels + ord("0"), ord("\n")
    inner = text[:, 1:-1].reshape(count, entries, width)
    keep = np.empty(inner.shape, bool)
    inner[..., 0], inner[..., -2], inner[..., -1] = ord(" "), ord(":"), ord("1")
    keep[..., 0] = keep[..., -2:][..., 0] = keep[..., -1] = there
    left = columns.astype(np.int32)
    for place in range(digits, 0, -1):
        keep[..., place] = there & (left > 0)
        inner[..., place] = left % 10 + ord("0")
        left //= 10
    text[:, 1:-1] = inner.reshape(count, -1)
    kept[:, 1:-1] = keep.reshape(count, -1)
    return text[kept].tobytes()
