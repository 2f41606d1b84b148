"""Word counts of documents that are drawn from topics: words by Zipf's law, in another order of frequency for each topic.

Every document is drawn anew, so that singular values fall off as those of a corpus of this size do.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import scipy.sparse as sp

from .._session import Session
from ..errors import ArgumentError

TOPICS = 100
WORDS_A_DOCUMENT = 60
SHARED = 0.3
"""The share of the words of a document that are drawn alike whatever its topics."""
DOMINANT = 0.8
"""That of the others which are drawn from the first of its two topics."""
DOCUMENTS_AT_ONCE = 4096


def written(folder: str | os.PathLike[str], documents: int, words: int, session: Session, *, seed: int = 1) -> Path:
    """A sparse matrix of documents x words in the folder, of float32: the logarithm of one and the count. Kept if it is there."""
    path = Path(folder, f"corpus-{documents}x{words}-{seed}")
    if not path.exists():
        session.from_scipy(path, made(documents, words, seed=seed))
    return path


def made(documents: int, words: int, *, seed: int = 1) -> sp.csr_matrix:
    """The matrix in memory."""
    if documents < 1 or words < 2:
        raise ArgumentError(f"a corpus of {documents} documents and {words} words")
    random = np.random.default_rng(seed)
    chances = np.cumsum(1 / np.arange(1, words + 1))
    chances /= chances[-1]
    orders = np.stack([random.permutation(words) for _ in range(TOPICS)])
    blocks = []
    for first in range(0, documents, DOCUMENTS_AT_ONCE):
        count = min(DOCUMENTS_AT_ONCE, documents - first)
        document = np.repeat(np.arange(count), random.poisson(WORDS_A_DOCUMENT, count))
        # Frequent words are frequent in all topics.
        second = (random.random(len(document)) >= DOMINANT).astype(np.int64)
        own = random.integers(0, TOPICS, (count, 2))[document, second]
        rank = np.minimum(np.searchsorted(chances, random.random(len(document))), words - 1)
        word = np.where(random.random(len(document)) < SHARED, rank, orders[own, rank])
        counts = sp.coo_matrix((np.ones(len(document), np.float32), (document, word)), (count, words)).tocsr()
        counts.data = np.log1p(counts.data)
        blocks.append(counts)
    return sp.vstack(blocks, "csr")
