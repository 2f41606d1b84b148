"""The figures of RecSSD's paper that show the host: from published histograms of reuse, and from what `bench` returns.

3   how look-ups are shared out over rows          8   the look-up alone, rows in order against rows on pages of their own
4   what a cache of the top rows serves            10  speed against a baseline, by locality and batch size
5   the look-up alone, by batch size and mode      11  speed against a baseline, by size of rows, look-ups and tables
6   the models, by mode

The paper's times in the drive (the stacked parts of its figure 8) and of its near-data mode have no counterpart here. Each
function returns a figure of matplotlib; `draw` writes all that a list of results has. Three are not of the paper: `latencies`
from what `bench_load` returns, `hit_rates` from what `bench_ladder` returns, and `splits` from what `bench_splits` returns;
`draw_latencies`, `draw_hit_rates` and `draw_splits` write them.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from .._settings import PathLike
from ..errors import ArgumentError
from .models import MODELS, OPERATOR
from .reuse import EDGES, META_2021, META_2022, Histogram

try:
    from matplotlib import rc_context
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullFormatter
except ImportError as error:
    raise ImportError("outcore.embedding_bench.figures needs matplotlib: pip install matplotlib") from error

__all__ = [
    "draw",
    "draw_hit_rates",
    "draw_latencies",
    "draw_splits",
    "figure3",
    "figure4",
    "figure5",
    "figure6",
    "figure8",
    "figure10",
    "figure11",
    "hit_rates",
    "latencies",
    "splits",
    "write_figures",
]

Results = Sequence[dict[str, Any]]
Floats = npt.NDArray[np.float64]

INK, MUTED, GRID = "#16202e", "#56616f", "#e6e9ee"
COLOURS = ("#0b7a75", "#d9622b", "#3b6fb6", "#8f5bb5", "#c9a227", "#4d9a3f", "#7a4b2a", "#d0508e")
MARKS = "osD^vPX*"
STYLE: Any = {
    "font.size": 9.5,
    "text.color": INK,
    "axes.edgecolor": "#b9c1cc",
    "axes.labelcolor": MUTED,
    "axes.titlesize": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "legend.frameon": False,
    "figure.dpi": 140,
}


def __dir__() -> list[str]:
    return sorted(__all__)


def draw(results: Results, folder: PathLike) -> list[str]:
    """Writes, as PNG files, figures 3 and 4 and those of the others that the results have anything for; returns their paths."""
    made = {"figure-3": figure3(), "figure-4": figure4()}
    models = set(_seen(results, "model"))
    if OPERATOR.name in models:
        made["figure-5"] = figure5(results)
        if {"sequential", "strided"} <= set(_seen(_of(results, {OPERATOR.name}), "trace")):
            made["figure-8"] = figure8(results)
    if set(MODELS) & models:
        made["figure-6"] = figure6(results)
    modes = _seen(results, "mode")
    mode = "outcore" if "outcore" in modes else "map"
    for baseline in ("pages", "map"):
        if {mode, baseline} <= set(modes) and mode != baseline:
            made |= _compared(results, baseline, mode)
    return write_figures(made, folder)


def draw_latencies(results: Results, folder: PathLike) -> list[str]:
    """Writes, as a PNG file for each model, trace and size of a request, the `latencies`; returns the paths."""
    cases: dict[str, list[dict[str, Any]]] = {}
    for one in results:
        name = f"latencies-{one['model']}-{one['trace']}-{one['batch_size']}".replace(" ", "-").replace("=", "")
        cases.setdefault(name, []).append(one)
    return write_figures({name: latencies(some) for name, some in cases.items()}, folder)


def draw_hit_rates(results: Results, folder: PathLike, within: float) -> list[str]:
    """Writes `hit_rates` as a PNG file; returns its path."""
    return write_figures({"hit-rates": hit_rates(results, within)}, folder)


def draw_splits(results: Results, folder: PathLike) -> list[str]:
    """Writes `splits` as a PNG file; returns its path."""
    return write_figures({"splits": splits(results)}, folder)


def write_figures(made: Mapping[str, Figure], folder: PathLike) -> list[str]:
    """Writes figures by their names as PNG files in a folder, which is made; returns their paths."""
    Path(os.fsdecode(folder)).mkdir(parents=True, exist_ok=True)
    paths = []
    for name, figure in made.items():
        paths.append(os.path.join(os.fsdecode(folder), f"{name}.png"))
        with rc_context(STYLE):
            figure.savefig(paths[-1])
    return paths


def _compared(results: Results, baseline: str, mode: str) -> dict[str, Figure]:
    made = {}
    if any(one["trace"].startswith("K=") and one["model"] in _TABLE_MODELS for one in results):
        made[f"figure-10-{mode}-{baseline}"] = figure10(results, baseline, mode)
    if any("=" in one["model"] for one in results):
        made[f"figure-11-{mode}-{baseline}"] = figure11(results, baseline, mode)
    return made


# From histograms


def figure3(histograms: Sequence[Histogram] = (META_2021, META_2022)) -> Figure:
    """Figure 3: look-ups of rows, from the rarest on. The paper has pages where this has rows, and all of them where this has the
    bins of a histogram, so curves have corners."""
    with rc_context(STYLE):
        made, (left, right) = _panels(2, 4.0, 3.4)
        for colour, mark, one in zip(COLOURS, MARKS, histograms, strict=False):
            rows, lookups = _shares(one)
            left.plot(np.cumsum([0, *rows]), np.cumsum([0, *lookups]), color=colour, marker=mark, markersize=3.5, label=one.name)
            right.plot(EDGES[1:-1], lookups[:-1], color=colour, marker=mark, markersize=3.5, label=one.name)
            right.plot([EDGES[-2] * 2], lookups[-1:], color=colour, marker=mark, markersize=3.5, fillstyle="none")
        _percent(left, x=True)
        left.set(xlabel="rows, from the rarest to the most frequent", ylabel="look-ups of these rows", title="Cumulative")
        _percent(right)
        right.set_xscale("log", base=2)
        right.xaxis.set_major_locator(FixedLocator([4.0**power for power in range(9)]))
        right.xaxis.set_major_formatter(FuncFormatter(_frequency))
        right.set(xlabel="look-ups of a row, up to", ylabel="look-ups of such rows", title="By frequency", ylim=(0, None))
        left.legend(loc="upper left")
        made.suptitle("Figure 3: how look-ups are shared out over the rows of production tables", fontsize=11)
        return made


def figure4(groups: Sequence[Sequence[Histogram]] = ((META_2021,), (META_2022,))) -> Figure:
    """Figure 4: look-ups that a cache of the most frequent rows serves, by its size. In each group, the first histogram is that
    of all tables; others are drawn thin beside it, as `read_histograms` finds them (one for each part of the data set)."""
    with rc_context(STYLE):
        made, (axes,) = _panels(1, 6.4, 3.8)
        for colour, mark, group in zip(COLOURS, MARKS, groups, strict=False):
            for number, one in reversed(list(enumerate(group))):
                cached, served = _served(one)
                bold: Any = {"linewidth": 2, "marker": mark, "markersize": 4, "label": one.name}
                axes.plot(cached, served, color=colour, **(bold if number == 0 else {"linewidth": 0.6, "alpha": 0.4}))
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter(_PERCENT)
        axes.yaxis.set_major_formatter(_PERCENT)
        axes.set(xlim=(1e-4, 1.1), ylim=(0, 1.02))
        axes.set(
            xlabel="cached rows, of those that are looked up (the most frequent ones)", ylabel="look-ups served by the cache"
        )
        axes.legend(loc="upper left")
        thin = "\n(thin: parts of the data sets)" if any(len(group) > 1 for group in groups) else ""
        axes.set_title(f"Figure 4: what a cache of the most frequent rows serves{thin}", fontsize=11)
        return made


def _shares(one: Histogram) -> tuple[Floats, Floats]:
    """The shares of rows and look-ups of each bin. Shares of rows are published with three digits, none of which is left for the
    most frequent rows: there they follow from the look-ups, in the middle of the bin."""
    lookups = np.array(one.lookups) / sum(one.lookups)
    middle = np.sqrt((np.array(EDGES[:-1]) + 1.0) * np.array([*EDGES[1:-1], 4 * EDGES[-2]]))
    rows = np.where(np.array(one.rows) >= 0.005, one.rows, one.reuse * lookups / middle)
    return rows / rows.sum(), lookups


def _served(one: Histogram) -> tuple[Floats, Floats]:
    rows, lookups = _shares(one)
    return np.cumsum(rows[::-1]), np.cumsum(lookups[::-1])


def _frequency(edge: float, _: int) -> str:
    if edge > EDGES[-2]:
        return "more"
    return f"{edge:.0f}" if edge < 1024 else f"{edge / 1024:.0f}k"


# From results


def figure5(results: Results, trace: str | None = None) -> Figure:
    """Figure 5: a look-up in one table by the samples of a batch, in each mode."""
    some = _on(_of(results, {OPERATOR.name}), trace)
    with rc_context(STYLE):
        made, (axes,) = _panels(1, 5.6, 4.0)
        for number, mode in enumerate(_seen(some, "mode")):
            _line(axes, [one for one in some if one["mode"] == mode], number, mode)
        _batches(axes, some)
        axes.legend()
        axes.set_title(f"Figure 5: the look-up alone, {some[0]['trace']} ids\n({_what(some[0])})", fontsize=10)
        return made


def figure6(results: Results, batch_size: int | None = None, trace: str | None = None) -> Figure:
    """Figure 6: a batch of each model in each mode, and how many times as long it takes as in the first one."""
    some = _on(_of(results, set(MODELS)), trace)
    sizes = _seen(some, "batch_size")
    size = batch_size or (64 if 64 in sizes else sizes[-1])
    some = [one for one in some if one["batch_size"] == size]
    if not some:
        raise ArgumentError(f"there are no results with batches of {size} samples")
    models, modes = [name for name in MODELS if name in _seen(some, "model")], _seen(some, "mode")
    times = {(one["model"], one["mode"]): one for one in some}
    with rc_context(STYLE):
        made, (axes,) = _panels(1, max(5.0, 2.0 + 0.17 * len(models) * (len(modes) + 1)), 4.2)
        width = 0.85 / len(modes)
        for number, mode in enumerate(modes):
            for place, model in enumerate(models):
                if (model, mode) in times:
                    first = times.get((model, modes[0]))
                    _bar(axes, place + (number - (len(modes) - 1) / 2) * width, width, times[model, mode], first, COLOURS[number])
            axes.bar([0], [0], color=COLOURS[number], label=mode)
        axes.set_yscale("log")
        axes.set_ylim(top=axes.get_ylim()[1] * 3)
        axes.yaxis.set_major_formatter(FuncFormatter(_time))
        axes.set_xticks(range(len(models)), models)
        axes.grid(axis="x", visible=False)
        axes.set(ylabel="time of a batch, median", xlabel="model")
        axes.legend(ncols=len(modes), loc="upper center", bbox_to_anchor=(0.5, -0.16))
        title = f"Figure 6: the models, batches of {size} samples, {some[0]['trace']} ids"
        axes.set_title(f"{title}\n(over a bar: times as long as in {modes[0]})", fontsize=10)
        return made


def _bar(axes: Axes, x: float, width: float, one: dict[str, Any], first: dict[str, Any] | None, colour: str) -> None:
    axes.bar([x], [one["batch_p50_s"]], width * 0.94, color=colour)
    if first is not None and first is not one:
        ratio = one["batch_p50_s"] / first["batch_p50_s"]
        text = f"{ratio:.0f}" if ratio >= 10 else f"{ratio:.1f}" if ratio >= 1.095 else f"{ratio:.2f}"
        axes.annotate(text, (x, one["batch_p50_s"]), (0, 2), textcoords="offset points", ha="center", fontsize=7, rotation=90)


def figure8(results: Results) -> Figure:
    """Figure 8, the host's part: a look-up in one table, rows one after the other (SEQ) or each on another page (STR)."""
    some = _of(results, {OPERATOR.name})
    with rc_context(STYLE):
        made, panels = _panels(2, 3.9, 3.6, sharey=True)
        for axes, (trace, title) in zip(
            panels, (("sequential", "SEQ: rows in order"), ("strided", "STR: a page each")), strict=True
        ):
            here = [one for one in some if one["trace"] == trace]
            for number, mode in enumerate(_seen(some, "mode")):
                _line(axes, [one for one in here if one["mode"] == mode], number, mode)
            _batches(axes, some)
            axes.set_title(title)
        panels[0].legend()
        panels[1].set_ylabel("")
        made.suptitle(f"Figure 8: the look-up alone ({_what(some[0])})", fontsize=11)
        return made


