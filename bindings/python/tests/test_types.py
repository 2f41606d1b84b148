"""Elements of every type: stored, found again, sliced, assigned and converted; computed with where that is said."""

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import scipy.sparse as sp

import outcore as oc
from outcore import errors, linalg
from outcore._dtypes import ML_DTYPES, dtype_of
from outcore.cluster import KMeans
from outcore.decomposition import PCA
from outcore.random_projection import SparseRandomProjection

OF_NUMPY = [
    *("bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"),
    *("float16", "float32", "float64", "complex64", "complex128"),
]
DECODED = ["bool", "int8", "uint8", "int16", "uint16", "float16", "bfloat16"]


def made(name: str, shape: tuple[int, ...], rng: np.random.Generator) -> Any:
    return rng.integers(0, 100, shape).astype(dtype_of(name))


def same(found: Any, expected: Any) -> None:
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    assert found.tobytes() == expected.tobytes()


@pytest.mark.filterwarnings("ignore::numpy.exceptions.ComplexWarning")
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("name", [*OF_NUMPY, *sorted(ML_DTYPES)])
def test_every_type_is_stored_and_found_again(name: str, order: Any, tmp_path: Path, rng: np.random.Generator) -> None:
    x = made(name, (37, 11), rng)
    oc.from_numpy(tmp_path / "x.npy", x, order=order)
    a = oc.open(tmp_path / "x.npy")
    same(a.numpy(), x)
    for into, source in ((slice(3, 5), slice(0, 2)), ((slice(None), 2), (slice(None), 1)), ((7, 7), (0, 0))):
        a[into] = x[source]
        x[into] = x[source].copy()
    same(a[1::2, ::-1], x[1::2, ::-1])
    same(a[[5, 1, -1]], x[[5, 1, -1]])
    same(a.T.numpy().T, x)
    same(oc.convert(a, order="F" if order == "C" else "C").numpy(), x)
    for other in ("float64", "int16", "complex64"):
        with np.errstate(invalid="ignore"):
            same(oc.convert(a, tmp_path / "y.npy", dtype=other).numpy(), x.astype(other))
    assert str(a.dtype) in repr(a)
    read = np.load(tmp_path / "x.npy")
    assert read.dtype == (x.dtype if name in OF_NUMPY else np.dtype(f"V{x.dtype.itemsize}"))
    created = oc.create(tmp_path / "new.npy", (3, 2), x.dtype)
    same(created.numpy(), np.zeros((3, 2), x.dtype))


@pytest.mark.filterwarnings("ignore::numpy.exceptions.ComplexWarning")
@pytest.mark.parametrize("source", OF_NUMPY)
@pytest.mark.parametrize("target", [*OF_NUMPY, "bfloat16"])
def test_conversions_are_those_of_numpy(source: str, target: str, tmp_path: Path, rng: np.random.Generator) -> None:
    x = made(source, (50, 3), rng)
    same(oc.convert(oc.from_numpy(tmp_path / "x.npy", x), dtype=target).numpy(), x.astype(dtype_of(target)))


@pytest.mark.parametrize("source", sorted(ML_DTYPES))
@pytest.mark.parametrize("target", sorted(ML_DTYPES))
def test_conversions_between_types_that_numpy_does_not_have(source: str, target: str, tmp_path: Path) -> None:
    x = np.array([[1, 2, 4], [0.5, 8, 1]]).astype(dtype_of(source))
    found = oc.convert(oc.from_numpy(tmp_path / "x.npy", x), dtype=target).numpy()
    same(found, x.astype("f4").astype(dtype_of(target)))


def test_raw_files_of_any_type(tmp_path: Path, rng: np.random.Generator) -> None:
    x = made("bfloat16", (6, 5), rng)
    (tmp_path / "x.bin").write_bytes(x.tobytes())
    same(oc.open(tmp_path / "x.bin", dtype=ml_dtypes.bfloat16, shape=(6, 5)).numpy(), x)
    np.save(tmp_path / "x.npy", x)
    with pytest.raises(errors.UnsupportedError, match="void"):
        oc.open(tmp_path / "x.npy")


