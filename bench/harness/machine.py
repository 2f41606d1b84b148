"""The machine, the versions and the state of the sources that a result was measured with."""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from harness.model import ROOT

PACKAGES = (
    *("outcore", "numpy", "scipy", "scikit-learn", "torch", "dask", "dask-ml", "h5py", "zarr", "mkl", "matplotlib"),
    *("gensim", "tomotopy"),
)
MADE_HERE = ("bench/results/", "bench/README.md")
"""By every run: neither is code."""
VARIABLES = re.compile(r"^(OPENBLAS|MKL|OMP|BLIS|GOTO|OUTCORE(?!_REAL_DATA)|MALLOC)")


def machine(data: Path) -> dict[str, Any]:
    """Processor, memory, kernel, and the disk and file system under `data`."""
    return {
        "cpu": cpu_model(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_bytes": memory_bytes(),
        "kernel": f"{platform.system()} {platform.release()} {platform.machine()}",
        "instructions": instructions(),
        **storage(data),
    }


def slug(facts: dict[str, Any]) -> str:
    """`amd-epyc-2-cores`: names the kind of machine, not whose it is."""
    name = re.sub(r"\((r|tm)\)|cpu|processor|@.*", "", facts["cpu"].lower())
    words = re.sub(r"[^a-z0-9]+", "-", name).strip("-") or "machine"
    return f"{words}-{facts['cores']}-cores"


def cpu_model() -> str:
    for line in lines("/proc/cpuinfo"):
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def instructions() -> list[str]:
    for line in lines("/proc/cpuinfo"):
        if line.startswith("flags"):
            return sorted(word for word in line.split() if re.match(r"avx|fma|amx", word))
    return []


def memory_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def storage(folder: Path) -> dict[str, Any]:
    """The mount that holds `folder` and the disk behind it, as far as the kernel tells."""
    best: tuple[str, str, str, str] = ("", "", "", "")
    where = str(folder.resolve())
    for line in lines("/proc/self/mountinfo"):
        left, _, right = line.partition(" - ")
        mount = left.split()[4]
        inside = where == mount or where.startswith(mount.rstrip("/") + "/")
        if inside and len(mount) >= len(best[0]):
            kind, source, *_ = right.split()
            best = (mount, kind, source, left.split()[5])
    disk = Path("/sys/class/block") / Path(best[2]).name
    queue = next((path for path in (disk / "queue", disk.resolve().parent / "queue") if path.exists()), None)
    facts: dict[str, Any] = {"filesystem": best[1], "mount_options": best[3], "disk": best[2]}
    if queue is not None:
        facts["disk_rotational"] = text(queue / "rotational") == "1"
        facts["disk_scheduler"] = text(queue / "scheduler")
        facts["disk_logical_block_bytes"] = int(text(queue / "logical_block_size") or 512)
        facts["disk_model"] = text(queue.parent / "device" / "model") or "not told"
    return facts


def versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = "absent"
    for tool in ("fio", "rustc"):
        found[tool] = output([tool, "--version"]) if shutil.which(tool) else "absent"
    return found


def sources(tree: Path | None = None) -> dict[str, Any]:
    """The commit; `changed` lists files that differ from it or are not in it, this harness included, but not what it makes."""
    found = output(["git", "status", "--porcelain", "--untracked-files=all"], tree).splitlines()
    paths = [line[2:].strip().rpartition(" -> ")[2] for line in found]
    changed = [path for path in paths if not path.startswith(MADE_HERE)]
    # Two runs with the same files changed may have run different code.
    difference = hashlib.sha256(output(["git", "diff", "HEAD", "--", *changed], tree).encode()).hexdigest() if changed else None
    return {"commit": output(["git", "rev-parse", "HEAD"], tree), "changed": changed, "difference": difference}


def environment() -> dict[str, str]:
    """The variables that change how fast numerical code runs."""
    known = {name: value for name, value in sorted(os.environ.items()) if VARIABLES.match(name)}
    return {name: "(a folder)" if os.path.isabs(value) else value for name, value in known.items()}


def mkl_library() -> str | None:
    """libmkl_rt as the `mkl` wheel installs it; it lies in the environment's own lib folder."""
    found = sorted(Path(sys.prefix, "lib").glob("libmkl_rt.so*"))
    return str(found[-1]) if found else None


def output(command: list[str], folder: Path | None = None) -> str:
    try:
        return subprocess.run(
            command, cwd=folder or ROOT, capture_output=True, text=True, timeout=20, check=False
        ).stdout.rstrip()
    except OSError:
        return ""


def text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def lines(path: str) -> list[str]:
    return text(Path(path)).splitlines()
