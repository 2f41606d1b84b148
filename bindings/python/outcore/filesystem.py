"""Datasets of samples as a read-only file system of fsspec, so that pandas, pyarrow and others read them::

    fs = DatasetFileSystem("photos")                    # or fsspec.filesystem("outcore", fo="photos")
    fs.ls("dogs"), fs.cat("dogs/1.jpg")
    fsspec.open("outcore://dogs/1.jpg", fo="photos")

Names of samples are paths, with `/` between folders; a dataset without names shows its samples by number. A sample of one field
is a file, one of several is a folder with a file for each. Bytes and text are in files as they are, arrays as `.npy`.
"""

from __future__ import annotations

import datetime
import errno
import hashlib
import io
import os
from collections.abc import Iterator, Sequence
from typing import Any, NoReturn

import numpy as np

from ._settings import PathLike
from .data import Dataset, Field
from .errors import ReadOnlyError

try:
    from fsspec.spec import AbstractFileSystem
except ImportError as error:
    raise ImportError("outcore.filesystem needs fsspec: pip install outcore[fsspec]") from error

__all__ = ["DatasetFileSystem"]


def __dir__() -> list[str]:
    return sorted(__all__)


Entry = dict[str, Any]

READ = 256
READ_BYTES = 16 << 20
"""Samples, and about how many bytes of them, that are read at once for their sizes."""


def _content(field: Field, value: Any) -> bytes:
    """The content of the file of a field."""
    if field.kind == "array":
        file = io.BytesIO()
        np.save(file, np.asarray(value), allow_pickle=False)
        return file.getvalue()
    return value.encode() if isinstance(value, str) else bytes(value)


def _modified(path: str) -> float:
    """When a dataset was made: of one in a formatted store, when that was written to last."""
    for there in (os.path.join(path, "dataset.json"), *_around(path)):
        try:
            return os.stat(there).st_mtime
        except OSError:
            continue
    return 0.0


def _around(path: str) -> Iterator[str]:
    while path != os.path.dirname(path):
        yield path
        path = os.path.dirname(path)


