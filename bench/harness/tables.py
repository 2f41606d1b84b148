"""Results in Markdown: the machine, and of every case all of its runs, with the bound first."""

from __future__ import annotations

from typing import Any

from harness import results
from harness.model import GIB, MIB, UNIT_SIZE
from harness.spread import Spread, against_rival, against_target, spread

Case = dict[str, Any]


def document(runs: list[Case], plots: dict[str, str]) -> str:
    """Everything that a folder of results says. `plots`: file by name of case."""
    if not runs:
        return "No results.\n"
    parts = [conditions(runs[-1]), *(quick_words(run) for run in runs if run["quick"])]
    for case, found in results.by_case(runs).items():
        parts.append(case_section(found))
        if case in plots:
            parts.append(f"![{found[-1]['title']}]({plots[case]})")
        parts += [run_section(run) for run in reversed(found)]
    return "\n\n".join(dict.fromkeys(parts)) + "\n"


def quick_words(run: Case) -> str:
    return f"**{run['case']}: a trial of small size and one round, which measures nothing.**"


def conditions(run: Case) -> str:
    machine, versions = run["machine"], run["versions"]
    disk = f"{machine['filesystem']} on {machine.get('disk_model', 'not told')} ({machine['disk']})"
    told = ", ".join(f"{name} {version}" for name, version in versions.items() if version != "absent")
    absent = ", ".join(name for name, version in versions.items() if version == "absent")
    variables = ", ".join(f"`{name}={value}`" for name, value in run["environment"].items()) or "none that matters"
    lines = [
        f"Measured {run['started'][:10]} on {machine['cpu']}, {machine['cores']} cores, {gib(machine['memory_bytes'])} of "
        f"memory, {machine['kernel']}, {disk}.",
        f"{told}. Environment: {variables}.",
    ]
    return "\n".join(lines + ([f"Not installed: {absent}."] if absent else []))


def code(run: Case) -> str:
    """The commit, and whether what ran was just that."""
    changed = run["sources"]["changed"]
    mark = f" **and {len(changed)} uncommitted file{'s' if len(changed) > 1 else ''}**" if changed else ""
    return f"`{run['sources']['commit'][:12]}`{mark}"


def case_section(runs: list[Case]) -> str:
    """What all counted runs of a case say together, then each run in a line."""
    last, counted = runs[-1], results.counted(runs)
    heads = [f"## {last['case']}", f"{last['title']}."]
    rows = target_rows(counted)
    together = (
        table(["against", "at least", "ratio, median (lowest to highest)", "in words"], rows) if rows else "No complete run."
    )
    return "\n\n".join([*heads, together, *missing_words(counted), runs_table(runs)])


def missing_words(runs: list[Case]) -> list[str]:
    missing = {name for run in runs for name in results.missing_limits(run)}
    case = runs[-1]["case"] if runs else ""
    return [f"**{case}: the device's limit may be too low, for these failed: {'; '.join(sorted(missing))}.**"] if missing else []


def why_not(run: Case, last: Case) -> str:
    if not results.is_complete(run):
        return "interrupted"
    return "other code since" if run["title"] == last["title"] else f"other work: {run['title']}"


def runs_table(runs: list[Case]) -> str:
    """Every run, in the order in which they began, those that do not count too."""
    names = [comparison["against"] for comparison in runs[-1]["comparisons"]]
    heads = ["run", "code", "rounds", "load before", "counted", *names, *(["bound"] if any(map(own_shares, runs)) else [])]
    counted = results.counted(runs)
    rows = []
    for run in runs:
        done = min((len(leg["rounds"]) for leg in run["legs"] if not results.endings(leg)), default=0)
        ratios = [results.compare([run], name) for name in names]
        shares = own_shares(run)
        rows.append(
            [
                run["started"][:16].replace("T", " "),
                code(run),
                f"{done} of {run['rounds']}",
                f"{run['load_before']:.2f}",
                "yes" if run in counted else why_not(run, runs[-1]),
                *(f"{found.ratio.median:.2f}" if found and found.ratio else "" for found in ratios),
                *([f"{spread(shares).median:.2f}" if shares else ""] if "bound" in heads else []),
            ]
        )
    return "Every run (medians):\n\n" + table(heads, rows)


