"""Row numbers of recommenders, and the tables that they are looked up in: made before the legs, which have little memory."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
from outcore.embedding_bench.models import MODELS, OPERATOR, ModelSpec
from outcore.embedding_bench.reuse import META_2021, META_2022, Reuse
from outcore.embedding_bench.tables import table_files
from outcore.embedding_bench.traces import Ids, Locality, TraceFactory, uniform

from harness.model import MIB, ROOT, BagTrace
from legs.tables import key_of, rocksdb_folder, rocksdb_options

SORTED_FILE_BYTES = 64 * MIB
"""Of RocksDB's files, whose default is this size."""


PAGE_BYTES = 4096
PUBLISHED = {"2021": META_2021, "2022": META_2022}
PAGES_A_TOUCHED_ONE = 1.1
"""Of uniform ids: nearly all pages of the tables are touched."""
PAGES_A_ROW = 2
"""Of published reuse: rows on random pages, of which 0.39 are touched where there are twice as many pages as rows."""


AS_SHIPPED = " as shipped"


def shape_of(model: str) -> ModelSpec:
    return {**MODELS, OPERATOR.name: OPERATOR}[model]


def spec_of(trace: BagTrace) -> tuple[ModelSpec, TraceFactory]:
    """The model with tables that are as large as the trace needs, and the trace's generator."""
    model = shape_of(trace.model)
    pages, tables = -(-trace.touched_bytes // PAGE_BYTES), len(model.tables)
    a_page = max(1, PAGE_BYTES // model.row_bytes)
    if trace.kind in PUBLISHED:
        histogram = PUBLISHED[trace.kind]
        unique = int(trace.batches * trace.batch_size * model.tables[0].lookups / histogram.reuse)
        return with_rows(model, PAGES_A_ROW * unique * a_page), Reuse(histogram)
    if trace.kind == "uniform":
        return with_rows(model, int(PAGES_A_TOUCHED_ONE * pages / tables) * a_page), uniform
    if trace.kind.endswith(AS_SHIPPED):
        return model, Locality(int(trace.kind.removeprefix("K=").removesuffix(AS_SHIPPED)))
    return Locality(int(trace.kind.removeprefix("K=")), shuffled=True).covering(with_rows(model, 0), trace.touched_bytes, times=1)


def with_rows(model: ModelSpec, rows: int) -> ModelSpec:
    return replace(model, tables=tuple(replace(table, rows=rows) for table in model.tables))


def foreseen_reads(batches: Ids, share: float, rows_a_page: int) -> tuple[list[int], int]:
    """Pages of one table that each batch reads at least, and the rows of the cache: this share of all that are looked up.

    Of the rows of a batch and of the cache those are kept that are looked up again soonest: Belady's policy (IBM Systems Journal
    1966) with batches as its steps.

    Parameters
    ----------
    batches : int64 array [batches, ids]
    """
    rows, places = np.unique(batches, return_inverse=True)
    asked = [np.unique(part) for part in places.reshape(batches.shape)]
    never, capacity = len(asked), int(share * len(rows))
    due, next_use = np.full(len(rows), never), []
    for number, part in reversed(list(enumerate(asked))):
        next_use.append(due[part])
        due[part] = number
    kept, reads = np.empty(0, np.int64), []
    for part, soonest in zip(asked, reversed(next_use), strict=True):
        missed = rows[np.setdiff1d(part, kept, assume_unique=True)]
        reads.append(len(np.unique(missed // rows_a_page)))
        due[part] = soonest
        candidates = np.union1d(kept, part)
        candidates = candidates[due[candidates] < never]
        kept = candidates[np.argsort(due[candidates], kind="stable")[:capacity]]
    return reads, capacity


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
    if trace.database:
        make_database(paths, folder)
    lookups = [table.lookups for table in spec.tables]
    facts = {"paths": paths, "lookups": lookups, "dim": spec.dim, "batch_size": trace.batch_size, "facts": made.facts()}
    if trace.cached_share:
        (ids,) = made.ids
        flat = ids.reshape(trace.batches, -1)
        facts["reads"], facts["cached_rows"] = foreseen_reads(flat, trace.cached_share, PAGE_BYTES // spec.row_bytes)
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
