"""A real corpus at any size: the tf-idf matrix of documents drawn from the package descriptions in data/packages, streamed.

A new document keeps four words of five of a real one and takes, from each of two others, one word more for each five: lengths are
spread as real ones are, common words are common and rare words rare, and rows differ. The shares are raised a little, and chance
drops what is then too much, so that a matrix has just the entries that its description says. Values are counts times inverse
document frequencies of the real corpus, rows of norm one, as scikit-learn's TfidfVectorizer makes them.

The same description gives the same bytes. Held in memory: the counts of the real corpus (40 MB) and a block of documents (50 MB).
"""

from __future__ import annotations

import functools
import itertools
import lzma
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from harness import csr
from harness.data import settle, whole_folder
from harness.model import ROOT, LibsvmFile, SparseFolder

SOURCE = ROOT / "data" / "packages" / "packages.tsv.xz"

SHARES = np.array([0.8, 0.2, 0.2])
"""Of the length of the first document."""
SPARE = 1.08
"""Words that two of the documents share are met twice, some 4% of all; the rest is room for chance."""

BLOCK_ROWS = 8192

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Corpus:
    """Counts of words, a row a document, in CSR."""

    starts: Ints
    words: npt.NDArray[np.int32]
    counts: npt.NDArray[np.int64]
    inverse_frequency: npt.NDArray[np.float64]
    labels: Ints
    """The number of the section that each package belongs to, from 1."""

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True)
class Block:
    """Some rows: entries in order of row and word."""

    rows: Ints
    words: npt.NDArray[np.int32]
    counts: Ints
    values: npt.NDArray[np.float32]
    ends: Ints
    """Where each row ends among the entries of the block."""
    labels: Ints


def make(file: SparseFolder | LibsvmFile, root: Path) -> None:
    """Write `file` unless it is there: its name tells all of its description, and it is renamed only when whole."""
    path = root / file.path
    if path.exists():
        return
    if isinstance(file, LibsvmFile):
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f"{path.name}.partial")
        write_text(file, partial)
        partial.rename(path)
    else:
        with whole_folder(path) as folder:
            write_folder(file, folder)


def write_folder(file: SparseFolder, folder: Path) -> None:
    with csr.writing(folder, (file.rows, file.columns), file.nonzeros) as outs:
        outs["indptr"].write(np.zeros(1, np.int64).data)
        written = 0
        for block in blocks(file):
            outs["indptr"].write((block.ends + written).data)
            outs["indices"].write(block.words.data)
            outs["data"].write(block.values.data)
            written += len(block.words)


def write_text(file: LibsvmFile, path: Path) -> None:
    """Words from 1, values with six digits: as most published files have them."""
    with open(path, "wb") as out:
        for block in blocks(file.matrix):
            entries = [
                f"{word}:{value:.6g}" for word, value in zip((block.words + 1).tolist(), block.values.tolist(), strict=True)
            ]
            start = 0
            for label, end in zip(block.labels.tolist(), block.ends.tolist(), strict=True):
                out.write(f"{label} {' '.join(entries[start:end])}\n".encode())
                start = end
        settle(out)


def blocks(file: SparseFolder) -> Iterator[Block]:
    random = np.random.default_rng(file.seed)
    # Blocks of nearly one size: a last one of few rows could not be held to its share of entries.
    count = -(-file.rows // BLOCK_ROWS)
    bounds = [file.rows * number // count for number in range(count + 1)]
    for start, stop in itertools.pairwise(bounds):
        wanted = file.nonzeros * stop // file.rows - file.nonzeros * start // file.rows
        yield drawn(corpus(), stop - start, wanted, random)


def drawn(real: Corpus, rows: int, wanted: int, random: np.random.Generator) -> Block:
    """`rows` new documents with `wanted` entries together."""
    sources = random.integers(len(real), size=(rows, len(SHARES)))
    lengths = np.diff(real.starts)[sources]
    shares = SHARES * lengths[:, :1] / lengths
    shares = np.minimum(1.0, shares * (SPARE * wanted / (shares * lengths).sum())).astype(np.float32)
    at = ranges(real.starts[sources].ravel(), lengths.ravel())
    kept = random.random(len(at), dtype=np.float32) < np.repeat(shares.ravel(), lengths.ravel())
    row_of = np.repeat(np.arange(rows), lengths.sum(axis=1))[kept]
    words, counts = real.words[at[kept]], real.counts[at[kept]]
    # One sort of packed numbers (row, word, count) is ten times as fast as one of three keys.
    columns = len(real.inverse_frequency)
    packed = np.sort(((row_of * columns + words) << 8) | np.minimum(counts, 255))
    place = packed >> 8
    last = np.append(place[1:] != place[:-1], True)
    place, counts = place[last], packed[last] & 255
    if len(place) < wanted:
        raise ValueError(f"{rows} rows are too few for {wanted} entries: {len(place)} were drawn")
    left = np.ones(len(place), bool)
    left[random.choice(len(place), len(place) - wanted, replace=False)] = False
    (row_of, words), counts = np.divmod(place[left], columns), counts[left]
    values = counts * real.inverse_frequency[words]
    values /= np.sqrt(np.bincount(row_of, values * values, rows))[row_of]
    ends = np.cumsum(np.bincount(row_of, minlength=rows))
    return Block(row_of, words.astype(np.int32), counts, values.astype(np.float32), ends, real.labels[sources[:, 0]])


def ranges(starts: Ints, lengths: Ints) -> Ints:
    """The numbers start, start + 1, ..., start + length - 1 of all ranges, one after the other."""
    before = np.cumsum(lengths) - lengths
    return np.arange(lengths.sum()) + np.repeat(starts - before, lengths)


@functools.cache
def corpus() -> Corpus:
    """Words as CountVectorizer finds them, numbered in alphabetical order; all are kept."""
    from sklearn.feature_extraction.text import CountVectorizer

    sections: list[str] = []

    def texts() -> Iterator[str]:
        with lzma.open(SOURCE, "rt", encoding="utf-8") as lines:
            for line in lines:
                _, section, text = line.rstrip("\n").split("\t")
                sections.append(section)
                yield text

    counts: Any = CountVectorizer(token_pattern=r"(?u)\b\w\w+\b").fit_transform(texts())
    frequency = np.bincount(counts.indices, minlength=counts.shape[1])
    return Corpus(
        counts.indptr.astype(np.int64),
        counts.indices.astype(np.int32),
        counts.data.astype(np.int64),
        np.log((1 + len(sections)) / (1 + frequency)) + 1,
        np.unique(sections, return_inverse=True)[1] + 1,
    )
