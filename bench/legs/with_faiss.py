"""faiss: exact search of all rows in memory."""

from __future__ import annotations

import os
from typing import Any

import faiss
import numpy as np

from legs.measure import recall, sampled

Spec = dict[str, Any]
Result = dict[str, Any]


def neighbors(spec: Spec) -> Result:
    """Of as many threads as there are cores; the time to load the rows is not counted."""
    faiss.omp_set_num_threads(len(os.sched_getaffinity(0)))
    x, q = np.load(spec["a"]), np.load(spec["queries"])
    index, found = faiss.IndexFlatL2(x.shape[1]), []
    index.add(x)
    del x

    def call() -> None:
        found[:] = [index.search(q, spec["k"])[1]]

    return {**sampled(call), "recall": recall(spec["a"], q, found[0])}
