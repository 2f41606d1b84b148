"""Pages that bags of real interactions read, by the order of the rows; of `placement-*`."""

from __future__ import annotations

import importlib
import os
import time
from pathlib import Path
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


def nothing(spec: dict[str, Any]) -> dict[str, Any]:
    importlib.import_module("outcore.embedding")
    return {"seconds": [0.0]}


def pages(spec: dict[str, Any]) -> dict[str, Any]:
    """Learns an order from the bags of half of the users, and counts pages by those of the other half: `fewer` than with rows in
    their given order, and `of_own`, which is 1 where the order that is learned from the other half itself is no better.
    """
    from outcore.embedding import placement

    users, items = interactions(Path(os.path.expandvars(spec["path"])))
    count = int(items.max()) + 1
    random = np.random.default_rng(spec["seed"])
    order = random.permutation(int(users.max()) + 1)
    learned, rest = np.array_split(order, 2)
    how = {"method": spec.get("method", "co-appearance"), "replicas": spec.get("replicas", 0.0), "held_out": 0.5}
    started = time.perf_counter()
    found = placement(bags(users, items, [learned, rest]), count, spec["rows_a_page"], **how)
    seconds = time.perf_counter() - started
    # The counted half twice: it is learned from, and held out.
    own = placement(bags(users, items, [rest, rest]), count, spec["rows_a_page"], **how)
    given, placed, best = found.given.pages, found.placed.pages, own.placed.pages
    shuffled = pages_of(*bags(users, items, [rest]), random.permutation(count) // spec["rows_a_page"])
    return {
        "seconds": [seconds],
        "work": float(found.placed.look_ups),
        "fewer": given / placed,
        "of_own": best / placed,
        "own_fewer": given / best,
        "fewer_than_shuffled": shuffled / placed,
    }


def pages_of(ids: Array, offsets: Array, page_of_row: Array) -> int:
    """The pages of all bags."""
    bag = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets).astype(np.int64))
    return len(np.unique(np.stack([bag, page_of_row[ids.astype(np.int64)]]), axis=1).T)


def interactions(path: Path) -> tuple[Array, Array]:
    """Users and items, numbered from 0: of a CSV file with a header and columns number, user, item, or of a square SciPy matrix
    in which users come before items.
    """
    if path.suffix != ".npz":
        users, items = np.loadtxt(path, np.int64, delimiter=",", skiprows=1, usecols=(1, 2)).T
        return users, items
    import scipy.sparse

    pairs = scipy.sparse.load_npz(path).tocoo()
    before = pairs.row < pairs.col
    return pairs.row[before], pairs.col[before] - pairs.col[before].min()


def bags(users: Array, items: Array, parts: list[Array]) -> tuple[Array, Array]:
    """The items of each user, parts of users one after the other: ids, and where each bag begins. Each part has as many bags."""
    least = min(len(part) for part in parts)
    by_user = np.argsort(users, kind="stable")
    begins = np.searchsorted(users[by_user], np.arange(int(users.max()) + 2))
    found = [items[by_user[begins[user] : begins[user + 1]]] for part in parts for user in part[:least]]
    offsets = np.cumsum([0, *(len(bag) for bag in found)])
    return np.concatenate(found).astype(np.uint64), offsets.astype(np.uint64)
