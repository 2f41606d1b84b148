"""Reads image sets of any size, a block of images at a time.

A set is one of
  - a folder, searched to any depth, or a tar archive (compressed or not), of image files; the name of the folder that holds
    an image is its label,
  - a folder with a `sheets.json`: many small images side by side in few files (see data/mnist).

Two passes: `survey` reads headers only and decides the common shape, `blocks` decodes. Neither keeps more than one block of
images and, for sheets, one sheet; names are not kept at all, so a set may have any number of files. What cannot be read is
an `ImageError` that names the file; no image is left out silently.
"""

from __future__ import annotations

import io
import json
import os
import tarfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
from PIL import Image, UnidentifiedImageError

from .._files import open_regular, read_regular
from ..errors import OutcoreError

Bytes: TypeAlias = npt.NDArray[np.uint8]
Tick: TypeAlias = Callable[[int], object]

SUFFIXES = frozenset((".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm", ".pbm", ".pnm"))
MANIFEST = "sheets.json"
GREY_MODES = frozenset(("1", "L", "LA", "I", "I;16", "I;16B", "I;16L", "F"))
BLOCK_BYTES = 1 << 20
"""Decoded pixels held at once. A block becomes 4 MiB of floats: large enough for an efficient write, small beside any budget."""


class ImageError(ValueError):
    """An image set or one of its files cannot be used; the message names it."""


@dataclass(frozen=True)
class Survey:
    """What a set holds, found from file headers."""

    count: int
    height: int
    width: int
    channels: int
    labels: npt.NDArray[np.int32]
    """(count,) index into `names`, in reading order."""
    names: tuple[str, ...]
    """Label names; a single one says that the set is not labelled."""
    resized: int
    """Images of another size, which are resized to the common one while reading."""

    @property
    def pixels(self) -> int:
        """Values an image: height x width x channels."""
        return self.height * self.width * self.channels

    @property
    def mode(self) -> str:
        return "RGB" if self.channels == 3 else "L"


