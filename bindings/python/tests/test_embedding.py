"""Embedding tables: the meaning of torch's modules, bit by bit, from files that are read in place."""

from __future__ import annotations

import copy
import io
import itertools
import multiprocessing
import os
import pickle
import select
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import outcore as oc
from outcore import embedding, errors
from outcore import torch as oct
from outcore.embedding import Feature, JaggedBatch, Table, TableSet, look_ahead

ROWS, DIM = 5000, 24


@pytest.fixture
def session(tmp_path: Path) -> Iterator[oc.Session]:
    with oc.Session("32MiB", scratch=tmp_path, allow_tmpfs_scratch=True) as session:
        yield session


@pytest.fixture(scope="module")
def weight() -> np.ndarray:
    return np.random.default_rng(0).standard_normal((ROWS, DIM)).astype("float32")


@pytest.fixture
def table(tmp_path: Path, weight: np.ndarray, session: oc.Session) -> Table:
    np.save(tmp_path / "table.npy", weight)
    return Table.open(tmp_path / "table.npy", cache="1MiB", session=session)


def bags(seed: int, count: int = 50) -> tuple[torch.Tensor, torch.Tensor]:
    random = np.random.default_rng(seed)
    lengths = random.choice([0, 1, 3, 80, 200], count)
    ids = np.where(
        random.random(lengths.sum()) < 0.5, random.integers(0, 40, lengths.sum()), random.integers(0, ROWS, lengths.sum())
    )
    return torch.from_numpy(ids), torch.from_numpy(np.cumsum([0, *lengths[:-1]]))


def same(one: Any, other: Any) -> None:
    np.testing.assert_array_equal(np.asarray(one), np.asarray(other))


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
@pytest.mark.parametrize("wide", [torch.int64, torch.int32])
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("padding", [None, 7, -3])
def test_bags_have_the_bits_of_torch(
    table: Table, weight: np.ndarray, mode: Any, wide: Any, last: bool, padding: int | None
) -> None:
    given = {"mode": mode, "include_last_offset": last, "padding_idx": padding}
    theirs = torch.nn.EmbeddingBag.from_pretrained(torch.from_numpy(weight), **given)
    ours = oct.EmbeddingBag(table, **given)
    for seed in range(3):
        ids, offsets = bags(seed)
        if last:
            offsets = torch.cat([offsets, torch.tensor([len(ids)])])
        ids, offsets = ids.to(wide), offsets.to(wide)
        same(ours(ids, offsets), theirs(ids, offsets))
    square = torch.from_numpy(np.random.default_rng(1).integers(0, 50, (20, 6))).to(wide)
    same(ours(square), theirs(square))
    same(embedding.EmbeddingBag(table, mode, padding_idx=padding)(square.numpy()), theirs(square))


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
@pytest.mark.parametrize("count", [0, 3])
def test_bags_of_two_dimensions_may_be_empty(table: Table, mode: Any, count: int) -> None:
    ids = torch.empty((count, 0), dtype=torch.int64)
    expected = np.zeros((count, DIM), np.float32)
    # Memory that was in use before: what is not written shows.
    np.full((count, DIM), np.nan, np.float32)
    same(oct.EmbeddingBag(table, mode)(ids), expected)
    same(embedding.EmbeddingBag(table, mode)(ids.numpy()), expected)
    if mode == "sum":
        same(oct.EmbeddingBag(table, mode)(ids, per_sample_weights=torch.empty((count, 0))), expected)


def test_weights_of_samples(table: Table, weight: np.ndarray) -> None:
    ids, offsets = bags(5)
    weights = torch.randn(len(ids))
    theirs = torch.nn.EmbeddingBag.from_pretrained(torch.from_numpy(weight), mode="sum")
    same(oct.EmbeddingBag(table, "sum")(ids, offsets, weights), theirs(ids, offsets, weights))
    square = torch.randint(0, ROWS, (8, 5))
    weights = torch.randn(8, 5)
    same(oct.EmbeddingBag(table, "sum")(square, per_sample_weights=weights), theirs(square, per_sample_weights=weights))
    half = weights.bfloat16()
    same(oct.EmbeddingBag(table, "sum")(square, per_sample_weights=half), theirs(square, per_sample_weights=half.float()))
    with pytest.raises(errors.ArgumentError, match="per_sample_weights are for sums"):
        oct.EmbeddingBag(table, "mean")(square, per_sample_weights=weights)


def test_rows_as_torch_embedding(table: Table, weight: np.ndarray) -> None:
    ids = torch.randint(0, ROWS, (3, 4, 5))
    ours = oct.Embedding(table, padding_idx=3)
    same(ours(ids), torch.from_numpy(weight)[ids])
    assert ours(ids).shape == (3, 4, 5, DIM)
    same(table[ids.numpy()], weight[ids])
    same(table[-1], weight[-1])
    same(table[10:20:3], weight[10:20:3])
    same(table[np.arange(ROWS) % 1000 == 0], weight[::1000])
    assert table[[]].shape == (0, DIM)
    assert ours(torch.zeros((0, 2), dtype=torch.int64)).shape == (0, 2, DIM)
    assert (ours.num_embeddings, ours.embedding_dim, len(table), table.shape) == (ROWS, DIM, ROWS, (ROWS, DIM))


def test_a_table_is_a_sequence_of_rows(table: Table, weight: np.ndarray, session: oc.Session) -> None:
    same(list(table), weight)
    same(table[[-1, -ROWS]], weight[[-1, -ROWS]])
    for row in (ROWS, -ROWS - 1):
        with pytest.raises(errors.ArgumentError, match=str(row)):
            table[row]
    with pytest.raises(errors.ArgumentError, match="table 99 in the set of 1"):
        TableSet([table], session=session).look_up([Feature(99, [0])])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_tables_have_half_results(tmp_path: Path, session: oc.Session, weight: np.ndarray, dtype: torch.dtype) -> None:
    from outcore import embedding

    half = torch.from_numpy(weight).to(dtype)
    packed = embedding.pack(weight, tmp_path / "half", str(dtype).removeprefix("torch."), session=session)
    ids, offsets = bags(3)
    ours = oct.EmbeddingBag(packed, "sum")(ids, offsets)
    assert ours.dtype == dtype
    # Sums are of float32, rounded once.
    exact = torch.nn.EmbeddingBag.from_pretrained(half.float(), mode="sum")(ids, offsets)
    same(ours.float(), exact.to(dtype).float())
    same(oct.EmbeddingBag(packed, "sum", dtype=torch.float32)(ids, offsets), exact)
    same(oct.Embedding(packed)(ids).float(), half[ids].float())


