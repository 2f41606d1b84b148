"""The command line."""

import contextlib
import io
import json
import subprocess
import sys
import tarfile
import warnings
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import scipy.sparse as sp
from click.testing import CliRunner

import outcore as oc
from outcore.cli import cli, main
from outcore.cluster import KMeans


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator) -> Path:
    oc.from_numpy(tmp_path / "x.npy", rng.standard_normal((200, 30)))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*words: str) -> str:
    result = CliRunner().invoke(cli, words, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def run_json(*words: str) -> Any:
    return json.loads(run(*words, "--json"))


def outcore(*words: str) -> subprocess.CompletedProcess[str]:
    """What the command makes of the words, whether it ends well or not."""
    out, err = io.StringIO(), io.StringIO()
    with (
        patch.object(sys, "argv", ["outcore", *words]),
        warnings.catch_warnings(),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        pytest.raises(SystemExit) as ended,
    ):
        main()
    return subprocess.CompletedProcess(words, int(ended.value.code or 0), out.getvalue(), err.getvalue())


def process(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "outcore.cli", *words], capture_output=True, text=True, timeout=120, check=False)


def test_info(folder: Path) -> None:
    found = run_json("info", "--memory", "100MiB", "--threads", "2")
    assert (found["memory_bytes"], found["threads"]) == (100 << 20, 2)
    assert found["driver"] in ("io_uring", "threads")
    assert "100.0 MiB" in run("info", "--memory", "100MiB")
    assert run_json("info", "--driver", "threads")["driver"] == "threads"
    found = run_json("info", "x.npy")
    assert (found["shape"], found["dtype"], found["order"]) == ([200, 30], "float64", "C")


def test_convert(folder: Path) -> None:
    found = run_json("convert", "x.npy", "y.npy", "--dtype", "float32", "--order", "F")
    assert (found["dtype"], found["order"]) == ("float32", "F")
    np.testing.assert_array_equal(np.load("y.npy"), np.load("x.npy").astype("f4"))
    Path("x.bin").write_bytes(b"12345678" + np.load("x.npy").tobytes())
    run("convert", "x.bin", "z.npy", "--raw-dtype", "float64", "--raw-shape", "200,30", "--raw-offset", "8")
    np.testing.assert_array_equal(np.load("z.npy"), np.load("x.npy"))


def test_gemm(folder: Path) -> None:
    x = np.load("x.npy")
    assert "plan        gemm" in run("gemm", "x.npy", "x.npy", "c.npy", "--trans-a", "--explain")
    assert run_json("gemm", "x.npy", "x.npy", "c.npy", "--trans-a", "--explain")[0]["predicted"]["bytes_read"] > 0
    assert run_json("pca", "x.npy", "-k", "3", "--explain")[0]["plan"] == "pca fit"
    assert not Path("c.npy").exists()
    found = run_json("gemm", "x.npy", "x.npy", "c.npy", "--trans-a", "--alpha", "2", "--memory", "8MiB")
    assert found["trace"]["plan"] == "gemm"
    np.testing.assert_allclose(np.load("c.npy"), 2 * x.T @ x)
    assert "Gflop/s" in run("gemm", "x.npy", "x.npy", "d.npy", "--trans-b")


def test_pca(folder: Path) -> None:
    assert "plan        pca" in run("pca", "x.npy", "-k", "3", "--explain")
    found = run_json("pca", "x.npy", "-k", "3", "-o", "y.npy", "--model", "m.npz")
    assert found["components"] == 3
    model = np.load("m.npz")
    np.testing.assert_allclose(np.load("y.npy"), (np.load("x.npy") - model["mean"]) @ model["components"].T, atol=1e-9)
    assert run_json("pca", "x.npy", "-k", "0.9")["explained"] > 0.9
    assert run_json("pca", "x.npy", "-k", "all")["components"] == 30
    assert "% of the variance" in run("pca", "x.npy", "-k", "20")


