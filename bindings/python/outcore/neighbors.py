"""Exact nearest neighbours among rows bigger than memory, as scikit-learn estimators."""

from __future__ import annotations

import contextlib
import hashlib
import math
import os
from collections.abc import Callable, Iterator
from numbers import Integral, Real
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_matrix
from sklearn.base import ClassifierMixin, RegressorMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, column_or_1d

from . import _native
from ._array import Array, native_output, result_of
from ._estimator import Estimator
from ._plan import Plan, explain
from ._session import Session
from ._settings import PathLike, full_path
from ._sparse import Sparse, is_scipy, native_rows
from ._team import AllRows, together
from .errors import ArgumentError, ShapeError
from .ranks import ranks_of

__all__ = ["KNeighborsClassifier", "KNeighborsRegressor", "NearestNeighbors"]

Metric: TypeAlias = Literal["euclidean", "cosine", "inner_product"]
Weights: TypeAlias = Literal["uniform", "distance"] | Callable[[npt.NDArray[np.float64]], npt.NDArray[Any]] | None
Mode: TypeAlias = Literal["connectivity", "distance"]
Algorithm: TypeAlias = Literal["brute", "clusters"]
Outputs: TypeAlias = tuple[PathLike | Array | None, PathLike | Array | None]

METRICS = ("euclidean", "cosine", "inner_product")
ALGORITHMS = ("brute", "clusters")
QUERIES_EACH = 8
"""Of a centre, at least: it is compared with all rows too."""

VOTES_BYTES = 16 << 20
"""Of neighbours whose votes are counted at a time."""


def __dir__() -> list[str]:
    return sorted(__all__)


