"""The order of events of `outcore demo`: one part after the other, then the report."""

from __future__ import annotations

import os
import platform
import shlex
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Literal

import numpy as np
import psutil

from . import image_part, limit, text_part
from .report import render
from .words import bytes_in_words, coherence_in_words, seconds_in_words

Part = Literal["images", "text"]


def run_demo(
    data: str | os.PathLike[str] | None = None,
    *,
    texts: str | os.PathLike[str] | None = None,
    only: Part | None = None,
    memory: str = "32MiB",
    text_memory: str = "256MiB",
    components: int = 50,
    clusters: int = 32,
    topics: int = 32,
    dimensions: int = 4096,
    rounds: int = 20,
    output: str | os.PathLike[str] = "report.html",
    json: bool = False,
    scratch: str | os.PathLike[str] | None = None,
    threads: int | None = None,
    size: tuple[int, int] | None = None,
    mixed: Literal["resize", "refuse"] = "resize",
    random_state: int = 0,
    compare: bool = True,
    progress: bool | None = None,
    command: str | None = None,
) -> dict[str, Any]:
    """Find principal components of images, clusters and topics of texts, each within a memory limit, and write a report.

    Parameters
    ----------
    data : folder or tar archive of images, or folder of sheets; default the MNIST of the project.
    texts : table of names, labels and texts between tabs, a line each, plain or packed by xz, gzip or bzip2; default the
        package descriptions of the project.
    only : one part instead of both.
    memory, text_memory : budgets of the library for images and for texts; the process may use it plus 64 MiB, plus what the
        interpreter and (for texts, 64 MiB) the job's own data take.
    components : how many principal components.
    clusters, topics : how many clusters of texts, and how many topics.
    dimensions : numbers that stand for a text; the projected texts are 4 bytes times this a text.
    rounds : rounds of k-means at most.
    output : the HTML report.
    json : print no summary (the caller prints what is returned).
    scratch : folder on SSD for the arrays, about 4 bytes a pixel of all images, and 8 bytes times `dimensions` a text and 4 a
        different word; default beside the report. Emptied at the end.
    threads : cores to use; default all.
    size : (width, height) for every image; default the most common size.
    mixed : images of other sizes are resized ("resize") or an error ("refuse").
    random_state : seed of PCA, of the random map, of k-means and of topics.
    compare : run numpy and scikit-learn too.
    progress : progress lines on standard error; default when it is a terminal.
    command : the command line to show in the report.

    Returns
    -------
    dict of everything measured, `images` and `text` for the parts that ran; plain values that json.dumps takes.

    Raises
    ------
    DemoError, with one sentence that names the file or the limit.
    """
    started = time.monotonic()
    show = sys.stderr.isatty() if progress is None else progress
    sources = {}
    if only != "text":
        sources["images"] = image_part.find_data(data)
    if only != "images":
        sources["text"] = text_part.find_texts(texts)
    report = Path(output)
    report.parent.mkdir(parents=True, exist_ok=True)
    base = Path(scratch) if scratch else report.parent.resolve()
    way = limit.best_way()
    common = {"threads": threads, "seed": random_state, "progress": show}
    specs: dict[str, dict[str, Any]] = {
        "images": {"memory": memory, "components": components, "size": size, "mixed": mixed},
        "text": {
            "memory": text_memory,
            "clusters": clusters,
            "topics": topics,
            "dimensions": dimensions,
            "rounds": rounds,
        },
    }
    facts: dict[str, Any] = {}
    arrays, traces = {}, {}
    for part, source in sources.items():
        key = "data" if part == "images" else "texts"
        spec = {**specs[part], **common, key: str(source.resolve())}
        facts[part], arrays[part], traces[part] = measured(part, spec, base, way, compare)
        facts[part]["data"] = str(source)
    facts["machine"] = machine(base)
    facts["command"] = command or shown_command()
    facts["report"] = str(report)
    facts["total_s"] = time.monotonic() - started
    report.write_text(render(facts, arrays, traces), encoding="utf-8")
    strip_samples(facts)
    if not json:
        print(summary(facts))
    return facts


