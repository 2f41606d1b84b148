"""Writes what ISLE reads, and the golden files of what it found.

`make_isle.py corpus NAME FOLDER` writes NAME.tdf and NAME.words, and prints the numbers of documents, words and entries.
`make_isle.py golden NAME LOG LOG...` writes isle-NAME.npz, of the first run of ISLE, and how near the others come to it.
"""

import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
from test_isle import COUNT, GOLDEN, corpus_of, matched, shared

WORDS = 300
"""Of each topic, the likeliest first."""
EVERY = 10
"""One in this many documents has its weights kept."""


def write_corpus(name: str, folder: Path) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        corpus = corpus_of(name, Path(scratch))
        x = (corpus if name == "packages" else corpus.scipy()).tocoo()
    lines = np.column_stack([x.row + 1, x.col + 1, x.data]).astype(int)
    np.savetxt(folder / f"{name}.tdf", lines[np.lexsort((lines[:, 1], lines[:, 0]))], fmt="%d")
    (folder / f"{name}.words").write_text("\n".join(f"word{number}" for number in range(1, x.shape[1] + 1)) + "\n")
    print(*x.shape, x.nnz)


def run_of(log: Path) -> dict[str, Any]:
    catchwords = np.fromfile(log / "catchwords.i32", "i4")
    topics = np.fromfile(log / "topics.f32", "f4").reshape(COUNT, len(catchwords))
    words = np.argsort(-topics, axis=1, kind="stable")[:, :WORDS]
    return {
        "thresholds": np.fromfile(log / "thresholds.f32", "f4").astype("u2"),
        "singular_values": np.sqrt(np.fromfile(log / "eigenvalues.f32", "f4")),
        "seeds": np.fromfile(log / "seeds.u64", "u8").astype("u2"),
        "clusters": np.fromfile(log / "clusters.i32", "i4").astype("i1"),
        "catchwords": catchwords.astype("i1"),
        "words": words.astype("u2"),
        "weights": np.take_along_axis(topics, words, axis=1),
        "pairs": np.loadtxt(log / "EdgeTopicComposition.txt", int),
        "topics": topics,
    }


def write_golden(name: str, logs: list[Path]) -> None:
    first, *others = map(run_of, logs)
    distances, parts = [], []
    for run in others:
        pairs, apart = matched(first, run["topics"])
        lists = [np.flatnonzero(run["catchwords"] == topic) for topic in range(COUNT)]
        distances.append(apart.mean())
        parts.append(shared(first, SimpleNamespace(catchwords_=lists), pairs))  # type: ignore[arg-type]
    del first["topics"]
    for path in logs[0].glob("top_topics*"):
        inferred = np.loadtxt(path)[::EVERY]
        first["inferred"], first["inferred_weights"] = inferred[:, :2].astype("u2") - 1, inferred[:, 2].astype("f4")
    np.savez_compressed(GOLDEN / f"isle-{name}.npz", **first, other_distances=distances, other_shared=parts)
    print("mean L1 distances of others:", *distances, "catchwords shared:", *parts)


if __name__ == "__main__":
    what, name, *rest = sys.argv[1:]
    if what == "corpus":
        write_corpus(name, Path(rest[0]))
    else:
        write_golden(name, list(map(Path, rest)))
