"""How long a ring of ranks takes, event by event, for numbers of ranks that were not measured.

The rules are those of the ring itself: a block goes on once it is there, one at a time, into a slot of the right neighbour that
is free, which it is when its last block has been computed with and has gone on. Designs:

- `exchange`: when computing is over, a rank sends and receives at once, and then computes on; `mpi`.
- `overlap`: blocks go on while ranks compute; all others, which differ in slots and in what a transfer costs.

Where ranks share cores, rank r computes on core r % cores, and what is sent and received takes of it, too: each computation and
each end of a transfer has an equal part. `crowding` says by how much two ranks on one core are slower still, since they share its
caches and look for messages while the other computes.

Not in it: the order in which a kernel shares a core, links that ranks share, and queries in several groups, for each of which the
rows go round once more.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from ..errors import ArgumentError

Design = Literal["exchange", "overlap"]
DESIGNS: dict[str, tuple[Design, int]] = {
    "mpi": ("exchange", 2),
    "mpi_o": ("overlap", 2),
    "mpi_rma": ("overlap", 4),
    "osh_ow": ("overlap", 2),
    "osh_om": ("overlap", 2),
    "osh_oc": ("overlap", 4),
}
"""What the designs of `outcore.ranks` are here, and their slots."""


@dataclass(frozen=True)
class Costs:
    """Constants.

    Attributes
    ----------
    block_s : array of (ranks, blocks) or (ranks, ranks, blocks)
        Core-seconds that a rank computes with a block of that rank; for each rank that computes, if the array has them.
    transfer_s : float
        Of a block over a link: its bytes by the bandwidth.
    latency_s : float
        Until a transfer begins after it may, the time between two looks included.
    transfer_core_s : float
        Core-seconds that a transfer takes from each of both ranks while they compute.
    loading_s : float
        For a rank to read a block of its own.
    cores : int, optional
        That all ranks share; default one for each.
    crowding : float
        Core-seconds of a rank that shares its core, by those of one that does not.
    """

    block_s: npt.NDArray[np.float64]
    transfer_s: float
    latency_s: float = 0.0
    transfer_core_s: float = 0.0
    loading_s: float = 0.0
    cores: int | None = None
    crowding: float = 1.0


@dataclass(frozen=True)
class Times:
    """What came of it; parts are sums of a rank's rounds."""

    ring_s: float
    computing_s: npt.NDArray[np.float64]
    waiting_s: npt.NDArray[np.float64]
    exchanging_s: npt.NDArray[np.float64]


def simulate(design: Design, slots: int, costs: Costs) -> Times:
    """All rounds of a ring."""
    if slots < 2 or (design != "overlap" and slots != 2):
        raise ArgumentError(f"a ring of design {design!r} has no {slots} slots")
    ring = _Ring(design, slots, costs)
    return ring.run()


class _Rank:
    __slots__ = (
        "arrived",
        "computed",
        "computing",
        "filled",
        "idle_since",
        "left_s",
        "loading",
        "moved_version",
        "moving_left_s",
        "moving_rate",
        "moving_since",
        "phases",
        "rate",
        "receiving",
        "sending",
        "sent",
        "since",
        "times",
        "version",
    )

    def __init__(self) -> None:
        self.filled = self.arrived = self.sent = self.computed = 0
        self.loading = self.sending = self.receiving = self.computing = False
        self.phases: set[str] = set()
        self.left_s, self.rate, self.since, self.version = 0.0, 0.0, 0.0, 0
        # Of the transfer to the right.
        self.moving_left_s, self.moving_rate, self.moving_since, self.moved_version = 0.0, 0.0, 0.0, 0
        self.idle_since = 0.0
        self.times = {"computing": 0.0, "waiting": 0.0, "exchanging": 0.0}


