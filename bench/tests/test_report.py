import subprocess
from pathlib import Path
from typing import Any

import pytest
from results_made_up import case, device, ended, leg, ok

import report
from harness import headline, machine, results, runner


def made() -> dict[str, Any]:
    gb: dict[str, Any] = {"read_bytes": 5_000_000_000, "written_bytes": 1_000_000_000}
    return case(
        leg("outcore", ok(0, 4.0, **gb), ok(1, 2.5, **gb), cold=("a.npy",)),
        leg("kernel", ok(0, 2.0), ok(1, 2.0)),
        leg("big", ended(0, "killed", 12.0)),
        device("read", 1.0, 2.0),
        device("write", 1.0, 1.0),
        rivals=("kernel", "big"),
        at_least=0.95,
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    runner.claim(tmp_path, made())
    return tmp_path


def text_of(folder: Path) -> str:
    report.write_details(folder)
    return (folder / "README.md").read_text()


def test_the_report_says_bound_share_and_verdict(folder: Path) -> None:
    text = text_of(folder)
    assert "Bound: 10 GFLOP, 3.7 GiB read, 953.7 MiB written (as told)." in text
    assert "At least: cores 2.00 s, reading 3.00 s, writing 1.00 s; the device binds, reading." in text
    assert "| the others | 0.95 | 0.65 (0.50 to 0.80) | missed; slower, against kernel |" in text
    assert "| the bound (the cores bind) |  | 0.90 (0.80 to 1.00) |" in text
    assert "| bytes of the bound | at most 1.35 | 1.20 | reached |" in text
    assert "killed after 12 s" in text
    assert "Not installed: mkl." in text


def test_every_run_of_a_case_is_shown(folder: Path) -> None:
    again = {**made(), "started": "2026-01-02T05:00:00+00:00"}
    again["sources"] = {"commit": "fedcba9876543210", "changed": ["bench/run.py"], "difference": "x"}
    interrupted = {**made(), "started": "2026-01-02T06:00:00+00:00", "rounds": 3}
    for run in (again, interrupted):
        runner.claim(folder, run)
    text = text_of(folder)
    assert "| 2026-01-02 03:04 | `0123456789ab` | 2 of 2 | 0.50 | other code since |" in text
    assert "| 2026-01-02 05:00 | `fedcba987654` **and 1 uncommitted file** | 2 of 2 | 0.50 | yes |" in text
    assert "| 2026-01-02 06:00 | `0123456789ab` | 2 of 3 | 0.50 | interrupted |" in text
    assert text.count("### gemm, ") == 3


def test_a_run_never_takes_the_place_of_another(folder: Path) -> None:
    with pytest.raises(FileExistsError):
        runner.claim(folder, made())
    runner.claim(folder, {**made(), "started": "2026-01-02T03:04:06+00:00"})
    assert len(results.load(folder)) == 2


def test_the_headline_has_a_line_for_each_marked_ratio_and_the_bound(folder: Path) -> None:
    text = headline.document(results.load(folder), ["gemm", "pca"])
    assert "| a product | the others | **0.65** | 0.50 to 0.80 | 1 x 2 |" in text
    assert "|  | the machine's limit: the cores bind | **0.90** | 0.80 to 1.00 | 1 x 2 |" in text
    assert "Not measured: pca." in text


def test_a_limit_that_is_exceeded_in_every_round_is_none(folder: Path) -> None:
    run = made()
    run["started"] = "2026-01-02T05:00:00+00:00"
    run["legs"][0]["rounds"] = [ok(0, 1.0), ok(1, 1.0)]
    runner.claim(folder, {**run, "sources": {"commit": "fedcba9876543210", "changed": [], "difference": "x"}})
    text = headline.document(results.load(folder), ["gemm"])
    assert "the machine's limit" not in text
    assert "**gemm: no limit is told, for ours is 3.00 times as fast as what was to tell it (the cores bind).**" in text
    # So is one that a comparison is with.
    run["started"] = "2026-01-02T06:00:00+00:00"
    for rival in run["legs"][1:]:
        rival["access"] = "read"
        rival["rounds"] = [{**ok(number, 2.0), "result": {"seconds": [2.0], "bytes": 1}} for number in (0, 1)]
    runner.claim(folder, {**run, "sources": {"commit": "0123456789abcdef", "changed": [], "difference": "x"}})
    text = headline.document(results.load(folder), ["gemm"])
    assert "| a product |" not in text and "as what was to tell it (the others).**" in text


def test_the_front_page_has_the_first_ratio_of_each_case_and_a_picture(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "HEADLINE", ("gemm", "pca"))
    readme, picture = folder / "front.md", folder / "front.svg"
    readme.write_text(f"before\n{report.BEGIN}\nold\n{report.END}\nafter\n")
    report.write_front(folder, readme, picture, [])
    lines = readme.read_text().splitlines()
    assert lines[0] == "before" and lines[-1] == "after" and "old" not in lines
    assert "| a product | the others | **0.65** (0.50 to 0.80) |" in lines
    assert "a product" in picture.read_text()


def test_a_limit_that_failed_is_told_in_the_headline_and_in_the_details(tmp_path: Path) -> None:
    run = made()
    run["legs"].append({**leg("fio, huge pages", ended(0, "failed", 1.0)), "access": "read"})
    runner.claim(tmp_path, run)
    words = "**gemm: the device's limit may be too low, for these failed: fio, huge pages.**"
    assert words in text_of(tmp_path) and words in headline.document(results.load(tmp_path), ["gemm"])
    assert "too low" not in headline.document([made()], ["gemm"])


def test_the_headline_is_of_the_newest_folder_that_has_the_most_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "HEADLINE", ("gemm", "pca"))
    for name, cases in {"2026-01-01": ("gemm", "pca"), "2026-01-02": ("pca", "gemm"), "2026-01-03": ("gemm",)}.items():
        for case_name in cases:
            runner.claim(tmp_path / name, {**made(), "case": case_name})
    assert report.most_complete(results.all_in(tmp_path)).name == "2026-01-02"


