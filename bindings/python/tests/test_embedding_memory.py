"""Tables of four times what the kernel lets a process have: rows, cache, index and placement stay within the budget."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest

import outcore as oc
from outcore import embedding

limit = pytest.importorskip("outcore.demo.limit")

BUDGET, MARGIN = 32 << 20, 16 << 20
DIM, PACKED_ROWS = 32, 200_000
ROW_BYTES = 4 * DIM
PERIOD = 8191
"""Every element of a row is its number modulo this, so that sums are exact."""

PRELUDE = f"""
import json, sys, numpy as np, outcore as oc
from outcore.embedding import Feature, TableSet
folder = sys.argv[1]
oc.configure(memory={BUDGET}, scratch=folder, allow_tmpfs_scratch=True)
"""

LITTLE = """
tables = TableSet([folder + "/packed"], cache="1MiB")
tables.look_up([Feature(0, np.arange(8).reshape(2, 4))])
"""

MUCH = f"""
tables = TableSet([folder + "/rows.npy", folder + "/packed"], cache="16MiB", reading="8MiB")
random, sizes = np.random.default_rng(1), [len(table) for table in tables]
for step in range(15):
    # More of the numbers are near 0, so that the cache has hits, and evicts others.
    ids = [np.minimum(random.integers(0, size, (200, 80)), random.integers(0, size, (200, 80)) ** 2 // size) for size in sizes]
    found = tables.submit([Feature(number, some) for number, some in enumerate(ids)]).result()
    for sums, some in zip(found, ids):
        assert (sums == (some % {PERIOD}).sum(1, keepdims=True)).all()
known = list(tables.statistics.values())
assert sum(one.units_read for one in known) > sum(one.cache_rows for one in known)
print(json.dumps([[one.hit_rate, one.cached_rows, one.cache_rows] for one in known]))
"""


def rows(first: int, last: int) -> np.ndarray:
    return np.repeat(np.arange(first, last) % PERIOD, DIM).reshape(-1, DIM).astype("float32")


def limited(folder: Path, work: str, limit_bytes: int | None) -> tuple[int, str]:
    """The peak of a process that does `work`, as its limit counts it, and what it printed."""
    outcome = limit.run_limited([sys.executable, "-c", PRELUDE + work, str(folder)], limit_bytes, limit.best_way(), timeout_s=240)
    assert not outcome.killed, "the kernel ended it: out of memory"
    assert outcome.returncode == 0, outcome.output
    return int(outcome.peak_bytes), outcome.output


@pytest.mark.skipif(not limit.best_way().counts_page_cache, reason="no limit here that counts all memory")
def test_tables_of_four_times_the_limit(tmp_path: Path) -> None:
    with oc.Session("64MiB", tmp_path, allow_tmpfs_scratch=True) as session:
        slots = np.random.default_rng(0).permutation(PACKED_ROWS)
        embedding.pack(rows(0, PACKED_ROWS), tmp_path / "packed", placement=slots, session=session)
    base, _ = limited(tmp_path, LITTLE, None)
    limit_bytes = base + BUDGET + MARGIN
    count = 4 * limit_bytes // ROW_BYTES
    table = np.lib.format.open_memmap(tmp_path / "rows.npy", "w+", np.float32, (count, DIM))
    for first in range(0, count, 1 << 17):
        table[first : first + (1 << 17)] = rows(first, min(first + (1 << 17), count))
    del table
    _, output = limited(tmp_path, MUCH, limit_bytes)
    hit_rates, cached_rows, cache_rows = zip(*json.loads(output.splitlines()[-1]), strict=True)
    assert all(0 < hit_rate < 1 for hit_rate in hit_rates)
    assert 0 < sum(cached_rows) <= sum(cache_rows)
