"""The same work in numpy and in scikit-learn, for comparison.

Run by path, not as a module, so that nothing of outcore is loaded:

    python rivals.py WHICH spec.json

WHICH: `numpy` (the array in memory), `numpy-memmap` (the same lines, the file mapped instead of loaded), `numpy-blocks` (a
memory map and a loop over blocks written by hand), `scikit-learn` (sklearn.decomposition.PCA). The clock starts after the
imports and stops when the projection is on disk.
"""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

BLOCK_ROWS = 4096


def components_of(covariance: Array, k: int) -> tuple[Array, Array]:
    """The k largest eigenvalues, descending, and their vectors as rows."""
    values, vectors = np.linalg.eigh(covariance)
    return values[::-1][:k], np.ascontiguousarray(vectors[:, ::-1][:, :k].T)


def in_memory(images: Path, projection: Path, k: int, mapped: bool) -> Array:
    x = np.load(images, mmap_mode="r" if mapped else None)
    mean = x.mean(axis=0)
    centred = x - mean
    covariance = centred.T @ centred / (len(x) - 1)
    values, components = components_of(covariance, k)
    np.save(projection, centred @ components.T)
    return values


def in_blocks(images: Path, projection: Path, k: int) -> Array:
    """What a careful programmer writes: two loops over a memory map, sums in double precision."""
    x = np.load(images, mmap_mode="r")
    n, d = x.shape
    total = np.zeros(d)
    products = np.zeros((d, d))
    for start in range(0, n, BLOCK_ROWS):
        block = np.array(x[start : start + BLOCK_ROWS])
        total += block.sum(axis=0, dtype=np.float64)
        products += block.T @ block
    mean = total / n
    covariance = (products - n * np.outer(mean, mean)) / (n - 1)
    values, components = components_of(covariance, k)
    components, mean = components.astype(x.dtype), mean.astype(x.dtype)
    out = np.lib.format.open_memmap(projection, mode="w+", dtype=x.dtype, shape=(n, len(components)))
    for start in range(0, n, BLOCK_ROWS):
        out[start : start + BLOCK_ROWS] = (x[start : start + BLOCK_ROWS] - mean) @ components.T
    out.flush()
    return values


def scikit_learn(images: Path, projection: Path, k: int) -> Array:
    pca = make_scikit_learn(k)
    np.save(projection, pca.fit_transform(np.load(images)))
    values: Array = pca.explained_variance_
    return values


def make_scikit_learn(k: int) -> Any:
    from sklearn.decomposition import PCA  # type: ignore[import-untyped,import-not-found,unused-ignore]

    return PCA(n_components=k)


def run(which: str, spec: dict[str, Any]) -> dict[str, Any]:
    images, projection, k = Path(spec["images"]), Path(spec["projection"]), int(spec["components"])
    if which == "scikit-learn":
        try:
            make_scikit_learn(k)
        except ImportError:
            return {"missing": "scikit-learn is not installed"}
    forget(images)
    started = time.perf_counter()
    try:
        if which == "scikit-learn":
            values = scikit_learn(images, projection, k)
        elif which == "numpy-blocks":
            values = in_blocks(images, projection, k)
        else:
            values = in_memory(images, projection, k, mapped=which == "numpy-memmap")
    except MemoryError as error:
        return {"memory_error": str(error) or "MemoryError", "work_s": time.perf_counter() - started}
    return {"work_s": time.perf_counter() - started, "explained_variance": [float(value) for value in values]}


def forget(path: Path) -> None:
    """Every runner starts with the file on disk only: its pages leave the kernel's cache (a no-op where that is not offered)."""
    if hasattr(os, "posix_fadvise"):
        with open(path, "rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def main(which: str, spec_file: str) -> None:
    spec = json.loads(Path(spec_file).read_text())
    result = run(which, spec)
    Path(spec["result"]).write_text(json.dumps(result))


if __name__ == "__main__":
    main(*sys.argv[1:3])
