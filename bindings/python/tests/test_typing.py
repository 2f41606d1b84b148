"""A strict type checker knows what a user's script works with: nothing that outcore returns is `Any` to it.

Three things it cannot know. SciPy has no types of its own, so its matrices are whatever they are. The elements of a sample are
what its writer put in. A pickled stream holds any objects.
"""

import re

import pytest

api = pytest.importorskip("mypy.api")

SCRIPT = """\
import numpy as np
import numpy.typing as npt

import outcore as oc
from outcore.cluster import KMeans
from outcore.data import Dataset, Loader, Writer
from outcore.decomposition import PCA
from outcore.random_projection import SparseRandomProjection
from outcore.streams import StreamStore
from outcore.text import TfidfTransformer

x: npt.NDArray[np.float64] = np.zeros((4, 3))
v: npt.NDArray[np.float64] = np.zeros(3)
a = oc.create("a.npy", (4, 3), "float64", mode="w")
raw = oc.open("x.bin", dtype="float32", shape=(3, 4))
found = oc.open("corpus")
assert isinstance(found, oc.Sparse)
s = found
dense = oc.open("x.npy")
if isinstance(dense, oc.Array):
    a[:2] = dense[:2]
a[0, 0] = 1
a[..., 1] = [1, 2, 3, 4]
km, pca = KMeans(2), PCA(2)
tfidf, projection = TfidfTransformer(), SparseRandomProjection(2)
statistics = oc.linalg.column_statistics(a)
store, ds = StreamStore("x.store"), Dataset("samples")
loader = Loader(ds, batch_size=2)
with Writer("samples") as writer:
    writer.write({"x": 1})
"""

EXPRESSIONS = """\
oc.info()
oc.info()["memory_bytes"]
oc.configure("64MiB").memory
oc.last_trace()
oc.last_trace().wall_s
oc.last_trace().actual["bytes_read"]
oc.open("x.npy")
oc.open("x.npy", interrupted=True)
oc.from_numpy("x.npy", x)
oc.from_scipy("s", s)
oc.convert(a, "b.npy", dtype="float32")
oc.import_libsvm("s", "s.svm")
a
raw
a.shape
a.dtype
a.dtype.itemsize
a.nbytes
a.order
a.path
a.session
len(a)
a.T
a.T.slice(0, 2)
a.numpy()
a[:2]
a[1]
a[1, 2]
a[:, 1]
a[..., 0]
a[1:3, ::2]
a[[1, 3]]
a.take([1, 3])
a.reshape(4, -1)
a @ a.T
a @ x.T
a @ v
a.slice(0, 1, columns=(0, 2))
s.shape
s.dtype
s.index_dtype
s.nnz
s.format
s.path
s.T
s.slice(0, 3)
s.tiled()
s @ x
s @ a
s @ v
s.vocabulary()
s.classes()
dense
oc.linalg.gemm(a, a.T)
oc.linalg.gemm(a, x.T, "c.npy", alpha=2.0)
oc.linalg.gemm(a, x.T, out=x)
oc.explain(oc.linalg.gemm, a, a.T)
oc.linalg.syrk(a)
oc.linalg.axpby(x, a)
oc.linalg.scale(a, 2.0)
oc.linalg.row_norms(a)
oc.linalg.row_norms(s, "l1")
oc.explain(oc.linalg.column_norms, a).notes
statistics
statistics["mean"]
statistics["count"]
oc.linalg.reduce(a, "max")
oc.linalg.csrmm(s, x)
oc.linalg.csrmm(s, a, "c.npy")
oc.linalg.csrmm(s, a, out=x)
pca.explain(a).bytes_read
oc.linalg.csrgemv(s, v)
oc.linalg.gram_product(s, x)
km.explain(a).parts
oc.linalg.scaled(s, unit_rows=True)
oc.linalg.csrcsc(s, "t")
km.fit(a)
km.cluster_centers_
km.labels_
km.inertia_
km.n_iter_
km.trace_
km.predict(a)
km.transform(a)
km.transform(x)
km.transform(x, out="d.npy")
km.score(a)
km.fit_predict(a)
pca.fit(x)
pca.components_
pca.explained_variance_ratio_
pca.noise_variance_
pca.mean_
pca.n_features_in_
pca.transform(a, out="z.npy")
pca.transform(x)
pca.inverse_transform(x)
pca.fit_transform(a)
pca.get_covariance()
tfidf.fit(s).idf_
tfidf.transform(s)
tfidf.fit_transform(s, out="w")
projection.fit(a).n_components_
projection.transform(s)
projection.fit_transform(x)
store.create("rows")
store.open("rows")
store.streams()
store.info("rows").name
store.free_bytes
next(store.open("rows").records())
next(iter(store))
len(ds)
ds.fields
ds.fields["x"].dtype
ds.names()
ds.index("a")
ds.nbytes
ds.clustering
loader.epoch
loader.batch_size
len(loader)
"""

SHAPE = "tuple[Any, ...]"
"""NumPy's own: arrays of any number of dimensions."""

UNKNOWN = {'ds.fields["x"].dtype', "a[1, 2]"}
"""What a field or an array holds is not known before it is opened."""

ELEMENTS = "dtype[Any]"
"""Of an array on SSD."""


WRONG = ['oc.create("a.npy", 3, mode="r")', "oc.linalg.gemm(s, x)", 'a["x"]', 'oc.open("x.npy").nnz', "s + 1"]
FIRST = SCRIPT.count("\n") + 1
"""Line of the first statement that follows the script."""


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """What one run of the checker says of two scripts; to read the libraries' types takes most of its time."""
    folder = tmp_path_factory.mktemp("typing")
    right, wrong = folder / "right.py", folder / "wrong.py"
    right.write_text(SCRIPT + "".join(f"reveal_type({line})\n" for line in EXPRESSIONS.splitlines()))
    wrong.write_text(SCRIPT + "".join(f"{line}\n" for line in WRONG))
    options = ["--strict", "--config-file=", "--no-error-summary", "--cache-dir", str(folder / "cache")]
    told, errors, status = api.run([*options, str(right), str(wrong)])
    assert not errors and status == 1
    return told.splitlines()


def test_a_strict_checker_finds_nothing_that_is_any(told: list[str]) -> None:
    lines = EXPRESSIONS.splitlines()
    revealed: dict[str, str] = {}
    for line in told:
        if "right.py:" not in line:
            continue
        match = re.search(r'right\.py:(\d+): note: Revealed type is "(.*)"$', line)
        assert match, line
        revealed[lines[int(match[1]) - FIRST]] = match[2]
    assert list(revealed) == lines
    for expression, kind in revealed.items():
        known = kind.replace(SHAPE, "").replace("numpy.", "").replace(ELEMENTS, "").replace("builtins.", "")
        assert expression in UNKNOWN or not re.search(r"\bAny\b", known), f"{expression} is {kind}"


def test_a_strict_checker_refuses_what_is_wrong(told: list[str]) -> None:
    found = {int(match[1]) for line in told if (match := re.search(r"wrong\.py:(\d+): error", line))}
    assert found == set(range(FIRST, FIRST + len(WRONG))), told
