"""fio: what measures the device's limit, of which the shares in the results are shares."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from harness.model import MIB, RandomFile

HUGE_PAGES, COMPACT, HUGE_PAGE_BYTES = Path("/proc/sys/vm/nr_hugepages"), Path("/proc/sys/vm/compact_memory"), 2 * MIB
HUGE = {"iomem": "mmaphuge"}
"""Buffers that are one piece for the device; of small pages they are many, at a quarter of the speed on some virtual disks."""
SPARE_PAGES = 2
"""fio asks for a little more than its buffers, in each of its processes."""
REGISTERED = {"fixedbufs": 1, "registerfiles": 1}
"""Neither pages are pinned nor descriptors looked up for each request."""


def available() -> bool:
    return shutil.which("fio") is not None


def has_huge_pages() -> bool:
    """Whether they may be set aside: by root."""
    return os.access(HUGE_PAGES, os.W_OK)


@contextmanager
def huge_pages_restored() -> Iterator[None]:
    """Around all legs: one that is killed leaves its huge pages set aside."""
    before = HUGE_PAGES.read_text() if has_huge_pages() else None
    try:
        yield
    finally:
        if before is not None:
            HUGE_PAGES.write_text(before)


@contextmanager
def huge_pages(size_bytes: int, processes: int) -> Iterator[None]:
    before = int(HUGE_PAGES.read_text())
    wanted = before + -(-size_bytes // HUGE_PAGE_BYTES) + SPARE_PAGES * processes
    try:
        # The first try takes what is free; then memory is moved together, so that no round goes without its limit.
        for compact in (False, True, True):
            if compact:
                COMPACT.write_text("1")
            HUGE_PAGES.write_text(str(wanted))
            if int(HUGE_PAGES.read_text()) >= wanted:
                break
        else:
            raise RuntimeError(f"the system has no {wanted} huge pages")
        yield
    finally:
        HUGE_PAGES.write_text(str(before))


def command(path: str, size_bytes: int, seconds: float | None, options: Mapping[str, Any]) -> list[str]:
    """io_uring and O_DIRECT, for some seconds, or once over the file; a file read is never written, and random reads differ
    from run to run.
    """
    timed = {} if seconds is None else {"time_based": 1, "runtime": max(1, round(seconds))}
    fixed = {
        "name": "limit",
        "filename": path,
        "size": size_bytes,
        "ioengine": "io_uring",
        "direct": 1,
        **timed,
        "randrepeat": 0,
        "norandommap": 1,
        "output-format": "json",
    }
    readonly = [] if options["rw"] == "write" else ["--readonly"]
    return ["fio", *readonly, *(f"--{key}={value}" for key, value in {**fixed, **options}.items())]


def run(path: str, size_bytes: int, seconds: float | None, options: Mapping[str, Any], cwd: Path | None = None) -> dict[str, Any]:
    """fio's own numbers of one job, read and write taken together."""
    processes = options.get("numjobs", 1)
    is_huge = options.get("iomem") == HUGE["iomem"]
    arguments = command(path, size_bytes, seconds, options)
    with huge_pages(options["bs"] * options["iodepth"] * processes, processes) if is_huge else nullcontext():
        done = subprocess.run(arguments, cwd=cwd, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        reason = (done.stderr.strip() or done.stdout.strip()).splitlines()
        raise RuntimeError(reason[0] if reason else f"fio ended with {done.returncode}")
    job = json.loads(done.stdout[done.stdout.index("{") :])["jobs"][0]
    parts = [job["read"], job["write"]]
    seconds = max(part["runtime"] for part in parts) / 1e3
    return {
        "command": arguments,
        "seconds": seconds,
        "bytes": sum(part["io_bytes"] for part in parts),
        "requests": sum(part["total_ios"] for part in parts),
        "cpu_seconds": (job["usr_cpu"] + job["sys_cpu"]) / 100 * seconds,
        "latency_ns_p99": max(part["clat_ns"].get("percentile", {}).get("99.000000", 0) for part in parts),
    }


def new_file(path: str, size_bytes: int) -> None:
    """A file that was not there before, its space set aside."""
    Path(path).unlink(missing_ok=True)
    with open(path, "wb") as file:
        os.posix_fallocate(file.fileno(), 0, size_bytes)


def make(file: RandomFile, root: Path) -> None:
    path = root / file.path
    if not path.exists() or path.stat().st_size != file.nbytes:
        path.parent.mkdir(parents=True, exist_ok=True)
        fill(path, file.nbytes)


def fill(path: Path, size_bytes: int) -> None:
    done = subprocess.run(
        ["dd", "if=/dev/urandom", f"of={path}", f"bs={MIB}", f"count={size_bytes // MIB}", "conv=fsync", "status=none"],
        check=False,
    )
    if done.returncode != 0:
        raise RuntimeError(f"{path.name}: the file for fio could not be written")
