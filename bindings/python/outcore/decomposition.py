"""Decompositions of data bigger than memory, as scikit-learn estimators."""

from __future__ import annotations

from numbers import Integral, Real
from typing import Any, overload

import numpy as np
import numpy.typing as npt
from sklearn.base import ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted

from . import _native
from ._array import Array, Floats, native_operand, native_output, result_of, unmasked
from ._dtypes import computed, is_decoded
from ._estimator import Estimator, Run, check_finite, seed_of
from ._session import Session
from ._settings import PathLike
from ._sparse import Sparse, is_scipy, native_sparse
from ._spectra import Method, components_of, convergence, native_options
from ._team import AllRows, together
from .errors import ArgumentError, DTypeError, OverBudgetError, ShapeError
from .linalg import csrmm

__all__ = ["PCA", "TruncatedSVD"]


def __dir__() -> list[str]:
    return sorted(__all__)


BLOCK_BYTES = 16 << 20
"""Rows of an array in memory are centred and projected in blocks of this size, so that no centred copy of all of it is made."""

ITERATION_TOL = 1e-6
"""Of components that come from an iteration, relative to the largest singular value."""

OPERATIONS_A_BYTE = 64
"""Of dense products, while a byte is read."""

SCATTERED = (5, 25)
"""How many times longer an operation takes whose result goes anywhere in a covariance than one of products with sparse rows:
where the covariance fits `CACHED_BYTES`, and where it does not."""

CACHED_BYTES = 8 << 20

SEARCHED = 500
"""Of these operations, what the search in a covariance takes for each of its elements."""

NARROW = 3
"""How many times longer an operation takes in products with a few columns than in those that make a covariance."""

MEAN_MOST = 1e4
"""The sum of squared means, relative to that of variances, with which products with centred rows keep enough digits."""


def _is_far(columns: dict[str, Any], samples: int) -> bool:
    return bool(samples * (columns["mean"] ** 2).sum() > MEAN_MOST * columns["m2"].sum())


