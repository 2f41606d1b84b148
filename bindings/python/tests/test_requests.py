"""Bytes, transfers and copies of the main operations, derived from shapes and budget: what times would tell is asserted here.

A transfer is a load or a store of a block, as the trace has it on the device's lane: one request where its bytes are contiguous,
one a row where they are not. Bytes are those of the trace, which counts whole sectors; where the kernel charges a process for
what it moves, both must agree. Streams and loaders leave no trace, so that their bytes are the kernel's.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp

import outcore as oc
from outcore.cluster import KMeans
from outcore.data import Dataset, Loader, Writer
from outcore.decomposition import PCA
from outcore.embedding import EmbeddingBag, Table
from outcore.streams import StreamStore

KIB, MIB = 1 << 10, 1 << 20
HEADER = 4096
"""Of a file that outcore makes: numbers begin after it, so that a matrix of whole sectors moves in just these."""
SECTOR = 4096
"""The largest that a disk here has: what a transfer may take more, at each of its ends."""


class Moved:
    """What the last call moved, by its trace."""

    @property
    def read(self) -> int:
        return int(oc.last_trace().actual["bytes_read"])

    @property
    def written(self) -> int:
        return int(oc.last_trace().actual["bytes_written"])

    def transfers(self, kind: str) -> list[int]:
        """The bytes of each load (`read`) or store (`write`)."""
        trace = oc.last_trace()
        assert trace.to_dict()["spans_dropped"] == 0
        return [span["bytes"] for span in trace.spans if span["lane"] == "device" and span["name"].startswith(kind)]


def charged() -> tuple[int, int]:
    try:
        fields = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    except OSError:
        return 0, 0
    return int(fields["read_bytes"]), int(fields["write_bytes"])


def by_kernel(call: Callable[[int], object]) -> tuple[int, int]:
    """What the kernel charges this process for, reading and writing, while `call` runs: the least of three.

    The process is also charged for its program and its modules, where the kernel has dropped their pages meanwhile.
    """
    found = []
    for number in range(3):
        before = charged()
        call(number)
        found.append([after - before for after, before in zip(charged(), before, strict=True)])
    return min(read for read, _ in found), min(written for _, written in found)


@pytest.fixture
def kernel_counts(tmp_path: Path, session: oc.Session) -> None:
    """Skips where files lie in memory, or reads go by way of the page cache."""
    ones = np.ones((1024, 1024), np.float32)
    if by_kernel(lambda number: oc.from_numpy(tmp_path / f"probe{number}.npy", ones)[:])[0] < ones.nbytes:
        pytest.skip("the kernel does not charge this process for what it reads here")


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., oc.Array]:
    """A file of random numbers in a session of its own budget."""

    def made(session: oc.Session, rows: int, cols: int, name: str = "x") -> oc.Array:
        values = np.random.default_rng(rows + cols).random((rows, cols), dtype=np.float32)
        return session.from_numpy(tmp_path / f"{name}.npy", values)

    return made


def small(tmp_path: Path, memory: str) -> oc.Session:
    return oc.Session(memory, tmp_path / "scratch", allow_tmpfs_scratch=True)


def test_a_product_that_fits_reads_each_operand_once_and_writes_the_result_once(
    tmp_path: Path, make: Callable[..., oc.Array]
) -> None:
    session = small(tmp_path, "64MiB")
    m, k, n = 2048, 1024, 512
    a, b = make(session, m, k, "a"), make(session, k, n, "b")
    moved = Moved()
    oc.linalg.gemm(a, b, str(tmp_path / "c.npy"))
    assert moved.read == 4 * (m * k + k * n)
    assert moved.written == 4 * m * n + HEADER
    assert sum(moved.transfers("read")) == moved.read
    # Blocks are of whole rows: none is smaller than a row of A, and they are 64 KiB on the average at least.
    assert len(moved.transfers("read")) <= moved.read // (64 * KIB)


def test_a_product_of_arrays_in_memory_moves_nothing_and_copies_no_operand() -> None:
    n = 2048
    a, b, c = (np.ones((n, n), np.float32) for _ in range(3))
    oc.linalg.gemm(a, b, out=c)
    trace = oc.last_trace()
    assert (trace.actual["bytes_read"], trace.actual["bytes_written"]) == (0, 0)
    assert trace.actual["peak_bytes"] < a.nbytes


def test_a_product_beyond_the_budget_stays_near_the_least_traffic(tmp_path: Path, make: Callable[..., oc.Array]) -> None:
    n, memory = 4096, 32 * MIB
    session = small(tmp_path, "32MiB")
    a, b = make(session, n, n, "a"), make(session, n, n, "b")
    plan = oc.explain(oc.linalg.gemm, a, b)
    moved = Moved()
    oc.linalg.gemm(a, b, str(tmp_path / "c.npy"))
    # No schedule moves less than 2 m n k / sqrt(M) elements for a memory of M, and the result; or every matrix once. Operands
    # that are copied into blocks are written and read once more.
    least = 4 * max(3 * n * n, 2 * n**3 / math.sqrt(memory / 4) + n * n)
    copied = sum(x.nbytes for x, name in ((a, "A"), (b, "B")) if name in plan.notes.get("repacked", ""))
    assert least <= moved.read + moved.written - 2 * copied <= 1.35 * least
    # The part of C in memory is complete when it leaves: no partial sum is written or read again.
    assert 4 * n * n + copied + HEADER <= moved.written <= 4 * n * n + copied + 64 * HEADER
    assert sum(moved.transfers("read")) == moved.read


def csr_matrix(session: oc.Session, path: Path, rows: int, cols: int) -> tuple[oc.Sparse, int]:
    """And the bytes of its three arrays: offsets of eight bytes, indices and values of four."""
    matrix = sp.random(rows, cols, 0.05, "csr", dtype=np.float32, random_state=np.random.default_rng(0))
    return session.from_scipy(path, matrix), 8 * (rows + 1) + 8 * matrix.nnz


@pytest.mark.parametrize("memory", ["16MiB", "64MiB"])
def test_a_sparse_product_reads_the_matrix_once_and_writes_the_result_once(tmp_path: Path, memory: str) -> None:
    session = small(tmp_path, memory)
    rows, cols, width = 20_000, 3000, 64
    a, size = csr_matrix(session, tmp_path / "a", rows, cols)
    moved = Moved()
    oc.linalg.csrmm(a, np.ones((cols, width), np.float32), str(tmp_path / "c.npy"))
    # A piece begins and ends anywhere: less than a sector more at either end of each transfer.
    assert size <= moved.read <= size + 2 * SECTOR * len(moved.transfers("read"))
    assert moved.read <= 1.02 * size
    assert 4 * rows * width <= moved.written <= 4 * rows * width + 2 * HEADER


@pytest.mark.parametrize("memory", ["16MiB", "64MiB"])
def test_components_take_one_pass_over_the_rows_and_write_nothing(
    tmp_path: Path, make: Callable[..., oc.Array], memory: str
) -> None:
    x = make(small(tmp_path, memory), 65_536, 128)
    moved = Moved()
    PCA(n_components=8, random_state=0).fit(x)
    assert (moved.read, moved.written) == (x.nbytes, 0)
    transfers = moved.transfers("read")
    assert sum(transfers) == x.nbytes and len(transfers) <= x.nbytes // (256 * KIB)


def kmeans(x: oc.Array, rounds: int) -> None:
    KMeans(8, init=np.asarray(x[:8]), max_iter=rounds, tol=0).fit(x)


@pytest.mark.parametrize("rounds", [1, 3])
def test_rounds_of_clustering_read_rows_that_stay_in_memory_once(
    tmp_path: Path, make: Callable[..., oc.Array], rounds: int
) -> None:
    x = make(small(tmp_path, "64MiB"), 32_768, 64)
    moved = Moved()
    kmeans(x, rounds)
    # Two blocks may share the sector where one ends and the next begins.
    assert x.nbytes <= moved.read <= x.nbytes + SECTOR * len(moved.transfers("read"))
    assert moved.read <= 1.01 * x.nbytes and moved.written == 0


def test_rounds_of_clustering_beyond_the_budget_read_the_rows_once_and_then_a_copy_of_fewer_bits(
    tmp_path: Path, make: Callable[..., oc.Array]
) -> None:
    rounds = 3
    x = make(small(tmp_path, "16MiB"), 131_072, 64)
    moved = Moved()
    kmeans(x, rounds)
    # A pass a round and one for the last labels; those after the first read a copy of 18 bits of 32, or less of it.
    assert x.nbytes <= moved.read <= (1 + rounds * 18 / 32) * 1.05 * x.nbytes
    assert moved.written <= 18 / 32 * 1.05 * x.nbytes


def test_a_slice_of_rows_is_one_transfer_of_just_these(tmp_path: Path, make: Callable[..., oc.Array]) -> None:
    x = make(small(tmp_path, "64MiB"), 4096, 1024)
    moved = Moved()
    assert x[100:200].shape == (100, 1024)
    assert moved.transfers("read") == [100 * 4096] and moved.read == 100 * 4096
    # Of each row the sector that has the columns, in one request a row.
    x[100:110, :10]
    assert moved.transfers("read") == [10 * 40]
    assert moved.read <= 10 * SECTOR


@pytest.mark.usefixtures("kernel_counts")
def test_the_trace_says_what_the_kernel_says(tmp_path: Path, make: Callable[..., oc.Array]) -> None:
    session = small(tmp_path, "16MiB")
    a, b = make(session, 4096, 1024, "a"), make(session, 1024, 1024, "b")
    traced = []

    def product(number: int) -> None:
        oc.linalg.gemm(a, b, str(tmp_path / f"c{number}.npy"))
        moved = Moved()
        traced.append((moved.read, moved.written))

    charged_read, charged_written = by_kernel(product)
    read, written = (min(numbers) for numbers in zip(*traced, strict=True))
    # Inodes and folders are read and written besides.
    assert read <= charged_read <= read + MIB
    assert written <= charged_written <= written + MIB


@pytest.mark.usefixtures("kernel_counts")
def test_a_stream_moves_its_bytes_and_a_sector_a_block(tmp_path: Path) -> None:
    block, total = MIB, 32 * MIB
    store = StreamStore(tmp_path / "a.store", size=4 * total)
    with store.create("warm", block=block) as writer:
        writer.write(bytes(block))
    most = total + SECTOR * (total // block + 1) + block + 64 * KIB

    def write(number: int) -> None:
        with store.create(f"{number}", block=block) as writer:
            for _ in range(total // block):
                writer.write(np.full(block, number, np.uint8))

    def read(number: int) -> None:
        assert sum(len(part) for part in store.open(f"{number}").blocks()) == total

    assert total <= by_kernel(write)[1] <= most
    assert total <= by_kernel(read)[0] <= most


@pytest.mark.usefixtures("kernel_counts")
@pytest.mark.parametrize(("shuffle", "most"), [(True, 1.15), ("chunk", 1.15), (False, 1.05)])
def test_an_epoch_reads_each_sample_once_whatever_the_order(tmp_path: Path, shuffle: bool | str, most: float) -> None:
    count, size = 8000, 4096
    with Writer(tmp_path / "samples", {"x": ("uint8", (size,))}) as writer:
        for number in range(count):
            writer.write({"x": np.full(size, number % 251, np.uint8)})
    oc.configure("8MiB", tmp_path / "scratch", 1, allow_tmpfs_scratch=True)
    dataset = Dataset(tmp_path / "samples")
    dataset[0]

    def epoch(number: int) -> None:
        loader = Loader(dataset, 256, shuffle=shuffle, seed=number, rank=0, world_size=1)
        assert sum(len(batch["x"]) for batch in loader) == count

    # A gap of a sample between two that are wanted is read with them: of 256 samples among 8000 some 3 % for each sample of it.
    # What a budget of a quarter of the samples keeps from the epoch before is not read again.
    assert 0.7 * count * size <= by_kernel(epoch)[0] <= most * count * size


@pytest.mark.usefixtures("kernel_counts")
def test_samples_side_by_side_are_read_without_their_neighbours(tmp_path: Path) -> None:
    count, size = 4000, 4096
    with Writer(tmp_path / "samples", {"x": ("uint8", (size,))}) as writer:
        for number in range(count):
            writer.write({"x": np.full(size, number % 251, np.uint8)})
    dataset = Dataset(tmp_path / "samples")
    dataset[0]
    for first, wanted in ((1000, range(100)), (10, (0, 1000, 2000))):
        # Others each time, for those that were read may be kept.
        read, _ = by_kernel(lambda number, first=first, wanted=wanted: dataset[[first + 200 * number + at for at in wanted]])
        assert len(wanted) * size <= read <= (len(wanted) + len(wanted) // 50 + 4) * size


def test_a_symmetric_product_that_fits_reads_its_operand_once_and_writes_the_result_once(
    tmp_path: Path, make: Callable[..., oc.Array]
) -> None:
    session = small(tmp_path, "32MiB")
    n, k = 1024, 16_384
    a = make(session, n, k)
    moved = Moved()
    oc.linalg.syrk(a, out=str(tmp_path / "c.npy"))
    assert moved.read == 4 * n * k
    assert moved.written == 4 * n * n + HEADER


def test_a_transpose_of_rows_reads_every_entry_once_and_moves_it_twice_at_most(tmp_path: Path) -> None:
    session = small(tmp_path, "16MiB")
    a, size = csr_matrix(session, tmp_path / "a", 40_000, 3000)
    moved = Moved()
    oc.linalg.csrcsc(a, str(tmp_path / "b"))
    # What memory does not keep goes by way of scratch, where an entry has twelve bytes at most: written once, read once.
    result = size - 8 * (40_000 - 3000)
    written, read = moved.written - result, moved.read - size
    assert 0 < written <= read <= 1.15 * written
    assert read <= 1.05 * 12 * a.nnz


def test_rows_that_are_taken_are_read_and_written_once(tmp_path: Path, make: Callable[..., oc.Array]) -> None:
    session = small(tmp_path, "16MiB")
    x = make(session, 16_384, 1024)
    moved = Moved()
    y = x.take(np.arange(0, 16_384, 4), out=str(tmp_path / "y.npy"))
    assert moved.read == y.nbytes
    assert moved.written == y.nbytes + HEADER


def test_a_look_up_reads_each_row_that_is_not_in_memory_once(tmp_path: Path, make: Callable[..., oc.Array]) -> None:
    x = make(small(tmp_path, "16MiB"), 10_000, 64, "table")
    table = Table.open(tmp_path / "table.npy", cache=256 * 4000, session=small(tmp_path, "16MiB"))
    ids = np.random.default_rng(0).integers(0, 10_000, 2000)
    EmbeddingBag(table)(ids, np.arange(0, 2000, 20))
    assert table.statistics.units_read == len(np.unique(ids))
    table.keep(np.arange(400))
    read = table.statistics.units_read
    assert (table[:400] == x[:400]).all()
    assert table.statistics.units_read == read
