"""Which hit rate is enough: models over a ladder of cache sizes, beside the same models with their tables in memory.

A rung is a cache with room for a part of the rows of the trace. The next batches are looked up while the network computes. On the
other side are the same network and `torch.nn.EmbeddingBag` on tables in memory. Both sides take turns in rounds, so that a change
of the machine's speed hits both, and a ratio is that of two turns beside each other. A turn begins with batches that are not
measured, until as many are looked up ahead as when it ends. Before the rounds of a rung the whole trace is looked up once; then
batches are drawn from it at random, the same for both sides. In its own order, again and again, caches that are a little too
small for all rows would find few of them.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from itertools import count, product
from statistics import median
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .._embedding_profile import SLOT_BYTES
from .._settings import PathLike
from ..errors import ArgumentError
from .models import ModelSpec
from .modes import TableBags, in_memory
from .networks import Lookup, Model
from .run import ABSOLUTE, RELATIVE, _facts_of, _tensors, _threads
from .tables import forgotten, table_files
from .traces import Trace, TraceFactory, _marked

__all__ = ["SHARES", "WITHIN", "bench_ladder", "enough"]

DRAWN = 1 << 16
"""Batches, before the same ones come again."""
SHARES = (0.0, 0.1, 0.2, 0.4, 0.6, 0.8, 0.9, 1.0, 1.25)
"""Of the rows of a trace, for how many a cache is given memory. Whole chunks take up to an eighth less than that, and miss curves
a sixteenth, so the last one has room for all rows."""
WITHIN = 1.1
"""How many times as long as in memory a batch may take."""

Sums = Generator[Sequence[Tensor], None, None]


def __dir__() -> list[str]:
    return sorted(__all__)


def bench_ladder(
    models: Sequence[ModelSpec],
    traces: Mapping[str, TraceFactory],
    *,
    folder: PathLike,
    shares: Sequence[float] = SHARES,
    batch_sizes: Sequence[int] = (64,),
    batches: int = 100,
    seconds: float = 10.0,
    rounds: int = 5,
    ahead: int = 4,
    seed: int = 123,
    threads: int | None = None,
    told: Callable[[dict[str, Any]], None] | None = None,
) -> list[dict[str, Any]]:
    """Measures each model, with each batch size, on each trace with caches of each size, against its tables in memory.

    Parameters
    ----------
    models, traces, folder, batch_sizes, seed, told
        As of `outcore.embedding_bench.run.bench`.
    shares : sequence of float
        Sizes of the caches, of which one at a time takes memory of the default session: 1 has memory for as many rows of each
        table as the trace looks up of it, where tables share it by their sizes.
    batches : int
        Of the trace.
    seconds : float
        Of each side in all rounds of a rung, without batches that are not measured.
    rounds : int
        Turns of each side; which one is first changes.
    ahead : int
        Batches that are looked up ahead.
    threads : int, optional
        Of PyTorch on both sides, and of look-ups. PyTorch's keep a core busy while they wait, unless OMP_WAIT_POLICY=PASSIVE
        is in the environment.

    Returns
    -------
    A dict for each rung: `model`, `trace`, `batch_size`; of the model `dim`, `tables`, `lookups` (of a sample), `table_bytes`; of
    the trace `unique_rows`, `touched_bytes`; `share`, `cache_bytes`, `cached_rows`; of the look-ups in the rounds `hit_rate`,
    `units_read`; medians over the rounds of `samples_per_s`, `memory_samples_per_s` and `ratio`, the one over the other of a
    round, and the least `ratio_min`; `rounds`, `ahead`, `threads`; and `agrees`, whether sums are those of tables in memory.
    `enough` says from which hit rate on they are near memory, and `outcore.embedding_bench.figures.draw_hit_rates` draws them.

    Raises
    ------
    ArgumentError
    OverBudgetError
        Where the session has no memory for a cache.
    """
    if min(batches, rounds, ahead) < 1 or not seconds > 0:
        raise ArgumentError(f"at least one batch, round and batch ahead, and some time, not {(batches, rounds, ahead, seconds)}")
    if not all(0 <= share < float("inf") for share in shares):
        raise ArgumentError(f"caches have room for a part of the rows, 0 or more, not for {list(shares)}")
    found = []
    with _threads(threads), torch.inference_mode():
        for spec, batch_size, (trace_name, factory) in product(models, batch_sizes, traces.items()):
            trace = factory(spec, batches, batch_size, seed)
            facts = {**_facts_of(spec), "trace": trace_name, "batch_size": batch_size, **trace.facts()}
            contest = _Contest(spec, trace, os.fsdecode(folder), ahead, seed)
            for share in shares:
                found.append({**facts, **contest.rung(share, rounds, seconds)})
                if told is not None:
                    told(found[-1])
            del contest  # its tables in memory, before those of the next one
    return found


def enough(rungs: Sequence[dict[str, Any]]) -> float | None:
    """The lowest measured hit rate from which on all rungs are within `WITHIN` times of memory; None where the highest is not."""
    found = None
    for one in sorted(rungs, key=lambda one: (-one["hit_rate"], one["ratio"])):
        if one["ratio"] * WITHIN < 1:
            break
        found = one["hit_rate"]
    return found


class _Contest:
    """A model on a trace: its network, its tables in memory, and caches of any size beside them."""

    def __init__(self, spec: ModelSpec, trace: Trace, folder: str, ahead: int, seed: int) -> None:
        self.batch_size, self.ahead = trace.batch_size, ahead
        self.paths = table_files(spec, folder)
        self.lookups = [_tensors(trace, number) for number in range(trace.batches)]
        self.order = np.random.default_rng(seed).integers(0, trace.batches, DRAWN)
        self.memory = in_memory(spec, folder)
        forgotten(self.paths)
        self.network = Model(spec, self.memory, seed=seed).eval().network
        self.dense = torch.rand(trace.batch_size, spec.dense, generator=torch.Generator().manual_seed(seed))
        # A set divides its memory by the sizes of the tables at first: the table of which the trace has the largest part counts.
        part = max(_marked(ids, table.rows) / table.rows for ids, table in zip(trace.ids, spec.tables, strict=True))
        self.trace_bytes = part * sum(table.rows for table in spec.tables) * (spec.row_bytes + SLOT_BYTES)

    def rung(self, share: float, rounds: int, seconds: float) -> dict[str, Any]:
        cache_bytes, threads = int(share * self.trace_bytes), torch.get_num_threads()
        bags = TableBags(self.paths, cache=cache_bytes, readers=threads)
        for lookups in self.lookups:
            sums = bags(lookups)
        pairs = zip(sums, self.memory(self.lookups[-1]), strict=True)
        agrees = all(torch.allclose(one, expected, RELATIVE, ABSOLUTE) for one, expected in pairs)
        bags.facts()
        ours, memory = self._rounds(bags, rounds, seconds / rounds)
        ratios = [one / beside for one, beside in zip(ours, memory, strict=True)]
        return {
            "share": share,
            "cache_bytes": cache_bytes,
            "cached_rows": sum(table.statistics.cached_rows for table in bags.tables),
            **bags.facts(),
            "samples_per_s": median(ours),
            "memory_samples_per_s": median(memory),
            "ratio": median(ratios),
            "ratio_min": min(ratios),
            "rounds": rounds,
            "ahead": self.ahead,
            "threads": threads,
            "agrees": agrees,
        }

    def _rounds(self, bags: TableBags, rounds: int, seconds: float) -> tuple[list[float], list[float]]:
        """Samples a second of ours and of memory, in each round."""
        ours: list[float] = []
        memory: list[float] = []
        first = 0
        for number in range(rounds):
            turns = [(ours, self._looked_up_ahead(bags, first)), (memory, self._in_memory(first))]
            passed = 0
            for speeds, batches in turns[:: -1 if number % 2 else 1]:
                speed, of_turn = self._turn(batches, seconds)
                speeds.append(speed)
                passed = max(passed, of_turn)
            # What was looked up ahead when the turn ended is in memory now.
            first += passed + self.ahead
        return ours, memory

    def _turn(self, batches: Sums, seconds: float) -> tuple[float, int]:
        """Samples a second, and how many batches there were, the first ones included, which are not measured."""
        number, begun, now = 0, 0.0, 0.0
        with closing(batches):
            for number, sums in enumerate(batches):
                self.network(self.dense, sums)
                now = time.perf_counter()
                if number < self.ahead:
                    begun = now
                elif now - begun >= seconds:
                    break
        return self.batch_size * (number + 1 - self.ahead) / (now - begun), number + 1

    def _asked(self, number: int) -> list[Lookup]:
        return self.lookups[self.order[number % len(self.order)]]

    def _in_memory(self, first: int) -> Sums:
        for number in count(first):
            yield self.memory(self._asked(number))

    def _looked_up_ahead(self, bags: TableBags, first: int) -> Sums:
        coming = deque(bags.submit(self._asked(number)) for number in range(first, first + self.ahead))
        try:
            for number in count(first + self.ahead):
                found = coming.popleft().result()
                coming.append(bags.submit(self._asked(number)))
                yield [torch.from_numpy(rows) for rows in found]
        finally:
            for one in coming:
                one.result()
