"""Parsing and printing of sizes, and the memory available now."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from ._native import memory_allowed
from .errors import ArgumentError, NoMemoryError

_BINARY = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4, "P": 5}
MOST_BYTES = (1 << 63) - 1
"""What a file or a memory can be at most, for the system."""


def parse_bytes(size: float | str, name: str = "memory") -> int:
    """`"2GiB"`, `"512 MiB"`, `"1.5GB"` (powers of ten) or a number of bytes, as bytes.

    Raises
    ------
    ArgumentError
        For anything else, for less than one byte, and for more than a file or memory can be.
    """
    if isinstance(size, str):
        match = re.fullmatch(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*([KMGTP]?)(i?)(B?)\s*", size, re.IGNORECASE)
        if match is None or (match[3] and not match[2]):
            raise ArgumentError(f"{name} must be a size such as '512MiB', '2GiB' or a number of bytes, not {size!r}")
        number, prefix, binary, unit = float(match[1]), match[2].upper(), match[3], match[4]
        size_bytes = number * (1000 if unit and not binary else 1024) ** _BINARY[prefix]
    elif isinstance(size, bool) or not isinstance(size, (int, float)) or size != size or abs(size) == float("inf"):
        raise ArgumentError(f"{name} must be a size such as '512MiB', '2GiB' or a number of bytes, not {size!r}")
    else:
        size_bytes = size
    if size_bytes > MOST_BYTES:
        raise ArgumentError(f"{name} must be less than 8 EiB, not {size!r}")
    found = int(size_bytes)
    if found < 1:
        raise ArgumentError(f"{name} must be at least one byte, not {size!r}")
    return found


def show_bytes(count: float) -> str:
    """`1536` as `1.5 KiB`."""
    for unit in ("bytes", "KiB", "MiB", "GiB", "TiB"):
        if abs(count) < 1024 or unit == "TiB":
            break
        count /= 1024
    return f"{count:.0f} {unit}" if unit == "bytes" else f"{count:.1f} {unit}"


def show_path(path: str | None) -> str:
    """A path in one line that can be printed: quoted where it has line ends, or bytes that are no text."""
    if path is None:
        return "unnamed"
    return path if path.isprintable() else repr(path)


def memory_available() -> int:
    """Bytes that this process could still take without swapping or being stopped, as far as the system tells."""
    found = [memory_allowed()]
    if sys.platform.startswith("linux"):
        found += [free for free in (_machine_free(), _group_free(), _limits_free()) if free is not None]
    return max(0, min(found))


CHECK_BYTES = 16 << 20
"""Results below this size are not held against the memory available: looking takes longer than reading."""


def check_room(size: int, what: object, advice: str) -> None:
    """Refuses to read `size` bytes of `what` if they do not fit into the available memory."""
    if size <= CHECK_BYTES:
        return
    free = memory_available()
    if size > free:
        raise NoMemoryError(
            f"{what!r}: {show_bytes(size)} do not fit the {show_bytes(free)} of memory available; {advice}",
            needed=size,
            available=free,
        )


def _machine_free() -> int | None:
    for line in _text(Path("/proc/meminfo")).splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) << 10
    return None


def _group_free() -> int | None:
    """What the control group of this process, and those around it, leave free; page cache counts as free."""
    free: list[int] = []
    for line in _text(Path("/proc/self/cgroup")).splitlines():
        number, controllers, path = line.split(":", 2)
        if number == "0":
            root, limit, usage, cache = Path("/sys/fs/cgroup"), "memory.max", "memory.current", "inactive_file"
        elif "memory" in controllers.split(","):
            root, limit, usage = Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes", "memory.usage_in_bytes"
            cache = "total_inactive_file"
        else:
            continue
        group = root / path.lstrip("/")
        for folder in (group, *group.parents):
            bound = _text(folder / limit).strip()
            if bound.isdigit():
                free.append(int(bound) - int(_text(folder / usage).strip() or 0) + _statistic(folder / "memory.stat", cache))
            if folder == root:
                break
    return min(free, default=None)


def _limits_free() -> int | None:
    """What limits of this process on addresses and on data leave (`ulimit -v` and `-d`)."""
    import resource

    pages = [int(count) for count in _text(Path("/proc/self/statm")).split()]
    free: list[int] = []
    for limit, place in ((resource.RLIMIT_AS, 0), (resource.RLIMIT_DATA, 5)):
        bound = resource.getrlimit(limit)[0]
        if bound != resource.RLIM_INFINITY and pages:
            free.append(bound - pages[place] * resource.getpagesize())
    return min(free, default=None)


def _statistic(path: Path, name: str) -> int:
    for line in _text(path).splitlines():
        key, _, value = line.partition(" ")
        if key == name:
            return int(value)
    return 0


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
