"""Bad input gets one clear error that names the object, and what existed before is intact."""

import errno
import os
import pickle
import resource
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import numpy as np
import pytest

import outcore as oc
from outcore import errors, linalg
from outcore.decomposition import PCA


@pytest.fixture
def eye(tmp_path: Path) -> Path:
    oc.from_numpy(tmp_path / "eye.npy", np.eye(10))
    return tmp_path / "eye.npy"


def child(code: str, *arguments: object, **options: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)]
    return subprocess.Popen(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options)  # type: ignore[call-overload, no-any-return]


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"nothing\.npy: no such file") as caught:
        oc.open(tmp_path / "nothing.npy")
    error = caught.value
    assert isinstance(error, errors.MissingError)
    assert (error.errno, error.filename, error.object) == (
        errno.ENOENT,
        str(tmp_path / "nothing.npy"),
        str(tmp_path / "nothing.npy"),
    )
    with pytest.raises(FileNotFoundError):
        oc.create(tmp_path / "no" / "folder.npy", 3)


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError):
        oc.open(tmp_path)


def test_a_truncated_file(eye: Path) -> None:
    os.truncate(eye, eye.stat().st_size - 8)
    with pytest.raises(errors.TruncatedError, match=r"eye\.npy: truncated") as caught:
        oc.open(eye)
    assert caught.value.expected == caught.value.actual + 8


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "no .npy file"),
        (b"junk" * 100, "no .npy file"),
        (b"\x93NUMPY\x01\x00\xff\xff{'descr'", "."),
        (b"\x93NUMPY\x01\x00\x10\x00{'descr': '<f4'}", "."),
        (b"\x93NUMPY\x09\x00\x10\x00{'descr': '<f4'}", "."),
    ],
)
def test_a_junk_file(tmp_path: Path, content: bytes, reason: str) -> None:
    path = tmp_path / "junk.npy"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=rf"junk\.npy.*{reason}") as caught:
        oc.open(path)
    assert isinstance(caught.value, errors.OutcoreError)


@pytest.mark.parametrize("dtype", ["longdouble", ">f4", ">i2", "U3", "O", "datetime64[s]"])
def test_a_file_of_another_type(tmp_path: Path, dtype: str) -> None:
    np.save(tmp_path / "x.npy", np.ones((3, 3)).astype(dtype))
    with pytest.raises(errors.UnsupportedError, match=r"x\.npy: not supported"):
        oc.open(tmp_path / "x.npy")


def test_a_file_of_three_dimensions(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.asfortranarray(np.ones((3, 3, 3))))
    with pytest.raises(errors.UnsupportedError, match="3 dimensions by columns"):
        oc.open(tmp_path / "x.npy")
    np.save(tmp_path / "x.npy", np.ones((3, 3, 3)))
    a = oc.open(tmp_path / "x.npy")
    for refused in (lambda: linalg.gemm(a, a), lambda: linalg.row_norms(a), lambda: a.T, lambda: PCA(2).fit(a)):
        with pytest.raises(errors.ShapeError, match="reshape"):
            refused()


def test_wrong_shapes(eye: Path) -> None:
    a = oc.open(eye)
    with pytest.raises(errors.ShapeError, match=r"eye\.npy is 10 x 10.*4 x 10.*inner dimensions differ"):
        a @ np.ones((4, 10))
    with pytest.raises(errors.ShapeError):
        linalg.gemm(a, a, oc.create(eye.with_name("c.npy"), (3, 3), "float64"))
    with pytest.raises(errors.ShapeError):
        linalg.axpby(np.ones((3, 3)), a)
    with pytest.raises(ValueError, match="broadcast"):
        a[:3] = np.ones((4, 10))
    with pytest.raises(errors.ShapeError):
        a @ np.ones(7)
    with pytest.raises(errors.ShapeError):
        linalg.reduce(np.ones((2, 2, 2)))
    for shape in ((), (-1,), (1, -2, 3), "3", 1.5, None):
        with pytest.raises(errors.ArgumentError, match="shape must be"):
            oc.create(eye.with_name("d.npy"), shape)  # type: ignore[arg-type]
    np.testing.assert_array_equal(a.numpy(), np.eye(10))


