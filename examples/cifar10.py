"""Does it matter to a network how samples are shuffled? CIFAR-10 with a budget of 16 MiB, by global and by chunk shuffle.

    python examples/cifar10.py cifar10-jpg.tar.gz

The archive, or a folder, has JPEG or PNG files in folders `train/<class>` and `test/<class>`. The training set is packed twice:
in random order, and as it is, sorted by class. A small network is trained on it from several seeds, by every shuffle; the plot
shows the accuracy on the test set after each epoch, the mean over seeds and their range. After figure 13 of Zhu et al., Efficient
User-Level Storage Disaggregation for Deep Learning (CLUSTER 2019). Needs torch and matplotlib: pip install 'outcore[torch,demo]'.
"""

from __future__ import annotations

import json
import tarfile
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import click
import matplotlib as mpl
import numpy as np
import torch
from torch import nn

import outcore as oc
from outcore.data import Dataset, pack
from outcore.torch import Loader

mpl.use("Agg")
from matplotlib import pyplot as plt

SIZE = 32
"""Of a picture, both ways."""

BATCH = 128

RUNS = {
    "global shuffle": ("mixed", "global"),
    "chunk shuffle": ("mixed", "chunk"),
    "chunk shuffle, sorted by class": ("sorted", "chunk"),
}
"""Which dataset, and how it is shuffled."""


def network(classes: int) -> nn.Module:
    """Three convolutions, each with a step of pooling, and a linear layer."""
    layers: list[nn.Module] = []
    for before, behind in ((3, 16), (16, 32), (32, 64)):
        layers += [nn.Conv2d(before, behind, 3, padding=1), nn.BatchNorm2d(behind), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(64 * (SIZE // 8) ** 2, classes))


def pixels(batch: dict[str, Any]) -> torch.Tensor:
    """Batch x 3 x height x width, between -1 and 1."""
    return batch["image"].permute(0, 3, 1, 2).float().div_(127.5).sub_(1)


def accuracy(model: nn.Module, test: Dataset) -> float:
    model.eval()
    with torch.no_grad():
        right = sum(
            int((model(pixels(batch)).argmax(1) == batch["label"]).sum()) for batch in Loader(test, 500, rank=0, world_size=1)
        )
    return right / len(test)


def train(data: Dataset, test: Dataset, shuffle: Any, seed: int, epochs: int) -> list[float]:
    """The accuracy on the test set after each epoch."""
    torch.manual_seed(seed)
    model = network(classes_of(test))
    steps = epochs * -(-len(data) // BATCH)
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9, weight_decay=5e-4, nesterov=True)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=steps)
    loss_of = nn.CrossEntropyLoss()
    loader, found = Loader(data, BATCH, shuffle=shuffle, seed=seed), []
    for _ in range(epochs):
        model.train()
        for batch in loader:
            optimizer.zero_grad()
            loss_of(model(pixels(batch)), batch["label"]).backward()
            optimizer.step()
            schedule.step()
        found.append(accuracy(model, test))
    return found


def classes_of(test: Dataset) -> int:
    return 1 + max(int(batch["label"].max()) for batch in Loader(test, 500, rank=0, world_size=1))


def packed(source: Path, folder: Path) -> dict[str, Dataset]:
    """The datasets: the training set in random order and sorted by class, and the test set."""
    if source.is_file():
        with tarfile.open(source) as archive:
            archive.extractall(folder / "images", filter="data")
        source = folder / "images"
    pack(source / "train", folder / "mixed", shuffle=0)
    pack(source / "train", folder / "sorted")
    pack(source / "test", folder / "test")
    decode: Any = {"image": ("RGB", SIZE, SIZE)}
    return {name: Dataset(folder / name, decode=decode) for name in ("mixed", "sorted", "test")}


def plot(found: dict[str, list[list[float]]], path: Path) -> None:
    figure, axes = plt.subplots(figsize=(6, 4), layout="constrained")
    for name, runs in found.items():
        by_epoch, epochs = 100 * np.array(runs), np.arange(1, len(runs[0]) + 1)
        (line,) = axes.plot(epochs, by_epoch.mean(0), marker="o", label=name)
        axes.fill_between(epochs, by_epoch.min(0), by_epoch.max(0), alpha=0.2, color=line.get_color())
    axes.set(xlabel="epoch", ylabel="accuracy on the test set, %")
    axes.legend()
    figure.savefig(path)


@click.command()
@click.argument("source", type=click.Path(exists=True, path_type=Path))
@click.option("--memory", default="16MiB", show_default=True, help="Budget of the library.")
@click.option("--seeds", type=click.IntRange(1), default=3, show_default=True)
@click.option("--epochs", type=click.IntRange(1), default=6, show_default=True)
@click.option("--output", type=click.Path(path_type=Path), default="cifar10.svg", show_default=True, help="The plot.")
def main(source: Path, memory: str, seeds: int, epochs: int, output: Path) -> None:
    """Train on SOURCE by every shuffle, and plot the accuracy after each epoch."""
    with tempfile.TemporaryDirectory(dir=output.resolve().parent) as folder:
        oc.configure(memory=memory, scratch=folder)
        data = packed(source, Path(folder))
        print(
            f"{len(data['mixed'])} samples of {data['mixed'].nbytes / 1e6:.0f} MB, budget {memory}; clustering by class: ", end=""
        )
        print(", ".join(f"{name} {data[name].clustering.get('label', np.nan):.2f}" for name in ("mixed", "sorted")))
        found: dict[str, list[list[float]]] = {name: [] for name in RUNS}
        for seed in range(seeds):
            for name, (which, shuffle) in RUNS.items():
                begin = time.perf_counter()
                with warnings.catch_warnings():
                    # That it is sorted is the point.
                    warnings.simplefilter("ignore" if which == "sorted" else "error")
                    found[name].append(train(data[which], data["test"], shuffle, seed, epochs))
                told = " ".join(f"{100 * part:.1f}" for part in found[name][-1])
                print(f"{name}, seed {seed}: {told} %, {time.perf_counter() - begin:.0f} s", flush=True)
        plot(found, output)
        output.with_suffix(".json").write_text(json.dumps(found, indent=1) + "\n")
    print(f"{output}: mean and range over {seeds} seeds")


if __name__ == "__main__":
    main()
