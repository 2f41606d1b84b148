"""Training samples: random reads of every size, samples in memory, and names."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from cases.limits import limit_legs, limit_names
from harness.model import GIB, KIB, MIB, Bound, Case, Comparison, Context, Leg, Measure, SampleSet, relative

TOTAL, MOST_SAMPLES = 4 * GIB, 4_194_304
"""Of a dataset, 2 GiB of the smallest; the budget is an eighth."""
BATCH = 256
PASS_BYTES, PASS_SAMPLES = 2 * GIB, 1_000_000
"""Of one timed pass, at most: less than an epoch, so that no sample comes again."""
FILES = 100_000
"""Files of one sample each, at most."""
THREADS = 32
"""Of the program that reads a file a sample, besides one."""
SECONDS = 5.0
"""Of a leg: several passes of a chunk shuffle, or a part of one of a global shuffle of small samples."""
HEADLINE_SIZES = (512, 4 * KIB)
LARGE = 128 * KIB
CORE = (os.cpu_count() or 1) - 1
"""The first one has most of the machine's interrupts."""

HOT_SAMPLES, HOT_BYTES = 250_000, 4096
NAMES = 10_000_000

EPOCH_SAMPLES, EPOCH_BYTES = 400_000, 3072
"""As pictures of CIFAR-10."""
WORKERS = ({"workers": 0}, {"workers": 2}, {"workers": 8})
LOADERS: dict[str, tuple[str, tuple[dict[str, int], ...]]] = {
    "files": ("PyTorch DataLoader on files", WORKERS),
    "webdataset": ("WebDataset", WORKERS),
    "streaming": ("MosaicML Streaming", WORKERS),
    "litdata": ("LitData", WORKERS),
    "grain": ("Grain over ArrayRecord", ({"threads": 1}, {"threads": 16})),
    "lance": ("Lance", ({"threads": 1}, {"threads": 8})),
    "dali": ("DALI", ()),
}
"""What they are called, and what a sweep chooses."""
UNLIMITED = ("dali",)
"""Beyond its imports it takes some 240 MiB, more than the limit leaves: it is killed."""
PARTLY = ("webdataset", "litdata", "dali")
"""Loaders that mix within a buffer or chunk by chunk: our chunk shuffle is held against these only. Streaming mixes blocks of
four million samples, more than there are here."""

RESUMED_SAMPLES, RESUMED_BYTES = 1_000_000, 512
RESUMED = {
    "map": "PyTorch StatefulDataLoader over a memory map",
    "webdataset": "WebDataset",
    "streaming": "MosaicML Streaming",
    "litdata": "LitData",
    "grain": "Grain over ArrayRecord",
}
OPENABLE, OPENED = 1_000_000, 2000
"""Files, and how many of them are opened: so few that nearly every one comes from the device, as among ten million all would."""


