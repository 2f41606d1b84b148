"""Arrays on SSD: what they are, what leaves them, what enters them."""

import copy
import errno
import os
import pickle
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import outcore as oc
from outcore import errors


def test_a_file_of_numpy_is_opened_as_it_is(tmp_path: Path, rng: np.random.Generator) -> None:
    for dtype in ("float32", "float64"):
        for order in ("C", "F"):
            x = np.asarray(rng.standard_normal((37, 19)), dtype, order=order)
            np.save(tmp_path / "x.npy", x)
            a = oc.open(tmp_path / "x.npy")
            assert (a.shape, a.dtype, a.ndim, a.size, a.nbytes, a.order) == ((37, 19), x.dtype, 2, x.size, x.nbytes, order)
            assert len(a) == 37
            np.testing.assert_array_equal(a.numpy(), x)
            np.testing.assert_array_equal(a.T.numpy(), x.T)


def test_numpy_opens_our_files(tmp_path: Path, rng: np.random.Generator) -> None:
    x = rng.standard_normal((50, 3)).astype(np.float32)
    for order in ("C", "F"):
        oc.from_numpy(tmp_path / "x.npy", x, order=order)
        loaded = np.load(tmp_path / "x.npy", mmap_mode="r")
        np.testing.assert_array_equal(loaded, x)
        assert loaded.flags.f_contiguous == (order == "F")


def test_created_arrays_are_zero_and_written_through(tmp_path: Path) -> None:
    a = oc.create(tmp_path / "a.npy", (10, 4))
    assert not a.numpy().any()
    a[2:4] = np.ones((2, 4), np.float32)
    a[5] = 3
    a[:, 1] = [9] * 10
    expected = np.zeros((10, 4), np.float32)
    expected[2:4], expected[5], expected[:, 1] = 1, 3, 9
    np.testing.assert_array_equal(np.load(tmp_path / "a.npy"), expected)


def test_results_belong_to_the_caller(tmp_path: Path) -> None:
    a = oc.create(tmp_path / "a.npy", (4, 4))
    x = a[:]
    assert x.flags.owndata or x.base.flags.owndata
    assert x.flags.writeable
    x[:] = 7
    assert not a.numpy().any()


keys = st.one_of(
    st.integers(-12, 12),
    st.slices(12),
    st.just(Ellipsis),
    st.builds(slice, st.integers(-15, 15), st.integers(-15, 15), st.just(-3)),
)


@given(
    key=st.one_of(keys, st.tuples(keys, keys)),
    order=st.sampled_from("CF"),
    turned=st.booleans(),
    dimensions=st.sampled_from([1, 2]),
)
def test_keys_pick_what_they_pick_in_numpy(tmp_path: Path, key: object, order: str, turned: bool, dimensions: int) -> None:
    x = np.arange(12 * 9, dtype=np.float64).reshape(12, 9) if dimensions == 2 else np.arange(12.0)
    a = oc.from_numpy(tmp_path / "x.npy", x, order=order if dimensions == 2 else "C")
    a, x = (a.T, x.T) if turned else (a, x)
    try:
        expected = x[key]
    except IndexError:
        with pytest.raises(IndexError):
            a[key]
        return
    found = a[key]
    np.testing.assert_array_equal(found, expected)
    assert np.shape(found) == np.shape(expected)

    x = x.copy()
    values = np.arange(1000, 1000 + np.size(expected), dtype=np.float64).reshape(np.shape(expected))
    x[key] = values
    a[key] = values
    np.testing.assert_array_equal(a.numpy(), x)
    x[key] = -1
    a[key] = -1
    np.testing.assert_array_equal(a.numpy(), x)


