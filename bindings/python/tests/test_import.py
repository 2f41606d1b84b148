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
    with pytest.raises(errors.UnsupportedError, match=r"xz window .* level up to 8"):
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
    source.write_text("%%MatrixMarket matrix coordinate real general\n3 3 2\n1 1 1.2345678\n")
    with pytest.raises(errors.CorruptError, match="says 2 entries, the file has 1"):
        oc.import_mtx(tmp_path / "x", source)
    source.write_text("1 1:1e300\n")
    with pytest.raises(errors.BadLineError, match=r"line 1, column 5: the value '1e300' is beyond float32; import it as float64"):
        oc.import_libsvm(tmp_path / "x", source)
    assert oc.import_libsvm(tmp_path / "x", source, dtype="float64").scipy()[0, 0] == 1e300
    with pytest.raises(errors.MissingError):
        oc.import_libsvm(tmp_path / "x", tmp_path / "nowhere")


def test_queries_are_kept(tmp_path: Path) -> None:
    source = tmp_path / "x.svm"
    queries = [72048431380967004, 72048431380967004, 5, (1 << 63) - 1] * 50
    source.write_text("".join(f"{row % 3} qid:{query} {row % 7 + 1}:1\n" for row, query in enumerate(queries)))
    found = oc.import_libsvm(tmp_path / "x", source)
    kept = found.queries()
    assert kept is not None
    assert (kept.dtype, kept.tolist()) == (np.int64, queries)
    part = found.slice(3, 9)
    assert part.queries().tolist() == queries[3:9]  # type: ignore[union-attr]
    assert part.labels().tolist() == [row % 3 for row in range(3, 9)]
    oc.export_libsvm(found, tmp_path / "y.svm", found.labels(), queries=found.queries())
    assert (tmp_path / "y.svm").read_text() == source.read_text()
    runner = CliRunner().invoke(
        cli.cli, ["export", str(tmp_path / "x"), str(tmp_path / "z.svm"), "--scratch", str(tmp_path / "s")]
    )
    assert runner.exit_code == 0, runner.output
    assert (tmp_path / "z.svm").read_text() == source.read_text()
    tiled = oc.import_libsvm(tmp_path / "y", [source, source], tiled=True)
    assert tiled.queries().tolist() == queries * 2  # type: ignore[union-attr]
    # A matrix without them that takes the name takes them away.
    source.write_text("1 1:1\n")
    assert oc.import_libsvm(tmp_path / "x", source).queries() is None
    assert not (tmp_path / "x" / "queries.npy").exists()
    assert oc.from_scipy(tmp_path / "w", sp.eye(3, format="csr")).queries() is None
    with pytest.raises(errors.ShapeError, match="queries for 2 rows of a matrix with 1"):
        oc.export_libsvm(oc.open(tmp_path / "x"), tmp_path / "y.svm", queries=[1, 2])
    for wrong in ([-1], [0.5], [[1]], [1 << 63]):
        with pytest.raises(errors.ArgumentError, match=r"quer"):
            oc.export_libsvm(oc.open(tmp_path / "x"), tmp_path / "y.svm", queries=wrong)


@pytest.mark.parametrize("before", [1, 200_000])
def test_rows_with_and_without_queries_are_refused(tmp_path: Path, before: int) -> None:
    source = tmp_path / "x.svm"
    for rest, reason in (("1 qid:3 1:1\n", "qid"), ("# comment\n\n2 1:1\n", "no qid")):
        first = "1 1:1\n" if "qid" in rest else "1 qid:1 1:1\n"
        source.write_text(first * before + rest)
        with pytest.raises(errors.BadLineError, match=reason) as caught:
            oc.import_libsvm(tmp_path / "x", source, memory="4MiB")
        assert caught.value.line == before + rest.count("\n")


