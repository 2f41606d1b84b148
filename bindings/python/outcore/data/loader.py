"""Batches of a dataset, in a reproducible random order."""

from __future__ import annotations

import json
import operator
import os
import warnings
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal

from .. import _native
from ..errors import ArgumentError
from .fields import Sample
from .ranks import WHOLE, Ranks, Share, warn_of_uneven_ranks

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
        Which share of the order this is, whatever the process is. Default: looked up whenever an iteration begins (notes).
    end : {"pad", "drop", "uneven"}
        What ranks do with what does not divide evenly: the epoch's first samples again, left out, or one more for some. With
        "uneven", ranks may have different numbers of batches, and `DistributedDataParallel` hangs, waiting for those that have
        no more, unless the loop is within `torch.distributed.algorithms.join.Join`; a warning says so.
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
    OverBudgetError, CorruptError, UnsupportedError (a picture of a kind that is not decoded), which name the sample,
    DeviceError, and ArgumentError where the environment does not say which rank this is; all while iterating.

    Notes
    -----
    The share is that of `torch.distributed` if it is initialised, else that of the environment variables WORLD_SIZE and RANK;
    without RANK, LOCAL_RANK and NODE_RANK, and LOCAL_WORLD_SIZE on several nodes; without any of them it is all samples. So a
    loader may be made before the process group is. Within an epoch it stays; if the number of ranks has changed before the next,
    that one is divided anew. `len`, `left`, `rank` and `world_size` are of the share at the time. In a process that a rank has
    started, and that is no rank itself, a pickled or forked loader has the share of that rank.
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
        self._ranks = Ranks(rank, world_size)
        self.end, self.drop_last, self.chunks, self.ahead, self.skip_damaged = end, drop_last, chunks, ahead, skip_damaged
        for name, value in (("batch_size", self.batch_size), ("chunks", chunks), ("ahead", ahead)):
            if value is not None and (not 0 <= value < 2**63 or (value == 0 and name != "ahead")):
                raise ArgumentError(f"{name} must be a whole number of at least {int(name != 'ahead')}, not {value}")
        # A state whose seed and shuffle this goes by, and whether it goes on from there with the next batch.
        self._restored: dict[str, Any] | None = None
        self._begun = self._resumed = self._warned = False
        self._samples = len(dataset)
        self._skipped_before: tuple[int, str | None] = (0, None)
        try:
            self._share = self._ranks.now()
        except ArgumentError:
            # Until iteration begins, the process may become a rank.
            self._share = WHOLE
        # Epoch and position that a native loader begins at, while there is none.
        self._place = (0, 0)
        self._native_loader: _native.Loader | None = self._made(dataset._inner)
        if shuffle == "chunk":
            _warn_of_order(dataset)

    def _made(self, dataset: _native.Dataset) -> _native.Loader:
        kind = {False: "no", True: "global", "global": "global", "chunk": "chunk"}[self.shuffle]
        made = _native.Loader(
            dataset,
            self.batch_size,
            kind,
            self.chunks,
            self.seed % 2**64,
            *self._share,
            self.end,
            self.drop_last,
            self.ahead,
            self.skip_damaged,
        )
        self._pid = os.getpid()
        return made

    def _restart(self, share: Share) -> _native.Loader:
        """Makes the native loader anew, of a share, at the position of the one before."""
        # Of a dataset that is closed there is none, and the one before stays.
        dataset = self.dataset._inner
        if self._native_loader is not None:
            # Its memory goes back before the next one takes its own.
            self._place, self._native_loader = self._native_loader.place(), None
        self._share = share
        made = self._made(dataset)
        epoch, position = self._place
        made.restore(json.dumps({**(self._restored or json.loads(made.state())), "epoch": epoch, "position": position}))
        self._native_loader = made
        return made

    def _take_share(self) -> Share:
        """The share at this moment, which batches are of from here on; within an epoch, the one that it began with."""
        if not self._begun and (share := self._ranks.now()) != self._share:
            count, first = self._inner.skipped()
            self._restart(share)
            self._skipped_before = self._skipped_before[0] + count, self._skipped_before[1] or first
        return self._share

    @property
    def rank(self) -> int:
        """Which share of the order this process reads; within an epoch, that of the epoch."""
        return self._take_share().rank

    @property
    def world_size(self) -> int:
        """Into how many shares the order is divided; within an epoch, that of the epoch."""
        return self._take_share().world_size

    @property
    def _inner(self) -> _native.Loader:
        if self._native_loader is None or self._pid != os.getpid():
            return self._restart(self._share)
        return self._native_loader

    def __getstate__(self) -> dict[str, Any]:
        place = self._place if self._native_loader is None else self._native_loader.place()
        return {**self.__dict__, "_native_loader": None, "_place": place}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._restart(self._share)

    def _set_batch_size(self, batch_size: int) -> None:
        self._inner.set_batch(batch_size)
        self.batch_size = batch_size

    def __len__(self) -> int:
        """Batches of an epoch."""
        self._take_share()
        return self._inner.lengths()[0]

    @property
    def left(self) -> int:
        """Batches left in the epoch."""
        self._take_share()
        return self._inner.lengths()[1]

    def __iter__(self) -> Iterator[Sample]:
        if self._begun:
            # An epoch that was left early has ended.
            self.set_epoch(self.epoch + 1)
        self._take_share()
        self._begun = True
        self._warn_of_uneven_ranks()
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

    def _warn_of_uneven_ranks(self) -> None:
        """Once, on rank 0, which has most: it is where a training that hangs is found."""
        group = self._ranks.distributed()
        if self.end == "uneven" and self._share.rank == 0 and group is not None and group.world_size > 1 and not self._warned:
            left = self._samples - self._inner.place()[1]
            self._warned = warn_of_uneven_ranks(
                self.dataset.path,
                left,
                self._share.world_size,
                batch_size=self.batch_size,
                drop_last=self.drop_last,
                stacklevel=3,
            )

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
        return self._skipped_before[0] + self._inner.skipped()[0]

    @property
    def first_skipped(self) -> str | None:
        """The fault of the first of them."""
        return self._skipped_before[1] or self._inner.skipped()[1]

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


def _warn_of_order(dataset: Dataset) -> None:
    alike = {name: ratio for name, ratio in dataset.clustering.items() if ratio >= SORTED}
    if alike:
        name, ratio = max(alike.items(), key=operator.itemgetter(1))
        warnings.warn(
            f"{dataset.path}: neighbours are {ratio:.0f} times as alike in {name!r} as samples far apart, as if sorted by it; "
            "a chunk shuffle would show them together. Use shuffle='global', or write the dataset in random order.",
            stacklevel=3,
        )
