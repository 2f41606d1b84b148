"""Ctrl-C ends every long call within half a second, and what was there before is intact. Progress bars keep out of the way."""

import contextlib
import fcntl
import io
import json
import math
import os
import pty
import shutil
import signal
import struct
import subprocess
import sys
import tarfile
import termios
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pytest
import scipy.sparse as sp
from programs import imports

import outcore as oc
from outcore.embedding import create

LIMIT_S = 0.5
SLACK_S = 0.3
"""For the child to be scheduled and to print, on a busy machine."""
CPU_LIMIT_S = LIMIT_S * (os.cpu_count() or 1)
"""All threads computing for that time. In a crowd the clock measures the scheduler, the time on CPUs what was still computed."""

SETUP = """
import os, sys, time, outcore as oc, numpy as np
from outcore.data import pack
folder = sys.argv[1]
oc.configure("24MiB", folder, allow_tmpfs_scratch=True)
a, s = oc.open(folder + "/a.npy"), oc.open(folder + "/s")
more = lambda memory, name="a.npy": oc.Session(memory, folder, allow_tmpfs_scratch=True).open(folder + "/" + name)
"""

CALLS = {
    "gemm": "while True: oc.linalg.gemm(a, a, folder + '/old.npy')",
    "gemm in place": "c = oc.open(folder + '/c.npy')\nwhile True: oc.linalg.gemm(a, a, c)",
    "syrk": "while True: oc.linalg.syrk(a)",
    "read": "while True: a.numpy()",
    "write": "c = oc.open(folder + '/c.npy'); x = a.numpy()\nwhile True: c[:] = x",
    "fill": "c = oc.open(folder + '/c.npy')\nwhile True: c[:] = 1",
    "from_numpy": "x = np.ones((4000, 4000), 'f')\nwhile True: oc.from_numpy(folder + '/old.npy', x)",
    "convert": "while True: oc.convert(a, dtype='float64')",
    "take": "n = np.random.default_rng(0).integers(0, 3000, 10_000)\nwhile True: a.take(n)",
    "append": "x = np.ones((8000, 3000), 'f')\nwhile True:\n    with oc.append(folder + '/grown.npy') as w: w.write(x)\n"
    "    os.remove(folder + '/grown.npy')",
    "histogram": "while True: a.histogram(100)",
    "statistics": "while True: oc.linalg.column_statistics(a)",
    "pca": "a = more('160MiB')\nwhile True: PCA(20).fit(a)",
    "pca of integers": "b = more('160MiB', 'bytes.npy')\nwhile True: PCA(20).fit(b)",
    "pca of all components": "a = more('512MiB').slice(columns=(0, 2000))\nwhile True: PCA().fit(a)",
    "kmeans": "while True: KMeans(30, init=a[:30], tol=0, max_iter=1000).fit(a)",
    "kmeans, choosing": "while True: KMeans(20, init='k-means||').fit(a)",
    "sparse kmeans": "while True: KMeans(20, init=a[:20].repeat(10, 1), tol=0, max_iter=1000).fit(s)",
    "topics": "while True: TopicModel(5).fit(s).transform(s)",
    "svds": "while True: oc.linalg.svds(s, 10)",
    "svds, basis in scratch": "s = more('12MiB', 's')\nwhile True: oc.linalg.svds(s, 30)",
    "eigsh": "y = np.random.default_rng(0).random((900, 900)); y += y.T\nwhile True: oc.linalg.eigsh(y, 10)",
    "neighbors": "while True: NearestNeighbors(n_neighbors=5).fit(a).kneighbors(a)",
    "sparse neighbors": "while True: NearestNeighbors(n_neighbors=5).fit(s).kneighbors(s)",
    "look-ups": "from outcore.embedding import Feature, TableSet\n"
    "t = TableSet([folder + '/a.npy'], reading='4MiB', cache='1MiB')\n"
    "n = np.random.default_rng(0).integers(0, 3000, (40_000, 20))\nwhile True: t.look_up([Feature(0, n)])",
    "updates of a table": "from outcore.embedding import Table\n"
    "t = Table.open(folder + '/table', writable=True, cache='1MiB')\n"
    "n, rows = np.arange(100_000), np.ones((100_000, 64), 'f')\nwhile True: t.update(n, rows)",
    "csrmm": "while True: oc.linalg.csrmm(s, np.ones((30_000, 8), 'f'), folder + '/old.npy')",
    "csrmm of many columns": "r, b = more('160MiB', 'repeated'), np.ones((2, 8_000_000), 'f')\nwhile True: oc.linalg.csrmm(r, b)",
    "csrcsc": "while True: oc.linalg.csrcsc(s)",
    "import": "while True: oc.import_libsvm(folder + '/imported', folder + '/s.svm')",
    "export": "while True: oc.export_libsvm(s, folder + '/exported.svm')",
    "open": "while True: oc.open(folder + '/lines')",
    "planning": "x = more('512MiB', 'long.npy')\nwhile True: oc.explain(oc.linalg.reduce, x, 'sum')",
    "planning a product": "x = more('24MiB', 'long.npy')\nwhile True: oc.explain(oc.linalg.gemm, x.T, x)",
    "pack": "while True: pack(folder + '/zeros.tar.gz', folder + '/packed', fields={'id': 'bytes'})",
    "pack of long samples": "while True: pack(folder + '/zeros.tar.gz', folder + '/packed')",
    "bench-device": "from outcore._device import measure\nmeasure(oc.configure('64MiB'), folder, '64MiB', 60)",
}


