"""Numbers in words."""

from __future__ import annotations

import math
import sys
from typing import Any


def bytes_in_words(count: float) -> str:
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= size:
            value = count / size
            return f"{value:.0f} {unit}" if value >= 100 else f"{value:.3g} {unit}"
    return f"{count:.0f} bytes"


def seconds_in_words(seconds: float) -> str:
    if seconds >= 90:
        return f"{int(seconds // 60)} min {seconds % 60:.0f} s"
    return f"{seconds:.0f} s" if seconds >= 20 else f"{seconds:.1f} s" if seconds >= 1 else f"{seconds:.2f} s"


def ratio_in_words(ours: float, theirs: float, noise: float = 0.05) -> str:
    """How our time compares; differences within a few per cent are called so."""
    if theirs > ours * (1 + noise):
        return f"{theirs / ours:.1f} times as fast as"
    if ours > theirs * (1 + noise):
        return f"{ours / theirs:.1f} times slower than"
    return "as fast as"


def below_in_words(share: float) -> str:
    """The next power of ten above a small share, as a percentage: 0.000006 -> "0.001%"."""
    if share <= 0:
        return "0%"
    exponent = math.floor(math.log10(share * 100)) + 1
    return f"{10.0**exponent:.{max(0, -exponent)}f}%"


def coherence_in_words(npmi: float | None) -> str:
    return "no coherence" if npmi is None else f"coherence {npmi:.3f}"


def outcome_in_words(entry: dict[str, Any]) -> str:
    """What became of a rival."""
    if entry.get("missing"):
        return f"not run: {entry['missing']}"
    if entry.get("killed"):
        return f"ended by the kernel after {seconds_in_words(entry['wall_s'])}: it wanted more memory than the limit"
    if entry.get("memory_error"):
        return f"gave up with MemoryError after {seconds_in_words(entry['wall_s'])}"
    if entry.get("failure"):
        return f"failed: {entry['failure']}"
    return f"finished in {seconds_in_words(entry['work_s'])}"


def say(show: bool, text: str) -> None:
    """A line of progress."""
    if show:
        print(text, file=sys.stderr, flush=True)
