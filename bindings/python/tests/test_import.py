"""Import and export of foreign sparse data against SciPy and scikit-learn, within budgets smaller than the files."""

import bz2
import gzip
import lzma
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.io
import scipy.sparse as sp
from click.testing import CliRunner

import outcore as oc
from outcore import _foreign, cli, errors

limit = pytest.importorskip("outcore.demo.limit")


def random(rows: int, columns: int, density: float, seed: int, *, binary: bool = False) -> Any:
    """Ragged: every fifth row is empty, one is long."""
    rng = np.random.default_rng(seed)
    found = sp.random(rows, columns, density, "lil", np.float32, rng)
    found[::5] = 0
    if rows > 3:
        found[3] = rng.random(columns).astype(np.float32)
    found = found.tocsr()
    found.eliminate_zeros()
    if binary:
        found.data[:] = 1
    return found


def same(found: oc.Sparse, expected: Any) -> None:
    held = found.scipy()
    assert held.shape == expected.shape
    assert held.has_sorted_indices
    assert (held != expected).nnz == 0
    assert held.nnz == expected.nnz


def libsvm(path: Path, x: Any, labels: Any, *, base: int = 1) -> Path:
    x = x.tocsr()
    with path.open("w") as out:
        for row, label in enumerate(labels):
            span = slice(x.indptr[row], x.indptr[row + 1])
            pairs = zip(x.indices[span], x.data[span], strict=True)
            out.write(f"{label} " + " ".join(f"{column + base}:{float(value)!r}" for column, value in pairs) + "\n")
    return path


def test_libsvm_agrees_with_scikit_learn(tmp_path: Path) -> None:
    datasets = pytest.importorskip("sklearn.datasets")
    x, labels = random(700, 90, 0.1, 0), np.random.default_rng(1).integers(-3, 4, 700)
    for base in (0, 1):
        source = libsvm(tmp_path / "x.svm", x, labels, base=base)
        for zero_based in (True, "auto") if base == 0 else (False, "auto"):
            expected, expected_labels = datasets.load_svmlight_file(str(source), dtype=np.float32, zero_based=zero_based)
            found = oc.import_libsvm(tmp_path / "x", source, zero_based=zero_based)
            same(found, expected)
            assert found.dtype == np.float32
            assert (found.labels() == expected_labels).all()
            assert (found.slice(5, 20).labels() == expected_labels[5:20]).all()
    assert found.vocabulary() is None
    assert found.classes() is None


def test_a_feature_zero_that_comes_late_moves_all_before_it(tmp_path: Path) -> None:
    x = sp.csr_matrix(np.eye(2000, 50, 1, dtype=np.float32))
    x[1999, 0] = 2
    found = oc.import_libsvm(tmp_path / "x", libsvm(tmp_path / "x.svm", x, np.zeros(2000), base=0), memory="4MiB")
    same(found, x)


def test_a_column_beyond_int32_makes_all_int64(tmp_path: Path) -> None:
    source = tmp_path / "x.svm"
    source.write_text("1 1:1 5:2\n2 7:1\n" * 100 + f"3 2:4 {1 << 40}:5\n")
    found = oc.import_libsvm(tmp_path / "x", source)
    assert found.index_dtype == np.int64
    assert found.shape == (201, 1 << 40)
    held = found[198:201]
    assert held.indices.tolist() == [0, 4, 6, 1, (1 << 40) - 1]
    assert held.data.tolist() == [1, 2, 1, 4, 5]


def test_values_are_stored_from_the_first_that_is_not_one(tmp_path: Path) -> None:
    x = random(300, 40, 0.1, 3, binary=True)
    found = oc.import_libsvm(tmp_path / "x", libsvm(tmp_path / "x.svm", x, np.zeros(300)))
    same(found, x)
    assert not (tmp_path / "x" / "data.npy").exists()
    x.data[-1] = 0.5
    found = oc.import_libsvm(tmp_path / "x", libsvm(tmp_path / "x.svm", x, np.zeros(300)), dtype="float64")
    same(found, x.astype(np.float64))
    assert found.dtype == np.float64


