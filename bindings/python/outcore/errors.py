"""What can go wrong: one class for each thing that a caller could do differently, under the builtin that one would catch.

All derive from `OutcoreError`. The fields of an error are attributes; every message names the object that it is about.
"""

from __future__ import annotations

import errno as _errno
from typing import Any

__all__ = [
    "ArgumentError",
    "BadLineError",
    "BlasError",
    "CancelledError",
    "ClosedError",
    "CorruptError",
    "DTypeError",
    "DeniedError",
    "DeviceError",
    "ExistsError",
    "FailedError",
    "FileError",
    "FileTooLargeError",
    "InterruptedWriteError",
    "LentError",
    "LockedError",
    "MissingError",
    "NoMemoryError",
    "NoSpaceError",
    "NotAFileError",
    "NotAFolderError",
    "NotFiniteError",
    "ObjectNameError",
    "OutcoreError",
    "OverBudgetError",
    "ReadOnlyError",
    "ShapeError",
    "TmpfsScratchError",
    "TruncatedError",
    "UnsupportedError",
]


def __dir__() -> list[str]:
    return sorted(__all__)


class OutcoreError(Exception):
    """Any error of this library."""

    def __init__(self, message: str = "", **fields: Any) -> None:
        super().__init__(message)
        self.__dict__.update(fields)

    def __reduce__(self) -> tuple[Any, ...]:
        fields = dict(self.__dict__)
        if isinstance(self, OSError):
            fields["errno"] = self.errno
        return _again, (type(self), str(self), fields)


def _again(kind: type[OutcoreError], message: str, fields: dict[str, Any]) -> OutcoreError:
    return kind(message, **fields)


class _FileError(OutcoreError, OSError):
    """An error about a file: `object` is its path, also as `filename`; `errno` as the system counts."""

    object: str
    _errno: int | None = None

    def __init__(self, message: str = "", **fields: Any) -> None:
        number = fields.pop("errno", None)
        super().__init__(message, **fields)
        self.errno = number if number is not None else self._errno
        if "object" in fields:
            self.filename = fields["object"]

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


class ShapeError(OutcoreError, ValueError):
    """Shapes that do not fit together, or to the operation."""


class DTypeError(OutcoreError, TypeError):
    """Element types that differ, or that are neither float32 nor float64; sparse matrices for dense ones, or the other way."""


class ArgumentError(OutcoreError, ValueError):
    """An argument outside its range."""


class OverBudgetError(OutcoreError, MemoryError):
    """The memory budget is too small; nothing was read or written.

    The budget is that of the session; for a new session, what all sessions of the process may have together.

    Attributes
    ----------
    needed, available, budget : int
        Bytes that would be enough, bytes not reserved by others, bytes of the whole budget.
    """

    needed: int
    available: int
    budget: int


class NoMemoryError(OutcoreError, MemoryError):
    """The system has less memory than is `needed`, in bytes."""

    needed: int


class CorruptError(OutcoreError, ValueError):
    """The bytes of `object` do not follow its format, from byte `offset` on."""

    object: str
    offset: int


class TruncatedError(OutcoreError, ValueError):
    """`object` is shorter (`actual` bytes) than its header says (`expected` bytes)."""

    object: str
    expected: int
    actual: int


class BadLineError(OutcoreError, ValueError):
    """Line `line` of the text in `object` does not follow its format at byte `column`, both from 1, for this `reason`."""

    object: str
    line: int
    column: int
    reason: str


class UnsupportedError(OutcoreError, ValueError):
    """`object` is sound, but of a kind that is not read or computed with, or something else than it should be."""

    object: str


class ObjectNameError(OutcoreError, ValueError):
    """A path that cannot name a file."""

    object: str


class NotFiniteError(OutcoreError, ValueError):
    """A NaN or infinity where the result would be meaningless: in `object`, at `row` and `column` from 0."""

    object: str
    row: int
    column: int


class MissingError(_FileError, FileNotFoundError):
    """No such file or folder."""

    _errno = _errno.ENOENT


class NotAFileError(_FileError, IsADirectoryError):
    """There is something of that name, but no regular file."""

    _errno = _errno.EISDIR


class NotAFolderError(_FileError, NotADirectoryError):
    """A folder was needed."""

    _errno = _errno.ENOTDIR


class DeniedError(_FileError, PermissionError):
    """The permissions of the file or folder do not allow it."""

    _errno = _errno.EACCES


class ReadOnlyError(_FileError, PermissionError):
    """The file system is read-only."""

    _errno = _errno.EROFS


class NoSpaceError(_FileError):
    """The disk is full, or this user's quota of it is used up.

    Where it is known how long the file is going to be, this is found before the first byte is written. `needed` bytes did not
    fit, and `free` bytes are left; either is None where that is not known.
    """

    _errno = _errno.ENOSPC
    needed: int | None
    free: int | None


class FileTooLargeError(_FileError):
    """The file needs more bytes (`needed`) than a file may have; nothing was written.

    `limit` is what this process may give a file (`ulimit -f`), or None where it is the file system that has a limit.
    """

    _errno = _errno.EFBIG
    needed: int
    limit: int | None


class LockedError(_FileError, BlockingIOError):
    """Another writer, in this process or in another, holds the file."""

    _errno = _errno.EAGAIN


class InterruptedWriteError(_FileError):
    """A write in place did not finish, so the content is neither the old nor the new one; or a stream was not finished.

    `outcore.open(path, interrupted=True)` opens it all the same, and a write to it that ends makes it whole again; so does a new
    file of that name. Another program that rewrites the file leaves the mark on it: `outcore.accept(path)` takes it off.
    """

    _errno = _errno.EIO


class ExistsError(_FileError, FileExistsError):
    """The name is taken, or about to be by another writer; or it is that of a folder with more in it than would replace it."""

    _errno = _errno.EEXIST


class TmpfsScratchError(OutcoreError, ValueError):
    """The scratch folder lies in memory, where it would take what it is meant to save."""

    object: str


class FileError(_FileError):
    """Any other failure of the system to open, create, lock or name a file."""


class DeviceError(_FileError):
    """The device failed under a file; the message names operation, offset and length."""


class BlasError(OutcoreError, OSError):
    """A BLAS library that cannot be used."""


class LentError(OutcoreError, BufferError):
    """All memory that a stream may have is in use by what it has lent: drop blocks, and what was made of them, or lend more."""


class CancelledError(OutcoreError, RuntimeError):
    """The computation was cancelled."""


class ClosedError(OutcoreError, ValueError):
    """The array is closed, or belongs to the process that this one was forked from and has no path to open again."""


class FailedError(OutcoreError, RuntimeError):
    """A computation failed."""
