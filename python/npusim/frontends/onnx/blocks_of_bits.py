"""Weights of 2, 4 and 8 bits in blocks, as ONNX Runtime's tools keep them: products and lookups.

Formulas: docs/ContribOperators.md of ONNX Runtime.
"""

from __future__ import annotations

import numpy as np
from onnx import TensorProto

from npusim.errors import ExportError
from npusim.frontends.onnx.builder import Tensor
from npusim.frontends.onnx.fusions import DOMAIN
from npusim.frontends.onnx.registry import Call, translation


@translation("MatMulNBits", domain=DOMAIN, hints=("accuracy_level",))
def _matmul_of_bits(
    call: Call,
    a: Tensor,
    b: Tensor,
    scales: Tensor,
    zeros: Tensor | None = None,
    order: Tensor | None = None,
    bias: Tensor | None = None,
) -> Tensor:
    """A linear whose weight is kept in blocks along its rows; `order` says which of them each
    column belongs to, where that is not the next one."""
    rows, columns = call.int("N"), call.int("K")
    bits, block = call.int("bits", 4), call.int("block_size")
    if bits not in (2, 4, 8):
        raise ExportError(f"weights of {bits} bits have no meaning here.")
    blocks = -(-columns // block)
    codes = _unpacked(b.view((rows, blocks, b.type.numel // (rows * blocks))), bits)
    codes = codes.view((rows, blocks * block)).to(scales.dtype, scales.kind)
    if zeros is None:
        wide = codes - float(1 << (bits - 1))
    else:
        if zeros.kind == TensorProto.UINT8:
            packed = zeros.view((rows, zeros.type.numel // rows))
            zeros = _unpacked(packed, bits).slice(1, 0, blocks).to(scales.dtype, scales.kind)
        wide = codes - _spread(zeros.view((rows, blocks)), block, order)
    weight = wide * _spread(scales.view((rows, blocks)), block, order)
    return a.op("linear.default", weight.slice(1, 0, columns), bias)


def _spread(x: Tensor, block: int, order: Tensor | None = None) -> Tensor:
    """Returns [rows, blocks] as a number for each column."""
    rows, blocks = x.shape
    if order is not None:
        missing = blocks * block - order.shape[0]  # of columns that only fill the last block
        index = order.to("int64").op("constant_pad_nd.default", [0, missing], 0)
        return x.op("index_select.default", 1, index)
    wide = x.view((rows, blocks, 1)).expand((rows, blocks, block))
    return wide.op("reshape.default", [rows, blocks * block])


@translation("GatherBlockQuantized", domain=DOMAIN)
def _gather(
    call: Call, table: Tensor, index: Tensor, scales: Tensor, zeros: Tensor | None = None
) -> Tensor:
    """Rows of a table of codes, as numbers."""
    bits, block = call.int("bits", 4), call.int("block_size", 128)
    last = table.rank - 1
    places = (call.int("gather_axis", 0) % table.rank, call.int("quantize_axis", 1) % table.rank)
    if table.rank != 2 or places != (0, last):
        raise ExportError("codes in blocks are only looked up by rows of a table.")
    packed = table.kind == TensorProto.UINT8  # other types are their own numbers
    middle = float(1 << (bits - 1)) if packed else 0.0
    flat = index.to("int64").view((index.type.numel,))

    def rows(x: Tensor) -> Tensor:
        taken = x.op("index_select.default", 0, flat)
        return taken if x is scales or not packed else _unpacked(taken, bits)

    wide = rows(table).to(scales.dtype, scales.kind)
    count = wide.shape[1]
    if zeros is None:
        wide = wide - middle
    else:
        low = rows(zeros).slice(1, 0, scales.shape[1]).to(scales.dtype, scales.kind)
        wide = wide - _spread(low, block).slice(1, 0, count)
    result = wide * _spread(rows(scales), block).slice(1, 0, count)
    return result.view((*index.shape, count))


def _unpacked(x: Tensor, bits: int) -> Tensor:
    """Returns bytes as the numbers in them, the low ones first, along the last dimension."""
    if bits == 8:
        return x
    wide = x.to("int32", TensorProto.INT32).view((*x.shape, 1))
    shifts = x.graph.known(np.arange(0, 8, bits, dtype=np.int32))
    parts = wide.op("bitwise_right_shift.Tensor", shifts)
    parts = parts.op("bitwise_and.Scalar", (1 << bits) - 1)
    return parts.view((*x.shape[:-1], x.shape[-1] * (8 // bits)))
