"""Matrices in a formatted store: paths that go on behind its file."""

import json
import multiprocessing
import os
import pickle
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp

import outcore as oc
from outcore import errors
from outcore.cluster import KMeans
from outcore.streams import StreamStore


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    disk = tmp_path / "disk.store"
    StreamStore(disk, size="64MiB")
    return disk


@pytest.fixture
def block_device(tmp_path: Path) -> Iterator[Path]:
    """A loop device, where this process may make one."""
    file = tmp_path / "disk"
    file.touch()
    os.truncate(file, 64 << 20)
    loop = ["losetup", "--find", "--show", "--direct-io=on", str(file)]
    made = subprocess.run(loop, capture_output=True, text=True, check=False) if shutil.which("losetup") else None
    if made is None or made.returncode != 0:
        pytest.skip("no loop device to be had")
    yield Path(made.stdout.strip())
    subprocess.run(["losetup", "--detach", made.stdout.strip()], check=True)


def outcore(*words: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "outcore.cli", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_a_block_device_is_a_store(block_device: Path, rng: np.random.Generator) -> None:
    refused = outcore("format", block_device)
    assert refused.returncode == 1 and "--overwrite" in refused.stderr
    assert outcore("format", block_device, "--overwrite").returncode == 0
    values = rng.standard_normal((300, 70))
    store = StreamStore(block_device)
    with store.create("rows") as writer:
        writer.write_array(values)
    oc.from_numpy(block_device / "a.npy", values)
    np.testing.assert_array_equal(np.concatenate(list(store.open("rows"))), values)
    np.testing.assert_array_equal(oc.open(block_device / "a.npy").numpy(), values)
    del store
    assert sorted(names(block_device)) == ["a.npy", "rows"]
    assert outcore("check", block_device).returncode == 0


def test_a_mounted_block_device_is_not_formatted(block_device: Path, tmp_path: Path) -> None:
    place = tmp_path / "mounted"
    place.mkdir()
    made = [["mkfs.ext4", "-q", str(block_device)], ["mount", str(block_device), str(place)]]
    if not shutil.which("mkfs.ext4") or any(subprocess.run(command, check=False).returncode for command in made):
        pytest.skip("nothing can be mounted")
    try:
        assert outcore("format", block_device, "--overwrite").returncode == 1
    finally:
        subprocess.run(["umount", str(place)], check=True)


def names(disk: Path) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-m", "outcore.cli", "ls", str(disk), "--json"], capture_output=True, text=True, check=True
    )
    return [one["name"] for one in json.loads(done.stdout)["objects"]]


def test_arrays(disk: Path, rng: np.random.Generator) -> None:
    values = rng.standard_normal((300, 70)).astype(np.float32)
    a = oc.from_numpy(disk / "a.npy", values)
    assert a.path == disk / "a.npy"
    np.testing.assert_array_equal(oc.open(disk / "a.npy").numpy(), values)
    c = oc.linalg.gemm(a.T, a, disk / "deep/c.npy")
    np.testing.assert_allclose(c.numpy(), values.T @ values, rtol=1e-4, atol=1e-3)
    a[10:20] = 3
    values[10:20] = 3
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(oc.open(disk / "a.npy"))).numpy(), values)
    with pytest.raises(errors.MissingError, match=r"disk\.store/b\.npy"):
        oc.open(disk / "b.npy")
    with pytest.raises(errors.ExistsError, match=r"disk\.store/a\.npy: already exists; mode='w' replaces"):
        oc.create(disk / "a.npy", 3)
    assert oc.create(disk / "zeros.npy", 3).shape == (3,)
    assert oc.create(disk / "zeros.npy", 5, mode="w").shape == oc.open(disk / "zeros.npy").shape == (5,)
    with pytest.raises(errors.NoSpaceError, match=r"disk\.store/large\.npy"):
        oc.create(disk / "large.npy", (10_000, 10_000))
    with pytest.raises(errors.OutcoreError, match="not a store"):
        c2 = disk.with_name("c.npy")
        np.save(c2, values)
        oc.open(c2 / "x.npy")


def test_sparse(disk: Path, tmp_path: Path, rng: np.random.Generator) -> None:
    x = sp.random_array((200, 90), density=0.1, format="csr", dtype=np.float32, rng=rng)
    a = oc.from_scipy(disk / "a", x)
    assert (oc.open(disk / "a").scipy() != x).nnz == 0
    assert (oc.linalg.csrcsc(a, disk / "turned").scipy() != x).nnz == 0
    text = tmp_path / "text.tsv"
    text.write_text("\n".join(f"{row % 3}\tword{row} and word{row * 7 % 50}" for row in range(100)) + "\n")
    for place in (tmp_path / "words", disk / "words"):
        words = oc.import_text(place, text, label_column=0, text_column=1)
        again = oc.open(place)
        assert again.vocabulary() == words.vocabulary()
        assert again.vocabulary()[:3] == ["word0", "and", "word1"]
        np.testing.assert_array_equal(again.labels(), np.arange(100) % 3)
    assert oc.open(disk / "a").labels() is None
    assert oc.open(disk / "a").vocabulary() is None
    folder, stored = (KMeans(3, random_state=0, n_init=1).fit(oc.open(place / "words")) for place in (tmp_path, disk))
    np.testing.assert_array_equal(folder.labels_, stored.labels_)
    np.testing.assert_allclose(folder.cluster_centers_, stored.cluster_centers_, rtol=1e-6)
    assert not [path for path in (tmp_path / "scratch").iterdir() if "words" in path.name]
    with pytest.raises(errors.MissingError, match=r"disk\.store/nothing"):
        oc.open(disk / "nothing")


