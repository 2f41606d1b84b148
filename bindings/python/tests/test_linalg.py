"""Products and one-pass statistics against NumPy, on all layouts."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st

import outcore as oc
from outcore import errors, linalg
from outcore.decomposition import PCA

TOLERANCE = {"float32": 2e-6, "float64": 4e-15}
"""A few units of rounding, multiplied below by the length of the sums."""


def close(found: npt.ArrayLike, expected: npt.NDArray[np.float64], dtype: str, depth: int) -> None:
    scale = max(1.0, float(np.abs(expected).max(initial=0)))
    np.testing.assert_allclose(found, expected, rtol=0, atol=TOLERANCE[dtype] * max(depth, 1) * scale)


@st.composite
def operands(draw: st.DrawFn, rows: int, cols: int, dtype: str, seed: int) -> tuple[str, npt.NDArray[np.float64]]:
    """Where the operand is and how it lies, and its values."""
    kind = draw(
        st.sampled_from(
            ["stored", "stored F", "slice", "turned", "numpy", "numpy F", "numpy gaps", "numpy both gaps", "reversed"]
        )
    )
    return kind, np.random.default_rng(seed).standard_normal((rows, cols)).astype(dtype)


def placed(folder: Path, name: str, kind: str, x: npt.NDArray[np.float64]) -> object:
    rows, cols = x.shape
    padded = np.full((rows + 5, cols + 7), np.nan, x.dtype)
    padded[2 : 2 + rows, 3 : 3 + cols] = x
    path = folder / name
    match kind:
        case "stored":
            return oc.from_numpy(path, x)
        case "stored F":
            return oc.from_numpy(path, x, order="F")
        case "slice":
            return oc.from_numpy(path, padded).slice(2, 2 + rows, columns=(3, 3 + cols))
        case "turned":
            return oc.from_numpy(path, np.ascontiguousarray(x.T)).T
        case "numpy":
            return x
        case "numpy F":
            return np.asfortranarray(x)
        case "numpy gaps":
            return padded[2 : 2 + rows, 3 : 3 + cols]
        case "numpy both gaps":
            return np.repeat(np.repeat(x, 2, 0), 3, 1)[::2, ::3]
        case _:
            return np.ascontiguousarray(x[::-1])[::-1]


sizes = st.one_of(st.integers(1, 40), st.sampled_from([64, 127, 300, 513]))


@given(data=st.data(), m=sizes, n=sizes, k=sizes, dtype=st.sampled_from(["float32", "float64"]), seed=st.integers(0, 1000))
def test_gemm_agrees_with_numpy(tmp_path: Path, data: st.DataObject, m: int, n: int, k: int, dtype: str, seed: int) -> None:
    trans_a, trans_b = data.draw(st.booleans()), data.draw(st.booleans())
    a_kind, a = data.draw(operands(*((k, m) if trans_a else (m, k)), dtype, seed))
    b_kind, b = data.draw(operands(*((n, k) if trans_b else (k, n)), dtype, seed + 1))
    alpha, beta = data.draw(st.sampled_from([(1.0, 0.0), (-0.5, 0.0), (2.0, 1.0), (1.0, -0.25), (0.0, 1.0)]))
    expected = alpha * (a.T if trans_a else a).astype(float) @ (b.T if trans_b else b).astype(float)
    out = None
    if beta:
        c = np.random.default_rng(seed + 2).standard_normal((m, n)).astype(dtype)
        out = oc.from_numpy(tmp_path / "c.npy", c, order=data.draw(st.sampled_from("CF")))
        expected += beta * c.astype(float)
    left, right = placed(tmp_path, "a.npy", a_kind, a), placed(tmp_path, "b.npy", b_kind, b)
    found = linalg.gemm(left, right, out, alpha=alpha, beta=beta, trans_a=trans_a, trans_b=trans_b, memory="8MiB")  # type: ignore[call-overload]
    assert (found.shape, found.dtype) == ((m, n), dtype)
    close(found.numpy(), expected, dtype, k)


@given(data=st.data(), n=sizes, k=sizes, trans=st.booleans(), full=st.booleans(), dtype=st.sampled_from(["float32", "float64"]))
def test_syrk_agrees_with_numpy(tmp_path: Path, data: st.DataObject, n: int, k: int, trans: bool, full: bool, dtype: str) -> None:
    kind, a = data.draw(operands(*((k, n) if trans else (n, k)), dtype, n + 7 * k))
    expected = (a.T @ a if trans else a @ a.T).astype(float)
    found = linalg.syrk(placed(tmp_path, "a.npy", kind, a), trans=trans, full=full, alpha=2, memory="8MiB").numpy()  # type: ignore[arg-type]
    expected = 2 * (expected if full else np.tril(expected))
    close(found, expected, dtype, k)


def test_products_are_written_with_operators(tmp_path: Path, rng: np.random.Generator) -> None:
    x, y = rng.standard_normal((30, 20)), rng.standard_normal((20, 25))
    a, b = oc.from_numpy(tmp_path / "a.npy", x), oc.from_numpy(tmp_path / "b.npy", y)
    for found in (a @ b, a @ y, x @ b, (b.T @ a.T).T):
        assert isinstance(found, oc.Array)
        np.testing.assert_allclose(found.numpy(), x @ y)
    v = oc.from_numpy(tmp_path / "v.npy", y[:, 0])
    for found in (a @ y[:, 0], a @ v, y[:, 0] @ a.T, v @ a.T):
        assert isinstance(found, np.ndarray)
        np.testing.assert_allclose(found, x @ y[:, 0])


def test_results_go_where_they_are_told(tmp_path: Path, rng: np.random.Generator) -> None:
    x = rng.standard_normal((50, 40))
    a = oc.from_numpy(tmp_path / "a.npy", x)
    named = linalg.gemm(a, a.T, tmp_path / "c.npy")
    assert named.path == tmp_path / "c.npy"
    np.testing.assert_allclose(np.load(tmp_path / "c.npy"), x @ x.T)
    part = oc.create(tmp_path / "d.npy", (60, 60), "float64").slice(3, 53, columns=(7, 57))
    assert linalg.gemm(a, a.T, part) is part
    np.testing.assert_allclose(np.load(tmp_path / "d.npy")[3:53, 7:57], x @ x.T)
    memory = np.empty((50, 50))
    assert linalg.gemm(a, a.T, out=memory) is memory
    np.testing.assert_allclose(memory, x @ x.T)


def test_an_output_that_is_an_operand_is_refused(tmp_path: Path) -> None:
    a = oc.from_numpy(tmp_path / "a.npy", np.eye(4))
    with pytest.raises(errors.ArgumentError, match=r"a\.npy is both an operand and the output"):
        linalg.gemm(a, a, a)
    x = np.eye(4)
    with pytest.raises(errors.ArgumentError, match="shares memory"):
        linalg.gemm(a, x, out=x)
    # A new file may take the name of an operand: it is written beside it.
    found = linalg.gemm(a, 2 * x, tmp_path / "a.npy")
    np.testing.assert_array_equal(found.numpy(), 2 * x)


def test_a_plan_is_explained_without_moving_anything(tmp_path: Path) -> None:
    a = oc.from_numpy(tmp_path / "a.npy", np.eye(50))
    plan = oc.explain(linalg.gemm, a, a, tmp_path / "c.npy")
    assert "plan        gemm" in str(plan) and plan.name == "gemm" and "gemm" in repr(plan)
    assert a.nbytes <= plan.bytes_read and a.nbytes <= plan.bytes_written and plan.flops == 2 * 50**3
    assert plan.floor_bytes <= plan.peak_bytes <= plan.memory_bytes == a.session.memory
    assert json.loads(plan.json())[0]["notes"] and plan.notes["block"] and plan.parts == ()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.npy", "scratch"]
    # What comes after is not planned only.
    assert linalg.reduce(a) == 50
    with pytest.raises(errors.ArgumentError, match="dict makes no run"):
        oc.explain(dict)
    with pytest.raises(errors.ShapeError):
        oc.explain(linalg.gemm, a, a.slice(0, 3))
    assert linalg.reduce(a) == 50


def test_sums_and_scaling_are_in_place(tmp_path: Path, rng: np.random.Generator) -> None:
    x, y = rng.standard_normal((2, 70, 30))
    a, b = oc.from_numpy(tmp_path / "x.npy", x), oc.from_numpy(tmp_path / "y.npy", y, order="F")
    assert linalg.axpby(a, b, alpha=2, beta=-1) is b
    np.testing.assert_allclose(b.numpy(), 2 * x - y)
    linalg.axpby(y.T, b.T, alpha=1, beta=0)
    np.testing.assert_allclose(b.numpy(), y)
    linalg.scale(a.slice(10, 20), 3)
    x[10:20] *= 3
    np.testing.assert_allclose(np.load(tmp_path / "x.npy"), x)


def test_statistics_agree_with_numpy(tmp_path: Path, rng: np.random.Generator) -> None:
    x = rng.standard_normal((501, 33)) + 1000
    for a in (oc.from_numpy(tmp_path / "x.npy", x), oc.from_numpy(tmp_path / "f.npy", x, order="F"), x):
        for name, order in (("l1", 1), ("l2", 2), ("max", np.inf)):
            np.testing.assert_allclose(linalg.row_norms(a, name), np.linalg.norm(x, order, axis=1), rtol=1e-12)  # type: ignore[arg-type]
            np.testing.assert_allclose(linalg.column_norms(a, name), np.linalg.norm(x, order, axis=0), rtol=1e-12)  # type: ignore[arg-type]
        found = linalg.column_statistics(a, ddof=1)
        assert found["count"] == 501
        for name, expected in {"mean": x.mean(0), "variance": x.var(0, ddof=1), "min": x.min(0), "max": x.max(0)}.items():
            np.testing.assert_allclose(found[name], expected, rtol=1e-12)
        np.testing.assert_allclose(linalg.reduce(a), x.sum())
        np.testing.assert_allclose(linalg.reduce(a, "sum_of_squares"), np.square(x).sum())
        assert (linalg.reduce(a, "min"), linalg.reduce(a, "max")) == (x.min(), x.max())


def test_the_number_of_threads_does_not_change_a_bit(tmp_path: Path, rng: np.random.Generator) -> None:
    x = rng.standard_normal((400, 300)).astype(np.float32)
    oc.from_numpy(tmp_path / "x.npy", x)
    found = []
    for threads in (1, 3):
        session = oc.Session("8MiB", tmp_path / "scratch", threads, allow_tmpfs_scratch=True)
        a = session.open(tmp_path / "x.npy")
        found.append((a @ a.T).numpy())
    np.testing.assert_array_equal(*found)


def test_bytes_of_an_operand_that_is_both_sides_count_once(tmp_path: Path) -> None:
    a = oc.create(tmp_path / "a.npy", (300, 200))
    assert oc.explain(linalg.gemm, a.T, a).bound_bytes == a.nbytes + 200 * 200 * 4
    left, right = a.slice(columns=(0, 120)), a.slice(columns=(80, 200))
    assert oc.explain(linalg.gemm, left.T, right).bound_bytes == a.nbytes + 120 * 120 * 4
    b = oc.create(tmp_path / "b.npy", (300, 200))
    assert oc.explain(linalg.gemm, a.T, b).bound_bytes == a.nbytes + b.nbytes + 200 * 200 * 4


def test_a_run_is_traced(tmp_path: Path, rng: np.random.Generator) -> None:
    a = oc.from_numpy(tmp_path / "x.npy", rng.standard_normal((300, 300)))
    a @ a
    trace = oc.last_trace()
    assert trace.plan == "gemm"
    assert trace.flops >= 2 * 300**3
    assert trace.actual["bytes_read"] >= a.nbytes
    trace.save(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    lanes = {event["tid"]: event["args"]["name"] for event in events if event["ph"] == "M"}
    spans = [event for event in events if event["ph"] == "X"]
    assert len(events) == len(lanes) + len(spans)
    used = {lanes[span["tid"]] for span in spans}
    assert "device" in used
    assert used & {"core 0", "core 1"}
    assert all(span["ts"] >= 0 and span["dur"] >= 0 and span["pid"] == 1 and span["name"] for span in spans)
    assert trace.device_busy_s + trace.device_idle_s == pytest.approx(trace.wall_s)
    threads = oc.default_session().threads
    assert trace.cores_busy_s + trace.cores_idle_s == pytest.approx(threads * trace.wall_s)
    assert "read" in str(trace)
    with pytest.raises(AttributeError):
        trace.nothing  # noqa: B018


def test_memory_for_a_result_is_of_its_type_shape_and_layout(tmp_path: Path) -> None:
    """Products of float32 were once packed into the bytes of a float64 array."""
    for dtype, other in (("float32", "float64"), ("float64", "float32")):
        x = np.eye(4, dtype=dtype)
        a = oc.from_numpy(tmp_path / "a.npy", x)
        for wrong in (other, f">{x.dtype.str[1:]}", "int32"):
            with pytest.raises(errors.DTypeError, match="out is"):
                linalg.gemm(a, x, out=np.zeros((4, 4), wrong))
        for shape in ((4, 5), (16,), (1, 4, 4), ()):
            with pytest.raises(errors.ShapeError):
                linalg.gemm(a, x, out=np.zeros(shape, dtype))
        fixed, masked = np.zeros((4, 4), dtype), np.ma.zeros((4, 4), dtype)
        fixed.flags.writeable = False
        for out in (fixed, masked, np.zeros((4, 4), dtype, order="F"), np.zeros((4, 8), dtype)[:, ::2], unaligned(x)):
            with pytest.raises(errors.ArgumentError):
                linalg.gemm(a, x, out=out)


def unaligned(x: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The same values, one byte off."""
    found = np.frombuffer(bytearray(b"x" + x.tobytes()), np.uint8)[1:].view(x.dtype).reshape(x.shape)
    assert not found.flags.aligned
    return found


