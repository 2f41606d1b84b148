"""Tables of rows, look-ups of theirs, and bags: see `outcore.embedding`."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, cast

import numpy as np
import numpy.typing as npt

from . import _native
from ._dtypes import dtype_of
from ._embedding_calls import Asked, Call, Feature, Features, JaggedBatch, Joined, Mode, Rows, apart, integers, jagged
from ._session import Session, default_session
from ._settings import PathLike, full_path
from ._units import parse_bytes
from .errors import ArgumentError, ShapeError

Policy = Literal["s3-fifo", "lru"]
Optimizer = Literal["sgd", "rowwise_adagrad", "adam"]

ITERATED_ROWS = 1024

WAIT_SECONDS = 0.05
"""Between two looks at whether Ctrl-C was pressed."""


@dataclass(frozen=True)
class Statistics:
    """What was done with a table since it was opened."""

    looked_up: int
    """Row numbers that were looked up, duplicates counted."""
    hits: int
    """Of those, the rows that were in memory."""
    units_read: int
    """What was read of it: rows, or pages of a packed table."""
    replicas_lost: int
    """Rows that were read from their own pages because a page of replicas was damaged or could not be read."""
    cached_rows: int
    """Rows that are in memory."""
    cache_rows: int
    """Rows that have room in memory."""

    @property
    def hit_rate(self) -> float:
        """Part of the look-ups that found their row in memory."""
        return self.hits / self.looked_up if self.looked_up else 0.0


class Failed(NamedTuple):
    """A bag that could not be looked up."""

    feature: int
    bag: int
    error: Exception


@dataclass(frozen=True)
class _Source:
    """What a table is opened from."""

    paths: tuple[str, ...]
    tensor: str | None
    encoding: str | None
    writable: bool = False

    @property
    def native(self) -> tuple[list[str], str | None, str | None, bool]:
        return list(self.paths), self.tensor, self.encoding, self.writable


class _Served:
    """The native tables of a set; fresh ones in a forked child."""

    def __init__(
        self, session: Session, sources: Sequence[_Source], cache: int | None, policy: str, reading: int | None, readers: int
    ) -> None:
        self.session, self.sources = session, tuple(sources)
        self._how = (cache, policy, reading, readers)
        self._lock = threading.Lock()
        self._open()

    def _open(self) -> None:
        tables = [source.native for source in self.sources]
        self._native = _native.Tables(self.session._inner, tables, *self._how)
        self._process = os.getpid()

    @property
    def native(self) -> _native.Tables:
        if self._process != os.getpid():
            with self._lock:
                if self._process != os.getpid():
                    self._open()
        return self._native

    def replace(self, sources: Mapping[int, _Source]) -> None:
        self.native.replace(self.session._inner, [(number, source.native) for number, source in sources.items()])
        self.sources = tuple(sources.get(number, source) for number, source in enumerate(self.sources))

    def __reduce__(self) -> tuple[Any, ...]:
        return _Served._again, (self.sources, self._how)

    @classmethod
    def _again(cls, sources: Sequence[_Source], how: tuple[Any, ...]) -> _Served:
        return cls(default_session(), sources, *how)


class PendingLookUp:
    """A look-up on a thread of its own. `result` waits for it; `fileno` is for `select` and event loops."""

    def __init__(self, native: _native.PendingLookUp, results: Any) -> None:
        self._native, self._results = native, results

    def done(self) -> bool:
        """Whether the result is there."""
        return self._native.wait(0.0)

    def fileno(self) -> int:
        """A descriptor that becomes readable when the result is there, and ends with it."""
        return self._native.fileno()

    def result(self) -> Any:
        """What `TableSet.look_up` returns for the same arguments.

        Raises
        ------
        Those of `TableSet.look_up`.
        """
        while not self._native.wait(WAIT_SECONDS):
            pass
        return _checked(self._native.result(), self._results)


def _checked(failed: list[tuple[int, int, Any]], results: Any) -> Any:
    """The results; where bags failed, the first one's error, which tells of the others."""
    if failed:
        error = failed[0][2]
        error.failed = [Failed(*one) for one in failed]
        error.results = results
        raise error
    return results


