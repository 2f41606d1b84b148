"""Writes a dataset, sample by sample."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

from .. import _native
from .._run import execute
from .._session import Session, default_session
from .._settings import PathLike, full_path
from ..errors import ArgumentError, ClosedError
from .fields import Field, Name, fields_of, name_bytes

if TYPE_CHECKING:
    from typing_extensions import Self


SHOWN = 8
"""Fields in a message."""


class Writer:
    """Writes a dataset, sample by sample; it gets its name, complete and durable, when this is closed.

    As a context that an error leaves, it is given up, but for what is durable: that can be gone on with (`resume`), also where
    closing it fails. One that is neither closed nor given up warns (`ResourceWarning`) of the samples that are lost with it.

    Parameters
    ----------
    path : path
        A new folder, or a path below a formatted store. An existing dataset is replaced at the end; a folder
        with anything else in it is refused.
    fields : mapping, optional
        What samples are made of: `"bytes"`, `"text"`, a dtype, or a dtype and a shape in which `None` varies. Default: what the
        first sample is made of.
    resume : bool
        Go on with a writer of this dataset that died or failed: `len` says how many samples are there, and the rest is to be
        written.
    classes : sequence of str, optional
        The names of the numbers of the field `label`, from 0 on, which the dataset keeps.
    session : Session, optional
    progress : bool, optional
        Show how far closing is. Default: on a terminal.

    Raises
    ------
    ExistsError (the folder has something else in it), LockedError (another process writes it), NoSpaceError, DeniedError,
    OverBudgetError.
    """

    def __init__(
        self,
        path: PathLike,
        fields: Mapping[str, Any] | None = None,
        *,
        resume: bool = False,
        classes: Sequence[str] | None = None,
        session: Session | None = None,
        progress: bool | None = None,
    ) -> None:
        if not os.fspath(path):
            raise ArgumentError("a dataset needs a path, and this one is empty")
        self.path = full_path(path)
        self._progress = progress
        self._writer = _native.DatasetWriter((session or default_session())._inner, self.path, resume)
        known = self._writer.fields()
        self._fields = None if known is None else fields_of(known)
        self._process = os.getpid()
        if classes is not None:
            self._set_classes(classes)
        if fields is not None:
            self._set_fields_of(fields)
        self._open = True

    _open = False

    def _set_classes(self, classes: Sequence[str]) -> None:
        if isinstance(classes, str | bytes) or not all(isinstance(name, str) for name in classes):
            raise ArgumentError(f"classes are told as a sequence of their names, and not as {str(classes)[:80]!r}")
        try:
            self._writer.set_classes(list(classes))
        except UnicodeEncodeError as error:
            raise ArgumentError(f"{error.object!r} is no name of a class: {error}") from error

    def _set_fields_of(self, fields: Mapping[str, Any]) -> None:
        if not isinstance(fields, Mapping) or not all(isinstance(name, str) for name in fields):
            raise ArgumentError(f"fields are told as a mapping of names to what they are, and not as {fields!r}")
        self._set_fields({name: Field.parse(told) for name, told in fields.items()})

    def _set_fields(self, fields: dict[str, Field]) -> None:
        self._writer.set_fields([field._native(name) for name, field in fields.items()])
        self._fields = fields

    def _check_open(self) -> None:
        if not self._open:
            raise ClosedError(f"{self.path}: the writer is closed")

    def __len__(self) -> int:
        """Number of samples so far."""
        return len(self._writer)

    @property
    def fields(self) -> dict[str, Field] | None:
        """The fields of samples, once they are known."""
        return self._fields

    def write(self, sample: Mapping[str, Any], name: Name | None = None) -> None:
        """Appends a sample: values by the names of its fields. Either all samples have names, each another, or none has.

        Raises
        ------
        ArgumentError
            For a sample that does not have the fields; nothing of it was written, and the next one may be.
        """
        self._check_open()
        if self._fields is None:
            if not sample:
                raise ArgumentError(f"{self.path}: a sample needs at least one field")
            self._set_fields({key: Field.of(value, _checked(key)) for key, value in sample.items()})
        assert self._fields is not None
        if sample.keys() != self._fields.keys():
            have, want = ([str(name) for name in list(names)[:SHOWN]] for names in (sample, self._fields))
            raise ArgumentError(f"a sample with the fields {sorted(have)}, where every sample has {sorted(want)}")
        values = [field._encode(key, sample[key]) for key, field in self._fields.items()]
        self._writer.write(None if name is None else name_bytes(name), values)

    @property
    def classes(self) -> list[str] | None:
        """The names of the numbers of the field `label`, from 0 on, where they were told."""
        return self._writer.classes()

    def save(self) -> None:
        """Makes all samples so far durable, for `resume`. This happens by itself every 256 MB."""
        self._check_open()
        self._writer.save()

    def close(self) -> None:
        """Completes the dataset.

        Where that fails, a dataset that was there is what it was, and a writer with `resume` goes on behind the samples that are
        durable (`save`).

        Raises
        ------
        ArgumentError
            For a name that two samples have.
        """
        if self._open:
            self._open = False
            execute(self._writer.finish(), "close", self._progress)

    def discard(self) -> None:
        """Discards the dataset, including what could be resumed."""
        if self._open:
            self._open = False
            self._writer.discard()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        if kind is None:
            self.close()
        elif self._open:
            self._open = False
            self._writer.leave()

    def __del__(self, _warn: Callable[..., None] = warnings.warn) -> None:
        # A forked child must not touch its copy.
        if self._open and self._process == os.getpid():
            self._open = False
            count, durable = len(self._writer), self._writer.durable()
            kept = f"; resume=True goes on behind the first {durable}" if durable else ""
            _warn(f"{self.path}: the writer was not closed, {count - durable} samples are lost{kept}", ResourceWarning, 2, self)
            self._writer.leave()


def _checked(name: Any) -> str:
    if not isinstance(name, str):
        raise ArgumentError(f"a field is called by text, and not by {name!r}")
    return name
