"""What every source of samples is: samples in an order, and errors that name the file and the place in it."""

from __future__ import annotations

import errno
import hashlib
import itertools
import lzma
import tokenize
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any

from ..errors import ArgumentError, CorruptError, OutcoreError
from .dataset import Dataset
from .fields import Name, Sample
from .shards import Shards

if TYPE_CHECKING:
    from typing_extensions import Self

Named = tuple[Name | None, Sample]

Part = tuple[int, Iterator[tuple[float, Named]]]
"""How many samples come next in a file, and these, each with how much of the file has been read. Nothing of a part is read before
its first sample is asked for, so that whoever passes over it only pays for finding the next one."""


@dataclass
class Source:
    """Samples in an order: `samples` has those from a position on. `load`, where a source has it, has the one with a number."""

    samples: Callable[[int], Iterator[Named]] | None = None
    load: Callable[[int], Named] | None = None
    count: int | None = None
    fields: Mapping[str, Any] | None = None
    threads: int = 1
    fraction: Callable[[], float] | None = None
    """How far it is, where the number of its samples is not known."""
    dataset: Dataset | None = None
    """Of outcore's own, which is copied."""
    shards: Shards | None = None
    """That the native reader reads."""
    about: str = ""
    """What tells it from other sources, and files from what they were before they changed."""


def one_by_one(files: list[str], read: Callable[[str], Iterator[Part]]) -> Source:
    """Samples of files, one file after the other: reading several in threads at once only makes them wait for Python's lock."""
    place = 0.0

    def samples(start: int) -> Iterator[Named]:
        nonlocal place
        for number, path in enumerate(files):
            for count, part in read(path):
                if count > start:
                    for within, named in itertools.islice(part, start, None):
                        place = (number + within) / len(files)
                        yield named
                start = max(0, start - count)

    return Source(samples=samples, fraction=lambda: place)


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
        # Of what the system says, only a place before the first byte is the file's fault.
        is_of_system = isinstance(error, OSError) and error.errno not in (None, errno.EINVAL)
        if isinstance(error, DAMAGED) and not isinstance(error, OutcoreError) and not is_of_system:
            raise CorruptError(f"{place}: {error}", object=self.path, offset=self.at) from error