_TABLE_MODELS = ("RMC1", "RMC2", "RMC3")


def figure10(results: Results, baseline: str = "pages", mode: str = "map") -> Figure:
    """Figure 10: how many times as fast as a baseline a mode is, by locality and batch size. Results that have `hit_rate` have it
    over their bars."""
    some = [one for one in results if one["trace"].startswith("K=")]
    models = [name for name in _TABLE_MODELS if name in _seen(some, "model")]
    with rc_context(STYLE):
        made, panels = _panels(len(models), 3.3, 3.6, sharey=True)
        for axes, model in zip(panels, models, strict=True):
            here = _paired([one for one in some if one["model"] == model], baseline, mode)
            _grouped(axes, here, sorted(_seen(some, "trace")))
            axes.set(title=model, xlabel="samples of a batch")
        panels[0].set_ylabel(f"{mode}: times as fast as {baseline}")
        made.suptitle("Figure 10: speed by locality (K) and batch size", fontsize=11)
        made.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
        return made


def _paired(results: Results, baseline: str, mode: str) -> list[tuple[dict[str, Any], float]]:
    """Results of a mode, each with how many times as fast as the baseline it is."""

    def case(one: dict[str, Any]) -> tuple[Any, ...]:
        return one["model"], one["trace"], one["batch_size"]

    before = {case(one): one for one in results if one["mode"] == baseline}
    found = [one for one in results if one["mode"] == mode and case(one) in before]
    if not found:
        raise ArgumentError(f"there are no results of {mode} and {baseline} for the same case")
    return [(one, one["samples_per_s"] / before[case(one)]["samples_per_s"]) for one in found]


