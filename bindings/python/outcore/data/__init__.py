"""Training samples: many small pieces in one place, read in random order as fast as the device allows.

A dataset is written once and read in any order, by number or by name::

    from outcore.data import Dataset, Loader, Writer

    with Writer("cifar") as writer:
        for image, label in samples:
            writer.write({"image": image, "label": label})      # bytes, text, numbers, NumPy arrays

    ds = Dataset("cifar")
    ds[17]                                                      # {"image": array, "label": 3}
    ds[[5, 2, 9]]                                               # one native call: a dict of arrays

    loader = Loader(ds, batch_size=256, shuffle=True, seed=0)
    for epoch in range(10):
        for batch in loader:                                    # dicts of arrays; what varies in length comes as lists
            step(batch)

The order of an epoch is a function of seed, epoch and position: it takes no memory, every rank has its share of it, and a loader
goes on anywhere from a state of a few numbers. ``shuffle=True`` (or ``"global"``) lets every sample come anywhere, which costs a
small read each. ``shuffle="chunk"`` reads chunks of 256 KiB in random order and mixes the samples of those that are in memory:
much faster for small samples, and as good where neighbours are not alike. `Dataset.clustering` measures that, and a loader warns.

After Zhu et al., Efficient User-Level Storage Disaggregation for Deep Learning (DLFS, CLUSTER 2019), whose calls are `mount`,
`Dataset.open`, `Dataset.sequence` and `Dataset.bread`.
"""

from __future__ import annotations

from .dataset import Dataset, mount
from .fields import Field
from .indexing import index
from .loader import Loader
from .packing import pack
from .writer import Writer

__all__ = ["Dataset", "Field", "Loader", "Writer", "index", "mount", "pack"]


def __dir__() -> list[str]:
    return sorted(__all__)
