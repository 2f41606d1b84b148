"""Raw results read back: rates, ratios and bounds of a case, all worked out from the numbers that the legs wrote."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.spread import Spread, pair_ratios, spread


@dataclass(frozen=True)
class Ratio:
    """Ours over the fastest rival that finished, or the slowest of limits.

    `at_least` where none finished and one was stopped by its time limit.
    """

    rival: str
    ratio: Spread | None
    at_least: float | None = None


def load(folder: Path) -> list[dict[str, Any]]:
    """The cases of a folder, in the order in which they ran."""
    found = [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
    return sorted(found, key=lambda case: str(case["started"]))


def leg_of(case: dict[str, Any], name: str) -> dict[str, Any] | None:
    return next((leg for leg in case["legs"] if leg["name"] == name), None)


def samples(outcome: dict[str, Any]) -> Spread:
    return spread(outcome["result"]["seconds"])


def finished(leg: dict[str, Any]) -> list[dict[str, Any]]:
    return [outcome for outcome in leg["rounds"] if outcome["status"] == "ok"]


def rates(case: dict[str, Any], leg: dict[str, Any]) -> list[float | None]:
    """A rate a round, None where the leg did not finish it."""
    return [work_rate(leg, outcome, case["unit"] == "s") if outcome["status"] == "ok" else None for outcome in leg["rounds"]]


def work_rate(leg: dict[str, Any], outcome: dict[str, Any], per_run: bool) -> float:
    work = 1.0 if per_run else outcome["result"].get("work", leg["work"])
    return float(work / samples(outcome).median)


def rate_spread(case: dict[str, Any], leg: dict[str, Any]) -> Spread | None:
    values = [value for value in rates(case, leg) if value is not None]
    return spread(values) if values else None


def compare(case: dict[str, Any], comparison: dict[str, Any]) -> Ratio | None:
    """None where ours did not run."""
    ours = leg_of(case, comparison["ours"])
    own = rate_spread(case, ours) if ours else None
    rivals = [leg for name in comparison["rivals"] if (leg := leg_of(case, name)) is not None]
    if ours is None or own is None or not rivals:
        return None
    speeds = [(found.median, leg) for leg in rivals if (found := rate_spread(case, leg)) is not None]
    if speeds:
        pick = min if comparison.get("slowest") else max
        _, rival = pick(speeds, key=lambda pair: pair[0])
        return Ratio(rival["name"], spread(pair_ratios(rates(case, ours), rates(case, rival))))
    late = [
        (1.0 if case["unit"] == "s" else leg["work"]) / stop["wall_s"] for leg in rivals for stop in stopped(leg, "timed out")
    ]
    names = " and ".join(f"{leg['name']} ({endings(leg)})" for leg in rivals)
    return Ratio(names, None, own.median / max(late) if late else None)


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


def bound_seconds(case: dict[str, Any]) -> dict[str, float]:
    """Seconds that the cores and the device need at least; a part whose speed is unknown is left out."""
    bound, device, found = case["bound"], case["device"], {}
    core = leg_of(case, bound["core_leg"]) if bound["core_leg"] else None
    speeds = [work_rate(core, outcome, False) for outcome in finished(core)] if core else []
    if speeds and bound["flops"]:
        found["cores"] = bound["flops"] / spread(speeds).median
    parts = ((bound["read_bytes"], "sequential read"), (bound["written_bytes"], "sequential write"))
    needed = [(size, device_rate(device, test, "bytes")) for size, test in parts if size]
    if needed and all(speed for _, speed in needed):
        found["device"] = sum(size / speed for size, speed in needed if speed)
    return found


def device_rate(device: dict[str, Any], test: str, what: str) -> float | None:
    entry = device.get(test, {})
    return entry[what] / entry["seconds"] if isinstance(entry, dict) and entry.get("seconds") else None


def all_in(folder: Path) -> list[Path]:
    """Folders with results, the newest first."""
    return sorted((path for path in folder.glob("*") if path.is_dir() and any(path.glob("*.json"))), reverse=True)