def _grouped(axes: Axes, pairs: list[tuple[dict[str, Any], float]], traces: list[str]) -> None:
    sizes = sorted(_seen([one for one, _ in pairs], "batch_size"))
    width = 0.85 / len(traces)
    for number, trace in enumerate(traces):
        here = [(sizes.index(one["batch_size"]), speed, one) for one, speed in pairs if one["trace"] == trace]
        places = [place + (number - (len(traces) - 1) / 2) * width for place, _, _ in here]
        axes.bar(places, [speed for _, speed, _ in here], width * 0.94, color=COLOURS[number], label=trace)
        for x, (_, speed, one) in zip(places, here, strict=True):
            if "hit_rate" in one:
                label, at = f"{one['hit_rate']:.0%}", (x, speed)
                axes.annotate(label, at, (0, 2), textcoords="offset points", ha="center", fontsize=7, rotation=90)
    axes.axhline(1, color=MUTED, linewidth=0.8)
    axes.set_xticks(range(len(sizes)), [str(size) for size in sizes])
    axes.grid(axis="x", visible=False)


def figure11(results: Results, baseline: str = "pages", mode: str = "map", model: str | None = None) -> Figure:
    """Figure 11: how many times as fast as a baseline a mode is, for a model whose rows are of other sizes (tables hold float32,
    so what the paper quantises is a size of rows), or whose look-ups or tables are more or fewer; default the first model with
    other shapes. See `ModelSpec.varied`."""
    all_pairs = _paired(results, baseline, mode)
    if model is None:
        model = next((one["model"].split(" ")[0] for one, _ in all_pairs if "=" in one["model"]), "RMC3")
    own = {**MODELS, OPERATOR.name: OPERATOR}[model]
    pairs = [pair for pair in all_pairs if pair[0]["model"].split(" ")[0] == model]
    varied = [one for one, _ in pairs if one["model"] != model]
    if not varied:
        raise ArgumentError(f"there are no results of {model} with other shapes; see ModelSpec.varied")
    batch, trace = varied[0]["batch_size"], varied[0]["trace"]
    some = [(one, speed) for one, speed in pairs if (one["batch_size"], one["trace"]) == (batch, trace)]
    dim, tables, each = own.dim, len(own.tables), own.tables[0].lookups
    sizes = [(4 * one["dim"], speed) for one, speed in some if one["tables"] == tables and one["lookups"] == tables * each]
    lookups = [(one["lookups"] // tables, speed) for one, speed in some if one["dim"] == dim and one["tables"] == tables]
    counts = [(one["tables"], speed) for one, speed in some if one["dim"] == dim and one["lookups"] == one["tables"] * each]
    with rc_context(STYLE):
        made, (left, right) = _panels(2, 3.9, 3.5)
        _curve(left, sizes, 0, None)
        _curve(right, lookups, 1, f"look-ups a table ({tables} tables)")
        _curve(right, counts, 2, f"tables ({each} look-ups each)")
        for axes in (left, right):
            axes.set_xscale("log", base=2)
            axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0f}"))
            axes.axhline(1, color=MUTED, linewidth=0.8)
            axes.set_ylim(bottom=0)
        left.set(xlabel="bytes of a row", ylabel=f"{mode}: times as fast as {baseline}", title="(a) size of rows")
        right.set(xlabel="look-ups, or tables", title="(b) look-ups and tables")
        right.legend()
        made.suptitle(f"Figure 11: {model} with other shapes, batches of {batch} samples, {trace} ids", fontsize=11)
        return made


def _curve(axes: Axes, points: list[tuple[int, float]], number: int, label: str | None) -> None:
    ordered = sorted(points)
    x, y = [at for at, _ in ordered], [speed for _, speed in ordered]
    axes.plot(x, y, color=COLOURS[number], marker=MARKS[number], markersize=4, label=label)


# Not of the paper

PERCENTILES = (("p50", "-"), ("p99", "--"), ("p999", ":"))


def latencies(results: Results) -> Figure:
    """Latency of one model's look-ups on one trace by the requests that arrive: a line for each mode and percentile."""
    with rc_context(STYLE):
        made, (axes,) = _panels(1, 6.4, 4.2)
        for number, mode in enumerate(_seen(results, "mode")):
            here = sorted((one for one in results if one["mode"] == mode), key=lambda one: float(one["offered_per_s"]))
            style: Any = {"color": COLOURS[number % len(COLOURS)], "marker": MARKS[number % len(MARKS)], "markersize": 4}
            for name, line in PERCENTILES:
                key = f"latency_{name}_s"
                known = [one for one in here if one[key] is not None]
                if not known:
                    continue
                label = f"{mode}, p{'99.9' if name == 'p999' else name[1:]}"
                axes.plot([one["offered_per_s"] for one in known], [one[key] for one in known], line, label=label, **style)
                late = [one for one in known if one["unserved"]]
                hollow: Any = {**style, "linestyle": "none", "markerfacecolor": "white", "zorder": 3}
                axes.plot([one["offered_per_s"] for one in late], [one[key] for one in late], **hollow)
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.xaxis.set_major_formatter(FuncFormatter(lambda rate, _: f"{rate:g}"))
        axes.yaxis.set_major_formatter(FuncFormatter(_time))
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.yaxis.set_minor_formatter(NullFormatter())
        axes.xaxis.set_major_locator(FixedLocator(sorted(_seen(results, "offered_per_s"))))
        axes.set(xlabel="requests that arrive in a second", ylabel="from arrival to result (hollow: some not served)")
        axes.legend(fontsize=8)
        one = results[0]
        size, clients = one["batch_size"], one["clients"]
        axes.set_title(
            f"{one['model']}, {one['trace']} ids: look-ups under an offered load\n"
            f"(requests of {size} {'sample' if size == 1 else 'samples'}, {clients} {'client' if clients == 1 else 'clients'})",
            fontsize=10,
        )
        return made


def hit_rates(results: Results, within: float) -> Figure:
    """Speed against tables in memory by hit rate: a line for each model, and that of `within` times as long as in memory."""
    with rc_context(STYLE):
        made, panels = _panels(len(_seen(results, "trace")), 4.8, 4.2, sharey=True)
        sizes = _seen(results, "batch_size")
        cases = list(dict.fromkeys((one["model"], one["batch_size"]) for one in results))
        for axes, trace in zip(panels, _seen(results, "trace"), strict=True):
            for number, (model, size) in enumerate(cases):
                here = [one for one in results if (one["model"], one["batch_size"], one["trace"]) == (model, size, trace)]
                points = sorted((one["hit_rate"], one["ratio"]) for one in here)
                x, y = [rate for rate, _ in points], [ratio for _, ratio in points]
                label = model if len(sizes) == 1 else f"{model}, {size} samples"
                mark, colour = MARKS[number % len(MARKS)], COLOURS[number % len(COLOURS)]
                axes.plot(x, y, color=colour, marker=mark, markersize=4, label=label)
            axes.axhline(1 / within, color=MUTED, linewidth=1, linestyle="--", label=f"1/{within:g}")
            axes.xaxis.set_major_formatter(_PERCENT)
            axes.set(xlabel="look-ups that find their row in the cache", title=f"{trace} ids", xlim=(-0.03, 1.03), ylim=(0, None))
        panels[0].set_ylabel("samples a second, over those in memory")
        made.suptitle("Models with their tables on SSD, against tables in memory", fontsize=11)
        made.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=5)
        return made


