"""Makes datasets of samples from other sources."""

from __future__ import annotations

import contextlib
import itertools
import operator
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np

from .._run import Bar
from .._session import Session
from .._settings import PathLike
from ..errors import ArgumentError, OutcoreError
from .dataset import Dataset
from .fields import fields_of
from .shards import note
from .source import Named, Order, Source
from .sources import KINDS, found
from .writer import Writer

COPIED = 4096
"""Samples that are copied by one native call."""
AHEAD = 4
"""Samples that each thread reads ahead."""
IN_ORDER = "samples that come one after another cannot be shuffled; pack them as they come, and load with shuffle=True"


def pack(
    source: Any,
    path: PathLike,
    *,
    format: str | None = None,  # noqa: A002
    fields: Mapping[str, Any] | None = None,
    classes: Sequence[str] | None = None,
    shuffle: int | None = None,
    names: bool = True,
    resume: bool = False,
    threads: int | None = None,
    session: Session | None = None,
    progress: bool | None = None,
) -> Dataset:
    """Makes a dataset of samples from another source, in memory independent of its size.

    Parameters
    ----------
    source : path, list of paths, array, mapping of arrays, dataset or iterable
        - a dataset of outcore's, as a `Dataset` or its folder, to be written in another order or place; of one that decodes, what
          it decodes;
        - a folder of images, in folders that are their classes (fields `image`, as the file is, `label` and `class`) or without
          (`image`); their names are their paths below it. Links are followed, and a class that is a link has the link's name; one
          that leads nowhere, or to a folder that it lies in, is refused. A folder without images is a class all the same. What is
          hidden, and what has no name of an image, is passed over;
        - tar shards as WebDataset has them: members of one key, which is their name up to the first dot behind folders, are a
          sample, which has that name, and the rest of a member's name is a field, in lower case: `cls` a number, `txt` and `json`
          text, `npy` an array, else bytes. Names without a dot or that begin with one, and `__meta__`, are of no sample. Sparse
          members and links are refused where they are wanted;
        - TFRecord files of `tf.train.Example`: a feature of one number, of several, or of one byte string is a field. A
          `tf.train.SequenceExample` has its feature lists too: arrays over steps, of shape (steps,) where a step is one number,
          else (steps, numbers of a step);
        - safetensors files: a tensor is a sample with its name, and field `tensor`, of which an axis varies if it is not the same
          in all;
        - Parquet files: a column is a field of its own type, lists are arrays, members of structures are fields such as
          `image.bytes`, dictionaries what they stand for. Dates, times, decimals, maps and lists of texts are no fields, and a
          missing value is an error: `fields` says which columns are wanted;
        - a `.npy` or `.npz` file, an array (field `x`) or a mapping of arrays, whose first axis counts samples. Files are read
          some rows at a time, of the other byte order too; a column-major `.npy` file in order only;
        - whatever has a length and samples by number, as datasets of PyTorch do, or yields samples: mappings, tuples of values,
          whose fields are then called `0`, `1` and so on, or names with mappings.

        Several files may be given as a list, as `*.tar`, or as `shard-{000..009}.tar`. Tar, TFRecord and safetensors files may be
        compressed, which their bytes tell.
    path : path
        Of the dataset; one that is there is replaced at the end.
    format : {"dataset", "images", "tar", "tfrecord", "safetensors", "parquet", "numpy"}, optional
        What files are. Default: what the bytes of the first one say for certain, else by their names.
    fields : mapping, optional
        As of `Writer`; needed where arrays vary from sample to sample, and for a dataset of no samples. Of tar, TFRecord and
        Parquet, only these members, features and columns are read, as what this says, whatever their names suggest: a `cls` as
        text, features as `("int64", (None,))` of any length. Default: those of the first sample, and one with others is refused.
    classes : list of str, optional
        Of a folder of images: the folders that there may be, by their numbers in `label`. Default: those that there are, in the
        order of their names. The dataset keeps them (`Dataset.classes`).
    shuffle : int, optional
        Seed of a random order in which samples are written, for sources that have samples by number: then a chunk shuffle is as
        good as a global one.
    names : bool
        Keep the names of samples; without, samples of different files may have the same.
    resume : bool
        Go on where packing the same source died or failed; files must be as they were.
    threads : int, optional
        That read samples ahead, where the source has them by number. Default: 8 for folders of images, else 1, since what others
        wrote need not bear more.
    session : Session, optional
    progress : bool, optional

    Raises
    ------
    ArgumentError (samples without the same fields, arrays of different lengths, a sequence that is to be shuffled, a folder
    that is none of the classes), CorruptError and TruncatedError (naming the file and where in it), UnsupportedError (a file of
    another format), MissingError, NotAFileError (a pipe, a device), and those of `Writer`.
    """
    if format not in (None, *KINDS):
        raise ArgumentError(f"format must be one of {', '.join(KINDS)}, not {format!r}")
    with Writer(path, fields, resume=resume, session=session, progress=progress) as writer:
        columns = None if fields is None else list(fields)
        what = found(source, format, columns, classes=classes, session=session)
        _copy(what, writer, fields is not None, shuffle, names, threads, session, progress)
        if writer.fields is None:
            raise ArgumentError(f"{writer.path}: a dataset of no samples needs fields=")
    return Dataset(path, session=session)


