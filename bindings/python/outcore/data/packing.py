"""Makes a dataset of what is elsewhere."""

from __future__ import annotations

import contextlib
import itertools
import json
import operator
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from .._run import Bar
from .._session import PathLike, Session
from ..errors import ArgumentError
from .dataset import Dataset
from .fields import fields_of
from .source import Named, Source
from .sources import KINDS, found
from .writer import Writer

COPIED = 4096
"""Samples that are copied by one native call."""
AHEAD = 4
"""Samples that each thread reads ahead."""


def pack(
    source: Any,
    path: PathLike,
    *,
    format: str | None = None,  # noqa: A002
    fields: Mapping[str, Any] | None = None,
    shuffle: int | None = None,
    names: bool = True,
    resume: bool = False,
    threads: int | None = None,
    session: Session | None = None,
    progress: bool | None = None,
) -> Dataset:
    """Makes a dataset of what is elsewhere, in memory that does not depend on its size.

    Parameters
    ----------
    source : path, list of paths, array, mapping of arrays, dataset or iterable
        - a dataset of outcore's, as a `Dataset` or its folder, to be written in another order or place; of one that decodes, what
          it decodes;
        - a folder of images, in folders that are their classes (fields `image`, as the file is, `label` and `class`) or without
          (`image`); their names are their paths below it;
        - tar shards as WebDataset has them, also compressed: members of one key are a sample, which has that name, and the rest
          of a member's name is a field: `cls` a number, `txt` and `json` text, `npy` an array, else bytes;
        - TFRecord files of `tf.train.Example`: a feature of one number, of several, or of one byte string is a field;
        - safetensors files: a tensor is a sample with its name, and field `tensor`;
        - Parquet files: a column is a field, lists are arrays, members of structures are fields such as `image.bytes`;
        - a `.npy` or `.npz` file, an array (field `x`) or a mapping of arrays, whose first axis counts samples;
        - whatever has a length and samples by number, as datasets of PyTorch do, or yields samples: mappings, tuples of values,
          whose fields are then called `0`, `1` and so on, or names with mappings.

        Several files may be given as a list, as `*.tar`, or as `shard-{000..009}.tar`.
    path : path
        Of the dataset; one that is there is replaced at the end.
    format : {"dataset", "images", "tar", "tfrecord", "safetensors", "parquet", "numpy"}, optional
        What files are. Default: by their names.
    fields : mapping, optional
        As of `Writer`; needed where arrays vary from sample to sample, and for a dataset of no samples. Of Parquet, only these
        columns are read.
    shuffle : int, optional
        Seed of a random order in which samples are written, for sources that have samples by number: then a chunk shuffle is as
        good as a global one.
    names : bool
        Keep the names of samples; without, samples of different files may have the same.
    resume : bool
        Go on where packing the same source died; files must be as they were.
    threads : int, optional
        That read samples ahead, where the source has them by number. Default: 8 for folders of images, else 1, since what others
        wrote need not bear more.
    session : Session, optional
    progress : bool, optional

    Raises
    ------
    ArgumentError (samples without the same fields, arrays of different lengths, a sequence that is to be shuffled), CorruptError
    and TruncatedError (naming the file and where in it), MissingError, and those of `Writer`.
    """
    if format not in (None, *KINDS):
        raise ArgumentError(f"format must be one of {', '.join(KINDS)}, not {format!r}")
    with Writer(path, fields, resume=resume, session=session, progress=progress) as writer:
        _copy(found(source, format, None if fields is None else list(fields)), writer, shuffle, names, threads, progress)
        if writer.fields is None:
            raise ArgumentError(f"{writer.path}: a dataset of no samples needs fields=")
    return Dataset(path, session=session)


def _copy(source: Source, writer: Writer, shuffle: int | None, names: bool, threads: int | None, progress: bool | None) -> None:
    """Writes what the writer does not have yet."""
    about = json.dumps({"source": source.about, "shuffle": shuffle})
    if len(writer) and writer._writer.noted() != about:
        raise ArgumentError(
            f"{writer.path}: what is there was packed from another source, or it has changed since, or in another order; "
            "begin anew without resume"
        )
    writer._writer.note(about)
    if source.fields is not None and writer.fields is None:
        writer._set_fields_of(source.fields)
    start = len(writer)
    count = source.count or 0
    order = np.arange(count) if shuffle is None else np.random.default_rng(shuffle).permutation(count)
    if source.dataset is not None:
        _copied(source.dataset, order[start:].astype(np.uint64), writer, names, progress)
        return
    if source.load is not None:
        samples = _loaded(source.load, order[start:], source.threads if threads is None else threads)
    elif shuffle is None:
        assert source.samples is not None
        samples = source.samples(start)
    else:
        raise ArgumentError(
            "samples that come one after another cannot be shuffled; pack them as they come, and load with shuffle=True"
        )
    fraction = source.fraction or (lambda: len(writer) / (source.count or 1))
    with Bar("pack", progress if source.fraction or source.count else False) as bar:
        for name, sample in samples:
            try:
                writer.write(sample, name if names else None)
            except ArgumentError as error:
                which = f"sample {len(writer)}" if name is None else f"sample {len(writer)}, {name!r}"
                raise ArgumentError(f"{which}: {error}") from error
            bar.update(fraction)


def _copied(dataset: Dataset, order: npt.NDArray[np.uint64], writer: Writer, names: bool, progress: bool | None) -> None:
    """Samples of another dataset, whose values nobody looks at on the way."""
    with Bar("pack", progress) as bar:
        for first in range(0, len(order), COPIED):
            writer._writer.copy(dataset._inner, order[first : first + COPIED], names and dataset.is_named)
            bar.update(partial(operator.truediv, first, len(order)))
    if writer.fields is None:
        writer._set_fields(fields_of(dataset._inner.fields()))


def _loaded(load: Callable[[int], Named], order: npt.NDArray[Any], threads: int) -> Iterator[Named]:
    """Samples in an order, read ahead by threads: as many as the system gives."""
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
