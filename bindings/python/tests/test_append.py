"""Arrays that grow: what is written is there after a flush, and nothing else ever is."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import outcore as oc
from outcore import errors, streams


@pytest.mark.parametrize("shape", [(), (7,), (3, 4)], ids=str)
@pytest.mark.parametrize("dtype", ["uint8", "float32", "bfloat16", "complex128"])
def test_a_new_array_grows_from_nothing(shape: tuple[int, ...], dtype: str, tmp_path: Path, rng: np.random.Generator) -> None:
    from outcore._dtypes import dtype_of

    x = rng.integers(0, 100, (1000, *shape)).astype(dtype_of(dtype))
    with oc.append(tmp_path / "x.npy") as w:
        for start in range(0, 600, 250):
            w.write(x[start : min(600, start + 250)])
        assert w.shape == (600, *shape)
    found = oc.open(tmp_path / "x.npy")
    assert found.dtype == x.dtype
    assert found.numpy().tobytes() == x[:600].tobytes()
    with oc.append(tmp_path / "x.npy") as w:
        w.write(x[600:])
    assert found.shape == (600, *shape)
    again = oc.open(tmp_path / "x.npy")
    assert again.shape == x.shape
    assert again.numpy().tobytes() == x.tobytes()
    assert again[[999, 599, 600]].tobytes() == x[[999, 599, 600]].tobytes()


def test_files_of_numpy_grow(tmp_path: Path, rng: np.random.Generator) -> None:
    x = rng.standard_normal((30, 5))
    np.save(tmp_path / "x.npy", x[:20])
    with oc.append(tmp_path / "x.npy") as w:
        w.write(x[20])
        w.write(x[21:].tolist())
        w.write(np.empty((0, 5)))
    np.testing.assert_array_equal(np.load(tmp_path / "x.npy"), x)


def test_a_block_that_fails_leaves_the_array_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "x.npy"
    oc.from_numpy(path, np.ones((10, 3), "f4"))
    before = path.read_bytes()
    with pytest.raises(ZeroDivisionError), oc.append(path) as w:
        w.write(np.zeros((5, 3)))
        raise ZeroDivisionError
    assert path.read_bytes() == before
    with oc.append(path) as w:
        for bad, kind in (
            (np.ones((2, 4)), errors.ShapeError),
            (np.ones(3, complex), errors.DTypeError),
            (1.0, errors.ShapeError),
        ):
            with pytest.raises(kind):
                w.write(bad)
    assert path.read_bytes() == before
    with pytest.raises(errors.ClosedError):
        w.write(np.ones((1, 3)))


def test_a_new_array_that_fails_is_not_there(tmp_path: Path) -> None:
    path = tmp_path / "x.npy"
    with pytest.raises(RuntimeError), oc.append(path) as w:
        w.write(np.ones((2, 3)))
        raise RuntimeError
    assert not path.exists()
    with oc.append(path) as w:
        w.write(np.ones((1, 16)))
        w.flush()
        w.write(np.ones((2, 16)))
    assert oc.open(path).shape == (3, 16)


def test_flushed_rows_stay_whatever_comes_after(tmp_path: Path) -> None:
    path = tmp_path / "x.npy"
    with pytest.raises(ZeroDivisionError), oc.append(path) as w:
        w.write(np.ones((5, 3)))
        w.flush()
        assert oc.open(path).shape == (5, 3)
        w.write(np.zeros((5, 3)))
        assert oc.open(path).shape == (5, 3)
        raise ZeroDivisionError
    np.testing.assert_array_equal(oc.open(path).numpy(), np.ones((5, 3)))


def test_one_writer_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "x.npy"
    a = oc.from_numpy(path, np.ones((10, 3)))
    with oc.append(path) as w:
        with pytest.raises(errors.LockedError, match="being written"):
            oc.append(path)
        with pytest.raises(errors.LockedError):
            a[0] = 2
        w.write(np.zeros((1, 3)))
    assert a[9].tolist() == [1, 1, 1]
    with pytest.raises(errors.TruncatedError):
        a[0] = 2
    oc.open(path)[0] = 2
    assert oc.open(path)[0].tolist() == [2, 2, 2]


def test_what_does_not_grow_says_so(tmp_path: Path) -> None:
    oc.from_numpy(tmp_path / "f.npy", np.ones((4, 3)), order="F")
    (tmp_path / "x.bin").write_bytes(bytes(48))
    (tmp_path / "x.bin.json").write_text('{"dtype": "float32", "shape": [4, 3]}')
    for name in ("f.npy", "x.bin"):
        with pytest.raises(errors.UnsupportedError, match="appended to"):
            oc.append(tmp_path / name)
    outcore_store = tmp_path / "s.store"
    streams.StreamStore(outcore_store, size="16MiB").close()
    with pytest.raises(errors.UnsupportedError, match=r"s\.store is a store"):
        oc.append(outcore_store / "x.npy")
    full = b"{'descr': '<f8', 'fortran_order': False, 'shape': (9,)}\n"
    (tmp_path / "full.npy").write_bytes(b"\x93NUMPY\x01\x00" + len(full).to_bytes(2, "little") + full + bytes(72))
    before = (tmp_path / "full.npy").read_bytes()
    with pytest.raises(errors.UnsupportedError, match="no room"), oc.append(tmp_path / "full.npy") as w:
        w.write(np.ones(100))
    assert (tmp_path / "full.npy").read_bytes() == before


KILLED = """\
import os, signal, sys
import numpy as np
import outcore as oc
w = oc.append(sys.argv[1])
w.write(np.full((1000, 3), 1.0))
w.flush()
w.write(np.full((1000, 3), 2.0))
if sys.argv[2] == "header":
    real = os.pwrite
    def pwrite(file, data, offset):
        if offset == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(file, data, offset)
    os.pwrite = pwrite
    w.flush()
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("when", ["data", "header"])
def test_a_killed_writer_leaves_what_was_flushed(when: str, tmp_path: Path) -> None:
    path = tmp_path / "x.npy"
    killed = subprocess.run([sys.executable, "-c", KILLED, str(path), when], env={**os.environ}, check=False)
    assert killed.returncode == -signal.SIGKILL
    np.testing.assert_array_equal(oc.open(path).numpy(), np.full((1000, 3), 1.0))
    with oc.append(path) as w:
        w.write(np.full((10, 3), 3.0))
    found: Any = oc.open(path)
    assert found.shape == (1010, 3)
    assert found[1000:].tolist() == [[3.0] * 3] * 10
