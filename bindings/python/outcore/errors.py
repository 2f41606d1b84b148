"""Exceptions: one class for each action that a caller could take, derived from the builtin that one would catch.

All derive from `OutcoreError`. The fields of an error are attributes; every message names its object.
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
    """Any error of this library. Where ranks compute together (`comm=`), `rank` says which of them failed."""

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
        Bytes that would be sufficient, bytes not reserved by others, bytes of the whole budget.
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
    """`object` is intact, but of an unsupported or unexpected kind."""

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
    """The path exists, but is not a regular file."""

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
    """The disk is full, or this user's quota is exhausted.

    If the length of the file is known, this is found before the first byte is written. `needed` bytes did not fit, and `free`
    bytes are left; either is None if unknown.
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
    """A write in place was interrupted, so the content is partly old and partly new; or a stream is incomplete.

    `outcore.open(path, interrupted=True)` opens it nevertheless. A complete write to it, or a new file of that name, clears the
    mark. Another program that rewrites the file leaves the mark on it: `outcore.accept(path)` clears it.
    """

    _errno = _errno.EIO


class ExistsError(_FileError, FileExistsError):
    """The name exists, or another writer is about to use it; or it is a folder with files that its replacement does not have."""

    _errno = _errno.EEXIST


class TmpfsScratchError(OutcoreError, ValueError):
    """The scratch folder is in memory, which defeats its purpose."""

    object: str


class FileError(_FileError):
    """Any other failure of the system to open, create, lock or name a file."""


class DeviceError(_FileError):
    """The device failed under a file; the message names operation, offset and length."""


class BlasError(OutcoreError, OSError):
    """A BLAS library that cannot be used."""


class LentError(OutcoreError, BufferError):
    """All memory of a stream is lent: drop blocks and arrays made of them, or give the stream more memory."""


class CancelledError(OutcoreError, RuntimeError):
    """The computation was cancelled."""


class ClosedError(OutcoreError, ValueError):
    """The array is closed, or belongs to the parent of this forked process and has no path to reopen."""


class FailedError(OutcoreError, RuntimeError):
    """A computation failed."""
