"""Topic models: planted topics are found again, and every step is that of a plain reference in NumPy."""

import contextlib
import json
import signal
import subprocess
import sys
import time
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from click.testing import CliRunner
from sklearn.feature_extraction.text import CountVectorizer, TfidfTransformer
from sklearn.metrics import adjusted_rand_score

import outcore as oc
from outcore import errors
from outcore.cli import cli
from outcore.embedding import TableSet
from outcore.topics import TopicModel


def planted(
    documents: int = 600, topics: int = 4, words: int = 120, shared: int = 30, own: float = 0.9, seed: int = 0
) -> tuple[sp.csr_matrix, np.ndarray, np.ndarray]:
    """Counts, the topic that each document has most of, and the topics: words of their own, and some that all share."""
    random = np.random.default_rng(seed)
    model = np.zeros((topics, words))
    for topic, part in enumerate(np.array_split(np.arange(shared, words), topics)):
        model[topic, part] = random.dirichlet(np.ones(len(part))) * 0.7
        model[topic, :shared] = random.dirichlet(np.ones(shared)) * 0.3
    if not shared:
        model /= model.sum(axis=1)[:, None]
    labels = random.integers(0, topics, documents)
    mixed = own * np.eye(topics)[labels] + (1 - own) * random.dirichlet(np.ones(topics), documents)
    chances = mixed @ model
    lengths = random.integers(40, 90, documents)
    counts = np.stack([random.multinomial(length, row) for length, row in zip(lengths, chances, strict=True)])
    return sp.csr_matrix(counts.astype("f8")), labels, model


def scales_of(x: np.ndarray, compat: bool = False) -> np.ndarray:
    sums, filled = x.sum(axis=1), np.count_nonzero(x.sum(axis=1))
    length = sums.sum() / filled
    length = max(np.floor(length), 1) if compat else max(length, np.count_nonzero(x) / filled)
    return np.divide(length, sums, out=np.zeros(len(x)), where=sums > 0)[:, None]


def scaled(x: np.ndarray, compat: bool = False) -> np.ndarray:
    found: np.ndarray = x * scales_of(x, compat)
    return found


def thresholds_of(x: np.ndarray, k: int, compat: bool = False) -> np.ndarray:
    filled = np.count_nonzero(x.sum(axis=1))
    above, equal = max(1, int(filled / (2 * k))), max(1, int(np.ceil(3 / 60 * filled / k)))
    found = np.ones(x.shape[1])
    for word, values in enumerate(np.floor(scaled(x, compat) + 0.5).T):
        values = np.sort(values[values > 0])[::-1]
        if len(values) >= above:
            candidates = [value for value in np.unique(values)[::-1] if value <= values[above - 1]]
            rare = [value for value in candidates if (values == value).sum() < equal]
            found[word] = rare[0] if rare else 1
    return found


def left_of(x: np.ndarray, thresholds: np.ndarray, compat: bool = False) -> np.ndarray:
    """What thresholds leave of a corpus."""
    found: np.ndarray = np.where(np.floor(scaled(x, compat) + 0.5) >= thresholds, np.sqrt(thresholds), 0) * (x > 0)
    return found


def topics_of(x: np.ndarray, labels: np.ndarray, k: int, compat: bool = False) -> tuple[list[np.ndarray], np.ndarray, np.ndarray]:
    """Catchwords, topics and pairs of given clusters."""
    a, filled = scaled(x, compat), np.count_nonzero(x.sum(axis=1))
    n = len(x) if compat else filled
    rank = max(1, int(n / 3 / (2 * k)))
    values = np.zeros((k, x.shape[1]))
    for topic in range(k):
        own = -np.sort(-a[labels == topic], axis=0)
        if compat:
            more = (own > 0).sum(axis=0) > rank
            if rank <= len(own):
                values[topic] = np.where(more, own[rank - 1], 0)
            if rank >= len(own) > 0:
                values[topic] = own[-1]
        elif len(own):
            values[topic] = own[min(rank, len(own)) - 1]
    order = np.sort(values, axis=0)
    of_words = np.where(order[-1] > 1.1 * order[-2], values.argmax(axis=0), -1)
    sums = np.stack([(x * (of_words == topic)).sum(axis=1) for topic in range(k)], axis=1)
    sums = (sums * scales_of(x, compat)).astype("f4")
    rank = max(1, int((5 if compat else 1 / 3) * n / (2 * k)))
    found = np.zeros((k, x.shape[1]))
    for topic in range(k):
        positive = np.sort(sums[:, topic][sums[:, topic] > 0])[::-1]
        least = positive[rank - 1] if len(positive) >= rank else 0
        chosen = sums[:, topic] > least if compat else (sums[:, topic] >= least) & (sums[:, topic] > 0)
        found[topic] = a[chosen].sum(axis=0)
        if compat or not (of_words == topic).any():
            found[topic] += a[labels == topic].sum(axis=0)
    pairs = np.zeros((k, k), int)
    for row in sums:
        first, second = np.argsort(-row, kind="stable")[:2]
        pairs[first, second] += row[second] > 0
    return [np.flatnonzero(of_words == topic) for topic in range(k)], found / found.sum(axis=1)[:, None], pairs


