"""The bench of searches for singular values: its corpus, and one small run with a rival and figures."""

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from outcore.cli import cli
from outcore.errors import ArgumentError
from outcore.spectra_bench import corpus


def test_a_corpus_is_the_same_for_a_seed_and_its_values_fall_off() -> None:
    one, same, other = (corpus.made(3000, 400, seed=seed) for seed in (1, 1, 2))
    assert (one != same).nnz == 0
    assert (one != other).nnz > 0
    assert one.shape == (3000, 400)
    assert one.dtype == np.float32
    # Counts are drawn anew in every document.
    assert len({tuple(row.indices) for row in one[:200]}) == 200
    values = np.linalg.svd(one.toarray(), compute_uv=False)
    assert values[0] > 3 * values[1] > 3 * values[150] > 0
    with pytest.raises(ArgumentError, match="corpus"):
        corpus.made(5, 1)


def test_a_small_run_tells_time_passes_and_residuals(tmp_path: Path) -> None:
    sizes = ["--documents", "1500", "--words", "300", "-k", "4", "--budget", "16MiB", "--budget", "64MiB", "--method", "krylov"]
    places = ["--figures", str(tmp_path / "figures"), "--results", str(tmp_path / "results"), "--scratch", str(tmp_path)]
    command = ["bench-spectra", str(tmp_path), *sizes, *places, "--rival", "arpack", "--memory", "64MiB", "--json"]
    told = CliRunner().invoke(cli, command)
    assert told.exit_code == 0, told.output
    found = json.loads(told.output)
    runs = found["results"]
    assert [(one["who"], one["memory_bytes"]) for one in runs] == [("krylov", 16 << 20), ("krylov", 64 << 20), ("arpack", None)]
    assert all(one["residual"] <= 2e-4 for one in runs)
    assert all(one["passes"] > 2 for one in runs[:2])
    drawn = {"pairs-time.png", "pairs-passes.png", "pairs-memory.png", "memory-time.png"}
    assert {Path(path).name for path in found["figures"]} == drawn
    assert len(list((tmp_path / "results").iterdir())) == 3
    models = CliRunner().invoke(
        cli, [*command[:6], "-k", "2", "--budget", "32MiB", "--no-rivals", "--topics", "5", "--json", *places]
    )
    assert models.exit_code == 0, models.output
    told = json.loads(models.output)
    assert [one["who"] for one in told["topics"]] == ["outcore TopicModel"]
    assert -1 <= told["topics"][0]["npmi"] <= 1 and "topics.png" in told["figures"][-1]
    # Too small a budget is told, and the rest goes on.
    left_out = CliRunner().invoke(cli, [*command[:8], "--budget", "64KiB", "--budget", "64MiB", "--no-rivals", "--json"])
    assert "left out: krylov" in left_out.output
