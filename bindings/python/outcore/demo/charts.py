"""The pictures of the report, each a piece of HTML that needs nothing from outside."""

from __future__ import annotations

import base64
import colorsys
import io
import re
from collections.abc import Sequence
from typing import Any

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter
from PIL import Image

from .steps import merged

INK, MUTED, GRID = "#16202e", "#64707f", "#e6e9ee"
OURS, RIVAL, LIMIT = "#0b7a75", "#d9622b", "#b3261e"
PHASES = {
    "look at the files": "#eef1f5",
    "decode": "#e3ecf7",
    "fit": "#d3efe9",
    "transform": "#fbe9d7",
    "look at the result": "#eef1f5",
    "unpack": "#eef1f5",
    "import": "#e3ecf7",
    "weigh": "#eef1f5",
    "draw": "#f1e9f5",
    "project": "#fbe9d7",
    "cluster": "#d3efe9",
    "name": "#eef1f5",
}
PHASE_WORDS = {
    "decode": "decode the images",
    "fit": "find the components",
    "transform": "project",
    "import": "count words",
    "draw": "draw the random map",
    "cluster": "find the clusters",
    "name": "name them",
}
CATEGORIES = ("#0b7a75", "#d9622b", "#3b6fb6", "#8f5bb5", "#c9a227", "#4d9a3f", "#b83b5e", "#5c6773", "#2aa5c9", "#9a6b3f")
MIB = 1 << 20
Floats = npt.NDArray[np.float32]

STYLE: Any = {
    "font.size": 9.5,
    "font.family": "DejaVu Sans",
    "svg.fonttype": "none",
    "text.color": INK,
    "axes.edgecolor": "#b9c1cc",
    "axes.labelcolor": MUTED,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "legend.frameon": False,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
}


def figure(width: float, height: float) -> tuple[Figure, Axes]:
    made, axes = plt.subplots(figsize=(width, height), layout="constrained")
    return made, axes


def svg(made: Figure, label: str) -> str:
    """Inline SVG: no prolog and no metadata, and text stays text in the page's own font."""
    out = io.StringIO()
    made.savefig(out, format="svg", dpi=160)
    plt.close(made)
    text = out.getvalue()
    text = re.sub(r"<metadata>.*?</metadata>", "", text[text.index("<svg") :], flags=re.S)
    return re.sub(r"<svg ", f'<svg role="img" aria-label="{label}" ', text, count=1)


def png(pixels: npt.NDArray[np.uint8], label: str, css: str = "pixels") -> str:
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, "PNG", optimize=True)
    return f'<img class="{css}" alt="{label}" src="data:image/png;base64,{base64.b64encode(out.getvalue()).decode()}">'


# Images


def picture(values: Floats, shape: tuple[int, int, int]) -> npt.NDArray[np.uint8]:
    """A row of the data as an image: 0 ... 1 to grey levels."""
    pixels = (np.clip(values.reshape(shape), 0, 1) * 255).round().astype(np.uint8)
    return pixels[:, :, 0] if shape[2] == 1 else pixels


def component_picture(values: Floats, shape: tuple[int, int, int]) -> npt.NDArray[np.uint8]:
    """A component has both signs: teal adds, orange takes away; a colour component is shown around grey."""
    scaled = values.reshape(shape) / max(float(np.abs(values).max()), 1e-12)
    if shape[2] == 3:
        return np.asarray(((scaled + 1) * 127.5).round(), np.uint8)
    strength = np.abs(scaled[:, :, 0:1])
    white, plus, minus = (np.array(colour) for colour in ((255, 255, 255), (6, 95, 91), (201, 82, 26)))
    towards = np.where(scaled[:, :, 0:1] >= 0, plus, minus)
    return np.asarray((white + (towards - white) * strength**0.8).round(), np.uint8)


def component_grid(components: Floats, mean: Floats, shape: tuple[int, int, int], shown: int = 24) -> list[dict[str, str]]:
    """The mean image and the first components, with captions."""
    cells = [{"image": png(picture(mean, shape), "mean image"), "caption": "mean"}]
    for i, component in enumerate(components[: shown - 1]):
        cells.append({"image": png(component_picture(component, shape), f"component {i + 1}"), "caption": str(i + 1)})
    return cells


def reconstruction_rows(arrays: dict[str, Any], shape: tuple[int, int, int]) -> list[dict[str, Any]]:
    """The sample images, then the same from fewer and fewer numbers."""
    rows = [("original", f"{int(np.prod(shape)):,} numbers each", arrays["originals"])]
    for depth, rebuilt in reversed(list(zip(arrays["depths"], arrays["rebuilt"], strict=True))):
        kept = f"{arrays['ratio'][:depth].sum():.0%} of the variance"
        rows.append((f"from {depth} number{'s' if depth > 1 else ''}", kept, rebuilt))
    return [
        {"title": title, "note": note, "images": [png(picture(image, shape), title) for image in images]}
        for title, note, images in rows
    ]


