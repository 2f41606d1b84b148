"""MKL's inspector-executor sparse BLAS, called as its C interface is: hints and `mkl_sparse_optimize` before the clock starts."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np

from legs import sparse
from legs.measure import timed

Spec = dict[str, Any]
Result = dict[str, Any]

NON_TRANSPOSE, GENERAL, ROW_MAJOR, ZERO_BASED = 10, 20, 101, 0
EXPECTED_CALLS = 1000
"""A hint that preparing is worth while."""
MOST_ELEMENTS = (1 << 31) - 1
"""A larger result is made by parts of rows: the interface counts in 32 bits."""


class Description(ctypes.Structure):
    _fields_ = (("type", ctypes.c_int), ("mode", ctypes.c_int), ("diag", ctypes.c_int))


GENERAL_MATRIX = Description(GENERAL, 0, 0)


def nothing(spec: Spec) -> Result:
    return {"seconds": [0.0]}


def csrmm_memory(spec: Spec) -> Result:
    library = ctypes.CDLL(spec["library"])
    a, b = sparse.load(spec["a"]), np.load(spec["b"])
    c = np.empty((a.shape[0], b.shape[1]), np.float32)
    c.fill(0)
    height = max(1, MOST_ELEMENTS // b.shape[1])
    parts = [slice(start, min(start + height, len(c))) for start in range(0, len(c), height)]
    with ExitStack() as stack:
        started = time.perf_counter()
        handles = [stack.enter_context(prepared(library, a, part, b.shape[1])) for part in parts]
        prepare_s = time.perf_counter() - started

        def call() -> None:
            for part, handle in zip(parts, handles, strict=True):
                multiply(library, handle, b, c[part])

        found = timed(call, spec)
    return {**found, "prepare_s": prepare_s, "error": sparse.product_error(c, spec["a"], b)}


@contextmanager
def prepared(library: Any, a: Any, rows: slice, columns: int) -> Iterator[ctypes.c_void_p]:
    """A handle over some rows of `a`, where they lie. Offsets begin at zero: MKL's preparation never ends on others."""
    handle = ctypes.c_void_p()
    first = a.indptr[rows.start]
    offsets = a.indptr[rows.start : rows.stop + 1] - first
    shape = (rows.stop - rows.start, a.shape[1])
    arrays = (address(offsets), address(offsets[1:]), address(a.indices[first:]), address(a.data[first:]))
    check(library.mkl_sparse_s_create_csr(ctypes.byref(handle), ZERO_BASED, *shape, *arrays))
    hint = (NON_TRANSPOSE, GENERAL_MATRIX, ROW_MAJOR, columns, EXPECTED_CALLS)
    check(library.mkl_sparse_set_mm_hint(handle, *hint))
    check(library.mkl_sparse_optimize(handle))
    yield handle
    check(library.mkl_sparse_destroy(handle))


def multiply(library: Any, handle: ctypes.c_void_p, b: Any, c: Any) -> None:
    one, zero, width = ctypes.c_float(1.0), ctypes.c_float(0.0), b.shape[1]
    operands = (ROW_MAJOR, address(b), width, width, zero, address(c), width)
    check(library.mkl_sparse_s_mm(NON_TRANSPOSE, one, handle, GENERAL_MATRIX, *operands))


def address(array: Any) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)


def check(status: int) -> None:
    if status != 0:
        raise SystemExit(f"MKL answered with status {status}")
