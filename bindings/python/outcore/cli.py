"""The command line: `outcore info | convert | import | export | gemm | csrmm | pca | svd | topics | kmeans | knn | format | ...`.

Results go to standard output, as lines for people or, with `--json`, as one JSON value; progress and errors go to standard error.
Exit status: 0 when all is well, 1 for an error, 2 for a wrong command line, 130 after Ctrl-C.
"""

from __future__ import annotations

import functools
import os
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

import click

from . import (
    _dataset_commands,
    _embedding_bench_commands,
    _embedding_commands,
    _knn_bench_commands,
    _native,
    _neighbor_commands,
    _plan,
    _spectra_bench_commands,
    _spectra_commands,
    _store,
    _topic_commands,
    errors,
)
from ._array import Array
from ._commands import SEED, THREADS, lines_of, say, say_plan, session_of, session_options
from ._session import Session
from ._sparse import Sparse
from ._units import MOST_BYTES, show_bytes

FOREIGN_KINDS = ["libsvm", "mtx", "bow", "xc", "npz", "parquet", "text"]
FOREIGN = click.Choice(FOREIGN_KINDS)
ENDINGS = {
    ".svm": "libsvm",
    ".libsvm": "libsvm",
    ".svmlight": "libsvm",
    ".mtx": "mtx",
    ".bow": "bow",
    ".xc": "xc",
    ".npz": "npz",
    ".parquet": "parquet",
}
"""Of names whose format is clear."""

IMPORT_OPTIONS = (
    "many_labels",
    "zero_based",
    "features",
    "vocabulary",
    "columns",
    "documents",
    "text_column",
    "label_column",
    "stop_words",
    "ngrams",
    "min_length",
)

PATH = click.Path(dir_okay=False)
MATRIX = click.Path()
"""A dense matrix, which is a file, or a sparse one, which is a folder."""
DTYPE = click.Choice(["float32", "float64"])
ORDER = click.Choice(["C", "F"])


explain_option = click.option("--explain", is_flag=True, help="Print the plan; nothing is read or written.")


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(_native.VERSION, prog_name="outcore")
def cli() -> None:
    """Machine learning on data bigger than memory: an SSD as working memory, within a budget that holds."""


@cli.command()
@click.argument("path", type=MATRIX, required=False)
@session_options
def info(path: str | None, as_json: bool, **options: Any) -> None:
    """Show the settings of outcore on this machine; with PATH, describe that matrix."""
    session = session_of(options)
    if path is None:
        about = session.info()
        say({**about, "scratch": str(about["scratch"])}, as_json)
    else:
        say(_describe(session.open(path)), as_json)


