"""Optimizers of tables on SSD, as those of PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import ExitStack
from typing import Any

import torch
from torch import nn

from ._embedding import Optimizer
from ._native import TrainingStep
from ._torch_tables import _OnTable
from .errors import ArgumentError

__all__ = ["SGD", "RowwiseAdagrad", "SparseAdam"]


class _OfTables(torch.optim.Optimizer):
    """Trains the tables of modules; learning-rate schedulers work with it as with any other optimizer."""

    name: Optimizer

    def __init__(self, modules: nn.Module | Iterable[nn.Module], defaults: dict[str, Any]) -> None:
        given = [modules] if isinstance(modules, nn.Module) else list(modules)
        found = {part: None for module in given for part in module.modules() if isinstance(part, _OnTable)}
        self._modules = {id(module._handle): module for module in found if module.table.writable}
        if not self._modules:
            raise ArgumentError("no module here has a table that was opened with writable=True")
        super().__init__([module._handle for module in self._modules.values()], defaults)

    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Changes the rows that have gradients, and those only."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        served = {id(module.table._served): module.table._served for module in self._modules.values()}
        with ExitStack() as entered:
            # A commit has all of the step or nothing.
            steps = {key: entered.enter_context(one.native.step()) for key, one in served.items()}
            for group in self.param_groups:
                self._change(group, steps)
        return loss

    def _change(self, group: dict[str, Any], steps: dict[int, TrainingStep]) -> None:
        of_tables: dict[tuple[int, int], list[_OnTable]] = {}
        for module in (self._modules[id(handle)] for handle in group["params"]):
            of_tables.setdefault((id(module.table._served), module.table._number), []).append(module)
        # One table after another: where one fails, the gradients of those before it have been used up.
        for (served, _), modules in of_tables.items():
            gradients = [gradient for module in modules for gradient in module._gradients]
            steps[served].train(gradients, self.name, group["lr"], group.get("betas", (0.0, 0.0)), group.get("eps", 0.0))
            for module in modules:
                module._gradients.clear()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drops gradients."""
        for module in self._modules.values():
            module._gradients.clear()


class SGD(_OfTables):
    """`torch.optim.SGD` without momentum, for modules on tables that `outcore.embedding.create` made for `"sgd"`: the same bits.

    Parameters
    ----------
    modules : module or modules
        With `outcore.torch.Embedding` and `EmbeddingBag` in them, or such ones.
    lr : float
        Learning rate.
    """

    name = "sgd"

    def __init__(self, modules: nn.Module | Iterable[nn.Module], lr: float = 1e-3) -> None:
        super().__init__(modules, {"lr": lr})


class RowwiseAdagrad(_OfTables):
    """FBGEMM's exact row-wise Adagrad, for tables made for `"rowwise_adagrad"`: one number of state a row.

    Parameters
    ----------
    modules : module or modules
    lr, eps : float
        Learning rate, and what is added to the root.
    """

    name = "rowwise_adagrad"

    def __init__(self, modules: nn.Module | Iterable[nn.Module], lr: float = 1e-2, eps: float = 1e-8) -> None:
        super().__init__(modules, {"lr": lr, "eps": eps})


class SparseAdam(_OfTables):
    """`torch.optim.SparseAdam`, for tables made for `"adam"`: two numbers of state an element, which change with its row only.

    Parameters
    ----------
    modules : module or modules
    lr, eps : float
        Learning rate, and what is added to the root.
    betas : two floats
        Decay of the mean and of the mean of squares.
    """

    name = "adam"

    def __init__(
        self,
        modules: nn.Module | Iterable[nn.Module],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
    ) -> None:
        super().__init__(modules, {"lr": lr, "betas": betas, "eps": eps})
