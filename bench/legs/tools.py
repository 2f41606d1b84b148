"""fio, and outcore's own example of `stream` and `gather`: programs that report their own clock."""

from __future__ import annotations

import json
import os
import subprocess
import time
from pathlib import Path
from typing import Any

from harness import device
from harness.model import MIB

Spec = dict[str, Any]
Result = dict[str, Any]


def nothing(spec: Spec) -> Result:
    return {"seconds": [0.0]}


def fio(spec: Spec) -> Result:
    """Rate of one job; `work` is what the case counts, bytes or requests."""
    job = device.run(spec["file"], spec["size_bytes"], spec["seconds"], options_of(spec))
    return {**job, "seconds": [job["seconds"]], "work": job[spec["count"]]}


def options_of(spec: Spec) -> dict[str, Any]:
    keys = ("rw", "bs", "iodepth", "iomem", "fixedbufs", "registerfiles", "numjobs", "group_reporting")
    return {key: spec[key] for key in keys if key in spec}


def fio_once(spec: Spec) -> Result:
    """One job that writes the whole of a new file, whose space is set aside before the clock starts, and ends with fsync."""
    device.new_file(spec["file"], spec["size_bytes"])
    job = device.run(spec["file"], spec["size_bytes"], None, options_of(spec))
    started = time.perf_counter()
    with open(spec["file"], "rb") as file:
        os.fsync(file.fileno())
    seconds = job["seconds"] + time.perf_counter() - started
    return {**job, "seconds": [seconds], "work": job["bytes"]}


def fio_written(spec: Spec) -> Result:
    """One job that reads the whole of a file which was written just before: a disk that others share may have that at hand."""
    device.new_file(spec["file"], spec["size_bytes"])
    device.run(spec["file"], spec["size_bytes"], None, {"rw": "write", "bs": MIB, "iodepth": 8})
    job = device.run(spec["file"], spec["size_bytes"], None, options_of(spec))
    return {**job, "seconds": [job["seconds"]], "work": job["bytes"]}


def file_reader(spec: Spec) -> Result:
    """Files read one by one in random order, by a program in C and its threads; compiled when it is run for the first time."""
    program = Path(spec["program"])
    source = Path(__file__).with_name("file_reader.c")
    if not program.exists() or program.stat().st_mtime < source.stat().st_mtime:
        program.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run(["cc", "-O2", "-Wall", "-pthread", "-o", str(program), str(source)], check=True)
    words = [str(program), spec["path"], *(str(spec[key]) for key in ("count", "size", "threads", "seconds"))]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(done.stderr.strip() or f"ended with {done.returncode}")
    found: Result = json.loads(done.stdout)
    return {**found, "seconds": [found["seconds"]], "command": words}


def merge_join(spec: Spec) -> Result:
    """The first `count` queries against all rows in memory, their time scaled to all, by a program in C, compiled when it is
    run for the first time.
    """
    program, source = Path(spec["program"]), Path(__file__).with_name("merge_join.c")
    if not program.exists() or program.stat().st_mtime < source.stat().st_mtime:
        program.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run(["cc", "-O3", "-march=native", "-Wall", "-pthread", "-o", str(program), str(source)], check=True)
    sizes = [str(spec[key]) for key in ("rows", "per_row", "count", "k", "threads")]
    done = subprocess.run([str(program), spec["a"], spec["queries"], *sizes], capture_output=True, text=True, check=True)
    return {"seconds": [float(done.stdout) * spec["scaled"]]}


def look_up(spec: Spec) -> Result:
    """As `example`; what a program tells of its memory is kept."""
    words = [spec["program"], *map(str, spec["arguments"]), str(spec["seconds"])]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(done.stderr.strip() or f"ended with {done.returncode}")
    found: Result = json.loads(done.stdout)
    return {**found, "seconds": [found["seconds"]], "command": words}


def example(spec: Spec) -> Result:
    """Run after run of the example until `seconds` are full; every run is a sample of the same work."""
    runs: list[dict[str, Any]] = []
    while not runs or sum(run["seconds"] for run in runs) < spec["seconds"]:
        words = [spec["program"], *map(str, spec["arguments"])]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise SystemExit(done.stderr.strip() or f"ended with {done.returncode}")
        runs.append(json.loads(done.stdout.strip().splitlines()[-1]))
    return {
        "seconds": [run["seconds"] for run in runs],
        "cpu_seconds": sum(run["cpu_seconds"] for run in runs),
        "work": spec.get("requests", runs[0]["bytes"]),
        "read_bytes": sum(run["bytes"] for run in runs),
        "command": words,
    }
