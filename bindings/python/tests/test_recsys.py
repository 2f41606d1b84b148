"""The inputs and networks of the experiment with recommenders: shapes, traces against plain references, and what is measured."""

import gzip
import json
import os
import time
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import outcore as oc
from outcore.embedding_bench import _stack, splits
from outcore.embedding_bench.clicks import Clicks, read_clicks
from outcore.embedding_bench.models import DEEP_REC_SYS, MLPERF, MODELS, OPERATOR, ModelSpec, TableSpec
from outcore.embedding_bench.reuse import (
    EDGES,
    META_2021,
    META_2022,
    Histogram,
    Reuse,
    histogram_of,
    read_histograms,
    reuse_counts,
)
from outcore.embedding_bench.tables import HEADER_BYTES, table_files
from outcore.embedding_bench.traces import Locality, Trace, lru_hits, sequential, strided, top_hits, uniform
from outcore.errors import ArgumentError, CorruptError, MissingError, OverBudgetError

torch = pytest.importorskip("torch")
from outcore.embedding_bench.ladder import WITHIN, bench_ladder, enough  # noqa: E402
from outcore.embedding_bench.load import bench_load  # noqa: E402
from outcore.embedding_bench.modes import MODES, PageBags, TableBags, TorchBags  # noqa: E402
from outcore.embedding_bench.networks import Model  # noqa: E402
from outcore.embedding_bench.run import WARM_UP, bench  # noqa: E402
from outcore.embedding_bench.splits import bench_splits, best_split  # noqa: E402

SMALL = ModelSpec("small", "dense", (TableSpec(500, 3), TableSpec(40, 1)), dim=8, dense=4, bottom=(8,), top=(6, 1))


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """What is computed here is too small for several."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def layers(*widths: int) -> int:
    """Parameters of fully connected layers."""
    return sum(n * m + m for n, m in pairwise(widths))


def recurrent(inputs: int, hidden: int) -> int:
    return hidden * inputs + hidden * hidden + 2 * hidden


# Models: tables, rows, look-ups of a sample, parameters of the network, width of the output. From the table of the artifact.
SHAPES = {
    "WND": (27, 27 * 100_000, 27, layers(1376, 1024, 512, 256), 256),
    "MTWND": (43, 41 * 10_000 + 200_000, 43, layers(1888, 1024, 512) + 8 * layers(512, 256, 128), 8 * 128),
    "DIN": (254, 10_000 + 251_000 + 200_000, 762, 251 * layers(96, 1, 32) + layers(128, 200, 80, 2), 2),
    "DIEN": (
        *(43, 41 * 10_000 + 200_000, 129),
        recurrent(32, 64) + layers(64, 64) + recurrent(64, 64) + layers(160, 200, 80, 2),
        2,
    ),
    "NCF": (4, 400_000, 4, layers(64, 256, 256, 128, 64) + layers(96, 64), 64),
    "RMC1": (8, 8_000_000, 640, layers(128, 64, 32) + layers(288, 256, 64, 1), 1),
    "RMC2": (32, 32_000_000, 3840, layers(128, 64, 64) + layers(2112, 128, 64, 1), 1),
    "RMC3": (10, 10_000_000, 200, layers(2560, 1024, 256, 32) + layers(352, 512, 256, 1), 1),
}


def in_memory(spec: ModelSpec, seed: int = 1) -> Any:
    torch.manual_seed(seed)
    tables = [torch.nn.EmbeddingBag(table.rows, spec.dim, mode="sum") for table in spec.tables]
    return lambda lookups: [table(*lookup) for table, lookup in zip(tables, lookups, strict=True)]


def tensors(trace: Trace, number: int = 0) -> list[tuple[Any, Any]]:
    return [(torch.from_numpy(ids), torch.from_numpy(offsets)) for ids, offsets in trace.batch(number)]


@pytest.mark.parametrize("name", MODELS)
def test_models_have_the_shapes_of_the_artifact(name: str) -> None:
    spec, (tables, rows, lookups, parameters, output) = MODELS[name], SHAPES[name]
    assert (len(spec.tables), sum(table.rows for table in spec.tables), spec.lookups) == (tables, rows, lookups)
    assert spec.table_bytes == 4 * rows * (64 if name == "RMC2" else 32)
    small = spec.scaled(0.002)
    model = Model(small, in_memory(small), seed=3)
    assert sum(values.numel() for values in model.parameters()) == parameters
    out = model(torch.rand(5, spec.dense), tensors(uniform(small, 1, 5)))
    assert out.shape == (5, output) == (5, spec.output)
    assert torch.isfinite(out).all() and (out >= 0).all() and (out <= 1).all()


def test_models_of_the_larger_suite_have_their_tables() -> None:
    assert DEEP_REC_SYS["RMC1"].table_bytes == 8 * 4_000_000 * 128
    assert DEEP_REC_SYS["NCF"].joined == 128 and DEEP_REC_SYS["DIEN"].lookups == 43
    assert (len(MLPERF.tables), MLPERF.lookups, MLPERF.dim) == (26, 214, 128)


def test_weights_follow_from_the_seed_and_have_its_deviation() -> None:
    bags, state = in_memory(OPERATOR.scaled(0.001)), torch.get_rng_state()
    first, same, other = (Model(MODELS["WND"], bags, seed=seed) for seed in (5, 5, 6))
    assert torch.equal(torch.get_rng_state(), state)
    name = "network.top.0.weight"
    weights, again, others = (model.state_dict()[name] for model in (first, same, other))
    assert torch.equal(weights, again) and not torch.equal(weights, others)
    assert weights.std().item() == pytest.approx((2 / (1376 + 1024)) ** 0.5, rel=0.01)


def test_attention_and_recurrence_are_what_they_say() -> None:
    """DIN's units and DIEN's layers, one at a time in plain code."""
    sums = [torch.randn(3, 32) for _ in range(254)]
    network = Model(MODELS["DIN"], in_memory(OPERATOR.scaled(0.001))).network
    interest = torch.zeros(3, 32)
    for unit, user in enumerate(sums[1:-2]):
        legs = torch.cat([user, sums[-2], user + sums[-2]], 1)
        narrow = (legs @ network.narrow[unit] + network.narrow_bias[unit]).relu()
        interest += (narrow @ network.widen[unit] + network.widen_bias[unit]).relu()
    expected = network.top(torch.cat([sums[0], interest, sums[-2], sums[-1]], 1))
    torch.testing.assert_close(network(torch.empty(3, 0), sums), expected)
    network, sums = Model(MODELS["DIEN"], in_memory(OPERATOR.scaled(0.001))).network, sums[:43]
    layer, state, later = network.interests, torch.zeros(3, 64), torch.zeros(3, 64)
    for x in sums[1:-2]:
        state = (x @ layer.weight_ih_l0.T + layer.bias_ih_l0 + state @ layer.weight_hh_l0.T + layer.bias_hh_l0).tanh()
        weighed, above = state + network.attention(state).softmax(1), network.evolution
        later = (weighed @ above.weight_ih_l0.T + above.bias_ih_l0 + later @ above.weight_hh_l0.T + above.bias_hh_l0).tanh()
    expected = network.top(torch.cat([later, sums[0], sums[-2], sums[-1]], 1))
    torch.testing.assert_close(network(torch.empty(3, 0), sums), expected)


# Traces


def plain_references(steps: Sequence[int], width: int, lines: int) -> list[int]:
    stack, found = list(range(lines)), []
    for step in steps:
        line = stack.pop(lines - step * width if step else 0)
        stack.append(line)
        found.append(line)
    return found


def test_references_are_those_of_a_stack() -> None:
    for seed in range(60):
        random = np.random.default_rng(seed)
        width, levels = int(random.integers(1, 7)), int(random.integers(1, 9))
        lines, count = levels * width + 1 + int(random.integers(0, 40)), int(random.integers(0, 500))
        steps = random.integers(0, levels + 1, count).astype(np.uint8)
        assert _stack.references(steps, width, lines).tolist() == plain_references(steps.tolist(), width, lines), seed
    with pytest.raises(ArgumentError, match="lines"):
        _stack.references(np.array([2], np.uint8), 5, 10)


@pytest.mark.parametrize(
    ("k", "new", "lru", "top", "unique"),
    [(0, 0.120, 0.84, (0.42, 0.65), 0.44), (1, 0.555, 0.44, (0.32, 0.38), 0.68), (2, 0.702, 0.29, (0.30, 0.35), 0.78)],
)
def test_locality_has_the_facts_of_the_paper(k: int, new: float, lru: float, top: tuple[float, float], unique: float) -> None:
    """RMC1's shape with two tables: new lines, hits of LRU(2000) and of the top 2000, different rows of a batch."""
    spec = MODELS["RMC1"].varied(tables=2)
    trace = Locality(k)(spec, 40, 32)
    ids = trace.ids[0]
    assert (ids % 128 == 0).all() and ids.max() < 1_000_000 and ids.shape == (40, 32, 80)
    assert lru_hits(ids.reshape(-1).tolist(), 4000) == pytest.approx(1 - new, abs=0.05)
    assert lru_hits(ids.reshape(-1).tolist(), 2000) == pytest.approx(lru, abs=0.02)
    assert top[0] <= top_hits(ids, 2000) <= top[1]
    assert np.mean([len(np.unique(batch)) / batch.size for batch in ids]) == pytest.approx(unique, abs=0.02)
    assert all(len(set(bag)) == 80 for bag in ids.reshape(-1, 80)[:200].tolist())
    shuffled = Locality(k, shuffled=True)(spec, 40, 32).ids[0]
    assert not np.array_equal(ids, shuffled) and len(np.unique(ids)) == len(np.unique(shuffled))
    counts = [np.sort(np.unique(one, return_counts=True)[1]) for one in (ids, shuffled)]
    np.testing.assert_array_equal(*counts)
    assert not np.array_equal(ids, trace.ids[1]) and np.array_equal(ids, Locality(k)(spec, 40, 32).ids[0])