def test_knn(folder: Path) -> None:
    np.save(folder / "y.npy", np.arange(200) % 3)
    found = run_json("knn", "x.npy", "x.npy", "-k", "1", "--labels", "y.npy", "-o", "found.npy", "--indices", "i.npy")
    assert (found["rows"], found["queries"], found["accuracy"]) == (200, 200, None)
    np.testing.assert_array_equal(np.load("found.npy"), np.arange(200) % 3)
    np.testing.assert_array_equal(np.load("i.npy")[:, 0], np.arange(200))
    # The texts tell of different numbers of features; the wider is the second, then the first.
    (folder / "a.svm").write_text("1 1:1\n2 2:2\n1 1:2\n")
    (folder / "b.svm").write_text("1 1:1.5\n2 2:3 5:0.5\n")
    for first, second in (("a.svm", "b.svm"), ("b.svm", "a.svm")):
        assert run_json("knn", first, second, "-k", "1", "-o", "found.npy", "--distances", "d.npy")["accuracy"] == 1
    np.testing.assert_array_equal(np.load("found.npy"), [1, 2, 1])
    assert "search s" in run("knn", "a.svm", "b.svm", "-k", "3", "--metric", "cosine", "--indices", "i.npy")
    # One text has a feature 0, the other does not tell; beside a stored matrix an option does.
    (folder / "zero.svm").write_text("1 0:1\n2 1:1\n")
    (folder / "one.svm").write_text("1 1:1\n")
    run("knn", "zero.svm", "one.svm", "-k", "1", "--indices", "i.npy")
    np.testing.assert_array_equal(np.load("i.npy"), [[1]])
    run("import", "zero.svm", "stored")
    for base, nearest in (("--one-based", 0), ("--zero-based", 1)):
        run("knn", "stored", "one.svm", "-k", "1", base, "--indices", "i.npy")
        np.testing.assert_array_equal(np.load("i.npy"), [[nearest]])
    for words, told in (
        (("x.npy", "x.npy", "-o", "l.npy"), "no labels"),
        (("x.npy", "x.npy"), "--indices"),
        (("a.svm", "b.svm", "-o", "l"), ".npy"),
        (("a.svm", "b.svm", "-o", "missing/l.npy"), "missing/l.npy"),
        (("stored", "zero.svm", "--indices", "i.npy"), "zero.svm"),
    ):
        done = outcore("knn", *words)
        assert done.returncode == 1 and told in done.stderr


def test_kmeans(folder: Path) -> None:
    assert "plan        k-means" in run("kmeans", "x.npy", "-k", "3", "--explain")
    found = run_json("kmeans", "x.npy", "-k", "3", "-o", "labels.npy", "--centers", "c.npy")
    labels, centers, x = np.load("labels.npy"), np.load("c.npy"), np.load("x.npy")
    assert found["sizes"] == np.bincount(labels).tolist()
    np.testing.assert_allclose(np.square(x - centers[labels]).sum(), found["inertia"], rtol=1e-9)
    again = run_json("kmeans", "x.npy", "--start", "c.npy")
    assert (again["clusters"], again["inertia"]) == (3, pytest.approx(found["inertia"]))
    assert "3 clusters of" in run("kmeans", "x.npy", "-k", "3", "--init", "k-means||")


def test_check(folder: Path) -> None:
    found = run_json("check", "x.npy", "--values")
    assert found[0]["ok"]
    x = np.load("x.npy")
    x[3, 4] = np.nan
    np.save("nan.npy", x)
    Path("junk.npy").write_bytes(b"junk")
    Path("short.npy").write_bytes(Path("x.npy").read_bytes()[:-1])
    result = CliRunner().invoke(cli, ["check", "x.npy", "nan.npy", "junk.npy", "short.npy", "gone.npy", "--values"])
    assert result.exit_code == 1
    lines = result.output.splitlines()
    assert [reason in line for reason, line in zip(("ok", "finite", "junk", "truncated", "no such"), lines, strict=True)] == [
        True
    ] * 5


