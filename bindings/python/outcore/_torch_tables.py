"""Embedding tables on SSD as modules of PyTorch."""

from __future__ import annotations

import time
import warnings
from abc import ABC, abstractmethod
from collections import deque
from typing import Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from ._embedding import PendingLookUp, Table, _checked
from ._embedding_calls import Asked, Feature, Mode, Place
from ._settings import PathLike
from .errors import ArgumentError, ShapeError

__all__ = ["Embedding", "EmbeddingBag"]

DTYPES = {torch.float32: "float32", torch.float16: "float16", torch.bfloat16: "bfloat16"}
"""Of results, by what NumPy or `ml_dtypes` calls them."""
BY_NAME = {name: dtype for dtype, name in DTYPES.items()}
STORED = {torch.float32: np.float32, torch.float16: np.float16, torch.bfloat16: np.uint16}
"""What NumPy sees of a tensor's memory."""
WRITTEN_ROWS = 1 << 14
"""Of a weight that is loaded, at a time."""
MOST_AHEAD = 100
"""Look-ups that are submitted and not used yet."""


class _LookedUp(NamedTuple):
    """A feature as the native half takes it, its memory for the result, and the tensor on that."""

    native: tuple[Any, ...]
    place: Place
    out: Tensor


class _Submitted(NamedTuple):
    """A look-up of these arguments, as their tensors were then."""

    given: tuple[Any, ...]
    versions: tuple[int | None, ...]
    pending: PendingLookUp


