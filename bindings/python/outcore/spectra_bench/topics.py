"""Topic models in processes of their own: what they took, and how coherent their topics are in documents that they have not seen.

The last tenth of the documents is held out before anything else. The corpus has logarithms of counts, which ours and NMF take as
weights; LDA takes the counts. A result tells of one model: `seconds`, without reading the
counts for those that need them in memory, `npmi` and `diversity` as `TopicModel` has them, and `rss_bytes`.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from .run import configured, in_memory, rss_bytes, told_by_process

OURS = "outcore TopicModel"
RIVALS = ("scikit-learn LDA", "scikit-learn NMF")
HELD_OUT = 0.1
PASSES, BATCH = 5, 2048
"""Of scikit-learn's LDA over all documents."""


def measure(
    matrix: Path, who: str, count: int, *, memory: int | None = None, options: Sequence[str] = (), timeout_s: float = 600
) -> dict[str, Any]:
    """One model of as many topics: ours with this `memory`, or a rival's, which has the counts in memory.

    Raises
    ------
    FailedError
        For a model that failed or took too long.
    """
    case = {"matrix": os.fspath(matrix.resolve()), "who": who, "count": count, "memory": memory}
    found = told_by_process(__name__, case, options, f"{who}, {count} topics", timeout_s)
    return {**found, "who": who, "count": count, "memory_bytes": memory}


def _ours(case: dict[str, Any]) -> tuple[npt.NDArray[Any], float]:
    import outcore
    from outcore.topics import TopicModel

    configured(case)
    with outcore.open(case["matrix"]) as matrix:
        learned: Any = matrix.slice(0, _learned(matrix.shape[0]))
        began = time.perf_counter()
        return TopicModel(case["count"], 0).fit(learned).components_, time.perf_counter() - began


def _rival(case: dict[str, Any], counts: Any) -> tuple[npt.NDArray[Any], float]:
    from sklearn.decomposition import NMF, LatentDirichletAllocation

    count, learned = case["count"], counts[: _learned(counts.shape[0])]
    if case["who"] == RIVALS[0]:
        learned.data = np.rint(np.expm1(learned.data))
    options: dict[str, Any] = {"learning_method": "online", "batch_size": BATCH, "max_iter": PASSES, "n_jobs": -1}
    lda, nmf = LatentDirichletAllocation(count, random_state=0, **options), NMF(count, init="nndsvda", random_state=0)
    began = time.perf_counter()
    found = (lda if case["who"] == RIVALS[0] else nmf).fit(learned).components_
    return found, time.perf_counter() - began


def _learned(documents: int) -> int:
    return max(1, documents - round(HELD_OUT * documents))


def _main(text: str) -> None:
    from outcore.topics import TopicModel

    case = json.loads(text)
    if case["who"] == OURS:
        found, seconds = _ours(case)
        rss = rss_bytes()
        counts = in_memory(case["matrix"])
    else:
        counts = in_memory(case["matrix"])
        found, seconds = _rival(case, counts)
        rss = rss_bytes()
    model, held_out = TopicModel(len(found)), counts[_learned(counts.shape[0]) :]
    model.components_, model.n_features_in_ = np.asarray(found, np.float64), found.shape[1]
    facts = {"seconds": seconds, "npmi": model.score(held_out), "diversity": model.diversity(), "rss_bytes": rss}
    print(json.dumps({**facts, "nonzeros": int(counts.nnz), "shape": list(counts.shape)}))


if __name__ == "__main__":
    _main(sys.argv[1])
