"""Results as SVG: a bar a leg. The same results give the same bytes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("svg")
matplotlib.rcParams.update(
    {"svg.hashsalt": "outcore", "svg.fonttype": "none", "font.size": 9, "axes.spines.top": False, "axes.spines.right": False}
)

import matplotlib.pyplot as plt  # noqa: E402

from harness import results  # noqa: E402
from harness.headline import Line  # noqa: E402
from harness.model import UNIT_SIZE  # noqa: E402

OURS, RIVAL, MISSED = "#1b6ca8", "#b8b8b8", "#c0392b"
PARTS = {"computing": "#1b6ca8", "reading": "#c0392b", "writing": "#8a8a8a"}
"""What time goes by for; computing and reading side by side are what a reader looks for."""


def draw(runs: list[dict[str, Any]], folder: Path) -> dict[str, Path]:
    """A file a case: its last complete run."""
    folder.mkdir(parents=True, exist_ok=True)
    files: dict[str, Path] = {}
    for name, found in results.by_case(runs).items():
        counted = results.counted(found)
        if counted and draw_case(counted[-1], folder / f"{name}.svg"):
            files[name] = folder / f"{name}.svg"
    return files


def draw_case(case: dict[str, Any], path: Path) -> bool:
    if any(results.parts(leg) for leg in case["legs"]):
        return draw_parts(case, path)
    other_work = case["bound"]["core_leg"] if case["unit"] == "s" else None
    legs = [leg for leg in reversed(case["legs"]) if leg["name"] != other_work and not is_device(case, leg)]
    found = [results.rate_spread(case, leg) for leg in legs]
    if not any(found):
        return False
    figure, axes = plt.subplots(figsize=(7.5, 0.6 + 0.38 * len(legs)))
    for row, (leg, rate) in enumerate(zip(legs, found, strict=True)):
        if rate is None:
            axes.text(0, row, f"  {results.endings(leg) or 'not run'}", va="center", color=MISSED)
            continue
        middle, low, high = (scaled(case, value) for value in (rate.median, rate.low, rate.high))
        low, high = min(low, high), max(low, high)
        ours = leg["name"].startswith("outcore")
        axes.barh(
            row,
            middle,
            xerr=[[middle - low], [high - middle]],
            color=OURS if ours else RIVAL,
            ecolor="black",
            capsize=2,
            height=0.65,
        )
        axes.text(high, row, f"  {middle:,.4g}", va="center")
    axes.set_yticks(range(len(legs)), [leg["name"] for leg in legs])
    axes.set_xlabel("seconds, less is better" if case["unit"] == "s" else f"{case['unit']}, more is better")
    axes.margins(x=0.12)
    axes.set_xlim(left=0)
    return save(figure, path)


def is_device(case: dict[str, Any], leg: dict[str, Any]) -> bool:
    """Where the case does not count what the device does."""
    return bool(leg["access"]) and case["unit"] in ("s", "GFLOP/s")


def draw_parts(case: dict[str, Any], path: Path) -> bool:
    """A bar a leg, split into what its time went by for."""
    legs = [leg for leg in reversed(case["legs"]) if not is_device(case, leg)]
    figure, axes = plt.subplots(figsize=(8.5, 1.0 + 0.38 * len(legs)))
    for row, leg in enumerate(legs):
        found, left = results.parts(leg), 0.0
        if not found:
            axes.text(0, row, f"  {results.endings(leg) or 'not run'}", va="center", color=MISSED)
            continue
        for part, color in PARTS.items():
            axes.barh(row, found[part], left=left, color=color, height=0.65, label=part if leg is legs[-1] else None)
            left += found[part]
        axes.text(left, row, f"  {left:,.4g}", va="center")
    axes.set_yticks(range(len(legs)), [leg["name"] for leg in legs])
    axes.set_xlabel("seconds, less is better")
    axes.margins(x=0.12)
    axes.set_xlim(left=0)
    axes.legend(loc="lower center", bbox_to_anchor=(0.4, 1.0), ncols=len(PARTS), frameon=False)
    return save(figure, path)


def scaled(case: dict[str, Any], rate: float) -> float:
    return 1 / rate if case["unit"] == "s" else rate / UNIT_SIZE[case["unit"]]


def save(figure: Any, path: Path) -> bool:
    figure.savefig(path, bbox_inches="tight", metadata={"Date": None})
    plt.close(figure)
    return True


def draw_headline(lines: list[Line], path: Path) -> None:
    """Bars on a logarithmic axis that begin at 1, equally fast, with the range of the rounds."""
    lines = sorted(lines, key=lambda line: -line.ratio.median if line.ratio else 0.0)
    figure, axes = plt.subplots(figsize=(8.4, 0.36 * len(lines) + 0.9))
    figure.subplots_adjust(left=0.56, right=0.95, top=0.98, bottom=0.12)
    for place, line in enumerate(lines):
        assert line.ratio is not None, "a line of the front page has a ratio"
        middle, low, high = line.ratio.median, line.ratio.low, line.ratio.high
        axes.barh(place, middle - 1, left=1, height=0.6, color=OURS if middle >= 1 else RIVAL)
        axes.plot([low, high], [place, place], color="black", linewidth=1)
        axes.text(max(high, 1) * 1.08, place, f"{middle:.2f}", va="center")
    axes.axvline(1, color="black", linewidth=0.8)
    axes.set_xscale("log")
    highest = max((line.ratio.high for line in lines if line.ratio), default=1.0)
    axes.set_xlim(0.4, max(highest, 1) * 1.9)
    ticks = [tick for tick in (0.5, 1, 2, 5, 10, 20, 50, 100) if tick <= max(highest, 2)]
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()
    axes.set_yticks(range(len(lines)), [f"{line.work}\nagainst {line.against}" for line in lines], fontsize=7)
    axes.tick_params(axis="y", length=0)
    axes.invert_yaxis()
    axes.set_xlabel("times as fast (1: equally fast)")
    axes.spines["left"].set_visible(False)
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)