def target_rows(runs: list[Case]) -> list[list[str]]:
    rows = []
    for comparison in runs[-1]["comparisons"] if runs else ():
        found, target = results.compare(runs, comparison["against"]), comparison["at_least"]
        reached, words = ratio_in_words(found, target)
        rows.append([comparison["against"], f"{target:g}" if target else "", reached, words])
    for run in runs[-1:]:
        rows += [*bound_rows(runs), *bytes_rows(run), *measure_rows(run), *quality_rows(run)]
    return rows


def ratio_in_words(found: results.Ratio | None, target: float | None) -> tuple[str, str]:
    if found is None:
        return "not measured", ""
    if found.ratio is None:
        if found.at_least is None:
            return "no rival finished", found.rival
        word = "" if target is None else "reached; " if found.at_least >= target else "open; "
        return f"> {found.at_least:.2f}", f"{word}{found.rival}"
    words = [against_target(found.ratio, target)] if target else []
    if found.ratio.count == 1:
        words.append("one round, noise unknown")
    return ranged(found.ratio), "; ".join([*words, f"{against_rival(found.ratio)}, against {found.rival}"])


def own_shares(run: Case) -> list[float]:
    leg = ours_of(run)
    return [share for _, share in results.bound_shares(run, leg)] if leg else []


def ours_of(run: Case) -> results.Leg | None:
    """The leg that is held against the bound: ours, the first of a case."""
    return next((leg for leg in run["legs"] if leg["name"].startswith("outcore")), None)


def bound_rows(runs: list[Case]) -> list[list[str]]:
    """The share of the bound is a target where the device binds; else it says what the cores leave."""
    found = [pair for run in runs if (leg := ours_of(run)) for pair in results.bound_shares(run, leg)]
    if not found:
        return []
    shares, target = spread([share for _, share in found]), runs[-1]["bound"].get("speed_at_least")
    binds = found[-1][0]
    if target is None:
        return [[f"the bound ({binding_words(binds)})", "", ranged(shares), ""]]
    words = against_target(shares, target) if binds != "cores" else "no target: the cores bind"
    return [[f"the bound ({binding_words(binds)})", f"{target:g}", ranged(shares), words]]


def binding_words(part: str) -> str:
    return {"cores": "the cores bind", "reading": "the device binds, reading", "writing": "the device binds, writing"}[part]


def bytes_rows(run: Case) -> list[list[str]]:
    at_most, leg = run["bound"]["bytes_at_most"], ours_of(run)
    moved = results.moved_bytes(leg) if leg else None
    if at_most is None or moved is None:
        return []
    share = moved / bound_bytes(run)
    return [["bytes of the bound", f"at most {at_most:g}", f"{share:.2f}", "reached" if share <= at_most else "missed"]]


def measure_rows(run: Case) -> list[list[str]]:
    rows = []
    for measure in run.get("measures", []):
        leg = results.leg_of(run, measure["leg"])
        found = results.measured(leg, measure["key"]) if leg else None
        least, most = measure["at_least"], measure["at_most"]
        if found is not None:
            target = f"{least:g}" if least is not None else f"at most {most:.2f}" if most is not None else ""
            word = "reached" if (least is None or found >= least) and (most is None or found <= most) else "missed"
            rows.append([measure["against"], target, f"{found:.2f}", word if target else ""])
    return rows


QUALITIES = {"captured_variance": ("captured variance", 6), "npmi": ("NPMI", 3)}
"""What legs tell of their results, in words, and the digits that count: rounding in the check itself is far below."""


def quality_rows(run: Case) -> list[list[str]]:
    rows = []
    for key, (words, digits) in QUALITIES.items():
        found = {leg["name"]: results.first(leg, key) for leg in run["legs"]}
        told = {name: value for name, value in found.items() if value is not None}
        if len(told) >= 2:
            (ours, own), *others = told.items()
            best = max(value for _, value in others)
            word = "reached" if own >= best - 10**-digits else "missed"
            rows.append([f"{words} of the rivals", f"{best:.{digits}f}", f"{own:.{digits}f}", f"{word} ({ours})"])
    return rows