def test_a_sparse_matrix_is_taken_for_what_it_is(folder: Path) -> None:
    x = sp.random(300, 40, 0.1, "csr", random_state=0)
    oc.from_scipy("x", x)
    oc.from_scipy("turned", x.tocsc())
    assert run_json("info", "x") == {
        "path": str(folder / "x"),
        "shape": [300, 40],
        "dtype": "float64",
        "format": "csr",
        "tiled": False,
        "entries": x.nnz,
        "nbytes": oc.open("x").nbytes,
    }
    assert run_json("kmeans", "x", "-k", "3", "-o", "labels.npy")["output"] == "labels.npy"
    np.testing.assert_array_equal(np.load("labels.npy"), KMeans(3).fit(x).labels_)
    assert "plan        k-means" in run("kmeans", "x", "-k", "3", "--explain")
    assert [one["ok"] for one in run_json("check", "x", "turned", "--values")] == [True, True]
    indices, values = np.load("x/indices.npy"), np.load("turned/data.npy")
    indices[7], values[5] = 40, np.inf
    np.save("x/indices.npy", indices)
    np.save("turned/data.npy", values)
    result = CliRunner().invoke(cli, ["check", "x", "turned", ".", "--values"])
    assert result.exit_code == 1
    assert [
        word in line for word, line in zip(("corrupt", "finite", "without matrix.json"), result.output.splitlines(), strict=True)
    ] == [True] * 3


def test_bench_device(folder: Path) -> None:
    found = run_json("bench-device", ".", "--size", "8MiB", "--seconds", "0.1")
    assert min(found["write_gb_s"], found["read_gb_s"], found["random_iops"]) > 0
    assert sorted(path.name for path in folder.iterdir()) == ["scratch", "x.npy"]


def test_errors_are_one_line(folder: Path) -> None:
    for words, code in (
        (("gemm", "x.npy", "gone.npy", "c.npy"), 1),
        (("gemm", "x.npy", "x.npy", "c.npy"), 1),
        (("info", "--memory", "lots"), 1),
        (("pca", "x.npy", "-k", "31"), 1),
        (("pca", "x.npy", "-k", "many"), 2),
        (("kmeans", "x.npy", "-k", "0"), 2),
        (("kmeans", "x.npy", "-k", "2", "-o", "labels.txt"), 1),
        (("kmeans", "x.npy", "-k", "100000"), 1),
        (("nothing",), 2),
        (("info", "--memory", "99999999PiB"), 1),
        (("info", "--memory", "9" * 400), 1),
        (("info", "--threads", "9" * 23), 2),
        (("info", "--threads", "1025"), 2),
        (("pca", "x.npy", "--random-state", "1" + "0" * 30), 2),
        (("convert", "x.npy", "y.npy", "--raw-dtype", "float64", "--raw-shape", "3", "--raw-offset", "1" + "0" * 23), 2),
        (("convert", "x.npy", "y.npy", "--raw-dtype", "float64", "--raw-shape", "3", "--raw-offset", str((1 << 63) - 1)), 1),
        (("convert", "x.npy", "y.npy", "--raw-dtype", "float64", "--raw-shape", "9" * 30), 1),
        (("convert", "x.npy", "y.npy", "--raw-dtype", "float64", "--raw-shape", f"{1 << 62},{1 << 62}"), 1),
        (("bench-device", ".", "--size", "1MiB", "--seconds", "nan"), 1),
        (("bench-device", ".", "--size", "1MiB", "--seconds", "1e300"), 1),
        (("bench-device", ".", "--size", "1000KiB"), 1),
        (("bench-device", ".", "--size", "8000PiB"), 1),
    ):
        for run_it in (outcore, process) if words[0] in ("gemm", "nothing") else (outcore,):
            found = run_it(*words)
            assert (found.returncode, found.stdout) == (code, ""), found
            assert "Traceback" not in found.stderr
            assert code == 2 or len(found.stderr.splitlines()) == 1
    assert process("--version").stdout == f"outcore, version {oc.__version__}\n"


def test_the_demo_can_be_explained(folder: Path) -> None:
    found = run_json("demo", "--explain", "--only", "text", "--clusters", "20")
    assert (found["memory"], found["text_memory"], found["only"], found["clusters"]) == ("32MiB", "256MiB", "text", 20)
    for words in (("--only", "sound"), ("--clusters", "1"), ("--topics", "0"), ("--texts", str(folder))):
        assert CliRunner().invoke(cli, ["demo", *words]).exit_code == 2


def test_shards(folder: Path) -> None:
    with tarfile.open("a.tar", "w") as archive:
        for name in ("README", "1.txt", "2.TXT"):
            archive.addfile(tarfile.TarInfo(name))
    for options in ((), ("--in-place",)):
        found = run_json("pack", "a.tar", "packed", *options)
        assert (found["samples"], found["fields"], found["in_place"]) == (2, {"txt": "text"}, bool(options))


