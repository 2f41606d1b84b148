"""The command that measures nearest neighbours over ranks: `outcore bench-knn`."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from ._commands import SEED, say, session_of, session_options
from ._units import parse_bytes

DESIGN_NAMES = ("mpi", "mpi_o", "mpi_rma", "osh_ow", "osh_om", "osh_oc")
ALONE = "alone"
"""One process without MPI, in place of a design."""
FOUR_SLOTS = ("mpi_rma", "osh_oc")
MEMORY = "64MiB"


@click.command("bench-knn")
@click.argument("folder", type=click.Path(file_okay=False, exists=True))
@click.option("--workload", type=click.Choice(["xs", "1m", "kdd"]), default="xs", show_default=True, help="Of the paper.")
@click.option("--rows", type=click.IntRange(1), help="Rows to compare with; default those of the workload.")
@click.option("--queries", type=click.IntRange(1), help="Rows to classify; default those of the workload.")
@click.option("-k", "--neighbors", type=click.IntRange(1), default=5, show_default=True)
@click.option("--design", "designs", multiple=True, type=click.Choice(DESIGN_NAMES), help="Default all that begin here.")
@click.option("--ranks", multiple=True, type=click.IntRange(1, 250), default=[2], show_default=True)
@click.option("--weak", is_flag=True, help="Rows and queries are for one rank, and grow with the number of ranks.")
@click.option(
    "--times", type=click.IntRange(1), default=3, show_default=True, help="Each design is run, in turn with the others."
)
@click.option(
    "--skew", type=click.FloatRange(0, 1), default=0.0, show_default=True, help="Ranks are slow in turn: see workloads."
)
@click.option("--equal-slots", is_flag=True, help="Designs with four slots have twice the memory of those with two.")
@click.option("--rate", metavar="RATE", help="Ranks in network namespaces, joined by links such as 200mbit; needs root.")
@click.option(
    "--latency", type=click.FloatRange(0), metavar="MS", default=0.0, show_default=True, help="Of these links, in milliseconds."
)
@click.option("--loopback", is_flag=True, help="Messages pass TCP of this machine: no memory is shared, as between machines.")
@click.option("--timeout", type=click.FloatRange(1), default=600.0, show_default=True, help="Seconds of a run.")
@click.option("--bind/--no-bind", default=False, show_default=True, help="Each rank on one core.")
@click.option("--seed", type=SEED, default=1, show_default=True)
@click.option("--results", type=click.Path(file_okay=False), help="Folder for a JSON file of each run.")
@click.option("--figures", type=click.Path(file_okay=False), help="Folder for the figures.")
@click.option(
    "--simulate",
    type=click.IntRange(2, 4096),
    metavar="RANKS",
    help="Also simulate, up to this number of ranks, by constants of the runs of 2, mpi among them; with --bind, where ranks "
    "share cores, also by runs of 2 on one core.",
)
@session_options
def bench_knn(
    folder: str,
    workload: str,
    rows: int | None,
    queries: int | None,
    neighbors: int,
    designs: tuple[str, ...],
    ranks: tuple[int, ...],
    weak: bool,
    times: int,
    skew: float,
    equal_slots: bool,
    rate: str | None,
    latency: float,
    loopback: bool,
    timeout: float,
    bind: bool,
    seed: int,
    results: str | None,
    figures: str | None,
    simulate: int | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Measure `outcore knn` under mpirun, as the paper on k-NN with MPI and OpenSHMEM did: designs by numbers of ranks.

    FOLDER gets rows like those of KDD Cup 2010, if they are not there yet. Times of a round are split into computing, waiting and
    exchanging. Exit status 1 if designs give different labels, or none gives any.
    """
    from .knn_bench.workloads import WORKLOADS, written

    if latency and rate is None:
        raise click.UsageError("--latency is that of links, which --rate makes")
    session_of(options)
    size = WORKLOADS[workload]
    size = replace(size, rows=rows or size.rows, queries=queries or size.queries)
    memory = parse_bytes(options["memory"] or MEMORY, "memory")
    given = [
        word
        for name in ("scratch", "threads", "driver", "blas")
        if options[name] is not None
        for word in (f"--{name}", str(options[name]))
    ]

    # The labels of the same rows and queries, whatever the ranks.
    labels: dict[tuple[int, int], str] = {}

    def runs(count: int, cores: int | None = None) -> list[dict[str, Any]]:
        factor = count if weak else 1
        own = replace(size, rows=size.rows * factor, queries=size.queries * factor)
        train, test = written(folder, own, seed=seed, skew=skew)
        facts = {"workload": workload, "weak": weak, "skew": skew, "equal_slots": equal_slots, "seed": seed}
        case = {"train": train, "test": test, "neighbors": neighbors, "rate": rate, "latency_s": latency / 1000, "bind": bind}
        case |= {"loopback": loopback, "timeout_s": timeout, "cores": cores}
        return _case(count, designs, times, memory, equal_slots, given, facts, results, not as_json, case, labels)

    found = [one for count in ranks for one in runs(count)]
    told = _told(found)
    predicted = []
    if simulate is not None:
        shares_cores = bind and max(ranks) > len(os.sched_getaffinity(0))
        predicted = _simulated(found, simulate, runs(2, cores=1) if shares_cores else [])
    drawn = _drawn(found, predicted, figures)
    if as_json:
        say({"results": found, "hidden": told, "predicted": predicted, "figures": drawn}, True)
    else:
        _show(told, predicted, drawn)
    if not found or not all(one["agrees"] for one in found):
        raise SystemExit(1)


