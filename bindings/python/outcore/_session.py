"""Sessions: one budget, its threads, its scratch folder; and what is stored in one.

The sessions of a process divide what it may use. A call's `memory=` is a part of its session's budget: `Session._with`.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar, copy_context
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeAlias, TypeVar, overload

import numpy as np
import numpy.typing as npt

from . import _native
from ._dtypes import dtype_of, float_name, type_name
from ._files import void_in_npy
from ._refused import Refusing
from ._run import execute
from ._settings import Driver, Info, Mode, Order, PathLike, Settings, full_path, settings_of, shape_of, whole_number
from ._trace import Trace
from ._units import parse_bytes, show_bytes, show_path
from .errors import ArgumentError, ClosedError, ExistsError, OverBudgetError

if TYPE_CHECKING:
    from typing_extensions import Self

    from ._array import Array
    from ._sparse import Sparse

LEAST_BUDGET = 1 << 20

__all__ = ["DType", "Session", "Stored", "absolute", "default_session", "session_like"]


class Session:
    """A memory budget with compute threads and a scratch folder.

    Most programs need none: the functions of `outcore` use a default session, made on first use, which `outcore.configure`
    changes. Sessions may be used from any thread, and work independently of each other, but they divide what the process may use
    (the memory of the machine, or less where a control group or a resource limit says so; of that, the part that
    `$OUTCORE_MEMORY_SHARE` says, such as `1/4` for each of four processes). A session takes its share when it is made, and gives
    it back when it is closed or dropped and nothing is open in it any more. A forked child begins with nothing taken: what it
    uses of a session is a fresh one with the same settings, which takes its share of what the child may use.

    Parameters
    ----------
    memory : int or str, optional
        Bytes that the library may hold at any time (`"2GiB"`, `512 << 20`). Default: a quarter of what all sessions may have
        together, or what is left of it if that is less.
    scratch : path, optional
        Folder on SSD for unnamed results. Default: `$OUTCORE_SCRATCH`, else `$TMPDIR`, else `/var/tmp`.
    threads : int, optional
        Compute threads, at most 1024. Default: one for each core.
    driver : {"auto", "io_uring", "threads"}
        How bytes reach the device; the default takes io_uring where the system allows it.
    blas : path or {"mkl", "openblas", "blis"}, optional
        A BLAS library to multiply with, instead of the built-in kernels.
    allow_tmpfs_scratch : bool
        Accept a scratch folder that lies in memory.

    Raises
    ------
    ArgumentError
        For a value outside its range. BlasError, if the library cannot be used. OverBudgetError, if other sessions of the process
        have no room left for it: it names the bytes asked for, those that others have taken, and what all may have together.
    """

    def __init__(
        self,
        memory: int | str | None = None,
        scratch: PathLike | None = None,
        threads: int | None = None,
        *,
        driver: Driver = "auto",
        blas: PathLike | None = None,
        allow_tmpfs_scratch: bool = False,
    ) -> None:
        self._start(settings_of(memory, scratch, threads, driver, blas, allow_tmpfs_scratch))

    @classmethod
    def _of(cls, settings: Settings) -> Session:
        made = cls.__new__(cls)
        made._start(settings)
        return made

    def _start(self, settings: Settings) -> None:
        self._settings = settings
        self._process = os.getpid()
        self._session: _native.Session | None = settings.native()
        self._trace: Trace | None = None
        self._bytes = self._session.memory_bytes

    @property
    def _engine(self) -> _native.Session:
        """The engine's session; a fresh one in a forked child."""
        if self._session is None:
            raise ClosedError("the session is closed")
        if self._process != os.getpid():
            self._start(self._settings)
        return self._session

    def close(self) -> None:
        """Gives its share of the memory back, once the matrices, datasets and streams that were opened with it are closed or
        dropped, too. Using it or one of its matrices afterwards raises ClosedError."""
        self._session = None

    @property
    def _is_closed(self) -> bool:
        return self._session is None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    @property
    def _inner(self) -> _native.Session:
        """The same; while a plan is only looked at, one that makes no result for it."""
        return self._engine.planner() if is_planning() else self._engine

    @property
    def _whole(self) -> Session:
        """The session with all of its budget: what outlasts a call belongs to it."""
        return self

    def _with(self, memory: int | str | None) -> Session:
        """This session, for a call that may have a part of its budget.

        Raises
        ------
        OverBudgetError
            For more than the budget.
        """
        if memory is None:
            return self
        size = parse_bytes(memory)
        return self if size == self.memory else _Part(self._whole, size)

    @contextlib.contextmanager
    def _beside(self, held: int) -> Iterator[Session]:
        """This session, for calls beside which arrays take `held` bytes of its budget.

        Raises
        ------
        OverBudgetError
            Where less than the least budget is left for the calls.
        """
        memory, needed = self.memory, held + LEAST_BUDGET
        if needed > memory:
            told = f"{show_bytes(held)} are held between runs, which need {show_bytes(LEAST_BUDGET)}"
            raise OverBudgetError(f"{told}; the budget is {show_bytes(memory)}", needed=needed, available=memory, budget=memory)
        if held == 0 or is_planning():
            yield _Narrowed(self, memory - held) if held else self
            return
        reservation = self._engine.reserve("arrays between runs", held)
        try:
            yield _Narrowed(self, memory - held)
        finally:
            reservation.release()

    def _make_room(self, size: int) -> None:
        """Has the engine give back what it keeps for later runs, as far as it would be too much beside arrays of this size, and
        as far as no other call has the memory.

        Raises
        ------
        OverBudgetError
            For more than the budget.
        """
        memory = self.memory
        if size > memory:
            told = f"{show_bytes(size)} for arrays between runs; the budget is {show_bytes(memory)}"
            raise OverBudgetError(told, needed=size, available=memory, budget=memory)
        if not is_planning():
            with contextlib.suppress(OverBudgetError):
                self._engine.reserve("arrays between runs", size).release()

    def _run(
        self,
        job: _native.Job,
        label: str,
        progress: bool | None,
        partial: Callable[[Any], None] | None = None,
        stand_in: Callable[[], Any] | None = None,
    ) -> Any:
        """The result of a job. `stand_in` is one with which a call that is only planned goes on to its next job."""
        jobs = _planning.get()
        if jobs is not None:
            jobs.append((job.json(), job.text()))
            if stand_in is None:
                raise Planned
            return stand_in()
        began = time.monotonic()
        found = execute(job, label, progress, partial)
        trace = self._inner.last_trace()
        if trace is not None:
            runs = _runs.get()
            if runs is not None:
                runs.add(trace, began)
            self._keep(trace)
        return found

    def _keep(self, trace: _native.Trace) -> None:
        global _last
        self._trace = _last = Trace(trace)

    @contextlib.contextmanager
    def _as_one(self) -> Iterator[None]:
        """Makes one trace of what this thread runs inside."""
        if _runs.get() is not None:
            yield
            return
        runs = _Runs(self.threads)
        token = _runs.set(runs)
        try:
            yield
        finally:
            _runs.reset(token)
            if runs.count > 1:
                self._keep(runs.traces.merged())

    @property
    def memory(self) -> int:
        """The budget in bytes."""
        return self._inner.memory_bytes

    @property
    def threads(self) -> int:
        """Compute threads."""
        return self._inner.threads

    def info(self) -> Info:
        """The settings of the session: budget, threads, driver (and why it is not io_uring, if so), BLAS, scratch folder."""
        found: Info = {"version": _native.VERSION, **self._inner.info()}  # type: ignore[typeddict-item]
        return found

    def last_trace(self) -> Trace:
        """The trace of the last call of this session: all of its runs, and all of a `fit`."""
        return _some(self._trace)

    @overload
    def open(
        self,
        path: PathLike,
        *,
        dtype: npt.DTypeLike,
        shape: int | Sequence[int],
        order: Order = ...,
        offset: int = ...,
        leading_dimension: int | None = ...,
        interrupted: bool = ...,
    ) -> Array: ...
    @overload
    def open(self, path: PathLike, *, interrupted: Literal[True]) -> Array: ...
    @overload
    def open(
        self,
        path: PathLike,
        *,
        dtype: npt.DTypeLike | None = None,
        shape: int | Sequence[int] | None = None,
        order: Order = ...,
        offset: int = ...,
        leading_dimension: int | None = ...,
        interrupted: bool = ...,
    ) -> Array | Sparse: ...
    def open(
        self,
        path: PathLike,
        *,
        dtype: npt.DTypeLike | None = None,
        shape: int | Sequence[int] | None = None,
        order: Order = "C",
        offset: int = 0,
        leading_dimension: int | None = None,
        interrupted: bool = False,
    ) -> Array | Sparse:
        """As `outcore.open`."""
        from ._array import Array, Origin
        from ._sparse import Sparse

        if self._inner.is_sparse(full_path(path)):
            if dtype is not None or shape is not None or interrupted:
                raise ArgumentError("a sparse matrix, which is a folder, is opened by its path alone")
            return Sparse._open(self, full_path(path))

        if dtype is not None and shape is None and (found := void_in_npy(full_path(path), type_name(dtype))) is not None:
            shape, order, offset = found
        if (dtype is None) != (shape is None):
            raise ArgumentError(
                "a raw file needs both dtype and shape; a .npy file neither, or the dtype of what NumPy saves as void"
            )
        raw = None
        if dtype is not None and shape is not None:
            leading = None if leading_dimension is None else whole_number(leading_dimension, "leading_dimension", "elements")
            raw = (type_name(dtype), shape_of(shape), order, whole_number(offset, "offset", "bytes"), leading)
        return Array._open(self, Origin(full_path(path), raw, interrupted))

    def create(
        self,
        path: PathLike,
        shape: int | Sequence[int],
        dtype: npt.DTypeLike = "float32",
        *,
        order: Order = "C",
        mode: Mode = "x",
    ) -> Array:
        """As `outcore.create`."""
        from ._array import Array, Origin

        if mode not in ("x", "w"):
            raise ArgumentError(f"mode must be 'x' (a new file) or 'w' (which replaces one), not {mode!r}")
        absolute = full_path(path)
        try:
            matrix = _native.create_matrix(self._inner, absolute, type_name(dtype), shape_of(shape), order, mode == "w")
        except ExistsError as error:
            raise ExistsError(f"{error}; mode='w' replaces it", object=absolute) from None
        return Array(self, matrix, Origin(absolute))

    def from_numpy(
        self,
        path: PathLike,
        x: npt.ArrayLike,
        *,
        dtype: npt.DTypeLike | None = None,
        order: Order | None = None,
        progress: bool | None = None,
    ) -> Array:
        """As `outcore.from_numpy`."""
        from ._array import Array, Origin, memory_operand, numbers

        values = numbers(x, "x")
        if not values.ndim:
            raise ArgumentError("x has no dimension; arrays have one or more")
        kind = type_name(values.dtype if dtype is None else dtype)
        numbers(values, "x", into=dtype_of(kind))
        by_columns = values.ndim == 2 and values.flags.f_contiguous and not values.flags.c_contiguous
        order = order or ("F" if by_columns else "C")
        operand = memory_operand(values, kind)
        if operand is None:
            return self._written(full_path(path), values, kind, order, progress)
        self._run(_native.convert(self._inner, operand, full_path(path), kind, order), "writing", progress)
        return Array._open(self, Origin(full_path(path)))

    def _written(self, path: str, values: npt.NDArray[Any], kind: str, order: Order, progress: bool | None) -> Array:
        """A new file written in pieces, which gets its name when it is complete."""
        from ._array import Array, Origin

        draft = _native.draft_matrix(self._engine, path, kind, shape_of(values.shape), order)
        try:
            Array(self, draft, None)._assign(..., values, progress)
            draft.finish()
        finally:
            # A stored traceback must not keep the file open.
            draft.discard()
        return Array._open(self, Origin(path))

    def from_scipy(self, path: PathLike, x: Any, *, dtype: npt.DTypeLike | None = None, progress: bool | None = None) -> Sparse:
        """As `outcore.from_scipy`."""
        from ._sparse import Sparse, canonical, native_sparse

        x = canonical(x)
        type_name(x.dtype)
        matrix = native_sparse(x, self, "x")
        kind = None if dtype is None else float_name(dtype)
        job = _native.sparse_scaled(self._inner, matrix, full_path(path), kind, None, None, False, False)
        return Sparse._result(self, self._run(job, "writing", progress))

    def accept(self, path: PathLike) -> None:
        """As `outcore.accept`."""
        self._inner.accept(full_path(path))

    def __repr__(self) -> str:
        if self._is_closed:
            return "<outcore session, closed>"
        return f"<outcore session: {show_bytes(self.memory)}, {self.threads} threads>"


