"""Folders of images: files below folders that are their classes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from ..errors import ArgumentError, MissingError
from .fields import Sample
from .source import Named, Source, digest

IMAGES = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".ppm", ".pgm", ".tif", ".tiff", ".webp")


def images(folder: str) -> Source:
    """Files below folders that are their classes, as torchvision has them; without such folders, files alone."""
    found = sorted(_below(folder))
    files = [file for file, _ in found]
    if not files:
        raise MissingError(f"{folder}: no images in it", object=folder)
    classes = sorted({file.partition("/")[0] for file in files if "/" in file})
    if classes and not all("/" in file for file in files):
        raise ArgumentError(
            f"{folder}: images beside folders of images; either all are in folders, which are their classes, or none is"
        )
    labels = {name: number for number, name in enumerate(classes)}

    def load(number: int) -> Named:
        file = files[number]
        sample: Sample = {"image": Path(folder, file).read_bytes()}
        if classes:
            name = file.partition("/")[0]
            sample |= {"label": labels[name], "class": name}
        return file, sample

    fields = {"image": "bytes", **({"label": "int64", "class": "text"} if classes else {})}
    about = digest("images", (os.path.abspath(folder), found))
    nbytes = sum(size for _, size in found)
    return Source(load=load, count=len(files), fields=fields, threads=8, nbytes=nbytes, about=about)


def _below(folder: str, within: str = "") -> Iterator[tuple[str, int]]:
    """Images, by their paths below a folder, and their bytes."""
    with os.scandir(os.path.join(folder, within)) as entries:
        for entry in entries:
            path = within + entry.name
            if entry.name.startswith("."):
                continue
            if entry.is_dir(follow_symlinks=False):
                yield from _below(folder, path + "/")
            elif path.lower().endswith(IMAGES) and entry.is_file():
                yield path, entry.stat().st_size