class DatasetFileSystem(AbstractFileSystem):  # type: ignore[misc]
    """The samples of a dataset as files.

    A dataset does not change, so all of its files are as old as it is (`modified`, `created`, and `mtime` of `info`), and
    `checksum` and `ukey` of a file are the same for the same dataset, wherever it is, and others for another one.

    Files are found by the dataset's own directory. Listing folders takes the names of all samples into memory, once, when it is
    first asked for: some 200 bytes each.

    Parameters
    ----------
    fo : path or outcore.data.Dataset

    Raises
    ------
    MissingError, CorruptError, OverBudgetError; FileNotFoundError for a path that is none, ReadOnlyError for what would write.
    """

    protocol = "outcore"
    cachable = False

    def __init__(self, fo: PathLike | Dataset, **storage_options: Any) -> None:
        super().__init__(fo=fo, **storage_options)
        self.dataset = fo if isinstance(fo, Dataset) else Dataset(fo)
        self._named = self.dataset.is_named
        fields = self.dataset.fields.items()
        self._files = {name + (".npy" if field.kind == "array" else ""): name for name, field in fields}
        # A sample that is a file has this field.
        self._only = next(iter(self._files.values())) if len(self._files) == 1 else None
        self._folders: dict[str, dict[str, int | None]] | None = None
        self._mtime = _modified(self.dataset.path)

    def _sample(self, name: str) -> int | None:
        if self._named:
            try:
                return self.dataset.index(name)
            except KeyError:
                return None
        number = int(name) if name.isdecimal() else -1
        return number if str(number) == name and number < len(self.dataset) else None

    def _find(self, path: str) -> tuple[int, str | None] | None:
        """Sample and field of a path; no field for the folder of a sample."""
        sample = self._sample(path)
        if sample is not None:
            return sample, self._only
        folder, _, file = path.rpartition("/")
        sample = self._sample(folder) if self._only is None and file in self._files else None
        return None if sample is None else (sample, self._files[file])

    def _file(self, path: str) -> tuple[int, str]:
        path = self._strip_protocol(path)
        found = self._find(path)
        if found is None or found[1] is None:
            kind = (IsADirectoryError, errno.EISDIR) if found or self._in(path) is not None else (FileNotFoundError, errno.ENOENT)
            raise kind[0](kind[1], os.strerror(kind[1]), f"{self.dataset.path}: {path}")
        return found[0], found[1]

    def _in(self, folder: str) -> dict[str, int | None] | None:
        """The content of a folder: the numbers of samples, or none for folders, by path."""
        if self._folders is None:
            folders: dict[str, dict[str, int | None]] = {"": {}}
            names = self.dataset.names() if self._named else map(str, range(len(self.dataset)))
            for number, path in enumerate(names):
                child: int | None = number
                while path:
                    parent = path.rpartition("/")[0]
                    is_new = parent not in folders
                    folders.setdefault(parent, {}).setdefault(path, child)
                    path, child = (parent if is_new else ""), None
            self._folders = folders
        return self._folders.get(folder)

    def _sizes(self, samples: Sequence[int], name: str) -> list[int]:
        field = self.dataset.fields[name]
        if not field.varies:
            return [len(_content(field, np.zeros(field.shape, field.dtype)))] * len(samples)
        if self._only is not None and field.kind != "array" and not self.dataset.is_in_place:
            return self.dataset._inner.sizes(np.asarray(samples, np.uint64)).tolist()
        mean = max(1, self.dataset.nbytes // max(1, len(self.dataset)))
        at_once = max(1, min(READ, READ_BYTES // mean))
        parts = (samples[first : first + at_once] for first in range(0, len(samples), at_once))
        return [len(content) for part in parts for content in self._contents([(sample, name) for sample in part])]

    def _contents(self, files: Sequence[tuple[int, str]]) -> list[bytes]:
        """The content of files, by one native call."""
        batch = self.dataset[[sample for sample, _ in files]]
        return [_content(self.dataset.fields[name], batch[name][index]) for index, (_, name) in enumerate(files)]

    def _entries(self, samples: dict[str, int], sizes: bool) -> list[Entry]:
        if self._only is None:
            return [self._folder(path) for path in samples]
        found = self._sizes(list(samples.values()), self._only) if sizes else [None] * len(samples)
        return [self._entry(path, size) for path, size in zip(samples, found, strict=True)]

    def _fields_of(self, path: str, sample: int, sizes: bool) -> list[Entry]:
        """The content of the folder of a sample, which is read once."""
        batch = self.dataset[[sample]] if sizes else {}
        found = {
            file: len(_content(self.dataset.fields[name], batch[name][0])) if sizes else None
            for file, name in self._files.items()
        }
        return [self._entry(f"{path}/{file}", size) for file, size in found.items()]

    def _entry(self, path: str, size: int | None) -> Entry:
        return {"name": path, "size": size, "type": "file", "mtime": self._mtime}

    def _folder(self, path: str) -> Entry:
        return {"name": path, "size": 0, "type": "directory", "mtime": self._mtime}

    def info(self, path: str, **_: Any) -> Entry:
        path = self._strip_protocol(path)
        found = self._find(path) if path else None
        if found is not None:
            sample, field = found
            return self._folder(path) if field is None else self._entry(path, self._sizes([sample], field)[0])
        return self._folder(self._check_there(path))

    def modified(self, path: str) -> datetime.datetime:
        """When the dataset was made, in UTC."""
        self._check_there(path)
        return datetime.datetime.fromtimestamp(self._mtime, tz=datetime.timezone.utc)

    created = modified

    def checksum(self, path: str) -> int:
        """A number that is the same for the same file of the same dataset."""
        return int(self.ukey(path), 16)

    def ukey(self, path: str) -> str:
        """As `checksum`, in hexadecimal."""
        path = self._check_there(path)
        told = f"{self.dataset._inner.digest():016x} {path}".encode(errors="surrogateescape")
        return hashlib.blake2b(told, digest_size=16).hexdigest()

    def _check_there(self, path: str) -> str:
        """A path in short, without looking at a sample.

        Raises
        ------
        FileNotFoundError
        """
        path = str(self._strip_protocol(path))
        if (self._find(path) if path else None) is None and self._in(path) is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), f"{self.dataset.path}: {path}")
        return path

    def ls(self, path: str, detail: bool = True, sizes: bool = True, **_: Any) -> list[Any]:
        """As of fsspec; without `sizes`, those of files are None, and no sample is read."""
        path, sizes = self._strip_protocol(path), sizes and detail
        inside = self._in(path)
        if inside is not None:
            samples = {child: number for child, number in inside.items() if number is not None}
            entries = [self._folder(child) for child, number in inside.items() if number is None]
            entries += self._entries(samples, sizes)
        else:
            found = self._find(path)
            is_folder = found is not None and found[1] is None
            entries = self._fields_of(path, found[0], sizes) if found and is_folder else [self.info(path)]
        entries.sort(key=lambda entry: entry["name"])
        return entries if detail else [entry["name"] for entry in entries]

    def walk(self, path: str, *args: Any, detail: bool = False, **options: Any) -> Iterator[Any]:
        yield from super().walk(path, *args, detail=detail, **{"sizes": detail, **options})

    def find(self, path: str, maxdepth: int | None = None, withdirs: bool = False, detail: bool = False, **options: Any) -> Any:
        return super().find(path, maxdepth, withdirs, detail, **{"sizes": detail, **options})

    def glob(self, path: str, *args: Any, detail: bool = False, **options: Any) -> Any:
        return super().glob(path, *args, detail=detail, **{"sizes": detail, **options})

    def du(self, path: str, total: bool = True, maxdepth: int | None = None, withdirs: bool = False, **options: Any) -> Any:
        found = self.find(path, maxdepth, withdirs, True, **options)
        sizes = {name: entry["size"] for name, entry in found.items()}
        return sum(sizes.values()) if total else sizes

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **_: Any) -> bytes:
        return self._contents([self._file(path)])[0][start:end]

    def cat_ranges(
        self, paths: Any, starts: Any, ends: Any, max_gap: Any = None, on_error: str = "return", **_: Any
    ) -> list[Any]:
        starts, ends = ([part] * len(paths) if not isinstance(part, list) else part for part in (starts, ends))
        found: list[Any] = []
        for path in paths:
            try:
                found.append(self._file(path))
            except OSError as error:
                if on_error != "return":
                    raise
                found.append(error)
        contents = iter(self._contents([file for file in found if isinstance(file, tuple)]))
        ranges = zip(found, starts, ends, strict=True)
        return [next(contents)[start:end] if isinstance(file, tuple) else file for file, start, end in ranges]

    def _open(self, path: str, mode: str = "rb", **_: Any) -> io.BytesIO:
        if mode != "rb":
            self._refuse(path)
        return io.BytesIO(self.cat_file(path))

    def _refuse(self, *paths: Any, **_: Any) -> NoReturn:
        raise ReadOnlyError(f"{self.dataset.path}: samples are not written as files", object=str(paths[0]) if paths else "")

    mkdir = makedirs = rmdir = touch = cp_file = rm_file = _rm = pipe_file = _refuse