def matched(found: np.ndarray, expected: np.ndarray) -> np.ndarray:
    """For each expected topic, the sum of differences to the nearest of those found."""
    return np.abs(found[:, None] - expected[None]).sum(axis=2).min(axis=0)


@pytest.mark.parametrize("shared", [0, 30])
def test_planted_topics_are_found_again(shared: int) -> None:
    x, labels, topics = planted(shared=shared)
    model = TopicModel(4, 0).fit(x)
    assert model.components_.shape == (4, 120)
    np.testing.assert_allclose(model.components_.sum(axis=1), 1)
    assert (model.components_ >= 0).all()
    assert adjusted_rand_score(labels, model.labels_) > 0.95
    # Topics are means of documents, which have some of the others.
    assert matched(model.components_, topics).max() < 0.5
    assert (model.topic_sizes_ == np.bincount(model.labels_)).all()
    for topic, words in zip(model.components_, model.top_words(5), strict=True):
        assert words == np.argsort(-topic, kind="stable")[:5].tolist()
    weights = model.transform(x)
    np.testing.assert_allclose(weights.sum(axis=1), 1)
    assert adjusted_rand_score(labels, weights.argmax(axis=1)) > 0.95


@pytest.mark.parametrize("compat", [False, True])
@pytest.mark.parametrize("k", [2, 4, 9])
def test_every_step_is_that_of_the_reference(k: int, compat: bool) -> None:
    x, _, _ = planted(documents=300, seed=k)
    x = sp.vstack([x, sp.csr_matrix((3, x.shape[1]))]).tocsr()
    model = TopicModel(k, n_edge_topics=5, compat=compat).fit(x)
    dense = x.toarray()
    np.testing.assert_array_equal(model.thresholds_, thresholds_of(dense, k, compat))
    assert (model.labels_[-3:] == -1).all()
    catchwords, topics, pairs = topics_of(dense, model.labels_, k, compat)
    for found, expected in zip(model.catchwords_, catchwords, strict=True):
        np.testing.assert_array_equal(found, expected)
    np.testing.assert_allclose(model.components_, topics, atol=1e-12)
    order = np.argsort(-pairs.ravel(), kind="stable")[:5]
    order = order[pairs.ravel()[order] > 0]
    np.testing.assert_array_equal(model.edge_topics_, np.column_stack(np.divmod(order, k)))
    np.testing.assert_array_equal(model.edge_counts_, pairs.ravel()[order])
    first, second = model.edge_topics_.T
    np.testing.assert_allclose(model.edge_components(), 0.7 * topics[first] + 0.3 * topics[second], atol=1e-12)


def test_clusters_are_those_of_what_thresholds_leave() -> None:
    x, _, _ = planted()
    model = TopicModel(4, max_iter=100).fit(x)
    dense = x.toarray()
    left = left_of(dense, model.thresholds_)
    np.testing.assert_allclose(model.singular_values_, np.linalg.svd(left, compute_uv=False)[:4], rtol=1e-6)
    means = np.stack([left[model.labels_ == topic].mean(axis=0) for topic in range(4)])
    np.testing.assert_array_equal(((left[:, None] - means) ** 2).sum(axis=2).argmin(axis=1), model.labels_)


