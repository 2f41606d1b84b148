"""Words to numbers, for corpora bigger than memory, as scikit-learn estimators."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, overload

import numpy as np
import numpy.typing as npt
import scipy.sparse
from sklearn.base import OneToOneFeatureMixin, TransformerMixin
from sklearn.utils._set_output import _wrap_data_with_container
from sklearn.utils.validation import check_is_fitted

from . import _native
from ._array import Array
from ._estimator import Estimator
from ._settings import PathLike, full_path
from ._sparse import Sparse, is_scipy, native_sparse, refuse_dense
from .errors import ArgumentError

if TYPE_CHECKING:
    from ._sparse import ScipyMatrix

__all__ = ["TfidfTransformer"]


def __dir__() -> list[str]:
    return sorted(__all__)


class TfidfTransformer(OneToOneFeatureMixin, TransformerMixin, Estimator):  # type: ignore[misc]
    """Term frequency times inverse document frequency, as scikit-learn's `TfidfTransformer`.

    `fit` reads the counts once, `transform` reads them and writes a matrix of the same shape. Takes an `outcore.Sparse` (its
    result is one too) or what scikit-learn's takes (the result is a SciPy matrix).

    Parameters
    ----------
    norm : {"l2", None}
        Give each row Euclidean norm 1 at last.
    use_idf : bool
        Weigh each column by its inverse document frequency.
    smooth_idf : bool
        As if one more row had every word once: ln((1 + n) / (1 + df)) + 1, which divides by no zero; else ln(n / df) + 1.
    sublinear_tf : bool
        1 + ln(tf) in place of tf.
    memory : int or str, optional
        The part of the session's budget that `fit` and `transform` may have; default all of it.
    progress : bool, optional
        Show progress bars; default on a terminal and in a notebook, where it takes more than a second.

    Attributes
    ----------
    idf_ : ndarray of shape (n_features_in_,), float64
        One everywhere without `use_idf`.
    n_features_in_ : int
    trace_ : Trace
        How the pass over the counts went, with `use_idf`; not kept when the estimator is pickled.

    Examples
    --------
    >>> weighted = TfidfTransformer().fit_transform(outcore.open("counts"), out="weighted")
    """

    def __init__(
        self,
        *,
        norm: Literal["l2"] | None = "l2",
        use_idf: bool = True,
        smooth_idf: bool = True,
        sublinear_tf: bool = False,
        memory: int | str | None = None,
        progress: bool | None = None,
    ) -> None:
        self.norm = norm
        self.use_idf = use_idf
        self.smooth_idf = smooth_idf
        self.sublinear_tf = sublinear_tf
        self.memory = memory
        self.progress = progress

    def fit(self, X: Any, y: Any = None) -> TfidfTransformer:
        """Counts in how many rows each column has entries.

        Parameters
        ----------
        X : Sparse or sparse matrix of shape (n_samples, n_features)
            Counts of words, none negative.
        y : ignored
        """
        with self._fitting(X) as (X, session, run):
            if self.norm not in ("l2", None):
                raise ArgumentError(f"norm must be 'l2' or None, not {self.norm!r}")
            samples, features = X.shape
            if not self.use_idf:
                self.idf_ = np.ones(features)
                return self
            job = _native.sparse_column_statistics(session._inner, native_sparse(X, session, "X"), None)
            rows = run(job, "column statistics")["nonzeros"].astype(np.float64) + bool(self.smooth_idf)
            with np.errstate(divide="ignore"):
                self.idf_ = np.log((samples + bool(self.smooth_idf)) / rows) + 1.0
        return self

    @overload
    def transform(self, X: Sparse, out: PathLike | None = None) -> Sparse: ...
    @overload
    def transform(self, X: Any, out: PathLike) -> Sparse: ...
    @overload
    def transform(self, X: Any, out: None = None) -> ScipyMatrix: ...
    def transform(self, X: Any, out: PathLike | None = None) -> Sparse | ScipyMatrix:
        """Weighs the entries of X.

        Parameters
        ----------
        X : Sparse or sparse matrix of shape (n_samples, n_features)
        out : path, optional
            A folder for the result, which replaces an existing matrix when it is complete. Default: an unnamed matrix on SSD
            for a `Sparse`, a SciPy matrix for anything else.

        Returns
        -------
        Sparse or SciPy sparse matrix of shape (n_samples, n_features).
        """
        check_is_fitted(self)
        # Of sparse results there are no data frames: what scikit-learn says of one from SciPy, before anything is computed.
        _wrap_data_with_container("transform", scipy.sparse.csr_matrix((0, 0)), X, self)
        X = self._checked(X, reset=False)
        session = self._session(X)
        path = None if out is None else full_path(out)
        factors = self.idf_ if self.use_idf else None
        job = _native.sparse_scaled(
            session._inner, native_sparse(X, session, "X"), path, None, None, factors, self.sublinear_tf, self.norm == "l2"
        )
        with session._as_one():
            found = Sparse._result(session, session._run(job, "weighing words", self.progress))
            return found if isinstance(X, Sparse) or out is not None else found.scipy()

    @overload
    def fit_transform(self, X: Sparse, y: Any = None, out: PathLike | None = None) -> Sparse: ...
    @overload
    def fit_transform(self, X: Any, y: Any, out: PathLike) -> Sparse: ...
    @overload
    def fit_transform(self, X: Any, y: Any = None, *, out: PathLike) -> Sparse: ...
    @overload
    def fit_transform(self, X: Any, y: Any = None, out: None = None) -> ScipyMatrix: ...
    def fit_transform(self, X: Any, y: Any = None, out: PathLike | None = None) -> Sparse | ScipyMatrix:
        """`fit` and then `transform` of the same X."""
        with self._session(X)._as_one():
            return self.fit(X).transform(X, out=out)

    def _checked(self, X: Any, *, reset: bool, least: int = 1) -> Any:
        if isinstance(X, Array):
            # Dense arrays in memory are accepted, as in scikit-learn; on SSD they could be of any size.
            refuse_dense(X, "X")
        found = super()._checked(X, reset=reset, least=least)
        return found if isinstance(found, Sparse) or is_scipy(found) else scipy.sparse.csr_matrix(found)

    _TAKES_SPARSE = True

    idf_: npt.NDArray[np.float64]
