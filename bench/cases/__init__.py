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

FURTHER = {
    "table-rows": "random rows of 128 B out of a table of 4 GiB on SSD, one core, within 256 MiB",
    "bags-RMC1-K1": "bags of 80 rows of 128 B out of tables of 4 GiB, within 64 MiB",
    "table-train": "training of tables by row-wise Adagrad, batches of 512, within 64 MiB",
    "neighbors": "10 nearest of 4 M rows of 128 to 10,000 queries, exactly, within 512 MiB",
    "neighbors-sparse": "10 nearest of 1 M sparse rows to 10,000 queries, exactly, within 68 MiB",
    "svds-50": "50 singular triplets of 51 M entries, within 99 MiB",
    "topics": "100 topics of 57,093 texts, within 64 MiB",
}
"""What else the tables tell, each from where it was measured last, by its first comparison."""
