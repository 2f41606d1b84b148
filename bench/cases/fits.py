"""Data that fits in memory: numpy's home ground."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from cases.limits import limit_file, limit_legs
from cases.products import (
    GEMM_BOUND,
    KERNEL,
    NOTHING_WITHOUT_MKL,
    OURS,
    OURS_MKL,
    gemm_bytes,
    mkl,
    numpy_environments,
    steering,
    steering_notes,
    with_mkl,
)
from harness.model import GIB, Bound, Case, Comparison, Context, DataFile, Leg

SIDES = (512, 1024, 2048, 4096, 8192)
DISK_SIDES = (4096, 8192)
MEMORY = 4 * GIB
SECONDS = 10.0
"""Short calls settle in them."""


def square_files(context: Context, n: int) -> tuple[DataFile, DataFile]:
    a, b = (DataFile(context.path(f"{name}-{n}x{n}-1.npy"), n, n, seed=seed) for name, seed in (("a", 1), ("b", 2)))
    return a, b


def in_memory(context: Context, side: int) -> Case:
    n = context.side(side)
    a, b = square_files(context, n)
    spec: dict[str, Any] = {"a": a.path, "b": b.path, "short": True, "seconds": context.seconds(SECONDS)}
    ours = {**spec, "memory": MEMORY, "scratch": context.path("scratch")}
    flops = 2.0 * n**3
    legs = with_mkl(
        [
            Leg(OURS, "ours.gemm_memory", ours, flops),
            Leg(OURS_MKL, "ours.gemm_memory", {**ours, "blas": mkl()}, flops),
            *(Leg(label, "with_numpy.gemm_memory", spec, flops, unset=unset) for label, unset in numpy_environments().items()),
        ]
    )
    has_mkl = any(leg.name == OURS_MKL for leg in legs)
    rivals = tuple(numpy_environments())
    return Case(
        f"fits-{side}",
        f"gemm f32 {side}^3, NumPy arrays in and out",
        "GFLOP/s",
        legs,
        [
            Comparison(OURS, rivals, "numpy", 1.0),
            *([Comparison(OURS_MKL, rivals, "numpy, MKL brought along", 1.0)] if has_mkl else []),
        ],
        files=[a, b],
        notes=(*steering_notes(), *(() if has_mkl else (NOTHING_WITHOUT_MKL,))),
    )


def on_disk(context: Context, side: int) -> Case:
    n = context.side(side)
    a, b = square_files(context, n)
    out = context.path("c.npy")
    spec: dict[str, Any] = {"a": a.path, "b": b.path, "out": out, "seconds": context.seconds(SECONDS)}
    cold = (a.path, b.path)
    ours = Leg(OURS, "ours.gemm", {**spec, "memory": MEMORY, "scratch": context.path("scratch")}, cold=cold, outputs=(out,))
    rival = Leg("numpy load, matmul, save", "with_numpy.gemm_load_save", spec, cold=cold, outputs=(out,), unset=steering())
    durable = Leg(
        "numpy load, matmul, save, fsync", rival.function, {**spec, "durable": True}, cold=cold, outputs=(out,), unset=steering()
    )
    memory = {"a": a.path, "b": b.path, "short": True, "seconds": context.seconds(SECONDS), "memory": MEMORY}
    kernel = Leg(KERNEL, "ours.gemm_memory", {**memory, "scratch": context.path("scratch")}, 2.0 * n**3)
    read, written = gemm_bytes(n, n, n, MEMORY)
    return Case(
        f"fits-disk-{side}",
        f"gemm f32 {side}^3 from file to file, everything fits in memory",
        "s",
        [ours, rival, durable, kernel, *limit_legs(context, "read", "write")],
        [
            Comparison(ours.name, (durable.name,), "numpy, result on the device", 1.0),
            Comparison(ours.name, (rival.name,), "numpy, result left in the kernel's cache", 1.0),
        ],
        Bound(2.0 * n**3, read, written, KERNEL, None, GEMM_BOUND),
        [a, b, limit_file(context)],
        notes=(
            "outcore returns when the result is durable on the device; numpy runs with OpenBLAS unsteered.",
            *steering_notes(),
        ),
    )


BUILDERS: dict[str, Callable[[Context], Case]] = {
    **{f"fits-{side}": partial(in_memory, side=side) for side in SIDES},
    **{f"fits-disk-{side}": partial(on_disk, side=side) for side in DISK_SIDES},
}