class ImageSet:
    """A folder, tar archive or folder of sheets, read in order.

    Parameters
    ----------
    path : the folder or archive.
    size : (width, height) to which every image is resized; default the most common size of the set.
    mixed : what to do with images of another size than the most common one, "resize" or "refuse".
    """

    def __init__(
        self, path: str | os.PathLike[str], *, size: tuple[int, int] | None = None, mixed: Literal["resize", "refuse"] = "resize"
    ) -> None:
        self.path = Path(path)
        self.size = size
        self.mixed = mixed
        self._survey: Survey | None = None
        if not self.path.exists():
            raise ImageError(f"{self.path}: no such file or folder")
        self._sheets = read_manifest(self.path) if (self.path / MANIFEST).is_file() else None

    @property
    def title(self) -> str:
        return self._sheets.name if self._sheets else self.path.name

    def survey(self, tick: Tick = lambda _: None) -> Survey:
        """Count, common shape and labels; one pass over the file headers, remembered.

        `tick` is called with the number of images just seen."""
        if self._survey is None:
            self._survey = self._survey_sheets(self._sheets) if self._sheets else self._survey_files(tick)
        return self._survey

    def blocks(self, tick: Tick = lambda _: None) -> Iterator[Bytes]:
        """Blocks (images, height, width, channels) in order; each is overwritten by the next."""
        survey = self.survey()
        per_block = max(1, BLOCK_BYTES // survey.pixels)
        block = np.empty((per_block, survey.height, survey.width, survey.channels), np.uint8)
        filled = total = 0
        for image in self._images(survey):
            block[filled] = image
            filled += 1
            if filled == per_block:
                total += filled
                tick(filled)
                yield block
                filled = 0
        if filled:
            total += filled
            tick(filled)
            yield block[:filled]
        if total != survey.count:
            raise ImageError(f"{self.path}: {total} images where {survey.count} were counted; did it change while it was read?")

    def _images(self, survey: Survey) -> Iterator[Bytes]:
        if self._sheets:
            for tile in self._sheets.tiles():
                yield resized(tile, survey) if self.size else tile
            return
        for name, file in image_files(self.path):
            image = decode(name, file, survey.mode)
            yield pixels_of(image, survey)

    def _survey_sheets(self, sheets: Sheets) -> Survey:
        width, height = self.size or (sheets.width, sheets.height)
        labels, names = sheets.read_labels()
        other = (width, height) != (sheets.width, sheets.height)
        return Survey(sheets.count, height, width, 3 if sheets.mode == "RGB" else 1, labels, names, sheets.count if other else 0)

    def _survey_files(self, tick: Tick) -> Survey:
        sizes: Counter[tuple[int, int]] = Counter()
        example: dict[tuple[int, int], str] = {}
        index: dict[str, int] = {}
        labels = bytearray()
        colour = False
        for name, file in image_files(self.path):
            size, mode = header(name, file)
            sizes[size] += 1
            example.setdefault(size, name)
            colour |= mode not in GREY_MODES
            label = PurePosixPath(name).parent.name
            labels += index.setdefault(label, len(index)).to_bytes(4, "little")
            tick(1)
        if not sizes:
            raise ImageError(f"{self.path}: no image in it (looked for {', '.join(sorted(SUFFIXES))})")
        common, seen = sizes.most_common(1)[0]
        count = sizes.total()
        if self.mixed == "refuse" and not self.size and seen != count:
            other = next(size for size in sizes if size != common)
            raise ImageError(
                f"{example[other]}: {other[0]} x {other[1]} pixels, but most images of {self.path} have {common[0]} x {common[1]}"
            )
        width, height = self.size or common
        of_other_size = count - sizes[(width, height)]
        codes = np.frombuffer(bytes(labels), "<i4").astype(np.int32)
        return Survey(count, height, width, 3 if colour else 1, *sorted_labels(codes, tuple(index)), of_other_size)


def sorted_labels(codes: npt.NDArray[np.int32], names: tuple[str, ...]) -> tuple[npt.NDArray[np.int32], tuple[str, ...]]:
    """The same labels with their names in alphabetical order, so that the order of reading does not show."""
    order = sorted(range(len(names)), key=lambda i: names[i])
    rank = np.empty(len(names), np.int32)
    rank[order] = np.arange(len(names), dtype=np.int32)
    return rank[codes], tuple(names[i] for i in order)


# Files of a folder or an archive, as (name to show, open file), in an order that does not change between passes.


def image_files(path: Path) -> Iterator[tuple[str, IO[bytes]]]:
    """Image files of a folder (each folder sorted by name) or of a tar archive (in its own order)."""
    if path.is_dir():
        yield from folder_files(path, path.name)
    else:
        yield from archive_files(path)


def is_image(name: str) -> bool:
    """Hidden files, such as the `._x.png` that some archivers add beside `x.png`, are no images."""
    return os.path.splitext(name)[1].lower() in SUFFIXES and not name.startswith(".")


def folder_files(folder: Path, shown: str, around: tuple[tuple[int, int], ...] = ()) -> Iterator[tuple[str, IO[bytes]]]:
    """`around` tells the folders apart that it lies in: a link to one of them would go on without an end."""
    there = os.stat(folder)
    here = (there.st_dev, there.st_ino)
    if here in around:
        raise ImageError(f"{folder}: a link to a folder that it lies in")
    with os.scandir(folder) as entries:
        found = sorted((entry.name, entry.is_dir()) for entry in entries)
    for name, is_folder in found:
        if is_folder:
            yield from folder_files(folder / name, f"{shown}/{name}", (*around, here))
        elif is_image(name):
            with io.BufferedReader(opened(folder / name)) as file:
                yield f"{shown}/{name}", file


def opened(path: Path) -> io.FileIO:
    try:
        return open_regular(str(path))
    except OutcoreError as error:
        raise ImageError(str(error)) from error


def archive_files(path: Path) -> Iterator[tuple[str, IO[bytes]]]:
    try:
        with opened(path) as whole, tarfile.open(fileobj=whole, mode="r|*") as archive:
            for member in archive:
                # A tar opened as a stream keeps every header that it saw; the list would grow with the set.
                archive.members = []  # type: ignore[attr-defined]
                name = PurePosixPath(member.name)
                if name.name == MANIFEST:
                    raise ImageError(f"{path}: holds image sheets ({member.name}); unpack it and give the folder")
                if not member.isfile() or not is_image(name.name):
                    continue
                file = archive.extractfile(member)
                if file is not None:
                    yield f"{path.name}/{member.name}", io.BytesIO(file.read())
    except (tarfile.TarError, EOFError, OSError, zlib.error) as error:
        raise ImageError(f"{path}: not a tar archive that can be read ({error})") from error


# One image


def guarded(name: str, act: Callable[[], Any]) -> Any:
    """Whatever a foreign image makes Pillow raise becomes one error that names the image."""
    try:
        return act()
    except UnidentifiedImageError as error:
        raise ImageError(f"{name}: not an image") from error
    except (OSError, SyntaxError, ValueError, EOFError, Image.DecompressionBombError) as error:
        raise ImageError(f"{name}: damaged image ({error})") from error


def header(name: str, file: IO[bytes]) -> tuple[tuple[int, int], str]:
    """(width, height) and mode."""

    def read() -> tuple[tuple[int, int], str]:
        with Image.open(file) as image:
            return image.size, image.mode

    result: tuple[tuple[int, int], str] = guarded(name, read)
    return result


def decode(name: str, file: IO[bytes], mode: str) -> Image.Image:
    def read() -> Image.Image:
        with Image.open(file) as image:
            image.load()
            if image.mode in ("I", "F") or image.mode.startswith("I;16"):
                return eight_bits(image).convert(mode)
            return image.convert(mode)

    result: Image.Image = guarded(name, read)
    return result


def eight_bits(image: Image.Image) -> Image.Image:
    """Pillow's own conversion clips 16-bit grey at 255 instead of scaling it."""
    values = np.asarray(image, np.float32)
    scale = 255 / 65535 if values.max(initial=0) > 255 else 1
    return Image.fromarray(np.clip(values * scale, 0, 255).astype(np.uint8))


def pixels_of(image: Image.Image, survey: Survey) -> Bytes:
    if image.size != (survey.width, survey.height):
        image = image.resize((survey.width, survey.height), Image.Resampling.LANCZOS)
    return np.asarray(image, np.uint8).reshape(survey.height, survey.width, survey.channels)


def resized(tile: Bytes, survey: Survey) -> Bytes:
    return pixels_of(Image.fromarray(tile[:, :, 0] if survey.channels == 1 else tile), survey)


# Sheets


@dataclass(frozen=True)
class Sheets:
    """A folder of sheets as its manifest describes it."""

    folder: Path
    name: str
    width: int
    height: int
    mode: str
    columns: int
    files: tuple[tuple[str, int], ...]
    """(file name, images in it)"""
    labels: str | None

    @property
    def count(self) -> int:
        return sum(count for _, count in self.files)

    def tiles(self) -> Iterator[Bytes]:
        """Every image (height, width, channels) in order; one sheet is in memory."""
        for file, count in self.files:
            sheet = self._read(file, count)
            for i in range(count):
                top, left = i // self.columns * self.height, i % self.columns * self.width
                yield sheet[top : top + self.height, left : left + self.width]

    def _read(self, name: str, count: int) -> Bytes:
        path = self.folder / name
        if not path.is_file():
            raise ImageError(f"{path}: missing, though {MANIFEST} lists it")
        with io.BufferedReader(opened(path)) as file:
            image = decode(str(path), file, self.mode)
        needed = (self.columns * self.width, -(-count // self.columns) * self.height)
        if image.width < needed[0] or image.height < needed[1]:
            raise ImageError(f"{path}: {image.width} x {image.height} pixels, too few for {count} images")
        return np.asarray(image, np.uint8).reshape(image.height, image.width, -1)

    def read_labels(self) -> tuple[npt.NDArray[np.int32], tuple[str, ...]]:
        if self.labels is None:
            return np.zeros(self.count, np.int32), ("",)
        path = self.folder / self.labels
        try:
            lines = read_regular(str(path)).decode().split()
        except (OSError, UnicodeDecodeError) as error:
            raise ImageError(f"{path}: cannot be read ({error})") from error
        if len(lines) != self.count:
            raise ImageError(f"{path}: {len(lines)} labels for {self.count} images")
        names, codes = np.unique(np.array(lines), return_inverse=True)
        return codes.astype(np.int32), tuple(str(name) for name in names)


def read_manifest(folder: Path) -> Sheets:
    path = folder / MANIFEST
    try:
        found = json.loads(path.read_text("utf-8"))
        if found["format"] != "outcore-image-sheets" or found["version"] != 1:
            raise ImageError(f"{path}: not version 1 of outcore-image-sheets")
        tile = found["tile"]
        sheets = Sheets(
            folder=folder,
            name=str(found.get("name", folder.name)),
            width=positive(tile["width"]),
            height=positive(tile["height"]),
            mode=str(tile["mode"]),
            columns=positive(found["columns"]),
            files=tuple((plain_name(sheet["file"]), positive(sheet["count"])) for sheet in found["sheets"]),
            labels=plain_name(found["labels"]) if found.get("labels") else None,
        )
    except ImageError:
        raise
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ImageError(f"{path}: not a manifest of image sheets ({type(error).__name__}: {error})") from error
    if sheets.mode not in ("L", "RGB"):
        raise ImageError(f"{path}: tile mode {sheets.mode!r}; L and RGB are known")
    if not sheets.files:
        raise ImageError(f"{path}: lists no sheet")
    return sheets


def positive(value: Any) -> int:
    if not isinstance(value, int) or value < 1:
        raise ValueError(f"{value!r} is not a positive whole number")
    return value


def plain_name(value: Any) -> str:
    """A manifest names files of its own folder only."""
    name = str(value)
    if name != os.path.basename(name) or name in ("", ".", ".."):
        raise ValueError(f"{name!r} is not the name of a file beside the manifest")
    return name
