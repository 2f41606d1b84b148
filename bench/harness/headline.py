"""The tables of bench/README.md and of README.md: a few ratios of a few cases, from the last folder of results that has them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness import results, tables
from harness.spread import Spread, spread

EXCEEDED = 1.1
"""Of a limit: more than the noise of cores and devices."""

HEADS = ["work", "against", "ratio", "lowest to highest", "runs"]


@dataclass(frozen=True)
class Line:
    """A ratio of a case: of speeds, ours over what it is held against."""

    work: str
    against: str
    ratio: Spread | None
    told: str
    """What is said where there is no ratio."""
    rounds: str


def front(runs: list[results.Run], names: Sequence[str]) -> list[Line]:
    """The lowest ratio of each case: that to the fastest of its rivals, or to the device's limit."""
    cases = [comparison_lines(counted) for counted in measured(runs, names).values()]
    found = [[(line.ratio.median, line) for line in lines if line.ratio] for lines in cases]
    return [min(lines, key=lambda pair: pair[0])[1] for lines in found if lines]


def further(folders: Sequence[Path], works: Mapping[str, str]) -> list[tuple[Line, Path]]:
    """The first ratio of each of these cases, and the last of the folders that have one."""
    found = []
    loaded = [(folder, results.load(folder)) for folder in sorted(folders, reverse=True)]
    for name, work in works.items():
        for folder, runs in loaded:
            counted = measured(runs, [name]).get(name)
            against = counted[-1]["comparisons"][0]["against"] if counted else ""
            if counted and (ratio := results.compare(counted, against)) and ratio.ratio:
                found.append((Line(work, against, ratio.ratio, "", f"{len(counted)} x {counted[-1]['rounds']}"), folder))
                break
    return found


def document(runs: list[results.Run], names: Sequence[str]) -> str:
    """A case in some lines: one each for the comparisons that are marked, and one for the share of its bound."""
    found = measured(runs, names)
    rows = [row for counted in found.values() for row in case_rows(case_lines(counted))]
    if not found:
        return "Not measured yet.\n"
    code = ", ".join(dict.fromkeys(tables.code(run) for counted in found.values() for run in counted))
    gaps = [words for counted in found.values() for words in (*tables.missing_words(counted), *exceeded_words(counted))]
    missing = [name for name in names if name not in found]
    parts = [tables.conditions(runs[-1]), f"Code: {code}.", tables.table(HEADS, rows), *gaps]
    if missing:
        parts.append(f"Not measured: {', '.join(missing)}.")
    return "\n\n".join(parts) + "\n"


def measured(runs: list[results.Run], names: Sequence[str]) -> dict[str, list[results.Run]]:
    """The runs that count of each case that has some; trials do not."""
    found = results.by_case([run for run in runs if not run["quick"]])
    counted = {name: results.counted(found.get(name, [])) for name in names}
    return {name: runs for name, runs in counted.items() if runs}


def comparison_lines(runs: list[results.Run]) -> list[Line]:
    last, lines = runs[-1], []
    rounds = f"{len(runs)} x {last['rounds']}"
    for comparison in last["comparisons"]:
        if comparison["headline"]:
            found = results.compare(runs, comparison["against"])
            if found and found.rounds and is_of_device(last, comparison) and is_exceeded(found.rounds):
                continue
            told, _ = tables.ratio_in_words(found, None)
            lines.append(Line(last["headline"], comparison["against"], found.ratio if found else None, told, rounds))
    return lines


def case_lines(runs: list[results.Run]) -> list[Line]:
    last, lines = runs[-1], comparison_lines(runs)
    rounds = f"{len(runs)} x {last['rounds']}"
    shares = bound_shares(runs)
    if shares and last["bound"]["headline"] and not is_exceeded([share for _, share in shares]):
        words = f"the machine's limit: {tables.binding_words(shares[-1][0])}"
        lines.append(Line(last["headline"], words, spread([value for _, value in shares]), "", rounds))
    return lines


def bound_shares(runs: list[results.Run]) -> list[tuple[str, float]]:
    return [pair for run in runs if (leg := tables.ours_of(run)) for pair in results.bound_shares(run, leg)]


def is_exceeded(shares: Sequence[float]) -> bool:
    """Faster in every round than what was to be the limit, which then is none."""
    return min(shares) > EXCEEDED


def is_of_device(run: results.Run, comparison: dict[str, Any]) -> bool:
    """What it is held against is the device's limit."""
    legs = [results.leg_of(run, name) for name in comparison["rivals"]]
    return bool(legs) and all(leg is not None and leg.get("access") for leg in legs)


def exceeded_words(runs: list[results.Run]) -> list[str]:
    """Of each limit that is none."""
    last, shares = runs[-1], bound_shares(runs)
    found = []
    if shares and last["bound"]["headline"]:
        found.append((tables.binding_words(shares[-1][0]), [value for _, value in shares]))
    for comparison in last["comparisons"]:
        ratio = results.compare(runs, comparison["against"])
        if comparison["headline"] and ratio and ratio.rounds and is_of_device(last, comparison):
            found.append((comparison["against"], list(ratio.rounds)))
    ours = {what: spread(values).median for what, values in found if is_exceeded(values)}
    return [
        f"**{last['case']}: no limit is told, for ours is {ratio:.2f} times as fast as what was to tell it ({what}).**"
        for what, ratio in ours.items()
    ]


def case_rows(lines: list[Line]) -> list[list[str]]:
    """The work is told once."""
    works = [line.work if number == 0 else "" for number, line in enumerate(lines)]
    return [[work, line.against, *numbers(line), line.rounds] for work, line in zip(works, lines, strict=True)]


def numbers(line: Line) -> tuple[str, str]:
    if line.ratio is None:
        return line.told, ""
    return f"**{line.ratio.median:.2f}**", f"{line.ratio.low:.2f} to {line.ratio.high:.2f}"
