"""A recommender whose tables do not fit in memory, trained end to end: the same losses and rows as in memory, bit for bit.

    python examples/recommender.py lastfm.csv.gz

Users and items have a row each; a small network scores a pair. It learns to score items that a user has chosen above others
(binary cross-entropy, as neural collaborative filtering), by SGD. Interactions are a CSV file with a header and columns number,
user and item, or a square SciPy matrix (`.npz`) in which users come before items. A tenth of them is held out. After each epoch
the tables are committed, so that a recommender which serves them goes over to the new version. Needs torch: pip install
'outcore[torch]'.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import click
import numpy as np
import torch
from torch import Tensor, nn

from outcore.embedding import TableSet, create
from outcore.torch import SGD, Embedding

NEGATIVES = 4
"""Items drawn at random for each one that was chosen."""


def read(path: Path) -> np.ndarray:
    """Interactions: n x (user, item), both numbered from 0."""
    if path.suffix == ".npz":
        import scipy.sparse

        pairs = scipy.sparse.load_npz(path).tocoo()
        before = pairs.row < pairs.col
        return np.stack([pairs.row[before], pairs.col[before] - pairs.col[before].min()], axis=1).astype(np.int64)
    return np.loadtxt(path, delimiter=",", skiprows=1, usecols=(1, 2), dtype=np.int64)


class Recommender(nn.Module):
    """Scores pairs of a user and an item."""

    def __init__(self, users: nn.Module, items: nn.Module, dim: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.users, self.items = users, items
        self.network = nn.Sequential(nn.Linear(3 * dim, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, users: Tensor, items: Tensor) -> Tensor:
        user, item = self.users(users), self.items(items)
        return self.network(torch.cat([user, item, user * item], dim=1)).squeeze(1)


def batches(pairs: np.ndarray, items: int, batch: int, epoch: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Users, items, and whether the user has chosen the item; each chosen one is followed by others."""
    random = np.random.default_rng(epoch)
    order = random.permutation(len(pairs))
    for first in range(0, len(order), batch):
        chosen = pairs[order[first : first + batch]]
        drawn = random.integers(0, items, (len(chosen), NEGATIVES))
        users = np.repeat(chosen[:, 0], 1 + NEGATIVES)
        both = np.concatenate([chosen[:, 1:], drawn], axis=1).ravel()
        target = np.tile(np.array([1.0] + [0.0] * NEGATIVES, np.float32), len(chosen))
        yield torch.as_tensor(users), torch.as_tensor(both), torch.as_tensor(target)


def held_out_score(model: Recommender, pairs: np.ndarray, items: int) -> float:
    """How often a chosen item of those held out has a higher score than one drawn at random."""
    drawn = np.random.default_rng(0).integers(0, items, len(pairs))
    users = torch.as_tensor(pairs[:, 0])
    with torch.no_grad():
        better = model(users, torch.as_tensor(pairs[:, 1])) > model(users, torch.as_tensor(drawn))
    return float(better.float().mean())


@click.command()
@click.argument("interactions", type=click.Path(exists=True, path_type=Path))
@click.option("--folder", default=Path("recommender"), type=click.Path(path_type=Path), help="Where tables and results go.")
@click.option("--dim", default=32, show_default=True, help="Elements of a row.")
@click.option("--epochs", default=2, show_default=True)
@click.option("--batch", default=128, show_default=True, help="Chosen items of a step.")
@click.option("--cache", default="1MiB", show_default=True, help="Memory for rows of both tables.")
@click.option("--lr", default=2.0, show_default=True, help="Learning rate.")
def main(interactions: Path, folder: Path, dim: int, epochs: int, batch: int, cache: str, lr: float) -> None:
    """Trains on the INTERACTIONS of users and items, in memory and on SSD."""
    folder.mkdir(parents=True, exist_ok=True)
    pairs = read(interactions)
    users, items = (int(count) for count in pairs.max(axis=0) + 1)
    is_held = np.random.default_rng(1).random(len(pairs)) < 0.1
    train, held = pairs[~is_held], pairs[is_held]

    def rows(count: int, seed: int) -> np.ndarray:
        return (np.random.default_rng(seed).standard_normal((count, dim)) * 0.1).astype(np.float32)

    create(rows(users, 1), folder / "users", "sgd")
    create(rows(items, 2), folder / "items", "sgd")
    tables = TableSet({"users": folder / "users", "items": folder / "items"}, writable=True, cache=cache)
    on_ssd = Recommender(Embedding(tables["users"]), Embedding(tables["items"]), dim)
    in_memory = Recommender(
        nn.Embedding.from_pretrained(torch.as_tensor(rows(users, 1)), freeze=False),
        nn.Embedding.from_pretrained(torch.as_tensor(rows(items, 2)), freeze=False),
        dim,
    )
    told: dict[str, object] = {"users": users, "items": items, "interactions": len(pairs), "cache": cache}
    losses: dict[str, list[float]] = {}
    for name, model in {"in memory": in_memory, "on SSD": on_ssd}.items():
        parts: list[torch.optim.Optimizer] = [torch.optim.SGD(model.parameters(), lr=lr)]
        parts += [SGD(model, lr=lr)] if model is on_ssd else []
        began, steps = time.perf_counter(), losses.setdefault(name, [])
        for epoch in range(epochs):
            for one, two, target in batches(train, items, batch, epoch):
                for part in parts:
                    part.zero_grad()
                loss = nn.functional.binary_cross_entropy_with_logits(model(one, two), target)
                loss.backward()
                for part in parts:
                    part.step()
                steps.append(loss.item())
            if model is on_ssd:
                tables.commit()
        seconds = time.perf_counter() - began
        score = held_out_score(model, held, items)
        told[name] = {"loss": steps[-1], "held out": score, "steps a second": len(steps) / seconds}
        click.echo(f"{name:10} loss {steps[-1]:.4f}, {score:.1%} of pairs held out in order, {len(steps) / seconds:.0f} steps/s")
    same = losses["in memory"] == losses["on SSD"]
    for name, module in (("users", in_memory.users), ("items", in_memory.items)):
        same &= tables[name][:].tobytes() == module.weight.detach().numpy().tobytes()
        hits = tables[name].statistics.hit_rate
        click.echo(f"{name:10} {len(tables[name]):,} rows, version {tables[name].version}, {hits:.0%} of look-ups in memory")
    click.echo(f"{len(losses['on SSD'])} losses and all rows are {'the same' if same else 'different'}")
    told["same"] = same
    (folder / "recommender.json").write_text(json.dumps(told, indent=1))


if __name__ == "__main__":
    main()
