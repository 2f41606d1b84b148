"""The base of sources: samples in an order, and errors that name the file and the position in it."""

from __future__ import annotations

import errno
import hashlib
import itertools
import lzma
import tokenize
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from .._files import text_of
from ..errors import ArgumentError, CorruptError, OutcoreError, UnsupportedError
from .dataset import Dataset
from .fields import Name, Sample
from .shards import Shards

if TYPE_CHECKING:
    from typing_extensions import Self

Named = tuple[Name | None, Sample]

Order = Sequence[int] | npt.NDArray[np.int64]
"""Numbers of samples."""

Part = tuple[int, Iterator[tuple[float, Named]]]
"""How many samples come next in a file, and these, each with how much of the file has been read. Nothing of a part is read before
its first sample is asked for, so that passing over it costs no more than finding the next one."""


@dataclass
class Source:
    """Samples in an order: `samples` has those from a position on. `load`, where a source has it, has the one with a number, and
    `rows` those with some numbers, many of them read by one call."""

    samples: Callable[[int], Iterator[Named]] | None = None
    load: Callable[[int], Named] | None = None
    rows: Callable[[Order], Iterator[Named]] | None = None
    count: int | None = None
    fields: Mapping[str, Any] | None = None
    threads: int = 1
    fraction: Callable[[], float] | None = None
    """How far it is, where the number of its samples is not known."""
    where: Callable[[], str] | None = None
    """Where the last sample was read, for what is wrong with it."""
    classes: Sequence[str] | None = None
    """The names of the numbers of `label`."""
    dataset: Dataset | None = None
    """Of outcore's own, which is copied."""
    nbytes: int | None = None
    """Bytes that its samples take, where that is known beforehand."""
    shards: Shards | None = None
    """That the native reader reads."""
    about: str = ""
    """What tells it from other sources, and files from what they were before they changed."""


def one_by_one(files: list[str], read: Callable[[str], Iterator[Part]], unit: str = "sample") -> Source:
    """Samples of files, one file after the other: reading several in threads at once only makes them wait for Python's lock."""
    place, where = 0.0, ""

    def samples(start: int) -> Iterator[Named]:
        nonlocal place, where
        for number, path in enumerate(files):
            before = 0
            for count, part in read(path):
                if count > start:
                    for index, (within, named) in enumerate(itertools.islice(part, start, None), before + start):
                        place, where = (number + within) / len(files), f"{path}, {unit} {index}"
                        yield named
                before += count
                start = max(0, start - count)

    return Source(samples=samples, fraction=lambda: place, where=lambda: where)


def listed(names: Iterable[object], most: int = 8) -> str:
    """A few of many names, in one line."""
    known = list(map(str, names))
    shown = ", ".join(name if len(name) <= 40 else f"{name[:40]}..." for name in known[:most])
    return shown if len(known) <= most else f"{shown} and {len(known) - most} more"


def digest(kind: str, told: object) -> str:
    return f"{kind} {hashlib.blake2b(repr(told).encode(), digest_size=16).hexdigest()}"


DAMAGED = (
    *(ValueError, TypeError, SyntaxError, LookupError, OverflowError, RuntimeError, EOFError, OSError),
    *(tokenize.TokenError, zipfile.BadZipFile, zlib.error, lzma.LZMAError),
)
"""What NumPy, pyarrow and `zipfile` say of bytes that they cannot read."""


@dataclass
class Told:
    """What is wrong with a file is told with its name, and where in it that is."""

    path: str
    where: str = ""
    at: int = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        place = f"{self.path}: {self.where}" if self.where else self.path
        if isinstance(error, ArgumentError):
            raise ArgumentError(f"{place}: {error}") from error
        if isinstance(error, NotImplementedError):
            raise UnsupportedError(f"{place}: {text_of(error)}", object=self.path) from error
        # Of what the system says, only a place before the first byte is the file's fault.
        is_of_system = isinstance(error, OSError) and error.errno not in (None, errno.EINVAL)
        if isinstance(error, DAMAGED) and not isinstance(error, OutcoreError) and not is_of_system:
            raise CorruptError(f"{place}: {text_of(error)}", object=self.path, offset=self.at) from error