def _case(
    count: int,
    designs: tuple[str, ...],
    times: int,
    memory: int,
    equal_slots: bool,
    given: list[str],
    facts: dict[str, Any],
    results: str | None,
    tell: bool,
    case: dict[str, Any],
    labels: dict[tuple[int, int], str],
) -> list[dict[str, Any]]:
    """All designs on a number of ranks, in turn."""
    import contextlib

    from .errors import FailedError
    from .knn_bench.run import measure
    from .knn_bench.wire import Wire

    rate, latency_s = case.pop("rate"), case.pop("latency_s")
    left = list(designs or DESIGN_NAMES) if count > 1 else [ALONE]
    found: list[dict[str, Any]] = []
    with contextlib.ExitStack() as opened:
        wire = opened.enter_context(Wire(count, rate, latency_s)) if rate is not None and count > 1 else None
        for time in range(times):
            for design in tuple(left):
                own = memory * 2 if equal_slots and design in FOUR_SLOTS else memory
                try:
                    one = measure(
                        ranks=count,
                        design=None if design == ALONE else design,
                        options=["--memory", str(own), *given],
                        wire=wire,
                        **case,
                    )
                except FailedError as error:
                    if designs:
                        raise
                    # What does not begin here is left out.
                    click.echo(f"{design} is left out: {error}", err=True)
                    left.remove(design)
                    continue
                one |= {**facts, "time": time, "memory": own}
                one["agrees"] = one["labels_sha256"] == labels.setdefault((one["rows"], one["queries"]), one["labels_sha256"])
                found.append(one)
                if tell:
                    _line(one)
                if results is not None:
                    _keep(one, Path(results))
    return found


def _keep(one: dict[str, Any], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    name = "-".join(
        [one["workload"], f"{one['rows']}x{one['queries']}", *(["weak"] if one["weak"] else [])]
        + [f"skew{one['skew']:g}"] * bool(one["skew"])
        + (
            [one["rate"], *[f"{1000 * one['latency_s']:g}ms"] * bool(one["latency_s"])]
            if "rate" in one
            else ["loopback"] * one["loopback"]
        )
        + ["bound"] * one["bound"]
        + ["1core"] * (one["cores"] == 1)
        + [f"{one['memory'] >> 20}MiB", f"k{one['k']}", f"seed{one['seed']}"]
        + [f"{one['n_ranks']}ranks", one["design"], str(one["time"])]
    )
    (folder / f"{name}.json").write_text(json.dumps(one, indent=1))


def _line(one: dict[str, Any]) -> None:
    parts = ", ".join(f"{name.removesuffix('_s')} {one[name]:.3f}" for name in ("computing_s", "waiting_s", "exchanging_s"))
    steps = f"load {one['load_s']:.2f}, fit {one['fit_s']:.2f}, search {one['search_s']:.3f} s"
    differs = "" if one["agrees"] else "  LABELS DIFFER"
    what = f"{one['design']:<8}{one['n_ranks']:>3} ranks  {steps}  ring {one['ring_s']:.3f} ({parts})"
    print(f"{what}  {one['rounds']} rounds, {one['bytes_sent']:,} bytes sent{differs}", flush=True)


def _told(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What designs save against `mpi`, for each number of ranks."""
    from .knn_bench.run import hidden

    counts = dict.fromkeys(one["n_ranks"] for one in found)
    return [{"n_ranks": count, **one} for count in counts for one in hidden([run for run in found if run["n_ranks"] == count])]


def _simulated(found: list[dict[str, Any]], most: int, crowded: list[dict[str, Any]]) -> list[dict[str, Any]]:
    from .knn_bench.simulation import predictions

    return predictions(found, most, crowded)


def _show(told: list[dict[str, Any]], predicted: list[dict[str, Any]], drawn: list[str]) -> None:
    for one in told:
        print(
            f"{one['n_ranks']:>4} ranks {one['design']:<8} median ring {one['ring_s']:.3f} s, saves {100 * one['saved']:.1f} %, "
            f"{100 * one['hidden']:.0f} % of what mpi waits and exchanges; itself does so {100 * one['left']:.0f} % as long"
        )
    for one in predicted:
        measured = f", measured {one['measured_s']:.3f} ({100 * one['error']:+.0f} %)" if "measured_s" in one else ""
        print(f"{one['n_ranks']:>4} ranks {one['design']:<8} simulated {one['ring_s']:.3f} s{measured}")
    for path in drawn:
        print(path)


def _drawn(found: list[dict[str, Any]], predicted: list[dict[str, Any]], figures: str | None) -> list[str]:
    if figures is None:
        return []
    try:
        from .knn_bench.figures import draw
    except ImportError as missing:
        raise click.ClickException(str(missing)) from missing
    return draw(found, predicted, figures)


COMMANDS = (bench_knn,)