def test_wrong_types(eye: Path) -> None:
    a = oc.open(eye)
    for values in (np.ones((10, 10), np.float32), np.ones((10, 10), int), np.ones((10, 10), complex), np.ones((10, 10), ">f8")):
        with pytest.raises(TypeError) as caught:
            a @ values
        assert isinstance(caught.value, errors.DTypeError)
    with pytest.raises(errors.DTypeError, match="complex128"):
        a[0] = 1j
    with pytest.raises(errors.DTypeError, match="longdouble"):
        oc.create(eye.with_name("b.npy"), 3, np.longdouble)
    with pytest.raises(errors.DTypeError, match="object"):
        oc.from_numpy(eye.with_name("b.npy"), np.array([None]))
    with pytest.raises(errors.ArgumentError, match="b must be an outcore array, a NumPy array or a tensor on the CPU, not list"):
        linalg.gemm(a, [[1.0]])  # type: ignore[call-overload]
    assert not eye.with_name("b.npy").exists()


def test_too_small_a_budget_is_found_before_anything_moves(tmp_path: Path) -> None:
    a = oc.create(tmp_path / "wide.npy", (3, 1 << 19))
    with pytest.raises(MemoryError, match=r"needs .* bytes of memory") as caught:
        linalg.column_statistics(a, memory="1MiB")
    error = caught.value
    assert isinstance(error, errors.OverBudgetError)
    assert error.budget == 1 << 20 < error.needed
    assert linalg.column_statistics(a, memory=error.needed)["count"] == 3
    for memory in (0, 1 << 70, "99999999PiB", "9" * 400, -1, "lots", "1MiB of it", float("nan"), True, [1], 4096):
        with pytest.raises(errors.ArgumentError, match="memory must be"):
            oc.configure(memory=memory)  # type: ignore[arg-type]
    for threads in (0, 1025, 10**30, -1, 1.5, "two", True):
        with pytest.raises(errors.ArgumentError, match="threads must be"):
            oc.configure(threads=threads)  # type: ignore[arg-type]
    for offset in (-1, 1 << 63, 10**30, 1.5, "8"):
        with pytest.raises(errors.ArgumentError, match="offset must be"):
            oc.open(tmp_path / "wide.npy", dtype="float32", shape=3, offset=offset)  # type: ignore[arg-type]


def test_the_default_budget_is_a_quarter_of_what_the_process_may_use() -> None:
    quarter = "import outcore as oc; from outcore import _native; assert oc.Session().memory == _native.memory_allowed() // 4"
    code = quarter + "; print(_native.memory_allowed())"
    allowed = int(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)
    assert 0 < allowed <= os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    limited = f"import resource; resource.setrlimit(resource.RLIMIT_DATA, ({allowed // 2}, {allowed // 2})); " + code
    found = subprocess.run([sys.executable, "-c", limited], capture_output=True, text=True, check=True)
    assert int(found.stdout) == allowed // 2


def test_a_library_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "libnone.so").write_bytes(b"junk")
    with pytest.raises(errors.BlasError, match=r"libnone\.so"):
        oc.Session(blas=tmp_path / "libnone.so")


def test_an_unknown_option(eye: Path) -> None:
    a = oc.open(eye)
    with pytest.raises(errors.ArgumentError, match="how must be"):
        linalg.reduce(a, "median")  # type: ignore[arg-type]
    with pytest.raises(errors.ArgumentError, match="norm must be"):
        linalg.row_norms(a, "l3")  # type: ignore[arg-type]
    with pytest.raises(errors.ArgumentError, match="driver must be"):
        oc.Session(driver="tape")  # type: ignore[arg-type]
    with pytest.raises(errors.ArgumentError, match="order must be"):
        oc.create(eye.with_name("b.npy"), 3, order="K")  # type: ignore[arg-type]
    with pytest.raises(errors.ArgumentError, match="both dtype and shape"):
        oc.open(eye, dtype="float32")
    with pytest.raises(errors.ArgumentError, match="beta needs"):
        linalg.gemm(a, a, beta=1)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_may_not_be_written(eye: Path) -> None:
    eye.parent.chmod(0o555)
    try:
        with pytest.raises(PermissionError):
            oc.create(eye.with_name("b.npy"), 3)
    finally:
        eye.parent.chmod(0o755)


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_folder_that_may_not_be_written_by_an_ordinary_user(eye: Path) -> None:
    """As above for the superuser, who becomes another user in a child."""
    if os.geteuid() != 0:
        pytest.skip("only the superuser can become another user")
    for folder in (eye.parent, *eye.parent.parents):
        if folder.stat().st_mode & 0o005 != 0o005:
            folder.chmod(folder.stat().st_mode | 0o055)
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            os.setgid(65534)
            os.setuid(65534)
            a = oc.open(eye)
            for attempt in (lambda: oc.create(eye.with_name("b.npy"), 3), lambda: a.__setitem__(0, 1)):
                with pytest.raises(PermissionError, match=r"\.npy") as caught:
                    attempt()
                assert isinstance(caught.value, errors.DeniedError)
            np.testing.assert_array_equal(a.numpy(), np.eye(10))
            status = 0
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_a_full_disk_is_found_before_the_first_byte(small_disk: Path, tmp_path: Path) -> None:
    kept = oc.from_numpy(small_disk / "kept.npy", np.eye(100))
    big = oc.create(tmp_path / "big.npy", (1000, 1000))
    attempts = [
        lambda: oc.create(small_disk / "kept.npy", (1000, 1000), mode="w"),
        lambda: oc.from_numpy(small_disk / "kept.npy", np.ones((1000, 1000))),
        lambda: linalg.gemm(big, big, small_disk / "kept.npy"),
        lambda: oc.convert(big, small_disk / "kept.npy"),
    ]
    for attempt in attempts:
        with pytest.raises(OSError, match=r"kept\.npy.*needs \d+ bytes on disk, \d+ are free") as caught:
            attempt()
        assert isinstance(caught.value, errors.NoSpaceError)
        assert caught.value.errno == errno.ENOSPC
        np.testing.assert_array_equal(kept.numpy(), np.eye(100))
    assert [path.name for path in small_disk.iterdir()] == ["kept.npy"]


