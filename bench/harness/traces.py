"""Row numbers of recommenders, and the tables that they are looked up in: made before the legs, which have little memory."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
from outcore.embedding_bench.models import MODELS, ModelSpec
from outcore.embedding_bench.tables import table_files
from outcore.embedding_bench.traces import Locality

from harness.model import MIB, ROOT, BagTrace
from legs.tables import key_of, rocksdb_folder, rocksdb_options

SORTED_FILE_BYTES = 64 * MIB
"""Of RocksDB's files, whose default is this size."""


def spec_of(trace: BagTrace) -> tuple[ModelSpec, Locality]:
    """The model with tables that are as large as the trace needs, and the trace's generator."""
    model = MODELS[trace.model]
    no_rows = replace(model, tables=tuple(replace(table, rows=0) for table in model.tables))
    return Locality(trace.k, shuffled=True).covering(no_rows, trace.touched_bytes, times=1)


def make(trace: BagTrace, root: Path = ROOT) -> None:
    """Row numbers, batches x look-ups of all tables one after another; the tables; the database; and what they are."""
    told = root / trace.facts_path
    if told.exists():
        return
    folder = root / trace.path
    folder.mkdir(parents=True, exist_ok=True)
    spec, locality = spec_of(trace)
    made = locality(spec, trace.batches, trace.batch_size, trace.seed)
    batches = [np.concatenate([ids for ids, _ in made.batch(number)]) for number in range(trace.batches)]
    np.save(root / trace.ids_path, np.stack(batches))
    paths = table_files(spec, folder)
    make_database(paths, folder)
    lookups = [table.lookups for table in spec.tables]
    facts = {"paths": paths, "lookups": lookups, "dim": spec.dim, "batch_size": trace.batch_size, "facts": made.facts()}
    told.write_text(json.dumps(facts, default=float))


def make_database(paths: list[str], folder: Path) -> None:
    """The rows of all tables in RocksDB, where it is installed: in sorted files that do not overlap, as compacted ones are."""
    try:
        from rocksdict import Rdict, SstFileWriter
    except ImportError:
        return
    whole, unfinished = Path(rocksdb_folder(str(folder))), folder / "rocksdb.unfinished"
    if whole.exists():
        return
    shutil.rmtree(unfinished, ignore_errors=True)
    database = Rdict(str(unfinished), rocksdb_options(64 * MIB))
    for number, path in enumerate(paths):
        table = np.load(path, mmap_mode="r")
        at_once = SORTED_FILE_BYTES // table[:1].nbytes
        for first in range(0, len(table), at_once):
            sorted_file = str(folder / "rows.sst")
            writer = SstFileWriter(rocksdb_options(64 * MIB))
            writer.open(sorted_file)
            for row, numbers in enumerate(np.asarray(table[first : first + at_once]), first):
                writer[key_of(number, row)] = numbers.tobytes()
            writer.finish()
            database.ingest_external_file([sorted_file])
            Path(sorted_file).unlink(missing_ok=True)
        del table
    database.close()
    unfinished.rename(whole)
