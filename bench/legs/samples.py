"""Training samples: ours, files on ext4, memory maps of NumPy, PyTorch's loader."""

from __future__ import annotations

import importlib
import multiprocessing
import os
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import outcore as oc
from outcore.data import Dataset, Loader

from legs.measure import Array, check_numbers, cold, epochs, sampled, timed_epoch

Spec = dict[str, Any]
Result = dict[str, Any]

FOLDER_FILES = 1000
"""As harness.samples makes them."""


def nothing(spec: Spec) -> Result:
    for module in spec.get("imports", ()):
        importlib.import_module(module)
    return {"seconds": [0.0]}


def opened(spec: Spec) -> Dataset:
    oc.configure(memory=spec["memory"], threads=1 if spec.get("core") is not None else None)
    return Dataset(spec["path"])


def take(batches: Iterator[dict[str, Any]], numbers: Array) -> None:
    """As many samples as `numbers` has places, which are filled with theirs."""
    taken = 0
    while taken < len(numbers):
        x = next(batches)["x"]
        numbers[taken : taken + len(x)] = x.view("<u8")[:, 0]
        taken += len(x)


def load(spec: Spec) -> Result:
    """Pass after pass over a part of a new epoch, from a new loader each: opening it and its first reads are timed.

    Before the next pass, and after the last, its samples are checked: each came once.
    """
    dataset, seed = opened(spec), 0
    numbers = np.zeros(spec["count"] // spec["batch"] * spec["batch"], "<u8")

    def one() -> None:
        nonlocal seed
        seed += 1
        loader = Loader(dataset, spec["batch"], shuffle=spec["shuffle"], seed=seed, rank=0, world_size=1, drop_last=True)
        take(iter(loader), numbers)

    def check() -> None:
        if seed:
            check_numbers(numbers, len(dataset))

    found = sampled(one, seconds=spec["seconds"], before=check)
    check()
    return {**found, "work": len(numbers) * spec["size"]}


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
    """As most people have it: a dataset of rows, and the loader's own sampler and collation. `whole`: a batch by one index."""
    import torch
    from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

    torch.set_num_threads(1)
    x = np.load(spec["path"], mmap_mode="c")
    int(x[:, 0].sum())
    rows = TensorDataset(torch.from_numpy(x))
    loader: Any = (
        DataLoader(rows, batch_size=None, sampler=BatchSampler(RandomSampler(rows), spec["batch"], drop_last=False))
        if spec.get("whole")
        else DataLoader(rows, spec["batch"], shuffle=True)
    )
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


def resumable(spec: Spec) -> Loader:
    return Loader(opened(spec), spec["batch"], shuffle=spec["shuffle"], seed=spec["seed"], rank=0, world_size=1)


def half_an_epoch(spec: Spec) -> dict[str, Any]:
    """The state in which a loader is after it."""
    return {**resumable(spec).state_dict(), "position": spec["count"] // 2}


def resume(spec: Spec) -> Result:
    """From the session's start and opening, in the state of half an epoch, to the first batch.

    The state comes from another process, after which the files leave the kernel's cache again: in this one all is done for the
    first time.
    """
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as another:
        state = another.submit(half_an_epoch, spec).result()
    cold([str(path) for path in Path(spec["path"]).rglob("*") if path.is_file()])
    started = time.perf_counter()
    loader = resumable(spec)
    loader.load_state_dict(state)
    batch = next(iter(loader))
    seconds = time.perf_counter() - started
    if batch["x"].shape != (spec["batch"], spec["size"]) or loader.state_dict()["position"] != spec["count"] // 2 + spec["batch"]:
        raise SystemExit("it did not go on in the middle")
    return {"seconds": [seconds], "first_batch_s": seconds}


def path_of(folder: str, number: int) -> str:
    return f"{folder}/{number // FOLDER_FILES:06}/{number:09}"


def opens(spec: Spec) -> Result:
    """Some of the files, each once, in random order: opened and closed."""
    chosen = np.random.default_rng(0).permutation(spec["count"])[: spec["opened"]]
    paths = [path_of(spec["path"], number) for number in chosen.tolist()]
    started = time.perf_counter()
    for path in paths:
        os.close(os.open(path, os.O_RDONLY))
    return {"seconds": [time.perf_counter() - started], "work": len(paths)}