def test_a_file_size_limit_is_an_error_not_a_signal(tmp_path: Path) -> None:
    code = """
        import sys, resource, signal, outcore as oc, numpy as np
        oc.configure("16MiB", sys.argv[1], allow_tmpfs_scratch=True)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
        try:
            oc.create(sys.argv[1] + "/a.npy", (1000, 1000))
        except OSError as error:
            print(type(error).__name__, error)
    """
    found, trouble = child(code, tmp_path).communicate(timeout=60)
    assert found.startswith("FileTooLargeError"), trouble
    assert "a.npy: needs 4004096 bytes, and this process may write files of 1048576 bytes at most (ulimit -f)" in found
    assert not (tmp_path / "a.npy").exists()
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] != 1 << 20


def test_a_refused_thread_is_said_to_be_one(tmp_path: Path) -> None:
    code = """
        import os, sys, resource, outcore as oc, numpy as np
        oc.configure("16MiB", sys.argv[1], allow_tmpfs_scratch=True)
        if os.geteuid() == 0:
            os.setuid(65534)
        resource.setrlimit(resource.RLIMIT_NPROC, (1, 1))
        a = np.eye(4)
        try:
            oc.linalg.gemm(a, a, np.empty((4, 4)))
        except oc.errors.OutcoreError as error:
            print(type(error).__name__, error)
    """
    found, trouble = child(code, tmp_path).communicate(timeout=60)
    assert "needs a thread for its engine, and the system refused it" in found, trouble


def test_a_killed_writer_leaves_a_mark(tmp_path: Path) -> None:
    """A process that dies while it writes in place: opening the file says so, and it may be read all the same."""
    oc.create(tmp_path / "a.npy", (4000, 2000))
    code = """
        import sys, outcore as oc, numpy as np
        oc.configure("16MiB", sys.argv[1], allow_tmpfs_scratch=True)
        a = oc.open(sys.argv[1] + "/a.npy")
        x = np.random.default_rng(0).standard_normal((4000, 2000), np.float32)
        print("ready", flush=True)
        while True:
            a[:] = x
    """
    for _ in range(20):
        process = child(code, tmp_path)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        time.sleep(0.25)
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=30)
        try:
            oc.open(tmp_path / "a.npy")
        except errors.InterruptedWriteError as error:
            assert "a.npy" in str(error)
            assert error.filename == str(tmp_path / "a.npy")
            break
    else:
        pytest.fail("twenty writers were killed, and none in the middle")
    assert oc.open(tmp_path / "a.npy", interrupted=True)[0].shape == (2000,)


def test_a_file_that_another_program_has_rewritten_can_be_accepted(tmp_path: Path) -> None:
    path = tmp_path / "a.npy"
    oc.from_numpy(path, np.eye(3))
    os.setxattr(path, "user.outcore.writing", str(path.stat().st_size).encode())
    written = np.arange(20000.0).reshape(100, 200)
    np.save(path, written)
    with pytest.raises(errors.InterruptedWriteError, match="accept it if another program has"):
        oc.open(path)
    np.testing.assert_array_equal(oc.open(path, interrupted=True).numpy(), written)
    oc.accept(path)
    np.testing.assert_array_equal(oc.open(path).numpy(), written)


