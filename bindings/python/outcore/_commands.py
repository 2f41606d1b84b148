"""Common options of the commands, their session, and printing of results."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, TypeVar

import click

from ._files import read_regular
from ._plan import Plan
from ._session import Session
from ._settings import MOST_THREADS
from ._units import show_bytes
from .errors import CorruptError

F = TypeVar("F", bound=Callable[..., Any])

THREADS = click.IntRange(1, MOST_THREADS)
SEED = click.IntRange(0, (1 << 32) - 1)


def session_options(command: F) -> F:
    """The options that all commands share."""
    for option in reversed(
        (
            click.option(
                "--memory", metavar="SIZE", help="Budget, such as 512MiB or 2GiB; default a quarter of what the process may use."
            ),
            click.option("--scratch", type=click.Path(file_okay=False), help="Folder on SSD for what is in between."),
            click.option("--threads", type=THREADS, help="Cores to use; default all."),
            click.option("--driver", type=click.Choice(["auto", "io_uring", "threads"]), default="auto", show_default=True),
            click.option("--blas", metavar="LIBRARY", help="mkl, openblas, blis or a path; default the built-in kernels."),
            click.option("--json", "as_json", is_flag=True, help="Print one JSON value."),
        )
    ):
        command = option(command)
    return command


def session_of(options: dict[str, Any]) -> Session:
    import outcore

    return outcore.configure(**options)


def say(found: Any, as_json: bool) -> None:
    if as_json:
        print(json.dumps(found, default=str))
        return
    for name, value in found.items():
        shown = show_bytes(value) if name.endswith("bytes") and isinstance(value, int) else value
        print(f"{name.replace('_', ' '):<18} {'-' if shown is None else shown}")


def say_plan(plan: Plan, as_json: bool) -> None:
    print(plan.json() if as_json else plan)


def lines_of(path: str | None) -> list[str] | None:
    if path is None:
        return None
    try:
        text = read_regular(path).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise CorruptError(f"{path}: {error}", object=path, offset=error.start) from error
    return [line for line in text.replace("\r\n", "\n").split("\n") if line]
