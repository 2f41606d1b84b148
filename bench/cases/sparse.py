"""Sparse matrices of a real corpus, larger than the budget: products, A^T (A X), the other format, LIBSVM text; and what fits."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from cases.limits import limit_file, limit_legs
from cases.products import NOTHING_WITHOUT_MKL, OURS, RESIDENT_BYTES, mkl
from harness.machine import memory_bytes
from harness.model import GIB, SMALLEST_BUDGET, Bound, Case, Comparison, Context, DataFile, Leg, LibsvmFile, Skip, SparseFolder

ROWS = 4_000_000
ENTRIES_PER_ROW = 51
"""1.2 times what the documents of the corpus have."""
WIDTHS = (64, 256, 1024)
HEADLINE_WIDTH = 256
GRAM_WIDTH = 16

TEXT_ROWS = 1_000_000
TEXT_BYTES_PER_ENTRY = 15.44
"""Measured; the text is a fraction of a percent longer or shorter."""

FITS_ROWS = 200_000
SECONDS = 10.0
FITS_WIDTHS = (8, 64)
FITS_BUDGET = 4 * GIB

OTHER_FILES_BYTES = 10 * GIB
"""Room for what earlier cases of an invocation leave on the disk."""
MEMORY_SHARE = 0.92
"""Of the machine's memory: a rival that wants more is left out, for the kernel would end some process to make room."""

KERNEL = "same kernel in memory"
SCIPY = "scipy in memory"
MKL = "MKL in memory, optimized for the product"

PRODUCT_BOUND = "A and B read once, C written once"


def corpus_folder(context: Context, rows: int = ROWS) -> SparseFolder:
    m = max(2000, context.count(rows))
    nonzeros = ENTRIES_PER_ROW * m
    return SparseFolder(context.path(f"corpus-{m}x{nonzeros}-seed4"), m, nonzeros, seed=4)


def dense(context: Context, width: int) -> DataFile:
    """As many rows as A has columns."""
    return DataFile(context.path(f"x-{SparseFolder.columns}x{width}.npy"), SparseFolder.columns, width, seed=5)


def narrowed(context: Context, width: int) -> int:
    """A smaller trial takes fewer columns too, so that B stays the share of the budget that it is at full size."""
    return max(8, context.count(width))


