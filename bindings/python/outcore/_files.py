"""Foreign files: opened only if they are regular files, read through the engine or without leaving pages in the page cache, and
recognized by their first bytes.

Opening a pipe would block and reading a device may never end; both are refused before they are opened. The native half checks
the files that it opens in the same way.
"""

from __future__ import annotations

import ast
import errno
import io
import os
import stat
from typing import TYPE_CHECKING, Any

import numpy as np

from . import _native
from ._dtypes import ML_DTYPES, dtype_of
from ._settings import Order
from .errors import DeniedError, FileError, MissingError, NotAFileError, NotAFolderError, OutcoreError

if TYPE_CHECKING:
    from ._session import Session

__all__ = [
    "EngineFile",
    "compression_of",
    "open_regular",
    "read_regular",
    "refusal",
    "regular",
    "seems",
    "text_of",
    "void_in_npy",
]

KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a block device",
}

NPY_MARK = b"\x93NUMPY"
NPY_HEADER_BYTES = 1 << 20

COMPRESSIONS = {".gz": "gzip", ".bz2": "bzip2", ".xz": "xz", ".zst": "zstd", ".lz4": "lz4"}
"""By the endings of names, the programs that unpack."""

MARKS: tuple[tuple[int, bytes, str], ...] = (
    (0, b"\x1f\x8b", "data compressed by gzip"),
    (0, b"\x28\xb5\x2f\xfd", "data compressed by zstd"),
    (0, b"\xfd7zXZ\0", "data compressed by xz"),
    (0, b"BZh", "data compressed by bzip2"),
    (0, b"\x04\x22\x4d\x18", "data compressed by lz4"),
    (0, b"PAR1", "a Parquet file"),
    (0, b"PARE", "an encrypted Parquet file"),
    (0, b"\x93NUMPY", "a .npy file"),
    (0, b"PK\x03\x04", "a zip archive, as .npz files are"),
    (0, b"PK\x05\x06", "an empty zip archive"),
    (0, b"ARROW1", "an Arrow file"),
    (0, b"ORC", "an ORC file"),
    (0, b"\x89HDF\r\n", "an HDF5 file"),
    (0, b"SQLite format 3", "an SQLite database"),
    (0, b"\x89PNG", "a PNG picture"),
    (0, b"\xff\xd8\xff", "a JPEG picture"),
    (0, b"GIF8", "a GIF picture"),
    (0, b"%PDF", "a PDF document"),
    (0, b"version https://git-lfs", "a pointer of Git LFS, whose data was not fetched (git lfs pull)"),
    (257, b"ustar", "a tar archive"),
    (0, b"\x80\x02", "a pickle"),
    (0, b"\x80\x04", "a pickle"),
    (0, b"\x80\x05", "a pickle"),
)
"""Where in a file, what is there, and what the file then is."""

HEAD_BYTES = 512


def refusal(error: OSError, path: str) -> OutcoreError:
    """An error of the system about a path, as an error of this library that names the path."""
    kinds = {
        errno.ENOENT: MissingError,
        errno.EACCES: DeniedError,
        errno.EPERM: DeniedError,
        errno.ENOTDIR: NotAFolderError,
    }
    if error.errno == errno.ENOENT and os.path.islink(path):
        return MissingError(f"{path}: a link to {os.readlink(path)}, which is not there", object=path)
    if error.errno == errno.ELOOP:
        return FileError(f"{path}: a link that leads to itself", object=path, errno=errno.ELOOP)
    kind = kinds.get(error.errno or 0, FileError)
    return kind(f"{path}: {error.strerror or error}", object=path, errno=error.errno)


def regular(path: str) -> os.stat_result:
    """The status of a regular file; links are followed.

    Raises
    ------
    MissingError, NotAFileError (a folder, pipe, socket or device), DeniedError, FileError.
    """
    try:
        found = os.stat(path)
    except OSError as error:
        raise refusal(error, path) from error
    _check(path, found)
    return found


def _check(path: str, found: os.stat_result) -> None:
    if not stat.S_ISREG(found.st_mode):
        kind = KINDS.get(stat.S_IFMT(found.st_mode), "something else")
        raise NotAFileError(f"{path}: {kind}, not a file", object=path)


