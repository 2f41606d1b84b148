"""What a case is: legs that take turns, the bound that holds for them, and what is compared with what.

A leg is one fresh process, `python bench/leg.py FUNCTION SPEC RESULT`; its spec is plain JSON, so that the command kept with a
result is all it takes to run the leg again. Paths are relative to the root of the repository, where every leg runs.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

KIB = 1 << 10
MIB = 1 << 20
GIB = 1 << 30

ROOT = Path(__file__).resolve().parents[2]

Unit = Literal["GFLOP/s", "GB/s", "IOPS", "s"]
UNIT_SIZE: dict[str, float] = {"GFLOP/s": 1e9, "GB/s": 1e9, "IOPS": 1.0, "s": 1.0}

RIVALS = ".venv/rivals/bin/python"
"""Where `make bench` installs bench/rivals.txt."""

SMALLEST_BUDGET = 4 * MIB


class Skip(Exception):  # noqa: N818 - it is a decision, not a fault
    """The case cannot run here; the message says why."""


@dataclass(frozen=True)
class DataFile:
    """A file that legs read, made before the first one."""

    path: str
    rows: int
    cols: int
    kind: Literal["uniform", "numbered", "low rank", "normal", "clouds", "clusters", "images", "patches"] = "uniform"
    aligned: bool = True
    """The numbers begin at byte 4096 (a legal, longer `.npy` header), else where numpy.save puts them."""
    seed: int = 0
    dtype: Literal["float32", "uint8"] = "float32"
    """The same values in either, of kinds whose values both can hold."""

    @property
    def header_bytes(self) -> int:
        return 4096 if self.aligned else 128

    @property
    def row_bytes(self) -> int:
        return self.cols * {"float32": 4, "uint8": 1}[self.dtype]

    @property
    def nbytes(self) -> int:
        return self.header_bytes + self.rows * self.row_bytes


@dataclass(frozen=True)
class RowsCopy:
    """The rows of a file as another library keeps them: in chunks of whole rows or in one piece, and not compressed."""

    path: str
    source: DataFile
    form: Literal["h5py", "zarr"]
    chunk_rows: int | None = None


@dataclass(frozen=True)
class SparseFolder:
    """A matrix in CSR of documents drawn from a real corpus: `indptr`, `indices` and `data` as `.npy`, and `matrix.json`.

    The path tells rows, entries and seed, so that what lies there is known to be this matrix.
    """

    path: str
    rows: int
    nonzeros: int
    seed: int = 0

    columns: ClassVar[int] = 79_566
    """The words of the corpus, none left out."""

    @property
    def parts(self) -> tuple[str, ...]:
        return tuple(f"{self.path}/{name}.npy" for name in ("indptr", "indices", "data"))

    @property
    def nbytes(self) -> int:
        return 8 * (self.rows + 1) + 8 * self.nonzeros


@dataclass(frozen=True)
class TopicFolder:
    """Counts of words in CSR for topic models, split by documents before anything else: `learned` and `held-out`, nine to one.

    Documents of the real corpus, each once, or `drawn` from it; the path tells which, and how many.
    """

    path: str
    documents: int
    drawn: bool = False
    seed: int = 0

    entries_per_document: ClassVar[float] = 25.0
    """Of documents that are drawn, in the words that are kept."""

    @property
    def learned(self) -> str:
        return f"{self.path}/learned"

    @property
    def held_out(self) -> str:
        return f"{self.path}/held-out"

    @property
    def parts(self) -> tuple[str, ...]:
        return tuple(f"{self.learned}/{name}.npy" for name in ("indptr", "indices", "data"))

    @property
    def learned_documents(self) -> int:
        return self.documents - self.documents // 10

    @property
    def learned_bytes(self) -> int:
        """Nearly, of documents that are drawn."""
        return round(8 * self.learned_documents * (1 + self.entries_per_document))


@dataclass(frozen=True)
class ZipfFolder:
    """A matrix in CSR whose rows have `per_row` entries each, by chance; the path tells all of it."""

    path: str
    rows: int
    columns: int
    per_row: int
    seed: int = 0

    @property
    def nonzeros(self) -> int:
        return self.rows * self.per_row

    @property
    def parts(self) -> tuple[str, ...]:
        return tuple(f"{self.path}/{name}.npy" for name in ("indptr", "indices", "data"))

    @property
    def nbytes(self) -> int:
        return 8 * (self.rows + 1) + 8 * self.nonzeros


@dataclass(frozen=True)
class LibsvmFile:
    """The rows of a matrix as LIBSVM text; the path tells which."""

    path: str
    matrix: SparseFolder


@dataclass(frozen=True)
class SampleSet:
    """Training samples of one size: as a dataset of outcore's, `labelled` with a number or not, as files of one each, as rows of
    a `.npy` file, or labelled in the form of one of the loaders in `bench/legs/loaders.py`.
    """

    path: str
    size: int
    count: int
    form: str = "outcore"
    named: bool = False
    labelled: bool = False


@dataclass(frozen=True)
class BagTrace:
    """Batches of row numbers, `ids-KIND.npy` and `trace-KIND.json`, beside the tables and the database that traces of one folder
    share."""

    path: str
    model: str
    kind: str
    """`K=0`, `K=1`, `K=2` as the RecSSD paper draws them, scaled to pages of `touched_bytes`; `K=1 as shipped`, with the paper's
    7,812 lines a table of a million rows; `uniform`; or the year of a published histogram of reuse."""
    touched_bytes: int
    """At least, of the pages that the rows lie on; of `K=...` with one row a page."""
    batches: int
    batch_size: int
    seed: int = 123
    database: bool = False
    """Whether RocksDB has the rows too."""
    cached_share: float = 0.0
    """Of the rows that are looked up: the facts then tell what a cache that knows the future reads, with this many rows."""

    @property
    def facts_path(self) -> str:
        return f"{self.path}/trace-{self.kind}.json"

    @property
    def ids_path(self) -> str:
        return f"{self.path}/ids-{self.kind}.npy"


@dataclass(frozen=True)
class RandomFile:
    """Bytes that no layer can compress or leave out, for fio."""

    path: str
    nbytes: int


@dataclass(frozen=True)
class Leg:
    name: str
    function: str
    """`module.function` in `bench/legs`."""
    spec: Mapping[str, Any]
    work: float = 1.0
    """Operations, bytes or requests of one sample: rate = work / seconds. 1 where time itself is the measure."""
    cold: tuple[str, ...] = ()
    """Files whose pages leave the kernel's cache before the leg."""
    outputs: tuple[str, ...] = ()
    """Files and folders that the leg makes, removed after it."""
    limited: bool = False
    """Run under the case's process limit, its sweep too."""
    timeout_s: float = 3600.0
    unset: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    rival: bool = False
    """Run in the environment of bench/rivals.txt."""
    sweep: tuple[Mapping[str, Any], ...] = ()
    """Specs tried once, briefly, before the rounds; the fastest is kept."""
    sweep_ascends: bool = False
    """Each spec takes longer than the one before: the first that finishes is the fastest, and the last that is tried."""
    sweep_s: float = 5.0
    """Of each of them, where the leg takes `seconds`."""
    access: str | None = None
    """Of a leg that measures the device: the access whose limit it tells, `read`, `write` or `randread 4096`."""


