"""Batches of a dataset, in a reproducible random order."""

from __future__ import annotations

import json
import operator
import os
import sys
import warnings
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal

from .. import _native
from ..errors import ArgumentError
from .fields import Sample

if TYPE_CHECKING:
    from .dataset import Dataset

Shuffle = bool | Literal["global", "chunk"]
End = Literal["drop", "pad", "uneven"]

SORTED = 4.0
"""Neighbours that are so much more alike than samples far apart make a chunk shuffle worse than a global one."""


class Loader:
    """Batches of a dataset, in a reproducible random order, prefetched.

    Each iteration is one epoch. Samples are read by background threads, without Python processes.

    Parameters
    ----------
    dataset : Dataset
    batch_size : int
        Samples of a batch of one rank.
    shuffle : {False, True, "global", "chunk"}
        `True` is `"global"`. `"chunk"` mixes only samples of chunks that are in memory at the same time; fast for small samples,
        and the same as `True` for those of more than 128 KiB in the mean.
    seed : int
    rank, world_size : int, optional
        Which share of the order this is. Default: as `torch.distributed` says if it is initialised, else as the environment
        variables RANK and WORLD_SIZE say, else all of it.
    end : {"pad", "drop", "uneven"}
        What ranks do with what does not divide evenly: the epoch's first samples again, left out, or one more for some.
    drop_last : bool
        Leave out a last batch that has fewer samples.
    chunks : int, optional
        Chunks that a chunk shuffle draws from at a time. They are part of the order: ranks must have equally many, as they do
        with equal budgets. Default: as many as an eighth of the budget has room for, 144 at most.
    ahead : int, optional
        Batches that are made ready ahead, fewer where memory is short. Default: as many as keep any device busy.
    skip_damaged : bool
        Leave out samples that are not what was written, or whose pictures are damaged, and count them in `skipped`; else they
        raise. Batches are as many as without it, on every rank, and those with such samples have fewer; one of nothing but such
        samples comes empty. Pictures that are sound, but of a kind that is not decoded or larger than the budget, raise all
        the same: what is wrong there is not the picture.

    Raises
    ------
    OverBudgetError, CorruptError, UnsupportedError (a picture of a kind that is not decoded), which name the sample, and
    DeviceError; all while iterating.
    """

    def __init__(
        self,
        dataset: Dataset,
        batch_size: int = 1,
        *,
        shuffle: Shuffle = False,
        seed: int = 0,
        rank: int | None = None,
        world_size: int | None = None,
        end: End = "pad",
        drop_last: bool = False,
        chunks: int | None = None,
        ahead: int | None = None,
        skip_damaged: bool = False,
    ) -> None:
        if shuffle not in (False, True, "global", "chunk"):
            raise ArgumentError(f"shuffle must be False, True, 'global' or 'chunk', not {shuffle!r}")
        if end not in ("drop", "pad", "uneven"):
            raise ArgumentError(f"end must be 'drop', 'pad' or 'uneven', not {end!r}")
        self.dataset, self.batch_size, self.shuffle, self.seed = (
            dataset,
            operator.index(batch_size),
            shuffle,
            operator.index(seed),
        )
        self.rank, self.world_size = share_of(rank, world_size)
        self.end, self.drop_last, self.chunks, self.ahead, self.skip_damaged = end, drop_last, chunks, ahead, skip_damaged
        for name, value in (("batch_size", self.batch_size), ("chunks", chunks), ("ahead", ahead)):
            if value is not None and (not 0 <= value < 2**63 or (value == 0 and name != "ahead")):
                raise ArgumentError(f"{name} must be a whole number of at least {int(name != 'ahead')}, not {value}")
        # A state whose seed and shuffle this goes by, and whether it goes on from there with the next batch.
        self._restored: dict[str, Any] | None = None
        self._begun = self._resumed = False
        self._begin()
        if shuffle == "chunk":
            _warn_of_order(dataset)

    def _begin(self) -> None:
        kind = {False: "no", True: "global", "global": "global", "chunk": "chunk"}[self.shuffle]
        share = self.rank, self.world_size, self.end, self.drop_last
        self._native_loader = _native.Loader(
            self.dataset._inner,
            self.batch_size,
            kind,
            self.chunks,
            self.seed % 2**64,
            *share,
            self.ahead,
            self.skip_damaged,
        )
        self._pid = os.getpid()

    def _begin_at(self, epoch: int, position: int) -> None:
        """Starts again at the position of another native loader."""
        self._begin()
        here = self._restored or json.loads(self._native_loader.state())
        self._native_loader.restore(json.dumps({**here, "epoch": epoch, "position": position}))

    @property
    def _inner(self) -> _native.Loader:
        if self._pid != os.getpid():
            self._begin_at(*self._native_loader.place())
        return self._native_loader

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_native_loader": None, "_pid": self._native_loader.place()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._begin_at(*state["_pid"])

    def _set_batch_size(self, batch_size: int) -> None:
        self._inner.set_batch(batch_size)
        self.batch_size = batch_size

    def __len__(self) -> int:
        """Batches of an epoch."""
        return self._inner.lengths()[0]

    @property
    def left(self) -> int:
        """Batches left in the epoch."""
        return self._inner.lengths()[1]

    def __iter__(self) -> Iterator[Sample]:
        if self._begun:
            # An epoch that was left early has ended.
            self.set_epoch(self.epoch + 1)
        self._begun = True
        while (batch := self._next()) is not None:
            yield batch
        self._begun = False

    def _next(self) -> Sample | None:
        self._resumed = False
        found = self._inner.next()
        if found is None:
            return None
        count, columns = found
        return self.dataset._columns(columns, count)

    @property
    def epoch(self) -> int:
        """Number of the epoch, from 0."""
        return self._inner.place()[0]

    def set_epoch(self, epoch: int) -> None:
        """Moves to the beginning of an epoch. After `load_state_dict`, the epoch of the state continues at its position."""
        epoch = operator.index(epoch)
        if epoch < 0:
            raise ArgumentError(f"epochs are counted from 0, and not {epoch}")
        if not (self._resumed and epoch == self.epoch):
            self._inner.set_epoch(epoch)
        self._begun = self._resumed = False

    @property
    def skipped(self) -> int:
        """Number of damaged samples skipped."""
        return self._inner.skipped()[0]

    @property
    def first_skipped(self) -> str | None:
        """The fault of the first of them."""
        return self._inner.skipped()[1]

    def state_dict(self) -> dict[str, Any]:
        """The position of the loader: integers, the same for every rank."""
        state: dict[str, Any] = json.loads(self._inner.state())
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues at the sample of another loader of the same dataset, whatever its rank, batch size and world size.

        Raises
        ------
        ArgumentError
            For the state of another dataset.
        """
        try:
            told = json.dumps(dict(state))
        except (TypeError, ValueError) as error:
            raise ArgumentError(f"not the state of a loader: {error}") from error
        self._inner.restore(told)
        self._restored = dict(state)
        self._begun, self._resumed = False, True


def share_of(rank: int | None, world_size: int | None) -> tuple[int, int]:
    """Rank and world size, as given, or as the environment says."""
    if (rank is None) != (world_size is None):
        raise ArgumentError("rank and world_size come together")
    if rank is None or world_size is None:
        torch = sys.modules.get("torch.distributed")
        if torch is not None and torch.is_available() and torch.is_initialized():
            rank, world_size = torch.get_rank(), torch.get_world_size()
        else:
            try:
                rank, world_size = int(os.environ.get("RANK") or 0), int(os.environ.get("WORLD_SIZE") or 1)
            except ValueError as error:
                raise ArgumentError(f"RANK and WORLD_SIZE must be whole numbers: {error}") from error
    if not 0 <= rank < world_size:
        raise ArgumentError(f"rank {rank} of {world_size} does not exist")
    return rank, world_size


def _warn_of_order(dataset: Dataset) -> None:
    alike = {name: ratio for name, ratio in dataset.clustering.items() if ratio >= SORTED}
    if alike:
        name, ratio = max(alike.items(), key=operator.itemgetter(1))
        warnings.warn(
            f"{dataset.path}: neighbours are {ratio:.0f} times as alike in {name!r} as samples far apart, as if sorted by it; "
            "a chunk shuffle would show them together. Use shuffle='global', or write the dataset in random order.",
            stacklevel=3,
        )
