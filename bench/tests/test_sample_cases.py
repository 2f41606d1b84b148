"""Training samples: what is checked and measured of an order, and what each contestant may use."""

import itertools
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from outcore.demo import limit

from cases import BUILDERS, samples
from harness import runner, tables
from harness.model import MIB, ROOT, Case, Context, Leg
from legs import measure

CONTEXT = Context("scratch/outcore-bench", scale=0.02)
COUNT, BATCH = 1 << 16, 256


def buffered(numbers: Any, size: int) -> Any:
    """The order of a buffer of that size from which samples are drawn at random."""
    random, buffer, order = np.random.default_rng(0), list(numbers[:size]), []
    for number in numbers[size:]:
        at = random.integers(size)
        order.append(buffer[at])
        buffer[at] = number
    return np.array([*order, *random.permutation(buffer)])


def test_a_random_order_has_an_unevenness_of_one_and_so_has_a_part_of_it() -> None:
    order = np.random.default_rng(0).permutation(COUNT)
    assert measure.unevenness(order, BATCH, COUNT) == pytest.approx(1, abs=0.3)
    assert measure.unevenness(order[: COUNT // 3], BATCH, COUNT) == pytest.approx(1, abs=0.5)


def test_neighbours_that_come_together_are_uneven_by_how_near_they_are() -> None:
    numbers = np.arange(COUNT)
    assert measure.unevenness(numbers, BATCH, COUNT) == pytest.approx(BATCH, rel=0.01)
    small, large = (measure.unevenness(buffered(numbers, size), BATCH, COUNT) for size in (1000, COUNT // 2))
    assert BATCH > small > 4 * large > 4


def test_a_part_of_an_epoch_from_one_place_is_uneven_however_it_is_mixed() -> None:
    assert measure.unevenness(np.random.default_rng(0).permutation(COUNT // 4), BATCH, COUNT) > BATCH / 4


def test_an_incomplete_batch_does_not_count() -> None:
    order = np.random.default_rng(0).permutation(COUNT)
    assert measure.unevenness(order[: 8 * BATCH + 9], BATCH, COUNT) == measure.unevenness(order[: 8 * BATCH], BATCH, COUNT)


@pytest.mark.parametrize(("numbers", "words"), [([0, 1, 1], "twice"), ([0, 3], "not there")])
def test_samples_that_come_twice_or_do_not_exist_are_seen(numbers: list[int], words: str) -> None:
    measure.check_numbers(np.array([2, 0, 1], "<u8"), 3)
    with pytest.raises(SystemExit, match=words):
        measure.check_numbers(np.array(numbers, "<u8"), 3)


def test_processor_time_counts_children_that_go_on_and_those_that_have_ended() -> None:
    before = measure.processor_seconds()
    busy = "import time\nwhile time.process_time() < 0.3: pass\nprint(flush=True)\ninput()"
    with subprocess.Popen([sys.executable, "-c", busy], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout and child.stdin
        child.stdout.readline()
        assert measure.processor_seconds() - before >= 0.28
        child.stdin.write(b"\n")
    assert measure.processor_seconds() - before >= 0.28


def test_each_limited_leg_is_measured_with_what_it_imports(monkeypatch: pytest.MonkeyPatch) -> None:
    commands: list[list[str]] = []

    def run(command: list[str], *_: Any, **__: Any) -> limit.Outcome:
        commands.append(command)
        return limit.Outcome(0, False, 0.1, 0.0, None, len(commands) * MIB, None)

    monkeypatch.setattr(limit, "run_limited", run)
    case = BUILDERS["samples-epoch"](CONTEXT)
    limits = runner.process_limit(case, limit.Way("none"))
    assert limits is not None and case.limit_over_bytes is not None
    legs = [leg for leg in case.legs if leg.limited]
    assert [leg.name for leg in case.legs if leg not in legs] == ["DALI"]
    for number, leg in enumerate(legs, 1):
        assert runner.limit_of(leg, limits) == case.limit_over_bytes + runner.MARGIN_BYTES + number * MIB
        assert f"{leg.function.partition('.')[0]}.nothing" in commands[number - 1]
        assert leg.spec.get("loader") in samples.LOADERS or leg.spec["imports"] == ["outcore.torch"]
    assert f"leg take (1 to {len(legs)} MiB)" in tables.limit_notes({"limit": limits})[0]


def test_a_setting_that_is_killed_under_the_limit_does_not_win(monkeypatch: pytest.MonkeyPatch) -> None:
    limits: list[int | None] = []

    def run(leg: Leg, _: Context, __: limit.Way, limit_bytes: int | None) -> dict[str, Any]:
        limits.append(limit_bytes)
        killed = {"status": "killed", "output": ""}
        return killed if leg.spec["workers"] == 8 else {"status": "ok", "result": {"seconds": [9.0 - leg.spec["workers"]]}}

    monkeypatch.setattr(runner, "run_leg", run)
    leg = Leg("x", "x.y", {}, limited=True, sweep=samples.WORKERS)
    found, tried = runner.chosen(leg, "IOPS", CONTEXT, limit.Way("none"), 5, lambda _: None)
    assert found.spec["workers"] == 2 and limits == [5, 5, 5]
    assert [entry["status"] for entry in tried] == ["ok", "ok", "killed"]


def test_of_settings_in_order_of_cost_none_is_tried_after_one_that_finishes(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(leg: Leg, *_: object) -> dict[str, Any]:
        failed = {"status": "failed", "output": ""}
        return failed if leg.spec["tolerance"] == 3 else {"status": "ok", "result": {"seconds": [1.0]}}

    monkeypatch.setattr(runner, "run_leg", run)
    leg = Leg("x", "x.y", {}, sweep=tuple({"tolerance": loose} for loose in (3, 2, 1)), sweep_ascends=True)
    found, tried = runner.chosen(leg, "s", CONTEXT, limit.Way("none"), None, lambda _: None)
    assert found.spec["tolerance"] == 2
    assert [entry["status"] for entry in tried] == ["failed", "ok"]


@pytest.mark.parametrize("name", [name for name in BUILDERS if name.startswith("samples-")])
def test_what_is_compared_can_be_told_apart(name: str) -> None:
    case: Case = BUILDERS[name](CONTEXT)
    told = [entry.against for entry in (*case.comparisons, *case.measures)]
    assert len(set(told)) == len(told)


def test_our_chunk_shuffle_is_compared_with_its_like_only() -> None:
    case = BUILDERS["samples-epoch"](CONTEXT)
    held = {comparison.rivals[0] for comparison in case.comparisons if "chunk" in comparison.ours}
    assert held == {"WebDataset", "LitData", "DALI"}
    assert len({comparison.rivals[0] for comparison in case.comparisons if "global" in comparison.ours}) == len(samples.LOADERS)


def test_calls_ahead_give_their_results_in_order_and_no_more_than_asked_for_are_on_their_way() -> None:
    pytest.importorskip("torch")
    from legs import loaders

    begun = []
    with ThreadPoolExecutor(4) as pool:
        results = loaders.ahead(pool, lambda n: begun.append(n) or n, list(range(50)), 4)
        assert list(itertools.islice(results, 3)) == [0, 1, 2]
        assert len(begun) <= 3 + 4
        assert list(results) == list(range(3, 50))


def test_what_every_loader_says_that_it_imports_is_there() -> None:
    python = ROOT / ".venv/rivals/bin/python"
    if not python.exists():
        pytest.skip("the environment of rivals is not installed")
    code = (
        "import sys; sys.path.insert(0, 'bench'); from importlib.util import find_spec; from legs.loaders import LOADERS; "
        "print([m for made in LOADERS.values() for m in made.modules if find_spec(m.partition('.')[0]) is None])"
    )
    assert subprocess.run([python, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip() == "[]"