def test_safetensors_shards_are_read_in_place(tmp_path: Path, session: oc.Session, weight: np.ndarray) -> None:
    paths = []
    for number, part in enumerate(np.split(weight, [100, 101, 4000])):
        path = tmp_path / f"model-{number + 8}.safetensors"
        path.write_bytes(safetensors(f"shard{number}", part))
        paths.append(path)
    ids, offsets = bags(4)
    expected = torch.nn.EmbeddingBag.from_pretrained(torch.from_numpy(weight), mode="sum")(ids, offsets)
    for where in (paths, tmp_path):
        table = Table.open(where, session=session)
        assert table.shape == (ROWS, DIM)
        same(oct.EmbeddingBag(table, "sum")(ids, offsets), expected)
    two = safetensors("a", weight[:3], "b", weight[:3])
    (tmp_path / "two.safetensors").write_bytes(two)
    with pytest.raises(errors.ArgumentError, match="2 matrices; name the tensor"):
        Table.open(tmp_path / "two.safetensors", session=session)
    assert Table.open(tmp_path / "two.safetensors", "b", session=session).shape == (3, DIM)
    (tmp_path / "short.safetensors").write_bytes(two[:-1])
    with pytest.raises(errors.TruncatedError, match=r"short\.safetensors"):
        Table.open(tmp_path / "short.safetensors", "b", session=session)


def test_lists_and_folders_of_npy_files_are_one_table(tmp_path: Path, session: oc.Session, weight: np.ndarray) -> None:
    paths = [tmp_path / "rows" / f"part-{number}.npy" for number in (10, 9, 2)]
    paths[0].parent.mkdir()
    parts = np.split(weight, [10, 2000])
    for path, part in zip(paths, parts, strict=True):
        np.save(path, part)
    ids = np.array([ROWS - 1, 0, 9, 10, 1999, 2000])
    same(Table.open(paths, session=session)[ids], weight[ids])
    # By the numbers in the names.
    same(Table.open(paths[0].parent, session=session)[ids], np.concatenate(parts[::-1])[ids])
    np.save(paths[2], parts[2][:, 1:])
    with pytest.raises(errors.ShapeError, match=r"part-2\.npy"):
        Table.open(paths, session=session)


def test_rows_of_8_bits_are_read_in_place(tmp_path: Path, session: oc.Session, weight: np.ndarray) -> None:
    import json

    ids = np.array([3, 0, ROWS - 1])
    for dtype, name in ((torch.float8_e4m3fn, "F8_E4M3"), (torch.float8_e5m2, "F8_E5M2")):
        rows = torch.from_numpy(weight).to(dtype)
        head = json.dumps({"rows": {"dtype": name, "shape": [ROWS, DIM], "data_offsets": [0, ROWS * DIM]}}).encode()
        stored = rows.view(torch.uint8).numpy().tobytes()
        (tmp_path / "table.safetensors").write_bytes(struct.pack("<Q", len(head)) + head + stored)
        same(Table.open(tmp_path / "table.safetensors", session=session)[ids], rows.float()[ids])
    codes = np.random.default_rng(3).integers(0, 256, (ROWS, DIM)).astype(np.uint8)
    scales = np.stack([np.linspace(0.01, 0.1, ROWS), np.linspace(-2, 2, ROWS)], axis=1)
    for encoding, kind, first in (("int8", "f2", True), ("int8_scale_last", "f2", False), ("int8_scale_last_f32", "f4", False)):
        beside = np.ascontiguousarray(scales.astype(kind)).view(np.uint8)
        np.save(tmp_path / "rows.npy", np.concatenate([beside, codes] if first else [codes, beside], axis=1))
        scale, bias = scales.astype(kind).astype("f4").T[:, ids, None]
        found = Table.open(tmp_path / "rows.npy", encoding=encoding, session=session)
        assert found.shape == (ROWS, DIM)
        np.testing.assert_allclose(found[ids], codes[ids] * scale + bias, rtol=1e-6, atol=1e-6)
    with pytest.raises(errors.UnsupportedError, match="encoding="):
        Table.open(tmp_path / "rows.npy", session=session)


def test_row_numbers_beyond_32_bits_are_looked_up(tmp_path: Path, session: oc.Session) -> None:
    # Of 8.6 GB, almost all of which is a hole.
    rows, path = (1 << 32) + 1000, tmp_path / "large.npy"
    with open(path, "wb") as file:
        np.lib.format.write_array_header_2_0(file, {"descr": "<f2", "fortran_order": False, "shape": (rows, 1)})
        head = file.tell()
        file.truncate(head + 2 * rows)
        ids = np.array([0, 1 << 27, (1 << 27) + 1, (1 << 31) + 5, (1 << 32) - 1, 1 << 32, rows - 1])
        for number, row in enumerate(ids):
            file.seek(head + 2 * int(row))
            file.write(np.float16(number + 1).tobytes())
    table = Table.open(path, cache="1MiB", session=session)
    for _ in range(2):
        same(table[ids], np.arange(1, 8, dtype="f2")[:, None])
    same(embedding.EmbeddingBag(table, "sum", dtype=np.float32)(ids, [0, 3]), [[6.0], [22.0]])
    assert table.statistics.hits >= len(ids)
    with pytest.raises(errors.ArgumentError, match=f"none with the number {rows}"):
        table[[rows]]


def safetensors(*named: Any) -> bytes:
    import json

    header, bodies, at = {}, [], 0
    for name, array in zip(named[::2], named[1::2], strict=True):
        header[name] = {"dtype": "F32", "shape": list(array.shape), "data_offsets": [at, at + array.nbytes]}
        bodies.append(array.tobytes())
        at += array.nbytes
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + b"".join(bodies)


@pytest.mark.parametrize("encoding", ["float32", "float16", "int8", "int8_scale_last_f32", "int4", "float8_e4m3fn"])
def test_packed_tables(tmp_path: Path, session: oc.Session, weight: np.ndarray, encoding: str) -> None:
    placement = np.random.default_rng(2).permutation(ROWS)
    packed = embedding.pack(weight, tmp_path / "packed", encoding, placement=placement, session=session)
    assert packed.encoding.startswith(encoding) and packed.is_packed
    rows = packed[np.arange(ROWS)].astype("float32")
    step = {"int8": 0.02, "int4": 0.3, "floa": 0.002}[encoding[:4]] if encoding != "float8_e4m3fn" else 0.25
    assert np.abs(rows - weight).max() <= (0 if encoding == "float32" else step)
    again = embedding.pack(packed, tmp_path / "again", session=session)
    same(again[np.arange(ROWS)], rows)
    with pytest.raises(oc.errors.ArgumentError, match=r"again: a packed table, .* is a table by itself"):
        Table.open([tmp_path / "again", tmp_path / "packed"], session=session)


def test_rows_are_prefetched_while_the_caller_goes_on(tmp_path: Path, session: oc.Session, weight: np.ndarray) -> None:
    np.save(tmp_path / "weight.npy", weight)
    table = Table.open(tmp_path / "weight.npy", session=session)
    ids = np.arange(5, 95).reshape(9, 10)
    assert table.prefetch(ids).result() is None
    assert table.statistics.looked_up == 0
    same(table[ids], weight[ids])
    assert table.statistics.hits == table.statistics.units_read == 90
    with pytest.raises(errors.ArgumentError, match=f"none with the number {ROWS}"):
        table.prefetch([ROWS]).result()
    table.prefetch([200])
    copied = pickle.loads(pickle.dumps(table))
    same(copied[[200]], weight[[200]])
    while table.statistics.cached_rows < 91:
        time.sleep(0.01)


