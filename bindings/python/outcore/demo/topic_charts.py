"""The pictures of topics."""

from __future__ import annotations

from collections.abc import Sequence

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.ticker import PercentFormatter

from .charts import INK, STYLE, svg


def side_by_side(words: Sequence[str], chances: Sequence[Sequence[float]], left: tuple[str, str], right: tuple[str, str]) -> str:
    """How likely each word is in either of two topics, of which name and colour are given: bars to the left and to the right."""
    rows = np.arange(len(words))[::-1]
    longest = 1.05 * max(max(side) for side in chances)
    with plt.rc_context(STYLE):
        made, sides = plt.subplots(1, 2, figsize=(10.6, 0.9 + 0.26 * len(words)), layout="constrained", sharey=True)
        for axes, values, (name, colour) in zip(sides, chances, (left, right), strict=True):
            axes.barh(rows, values, color=colour, height=0.72)
            axes.set_title(name, color=INK, fontsize=10.5)
            axes.set(xlim=(0, longest), ylim=(-0.6, len(words) - 0.4), xlabel="probability of the word in the topic")
            axes.xaxis.set_major_formatter(PercentFormatter(1.0))
            axes.grid(False, axis="y")
            axes.tick_params(axis="y", length=0)
        first, second = sides
        first.invert_xaxis()
        first.spines[["left", "right"]].set_visible(False)
        second.spines["left"].set_visible(False)
        # Words stand between the two, once.
        first.tick_params(axis="y", labelleft=False)
        second.set_yticks(rows, words, color=INK)
        second.tick_params(axis="y", labelleft=True)
        return svg(made, "two topics compared")
