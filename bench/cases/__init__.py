"""The cases: each file builds some of them for a context; none runs anything."""

from __future__ import annotations

from collections.abc import Callable

from cases import (
    fits,
    kmeans,
    neighbors,
    pca,
    placement,
    products,
    reads,
    rows,
    samples,
    sparse,
    spectra,
    streams,
    tables,
    topics,
)
from harness.model import Case, Context

BUILDERS: dict[str, Callable[[Context], Case]] = {
    **products.BUILDERS,
    # Before the tall file takes what room the disk has.
    **sparse.BUILDERS,
    **streams.BUILDERS,
    **samples.BUILDERS,
    **rows.BUILDERS,
    **tables.BUILDERS,
    **placement.BUILDERS,
    **pca.BUILDERS,
    **kmeans.BUILDERS,
    **neighbors.BUILDERS,
    **spectra.BUILDERS,
    **topics.BUILDERS,
    **reads.BUILDERS,
    **fits.BUILDERS,
}

HEADLINE = (
    "gemm-512MiB",
    "csrmm-256",
    "gram-16",
    "csrcsc",
    "libsvm",
    "pca",
    "kmeans-clouds",
    "streams-read",
    "streams-write",
    "samples-512B",
    "samples-4096B",
    "samples-hot",
)
"""What `make bench` measures, in this order: files are shared by neighbours."""
