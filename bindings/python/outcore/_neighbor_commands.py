"""The command for nearest neighbours: `outcore knn`, in one process or as the ranks that `mpirun` starts."""

from __future__ import annotations

import bisect
import contextlib
import errno
import itertools
import json
import os
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ._commands import say, session_of, session_options
from .errors import ArgumentError, FailedError, ShapeError

if TYPE_CHECKING:
    from . import _native
    from ._array import Array
    from ._session import Session
    from ._sparse import Sparse
    from .ranks import Ranks

PATH = click.Path(dir_okay=False)
PIECE_BYTES = 16 << 20
"""Of results that go to the first rank at a time."""

DESIGN = "mpi_rma"
"""How rows go round where the command line does not say it."""


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
@click.option(
    "--zero-based/--one-based",
    default=False,
    help="Number of the first feature of a text beside a stored matrix; two texts are numbered alike, as they are.",
)
@click.option(
    "--checkpoint",
    type=click.Path(file_okay=False),
    help="Folder to go on from after a crash; under mpirun, each rank appends its number to the name.",
)
@click.option("--design", help=f"Under mpirun: how rows go round, see outcore.ranks.mpi; default {DESIGN}.")
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
    zero_based: bool,
    checkpoint: str | None,
    design: str | None,
    as_json: bool,
    **options: Any,
) -> None:
    """The nearest rows of TRAIN to each row of TEST, exactly, and the labels that these vote for.

    Each is a .npy file, a folder with a sparse matrix, or LIBSVM text, which is imported to the scratch folder first.

    Under `mpirun -n 4` each of four ranks reads its part of both, and the rows of TRAIN go round; the files have the same bytes
    as those of one process. Memory and threads of a machine are divided among its ranks, where the options do not say what each
    may have.
    """
    from ._team import together
    from .neighbors import KNeighborsClassifier, NearestNeighbors, remove_checkpoint

    outputs = {"output": output, "indices": indices, "distances": distances}
    for path in filter(None, outputs.values()):
        if not path.endswith(".npy"):
            raise ArgumentError(f"{path} will be a new .npy file, so its name must end in .npy")
    named = [os.path.realpath(path) for path in outputs.values() if path is not None]
    if len(set(named)) < len(named):
        raise ArgumentError("--output, --indices and --distances name one file twice")
    if not any(outputs.values()):
        raise ArgumentError("give --output, --indices or --distances, for what is found")
    began = time.perf_counter()
    ranks, session = _started(design, options)
    with contextlib.ExitStack() as opened:
        opened.enter_context(_ending_all(ranks))
        with together(ranks) as team:
            if ranks is None or ranks.rank == 0:
                _check_folders(filter(None, outputs.values()))
            search = None if checkpoint is None else _search(train, test, zero_based)
            rows, queries = opened.enter_context(_opened(session, ranks, team, train, test, zero_based))
            known = None if output is None else _known(rows, labels, train, team)
            asked = None if output is None else _labels(queries)
        facts: dict[str, Any] = {"load_s": time.perf_counter() - began}
        began = time.perf_counter()
        estimator: Any = NearestNeighbors(neighbors, metric=metric, comm=ranks)
        if output is not None:
            estimator = KNeighborsClassifier(neighbors, weights=weights, metric=metric, comm=ranks)
        estimator.fit(rows, known)
        facts["fit_s"], began = time.perf_counter() - began, time.perf_counter()
        near = estimator._nearest(queries, None, (distances, indices) if ranks is None else None, checkpoint, search)
        facts["search_s"] = time.perf_counter() - began
        facts |= {"rows": estimator.n_samples_fit_, "queries": queries.shape[0], "neighbors": neighbors}
        with together(ranks) as team:
            if output is not None:
                found = estimator._voted(near)
                facts["accuracy"] = _accuracy(team, found, asked)
                _collect(session, ranks, team, found, output)
            for name, result in (("distances", near[0]), ("indices", near[1])):
                into = outputs[name]
                if into is not None and ranks is not None:
                    _collect(session, ranks, team, result, into)
            if team is not None:
                facts["design"] = design or DESIGN
                told = team.all_gather(json.dumps(facts | estimator.times_).encode())
                facts["ranks"] = [json.loads(one) for one in told]
                facts["queries"] = sum(one["queries"] for one in facts["ranks"])
        if checkpoint is not None:
            remove_checkpoint(session, checkpoint, None if ranks is None else ranks.rank)
    if ranks is None or ranks.rank == 0:
        if ranks is not None and not as_json:
            facts["ranks"] = len(facts["ranks"])
        say({**facts, **outputs}, as_json)


