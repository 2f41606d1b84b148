"""sparse_dot_topn: the largest inner products of sparse rows in memory."""

from __future__ import annotations

import os
from typing import Any

import scipy.sparse as sp
from sparse_dot_topn import sp_matmul_topn

from legs import sparse
from legs.measure import sampled

Spec = dict[str, Any]
Result = dict[str, Any]


def neighbors(spec: Spec) -> Result:
    """Of as many threads as there are cores; the time to load the rows, and to have them by columns, is not counted."""
    q, columns, found = sparse.load(spec["queries"]), sp.csr_matrix(sparse.load(spec["a"]).T), []
    threads = len(os.sched_getaffinity(0))

    def call() -> None:
        found[:] = [sp_matmul_topn(q, columns, spec["k"], n_threads=threads)]

    return {**sampled(call), "entries": found[0].nnz}
