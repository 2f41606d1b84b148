"""Where io_uring is refused, as in many containers, threads take over by themselves."""

import json
import platform
import subprocess
import sys
from pathlib import Path

import pytest

REFUSE_IO_URING = """
import ctypes, struct
LOAD, EQUAL, RETURN = 0x20, 0x15, 0x06  # of the kernel's packet filter
IO_URING_SETUP = 425  # the same on every architecture
rules = [(LOAD, 0, 0, 0), (EQUAL, 0, 1, IO_URING_SETUP), (RETURN, 0, 0, 0x00050001), (RETURN, 0, 0, 0x7FFF0000)]
code = b"".join(struct.pack("HBBI", *rule) for rule in rules)
memory = ctypes.create_string_buffer(code, len(code))

class Program(ctypes.Structure):
    _fields_ = [("len", ctypes.c_ushort), ("filter", ctypes.c_void_p)]

program, process = Program(len(rules), ctypes.addressof(memory)), ctypes.CDLL(None, use_errno=True)
NO_NEW_PRIVILEGES, SECCOMP, BY_FILTER = 38, 22, 2
if process.prctl(NO_NEW_PRIVILEGES, 1, 0, 0, 0) or process.prctl(SECCOMP, BY_FILTER, ctypes.byref(program), 0, 0):
    raise SystemExit("no filter")
"""

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
