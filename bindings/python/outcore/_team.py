"""What a call with `comm=` does together with the other ranks, around the jobs that they run together."""

from __future__ import annotations

import contextlib
import json
import pickle
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from . import _native
from ._dtypes import computed
from ._session import is_planning
from .errors import ArgumentError, DTypeError, ShapeError
from .ranks import ranks_of

__all__ = ["AllRows", "together"]


@contextlib.contextmanager
def together(comm: Any) -> Iterator[_native.Team | None]:
    """The ranks of one call; None for rows of this process only, and while a plan is looked at, which is that of the rank's rows.

    An error inside is told to the others, and theirs is raised here.
    """
    if comm is None or comm is False or is_planning():
        yield None
        return
    ranks = ranks_of(comm)
    native = getattr(ranks, "native", None)
    team = _native.Team(ranks.rank, ranks.size, ranks.send, ranks.receive) if native is None else _native.Team.of_mpi(native)
    try:
        yield team
    except BaseException as error:
        # Ctrl-C does not wait for the others.
        team.fail(str(error) or type(error).__name__, isinstance(error, Exception))
        error.told = True  # type: ignore[attr-defined]
        raise
    try:
        team.agree()
    except BaseException as error:
        error.told = True  # type: ignore[attr-defined]
        raise


class AllRows:
    """The rows of all ranks, numbered from those of rank 0 on.

    Attributes
    ----------
    count, first, ranks : int
        How many there are, the number of the first that this rank has, and how many ranks have them.
    """

    def __init__(self, team: _native.Team | None, X: Any, asked: str = "") -> None:
        self._team, self._own, self._columns = team, int(X.shape[0]), int(X.shape[1])
        self._ends = np.array([self._own])
        if team is not None:
            facts = {"rows": self._own, "columns": self._columns, "dtype": computed(X).name, "asked": asked}
            told = [json.loads(one) for one in team.all_gather(json.dumps(facts).encode())]
            for rank, one in enumerate(told):
                _check(rank, one, told[0])
            self._ends = np.cumsum([one["rows"] for one in told])
        self.ranks = len(self._ends)
        self.count = int(self._ends[-1])
        self.first = int(self._ends[team.rank]) - self._own if team is not None else 0

    def gathered(self, own: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """What all ranks have, in their order, along the first axis; all have the same type and the same other axes."""
        if self._team is None:
            return own
        parts = self._team.all_gather(np.ascontiguousarray(own).tobytes())
        return np.concatenate([np.frombuffer(part, own.dtype).reshape(-1, *own.shape[1:]) for part in parts])

    def own(self, numbers: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Those of the rows that this rank has, numbered from 0."""
        here = numbers[(numbers >= self.first) & (numbers < self.first + self._own)] - self.first
        found: npt.NDArray[Any] = here
        return found

    def in_order(self, numbers: npt.NDArray[Any], own: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Of rows that were looked for by number and found by their ranks, all, in the order of the numbers."""
        if self._team is None:
            return own
        gathered = self.gathered(own)
        found = np.empty_like(gathered)
        found[np.argsort(self.rank_of(numbers), kind="stable")] = gathered
        return found

    def rank_of(self, number: Any) -> Any:
        return np.searchsorted(self._ends, number, side="right")

    def where(self, name: str, number: int) -> tuple[str, int]:
        """Of a row, what errors call the matrix that has it, and its number there."""
        if self._team is None:
            return name, number
        rank = int(self.rank_of(number))
        return f"rank {rank}", number - (int(self._ends[rank - 1]) if rank else 0)

    def labels(self, own: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """As `gathered`, of whatever type each rank has."""
        if self._team is None:
            return own
        parts = [pickle.loads(part) for part in self._team.all_gather(pickle.dumps(own))]
        return np.concatenate([part for part in parts if len(part)] or parts[:1])

    def total(self, own: npt.NDArray[Any]) -> Any:
        """The sum of what the ranks have, in their order."""
        return self.gathered(own[None]).sum(axis=0)

    def of_first(self, random: np.random.RandomState) -> np.random.RandomState:
        """The generator of rank 0."""
        if self._team is None:
            return random
        _, keys, place, has_normal, normal = random.get_state(legacy=True)
        state = self._team.broadcast(json.dumps([np.asarray(keys).tolist(), place, has_normal, normal]).encode())
        keys, place, has_normal, normal = json.loads(state)
        random.set_state(("MT19937", np.array(keys, np.uint32), place, has_normal, normal))
        return random

    def sample(self, random: np.random.RandomState, most: int = 1 << 20) -> npt.NDArray[np.float64]:
        """A number between 0 and 1 for each row of this rank, of a sequence that has one for each row of all."""
        before, after = self.first, self.count - self.first - self._own
        for skipped in _parts(before, most):
            random.random_sample(skipped)
        found: npt.NDArray[np.float64] = random.random_sample(self._own)
        for skipped in _parts(after, most):
            random.random_sample(skipped)
        return found


def _parts(count: int, most: int) -> Iterator[int]:
    for start in range(0, count, most):
        yield min(most, count - start)


def _check(rank: int, facts: dict[str, Any], first: dict[str, Any]) -> None:
    if facts["columns"] != first["columns"]:
        raise ShapeError(f"rank {rank} has rows of {facts['columns']} columns, rank 0 of {first['columns']}")
    if facts["dtype"] != first["dtype"]:
        raise DTypeError(f"rank {rank} computes in {facts['dtype']}, rank 0 in {first['dtype']}")
    if facts["asked"] != first["asked"]:
        raise ArgumentError(f"rank {rank} was asked for {facts['asked']}, rank 0 for {first['asked']}")