class Table:
    """Rows of one length on SSD, read by number.

    `Table.open` opens one. `len(table)` is its number of rows; `table[ids]` are rows as NumPy array, by numbers, lists, slices or
    arrays of numbers.
    """

    def __init__(self, served: _Served, number: int = 0) -> None:
        self._served, self._number = served, number
        described = served.native.describe(number)
        self.name, self._rows, self.dim, self._row_bytes, self.encoding, self._dtype, self.is_packed = described
        self._prefetching: list[PendingLookUp] = []
        """A look-up that is dropped is cancelled."""

    @classmethod
    def open(
        cls,
        path: PathLike | Sequence[PathLike],
        tensor: str | None = None,
        *,
        encoding: str | None = None,
        cache: int | str | None = None,
        policy: Policy = "s3-fifo",
        reading: int | str | None = None,
        readers: int = 2,
        writable: bool = False,
        session: Session | None = None,
    ) -> Table:
        """Opens files as a table; nothing is converted.

        Parameters
        ----------
        path : path or list of paths
            `.npy`, safetensors or GGUF files, a packed table, a folder of the former, or an `*.index.json` of safetensors files.
            Several are one table: the rows of the first, then those of the second, and so on.
        tensor : str, optional
            The tensor's name in safetensors and GGUF files; `*` stands for any part of it, and several tensors for one table in
            the order of their names. Not needed where a file has one matrix. Of GGUF files, tensors of float32, float16 and
            bfloat16 are read.
        encoding : str, optional
            How quantized rows in a matrix of uint8 are stored: `"int8"` or `"int4"` with scale and bias (float16) before the
            codes, `"int8_scale_last"`, `"int4_scale_last"` behind them, `"int8_scale_last_f32"` (float32), as FBGEMM stores them.
        cache : int or str, optional
            Memory for rows, of the session's budget: `"256MiB"`. Default: an eighth of the budget, or what all rows take if that
            is less.
        policy : {"s3-fifo", "lru"}
            Which rows stay in memory.
        reading : int or str, optional
            Memory for what is being read. Default: an eighth of the budget, of 64 MiB at most.
        readers : int
            Look-ups that read at the same time.
        writable : bool
            To `train`, `update` and `commit` a table that `create` has made; one writer at a time.

        Raises
        ------
        MissingError, UnsupportedError, CorruptError, TruncatedError, OverBudgetError
        LockedError
            For a writable table that is being written elsewhere.
        ArgumentError
            For a tensor that is not there, or one of several that was not named.
        """
        source = _source(path, tensor, encoding, writable)
        return cls(_Served(session or default_session(), [source], _bytes(cache), policy, _bytes(reading), readers))

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and elements of a row."""
        return self._rows, self.dim

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of the rows that are looked up: the table's own, or float32 for quantized rows."""
        return dtype_of(self._dtype)

    @property
    def nbytes(self) -> int:
        """Bytes of all rows as they are stored."""
        return self._rows * self._row_bytes

    @property
    def statistics(self) -> Statistics:
        """What was done with it since it was opened."""
        return Statistics(*self._served.native.statistics(self._number))

    def __len__(self) -> int:
        return self._rows

    def __getitem__(self, ids: Any) -> Rows:
        if isinstance(ids, slice):
            return self[np.arange(*ids.indices(self._rows))]
        numbers = np.asarray(ids)
        if numbers.dtype == bool:
            if numbers.shape != (self._rows,):
                raise ShapeError(f"{self.name}: a mask of shape {numbers.shape} for {self._rows} rows")
            numbers = np.flatnonzero(numbers)
        if numbers.size == 0:
            numbers = numbers.astype(np.int64)
        if numbers.dtype.kind == "i" and (numbers < 0).any():
            if numbers.min() < -self._rows:
                raise ArgumentError(f"{self.name}: row {numbers.min()} of {self._rows}")
            numbers = numbers.astype(np.int64)
            numbers = np.where(numbers < 0, numbers + self._rows, numbers)
        rows = _look_up(Feature(self._number, numbers.ravel()), self)
        return rows.reshape(*numbers.shape, self.dim)

    def __iter__(self) -> Iterator[Rows]:
        for first in range(0, self._rows, ITERATED_ROWS):
            yield from self[first : first + ITERATED_ROWS]

    def prefetch(self, ids: npt.ArrayLike) -> PendingLookUp:
        """Begins to read rows that are going to be looked up, on another thread, and takes them into memory as far as the policy
        has room for them. `TableSet.prefetch` also keeps them there until then.

        Returns
        -------
        PendingLookUp
            Its `result` waits until they are there.

        Raises
        ------
        ArgumentError
            For ids that are no rows; `result` raises it, as it does errors of the device.
        """
        asked = Asked.of(Feature(self._number, np.asarray(ids).ravel()), self)
        pending = PendingLookUp(self._served.native.submit_load([asked.native]), None)
        self._prefetching = [*(one for one in self._prefetching if not one.done()), pending]
        return pending

    def keep(self, ids: npt.ArrayLike) -> int:
        """Keeps rows in memory whatever else is looked up, such as those that a profile found to be looked up most.

        Returns
        -------
        int
            How many of them have room.
        """
        numbers = integers(ids, "ids")
        if numbers.size and numbers.min() < 0:
            raise ArgumentError(f"{self.name}: row {numbers.min()}: rows are counted from 0 on")
        return self._served.native.keep(self._number, numbers.ravel().astype(np.uint64))

    @property
    def writable(self) -> bool:
        """Whether it was opened to be trained or updated."""
        return self._served.sources[self._number].writable

    @property
    def version(self) -> int | None:
        """Of a table that `create` has made: the version that was opened, or committed since."""
        return self._served.native.version(self._number)

    def update(self, ids: npt.ArrayLike, rows: npt.ArrayLike, *, delta: int | None = None) -> bool:
        """Sets rows of a writable table; others see them once they are committed. The state of an optimizer beside them stays.

        Parameters
        ----------
        ids : array of int
            Row numbers. Of one that occurs twice the last row counts.
        rows : array
            n x elements.
        delta : int, optional
            Number of this update in a series that may be sent again, from 1 on: one that is not above the last one changes
            nothing.

        Returns
        -------
        bool
            False for a delta that was applied before.

        Raises
        ------
        ArgumentError, ShapeError, NoSpaceError, DeviceError
        """
        if delta is not None and not 1 <= delta < 1 << 64:
            raise ArgumentError(f"{self.name}: delta={delta!r} must be a whole number from 1 on")
        numbers = np.ascontiguousarray(integers(ids, "ids"), np.int64)
        if numbers.ndim != 1 or (numbers.size and numbers.min() < 0):
            raise ArgumentError(f"{self.name}: ids are row numbers from 0 on, one-dimensional")
        elements = np.ascontiguousarray(rows, np.float32)
        if elements.shape != (len(numbers), self.dim):
            raise ShapeError(f"{self.name}: rows of shape {elements.shape} for {len(numbers)} ids and {self.dim} elements")
        return self._served.native.write_rows(self._number, numbers.astype(np.uint64), elements, delta)

    def commit(self) -> int:
        """Makes what a writable table is now its next version: durable, and what is opened from then on, atomically.

        Returns
        -------
        int
            Number of the version.
        """
        return self._served.native.commit([self._number])[0]

    def refresh(self) -> bool:
        """Goes over to the last version that was committed; look-ups that have begun finish with the one that they began with.

        Returns
        -------
        bool
            Whether there was a newer one.
        """
        before = self.version
        self.replace(self._served.sources[self._number].paths)
        return self.version != before

    def replace(self, path: PathLike | Sequence[PathLike], tensor: str | None = None) -> None:
        """Has look-ups from now on use another table of the same shape and encoding; those that have begun finish with the one
        that they began with.

        Raises
        ------
        ShapeError
            For a table of another shape or encoding; those of `Table.open`.
        """
        own = self._served.sources[self._number]
        source = _source(path, own.tensor if tensor is None else tensor, own.encoding)
        self._served.replace({self._number: source})
        self.name = self._served.native.describe(self._number)[0]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_prefetching": []}

    def __repr__(self) -> str:
        return f"<Table {self.name}: {self._rows:,} x {self.dim}, {self.encoding}>"