class _Ring:
    def __init__(self, design: Design, slots: int, costs: Costs) -> None:
        self.design, self.slots, self.costs = design, slots, costs
        self.count, blocks = costs.block_s.shape[-2:]
        self.rounds = self.count * blocks
        self.ranks = [_Rank() for _ in range(self.count)]
        self.drag = min(0.9, costs.transfer_core_s / costs.transfer_s) if costs.transfer_s > 0 else 0.0
        self.events: list[tuple[float, int, str, int, int]] = []
        self.number, self.now = 0, 0.0
        self.cores = min(costs.cores or self.count, self.count)
        self.active = [0] * self.cores
        """Ranks that compute on each core."""
        self.moving = [0] * self.cores
        """Ends of transfers on each, where ranks share them."""
        self.is_shared = self.cores < self.count

    def run(self) -> Times:
        for rank in range(self.count):
            self.skip(self.ranks[rank])
        for rank in range(self.count):
            self.advance(rank)
        while self.events:
            self.now, _, what, rank, version = heapq.heappop(self.events)
            one = self.ranks[rank]
            if (what == "computed" and version != one.version) or (what == "sent" and version != one.moved_version):
                continue
            getattr(self, what)(rank)
            for near in {rank, (rank + 1) % self.count, (rank - 1) % self.count}:
                self.advance(near)
        parts = [np.array([one.times[name] for one in self.ranks]) for name in ("computing", "waiting", "exchanging")]
        return Times(float((parts[0] + parts[1] + parts[2]).max()), *parts)

    def later(self, seconds: float, what: str, rank: int, version: int = 0) -> None:
        self.number += 1
        heapq.heappush(self.events, (self.now + seconds, self.number, what, rank, version))

    # What is so of a rank

    def is_own(self, round_: int) -> bool:
        return round_ % self.count == 0

    def is_here(self, one: _Rank, round_: int) -> bool:
        return round_ // self.count < one.filled if self.is_own(round_) else round_ < one.arrived

    def is_free(self, one: _Rank, round_: int) -> bool:
        return round_ < min(one.computed, one.sent) + self.slots

    def skip(self, one: _Rank) -> None:
        """Passes rounds whose blocks stay."""
        while one.sent < self.rounds and self.is_own(one.sent + 1):
            one.sent += 1

    # What may begin

    def advance(self, rank: int) -> None:
        one, right = self.ranks[rank], self.ranks[(rank + 1) % self.count]
        own = one.filled * self.count
        if own < self.rounds and not one.loading and self.is_free(one, own):
            one.loading = True
            self.later(self.costs.loading_s, "loaded", rank)
        if self.may_send(one, right):
            one.sending = right.receiving = True
            self.begin_transfer(rank)
        if not one.computing and not one.phases and one.computed < self.rounds and self.is_here(one, one.computed):
            hop, index = one.computed % self.count, one.computed // self.count
            one.times["waiting"] += self.now - one.idle_since
            one.computing, one.since, one.rate = True, self.now, 0.0
            one.idle_since = self.now
            seconds = self.costs.block_s if self.costs.block_s.ndim == 2 else self.costs.block_s[rank]
            one.left_s = float(seconds[(rank - hop) % self.count, index])
            self.active[rank % self.cores] += 1
            self.share_core(rank % self.cores)

    def begin_transfer(self, rank: int) -> None:
        one = self.ranks[rank]
        if self.is_shared:
            # A rank that sends a block and receives one takes a core for as long as a transfer does.
            one.moving_left_s, one.moving_rate, one.moving_since = self.costs.transfer_s / 2, 0.0, self.now
            self.move(rank, 1)
            return
        if self.design == "overlap":
            self.share(rank)
            self.share((rank + 1) % self.count)
        self.later(self.costs.transfer_s + self.costs.latency_s, "sent", rank, one.moved_version)

    def may_send(self, one: _Rank, right: _Rank) -> bool:
        if one.sending or one.sent >= self.rounds or not self.is_here(one, one.sent):
            return False
        if self.design == "overlap":
            return self.is_free(right, one.sent + 1)
        both = one.computed == right.computed == one.sent + 1
        return both and "send" in one.phases and "receive" in right.phases

    # How fast a rank computes

    def share(self, rank: int) -> None:
        one = self.ranks[rank]
        if not one.computing:
            return
        one.left_s -= one.rate * (self.now - one.since)
        core = rank % self.cores
        is_crowded = core < self.count - self.cores
        rate = 1.0 / (self.active[core] + self.moving[core]) / (self.costs.crowding if is_crowded else 1.0)
        if self.design == "overlap" and not self.is_shared:
            rate *= max(0.05, 1.0 - self.drag * (one.sending + one.receiving))
        one.rate, one.since = rate, self.now
        one.version += 1
        self.later(max(0.0, one.left_s) / rate, "computed", rank, one.version)

    def share_core(self, core: int) -> None:
        """When another number of ranks compute on it, or of transfers end there."""
        for rank in range(core, self.count, self.cores):
            self.share(rank)
        if self.is_shared:
            for rank in range(self.count):
                if core in self.ends(rank):
                    self.share_transfer(rank)

    def share_transfer(self, rank: int) -> None:
        one = self.ranks[rank]
        if not one.sending:
            return
        one.moving_left_s -= one.moving_rate * (self.now - one.moving_since)
        one.moving_rate = 1.0 / max(self.active[core] + self.moving[core] for core in self.ends(rank))
        one.moving_since = self.now
        one.moved_version += 1
        self.later(max(0.0, one.moving_left_s) / one.moving_rate + self.costs.latency_s, "sent", rank, one.moved_version)

    def ends(self, rank: int) -> tuple[int, int]:
        """The cores of a transfer to the right."""
        return rank % self.cores, (rank + 1) % self.count % self.cores

    def move(self, rank: int, more: int) -> None:
        """A transfer to the right begins or has ended."""
        for core in self.ends(rank):
            self.moving[core] += more
        for core in set(self.ends(rank)):
            self.share_core(core)

    # What has ended

    def loaded(self, rank: int) -> None:
        one = self.ranks[rank]
        one.loading = False
        one.filled += 1

    def sent(self, rank: int) -> None:
        one, right = self.ranks[rank], self.ranks[(rank + 1) % self.count]
        one.sending = right.receiving = False
        right.arrived = one.sent + 2
        one.sent += 1
        one.moved_version += 1
        self.skip(one)
        if self.is_shared:
            self.move(rank, -1)
        if self.design == "overlap":
            self.share(rank)
            self.share((rank + 1) % self.count)
            return
        one.phases.remove("send")
        right.phases.remove("receive")
        for side in (one, right):
            if not side.phases:
                side.times["exchanging"] += self.now - side.idle_since
                side.idle_since = self.now

    def computed(self, rank: int) -> None:
        one = self.ranks[rank]
        round_ = one.computed
        one.computing = False
        one.computed += 1
        one.times["computing"] += self.now - one.idle_since
        one.idle_since = self.now
        self.active[rank % self.cores] -= 1
        if self.design != "overlap" and not self.is_own(round_ + 1):
            one.phases = {"send", "receive"}
        self.share_core(rank % self.cores)


