"""The commands for singular values and eigenvalues: `outcore svd` and `outcore eigsh`."""

from __future__ import annotations

import inspect
import time
from pathlib import Path
from typing import Any

import click

from ._commands import SEED, say, say_plan, session_of, session_options
from .errors import ArgumentError


def search_options(command: Any) -> Any:
    """What both take."""
    for option in reversed(
        (
            click.argument("matrix", type=click.Path()),
            click.argument("folder", type=click.Path(file_okay=False)),
            click.option("-k", "--count", type=click.IntRange(1), default=6, show_default=True, help="How many."),
            click.option(
                "--tol", type=click.FloatRange(0), default=1e-6, show_default=True, help="Residuals, by the norm of MATRIX."
            ),
            click.option("--method", type=click.Choice(["auto", "krylov", "randomized"]), default="auto", show_default=True),
            click.option("--block", type=click.IntRange(1), help="Columns of a product."),
            click.option("--maxiter", type=click.IntRange(0), default=300, show_default=True, help="Restarts at most."),
            click.option("--no-check", is_flag=True, help="Do not look for pairs that were missed."),
            click.option("--checkpoint", type=click.Path(dir_okay=False), help="File to go on from after a crash."),
            click.option("--random-state", type=SEED, default=0, show_default=True),
            click.option("--explain", is_flag=True, help="Print the plan; nothing is read or written."),
            session_options,
        )
    ):
        command = option(command)
    return command


@click.command()
@search_options
def svd(matrix: str, folder: str, **options: Any) -> None:
    """The largest singular values of MATRIX, a .npy file or a folder with a sparse matrix, and their vectors.

    FOLDER, which is made, gets U.npy, s.npy (ascending) and Vt.npy.
    """
    from .linalg import svds

    _search(inspect.unwrap(svds), ("U", "s", "Vt"), matrix, folder, options)


@click.command()
@click.option(
    "--which", type=click.Choice(["LM", "LA", "SA"]), default="LM", show_default=True, help="By magnitude, largest, smallest."
)
@click.option("--laplacian", type=click.Choice(["plain", "normed"]), help="Of the Laplacian of the graph that MATRIX is.")
@search_options
def eigsh(matrix: str, folder: str, which: Any, laplacian: str | None, **options: Any) -> None:
    """A few eigenvalues of MATRIX, which is symmetric, and their vectors.

    FOLDER, which is made, gets w.npy (ascending) and V.npy.
    """
    from . import linalg

    def pairs(a: Any, k: int, **kept: Any) -> Any:
        operator = a if laplacian is None else linalg.laplacian(a, normed=laplacian == "normed")
        return inspect.unwrap(linalg.eigsh)(operator, k, which=which, **kept)

    _search(pairs, ("w", "V"), matrix, folder, options)


def _search(function: Any, names: tuple[str, ...], matrix: str, folder: str, options: dict[str, Any]) -> None:
    import numpy as np

    from . import convert, explain
    from ._array import Array
    from ._spectra import forget_checkpoint

    as_json, count, check = options.pop("as_json"), options.pop("count"), not options.pop("no_check")
    only_plan = options.pop("explain")
    of_search = {name: options.pop(name) for name in ("tol", "method", "block", "maxiter", "checkpoint", "random_state")}
    session, into = session_of(options), Path(folder)
    if only_plan:
        with session.open(matrix) as a:
            say_plan(explain(function, a, count, check=check, **of_search), as_json)
        return
    # A checkpoint may be among the results of the search that is to go on.
    kept = of_search["checkpoint"] and Path(of_search["checkpoint"]).resolve()
    results = {into / f"{name}.npy" for name in names} if kept and kept.exists() else set()
    if into.exists() and any(path.resolve() != kept and path not in results for path in into.iterdir()):
        raise ArgumentError(f"{folder} is not empty; the results go to a new folder")
    began = time.perf_counter()
    with session.open(matrix) as a:
        # Before a search of hours: results have a place.
        into.mkdir(parents=True, exist_ok=True)
        found = function(a, count, check=check, **of_search)
    for name, part in zip(names, found, strict=True):
        path = into / f"{name}.npy"
        if isinstance(part, Array):
            convert(part, path)
        else:
            np.save(path, part)
    forget_checkpoint(of_search["checkpoint"])
    facts = {
        "pairs": len(found.residuals),
        "converged": int(found.converged.sum()),
        "largest_residual": float(found.residuals.max() / found.scale) if found.scale else 0.0,
        "missed_beyond": found.missed_beyond,
        "passes": found.passes,
        "restarts": found.restarts,
        "seconds": time.perf_counter() - began,
        "folder": folder,
    }
    say(facts, as_json)


COMMANDS = (svd, eigsh)