def quarter(size_bytes: float) -> int:
    return max(SMALLEST_BUDGET, int(size_bytes) // 4)


def csrmm(context: Context, width: int) -> Case:
    a, d = corpus_folder(context), narrowed(context, width)
    b, out = dense(context, d), context.path("c.npy")
    c_bytes, memory = 4096 + 4 * a.rows * d, quarter(a.nbytes)
    check_room(context, a.nbytes + b.nbytes + c_bytes)
    operands: dict[str, Any] = {"a": a.path, "b": b.path}
    ours: dict[str, Any] = {"scratch": context.path("scratch")}
    in_memory = [
        (a.nbytes + b.nbytes + c_bytes, Leg(SCIPY, "with_scipy.csrmm_memory", operands)),
        # To optimize may copy the matrix.
        (2 * a.nbytes + b.nbytes + c_bytes, Leg(MKL, "with_mkl.csrmm_memory", {**operands, "library": mkl()})),
    ]
    rivals = [leg for needed, leg in in_memory if leg.spec.get("library", "") is not None and fits(needed)]
    rows = min(a.rows, max(1, GIB // (4 * d)))
    kernel = Leg(KERNEL, "ours_sparse.csrmm_kernel", {**operands, **ours, "memory": RESIDENT_BYTES, "rows": rows})
    stored = Leg(
        OURS, "ours_sparse.csrmm", {**operands, **ours, "out": out, "memory": memory}, cold=(*a.parts, b.path), outputs=(out,)
    )
    return Case(
        f"csrmm-{width}",
        f"csrmm f32, {described(a)}, times {d} columns, budget {memory >> 20} MiB",
        "s",
        [stored, kernel, *rivals, *limit_legs(context, "read", "write")],
        [
            *([Comparison(OURS, tuple(leg.name for leg in rivals), "scipy and MKL in memory", 0.7)] if rivals else []),
            *(Comparison(OURS, (leg.name,), leg.name, headline=width == HEADLINE_WIDTH) for leg in rivals),
        ],
        Bound(2.0 * a.nonzeros * d, a.nbytes + b.nbytes, c_bytes, KERNEL, note=PRODUCT_BOUND, speed_at_least=0.9, headline=True),
        [a, b, limit_file(context)],
        notes=(
            *left_out([leg.name for needed, leg in in_memory if not fits(needed)]),
            *(() if mkl() else (NOTHING_WITHOUT_MKL,)),
            "0.7 of the faster rival or 0.9 of the device's limit, whichever binds. The kernel's speed is measured on the rows "
            "whose result is 1 GiB.",
        ),
        headline=(
            f"sparse matrix of {a.nonzeros / 1e6:.0f} M entries times {d} columns, within {memory >> 20} MiB"
            if width == HEADLINE_WIDTH
            else ""
        ),
    )


def gram(context: Context) -> Case:
    a, d = corpus_folder(context), narrowed(context, GRAM_WIDTH)
    x, out, memory = dense(context, d), context.path("y.npy"), quarter(a.nbytes)
    operands: dict[str, Any] = {"a": a.path, "b": x.path}
    ours: dict[str, Any] = {**operands, "scratch": context.path("scratch")}
    return Case(
        f"gram-{GRAM_WIDTH}",
        f"A^T (A X), {described(a)}, {d} columns, budget {memory >> 20} MiB",
        "s",
        [
            Leg(OURS, "ours_sparse.gram", {**ours, "out": out, "memory": memory}, cold=(*a.parts, x.path), outputs=(out,)),
            Leg(KERNEL, "ours_sparse.gram_memory", {**ours, "memory": RESIDENT_BYTES}),
            Leg(SCIPY, "with_scipy.gram_memory", operands),
            *limit_legs(context, "read", "write"),
        ],
        [Comparison(OURS, (SCIPY,), "scipy in memory, A.T @ (A @ X)", 1.0, headline=True)],
        Bound(
            4.0 * a.nonzeros * d,
            a.nbytes + x.nbytes,
            x.nbytes,
            KERNEL,
            note="A and X read once, Y written once",
            speed_at_least=0.9,
            headline=True,
        ),
        [a, x, limit_file(context)],
        notes=("1.0 of scipy or 0.9 of the device's limit, whichever binds.",),
        headline=f"A^T (A X) of a sparse matrix of {a.nonzeros / 1e6:.0f} M entries, {d} columns, within {memory >> 20} MiB",
    )


def csrcsc(context: Context) -> Case:
    a, out = corpus_folder(context), context.path("turned")
    memory, turned_bytes = quarter(a.nbytes), 8 * (a.columns + 1) + 8 * a.nonzeros
    check_room(context, a.nbytes + 3 * turned_bytes)
    spec: dict[str, Any] = {"a": a.path, "out": out, "memory": memory, "scratch": context.path("scratch")}
    return Case(
        "csrcsc",
        f"CSR to CSC, {described(a)}, budget {memory >> 20} MiB",
        "s",
        [
            Leg(OURS, "ours_sparse.csrcsc", spec, cold=a.parts, outputs=(out,)),
            Leg("scipy tocsc in memory", "with_scipy.tocsc_memory", {"a": a.path}),
            *limit_legs(context, "read", "write"),
        ],
        [Comparison(OURS, ("scipy tocsc in memory",), "scipy's tocsc, everything in memory", headline=True)],
        Bound(0.0, a.nbytes, turned_bytes, note="one read and one write", speed_at_least=0.5, headline=True),
        [a, limit_file(context)],
        headline=f"CSR to CSC, {a.nonzeros / 1e6:.0f} M entries within {memory >> 20} MiB",
    )


def libsvm(context: Context) -> Case:
    a = corpus_folder(context, TEXT_ROWS)
    text = LibsvmFile(f"{a.path}.libsvm", a)
    text_bytes, out = TEXT_BYTES_PER_ENTRY * a.nonzeros, context.path("imported")
    check_room(context, text_bytes + 3 * a.nbytes)
    spec: dict[str, Any] = {"source": text.path, "rows": a.rows, "nonzeros": a.nonzeros}
    ours: dict[str, Any] = {**spec, "out": out, "memory": quarter(text_bytes), "scratch": context.path("scratch")}
    alone = Leg(
        "scikit-learn load_svmlight_file", "with_sklearn.load_svmlight", {**spec, "columns": a.columns}, cold=(text.path,)
    )
    parts = context.path("imported-parts")
    together = Leg(
        "scikit-learn, a process a core, by ranges of bytes",
        "with_sklearn.load_svmlight_parts",
        {**spec, "columns": a.columns, "out": parts},
        cold=(text.path,),
        outputs=(parts,),
    )
    return Case(
        "libsvm",
        f"{text_bytes / GIB:.2f} GiB of LIBSVM text, {described(a)}, into a matrix, budget {ours['memory'] >> 20} MiB",
        "s",
        [
            Leg(OURS, "ours_sparse.libsvm", ours, cold=(text.path,), outputs=(out,)),
            alone,
            together,
            *limit_legs(context, "read", "write"),
        ],
        [
            Comparison(OURS, (alone.name,), "scikit-learn's load_svmlight_file, one thread, into memory", 5.0),
            Comparison(OURS, (together.name,), "scikit-learn's load_svmlight_file in a process a core", headline=True),
        ],
        Bound(0.0, text_bytes, a.nbytes, note="the text read once, the matrix written once", headline=True),
        [text, limit_file(context)],
        notes=(
            "The matrix of scikit-learn stays in memory or, by a process a core, in parts that are not joined, in the kernel's "
            "cache; ours is one matrix and durable on the device. Text and budget within one percent.",
        ),
        headline=f"import of {text_bytes / GIB:.1f} GiB of LIBSVM text within {ours['memory'] >> 20} MiB",
    )


def fits_memory(context: Context, width: int) -> Case:
    a = corpus_folder(context, FITS_ROWS)
    b = dense(context, width)
    spec: dict[str, Any] = {"a": a.path, "b": b.path, "short": True, "seconds": context.seconds(SECONDS)}
    ours = {**spec, "memory": FITS_BUDGET, "scratch": context.path("scratch")}
    mkl_leg = Leg(MKL, "with_mkl.csrmm_memory", {**spec, "library": mkl()})
    has_mkl = mkl() is not None
    return Case(
        f"csrmm-fits-{width}",
        f"csrmm f32, {described(a)}, times {width} columns, SciPy and NumPy in, NumPy out",
        "s",
        [
            Leg(OURS, "ours_sparse.csrmm_memory", ours),
            Leg(SCIPY, "with_scipy.csrmm_memory", spec),
            *([mkl_leg] if has_mkl else []),
        ],
        [Comparison(OURS, (SCIPY,), "scipy", 1.0), *([Comparison(OURS, (MKL,), "MKL")] if has_mkl else [])],
        files=[a, b],
        notes=() if has_mkl else (NOTHING_WITHOUT_MKL,),
    )


def fits_disk(context: Context) -> Case:
    a, width = corpus_folder(context, FITS_ROWS), FITS_WIDTHS[-1]
    b, out = dense(context, width), context.path("c.npy")
    spec: dict[str, Any] = {"a": a.path, "b": b.path, "out": out, "seconds": context.seconds(SECONDS)}
    ours: dict[str, Any] = {**spec, "memory": FITS_BUDGET, "scratch": context.path("scratch")}
    cold = (*a.parts, b.path)
    rival = Leg("scipy load, product, save", "with_scipy.csrmm_load_save", spec, cold=cold, outputs=(out,))
    durable = Leg("scipy load, product, save, fsync", rival.function, {**spec, "durable": True}, cold=cold, outputs=(out,))
    kernel_spec = {"a": a.path, "b": b.path, "rows": a.rows, "short": True, "seconds": spec["seconds"], "memory": FITS_BUDGET}
    kernel = Leg(KERNEL, "ours_sparse.csrmm_kernel", {**kernel_spec, "scratch": ours["scratch"]})
    limits = limit_legs(context, "read", "write")
    return Case(
        "csrmm-fits-disk",
        f"csrmm f32, {described(a)}, times {width} columns, from files to file, everything fits in memory",
        "s",
        [Leg(OURS, "ours_sparse.csrmm", ours, cold=cold, outputs=(out,)), rival, durable, kernel, *limits],
        [
            Comparison(OURS, (durable.name,), "scipy, result on the device", 1.0),
            Comparison(OURS, (rival.name,), "scipy, result left in the kernel's cache", 1.0),
        ],
        Bound(2.0 * a.nonzeros * width, a.nbytes + b.nbytes, 4096 + 4 * a.rows * width, KERNEL, note=PRODUCT_BOUND),
        [a, b, limit_file(context)],
        notes=("outcore returns when the result is durable on the device.",),
    )


def described(a: SparseFolder) -> str:
    return f"{a.rows:,} documents x {a.columns:,} words, {a.nonzeros / 1e6:,.4g} M entries"


def fits(needed_bytes: float) -> bool:
    return needed_bytes <= MEMORY_SHARE * memory_bytes()


def left_out(names: list[str]) -> tuple[str, ...]:
    return (f"Left out, for this machine has not the memory that they need: {', '.join(names)}.",) if names else ()


def check_room(context: Context, needed_bytes: float) -> None:
    others = OTHER_FILES_BYTES if context.scale >= 1 else GIB
    if needed_bytes + others > context.room_bytes:
        raise Skip(
            f"the disk has no room: {context.room_bytes >> 20} MiB are free, {int(needed_bytes + others) >> 20} are needed"
        )


BUILDERS: dict[str, Callable[[Context], Case]] = {
    **{f"csrmm-{width}": partial(csrmm, width=width) for width in WIDTHS},
    f"gram-{GRAM_WIDTH}": gram,
    "csrcsc": csrcsc,
    "libsvm": libsvm,
    **{f"csrmm-fits-{width}": partial(fits_memory, width=width) for width in FITS_WIDTHS},
    "csrmm-fits-disk": fits_disk,
}
