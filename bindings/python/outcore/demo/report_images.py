"""The images part of the report."""

from __future__ import annotations

import statistics
from typing import Any

import numpy as np

from . import charts
from .bars import bars, moved
from .words import below_in_words, bytes_in_words, ratio_in_words, seconds_in_words


def page(facts: dict[str, Any], arrays: dict[str, Any]) -> dict[str, Any]:
    job, limit = facts["job"], facts["limit"]
    shape = (job["height"], job["width"], job["channels"])
    data_bytes = 4 * job["rows"] * shape[0] * shape[1] * shape[2]
    resized = f"; {job['resized']:,} of another size were resized" if job["resized"] else ""
    return {
        "headline": f"{job['rows']:,} images",
        "line": f"{job['components']} principal components of {bytes_in_words(data_bytes)}, "
        f"within {bytes_in_words(limit['budget_bytes'])}",
        "kind": "Images",
        "source": f"{facts['title']} ({facts['data']}): {job['rows']:,} of {job['width']} \u00d7 {job['height']}, "
        f"{'colour' if job['channels'] == 3 else 'grey'}{resized}",
        "data_bytes": data_bytes,
        "decode_s": sum(
            p["end_s"] - p["start_s"] for p in facts["outcore"]["phases"] if p["name"] in ("look at the files", "decode")
        ),
        "explained": float(np.sum(arrays["ratio"])),
        "components": charts.component_grid(arrays["components"], arrays["mean"], shape),
        "reconstructions": charts.reconstruction_rows(arrays, shape),
        "variance": charts.variance_curve(arrays["ratio"]),
        "scatter": charts.scatter(arrays["points"], arrays["point_labels"], job["label_names"]),
        "labelled": 2 <= len(job["label_names"]) <= len(charts.CATEGORIES),
        "points": len(arrays["points"]),
        "objects": objects(job, limit),
        "moved": [
            moved(name, job["traces"][run], ("the least possible", job["traces"][run]["bound_bytes"]))
            for run, name in (("fit", "find the components"), ("transform", "project the images"))
        ],
        "work": f"{seconds_in_words(facts['outcore']['work_s'])} for components and projection",
        "speed": speed(facts),
        "speed_intro": "From the file on SSD, out of the kernel's cache, to the projection on SSD",
        "agreement": agreement(facts.get("agreement")),
    }


def agreement(difference: float | None) -> str:
    if difference is None:
        return ""
    return (
        "Both answers agree: the variances of the components differ from numpy's by less than "
        f"{below_in_words(difference)} of the largest one."
    )


def objects(job: dict[str, Any], limit: dict[str, Any]) -> list[dict[str, Any]]:
    """Bytes of each object beside the budget; numpy holds the first two at once, and a centred copy of the first."""
    pixels, k = job["height"] * job["width"] * job["channels"], job["components"]
    rows = [
        ("the images as numbers", f"{job['rows']:,} \u00d7 {pixels:,}, on SSD", 4 * job["rows"] * pixels, "data"),
        ("the projected images", f"{job['rows']:,} \u00d7 {k}, on SSD", 4 * job["rows"] * k, "data"),
        ("the covariance matrix", f"{pixels:,} \u00d7 {pixels:,}", 4 * pixels * pixels, "data"),
        ("the components", f"{k} \u00d7 {pixels:,}", 4 * k * pixels, "data"),
        ("memory budget of outcore", "what it may hold at any time", limit["budget_bytes"], "budget"),
    ]
    return bars(rows)


def speed(facts: dict[str, Any]) -> list[dict[str, Any]]:
    """Medians of the rounds, slowest bar full width."""
    rounds = facts.get("speed", {})
    if len(rounds) < 2:
        return []
    middle = {name: statistics.median(values) for name, values in rounds.items()}
    peaks = {"outcore": facts["outcore"]["peak_bytes"]} | {e["which"]: e["peak_bytes"] for e in facts["all_memory"]}
    slowest = max(middle.values())
    return [
        {
            "name": name,
            "seconds": middle[name],
            "spread": (min(values), max(values)),
            "rounds": len(values),
            "percent": 100 * middle[name] / slowest,
            "peak": peaks[name],
            "ours": name == "outcore",
            "compared": "" if name == "outcore" else f"outcore is {ratio_in_words(middle['outcore'], middle[name])} {name}",
        }
        for name, values in rounds.items()
    ]
