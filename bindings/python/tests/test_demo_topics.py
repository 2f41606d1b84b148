"""The pieces of the demo's topics, against plain loops."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

for needed in ("sklearn", "psutil"):
    pytest.importorskip(needed)

import outcore as oc  # noqa: E402
from outcore.demo import topic_job, topic_rival  # noqa: E402

WORDS = [f"word{i}" for i in range(12)]


def two_topics(documents: int = 80) -> sp.csr_matrix:
    """Texts of the words of one half, and the last of both."""
    random = np.random.default_rng(0)
    counts = np.zeros((documents, len(WORDS)), np.float32)
    for row in counts:
        half = random.integers(2)
        np.add.at(row, random.integers(6, size=9) + 6 * half, 1)
    counts[-1] = 1
    return sp.csr_matrix(counts)


def model_of(components: Any) -> Any:
    return topic_job.as_model(np.array(components, np.float32), WORDS)


def test_the_heaviest_topic_is_found_in_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_job, "BLOCK_BYTES", 4 * 3 * 4)
    weights = np.random.default_rng(2).random((11, 3)).astype(np.float32)
    weights[4] = 1 / 3
    expected = weights.argmax(axis=1)
    expected[4] = -1
    assert topic_job.heaviest(oc.from_numpy(str(tmp_path / "weights.npy"), weights)).tolist() == expected.tolist()
    assert topic_job.heaviest(np.ones((3, 1), np.float32)).tolist() == [0, 0, 0]


def test_topics_are_told_in_order_with_their_words_and_coherence() -> None:
    counts = two_topics()
    components = np.zeros((3, len(WORDS)))
    components[0, :6] = np.arange(6, 0, -1) / 21
    components[1, 6:] = np.arange(6, 0, -1) / 21
    components[2, 3] = 1
    model = model_of(components)
    first, second, third = topic_job.described(model, counts, np.array([3, 40, 5]), np.array([1, 0, 2]))
    assert [topic["size"] for topic in (first, second, third)] == [40, 3, 5]
    assert [word for word, _ in first["words"]] == WORDS[6:]
    np.testing.assert_allclose([chance for _, chance in second["words"]], components[0, :6])
    assert (third["words"], third["npmi"]) == ([["word3", 1.0]], None)
    has, pairs = counts.toarray() > 0, []
    for a in range(6):
        for b in range(a):
            joint = (has[:, a] & has[:, b]).mean()
            pairs.append(np.log(joint / (has[:, a].mean() * has[:, b].mean())) / -np.log(joint))
    assert second["npmi"] == pytest.approx(np.mean(pairs))
    told = topic_job.quality(model, counts)
    assert told["npmi"] == pytest.approx((first["npmi"] + second["npmi"]) / 2)
    assert told["diversity"] == pytest.approx(12 / 13)


def test_two_topics_are_compared_by_the_likeliest_words_of_both() -> None:
    components = np.zeros((3, len(WORDS)))
    components[1, [0, 1, 2]], components[2, [2, 3]] = [0.5, 0.3, 0.2], [0.25, 0.75]
    model = model_of(components)
    model.edge_topics_, model.edge_counts_ = np.array([[2, 1], [0, 1]]), np.array([7, 2])
    found = topic_job.compared(model, np.array([1, 0, 2]), np.array([1, 0, 2]))
    assert (found["places"], found["texts"]) == ([2, 0], 7)
    # From what the first has more of to what the second has.
    assert (found["words"][:2], found["words"][-2:]) == (["word3", "word2"], ["word1", "word0"])
    np.testing.assert_allclose(np.array(found["chances"])[:, [0, -1]], [[0.75, 0], [0, 0.5]])
    model.edge_topics_ = np.empty((0, 2), int)
    alone = topic_job.compared(model, np.array([1, 0, 2]), np.array([1, 0, 2]))
    assert (alone["places"], alone["texts"]) == ([0, 1], 0)


def test_each_topic_stands_beside_the_one_that_is_most_like_it() -> None:
    ours = np.random.default_rng(1).dirichlet(np.full(12, 0.2), 5)
    order = np.array([3, 1, 4, 0, 2])
    assert topic_job.nearest(ours, ours[order]).tolist() == np.argsort(order).tolist()


def test_the_rival_finds_topics_in_the_columns_that_it_is_given(tmp_path: Path) -> None:
    texts = [" ".join(np.repeat(WORDS, row.astype(int))) for row in two_topics().toarray()]
    (tmp_path / "table").write_text("".join(f"name\tsection\t{text}\n" for text in [*texts, "else"]))
    (tmp_path / "words").write_text("".join(f"{word}\n" for word in WORDS[::-1]))
    spec = {"table": tmp_path / "table", "vocabulary": tmp_path / "words", "found": tmp_path / "topics.npz"}
    found = topic_rival.run({**spec, "topics": 2, "seed": 0})
    with np.load(tmp_path / "topics.npz") as kept:
        topics, sizes = kept["components"], kept["sizes"]
    np.testing.assert_allclose(topics.sum(axis=1), 1, rtol=1e-5)
    halves = sorted(tuple(sorted(np.argsort(-topic)[:6])) for topic in topics)
    assert halves == [tuple(range(6)), tuple(range(6, 12))]
    assert sizes.sum() == len(texts)
    assert found["work_s"] > 0
