"""Singular triplets of a real corpus, four times the budget, to a residual that all legs are held to.

Estimates for two cores, of one search of 51 M entries (the matrix is 0.4 GB, made in a minute); `rounds` counts those after what
is tried before:

| leg | k = 50 | k = 200 | k = 500 | memory | tried before |
|---|---|---|---|---|---|
| outcore | 0.5 min | 1 min | 5 min | a quarter of the matrix, 64 MiB, interpreter | |
| ARPACK | 0.5 min | 3 min | 15 min | 1 to 5 GB | 2 tolerances |
| ARPACK with MKL | 0.5 min | 3 min | 15 min | 2 to 6 GB | 2 tolerances |
| PROPACK | 0.5 min | 5 min | 8 min | up to 16 m bytes a column of its basis: 4 to 18 GB | float32, float64 |
| randomized | 2.5 min | 12 min | 8 min | 24 m k bytes: 2 to 12 GB | 3 numbers of iterations |
| PRIMME | 2 min | 10 min | 8 min | 1 to 5 GB | 2 blocks |
| Spark | | 20 min | | 14 GB of heap | |

A leg ends after an hour at the latest; of 500 triplets, PROPACK, scikit-learn and PRIMME have cases of their own and end after
450 seconds, which is enough to say that they take some times as long. Scratch takes 8 (m + 2 n) k bytes at most: 0.5 to 5 GB,
and 6 GB for 2,000 pairs.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from cases.limits import limit_file, limit_legs
from cases.products import NOTHING_WITHOUT_MKL, RESIDENT_BYTES, mkl
from cases.sparse import described, fits, left_out, quarter
from harness.model import MIB, Bound, Case, Comparison, Context, Leg, Measure, SparseFolder

ROWS = 1_000_000
ENTRIES_PER_ROW = 51
COUNTS = (50, 200, 500)
TOLERANCE = 1e-4
SWEPT_MOST = 200
"""Triplets of which settings of rivals are tried: of more, each takes up to an hour."""
ROUNDS = {50: 3}
"""One where a round takes an hour."""

MANY = 2000
MANY_ROWS = 250_000
"""Their left vectors take 4 GB of scratch."""
MANY_BUDGET = 512 * MIB

LEAST_BUDGET = 32 * MIB
"""Of trials: blocks of 80,000 words are no smaller with fewer documents."""
LONGEST_BASIS = 2000
"""Of PROPACK, which keeps left vectors too."""
SPARK_MEMORY = "14g"

OURS = "outcore svds"
IN_MEMORY = "outcore svds, all in memory"
ARPACK = "scipy svds (ARPACK) in memory"
ARPACK_MKL = "ARPACK with products of MKL in memory"
PROPACK = "scipy svds (PROPACK) in memory"
RANDOMIZED = "scikit-learn randomized_svd in memory"
PRIMME = "PRIMME svds in memory"
SPARK = "Spark MLlib computeSVD in memory"

TIMEOUT_S = 3600.0
LONG_S = 450.0
"""After which one that takes several times as long as ours is stopped."""

RESIDUAL_NOTE = (
    "Residuals are the largest |A v - s u| and |A^T u - s v| over tol s_1, computed in f64 from what each returned: above 1 a "
    "leg has not finished. Our matrix is in tiles of six bytes an entry, which imports make; budgets are by its arrays. "
    "Tolerances of ARPACK, the type that PROPACK computes in and scikit-learn's power iterations are tried before the rounds, "
    "the cheapest first, and the first that reach the residual are kept. Of 500 triplets ARPACK's and scikit-learn's are those "
    "that 200 were found with, PROPACK computes in float64 and PRIMME with one vector at a time."
)


def corpus(context: Context, rows: int = ROWS) -> SparseFolder:
    m = max(20_000, context.count(rows))
    nonzeros = ENTRIES_PER_ROW * m
    return SparseFolder(context.path(f"corpus-{m}x{nonzeros}-seed6"), m, nonzeros, seed=6)


def budget_of(a: SparseFolder) -> int:
    return max(LEAST_BUDGET, quarter(a.nbytes))


def common_of(context: Context, a: SparseFolder, count: int) -> dict[str, Any]:
    return {"a": a.path, "k": max(5, context.count(count)), "tol": TOLERANCE}


def ours_of(context: Context, a: SparseFolder, count: int, memory: int) -> Leg:
    spec = {**common_of(context, a, count), "memory": memory, "scratch": context.path("scratch")}
    return Leg(OURS, "spectra.ours", spec, cold=a.parts, limited=True)


def title_of(a: SparseFolder, k: int, memory: int) -> str:
    return (
        f"{k} singular triplets of {described(a)}, f32, residuals of {TOLERANCE:g} s_1, budget {memory >> 20} MiB, process "
        "limited to 64 MiB more"
    )


def bound_of(a: SparseFolder, k: int) -> Bound:
    return Bound(4.0 * a.nonzeros * k, float(a.nbytes), note="A read once, two products with k columns")


def svds(context: Context, count: int, *names: str) -> Case:
    """Against some of the rivals, all of them where none is named."""
    a = corpus(context)
    common, memory = common_of(context, a, count), budget_of(a)
    k, basis = common["k"], min(10 * common["k"], LONGEST_BASIS)
    # The last pairs are the last to converge, and their residuals may be larger against their own values.
    tolerances = tuple({"tolerance": loose * TOLERANCE} for loose in (300, 100, 30, 10))
    sweeps: dict[str, tuple[dict[str, Any], ...]] = {
        ARPACK: tolerances,
        ARPACK_MKL: tolerances,
        PROPACK: ({"tolerance": TOLERANCE, "dtype": "f4"}, {"tolerance": TOLERANCE**1.5, "dtype": "f8"}),
        RANDOMIZED: tuple({"iterations": iterations} for iterations in (7, 11, 18, 32)),
    }
    known = {ARPACK: 1, ARPACK_MKL: 1, PROPACK: 1, RANDOMIZED: 2}
    apart = {PROPACK: "-propack", RANDOMIZED: "-randomized"}

    def leg(name: str, function: str, **options: Any) -> Leg:
        sweep, best = sweeps[name], known[name]
        return Leg(
            name,
            function,
            {**common, **options, **sweep[best]},
            sweep=sweep if count <= SWEPT_MOST else (),
            sweep_ascends=True,
            timeout_s=LONG_S if count > SWEPT_MOST and name in apart else TIMEOUT_S,
        )

    rivals = [
        (3.0 * a.nbytes, leg(ARPACK, "spectra.arpack")),
        (4.0 * a.nbytes, leg(ARPACK_MKL, "spectra.arpack_mkl", library=mkl())),
        (2.0 * a.nbytes + 8.0 * (a.rows + a.columns) * basis, leg(PROPACK, "spectra.propack", basis=basis)),
        (a.nbytes + 24.0 * a.rows * k, leg(RANDOMIZED, "spectra.randomized")),
    ]
    rivals = [(needed, leg) for needed, leg in rivals if not names or leg.name in names]
    of = " or ".join(names) or "the fastest of scipy's and scikit-learn's, the matrix in memory"
    return against(
        context,
        f"svds-{count}{''.join(apart.get(name, '') for name in names)}",
        a,
        count,
        memory,
        rivals=[leg for needed, leg in rivals if fits(needed) and leg.spec.get("library", "") is not None],
        words=f"{of}, loading not timed",
        notes=(*left_out([leg.name for needed, leg in rivals if not fits(needed)]), *(() if mkl() else (NOTHING_WITHOUT_MKL,))),
    )


def with_primme(context: Context, count: int) -> Case:
    """Apart, for it is installed by few."""
    a = corpus(context)
    sweep = ({"block": 1}, {"block": 8})
    # With ours as it is, residuals are up to a quarter larger than they may be.
    spec = {**common_of(context, a, count), "tolerance": 0.7 * TOLERANCE}
    tried: dict[str, Any] = {"sweep": sweep} if count <= SWEPT_MOST else {"timeout_s": LONG_S}
    leg = Leg(PRIMME, "spectra.primme", {**spec, **sweep[0]}, **tried)
    words = "PRIMME, the matrix in memory, loading not timed"
    return against(context, f"svds-primme-{count}", a, count, budget_of(a), rivals=[leg], words=words, needs=("primme",))


def with_spark(context: Context) -> Case:
    """Apart, for to bring the rows into the memory of Java takes minutes."""
    a, count = corpus(context), 200
    leg = Leg(SPARK, "with_spark.svds", {**common_of(context, a, count), "driver_memory": SPARK_MEMORY})
    words = "Spark MLlib with all rows in memory, not counting the time to load them"
    rest: dict[str, Any] = {"needs": ("spark",), "at_least": 10.0, "rounds": 1}
    return against(context, f"svds-spark-{count}", a, count, budget_of(a), rivals=[leg], words=words, **rest)


def against(
    context: Context,
    name: str,
    a: SparseFolder,
    count: int,
    memory: int,
    *,
    rivals: list[Leg],
    words: str,
    needs: tuple[str, ...] = (),
    at_least: float = 1.0,
    rounds: int | None = None,
    notes: tuple[str, ...] = (),
) -> Case:
    ours, k = ours_of(context, a, count, memory), max(5, context.count(count))
    return Case(
        name,
        title_of(a, k, memory),
        "s",
        [ours, *rivals, *limit_legs(context, "read")],
        [
            Comparison(OURS, tuple(leg.name for leg in rivals), words, at_least),
            *(Comparison(OURS, (leg.name,), leg.name) for leg in rivals if len(rivals) > 1),
        ],
        bound_of(a, k),
        [a, limit_file(context)],
        limit_over_bytes=memory,
        needs=needs,
        rounds=rounds or ROUNDS.get(count, 1),
        notes=(RESIDUAL_NOTE, *notes),
    )


def memory(context: Context) -> Case:
    a, count = corpus(context), 200
    budget = budget_of(a)
    common = common_of(context, a, count)
    resident = {**common, "memory": RESIDENT_BYTES, "scratch": context.path("scratch"), "in_memory": True}
    return Case(
        "svds-memory",
        title_of(a, common["k"], budget),
        "s",
        [ours_of(context, a, count, budget), Leg(IN_MEMORY, "spectra.ours", resident), *limit_legs(context, "read")],
        [Comparison(OURS, (IN_MEMORY,), "our own run with matrix and budget in memory, loading not timed", 0.8)],
        bound_of(a, common["k"]),
        [a, limit_file(context)],
        limit_over_bytes=budget,
        turned=True,
        notes=(RESIDUAL_NOTE, f"In memory the matrix is SciPy's and the budget {RESIDENT_BYTES >> 30} GiB."),
    )


def many(context: Context) -> Case:
    """No rival fits; the matrix does, but basis and left vectors are eleven times the budget."""
    a = corpus(context, MANY_ROWS)
    budget = max(LEAST_BUDGET, int(MANY_BUDGET * min(1.0, context.scale)))
    leg = ours_of(context, a, MANY, budget)
    return Case(
        f"svds-{MANY}",
        title_of(a, leg.spec["k"], budget),
        "s",
        [Leg(OURS, leg.function, leg.spec, cold=leg.cold, limited=True, timeout_s=4 * TIMEOUT_S), *limit_legs(context, "read")],
        [],
        bound_of(a, leg.spec["k"]),
        [a, limit_file(context)],
        limit_over_bytes=budget,
        rounds=1,
        notes=(RESIDUAL_NOTE,),
        measures=(
            Measure(OURS, "residual", "residuals, by what they may be", at_most=1.0),
            Measure(OURS, "bytes_of_plan", "bytes read and reused, by those of the plans", at_most=1.02),
        ),
    )


def many_beside_lapack(context: Context) -> Case:
    """As many triplets where LAPACK fits: its values of the first rows."""
    a = corpus(context, MANY_ROWS)
    k = max(5, context.count(MANY))
    spec = {"a": a.path, "rows": 3 * k, "k": k, "tol": TOLERANCE, "memory": MANY_BUDGET, "scratch": context.path("scratch")}
    off = {
        "residual": "residuals, by the tolerance",
        "off_lapack": "distance of a value from LAPACK's, by the tolerance",
        "left_off_orthonormal": "left vectors off orthonormal, by the tolerance",
        "right_off_orthonormal": "right vectors off orthonormal, by the tolerance",
    }
    return Case(
        f"svds-{MANY}-lapack",
        f"{k} singular triplets of {3 * k:,} documents of {described(a)}, f32, residuals of {TOLERANCE:g} s_1",
        "s",
        [Leg(OURS, "spectra.beside_lapack", spec), *limit_legs(context, "read")],
        [],
        Bound(4.0 * a.nonzeros * k * 3 * k / a.rows, 0.0, note="two products with k columns"),
        [a, limit_file(context)],
        rounds=1,
        notes=("Values are LAPACK's of A A^T in f64; residuals and vectors are looked at in f64.",),
        measures=tuple(Measure(OURS, key, words, at_most=1.0) for key, words in off.items()),
    )


BUILDERS: dict[str, Callable[[Context], Case]] = {
    "svds-50": lambda context: svds(context, 50),
    "svds-200": lambda context: svds(context, 200),
    "svds-200-propack": lambda context: svds(context, 200, PROPACK),
    "svds-500": lambda context: svds(context, 500, ARPACK, ARPACK_MKL),
    "svds-500-propack-randomized": lambda context: svds(context, 500, PROPACK, RANDOMIZED),
    **{f"svds-primme-{count}": partial(with_primme, count=count) for count in COUNTS},
    "svds-spark-200": with_spark,
    "svds-memory": memory,
    f"svds-{MANY}": many,
    f"svds-{MANY}-lapack": many_beside_lapack,
}
