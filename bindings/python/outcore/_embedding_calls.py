"""What a look-up asks of tables, and the form in which the native half takes it: ids, bags, and memory for results."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from ._dtypes import dtype_of, type_name
from .errors import ArgumentError, ShapeError

if TYPE_CHECKING:
    from ._embedding import Table

Mode = Literal["sum", "mean", "max"]
Rows = npt.NDArray[Any]
"""Rows by rows and elements: of float32, float16 or bfloat16."""

SAFETENSORS = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}
"""Types of results, and what safetensors files call them."""


@dataclass(frozen=True)
class Feature:
    """What a call asks of one table of a set.

    Parameters
    ----------
    table : int or str
        Its number or name in the set. Several features may use one table.
    ids : array of int32 or int64
        Row numbers: one-dimensional, or bags of one length as rows.
    offsets : array of int32 or int64, optional
        Where each bag begins in one-dimensional `ids`. Without `offsets` and `lengths` every id is a row of the result.
    lengths : array of int32 or int64, optional
        How many ids each bag has, instead of `offsets`.
    per_sample_weights : array of float32, optional
        A factor for each id; of sums only.
    mode : {"sum", "mean", "max"}
    include_last_offset : bool
        Whether `offsets` ends with the number of ids.
    padding_idx : int, optional
        The row number that is no member of a bag.
    dtype : dtype, optional
        Of the result: float32, float16 or bfloat16. Default: that of the table, float32 for quantized rows.
    """

    table: int | str
    ids: npt.ArrayLike
    offsets: npt.ArrayLike | None = None
    lengths: npt.ArrayLike | None = None
    per_sample_weights: npt.ArrayLike | None = None
    mode: Mode = "sum"
    include_last_offset: bool = False
    padding_idx: int | None = None
    dtype: npt.DTypeLike | None = None


@dataclass(frozen=True)
class JaggedBatch:
    """What a call asks of several tables of a set, in the form of TorchRec's `KeyedJaggedTensor` and of FBGEMM's table-batched
    embeddings: few arrays for all features. Its results lie in one block of memory.

    Parameters
    ----------
    ids : array of int32 or int64
        Row numbers: those of the first feature, then those of the second, and so on; of each feature, sample by sample.
    lengths : array of int32 or int64, optional
        How many ids each bag has, in the same order: features x samples, or as many in one dimension.
    offsets : array of int32 or int64, optional
        Where each bag begins in `ids`, and the end, instead of `lengths`: features x samples + 1.
    tables : sequence of int or str, optional
        Table of each feature. Default: all tables of the set.
    per_sample_weights : array of float32, optional
        A factor for each id; of sums only.
    mode : {"sum", "mean", "max"}
    dtype : dtype, optional
        Of the result: float32, float16 or bfloat16. Default: that of the tables, float32 if they differ.
    """

    ids: npt.ArrayLike
    _: KW_ONLY
    lengths: npt.ArrayLike | None = None
    offsets: npt.ArrayLike | None = None
    tables: Sequence[int | str] | None = None
    per_sample_weights: npt.ArrayLike | None = None
    mode: Mode = "sum"
    dtype: npt.DTypeLike | None = None


Features = Sequence[Feature] | JaggedBatch


Place = tuple[npt.NDArray[Any], str, list[int] | None]
"""Memory of a result, its type, and the elements of each where several lie one after another."""


class _Result(NamedTuple):
    """Of a feature."""

    bags: int
    dim: int
    dtype: np.dtype[Any]

    def empty(self) -> tuple[Rows, Place]:
        """Memory for it, and the same as the native half takes it."""
        rows, name = np.empty((self.bags, self.dim), self.dtype), _name(self.dtype)
        return rows, (rows.view(np.uint16) if name == "bfloat16" else rows, name, None)


class Call(NamedTuple):
    """Features as the native half takes them, and what their results are."""

    native: Any
    parts: list[_Result]
    dims: list[int] | None = None
    """Of a batch, whose features have one result together: the elements of each."""

    def results(self, concatenate: bool) -> tuple[Any, list[Place]]:
        """Memory for the results, and the same as the native half takes it."""
        if concatenate:
            rows, place = self._side_by_side().empty()
            return rows, [place]
        if self.dims is not None:
            rows, (stored, name, _) = self.parts[0].empty()
            return _cut(rows.ravel(), self.dims), [(stored, name, self.dims)]
        made = [result.empty() for result in self.parts]
        return [rows for rows, _ in made], [place for _, place in made]

    def _side_by_side(self) -> _Result:
        bags = {result.bags for result in self.parts}
        if len(bags) != 1:
            raise ShapeError(f"results of {sorted(bags)} bags cannot be side by side")
        return _Result(bags.pop(), sum(result.dim for result in self.parts), _common(result.dtype for result in self.parts))


class Joined(NamedTuple):
    """Tables whose results are side by side: their names, their numbers, their elements together, and the type of those."""

    names: list[str]
    numbers: list[int]
    dims: list[int]
    dtype: np.dtype[Any]

    @classmethod
    def of(cls, tables: Sequence[Table]) -> Joined:
        numbers, dims = [table._number for table in tables], [table.dim for table in tables]
        return cls([table.name for table in tables], numbers, dims, _common(table.dtype for table in tables))


def _common(dtypes: Iterable[np.dtype[Any]]) -> np.dtype[Any]:
    found = set(dtypes)
    return found.pop() if len(found) == 1 else np.dtype(np.float32)


def jagged(batch: JaggedBatch, tables: Joined) -> Call:
    ids = integers(batch.ids, "ids")
    if ids.ndim != 1:
        raise ShapeError(f"ids of shape {ids.shape}, which are no list")
    lengths, features = _lengths(batch), len(tables.numbers)
    if not features or lengths.size % features:
        raise ShapeError(f"{lengths.size} lengths are no equal numbers of bags for {features} features")
    bags = lengths.size // features
    if lengths.ndim != 1 and lengths.shape != (features, bags):
        raise ShapeError(f"lengths of shape {lengths.shape} for {features} features, which are the rows")
    if len(found := np.flatnonzero(lengths < 0)):
        feature, bag = divmod(int(found[0]), bags)
        length = lengths.ravel()[found[0]]
        raise ArgumentError(f"{tables.names[feature]}: bag {bag} of feature {feature} has length {length}")
    weights = batch.per_sample_weights
    if weights is not None:
        weights = np.ascontiguousarray(weights, np.float32)
        if weights.shape != ids.shape:
            raise ShapeError(f"per_sample_weights of shape {weights.shape} for ids of {ids.shape}")
    native = (tables.numbers, ids, lengths.ravel(), batch.mode, weights)
    return Call(native, [_Result(bags, sum(tables.dims), dtype_named(batch.dtype) or tables.dtype)], tables.dims)


def apart(batch: JaggedBatch, tables: Joined) -> list[Feature]:
    """The features of a batch one by one."""
    call = jagged(batch, tables)
    numbers, ids, flat, mode, weights = call.native
    lengths = flat.reshape(len(numbers), call.parts[0].bags)
    ends = lengths.sum(axis=1, dtype=np.int64).cumsum()
    if ends[-1] != len(ids):
        raise ArgumentError(f"lengths add up to {ends[-1]}, and there are {len(ids)} ids")
    of_ids = np.split(ids, ends[:-1])
    of_weights: list[Any] = [None] * len(numbers) if weights is None else np.split(weights, ends[:-1])
    parts = zip(numbers, of_ids, lengths, of_weights, strict=True)
    return [
        Feature(number, some, lengths=own, per_sample_weights=factors, mode=mode, dtype=batch.dtype)
        for number, some, own, factors in parts
    ]


def _cut(block: npt.NDArray[Any], dims: list[int]) -> list[Rows]:
    """Results that lie one after another."""
    bags = len(block) // sum(dims)
    if len(set(dims)) == 1:
        return list(block.reshape(len(dims), bags, dims[0]))
    parts = np.split(block, np.cumsum([bags * dim for dim in dims[:-1]]))
    return [part.reshape(bags, dim) for part, dim in zip(parts, dims, strict=True)]


def _lengths(batch: JaggedBatch) -> npt.NDArray[Any]:
    if batch.lengths is not None and batch.offsets is None:
        return integers(batch.lengths, "lengths")
    if batch.lengths is not None or batch.offsets is None:
        raise ArgumentError("either offsets or lengths")
    offsets = integers(batch.offsets, "offsets")
    if offsets.ndim != 1 or not len(offsets) or offsets[0] != 0:
        raise ShapeError("offsets of all bags are a list that begins with 0 and ends with the number of ids")
    return np.diff(offsets)


class Asked(NamedTuple):
    """A feature as the native half takes it, and what its result is."""

    native: tuple[Any, ...]
    result: _Result

    @classmethod
    def of(cls, feature: Feature, table: Table) -> Asked:
        try:
            ids = integers(feature.ids, "ids")
            kind, given, length, bags = _bags(feature, ids)
            weights = feature.per_sample_weights
            if weights is not None:
                weights = np.ascontiguousarray(weights, np.float32)
                if weights.shape != ids.shape:
                    raise ShapeError(f"per_sample_weights of shape {weights.shape} for ids of {ids.shape}")
                weights = weights.ravel()
            padding = feature.padding_idx
            if padding is not None and not -len(table) <= padding < len(table):
                raise ArgumentError(f"padding_idx {padding} is no row of {len(table)}")
        except (ArgumentError, ShapeError) as error:
            raise type(error)(f"{table.name}: {error}") from None
        padding = padding + len(table) if padding is not None and padding < 0 else padding
        native = (table._number, ids.ravel(), kind, given, length, feature.mode, weights, padding)
        return cls(native, _Result(bags, table.dim, dtype_named(feature.dtype) or table.dtype))


def integers(numbers: npt.ArrayLike, what: str) -> npt.NDArray[Any]:
    found = np.asarray(numbers)
    if found.size == 0 and found.dtype.kind == "f":
        found = found.astype(np.int64)
    if found.dtype.kind not in "iu":
        raise ArgumentError(f"{what} are integers, not {found.dtype}")
    wanted = found.dtype if found.dtype in (np.int32, np.int64) else np.dtype(np.int64)
    if found.dtype == np.uint64 and found.size and found.max() > np.iinfo(np.int64).max:
        raise ArgumentError(f"{what} beyond int64")
    return np.ascontiguousarray(found, wanted)


def _bags(feature: Feature, ids: npt.NDArray[Any]) -> tuple[str, npt.NDArray[Any] | None, int, int]:
    """How bags are given, what gives them, the length of those that have one, and their number."""
    offsets, lengths = feature.offsets, feature.lengths
    if offsets is not None and lengths is not None:
        raise ArgumentError("either offsets or lengths")
    if ids.ndim == 2:
        if offsets is not None or lengths is not None:
            raise ArgumentError("ids of two dimensions are bags by themselves, without offsets and lengths")
        if ids.shape[1] == 0:
            return "lengths", np.zeros(len(ids), np.int64), 0, len(ids)
        return "fixed", None, ids.shape[1], ids.shape[0]
    if ids.ndim != 1:
        raise ShapeError(f"ids of shape {ids.shape}, which are neither a list nor bags of one length")
    if lengths is not None:
        given = integers(lengths, "lengths")
        return "lengths", given, 0, len(given)
    if offsets is None:
        return "each", None, 0, len(ids)
    given = integers(offsets, "offsets")
    if given.ndim != 1:
        raise ShapeError(f"offsets of shape {given.shape}, which are no list")
    kind = "offsets and end" if feature.include_last_offset else "offsets"
    return kind, given, 0, max(len(given) - feature.include_last_offset, 0)


def dtype_named(dtype: npt.DTypeLike | None) -> np.dtype[Any] | None:
    """Of results, by name too: NumPy does not know all of them."""
    if dtype is None:
        return None
    found = dtype_of(type_name(dtype))
    if found.name not in SAFETENSORS:
        raise ArgumentError(f"results are of float32, float16 or bfloat16, not of {found}")
    return found


@cache
def _name(dtype: np.dtype[Any]) -> str:
    """NumPy puts it together anew each time, which takes longer than the rest of a small feature."""
    return dtype.name