class _Part(Session):
    """A session, for calls that may have a part of its budget: taken from it while anything of such a call is reserved."""

    def __init__(self, whole: Session, size: int) -> None:
        self._settings = whole._settings
        self._trace = None
        self._bytes = size
        self._wide = whole
        self._process = os.getpid()
        self._session = self._made()

    def _made(self) -> _native.Session:
        return self._wide._engine.part(self._bytes)

    @property
    def _engine(self) -> _native.Session:
        if self._session is None or self._process != os.getpid():
            self._process = os.getpid()
            self._session = self._made()
        return self._session

    @property
    def _whole(self) -> Session:
        return self._wide._whole

    def _keep(self, trace: _native.Trace) -> None:
        super()._keep(trace)
        self._whole._trace = self._trace


class _Narrowed(_Part):
    """A session, for calls beside which the rest of its budget is reserved."""

    def _made(self) -> _native.Session:
        return self._wide._engine.narrowed(self._bytes)


class _Runs:
    """Runs that are to have one trace."""

    def __init__(self, threads: int) -> None:
        self.traces, self.count, self.since = _native.Traces(threads), 0, 0.0

    def add(self, trace: _native.Trace, began: float) -> None:
        """One that began at this second."""
        if self.count == 0:
            self.since = began
        self.count += 1
        self.traces.add(trace, began - self.since)


