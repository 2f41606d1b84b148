"""Bars of the report: numbers beside each other, the largest as wide as the page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def bars(rows: Sequence[tuple[str, str, float, str]]) -> list[dict[str, Any]]:
    """Rows of name, note, bytes and kind."""
    most = max(1.0, *(row[2] for row in rows))
    return [{"name": n, "note": note, "bytes": b, "percent": 100 * b / most, "kind": kind} for n, note, b, kind in rows]


def moved(name: str, trace: dict[str, Any], bound: tuple[str, float], foreseen: str = "foreseen by the plan") -> dict[str, Any]:
    """Bytes between SSD and memory: a yardstick, foreseen, and counted."""
    planned, counted = (trace[key]["bytes_read"] + trace[key]["bytes_written"] for key in ("predicted", "actual"))
    told = f": {counted / bound[1]:.2f} times {bound[0]}" if bound[1] else ""
    told += ", exactly as foreseen" if planned == counted else ""
    rows = ((bound[0], "", bound[1], "bound"), (foreseen, "", planned, "plan"), ("really moved", "", counted, "fact"))
    return {"name": name, "told": told, "bars": bars(rows)}
