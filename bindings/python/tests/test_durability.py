"""What was durable is not lost, a full disk is called one, nothing is left behind, and what is lost is named."""

from __future__ import annotations

import errno
import gc
import os
import signal
import subprocess
import sys
import textwrap
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp

import outcore as oc
from outcore import errors, linalg
from outcore.data import Dataset, Writer, pack
from outcore.streams import StreamStore


def child(code: str, *arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)]
    return subprocess.Popen(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def left(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name != "scratch")


def write(writer: Writer, samples: range) -> None:
    for number in samples:
        writer.write({"x": number}, name=str(number))


# closing that fails


@pytest.fixture
def fixed(tmp_path: Path) -> Iterator[Path]:
    """A folder that can be made such that no name in it can be changed."""
    folder = tmp_path / "fixed"
    folder.mkdir()
    if subprocess.run(["chattr", "+i", folder], capture_output=True, check=False).returncode:
        pytest.skip("this user or file system knows no folders that cannot be changed")
    subprocess.run(["chattr", "-i", folder], check=True)
    yield folder
    subprocess.run(["chattr", "-i", folder], check=True)


def test_a_writer_that_cannot_be_closed_is_gone_on_with(fixed: Path) -> None:
    path = fixed / "data"
    with Writer(path) as writer:
        write(writer, range(3))
    writer = Writer(path)
    write(writer, range(100))
    writer.save()
    write(writer, range(100, 150))
    subprocess.run(["chattr", "+i", fixed], check=True)
    with pytest.raises(errors.DeniedError, match="data"):
        writer.close()
    assert len(Dataset(path)) == 3
    subprocess.run(["chattr", "-i", fixed], check=True)
    with Writer(path, resume=True) as writer:
        assert len(writer) == 100
        write(writer, range(100, 150))
    assert len(Dataset(path)) == 150 and Dataset(path)["149"]["x"] == 149
    assert left(fixed) == ["data"]


def test_a_writer_whose_name_was_taken_meanwhile_is_gone_on_with(tmp_path: Path) -> None:
    path = tmp_path / "data"
    writer = Writer(path)
    write(writer, range(100))
    writer.save()
    path.mkdir()
    (path / "precious").write_text("bytes")
    with pytest.raises(errors.ExistsError, match="precious"):
        writer.close()
    assert (path / "precious").read_text() == "bytes"
    (path / "precious").unlink()
    with Writer(path, resume=True) as writer:
        assert len(writer) == 100
    assert len(Dataset(path)) == 100
    assert left(tmp_path) == ["data"] and left(path) == sorted({*left(path)} - {"checkpoint.json", ".outcore-unfinished"})


# full disks


def fill(folder: Path, leave: int) -> None:
    """Leaves this many bytes free."""
    space = os.statvfs(folder)
    with open(folder / "full", "wb") as file:
        file.write(bytes(space.f_bavail * space.f_frsize - leave))


def text_of(folder: Path) -> Path:
    source = folder / "source.svm"
    source.write_text("".join(f"{row % 2} {1 + row % 50}:1.5 {60 + row % 70}:2.5\n" for row in range(100_000)))
    return source


@pytest.mark.parametrize("leave", [0, 4096, 300_000])
def test_an_import_to_a_full_disk(small_disk: Path, tmp_path: Path, leave: int) -> None:
    source = text_of(tmp_path)
    fill(small_disk, leave)
    imports: list[Callable[[], object]] = [
        lambda: oc.import_libsvm(small_disk / "x", source),
        lambda: oc.import_text(small_disk / "x", source),
    ]
    for attempt in imports:
        with pytest.raises(errors.NoSpaceError, match=r"disk/(x|\.x)") as caught:
            attempt()
        assert caught.value.errno == errno.ENOSPC
        assert len(str(caught.value)) < 400
        assert left(small_disk) == ["full"]


def test_all_else_that_is_written_to_a_full_disk(small_disk: Path, tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    matrix = sp.random(3000, 400, 0.3, format="csr", dtype=np.float32, random_state=rng)
    sparse = oc.from_scipy(tmp_path / "sparse", matrix)
    dense = oc.from_numpy(tmp_path / "dense.npy", rng.random((900, 900)))
    many = {"x": rng.random((400, 2000))}
    pack(many, tmp_path / "packed")
    pack({"x": np.arange(3)}, small_disk / "kept")
    kept = [sample["x"] for sample in Dataset(small_disk / "kept")]
    out = small_disk / "out"
    attempts: dict[str, Callable[[], object]] = {
        "create": lambda: oc.create(out, (1000, 1000)),
        "from_numpy": lambda: oc.from_numpy(out, np.ones((1000, 1000))),
        "from_numpy in pieces": lambda: oc.from_numpy(out, np.ones((1000, 1000), np.int64), dtype="float64"),
        "from_scipy": lambda: oc.from_scipy(out, matrix),
        "convert": lambda: oc.convert(dense, out),
        "gemm": lambda: linalg.gemm(dense, dense, out),
        "csrmm": lambda: linalg.csrmm(sparse, np.ones((400, 300), np.float32), out),
        "csrcsc": lambda: linalg.csrcsc(sparse, out),
        "store": lambda: StreamStore(out, size="4MiB"),
        "pack": lambda: pack(many, small_disk / "kept"),
        "pack of a dataset": lambda: pack(tmp_path / "packed", small_disk / "kept"),
        "export": lambda: oc.export_mtx(sparse, out.with_suffix(".mtx")),
        "scratch": lambda: oc.Session("16MiB", small_disk, allow_tmpfs_scratch=True).open(dense.path) @ dense,
    }
    for name, attempt in attempts.items():
        with pytest.raises(errors.NoSpaceError, match="disk") as caught:
            attempt()
        assert caught.value.errno == errno.ENOSPC, name
        # Before its first byte, where its size is known.
        assert name == "export" or "bytes on disk" in str(caught.value), f"{name}: {caught.value}"
        gc.collect()
        assert [path for path in left(small_disk) if not path.startswith("outcore-scratch-")] == ["kept"], name
    assert [sample["x"] for sample in Dataset(small_disk / "kept")] == kept


def test_a_writer_on_a_disk_that_fills(small_disk: Path) -> None:
    writer = Writer(small_disk / "data")
    writer.write({"x": bytes(100_000)})
    writer.save()
    with pytest.raises(errors.NoSpaceError, match="data") as first:
        for _ in range(100):
            writer.write({"x": bytes(100_000)})
    for again in (lambda: writer.write({"x": b""}), writer.save, writer.close):
        with pytest.raises(errors.NoSpaceError) as caught:
            again()
        assert str(caught.value) == str(first.value)
    with Writer(small_disk / "data", resume=True) as writer:
        assert len(writer) == 1
    assert len(Dataset(small_disk / "data")) == 1
    assert left(small_disk) == ["data"]


def test_files_may_be_no_longer_than_the_user_allows(tmp_path: Path) -> None:
    code = """
        import sys, resource, outcore as oc
        folder, limit = sys.argv[1], int(sys.argv[2])
        oc.configure("16MiB", folder + "/scratch", allow_tmpfs_scratch=True)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        try:
            print(oc.import_libsvm(folder + "/x", folder + "/source.svm").shape)
        except OSError as error:
            print(type(error).__name__, error)
    """
    text_of(tmp_path)
    found, trouble = child(code, tmp_path, 64 << 20).communicate(timeout=60)
    assert found == "(100000, 129)\n", trouble
    found, trouble = child(code, tmp_path, 600_000).communicate(timeout=60)
    assert found.startswith("FileTooLargeError") and "600000 bytes at most" in found and "/x" in found, found + trouble
    assert left(tmp_path) == ["source.svm", "x"]


# scratch of the dead


def test_scratch_of_a_killed_process_goes_with_the_first_use_of_another(tmp_path: Path) -> None:
    scratch = tmp_path / "there"
    scratch.mkdir()
    code = """
        import sys, time, numpy as np, outcore as oc
        oc.configure("16MiB", sys.argv[1], allow_tmpfs_scratch=True)
        a = oc.from_numpy(sys.argv[2], np.ones((500, 500)))
        made = a @ a
        print("made", flush=True)
        time.sleep(60)
    """
    living, dead = (child(code, scratch, tmp_path / f"{number}.npy") for number in range(2))
    for process in (living, dead):
        assert process.stdout is not None and process.stdout.readline() == "made\n"
    assert len(left(scratch)) == 2
    dead.send_signal(signal.SIGKILL)
    dead.communicate()
    oc.configure("16MiB", scratch, allow_tmpfs_scratch=True)
    assert len(left(scratch)) == 2, "nothing runs before the session is used"
    oc.open(tmp_path / "0.npy")
    until = time.monotonic() + 20
    while len(left(scratch)) > 1 and time.monotonic() < until:
        time.sleep(0.01)
    assert [int(name.split("-")[2]) for name in left(scratch)] == [living.pid]
    living.kill()
    living.communicate()


# what was not closed


def test_a_writer_that_is_dropped_says_what_is_lost(tmp_path: Path) -> None:
    writer = Writer(tmp_path / "data")
    write(writer, range(5))
    with pytest.warns(ResourceWarning, match=r"data: the writer was not closed, 5 samples are lost$"):
        del writer
        gc.collect()
    assert left(tmp_path) == []
    writer = Writer(tmp_path / "data")
    write(writer, range(5))
    writer.save()
    write(writer, range(5, 8))
    with pytest.warns(ResourceWarning, match=r"3 samples are lost; resume=True goes on behind the first 5$"):
        del writer
        gc.collect()
    with Writer(tmp_path / "data", resume=True) as writer:
        assert len(writer) == 5


def test_a_stream_that_is_dropped_says_what_is_lost(tmp_path: Path) -> None:
    store = StreamStore(tmp_path / "cache.store", size="8MiB")
    writer = store.create("rows", block="64KiB")
    writer.write(bytes(1000))
    with pytest.warns(ResourceWarning, match=r"cache\.store/rows: the stream was not closed, its 1000 bytes are lost"):
        del writer
        gc.collect()
    file = store.create("file", block="64KiB").as_file()
    file.write(b"x")
    with pytest.warns(ResourceWarning, match=r"cache\.store/file: .* 1 bytes"):
        del file
        gc.collect()
    assert list(store) == []
    writer = store.create("open", block="64KiB")
    assert writer.nbytes == 0
    with pytest.warns(ResourceWarning, match=r"cache\.store/open"):
        store.close()
    with pytest.raises(errors.ClosedError):
        store.create("more")
    store.close()
    with StreamStore(tmp_path / "cache.store") as again:
        assert list(again) == []


def test_what_is_closed_or_left_by_an_error_does_not_warn(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", ResourceWarning)
        with pytest.raises(KeyError), StreamStore(tmp_path / "cache.store", size="8MiB") as store:
            with store.create("whole", block="64KiB") as writer:
                writer.write(b"x")
            with pytest.raises(ZeroDivisionError), store.create("left", block="64KiB") as writer:
                writer.write(b"x")
                raise ZeroDivisionError
            store.create("given up", block="64KiB").discard()
            unfinished = store.create("unfinished", block="64KiB")
            raise KeyError
        del unfinished, writer, store
        with pytest.raises(ZeroDivisionError), Writer(tmp_path / "data") as samples:
            write(samples, range(5))
            raise ZeroDivisionError
        given_up = Writer(tmp_path / "data")
        given_up.discard()
        with pytest.raises(errors.ArgumentError):
            Writer(tmp_path / "data", {"x": "no such dtype"})
        with Writer(tmp_path / "data") as samples:
            write(samples, range(5))
        del samples, given_up
        gc.collect()
    with StreamStore(tmp_path / "cache.store") as store:
        assert list(store) == ["whole"]


def test_a_program_that_ends_names_what_it_has_not_closed(tmp_path: Path) -> None:
    code = """
        import sys, outcore as oc
        from outcore.data import Writer
        from outcore.streams import StreamStore
        oc.configure("16MiB", sys.argv[1] + "/scratch", allow_tmpfs_scratch=True)
        store = StreamStore(sys.argv[1] + "/cache.store", size="8MiB")
        stream, writer = store.create("rows", block="64KiB"), Writer(sys.argv[1] + "/data")
        stream.write(b"x")
        writer.write({"x": 1})
        if sys.argv[2] == "close":
            stream.close()
            writer.close()
    """
    code = "import warnings; warnings.simplefilter('always')\n" + textwrap.dedent(code)
    assert child(code, tmp_path, "close").communicate(timeout=60) == ("", "")
    (tmp_path / "cache.store").unlink()
    _, said = child(code, tmp_path, "drop").communicate(timeout=60)
    assert "cache.store/rows: the stream was not closed" in said and "data: the writer was not closed" in said
    assert "Traceback" not in said and "Exception ignored" not in said
