"""One HTML page that tells a first user what happened.

Everything is inside: no style sheet, script, font or image from elsewhere.
"""

from __future__ import annotations

import base64
import statistics
from importlib import resources
from typing import Any

import jinja2
import numpy as np

from . import charts
from .words import below_in_words, bytes_in_words, ratio_in_words, seconds_in_words

TRACE_BYTES_MAX = 8 << 20
"""A larger trace is not put into the page."""


def render(facts: dict[str, Any], arrays: dict[str, Any], trace: bytes = b"") -> str:
    """The page, from the measurements and the arrays of the job."""
    template = resources.files(__package__).joinpath("report.html.j2").read_text("utf-8")
    environment = jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined)
    environment.filters |= {"bytes": bytes_in_words, "below": below_in_words, "seconds": seconds_in_words}
    return environment.from_string(template).render(page(facts, arrays, trace))


def page(facts: dict[str, Any], arrays: dict[str, Any], trace: bytes) -> dict[str, Any]:
    job = facts["job"]
    shape = (job["height"], job["width"], job["channels"])
    timeline, legend = charts.timeline({run_name(run): found for run, found in job["traces"].items()})
    return {
        "facts": facts,
        "job": job,
        "limit": facts["limit"],
        "ours": facts["outcore"],
        "data_bytes": 4 * job["rows"] * shape[0] * shape[1] * shape[2],
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
        "objects": objects(job, facts["limit"]),
        "memory_chart": charts.memory_over_time(facts["outcore"], facts["under_limit"], facts["limit"]),
        "moved": [moved(run_name(run), found) for run, found in job["traces"].items()],
        "timeline": timeline,
        "legend": legend,
        "busy": [busy(run_name(run), found) for run, found in job["traces"].items()],
        "speed": speed(facts),
        "trace": base64.b64encode(trace).decode() if 0 < len(trace) <= TRACE_BYTES_MAX else "",
    }


def run_name(run: str) -> str:
    return {"fit": "find the components", "transform": "project the images"}.get(run, run)


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
    most = max(row[2] for row in rows)
    return [{"name": n, "note": note, "bytes": b, "percent": 100 * b / most, "kind": kind} for n, note, b, kind in rows]


def moved(name: str, trace: dict[str, Any]) -> dict[str, Any]:
    """Bytes between SSD and memory: foreseen, counted, and the least that any program must move."""
    foreseen, counted = (trace[key]["bytes_read"] + trace[key]["bytes_written"] for key in ("predicted", "actual"))
    bound = trace["bound_bytes"]
    most = max(foreseen, counted, bound, 1)
    bars = [("the least possible", bound, "bound"), ("foreseen by the plan", foreseen, "plan"), ("really moved", counted, "fact")]
    return {
        "name": name,
        "ratio": counted / bound if bound else None,
        "exact": foreseen == counted,
        "bars": [{"name": n, "bytes": b, "percent": 100 * b / most, "kind": kind} for n, b, kind in bars],
    }


def busy(name: str, trace: dict[str, Any]) -> dict[str, Any]:
    def share(part: str) -> float | None:
        total = trace[f"{part}_busy_s"] + trace[f"{part}_idle_s"]
        return trace[f"{part}_busy_s"] / total if total > 0 else None

    read_write = trace["actual"]["bytes_read"] + trace["actual"]["bytes_written"]
    return {
        "name": name,
        "wall_s": trace["wall_s"],
        "device": share("device"),
        "cores": share("cores"),
        "rate": read_write / trace["wall_s"] if trace["wall_s"] > 0 else None,
        "peak": trace["actual"]["peak_bytes"],
        "foreseen_peak": trace["predicted"]["peak_bytes"],
    }


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
