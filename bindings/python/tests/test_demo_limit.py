"""The demo's memory limit: a hog is stopped, a modest program is not, and nothing is left behind."""

import sys
import time
from pathlib import Path

import pytest

from outcore.demo import limit

HOG = "x = []\nfor i in range(400):\n    x.append(bytearray(1 << 20))"
MODEST = "x = bytearray(20 << 20); import time; time.sleep(0.2); print('done')"
LIMIT_BYTES = 120 << 20

BEST = limit.best_way()
WAYS = [BEST, limit.Way("rlimit")] if sys.platform.startswith("linux") and BEST.kind != "rlimit" else [BEST]
enforced = pytest.mark.skipif(not BEST.enforced, reason="no memory limit on this system")


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


@enforced
@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.kind)
def test_a_hog_is_stopped(way: limit.Way) -> None:
    outcome = limit.run_limited(python(HOG), LIMIT_BYTES, way)
    assert outcome.returncode != 0
    assert outcome.peak_bytes <= LIMIT_BYTES
    if way.counts_page_cache:
        assert outcome.killed
    else:
        assert "MemoryError" in outcome.output


@enforced
@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.kind)
def test_a_modest_program_runs_and_is_watched(way: limit.Way) -> None:
    outcome = limit.run_limited(python(MODEST), LIMIT_BYTES, way)
    assert (outcome.returncode, outcome.killed, outcome.output.strip()) == (0, False, "done")
    assert 20 << 20 <= outcome.peak_bytes <= LIMIT_BYTES
    assert len(outcome.samples) >= 3


def test_without_a_limit_a_hog_is_only_watched() -> None:
    outcome = limit.run_limited(python(HOG + "\nimport time; time.sleep(0.2)"), None, BEST)
    assert (outcome.returncode, outcome.killed) == (0, False)
    assert not sys.platform.startswith("linux") or outcome.peak_bytes > 400 << 20


def test_the_groups_are_removed() -> None:
    def groups() -> set[Path]:
        return set() if BEST.parent is None else set(BEST.parent.glob("outcore-demo-*"))

    before = groups()
    limit.run_limited(python(HOG), LIMIT_BYTES, BEST)
    assert groups() <= before


def test_a_program_that_takes_too_long_is_ended() -> None:
    started = time.monotonic()
    outcome = limit.run_limited(python("import time; time.sleep(60)"), LIMIT_BYTES, BEST, timeout_s=0.3)
    assert outcome.timed_out
    assert not outcome.killed
    assert time.monotonic() - started < 10


def test_a_crash_is_not_taken_for_the_limit() -> None:
    outcome = limit.run_limited(python("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)"), LIMIT_BYTES, BEST)
    assert outcome.returncode != 0
    assert not outcome.killed


def test_every_way_can_be_said() -> None:
    assert {way.sentence for way in map(limit.Way, limit.SENTENCES)} == set(limit.SENTENCES.values())
