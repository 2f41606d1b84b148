"""Sessions of a process divide what it may use, and a call's `memory=` is a part of its session's budget."""

import gc
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

import outcore as oc
from outcore import _native, errors, linalg
from outcore.cluster import KMeans
from outcore.decomposition import PCA
from outcore.random_projection import SparseRandomProjection
from outcore.streams import StreamStore
from outcore.text import TfidfTransformer

MIB = 1 << 20
CAP = _native.memory_allowed()

Call = Callable[[oc.Array, oc.Sparse, Path, Any], Any]

CALLS: dict[str, Call] = {
    "gemm": lambda a, s, p, m: linalg.gemm(a, a.T, memory=m),
    "syrk": lambda a, s, p, m: linalg.syrk(a, memory=m),
    "reduce": lambda a, s, p, m: linalg.reduce(a, memory=m),
    "column_statistics": lambda a, s, p, m: linalg.column_statistics(a, memory=m),
    "row_norms": lambda a, s, p, m: linalg.row_norms(a, memory=m),
    "column_norms": lambda a, s, p, m: linalg.column_norms(a, memory=m),
    "csrmm": lambda a, s, p, m: linalg.csrmm(s, a, memory=m),
    "csrgemv": lambda a, s, p, m: linalg.csrgemv(s, np.ones(s.shape[1], np.float32), memory=m),
    "gram_product": lambda a, s, p, m: linalg.gram_product(s, np.ones((s.shape[1], 3), np.float32), memory=m),
    "csrcsc": lambda a, s, p, m: linalg.csrcsc(s, memory=m),
    "convert": lambda a, s, p, m: oc.convert(a, order="F", memory=m),
    "KMeans": lambda a, s, p, m: KMeans(3, init=np.eye(3, a.shape[1]), n_init=1, max_iter=3, memory=m).fit(a).cluster_centers_,
    "PCA": lambda a, s, p, m: PCA(2, random_state=0, memory=m).fit(a).components_,
    "SparseRandomProjection": lambda a, s, p, m: SparseRandomProjection(4, random_state=0, memory=m).fit(s).transform(s),
    "TfidfTransformer": lambda a, s, p, m: TfidfTransformer(memory=m).fit(s).idf_,
    "export": lambda a, s, p, m: oc.export_mtx(s, p / "s.mtx", memory=m),
    "import": lambda a, s, p, m: oc.import_mtx(p / "imported", p / "source.mtx", memory=m),
}


@pytest.fixture
def operands(tmp_path: Path, rng: np.random.Generator) -> tuple[oc.Array, oc.Sparse]:
    a = oc.from_numpy(tmp_path / "a.npy", rng.standard_normal((900, 400), np.float32))
    s = oc.from_scipy(tmp_path / "s", sp.random_array((700, 900), density=0.05, rng=rng, dtype=np.float32, format="csr"))
    oc.export_mtx(s, tmp_path / "source.mtx")
    return a, s


def value(found: Any) -> Any:
    """What was found, as something that is equal only if all bits are."""
    if isinstance(found, oc.Array):
        return found.numpy().tobytes()
    if isinstance(found, oc.Sparse):
        x = found.scipy()
        return [part.tobytes() for part in (x.indptr, x.indices, x.data)]
    if isinstance(found, np.ndarray):
        return found.tobytes()
    if isinstance(found, dict):
        return {name: value(each) for name, each in found.items()}
    return found


@pytest.mark.parametrize("name", CALLS)
def test_a_call_with_memory_is_as_in_a_session_of_that_budget(
    operands: tuple[oc.Array, oc.Sparse], tmp_path: Path, session: oc.Session, name: str
) -> None:
    """Its operands were opened by the session that it has a part of."""
    a, s = operands
    found = value(CALLS[name](a, s, tmp_path, "6MiB"))
    own = oc.configure("6MiB", tmp_path / "scratch", 2, allow_tmpfs_scratch=True)
    for folder in ("imported", "s.mtx"):
        subprocess.run(["rm", "-rf", tmp_path / folder], check=True)
    b, t = own.open(tmp_path / "a.npy"), own.open(tmp_path / "s")
    assert value(CALLS[name](b, t, tmp_path, None)) == found  # type: ignore[arg-type]
    assert session.memory == 64 * MIB


@pytest.mark.parametrize("name", CALLS)
def test_a_call_with_more_than_its_session_is_refused_with_both_numbers(
    operands: tuple[oc.Array, oc.Sparse], tmp_path: Path, name: str
) -> None:
    with pytest.raises(errors.OverBudgetError, match=f"{65 * MIB} bytes .* budget of {64 * MIB}") as caught:
        CALLS[name](*operands, tmp_path, "65MiB")
    assert (caught.value.needed, caught.value.available, caught.value.budget) == (65 * MIB, 64 * MIB, 64 * MIB)
    assert not (tmp_path / "imported").exists() and not (tmp_path / "s.mtx").exists()