@pytest.mark.parametrize("name", sorted(ML_DTYPES))
@pytest.mark.parametrize("order", ["C", "F"])
def test_what_numpy_saved_without_a_name_is_named(name: str, order: Any, tmp_path: Path) -> None:
    x = np.array([[1, 2, 4], [0.5, 8, 1]]).astype(dtype_of(name))
    np.save(tmp_path / "x.npy", np.asarray(x, order=order))
    with pytest.raises(errors.UnsupportedError, match=r"outcore\.open\(path, dtype="):
        oc.open(tmp_path / "x.npy")
    same(oc.open(tmp_path / "x.npy", dtype=name).numpy(), x)
    wrong = "bfloat16" if x.itemsize == 1 else "float8_e5m2"
    for other in (wrong, "float32"):
        with pytest.raises(errors.ArgumentError, match="void"):
            oc.open(tmp_path / "x.npy", dtype=other)


@pytest.mark.parametrize("bad", [np.longdouble, np.clongdouble, object, "datetime64[s]", ">f4", "U3", [("a", "f4")]], ids=str)
def test_other_types_are_refused_by_name(bad: Any, tmp_path: Path) -> None:
    with pytest.raises(errors.DTypeError, match=r"longdouble|object|datetime64|big-endian|U3|'a'"):
        oc.create(tmp_path / "x.npy", 3, bad)
    assert not list(tmp_path.glob("*.npy"))
    with pytest.raises(errors.DTypeError, match="longdouble"):
        oc.from_scipy(tmp_path / "s", sp.eye(3, dtype=np.longdouble, format="csr"))


def test_complex_numbers_do_not_become_real_silently(tmp_path: Path) -> None:
    a = oc.create(tmp_path / "x.npy", 3, "float32")
    with pytest.raises(errors.DTypeError, match=r"x\.real"):
        a[:] = np.ones(3, "c8")


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("name", DECODED)
def test_algorithms_take_what_they_decode(name: str, order: Any, tmp_path: Path, rng: np.random.Generator) -> None:
    """Bit for bit what the same values give as float32."""
    x = made(name, (3000, 48), rng)
    a, b = oc.from_numpy(tmp_path / "a.npy", x, order=order), oc.from_numpy(tmp_path / "b.npy", x.astype("f4"), order=order)
    w = rng.standard_normal((48, 7), dtype=np.float32)
    for function in (
        lambda a: linalg.gemm(a, w).numpy(),
        lambda a: (a.T @ a).numpy(),
        lambda a: linalg.syrk(a.T).numpy(),
        lambda a: linalg.csrmm(sp.random(50, 3000, 0.1, "csr", np.float32, random_state=0), a).numpy(),
        lambda a: linalg.row_norms(a),
        lambda a: linalg.column_statistics(a)["variance"],
        lambda a: linalg.reduce(a),
        lambda a: a.slice(7, 2001, columns=(3, 40)).mean(axis=0),
        lambda a: oc.convert(a, dtype="float64").numpy(),
    ):
        same(np.asarray(function(a)), np.asarray(function(b)))
    # Bytes are multiplied as integers: more exact than floats, and so not bit for bit.
    ours, theirs = PCA(5).fit(a), PCA(5).fit(b)
    np.testing.assert_allclose(ours.explained_variance_, theirs.explained_variance_, rtol=1e-5)
    assert ours.components_.dtype == np.float32
    same(theirs.transform(a, out=tmp_path / "c.npy").numpy(), theirs.transform(b, out=tmp_path / "d.npy").numpy())
    if order == "C":
        same(KMeans(4, random_state=0).fit(a).labels_, KMeans(4, random_state=0).fit(b).labels_)


