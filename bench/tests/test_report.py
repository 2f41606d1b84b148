import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from results_made_up import FACTS, case, ended, leg, ok

import report
from harness import results


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    gb: dict[str, Any] = {"read_bytes": 5_000_000_000, "written_bytes": 1_000_000_000}
    ours = leg("outcore", ok(0, 1.0, **gb), ok(1, 1.1, **gb), cold=("a.npy",))
    made = case(
        ours, leg("kernel", ok(0, 0.9), ok(1, 0.9)), leg("big", ended(0, "killed", 12.0)), rivals=("kernel", "big"), at_least=0.95
    )
    (tmp_path / "gemm.json").write_text(json.dumps(made))
    (tmp_path / "device.json").write_text(json.dumps({**FACTS, "case": "device", "started": "2026-01-02T03:00:00+00:00"}))
    return tmp_path


def test_the_report_says_bound_share_and_verdict(folder: Path) -> None:
    report.write([folder], readme := folder / "README.md")
    text = readme.read_text()
    assert (
        "Bound: 10 GFLOP, 3.7 GiB read, 953.7 MiB written (as told). At least: cores 0.90 s, device 3.00 s; the device binds."
        in text
    )
    assert "| gemm | the others | 0.95 | 0.86 (0.82 to 0.90) | missed; slower, against kernel |" in text
    assert "| gemm | bytes of the bound | at most 1.35 | 1.20 | reached |" in text
    assert "killed after 12 s" in text
    assert "refused: Invalid argument" in text
    assert "Not installed: mkl." in text


def test_parts_of_the_time_are_told_and_drawn(tmp_path: Path) -> None:
    def parts(computing: float) -> dict[str, Any]:
        return {"parts": {"writing": 0.5, "computing": computing, "serialising": 0.0, "waiting": 0.25}}

    made = case(leg("outcore", ok(0, 1.0, **parts(0.25)), ok(1, 2.0, **parts(1.25))), rivals=(), unit="s")
    measure = {"leg": "outcore", "key": "fair", "against": "the fastest", "at_least": 0.7, "at_most": None}
    made["legs"][0]["rounds"][0]["result"]["fair"] = 0.65
    made["measures"] = [measure, {**measure, "key": "cores", "against": "one core", "at_least": None, "at_most": 0.2}]
    (tmp_path / "gemm.json").write_text(json.dumps(made))
    (tmp_path / "device.json").write_text(json.dumps({**FACTS, "case": "device", "started": "2026-01-02T03:00:00+00:00"}))
    report.write([tmp_path], readme := tmp_path / "README.md")
    text = readme.read_text()
    assert "| leg | writing, s | computing, s | serialising, s | waiting, s |" in text
    assert "| outcore | 0.50 | 0.75 | 0.00 | 0.25 |" in text
    assert "| gemm | the fastest | 0.7 | 0.65 | missed |" in text
    assert "| gemm | one core | at most 0.20 | 0.00 | reached |" in text
    assert "serialising" in (tmp_path / "plots" / "gemm.svg").read_text()


def test_making_it_again_changes_no_byte(folder: Path) -> None:
    readme = folder / "README.md"
    report.write([folder], readme)
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert any(path.suffix == ".svg" for path in before)
    report.write([folder], readme)
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


def test_words_around_the_markers_stay() -> None:
    text = report.between_markers(f"above\n{report.BEGIN}\nold\n{report.END}\nbelow\n", "new\n")
    assert text.startswith("above\n") and text.endswith("below\n")
    assert "new" in text and "old" not in text


def test_no_results_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert report.main(["--results", str(tmp_path)]) == 1
    assert "no results" in capsys.readouterr().err


def test_folders_are_told_the_newest_first(folder: Path, tmp_path: Path) -> None:
    other = tmp_path / "2026-01-03-other"
    shutil.copytree(folder, other, ignore=shutil.ignore_patterns(other.name))
    assert results.all_in(tmp_path) == [other]
    report.write([other, folder], readme := tmp_path / "README.md")
    text = readme.read_text()
    assert text.index("## 2026-01-03-other") < text.index(f"## {folder.name}")