# Curves


def variance_curve(ratio: npt.NDArray[np.float64]) -> str:
    with plt.rc_context(STYLE):
        made, axes = figure(5.2, 3.1)
        x = np.arange(1, len(ratio) + 1)
        total = np.cumsum(ratio)
        axes.fill_between(x, total, color=OURS, alpha=0.12, linewidth=0)
        axes.plot(x, total, color=OURS, linewidth=2)
        for level in (0.5, 0.8, 0.9):
            reached = int(np.searchsorted(total, level))
            if reached < len(total):
                axes.plot([x[reached]], [total[reached]], "o", color=OURS, markersize=5)
                late = x[reached] > 0.75 * len(ratio)
                axes.annotate(
                    f"{level:.0%} with {x[reached]}",
                    (x[reached], total[reached]),
                    xytext=(0, -26) if late else (6, -15),
                    textcoords="offset points",
                    ha="right" if late else "left",
                    color=INK,
                )
        axes.set(xlim=(1, max(2, len(ratio))), ylim=(0, 1), xlabel="components kept", ylabel="share of the variance")
        axes.yaxis.set_major_formatter(PercentFormatter(1.0))
        return svg(made, "cumulative explained variance")


def scatter(points: Floats, labels: npt.NDArray[np.int32], names: Sequence[str]) -> str:
    """Thousands of dots are drawn as a picture inside the SVG: smaller, and quick to scroll."""
    with plt.rc_context(STYLE):
        made, axes = figure(5.2, 4.3)
        labelled = 2 <= len(names) <= len(CATEGORIES)
        if labelled:
            for i, name in enumerate(names):
                chosen = points[labels == i]
                axes.scatter(
                    chosen[:, 0], chosen[:, 1], s=5, color=CATEGORIES[i], alpha=0.55, linewidths=0, label=name, rasterized=True
                )
            legend = axes.legend(
                loc="upper left", bbox_to_anchor=(1.0, 1.02), markerscale=3, handletextpad=0.1, borderaxespad=0.2
            )
            for handle in legend.legend_handles:
                if handle is not None:
                    handle.set_alpha(1)
        else:
            axes.scatter(points[:, 0], points[:, 1], s=5, color=OURS, alpha=0.4, linewidths=0, rasterized=True)
        axes.set(xlabel="component 1", ylabel="component 2")
        return svg(made, "images by their first two components")


def cluster_colour(place: int, count: int) -> str:
    """Colours around the circle, neighbours in size far apart; the largest, which has the least in common, is grey."""
    return "#aeb6c1" if place == 0 and count > 2 else colour(place)


def colour(place: int) -> str:
    hue = (place * 0.381966) % 1
    return to_hex(colorsys.hsv_to_rgb(hue, 0.72 if place % 2 else 0.55, 0.62 if place % 3 else 0.78))


def text_map(
    points: Floats, groups: npt.NDArray[np.int32], edges: Floats, names: Sequence[str], colours: Sequence[str], label: str
) -> str:
    """Texts as dots, and the words of each group at a place of its own, such as the edge of its disc."""
    with plt.rc_context(STYLE):
        made, axes = figure(10.6, 7.2)
        for place in range(len(names)):
            chosen = points[groups == place]
            axes.scatter(
                chosen[:, 0],
                chosen[:, 1],
                s=6,
                color=colours[place],
                alpha=0.6,
                linewidths=0,
                rasterized=True,
                zorder=1 + (place > 0),
            )
        axes.set(xticks=[], yticks=[])
        axes.set_aspect("equal", adjustable="datalim")
        axes.margins(0.06)
        axes.grid(False)
        for spine in axes.spines.values():
            spine.set_visible(False)
        made.canvas.draw()
        for (x, y), name, place in placed(axes.transData.transform(edges), names):
            where = axes.transData.inverted().transform((x, y))
            axes.annotate(
                name,
                xy=tuple(edges[place]),
                xytext=tuple(where),
                ha="center",
                va="center",
                fontsize=8.5,
                color=INK,
                zorder=5,
                bbox={"boxstyle": "round,pad=0.22", "fc": "#ffffffd9", "ec": colours[place], "lw": 1.1},
                arrowprops={"arrowstyle": "-", "color": "#8b95a3", "lw": 0.6, "shrinkA": 0, "shrinkB": 0},
            )
        return svg(made, label)


def placed(wanted: npt.NDArray[Any], names: Sequence[str]) -> list[tuple[tuple[float, float], str, int]]:
    """Each label at the free place nearest to where it belongs, in pixels; the largest groups choose first."""
    taken: list[tuple[float, float, float]] = []
    found = []
    shifts = sorted(((dx, dy) for dx in range(-8, 9) for dy in range(-14, 15)), key=lambda s: (s[0] * 3.0) ** 2 + s[1] ** 2)
    for place, name in enumerate(names):
        if not name:
            continue
        half = 3.6 * len(name) + 9
        x0, y0 = (float(value) for value in wanted[place])
        spots = ((x0 + 45 * dx, y0 + 19 * dy) for dx, dy in shifts)
        free = ((x, y) for x, y in spots if all(abs(x - tx) > half + other or abs(y - ty) > 18 for tx, ty, other in taken))
        x, y = next(free, (x0, y0))
        taken.append((x, y, half))
        found.append(((x, y), name, place))
    return found