def test_distances_of_new_lines_grow_from_the_beginning() -> None:
    """The first reference is new, and no distance reaches beyond what was new before, as in the artifact."""
    from outcore.embedding_bench.traces import _steps, distances

    steps = _steps(distances(0), 2000, np.random.default_rng(0))
    new = np.cumsum(steps == 0) - (steps == 0)
    assert steps[0] == 0 and (steps <= new).all() and steps.max() > 20
    assert [distances(k)[0] for k in (0, 1, 2)] == pytest.approx([0.120, 0.5545, 0.7018], abs=1e-4)


def test_lines_fit_small_tables_and_can_cover_several_times_a_memory() -> None:
    assert Locality(1)(MODELS["DIN"], 2, 4).ids[1].max() < 1000
    with pytest.raises(ArgumentError, match="lines"):
        Locality(1)(MODELS["DIN"].scaled(0.05), 2, 4)
    with pytest.raises(ArgumentError, match="do not fit"):
        Locality(1, lines=5000)(MODELS["RMC3"].scaled(0.1), 2, 4)
    memory = 8 << 20
    spec, locality = Locality(1).covering(MODELS["RMC3"], memory)
    assert spec == MODELS["RMC3"] and locality.spacing == 32
    assert locality(spec, 40, 16).facts()["touched_bytes"] >= 4 * memory
    larger, _ = Locality(1).covering(MODELS["RMC3"], 1 << 30)
    assert larger.table_bytes >= 4 << 30


def test_uniform_ids_are_unique_in_a_bag_and_others_have_their_pages() -> None:
    spec = ModelSpec("x", "pooled", (TableSpec(12, 5), TableSpec(6, 6), TableSpec(1000, 4)), dim=32)
    for ids, table in zip(uniform(spec, 30, 8, 1).ids, spec.tables, strict=True):
        assert ids.shape == (30, 8, table.lookups) and ids.min() == 0 and ids.max() == table.rows - 1
        assert all(len(set(bag)) == table.lookups for bag in ids.reshape(-1, table.lookups).tolist())
    assert sequential(spec, 2, 8).ids[2].reshape(-1).tolist() == list(range(64))
    pages = strided(spec, 1, 7).ids[2].reshape(-1) // 32
    assert pages.tolist() == [page % 31 for page in range(28)]
    assert strided(OPERATOR, 1, 16).facts() == {"unique_rows": 1280, "touched_bytes": 1280 * 4096}
    with pytest.raises(ArgumentError, match="at least one batch"):
        uniform(spec, 0, 8)


