"""Forks while something goes on: what a child has of its parent's memory, and that its parent loses nothing."""

import os
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

import outcore as oc
from outcore.streams import StreamStore

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="smaps says what a child has")

LARGE = 2 << 20


def mappings(wanted: str = "") -> list[tuple[int, int]]:
    """Addresses of this process's mappings that have a flag, all of them without one."""
    found, last = [], (0, 0)
    for line in Path("/proc/self/smaps").read_text().splitlines():
        name = line.split(" ", 1)[0]
        if not name.endswith(":"):
            start, end = name.split("-")
            last = int(start, 16), int(end, 16)
        elif name == "VmFlags:" and (not wanted or wanted in line.split()[1:]):
            found.append(last)
    return found


def overlap(one: tuple[int, int], other: tuple[int, int]) -> int:
    return max(0, min(one[1], other[1]) - max(one[0], other[0]))


def test_a_child_has_what_was_lent_and_no_frame_of_the_engine(tmp_path: Path, rng: np.random.Generator) -> None:
    x = rng.standard_normal((1500, 1500))
    session = oc.Session("32MiB", tmp_path, 2, allow_tmpfs_scratch=True)
    a = session.from_numpy(tmp_path / "a.npy", x)
    data = rng.bytes(8 << 20)
    store = StreamStore(tmp_path / "s.store", size="32MiB", session=session)
    with store.create("x", block=1 << 20) as writer:
        writer.write(data)
    blocks = store.open("x").blocks()
    lent = [next(blocks), next(blocks)]
    expected = [bytes(block) for block in lent]
    failed: list[BaseException] = []
    ends = threading.Event()

    def multiply() -> None:
        """Reads and writes on and on, 18 MiB an operand."""
        try:
            while not ends.is_set():
                np.testing.assert_allclose((a @ a).numpy(), product)
        except BaseException as error:
            failed.append(error)

    product = x @ x
    (a @ a).numpy()
    worker = threading.Thread(target=multiply)
    worker.start()
    try:
        for _ in range(12):
            kept = [range_ for range_ in mappings("dc") if range_[1] - range_[0] >= LARGE]
            assert kept, "the frames of the product are kept from children"
            child = os.fork()
            if child == 0:
                status = 1
                try:
                    ours = mappings()
                    # What the child itself has mapped may lie where its parent's frames do.
                    absent = all(sum(overlap(range_, own) for own in ours) < LARGE for range_ in kept)
                    same = all(bytes(block) == before for block, before in zip(lent, expected, strict=True))
                    status = 0 if absent and same else 2
                finally:
                    os._exit(status)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    finally:
        ends.set()
        worker.join()
    assert not failed, failed[0]
    assert b"".join([*expected, *(bytes(block) for block in blocks)]) == data