def test_other_cases_are_told_from_where_they_were_measured_last(tmp_path: Path) -> None:
    for name, case_name in (("2026-01-01", "knn"), ("2026-01-02", "knn"), ("2026-01-03", "gemm")):
        runner.claim(tmp_path / "results" / name, {**made(), "case": case_name})
    further = headline.further(results.all_in(tmp_path / "results"), {"knn": "neighbours", "pca": "components"})
    assert [(line.work, line.against, folder.name) for line, folder in further] == [("neighbours", "the others", "2026-01-02")]
    readme = tmp_path / "README.md"
    readme.write_text(f"{report.BEGIN}\n{report.END}\n")
    report.write_headline(tmp_path / "results" / "2026-01-03", readme, further)
    line = "| neighbours | the others | **0.65** | 0.50 to 0.80 | 1 x 2 | [2026-01-02](results/2026-01-02/README.md) |"
    assert line in readme.read_text().splitlines()


def test_a_trial_is_marked_and_has_no_place_in_the_headline(tmp_path: Path) -> None:
    runner.claim(tmp_path, {**made(), "quick": True})
    assert "a trial of small size" in text_of(tmp_path)
    assert headline.document(results.load(tmp_path), ["gemm"]) == "Not measured yet.\n"


def test_code_that_is_not_committed_is_seen_in_the_harness_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def git(*words: str) -> None:
        subprocess.run(["git", "-c", "user.name=x", "-c", "user.email=x", *words], cwd=tmp_path, check=True, capture_output=True)

    monkeypatch.setattr(machine, "ROOT", tmp_path)
    for path in ("bench/results/r.json", "bench/run.py", "crates/a.rs"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text("x")
    git("init", "--quiet")
    git("add", "bench/run.py")
    git("commit", "--quiet", "-m", "x")
    assert machine.sources()["changed"] == ["crates/a.rs"]
    (tmp_path / "bench/run.py").write_text("y")
    first = machine.sources()
    assert sorted(first["changed"]) == ["bench/run.py", "crates/a.rs"]
    (tmp_path / "bench/run.py").write_text("z")
    assert machine.sources()["difference"] != first["difference"]


def test_parts_of_the_time_are_told_and_drawn(tmp_path: Path) -> None:
    def parts(computing: float) -> dict[str, Any]:
        return {"parts": {"writing": 0.5, "computing": computing, "reading": 0.25}}

    run = case(leg("outcore", ok(0, 1.0, **parts(0.25)), ok(1, 2.0, **parts(1.25))), rivals=(), unit="s")
    measure = {"leg": "outcore", "key": "fair", "against": "the fastest", "at_least": 0.7, "at_most": None}
    run["legs"][0]["rounds"][0]["result"]["fair"] = 0.65
    run["measures"] = [measure, {**measure, "key": "cores", "against": "one core", "at_least": None, "at_most": 0.2}]
    runner.claim(tmp_path, run)
    text = text_of(tmp_path)
    assert "| leg | writing, s | computing, s | reading, s |" in text
    assert "| outcore | 0.50 | 0.75 | 0.25 |" in text
    assert "| the fastest | 0.7 | 0.65 | missed |" in text
    assert "| one core | at most 0.20 | 0.00 | reached |" in text
    assert "plots/gemm.svg" in text


def test_making_it_again_changes_nothing(folder: Path) -> None:
    text_of(folder)
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert any(path.suffix == ".svg" for path in before)
    text_of(folder)
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


def test_words_around_the_markers_stay() -> None:
    text = report.between_markers(f"above\n{report.BEGIN}\nold\n{report.END}\nbelow\n", "new\n")
    assert text.startswith("above\n") and text.endswith("below\n")
    assert "new" in text and "old" not in text


def test_no_results_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert report.main(["--results", str(tmp_path)]) == 1
    assert "no results" in capsys.readouterr().err