def test_the_plan_of_a_call_with_memory_is_that_of_such_a_session(operands: tuple[oc.Array, oc.Sparse], tmp_path: Path) -> None:
    a, s = operands
    with oc.Session("6MiB", tmp_path / "scratch", 2, allow_tmpfs_scratch=True) as own:
        b, t = own.open(a.path), own.open(s.path)  # type: ignore[arg-type]
        for call, ours, theirs in (
            (linalg.gemm, (a, a.T), (b, b.T)),
            (linalg.syrk, (a,), (b,)),
            (linalg.csrmm, (s, a), (t, b)),
            (linalg.csrcsc, (s,), (t,)),
        ):
            found = oc.explain(call, *ours, memory="6MiB").json()
            assert found == oc.explain(call, *theirs).json()
            assert found != oc.explain(call, *ours).json()


def test_what_a_call_makes_belongs_to_the_session(operands: tuple[oc.Array, oc.Sparse], session: oc.Session) -> None:
    a, s = operands
    product, copy = linalg.gemm(a, a.T, memory="8MiB"), linalg.csrcsc(s, memory="8MiB")
    assert product.session is session and copy.session is session
    assert session.last_trace().plan == oc.last_trace().plan
    before = session.last_trace()
    linalg.syrk(a, memory="8MiB")
    assert session.last_trace() is not before
    # They have all of its budget: this needs more than the part.
    assert oc.explain(linalg.scale, product, 2.0).memory_bytes == 64 * MIB


def test_calls_in_threads_whose_parts_do_not_fit_together_take_turns(
    operands: tuple[oc.Array, oc.Sparse], session: oc.Session
) -> None:
    a, _ = operands
    expected = linalg.syrk(a, memory="40MiB").numpy()
    failed: list[BaseException] = []

    def work() -> None:
        try:
            for _ in range(4):
                np.testing.assert_array_equal(linalg.syrk(a, memory="40MiB").numpy(), expected)
                PCA(2, memory="60MiB").fit(a)
                linalg.gemm(a.T, a)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed, failed
    # Nothing of it is left behind.
    linalg.syrk(a, memory=session.memory - 1)


def test_a_call_that_others_leave_no_room_for_fails_at_once(operands: tuple[oc.Array, oc.Sparse], tmp_path: Path) -> None:
    """A loaded stream is ended by its caller, for whom no call waits."""
    a, _ = operands
    store = StreamStore(tmp_path / "streams", size="100MiB")
    with store.create("rows", block="8MiB") as writer:
        writer.write(bytes(64 * MIB))
    reader = store.open("rows", ahead=4)
    block = next(iter(reader.blocks()))
    with pytest.raises(errors.OverBudgetError) as caught:
        linalg.syrk(a, memory="60MiB")
    assert caught.value.needed == 60 * MIB > caught.value.available and caught.value.budget == 64 * MIB
    linalg.syrk(a, memory="4MiB")
    del block
    reader.close()
    linalg.syrk(a, memory="60MiB")


def test_a_call_that_fails_gives_its_part_back(operands: tuple[oc.Array, oc.Sparse], session: oc.Session, tmp_path: Path) -> None:
    a, _ = operands
    bad = oc.from_numpy(tmp_path / "bad.npy", np.full((900, 40), np.nan, np.float32))
    for _ in range(3):
        with pytest.raises(errors.NotFiniteError):
            KMeans(2, memory="60MiB").fit(bad)
    linalg.syrk(a, memory=session.memory - 1)


def test_sessions_divide_what_the_process_may_use(session: oc.Session) -> None:
    gc.collect()
    rest = CAP - session.memory
    large = oc.Session(rest - 8 * MIB)
    with pytest.raises(errors.OverBudgetError, match="other sessions of this process have taken") as caught:
        oc.Session("16MiB")
    assert str(16 * MIB) in str(caught.value) and str(CAP - 8 * MIB) in str(caught.value) and str(CAP) in str(caught.value)
    error = caught.value
    assert (error.needed, error.available, error.budget) == (16 * MIB, 8 * MIB, CAP)
    assert oc.Session().memory == 8 * MIB
    large.close()
    assert oc.Session(rest).memory == rest