def test_a_shard_that_is_cut_while_it_is_served_fails_the_rows_that_it_had(tmp_path: Path, session: oc.Session) -> None:
    paths = [tmp_path / f"{number}.npy" for number in range(2)]
    for number, path in enumerate(paths):
        np.save(path, np.full((1000, 16), number, "float32"))
    table = Table.open(paths, cache=0, session=session)
    os.truncate(paths[1], 128 + 64 * 500)
    with pytest.raises(oc.errors.OutcoreError, match=r"row 1900 of .*0\.npy.*1\.npy") as failed:
        table[[5, 1100, 1900]]
    (rows,) = failed.value.results  # type: ignore[attr-defined]
    same(rows[:2], [[0] * 16, [1] * 16])
    assert np.isnan(rows[2]).all()


def test_several_features_of_several_tables(tmp_path: Path, session: oc.Session) -> None:
    random = np.random.default_rng(6)
    weights = [random.standard_normal((100 * (1 + number), 4 * (1 + number))).astype("float32") for number in range(5)]
    for number, one in enumerate(weights):
        np.save(tmp_path / f"{number}.npy", one)
    names = ["user", "item", "shop", "word", "day"]
    paths = {name: tmp_path / f"{number}.npy" for number, name in enumerate(names)}
    tables = TableSet(paths, cache="1MiB", session=session)
    asked = []
    for number in (0, 3, 3, 1, 4, 2, 0):
        ids = random.integers(0, len(weights[number]), 60).astype("int32")
        asked.append(Feature(names[number], ids, lengths=np.full(12, 5)))
    found = tables.look_up(asked)
    for feature, rows in zip(asked, found, strict=True):
        one = weights[names.index(str(feature.table))]
        same(
            rows,
            torch.nn.functional.embedding_bag(
                torch.from_numpy(feature.ids), torch.from_numpy(one), torch.arange(0, 60, 5), mode="sum"
            ),
        )
    side = tables.look_up(asked, concatenate=True)
    same(side, np.concatenate(found, axis=1))
    pending = tables.submit(asked)
    assert select.select([pending], [], [], 20)[0] == [pending] and pending.done()
    same(pending.result()[2], found[2])
    time = tables.prefetch(asked)
    same(tables.submit(asked, time=time).result()[3], found[3])
    assert tables.statistics["user"].looked_up >= 480
    with pytest.raises(errors.ArgumentError, match="no table 'shoe'"):
        tables["shoe"]


def test_features_of_all_tables_in_few_arrays(tmp_path: Path, session: oc.Session) -> None:
    random = np.random.default_rng(8)
    rows, dims, samples = [50, 700, 3], [8, 5, 16], 33
    weights = [random.standard_normal((count, dim)).astype("float32") for count, dim in zip(rows, dims, strict=True)]
    for number, one in enumerate(weights):
        np.save(tmp_path / f"{number}.npy", one)
    tables = TableSet([tmp_path / f"{number}.npy" for number in range(3)], cache="1MiB", session=session)
    lengths = random.integers(0, 9, (3, samples))
    parts = [random.integers(0, count, length.sum()) for count, length in zip(rows, lengths, strict=True)]
    ids, offsets = np.concatenate(parts), np.concatenate([[0], np.cumsum(lengths)])
    factors = random.random(len(ids)).astype("float32")
    of_parts = np.split(factors, np.cumsum(lengths.sum(1))[:-1])

    def features(mode: Any, factors: Any = (None, None, None)) -> list[Feature]:
        return [
            Feature(table, part, lengths=length, per_sample_weights=factor, mode=mode)
            for table, (part, length, factor) in enumerate(zip(parts, lengths, factors, strict=True))
        ]

    for mode in ("sum", "mean", "max"):
        expected = np.concatenate(tables.look_up(features(mode)), axis=1)
        same(tables.look_up(JaggedBatch(ids, lengths=lengths, mode=mode), concatenate=True), expected)
        apart = tables.look_up(JaggedBatch(ids, lengths=lengths, mode=mode))
        assert [rows.shape for rows in apart] == [(samples, dim) for dim in dims]
        same(np.concatenate(apart, axis=1), expected)
        same(
            tables.look_up(
                JaggedBatch(ids.astype("int32"), lengths=lengths.ravel().astype("int32"), mode=mode), concatenate=True
            ),
            expected,
        )
        same(tables.submit(JaggedBatch(ids, offsets=offsets, mode=mode), concatenate=True).result(), expected)
    expected = np.concatenate(tables.look_up(features("sum", of_parts)), axis=1)
    weighed = JaggedBatch(ids, lengths=lengths, per_sample_weights=factors)
    same(tables.look_up(weighed, concatenate=True), expected)
    half = tables.look_up(JaggedBatch(ids, lengths=lengths, per_sample_weights=factors, dtype=np.float16), concatenate=True)
    assert half.dtype == np.float16 and np.allclose(half, expected, rtol=1e-2, atol=1e-2)
    some = JaggedBatch(np.concatenate([parts[2], parts[0], parts[2]]), lengths=lengths[[2, 0, 2]], tables=["2", 0, 2])
    found = tables.look_up([features("sum")[number] for number in (2, 0, 2)], concatenate=True)
    same(tables.look_up(some, concatenate=True), found)
    same(tables.submit(weighed, time=tables.prefetch(weighed), concatenate=True).result(), expected)
    for batch, sums in look_ahead(tables, [weighed, some, weighed], lambda batch: batch):
        same(np.concatenate(sums, axis=1), found if batch is some else expected)
    empty = JaggedBatch(np.zeros(0, np.int64), lengths=np.zeros((3, 0), np.int64))
    assert tables.look_up(empty, concatenate=True).shape == (0, sum(dims))
    assert [rows.shape for rows in tables.look_up(empty)] == [(0, dim) for dim in dims]


