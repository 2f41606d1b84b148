"""Counts of words for topic models: documents of the real corpus or drawn from it, split before anything is learned of them.

Words are chosen by the documents that are learned from, as is customary: those in `FEWEST` of them at least, and in a
`LARGEST_SHARE` of them at most. The same description gives the same bytes. Held in memory: the counts.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from harness import corpus, csr
from harness.data import whole_folder
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
    frequency = sum(np.bincount(block.indices, minlength=block.shape[1]) for block in documents(file, held_out=False))
    kept = np.flatnonzero((frequency >= FEWEST) & (frequency <= LARGEST_SHARE * file.learned_documents))
    with whole_folder(path) as folder:
        for name, held_out in (("learned", False), ("held-out", True)):
            (folder / name).mkdir()
            write(sp.vstack([block[:, kept] for block in documents(file, held_out)], "csr"), folder / name)


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
    # scikit-learn numbers words anew after it has counted them, which leaves rows in no order.
    matrix.sort_indices()
    with csr.writing(folder, matrix.shape, int(matrix.nnz)) as outs:
        for name, kind in (("indptr", "<i8"), ("indices", "<i4"), ("data", "<f4")):
            outs[name].write(getattr(matrix, name).astype(kind).data)
