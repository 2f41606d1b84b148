"""Counts of words for topic models: documents of the real corpus or drawn from it, split before anything is learned of them.

Words are chosen by the documents that are learned from, as is customary: those in `FEWEST` of them at least, and in a
`LARGEST_SHARE` of them at most. The same description gives the same bytes. Held in memory: the counts.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from harness import corpus
from harness.data import npy_header, settle
from harness.model import SparseFolder, TopicFolder

FEWEST = 5
LARGEST_SHARE = 0.1
DRAWN_ENTRIES = 51
"""Of a document that is drawn, before words are left out: 1.2 times what the real ones have."""


def make(file: TopicFolder, root: Path) -> None:
    """Write `file` unless it is there: its name tells all of its description, and it is renamed only when whole."""
    path = root / file.path
    if path.exists():
        return
    partial = path.with_name(f"{path.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    frequency = sum(np.bincount(block.indices, minlength=block.shape[1]) for block in documents(file, held_out=False))
    kept = np.flatnonzero((frequency >= FEWEST) & (frequency <= LARGEST_SHARE * file.learned_documents))
    for name, held_out in (("learned", False), ("held-out", True)):
        write(sp.vstack([block[:, kept] for block in documents(file, held_out)], "csr"), partial / name)
    partial.rename(path)


def documents(file: TopicFolder, held_out: bool) -> Iterator[Any]:
    """Counts of all words, some documents at a time."""
    real = corpus.corpus()
    columns = len(real.inverse_frequency)
    if not file.drawn:
        order = np.random.default_rng(file.seed).permutation(len(real))[: file.documents]
        chosen = order[file.learned_documents :] if held_out else order[: file.learned_documents]
        yield sp.csr_matrix((real.counts.astype(np.float32), real.words, real.starts), shape=(len(real), columns))[chosen]
        return
    count = file.documents - file.learned_documents if held_out else file.learned_documents
    for block in corpus.blocks(SparseFolder(file.path, count, DRAWN_ENTRIES * count, seed=2 * file.seed + held_out)):
        parts = (block.counts.astype(np.float32), block.words, np.append(0, block.ends))
        yield sp.csr_matrix(parts, shape=(len(block.ends), columns))


def write(matrix: Any, folder: Path) -> None:
    folder.mkdir(parents=True)
    # scikit-learn numbers words anew after it has counted them, which leaves rows in no order.
    matrix.sort_indices()
    for name, kind in (("indptr", "<i8"), ("indices", "<i4"), ("data", "<f4")):
        array = getattr(matrix, name).astype(kind)
        with open(folder / f"{name}.npy", "wb") as out:
            out.write(npy_header(kind, array.shape, 4096))
            out.write(array.data)
            settle(out)
    told = {"format": "csr", "shape": list(matrix.shape), "nonzeros": int(matrix.nnz), "dtype": "float32"}
    (folder / "matrix.json").write_text(json.dumps(told) + "\n")
