"""Figures from results of `run.measure`: pairs against time, passes and peak memory, and budgets against time; and of
`topics.measure`."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

try:
    from matplotlib import rc_context
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter, MaxNLocator
except ImportError as error:
    raise ImportError("outcore.spectra_bench.figures needs matplotlib: pip install matplotlib") from error

from .._units import show_bytes
from ..embedding_bench.figures import COLOURS, MARKS, STYLE, write_figures
from .run import OURS

Results = Sequence[dict[str, Any]]


def draw(found: Results, folder: str | os.PathLike[str]) -> list[str]:
    """Writes PNG files; returns their paths."""
    ours = [one for one in found if one["who"] in OURS]
    most = max((one["memory_bytes"] for one in ours), default=None)
    ample = [one for one in found if one["who"] not in OURS or one["memory_bytes"] == most]
    made = {
        "pairs-time": _lines(ample, "count", "seconds", _name, "singular triplets", "seconds"),
        "pairs-passes": _lines(
            [one for one in ample if "passes" in one], "count", "passes", _name, "singular triplets", "passes over the matrix"
        ),
        "pairs-memory": _lines(found, "count", "rss_bytes", _named_by_budget, "singular triplets", "peak memory of the process"),
    }
    if len({one["memory_bytes"] for one in ours}) > 1:
        each = [{**one, "label": f"{one['who']}, {one['count']} triplets"} for one in ours]
        made["memory-time"] = _lines(each, "memory_bytes", "seconds", lambda one: str(one["label"]), "budget", "seconds")
    return write_figures(made, folder)


def draw_topics(found: Results, folder: str | os.PathLike[str]) -> list[str]:
    """Writes a PNG file of what models of topics took and how coherent these are; returns its path."""
    with rc_context(STYLE):
        made = Figure(figsize=(7.2, 1.6 + 0.3 * len(found)), layout="constrained")
        panels = made.subplots(1, 3, sharey=True)
        names = list(dict.fromkeys(f"{_model(one)}, {one['count']} topics" for one in found))
        shown = (("seconds", "seconds"), ("npmi", "NPMI in documents held out"), ("rss_bytes", "peak memory of the process"))
        for axes, (name, label) in zip(panels, shown, strict=True):
            middles = [median(one[name] for one in found if f"{_model(one)}, {one['count']} topics" == own) for own in names]
            colours = [COLOURS[0] if own.startswith("outcore") else COLOURS[1] for own in names]
            axes.barh(names, middles, color=colours)
            axes.set_xlabel(label)
            axes.grid(axis="y", visible=False)
        panels[2].xaxis.set_major_locator(MaxNLocator(3))
        panels[2].xaxis.set_major_formatter(FuncFormatter(_as_bytes))
        panels[0].invert_yaxis()
        rows, columns = found[0]["shape"]
        made.suptitle(f"{rows:,} documents, {columns:,} words, {found[0]['nonzeros']:,} entries", fontsize=9)
    return write_figures({"topics": made}, folder)


def _model(one: dict[str, Any]) -> str:
    return str(one["who"]) if one["memory_bytes"] is None else f"{one['who']} within {show_bytes(one['memory_bytes'])}"


def _name(one: dict[str, Any]) -> str:
    return f"outcore, {one['who']}" if one["who"] in OURS else str(one["who"])


def _named_by_budget(one: dict[str, Any]) -> str:
    return _name(one) if one["memory_bytes"] is None else f"{_name(one)} within {show_bytes(one['memory_bytes'])}"


def _as_bytes(value: float, _: Any) -> str:
    return show_bytes(int(value))


def _as_number(value: float, _: Any) -> str:
    return f"{value:g}"


def _lines(found: Results, across: str, along: str, label: Callable[[dict[str, Any]], str], x_label: str, y_label: str) -> Figure:
    """Medians over the runs of each case, a line for each label."""
    with rc_context(STYLE):
        made = Figure(figsize=(5.6, 4.0), layout="constrained")
        axes = made.subplots()
        for number, name in enumerate(dict.fromkeys(label(one) for one in found)):
            own = [one for one in found if label(one) == name]
            places = sorted({one[across] for one in own})
            middles = [median(one[along] for one in own if one[across] == place) for place in places]
            colour, mark = COLOURS[number % len(COLOURS)], MARKS[number % len(MARKS)]
            axes.plot(places, middles, color=colour, marker=mark, markersize=4, label=name)
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        for axis, what in ((axes.xaxis, across), (axes.yaxis, along)):
            axis.set_major_formatter(FuncFormatter(_as_bytes if what.endswith("bytes") else _as_number))
        axes.set(xlabel=x_label, ylabel=y_label)
        axes.legend(fontsize=8)
        if found:
            rows, columns = found[0]["shape"]
            axes.set_title(f"{rows:,} x {columns:,}, {found[0]['nonzeros']:,} entries, to {found[0]['tol']:g}", fontsize=9)
        return made