def test_what_makes_no_batch_of_features_is_refused(tmp_path: Path, session: oc.Session) -> None:
    for number in range(2):
        np.save(tmp_path / f"{number}.npy", np.zeros((10, 4), "float32"))
    tables = TableSet([tmp_path / "0.npy", tmp_path / "1.npy"], cache="1MiB", session=session)
    ids = np.arange(6)
    for batch, error, match in (
        (JaggedBatch(ids, lengths=[3, 3, 0]), errors.ShapeError, "3 lengths are no equal numbers of bags for 2 features"),
        (JaggedBatch(ids, lengths=[[3], [2]]), errors.ArgumentError, "the lengths are 5 together, for 6 ids"),
        (JaggedBatch(ids, lengths=[[3], [4]]), errors.ArgumentError, "more than the 6 ids"),
        (JaggedBatch(ids, lengths=[[3, 0, 0, 3]]), errors.ShapeError, r"lengths of shape \(1, 4\) for 2 features"),
        (JaggedBatch(ids, lengths=[[7], [-1]]), errors.ArgumentError, "1.npy: bag 0 of feature 1 has length -1"),
        (JaggedBatch(ids, lengths=[[-1], [7]]), errors.ArgumentError, "0.npy: bag 0 of feature 0 has length -1"),
        (JaggedBatch(ids), errors.ArgumentError, "either offsets or lengths"),
        (JaggedBatch(ids, lengths=[3, 3], offsets=[0, 3, 6]), errors.ArgumentError, "either offsets or lengths"),
        (JaggedBatch(ids, offsets=[1, 3, 6]), errors.ShapeError, "begins with 0"),
        (JaggedBatch(ids, offsets=[0, 6, 3]), errors.ArgumentError, "1.npy: bag 0 of feature 1 has length -3"),
        (JaggedBatch(ids.reshape(2, 3), lengths=[3, 3]), errors.ShapeError, "which are no list"),
        (JaggedBatch(ids, lengths=[3, 3], per_sample_weights=[1.0]), errors.ShapeError, "per_sample_weights of shape"),
        (JaggedBatch(ids, lengths=[3, 3], tables=[]), errors.ShapeError, "for 0 features"),
        (JaggedBatch(ids, lengths=[3, 3], tables=["0", "x"]), errors.ArgumentError, "no table 'x'"),
        (JaggedBatch(ids * 2, lengths=[3, 3]), errors.ArgumentError, "none with the number 10"),
        (JaggedBatch(ids, lengths=[3, 3], mode="last"), errors.ArgumentError, "mode 'last'"),  # type: ignore[arg-type]
    ):
        with pytest.raises(error, match=match):
            tables.look_up(batch)
    with pytest.raises(errors.ShapeError, match="side by side"):
        tables.look_up([Feature(0, ids), Feature(1, ids[:2])], concatenate=True)


def gguf(tensors: dict[str, tuple[int, tuple[int, ...], bytes]]) -> bytes:
    """A file of tensors: type, shape, bytes. Written by the specification, with pairs of several types before them."""

    def text(text: str) -> bytes:
        return struct.pack("<Q", len(text)) + text.encode()

    words = text("tokenizer.ggml.tokens") + struct.pack("<IIQ", 9, 8, 2) + text("a") + text("bc")
    scores = text("tokenizer.ggml.scores") + struct.pack("<IIQ2f", 9, 6, 2, 0.5, 1.5)
    pairs = [text("general.alignment") + struct.pack("<II", 4, 64), words, scores, text("x") + struct.pack("<IB", 7, 1)]
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(pairs)) + b"".join(pairs)
    offset, data = 0, b""
    for name, (kind, shape, content) in tensors.items():
        head += text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *reversed(shape), kind, offset)
        data += content + bytes(-len(content) % 64)
        offset = len(data)
    return head + bytes(-len(head) % 64) + data


def test_rows_of_gguf_files_are_read_in_place(tmp_path: Path, session: oc.Session, weight: np.ndarray) -> None:
    half = weight.astype(np.float16)
    whole = gguf(
        {
            "norm": (0, (3,), np.ones(3, "f").tobytes()),
            "token_embd.weight": (0, weight.shape, weight.tobytes()),
            "half": (1, half.shape, half.tobytes()),
            "small": (2, (2, 32), bytes(36)),
        }
    )
    path = tmp_path / "model.gguf"
    path.write_bytes(whole)
    table = Table.open(path, "token_embd.weight", session=session)
    assert table.shape == weight.shape and (table[[5, 0, 5]] == weight[[5, 0, 5]]).all()
    assert (Table.open(path, "half", session=session)[:] == half).all()
    with pytest.raises(errors.UnsupportedError, match="Q4_0"):
        Table.open(path, "small", session=session)
    with pytest.raises(errors.ArgumentError, match="3 matrices"):
        Table.open(path, session=session)
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(errors.TruncatedError):
        Table.open(path, "half", session=session)
    for wrong in (whole[:100], whole.replace(b"GGUF\3", b"GGUF\x09"), b"GGUF" + bytes([3]) + b"\xff" * 60):
        path.write_bytes(wrong)
        with pytest.raises(errors.CorruptError, match="its head"):
            Table.open(path, "half", session=session)


def test_batches_of_a_loader_have_their_rows_read_ahead(tmp_path: Path, session: oc.Session, weight: np.ndarray) -> None:
    from outcore.data import Dataset, Loader, Writer

    path = tmp_path / "rows.npy"
    np.save(path, weight)
    random = np.random.default_rng(0)
    with Writer(tmp_path / "clicks") as writer:
        for ids in random.zipf(1.1, (512, 8)) % len(weight):
            writer.write({"ids": ids.astype(np.int64)})
    loader = Loader(Dataset(tmp_path / "clicks"), 16, shuffle=True, seed=3)

    def features(batch: Any) -> list[Feature]:
        return [Feature(0, batch["ids"], mode="sum"), Feature(0, batch["ids"][:, 0])]

    cache = len(weight) // 4 * weight.shape[1] * 4

    def read(steps: int, known: int | None = None) -> int:
        tables = TableSet([path], cache=cache, session=session)
        seen = 0
        for batch, (sums, rows) in embedding.look_ahead(tables, loader, features, steps=steps, known=known):
            np.testing.assert_allclose(sums, weight[batch["ids"]].sum(1), rtol=1e-5, atol=1e-5)
            assert (rows == weight[batch["ids"][:, 0]]).all()
            seen += 1
        assert seen == 32
        return tables.statistics["0"].units_read

    plain = TableSet([path], cache=cache, session=session)
    for batch in loader:
        plain.look_up(features(batch))
    assert read(1) <= 1.1 * plain.statistics["0"].units_read
    assert read(4) <= 1.1 * plain.statistics["0"].units_read
    assert read(1, known=32) < 0.9 * plain.statistics["0"].units_read
    tables = TableSet([path], session=session)
    ahead = embedding.look_ahead(tables, iter([np.arange(3), np.array([len(weight)])]), lambda ids: [Feature(0, ids)])
    with pytest.raises(errors.ArgumentError, match=f"none with the number {len(weight)}"):
        list(ahead)
    first = embedding.look_ahead(tables, (np.arange(3) for _ in range(9)), lambda ids: [Feature(0, ids)])
    assert (next(first)[1][0] == weight[:3]).all()
    first.close()
    with pytest.raises(errors.ArgumentError, match="at least one batch"):
        next(embedding.look_ahead(tables, [], features, steps=0))


