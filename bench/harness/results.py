"""Raw results read back: rates, ratios and limits of a run of a case, all worked out from the numbers that the legs wrote.

A case may have been run several times; each run has a file. What is said of a case counts every complete run of the same code.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.spread import Spread, spread

Run = dict[str, Any]
Leg = dict[str, Any]


@dataclass(frozen=True)
class Ratio:
    """Ours over the fastest rival of each round, or the slowest of limits; `rival`: which that was most often.

    `at_least` where none finished and one was stopped by its time limit.
    """

    rival: str
    rounds: tuple[float, ...] = ()
    at_least: float | None = None

    @property
    def ratio(self) -> Spread | None:
        return spread(self.rounds) if self.rounds else None


def load(folder: Path) -> list[Run]:
    """The runs in a folder, in the order in which they began."""
    found = [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
    return sorted(found, key=lambda run: str(run["started"]))


def by_case(runs: list[Run]) -> dict[str, list[Run]]:
    found: dict[str, list[Run]] = {}
    for run in runs:
        found.setdefault(run["case"], []).append(run)
    return found


def is_complete(run: Run) -> bool:
    """Every leg went through all its rounds, or ended in one of them for good."""
    return bool(run["legs"]) and all(
        len(leg["rounds"]) == run["rounds"] or any(outcome["status"] != "ok" for outcome in leg["rounds"]) for leg in run["legs"]
    )


def counted(runs: list[Run]) -> list[Run]:
    """Of the runs of a case, those that are told in one number: all complete ones of the code that was measured last.

    They are of the case as it is now: one whose work has changed is told by its title.
    """
    complete = [run for run in runs if is_complete(run) and run["title"] == runs[-1]["title"]]
    return [run for run in complete if run["sources"] == complete[-1]["sources"]]


def leg_of(case: dict[str, Any], name: str) -> dict[str, Any] | None:
    return next((leg for leg in case["legs"] if leg["name"] == name), None)


def samples(outcome: dict[str, Any]) -> Spread:
    return spread(outcome["result"]["seconds"])


def finished(leg: dict[str, Any]) -> list[dict[str, Any]]:
    return [outcome for outcome in leg["rounds"] if outcome["status"] == "ok"]


def rates(case: dict[str, Any], leg: dict[str, Any]) -> list[float | None]:
    """A rate a round, None where the leg did not finish it. Of the device in bytes or requests, of others as the case counts."""
    return [
        work_rate(leg, outcome, case["unit"] == "s" and not leg["access"]) if outcome["status"] == "ok" else None
        for outcome in leg["rounds"]
    ]


def work_rate(leg: dict[str, Any], outcome: dict[str, Any], per_run: bool) -> float:
    work = 1.0 if per_run else outcome["result"].get("work", leg["work"])
    return float(work / samples(outcome).median)


def rate_spread(case: dict[str, Any], leg: dict[str, Any]) -> Spread | None:
    values = [value for value in rates(case, leg) if value is not None]
    return spread(values) if values else None


def compare(runs: list[Run], against: str) -> Ratio | None:
    """One comparison of some runs of a case, all rounds of all runs; None where ours did not run."""
    found = [
        ratio
        for run in runs
        for comparison in run["comparisons"]
        if comparison["against"] == against
        if (ratio := compare_run(run, comparison)) is not None
    ]
    if not found:
        return None
    rounds = tuple(value for ratio in found for value in ratio.rounds)
    least = [ratio.at_least for ratio in found if ratio.at_least is not None]
    return Ratio(
        Counter(ratio.rival for ratio in found).most_common(1)[0][0], rounds, min(least) if least and not rounds else None
    )


def compare_run(run: Run, comparison: dict[str, Any]) -> Ratio | None:
    ours = leg_of(run, comparison["ours"])
    own = rates(run, ours) if ours else []
    rivals = [leg for name in comparison["rivals"] if (leg := leg_of(run, name)) is not None]
    if ours is not None and comparison.get("overlapped"):
        return compare_overlapped(run, ours, rivals, comparison["overlapped"])
    if ours is None or not any(own) or not rivals:
        return None
    if comparison.get("passes"):
        return compare_passes(run, own, comparison["passes"])
    pick = min if comparison.get("slowest") else max
    names, ratios = [], []
    for number, rate in enumerate(own):
        there = [(found, leg["name"]) for leg in rivals if (found := rate_in(run, leg, number))]
        if rate and there:
            best, name = pick(there)
            ratios.append(rate / best)
            names.append(name)
    if ratios:
        return Ratio(Counter(names).most_common(1)[0][0], tuple(ratios))
    late = [(1.0 if run["unit"] == "s" else leg["work"]) / stop["wall_s"] for leg in rivals for stop in stopped(leg, "timed out")]
    told = " and ".join(f"{leg['name']} ({endings(leg)})" for leg in rivals)
    median = spread([rate for rate in own if rate]).median
    return Ratio(told, (), median / max(late) if late else None)


def compare_passes(run: Run, own: list[float | None], accesses: list[str]) -> Ratio | None:
    """Ours, in bytes a second, over the device that moves these bytes by one access after another."""
    speeds = zip(*(limits(run, access) for access in accesses), strict=True)
    rounds = [
        rate * sum(1 / speed for speed in found if speed) for rate, found in zip(own, speeds, strict=False) if rate and all(found)
    ]
    return Ratio(f"the device: {', '.join(accesses)}", tuple(rounds)) if rounds else None


def compare_overlapped(run: Run, ours: Leg, rivals: list[Leg], access: str) -> Ratio | None:
    """The longest of reading, computing and what a rival takes, each for the work of ours, over the seconds of ours."""
    names, ratios, request_bytes = [], [], int(access.split()[1])
    for number, (outcome, speed) in enumerate(zip(ours["rounds"], limits(run, access), strict=False)):
        others = {leg["name"]: leg["rounds"][number] for leg in rivals or [ours] if number < len(leg["rounds"])}
        if speed and outcome["status"] == "ok" and all(one["status"] == "ok" for one in others.values()):
            needed = overlapped_seconds(
                {name: one["result"] for name, one in others.items()}, speed / request_bytes, run["machine"]["cores"]
            )
            name = max(needed, key=lambda one: needed[one])
            names.append(name)
            ratios.append(needed[name] / samples(outcome).median * outcome["result"]["work"])
    return Ratio(Counter(names).most_common(1)[0][0], tuple(ratios)) if ratios else None


def overlapped_seconds(results: dict[str, dict[str, Any]], requests_a_second: float, cores: int) -> dict[str, float]:
    """Of a unit of work: of parts that read, the device; of the others, their seconds; and all cores, busy with all parts."""
    needed = {"the cores": sum(one["cpu_seconds"] / one["work"] for one in results.values()) / cores}
    for name, one in results.items():
        if "reads" in one:
            needed["the device"] = one["reads"] / requests_a_second / one["work"]
        else:
            needed[name] = sum(one["seconds"]) / one["work"]
    return needed


def rate_in(run: Run, leg: Leg, number: int) -> float | None:
    found = rates(run, leg)
    return found[number] if number < len(found) else None


def stopped(leg: dict[str, Any], status: str) -> list[dict[str, Any]]:
    return [outcome for outcome in leg["rounds"] if outcome["status"] == status]


def endings(leg: dict[str, Any]) -> str:
    """How a leg ended where it did not finish: `killed after 12 s`."""
    return ", ".join(
        f"{outcome['status']} after {outcome['wall_s']:.0f} s" for outcome in leg["rounds"] if outcome["status"] != "ok"
    )


def mean_of(leg: dict[str, Any], key: str) -> float | None:
    """Of all samples of all rounds: bytes or seconds a sample."""
    done = [outcome["result"] for outcome in finished(leg) if key in outcome["result"]]
    count = sum(len(result["seconds"]) * result.get("calls_per_sample", 1) for result in done)
    return sum(result[key] for result in done) / count if count else None


def first(leg: dict[str, Any], key: str) -> Any:
    return next((outcome["result"][key] for outcome in finished(leg) if key in outcome["result"]), None)


def parts(leg: dict[str, Any]) -> dict[str, float]:
    """What the time of a leg went by for: the mean of its rounds; nothing where it does not tell."""
    told = [outcome["result"]["parts"] for outcome in finished(leg) if "parts" in outcome["result"]]
    return {name: sum(one[name] for one in told) / len(told) for name in told[0]} if told else {}


def peak_bytes(leg: dict[str, Any]) -> int | None:
    return max((outcome["peak_bytes"] for outcome in leg["rounds"]), default=None)


def cpu_share(leg: dict[str, Any]) -> float | None:
    """Processor time over time: 1 is one core all along."""
    done = [outcome["result"] for outcome in finished(leg) if "cpu_seconds" in outcome["result"]]
    clock = sum(sum(result["seconds"]) * result.get("calls_per_sample", 1) for result in done)
    return sum(result["cpu_seconds"] for result in done) / clock if clock else None


def measured(leg: dict[str, Any], key: str) -> float | None:
    """What a leg tells of itself: the median of its rounds."""
    if key == "cores":
        return cpu_share(leg)
    told = [outcome["result"][key] for outcome in finished(leg) if key in outcome["result"]]
    return spread(told).median if told else None


def moved_bytes(leg: dict[str, Any]) -> float | None:
    read, written = mean_of(leg, "read_bytes"), mean_of(leg, "written_bytes")
    return None if read is None else read + (written or 0.0)


def limits(run: Run, access: str) -> list[float | None]:
    """Bytes a second that the device did at most in each round, by the best of its legs."""
    legs = [leg for leg in run["legs"] if leg["access"] == access]
    found: list[float | None] = []
    for number in range(run["rounds"]):
        outcomes = [leg["rounds"][number] for leg in legs if number < len(leg["rounds"])]
        speeds = [one["result"]["bytes"] / samples(one).median for one in outcomes if one["status"] == "ok"]
        found.append(max(speeds, default=None))
    return found


def missing_limits(run: Run) -> list[str]:
    """The device's legs that did not go through all rounds: a limit without them may be too low."""
    return [leg["name"] for leg in run["legs"] if leg["access"] and endings(leg)]


