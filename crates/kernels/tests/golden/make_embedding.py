"""Writes embedding.bin: rows as FBGEMM and PyTorch encode and decode them, and bags as they pool them.

Made with torch 2.14.1 and fbgemm-gpu-cpu 1.9.0 on a processor with AVX2 and without AVX-512. Little-endian; `Reader`
in ../embedding.rs reads it in this order.
"""

import pathlib

import fbgemm_gpu  # noqa: F401 (its operators)
import numpy as np
import torch
from fbgemm_gpu.split_embedding_configs import SparseType
from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation
from fbgemm_gpu.split_table_batched_embeddings_ops_inference import IntNBitTableBatchedEmbeddingBagsCodegen
from fbgemm_gpu.tbe.utils.quantize import quantize_embs

rng = np.random.default_rng(7)
out = bytearray()


def write(array: np.ndarray | torch.Tensor) -> None:
    out.extend(torch.as_tensor(array).contiguous().view(torch.uint8).numpy().tobytes())


def normal(dim: int, scale: float = 1.0) -> np.ndarray:
    return (scale * rng.standard_normal(dim)).astype(np.float32)


def hashed(count: int) -> np.ndarray:
    """Numbers from -1/2 to 1/2, which the test makes too."""
    bits = np.arange(count, dtype=np.uint32) * np.uint32(2654435761) >> 8
    return bits.astype(np.float32) / np.float32(1 << 24) - np.float32(0.5)


def with_values(dim: int, values: dict[int, float]) -> np.ndarray:
    row = normal(dim)
    for at, value in values.items():
        row[at] = value
    return row


nan, inf = np.nan, np.inf
finite = [normal(dim, scale) for dim, scale in [(4, 1), (8, 100), (36, 1e-4), (44, 1), (100, 0.1)]]
special = [
    np.zeros(4),
    np.full(8, 0.1),
    np.array([0.0, -0.0] * 6),
    np.array([-0.0, 0.0] * 6),
    np.array([1000.3, 1000.31, 1000.305, 1000.302]),
    normal(12, 1e-8),
    normal(12, 1e-40),
    np.array([-7e4, 7e4, 1.0, 0.0]),
    np.array([1e30, -1e30, 1.0, 0.0]),
    np.array([nan] * 12),
    with_values(44, {3: nan, 33: nan, 41: nan}),
    with_values(44, {10: inf}),
    with_values(44, {40: -inf}),
    with_values(44, {5: inf, 30: -inf}),
    with_values(52, {1: 1e12, 2: inf, 32: 1e12, 33: nan, 34: nan, 40: nan}),
    # The ends of the ranges of short floats, their ties and their subnormal numbers.
    np.array(
        [65504, 65519.99, 65520, 57344, 61439, 61440, 448, 464, 464.1, 480, 2**-24, 2**-25, 1.5 * 2**-25, 3 * 2**-26, 0.0, 1e9]
    ),
    np.array(
        [2**-9, 2**-10, 3 * 2**-11, 2**-16, 2**-17, 3 * 2**-18, 3.3961e38, 1.0 + 2**-8, 1.0 + 3 * 2**-8, 2**-133, -(2**-134), 0.1]
    ),
]
write(np.array([len(finite), len(special)], np.int32))
with np.errstate(over="ignore"):
    rows = [row.astype(np.float32) for row in finite + special]
for number, row in enumerate(rows):
    x = torch.from_numpy(row)[None]
    int8 = torch.ops.fbgemm.FloatToFusedNBitRowwiseQuantizedSBHalf(x, 8)
    int4 = torch.ops.fbgemm.FloatToFusedNBitRowwiseQuantizedSBHalf(x, 4)
    fused = torch.ops.fbgemm.FloatToFused8BitRowwiseQuantized(x)
    write(np.array([row.size], np.int32))
    write(row)
    for encoded in (int8, int4, fused):
        write(encoded)
    for dtype in (torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2):
        write(x.to(dtype).view(torch.uint8))
    if number < len(finite):
        write(torch.ops.fbgemm.FusedNBitRowwiseQuantizedSBHalfToFloat(int8, 8))
        write(torch.ops.fbgemm.FusedNBitRowwiseQuantizedSBHalfToFloat(int4, 4))
        write(torch.ops.fbgemm.Fused8BitRowwiseQuantizedToFloat(fused))

# Rows of the table-batched operators, and the sum of all of a table.
for kind in (SparseType.INT8, SparseType.INT4):
    count, dim = 4, 36
    table = torch.from_numpy(normal(count * dim).reshape(count, dim))
    operator = IntNBitTableBatchedEmbeddingBagsCodegen(
        [("", count, dim, kind, EmbeddingLocation.HOST)], device="cpu", output_dtype=SparseType.FP32
    )
    operator.initialize_weights()
    operator.assign_embedding_weights([quantize_embs(table, kind)])
    bytes_of_rows = count * (dim // (8 // kind.bit_rate()) + 4)
    write(operator.weights_host[:bytes_of_rows])
    write(operator(torch.arange(count, dtype=torch.int32), torch.tensor([0, count], dtype=torch.int32)))

# A bag of torch.nn.EmbeddingBag with 20 rows out of 5, and what becomes of it.
bag = torch.nn.functional.embedding_bag
for dim in (7, 32, 100):
    numbers = torch.from_numpy(hashed(5 * dim + 20))
    table, weights = numbers[: 5 * dim].reshape(5, dim).clone(), numbers[5 * dim :]
    ids, start = torch.arange(20) ** 2 % 5, torch.tensor([0])
    write(bag(ids, table, start, mode="sum"))
    write(bag(ids, table, start, mode="mean"))
    write(bag(ids, table, start, mode="sum", per_sample_weights=weights))
    # No id is the padding: only the way of the sum changes.
    write(bag(ids, torch.cat([table, table]), start, mode="sum", per_sample_weights=weights, padding_idx=9))
    table[0, ::2] = nan
    table[1, ::3] = nan
    write(bag(ids, table, start, mode="max"))

(pathlib.Path(__file__).parent / "embedding.bin").write_bytes(out)