def _search(train: str, test: str, zero_based: bool) -> str:
    """What tells a checkpoint that rows and queries are the same. A text is imported anew each time, so that it is the text that
    has to be the same, not the matrix."""
    from ._settings import full_path
    from .neighbors import file_facts

    files = [(full_path(path), file_facts(path)) for path in (train, test)]
    return f"{files}, features of texts from {int(not zero_based)} on"


def _started(design: str | None, options: dict[str, Any]) -> tuple[Ranks | None, Session]:
    """The ranks that a launcher has started, if it has, each with its part of the machine."""
    variables = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE")
    if design is None and all(int(os.environ.get(name, 1)) == 1 for name in variables):
        return None, session_of(options)
    from .ranks import mpi

    beside = int(os.environ.get("OMPI_COMM_WORLD_LOCAL_SIZE", os.environ.get("MPI_LOCALNRANKS", 1)))
    os.environ.setdefault("OUTCORE_MEMORY_SHARE", f"1/{beside}")
    if options["threads"] is None:
        options["threads"] = max(1, len(os.sched_getaffinity(0)) // beside)
    session = session_of(options)
    heap = int(session.info()["memory_bytes"]) // 4
    return mpi(design or DESIGN, heap=heap), session


@contextlib.contextmanager
def _ending_all(ranks: Ranks | None) -> Iterator[None]:
    """An error that the other ranks were not told of ends them too."""
    from .ranks import failed

    try:
        yield
    except BaseException as error:
        if ranks is not None:
            failed(error)
        raise


def _check_folders(paths: Iterable[str]) -> None:
    """Before a search of hours: results have a place."""
    for path in paths:
        folder = os.path.dirname(path) or "."
        if not os.access(folder, os.W_OK | os.X_OK):
            reason = errno.EACCES if os.path.isdir(folder) else errno.ENOENT
            raise OSError(reason, os.strerror(reason), path)


@contextlib.contextmanager
def _opened(
    session: Session, ranks: Ranks | None, team: _native.Team | None, train: str, test: str, zero_based: bool
) -> Iterator[list[Array | Sparse]]:
    """This process's rows of matrices with as many columns as the widest has: a text tells only of features that occur in it."""
    from ._foreign import import_libsvm

    paths = (train, test)
    part = None if ranks is None else (ranks.rank, ranks.size)
    texts = [os.path.isfile(path) and not path.endswith(".npy") for path in paths]
    # Texts are numbered alike, and one column more without entries changes no distance: so neither a text nor a part of it has
    # to tell where its features begin. A stored matrix has lost that.
    base = all(texts) or zero_based
    with tempfile.TemporaryDirectory(dir=session.info()["scratch"]) as aside, contextlib.ExitStack() as open_files:

        def opened(number: int) -> Array | Sparse:
            if texts[number]:
                folder = f"{aside}/{number}"
                return import_libsvm(folder, paths[number], zero_based=base, tiled=False, part=part)
            whole = session.open(paths[number])
            return whole if part is None else _share(whole, *part)

        found = [opened(number) for number in range(len(paths))]
        widest = max(matrix.shape[-1] for matrix in found)
        if team is not None:
            widest = max(int(width) for width in team.all_gather(str(widest).encode()))
        for number, matrix in enumerate(found):
            if texts[number] and matrix.shape[-1] < widest:
                matrix.close()
                found[number] = _widened(session, Path(aside, str(number)), widest)
        for matrix in found:
            open_files.callback(matrix.close)
        yield found


def _widened(session: Session, folder: Path, columns: int) -> Any:
    """The imported matrix with columns that have no entries."""
    description = json.loads((folder / "matrix.json").read_text())
    description["shape"][1] = columns
    (folder / "matrix.json").write_text(json.dumps(description))
    return session.open(folder)


def _share(whole: Any, rank: int, size: int) -> Any:
    """The rows of a rank: dense ones by count, sparse ones by entries."""
    if whole.ndim != 2:
        raise ArgumentError(f"{whole!r} has {whole.ndim} dimensions, and rows need 2")
    count = whole.shape[0]
    entries = getattr(whole, "nnz", None)
    if entries is None:
        return whole.slice(count * rank // size, count * (rank + 1) // size)

    def place(part: int) -> int:
        wanted = entries * part // size
        return count if part == size else bisect.bisect_left(range(count), wanted, key=lambda row: whole.slice(0, row).nnz)

    return whole.slice(place(rank), place(rank + 1))


def _known(rows: Any, labels: str | None, train: str, team: _native.Team | None) -> Any:
    """The labels of this process's rows."""
    import numpy as np

    from ._team import AllRows

    if labels is None:
        known = _labels(rows)
        if known is None:
            raise ArgumentError(f"{train} has no labels; --labels names a file of them")
        return known
    known, of_all = np.load(labels, mmap_mode="r"), AllRows(team, rows)
    if known.ndim == 0 or len(known) != of_all.count:
        raise ShapeError(f"{labels} has {np.size(known)} labels, {train} has {of_all.count} rows")
    return np.asarray(known[of_all.first : of_all.first + rows.shape[0]])


def _labels(matrix: Array | Sparse) -> Any:
    """Those of an imported text."""
    from ._sparse import Sparse

    return matrix.labels() if isinstance(matrix, Sparse) else None


def _accuracy(team: _native.Team | None, found: Any, asked: Any) -> float | None:
    if asked is None:
        return None
    counts = [int((found == asked).sum()), len(found)]
    if team is not None:
        told = [json.loads(one) for one in team.all_gather(json.dumps(counts).encode())]
        counts = [sum(one[0] for one in told), sum(one[1] for one in told)]
    return counts[0] / counts[1] if counts[1] else None


def _collect(session: Session, ranks: Ranks | None, team: _native.Team | None, own: Any, path: str) -> None:
    """Writes what all ranks have, in their order, to one file of the first."""
    import numpy as np

    if team is not None:
        # An error of before is told here, where no rank has sent anything else yet.
        team.agree()
    step = max(1, PIECE_BYTES // max(1, np.dtype(own.dtype).itemsize * int(np.prod(own.shape[1:]))))
    pieces = (np.ascontiguousarray(own[at : at + step]) for at in range(0, own.shape[0], step))
    if ranks is not None and ranks.rank > 0:
        _send(ranks, own.shape[0], pieces)
        return
    counts = [own.shape[0]]
    if ranks is not None:
        counts += [_number(ranks, rank) for rank in range(1, ranks.size)]
    received = pieces if ranks is None else itertools.chain(pieces, _received(ranks, own, counts))
    beside = f"{path}.part.npy"
    try:
        _write(session, beside, own, sum(counts), received)
        os.replace(beside, path)
    except Exception:
        # What others have sent is no answer to what they are asked next.
        with contextlib.suppress(Exception):
            for _ in received:
                pass
        with contextlib.suppress(OSError):
            os.unlink(beside)
        raise


def _send(ranks: Ranks, count: int, pieces: Iterator[Any]) -> None:
    """Pieces of as many rows to the first rank, each after its length: -1 for one that could not be read, which is the last."""
    import numpy as np

    def number(value: int) -> None:
        ranks.send(0, np.array([value], np.int64).tobytes())

    number(count)
    try:
        for piece in pieces:
            number(len(piece))
            ranks.send(0, piece.tobytes())
    except Exception:
        number(-1)
        raise


def _number(ranks: Ranks, rank: int) -> int:
    import numpy as np

    return int(np.frombuffer(ranks.receive(rank, 8), np.int64)[0])


def _received(ranks: Ranks, own: Any, counts: list[int]) -> Iterator[Any]:
    """The pieces of the other ranks, in their order. Those of a rank that fails are raised once all others are here."""
    import numpy as np

    dtype, failed = np.dtype(own.dtype), []
    for rank, count in enumerate(counts[1:], start=1):
        left = count
        while left > 0:
            rows = _number(ranks, rank)
            if rows < 0:
                failed.append(rank)
                break
            part = (rows, *own.shape[1:])
            yield np.frombuffer(ranks.receive(rank, dtype.itemsize * int(np.prod(part))), dtype).reshape(part)
            left -= rows
    if failed:
        raise FailedError(f"rank {failed[0]} could not read what it has found")


def _write(session: Session, path: str, own: Any, count: int, pieces: Iterator[Any]) -> None:
    """A `.npy` file of as many rows like these: of labels, or of what is in an array."""
    import numpy as np

    dtype, whole = np.dtype(own.dtype), (count, *own.shape[1:])
    if isinstance(own, np.ndarray):
        with open(path, "wb") as file:
            header = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": whole}
            np.lib.format.write_array_header_1_0(file, header)
            file.writelines(piece.tobytes() for piece in pieces)
            file.flush()
            os.fsync(file.fileno())
        return
    with contextlib.closing(session.create(path, whole, dtype, mode="w")) as array:
        at = 0
        for piece in pieces:
            array[at : at + len(piece)] = piece
            at += len(piece)


COMMANDS = (knn,)