def test_look_ups_ahead_go_on_behind_a_damaged_page(tmp_path: Path, session: oc.Session, weight: np.ndarray) -> None:
    embedding.pack(weight, tmp_path / "rows", session=session)
    stored = bytearray((tmp_path / "rows").read_bytes())
    row = stored.index(weight[-1].tobytes())
    stored[row] ^= 1
    (tmp_path / "rows").write_bytes(stored)
    batches = [np.arange(3), np.array([len(weight) - 1, 5]), np.arange(4, 7)]

    def of(ids: np.ndarray) -> list[Feature]:
        return [Feature(0, ids)]

    told: list[Any] = []
    tables = TableSet([tmp_path / "rows"], session=session)
    found = list(look_ahead(tables, batches, of, on_failure=lambda ids, error: told.append((ids, error.failed))))  # type: ignore[attr-defined]
    assert [list(ids) for ids, _ in found] == [list(ids) for ids in batches]
    same(found[0][1][0], weight[:3])
    same(found[2][1][0], weight[4:7])
    same(found[1][1][0][1], weight[5])
    assert np.isnan(found[1][1][0][0]).all()
    [(ids, failed)] = told
    assert ids is batches[1] and [(one.feature, one.bag) for one in failed] == [(0, 0)]
    with pytest.raises(errors.CorruptError, match="rows"):
        list(look_ahead(tables, batches, of))


def test_memory_of_announcements_is_counted_and_comes_back(tmp_path: Path, weight: np.ndarray) -> None:
    path = tmp_path / "rows.npy"
    np.save(path, weight)
    session = oc.Session(memory="16MiB", threads=1)
    tables = TableSet([path], cache="1MiB", reading="2MiB", session=session)
    ids = np.arange(30_000) % len(weight)  # 2.9 MB
    for _ in range(20):
        tables.withdraw(tables.announce([Feature(0, ids)]))
        first = embedding.look_ahead(tables, (ids for _ in range(9)), lambda ids: [Feature(0, ids)], steps=1, known=3)
        assert (next(first)[1][0] == weight[ids]).all()
        first.close()
    with pytest.raises(errors.OverBudgetError, match="rows that will be looked up"):
        list(embedding.look_ahead(tables, (ids for _ in range(9)), lambda ids: [Feature(0, ids)], steps=1, known=9))
    # Look-ups that were prefetched give it back, too.
    for _ in range(20):
        features = [Feature(0, ids)]
        assert (tables.look_up(features, time=tables.prefetch(features))[0] == weight[ids]).all()


@pytest.mark.parametrize(
    ("ids", "offsets", "text"),
    [
        ([1, ROWS], [0], f"none with the number {ROWS}"),
        ([1, -1], [0], "none with the number -1"),
        ([1, 2, 3], [0, 2, 1], "offset 1 of bag 2"),
        ([1, 2, 3], [1], "the first offset is 1"),
        ([1, 2, 3], [0, 4], "offset 4 of bag 1"),
        ([1.5, 2.0], [0], "ids are integers"),
    ],
)
def test_bad_input_is_named_before_anything_is_read(table: Table, ids: Any, offsets: Any, text: str) -> None:
    with pytest.raises(errors.ArgumentError, match=text):
        embedding.EmbeddingBag(table)(ids, offsets)
    assert table.statistics.units_read == 0


def test_rows_without_bags_have_their_weights(table: Table, weight: np.ndarray) -> None:
    factors = np.array([2, -3, 0.5], np.float32)
    tables = TableSet([table])
    # From memory, and as they are read.
    for _ in range(2):
        found = tables.look_up([Feature(0, [1, 2, 1], per_sample_weights=factors)])[0]
        same(found, weight[[1, 2, 1]] * factors[:, None])


def test_a_damaged_page_in_the_middle_of_a_long_bag_leaves_no_sum(
    tmp_path: Path, session: oc.Session, weight: np.ndarray
) -> None:
    embedding.pack(np.tile(weight, (20, 1)), tmp_path / "t.packed", session=session)
    rows_a_page = 4092 // (weight.shape[1] * 4)
    with open(tmp_path / "t.packed", "r+b") as file:
        file.seek(4096 * 21 + 100)
        byte = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte[0] ^ 1]))
    table = Table.open(tmp_path / "t.packed", session=session, reading="64KiB", cache=0)
    ids = np.arange(40) * rows_a_page
    with pytest.raises(errors.CorruptError) as caught:
        TableSet([table]).look_up([Feature(0, np.r_[ids, 0, 1], lengths=[40, 2])])
    assert [(one.feature, one.bag) for one in caught.value.failed] == [(0, 0)]
    assert np.isnan(caught.value.results[0][0]).all()
    same(caught.value.results[0][1], weight[:2].sum(axis=0))


def test_a_damaged_page_fails_its_bags_only(tmp_path: Path, session: oc.Session, weight: np.ndarray) -> None:
    path = tmp_path / "packed"
    embedding.pack(weight, path, session=session)
    with open(path, "r+b") as file:
        file.seek(4096 * 3 + 10)
        byte = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte[0] ^ 1]))
    table = Table.open(path, session=session)
    rows = 4092 // (4 * DIM)
    ids = [0, 2 * rows, 3 * rows, 1]
    with pytest.raises(errors.CorruptError, match=f"row {2 * rows} of .*packed") as raised:
        embedding.EmbeddingBag(table, "sum")(ids, [0, 1, 2, 3])
    assert [one.bag for one in raised.value.failed] == [1]
    (found,) = raised.value.results
    same(found[[0, 2, 3]], weight[[0, 3 * rows, 1]])
    assert np.isnan(found[1]).all()
    np.save(tmp_path / "other.npy", weight[:9])
    tables = TableSet([tmp_path / "other.npy", path], session=session)
    with pytest.raises(errors.CorruptError, match=f"row {2 * rows} of .*packed") as raised:
        tables.look_up(JaggedBatch([1, 2, 3, 0, 2 * rows, 5], lengths=np.ones((2, 3), "int64")), concatenate=True)
    assert [(one.feature, one.bag) for one in raised.value.failed] == [(1, 1)]
    found = raised.value.results
    same(found[[0, 2]], np.concatenate([weight[[1, 3]], weight[[0, 5]]], axis=1))
    same(found[1, :DIM], weight[2])
    assert np.isnan(found[1, DIM:]).all()


def test_look_ups_go_on_while_the_caller_computes(table: Table, weight: np.ndarray) -> None:
    ours = oct.EmbeddingBag(table, "sum")
    theirs = torch.nn.EmbeddingBag.from_pretrained(torch.from_numpy(weight), mode="sum")
    batches = [bags(seed) for seed in range(6)]
    ours.submit(*batches[0])
    for number, batch in enumerate(batches):
        if number + 1 < len(batches):
            ours.submit(*batches[number + 1])
        same(ours(*batch), theirs(*batch))
    assert not ours._ahead and ours.stall_seconds >= 0


