from typing import Any

import pytest
from results_made_up import case, device, ended, leg, ok

from harness import results, tables

OURS = leg("outcore", ok(0, 1.0), ok(1, 2.0), ok(2, 1.0), cold=("a.npy",))


def compared(made: dict[str, Any]) -> results.Ratio | None:
    return results.compare([made], "the others")


def test_ours_is_held_against_the_rival_that_was_fastest_in_the_same_round() -> None:
    one, other = leg("one", ok(0, 10.0), ok(1, 4.0), ok(2, 4.0)), leg("other", ok(0, 4.0), ok(1, 10.0), ok(2, 5.0))
    assert compared(case(OURS, one, other, rivals=("one", "other"))) == results.Ratio("one", (4.0, 2.0, 4.0))


def test_of_limits_the_lower_counts() -> None:
    slow, fast = leg("slow", ok(0, 10.0), ok(1, 10.0), ok(2, 10.0)), leg("fast", ok(0, 4.0), ok(1, 4.0), ok(2, 5.0))
    made = case(OURS, slow, fast, rivals=("slow", "fast"))
    made["comparisons"][0]["slowest"] = True
    assert compared(made) == results.Ratio("slow", (10.0, 5.0, 10.0))


def test_passes_of_the_device_follow_each_other_at_the_best_speeds_of_the_round() -> None:
    # 10 GB in 1 and in 2 s; read at 4 and 5 GB/s, written at 2 and 1 GB/s.
    ours = leg("outcore", ok(0, 1.0), ok(1, 2.0))
    legs = (device("read", 1.0, 5.0), device("read", 4.0, 2.0, pages="huge pages"), device("write", 2.0, 1.0))
    made = case(ours, *legs, rivals=tuple(leg["name"] for leg in legs), unit="GB/s")
    made["comparisons"][0]["passes"] = ["read", "write"]
    found = compared(made)
    assert found is not None and found.rival == "the device: read, write"
    assert found.rounds == (pytest.approx(10 * (1 / 4 + 1 / 2)), pytest.approx(5 * (1 / 5 + 1 / 1)))
    made["comparisons"][0]["passes"] = ["read", "write", "read", "write"]
    found = compared(made)
    assert found is not None and found.rounds == (pytest.approx(15.0), pytest.approx(12.0))


def test_a_round_without_one_of_the_passes_does_not_count() -> None:
    write = device("write", 2.0)
    write["rounds"].append(ended(1, "failed", 1.0))
    made = case(leg("outcore", ok(0, 1.0), ok(1, 1.0)), device("read", 2.0, 2.0), write, rivals=(write["name"],), unit="GB/s")
    made["comparisons"][0]["passes"] = ["read", "write"]
    found = compared(made)
    assert found is not None and found.rounds == (pytest.approx(10.0),)
    write["rounds"][0] = ended(0, "failed", 1.0)
    assert compared(made) is None


def test_a_rival_out_of_time_gives_a_lower_bound() -> None:
    found = compared(case(OURS, leg("late", ended(0, "timed out", 100.0)), rivals=("late",)))
    assert found is not None and found.ratio is None
    assert found.at_least == pytest.approx(100.0)
    assert tables.ratio_in_words(found, 3.0) == ("> 100.00", "reached; late (timed out after 100 s)")


def test_a_killed_rival_gives_no_number() -> None:
    found = compared(case(OURS, leg("big", ended(0, "killed", 12.0)), rivals=("big",)))
    assert tables.ratio_in_words(found, 3.0) == ("no rival finished", "big (killed after 12 s)")


def test_nothing_is_said_where_ours_did_not_run() -> None:
    assert compared(case(leg("outcore", ended(0, "failed", 1.0)), leg("fast", ok(0, 1.0)), rivals=("fast",))) is None


def test_seconds_are_compared_as_speed() -> None:
    other = leg("other", ok(0, 3.0), ok(1, 6.0), ok(2, 3.0), work=1.0)
    assert compared(case(OURS, other, rivals=("other",), unit="s")) == results.Ratio("other", (3.0, 3.0, 3.0))


def test_the_limit_of_a_round_is_the_faster_of_small_and_huge_pages() -> None:
    made = case(OURS, device("read", 1.0, 5.0), device("read", 4.0, 2.0, pages="huge pages"), rivals=())
    assert results.limits(made, "read") == [pytest.approx(4e9), pytest.approx(5e9)]
    assert results.limits(made, "write") == [None, None]


def test_the_bound_is_the_longest_of_cores_reading_and_writing_and_never_their_sum() -> None:
    # 10 GFLOP at 20 GFLOP/s; 4 GB read at 2 and at 8 GB/s, 1 GB written at 1 GB/s.
    made = case(OURS, leg("kernel", ok(0, 0.5), ok(1, 0.5)), device("read", 2.0, 8.0), device("write", 1.0, 1.0), rivals=())
    assert results.bound_seconds(made) == [
        {"cores": pytest.approx(0.5), "reading": pytest.approx(2.0), "writing": pytest.approx(1.0)},
        {"cores": pytest.approx(0.5), "reading": pytest.approx(0.5), "writing": pytest.approx(1.0)},
    ]
    # Ours took 1 s and 2 s.
    assert results.bound_shares(made, OURS) == [("reading", pytest.approx(2.0)), ("writing", pytest.approx(0.5))]