def test_memory_of_any_layout_is_an_operand(tmp_path: Path, rng: np.random.Generator) -> None:
    x = rng.standard_normal((8, 6)).astype(np.float32)
    a = oc.from_numpy(tmp_path / "a.npy", x)
    record = np.zeros((8, 6), [("skip", "i1"), ("x", "f4")])
    record["x"] = x
    for same in (unaligned(x), unaligned(x.T.copy()).T, record["x"], np.repeat(x, 2, 1)[:, ::2], x[::-1, ::-1][::-1, ::-1]):
        np.testing.assert_array_equal((a.T @ same).numpy(), (a.T @ x).numpy())
        np.testing.assert_allclose(linalg.row_norms(same), np.linalg.norm(x, axis=1), rtol=1e-6)
        np.testing.assert_array_equal(oc.from_numpy(tmp_path / "b.npy", same).numpy(), x)
        a[...] = 0
        a[...] = same
        np.testing.assert_array_equal(a.numpy(), x)
    for empty in (np.zeros((0, 6))[:, ::-1], np.zeros((6, 0))[::-1]):
        assert linalg.reduce(empty) == 0


def test_masked_arrays_are_refused(tmp_path: Path) -> None:
    x = np.ma.masked_greater(np.eye(4), 0.5)
    a = oc.create(tmp_path / "a.npy", (4, 4), "float64")
    attempts = [
        lambda: linalg.gemm(a, x),
        lambda: x @ a,
        lambda: a @ x[0],
        lambda: linalg.column_statistics(x),
        lambda: a.__setitem__(0, x[0]),
        lambda: oc.from_numpy(tmp_path / "b.npy", x),
        lambda: PCA().fit(x),
    ]
    for attempt in attempts:
        with pytest.raises(errors.ArgumentError, match="masked array"):
            attempt()
    assert not (tmp_path / "b.npy").exists()