def test_steps_and_broadcasts_go_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator) -> None:
    monkeypatch.setattr("outcore._array.CHUNK_BYTES", 1000)
    x = rng.standard_normal((97, 31))
    a = oc.from_numpy(tmp_path / "x.npy", x)
    for key in np.s_[::-5, ::2], np.s_[3:90:7], np.s_[:, ::-1]:
        np.testing.assert_array_equal(a[key], x[key])
        a[key] = x[key] = x[key][::-1] * 2
        np.testing.assert_array_equal(a.numpy(), x)
    a[:] = x[:] = np.arange(31)
    np.testing.assert_array_equal(a.numpy(), x)


def test_views_share_the_file(tmp_path: Path, rng: np.random.Generator) -> None:
    x = rng.standard_normal((40, 30))
    a = oc.from_numpy(tmp_path / "x.npy", x)
    view = a.slice(5, -5, columns=(10, 20)).T.slice(2, 6)
    np.testing.assert_array_equal(view.numpy(), x[5:-5, 10:20].T[2:6])
    view[1] = 5
    x[5:-5, 13] = 5
    np.testing.assert_array_equal(a.numpy(), x)
    np.testing.assert_array_equal(oc.open(tmp_path / "x.npy").numpy(), x)


def test_arrays_are_assigned_to_arrays(tmp_path: Path, rng: np.random.Generator) -> None:
    x = rng.standard_normal((20, 10))
    a, b = oc.from_numpy(tmp_path / "a.npy", x), oc.create(tmp_path / "b.npy", (30, 20), "float64")
    b[5:15] = a.T
    np.testing.assert_array_equal(b[5:15], x.T)
    assert not b[:5].any()


def test_memory_of_any_layout_is_written(tmp_path: Path, rng: np.random.Generator) -> None:
    big = rng.standard_normal((60, 40))
    layouts = [big[:20, :10], big.T[:20, :10], big[:20, ::4][:, :10], big[::-1][:20, :10], np.asfortranarray(big)[:20, :10]]
    layouts += [np.broadcast_to(big[0, :10], (20, 10)), big[:20, :10].astype(">f8"), big[:20, :10].astype("f4")]
    a = oc.create(tmp_path / "a.npy", (20, 10), "float64")
    for values in layouts:
        a[:] = 0
        a[:] = values
        np.testing.assert_array_equal(a.numpy(), values)


def test_vectors_and_empty_arrays(tmp_path: Path) -> None:
    v = oc.from_numpy(tmp_path / "v.npy", np.arange(5.0))
    assert (v.shape, v.ndim, v.T.shape) == ((5,), 1, (5,))
    assert v[3] == 3
    assert v[1:3].tolist() == [1, 2]
    for shape in (0, (0, 4), (4, 0)):
        empty = oc.create(tmp_path / "e.npy", shape, mode="w")
        assert empty.numpy().shape == ((shape,) if shape == 0 else shape)
        empty[:] = 1


def test_raw_files_are_described_by_their_opener(tmp_path: Path) -> None:
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    (tmp_path / "x.bin").write_bytes(b"head" * 4 + x.tobytes(order="F"))
    a = oc.open(tmp_path / "x.bin", dtype="float32", shape=(3, 4), order="F", offset=16)
    np.testing.assert_array_equal(a.numpy(), x)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(a.T)).numpy(), x.T)
    # Rows with a gap behind each.
    (tmp_path / "y.bin").write_bytes(np.arange(35, dtype=np.float64).tobytes())
    gaps = oc.open(tmp_path / "y.bin", dtype="float64", shape=(4, 6), leading_dimension=7, offset=56)
    expected = np.arange(35, dtype=np.float64).reshape(5, 7)[1:, :6]
    np.testing.assert_array_equal(gaps.numpy(), expected)
    gaps[1:3] = 0
    assert oc.open(tmp_path / "y.bin", dtype="float64", shape=35).numpy()[20] == 20
    with pytest.raises(errors.UnsupportedError, match="leading dimension of 5"):
        oc.open(tmp_path / "y.bin", dtype="float64", shape=(4, 6), leading_dimension=5)
    with pytest.raises(errors.ArgumentError, match="leading_dimension must be"):
        oc.open(tmp_path / "y.bin", dtype="float64", shape=(4, 6), leading_dimension=-1)


