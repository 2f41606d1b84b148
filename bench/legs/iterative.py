"""An iterative algorithm over data that is passed over again and again, fed by one of several caching models.

The models are those that the paper of SSDStreamer compares: memory and disk in two levels; plain files; prefetching without
direct I/O; direct I/O without prefetching; streams; and everything in memory. A part of the data is a Python object with arrays.
Time is split into writing, with pickling, computing, and reading, with unpickling: a stream does both in one call.
"""

from __future__ import annotations

import mmap
import os
import pickle
import shutil
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from legs.measure import disk_bytes

Spec = dict[str, Any]
Result = dict[str, Any]
Part = dict[str, Any]

AHEAD = 4


def nothing(spec: Spec) -> Result:
    return {"seconds": [0.0]}


class Clock:
    """What time goes by for."""

    def __init__(self) -> None:
        self.parts = {"writing": 0.0, "computing": 0.0, "reading": 0.0}

    @contextmanager
    def on(self, what: str) -> Iterator[None]:
        started = time.perf_counter()
        try:
            yield
        finally:
            self.parts[what] += time.perf_counter() - started


def run(spec: Spec) -> Result:
    folder = Path(spec["folder"])
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    clock = Clock()
    model = MODELS[spec["model"]](spec, folder, clock)
    before, cpu = disk_bytes(), 0.0
    for number in range(spec["parts"]):
        part = made(spec, number)
        spent = time.process_time()
        with clock.on("writing"):
            model.put(number, part)
        cpu += time.process_time() - spent
        del part
    with clock.on("writing"):
        model.whole()
    spent = time.process_time()
    algorithm = ALGORITHMS[spec["algorithm"]](spec)
    for _ in range(spec["epochs"]):
        for part in model.epoch():
            with clock.on("computing"):
                algorithm.take(part)
            del part
        algorithm.step()
    cpu += time.process_time() - spent
    moved = {key: value - before[key] for key, value in disk_bytes().items()}
    model.close()
    shutil.rmtree(folder)
    total = sum(clock.parts.values())
    return {"seconds": [total], "cpu_seconds": cpu, "parts": clock.parts, "outcome": algorithm.outcome(), **moved}


def made(spec: Spec, number: int) -> Part:
    """Rows of two classes that overlap, and which they belong to."""
    random = np.random.default_rng(number)
    y = (np.arange(spec["part_rows"]) % 2).astype(np.float32)
    x = random.standard_normal((spec["part_rows"], spec["columns"]), np.float32)
    x += (y[:, None] - 0.5) * np.linspace(-0.3, 0.3, spec["columns"], dtype=np.float32)
    return {"x": x, "y": y}


class Logistic:
    """Logistic regression by the full gradient."""

    def __init__(self, spec: Spec) -> None:
        self.w = np.zeros(spec["columns"], np.float32)
        self.rows, self.loss = 0, 0.0
        self.gradient = np.zeros_like(self.w)

    def take(self, part: Part) -> None:
        x, y = part["x"], part["y"]
        margin = x @ self.w
        p = 1 / (1 + np.exp(-margin))
        self.gradient += (p - y) @ x
        self.loss += float(np.logaddexp(0, margin).sum() - margin @ y)
        self.rows += len(y)

    def step(self) -> None:
        self.w -= self.gradient / self.rows
        self.last = self.loss / self.rows
        self.rows, self.loss = 0, 0.0
        self.gradient[:] = 0

    def outcome(self) -> float:
        return self.last


class KMeans:
    """Lloyd's algorithm. Its arrays are made once: an allocator gives their pages back, or not, depending on the model."""

    def __init__(self, spec: Spec) -> None:
        self.centers = np.ascontiguousarray(made(spec, 0)["x"][: spec["clusters"]])
        self.rows = np.arange(spec["part_rows"])
        self.scores = np.empty((spec["part_rows"], spec["clusters"]), np.float32)
        self.members = np.zeros_like(self.scores)
        self.begin()

    def begin(self) -> None:
        self.sums, self.counts, self.inertia = np.zeros_like(self.centers), np.zeros(len(self.centers)), 0.0

    def take(self, part: Part) -> None:
        x = part["x"]
        np.matmul(x, -2 * self.centers.T, out=self.scores)
        self.scores += np.square(self.centers).sum(1)
        labels = self.scores.argmin(1)
        self.inertia += float(self.scores[self.rows, labels].sum(dtype=np.float64) + np.vdot(x, x))
        self.members[self.rows, labels] = 1
        self.sums += self.members.T @ x
        self.members[self.rows, labels] = 0
        self.counts += np.bincount(labels, minlength=len(self.centers))

    def step(self) -> None:
        self.last = self.inertia
        self.centers = (self.sums / np.maximum(self.counts, 1)[:, None]).astype(np.float32)
        self.begin()

    def outcome(self) -> float:
        return self.last


ALGORITHMS: dict[str, Any] = {"logistic": Logistic, "kmeans": KMeans}


