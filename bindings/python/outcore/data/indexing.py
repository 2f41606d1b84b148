"""Indexes samples in existing files: tar shards, TFRecord, safetensors."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from .._session import Session
from .._settings import PathLike, full_path
from ..errors import ArgumentError
from .dataset import Dataset
from .shards import FORMS, Shards, note
from .source import digest
from .sources import files_of
from .writer import Writer


def index(
    source: PathLike | Sequence[PathLike],
    path: PathLike,
    *,
    format: str | None = None,  # noqa: A002
    fields: Mapping[str, Any] | None = None,
    names: bool = True,
    resume: bool = False,
    session: Session | None = None,
    progress: bool | None = None,
) -> Dataset:
    """Makes a dataset of samples in existing files. The files are read once, and must not change.

    Samples are as `pack` has them. They take some bytes more than packed ones, such as the headers of tar. Tensors keep their
    type.

    Parameters
    ----------
    source : path or list of paths
        - tar shards;
        - TFRecord files of `tf.train.Example` or `tf.train.SequenceExample`;
        - safetensors files: a tensor is a sample with its name, and field `tensor`.

        None of them is compressed. Several files may also be given as `*.tar`, or as `shard-{000..009}.tar`. Files in the folder
        in which the dataset will lie, or below it, may go with it to another place.
    path : path
        Of the dataset; one that is there is replaced at the end.
    format : {"tar", "tfrecord", "safetensors"}, optional
        What files are. Default: what the bytes of the first one say for certain, else by their names.
    fields : mapping, optional
        As of `pack`.
    names : bool
        Keep the names of samples.
    resume : bool
        Go on where indexing the same files died or failed; they must be as they were.
    session : Session, optional
    progress : bool, optional

    Raises
    ------
    ArgumentError (compressed files, samples without the fields), CorruptError and TruncatedError (naming the file and where in
    it), UnsupportedError (files of another kind, members and features that are not read), MissingError, and those of `Writer`.
    """
    given = [source] if isinstance(source, str | bytes | os.PathLike) else source
    files, form = files_of([full_path(one) for one in given], format)
    if form not in FORMS:
        raise ArgumentError(f"{files[0]}: files of {form} cannot be indexed in place; pack them")
    files = [os.path.abspath(file) for file in files]
    found = [(file, os.stat(file)) for file in files]
    about = digest(form, [(file, status.st_size, status.st_mtime_ns) for file, status in found])
    with Writer(path, fields, resume=resume, session=session, progress=progress) as writer:
        note(writer, about, in_place=True)
        writer._writer.set_elsewhere(os.path.abspath(writer.path), form, [(file, status.st_size) for file, status in found])
        Shards(form, files).into(
            writer, told=fields is not None, names=names, in_place=True, label="index", session=session, progress=progress
        )
    return Dataset(path, session=session)