# Constants of measured runs


@dataclass(frozen=True)
class Fitted:
    """Constants of a design, fitted to runs of it and of `mpi` on two ranks.

    Attributes
    ----------
    seconds : array of (2, cells)
        Core-seconds that the first and the second half of the queries take with the rows of each cell, of equal cells.
    byte_s : float
        For a byte over a link.
    byte_core_s : float
        Core-seconds that it takes from a rank which sends one and receives one while it computes.
    crowding : float
        Of two ranks on one core.
    """

    rows: int
    queries: int
    row_bytes: float
    slot_bytes: float
    seconds: npt.NDArray[np.float64]
    byte_s: float
    byte_core_s: float
    latency_s: float
    loading_s: float
    crowding: float = 1.0


def fit(
    design: str, runs: Sequence[dict[str, Any]], baseline: Sequence[dict[str, Any]], crowded: Sequence[dict[str, Any]] = ()
) -> Fitted:
    """Constants from results of `run.measure` on two ranks; `baseline` are those of `mpi`, which sends and receives at once,
    `crowded` those of the design with both ranks on one core."""
    for one in (*runs, *baseline, *crowded):
        if one["n_ranks"] != 2:
            raise ArgumentError(f"constants are fitted to runs of 2 ranks, not of {one['n_ranks']}")
    # Of several runs the quickest, which others on the machine disturbed least.
    first, quickest = (min(some, key=lambda one: float(one["ring_s"])) for some in (runs, baseline))
    total = float(first["bytes_sent"])
    extra = float(first["computing_s"] - quickest["computing_s"])
    started = float(np.mean([rank["waiting_s"][0] for rank in first["ranks"]]))
    fitted = Fitted(
        rows=first["rows"],
        queries=first["queries"],
        row_bytes=total / first["rows"],
        slot_bytes=total / first["rounds"],
        seconds=seconds_of(quickest).reshape(2, -1),
        byte_s=_exchange_s(quickest) / (quickest["bytes_sent"] / quickest["rounds"]),
        byte_core_s=0.0 if design == "mpi" else max(0.0, extra / (total / 2)),
        latency_s=200e-6,
        loading_s=started,
    )
    if crowded:
        measured = min(float(one["ring_s"]) for one in crowded)
        return replace(fitted, crowding=_crowding(design, fitted, measured))
    return fitted


def _crowding(design: str, fitted: Fitted, measured_s: float) -> float:
    """With which two ranks on one core take as long as they did."""
    least, most = 1.0, 4.0
    while most - least > 1e-3:
        middle = (least + most) / 2
        if predict(design, replace(fitted, crowding=middle), 2, cores=1).ring_s < measured_s:
            least = middle
        else:
            most = middle
    return least


