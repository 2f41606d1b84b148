"""Zarr: random rows of an array in chunks of whole rows, by one orthogonal selection."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import zarr

from legs.measure import Array
from legs.rows import timed_rows

Spec = dict[str, Any]
Result = dict[str, Any]


def nothing(spec: Spec) -> Result:
    return {"seconds": [0.0]}


def rows(spec: Spec) -> Result:
    """`concurrency`: chunks that Zarr asks for at once."""

    def take(numbers: Array) -> Array:
        order = np.argsort(numbers)
        with zarr.config.set({"async.concurrency": spec["concurrency"]}):
            ascending: Any = zarr.open_array(spec["path"], mode="r").oindex[numbers[order]]
        found = np.empty_like(ascending)
        found[order] = ascending
        return found

    return timed_rows(spec, take, [str(path) for path in Path(spec["path"]).rglob("*") if path.is_file()])