class Planned(BaseException):
    """Ends a call whose plan is only looked at, where what follows depends on data; no handler of errors is to stop it."""


_planning: ContextVar[list[tuple[str, str]] | None] = ContextVar("_planning", default=None)
"""What the jobs of a call that is only planned say of themselves, as JSON and as text."""


def is_planning() -> bool:
    """Whether what this thread calls is only to be looked at."""
    return _planning.get() is not None


def planned(call: Callable[[], Any]) -> list[tuple[str, str]]:
    """What the jobs that a call would run say of themselves, as JSON and as text, up to the first on whose result others depend.
    The call has a context of its own, so that nothing has to be set back: Ctrl-C may come at any moment."""
    jobs: list[tuple[str, str]] = []

    def planning() -> None:
        _planning.set(jobs)
        with contextlib.suppress(Planned):
            call()

    copy_context().run(planning)
    return jobs


_default: Session | None = None
_default_settings = Settings()
_default_lock = threading.Lock()
_alike: weakref.WeakValueDictionary[Settings, Session] = weakref.WeakValueDictionary()
"""Made for what came from other processes, as long as it is used."""
_last: Trace | None = None
_runs: ContextVar[_Runs | None] = ContextVar("_runs", default=None)


def default_session() -> Session:
    """The session of the functions of `outcore`, made on first use."""
    global _default
    found = _default
    if found is None or found._is_closed:
        with _default_lock:
            if _default is None or _default._is_closed:
                _default = Session._of(_default_settings)
            found = _default
    return found