LINES = 400_000_000
"""3.2 GB of offsets, which take seconds to look at."""
LONG = (10_000_000, 4096)
"""Shape of a file of holes, of which plans have many tasks."""


def stored(
    folder: Path, name: str, shape: tuple[int, int], indptr: npt.NDArray[np.int64], indices: npt.NDArray[np.int32]
) -> None:
    """A matrix of ones as another program may have written it: entries may repeat."""
    told = json.loads((folder / "s" / "matrix.json").read_text()) | {"shape": shape, "nonzeros": len(indices)}
    (folder / name).mkdir()
    (folder / name / "matrix.json").write_text(json.dumps(told))
    np.save(folder / name / "indptr.npy", indptr)
    np.save(folder / name / "indices.npy", indices)


def holes(path: Path, dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
    """An array of zeros that takes no space."""
    with open(path, "wb") as file:
        header = np.lib.format.header_data_from_array_1_0(np.zeros(1, dtype)) | {"shape": shape}
        np.lib.format.write_array_header_1_0(file, header)
        file.truncate(file.tell() + dtype.itemsize * math.prod(shape))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("interrupt")
    session = oc.Session("32MiB", folder, allow_tmpfs_scratch=True)
    session.from_numpy(folder / "a.npy", np.random.default_rng(0).standard_normal((3000, 3000), np.float32))
    session.from_numpy(folder / "old.npy", np.eye(3))
    create((100_000, 64), folder / "table", session=session)
    random = np.random.default_rng(1)
    places = random.integers(0, 30_000, (30_000, 200), dtype=np.int32)
    x = sp.csr_array((np.ones(places.size, "f"), places.ravel(), np.arange(0, places.size + 1, 200)), shape=(30_000, 30_000))
    oc.export_libsvm(session.from_scipy(folder / "s", x), folder / "s.svm")
    session.from_numpy(folder / "bytes.npy", random.integers(0, 256, (20_000, 2000), dtype=np.uint8))
    # Rows that meet the same few rows of an operand again and again; and lines without entries, in a file of holes.
    rows = np.repeat(np.arange(2, dtype=np.int32), 4096)
    stored(folder, "repeated", (2, 2), np.arange(3) * len(rows), np.tile(rows, 2))
    stored(folder, "lines", (LINES, 16), np.zeros(1, np.int64), np.zeros(0, np.int32))
    holes(folder / "lines" / "indptr.npy", np.dtype(np.int64), (LINES + 1,))
    holes(folder / "long.npy", np.dtype(np.float32), LONG)
    with tarfile.open(folder / "zeros.tar.gz", "w:gz", compresslevel=1) as archive:
        for number in range(64):
            for name, data in ((f"{number}.x", bytes(8 << 20)), (f"{number}.id", b"1")):
                member = tarfile.TarInfo(name)
                member.size = len(data)
                archive.addfile(member, io.BytesIO(data))
    return folder


@contextlib.contextmanager
def crowd() -> Iterator[None]:
    """Twice as many processes that compute all the time as there are cores."""
    processes = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2 * (os.cpu_count() or 1))]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


@pytest.mark.parametrize("call", CALLS)
def test_ctrl_c(folder: Path, call: str) -> None:
    # A request that the disk already has is waited for, and a busy disk may take seconds for one: three tries.
    after_s = 4 if "all components" in call else 0.7
    assert any(interrupt(folder, call, after_s).took_s < LIMIT_S + SLACK_S for _ in range(3))


@pytest.mark.parametrize(
    "call",
    ["gemm", "from_numpy", "pca", "kmeans", "csrmm of many columns", "csrcsc", "open"],
)
def test_ctrl_c_in_a_crowd(folder: Path, call: str) -> None:
    # The kernel may charge a process for what others had it wait for.
    assert any(interrupt(folder, call, 2.5, crowded=True).computed_s < CPU_LIMIT_S for _ in range(3))


class Interrupt(NamedTuple):
    took_s: float
    """From Ctrl-C to the exception."""
    computed_s: float
    """Time on CPUs, of all threads, in between."""