def test_raw_files_are_described_by_a_file_beside_them(tmp_path: Path) -> None:
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    (tmp_path / "x.bin").write_bytes(b"head" + x.tobytes(order="F"))
    with pytest.raises(errors.UnsupportedError, match=r"x\.bin\.json"):
        oc.open(tmp_path / "x.bin")
    (tmp_path / "x.bin.json").write_text('{"dtype": "float32", "shape": [3, 4], "order": "column", "offset": 4}')
    a = oc.open(tmp_path / "x.bin")
    assert a.order == "F"
    np.testing.assert_array_equal((a @ a.T).numpy(), x @ x.T)
    (tmp_path / "x.bin.json").write_text('{"dtype": "float32", "shape": [3, 5]}')
    with pytest.raises(errors.TruncatedError, match=r"x\.bin"):
        oc.open(tmp_path / "x.bin")


def shifted(path: Path, x: np.ndarray[Any, Any], shift: int, behind: bytes = b"") -> Path:
    """A `.npy` file whose header is padded so that the data begin `shift` bytes behind a multiple of 16."""
    order = "True" if x.flags.f_contiguous and not x.flags.c_contiguous else "False"
    header = f"{{'descr': '{x.dtype.str}', 'fortran_order': {order}, 'shape': {x.shape}, }}"
    header += " " * ((shift - 11 - len(header)) % 16) + "\n"
    start = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode()
    assert len(start) % 16 == shift
    path.write_bytes(start + x.tobytes(order="A") + behind)
    return path


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize(("dtype", "shift"), [("float64", 1), ("float64", 4), ("float64", 8), ("float32", 2), ("float32", 7)])
def test_elements_may_begin_anywhere_in_a_file(
    tmp_path: Path, rng: np.random.Generator, dtype: str, shift: int, order: Any
) -> None:
    x = np.asarray(rng.standard_normal((700, 90)), dtype, order=order)
    a = oc.open(shifted(tmp_path / "x.npy", x, shift, b"behind"))
    np.testing.assert_array_equal(a.numpy(), x)
    np.testing.assert_array_equal(np.load(tmp_path / "x.npy"), x)
    np.testing.assert_array_equal(a[13:517, 7:31], x[13:517, 7:31])
    np.testing.assert_array_equal(a[600:5:-7, 3], x[600:5:-7, 3])
    tolerance = 1e-12 if dtype == "float64" else 1e-4
    np.testing.assert_allclose((a.T @ a).numpy(), x.T @ x, rtol=tolerance, atol=700 * tolerance)
    np.testing.assert_array_equal(oc.convert(a, order="C").numpy(), x)
    # Written in place, bytes around the elements stay.
    head = (tmp_path / "x.npy").read_bytes()
    before = head[: head.index(b"\n") + 1]
    a[101:303, 5:61] = x[101:303, 5:61] * 2
    x[101:303, 5:61] *= 2
    found = (tmp_path / "x.npy").read_bytes()
    assert found == before + x.tobytes(order="A") + b"behind"
    out = oc.open(shifted(tmp_path / "out.npy", np.zeros_like(x), shift))
    oc.linalg.gemm(a, np.eye(90, dtype=dtype), out)
    np.testing.assert_allclose(np.load(tmp_path / "out.npy"), x, rtol=tolerance)
    assert len((tmp_path / "out.npy").read_bytes()) == len(found) - 6
    with pytest.raises(errors.ArgumentError, match="operand and the output"):
        oc.linalg.gemm(a, np.eye(90, dtype=dtype), oc.open(tmp_path / "x.npy"))


