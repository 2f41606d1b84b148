"""Runs of `outcore knn` under `mpirun`, and what they took.

A result tells of one run: `load_s`, `fit_s` and `search_s` of the slowest rank, `ring_s`, the time of its rounds, and of these
`computing_s`, `waiting_s` and `exchanging_s`, means over ranks; `ranks` has what each rank says of each round.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..errors import FailedError
from .wire import OVER_TCP, Wire, bytes_per_s

PARTS = ("computing_s", "waiting_s", "exchanging_s")
ENVIRONMENT = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_memory": "^patcher",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
}


def measure(
    train: Path,
    test: Path,
    *,
    ranks: int,
    design: str | None,
    neighbors: int = 5,
    options: Sequence[str] = (),
    wire: Wire | None = None,
    bind: bool = False,
    cores: int | None = None,
    loopback: bool = False,
    timeout_s: float = 600,
) -> dict[str, Any]:
    """One run, each rank on a core of its own with `bind`, as far as there are cores, or as far as `cores` go. Without a design
    it is one process. With `loopback` ranks share no memory."""
    if design is None:
        ranks, wire = 1, None
    own = Path(__file__).parents[2]
    variables = {**ENVIRONMENT, "PYTHONPATH": os.pathsep.join(filter(None, [str(own), os.environ.get("PYTHONPATH")]))}
    variables |= (OVER_TCP if loopback else {}) if wire is None else wire.environment
    words = ["mpirun", "-n", str(ranks), "--bind-to", "none"]
    if wire is not None:
        words += ["--host", ",".join(f"{host}:{-(-ranks // len(wire.hosts))}" for host in wire.hosts), "--map-by", "node"]
    if design is None:
        words = []
    else:
        words += [word for name in variables if not name.startswith("OMPI_") for word in ("-x", name)]
    allowed = sorted(os.sched_getaffinity(0))[:cores]
    cores = len(allowed)
    if bind:
        own_core = f"set -- {' '.join(map(str, allowed))}; shift $((${{OMPI_COMM_WORLD_RANK:-0}} % {cores})); core=$1"
        words += ["sh", "-c", f'core=$({own_core}; echo $core); exec taskset -c $core "$@"', "sh"]
    with tempfile.TemporaryDirectory(prefix="outcore-knn-") as aside:
        found = Path(aside, "found.npy")
        words += [sys.executable, "-m", "outcore.cli", "knn", os.fspath(train.resolve()), os.fspath(test.resolve())]
        words += [
            "-k",
            str(neighbors),
            *([] if design is None else ["--design", design]),
            "--output",
            str(found),
            "--json",
            *options,
        ]
        count = _of_loopback if wire is None else wire.counters
        before = count()
        began, loads = time.perf_counter(), os.getloadavg()
        full = words if wire is None else wire.command(words)
        environment = {**os.environ, **variables}
        with subprocess.Popen(full, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment) as run:
            try:
                output, errors = run.communicate(timeout=timeout_s)
            except subprocess.TimeoutExpired as error:
                # A launcher that is asked to end ends its ranks; one that is killed leaves them.
                run.terminate()
                raise FailedError(f"{design or 'one process'} on {ranks} ranks took longer than {timeout_s:g} s") from error
        seconds = time.perf_counter() - began
        told = next((line for line in output.splitlines() if line.startswith("{")), None)
        if run.returncode != 0 or told is None:
            raise FailedError(f"{design} on {ranks} ranks: {(errors or output).strip()[:2000]}")
        digest = hashlib.sha256(found.read_bytes()).hexdigest()
    # The path of the labels is one of this machine.
    result = summary({name: value for name, value in json.loads(told).items() if name != "output"})
    result |= {
        "design": design or "alone",
        "n_ranks": ranks,
        "wall_s": seconds,
        "load_average": loads[0],
        "labels_sha256": digest,
    }
    # Where files are on this machine is of no use elsewhere.
    command = [os.path.basename(word) if os.path.isabs(word) else word for word in words]
    result |= {"bound": bind, "loopback": loopback, "k": neighbors, "cores": cores, "command": command}
    result |= {"counters_before": before, "counters_after": count()}
    if wire is not None:
        result |= {"rate": wire.rate, "latency_s": wire.latency_s}
    return result


def _of_loopback() -> list[dict[str, int]]:
    """Bytes and packets of this machine to itself, those of other programs too."""
    folder = Path("/sys/class/net/lo/statistics")
    return [{name: int((folder / name).read_text()) for name in ("tx_bytes", "rx_bytes", "tx_packets", "rx_packets")}]


def summary(told: dict[str, Any]) -> dict[str, Any]:
    """What a run says of all ranks, put together."""
    alone = {"computing_s": [told["search_s"]], "waiting_s": [], "exchanging_s": [], "rounds": 1, "bytes_sent": 0}
    ranks = told.get("ranks") or [{**told, **alone}]
    found = {name: told[name] for name in ("rows", "queries", "neighbors", "accuracy")}
    found |= {name: max(one[name] for one in ranks) for name in ("load_s", "fit_s", "search_s")}
    found["ring_s"] = max(sum(sum(one[part]) for part in PARTS) for one in ranks)
    found |= {part: sum(sum(one[part]) for one in ranks) / len(ranks) for part in PARTS}
    found |= {"rounds": ranks[0]["rounds"], "bytes_sent": sum(one["bytes_sent"] for one in ranks), "ranks": ranks}
    return found


def hidden(results: Sequence[dict[str, Any]], baseline: str = "mpi") -> list[dict[str, Any]]:
    """What each design saves of the time of the baseline, by medians over the runs of one case, and what share of the baseline's
    exchanges that is. `left` is its own share of these that it waits and exchanges, and `left_of_wire` that of the time in which
    the bytes of a rank pass its link.
    """
    from statistics import median

    designs = list(dict.fromkeys(one["design"] for one in results))
    if baseline not in designs:
        return []

    def middle(design: str, name: str) -> float:
        return float(median(one[name] for one in results if one["design"] == design))

    whole, exchanged = middle(baseline, "ring_s"), middle(baseline, "exchanging_s") + middle(baseline, "waiting_s")
    found = []
    for design in designs:
        own = middle(design, "ring_s")
        facts = {"design": design, "ring_s": own, "saved": 1 - own / whole, "hidden": (whole - own) / max(exchanged, 1e-9)}
        facts["left"] = (middle(design, "exchanging_s") + middle(design, "waiting_s")) / max(exchanged, 1e-9)
        if "rate" in results[0]:
            wire_s = results[0]["bytes_sent"] / results[0]["n_ranks"] / bytes_per_s(results[0]["rate"])
            facts["left_of_wire"] = (middle(design, "exchanging_s") + middle(design, "waiting_s")) / wire_s
        found.append({**facts, **{part: middle(design, part) for part in PARTS}})
    return found