class _OnTable(nn.Module, ABC):
    """A module whose weight is a table on SSD, and no part of `state_dict` but for where it is and what shape it has. It is
    frozen unless the table is writable: then the optimizers of `outcore.torch` train it."""

    def __init__(self, table: Table | PathLike, padding_idx: int | None, dtype: torch.dtype | None) -> None:
        super().__init__()
        self.table = table if isinstance(table, Table) else Table.open(table)
        if padding_idx is not None and not -len(self.table) <= padding_idx < len(self.table):
            raise ArgumentError(f"padding_idx {padding_idx} is no row of {len(self.table)}")
        self.padding_idx = padding_idx
        wanted = BY_NAME[self.table._dtype] if dtype is None else dtype
        if wanted not in DTYPES:
            raise ArgumentError(f"results are of float32, float16 or bfloat16, not of {wanted}")
        self.dtype = wanted
        self.stall_seconds = 0.0
        """Time that calls have waited for rows."""
        self._ahead: deque[_Submitted] = deque()
        self._loading: list[PendingLookUp] = []
        if self.table.writable and wanted != torch.float32:
            raise ArgumentError(f"{self.table.name} is trained, so its rows are looked up as float32, not as {wanted}")
        # What gradients lead to: the weight itself is no tensor.
        self._handle = torch.zeros(0, requires_grad=self.table.writable)
        self._gradients: list[tuple[Any, ...]] = []
        """Gradients since the last step: of a feature, of its result, and the order of its members."""

    @property
    def num_embeddings(self) -> int:
        """Rows of the table."""
        return len(self.table)

    @property
    def embedding_dim(self) -> int:
        """Elements of a row."""
        return self.table.dim

    def __getattr__(self, name: str) -> Any:
        if name == "weight":
            raise AttributeError(
                f"the table {self.table.name} is on SSD and has no weight in memory; module.table[ids] reads rows of it"
            )
        return super().__getattr__(name)

    def _asked(self, feature: Feature, shape: tuple[int, ...]) -> _LookedUp:
        """The look-up of a feature into a new tensor, without a copy."""
        rows = int(np.prod(shape, dtype=np.int64))
        out = torch.empty((rows, self.table.dim), dtype=self.dtype)
        stored = (out.view(torch.uint16) if self.dtype == torch.bfloat16 else out).numpy()
        # The type of the memory is that of the tensor, whatever NumPy sees of it.
        place = (stored, DTYPES[self.dtype], None)
        return _LookedUp(Asked.of(feature, self.table).native, place, out.view(*shape, self.table.dim))

    def _check_trained(self) -> None:
        """Refuses what has no gradient, before the network runs."""

    @abstractmethod
    def _feature(self, *given: Any) -> _LookedUp:
        """The look-up of a call's arguments."""

    @abstractmethod
    def _order(self, ids: Tensor) -> npt.NDArray[np.int64] | None:
        """The order in which PyTorch adds gradients of a row up."""

    def _submit(self, given: tuple[Any, ...]) -> None:
        asked = self._feature(*given)
        if self.table.writable:
            # The step before is still to change rows, so they are only read into the cache.
            self._loading = [one for one in self._loading if not one.done()]
            self._loading.append(PendingLookUp(self.table._served.native.submit_load([asked.native]), []))
            return
        if len(self._ahead) == MOST_AHEAD:
            raise ArgumentError(
                f"{MOST_AHEAD} look-ups of {self.table.name} were submitted and not used: "
                "what is submitted is passed to the module, too"
            )
        native = self.table._served.native.submit([asked.native], [asked.place], None)
        self._ahead.append(_Submitted(given, _versions(given), PendingLookUp(native, [asked.out])))

    def _taken(self, given: tuple[Any, ...]) -> Tensor | None:
        """The result of the look-up that was submitted with these arguments. Those submitted before it are dropped, and those of
        tensors that were changed since."""
        self._ahead = deque(one for one in self._ahead if one.versions == _versions(one.given))
        if not any(_same(one.given, given) for one in self._ahead):
            return None
        while True:
            submitted = self._ahead.popleft()
            if _same(submitted.given, given):
                began = time.perf_counter()
                (found,) = submitted.pending.result()
                self.stall_seconds += time.perf_counter() - began
                return cast(Tensor, found)

    def _rows(self, given: tuple[Any, ...]) -> Tensor:
        """The result of a call, on the device of its ids."""
        ids = given[0]
        if self._handle.requires_grad and torch.is_grad_enabled():
            found = cast(Tensor, _LookUp.apply(self._handle, self, given))
        else:
            ahead = self._taken(given)
            found = self._now(self._feature(*given)) if ahead is None else ahead
        on_cpu = not isinstance(ids, Tensor) or ids.device.type == "cpu"
        return found if on_cpu else found.to(ids.device, non_blocking=True)

    def _now(self, asked: _LookedUp) -> Tensor:
        began = time.perf_counter()
        failed = self.table._served.native.look_up([asked.native], [asked.place], None)
        self.stall_seconds += time.perf_counter() - began
        return cast(Tensor, _checked(failed, [asked.out])[0])

    def get_extra_state(self) -> dict[str, Any]:
        source = self.table._served.sources[self.table._number]
        return {
            "paths": list(source.paths),
            "tensor": source.tensor,
            "shape": list(self.table.shape),
            "encoding": self.table.encoding,
            "version": self.table.version,
        }

    def set_extra_state(self, state: dict[str, Any]) -> None:
        found = (list(self.table.shape), self.table.encoding)
        if (list(state["shape"]), state["encoding"]) != found:
            raise ShapeError(
                f"{self.table.name} has {found[0][0]} x {found[0][1]} {found[1]}, and the state is of "
                f"{state['shape'][0]} x {state['shape'][1]} {state['encoding']}, in {state['paths'][0]}"
            )
        if state.get("version", self.table.version) != self.table.version:
            own, saved = self.table.version, state["version"]
            warnings.warn(f"{self.table.name} is at version {own}, and the state was saved beside version {saved}", stacklevel=2)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        """The state of the module of PyTorch that this one takes the place of has a weight, which goes to a writable table."""
        weight = state_dict.pop(f"{prefix}weight", None)
        if weight is not None:
            state_dict.setdefault(f"{prefix}_extra_state", self.get_extra_state())
            self._write(weight, f"{prefix}weight")
        super()._load_from_state_dict(state_dict, prefix, *rest)

    def _write(self, weight: Tensor, name: str) -> None:
        if not self.table.writable:
            raise ArgumentError(
                f"{self.table.name} is not writable, and the state has {name}: outcore.embedding.pack(checkpoint, path, "
                f"tensor={name!r}) makes a table of it"
            )
        if tuple(weight.shape) != self.table.shape:
            raise ShapeError(f"{name} is of shape {tuple(weight.shape)}, and {self.table.name} of {self.table.shape}")
        for first in range(0, len(weight), WRITTEN_ROWS):
            rows = weight[first : first + WRITTEN_ROWS].float().cpu().numpy()
            self.table.update(np.arange(first, first + len(rows)), rows)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_ahead": deque(), "_loading": [], "_gradients": []}


def _same(one: tuple[Any, ...], other: tuple[Any, ...]) -> bool:
    """Whether two look-ups are of the same tensors."""
    return len(one) == len(other) and all(a is b for a, b in zip(one, other, strict=True))


def _versions(given: tuple[Any, ...]) -> tuple[int | None, ...]:
    """How often each tensor was changed in place, which inference tensors do not count."""
    return tuple(one._version if isinstance(one, Tensor) and not one.is_inference() else None for one in given)


def _array(numbers: Any) -> Any:
    if not isinstance(numbers, Tensor):
        return numbers
    # NumPy has no bfloat16.
    numbers = numbers.float() if numbers.dtype == torch.bfloat16 else numbers
    return numbers.detach().cpu().numpy()


def _refuse_gradients(weights: Any) -> None:
    if isinstance(weights, Tensor) and weights.requires_grad and torch.is_grad_enabled():
        raise ArgumentError(
            "per_sample_weights require a gradient, which look-ups on SSD do not compute: pass per_sample_weights.detach(), or "
            "call under torch.no_grad()"
        )


