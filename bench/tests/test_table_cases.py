"""Bags of rows: every contestant adds up the same ones, and traces exceed the memory that they are to exceed."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from outcore.embedding_bench.models import MODELS

from cases import BUILDERS
from cases.tables import BATCH, HOT_REUSE, MAP, MODEL_BATCH, NO_CACHE, OURS, TIMES, bag_trace
from harness import runner, traces
from harness.model import GIB, KIB, MIB, BagTrace, Context, Skip
from legs import tables

LIMIT, CACHE = 8 * MIB, 384 * KIB


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> BagTrace:
    made = bag_trace(Context(str(tmp_path_factory.mktemp("bags"))), "RMC3", 1, LIMIT, CACHE)
    traces.make(made, Path("/"))
    return made


def spec_of(trace: BagTrace, mode: str, **more: Any) -> dict[str, Any]:
    spec = {"trace": trace.facts_path, "ids": trace.ids_path, "folder": trace.path, "memory": 32 * MIB, "cache": CACHE}
    return {**spec, "mode": mode, "seconds": 0.1, **more}


def test_rows_exceed_our_cache_and_pages_exceed_the_limit(trace: BagTrace) -> None:
    told = json.loads(Path(trace.facts_path).read_text())
    assert told["facts"]["unique_rows"] * MODELS["RMC3"].row_bytes >= TIMES * CACHE
    assert told["facts"]["touched_bytes"] >= TIMES * LIMIT
    assert sum(np.load(path, mmap_mode="r").nbytes for path in told["paths"]) == told["facts"]["touched_bytes"]


@pytest.mark.parametrize(
    ("mode", "more"),
    [
        ("ours", {}),
        ("ours", {"cache": 0}),
        ("torch", {}),
        ("torch", {"random": True}),
        ("torch", {"samples": 50}),
        ("pages", {}),
        ("rocksdb", {}),
    ],
)
def test_every_contestant_adds_up_the_same_rows(trace: BagTrace, mode: str, more: dict[str, Any]) -> None:
    for module in tables.IMPORTS.get(mode, ()):
        pytest.importorskip(module)
    found = tables.bags(spec_of(trace, mode, **more))
    assert found["error"] < 2 and found["work"] > 0 and json.dumps(found)
    if mode == "ours":
        assert (found["hit_rate"] == 0) == (more.get("cache") == 0)


def test_wrong_sums_are_seen(trace: BagTrace, monkeypatch: pytest.MonkeyPatch) -> None:
    ours = tables.CONTESTANTS["ours"]

    def wrong(*given: Any) -> tables.Sums:
        sums = ours(*given)
        return lambda *batch: [rows[::-1] for rows in sums(*batch)]

    monkeypatch.setitem(tables.CONTESTANTS, "ours", wrong)
    assert tables.bags(spec_of(trace, "ours"))["error"] > runner.LARGEST_ERROR


def test_trained_rows_are_those_of_numpy(trace: BagTrace, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = {**spec_of(trace, "train"), "cached_rows": 500}
    assert tables.train(spec)["error"] < runner.LARGEST_ERROR
    monkeypatch.setattr(tables, "trained", lambda rows, *_: rows)
    assert tables.train(spec)["error"] > runner.LARGEST_ERROR


@pytest.mark.parametrize("model", BATCH)
@pytest.mark.parametrize("k", [0, 1, 2])
def test_cases_have_the_sizes_of_the_protocol(model: str, k: int) -> None:
    case = BUILDERS[f"bags-{model}-K{k}"](Context("x"))
    trace = case.files[0]
    assert isinstance(trace, BagTrace) and case.limit_over_bytes == 64 * MIB
    legs = {leg.name: leg for leg in case.legs}
    assert legs[OURS].spec["cache"] == 32 * MIB and legs[NO_CACHE].spec["cache"] == 0
    rows_bytes = trace.touched_bytes // 4096 * MODELS[model].row_bytes
    assert rows_bytes >= 4 * 32 * MIB and trace.touched_bytes >= 4 * 128 * MIB
    # Tables, and a database of up to twice their size while it is made.
    assert 4 * trace.touched_bytes < 20e9
    assert 1000 < legs[MAP].spec["samples"] * MODELS[model].lookups < 4000
    with pytest.raises(Skip, match="no room"):
        BUILDERS[case.name](Context("x", room_bytes=5 * GIB))


def test_traces_of_a_model_share_its_tables_and_the_shipped_one_has_its_own() -> None:
    paths = {name: case(Context("x")).files[0].path for name, case in BUILDERS.items() if name.startswith("bags-RMC1")}
    assert paths["bags-RMC1-K0"] == paths["bags-RMC1-K1"] != paths["bags-RMC1-K1-shipped"]


@pytest.mark.parametrize("kind", ["uniform", "K=1"])
@pytest.mark.parametrize("name", ["NCF", "DIEN"])
def test_a_model_looks_up_what_its_network_needs(tmp_path: Path, name: str, kind: str) -> None:
    pytest.importorskip("torch")
    made = BagTrace(str(tmp_path), name, kind, 2 * MIB, 12, 8)
    traces.make(made, Path("/"))
    paths = {"trace": made.facts_path, "ids": made.ids_path, "folder": made.path}
    spec = {**paths, "model": name, "memory": 32 * MIB, "cache": CACHE, "seconds": 60.0, "ahead": 3, "network_threads": 1}
    found = {mode: tables.model({**spec, "mode": mode}) for mode in ("model", "look-ups")}
    assert all(one["error"] < runner.LARGEST_ERROR and one["work"] == 5 * 8 for one in found.values())
    # The network alone has its sums in memory, and goes on for as long as is asked.
    found["network"] = tables.model({**spec, "mode": "network", "seconds": 0.05})
    assert found["network"]["error"] < runner.LARGEST_ERROR and found["network"]["seconds"][0] >= 0.05
    assert found["model"]["reads"] > 0 and found["look-ups"]["reads"] > 0 and "reads" not in found["network"]


@pytest.mark.parametrize("kind", ["uniform", "K=1"])
@pytest.mark.parametrize("name", MODELS)
def test_pages_of_a_model_exceed_the_limit(name: str, kind: str) -> None:
    case = BUILDERS[f"model-{name}-{kind.replace('=', '')}"](Context("x"))
    made = case.files[0]
    assert isinstance(made, BagTrace) and made.touched_bytes >= TIMES * 128 * MIB and made.batch_size == MODEL_BATCH
    spec, _ = traces.spec_of(made)
    assert spec.table_bytes >= made.touched_bytes and spec.lookups == MODELS[name].lookups
    assert len({tuple(leg.environment.items()) for leg in case.legs if leg.limited}) == 1


@pytest.mark.parametrize("year", HOT_REUSE)
def test_hot_rows_are_read_once_where_all_fit_and_what_is_foreseen_otherwise(tmp_path: Path, year: str) -> None:
    made = BagTrace(str(tmp_path), "SLS", year, 3 * MIB, 40, 4, cached_share=0.05)
    traces.make(made, Path("/"))
    told = json.loads(Path(made.facts_path).read_text())
    assert told["facts"]["touched_bytes"] >= made.touched_bytes
    spec = {"trace": made.facts_path, "ids": made.ids_path, "memory": 32 * MIB, "steps": 2}
    found = {"ahead": tables.hot({**spec, "known": 8}), "alone": tables.hot(spec)}
    # Fewest over all batches is not fewest over their last half, and what is in flight when the clock starts is on either side.
    assert all(one["error"] < runner.LARGEST_ERROR and one["units_read"] >= 0.8 * one["reads"] > 0 for one in found.values())
    everything = tables.hot({**spec, "all_rows": True, "passes": 3})
    assert everything["units_read"] < found["alone"]["units_read"] and everything["work"] == 3 * found["alone"]["work"]
    pytest.importorskip("torch")
    beside = tables.hot_in_memory({**spec, "passes": 3})
    assert beside["error"] < runner.LARGEST_ERROR and beside["work"] == everything["work"]


def test_a_cache_that_knows_the_future_reads_least() -> None:
    batches = np.array([[0, 1], [2, 3], [0, 2], [0, 1], [3, 2]])
    # Two rows are kept: 0 and 1 of the first batch, 0 and 2 after the second, 0 and 1 or 2 after the third, 2 to the end.
    reads, capacity = traces.foreseen_reads(batches, 0.5, 1)
    assert (reads, capacity) == ([2, 2, 0, 1, 1], 2)
    assert traces.foreseen_reads(batches, 1.0, 1)[0] == [2, 2, 0, 0, 0]
    assert traces.foreseen_reads(batches, 0.0, 4)[0] == [1] * 5