@dataclass(frozen=True)
class Comparison:
    """Ours against the rival that was fastest in the same round, or the slowest where each is a limit: the lower one counts.

    `passes`: against the device, where all bytes go over it several times: accesses such as `read` and `write`, one after
    another, each at the speed of its fastest leg of the round. Rivals are the legs of these accesses, and both sides are told in
    bytes.
    `overlapped`: against the longest of what can go on at once. Rivals are the parts of the work, each by itself; ours where
    there are none. Those that tell `reads` count as requests of this access at the device's limit, others by their seconds, and
    all by their processor time on all cores.
    """

    ours: str
    rivals: tuple[str, ...]
    against: str
    at_least: float | None = None
    slowest: bool = False
    headline: bool = False
    """A line of the table in bench/README.md."""
    passes: tuple[str, ...] = ()
    overlapped: str = ""


@dataclass(frozen=True)
class Measure:
    """A number that a leg tells of itself, and what it must reach; `cores`: processor time over time."""

    leg: str
    key: str
    against: str
    at_least: float | None = None
    at_most: float | None = None


@dataclass(frozen=True)
class Bound:
    """What no program can beat: operations at the speed of the cores, bytes read and bytes written at the device's limits.

    The three overlap, so that the longest of them is the bound.
    """

    flops: float = 0.0
    read_bytes: float = 0.0
    written_bytes: float = 0.0
    core_leg: str | None = None
    """The leg whose rate is the speed of the cores."""
    bytes_at_most: float | None = None
    """The share of bound bytes that a leg of ours may move."""
    note: str = ""
    speed_at_least: float | None = None
    """The share of the device's limit that ours must reach where the device binds, not the cores."""
    headline: bool = False
    """The share of the bound is a line of the table in bench/README.md."""


@dataclass(frozen=True)
class Case:
    name: str
    title: str
    unit: Unit
    legs: Sequence[Leg]
    comparisons: Sequence[Comparison]
    bound: Bound = field(default_factory=Bound)
    files: Sequence[
        DataFile | RowsCopy | SparseFolder | TopicFolder | ZipfFolder | LibsvmFile | SampleSet | RandomFile | BagTrace
    ] = ()
    limit_over_bytes: int | None = None
    """The process limit, without the margin and without what interpreter and imports of a leg take."""
    needs: tuple[str, ...] = ()
    """`fio`, `example`, `look_up`: what the runner must find or build first; files of real data as `$FOLDER/name`."""
    rounds: int = 3
    """Part of the case, so that no run of it has more or fewer."""
    turned: bool = False
    """Every second round in the other order, where legs differ by little."""
    notes: tuple[str, ...] = ()
    measures: tuple[Measure, ...] = ()
    headline: str = ""
    """What is done, in the words of the table in bench/README.md."""


@dataclass(frozen=True)
class Context:
    """Sizes and places of one invocation. At `scale` 1 every size is that of the protocol; trials are smaller."""

    data: str
    scale: float = 1.0
    room_bytes: int = 1 << 62
    """What the disk holds when nothing of an earlier invocation is left."""

    def side(self, n: int) -> int:
        return max(48, round(n * self.scale))

    def seconds(self, full: float) -> float:
        return max(0.1, full * self.scale)

    def count(self, n: int) -> int:
        return max(1, round(n * self.scale))

    def budget(self, memory_bytes: int) -> int:
        """Shrinks as matrices do, so that their ratio to memory stays."""
        return max(SMALLEST_BUDGET, int(memory_bytes * min(1.0, self.scale) ** 2))

    def path(self, name: str) -> str:
        return str(Path(self.data) / name)


def relative(path: str | os.PathLike[str]) -> str:
    """Relative to the repository where it lies inside, so that results carry no one's home folder."""
    # Links stay as they are: the interpreter of an environment is one.
    absolute = Path(os.path.abspath(path))
    return str(absolute.relative_to(ROOT)) if absolute.is_relative_to(ROOT) else str(absolute)
