"""Matrix products larger than the budget: gemm, unaligned gemm, gemm under a process limit, syrk."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from cases.limits import limit_file, limit_legs
from harness.machine import mkl_library
from harness.model import GIB, MIB, Bound, Case, Comparison, Context, DataFile, Leg, relative

SIDE = 16384
RIVAL_TIMEOUT_S = 300.0
RESIDENT_BYTES = 8 * GIB
"""A budget in which nothing needs to leave memory: the operands are the caller's, the library's are result and packing."""

OURS = "outcore"
OURS_MKL = "outcore with MKL"
KERNEL_COLS = 4096
"""Of B, for the speed of the kernel alone: as many as take a quarter of the time."""

KERNEL = "same kernel in memory"
KERNEL_MKL = "MKL kernel in memory"

GEMM_BOUND = "max(|A| + |B| + |C|, 2mnk/sqrt(M) + mn) elements"
SYRK_BOUND = "max(nk, n^2 k / sqrt(2M)) elements read and C written"

NOTHING_WITHOUT_MKL = "MKL is not installed: its legs are left out."
KERNEL_NOTE = f"The kernel of ours in memory multiplies {KERNEL_COLS:,} columns of B only; MKL's and numpy do all of the product."


def steering() -> tuple[str, ...]:
    """The variables set here that make OpenBLAS choose other kernels than it would by itself; some halve its speed."""
    return tuple(name for name in ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE") if name in os.environ)


def numpy_environments() -> dict[str, tuple[str, ...]]:
    """Variables to remove, by name of leg: numpy as the environment has it and, where that steers OpenBLAS, also without."""
    return {"numpy in memory": (), **({"numpy in memory, OpenBLAS unsteered": steering()} if steering() else {})}


def steering_notes() -> tuple[str, ...]:
    return (f"OpenBLAS unsteered: {' and '.join(steering())} removed from the environment.",) if steering() else ()


def mkl() -> str | None:
    found = mkl_library()
    return relative(found) if found else None


def with_mkl(names_and_legs: list[Leg]) -> list[Leg]:
    """Legs whose spec asks for a BLAS that is not there are dropped."""
    return [leg for leg in names_and_legs if leg.spec.get("blas", "") is not None]


def gemm_bytes(m: int, n: int, k: int, budget_bytes: int) -> tuple[float, float]:
    """Bytes that must be read and written: max(|A| + |B| + |C|, 2mnk/sqrt(M) + mn) elements of four bytes."""
    total = max(m * k + k * n + m * n, 2 * m * n * k / (budget_bytes / 4) ** 0.5 + m * n)
    return 4.0 * (total - m * n), 4.0 * m * n


def syrk_bytes(n: int, k: int, budget_bytes: int) -> tuple[float, float]:
    """As gemm's, by Beaumont and others (SPAA 2022): max(nk, n^2 k / sqrt(2M)) read; C with both triangles written."""
    return 4.0 * max(n * k, n * n * k / (2 * budget_bytes / 4) ** 0.5), 4.0 * n * n


def gemm_case(
    context: Context,
    name: str,
    sides: tuple[int, int, int],
    budget: int,
    title: str,
    *,
    target: float,
    numpy_target: float | None = None,
    bytes_at_most: float | None = None,
    aligned: bool = True,
    headline: str = "",
) -> Case:
    m, n, k = (context.side(side) for side in sides)
    memory = context.budget(budget)
    a = DataFile(context.path(f"a-{m}x{k}-{aligned:d}.npy"), m, k, aligned=aligned, seed=1)
    b = DataFile(context.path(f"b-{k}x{n}-{aligned:d}.npy"), k, n, aligned=aligned, seed=2)
    out = context.path("c.npy")
    files = {"a": a.path, "b": b.path}
    stored: dict[str, Any] = {**files, "out": out, "memory": memory, "scratch": context.path("scratch")}
    resident: dict[str, Any] = {**files, "memory": RESIDENT_BYTES, "scratch": context.path("scratch")}
    flops = 2.0 * m * n * k
    cold = (a.path, b.path)
    legs = [
        Leg(OURS, "ours.gemm", stored, flops, cold, (out,)),
        Leg(KERNEL, "ours.gemm_memory", {**resident, "cols": min(n, context.side(KERNEL_COLS))}, flops),
        Leg(OURS_MKL, "ours.gemm", {**stored, "blas": mkl()}, flops, cold, (out,)),
        Leg(KERNEL_MKL, "ours.gemm_memory", {**resident, "blas": mkl()}, flops),
        *(Leg(label, "with_numpy.gemm_memory", files, flops, unset=unset) for label, unset in numpy_environments().items()),
    ]
    if headline:
        # The same product with another kernel is in the other cases: here it would be another two minutes.
        legs = [leg for leg in legs if leg.name != OURS_MKL]
    legs = [*with_mkl(legs), *limit_legs(context, "read", "write")]
    names = {leg.name for leg in legs}
    rivals = tuple(numpy_environments())
    comparisons = [
        Comparison(OURS, (KERNEL,), "the same kernel in memory", target),
        Comparison(OURS_MKL, (KERNEL_MKL,), "the same kernel in memory, MKL brought along", target),
        Comparison(OURS, rivals, "numpy in memory", numpy_target, headline=bool(headline)),
        Comparison(OURS_MKL, rivals, "numpy in memory, MKL brought along", numpy_target),
        Comparison(OURS, (KERNEL_MKL,), "MKL in memory", headline=bool(headline)),
    ]
    read, written = gemm_bytes(m, n, k, memory)
    return Case(
        name,
        title,
        "GFLOP/s",
        legs,
        [entry for entry in comparisons if names >= {entry.ours, *entry.rivals}],
        Bound(flops, read, written, KERNEL, bytes_at_most, GEMM_BOUND, headline=bool(headline)),
        [a, b, limit_file(context)],
        notes=(*steering_notes(), *(() if KERNEL_MKL in names else (NOTHING_WITHOUT_MKL,)), KERNEL_NOTE),
        headline=headline,
    )


