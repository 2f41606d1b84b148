"""Measures the rate of batches, for `outcore bench-data`."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ._session import Session
from ._settings import PathLike
from .data import Dataset, Loader
from .errors import ArgumentError

LOOKED_AT = 4096
"""Batches, at most, of which it is told how uneven they are."""


def measure(
    session: Session,
    path: PathLike,
    seconds: float,
    *,
    batch_size: int,
    shuffle: str,
    seed: int,
    decode: Sequence[str],
    exif_orientation: bool = False,
) -> dict[str, Any]:
    """Opens a dataset and takes batches of it for some seconds.

    Returns
    -------
    dict with `first_batch_s` (with opening), `samples` and `samples_s` (a second), `samples_cpu_s` (a second of one core, of all
    that the process does), `gb_s` (10^9 bytes of samples a second), `epochs`, and `unevenness`, by field with one whole
    number: the variance of the means of batches over that of as many samples drawn at random.
    """
    begin = time.perf_counter()
    dataset = Dataset(path, decode=dict.fromkeys(decode, "RGB"), exif_orientation=exif_orientation, session=session)
    if not len(dataset):
        raise ArgumentError(f"{dataset.path}: has no samples")
    kind: Any = {"no": False}.get(shuffle, shuffle)
    loader = Loader(dataset, batch_size, shuffle=kind, seed=seed, rank=0, world_size=1)
    loader._next()
    numbers = [
        name
        for name, field in dataset.fields.items()
        if field.dtype is not None and field.dtype.kind in "iu" and field.shape == ()
    ]
    first, cpu = time.perf_counter(), time.process_time()
    seen: list[list[npt.NDArray[Any]]] = []
    samples = 0
    while not samples or time.perf_counter() < first + seconds:
        batch = loader._next()
        if batch is not None:
            samples += len(next(iter(batch.values())))
            if len(seen) < LOOKED_AT:
                seen.append([batch[name] for name in numbers])
    spent, cpu = time.perf_counter() - first, time.process_time() - cpu
    return {
        "path": dataset.path,
        "batch_size": batch_size,
        "shuffle": shuffle,
        "first_batch_s": first - begin,
        "samples": samples,
        "samples_s": samples / spent,
        "samples_cpu_s": samples / cpu,
        "gb_s": samples / len(dataset) * dataset.nbytes / spent / 1e9,
        "epochs": samples / len(dataset),
        "unevenness": {name: unevenness([batch[at] for batch in seen], batch_size) for at, name in enumerate(numbers)},
    }


def unevenness(batches: Sequence[npt.NDArray[Any]], batch_size: int) -> float | None:
    """Of batches of numbers, the variance of their means over that of as many samples drawn at random.

    None where there are too few whole batches, or all numbers are the same.
    """
    whole = np.asarray([batch for batch in batches if len(batch) == batch_size], np.float64)
    return batch_size * float(whole.mean(1).var() / whole.var()) if len(whole) > 1 and whole.var() else None
