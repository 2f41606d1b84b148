"""The work of the images part, run as a process of its own under the memory limit (see `steps`).

Steps: decode the images into `images.npy` on SSD, find the components, project every image into `projection.npy` on SSD, then
look at a few. At no time are more than one block of images and the library's budget in memory.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import tqdm

import outcore as oc
from outcore.decomposition import PCA

from .images import ImageError, ImageSet, Survey
from .steps import Found, Phases, carry_out, thinned
from .words import say

Floats = npt.NDArray[np.float32]

SAMPLES = 10
SCATTER_POINTS = 6000
READ_BYTES = 4 << 20


class Face:
    """All that the images part asks of outcore."""

    def __init__(self, memory: str, scratch: str, threads: int | None) -> None:
        oc.configure(memory=memory, scratch=scratch, threads=threads)

    def create(self, path: Path, rows: int, columns: int) -> Any:
        return oc.create(str(path), (rows, columns), "float32", mode="w")

    def open(self, path: Path) -> Any:
        return oc.open(str(path))

    def fit(self, images: Any, components: int, seed: int) -> tuple[Any, dict[str, Any]]:
        pca = PCA(n_components=components, random_state=seed)
        pca.fit(images)
        return pca, thinned(pca.trace_.to_dict())

    def project(self, pca: Any, images: Any, out: Path, trace_file: Path) -> dict[str, Any]:
        pca.transform(images, out=str(out))
        trace = oc.last_trace()
        trace.save(str(trace_file))
        return thinned(trace.to_dict())


def run_again(spec: dict[str, Any]) -> Found:
    """Components and projection once more, on the array of an earlier run: a further sample of the time they take."""
    folder = Path(spec["folder"])
    face = Face(spec["memory"], str(folder), spec["threads"])
    phases = Phases()
    array = face.open(folder / "images.npy")
    with phases.phase("fit"):
        pca, _ = face.fit(array, min(spec["components"], *array.shape), spec["seed"])
    (folder / "projection-again.npy").unlink(missing_ok=True)
    with phases.phase("transform"):
        face.project(pca, array, folder / "projection-again.npy", folder / "trace-again.json")
    return {"phases": phases.done}, {}


def run(spec: dict[str, Any]) -> Found:
    folder = Path(spec["folder"])
    bars: dict[str, Any] = {"disable": not spec["progress"], "unit": " images", "leave": False, "file": sys.stderr}
    face = Face(spec["memory"], str(folder), spec["threads"])
    phases = Phases()

    with phases.phase("look at the files"):
        images = ImageSet(spec["data"], size=tuple(spec["size"]) if spec["size"] else None, mixed=spec["mixed"])
        with tqdm.tqdm(desc="looking at the files", **bars) as bar:
            survey = images.survey(bar.update)
    components = check_components(spec["components"], survey, images)

    with phases.phase("decode"), tqdm.tqdm(desc="decoding", total=survey.count, **bars) as bar:
        array = face.create(folder / "images.npy", survey.count, survey.pixels)
        write_images(array, images, bar.update)
        del array
    array = face.open(folder / "images.npy")
    say(spec["progress"], f"finding {components} components of {survey.count} x {survey.pixels}")
    with phases.phase("fit"):
        pca, fit_trace = face.fit(array, components, spec["seed"])
    say(spec["progress"], "projecting every image")
    with phases.phase("transform"):
        transform_trace = face.project(pca, array, folder / "projection.npy", folder / "trace.json")
    with phases.phase("look at the result"):
        looked = look(face, pca, array, folder, survey)

    result = {
        "title": images.title,
        "rows": survey.count,
        "height": survey.height,
        "width": survey.width,
        "channels": survey.channels,
        "resized": survey.resized,
        "label_names": list(survey.names),
        "components": components,
        "explained_variance": [float(value) for value in looked["explained_variance"]],
        "phases": phases.done,
        "traces": {"fit": fit_trace, "transform": transform_trace},
        "version": getattr(oc, "__version__", "unknown"),
    }
    return result, looked


def check_components(wanted: int, survey: Survey, images: ImageSet) -> int:
    if survey.count < 2:
        raise ImageError(f"{images.path}: one image has no principal components; give two or more")
    return min(wanted, survey.count, survey.pixels)


def write_images(array: Any, images: ImageSet, tick: Any) -> None:
    """Grey levels 0 ... 255 become floats 0 ... 1, a row an image."""
    start = 0
    for block in images.blocks(tick):
        rows = np.multiply(block.reshape(len(block), -1), np.float32(1 / 255), dtype=np.float32)
        array[start : start + len(rows)] = rows
        start += len(rows)


def look(face: Face, pca: Any, array: Any, folder: Path, survey: Survey) -> dict[str, npt.NDArray[Any]]:
    """The little that the report shows: components, a few images rebuilt, a few thousand points."""
    projection = face.open(folder / "projection.npy")
    chosen = sample_rows(survey)
    originals = np.stack([array[i : i + 1][0] for i in chosen])
    coordinates = np.stack([projection[i : i + 1][0] for i in chosen])
    depths = reconstruction_depths(len(pca.components_))
    rebuilt = np.stack([pca.inverse_transform(truncated(coordinates, depth)) for depth in depths])
    rows, points = scatter_points(projection, survey.count)
    return {
        "components": np.asarray(pca.components_, np.float32),
        "mean": np.asarray(pca.mean_, np.float32),
        "explained_variance": np.asarray(pca.explained_variance_, np.float64),
        "ratio": np.asarray(pca.explained_variance_ratio_, np.float64),
        "sample_rows": np.array(chosen),
        "sample_labels": survey.labels[chosen],
        "originals": originals.astype(np.float32),
        "depths": np.array(depths),
        "rebuilt": rebuilt.astype(np.float32),
        "points": points,
        "point_labels": survey.labels[rows],
    }


def sample_rows(survey: Survey) -> list[int]:
    """One image of each label, or images spread evenly over a set without labels."""
    if 2 <= len(survey.names) <= SAMPLES:
        return [int(np.argmax(survey.labels == label)) for label in range(len(survey.names))]
    return [int(row) for row in np.unique(np.linspace(0, survey.count - 1, SAMPLES).astype(int))]


def reconstruction_depths(components: int) -> list[int]:
    """2, 10 and all components: almost nothing, the gist, the best there is."""
    return sorted({depth for depth in (2, 10, components) if depth <= components})


def truncated(coordinates: Floats, depth: int) -> Floats:
    kept = np.zeros_like(coordinates)
    kept[:, :depth] = coordinates[:, :depth]
    return kept


def scatter_points(projection: Any, count: int) -> tuple[npt.NDArray[np.int64], Floats]:
    """Rows spread evenly over the set and their first two coordinates, read a few MiB at a time."""
    wanted = np.unique(np.linspace(0, count - 1, min(count, SCATTER_POINTS)).astype(np.int64))
    rows_at_once = max(1, READ_BYTES // (4 * projection.shape[1]))
    parts = []
    for start in range(0, count, rows_at_once):
        stop = min(count, start + rows_at_once)
        inside = wanted[(wanted >= start) & (wanted < stop)] - start
        if len(inside):
            parts.append(np.asarray(projection[start:stop])[inside, :2])
    points = np.concatenate(parts)
    if points.shape[1] == 1:
        points = np.hstack([points, np.zeros_like(points)])
    return wanted, points.astype(np.float32)


if __name__ == "__main__":
    sys.exit(carry_out(sys.argv[1:], lambda spec: run_again(spec) if spec.get("again") else run(spec)))