def run_section(run: Case) -> str:
    heads = ["leg", run["unit"], "lowest to highest", "rounds", "GiB read", "GiB written", "of the bound's bytes"]
    heads += ["of the bound", "cores busy", "peak memory", "unevenness"]
    rows = [leg_row(run, leg) for leg in run["legs"]]
    told = [
        *limit_notes(run),
        *run["notes"],
        *sweep_notes(run),
        *prepare_notes(run),
        *variance_notes(run),
        *topic_notes(run),
        *residual_notes(run),
    ]
    notes = [f"- {note}" for note in told]
    began = f"### {run['case']}, {run['started'][:16].replace('T', ' ')}"
    tables = [table(heads, rows), *parts_table(run)]
    return "\n\n".join([began, f"Code: {code(run)}. {bound_text(run)}", *tables, *(["\n".join(notes)] if notes else [])])


def parts_table(case: Case) -> list[str]:
    """What the time of each leg went by for, where legs tell."""
    told = [(leg["name"], results.parts(leg)) for leg in case["legs"]]
    names = next((list(found) for _, found in told if found), None)
    if names is None:
        return []
    rows = [[name, *(f"{found[part]:.2f}" for part in names)] for name, found in told if found]
    return [table(["leg", *(f"{part}, s" for part in names)], rows)]


def bound_text(run: Case) -> str:
    bound, parts = run["bound"], []
    if bound["flops"]:
        parts.append(f"{bound['flops'] / 1e9:,.4g} GFLOP")
    if bound["read_bytes"]:
        parts.append(f"{gib(bound['read_bytes'])} read")
    if bound["written_bytes"]:
        parts.append(f"{gib(bound['written_bytes'])} written")
    note = f" ({bound['note']})" if bound["note"] else ""
    text = f"Bound: {', '.join(parts)}{note}." if parts else f"Bound: {bound['note'] or 'the fastest kernel here'}."
    needed = [found for found in results.bound_seconds(run) if found]
    if not needed:
        return text
    seconds = {name: spread([found[name] for found in needed if name in found]).median for name in needed[0]}
    told = ", ".join(f"{name} {value:.2f} s" for name, value in seconds.items())
    return f"{text} At least: {told}; {binding_words(max(seconds, key=lambda name: seconds[name]))}."


def leg_row(run: Case, leg: dict[str, Any]) -> list[str]:
    found = results.rate_spread(run, leg)
    done = results.finished(leg)
    if leg["access"]:
        return device_row(leg)
    read, written = results.mean_of(leg, "read_bytes"), results.mean_of(leg, "written_bytes")
    moved, peak, cpu = results.moved_bytes(leg), results.peak_bytes(leg), results.cpu_share(leg)
    uneven = results.measured(leg, "unevenness")
    stored = bool(leg["cold"])
    if found and run["unit"] == "s" and leg["name"] == run["bound"]["core_leg"]:
        # It does other work than the case, to tell the speed of the cores; its seconds would mislead.
        speed = spread([results.work_rate(leg, outcome, False) for outcome in done])
        return [leg["name"], f"{speed.median / 1e9:.4g} GFLOP/s", "", f"{len(done)}", *[""] * 7]
    shares = [share for _, share in results.bound_shares(run, leg)] if leg["name"] != run["bound"]["core_leg"] else []
    return [
        leg["name"],
        shown_number(run, found.median) if found else results.endings(leg) or "not run",
        " to ".join(shown_number(run, value) for value in range_of(run, found)) if found else "",
        f"{len(done)}",
        f"{read / GIB:.2f}" if read is not None and stored else "",
        f"{written / GIB:.2f}" if written is not None and stored else "",
        f"{moved / bound_bytes(run):.2f}" if moved is not None and stored and bound_bytes(run) else "",
        f"{spread(shares).median:.2f}" if shares else "",
        f"{cpu:.2f}" if cpu is not None else "",
        # Of a leg that starts another program, the memory of that program was not watched.
        f"{peak / MIB:,.0f} MiB" if peak and not leg["function"].startswith("tools.") else "",
        f"{uneven:,.2f}" if uneven is not None else "",
    ]


def device_row(leg: dict[str, Any]) -> list[str]:
    """Of the device, whatever the case counts: bytes a second."""
    done = results.finished(leg)
    speeds = [outcome["result"]["bytes"] / results.samples(outcome).median / 1e9 for outcome in done]
    if not speeds:
        return [leg["name"], results.endings(leg) or "not run", *[""] * 9]
    found = spread(speeds)
    return [leg["name"], f"{found.median:.4g} GB/s", f"{found.low:.4g} to {found.high:.4g}", f"{found.count}", *[""] * 7]