def session_like(settings: Settings) -> Session:
    """The session of this process with such settings: the default one, if it has them, or one shared by its other users."""
    with _default_lock:
        if _default is not None and _default._settings == settings and not _default._is_closed:
            return _default
        found = _alike.get(settings)
        if found is None or found._is_closed:
            found = _alike[settings] = Session._of(settings)
        return found


def replace_default(settings: Settings) -> Session:
    """A default session with these settings; the share of the one before goes back first, if nothing is open in it.

    Where that is not so and both do not fit, a default session with the same settings stays, and any other is refused.
    """
    global _default, _default_settings
    with _default_lock:
        before = weakref.ref(_default) if _default is not None else lambda: None
        _default = None
        try:
            _default = Session._of(settings)
        except BaseException as error:
            # Where nothing else has kept it, the next call makes it again.
            _default = before()
            stays = isinstance(error, OverBudgetError) and _default is not None and settings == _default_settings
            if not stays or _default is None or _default._is_closed:
                raise
        _default_settings = settings
        return _default


def last_run() -> Trace:
    return _some(_last)


def _some(trace: Trace | None) -> Trace:
    if trace is None:
        raise ArgumentError("nothing has been run yet")
    return trace


def _fresh_lock() -> None:
    """A forked child may have inherited the lock while another thread held it."""
    global _default_lock
    _default_lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_fresh_lock)