def test_two_descriptions_of_one_file_see_each_others_writes(tmp_path: Path) -> None:
    data = np.arange(5000, dtype=np.float32)
    (tmp_path / "x.bin").write_bytes(b"ab" + data.tobytes() + b"cdefgh")
    floats = oc.open(tmp_path / "x.bin", dtype="float32", shape=5000, offset=2)
    doubles = oc.open(tmp_path / "x.bin", dtype="float64", shape=2500, offset=2)
    other = oc.open(tmp_path / "x.bin", dtype="float32", shape=5001, offset=4)
    np.testing.assert_array_equal(floats.numpy(), data)
    np.testing.assert_array_equal(doubles.numpy(), data.view(np.float64))
    assert other.numpy()[0] == np.frombuffer((tmp_path / "x.bin").read_bytes()[4:8], np.float32)[0]
    floats[100:200] = np.float32(7)
    data[100:200] = 7
    np.testing.assert_array_equal(doubles.numpy(), data.view(np.float64))
    doubles[1000:1500] = 0.0
    data[2000:3000] = 0
    np.testing.assert_array_equal(floats.numpy(), data)
    assert (tmp_path / "x.bin").read_bytes() == b"ab" + data.tobytes() + b"cdefgh"


@pytest.mark.parametrize(
    ("header", "version"),
    [
        ("{'descr': '<f8', 'fortran_order': False, 'shape': (40L, 7L), }", 1),
        ("{'descr': '<f8', 'fortran_order': False, 'shape': (40,7,),}", 2),
        ('{"shape": (40, 7), "fortran_order": False, "descr": "<f8"}', 3),
        ("{'descr':'=f8','fortran_order':False,'shape':(40,7)}", 1),
        ("{'descr': 'f8', 'fortran_order': False, 'shape': (40, 7)}" + " " * 70_000, 2),
    ],
)
def test_headers_that_numpy_reads(tmp_path: Path, rng: np.random.Generator, header: str, version: int) -> None:
    x, length = rng.standard_normal((40, 7)), 2 if version == 1 else 4
    text = header.encode() + b"\n"
    (tmp_path / "x.npy").write_bytes(
        b"\x93NUMPY" + bytes([version, 0]) + len(text).to_bytes(length, "little") + text + x.tobytes()
    )
    np.testing.assert_array_equal(oc.open(tmp_path / "x.npy").numpy(), x)


def test_conversion_changes_type_order_and_place(tmp_path: Path, rng: np.random.Generator) -> None:
    x = rng.standard_normal((123, 45))
    a = oc.from_numpy(tmp_path / "x.npy", x)
    b = oc.convert(a, tmp_path / "y.npy", dtype="float32", order="F")
    assert (b.dtype, b.order, b.path) == (np.float32, "F", tmp_path / "y.npy")
    np.testing.assert_array_equal(b.numpy(), x.astype(np.float32))
    assert oc.convert(b.T).path is None


def test_large_results_are_refused_unless_forced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    a = oc.create(tmp_path / "a.npy", (5000, 1000), "float64")
    monkeypatch.setattr("outcore._units.memory_available", lambda: 30 << 20)
    for attempt in (a.numpy, lambda: a[:], lambda: np.asarray(a), lambda: a[::-1]):
        with pytest.raises(MemoryError, match=r"a\.npy.*38\.1 MiB do not fit the 30\.0 MiB"):
            attempt()
    assert a[:10].shape == (10, 1000)
    assert a.numpy(force=True).shape == (5000, 1000)


def test_numpy_takes_arrays(tmp_path: Path) -> None:
    a = oc.from_numpy(tmp_path / "a.npy", np.ones((3, 3)))
    assert np.asarray(a).sum() == 9
    assert np.asarray(a, np.float32).dtype == np.float32
    with pytest.raises(ValueError, match="always copied"):
        np.array(a, copy=False)


def test_closed_arrays_say_so(tmp_path: Path) -> None:
    with oc.create(tmp_path / "a.npy", 3) as a:
        b = a.slice(1, 2)
    with pytest.raises(errors.ClosedError):
        a.numpy()
    assert "closed" in repr(a)
    assert b.numpy().tolist() == [0]


