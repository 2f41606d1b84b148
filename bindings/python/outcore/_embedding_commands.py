"""The commands for embedding tables: `outcore embed | bench-embedding`."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from ._commands import SEED, say, session_of, session_options
from ._units import parse_bytes, show_bytes

if TYPE_CHECKING:
    from .embedding import PlacementMethod, Table
    from .embedding_bench.models import ModelSpec
    from .embedding_bench.traces import TraceFactory

MODEL_NAMES = ("WND", "MTWND", "DIN", "DIEN", "NCF", "RMC1", "RMC2", "RMC3", "SLS", "MLPERF")
TRACE_NAMES = ("uniform", "sequential", "strided", "K=0", "K=1", "K=2", "2021", "2022", "clicks")
PAGE_BYTES, CHECKSUM_BYTES = 4096, 4
"""Of a packed table."""
MODE_NAMES = ("memory", "map", "map-random", "pages", "outcore")


@click.command("bench-embedding")
@click.argument("folder", type=click.Path(file_okay=False, exists=True))
@click.option("--model", "models", multiple=True, type=click.Choice(MODEL_NAMES), default=["RMC1"], show_default=True)
@click.option("--trace", "traces", multiple=True, type=click.Choice(TRACE_NAMES), default=["K=1"], show_default=True)
@click.option("--mode", "modes", multiple=True, type=click.Choice(MODE_NAMES), default=["memory", "outcore"], show_default=True)
@click.option("--batch-size", "batch_sizes", multiple=True, type=click.IntRange(1), default=[64], show_default=True)
@click.option("--batches", type=click.IntRange(1), default=100, show_default=True, help="Measured at most, in each mode.")
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
@click.option("--results", type=click.Path(dir_okay=False), help="New JSON file for all results.")
@click.option("--figures", type=click.Path(file_okay=False, exists=True), help="Folder for the figures of the results.")
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
    time from arrival to result, waits included. The network does not run.
    """
    try:
        from .embedding_bench.load import bench_load
        from .embedding_bench.modes import MODES
        from .embedding_bench.run import bench
    except ImportError as missing:
        raise click.ClickException(str(missing)) from missing
    if rates and "pages" in modes:
        raise click.UsageError("the mode pages reads one row at a time: --rate has no clients for it")
    session_of(options)
    found: list[dict[str, Any]] = []
    if rates and not as_json:
        print(LOAD_HEAD)
    chosen = {mode: MODES[mode] for mode in modes}
    told = None if as_json else _load_line if rates else _line
    given: dict[str, Any] = {"folder": folder, "batch_sizes": batch_sizes, "batches": batches, "seconds": seconds}
    given |= {"cold": cold, "seed": seed, "told": told}
    for spec, factories in _cases(models, traces, scale, vary, cover, click_log):
        if rates:
            found += bench_load([spec], factories, chosen, rates, clients=clients, **given)
        else:
            found += bench([spec], factories, chosen, threads=options["threads"], **given)
    if results is not None:
        with open(results, "w") as file:
            json.dump(found, file, indent=1)
    drawn = [] if rates else _drawn(found, figures)
    if as_json:
        say({"results": found, "figures": drawn}, True)
    for path in () if as_json else drawn:
        print(os.fspath(path))
    if not all(result.get("agrees", True) for result in found):
        raise SystemExit(1)


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


def _drawn(found: list[dict[str, Any]], figures: str | None) -> list[str]:
    if figures is None:
        return []
    try:
        from .embedding_bench.figures import draw
    except ImportError as missing:
        raise click.ClickException(str(missing)) from missing
    return draw(found, figures)


@click.group()
def embed() -> None:
    """Embedding tables."""


