"""The commands for embedding tables: `outcore embed`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from ._commands import say, session_of, session_options
from ._units import parse_bytes

if TYPE_CHECKING:
    from .embedding import PlacementMethod, Table

PAGE_BYTES, CHECKSUM_BYTES = 4096, 4
"""Of a packed table."""


@click.group()
def embed() -> None:
    """Embedding tables."""


@embed.command("pack")
@click.argument("source", type=click.Path(), nargs=-1, required=True)
@click.argument("target", type=click.Path())
@click.option("--tensor", help="Of safetensors files, where they have several matrices; * stands for any part of the name.")
@click.option("--encoding", help="float32, float16, bfloat16, float8_e4m3fn, float8_e5m2, int8 or int4; default as SOURCE.")
@click.option("--placement", type=click.Path(exists=True, dir_okay=False), help="Slots of the rows, which `embed place` writes.")
@session_options
def pack_table(
    source: tuple[str, ...],
    target: str,
    tensor: str | None,
    encoding: str | None,
    placement: str | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Write the rows of SOURCE, .npy or safetensors files of one table, or a PyTorch checkpoint, as a packed table."""
    from .embedding import pack

    session = session_of(options)
    placed = None if placement is None else _numbers(placement)
    table: Any = source[0] if len(source) == 1 else list(source)
    say(_told(pack(table, target, encoding, tensor=tensor, placement=placed, session=session)), as_json)


@embed.command("place")
@click.argument("ids", type=click.Path(exists=True, dir_okay=False))
@click.argument("slots", type=click.Path(dir_okay=False))
@click.option("--rows", type=click.IntRange(0), required=True, help="Of the table.")
@click.option("--row-bytes", type=click.IntRange(1), default=128, show_default=True, help="Of a row as it will be packed.")
@click.option("--offsets", type=click.Path(exists=True, dir_okay=False), help="Where each query begins in IDS, a .npy file.")
@click.option("--method", type=click.Choice(["co-appearance", "frequency"]), default="co-appearance", show_default=True)
@click.option(
    "--replicas",
    type=click.FloatRange(0),
    default=0.0,
    show_default=True,
    help="Pages of rows that lie once more, for each page of rows. SLOTS is a .npz file then.",
)
@click.option(
    "--held-out",
    type=click.FloatRange(0, 1, max_open=True),
    default=0.1,
    show_default=True,
    help="Share of the queries, the last ones, that pages are counted on and nothing is learned from.",
)
@session_options
def place(
    ids: str,
    slots: str,
    rows: int,
    row_bytes: int,
    offsets: str | None,
    method: PlacementMethod,
    replicas: float,
    held_out: float,
    as_json: bool,
    **options: Any,
) -> None:
    """Learn from IDS, row numbers that were looked up together, which rows are to share a page, and write their SLOTS.

    IDS is a .npy file of queries as rows, or one list of numbers with --offsets. `embed pack --placement SLOTS` packs a table so.
    """
    import numpy as np

    from .embedding import placement

    numbers = _numbers(ids)
    queries = numbers if offsets is None else (numbers, _numbers(offsets))
    rows_a_page = max(1, (PAGE_BYTES - CHECKSUM_BYTES) // row_bytes)
    session = session_of(options)
    found = placement(queries, rows, rows_a_page, method, replicas=replicas, held_out=held_out, session=session)
    with open(slots, "wb") as file:
        if replicas:
            np.savez(file, slots=found.slots, replicas=found.replicas)
        else:
            np.save(file, found.slots)
    say({"path": slots, **found.facts()}, as_json)


@embed.command("export")
@click.argument("source", type=click.Path(), nargs=-1, required=True)
@click.argument("target", type=click.Path())
@click.option("--tensor", default="weight", show_default=True, help="Name of the tensor in TARGET.")
@click.option("--dtype", help="float32, float16 or bfloat16; default the table's, float32 for quantized rows.")
@session_options
def export_table(source: tuple[str, ...], target: str, tensor: str, dtype: str | None, as_json: bool, **options: Any) -> None:
    """Write the rows of the table SOURCE, decoded, to TARGET, a .npy, .safetensors or .pt file."""
    from .embedding import export

    export(list(source), target, tensor=tensor, dtype=dtype, session=session_of(options))
    say({"path": target}, as_json)


@embed.command("inspect")
@click.argument("table", type=click.Path(), nargs=-1, required=True)
@click.option("--tensor", help="Of safetensors files, where they have several matrices.")
@session_options
def inspect_table(table: tuple[str, ...], tensor: str | None, as_json: bool, **options: Any) -> None:
    """Say what TABLE is: one table, whatever number of files."""
    from .embedding import Table

    say(_told(Table.open(list(table), tensor, cache=0, session=session_of(options))), as_json)


@embed.command("profile")
@click.argument("ids", type=click.Path(exists=True, dir_okay=False))
@click.option("--row-bytes", type=click.IntRange(1), default=128, show_default=True, help="Of a stored row.")
@click.option("--picture", type=click.Path(dir_okay=False), help="Where reuse and miss curves are drawn: .png or .svg.")
@click.option("--hot", type=click.Path(dir_okay=False), help="A .npy file for the rows that Table.keep is to be given.")
@click.option("--cache", metavar="SIZE", default="64MiB", show_default=True, help="Memory for them.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON value.")
def profile(ids: str, row_bytes: int, picture: str | None, hot: str | None, cache: str, as_json: bool) -> None:
    """Say what a cache of any size would save for IDS, a .npy file of row numbers in the order of their look-ups."""
    import numpy as np

    from ._embedding_profile import SLOT_BYTES, draw, facts, hottest, profile_of

    found = profile_of(_numbers(ids), row_bytes)
    if hot is not None:
        np.save(hot, hottest(_numbers(ids), parse_bytes(cache, "cache") // (row_bytes + SLOT_BYTES)))
    print(json.dumps(facts(found)) if as_json else "\n".join(found.lines()))
    if picture is not None:
        draw(found, picture)


def _numbers(path: str) -> Any:
    import numpy as np

    return np.load(path, mmap_mode="r")


def _told(table: Table) -> dict[str, Any]:
    rows, dim = table.shape
    return {
        "path": table.name,
        "rows": rows,
        "dim": dim,
        "encoding": table.encoding,
        "bytes": table.nbytes,
        "packed": table.is_packed,
    }


COMMANDS = (embed,)
