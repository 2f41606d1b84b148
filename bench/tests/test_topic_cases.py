"""Topics: documents are split before words are chosen, every contestant learns of the same ones, and all are measured alike."""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from outcore.topics import TopicModel
from results_made_up import case, leg, ok

from cases import BUILDERS
from harness import corpus, tables, topic_corpus
from harness.model import Context, TopicFolder
from legs import sparse, topics

REAL = TopicFolder("real", 3000, seed=1)
DRAWN = TopicFolder("drawn", 6000, drawn=True, seed=2)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("topics")
    for file in (REAL, DRAWN):
        topic_corpus.make(file, root)
    return root


@pytest.mark.parametrize("file", [REAL, DRAWN], ids=["real", "drawn"])
def test_words_are_chosen_by_the_documents_that_are_learned_from(root: Path, file: TopicFolder) -> None:
    learned, held_out = (sparse.load(str(root / path)) for path in (file.learned, file.held_out))
    assert learned.shape[0] == 9 * held_out.shape[0] == file.learned_documents
    assert learned.shape[1] == held_out.shape[1]
    frequency = np.diff(learned.tocsc().indptr)
    assert frequency.min() == topic_corpus.FEWEST and frequency.max() <= learned.shape[0] * topic_corpus.LARGEST_SHARE
    # Those of the others were not looked at.
    assert np.diff(held_out.tocsc().indptr).min() == 0
    for matrix in (learned, held_out):
        assert matrix.has_canonical_format
        assert matrix.data.min() == 1 and (matrix.data == np.floor(matrix.data)).all()


def test_real_documents_are_each_in_one_part_and_drawn_ones_are_as_many_bytes_as_told(root: Path) -> None:
    parts = [next(topic_corpus.documents(REAL, held_out)) for held_out in (False, True)]
    real = corpus.corpus()
    order = np.random.default_rng(1).permutation(len(real))[:3000]
    lengths = np.concatenate([np.diff(part.indptr) for part in parts])
    assert lengths.tolist() == np.diff(real.starts)[order].tolist()
    learned = sparse.load(str(root / DRAWN.learned))
    size = 8 * (learned.nnz + learned.shape[0])
    assert size == pytest.approx(DRAWN.learned_bytes, rel=0.25)


def test_the_same_description_gives_the_same_bytes(root: Path, tmp_path: Path) -> None:
    topic_corpus.make(DRAWN, tmp_path)
    for path in DRAWN.parts:
        assert (root / path).read_bytes() == (tmp_path / path).read_bytes()
    assert not list(tmp_path.glob("*.partial"))


def test_coherence_and_diversity_are_those_of_our_estimator() -> None:
    random = np.random.default_rng(3)
    values = random.poisson(0.4, (60, 40)).astype("f8")
    # A word of all documents, and one that meets few others.
    values[:, 0], values[:, 1] = 1, 0
    values[:2, 1] = 1
    counts = sp.csr_matrix(values)
    found = random.dirichlet(np.full(40, 0.3), 4)
    found[0, :2] = 1
    model = TopicModel(4)
    model.components_, model.n_features_in_ = found, 40
    assert topics.npmi([counts], found) == pytest.approx(model.score(counts))
    assert topics.diversity(found) == model.diversity()


@pytest.mark.parametrize("leg", ["ours", "sklearn_lda", "sklearn_nmf", "gensim_lda", "tomotopy_lda"])
def test_every_contestant_finds_topics(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, leg: str) -> None:
    pytest.importorskip(leg.partition("_")[0].replace("ours", "outcore"))
    monkeypatch.setattr(topics, "SWEEPS", 50)
    monkeypatch.setattr(topics, "PASSES", 3)
    monkeypatch.setattr(topics, "BATCH", 256)
    spec: dict[str, Any] = {"a": str(root / REAL.path), "k": 5, "memory": 16 << 20, "scratch": str(tmp_path)}
    found = getattr(topics, leg)(spec)
    assert json.dumps(found) and len(found["seconds"]) == 1
    held_out = sparse.load(str(root / REAL.held_out))
    by_chance = topics.npmi([held_out], np.random.default_rng(4).random((5, held_out.shape[1])))
    assert found["npmi"] > by_chance + 0.5 and 0.2 < found["diversity"] <= 1
    if leg == "ours":
        assert topics.ours({**spec, "in_memory": True})["npmi"] == pytest.approx(found["npmi"], abs=0.05)


def test_what_are_no_topics_is_refused(root: Path) -> None:
    spec: dict[str, Any] = {"a": str(root / REAL.path), "k": 5}
    columns = sparse.described(str(root / REAL.learned))[1]
    for wrong in (np.ones((4, columns)), np.ones((5, columns - 1)), np.full((5, columns), np.nan), -np.ones((5, columns))):
        with pytest.raises(SystemExit, match="no topics"):
            topics.timed(spec, lambda wrong=wrong: wrong)


def test_steps_of_isle_are_added_up_from_thresholds_to_topics() -> None:
    steps = {
        "Populating CSC": 9,
        "Computing thresholds": 1.5,
        "k-means on B": 2e-05,
        "Constructing topic vectors": 1,
        "Output": 7,
    }
    told = "\n".join(f"Time for {name:.<40}{3}s(user)  {seconds}s(sys)" for name, seconds in steps.items())
    assert topics.seconds_told(f"said between\n{told}\n") == pytest.approx(2.50002)


@pytest.mark.skipif("OUTCORE_ISLE" not in os.environ, reason="$OUTCORE_ISLE names no folder with ISLETrain")
def test_isle_finds_topics(root: Path, tmp_path: Path) -> None:
    spec = {"a": str(root / REAL.path), "k": 5, "program": "$OUTCORE_ISLE/ISLETrain", "scratch": str(tmp_path / "scratch")}
    found = topics.isle(spec)
    assert json.dumps(found) and found["seconds"][0] > 0 and found["npmi"] > 0


def test_cases_have_the_sizes_of_the_protocol() -> None:
    for name in ("topics", "topics-gensim", "topics-tomotopy", "topics-isle"):
        built = BUILDERS[name](Context("x"))
        assert built.legs[0].spec["k"] == 100 and built.comparisons[0].at_least == 1.0
        assert built.files == BUILDERS["topics"](Context("x")).files
    built = BUILDERS["topics-memory"](Context("x"))
    file = built.files[0]
    assert isinstance(file, TopicFolder) and file.drawn
    assert 4 * built.legs[0].spec["memory"] == pytest.approx(file.learned_bytes, rel=1e-6)
    assert built.comparisons[0].at_least == 0.95


@pytest.mark.parametrize(("own", "verdict"), [(0.2104, "reached"), (0.2071, "missed")])
def test_a_rival_with_better_topics_is_told(own: float, verdict: str) -> None:
    ours, rival = ok(0, 1.0, npmi=own, diversity=0.9), ok(0, 9.0, npmi=0.2109, diversity=0.8)
    run = case(leg("outcore", ours), leg("rival", rival), rivals=("rival",))
    assert tables.quality_rows(run) == [["NPMI of the rivals", "0.211", f"{own:.3f}", f"{verdict} (outcore)"]]
    assert tables.topic_notes(run)[1] == "rival: NPMI 0.211 on documents held out, diversity 0.80."
