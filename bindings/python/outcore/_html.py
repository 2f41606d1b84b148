"""HTML of matrices and datasets for notebooks: a table of facts, and a picture of the data compared to the memory budget."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

__all__ = ["card", "picture", "table"]

WIDE, THIN = 160, 12
"""Pixels of the longer side of a picture, and of the shorter one at least."""

MOST_LINES = 24
"""Lines between parts that are drawn at most; where there are more, the parts that are drawn stand for several."""


def card(title: str, facts: Sequence[tuple[str, str]], drawing: str = "") -> str:
    """A table of facts with a drawing beside it. Title and facts are text; the drawing is HTML."""
    rows = "".join(
        f'<tr><th style="text-align:left">{escape(name)}</th><td style="text-align:left">{escape(value)}</td></tr>'
        for name, value in facts
    )
    beside = f'<td style="padding-left:1em">{drawing}</td>' if drawing else ""
    return f"<table><tr><td><b>{escape(title)}</b><table>{rows}</table></td>{beside}</tr></table>"


def table(title: str, heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table of text under its heads."""
    top = "".join(f'<th style="text-align:left">{escape(head)}</th>' for head in heads)
    body = "".join("<tr>" + "".join(f'<td style="text-align:left">{escape(cell)}</td>' for cell in row) + "</tr>" for row in rows)
    return f"<b>{escape(title)}</b><table><tr>{top}</tr>{body}</table>"


def picture(shape: tuple[int, ...], nbytes: int, budget_bytes: int, *, by_columns: bool, shade: float = 1.0) -> str:
    """A matrix as a rectangle, cut along the lines in which it lies into parts as large as the budget.

    Parameters
    ----------
    shape : rows and columns; of a vector its length.
    nbytes, budget_bytes : int
        Bytes of the matrix, and of the memory that parts of it fit in.
    by_columns : bool
        Whether the elements of a column lie next to each other, so that parts are columns.
    shade : float
        How dark it is, from 0 to 1: the part of the elements that is there.
    """
    rows, cols = shape if len(shape) == 2 else (shape[0], 1)
    if not rows or not cols:
        return ""
    width, height = _sides(rows, cols)
    parts = -(-nbytes // budget_bytes)
    drawn = min(parts, MOST_LINES)
    lines = "".join(_line(width, height, number / drawn, by_columns) for number in range(1, drawn))
    opacity = 0.15 + 0.65 * max(0.0, min(1.0, shade)) ** 0.25
    words = "within the budget" if parts <= 1 else f"{nbytes / budget_bytes:.1f} times the budget"
    label = f'<text x="1" y="{height + 16}" font-size="11" fill="currentColor">{words}</text>'
    return (
        f'<svg width="{max(width, 120) + 2}" height="{height + 22}" style="stroke:currentColor;stroke-width:1">'
        f'<rect x="1" y="1" width="{width}" height="{height}" fill="#4c78a8" fill-opacity="{opacity:.2f}"/>'
        f'{lines}<g stroke="none">{label}</g></svg>'
    )


def _sides(rows: int, cols: int) -> tuple[int, int]:
    longer = max(rows, cols)
    return max(THIN, round(WIDE * cols / longer)), max(THIN, round(WIDE * rows / longer))


def _line(width: int, height: int, at: float, upright: bool) -> str:
    x, y = 1 + width * at, 1 + height * at
    ends = (x, 1, x, 1 + height) if upright else (1, y, 1 + width, y)
    x1, y1, x2, y2 = (f"{end:.1f}" for end in ends)
    return f'<line x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}"/>'