def _copy(
    source: Source,
    writer: Writer,
    told: bool,
    shuffle: int | None,
    names: bool,
    threads: int | None,
    session: Session | None,
    progress: bool | None,
) -> None:
    """Writes the samples that the writer does not have yet; the fields are `told`, or known from the source."""
    note(writer, source.about, shuffle=shuffle)
    if source.shards is not None:
        if shuffle is not None:
            raise ArgumentError(IN_ORDER)
        source.shards.into(writer, told=told, names=names, in_place=False, label="pack", session=session, progress=progress)
        return
    if source.fields is not None and writer.fields is None:
        writer._set_fields_of(source.fields)
    if source.classes is not None:
        writer._writer.set_classes(list(source.classes))
    start = len(writer)
    count = source.count or 0
    if source.nbytes is not None and start == 0:
        writer._writer.expect(source.nbytes)
    order: Order = range(count) if shuffle is None else np.random.default_rng(shuffle).permutation(count)
    if source.dataset is not None:
        _copied(source.dataset, order[start:], writer, names, progress)
        return
    if source.rows is not None:
        samples = source.rows(order[start:])
    elif source.load is not None:
        samples = _loaded(source.load, order[start:], source.threads if threads is None else threads)
    elif shuffle is None:
        assert source.samples is not None
        samples = source.samples(start)
    else:
        raise ArgumentError(IN_ORDER)
    fraction = source.fraction or (lambda: len(writer) / (source.count or 1))
    with Bar("pack", progress if source.fraction or source.count else False) as bar:
        for name, sample in _telling(samples, writer):
            try:
                writer.write(sample, name if names else None)
            except ArgumentError as error:
                which = f"sample {len(writer)}" if name is None else f"sample {len(writer)}, {name!r}"
                place = "" if source.where is None else f" in {source.where()}"
                raise ArgumentError(f"{which}{place}: {error}") from error
            bar.update(fraction)


def _telling(samples: Iterator[Named], writer: Writer) -> Iterator[Named]:
    """What goes wrong where others make samples is theirs to name; which sample it was is noted beside it."""
    try:
        yield from samples
    except Exception as error:
        note = getattr(error, "add_note", None)
        if note is not None and not isinstance(error, OutcoreError):
            note(f"while sample {len(writer)} of a dataset was asked for, to be packed as {writer.path}")
        raise


def _copied(dataset: Dataset, order: Order, writer: Writer, names: bool, progress: bool | None) -> None:
    """Copies samples of another dataset without decoding them."""
    with Bar("pack", progress) as bar:
        for first in range(0, len(order), COPIED):
            part = np.asarray(order[first : first + COPIED], np.uint64)
            writer._writer.copy(dataset._inner, part, names and dataset.is_named)
            bar.update(partial(operator.truediv, first, len(order)))
    if writer.fields is None:
        writer._set_fields(fields_of(dataset._inner.fields()))


def _loaded(load: Callable[[int], Named], order: Order, threads: int) -> Iterator[Named]:
    """Samples in an order, prefetched by as many threads as the system allows."""
    with contextlib.ExitStack() as stack:
        pools = list(_threads(stack, threads)) if threads > 1 else []
        if not pools:
            yield from map(load, map(int, order))
            return
        ahead: deque[Future[Named]] = deque()
        for pool, number in zip(itertools.cycle(pools), map(int, order), strict=False):
            if len(ahead) == AHEAD * len(pools):
                yield ahead.popleft().result()
            ahead.append(pool.submit(load, number))
        while ahead:
            yield ahead.popleft().result()


def _threads(stack: contextlib.ExitStack, count: int) -> Iterator[ThreadPoolExecutor]:
    """Threads that have started, each by itself, since a pool of several loses what it is given while the system refuses one."""
    for _ in range(count):
        pool = ThreadPoolExecutor(1, "outcore-pack")
        try:
            pool.submit(int).result()
        except RuntimeError:
            pool.shutdown()
            return
        stack.callback(pool.shutdown, wait=True, cancel_futures=True)
        yield pool