DType: TypeAlias = np.dtype[Any]

Native = TypeVar("Native", "_native.Matrix", "_native.SparseMatrix")


class Stored(Refusing, ABC, Generic[Native]):
    """A matrix, or a view of one, with its session and its path; opened again in a forked child on first use."""

    __slots__ = ("_dtype", "_matrix", "_process", "_session")

    def __init__(self, session: Session, matrix: Native) -> None:
        self._session = session._whole
        self._matrix: Native | None = matrix
        self._dtype: DType = dtype_of(matrix.dtype)
        self._process = os.getpid()

    @property
    @abstractmethod
    def _file(self) -> str | None:
        """The path, if it has one."""

    @abstractmethod
    def _reopened(self) -> Native:
        """The same view, of its file opened again."""

    @property
    def _inner(self) -> Native:
        """The matrix, opened again in a forked child."""
        if self._session._is_closed:
            self._matrix = None
        if self._matrix is None:
            raise ClosedError(f"the {self._NOUN} is closed")
        if self._process != os.getpid():
            if self._file is None:
                raise ClosedError(
                    f"an unnamed {self._NOUN} belongs to the process that made it; give it a path to use it in a forked child"
                )
            self._matrix = self._reopened()
            self._process = os.getpid()
        return self._matrix

    @property
    def _is_open(self) -> bool:
        """Whether it can be asked about without opening a file again."""
        return self._process == os.getpid()

    @property
    def dtype(self) -> DType:
        """The type of the elements."""
        return self._dtype

    @property
    def path(self) -> Path | None:
        """Where it is; `None` for an unnamed result."""
        return None if self._file is None else Path(self._file)

    @property
    def session(self) -> Session:
        """The session whose memory operations on it use."""
        return self._session

    @property
    def _where(self) -> str:
        return show_path(self._file)

    def close(self) -> None:
        """Lets go of the file; other views keep it. Using it afterwards raises ClosedError."""
        self._matrix = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _refuse_pickling(self) -> None:
        if self._file is None:
            raise TypeError(f"an unnamed {self._NOUN} cannot be pickled: it is removed with this process; give it a path first")


def absolute(path: Any) -> str | None:
    """Of what a computation made: nothing where it is unnamed."""
    return None if path is None else os.path.abspath(path)
