"""Results in Markdown: the machine, the targets, and every case with its bound first."""

from __future__ import annotations

from typing import Any

from harness import results
from harness.model import GIB, MIB, UNIT_SIZE
from harness.spread import Spread, against_rival, against_target, spread

Case = dict[str, Any]


def document(cases: list[Case], plots: dict[str, str]) -> str:
    """`plots`: file by name of case, and `targets`."""
    measured = [case for case in cases if case["case"] != "device"]
    if not measured:
        return "No results.\n"
    parts = [conditions(cases), device_table(cases[0]["device"]), targets(measured)]
    if "targets" in plots:
        parts.append(f"![Ratio to what each comparison must reach]({plots['targets']})")
    for case in measured:
        parts.append(case_section(case))
        if case["case"] in plots:
            parts.append(f"![{case['title']}]({plots[case['case']]})")
    return "\n\n".join(parts) + "\n"


def conditions(cases: list[Case]) -> str:
    case = cases[0]
    machine, versions = case["machine"], case["versions"]
    disk = f"{machine['filesystem']} on {machine.get('disk_model', 'not told')} ({machine['disk']})"
    told = ", ".join(f"{name} {version}" for name, version in versions.items() if version != "absent")
    absent = ", ".join(name for name, version in versions.items() if version == "absent")
    variables = ", ".join(f"`{name}={value}`" for name, value in case["environment"].items()) or "none that matters"
    lines = [
        f"Measured {case['started'][:10]} on {machine['cpu']}, {machine['cores']} cores, {gib(machine['memory_bytes'])} of "
        f"memory, {machine['kernel']}, {disk}; scale {case['scale']:g}.",
        f"{commits(cases)} {told}.",
        f"Environment: {variables}. Load before the start: {case.get('load_before', 0.0):.2f}.",
    ]
    return "\n".join(lines + ([f"Not installed: {absent}."] if absent else []))


def commits(cases: list[Case]) -> str:
    """Cases may have been measured one by one while the work went on."""
    found: dict[str, list[str]] = {}
    for case in cases:
        if case["case"] != "device":
            changed = " with local changes" if case["sources"]["changed"] else ""
            found.setdefault(f"`{case['sources']['commit'][:12]}`{changed}", []).append(case["case"])
    if len(found) == 1:
        return f"Commit {next(iter(found))}."
    return " ".join(f"Commit {commit}: {', '.join(names)}." for commit, names in found.items())


def device_table(device: dict[str, Any]) -> str:
    if "absent" in device:
        return f"The device's limit is not known: {device['absent']}."
    rows = []
    for name, test in device.items():
        if "error" in test:
            rows.append([name, f"refused: {test['error']}", "", ""])
            continue
        rate = f"{test['bytes'] / test['seconds'] / 1e9:.2f} GB/s"
        rows.append([name, rate, f"{test['requests'] / test['seconds']:,.0f}", f"{test['latency_ns_p99'] / 1e3:,.0f}"])
    return "### The device's limit (fio, io_uring, direct)\n\n" + table(["access", "rate", "IOPS", "p99, microseconds"], rows)


def targets(cases: list[Case]) -> str:
    rows = [row for case in cases for row in target_rows(case)]
    return "### What was reached\n\n" + table(["work", "against", "at least", "reached", "in words"], rows)


def target_rows(case: Case) -> list[list[str]]:
    rows = []
    for comparison in case["comparisons"]:
        found, target = results.compare(case, comparison), comparison["at_least"]
        reached, words = ratio_in_words(found, target)
        rows.append([case["case"], comparison["against"], f"{target:g}" if target else "", reached, words])
    return rows + bytes_rows(case) + device_rows(case) + measure_rows(case) + variance_rows(case)


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


def bytes_rows(case: Case) -> list[list[str]]:
    at_most, leg = case["bound"]["bytes_at_most"], results.leg_of(case, "outcore")
    moved = results.moved_bytes(leg) if leg else None
    if at_most is None or moved is None:
        return []
    share = moved / bound_bytes(case)
    return [
        [case["case"], "bytes of the bound", f"at most {at_most:g}", f"{share:.2f}", "reached" if share <= at_most else "missed"]
    ]


def device_rows(case: Case) -> list[list[str]]:
    """The device's limit is a target where moving the bytes takes longer than the arithmetic."""
    target, leg = case["bound"].get("speed_at_least"), results.leg_of(case, "outcore")
    found, needed = results.rate_spread(case, leg) if leg else None, results.bound_seconds(case)
    if leg is None or found is None or target is None or "device" not in needed:
        return []
    share = needed["device"] / seconds_of(case, leg, found)
    word = "reached" if share >= target else "missed"
    words = f"{word}; the device binds" if binding(needed) == "device" else "open; the cores bind"
    return [[case["case"], "the device's limit", f"{target:g}", f"{share:.2f}", words]]


def binding(needed: dict[str, float]) -> str:
    return max(needed, key=lambda part: needed[part])


def seconds_of(case: Case, leg: dict[str, Any], found: Spread) -> float:
    return 1 / found.median if case["unit"] == "s" else float(leg["work"]) / found.median


def measure_rows(case: Case) -> list[list[str]]:
    rows = []
    for measure in case.get("measures", []):
        leg = results.leg_of(case, measure["leg"])
        found = results.measured(leg, measure["key"]) if leg else None
        least, most = measure["at_least"], measure["at_most"]
        if found is not None:
            target = f"at most {most:.2f}" if least is None else f"{least:g}"
            word = "reached" if (least is None or found >= least) and (most is None or found <= most) else "missed"
            rows.append([case["case"], measure["against"], target, f"{found:.2f}", word])
    return rows