@pytest.mark.parametrize("published", [META_2021, META_2022], ids=lambda one: one.name)
def test_reuse_is_as_published(published: Histogram) -> None:
    """Shares of look-ups by frequency within 1e-5; shares of rows, which the generator is not given, within their digits."""
    lookups = 3_000_000
    counts = reuse_counts(published, lookups)
    bins = np.searchsorted(EDGES, counts) - 1
    shares = np.array(published.lookups) / sum(published.lookups)
    np.testing.assert_allclose(np.bincount(bins, counts, len(EDGES) - 1) / lookups, shares, atol=1e-5)
    np.testing.assert_allclose(np.bincount(bins, minlength=len(EDGES) - 1) / len(counts), published.rows, atol=4e-3)
    assert counts.sum() == lookups and lookups / len(counts) == pytest.approx(published.reuse, rel=1e-5)


def test_traces_of_a_histogram_have_it() -> None:
    spec = ModelSpec("x", "pooled", (TableSpec(400_000, 40),), dim=32)
    trace = Reuse(META_2021)(spec, 20, 128, 7)
    found = histogram_of(trace.ids[0])
    assert found.reuse == pytest.approx(6.9, rel=1e-3)
    # 102,400 look-ups have no row of more than 8,192: the upper bins are in the one below.
    np.testing.assert_allclose(found.lookups[:12], META_2021.lookups[:12], atol=1e-3)
    assert sum(found.lookups[12:]) == pytest.approx(sum(META_2021.lookups[12:]), abs=2e-3)
    assert np.array_equal(trace.ids[0], Reuse(META_2021)(spec, 20, 128, 7).ids[0])
    assert not np.array_equal(trace.ids[0], Reuse(META_2021)(spec, 20, 128, 8).ids[0])
    briefly = Reuse(META_2021, lifetime=0.05)(spec, 20, 128, 7)
    at_once, spread = (lru_hits(one.ids[0].reshape(-1).tolist(), 1000) for one in (briefly, trace))
    assert at_once > spread + 0.1


@pytest.mark.parametrize("lookups", [1, 2, 3, 7, 100, 25_600])
def test_few_look_ups_have_the_frequencies_that_they_can(lookups: int) -> None:
    counts = reuse_counts(META_2022, lookups)
    assert counts.sum() == lookups and counts.min() >= 1


def test_rows_of_a_histogram_can_be_chosen_within_its_bins() -> None:
    for unique in (13_500, 15_000):
        counts = reuse_counts(META_2021, 100_000, unique)
        assert len(counts) == unique and counts.sum() == 100_000
    with pytest.raises(ArgumentError, match="rows, not of 50000"):
        reuse_counts(META_2021, 100_000, 50_000)
    with pytest.raises(ArgumentError, match="the table has 500"):
        Reuse(META_2021)(SMALL, 100, 64, 0)
    with pytest.raises(ArgumentError, match="lifetime"):
        Reuse(META_2021, lifetime=0)(SMALL, 1, 1, 0)


def shares(one: Histogram) -> tuple[tuple[float, ...], tuple[float, ...]]:
    return one.rows, one.lookups


def test_published_histograms_are_read(tmp_path: Path) -> None:
    edges = [f"({low}, {high}]" for low, high in pairwise(EDGES[:-1])] + ["(32768+"]
    text = "".join(
        f"fbgemm_t1_{name}.pt\nLocality stats after 1 batches\nAvg # of indices: 10\nAvg col size: {mean}\n"
        + "".join(f"{edge}: {share:.3f}\n" for edge, share in zip(edges, [*rows, *lookups], strict=False))
        + "Ratio of index distribution at different column sizes:\n"
        + "".join(f"{edge}: {share:.3f}\n" for edge, share in zip(edges, lookups, strict=True))
        for name, mean, rows, lookups in (
            ("a", 6.9, META_2021.rows, META_2021.lookups),
            ("b", 2, META_2022.rows, META_2022.lookups),
        )
    )
    (tmp_path / "stats.txt").write_text(text)
    found = read_histograms(tmp_path / "stats.txt")
    assert [(one.name, one.reuse) for one in found] == [("fbgemm_t1_a.pt", 6.9), ("fbgemm_t1_b.pt", 2.0)]
    assert found[0].rows == META_2021.rows and found[1].lookups == META_2022.lookups
    (tmp_path / "other.txt").write_text("nothing of the kind")
    with pytest.raises(CorruptError, match="no histograms"):
        read_histograms(tmp_path / "other.txt")
    with pytest.raises(MissingError):
        read_histograms(tmp_path / "none.txt")


def click_log(path: Path, samples: int = 50) -> Path:
    random = np.random.default_rng(0)
    lines = []
    for _ in range(samples):
        categories = [f"{value:08x}" if value else "" for value in random.integers(0, 40, 26)]
        lines.append("\t".join(["1", *["7"] * 13, *categories]))
    path.write_bytes(gzip.compress(("\n".join(lines) + "\n").encode()))
    return path


def test_clicks_look_up_categories_and_rows_that_follow_from_them(tmp_path: Path) -> None:
    log = click_log(tmp_path / "log.tsv.gz")
    spec = MLPERF.scaled(0.001)
    trace = Clicks(log)(spec, 3, 32, 0)
    categories = read_clicks(log)
    assert categories.shape == (50, 26)
    for number, (ids, table) in enumerate(zip(trace.ids, spec.tables, strict=True)):
        bags = ids.reshape(-1, table.lookups)
        assert (bags[:, 0] == categories[np.arange(96) % 50, number] % table.rows).all() and bags.max() < table.rows
        assert (bags[:46] == bags[50:96]).all()
        assert len(np.unique(bags, axis=0)) == len(np.unique(bags[:, 0]))
    uniform_rows, pareto_rows = trace.ids[20], Clicks(log, "pareto")(spec, 3, 32, 0).ids[20]
    assert np.median(uniform_rows) == pytest.approx(20_000, rel=0.1) and np.median(pareto_rows) < 5_000
    assert not np.array_equal(Clicks(log)(spec, 3, 32, 1).ids[20], uniform_rows)


