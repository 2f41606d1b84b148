"""The order of events of `outcore demo`: measure, limit, run, compare, report."""

from __future__ import annotations

import json as json_module
import os
import platform
import re
import shlex
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Literal

import numpy as np
import psutil
import tqdm

from . import limit, rivals
from .images import MANIFEST
from .report import render
from .words import bytes_in_words, outcome_in_words, seconds_in_words

MARGIN_BYTES = 64 << 20
"""What the library promises to need at most on top of its budget; the kernel's limit is set there, not higher."""

ROUNDS = 3
ROUNDS_S = 45.0
"""Speeds are medians over interleaved rounds, three or as many as fit into this time, and at least one."""

UNDER_LIMIT = {
    "numpy": "numpy, array loaded",
    "numpy-memmap": "numpy, the same lines on a memory map",
    "numpy-blocks": "numpy, memory map and block loops by hand",
}
ALL_MEMORY = {"numpy": "numpy", "scikit-learn": "scikit-learn"}


class DemoError(RuntimeError):
    """The demo cannot go on; the message says why."""


def run_demo(
    data: str | os.PathLike[str] | None = None,
    *,
    memory: str = "32MiB",
    components: int = 50,
    output: str | os.PathLike[str] = "report.html",
    json: bool = False,
    scratch: str | os.PathLike[str] | None = None,
    threads: int | None = None,
    size: tuple[int, int] | None = None,
    mixed: Literal["resize", "refuse"] = "resize",
    random_state: int = 0,
    compare: bool = True,
    progress: bool | None = None,
    command: str | None = None,
) -> dict[str, Any]:
    """Find the principal components of an image set within a memory limit and write a report.

    Parameters
    ----------
    data : folder or tar archive of images, or folder of sheets; default the MNIST of the project.
    memory : budget of the library; the process may use it plus 64 MiB plus what the interpreter takes.
    components : how many principal components.
    output : the HTML report.
    json : print no summary (the caller prints what is returned).
    scratch : folder on SSD for the arrays, about 4 bytes a pixel of all images; default beside the report. Emptied at the end.
    threads : cores to use; default all.
    size : (width, height) for every image; default the most common size.
    mixed : images of other sizes are resized ("resize") or an error ("refuse").
    random_state : seed handed to PCA.
    compare : run numpy and scikit-learn too.
    progress : progress lines on standard error; default when it is a terminal.
    command : the command line to show in the report.

    Returns
    -------
    dict of everything measured; plain values that json.dumps takes.

    Raises
    ------
    DemoError, with one sentence that names the file or the limit.
    """
    show = sys.stderr.isatty() if progress is None else progress
    source = find_data(data)
    report = Path(output)
    report.parent.mkdir(parents=True, exist_ok=True)
    base = Path(scratch) if scratch else report.parent.resolve()
    folder = Path(tempfile.mkdtemp(prefix="outcore-demo-", dir=base))
    try:
        spec = {
            "data": str(source.resolve()),
            "folder": str(folder),
            "memory": memory,
            "components": components,
            "threads": threads,
            "size": size,
            "mixed": mixed,
            "seed": random_state,
            "progress": show,
        }
        facts, arrays = measure(spec, compare, show)
        facts["command"] = command or shown_command()
        facts["data"] = str(source)
        facts["report"] = str(report)
        trace = (folder / "trace.json").read_bytes() if (folder / "trace.json").exists() else b""
        report.write_text(render(facts, arrays, trace), encoding="utf-8")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    strip_samples(facts)
    if not json:
        print(summary(facts))
    return facts