def test_features_beyond_those_asked_for_name_line_and_number(tmp_path: Path) -> None:
    def told(text: str, **options: Any) -> str:
        (tmp_path / "x.svm").write_text(text)
        with pytest.raises(errors.BadLineError, match="3 features") as caught:
            oc.import_libsvm(tmp_path / "x", tmp_path / "x.svm", n_features=3, memory="4MiB", **options)
        return f"line {caught.value.line}: {caught.value.reason}"

    assert told("1 3:1\n1 1:1 5:1\n") == "line 2: feature 5 in data with 3 features"
    assert told("1 3:1\n1 4:1\n", zero_based=False).startswith("line 2: feature 4 in data with 3 features, which begin with 1")
    assert told("1 2:1\n1 3:1\n", zero_based=True).startswith("line 2: feature 3 in data with 3 features, which begin with 0")
    # The one that is too large, where a feature 0 comes before, in its chunk or in another.
    for many in (1, 200_000):
        assert told("1 0:1\n" + "1 1:1\n" * many + "1 3:1\n") == (
            f"line {many + 2}: feature 3 in data with 3 features, which begin with 0"
        )
    assert told("1 3:1\n" + "1 1:1\n" * 200_000 + "1 0:1\n").startswith(
        "line 200002: feature 0, so that feature 3 of a row before"
    )
    assert oc.import_libsvm(tmp_path / "x", [tmp_path / "x.svm"], n_features=4).shape[1] == 4
    (tmp_path / "a.svm").write_text("1 1:1\n")
    (tmp_path / "b.svm").write_text("1 1:1\n1 9:1\n")
    with pytest.raises(errors.BadLineError) as caught:
        oc.import_libsvm(tmp_path / "x", [tmp_path / "a.svm", tmp_path / "b.svm"], n_features=3)
    assert (caught.value.object, caught.value.line) == (str(tmp_path / "b.svm"), 2)


def test_values_beyond_float32_are_named_in_every_format(tmp_path: Path) -> None:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    big = sp.csr_matrix(([1, 2, 1e300, 4], ([0, 1, 1, 2], [1, 0, 3, 2])), shape=(3, 4))
    entry = "entry 2, at row 1, column 3 .all from 0.: 1e300 is beyond float32; import it as float64"
    for layout in ("csr", "csc", "coo"):
        sp.save_npz(tmp_path / "x.npz", big.asformat(layout))
        expected = entry if layout != "csc" else entry.replace("entry 2", "entry 3")
        with pytest.raises(errors.UnsupportedError, match=r"x\.npz: .*" + expected):
            oc.import_npz(tmp_path / "x", tmp_path / "x.npz")
        same(oc.import_npz(tmp_path / "x", tmp_path / "x.npz", dtype="float64"), big if layout != "csc" else big.tocsc())
    coo = big.tocoo()
    pq.write_table(pa.table({"row": coo.row, "column": coo.col, "value": coo.data}), tmp_path / "x.parquet")
    with pytest.raises(errors.UnsupportedError, match=r"x\.parquet: .*" + entry):
        oc.import_parquet(tmp_path / "x", tmp_path / "x.parquet")
    source = tmp_path / "x.mtx"
    header = "%%MatrixMarket matrix coordinate real general\n3 4 2\n"
    for text, line in (("1 1 1\n2 2 1" + "0" * 300 + "\n", 4), ("2 2 1\n1 1 -1e39\n", 4)):
        source.write_text(header + text)
        with pytest.raises(errors.BadLineError, match="is beyond float32") as caught:
            oc.import_mtx(tmp_path / "x", source)
        assert (caught.value.line, caught.value.object) == (line, str(source))
        assert len(caught.value.reason) < 200
    # What two of one place add up to has no line of its own.
    for places in ("1 1 3e38\n1 1 3e38\n", "2 4 1\n1 1 3e38\n1 1 3e38\n"):
        source.write_text(header.replace(" 2\n", f" {places.count(chr(10))}\n") + places)
        with pytest.raises(errors.UnsupportedError, match=r"x\.mtx: .*row 0, column 0 .from 0. are 6e38 together"):
            oc.import_mtx(tmp_path / "x", source)
    source.write_text("2 4 1\n0 0:1\n0 3:1e39\n")
    with pytest.raises(errors.BadLineError, match="line 3"):
        oc.import_xc(tmp_path / "x", source)


