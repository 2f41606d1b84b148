"""Topic models of corpora bigger than memory, as scikit-learn estimators."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from numbers import Integral, Real
from typing import Any, Literal, NoReturn

import numpy as np
import numpy.typing as npt
import scipy.sparse
from sklearn.base import ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.cluster import kmeans_plusplus
from sklearn.utils.random import sample_without_replacement
from sklearn.utils.validation import check_is_fitted

from . import _native
from ._array import Array, Floats, in_scratch, native_output, result_of
from ._dtypes import computed
from ._estimator import Estimator, Run, check_finite, seed_of
from ._session import Planned, Session, is_planning
from ._settings import PathLike
from ._sparse import Sparse, canonical, is_scipy, native_sparse, refuse_dense
from ._spectra import convergence, forget_checkpoint, found_vectors, native_options
from .cluster import SAMPLE_BYTES
from .errors import ArgumentError, OverBudgetError, ShapeError

__all__ = ["TopicModel"]


def __dir__() -> list[str]:
    return sorted(__all__)


NONE = np.uint32((1 << 32) - 1)
"""The topic of a word, or the cluster of a document, that has none."""

DIGITS, DIGIT_BITS = 3, 11
"""Of the sums of catchwords that are found digit by digit: those of twice the bits of a float32."""

COMPAT_EPS3 = 5.0

HELD_DOCUMENT, HELD_WORD = 16, 64
"""Bytes of the budget, beside what each pass takes: of a document its scale, and its entries or its cluster twice; of a word
what is known of it."""

PLANNED_DOCUMENT, SAMPLED_DOCUMENT = 24, 32
"""Bytes while passes are planned, and while a sample is drawn."""

COUNTED_LABELS = 1 << 20

COPIED_BYTES = 4 << 20
"""Of singular vectors, at a time."""

ENTRY_NUMBERS = 10
"""Numbers of a dense row that are multiplied with centres in the time that an entry of a sparse one takes, of 100 centres."""

LIST_WORDS = 64
"""Words of a topic whose coherence is measured, at most."""

Labels = npt.NDArray[np.uint32]
Vector = npt.NDArray[np.float64]
Matrix = npt.NDArray[np.float64]


class TopicModel(ClassNamePrefixFeaturesOutMixin, TransformerMixin, Estimator):  # type: ignore[misc]
    """Topics of a corpus by singular vectors (TSVD, as ISLE has it), of a corpus that may be larger than memory.

    Rows of X are documents, columns words. Takes an `outcore.Sparse`, as the importers make it, or what scikit-learn's
    LatentDirichletAllocation takes, such as the counts of a CountVectorizer. A few passes over X, a copy of it by words in
    scratch, and some tens of passes over those entries that words' thresholds leave.

    Parameters
    ----------
    n_components : int
        Topics.
    random_state : int, RandomState or None
        Seed of the singular vectors, of the first centres and of the sample. None stands for 0: the same data and budget give the
        same bits, whatever the number of threads.
    max_iter : int
        Rounds of k-means at most, along the singular vectors and again along all words.
    tol : float
        Residuals of singular triplets, relative to the largest singular value.
    sample_rate : float or None
        Singular vectors and clusters of this part of the documents, chosen with the odds of the thresholds of their words;
        default all.
    n_edge_topics : int
        Find this many pairs of topics at most that documents have together.
    w0, eps1, eps2, rho : float
        Of the paper: how many documents a topic dominates, n w0 / k; how many of these may have a value that equals a threshold;
        which of them stands for a word in a cluster; by how much a catchword is more frequent than elsewhere.
    eps3 : float, optional
        A topic is the mean of n w0 eps3 / 2k documents; default eps2, and 5 with `compat`. The fewer, the purer.
    inference_iter : int
        Steps of `transform`.
    compat : bool
        Do what the code of ISLE does where it is not what the paper says: see `docs/topics.md`.
    checkpoint : path, optional
        A file that the search for singular vectors replaces after every restart: the same `fit` in another process goes on from
        there, with the same bits. It is removed when the topics are found.
    memory : int or str, optional
        The part of the session's budget that each call may have, such as "2GiB"; default all of it.
    progress : bool, optional
        Show progress bars; default on a terminal and in a notebook, where it takes more than a second.

    Attributes
    ----------
    components_ : ndarray of shape (n_components, n_features_in_)
        The probability of each word in each topic.
    labels_ : ndarray of shape (n_samples,), int32
        The cluster of each document, from which its topic was made; -1 for one without words above thresholds, or out of the
        sample.
    topic_sizes_ : ndarray of shape (n_components,), int64
        Documents of each cluster.
    catchwords_ : list of ndarray
        Words, by number, that are frequent in one cluster alone. A topic without any is the mean of its cluster.
    thresholds_ : ndarray of shape (n_features_in_,), float64
        Of each word, for values that documents of average length would have.
    edge_topics_, edge_counts_ : ndarray of shape (m, 2) and (m,)
        Pairs of topics, the one that documents have most of first, and how many documents; most documents first.
    singular_values_ : ndarray
        Of what thresholds leave, descending.
    n_iter_ : int
        Rounds of k-means along all words.
    vocabulary_ : list of str or None
        The word of each column, where X has them.
    n_features_in_ : int
    trace_ : Trace

    Notes
    -----
    Bansal, Bhattacharyya and Kannan, "A provable SVD-based algorithm for learning topics in dominant admixture corpus" (NIPS
    2014). Beside what `svds` and `KMeans` take, holds 16 bytes a document and 64 a word, in passes up to 16 more a document (24
    while they are planned, 32 while a sample is drawn) and 16 for each document of the most frequent word; for each word of each
    topic up to 24, or 8 in each of one to eight lanes, as many as a quarter of the budget has room for: all of it within the
    budget. k-means++ chooses from rows of a quarter of what the first two leave, 16 MiB at most (from 2 n_components, if they are
    more). Not within it: the model, whose `vocabulary_` is a Python list; a corpus whose words would take more than the budget as
    strings is refused.

    `explain` counts passes over documents as if thresholds left all words; of a corpus in CSR only, and without two passes over
    its copy by words.

    Documents count as if all had the mean length. Where values are below 1 on average, as those of TF-IDF are, they count in
    units of their mean.

    Examples
    --------
    >>> model = TopicModel(50).fit(outcore.open("corpus"))
    >>> model.top_words(5)[0]
    >>> weights = model.transform(outcore.open("corpus"), out="weights.npy")
    """

    _TAKES_SPARSE = True

    def __init__(
        self,
        n_components: int = 10,
        random_state: Any = None,
        *,
        max_iter: int = 10,
        tol: float = 1e-4,
        sample_rate: float | None = None,
        n_edge_topics: int = 0,
        w0: float = 1.0,
        eps1: float = 1 / 60,
        eps2: float = 1 / 3,
        eps3: float | None = None,
        rho: float = 1.1,
        inference_iter: int = 15,
        compat: bool = False,
        checkpoint: PathLike | None = None,
        memory: int | str | None = None,
        progress: bool | None = None,
    ) -> None:
        self.n_components = n_components
        self.random_state = random_state
        self.max_iter = max_iter
        self.tol = tol
        self.sample_rate = sample_rate
        self.n_edge_topics = n_edge_topics
        self.w0 = w0
        self.eps1 = eps1
        self.eps2 = eps2
        self.eps3 = eps3
        self.rho = rho
        self.inference_iter = inference_iter
        self.compat = compat
        self.checkpoint = checkpoint
        self.memory = memory
        self.progress = progress

    def fit(self, X: Any, y: Any = None) -> TopicModel:
        """Finds the topics of X.

        Parameters
        ----------
        X : Sparse, SciPy sparse matrix or array_like of shape (n_samples, n_features)
            Counts of words, or weights, none negative.
        y : ignored

        Raises
        ------
        ArgumentError
            For negative values, and for more topics than documents with words. NotFiniteError for NaN or infinity;
            OverBudgetError, before anything is read, where topics or what is known of documents have no room.
        """
        self._learn(X)
        forget_checkpoint(self.checkpoint)
        return self

    def _learn(self, X: Any) -> None:
        """`fit` that leaves the checkpoint where it is."""
        self._check_parameters()
        with self._fitting(X, held=self._held_bytes) as (X, session, run):
            if not X.shape[1]:
                self._check_count(0, X, f"n_samples={X.shape[0]}")
            makes_rows = self._check_room(X, session)
            # Words that have no room are refused before anything is computed.
            _words_of(X, session)
            corpus = _Corpus(X, session, run, self.compat)
            self._check_count(corpus.filled, X, f"n_samples={X.shape[0]}")
            corpus.turn()
            if is_planning():
                self._plan(corpus, makes_rows)
            seed = seed_of(self.random_state)
            kept, left = self._thresholded(corpus, seed)
            clusters = np.full(X.shape[0], NONE)
            clusters[kept] = self._clustered(corpus, left, seed, makes_rows)
            del kept, left
            self._keep(corpus, clusters, computed(X))
            self.vocabulary_ = _words_of(X, session)

    def _check_parameters(self) -> None:
        for name, least in (("n_components", 1), ("max_iter", 1), ("n_edge_topics", 0), ("inference_iter", 0)):
            value = getattr(self, name)
            if not isinstance(value, Integral) or isinstance(value, bool) or value < least:
                raise ArgumentError(f"{name}={value!r} must be a whole number from {least} on")
        for name in ("w0", "eps1", "eps2", "eps3", "rho"):
            value = getattr(self, name)
            if value is None and name == "eps3":
                continue
            if not isinstance(value, Real) or isinstance(value, bool) or not 0 < float(value) < np.inf:
                raise ArgumentError(f"{name}={value!r} must be a number above 0")
        if self.rho < 1:
            raise ArgumentError(f"rho={self.rho!r} must be 1 at least: a word is a catchword of one topic")
        rate = self.sample_rate
        if rate is not None and not (isinstance(rate, Real) and 0 < float(rate) <= 1):
            raise ArgumentError(f"sample_rate={rate!r} must be a part of the documents, above 0 and up to 1, or None")
        native_options(1, tol=self.tol)

    def _check_count(self, documents: int, X: Any, which: str) -> None:
        """Refuses more topics than documents."""
        if documents < self.n_components:
            what = f"has {documents} document(s) with words ({which})" if documents else f"has no words ({which})"
            raise ArgumentError(f"{X!r} {what}, too few for n_components={self.n_components} topics")

    def _held_bytes(self, X: Any) -> int:
        samples, words = X.shape
        return HELD_DOCUMENT * samples + HELD_WORD * words

    def _check_room(self, X: Any, session: Session) -> bool:
        """Plans the steps that hold most, of a corpus of the shape of X without entries: what has no room is refused.

        Returns
        -------
        Whether rows along singular vectors are made: where k numbers a document are compared sooner with k centres than its
        words, or k-means of these has no room for the vectors.
        """
        (samples, words), count = X.shape, int(self.n_components)
        session._make_room(max(PLANNED_DOCUMENT * samples, 8 * samples + _in_two_types(count, words, computed(X))))
        empty = native_sparse(scipy.sparse.csr_matrix((samples, words), dtype=computed(X)), session, "X")
        none, scales = np.full(words, NONE), _native.TopicScales(np.zeros(samples))
        _native.topic_kept(session._inner, empty, scales, np.zeros(words))
        clusters, added, pairs = np.full(samples, NONE), np.zeros(count, bool), self.n_edge_topics > 0
        _native.topic_sums(session._inner, empty, scales, none, np.zeros(count, np.float32), False, clusters, added, pairs)
        del scales, clusters, none
        if samples >= count:
            options = native_options(min(count, samples, words), tol=self.tol, left=False)
            _native.svds(session._inner, empty, options, columns=np.zeros(words))
            if count * samples >= ENTRY_NUMBERS * X.nnz:
                with contextlib.suppress(OverBudgetError):
                    # One plan at a time: each has centres of its own.
                    for job in self._k_means(session, empty, min(count, words), False):
                        del job
                    return False
            start, rounds = np.zeros((count, words)), int(self.max_iter)
            _native.kmeans_fit_columns(session._inner, empty, start, rounds, np.zeros(words))
        return True

    def _plan(self, corpus: _Corpus, makes_rows: bool) -> NoReturn:
        """Plans what follows the copy by words."""
        if corpus.documents.format == "csr":
            for job in self._following(corpus, makes_rows):
                corpus.run(job, "", stand_in=lambda: None)
        raise Planned

    def _following(self, corpus: _Corpus, makes_rows: bool) -> Iterator[_native.Job]:
        """Jobs of passes over documents, as if thresholds left all words."""
        inner, documents, scales, count = corpus.session._inner, corpus.documents, corpus.scales, int(self.n_components)
        samples, words = corpus.X.shape
        yield _native.topic_kept(inner, documents, scales, np.zeros(words))
        entries = np.full(samples, corpus.X.nnz // samples, np.uint32)
        yield _native.topic_thresholded(inner, documents, scales, np.zeros(words), entries)
        options = native_options(min(count, samples, words), tol=self.tol, left=False)
        yield _native.svds(inner, documents, options, columns=np.zeros(words))
        yield from self._k_means(corpus.session, documents, min(count, samples, words), makes_rows)
        none, sums = np.full(words, NONE), np.zeros(count, np.float32)
        for digit in range(DIGITS):
            yield _native.topic_sum_digits(inner, documents, scales, none, digit, np.zeros(count, np.uint32))
        clusters, added, pairs = np.full(samples, NONE), np.zeros(count, bool), self.n_edge_topics > 0
        yield _native.topic_sums(inner, documents, scales, none, sums, bool(self.compat), clusters, added, pairs)

    def _k_means(self, session: Session, rows: _native.SparseMatrix, width: int, makes_rows: bool) -> Iterator[_native.Job]:
        """Jobs of k-means along `width` vectors and in full, from zeros."""
        inner, count, rounds, (samples, words) = session._inner, int(self.n_components), int(self.max_iter), rows.shape
        start, values = np.zeros((count, width)), np.zeros(words)
        if makes_rows:
            vectors, made = (_native.temporary_matrix(inner, rows.dtype, [side, width], "C") for side in (words, samples))
            yield _native.csrmm(inner, rows, vectors, 1.0, 0.0, None)
            yield _native.kmeans_fit(inner, made, start, None, rounds, 0.0, None)
        else:
            yield _native.kmeans_fit_columns(inner, rows, start, rounds, values, np.zeros((words, width)))
        yield _native.kmeans_fit_columns(inner, rows, np.zeros((count, words)), rounds, values)

    def _per_topic(self, part: float, documents: float) -> int:
        """A part of the documents that a topic dominates."""
        return max(1, int(min(part * self.w0 * documents / (2 * self.n_components), documents)))

    def _thresholded(self, corpus: _Corpus, seed: int) -> tuple[npt.NDArray[np.bool_], _native.SparseMatrix]:
        """Which documents are clustered, and what thresholds leave of them."""
        run, inner, scales = corpus.run, corpus.session._inner, corpus.scales
        equal = int(min(np.ceil(3 * self.eps1 * self.w0 * corpus.filled / self.n_components), corpus.filled))
        above = self._per_topic(1, corpus.filled)
        thresholds: Vector = run(_native.topic_thresholds(inner, corpus.words, scales, above, equal), "thresholds of words")
        job = _native.topic_kept(inner, corpus.documents, scales, thresholds)
        entries, weights = run(job, "words above thresholds")
        if self.sample_rate is not None and self.sample_rate < 1:
            # Efraimidis and Spirakis, "Weighted random sampling with a reservoir" (2006): u^(1 / weight), by its logarithm.
            corpus.session._make_room(SAMPLED_DOCUMENT * len(entries))
            keys = np.random.RandomState(seed % (1 << 32)).random_sample(len(entries))
            np.negative(keys, out=keys)
            np.log1p(keys, out=keys)
            np.divide(keys, weights, out=keys, where=weights > 0)
            np.negative(keys, out=keys)
            keys[weights <= 0] = np.inf
            wanted = max(int(self.n_components), round(float(self.sample_rate) * len(entries)))
            entries[np.argsort(keys, kind="stable")[wanted:]] = 0
            del keys
        del weights
        self._check_count(int(np.count_nonzero(entries)), corpus.X, "above the thresholds of words")
        self.thresholds_ = thresholds
        job = _native.topic_thresholded(inner, corpus.documents, scales, thresholds, entries)
        return entries > 0, run(job, "keeping words")

    def _clustered(self, corpus: _Corpus, left: _native.SparseMatrix, seed: int, makes_rows: bool) -> npt.NDArray[np.int32]:
        """The cluster of each row of what is left: k-means along its singular vectors, then along all words.

        Rows along the singular vectors are made for a sample that the first centres come from, and of all documents only where
        k-means is quicker of them.
        """
        run, session, count = corpus.run, corpus.session, int(self.n_components)
        options = native_options(min(count, *left.shape), tol=self.tol, checkpoint=self.checkpoint, random_state=seed, left=False)
        # The values of words that are left, as they are stored.
        values = np.sqrt(self.thresholds_).astype(left.dtype).astype(np.float64)
        found = run(_native.svds(session._inner, left, options, columns=values), "singular vectors")
        convergence(found, self.tol, stacklevel=5)
        self.singular_values_ = found["values"][::-1].copy()
        right = found_vectors(session, found["right"], len(found["values"]), np.dtype(np.float64))
        del found
        if not isinstance(right, Array):
            # In pieces: copies of another type and order would be as large as all topics.
            right = in_scratch(right, session, np.dtype(left.dtype), "C")
        rows = _RowsAlong(left, right, run)
        numbers = _seeds(rows, count, np.random.RandomState(seed % (1 << 32)))
        along = self._centers_of_made if makes_rows else self._centers_along
        start = along(rows, values, numbers)
        del rows, right, numbers
        # For a copy beside it.
        session._make_room(min(16 * count * left.shape[1], session.memory))
        # The code of ISLE does not look at documents again once it has put the centres in their means for the last time.
        rounds = int(self.max_iter) - bool(self.compat)
        if rounds:
            job = _native.kmeans_fit_columns(session._inner, left, start, rounds, values)
        else:
            job = _native.kmeans_assign(session._inner, left, start, None)
        # As large as all topics.
        del start
        clustered = run(job, "clustering")
        self.n_iter_ = clustered.get("rounds", 0)
        labels: npt.NDArray[np.int32] = clustered["labels"]
        return labels

    def _centers_along(self, rows: _RowsAlong, values: Vector, numbers: Matrix) -> Matrix:
        """Centres of k-means along singular vectors, of rows that are not made."""
        session, count, words = rows.session, int(self.n_components), len(values)
        # The vectors in two types and a copy, then the centres.
        session._make_room(min(24 * count * words, session.memory))
        along = rows.vectors.numpy().astype(np.float64, copy=False)
        job = _native.kmeans_fit_columns(session._inner, rows.matrix, numbers, int(self.max_iter), values, along)
        del along
        found: Matrix = rows.run(job, "clustering along singular vectors")["centers"]
        return found.reshape(count, words)

    def _centers_of_made(self, rows: _RowsAlong, values: Vector, numbers: Matrix) -> Matrix:
        """The same of rows that are written to scratch."""
        session, count, words = rows.session, int(self.n_components), len(values)
        made = rows.all()
        job = _native.kmeans_fit(session._inner, made._inner, numbers, None, int(self.max_iter), 0.0, None)
        numbers = rows.run(job, "clustering along singular vectors")["centers"].reshape(count, -1)
        del made
        session._make_room(min(8 * count * words, session.memory))
        centers = np.empty((count, words))
        step = max(1, COPIED_BYTES // (8 * count))
        for first in range(0, words, step):
            centers[:, first : first + step] = numbers @ np.asarray(rows.vectors[first : first + step], np.float64).T
        return centers

    def _keep(self, corpus: _Corpus, clusters: Labels, dtype: np.dtype[Any]) -> None:
        """Makes topics of clusters."""
        run, inner, count = corpus.run, corpus.session._inner, int(self.n_components)
        samples, words = len(corpus.scales), len(self.thresholds_)
        documents = samples if self.compat else corpus.filled
        rate = 1.0 if self.sample_rate is None else float(self.sample_rate)
        rank = self._per_topic(self.eps2, documents * rate)
        above, with_pairs, rho = bool(self.compat), self.n_edge_topics > 0, float(self.rho)
        job = _native.topic_catchwords(inner, corpus.words, corpus.scales, clusters, count, rank, rho, above)
        of_words: Labels = run(job, "catchwords")
        eps3 = (COMPAT_EPS3 if above else self.eps2) if self.eps3 is None else self.eps3
        sums = self._sums(corpus, of_words, self._per_topic(eps3, documents))
        catchwords = [np.flatnonzero(of_words == topic) for topic in range(count)]
        # Topics that their clusters are added to.
        added = np.array([above or not len(own) for own in catchwords])
        job = _native.topic_sums(inner, corpus.documents, corpus.scales, of_words, sums, above, clusters, added, with_pairs)
        found: Vector = run(job, "topics")
        corpus.session._make_room(_in_two_types(count, words, dtype))
        topics, pairs = found[: count * words].reshape(count, words), found[count * words :].reshape(-1, count)
        totals = topics.sum(axis=1)
        # A cluster that lost all its documents has no catchwords: its topic is all of the corpus.
        topics[totals == 0] = corpus.frequencies
        topics /= topics.sum(axis=1)[:, None]
        self.components_ = topics.astype(dtype, copy=False)
        self.catchwords_ = catchwords
        # NONE is -1.
        self.labels_ = clusters.view(np.int32)
        self.topic_sizes_ = np.zeros(count, np.int64)
        for first in range(0, samples, COUNTED_LABELS):
            some = self.labels_[first : first + COUNTED_LABELS]
            self.topic_sizes_ += np.bincount(some[some >= 0], minlength=count)
        best = np.argsort(-pairs.ravel(), kind="stable")[: self.n_edge_topics]
        best = best[pairs.ravel()[best] > 0]
        self.edge_topics_ = np.column_stack(np.divmod(best, count))
        self.edge_counts_ = pairs.ravel()[best].astype(np.int64)

    def _sums(self, corpus: _Corpus, of_words: Labels, rank: int) -> npt.NDArray[np.float32]:
        """What the `rank`-th document of each topic has of its catchwords; 0 where fewer have any."""
        count = int(self.n_components)
        prefixes, left, short = np.zeros(count, np.uint64), np.full(count, rank), np.zeros(count, bool)
        for digit in range(DIGITS):
            known = prefixes.astype(np.uint32)
            job = _native.topic_sum_digits(corpus.session._inner, corpus.documents, corpus.scales, of_words, digit, known)
            counts = corpus.run(job, "sums of catchwords").reshape(count, -1).astype(np.int64)
            # Documents with this digit or a higher one.
            reached = counts[:, ::-1].cumsum(axis=1)[:, ::-1]
            short |= reached[:, 0] < left
            found = np.maximum((reached >= left[:, None]).sum(axis=1) - 1, 0)
            left -= (reached - counts)[np.arange(count), found]
            prefixes = prefixes << np.uint64(DIGIT_BITS) | found.astype(np.uint64)
        sums = (prefixes >> np.uint64(1)).astype(np.uint32).view(np.float32)
        return np.where(short, np.float32(0), sums)

    def transform(self, X: Any, out: PathLike | Array | None = None) -> Any:
        """The weights of topics in each document: those under which its words are most likely.

        Parameters
        ----------
        X : Sparse, SciPy sparse matrix or array_like of shape (n_samples, n_features)
        out : path or Array of shape (n_samples, n_components), optional
            As of `PCA.transform`.

        Returns
        -------
        Array or ndarray of shape (n_samples, n_components), of the type of X; rows add up to 1. A document without words has all
        topics in equal parts.

        Raises
        ------
        OverBudgetError
            Where the topics, 16 bytes a word of each, leave less than 1 MiB of the budget.

        Notes
        -----
        `inference_iter` steps of multiplicative weights.
        """
        check_is_fitted(self)
        X = self._checked(X, reset=False)
        with self._session(X, out)._beside(8 * self.components_.size) as session, session._as_one():
            topics = np.ascontiguousarray(self.components_.T, np.float64)
            steps, rate = int(self.inference_iter), 10.0
            documents = self._by_rows(X, session)
            job = _native.topic_weights(session._inner, documents, topics, steps, rate, native_output(out))
            found = result_of(session, session._run(job, "topics of documents", self.progress), out)
            return found if isinstance(X, Sparse) or out is not None else found.numpy()

    def fit_transform(self, X: Any, y: Any = None, out: PathLike | Array | None = None) -> Any:
        """`fit` and then `transform` of the same X."""
        with self._session(X, out)._as_one():
            return self.fit(X).transform(X, out=out)

    def top_words(self, n_words: int = 10, vocabulary: Sequence[str] | None = None) -> list[list[Any]]:
        """The likeliest words of each topic, likeliest first.

        Parameters
        ----------
        n_words : int
            At most; words that a topic does not have are left out.
        vocabulary : sequence of str, optional
            The word of each column; default that of the corpus, else the names of its features.

        Returns
        -------
        A list of words for each topic; of their numbers where no words are known.
        """
        check_is_fitted(self)
        known: Any = self.vocabulary_ if vocabulary is None else vocabulary
        known = getattr(self, "feature_names_in_", None) if known is None else known
        if known is not None and len(known) != self.n_features_in_:
            raise ShapeError(f"the vocabulary has {len(known)} words, but the corpus {self.n_features_in_}")
        name = int if known is None else known.__getitem__
        lists = zip(self._likeliest(n_words), self.components_, strict=True)
        return [[name(int(word)) for word in words if topic[word] > 0] for words, topic in lists]

    def coherence(self, X: Any, measure: Literal["npmi", "umass"] = "npmi", n_words: int = 10) -> Vector:
        """How much the likeliest words of each topic occur together in the documents of X.

        Parameters
        ----------
        X : Sparse, SciPy sparse matrix or array_like of shape (n_samples, n_features)
        measure : {"npmi", "umass"}
            The mean over pairs of words, of log(p(a, b) / p(a) p(b)) / -log p(a, b), -1 for words that never meet; or of
            log((n(a, b) + 1) / n(b)), b the likelier word (Mimno et al., 2011); where X has no b, as if all documents had it
            and none had both.
        n_words : int
            Of each topic, up to 64.

        Returns
        -------
        ndarray of shape (n_components,), float64; NaN for a topic of one word.
        """
        check_is_fitted(self)
        if measure not in ("npmi", "umass"):
            raise ArgumentError(f"measure must be 'npmi' or 'umass', not {measure!r}")
        words = self._likeliest(n_words, most=LIST_WORDS)
        X = self._checked(X, reset=False)
        session = self._session(X)
        with session._as_one():
            job = _native.topic_co_occurrences(session._inner, self._by_rows(X, session), words.astype(np.uint32))
            counts = session._run(job, "words together", self.progress)
        together = counts.reshape(len(words), *2 * words.shape[1:]).astype(np.float64)
        single = together.diagonal(axis1=1, axis2=2)
        has = np.greater(np.take_along_axis(self.components_, words, axis=1), 0)
        with np.errstate(divide="ignore", invalid="ignore"):
            if measure == "umass":
                values = np.log((together + 1) / np.where(single > 0, single, X.shape[0])[:, None, :])
            else:
                joint, apart = together / X.shape[0], single / X.shape[0]
                values = np.log(joint / (apart[:, :, None] * apart[:, None, :])) / -np.log(joint)
                values[together == 0] = -1
                values[together == X.shape[0]] = 1
            pairs = np.tril(has[:, :, None] & has[:, None, :], -1)
            found: Vector = np.where(pairs, values, 0).sum(axis=(1, 2)) / pairs.sum(axis=(1, 2))
        return found

    def score(self, X: Any, y: Any = None) -> float:
        """The mean coherence (NPMI) of topics in the documents of X, from -1 to 1; NaN where no topic has two words."""
        found = self.coherence(X)
        known = found[~np.isnan(found)]
        return float(known.mean()) if len(known) else float("nan")

    def diversity(self, n_words: int = 25) -> float:
        """The part of the likeliest words of all topics that differ: 1 where no two topics share one (Dieng et al., 2020)."""
        check_is_fitted(self)
        words = self._likeliest(n_words)
        own = words[np.greater(np.take_along_axis(self.components_, words, axis=1), 0)]
        return len(np.unique(own)) / len(own)

    def edge_components(self, primary: float = 0.7) -> Floats:
        """The probability of each word in each edge topic: `primary`, from 0 to 1, of its first topic, the rest of its second.

        Returns
        -------
        ndarray of shape (m, n_features_in_).
        """
        check_is_fitted(self)
        if not (isinstance(primary, Real) and 0 <= float(primary) <= 1):
            raise ArgumentError(f"primary={primary!r} must be a part of the first topic, from 0 to 1")
        first, second = self.edge_topics_.T
        found: Floats = primary * self.components_[first] + (1 - primary) * self.components_[second]
        return found

    def _likeliest(self, n_words: Any, most: int | None = None) -> npt.NDArray[np.intp]:
        """Numbers of words of each topic, likeliest first."""
        is_whole = isinstance(n_words, Integral) and not isinstance(n_words, bool)
        if not is_whole or not 1 <= int(n_words) <= (most or int(n_words)):
            raise ArgumentError(f"n_words={n_words!r} must be a whole number from 1 {f'to {most}' if most else 'on'}")
        # Topic by topic: numbers of all words of all topics would take more than the topics.
        return np.stack([np.argsort(-topic, kind="stable")[: int(n_words)] for topic in self.components_])

    def _by_rows(self, X: Any, session: Session) -> _native.SparseMatrix:
        matrix = native_sparse(X, session, "X")
        if matrix.format == "csr":
            return matrix
        found: _native.SparseMatrix = session._run(_native.csrcsc(session._inner, matrix, None), "sorting", self.progress)
        return found

    def _checked(self, X: Any, *, reset: bool, least: int = 1) -> Any:
        if isinstance(X, Array):
            # Dense arrays in memory are accepted, as in scikit-learn; on SSD they could be of any size.
            refuse_dense(X, "X")
        found = super()._checked(X, reset=reset, least=least)
        if isinstance(found, Sparse):
            return found
        return canonical(found if is_scipy(found) else scipy.sparse.csr_matrix(found))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.positive_only = True
        return tags

    @property
    def _n_features_out(self) -> int:
        return len(self.components_)

    components_: Floats
    labels_: npt.NDArray[np.int32]
    topic_sizes_: npt.NDArray[np.int64]
    catchwords_: list[npt.NDArray[np.intp]]
    thresholds_: Vector
    edge_topics_: npt.NDArray[np.intp]
    edge_counts_: npt.NDArray[np.int64]
    singular_values_: Vector
    n_iter_: int
    vocabulary_: list[str] | None


class _Corpus:
    """A corpus while its topics are sought: by documents and by words, and how documents are scaled to one length."""

    def __init__(self, X: Any, session: Session, run: Run, compat: bool) -> None:
        self.X, self.session, self.run = X, session, run
        self._matrix = matrix = native_sparse(X, session, "X")
        samples, words = X.shape
        job = _native.sparse_column_statistics(session._inner, matrix, None)
        alike = ("min", "max", "mean", "nonzeros")
        columns = run(job, "counting words", stand_in=lambda: dict.fromkeys(alike, np.ones(words)))
        check_finite(X, columns)
        negative = np.flatnonzero(columns["min"] < 0)
        if len(negative):
            raise ArgumentError(f"Negative values in data passed to TopicModel: column {negative[0]} of {X!r} has one")
        job = _native.sparse_row_norms(session._inner, matrix, "l1")
        sums = run(job, "measuring documents", stand_in=lambda: np.ones(samples))
        self.filled = int(np.count_nonzero(sums))
        documents = max(self.filled, 1)
        length = sums.sum() / documents
        length = max(np.floor(length), 1.0) if compat else max(length, float(columns["nonzeros"].sum()) / documents)
        np.divide(length, sums, out=sums, where=sums > 0)
        self.scales = _native.TopicScales(sums)
        self.frequencies: Vector = columns["mean"]

    def turn(self) -> None:
        """Makes the copy along the other side."""
        own, by_rows = self._matrix, self._matrix.format == "csr"
        # Nothing that is in memory is read again, and sorting has blocks of other sizes.
        self.session._make_room(self.session.memory)
        job = _native.csrcsc(self.session._inner, own, None)
        other: _native.SparseMatrix = self.run(job, "sorting by words", stand_in=lambda: own)
        self.documents, self.words = (own, other) if by_rows else (other, own)


class _RowsAlong:
    """Rows along some vectors, of which those are made that are asked for."""

    def __init__(self, matrix: _native.SparseMatrix, vectors: Array, run: Run) -> None:
        self.matrix, self.vectors, self.run = matrix, vectors, run
        self.session = vectors._session

    @property
    def shape(self) -> tuple[int, int]:
        return self.matrix.shape[0], self.vectors.shape[1]

    def all(self) -> Array:
        return self._of(self.matrix)

    def __getitem__(self, numbers: npt.NDArray[np.uint64]) -> Matrix:
        some = self.run(self.matrix.pick_rows(numbers).take(self.session._inner, None), "sampling")
        return self._of(some).numpy().astype(np.float64, copy=False)

    def _of(self, rows: _native.SparseMatrix) -> Array:
        job = _native.csrmm(self.session._inner, rows, self.vectors._inner, 1.0, 0.0, None)
        return Array._result(self.session, self.run(job, "projecting"))


def _seeds(rows: _RowsAlong, count: int, random_state: np.random.RandomState) -> Matrix:
    """k-means++ of some rows in their order: that of `KMeans` goes by the bits of rows, which other budgets change."""
    session, (samples, width) = rows.session, rows.shape
    most = max(2 * count, min(SAMPLE_BYTES, session.memory // 4) // (8 * width))
    if samples <= most:
        picked = np.arange(samples)
    else:
        picked = np.sort(sample_without_replacement(samples, most, random_state=random_state))
    # As they are read, and in float64.
    session._make_room(16 * width * len(picked))
    found: Matrix = kmeans_plusplus(rows[picked.astype(np.uint64)], count, random_state=random_state)[0]
    return found


def _in_two_types(count: int, words: int, dtype: np.dtype[Any]) -> int:
    """Bytes of the numbers of words in topics, in float64 and in the type of the corpus."""
    return (8 + dtype.itemsize) * count * words


def _words_of(X: Any, session: Session) -> list[str] | None:
    """The vocabulary of a stored corpus, where its columns are words."""
    words = X._list("vocabulary.txt", session) if isinstance(X, Sparse) else None
    return words if words is not None and len(words) == X.shape[1] else None
