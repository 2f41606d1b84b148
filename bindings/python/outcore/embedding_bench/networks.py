"""The networks of the models in PyTorch, over embeddings that come from anywhere.

A `Model` has no tables: it is given `bags`, which makes the sums of rows of a batch. So the same network, with the same weights,
runs on tables in memory, in a memory map and on SSD. Layers have weights from N(0, sqrt(2 / (inputs + outputs))) and biases from
N(0, sqrt(1 / outputs)), ReLU after each and a sigmoid after the last, as in RecSSD's artifact (whose NCF, DIN and DIEN end in a
ReLU).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise

from .models import ModelSpec

try:
    import torch
    from torch import Tensor, nn
except ImportError as error:
    raise ImportError("outcore.embedding_bench needs PyTorch: pip install outcore[torch]") from error

__all__ = ["Bags", "Lookup", "Model"]

Lookup = tuple[Tensor, Tensor]
"""What a batch looks up in one table: the ids of all samples, one sample after the other, and where each sample begins."""

Bags = Callable[[Sequence[Lookup]], Sequence[Tensor]]
"""Makes of the look-ups of a batch, one for each table, sums of rows: a tensor [samples, dim] for each table."""


def __dir__() -> list[str]:
    return sorted(__all__)


class Model(nn.Module):
    """A recommender whose embeddings come from `bags`.

    Parameters
    ----------
    spec : ModelSpec
    bags : callable
        Takes a list of (ids, offsets), one for each table, and returns a list of tensors [samples, dim].
    seed : int
        Of the weights.

    Examples
    --------
    >>> tables = [torch.nn.EmbeddingBag(table.rows, spec.dim, mode="sum") for table in spec.tables]
    >>> model = Model(spec, lambda lookups: [table(*lookup) for table, lookup in zip(tables, lookups)])
    >>> model(dense, lookups)
    """

    def __init__(self, spec: ModelSpec, bags: Bags, *, seed: int = 0) -> None:
        super().__init__()
        self.spec, self.bags = spec, bags
        with torch.random.fork_rng(devices=()):  # layers are made with values of their own first
            self.network = _NETWORKS[spec.kind](spec)
        _fill(self.network, seed)

    def forward(self, dense: Tensor, lookups: Sequence[Lookup]) -> Tensor:
        """What the model says of a batch: of each sample, its numbers [samples, spec.dense] and its look-ups."""
        out: Tensor = self.network(dense, self.bags(lookups))
        return out


class _Dense(nn.Module):
    """Wide and Deep, DLRM: numbers, through layers of their own if there are any, joined with all sums."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.bottom = _layers([spec.dense, *spec.bottom])
        self.top = _layers([spec.joined, *spec.top], ends=nn.ReLU() if spec.heads else nn.Sigmoid())

    def forward(self, dense: Tensor, sums: Sequence[Tensor]) -> Tensor:
        out: Tensor = self.top(torch.cat([self.bottom(dense), *sums], 1))
        return out


class _Tasks(nn.Module):
    """Multi-Task Wide and Deep: heads on what all tasks share; their outputs lie beside each other."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.shared = _Dense(spec)
        self.heads = nn.ModuleList(_layers([spec.top[-1], *spec.head], ends=nn.Sigmoid()) for _ in range(spec.heads))

    def forward(self, dense: Tensor, sums: Sequence[Tensor]) -> Tensor:
        shared = self.shared(dense, sums)
        return torch.cat([head(shared) for head in self.heads], 1)


class _Attention(nn.Module):
    """Deep Interest Network: a unit for each behaviour weighs it by the candidate.

    Tables: the user's profile, the behaviours, the candidate, the context. A unit takes [behaviour, candidate, both added] to
    `hidden` and back to `dim`; what the units return is added. All units are one product here, where the artifact has hundreds.
    """

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        units = len(spec.tables) - 3
        self.narrow = nn.Parameter(torch.empty(units, 3 * spec.dim, spec.hidden))
        self.narrow_bias = nn.Parameter(torch.empty(units, spec.hidden))
        self.widen = nn.Parameter(torch.empty(units, spec.hidden, spec.dim))
        self.widen_bias = nn.Parameter(torch.empty(units, spec.dim))
        self.top = _layers([spec.joined, *spec.top], ends=nn.Sigmoid())

    def forward(self, dense: Tensor, sums: Sequence[Tensor]) -> Tensor:
        user, candidate, context = sums[0], sums[-2], sums[-1]
        behaviours = torch.stack(list(sums[1:-2]))
        against = candidate.expand_as(behaviours)
        legs = torch.cat([behaviours, against, behaviours + against], 2)
        weighed = (legs @ self.narrow + self.narrow_bias[:, None]).relu()
        interest = (weighed @ self.widen + self.widen_bias[:, None]).relu().sum(0)
        out: Tensor = self.top(torch.cat([user, interest, candidate, context], 1))
        return out


class _Recurrent(nn.Module):
    """Deep Interest Evolution Network: two recurrent layers go through the behaviours, with attention in between."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.interests = nn.RNN(spec.dim, spec.hidden)
        self.attention = nn.Linear(spec.hidden, spec.hidden)
        self.evolution = nn.RNN(spec.hidden, spec.hidden)
        self.top = _layers([spec.joined, *spec.top], ends=nn.Sigmoid())

    def forward(self, dense: Tensor, sums: Sequence[Tensor]) -> Tensor:
        interests, _ = self.interests(torch.stack(list(sums[1:-2])))
        _, last = self.evolution(interests + self.attention(interests).softmax(2))
        out: Tensor = self.top(torch.cat([last[0], sums[0], sums[-2], sums[-1]], 1))
        return out


class _Factors(nn.Module):
    """Neural Collaborative Filtering: two factors are added (as in the artifact), two go through layers, and both are joined."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.layers = _layers([2 * spec.dim, *spec.bottom])
        self.top = _layers([spec.joined, *spec.top], ends=nn.Sigmoid())

    def forward(self, dense: Tensor, sums: Sequence[Tensor]) -> Tensor:
        layered = self.layers(torch.cat([sums[2], sums[3]], 1))
        out: Tensor = self.top(torch.cat([sums[0] + sums[1], layered], 1))
        return out


class _Pooled(nn.Module):
    """No network: the sums beside each other."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()

    def forward(self, dense: Tensor, sums: Sequence[Tensor]) -> Tensor:
        return torch.cat(list(sums), 1)


_NETWORKS: dict[str, Callable[[ModelSpec], nn.Module]] = {
    "dense": _Dense,
    "tasks": _Tasks,
    "attention": _Attention,
    "recurrent": _Recurrent,
    "factors": _Factors,
    "pooled": _Pooled,
}


def _layers(widths: Sequence[int], ends: nn.Module | None = None) -> nn.Sequential:
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(widths):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    if ends is not None:
        layers[-1] = ends
    return nn.Sequential(*layers)


@torch.no_grad()
def _fill(network: nn.Module, seed: int) -> None:
    """Weights: matrices from N(0, sqrt(2 / (inputs + outputs))), vectors from N(0, sqrt(1 / outputs)), in the order of their
    names."""
    random = torch.Generator().manual_seed(seed)
    for name, values in sorted(network.named_parameters()):
        is_bias = "bias" in name.rpartition(".")[2]
        deviation = math.sqrt(1 / values.shape[-1]) if is_bias else math.sqrt(2 / sum(values.shape[-2:]))
        values.normal_(0, deviation, generator=random)
