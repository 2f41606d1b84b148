"""Programs whose processes are ranks: `python rank_programs.py PROGRAM DATA OUT`, as `test_ranks.py` starts them.

Each rank writes OUT/RANK.json: by the way that a loader came to its share, the numbers of the samples that it had.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import outcore as oc
from outcore.data import Dataset, Loader

RANKS = 2


def numbers(batches: Iterable[Any]) -> list[int]:
    return [number for batch in batches for number in batch["y"].tolist()]


def write(out: str, rank: int, **found: Any) -> None:
    Path(out, f"{rank}.json").write_text(json.dumps(found))


def environment(data: str, out: str) -> None:
    """A rank that knows of itself by its environment, without PyTorch."""
    loader = Loader(Dataset(data), 4, shuffle=True)
    write(out, loader.rank, loader=numbers(loader), has_torch="torch" in sys.modules)


def torchrun(data: str, out: str) -> None:
    """A rank of torchrun; the loader is there before the group is, and without its variables."""
    from torch import distributed

    variables = {name: os.environ.pop(name) for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE")}
    before = Loader(Dataset(data), 4, shuffle=True)
    alone = before.world_size
    os.environ.update(variables)
    by_environment = numbers(before)
    distributed.init_process_group("gloo")
    write(out, distributed.get_rank(), alone=alone, by_environment=by_environment, by_group=numbers(before))
    distributed.destroy_process_group()


def group(data: str, out: str) -> None:
    """Ranks that know of themselves by their process group only; variables of the node say something else."""
    import torch

    os.environ.update(RANK="0", WORLD_SIZE="1", LOCAL_RANK="0")
    torch.multiprocessing.spawn(rank_of_group, (Loader(Dataset(data), 4, shuffle=True), data, out), nprocs=RANKS)


def rank_of_group(rank: int, of_launcher: Loader, data: str, out: str) -> None:
    from torch import distributed
    from torch.utils.data import DataLoader

    from outcore.torch import IterableDataset

    before, samples = Loader(Dataset(data), 4, shuffle=True), IterableDataset(data, 3, shuffle=True)
    alone = before.world_size, samples.world_size
    distributed.init_process_group("gloo", init_method=f"file://{out}/group", rank=rank, world_size=RANKS)

    def in_workers(context: str | None, workers: int) -> list[int]:
        return numbers(DataLoader(samples, batch_size=None, num_workers=workers, multiprocessing_context=context))

    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as child:
        in_child = child.submit(numbers, before).result(timeout=100)
    write(
        out,
        rank,
        alone=alone,
        of_launcher=numbers(of_launcher),
        before=numbers(before),
        in_child=in_child,
        here=in_workers(None, 0),
        forked=in_workers("fork", 2),
        spawned=in_workers("spawn", 2),
    )
    distributed.destroy_process_group()


def lightning(data: str, out: str) -> None:
    """The script that Lightning starts again for each further rank, without RANK."""
    import torch
    from lightning import LightningModule, Trainer
    from torch.utils.data import DataLoader

    from outcore.torch import IterableDataset
    from outcore.torch import Loader as TensorLoader

    loader = TensorLoader(data, 4, shuffle=True)
    in_workers = DataLoader(IterableDataset(data, 4), batch_size=None, num_workers=2)
    found: dict[str, list[int]] = {"first": [], "second": [], "validated": []}

    class Model(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(1, 1)

        def training_step(self, batch: Any, _: int) -> Any:
            found["second" if self.current_epoch else "first"] += batch["y"].tolist()
            return self.layer(batch["y"][:, None].float()).sum()

        def validation_step(self, batch: Any, _: int) -> None:
            if self.current_epoch:
                found["validated"] += batch["y"].tolist()

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), 1e-6)

    quiet = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
    trainer = Trainer(accelerator="cpu", devices=RANKS, strategy="ddp", max_epochs=2, num_sanity_val_steps=0, **quiet)
    trainer.fit(Model(), loader, in_workers)
    write(out, trainer.global_rank, has_rank="RANK" in os.environ, **found)


def accelerate(data: str, out: str) -> None:
    """A rank of `accelerate launch`."""
    import torch
    from accelerate import Accelerator
    from accelerate.data_loader import prepare_data_loader
    from torch.utils.data import DataLoader

    from outcore.torch import IterableDataset
    from outcore.torch import Loader as TensorLoader

    before = TensorLoader(data, 4, shuffle=True)
    accelerator = Accelerator(cpu=True)
    prepared = accelerator.prepare(TensorLoader(data, 4, shuffle=True))

    def divided(workers: int, context: str | None = None, **options: Any) -> list[int]:
        """By accelerate, which takes batches of the first rank and gives each rank a part of them."""
        loader = DataLoader(
            IterableDataset(data, 4, shuffle=True, **options), None, num_workers=workers, multiprocessing_context=context
        )
        return numbers(accelerator.prepare(loader))

    def joined(samples: list[dict[str, Any]]) -> dict[str, Any]:
        return {"y": torch.cat([sample["y"] for sample in samples])}

    loader = DataLoader(IterableDataset(data, 4, shuffle=True), batch_size=None, num_workers=2)
    # Each rank reads all samples, and leaves out those of the others.
    sifted = prepare_data_loader(DataLoader(IterableDataset(data), 3, collate_fn=joined), dispatch_batches=False)
    write(
        out,
        accelerator.process_index,
        before=numbers(before),
        prepared=numbers(prepared),
        in_workers=numbers(loader),
        divided=divided(0),
        divided_in_workers=divided(2, "fork"),
        divided_in_spawned_workers=divided(2, "spawn"),
        sifted=numbers(sifted),
        divided_by_itself=divided(0, rank=0, world_size=1),
    )
    accelerator.end_training()


def uneven(data: str, out: str) -> None:
    """Ranks with different numbers of batches, in the way that the documents say, and without `Join`."""
    import torch

    torch.multiprocessing.spawn(rank_of_uneven, (data, out), nprocs=RANKS)


def rank_of_uneven(rank: int, data: str, out: str) -> None:
    write(out, rank, join=trained_within_join(rank, data, out), alone=trained_without_join(rank, data, out))
    # A rank that ends takes its connections along, and others fail at once.
    while not all(Path(out, f"{one}.json").exists() for one in range(RANKS)):
        time.sleep(0.1)


def trained_within_join(rank: int, data: str, out: str) -> dict[str, Any]:
    import torch
    from torch import distributed
    from torch.distributed.algorithms.join import Join
    from torch.nn.parallel import DistributedDataParallel
    from torch.utils.data import DataLoader

    from outcore.torch import IterableDataset
    from outcore.torch import Loader as TensorLoader

    distributed.init_process_group("gloo", init_method=f"file://{out}/group", rank=rank, world_size=RANKS)
    model = DistributedDataParallel(torch.nn.Linear(1, 1))
    optimizer = torch.optim.SGD(model.parameters(), 1e-6)

    def train(batches: Iterable[Any]) -> list[list[int]]:
        had = []
        with Join([model]):
            for batch in batches:
                had.append(batch["y"].tolist())
                optimizer.zero_grad()
                model(batch["y"][:, None].float()).sum().backward()
                optimizer.step()
        return had

    def warned(act: Callable[[], Any]) -> tuple[Any, list[str]]:
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            result = act()
        return result, [str(one.message) for one in told if "uneven" in str(one.message)]

    loader = TensorLoader(data, 4, shuffle=True, end="uneven")
    samples = DataLoader(IterableDataset(data, 4, shuffle=True, end="uneven"), batch_size=None)
    (first, told), (second, told_again) = warned(lambda: train(loader)), warned(lambda: train(loader))
    third, told_of_samples = warned(lambda: train(samples))
    even = [TensorLoader(data, 13, end="uneven"), TensorLoader(data, 4, end="pad"), TensorLoader(data, 4, rank=0, world_size=1)]
    _, told_of_even = warned(lambda: [numbers(one) for one in even])
    distributed.destroy_process_group()
    return {
        "batches": [first, second, third],
        "told": told,
        "told_of_samples": told_of_samples,
        "told_not": told_again + told_of_even,
        "weights": [value.tolist() for value in model.state_dict().values()],
    }


def trained_without_join(rank: int, data: str, out: str) -> dict[str, Any]:
    from datetime import timedelta

    import torch
    from torch import distributed
    from torch.nn.parallel import DistributedDataParallel

    from outcore.torch import Loader as TensorLoader

    store = distributed.FileStore(f"{out}/other-group", RANKS)
    distributed.init_process_group("gloo", store=store, rank=rank, world_size=RANKS, timeout=timedelta(seconds=5))
    model = DistributedDataParallel(torch.nn.Linear(1, 1))
    batches, waited, told_first = 0, False, []
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        try:
            for batch in TensorLoader(data, 4, end="uneven"):
                told_first = told_first if batches else [str(one.message) for one in told if "uneven" in str(one.message)]
                model(batch["y"][:, None].float()).sum().backward()
                batches += 1
        except RuntimeError:
            # The time that the group has for an operation is over.
            waited = True
    return {"batches": batches, "waited": waited, "told_first": told_first}


PROGRAMS = {act.__name__: act for act in (environment, torchrun, group, lightning, accelerate, uneven)}


if __name__ == "__main__":
    oc.configure(memory="64MiB", scratch=sys.argv[3], allow_tmpfs_scratch=True)
    PROGRAMS[sys.argv[1]](*sys.argv[2:])
