"""Tables and plots from raw results: `python bench/report.py [--results FOLDER]`.

Without FOLDER: all under bench/results, one a day and machine, the newest first, told in bench/README.md between its markers.
Results that lie elsewhere get a README of their own beside them. Running it again changes nothing.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from harness import plots, results, tables
from harness.model import ROOT, relative

BEGIN = "<!-- results: made by bench/report.py from the raw numbers, not written by hand -->"
END = "<!-- end of results -->"

KEPT = ROOT / "bench" / "results"


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, prog="report")
    parser.add_argument("--results", help="folder of raw results")
    given = parser.parse_args(words).results
    folder = Path(given).resolve() if given else KEPT
    is_kept = folder.is_relative_to(KEPT)
    folders = [one for one in (results.all_in(KEPT) if is_kept else [folder]) if any(one.glob("*.json"))]
    if not folders:
        print(f"no results in {relative(folder)}", file=sys.stderr)
        return 1
    readme = ROOT / "bench" / "README.md" if is_kept else folder / "README.md"
    write(folders, readme)
    print(relative(readme))
    return 0


def write(folders: Sequence[Path], readme: Path) -> None:
    blocks = [told(folder, readme) for folder in folders]
    if len(folders) > 1:
        blocks = [f"## {folder.name}\n\n{block}" for folder, block in zip(folders, blocks, strict=True)]
    readme.write_text(between_markers(readme.read_text() if readme.exists() else "", "\n".join(blocks)))


def told(folder: Path, readme: Path) -> str:
    """The results in a folder; their plots are drawn beside them."""
    cases = results.load(folder)
    drawn = plots.draw(cases, folder / "plots")
    links = {name: os.path.relpath(path, readme.parent) for name, path in drawn.items()}
    raw = os.path.relpath(folder, readme.parent)
    return f"{tables.document(cases, links)}\nRaw numbers, with the exact command of every leg: [{raw}]({raw}).\n"


def between_markers(text: str, block: str) -> str:
    """`text` with `block` in place of what stood between the markers; without markers, at its end."""
    if BEGIN in text and END in text:
        before, after = text[: text.index(BEGIN)], text[text.index(END) + len(END) :]
    else:
        before, after = text + ("\n" if text and not text.endswith("\n\n") else ""), "\n"
    return f"{before}{BEGIN}\n\n{block}\n{END}{after}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
