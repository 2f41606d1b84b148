"""A job of the demo, or a rival, in a process that the kernel holds to a memory limit: what is allowed, and what became of it."""

from __future__ import annotations

import json as json_module
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from . import limit
from .words import bytes_in_words, outcome_in_words, seconds_in_words

MARGIN_BYTES = 64 << 20
"""What the library promises to need at most on top of its budget; the kernel's limit is set there, not higher."""


class DemoError(RuntimeError):
    """The demo cannot go on; the message says why."""


def allowed(module: str, budget_bytes: int, way: limit.Way, own_data_bytes: int = 0) -> dict[str, Any]:
    """The limit of a job: interpreter with imports, budget, the library's margin, and what the job itself holds."""
    baseline = baseline_memory(module)
    own = baseline["VmRSS" if way.counts_page_cache else "VmData"] if baseline else 0
    return {
        "kind": way.kind,
        "sentence": way.sentence,
        "enforced": way.enforced,
        "bytes": own + budget_bytes + MARGIN_BYTES + own_data_bytes,
        "interpreter_bytes": own,
        "budget_bytes": budget_bytes,
        "margin_bytes": MARGIN_BYTES,
        "own_data_bytes": own_data_bytes,
    }


def run_job(
    module: str, spec: dict[str, Any], limit_bytes: int, way: limit.Way
) -> tuple[limit.Outcome, dict[str, Any], dict[str, Any]]:
    folder = Path(spec["folder"])
    (folder / "spec.json").write_text(json_module.dumps(spec))
    (folder / "result.json").unlink(missing_ok=True)
    command = [sys.executable, "-m", module, str(folder / "spec.json")]
    outcome = limit.run_limited(command, limit_bytes, way, show_stderr=spec["progress"])
    if not (folder / "result.json").exists():
        why = "was ended by the kernel for using too much memory" if outcome.killed else f"ended with status {outcome.returncode}"
        raise DemoError(f"the job {why} (limit {bytes_in_words(limit_bytes)})\n{outcome.output}".rstrip())
    result = json_module.loads((folder / "result.json").read_text())
    if "error" in result:
        raise DemoError(result["error"])
    with np.load(folder / "result.npz") as found:
        arrays = dict(found)
    return outcome, result, arrays


def run_rival(
    words: Sequence[str],
    spec: dict[str, Any],
    task: dict[str, Any],
    limit_bytes: int | None,
    way: limit.Way,
    timeout_s: float = 3600.0,
) -> dict[str, Any]:
    """A Python script, which reads its task from the file named last and writes the file `result`: what became of it."""
    folder = Path(spec["folder"])
    given, found = folder / "rival-spec.json", folder / "rival.json"
    found.unlink(missing_ok=True)
    given.write_text(json_module.dumps({**task, "result": str(found)}))
    environment = {}
    if spec["threads"]:
        environment = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), str(spec["threads"]))
    command = [sys.executable, *words, str(given)]
    outcome = limit.run_limited(command, limit_bytes, way, environment=environment, timeout_s=timeout_s)
    result = json_module.loads(found.read_text()) if found.exists() else {}
    entry = {**limit.describe(outcome), **result, "samples": outcome.samples}
    if outcome.timed_out:
        entry["failure"] = f"it was stopped, not finished, after {seconds_in_words(outcome.wall_s)}"
    elif "work_s" not in result and "missing" not in result and not outcome.killed:
        entry["failure"] = outcome.output.strip().splitlines()[-1] if outcome.output.strip() else f"status {outcome.returncode}"
    return {**entry, "words": outcome_in_words(entry)}


def baseline_memory(module: str) -> dict[str, int]:
    """Memory of an interpreter that has imported what the job imports, and done nothing."""
    outcome = limit.run_limited([sys.executable, "-m", module], None, limit.Way("none"))
    lines = outcome.output.strip().splitlines()
    if outcome.returncode != 0 or not lines:
        raise DemoError(f"outcore cannot be imported in a new process\n{outcome.output}".rstrip())
    found: dict[str, int] = json_module.loads(lines[-1])
    return found


def told(outcome: limit.Outcome, result: dict[str, Any]) -> dict[str, Any]:
    """The outcome, its samples and phases on one clock that starts with the process."""
    phases = [
        {"name": p["name"], "start_s": p["start_s"] - outcome.started_s, "end_s": p["end_s"] - outcome.started_s}
        for p in result.get("phases", [])
    ]
    return limit.describe(outcome) | {"samples": outcome.samples, "phases": phases}


def parse_bytes(text: str | int) -> int:
    """ "32MiB", "2GB", 1048576 -> bytes."""
    units = {"": 1, "b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
    units |= {f"{u}ib": size for u, size in units.items() if u in "kmgt" and u}
    units |= {"kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12}
    match = re.fullmatch(r"\s*([0-9]*\.?[0-9]+)\s*([a-zA-Z]*)\s*", str(text))
    if match is None or match[2].lower() not in units:
        raise DemoError(f"memory {text!r} is not a size such as 32MiB or 2GiB")
    return int(float(match[1]) * units[match[2].lower()])