def bound_seconds(run: Run) -> list[dict[str, float]]:
    """Of each round, the seconds that cores, reading and writing need at least; what has no measured speed is left out.

    They overlap, so that the longest of them is the bound.
    """
    bound, core = run["bound"], leg_of(run, run["bound"]["core_leg"] or "")
    found: list[dict[str, float]] = [{} for _ in range(run["rounds"])]
    for number, parts in enumerate(found):
        outcome = core["rounds"][number] if core and number < len(core["rounds"]) else None
        if core and outcome and outcome["status"] == "ok" and bound["flops"]:
            parts["cores"] = bound["flops"] / work_rate(core, outcome, False)
        for access, size in (("read", bound["read_bytes"]), ("write", bound["written_bytes"])):
            speed = limits(run, access)[number]
            if size and speed:
                parts["reading" if access == "read" else "writing"] = size / speed
    return found


def bound_shares(run: Run, leg: Leg) -> list[tuple[str, float]]:
    """Of each round that the leg finished: what binds, and the seconds of the bound over those of the leg."""
    found = []
    for parts, outcome in zip(bound_seconds(run), leg["rounds"], strict=False):
        if parts and outcome["status"] == "ok":
            binds = max(parts, key=lambda part: parts[part])
            found.append((binds, parts[binds] / samples(outcome).median))
    return found


def all_in(folder: Path) -> list[Path]:
    """Folders with results, the newest first."""
    return sorted((path for path in folder.glob("*") if path.is_dir() and any(path.glob("*.json"))), reverse=True)
