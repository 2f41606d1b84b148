"""Runs a program under a memory limit that the kernel enforces, and watches its memory.

Ways, best first; `best_way` takes the first that works here and says which:
  1. a memory control group of its own (cgroup v2 or v1): bounds everything, page cache included;
  2. the same, made by systemd for an ordinary user;
  3. RLIMIT_DATA: bounds the private memory that a process may map, not the page cache;
  4. nothing (other systems than Linux): memory is watched only.

Swap is forbidden where the kernel lets us, so that "fits" means "fits in memory".
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

SAMPLE_S = 0.02
MIB = 1 << 20

Kind = Literal["cgroup v2", "cgroup v1", "systemd", "rlimit", "none"]

SENTENCES: dict[Kind, str] = {
    "cgroup v2": "a Linux control group (cgroup v2) made for this run; it counts all memory, the page cache included",
    "cgroup v1": "a Linux control group (cgroup v1) made for this run; it counts all memory, the page cache included",
    "systemd": "a Linux control group made by systemd for this run; it counts all memory, the page cache included",
    "rlimit": (
        "RLIMIT_DATA, because this user may not make a control group here; it bounds the memory that the process allocates, "
        "but not the page cache that the kernel keeps on its behalf"
    ),
    "none": "nothing: this system offers no memory limit for a process, so memory was only watched",
}


@dataclass(frozen=True)
class Way:
    """How the limit is enforced."""

    kind: Kind
    parent: Path | None = None
    """The control group in which a new one is made."""

    @property
    def sentence(self) -> str:
        return SENTENCES[self.kind]

    @property
    def enforced(self) -> bool:
        return self.kind != "none"

    @property
    def counts_page_cache(self) -> bool:
        return self.kind in ("cgroup v2", "cgroup v1", "systemd")


@dataclass
class Outcome:
    """What became of a program run under a limit."""

    returncode: int
    killed: bool
    """The kernel ended it because it wanted more memory than the limit."""
    wall_s: float
    started_s: float
    """time.monotonic() at the start, the clock of `samples` too."""
    limit_bytes: int | None
    peak_bytes: int
    """Most anonymous and shared memory seen in the samples."""
    kernel_peak_bytes: int | None
    """Most memory charged to the control group, page cache included, as counted by the kernel."""
    samples: list[tuple[float, int]] = field(default_factory=list)
    """(seconds since the start, anonymous + shared resident bytes)"""
    output: str = ""
    timed_out: bool = False


def best_way() -> Way:
    """The strongest limit that works here; each is tried, not guessed."""
    own_v2, own_v1 = group_of("self", "cgroup2"), group_of("self", "memory")
    # In v2 a group with processes has no limited groups inside; one beside ours is what a delegated user session allows.
    for parent in (own_v2, own_v2.parent) if own_v2 else ():
        if works_v2(parent):
            return Way("cgroup v2", parent)
    if own_v1 and works(Way("cgroup v1", own_v1)):
        return Way("cgroup v1", own_v1)
    if works(Way("systemd")):
        return Way("systemd")
    if sys.platform.startswith("linux"):
        return Way("rlimit")
    return Way("none")


def run_limited(
    command: Sequence[str],
    limit_bytes: int | None,
    way: Way,
    *,
    environment: dict[str, str] | None = None,
    timeout_s: float = 3600.0,
    show_stderr: bool = False,
) -> Outcome:
    """Run `command` with at most `limit_bytes` of memory (None: no limit, only watched) and wait for its end.

    Standard output, and standard error unless `show_stderr`, are kept (their last 8 KiB) in the outcome.
    """
    with tempfile.TemporaryFile() as output, confined(command, limit_bytes, way) as (arguments, group):
        started = time.monotonic()
        process = subprocess.Popen(
            arguments,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=None if show_stderr else subprocess.STDOUT,
            env={**os.environ, **(environment or {})},
        )
        try:
            watch = Watch(process, group, way)
            timed_out = watch.until_end(started + timeout_s)
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
        wall_s = time.monotonic() - started
        output.seek(max(0, output.tell() - 8192))
        return Outcome(
            returncode=process.returncode,
            killed=limit_bytes is not None and way.counts_page_cache and killed_by_kernel(process.returncode, watch, timed_out),
            wall_s=wall_s,
            started_s=started,
            limit_bytes=limit_bytes,
            peak_bytes=max((bytes_ for _, bytes_ in watch.samples), default=0),
            kernel_peak_bytes=watch.kernel_peak_bytes,
            samples=[(t - started, bytes_) for t, bytes_ in watch.samples],
            output=output.read().decode("utf-8", "replace"),
            timed_out=timed_out,
        )


def killed_by_kernel(returncode: int, watch: Watch, timed_out: bool) -> bool:
    """A group counts its kills; where systemd has already removed the group, SIGKILL without another sender tells the same."""
    return not timed_out and (returncode in (-signal.SIGKILL, 128 + signal.SIGKILL)) and (watch.kills is None or watch.kills > 0)


class Watch:
    """Samples the memory of a process and, where there is one, of its control group."""

    def __init__(self, process: subprocess.Popen[bytes], group: Path | None, way: Way) -> None:
        self.process = process
        self.group = group
        self.way = way
        self.samples: list[tuple[float, int]] = []
        self.kernel_peak_bytes: int | None = None
        self.kills: int | None = None

    def until_end(self, deadline_s: float) -> bool:
        """Whether the deadline passed first."""
        while self.process.poll() is None:
            if time.monotonic() > deadline_s:
                return True
            self.sample()
            time.sleep(SAMPLE_S)
        self.read_group()
        return False

    def sample(self) -> None:
        memory = process_memory(self.process.pid)
        if memory is not None:
            self.samples.append((time.monotonic(), memory))
        self.read_group()

    def read_group(self) -> None:
        if self.group is None and self.way.kind == "systemd":
            found = group_of(self.process.pid, "cgroup2") or group_of(self.process.pid, "memory")
            self.group = found if found and found.name.startswith("outcore-demo-") else None
        if self.group is None:
            return
        peak = first_number(self.group, "memory.peak", "memory.max_usage_in_bytes")
        self.kernel_peak_bytes = peak if peak is not None else self.kernel_peak_bytes
        events = keyed_number(self.group, "oom_kill", "memory.events", "memory.oom_control")
        self.kills = events if events is not None else self.kills


def process_memory(pid: int | str = "self") -> int | None:
    """Anonymous plus shared resident bytes: what a process holds apart from file pages that the kernel can drop."""
    fields = process_status(pid)
    if "RssAnon" not in fields:
        return None
    return fields["RssAnon"] + fields.get("RssShmem", 0)


def process_status(pid: int | str = "self") -> dict[str, int]:
    """The byte counts of /proc/PID/status; empty where there is none."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return {}
    found = {}
    for line in lines:
        name, _, rest = line.partition(":")
        parts = rest.split()
        if len(parts) == 2 and parts[1] == "kB":
            found[name] = int(parts[0]) * 1024
    return found


