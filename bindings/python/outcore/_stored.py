"""The base of dense and sparse matrices on SSD."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeAlias, TypeVar

import numpy as np

from ._dtypes import dtype_of
from ._session import Session
from ._units import show_path
from .errors import ClosedError

if TYPE_CHECKING:
    from typing_extensions import Self

    from . import _native

__all__ = ["DType", "Stored"]

DType: TypeAlias = np.dtype[Any]

Native = TypeVar("Native", "_native.Matrix", "_native.SparseMatrix")


class Stored(ABC, Generic[Native]):
    """A matrix, or a view of one, with its session and its path; opened again in a forked child on first use."""

    __slots__ = ("_dtype", "_matrix", "_process", "_session")

    # NumPy leaves `x @ a` to this class.
    __array_ufunc__ = None

    _NOUN: ClassVar[str]

    def __init__(self, session: Session, matrix: Native) -> None:
        self._session = session._whole
        self._matrix: Native | None = matrix
        self._dtype: DType = dtype_of(matrix.dtype)
        self._process = os.getpid()

    @property
    @abstractmethod
    def _file(self) -> str | None:
        """The path, if it has one."""

    @abstractmethod
    def _reopened(self) -> Native:
        """The same view, of its file opened again."""

    @property
    def _inner(self) -> Native:
        """The matrix, opened again in a forked child."""
        if self._session._is_closed:
            self._matrix = None
        if self._matrix is None:
            raise ClosedError(f"the {self._NOUN} is closed")
        if self._process != os.getpid():
            if self._file is None:
                raise ClosedError(
                    f"an unnamed {self._NOUN} belongs to the process that made it; give it a path to use it in a forked child"
                )
            self._matrix = self._reopened()
            self._process = os.getpid()
        return self._matrix

    @property
    def _is_open(self) -> bool:
        """Whether it can be asked about without opening a file again."""
        return self._process == os.getpid()

    @property
    def dtype(self) -> DType:
        """The type of the elements."""
        return self._dtype

    @property
    def path(self) -> Path | None:
        """Where it is; `None` for an unnamed result."""
        return None if self._file is None else Path(self._file)

    @property
    def session(self) -> Session:
        """The session whose memory operations on it use."""
        return self._session

    @property
    def _where(self) -> str:
        return show_path(self._file)

    def close(self) -> None:
        """Lets go of the file; other views keep it. Using it afterwards raises ClosedError."""
        self._matrix = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _refuse_pickling(self) -> None:
        if self._file is None:
            raise TypeError(f"an unnamed {self._NOUN} cannot be pickled: it is removed with this process; give it a path first")


def absolute(path: Any) -> str | None:
    """Of what a computation made: nothing where it is unnamed."""
    return None if path is None else os.path.abspath(path)
