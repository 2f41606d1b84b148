"""Nearest neighbours over ranks: threads of this process, and processes that mpirun starts, give the bytes of one process."""

import contextlib
import itertools
import json
import multiprocessing
import os
import pickle
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from scipy.sparse import csr_matrix, random_array

import outcore as oc
from outcore import _neighbor_commands, neighbors
from outcore import ranks as of_ranks
from outcore.cli import cli
from outcore.neighbors import KNeighborsClassifier, KNeighborsRegressor, NearestNeighbors

SEED = 5
ENVIRONMENT = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
}


def on_ranks(count, work):
    """What each of some threads comes to, or the error that ends it."""
    found = [None] * count

    def run(rank, comm):
        try:
            found[rank] = work(rank, comm)
        except Exception as error:
            found[rank] = error

    threads = [threading.Thread(target=run, args=pair) for pair in enumerate(of_ranks.threads(count))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return found


def cut(x, count):
    """Ragged parts; the second is empty where there are three."""
    ends = np.linspace(0, x.shape[0], count + 1).astype(int) if count != 3 else [0, 7, 7, x.shape[0]]
    return [x[start:end] for start, end in itertools.pairwise(ends)]


@pytest.fixture(params=["dense", "sparse"])
def matrices(request):
    random = np.random.default_rng(SEED)
    if request.param == "dense":
        return random.integers(-3, 4, (90, 6)).astype(np.float32), random.integers(-3, 4, (31, 6)).astype(np.float32)
    make = lambda rows: csr_matrix(random_array((rows, 40), density=0.1, format="csr", dtype=np.float32, rng=random))  # noqa: E731
    return make(90), make(31)


@pytest.mark.parametrize("count", [1, 2, 3, 5])
@pytest.mark.parametrize("metric", ["euclidean", "cosine", "inner_product"])
def test_each_rank_has_the_neighbours_of_its_queries_among_all_rows(matrices, count, metric):
    rows, queries = matrices
    expected = NearestNeighbors(4, metric=metric).fit(rows).kneighbors(queries)
    of_themselves = NearestNeighbors(4, metric=metric).fit(rows).kneighbors()
    parts = list(zip(cut(rows, count), cut(queries, count), strict=True))

    def work(rank, comm):
        near = NearestNeighbors(4, metric=metric, comm=comm, memory="8MiB").fit(parts[rank][0])
        assert near.n_samples_fit_ == 90
        return near.kneighbors(parts[rank][1]), near.kneighbors()

    found = on_ranks(count, work)
    for side in (0, 1):
        for at, whole in ((0, expected), (1, of_themselves)):
            assert np.concatenate([one[at][side] for one in found]).tobytes() == whole[side].tobytes()


@pytest.mark.parametrize("kind", ["dense", "sparse"])
def test_rows_in_many_blocks_go_round_for_each_group_of_queries(kind, tmp_path):
    random = np.random.default_rng(SEED)
    if kind == "dense":
        rows, count, memory = random.integers(-3, 4, (40_000, 160)).astype("f4"), 1000, "24MiB"
        store = lambda name, part: oc.from_numpy(tmp_path / f"{name}.npy", part)  # noqa: E731
    else:
        rows = csr_matrix(random_array((6000, 300), density=0.1, format="csr", dtype=np.float32, rng=random))
        count, memory = 6000, "1MiB"
        store = lambda name, part: oc.from_scipy(tmp_path / name, part)  # noqa: E731
    queries = rows[:count]
    expected = NearestNeighbors(4).fit(rows).kneighbors(queries)
    parts = [store(str(rank), part) for rank, part in enumerate(cut(rows, 2))]
    asked = [store(f"q{rank}", part) for rank, part in enumerate(cut(queries, 2))]

    def work(rank, comm):
        near = NearestNeighbors(4, comm=comm, memory=memory).fit(parts[rank])
        return near.kneighbors(asked[rank]), near.times_["rounds"]

    found = on_ranks(2, work)
    for side in (0, 1):
        assert np.concatenate([one[0][side] for one in found]).tobytes() == expected[side].tobytes()
    # More than a block of either rank.
    assert all(rounds >= 6 for _, rounds in found)


@pytest.mark.parametrize("kind", ["dense", "sparse"])
@pytest.mark.parametrize("harm", ["NaN", "short"])
def test_harm_that_a_rank_finds_while_it_reads_is_an_error_of_all(kind, harm, tmp_path):
    random = np.random.default_rng(SEED)
    rows = random.normal(size=(4000, 32)).astype("f4")
    rows[3000, 5] = np.nan if harm == "NaN" else 1
    parts = []
    for rank, part in enumerate(cut(rows, 2)):
        path = tmp_path / (f"{rank}.npy" if kind == "dense" else str(rank))
        parts.append(oc.from_numpy(path, part) if kind == "dense" else oc.from_scipy(path, csr_matrix(part)))
    if harm == "short":
        files = [tmp_path / "1.npy"] if kind == "dense" else [file for file in (tmp_path / "1").iterdir() if file.is_file()]
        largest = max(files, key=lambda file: file.stat().st_size)
        os.truncate(largest, largest.stat().st_size // 2)

    def work(rank, comm):
        return NearestNeighbors(4, comm=comm, memory="8MiB").fit(parts[rank]).kneighbors(parts[rank])

    for rank, error in enumerate(on_ranks(2, work)):
        assert isinstance(error, Exception), (rank, error)
        assert rank == 1 or "rank 1" in str(error), error


def opened_parts(folder, kind):
    return [oc.open(folder / (f"{rank}.npy" if kind == "dense" else str(rank))) for rank in range(3)]


def search_over_ranks(folder, kind, k=40, memory="6MiB", threads=2, checkpoint=True):
    """Three ranks, the second without rows, look for the neighbours of their own rows; the rounds that it takes."""
    oc.configure("24MiB", folder, threads, allow_tmpfs_scratch=True)
    parts = opened_parts(folder, kind)

    def work(rank, comm):
        near = NearestNeighbors(k, comm=comm, memory=memory).fit(parts[rank])
        kept = folder / "so_far" if checkpoint else None
        near.kneighbors(out=(folder / f"d{rank}.npy", folder / f"i{rank}.npy"), checkpoint=kept)
        return near.times_["rounds"]

    found = on_ranks(3, work)
    for error in found:
        if isinstance(error, Exception):
            raise error
    return found[0]


@pytest.mark.parametrize("kind", ["dense", "sparse"])
def test_a_search_over_ranks_that_was_killed_goes_on(kind, tmp_path):
    rows = np.random.default_rng(SEED).integers(0, 9, (24_000, 6)).astype("f4")
    rows = rows if kind == "dense" else csr_matrix(rows)
    ends = [0, 12_000, 12_000, 24_000]
    for rank, (start, end) in enumerate(itertools.pairwise(ends)):
        part = rows[start:end]
        oc.from_numpy(tmp_path / f"{rank}.npy", part) if kind == "dense" else oc.from_scipy(tmp_path / str(rank), part)
    all_rounds = search_over_ranks(tmp_path, kind, checkpoint=False)
    expected = [(tmp_path / f"{name}{rank}.npy").read_bytes() for name in "di" for rank in range(3)]
    for found in tmp_path.glob("[di][012].npy"):
        found.unlink()
    for kill_after in (3, 6):
        # Other pieces and groups than those of the search that goes on.
        given = {"kind": kind, "memory": "4MiB", "threads": 1}
        process = multiprocessing.get_context("spawn").Process(target=search_over_ranks, args=(tmp_path,), kwargs=given)
        process.start()
        seen = set()
        while process.is_alive() and len(seen) < kill_after:
            # A file may be replaced meanwhile.
            with contextlib.suppress(FileNotFoundError):
                seen.update(found.read_bytes() for found in tmp_path.rglob("checkpoint.json"))
        process.kill()
        process.join()
        assert len(seen) >= kill_after and not (tmp_path / "d0.npy").exists()
    with pytest.raises(oc.errors.OutcoreError, match="of another search"):
        search_over_ranks(tmp_path, kind, k=41)
    rounds = search_over_ranks(tmp_path, kind)
    assert [(tmp_path / f"{name}{rank}.npy").read_bytes() for name in "di" for rank in range(3)] == expected
    assert rounds < all_rounds
    assert sorted(path.name for path in tmp_path.glob("*so_far*")) == []


def test_a_checkpoint_is_of_all_ranks_and_of_the_rows_of_all(tmp_path, monkeypatch):
    rows = np.random.default_rng(SEED).normal(size=(20, 3))
    some = lambda rank, comm: (  # noqa: E731
        NearestNeighbors(2, comm=comm).fit(rows).kneighbors(checkpoint=tmp_path / "so_far" if rank == 1 else None)
    )
    assert all("rank 1 keeps a checkpoint, rank 0 does not" in str(error) for error in on_ranks(2, some))
    search = lambda rank, comm: (  # noqa: E731
        NearestNeighbors(2, comm=comm).fit(rows + shift * (rank == 0)).kneighbors(checkpoint=tmp_path / "so_far")
    )
    shift = 0
    with monkeypatch.context() as kept:
        kept.setattr(neighbors, "remove_checkpoint", lambda *_: None)
        first = on_ranks(2, search)
    assert len(list(tmp_path.glob("*so_far*"))) == 2
    shift = 1
    assert all("of another search" in str(error) for error in on_ranks(2, search))
    # One rank has begun again, the other is done.
    shift = 0
    shutil.rmtree(next(tmp_path.glob("*so_far.rank-0*")))
    again = on_ranks(2, search)
    assert all(one[at].tobytes() == other[at].tobytes() for one, other in zip(first, again, strict=True) for at in (0, 1))
    assert list(tmp_path.glob("*so_far*")) == []


def test_results_do_not_replace_rows(tmp_path):
    rows = np.random.default_rng(SEED).normal(size=(20, 5))
    array = oc.from_numpy(tmp_path / "x.npy", rows)
    search = lambda rank, comm: NearestNeighbors(5, comm=comm).fit(array).kneighbors(array, out=(array, None))  # noqa: E731
    assert all("both an operand and the output" in str(error) for error in on_ranks(2, search))
    np.testing.assert_array_equal(np.load(tmp_path / "x.npy"), rows)


def test_what_was_fitted_over_ranks_says_so_where_it_is_copied():
    rows = np.random.default_rng(SEED).normal(size=(20, 3))
    fitted = on_ranks(2, lambda rank, comm: KNeighborsClassifier(3, comm=comm).fit(rows, np.arange(20) % 2))
    with pytest.raises(oc.errors.ArgumentError, match="fitted to rows of several ranks"):
        pickle.loads(pickle.dumps(fitted[1])).predict(rows)


def test_labels_and_targets_of_all_ranks_vote():
    random = np.random.default_rng(SEED)
    rows, queries = random.normal(size=(60, 3)), random.normal(size=(20, 3))
    labels, targets = np.array(["no", "maybe", "yes"])[random.integers(0, 3, 60)], random.normal(size=60)
    parts = list(zip(*(cut(x, 3) for x in (rows, labels, targets, queries)), strict=True))

    def work(rank, comm):
        x, y, z, q = parts[rank]
        classes = KNeighborsClassifier(3, weights="distance", comm=comm).fit(x, y)
        return classes.predict(q), classes.predict_proba(q), KNeighborsRegressor(3, comm=comm).fit(x, z).predict(q)

    found = on_ranks(3, work)
    alone = KNeighborsClassifier(3, weights="distance").fit(rows, labels)
    expected = alone.predict(queries), alone.predict_proba(queries), KNeighborsRegressor(3).fit(rows, targets).predict(queries)
    for at, whole in enumerate(expected):
        assert np.array_equal(np.concatenate([one[at] for one in found]), whole)


def test_an_error_of_one_rank_is_one_of_all_and_names_it():
    rows = np.random.default_rng(SEED).normal(size=(20, 3))

    def nan(rank, comm):
        own = rows.copy()
        if rank == 1:
            own[3, 2] = np.nan
        return NearestNeighbors(2, comm=comm).fit(own).kneighbors(rows)

    for rank, error in enumerate(on_ranks(3, nan)):
        assert isinstance(error, Exception), rank
        assert "NaN" in str(error) or "finite" in str(error)
        assert rank == 1 or "rank 1" in str(error)
    width = lambda rank, comm: NearestNeighbors(2, comm=comm).fit(rows[:, : 3 - rank])  # noqa: E731
    assert all("columns" in str(error) for error in on_ranks(2, width))
    many = lambda rank, comm: NearestNeighbors(50, comm=comm).fit(rows).kneighbors(rows)  # noqa: E731
    assert all("n_neighbors" in str(error) for error in on_ranks(2, many))
    metrics = ("euclidean", "cosine")
    search = lambda rank, comm: NearestNeighbors(2, comm=comm, metric=metrics[rank]).fit(rows).kneighbors(rows)  # noqa: E731
    assert all("different metrics: rank 1 cosine, others euclidean" in str(error) for error in on_ranks(2, search))


def test_a_rank_with_too_little_memory_is_an_error_of_all():
    rows = np.random.default_rng(SEED).normal(size=(3000, 40))

    def little(rank, comm):
        return NearestNeighbors(5, comm=comm, memory="64MiB" if rank == 0 else "1MiB").fit(rows).kneighbors(rows)

    found = on_ranks(2, little)
    assert all(isinstance(error, Exception) and "bytes of memory" in str(error) for error in found), found


def has_openshmem():
    if MPIRUN == BESIDE:
        return False
    try:
        import ctypes

        return bool(ctypes.CDLL("liboshmem.so.40", mode=os.RTLD_LAZY))
    except OSError:
        return False


BESIDE = shutil.which("mpirun", path=str(Path(sys.executable).parent))
"""The launcher of the wheel, whose library mpi4py takes."""
MPIRUN = shutil.which("mpirun") or BESIDE


def mpirun(count, *command, launcher=MPIRUN, folder=None, **environment):
    return subprocess.run(
        [launcher, "-n", str(count), sys.executable, *command],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=100,
        env={**os.environ, **ENVIRONMENT, **environment},
        check=False,
    )


needs_mpi = pytest.mark.skipif(MPIRUN is None, reason="no mpirun: install Open MPI")


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    """Train and test rows as LIBSVM text, and what one process makes of them."""
    folder = tmp_path_factory.mktemp("texts")
    random = np.random.default_rng(SEED)
    for name, count in (("train.svm", 500), ("test.svm", 90)):
        lines = []
        for _ in range(count):
            columns = np.unique(random.integers(1, 3000, random.integers(0, 20)))
            lines.append(" ".join([str(random.integers(0, 2)), *(f"{column}:{random.integers(1, 5)}" for column in columns)]))
        (folder / name).write_text("\n".join(lines) + "\n")
    run = ["-m", "outcore.cli", "knn", "train.svm", "test.svm", "--output", "labels.npy", "--indices", "indices.npy"]
    alone = subprocess.run([sys.executable, *run, "--json"], cwd=folder, capture_output=True, text=True, check=False)
    assert alone.returncode == 0, alone.stderr
    return folder, json.loads(alone.stdout), [(folder / name).read_bytes() for name in ("labels.npy", "indices.npy")]


EVERY_DESIGN = """
import sys
from outcore.cli import cli
for design in sys.argv[4:]:
    outputs = ["--output", f"{sys.argv[1]}/{design}-labels.npy", "--indices", f"{sys.argv[1]}/{design}-indices.npy"]
    cli(["knn", *sys.argv[2:4], "--design", design, "--memory", "8MiB", "--json", *outputs], standalone_mode=False)
"""
"""Ranks that search once by each design: they take seconds to start."""


@needs_mpi
@pytest.mark.parametrize("family", ["mpi", "osh"])
def test_every_design_of_four_ranks_writes_the_bytes_of_one_process(texts, family, tmp_path):
    if family == "osh" and not has_openshmem():
        pytest.skip("no OpenSHMEM: install Open MPI from the system's packages")
    folder, facts, expected = texts
    designs = [design for design in of_ranks.DESIGNS if design.startswith(family)]
    assert len(designs) == 3
    done = mpirun(4, "-c", EVERY_DESIGN, *map(str, [tmp_path, folder / "train.svm", folder / "test.svm", *designs]))
    assert done.returncode == 0, done.stderr
    for design, line in zip(designs, done.stdout.splitlines(), strict=True):
        found = json.loads(line)
        assert [(tmp_path / f"{design}-{name}.npy").read_bytes() for name in ("labels", "indices")] == expected, design
        assert found["accuracy"] == facts["accuracy"] and len(found["ranks"]) == 4


@needs_mpi
def test_stored_rows_are_dealt_out_by_entries(tmp_path):
    rows = random_array((300, 600), density=0.01, format="lil", rng=np.random.default_rng(SEED))
    rows[:3] = 1
    oc.from_scipy(tmp_path / "rows", csr_matrix(rows))
    whole = oc.open(tmp_path / "rows")
    parts = [_neighbor_commands._share(whole, rank, 4) for rank in range(4)]
    assert sum(part.shape[0] for part in parts) == 300 and parts[0].shape[0] < 10
    assert max(part.nnz for part in parts) < whole.nnz / 4 + 600
    np.save(tmp_path / "known.npy", np.arange(300) % 3)
    command = ["-m", "outcore.cli", "knn", "rows", "rows", "--labels", "known.npy", "--indices"]
    subprocess.run([sys.executable, *command, "alone.npy"], cwd=tmp_path, check=True, capture_output=True)
    done = mpirun(4, *command, "ranks.npy", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "ranks.npy").read_bytes() == (tmp_path / "alone.npy").read_bytes()


@needs_mpi
def test_labels_of_a_file_are_those_of_the_rows_of_each_rank(texts, tmp_path):
    folder, _, expected = texts
    np.save(tmp_path / "known.npy", oc.import_libsvm(tmp_path / "train", folder / "train.svm").labels())
    command = ["-m", "outcore.cli", "knn", folder / "train.svm", folder / "test.svm", "--labels", tmp_path / "known.npy"]
    done = mpirun(3, *map(str, [*command, "--output", tmp_path / "labels.npy"]))
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "labels.npy").read_bytes() == expected[0]


def test_the_command_keeps_what_it_has_found_until_results_are_written(texts, tmp_path, monkeypatch):
    folder, _, expected = texts
    command = ["knn", str(folder / "train.svm"), str(folder / "test.svm"), "--output", str(tmp_path / "labels.npy")]
    command += ["--checkpoint", str(tmp_path / "so_far")]

    def full(*_):
        raise OSError(28, "No space left on device", "labels.npy")

    with monkeypatch.context() as failing:
        failing.setattr(_neighbor_commands, "_collect", full)
        with pytest.raises(OSError, match="No space"):
            cli(command, standalone_mode=False)
    (kept,) = tmp_path.glob("*so_far*")
    assert json.loads((kept / "checkpoint.json").read_text())[1] == [90, 0]
    with pytest.raises(oc.errors.ArgumentError, match="of another search"):
        cli([*command, "-k", "4"], standalone_mode=False)
    cli(command, standalone_mode=False)
    assert (tmp_path / "labels.npy").read_bytes() == expected[0]
    assert list(tmp_path.glob("*so_far*")) == []
    with pytest.raises(oc.errors.ArgumentError, match="one file twice"):
        cli([*command, "--indices", str(tmp_path / "." / "labels.npy")], standalone_mode=False)


@needs_mpi
def test_a_search_of_four_ranks_leaves_no_checkpoint_once_it_is_written(texts, tmp_path):
    folder, _, expected = texts
    command = ["-m", "outcore.cli", "knn", str(folder / "train.svm"), str(folder / "test.svm")]
    command += ["--checkpoint", str(tmp_path / "so_far")]
    done = mpirun(4, *command, "--output", str(tmp_path / "labels.npy"), "--indices", str(tmp_path / "indices.npy"))
    assert done.returncode == 0, done.stderr
    assert list(tmp_path.glob("*so_far*")) == []
    assert [(tmp_path / name).read_bytes() for name in ("labels.npy", "indices.npy")] == expected


@needs_mpi
def test_a_damaged_part_of_the_text_ends_all_ranks_with_its_place(texts, tmp_path):
    folder, _, _ = texts
    text = (folder / "train.svm").read_text().splitlines()
    text[400] = "1 5:x"
    (tmp_path / "train.svm").write_text("\n".join(text))
    done = mpirun(
        3, "-m", "outcore.cli", "knn", str(tmp_path / "train.svm"), str(folder / "test.svm"), "--indices", str(tmp_path / "i.npy")
    )
    assert done.returncode != 0
    assert "rank 2" in done.stderr and "train.svm" in done.stderr
    assert not (tmp_path / "i.npy").exists()


PROGRAM = """
import os, signal, sys
import numpy as np
from outcore.neighbors import KNeighborsRegressor, NearestNeighbors
from outcore.ranks import failed, mpi
comm = mpi("mpi_rma")
{}
NearestNeighbors(2, comm=comm).fit(np.ones((9, 2))).kneighbors()
"""
ENDINGS = {
    "if comm.rank == 1: os.kill(os.getpid(), signal.SIGKILL)": "rank 1",
    "if comm.rank == 1: raise RuntimeError('it is lost')": "it is lost",
    "if comm.rank == 1: failed(RuntimeError()); sys.exit('it is lost')": "it is lost",
    "KNeighborsRegressor(1, comm=comm).fit(np.ones((4, 2)), np.ones((4, 2)[: 1 + comm.rank]))": "targets of shape",
    "mpi('osh_oc')": "has to begin before MPI",
}
"""What a program does, and what it then says."""


@needs_mpi
@pytest.mark.parametrize("does", ENDINGS)
def test_what_ends_one_rank_ends_all(does, tmp_path):
    if "osh" in does and not has_openshmem():
        pytest.skip("no OpenSHMEM: install Open MPI from the system's packages")
    (tmp_path / "program.py").write_text(PROGRAM.format(does))
    done = mpirun(2, str(tmp_path / "program.py"))
    assert done.returncode != 0 and ENDINGS[does] in done.stderr


def test_graphs_over_ranks_are_refused():
    x = np.random.default_rng(SEED).random((20, 3))
    for found in on_ranks(2, lambda _, comm: NearestNeighbors(2, comm=comm).fit(x).kneighbors_graph()):
        assert isinstance(found, oc.errors.ArgumentError) and "comm must be None" in str(found)


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
def test_another_mpi_library_is_refused_by_name(tmp_path):
    """One that mpi4py may be built for, though Open MPI is found too."""
    (tmp_path / "mpi.c").write_text("int MPI_Get_library_version(char *name, int *length) { *name = *length = 0; return 0; }")
    library = tmp_path / "libmpi_abi.so.0"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, tmp_path / "mpi.c"], check=True)
    program = f"import ctypes; ctypes.CDLL({str(library)!r}); from outcore import ranks; ranks.mpi('mpi')"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode != 0 and f"has loaded the MPI library {library}; outcore knows" in done.stderr


