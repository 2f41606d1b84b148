"""Datasets of samples for PyTorch.

The fast path needs no worker processes, since threads of outcore read, verify and collate samples::

    from outcore.torch import Loader

    loader = Loader("cifar", batch_size=256, shuffle=True)
    for batch in loader:                                # dicts of tensors; bytes and text come as lists
        step(batch["image"], batch["label"])

`MapDataset` and `IterableDataset` are what a stock `torch.utils.data.DataLoader` takes, with or without workers, forked or
spawned, with `DistributedSampler`, and what torchdata's `StatefulDataLoader` saves and goes on with.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from . import data
from ._session import PathLike
from .errors import ArgumentError

try:
    import torch
    from torch.utils.data import Dataset as TorchDataset
    from torch.utils.data import IterableDataset as TorchIterableDataset
    from torch.utils.data import get_worker_info
except ImportError as error:
    raise ImportError("outcore.torch needs PyTorch: pip install outcore[torch]") from error

if TYPE_CHECKING:
    Samples = TorchDataset[Any]
    Batches = TorchIterableDataset[Any]
else:
    Samples, Batches = TorchDataset, TorchIterableDataset

__all__ = ["IterableDataset", "Loader", "MapDataset"]


def __dir__() -> list[str]:
    return sorted(__all__)


Transform = Callable[[dict[str, Any]], Any]

WORKERS_MOST = 4096
"""Of one `DataLoader`."""


def _tensor(name: str, value: Any) -> Any:
    """A tensor on the memory of an array; of a list of arrays, a list of tensors; anything else as it is."""
    if isinstance(value, list):
        return [_tensor(name, one) for one in value] if value and isinstance(value[0], np.ndarray) else value
    if not isinstance(value, np.ndarray | np.generic):
        return value
    try:
        return torch.from_numpy(value) if isinstance(value, np.ndarray) else torch.as_tensor(value)
    except TypeError as error:
        raise ArgumentError(f"field {name!r}: PyTorch has no tensors of dtype {value.dtype}") from error


def _tensors(sample: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _tensor(name, value) for name, value in sample.items()}


def _opened(dataset: data.Dataset | PathLike) -> data.Dataset:
    return dataset if isinstance(dataset, data.Dataset) else data.Dataset(dataset)


def _here(dataset: data.Dataset) -> data.Dataset:
    """The dataset; in a worker, with its share of a budget that all workers have together with the process that they work for."""
    info = get_worker_info()
    if info is not None:
        dataset._share(info.num_workers + 1)
    return dataset


class Loader(data.Loader):
    """Batches as dicts of tensors, without worker processes.

    Parameters
    ----------
    dataset : outcore.data.Dataset or path
    batch_size : int
    pin_memory : bool, optional
        Whether tensors lie in memory that a GPU reads by itself. Default: where there is a GPU.
    **options
        Those of `outcore.data.Loader`: `shuffle`, `seed`, `rank`, `world_size`, `end`, `drop_last`, `chunks`, `ahead`,
        `skip_damaged`.

    Raises
    ------
    ArgumentError
        For a field whose dtype PyTorch does not have.
    """

    def __init__(
        self, dataset: data.Dataset | PathLike, batch_size: int = 1, *, pin_memory: bool | None = None, **options: Any
    ) -> None:
        self.pin_memory = torch.cuda.is_available() if pin_memory is None else pin_memory
        super().__init__(_opened(dataset), batch_size, **options)

    def _next(self) -> dict[str, Any] | None:
        batch = super()._next()
        if batch is None:
            return None
        tensors = _tensors(batch)
        if self.pin_memory:
            tensors = {name: value.pin_memory() if torch.is_tensor(value) else value for name, value in tensors.items()}
        return tensors


class MapDataset(Samples):
    """Samples by number, as dicts of tensors, for `torch.utils.data.DataLoader` and its samplers.

    Parameters
    ----------
    dataset : outcore.data.Dataset or path
    transform : callable, optional
        Applied to each sample.
    """

    def __init__(self, dataset: data.Dataset | PathLike, transform: Transform | None = None) -> None:
        self.dataset, self.transform = _opened(dataset), transform

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Any:
        sample = _tensors(_here(self.dataset)[index])
        return sample if self.transform is None else self.transform(sample)

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """A batch, by one native call."""
        batch = _tensors(_here(self.dataset)[list(indices)])
        samples = [dict(zip(batch, values, strict=True)) for values in zip(*batch.values(), strict=True)]
        return samples if self.transform is None else [self.transform(sample) for sample in samples]


class IterableDataset(Batches):
    """Batches in the order of a `Loader`, for a `DataLoader` with `batch_size=None`.

    Each worker has its share of what this rank has of one global order: of `w` workers, the one with number `i` is what rank
    `rank * w + i` of `world_size * w` would be. An epoch follows the other by itself; a state is that of one worker, as
    torchdata's `StatefulDataLoader` keeps it. Workers share the budget of the dataset's session.

    Parameters
    ----------
    dataset : outcore.data.Dataset or path
    batch_size : int
        Samples of a batch.
    transform : callable, optional
        Applied to each batch.
    **options
        Those of `outcore.data.Loader`. Where there is one rank, `end` is "uneven" by default: its workers have every sample once.
    """

    def __init__(
        self, dataset: data.Dataset | PathLike, batch_size: int = 1, *, transform: Transform | None = None, **options: Any
    ) -> None:
        self.dataset, self.batch_size, self.transform = _opened(dataset), batch_size, transform
        self.rank, self.world_size = data.loader.share_of(options.pop("rank", None), options.pop("world_size", None))
        self._options = {"end": "uneven" if self.world_size == 1 else "pad", **options}
        # By worker; seen by processes that begin later, since workers end with the epoch and the next ones go on.
        self._epochs = torch.zeros(WORKERS_MOST, dtype=torch.int64).share_memory_()  # type: ignore[no-untyped-call]
        self._loader: data.Loader | None = None
        self._state: Mapping[str, Any] | None = None

    def _worker(self) -> tuple[int, int]:
        info = get_worker_info()
        return (0, 1) if info is None else (info.id, info.num_workers)

    def _here(self) -> data.Loader:
        worker, workers = self._worker()
        rank, world_size = self.rank * workers + worker, self.world_size * workers
        if self._loader is None or (self._loader.rank, self._loader.world_size) != (rank, world_size):
            self._loader = data.Loader(_here(self.dataset), self.batch_size, rank=rank, world_size=world_size, **self._options)
        return self._loader

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_loader": None}

    def __iter__(self) -> Iterator[Any]:
        loader, worker = self._here(), self._worker()[0]
        if self._state is None:
            loader.set_epoch(int(self._epochs[worker]))
        else:
            loader.load_state_dict(self._state)
            self._state = None
        self._epochs[worker] = loader.epoch + 1
        while (batch := loader._next()) is not None:
            tensors = _tensors(batch)
            yield tensors if self.transform is None else self.transform(tensors)

    def set_epoch(self, epoch: int) -> None:
        """Sets the epoch of the next pass."""
        self._epochs.fill_(epoch)

    def state_dict(self) -> dict[str, Any]:
        """The position in the calling process: a few numbers."""
        return dict(self._state) if self._state is not None else self._here().state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues from a state in the next pass."""
        self._state = dict(state)
