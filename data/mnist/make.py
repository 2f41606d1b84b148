"""Repacks the 70,000 PNG files of MNIST into sheets of 1,000 images each.

A tar of 70,000 files of 300 bytes is mostly headers; side by side in lossless WebP sheets the same pixels take 10.5 MB.
The images keep the order of the original files (0 ... 59,999 the training set, 60,000 ... 69,999 the test set).
Each sheet is read back and compared before the script ends.

    python data/mnist/make.py mnist-png.tar.gz [folder]

The archive holds <set>/<digit>/<number>.png; needs numpy and Pillow.
"""

import argparse
import io
import json
import tarfile
from pathlib import Path, PurePosixPath

import numpy as np
from PIL import Image

SIDE = 28
COLUMNS = 40
SHEET = 1000


def read_archive(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """All images (n, 28, 28) and their digits (n,), in the order of the original data set."""
    images: dict[int, np.ndarray] = {}
    digits: dict[int, int] = {}
    with tarfile.open(path, "r|*") as archive:
        for member in archive:
            name = PurePosixPath(member.name)
            file = archive.extractfile(member) if name.suffix == ".png" else None
            if file is None:
                continue
            with Image.open(io.BytesIO(file.read())) as image:
                images[int(name.stem)] = np.asarray(image.convert("L"))
            digits[int(name.stem)] = int(name.parent.name)
    order = range(len(images))
    return np.stack([images[i] for i in order]), np.array([digits[i] for i in order])


def sheet_of(images: np.ndarray) -> np.ndarray:
    """Tiles row by row: (n, 28, 28) becomes one picture, the last row of tiles filled up with black."""
    rows = -(-len(images) // COLUMNS)
    tiles = np.zeros((rows * COLUMNS, SIDE, SIDE), np.uint8)
    tiles[: len(images)] = images
    tiles = tiles.reshape(rows, COLUMNS, SIDE, SIDE).transpose(0, 2, 1, 3)
    return tiles.reshape(rows * SIDE, COLUMNS * SIDE)


def write_sheets(images: np.ndarray, digits: np.ndarray, folder: Path) -> None:
    sheets = []
    for start in range(0, len(images), SHEET):
        part = images[start : start + SHEET]
        name = f"sheet-{start // SHEET:02d}.webp"
        Image.fromarray(sheet_of(part)).save(folder / name, lossless=True, quality=100, method=6)
        with Image.open(folder / name) as written:
            if not np.array_equal(np.asarray(written.convert("L")), sheet_of(part)):
                raise SystemExit(f"{name} does not read back as it was written")
        sheets.append({"file": name, "count": len(part)})
    manifest = {
        "format": "outcore-image-sheets",
        "version": 1,
        "name": "MNIST, handwritten digits",
        "tile": {"width": SIDE, "height": SIDE, "mode": "L"},
        "columns": COLUMNS,
        "labels": "labels.txt",
        "sheets": sheets,
    }
    (folder / "labels.txt").write_text("".join(f"{digit}\n" for digit in digits))
    (folder / "sheets.json").write_text(json.dumps(manifest, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("archive", type=Path)
    parser.add_argument("folder", type=Path, nargs="?", default=Path(__file__).parent)
    options = parser.parse_args()
    write_sheets(*read_archive(options.archive), options.folder)


if __name__ == "__main__":
    main()