def test_openshmem_is_refused_under_the_launcher_of_mpich():
    begun = {**{name: value for name, value in os.environ.items() if not name.startswith(("OMPI_", "SLURM_"))}, "PMI_RANK": "0"}
    program = "from outcore import ranks; ranks.mpi('osh_oc')"
    done = subprocess.run([sys.executable, "-c", program], env=begun, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode != 0 and "launcher is MPICH's" in done.stderr


@pytest.mark.skipif(BESIDE is None, reason="no wheel of Open MPI")
def test_a_communicator_of_mpi4py_is_taken_by_its_handle(tmp_path):
    pytest.importorskip("mpi4py")
    (tmp_path / "program.py").write_text(
        "import numpy as np\n"
        "from mpi4py import MPI\n"
        "from outcore.neighbors import KNeighborsClassifier\n"
        "from outcore import ranks\n"
        "half = MPI.COMM_WORLD.Split(MPI.COMM_WORLD.Get_rank() % 2)\n"
        "x = np.random.default_rng(7).normal(size=(40, 3))\n"
        "own = slice(half.Get_rank() * 25, 25 + half.Get_rank() * 15)\n"
        "for comm in (half, ranks.mpi('mpi_o', comm=half)):\n"
        "    near = KNeighborsClassifier(3, comm=comm).fit(x[own], np.arange(40)[own] % 4)\n"
        "    alone = KNeighborsClassifier(3).fit(x, np.arange(40) % 4)\n"
        "    assert near.n_samples_fit_ == 40\n"
        "    assert np.array_equal(near.predict(x[:9] + 0.1), alone.predict(x[:9] + 0.1))\n"
    )
    done = mpirun(4, str(tmp_path / "program.py"), launcher=BESIDE)
    assert done.returncode == 0, done.stderr


def test_text_is_read_in_parts_that_end_at_lines(tmp_path):
    lines = [f"{at} 1:{at + 1}" + " 2:1" * (at % 3 == 0) for at in range(50)]
    (tmp_path / "rows.svm").write_text("\n".join(lines))
    for parts in (1, 2, 7, 60):
        read = [oc.import_libsvm(tmp_path / "x", tmp_path / "rows.svm", part=(at, parts)).labels() for at in range(parts)]
        assert np.concatenate(read).tolist() == list(range(50))
    with pytest.raises(oc.errors.ArgumentError, match="parts are counted"):
        oc.import_libsvm(tmp_path / "x", tmp_path / "rows.svm", part=(2, 2))