@pytest.mark.parametrize("symmetry", ["general", "symmetric", "skew-symmetric"])
@pytest.mark.parametrize("field", ["real", "integer"])
def test_dense_matrices_of_matrix_market(tmp_path: Path, field: str, symmetry: str) -> None:
    x = random(60, 60, 0.3, 13).toarray().round(2)
    x = x if field == "real" else np.ceil(x * 9)
    x = {"general": x[:, :40], "symmetric": x + x.T, "skew-symmetric": x - x.T}[symmetry]
    scipy.io.mmwrite(tmp_path / "x.mtx", x.astype(np.int64 if field == "integer" else np.float64), symmetry=symmetry)
    assert " array " in (tmp_path / "x.mtx").read_text()[:60]
    expected = sp.csr_matrix(scipy.io.mmread(tmp_path / "x.mtx").astype(np.float32))
    same(oc.import_mtx(tmp_path / "x", tmp_path / "x.mtx"), expected)
    text = (tmp_path / "x.mtx").read_text()
    (tmp_path / "x.mtx").write_text(text + "1\n")
    with pytest.raises(errors.CorruptError, match="values, the file has at least"):
        oc.import_mtx(tmp_path / "x", tmp_path / "x.mtx")
    (tmp_path / "x.mtx").write_text(text[: text.rindex("\n", 0, -1) + 1])
    with pytest.raises(errors.CorruptError, match="values"):
        oc.import_mtx(tmp_path / "x", tmp_path / "x.mtx")


def test_claims_of_a_header_are_held_against_the_file_and_the_disk(tmp_path: Path) -> None:
    source = tmp_path / "x"
    huge = 10**12
    header = "%%MatrixMarket matrix coordinate real general\n"
    for call, text in (
        (oc.import_mtx, f"{header}{huge} 4 1\n1 1 1\n"),
        (oc.import_bow, f"{huge * 1000}\n4\n1\n1 1 1\n"),
    ):
        source.write_text(text)
        with pytest.raises(errors.NoSpaceError) as caught:
            call(tmp_path / "y", source)
        assert caught.value.needed > 8 * huge
        assert caught.value.free < caught.value.needed
        assert str(caught.value.needed) in str(caught.value)
        assert str(caught.value.free) in str(caught.value)
    for call, text, reason in (
        (oc.import_mtx, f"{header}4 4 {huge}\n1 1 1\n", f"says {huge} entries, but 6 bytes of text have room for 1 at most"),
        (oc.import_mtx, "%%MatrixMarket matrix array real general\n1000000 1000000\n1\n", "room for 1 at most"),
        (oc.import_bow, f"4\n4\n{huge}\n1 1 1\n", f"says {huge} entries"),
        (oc.import_xc, f"{huge} 4 4\n0 0:1\n", f"says {huge} rows"),
    ):
        source.write_text(text)
        with pytest.raises(errors.CorruptError, match=reason):
            call(tmp_path / "y", source)
    source.write_text("1 1:1\n")
    assert oc.import_libsvm(tmp_path / "x2", source, n_features=huge).shape == (1, huge)
    # An archive of few bytes whose arrays claim many.
    sp.save_npz(tmp_path / "x.npz", sp.coo_matrix(([1.0], ([0], [0])), shape=(huge, 4)))
    with pytest.raises(errors.NoSpaceError):
        oc.import_npz(tmp_path / "y", tmp_path / "x.npz")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["scratch", "x", "x.npz", "x2"]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (b"a\nb\nc", ["a", "b", "c"]),
        (b"a\r\nb\r\nc\r\n", ["a", "b", "c"]),
        (b"\xef\xbb\xbfa\nb\nc\n\n\n", ["a", "b", "c"]),
        ("ä b\nb\x0bx\nc\u2028d\n".encode(), ["ä b", "b\x0bx", "c\u2028d"]),
    ],
)
def test_words_end_where_their_lines_do(tmp_path: Path, words: bytes, expected: list[str]) -> None:
    (tmp_path / "docs").write_text("2\n3\n2\n1 1 2\n2 3 1\n")
    (tmp_path / "words").write_bytes(words)
    assert oc.import_bow(tmp_path / "x", tmp_path / "docs", tmp_path / "words").vocabulary() == expected


