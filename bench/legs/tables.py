"""Look-ups in embedding tables, by every contestant of `table-rows`, `bags-*`, `model-*` and `hot-*`."""

from __future__ import annotations

import importlib
import itertools
import json
import mmap
import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from outcore.embedding_bench.models import MODELS

from legs.measure import Array, cold, processor_seconds, sampled
from legs.rows import least_sectors, rows_error, seed_of

Spec = dict[str, Any]
Result = dict[str, Any]
Sums = Callable[[Sequence[Array], int, Sequence[int]], list[Array]]
"""The sums of a batch of the ids of each table: batch size, and look-ups of each table."""


MODEL_IMPORTS = ("torch", "outcore.embedding", "outcore.embedding_bench.networks")
IMPORTS = {
    "torch": ("torch",),
    "pages": ("torch", "outcore.embedding_bench.modes"),
    "rocksdb": ("rocksdict",),
    "model": MODEL_IMPORTS,
    "network": MODEL_IMPORTS,
    "look-ups": MODEL_IMPORTS,
}
"""Of each contestant; outcore's own otherwise."""


def nothing(spec: Spec) -> Result:
    for module in IMPORTS.get(spec.get("mode", ""), ("outcore.embedding",)):
        importlib.import_module(module)
    if "model" in spec:
        compute(spec)
    return {"seconds": [0.0]}


def compute(spec: Spec) -> None:
    """Batches of the network alone: the memory that they take is allowed beside the budget, as that of imports is."""
    import torch
    from outcore.embedding_bench.networks import Model

    told, shape = json.loads(Path(spec["trace"]).read_text()), MODELS[spec["model"]]
    sums = [torch.zeros(told["batch_size"], told["dim"])] * len(told["paths"])
    network = Model(shape, lambda lookups: []).eval().network
    with torch.inference_mode():
        for _ in range(50):
            network(torch.zeros(told["batch_size"], shape.dense), sums)


