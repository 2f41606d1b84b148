"""Raw results as a run leaves them, made up: their medians and ratios can be worked out by hand."""

from __future__ import annotations

from typing import Any

FACTS: dict[str, Any] = {
    "started": "2026-01-02T03:04:05+00:00",
    "rules": 2,
    "quick": False,
    "rounds": 2,
    "load_before": 0.5,
    "command": ["python", "bench/run.py"],
    "machine": {
        "cpu": "Some CPU",
        "cores": 2,
        "memory_bytes": 8 << 30,
        "kernel": "Linux 6",
        "filesystem": "ext4",
        "disk": "/dev/disk",
    },
    "versions": {"python": "3.11.0", "numpy": "2.0.0", "mkl": "absent"},
    "environment": {"OPENBLAS_CORETYPE": "Haswell"},
    "sources": {"commit": "0123456789abcdef", "changed": [], "difference": None},
}


def ok(number: int, *seconds: float, **more: Any) -> dict[str, Any]:
    result = {"seconds": list(seconds), "read_bytes": 0, "written_bytes": 0, "cpu_seconds": 0.0, **more}
    return {"round": number, "status": "ok", "wall_s": sum(seconds), "peak_bytes": 1 << 20, "result": result}


def ended(number: int, status: str, wall_s: float) -> dict[str, Any]:
    return {"round": number, "status": status, "wall_s": wall_s, "peak_bytes": 1 << 20, "result": None, "output": ""}


def leg(name: str, *rounds: dict[str, Any], work: float = 10e9, cold: tuple[str, ...] = ()) -> dict[str, Any]:
    told = {"name": name, "function": "x.y", "work": work, "rounds": list(rounds), "sweep": [], "cold": list(cold), "command": []}
    return {**told, "access": None}


def device(access: str, *speeds: float, pages: str = "small pages") -> dict[str, Any]:
    """A leg that reads or writes a GB in each round, at some GB a second."""
    rounds = (ok(number, 1 / speed, bytes=1e9, requests=1000, work=1e9) for number, speed in enumerate(speeds))
    return {**leg(f"fio, {access}, {pages}", *rounds), "access": access}


def case(*legs: dict[str, Any], rivals: tuple[str, ...], at_least: float | None = 3.0, unit: str = "GFLOP/s") -> dict[str, Any]:
    bound = {
        "flops": 10e9,
        "read_bytes": 4e9,
        "written_bytes": 1e9,
        "core_leg": "kernel",
        "bytes_at_most": 1.35,
        "note": "as told",
        "headline": True,
    }
    comparison = {"ours": "outcore", "rivals": list(rivals), "against": "the others", "at_least": at_least, "headline": True}
    return {
        **FACTS,
        "case": "gemm",
        "title": "gemm | f32",
        "headline": "a product",
        "unit": unit,
        "bound": bound,
        "comparisons": [comparison],
        "notes": ["A note."],
        "limit": None,
        "legs": list(legs),
    }
