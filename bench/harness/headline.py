"""The table of bench/README.md: a few ratios of a few cases, from the last folder of results that has them."""

from __future__ import annotations

from collections.abc import Sequence

from harness import results, tables
from harness.spread import spread

HEADS = ["work", "against", "ratio", "lowest to highest", "runs"]


def document(runs: list[results.Run], names: Sequence[str]) -> str:
    """A case in some lines: one each for the comparisons that are marked, and one for the share of its bound."""
    found = measured(runs, names)
    rows = [row for counted in found.values() for row in case_rows(counted)]
    if not rows:
        return "Not measured yet.\n"
    code = ", ".join(dict.fromkeys(tables.code(run) for counted in found.values() for run in counted))
    gaps = [words for counted in found.values() for words in tables.missing_words(counted)]
    missing = [name for name in names if name not in found]
    parts = [tables.conditions(runs[-1]), f"Code: {code}.", tables.table(HEADS, rows), *gaps]
    if missing:
        parts.append(f"Not measured: {', '.join(missing)}.")
    return "\n\n".join(parts) + "\n"


def measured(runs: list[results.Run], names: Sequence[str]) -> dict[str, list[results.Run]]:
    """The runs that count of each case that has some; trials do not."""
    found = results.by_case([run for run in runs if not run["quick"]])
    counted = {name: results.counted(found.get(name, [])) for name in names}
    return {name: runs for name, runs in counted.items() if runs}


def case_rows(runs: list[results.Run]) -> list[list[str]]:
    last, rows = runs[-1], []
    for comparison in last["comparisons"]:
        if comparison["headline"]:
            found = results.compare(runs, comparison["against"])
            reached, _ = tables.ratio_in_words(found, None)
            ratio = found.ratio if found else None
            told = [f"**{ratio.median:.2f}**", f"{ratio.low:.2f} to {ratio.high:.2f}"] if ratio else [reached, ""]
            rows.append([comparison["against"], *told])
    shares = [pair for run in runs if (leg := tables.ours_of(run)) for pair in results.bound_shares(run, leg)]
    if shares and last["bound"]["headline"]:
        share = spread([value for _, value in shares])
        words = f"the machine's limit: {tables.binding_words(shares[-1][0])}"
        rows.append([words, f"**{share.median:.2f}**", f"{share.low:.2f} to {share.high:.2f}"])
    works = [last["headline"], *[""] * (len(rows) - 1)]
    return [[work, *row, f"{len(runs)} x {last['rounds']}"] for work, row in zip(works, rows, strict=False)]