def limit_notes(case: Case) -> list[str]:
    limit = case["limit"]
    if not limit:
        return []
    if "bytes" in limit:
        return [f"Process limit {limit['bytes'] / MIB:,.0f} MiB, by {limit['sentence']}."]
    imports = [round(size / MIB) for size in limit["baseline_bytes"].values()]
    told = f"{min(imports):,} MiB" if min(imports) == max(imports) else f"{min(imports):,} to {max(imports):,} MiB"
    data = f"{limit['data_bytes'] / MIB:,.0f} MiB for data, and what interpreter and imports of each leg take ({told})"
    return [f"Process limit {data}, by {limit['sentence']}."]


def sweep_notes(case: Case) -> list[str]:
    notes = []
    for leg in case["legs"]:
        tried = [entry for entry in leg["sweep"] if entry["rate"]]
        if tried:
            best = max(tried, key=lambda entry: entry["rate"])["options"]
            words = " ".join(map(str, best["arguments"][2:])) if "arguments" in best else setting_words(best)
            notes.append(f"{leg['name']}: best of {len(leg['sweep'])} settings: {words}.")
    return notes


def setting_words(options: dict[str, Any]) -> str:
    told = [f"{name} {value}" for name, value in options.items() if name not in ("fixedbufs", "registerfiles", "group_reporting")]
    return ", ".join([*told, *(["registered buffers and files"] if "fixedbufs" in options else [])])


def prepare_notes(case: Case) -> list[str]:
    told = {leg["name"]: results.first(leg, "prepare_s") for leg in case["legs"]}
    return [f"{name}: prepared in {seconds:.2f} s before the clock starts." for name, seconds in told.items() if seconds]


def variance_notes(case: Case) -> list[str]:
    notes = []
    for leg in case["legs"]:
        captured, own = results.first(leg, "captured_variance"), results.first(leg, "explained_variance_ratio")
        if captured is not None:
            notes.append(f"{leg['name']}: captured variance {captured:.6f}, its own explained_variance_ratio_ sums to {own:.6f}.")
    return notes


def topic_notes(case: Case) -> list[str]:
    notes = []
    for leg in case["legs"]:
        npmi, diversity = results.first(leg, "npmi"), results.first(leg, "diversity")
        if npmi is not None:
            notes.append(f"{leg['name']}: NPMI {npmi:.3f} on documents held out, diversity {diversity:.2f}.")
    return notes


def residual_notes(case: Case) -> list[str]:
    notes = []
    for leg in case["legs"]:
        residual, passes = results.first(leg, "residual"), results.first(leg, "passes")
        if residual is not None:
            told = f", {passes} passes" if passes is not None else ""
            notes.append(f"{leg['name']}: residuals up to {residual:.2g} of what they may be{told}.")
    return notes


def bound_bytes(case: Case) -> float:
    return float(case["bound"]["read_bytes"] + case["bound"]["written_bytes"])


def shown_number(case: Case, value: float) -> str:
    """Rates in the case's unit; where time is the measure, the seconds themselves."""
    number = 1 / value if case["unit"] == "s" else value / UNIT_SIZE[case["unit"]]
    return f"{number:,.0f}" if number >= 1000 else f"{number:.4g}"


def range_of(case: Case, found: Spread) -> tuple[float, float]:
    """Lowest and highest as shown: the highest rate is the lowest time."""
    return (found.high, found.low) if case["unit"] == "s" else (found.low, found.high)


def ranged(found: Spread) -> str:
    return f"{found.median:.2f} ({found.low:.2f} to {found.high:.2f})"


def gib(size: float) -> str:
    return f"{size / GIB:.1f} GiB" if size >= GIB else f"{size / MIB:.1f} MiB"


def table(heads: list[str], rows: list[list[str]]) -> str:
    """Columns in which no row says anything are left out."""
    kept = [i for i in range(len(heads)) if i == 0 or any(row[i] for row in rows)]
    lines = [[heads[i] for i in kept], ["---"] * len(kept), *([row[i].replace("|", "\\|") for i in kept] for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