def measured(
    part: str, spec: dict[str, Any], base: Path, way: limit.Way, compare: bool
) -> tuple[dict[str, Any], dict[str, np.ndarray], bytes]:
    """Facts, arrays and trace of one part, in a folder of its own that goes when it is done."""
    folder = Path(tempfile.mkdtemp(prefix="outcore-demo-", dir=base))
    measure = image_part.measure if part == "images" else text_part.measure
    try:
        facts, arrays = measure({**spec, "folder": str(folder)}, way, compare, spec["progress"])
        trace = folder / "trace.json"
        return facts, arrays, trace.read_bytes() if trace.exists() else b""
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def machine(folder: Path) -> dict[str, Any]:
    memory = psutil.virtual_memory()
    return {
        "processor": processor_name(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_bytes": memory.total,
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "numpy": np.__version__,
        "scratch": file_system(folder),
        "date": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
    }


def processor_name() -> str:
    for line in limit.lines_of("/proc/cpuinfo"):
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def file_system(folder: Path) -> str:
    """Type of the file system that holds `folder`; memory file systems would make the demo pointless, so it is shown."""
    best = ("", "unknown")
    for part in psutil.disk_partitions(all=True):
        mount = part.mountpoint.rstrip("/") + "/"
        if f"{folder.resolve()}/".startswith(mount) and len(mount) > len(best[0]):
            best = (mount, part.fstype)
    return best[1]


def shown_command() -> str:
    name = os.path.basename(sys.argv[0])
    return shlex.join(["python", "-m", "outcore.demo"] if name == "__main__.py" else [name]) + "".join(
        f" {shlex.quote(a)}" for a in sys.argv[1:]
    )


def strip_samples(facts: dict[str, Any]) -> None:
    """Thousands of memory samples and spans are for the page, not for the JSON."""
    for part in (facts[name] for name in ("images", "text") if name in facts):
        for entry in (part["outcore"], *part["under_limit"], *part["all_memory"]):
            entry.pop("samples", None)
        for trace in part["job"]["traces"].values():
            trace.pop("spans", None)


def summary(facts: dict[str, Any]) -> str:
    """A few lines for a terminal."""
    lines = []
    for name in ("images", "text"):
        if name in facts:
            lines += [told(name, facts[name]), *part_summary(facts[name]), ""]
    return "\n".join([*lines, f"report: {facts['report']}"])


def told(name: str, part: dict[str, Any]) -> str:
    job, work = part["job"], seconds_in_words(part["outcore"]["work_s"])
    if name == "images":
        return (
            f"{part['title']}: {job['rows']:,} images, {job['components']} components found and every image projected in {work}"
        )
    return (
        f"{part['title']}: {job['documents']:,} texts of {job['words']:,} words, projected to {job['dimensions']:,} numbers "
        f"each and clustered into {len(job['clusters'])} in {work}"
    )


def part_summary(part: dict[str, Any]) -> list[str]:
    limits = part["limit"]
    lines = [
        f"memory: peak {bytes_in_words(part['outcore']['peak_bytes'])} of {bytes_in_words(limits['bytes'])} allowed by "
        f"{limits['sentence']}",
    ]
    lines += [f"{entry['name']}, same limit: {entry['words']}" for entry in part["under_limit"]]
    lines += [f"{entry['name']}, all the memory it wants: {entry['words']}" for entry in part["all_memory"]]
    return [*lines, *(topics_summary(part["topics"]) if "topics" in part else [])]


def topics_summary(topics: dict[str, Any]) -> list[str]:
    """Ours, and the rival's where there is one."""
    ours, rival = topics["outcore"], topics["rival"]
    work = f"{len(topics['topics'])} topics learned in {seconds_in_words(ours['work_s'])}, {coherence_in_words(topics['npmi'])}"
    lines = [f"{work}; peak {bytes_in_words(ours['peak_bytes'])}"]
    if rival:
        told = f", {coherence_in_words(rival['npmi'])}; peak {bytes_in_words(rival['peak_bytes'])}" if "npmi" in rival else ""
        lines.append(f"{rival['name']}, all the memory it wants: {rival['words']}{told}")
    return lines
