"""What `TopicModel(compat=True)` finds, against what the program of ISLE found: `golden/README.md` says how its files were made.

Where the program's random numbers decide, the same steps start from its seeds or from its clusters; else topics are compared with
what its own runs from several seeds have in common. `packages` is a part of `data/packages`; $OUTCORE_REAL_DATA is a folder with
`docword.nips.txt.gz` of the UCI bags of words.
"""

import lzma
import os
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from scipy.optimize import linear_sum_assignment
from sklearn.feature_extraction.text import CountVectorizer

import outcore as oc
from outcore.topics import TopicModel

GOLDEN = Path(__file__).with_name("golden")
PACKAGES = Path(__file__).parents[3] / "data" / "packages" / "packages.tsv.xz"
NIPS, NIPS_SHAPE = "docword.nips.txt.gz", (1500, 7605)
COUNT = 50
"""Topics of every run."""


@cache
def packages() -> sp.csr_matrix:
    """Counts of words in every 16th description."""
    with lzma.open(PACKAGES, "rt", encoding="utf-8") as table:
        texts = [line.split("\t")[2] for line in islice(table, 0, None, 16)]
    return CountVectorizer(min_df=5, max_df=0.1).fit_transform(texts)


def corpus_of(name: str, folder: Path) -> Any:
    if name == "packages":
        if not PACKAGES.exists():
            pytest.skip(f"{PACKAGES} is missing")
        return packages()
    source = Path(os.environ.get("OUTCORE_REAL_DATA", "")) / NIPS
    if not source.is_file():
        pytest.skip(f"$OUTCORE_REAL_DATA names no folder with {NIPS}")
    corpus = oc.import_bow(folder / name, source)
    if corpus.shape != NIPS_SHAPE:
        pytest.skip(f"{source} is not that of {NIPS_SHAPE[1]} words")
    return corpus


def golden_of(name: str) -> Any:
    return np.load(GOLDEN / f"isle-{name}.npz")


def of_clusters(golden: Any, corpus: Any, monkeypatch: pytest.MonkeyPatch, **options: Any) -> TopicModel:
    """Topics of the clusters that ISLE has found."""
    clusters = golden["clusters"].astype("i4")
    monkeypatch.setattr(TopicModel, "_clustered", lambda *_: clusters[clusters >= 0])
    model = TopicModel(COUNT, compat=True, **options).fit(corpus)
    np.testing.assert_array_equal(model.labels_, clusters)
    return model


def apart(golden: Any, components: np.ndarray) -> np.ndarray:
    """L1 distances of ISLE's topics, in rows, to these; of each, all words but the likeliest of ISLE's topic count as one."""
    found = np.empty((COUNT, len(components)))
    for topic, (words, weights) in enumerate(zip(golden["words"], golden["weights"], strict=True)):
        own = components[:, words]
        found[topic] = np.abs(own - weights).sum(axis=1) + np.abs(own.sum(axis=1) - weights.sum())
    return found


def matched(golden: Any, components: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The topic that goes with each of ISLE's, all together as near as can be, and its distance."""
    distances = apart(golden, components)
    own, others = linear_sum_assignment(distances)
    return others, distances[own, others]


def topics_of_words(model: TopicModel, pairs: np.ndarray, words: int) -> np.ndarray:
    """The topic of ISLE, for those of `pairs`, of which each word is a catchword; -1 for none."""
    found = np.full(words, -1)
    for topic, other in enumerate(pairs):
        found[model.catchwords_[other]] = topic
    return found


def shared(golden: Any, model: TopicModel, pairs: np.ndarray) -> float:
    """Catchwords that matched topics share, as part of all that either has."""
    found = topics_of_words(model, pairs, len(golden["catchwords"]))
    either = (found >= 0) | (golden["catchwords"] >= 0)
    return float((found == golden["catchwords"])[either].mean())


@pytest.fixture(params=["packages", "nips"])
def both(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Any, Any]:
    """A corpus, and what ISLE found in it."""
    corpus = corpus_of(request.param, tmp_path)
    return corpus, golden_of(request.param)


def test_own_seeds_lead_as_near_as_other_seeds_of_isle(both: tuple[Any, Any]) -> None:
    corpus, golden = both
    distances, parts = [], []
    for seed in range(2):
        model = TopicModel(COUNT, seed, compat=True).fit(corpus)
        np.testing.assert_array_equal(model.thresholds_, golden["thresholds"])
        np.testing.assert_array_equal(model.labels_ >= 0, golden["clusters"] >= 0)
        np.testing.assert_allclose(model.singular_values_, golden["singular_values"], rtol=1e-4)
        others, apart_by = matched(golden, model.components_)
        distances.append(apart_by.mean())
        parts.append(shared(golden, model, others))
    assert max(distances) < 1.1 * golden["other_distances"].max()
    assert min(parts) > 0.9 * golden["other_shared"].min()


def test_seeds_of_isle_lead_to_its_clusters_and_topics(both: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """But for few documents: singular vectors and distances of the program are off by more than ours."""
    corpus, golden = both
    seeds = golden["seeds"].astype(int)
    monkeypatch.setattr("outcore.topics._seeds", lambda rows, count, random_state: rows[seeds.astype("u8")])
    model = TopicModel(COUNT, compat=True).fit(corpus)
    assert (model.labels_ != golden["clusters"]).mean() < 0.01
    others, distances = matched(golden, model.components_)
    np.testing.assert_array_equal(others, np.arange(COUNT))
    assert distances.mean() < 0.015
    assert shared(golden, model, others) > 0.95


def test_clusters_of_isle_have_its_catchwords_and_topics(both: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    corpus, golden = both
    model, pairs = of_clusters(golden, corpus, monkeypatch, n_edge_topics=COUNT**2), golden["pairs"]
    own = topics_of_words(model, np.arange(COUNT), len(golden["catchwords"]))
    # Of the packages, one word is exactly 1.1 times as frequent as elsewhere, which a sum in float32 does not see.
    differ = own != golden["catchwords"]
    assert differ.sum() <= 1
    same = np.setdiff1d(np.arange(COUNT), [own[differ], golden["catchwords"][differ]])
    weights = np.take_along_axis(model.components_, golden["words"].astype(int), axis=1)
    np.testing.assert_allclose(weights[same], golden["weights"][same], rtol=1e-5)
    # Documents that have as much of one topic as of another go by how float32 is rounded.
    counts = np.zeros((COUNT, COUNT), int)
    counts[tuple(model.edge_topics_.T)] = model.edge_counts_
    assert np.abs(counts[tuple(pairs[:, :2].T)] - pairs[:, 2]).sum() < 0.02 * pairs[:, 2].sum()


def test_documents_have_the_weights_that_isle_infers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    corpus, golden = corpus_of("nips", tmp_path), golden_of("nips")
    model = of_clusters(golden, corpus, monkeypatch)
    # The program reads its topics from a file that has six digits of each probability, the rest cut off.
    model.components_ = np.floor(model.components_.astype("f8") * 1e6) / 1e6
    documents, of_topics = golden["inferred"].T.astype(int)
    weights = np.asarray(model.transform(corpus))[documents, of_topics]
    np.testing.assert_allclose(weights, golden["inferred_weights"], atol=1e-5)