class Model:
    """Keeps parts, and gives them back in order as often as it is asked."""

    def __init__(self, spec: Spec, folder: Path, clock: Clock) -> None:
        self.spec, self.folder, self.clock, self.count = spec, folder, clock, 0

    def put(self, number: int, part: Part) -> None:
        self.count += 1
        self.save(number, part)

    def whole(self) -> None:
        """Everything is durable."""
        for number in range(self.count):
            if self.path(number).exists():
                descriptor = os.open(self.path(number), os.O_RDONLY)
                os.fsync(descriptor)
                os.close(descriptor)

    def path(self, number: int) -> Path:
        return self.folder / f"{number}.pickle"

    def save(self, number: int, part: Part) -> None:
        with open(self.path(number), "wb") as file:
            pickle.dump(part, file, 5)

    def load(self, number: int) -> Part:
        with self.clock.on("reading"):
            data = self.path(number).read_bytes()
        with self.clock.on("reading"):
            return pickle.loads(data)

    def epoch(self) -> Iterator[Part]:
        for number in range(self.count):
            yield self.load(number)

    def close(self) -> None:
        pass


class PlainFiles(Model):
    """Spark's DISK_ONLY: a file a part, through the kernel's cache."""


class TwoLevels(Model):
    """Spark's MEMORY_AND_DISK: parts as objects in memory up to a limit, the others in files.

    There, a block evicts the least recently used of other data sets, never one of its own (`MemoryStore.evictBlocksToFreeSpace`):
    in a pass over more than memory holds, each would be evicted just before its turn. Here is one data set, so what is in
    memory stays, and a part that is read from its file is not kept.
    """

    def __init__(self, spec: Spec, folder: Path, clock: Clock) -> None:
        super().__init__(spec, folder, clock)
        self.memory: dict[int, Part] = {}
        self.room = spec["memory"] // (4 * spec["part_rows"] * (spec["columns"] + 1))

    def put(self, number: int, part: Part) -> None:
        self.count += 1
        if len(self.memory) < self.room:
            self.memory[number] = part
        else:
            self.save(number, part)

    def load(self, number: int) -> Part:
        return self.memory[number] if number in self.memory else super().load(number)


class Prefetching(Model):
    """Files read ahead by a thread, through the kernel's cache."""

    def epoch(self) -> Iterator[Part]:
        with ThreadPoolExecutor(1) as pool:
            ahead = [pool.submit(self.path(number).read_bytes) for number in range(min(AHEAD, self.count))]
            for number in range(self.count):
                with self.clock.on("reading"):
                    data = ahead.pop(0).result()
                if number + AHEAD < self.count:
                    ahead.append(pool.submit(self.path(number + AHEAD).read_bytes))
                with self.clock.on("reading"):
                    part = pickle.loads(data)
                del data
                yield part
                del part


class Direct(Model):
    """Direct I/O, a part when it is wanted."""

    def __init__(self, spec: Spec, folder: Path, clock: Clock) -> None:
        super().__init__(spec, folder, clock)
        size = 4 * spec["part_rows"] * (spec["columns"] + 1)
        self.buffer = mmap.mmap(-1, (size + 8192) // 4096 * 4096)
        self.lengths: list[int] = []

    def save(self, number: int, part: Part) -> None:
        data = pickle.dumps(part, 5)
        self.lengths.append(len(data))
        self.buffer[: len(data)] = data
        descriptor = os.open(self.path(number), os.O_WRONLY | os.O_CREAT | os.O_DIRECT)
        os.write(descriptor, memoryview(self.buffer)[: (len(data) + 4095) // 4096 * 4096])
        os.close(descriptor)

    def load(self, number: int) -> Part:
        with self.clock.on("reading"):
            descriptor = os.open(self.path(number), os.O_RDONLY | os.O_DIRECT)
            os.preadv(descriptor, [self.buffer], 0)
            os.close(descriptor)
        with self.clock.on("reading"):
            return pickle.loads(memoryview(self.buffer)[: self.lengths[number]])


class Streams(Model):
    """outcore.streams."""

    def __init__(self, spec: Spec, folder: Path, clock: Clock) -> None:
        import outcore as oc
        from outcore.streams import StreamStore

        super().__init__(spec, folder, clock)
        oc.configure(memory=spec["memory"])
        size = spec["parts"] * 4 * spec["part_rows"] * (spec["columns"] + 1)
        self.store = StreamStore(folder / "store", size=size + size // 8 + (64 << 20))
        self.writer = self.store.create("x")

    def save(self, number: int, part: Part) -> None:
        self.writer.dump(part)

    def whole(self) -> None:
        self.writer.close()

    def epoch(self) -> Iterator[Part]:
        parts = self.store.open("x").load()
        while True:
            with self.clock.on("reading"):
                part = next(parts, None)
            if part is None:
                return
            yield part
            del part


class InMemory(Model):
    """Everything in memory: no limit."""

    def __init__(self, spec: Spec, folder: Path, clock: Clock) -> None:
        super().__init__(spec, folder, clock)
        self.parts: list[Part] = []

    def save(self, number: int, part: Part) -> None:
        self.parts.append(part)

    def epoch(self) -> Iterator[Part]:
        return iter(self.parts)


MODELS: dict[str, Any] = {
    "streams": Streams,
    "two levels": TwoLevels,
    "plain files": PlainFiles,
    "prefetching": Prefetching,
    "direct": Direct,
    "in memory": InMemory,
}