class PCA(ClassNamePrefixFeaturesOutMixin, TransformerMixin, Estimator):  # type: ignore[misc]
    """Principal component analysis of a matrix that may be larger than memory.

    One pass over the data for the mean and the covariance (if the covariance exceeds the budget, one pass for each part that
    fits), and one for each `transform`. Takes an `outcore.Array` (its result is an `outcore.Array` too) or what
    scikit-learn's PCA takes (the result is a NumPy array), and sparse rows, an `outcore.Sparse` or SciPy's, which are centred
    without being made dense.

    Parameters
    ----------
    n_components : int, float or None
        How many components: 1 ... min(n_samples, n_features); or, between 0 and 1, as few as explain more than this part of the
        variance; or all of them.
    whiten : bool
        Scale the result of `transform` to unit variance.
    warm_start : bool
        Whether a `fit` whose components come from an iteration begins with those of the last one, if there are any of as many
        features: of rows that have only become more, or changed a little, it takes fewer passes.
    memory : int or str, optional
        The part of the session's budget that `fit` and `transform` may have, such as "2GiB"; default all of it.
    random_state : int, RandomState or None
        Seed of the iteration that finds a few components of many features. None stands for 0: the same data and budget give the
        same bits, whatever the number of threads.
    progress : bool, optional
        Show progress bars; default on a terminal and in a notebook, where it takes more than a second.
    comm : optional
        Fit the rows of all ranks of a job, see `outcore.ranks`: each calls `fit` with its own rows, and has the same model then.
        Not kept when the estimator is pickled; `transform` is of the rank's own rows.

    Attributes
    ----------
    components_ : ndarray of shape (n_components_, n_features_in_)
        Directions of most variance, in rows, by descending variance; the entry of largest magnitude of each is positive, as in
        scikit-learn.
    explained_variance_, explained_variance_ratio_ : ndarray of shape (n_components_,)
        Variance along each component, with n_samples - 1 degrees of freedom, and its part of the variance of all features.
    singular_values_ : ndarray of shape (n_components_,)
        Those of the centred data.
    mean_ : ndarray of shape (n_features_in_,), float64
    noise_variance_ : float
        Mean variance of the directions left out.
    n_components_, n_features_in_, n_samples_ : int
    trace_ : Trace
        How the pass over the data went; not kept when the estimator is pickled.

    Notes
    -----
    Where a covariance would take more operations, or of sparse rows more memory than there is, components come from products with
    the centred matrix (`outcore.linalg.svds`, to 1e-6), some tens of passes, and need memory, or scratch, for some n_components
    vectors of n_features. Of dense rows that is so for a given number of components, counting 64 operations for a byte that is
    read: of more than 14,536 features for 50 components of float64, of fewer where the budget cuts the covariance into parts,
    unless means are more than 100 times the deviations. The covariance of sparse rows takes a product for each pair of entries
    of a row. Sparse rows that are stored by columns have none here; those of several ranks always do.

    Features whose deviations are beyond 1e154 or below 1e-154 have covariances outside the range of float64: scale them first.

    n_samples n_features^2 operations. The covariance is accumulated in float64 about a shift near the mean (Chan, Golub and
    LeVeque, 1983); it needs 4 to 8 n_features^2 bytes of memory or, with an int of at most n_features / 5 for `n_components`, of
    scratch.

    Examples
    --------
    >>> pca = PCA(n_components=50).fit(outcore.open("x.npy"))
    >>> y = pca.transform(outcore.open("x.npy"), out="y.npy")
    """

    _TAKES_SPARSE = True

    def __init__(
        self,
        n_components: float | None = None,
        *,
        whiten: bool = False,
        warm_start: bool = False,
        memory: int | str | None = None,
        random_state: Any = None,
        progress: bool | None = None,
        comm: Any = None,
    ) -> None:
        self.n_components = n_components
        self.whiten = whiten
        self.warm_start = warm_start
        self.memory = memory
        self.random_state = random_state
        self.progress = progress
        self.comm = comm

    def fit(self, X: Any, y: Any = None) -> PCA:
        """Finds the components of the rows of X.

        Parameters
        ----------
        X : Array, Sparse, SciPy sparse matrix or array_like of shape (n_samples, n_features)
        y : ignored

        Raises
        ------
        NotFiniteError
            For NaN or infinity in an `Array`, with its row and column. ArgumentError for more components than there are;
            OverBudgetError for more features than the budget has room for.
        """
        with together(self.comm) as team, self._fitting(X, 2 if team is None else 0) as (X, session, run):
            samples = AllRows(team, X).count
            if samples < 2:
                raise ArgumentError(f"the ranks have {samples} sample(s), but at least 2 are needed")
            count, variance = self._wanted(samples, X.shape[1])
            found = None
            if _is_sparse(X):
                found = self._sparse_fit(X, session, run, count, variance, team)
            elif self._is_alone() and count is not None and _is_iterated(X.shape, computed(X).itemsize, count, session.memory):
                found = self._iterated_fit(X, session, run, count)
            if found is not None:
                self._keep(found, computed(X))
                return self
            job = _native.pca_fit(session._inner, native_operand(X, "X", session), count, variance, self._seed(), team)
            self._keep(run(job, "finding components"), computed(X))
        return self

    def _sparse_fit(
        self, X: Any, session: Session, run: Run, count: int | None, variance: float | None, team: Any
    ) -> dict[str, Any]:
        """What the covariance gives, where it is the shorter way and there is memory for it, or else the iteration. The rows of
        several ranks and a part of the variance take the covariance."""
        matrix, columns = _columns(X, session, run, team)
        if variance is not None and matrix.format != "csr":
            raise ArgumentError(f"n_components={variance} is a part of the variance, which takes rows that are stored by rows")
        kept, is_needed = count or min(X.shape), variance is not None or not self._is_alone()
        if is_needed or (matrix.format == "csr" and _is_summed(X.shape, X.nnz, kept)):
            mean, nonzeros = columns["mean"], columns["nonzeros"]
            try:
                job = _native.sparse_pca_fit(session._inner, matrix, mean, nonzeros, count, variance, self._seed(), team)
            except OverBudgetError:
                # For any session of this budget, whatever else is in its memory.
                if is_needed:
                    raise
            else:
                return run(job, "finding components")
        return self._iterated(matrix, columns, X.shape, session, run, kept)

    def _iterated_fit(self, X: Any, session: Session, run: Run, count: int) -> dict[str, Any] | None:
        """What the covariance gives, by the iteration; None for rows too far from zero for that."""
        matrix, columns = _columns(X, session, run)
        if _is_far(columns, len(X)):
            return None
        return self._iterated(matrix, columns, X.shape, session, run, count)

    def _iterated(
        self, matrix: Any, columns: dict[str, Any], shape: tuple[int, int], session: Session, run: Run, count: int
    ) -> dict[str, Any]:
        """Components by an iteration on the centred matrix."""
        samples, features = shape
        options = native_options(count, tol=ITERATION_TOL, random_state=self._seed(), left=False)
        job = _native.svds(
            session._inner, matrix, options, columns["mean"], _is_far(columns, samples), _known(self, count, features)
        )
        found = run(job, "finding components")
        convergence(found, ITERATION_TOL, stacklevel=5)
        freedom = max(samples - 1, 1)
        values = found["values"][::-1]
        return {
            "samples": samples,
            "features": features,
            "mean": columns["mean"],
            "components": components_of(session, found).ravel(),
            "explained_variance": values**2 / freedom,
            "total_variance": float(columns["m2"].sum() / freedom),
        }

    def _is_alone(self) -> bool:
        """Whether there are no other ranks; a call that is only planned has no team of them."""
        return self.comm is None or self.comm is False

    def _seed(self) -> int:
        return seed_of(self.random_state)

    def _wanted(self, samples: int, features: int) -> tuple[int | None, float | None]:
        wanted, most = self.n_components, min(samples, features)
        if wanted is None:
            return None, None
        if isinstance(wanted, Integral) and not isinstance(wanted, bool):
            if not 1 <= wanted <= most:
                raise ArgumentError(f"n_components={wanted} must be between 1 and min(n_samples, n_features)={most}")
            return int(wanted), None
        if isinstance(wanted, Real) and not isinstance(wanted, bool) and 0 < float(wanted) < 1:
            return None, float(wanted)
        raise ArgumentError(
            f"n_components={wanted!r} must be an integer from 1 to {most}, a fraction of the variance between 0 and 1, or None"
        )

    def _keep(self, found: dict[str, Any], dtype: np.dtype[Any]) -> None:
        samples, features, total = found["samples"], found["features"], found["total_variance"]
        variance = found["explained_variance"]
        # No part of no variance can be explained: one component stands for it, as in scikit-learn.
        constant = total == 0 and isinstance(self.n_components, Real) and not isinstance(self.n_components, Integral)
        variance = variance[:1] if constant else variance
        kept = len(variance)
        left_out = min(samples, features) - kept
        self.n_samples_, self.n_components_ = samples, kept
        self.mean_ = found["mean"]
        self.components_ = found["components"].reshape(-1, features)[:kept].astype(dtype, copy=False)
        self.explained_variance_ = variance.astype(dtype, copy=False)
        self.explained_variance_ratio_ = (variance / total if total > 0 else np.zeros(kept)).astype(dtype, copy=False)
        self.singular_values_ = np.sqrt(variance * (samples - 1)).astype(dtype, copy=False)
        self.noise_variance_ = float(max(0.0, total - variance.sum()) / left_out) if left_out else 0.0

    @overload
    def transform(self, X: Array, out: PathLike | Array | None = None) -> Array: ...
    @overload
    def transform(self, X: Any, out: PathLike | Array) -> Array: ...
    @overload
    def transform(self, X: Any, out: None = None) -> Floats: ...
    def transform(self, X: Any, out: PathLike | Array | None = None) -> Array | Floats:
        """Coordinates of the rows of X along the components.

        Parameters
        ----------
        X : Array or array_like of shape (n_samples, n_features)
        out : path or Array of shape (n_samples, n_components), optional
            Where the result goes: a `.npy` file, which replaces an existing one when it is complete, or an array that is
            changed in place. Default: an unnamed array on SSD for an `Array`, a NumPy array for anything else.

        Returns
        -------
        Array or ndarray of shape (n_samples, n_components), of the type of X.
        """
        check_is_fitted(self)
        X = self._checked(X, reset=False)
        components = self.components_.astype(np.float64, copy=False)
        matrix = (components / self._scale()[:, None]).T if self.whiten else components.T
        return self._map(X, self.mean_, matrix, np.empty(0), out, "projecting")

    @overload
    def inverse_transform(self, X: Array, out: PathLike | Array | None = None) -> Array: ...
    @overload
    def inverse_transform(self, X: Any, out: PathLike | Array) -> Array: ...
    @overload
    def inverse_transform(self, X: Any, out: None = None) -> Floats: ...
    def inverse_transform(self, X: Any, out: PathLike | Array | None = None) -> Array | Floats:
        """Rows whose coordinates along the components are those of X.

        Parameters
        ----------
        X : Array or array_like of shape (n_samples, n_components)
        out : path or Array of shape (n_samples, n_features), optional
            As in `transform`.

        Returns
        -------
        Array or ndarray of shape (n_samples, n_features), of the type of X.
        """
        check_is_fitted(self)
        X = X if isinstance(X, Array) or _is_sparse(X) else _floats(np.asarray(unmasked(X, "X")))
        if X.ndim != 2 or X.shape[1] != self.n_components_:
            raise ShapeError(f"X has shape {tuple(X.shape)}, but must have {self.n_components_} columns, one for each component")
        components = self.components_.astype(np.float64, copy=False)
        matrix = components * self._scale()[:, None] if self.whiten else components
        if _is_sparse(X):
            return _map_sparse(self, X, -self.mean_, matrix, out, "reconstructing")
        return self._map(X, np.empty(0), matrix, self.mean_, out, "reconstructing")

    @overload
    def fit_transform(self, X: Array, y: Any = None, out: PathLike | Array | None = None) -> Array: ...
    @overload
    def fit_transform(self, X: Any, y: Any, out: PathLike | Array) -> Array: ...
    @overload
    def fit_transform(self, X: Any, y: Any = None, *, out: PathLike | Array) -> Array: ...
    @overload
    def fit_transform(self, X: Any, y: Any = None, out: None = None) -> Floats: ...
    def fit_transform(self, X: Any, y: Any = None, out: PathLike | Array | None = None) -> Array | Floats:
        """`fit` and then `transform` of the same X."""
        with self._session(X, out)._as_one():
            return self.fit(X).transform(X, out=out)

    def get_covariance(self) -> Floats:
        """The covariance that components and noise stand for.

        Returns
        -------
        ndarray of shape (n_features, n_features): components^T diag(explained variance - noise) components + noise I.
        """
        check_is_fitted(self)
        along = np.maximum(self.explained_variance_ - self.noise_variance_, 0)
        found: Floats = (self.components_.T * along) @ self.components_
        found.flat[:: len(found) + 1] += self.noise_variance_
        return found

    def _scale(self) -> npt.NDArray[np.float64]:
        """Deviation along each component, kept off zero."""
        scale = np.sqrt(self.explained_variance_.astype(np.float64))
        least = np.finfo(np.float64).eps
        scale[scale < least] = least
        return scale

    def _map(self, X: Any, before: Any, matrix: Any, after: Any, out: Any, label: str) -> Any:
        """(X - before) matrix + after, on SSD if either side is there."""
        if _is_sparse(X):
            return _map_sparse(self, X, before @ matrix, matrix, out, label)
        if out is None and not isinstance(X, Array):
            return _map_in_memory(X, before, matrix, after)
        session = self._session(X, out)
        job = _native.affine(
            session._inner, native_operand(X, "X", session), before, np.ascontiguousarray(matrix), after, native_output(out)
        )
        found = session._run(job, label, self.progress)
        return result_of(session, found, out)

    def _checked(self, X: Any, *, reset: bool, least: int = 1) -> Any:
        return super()._checked(X, reset=reset, least=least)

    @property
    def _n_features_out(self) -> int:
        return int(self.components_.shape[0])

    components_: Floats
    explained_variance_: Floats
    explained_variance_ratio_: Floats
    singular_values_: Floats
    mean_: npt.NDArray[np.float64]
    noise_variance_: float
    n_components_: int
    n_samples_: int


