import json
from collections.abc import Callable
from pathlib import Path

import pytest

import against
import run
from cases import BUILDERS, HEADLINE, limits, pca, products, reads, sparse
from harness import data, device, runner
from harness.model import GIB, MIB, ROOT, Case, Context, DataFile, Skip, SparseFolder

CONTEXT = Context("scratch/outcore-bench", scale=0.02)


@pytest.mark.parametrize("build", BUILDERS.values(), ids=BUILDERS)
def test_every_case_names_its_legs_once_and_compares_what_it_has(build: Callable[[Context], Case]) -> None:
    case = build(CONTEXT)
    names = [leg.name for leg in case.legs]
    assert len(set(names)) == len(names)
    for comparison in case.comparisons:
        assert comparison.ours in names and set(comparison.rivals) <= set(names)
    assert case.bound.core_leg in {None, *names}
    assert all(json.dumps(dict(leg.spec)) for leg in case.legs)


def test_versions_take_turns_with_all_that_is_theirs() -> None:
    case = against.of_two(BUILDERS["samples-4096B"](CONTEXT), Path("../before"))
    assert [leg.name.removeprefix(against.BEFORE) for leg in case.legs[::2]] == [leg.name for leg in case.legs[1::2]]
    assert all(leg.environment["PYTHONPATH"] == "../before/bindings/python" for leg in case.legs[::2])
    assert case.turned and len(case.files) == 1
    stream = against.of_two(BUILDERS["stream"](CONTEXT), Path("../before"))
    assert stream.legs[0].spec["program"] == "../before/target/release/examples/stream_and_gather"


def test_the_sizes_of_the_protocol_hold_at_scale_one() -> None:
    case = BUILDERS["gemm-unaligned"](Context("x"))
    assert [(file.rows, file.cols) for file in case.files if isinstance(file, DataFile)] == [(15001, 15013), (15013, 14999)]
    assert case.bound.flops == 2.0 * 15001 * 14999 * 15013
    tall = BUILDERS["pca-tall"](Context("x")).files[0]
    assert isinstance(tall, DataFile) and tall.rows == 20 * GIB // 2048


@pytest.mark.parametrize("name", HEADLINE)
def test_a_case_of_the_headline_has_three_rounds_something_to_say_and_the_limit_beside_it(name: str) -> None:
    case = BUILDERS[name](Context("x"))
    assert case.rounds == 3 and case.headline and any(entry.headline for entry in case.comparisons)
    accesses = {leg.access for leg in case.legs if leg.access}
    moved = {"read": case.bound.read_bytes, "write": case.bound.written_bytes}
    assert accesses >= {access for access, size in moved.items() if size} - ({"read"} if name == "streams-write" else set())
    for leg in case.legs:
        if leg.access:
            assert any("fixedbufs" in options and "registerfiles" in options for options in leg.sweep)
            assert len({options["iodepth"] for options in leg.sweep}) >= 3


@pytest.mark.skipif(not device.has_huge_pages(), reason="huge pages may not be set aside here")
def test_the_device_is_measured_with_small_and_with_huge_pages() -> None:
    legs = limits.limit_legs(CONTEXT, "read", "randread 512")
    assert [(leg.access, "iomem" in leg.spec) for leg in legs] == [
        ("read", False),
        ("read", True),
        ("randread 512", False),
        ("randread 512", True),
    ]


def test_without_fio_a_case_has_its_rivals_left_or_is_skipped() -> None:
    case = runner.without_device(BUILDERS["csrmm-256"](CONTEXT))
    assert not any(leg.access for leg in case.legs) and case.comparisons and len(case.files) == 2
    assert any("limit is not known" in note for note in case.notes)
    with pytest.raises(Skip, match="fio"):
        runner.without_device(BUILDERS["streams-read"](CONTEXT))
    hot = BUILDERS["samples-hot"](CONTEXT)
    assert runner.without_device(hot).notes == hot.notes


