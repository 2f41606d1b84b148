"""Latency of look-ups under an offered load: requests arrive at their own times, whether or not earlier ones are done.

Arrivals are a Poisson process, drawn before the clock starts. A request is the look-up of a batch, which the first free client
takes. Its latency is the time from its arrival to its result: a wait for a free client counts, since a generator that pauses
while a request is slow leaves out the requests that would have waited (coordinated omission). Requests that no client has taken
when twice the time is over count as unserved, with the time that they have waited until then.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from .._settings import PathLike
from ..errors import ArgumentError
from .models import ModelSpec
from .modes import ModeFactory
from .networks import Bags, Lookup
from .run import _facts_of, _nothing, _tensors, _threads
from .tables import forgotten, table_files
from .traces import TraceFactory

__all__ = ["bench_load"]

Seconds = npt.NDArray[np.float64]
REQUESTS_FOR_P999 = 1000
"""With fewer, the percentile 99.9 is the largest of them."""


def __dir__() -> list[str]:
    return sorted(__all__)


def bench_load(
    models: Sequence[ModelSpec],
    traces: Mapping[str, TraceFactory],
    modes: Mapping[str, ModeFactory],
    rates: Sequence[float],
    *,
    folder: PathLike,
    clients: int = 4,
    batch_sizes: Sequence[int] = (1,),
    batches: int = 200,
    seconds: float = 10.0,
    cold: bool = True,
    seed: int = 123,
    told: Callable[[dict[str, Any]], None] | None = None,
) -> list[dict[str, Any]]:
    """Measures the latency of look-ups for each model, size of a request, trace, mode and rate.

    Parameters
    ----------
    models, traces, modes, folder, cold, seed, told
        As of `outcore.embedding_bench.run.bench`. What a mode makes is called by all clients at once, which that of "pages" does
        not allow. The modes of one case have the same requests at the same times.
    rates : sequence of float
        Requests a second that arrive.
    clients : int
        Threads that look up: requests that are in progress at a time. PyTorch has one thread in each.
    batch_sizes : sequence of int
        Samples of a request.
    batches : int
        Batches of the trace. The first half is looked up before the clock starts; requests are those of the second, in turn.
    seconds : float
        For which requests arrive, at each rate.

    Returns
    -------
    A dict for each of these: `model`, `trace`, `mode`, `batch_size`, `clients`, `dim`, `tables`, `lookups`,
    `table_bytes`; `offered_per_s`, and `served_per_s` of them; `requests`, of which `unserved`; `latency_p50_s`, `latency_p99_s`,
    `latency_p999_s` (None for fewer than 1,000 requests), `latency_max_s`; and what the mode tells of the requests at this rate,
    such as their hit rate. `outcore.embedding_bench.figures.draw_latencies` draws them.
    """
    if clients < 1 or batches < 2 or not seconds > 0:
        raise ArgumentError(f"at least one client, two batches and some time, not {clients}, {batches} and {seconds} s")
    if not all(0 < rate < float("inf") for rate in rates):
        raise ArgumentError(f"rates are requests a second, more than 0, not {list(rates)}")
    found = []
    with _threads(1):
        for spec, batch_size, (trace_name, factory) in product(models, batch_sizes, traces.items()):
            trace = factory(spec, batches, batch_size, seed)
            asked = [_tensors(trace, number) for number in range(batches)]
            facts = {**_facts_of(spec), "trace": trace_name, "batch_size": batch_size, "clients": clients}
            for name, mode in modes.items():
                if cold:
                    forgotten(table_files(spec, folder))
                for result in _loaded(mode(spec, os.fsdecode(folder)), asked, rates, clients, seconds, seed):
                    found.append({**facts, "mode": name, **result})
                    if told is not None:
                        told(found[-1])
    return found


def _loaded(
    bags: Bags, asked: list[list[Lookup]], rates: Sequence[float], clients: int, seconds: float, seed: int
) -> Iterator[dict[str, Any]]:
    """The results at each rate, with the caches that the rates before have left."""
    warm, requests = asked[: len(asked) // 2], asked[len(asked) // 2 :]
    facts = getattr(bags, "facts", dict)
    try:
        with torch.inference_mode():
            for batch in warm:
                bags(batch)
        facts()
        for rate in rates:
            count = max(1, round(rate * seconds))
            arrivals = np.random.default_rng(seed).exponential(1 / rate, count).cumsum()
            latency, end = _latency(bags, requests, arrivals, clients, 2 * seconds)
            yield {"offered_per_s": rate, **_told(latency, arrivals, end), **facts()}
    finally:
        getattr(bags, "close", _nothing)()


def _latency(
    bags: Bags, requests: list[list[Lookup]], arrivals: Seconds, clients: int, most_seconds: float
) -> tuple[Seconds, float]:
    """Of each request, NaN of those unserved; and when the last client ended. Times are from the beginning on."""
    latency, numbers = np.full(len(arrivals), np.nan), itertools.count()
    due_at = arrivals.tolist()
    begin = time.perf_counter()

    def serve() -> float:
        with torch.inference_mode():
            # A count is advanced by one thread at a time.
            for number in numbers:
                now = time.perf_counter() - begin
                if number >= len(due_at) or max(now, due_at[number]) > most_seconds:
                    return now
                time.sleep(max(0.0, due_at[number] - now))
                bags(requests[number % len(requests)])
                latency[number] = time.perf_counter() - begin - due_at[number]
        raise AssertionError("a count has no end")

    with ThreadPoolExecutor(clients) as pool:
        ended = [pool.submit(serve) for _ in range(clients)]
        return latency, max(one.result() for one in ended)


def _told(latency: Seconds, arrivals: Seconds, end: float) -> dict[str, Any]:
    is_served = ~np.isnan(latency)
    waited = np.where(is_served, latency, np.maximum(end - arrivals, 0.0))
    p50, p99, p999 = np.percentile(waited, [50, 99, 99.9]).tolist()
    return {
        "requests": len(latency),
        "unserved": int((~is_served).sum()),
        "served_per_s": float(is_served.sum() / end),
        "latency_p50_s": p50,
        "latency_p99_s": p99,
        "latency_p999_s": p999 if len(latency) >= REQUESTS_FOR_P999 else None,
        "latency_max_s": float(waited.max()),
    }
