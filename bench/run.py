"""The benchmarks of outcore; see PROTOCOL.md.

python bench/run.py                      everything, at full size, into bench/results/<date>-<machine>/
python bench/run.py gemm syrk            the cases whose names begin so
python bench/run.py --scale 0.1 stream   smaller; the results stay in the data folder
python bench/run.py --list               the cases
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import os
import shutil
import sys
import time
from pathlib import Path
from typing import Any

from cases import BUILDERS
from cases.pca import TALL_FILE
from harness import device, machine
from harness.model import ROOT, Case, Context, Skip, relative

FULL_SECONDS = 30.0
ROUNDS = 3


def main(words: list[str]) -> int:
    arguments = parse(words)
    unknown = [prefix for prefix in arguments.cases if not any(name.startswith(prefix) for name in BUILDERS)]
    if unknown:
        print(f"no case begins with {', '.join(unknown)}; --list shows them", file=sys.stderr)
        return 2
    names = [name for name in BUILDERS if not arguments.cases or name.startswith(tuple(arguments.cases))]
    data = Path(arguments.data).resolve() / "outcore-bench"
    os.chdir(ROOT)
    context = Context(relative(data), arguments.scale, arguments.seconds, room(data))
    if arguments.list:
        return listed(names, context)
    data.mkdir(parents=True, exist_ok=True)
    try:
        return measured(names, context, arguments, [relative(sys.executable), "bench/run.py", *words])
    finally:
        if not arguments.keep:
            clean(data)


def parse(words: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, prog="bench")
    parser.add_argument("cases", nargs="*", help="beginnings of case names; none: all")
    parser.add_argument("--scale", type=float, default=1.0, help="share of every side and file size (default 1)")
    parser.add_argument("--seconds", type=float, help="time of legs that can choose it (default 30, times the scale)")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="how often all legs take their turn (default 3)")
    parser.add_argument("--data", default=str(ROOT / "scratch"), help="folder on the disk to measure")
    parser.add_argument("--results", help="folder for raw results")
    parser.add_argument("--keep", action="store_true", help="leave the generated files for the next invocation")
    parser.add_argument("--no-report", action="store_true", help="do not make README's tables and plots")
    parser.add_argument("--list", action="store_true", help="show the cases and run none")
    arguments = parser.parse_args(words)
    if not 0 < arguments.scale <= 1 or arguments.rounds < 1:
        parser.error("--scale is above 0 and at most 1, --rounds at least 1")
    if arguments.seconds is None:
        arguments.seconds = max(0.5, FULL_SECONDS * arguments.scale)
    return arguments


def listed(names: list[str], context: Context) -> int:
    for name in names:
        try:
            case = BUILDERS[name](context)
        except Skip as reason:
            print(f"{name:16} skipped: {reason}")
            continue
        print(f"{name:16} {case.title}")
        for leg in case.legs:
            print(f"{'':16}   {leg.name}")
    return 0


def measured(names: list[str], context: Context, arguments: argparse.Namespace, command: list[str]) -> int:
    from harness import runner

    facts: dict[str, Any] = {
        "command": command,
        "machine": machine.machine(Path(context.data)),
        "versions": machine.versions(),
        "environment": machine.environment(),
        "sources": machine.sources(),
        "load_before": os.getloadavg()[0],
    }
    folder = results_folder(arguments, context, facts["machine"])
    say = Reporter()
    facts["device"] = device_limits(context, say)
    runner.write({**facts, "case": "device", "scale": context.scale, "started": runner.now()}, folder)
    broken = []
    for name in names:
        try:
            case: Case = BUILDERS[name](context)
            runner.run_case(case, context, arguments.rounds, facts, folder, say)
        except Skip as reason:
            say(f"{name}: skipped: {reason}")
            broken.append(name)
    say(f"raw results: {relative(folder)}")
    if broken:
        say(f"skipped: {', '.join(broken)}")
    if not arguments.no_report and (context.scale == 1 or arguments.results):
        import report

        report.main(["--results", str(folder)])
    return 0


def results_folder(arguments: argparse.Namespace, context: Context, facts: dict[str, Any]) -> Path:
    """Only full-size results are kept beside the sources."""
    if arguments.results:
        return Path(arguments.results).resolve()
    name = f"{datetime.date.today().isoformat()}-{machine.slug(facts)}"
    return (ROOT / "bench" / "results" if context.scale == 1 else Path(context.data).resolve() / "results") / name


def device_limits(context: Context, say: Reporter) -> dict[str, Any]:
    if not device.available():
        say("fio is not installed: the device's limit is unknown, and the cases against fio are skipped")
        return {"absent": "fio is not installed"}
    say("measuring the device's limit with fio")
    return device.limits(context, ROOT)


def room(data: Path) -> int:
    """Free bytes, counting what an earlier invocation left here as free."""
    there = next(folder for folder in (data, *data.parents) if folder.exists())
    left = data / TALL_FILE
    return shutil.disk_usage(there).free + (left.stat().st_size if left.exists() else 0)


def clean(data: Path) -> None:
    """Everything generated; results of trials stay."""
    for path in data.iterdir() if data.exists() else ():
        if path.is_dir() and path.name != "results":
            shutil.rmtree(path, ignore_errors=True)
        elif path.is_file():
            path.unlink()
    with contextlib.suppress(OSError):
        data.rmdir()


class Reporter:
    """Lines on standard error with the time since the start."""

    def __init__(self) -> None:
        self.started = time.monotonic()

    def __call__(self, text: str) -> None:
        print(f"{time.monotonic() - self.started:8.1f} s  {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
