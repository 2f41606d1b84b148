"""The topics in the text part of the report."""

from __future__ import annotations

from typing import Any

import numpy as np

from . import charts, layout, topic_charts

NAME_WORDS = 3


def page(facts: dict[str, Any], arrays: dict[str, Any], limit: dict[str, Any]) -> dict[str, Any]:
    names = [", ".join(word for word, _ in topic["words"][:NAME_WORDS]) for topic in facts["topics"]]
    colours = [charts.colour(place) for place in range(len(names))]
    rival = facts["rival"] or {}
    beside = rival.get("topics") or [None] * len(names)
    pair = facts["pair"]
    return {
        **facts,
        "limit": limit,
        "rows": [
            {**topic, "colour": colour, "beside": other}
            for topic, colour, other in zip(facts["topics"], colours, beside, strict=True)
        ],
        "has_beside": "topics" in rival,
        "map": topic_map(facts["topics"], arrays, names, colours),
        "points": len(arrays["topic_points"]),
        "pair": pair
        and {
            **pair,
            "names": [names[place] for place in pair["places"]],
            "chart": topic_charts.side_by_side(
                pair["words"], pair["chances"], *((names[place], colours[place]) for place in pair["places"])
            ),
        },
    }


def topic_map(topics: list[dict[str, Any]], arrays: dict[str, Any], names: list[str], colours: list[str]) -> str:
    """A disc a topic, beside those with like words (Hellinger's distance); texts that are of another one too lie further out."""
    places = layout.centre_places(arrays["topic_roots"])
    radius = layout.radii(np.array([topic["size"] for topic in topics], np.float64), places)
    places = layout.apart(places, radius)
    points = layout.text_places(1 - arrays["topic_weights"], arrays["topic_points"], places, radius)
    edges = places - np.stack([np.zeros_like(radius), radius], axis=1)
    return charts.text_map(points, arrays["topic_points"], edges, names, colours, "map of the texts by topics")
