"""What plans read, write, hold and divide into tasks, as golden numbers: a change of how passes are made shows its cost here."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp

import outcore as oc
from outcore import linalg
from outcore.cluster import KMeans
from outcore.decomposition import PCA
from outcore.random_projection import SparseRandomProjection

GOLDEN = Path(__file__).with_name("golden") / "plans.json"


@pytest.fixture(scope="module")
def plans(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Callable[[], oc.Plan]]:
    """Of matrices of 32 MB, dense and sparse, within 8 MiB."""
    folder = tmp_path_factory.mktemp("plans")
    # A plan depends on whether there are several threads.
    session = oc.Session("8MiB", folder, 2, allow_tmpfs_scratch=True)
    x, y = (session.create(folder / f"{order}.npy", (20_000, 400), order=order) for order in ("C", "F"))
    wide = session.create(folder / "wide.npy", (30_000, 100))
    random = np.random.default_rng(0)
    places = random.integers(0, 30_000, (20_000, 200), dtype=np.int32)
    values = random.random(places.size, np.float32)
    s = session.from_scipy(
        folder / "s", sp.csr_matrix((values, places.ravel(), np.arange(0, places.size + 1, 200)), (20_000, 30_000))
    )
    t = linalg.csrcsc(s, folder / "t")
    dense = {"rows": x, "columns": y}
    sparse = {"csr": s, "csc": t}
    return {
        **{f"reduce {name}": lambda a=a: oc.explain(linalg.reduce, a) for name, a in dense.items()},
        **{f"row norms {name}": lambda a=a: oc.explain(linalg.row_norms, a) for name, a in {**dense, **sparse}.items()},
        **{f"column norms {name}": lambda a=a: oc.explain(linalg.column_norms, a) for name, a in {**dense, **sparse}.items()},
        **{f"statistics {name}": lambda a=a: oc.explain(linalg.column_statistics, a) for name, a in {**dense, **sparse}.items()},
        **{f"scaled {name}": lambda a=a: oc.explain(linalg.scaled, a, unit_rows=True) for name, a in sparse.items()},
        **{f"csrmm {name}": lambda a=a: oc.explain(linalg.csrmm, a, wide) for name, a in sparse.items()},
        "gram product": lambda: oc.explain(linalg.gram_product, s, np.ones((30_000, 4), np.float32)),
        "projection dense": lambda: SparseRandomProjection(16, random_state=0).explain(x),
        "projection sparse": lambda: SparseRandomProjection(16, random_state=0).explain(s),
        "pca": lambda: PCA(10).explain(x),
        "k-means dense": lambda: KMeans(8).explain(x),
        "k-means sparse": lambda: KMeans(2).explain(s),
        "convert": lambda: oc.explain(oc.convert, x, order="F"),
        "transposed": lambda: oc.explain(linalg.csrcsc, s),
    }


def test_plans_are_what_they_were(plans: dict[str, Callable[[], oc.Plan]]) -> None:
    found = {}
    for name, make in plans.items():
        plan = make()
        assert plan.floor_bytes <= plan.peak_bytes <= plan.memory_bytes, name
        found[name] = [plan.tasks, plan.bytes_read, plan.bytes_written, plan.peak_bytes]
    known = json.loads(GOLDEN.read_text())
    changed = {name: (known.get(name), numbers) for name, numbers in found.items() if known.get(name) != numbers}
    assert not changed, json.dumps(found)
    assert found.keys() == known.keys()
