"""Arrays that grow by rows, crash-safe.

New rows go behind the last ones, where nothing reads them. They are part of the array once the number of rows in the
header, which lies in one sector, has been written, after they are durable. A process that dies before leaves the array as it was.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np

from ._array import Array, numbers
from ._dtypes import type_name
from ._session import Session
from ._settings import PathLike, full_path
from .errors import ClosedError, DeniedError, LockedError, NoSpaceError, ShapeError, UnsupportedError

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["Appender"]

HEAD_BYTES = 4096
"""Of the file's beginning, which hold the number of rows."""

PART_BYTES = 16 << 20
"""Written at a time; the system's cache holds no more that is not durable yet."""

SHAPE = re.compile(rb"'shape':\s*\(([^)]*)\)")


class Appender:
    """Appends rows to a `.npy` file; made by `outcore.append`.

    Examples
    --------
    >>> with outcore.append("x.npy") as w:
    ...     for block in blocks:
    ...         w.write(block)
    """

    def __init__(self, session: Session, path: PathLike) -> None:
        self._session, self._path = session, full_path(path)
        self._file: int | None = None
        self._is_open = True
        self._is_new = False
        self._shape: tuple[int, ...] = ()
        if os.path.exists(self._path):
            self._begin()
        elif (store := next((str(path) for path in Path(self._path).parents if path.is_file()), None)) is not None:
            raise UnsupportedError(f"{self._path}: rows are appended to files, and {store} is a store", object=self._path)

    def _begin(self) -> None:
        """Locks the file and finds its end."""
        try:
            self._file = os.open(self._path, os.O_RDWR | os.O_CLOEXEC)
        except PermissionError as error:
            raise DeniedError(f"{self._path}: {error.strerror}", object=self._path, errno=error.errno) from None
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._release()
            raise LockedError(f"{self._path} is being written", object=self._path) from None
        try:
            self._look()
        except BaseException:
            self._release()
            raise

    def _look(self) -> None:
        # What died half way in an assignment is refused here too.
        with self._session.open(self._path) as a:
            if not isinstance(a, Array) or (a.order != "C" and a.ndim > 1 and a._width > 1):
                raise UnsupportedError(f"{self._path}: rows are appended to arrays by rows (order 'C')", object=self._path)
            self._shape, self._dtype = a.shape, a.dtype
        assert self._file is not None
        self._head = os.pread(self._file, HEAD_BYTES, 0)
        if not self._head.startswith(b"\x93NUMPY") or not SHAPE.search(self._head):
            raise UnsupportedError(f"{self._path}: rows are appended to .npy files", object=self._path)
        start, width = (10, 2) if self._head[6] == 1 else (12, 4)
        self._text_end = start + int.from_bytes(self._head[8 : 8 + width], "little")
        self._row_bytes = int(np.prod(self._shape[1:], dtype=object)) * self._dtype.itemsize
        self._written = self._shape[0]
        self._end = self._text_end + self._written * self._row_bytes

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the array with all rows that have been written; `flush` makes them part of it."""
        return self._shape if self._file is None else (self._written, *self._shape[1:])

    def write(self, block: Any) -> None:
        """Appends rows.

        Parameters
        ----------
        block : array_like of shape (n, ...), or (...) for one row
            Converted to the type of the array. The first block of a new file says of which type and shape rows are.

        Raises
        ------
        ShapeError, DTypeError
            Before anything is written. NoSpaceError, which leaves out all rows since the last `flush`. ClosedError.
        """
        if not self._is_open:
            raise ClosedError(f"{self._path}: the appender is closed")
        values = numbers(block, "the block", into=None if self._file is None else self._dtype)
        if self._file is None:
            self._create(values)
        if values.shape == self._shape[1:] and values.ndim:
            values = values[None]
        if values.shape[1:] != self._shape[1:] or values.ndim != len(self._shape):
            raise ShapeError(f"rows of shape {self._shape[1:]} are appended to {self._path}, not blocks of shape {values.shape}")
        step = max(1, PART_BYTES // max(1, self._row_bytes))
        for start in range(0, len(values), step):
            part = np.require(values[start : start + step], self._dtype, ["C"])
            self._put(memoryview(part.tobytes()))
            self._written += len(part)

    def _create(self, values: Any) -> None:
        if values.ndim == 0:
            raise ShapeError("the first block of a new array must be rows, not a number")
        self._session.create(self._path, (0, *values.shape[1:]), type_name(values.dtype)).close()
        self._is_new = True
        self._begin()

    def _put(self, data: memoryview) -> None:
        assert self._file is not None
        try:
            while data:
                count = os.pwrite(self._file, data, self._end)
                self._end += count
                data = data[count:]
            # Bounds what the cache holds, and finds a full disk here.
            os.fdatasync(self._file)
        except OSError as error:
            self._undo()
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise NoSpaceError(f"{self._path}: {error.strerror}", object=self._path, errno=error.errno) from None
            raise

    def flush(self) -> None:
        """Makes all rows that have been written part of the array, durably.

        Raises
        ------
        UnsupportedError
            Where the header, of another program, has no room for the digits.
        """
        if self._file is None or self._written == self._shape[0]:
            return
        shape = (self._written, *self._shape[1:])
        text = "(" + ", ".join(str(size) for size in shape) + ("," if len(shape) == 1 else "") + ")"
        found = SHAPE.search(self._head)
        assert found is not None, "looked for before"
        changed = (
            self._head[: found.start()] + f"'shape': {text}".encode() + self._head[found.end() : self._text_end].rstrip(b" \n")
        )
        if len(changed) >= self._text_end:
            self._undo()
            raise UnsupportedError(
                f"{self._path}: its header has no room for a shape of {shape}; outcore.convert makes a copy that has",
                object=self._path,
            )
        head = changed.ljust(self._text_end - 1) + b"\n"
        os.fdatasync(self._file)
        # All that changes lies in one sector: it is written whole or not at all.
        os.pwrite(self._file, head[:512] if self._text_end > 512 else head, 0)
        os.fdatasync(self._file)
        self._is_new = False
        self._head, self._shape = head + self._head[self._text_end :], shape

    def _undo(self) -> None:
        """Leaves out what was written since the last flush; a new file, if there was none."""
        if self._file is not None and self._is_new:
            with contextlib.suppress(OSError):
                os.unlink(self._path)
            self._release()
            self._shape, self._is_new = (), False
        elif self._file is not None:
            self._written = self._shape[0]
            self._end = self._text_end + self._written * self._row_bytes
            with contextlib.suppress(OSError):
                os.ftruncate(self._file, self._end)

    def close(self) -> None:
        """Ends with `flush`."""
        if not self._is_open:
            return
        try:
            self.flush()
        finally:
            self._is_open = False
            self._release()

    def _release(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if kind is not None:
            self._undo()
            self._is_open = False
            self._release()
        else:
            self.close()