def test_datasets(folder: Path) -> None:
    np.savez("a.npz", x=np.arange(600.0).reshape(200, 3), y=np.arange(200))
    found = run_json("pack", "a.npz", "packed")
    assert (found["samples"], found["fields"], found["named"]) == (200, {"x": "float64:3", "y": "int64"}, False)
    assert found == run_json("inspect", "packed")
    assert run_json("inspect", "packed", "--sample", "7") == {"x": "float64 3", "y": 7}
    run("pack", "x.npy", "mixed", "--shuffle", "1", "--field", "x=float32:*")
    assert run_json("inspect", "mixed")["fields"] == {"x": "float32:*"}
    assert run_json("verify", "packed") == {"path": str(folder / "packed"), "samples": 200, "nbytes": 6400, "faults": []}
    for shuffle in ("no", "global", "chunk"):
        measured = run_json("bench-data", "packed", "--seconds", "0.1", "--batch-size", "32", "--shuffle", shuffle)
        assert min(measured["first_batch_s"], measured["samples_s"], measured["samples_cpu_s"], measured["gb_s"]) > 0
        assert measured["epochs"] == measured["samples"] / 200
        assert list(measured["unevenness"]) == ["y"]
    data = bytearray(Path("packed/samples").read_bytes())
    data[32 * 50], data[32 * 60 + 5] = data[32 * 50] ^ 1, data[32 * 60 + 5] ^ 1
    Path("packed/samples").write_bytes(data)
    damaged = outcore("verify", "packed")
    assert damaged.returncode == 1 and "2 damaged" in damaged.stdout, damaged
    assert "sample 50" in damaged.stdout and "sample 60" in damaged.stdout
    for words, code in (
        (("inspect", "gone"), 1),
        (("inspect", "packed", "--sample", "200"), 1),
        (("inspect", "packed", "--name", "seven"), 1),
        (("pack", "gone.tar", "other"), 1),
        (("pack", "a.npz", "other", "--field", "x"), 2),
        (("pack", "a.npz", "other", "--field", "x=what"), 1),
        (("pack", "a.npz", "other", "--field", "x=float32"), 1),
        (("verify", "x.npy"), 1),
        (("verify", "packed", "--decode", "x"), 1),
        (("bench-data", "packed", "--batch-size", "0"), 2),
    ):
        failed = outcore(*words)
        assert (failed.returncode, failed.stdout) == (code, ""), failed
        assert "Traceback" not in failed.stderr and (code == 2 or len(failed.stderr.splitlines()) == 1), failed


def test_stores(tmp_path: Path) -> None:
    from outcore.streams import StreamStore

    path = str(tmp_path / "a.store")
    assert outcore("format", path).returncode == 1
    assert outcore("format", path, "--size", "8MiB").returncode == 0
    again = outcore("format", path)
    assert again.returncode == 1
    assert "--overwrite" in again.stderr
    with StreamStore(path).create("rows/x") as writer:
        writer.write(b"\x5a" * 100_000)
    listed = outcore("ls", path)
    assert listed.returncode == 0
    assert "rows/x" in listed.stdout
    assert "free" in listed.stdout
    (one,) = json.loads(outcore("ls", path, "--json").stdout)["objects"]
    assert (one["name"], one["kind"], one["state"]) == ("rows/x", "stream", "whole")
    whole = outcore("check", path)
    assert whole.returncode == 0
    assert "1 objects" in whole.stdout
    assert outcore("repair", path).stdout == "nothing was wrong\n"
    data = Path(path).read_bytes()
    Path(path).write_bytes(data.replace(b"\x5a" * 50_000, b"\x5a" * 49_999 + b"!", 1))
    damaged = outcore("check", path)
    assert damaged.returncode == 1
    assert "rows/x" in damaged.stdout
    assert "checksum" in damaged.stdout
    assert "rows/x" in outcore("repair", path).stdout
    assert json.loads(outcore("ls", path, "--json").stdout)["objects"][0]["state"] == "unfinished"
    assert outcore("format", path, "--overwrite", "--size", "1MiB").returncode == 1
    assert outcore("format", path, "--overwrite").returncode == 0
    assert json.loads(outcore("ls", path, "--json").stdout)["objects"] == []
    missing = outcore("ls", str(tmp_path / "nothing"))
    assert missing.returncode == 1
    assert "no such file" in missing.stderr