def cpu_s(process: int) -> float:
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def interrupt(folder: Path, call: str, after_s: float, *, crowded: bool = False) -> Interrupt:
    oc.create(folder / "c.npy", (3000, 3000), mode="w")
    code = f"{imports(CALLS[call])}{SETUP}\ntry:\n    print('ready', flush=True)\n{textwrap.indent(CALLS[call], '    ')}\n"
    code += "except KeyboardInterrupt:\n    print(time.monotonic(), time.process_time(), flush=True)\n"
    code += "    assert a[0, 0] == a[:1, :1][0, 0]\n    print('fine')\n"
    process = subprocess.Popen([sys.executable, "-c", code, folder], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    with crowd() if crowded else contextlib.nullcontext():
        # The dense decomposition begins when the pass over the data is done.
        time.sleep(after_s)
        asked, computed = time.monotonic(), cpu_s(process.pid)
        process.send_signal(signal.SIGINT)
        out, trouble = process.communicate(timeout=60)
    assert process.returncode == 0, trouble
    raised, then_computed, fine = out.split()
    assert fine == "fine"
    old = oc.open(folder / "old.npy")
    assert old.shape in ((3, 3), (3000, 3000), (4000, 4000), (30_000, 8))
    assert old.shape != (3, 3) or (old.numpy() == np.eye(3)).all()
    assert not list(folder.glob(".outcore-bench-*"))
    return Interrupt(float(raised) - asked, float(then_computed) - computed)


SLOW_FILES = """
#include <stdlib.h>
#include <unistd.h>
int fsync(int file) { if (!access(getenv("SLOW"), F_OK)) sleep(1); return fdatasync(file); }
"""
"""A file system that takes a second to make a file durable, while a mark is there."""


@pytest.mark.skipif(shutil.which("cc") is None, reason="no compiler to make a slow file system with")
def test_ctrl_c_while_a_checkpoint_is_made(tmp_path: Path) -> None:
    (tmp_path / "slow.c").write_text(SLOW_FILES)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", tmp_path / "slow.so", tmp_path / "slow.c"], check=True)
    code = """
        import os, sys, time, outcore as oc
        from outcore.data import Writer
        from outcore.errors import LockedError
        path = sys.argv[1] + "/data"
        oc.configure("16MiB", sys.argv[1], allow_tmpfs_scratch=True)
        try:
            with Writer(path) as writer:
                for number in range(100):
                    writer.write({"x": number})
                open(os.environ["SLOW"], "w").close()
                print("ready", flush=True)
                writer.save()
                print("too early")
        except KeyboardInterrupt:
            print(time.monotonic(), flush=True)
        os.remove(os.environ["SLOW"])
        while True:
            try:
                with Writer(path, resume=True) as writer:
                    print(len(writer))
                break
            except LockedError:
                time.sleep(0.1)
    """
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code), tmp_path],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"LD_PRELOAD": str(tmp_path / "slow.so"), "SLOW": str(tmp_path / "slow")},
    )
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    time.sleep(0.7)
    asked = time.monotonic()
    process.send_signal(signal.SIGINT)
    out, trouble = process.communicate(timeout=120)
    assert process.returncode == 0, trouble
    raised, durable = out.split()
    assert float(raised) - asked < LIMIT_S + SLACK_S
    assert int(durable) == 100, "the checkpoint was completed"


def test_the_gil_is_free_while_the_engine_works(tmp_path: Path) -> None:
    a = oc.create(tmp_path / "a.npy", (3000, 3000))
    turns, stop = 0, threading.Event()

    def count() -> None:
        nonlocal turns
        while not stop.is_set():
            turns += 1
            time.sleep(0.001)

    thread = threading.Thread(target=count)
    thread.start()
    begin = time.monotonic()
    oc.linalg.gemm(a, a)
    took = time.monotonic() - begin
    stop.set()
    thread.join()
    assert turns > took * 1000 / 20


def on_a_terminal(code: str, *arguments: object) -> str:
    """What a program writes to a terminal on standard error."""
    own, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    process = subprocess.Popen([sys.executable, "-c", code, *map(str, arguments)], stderr=theirs)
    os.close(theirs)
    parts = []
    while True:
        try:
            part = os.read(own, 4096)
        except OSError:
            break
        if not part:
            break
        parts.append(part)
    assert process.wait(timeout=60) == 0
    os.close(own)
    return b"".join(parts).decode()


def test_bars_show_on_a_terminal_only(folder: Path) -> None:
    code = (
        "import sys, outcore as oc, outcore._run as run\nrun.BAR_AFTER_S, run.STEP_S = 0, 0.002\n"
        "oc.configure('24MiB', sys.argv[1], allow_tmpfs_scratch=True)\n"
        "a = oc.open(sys.argv[1] + '/a.npy').slice(0, 1500); oc.linalg.gemm(a, a.T, progress=eval(sys.argv[2]))"
    )
    assert "gemm: " in on_a_terminal(code, folder, "None")
    assert on_a_terminal(code, folder, "False") == ""
    for progress, shown in (("None", False), ("False", False), ("True", True)):
        found = subprocess.run(
            [sys.executable, "-c", code, folder, progress], capture_output=True, text=True, timeout=60, check=True
        )
        assert ("gemm: " in found.stderr) == shown
