"""The work of the text part, run as a process of its own under the memory limit (see `steps`).

    words  ->  counts  ->  weights     x   random map     =   projected     ->   clusters  ->  their words
               documents x words           words x 4,096      documents x 4,096
               sparse                      dense              dense, 4 times the budget and more

Everything with a size is a file: the job holds names of words, a label a document, a few columns, and one block of the map.
The random map keeps distances (Johnson and Lindenstrauss, 1984), so that k-means on the projection clusters the documents.
"""

from __future__ import annotations

import bz2
import gzip
import lzma
import shutil
import sys
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.feature_extraction.text import ENGLISH_STOP_WORDS
from sklearn.metrics import normalized_mutual_info_score

import outcore as oc
from outcore.cluster import KMeans
from outcore.text import TfidfTransformer

from .steps import Found, Phases, carry_out, thinned
from .words import say

Floats = npt.NDArray[np.float32]

NAME, SECTION, TEXT = 0, 1, 2
"""Columns of the table."""

POINTS = 8000
WORDS_SHOWN = 8
SECTIONS_SHOWN = 3
PACKAGES_SHOWN = 6
LEAST_SHARE = 0.01
BLOCK_BYTES = 8 << 20
OPENERS: dict[bytes, Callable[..., Any]] = {b"\xfd7zXZ": lzma.open, b"\x1f\x8b": gzip.open, b"BZh": bz2.open}