def test_bad_logs_are_refused(tmp_path: Path) -> None:
    log = tmp_path / "log.tsv"
    for text, told in (("1\t2\n", "line 1 has 2 fields"), ("\t".join(["x"] * 40) + "\n", "not a click log")):
        log.write_text(text)
        with pytest.raises(CorruptError, match=told):
            read_clicks(log)
    with pytest.raises(ArgumentError, match="26 categories, but RMC1 has 8 tables"):
        Clicks(log)(MODELS["RMC1"], 1, 1, 0)
    log.write_text("")
    with pytest.raises(ArgumentError, match="no samples"):
        Clicks(log)(MLPERF.scaled(0.001), 1, 1, 0)


# Runs


def direct(folder: Path) -> bool:
    """Whether the file system has reads past the page cache."""
    (folder / "probe").write_bytes(b"x")
    try:
        os.close(os.open(folder / "probe", os.O_RDONLY | os.O_DIRECT))
    except OSError:
        return False
    return True


def test_tables_are_written_once_on_whole_pages(tmp_path: Path) -> None:
    paths = table_files(SMALL, tmp_path)
    first = np.load(paths[0])
    assert first.shape == (500, 8) and first.dtype == np.float32 and Path(paths[0]).stat().st_size == HEADER_BYTES + first.nbytes
    assert np.abs(first).max() <= 1 / np.sqrt(500) and first.std() == pytest.approx(1 / np.sqrt(1500), rel=0.05)
    before = [os.stat(path).st_mtime_ns for path in paths]
    assert table_files(SMALL, tmp_path) == paths and [os.stat(path).st_mtime_ns for path in paths] == before
    assert sorted(os.listdir(tmp_path)) == sorted(["scratch", *map(os.path.basename, paths)])
    with pytest.raises(MissingError):
        table_files(SMALL, tmp_path / "none")


@pytest.mark.parametrize("dim", [8, 24, 1500])
def test_pages_sum_up_what_torch_does(tmp_path: Path, dim: int) -> None:
    """Rows in one page, rows that go on in the next, and rows of several pages; empty bags are zero."""
    if not direct(tmp_path):
        pytest.skip("no reads past the page cache here")
    spec = ModelSpec("x", "pooled", (TableSpec(300, 2),), dim=dim)
    paths = table_files(spec, tmp_path)
    ids, offsets = torch.tensor([0, 299, 170, 171, 5]), torch.tensor([0, 2, 2, 5])
    bags = PageBags(paths, dim)
    expected = TorchBags([np.load(paths[0])])([(ids, offsets)])
    torch.testing.assert_close(bags([(ids, offsets)]), expected)
    bags.close()


def test_modes_agree_and_results_are_told(tmp_path: Path) -> None:
    modes = {name: mode for name, mode in MODES.items() if name != "pages" or direct(tmp_path)}
    oc.configure(memory="64MiB", scratch=tmp_path, allow_tmpfs_scratch=True)
    told: list[dict[str, Any]] = []
    models = [SMALL, MODELS["NCF"].scaled(0.01)]
    given: dict[str, Any] = {"folder": tmp_path, "batch_sizes": [2, 8], "batches": 5, "told": told.append, "threads": 1}
    found = bench(models, {"uniform": uniform, "sequential": sequential}, modes, **given)
    assert found == told and len(found) == 2 * 2 * 2 * len(modes)
    for one in found:
        assert one["agrees"] and one["batches"] == 5 and one["threads"] == 1
        assert 0 < one["batch_p50_s"] <= one["batch_p90_s"] <= one["batch_p99_s"]
        assert one["samples_per_s"] == pytest.approx(one["batch_size"] / (one["lookup_s"] + one["network_s"]))
        assert one["lookups_per_s"] == pytest.approx(one["samples_per_s"] * one["lookups"])
        assert one["unique_rows"] > 0 and one["touched_bytes"] % 4096 == 0
    json.dumps(found)
    with pytest.raises(ArgumentError, match="at least one batch"):
        bench(models, {"uniform": uniform}, modes, folder=tmp_path, batches=0)


class Recorded:
    """A mode that notes what is asked of it, adds `error` to its sums, and fails at a batch."""

    def __init__(self, spec: ModelSpec, error: float = 0.0, fails_at: int = -1) -> None:
        self.bags, self.error, self.fails_at = in_memory(spec), error, fails_at
        self.asked: list[tuple[str, list[int]]] = []

    def __call__(self, lookups: Any) -> Any:
        if len(self.asked) // 2 == self.fails_at:
            raise OSError("the device is gone")
        self.asked.append(("lookup", lookups[0][0].tolist()))
        return [sums + self.error for sums in self.bags(lookups)]

    def prefetch(self, lookups: Any) -> None:
        self.asked.append(("prefetch", lookups[0][0].tolist()))

    def facts(self) -> dict[str, Any]:
        return {"hit_rate": 0.25}

    def close(self) -> None:
        self.asked.append(("close", []))


def test_the_next_batch_is_prefetched_and_modes_are_closed(tmp_path: Path) -> None:
    made: list[Recorded] = []

    def mode(error: float, fails_at: int = -1) -> Any:
        return lambda spec, folder: made.append(Recorded(spec, error, fails_at)) or made[-1]

    modes = {"right": mode(0.0), "wrong": mode(1.0)}
    found = bench([SMALL], {"uniform": uniform}, modes, folder=tmp_path, batches=3, batch_sizes=[2])
    assert [one["agrees"] for one in found] == [True, False] and found[0]["hit_rate"] == 0.25
    kinds, ids = zip(*made[0].asked, strict=True)
    assert kinds == ("lookup", "prefetch") * (WARM_UP + 2) + ("lookup", "close")
    assert all(ids[at] == ids[at + 1] for at in range(1, len(ids) - 2, 2))
    with pytest.raises(OSError, match="gone"):
        bench([SMALL], {"uniform": uniform}, {"failing": mode(0.0, 1)}, folder=tmp_path, batches=3, batch_sizes=[2])
    assert made[-1].asked[-1] == ("close", [])


