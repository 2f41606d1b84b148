"""Singular triplets: every contestant is held to one residual, which is measured as it is told."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from results_made_up import case, leg, ok
from scipy.linalg import eigh

from cases import BUILDERS
from cases.spectra import OURS
from harness import corpus, tables
from harness.machine import mkl_library
from harness.model import Context, RandomFile, SparseFolder
from legs import sparse, spectra

CORPUS = SparseFolder("corpus", 2000, 51 * 2000, seed=1)
TOLERANCE = 1e-4


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    root = tmp_path_factory.mktemp("spectra")
    corpus.make(CORPUS, root)
    return str(root / CORPUS.path)


@pytest.fixture(scope="module")
def exact(folder: str) -> tuple[Any, Any, Any]:
    """In f64, by LAPACK from the smaller Gram matrix."""
    a = sparse.load(folder).astype("f8")
    squares, left = eigh((a @ a.T).toarray(), subset_by_index=(a.shape[0] - 20, a.shape[0] - 1))
    values = np.sqrt(squares)
    return left, values, (a.T @ left / values).T


def test_residuals_are_those_of_all_triplets(folder: str, exact: tuple[Any, Any, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    left, values, right = exact
    # Parts that do not divide what there is.
    monkeypatch.setattr(sparse, "ROWS_AT_ONCE", 1300)
    assert spectra.worst_residual(folder, left, values, right) < 1e-10
    assert spectra.worst_residual(folder, None, values, right) < 1e-10
    off = np.where(np.arange(20) == 17, values * 1.01, values)
    assert spectra.worst_residual(folder, left, off, right) == pytest.approx(0.01 * values[17] / values[-1])
    turned = left.copy()
    turned[:, [3, 4]] = left[:, [4, 3]]
    assert spectra.worst_residual(folder, turned, values, right) > 0.1
    assert spectra.worst_residual(folder, left[:-1], values, right) == np.inf
    assert not spectra.worst_residual(folder, left * np.nan, values, right) <= 1


def test_what_is_not_accurate_has_not_finished(folder: str, exact: tuple[Any, Any, Any]) -> None:
    left, values, right = exact
    spec = {"a": folder, "tol": TOLERANCE}
    assert spectra.accurate(spec, left, values, right) < 1
    with pytest.raises(SystemExit, match="times what they may be"):
        spectra.accurate(spec, left, values * 1.001, right)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("arpack", {"tolerance": TOLERANCE}),
        ("arpack_mkl", {"tolerance": TOLERANCE}),
        ("propack", {"tolerance": TOLERANCE**2, "basis": 100, "dtype": "f8"}),
        ("randomized", {"iterations": 32}),
        ("primme", {"block": 1, "tolerance": 0.9 * TOLERANCE}),
    ],
)
def test_every_rival_finds_the_same_values(
    folder: str, exact: tuple[Any, Any, Any], monkeypatch: pytest.MonkeyPatch, name: str, options: dict[str, Any]
) -> None:
    if name == "primme":
        pytest.importorskip("primme")
    if name == "arpack_mkl" and mkl_library() is None:
        pytest.skip("MKL is not installed")
    seen: list[Any] = []
    check = spectra.accurate
    monkeypatch.setattr(spectra, "accurate", lambda spec, *found: [seen.append(found), check(spec, *found)][1])
    spec = {"a": folder, "k": 10, "tol": TOLERANCE, "library": mkl_library(), **options}
    told = getattr(spectra, name)(spec)
    assert json.dumps(told) and len(told["seconds"]) == 1 and told["residual"] <= 1
    np.testing.assert_allclose(np.sort(seen[0][1]), exact[1][-10:], rtol=1e-3)


def test_ours_tells_passes_and_the_bytes_of_each(folder: str, tmp_path: Path) -> None:
    spec: dict[str, Any] = {"a": folder, "k": 10, "tol": TOLERANCE, "memory": 48 << 20, "scratch": str(tmp_path)}
    told = spectra.ours(spec)
    assert json.dumps(told) and told["residual"] <= 1 and told["passes"] > 2
    assert told["bytes_of_plan"] == pytest.approx(1, abs=0.02)
    # Of a matrix this small all passes but the first find what they read in memory.
    assert told["trace"]["actual"]["bytes_read"] < told["trace"]["bytes_reused"]
    resident = spectra.ours({**spec, "memory": 1 << 30, "in_memory": True})
    assert resident["residual"] <= 1 and resident["bytes_of_plan"] is None


def test_ours_is_compared_with_lapack(folder: str, tmp_path: Path) -> None:
    spec: dict[str, Any] = {"a": folder, "rows": 60, "k": 20, "tol": TOLERANCE, "memory": 64 << 20, "scratch": str(tmp_path)}
    told = spectra.beside_lapack(spec)
    names = ("residual", "off_lapack", "left_off_orthonormal", "right_off_orthonormal")
    assert json.dumps(told) and all(0 <= told[name] <= 1 for name in names)


def test_spark_finds_triplets_to_our_tolerance(folder: str) -> None:
    pytest.importorskip("pyspark")
    if shutil.which("java") is None:
        pytest.skip("Java is not installed")
    from legs import with_spark

    told = with_spark.svds({"a": folder, "k": 10, "tol": TOLERANCE, "driver_memory": "1g"})
    assert json.dumps(told) and told["residual"] <= 1


def test_cases_have_the_sizes_of_the_protocol() -> None:
    for count in (50, 200, 500):
        built = BUILDERS[f"svds-{count}"](Context("x"))
        file, limit = built.files
        assert isinstance(file, SparseFolder) and file.nonzeros > 50_000_000 and isinstance(limit, RandomFile)
        assert 4 * built.legs[0].spec["memory"] == pytest.approx(file.nbytes, rel=1e-6)
        assert built.legs[0].limited and built.limit_over_bytes == built.legs[0].spec["memory"]
        assert {leg.spec["k"] for leg in built.legs if not leg.access} == {count}
        assert built.comparisons[0].at_least == 1.0 and built.comparisons[0].rivals[0] == built.legs[1].name
        assert BUILDERS[f"svds-primme-{count}"](Context("x")).files == built.files
    apart = [BUILDERS[f"svds-500{name}"](Context("x")).comparisons[0].rivals for name in ("", "-propack-randomized")]
    together = {leg.name for leg in BUILDERS["svds-50"](Context("x")).legs if leg.function.startswith("spectra.")}
    assert {rival for rivals in apart for rival in rivals} == together - {OURS}
    assert BUILDERS["svds-spark-200"](Context("x")).comparisons[0].at_least == 10
    assert BUILDERS["svds-memory"](Context("x")).comparisons[0].at_least == 0.8
    many = BUILDERS["svds-2000"](Context("x"))
    assert many.legs[0].spec["memory"] == 512 << 20 and many.legs[0].spec["k"] == 2000


def test_residuals_are_told() -> None:
    run = case(leg("outcore", ok(0, 1.0, residual=0.43, passes=30)), leg("rival", ok(0, 9.0, residual=0.05)), rivals=("rival",))
    assert tables.residual_notes(run) == [
        "outcore: residuals up to 0.43 of what they may be, 30 passes.",
        "rival: residuals up to 0.05 of what they may be.",
    ]