@pytest.mark.parametrize(
    ("seconds", "kernel", "reached", "words"),
    [
        (2.1, 0.5, "0.95 (0.95 to 0.95)", "reached"),
        (4.0, 0.5, "0.50 (0.50 to 0.50)", "missed"),
        (4.0, 3.0, "0.75 (0.75 to 0.75)", "no target: the cores bind"),
    ],
)
def test_the_device_is_a_target_where_it_binds(seconds: float, kernel: float, reached: str, words: str) -> None:
    made = case(
        leg("outcore", ok(0, seconds)), leg("kernel", ok(0, kernel)), device("read", 2.0), device("write", 1.0), rivals=()
    )
    made["bound"]["speed_at_least"] = 0.9
    (row,) = tables.bound_rows([made])
    assert row[1:] == ["0.9", reached, words]


def run_of(commit: str, *seconds: float, changed: tuple[str, ...] = ()) -> dict[str, Any]:
    rounds = [ok(number, one) for number, one in enumerate(seconds)]
    rival = [ok(number, 2.0) for number in range(len(seconds))]
    made = case(leg("outcore", *rounds), leg("fast", *rival), rivals=("fast",))
    return {**made, "sources": {"commit": commit, "changed": list(changed), "difference": None}}


def test_every_complete_run_of_the_last_code_counts_and_no_other() -> None:
    runs = [run_of("old", 9.0, 9.0), run_of("new", 1.0, 2.0), run_of("new", 4.0), run_of("new", 4.0, 2.0)]
    counted = results.counted(runs)
    assert counted == [runs[1], runs[3]]
    assert results.compare(counted, "the others") == results.Ratio("fast", (2.0, 1.0, 0.5, 1.0))
    assert results.counted(runs[:1]) == runs[:1] and results.counted([runs[2]]) == []


def test_code_that_is_not_committed_counts_apart_and_is_marked() -> None:
    runs = [run_of("a", 1.0, 1.0), run_of("a", 2.0, 2.0, changed=("bench/run.py",))]
    assert results.counted(runs) == runs[1:]
    assert "uncommitted" in tables.code(runs[1]) and "uncommitted" not in tables.code(runs[0])


def test_what_a_rival_prepares_off_the_clock_is_told() -> None:
    made = case(leg("outcore", ok(0, 1.0)), leg("fast", ok(0, 1.0, prepare_s=2.5)), rivals=("fast",))
    assert tables.prepare_notes(made) == ["fast: prepared in 2.50 s before the clock starts."]


def test_bytes_are_a_sample_however_many_samples_a_leg_took() -> None:
    found = leg("x", ok(0, 1.0, 1.0, read_bytes=20, written_bytes=2), ok(1, 1.0, read_bytes=10, written_bytes=1))
    assert results.moved_bytes(found) == 11.0


def test_cpu_share_counts_the_calls_in_a_sample() -> None:
    assert results.cpu_share(leg("x", ok(0, 0.5, 0.5, cpu_seconds=2.0, calls_per_sample=4))) == 0.5


def test_what_goes_on_at_once_is_held_against_the_longest_of_it() -> None:
    ours = leg("outcore", *(ok(number, 4.0, work=100.0) for number in range(3)))
    # For the work of ours: the device 1, 0.5 and 0.5 s at a million requests a second, two cores 0.75, 1.5 and 0.75 s in all, and
    # the network 0.2, 0.2 and 2 s.
    reads = leg("reads", *(ok(n, 9.0, work=50.0, reads=r, cpu_seconds=0.5) for n, r in enumerate((500_000, 250_000, 250_000))))
    network = leg(
        "network",
        ok(0, 0.1, work=50.0, cpu_seconds=0.25),
        ok(1, 0.1, work=50.0, cpu_seconds=1.0),
        ok(2, 1.0, work=50.0, cpu_seconds=0.25),
    )
    limit = device("randread 4096", 4.096, 4.096, 4.096)
    made = {**case(ours, reads, network, limit, rivals=("reads", "network")), "rounds": 3}
    made["comparisons"][0]["overlapped"] = "randread 4096"
    found = compared(made)
    assert found is not None and found.rounds == pytest.approx((0.25, 0.375, 0.5))
    network["rounds"][2] = ended(2, "killed", 1.0)
    found = compared(made)
    assert found is not None and len(found.rounds) == 2


def test_without_parts_ours_tells_of_its_own_reads_and_processor_time() -> None:
    ours = leg(
        "outcore", ok(0, 4.0, work=100.0, reads=2_000_000, cpu_seconds=2.0), ok(1, 4.0, work=1.0, reads=0, cpu_seconds=4.0)
    )
    made = case(ours, device("randread 4096", 4.096, 4.096), rivals=())
    made["comparisons"][0]["overlapped"] = "randread 4096"
    found = compared(made)
    assert found is not None and found.rounds == pytest.approx((0.5, 0.5))