def gemm_512(context: Context) -> Case:
    title = "gemm f32 16384^3, 3 GiB of matrices, budget 512 MiB"
    sides = (SIDE, SIDE, SIDE)
    return gemm_case(
        context,
        "gemm-512MiB",
        sides,
        512 * MIB,
        title,
        target=0.95,
        numpy_target=1.0,
        bytes_at_most=1.35,
        headline="matrix product of 16,384 x 16,384, 3 GiB from and to files within 512 MiB",
    )


def gemm_64(context: Context) -> Case:
    title = "gemm f32 16384^3, budget 64 MiB"
    return gemm_case(context, "gemm-64MiB", (SIDE, SIDE, SIDE), 64 * MIB, title, target=0.85)


def gemm_unaligned(context: Context) -> Case:
    title = "gemm f32 15001 x 14999 x 15013, files as numpy.save writes them, budget 512 MiB"
    sides = (15001, 14999, 15013)
    return gemm_case(context, "gemm-unaligned", sides, 512 * MIB, title, target=0.90, aligned=False)


def gemm_limit(context: Context) -> Case:
    n, memory = context.side(SIDE), context.budget(512 * MIB)
    a = DataFile(context.path(f"a-{n}x{n}-1.npy"), n, n, seed=1)
    b = DataFile(context.path(f"b-{n}x{n}-1.npy"), n, n, seed=2)
    out = context.path("c.npy")
    files = {"a": a.path, "b": b.path, "out": out}
    flops = 2.0 * n**3
    chunks = [max(16, round(side * context.scale)) for side in (1024, 2048)]

    def leg(name: str, function: str, spec: dict[str, Any], environment: dict[str, str] | None = None) -> Leg:
        return Leg(
            name,
            function,
            {**files, **spec},
            flops,
            (a.path, b.path),
            (out,),
            limited=True,
            timeout_s=RIVAL_TIMEOUT_S,
            unset=() if function.startswith("ours") else steering(),
            environment=environment or {},
        )

    one_thread = {"OPENBLAS_NUM_THREADS": "1"}
    dask = [leg(f"dask.array, chunks of {chunk}", "with_dask.gemm", {"chunk": chunk}, one_thread) for chunk in chunks]
    paged = leg("numpy.memmap, paged by the system", "with_numpy.gemm_memmap", {})
    blocked = leg("numpy.memmap, blocked by hand", "with_numpy.gemm_blocks", {"budget_bytes": memory})
    ours = leg(OURS, "ours.gemm", {"memory": memory, "scratch": context.path("scratch")})
    kernel = Leg(
        KERNEL,
        "ours.gemm_memory",
        {"a": a.path, "b": b.path, "memory": RESIDENT_BYTES, "scratch": context.path("scratch")},
        flops,
    )
    read, written = gemm_bytes(n, n, n, memory)
    return Case(
        "gemm-limit",
        "gemm f32 16384^3 in a process that may use 512 MiB + 64 MiB + interpreter and imports",
        "GFLOP/s",
        [ours, *dask, paged, blocked, kernel, *limit_legs(context, "read", "write")],
        [
            Comparison(OURS, (*(entry.name for entry in dask), paged.name), "dask.array and numpy.memmap under that limit", 3.0),
            Comparison(OURS, (blocked.name,), "numpy.memmap blocked by hand under that limit"),
        ],
        Bound(flops, read, written, KERNEL, 1.35, GEMM_BOUND),
        [a, b, limit_file(context)],
        limit_over_bytes=memory,
        needs=("dask_ml",),
        notes=("Rivals run with OpenBLAS unsteered; the kernel in memory runs without the limit.", *steering_notes()),
    )


def syrk(context: Context) -> Case:
    n, memory = context.side(SIDE), context.budget(512 * MIB)
    a = DataFile(context.path(f"a-{n}x{n}-1.npy"), n, n, seed=1)
    out = context.path("c.npy")
    spec: dict[str, Any] = {"a": a.path, "b": a.path, "out": out, "memory": memory, "scratch": context.path("scratch")}
    symmetric = Leg("outcore syrk", "ours.gemm", {**spec, "syrk": True}, cold=(a.path,), outputs=(out,))
    general = Leg("outcore gemm of A and its transpose", "ours.gemm", {**spec, "by_itself": True}, cold=(a.path,), outputs=(out,))
    resident = {"a": a.path, "b": a.path, "memory": RESIDENT_BYTES, "scratch": context.path("scratch")}
    kernel = Leg("gemm kernel in memory", "ours.gemm_memory", resident, 2.0 * n**3)
    read, written = syrk_bytes(n, n, memory)
    return Case(
        "syrk",
        "syrk f32 A A^T of 16384 x 16384, budget 512 MiB",
        "s",
        [symmetric, general, kernel, *limit_legs(context, "read", "write")],
        [Comparison(symmetric.name, (general.name,), "our gemm for the same product", 1.6)],
        Bound(float(n) * (n + 1) * n, read, written, kernel.name, None, SYRK_BOUND),
        [a, limit_file(context)],
    )


BUILDERS: dict[str, Callable[[Context], Case]] = {
    "gemm-512MiB": gemm_512,
    "gemm-64MiB": gemm_64,
    "gemm-unaligned": gemm_unaligned,
    "gemm-limit": gemm_limit,
    "syrk": syrk,
}