def test_a_session_that_only_a_cycle_keeps_gives_its_share_back() -> None:
    kept: list[Any] = [oc.Session(CAP // 2)]
    kept.append(kept)
    del kept
    assert oc.Session(CAP // 2 + MIB).memory == CAP // 2 + MIB


def test_a_closed_session_has_its_share_until_its_arrays_are_closed(tmp_path: Path) -> None:
    with oc.Session(CAP // 2, tmp_path) as large:
        a = large.from_numpy(tmp_path / "a.npy", np.eye(5))
    with pytest.raises(errors.ClosedError):
        large.open(tmp_path / "a.npy")
    with pytest.raises(errors.ClosedError):
        large.info()
    assert repr(large) == "<outcore session, closed>"
    with pytest.raises(errors.OverBudgetError):
        oc.Session(CAP // 2 + MIB)
    for _ in range(2):
        with pytest.raises(errors.ClosedError):
            a[:]
    assert oc.Session(CAP // 2 + MIB).memory == CAP // 2 + MIB


def test_a_default_session_that_is_closed_is_made_again(session: oc.Session, tmp_path: Path) -> None:
    session.close()
    a = oc.create(tmp_path / "a.npy", (3, 3))
    assert a.session is not session and a.session.memory == 64 * MIB


def test_configure_gives_the_share_of_the_old_default_back_first() -> None:
    for size in (CAP // 2, CAP // 2 + MIB, CAP - 128 * MIB):
        assert oc.configure(size).memory == size
        assert oc.configure(size).memory == size


def test_configure_beside_arrays_of_the_old_default(tmp_path: Path) -> None:
    size = CAP // 2 + MIB
    first = oc.configure(size, tmp_path)
    a = oc.create(tmp_path / "a.npy", (3, 3))
    # As a notebook does, whose cell is run again.
    assert oc.configure(size, tmp_path) is first
    with pytest.raises(errors.OverBudgetError):
        oc.configure(size + MIB, tmp_path)
    assert oc.create(tmp_path / "b.npy", (3, 3)).session is first is a.session
    assert oc.configure("8MiB", tmp_path).memory == 8 * MIB
    assert a[0, 0] == 0


def test_a_configure_that_fails_leaves_the_settings(tmp_path: Path) -> None:
    oc.configure("32MiB", tmp_path)
    for wrong in (CAP * 2, 4096):
        with pytest.raises((errors.OverBudgetError, errors.ArgumentError)):
            oc.configure(wrong)
        a = oc.create(tmp_path / f"{wrong}.npy", 3)
        assert a.session.memory == 32 * MIB and a.session.info()["scratch"] == tmp_path


def test_threads_that_make_sessions_at_once_have_no_more_than_there_is() -> None:
    gc.collect()
    count, size = 12, CAP // 6
    barrier, had = threading.Barrier(count), []

    def make() -> None:
        barrier.wait()
        try:
            made = oc.Session(size)
        except errors.OverBudgetError as error:
            assert error.budget == CAP and error.available < size
            barrier.wait()
        else:
            had.append(size)
            barrier.wait()
            made.close()

    threads = [threading.Thread(target=make) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    # The default session of the tests has taken some.
    assert len(had) == 5


@settings(max_examples=20)
@given(st.lists(st.tuples(st.integers(1, 400), st.integers(0, 5), st.booleans()), max_size=25))
def test_shares_are_taken_and_given_back(steps: list[tuple[int, int, bool]]) -> None:
    gc.collect()
    default = 64 * MIB
    held: list[oc.Session] = []
    for thousandths, which, drops in steps:
        if drops and held:
            held.pop(which % len(held))
        size = max(CAP // 1000 * thousandths // 4096 * 4096, MIB)
        taken = default + sum(each.memory for each in held)
        try:
            held.append(oc.Session(size))
        except errors.OverBudgetError as error:
            assert taken + size > CAP and error.available == CAP - taken
        else:
            assert taken + size <= CAP


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_forked_child_takes_shares_of_its_own() -> None:
    large = oc.Session(CAP // 2)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            assert large.memory == CAP // 2
            try:
                oc.Session(CAP // 2 + MIB)
            except errors.OverBudgetError:
                # What the parent's other sessions have does not count here.
                oc.Session(CAP // 2 - MIB)
                code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    large.close()
    assert oc.Session(CAP // 2 + MIB).memory == CAP // 2 + MIB


def test_processes_that_divide_a_machine_each_have_a_part_of_it() -> None:
    code = """
import outcore as oc
from outcore import _native, errors
cap = int(_native.memory_allowed() * 0.125)
first = oc.Session()
assert first.memory == cap // 4, (first.memory, cap)
try:
    oc.Session(cap)
except errors.OverBudgetError as error:
    assert (error.needed, error.budget) == (cap, cap)
else:
    raise SystemExit("more than its part")
"""
    for share in ("0.125", "1/8"):
        subprocess.run([sys.executable, "-c", code], env={**os.environ, "OUTCORE_MEMORY_SHARE": share}, check=True)
    wrong = "import outcore as oc; oc.configure('8MiB')"
    for share in ("2", "0", "half"):
        env = {**os.environ, "OUTCORE_MEMORY_SHARE": share}
        found = subprocess.run([sys.executable, "-c", wrong], env=env, capture_output=True, text=True, check=False)
        assert found.returncode == 1 and "ArgumentError: OUTCORE_MEMORY_SHARE must be a number" in found.stderr