def test_a_name_chooses_its_case_and_a_beginning_all_that_begin_so() -> None:
    assert run.chosen(run.parse(["pca"])) == ["pca"]
    assert run.chosen(run.parse(["pca-", "syrk"])) == ["syrk", "pca-uint8", "pca-tall"]
    assert run.chosen(run.parse(["rows", "split"])) == ["rows", "split"]
    assert run.chosen(run.parse([])) == list(HEADLINE) and set(run.chosen(run.parse(["--all"]))) == set(BUILDERS)


@pytest.mark.parametrize("option", ["--rounds=5", "--seconds=1", "--scale=0.5"])
def test_what_is_measured_is_not_chosen_on_the_command_line(option: str) -> None:
    with pytest.raises(SystemExit):
        run.parse([option])


def test_trials_are_not_kept_beside_the_sources() -> None:
    facts = {"cpu": "Some CPU", "cores": 2}
    trial, full = (run.results_folder(run.parse(words), CONTEXT, facts) for words in (["--quick"], []))
    assert full.is_relative_to(ROOT / "bench/results") and not trial.is_relative_to(ROOT / "bench/results")


def test_files_leave_the_disk_when_no_case_to_come_needs_them(tmp_path: Path) -> None:
    shared, alone = DataFile(str(tmp_path / "shared.npy"), 4, 4), DataFile(str(tmp_path / "alone.npy"), 4, 4)
    for file in (shared, alone):
        data.make(file, Path("/"))
    run.remove_all_but({shared.path}, Case("x", "x", "s", [], [], files=[shared, alone]))
    assert sorted(path.name.partition(".")[0] for path in tmp_path.iterdir()) == ["shared", "shared"]


def test_gemm_bytes_switch_from_compulsory_to_the_lower_bound() -> None:
    n = 16384
    assert products.gemm_bytes(n, n, n, 64 * GIB) == (8.0 * n * n, 4.0 * n * n)
    read, _ = products.gemm_bytes(n, n, n, 512 * MIB)
    assert read == pytest.approx(4 * 2 * n**3 / (128 * MIB) ** 0.5)


def test_a_batch_is_small_against_the_file() -> None:
    assert reads.batches(20 * GIB // 4096) == [1024, 4096, 16384]
    assert reads.batches(32768) == [128]


def test_the_tall_file_leaves_room_on_the_disk() -> None:
    file = pca.tall_file(Context("x", room_bytes=20 * GIB))
    assert 4 * GIB < file.nbytes <= 5 * GIB + file.header_bytes
    with pytest.raises(Skip, match="no room"):
        pca.tall_file(Context("x", room_bytes=GIB))


def test_sparse_cases_have_the_size_of_the_protocol_and_a_quarter_as_budget() -> None:
    case = BUILDERS["csrmm-1024"](Context("x"))
    a, b, _ = case.files
    assert isinstance(a, SparseFolder) and isinstance(b, DataFile)
    assert a.nonzeros > 200_000_000 and (b.rows, b.cols) == (a.columns, 1024)
    assert case.legs[0].spec["memory"] == a.nbytes // 4
    assert case.bound.written_bytes == pytest.approx(4 * a.rows * 1024, rel=1e-3)


def test_a_rival_that_needs_more_memory_than_there_is_is_left_out_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sparse, "memory_bytes", lambda: 8 * GIB)
    case = BUILDERS["csrmm-1024"](Context("x"))
    assert [leg.name for leg in case.legs if not leg.access] == [sparse.OURS, sparse.KERNEL] and not case.comparisons
    assert any(sparse.SCIPY in note and "memory" in note for note in case.notes)


def test_a_result_larger_than_the_disk_is_skipped() -> None:
    with pytest.raises(Skip, match="no room"):
        BUILDERS["csrmm-1024"](Context("x", room_bytes=20 * GIB))
    BUILDERS["csrmm-64"](Context("x", room_bytes=20 * GIB))