def test_what_is_only_explained_changes_nothing(tmp_path: Path) -> None:
    a = oc.from_numpy(tmp_path / "a.npy", np.eye(4))
    plans = [
        oc.explain(linalg.gemm, a, a),
        oc.explain(linalg.gemm, a, a, out=np.zeros((4, 4))),
        oc.explain(linalg.syrk, a),
        oc.explain(linalg.axpby, np.ones((4, 4)), a),
        oc.explain(linalg.scale, a, 2),
        oc.explain(linalg.row_norms, a),
        oc.explain(linalg.column_norms, a),
        oc.explain(linalg.column_statistics, a),
        oc.explain(linalg.reduce, a),
        oc.explain(oc.convert, a),
        oc.explain(a.__setitem__, slice(2), 1.0),
        oc.explain(a.numpy),
        oc.explain(lambda: a @ a.T),
    ]
    assert all(str(plan).startswith("plan") for plan in plans)
    np.testing.assert_array_equal(a.numpy(), np.eye(4))


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("shape", [(0, 4), (5, 0), (5, 3), (1, 3), (3, 1)])
def test_statistics_of_little_or_nothing_do_not_depend_on_the_order(tmp_path: Path, shape: tuple[int, int], order: Any) -> None:
    a = oc.create(tmp_path / "a.npy", shape, order=order)
    found = linalg.column_statistics(a)
    assert (found["count"], found["mean"].shape) == (shape[0], shape[1:])
    assert linalg.row_norms(a).shape == shape[:1]
    assert linalg.column_norms(a).shape == shape[1:]
    assert linalg.reduce(a) == 0


