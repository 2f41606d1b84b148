import json
from collections.abc import Callable

import pytest

from cases import BUILDERS, pca, products, reads, sparse
from harness.model import GIB, MIB, Case, Context, DataFile, Skip, SparseFolder

CONTEXT = Context("scratch/outcore-bench", scale=0.02, seconds=0.1)


@pytest.mark.parametrize("build", BUILDERS.values(), ids=BUILDERS)
def test_every_case_names_its_legs_once_and_compares_what_it_has(build: Callable[[Context], Case]) -> None:
    case = build(CONTEXT)
    names = [leg.name for leg in case.legs]
    assert len(set(names)) == len(names)
    for comparison in case.comparisons:
        assert comparison.ours in names and set(comparison.rivals) <= set(names)
    assert case.bound.core_leg in {None, *names}
    assert all(json.dumps(dict(leg.spec)) for leg in case.legs)


def test_the_sizes_of_the_protocol_hold_at_scale_one() -> None:
    case = BUILDERS["gemm-unaligned"](Context("x"))
    assert [(file.rows, file.cols) for file in case.files] == [(15001, 15013), (15013, 14999)]
    assert case.bound.flops == 2.0 * 15001 * 14999 * 15013
    assert BUILDERS["pca"](Context("x")).files[0].rows == 20 * GIB // 2048


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
    a, b = case.files
    assert isinstance(a, SparseFolder) and isinstance(b, DataFile)
    assert a.nonzeros > 200_000_000 and (b.rows, b.cols) == (a.columns, 1024)
    assert case.legs[0].spec["memory"] == a.nbytes // 4
    assert case.bound.written_bytes == pytest.approx(4 * a.rows * 1024, rel=1e-3)


def test_a_rival_that_needs_more_memory_than_there_is_is_left_out_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sparse, "memory_bytes", lambda: 8 * GIB)
    case = BUILDERS["csrmm-1024"](Context("x"))
    assert [leg.name for leg in case.legs] == [sparse.OURS, sparse.KERNEL] and not case.comparisons
    assert any(sparse.SCIPY in note and "memory" in note for note in case.notes)


def test_a_result_larger_than_the_disk_is_skipped() -> None:
    with pytest.raises(Skip, match="no room"):
        BUILDERS["csrmm-1024"](Context("x", room_bytes=20 * GIB))
    BUILDERS["csrmm-64"](Context("x", room_bytes=20 * GIB))