@pytest.mark.parametrize("chunk_bytes", [0, 16 << 20])
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("name", DECODED)
def test_operands_in_memory_are_computed_with_as_stored_ones(
    name: str, order: Any, chunk_bytes: int, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bit for bit what the same values give as float32; by way of scratch too."""
    monkeypatch.setattr("outcore._array.CHUNK_BYTES", max(chunk_bytes, 4096))
    x = np.asarray(made(name, (300, 48), rng), order=order)
    y, w = x.astype("f4", order=order), rng.standard_normal((48, 7), dtype=np.float32)
    sparse = sp.random(50, 300, 0.1, "csr", np.float32, random_state=0)
    for function in (
        lambda x: linalg.gemm(x, w).numpy(),
        lambda x: linalg.gemm(x, x, trans_a=True).numpy(),
        lambda x: linalg.gemm(x[::2], w, np.empty((150, 7), np.float32)),
        lambda x: linalg.syrk(x).numpy(),
        lambda x: linalg.csrmm(sparse, x),
        lambda x: linalg.csrgemv(sparse, x[:, 0].copy()),
        lambda x: linalg.row_norms(x),
        lambda x: linalg.column_statistics(x)["variance"],
    ):
        same(np.asarray(function(x)), np.asarray(function(y)))
    plan = oc.explain(linalg.gemm, x, w)
    assert plan.name == "gemm"
    ours, theirs = PCA(5).fit(x), PCA(5).fit(y)
    for learned in ("components_", "explained_variance_"):
        assert getattr(ours, learned).dtype == np.float32
        same(getattr(ours, learned), getattr(theirs, learned))
    same(ours.transform(x), theirs.transform(y))


def test_products_of_small_vectors_do_not_overflow(tmp_path: Path) -> None:
    x = np.full(300, 200, np.uint8)
    a = oc.from_numpy(tmp_path / "x.npy", x)
    assert float(a @ x) == float(a @ a) == 300 * 200 * 200
    b = oc.from_numpy(tmp_path / "b.npy", np.ones((2, 300), np.float32))
    assert (b @ a).tolist() == (b @ x).tolist() == [60_000, 60_000]


def test_products_with_tensors(tmp_path: Path, rng: np.random.Generator) -> None:
    torch = pytest.importorskip("torch")
    x, w = rng.standard_normal((30, 5), dtype=np.float32), rng.standard_normal((5, 4), dtype=np.float32)
    s = sp.random(20, 30, 0.3, "csr", np.float32, random_state=0)
    a, b = oc.from_numpy(tmp_path / "x.npy", x), oc.from_scipy(tmp_path / "s", s)
    t = torch.from_numpy(w)
    for found, expected in (
        (a @ t, x @ w),
        (a @ t.T.contiguous().T, x @ w),
        (a @ t[:, 0], x @ w[:, 0]),
        (a @ t.to(torch.bfloat16), x @ t.to(torch.bfloat16).float().numpy()),
        (b @ torch.from_numpy(x), s @ x),
        (a.T @ torch.from_numpy(x), x.T @ x),
    ):
        np.testing.assert_allclose(np.asarray(found), expected, rtol=1e-4, atol=1e-5)
    with pytest.raises(errors.ArgumentError, match="Tensor is computed with where NumPy reads its memory"):
        a @ t.clone().requires_grad_()
    with pytest.raises(errors.ArgumentError, match="Tensor is computed with where NumPy reads its memory"):
        a @ torch.empty((5, 4), device="meta")


@pytest.mark.parametrize("name", DECODED)
def test_random_projections_take_what_they_decode(name: str, tmp_path: Path, rng: np.random.Generator) -> None:
    x = made(name, (300, 40), rng)
    a, b = oc.from_numpy(tmp_path / "a.npy", x), oc.from_numpy(tmp_path / "b.npy", x.astype("f4"))
    projection = SparseRandomProjection(5, random_state=0).fit(b)
    same(projection.transform(a).numpy(), projection.transform(b).numpy())


def test_a_quarter_of_the_bytes_is_read(tmp_path: Path, rng: np.random.Generator) -> None:
    x = made("uint8", (40_000, 192), rng)
    a, b = oc.from_numpy(tmp_path / "a.npy", x), oc.from_numpy(tmp_path / "b.npy", x.astype("f4"))
    small, large = (PCA(5, memory="16MiB").explain(y).bytes_read for y in (a, b))
    assert small < 0.26 * large


def test_what_is_not_computed_with_names_the_conversion(tmp_path: Path) -> None:
    advice = {
        "int32": "float64",
        "uint32": "float64",
        "int64": "float64",
        "uint64": "float64",
        "complex64": r"x\.real or x\.imag",
        "float8_e5m2": "float32",
    }
    for name in advice:
        a = oc.from_numpy(tmp_path / "x.npy", np.ones((30, 5)).astype(dtype_of(name)))
        for function in (PCA(2).fit, KMeans(2).fit, linalg.row_norms, lambda a: a @ a.T, lambda a: linalg.scale(a, 2.0)):
            with pytest.raises(errors.DTypeError, match=rf"{name}.*{advice[name]}"):
                function(a)
        with np.errstate(all="ignore"), pytest.warns() if name == "complex64" else _nothing():
            converted = oc.convert(a, tmp_path / "y.npy", dtype="float32")
        assert PCA(2).fit(converted).mean_.tolist() == [1] * 5


def test_what_is_scaled_in_place_is_converted_first(tmp_path: Path) -> None:
    a = oc.from_numpy(tmp_path / "x.npy", np.ones((30, 5), np.uint8))
    with pytest.raises(errors.DTypeError, match=r"uint8, where .*outcore\.convert\(x, path, dtype='float32'\)"):
        linalg.scale(a, 2.0)


def test_a_file_without_the_name_of_its_type_says_how_it_is_opened(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.ones((3, 2), np.uint16).view("V2"))
    with pytest.raises(errors.UnsupportedError, match=r"outcore\.open\(path, dtype=\)"):
        oc.open(tmp_path / "x.npy")
    assert oc.open(tmp_path / "x.npy", dtype="bfloat16", shape=(3, 2), offset=128).shape == (3, 2)


def _nothing() -> Any:
    import contextlib

    return contextlib.nullcontext()


@pytest.mark.parametrize("block_bytes", [1, 1000, 16 << 20])
def test_more_dimensions(block_bytes: int, tmp_path: Path, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outcore._rows.BLOCK_BYTES", block_bytes)
    x = made("uint8", (70, 4, 4, 3), rng)
    np.save(tmp_path / "x.npy", x)
    a = oc.open(tmp_path / "x.npy")
    assert (a.shape, a.ndim, len(a), a.size) == (x.shape, 4, 70, x.size)
    for key in (slice(3, 40, 7), 5, -1, [3, 60], slice(60, 3, -9), ..., (slice(2, 4), 1), (3, 2, 1, 0)):
        same(np.asarray(a[key]), np.asarray(x[key]))
    for key in (
        (..., 0),
        (..., slice(1, 3)),
        (slice(None), ..., 2),
        (slice(50, 2, -3), 1, ..., 0),
        (5, ..., 1),
        (..., 3, 0),
        (slice(9, 9), ..., 0),
        (slice(2, 9), None, 1),
    ):
        same(np.asarray(a[key]), np.asarray(x[key]))
    for wrong in ((..., 4), (..., 0, ...), (0, 0, 0, 0, 0)):
        with pytest.raises(IndexError):
            a[wrong]
    same(a.slice(3, 9).numpy(), x[3:9])
    rows = a.reshape(70, -1)
    assert rows.shape == (70, 48)
    same(rows.numpy(), x.reshape(70, -1))
    assert PCA(3).fit(rows).mean_.shape == (48,)
    a[3:5] = 7
    a[9] = x[8]
    a[20:23] = x[0:3]
    a[30:40:3] = x[0]
    x[20:23] = x[0:3].copy()
    x[3:5], x[9], x[30:40:3] = 7, x[8], x[0]
    same(a.numpy(), x)
    for wrong in ((70, 47), (140, 24), (-1, -1), (35, -1)):
        with pytest.raises((errors.ShapeError, errors.ArgumentError)):
            a.reshape(*wrong)
    with pytest.raises(errors.ShapeError):
        a[3:5] = np.ones((3, 4, 4, 3))


def test_types_travel_with_a_pickle(tmp_path: Path, rng: np.random.Generator) -> None:
    import pickle

    x = made("bfloat16", (10, 4, 2), rng)
    a = oc.from_numpy(tmp_path / "x.npy", x).reshape(10, 8).slice(2, 7)
    same(pickle.loads(pickle.dumps(a)).numpy(), x.reshape(10, 8)[2:7])


@pytest.mark.parametrize("name", ["uint8", "int8", "bool"])
@pytest.mark.parametrize("columns", [1, 13, 192, 1500])
def test_components_of_bytes_are_exact(name: str, columns: int, tmp_path: Path, rng: np.random.Generator) -> None:
    """Whether the covariance is in one piece or in panels."""
    low = rng.standard_normal((3000, 3)) @ rng.standard_normal((3, columns)) * 20
    x = np.clip(low + rng.standard_normal(low.shape), -128, 127).astype("i1").view(name if name != "bool" else "u1")
    x = (x > 100).view(bool) if name == "bool" else x
    a = oc.from_numpy(tmp_path / "x.npy", x)
    found = PCA(1, memory="16MiB" if columns > 1000 else None).fit(a.slice(7, 2990))
    wide = x[7:2990].astype("f8")
    np.testing.assert_allclose(found.mean_, wide.mean(axis=0), rtol=1e-12, atol=1e-12)
    value = np.linalg.eigvalsh(np.atleast_2d(np.cov(wide.T)))[-1]
    np.testing.assert_allclose(found.explained_variance_[0], value, rtol=1e-6)