def measure(spec: dict[str, Any], compare: bool, show: bool) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Everything but the page."""
    started = time.monotonic()
    folder = Path(spec["folder"])
    way = limit.best_way()
    baseline = baseline_memory()
    budget = parse_bytes(spec["memory"])
    own = baseline["VmRSS" if way.counts_page_cache else "VmData"] if baseline else 0
    limit_bytes = own + budget + MARGIN_BYTES
    say(show, f"memory limit {bytes_in_words(limit_bytes)}, kept by {way.sentence}")

    outcome, result, arrays = run_job(spec, limit_bytes, way)
    facts: dict[str, Any] = {
        "title": result["title"],
        "job": result,
        "limit": {
            "kind": way.kind,
            "sentence": way.sentence,
            "enforced": way.enforced,
            "bytes": limit_bytes,
            "interpreter_bytes": own,
            "budget_bytes": budget,
            "margin_bytes": MARGIN_BYTES,
        },
        "outcore": told(outcome, result) | {"work_s": work_seconds(result)},
        "under_limit": [],
        "all_memory": [],
        "machine": machine(folder),
    }
    if compare:
        with tqdm.tqdm(total=len(UNDER_LIMIT) + 1, desc="comparing", disable=not show, leave=False, file=sys.stderr) as bar:
            for which, name in UNDER_LIMIT.items():
                bar.set_postfix_str(f"{name}, same limit")
                facts["under_limit"].append(run_rival(which, name, spec, result["components"], limit_bytes, way))
                bar.update()
            bar.set_postfix_str("all the memory they want")
            facts["all_memory"], facts["speed"] = compare_speed(spec, facts, way)
            bar.update()
        facts["agreement"] = agreement(facts)
    facts["total_s"] = time.monotonic() - started
    return facts, arrays


# The job


def run_job(spec: dict[str, Any], limit_bytes: int, way: limit.Way) -> tuple[limit.Outcome, dict[str, Any], dict[str, Any]]:
    folder = Path(spec["folder"])
    (folder / "spec.json").write_text(json_module.dumps(spec))
    (folder / "result.json").unlink(missing_ok=True)
    command = [sys.executable, "-m", "outcore.demo.job", str(folder / "spec.json")]
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


def baseline_memory() -> dict[str, int]:
    """Memory of an interpreter that has imported what the job imports, and done nothing."""
    outcome = limit.run_limited([sys.executable, "-m", "outcore.demo.job"], None, limit.Way("none"))
    lines = outcome.output.strip().splitlines()
    if outcome.returncode != 0 or not lines:
        raise DemoError(f"outcore cannot be imported in a new process\n{outcome.output}".rstrip())
    found: dict[str, int] = json_module.loads(lines[-1])
    return found


def work_seconds(result: dict[str, Any]) -> float:
    """Components and projection; decoding is the same for everybody and not counted."""
    return float(sum(phase["end_s"] - phase["start_s"] for phase in result["phases"] if phase["name"] in ("fit", "transform")))


def told(outcome: limit.Outcome, result: dict[str, Any]) -> dict[str, Any]:
    """The outcome, its samples and phases on one clock that starts with the process."""
    phases = [
        {"name": p["name"], "start_s": p["start_s"] - outcome.started_s, "end_s": p["end_s"] - outcome.started_s}
        for p in result.get("phases", [])
    ]
    return limit.describe(outcome) | {"samples": outcome.samples, "phases": phases}


# The rivals


def run_rival(
    which: str, name: str, spec: dict[str, Any], components: int, limit_bytes: int | None, way: limit.Way
) -> dict[str, Any]:
    folder = Path(spec["folder"])
    rival_spec: dict[str, Any] = {
        "images": str(folder / "images.npy"),
        "projection": str(folder / "rival.npy"),
        "result": str(folder / "rival.json"),
        "components": components,
    }
    Path(rival_spec["result"]).unlink(missing_ok=True)
    (folder / "rival-spec.json").write_text(json_module.dumps(rival_spec))
    environment = {}
    if spec["threads"]:
        environment = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), str(spec["threads"]))
    outcome = limit.run_limited(
        [sys.executable, rivals.__file__, which, str(folder / "rival-spec.json")], limit_bytes, way, environment=environment
    )
    found = Path(rival_spec["result"])
    result = json_module.loads(found.read_text()) if found.exists() else {}
    Path(rival_spec["projection"]).unlink(missing_ok=True)
    entry = {"which": which, "name": name, **limit.describe(outcome), **result, "samples": outcome.samples}
    if "work_s" not in result and "missing" not in result and not outcome.killed:
        entry["failure"] = outcome.output.strip().splitlines()[-1] if outcome.output.strip() else f"status {outcome.returncode}"
    entry["words"] = outcome_in_words(entry)
    return entry


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
            _, result, _ = run_job({**spec, "again": True, "progress": False}, facts["limit"]["bytes"], way)
            seconds["outcore"].append(work_seconds(result))
        for which, name in ALL_MEMORY.items():
            entry = run_rival(which, name, spec, facts["job"]["components"], None, way)
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


# Small things


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


def parse_bytes(text: str | int) -> int:
    """ "32MiB", "2GB", 1048576 -> bytes."""
    units = {"": 1, "b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
    units |= {f"{u}ib": size for u, size in units.items() if u in "kmgt" and u}
    units |= {"kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12}
    match = re.fullmatch(r"\s*([0-9]*\.?[0-9]+)\s*([a-zA-Z]*)\s*", str(text))
    if match is None or match[2].lower() not in units:
        raise DemoError(f"memory {text!r} is not a size such as 32MiB or 2GiB")
    return int(float(match[1]) * units[match[2].lower()])


def machine(folder: Path) -> dict[str, Any]:
    memory = psutil.virtual_memory()
    return {
        "processor": processor_name(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_bytes": memory.total,
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "numpy": np.__version__,
        "scratch": file_system(folder),
        "date": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
    }


def processor_name() -> str:
    for line in limit.lines_of("/proc/cpuinfo"):
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def file_system(folder: Path) -> str:
    """Type of the file system that holds `folder`; memory file systems would make the demo pointless, so it is shown."""
    best = ("", "unknown")
    for part in psutil.disk_partitions(all=True):
        mount = part.mountpoint.rstrip("/") + "/"
        if f"{folder.resolve()}/".startswith(mount) and len(mount) > len(best[0]):
            best = (mount, part.fstype)
    return best[1]


def shown_command() -> str:
    name = os.path.basename(sys.argv[0])
    return shlex.join(["python", "-m", "outcore.demo"] if name == "__main__.py" else [name]) + "".join(
        f" {shlex.quote(a)}" for a in sys.argv[1:]
    )


def strip_samples(facts: dict[str, Any]) -> None:
    """Thousands of memory samples and spans are for the page, not for the JSON."""
    for entry in (facts["outcore"], *facts["under_limit"], *facts["all_memory"]):
        entry.pop("samples", None)
    for trace in facts["job"]["traces"].values():
        trace.pop("spans", None)


def say(show: bool, text: str) -> None:
    if show:
        print(text, file=sys.stderr, flush=True)


def summary(facts: dict[str, Any]) -> str:
    """A few lines for a terminal."""
    job, limits = facts["job"], facts["limit"]
    lines = [
        f"{facts['title']}: {job['rows']:,} images, {job['components']} components found and every image projected "
        f"in {seconds_in_words(facts['outcore']['work_s'])}",
        f"memory: peak {bytes_in_words(facts['outcore']['peak_bytes'])} of {bytes_in_words(limits['bytes'])} allowed by "
        f"{limits['sentence']}",
    ]
    lines += [f"{entry['name']}, same limit: {entry['words']}" for entry in facts["under_limit"]]
    lines += [f"{entry['name']}, all the memory it wants: {entry['words']}" for entry in facts["all_memory"]]
    lines.append(f"report: {facts['report']}")
    return "\n".join(lines)