SPLITS = {
    "misses_first_simulated": "by the sizes of the tables (simulated)",
    "misses_best": "the best static split",
    "misses_running": "split while running",
}


def splits(results: Results) -> Figure:
    """Misses of each case by how memory is split between tables; over a bar: times the misses of the best static split."""
    with rc_context(STYLE):
        made, (axes,) = _panels(1, max(5.0, 1.5 + 1.5 * len(results)), 4.2)
        width = 0.85 / len(SPLITS)
        for number, (key, label) in enumerate(SPLITS.items()):
            places = [place + (number - 1) * width for place in range(len(results))]
            shares = [one[key] / one["lookups"] for one in results]
            axes.bar(places, shares, width * 0.94, color=COLOURS[number], label=label)
            for x, share, one in zip(places, shares, results, strict=True):
                if key != "misses_best" and one["misses_best"]:
                    text = f"{one[key] / one['misses_best']:.2f}"
                    axes.annotate(text, (x, share), (0, 2), textcoords="offset points", ha="center", fontsize=7)
        sizes = _seen(results, "batch_size")
        names = [one["model"] if len(sizes) == 1 else f"{one['model']}, {one['batch_size']} samples" for one in results]
        labels = [f"{name}\n{one['popularity']}" for name, one in zip(names, results, strict=True)]
        axes.set_xticks(range(len(results)), labels)
        axes.grid(axis="x", visible=False)
        _percent(axes)
        axes.set(ylabel="look-ups whose row is not in memory", xlabel="model, and whether popularity changes half-way")
        made.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=len(SPLITS))
        axes.set_title(f"Memory split between tables, {' + '.join(results[0]['traces'])} ids", fontsize=10)
        return made


