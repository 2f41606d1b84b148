"""Training samples: ours, files on ext4, memory maps of NumPy, PyTorch's loader."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import outcore as oc
from outcore.data import Dataset, Loader

from legs.measure import epochs, sampled, timed_epoch

Spec = dict[str, Any]
Result = dict[str, Any]

FOLDER_FILES = 1000
"""As harness.samples makes them."""


def nothing(spec: Spec) -> Result:
    return {"seconds": [0.0]}


def opened(spec: Spec) -> Dataset:
    oc.configure(memory=spec["memory"], threads=1 if spec.get("core") is not None else None)
    return Dataset(spec["path"])


def taken(batches: Iterator[dict[str, Any]], count: int) -> int:
    """Takes so many samples, and the sum of their numbers, which tells that none came twice."""
    seen = total = 0
    while seen < count:
        x = next(batches)["x"]
        seen += len(x)
        total += int(x[:, :8].copy().view("<u8").sum()) if x.shape[1] >= 8 else 0
    return total


def load(spec: Spec) -> Result:
    """Pass after pass over a part of a new epoch, from a new loader each: opening it and its first reads are timed."""
    dataset, seed = opened(spec), 0

    def one() -> None:
        nonlocal seed
        seed += 1
        loader = Loader(dataset, spec["batch"], shuffle=spec["shuffle"], seed=seed, rank=0, world_size=1, drop_last=True)
        taken(iter(loader), spec["count"] // spec["batch"] * spec["batch"])

    found = sampled(one, seconds=spec["seconds"])
    return {**found, "work": spec["count"] // spec["batch"] * spec["batch"] * spec["size"]}


def hot(spec: Spec) -> Result:
    """Epochs after the first, which brings all samples into memory."""
    loader = Loader(opened(spec), spec["batch"], shuffle=True, rank=0, world_size=1)
    return epochs(lambda: (batch["x"] for batch in loader), spec)


def memory_map(spec: Spec) -> Result:
    """A permutation, and its parts as indices."""
    x, random = np.load(spec["path"], mmap_mode="r"), np.random.default_rng(0)
    int(x[:, 0].sum())

    def epoch() -> Iterator[Any]:
        order = random.permutation(len(x))
        return (x[order[start : start + spec["batch"]]] for start in range(0, len(x), spec["batch"]))

    return epochs(epoch, spec)


def torch_map(spec: Spec) -> Result:
    """As most people have it: a dataset of rows, and the loader's own sampler and collation."""
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    torch.set_num_threads(1)
    x = np.load(spec["path"], mmap_mode="c")
    int(x[:, 0].sum())
    loader: Any = DataLoader(TensorDataset(torch.from_numpy(x)), spec["batch"], shuffle=True)
    return epochs(lambda: (batch[0] for batch in loader), spec)


def epoch(spec: Spec) -> Result:
    """As tensors."""
    import torch
    from outcore.torch import Loader as TorchLoader

    torch.set_num_threads(1)

    def batches() -> Iterator[tuple[Any, Any]]:
        for batch in TorchLoader(opened(spec), spec["batch"], shuffle=spec["shuffle"], seed=spec["seed"], drop_last=True):
            yield batch["x"], batch["y"]

    return timed_epoch(batches(), spec)


def resume(spec: Spec) -> Result:
    """From opening, in the state of half an epoch, to the first batch."""
    begun = Loader(opened(spec), spec["batch"], shuffle=spec["shuffle"], seed=spec["seed"], rank=0, world_size=1)
    state = {**begun.state_dict(), "position": spec["count"] // 2}
    del begun
    started = time.perf_counter()
    loader = Loader(opened(spec), spec["batch"], shuffle=spec["shuffle"], seed=spec["seed"], rank=0, world_size=1)
    loader.load_state_dict(state)
    batch = next(iter(loader))
    seconds = time.perf_counter() - started
    if batch["x"].shape != (spec["batch"], spec["size"]) or loader.state_dict()["position"] != spec["count"] // 2 + spec["batch"]:
        raise SystemExit("it did not go on in the middle")
    return {"seconds": [seconds], "first_batch_s": seconds}


def path_of(folder: str, number: int) -> str:
    return f"{folder}/{number // FOLDER_FILES:06}/{number:09}"


def files(spec: Spec) -> Result:
    """Each file once, in random order: opened, read, closed."""
    order = np.random.default_rng(0).permutation(spec["count"]).tolist()
    # As many as take the time, by a guess that is too low for any disk.
    order = order[: max(spec["threads"], int(spec["seconds"] * spec["threads"] * 20_000))]
    paths = [path_of(spec["path"], number) for number in order]

    def read(part: list[str]) -> int:
        total, until = 0, time.perf_counter() + spec["seconds"]
        for path in part:
            with open(path, "rb", buffering=0) as file:
                total += len(file.read())
            if time.perf_counter() > until:
                break
        return total

    with ThreadPoolExecutor(spec["threads"]) as pool:
        started = time.perf_counter()
        total = sum(pool.map(read, [paths[first :: spec["threads"]] for first in range(spec["threads"])]))
        seconds = time.perf_counter() - started
    return {"seconds": [seconds], "work": total}


def opens(spec: Spec) -> Result:
    """Some of the files, each once, in random order: opened and closed."""
    chosen = np.random.default_rng(0).permutation(spec["count"])[: spec["opened"]]
    paths = [path_of(spec["path"], number) for number in chosen.tolist()]
    started = time.perf_counter()
    for path in paths:
        os.close(os.open(path, os.O_RDONLY))
    return {"seconds": [time.perf_counter() - started], "work": len(paths)}
