"""Runs the legs of a case in turn, A B A B ..., each a fresh process, and keeps everything they said.

A leg that the kernel killed, that ran out of time, that failed or that answered wrongly is not run again: it counts as not
finished, with the time it lasted. Each run of a case has a file of its own, which is written after every leg, so that an
interrupted run is kept too, and never replaced by a later one.
"""

from __future__ import annotations

import dataclasses
import datetime
import json
import os
import shutil
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from outcore.demo import limit

from harness import corpus, data, device, machine, rows, samples, topic_corpus, traces, zipf
from harness.model import (
    MIB,
    RIVALS,
    ROOT,
    UNIT_SIZE,
    BagTrace,
    Case,
    Context,
    DataFile,
    Leg,
    RandomFile,
    RowsCopy,
    SampleSet,
    Skip,
    TopicFolder,
    ZipfFolder,
    relative,
)

MARGIN_BYTES = 64 * MIB
"""What outcore may need on top of its budget; every contestant under a limit gets it."""

RULES = 2
"""Of PROTOCOL.md, by which the result was taken. Results of the first rules lie apart and are not compared with these."""

LARGEST_ERROR = 10.0
"""In units of legs.measure.product_error; a fast wrong answer is no answer."""

NO_FIO = "fio is not installed; it comes with the system's package manager"

PACKAGES = {
    "dask_ml",
    "faiss",
    "gensim",
    "h5py",
    "pyarrow",
    "rocksdict",
    "sparse_dot_topn",
    "tomotopy",
    "torch",
    "zarr",
}
"""What cases may need, as it is imported."""

EXAMPLES = {
    "example": ["-p", "outcore-engine", "--example", "stream_and_gather"],
    "look_up": ["-p", "outcore", "--example", "look_up"],
}

Facts = dict[str, Any]


def run_case(case: Case, context: Context, facts: Facts, folder: Path, say: Callable[[str], None]) -> Facts:
    """Measure `case` and leave `<folder>/<case>.<start>.json`."""
    check_needs(case)
    case = without_device(case) if not device.available() else case
    for file in case.files:
        say(f"{case.name}: making {file.path}")
        make(file)
    way = limit.best_way()
    limits = process_limit(case, way)
    result: Facts = {
        **facts,
        "rules": RULES,
        "case": case.name,
        "title": case.title,
        "headline": case.headline,
        "unit": case.unit,
        "started": now(),
        "load_before": os.getloadavg()[0],
        "sources": machine.sources(),
        "rounds": case.rounds,
        "bound": dataclasses.asdict(case.bound),
        "comparisons": [dataclasses.asdict(comparison) for comparison in case.comparisons],
        "measures": [dataclasses.asdict(measure) for measure in case.measures],
        "notes": list(case.notes),
        "limit": limits,
        "legs": [],
    }
    path = claim(folder, result)
    legs = [chosen(leg, case.unit, context, way, limit_of(leg, limits), say) for leg in case.legs]
    result["legs"] = [described(leg, sweep) for leg, sweep in legs]
    turns = list(zip(legs, result["legs"], strict=True))
    for number in range(case.rounds):
        for (leg, _), entry in reversed(turns) if case.turned and number % 2 else turns:
            if any(done["status"] != "ok" for done in entry["rounds"]):
                continue
            outcome = {"round": number, **run_leg(leg, context, way, limit_of(leg, limits))}
            entry["rounds"].append(outcome)
            result["ended"] = now()
            write(result, path)
            say(f"{case.name}: round {number + 1}: {leg.name}: {told(leg, outcome, case.unit)}")
    return result


def make(file: Any) -> None:
    makers = {
        DataFile: data.make,
        RowsCopy: rows.make,
        SampleSet: samples.make,
        RandomFile: device.make,
        BagTrace: traces.make,
        TopicFolder: topic_corpus.make,
        ZipfFolder: zipf.make,
    }
    makers.get(type(file), corpus.make)(file, ROOT)  # type: ignore[operator]