def memory_over_time(ours: dict[str, Any], rivals: Sequence[dict[str, Any]], limit: dict[str, Any]) -> str:
    """Ours by phases, the limit, and the rivals that ran under it, all counted from the start of their process."""
    with plt.rc_context(STYLE):
        made, axes = figure(10.6, 3.5)
        top = limit["bytes"] / MIB
        end = max([ours["wall_s"], *(rival["wall_s"] for rival in rivals)], default=1.0)
        for phase in ours["phases"]:
            axes.axvspan(phase["start_s"], phase["end_s"], color=PHASES.get(phase["name"], "#eef1f5"), linewidth=0)
            if phase["end_s"] - phase["start_s"] > end * 0.09:
                middle = (phase["start_s"] + phase["end_s"]) / 2
                words = PHASE_WORDS.get(phase["name"], phase["name"])
                axes.text(middle, top * 1.19, words, ha="center", va="top", color=MUTED, fontsize=9)
        styles = ("-", "--", ":")
        for rival, style in zip(rivals, styles, strict=False):
            if not rival["samples"]:
                continue
            t, held = np.array(rival["samples"]).T
            axes.plot(t, held / MIB, color=RIVAL, linewidth=1.5, linestyle=style, label=rival["name"])
            if rival.get("killed") or rival.get("memory_error"):
                axes.plot([t[-1]], [held[-1] / MIB], "X", color=RIVAL, markersize=9, markeredgecolor="white", zorder=5)
        if ours["samples"]:
            t, held = np.array(ours["samples"]).T
            axes.plot(t, held / MIB, color=OURS, linewidth=2.2, label="outcore", zorder=4)
        enforced = "limit kept by the kernel" if limit["enforced"] else "limit (not enforced here)"
        axes.axhline(top, color=LIMIT, linewidth=1.4, linestyle=(0, (6, 3)))
        axes.text(end, top * 1.02, f"{enforced}: {top:.0f} MiB", ha="right", va="bottom", color=LIMIT, fontsize=9)
        axes.set(xlim=(0, end), ylim=(0, top * 1.22), xlabel="seconds since the start of the process", ylabel="memory held, MiB")
        if axes.lines[:-1]:
            axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.17), ncols=4)
        return svg(made, "memory over time")


def timeline(traces: dict[str, dict[str, Any]]) -> tuple[str, list[dict[str, str]]]:
    """Device and cores, the runs one after the other; and the legend."""
    lanes = sorted({span["lane"] for trace in traces.values() for span in trace.get("spans", ())}, key=lane_order)
    names = list(dict.fromkeys(span["name"] for trace in traces.values() for span in trace.get("spans", ())))
    colours = {name: CATEGORIES[i % len(CATEGORIES)] for i, name in enumerate(names)}
    if not lanes:
        return "", []
    with plt.rc_context(STYLE):
        made, axes = figure(10.6, 0.75 + 0.42 * len(lanes))
        whole = sum(trace["wall_s"] for trace in traces.values())
        offset = 0.0
        for run, trace in traces.items():
            for lane in lanes:
                for name in names:
                    chosen = [
                        (s["start_s"], s["end_s"]) for s in trace.get("spans", ()) if (s["lane"], s["name"]) == (lane, name)
                    ]
                    spans = merged(chosen, whole / 2000)
                    bars = [(offset + start, max(end - start, whole / 4000)) for start, end in spans]
                    row = len(lanes) - 1 - lanes.index(lane)
                    axes.broken_barh(bars, (row - 0.36, 0.72), facecolors=colours[name], linewidth=0)
            axes.text(offset + trace["wall_s"] / 2, len(lanes) - 0.42, run, ha="center", va="bottom", color=MUTED)
            offset += trace["wall_s"]
            axes.axvline(offset, color="#b9c1cc", linewidth=1)
        axes.set(xlim=(0, whole), ylim=(-0.5, len(lanes) - 0.05), xlabel="seconds")
        axes.set_yticks(range(len(lanes)), list(reversed(lanes)))
        axes.grid(False, axis="y")
        axes.tick_params(axis="y", length=0)
        return svg(made, "timeline of device and cores"), [{"name": name, "colour": colours[name]} for name in names]


def lane_order(lane: str) -> tuple[bool, int, str]:
    """The device first, then cores by number."""
    digits = re.search(r"\d+", lane)
    return not lane.startswith("device"), int(digits[0]) if digits else -1, lane
