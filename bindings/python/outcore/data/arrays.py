"""Arrays whose first axis counts samples: in memory, in .npy and in .npz files."""

from __future__ import annotations

import math
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from typing import IO, Any

import numpy as np

from ..errors import ArgumentError
from .source import Named, Source, Told, digest


def arrays_source(arrays: Mapping[str, Any]) -> Source:
    """Arrays whose first axis counts samples."""
    count = _count({name: _shape(array) for name, array in arrays.items()})
    fields = {name: (array.dtype, array.shape[1:]) for name, array in arrays.items() if isinstance(array, np.ndarray)}
    load = lambda number: (None, {name: array[number] for name, array in arrays.items()})  # noqa: E731
    about = digest("arrays", [(name, type(array).__name__, _shape(array)) for name, array in arrays.items()])
    whole = len(fields) == len(arrays)
    nbytes = sum(array.nbytes for array in arrays.values()) if whole else None
    return Source(load=load, count=count, fields=fields if whole else None, nbytes=nbytes, about=about)


def _shape(array: Any) -> tuple[int, ...]:
    """Of anything with a length, at least that."""
    return tuple(array.shape) if hasattr(array, "shape") else (len(array),) if hasattr(array, "__len__") else ()


def _count(shapes: Mapping[str, tuple[int, ...]]) -> int:
    """How many samples arrays of these shapes are."""
    single = next((name for name, shape in shapes.items() if not shape), None)
    if single is not None:
        raise ArgumentError(f"{single!r} is a single number, and has no samples")
    lengths = {name: shape[0] for name, shape in shapes.items()}
    if len(set(lengths.values())) != 1:
        told = ", ".join(f"{name!r} has {length}" for name, length in lengths.items())
        raise ArgumentError(f"arrays with equally many samples make a dataset: {told or 'there are none'}")
    return next(iter(lengths.values()))


def npy(path: str) -> Source:
    with Told(path):
        return arrays_source({"x": np.lib.format.open_memmap(path, mode="r")})


def npz(path: str) -> Source:
    """Members are read side by side, a sample at a time, so that memory does not depend on their length."""
    with Told(path):
        archive = zipfile.ZipFile(path)
    headers, members = {}, {name.removesuffix(".npy"): name for name in archive.namelist()}
    with archive:
        for field, name in members.items():
            with Told(path, name), archive.open(name) as file:
                headers[field] = _npy_header(file)
    with Told(path):
        count = _count({field: shape for field, (shape, _) in headers.items()})

    def samples(start: int) -> Iterator[Named]:
        with ExitStack() as stack:
            with Told(path):
                archive = stack.enter_context(zipfile.ZipFile(path))
                files = {field: stack.enter_context(archive.open(name)) for field, name in members.items()}
                for file in files.values():
                    _npy_header(file)
            for number in range(count):
                with Told(path, f"sample {number}"):
                    sample = {field: _item(file, headers[field]) for field, file in files.items()}
                if number >= start:
                    yield None, sample

    fields = {field: (dtype, shape[1:]) for field, (shape, dtype) in headers.items()}
    nbytes = sum(math.prod(shape) * dtype.itemsize for shape, dtype in headers.values())
    return Source(samples=samples, count=count, fields=fields, nbytes=nbytes)


def _npy_header(file: IO[bytes]) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Shape and dtype of what follows."""
    read = {1: np.lib.format.read_array_header_1_0, 2: np.lib.format.read_array_header_2_0}
    version = np.lib.format.read_magic(file)[0]
    if version not in read:
        raise ValueError(f"version {version} of NumPy's format")
    shape, in_columns, dtype = read[version](file)
    if min(shape, default=0) < 0:
        raise ValueError(f"an array of shape {shape}")
    if dtype.hasobject or (in_columns and len(shape) > 1):
        raise ArgumentError(
            f"an array of {'objects' if dtype.hasobject else 'columns'} in a .npz file cannot be read a sample at a time"
        )
    return shape, dtype


def _item(file: IO[bytes], header: tuple[tuple[int, ...], np.dtype[Any]]) -> Any:
    shape, dtype = header[0][1:], header[1]
    size = math.prod(shape) * dtype.itemsize
    data = file.read(size)
    if len(data) < size:
        raise ValueError(f"it ends behind {len(data)} bytes of {size}")
    return np.frombuffer(data, dtype, math.prod(shape)).reshape(shape)
