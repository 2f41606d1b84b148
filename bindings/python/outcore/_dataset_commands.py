"""The commands for training samples: `outcore pack | inspect | verify | bench-data`."""

from __future__ import annotations

from collections import Counter
from typing import Any

import click

from . import errors
from ._commands import SEED, say, session_of, session_options
from ._units import show_bytes


@click.command()
@click.argument("source", type=click.Path(), nargs=-1, required=True)
@click.argument("target", type=click.Path())
@click.option(
    "--format",
    "kind",
    type=click.Choice(["dataset", "images", "tar", "tfrecord", "safetensors", "parquet", "numpy"]),
    help="Default by its name.",
)
@click.option(
    "--field",
    "fields",
    multiple=True,
    metavar="NAME=TYPE[:SHAPE]",
    help="Bytes, text, or a dtype and a shape, where * varies, as in boxes=float32:*,4. Default as in the first sample.",
)
@click.option(
    "--classes",
    multiple=True,
    metavar="NAME,NAME,...",
    help="Of a folder of images: the folders that there may be, in the order of their numbers. Default those that there are.",
)
@click.option(
    "--shuffle",
    type=SEED,
    metavar="SEED",
    help="Write images, arrays, datasets in random order; then a chunk shuffle is as good.",
)
@click.option("--names/--no-names", default=True, show_default=True, help="Keep the names of samples.")
@click.option("--in-place", is_flag=True, help="Leave samples where they are: in tar, TFRecord, safetensors files.")
@click.option("--resume", is_flag=True, help="Go on where packing the same SOURCE died or failed.")
@click.option("--readers", type=click.IntRange(1), help="Threads that read images; default 8.")
@session_options
def pack(
    source: tuple[str, ...],
    target: str,
    kind: str | None,
    fields: tuple[str, ...],
    classes: tuple[str, ...],
    shuffle: int | None,
    names: bool,
    in_place: bool,
    resume: bool,
    readers: int | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Pack SOURCE into TARGET, a dataset of training samples.

    SOURCE is a folder of images, whose folders are their classes, tar shards, TFRecord, safetensors or Parquet files, a .npy or
    .npz file, or another dataset. A folder without images is a class too; --classes fixes the classes and their numbers, so that
    training and validation have the same.
    """
    from . import data

    session, given = session_of(options), dict(map(_field, fields)) or None
    options = {"format": kind, "fields": given, "names": names, "resume": resume, "session": session}
    if in_place:
        if shuffle is not None or readers is not None or classes:
            raise click.UsageError(
                "what is left in place has its order; --shuffle, --readers and --classes are for what is packed"
            )
        found = data.index(list(source), target, **options)
    else:
        told = [name for names in classes for name in names.split(",")] or None
        found = data.pack(list(source), target, **options, classes=told, shuffle=shuffle, threads=readers)
    _say(found, as_json)


@click.command()
@click.argument("path", type=click.Path())
@click.option("--sample", type=click.IntRange(0), help="Show the sample with this number.")
@click.option("--name", help="Show the sample with this name.")
@session_options
def inspect(path: str, sample: int | None, name: str | None, as_json: bool, **options: Any) -> None:
    """Describe the dataset PATH, or one sample of it."""
    from . import data

    dataset = data.Dataset(path, session=session_of(options))
    if sample is None and name is None:
        _say(dataset, as_json)
        return
    try:
        found = dataset[sample if name is None else name]
    except (IndexError, KeyError) as error:
        wanted = f"sample {sample} of {len(dataset)}" if name is None else f"no sample has the name {name}"
        raise errors.MissingError(f"{path}: {wanted}", object=path) from error
    say({key: _value(value) for key, value in found.items()}, as_json)


@click.command()
@click.argument("path", type=click.Path())
@click.option("--decode", multiple=True, metavar="FIELD", help="Also decode the pictures in this field.")
@session_options
def verify(path: str, decode: tuple[str, ...], as_json: bool, **options: Any) -> None:
    """Verify every sample and name of the dataset PATH, and list the damaged ones.

    Images of unsupported kinds, or too large for the memory, are listed and counted separately. Exit status 1 if any sample is
    listed.
    """
    from . import data

    dataset = data.Dataset(path, decode=dict.fromkeys(decode, "RGB"), session=session_of(options))
    faults = dataset.verify()
    if as_json:
        say({"path": dataset.path, "samples": len(dataset), "nbytes": dataset.nbytes, "faults": faults}, True)
    else:
        for fault in faults:
            print(f"sample {fault['sample']}{'' if fault['name'] is None else ', ' + fault['name']}: {fault['reason']}")
        count = Counter(fault["kind"] for fault in faults)
        others = "".join(f", {count[kind]} {kind}" for kind in ("unsupported", "too large") if count[kind])
        damaged = count["damaged"] or "none"
        print(f"{dataset.path}: {len(dataset)} samples, {show_bytes(dataset.nbytes)}, {damaged} damaged{others}")
    if faults:
        raise SystemExit(1)


@click.command("bench-data")
@click.argument("path", type=click.Path())
@click.option("--batch-size", type=click.IntRange(1), default=256, show_default=True)
@click.option("--shuffle", type=click.Choice(["no", "global", "chunk"]), default="global", show_default=True)
@click.option("--seed", type=SEED, default=0, show_default=True)
@click.option("--decode", multiple=True, metavar="FIELD", help="Decode the pictures in this field.")
@click.option("--exif-orientation", is_flag=True, help="Turn them as their EXIF orientation says.")
@click.option("--seconds", type=click.FloatRange(0.1), default=10.0, show_default=True, help="How long, at least one batch.")
@session_options
def bench_data(
    path: str,
    batch_size: int,
    shuffle: str,
    seed: int,
    decode: tuple[str, ...],
    exif_orientation: bool,
    seconds: float,
    as_json: bool,
    **options: Any,
) -> None:
    """Measure batches of the dataset PATH: the time to the first one, and the rate over several epochs."""
    from ._loading import measure

    session = session_of(options)
    given: dict[str, Any] = {"batch_size": batch_size, "shuffle": shuffle, "seed": seed}
    found = measure(session, path, seconds, **given, decode=decode, exif_orientation=exif_orientation)
    if as_json:
        say(found, True)
        return
    print(f"first batch        {1000 * found['first_batch_s']:.1f} ms after opening")
    print(f"samples            {found['samples_s']:,.0f} a second, {found['samples_cpu_s']:,.0f} a second of one core")
    print(f"bytes              {found['gb_s']:.3f} GB/s")
    print(f"epochs             {found['epochs']:.2f}")
    for name, unevenness in found["unevenness"].items():
        if unevenness is not None:
            print(f"batches            {unevenness:.2f} times as uneven in {name!r} as random ones")


def _say(dataset: Any, as_json: bool) -> None:
    from .data.source import listed

    told = _dataset(dataset)
    if not as_json and dataset.classes is not None:
        told["classes"] = f"{len(dataset.classes)}: {listed(dataset.classes)}"
    say(told, as_json)


def _dataset(dataset: Any) -> dict[str, Any]:
    fields = {name: _value_of(field) for name, field in dataset.fields.items()}
    return {
        "path": dataset.path,
        "samples": len(dataset),
        "named": dataset.is_named,
        "in_place": dataset.is_in_place,
        "fields": fields,
        "classes": dataset.classes,
        "nbytes": dataset.nbytes,
        "directory_bytes": dataset.directory_nbytes,
        "clustering": dataset.clustering,
    }


def _value_of(field: Any) -> str:
    shape = ",".join("*" if extent is None else str(extent) for extent in field.shape)
    return field.kind if field.dtype is None else f"{field.dtype}{':' if shape else ''}{shape}"


def _field(text: str) -> tuple[str, Any]:
    name, equals, told = text.rpartition("=")
    kind, _, shape = told.partition(":")
    try:
        if not equals or not name:
            raise ValueError
        if kind in ("bytes", "text"):
            return name, kind
        return name, (kind, tuple(None if extent == "*" else int(extent) for extent in shape.split(",") if extent))
    except ValueError:
        raise click.BadParameter(f"{text!r} is not NAME=TYPE[:SHAPE]", param_hint="--field") from None


def _value(value: Any) -> Any:
    """A value of a sample, in a line."""
    if isinstance(value, bytes):
        return f"{len(value)} bytes"
    if isinstance(value, str):
        return value
    return value.item() if value.ndim == 0 else f"{value.dtype} {' x '.join(map(str, value.shape))}"


COMMANDS = (pack, inspect, verify, bench_data)
