"""Datasets in PyTorch: loaders of tensors, and what stock data loaders make of them, in processes of any kind."""

from __future__ import annotations

import itertools
import pickle
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, DistributedSampler, default_collate
from torchdata.stateful_dataloader import StatefulDataLoader

import outcore as oc
from outcore.data import Dataset, Writer
from outcore.errors import ArgumentError
from outcore.torch import IterableDataset, Loader, MapDataset

COUNT = 103


@pytest.fixture
def dataset(tmp_path: Path) -> Dataset:
    oc.configure(memory="32MiB", scratch=tmp_path / "scratch")
    with Writer(tmp_path / "data") as writer:
        for number in range(COUNT):
            writer.write({"x": np.full((2, 3), number, np.float32), "y": number, "name": f"n{number}", "raw": bytes([number])})
    return Dataset(tmp_path / "data")


def is_right(batch: dict[str, Any]) -> bool:
    numbers = batch["y"].tolist()
    return (
        bool((batch["x"] == batch["y"][:, None, None]).all())
        and batch["x"].dtype == torch.float32
        and list(batch["name"]) == [f"n{number}" for number in numbers]
        and list(batch["raw"]) == [bytes([number]) for number in numbers]
    )


def numbers(batches: Any) -> list[int]:
    found: list[int] = []
    for batch in batches:
        assert is_right(batch)
        found += batch["y"].tolist()
    return found


def test_loader_of_tensors(dataset: Dataset) -> None:
    loader = Loader(dataset, batch_size=10, shuffle=True, seed=3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        first, second = numbers(loader), numbers(loader)
    assert first != second and sorted(first) == sorted(second) == list(range(COUNT))
    batch = next(iter(Loader(dataset.path, batch_size=4)))
    assert batch["x"].shape == (4, 2, 3)
    batch["x"] += 1


def test_a_loader_goes_on(dataset: Dataset) -> None:
    whole = numbers(Loader(dataset, 7, shuffle=True))
    loader = Loader(dataset, 7, shuffle=True)
    begun = numbers(itertools.islice(loader, 5))
    other = Loader(dataset, 3, shuffle=True)
    other.load_state_dict(loader.state_dict())
    assert begun + numbers(other) == whole


def test_arrays_that_vary_and_dtypes_that_are_none(tmp_path: Path) -> None:
    oc.configure(memory="32MiB", scratch=tmp_path / "scratch")
    with Writer(tmp_path / "data", {"boxes": ("float32", (None, 4))}) as writer:
        for number in range(5):
            writer.write({"boxes": np.ones((number, 4), np.float32)})
    batch = next(iter(Loader(tmp_path / "data", 5)))
    assert [tuple(boxes.shape) for boxes in batch["boxes"]] == [(number, 4) for number in range(5)]
    with Writer(tmp_path / "odd", {"z": "complex64"}) as writer:
        writer.write({"z": 1j})
    assert next(iter(Loader(tmp_path / "odd")))["z"].dtype == torch.complex64


def test_a_dtype_that_torch_lacks_names_the_field(dataset: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: Any) -> None:
        raise TypeError

    monkeypatch.setattr(torch, "from_numpy", refuse)
    with pytest.raises(ArgumentError, match=r"'x'.*float32"):
        next(iter(Loader(dataset)))


def collated(samples: list[dict[str, Any]]) -> dict[str, Any]:
    raw = [sample.pop("raw") for sample in samples]
    return {**default_collate(samples), "raw": raw}


FORKED = [(0, None, False), (2, "fork", False), (2, "fork", True)]
# Each of these imports PyTorch, which takes seconds: they are started once for two epochs.
SPAWNED = [(2, "spawn", True)]


@pytest.mark.parametrize(("workers", "context", "persistent"), FORKED + SPAWNED)
def test_map_style(dataset: Dataset, workers: int, context: str | None, persistent: bool) -> None:
    assert dataset[5]["y"] == 5
    loader = DataLoader(
        MapDataset(dataset),
        batch_size=10,
        shuffle=True,
        num_workers=workers,
        multiprocessing_context=context,
        persistent_workers=persistent,
        collate_fn=collated,
    )
    first, second = numbers(loader), numbers(loader)
    assert first != second and sorted(first) == sorted(second) == list(range(COUNT))
    assert dataset[6]["y"] == 6


def doubled(sample: dict[str, Any]) -> Any:
    return 2 * sample["y"]


def test_map_style_by_one_and_transformed(dataset: Dataset) -> None:
    samples = MapDataset(dataset.path, doubled)
    assert len(samples) == COUNT and samples[-1] == 2 * (COUNT - 1)
    assert samples.__getitems__([1, 2]) == [2, 4] and pickle.loads(pickle.dumps(samples))[4] == 8


def test_a_distributed_sampler_shares_samples(dataset: Dataset) -> None:
    found: list[int] = []
    for rank in range(3):
        sampler: Any = DistributedSampler(MapDataset(dataset), num_replicas=3, rank=rank, shuffle=True, drop_last=True)
        sampler.set_epoch(1)
        found += numbers(DataLoader(MapDataset(dataset), batch_size=5, sampler=sampler, collate_fn=collated))
    assert len(set(found)) == len(found) == COUNT // 3 * 3


@pytest.mark.parametrize(("workers", "context", "persistent"), [(1, "fork", False), *FORKED, *SPAWNED])
def test_iterable_in_workers(dataset: Dataset, workers: int, context: str | None, persistent: bool) -> None:
    batches = IterableDataset(dataset, 8, shuffle=True, seed=1, end="uneven", rank=0, world_size=1)
    options: dict[str, Any] = {"multiprocessing_context": context, "persistent_workers": persistent}
    loader = DataLoader(batches, batch_size=None, num_workers=workers, **options)
    first, second = numbers(loader), numbers(loader)
    assert first != second and sorted(first) == sorted(second) == list(range(COUNT))
    if not persistent:
        batches.set_epoch(0)
        assert numbers(DataLoader(batches, batch_size=None, num_workers=workers, **options)) == first


def test_iterable_shares_ranks(dataset: Dataset) -> None:
    found: list[int] = []
    for rank in range(2):
        batches = IterableDataset(dataset, 8, shuffle=True, end="uneven", rank=rank, world_size=2)
        found += numbers(DataLoader(batches, batch_size=None, num_workers=2))
    assert sorted(found) == list(range(COUNT))


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("taken", [0, 3, 9])
def test_stateful_data_loaders_go_on(dataset: Dataset, workers: int, taken: int) -> None:
    def loader() -> Any:
        batches = IterableDataset(dataset, 8, shuffle=True, end="uneven", rank=0, world_size=1)
        return StatefulDataLoader(batches, batch_size=None, num_workers=workers)

    whole = numbers(loader())
    first = loader()
    iterator = iter(first)
    begun = numbers(itertools.islice(iterator, taken))
    second = loader()
    second.load_state_dict(first.state_dict())
    assert begun + numbers(second) == whole
