"""outcore.streams: whole streams, many at once, and small records."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import outcore as oc
from outcore.streams import StreamStore

from legs.measure import sampled

Spec = dict[str, Any]
Result = dict[str, Any]

SPARE = 64 << 20
"""Of the store, besides what is written: its catalog, and trailers of blocks."""


def nothing(spec: Spec) -> Result:
    return {"seconds": [0.0]}


def fresh(spec: Spec) -> StreamStore:
    """A new store: its space is set aside before the clock starts, as fio does it too."""
    Path(spec["file"]).unlink(missing_ok=True)
    oc.configure(memory=spec["memory"])
    return StreamStore(spec["file"], size=int(spec["bytes"] * 1.02) + SPARE)


def fill(store: StreamStore, spec: Spec, name: str = "x") -> None:
    """Writes `bytes`. `copy`: from memory of the caller's, else in the memory that the stream lends, each page of it touched."""
    block, total = spec["block"], spec["bytes"]
    source = np.random.default_rng(0).integers(0, 255, block, dtype=np.uint8)
    with store.create(name, block=block, ahead=spec["ahead"]) as writer:
        number = written = 0
        while written < total:
            number += 1
            if spec.get("copy"):
                source[::4096] = number & 255
                writer.write(source)
                written += block
            else:
                buffer = np.frombuffer(writer.buffer(), np.uint8)
                count = min(len(buffer), total - written)
                buffer[::4096] = number & 255
                del buffer
                writer.advance(count)
                written += count


def write(spec: Spec) -> Result:
    store = fresh(spec)
    found = sampled(lambda: fill(store, spec))
    checked = sum(len(block) for block in store.open("x").blocks())
    return {**found, "work": spec["bytes"], "error": 0.0 if checked >= spec["bytes"] else 1e9}


def read(spec: Spec) -> Result:
    """`copy`: into memory of the caller's, else in the memory that the stream lends, of which each page is looked at."""
    store = fresh(spec)
    fill(store, {**spec, "copy": False})
    destination = bytearray(spec["block"])
    seen = []

    def call() -> None:
        reader = store.open("x", ahead=spec["ahead"])
        if spec.get("copy"):
            count = 0
            while got := reader.readinto(destination):
                count += got
        else:
            count = 0
            for block in reader.blocks():
                np.frombuffer(block, np.uint8)[::4096].max()
                count += len(block)
        seen.append(count)

    found = sampled(call)
    return {**found, "work": spec["bytes"], "error": 0.0 if seen == [spec["bytes"]] else 1e9}


def many(spec: Spec) -> Result:
    """Many streams at once, written a block of each in turn, and then read by a thread each; `slowest`: how fair that was."""
    store = fresh(spec)
    count, block = spec["streams"], spec["block"]
    share = spec["bytes"] // count // block * block
    behind = []

    def call() -> None:
        writers = [store.create(f"{number}", block=block, ahead=spec["ahead"]) for number in range(count)]
        left = [share] * count
        while max(left) > 0:
            for number, writer in enumerate(writers):
                buffer = np.frombuffer(writer.buffer(), np.uint8)
                buffer[::4096] = number
                step = min(len(buffer), left[number])
                del buffer
                writer.advance(step)
                left[number] -= step
        for writer in writers:
            writer.close()
        behind.append(raced(store, count, spec["ahead"]))

    found = sampled(call)
    return {**found, "work": 2 * share * count, "slowest": min(behind)}


def raced(store: StreamStore, count: int, ahead: int) -> float:
    """Reads all streams at once, each by a thread of its own: the rate of the slowest, of that of the fastest."""
    took = [0.0] * count
    started = time.perf_counter()

    def one(number: int) -> None:
        for block in store.open(f"{number}", ahead=ahead).blocks():
            del block
        took[number] = time.perf_counter() - started

    threads = [threading.Thread(target=one, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return min(took) / max(took)


def records(spec: Spec) -> Result:
    """Records of bytes, written and then read, each in hand as Python's bytes. `way`: who keeps them."""
    ways = {"outcore": Ours, "pickle": Pickled, "pickle lists": PickledLists, "arrow": Arrow, "joblib": Joblib}
    batch = [np.random.default_rng(number).bytes(spec["length"]) for number in range(spec["batch"])]
    keeper = ways[spec["way"]](spec)
    seen = []

    def call() -> None:
        keeper.write(batch for _ in range(spec["batches"]))
        cold(spec)
        seen.append(sum(map(len, keeper.read())))

    found = sampled(call)
    expected = spec["batches"] * spec["batch"] * spec["length"]
    return {**found, "work": spec["batches"] * spec["batch"], "error": 0.0 if seen == [expected] else 1e9}


def cold(spec: Spec) -> None:
    """What was written leaves the kernel's cache, for all."""
    from legs.measure import cold as forget

    forget([spec["file"]])


Batches = Iterable[list[bytes]]


class Ours:
    def __init__(self, spec: Spec) -> None:
        self.store = fresh({**spec, "bytes": spec["batches"] * spec["batch"] * (spec["length"] + 4)})

    def write(self, batches: Batches) -> None:
        with self.store.create("x") as writer:
            for batch in batches:
                writer.write_records(batch)

    def read(self) -> Iterator[bytes]:
        for records in self.store.open("x").record_batches():
            yield from records.to_bytes()


class _File:
    def __init__(self, spec: Spec) -> None:
        self.path = spec["file"]

    def synced(self, file: Any) -> None:
        import os

        file.flush()
        os.fsync(file.fileno())


class Pickled(_File):
    """A record at a time, which is what a program does that does not know how many there will be."""

    def write(self, batches: Batches) -> None:
        import pickle

        with open(self.path, "wb") as file:
            for batch in batches:
                for record in batch:
                    pickle.dump(record, file, 5)
            self.synced(file)

    def loaded(self) -> Iterator[Any]:
        import pickle

        with open(self.path, "rb") as file:
            while True:
                try:
                    yield pickle.load(file)
                except EOFError:
                    return

    def read(self) -> Iterator[bytes]:
        return self.loaded()


class PickledLists(Pickled):
    """Lists of records, made by hand."""

    def write(self, batches: Batches) -> None:
        import pickle

        with open(self.path, "wb") as file:
            for batch in batches:
                pickle.dump(batch, file, 5)
            self.synced(file)

    def read(self) -> Iterator[bytes]:
        return itertools.chain.from_iterable(self.loaded())


class Joblib(_File):
    def write(self, batches: Batches) -> None:
        import joblib

        with open(self.path, "wb") as file:
            for batch in batches:
                joblib.dump(batch, file)
            self.synced(file)

    def read(self) -> Iterator[bytes]:
        import joblib

        with open(self.path, "rb") as file:
            while file.peek(1):
                yield from joblib.load(file)


class Arrow(_File):
    """Record batches in the IPC format."""

    def write(self, batches: Batches) -> None:
        import pyarrow as pa

        schema = pa.schema([("record", pa.binary())])
        with open(self.path, "wb") as file:
            with pa.ipc.new_stream(file, schema) as stream:
                for batch in batches:
                    stream.write_batch(pa.record_batch([pa.array(batch, pa.binary())], schema=schema))
            self.synced(file)

    def read(self) -> Iterator[bytes]:
        import pyarrow as pa

        with pa.OSFile(self.path) as file:
            for batch in pa.ipc.open_stream(file):
                yield from batch.column(0).to_pylist()