@cli.command()
@click.argument("source", type=PATH)
@click.argument("target", type=PATH)
@click.option("--dtype", type=DTYPE, help="Element type of the target; default that of the source.")
@click.option("--order", type=ORDER, help="Rows (C) or columns (F) next to each other; default as in the source.")
@click.option("--raw-dtype", type=DTYPE, help="The source is a raw file of this type.")
@click.option("--raw-shape", metavar="ROWS[,COLUMNS]", help="... and of this shape.")
@click.option("--raw-order", type=ORDER, default="C", show_default=True, help="... and of this order.")
@click.option(
    "--raw-offset", type=click.IntRange(0, MOST_BYTES), default=0, show_default=True, help="... after this offset, in bytes."
)
@click.option("--raw-leading-dimension", type=click.IntRange(0, MOST_BYTES), help="... and this leading dimension.")
@explain_option
@session_options
def convert(
    source: str,
    target: str,
    dtype: str | None,
    order: Any,
    raw_dtype: str | None,
    raw_shape: str | None,
    raw_order: Any,
    raw_offset: int,
    raw_leading_dimension: int | None,
    explain: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Copy SOURCE, a .npy or raw file, to TARGET, a .npy file, with another element type or order."""
    import outcore

    session = session_of(options)
    shape = None if raw_shape is None else [_whole(part) for part in raw_shape.split(",")]
    array = session.open(
        source,
        dtype=raw_dtype,
        shape=shape,
        order=raw_order,
        offset=raw_offset,
        leading_dimension=raw_leading_dimension,
    )
    work = functools.partial(outcore.convert, _dense(array), target, dtype=dtype, order=order)
    _done(session, work, explain, as_json)


@cli.command("import")
@click.argument("source", type=PATH, nargs=-1, required=True)
@click.argument("target", type=click.Path(file_okay=False))
@click.option("--format", "kind", type=FOREIGN, help="What SOURCE is; default by its name.")
@click.option("--dtype", type=DTYPE, default="float32", show_default=True, help="Type of the values.")
@click.option(
    "--tiled/--arrays", default=True, show_default=True, help="Tiles where they pay; arrays are what other programs read."
)
@click.option("--resume", is_flag=True, help="Go on with an import that died or failed.")
@click.option("--many-labels", is_flag=True, help="libsvm: many labels a row.")
@click.option("--zero-based/--one-based", default=None, help="libsvm: number of the first feature; default found out.")
@click.option("--features", type=click.IntRange(0), help="libsvm: columns; default as many as are found.")
@click.option("--vocabulary", type=PATH, help="bow: the words, one a line. text: words to count, others are left out.")
@click.option("--columns", metavar="ROW,COLUMN[,VALUE]", help="parquet: names of the columns; default the first three.")
@click.option(
    "--documents", type=click.Choice(["lines", "files"]), help="text: what a row is of; of several SOURCEs it has to be said."
)
@click.option("--text-column", type=click.IntRange(0), help="text: column with the text of tab-separated lines, from 0.")
@click.option("--label-column", type=click.IntRange(0), help="text: column with a label.")
@click.option("--stop-words", type=PATH, help="text: words to leave out, one a line.")
@click.option("--ngrams", nargs=2, type=click.IntRange(1), default=(1, 1), metavar="FROM TO", help="text: neighbouring words.")
@click.option("--min-length", type=click.IntRange(0), default=2, show_default=True, help="text: characters of a word at least.")
@session_options
def import_(source: tuple[str, ...], target: str, kind: str | None, as_json: bool, **options: Any) -> None:
    """Import SOURCE, sparse data in a foreign format, to TARGET, a new folder with a sparse matrix."""
    import outcore

    about = {name: options.pop(name) for name in IMPORT_OPTIONS}
    kind = kind or _kind_of(source[0])
    if len(source) > 1 and kind not in ("libsvm", "text"):
        raise click.BadParameter(f"{kind} is one file", param_hint="SOURCE")
    dtype, resume, tiled = options.pop("dtype"), options.pop("resume"), options.pop("tiled")
    session_of(options)
    given: dict[str, Any] = {"dtype": dtype, "tiled": tiled, "resume": resume}
    if kind == "libsvm":
        zero_based = "auto" if about["zero_based"] is None else about["zero_based"]
        given |= {"many_labels": about["many_labels"], "zero_based": zero_based, "n_features": about["features"]}
    elif kind == "bow":
        given |= {"vocabulary": about["vocabulary"]}
    elif kind == "parquet" and about["columns"]:
        given |= {"columns": about["columns"].split(",")}
    elif kind == "text":
        if about["documents"] is None and len(source) > 1:
            raise click.UsageError(f"{len(source)} sources: give --documents lines or --documents files")
        given |= {"documents": about["documents"]}
        given |= {"text_column": about["text_column"], "label_column": about["label_column"], "min_length": about["min_length"]}
        given |= {name: lines_of(about[name]) for name in ("stop_words", "vocabulary")} | {"ngram_range": about["ngrams"]}
    found = getattr(outcore, f"import_{kind}")(target, list(source) if kind in ("libsvm", "text") else source[0], **given)
    _imported(found, as_json)


@cli.command()
@click.argument("source", type=click.Path(file_okay=False))
@click.argument("target", type=PATH)
@click.option("--format", "kind", type=click.Choice(FOREIGN_KINDS[:-1]), help="What TARGET is to be; default by its name.")
@session_options
def export(source: str, target: str, kind: str | None, as_json: bool, **options: Any) -> None:
    """Write SOURCE, a folder with a sparse matrix, to TARGET in a foreign format, with the labels that lie beside it."""
    import outcore

    session = session_of(options)
    matrix, kind = _sparse(session.open(source)), kind or _kind_of(target)
    if kind == "xc":
        outcore.export_xc(matrix, _first(_labels_of(session, source), lambda: _none(matrix)), target)
    elif kind == "libsvm":
        labels = _first(_labels_of(session, source), matrix.labels)
        outcore.export_libsvm(matrix, target, labels, queries=matrix.queries())
    else:
        getattr(outcore, f"export_{kind}")(matrix, target)
    nbytes = os.path.getsize(target)
    facts = {"path": target, "format": kind, "shape": list(matrix.shape), "entries": matrix.nnz, "nbytes": nbytes}
    if as_json:
        say(facts, True)
    else:
        print(f"{target}: {' x '.join(map(str, matrix.shape))}, {matrix.nnz} entries, {show_bytes(nbytes)}")


@cli.command()
@click.argument("a", type=PATH)
@click.argument("b", type=PATH)
@click.argument("out", type=PATH)
@click.option("--alpha", type=float, default=1.0, show_default=True)
@click.option("--trans-a", is_flag=True, help="Use the transpose of A.")
@click.option("--trans-b", is_flag=True, help="Use the transpose of B.")
@explain_option
@session_options
def gemm(
    a: str, b: str, out: str, alpha: float, trans_a: bool, trans_b: bool, explain: bool, as_json: bool, **options: Any
) -> None:
    """Multiply the matrices in A and B; OUT is a new .npy file."""
    from . import linalg

    session = session_of(options)
    left, right = _dense(session.open(a)), _dense(session.open(b))
    work = functools.partial(linalg.gemm, left, right, out, alpha=alpha, trans_a=trans_a, trans_b=trans_b)
    _done(session, work, explain, as_json)


@cli.command()
@click.argument("a", type=click.Path(file_okay=False))
@click.argument("b", type=PATH)
@click.argument("out", type=PATH)
@click.option("--alpha", type=float, default=1.0, show_default=True)
@click.option("--trans-a", is_flag=True, help="Use the transpose of A.")
@explain_option
@session_options
def csrmm(a: str, b: str, out: str, alpha: float, trans_a: bool, explain: bool, as_json: bool, **options: Any) -> None:
    """Multiply the sparse matrix in the folder A by the dense one in B; OUT is a new .npy file."""
    from . import linalg

    session = session_of(options)
    left, right = _sparse(session.open(a)), _dense(session.open(b))
    _done(session, functools.partial(linalg.csrmm, left, right, out, alpha=alpha, trans_a=trans_a), explain, as_json)


@cli.command()
@click.argument("x", type=PATH)
@click.option(
    "-k", "--components", default="50", show_default=True, help="How many, or a part of the variance such as 0.95, or all."
)
@click.option("--output", "-o", type=click.Path(), help="New .npy file for the projected rows.")
@click.option("--model", type=PATH, help="New .npz file for components, mean and variances.")
@click.option("--whiten", is_flag=True, help="Scale the projection to unit variance.")
@click.option("--random-state", type=SEED, default=0, show_default=True)
@explain_option
@session_options
def pca(
    x: str,
    components: str,
    output: str | None,
    model: str | None,
    whiten: bool,
    random_state: int,
    explain: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Principal components of the rows of X."""
    import numpy as np

    from .decomposition import PCA

    session = session_of(options)
    array = session.open(x)
    found = PCA(_components(components), whiten=whiten, random_state=random_state)
    if explain:
        say_plan(found.explain(array), as_json)
        return
    begin = time.perf_counter()
    found.fit(array)
    seconds = time.perf_counter() - begin
    if model is not None:
        names = ("components_", "mean_", "explained_variance_", "explained_variance_ratio_", "singular_values_")
        np.savez(model, **{name.rstrip("_"): getattr(found, name) for name in names})
    if output is not None:
        found.transform(array, out=output)
    ratio = [float(part) for part in found.explained_variance_ratio_]
    facts = {"components": found.n_components_, "explained": sum(ratio), "explained_variance_ratio": ratio, "fit_s": seconds}
    if as_json:
        say({**facts, "output": output, "model": model}, True)
        return
    print(f"{found.n_components_} components explain {100 * sum(ratio):.2f} % of the variance; found in {seconds:.2f} s")
    for number, part in enumerate(ratio[:10], 1):
        print(f"{number:>5} {100 * part:7.2f} %")
    if len(ratio) > 10:
        print(f"  ... {len(ratio) - 10} more")


@cli.command()
@click.argument("x", type=MATRIX)
@click.option("-k", "--clusters", type=click.IntRange(1), default=8, show_default=True, help="How many.")
@click.option("--init", type=click.Choice(["k-means++", "k-means||", "random"]), default="k-means++", show_default=True)
@click.option("--start", type=PATH, help=".npy file of centres to start from, instead of --init.")
@click.option("--max-iter", type=click.IntRange(1), default=300, show_default=True, help="Rounds at most.")
@click.option("--tol", type=click.FloatRange(0), default=1e-4, show_default=True, help="Stop when centres move less than this.")
@click.option("--output", "-o", type=PATH, help="New .npy file for the label of each row.")
@click.option("--centers", type=PATH, help="New .npy file for the centres.")
@click.option("--random-state", type=SEED, default=0, show_default=True)
@explain_option
@session_options
def kmeans(
    x: str,
    clusters: int,
    init: str,
    start: str | None,
    max_iter: int,
    tol: float,
    output: str | None,
    centers: str | None,
    random_state: int,
    explain: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Clusters of the rows of X, a .npy file or a folder with a sparse matrix."""
    import numpy as np

    from .cluster import KMeans

    session = session_of(options)
    array = session.open(x)
    begin_with: Any = init
    if start is not None:
        begin_with = _dense(session.open(start)).numpy()
        clusters = len(begin_with)
    found = KMeans(clusters, init=begin_with, max_iter=max_iter, tol=tol, random_state=random_state)
    if explain:
        say_plan(found.explain(array), as_json)
        return
    begin = time.perf_counter()
    found.fit(array)
    seconds = time.perf_counter() - begin
    if output is not None:
        np.save(_npy(output), found.labels_)
    if centers is not None:
        np.save(_npy(centers), found.cluster_centers_)
    sizes = np.bincount(found.labels_, minlength=clusters)
    facts = {
        "clusters": clusters,
        "inertia": found.inertia_,
        "rounds": found.n_iter_,
        "compared": found.compared_,
        "fit_s": seconds,
    }
    if as_json:
        say({**facts, "sizes": sizes.tolist(), "output": output, "centers": centers}, True)
        return
    print(f"{clusters} clusters of {sizes.min()} to {sizes.max()} rows after {found.n_iter_} rounds; found in {seconds:.2f} s")
    print(f"inertia {found.inertia_:.8g}; {100 * found.compared_:.1f} % of the rows were compared with all centres a round")


def _npy(path: str) -> str:
    if not path.endswith(".npy"):
        raise errors.ArgumentError(f"{path} will be a new .npy file, so its name must end in .npy")
    return path


@cli.command("bench-device")
@click.argument("folder", type=click.Path(file_okay=False, exists=True), default=".")
@click.option("--size", default="1GiB", show_default=True, metavar="SIZE", help="Length of the file that is written and read.")
@click.option("--seconds", type=click.FloatRange(0.1), default=5.0, show_default=True, help="Least time of the random reads.")
@session_options
def bench_device(folder: str, size: str, seconds: float, as_json: bool, **options: Any) -> None:
    """Measure FOLDER's device through this library: sequential write and read, random reads of 4 KiB."""
    from ._device import measure

    found = measure(session_of(options), folder, size, seconds)
    if as_json:
        say(found, True)
        return
    print(f"driver             {found['driver']}")
    print(f"sequential write   {found['write_gb_s']:.2f} GB/s")
    print(f"sequential read    {found['read_gb_s']:.2f} GB/s")
    print(f"random 4 KiB read  {found['random_iops']:,.0f} a second")


@cli.command("format")
@click.argument("path", type=PATH)
@click.option("--size", metavar="SIZE", help="Length of a new file.")
@click.option("--overwrite", is_flag=True, help="Format what is there: a block device, or a file. Everything on it is lost.")
def format_(path: str, size: str | None, overwrite: bool) -> None:
    """Make PATH a store, which holds named objects and streams: a new file of SIZE, or a block device."""
    _store.format_store(path, size, overwrite=overwrite)


@cli.command("ls")
@click.argument("path", type=PATH)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON value.")
def list_(path: str, as_json: bool) -> None:
    """List the content of the store PATH."""
    found = _store.list_store(path)
    if as_json:
        say(found, True)
        return
    for one in found["objects"]:
        changed = one["modified"].astimezone().isoformat(" ", "seconds")
        state = "" if one["state"] == "whole" else f"  {one['state']}"
        print(f"{one['kind']:<7} {show_bytes(one['bytes']):>11}  {changed}  {one['name']}{state}")
    print(f"{show_bytes(found['free_bytes'])} free")


@cli.command()
@click.argument("path", type=PATH)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON value.")
def repair(path: str, as_json: bool) -> None:
    """Repair the store PATH as far as possible, and list its faults.

    Damaged objects are marked as such.
    """
    faults = _store.repair_store(path)
    if as_json:
        say(faults, True)
        return
    for fault in faults:
        print(_fault(fault))
    if not faults:
        print("nothing was wrong")


def _fault(fault: dict[str, str]) -> str:
    return f"{fault['name']}: {fault['reason']}" if fault["name"] else fault["reason"]


@cli.command()
@click.argument("paths", type=MATRIX, nargs=-1, required=True)
@click.option("--values", is_flag=True, help="Also read all elements and look for NaN and infinity.")
@session_options
def check(paths: tuple[str, ...], values: bool, as_json: bool, **options: Any) -> None:
    """Check each of PATHS: of a matrix, header, length, and mark of an unfinished write; of a store, every block.

    Exit status 1 if one has a fault.
    """
    session = session_of(options)
    found = [_checked(session, path, values) for path in paths]
    if as_json:
        say(found, True)
    else:
        for one in found:
            print(f"{one['path']}: {'ok, ' + one['what'] if one['ok'] else one['error']}")
            for fault in one.get("faults", []):
                print(f"  {_fault(fault)}")
    if not all(one["ok"] for one in found):
        raise SystemExit(1)


@cli.command()
@click.option("--data", type=click.Path(exists=True), help="Folder or tar archive of images; default the MNIST of the project.")
@click.option(
    "--texts", type=PATH, help="Table of names, labels and texts between tabs, plain or packed; default the project's packages."
)
@click.option("--only", type=click.Choice(["images", "text"]), help="One part instead of both.")
@click.option("--memory", default="32MiB", show_default=True, metavar="SIZE", help="Budget of the library for the images.")
@click.option("--text-memory", default="256MiB", show_default=True, metavar="SIZE", help="... and for the texts.")
@click.option("--components", type=click.IntRange(1), default=50, show_default=True, help="Principal components of the images.")
@click.option("--clusters", type=click.IntRange(2), default=32, show_default=True, help="Clusters of the texts.")
@click.option("--topics", type=click.IntRange(1), default=32, show_default=True, help="Topics of the texts.")
@click.option("--dimensions", type=click.IntRange(2), default=4096, show_default=True, help="Numbers that stand for a text.")
@click.option("--rounds", type=click.IntRange(1), default=20, show_default=True, help="Rounds of k-means at most.")
@click.option("--output", type=PATH, default="report.html", show_default=True)
@click.option("--scratch", type=click.Path(file_okay=False), help="Folder on SSD for the arrays; default beside the report.")
@click.option("--threads", type=THREADS, help="Cores to use; default all.")
@click.option(
    "--size", nargs=2, type=click.IntRange(1), metavar="WIDTH HEIGHT", help="Size of every image; default the commonest."
)
@click.option(
    "--mixed", type=click.Choice(["resize", "refuse"]), default="resize", show_default=True, help="Images of other sizes."
)
@click.option("--random-state", type=SEED, default=0, show_default=True)
@click.option("--compare/--no-compare", default=True, help="Run numpy and scikit-learn too.")
@click.option("--explain", is_flag=True, help="Say what would be done.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON value.")
def demo(explain: bool, as_json: bool, **options: Any) -> None:
    """Compute components of images, clusters and topics of texts, larger than the memory allowed, and write an HTML report."""
    if explain:
        say({name: value for name, value in options.items() if value is not None}, as_json)
        return
    try:
        from .demo import run_demo
        from .demo.confined import DemoError
    except ImportError as missing:
        raise click.ClickException(f"the demo needs {missing.name}: pip install 'outcore[demo]'") from missing
    try:
        found = run_demo(json=as_json, **options)
    except DemoError as error:
        raise click.ClickException(str(error)) from error
    if as_json:
        say(found, True)


def _kind_of(name: str) -> str:
    stem, ending = os.path.splitext(name.lower())
    if ending in (".gz", ".bz2", ".xz", ".zst"):
        ending = os.path.splitext(stem)[1]
    if os.path.basename(name).lower().startswith("docword."):
        return "bow"
    if ending not in ENDINGS:
        raise click.UsageError(f"the format of {name} is not clear from its name; give --format")
    return ENDINGS[ending]


def _labels_of(session: Session, path: str) -> Any:
    """The sparse matrix of labels beside a matrix, if there is one."""
    beside = os.path.join(path, "labels")
    return session.open(beside) if session._inner.is_sparse(beside) else None


def _first(found: Any, other: Callable[[], Any]) -> Any:
    return other() if found is None else found


def _none(matrix: Any) -> Any:
    raise click.UsageError(f"{matrix.path} has no labels beside it, which the XC format needs")


def _imported(matrix: Sparse, as_json: bool) -> None:
    if as_json:
        say(_describe(matrix), True)
    else:
        print(f"{matrix.path}: {_in_words(matrix)}, {show_bytes(matrix.nbytes)}")


def _dense(matrix: Array | Sparse) -> Array:
    if isinstance(matrix, Sparse):
        raise errors.DTypeError(f"{matrix!r} is sparse, but a dense matrix is needed")
    return matrix


def _sparse(matrix: Array | Sparse) -> Sparse:
    if isinstance(matrix, Array):
        raise errors.DTypeError(f"{matrix!r} is dense, but a sparse matrix (a folder) is needed")
    return matrix


def _describe(matrix: Array | Sparse) -> dict[str, Any]:
    facts: dict[str, Any] = {"path": str(matrix.path), "shape": list(matrix.shape), "dtype": str(matrix.dtype)}
    if isinstance(matrix, Sparse):
        return {**facts, "format": matrix.format, "tiled": matrix.is_tiled, "entries": matrix.nnz, "nbytes": matrix.nbytes}
    return {**facts, "order": matrix.order, "nbytes": matrix.nbytes}


def _in_words(matrix: Array | Sparse) -> str:
    words = f"{' x '.join(map(str, matrix.shape))} {matrix.dtype}"
    return f"{matrix.format} {words}, {matrix.nnz} entries" if isinstance(matrix, Sparse) else words


def _done(session: Session, work: Callable[[], Array], explain: bool, as_json: bool) -> None:
    """Does the work and says what came of it, or only what its plan is."""
    if explain:
        say_plan(_plan.explain(work), as_json)
        return
    array = work()
    trace = session.last_trace()
    if as_json:
        facts = trace.to_dict()
        facts.pop("spans")
        say({**_describe(array), "trace": facts}, True)
    else:
        print(f"{array.path}: {_in_words(array)}, {show_bytes(array.nbytes)}")
        print(trace)


def _checked(session: Session, path: str, values: bool) -> dict[str, Any]:
    try:
        if _store.is_store(path):
            store = _store.check_store(path)
            if store["faults"]:
                return {"path": path, "ok": False, "error": "damaged or unfinished:", "faults": store["faults"]}
            return {"path": path, "ok": True, "what": f"a store of {store['objects']} objects, {show_bytes(store['bytes'])}"}
        matrix = session.open(path)
        what = _in_words(matrix)
        if values:
            found = _extremes(matrix)
            if not all(map(_finite, found.values())):
                told = ", ".join(f"{name} {value}" for name, value in found.items())
                return {"path": path, "ok": False, "error": f"{path}: not all values are finite ({told})"}
            what += "".join(f", {name} {value:g}" for name, value in found.items()) or ", empty"
        return {"path": path, "ok": True, "what": what}
    except errors.OutcoreError as error:
        return {"path": path, "ok": False, "error": str(error), "kind": type(error).__name__}


def _extremes(matrix: Array | Sparse) -> dict[str, float]:
    from . import linalg

    if 0 in matrix.shape:
        return {}
    if isinstance(matrix, Sparse):
        norms = linalg.row_norms if matrix.format == "csr" else linalg.column_norms
        return {"largest magnitude": float(norms(matrix, "max").max())}
    return {"least": linalg.reduce(matrix, "min"), "greatest": linalg.reduce(matrix, "max")}


def _finite(value: float) -> bool:
    return value - value == 0


def _components(text: str) -> float | None:
    if text == "all":
        return None
    try:
        return int(text) if text.isdigit() else float(text)
    except ValueError:
        raise click.BadParameter(f"{text!r} is neither a number nor 'all'", param_hint="--components") from None


def _whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise click.BadParameter(f"{text!r} is not an integer", param_hint="--raw-shape") from None


for _command in (
    *_dataset_commands.COMMANDS,
    *_embedding_commands.COMMANDS,
    *_embedding_bench_commands.COMMANDS,
    *_neighbor_commands.COMMANDS,
    *_spectra_commands.COMMANDS,
    *_spectra_bench_commands.COMMANDS,
    *_topic_commands.COMMANDS,
    *_knn_bench_commands.COMMANDS,
):
    cli.add_command(_command)


def main() -> None:
    """The `outcore` command."""
    warnings.showwarning = lambda message, *_: print(f"outcore: {message}", file=sys.stderr)
    try:
        code = cli.main(standalone_mode=False)
    except click.exceptions.Abort:
        code = 130
    except click.ClickException as error:
        error.show()
        code = error.exit_code
    except KeyboardInterrupt:
        code = 130
    except (errors.OutcoreError, OSError) as error:
        print(f"outcore: {error}", file=sys.stderr)
        code = 1
    sys.exit(code if isinstance(code, int) else 0)


if __name__ == "__main__":
    main()
