"""The eight recommenders of RecSSD's evaluation, as descriptions that need no PyTorch; `Model` in `networks` is built of one.

Shapes are those of the artifact (RecSSD-RecInfra, `models/sweep_*.py`), and `DEEP_REC_SYS` has the larger tables of the suite
that it came from (DeepRecSys, `models/configs`). Source: Wilkening et al., RecSSD, ASPLOS 2021, section 5; Gupta et al.,
DeepRecSys, ISCA 2020.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from ..errors import ArgumentError

__all__ = ["DEEP_REC_SYS", "MLPERF", "MODELS", "OPERATOR", "ModelSpec", "TableSpec"]

Kind = Literal["dense", "tasks", "attention", "recurrent", "factors", "pooled"]
FLOAT_BYTES = 4


def __dir__() -> list[str]:
    return sorted(__all__)


@dataclass(frozen=True)
class TableSpec:
    """One embedding table: its rows, and how many of them a sample adds up."""

    rows: int
    lookups: int


@dataclass(frozen=True)
class ModelSpec:
    """A recommender: its tables, and the network that takes their sums.

    Attributes
    ----------
    name : str
    kind : str
        The network: "dense" joins the numbers of a sample with the sums of its rows (Wide and Deep, DLRM); "tasks" has a head for
        each task on top of that; "attention" weighs each behaviour of a user by the candidate (DIN); "recurrent" goes through
        them in order (DIEN); "factors" joins added factors with a network on others (NCF); "pooled" is the look-up alone.
    tables : tuple of TableSpec
    dim : int
        Elements of a row, float32, of every table.
    dense : int
        Numbers of a sample that are not looked up.
    bottom, top : tuple of int
        Widths of the layers before and after the join, without the width that goes in.
    heads : int, head : tuple of int
        How many heads there are, and the widths of their layers.
    hidden : int
        Width of the attention unit or of the state of a recurrent layer.
    """

    name: str
    kind: Kind
    tables: tuple[TableSpec, ...]
    dim: int
    dense: int = 0
    bottom: tuple[int, ...] = ()
    top: tuple[int, ...] = ()
    heads: int = 0
    head: tuple[int, ...] = ()
    hidden: int = 0

    @property
    def lookups(self) -> int:
        """Rows that a sample looks up, in all tables."""
        return sum(table.lookups for table in self.tables)

    @property
    def row_bytes(self) -> int:
        return FLOAT_BYTES * self.dim

    @property
    def table_bytes(self) -> int:
        """Bytes of all tables."""
        return self.row_bytes * sum(table.rows for table in self.tables)

    @property
    def joined(self) -> int:
        """Width of what goes into the top layers."""
        if self.kind in ("dense", "tasks"):
            return (self.bottom[-1] if self.bottom else self.dense) + len(self.tables) * self.dim
        if self.kind == "factors":
            return self.dim + self.bottom[-1]
        return {"attention": 4 * self.dim, "recurrent": self.hidden + 3 * self.dim, "pooled": 0}[self.kind]

    @property
    def output(self) -> int:
        """Width of what the network returns."""
        if self.kind == "pooled":
            return len(self.tables) * self.dim
        return self.heads * self.head[-1] if self.heads else self.top[-1]

    def scaled(self, factor: float) -> ModelSpec:
        """The same model on tables of `factor` times the rows; never fewer than a sample looks up."""
        if not factor > 0:
            raise ArgumentError(f"tables can be scaled by a positive factor, not by {factor}")
        return replace(self, tables=tuple(replace(t, rows=max(t.lookups, round(t.rows * factor))) for t in self.tables))

    def with_rows(self, rows: int) -> ModelSpec:
        """The same model on tables of at least `rows` rows each."""
        return replace(self, tables=tuple(replace(table, rows=max(table.rows, rows)) for table in self.tables))

    def varied(self, *, dim: int | None = None, lookups: int | None = None, tables: int | None = None) -> ModelSpec:
        """The same model with another width of rows, look-ups a table or number of tables like its first: for figure 11."""
        first = replace(self.tables[0], lookups=lookups or self.tables[0].lookups)
        told = {"dim": dim, "lookups": lookups, "tables": tables}
        name = " ".join([self.name, *(f"{what}={value}" for what, value in told.items() if value)])
        bottom = (*self.bottom[:-1], dim) if dim and self.bottom else self.bottom
        return replace(self, name=name, dim=dim or self.dim, bottom=bottom, tables=(first,) * (tables or len(self.tables)))


def _tables(*groups: tuple[int, int], lookups: int) -> tuple[TableSpec, ...]:
    """Tables in groups of (how many, rows each)."""
    return tuple(TableSpec(rows, lookups) for count, rows in groups for _ in range(count))


def _by_name(*specs: ModelSpec) -> dict[str, ModelSpec]:
    return {spec.name: spec for spec in specs}


_DIN = ModelSpec(
    # One table of the user's profile, 250 (and one more, as the artifact counts) of behaviours, the candidate's and the
    # context's.
    "DIN",
    "attention",
    _tables((1, 10_000), (251, 1_000), (2, 100_000), lookups=3),
    dim=32,
    hidden=1,
    top=(200, 80, 2),
)
_DIEN = ModelSpec("DIEN", "recurrent", _tables((41, 10_000), (2, 100_000), lookups=3), dim=32, hidden=64, top=(200, 80, 2))
_MTWND = ModelSpec(
    "MTWND",
    "tasks",
    _tables((41, 10_000), (2, 100_000), lookups=1),
    dim=32,
    dense=512,
    top=(1024, 512),
    heads=8,
    head=(256, 128),
)
_NCF = ModelSpec("NCF", "factors", _tables((4, 100_000), lookups=1), dim=32, bottom=(256, 256, 128, 64), top=(64,))
_RMC1 = ModelSpec("RMC1", "dense", _tables((8, 1_000_000), lookups=80), dim=32, dense=128, bottom=(64, 32), top=(256, 64, 1))
_RMC2 = ModelSpec("RMC2", "dense", _tables((32, 1_000_000), lookups=120), dim=64, dense=128, bottom=(64, 64), top=(128, 64, 1))
_RMC3 = ModelSpec(
    "RMC3", "dense", _tables((10, 1_000_000), lookups=20), dim=32, dense=2560, bottom=(1024, 256, 32), top=(512, 256, 1)
)
_WND = ModelSpec("WND", "dense", _tables((27, 100_000), lookups=1), dim=32, dense=512, top=(1024, 512, 256))

MODELS = _by_name(_WND, _MTWND, _DIN, _DIEN, _NCF, _RMC1, _RMC2, _RMC3)
"""RecSSD's eight models. The first five spend their time in the network, the others in their tables."""