def _bytes(size: int | str | None) -> int | None:
    return size if size is None or size == 0 else parse_bytes(size)


def _source(
    path: PathLike | Sequence[PathLike], tensor: str | None = None, encoding: str | None = None, writable: bool = False
) -> _Source:
    paths = [path] if isinstance(path, str | bytes | os.PathLike) else list(path)
    if not paths:
        raise ArgumentError("a table has at least one file")
    return _Source(tuple(full_path(one) for one in paths), tensor, encoding, writable)


class TableSet:
    """Tables that are looked up together, with one cache.

    Parameters
    ----------
    tables : sequence or mapping of tables or paths
        With a mapping, its keys are the tables' names. Tables that are open elsewhere are opened again, with this set's cache.
        Tables that another process commits together are all of the same commit.
    cache, policy, reading, readers, writable, session
        As of `Table.open`. Memory is divided between the tables by the bytes of all their rows, and then again and again by
        what it saves, unless they have less than 3.2 MiB of cache each.
    """

    def __init__(
        self,
        tables: Sequence[Table | PathLike] | Mapping[str, Table | PathLike],
        *,
        cache: int | str | None = None,
        policy: Policy = "s3-fifo",
        reading: int | str | None = None,
        readers: int = 2,
        writable: bool = False,
        session: Session | None = None,
    ) -> None:
        listed = list(tables.values()) if isinstance(tables, Mapping) else list(tables)
        self.names = list(tables) if isinstance(tables, Mapping) else [str(number) for number in range(len(listed))]
        sources = [
            table._served.sources[table._number] if isinstance(table, Table) else _source(table, writable=writable)
            for table in listed
        ]
        if writable:
            sources = [replace(source, writable=True) for source in sources]
        served = _Served(session or default_session(), sources, _bytes(cache), policy, _bytes(reading), readers)
        self._served = served
        self._tables = [Table(served, number) for number in range(len(sources))]
        self._joined = Joined.of(self._tables)

    def __len__(self) -> int:
        return len(self._tables)

    def __iter__(self) -> Iterator[Table]:
        return iter(self._tables)

    def __getitem__(self, table: int | str) -> Table:
        if isinstance(table, str):
            if table not in self.names:
                raise ArgumentError(f"no table {table!r} in the set; it has {', '.join(self.names[:8])}")
            table = self.names.index(table)
        if not -len(self) <= table < len(self):
            raise ArgumentError(f"no table {table} in the set of {len(self)}")
        return self._tables[table]

    def look_up(self, features: Features, *, time: int | None = None, concatenate: bool = False) -> Any:
        """Looks features up, with all reads in flight at once.

        Parameters
        ----------
        features : sequence of Feature, or JaggedBatch
        time : int, optional
            What `announce` or `prefetch` returned for these features.
        concatenate : bool
            Whether the results are one array, side by side, as the first layer of a network takes them.

        Returns
        -------
        list of arrays, bags x elements; or one array, bags x elements of all features, of float32 if their types differ

        Raises
        ------
        ArgumentError
            For an id that is no row of its table, offsets that decrease, and the like: nothing is read then.
        DeviceError, CorruptError
            Where rows could not be read. The error has `failed`, each bag that needed one of them, and `results`, in which all
            other bags are complete and those are NaN.
        """
        asked = self._asked(features)
        results, places = asked.results(concatenate)
        return _checked(self._served.native.look_up(asked.native, places, time), results)

    def submit(self, features: Features, *, time: int | None = None, concatenate: bool = False) -> PendingLookUp:
        """The same on a thread of the set, while the caller computes."""
        asked = self._asked(features)
        results, places = asked.results(concatenate)
        return PendingLookUp(self._served.native.submit(asked.native, places, time), results)

    def announce(self, features: Features) -> int:
        """Tells what will be looked up: of the rows in memory, those stay that are looked up next. What it returns is passed to
        `look_up` or `submit`, in the order of the announcements. Takes 96 bytes of memory for each id until then.

        Raises
        ------
        ArgumentError, OverBudgetError
        """
        return self._served.native.announce(self._asked(features).native)

    def withdraw(self, time: int) -> None:
        """What was announced for this time and before will not be looked up."""
        self._served.native.withdraw(time)

    def prefetch(self, features: Features) -> int:
        """Reads rows into memory that are looked up soon, where they stay until then if there is room, and waits for the reads.
        What it returns is passed to `look_up` or `submit`, in the order of the prefetches; until then, or `withdraw`, it takes
        96 bytes of memory for each id.

        Raises
        ------
        ArgumentError, OverBudgetError, DeviceError, CorruptError
        """
        return self._served.native.prefetch(self._asked(features).native)

    def train(
        self,
        features: Features,
        gradients: Sequence[npt.ArrayLike] | npt.ArrayLike,
        optimizer: Optimizer,
        lr: float,
        *,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        orders: Sequence[npt.ArrayLike | None] | None = None,
    ) -> None:
        """One step of an optimizer on writable tables: rows that were looked up change, and those only.

        Parameters
        ----------
        features : sequence of Feature, or JaggedBatch
            What was looked up, of modes "sum" and "mean" or without bags.
        gradients : sequence of arrays, or array
            Of each result: bags x elements; or of results side by side, bags x elements of all features. As float32.
        optimizer : {"sgd", "rowwise_adagrad", "adam"}
            That for which the tables were made: `torch.optim.SGD`, FBGEMM's exact row-wise Adagrad, `torch.optim.SparseAdam`.
        lr : float
            Learning rate.
        betas, eps : floats
            Of Adam, and what is added to the root.
        orders : sequence of arrays of int, optional
            The order in which the members of a feature's bags, without padding, are added up to the gradient of their row;
            default: by position.

        Raises
        ------
        ArgumentError, ShapeError
        NoSpaceError, DeviceError
            The table at which the step fails is as it was before; so are those with higher numbers.
        """
        if isinstance(features, JaggedBatch):
            features = apart(features, self._joined_of(features))
        if not isinstance(gradients, list | tuple):
            gradients = np.asarray(gradients)
        if isinstance(gradients, np.ndarray) and gradients.ndim == 2:
            dims = [self[feature.table].dim for feature in features]
            if gradients.shape[1] != sum(dims):
                raise ShapeError(f"gradients of {gradients.shape[1]} elements for features of {sum(dims)} side by side")
            gradients = np.split(gradients, np.cumsum(dims[:-1]), axis=1)
        given = orders or [None] * len(features)
        if not len(gradients) == len(given) == len(features):
            raise ShapeError(f"{len(gradients)} gradients and {len(given)} orders for {len(features)} features")
        asked = []
        for feature, gradient, order in zip(features, gradients, given, strict=True):
            table, gradient = self[feature.table], np.asarray(gradient)
            if gradient.ndim < 2 or gradient.shape[-1] != table.dim:
                raise ShapeError(f"{table.name}: gradients have shape {gradient.shape}, not bags x {table.dim}")
            native = Asked.of(feature, table).native
            permutation = None if order is None else np.ascontiguousarray(order, np.int64)
            asked.append((native, np.ascontiguousarray(gradient, np.float32), permutation))
        with self._served.native.step() as step:
            step.train(asked, optimizer, lr, betas, eps)

    def commit(self) -> dict[str, int]:
        """Makes what all writable tables are now, at the same moment, their next versions, all at once: whenever the process
        dies, either all of them are left with these versions or none.

        Returns
        -------
        dict
            By name, the number of the version.

        Raises
        ------
        NoSpaceError, DeviceError
            All tables keep the versions that they have. After an error at the very end it is known only when they are opened
            again whether they have, and until then nothing changes them.
        """
        written = [name for name, table in zip(self.names, self._tables, strict=True) if table.writable]
        versions = self._served.native.commit([self[name]._number for name in written])
        return dict(zip(written, versions, strict=True))

    def refresh(self) -> bool:
        """Goes over to the last versions that were committed of all tables that are not writable, at once: each look-up uses
        tables of one commit. Those that have begun finish with the versions that they began with.

        Returns
        -------
        bool
            Whether there were newer ones.
        """
        readers = [table for table in self._tables if not table.writable and table.version is not None]
        before = [table.version for table in readers]
        self._served.replace({table._number: self._served.sources[table._number] for table in readers})
        return [table.version for table in readers] != before

    def _joined_of(self, batch: JaggedBatch) -> Joined:
        return self._joined if batch.tables is None else Joined.of([self[table] for table in batch.tables])

    def _asked(self, features: Features) -> Call:
        if isinstance(features, JaggedBatch):
            return jagged(features, self._joined_of(features))
        asked = [Asked.of(feature, self[feature.table]) for feature in features]
        return Call([one.native for one in asked], [one.result for one in asked])

    @property
    def statistics(self) -> dict[str, Statistics]:
        """What was done with each table since the set was opened."""
        return {name: table.statistics for name, table in zip(self.names, self._tables, strict=True)}

    def __repr__(self) -> str:
        return f"<TableSet of {len(self)} tables>"