def test_many_labels_and_the_xc_format(tmp_path: Path) -> None:
    x, labels = random(400, 60, 0.1, 4), random(400, 30, 0.1, 5, binary=True)
    labels[0] = 0
    labels.eliminate_zeros()
    oc.export_xc(x, labels, tmp_path / "x.xc")
    assert (tmp_path / "x.xc").read_text().startswith("400 60 30\n")
    found = oc.import_xc(tmp_path / "x", tmp_path / "x.xc")
    same(found, x)
    assert (found.labels() != labels).nnz == 0
    assert found.labels().shape == labels.shape
    full = x.copy()
    full[:, 0] = 1
    oc.export_libsvm(full, tmp_path / "x.svm", labels)
    found = oc.import_libsvm(tmp_path / "y", tmp_path / "x.svm", many_labels=True)
    same(found, full.tocsr())
    assert (found.labels() != labels).nnz == 0


@pytest.mark.parametrize("memory", ["3MiB", "64MiB"])
def test_matrix_market_in_any_order(tmp_path: Path, memory: str) -> None:
    x = random(3000, 700, 0.05, 6)
    shuffled = x.tocoo()
    order = np.random.default_rng(0).permutation(x.nnz)
    shuffled = sp.coo_matrix((shuffled.data[order], (shuffled.row[order], shuffled.col[order])), x.shape)
    for held in (x, x.tocsc(), shuffled):
        scipy.io.mmwrite(tmp_path / "x.mtx", held)
        found = oc.import_mtx(tmp_path / "x", tmp_path / "x.mtx", memory=memory)
        same(found, scipy.io.mmread(tmp_path / "x.mtx").tocsr().astype("f"))


def test_matrix_market_symmetric_pattern_and_twice(tmp_path: Path) -> None:
    x = random(200, 200, 0.05, 7)
    x = (x + x.T).tocsr()
    scipy.io.mmwrite(tmp_path / "x.mtx", x, symmetry="symmetric")
    same(oc.import_mtx(tmp_path / "x", tmp_path / "x.mtx"), x)
    entries = "1 2 5\n3 1 7\n1 2 6\n3 1 1\n2 2 -1\n"
    (tmp_path / "y.mtx").write_text(f"%%MatrixMarket matrix coordinate integer general\n3 4 5\n{entries}")
    found = oc.import_mtx(tmp_path / "y", tmp_path / "y.mtx")
    assert found.scipy().toarray().tolist() == [[0, 11, 0, 0], [0, -1, 0, 0], [8, 0, 0, 0]]
    (tmp_path / "y.mtx").write_text("%%MatrixMarket matrix coordinate pattern general\n3 4 3\n1 2\n1 2\n3 4\n")
    found = oc.import_mtx(tmp_path / "y", tmp_path / "y.mtx")
    assert found.scipy().toarray().tolist() == [[0, 2, 0, 0], [0, 0, 0, 0], [0, 0, 0, 1]]


def test_bag_of_words_with_its_words(tmp_path: Path) -> None:
    x = random(200, 50, 0.1, 8)
    x.data = np.ceil(x.data * 9).astype(np.float32)
    oc.export_bow(x, tmp_path / "docword.x.txt.gz")
    words = [f"word{number}" for number in range(50)]
    (tmp_path / "vocab.txt").write_text("\n".join(words))
    found = oc.import_bow(tmp_path / "x", tmp_path / "docword.x.txt.gz", tmp_path / "vocab.txt")
    same(found, x)
    assert found.vocabulary() == words
    (tmp_path / "vocab.txt").write_text("one\ntwo\n")
    with pytest.raises(errors.UnsupportedError, match="2 words for 50 columns"):
        oc.import_bow(tmp_path / "y", tmp_path / "docword.x.txt.gz", tmp_path / "vocab.txt")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["docword.x.txt.gz", "scratch", "vocab.txt", "x"]