def run_leg(leg: Leg, context: Context, way: limit.Way, limit_bytes: int | None) -> Facts:
    """One process: what became of it, and the raw numbers that it wrote."""
    remove_outputs(leg)
    answer = ROOT / context.path("leg.json")
    answer.unlink(missing_ok=True)
    cache = drop_caches(leg)
    try:
        outcome = limit.run_limited(
            command_of(leg, relative(answer)), limit_bytes, way, environment=dict(leg.environment), timeout_s=leg.timeout_s
        )
        result = json.loads(answer.read_text()) if answer.exists() else None
    finally:
        remove_outputs(leg)
        answer.unlink(missing_ok=True)
    status = "ok" if outcome.returncode == 0 and result else "failed"
    status = "killed" if outcome.killed else "timed out" if outcome.timed_out else status
    if status == "ok" and (result or {}).get("error", 0.0) > LARGEST_ERROR:
        status = "wrong"
    facts: Facts = {
        "status": status,
        "wall_s": outcome.wall_s,
        "peak_bytes": outcome.peak_bytes,
        "kernel_peak_bytes": outcome.kernel_peak_bytes,
        "limit_bytes": limit_bytes,
        "cache": cache,
        "result": result if status == "ok" else None,
    }
    return facts if status == "ok" else {**facts, "output": outcome.output.replace(f"{ROOT}/", "")[-2000:]}


def command_of(leg: Leg, answer: str) -> list[str]:
    unset = ["env", *(word for name in leg.unset for word in ("-u", name))] if leg.unset else []
    return [
        *unset,
        RIVALS if leg.rival else relative(sys.executable),
        "bench/leg.py",
        leg.function,
        json.dumps(dict(leg.spec)),
        answer,
    ]


def chosen(
    leg: Leg, unit: str, context: Context, way: limit.Way, limit_bytes: int | None, say: Callable[[str], None]
) -> tuple[Leg, list[Facts]]:
    """The leg with the fastest spec of its sweep, under the leg's own limit, and what the sweep measured."""
    tried: list[Facts] = []
    for options in leg.sweep:
        spec = {**leg.spec, **options, "seconds": min(leg.sweep_s, context.seconds(leg.sweep_s))}
        outcome = run_leg(dataclasses.replace(leg, spec=spec), context, way, limit_bytes)
        tried.append({"options": dict(options), "rate": rate(unit_of(leg, unit), leg, outcome), "status": outcome["status"]})
        say(f"{leg.name}: trying {dict(options)}: {tried[-1]['rate'] or outcome.get('output', 'no number')}")
        if leg.sweep_ascends and tried[-1]["rate"] is not None:
            break
    finished = [entry for entry in tried if entry["rate"] is not None]
    if not finished:
        return leg, tried
    best = max(finished, key=lambda entry: entry["rate"])
    return dataclasses.replace(leg, spec={**leg.spec, **best["options"]}), tried


def rate(unit: str, leg: Leg, outcome: Mapping[str, Any]) -> float | None:
    """Work a second of a round's median sample (unit `s`: samples a second), or None where the leg did not finish."""
    if outcome["status"] != "ok":
        return None
    result = outcome["result"]
    done = 1.0 if unit == "s" else result.get("work", leg.work)
    return float(done / statistics.median(result["seconds"]))


def unit_of(leg: Leg, unit: str) -> str:
    """The device is told in bytes where the case counts something else than it can do."""
    return "GB/s" if leg.access and unit in ("s", "GFLOP/s") else unit


def told(leg: Leg, outcome: Mapping[str, Any], unit: str) -> str:
    unit = unit_of(leg, unit)
    value = rate(unit, leg, outcome)
    if value is None:
        last = outcome["output"].strip().splitlines()[-1:]
        return " ".join([f"{outcome['status']} after {outcome['wall_s']:.1f} s", *last])
    return f"{1 / value:.3f} s" if unit == "s" else f"{value / UNIT_SIZE[unit]:.4g} {unit}"


def described(leg: Leg, sweep: list[Facts]) -> Facts:
    return {
        "name": leg.name,
        "function": leg.function,
        "work": leg.work,
        "command": command_of(leg, "RESULT"),
        "unset": list(leg.unset),
        "environment": dict(leg.environment),
        "limited": leg.limited,
        "timeout_s": leg.timeout_s,
        "access": leg.access,
        "cold": list(leg.cold),
        "sweep": sweep,
        "rounds": [],
    }


