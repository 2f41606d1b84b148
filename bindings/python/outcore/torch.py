"""Datasets of samples, and embedding tables on SSD, for PyTorch.

The fast path needs no worker processes, since threads of outcore read, verify and collate samples::

    from outcore.torch import Loader

    loader = Loader("cifar", batch_size=256, shuffle=True)
    for batch in loader:                                # dicts of tensors; bytes and text come as lists
        step(batch["image"], batch["label"])

`MapDataset` and `IterableDataset` are what a stock `torch.utils.data.DataLoader` takes, with or without workers, forked or
spawned, with `DistributedSampler`, and what torchdata's `StatefulDataLoader` saves and goes on with.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from . import data
from ._settings import PathLike
from .data.ranks import WHOLE, Ranks, Share, ancestors, warn_of_uneven_ranks
from .errors import ArgumentError

try:
    import torch
    from torch.utils.data import Dataset as TorchDataset
    from torch.utils.data import IterableDataset as TorchIterableDataset
    from torch.utils.data import get_worker_info
except ImportError as error:
    raise ImportError("outcore.torch needs PyTorch: pip install outcore[torch]") from error

from ._torch_optimizers import SGD, RowwiseAdagrad, SparseAdam
from ._torch_tables import Embedding, EmbeddingBag

if TYPE_CHECKING:
    Samples = TorchDataset[Any]
    Batches = TorchIterableDataset[Any]
else:
    Samples, Batches = TorchDataset, TorchIterableDataset

__all__ = [
    "SGD",
    "Embedding",
    "EmbeddingBag",
    "IterableDataset",
    "Loader",
    "MapDataset",
    "RowwiseAdagrad",
    "SparseAdam",
]


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

    The rank is looked up as that of `outcore.data.Loader`, whenever the `DataLoader` begins an iteration; workers that persist
    keep the share that they began with. All samples are read where accelerate iterates for all ranks and gives each its part of
    what comes, as a `DataLoader` does that was prepared by it.

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
        self._ranks = Ranks(options.pop("rank", None), options.pop("world_size", None))
        self._options = options
        # The process of the last iteration, and its share of all that ranks read.
        self._taken: tuple[int, Share] | None = None
        # Where this was pickled while accelerate iterated for all ranks.
        self._divided_in: int | None = None
        self._warned = False
        # The epochs to come, by worker; seen by processes that begin later: workers end with the epoch, and the next ones go on.
        self._epochs = torch.zeros(WORKERS_MOST, dtype=torch.int64).share_memory_()  # type: ignore[no-untyped-call]
        self._loader: data.Loader | None = None
        self._state: Mapping[str, Any] | None = None

    def _worker(self) -> tuple[int, int]:
        info = get_worker_info()
        return (0, 1) if info is None else (info.id, info.num_workers)

    def _share(self) -> Share:
        """Of this rank, all its workers together."""
        if self._ranks.given is None and (self._divided_in in ancestors() or _is_divided(self)):
            return WHOLE
        return self._ranks.now()

    @property
    def rank(self) -> int:
        """Which share of the order this process and its workers read, at the moment."""
        return self._share().rank

    @property
    def world_size(self) -> int:
        """Into how many shares the order is divided, at the moment."""
        return self._share().world_size

    def _here(self, *, begins: bool = False) -> data.Loader:
        """The loader of this process, of the share that its iteration began with."""
        if begins or self._taken is None or self._taken[0] != os.getpid():
            self._taken = os.getpid(), self._share()
        (rank, world_size), (worker, workers) = self._taken[1], self._worker()
        part = Share(rank * workers + worker, world_size * workers)
        dataset = _here(self.dataset)
        if self._loader is None or self._loader._share != part:
            self._loader = None
            options = {"end": "uneven" if world_size == 1 else "pad", **self._options}
            self._loader = data.Loader(dataset, self.batch_size, rank=part.rank, world_size=part.world_size, **options)
        return self._loader

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_loader": None, "_divided_in": os.getpid() if _is_divided(self) else None}

    def __iter__(self) -> Iterator[Any]:
        loader, (worker, workers) = self._here(begins=True), self._worker()
        if self._state is None:
            loader.set_epoch(int(self._epochs[worker]))
        else:
            loader.load_state_dict(self._state)
            self._state = None
        # Whatever the number of the next workers is, they find the same epoch.
        self._epochs[worker::workers] = loader.epoch + 1
        self._warn_of_uneven_ranks(loader)
        while (batch := loader._next()) is not None:
            tensors = _tensors(batch)
            yield tensors if self.transform is None else self.transform(tensors)

    def _warn_of_uneven_ranks(self, loader: data.Loader) -> None:
        """Once, by the first worker of rank 0."""
        group, (rank, world_size) = self._ranks.distributed(), self._share()
        worker, workers = self._worker()
        if (rank, worker, loader.end) == (0, 0, "uneven") and group is not None and group.world_size > 1 and not self._warned:
            self._warned = warn_of_uneven_ranks(
                self.dataset.path,
                len(self.dataset) - loader._inner.place()[1],
                world_size,
                batch_size=self.batch_size,
                drop_last=loader.drop_last,
                workers=workers,
                stacklevel=3,
            )

    def set_epoch(self, epoch: int) -> None:
        """Sets the epoch of the next pass."""
        self._epochs.fill_(epoch)

    def state_dict(self) -> dict[str, Any]:
        """The position in the calling process: a few numbers."""
        return dict(self._state) if self._state is not None else self._here().state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues from a state in the next pass."""
        self._state = dict(state)


def _is_divided(dataset: IterableDataset) -> bool:
    """Whether accelerate iterates over the dataset for all ranks, and gives each its part of what comes."""
    state, loaders = sys.modules.get("accelerate.state"), sys.modules.get("accelerate.data_loader")
    if state is None or loaders is None:
        return False
    active = state.GradientState().active_dataloader
    found = getattr(active, "dataset", None)
    if isinstance(found, loaders.IterableDatasetShard):
        return found.dataset is dataset
    return isinstance(active, loaders.DataLoaderDispatcher) and found is dataset
