"""The device's limit, by fio: what every share in the results is a share of."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from harness.model import MIB, Context

TESTS: dict[str, dict[str, Any]] = {
    "sequential read": {"rw": "read", "bs": MIB, "iodepth": 32},
    "sequential write": {"rw": "write", "bs": MIB, "iodepth": 32},
    "random read 4 KiB": {"rw": "randread", "bs": 4096, "iodepth": 128},
    "random read 512 B": {"rw": "randread", "bs": 512, "iodepth": 128},
}
HUGE_PAGES, HUGE_PAGE_BYTES = Path("/proc/sys/vm/nr_hugepages"), 2 * MIB
HUGE = {"iomem": "mmaphuge"}
"""Buffers that are one piece for the device; of small pages they are many, at a quarter of the speed on some virtual disks."""
SPARE_PAGES = 2
"""fio asks for a little more than its buffers."""
HUGE_TESTS: dict[str, dict[str, Any]] = {"sequential read into huge pages": {"rw": "read", "bs": MIB, "iodepth": 4, **HUGE}}


def available() -> bool:
    return shutil.which("fio") is not None


def has_huge_pages() -> bool:
    """Whether they may be set aside: by root."""
    return os.access(HUGE_PAGES, os.W_OK)


@contextmanager
def huge_pages(size_bytes: int) -> Iterator[None]:
    before = int(HUGE_PAGES.read_text())
    wanted = before + -(-size_bytes // HUGE_PAGE_BYTES) + SPARE_PAGES
    HUGE_PAGES.write_text(str(wanted))
    try:
        if int(HUGE_PAGES.read_text()) < wanted:
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
    is_huge = options.get("iomem") == HUGE["iomem"]
    arguments = command(path, size_bytes, seconds, options)
    with huge_pages(options["bs"] * options["iodepth"]) if is_huge else nullcontext():
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


def limits(context: Context, root: Path) -> dict[str, Any]:
    """Every test once, on a file of its own that is filled first; a test that the device refuses says so."""
    path = context.path("fio.bin")
    size = max(64 * MIB, MIB * context.count(8192))
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    fill(root / path, size)
    found: dict[str, Any] = {}
    try:
        for name, options in {**TESTS, **(HUGE_TESTS if has_huge_pages() else {})}.items():
            try:
                found[name] = run(path, size, context.seconds, options, root)
            except RuntimeError as error:
                found[name] = {"command": command(path, size, context.seconds, options), "error": str(error)}
    finally:
        (root / path).unlink(missing_ok=True)
    return found


def new_file(path: str, size_bytes: int, *, filled: bool) -> None:
    """A file that was not there before, its space set aside, or written by fio."""
    Path(path).unlink(missing_ok=True)
    with open(path, "wb") as file:
        os.posix_fallocate(file.fileno(), 0, size_bytes)
    if filled:
        run(path, size_bytes, None, {"rw": "write", "bs": MIB, "iodepth": 16})


def fill(path: Path, size_bytes: int) -> None:
    """Bytes that no layer can compress or leave out."""
    done = subprocess.run(
        ["dd", "if=/dev/urandom", f"of={path}", f"bs={MIB}", f"count={size_bytes // MIB}", "conv=fsync", "status=none"],
        check=False,
    )
    if done.returncode != 0:
        raise RuntimeError(f"{path.name}: the file for fio could not be written")