def process_limit(case: Case, way: limit.Way) -> Facts | None:
    """Budget and margin are the same for all; to them comes what interpreter and imports of each leg take."""
    if case.limit_over_bytes is None:
        return None
    return {
        "data_bytes": case.limit_over_bytes + MARGIN_BYTES,
        "baseline_bytes": {leg.name: imports_bytes(leg, way) for leg in case.legs if leg.limited},
        "kind": way.kind,
        "sentence": way.sentence,
    }


def limit_of(leg: Leg, limits: Facts | None) -> int | None:
    return limits["data_bytes"] + limits["baseline_bytes"][leg.name] if leg.limited and limits else None


def imports_bytes(leg: Leg, way: limit.Way) -> int:
    """Of a process that does as the leg does until its work would begin: `nothing` of the leg's module, with its spec."""
    nothing = dataclasses.replace(leg, function=f"{leg.function.partition('.')[0]}.nothing")
    outcome = limit.run_limited(command_of(nothing, os.devnull), None, way, environment=dict(leg.environment))
    if outcome.returncode != 0:
        raise Skip(f"{leg.name} cannot be imported: {outcome.output.strip().splitlines()[-1]}")
    return outcome.peak_bytes


def drop_caches(leg: Leg) -> str:
    """Clean pages leave memory before a cold leg; without the right to that, at least those of its files do."""
    os.sync()
    if not leg.cold:
        return "warm"
    try:
        Path("/proc/sys/vm/drop_caches").write_text("3")
    except OSError:
        for path in leg.cold:
            data.forget(ROOT / path)
        return "dropped for the files read (dropping all is not permitted here)"
    return "dropped"


def remove_outputs(leg: Leg) -> None:
    for path in (ROOT / output for output in leg.outputs):
        if path.is_dir():
            shutil.rmtree(path)
        path.unlink(missing_ok=True)


def without_device(case: Case) -> Case:
    """The case without its limit; what is held against nothing else is left out."""
    kept = [leg for leg in case.legs if not leg.access]
    names = {leg.name for leg in kept}
    comparisons = [entry for entry in case.comparisons if names & set(entry.rivals)]
    if case.comparisons and not comparisons:
        raise Skip(NO_FIO)
    files = [file for file in case.files if not isinstance(file, RandomFile)]
    notes = case.notes if len(kept) == len(case.legs) else (*case.notes, f"The device's limit is not known: {NO_FIO}.")
    return dataclasses.replace(case, legs=kept, comparisons=comparisons, files=files, notes=notes)


def check_needs(case: Case) -> None:
    if "cc" in case.needs and shutil.which("cc") is None:
        raise Skip("no C compiler is installed")
    for package in PACKAGES & set(case.needs):
        if find_spec(package) is None:
            raise Skip(f"{package} is not installed; make rivals does that")
    if "primme" in case.needs and find_spec("primme") is None:
        raise Skip("primme is not installed; pip compiles it against a BLAS, so make rivals does not")
    if "spark" in case.needs and (shutil.which("java") is None or find_spec("pyspark") is None):
        raise Skip("Java or pyspark is not installed; make rivals installs pyspark")
    if "rivals" in case.needs and not (ROOT / RIVALS).exists():
        raise Skip("the loaders of bench/rivals.txt are not installed; make rivals does that")
    for path in case.needs:
        if path.startswith("$") and not os.path.exists(os.path.expandvars(path)):
            raise Skip(f"there is no {path}")
    for need in EXAMPLES.keys() & set(case.needs):
        if not shutil.which("cargo"):
            raise Skip("cargo is not installed")
        command = ["cargo", "build", "--release", "--quiet", *EXAMPLES[need]]
        if subprocess.run(command, cwd=ROOT, check=False).returncode != 0:
            raise Skip(f"the example {EXAMPLES[need][-1]} does not build")


def claim(folder: Path, result: Facts) -> Path:
    """The file of this run, which is there from now on; one that is there is never written over."""
    folder.mkdir(parents=True, exist_ok=True)
    stamp = result["started"].partition("+")[0].replace("-", "").replace(":", "")
    path = folder / f"{result['case']}.{stamp}Z.json"
    with open(path, "x") as file:
        file.write(json.dumps(result, indent=1) + "\n")
    return path


def write(result: Facts, path: Path) -> None:
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(result, indent=1) + "\n")
    partial.rename(path)


def now() -> str:
    return datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