def rows(spec: Spec) -> Result:
    """Random rows of one table, none of them in memory."""
    import outcore as oc
    from outcore.embedding import Table

    if spec.get("core") is not None:
        os.sched_setaffinity(0, {spec["core"]})
    oc.configure(memory=spec["memory"], threads=1)
    table = Table.open(spec["a"], cache=0, reading=spec["memory"] // 4, readers=1)
    seed, error = seed_of(spec), 0.0
    random, x = np.random.default_rng(seed), np.load(spec["a"], mmap_mode="r")
    asked: list[Array] = []
    found: list[Array] = []
    sectors: list[int] = []

    def before() -> None:
        nonlocal error
        error = max(error, *(rows_error(some, numbers, x) for some, numbers in zip(found, asked, strict=True)), 0.0)
        asked[:], found[:] = [random.integers(0, len(x), spec["count"])], []
        sectors.append(least_sectors(asked[0], x[:1].nbytes, x.offset))
        cold([spec["a"]])

    timed = sampled(lambda: found.append(table[asked[0]]), seconds=spec["seconds"], before=before)
    before()
    return {**timed, "work": float(np.mean(sectors[:-1])), "rows": spec["count"], "seed": str(seed), "error": error}


def bags(spec: Spec) -> Result:
    """Sums of the bags of a trace, batch after batch, as many as there is time for.

    `samples`: how many of a batch are looked up at a time, all of them otherwise.
    """
    told = json.loads(Path(spec["trace"]).read_text())
    ids = np.load(spec["ids"], mmap_mode="r")
    size, lookups, paths = told["batch_size"], told["lookups"], told["paths"]
    ends = np.cumsum([size * count for count in lookups])
    at_once = spec.get("samples", size)

    def parts() -> Iterator[list[Array]]:
        # One batch in memory at a time: all of them would take most of what the process may have.
        for batch in ids:
            samples = [part.reshape(size, -1) for part in np.split(np.array(batch), ends[:-1])]
            for first in range(0, size, at_once):
                yield [part[first : first + at_once].ravel() for part in samples]

    batches, warm = parts(), len(ids) // 2 * -(-size // at_once)
    cold(paths)
    sums: Sums = CONTESTANTS[spec["mode"]](paths, told["dim"], spec)
    error, seconds, done, cpu = 0.0, 0.0, 0, 0.0
    began = time.perf_counter()
    for batch in itertools.islice(batches, warm):
        sums(batch, batch[0].size // lookups[0], lookups)
        if time.perf_counter() - began > spec["seconds"]:
            break
    for batch in batches:
        started, used = time.perf_counter(), processor_seconds()
        found = sums(batch, batch[0].size // lookups[0], lookups)
        seconds += time.perf_counter() - started
        cpu += processor_seconds() - used
        if not done:
            error = worst(found, batch, paths, lookups)
        done += sum(part.size for part in batch)
        if seconds > spec["seconds"]:
            break
    facts = {"batches": done / len(ids[0]), "error": error, **getattr(sums, "facts", dict)()}
    return {"seconds": [seconds], "cpu_seconds": cpu, "work": float(done), **facts}


def hot(spec: Spec) -> Result:
    """Sums of a trace of which few rows are in memory, batch after batch. The first half of the batches warms the cache up;
    with `all_rows`, all of them do before.

    `steps`: batches that are looked up ahead; `known`: batches that the cache knows ahead, 0 for none; `passes` over the second
    half.
    """
    import outcore as oc
    from outcore.embedding import Feature, TableSet, look_ahead

    oc.configure(memory=spec["memory"])
    told = json.loads(Path(spec["trace"]).read_text())
    ids, steps = np.load(spec["ids"], mmap_mode="r"), spec["steps"]
    size, warm = told["batch_size"], len(ids) // 2
    order = passed(len(ids), spec.get("passes", 1))
    cold(told["paths"])
    # A cache has whole chunks: up to an eighth less than it is given.
    rows = told["facts"]["unique_rows"] * 5 // 4 if spec.get("all_rows") else told["cached_rows"]
    cache = rows * (4 * told["dim"] + CACHED_BESIDE_BYTES)
    tables = TableSet(told["paths"], cache=cache, reading=spec["memory"] // 4)

    def features(number: int) -> list[Feature]:
        return [Feature(0, np.array(ids[number]).reshape(size, -1))]

    def submitted() -> Iterator[tuple[int, list[Array]]]:
        coming = deque(tables.submit(features(number)) for number in order[:steps])
        for at, number in enumerate(order):
            yield number, coming.popleft().result()
            if at + steps < len(order):
                coming.append(tables.submit(features(order[at + steps])))

    def reads() -> int:
        return sum(one.units_read for one in tables.statistics.values())

    started, used, before = 0.0, 0.0, 0
    if spec.get("all_rows"):
        for number in range(len(ids)):
            tables.look_up(features(number))
    known = spec.get("known")
    going = look_ahead(tables, order, features, steps=steps, known=known) if known else submitted()
    found: list[Array] = []
    for number, found in going:  # noqa: B007 - the last one is checked
        if number == warm - 1:
            started, used, before = time.perf_counter(), processor_seconds(), reads()
    seconds, cpu, done = time.perf_counter() - started, processor_seconds() - used, len(order) - warm
    error = worst(found, [np.array(ids[-1])], told["paths"], told["lookups"])
    # What was read ahead before the clock started is no part of the work.
    facts = {"units_read": reads() - before, "reads": sum(told["reads"][warm + steps :]), "batches": done}
    return {"seconds": [seconds], "cpu_seconds": cpu, "work": float(done * ids[0].size), "error": error, **facts}


def hot_in_memory(spec: Spec) -> Result:
    """The same batches by torch.nn.EmbeddingBag on the whole table in memory."""
    import torch

    told = json.loads(Path(spec["trace"]).read_text())
    ids, size = np.load(spec["ids"], mmap_mode="r"), told["batch_size"]
    (path,) = told["paths"]
    table = torch.nn.EmbeddingBag.from_pretrained(torch.from_numpy(np.load(path)), mode="sum")
    started, used, warm, order = 0.0, 0.0, len(ids) // 2, passed(len(ids), spec.get("passes", 1))
    with torch.inference_mode():
        for at, number in enumerate(order):
            if at == warm:
                started, used = time.perf_counter(), processor_seconds()
            found = table(torch.from_numpy(np.array(ids[number]).reshape(size, -1)))
    seconds, cpu = time.perf_counter() - started, processor_seconds() - used
    error = worst([found.numpy()], [np.array(ids[-1])], [path], told["lookups"])
    return {"seconds": [seconds], "cpu_seconds": cpu, "work": float((len(order) - warm) * ids[0].size), "error": error}


def passed(batches: int, passes: int) -> list[int]:
    """The numbers of the batches, of the second half of them as often as there are passes."""
    return [*range(batches), *(passes - 1) * list(range(batches // 2, batches))]


def model(spec: Spec) -> Result:
    """A recommender over a trace: batches are looked up while the network computes those before.

    Modes `network` and `look-ups`: one without the other. The network's sums are then those of one batch, in memory, as often as
    there is time for.
    """
    import outcore as oc
    import torch
    from outcore.embedding import JaggedBatch, TableSet
    from outcore.embedding_bench.networks import Model

    oc.configure(memory=spec["memory"])
    torch.set_num_threads(spec.get("network_threads", torch.get_num_threads()))
    told = json.loads(Path(spec["trace"]).read_text())
    ids, size = np.load(spec["ids"], mmap_mode="r"), told["batch_size"]
    ends = np.cumsum([size * count for count in told["lookups"]])
    shape = MODELS[spec["model"]]
    cold(told["paths"])
    network = Model(shape, lambda lookups: []).eval().network
    dense = torch.rand(size, shape.dense, generator=torch.Generator().manual_seed(0))
    tables = TableSet(told["paths"], cache=spec["cache"], reading=spec["memory"] // 4)
    lengths = np.repeat(told["lookups"], size)

    def sums() -> Iterator[list[Array]]:
        if spec["mode"] == "network":
            yield from itertools.repeat(submit(0).result())
        coming = deque(submit(number) for number in range(spec["ahead"]))
        for number in range(len(ids)):
            yield coming.popleft().result()
            if number + spec["ahead"] < len(ids):
                coming.append(submit(number + spec["ahead"]))

    def submit(number: int) -> Any:
        return tables.submit(JaggedBatch(np.array(ids[number]), lengths=lengths))

    def reads() -> int:
        return sum(one.units_read for one in tables.statistics.values())

    warm, begun = len(ids) // 2, time.perf_counter()
    started, used, before, done = begun, 0.0, 0, 0
    with torch.inference_mode():
        for number, found in enumerate(sums()):
            if spec["mode"] != "look-ups":
                network(dense, [torch.from_numpy(rows) for rows in found])
            elapsed = time.perf_counter() - started
            done += number > warm
            if done and elapsed > spec["seconds"]:
                break
            if number == warm or (number < warm and elapsed > spec["seconds"]):
                warm, started, used, before = number, time.perf_counter(), processor_seconds(), reads()
    seconds, cpu, read = time.perf_counter() - started, processor_seconds() - used, reads() - before
    batch = np.split(np.array(ids[0 if spec["mode"] == "network" else number]), ends[:-1])
    error = worst(found, batch, told["paths"], told["lookups"])
    facts = {"prepare_s": started - begun, "error": error, **({} if spec["mode"] == "network" else {"reads": read})}
    return {"seconds": [seconds], "cpu_seconds": cpu, "work": float(done * size), **facts}


def worst(found: Sequence[Array], batch: Sequence[Array], paths: Sequence[str], lookups: Sequence[int]) -> float:
    """The largest error of some bags, over eps times the sum of the rows' absolute values: about 1 at most when right."""
    error = 0.0
    for rows, ids, path, count in zip(found, batch, paths, lookups, strict=True):
        table: Any = np.load(path, mmap_mode="r")
        table._mmap.madvise(mmap.MADV_RANDOM)
        for bag in (0, len(rows) - 1):
            added = table[np.asarray(ids[bag * count : (bag + 1) * count])].astype(np.float64)
            size = np.finfo(np.float32).eps * np.abs(added).sum(0)
            error = max(error, float((np.abs(rows[bag] - added.sum(0)) / size).max()))
        del table
    return error


def train(spec: Spec) -> Result:
    """Steps of row-wise Adagrad on the tables of a trace, as many as it has batches."""
    import outcore as oc
    from outcore.embedding import Feature, TableSet, create

    oc.configure(memory=spec["memory"])
    told = json.loads(Path(spec["trace"]).read_text())
    size, dim = told["batch_size"], told["dim"]
    paths = [f"{spec['folder']}/trained-{number}" for number in range(len(told["paths"]))]
    for source, path in zip(told["paths"], paths, strict=True):
        if not os.path.exists(path):
            create(source, path, "rowwise_adagrad")
    ids = np.load(spec["ids"], mmap_mode="r")
    ends = np.cumsum([size * count for count in told["lookups"]])
    cache = spec["cached_rows"] * (4 * dim + 4 + CACHED_BESIDE_BYTES)
    tables = TableSet(paths, writable=True, cache=cache, reading=spec["memory"] // 4)
    gradient = np.random.default_rng(0).standard_normal((size, dim)).astype(np.float32)
    seconds, cpu, missed, missed_all, error = 0.0, 0.0, 0, 0, 0.0

    def pages_read() -> int:
        return sum(table.units_read for table in tables.statistics.values())

    for number, batch in enumerate(ids):
        features = [Feature(table, part.reshape(size, -1)) for table, part in enumerate(np.split(np.array(batch), ends[:-1]))]
        before, started, used = pages_read(), time.perf_counter(), processor_seconds()
        sums = tables.look_up(features)
        missed = pages_read() - before
        tables.train(features, [gradient] * len(features), "rowwise_adagrad", RATE)
        if number >= len(ids) // 2:
            seconds += time.perf_counter() - started
            cpu += processor_seconds() - used
            missed_all += missed
            error = max(error, float(not all(np.isfinite(rows).all() for rows in sums)))
    watched = np.unique(ids[0][: size * told["lookups"][0]])[:WATCHED_ROWS]
    parts = [np.array(batch[: ends[0]]).reshape(size, -1) for batch in ids]
    expected = trained(np.load(told["paths"][0], mmap_mode="r")[watched], watched, parts, gradient)
    error = max(error, float(np.abs(tables[0][watched] - expected).max() / TRAINED_WITHIN))
    facts = {"pages_read": pages_read(), "steps": len(ids) - len(ids) // 2}
    return {"seconds": [seconds], "cpu_seconds": cpu, "work": float(missed_all * 4096), "error": error, **facts}


RATE = 0.01
WATCHED_ROWS, TRAINED_WITHIN = 64, 1e-6
"""Rows of the first table that are compared with what ten lines of NumPy make of them."""


def trained(rows: Array, numbers: Array, batches: Sequence[Array], gradient: Array) -> Array:
    """What steps of row-wise Adagrad make of some rows, whose state is zero: bags are sums, and so is a row's gradient.

    Parameters
    ----------
    rows : float32 array [rows, elements]
    numbers : int array [rows]
    batches : int arrays [bags, ids of a bag]
    gradient : float32 array [bags, elements]
    """
    rows, squares = rows.copy(), np.zeros(len(rows), np.float32)
    for batch in batches:
        for at, number in enumerate(numbers):
            times = (batch == number).sum(axis=1)
            if times.any():
                of_row = (times[:, None] * gradient).sum(axis=0)
                squares[at] += (of_row**2).mean()
                rows[at] -= RATE * of_row / (np.sqrt(squares[at]) + 1e-8)
    return rows


CACHED_BESIDE_BYTES = 88
"""Of a row in memory: its entries in the cache's tables."""


class Ours:
    def __init__(self, paths: Sequence[str], dim: int, spec: Spec) -> None:
        import outcore as oc
        from outcore.embedding import Feature, TableSet

        oc.configure(memory=spec["memory"])
        self.feature = Feature
        self.tables = TableSet(paths, cache=spec["cache"], reading=spec["memory"] // 4, readers=1)

    def __call__(self, batch: Sequence[Array], size: int, lookups: Sequence[int]) -> list[Array]:
        return self.tables.look_up([self.feature(number, ids.reshape(size, -1)) for number, ids in enumerate(batch)])

    def facts(self) -> dict[str, Any]:
        known = list(self.tables.statistics.values())
        return {
            "hit_rate": sum(one.hits for one in known) / sum(one.looked_up for one in known),
            "units_read": sum(one.units_read for one in known),
        }


class Torch:
    """`torch.nn.EmbeddingBag` on memory maps."""

    def __init__(self, paths: Sequence[str], dim: int, spec: Spec) -> None:
        import torch

        self.torch = torch
        self.tables = []
        for path in paths:
            table: Any = np.load(path, mmap_mode="c")
            if spec.get("random"):
                table._mmap.madvise(mmap.MADV_RANDOM)
            self.tables.append(torch.nn.EmbeddingBag.from_pretrained(torch.from_numpy(table), mode="sum"))

    def __call__(self, batch: Sequence[Array], size: int, lookups: Sequence[int]) -> list[Array]:
        with self.torch.inference_mode():
            return [
                table(self.torch.from_numpy(ids.reshape(size, -1))).numpy() for table, ids in zip(self.tables, batch, strict=True)
            ]


class Pages:
    """The paper's baseline: a page of 4 KiB is read past the page cache for one row after the other."""

    def __init__(self, paths: Sequence[str], dim: int, spec: Spec) -> None:
        import torch
        from outcore.embedding_bench.modes import PageBags

        self.torch, self.bags = torch, PageBags(paths, dim)

    def __call__(self, batch: Sequence[Array], size: int, lookups: Sequence[int]) -> list[Array]:
        of = self.torch.from_numpy
        asked = [(of(ids), of(np.arange(0, size * count, count))) for ids, count in zip(batch, lookups, strict=True)]
        return [rows.numpy() for rows in self.bags(asked)]


class RocksDB:
    """MultiGet of the distinct rows of a batch, sorted; what is kept in memory is RocksDB's block cache."""

    def __init__(self, paths: Sequence[str], dim: int, spec: Spec) -> None:
        from rocksdict import AccessType, Rdict

        options = rocksdb_options(spec["memory"])
        folder = rocksdb_folder(spec["folder"])
        self.database = Rdict(folder, options, access_type=AccessType.read_only())
        self.dim = dim

    def __call__(self, batch: Sequence[Array], size: int, lookups: Sequence[int]) -> list[Array]:
        found = []
        for number, (ids, count) in enumerate(zip(batch, lookups, strict=True)):
            distinct, places = np.unique(ids, return_inverse=True)
            keys = [key_of(number, row) for row in distinct.tolist()]
            rows = np.frombuffer(b"".join(self.database[keys]), np.float32).reshape(len(keys), self.dim)
            found.append(rows[places.reshape(size, count)].sum(axis=1))
        return found


def key_of(table: int, row: int) -> bytes:
    return table.to_bytes(2, "big") + row.to_bytes(6, "big")


def rocksdb_folder(folder: str) -> str:
    return f"{folder}/rocksdb"


def rocksdb_options(cache_bytes: int) -> Any:
    """As FBGEMM and NVIDIA set it up for tables: direct reads, no compression, hash index off, a bloom filter.

    The index is in parts, so that its blocks and those of rows share the cache; and the filters of the last level, which has all
    rows, are not read, since every key that is asked for is there.
    """
    from rocksdict import BlockBasedIndexType, BlockBasedOptions, Cache, DBCompressionType, Options

    blocks = BlockBasedOptions()
    blocks.set_block_cache(Cache(cache_bytes // 2))
    blocks.set_block_size(4096)
    blocks.set_bloom_filter(10, False)
    blocks.set_cache_index_and_filter_blocks(True)
    blocks.set_index_type(BlockBasedIndexType.two_level_index_search())
    options = Options(raw_mode=True)
    options.set_block_based_table_factory(blocks)
    options.set_compression_type(DBCompressionType.none())
    options.set_use_direct_reads(True)
    options.set_optimize_filters_for_hits(True)
    options.increase_parallelism(os.cpu_count() or 1)
    return options


CONTESTANTS: dict[str, Callable[[Sequence[str], int, Spec], Sums]] = {
    "ours": Ours,
    "torch": Torch,
    "pages": Pages,
    "rocksdb": RocksDB,
}
