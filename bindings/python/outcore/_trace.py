"""The trace of the last run."""

from __future__ import annotations

import json
import os
from typing import Any

from . import _native
from ._units import show_bytes

__all__ = ["Trace"]


class Trace:
    """Predicted and measured traffic of one call, times of device and cores, and a timeline.

    Of a call that makes several runs it is the sum, with the highest of their peaks.

    Attributes are those of `to_dict`: `plan`, `runs`, `predicted` and `actual` (`bytes_read`, `bytes_written`, `peak_bytes`),
    `bound_bytes`, `flops`, `wall_s`, `device_busy_s`, `device_idle_s`, `cores_busy_s`, `cores_idle_s`, `objects`, `spans`.
    """

    plan: str
    predicted: dict[str, int]
    actual: dict[str, int]
    bound_bytes: int
    flops: int
    wall_s: float
    device_busy_s: float
    device_idle_s: float
    cores_busy_s: float
    cores_idle_s: float
    objects: list[dict[str, Any]]
    spans: list[dict[str, Any]]

    def __init__(self, native: _native.Trace) -> None:
        self._native = native
        self._facts: dict[str, Any] | None = None

    def to_dict(self) -> dict[str, Any]:
        """All of it as plain values. Bytes, seconds, and `spans` with lane, name, start and end."""
        if self._facts is None:
            self._facts = json.loads(self._native.json())
        return dict(self._facts)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the timeline as JSON that a browser's trace viewer opens (ui.perfetto.dev, chrome://tracing)."""
        self._native.save(path)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        try:
            return self.to_dict()[name]
        except KeyError:
            raise AttributeError(name) from None

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self.to_dict()]

    def __repr__(self) -> str:
        return f"<outcore trace of {self.plan}: {self.wall_s:.2f} s>"

    def __str__(self) -> str:
        facts = self.to_dict()
        actual, predicted = facts["actual"], facts["predicted"]
        lines = [
            f"{facts['plan']}: {facts['wall_s']:.2f} s, {facts['flops'] / 1e9 / max(facts['wall_s'], 1e-9):.1f} Gflop/s",
            *(
                f"{name:<8} {show_bytes(actual[key])} (predicted {show_bytes(predicted[key])})"
                for name, key in (("read", "bytes_read"), ("written", "bytes_written"), ("peak", "peak_bytes"))
            ),
            f"device   {facts['device_busy_s']:.2f} s busy, {facts['device_idle_s']:.2f} s idle",
            f"cores    {facts['cores_busy_s']:.2f} s busy, {facts['cores_idle_s']:.2f} s idle",
        ]
        return "\n".join(lines)
