"""Training samples in every form that a leg reads: the same bytes for the same description, a sample's number in its first."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

from harness.data import npy_header, settle
from harness.model import RIVALS, ROOT, SampleSet

Bytes = npt.NDArray[np.uint8]

AT_ONCE_BYTES = 8 << 20
FOLDER_FILES = 1000
LABELS = 1000
HEADER_BYTES = 4096


def make(data: SampleSet, root: Path) -> None:
    """Make `data` unless it lies there whole already."""
    path = root / data.path
    made = path.with_name(f"{path.name}.{data.size}x{data.count}.made")
    if made.exists() and path.exists():
        return
    if path.is_dir():
        shutil.rmtree(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    {"outcore": dataset, "files": files, "npy": array}.get(data.form, of_loader)(data, path)
    made.touch()


def of_loader(data: SampleSet, path: Path) -> None:
    spec = {"path": str(path), "loader": data.form.removeprefix("loader "), "size": data.size, "count": data.count}
    words = [RIVALS, "bench/leg.py", "loaders.write", json.dumps(spec), os.devnull]
    subprocess.run(words, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)


def rows(data: SampleSet) -> Iterator[Bytes]:
    """Samples x bytes, some at a time: noise that nothing can compress, and numbers."""
    at_once = max(1, AT_ONCE_BYTES // max(1, data.size))
    noise = np.random.default_rng(0).integers(0, 256, (min(at_once, data.count), data.size), np.uint8)
    for start in range(0, data.count, at_once):
        found = noise[: min(at_once, data.count - start)]
        numbers = np.arange(start, start + len(found), dtype="<u8").view(np.uint8).reshape(-1, 8)
        width = min(8, data.size)
        found[:, :width] = numbers[:, :width]
        yield found


def name_of(number: int) -> str:
    """As the names of files in a large set of images are."""
    return f"train/n{number % 1000:08d}/image_{number:012d}.jpg"


def dataset(data: SampleSet, path: Path) -> None:
    import outcore as oc
    from outcore.data import Writer

    oc.configure(memory="1GiB", scratch=path.parent)
    number, label = 0, {"y": "int64"} if data.labelled else {}
    with Writer(path, {"x": ("uint8", (data.size,)), **label}) as writer:
        for block in rows(data):
            for row in block:
                sample = {"x": row, "y": number % LABELS} if data.labelled else {"x": row}
                writer.write(sample, name_of(number) if data.named else None)
                number += 1


def files(data: SampleSet, path: Path) -> None:
    number = 0
    for block in rows(data):
        for row in block:
            if number % FOLDER_FILES == 0:
                (path / f"{number // FOLDER_FILES:06}").mkdir(parents=True)
            (path / f"{number // FOLDER_FILES:06}" / f"{number:09}").write_bytes(row.tobytes())
            number += 1


def array(data: SampleSet, path: Path) -> None:
    with open(path, "wb") as out:
        out.write(npy_header("|u1", (data.count, data.size), HEADER_BYTES))
        for block in rows(data):
            out.write(block.data)
        settle(out)
