"""Random projection of data bigger than memory, as a scikit-learn estimator."""

from __future__ import annotations

import warnings
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, overload

import numpy as np
import numpy.typing as npt
from sklearn.base import ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.exceptions import DataDimensionalityWarning
from sklearn.random_projection import johnson_lindenstrauss_min_dim
from sklearn.utils import check_random_state
from sklearn.utils.random import sample_without_replacement
from sklearn.utils.validation import check_is_fitted

from . import _native
from ._array import Array, Floats, native_operand, native_output, result_of
from ._dtypes import computed
from ._estimator import Estimator
from ._plan import Plan, explain
from ._settings import PathLike
from ._sparse import Sparse, is_scipy, native_sparse
from .errors import ArgumentError

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

__all__ = ["SparseRandomProjection"]


def __dir__() -> list[str]:
    return sorted(__all__)


class SparseRandomProjection(ClassNamePrefixFeaturesOutMixin, TransformerMixin, Estimator):  # type: ignore[misc]
    """Fewer features that keep distances, by a sparse random map, as scikit-learn's `SparseRandomProjection`.

    The map has entries of 1 / sqrt(density n_components) with random signs, at random places, and stays in memory; `transform`
    reads X once and writes the projection. Takes an `outcore.Array` or `outcore.Sparse` (the result is an `outcore.Array`) or
    what scikit-learn's takes (the result is a NumPy array).

    Parameters
    ----------
    n_components : int or "auto"
        Features of the result; "auto": as many as keep distances within `eps` (Johnson and Lindenstrauss). Where that is more
        than there are, a `DataDimensionalityWarning` says so, and the map is the identity.
    density : float or "auto"
        The part of the map that is not zero; "auto": 1 / sqrt(n_features), after Li, Hastie and Church (KDD 2006).
    eps : float
        For `n_components="auto"`.
    random_state : int, RandomState or None
        Seed of the map.
    memory : int or str, optional
        The part of the session's budget that `transform` may have; default all of it.
    progress : bool, optional
        Show progress bars; default on a terminal and in a notebook, where it takes more than a second.

    Attributes
    ----------
    components_ : scipy.sparse matrix of shape (n_components_, n_features_in_), CSR, float64
    n_components_, n_features_in_ : int
    density_ : float

    Examples
    --------
    >>> y = SparseRandomProjection(256, random_state=0).fit_transform(outcore.open("corpus"), out="y.npy")
    """

    def __init__(
        self,
        n_components: int | str = "auto",
        *,
        density: float | str = "auto",
        eps: float = 0.1,
        random_state: Any = None,
        memory: int | str | None = None,
        progress: bool | None = None,
    ) -> None:
        self.n_components = n_components
        self.density = density
        self.eps = eps
        self.random_state = random_state
        self.memory = memory
        self.progress = progress

    _TAKES_SPARSE = True

    def explain(self, X: Any) -> Plan:
        """The plan of `fit_transform`; `fit` alone reads nothing. No data is moved.

        Returns
        -------
        Plan
        """
        return explain(self.fit_transform, X)

    def fit(self, X: Any, y: Any = None) -> SparseRandomProjection:
        """Draws the map for the shape of X; none of its elements are read.

        Parameters
        ----------
        X : Array, Sparse, array_like or sparse matrix of shape (n_samples, n_features)
        y : ignored
        """
        with self._fitting(X) as (X, _, _):
            samples, features = X.shape
            reduces = True
            if self.n_components == "auto":
                count = int(johnson_lindenstrauss_min_dim(n_samples=samples, eps=self.eps))
                if count > features:
                    warnings.warn(
                        f"eps={self.eps} and n_samples={samples} need {count} components, more than the {features} features: "
                        "they are kept as they are. Give n_components, or a larger eps, for fewer.",
                        DataDimensionalityWarning,
                        stacklevel=2,
                    )
                    reduces, count = False, features
            elif isinstance(self.n_components, Integral) and not isinstance(self.n_components, bool) and self.n_components >= 1:
                count = int(self.n_components)
            else:
                raise ArgumentError(f"n_components={self.n_components!r} must be a positive integer or 'auto'")
            if self.density == "auto":
                density = 1 / np.sqrt(features)
            elif isinstance(self.density, Real) and 0 < float(self.density) <= 1:
                density = float(self.density)
            else:
                raise ArgumentError(f"density={self.density!r} must be above 0 and at most 1, or 'auto'")
            self.n_components_, self.density_ = count, density
            drawn = _drawn(count, features, density, check_random_state(self.random_state)) if reduces else _identity(features)
            self.components_ = drawn
        return self

    @overload
    def transform(self, X: Array | Sparse, out: PathLike | Array | None = None) -> Array: ...
    @overload
    def transform(self, X: Any, out: PathLike | Array) -> Array: ...
    @overload
    def transform(self, X: Any, out: None = None) -> Floats: ...
    def transform(self, X: Any, out: PathLike | Array | None = None) -> Array | Floats:
        """X times the transpose of the map.

        Parameters
        ----------
        X : Array, Sparse, array_like or sparse matrix of shape (n_samples, n_features)
        out : path or Array of shape (n_samples, n_components), optional
            A `.npy` file, which replaces an existing one when it is complete, or an array that is changed in place. Default:
            an unnamed array on SSD for what is there, a NumPy array for anything else.

        Returns
        -------
        Array or ndarray of shape (n_samples, n_components), of the type of X.
        """
        check_is_fitted(self)
        X = self._checked(X, reset=False)
        session = self._session(X, out)
        stored = isinstance(X, (Array, Sparse))
        turned = self.components_.T.tocsr().astype(computed(X))
        rows = native_sparse(X, session, "X") if isinstance(X, Sparse) or is_scipy(X) else native_operand(X, "X", session)
        job = _native.project(session._inner, rows, native_sparse(turned, session), native_output(out))
        with session._as_one():
            found = session._run(job, "projecting", self.progress)
            result = result_of(session, found, out)
            return result if stored or out is not None else result.numpy()

    @overload
    def fit_transform(self, X: Array | Sparse, y: Any = None, out: PathLike | Array | None = None) -> Array: ...
    @overload
    def fit_transform(self, X: Any, y: Any, out: PathLike | Array) -> Array: ...
    @overload
    def fit_transform(self, X: Any, y: Any = None, *, out: PathLike | Array) -> Array: ...
    @overload
    def fit_transform(self, X: Any, y: Any = None, out: None = None) -> Floats: ...
    def fit_transform(self, X: Any, y: Any = None, out: PathLike | Array | None = None) -> Array | Floats:
        """`fit` and then `transform` of the same X."""
        return self.fit(X).transform(X, out=out)

    @property
    def _n_features_out(self) -> int:
        return int(self.n_components_)

    components_: csr_matrix
    density_: float
    n_components_: int


def _identity(features: int) -> Any:
    """The map that keeps every feature, and so every distance."""
    import scipy.sparse

    return scipy.sparse.identity(features, np.float64, "csr")


def _drawn(count: int, features: int, density: float, random: Any) -> Any:
    """Each row has a binomial number of places, drawn without replacement, and random signs."""
    import scipy.sparse

    lengths = random.binomial(features, density, size=count)
    offsets = np.concatenate(([0], np.cumsum(lengths)))
    places = [np.sort(sample_without_replacement(features, length, random_state=random)) for length in lengths]
    indices: npt.NDArray[Any] = np.concatenate(places) if places else np.empty(0)
    signs = 2.0 * random.randint(0, 2, size=int(offsets[-1])) - 1.0
    values = signs / np.sqrt(density * count)
    return scipy.sparse.csr_matrix((values, indices.astype(np.int32), offsets), shape=(count, features))