@pytest.mark.parametrize(
    ("words", "error", "reason"),
    [
        (b"a\nb\n", errors.UnsupportedError, r"words: .*2 words for 3 columns"),
        (b"a\nb\nc\nd\n", errors.UnsupportedError, r"words: .*4 or more words for 3 columns"),
        (b"a\ncaf\xe9\nc\n", errors.BadLineError, r"words, line 2, column 4: the byte 0xe9 is not UTF-8"),
        (b"a\n\nc\n", errors.BadLineError, r"words, line 3.*line 2, which is empty"),
    ],
)
def test_words_that_are_none_are_named(tmp_path: Path, words: bytes, error: type[Exception], reason: str) -> None:
    (tmp_path / "docs").write_text("2\n3\n2\n1 1 2\n2 3 1\n")
    (tmp_path / "words").write_bytes(words)
    with pytest.raises(error, match=reason):
        oc.import_bow(tmp_path / "x", tmp_path / "docs", tmp_path / "words")
    os.unlink(tmp_path / "words")
    os.mkfifo(tmp_path / "words")
    with pytest.raises(errors.NotAFileError):
        oc.import_bow(tmp_path / "x", tmp_path / "docs", tmp_path / "words")
    assert not (tmp_path / "x").exists()


def test_documents_are_lines_or_files_as_is_said(tmp_path: Path) -> None:
    texts = {"a": "one two\nthree\n", "b": "", "c": "three\r\nfour\n\nThree"}
    for name, text in texts.items():
        (tmp_path / name).write_text(text, newline="")
    paths = [tmp_path / name for name in texts]
    with pytest.raises(errors.ArgumentError, match="documents='files'"):
        oc.import_text(tmp_path / "x", paths)
    lines = oc.import_text(tmp_path / "x", paths, documents="lines")
    assert lines.shape == (6, 4)
    files = oc.import_text(tmp_path / "x", paths, documents="files", ngram_range=(1, 2))
    vocabulary = files.vocabulary()
    assert vocabulary is not None
    text = pytest.importorskip("sklearn.feature_extraction.text")
    count = text.CountVectorizer(input="filename", ngram_range=(1, 2), vocabulary=vocabulary, dtype=np.float32)
    same(files, count.transform(paths).tocsr().sorted_indices())
    assert sorted(vocabulary) == sorted(text.CountVectorizer(input="filename", ngram_range=(1, 2)).fit(paths).vocabulary_)
    assert oc.import_text(tmp_path / "x", paths[:1]).shape[0] == 2
    assert oc.import_text(tmp_path / "x", paths[0], documents="files").shape[0] == 1
    with pytest.raises(errors.ArgumentError, match="'lines' or 'files'"):
        oc.import_text(tmp_path / "x", paths, documents="words")  # type: ignore[arg-type]
    with pytest.raises(errors.ArgumentError, match="columns"):
        oc.import_text(tmp_path / "x", paths, documents="files", label_column=0)
    arguments = ["import", *map(str, paths), str(tmp_path / "y"), "--format", "text", "--scratch", str(tmp_path / "s")]
    assert CliRunner().invoke(cli.cli, arguments).exit_code == 2
    ran = CliRunner().invoke(cli.cli, [*arguments, "--documents", "files"])
    assert ran.exit_code == 0, ran.output
    assert oc.open(tmp_path / "y").shape == (3, 4)


def test_more_files_than_may_be_open_are_documents(tmp_path: Path) -> None:
    import resource

    paths = [tmp_path / f"{number}.txt" for number in range(300)]
    for number, path in enumerate(paths):
        path.write_text(f"word{number} common\nword{number}")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 200), hard))
    try:
        found = oc.import_text(tmp_path / "x", paths, documents="files")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert found.shape == (300, 301)
    assert found.scipy().sum() == 900


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
    """Some 20 MB of LIBSVM text: the same thousand rows again and again, with labels of their own."""
    rng = np.random.default_rng(0)
    columns = np.sort(rng.integers(1, 5000, (1000, 12)), axis=1) + np.arange(12)
    values = rng.random((1000, 12)).round(4)
    texts = [" ".join(map("{}:{}".format, *pair)) for pair in zip(columns, values, strict=True)]
    with path.open("w") as out:
        out.writelines(f"{row} {texts[row % 1000]}\n" for row in range(rows))
    return path


def ranked(path: Path) -> Path:
    with path.open("w") as out:
        out.writelines(f"{row % 5} qid:{row // 9} {row % 31 + 1}:0.5 {row % 31 + 40}:1\n" for row in range(300_000))
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
    "libsvm with queries": (ranked, "oc.import_libsvm(target, source, resume=resume)"),
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
    """An import that fails on the way, of a text with a bad line that stays bad; what it did stays."""
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
