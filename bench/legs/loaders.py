"""Loaders of training samples that others made, each as its documentation has it: written once, then epochs of tensors.

Runs in an environment of its own (bench/rivals.txt), without outcore. A sample is `x`, bytes, and `y`, a number. Where a loader
may have worker processes, their number is the spec's, and all of them share the leg's cores. Each loader tells its modules, which
are imported before any clock starts.
"""

from __future__ import annotations

import importlib
import itertools
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch

from legs.measure import epochs, timed_epoch

Spec = dict[str, Any]
Result = dict[str, Any]

SHARD_BYTES = 64 << 20
RECORDS = 10_000
"""Of an ArrayRecord file: to read one takes time that grows with their number."""
BUFFER = 10_000
"""Samples that WebDataset shuffles; its own examples have as many or fewer."""


def nothing(spec: Spec) -> Result:
    made(spec)
    return {"seconds": [0.0]}


def made(spec: Spec) -> Any:
    """The loader of the spec, and what it imports."""
    loader = LOADERS[spec["loader"]]()
    for module in loader.modules:
        importlib.import_module(module)
    return loader


def rows(spec: Spec) -> Iterator[tuple[int, bytes]]:
    """As harness.samples has them."""
    at_once = max(1, (8 << 20) // spec["size"])
    noise = np.random.default_rng(0).integers(0, 256, (min(at_once, spec["count"]), spec["size"]), np.uint8)
    for start in range(0, spec["count"], at_once):
        found = noise[: min(at_once, spec["count"] - start)]
        found[:, :8] = np.arange(start, start + len(found), dtype="<u8").view(np.uint8).reshape(-1, 8)
        for number, row in enumerate(found, start):
            yield number, row.tobytes()


def tensor(data: bytes) -> torch.Tensor:
    return torch.from_numpy(np.frombuffer(data, np.uint8).copy())


def write_shards(folder: Path, spec: Spec, label: Callable[[int], dict[str, Any]]) -> None:
    import webdataset as wds

    with wds.ShardWriter(f"{folder}/%06d.tar", maxsize=SHARD_BYTES, maxcount=10**9, verbose=0) as out:
        for number, data in rows(spec):
            out.write({"__key__": f"{number:09}", "x.bin": data, **label(number % 1000)})


class WebDataset:
    modules = ("webdataset",)

    def write(self, folder: Path, spec: Spec) -> None:
        write_shards(folder, spec, lambda label: {"y.cls": label})

    def batches(self, folder: Path, spec: Spec) -> Iterator[Any]:
        import webdataset as wds

        shards = sorted(str(path) for path in folder.glob("*.tar"))
        samples = wds.WebDataset(shards, shardshuffle=len(shards), seed=spec["seed"], empty_check=False).shuffle(BUFFER)
        made = samples.map(lambda sample: (tensor(sample["x.bin"]), int(sample["y.cls"])))
        batched = made.batched(spec["batch"], collation_fn=torch.utils.data.default_collate, partial=False)
        yield from wds.WebLoader(batched, batch_size=None, num_workers=spec["workers"])

    def resumed(self, folder: Path, spec: Spec) -> Callable[[], Iterator[Any]]:
        """It has no state: what came before comes again, and is passed over."""
        return lambda: itertools.islice(self.batches(folder, spec), spec["count"] // spec["batch"] // 2, None)


class Dali:
    """NVIDIA's, without a GPU, over tar shards and their indices."""

    modules = ("nvidia.dali.fn",)

    def write(self, folder: Path, spec: Spec) -> None:
        from wds2idx import IndexCreator

        write_shards(folder, spec, lambda label: {"y.bin": np.int64(label).tobytes()})
        for shard in folder.glob("*.tar"):
            with IndexCreator(str(shard), str(shard.with_suffix(".idx")), verbose=False) as index:
                index.create_index()

    def batches(self, folder: Path, spec: Spec) -> Iterator[Any]:
        from nvidia.dali import fn, pipeline_def

        shards = sorted(folder.glob("*.tar"))

        @pipeline_def(batch_size=spec["batch"], num_threads=1, device_id=None, seed=spec["seed"])  # type: ignore[untyped-decorator, unused-ignore]
        def samples() -> Any:
            x, y = fn.readers.webdataset(
                paths=[str(path) for path in shards],
                index_paths=[str(path.with_suffix(".idx")) for path in shards],
                ext=["x.bin", "y.bin"],
                random_shuffle=True,
                initial_fill=BUFFER,
            )
            return x, y

        pipeline = samples()
        pipeline.build()
        for _ in range(spec["count"] // spec["batch"]):
            x, y = (torch.from_numpy(found.as_array()) for found in pipeline.run())
            yield x, y.view(torch.int64)[:, 0]


class Streaming:
    modules = ("streaming",)

    def write(self, folder: Path, spec: Spec) -> None:
        from streaming import MDSWriter

        with MDSWriter(out=str(folder), columns={"x": "bytes", "y": "int"}, size_limit=SHARD_BYTES) as out:
            for number, data in rows(spec):
                out.write({"x": data, "y": number % 1000})

    def opened(self, folder: Path, spec: Spec) -> Any:
        from streaming import StreamingDataset

        class Samples(StreamingDataset):  # type: ignore[misc, unused-ignore]
            def __getitem__(self, at: int) -> Any:
                sample = super().__getitem__(at)
                return tensor(sample["x"]), sample["y"]

        return Samples(local=str(folder), shuffle=True, shuffle_seed=spec["seed"], batch_size=spec["batch"])

    def batches(self, folder: Path, spec: Spec) -> Iterator[Any]:
        samples = self.opened(folder, spec)
        yield from torch.utils.data.DataLoader(samples, batch_size=spec["batch"], num_workers=spec["workers"])

    def resumed(self, folder: Path, spec: Spec) -> Callable[[], Iterator[Any]]:
        from streaming import StreamingDataLoader

        first = self.opened(folder, spec)
        state = first.state_dict(num_samples=spec["count"] // 2, from_beginning=True)
        del first

        def again() -> Iterator[Any]:
            samples = self.opened(folder, spec)
            samples.load_state_dict(state)
            yield from StreamingDataLoader(samples, batch_size=spec["batch"])

        return again


class Stateful(ABC):
    """A loader that has a state."""

    modules: tuple[str, ...]

    @abstractmethod
    def loader(self, folder: Path, spec: Spec) -> Any: ...

    def batches(self, folder: Path, spec: Spec) -> Iterator[Any]:
        yield from self.loader(folder, spec)

    def resumed(self, folder: Path, spec: Spec) -> Callable[[], Iterator[Any]]:
        first = self.loader(folder, spec)
        half(first, spec)
        state = first.state_dict()

        def again() -> Iterator[Any]:
            loader = self.loader(folder, spec)
            loader.load_state_dict(state)
            yield from loader

        return again


class LitData(Stateful):
    modules = ("litdata",)

    def write(self, folder: Path, spec: Spec) -> None:
        from litdata.streaming.writer import BinaryWriter

        writer = BinaryWriter(str(folder), chunk_bytes=SHARD_BYTES)
        for number, data in rows(spec):
            writer.add_item(number, {"x": data, "y": number % 1000})
        writer.done()
        writer.merge()

    def loader(self, folder: Path, spec: Spec) -> Any:
        import litdata

        class Samples(litdata.StreamingDataset):  # type: ignore[misc, unused-ignore]
            def __getitem__(self, index: Any) -> Any:
                sample = super().__getitem__(index)
                return tensor(sample["x"]), sample["y"]

        samples = Samples(str(folder), shuffle=True, seed=spec["seed"])
        return litdata.StreamingDataLoader(samples, batch_size=spec["batch"], num_workers=spec["workers"])


class Grain:
    """Over ArrayRecord."""

    modules = ("grain", "array_record.python.array_record_module")

    def write(self, folder: Path, spec: Spec) -> None:
        from array_record.python.array_record_module import ArrayRecordWriter

        samples = rows(spec)
        for file in range(-(-spec["count"] // RECORDS)):
            out = ArrayRecordWriter(f"{folder}/{file:06}.arrayrecord", "group_size:1")
            for number, data in itertools.islice(samples, RECORDS):
                out.write(data + np.int64(number % 1000).tobytes())
            out.close()

    def iterator(self, folder: Path, spec: Spec) -> Any:
        import grain

        source = grain.sources.ArrayRecordDataSource(sorted(str(path) for path in folder.glob("*.arrayrecord")))
        samples = grain.MapDataset.source(source).shuffle(seed=spec["seed"])
        made = samples.map(
            lambda data: (np.frombuffer(data, np.uint8, len(data) - 8), np.frombuffer(data, np.int64, 1, len(data) - 8)[0])
        )
        options = grain.ReadOptions(num_threads=spec["threads"])
        return iter(made.batch(spec["batch"], drop_remainder=True).to_iter_dataset(options))

    def batches(self, folder: Path, spec: Spec) -> Iterator[Any]:
        for x, y in self.iterator(folder, spec):
            yield torch.from_numpy(x), torch.from_numpy(y)

    def resumed(self, folder: Path, spec: Spec) -> Callable[[], Iterator[Any]]:
        first = self.iterator(folder, spec)
        next(first)
        state = {**first.get_state(), "next_index": spec["count"] // spec["batch"] // 2}

        def again() -> Iterator[Any]:
            iterator = self.iterator(folder, spec)
            iterator.set_state(state)
            return ((torch.from_numpy(x), torch.from_numpy(y)) for x, y in iterator)

        return again


class Lance:
    """Takes of a batch each, by some threads ahead."""

    modules = ("lance",)

    def write(self, folder: Path, spec: Spec) -> None:
        import lance
        import pyarrow as pa

        def batches() -> Iterator[pa.RecordBatch]:
            part: list[tuple[int, bytes]] = []
            for row in rows(spec):
                part.append(row)
                if len(part) == 4096:
                    yield batch(part)
                    part = []
            if part:
                yield batch(part)

        schema = pa.schema({"x": pa.binary(spec["size"]), "y": pa.int64()})

        def batch(part: list[tuple[int, bytes]]) -> pa.RecordBatch:
            numbers, data = zip(*part, strict=True)
            return pa.record_batch(
                [pa.array(data, pa.binary(spec["size"])), pa.array([n % 1000 for n in numbers])], schema=schema
            )

        lance.write_dataset(pa.RecordBatchReader.from_batches(schema, batches()), str(folder / "samples.lance"))

    def batches(self, folder: Path, spec: Spec) -> Iterator[Any]:
        import lance

        samples = lance.dataset(str(folder / "samples.lance"))
        order = np.random.default_rng(spec["seed"]).permutation(samples.count_rows())
        parts = [order[start : start + spec["batch"]] for start in range(0, len(order) - spec["batch"] + 1, spec["batch"])]
        with ThreadPoolExecutor(spec["threads"]) as pool:
            for found in ahead(pool, samples.take, parts, spec["threads"]):
                x = found.column("x").combine_chunks()
                data = np.frombuffer(x.buffers()[1], np.uint8, len(x) * spec["size"], x.offset * spec["size"])
                yield torch.from_numpy(data.reshape(len(x), -1).copy()), torch.from_numpy(found.column("y").to_numpy().copy())


class Files:
    """A file a sample, a class a folder, read by PyTorch's own loader."""

    modules = ()

    def write(self, folder: Path, spec: Spec) -> None:
        for label in range(min(1000, spec["count"])):
            (folder / f"{label:03}").mkdir()
        for number, data in rows(spec):
            (folder / f"{number % 1000:03}" / f"{number:09}").write_bytes(data)

    def batches(self, folder: Path, spec: Spec) -> Iterator[Any]:
        class Samples(torch.utils.data.Dataset):  # type: ignore[type-arg, unused-ignore]
            def __len__(self) -> int:
                return int(spec["count"])

            def __getitem__(self, number: int) -> Any:
                return tensor((folder / f"{number % 1000:03}" / f"{number:09}").read_bytes()), number % 1000

        random = torch.Generator().manual_seed(spec["seed"])
        options: Any = {"num_workers": spec["workers"], "shuffle": True, "generator": random, "drop_last": True}
        yield from torch.utils.data.DataLoader(Samples(), spec["batch"], **options)


class Map(Stateful):
    """PyTorch's loader that has a state, torchdata's, over a memory map."""

    modules = ("torchdata.stateful_dataloader",)

    def write(self, folder: Path, spec: Spec) -> None:
        x = np.lib.format.open_memmap(folder / "x.npy", "w+", np.uint8, (spec["count"], spec["size"]))
        for number, data in rows(spec):
            x[number] = np.frombuffer(data, np.uint8)
        x.flush()

    def loader(self, folder: Path, spec: Spec) -> Any:
        from torchdata.stateful_dataloader import StatefulDataLoader

        x = torch.from_numpy(np.load(folder / "x.npy", mmap_mode="c"))
        y = torch.arange(spec["count"]) % 1000
        random = torch.Generator().manual_seed(spec["seed"])
        return StatefulDataLoader(torch.utils.data.TensorDataset(x, y), spec["batch"], shuffle=True, generator=random)


def ahead(pool: ThreadPoolExecutor, call: Callable[[Any], Any], arguments: list[Any], most: int) -> Iterator[Any]:
    """Results in order, with up to a number of calls on their way, or done and waiting, while one is used."""
    flying: deque[Future[Any]] = deque()
    for argument in arguments:
        flying.append(pool.submit(call, argument))
        if len(flying) > most:
            yield flying.popleft().result()
    while flying:
        yield flying.popleft().result()


def half(batches: Any, spec: Spec) -> None:
    """Takes the batches of half an epoch."""
    for _ in itertools.islice(iter(batches), spec["count"] // spec["batch"] // 2):
        pass


LOADERS: dict[str, Any] = {
    "webdataset": WebDataset,
    "streaming": Streaming,
    "litdata": LitData,
    "grain": Grain,
    "lance": Lance,
    "dali": Dali,
    "files": Files,
    "map": Map,
}


def write(spec: Spec) -> Result:
    """Not timed: the samples in the loader's own form, unless they are there."""
    folder = Path(spec["path"])
    if not (folder / "made").exists():
        folder.mkdir(parents=True)
        made(spec).write(folder, spec)
        (folder / "made").touch()
    return {"seconds": [0.0]}


def epoch(spec: Spec) -> Result:
    torch.set_num_threads(1)
    return timed_epoch(made(spec).batches(Path(spec["path"]), spec), spec)


def hot(spec: Spec) -> Result:
    """Epochs of files that are in the kernel's cache, by a loader that stays open."""
    torch.set_num_threads(1)
    folder = Path(spec["path"])
    for path in folder.iterdir():
        path.read_bytes()
    loader = made(spec).loader(folder, spec)
    return epochs(lambda: (x for x, _ in loader), spec)


def resume(spec: Spec) -> Result:
    """From opening, in the state of half an epoch, to the first batch; the files are in the kernel's cache by then."""
    torch.set_num_threads(1)
    again = made(spec).resumed(Path(spec["path"]), spec)
    started = time.perf_counter()
    x, _ = next(iter(again()))
    seconds = time.perf_counter() - started
    if x.shape != (spec["batch"], spec["size"]):
        raise SystemExit("the first batch is not whole")
    return {"seconds": [seconds]}