@embed.command("pack")
@click.argument("source", type=click.Path(exists=True), nargs=-1, required=True)
@click.argument("target", type=click.Path())
@click.option("--tensor", help="Of safetensors files, where they have several matrices; * stands for any part of the name.")
@click.option("--encoding", help="float32, float16, bfloat16, float8_e4m3fn, float8_e5m2, int8 or int4; default as SOURCE.")
@click.option("--placement", type=click.Path(exists=True, dir_okay=False), help="Slots of the rows, which `embed place` writes.")
@session_options
def pack_table(
    source: tuple[str, ...],
    target: str,
    tensor: str | None,
    encoding: str | None,
    placement: str | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Write the rows of SOURCE, .npy or safetensors files of one table, as a packed table with checksums."""
    from .embedding import pack

    session = session_of(options)
    placed = None if placement is None else _numbers(placement)
    say(_told(pack(list(source), target, encoding, tensor=tensor, placement=placed, session=session)), as_json)


@embed.command("place")
@click.argument("ids", type=click.Path(exists=True, dir_okay=False))
@click.argument("slots", type=click.Path(dir_okay=False))
@click.option("--rows", type=click.IntRange(0), required=True, help="Of the table.")
@click.option("--row-bytes", type=click.IntRange(1), default=128, show_default=True, help="Of a row as it will be packed.")
@click.option("--offsets", type=click.Path(exists=True, dir_okay=False), help="Where each query begins in IDS, a .npy file.")
@click.option("--method", type=click.Choice(["co-appearance", "frequency"]), default="co-appearance", show_default=True)
@click.option(
    "--replicas",
    type=click.FloatRange(0),
    default=0.0,
    show_default=True,
    help="Pages of rows that lie once more, for each page of rows. SLOTS is a .npz file then.",
)
@click.option(
    "--held-out",
    type=click.FloatRange(0, 1, max_open=True),
    default=0.1,
    show_default=True,
    help="Share of the queries, the last ones, that pages are counted on and nothing is learned from.",
)
@session_options
def place(
    ids: str,
    slots: str,
    rows: int,
    row_bytes: int,
    offsets: str | None,
    method: PlacementMethod,
    replicas: float,
    held_out: float,
    as_json: bool,
    **options: Any,
) -> None:
    """Learn from IDS, row numbers that were looked up together, which rows are to share a page, and write their SLOTS.

    IDS is a .npy file of queries as rows, or one list of numbers with --offsets. `embed pack --placement SLOTS` packs a table so.
    """
    import numpy as np

    from .embedding import placement

    numbers = _numbers(ids)
    queries = numbers if offsets is None else (numbers, _numbers(offsets))
    rows_a_page = max(1, (PAGE_BYTES - CHECKSUM_BYTES) // row_bytes)
    session = session_of(options)
    found = placement(queries, rows, rows_a_page, method, replicas=replicas, held_out=held_out, session=session)
    with open(slots, "wb") as file:
        if replicas:
            np.savez(file, slots=found.slots, replicas=found.replicas)
        else:
            np.save(file, found.slots)
    say({"path": slots, **found.facts()}, as_json)


@embed.command("export")
@click.argument("source", type=click.Path(exists=True), nargs=-1, required=True)
@click.argument("target", type=click.Path())
@click.option("--tensor", default="weight", show_default=True, help="Name of the tensor in a safetensors file.")
@click.option("--dtype", help="float32, float16 or bfloat16; default the table's, float32 for quantized rows.")
@session_options
def export_table(source: tuple[str, ...], target: str, tensor: str, dtype: str | None, as_json: bool, **options: Any) -> None:
    """Write the rows of the table SOURCE, decoded, to TARGET, a .npy or .safetensors file."""
    from .embedding import export

    export(list(source), target, tensor=tensor, dtype=dtype, session=session_of(options))
    say({"path": target}, as_json)


@embed.command("inspect")
@click.argument("table", type=click.Path(exists=True), nargs=-1, required=True)
@click.option("--tensor", help="Of safetensors files, where they have several matrices.")
@session_options
def inspect_table(table: tuple[str, ...], tensor: str | None, as_json: bool, **options: Any) -> None:
    """Say what TABLE is: one table, whatever number of files."""
    from .embedding import Table

    say(_told(Table.open(list(table), tensor, cache=0, session=session_of(options))), as_json)


@embed.command("profile")
@click.argument("ids", type=click.Path(exists=True, dir_okay=False))
@click.option("--row-bytes", type=click.IntRange(1), default=128, show_default=True, help="Of a stored row.")
@click.option("--picture", type=click.Path(dir_okay=False), help="Where reuse and miss curves are drawn: .png or .svg.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON value.")
def profile(ids: str, row_bytes: int, picture: str | None, as_json: bool) -> None:
    """Say what a cache of any size would save for IDS, a .npy file of row numbers in the order of their look-ups."""
    from ._embedding_profile import draw, facts, profile_of

    found = profile_of(_numbers(ids), row_bytes)
    print(json.dumps(facts(found)) if as_json else "\n".join(found.lines()))
    if picture is not None:
        draw(found, picture)


def _numbers(path: str) -> Any:
    import numpy as np

    return np.load(path, mmap_mode="r")


def _told(table: Table) -> dict[str, Any]:
    rows, dim = table.shape
    return {
        "path": table.name,
        "rows": rows,
        "dim": dim,
        "encoding": table.encoding,
        "bytes": table.nbytes,
        "packed": table.is_packed,
    }


COMMANDS = (bench_embedding, embed)
