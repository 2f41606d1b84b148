"""scipy.sparse, with everything loaded before the clock starts, or from file to file."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from legs import sparse
from legs.measure import cold, sampled, timed

Spec = dict[str, Any]
Result = dict[str, Any]


def nothing(spec: Spec) -> Result:
    return {"seconds": [0.0]}


def csrmm_memory(spec: Spec) -> Result:
    a, b = sparse.load(spec["a"]), np.load(spec["b"])
    made: list[Any] = []

    def call() -> None:
        # The old result goes first: two of them may not fit.
        made.clear()
        made.append(a @ b)

    return {**timed(call, spec), "error": sparse.product_error(made[0], spec["a"], b)}


def gram_memory(spec: Spec) -> Result:
    a, x = sparse.load(spec["a"]), np.load(spec["b"])
    made: list[Any] = []

    def call() -> None:
        made[:] = [a.T @ (a @ x)]

    return {**timed(call, spec), "error": sparse.gram_error(made[0], spec["a"], x)}


def tocsc_memory(spec: Spec) -> Result:
    a = sparse.load(spec["a"])
    made: list[Any] = []
    found = sampled(lambda: made.append(a.tocsc()))
    (turned,) = made
    return {**found, "error": sparse.turned_error((turned.indptr, turned.indices, turned.data), spec["a"])}


def csrmm_load_save(spec: Spec) -> Result:
    """What one writes when everything fits; `durable`: and waits until the result is on the device, as outcore does."""
    out = Path(spec["out"])

    def call() -> None:
        c = sparse.load(spec["a"]) @ np.load(spec["b"])
        with open(out, "wb") as file:
            np.save(file, c)
            if spec.get("durable"):
                file.flush()
                os.fsync(file.fileno())

    def before() -> None:
        out.unlink(missing_ok=True)
        cold([*sparse.files(spec["a"]), spec["b"]])

    found = sampled(call, seconds=spec.get("seconds", 0.0), before=before)
    return {**found, "error": sparse.product_error(np.load(out, mmap_mode="r"), spec["a"], np.load(spec["b"], mmap_mode="r"))}