def _exchange_s(run: dict[str, Any]) -> float:
    """Of an exchange: from when the second rank has come to it."""
    rounds = range(0, run["rounds"], 2)
    return float(median(min(one["exchanging_s"][round_] for one in run["ranks"]) for round_ in rounds))


def costs_of(
    fitted: Fitted, ranks: int, *, cores: int | None = None, rows: int | None = None, queries: int | None = None
) -> Costs:
    """Constants for another number of ranks, rows and queries."""
    rows, queries = rows or fitted.rows, queries or fitted.queries
    own_bytes = rows / ranks * fitted.row_bytes
    blocks = max(1, int(np.ceil(own_bytes / fitted.slot_bytes * 0.999)))
    ends = np.linspace(0, 1, fitted.seconds.shape[1] + 1)
    until = np.concatenate([np.zeros((2, 1)), np.cumsum(fitted.seconds, axis=1)], axis=1)
    wanted = np.linspace(0, 1, ranks * blocks + 1)
    halves = np.array([np.diff(np.interp(wanted, ends, half)) for half in until])
    # Which share of each half of the queries a rank has.
    shares = np.array([[np.interp(at * 2 / ranks - half, [0, 1], [0, 1]) for at in range(ranks + 1)] for half in range(2)])
    block_s = (np.diff(shares, axis=1).T @ halves).reshape(ranks, ranks, blocks)
    block_s *= rows / fitted.rows * queries / fitted.queries
    block_bytes = own_bytes / blocks
    return Costs(
        block_s,
        transfer_s=block_bytes * fitted.byte_s,
        latency_s=fitted.latency_s,
        transfer_core_s=block_bytes * fitted.byte_core_s / 2,
        loading_s=fitted.loading_s * block_bytes / fitted.slot_bytes,
        cores=cores,
        crowding=fitted.crowding,
    )


def seconds_of(run: dict[str, Any]) -> npt.NDArray[np.float64]:
    """Core-seconds of each rank with each block, as a run measured them: for other designs with blocks of the same size."""
    count = run["n_ranks"]
    found = np.zeros((count, count, run["rounds"] // count))
    for rank, one in enumerate(run["ranks"]):
        for round_, seconds in enumerate(one["computing_s"]):
            found[rank, (rank - round_) % count, round_ // count] = seconds
    return found


def predict(design: str, fitted: Fitted, ranks: int, **given: Any) -> Times:
    """The rounds of a design."""
    kind, slots = DESIGNS[design]
    costs = costs_of(fitted, ranks, **given)
    if design == "mpi" and ranks == 1:
        costs = replace(costs, transfer_s=0.0)
    return simulate(kind, slots, costs)


COUNTS = (1, 2, 4, 8, 16, 64, 256, 1024, 4096)


def predictions(
    found: Sequence[dict[str, Any]], most: int = 1024, crowded: Sequence[dict[str, Any]] = ()
) -> list[dict[str, Any]]:
    """Each design on up to a number of ranks, by constants of its runs on two, beside the quickest run that was measured. Of runs
    of two ranks on one core, if there are any, it is known what sharing a core costs."""
    two = [one for one in found if one["n_ranks"] == 2]
    baseline = [one for one in two if one["design"] == "mpi"]
    if not baseline:
        raise ArgumentError("constants are fitted to runs of the design mpi on 2 ranks, of which there is none")
    told: list[dict[str, Any]] = []
    for design in dict.fromkeys(one["design"] for one in two):
        runs = [one for one in two if one["design"] == design]
        fitted = fit(design, runs, baseline, [one for one in crowded if one["design"] == design])
        for count in (count for count in COUNTS if count <= most):
            measured = [one for one in found if (one["design"], one["n_ranks"]) == (design, count)]
            factor = count / 2 if two[0].get("weak") else 1
            size: dict[str, Any] = {"rows": int(fitted.rows * factor), "queries": int(fitted.queries * factor)}
            if measured:
                # Beyond what was measured, a rank is to have a core of its own.
                size["cores"] = measured[0].get("cores")
            times = predict(design, fitted, count, **size)
            one = {"design": design, "n_ranks": count, "ring_s": times.ring_s}
            one |= {name: float(getattr(times, name).mean()) for name in ("computing_s", "waiting_s", "exchanging_s")}
            if measured:
                one["measured_s"] = float(min(run["ring_s"] for run in measured))
                one["error"] = times.ring_s / one["measured_s"] - 1
            told.append(one)
    return told