def test_archives_of_scipy(tmp_path: Path) -> None:
    x = random(500, 80, 0.1, 9)
    order = np.random.default_rng(0).permutation(x.nnz)
    coo = x.tocoo()
    shuffled = sp.coo_matrix((coo.data[order], (coo.row[order], coo.col[order])), x.shape)
    for held in (x, x.tocsc(), coo, shuffled):
        sp.save_npz(tmp_path / "x.npz", held)
        found = oc.import_npz(tmp_path / "x", tmp_path / "x.npz", memory="4MiB")
        assert found.format == ("csc" if held.format == "csc" else "csr")
        same(found, x.tocsc() if held.format == "csc" else x)
    for held in (x, x.tocsc()):
        oc.export_npz(oc.from_scipy(tmp_path / "y", held), tmp_path / "y.npz")
        back = sp.load_npz(tmp_path / "y.npz")
        assert back.format == held.format
        assert (back != held).nnz == 0


def test_parquet_there_and_back(tmp_path: Path) -> None:
    x = random(500, 80, 0.1, 10)
    x[499, 79] = 1
    oc.export_parquet(x, tmp_path / "x.parquet")
    same(oc.import_parquet(tmp_path / "x", tmp_path / "x.parquet"), x.tocsr())
    turned = oc.import_parquet(tmp_path / "y", tmp_path / "x.parquet", ["column", "row", "value"])
    same(turned, x.T.tocsr())
    ones = oc.import_parquet(tmp_path / "z", tmp_path / "x.parquet", ["row", "column"])
    assert set(ones.scipy().data.tolist()) == {1.0}
    with pytest.raises(errors.UnsupportedError, match="no column 'nowhere'"):
        oc.import_parquet(tmp_path / "w", tmp_path / "x.parquet", ["row", "nowhere"])


LINES = ["The fox, the lazy fox", "", "Ärger über ÄRGER", "a b c", "fox x2 2x under_score fox"]