def open_regular(path: str) -> io.FileIO:
    """Opens a regular file for reading by Python.

    Raises
    ------
    As `regular`.
    """
    regular(path)
    try:
        # The file may have been replaced by a pipe since the check, and opening a pipe would block.
        opened = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise refusal(error, path) from error
    file = io.FileIO(opened, "rb")
    try:
        _check(path, os.fstat(opened))
    except BaseException:
        file.close()
        raise
    return file


def read_regular(path: str) -> bytes:
    """All bytes of a regular file, leaving no pages in the page cache.

    Raises
    ------
    As `regular`.
    """
    with open_regular(path) as file:
        try:
            data = file.readall()
        except OSError as error:
            raise refusal(error, path) from error
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return data


class EngineFile(io.RawIOBase):
    """A regular file read through the engine: within the budget, and without the page cache.

    Raises
    ------
    MissingError, NotAFileError, DeniedError.
    """

    def __init__(self, session: Session, path: str) -> None:
        super().__init__()
        self.path = path
        self.reader = _native.FileReader(session._inner, path)
        self.size = self.reader.nbytes()
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self.size}[whence]
        if at < 0:
            raise ValueError(f"a place of {at} in a file")
        self._at = at
        return at

    def readinto(self, buffer: Any) -> int:
        into = np.frombuffer(buffer, np.uint8)[: max(0, self.size - self._at)]
        if len(into):
            self.reader.read(np.array([self._at], np.uint64), len(into), into)
            self._at += len(into)
        return len(into)

    def head(self) -> bytes:
        """The first bytes, by which a file is recognized."""
        at, self._at = self._at, 0
        try:
            return self.read(HEAD_BYTES) or b""
        finally:
            self._at = at


def seems(head: bytes) -> str:
    """The kind of a file, by its first bytes."""
    if not head:
        return "empty"
    for at, mark, kind in MARKS:
        if head[at : at + len(mark)] == mark:
            return kind
    if not any(head):
        return "zeros"
    return "text" if _is_text(head) else "something else"


def _is_text(head: bytes) -> bool:
    try:
        text = head.decode()
    except UnicodeDecodeError as error:
        # A character may be cut off at the end.
        if error.start < len(head) - 3 or error.start == 0:
            return False
        text = head[: error.start].decode()
    return all(character.isprintable() or character in "\t\n\r\f" for character in text)


def compression_of(path: str) -> tuple[str, str] | None:
    """Splits a file name into the name without compression and the kind of compression."""
    stem, ending = os.path.splitext(path)
    return (stem, COMPRESSIONS[ending.lower()]) if ending.lower() in COMPRESSIONS else None


def text_of(error: BaseException, most: int = 240) -> str:
    """The message of an error of another library, in one line that fits a screen."""
    words = " ".join(str(error).split()) or type(error).__name__
    return words if len(words) <= most else f"{words[:most]}..."


def void_in_npy(path: str, name: str) -> tuple[tuple[int, ...], Order, int] | None:
    """Shape, order and offset of a `.npy` file whose elements NumPy has saved as bytes of the size of a type that it does not
    have; nothing of other files."""
    if name not in ML_DTYPES or not os.path.isfile(path):
        return None
    with open_regular(path) as file:
        head = file.read(12)
        if not head.startswith(NPY_MARK) or len(head) < 12:
            return None
        start, width = (10, 2) if head[6] == 1 else (12, 4)
        length = int.from_bytes(head[8 : 8 + width], "little")
        if length > NPY_HEADER_BYTES:
            return None
        file.seek(start)
        text = file.read(length)
    try:
        facts = ast.literal_eval(text.decode("latin-1"))
        descr, shape = str(facts["descr"]), tuple(int(size) for size in facts["shape"])
    except (ValueError, SyntaxError, KeyError, TypeError):
        return None
    if descr[2:] != str(dtype_of(name).itemsize) or descr[1:2] not in ("V", "f"):
        return None
    return shape, "F" if facts.get("fortran_order") else "C", start + length