def test_a_pickled_array_travels_as_its_path(tmp_path: Path, rng: np.random.Generator) -> None:
    x = rng.standard_normal((9, 7))
    a = oc.from_numpy(tmp_path / "a.npy", x)
    for view in (a, a.T, a.slice(2, 5).T, a.T.slice(1, 3, columns=(2, None))):
        np.testing.assert_array_equal(pickle.loads(pickle.dumps(view)).numpy(), view.numpy())
        np.testing.assert_array_equal(copy.copy(view).numpy(), view.numpy())
    with pytest.raises(TypeError, match="unnamed"):
        pickle.dumps(a @ a.T)


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_forked_child_opens_again(tmp_path: Path, rng: np.random.Generator) -> None:
    x = rng.standard_normal((50, 20))
    a = oc.from_numpy(tmp_path / "a.npy", x).T.slice(3, 9)
    unnamed = a @ a.T
    child = os.fork()
    if child == 0:
        status = 1
        try:
            np.testing.assert_array_equal(a.numpy(), x.T[3:9])
            np.testing.assert_allclose((a @ a.T).numpy(), x.T[3:9] @ x[:, 3:9])
            with pytest.raises(errors.ClosedError):
                unnamed.numpy()
            del unnamed
            status = 0
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    np.testing.assert_allclose(unnamed.numpy(), x.T[3:9] @ x[:, 3:9])


def test_any_thread_uses_any_array(tmp_path: Path, rng: np.random.Generator) -> None:
    x = rng.standard_normal((300, 200))
    a, b = oc.from_numpy(tmp_path / "a.npy", x), oc.create(tmp_path / "b.npy", (300, 200), "float64")
    wrong: list[BaseException] = []

    def work(start: int) -> None:
        try:
            for row in range(start, 300, 6):
                b[row] = a[row] * 2
            np.testing.assert_allclose((a.T @ a).numpy(), x.T @ x)
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=work, args=(start,)) for start in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    np.testing.assert_array_equal(b.numpy(), 2 * x)


def test_representations_name_the_file(tmp_path: Path) -> None:
    a = oc.create(tmp_path / "a.npy", (3, 4))
    assert repr(a) == f"<outcore array (3, 4) float32, 48 bytes, {tmp_path / 'a.npy'}>"
    assert "64.0 MiB, 2 threads" in repr(a.session)
    assert "unnamed" in repr(a @ a.T)


def test_a_representation_is_one_line_of_what_can_be_printed(tmp_path: Path) -> None:
    name = tmp_path / "two\nlines.npy"
    a = oc.create(name, 3)
    assert "\n" not in repr(a)
    assert r"two\nlines" in repr(a)


