"""The benchmarks of outcore; see PROTOCOL.md.

python -m bench                      the headline table, at full size, into bench/results/<date>-<machine>/
python -m bench --all                every other case as well
python -m bench gemm syrk            the cases whose names begin so
python -m bench --quick gemm         a trial of everything small, one round; its results stay in the data folder
python -m bench --list               the cases
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import datetime
import os
import shutil
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from cases import BUILDERS, HEADLINE
from cases.pca import TALL_FILE
from harness import device, machine
from harness.model import ROOT, Case, Context, Skip, relative

QUICK_SCALE = 0.02


def main(words: list[str]) -> int:
    arguments = parse(words)
    unknown = [prefix for prefix in arguments.cases if not any(name.startswith(prefix) for name in BUILDERS)]
    if unknown:
        print(f"no case begins with {', '.join(unknown)}; --list shows them", file=sys.stderr)
        return 2
    names = chosen(arguments)
    data = Path(arguments.data).resolve() / "outcore-bench"
    os.chdir(ROOT)
    context = Context(relative(data), QUICK_SCALE if arguments.quick else 1.0, room(data))
    if arguments.list:
        return listed(names, context)
    data.mkdir(parents=True, exist_ok=True)
    try:
        with device.huge_pages_restored():
            return measured(names, context, arguments, [relative(sys.executable), "-m", "bench", *words])
    finally:
        if not arguments.keep:
            clean(data)


def chosen(arguments: argparse.Namespace) -> list[str]:
    """By name or its beginning, or else the headline; `--all` adds what is not in it."""
    if arguments.cases:
        return [
            name
            for name in BUILDERS
            if any(name == word if word in BUILDERS else name.startswith(word) for word in arguments.cases)
        ]
    return list(BUILDERS if arguments.all or arguments.list else HEADLINE)


def parse(words: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, prog="bench")
    parser.add_argument("cases", nargs="*", help="names or their beginnings; none: the headline table")
    parser.add_argument("--all", action="store_true", help="every case")
    parser.add_argument("--quick", action="store_true", help=f"sizes and times {QUICK_SCALE:g} of the full ones; never published")
    parser.add_argument("--data", default=str(ROOT / "scratch"), help="folder on the disk to measure")
    parser.add_argument("--results", help="folder for raw results")
    parser.add_argument("--keep", action="store_true", help="leave the generated files for the next invocation")
    parser.add_argument("--no-report", action="store_true", help="do not make tables and plots")
    parser.add_argument("--list", action="store_true", help="show the cases and run none")
    return parser.parse_args(words)


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
        "quick": arguments.quick,
        "machine": machine.machine(Path(context.data)),
        "versions": machine.versions(),
        "environment": machine.environment(),
    }
    folder = results_folder(arguments, context, facts["machine"])
    say, skipped = Reporter(), []
    for number, name in enumerate(names):
        try:
            case: Case = BUILDERS[name](context)
            if arguments.quick:
                case = dataclasses.replace(case, rounds=1)
            runner.run_case(case, context, facts, folder, say)
        except Skip as reason:
            say(f"{name}: skipped: {reason}")
            skipped.append(name)
            continue
        if not arguments.keep:
            remove_all_but(needed(names[number + 1 :], context), case)
    say(f"raw results: {relative(folder)}")
    if skipped:
        say(f"skipped: {', '.join(skipped)}")
    if not arguments.no_report and any(folder.glob("*.json")):
        import report

        report.main(["--results", str(folder)])
    return 0


def remove(path: Path) -> None:
    """Folders side by side: the system reads what it has to know of each file, and 100,000 would take a minute one by one."""
    if path.is_dir():
        with ThreadPoolExecutor(32) as pool:
            list(pool.map(shutil.rmtree, [part for part in path.iterdir() if part.is_dir()]))
        shutil.rmtree(path)
    path.unlink(missing_ok=True)


def results_folder(arguments: argparse.Namespace, context: Context, facts: dict[str, Any]) -> Path:
    """Trials are not kept beside the sources."""
    if arguments.results:
        return Path(arguments.results).resolve()
    name = f"{datetime.date.today().isoformat()}-{machine.slug(facts)}"
    return (Path(context.data).resolve() / "results" if arguments.quick else ROOT / "bench" / "results") / name


def needed(names: Sequence[str], context: Context) -> set[str]:
    """The generated files of the cases to come."""
    paths: set[str] = set()
    for name in names:
        with contextlib.suppress(Skip):
            paths |= {file.path for file in BUILDERS[name](context).files}
    return paths


def remove_all_but(kept: set[str], case: Case) -> None:
    """The disk has no room for the files of all cases at once."""
    for path in (Path(file.path) for file in case.files if file.path not in kept):
        remove(path)
        for made in path.parent.glob(f"{path.name}.*made"):
            made.unlink()


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