def cold(context: Context, size: int) -> Case:
    total = max(64 * MIB, int(min(TOTAL, MOST_SAMPLES * size) * context.scale)) // size * size
    data = SampleSet(context.path(f"samples-{size}"), size, total // size)
    files = SampleSet(context.path(f"files-{size}"), size, min(FILES, data.count), "files")
    timing: dict[str, Any] = {"seconds": context.seconds(SECONDS), "core": CORE}
    taken = max(BATCH, min(PASS_SAMPLES, PASS_BYTES // size, data.count))
    spec = {
        **timing,
        "path": data.path,
        "size": size,
        "memory": total // 8,
        "batch": BATCH if size < LARGE else 16,
        "count": taken,
    }
    everywhere, chunks = (
        Leg(
            f"outcore, {shuffle} shuffle",
            "samples.load",
            {**spec, "shuffle": shuffle},
            cold=(data.path,),
            limited=True,
            sweep=tuple({"batch": batch} for batch in (BATCH, 4 * BATCH)) if size < LARGE else (),
        )
        for shuffle in ("global", "chunk")
    )
    access, whole = f"randread {size}", (f"{data.path}/samples", total // MIB * MIB)
    alone, together = (
        Leg(
            f"a file a sample, in C, {threads} thread{'s' if threads > 1 else ''}",
            "tools.file_reader",
            {
                "path": files.path,
                "size": size,
                "count": files.count,
                "threads": threads,
                "seconds": context.seconds(SECONDS),
                "program": context.path("programs/file_reader"),
            },
            cold=(files.path,),
        )
        for threads in (1, THREADS)
    )
    in_headline = size in HEADLINE_SIZES
    return Case(
        f"samples-{size}B",
        f"samples of {size} B in random order out of {total / GIB:.1f} GiB, batches as NumPy arrays, checksums on, one core, "
        f"budget {total // 8 // MIB} MiB, process limited to 64 MiB more",
        "GB/s",
        [everywhere, chunks, alone, together, *limit_legs(context, access, "read", file=whole)],
        [
            Comparison(
                everywhere.name,
                limit_names(access),
                f"the device's limit, random reads of {size:,} B; global shuffle",
                0.9,
                headline=in_headline,
            ),
            Comparison(
                chunks.name, limit_names("read"), "the device's limit, sequential read; chunk shuffle", 0.9, headline=in_headline
            ),
            Comparison(
                everywhere.name,
                (together.name,),
                f"a file a sample, {THREADS} threads in C; global shuffle",
                headline=in_headline,
            ),
            Comparison(
                chunks.name, (alone.name,), "a file a sample, one thread in C; chunk shuffle", 28 if size == 512 else None
            ),
            Comparison(chunks.name, (together.name,), f"a file a sample, {THREADS} threads in C; chunk shuffle"),
        ],
        Bound(note="the device's random, and its sequential read"),
        [data, files],
        limit_over_bytes=total // 8,
        needs=("cc",),
        notes=(
            f"A pass takes {taken:,} samples of a new epoch, less than all; that none came twice is checked after it. fio reads "
            f"the same file and may use all cores. The files are {files.count:,}, a thousand a folder, opened, read and closed "
            "in random order by a program in C that may use all cores.",
        ),
        headline=f"samples of {size:,} B in random order, {total / GIB:.0f} GiB within {total // 8 // MIB} MiB"
        if in_headline
        else "",
    )


def hot(context: Context) -> Case:
    count = context.count(HOT_SAMPLES)
    data = SampleSet(context.path("samples-hot"), HOT_BYTES, count)
    array = SampleSet(context.path("samples-hot.npy"), HOT_BYTES, count, "npy")
    spec: dict[str, Any] = {"seconds": context.seconds(10), "core": CORE, "batch": BATCH, "count": count, "size": HOT_BYTES}
    memory = 2 * count * HOT_BYTES
    ours = Leg("outcore, kept in memory", "samples.hot", {**spec, "path": data.path, "memory": memory})
    numpy = Leg("numpy, indices into a memory map", "samples.memory_map", {**spec, "path": array.path})
    torch = Leg("PyTorch DataLoader over a memory map", "samples.torch_map", {**spec, "path": array.path})
    whole = Leg(f"{torch.name}, whole batches", "samples.torch_map", {**spec, "path": array.path, "whole": True})
    return Case(
        "samples-hot",
        f"{count:,} samples of {HOT_BYTES} B in memory, global shuffle, batches of {BATCH}, one core",
        "IOPS",
        [ours, numpy, torch, whole],
        [
            Comparison(ours.name, (numpy.name,), "numpy's indices into a memory map", 0.7, headline=True),
            Comparison(ours.name, (torch.name,), torch.name, 5, headline=True),
            Comparison(ours.name, (whole.name,), whole.name, headline=True),
        ],
        Bound(note="memory"),
        [data, array],
        needs=("torch",),
        notes=(
            "All bytes are in memory before the clock starts: in ours by a first epoch, for the others in the page cache. "
            "PyTorch's loader collates rows, as most people have it; whole batches come by one index each, by BatchSampler.",
        ),
        headline=f"{count:,} samples of {HOT_BYTES:,} B kept in memory, global shuffle",
    )


def hot_litdata(context: Context) -> Case:
    """Apart, for LitData is in an environment of its own."""
    count = context.count(HOT_SAMPLES)
    data = SampleSet(context.path("samples-hot"), HOT_BYTES, count)
    chunks = SampleSet(context.path("hot-litdata"), HOT_BYTES, count, "loader litdata")
    spec: dict[str, Any] = {"seconds": context.seconds(10), "core": CORE, "batch": BATCH, "count": count, "size": HOT_BYTES}
    ours = Leg("outcore, kept in memory", "samples.hot", {**spec, "path": data.path, "memory": 2 * count * HOT_BYTES})
    theirs = {"path": chunks.path, "loader": "litdata", "seed": 1, "workers": 0, "threads": 1}
    litdata = Leg("LitData", "loaders.hot", {**spec, **theirs}, rival=True)
    return Case(
        "samples-hot-litdata",
        f"{count:,} samples of {HOT_BYTES} B in memory, global shuffle, batches of {BATCH}, one core",
        "IOPS",
        [ours, litdata],
        [Comparison(ours.name, (litdata.name,), "LitData, its chunks in the kernel's cache", 5)],
        Bound(note="memory"),
        [data, chunks],
        needs=("rivals",),
    )


def epoch(context: Context) -> Case:
    count = context.count(EPOCH_SAMPLES)
    total = count * EPOCH_BYTES
    ours = SampleSet(context.path("epoch-outcore"), EPOCH_BYTES, count, labelled=True)
    theirs = {name: SampleSet(context.path(f"epoch-{name}"), EPOCH_BYTES, count, f"loader {name}") for name in LOADERS}
    spec = {"size": EPOCH_BYTES, "count": count, "batch": BATCH, "seed": 1, "core": CORE, "seconds": context.seconds(120)}
    global_, chunk = (
        Leg(
            f"outcore.torch.Loader, {shuffle} shuffle",
            "samples.epoch",
            {**spec, "path": ours.path, "memory": total // 8, "shuffle": shuffle, "imports": ["outcore.torch"]},
            cold=(ours.path,),
            limited=True,
        )
        for shuffle in ("global", "chunk")
    )
    rivals = {
        name: Leg(
            words,
            "loaders.epoch",
            {**spec, "path": theirs[name].path, "loader": name, "workers": 0, "threads": 1},
            cold=(theirs[name].path,),
            limited=name not in UNLIMITED,
            rival=True,
            sweep=sweep,
            # Several workers fill their buffers for long before the first batch comes.
            sweep_s=30.0,
        )
        for name, (words, sweep) in LOADERS.items()
    }
    return Case(
        "samples-epoch",
        f"one shuffled epoch of {count:,} samples of {EPOCH_BYTES} B and a label, cold, as tensors in batches of {BATCH}, "
        f"one core, budget {total // 8 // MIB} MiB",
        "IOPS",
        [global_, chunk, *rivals.values()],
        [
            Comparison(leg.name, (rivals[name].name,), f"{rivals[name].name}, ours by {shuffle} shuffle", 1)
            for shuffle, leg, held in (("global", global_, tuple(rivals)), ("chunk", chunk, PARTLY))
            for name in held
        ],
        Bound(note="the device"),
        [ours, *theirs.values()],
        limit_over_bytes=total // 8,
        needs=("rivals",),
        notes=(
            "The limit counts worker processes and the page cache too; settings are swept under it. DALI has none: it takes some "
            "240 MiB beyond its imports, more than the limit leaves, and is killed under it.",
            "A global shuffle lets every sample come anywhere; so do Grain, Lance and PyTorch's files, and Streaming for so few "
            "samples. Others shuffle within a buffer, or chunk by chunk: with these alone our chunk shuffle is compared.",
            f"Unevenness: {BATCH} times the variance of the batches' mean sample numbers, over the variance of all numbers; "
            f"1 for a random order, {BATCH} where every batch has neighbours.",
            "FFCV is missing: it does not install here, for its build needs OpenCV and libturbojpeg of the system.",
        ),
    )


def resume(context: Context) -> Case:
    count = context.count(RESUMED_SAMPLES)
    ours = SampleSet(context.path("resume-outcore"), RESUMED_BYTES, count, labelled=True)
    theirs = {name: SampleSet(context.path(f"resume-{name}"), RESUMED_BYTES, count, f"loader {name}") for name in RESUMED}
    spec = {"size": RESUMED_BYTES, "count": count, "batch": BATCH, "seed": 1, "core": CORE, "workers": 0, "threads": 1}
    memory = count * RESUMED_BYTES // 8
    own = {
        shuffle: Leg(
            f"outcore, {shuffle} shuffle",
            "samples.resume",
            {**spec, "path": ours.path, "memory": memory, "shuffle": shuffle},
            cold=(ours.path,),
        )
        for shuffle in ("global", "chunk")
    }
    rivals = [
        Leg(words, "loaders.resume", {**spec, "path": theirs[name].path, "loader": name}, rival=True)
        for name, words in RESUMED.items()
    ]
    return Case(
        "samples-resume",
        f"the first batch of {BATCH} in the middle of an epoch of {count:,} samples, from opening, one core",
        "s",
        [*own.values(), *rivals],
        [
            Comparison(leg.name, (rival.name,), f"{rival.name}, ours by {shuffle} shuffle")
            for shuffle, leg in own.items()
            for rival in rivals
        ],
        Bound(note="opening"),
        [ours, *theirs.values()],
        needs=("rivals",),
        notes=(
            "Ours is cold, in a process that has neither begun a session nor opened a file: its state comes from another one. "
            "The others took theirs in the process that goes on, and their files are in the kernel's cache. WebDataset has no "
            "state and reads what came before.",
        ),
        measures=tuple(
            Measure(leg.name, "first_batch_s", f"seconds, {shuffle} shuffle", at_most=0.1) for shuffle, leg in own.items()
        ),
    )


def names(context: Context) -> Case:
    count, opened = context.count(NAMES), context.count(OPENED)
    data = SampleSet(context.path("samples-names"), 1, count, named=True)
    files = SampleSet(context.path("files-names"), 0, context.count(OPENABLE), "files")
    program = relative("target/release/examples/look_up")
    spec: dict[str, Any] = {"seconds": context.seconds(10), "core": CORE, "program": program}
    ours = Leg("outcore, directory in memory", "tools.look_up", {**spec, "arguments": ["dataset", data.path, count]})
    found = Leg(
        "outcore, found, and its name read and compared",
        "tools.look_up",
        {**spec, "arguments": ["find", data.path, count]},
        cold=(data.path,),
    )
    map_ = Leg("HashMap of strings", "tools.look_up", {**spec, "arguments": ["map", count]})
    system = Leg(
        "open on ext4, cold",
        "samples.opens",
        {"path": files.path, "count": files.count, "opened": opened, "core": CORE},
        cold=(files.path,),
    )
    opening = f"cold open of {opened:,} of {files.count:,} files on ext4"
    return Case(
        "samples-names",
        f"look-up of random names among {count:,}, from Rust, one core",
        "IOPS",
        [ours, found, map_, system],
        [
            Comparison(found.name, (system.name,), f"{opening}; each name read and compared by ours"),
            Comparison(ours.name, (map_.name,), "a HashMap of strings, and no less", 1),
        ],
        Bound(note="memory"),
        [data, files],
        needs=("look_up",),
        notes=(
            "A look-up in the directory leads to one candidate, whose name is compared when it is read: with the sample, or by "
            "`find`, which reads it at once; 20,000 random names at most, cold, one after another. Only `find` does the work "
            "of an open, and is compared with it.",
        ),
        measures=(Measure(ours.name, "part_of_map", "the memory of the map", at_most=0.1),),
    )


BUILDERS: dict[str, Callable[[Context], Case]] = {
    **{f"samples-{size}B": (lambda context, size=size: cold(context, size)) for size in (512, 4 * KIB, 16 * KIB, LARGE, MIB)},
    "samples-hot": hot,
    "samples-hot-litdata": hot_litdata,
    "samples-epoch": epoch,
    "samples-resume": resume,
    "samples-names": names,
}
