"""References from stack distances: what lies `d` places from the top of a stack is used, and moves to the top.

The plain form (a list, `pop` and `append`) costs a move of the list a reference. Here all references of a trace are found at
once. Steps are 0 (the least recently used line comes next) or s >= 1 (the line at distance s * width), so distances have levels:

    level 1       level 2               level S        level S + 1: all below, from where step 0 takes the last
    |<- width ->|<- width ->|   ...   |<- width ->|<- lines - S * width ->|
    top                                                                bottom

Seen backwards in time from a reference at the bottom of level k, the line moves up one place at each reference of level k or
more, and at no other; so it was at the bottom of level k - 1 before as many of these as level k is wide, and so on, until it is
at the top: there it was referred to. That is one shift of an array a level. A reference whose past runs out of level k is a line
of the stack as it was in the beginning. Chains of references to the same line are then followed by doubling.

Cost: 4 to 20 ns a level and reference, of the references that have that level or more.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ..errors import ArgumentError

Ids = npt.NDArray[np.int32]


def references(steps: npt.NDArray[np.uint8], width: int, lines: int) -> Ids:
    """Which line each step refers to; in the beginning line 0 is at the bottom, and the last one at the top.

    Raises
    ------
    ArgumentError
        Where the largest distance is not less than the number of lines.
    """
    levels = int(steps.max(initial=0))
    if lines <= levels * width:
        raise ArgumentError(f"distances of up to {levels * width} need more lines than {lines}")
    level = np.where(steps == 0, levels + 1, steps).astype(np.uint8)
    before, first = _before(level, levels, width, lines)
    return first[_followed(before)]


def _before(level: npt.NDArray[np.uint8], levels: int, width: int, lines: int) -> tuple[Ids, Ids]:
    """For each reference, the one before it to the same line, or itself where it is the first; then `first` is its line."""
    count = len(level)
    before, first = np.arange(count, dtype=np.int32), np.zeros(count, np.int32)
    own = np.split(np.argsort(level, kind="stable").astype(np.int32), np.bincount(level, minlength=levels + 2)[1:-1].cumsum())
    carried: Ids = np.empty(0, np.int32)  # by references of this level or more: whose line is at the bottom of it then, or -1
    for k, is_above in reversed(list(enumerate(_above(level, levels), 1))):
        wide, bottom = (width, k * width) if k <= levels else (lines - levels * width, lines)
        at_bottom = np.empty(len(is_above), np.int32)
        at_bottom[is_above] = carried
        at_bottom[~is_above] = own[k - 1]
        early = at_bottom[:wide]
        known = early >= 0
        first[early[known]] = lines - bottom + np.flatnonzero(known)
        carried = np.concatenate([at_bottom[wide:], np.full(len(early), -1, np.int32)])
    known = carried >= 0
    before[carried[known]] = np.flatnonzero(known)
    return before, first


def _followed(before: Ids) -> Ids:
    """The first reference of each chain."""
    while True:
        further = before[before]
        if np.array_equal(further, before):
            return before
        before = further


def _above(level: npt.NDArray[np.uint8], levels: int) -> list[npt.NDArray[np.bool_]]:
    """For each level k, of the references of k or more those of more."""
    found = []
    for k in range(1, levels + 2):
        found.append(level > k)
        level = level[found[-1]]
    return found