def test_ids_that_were_changed_after_they_were_submitted_are_looked_up_again(table: Table, weight: np.ndarray) -> None:
    bag, rows = oct.EmbeddingBag(table, "sum"), oct.Embedding(table)
    ids, offsets = torch.arange(6), torch.tensor([0, 2])
    for number in range(3):
        bag.submit(ids, offsets)
        rows.submit(ids)
        if number == 1:
            ids += 10
        same(bag(ids, offsets), torch.nn.functional.embedding_bag(ids, torch.from_numpy(weight), offsets, mode="sum"))
        same(rows(ids), weight[ids])
        assert not bag._ahead and not rows._ahead
    assert bag.stall_seconds > 0
    with torch.inference_mode():
        uncounted = torch.arange(6)
    rows.submit(uncounted)
    same(rows(uncounted), weight[:6])
    assert not rows._ahead


def test_look_ups_that_are_submitted_and_never_used_are_refused(table: Table) -> None:
    bag = oct.EmbeddingBag(table)
    ids = torch.arange(8).reshape(2, 4)
    with pytest.raises(errors.ArgumentError, match="submitted and not used"):
        for _ in range(1000):
            bag.submit(ids)
            bag(ids.clone())


def test_weights_that_need_a_gradient_are_refused(table: Table) -> None:
    ours = oct.EmbeddingBag(table, "sum")
    ids, weights = torch.randint(0, ROWS, (8, 5)), torch.randn(8, 5, requires_grad=True)
    for call in (ours, ours.submit):
        with pytest.raises(errors.ArgumentError, match=r"require a gradient.*detach\(\)"):
            call(ids, per_sample_weights=weights)
    with torch.no_grad():
        same(ours(ids, per_sample_weights=weights), ours(ids, per_sample_weights=weights.detach()))


def test_many_threads(table: Table, weight: np.ndarray) -> None:
    theirs = torch.nn.EmbeddingBag.from_pretrained(torch.from_numpy(weight), mode="sum")
    wrong = []

    def work(seed: int) -> None:
        for step in range(10):
            ids, offsets = bags(seed * 100 + step)
            if not torch.equal(torch.from_numpy(embedding.EmbeddingBag(table, "sum")(ids, offsets)), theirs(ids, offsets)):
                wrong.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_modules_have_a_state_and_are_copied(tmp_path: Path, table: Table, session: oc.Session, weight: np.ndarray) -> None:
    module = torch.nn.Sequential(oct.EmbeddingBag(table, "sum"), torch.nn.Linear(DIM, 2))
    file = io.BytesIO()
    torch.save(module.state_dict(), file)
    file.seek(0)
    module.load_state_dict(torch.load(file, weights_only=True))
    assert [name for name, _ in module.named_parameters()] == ["1.weight", "1.bias"]
    np.save(tmp_path / "other.npy", weight[:100])
    other = torch.nn.Sequential(
        oct.EmbeddingBag(Table.open(tmp_path / "other.npy", session=session), "sum"), torch.nn.Linear(DIM, 2)
    )
    with pytest.raises(errors.ShapeError, match="100 x 24"):
        other.load_state_dict(module.state_dict())
    with pytest.raises(AttributeError, match="on SSD"):
        module[0].weight  # noqa: B018
    ids, offsets = bags(1)
    same(module[0](ids, offsets), copy.deepcopy(module[0])(ids, offsets))
    assert "mode='sum'" in repr(module[0])


def test_a_table_is_reopened_in_a_child(table: Table, weight: np.ndarray) -> None:
    same(table[3], weight[3])
    with multiprocessing.get_context("fork").Pool(1) as pool:
        same(pool.apply(table.__getitem__, ([5, 6],)), weight[[5, 6]])
    same(pickle.loads(pickle.dumps(table))[4], weight[4])


def test_quantized_rows_are_packed_as_they_are(tmp_path: Path, session: oc.Session, weight: np.ndarray) -> None:
    small = embedding.pack(weight, tmp_path / "small", "int8", session=session)
    embedding.pack(small, tmp_path / "again", "int8", session=session)
    assert (tmp_path / "again").read_bytes() == (tmp_path / "small").read_bytes()


def test_what_is_no_matrix_of_floats_is_not_packed(tmp_path: Path, session: oc.Session, weight: np.ndarray) -> None:
    with pytest.raises(errors.DTypeError, match="the matrix is of uint8"):
        embedding.pack(weight.astype(np.uint8), tmp_path / "t", session=session)
    assert not (tmp_path / "t").exists()


def test_bfloat16_rows_are_exported_with_their_type(tmp_path: Path, session: oc.Session, weight: np.ndarray) -> None:
    packed = embedding.pack(weight, tmp_path / "packed", "bfloat16", session=session)
    embedding.export(packed, tmp_path / "t.npy", session=session)
    found = Table.open(tmp_path / "t.npy", session=session)
    assert found.encoding == "bfloat16"
    same(found[np.arange(ROWS)], packed[np.arange(ROWS)])
    assert np.load(tmp_path / "t.npy").shape == weight.shape


def test_many_small_tables_are_open_at_once(tmp_path: Path) -> None:
    np.save(tmp_path / "t.npy", np.zeros((1000, 16), np.float32))
    with oc.Session(memory="128MiB", scratch=tmp_path, allow_tmpfs_scratch=True) as session:
        tables = [Table.open(tmp_path / "t.npy", session=session) for _ in range(30)]
        for table in tables:
            table[np.arange(1000)]
            assert table.statistics.cached_rows >= 900


def test_memory_is_reserved_when_a_table_is_opened(tmp_path: Path, weight: np.ndarray, session: oc.Session) -> None:
    np.save(tmp_path / "t.npy", weight)
    with pytest.raises(errors.OverBudgetError, match="rows of tables in memory"):
        Table.open(tmp_path / "t.npy", cache="33MiB", session=session)
    kept = Table.open(tmp_path / "t.npy", cache="100KiB", session=session)
    assert kept.keep(np.arange(50)) == 50
    with pytest.raises(errors.ArgumentError, match="row -1"):
        kept.keep([3, -1])
    kept[np.arange(ROWS)]
    read = kept.statistics.units_read
    same(kept[np.arange(50)], weight[:50])
    assert kept.statistics.units_read == read and 0 < kept.statistics.hit_rate < 1
    # Another table's rows take their place.
    np.save(tmp_path / "next.npy", -weight)
    kept.replace(tmp_path / "next.npy")
    read = kept.statistics.units_read
    kept[np.arange(50, ROWS)]
    read_of_others = kept.statistics.units_read - read
    same(kept[np.arange(50)], -weight[:50])
    assert kept.statistics.units_read == read + read_of_others
    none = Table.open(tmp_path / "t.npy", cache=0, session=session)
    same(none[[1, 1, 2]], weight[[1, 1, 2]])
    assert none.statistics.cache_rows == 0


