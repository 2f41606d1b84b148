"""Where io_uring is refused, at first or later, threads take over by themselves; where threads are, an error says what for."""

import errno
import json
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

REFUSE = """
import ctypes, platform, struct
LOAD, EQUAL, RETURN = 0x20, 0x15, 0x06  # of the kernel's packet filter
IO_URING_SETUP, IO_URING_ENTER = 425, 426  # the same on every architecture
SECCOMP = {"x86_64": 317, "aarch64": 277}[platform.machine()]

class Program(ctypes.Structure):
    _fields_ = [("len", ctypes.c_ushort), ("filter", ctypes.c_void_p)]

def refuse(call, errno):
    rules = [(LOAD, 0, 0, 0), (EQUAL, 0, 1, call), (RETURN, 0, 0, 0x00050000 | errno), (RETURN, 0, 0, 0x7FFF0000)]
    code = b"".join(struct.pack("HBBI", *rule) for rule in rules)
    memory = ctypes.create_string_buffer(code, len(code))
    program, process = Program(len(rules), ctypes.addressof(memory)), ctypes.CDLL(None, use_errno=True)
    NO_NEW_PRIVILEGES, BY_FILTER, ALL_THREADS = 38, 1, 1
    if process.prctl(NO_NEW_PRIVILEGES, 1, 0, 0, 0) or process.syscall(SECCOMP, BY_FILTER, ALL_THREADS, ctypes.byref(program)):
        raise SystemExit("no filter")
"""

REFUSE_IO_URING = REFUSE + "refuse(IO_URING_SETUP, 1)\n"

WORK = """
import json, sys
import numpy as np, outcore as oc
folder = sys.argv[1]
oc.configure(memory="8MiB", scratch=folder, allow_tmpfs_scratch=True)
x = np.random.default_rng(0).standard_normal((900, 1100)).astype("f")
a = oc.from_numpy(folder + "/a.npy", x)
wrong = float(np.abs((a @ a.T).numpy() - x @ x.T).max())
info = oc.default_session().info()
print(json.dumps({"driver": info["driver"], "why": info["fallback"], "wrong": wrong}))
"""


@pytest.mark.skipif(platform.system() != "Linux", reason="io_uring is Linux's")
def test_threads_take_over_where_io_uring_is_refused(tmp_path: Path) -> None:
    command = [sys.executable, "-c", REFUSE_IO_URING + WORK, str(tmp_path)]
    outcome = subprocess.run(command, capture_output=True, text=True, timeout=120)
    if "no filter" in outcome.stderr:
        pytest.skip("this system takes no filter of system calls")
    assert outcome.returncode == 0, outcome.stderr
    found = json.loads(outcome.stdout)
    assert found["driver"] == "threads"
    assert "io_uring" in found["why"]
    assert found["wrong"] < 1e-2


DYING_RING = """
import json, sys
import numpy as np, outcore as oc
folder = sys.argv[1]
session = oc.configure(memory="8MiB", scratch=folder, allow_tmpfs_scratch=True)
x = np.random.default_rng(0).standard_normal((900, 1100)).astype("f")
a = oc.from_numpy(folder + "/a.npy", x)
before = session.info()["driver"]
refuse(IO_URING_ENTER, int(sys.argv[2]))
wrong = max(float(np.abs((a @ a.T).numpy() - x @ x.T).max()) for _ in range(3))
b = oc.from_numpy(folder + "/b.npy", x)
same = bool((b.numpy() == x).all())
info = session.info()
print(json.dumps({"before": before, "driver": info["driver"], "why": info["fallback"], "wrong": wrong, "same": same}))
"""


@pytest.mark.skipif(platform.system() != "Linux", reason="io_uring is Linux's")
@pytest.mark.parametrize("number", [errno.EIO, errno.ENOMEM, errno.EAGAIN, errno.EPERM])
def test_a_session_goes_on_where_the_kernel_refuses_its_ring_later(tmp_path: Path, number: int) -> None:
    command = [sys.executable, "-c", REFUSE + DYING_RING, str(tmp_path), str(number)]
    outcome = subprocess.run(command, capture_output=True, text=True, timeout=120)
    if "no filter" in outcome.stderr:
        pytest.skip("this system takes no filter of system calls")
    assert outcome.returncode == 0, outcome.stderr
    found = json.loads(outcome.stdout)
    if found["before"] != "io_uring":
        pytest.skip("this system has no io_uring")
    assert found["same"]
    assert found["wrong"] < 1e-2
    assert found["driver"] == "threads"
    assert os.strerror(number) in found["why"]


FEW_THREADS = """
import json, os, resource, sys
import numpy as np, outcore as oc
from outcore.errors import OutcoreError
folder, uid = sys.argv[1], int(sys.argv[2])
os.setuid(uid)
resource.setrlimit(resource.RLIMIT_NPROC, (1, 64))
session = oc.Session("8MiB", folder, threads=8, allow_tmpfs_scratch=True)
x = np.ones((900, 1100), "f")
found = []
for most in (1, 2, 6, 64):
    resource.setrlimit(resource.RLIMIT_NPROC, (most, 64))
    try:
        a = session.from_numpy(folder + "/a.npy", x)
        found.append([str((a @ a.T).numpy()[0, 0]), session.info()["threads"]])
    except OutcoreError as error:
        found.append([type(error).__name__, str(error)])
print(json.dumps(found))
"""


@pytest.mark.skipif(platform.system() != "Linux" or os.getuid() != 0, reason="it takes another user's limit")
def test_a_thread_that_the_system_refuses_is_named_and_the_session_goes_on(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    folder = tmp_path
    while folder != folder.parent:
        if not folder.stat().st_mode & 0o001:
            folder.chmod(folder.stat().st_mode | 0o011)
        folder = folder.parent
    # Of a user who has no other process.
    environment = os.environ | {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "OUTCORE_DRIVER": "threads"}
    command = [sys.executable, "-c", FEW_THREADS, str(tmp_path), str(61_000 + os.getpid() % 4000)]
    outcome = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)
    assert outcome.returncode == 0, outcome.stderr
    none, one, few, all_ = json.loads(outcome.stdout)
    for name, text in (none, one):
        assert name in ("FailedError", "DeviceError")
        assert "outcore needs" in text
        assert "thread" in text
    assert few[0] == all_[0] == "1100.0"
    assert 1 <= few[1] < 8