def test_words_are_those_of_count_vectorizer(tmp_path: Path) -> None:
    text = pytest.importorskip("sklearn.feature_extraction.text")
    lines = LINES * 300 + [f"word{number} again" for number in range(2000)]
    (tmp_path / "x.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    for ngram_range, stop_words in (((1, 1), None), ((1, 2), ["the", "über"])):
        found = oc.import_text(tmp_path / "x", tmp_path / "x.txt", ngram_range=ngram_range, stop_words=stop_words, memory="8MiB")
        words = found.vocabulary()
        assert words is not None
        count = text.CountVectorizer(vocabulary=words, ngram_range=ngram_range, stop_words=stop_words, dtype=np.float32)
        expected = count.transform(lines).tocsr()
        expected.sort_indices()
        same(found, expected)
        fitted = text.CountVectorizer(ngram_range=ngram_range, stop_words=stop_words).fit(lines)
        assert sorted(words) == sorted(fitted.vocabulary_)
    few = oc.import_text(tmp_path / "few", tmp_path / "x.txt", vocabulary=["fox", "nothing"])
    assert few.shape == (len(lines), 2)
    assert few.scipy().sum(axis=0).tolist() == [[300 * 4, 0]]
    assert few.vocabulary() == ["fox", "nothing"]


def test_columns_of_a_table_have_text_and_label(tmp_path: Path) -> None:
    (tmp_path / "x.tsv").write_text("1\tspam\tbuy now\n2\tham\thello you\n3\tspam\tbuy it\n")
    found = oc.import_text(tmp_path / "x", tmp_path / "x.tsv", text_column=2, label_column=1)
    assert found.vocabulary() == ["buy", "now", "hello", "you", "it"]
    assert found.classes() == ["spam", "ham"]
    assert found.labels().tolist() == [0, 1, 0]


def test_a_vocabulary_beyond_the_memory_says_what_would_do(tmp_path: Path) -> None:
    (tmp_path / "x.txt").write_text("\n".join(f"word{number:09}" for number in range(200_000)))
    with pytest.raises(errors.OverBudgetError) as caught:
        oc.import_text(tmp_path / "x", tmp_path / "x.txt", memory="6MiB")
    found = oc.import_text(tmp_path / "x", tmp_path / "x.txt", memory=4 * caught.value.needed)
    assert found.shape == (200_000, 200_000)


@pytest.mark.parametrize("ending", ["gz", "zst"])
def test_compressed_by_content_whatever_the_name(tmp_path: Path, ending: str) -> None:
    x, labels = random(3000, 90, 0.1, 11), np.arange(3000) / 7
    oc.export_libsvm(x, tmp_path / f"x.svm.{ending}", labels)
    (tmp_path / f"x.svm.{ending}").rename(tmp_path / "x.svm")
    found = oc.import_libsvm(tmp_path / "x", tmp_path / "x.svm", n_features=90, memory="4MiB")
    same(found, x)
    assert (found.labels() == labels).all()
    whole = (tmp_path / "x.svm").read_bytes()
    (tmp_path / "x.svm").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(errors.CorruptError, match="truncated"):
        oc.import_libsvm(tmp_path / "y", tmp_path / "x.svm")
    assert not (tmp_path / "y").exists()


PACKERS: dict[str, Callable[[bytes], bytes]] = {"gzip": gzip.compress, "bzip2": bz2.compress, "xz": lzma.compress}


@pytest.mark.parametrize("packer", PACKERS)
def test_every_text_format_is_read_compressed(tmp_path: Path, packer: str) -> None:
    pack = PACKERS[packer]

    def packed(text: str) -> Path:
        data = text.encode()
        path = tmp_path / "source"
        path.write_bytes(pack(data[: len(data) // 2]) + pack(data[len(data) // 2 :]))
        return path

    same(oc.import_libsvm(tmp_path / "x", packed("1 1:2\n0 3:4\n")), sp.csr_matrix([[2, 0, 0], [0, 0, 4]]))
    same(oc.import_xc(tmp_path / "x", packed("2 3 1\n0 0:2\n 2:4\n")), sp.csr_matrix([[2, 0, 0], [0, 0, 4]]))
    header = "%%MatrixMarket matrix coordinate real general\n2 3 2\n"
    for entries in ("1 1 2\n2 3 4\n", "2 3 4\n1 1 2\n"):
        same(oc.import_mtx(tmp_path / "x", packed(header + entries)), sp.csr_matrix([[2, 0, 0], [0, 0, 4]]))
    (tmp_path / "words").write_bytes(pack(b"a\nb\nc\n"))
    found = oc.import_bow(tmp_path / "x", packed("2\n3\n2\n1 1 2\n2 3 4\n"), tmp_path / "words")
    same(found, sp.csr_matrix([[2, 0, 0], [0, 0, 4]]))
    assert found.vocabulary() == ["a", "b", "c"]
    found = oc.import_text(tmp_path / "x", packed("one two\ntwo\n"))
    same(found, sp.csr_matrix([[1, 1], [0, 1]]))
    whole = packed("1 1:2\n" * 1000).read_bytes()
    for wrong, reason in ((whole[:-9], "truncated"), (whole + b"garbage behind it", "damaged")):
        (tmp_path / "source").write_bytes(wrong)
        with pytest.raises(errors.CorruptError, match=reason) as caught:
            oc.import_libsvm(tmp_path / "y", tmp_path / "source")
        assert caught.value.object == str(tmp_path / "source")
        assert packer in str(caught.value)


def test_archives_and_tables_compressed_as_a_whole_say_what_to_do(tmp_path: Path) -> None:
    x = random(20, 10, 0.3, 0)
    sp.save_npz(tmp_path / "x.npz", x)
    oc.export_parquet(x, tmp_path / "x.parquet")
    for pack, name in ((gzip.compress, "gzip"), (bz2.compress, "bzip2"), (lzma.compress, "xz")):
        for call, source in ((oc.import_npz, "x.npz"), (oc.import_parquet, "x.parquet")):
            (tmp_path / "packed").write_bytes(pack((tmp_path / source).read_bytes()))
            with pytest.raises(errors.UnsupportedError, match=f"packed: .*compressed by {name} as a whole"):
                call(tmp_path / "y", tmp_path / "packed")
    with pytest.raises(errors.UnsupportedError, match="zip archive"):
        oc.import_libsvm(tmp_path / "y", tmp_path / "x.npz")
    (tmp_path / "large").write_bytes(lzma.compress(b"1 1:1\n", preset=9))
    with pytest.raises(errors.UnsupportedError, match="xz window .* level up to 8"):
        oc.import_libsvm(tmp_path / "y", tmp_path / "large")


def test_several_files_are_one(tmp_path: Path) -> None:
    x, labels = random(900, 50, 0.1, 12), np.arange(900)
    parts = [libsvm(tmp_path / f"{part}.svm", x[part * 300 : part * 300 + 300], labels[:300]) for part in range(3)]
    (tmp_path / "1.svm").write_bytes(gzip.compress((tmp_path / "1.svm").read_bytes()))
    found = oc.import_libsvm(tmp_path / "x", parts, n_features=50)
    same(found, x)
    assert (found.labels() == np.tile(labels[:300], 3)).all()
    with pytest.raises(errors.ArgumentError, match="has one"):
        oc.import_mtx(tmp_path / "y", parts)  # type: ignore[arg-type]


def test_nothing_and_one_line(tmp_path: Path) -> None:
    source = tmp_path / "x"
    source.write_text("")
    assert oc.import_libsvm(tmp_path / "m", source).shape == (0, 0)
    assert oc.import_libsvm(tmp_path / "m", source, n_features=7).shape == (0, 7)
    assert oc.import_text(tmp_path / "m", source).shape == (0, 0)
    with pytest.raises(errors.CorruptError, match="empty"):
        oc.import_mtx(tmp_path / "m", source)
    source.write_text("2 1:3")
    found = oc.import_libsvm(tmp_path / "m", source)
    assert found.scipy().toarray().tolist() == [[3]]
    source.write_text("%%MatrixMarket matrix coordinate real general\n4 3 0\n")
    assert oc.import_mtx(tmp_path / "m", source).scipy().toarray().tolist() == np.zeros((4, 3)).tolist()
    source.write_text("0 5 2\n")
    found = oc.import_xc(tmp_path / "m", source)
    assert (found.shape, found.labels().shape) == ((0, 5), (0, 2))
    for name in ("libsvm", "mtx", "bow", "npz", "parquet"):
        getattr(oc, f"export_{name}")(oc.open(tmp_path / "m"), tmp_path / "out")


def test_a_bad_line_is_named(tmp_path: Path) -> None:
    old = oc.from_scipy(tmp_path / "old", random(10, 10, 0.3, 0)).scipy()
    source = tmp_path / "x.svm"
    source.write_text("1 1:1\n" * 70_000 + "1 1:1 3;2\n" + "1 1:1\n" * 70_000)
    with pytest.raises(errors.BadLineError) as caught:
        oc.import_libsvm(tmp_path / "old", source, memory="4MiB")
    assert (caught.value.line, caught.value.object) == (70_001, str(source))
    assert isinstance(caught.value, ValueError)
    assert caught.value.reason in str(caught.value)
    same(oc.open(tmp_path / "old"), old)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["old", "scratch", "x.svm"]
    source.write_text("1 1:1\n2 9:1\n")
    with pytest.raises(errors.BadLineError, match="line 2"):
        oc.import_libsvm(tmp_path / "x", source, n_features=3)
    source.write_text("%%MatrixMarket matrix coordinate real general\n3 3 2\n1 1 1\n")
    with pytest.raises(errors.CorruptError, match="says 2 entries, the file has 1"):
        oc.import_mtx(tmp_path / "x", source)
    source.write_text("1 1:1e300\n")
    with pytest.raises(errors.UnsupportedError, match="float64"):
        oc.import_libsvm(tmp_path / "x", source)
    assert oc.import_libsvm(tmp_path / "x", source, dtype="float64").scipy()[0, 0] == 1e300
    with pytest.raises(errors.MissingError):
        oc.import_libsvm(tmp_path / "x", tmp_path / "nowhere")


def test_exports_refuse_what_a_format_cannot_have(tmp_path: Path) -> None:
    x = random(20, 10, 0.3, 0)
    with pytest.raises(errors.UnsupportedError, match="counts"):
        oc.export_bow(x, tmp_path / "x")
    with pytest.raises(errors.ShapeError):
        oc.export_libsvm(x, tmp_path / "x", np.zeros(3))
    with pytest.raises(errors.ArgumentError, match="csrcsc"):
        oc.export_mtx(oc.from_scipy(tmp_path / "c", x.tocsc()), tmp_path / "x")
    x.data[3] = np.nan
    with pytest.raises(errors.NotFiniteError):
        oc.export_mtx(x, tmp_path / "x")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["c", "scratch"]


def big(path: Path, rows: int = 120_000) -> Path:
    """Some 20 MB of LIBSVM text."""
    rng = np.random.default_rng(0)
    with path.open("w") as out:
        for start in range(0, rows, 1000):
            columns = np.sort(rng.integers(1, 5000, (1000, 12)), axis=1) + np.arange(12)
            values = rng.random((1000, 12)).round(4)
            for row in range(1000):
                pairs = " ".join(f"{c}:{v}" for c, v in zip(columns[row], values[row], strict=True))
                out.write(f"{start + row} {pairs}\n")
    return path


def texts(path: Path) -> Path:
    with path.open("w") as out:
        for number in range(150_000):
            out.write(f"label{number % 7}\tdocument number{number} of many words{number % 1000}\n")
    return path


def market(path: Path) -> Path:
    rng = np.random.default_rng(0)
    rows = np.sort(rng.integers(1, 50_000, 600_000))
    with path.open("w") as out:
        out.write("%%MatrixMarket matrix coordinate real general\n50000 700000 600000\n")
        out.writelines(f"{row} {number + 1} {number % 9 + 0.5}\n" for number, row in enumerate(rows))
    return path


def sorted_entries() -> Any:
    rows = np.sort(np.random.default_rng(0).integers(0, 50_000, 600_000))
    return sp.coo_matrix((np.arange(600_000) % 9 + 0.5, (rows, np.arange(600_000))), shape=(50_000, 600_000))


def table(path: Path) -> Path:
    oc.export_parquet(sorted_entries().tocsr(), path)
    return path


def archive(path: Path, layout: str) -> Path:
    with path.open("wb") as out:
        sp.save_npz(out, sorted_entries().asformat(layout))
    return path


RESUMED: dict[str, tuple[Callable[[Path], Path], str]] = {
    "libsvm": (big, "oc.import_libsvm(target, source, resume=resume)"),
    "libsvm compressed": (big, "oc.import_libsvm(target, source + '.gz', resume=resume)"),
    "libsvm by bzip2": (big, "oc.import_libsvm(target, source + '.bz2', resume=resume)"),
    "text": (texts, "oc.import_text(target, source, text_column=1, label_column=0, resume=resume)"),
    "mtx": (market, "oc.import_mtx(target, source, resume=resume)"),
    "parquet": (table, "oc.import_parquet(target, source, resume=resume)"),
    "npz of rows": (partial(archive, layout="csr"), "oc.import_npz(target, source, resume=resume)"),
    "npz of entries": (partial(archive, layout="coo"), "oc.import_npz(target, source, resume=resume)"),
}

IMPORT = """
import sys, outcore as oc
from outcore import _foreign
_foreign.CHECKPOINT_BYTES = 1 << 20
source, target, resume = sys.argv[1], sys.argv[2], sys.argv[3] == "resume"
oc.configure("16MiB", sys.argv[4], 2, allow_tmpfs_scratch=True)
"""


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("name", RESUMED)
def test_an_import_that_was_killed_goes_on_to_the_same_bytes(tmp_path: Path, name: str) -> None:
    make, call = RESUMED[name]
    source = make(tmp_path / "source")
    if "gz" in call:
        Path(f"{source}.gz").write_bytes(gzip.compress(source.read_bytes(), 1))
    if "bz2" in call:
        Path(f"{source}.bz2").write_bytes(bz2.compress(source.read_bytes(), 1))

    def start(target: str, how: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-c", IMPORT + call, str(source), str(tmp_path / target), how, str(tmp_path / "scratch")]
        return subprocess.Popen(command)

    assert start("whole", "anew").wait() == 0
    unfinished = tmp_path / ".x.outcore-unfinished"
    kills = 0
    for how in ("anew", "resume", "resume", "resume"):
        process = start("x", how)
        before = checkpoint(unfinished) if how == "resume" else None
        while process.poll() is None and checkpoint(unfinished) in (None, before):
            time.sleep(0.001)
        time.sleep(0.005 * kills)
        process.send_signal(signal.SIGKILL)
        kills += process.wait() == -signal.SIGKILL
        # What has the name is whole, also where the end came between its name and the end of the process.
        if (tmp_path / "x").exists():
            break
        assert process.returncode != 0
    assert kills > 0
    if not (tmp_path / "x").exists():
        assert start("x", "resume").wait() == 0
    assert files(tmp_path / "x") == files(tmp_path / "whole")
    assert not unfinished.exists()


def checkpoint(unfinished: Path) -> bytes | None:
    try:
        return (unfinished / "checkpoint.json").read_bytes()
    except FileNotFoundError:
        return None


def stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: Path) -> None:
    """An import that fails on the way, of a text with a bad line that is mended by nobody; what it did stays."""
    monkeypatch.setattr(_foreign, "CHECKPOINT_BYTES", 1 << 18)
    code = IMPORT + "oc.import_libsvm(target, source)"
    process = subprocess.Popen([sys.executable, "-c", code, str(source), str(tmp_path / "x"), "anew", str(tmp_path / "scratch")])
    while process.poll() is None and checkpoint(tmp_path / ".x.outcore-unfinished") is None:
        time.sleep(0.001)
    process.kill()
    assert process.wait() == -signal.SIGKILL


def test_what_has_changed_is_not_gone_on_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = big(tmp_path / "source")
    stopped(tmp_path, monkeypatch, source)
    with pytest.raises(errors.ArgumentError, match="other options"):
        oc.import_libsvm(tmp_path / "x", source, resume=True, zero_based=True)
    with pytest.raises(errors.ArgumentError, match="begun with"):
        oc.import_libsvm(tmp_path / "x", tmp_path / "scratch" / ".." / big(tmp_path / "other", 1000).name, resume=True)
    os.utime(source, (1, 1))
    with pytest.raises(errors.ArgumentError, match="has changed"):
        oc.import_libsvm(tmp_path / "x", source, resume=True)
    assert (tmp_path / ".x.outcore-unfinished").exists()
    assert oc.import_libsvm(tmp_path / "x", source).shape[0] == 120_000
    assert not (tmp_path / ".x.outcore-unfinished").exists()


def test_ctrl_c_ends_an_import_and_an_export_soon(tmp_path: Path) -> None:
    source = big(tmp_path / "source")
    for call in ("oc.import_libsvm(target, source)", "oc.export_libsvm(oc.open(source + '.m'), target + '.svm')"):
        if "export" in call:
            oc.import_libsvm(f"{source}.m", source)
        code = IMPORT + f"import time\nprint('ready', flush=True)\ntry:\n    while True: {call}\n"
        code += "except KeyboardInterrupt:\n    print(time.monotonic())\n"
        command = [sys.executable, "-c", code, str(source), str(tmp_path / "x"), "anew", str(tmp_path / "scratch")]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        time.sleep(0.5)
        asked = time.monotonic()
        process.send_signal(signal.SIGINT)
        raised, _ = process.communicate(timeout=60)
        assert process.returncode == 0
        assert float(raised) - asked < 0.8


limited = pytest.mark.skipif(not limit.best_way().enforced, reason="no memory limit on this system")


@limited
def test_an_import_completes_within_a_memory_limit(tmp_path: Path) -> None:
    big(tmp_path / "x.svm", 400_000)
    sp.save_npz(tmp_path / "x.npz", random(3000, 3000, 0.05, 0))
    way = limit.best_way()

    def peak(code: str, limit_bytes: int | None) -> int:
        status = "\nimport json\nfrom pathlib import Path\n"
        status += "print(json.dumps(1024 * int(Path('/proc/self/status').read_text().partition('VmData:')[2].split()[0])))"
        arguments = [str(tmp_path / "x.svm"), str(tmp_path / "x"), "anew", str(tmp_path / "scratch")]
        outcome = limit.run_limited([sys.executable, "-c", IMPORT + code + status, *arguments], limit_bytes, way, timeout_s=240)
        assert not outcome.killed, "the kernel ended it: out of memory"
        assert outcome.returncode == 0, outcome.output
        return int(outcome.peak_bytes) if way.counts_page_cache else int(outcome.output.splitlines()[-1])

    base = peak("oc.info()", None)
    peak("oc.import_libsvm(target, source)", base + (16 << 20) + (64 << 20))
    peak("oc.export_mtx(oc.open(target), target + '.mtx')", base + (16 << 20) + (64 << 20))
    peak("oc.import_mtx(target, target + '.mtx')", base + (16 << 20) + (64 << 20))
    peak("oc.import_npz(target, target + '.npz')", base + (16 << 20) + (64 << 20))


def test_the_command_line_imports_and_exports(tmp_path: Path) -> None:
    x, labels = random(100, 40, 0.2, 0), np.arange(100) % 3
    x[0, 39] = 1
    source = libsvm(tmp_path / "x.svm", x.tocsr(), labels)

    def run(*arguments: object) -> str:
        common = ["--scratch", str(tmp_path / "scratch"), "--memory", "64MiB"]
        found = CliRunner().invoke(cli.cli, [*map(str, arguments), *common], catch_exceptions=False)
        assert found.exit_code == 0, found.output
        return found.output

    for kind in ("libsvm", "mtx", "npz", "parquet"):
        assert "100 x 40" in run("import", source, tmp_path / "m")
        target = tmp_path / f"y.{ {'libsvm': 'svm'}.get(kind, kind) }"
        run("export", tmp_path / "m", target)
        assert '"entries"' in run("import", target, tmp_path / "n", "--json")
        same(oc.open(tmp_path / "n"), x.tocsr())
    (tmp_path / "words.txt").write_text("one two\ntwo three\n")
    run("import", tmp_path / "words.txt", tmp_path / "w", "--format", "text", "--ngrams", 1, 2)
    assert oc.open(tmp_path / "w").vocabulary() == ["one", "one two", "two", "two three", "three"]
    unclear = CliRunner().invoke(cli.cli, ["import", str(tmp_path / "words.txt"), str(tmp_path / "v")])
    assert unclear.exit_code == 2
    assert "--format" in unclear.output