def test_a_profile_says_what_a_cache_saves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from click.testing import CliRunner

    from outcore import _embedding_profile
    from outcore._embedding_profile import profile_of
    from outcore.cli import cli

    random = np.random.default_rng(1)
    ids = random.zipf(1.3, 50_000) % 5000
    found = profile_of(ids, 128)
    assert (found.lookups, found.rows) == (50_000, len(np.unique(ids))) and abs(sum(found.shares) - 1) < 1e-9
    for policy, misses in found.misses.items():
        assert all(a >= b for a, b in itertools.pairwise(misses)), policy
        assert misses[-1] <= found.rows / found.lookups + 1e-9
    assert all(best <= other + 1e-9 for best, other in zip(found.misses["belady"], found.misses["lru"], strict=True))
    np.save(tmp_path / "ids.npy", ids.reshape(-1, 10))
    picture = tmp_path / "picture.png"
    ran = CliRunner().invoke(
        cli, ["embed", "profile", str(tmp_path / "ids.npy"), "--picture", str(picture)], catch_exceptions=False
    )
    assert ran.exit_code == 0 and "50,000 look-ups" in ran.output and picture.stat().st_size > 10_000
    hot = tmp_path / "hot.npy"
    words = ["embed", "profile", str(tmp_path / "ids.npy"), "--hot", str(hot), "--cache", "2480"]
    assert CliRunner().invoke(cli, words, catch_exceptions=False).exit_code == 0
    rows, counts = np.unique(ids, return_counts=True)
    same(np.load(hot), rows[np.argsort(-counts, kind="stable")[:10]])
    # Rows are counted in parts, look-ups come in pieces: what is counted is the same, what is sampled nearly so.
    monkeypatch.setattr(_embedding_profile, "COUNTED_ROWS", 900)
    monkeypatch.setattr(_embedding_profile, "CHUNK_IDS", 777)
    same(_embedding_profile.hottest(ids, 10), rows[np.argsort(-counts, kind="stable")[:10]])
    assert profile_of(ids, 128) == found
    monkeypatch.setattr(_embedding_profile, "EXACT_LOOKUPS", 1000)
    monkeypatch.setattr(_embedding_profile, "SAMPLED_ROWS", 1500)
    sampled = profile_of(ids, 128)
    assert sampled.shares == found.shares and sampled.misses["static"] == found.misses["static"]
    for policy, misses in sampled.misses.items():
        np.testing.assert_allclose(misses[4:], found.misses[policy][4:], atol=0.1, err_msg=policy)
    for bad in ([-1], [0.5]):
        with pytest.raises(errors.ArgumentError, match="row numbers"):
            profile_of(bad, 128)
    assert profile_of(np.empty(0, int), 128).lookups == 0
    # Few rows are all followed, however often they are looked up.
    few = profile_of(np.arange(5000) % 2, 128)
    assert {policy: misses[-1] for policy, misses in few.misses.items() if policy != "static"} == dict.fromkeys(
        ("lru", "s3-fifo", "belady"), 2 / 5000
    )


def test_checkpoints_are_packed_and_tables_exported(tmp_path: Path, session: oc.Session, weight: np.ndarray) -> None:
    model = torch.nn.ModuleDict(
        {"item": torch.nn.EmbeddingBag(300, DIM), "user": torch.nn.Embedding(200, DIM), "top": torch.nn.Linear(DIM, 1)}
    )
    torch.save(model.state_dict(), tmp_path / "model.pt")
    packed = embedding.pack(tmp_path / "model.pt", tmp_path / "items", tensor="item.weight", session=session)
    same(packed[np.arange(300)], model["item"].weight.detach())
    with pytest.raises(errors.ArgumentError, match=r"name one of its 3 matrices as tensor: item\.weight"):
        embedding.pack(tmp_path / "model.pt", tmp_path / "other", session=session)
    (tmp_path / "bad.pt").write_bytes(b"no checkpoint")
    with pytest.raises(errors.CorruptError, match=r"bad\.pt"):
        embedding.pack(tmp_path / "bad.pt", tmp_path / "other", session=session)
    half = embedding.pack(torch.from_numpy(weight).bfloat16(), tmp_path / "half", session=session)  # type: ignore[arg-type]
    for ending, dtype in ((".npy", None), (".safetensors", None), (".safetensors", "float32")):
        path = tmp_path / f"out{ending}"
        embedding.export(half, path, dtype=dtype, session=session)
        if ending == ".safetensors":
            again = Table.open(path, "weight", session=session)
            assert again.encoding == (dtype or "bfloat16")
            same(again[np.arange(ROWS)].astype("float32"), torch.from_numpy(weight).bfloat16().float())
    embedding.export(half, tmp_path / "out.pt", tensor="item", session=session)
    assert torch.equal(torch.load(tmp_path / "out.pt", weights_only=True)["item"], torch.from_numpy(weight).bfloat16())
    assert not list(tmp_path.glob("*.unfinished"))
    with pytest.raises(errors.ArgumentError, match=r"exported to a \.npy"):
        embedding.export(half, tmp_path / "out.txt", session=session)
    torch.save(model["user"].state_dict(), tmp_path / "user.pt")
    with pytest.raises(errors.ArgumentError, match="`pack` makes of it"):
        embedding.export(tmp_path / "user.pt", tmp_path / "out.npy", session=session)