class Face:
    """All that the text part asks of outcore."""

    def __init__(self, memory: str, scratch: str, threads: int | None) -> None:
        oc.configure(memory=memory, scratch=scratch, threads=threads)

    def counts(self, path: Path, table: Path) -> Any:
        return oc.import_text(
            str(path), str(table), text_column=TEXT, label_column=SECTION, stop_words=sorted(ENGLISH_STOP_WORDS)
        )

    def sections(self, counts: Any) -> tuple[npt.NDArray[np.int64], list[str]]:
        """The number of each document's section, and the names of all."""
        return counts.labels().astype(np.int64), counts.classes()

    def weights(self, counts: Any, path: Path) -> Any:
        return TfidfTransformer(sublinear_tf=True).fit_transform(counts, out=str(path))

    def draw_map(self, path: Path, words: int, dimensions: int, seed: int) -> Any:
        """Gaussian, a block at a time; distances are kept on average."""
        drawn = oc.create(str(path), (words, dimensions), "float32", mode="w")
        random = np.random.default_rng(seed)
        rows = max(1, BLOCK_BYTES // (4 * dimensions))
        for start in range(0, words, rows):
            block = random.standard_normal((min(rows, words - start), dimensions), dtype=np.float32)
            block *= np.float32(dimensions**-0.5)
            drawn[start : start + len(block)] = block
        return drawn

    def project(self, weights: Any, drawn: Any, path: Path, trace_file: Path) -> tuple[Any, dict[str, Any]]:
        projected = oc.linalg.csrmm(weights, drawn, str(path))
        trace = oc.last_trace()
        trace.save(str(trace_file))
        return projected, thinned(trace.to_dict())

    def cluster(self, projected: Any, clusters: int, rounds: int, seed: int) -> tuple[KMeans, dict[str, Any]]:
        found = KMeans(clusters, max_iter=rounds, random_state=seed).fit(projected)
        return found, thinned(found.trace_.to_dict())

    def means(self, weights: Any, labels: npt.NDArray[np.int32], clusters: int) -> Floats:
        """(clusters, words): the mean weight of each word in each cluster, all by one product with the transpose."""
        members = np.zeros((len(labels), clusters), np.float32)
        members[np.arange(len(labels)), labels] = 1
        members /= np.maximum(members.sum(axis=0), 1)
        out = np.empty((weights.shape[1], clusters), np.float32)
        oc.linalg.csrmm(weights, members, out, trans_a=True)
        return out.T

    def distances(self, model: KMeans, projected: Any, path: Path) -> Any:
        return model.transform(projected, out=str(path))


def run(spec: dict[str, Any]) -> Found:
    folder = Path(spec["folder"])
    face = Face(spec["memory"], str(folder), spec["threads"])
    phases = Phases()
    table = folder / "documents.tsv"

    with phases.phase("unpack"):
        unpack(Path(spec["texts"]), table)
    say(spec["progress"], "counting words")
    with phases.phase("import"):
        counts = face.counts(folder / "counts", table)
        check(counts, spec)
    with phases.phase("weigh"):
        weights = face.weights(counts, folder / "weights")
    documents, words = weights.shape
    say(spec["progress"], f"drawing a map of {words} words x {spec['dimensions']} numbers")
    with phases.phase("draw"):
        drawn = face.draw_map(folder / "map.npy", words, spec["dimensions"], spec["seed"])
    say(spec["progress"], f"projecting {documents} texts")
    with phases.phase("project"):
        projected, project_trace = face.project(weights, drawn, folder / "projected.npy", folder / "trace.json")
    say(spec["progress"], f"finding {spec['clusters']} clusters")
    with phases.phase("cluster"):
        model, cluster_trace = face.cluster(projected, spec["clusters"], spec["rounds"], spec["seed"])
    with phases.phase("name"):
        sections, classes = face.sections(counts)
        clusters, looked = look(face, counts, weights, projected, model, table, folder)

    result = {
        "title": Path(spec["texts"]).name.split(".")[0],
        "documents": documents,
        "words": words,
        "entries": weights.nnz,
        "sparse_bytes": weights.nbytes,
        "dimensions": spec["dimensions"],
        "sections": classes,
        "clusters": clusters,
        "rounds": int(model.n_iter_),
        "nmi": float(normalized_mutual_info_score(sections, model.labels_)),
        "phases": phases.done,
        "traces": {"project": project_trace, "cluster": cluster_trace},
        "version": oc.__version__,
    }
    return result, looked


def unpack(source: Path, table: Path) -> None:
    """The table as plain text: `import_text` reads some compressions by itself, this reads those of Python."""
    with open(source, "rb") as file:
        first = file.read(6)
    opener: Callable[..., Any] = next((opener for magic, opener in OPENERS.items() if first.startswith(magic)), open)
    try:
        with opener(source, "rb") as packed, open(table, "wb") as plain:
            shutil.copyfileobj(packed, plain, BLOCK_BYTES)
    except (EOFError, lzma.LZMAError, gzip.BadGzipFile, zlib.error) as error:
        raise ValueError(f"{source}: cannot be unpacked: {error}") from error


def check(counts: Any, spec: dict[str, Any]) -> None:
    for what in ("clusters", "topics"):
        if counts.shape[0] < spec[what]:
            raise ValueError(f"{spec['texts']}: {counts.shape[0]} texts are too few for {spec[what]} {what}")
    if counts.shape[1] == 0:
        raise ValueError(f"{spec['texts']}: no words in its third column")


def look(
    face: Face, counts: Any, weights: Any, projected: Any, model: KMeans, table: Path, folder: Path
) -> tuple[list[dict[str, Any]], dict[str, npt.NDArray[Any]]]:
    """What the report shows of the clusters, the largest first, and what a map of some thousand texts needs."""
    labels, count = model.labels_, len(model.cluster_centers_)
    sizes = np.bincount(labels, minlength=count)
    order = np.argsort(-sizes, kind="stable")
    order = order[sizes[order] > 0]
    words = best_words(face.means(weights, labels, count), sizes, counts.vocabulary())
    sections = commonest(*face.sections(counts), labels, count)
    own, points, chosen = read_distances(face.distances(model, projected, folder / "distances.npy"), labels)
    examples = typical(own, labels, count)
    names = names_of(table, sorted({row for rows in examples for row in rows}))

    places = np.empty(count, np.int32)
    places[order] = np.arange(len(order))
    clusters = [
        {"size": int(sizes[c]), "words": words[c], "sections": sections[c], "packages": [names[row] for row in examples[c]]}
        for c in order
    ]
    return clusters, {
        "point_distances": points[:, order],
        "point_clusters": places[labels[chosen]],
        "centres": model.cluster_centers_[order],
    }


def best_words(means: Floats, sizes: npt.NDArray[Any], vocabulary: Sequence[str]) -> list[list[str]]:
    """Of each cluster the words whose mean weight is furthest above that in all documents."""
    everywhere = (sizes / sizes.sum()) @ means
    found = []
    for mean in means:
        above = mean - everywhere
        best = np.argsort(-above, kind="stable")[:WORDS_SHOWN]
        found.append([vocabulary[int(word)] for word in best if above[word] > 0])
    return found


def commonest(
    sections: npt.NDArray[np.int64], classes: list[str], labels: npt.NDArray[np.int32], count: int
) -> list[list[tuple[str, float]]]:
    """Of each cluster the commonest sections and their shares of it."""
    table = np.zeros((count, len(classes)))
    np.add.at(table, (labels, sections), 1)
    shares = table / np.maximum(table.sum(axis=1, keepdims=True), 1)
    best = np.argsort(-shares, axis=1, kind="stable")[:, :SECTIONS_SHOWN]
    return [
        [(classes[s], float(row[s])) for s in chosen if row[s] >= LEAST_SHARE] for row, chosen in zip(shares, best, strict=True)
    ]


def read_distances(distances: Any, labels: npt.NDArray[np.int32]) -> tuple[Floats, Floats, npt.NDArray[np.int64]]:
    """The distance of each document to its own centre; those of some thousand documents to all centres, and which they are.
    Read a few MiB at a time."""
    chosen = np.unique(np.linspace(0, len(labels) - 1, min(len(labels), POINTS)).astype(np.int64))
    own, points = np.empty(len(labels), np.float32), []
    rows = max(1, BLOCK_BYTES // (4 * distances.shape[1]))
    for start in range(0, len(labels), rows):
        part = labels[start : start + rows]
        block = distances[start : start + len(part)]
        own[start : start + len(part)] = block[np.arange(len(part)), part]
        points.append(block[chosen[(chosen >= start) & (chosen < start + len(part))] - start])
    return own, np.concatenate(points), chosen


def typical(own: Floats, labels: npt.NDArray[np.int32], count: int) -> list[list[int]]:
    """A few documents of each cluster, evenly from the fifth that is nearest to its centre: the nearest ones are often alike."""
    found = []
    for cluster in range(count):
        rows = np.flatnonzero(labels == cluster)
        near = rows[np.argsort(own[rows], kind="stable")][: max(PACKAGES_SHOWN, len(rows) // 5)]
        places = np.unique(np.linspace(0, len(near) - 1, min(PACKAGES_SHOWN, len(near))).astype(int))
        found.append([int(row) for row in near[places]] if len(near) else [])
    return found


def names_of(table: Path, rows: Sequence[int]) -> dict[int, str]:
    """The names of some documents, ascending, by one pass over the lines."""
    wanted = iter([*rows, -1])
    row, found = next(wanted), {}
    with open(table, "rb") as file:
        for number, line in enumerate(file):
            if number == row:
                found[row] = line.split(b"\t")[NAME].decode()
                row = next(wanted)
    return found


if __name__ == "__main__":
    sys.exit(carry_out(sys.argv[1:], run))
