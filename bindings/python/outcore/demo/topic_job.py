"""Topics of the texts, learned in a process of its own under the memory limit (see `steps`).

Counts and weights of words are on SSD, as `text_job` left them, and so is how much of each topic a text has; the job holds the
topics themselves, a number for each word. Topics of a rival, where the specification names some, are measured likewise.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.optimize import linear_sum_assignment

import outcore as oc
from outcore.topics import TopicModel

from .steps import Found, Phases, carry_out
from .text_job import BLOCK_BYTES, POINTS
from .words import say

Floats = npt.NDArray[np.floating[Any]]

WORDS_SHOWN = 10
"""Of each topic, and those that its coherence is measured by."""


def run(spec: dict[str, Any]) -> Found:
    folder = Path(spec["folder"])
    oc.configure(memory=spec["memory"], scratch=str(folder), threads=spec["threads"])
    counts: Any = oc.open(str(folder / "counts"))
    words = oc.open(str(folder / "weights"))
    phases = Phases()
    say(spec["progress"], f"learning {spec['topics']} topics")
    with phases.phase("learn"):
        model = TopicModel(spec["topics"], spec["seed"], n_edge_topics=1).fit(words)
    with phases.phase("mix"):
        weights = model.transform(words, out=str(folder / "mixtures.npy"))
    model.vocabulary_ = counts.vocabulary()

    first = heaviest(weights)
    sizes = np.bincount(first[first >= 0], minlength=spec["topics"])
    order = np.argsort(-sizes, kind="stable")
    places = np.empty(len(order), np.int32)
    places[order] = np.arange(len(order))
    result: dict[str, Any] = {
        "topics": described(model, counts, sizes, order),
        "pair": compared(model, order, places) if len(order) > 1 else None,
        **quality(model, counts),
        "phases": phases.done,
    }
    if spec["rival"] is not None:
        with np.load(spec["rival"]) as found:
            rival, rival_sizes = as_model(found["components"], model.vocabulary_), found["sizes"]
        beside = nearest(model.components_[order], rival.components_)
        result["rival"] = {"topics": described(rival, counts, rival_sizes, beside), **quality(rival, counts)}
    chosen = np.flatnonzero(first >= 0)
    chosen = chosen[np.unique(np.linspace(0, len(chosen) - 1, min(len(chosen), POINTS)).astype(np.int64))]
    return result, {
        "topic_weights": weights[chosen][:, order],
        "topic_points": places[first[chosen]],
        "topic_roots": np.sqrt(model.components_[order]),
    }


def heaviest(weights: Any) -> npt.NDArray[np.int64]:
    """The topic that each text has most of, -1 where all are equal, as of a text without words. Read a few MiB at a time."""
    found = np.empty(len(weights), np.int64)
    rows = max(1, BLOCK_BYTES // (weights.dtype.itemsize * weights.shape[1]))
    for start in range(0, len(weights), rows):
        block = weights[start : start + rows]
        equal = (block.shape[1] > 1) & (np.ptp(block, axis=1) == 0)
        found[start : start + len(block)] = np.where(equal, -1, block.argmax(axis=1))
    return found


def described(model: TopicModel, counts: Any, sizes: npt.NDArray[np.int64], order: npt.NDArray[Any]) -> list[dict[str, Any]]:
    """Of topics in an order: the likeliest words and their probabilities, the texts that have most of it, and its coherence."""
    words, coherence = model.top_words(WORDS_SHOWN), numbers(model.coherence(counts, n_words=WORDS_SHOWN))
    found = []
    for topic in order:
        chances = -np.sort(-model.components_[topic])[: len(words[topic])]
        listed = [[word, float(chance)] for word, chance in zip(words[topic], chances, strict=True)]
        found.append({"words": listed, "size": int(sizes[topic]), "npmi": coherence[topic]})
    return found


def quality(model: TopicModel, counts: Any) -> dict[str, Any]:
    """Of all topics together: the mean of their coherence, and the part of their likeliest words that differ."""
    return {"npmi": numbers([model.score(counts)])[0], "diversity": model.diversity()}


def numbers(values: Iterable[float]) -> list[float | None]:
    """A topic of one word has no coherence."""
    return [None if np.isnan(value) else float(value) for value in values]


def compared(model: TopicModel, order: npt.NDArray[Any], places: npt.NDArray[Any]) -> dict[str, Any]:
    """The two topics that most texts have together, or else the largest: their likeliest words, and the probabilities of these in
    both, from the words that the one has more of to those of the other."""
    pair = model.edge_topics_[0] if len(model.edge_topics_) else order[:2]
    topics = model.components_[pair]
    words = np.unique(np.argsort(-topics, axis=1, kind="stable")[:, :WORDS_SHOWN])
    words = words[np.argsort(topics[1, words] - topics[0, words], kind="stable")]
    vocabulary: Any = model.vocabulary_
    return {
        "places": places[pair].tolist(),
        "words": [vocabulary[word] for word in words],
        "chances": topics[:, words].tolist(),
        "texts": int(model.edge_counts_[0]) if len(model.edge_topics_) else 0,
    }


def as_model(components: Floats, vocabulary: list[str] | None) -> TopicModel:
    """A rival's topics as a model of ours."""
    model = TopicModel(len(components))
    model.components_, model.n_features_in_, model.vocabulary_ = components, components.shape[1], vocabulary
    return model


def nearest(ours: Floats, theirs: Floats) -> npt.NDArray[np.intp]:
    """The topic of theirs beside each of ours, each once, so that all pairs are as alike as can be (Bhattacharyya, 1943)."""
    found: npt.NDArray[np.intp] = linear_sum_assignment(np.sqrt(ours) @ np.sqrt(theirs).T, maximize=True)[1]
    return found


if __name__ == "__main__":
    sys.exit(carry_out(sys.argv[1:], run))