@pytest.mark.parametrize("kind", ["vector", "whole numbers"])
def test_a_killed_from_numpy_leaves_the_old_file(tmp_path: Path, kind: str) -> None:
    oc.from_numpy(tmp_path / "a.npy", np.eye(3))
    code = """
        import os, sys, outcore as oc, numpy as np
        from outcore._array import Array
        oc.configure("16MiB", sys.argv[1], allow_tmpfs_scratch=True)
        write = Array._write_mapped
        def die(self, *arguments):
            write(self, *arguments)
            os.kill(os.getpid(), 9)
        Array._write_mapped = die
        x = np.ones(5000) if sys.argv[2] == "vector" else np.ones((3000, 1500), int)
        oc.from_numpy(sys.argv[1] + "/a.npy", x, dtype="float64")
    """
    process = child(code, tmp_path, kind)
    _, trouble = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL, trouble
    np.testing.assert_array_equal(oc.open(tmp_path / "a.npy").numpy(), np.eye(3))
    np.testing.assert_array_equal(oc.from_numpy(tmp_path / "a.npy", np.arange(5.0)).numpy(), np.arange(5.0))
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["a.npy"]


def test_a_from_numpy_that_fails_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    oc.from_numpy(tmp_path / "v.npy", np.arange(3.0))

    def fail(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(oc.Array, "_write_mapped", fail)
        with pytest.raises(KeyboardInterrupt) as kept:
            oc.from_numpy(tmp_path / "v.npy", np.arange(5.0))
    np.testing.assert_array_equal(oc.open(tmp_path / "v.npy").numpy(), np.arange(3.0))
    assert oc.from_numpy(tmp_path / "v.npy", np.arange(4.0)).shape == (4,), kept


def test_a_scratch_folder_that_is_none_and_a_driver_that_is_none_are_told(tmp_path: Path) -> None:
    a = oc.from_numpy(tmp_path / "a.npy", np.eye(3))
    for scratch in (a.path, a.path / "deeper"):
        session = oc.Session("16MiB", scratch)
        with pytest.raises(errors.NotAFolderError, match=r"a\.npy.*: not a folder"):
            session.open(a.path) @ session.open(a.path)
    code = """
        import outcore as oc
        try:
            oc.info()
        except OSError as error:
            print(error)
    """
    process = child(code, env=os.environ | {"OUTCORE_DRIVER": "junk"})
    found, trouble = process.communicate(timeout=60)
    assert found == 'driver: OUTCORE_DRIVER must be auto, io_uring or threads, not "junk"\n', trouble


def test_a_killed_producer_leaves_the_old_file(tmp_path: Path) -> None:
    oc.from_numpy(tmp_path / "c.npy", np.eye(3))
    oc.create(tmp_path / "a.npy", (3000, 3000))
    code = """
        import sys, outcore as oc
        oc.configure("16MiB", sys.argv[1], allow_tmpfs_scratch=True)
        a = oc.open(sys.argv[1] + "/a.npy")
        print("ready", flush=True)
        while True:
            oc.linalg.gemm(a, a, sys.argv[1] + "/c.npy")
            break
    """
    process = child(code, tmp_path)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    time.sleep(0.1)
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=30)
    np.testing.assert_array_equal(oc.open(tmp_path / "c.npy").numpy(), np.eye(3))


def test_two_writers_exclude_each_other(tmp_path: Path) -> None:
    a = oc.create(tmp_path / "a.npy", (2000, 2000))
    code = """
        import sys, outcore as oc, numpy as np
        oc.configure("16MiB", sys.argv[1], allow_tmpfs_scratch=True)
        a, x = oc.open(sys.argv[1] + "/a.npy"), np.ones((2000, 2000), np.float32)
        print("ready", flush=True)
        while True:
            try:
                a[:] = x
            except BlockingIOError:
                pass
    """
    process = child(code, tmp_path)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        end = time.monotonic() + 30
        with pytest.raises(BlockingIOError, match=r"a\.npy: another writer holds it") as caught:
            while time.monotonic() < end:
                a[:] = 5
        assert isinstance(caught.value, errors.LockedError)
    finally:
        process.kill()
        process.communicate(timeout=30)


def test_errors_can_be_pickled() -> None:
    error = errors.OverBudgetError("too little", needed=3, available=2, budget=1)
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.needed, again.budget) == ("too little", 3, 1)
    lost = pickle.loads(pickle.dumps(errors.MissingError("x: gone", object="x")))
    assert (str(lost), lost.errno, lost.filename) == ("x: gone", errno.ENOENT, "x")


def test_every_class_is_under_the_builtin_that_one_would_catch() -> None:
    for name in errors.__all__:
        kind = getattr(errors, name)
        assert issubclass(kind, errors.OutcoreError)
        assert name == "OutcoreError" or len([base for base in kind.__mro__ if base.__module__ == "builtins"]) > 3, name
        assert kind.__doc__
