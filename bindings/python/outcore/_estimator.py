"""The base of all estimators: session, checks of data in memory and on SSD, the runs of a fit, tags, plans, and pickling."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from numbers import Integral
from typing import Any, ClassVar, Protocol

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state
from sklearn.utils.validation import validate_data

from . import _native
from ._array import Array, in_memory, session_of, unmasked
from ._dtypes import is_decoded
from ._plan import Plan, explain
from ._session import Session
from ._sparse import Sparse
from ._trace import Trace
from .errors import ArgumentError, NotFiniteError, ShapeError

__all__ = ["Estimator", "check_finite", "seed_of"]


class Run(Protocol):
    """The result of a job of a fit. `keep` makes a model of the partial result of one that Ctrl-C ends; `stand_in` is what a fit
    that is only planned goes on with."""

    def __call__(
        self,
        job: _native.Job,
        label: str,
        keep: Callable[[Any], None] | None = None,
        stand_in: Callable[[], Any] | None = None,
    ) -> Any: ...


class Estimator(BaseEstimator):  # type: ignore[misc]
    """A scikit-learn estimator with a budget (`memory`) and progress bars (`progress`), for matrices in memory and on SSD.

    Attributes
    ----------
    trace_ : Trace
        How the runs of `fit` went, where it makes any; not kept when the estimator is pickled.
    """

    memory: int | str | None
    progress: bool | None
    n_features_in_: int
    trace_: Trace

    _TAKES_SPARSE: ClassVar[bool] = False

    def explain(self, X: Any) -> Plan:
        """The plan of `fit`: its reads, writes and memory. No data is moved, and a fitted model is kept.

        Returns
        -------
        Plan
        """
        return explain(self.fit, X)

    def _session(self, *operands: Any) -> Session:
        """That of the first operand on SSD, with the estimator's budget."""
        return session_of(*operands, memory=self.memory)

    @contextlib.contextmanager
    def _fitting(self, X: Any, least: int = 1, held: Callable[[Any], int] | None = None) -> Iterator[tuple[Any, Session, Run]]:
        """X as it is fitted, its session, and what carries out a job of the fit. All that runs inside has one trace, `trace_`.

        X has `least` rows at least. `held` are bytes of the budget for arrays that the fit of X holds between its runs.

        After Ctrl-C or an error the estimator is what it was before; if the job that Ctrl-C ended has a partial result, what
        `keep` makes of that, with nothing else learned.
        """
        before = dict(self.__dict__)
        try:
            X = self._checked(X, reset=True, least=least)
            whole = self._session(X)
            shapes = {name: self.__dict__[name] for name in ("n_features_in_", "feature_names_in_") if name in self.__dict__}

            def run(
                job: _native.Job,
                label: str,
                keep: Callable[[Any], None] | None = None,
                stand_in: Callable[[], Any] | None = None,
            ) -> Any:
                def partial(found: Any) -> None:
                    nonlocal before
                    self._restore({name: value for name, value in before.items() if not name.endswith("_")} | shapes)
                    assert keep is not None, "only then is there a partial result"
                    keep(found)
                    before = dict(self.__dict__)

                return session._run(job, label, self.progress, partial if keep else None, stand_in)

            self.__dict__.pop("trace_", None)
            last = whole._whole._trace
            with whole._beside(0 if held is None else held(X)) as session, session._as_one():
                yield X, session, run
            if whole._whole._trace is not last:
                self.trace_ = whole._whole.last_trace()
        except BaseException:
            self._restore(before)
            raise

    def _restore(self, attributes: dict[str, Any]) -> None:
        self.__dict__.clear()
        self.__dict__.update(attributes)

    def _checked(self, X: Any, *, reset: bool, least: int = 1) -> Any:
        """X as float32 or float64, of `least` rows at least: with scikit-learn's checks in memory, with ours on SSD.

        Types of fewer bits become float32 in memory, as operations make of them on SSD.
        With `reset` its features are those that are known from now on, else it must have as many.
        """
        if not isinstance(X, (Array, Sparse)):
            X = unmasked(in_memory(X), "X")
            accepted = "csr" if self._TAKES_SPARSE else False
            is_small = isinstance(X, np.ndarray) and is_decoded(X.dtype)
            dtypes = np.float32 if is_small else [np.float64, np.float32]
            found = validate_data(self, X, reset=reset, dtype=dtypes, accept_sparse=accepted, ensure_min_samples=least)
            return found if found.dtype.isnative else found.astype(found.dtype.newbyteorder("="))
        if X.ndim != 2:
            seen = "; see it as rows with X.reshape(len(X), -1)" if X.ndim > 2 else ""
            raise ShapeError(f"{X!r} has {X.ndim} dimension(s), but rows (samples) and columns (features) are expected{seen}")
        if X.shape[0] < least:
            raise ArgumentError(f"{X!r} has {X.shape[0]} sample(s), but at least {least} are needed")
        if reset:
            self.n_features_in_ = X.shape[1]
            if hasattr(self, "feature_names_in_"):
                del self.feature_names_in_
        elif X.shape[1] != self.n_features_in_:
            expected = f"but {type(self).__name__} is expecting {self.n_features_in_} features as input"
            raise ShapeError(f"{X!r} has {X.shape[1]} features, {expected}")
        return X

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = self._TAKES_SPARSE
        if tags.transformer_tags is not None:
            tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags

    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = dict(super().__getstate__())
        state.pop("trace_", None)
        if "comm" in state:
            # Ranks are those of this process.
            state["comm"] = None
        return state


def seed_of(state: Any) -> int:
    """None stands for 0."""
    state = 0 if state is None else state
    if not isinstance(state, Integral):
        return int(check_random_state(state).randint(1 << 31))
    if not 0 <= int(state) < 1 << 64:
        raise ArgumentError(f"random_state={state} must be between 0 and 2^64 - 1")
    return int(state)


def check_finite(x: Any, columns: dict[str, Any]) -> None:
    """Refuses what the statistics of its columns say is not finite."""
    bad = np.flatnonzero(~np.isfinite(columns["min"] + columns["max"]))
    if len(bad):
        column = int(bad[0])
        raise NotFiniteError(f"{x!r} has a value that is not finite in column {column}", column=column)