def test_a_mode_ends_after_its_time(tmp_path: Path) -> None:
    found = bench([SMALL], {"uniform": uniform}, {"memory": MODES["memory"]}, folder=tmp_path, batches=2000, seconds=0.02)
    assert 1 <= found[0]["batches"] < 2000


# Figures and the command


def results() -> list[dict[str, Any]]:
    """What `bench` would return, at speeds that are made up."""
    found = []
    cases = [(OPERATOR, trace, size) for trace in ("sequential", "strided") for size in (1, 8, 64)]
    cases += [(spec, "uniform", 64) for spec in MODELS.values()]
    cases += [(MODELS[name], f"K={k}", size) for name in ("RMC1", "RMC2", "RMC3") for k in (0, 1, 2) for size in (1, 32)]
    varied = [MODELS["RMC3"].varied(**{what: count}) for what in ("dim", "lookups", "tables") for count in (4, 16, 64)]
    cases += [(spec, "K=1", 32) for spec in [*varied]]
    for spec, trace, size in cases:
        for mode, cost in (("memory", 1e-7), ("map", 2e-5), ("pages", 6e-5), ("outcore", 3e-6)):
            seconds = 1e-4 + cost * size * spec.lookups
            shape = {"model": spec.name, "dim": spec.dim, "tables": len(spec.tables), "lookups": spec.lookups}
            times = {"batch_p50_s": seconds, "batch_p99_s": 2 * seconds, "samples_per_s": size / seconds}
            found.append({**shape, "trace": trace, "mode": mode, "batch_size": size, "hit_rate": 0.5, **times})
    return found