class _Neighbors(Estimator):
    """Rows that are looked among, and how."""

    n_neighbors: int
    metric: Metric
    algorithm: Algorithm
    n_samples_fit_: int
    effective_metric_: str
    effective_metric_params_: dict[str, Any]
    comm: Any
    times_: dict[str, Any]
    _rows: Any

    _TAKES_SPARSE = True

    def explain(self, X: Any) -> Plan:
        """The plan of `kneighbors` of these queries. No data is moved.

        Returns
        -------
        Plan
        """
        return explain(self._nearest, X, self.n_neighbors)

    def _keep_rows(self, X: Any, of_all: AllRows) -> Any:
        """X, which is not copied: the neighbours are read where they lie."""
        if self.metric not in METRICS:
            raise ArgumentError(f"metric={self.metric!r} must be one of {', '.join(METRICS)}")
        if self.algorithm not in ALGORITHMS:
            raise ArgumentError(f"algorithm={self.algorithm!r} must be one of {', '.join(ALGORITHMS)}")
        _number(self.n_neighbors)
        self._rows, self.n_samples_fit_ = X, of_all.count
        self.effective_metric_, self.effective_metric_params_ = self.metric, {}
        return X

    def _count(self, X: Any, k: Any) -> int:
        """How many neighbours each of X is to have."""
        k = _number(self.n_neighbors if k is None else k)
        others = self.n_samples_fit_ - (X is None)
        if k > others:
            raise ArgumentError(
                f"Expected n_neighbors <= n_samples_fit, but n_neighbors = {k}, n_samples_fit = {self.n_samples_fit_}, "
                f"n_samples = {others if X is None else X.shape[0]}"
            )
        return k

    def _queries(self, X: Any, least: int = 1) -> Any:
        """The queries of a search, `least` at least; None: the rows themselves."""
        check_is_fitted(self)
        if self.comm in (None, False) and self.n_samples_fit_ != self._rows.shape[0]:
            raise ArgumentError(
                f"{type(self).__name__} was fitted to rows of several ranks, {self._rows.shape[0]} of {self.n_samples_fit_} "
                "of them here; pickles and copies keep no ranks: set_params(comm=...) on each"
            )
        return None if X is None else self._checked(X, reset=False, least=least)

    def _sides(self, X: Any) -> tuple[Session, Any, Any]:
        """The session of a search, its rows, and its queries if they are others."""
        rows, X = (self._rows, None) if X is None else _of_one_type(self._rows, X)
        session = self._session(rows, X)
        return session, native_rows(rows, "the rows", session), None if X is None else native_rows(X, "X", session)

    def _nearest(
        self, X: Any, k: Any, out: Outputs | None = None, checkpoint: PathLike | None = None, search: str | None = None
    ) -> tuple[Array, Array]:
        """Distances and numbers of the k nearest rows to each of X, or to each row but itself. `search`: what tells a checkpoint
        that rows and queries are the same. The caller removes it."""
        check_is_fitted(self)
        with together(self.comm) as team:
            X = self._queries(X, 1 if team is None else 0)
            k = self._count(X, k)
            session, rows, queries = self._sides(X)
            kept = self._kept(X, checkpoint, search)
            distances, numbers = (None, None) if out is None else out
            with session._as_one():
                job = _native.nearest_rows(
                    session._inner,
                    rows,
                    queries,
                    k,
                    self.metric,
                    native_output(distances),
                    native_output(numbers),
                    kept,
                    self._centers(session, X) if team is None and checkpoint is None else None,
                    team,
                )
                found = session._run(job, "nearest rows", self.progress)
            if team is not None:
                self.times_ = found[2]
            return result_of(session, found[0], distances), result_of(session, found[1], numbers)

    @contextlib.contextmanager
    def _found(
        self, X: Any, k: Any = None, out: Outputs | None = None, checkpoint: PathLike | None = None
    ) -> Iterator[tuple[Array, Array]]:
        """The same; what a checkpoint has of it is removed when it has been used."""
        yield self._nearest(X, k, out, checkpoint)
        if checkpoint is not None:
            rank = None if self.comm in (None, False) else ranks_of(self.comm).rank
            remove_checkpoint(self._session(self._rows, X), checkpoint, rank)

    def _kept(self, X: Any, checkpoint: PathLike | None, search: str | None = None) -> tuple[str, str] | None:
        """A checkpoint, and what tells it that rows and queries are the same."""
        if checkpoint is None:
            return None
        return full_path(checkpoint), search or f"{_identity(self._rows)}; {_identity(X)}"

    def _centers(self, session: Session, X: Any) -> npt.NDArray[np.float64] | None:
        """Centres of the clusters that a search is to go by: fewer than queries, for which rows are put in order."""
        is_sparse = isinstance(self._rows, Sparse) or is_scipy(self._rows)
        if self.algorithm != "clusters" or self.metric != "euclidean" or is_sparse:
            return None
        from .cluster import sample_centers

        queries = self.n_samples_fit_ if X is None else X.shape[0]
        return sample_centers(session, self._rows, min(math.isqrt(self.n_samples_fit_), queries // QUERIES_EACH), self.progress)

    def _graph(
        self, X: Any, reach: float, has_distances: bool, out: PathLike | None, label: str, checkpoint: PathLike | None = None
    ) -> Any:
        """The `reach` nearest rows, or those within this radius if it is a float, as a matrix: in memory, or at `out`."""
        if self.comm is not None:
            raise ArgumentError("graphs and neighbours within a radius are found among rows of one process: comm must be None")
        session, rows, queries = self._sides(X)
        path = None if out is None else full_path(out)
        kept = self._kept(X, checkpoint)
        job = _native.neighbors_graph(session._inner, rows, queries, reach, self.metric, has_distances, path, kept)
        graph = Sparse._result(session, session._run(job, label, self.progress))
        found = graph.scipy(progress=self.progress) if out is None else graph
        if checkpoint is not None:
            remove_checkpoint(session, checkpoint, None)
        return found

    def kneighbors(
        self,
        X: Any = None,
        n_neighbors: int | None = None,
        return_distance: bool = True,
        *,
        out: Outputs | None = None,
        checkpoint: PathLike | None = None,
    ) -> Any:
        """The nearest rows, nearest first; of equal distances, the row that comes first.

        Parameters
        ----------
        X : Array, Sparse, array_like or sparse matrix of shape (n_queries, n_features), optional
            Default: the rows themselves, each without itself.
        n_neighbors : int, optional
            Default: that of the estimator.
        return_distance : bool
            Whether distances are returned too.
        out : (path, Array or None, path, Array or None), optional
            Where distances and numbers of rows go, float64 and int64, which may be more than fits memory; None: to scratch.
        checkpoint : path, optional
            A folder where groups of queries that are done are kept until all are: a search that was killed, called again, goes
            on from there and gives the same bytes. Results are then written twice, and rows that look for each other each meet
            all others. Over ranks, each appends its number to the name, and all of them give one.

        Returns
        -------
        distances : ndarray of shape (n_queries, n_neighbors), float64
            If `return_distance`. Of the metric "inner_product" the negative product.
        indices : ndarray of shape (n_queries, n_neighbors), int64
            With `out`, both are Arrays.

        Raises
        ------
        ArgumentError
            For more neighbours than rows, and for a checkpoint of another search. NotFiniteError. NoMemoryError, where results do
            not fit memory.
        """
        with self._found(X, n_neighbors, out, checkpoint) as (distances, numbers):
            if out is not None:
                return (distances, numbers) if return_distance else numbers
            return (distances.numpy(), numbers.numpy()) if return_distance else numbers.numpy()

    def kneighbors_graph(
        self,
        X: Any = None,
        n_neighbors: int | None = None,
        mode: Mode = "connectivity",
        *,
        out: PathLike | None = None,
        checkpoint: PathLike | None = None,
    ) -> csr_matrix | Sparse:
        """The neighbours of each query as a row of a sparse matrix, nearest first.

        Parameters
        ----------
        X, n_neighbors
            As of `kneighbors`.
        mode : "connectivity" or "distance"
            What entries are: ones, or distances.
        out : path, optional
            A folder for a matrix of any size, which replaces an existing matrix when it is complete.
        checkpoint : path, optional
            As of `kneighbors`.

        Returns
        -------
        SciPy matrix of shape (n_queries, n_samples_fit), CSR, float64; with `out`, a Sparse

        Raises
        ------
        ArgumentError, NotFiniteError, NoMemoryError
            As of `kneighbors`.
        """
        has_distances, X = _has_distances(mode), self._queries(X)
        return self._graph(X, self._count(X, n_neighbors), has_distances, out, "nearest rows", checkpoint)


class NearestNeighbors(_Neighbors):
    """The nearest rows to each query, or those within a radius, exactly, as scikit-learn's `NearestNeighbors`.

    Rows and queries may take more than memory. Every query is compared with every row: by products of blocks first, and again in
    float64 where these say that a row may be near enough. The order is total (distance, then number of the row), so every budget
    and number of threads gives the same bytes. Takes `outcore.Array`, `outcore.Sparse` and what scikit-learn's takes; rows and
    queries are both dense, or both sparse.

    Parameters
    ----------
    n_neighbors : int
        Neighbours of each query.
    radius : float
        The largest distance of `radius_neighbors`.
    metric : "euclidean", "cosine" or "inner_product"
        "cosine" is 1 - cosine, and 1 where one of the two is zero; "inner_product" is the negative product.
    algorithm : "brute" or "clusters"
        "clusters" puts rows and queries in the order of the centre that is nearest to each, in scratch, and leaves out blocks of
        rows that cannot hold a neighbour: much less to read and to compare where rows are in clusters and queries are many, more
        where they are not. The bytes of the result are the same. It is for `kneighbors` of dense rows by Euclidean distance, in
        one process and without a checkpoint, and takes 20 bytes of the budget a row; all else is found by "brute".
    memory : int or str, optional
        The part of the session's budget that a search may have; default all of it.
    progress : bool, optional
        Show progress bars; default on a terminal and in a notebook, where it takes more than a second.
    comm : optional
        Ranks that each have a part of the rows, and their own queries: an mpi4py communicator, a `torch.distributed` group, True
        for the default one, or what `outcore.ranks.mpi` gives. All ranks call `fit` and searches; each gets the neighbours of its
        own queries, among the rows of all, numbered one rank's after the other's.

    Attributes
    ----------
    n_samples_fit_, n_features_in_ : int
        Rows of all ranks; columns.
    times_ : dict
        Of the last search over ranks: rounds, bytes sent, and seconds of each round.

    Notes
    -----
    As many queries as half of the budget takes meet all rows at a time: the rows are read once for each of these groups. Rows
    that look for each other (`kneighbors()`) meet once for both, with the lists of later groups in scratch. Of sparse rows
    only entries are multiplied that a row and a query have in common.

    Examples
    --------
    >>> rows = outcore.open("rows.npy")
    >>> distances, indices = NearestNeighbors(10).fit(rows).kneighbors(queries)
    """

    def __init__(
        self,
        n_neighbors: int = 5,
        radius: float = 1.0,
        *,
        metric: Metric = "euclidean",
        algorithm: Algorithm = "brute",
        memory: int | str | None = None,
        progress: bool | None = None,
        comm: Any = None,
    ) -> None:
        self.n_neighbors = n_neighbors
        self.radius = radius
        self.metric = metric
        self.algorithm = algorithm
        self.memory = memory
        self.progress = progress
        self.comm = comm

    def fit(self, X: Any, y: Any = None) -> NearestNeighbors:
        """Keeps the rows, which are read by searches.

        Parameters
        ----------
        X : Array, Sparse, array_like or sparse matrix of shape (n_samples, n_features)
        y : ignored
        """
        with together(self.comm) as team, self._fitting(X, 1 if team is None else 0) as (X, _, _):
            self._keep_rows(X, AllRows(team, X))
        return self

    def radius_neighbors(
        self,
        X: Any = None,
        radius: float | None = None,
        return_distance: bool = True,
        sort_results: bool = False,
        *,
        out: PathLike | None = None,
        checkpoint: PathLike | None = None,
    ) -> Any:
        """The rows within a radius of each query, in the order of the rows. Distances are compared in float64.

        Parameters
        ----------
        X : Array, Sparse, array_like or sparse matrix of shape (n_queries, n_features), optional
            Default: the rows themselves, each without itself.
        radius : float, optional
            The largest distance; default: that of the estimator.
        return_distance : bool
            Whether distances are returned, or stored, too.
        sort_results : bool
            Nearest first, and of equal distances the row that comes first. Only in memory, and with distances.
        out : path, optional
            A folder for a matrix of any size, as of `radius_neighbors_graph`.
        checkpoint : path, optional
            A folder where rows of the result that are whole are kept until all are: a search that was killed, called again, goes
            on from there and gives the same bytes. Results are then written twice.

        Returns
        -------
        distances : ndarray of shape (n_queries,) of arrays, float64
            If `return_distance`. Of the metric "inner_product" the negative product.
        indices : ndarray of shape (n_queries,) of arrays, int64
            With `out`, a Sparse in place of both.

        Raises
        ------
        ArgumentError
            For a radius that is none, for what cannot be sorted, and for a checkpoint of another search. NotFiniteError.
            NoMemoryError, where results do not fit memory.
        """
        if sort_results and not return_distance:
            raise ArgumentError("return_distance must be True if sort_results is True.")
        graph = self._within(X, radius, return_distance, sort_results, out, checkpoint)
        if out is not None:
            return graph
        indices = _each(graph.indices.astype(np.int64, copy=False), graph.indptr)
        return (_each(graph.data, graph.indptr), indices) if return_distance else indices

    def radius_neighbors_graph(
        self,
        X: Any = None,
        radius: float | None = None,
        mode: Mode = "connectivity",
        sort_results: bool = False,
        *,
        out: PathLike | None = None,
        checkpoint: PathLike | None = None,
    ) -> csr_matrix | Sparse:
        """The rows within a radius of each query as a row of a sparse matrix, its entries in the order of the rows.

        Parameters
        ----------
        X, radius
            As of `radius_neighbors`.
        mode : "connectivity" or "distance"
            What entries are: ones, or distances.
        sort_results : bool
            Entries nearest first: only in memory, and of distances.
        out : path, optional
            A folder for a matrix of any size, which replaces an existing matrix when it is complete.
        checkpoint : path, optional
            As of `radius_neighbors`.

        Returns
        -------
        SciPy matrix of shape (n_queries, n_samples_fit), CSR, float64; with `out`, a Sparse

        Raises
        ------
        ArgumentError, NotFiniteError, NoMemoryError
            As of `radius_neighbors`.
        """
        has_distances = _has_distances(mode)
        return self._within(X, radius, has_distances, sort_results and has_distances, out, checkpoint)

    def _within(
        self, X: Any, radius: Any, has_distances: bool, sort_results: bool, out: PathLike | None, checkpoint: PathLike | None
    ) -> Any:
        radius = self.radius if radius is None else radius
        if not isinstance(radius, Real) or isinstance(radius, bool) or not float(radius) >= (-np.inf if self._is_product else 0):
            raise ArgumentError(f"radius={radius!r} must be a number{'' if self._is_product else ' of 0 or more'}")
        if sort_results and out is not None:
            raise ArgumentError("sort_results=True sorts in memory; with out, entries come in the order of the rows")
        found = self._graph(self._queries(X), float(radius), has_distances, out, "rows within a radius", checkpoint)
        if sort_results:
            lines = np.repeat(np.arange(found.shape[0]), np.diff(found.indptr))
            order = np.lexsort((found.data, lines))
            found.data, found.indices = found.data[order], found.indices[order]
            found.has_sorted_indices = False
        return found

    @property
    def _is_product(self) -> bool:
        return self.metric == "inner_product"


class _Voting(_Neighbors):
    """Neighbours whose labels or targets count, each by its weight."""

    def __init__(
        self,
        n_neighbors: int = 5,
        *,
        weights: Weights = "uniform",
        metric: Metric = "euclidean",
        algorithm: Algorithm = "brute",
        memory: int | str | None = None,
        progress: bool | None = None,
        comm: Any = None,
    ) -> None:
        self.n_neighbors = n_neighbors
        self.weights = weights
        self.metric = metric
        self.algorithm = algorithm
        self.memory = memory
        self.progress = progress
        self.comm = comm

    def _keep_rows(self, X: Any, of_all: AllRows) -> Any:
        self._check_weights()
        return super()._keep_rows(X, of_all)

    def _check_weights(self) -> None:
        weights = self.weights
        if not callable(weights) and weights not in ("uniform", "distance", None):
            raise ArgumentError(f"weights={weights!r} must be 'uniform', 'distance', None or a function")
        if weights == "distance" and self.metric == "inner_product":
            raise ArgumentError("weights='distance' needs distances; products of metric='inner_product' are none")

    def _voters(self, near: tuple[Array, Array], beside: int) -> Iterator[tuple[npt.NDArray[Any], npt.NDArray[Any]]]:
        """The neighbours that a search has found, of some queries at a time, and the weight of each. A query has as many numbers
        beside these."""
        self._check_weights()
        distances, numbers = near
        step = max(1, VOTES_BYTES // (16 * numbers.shape[1] + 8 * beside))
        for start in range(0, len(numbers), step):
            found = numbers[start : start + step]
            yield found, _weighed(distances[start : start + step], self.weights)


class KNeighborsClassifier(ClassifierMixin, _Voting):  # type: ignore[misc]
    """Classes by the votes of the nearest rows, as scikit-learn's `KNeighborsClassifier`; see `NearestNeighbors`.

    Of classes with as many votes, the first in `classes_` wins.

    Parameters
    ----------
    n_neighbors : int
        Rows that vote.
    weights : "uniform", "distance", callable or None
        What a vote counts: 1, as of None; one over its distance, where rows at distance 0 have all votes; or what a function
        makes of an array of distances.
    metric, algorithm, memory, progress, comm
        As of `NearestNeighbors`.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,); where y has several outputs, a list of these
    outputs_2d_ : bool
        Whether y has several outputs.
    n_samples_fit_, n_features_in_ : int

    Examples
    --------
    >>> KNeighborsClassifier(5).fit(outcore.open("rows.npy"), labels).predict(outcore.open("more.npy"))
    """

    def fit(self, X: Any, y: Any) -> KNeighborsClassifier:
        """Keeps rows and labels.

        Parameters
        ----------
        X : Array, Sparse, array_like or sparse matrix of shape (n_samples, n_features)
        y : Array or array_like of shape (n_samples,) or (n_samples, n_outputs)
        """
        with together(self.comm) as team, self._fitting(X, 1 if team is None else 0) as (X, _, _):
            own = _targets(X, y)
            of_all = AllRows(team, X, f"labels of shape {own.shape[1:]} a row")
            self.outputs_2d_ = own.ndim == 2 and own.shape[1] > 1
            y = of_all.labels(own if self.outputs_2d_ else column_or_1d(own, warn=True))
            check_classification_targets(y)
            known = [np.unique(output, return_inverse=True) for output in (y.T if self.outputs_2d_ else [y])]
            self._labels = [labels for _, labels in known]
            self.classes_ = [classes for classes, _ in known] if self.outputs_2d_ else known[0][0]
            self._keep_rows(X, of_all)
        return self

    def predict_proba(self, X: Any, *, checkpoint: PathLike | None = None) -> Any:
        """The share of the votes that each class gets.

        Parameters
        ----------
        X : Array, Sparse, array_like or sparse matrix of shape (n_queries, n_features); None: the rows, each without its own vote
        checkpoint : path, optional
            As of `kneighbors`.

        Returns
        -------
        ndarray of shape (n_queries, n_classes); of several outputs, a list of these
        """
        with self._found(X, checkpoint=checkpoint) as near:
            shares = self._of_votes(near, _shares)
        return shares if self.outputs_2d_ else shares[0]

    def predict(self, X: Any, *, checkpoint: PathLike | None = None) -> npt.NDArray[Any]:
        """The class with the most votes.

        Parameters
        ----------
        X, checkpoint
            As of `predict_proba`.

        Returns
        -------
        ndarray of shape (n_queries,), or (n_queries, n_outputs)
        """
        with self._found(X, checkpoint=checkpoint) as near:
            return self._voted(near)

    def _voted(self, near: tuple[Array, Array]) -> npt.NDArray[Any]:
        best = self._of_votes(near, lambda votes: votes.argmax(axis=1))
        found = [classes[numbers] for classes, numbers in zip(self._classes, best, strict=True)]
        return np.stack(found, axis=1) if self.outputs_2d_ else found[0]

    @property
    def _classes(self) -> list[npt.NDArray[Any]]:
        """Of each output."""
        return self.classes_ if isinstance(self.classes_, list) else [self.classes_]

    def _of_votes(
        self, near: tuple[Array, Array], made: Callable[[npt.NDArray[np.float64]], npt.NDArray[Any]]
    ) -> list[npt.NDArray[Any]]:
        """What is made of the votes for each output, some queries at a time."""
        parts: list[list[npt.NDArray[Any]]] = [[made(np.zeros((0, len(classes))))] for classes in self._classes]
        for numbers, weights in self._voters(near, 2 * max(map(len, self._classes))):
            for labels, classes, found in zip(self._labels, self._classes, parts, strict=True):
                found.append(made(_votes(labels[numbers], weights, len(classes))))
        return [np.concatenate(found) for found in parts]

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = tags.classifier_tags.multi_label = True
        return tags


def _votes(labels: npt.NDArray[Any], weights: npt.NDArray[Any], classes: int) -> npt.NDArray[np.float64]:
    """Those for each class, by queries and classes."""
    votes = np.zeros((len(labels), classes))
    for place in range(labels.shape[1]):
        votes[np.arange(len(votes)), labels[:, place]] += weights[:, place]
    return votes


def _shares(votes: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    total = votes.sum(axis=1, keepdims=True)
    return np.asarray(votes / np.where(total == 0, 1, total))


class KNeighborsRegressor(RegressorMixin, _Voting):  # type: ignore[misc]
    """Means over the nearest rows, as scikit-learn's `KNeighborsRegressor`; see `NearestNeighbors`.

    Parameters
    ----------
    n_neighbors : int
        Rows of a mean.
    weights, metric, algorithm, memory, progress, comm
        As of `KNeighborsClassifier`.

    Attributes
    ----------
    n_samples_fit_, n_features_in_ : int

    Examples
    --------
    >>> KNeighborsRegressor(5, weights="distance").fit(outcore.open("rows.npy"), prices).predict(queries)
    """

    def fit(self, X: Any, y: Any) -> KNeighborsRegressor:
        """Keeps rows and targets.

        Parameters
        ----------
        X : Array, Sparse, array_like or sparse matrix of shape (n_samples, n_features)
        y : Array or array_like of shape (n_samples,) or (n_samples, n_outputs)
        """
        with together(self.comm) as team, self._fitting(X, 1 if team is None else 0) as (X, _, _):
            own = np.asarray(_targets(X, y), np.float64)
            of_all = AllRows(team, X, f"targets of shape {own.shape[1:]} a row")
            self._values = of_all.gathered(own)
            if self._values.ndim > 2:
                raise ShapeError(f"y has {self._values.ndim} dimensions, but must have 1 or 2")
            if not np.isfinite(self._values).all():
                raise ArgumentError("Input y contains NaN or infinity.")
            self._keep_rows(X, of_all)
        return self

    def predict(self, X: Any, *, checkpoint: PathLike | None = None) -> npt.NDArray[np.float64]:
        """The mean of the targets of the nearest rows.

        Parameters
        ----------
        X : Array, Sparse, array_like or sparse matrix of shape (n_queries, n_features); None: the rows, each without itself
        checkpoint : path, optional
            As of `kneighbors`.

        Returns
        -------
        ndarray of shape (n_queries,) or (n_queries, n_outputs)
        """
        check_is_fitted(self)
        values = self._values if self._values.ndim == 2 else self._values[:, None]
        parts = []
        with self._found(X, checkpoint=checkpoint) as near:
            for numbers, weights in self._voters(near, 2 * values.shape[1]):
                sums = np.zeros((len(numbers), values.shape[1]))
                for place in range(numbers.shape[1]):
                    sums += values[numbers[:, place]] * weights[:, place, None]
                parts.append(sums / weights.sum(axis=1, keepdims=True))
        found = np.concatenate(parts) if parts else np.empty((0, values.shape[1]))
        return found if self._values.ndim == 2 else found[:, 0]

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags


def _number(k: Any) -> int:
    if not isinstance(k, Integral) or isinstance(k, bool):
        raise TypeError(f"n_neighbors does not take {type(k)} value, enter integer value")
    if k < 1:
        raise ArgumentError(f"Expected n_neighbors > 0. Got {k}")
    return int(k)


def _identity(x: Any) -> str:
    """What tells whether rows are the same: of a file its name, size and time, of memory its bytes."""
    if x is None:
        return "each other"
    if not isinstance(x, (Array, Sparse)):
        parts = [x.data, x.indices, x.indptr] if is_scipy(x) else [np.ascontiguousarray(x)]
        digest = hashlib.blake2b()
        for part in parts:
            digest.update(np.ascontiguousarray(part).reshape(-1).data)
        return f"{x.shape} {x.dtype} {digest.hexdigest()}"
    if x._file is None:
        raise ArgumentError(f"{x!r} has no name, so that a checkpoint cannot tell it from others; store it under one")
    return f"{x!r} {x.__reduce__()[1]!r} {file_facts(x._file)}"


def remove_checkpoint(session: Session, path: PathLike, rank: int | None) -> None:
    """Removes what a search has kept, of one process or of a rank."""
    _native.remove_checkpoint(session._inner, full_path(path), rank)


def file_facts(path: str) -> str:
    """What tells whether a file, or the files of a folder, are the same as before: sizes and times."""
    try:
        files = sorted(entry.path for entry in os.scandir(path)) if os.path.isdir(path) else [path]
        facts = [os.stat(file) for file in files]
    except OSError as error:
        raise ArgumentError(f"{path} is no file whose time tells a checkpoint whether it is the same ({error})") from None
    return str([(fact.st_size, fact.st_mtime_ns) for fact in facts])


def _has_distances(mode: Mode) -> bool:
    if mode not in ("connectivity", "distance"):
        raise ArgumentError(f"mode={mode!r} must be 'connectivity' or 'distance'")
    return mode == "distance"


def _each(values: npt.NDArray[Any], offsets: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """An array of the arrays between some places."""
    found = np.empty(len(offsets) - 1, object)
    for number in range(len(found)):
        found[number] = values[offsets[number] : offsets[number + 1]]
    return found


def _targets(X: Any, y: Any) -> npt.NDArray[Any]:
    """One for each row of X, in memory."""
    if y is None:
        raise ArgumentError("requires y to be passed, but the target y is None")
    found = np.asarray(y)
    if found.ndim == 0 or len(found) != X.shape[0]:
        raise ShapeError(f"Found input variables with inconsistent numbers of samples: {[X.shape[0], np.size(found)]}")
    return found


def _of_one_type(rows: Any, queries: Any) -> tuple[Any, Any]:
    """What lies in memory is converted to the wider type of the two."""
    kinds = [x._computed if isinstance(x, Array) else x.dtype for x in (rows, queries)]
    widest = max(kinds, key=lambda kind: np.dtype(kind).itemsize)
    in_memory = [not isinstance(x, (Array, Sparse)) for x in (rows, queries)]
    return tuple(x.astype(widest, copy=False) if here else x for x, here in zip((rows, queries), in_memory, strict=True))


def _weighed(distances: npt.NDArray[np.float64], weights: Weights) -> npt.NDArray[Any]:
    if callable(weights):
        found = np.asarray(weights(distances), np.float64)
        if found.shape != distances.shape:
            raise ShapeError(f"weights gave an array of shape {found.shape} for distances of shape {distances.shape}")
        return found
    if weights != "distance":
        return np.ones_like(distances)
    zeros = distances == 0
    with np.errstate(divide="ignore"):
        return np.where(zeros.any(axis=1, keepdims=True), zeros, 1 / distances)
