"""The command for nearest neighbours: `outcore knn`."""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from ._commands import say, session_of, session_options
from .errors import ArgumentError

if TYPE_CHECKING:
    from ._array import Array
    from ._session import Session
    from ._sparse import Sparse

PATH = click.Path(dir_okay=False)


@click.command()
@click.argument("train", type=click.Path())
@click.argument("test", type=click.Path())
@click.option("-k", "--neighbors", type=click.IntRange(1), default=5, show_default=True, help="How many.")
@click.option("--metric", type=click.Choice(["euclidean", "cosine", "inner_product"]), default="euclidean", show_default=True)
@click.option("--weights", type=click.Choice(["uniform", "distance"]), default="uniform", show_default=True, help="Of votes.")
@click.option("--labels", type=PATH, help=".npy file with the label of each row of TRAIN; default those of its LIBSVM text.")
@click.option("--output", "-o", type=PATH, help="New .npy file for the label that each row of TEST gets.")
@click.option("--indices", type=PATH, help="New .npy file for the numbers of the nearest rows of TRAIN.")
@click.option("--distances", type=PATH, help="New .npy file for their distances.")
@session_options
def knn(
    train: str,
    test: str,
    neighbors: int,
    metric: Any,
    weights: Any,
    labels: str | None,
    output: str | None,
    indices: str | None,
    distances: str | None,
    as_json: bool,
    **options: Any,
) -> None:
    """The nearest rows of TRAIN to each row of TEST, exactly, and the labels that these vote for.

    Each is a .npy file, a folder with a sparse matrix, or LIBSVM text, which is imported to the scratch folder first.
    """
    import numpy as np

    from .neighbors import KNeighborsClassifier, NearestNeighbors

    outputs = {"output": output, "indices": indices, "distances": distances}
    for path in filter(None, outputs.values()):
        if not path.endswith(".npy"):
            raise ArgumentError(f"{path} will be a new .npy file, so its name must end in .npy")
    if not any(outputs.values()):
        raise ArgumentError("give --output, --indices or --distances, for what is found")
    began = time.perf_counter()
    with _opened(session_of(options), train, test) as (rows, queries):
        facts: dict[str, Any] = {"rows": rows.shape[0], "queries": queries.shape[0], "neighbors": neighbors}
        facts["load_s"], began = time.perf_counter() - began, time.perf_counter()
        if output is not None:
            known = _labels(rows) if labels is None else np.load(labels)
            if known is None:
                raise ArgumentError(f"{train} has no labels; --labels names a file of them")
            voting = KNeighborsClassifier(neighbors, metric=metric, weights=weights).fit(rows, known)
            found = voting._predicted(queries, out=(distances, indices))
            np.save(output, found)
            asked = _labels(queries)
            facts["accuracy"] = None if asked is None else float(np.mean(found == asked))
        else:
            near = NearestNeighbors(neighbors, metric=metric).fit(rows)
            near.kneighbors(queries, out=(distances, indices))
        facts["search_s"] = time.perf_counter() - began
    say({**facts, **outputs}, as_json)


@contextlib.contextmanager
def _opened(session: Session, *paths: str) -> Iterator[list[Array | Sparse]]:
    """Matrices with as many columns as the widest has: a text tells only of features that occur in it."""
    from ._foreign import import_libsvm

    texts = [os.path.isfile(path) and not path.endswith(".npy") for path in paths]
    with tempfile.TemporaryDirectory(dir=session.info()["scratch"]) as aside:

        def opened(number: int, width: int | None) -> Array | Sparse:
            path = paths[number]
            return import_libsvm(f"{aside}/{number}", path, n_features=width) if texts[number] else session.open(path)

        found = [opened(number, None) for number in range(len(paths))]
        widest = max(matrix.shape[-1] for matrix in found)
        for number, matrix in enumerate(found):
            if texts[number] and matrix.shape[-1] < widest:
                matrix.close()
                found[number] = opened(number, widest)
        try:
            yield found
        finally:
            for matrix in found:
                matrix.close()


def _labels(matrix: Array | Sparse) -> Any:
    """Those of an imported text."""
    from ._sparse import Sparse

    return matrix.labels() if isinstance(matrix, Sparse) else None


COMMANDS = (knn,)