def test_figures_have_titles_labels_and_curves(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from outcore.embedding_bench import figures

    some = results()
    made = [figures.figure3(), figures.figure4(), figures.figure5(some), figures.figure6(some), figures.figure8(some)]
    made += [figures.figure10(some, "pages", "outcore"), figures.figure11(some, "map", "outcore")]
    for figure in made:
        assert "Figure" in (figure.get_suptitle() + "".join(axes.get_title() for axes in figure.axes))
        assert figure.axes[0].get_ylabel() and all(axes.get_xlabel() for axes in figure.axes)
        assert all(axes.lines or axes.patches for axes in figure.axes)
    speed = made[-1].axes[0].lines[0].get_ydata()
    assert np.asarray(speed) == pytest.approx((1e-4 + 2e-5 * 6400) / (1e-4 + 3e-6 * 6400))
    with pytest.raises(ArgumentError, match="no results of SLS"):
        figures.figure5(some[-4:])
    with pytest.raises(ArgumentError, match="for the same case"):
        figures.figure10(some, "none", "outcore")
    paths = figures.draw([one for one in some if one["mode"] != "map"], tmp_path)
    assert {os.path.basename(path) for path in paths} >= {f"figure-{number}.png" for number in (3, 4, 5, 6, 8)}
    assert {"figure-10-outcore-pages.png", "figure-11-outcore-pages.png"} <= set(os.listdir(tmp_path))
    assert all(os.path.getsize(path) > 10_000 for path in paths)


def test_caching_a_few_rows_serves_half_of_the_look_ups() -> None:
    """What is published: 2.0 % of the rows serve 49 % of the look-ups of 2021, 4.7 % serve 62 % of those of 2022."""
    pytest.importorskip("matplotlib")
    from outcore.embedding_bench.figures import _served

    for histogram, rows, lookups in ((META_2021, 0.020, 0.49), (META_2022, 0.047, 0.62)):
        cached, served = _served(histogram)
        assert np.interp(rows, cached, served) == pytest.approx(lookups, abs=0.015)


def test_the_command_measures_and_draws(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from outcore._embedding_bench_commands import MODE_NAMES, MODEL_NAMES, bench_embedding

    assert tuple(MODES) == MODE_NAMES and (*MODELS, OPERATOR.name, MLPERF.name) == MODEL_NAMES
    log = click_log(tmp_path / "log.tsv.gz")
    given = [str(tmp_path), "--scratch", str(tmp_path), "--memory", "32MiB", "--threads", "1", "--batch-size", "2"]
    given += ["--mode", "memory", "--mode", "map", "--batches", "2", "--figures", str(tmp_path)]
    shapes = ["--scale", "0.005", "--model", "NCF", "--model", "RMC3", "--trace", "K=1", "--trace", "uniform"]
    ran = CliRunner().invoke(bench_embedding, [*given, *shapes, "--cover", "1MiB", "--results", str(tmp_path / "all.json")])
    assert ran.exit_code == 0, ran.output
    assert "NCF uniform map" in ran.output and "samples/s" in ran.output and "figure-6.png" in ran.output
    assert len(json.loads((tmp_path / "all.json").read_text())) == 8
    clicks = ["--scale", "0.001", "--model", "MLPERF", "--trace", "clicks"]
    ran = CliRunner().invoke(bench_embedding, [*given, *clicks, "--click-log", str(log), "--json"])
    assert ran.exit_code == 0, ran.output
    assert [one["mode"] for one in json.loads(ran.output)["results"]] == ["memory", "map"]
    ran = CliRunner().invoke(bench_embedding, [*given, *clicks])
    assert ran.exit_code == 2 and "--click-log" in ran.output


def test_requests_wait_for_a_free_client_and_the_wait_counts(tmp_path: Path) -> None:
    """Of a look-up that takes 20 ms, 100 a second arrive: one client serves half of them, four serve all."""

    class Slow:
        def __init__(self, spec: ModelSpec) -> None:
            self.bags, self.in_progress, self.most = in_memory(spec), 0, 0

        def __call__(self, lookups: Any) -> Any:
            self.in_progress += 1
            self.most = max(self.most, self.in_progress)
            time.sleep(0.02)
            self.in_progress -= 1
            return self.bags(lookups)

    found = {}
    for clients in (1, 4):
        made: list[Slow] = []
        modes = {"slow": lambda spec, _, made=made: made.append(Slow(spec)) or made[-1]}
        given: dict[str, Any] = {"folder": tmp_path, "batch_sizes": [2], "batches": 4, "seconds": 1.0, "clients": clients}
        (found[clients],) = bench_load([SMALL], {"uniform": uniform}, modes, [100.0], **given)
        assert made[0].most == 1 if clients == 1 else made[0].most > 1
    one, four = found[1], found[4]
    assert one["requests"] == four["requests"] == 100 and four["unserved"] == 0
    assert one["served_per_s"] < 51 and four["served_per_s"] > 60
    # The queue of one client grows by half a request each 10 ms: what comes last waits for a second.
    assert one["latency_max_s"] > 0.5 and one["latency_p99_s"] > 4 * four["latency_p50_s"] >= 4 * 0.02
    assert one["latency_p999_s"] is None
    json.dumps(found)


def test_requests_that_are_not_served_in_time_count_with_their_wait(tmp_path: Path) -> None:
    class Stuck:
        def __init__(self, spec: ModelSpec) -> None:
            self.bags = in_memory(spec)

        def __call__(self, lookups: Any) -> Any:
            time.sleep(0.1)
            return self.bags(lookups)

    given: dict[str, Any] = {"folder": tmp_path, "batches": 2, "seconds": 0.2, "clients": 1}
    (one,) = bench_load([SMALL], {"uniform": uniform}, {"stuck": lambda spec, _: Stuck(spec)}, [10_000.0], **given)
    assert one["requests"] == 2000 and one["unserved"] > 1900
    assert one["latency_p50_s"] > 0.2 and one["latency_p999_s"] <= one["latency_max_s"] < 2
    for wrong in ({"rates": [0.0]}, {"clients": 0}, {"batches": 1}):
        with pytest.raises(ArgumentError):
            bench_load([SMALL], {"uniform": uniform}, {}, **{"rates": [1.0], **given, **wrong})


def test_tables_tell_hits_since_they_were_asked_last(tmp_path: Path) -> None:
    bags = TableBags(table_files(SMALL, tmp_path), cache=1 << 20)
    batch = tensors(uniform(SMALL, 1, 8))
    bags(batch)
    assert bags.facts()["units_read"] > 0
    bags.prefetch(batch)
    bags(batch)
    assert bags.facts() == {"hit_rate": 1.0, "units_read": 0}
    assert bags.facts() == {"hit_rate": 0.0, "units_read": 0}


def test_the_command_measures_latency_under_load(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from outcore._embedding_bench_commands import bench_embedding

    given = [str(tmp_path), "--scratch", str(tmp_path), "--memory", "32MiB", "--model", "RMC3", "--scale", "0.005"]
    given += ["--batch-size", "2", "--batches", "20", "--seconds", "0.3", "--rate", "50", "--rate", "4000", "--clients", "3"]
    modes = ["--mode", "map", "--mode", "outcore"]
    files = ["--results", str(tmp_path / "all.json"), "--figures", str(tmp_path)]
    ran = CliRunner().invoke(bench_embedding, [*given, *modes, *files])
    assert ran.exit_code == 0, ran.output
    assert "p99.9 ms" in ran.output and ran.output.count("RMC3 K=1 outcore") == 2
    assert "latencies-RMC3-K1-2.png" in ran.output and (tmp_path / "latencies-RMC3-K1-2.png").stat().st_size > 10_000
    found = json.loads((tmp_path / "all.json").read_text())
    assert [one["mode"] for one in found] == ["map"] * 2 + ["outcore"] * 2
    assert [one["offered_per_s"] for one in found] == [50, 4000] * 2
    assert [one["latency_p999_s"] is None for one in found] == [True, False, True, False] and found[-1]["hit_rate"] > 0
    ran = CliRunner().invoke(bench_embedding, [*given, "--mode", "pages"])
    assert ran.exit_code == 2 and "one row at a time" in ran.output


def test_latencies_are_drawn_by_rate_and_percentile() -> None:
    pytest.importorskip("matplotlib")
    from outcore.embedding_bench.figures import latencies

    case = {"model": "RMC3", "trace": "K=1", "batch_size": 1, "clients": 4}
    some = [
        {
            **case,
            "mode": mode,
            "offered_per_s": rate,
            "latency_p50_s": cost,
            "latency_p99_s": 2 * cost,
            "latency_p999_s": 3 * cost if rate > 10 else None,
            "unserved": 7 if rate == 1000 else 0,
        }
        for mode, cost in (("map", 1e-2), ("outcore", 1e-3))
        for rate in (1000, 10, 100)
    ]
    (axes,) = latencies(some).axes
    curves = {str(line.get_label()): line for line in axes.lines}
    assert {"map, p50", "map, p99", "map, p99.9", "outcore, p50", "outcore, p99", "outcore, p99.9"} <= set(curves)
    assert curves["outcore, p99"].get_xdata().tolist() == [10, 100, 1000]
    assert curves["outcore, p99.9"].get_ydata() == pytest.approx([3e-3, 3e-3])
    hollow = [line for line in axes.lines if line.get_markerfacecolor() == "white"]
    assert len(hollow) == 6 and all(line.get_xdata().tolist() == [1000] for line in hollow)


# The ladder


def test_a_ladder_goes_from_no_rows_to_all_in_memory(tmp_path: Path) -> None:
    told: list[dict[str, Any]] = []
    given: dict[str, Any] = {"folder": tmp_path, "batch_sizes": [8], "batches": 12, "seconds": 0.05, "rounds": 3, "ahead": 2}
    found = bench_ladder([SMALL], {"uniform": uniform}, shares=(0.0, 0.4, 1.25), threads=1, told=told.append, **given)
    none, some, all_rows = found
    assert found == told and all(one["agrees"] and one["threads"] == 1 and one["rounds"] == 3 for one in found)
    assert none["hit_rate"] == 0 and none["cached_rows"] == 0 and none["units_read"] > 0
    assert 0 < some["hit_rate"] < 1 and 0 < some["cached_rows"] < some["unique_rows"]
    assert all_rows["hit_rate"] == 1 and all_rows["units_read"] == 0 and all_rows["cached_rows"] == all_rows["unique_rows"]
    for one in found:
        assert 0 < one["ratio_min"] <= one["ratio"] and one["samples_per_s"] > 0 and one["memory_samples_per_s"] > 0
    json.dumps(found)
    with pytest.raises(OverBudgetError, match="rows of tables in memory"):
        bench_ladder([SMALL], {"uniform": uniform}, shares=(10_000.0,), **given)
    for wrong in ({"rounds": 0}, {"ahead": 0}, {"seconds": 0.0}, {"shares": (-0.1,)}, {"shares": (float("inf"),)}):
        with pytest.raises(ArgumentError):
            bench_ladder([SMALL], {"uniform": uniform}, **{**given, **wrong})


def test_turns_alternate_and_do_not_find_what_the_turn_before_has_looked_up_ahead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from outcore.embedding_bench import ladder

    asked: list[tuple[str, int]] = []
    batches: dict[int, int] = {}

    class Noted(TableBags):
        def submit(self, lookups: Any) -> Any:
            asked.append(("outcore", batches[id(lookups)]))
            return super().submit(lookups)

    class Memory(TorchBags):
        def __call__(self, lookups: Any) -> Any:
            asked.append(("memory", batches[id(lookups)]))
            return super().__call__(lookups)

    monkeypatch.setattr(ladder, "TableBags", Noted)
    monkeypatch.setattr(ladder, "in_memory", lambda spec, folder: Memory([np.load(path) for path in table_files(spec, folder)]))
    contest = ladder._Contest(SMALL, uniform(SMALL, 50, 2), str(tmp_path), 3, 0)
    bags = Noted(contest.paths, cache=0)
    batches.update((id(batch), number) for number, batch in enumerate(contest.lookups))
    contest.order = np.arange(50)
    ours, memory = contest._rounds(bags, 2, 1e-9)
    # Three batches that are not measured and one that is; three ahead of it when the turn ends.
    turns = [("outcore", range(7)), ("memory", range(4)), ("memory", range(7, 11)), ("outcore", range(7, 14))]
    assert asked == [(side, number) for side, numbers in turns for number in numbers]
    assert len(ours) == len(memory) == 2 and min(*ours, *memory) > 0


def test_enough_is_the_hit_rate_from_which_on_all_are_near_memory() -> None:
    def rungs(*points: tuple[float, float]) -> list[dict[str, Any]]:
        return [{"hit_rate": rate, "ratio": ratio} for rate, ratio in points]

    near, far = 1 / WITHIN + 1e-3, 1 / WITHIN - 1e-3
    assert enough(rungs((0.0, 0.2), (0.7, near), (1.0, 1.2))) == 0.7
    assert enough(rungs((1.0, 1.2), (0.5, far), (0.2, near), (0.9, near))) == 0.9
    assert enough(rungs((0.0, near), (1.0, near))) == 0.0
    assert enough(rungs((0.5, near), (1.0, near), (1.0, far))) is None
    assert enough([]) is None


def test_hit_rates_are_drawn_with_the_line_that_counts() -> None:
    pytest.importorskip("matplotlib")
    from outcore.embedding_bench.figures import hit_rates

    some = [
        {"model": model, "trace": trace, "batch_size": 64, "hit_rate": rate, "ratio": 0.5 + rate / 2}
        for model in MODELS
        for trace in ("uniform", "K=1")
        for rate in (1.0, 0.0, 0.5)
    ]
    panels = hit_rates(some, WITHIN).axes
    assert [axes.get_title() for axes in panels] == ["uniform ids", "K=1 ids"]
    for axes in panels:
        *models, line = axes.lines
        assert [one.get_label() for one in models] == list(MODELS) and line.get_label() == "1/1.1"
        assert len({(one.get_color(), one.get_marker()) for one in models}) == len(MODELS)
        assert line.get_ydata()[0] == pytest.approx(1 / 1.1)
        assert models[0].get_xdata().tolist() == [0, 0.5, 1] and models[0].get_ydata().tolist() == [0.5, 0.75, 1]


def test_the_command_finds_from_which_hit_rate_on_a_model_is_near_memory(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from outcore._embedding_bench_commands import bench_embedding

    given = [str(tmp_path), "--scratch", str(tmp_path), "--memory", "32MiB", "--model", "NCF", "--scale", "0.005", "--ladder"]
    given += ["--batch-size", "4", "--batches", "6", "--seconds", "0.1", "--threads", "1"]
    ran = CliRunner().invoke(bench_embedding, [*given, "--figures", str(tmp_path), "--results", str(tmp_path / "all.json")])
    assert ran.exit_code == 0, ran.output
    found = json.loads((tmp_path / "all.json").read_text())
    assert [one["share"] for one in found] == [0, 0.1, 0.2, 0.4, 0.6, 0.8, 0.9, 1, 1.25] and found[-1]["hit_rate"] == 1
    rate = enough(found)
    told = "not within 1.1 x" if rate is None else f"within 1.1 x of memory from a hit rate of {rate:.1%} on"
    assert f"NCF K=1, batches of 4: {told}" in ran.output
    assert (tmp_path / "hit-rates.png").stat().st_size > 10_000 and "hit-rates.png" in ran.output
    ran = CliRunner().invoke(bench_embedding, [*given, "--json"])
    assert ran.exit_code == 0, ran.output
    (case,) = json.loads(ran.output)["enough"]
    assert (case["model"], case["trace"], case["batch_size"]) == ("NCF", "K=1", 4)
    ran = CliRunner().invoke(bench_embedding, [*given, "--rate", "10"])
    assert ran.exit_code == 2 and "--rate and --ladder" in ran.output


# Splits


def test_the_best_split_is_that_of_all_splits() -> None:
    random = np.random.default_rng(3)
    for tables, units in ((1, 5), (2, 9), (3, 6)):
        misses = np.sort(random.integers(0, 100, (tables, units + 1)), 1)[:, ::-1]
        every = (split for split in np.ndindex(*(units + 1,) * tables) if sum(split) <= units)
        least = min(sum(own[count] for own, count in zip(misses, split, strict=True)) for split in every)
        found = best_split(misses.tolist())
        assert sum(found) <= units and sum(own[count] for own, count in zip(misses, found, strict=True)) == least


def popular(exponent: float) -> Any:
    """Row numbers as probable as their rank to the power of minus `exponent`."""

    def ids(spec: ModelSpec, batches: int, batch_size: int, seed: int) -> Trace:
        random, made = np.random.default_rng(seed), []
        for table in spec.tables:
            shares = np.arange(1.0, table.rows + 1) ** -exponent
            made.append(random.choice(table.rows, (batches, batch_size, table.lookups), p=shares / shares.sum()))
        return Trace(spec, tuple(made))

    return ids


def test_memory_split_while_running_misses_little_more_than_the_best_split_of_as_many_rows(tmp_path: Path) -> None:
    """Of one table few rows are popular, of the other one nearly all alike. Memory is split anew once, as the trace ends."""
    spec = ModelSpec("split", "pooled", (TableSpec(2000, 20),) * 2, dim=2048)
    ids = splits._mixed(spec, [popular(1.0), popular(0.2)], (108,), 64, 0)
    _, first, last = splits._run(table_files(spec, tmp_path), ids, 16 << 20)
    assert first[0] == first[1] and last[0] < first[0] < last[1]
    units = [unit * sum(last) // 20 for unit in range(21)]
    misses = [splits._simulated(of_table, [*units, *rows]) for of_table, *rows in zip(ids, first, last, strict=True)]
    split = best_split([own[:-2] for own in misses])
    best = sum(own[count] for own, count in zip(misses, split, strict=True))
    at_first, at_last = (sum(own[place] for own in misses) for place in (-2, -1))
    assert at_last <= 1.05 * best and at_first > 1.25 * best


def test_splits_are_compared_while_popularity_is_steady_and_where_it_changes(tmp_path: Path) -> None:
    told: list[dict[str, Any]] = []
    first, second = Locality(0, lines=400, spacing=1), uniform
    spec = ModelSpec("small", "pooled", (TableSpec(400, 4), TableSpec(300, 4)), dim=8)
    given: dict[str, Any] = {"folder": tmp_path, "batch_sizes": [8], "units": 10, "told": told.append}
    found = bench_splits([spec], {"a": second, "b": second}, 0.5, batches=9, **given)
    assert found == told and [one["popularity"] for one in found] == ["steady", "changes"]
    for one in found:
        # Caches this small stay as they are.
        assert one["rows_running"] == one["rows_first"] and one["misses_last_simulated"] == one["misses_first_simulated"]
        assert one["lookups"] == 6 * 8 * 8 and 0 < one["misses_best"] <= one["lookups"] and one["traces"] == ["a", "b"]
        assert one["ratio"] == one["misses_running"] / one["misses_best"]
        assert one["misses_best_simulated"] <= one["misses_first_simulated"]
    json.dumps(found)
    mixed = splits._mixed(spec.varied(tables=2), [first, second], (6, 3), 8, 0)
    one, other = (factory(spec.varied(tables=2), 3, 8, 1) for factory in (first, second))
    assert np.array_equal(mixed[0][6:], other.ids[0]) and np.array_equal(mixed[1][6:], one.ids[1])
    for wrong in ({"batches": 2}, {"units": 0}):
        with pytest.raises(ArgumentError):
            bench_splits([spec], {"a": second}, 0.5, **{**given, **wrong})
    with pytest.raises(ArgumentError, match="of 0 traces"):
        bench_splits([spec], {}, 0.5, **given)


def test_splits_are_drawn_by_case_with_the_ratio_to_the_best_one() -> None:
    pytest.importorskip("matplotlib")
    from outcore.embedding_bench.figures import SPLITS, splits

    misses = {"misses_first_simulated": 50.0, "misses_best": 20, "misses_running": 25}
    case = {"model": "RMC1", "batch_size": 64, "traces": ["uniform", "K=1"], "lookups": 100, **misses}
    (axes,) = splits([{**case, "popularity": popularity} for popularity in ("steady", "changes")]).axes
    assert [bar.get_height() for bar in axes.patches] == [0.5, 0.5, 0.2, 0.2, 0.25, 0.25]
    assert [text.get_text() for text in axes.texts] == ["2.50", "2.50", "1.25", "1.25"]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["RMC1\nsteady", "RMC1\nchanges"]
    legend = axes.get_figure().legends[0]
    assert [text.get_text() for text in legend.get_texts()] == list(SPLITS.values())
    none = splits([{**case, "popularity": "steady", "misses_best": 0}]).axes[0]
    assert not none.texts


def test_the_command_compares_splits(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from outcore._embedding_bench_commands import bench_embedding

    given = [str(tmp_path), "--scratch", str(tmp_path), "--memory", "32MiB", "--model", "NCF", "--scale", "0.005"]
    given += ["--batch-size", "4", "--batches", "6", "--trace", "uniform", "--trace", "K=1", "--split", "0.5"]
    ran = CliRunner().invoke(bench_embedding, [*given, "--figures", str(tmp_path)])
    assert ran.exit_code == 0, ran.output
    assert "NCF uniform+K=1, popularity steady" in ran.output and "popularity changes" in ran.output
    assert ran.output.count("best static split") == 2
    assert (tmp_path / "splits.png").stat().st_size > 10_000 and "splits.png" in ran.output
    ran = CliRunner().invoke(bench_embedding, [*given, "--json"])
    assert ran.exit_code == 0, ran.output
    assert [one["traces"] for one in json.loads(ran.output)["results"]] == [["uniform", "K=1"]] * 2
