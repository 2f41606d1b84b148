"""`outcore demo`: principal components of images, clusters and topics of texts, with data larger than the memory allowed.

Each part runs in a process whose memory the kernel limits, numpy or scikit-learn runs the same under the same limit, and one HTML
page tells what happened. Importing this package is cheap; Pillow, matplotlib and the rest load when the demo runs.
"""

from __future__ import annotations

from typing import Any

__all__ = ["run_demo"]


def run_demo(data: str | None = None, **options: Any) -> dict[str, Any]:
    """Run the whole demo; see `outcore.demo.run.run_demo` for the options."""
    from .run import run_demo as run

    return run(data, **options)
