"""The text part of the demo: the order of events, and the rival."""

from __future__ import annotations

import json as json_module
import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from . import limit
from .confined import DemoError, allowed, parse_bytes, run_job, told
from .words import bytes_in_words, outcome_in_words, say, seconds_in_words

JOB = "outcore.demo.text_job"
TABLE = Path("data") / "packages" / "packages.tsv.xz"

OWN_DATA_BYTES = 64 << 20
"""What the job itself holds beside outcore: words, labels, the sample that k-means++ begins from, a block of the map."""

RIVAL_S = 150.0
"""The comparison shall not take longer than all the rest."""

MAPPED_BYTES = 128 << 20
"""RLIMIT_DATA also counts what is mapped and never touched: stacks of threads, arenas of malloc. Measured: 735 MiB at the peak of
the default job, where 664 MiB are the sum of the rest."""

WORK = ("import", "weigh", "draw", "project", "cluster")
"""The steps that the rival does too."""


def measure(spec: dict[str, Any], way: limit.Way, compare: bool, show: bool) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """The job under its limit, then scikit-learn under the same and with all the memory it wants."""
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
            facts[key].append(run_rival(spec, result, limit_bytes, way))
    facts["total_s"] = time.monotonic() - started
    return facts, arrays


def run_rival(spec: dict[str, Any], job: dict[str, Any], limit_bytes: int | None, way: limit.Way) -> dict[str, Any]:
    folder = Path(spec["folder"])
    entry: dict[str, Any] = {"which": "scikit-learn", "name": "scikit-learn"}
    missing = too_large(job) if limit_bytes is None else None
    if missing is not None:
        entry |= {"missing": missing, "wall_s": 0.0, "peak_bytes": 0, "killed": False, "samples": []}
        return {**entry, "words": outcome_in_words(entry)}
    found = folder / "rival.json"
    found.unlink(missing_ok=True)
    names = ("dimensions", "clusters", "rounds", "seed")
    rival_spec = {"table": str(folder / "documents.tsv"), "result": str(found), **{name: spec[name] for name in names}}
    (folder / "rival-spec.json").write_text(json_module.dumps(rival_spec))
    environment = {}
    if spec["threads"]:
        environment = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), str(spec["threads"]))
    command = [sys.executable, str(Path(__file__).with_name("text_rival.py")), str(folder / "rival-spec.json")]
    outcome = limit.run_limited(command, limit_bytes, way, environment=environment, timeout_s=RIVAL_S)
    result = json_module.loads(found.read_text()) if found.exists() else {}
    entry |= {**limit.describe(outcome), **result, "samples": outcome.samples}
    if outcome.timed_out:
        entry["failure"] = f"it was stopped, not finished, after {seconds_in_words(outcome.wall_s)}"
    elif "work_s" not in result and not outcome.killed:
        entry["failure"] = outcome.output.strip().splitlines()[-1] if outcome.output.strip() else f"status {outcome.returncode}"
    return {**entry, "words": outcome_in_words(entry)}


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
