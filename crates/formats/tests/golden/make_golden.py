"""Writes the golden files that come from SciPy, scikit-learn and PyArrow."""

import pathlib

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import scipy.io
import scipy.sparse as sp
from sklearn.datasets import dump_svmlight_file
from sklearn.feature_extraction.text import CountVectorizer

folder = pathlib.Path(__file__).parent

# What the tests expect: 4 rows, 6 columns, an empty row, all binary fractions.
dense = np.array([[0, 1.5, 0, 0, -2, 0], [0, 0, 0, 0, 0, 0], [3, 0, 0, 0, 0, 0.25], [0, 0, 7, 0, 0, 0]])
x = sp.csr_matrix(dense)
for name, matrix, compressed in [
    ("csr", x.astype(np.float64), True),
    ("csr_stored_f32", x.astype(np.float32), False),
    ("csc", x.tocsc(), True),
    ("coo", x.tocoo(), True),
    ("csr_array", sp.csr_array(dense), True),
    ("bool", x.astype(bool), True),
    ("int16", x.astype(np.int16), True),
    ("bsr", x.tobsr(), True),
    ("empty", sp.csr_matrix((3, 5)), True),
]:
    sp.save_npz(folder / f"{name}.npz", matrix, compressed=compressed)

wide = x.copy()
wide.indices, wide.indptr = wide.indices.astype(np.int64), wide.indptr.astype(np.int64)
sp.save_npz(folder / "int64_indices.npz", wide)
unsorted = sp.csr_matrix((np.array([2.0, 1.0, 5.0]), np.array([4, 1, 0]), np.array([0, 2, 3])), shape=(2, 6))
sp.save_npz(folder / "unsorted.npz", unsorted)
twice = sp.csr_matrix((np.array([2.0, 1.0, 5.0]), np.array([4, 4, 0]), np.array([0, 2, 3])), shape=(2, 6))
sp.save_npz(folder / "twice.npz", twice)

scipy.io.mmwrite(folder / "general.mtx", x.tocoo())
scipy.io.mmwrite(folder / "integer.mtx", x.astype(np.int64).tocoo())
scipy.io.mmwrite(folder / "pattern.mtx", x.tocoo(), field="pattern")
square = sp.coo_matrix(np.array([[1.0, 2, 0], [2, 0, -3], [0, -3, 4]]))
scipy.io.mmwrite(folder / "symmetric.mtx", square, symmetry="symmetric", comment="two\nlines")
skew = sp.coo_matrix(np.array([[0, 2.0, 0], [-2, 0, -3], [0, 3, 0]]))
scipy.io.mmwrite(folder / "skew.mtx", skew, symmetry="skew-symmetric")
scipy.io.mmwrite(folder / "array.mtx", dense)

labels = np.array([1, -1, 2.5, 0])
dump_svmlight_file(x, labels, str(folder / "one_label.svmlight"), zero_based=False, comment="golden", query_id=[1, 1, 2, 2])
many = sp.csr_matrix(np.array([[1, 0, 1], [0, 1, 0], [0, 0, 0], [1, 1, 1]]))
dump_svmlight_file(x, many, str(folder / "many_labels.svmlight"), zero_based=True, multilabel=True)

coo = x.tocoo()
table = {"row": coo.row.astype(np.int32), "column": coo.col.astype(np.uint8), "value": coo.data}
pq.write_table(pa.table(table), folder / "entries.parquet", row_group_size=2)
pq.write_table(pa.table({**table, "value": coo.data.astype(np.float32)}), folder / "snappy_f32.parquet", compression="snappy")
pq.write_table(
    pa.table({"value": coo.data, "u": coo.col, "i": coo.row.astype(np.uint64)}),
    folder / "zstd_other_order.parquet",
    compression="zstd",
)
pq.write_table(pa.table({"row": coo.row, "column": coo.col}), folder / "ones.parquet", compression="gzip")
unsigned = {
    "row": np.array([2**32 - 1], np.uint32),
    "column": np.array([2**16 - 1], np.uint16),
    "value": np.array([2**64 - 1], np.uint64),
}
pq.write_table(pa.table(unsigned), folder / "unsigned.parquet")
pq.write_table(pa.table({"row": [0, 1], "column": np.array([0, 2**63], np.uint64)}), folder / "too_large.parquet")
pq.write_table(pa.table({"row": [0, 1], "column": [1, None]}), folder / "null.parquet")
pq.write_table(pa.table({"row": [0, 1], "column": [1, -4]}), folder / "negative.parquet")
pq.write_table(pa.table({"row": ["a", "b"], "column": [1, 4]}), folder / "strings.parquet")

# Every run of word characters, from every corner of Unicode: digits, marks, circled letters, sigma at the end, dotted I.
documents = [
    "The fox, the fox_2 a I x1",
    "ΟΔΥΣΣΕΥΣ ΣΑΣ'Α ΑΣ. İstanbul STRASSE Straße Ünïcödé naïve",  # noqa: RUF001
    "हिन्दी भाषा ไทย 中文字 日本 x²y ½a ⅷⅸ ⓐⓑ ªº a\u0301b cafe\u0301s",
    "don't e-mail_me 3.14 10,000 _ __ ١٢٣ 𝐀𝐁 😀😀",  # noqa: RUF001
    "",
]
(folder / "documents.txt").write_text("\n".join(documents) + "\n", encoding="utf-8")
for name, options in [
    ("words", {}),
    ("pairs", {"ngram_range": (1, 2), "stop_words": ["the", "straße"]}),
]:
    vectorizer = CountVectorizer(**options)
    counts = vectorizer.fit_transform(documents).tocoo()
    words = vectorizer.get_feature_names_out()
    lines = sorted(
        f"{row}\t{words[column]}\t{count}" for row, column, count in zip(counts.row, counts.col, counts.data, strict=True)
    )
    (folder / f"{name}.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
