"""numpy: in memory, on memory maps, and on memory maps with loops written by hand."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from legs.measure import Array, captured_variance, cold, product_error, sampled, timed
from legs.rows import timed_rows

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


def pca(spec: Spec) -> Result:
    """What a careful programmer writes: the sums of rows and of products, block by block, and the eigenvectors of what they make.

    `ahead`: a thread reads the next block while one is multiplied; else blocks are parts of a memory map.
    """
    made: list[Any] = []

    def call() -> None:
        x = np.load(spec["a"], mmap_mode="r")
        rows, d = max(1, spec["block_bytes"] // x[:1].nbytes), x.shape[1]
        shift = np.array(x[0])
        sums, gram = np.zeros(d), np.zeros((d, d))
        for block in (read_ahead if spec["ahead"] else mapped_blocks)(x, rows):
            # Values are taken from a row, so that squares of a large mean do not drown the variance.
            centred = block - shift
            sums += centred.sum(axis=0, dtype=np.float64)
            gram += centred.T @ centred
        mean = sums / len(x)
        covariance = (gram - len(x) * np.outer(mean, mean)) / (len(x) - 1)
        values, vectors = np.linalg.eigh(covariance)
        best = slice(-1, -spec["components"] - 1, -1)
        made[:] = [vectors[:, best].T, mean + shift, float(values[best].sum() / values.sum())]

    found = sampled(call, before=lambda: cold([spec["a"]]))
    components, mean, ratio = made
    return {
        **found,
        "explained_variance_ratio": ratio,
        "captured_variance": captured_variance(spec["a"], components, mean),
    }


def rows(spec: Spec) -> Result:
    """Of a memory map, in ascending order; `random`: the system is told to read no neighbours."""

    def take(numbers: Array) -> Array:
        x: Any = np.load(spec["a"], mmap_mode="r")
        if spec["random"]:
            x._mmap.madvise(mmap.MADV_RANDOM)
        order = np.argsort(numbers)
        found = np.empty((len(numbers), x.shape[1]), x.dtype)
        found[order] = x[numbers[order]]
        return found

    return timed_rows(spec, take, [])


def mapped_blocks(x: Any, rows: int) -> Iterator[Any]:
    return (x[start : start + rows] for start in range(0, len(x), rows))


def read_ahead(x: Any, rows: int) -> Iterator[Any]:
    """Two blocks of memory in turn, read by a thread that holds no lock of the interpreter meanwhile."""
    buffers = [np.empty((rows, x.shape[1]), x.dtype) for _ in "ab"]
    with open(x.filename, "rb", buffering=0) as file, ThreadPoolExecutor(1) as pool:
        file.seek(x.offset)

        def read(number: int) -> Any:
            block = buffers[number % 2][: len(x) - number * rows]
            left = memoryview(block).cast("B")
            while left:
                left = left[file.readinto(left) or len(left) :]
            return block

        count = -(-len(x) // rows)
        coming = pool.submit(read, 0)
        for number in range(count):
            block = coming.result()
            if number + 1 < count:
                coming = pool.submit(read, number + 1)
            yield block


def block_side(budget_bytes: int) -> int:
    """Four blocks in half the budget: BLAS packs copies of its own, and the maps' pages count against a process limit too."""
    side = 64
    while 4 * (2 * side) ** 2 * 4 <= budget_bytes // 2:
        side *= 2
    return side


def mapped_error(spec: Spec) -> float:
    return product_error(*(np.load(spec[key], mmap_mode="r") for key in ("out", "a", "b")))
