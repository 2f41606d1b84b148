"""Matrices in CSR as folders, written once from the first row to the last."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO

from harness.data import npy_header, settle


@contextmanager
def writing(folder: Path, shape: tuple[int, int], nonzeros: int) -> Iterator[dict[str, IO[bytes]]]:
    """Files of `indptr` (int64), `indices` (int32) and `data` (float32) in a folder, to write the elements to."""
    arrays = {"indptr": ("<i8", shape[0] + 1), "indices": ("<i4", nonzeros), "data": ("<f4", nonzeros)}
    with ExitStack() as stack:
        outs = {name: stack.enter_context(open(folder / f"{name}.npy", "wb")) for name in arrays}
        for name, (kind, length) in arrays.items():
            outs[name].write(npy_header(kind, (length,), 4096))
        yield outs
        for out in outs.values():
            settle(out)
    told = {"format": "csr", "shape": list(shape), "nonzeros": nonzeros, "dtype": "float32"}
    (folder / "matrix.json").write_text(json.dumps(told) + "\n")