class TruncatedSVD(ClassNamePrefixFeaturesOutMixin, TransformerMixin, Estimator):  # type: ignore[misc]
    """Linear dimensionality reduction by the largest singular values, without centring: latent semantic analysis.

    `outcore.linalg.svds` of a matrix that may be larger than memory, and one pass for each `transform`. Takes an `outcore.Sparse`
    or `outcore.Array` (its result is an `outcore.Array`), or what scikit-learn's TruncatedSVD takes (a NumPy array).

    Parameters
    ----------
    n_components : int
        From 1 to min(n_samples, n_features).
    tol : float
        Residuals of singular triplets, relative to the largest singular value.
    method : {"auto", "krylov", "randomized"}
        As of `outcore.linalg.svds`.
    warm_start : bool
        Whether `fit` begins with the components of the last one, if there are any of as many features: of a matrix that has
        only got more rows, or changed a little, it takes fewer passes.
    memory, random_state, progress
        As of `PCA`.

    Attributes
    ----------
    components_ : ndarray of shape (n_components, n_features)
        Right singular vectors in rows, by descending singular value; the entry of largest magnitude of each is positive, as in
        scikit-learn.
    singular_values_ : ndarray of shape (n_components,)
    explained_variance_, explained_variance_ratio_ : ndarray of shape (n_components,)
        Variance of the coordinates along each component, and its part of the variance of all features.
    residuals_ : ndarray of shape (n_components,)
        |A^T u - s v| of each triplet.
    passes_ : int
        Products with a block of vectors.
    n_features_in_ : int
    trace_ : Trace

    Examples
    --------
    >>> topics = TruncatedSVD(100).fit_transform(outcore.open("corpus"))
    """

    _TAKES_SPARSE = True

    def __init__(
        self,
        n_components: int = 2,
        *,
        tol: float = 1e-4,
        method: Method = "auto",
        warm_start: bool = False,
        memory: int | str | None = None,
        random_state: Any = None,
        progress: bool | None = None,
    ) -> None:
        self.n_components = n_components
        self.tol = tol
        self.method = method
        self.warm_start = warm_start
        self.memory = memory
        self.random_state = random_state
        self.progress = progress

    def fit(self, X: Any, y: Any = None) -> TruncatedSVD:
        """Finds the components of X.

        Parameters
        ----------
        X : Sparse, Array, SciPy sparse matrix or array_like of shape (n_samples, n_features)
        y : ignored

        Raises
        ------
        ArgumentError
            For more components than there are. NotFiniteError for NaN or infinity.
        """
        with self._fitting(X) as (X, session, run):
            (samples, features), wanted = X.shape, self.n_components
            if not isinstance(wanted, Integral) or isinstance(wanted, bool) or not 1 <= wanted <= min(samples, features):
                raise ArgumentError(
                    f"n_components={wanted!r} must be an integer from 1 to min(n_samples={samples}, n_features={features})"
                )
            seed = seed_of(self.random_state)
            options = native_options(wanted, tol=self.tol, method=self.method, random_state=seed, left=False)
            matrix, columns = _columns(X, session, run)
            found = run(_native.svds(session._inner, matrix, options, known=_known(self, wanted, features)), "finding components")
            convergence(found, self.tol, stacklevel=3)
            self._keep(found, components_of(session, found), columns, computed(X))
        return self

    def _keep(self, found: dict[str, Any], components: Floats, columns: dict[str, Any], dtype: np.dtype[Any]) -> None:
        samples, values = columns["count"], found["values"][::-1]
        variance = np.maximum(values**2 / samples - (components @ columns["mean"]) ** 2, 0)
        total = columns["m2"].sum() / samples
        self.components_ = components.astype(dtype, copy=False)
        self.singular_values_ = values.astype(dtype, copy=False)
        self.residuals_, self.passes_ = found["residuals"][::-1].copy(), found["products"]
        self.explained_variance_ = variance.astype(dtype, copy=False)
        self.explained_variance_ratio_ = (variance / total if total > 0 else np.zeros(len(values))).astype(dtype, copy=False)

    def transform(self, X: Any, out: PathLike | Array | None = None) -> Any:
        """Coordinates of the rows of X along the components.

        Parameters
        ----------
        X : Sparse, Array, SciPy sparse matrix or array_like of shape (n_samples, n_features)
        out : path or Array of shape (n_samples, n_components), optional
            As of `PCA.transform`.

        Returns
        -------
        Array or ndarray of shape (n_samples, n_components), of the type of X.
        """
        check_is_fitted(self)
        X = self._checked(X, reset=False)
        return self._map(X, self.components_.T, out, "projecting")

    def inverse_transform(self, X: Any, out: PathLike | Array | None = None) -> Any:
        """Rows whose coordinates along the components are those of X.

        Parameters
        ----------
        X : Array or array_like of shape (n_samples, n_components)
        out : path or Array of shape (n_samples, n_features), optional
            As of `PCA.transform`.

        Returns
        -------
        Array or ndarray of shape (n_samples, n_features), of the type of X.
        """
        check_is_fitted(self)
        X = X if isinstance(X, Array) or _is_sparse(X) else _floats(np.asarray(unmasked(X, "X")))
        kept = len(self.components_)
        if X.ndim != 2 or X.shape[1] != kept:
            raise ShapeError(f"X has shape {tuple(X.shape)}, but must have {kept} columns, one for each component")
        return self._map(X, self.components_, out, "reconstructing")

    def fit_transform(self, X: Any, y: Any = None, out: PathLike | Array | None = None) -> Any:
        """`fit` and then `transform` of the same X."""
        with self._session(X, out)._as_one():
            return self.fit(X).transform(X, out=out)

    def _map(self, X: Any, matrix: Any, out: Any, label: str) -> Any:
        none, matrix = np.empty(0), np.ascontiguousarray(matrix, np.float64)
        if _is_sparse(X):
            return _map_sparse(self, X, none, matrix, out, label)
        if out is None and not isinstance(X, Array):
            return _map_in_memory(X, none, matrix, none)
        session = self._session(X, out)
        job = _native.affine(session._inner, native_operand(X, "X", session), none, matrix, none, native_output(out))
        return result_of(session, session._run(job, label, self.progress), out)

    def _checked(self, X: Any, *, reset: bool, least: int = 1) -> Any:
        return super()._checked(X, reset=reset, least=2 if reset else least)

    @property
    def _n_features_out(self) -> int:
        return len(self.components_)

    components_: Floats
    singular_values_: Floats
    explained_variance_: Floats
    explained_variance_ratio_: Floats
    residuals_: npt.NDArray[np.float64]
    passes_: int


