import pytest
from results_made_up import case, ended, leg, ok

from harness import results, tables
from harness.spread import Spread

OURS = leg("outcore", ok(0, 1.0), ok(1, 2.0), ok(2, 1.0), cold=("a.npy",))


def test_ours_is_held_against_the_fastest_rival_that_finished() -> None:
    slow, fast = leg("slow", ok(0, 10.0), ok(1, 10.0), ok(2, 10.0)), leg("fast", ok(0, 4.0), ok(1, 4.0), ok(2, 5.0))
    found = results.compare(made := case(OURS, slow, fast, rivals=("slow", "fast")), made["comparisons"][0])
    assert found == results.Ratio("fast", Spread(4.0, 2.0, 5.0, 3))


def test_of_limits_the_lower_counts() -> None:
    slow, fast = leg("slow", ok(0, 10.0), ok(1, 10.0), ok(2, 10.0)), leg("fast", ok(0, 4.0), ok(1, 4.0), ok(2, 5.0))
    made = case(OURS, slow, fast, rivals=("slow", "fast"))
    assert results.compare(made, {**made["comparisons"][0], "slowest": True}) == results.Ratio("slow", Spread(10.0, 5.0, 10.0, 3))


def test_a_rival_out_of_time_gives_a_lower_bound() -> None:
    late = leg("late", ended(0, "timed out", 100.0))
    made = case(OURS, late, rivals=("late",))
    found = results.compare(made, made["comparisons"][0])
    assert found is not None and found.ratio is None
    assert found.at_least == pytest.approx(100.0)
    assert tables.ratio_in_words(found, 3.0) == ("> 100.00", "reached; late (timed out after 100 s)")


def test_a_killed_rival_gives_no_number() -> None:
    made = case(OURS, leg("big", ended(0, "killed", 12.0)), rivals=("big",))
    found = results.compare(made, made["comparisons"][0])
    assert tables.ratio_in_words(found, 3.0) == ("no rival finished", "big (killed after 12 s)")


def test_nothing_is_said_where_ours_did_not_run() -> None:
    made = case(leg("outcore", ended(0, "failed", 1.0)), leg("fast", ok(0, 1.0)), rivals=("fast",))
    assert results.compare(made, made["comparisons"][0]) is None


def test_seconds_are_compared_as_speed() -> None:
    made = case(OURS, leg("other", ok(0, 3.0), ok(1, 6.0), ok(2, 3.0), work=1.0), rivals=("other",), unit="s")
    found = results.compare(made, made["comparisons"][0])
    assert found == results.Ratio("other", Spread(3.0, 3.0, 3.0, 3))


def test_the_bound_takes_cores_from_a_leg_and_the_device_from_fio() -> None:
    made = case(OURS, leg("kernel", ok(0, 0.5)), rivals=("kernel",))
    # 10 GFLOP at 20 GFLOP/s; 4 GB at 2 GB/s and 1 GB at 1 GB/s.
    assert results.bound_seconds(made) == {"cores": pytest.approx(0.5), "device": pytest.approx(3.0)}


@pytest.mark.parametrize(
    ("seconds", "kernel", "reached", "words"),
    [
        (3.2, 0.5, "0.94", "reached; the device binds"),
        (4.0, 0.5, "0.75", "missed; the device binds"),
        (4.0, 3.5, "0.75", "open; the cores bind"),
    ],
)
def test_the_device_is_a_target_where_it_binds(seconds: float, kernel: float, reached: str, words: str) -> None:
    made = case(leg("outcore", ok(0, seconds)), leg("kernel", ok(0, kernel)), rivals=("kernel",))
    assert tables.device_rows(made) == []
    made["bound"]["speed_at_least"] = 0.9
    assert tables.device_rows(made) == [["gemm", "the device's limit", "0.9", reached, words]]


def test_what_a_rival_prepares_off_the_clock_is_told() -> None:
    made = case(leg("outcore", ok(0, 1.0)), leg("fast", ok(0, 1.0, prepare_s=2.5)), rivals=("fast",))
    assert tables.prepare_notes(made) == ["fast: prepared in 2.50 s before the clock starts."]


def test_bytes_are_a_sample_however_many_samples_a_leg_took() -> None:
    found = leg("x", ok(0, 1.0, 1.0, read_bytes=20, written_bytes=2), ok(1, 1.0, read_bytes=10, written_bytes=1))
    assert results.moved_bytes(found) == 11.0


def test_cpu_share_counts_the_calls_in_a_sample() -> None:
    assert results.cpu_share(leg("x", ok(0, 0.5, 0.5, cpu_seconds=2.0, calls_per_sample=4))) == 0.5
