"""Clusterings of data bigger than memory, as scikit-learn estimators."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from numbers import Integral, Real
from typing import Any, Literal, overload

import numpy as np
import numpy.typing as npt
from sklearn.base import ClassNamePrefixFeaturesOutMixin, ClusterMixin, TransformerMixin
from sklearn.cluster import kmeans_plusplus
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics.pairwise import euclidean_distances
from sklearn.utils import check_random_state
from sklearn.utils.random import sample_without_replacement
from sklearn.utils.validation import check_is_fitted

from . import _native
from ._array import Array, Floats, in_scratch, native_output, result_of
from ._dtypes import computed
from ._estimator import Estimator, seed_of
from ._session import Session, is_planning
from ._settings import PathLike
from ._sparse import Sparse, is_scipy, native_rows
from ._team import AllRows, together
from .errors import ArgumentError, NotFiniteError, ShapeError

__all__ = ["KMeans", "SpectralClustering"]


def __dir__() -> list[str]:
    return sorted(__all__)


SAMPLE_BYTES = 16 << 20
"""What k-means++ chooses from, besides the budget: all of X, or as many rows of it as this holds."""

SAMPLED_EACH, SAMPLE_ROUNDS = 32, 10
"""Rows for each of a sample's centres, and rounds in which they move."""

HASHED_ROWS = 1024
"""At once: what is made of them on the way takes little beside the rows."""

SCALABLE_ROUNDS = 5
"""Passes in which k-means|| chooses candidates, 2 k in each; more improve nothing (Bahmani et al., section 5)."""


