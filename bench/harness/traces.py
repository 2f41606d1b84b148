"""Row numbers of recommenders, and the tables that they are looked up in: made before the legs, which have little memory."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from outcore.embedding_bench.models import MODELS, ModelSpec
from outcore.embedding_bench.tables import table_files
from outcore.embedding_bench.traces import Locality

from harness.model import MIB, ROOT, BagTrace
from legs.tables import key_of, rocksdb_folder, rocksdb_options

BATCH_ROWS = 1 << 16


def spec_of(trace: BagTrace) -> tuple[ModelSpec, Locality]:
    """The model with tables that are as large as the trace needs, and the trace's generator."""
    return Locality(trace.k).covering(MODELS[trace.model], trace.touched_bytes, times=1)


def make(trace: BagTrace, root: Path = ROOT) -> None:
    """`ids.npy`, batches x look-ups of all tables one after another; the tables; and `trace.json`."""
    folder = root / trace.path
    told = folder / "trace.json"
    if told.exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    spec, locality = spec_of(trace)
    made = locality(spec, trace.batches, trace.batch_size, trace.seed)
    batches = [np.concatenate([ids for ids, _ in made.batch(number)]) for number in range(trace.batches)]
    np.save(folder / "ids.npy", np.stack(batches))
    paths = table_files(spec, folder)
    make_database(paths, folder)
    lookups = [table.lookups for table in spec.tables]
    facts = {"paths": paths, "lookups": lookups, "dim": spec.dim, "batch_size": trace.batch_size, "facts": made.facts()}
    told.write_text(json.dumps(facts, default=float))


def make_database(paths: list[str], folder: Path) -> None:
    """The rows of all tables in RocksDB, compacted, where it is installed."""
    try:
        from rocksdict import Rdict, WriteBatch
    except ImportError:
        return
    database = Rdict(rocksdb_folder(str(folder)), rocksdb_options(64 * MIB))
    for number, path in enumerate(paths):
        table = np.load(path, mmap_mode="r")
        for first in range(0, len(table), BATCH_ROWS):
            batch = WriteBatch(raw_mode=True)
            for row, numbers in enumerate(np.asarray(table[first : first + BATCH_ROWS]), first):
                batch.put(key_of(number, row), numbers.tobytes())
            database.write(batch)
        del table
    database.compact_range(None, None)
    database.close()
