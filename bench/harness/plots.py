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
