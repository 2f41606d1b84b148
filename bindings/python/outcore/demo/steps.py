"""What the two jobs of the demo share: steps on the clock, messages, and the way from a specification to a result.

A job is a module, run as a process of its own:

    python -m MODULE spec.json      does it, writes result.json and result.npz into the folder that the spec names
    python -m MODULE                prints what interpreter and imports alone take, as JSON
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from .limit import process_status

Found: TypeAlias = tuple[dict[str, Any], dict[str, npt.NDArray[Any]]]
"""What a job found: plain values, and arrays."""


class Phases:
    """What was done when, on the clock of the memory samples."""

    def __init__(self) -> None:
        self.done: list[dict[str, Any]] = []

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        started = time.monotonic()
        yield
        self.done.append({"name": name, "start_s": started, "end_s": time.monotonic()})


def carry_out(arguments: list[str], run: Callable[[dict[str, Any]], Found]) -> int:
    """The exit status. Whatever a user can cause ends as an `error` in the result."""
    if not arguments:
        print(json.dumps(process_status()))
        return 0
    spec = json.loads(Path(arguments[0]).read_text())
    folder = Path(spec["folder"])
    try:
        result, arrays = run(spec)
    except MemoryError as error:
        result, arrays = {"error": f"MemoryError: {error}" if str(error) else "MemoryError"}, {}
    except (OSError, ValueError, RuntimeError) as error:
        result, arrays = {"error": str(error) or type(error).__name__, "error_kind": type(error).__name__}, {}
    np.savez(folder / "result.npz", **arrays)  # type: ignore[arg-type]
    (folder / "result.json").write_text(json.dumps(result))
    return 1 if "error" in result else 0


def thinned(trace: dict[str, Any]) -> dict[str, Any]:
    """The trace with spans as fine as the eye can tell, and without the folders of file names: some thousands at most."""
    gap_s = trace["wall_s"] / 2000
    lanes: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for span in trace.get("spans", ()):
        words = " ".join(Path(word).name if word.startswith("/") else word for word in span["name"].split(" "))
        lanes.setdefault((span["lane"], words), []).append((span["start_s"], span["end_s"]))
    spans = [
        {"lane": lane, "name": name, "start_s": start, "end_s": end}
        for (lane, name), found in lanes.items()
        for start, end in merged(found, gap_s)
    ]
    return {**trace, "spans": spans}


def merged(spans: Iterable[tuple[float, float]], gap_s: float) -> list[tuple[float, float]]:
    """Spans nearer to each other than a gap become one."""
    found: list[tuple[float, float]] = []
    for start, end in sorted(spans):
        if found and start - found[-1][1] <= gap_s:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        else:
            found.append((start, end))
    return found