@pytest.mark.parametrize("kind", ["stored", "stored F", "turned", "numpy", "numpy F"])
@pytest.mark.parametrize("memory", [None, "1MiB"])
def test_norms_are_told_where_squares_leave_the_range(tmp_path: Path, rng: np.random.Generator, kind: str, memory: Any) -> None:
    """In one panel and in several: a Euclidean norm is as a float64 can hold it, whatever its square is."""
    x = rng.standard_normal((3000, 40)) * rng.choice([1e200, 1e-200, 1.0, 0.0], 40)
    x[::7] *= 1e-120
    a = placed(tmp_path, "a.npy", kind, x)
    for found, axis in ((linalg.row_norms(a, memory=memory), 1), (linalg.column_norms(a, memory=memory), 0)):  # type: ignore[arg-type]
        most = np.abs(x).max(axis=axis, keepdims=True)
        most[most == 0] = 1
        expected = np.linalg.norm(x / most, axis=axis) * most.ravel()
        np.testing.assert_allclose(found, expected, rtol=1e-13)


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_norms_of_what_is_not_finite(tmp_path: Path, order: Any, dtype: str) -> None:
    """A NaN wins over infinity wherever the two are, as it does in NumPy."""
    x = np.ones((5000, 6), dtype)
    x[0, 0], x[4999, 0], x[0, 1], x[4999, 2], x[17, 3], x[4000, 3] = np.inf, np.nan, -np.inf, np.nan, np.inf, -np.inf
    a = oc.from_numpy(tmp_path / "a.npy", x, order=order)
    for name in ("l1", "l2", "max"):
        np.testing.assert_array_equal(linalg.column_norms(a, name, memory="1MiB")[:4], [np.nan, np.inf, np.nan, np.inf])  # type: ignore[arg-type]
        found = linalg.row_norms(a, name, memory="1MiB")  # type: ignore[arg-type]
        assert (np.isnan(found).nonzero()[0] == [4999]).all()
        assert (np.isinf(found).nonzero()[0] == [0, 17, 4000]).all()