def planted(seed: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Queries of six rows of one of 250 groups of eight, whose rows are far apart: ids and offsets."""
    random = np.random.default_rng(seed)
    ids = random.integers(0, 8, (count, 6)) * 250 + random.integers(0, 250, (count, 1))
    return ids.ravel(), np.arange(0, 6 * count, 6)


def test_rows_that_are_looked_up_together_share_pages(tmp_path: Path, session: oc.Session) -> None:
    ids, offsets = planted(1, 5000)
    found = embedding.placement((ids, offsets), 2000, 8, session=session)
    assert sorted(found.slots.tolist()) == list(range(2000)) and found.slots.dtype == np.uint32
    assert found.given.queries == found.placed.queries == 500 and found.given.look_ups == found.placed.look_ups
    assert found.placed.pages < 1.05 * 500 and found.given.pages > 3 * 500
    assert found.placed.rows_a_read == pytest.approx(1 / found.placed.pages_a_look_up)
    # By hand, of the queries that were held out.
    pages = [len(set(found.slots[query] // 8)) for query in ids.reshape(-1, 6)[4500:]]
    assert sum(pages) == found.placed.pages
    square = embedding.placement(ids.reshape(-1, 6), 2000, 8, session=session)
    ended = embedding.placement((ids.astype(np.int32), [*offsets, len(ids)]), 2000, 8, session=session)
    same(square.slots, found.slots)
    same(ended.slots, found.slots)
    # 7 rows a page, so that one of the eight of a group is on another.
    weight = np.random.default_rng(2).standard_normal((2000, 128)).astype("float32")
    read = {}
    for name, slots in (("given", None), ("placed", found.slots)):
        embedding.pack(weight, tmp_path / name, placement=slots, session=session)
        cold = Table.open(tmp_path / name, cache=0, session=session)
        for query in ids.reshape(-1, 6)[4500:4520]:
            same(cold[query], weight[query])
        read[name] = cold.statistics.units_read
    assert read["placed"] < 0.7 * read["given"]


def test_rows_of_several_groups_lie_on_several_pages(tmp_path: Path, session: oc.Session) -> None:
    # Half of the queries are of rows that are far apart, half of neighbours.
    far = planted(1, 4000)[0].reshape(-1, 6)
    random = np.random.default_rng(3)
    near = random.integers(0, 8, (4000, 6)) + 8 * random.integers(0, 250, (4000, 1))
    queries = random.permutation(np.concatenate([far, near]))
    weight = random.standard_normal((2000, 128)).astype("float32")
    read = []
    for ratio in (0, 1):
        found = embedding.placement(queries, 2000, 7, replicas=ratio, session=session)
        assert found.replicas.shape[1] == 7 and found.facts()["replica_pages"] == len(found.replicas)
        assert (len(found.replicas) > 0) == (ratio > 0) and len(found.replicas) <= 2000 // 7 + 1
        path = tmp_path / str(ratio)
        embedding.pack(weight, path, placement=found, session=session)
        cold = Table.open(path, cache=0, session=session)
        for query in queries[7200:7300]:
            same(cold[query], weight[query])
        read.append(cold.statistics.units_read)
        same(Table.open(path, session=session)[np.arange(2000)], weight)
        embedding.export(path, tmp_path / "out.npy", session=session)
        same(np.load(tmp_path / "out.npy"), weight)
        same(embedding.pack(path, tmp_path / "again", session=session)[:], weight)
    assert read[1] < 0.8 * read[0]
    half = embedding.pack(weight, tmp_path / "half", "float16", placement=found.slots, session=session)
    same(half[:], weight.astype("float16"))
    mapping = {"slots": found.slots, "replicas": found.replicas}
    same(embedding.pack(weight, tmp_path / "mapped", placement=mapping, session=session)[:], weight)
    assert (tmp_path / "mapped").read_bytes() == (tmp_path / "1").read_bytes()
    holed = found.replicas.copy()
    holed[0, :2] = -1, 5
    beyond = np.full((1, 7), 2000)
    for bad, encoding, text in (
        (found.replicas, "float16", "pages of 7 rows, where a page has 15"),
        (holed, None, "come before its -1"),
        (beyond, None, "has row 2000 of 2000"),
        (np.full((1, 7), -1), None, "has 0 rows"),
        (found.replicas * 0.5, None, "are integers"),
    ):
        with pytest.raises(errors.ArgumentError, match=text):
            embedding.pack(weight, tmp_path / "bad", encoding, placement={**mapping, "replicas": bad}, session=session)
    with pytest.raises(errors.ArgumentError, match="no replicas"):
        embedding.pack(weight, tmp_path / "bad", placement={"slots": found.slots}, session=session)
    with pytest.raises(errors.ArgumentError, match="2000 rows for a table of 1999"):
        embedding.pack(weight[1:], tmp_path / "bad", placement=found, session=session)


def test_frequent_rows_share_pages(session: oc.Session) -> None:
    queries = (np.array([4, 2, 4, 2, 4, 0, 5]), np.array([0, 2, 3, 5]))
    found = embedding.placement(queries, 6, 2, "frequency", held_out=0, session=session)
    same(found.slots, [2, 4, 1, 5, 0, 3])
    assert found.placed == embedding.PagesTouched(0, 0, 0) and found.placed.pages_a_look_up == 0
    empty = embedding.placement((np.array([], np.int64), np.array([], np.int64)), 3, 2, session=session)
    same(empty.slots, [0, 1, 2])


@pytest.mark.parametrize(
    ("queries", "rows", "rows_a_page", "given", "error", "text"),
    [
        (([1, 2, 6], [0]), 6, 2, {}, errors.ArgumentError, "query 0 asks for row 6 of 6"),
        (([1, 2, -1], [0]), 6, 2, {}, errors.ArgumentError, "ids are not negative, as -1 is"),
        (([1, 2, 3], [0, 2, 1]), 6, 2, {}, errors.ArgumentError, "do not decrease"),
        (([1, 2, 3], [0, 4]), 6, 2, {}, errors.ArgumentError, "do not exceed the 3 ids"),
        (([1, 2, 3], []), 6, 2, {}, errors.ArgumentError, "ids without offsets"),
        (([1.5], [0]), 6, 2, {}, errors.ArgumentError, "ids are integers, not float64"),
        (([[1]], [0]), 6, 2, {}, errors.ShapeError, "not one-dimensional"),
        (np.arange(3), 6, 2, {}, errors.ShapeError, "queries of shape"),
        (([1], [0]), 6, 0, {}, errors.ArgumentError, "a page has at least one row"),
        (([1], [0]), 6, 2, {"method": "hash"}, errors.ArgumentError, "not 'hash'"),
        (([1], [0]), 6, 2, {"held_out": 1}, errors.ArgumentError, "held_out is a share"),
        (([1], [0]), 6, 2, {"replicas": -1}, errors.ArgumentError, "replicas are 0 or more"),
        (([1], [0]), 6, 5000, {"replicas": 1}, errors.ArgumentError, "5000 rows a page"),
        (([1], [0]), (1 << 32) - 1, 2, {}, errors.ArgumentError, "fewer than 4294967295 rows"),
    ],
)
def test_bad_logs_are_refused(
    queries: Any, rows: int, rows_a_page: int, given: dict[str, Any], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        embedding.placement(queries, rows, rows_a_page, **given)


def test_the_command_places_rows(tmp_path: Path) -> None:
    import json

    from click.testing import CliRunner

    from outcore.cli import cli

    ids, offsets = planted(3, 3000)
    weight = np.random.default_rng(2).standard_normal((2000, 128)).astype("float32")
    for name, array in (("ids", ids), ("offsets", offsets), ("square", ids.reshape(-1, 6)), ("weight", weight)):
        np.save(tmp_path / f"{name}.npy", array)

    def run(*words: str) -> Any:
        paths = [str(tmp_path / word) if word.endswith((".npy", ".npz", ".packed")) else word for word in words]
        ran = CliRunner().invoke(cli, ["embed", *paths, "--json"], catch_exceptions=False)
        assert ran.exit_code == 0
        return json.loads(ran.output)

    given = ("--rows", "2000", "--row-bytes", "512")
    told = run("place", "ids.npy", "slots.npy", "--offsets", "offsets.npy", *given)
    assert told["rows_a_page"] == 7 and told["queries_held_out"] == 300
    assert told["pages_a_look_up"] < 0.5 * told["pages_a_look_up_given"]
    run("place", "square.npy", "same.npy", *given)
    same(np.load(tmp_path / "same.npy"), np.load(tmp_path / "slots.npy"))
    told = run("place", "square.npy", "slots.npz", "--replicas", "0.25", *given)
    assert told["replica_pages"] > 0
    for slots in ("slots.npy", "slots.npz"):
        run("pack", "weight.npy", "weight.packed", "--placement", slots)
        same(Table.open(tmp_path / "weight.packed")[np.arange(2000)], weight)
