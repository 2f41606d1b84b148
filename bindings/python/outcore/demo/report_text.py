"""The text part of the report."""

from __future__ import annotations

from typing import Any

import numpy as np

from . import charts, layout, report_topics
from .bars import bars, moved
from .words import bytes_in_words, ratio_in_words, seconds_in_words


def page(facts: dict[str, Any], arrays: dict[str, Any]) -> dict[str, Any]:
    job, limit = facts["job"], facts["limit"]
    sizes = sizes_in_bytes(job)
    sizes_of_clusters = np.array([cluster["size"] for cluster in job["clusters"]], np.float64)
    centres = layout.centre_places(arrays["centres"])
    radius = layout.radii(sizes_of_clusters, centres)
    centres = layout.apart(centres, radius)
    clusters = [
        {**cluster, "colour": charts.cluster_colour(place, len(job["clusters"]))} for place, cluster in enumerate(job["clusters"])
    ]
    return {
        "headline": f"{job['documents']:,} texts",
        "line": f"{len(clusters)} clusters from {bytes_in_words(sizes['projected'])} and "
        f"{len(facts['topics']['topics'])} topics, "
        f"within {bytes_in_words(limit['budget_bytes'])}",
        "kind": "Texts",
        "source": f"{facts['title']} ({facts['data']}): {job['documents']:,} of {job['words']:,} different words, "
        f"in {len(job['sections'])} sections",
        "projected_bytes": sizes["projected"],
        "map_bytes": sizes["map"],
        "clusters": clusters,
        "largest": clusters[0]["size"] / job["documents"],
        "map": charts.text_map(
            layout.text_places(arrays["point_distances"], arrays["point_clusters"], centres, radius),
            arrays["point_clusters"],
            centres - np.stack([np.zeros_like(radius), radius], axis=1),
            [", ".join(c["words"][:2]) for c in clusters],
            [c["colour"] for c in clusters],
            "map of the texts by clusters",
        ),
        "points": len(arrays["point_clusters"]),
        "objects": objects(job, sizes, limit),
        "moved": moved_bytes(job, sizes),
        "work": f"{seconds_in_words(facts['outcore']['work_s'])} from the text to the clusters",
        "speed": speed(facts),
        "speed_intro": "From the text on SSD to the cluster of every text, one run each",
        "agreement": "",
        "topics": report_topics.page(facts["topics"], arrays, limit),
    }


def sizes_in_bytes(job: dict[str, Any]) -> dict[str, int]:
    return {"map": 4 * job["words"] * job["dimensions"], "projected": 4 * job["documents"] * job["dimensions"]}


def objects(job: dict[str, Any], sizes: dict[str, int], limit: dict[str, Any]) -> list[dict[str, Any]]:
    """Bytes of each object beside the budget; a program in memory holds them all, and copies of some."""
    d, k = job["dimensions"], len(job["clusters"])
    return bars(
        (
            ("the random matrix", f"{job['words']:,} \u00d7 {d:,}, on SSD", sizes["map"], "data"),
            ("the projected texts", f"{job['documents']:,} \u00d7 {d:,}, on SSD", sizes["projected"], "data"),
            ("the words of the texts", f"{job['entries']:,} entries, sparse, on SSD", job["sparse_bytes"], "data"),
            ("the centres", f"{k} \u00d7 {d:,}", 4 * k * d, "data"),
            ("memory budget of outcore", "what it may hold at any time", limit["budget_bytes"], "budget"),
        )
    )


def moved_bytes(job: dict[str, Any], sizes: dict[str, int]) -> list[dict[str, Any]]:
    """The projection against each file once; k-means against all projected texts in every round."""
    traces = job["traces"]
    once = ("each file once", traces["project"]["bound_bytes"])
    rounds = ("all texts each round", sizes["projected"] * job["rounds"])
    return [
        moved("project the texts", traces["project"], once),
        moved("find the clusters", traces["cluster"], rounds, foreseen="foreseen at most"),
    ]


def speed(facts: dict[str, Any]) -> list[dict[str, Any]]:
    """One run each, the slowest bar full width."""
    found = [("outcore", facts["outcore"]["work_s"], facts["outcore"]["peak_bytes"])]
    found += [(e["name"], e["work_s"], e["peak_bytes"]) for e in facts["all_memory"] if "work_s" in e and "memory_error" not in e]
    if len(found) < 2:
        return []
    slowest = max(seconds for _, seconds, _ in found)
    return [
        {
            "name": name,
            "seconds": seconds,
            "spread": (seconds, seconds),
            "rounds": 1,
            "percent": 100 * seconds / slowest,
            "peak": peak,
            "ours": name == "outcore",
            "compared": "" if name == "outcore" else f"outcore is {ratio_in_words(found[0][1], seconds)} {name}",
        }
        for name, seconds, peak in found
    ]
