"""The plan of a call, as a value."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

from ._session import planned
from ._units import show_bytes
from .errors import ArgumentError

__all__ = ["Plan", "explain"]


class Plan:
    """The predicted reads, writes and memory of a call. It prints as a few lines of text; making it moves no data.

    Attributes
    ----------
    name : str
    tasks, flops : int
        Pieces of work, and arithmetic operations.
    bytes_read, bytes_written : int
        Traffic between device and memory. Of a search in passes, that of the fewest that it can take, if nothing of them stays in
        memory.
    peak_bytes : int
        Peak memory; at most `memory_bytes`.
    floor_bytes : int
        Bytes reserved before anything is read.
    memory_bytes : int
        The budget for which the plan is made.
    bound_bytes : int
        The least traffic known for this work and budget.
    notes : dict of str to str
        Choices of the planner.
    parts : tuple of Plan
        Of work in several plans, each of them; numbers above are then their sums, or the highest of what they hold.
    """

    name: str
    tasks: int
    flops: int
    bytes_read: int
    bytes_written: int
    peak_bytes: int
    floor_bytes: int
    memory_bytes: int
    bound_bytes: int
    notes: dict[str, str]
    parts: tuple[Plan, ...]

    def __init__(self, facts: list[dict[str, Any]], text: str) -> None:
        self._facts, self._text = facts, text
        self.parts = tuple(Plan([each], "") for each in facts) if len(facts) > 1 else ()
        self.name = ", ".join(dict.fromkeys(each["plan"] for each in facts))
        self.tasks, self.flops, self.bound_bytes = (
            sum(each[name] for each in facts) for name in ("tasks", "flops", "bound_bytes")
        )
        self.bytes_read, self.bytes_written = (
            sum(each["predicted"][name] for each in facts) for name in ("bytes_read", "bytes_written")
        )
        self.peak_bytes = max(each["predicted"]["peak_bytes"] for each in facts)
        self.floor_bytes, self.memory_bytes = (max(each[name] for each in facts) for name in ("floor_bytes", "memory_bytes"))
        self.notes = {what: value for each in facts for what, value in each["notes"]}

    @classmethod
    def _of(cls, jobs: list[tuple[str, str]]) -> Plan:
        return cls([facts for told, _ in jobs for facts in json.loads(told)], "\n\n".join(text for _, text in jobs))

    def json(self) -> str:
        """All of it as JSON: a list with one object for each plan."""
        return json.dumps(self._facts)

    def __str__(self) -> str:
        return self._text or repr(self)

    def __repr__(self) -> str:
        moved = f"{show_bytes(self.bytes_read)} read, {show_bytes(self.bytes_written)} written"
        return f"<outcore plan of {self.name}: {moved}, {show_bytes(self.peak_bytes)} held>"


def explain(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Plan:
    """The plan of `function(*args, **kwargs)`: its reads, writes and memory. No data is moved, and no result is made.

    Parameters
    ----------
    function : callable
        A function of outcore or a method of one of its objects, such as `outcore.linalg.gemm`, `outcore.convert` or `pca.fit`; or
        one that calls such a function.
    *args, **kwargs
        Its arguments.

    Returns
    -------
    Plan of the runs that the call would make, up to the first on which others depend. `outcore.linalg.laplacian` returns degrees
    that are made up.

    Raises
    ------
    ArgumentError
        For a call that makes no run. OverBudgetError and all else that the call itself would raise before it moves anything.

    Examples
    --------
    >>> plan = outcore.explain(outcore.linalg.gemm, a, a.T)
    >>> print(plan)
    >>> plan.bytes_read / plan.bound_bytes
    """
    owner = getattr(function, "__self__", None)
    if hasattr(owner, "get_params"):
        # A copy of the estimator learns the shape of the data, so that a fitted model is kept.
        function = getattr(copy.copy(owner), function.__name__)
    jobs = planned(lambda: function(*args, **kwargs))
    if not jobs:
        raise ArgumentError(f"{getattr(function, '__qualname__', function)} makes no run, so there is nothing to plan")
    return Plan._of(jobs)
