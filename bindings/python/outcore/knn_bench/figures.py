"""The figures of the paper from results of `run.measure`: designs, scaling, and what the simulation says beside it.

`draw` writes those that a list of results has anything for: the parts of a round by design; time by number of ranks, strong or
weak; and the time that each design saves against `mpi` on up to 1,024 ranks, where it was simulated.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from statistics import median
from typing import Any

try:
    from matplotlib import rc_context
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter
except ImportError as error:
    raise ImportError("outcore.knn_bench.figures needs matplotlib: pip install matplotlib") from error

from ..embedding_bench.figures import COLOURS, MARKS, STYLE, write_figures

Results = Sequence[dict[str, Any]]
PARTS = {"computing_s": "computing", "waiting_s": "waiting for a block", "exchanging_s": "exchanging"}


def draw(found: Results, predicted: Results, folder: str | os.PathLike[str]) -> list[str]:
    """Writes PNG files; returns their paths."""
    made = {f"designs-{count}-ranks": designs(found, count) for count in _seen(found, "n_ranks")}
    if len(_seen(found, "n_ranks")) > 1 or predicted:
        made["scaling-weak" if found[0]["weak"] else "scaling-strong"] = scaling(found, predicted)
    if predicted:
        made["simulated"] = saved(found, predicted)
    return write_figures(made, folder)


def designs(found: Results, count: int) -> Figure:
    """Where the time of the ring goes, by design: medians of the means over ranks."""
    some = [one for one in found if one["n_ranks"] == count]
    names = _seen(some, "design")
    with rc_context(STYLE):
        made = Figure(figsize=(1.6 + 0.9 * len(names), 3.8), layout="constrained")
        axes = made.subplots()
        below = [0.0] * len(names)
        for number, (part, label) in enumerate(PARTS.items()):
            heights = [_middle(some, name, count, part) for name in names]
            axes.bar(range(len(names)), heights, 0.7, bottom=below, color=COLOURS[number], label=label)
            below = [low + high for low, high in zip(below, heights, strict=True)]
        axes.set_xticks(range(len(names)), names)
        axes.grid(axis="x", visible=False)
        axes.set(ylabel="seconds of all rounds, median")
        axes.set_ylim(top=1.35 * max(below))
        axes.legend(loc="upper right", fontsize=8)
        axes.set_title(f"{count} ranks: {_what(some[0])}", fontsize=9)
        return made


def scaling(found: Results, predicted: Results) -> Figure:
    """Time of all rounds by number of ranks: measured (marks, from least to most), simulated (dashed)."""
    with rc_context(STYLE):
        made = Figure(figsize=(5.6, 4.0), layout="constrained")
        axes = made.subplots()
        counts = sorted(_seen(found, "n_ranks"))
        for number, design in enumerate(_seen(found, "design")):
            colour = COLOURS[number % len(COLOURS)]
            own = [count for count in counts if any((one["design"], one["n_ranks"]) == (design, count) for one in found)]
            times = [[one["ring_s"] for one in found if (one["design"], one["n_ranks"]) == (design, count)] for count in own]
            middles = [median(some) for some in times]
            errors = [[middle - min(some) for middle, some in zip(middles, times, strict=True)]]
            errors.append([max(some) - middle for middle, some in zip(middles, times, strict=True)])
            axes.errorbar(
                own, middles, errors, color=colour, marker=MARKS[number % len(MARKS)], markersize=4, label=design, capsize=2
            )
            near = sorted((one["n_ranks"], one["ring_s"]) for one in predicted if one["design"] == design)
            near = [pair for pair in near if pair[0] <= max(*counts, 8)]
            axes.plot([pair[0] for pair in near], [pair[1] for pair in near], color=colour, linestyle="--", linewidth=1)
        _by_ranks(axes)
        axes.set_yscale("log")
        axes.set(ylabel="seconds of all rounds")
        axes.legend(fontsize=8)
        kind = "weak" if found[0]["weak"] else "strong"
        axes.set_title(f"{kind} scaling, dashed: simulated\n{_what(found[0])}", fontsize=9)
        return made


def saved(found: Results, predicted: Results) -> Figure:
    """What designs save of the time of `mpi`, simulated with a core and a link for each rank, and measured (marks)."""
    with rc_context(STYLE):
        made = Figure(figsize=(5.6, 4.0), layout="constrained")
        axes = made.subplots()
        whole = {one["n_ranks"]: one["ring_s"] for one in predicted if one["design"] == "mpi"}
        for number, design in enumerate(name for name in _seen(predicted, "design") if name != "mpi"):
            own = [one for one in predicted if one["design"] == design and one["n_ranks"] > 1]
            colour = COLOURS[(number + 1) % len(COLOURS)]
            x, y = [one["n_ranks"] for one in own], [1 - one["ring_s"] / whole[one["n_ranks"]] for one in own]
            axes.plot(x, y, color=colour, linestyle="--", label=design)
            for count in _seen([one for one in own if "measured_s" in one], "n_ranks"):
                base = _middle(found, "mpi", count, "ring_s")
                axes.plot([count], [1 - _middle(found, design, count, "ring_s") / base], color=colour, marker=MARKS[number])
        _by_ranks(axes)
        axes.yaxis.set_major_formatter(FuncFormatter(lambda share, _: f"{100 * share:.6g} %"))
        axes.set(ylabel="time saved against mpi")
        axes.legend(fontsize=8)
        axes.set_title("simulated (dashed) and measured (marks)", fontsize=9)
        return made


def _by_ranks(axes: Any) -> None:
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda count, _: f"{count:.0f}"))
    axes.set(xlabel="ranks")


def _middle(found: Results, design: str, count: int, name: str) -> float:
    some = [one[name] for one in found if (one["design"], one["n_ranks"]) == (design, count)]
    return float(median(some)) if some else 0.0


def _seen(results: Results, key: str) -> list[Any]:
    return list(dict.fromkeys(one[key] for one in results))


def _what(one: dict[str, Any]) -> str:
    wire = f", links of {one['rate']}" if "rate" in one else ""
    skew = f", skew {one['skew']:g}" if one["skew"] else ""
    return f"{one['rows']:,} rows, {one['queries']:,} queries{wire}{skew}"