class _LookUp(torch.autograd.Function):
    """Rows of a table that is trained. Their gradient is kept for the step of its optimizer."""

    @staticmethod
    def forward(ctx: Any, handle: Tensor, module: _OnTable, given: tuple[Any, ...]) -> Tensor:
        # Copies, since the caller may use its tensors again before the step.
        given = tuple(one.clone() if isinstance(one, Tensor) else one for one in given)
        module._check_trained()
        asked = module._feature(*given)
        ctx.module, ctx.ids, ctx.feature = module, given[0], asked.native
        return module._now(asked)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, None, None]:
        # A copy, since the caller may use the gradient's memory again before the step.
        rows = gradient.detach().to("cpu", torch.float32, copy=True).contiguous().numpy().reshape(-1, ctx.module.table.dim)
        ctx.module._gradients.append((ctx.feature, rows, ctx.module._order(torch.as_tensor(ctx.ids))))
        return None, None, None


class Embedding(_OnTable):
    """`torch.nn.Embedding` on a table on SSD.

    Parameters
    ----------
    table : outcore.embedding.Table or path
    padding_idx : int, optional
        The row that is not trained; it has no meaning for look-ups.
    dtype : torch.dtype, optional
        Of the results: float32, float16 or bfloat16. Default: the table's, float32 for quantized rows.
    """

    def __init__(self, table: Table | PathLike, *, padding_idx: int | None = None, dtype: torch.dtype | None = None) -> None:
        super().__init__(table, padding_idx, dtype)

    def _feature(self, ids: Any) -> _LookedUp:
        numbers = np.asarray(_array(ids))
        return self._asked(Feature(self.table._number, numbers.ravel(), padding_idx=self.padding_idx), numbers.shape)

    def _order(self, ids: Tensor) -> None:
        return None

    def submit(self, input: Tensor) -> None:  # noqa: A002
        """Begins to look up on another thread what a later call with this tensor returns, unless it changes before. Rows of a
        table that is trained are read into the cache."""
        self._submit((input,))

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        """Rows: the shape of `input`, which are ids, and elements."""
        return self._rows((input,))

    def extra_repr(self) -> str:
        return f"{self.num_embeddings}, {self.embedding_dim}, table={self.table.name!r}"


class EmbeddingBag(_OnTable):
    """`torch.nn.EmbeddingBag` on a table on SSD.

    Call `submit` with the arguments of the next batch before the network of this one runs: rows are then read while it computes,
    and the call with the same tensors finds its result there. What was submitted of a tensor that was changed in place since is
    looked up again; changes of inference tensors, and through memory shared with NumPy, are not noticed. No gradient is computed
    of `per_sample_weights`: those that require one are refused while gradients are recorded.

    Parameters
    ----------
    table : outcore.embedding.Table or path
    mode : {"sum", "mean", "max"}
    include_last_offset : bool
    padding_idx : int, optional
    dtype : torch.dtype, optional
        Of the results: float32, float16 or bfloat16. Default: the table's, float32 for quantized rows.
    """

    def __init__(
        self,
        table: Table | PathLike,
        mode: Mode = "mean",
        *,
        include_last_offset: bool = False,
        padding_idx: int | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(table, padding_idx, dtype)
        if mode not in ("sum", "mean", "max"):
            raise ArgumentError(f"mode is 'sum', 'mean' or 'max', not {mode!r}")
        self.mode: Mode = mode
        self.include_last_offset = include_last_offset

    def _feature(self, ids: Any, offsets: Any, weights: Any) -> _LookedUp:
        numbers = np.asarray(_array(ids))
        if numbers.ndim == 1 and offsets is None:
            raise ArgumentError("ids of one dimension need offsets")
        feature = Feature(
            self.table._number,
            numbers,
            _array(offsets),
            None,
            _array(weights),
            self.mode,
            self.include_last_offset,
            self.padding_idx,
        )
        bags = numbers.shape[0] if offsets is None else max(len(offsets) - self.include_last_offset, 0)
        return self._asked(feature, (bags,))

    def _check_trained(self) -> None:
        if self.mode == "max":
            raise ArgumentError(f"{self.table.name} has no gradients of a maximum: look rows up under torch.no_grad()")

    def _order(self, ids: Tensor) -> npt.NDArray[np.int64]:
        ids = ids.detach().cpu().flatten()
        order = torch.sort(ids).indices
        if self.padding_idx is not None:
            is_member = ids != self.padding_idx % self.num_embeddings
            order = (is_member.cumsum(0) - 1)[order[is_member[order]]]
        return cast("npt.NDArray[np.int64]", order.numpy())

    def submit(self, input: Tensor, offsets: Tensor | None = None, per_sample_weights: Tensor | None = None) -> None:  # noqa: A002
        """Begins to look up on another thread what a later call with these tensors returns. Rows of a table that is trained are
        read into the cache."""
        _refuse_gradients(per_sample_weights)
        self._submit((input, offsets, per_sample_weights))

    def forward(self, input: Tensor, offsets: Tensor | None = None, per_sample_weights: Tensor | None = None) -> Tensor:  # noqa: A002
        """Bags and elements; `input` are ids."""
        _refuse_gradients(per_sample_weights)
        return self._rows((input, offsets, per_sample_weights))

    def extra_repr(self) -> str:
        return f"{self.num_embeddings}, {self.embedding_dim}, mode={self.mode!r}, table={self.table.name!r}"