def _look_up(feature: Feature, table: Table) -> Rows:
    asked = Asked.of(feature, table)
    rows, place = asked.result.empty()
    return cast(Rows, _checked(table._served.native.look_up([asked.native], [place], None), [rows])[0])


class EmbeddingBag:
    """Bags of rows of one table, as `torch.nn.EmbeddingBag` has them, for NumPy.

    Parameters
    ----------
    table : Table or path
    mode : {"sum", "mean", "max"}
    padding_idx : int, optional
        The row number that is no member of a bag.
    include_last_offset : bool
        Whether offsets end with the number of ids.
    dtype : dtype, optional
        Of the results; default: the table's, float32 for quantized rows.
    """

    def __init__(
        self,
        table: Table | PathLike,
        mode: Mode = "mean",
        *,
        padding_idx: int | None = None,
        include_last_offset: bool = False,
        dtype: npt.DTypeLike | None = None,
    ) -> None:
        self.table = table if isinstance(table, Table) else Table.open(table)
        self.mode: Mode = mode
        self.padding_idx, self.include_last_offset, self.dtype = padding_idx, include_last_offset, dtype

    def _feature(
        self, ids: npt.ArrayLike, offsets: npt.ArrayLike | None, weights: npt.ArrayLike | None, lengths: npt.ArrayLike | None
    ) -> Feature:
        return Feature(
            self.table._number,
            ids,
            offsets,
            lengths,
            weights,
            self.mode,
            self.include_last_offset,
            self.padding_idx,
            self.dtype,
        )

    def __call__(
        self,
        ids: npt.ArrayLike,
        offsets: npt.ArrayLike | None = None,
        per_sample_weights: npt.ArrayLike | None = None,
        *,
        lengths: npt.ArrayLike | None = None,
    ) -> Rows:
        """Bags by elements.

        Parameters
        ----------
        ids : array of int32 or int64
            One-dimensional with `offsets` or `lengths`, or bags of one length as rows.
        offsets, lengths : array of int32 or int64, optional
            Where each bag begins, or how many ids each has.
        per_sample_weights : array of float32, optional
            A factor for each id; of mode "sum".

        Raises
        ------
        Those of `TableSet.look_up`.
        """
        if np.ndim(ids) == 1 and offsets is None and lengths is None:
            raise ArgumentError("ids of one dimension need offsets or lengths; table[ids] are rows without bags")
        feature = self._feature(ids, offsets, per_sample_weights, lengths)
        return _look_up(feature, self.table)

    def __repr__(self) -> str:
        return f"EmbeddingBag({self.table!r}, mode={self.mode!r})"