class KMeans(ClassNamePrefixFeaturesOutMixin, TransformerMixin, ClusterMixin, Estimator):  # type: ignore[misc]
    """k-means clustering of a matrix that may be larger than memory.

    Lloyd's algorithm, one pass over the data a round; rows that the triangle inequality settles are neither compared nor, where
    that saves requests, read. Takes an `outcore.Array`, an `outcore.Sparse` in CSR, or what scikit-learn's KMeans takes.

    Parameters
    ----------
    n_clusters : int
        Number of clusters and centres, k.
    init : {"k-means++", "k-means||", "random"}, array_like of shape (n_clusters, n_features) or callable
        Where centres begin. "k-means++": scikit-learn's `kmeans_plusplus`, of all rows if X is in memory or takes 16 MiB at most
        in float64, else of as many rows, drawn evenly, as that holds (k passes over all rows would take as long as k rounds).
        "k-means||": a choice from all rows in six passes (Bahmani et al., 2012). "random": k rows. A callable is called with X,
        n_clusters and random_state.
    n_init : int or "auto"
        Runs from different beginnings, of which the one with the least inertia is kept. "auto": 10 for "random" or a callable,
        else 1.
    max_iter : int
        Rounds at most, of one run.
    tol : float
        A run ends when the squared distances that centres move in a round add up to at most this part of the mean variance of the
        features, or when no label changes.
    memory : int or str, optional
        The part of the session's budget that each call may have, such as "2GiB"; default all of it.
    random_state : int, RandomState or None
        Seed of the choice of the first centres. None stands for 0: the same data and budget give the same bits, whatever the
        number of threads.
    progress : bool, optional
        Show progress bars; default on a terminal and in a notebook, where it takes more than a second.
    comm : optional
        Cluster the rows of all ranks of a job, see `outcore.ranks`: each calls `fit` with its own rows. Then `labels_` are those
        of the rank's own rows, and all else is the same on every rank. An array or a callable for `init` is that of rank 0.
        Choosing rows by their `sample_weight` takes 8 bytes for each row of all ranks. Not kept when the estimator is pickled;
        other methods are for the rank's own rows.

    Attributes
    ----------
    cluster_centers_ : ndarray of shape (n_clusters, n_features)
    labels_ : ndarray of shape (n_samples,), int32
        The number of the nearest centre of each row.
    inertia_ : float
        Sum of the squared distances of rows to their centres, weighted by `sample_weight`.
    n_iter_ : int
        Rounds of the run that was kept.
    n_features_in_ : int
    compared_ : float
        Part of the rows, over all passes, that was compared with all centres: what bounds have not settled.
    trace_ : Trace
        How all runs went, the choice of centres included; not kept when the estimator is pickled.

    Notes
    -----
    2 n_samples k n_features operations a round at most, and 4 to 12 bytes of memory a row.

    From an equal `init` array labels are those of scikit-learn's Lloyd, but for rows that are equally near to two centres to
    within rounding. Where X is larger than the budget, rounds after the first read a copy in scratch, of which each block holds
    each column to 18 bits of its range there (32 bits for float64); rows for which that is too coarse are read from X. Sums take
    the rows that change their label from the copy, off at random: a mean over n rows by some 2^-16 / sqrt(n) of the deviation
    (2^-30 / sqrt(n) for float64). Whole numbers up to 262,143 are copied exactly.

    Distances are compared by their squares: values beyond 1e154 (1e19 in float32) overflow, and differences below 1e-154 (1e-19)
    are taken for none. Scale such data first.

    Ctrl-C leaves `cluster_centers_` and `n_iter_` as they were after the last whole round, without `labels_` and `inertia_`;
    before the end of the first round it leaves what was there. To go on: ``km.set_params(init=km.cluster_centers_).fit(X)``.

    Examples
    --------
    >>> km = KMeans(100, max_iter=20).fit(outcore.open("x.npy"))
    >>> d = km.transform(outcore.open("x.npy"), out="distances.npy")
    """

    _TAKES_SPARSE = True

    def __init__(
        self,
        n_clusters: int = 8,
        *,
        init: Any = "k-means++",
        n_init: int | str = "auto",
        max_iter: int = 300,
        tol: float = 1e-4,
        memory: int | str | None = None,
        random_state: Any = None,
        progress: bool | None = None,
        comm: Any = None,
    ) -> None:
        self.n_clusters = n_clusters
        self.init = init
        self.n_init = n_init
        self.max_iter = max_iter
        self.tol = tol
        self.memory = memory
        self.random_state = random_state
        self.progress = progress
        self.comm = comm

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> KMeans:
        """Finds the centres.

        Parameters
        ----------
        X : Array, Sparse, array_like or sparse matrix of shape (n_samples, n_features)
        y : ignored
        sample_weight : array_like of shape (n_samples,), optional
            Weight of each row; not negative. A row of weight w counts as w equal rows; for k-means++ it does so where X
            takes 16 MiB at most in float64.

        Raises
        ------
        NotFiniteError
            For NaN or infinity in an `Array`, with its row and column. ArgumentError for more clusters than rows;
            OverBudgetError, before anything is read, where there is no memory for 4 bytes a row.
        """
        with together(self.comm) as team, self._fitting(X, 1 if team is None else 0) as (X, session, run):
            asked = f"{self.n_init} runs of {self.n_clusters} clusters{'' if sample_weight is None else ' of weighted rows'}"
            rows = AllRows(team, X, asked)
            runs = self._runs(rows.count)
            weights = _weights(sample_weight, X, rows)
            random = rows.of_first(check_random_state(0 if self.random_state is None else self.random_state))
            best: dict[str, Any] | None = None
            for _ in range(runs):
                start = self._start(X, weights, session, random, rows)
                job = self._job(X, start, weights, session, team)
                found = run(job, "clustering", lambda partial: self._keep(partial, computed(X)))
                if best is None or found["inertia"] < best["inertia"]:
                    best = found
            assert best is not None, "there is one run at least"
            self._keep(best, computed(X))
            found_clusters = np.count_nonzero(rows.total(np.bincount(self.labels_, minlength=self.n_clusters)))
        if found_clusters < self.n_clusters:
            warnings.warn(
                f"Number of distinct clusters ({found_clusters}) found smaller than n_clusters ({self.n_clusters}). "
                "Possibly due to duplicate points in X.",
                ConvergenceWarning,
                stacklevel=2,
            )
        return self

    def predict(self, X: Any) -> npt.NDArray[np.int32]:
        """The number of the nearest centre of each row of X, int32 of shape (n_samples,)."""
        check_is_fitted(self)
        found: npt.NDArray[np.int32] = self._assigned(self._checked(X, reset=False), None)["labels"]
        return found

    def score(self, X: Any, y: Any = None, sample_weight: Any = None) -> float:
        """The opposite of the inertia of X."""
        check_is_fitted(self)
        X = self._checked(X, reset=False)
        return -float(self._assigned(X, _weights(sample_weight, X, AllRows(None, X)))["inertia"])

    @overload
    def transform(self, X: Array | Sparse, out: PathLike | Array | None = None) -> Array: ...
    @overload
    def transform(self, X: Any, out: PathLike | Array) -> Array: ...
    @overload
    def transform(self, X: Any, out: None = None) -> Floats: ...
    def transform(self, X: Any, out: PathLike | Array | None = None) -> Array | Floats:
        """Distances of the rows of X to the centres.

        Parameters
        ----------
        X : Array or array_like of shape (n_samples, n_features)
        out : path or Array of shape (n_samples, n_clusters), optional
            Where the result goes: a `.npy` file, which replaces an existing one when it is complete, or an array that is
            changed in place. Default: an unnamed array on SSD for an `Array`, a NumPy array for anything else.

        Returns
        -------
        Array or ndarray of shape (n_samples, n_clusters), of the type of X.
        """
        check_is_fitted(self)
        X = self._checked(X, reset=False)
        centers = self.cluster_centers_.astype(np.float64, copy=False)
        if out is None and not isinstance(X, (Array, Sparse)):
            return euclidean_distances(X, centers.astype(X.dtype, copy=False))
        session = self._session(X, out)
        job = _native.kmeans_distances(session._inner, native_rows(X, "X", session), centers, native_output(out))
        found = session._run(job, "measuring", self.progress)
        return result_of(session, found, out)

    def _assigned(self, X: Any, weights: Any) -> Any:
        session = self._session(X)
        return _assign(session, X, self.cluster_centers_.astype(np.float64), weights, "assigning", self.progress)

    def _job(self, X: Any, start: Any, weights: Any, session: Session, team: _native.Team | None) -> _native.Job:
        return _native.kmeans_fit(
            session._inner, native_rows(X, "X", session), start, weights, int(self.max_iter), float(self.tol), team
        )

    def _keep(self, found: dict[str, Any], dtype: np.dtype[Any]) -> None:
        self.cluster_centers_ = found["centers"].reshape(-1, self.n_features_in_).astype(dtype)
        self.n_iter_ = found["rounds"]
        if not found["interrupted"]:
            self.labels_, self.inertia_, self.compared_ = found["labels"], found["inertia"], found["compared"]

    def _runs(self, samples: int) -> int:
        """How often to begin, once all parameters have been looked at."""
        for name in ("n_clusters", "max_iter"):
            value = getattr(self, name)
            if not isinstance(value, Integral) or isinstance(value, bool) or value < 1:
                raise ArgumentError(f"{name}={value!r} must be a positive integer")
        if not isinstance(self.tol, Real) or not 0 <= float(self.tol) < np.inf:
            raise ArgumentError(f"tol={self.tol!r} must be a non-negative number")
        if samples < self.n_clusters:
            raise ArgumentError(f"n_samples={samples} should be >= n_clusters={self.n_clusters}.")
        named = isinstance(self.init, str)
        if named and self.init not in ("k-means++", "k-means||", "random"):
            raise ArgumentError(f"init={self.init!r} must be 'k-means++', 'k-means||', 'random', an array or a callable")
        if self.n_init == "auto":
            return 10 if callable(self.init) or (named and self.init == "random") else 1
        if not isinstance(self.n_init, Integral) or isinstance(self.n_init, bool) or self.n_init < 1:
            raise ArgumentError(f"n_init={self.n_init!r} must be a positive integer or 'auto'")
        return int(self.n_init) if named or callable(self.init) else 1

    def _start(
        self, X: Any, weights: Any, session: Session, random: np.random.RandomState, rows: AllRows
    ) -> npt.NDArray[np.float64]:
        k = int(self.n_clusters)
        if is_planning():
            # The plan does not depend on the initial centres.
            return np.zeros((k, X.shape[1]))
        if not isinstance(self.init, str):
            found = self.init(X, k, random_state=random) if callable(self.init) else self.init
            start = np.array(found, dtype=np.float64, order="C")
            if start.shape != (k, X.shape[1]):
                raise ShapeError(f"init has shape {start.shape}, but must have shape {(k, X.shape[1])}")
            if not np.isfinite(start).all():
                raise ArgumentError("init has values that are not finite")
            # In the dtype of X, as in scikit-learn.
            return start.astype(computed(X)).astype(np.float64)
        if self.init == "k-means||":
            return _scalable(session, X, weights, k, random, self.progress, rows)
        all_weights = None if weights is None else rows.gathered(weights)
        if self.init == "random":
            return _rows(session, X, _drawn(rows.count, k, random, all_weights), self.progress, rows)
        chosen, own = X, weights
        if isinstance(X, (Array, Sparse)) or rows.ranks > 1:
            most = max(2 * k, SAMPLE_BYTES // max(1, 8 * X.shape[1]))
            picked = np.arange(rows.count) if rows.count <= most else np.sort(_drawn(rows.count, most, random))
            chosen = _rows(session, X, picked, self.progress, rows)
            own = None if all_weights is None else all_weights[picked]
            _check_finite(X, chosen, picked, rows)
        if 8 * chosen.shape[0] * chosen.shape[1] <= SAMPLE_BYTES:
            chosen, own = _in_order(chosen, own)
        return _plus_plus(chosen, k, own, random)

    @property
    def _n_features_out(self) -> int:
        return int(self.cluster_centers_.shape[0])

    cluster_centers_: Floats
    labels_: npt.NDArray[np.int32]
    inertia_: float
    n_iter_: int
    n_features_in_: int
    compared_: float
    fit_predict: Callable[..., npt.NDArray[np.int32]]
    fit_transform: Callable[..., Array | Floats]


class SpectralClustering(ClusterMixin, Estimator):  # type: ignore[misc]
    """Clusters of a graph: k-means of the leading eigenvectors of its normalized adjacency matrix.

    The graph is read by `outcore.linalg.eigsh`, some tens of times, and never made dense; it may be larger than memory. The
    eigenvectors, n_samples x n_components, are in memory, within the budget.

    Parameters
    ----------
    n_clusters : int
    n_components : int, optional
        Eigenvectors; default n_clusters.
    affinity : {"nearest_neighbors", "precomputed"}
        X is rows, whose graph is that of their nearest neighbours, or X is the graph: symmetric, of weights that are not
        negative.
    n_neighbors : int
        Of a row, itself among them; where there are fewer rows, all.
    tol : float
        Of the eigenvectors.
    n_init : int
        Runs of k-means, of which the best one counts.
    memory, random_state, progress
        As of `KMeans`.

    Attributes
    ----------
    labels_ : ndarray of shape (n_samples,), int32
    affinity_matrix_ : Sparse, SciPy sparse matrix, Array or ndarray of shape (n_samples, n_samples)
    eigenvalues_ : ndarray of shape (n_components,)
        1 less those of the normalized adjacency matrix, ascending: those of the normalized Laplacian, but 1 for a node without
        edges.
    embedding_ : ndarray of shape (n_samples, n_components)
    n_features_in_ : int
    trace_ : Trace

    Notes
    -----
    Shi and Malik, "Normalized cuts and image segmentation" (2000), as scikit-learn has it with `assign_labels="kmeans"`.
    """

    _TAKES_SPARSE = True

    def __init__(
        self,
        n_clusters: int = 8,
        *,
        n_components: int | None = None,
        affinity: Literal["nearest_neighbors", "precomputed"] = "nearest_neighbors",
        n_neighbors: int = 10,
        tol: float = 1e-5,
        n_init: int = 10,
        memory: int | str | None = None,
        random_state: Any = None,
        progress: bool | None = None,
    ) -> None:
        self.n_clusters = n_clusters
        self.n_components = n_components
        self.affinity = affinity
        self.n_neighbors = n_neighbors
        self.tol = tol
        self.n_init = n_init
        self.memory = memory
        self.random_state = random_state
        self.progress = progress

    def fit(self, X: Any, y: Any = None) -> SpectralClustering:
        """Finds the clusters.

        Parameters
        ----------
        X : Sparse, Array, SciPy sparse matrix or array_like of shape (n_samples, n_features), or (n_samples, n_samples) for a
            precomputed graph
        y : ignored

        Raises
        ------
        ArgumentError
            For more clusters or components than samples, and for a graph that is not symmetric or has negative degrees.
        """
        from ._spectra import eigenpairs, graph_operator

        with self._fitting(X) as (X, whole, _run):
            samples, seed = X.shape[0], seed_of(self.random_state) % (1 << 32)
            count, graph = self._count(samples), self._graph(X)
            # Eigenvectors as they are found and as they are scaled, degrees and what comes of them.
            with whole._beside(8 * samples * (2 * count + 4)) as session:
                operator = graph_operator(graph, "adjacency", session, self.progress)
                options: dict[str, Any] = {"which": "LA", "tol": self.tol, "random_state": seed}
                values, vectors = eigenpairs(operator, count, session, self.progress, **options)
                vectors = vectors.numpy() if isinstance(vectors, Array) else vectors
                roots = np.sqrt(operator.degrees)
                scale = np.divide(1.0, roots, out=np.zeros_like(roots), where=roots > 0)
                self.affinity_matrix_, self.eigenvalues_ = graph, 1 - values[::-1]
                self.embedding_ = np.multiply(vectors[:, ::-1], scale[:, None], order="C")
                del vectors
                means = KMeans(self.n_clusters, n_init=self.n_init, random_state=seed, progress=self.progress)
                self.labels_ = means.fit(in_scratch(self.embedding_, session)).labels_
        return self

    def _count(self, samples: int) -> int:
        """How many eigenvectors there are to be."""
        count = self.n_clusters if self.n_components is None else self.n_components
        for name, wanted in (("n_clusters", self.n_clusters), ("n_components", count)):
            if not isinstance(wanted, Integral) or isinstance(wanted, bool) or not 1 <= wanted <= samples:
                raise ArgumentError(f"{name}={wanted!r} must be an integer from 1 to n_samples={samples}")
        return int(count)

    def _graph(self, X: Any) -> Any:
        """The graph of X, symmetric."""
        if self.affinity == "precomputed":
            return X
        if self.affinity != "nearest_neighbors":
            raise ArgumentError(f"affinity must be 'nearest_neighbors' or 'precomputed', not {self.affinity!r}")
        from .neighbors import NearestNeighbors

        count = min(self.n_neighbors, X.shape[0])
        found = NearestNeighbors(count, memory=self.memory, progress=self.progress).fit(X)
        graph: Any = found.kneighbors_graph(X)
        return (0.5 * (graph + graph.T)).tocsr()

    def _checked(self, X: Any, *, reset: bool, least: int = 1) -> Any:
        return super()._checked(X, reset=reset, least=2 if reset else least)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.pairwise = self.affinity == "precomputed"
        return tags

    labels_: npt.NDArray[np.int32]
    affinity_matrix_: Any
    eigenvalues_: npt.NDArray[np.float64]
    embedding_: npt.NDArray[np.float64]


def _weights(sample_weight: Any, X: Any, rows: AllRows) -> npt.NDArray[np.float64] | None:
    if sample_weight is None:
        return None
    weights = np.ascontiguousarray(sample_weight, np.float64)
    if weights.ndim == 0:
        weights = np.full(X.shape[0], float(weights))
    if weights.ndim != 1:
        raise ArgumentError("Sample weights must be 1D array or scalar")
    if len(weights) != X.shape[0]:
        raise ShapeError(f"sample_weight.shape == {weights.shape}, expected {(X.shape[0],)}!")
    if not (np.isfinite(weights).all() and (weights >= 0).all() and rows.gathered(np.array([weights.any()])).any()):
        raise ArgumentError("sample_weight must be finite, non-negative and not all zero")
    return weights


def _drawn(n: int, count: int, random: np.random.RandomState, weights: Any = None) -> npt.NDArray[Any]:
    """Different numbers below n, with chances in proportion to their weights."""
    if weights is not None:
        return random.choice(n, count, replace=False, p=weights / weights.sum())
    found: npt.NDArray[Any] = sample_without_replacement(n, count, random_state=random)
    return found


def _assign(session: Session, X: Any, centers: Any, weights: Any, label: str, progress: bool | None) -> Any:
    return session._run(_native.kmeans_assign(session._inner, native_rows(X, "X", session), centers, weights), label, progress)


def _rows(session: Session, X: Any, picked: npt.NDArray[Any], progress: bool | None, rows: AllRows) -> npt.NDArray[np.float64]:
    """Rows of all ranks by number, in the given order."""
    return rows.in_order(picked, _own_rows(session, X, rows.own(picked), progress))


def _own_rows(session: Session, X: Any, picked: npt.NDArray[Any], progress: bool | None) -> npt.NDArray[np.float64]:
    if not len(picked):
        return np.empty((0, X.shape[1]))
    if is_scipy(X):
        return np.asarray(X[picked].toarray(), np.float64)
    if not isinstance(X, (Array, Sparse)):
        return np.asarray(X[picked], np.float64)
    ascending, places = np.unique(picked, return_inverse=True)
    job = _native.take_rows(session._inner, native_rows(X, "X", session), ascending.astype(np.uint64))
    found: npt.NDArray[np.float64] = session._run(job, "choosing", progress).reshape(-1, X.shape[1])
    return found if np.array_equal(ascending, picked) else found[places]


def _check_finite(X: Any, chosen: npt.NDArray[Any], picked: npt.NDArray[Any], rows: AllRows) -> None:
    if not np.isfinite(chosen).all():
        at, column = (int(at[0]) for at in np.nonzero(~np.isfinite(chosen)))
        name, row = rows.where(repr(X), int(picked[at]))
        raise NotFiniteError(f"{name} has a value that is not finite at row {row}, column {column}", row=row, column=column)


def _scalable(
    session: Session, X: Any, weights: Any, k: int, random: np.random.RandomState, progress: bool | None, rows: AllRows
) -> npt.NDArray[np.float64]:
    """k-means||: rows far from all candidates become candidates, 2 k a pass; k-means++ of the candidates, each with the weight of
    the rows that are nearest to it."""
    n = X.shape[0]
    all_weights = None if weights is None else rows.gathered(weights)
    new = _rows(session, X, _drawn(rows.count, 1, random, all_weights), progress, rows)
    candidates, far = new, np.full(n, np.inf, np.float32)
    for _ in range(SCALABLE_ROUNDS):
        if n:
            far = np.minimum(far, _assign(session, X, new, None, "choosing", progress)["distances"])
        chances = np.square(far) if weights is None else np.square(far) * weights
        total = rows.total(chances.sum(dtype=np.float64))
        if total <= 0:
            break
        drawn = rows.gathered(rows.first + np.nonzero(rows.sample(random) < chances * (2 * k / total))[0])
        if not len(drawn):
            break
        new = _rows(session, X, drawn, progress, rows)
        candidates = np.concatenate([candidates, new])
    if len(candidates) < k:
        candidates = np.concatenate([candidates, _rows(session, X, _drawn(rows.count, k, random), progress, rows)])
    nearest = _assign(session, X, candidates, None, "choosing", progress)["labels"] if n else np.empty(0, np.int32)
    mass = rows.total(np.bincount(nearest, weights=weights, minlength=len(candidates)).astype(np.float64))
    return _plus_plus(candidates, k, mass, random)


def sample_centers(session: Session, X: Any, count: int, progress: bool | None) -> npt.NDArray[np.float64]:
    """Centres of rows evenly spread over X, as many as asked for, or as a sample of `SAMPLE_BYTES` tells well."""
    rows, most = AllRows(None, X), SAMPLE_BYTES // max(1, 8 * X.shape[1])
    count = max(1, min(count, most // SAMPLED_EACH))
    picked = np.unique(np.linspace(0, X.shape[0] - 1, min(X.shape[0], max(most, 1), SAMPLED_EACH * count)).astype(np.int64))
    chosen = _rows(session, X, picked, progress, rows)
    _check_finite(X, chosen, picked, rows)
    start = _plus_plus(chosen, count, None, np.random.RandomState(0))
    job = _native.kmeans_fit(session._inner, native_rows(chosen, "the sample", session), start, None, SAMPLE_ROUNDS, 0.0, None)
    found: npt.NDArray[np.float64] = session._run(job, "choosing", progress)["centers"].reshape(count, -1)
    return found


def _in_order(rows: Any, weights: Any) -> tuple[npt.NDArray[np.float64], Any]:
    """Sorts rows so that equal rows are adjacent, independent of the original order: a row of weight w counts as w rows."""
    dense = np.ascontiguousarray(rows.toarray() if is_scipy(rows) else rows, np.float64)
    factors = np.random.default_rng(0).integers(1 << 63, size=dense.shape[1], dtype=np.uint64)
    hashes = np.empty(len(dense), np.uint64)
    for start in range(0, len(dense), HASHED_ROWS):
        part = slice(start, start + HASHED_ROWS)
        # -0.0 equals 0.0.
        bits = (dense[part] + 0.0).view(np.uint64)
        hashes[part] = (bits ^ (bits >> np.uint64(32))) @ factors
    order = np.argsort(hashes, kind="stable")
    return dense[order], None if weights is None else weights[order]


def _plus_plus(rows: Any, k: int, weights: Any, random: np.random.RandomState) -> npt.NDArray[np.float64]:
    found: npt.NDArray[np.float64] = kmeans_plusplus(rows, k, sample_weight=weights, random_state=random)[0].astype(np.float64)
    return found
