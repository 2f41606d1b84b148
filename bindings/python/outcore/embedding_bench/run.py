"""Runs models over traces with their tables in each place, and measures batches: RecSSD's experiment.

A batch is looked up, then goes through the network; both times are told, and those of whole batches. Every mode runs the same
batches of the same trace with the same weights, and its first sums are compared with those of the first mode.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .._settings import PathLike
from ..errors import ArgumentError
from .models import ModelSpec
from .modes import ModeFactory
from .networks import Lookup, Model
from .tables import forgotten, table_files
from .traces import Trace, TraceFactory

__all__ = ["bench"]

WARM_UP = 2
RELATIVE, ABSOLUTE = 1e-4, 1e-6
"""Of sums of float32 rows that were added in different orders."""


def __dir__() -> list[str]:
    return sorted(__all__)


def bench(
    models: Sequence[ModelSpec],
    traces: Mapping[str, TraceFactory],
    modes: Mapping[str, ModeFactory],
    *,
    folder: PathLike,
    batch_sizes: Sequence[int] = (64,),
    batches: int = 100,
    seconds: float = 10.0,
    cold: bool = True,
    seed: int = 123,
    threads: int | None = None,
    told: Callable[[dict[str, Any]], None] | None = None,
) -> list[dict[str, Any]]:
    """Measures each model on each trace in each mode with each batch size.

    Parameters
    ----------
    models : sequence of ModelSpec
    traces : mapping of names to trace factories
    modes : mapping of names to mode factories
        The first one is what the sums of the others are compared with.
    folder : path
        Where the tables are, or will be written.
    batch_sizes : sequence of int
        Samples of a batch.
    batches : int
        Batches that are measured, at most.
    seconds : float
        No batch begins later, except the first: of each mode, without the batches before that are not measured.
    cold : bool
        Take the tables out of the page cache before each mode.
    seed : int
        Of traces, weights and the numbers of samples.
    threads : int, optional
        Of PyTorch, while this runs.
    told : callable, optional
        Called with each result as it is there.

    Returns
    -------
    A dict for each model, batch size, trace and mode: `model`, `trace`, `mode`, `batch_size`, `batches`; of the model `dim`,
    `tables`, `lookups` (of a sample), `table_bytes`; of all batches that ran, those before included, `unique_rows` and
    `touched_bytes` (the pages of these rows); times of a batch in seconds: `batch_p50_s`, `batch_p90_s`, `batch_p99_s`, and in
    the mean `lookup_s`, `network_s`; `samples_per_s`, `lookups_per_s`, `threads`; and `agrees`, whether its sums are those of the
    first mode.
    """
    if batches < 1 or not seconds > 0:
        raise ArgumentError(f"at least one batch and some time must be measured, not {batches} in {seconds} s")
    found = []
    with _threads(threads):
        for spec, batch_size, (trace_name, factory) in product(models, batch_sizes, traces.items()):
            trace = factory(spec, WARM_UP + batches, batch_size, seed)
            facts = {**_facts_of(spec), "trace": trace_name, "batch_size": batch_size}
            for result in _modes(spec, trace, modes, os.fsdecode(folder), seconds, cold, seed):
                found.append({**facts, **result})
                if told is not None:
                    told(found[-1])
    return found


def _modes(
    spec: ModelSpec, trace: Trace, modes: Mapping[str, ModeFactory], folder: str, seconds: float, cold: bool, seed: int
) -> Iterator[dict[str, Any]]:
    """What each mode does on one trace."""
    paths = table_files(spec, folder)
    expected: Tensor | None = None
    for name, mode in modes.items():
        if cold:
            forgotten(paths)
        times, sums, own = _measured(spec, mode, trace, folder, seconds, seed)
        expected = sums if expected is None else expected
        agrees = torch.allclose(sums, expected, RELATIVE, ABSOLUTE)
        part = trace.first(WARM_UP + len(times.lookup))
        yield {"mode": name, **part.facts(), **times.facts(part.batch_size, spec.lookups), "agrees": agrees, **own}


@contextmanager
def _threads(count: int | None) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _facts_of(spec: ModelSpec) -> dict[str, Any]:
    shape = {"dim": spec.dim, "tables": len(spec.tables), "lookups": spec.lookups, "table_bytes": spec.table_bytes}
    return {"model": spec.name, **shape}


@dataclass
class _Times:
    """Seconds of each batch."""

    lookup: list[float] = field(default_factory=list)
    network: list[float] = field(default_factory=list)

    def facts(self, batch_size: int, lookups: int) -> dict[str, Any]:
        lookup, network = np.array(self.lookup), np.array(self.network)
        whole = lookup + network
        p50, p90, p99 = np.percentile(whole, [50, 90, 99]).tolist()
        samples_per_s = batch_size * len(whole) / float(whole.sum())
        return {
            "batches": len(whole),
            "batch_p50_s": p50,
            "batch_p90_s": p90,
            "batch_p99_s": p99,
            "lookup_s": float(lookup.mean()),
            "network_s": float(network.mean()),
            "samples_per_s": samples_per_s,
            "lookups_per_s": samples_per_s * lookups,
            "threads": torch.get_num_threads(),
        }


def _measured(
    spec: ModelSpec, mode: ModeFactory, trace: Trace, folder: str, seconds: float, seed: int
) -> tuple[_Times, Tensor, dict[str, Any]]:
    """The times of the batches, the sums of the first one, and what the mode has to say itself."""
    bags = mode(spec, folder)
    random = torch.Generator().manual_seed(seed)
    dense = torch.rand(trace.batch_size, spec.dense, generator=random)
    try:
        with torch.inference_mode():
            times, first = _timed(Model(spec, bags, seed=seed).eval(), dense, trace, seconds)
        return times, first, getattr(bags, "facts", dict)()
    finally:
        getattr(bags, "close", _nothing)()


def _timed(model: Model, dense: Tensor, trace: Trace, seconds: float) -> tuple[_Times, Tensor]:
    prefetch = getattr(model.bags, "prefetch", _nothing)
    times, first, begin = _Times(), torch.empty(0), time.perf_counter()
    following = _tensors(trace, 0)
    for number in range(trace.batches):
        batch, following = following, _tensors(trace, min(number + 1, trace.batches - 1))
        started = time.perf_counter()
        sums = model.bags(batch)
        looked_up = time.perf_counter()
        if number + 1 < trace.batches:
            prefetch(following)
        model.network(dense, sums)
        ended = time.perf_counter()
        if number == 0:
            first = torch.cat([one.reshape(-1) for one in sums])
        if number < WARM_UP:
            begin = ended
            continue
        times.lookup.append(looked_up - started)
        times.network.append(ended - looked_up)
        if ended - begin >= seconds:
            break
    return times, first


def _nothing(*_: Any) -> None:
    """What is done where a mode has nothing to prefetch or close."""


def _tensors(trace: Trace, number: int) -> list[Lookup]:
    return [(torch.from_numpy(ids), torch.from_numpy(offsets)) for ids, offsets in trace.batch(number)]
