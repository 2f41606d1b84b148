"""Samples, by number or by name."""

from __future__ import annotations

import io
import operator
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import numpy.typing as npt

from .. import _html, _native
from .._run import Bar
from .._session import Session, default_session, session_like
from .._settings import PathLike, Settings, full_path
from .._units import check_room, show_bytes, show_path
from ..errors import ArgumentError, ClosedError, CorruptError, DTypeError
from .fields import Decode, Field, Name, Sample, fields_of, name_bytes, name_text, picture
from .loader import Loader, Shuffle

if TYPE_CHECKING:
    from typing_extensions import Self

NAMED = 16
"""Groups of 64 names that are read by one native call: one batch of reads, so that Ctrl-C waits for no more than that."""
VERIFIED = 64 << 20
"""Bytes of samples that are verified by one native call."""


class Dataset:
    """Samples, by number or by name.

    May be used from any thread, and as a context that closes it. Pickled, or used in a forked process, it opens itself again in
    a session of the same settings.

    Parameters
    ----------
    path : path
        Where a `Writer` has put it.
    decode : mapping, optional
        Fields of bytes that are JPEG, PNG, GIF (its first frame), WebP, BMP, TIFF or PNM, and come as arrays of uint8, height by
        width by channels: `"L"`, `"RGB"` or `"RGBA"`, or such a mode with the height and width that every picture has, as in
        `{"image": ("RGB", 32, 32)}`, so that a batch is one array. Loaders decode in threads beside the caller.

        Pixels are those of Pillow's `convert`: luminance of colours by its numbers, opacity left out where it was not asked for.
        Of 16 bits, the upper 8 are taken. The EXIF orientation is not applied unless `exif_orientation` says so.
    exif_orientation : bool
        Turn pictures that are decoded as their EXIF orientation says (JPEG, PNG, WebP, TIFF), as
        `PIL.ImageOps.exif_transpose` does; `decode` has heights and widths after that. Default: pixels come as they are stored,
        as they do from `PIL.Image.open` and from `torchvision.datasets`, so that what a camera stored on its side lies there.
        TIFF is no exception, which Pillow turns in any case.
    session : Session, optional

    Attributes
    ----------
    fields : dict of str to Field
        As they come: those that are decoded are arrays.
    classes : list of str or None
        The names of the numbers of the field `label`, from 0 on, where they were told: the folders that images were packed from.
    nbytes : int
        Bytes of all samples; of the files that they are in, where those are others'.
    directory_nbytes : int
        Bytes of memory that finding them takes, counted against the budget while the dataset is open.
    clustering : dict of str to float
        For each field with a whole number in it, how much more alike neighbours are than samples far apart: about 1 where they
        are not, the number of samples of 256 KiB where the dataset is sorted by it.

    Raises
    ------
    MissingError, CorruptError, TruncatedError, UnsupportedError, OverBudgetError.

    Notes
    -----
    What reads samples raises, for a picture whose file is damaged, cut off, no picture at all, or of another size than `decode`
    says, `CorruptError`; files are looked at to their ends, so that what comes was all there. A sound picture of a kind that is
    not decoded (JPEG 2000, JPEG XL, AVIF, HEIC, PSD, SVG; JPEG of 12 bits, lossless or with arithmetic coding; TIFF with a
    palette or of floating-point numbers) raises `UnsupportedError`, and one that is larger than the budget `OverBudgetError`:
    these are not damaged, and `skip_damaged` does not leave them out. Each names the dataset, the sample and its name.
    """

    def __init__(
        self,
        path: PathLike,
        *,
        decode: Mapping[str, Decode] | None = None,
        exif_orientation: bool = False,
        session: Session | None = None,
    ) -> None:
        self.path, self.decode, self.exif_orientation = full_path(path), dict(decode or {}), exif_orientation
        self._session = session or default_session()
        self._open_here()
        self._sequence: Loader | None = None
        self._sharing: int | None = None

    def _open_here(self) -> None:
        decode = {name: picture(name, told) for name, told in self.decode.items()}
        told = [(name, channels, size) for name, (channels, size) in decode.items()]
        self._native_dataset: _native.Dataset | None = _native.Dataset(
            self._session._inner, self.path, told, bool(self.exif_orientation)
        )
        self._pid = os.getpid()
        pictures = {
            name: Field("array", np.dtype(np.uint8), (*(size or (None, None)), channels)) for name, channels, size in told
        }
        self.fields = {name: pictures.get(name, field) for name, field in fields_of(self._inner.fields()).items()}
        self.nbytes, self.directory_nbytes = self._inner.nbytes()
        self.clustering = dict(self._inner.clustering())
        self.classes = self._inner.classes()

    @property
    def _inner(self) -> _native.Dataset:
        if self._native_dataset is None:
            raise ClosedError(f"{self.path}: the dataset is closed")
        if self._pid != os.getpid():
            self._open_here()
        return self._native_dataset

    def _share(self, parts: int) -> None:
        """Limits this dataset, in this process, to one of `parts` equal parts of its session's budget."""
        if self._sharing != os.getpid():
            settings = replace(self._session._settings, memory_bytes=self._session._bytes // parts)
            # The whole of it goes back before a part of it is taken.
            del self._session
            self._native_dataset = None
            self._session = session_like(settings)
            self._open_here()
            self._sharing = os.getpid()

    def close(self) -> None:
        """Frees the directory. Existing loaders of the dataset continue."""
        self._native_dataset, self._sequence = None, None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopened, (self.path, self.decode, self.exif_orientation, self._session._settings)

    def __repr__(self) -> str:
        if self._native_dataset is None or self._pid != os.getpid():
            return f"Dataset({self.path!r}, {'closed' if self._native_dataset is None else 'of another process'})"
        return f"Dataset({self.path!r}, {len(self)} samples of {', '.join(self.fields)})"

    def _repr_html_(self) -> str:
        """HTML for notebooks; no sample is read."""
        if self._native_dataset is None or self._pid != os.getpid():
            return _html.card("outcore dataset", [("path", show_path(self.path))])
        size = f"{len(self):,} samples, {show_bytes(self.nbytes)}, {show_path(self.path)}"
        rows = [
            (name, field.kind, str(field.dtype or ""), str(field.shape) if field.dtype else "")
            for name, field in self.fields.items()
        ]
        return _html.table(f"outcore dataset: {size}", ("field", "kind", "dtype", "shape"), rows)

    if not TYPE_CHECKING:

        def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> NoReturn:
            """Refuses: NumPy would otherwise read all samples one by one into an array of objects."""
            raise DTypeError(f"{self!r} is not converted to a NumPy array; use ds[:100]['field'] for a field of some samples")

    def __len__(self) -> int:
        return len(self._inner)

    def __getitem__(self, index: Any) -> Sample:
        """A sample by its number or name; or many, by a slice, a list or an array of numbers: a dict of arrays."""
        if isinstance(index, str | bytes):
            return self.read(index)
        if isinstance(index, slice):
            return self._batch(np.arange(*index.indices(len(self))))
        if hasattr(index, "__index__") and np.ndim(index) == 0:
            return {key: column[0] for key, column in self._batch(np.array([operator.index(index)])).items()}
        return self._batch(np.asarray(index))

    def __getitems__(self, indices: Sequence[int]) -> list[Sample]:
        """Many samples one by one, as `torch.utils.data` asks for them: one native call."""
        batch = self._batch(np.asarray(indices))
        return [dict(zip(batch, values, strict=True)) for values in zip(*batch.values(), strict=True)]

    def gather(self, indices: npt.ArrayLike, out: Mapping[str, npt.NDArray[Any]] | None = None) -> Sample:
        """Many samples, as `ds[indices]`; `out` has, by field, the array that they go to.

        Parameters
        ----------
        indices : array_like of int, one axis
        out : mapping of str to array, optional
            An array for each field, of its dtype and shape (len(indices), *shape), C-contiguous. Unspecified after an error.

        Raises
        ------
        ArgumentError
            For other arrays, and for fields of variable length.
        """
        if out is None:
            return self._batch(np.asarray(indices))
        numbers = self._numbers(np.asarray(indices))
        if out.keys() != self.fields.keys():
            raise ArgumentError(f"out has arrays for {sorted(out)}, but samples have {sorted(self.fields)}")
        for name, field in self.fields.items():
            if field.varies:
                raise ArgumentError(f"field {name!r} varies from sample to sample, so it cannot be read into an array")
            array, shape = out[name], (len(numbers), *field.shape)
            flags = np.asarray(array).flags
            if (
                not isinstance(array, np.ndarray)
                or array.dtype != field.dtype
                or array.shape != shape
                or not (flags.c_contiguous and flags.writeable)
            ):
                raise ArgumentError(f"out[{name!r}] must be a writable C-contiguous array of {field.dtype} and shape {shape}")
        self._inner.read_into(numbers, [out[name].reshape(-1).view(np.uint8) for name in self.fields])
        return dict(out)

    def _batch(self, indices: npt.NDArray[Any]) -> Sample:
        numbers = self._numbers(indices)
        check_room(len(numbers) * self.nbytes // max(1, len(self)), self, "take fewer samples at a time")
        return self._columns(self._inner.read(numbers), len(numbers))

    def _numbers(self, indices: npt.NDArray[Any]) -> npt.NDArray[np.uint64]:
        count = len(self)
        if indices.dtype.kind == "b" and indices.shape == (count,):
            indices = np.flatnonzero(indices)
        if indices.size == 0:
            indices = indices.astype(np.int64)
        if indices.ndim != 1 or indices.dtype.kind not in "iu":
            raise ArgumentError("samples are indexed by one number, a list or a one-dimensional array of numbers")
        numbers = indices if indices.dtype.kind == "u" else indices.astype(np.int64, copy=False)
        if indices.dtype.kind == "i":
            numbers = np.where(numbers < 0, numbers + count, numbers)
        outside = (numbers < 0) | (numbers >= count)
        if outside.any():
            raise IndexError(f"{self.path}: sample {indices[outside][0]} of {count}")
        return np.ascontiguousarray(numbers, np.uint64)

    def _columns(self, found: list[Any], count: int) -> Sample:
        return {name: field._column(column, count) for (name, field), column in zip(self.fields.items(), found, strict=True)}

    def __iter__(self) -> Iterator[Sample]:
        """All samples, in the order in which they were written, read ahead."""
        for batch in Loader(self, batch_size=64, rank=0, world_size=1):
            for values in zip(*batch.values(), strict=True):
                yield dict(zip(batch, values, strict=True))

    def index(self, name: Name) -> int:
        """The number of the sample with a name. The name is read and compared.

        Raises
        ------
        KeyError
        """
        found = self._inner.find(name_bytes(name))
        if found is None:
            raise KeyError(name)
        return found

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str | bytes) and self._inner.find(name_bytes(name)) is not None

    def name(self, index: int) -> str:
        """The name of a sample; bytes that are not UTF-8 become surrogates, as in file names."""
        (number,) = self._numbers(np.asarray([operator.index(index)])).tolist()
        found = self._inner.name(number)
        if found is None:
            raise KeyError(f"{self.path}: its samples have no names")
        return name_text(found)

    def names(self) -> Iterator[str]:
        """The names of all samples, in order; empty if they have none."""
        for group in range(0, -(-len(self) // 64), NAMED):
            yield from map(name_text, self._inner.names(group, group + NAMED))

    @property
    def is_named(self) -> bool:
        """Whether samples have names."""
        return self._inner.is_named()

    @property
    def is_in_place(self) -> bool:
        """Whether samples are in external files (`index`)."""
        return self._inner.is_in_place()

    def verify(self, *, progress: bool | None = None) -> list[dict[str, Any]]:
        """Reads and decodes all samples and reads all names; returns those with faults.

        Returns
        -------
        list of dict
            For each such sample `sample` (its number), `name`, `kind` and `reason`. Kinds are `"damaged"`: it is not what was
            written, or no picture that is whole; `"unsupported"`: a picture of a kind that is not decoded; `"too large"`: a
            picture that the budget has no room for. A loader with `skip_damaged` leaves out the first kind only.
        """
        faults = []
        with Bar("verify", progress) as bar:
            at_once = max(1, VERIFIED * len(self) // max(1, self.nbytes))
            for first in range(0, len(self), at_once):
                found = self._inner.faults(first, min(first + at_once, len(self)))
                faults += [
                    {"sample": sample, "name": self._name_if_any(sample), "kind": kind, "reason": reason}
                    for sample, kind, reason in found
                ]
                bar.update(partial(operator.truediv, first, len(self)))
        return faults

    def _name_if_any(self, sample: int) -> str | None:
        try:
            return self.name(sample) if self.is_named else None
        except CorruptError:
            return None

    def read(self, name: Name) -> Sample:
        """The sample with a name.

        Raises
        ------
        KeyError
        """
        found = self._inner.read_named(name_bytes(name))
        if found is None:
            raise KeyError(name)
        return {key: column[0] for key, column in self._columns(found, 1).items()}

    def open(self, name: Name) -> io.BytesIO:
        """The bytes of the sample with a name, whose only field they are, as a file.

        Raises
        ------
        KeyError, ArgumentError (it has several fields).
        """
        sample = self.read(name)
        if len(sample) != 1:
            raise ArgumentError(f"{self.path}: a sample has the fields {', '.join(sample)}; only a single one makes a file")
        (value,) = sample.values()
        return io.BytesIO(value.encode() if isinstance(value, str) else bytes(value))

    def sequence(self, seed: int, *, epoch: int = 0, shuffle: Shuffle = True, rank: int = 0, world_size: int = 1) -> None:
        """Begins a random sequence of all samples, or of a rank's share of them, for `bread`."""
        self._sequence = Loader(self, shuffle=shuffle, seed=seed, rank=rank, world_size=world_size)
        self._sequence.set_epoch(epoch)

    def bread(self, count: int) -> Sample:
        """The next samples of the sequence, as a dict of arrays; fewer, or none, at its end.

        Raises
        ------
        ArgumentError
            Without a sequence.
        """
        if self._sequence is None:
            raise ArgumentError("bread reads the next samples of a sequence; begin one by sequence(seed)")
        if operator.index(count) < 1:
            raise ArgumentError(f"bread reads at least one sample, and not {count}")
        if self._sequence.batch_size != count:
            self._sequence._set_batch_size(count)
        batch = self._sequence._next()
        return self._columns(self._inner.read(np.zeros(0, np.uint64)), 0) if batch is None else batch


def _reopened(path: str, decode: Mapping[str, Decode], exif_orientation: bool, settings: Settings) -> Dataset:
    return Dataset(path, decode=decode, exif_orientation=exif_orientation, session=session_like(settings))


def mount(
    path: PathLike,
    *,
    decode: Mapping[str, Decode] | None = None,
    exif_orientation: bool = False,
    session: Session | None = None,
) -> Dataset:
    """Opens a dataset, as `Dataset` does."""
    return Dataset(path, decode=decode, exif_orientation=exif_orientation, session=session)
