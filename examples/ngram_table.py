"""A language model whose n-gram table does not fit in memory: tokens a second by where the table is.

    python examples/ngram_table.py --rows 40_000_000

The model adds, to each token's own embedding, rows of a large table: those of the last two and last three tokens, by several
hashes of them, as models with n-gram embeddings do. The hashes of a step are known as soon as its tokens are, so the rows of a
step are looked up while the network computes the step before. The weights are random: what is measured is speed, with the table
on SSD, memory-mapped (with the system's read-ahead, and without, as MADV_RANDOM has it) and in memory, and that all ways give the
same numbers. Each begins with no page of the table in the page cache; a memory map keeps those that it has read there, so it is
only slow where memory is limited (`systemd-run --scope -p MemoryMax=1G`, with --not-in-memory). Needs torch: pip install
'outcore[torch]'.
"""

from __future__ import annotations

import json
import mmap
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

import click
import numpy as np
import torch
from torch import Tensor, nn

import outcore as oc
from outcore.embedding import Table
from outcore.torch import Embedding

VOCABULARY = 32_000
HASHES = 8
"""Rows of the table for each n-gram length and token."""
LENGTHS = (2, 3)
PRIMES = (1_000_003, 998_244_353, 754_974_721)
BLOCK_ROWS = 1 << 18


def make_table(path: Path, rows: int, dim: int) -> None:
    """Random rows of float16, written in order."""
    if path.exists() and np.load(path, mmap_mode="r").shape == (rows, dim):
        return
    table = oc.create(path, (rows, dim), "float16", mode="w")
    block = (np.random.default_rng(0).standard_normal((BLOCK_ROWS, dim)) / dim**0.5).astype("float16")
    for first in range(0, rows, BLOCK_ROWS):
        count = min(BLOCK_ROWS, rows - first)
        # Blocks differ, so that no row can be taken for another one.
        table[first : first + count] = np.roll(block[:count], first // BLOCK_ROWS, axis=1)


def ngram_rows(tokens: Tensor, rows: int) -> Tensor:
    """Row numbers, tokens x (lengths x hashes): each a hash of the last tokens, of which those before the text are 0."""
    padded = torch.cat([torch.zeros(max(LENGTHS) - 1, dtype=torch.int64), tokens])
    found = []
    for length in LENGTHS:
        key = torch.zeros_like(tokens)
        for back in range(length):
            begin = max(LENGTHS) - 1 - back
            key = (key * VOCABULARY + padded[begin : begin + len(tokens)]) % PRIMES[0]
        found += [(key * PRIMES[1] + (2 * one + length) * PRIMES[2]) % (1 << 61) % rows for one in range(HASHES)]
    return torch.stack(found, dim=1)


class Model(nn.Module):
    """Token embedding and n-gram rows, then a few layers of gated mixing over the tokens of a step."""

    def __init__(self, dim: int, width: int, layers: int) -> None:
        super().__init__()
        self.token = nn.Embedding(VOCABULARY, width)
        self.ngram = nn.Linear(dim * len(LENGTHS) * HASHES, width)
        self.layers = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
            for _ in range(layers)
        )

    def forward(self, tokens: Tensor, rows: Tensor) -> Tensor:
        x = self.token(tokens) + self.ngram(rows.float().flatten(1))
        for layer in self.layers:
            x = x + layer(x)
        return x


def steps(count: int, tokens: int, rows: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Tokens of each step, skewed as words are, and the row numbers that they need."""
    random = np.random.default_rng(1)
    for _ in range(count):
        step = torch.from_numpy(np.minimum(random.zipf(1.2, tokens), VOCABULARY) - 1)
        yield step, ngram_rows(step, rows)


LookUp = Callable[[Tensor], Tensor]


def measure(
    model: Model, look_up: LookUp, ahead: Callable[[Tensor], None], all_steps: list[tuple[Tensor, Tensor]]
) -> tuple[float, Tensor]:
    """Tokens a second after the first step, and the sum of all results."""
    ahead(all_steps[0][1])
    total, began = torch.zeros(()), 0.0
    for number, (tokens, ids) in enumerate(all_steps):
        rows = look_up(ids)
        if number + 1 < len(all_steps):
            ahead(all_steps[number + 1][1])
        total += model(tokens, rows).sum()
        if number == 0:
            began = time.perf_counter()
    count = sum(len(tokens) for tokens, _ in all_steps[1:])
    return count / (time.perf_counter() - began), total


def forget(path: Path) -> None:
    """Takes the table out of the page cache."""
    with open(path, "rb") as file:
        os.fdatasync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def nothing(_: Tensor) -> None:
    """The other ways have nothing to do ahead."""


@click.command()
@click.option("--rows", default=20_000_000, show_default=True, help="Of the table.")
@click.option("--dim", default=64, show_default=True, help="Elements of a row, of float16.")
@click.option("--tokens", default=512, show_default=True, help="Of a step.")
@click.option("--count", default=40, show_default=True, help="Steps.")
@click.option("--width", default=256, show_default=True)
@click.option("--layers", default=4, show_default=True)
@click.option("--memory", default="256MiB", show_default=True, help="Budget of outcore.")
@click.option(
    "--folder", default=".", show_default=True, type=click.Path(file_okay=False, path_type=Path), help="For the table, on SSD."
)
@click.option("--in-memory/--not-in-memory", default=True, help="Whether the table is also read into memory.")
def main(
    rows: int, dim: int, tokens: int, count: int, width: int, layers: int, memory: str, folder: Path, in_memory: bool
) -> None:
    """Tokens a second, by where the table is."""
    oc.configure(memory=memory, scratch=folder, allow_tmpfs_scratch=True)
    torch.manual_seed(0)
    path = folder / "ngrams.npy"
    make_table(path, rows, dim)
    model, all_steps = Model(dim, width, layers).eval(), list(steps(count, tokens, rows))
    module = Embedding(Table.open(path))

    def table_of(mmap_mode: Literal["c"] | None, advice: int = mmap.MADV_NORMAL) -> tuple[LookUp, Callable[[Tensor], None]]:
        array = np.load(path, mmap_mode=mmap_mode)
        if mmap_mode is not None:
            array.base.madvise(advice)
        table = torch.from_numpy(array)
        return lambda ids: table[ids], nothing

    ways: dict[str, Callable[[], tuple[LookUp, Callable[[Tensor], None]]]] = {
        "outcore": lambda: (module, module.submit),
        "memory map": lambda: table_of("c"),
        "memory map, random": lambda: table_of("c", mmap.MADV_RANDOM),
        "memory": lambda: table_of(None),
    }
    found, sums = {}, []
    with torch.inference_mode():
        for name, way in list(ways.items())[: 4 if in_memory else 3]:
            forget(path)
            found[name], total = measure(model, *way(), all_steps)
            sums.append(total)
            print(f"{name:<20}{found[name]:>12,.0f} tokens/s")
    if any(not torch.equal(total, sums[0]) for total in sums):
        raise SystemExit("the results differ")
    known = module.table.statistics
    print(f"{known.looked_up:,} rows looked up, {known.hit_rate:.1%} of them in memory; waited {module.stall_seconds:.2f} s")
    (folder / "ngram_table.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
