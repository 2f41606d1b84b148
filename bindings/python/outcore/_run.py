"""Carries out a planned job: waits in short steps, so that Ctrl-C works and the progress bar moves."""

from __future__ import annotations

import contextlib
import importlib
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

from ._native import Job, Running
from .errors import OutcoreError

STEP_S = 0.05
"""Between two looks at signals and progress; Python's own handlers run in between."""

BAR_AFTER_S = 1.0
"""A call that ends sooner shows no bar."""


def execute(job: Job, label: str, progress: bool | None = None, partial: Callable[[Any], None] | None = None) -> Any:
    """The result of `job`. An exception that ends the wait, such as Ctrl-C, also ends the work before it is raised.

    The partial result of an interrupted job that can be resumed is passed to `partial`.
    """
    running = job.start()
    try:
        with Bar(label, progress) as bar:
            while not running.wait(STEP_S):
                bar.update(running.fraction)
        return running.result()
    except OutcoreError:
        raise
    except BaseException:
        _stop(running, partial)
        raise


def _stop(running: Running, partial: Callable[[Any], None] | None) -> None:
    """Cancels and waits until nothing is in flight. A second Ctrl-C during the wait is delayed, not lost."""
    interrupted: KeyboardInterrupt | None = None
    running.cancel()
    while True:
        try:
            if running.wait(STEP_S):
                break
        except OutcoreError:
            break
        except KeyboardInterrupt as again:
            interrupted = again
    if partial is not None:
        with contextlib.suppress(OutcoreError):
            partial(running.result())
    del running
    if interrupted is not None:
        raise interrupted


def in_notebook() -> bool:
    """Whether this is a kernel of Jupyter, which shows output although it is no terminal."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return "IPKernelApp" in (getattr(shell, "config", None) or {})


def is_watched() -> bool:
    """Whether bars are seen: on a terminal, and in a notebook."""
    return in_notebook() or (sys.stderr is not None and sys.stderr.isatty())


def _tqdm() -> Any:
    """A bar of widgets in a notebook, of text anywhere else. Where widgets are missing, tqdm would warn of it: text does too."""
    if "tqdm.auto" not in sys.modules:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            importlib.import_module("tqdm.auto")
    return importlib.import_module("tqdm.auto").tqdm


class Bar(contextlib.AbstractContextManager["Bar"]):
    """A progress bar that appears when it is worth it: `True` at once, `None` after a second if seen, `False` never."""

    def __init__(self, label: str, progress: bool | None) -> None:
        self._label = label
        self._show = is_watched() if progress is None else progress
        self._begin = time.monotonic() + (0 if progress else BAR_AFTER_S)
        self._bar: Any = None

    def update(self, fraction: Callable[[], float]) -> None:
        if not self._show or time.monotonic() < self._begin:
            return
        if self._bar is None:
            form = "{desc}: {percentage:3.0f}%|{bar}| {elapsed}<{remaining}"
            self._bar = _tqdm()(desc=self._label, total=1.0, bar_format=form, leave=False)
        self._bar.update(max(0.0, fraction() - self._bar.n))

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.close()
