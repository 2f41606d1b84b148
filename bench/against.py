"""Two versions of outcore by turns: `python bench/against.py TREE CASE ...`.

TREE is a checkout of another version whose module has been built (`_native` beside its Python files; examples in its
target folder). The legs of the cases that run outcore run with either package, on the same files, every second round in the other
order; nothing else is run. Raw results go to bench/results/versions/<date>-<machine>/.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import json
import os
import statistics
import sys
from pathlib import Path

from cases import BUILDERS
from harness import device, machine, runner
from harness.model import ROOT, Case, Context, Leg, relative
from run import Reporter, clean, needed, remove_all_but, room

BEFORE = "before: "


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, prog="against")
    parser.add_argument("tree", type=Path, help="checkout of the other version, built")
    parser.add_argument("cases", nargs="+", choices=list(BUILDERS), metavar="CASE", help="; ".join(BUILDERS))
    parser.add_argument("--data", default=str(ROOT / "scratch"), help="folder on the disk to measure")
    given = parser.parse_args(words)
    # Relative, so that results carry no one's home folder; legs run in the root.
    tree, data = Path(os.path.relpath(given.tree, ROOT)), Path(given.data).resolve() / "outcore-bench"
    os.chdir(ROOT)
    context = Context(relative(data), 1.0, room(data))
    data.mkdir(parents=True, exist_ok=True)
    facts = {
        "command": [relative(sys.executable), "bench/against.py", str(tree), *given.cases],
        "machine": machine.machine(data),
        "versions": machine.versions(),
        "environment": machine.environment(),
        "before": machine.sources(tree),
    }
    name = f"{datetime.date.today().isoformat()}-{machine.slug(facts['machine'])}"
    folder, say = ROOT / "bench" / "results" / "versions" / name, Reporter()
    try:
        with device.huge_pages_restored():
            for number, one in enumerate(given.cases):
                case = of_two(BUILDERS[one](context), tree)
                tell(runner.run_case(case, context, facts, folder, say), say)
                remove_all_but(needed(given.cases[number + 1 :], context), case)
    finally:
        clean(data)
    return 0


def of_two(case: Case, tree: Path) -> Case:
    """Our legs of a case, with either package."""
    legs = [pair for leg in case.legs if leg.name.startswith("outcore") for pair in (of_before(leg, tree), leg)]
    used = json.dumps([[dict(leg.spec), leg.cold] for leg in legs])
    files = [file for file in case.files if file.path in used]
    return dataclasses.replace(case, legs=legs, files=files, comparisons=(), measures=(), turned=True)


def of_before(leg: Leg, tree: Path) -> Leg:
    spec = dict(leg.spec)
    if "program" in spec:
        spec["program"] = str(tree / "target" / "release" / "examples" / Path(spec["program"]).name)
    environment = {**leg.environment, "PYTHONPATH": str(tree / "bindings" / "python")}
    return dataclasses.replace(leg, name=BEFORE + leg.name, spec=spec, environment=environment)


def tell(result: runner.Facts, say: Reporter) -> None:
    """The speed of today over that of before, round by round."""
    legs = {leg["name"]: leg for leg in result["legs"]}
    for name in (name for name in legs if not name.startswith(BEFORE)):
        pairs = zip(legs[BEFORE + name]["rounds"], legs[name]["rounds"], strict=True)
        ratios = [speed(after) / speed(before) for before, after in pairs if before["status"] == after["status"] == "ok"]
        say(f"{result['case']}: {name}: {', '.join(f'{ratio:.3f}' for ratio in ratios)} of before")


def speed(outcome: runner.Facts) -> float:
    return float(outcome["result"].get("work", 1.0) / statistics.median(outcome["result"]["seconds"]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
