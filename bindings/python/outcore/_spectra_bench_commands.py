"""The command that measures searches for singular values: `outcore bench-spectra`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from ._commands import SEED, say, session_of, session_options
from ._units import parse_bytes, show_bytes

RIVAL_NAMES = ("arpack", "propack", "scikit-learn", "primme")


@click.command("bench-spectra")
@click.argument("folder", type=click.Path(file_okay=False, exists=True))
@click.option("--documents", type=click.IntRange(1), default=20_000, show_default=True, help="Rows of the corpus.")
@click.option("--words", type=click.IntRange(2), default=8_000, show_default=True, help="Its columns.")
@click.option("-k", "--count", "counts", multiple=True, type=click.IntRange(1), default=[10, 40], show_default=True)
@click.option("--tol", type=click.FloatRange(0, min_open=True), default=1e-4, show_default=True, help="Residuals, by the norm.")
@click.option("--budget", "budgets", multiple=True, default=["16MiB", "128MiB"], show_default=True, help="Of our searches.")
@click.option(
    "--method",
    "methods",
    multiple=True,
    type=click.Choice(["auto", "krylov", "randomized"]),
    default=["krylov", "randomized"],
    show_default=True,
)
@click.option("--rival", "rivals", multiple=True, type=click.Choice(RIVAL_NAMES), help="Default all that are installed.")
@click.option("--topics", multiple=True, type=click.IntRange(2), help="Also models of as many topics, ours and scikit-learn's.")
@click.option("--timeout", type=click.FloatRange(1), default=600.0, show_default=True, help="Seconds of a run.")
@click.option("--no-rivals", is_flag=True, help="Only ours.")
@click.option("--times", type=click.IntRange(1), default=1, show_default=True, help="Each case is run, in turn with the others.")
@click.option("--seed", type=SEED, default=1, show_default=True)
@click.option("--results", type=click.Path(file_okay=False), help="Folder for a JSON file of each run.")
@click.option("--figures", type=click.Path(file_okay=False), help="Folder for the figures.")
@session_options
def bench_spectra(
    folder: str,
    documents: int,
    words: int,
    counts: tuple[int, ...],
    tol: float,
    budgets: tuple[str, ...],
    methods: tuple[str, ...],
    rivals: tuple[str, ...],
    topics: tuple[int, ...],
    timeout: float,
    no_rivals: bool,
    times: int,
    seed: int,
    results: str | None,
    figures: str | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Measure `outcore.linalg.svds`, and models of topics, on the word counts of a corpus, as the paper of BLAS-on-flash did.

    FOLDER gets the corpus, if it is not there yet. Rivals have it in memory when their time begins. A case that does not fit its
    budget, or fails, is told and left out.
    """
    from .errors import FailedError
    from .spectra_bench.corpus import written
    from .spectra_bench.run import installed, measure

    matrix = written(folder, documents, words, session_of(options), seed=seed)
    given = [
        word
        for name in ("scratch", "threads", "driver", "blas")
        if options[name] is not None
        for word in (f"--{name}", str(options[name]))
    ]
    who: list[tuple[str, int | None]] = [(method, parse_bytes(size, "budget")) for method in methods for size in budgets]
    who += [] if no_rivals else [(name, None) for name in rivals or installed()]
    found: list[dict[str, Any]] = []
    for time in range(times):
        for count in counts:
            for name, memory in who:
                try:
                    one = measure(
                        matrix, name, count, tol, memory=memory, options=given if memory is not None else (), timeout_s=timeout
                    )
                except FailedError as error:
                    click.echo(f"left out: {error}", err=True)
                    continue
                found.append({**one, "time": time, "documents": documents, "words": words, "seed": seed})
                if not as_json:
                    print(_line(one), flush=True)
                if results is not None:
                    _keep(found[-1], Path(results))
    models = _topics(matrix, topics, tuple(budgets), times, timeout, given, results, no_rivals, not as_json)
    drawn = _drawn(found, models, figures)
    if as_json:
        say({"results": found, "topics": models, "figures": drawn}, True)
    else:
        print(*drawn, sep="\n", end="\n" if drawn else "")


def _topics(
    matrix: Path,
    counts: tuple[int, ...],
    budgets: tuple[str, ...],
    times: int,
    timeout: float,
    given: list[str],
    results: str | None,
    no_rivals: bool,
    tell: bool,
) -> list[dict[str, Any]]:
    """Models of topics, each in turn with the others."""
    from .errors import FailedError
    from .spectra_bench.topics import OURS, RIVALS, measure

    who: list[tuple[str, int | None]] = [(OURS, parse_bytes(size, "budget")) for size in budgets]
    who += [] if no_rivals else [(name, None) for name in RIVALS]
    found: list[dict[str, Any]] = []
    for time, count in ((time, count) for time in range(times) for count in counts):
        for name, memory in who:
            try:
                options = given if memory is not None else ()
                one = measure(matrix, name, count, memory=memory, options=options, timeout_s=timeout)
            except FailedError as error:
                click.echo(f"left out: {error}", err=True)
                continue
            found.append({**one, "time": time})
            budget = "in memory" if memory is None else show_bytes(memory)
            if tell:
                print(
                    f"{name:<19}{budget:>10}{count:>5} topics  {one['seconds']:.3f} s, NPMI {one['npmi']:.3f}, "
                    f"diversity {one['diversity']:.2f}",
                    flush=True,
                )
            if results is not None:
                path = Path(results, f"topics-{name.replace(' ', '-')}-{count}-{memory or 'memory'}-{time}.json")
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(json.dumps(found[-1], indent=1))
    return found


def _line(one: dict[str, Any]) -> str:
    budget = "in memory" if one["memory_bytes"] is None else show_bytes(one["memory_bytes"])
    passes = f", {one['passes']} passes" if "passes" in one else ""
    place = "" if one.get("basis_in_memory", True) else ", basis in scratch"
    case = f"{one['who']:<13}{budget:>10}{one['count']:>5} triplets"
    return f"{case}  {one['seconds']:.3f} s, residual {one['residual']:.1e}{passes}{place}"


def _keep(one: dict[str, Any], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    size = f"{one['documents']}x{one['words']}"
    budget = "memory" if one["memory_bytes"] is None else str(one["memory_bytes"])
    (folder / f"{size}-{one['who']}-{one['count']}-{budget}-{one['time']}.json").write_text(json.dumps(one, indent=1))


def _drawn(found: list[dict[str, Any]], models: list[dict[str, Any]], figures: str | None) -> list[str]:
    if figures is None:
        return []
    try:
        from .spectra_bench.figures import draw, draw_topics
    except ImportError as missing:
        raise click.ClickException(str(missing)) from missing
    return [*(draw(found, figures) if found else []), *(draw_topics(models, figures) if models else [])]


COMMANDS = (bench_spectra,)
