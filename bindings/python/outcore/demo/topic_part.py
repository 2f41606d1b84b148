"""The topics of the text part: scikit-learn's with all the memory it wants, then ours under the limit that the clusters had."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from . import limit
from .confined import run_job, run_rival
from .words import say

JOB = "outcore.demo.topic_job"

RIVAL = "scikit-learn MiniBatchNMF"
RIVAL_S = 80.0
"""NMF of all texts at once takes several times this."""


def measure(
    spec: dict[str, Any], limits: dict[str, Any], way: limit.Way, compare: bool, show: bool
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """The rival comes first: the job measures its topics by the functions that measure ours, while the words are open."""
    found = Path(spec["folder"]) / "rival-topics.npz"
    rival: dict[str, Any] | None = None
    if compare:
        say(show, f"{RIVAL}, all the memory it wants")
        rival = topic_rival(spec, found, way)
    asked = {**spec, "rival": str(found) if found.exists() else None}
    outcome, result, arrays = run_job(JOB, asked, limits["bytes"], way)
    seconds = [phase["end_s"] - phase["start_s"] for phase in result["phases"]]
    facts = {**result, "outcore": limit.describe(outcome) | {"work_s": float(sum(seconds))}}
    return facts | {"rival": rival and rival | result.get("rival", {})}, arrays


def topic_rival(spec: dict[str, Any], found: Path, way: limit.Way) -> dict[str, Any]:
    folder = Path(spec["folder"])
    task = {
        "table": str(folder / "documents.tsv"),
        "vocabulary": str(folder / "counts" / "vocabulary.txt"),
        "topics": spec["topics"],
        "seed": spec["seed"],
        "found": str(found),
    }
    script = str(Path(__file__).with_name("topic_rival.py"))
    entry = run_rival([script], spec, task, None, way, RIVAL_S)
    del entry["samples"]
    return {"name": RIVAL, **entry}