# Pieces


def _panels(count: int, width: float, height: float, **options: Any) -> tuple[Figure, Sequence[Axes]]:
    made = Figure(figsize=(count * width, height), layout="constrained")
    return made, made.subplots(1, count, squeeze=False, **options)[0]


_PERCENT = FuncFormatter(lambda share, _: f"{100 * share:.6g} %")


def _percent(axes: Axes, *, x: bool = False) -> None:
    for axis in (axes.xaxis, axes.yaxis) if x else (axes.yaxis,):
        axis.set_major_formatter(_PERCENT)


def _of(results: Results, models: set[str]) -> list[dict[str, Any]]:
    some = [one for one in results if one["model"] in models]
    if not some:
        raise ArgumentError(f"there are no results of {', '.join(sorted(models))}")
    return some


def _on(results: Results, trace: str | None) -> list[dict[str, Any]]:
    """Results on one trace: the first one, unless it is named."""
    some = [one for one in results if one["trace"] == (trace or results[0]["trace"])]
    if not some:
        raise ArgumentError(f"there are no results on {trace}")
    return some


def _seen(results: Iterable[dict[str, Any]], key: str) -> list[Any]:
    return list(dict.fromkeys(one[key] for one in results))


def _line(axes: Axes, results: Results, number: int, label: str) -> None:
    """The median time by batch size, and a band up to the 99th percentile."""
    ordered = sorted(results, key=lambda one: int(one["batch_size"]))
    x = [one["batch_size"] for one in ordered]
    colour, mark = COLOURS[number % len(COLOURS)], MARKS[number % len(MARKS)]
    axes.plot(x, [one["batch_p50_s"] for one in ordered], color=colour, marker=mark, markersize=4, label=label)
    axes.fill_between(
        x, [one["batch_p50_s"] for one in ordered], [one["batch_p99_s"] for one in ordered], color=colour, alpha=0.15, linewidth=0
    )


def _batches(axes: Axes, results: Results) -> None:
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.xaxis.set_major_locator(FixedLocator(sorted(_seen(results, "batch_size"))))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda size, _: f"{size:.0f}"))
    axes.yaxis.set_major_formatter(FuncFormatter(_time))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.set(xlabel="samples of a batch", ylabel="time of a batch, median (band: to p99)")


def _time(seconds: float, _: int = 0) -> str:
    for scale, unit in ((1, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if seconds >= scale * 0.9999:
            return f"{seconds / scale:g} {unit}"
    return f"{seconds / 1e-9:g} ns"


def _what(one: dict[str, Any]) -> str:
    return f"a table, {one['dim']} float32 a row, {one['lookups'] // one['tables']} look-ups a sample"