def test_dense_functions_say_that_a_matrix_is_sparse(tmp_path: Path) -> None:
    a = oc.from_numpy(tmp_path / "a.npy", np.eye(4))
    matrix = sp.identity(4, format="csr")
    for x in (oc.from_scipy(tmp_path / "s", matrix), matrix):
        attempts: list[Any] = [
            lambda x=x: linalg.gemm(x, a),
            lambda x=x: linalg.gemm(a, x, np.empty((4, 4))),
            lambda x=x: linalg.syrk(x),
            lambda x=x: linalg.axpby(x, a),
            lambda x=x: linalg.scale(x, 2),
            lambda x=x: linalg.reduce(x),
            lambda x=x: linalg.csrmm(x, x),
            lambda x=x: linalg.csrgemv(x, x),
            lambda x=x: oc.convert(x),
            lambda x=x: oc.from_numpy(tmp_path / "b.npy", x),
            lambda x=x: a.__setitem__(slice(None), x),
        ]
        for attempt in attempts:
            with pytest.raises(errors.DTypeError, match="sparse"):
                attempt()
    for attempt in (
        lambda: linalg.csrmm(a, a),
        lambda: linalg.csrcsc(a),
        lambda: linalg.scaled(np.eye(3)),
        lambda: oc.export_mtx(a, tmp_path / "a.mtx"),
        lambda: oc.from_scipy(tmp_path / "b", np.eye(3)),
    ):
        with pytest.raises(errors.DTypeError, match="dense"):
            attempt()
    assert not (tmp_path / "b.npy").exists()
    np.testing.assert_array_equal(a.numpy(), np.eye(4))
