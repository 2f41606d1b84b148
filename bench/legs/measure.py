"""The clock of every leg, and checks that what was timed is also right."""

from __future__ import annotations

import contextlib
import os
import resource
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

MOST_SAMPLES = 400
SHORTEST_SAMPLE_S = 0.05
"""Shorter calls are timed several at once, so that clock and bookkeeping weigh nothing."""

CHECKED_ROWS = 4
CHECKED_COLS = 16
CHECKED_AT_ONCE = 512

Array = npt.NDArray[Any]


def sampled(call: Callable[[], object], *, seconds: float = 0.0, before: Callable[[], object] | None = None) -> dict[str, Any]:
    """Call again and again for `seconds`, at least once; `before` runs before each call and is not timed.

    Bytes are those that the kernel charged this process for at the block device, of all samples together.
    """
    samples: list[float] = []
    moved = {"read_bytes": 0, "written_bytes": 0}
    cpu_seconds = 0.0
    while not samples or (sum(samples) < seconds and len(samples) < MOST_SAMPLES):
        if before is not None:
            before()
        disk, cpu, started = disk_bytes(), processor_seconds(), time.perf_counter()
        call()
        samples.append(time.perf_counter() - started)
        cpu_seconds += processor_seconds() - cpu
        for key, value in disk_bytes().items():
            moved[key] += value - disk[key]
    return {"seconds": samples, "cpu_seconds": cpu_seconds, **moved}


def sampled_in_batches(call: Callable[[], object], *, seconds: float) -> dict[str, Any]:
    """For short calls: warmed up once, then as many calls a sample as take `SHORTEST_SAMPLE_S`."""
    call()
    started = time.perf_counter()
    call()
    calls = max(1, round(SHORTEST_SAMPLE_S / max(time.perf_counter() - started, 1e-7)))

    def batch() -> None:
        for _ in range(calls):
            call()

    found = sampled(batch, seconds=seconds)
    found["seconds"] = [sample / calls for sample in found["seconds"]]
    return {**found, "calls_per_sample": calls}


def timed(call: Callable[[], object], spec: dict[str, Any]) -> dict[str, Any]:
    """As the spec asks: `short` calls in batches, for `seconds`."""
    return (sampled_in_batches if spec.get("short") else sampled)(call, seconds=spec.get("seconds", 0.0))


def timed_epoch(batches: Iterable[tuple[Any, Any]], spec: dict[str, Any]) -> dict[str, Any]:
    """One epoch, from opening to the last batch, or as much of it as `seconds` are for: tensors of bytes, and of labels.

    Every batch is checked to be what `harness.samples` writes, and no sample to come twice.
    """
    cpu, started, numbers = processor_seconds(), time.perf_counter(), []
    for x, y in batches:
        number = np.ascontiguousarray(x[:, :8]).view("<u8")[:, 0].copy()
        if tuple(x.shape) != (len(y), spec["size"]) or (number % 1000 != np.asarray(y)).any():
            raise SystemExit("a batch is not what was written")
        numbers.append(number)
        if time.perf_counter() > started + spec["seconds"]:
            break
    seconds, cpu = time.perf_counter() - started, processor_seconds() - cpu
    seen = np.concatenate(numbers)
    check_numbers(seen, spec["count"])
    return {
        "seconds": [seconds],
        "work": len(seen),
        "cpu_seconds": cpu,
        "unevenness": unevenness(seen, spec["batch"], spec["count"]),
    }


def check_numbers(numbers: Array, count: int) -> None:
    """Of samples: all are among the `count` that there are, and none came twice."""
    if len(numbers) and int(numbers.max()) >= count:
        raise SystemExit("a sample came that is not there")
    seen = np.zeros(count, bool)
    seen[numbers] = True
    if np.count_nonzero(seen) != len(numbers):
        raise SystemExit("a sample came twice")


