"""Topics: outcore's, scikit-learn's, gensim's, tomotopy's and ISLE's, measured alike on documents that none of them has seen.

What a rival reads is made before the clock starts, in the form that it wants; the clock stops when it has its topics.
"""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

from legs import sparse
from legs.measure import Array, sampled

Spec = dict[str, Any]
Result = dict[str, Any]

PASSES = 5
"""Over all documents, of variational inference."""
BATCH = 2048
SWEEPS = 500
"""Of Gibbs sampling."""

COHERENCE_WORDS, DIVERSITY_WORDS = 10, 25


def nothing(spec: Spec) -> Result:
    from legs.ours import nothing

    for module in ("outcore.text", "outcore.topics"):
        importlib.import_module(module)
    return nothing(spec)


def ours(spec: Spec) -> Result:
    """Of counts weighed by tf-idf, as scikit-learn's NMF. `in_memory`: they are a SciPy matrix; loading is not counted."""
    import outcore as oc
    from outcore.text import TfidfTransformer
    from outcore.topics import TopicModel

    from legs.ours import configure, trace

    configure(spec)
    loaded = sparse.load(learned(spec)) if spec.get("in_memory") else None

    def call() -> Array:
        x = oc.open(learned(spec)) if loaded is None else loaded
        words = TfidfTransformer(sublinear_tf=True).fit_transform(x) if spec.get("weighed", True) else x
        return TopicModel(spec["k"], 0).fit(words).components_

    return {**timed(spec, call), "trace": trace()}


def sklearn_lda(spec: Spec) -> Result:
    from sklearn.decomposition import LatentDirichletAllocation

    x = sparse.load(learned(spec))
    options: dict[str, Any] = {"learning_method": "online", "batch_size": BATCH, "max_iter": PASSES, "n_jobs": -1}
    return timed(spec, lambda: LatentDirichletAllocation(spec["k"], random_state=0, **options).fit(x).components_)


def sklearn_nmf(spec: Spec) -> Result:
    """Of counts weighed by tf-idf."""
    from sklearn.decomposition import NMF
    from sklearn.feature_extraction.text import TfidfTransformer

    x = sparse.load(learned(spec))

    def call() -> Array:
        weights = TfidfTransformer(sublinear_tf=True).fit_transform(x)
        return NMF(spec["k"], init="nndsvda", random_state=0).fit(weights).components_

    return timed(spec, call)


def gensim_lda(spec: Spec) -> Result:
    from gensim.matutils import Sparse2Corpus
    from gensim.models import LdaMulticore

    corpus = list(Sparse2Corpus(sparse.load(learned(spec)).T.tocsc()))
    options: dict[str, Any] = {"passes": PASSES, "chunksize": BATCH, "workers": cores(), "eval_every": None, "random_state": 0}
    return timed(spec, lambda: LdaMulticore(corpus, spec["k"], **options).get_topics())


def tomotopy_lda(spec: Spec) -> Result:
    from tomotopy import LDAModel

    x = sparse.load(learned(spec))
    model = LDAModel(k=spec["k"], seed=0)
    for start, stop in zip(x.indptr[:-1], x.indptr[1:], strict=True):
        words = np.repeat(x.indices[start:stop], x.data[start:stop].astype(int))
        if len(words):
            model.add_doc([str(word) for word in words])

    def call() -> Array:
        model.train(SWEEPS, workers=cores())
        found = np.zeros((spec["k"], x.shape[1]))
        found[:, [int(word) for word in model.used_vocabs]] = [model.get_topic_word_dist(topic) for topic in range(spec["k"])]
        return found

    return timed(spec, call)


def isle(spec: Spec) -> Result:
    """The program of ISLE in a process of its own. What counts is what it tells of its steps, without reading entries."""
    x = sparse.load(learned(spec)).tocoo()
    Path(spec["scratch"]).mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=spec["scratch"]) as folder:
        entries, words = Path(folder, "entries"), Path(folder, "words")
        np.savetxt(entries, np.column_stack([x.row + 1, x.col + 1, x.data]).astype(int), fmt="%d")
        words.write_text("\n".join(f"word{number}" for number in range(1, x.shape[1] + 1)) + "\n")
        sizes = (x.shape[1], x.shape[0], x.nnz, spec["k"])
        command = [os.path.expandvars(spec["program"]), entries, words, folder, *sizes, *(0, 0, 0), *(0, 0)]
        told = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
        found = list(Path(folder).glob("log*/topics.f32"))
        if told.returncode != 0 or len(found) != 1:
            raise SystemExit(f"ISLE found no topics: {(told.stderr or told.stdout).strip()[-500:]}")
        topics = np.fromfile(found[0], "f4").reshape(spec["k"], -1)
    return {**checked(spec, topics), "seconds": [seconds_told(told.stdout)]}


def seconds_told(output: str) -> float:
    """Of the steps from thresholds to topics, by the clock on the wall."""
    steps = re.findall(r"Time for (.*?)\.*[\d.e+-]+s\(user\)  ([\d.e+-]+)s\(sys\)", output)
    names = [name for name, _ in steps]
    first, last = names.index("Computing thresholds"), names.index("Constructing topic vectors")
    return sum(float(seconds) for _, seconds in steps[first : last + 1])


def cores() -> int:
    return len(os.sched_getaffinity(0))


def learned(spec: Spec) -> str:
    return f"{spec['a']}/learned"


def timed(spec: Spec, call: Callable[[], Array]) -> Result:
    found: list[Array] = []

    def kept() -> None:
        found[:] = [np.asarray(call())]

    told = sampled(kept)
    return {**told, **checked(spec, found[0])}


def checked(spec: Spec, found: Array) -> Result:
    held_out = f"{spec['a']}/held-out"
    if found.shape != (spec["k"], sparse.described(held_out)[1]) or not (found >= 0).all():
        raise SystemExit("these are no topics")
    return {"npmi": npmi(sparse.parts(held_out), found), "diversity": diversity(found)}


def npmi(parts: Iterable[Any], topics: Array) -> float:
    """The mean over topics, and over pairs of the likeliest words of each, of log(p(a, b) / p(a) p(b)) / -log p(a, b); -1 for
    words that never meet, 1 for those that all documents have.

    Documents come some at a time: a leg with a limit has no room for all of them.
    """
    documents = 0
    words = likeliest(topics, COHERENCE_WORDS)
    used, places = np.unique(words, return_inverse=True)
    places, together = places.reshape(words.shape), np.zeros((len(used), len(used)))
    for part in parts:
        has = (part[:, used] > 0).astype(np.float64)
        together += (has.T @ has).toarray()
        documents += part.shape[0]
    together /= documents
    first, second = np.tril_indices(COHERENCE_WORDS, -1)
    found = []
    for own in places:
        single, joint = together[own, own], together[own[first], own[second]]
        with np.errstate(divide="ignore", invalid="ignore"):
            pairs = np.log(joint / (single[first] * single[second])) / -np.log(joint)
        found.append(np.where(joint == 0, -1, np.where(joint == 1, 1, pairs)).mean())
    return float(np.mean(found))


def diversity(topics: Array) -> float:
    """The part of the likeliest words of all topics that differ."""
    words = likeliest(topics, DIVERSITY_WORDS)
    return len(np.unique(words)) / words.size


def likeliest(topics: Array, count: int) -> Array:
    return np.argsort(-topics, axis=1, kind="stable")[:, :count]
