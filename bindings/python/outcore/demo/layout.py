"""Where texts lie on a map: a disc a cluster, as large as the cluster, beside those with like words.

The centres are laid out by t-SNE (van der Maaten and Hinton, 2008), then pushed apart until no two discs overlap. Within its disc
a text lies the further out, the closer it came to another cluster.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]

FILLED = 0.3
"""The part of the map that discs cover."""

GOLDEN_ANGLE = 2.399963
"""Radians from one text to the next: they fill a disc evenly (Vogel, 1979)."""

FEWEST = 4
"""t-SNE of fewer centres has nothing to arrange; they lie on a circle."""


def centre_places(centres: Floats) -> Floats:
    """(k, 2) from (k, dimensions)."""
    k = len(centres)
    if k < FEWEST:
        angles = 2 * np.pi * np.arange(k) / k
        return np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)
    from sklearn.manifold import TSNE

    found: Floats = TSNE(perplexity=min(6.0, (k - 1) / 3), init="random", random_state=0).fit_transform(centres)
    return found


def radii(sizes: npt.NDArray[Any], places: Floats) -> Floats:
    """Discs with areas in proportion to the sizes, a part of the map together."""
    span = np.maximum(np.ptp(places, axis=0), 1e-3)
    whole = np.sqrt(FILLED * float(span.max()) ** 2 / np.pi)
    found: Floats = (whole * np.sqrt(sizes / sizes.sum())).astype(np.float32)
    return found


def apart(places: Floats, radius: Floats, rounds: int = 300) -> Floats:
    """The places, moved as little as half an overlap at a time until no two discs overlap, or the rounds are over."""
    found = places.astype(np.float64)
    least = 1.08 * (radius[:, None] + radius[None, :])
    np.fill_diagonal(least, 0)
    for _ in range(rounds):
        between = found[:, None] - found[None, :]
        distance = np.maximum(np.hypot(between[..., 0], between[..., 1]), 1e-9)
        overlap = np.maximum(least - distance, 0)
        if not overlap.any():
            break
        found += (between / distance[..., None] * (overlap / 2)[..., None]).sum(axis=1) / 2
    return found.astype(np.float32)


def text_places(distances: Floats, clusters: npt.NDArray[np.int32], places: Floats, radius: Floats) -> Floats:
    """(n, 2) from the distances (n, k) to the centres, the cluster of each text, and the discs."""
    rows = np.arange(len(clusters))
    squares = np.square(distances, dtype=np.float64)
    own = squares[rows, clusters]
    squares[rows, clusters] = np.inf
    lead = squares.min(axis=1) - own
    found = np.empty((len(clusters), 2), np.float32)
    for cluster in range(len(places)):
        members = np.flatnonzero(clusters == cluster)
        members = members[np.argsort(-lead[members], kind="stable")]
        steps = np.arange(len(members))
        reach = radius[cluster] * np.sqrt((steps + 0.5) / max(1, len(members)))
        angle = GOLDEN_ANGLE * steps
        found[members] = places[cluster] + (reach * np.stack([np.cos(angle), np.sin(angle)])).T
    return found