def _sum(path: str) -> float:
    oc.configure("16MiB", os.path.dirname(os.path.dirname(path)), 1, allow_tmpfs_scratch=True)
    return float(oc.open(path).numpy().sum())


def test_who_reads_does_not_hinder_others_and_who_writes_is_alone(disk: Path) -> None:
    oc.from_numpy(disk / "a.npy", np.ones((100, 10), np.float32)).close()
    code = (
        "import sys, outcore as oc; oc.configure('16MiB', sys.argv[2], 1, allow_tmpfs_scratch=True)\n"
        "a = oc.open(sys.argv[1]); print(a.numpy().sum(), flush=True); input()\n"
        "a[0] = 2; print('written', flush=True); input()\n"
    )
    command = [sys.executable, "-c", code, str(disk / "a.npy"), str(disk.parent)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdin is not None
        assert other.stdout is not None
        assert other.stdout.readline() == "1000.0\n"
        mine = oc.open(disk / "a.npy")
        assert mine.numpy().sum() == 1000
        with pytest.raises(errors.LockedError, match=r"disk\.store"):
            mine[0] = 3
        mine.close()
        other.stdin.write("\n")
        other.stdin.flush()
        assert other.stdout.readline() == "written\n"
        with pytest.raises(errors.LockedError, match=r"disk\.store"):
            oc.open(disk / "a.npy")
        other.stdin.write("\n")
    assert oc.open(disk / "a.npy").numpy().sum() == 1010


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_other_processes_open_it_for_themselves(disk: Path, method: str) -> None:
    oc.from_numpy(disk / "a.npy", np.ones((100, 10), np.float32)).close()
    mine = oc.open(disk / "a.npy")
    with multiprocessing.get_context(method).Pool(2) as pool:
        assert pool.map(_sum, [str(disk / "a.npy")] * 4) == [1000] * 4
    assert mine.numpy().sum() == 1000


def test_streams_and_matrices_share_a_store(disk: Path) -> None:
    streams = StreamStore(disk)
    with streams.create("s") as writer:
        writer.write(b"bytes")
    a = oc.from_numpy(disk / "a.npy", np.eye(5))
    assert b"".join(bytes(block) for block in streams.open("s")) == b"bytes"
    np.testing.assert_array_equal(a.numpy(), np.eye(5))
    with pytest.raises(errors.OutcoreError, match="a stream"):
        oc.open(disk / "s")
    a.close()
    del streams, writer
    assert names(disk) == ["a.npy", "s"]


def test_the_command_line(disk: Path, tmp_path: Path) -> None:
    def outcore(*arguments: object) -> str:
        command = [sys.executable, "-m", "outcore.cli", *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    rows = tmp_path / "rows.svm"
    rows.write_text("1 1:2 3:1\n0 2:1\n")
    outcore("import", rows, disk / "rows")
    assert "[2, 3]" in outcore("info", disk / "rows")
    outcore("export", disk / "rows", tmp_path / "again.svm")
    assert (tmp_path / "again.svm").read_text() == rows.read_text()
    oc.from_numpy(disk / "a.npy", np.eye(4, dtype=np.float32)).close()
    outcore("gemm", disk / "a.npy", disk / "a.npy", disk / "c.npy")
    np.testing.assert_array_equal(oc.open(disk / "c.npy").numpy(), np.eye(4))
    assert "[4, 4]" in outcore("info", disk / "c.npy")
    assert "c.npy" in outcore("ls", disk)
    outcore("check", disk)


def test_embedding_tables_lie_in_a_store(tmp_path: Path, rng: np.random.Generator) -> None:
    from outcore import embedding

    store = tmp_path / "disk.store"
    StreamStore(store, size="64MiB")
    weight = rng.standard_normal((3000, 24)).astype("float32")
    slots = rng.permutation(3000)
    for path, given in (("items", {}), ("placed", {"placement": slots}), ("small", {"encoding": "float16"})):
        packed = embedding.pack(weight, store / path, session=oc.default_session(), **given)
        assert packed.is_packed and packed.shape == (3000, 24)
        del packed
        table = embedding.Table.open(store / path)
        ids = rng.integers(0, 3000, (50, 8))
        expected = weight.astype("float16") if path == "small" else weight
        np.testing.assert_array_equal(table[ids], expected[ids])
        sums = embedding.EmbeddingBag(table, "sum", dtype="float32")(ids)
        np.testing.assert_allclose(sums, expected.astype("float32")[ids].sum(1), rtol=1e-5, atol=1e-5)
    # A matrix of the store is a table too.
    oc.from_numpy(store / "matrix.npy", weight)
    np.testing.assert_array_equal(embedding.Table.open(store / "matrix.npy")[[0, 7, 2999]], weight[[0, 7, 2999]])
    tables = embedding.TableSet({"item": store / "items", "matrix": store / "matrix.npy"})
    found = tables.look_up([embedding.Feature("matrix", ids), embedding.Feature("item", ids)])
    np.testing.assert_array_equal(found[0], found[1])
    with pytest.raises(errors.MissingError, match=r"disk\.store/nothing"):
        embedding.Table.open(store / "nothing")
    with pytest.raises(errors.NoSpaceError, match=r"disk\.store/large"):
        embedding.pack(np.zeros((400_000, 48), np.float32), store / "large")
    np.testing.assert_array_equal(embedding.Table.open(store / "items")[ids], weight[ids])
    # Nothing of the refused one stays, and a table is replaced when the new one is whole.
    assert not any(name.startswith("large") for name in map(str, StreamStore(store)))
    embedding.pack(-weight, store / "items")
    np.testing.assert_array_equal(embedding.Table.open(store / "items")[ids], -weight[ids])
