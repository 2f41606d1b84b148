"""RecSSD's experiment: recommenders whose embedding tables are in memory, in a memory map, or on SSD.

`models` describes the eight recommenders of the paper, `networks` has them in PyTorch over any embeddings, `traces`, `reuse` and
`clicks` make what they look up, `modes` the places of their tables, `run`, `load`, `ladder` and `splits` measure, and `figures`
draws::

    from outcore.embedding_bench.models import MODELS
    from outcore.embedding_bench.modes import MODES
    from outcore.embedding_bench.run import bench
    from outcore.embedding_bench.traces import Locality

    bench([MODELS["RMC1"]], {"K=1": Locality(1)}, MODES, folder="/mnt/ssd")
"""
