"""Runs in a process whose memory the kernel limits: the budget holds, page cache included where the system can count it."""

import functools
import json
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
from programs import ESTIMATORS, imports

import outcore as oc
from outcore.streams import StreamStore

limit = pytest.importorskip("outcore.demo.limit")

BUDGET = 24 << 20
MARGIN = 64 << 20

PRELUDE = """
import sys, json, outcore as oc, numpy as np
from pathlib import Path
from outcore.data import Dataset, Loader, Writer
from outcore.streams import StreamStore
folder = sys.argv[1]
oc.configure(memory=int(sys.argv[2]), scratch=folder, driver=sys.argv[3], blas=sys.argv[4] or None, allow_tmpfs_scratch=True)
a, b, s, g = (oc.open(folder + name) for name in ("/a.npy", "/b.npy", "/s", "/g"))
"""

POSTLUDE = """
text = Path("/proc/self/status").read_text() if Path("/proc/self/status").exists() else "VmData: 0"
print(json.dumps(1024 * int(text.partition("VmData:")[2].split()[0])))
"""
"""The memory that the process has mapped, which is what a limit counts that cannot count what is resident."""

WORK = {
    "nothing": "a[0]",
    "nothing with estimators": f"{', '.join(ESTIMATORS)}; a[0]",
    "gemm": "oc.linalg.gemm(a, a.slice(columns=(0, 1500)), folder + '/c.npy')",
    "gemm of transposes": "oc.linalg.gemm(a.T, a.slice(0, 1500).T)",
    "syrk": "oc.linalg.syrk(a.slice(0, 1500))",
    "statistics": "oc.linalg.column_statistics(a); oc.linalg.reduce(a); oc.linalg.row_norms(a)",
    "convert": "oc.convert(a, order='F')",
    "pca": "p = PCA(10).fit(a.slice(columns=(0, 700))); p.transform(a.slice(columns=(0, 700)))",
    "kmeans": "KMeans(8, max_iter=3).fit(a.slice(columns=(0, 2000)))",
    "neighbors": "NearestNeighbors(5).fit(a).kneighbors(a.slice(0, 1500))",
    "csrmm": "oc.linalg.csrmm(s, b, folder + '/c.npy'); oc.linalg.csrmm(s.T, a.slice(columns=(0, 64)))",
    "gram product": "oc.linalg.gram_product(s, b)",
    "csrcsc": "oc.linalg.csrcsc(s)",
    # Centres and their sums take nearly all of the budget.
    "sparse kmeans": "KMeans(28, init=np.random.default_rng(0).random((28, 30_000)), n_init=1, max_iter=3).fit(s)",
    "svds": "oc.linalg.svds(s, 4, tol=0.05)",
    # For 24 pairs a basis of 60,000 rows has no room in memory, whatever the block.
    "svds with the basis in scratch": "t = oc.linalg.svds(g, 24, tol=0.1, maxiter=2); assert not t.basis_in_memory",
    "eigsh of a graph": "oc.linalg.eigsh(g, 3, which='LA', tol=0.05); "
    "oc.linalg.eigsh(oc.linalg.laplacian(g), 3, which='SA', tol=0.05)",
    "spectral clustering": "c = SpectralClustering(3, affinity='precomputed', tol=0.05).fit(g); "
    "assert len(set(c.labels_[:20_000])) == 1 and len(set(c.labels_[::20_000])) == 3",
    "truncated svd": "t = TruncatedSVD(4, tol=0.05).fit(s); t.transform(s)",
    # Two components tell the three parts of the graph apart; all others are far below them, so that 1e-6 takes few passes.
    "pca of sparse rows": "p = PCA(2).fit(g); p.transform(g)",
    "topics": "m = TopicModel(3, max_iter=2, tol=0.1).fit(s); m.transform(s); m.score(s)",
    "streams": "w = StreamStore(folder + '/x.store', size='200MiB').create('x', overwrite=True, block='1MiB'); "
    "r = np.ones((4096, 256)); [w.write_array(r) for _ in range(9)]; w.close(); "
    "[b.sum() for b in StreamStore(folder + '/x.store').open('x')]",
    "samples": "w = Writer(folder + '/d'); "
    "[w.write({'x': bytes(50_000 + i % 999), 'y': i % 10}, str(i)) for i in range(3000)]; w.close(); "
    "[len(b['x']) for s in (True, 'chunk') for b in Loader(Dataset(folder + '/d'), 32, shuffle=s)]",
    "stores": "c = oc.linalg.gemm(a, a.slice(0, 1500).T, folder + '/m.store/c.npy'); oc.linalg.syrk(c.T.slice(0, 1000)); "
    "c[:100] = 1; oc.linalg.csrcsc(s, folder + '/m.store/s')",
    # Parts of the budget, in four threads: together they would be four times as much, beside that of the session.
    "parts of calls": "from concurrent.futures import ThreadPoolExecutor as Pool; c = a.slice(columns=(0, 700)); "
    "work = lambda i: (oc.linalg.gemm(a, b.slice(0, 5000), memory='23MiB'), PCA(10, memory='22MiB').fit(c)); "
    "list(Pool(4).map(work, range(8)))",
    "slices": "for i in range(0, 5000, 500): a[i : i + 500] = a[i : i + 500] * 2",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With a dense matrix of 100 MB, a sparse one and a graph as large, four times the budget each."""
    folder = tmp_path_factory.mktemp("memory")
    session = oc.Session("64MiB", folder, allow_tmpfs_scratch=True)
    a = session.create(folder / "a.npy", (5000, 5000))
    for i in range(0, 5000, 500):
        a[i : i + 500] = np.random.default_rng(i).standard_normal((500, 5000), np.float32)
    session.create(folder / "b.npy", (30_000, 64))[:] = 1
    random = np.random.default_rng(0)
    places = random.integers(0, 30_000, (5000, 2500), dtype=np.int32)
    values = random.random(places.size, np.float32)
    x = sp.csr_array((values, places.ravel(), np.arange(0, places.size + 1, 2500)), shape=(5000, 30_000))
    session.from_scipy(folder / "s", x)
    # Three parts that no edge joins, in each of which a node has edges to those at 104 distances on either side.
    side, parts = 20_000, 3
    steps = random.choice(np.arange(1, side // 2), 104, replace=False)
    near = np.sort((np.arange(side)[:, None] + np.r_[steps, -steps]) % side, axis=1).astype(np.int32)
    edges = np.concatenate([near + np.int32(side * part) for part in range(parts)])
    ends = np.arange(0, edges.size + 1, edges.shape[1])
    graph = sp.csr_array((np.ones(edges.size, np.float32), edges.ravel(), ends), shape=(parts * side, parts * side))
    session.from_scipy(folder / "g", graph)
    StreamStore(folder / "m.store", size="800MiB", session=session)
    return folder


def peak(folder: Path, work: str, limit_bytes: int | None, driver: str = "auto", blas: str = "") -> int:
    """Bytes at the peak of a limited process that does `work`, as its limit counts them; fails if it does not end well."""
    code = imports(work) + PRELUDE + work + POSTLUDE
    way = limit.best_way()
    outcome = limit.run_limited(
        [sys.executable, "-c", code, str(folder), str(BUDGET), driver, blas], limit_bytes, way, timeout_s=240
    )
    assert not outcome.killed, "the kernel ended it: out of memory"
    assert outcome.returncode == 0, outcome.output
    mapped = int(json.loads(outcome.output.splitlines()[-1]))
    return int(outcome.peak_bytes) if way.counts_page_cache else mapped


@pytest.fixture(scope="module")
def base(folder: Path) -> Callable[[str], int]:
    """What Python, NumPy, SciPy, a small read and what `work` imports take without a limit."""

    @functools.cache
    def of(name: str) -> int:
        return peak(folder, WORK[name], None)

    return lambda work: of("nothing with estimators" if imports(work) else "nothing")


limited = pytest.mark.skipif(not limit.best_way().enforced, reason="no memory limit on this system")


@limited
@pytest.mark.parametrize("name", WORK)
def test_the_budget_holds(folder: Path, base: Callable[[str], int], name: str) -> None:
    peak(folder, WORK[name], base(WORK[name]) + BUDGET + MARGIN)


@limited
@pytest.mark.parametrize("name", ["gemm", "pca", "slices"])
def test_the_budget_holds_without_io_uring(folder: Path, base: Callable[[str], int], name: str) -> None:
    """Page cache counts where the system can count it: the threads leave none behind."""
    peak(folder, WORK[name], base(WORK[name]) + BUDGET + MARGIN, driver="threads")


@limited
def test_the_budget_holds_with_a_library_of_the_user(folder: Path) -> None:
    """What the library itself maps is its user's, what it packs is within the budget."""
    libraries = sorted(Path(np.__file__).parent.with_name("numpy.libs").glob("libscipy_openblas*.so*"))
    if not libraries:
        pytest.skip("this numpy brings no library of its own")
    blas = str(libraries[0])
    alone = peak(folder, "oc.linalg.gemm(a[:64, :64], a[:64, :64], out=np.empty((64, 64), 'f'))", None, blas=blas)
    for name in ("gemm", "syrk"):
        peak(folder, WORK[name], alone + BUDGET + MARGIN, blas=blas)
