"""Data of 12 to 25 times the budget, in processes whose memory the kernel limits: what is known of the data does not grow with
its square, and what jobs have freed does not stay."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp

import outcore as oc

limit = pytest.importorskip("outcore.demo.limit")

SMALL = 8 << 20
MARGIN = 64 << 20

PRELUDE = """
import gc, sys, time, outcore as oc, numpy as np
from outcore.cluster import KMeans
folder = sys.argv[1]
session = oc.configure(memory=int(sys.argv[2]), scratch=folder, allow_tmpfs_scratch=True)
open_ = lambda name: oc.open(folder + "/" + name)
start = lambda k, d: np.random.default_rng(0).random((k, d), np.float32)
"""

WORK = {
    "nothing": "oc.linalg.gemm(start(8, 8), start(8, 8)); KMeans(2, n_init=1, max_iter=1).fit(start(9, 2))",
    "csrcsc": "oc.linalg.csrcsc(open_('sparse'))",
    "k-means": "KMeans(4, init=start(4, 1024), n_init=1, max_iter=2, tol=0).fit(open_('rows.npy'))",
    "k-means, seeded": "KMeans(4, n_init=1, max_iter=2, tol=0, random_state=0).fit(open_('rows.npy'))",
    "sparse k-means": "KMeans(2, init=start(2, 20_000), n_init=1, max_iter=2, tol=0).fit(open_('sparse'))",
    "syrk": "oc.linalg.syrk(open_('short.npy'))",
    "gemm": "oc.linalg.gemm(open_('short.npy'), open_('short.npy').T)",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With 210 MB of each kind, a quarter of it for products, by columns and by rows and sparse."""
    folder = tmp_path_factory.mktemp("growth")
    session = oc.Session("64MiB", folder, allow_tmpfs_scratch=True)
    for name, shape in {"wide": (1024, 51_200), "short": (1024, 12_800), "rows": (51_200, 1024)}.items():
        x = session.create(folder / f"{name}.npy", shape)
        step = shape[0] // 64
        for row in range(0, shape[0], step):
            x[row : row + step] = np.random.default_rng(row).random((step, shape[1]), np.float32)
    random = np.random.default_rng(0)
    places = random.integers(0, 20_000, (250_000, 100), dtype=np.int32)
    # A tenth of all entries in few columns.
    places[:, ::10] //= 1000
    offsets = np.arange(0, places.size + 1, 100)
    session.from_scipy(folder / "sparse", sp.csr_array((random.random(places.size, np.float32), places.ravel(), offsets)))
    return folder


def limited(folder: Path, work: str, budget: int, limit_bytes: int | None) -> int:
    """The peak of a process that does `work`, as its limit counts it; fails if it does not end well."""
    command = [sys.executable, "-c", PRELUDE + work, str(folder), str(budget)]
    outcome = limit.run_limited(command, limit_bytes, limit.best_way(), timeout_s=280)
    assert not outcome.killed, "the kernel ended it: out of memory"
    assert outcome.returncode == 0, outcome.output
    return int(outcome.peak_bytes)


@pytest.fixture(scope="module")
def base(folder: Path) -> int:
    return limited(folder, WORK["nothing"], SMALL, None)


enforced = pytest.mark.skipif(not limit.best_way().enforced, reason="no memory limit on this system")


@enforced
@pytest.mark.parametrize("name", [name for name in WORK if name != "nothing"])
def test_many_times_the_budget_fits_it(folder: Path, base: int, name: str) -> None:
    limited(folder, WORK[name], SMALL, base + SMALL + MARGIN)


@enforced
def test_jobs_in_a_row_leave_their_memory_to_each_other(folder: Path, base: int) -> None:
    budget = 128 << 20
    work = "\n".join([WORK["csrcsc"], WORK["sparse k-means"], WORK["csrcsc"], WORK["k-means"]])
    limited(folder, work, budget, base + budget + MARGIN)


AFTERWARDS = """
import json, os
def resident():
    gc.collect()
    return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
{nothing}
time.sleep(1)
before, after = resident(), []
for work in {jobs}:
    exec(work)
    until = time.monotonic() + 20
    while resident() > before + {margin} and time.monotonic() < until:
        time.sleep(0.1)
    after.append(resident() - before)
print(json.dumps(after))
"""


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="resident memory is read from /proc")
def test_after_a_job_its_memory_is_soon_the_system_s(folder: Path) -> None:
    jobs = [WORK["csrcsc"], "open_('rows.npy')[:40_000].sum()", "oc.linalg.reduce(open_('wide.npy'))", WORK["sparse k-means"]]
    code = PRELUDE + AFTERWARDS.format(nothing=WORK["nothing"], jobs=jobs, margin=MARGIN)
    command = [sys.executable, "-c", code, str(folder), str(256 << 20)]
    outcome = subprocess.run(command, capture_output=True, text=True, timeout=280)
    assert outcome.returncode == 0, outcome.stderr
    assert all(more <= MARGIN for more in json.loads(outcome.stdout)), outcome.stdout
