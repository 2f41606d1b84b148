"""Which share of an order a process reads: its rank and the number of ranks, as given, or as they are where iteration begins.

What is not given is looked up in this order:

1. `torch.distributed`, where it is initialised. It is not imported for that: a program that has not, has not initialised it.
2. `torch.distributed` of the process that this one works for: that pickled the loader and started this process, which is not
   itself a rank. Worker processes have no process group of their own, and their variables may be those of a node.
3. The environment: WORLD_SIZE with RANK, else with LOCAL_RANK and NODE_RANK.

A share that cannot be told raises: all of it, or that of another rank, would train on wrong data without a sign.
"""

from __future__ import annotations

import multiprocessing
import operator
import os
import sys
import warnings
from typing import Any, NamedTuple

from ..errors import ArgumentError

OTHERWISE = "or give rank= and world_size="


class Share(NamedTuple):
    """Of an order, what one of `world_size` ranks reads."""

    rank: int
    world_size: int


WHOLE = Share(0, 1)


class Ranks:
    """Where a loader has its share from.

    Parameters
    ----------
    rank, world_size : int, optional
        The share, fixed. Default: it is looked up.
    """

    def __init__(self, rank: int | None, world_size: int | None) -> None:
        if (rank is None) != (world_size is None):
            raise ArgumentError("rank and world_size come together")
        self.given: Share | None = None
        if rank is not None and world_size is not None:
            self.given = _existing(operator.index(rank), operator.index(world_size))
        # The share in the processes that this was pickled in, and their numbers.
        self._carried: tuple[frozenset[int], Share] | None = None

    def now(self) -> Share:
        """The share at this moment.

        Raises
        ------
        ArgumentError
            Where the environment speaks of ranks, and does not say which of them this is.
        """
        return self.given or self.distributed() or _of_environment()

    def distributed(self) -> Share | None:
        """The share that `torch.distributed` says, here or in the process that this one works for."""
        here = _initialised()
        if here is None and self._carried is not None and self._carried[0] & ancestors():
            return self._carried[1]
        return here

    def __getstate__(self) -> dict[str, Any]:
        share, carried = self.distributed(), self._carried
        # A process hands on to its own children what it was handed, and keeps it in copies of its own.
        before = carried[0] & ancestors() if carried is not None and _initialised() is None else frozenset[int]()
        return {**self.__dict__, "_carried": None if share is None else (before | {os.getpid()}, share)}


def ancestors() -> set[int]:
    """The processes that started this one. They are two where a server forks processes for others."""
    parent = multiprocessing.parent_process()
    found = {os.getppid()} if parent is None else {os.getppid(), parent.pid}
    return {pid for pid in found if pid is not None}


def _initialised() -> Share | None:
    torch = sys.modules.get("torch.distributed")
    if torch is None or not torch.is_available() or not torch.is_initialized():
        return None
    return Share(torch.get_rank(), torch.get_world_size())


def _of_environment() -> Share:
    world_size, rank, local = _variable("WORLD_SIZE"), _variable("RANK"), _variable("LOCAL_RANK")
    if world_size is None:
        # Lightning unsets WORLD_SIZE after training and leaves LOCAL_RANK, which is 0 where there was one process.
        if rank is not None or local:
            told = f"LOCAL_RANK is {local}" if rank is None else f"RANK is {rank}"
            raise ArgumentError(f"{told}, but WORLD_SIZE is not set; set it, {OTHERWISE}")
        return WHOLE
    if rank is not None:
        return _existing(rank, world_size, f"RANK is {rank} and WORLD_SIZE {world_size}")
    if local is not None:
        return _on_node(local, world_size)
    if world_size == 1:
        return WHOLE
    raise ArgumentError(
        f"WORLD_SIZE is {world_size}, but none of torch.distributed, RANK and LOCAL_RANK says which rank this process is; "
        f"call torch.distributed.init_process_group before iterating, set RANK, {OTHERWISE}"
    )


def _on_node(local: int, world_size: int) -> Share:
    """The share of the process with a number within its node."""
    node, of_node = _variable("NODE_RANK"), _variable("LOCAL_WORLD_SIZE")
    told = f"LOCAL_RANK is {local} and WORLD_SIZE {world_size}"
    if node is None and world_size not in (1, of_node):
        raise ArgumentError(
            f"{told}, but which node this is is not known; set NODE_RANK (0 if there is one node) or RANK, {OTHERWISE}"
        )
    node = node or 0
    if node and of_node is None:
        raise ArgumentError(
            f"{told} on node {node}, but how many ranks the nodes before it have is not known; "
            f"set LOCAL_WORLD_SIZE or RANK, {OTHERWISE}"
        )
    of_node = world_size if of_node is None else of_node
    if not 0 <= local < of_node or node < 0:
        raise ArgumentError(f"{told}, NODE_RANK is {node} and LOCAL_WORLD_SIZE {of_node}: there is no such rank")
    return _existing(node * of_node + local, world_size, f"{told}, NODE_RANK is {node} and LOCAL_WORLD_SIZE {of_node}")


def _variable(name: str) -> int | None:
    """The number that an environment variable is; None where it is empty or not set."""
    text = os.environ.get(name, "").strip()
    try:
        return int(text) if text else None
    except ValueError as error:
        raise ArgumentError(f"{name} must be a whole number, and is {text!r}") from error


def _existing(rank: int, world_size: int, told: str = "") -> Share:
    if not 0 <= rank < world_size:
        raise ArgumentError(f"{told}: rank {rank} of {world_size} does not exist".removeprefix(": "))
    return Share(rank, world_size)


def warn_of_uneven_ranks(
    name: str, left: int, world_size: int, *, batch_size: int, drop_last: bool, workers: int = 1, stacklevel: int = 1
) -> bool:
    """Whether ranks have different numbers of batches of the samples left, where they end unevenly; then it warns."""

    def batches(rank: int) -> int:
        parts = range(rank * workers, (rank + 1) * workers)
        counts = [max(0, left - part + world_size * workers - 1) // (world_size * workers) for part in parts]
        return sum(count // batch_size if drop_last else -(-count // batch_size) for count in counts)

    most, least = batches(0), batches(world_size - 1)
    if most != least:
        warnings.warn(
            f"{name}: with end='uneven', rank 0 of {world_size} has {most} batches of this epoch, and the last rank {least}; "
            "DistributedDataParallel hangs, waiting for the ranks that have no more. Iterate within "
            "`with torch.distributed.algorithms.join.Join([model]):`, or use end='pad' or end='drop'.",
            stacklevel=stacklevel + 1,
        )
    return most != least
