"""The command that measures recommenders on embedding tables: `outcore bench-embedding`."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from ._commands import SEED, say, session_of, session_options
from ._units import parse_bytes, show_bytes

if TYPE_CHECKING:
    from .embedding_bench.models import ModelSpec
    from .embedding_bench.modes import ModeFactory
    from .embedding_bench.traces import TraceFactory

MODEL_NAMES = ("WND", "MTWND", "DIN", "DIEN", "NCF", "RMC1", "RMC2", "RMC3", "SLS", "MLPERF")
TRACE_NAMES = ("uniform", "sequential", "strided", "K=0", "K=1", "K=2", "2021", "2022", "clicks")
MODE_NAMES = ("memory", "map", "map-random", "pages", "outcore")


@click.command("bench-embedding")
@click.argument("folder", type=click.Path(file_okay=False, exists=True))
@click.option("--model", "models", multiple=True, type=click.Choice(MODEL_NAMES), default=["RMC1"], show_default=True)
@click.option("--trace", "traces", multiple=True, type=click.Choice(TRACE_NAMES), default=["K=1"], show_default=True)
@click.option("--mode", "modes", multiple=True, type=click.Choice(MODE_NAMES), default=["memory", "outcore"], show_default=True)
@click.option("--batch-size", "batch_sizes", multiple=True, type=click.IntRange(1), default=[64], show_default=True)
@click.option(
    "--batches",
    type=click.IntRange(1),
    default=100,
    show_default=True,
    help="Measured at most, in each mode; with --rate, --ladder and --split those of the trace.",
)
@click.option("--seconds", type=click.FloatRange(0.1), default=10.0, show_default=True, help="Of each mode, at most.")
@click.option(
    "--scale", type=click.FloatRange(0, min_open=True), default=1.0, show_default=True, help="Factor of the tables' rows."
)
@click.option("--vary", is_flag=True, help="Also rows of other sizes, and other numbers of look-ups and tables: figure 11.")
@click.option("--cover", metavar="SIZE", help="Traces K=0 to K=2 have lines on pages of this size together, and tables to match.")
@click.option("--click-log", type=click.Path(dir_okay=False, exists=True), help="Criteo's log, plain or gzipped, for clicks.")
@click.option("--cold/--warm", default=True, show_default=True, help="Take tables out of the page cache before each mode.")
@click.option("--seed", type=SEED, default=123, show_default=True)
@click.option("--rate", "rates", multiple=True, type=click.FloatRange(0, min_open=True), help="Batches that arrive in a second.")
@click.option("--clients", type=click.IntRange(1), default=4, show_default=True, help="Threads that look up, with --rate.")
@click.option("--ladder", is_flag=True, help="Caches from none to all rows of a trace, each against tables in memory.")
@click.option("--split", type=click.FloatRange(0, min_open=True), help="Split a cache for this part of a trace's rows.")
@click.option("--results", type=click.Path(dir_okay=False), help="New JSON file for all results.")
@click.option("--figures", type=click.Path(file_okay=False), help="Folder for the figures of the results.")
@session_options
def bench_embedding(
    folder: str,
    models: tuple[str, ...],
    traces: tuple[str, ...],
    modes: tuple[str, ...],
    batch_sizes: tuple[int, ...],
    scale: float,
    vary: bool,
    cover: str | None,
    click_log: str | None,
    rates: tuple[float, ...],
    clients: int,
    ladder: bool,
    split: float | None,
    results: str | None,
    figures: str | None,
    as_json: bool,
    batches: int,
    seconds: float,
    cold: bool,
    seed: int,
    **options: Any,
) -> None:
    """Measure recommenders whose embedding tables are in FOLDER: models by traces, places of the tables, and batch sizes.

    Tables that are not in FOLDER yet are written: up to 8 GB for a model. The first mode is what the sums of the others are
    compared with. Exit status 1 if one differs.

    With --rate, batches arrive at random times and are looked up by --clients threads: the percentiles 50, 99 and 99.9 of the
    time from arrival to result, waits included, at each rate. The network does not run.

    With --ladder, the speed of each model with caches for none to all of the rows that a trace looks up, in turn with its tables
    in memory, and from which hit rate on it is within 1.1 times of that. Batches are looked up ahead while the network computes;
    both sides have --threads. One cache at a time takes part of --memory.

    With --split, the misses of a cache that is split between tables while running, against the best static split that a search
    finds, while popularity is steady and where it changes half-way. The tables of a model have the traces in turn. A cache of
    less than 3.3 MB a table is not split while running.
    """
    asked = [name for name, given in (("--rate", rates), ("--ladder", ladder), ("--split", split)) if given]
    if len(asked) > 1:
        raise click.UsageError(f"one at a time: {' and '.join(asked)}")
    if rates and "pages" in modes:
        raise click.UsageError("the mode pages reads one row at a time: --rate has no clients for it")
    try:
        from .embedding_bench.ladder import bench_ladder
        from .embedding_bench.load import bench_load
        from .embedding_bench.run import bench
        from .embedding_bench.splits import bench_splits
    except ImportError as missing:
        raise click.ClickException(str(missing)) from missing
    session_of(options)
    line = _load_line if rates else _ladder_line if ladder else _split_line if split else _line
    common: dict[str, Any] = {"folder": folder, "batch_sizes": batch_sizes, "batches": batches, "seed": seed}
    common["told"] = None if as_json else line
    timed = {**common, "seconds": seconds}
    chosen, threads = _chosen(modes, clients if rates else None), options["threads"]
    if rates and not as_json:
        print(LOAD_HEAD)
    found: list[dict[str, Any]] = []
    for spec, factories in _cases(models, traces, scale, vary, cover, click_log):
        if rates:
            found += bench_load([spec], factories, chosen, rates, clients=clients, cold=cold, **timed)
        elif ladder:
            found += bench_ladder([spec], factories, threads=threads, **timed)
        elif split:
            found += bench_splits([spec], factories, split, **common)
        else:
            found += bench([spec], factories, chosen, cold=cold, threads=threads, **timed)
    if results is not None:
        with open(results, "w") as file:
            json.dump(found, file, indent=1)
    enough = _enough(found) if ladder else []
    drawn = _drawn(found, figures, asked)
    if as_json:
        say({"results": found, "figures": drawn, **({"enough": enough} if ladder else {})}, True)
    else:
        print(*map(_enough_line, enough), *drawn, sep="\n", end="\n" if enough or drawn else "")
    if not all(result.get("agrees", True) for result in found):
        raise SystemExit(1)


def _chosen(modes: tuple[str, ...], clients: int | None) -> dict[str, ModeFactory]:
    """Modes by their names; our tables read for as many look-ups at a time as there are clients."""
    from .embedding_bench.modes import MODES, outcore

    chosen = {mode: MODES[mode] for mode in modes}
    if clients is not None and "outcore" in chosen:
        chosen["outcore"] = partial(outcore, readers=clients)
    return chosen


def _cases(
    models: tuple[str, ...], traces: tuple[str, ...], scale: float, vary: bool, cover: str | None, click_log: str | None
) -> list[tuple[ModelSpec, dict[str, TraceFactory]]]:
    """Models, each with its traces."""
    from .embedding_bench.models import MLPERF, MODELS, OPERATOR

    known = {**MODELS, OPERATOR.name: OPERATOR, MLPERF.name: MLPERF}
    specs = [known[name].scaled(scale) for name in models]
    if vary:
        specs += [shape for spec in specs for shape in _shapes(spec)]
    return [case for spec in specs for case in _traced(spec, traces, cover, click_log)]


def _shapes(spec: ModelSpec) -> list[ModelSpec]:
    """The shapes of figure 11: rows of 16 to 512 bytes, 1 to 128 look-ups, 1 to 128 tables."""
    powers = [1 << power for power in range(8)]
    widths = [spec.varied(dim=dim) for dim in powers[2:]]
    return [*widths, *(spec.varied(lookups=count) for count in powers), *(spec.varied(tables=count) for count in powers)]


def _traced(
    spec: ModelSpec, traces: tuple[str, ...], cover: str | None, click_log: str | None
) -> list[tuple[ModelSpec, dict[str, TraceFactory]]]:
    """The model with its traces; where tables are enlarged for some of them, twice."""
    from .embedding_bench.clicks import Clicks
    from .embedding_bench.reuse import META_2021, META_2022, Reuse
    from .embedding_bench.traces import Locality, sequential, strided, uniform

    if "clicks" in traces and click_log is None:
        raise click.UsageError("the trace clicks needs --click-log")
    known: dict[str, Callable[[], TraceFactory]] = {
        "uniform": lambda: uniform,
        "sequential": lambda: sequential,
        "strided": lambda: strided,
        "2021": lambda: Reuse(META_2021),
        "2022": lambda: Reuse(META_2022),
        "clicks": lambda: Clicks(str(click_log)),
    }
    cases = [(spec, {name: known[name]() for name in traces if name in known})]
    for name in traces:
        if name.startswith("K="):
            locality = Locality(int(name[2:]))
            if cover is None:
                cases[0][1][name] = locality
            else:
                larger, covering = locality.covering(spec, parse_bytes(cover, "cover"), times=1)
                cases.append((larger, {name: covering}))
    return [case for case in cases if case[1]]


def _line(result: dict[str, Any]) -> None:
    case = f"{result['model']} {result['trace']} {result['mode']}"
    times = " ".join(f"{name} {1e3 * result[f'batch_{name}_s']:.2f}" for name in ("p50", "p90", "p99"))
    parts = f"look-up {1e3 * result['lookup_s']:.2f}, network {1e3 * result['network_s']:.2f}"
    touched = f"{result['batches']} batches of {result['batch_size']}, pages of {show_bytes(result['touched_bytes'])}"
    differs = "" if result["agrees"] else "  SUMS DIFFER"
    print(f"{case:<28} {times} ms ({parts})  {result['samples_per_s']:,.0f} samples/s  {touched}{differs}", flush=True)


LOAD_COLUMNS = ("offered/s", "served/s", "p50 ms", "p99 ms", "p99.9 ms", "most ms", "requests", "unserved")
LOAD_HEAD = " ".join([f"{'':<28}", *(f"{name:>10}" for name in LOAD_COLUMNS)])


def _load_line(result: dict[str, Any]) -> None:
    case = f"{result['model']} {result['trace']} {result['mode']}"
    rates = f"{result['offered_per_s']:>10,.1f} {result['served_per_s']:>10,.1f}"
    seconds = [result[f"latency_{name}_s"] for name in ("p50", "p99", "p999", "max")]
    times = " ".join(f"{'-' if one is None else f'{1e3 * one:,.2f}':>10}" for one in seconds)
    print(f"{case:<28} {rates} {times} {result['requests']:>10,} {result['unserved']:>10,}", flush=True)


def _ladder_line(result: dict[str, Any]) -> None:
    case = f"{result['model']} {result['trace']}"
    cache = f"cache {show_bytes(result['cache_bytes'])} ({result['share']:.0%} of the rows)"
    speeds = f"{result['samples_per_s']:,.0f} samples/s, {result['memory_samples_per_s']:,.0f} in memory"
    ratio = f"{result['ratio']:.3f} of memory, {result['ratio_min']:.3f} at least"
    differs = "" if result["agrees"] else "  SUMS DIFFER"
    print(f"{case:<16} {cache:<34} hit rate {result['hit_rate']:>6.1%}  {speeds}: {ratio}{differs}", flush=True)


def _enough(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """From which hit rate on each model is near memory, on each trace."""
    from .embedding_bench.ladder import enough

    rungs: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for one in found:
        rungs.setdefault((one["model"], one["trace"], one["batch_size"]), []).append(one)
    return [{"model": case[0], "trace": case[1], "batch_size": case[2], "hit_rate": enough(of)} for case, of in rungs.items()]


def _enough_line(case: dict[str, Any]) -> str:
    from .embedding_bench.ladder import WITHIN

    what = f"{case['model']} {case['trace']}, batches of {case['batch_size']}"
    if case["hit_rate"] is None:
        return f"{what}: not within {WITHIN:g} x of memory"
    return f"{what}: within {WITHIN:g} x of memory from a hit rate of {case['hit_rate']:.1%} on"


def _split_line(result: dict[str, Any]) -> None:
    case = f"{result['model']} {'+'.join(result['traces'])}, popularity {result['popularity']}"
    best, running, *static = (
        f"{result[f'misses_{name}'] / result['lookups']:.2%}"
        for name in ("best", "running", "first_simulated", "last_simulated", "best_simulated")
    )
    ratio = "-" if result["ratio"] is None else f"{result['ratio']:.3f}"
    print(f"{case}, cache {show_bytes(result['cache_bytes'])}: misses {running}, best static split {best}: {ratio} x", flush=True)
    print("    simulated, static: the split at first {}, at last {}, the best one {}".format(*static), flush=True)


def _drawn(found: list[dict[str, Any]], figures: str | None, asked: list[str]) -> list[str]:
    if figures is None:
        return []
    try:
        from .embedding_bench.figures import draw, draw_hit_rates, draw_latencies, draw_splits
    except ImportError as missing:
        raise click.ClickException(str(missing)) from missing
    if asked == ["--rate"]:
        return draw_latencies(found, figures)
    if asked == ["--ladder"]:
        from .embedding_bench.ladder import WITHIN

        return draw_hit_rates(found, figures, WITHIN)
    if asked == ["--split"]:
        return draw_splits(found, figures)
    return draw(found, figures)


COMMANDS = (bench_embedding,)
