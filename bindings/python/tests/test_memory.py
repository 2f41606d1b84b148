"""Runs in a process whose memory the kernel limits: the budget holds, page cache included where the system can count it."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest

import outcore as oc

limit = pytest.importorskip("outcore.demo.limit")

BUDGET = 32 << 20
MARGIN = 64 << 20

PRELUDE = """
import sys, json, outcore as oc, numpy as np
from outcore.decomposition import PCA
folder = sys.argv[1]
oc.configure(memory=int(sys.argv[2]), scratch=folder, allow_tmpfs_scratch=True)
a = oc.open(folder + "/a.npy")
"""

WORK = {
    "nothing": "a[0]",
    "gemm": "oc.linalg.gemm(a, a, folder + '/c.npy')",
    "gemm of transposes": "oc.linalg.gemm(a.T, a.T)",
    "syrk": "oc.linalg.syrk(a)",
    "statistics": "oc.linalg.column_statistics(a); oc.linalg.reduce(a); oc.linalg.row_norms(a)",
    "convert": "oc.convert(a, order='F')",
    "pca": "p = PCA(10).fit(a.slice(columns=(0, 700))); p.transform(a.slice(columns=(0, 700)))",
    "slices": "for i in range(0, 6000, 500): a[i : i + 500] = a[i : i + 500] * 2",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With a matrix of 144 MB, more than four times the budget."""
    folder = tmp_path_factory.mktemp("memory")
    session = oc.Session("64MiB", folder, allow_tmpfs_scratch=True)
    a = session.create(folder / "a.npy", (6000, 6000))
    for i in range(0, 6000, 500):
        a[i : i + 500] = np.random.default_rng(i).standard_normal((500, 6000), np.float32)
    return folder


def peak(folder: Path, work: str, limit_bytes: int | None) -> int:
    """Bytes at the peak of a limited process that does `work`; fails if it does not end well."""
    code = PRELUDE + work + "\nprint(json.dumps('done'))"
    outcome = limit.run_limited(
        [sys.executable, "-c", code, str(folder), str(BUDGET)], limit_bytes, limit.best_way(), timeout_s=240
    )
    assert not outcome.killed, "the kernel ended it: out of memory"
    assert outcome.returncode == 0, outcome.output
    assert json.loads(outcome.output.splitlines()[-1]) == "done"
    return int(outcome.peak_bytes)


@pytest.fixture(scope="module")
def base(folder: Path) -> int:
    """What Python, NumPy, SciPy and a small read take without a limit."""
    return peak(folder, WORK["nothing"], None)


@pytest.mark.skipif(not limit.best_way().enforced, reason="no memory limit on this system")
@pytest.mark.parametrize("name", WORK)
def test_the_budget_holds(folder: Path, base: int, name: str) -> None:
    peak(folder, WORK[name], base + BUDGET + MARGIN)