def forked(act: Callable[[], object]) -> int:
    """A child that does it."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            act()
            status = 0
        finally:
            os._exit(status)
    return child


def ended(child: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_what_another_process_has_made_is_shown_without_opening_it(tmp_path: Path) -> None:
    named = oc.from_numpy(tmp_path / "a.npy", np.eye(3))
    a = oc.from_numpy(tmp_path / "b.npy", np.eye(3)) @ named
    (tmp_path / "a.npy").unlink()

    def show() -> None:
        for array in (named, a):
            assert "(3, 3) float64" in repr(array)
            assert "(3, 3)" in array._repr_html_()

    assert ended(forked(show)) == 0


def test_notebooks_show_a_table_and_a_picture(tmp_path: Path) -> None:
    name = tmp_path / "<b>&amp;.npy"
    a = oc.create(name, (3000, 10_000), order="F")
    html = a._repr_html_()
    root = ElementTree.fromstring(f"<div>{html}</div>")
    cells = [cell.text for cell in root.iter("td")]
    assert {"(3000, 10000)", "float32", "114.4 MiB", "columns (F)", str(name), "64.0 MiB"} <= set(cells)
    (line,) = root.iter("line")
    assert line.get("x1") == line.get("x2"), "columns lie together, so that what fits in memory at a time is columns"
    (upright,) = ElementTree.fromstring(f"<div>{a.T._repr_html_()}</div>").iter("line")
    assert upright.get("y1") == upright.get("y2")
    assert "1.8 times the budget" in html
    assert "within the budget" in a.slice(0, 10)._repr_html_()
    a.close()
    assert "closed" in a._repr_html_()


@pytest.mark.parametrize("shape", [(0, 4), (5, 0), 0, 1, 7, (1, 1 << 20), (1 << 20, 1)])
def test_notebooks_show_arrays_of_every_shape(tmp_path: Path, shape: Any) -> None:
    html = oc.create(tmp_path / "a.npy", shape)._repr_html_()
    assert len(html) < 4000
    ElementTree.fromstring(f"<div>{html}</div>")


def test_a_new_file_replaces_none_unless_asked_to(tmp_path: Path) -> None:
    path = tmp_path / "a.npy"
    a = oc.from_numpy(path, np.eye(3))
    with pytest.raises(FileExistsError, match=r"a\.npy.*mode='w' replaces") as caught:
        oc.create(path, 5)
    assert isinstance(caught.value, errors.ExistsError)
    assert (caught.value.object, caught.value.errno) == (str(path), errno.EEXIST)
    np.testing.assert_array_equal(a.numpy(), np.eye(3))
    np.testing.assert_array_equal(np.load(path), np.eye(3))
    assert not oc.create(path, 5, mode="w").numpy().any()
    np.testing.assert_array_equal(a.numpy(), np.eye(3))
    assert np.load(path).shape == (5,)
    with pytest.raises(errors.ExistsError):
        a.session.create(path, 5)
    with pytest.raises(errors.ArgumentError, match="mode must be"):
        oc.create(path, 5, mode="a")  # type: ignore[arg-type]
    with pytest.raises(errors.ExistsError):
        oc.create(tmp_path, 5)
    assert sorted(os.listdir(tmp_path)) == ["a.npy", "scratch"]


def test_what_writes_all_of_a_file_replaces_it(tmp_path: Path) -> None:
    for _ in range(2):
        a = oc.from_numpy(tmp_path / "a.npy", np.eye(3))
        oc.convert(a, tmp_path / "b.npy", dtype="float32")
        oc.linalg.gemm(a, a, tmp_path / "c.npy")
    np.testing.assert_array_equal(np.load(tmp_path / "c.npy"), np.eye(3))


def test_of_processes_that_create_one_file_one_does(tmp_path: Path) -> None:
    begin = tmp_path / "begin"

    def create() -> None:
        while not begin.exists():
            time.sleep(0.001)
        for number in range(20):
            try:
                oc.create(tmp_path / f"{number}.npy", 1000)[:] = os.getpid()
            except errors.ExistsError:
                continue
            (tmp_path / f"{number}.{os.getpid()}").touch()

    children = [forked(create) for _ in range(3)]
    begin.touch()
    assert [ended(child) for child in children] == [0, 0, 0]
    for number in range(20):
        (winner,) = tmp_path.glob(f"{number}.[0-9]*")
        assert (np.load(tmp_path / f"{number}.npy") == int(winner.suffix[1:])).all()


@pytest.mark.parametrize(
    ("shape", "key", "values"),
    [
        ((9, 6), np.s_[:], (1, 1, 9, 6)),
        ((9, 6), np.s_[::2], (1, 5, 6)),
        ((9, 6), np.s_[:], (2, 9, 6)),
        ((9, 6), np.s_[0], (1, 6)),
        ((9, 6), np.s_[:, 0], (9, 1)),
        ((9, 6), np.s_[0:1, 0], (1, 1)),
        ((9, 6), np.s_[0, 0], ()),
        ((9, 6), np.s_[0, 0], (1,)),
        ((9, 6), np.s_[0, 0], (1, 1)),
        ((9, 6), np.s_[0:0], (6,)),
        ((9, 6), np.s_[0:0], (3,)),
        ((9, 6), np.s_[0:0], (2, 6)),
        ((9, 6), np.s_[0:0], (1, 0, 6)),
        ((5,), np.s_[0], (1,)),
        ((5,), np.s_[0:1], (1, 1)),
        ((5,), np.s_[::2], (1, 3)),
        ((0,), np.s_[:], (2,)),
    ],
)
def test_shapes_are_assigned_as_in_numpy(tmp_path: Path, shape: tuple[int, ...], key: Any, values: tuple[int, ...]) -> None:
    a, x = oc.create(tmp_path / "a.npy", shape, "float64"), np.zeros(shape)
    new = np.arange(1.0, 1 + np.prod(values)).reshape(values)
    try:
        x[key] = new
    except ValueError:
        with pytest.raises(errors.ShapeError):
            a[key] = new
    else:
        a[key] = new
    np.testing.assert_array_equal(a.numpy(), x)


def test_storing_replaces_a_file_as_any_result_does(tmp_path: Path, rng: np.random.Generator) -> None:
    """It once wrote a file of its own beside it: with its own mode, in place of a link, left over where it was killed."""
    for shape in ((30, 20), (30,), (0, 3), (0,)):
        path, link = tmp_path / "x.npy", tmp_path / "link.npy"
        path.unlink(missing_ok=True)
        link.unlink(missing_ok=True)
        np.save(path, np.zeros(3))
        path.chmod(0o600)
        link.symlink_to(path)
        x = rng.standard_normal(shape)
        found = oc.from_numpy(link, x)
        assert link.is_symlink()
        assert path.stat().st_mode & 0o777 == 0o600
        assert (found.shape, found.path) == (shape, link)
        np.testing.assert_array_equal(np.load(path), x)
        assert np.load(path).shape == shape
        assert sorted(one.name for one in tmp_path.iterdir()) == ["link.npy", "scratch", "x.npy"]
    with pytest.raises(errors.MissingError) as caught:
        oc.from_numpy(tmp_path / "none" / "x.npy", np.eye(3))
    assert str(tmp_path / "none") in str(caught.value)
    assert ".part" not in str(caught.value)


def test_numbers_of_other_types_are_stored_as_floats(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.arange(3000).reshape(60, 50)
    for chunk_bytes in (16 << 20, 1000):
        monkeypatch.setattr("outcore._array.CHUNK_BYTES", chunk_bytes)
        for values in (x, x.astype("u1"), x.astype(bool), x.T, x.astype(">f8"), x.astype("f8"), x[:, 0], x[::2, ::-3]):
            for order in ("C", "F"):
                found = oc.from_numpy(tmp_path / "x.npy", values, dtype="float32", order=order if values.ndim == 2 else None)
                assert (found.dtype, found.shape) == (np.float32, values.shape)
                np.testing.assert_array_equal(np.load(tmp_path / "x.npy"), values.astype("f4"))
    with pytest.raises(errors.DTypeError):
        oc.from_numpy(tmp_path / "x.npy", x.astype(complex), dtype="float32")
    np.testing.assert_array_equal(np.load(tmp_path / "x.npy"), x[::2, ::-3].astype("f4"))


def test_paths_are_text_or_bytes(tmp_path: Path) -> None:
    x = np.eye(3)
    path = os.fsencode(tmp_path / "ü.npy")
    assert oc.from_numpy(path, x).path == tmp_path / "ü.npy"
    np.testing.assert_array_equal(oc.open(path).numpy(), x)
    np.testing.assert_array_equal(oc.linalg.gemm(x, x, os.fsencode(tmp_path / "y.npy")).numpy(), x)
    assert oc.create(os.fsencode(tmp_path / "z.npy"), 3).shape == (3,)
    oc.configure("8MiB", os.fsencode(tmp_path / "scratch"), allow_tmpfs_scratch=True)
    with pytest.raises(errors.ObjectNameError, match="UTF-8"):
        oc.open(os.fsencode(tmp_path) + b"/\xff.npy")
