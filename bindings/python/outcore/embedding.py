"""Embedding tables bigger than memory: rows looked up by number, in bags that become one row each.

Rows are read where they are: in `.npy`, safetensors and GGUF files, one or many that make one table, or in a packed table, which
`pack` makes. The rows that are worth it stay in memory, within the budget of the session::

    import outcore as oc
    from outcore.embedding import EmbeddingBag, Table

    table = Table.open("items.npy", cache="256MiB")             # a matrix of 100 GB
    bag = EmbeddingBag(table, mode="sum")
    sums = bag(ids, offsets)                                    # as torch.nn.EmbeddingBag; a NumPy array

Several tables that are looked up together, such as those of a recommender, are a `TableSet`: one call reads for all of them, by a
list of features, or for hundreds of them by a `JaggedBatch` of few arrays.
`look_ahead` goes through the batches of a loader and reads the rows of the next ones meanwhile.
`create` makes a table that is trained or updated, version by version, while others read it. `outcore.torch` has the same as
modules and optimizers of PyTorch.
"""

from __future__ import annotations

from ._embedding import EmbeddingBag, Failed, Optimizer, PendingLookUp, Policy, Statistics, Table, TableSet
from ._embedding_ahead import look_ahead
from ._embedding_calls import Feature, JaggedBatch, Mode
from ._embedding_files import create, export, pack
from ._embedding_placement import PagesTouched, Placement, PlacementMethod, placement

__all__ = [
    "EmbeddingBag",
    "Failed",
    "Feature",
    "JaggedBatch",
    "Mode",
    "Optimizer",
    "PagesTouched",
    "PendingLookUp",
    "Placement",
    "PlacementMethod",
    "Policy",
    "Statistics",
    "Table",
    "TableSet",
    "create",
    "export",
    "look_ahead",
    "pack",
    "placement",
]


def __dir__() -> list[str]:
    return sorted(__all__)
