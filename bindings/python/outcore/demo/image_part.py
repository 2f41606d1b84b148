"""The images part of the demo: the order of events, and the rivals."""

from __future__ import annotations

import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import tqdm

from . import limit, rivals
from .confined import DemoError, allowed, parse_bytes, run_job, run_rival, told
from .images import MANIFEST
from .words import bytes_in_words, outcome_in_words, say

JOB = "outcore.demo.image_job"

ROUNDS = 3
ROUNDS_S = 45.0
"""Speeds are medians over interleaved rounds, three or as many as fit into this time, and at least one."""

UNDER_LIMIT = {
    "numpy": "numpy, array loaded",
    "numpy-memmap": "numpy, the same lines on a memory map",
    "numpy-blocks": "numpy, memory map and block loops by hand",
}
ALL_MEMORY = {"numpy": "numpy", "scikit-learn": "scikit-learn"}


def measure(spec: dict[str, Any], way: limit.Way, compare: bool, show: bool) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """The job under its limit, the rivals under the same, and all of them side by side."""
    started = time.monotonic()
    limits = allowed(JOB, parse_bytes(spec["memory"]), way)
    say(show, f"memory limit {bytes_in_words(limits['bytes'])}, kept by {way.sentence}")

    outcome, result, arrays = run_job(JOB, spec, limits["bytes"], way)
    facts: dict[str, Any] = {
        "title": result["title"],
        "job": result,
        "limit": limits,
        "outcore": told(outcome, result) | {"work_s": work_seconds(result)},
        "under_limit": [],
        "all_memory": [],
    }
    if compare:
        with tqdm.tqdm(total=len(UNDER_LIMIT) + 1, desc="comparing", disable=not show, leave=False, file=sys.stderr) as bar:
            for which, name in UNDER_LIMIT.items():
                bar.set_postfix_str(f"{name}, same limit")
                facts["under_limit"].append(image_rival(which, name, spec, result["components"], limits["bytes"], way))
                bar.update()
            bar.set_postfix_str("all the memory they want")
            facts["all_memory"], facts["speed"] = compare_speed(spec, facts, way)
            bar.update()
        facts["agreement"] = agreement(facts)
    facts["total_s"] = time.monotonic() - started
    return facts, arrays


def work_seconds(result: dict[str, Any]) -> float:
    """Components and projection; decoding is the same for all contestants and not counted."""
    return float(sum(phase["end_s"] - phase["start_s"] for phase in result["phases"] if phase["name"] in ("fit", "transform")))


def find_data(data: str | os.PathLike[str] | None) -> Path:
    if data is not None:
        path = Path(data)
        if not path.exists():
            raise DemoError(f"{path}: no such file or folder")
        return path
    for base in (Path.cwd(), *Path(__file__).resolve().parents):
        if (base / "data" / "mnist" / MANIFEST).is_file():
            return base / "data" / "mnist"
    raise DemoError("the project's data/mnist is not here; name a folder or tar archive of images with --data")


# The rivals


def image_rival(
    which: str, name: str, spec: dict[str, Any], components: int, limit_bytes: int | None, way: limit.Way
) -> dict[str, Any]:
    folder = Path(spec["folder"])
    projection = folder / "rival.npy"
    task = {"images": str(folder / "images.npy"), "projection": str(projection), "components": components}
    entry = run_rival([rivals.__file__, which], spec, task, limit_bytes, way)
    projection.unlink(missing_ok=True)
    return {"which": which, "name": name, **entry}


def compare_speed(
    spec: dict[str, Any], facts: dict[str, Any], way: limit.Way
) -> tuple[list[dict[str, Any]], dict[str, list[float]]]:
    """Interleaved rounds: outcore under its limit, the others with all the memory they want, each with the file out of cache."""
    started = time.monotonic()
    seconds: dict[str, list[float]] = {"outcore": [facts["outcore"]["work_s"]]}
    entries: dict[str, dict[str, Any]] = {}
    for turn in range(ROUNDS):
        if turn > 0:
            if (time.monotonic() - started) * (turn + 1) / turn > ROUNDS_S:
                break
            rivals.forget(Path(spec["folder"]) / "images.npy")
            _, result, _ = run_job(JOB, {**spec, "again": True, "progress": False}, facts["limit"]["bytes"], way)
            seconds["outcore"].append(work_seconds(result))
        for which, name in ALL_MEMORY.items():
            entry = image_rival(which, name, spec, facts["job"]["components"], None, way)
            entries[which] = entry
            if "work_s" in entry and "memory_error" not in entry:
                seconds.setdefault(which, []).append(entry["work_s"])
    for which, entry in entries.items():
        if which in seconds:
            entry["work_s"] = statistics.median(seconds[which])
            entry["words"] = outcome_in_words(entry)
    return list(entries.values()), seconds


def agreement(facts: dict[str, Any]) -> float | None:
    """Largest relative difference of an explained variance to numpy's, as a share of the largest one."""
    ours = facts["job"]["explained_variance"]
    for entry in facts["all_memory"]:
        theirs = entry.get("explained_variance")
        if theirs and len(theirs) == len(ours) and theirs[0] > 0:
            return float(max(abs(a - b) for a, b in zip(ours, theirs, strict=True)) / theirs[0])
    return None
