"""Forks while something goes on: what a child has of its parent's memory, and that its parent loses nothing."""

import json
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


def frames() -> set[tuple[int, int]]:
    """Large mappings that no child has."""
    return {range_ for range_ in mappings("dc") if range_[1] - range_[0] >= LARGE}


def test_a_child_has_what_was_lent_and_no_frame_of_the_engine(tmp_path: Path, rng: np.random.Generator) -> None:
    x, told = rng.standard_normal((1500, 1500)), tmp_path / "told"
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
    checked = 0
    try:
        for _ in range(12):
            before = frames()
            child = os.fork()
            if child == 0:
                status = 1
                try:
                    told.write_text(json.dumps(mappings()))
                    same = all(bytes(block) == old for block, old in zip(lent, expected, strict=True))
                    status = 0 if same else 2
                finally:
                    os._exit(status)
            after = frames()
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
            # A frame that is given back meanwhile makes room for memory that a child does have.
            kept = before & after
            checked += len(kept)
            # What the child itself has mapped may lie where its parent's frames do.
            assert all(sum(overlap(range_, own) for own in json.loads(told.read_text())) < LARGE for range_ in kept)
    finally:
        ends.set()
        worker.join()
    assert not failed, failed[0]
    assert checked, "the frames of the product are kept from children"
    assert b"".join([*expected, *(bytes(block) for block in blocks)]) == data
