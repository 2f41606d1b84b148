"""numpy: in memory, on memory maps, and on memory maps with loops written by hand."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from legs.measure import cold, product_error, sampled, timed

Spec = dict[str, Any]
Result = dict[str, Any]


def nothing(spec: Spec) -> Result:
    return {"seconds": [0.0]}


def gemm_memory(spec: Spec) -> Result:
    a, b = np.load(spec["a"]), np.load(spec["b"])
    c = np.zeros((a.shape[0], b.shape[1]), a.dtype)
    found = timed(lambda: np.matmul(a, b, out=c), spec)
    return {**found, "error": product_error(c, a, b)}


def gemm_load_save(spec: Spec) -> Result:
    """What one writes when everything fits; `durable`: and waits until the result is on the device, as outcore does."""
    out = Path(spec["out"])

    def call() -> None:
        c = np.matmul(np.load(spec["a"]), np.load(spec["b"]))
        with open(out, "wb") as file:
            np.save(file, c)
            if spec.get("durable"):
                file.flush()
                os.fsync(file.fileno())

    def before() -> None:
        out.unlink(missing_ok=True)
        cold([spec["a"], spec["b"]])

    found = sampled(call, seconds=spec.get("seconds", 0.0), before=before)
    return {**found, "error": mapped_error(spec)}


def gemm_memmap(spec: Spec) -> Result:
    """Paging left to the system."""

    def call() -> None:
        a, b = np.load(spec["a"], mmap_mode="r"), np.load(spec["b"], mmap_mode="r")
        c = np.lib.format.open_memmap(spec["out"], mode="w+", dtype=np.float32, shape=(a.shape[0], b.shape[1]))
        np.matmul(a, b, out=c)
        c.flush()

    return {**sampled(call), "error": mapped_error(spec)}


def gemm_blocks(spec: Spec) -> Result:
    """What a careful programmer writes: square blocks copied into memory, four of them within the budget."""
    size = block_side(spec["budget_bytes"])

    def call() -> None:
        a, b = np.load(spec["a"], mmap_mode="r"), np.load(spec["b"], mmap_mode="r")
        (m, k), n = a.shape, b.shape[1]
        c = np.lib.format.open_memmap(spec["out"], mode="w+", dtype=np.float32, shape=(m, n))
        for i in range(0, m, size):
            for j in range(0, n, size):
                total = np.zeros((min(size, m - i), min(size, n - j)), np.float32)
                product = np.empty_like(total)
                for p in range(0, k, size):
                    left = np.array(a[i : i + size, p : p + size])
                    right = np.array(b[p : p + size, j : j + size])
                    total += np.matmul(left, right, out=product)
                c[i : i + size, j : j + size] = total
        c.flush()

    return {**sampled(call), "block": size, "error": mapped_error(spec)}


def block_side(budget_bytes: int) -> int:
    """Four blocks in half the budget: BLAS packs copies of its own, and the maps' pages count against a process limit too."""
    side = 64
    while 4 * (2 * side) ** 2 * 4 <= budget_bytes // 2:
        side *= 2
    return side


def mapped_error(spec: Spec) -> float:
    return product_error(*(np.load(spec[key], mmap_mode="r") for key in ("out", "a", "b")))
