"""Rows that are spread over the processes of a job, each of which has its own on its own SSD.

What takes `comm=` computes with the rows of all ranks. It is a collective call: every rank makes it, with the same parameters and
its own rows, of which it may have none. If one rank fails, all raise an error that names it.

`comm` may be

- an mpi4py communicator (initialised for several threads, as is mpi4py's default);
- a process group of `torch.distributed` whose backend takes tensors in memory (gloo), or True for the default group;
- a `Ranks` of your own: `threads(n)` makes some of threads, for tests and notebooks.

After Ctrl-C on one rank the others get an error at their next message; the same `comm` can be used again once they have.

Examples
--------
>>> torch.distributed.init_process_group("gloo")                                             # under torchrun
>>> pca = PCA(50, comm=True).fit(outcore.open("/mnt/ssd/my_rows.npy"))
>>> km = KMeans(100, comm=mpi4py.MPI.COMM_WORLD).fit(outcore.open("/mnt/ssd/my_rows.npy"))   # under mpirun
"""

from __future__ import annotations

import queue
import sys
from abc import ABC, abstractmethod
from typing import Any

from .errors import ArgumentError

__all__ = ["Ranks", "threads"]


def __dir__() -> list[str]:
    return sorted(__all__)


TAG = 0x6F63
"""Of messages by MPI: as unlikely as any to be the caller's."""

MESSAGE_BYTES = 1 << 30
"""At most: MPI counts with 31 bits."""


class Ranks(ABC):
    """The processes of one job, and messages between two of them. Messages are sent from one thread at a time.

    Attributes
    ----------
    rank : int
        Which of them this process is, from 0.
    size : int
        How many there are.
    """

    rank: int
    size: int

    @abstractmethod
    def send(self, to: int, data: bytes) -> None:
        """Returns when `data` is on its way; it may wait until `to` receives it."""

    @abstractmethod
    def receive(self, source: int, count: int) -> bytes:
        """Waits for the next message of `source`, which is `count` bytes long. Messages of a pair of ranks arrive in order."""

    def __deepcopy__(self, memo: object) -> Ranks:
        # Estimators are cloned with their parameters; a connection is not.
        return self


class _Threads(Ranks):
    def __init__(self, rank: int, boxes: list[list[queue.SimpleQueue[bytes]]]) -> None:
        self.rank, self.size, self._boxes = rank, len(boxes), boxes

    def send(self, to: int, data: bytes) -> None:
        self._boxes[self.rank][to].put(data)

    def receive(self, source: int, count: int) -> bytes:
        return self._boxes[source][self.rank].get()


def threads(count: int) -> list[Ranks]:
    """Ranks for as many threads of this process, one each."""
    boxes: list[list[queue.SimpleQueue[bytes]]] = [[queue.SimpleQueue() for _ in range(count)] for _ in range(count)]
    return [_Threads(rank, boxes) for rank in range(count)]


class _Torch(Ranks):
    def __init__(self, group: Any) -> None:
        import torch
        from torch import distributed

        if not distributed.is_available() or not distributed.is_initialized():
            raise ArgumentError("comm=True needs torch.distributed.init_process_group first")
        if distributed.get_backend(group) == "nccl":
            raise ArgumentError("comm needs a process group for tensors in memory: torch.distributed.new_group(backend='gloo')")
        self._torch, self._distributed, self._group = torch, distributed, group
        self.rank, self.size = distributed.get_rank(group), distributed.get_world_size(group)
        if self.rank < 0:
            raise ArgumentError("this process is not in the process group comm")

    def _of_all(self, rank: int) -> int:
        return rank if self._group is None else int(self._distributed.get_global_rank(self._group, rank))

    def send(self, to: int, data: bytes) -> None:
        tensor = self._torch.frombuffer(bytearray(data), dtype=self._torch.uint8)
        self._distributed.send(tensor, self._of_all(to), self._group)

    def receive(self, source: int, count: int) -> bytes:
        tensor = self._torch.empty(count, dtype=self._torch.uint8)
        self._distributed.recv(tensor, self._of_all(source), self._group)
        return bytes(tensor.numpy())


class _Mpi(Ranks):
    def __init__(self, comm: Any) -> None:
        from mpi4py import MPI

        if MPI.Query_thread() < MPI.THREAD_SERIALIZED:
            raise ArgumentError("comm needs an MPI that is initialised for several threads: mpi4py.rc.thread_level = 'multiple'")
        self._comm, self._byte = comm, MPI.BYTE
        self.rank, self.size = comm.Get_rank(), comm.Get_size()

    def send(self, to: int, data: bytes) -> None:
        for start in range(0, len(data), MESSAGE_BYTES):
            self._comm.Send([memoryview(data)[start : start + MESSAGE_BYTES], self._byte], to, TAG)

    def receive(self, source: int, count: int) -> bytes:
        data = bytearray(count)
        for start in range(0, count, MESSAGE_BYTES):
            self._comm.Recv([memoryview(data)[start : start + MESSAGE_BYTES], self._byte], source, TAG)
        return bytes(data)


def ranks_of(comm: Any) -> Ranks:
    """The ranks that `comm=` stands for."""
    if isinstance(comm, Ranks):
        return comm
    if comm is True:
        return _Torch(None)
    kinds = {kind.__module__.partition(".")[0] for kind in type(comm).__mro__}
    if "mpi4py" in kinds:
        return _Mpi(comm)
    if "torch" in sys.modules and "torch" in kinds:
        return _Torch(comm)
    accepted = "an mpi4py communicator, a torch.distributed group, True or an outcore.ranks.Ranks"
    raise ArgumentError(f"comm must be {accepted}, not {comm!r}")
