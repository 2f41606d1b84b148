"""Documents drawn from the real corpus: what the generator promises, at a small size."""

import itertools
import json
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp

from harness import corpus
from harness.model import LibsvmFile, SparseFolder
from legs import sparse

FILE = SparseFolder("m", rows=20_000, nonzeros=51 * 20_000, seed=1)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("corpus")
    corpus.make(FILE, root)
    return root


def test_a_folder_holds_just_the_entries_described_in_order_and_in_range(root: Path) -> None:
    a = sparse.load(str(root / FILE.path))
    assert a.shape == (FILE.rows, FILE.columns) and a.nnz == FILE.nonzeros
    assert a.has_canonical_format
    assert a.indices.min() >= 0 and a.indices.max() < FILE.columns
    assert json.loads((root / FILE.path / "matrix.json").read_text()) == {
        "format": "csr",
        "shape": [FILE.rows, FILE.columns],
        "nonzeros": FILE.nonzeros,
        "dtype": "float32",
    }
    sizes = [(root / part).stat().st_size for part in FILE.parts]
    assert sizes == [4096 + 8 * (FILE.rows + 1), 4096 + 4 * FILE.nonzeros, 4096 + 4 * FILE.nonzeros]


def test_the_values_are_those_of_tf_idf_rows_of_norm_one(root: Path) -> None:
    a = sparse.load(str(root / FILE.path))
    norms = np.sqrt(np.add.reduceat(a.data.astype(np.float64) ** 2, a.indptr[:-1]))
    assert np.allclose(norms, 1, atol=1e-6)
    # Where each word came once, values go as inverse document frequencies.
    row = next(
        row
        for row in range(FILE.rows)
        if np.allclose(ratio := a[row].data / corpus.corpus().inverse_frequency[a[row].indices], ratio[0], rtol=1e-5)
    )
    assert a[row].nnz > 1


def test_no_two_rows_are_equal(root: Path) -> None:
    indptr, indices, _ = sparse.mapped(str(root / FILE.path))
    rows = {indices[start:end].tobytes() for start, end in itertools.pairwise(indptr)}
    assert len(rows) == FILE.rows


def test_lengths_and_words_are_spread_as_in_the_real_corpus(root: Path) -> None:
    indptr, indices, _ = sparse.mapped(str(root / FILE.path))
    real = corpus.corpus()
    lengths, real_lengths = np.diff(indptr), np.diff(real.starts)
    share = (FILE.nonzeros / FILE.rows) / real_lengths.mean()
    for percent in (10, 25, 50, 75, 90, 99):
        assert np.percentile(lengths, percent) == pytest.approx(share * np.percentile(real_lengths, percent), rel=0.1)
    frequency = np.bincount(indices, minlength=FILE.columns) / FILE.rows
    real_frequency = np.bincount(real.words, minlength=FILE.columns) / len(real)
    order = np.argsort(-real_frequency)
    for first, last in ((0, 10), (10, 100), (100, 1000), (1000, 10_000), (10_000, FILE.columns)):
        some = order[first:last]
        assert frequency[some].sum() == pytest.approx(share * real_frequency[some].sum(), rel=0.3)


def test_the_same_description_gives_the_same_bytes_and_another_seed_others(root: Path, tmp_path: Path) -> None:
    again, other = SparseFolder("m", FILE.rows, FILE.nonzeros, 1), SparseFolder("n", FILE.rows, FILE.nonzeros, 2)
    corpus.make(again, tmp_path)
    corpus.make(other, tmp_path)
    for mine, same, differs in zip(FILE.parts, again.parts, other.parts, strict=True):
        assert (root / mine).read_bytes() == (tmp_path / same).read_bytes()
        assert (root / mine).read_bytes() != (tmp_path / differs).read_bytes()


def test_the_text_says_what_the_matrix_says(tmp_path: Path) -> None:
    from sklearn.datasets import load_svmlight_file

    from cases.sparse import TEXT_BYTES_PER_ENTRY

    file = SparseFolder("m", rows=3000, nonzeros=51 * 3000, seed=3)
    corpus.make(file, tmp_path)
    corpus.make(LibsvmFile("m.libsvm", file), tmp_path)
    a = sparse.load(str(tmp_path / "m"))
    read, labels = load_svmlight_file(str(tmp_path / "m.libsvm"), n_features=file.columns, zero_based=False)
    assert np.array_equal(read.indptr, a.indptr) and np.array_equal(read.indices, a.indices)
    assert np.allclose(read.data, a.data, rtol=1e-5)
    assert set(labels) <= set(range(1, 59)) and len(set(labels)) > 20
    assert (tmp_path / "m.libsvm").stat().st_size == pytest.approx(TEXT_BYTES_PER_ENTRY * file.nonzeros, rel=0.01)


def test_too_few_rows_for_the_entries_are_refused() -> None:
    with pytest.raises(ValueError, match="too few"):
        next(corpus.blocks(SparseFolder("m", rows=2, nonzeros=100_000)))


def test_ranges_follow_each_other_and_empty_ones_vanish() -> None:
    assert corpus.ranges(np.array([5, 9, 0]), np.array([2, 0, 3])).tolist() == [5, 6, 0, 1, 2]
    assert corpus.ranges(np.array([], np.int64), np.array([], np.int64)).tolist() == []


def test_scipy_and_the_folder_agree_on_a_part(root: Path) -> None:
    a = sparse.load(str(root / FILE.path), rows=7)
    assert isinstance(a, sp.csr_matrix) and a.shape == (7, FILE.columns)
    assert (a != sparse.load(str(root / FILE.path))[:7]).nnz == 0
