"""h5py: random rows of a dataset, in ascending order, as it wants them."""

from __future__ import annotations

from typing import Any

import h5py
import numpy as np

from legs.measure import Array
from legs.rows import timed_rows

Spec = dict[str, Any]
Result = dict[str, Any]

CACHE_BYTES, CACHE_SLOTS = 64 << 20, 10_007
"""Of chunks: in ascending order the last one is enough."""


def nothing(spec: Spec) -> Result:
    return {"seconds": [0.0]}


def rows(spec: Spec) -> Result:
    """`at_once`: rows in a list, each once; 1: one by one, by their number."""

    def take(numbers: Array) -> Array:
        ascending, places = np.unique(numbers, return_inverse=True)
        with h5py.File(spec["path"], "r", rdcc_nbytes=CACHE_BYTES, rdcc_nslots=CACHE_SLOTS) as file:
            x = file["x"]
            found = np.empty((len(ascending), x.shape[1]), x.dtype)
            if spec["at_once"] == 1:
                for place, number in enumerate(ascending.tolist()):
                    found[place] = x[number]
            else:
                for start in range(0, len(ascending), spec["at_once"]):
                    part = slice(start, start + spec["at_once"])
                    found[part] = x[ascending[part]]
        return found[places]

    return timed_rows(spec, take, [spec["path"]])
