"""One HTML page that tells a first user what happened.

Everything is inside: no style sheet, script, font or image from elsewhere.
"""

from __future__ import annotations

import base64
from importlib import resources
from typing import Any

import jinja2
from markupsafe import Markup

from . import charts, report_images, report_text
from .words import below_in_words, bytes_in_words, seconds_in_words

TRACE_BYTES_MAX = 8 << 20
"""A larger trace is not put into the page."""


def render(facts: dict[str, Any], arrays: dict[str, dict[str, Any]], traces: dict[str, bytes]) -> str:
    """The page, from the measurements of the parts that ran, the arrays of their jobs, and their traces."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader(__package__),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters |= {"bytes": bytes_in_words, "below": below_in_words, "seconds": seconds_in_words}
    style = resources.files(__package__).joinpath("templates/style.css").read_text("utf-8")
    parts = []
    for name, page in (("images", report_images.page), ("text", report_text.page)):
        if name in facts:
            trace = traces.get(name, b"")
            content = {"part": name, **shared(facts[name], trace), **page(facts[name], arrays[name])}
            html = environment.get_template(f"{name}.html.j2").render(content)
            parts.append(
                {"name": name, "html": Markup(html), **{key: content[key] for key in ("headline", "line", "kind", "source")}}
            )
    named = [facts[part["name"]] for part in parts]
    return environment.get_template("page.html.j2").render(
        facts=facts,
        parts=parts,
        style=Markup(style),
        titles=[part["title"] for part in named],
        enforced=all(part["limit"]["enforced"] for part in named),
        version=named[0]["job"]["version"],
    )


def shared(facts: dict[str, Any], trace: bytes) -> dict[str, Any]:
    """What both parts tell in the same way."""
    job = facts["job"]
    timeline, legend = charts.timeline({run_name(run): found for run, found in job["traces"].items()})
    return {
        "facts": facts,
        "job": job,
        "limit": facts["limit"],
        "ours": facts["outcore"],
        "memory_chart": charts.memory_over_time(facts["outcore"], facts["under_limit"], facts["limit"]),
        "timeline": timeline,
        "legend": legend,
        "busy": [busy(run_name(run), found) for run, found in job["traces"].items()],
        "trace": base64.b64encode(trace).decode() if 0 < len(trace) <= TRACE_BYTES_MAX else "",
    }


RUNS = {
    "fit": "find the components",
    "transform": "project the images",
    "project": "project the texts",
    "cluster": "find the clusters",
}


def run_name(run: str) -> str:
    return RUNS.get(run, run)


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
