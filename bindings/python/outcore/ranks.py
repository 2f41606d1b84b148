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

import atexit
import ctypes
import os
import queue
import sys
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, cast

from . import _native
from ._units import parse_bytes
from .errors import ArgumentError

__all__ = ["DESIGNS", "Ranks", "mpi", "threads"]


def __dir__() -> list[str]:
    return sorted(__all__)


DESIGNS = ("mpi", "mpi_o", "mpi_rma", "osh_ow", "osh_om", "osh_oc")
"""How rows go round ranks of MPI, see `mpi`."""


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
    def __init__(self, native: _native.MpiRanks) -> None:
        self.native, self.rank, self.size = native, native.rank, native.size

    def __repr__(self) -> str:
        return f"<rank {self.rank} of {self.size}, design {self.native.design!r}>"

    def send(self, to: int, data: bytes) -> None:
        self.native.send(to, data)

    def receive(self, source: int, count: int) -> bytes:
        return self.native.receive(source, count)


def _load_of_wheel() -> None:
    """MPICH's wheel has its library where the loader does not look."""
    library = Path(sys.prefix, "lib", "libmpi.so.12")
    if "PMI_RANK" in os.environ and library.exists():
        ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)


_of_mpi: list[_Mpi] = []
_of_world: dict[str, _Mpi] = {}
_keyval: int | None = None
"""Of what is kept with a communicator of mpi4py: the number of one that was freed may be another's later."""


def _known_of(comm: Any) -> dict[str, _Mpi]:
    """What was made of all processes, or of a communicator, by design."""
    global _keyval
    if comm is None:
        return _of_world
    if _keyval is None:
        _keyval = type(comm).Create_keyval()
    known = comm.Get_attr(_keyval)
    if known is None:
        known = {}
        comm.Set_attr(_keyval, known)
    return cast("dict[str, _Mpi]", known)


def mpi(design: str = "mpi_rma", *, comm: Any = None, heap: int | str = "256MiB") -> Ranks:
    """The processes that `mpirun` or `oshrun` has started, by the Open MPI or MPICH that is found at run time.

    Parameters
    ----------
    design : str
        How rows go round, where an algorithm has them do so: "mpi" by messages, exchanged when computing is over; "mpi_o" by
        messages while computing goes on; "mpi_rma" by gets out of windows; by OpenSHMEM, "osh_ow" by puts, "osh_om" by copies of
        memory within a node, "osh_oc" by these through a circular buffer.
    comm : mpi4py communicator, optional
        Default: all processes.
    heap : int or str
        The symmetric heap of OpenSHMEM: the slots of a ring, a quarter of the memory of a search at most. The same on all ranks.

    Raises
    ------
    FailedError
        Where there is no such library, or one of another kind. ArgumentError for one that was initialised without threads.
    """
    if design not in DESIGNS:
        raise ArgumentError(f"design={design!r} must be one of {', '.join(DESIGNS)}")
    known = _known_of(comm)
    if design not in known:
        heap_bytes = parse_bytes(heap, "heap")
        _load_of_wheel()
        whole, own = _native.MpiRanks.world, _native.MpiRanks.of_communicator
        native = whole(design, heap_bytes) if comm is None else own(int(comm.py2f()), design, heap_bytes)
        if not _of_mpi:
            atexit.register(_end)
            sys.excepthook = _with_note(sys.excepthook)
        known[design] = _Mpi(native)
        _of_mpi.append(known[design])
    return known[design]


_failed: list[BaseException] = []
"""Errors of this rank that the others do not know of."""


def failed(error: BaseException) -> None:
    """Says that `error` ends this rank: if the others were not told (`_team.together` does), they end with it, as they may wait
    for this one."""
    if not getattr(error, "told", False):
        _failed.append(error)


def _with_note(hook: Any) -> Any:
    def noted(kind: Any, error: BaseException, traceback: Any) -> None:
        hook(kind, error, traceback)
        failed(error)

    return noted


def _end() -> None:
    """At exit: with the others, who wait in MPI_Finalize; or they are ended."""
    if _failed:
        sys.stderr.flush()
        _of_mpi[0].native.abort()
    _native.mpi_finalize()


def ranks_of(comm: Any) -> Ranks:
    """The ranks that `comm=` stands for."""
    if isinstance(comm, Ranks):
        return comm
    if comm is True:
        return _Torch(None)
    kinds = {kind.__module__.partition(".")[0] for kind in type(comm).__mro__}
    if "mpi4py" in kinds:
        return mpi(comm=comm)
    if "torch" in sys.modules and "torch" in kinds:
        return _Torch(comm)
    accepted = "an mpi4py communicator, a torch.distributed group, True or an outcore.ranks.Ranks"
    raise ArgumentError(f"comm must be {accepted}, not {comm!r}")
