"""Where texts lie on a map: clusters with like words are neighbours, and each text lies among the centres that it is nearest to.

The centres are laid out by t-SNE (van der Maaten and Hinton, 2008). A text is the mean of their places, weighted by how near it
is to each: exp(-(d^2 - least d^2) / tau), tau a quarter of the usual lead of the nearest centre over the next.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]

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


def text_places(distances: Floats, centres: Floats) -> Floats:
    """(n, 2) from the distances (n, k) to the centres and their places (k, 2)."""
    if len(centres) == 1:
        return np.repeat(centres, len(distances), axis=0)
    squares = np.square(distances, dtype=np.float64)
    lead = np.partition(squares, 1, axis=1)[:, :2]
    tau = max(float(np.median(lead[:, 1] - lead[:, 0])) / 4, 1e-9)
    weights = np.exp(-(squares - lead[:, :1]) / tau)
    weights /= weights.sum(axis=1, keepdims=True)
    return (weights @ centres).astype(np.float32)
