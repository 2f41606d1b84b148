"""Folders of images: files in folders named after their classes.

Links are followed: a class that is a link has the link's name. A link to a folder that it lies in is refused, and so is one that
leads nowhere, and what has the name of an image but is no file.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from .._files import read_regular, refusal, regular
from ..errors import ArgumentError, MissingError
from .fields import Sample
from .source import Named, Source, digest, listed

IMAGES = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".ppm", ".pgm", ".tif", ".tiff", ".webp")

Found = tuple[str, int, int]
"""Of an image: its path below the folder, its bytes, and when it was changed."""


def images(folder: str, classes: Sequence[str] | None = None) -> Source:
    """Files in folders named after their classes, as in torchvision; or files without such folders.

    A folder without images is a class too, so that the parts of a data set have the same numbers; `classes` says which folders
    there may be, and their numbers.
    """
    found = sorted(_below(folder))
    files = [file for file, _, _ in found]
    if not files:
        raise MissingError(f"{folder}: no images in it", object=folder)
    names = _classes(folder, files, classes)
    labels = {name: number for number, name in enumerate(names or ())}

    def load(number: int) -> Named:
        file = files[number]
        sample: Sample = {"image": read_regular(os.path.join(folder, file))}
        if names is not None:
            name = file.partition("/")[0]
            sample |= {"label": labels[name], "class": name}
        return file, sample

    fields = {"image": "bytes", **({} if names is None else {"label": "int64", "class": "text"})}
    about = digest("images", (os.path.abspath(folder), names, found))
    nbytes = sum(size for _, size, _ in found)
    return Source(load=load, count=len(files), fields=fields, threads=8, nbytes=nbytes, about=about, classes=names)


def _classes(folder: str, files: list[str], told: Sequence[str] | None) -> list[str] | None:
    """The names of classes, by their numbers; none where images are in no folders."""
    if not any("/" in file for file in files):
        if told is not None:
            raise ArgumentError(f"{folder}: images that are in no folders have no classes; leave classes= out")
        return None
    alone = next((file for file in files if "/" not in file), None)
    if alone is not None:
        raise ArgumentError(
            f"{folder}: images beside folders of images, such as {alone}; either all are in folders, which are their classes, "
            "or none is"
        )
    there = sorted(entry.name for entry in _entries(folder) if entry.is_dir())
    odd = next((name for name in there if not _is_unicode(name)), None)
    if odd is not None:
        raise ArgumentError(f"{folder}: the name of the class {odd!r} is not UTF-8")
    if told is None:
        return there
    other = next((name for name in there if name not in set(told)), None)
    if other is not None:
        raise ArgumentError(f"{folder}: the folder {other!r} is none of the classes {listed(told)}")
    return list(told)


def checked(classes: Any) -> list[str]:
    """Classes as they are told: names of folders, each once.

    Raises
    ------
    ArgumentError
    """
    names = None if isinstance(classes, str | bytes) else list(classes)
    if names is None or not all(isinstance(name, str) and name and "/" not in name and _is_unicode(name) for name in names):
        raise ArgumentError(f"classes are told as a list of names of folders, and not as {str(classes)[:80]!r}")
    twin = next((name for name, count in Counter(names).items() if count > 1), None)
    if twin is not None:
        raise ArgumentError(f"the class {twin!r} is told twice")
    return names


def _is_unicode(name: str) -> bool:
    return name.isascii() or not any("\ud800" <= character <= "\udfff" for character in name)


def _below(folder: str, within: str = "", around: tuple[tuple[int, int], ...] = ()) -> Iterator[Found]:
    """Images, by their paths below a folder; `around` tells the folders that it lies in apart."""
    there = _stat(os.path.join(folder, within))
    here = (there.st_dev, there.st_ino)
    if here in around:
        path = os.path.join(folder, within.rstrip("/"))
        raise ArgumentError(f"{path}: a link to a folder that contains it, which would recurse without end")
    for entry in _entries(os.path.join(folder, within)):
        path = within + entry.name
        if _is_folder(entry):
            yield from _below(folder, path + "/", (*around, here))
        elif path.lower().endswith(IMAGES):
            found = regular(entry.path)
            yield path, found.st_size, found.st_mtime_ns


def _entries(folder: str) -> list[os.DirEntry[str]]:
    """The entries of a folder, except hidden ones."""
    try:
        with os.scandir(folder) as entries:
            return [entry for entry in entries if not entry.name.startswith(".")]
    except OSError as error:
        raise refusal(error, folder) from error


def _is_folder(entry: os.DirEntry[str]) -> bool:
    """Also one that a link leads to; a link that leads nowhere is an error, since it may have been a class."""
    if entry.is_symlink():
        _stat(entry.path)
    return entry.is_dir()


def _stat(path: str) -> os.stat_result:
    try:
        return os.stat(path)
    except OSError as error:
        raise refusal(error, path) from error
