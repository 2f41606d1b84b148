"""The text part of the demo: the order of events, and the rival; topics are a job of their own (`topic_part`)."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from . import limit, topic_part
from .confined import DemoError, allowed, parse_bytes, run_job, run_rival, told
from .words import bytes_in_words, outcome_in_words, say

JOB = "outcore.demo.text_job"
TABLE = Path("data") / "packages" / "packages.tsv.xz"

OWN_DATA_BYTES = 64 << 20
"""What a job itself holds beside outcore: words, labels, the sample that k-means++ begins from, a block of the map; of each topic
some numbers a word."""

RIVAL_S = 150.0
"""The comparison shall not take longer than all the rest."""

MAPPED_BYTES = 128 << 20
"""RLIMIT_DATA also counts what is mapped and never touched: stacks of threads, arenas of malloc. Measured: 735 MiB at the peak of
the default job, where 664 MiB are the sum of the rest."""

WORK = ("import", "weigh", "draw", "project", "cluster")
"""The steps that the rival does too."""


def measure(spec: dict[str, Any], way: limit.Way, compare: bool, show: bool) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """The clusters under their limit, then scikit-learn under the same and with all the memory it wants; then the topics."""
    started = time.monotonic()
    limits = allowed(JOB, parse_bytes(spec["memory"]), way, OWN_DATA_BYTES + (MAPPED_BYTES if way.kind == "rlimit" else 0))
    say(show, f"memory limit {bytes_in_words(limits['bytes'])}, kept by {way.sentence}")
    outcome, result, arrays = run_job(JOB, spec, limits["bytes"], way)
    seconds = [phase["end_s"] - phase["start_s"] for phase in result["phases"] if phase["name"] in WORK]
    facts: dict[str, Any] = {
        "title": result["title"],
        "job": result,
        "limit": limits,
        "outcore": told(outcome, result) | {"work_s": float(sum(seconds))},
        "under_limit": [],
        "all_memory": [],
    }
    if compare:
        for key, limit_bytes, words in (
            ("under_limit", limits["bytes"], "same limit"),
            ("all_memory", None, "all the memory it wants"),
        ):
            say(show, f"scikit-learn, {words}")
            facts[key].append(text_rival(spec, result, limit_bytes, way))
    facts["topics"], topic_arrays = topic_part.measure(spec, limits, way, compare, show)
    facts["total_s"] = time.monotonic() - started
    return facts, arrays | topic_arrays


def text_rival(spec: dict[str, Any], job: dict[str, Any], limit_bytes: int | None, way: limit.Way) -> dict[str, Any]:
    entry: dict[str, Any] = {"which": "scikit-learn", "name": "scikit-learn"}
    missing = too_large(job) if limit_bytes is None else None
    if missing is not None:
        entry |= {"missing": missing, "wall_s": 0.0, "peak_bytes": 0, "killed": False, "samples": []}
        return {**entry, "words": outcome_in_words(entry)}
    script = str(Path(__file__).with_name("text_rival.py"))
    task = {name: spec[name] for name in ("dimensions", "clusters", "rounds", "seed")}
    task["table"] = str(Path(spec["folder"]) / "documents.tsv")
    return entry | run_rival([script], spec, task, limit_bytes, way, RIVAL_S)


def too_large(job: dict[str, Any]) -> str | None:
    """scikit-learn draws its map in float64 and copies it to float32; beside it lie the result and a copy of that."""
    needed = 12 * job["words"] * job["dimensions"] + 8 * job["documents"] * job["dimensions"]
    free = psutil.virtual_memory().available
    return None if needed < free else f"it needs about {bytes_in_words(needed)}, and {bytes_in_words(free)} are free"


def find_texts(texts: str | os.PathLike[str] | None) -> Path:
    if texts is not None:
        path = Path(texts)
        if not path.is_file():
            raise DemoError(f"{path}: no such file")
        return path
    for base in (Path.cwd(), *Path(__file__).resolve().parents):
        if (base / TABLE).is_file():
            return base / TABLE
    raise DemoError(f"the project's {TABLE} is not here; name a table of texts with --texts")
