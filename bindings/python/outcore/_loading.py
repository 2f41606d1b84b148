"""Measures how fast batches come, for `outcore bench-data`."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from ._session import PathLike, Session
from .data import Dataset, Loader
from .errors import ArgumentError


def measure(
    session: Session, path: PathLike, seconds: float, *, batch_size: int, shuffle: str, seed: int, decode: Sequence[str]
) -> dict[str, Any]:
    """Opens a dataset and takes batches of it for so many seconds.

    Returns
    -------
    dict with `first_batch_s` (with opening), `samples` and `samples_s` (a second), `samples_cpu_s` (a second of one core, of all
    that the process does), `gb_s` (10^9 bytes of samples a second), `epochs`.
    """
    begin = time.perf_counter()
    dataset = Dataset(path, decode=dict.fromkeys(decode, "RGB"), session=session)
    if not len(dataset):
        raise ArgumentError(f"{dataset.path}: it has no samples")
    kind: Any = {"no": False}.get(shuffle, shuffle)
    loader = Loader(dataset, batch_size, shuffle=kind, seed=seed, rank=0, world_size=1)
    loader._next()
    first, cpu = time.perf_counter(), time.process_time()
    samples = 0
    while not samples or time.perf_counter() < first + seconds:
        batch = loader._next()
        samples += 0 if batch is None else len(next(iter(batch.values())))
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
    }
