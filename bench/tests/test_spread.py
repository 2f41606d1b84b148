import pytest

from harness.spread import Spread, against_rival, against_target, spread


def test_a_spread_is_the_whole_range() -> None:
    assert spread([3.0, 1.0, 2.0, 10.0]) == Spread(2.5, 1.0, 10.0, 4)


def test_nothing_has_no_spread() -> None:
    with pytest.raises(ValueError, match="no values"):
        spread([])


@pytest.mark.parametrize(
    ("low", "median", "high", "words"),
    [
        (1.1, 1.2, 1.3, "reached"),
        (0.9, 1.2, 1.3, "reached, within the noise"),
        (0.7, 0.9, 1.1, "missed, within the noise"),
        (0.7, 0.8, 0.9, "missed"),
    ],
)
def test_a_target_inside_the_range_is_within_the_noise(low: float, median: float, high: float, words: str) -> None:
    assert against_target(Spread(median, low, high, 3), 1.0) == words


def test_a_range_that_holds_one_is_no_difference() -> None:
    assert against_rival(Spread(1.05, 0.98, 1.2, 3)) == "no difference beyond the noise"
    assert against_rival(Spread(1.05, 1.01, 1.2, 3)) == "faster"
    assert against_rival(Spread(0.9, 0.9, 0.9, 1)) == "slower"