def _is_sparse(x: Any) -> bool:
    return isinstance(x, Sparse) or is_scipy(x)


def _known(estimator: PCA | TruncatedSVD, count: int, features: int) -> npt.NDArray[np.float64] | None:
    """The components that a search begins with, up to `count`."""
    known = getattr(estimator, "components_", None) if estimator.warm_start else None
    if known is None or known.shape[1] != features:
        return None
    return np.ascontiguousarray(known[:count], np.float64).ravel()


def _is_iterated(shape: tuple[int, int], element_bytes: int, count: int, memory: int) -> bool:
    """Whether components come from an iteration: where its operations, and those that cores could do while its passes read, are
    fewer than those of a covariance, which is made in parts of two fifths of the memory."""
    samples, features = shape
    block = 16
    passes = 12 + 3 * count / block
    reading = OPERATIONS_A_BYTE * element_bytes
    parts = max(1, -(-4 * features**2 // (memory * 2 // 5)))
    return passes * (4 * NARROW * block + reading) < features + parts * reading and samples > count


def _is_summed(shape: tuple[int, int], entries: int, count: int) -> bool:
    """Whether components of sparse rows come from a covariance: where its operations are fewer than those of the iteration."""
    samples, features = shape
    block = 16
    passes = 12 + 3 * count / block
    pairs = entries * (entries / max(samples, 1) + 1) / 2
    scattered = SCATTERED[4 * features**2 > CACHED_BYTES]
    # All eigenvectors at once where few are left out.
    searched = max(SEARCHED * features**2, 3 * features**3 if 5 * count > features else 0)
    return scattered * pairs + searched < passes * 4 * block * entries


def _columns(x: Any, session: Session, run: Run, team: Any = None) -> tuple[Any, dict[str, Any]]:
    """The matrix as searches take it, and statistics of its columns, which must be finite."""
    if _is_sparse(x):
        matrix: Any = native_sparse(x, session, "X")
        statistics = _native.sparse_column_statistics(session._inner, matrix, team)
    else:
        matrix = native_operand(x, "X", session)
        statistics = _native.column_statistics(session._inner, matrix, None)
    columns = run(statistics, "averaging", stand_in=lambda: _columns_like(x))
    check_finite(x, columns)
    return matrix, columns


def _columns_like(x: Any) -> dict[str, Any]:
    """Statistics of columns with the same number of entries each, for what is only planned."""
    features = x.shape[1]
    entries = x.nnz if _is_sparse(x) else x.shape[0] * features
    none = np.zeros(features)
    nonzeros = np.full(features, entries // max(features, 1), np.uint64)
    return {"count": x.shape[0], "mean": none, "m2": np.ones(features), "min": none, "max": none, "nonzeros": nonzeros}


def _map_sparse(estimator: Estimator, x: Any, shift: Any, matrix: Any, out: Any, label: str) -> Any:
    """x matrix - shift, for sparse rows; an empty shift has no effect."""
    matrix = np.ascontiguousarray(matrix, computed(x) if isinstance(x, Sparse) else _float_of(x))
    kept, progress = estimator._session(x, out), estimator.progress
    if len(shift) == 0:
        return csrmm(x, matrix, out, memory=estimator.memory, progress=progress)
    product = csrmm(x, matrix, memory=estimator.memory, progress=progress)
    if isinstance(product, np.ndarray) and out is None:
        product -= shift.astype(product.dtype)
        return product
    same = np.eye(matrix.shape[1])
    operand = native_operand(product, "the product", kept)
    job = _native.affine(kept._inner, operand, np.ascontiguousarray(shift), same, np.empty(0), native_output(out))
    return result_of(kept, kept._run(job, label, progress), out)


def _float_of(x: Any) -> np.dtype[Any]:
    return np.dtype(np.float32 if x.dtype == np.float32 else np.float64)


def _floats(x: npt.NDArray[Any]) -> npt.NDArray[Any]:
    if x.dtype.kind not in "fiub" and not is_decoded(x.dtype):
        raise DTypeError(f"X is {x.dtype}, but must be numbers")
    return x.astype(computed(x) if is_decoded(x.dtype) or x.dtype == np.float32 else np.float64, copy=False)


def _map_in_memory(x: npt.NDArray[Any], before: Any, matrix: Any, after: Any) -> npt.NDArray[Any]:
    found = np.empty((len(x), matrix.shape[1]), x.dtype)
    matrix = matrix.astype(x.dtype, copy=False)
    rows = max(1, BLOCK_BYTES // max(1, 8 * x.shape[1]))
    for start in range(0, len(x), rows):
        part = x[start : start + rows]
        centred = (part - before).astype(x.dtype, copy=False) if len(before) else part
        product = found[start : start + rows]
        np.matmul(centred, matrix, out=product)
        if len(after):
            product += after.astype(x.dtype, copy=False)
    return found