DEEP_REC_SYS = _by_name(
    replace(_WND, tables=_tables((27, 1_000_000), lookups=1), top=(1024, 512, 256, 1)),
    replace(_MTWND, tables=_tables((41, 500_000), (2, 5_000_000), lookups=1)),
    replace(_DIN, tables=_tables((1, 1_000_000), (251, 100_000), (2, 10_000_000), lookups=3)),
    replace(_DIEN, tables=_tables((41, 500_000), (2, 5_000_000), lookups=1)),
    replace(_NCF, tables=_tables((2, 140_000), (2, 28_000), lookups=1), dim=64),
    replace(_RMC1, tables=_tables((8, 4_000_000), lookups=80)),
    replace(_RMC2, tables=_tables((32, 500_000), lookups=120), dense=256, bottom=(128, 64)),
    replace(_RMC3, tables=_tables((10, 2_000_000), lookups=20)),
)
"""The same models with the tables of DeepRecSys."""

OPERATOR = ModelSpec("SLS", "pooled", _tables((1, 1_000_000), lookups=80), dim=32)
"""The look-up alone (SparseLengthsSum), in one table: figures 5 and 8 of the paper."""

_MLPERF_ROWS = (
    *(40_000_000, 39_060, 17_295, 7_424, 20_265, 3, 7_122, 1_543, 63, 40_000_000, 3_067_956, 405_282, 10, 2_209, 11_938, 155, 4),
    *(976, 14, 40_000_000, 40_000_000, 40_000_000, 590_152, 12_973, 108, 36),
)
_MLPERF_HOT = (3, 2, 1, 2, 6, 1, 1, 1, 1, 7, 3, 8, 1, 6, 9, 5, 1, 1, 1, 12, 100, 27, 10, 3, 1, 1)
MLPERF = ModelSpec(
    "MLPERF",
    "dense",
    tuple(TableSpec(rows, hot) for rows, hot in zip(_MLPERF_ROWS, _MLPERF_HOT, strict=True)),
    dim=128,
    dense=13,
    bottom=(512, 256, 128),
    top=(1024, 1024, 512, 256, 1),
)
"""The tables of MLPerf's DLRM-v2, 104 GB, for its multi-hot look-ups. Features are joined here, where MLPerf crosses them."""