def unevenness(numbers: Array, batch: int, count: int) -> float:
    """Of the whole batches of an order: their size times the variance of their means, over the variance of all numbers.

    About 1 for a random order, also of a part of it; `batch` where each batch has neighbours. The variances are taken about the
    mean of all `count` numbers, so that a part of an epoch from one place only counts as uneven too.
    """
    whole = np.asarray(numbers, np.float64)[: len(numbers) // batch * batch].reshape(-1, batch)
    away = whole.mean(axis=1) - (count - 1) / 2
    return float(batch * np.mean(away**2) / ((count**2 - 1) / 12)) if len(whole) and count > 1 else 1.0


def epochs(epoch: Callable[[], Iterable[Any]], spec: dict[str, Any]) -> dict[str, Any]:
    """Epochs of arrays or tensors of bytes, after one untimed that is checked to have every sample of `harness.samples` once."""
    numbers = [np.asarray(x)[:, :8].copy().view("<u8") for x in epoch()]
    if sum(int(part.sum()) for part in numbers) != spec["count"] * (spec["count"] - 1) // 2:
        raise SystemExit("an epoch does not have every sample once")

    def one() -> None:
        if sum(len(x) for x in epoch()) != spec["count"]:
            raise SystemExit("an epoch does not have every sample")

    return {**sampled(one, seconds=spec["seconds"]), "work": spec["count"]}


def processor_seconds() -> float:
    """Of this process and all that it started: the system counts those that have ended, /proc tells of those that go on."""
    ended = sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return ended + sum(map(processor_seconds_of, children(os.getpid())))


def processor_seconds_of(process: int) -> float:
    """With its children, those that have ended and those that go on; 0 if it has just ended."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK") + sum(map(processor_seconds_of, children(process)))


def children(process: int) -> list[int]:
    found: list[int] = []
    for task in Path(f"/proc/{process}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            found += map(int, task.read_text().split())
    return found


def disk_bytes() -> dict[str, int]:
    try:
        fields = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    except OSError:
        return {"read_bytes": 0, "written_bytes": 0}
    return {"read_bytes": int(fields["read_bytes"]), "written_bytes": int(fields["write_bytes"])}


def cold(paths: Sequence[str]) -> None:
    """Between samples of one leg, its files leave the kernel's cache again."""
    for path in paths:
        with open(path, "rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def product_error(c: Array, a: Array, b: Array) -> float:
    """The largest error of a few entries of C = A B, over eps |a| |b|: a few at most when right."""
    rows = np.unique(np.linspace(0, a.shape[0] - 1, CHECKED_ROWS).astype(int))
    start = min(b.shape[1] // 3, max(0, b.shape[1] - CHECKED_COLS))
    cols = slice(start, start + CHECKED_COLS)
    left, right = np.asarray(a[rows], np.float64), np.asarray(b[:, cols], np.float64)
    size = np.linalg.norm(left, axis=1)[:, None] * np.linalg.norm(right, axis=0)
    error = np.abs(np.asarray(c[rows, cols], np.float64) - left @ right)
    return float((error / (size * np.finfo(np.float32).eps)).max())


def captured_variance(path: str, components: Array, mean: Array, rows: int = 8192) -> float:
    """The share of variance that the components hold, of the same rows for all, spread over the whole file."""
    x = np.load(path, mmap_mode="r")
    chosen = np.unique(np.linspace(0, len(x) - 1, rows).astype(np.int64))
    axes = np.linalg.qr(np.asarray(components, np.float64).T)[0]
    captured = total = 0.0
    # Some at a time, for the memory of the whole leg is limited.
    for part in np.array_split(chosen, -(-rows // CHECKED_AT_ONCE)):
        centred = np.asarray(x[part], np.float64) - np.asarray(mean, np.float64)
        captured += float(((centred @ axes) ** 2).sum())
        total += float((centred**2).sum())
    return captured / total


def component_error(path: str, components: Array, mean: Array, variances: Array, rows: int = 8192) -> float:
    """How far components are from being those of the rows, of which some are looked at: in standard errors, a few when right.

    The mean, the variances along the components, that these are not correlated and hold as much as any could; and, over eps,
    that components are orthonormal.
    """
    x = np.load(path, mmap_mode="r")
    chosen = np.unique(np.linspace(0, len(x) - 1, rows).astype(np.int64))
    axes, sums = np.asarray(components, np.float64), np.zeros(x.shape[1])
    gram = np.zeros((x.shape[1], x.shape[1]))
    for part in np.array_split(chosen, -(-rows // CHECKED_AT_ONCE)):
        centred = np.asarray(x[part], np.float64) - np.asarray(mean, np.float64)
        sums += centred.sum(axis=0)
        gram += centred.T @ centred
    gram, n = gram / len(chosen), len(chosen)
    found = axes @ gram @ axes.T
    deviations = np.sqrt(np.diag(found))
    correlated = found / np.outer(deviations, deviations) - np.eye(len(axes))
    most = np.linalg.eigvalsh(gram)[-len(axes) :].sum()
    errors = (
        np.abs(sums / n) / np.sqrt(np.diag(gram) / n),
        np.abs(np.diag(found) / np.asarray(variances, np.float64) - 1) / np.sqrt(2 / n),
        np.abs(correlated) * np.sqrt(n),
        np.atleast_1d((1 - np.trace(found) / most) / np.sqrt(2 / n)),
        np.abs(axes @ axes.T - np.eye(len(axes))) / (x.shape[1] * np.finfo(np.float32).eps),
    )
    # What is not a number is as wrong as can be.
    return float(np.nan_to_num(np.max([error.max() for error in errors]), nan=np.inf, posinf=np.inf))


def start_centers(path: str, clusters: int) -> Array:
    """Rows to begin with, the same for all: different ones of the first twenty thousand, in which all kinds of rows are."""
    x = np.load(path, mmap_mode="r")
    chosen = np.random.default_rng(0).choice(min(len(x), 20_000), clusters, replace=False)
    return np.asarray(x[np.sort(chosen)])


def recall(path: str, queries: Array, found: Array, checked: int = 20, rows: int = 100_000) -> float:
    """The share of the nearest rows of some queries, by a plain search in f64, that were found."""
    x, k = np.load(path, mmap_mode="r"), found.shape[1]
    queries = np.asarray(queries[:checked], np.float64)
    near, numbers = np.full((len(queries), k), np.inf), np.zeros((len(queries), k), np.int64)
    for start in range(0, len(x), rows):
        part = np.asarray(x[start : start + rows], np.float64)
        for query, q in enumerate(queries):
            distances = np.append(near[query], np.square(part - q).sum(axis=1))
            among = np.append(numbers[query], np.arange(start, start + len(part)))
            order = np.argsort(distances, kind="stable")[:k]
            near[query], numbers[query] = distances[order], among[order]
    return float(np.mean([len(np.intersect1d(a, b)) / k for a, b in zip(numbers, found[:checked], strict=True)]))


def inertia(path: str, centers: Array, labels: Array, rows: int = 100_000) -> float:
    """Sum of the squared distances of rows to the centres of their labels, in f64."""
    x, centers = np.load(path, mmap_mode="r"), np.asarray(centers, np.float64)
    parts = (slice(start, start + rows) for start in range(0, len(x), rows))
    return float(sum(np.square(x[part] - centers[labels[part]]).sum() for part in parts))


def nearest_labels(path: str, centers: Array, rows: int = 100_000) -> Array:
    """The nearest centre of each row, for contestants that keep no labels."""
    x, centers = np.load(path, mmap_mode="r"), np.asarray(centers, np.float64)
    squares = np.square(centers).sum(1)
    parts = (np.asarray(x[start : start + rows], np.float64) for start in range(0, len(x), rows))
    return np.concatenate([np.argmin(squares - 2 * (part @ centers.T), axis=1) for part in parts])