@pytest.fixture(params=["rows along vectors", "rows as they are"])
def ways(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """k-means along singular vectors, of rows that are made and of rows that are not."""
    monkeypatch.setattr("outcore.topics.ENTRY_NUMBERS", 1e9 if "along" in request.param else 0)


@pytest.mark.parametrize("compat", [False, True])
@pytest.mark.parametrize("rounds", [1, 2, 4])
def test_clusters_are_those_of_as_many_rounds(rounds: int, compat: bool, ways: None, monkeypatch: pytest.MonkeyPatch) -> None:
    def nearest(rows: np.ndarray, centers: np.ndarray) -> np.ndarray:
        found: np.ndarray = ((rows[:, None] - centers) ** 2).sum(axis=2).argmin(axis=1)
        return found

    def means(rows: np.ndarray, labels: np.ndarray) -> np.ndarray:
        return np.stack([rows[labels == topic].mean(axis=0) for topic in range(5)])

    monkeypatch.setattr("outcore.topics._seeds", lambda rows, count, random_state: rows[np.arange(count, dtype="u8")])
    x, _, _ = planted(own=0.4)
    model = TopicModel(5, max_iter=rounds, tol=1e-9, compat=compat).fit(x)
    left = left_of(x.toarray(), model.thresholds_, compat)
    basis = np.linalg.svd(left, full_matrices=False)[2][:5]
    rows = left @ basis.T
    centers = rows[:5]
    for _ in range(rounds):
        centers = means(rows, nearest(rows, centers))
    labels = nearest(left, centers @ basis)
    for _ in range(rounds - compat):
        labels = nearest(left, means(left, labels))
    np.testing.assert_array_equal(model.labels_, labels)
    assert model.n_iter_ <= rounds - compat


def test_weights_are_those_of_the_reference() -> None:
    x, _, _ = planted(documents=200)
    model = TopicModel(4).fit(x)
    new = sp.vstack([planted(documents=40, seed=5)[0], sp.csr_matrix((1, x.shape[1]))]).tocsr()
    expected = np.full((41, 4), 0.25)
    for row, document in zip(expected[:-1], new.toarray(), strict=False):
        has = (document > 0) & (model.components_.sum(axis=0) > 0)
        part, topics = document[has] / document.sum(), model.components_[:, has]
        for step in range(15):
            slope = topics @ (part / (row @ topics))
            row *= np.exp(np.sqrt(2 * np.log(4) / (step + 1)) / 10 * slope)
            row /= row.sum()
    np.testing.assert_allclose(model.transform(new), expected, atol=1e-10)
    np.testing.assert_allclose(model.transform(new.astype("f4")), expected, atol=1e-6)


@pytest.mark.parametrize("n_words", [2, 7])
def test_coherence_is_counted(n_words: int, tmp_path: Path) -> None:
    x, _, _ = planted(documents=150)
    model = TopicModel(3).fit(x)
    has, words = x.toarray() > 0, np.argsort(-model.components_, axis=1, kind="stable")[:, :n_words]
    npmi, umass = np.zeros(3), np.zeros(3)
    for topic in range(3):
        found = []
        for at, other in zip(*np.tril_indices(n_words, -1), strict=True):
            a, b = has[:, words[topic, at]], has[:, words[topic, other]]
            joint = (a & b).mean()
            pair = -1.0 if joint == 0 else 1.0 if joint == 1 else np.log(joint / (a.mean() * b.mean())) / -np.log(joint)
            found.append((pair, np.log(((a & b).sum() + 1) / b.sum())))
        npmi[topic], umass[topic] = np.mean(found, axis=0)
    for corpus in (x, oc.from_scipy(tmp_path / "x", x), x.tocsc()):
        np.testing.assert_allclose(model.coherence(corpus, n_words=n_words), npmi)
        np.testing.assert_allclose(model.coherence(corpus, "umass", n_words), umass)
    assert model.score(x) == pytest.approx(model.coherence(x).mean())
    words = np.argsort(-model.components_, axis=1, kind="stable")[:, :25]
    assert model.diversity() == len(np.unique(words)) / words.size


def test_all_forms_of_a_corpus_have_the_same_topics(tmp_path: Path) -> None:
    x, _, _ = planted()
    expected = TopicModel(4).fit(x)
    forms: dict[str, Any] = {
        "columns": x.tocsc(),
        "dense": x.toarray(),
        "stored": oc.from_scipy(tmp_path / "csr", x),
        "stored columns": oc.from_scipy(tmp_path / "csc", x.tocsc()),
        "a view": oc.from_scipy(tmp_path / "turned", x.T.tocsr()).T,
        "counts": x.astype("i4"),
    }
    for name, form in forms.items():
        model = TopicModel(4).fit(form)
        np.testing.assert_array_equal(model.labels_, expected.labels_, err_msg=name)
        np.testing.assert_allclose(model.components_, expected.components_, atol=1e-12, err_msg=name)
        found = model.transform(form)
        assert isinstance(found, oc.Array if isinstance(form, oc.Sparse) else np.ndarray), name
        np.testing.assert_allclose(np.asarray(found), expected.transform(x), atol=1e-10, err_msg=name)
    arrays = oc.from_scipy(tmp_path / "arrays", x.astype("f4"))
    tiles = arrays.tiled()
    assert tiles is not None
    found = [TopicModel(4).fit(form) for form in (arrays, tiles)]
    np.testing.assert_array_equal(found[0].labels_, found[1].labels_)
    np.testing.assert_array_equal(found[0].thresholds_, found[1].thresholds_)
    np.testing.assert_allclose(found[0].components_, found[1].components_, atol=1e-7)
    np.testing.assert_allclose(found[0].transform(arrays).numpy(), found[1].transform(tiles).numpy(), atol=1e-6)


def test_a_bag_of_words_is_a_corpus(tmp_path: Path) -> None:
    x, _, _ = planted(documents=200)
    entries = sp.coo_matrix(x)
    numbers = np.column_stack([entries.row + 1, entries.col + 1, entries.data]).astype(int)
    np.savetxt(tmp_path / "docword.txt", numbers, "%d", header=f"200\n120\n{entries.nnz}", comments="")
    (tmp_path / "vocab.txt").write_text("\n".join(f"word{i}" for i in range(120)) + "\n")
    corpus = oc.import_bow(tmp_path / "corpus", tmp_path / "docword.txt", vocabulary=tmp_path / "vocab.txt")
    model, expected = TopicModel(4).fit(corpus), TopicModel(4).fit(x.astype("f4"))
    np.testing.assert_allclose(model.components_, expected.components_, atol=1e-6)
    assert model.top_words(3)[0] == [f"word{word}" for word in expected.top_words(3)[0]]


def test_what_is_held_between_passes_is_within_the_budget(ways: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Arrays of documents, words and topics beside each run, and the memory of the run, are the budget at most."""
    documents, words, topics = 150_000, 8000, 16
    random = np.random.default_rng(0)
    own = random.integers(0, topics, (documents, 1)) * (words // topics)
    places = own + random.integers(0, words // topics, (documents, 6))
    offsets = np.arange(0, places.size + 1, 6)
    x = sp.csr_matrix((np.ones(places.size, np.float32), places.ravel(), offsets), shape=(documents, words))
    session = oc.Session("16MiB", tmp_path)
    stored = session.from_scipy(tmp_path / "x", x)
    held = 16 * documents + 64 * words
    run, beside = oc.Session._run, []

    def watched(self: oc.Session, job: Any, *rest: Any) -> Any:
        beside.append(tracemalloc.get_traced_memory()[0] - before)
        return run(self, job, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(oc.Session, "_run", watched)
        tracemalloc.start()
        before = tracemalloc.get_traced_memory()[0]
        try:
            model = TopicModel(topics, max_iter=3, tol=1e-2).fit(stored)
        finally:
            tracemalloc.stop()
    assert len(beside) > 8 and max(beside) <= held + (1 << 20)
    assert model.trace_.actual["peak_bytes"] <= session.memory - held
    clusters = [len(np.unique(model.labels_[own[:, 0] == first])) for first in np.unique(own)]
    assert np.mean(clusters) < topics / 2
    with pytest.raises(errors.OverBudgetError, match="held between runs") as caught:
        TopicModel(topics, memory="3MiB").fit(stored)
    assert caught.value.needed == held + (1 << 20)
    # Beside others that have some of the budget, and in threads at once.
    session = oc.Session("24MiB", tmp_path)
    stored = session.open(tmp_path / "x")
    model = TopicModel(topics, max_iter=3, tol=1e-2).fit(stored)
    np.save(tmp_path / "rows.npy", np.ones((1000, 8), np.float32))
    tables = TableSet([tmp_path / "rows.npy"], cache="1MiB", reading="1MiB", session=session)
    with ThreadPoolExecutor(3) as pool:
        found = list(pool.map(lambda _: np.asarray(model.transform(stored)), range(3)))
    assert all((one == found[0]).all() for one in found) and len(tables) == 1
    explained = model.explain(stored)
    assert (TopicModel(topics, max_iter=3, tol=1e-2).fit(stored).labels_ == model.labels_).all() and explained is not None


def test_rows_along_vectors_are_made_where_these_have_no_room(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    x = sp.random(2000, 8000, 0.002, "csr", random_state=0)
    x.data[:] = 1

    def least() -> int:
        for mib in range(8, 64):
            with contextlib.suppress(errors.OverBudgetError):
                TopicModel(64, max_iter=1, tol=1e-2, memory=f"{mib}MiB").fit(x)
                return mib
        raise AssertionError("it has no room")

    with monkeypatch.context() as patch:
        patch.setattr("outcore.topics.ENTRY_NUMBERS", 1e9)
        made = least()
    monkeypatch.setattr("outcore.topics.ENTRY_NUMBERS", 0)
    assert least() == made > 8


def test_a_vocabulary_larger_than_memory_is_refused_by_its_name(tmp_path: Path) -> None:
    x, _, _ = planted(documents=200, words=900)
    stored = oc.from_scipy(tmp_path / "x", x)
    words = tmp_path / "x" / "vocabulary.txt"
    # More than the budget, and strings that would be.
    for length in (10_000, 1200):
        words.write_text("\n".join(f"{at:0{length}d}" for at in range(900)))
        for use in (TopicModel(3, memory="8MiB").fit, lambda x: oc.Session("8MiB", tmp_path).open(tmp_path / "x").vocabulary()):
            with pytest.raises(errors.OverBudgetError, match=r"vocabulary\.txt") as caught:
                use(stored)
            assert caught.value.needed > 8 << 20
    words.write_text("\n".join(map(str, range(900))))
    assert TopicModel(3, memory="8MiB").fit(stored).vocabulary_ == [str(at) for at in range(900)]


def test_the_bits_do_not_depend_on_threads_nor_the_topics_on_the_budget(ways: None, tmp_path: Path) -> None:
    x, _, _ = planted(documents=3000, words=900)
    found = []
    for threads, memory in ((1, "64MiB"), (3, "64MiB"), (2, "6MiB")):
        with oc.Session(memory, tmp_path / "scratch", threads, allow_tmpfs_scratch=True) as session:
            model = TopicModel(4, n_edge_topics=3).fit(session.from_scipy(tmp_path / f"{threads}", x))
        found.append(model)
    one, other, less = found
    for name in ("components_", "labels_", "thresholds_", "edge_topics_", "singular_values_"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name))
    np.testing.assert_array_equal(one.labels_, less.labels_)
    np.testing.assert_allclose(one.components_, less.components_, atol=1e-12)


def test_long_lines_are_whole(tmp_path: Path) -> None:
    """Words of all documents and documents of all words are longer than a piece of a small budget."""
    random = np.random.default_rng(1)
    x = sp.csr_matrix(random.poisson(0.02, (30_000, 60)).astype("f4") + (np.arange(60) < 2))
    x = sp.vstack([x, sp.csr_matrix(np.ones((2, 60), "f4"))]).tocsr()
    wide = sp.hstack([x[:1000], sp.csr_matrix((random.random((1000, 6000)) < 0.001).astype("f4"))]).tolil()
    wide[5] = 1
    for matrix in (x, wide.tocsr()):
        with oc.Session("24MiB", tmp_path / "scratch", 2, allow_tmpfs_scratch=True) as session:
            stored = session.from_scipy(tmp_path / "x", matrix)
            model = TopicModel(2).fit(stored)
            weights = model.transform(stored).numpy()
        dense = matrix.toarray().astype("f8")
        np.testing.assert_array_equal(model.thresholds_, thresholds_of(dense, 2))
        catchwords, topics, _ = topics_of(dense, model.labels_, 2)
        for found, expected in zip(model.catchwords_, catchwords, strict=True):
            np.testing.assert_array_equal(found, expected)
        np.testing.assert_allclose(model.components_, topics, atol=1e-7)
        np.testing.assert_allclose(weights.sum(axis=1), 1, atol=1e-5)
        np.testing.assert_allclose(model.transform(dense[:9]), weights[:9], atol=1e-5)


def test_a_sample_is_enough_for_clusters() -> None:
    x, labels, topics = planted(documents=2000)
    model = TopicModel(4, 0, sample_rate=0.3).fit(x)
    assert (model.labels_ >= 0).sum() == 600
    assert adjusted_rand_score(labels[model.labels_ >= 0], model.labels_[model.labels_ >= 0]) > 0.95
    assert matched(model.components_, topics).max() < 0.5
    assert not np.array_equal(model.labels_, TopicModel(4, 1, sample_rate=0.3).fit(x).labels_)


@pytest.mark.parametrize("rate", [0.05, 0.3])
def test_a_sample_is_drawn_with_the_odds_of_what_thresholds_leave(rate: float) -> None:
    x, _, _ = planted(documents=1000)
    dense = x.toarray()
    for seed in range(3):
        model = TopicModel(4, seed, sample_rate=rate, eps1=1 / 20).fit(x)
        assert model.thresholds_.max() > 1
        # Thresholds are whole numbers.
        odds = np.rint(np.square(left_of(dense, model.thresholds_)).sum(axis=1))
        # Those whose events come first, at these rates.
        times = -np.log(1 - np.random.RandomState(seed).random_sample(len(dense))) / odds
        first = np.argsort(times)[: round(rate * len(dense))]
        np.testing.assert_array_equal(np.flatnonzero(model.labels_ >= 0), np.sort(first))


def test_documents_with_more_words_above_thresholds_are_sampled_more_often() -> None:
    random, has_many = np.random.default_rng(3), np.arange(800) % 2 == 0
    x = np.zeros((800, 120))
    for row, words in enumerate(np.where(has_many, 15, 3)):
        # Of one length, so that values count as they are.
        x[row, 30 * (row // 2 % 4) + random.permutation(30)[:words]] = 30 / words
    drawn = np.zeros(800)
    for seed in range(8):
        model = TopicModel(4, seed, sample_rate=0.1, max_iter=1).fit(sp.csr_matrix(x))
        drawn += model.labels_ >= 0
    # No word is in as many documents as a higher threshold takes: odds are numbers of words, five to one.
    assert (model.thresholds_ == 1).all() and drawn.sum() == 8 * 80
    assert 3 < drawn[has_many].sum() / drawn[~has_many].sum() < 7


def test_words_come_from_the_corpus(tmp_path: Path) -> None:
    texts = ["sun moon star sky", "star sun sky moon sun", "bread milk egg butter", "egg butter milk milk bread"] * 10
    path = tmp_path / "texts.txt"
    path.write_text("\n".join(texts) + "\n")
    stored = oc.import_text(tmp_path / "stored", path)
    model = TopicModel(2).fit(stored)
    groups = [{"sun", "moon", "star", "sky"}, {"bread", "milk", "egg", "butter"}]
    assert sorted(map(sorted, map(set, model.top_words(4)))) == sorted(map(sorted, groups))
    vectorizer = CountVectorizer()
    for x in (vectorizer.fit_transform(texts), TfidfTransformer().fit_transform(vectorizer.transform(texts))):
        model = TopicModel(2).fit(x)
        found = model.top_words(4, vectorizer.get_feature_names_out())
        assert sorted(map(sorted, map(set, found))) == sorted(map(sorted, groups))
        assert model.top_words(1)[0] == [int(model.components_[0].argmax())]
    with pytest.raises(errors.ShapeError, match="3 words, but the corpus 8"):
        model.top_words(4, ["a", "b", "c"])
    frame = pd.DataFrame(vectorizer.transform(texts).toarray(), columns=vectorizer.get_feature_names_out())
    assert sorted(map(sorted, map(set, TopicModel(2).fit(frame).top_words(4)))) == sorted(map(sorted, groups))


@pytest.mark.parametrize("place", ["memory", "stored"])
def test_a_corpus_without_topics_is_refused(place: str, tmp_path: Path) -> None:
    def fit(x: Any, k: int = 2, **options: Any) -> TopicModel:
        x = sp.csr_matrix(np.asarray(x, "f8"))
        return TopicModel(k, **options).fit(oc.from_scipy(tmp_path / "x", x) if place == "stored" else x)

    for words in (3, 0):
        with pytest.raises(ValueError, match=r"has no words|0 feature\(s\)"):
            fit(np.zeros((5, words)))
    with pytest.raises(errors.ArgumentError, match=r"1 document\(s\) with words"):
        fit([[1, 2, 0]])
    with pytest.raises(errors.ArgumentError, match=r"2 document\(s\) with words .*n_components=3"):
        fit([[1, 2, 0], [0, 0, 0], [0, 1, 1]], 3)
    with pytest.raises(errors.ArgumentError, match=r"Negative values.*column 1"):
        fit([[1, -2], [1, 1]])
    for bad in (np.nan, np.inf):
        with pytest.raises(ValueError, match=r"not finite|NaN|infinity"):
            fit([[1, bad], [1, 1]])
    one = fit([[1, 2, 0]], 1)
    np.testing.assert_allclose(one.components_, [[1 / 3, 2 / 3, 0]])
    assert one.top_words() == [[1, 0]]
    empty = fit([[1, 2, 0], [0, 0, 0], [0, 0, 3]], 2)
    assert empty.labels_[1] == -1
    np.testing.assert_allclose(np.asarray(empty.transform(np.zeros((1, 3)))), 0.5)
    single = fit([[1], [2], [4]], 1)
    assert np.isnan(single.score(np.ones((2, 1))))


def test_parameters_are_looked_at_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    x, _, _ = planted(documents=50)
    model = TopicModel(2).fit(x)

    def run(*_: object) -> None:
        raise AssertionError("something was read")

    stored = oc.from_scipy(tmp_path / "x", x)
    wide = oc.from_scipy(tmp_path / "wide", sp.csr_matrix(([1.0], [4999], [0, *[1] * 50]), shape=(50, 5000)))
    dense = oc.from_numpy(tmp_path / "x.npy", x.toarray())
    with monkeypatch.context() as patch:
        patch.setattr(oc.Session, "_run", run)
        wrong: list[dict[str, Any]] = [
            {"n_components": 0},
            {"n_components": 2.0},
            {"max_iter": 0},
            {"rho": 0.5},
            {"eps3": 0},
            {"sample_rate": 0},
            {"sample_rate": 1.5},
            {"tol": -1},
            {"inference_iter": -1},
            {"n_edge_topics": True},
        ]
        for options in wrong:
            with pytest.raises(errors.ArgumentError):
                TopicModel(**options).fit(stored)
        with pytest.raises(errors.OverBudgetError) as caught:
            TopicModel(40, memory="1MiB").fit(wide)
        assert caught.value.needed > 1 << 20
        with pytest.raises(errors.DTypeError, match="dense"):
            TopicModel(2).fit(dense)
        for measure, words in (("pmi", 10), ("npmi", 65), ("npmi", 0)):
            with pytest.raises(errors.ArgumentError):
                model.coherence(x, measure, words)  # type: ignore[arg-type]
    with pytest.raises(errors.ArgumentError, match="negative"):
        model.transform(-x)
    plan = model.explain(stored)
    for name in (
        "statistics",
        "row norms",
        "csrcsc",
        "kept words",
        "singular triplets",
        "k-means round of sparse rows",
        "topics",
    ):
        assert name in plan.name
    assert plan.bytes_read > 10 * stored.nbytes
    with pytest.raises(errors.ArgumentError, match="primary"):
        model.edge_components(primary=7)


PROGRAM = """
import sys, numpy as np, outcore as oc
from outcore.topics import TopicModel
oc.configure("32MiB", sys.argv[1], 2, allow_tmpfs_scratch=True)
model = TopicModel(12, tol=float(sys.argv[5]), checkpoint=sys.argv[3]).fit(oc.open(sys.argv[2]))
np.savez(sys.argv[4], topics=model.components_, labels=model.labels_)
"""


@pytest.mark.parametrize(("dtype", "tol"), [("f8", "1e-9"), ("f4", "1e-4")])
def test_a_killed_fit_goes_on_with_the_same_bits(dtype: str, tol: str, tmp_path: Path) -> None:
    random = np.random.default_rng(2)
    oc.from_scipy(tmp_path / "x", sp.csr_matrix(random.poisson(0.3, (2000, 300)).astype(dtype)))
    checkpoint = tmp_path / "checkpoint"

    def start(name: str) -> subprocess.Popen[bytes]:
        arguments = [str(tmp_path / part) for part in ("scratch", "x", "checkpoint", name)]
        return subprocess.Popen([sys.executable, "-c", PROGRAM, *arguments, tol])

    assert start("whole.npz").wait(120) == 0
    running = start("parts.npz")
    while running.poll() is None and not checkpoint.exists():
        time.sleep(0.001)
    running.send_signal(signal.SIGKILL)
    assert running.wait(60) == -signal.SIGKILL
    assert checkpoint.exists()
    assert start("parts.npz").wait(120) == 0
    assert not checkpoint.exists()
    whole, parts = np.load(tmp_path / "whole.npz"), np.load(tmp_path / "parts.npz")
    for name in ("topics", "labels"):
        np.testing.assert_array_equal(whole[name], parts[name])


def test_a_fit_that_ends_after_its_search_goes_on_from_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x, checkpoint = sp.csr_matrix(np.random.default_rng(2).poisson(0.3, (800, 200)).astype("f8")), tmp_path / "checkpoint"
    expected = TopicModel(8).fit(x)
    with monkeypatch.context() as patch:
        patch.setattr(TopicModel, "_keep", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            TopicModel(8, checkpoint=checkpoint).fit(x)
    assert checkpoint.exists()
    model = TopicModel(8, checkpoint=checkpoint).fit(x)
    assert not checkpoint.exists()
    np.testing.assert_array_equal(model.components_, expected.components_)
    np.testing.assert_array_equal(model.labels_, expected.labels_)


def test_the_command_keeps_its_checkpoint_until_results_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x, checkpoint = sp.csr_matrix(np.random.default_rng(2).poisson(0.3, (800, 200)).astype("f8")), tmp_path / "checkpoint"
    oc.from_scipy(tmp_path / "x", x)
    command = ["topics", str(tmp_path / "x"), "-k", "8", "--checkpoint", str(checkpoint), "-o", str(tmp_path / "topics.npy")]
    with monkeypatch.context() as patch:
        patch.setattr(oc, "from_numpy", lambda *_: (_ for _ in ()).throw(OSError("no space")))
        assert "no space" in str(CliRunner().invoke(cli, command).exception)
    assert checkpoint.exists()
    assert CliRunner().invoke(cli, command).exit_code == 0
    assert not checkpoint.exists()


def test_the_command(tmp_path: Path) -> None:
    x, _, _ = planted(documents=200)
    oc.from_scipy(tmp_path / "x", x)
    (tmp_path / "words.txt").write_text("\n".join(f"word{i}" for i in range(120)) + "\n")
    output, weights = tmp_path / "topics.npy", tmp_path / "weights.npy"
    session = ["--memory", "64MiB", "--scratch", str(tmp_path)]
    command = ["topics", str(tmp_path / "x"), "--topics", "4", "--vocabulary", str(tmp_path / "words.txt"), *session]
    found = CliRunner().invoke(cli, [*command, "-o", str(output), "--weights", str(weights), "--edge-topics", "2"])
    assert found.exit_code == 0, found.output
    model = TopicModel(4).fit(x)
    np.testing.assert_allclose(np.load(output), model.components_, atol=1e-12)
    np.testing.assert_allclose(np.load(weights), model.transform(x), atol=1e-10)
    assert " ".join(f"word{word}" for word in model.top_words()[0]) in found.output
    told = json.loads(CliRunner().invoke(cli, [*command, "--json"]).output)
    assert [topic["documents"] for topic in told["topics"]] == model.topic_sizes_.tolist()
    nowhere = [*command, "-o", str(tmp_path / "nowhere" / "topics.npy"), "--checkpoint", str(tmp_path / "kept")]
    assert "no such folder" in str(CliRunner().invoke(cli, nowhere).exception)
    plan = CliRunner().invoke(cli, [*command, "--explain"])
    assert "plan        singular triplets" in plan.output, plan.output
    options = ["--compat", "--sample-rate", "0.8", "--checkpoint", str(tmp_path / "kept"), "--json"]
    told = json.loads(CliRunner().invoke(cli, [*command, *options]).output)
    sampled = TopicModel(4, compat=True, sample_rate=0.8).fit(x)
    assert [topic["documents"] for topic in told["topics"]] == sampled.topic_sizes_.tolist()
    (tmp_path / "words.txt").write_text("one\n")
    found = CliRunner().invoke(cli, command)
    assert isinstance(found.exception, errors.ArgumentError)
