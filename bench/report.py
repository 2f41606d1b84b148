"""Tables and plots from raw results: `python bench/report.py [--results FOLDER]`.

Each folder gets a README.md beside the raw numbers, with every run of every case. Without FOLDER, and for a folder under
bench/results, the headline tables in bench/README.md and README.md are made too, between their markers, and docs/headline.svg.
Running it again changes nothing.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from cases import FURTHER, HEADLINE
from harness import headline, plots, results, tables
from harness.model import ROOT, relative

BEGIN = "<!-- headline: made by bench/report.py from the raw numbers, not written by hand -->"
END = "<!-- end of headline -->"

KEPT = ROOT / "bench" / "results"


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, prog="report")
    parser.add_argument("--results", help="folder of raw results")
    given = parser.parse_args(words).results
    folder = Path(given).resolve() if given else KEPT
    is_kept = folder.is_relative_to(KEPT)
    folders = results.all_in(KEPT) if is_kept else [folder]
    if not any(any(one.glob("*.json")) for one in folders):
        print(f"no results in {relative(folder)}", file=sys.stderr)
        return 1
    for one in folders:
        write_details(one)
        print(relative(one / "README.md"))
    if is_kept:
        best, further = most_complete(folders), headline.further(folders, FURTHER)
        write_headline(best, ROOT / "bench" / "README.md", further)
        write_front(best, ROOT / "README.md", ROOT / "docs" / "headline.svg", further)
        print("bench/README.md\nREADME.md\ndocs/headline.svg")
    return 0


def write_details(folder: Path) -> None:
    runs = results.load(folder)
    drawn = plots.draw(runs, folder / "plots")
    links = {name: os.path.relpath(path, folder) for name, path in drawn.items()}
    (folder / "README.md").write_text(f"# {folder.name}\n\n{RULES}\n\n{tables.document(runs, links)}")


RULES = """Made by `bench/report.py` from the files beside it; [PROTOCOL.md](../../PROTOCOL.md) says how they were taken.
Each run of a case has a file of its own, with the exact command of every leg, and is told here; none is replaced by a later
one. What a case says in one number counts every complete run of the code that was measured last."""


def most_complete(folders: list[Path]) -> Path:
    """The newest of those that have the most cases of the headline: to measure one case alone does not take away the others."""

    def measured(folder: Path) -> int:
        return len(headline.measured(results.load(folder), HEADLINE))

    return max(sorted(folders), key=lambda folder: (measured(folder), folder.name))


Further = list[tuple[headline.Line, Path]]
"""Ratios of other cases, and the folder of each."""


def write_headline(folder: Path, readme: Path, further: Further) -> None:
    details = os.path.relpath(folder, readme.parent)
    made = headline.document(results.load(folder), HEADLINE)
    block = f"{made}\nEvery run of every case, with all legs: [{details}]({details}/README.md).\n"
    rows = [
        [
            line.work,
            line.against,
            *headline.numbers(line),
            line.rounds,
            f"[{of.name}]({os.path.relpath(of, readme.parent)}/README.md)",
        ]
        for line, of in further
    ]
    if rows:
        block += f"\nOther cases, each where it was measured last:\n\n{tables.table([*headline.HEADS, 'measured'], rows)}\n"
    readme.write_text(between_markers(readme.read_text(), block))


def write_front(folder: Path, readme: Path, picture: Path, further: Further) -> None:
    lines = headline.front(results.load(folder), HEADLINE) + [line for line, _ in further]
    if not lines:
        return
    rows = [[line.work, line.against, " (".join(headline.numbers(line)) + ")"] for line in lines]
    readme.write_text(between_markers(readme.read_text(), tables.table(["work", "against", "times as fast"], rows) + "\n"))
    plots.draw_headline(lines, picture)


def between_markers(text: str, block: str) -> str:
    """`text` with `block` in place of what stood between the markers."""
    before, after = text[: text.index(BEGIN)], text[text.index(END) + len(END) :]
    return f"{before}{BEGIN}\n\n{block}\n{END}{after}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