# Confinement: a command line that joins the group, and the group's folder


@contextmanager
def confined(command: Sequence[str], limit_bytes: int | None, way: Way) -> Iterator[tuple[list[str], Path | None]]:
    if limit_bytes is None or not way.enforced:
        yield list(command), None
    elif way.kind == "rlimit":
        # prlimit(1) is not everywhere; the shell's ulimit is, and counts in KiB.
        yield ["sh", "-c", 'ulimit -d "$0" && exec "$@"', str(limit_bytes // 1024), *command], None
    elif way.kind == "systemd":
        unit = f"outcore-demo-{uuid.uuid4().hex[:12]}"
        # Where its folder lies is known only once it runs, see Watch.
        yield [*systemd_run(unit, limit_bytes), *command], None
    else:
        assert way.parent is not None
        group = way.parent / f"outcore-demo-{os.getpid()}-{uuid.uuid4().hex[:8]}"
        group.mkdir()
        try:
            set_limit(group, limit_bytes)
            # The program joins before it starts, so that every byte it ever allocates is counted.
            join = 'echo $$ > "$0/cgroup.procs" && exec "$@"'
            yield ["sh", "-c", join, str(group), *command], group
        finally:
            remove(group)


def set_limit(group: Path, limit_bytes: int) -> None:
    if (group / "memory.max").exists():
        write(group / "memory.max", limit_bytes)
        write_if_there(group / "memory.swap.max", 0)
    else:
        write(group / "memory.limit_in_bytes", limit_bytes)
        write_if_there(group / "memory.memsw.limit_in_bytes", limit_bytes)
        write_if_there(group / "memory.swappiness", 0)


def write(path: Path, value: int) -> None:
    path.write_text(str(value))


def write_if_there(path: Path, value: int) -> None:
    """Swap accounting is a kernel option; without it there is no such file."""
    try:
        if path.exists():
            write(path, value)
    except OSError:
        pass


def remove(group: Path) -> None:
    """A group can be removed once its last process is reaped, which the kernel finishes shortly after the exit."""
    for _ in range(100):
        try:
            group.rmdir()
            return
        except OSError:
            time.sleep(0.02)


def systemd_run(unit: str, limit_bytes: int) -> list[str]:
    scope = ["systemd-run", "--quiet", "--scope", "--collect", f"--unit={unit}"]
    if os.geteuid() != 0:
        scope.insert(1, "--user")
    return [*scope, "-p", f"MemoryMax={limit_bytes}", "-p", "MemorySwapMax=0", "--"]


# What works here


def group_of(pid: int | str, controller: str) -> Path | None:
    """The folder of a process's control group, as seen through the mounts of this process."""
    mount = None
    for line in lines_of("/proc/self/mountinfo"):
        left, _, right = line.partition(" - ")
        kind, _, options = right.split(" ")[:3] if right.count(" ") >= 2 else ("", "", "")
        if (kind == "cgroup2" and controller == "cgroup2") or (kind == "cgroup" and controller in options.split(",")):
            mount = (left.split()[3], Path(left.split()[4]))
            break
    if mount is None:
        return None
    for line in lines_of(f"/proc/{pid}/cgroup"):
        _, controllers, path = line.split(":", 2)
        if (controller == "cgroup2" and controllers == "") or controller in controllers.split(","):
            root, where = mount
            inside = os.path.relpath(path, root) if path.startswith(root) else path.lstrip("/")
            return Path(os.path.normpath(where / inside))
    return None


def works_v2(parent: Path) -> bool:
    enabled = " ".join(lines_of(parent / "cgroup.subtree_control")).split()
    if "memory" not in enabled:
        available = " ".join(lines_of(parent / "cgroup.controllers")).split()
        # Only an empty group may hand controllers down; with processes in it the kernel refuses, and nothing has changed.
        try:
            if "memory" not in available:
                return False
            (parent / "cgroup.subtree_control").write_text("+memory")
        except OSError:
            return False
    return works(Way("cgroup v2", parent))


def works(way: Way) -> bool:
    """A tiny program runs under a generous limit."""
    if way.kind == "systemd" and not shutil.which("systemd-run"):
        return False
    try:
        return run_limited(["true"], 64 * MIB, way, timeout_s=10).returncode == 0
    except OSError:
        return False


def lines_of(path: str | Path) -> list[str]:
    try:
        return Path(path).read_text().splitlines()
    except OSError:
        return []


def first_number(group: Path, *names: str) -> int | None:
    for name in names:
        text = " ".join(lines_of(group / name)).strip()
        if text.isdigit():
            return int(text)
    return None


def keyed_number(group: Path, key: str, *names: str) -> int | None:
    for name in names:
        for line in lines_of(group / name):
            parts = line.split()
            if len(parts) == 2 and parts[0] == key:
                return int(parts[1])
    return None


def describe(outcome: Outcome) -> dict[str, Any]:
    """The outcome without its samples, for a JSON report."""
    return {
        "returncode": outcome.returncode,
        "killed": outcome.killed,
        "wall_s": outcome.wall_s,
        "peak_bytes": outcome.peak_bytes,
        "kernel_peak_bytes": outcome.kernel_peak_bytes,
    }