def variance_rows(case: Case) -> list[list[str]]:
    shares = {leg["name"]: results.first(leg, "captured_variance") for leg in case["legs"]}
    told = {name: share for name, share in shares.items() if share is not None}
    if len(told) < 2:
        return []
    (ours, own), *others = told.items()
    best = max(share for _, share in others)
    # Rounding in the check itself, 8192 rows in double precision, is far below this.
    word = "reached" if own >= best - 1e-6 else "missed"
    return [[case["case"], "captured variance of the rivals", f"{best:.6f}", f"{own:.6f}", f"{word} ({ours})"]]


def case_section(case: Case) -> str:
    heads = ["leg", case["unit"], "lowest to highest", "rounds", "GiB read", "GiB written", "of the bound's bytes"]
    heads += ["of the bound's speed", "cores busy", "peak memory", "unevenness"]
    rows = [leg_row(case, leg) for leg in case["legs"]]
    notes = [
        f"- {note}"
        for note in [*limit_notes(case), *case["notes"], *sweep_notes(case), *prepare_notes(case), *variance_notes(case)]
    ]
    tables = [table(heads, rows), *parts_table(case)]
    return "\n\n".join([f"### {case['title']}", bound_text(case), *tables, *(["\n".join(notes)] if notes else [])])


def parts_table(case: Case) -> list[str]:
    """What the time of each leg went by for, where legs tell."""
    told = [(leg["name"], results.parts(leg)) for leg in case["legs"]]
    names = next((list(found) for _, found in told if found), None)
    if names is None:
        return []
    rows = [[name, *(f"{found[part]:.2f}" for part in names)] for name, found in told if found]
    return [table(["leg", *(f"{part}, s" for part in names)], rows)]


def bound_text(case: Case) -> str:
    bound, parts = case["bound"], []
    if bound["flops"]:
        parts.append(f"{bound['flops'] / 1e9:,.4g} GFLOP")
    if bound["read_bytes"]:
        parts.append(f"{gib(bound['read_bytes'])} read")
    if bound["written_bytes"]:
        parts.append(f"{gib(bound['written_bytes'])} written")
    needed = results.bound_seconds(case)
    seconds = [f"{name} {value:.2f} s" for name, value in needed.items()]
    binds = f"; the {binding(needed)} {'bind' if binding(needed) == 'cores' else 'binds'}" if len(needed) > 1 else ""
    note = f" ({bound['note']})" if bound["note"] else ""
    text = f"Bound: {', '.join(parts)}{note}." if parts else f"Bound: {bound['note'] or 'the fastest kernel here'}."
    return text + (f" At least: {', '.join(seconds)}{binds}." if seconds else "")


def leg_row(case: Case, leg: dict[str, Any]) -> list[str]:
    found = results.rate_spread(case, leg)
    done = results.finished(leg)
    read, written = results.mean_of(leg, "read_bytes"), results.mean_of(leg, "written_bytes")
    moved, peak, cpu = results.moved_bytes(leg), results.peak_bytes(leg), results.cpu_share(leg)
    uneven = results.measured(leg, "unevenness")
    stored = bool(leg["cold"])
    if found and case["unit"] == "s" and leg["name"] == case["bound"]["core_leg"]:
        # It does other work than the case, to tell the speed of the cores; its seconds would mislead.
        speed = spread([results.work_rate(leg, outcome, False) for outcome in done])
        return [leg["name"], f"{speed.median / 1e9:.4g} GFLOP/s", "", f"{len(done)}", *[""] * 7]
    return [
        leg["name"],
        shown(case, found) if found else results.endings(leg) or "not run",
        " to ".join(shown_number(case, value) for value in range_of(case, found)) if found else "",
        f"{len(done)}",
        f"{read / GIB:.2f}" if read is not None and stored else "",
        f"{written / GIB:.2f}" if written is not None and stored else "",
        f"{moved / bound_bytes(case):.2f}" if moved is not None and stored and bound_bytes(case) else "",
        share_of_bound(case, leg, found),
        f"{cpu:.2f}" if cpu is not None else "",
        # Of a leg that starts another program, the memory of that program was not watched.
        f"{peak / MIB:,.0f} MiB" if peak and not leg["function"].startswith("tools.") else "",
        f"{uneven:,.2f}" if uneven is not None else "",
    ]


def share_of_bound(case: Case, leg: dict[str, Any], found: Spread | None) -> str:
    """Of the seconds that cores or device need; streams and gathers: of the device's own rate."""
    if found is None or leg["name"] == case["bound"]["core_leg"]:
        return ""
    limit = device_limit(case)
    if limit is not None:
        return f"{found.median / limit:.2f}"
    needed = results.bound_seconds(case)
    if not needed:
        return ""
    return f"{max(needed.values()) / seconds_of(case, leg, found):.2f}"


def device_limit(case: Case) -> float | None:
    if case["unit"] == "GB/s":
        return results.device_rate(case["device"], "sequential read", "bytes")
    if case["unit"] == "IOPS":
        test = "random read 512 B" if case["case"].endswith("-512B") else "random read 4 KiB"
        return results.device_rate(case["device"], test, "requests")
    return None


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
            words = (
                " ".join(map(str, best["arguments"][2:]))
                if "arguments" in best
                else ", ".join(f"{k} {v}" for k, v in best.items())
            )
            notes.append(f"{leg['name']}: best of {len(leg['sweep'])} settings: {words}.")
    return notes


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


def bound_bytes(case: Case) -> float:
    return float(case["bound"]["read_bytes"] + case["bound"]["written_bytes"])


def shown(case: Case, found: Spread) -> str:
    return shown_number(case, found.median)


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
