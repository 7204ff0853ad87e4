"""Operators over symbolic sizes: one program, compared with PyTorch at several sizes.

Every case's operands get a symbolic size in each dimension that PyTorch can leave open. Sizes of
1, 2, odd ones, and the greatest are called.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim

import npusim
from npusim.ir.opdef import Case, find
from npusim.ir.symbolic import Symbol, evaluate
from npusim.ops import schema
from npusim.selftest.single_op import assert_close, attributes, tensors_for

# One of each way in which a lowering reads sizes.
OPS = (
    *("add.Tensor", "where.self", "clamp.default", "gelu.default", "masked_fill.Scalar"),
    *("permute.default", "slice.Tensor", "select.int"),
    *("cat.default", "stack.default", "flip.default", "roll.default", "repeat.default"),
    *("constant_pad_nd.default", "split_with_sizes.default", "unfold.default"),
    *("sum.dim_IntList", "mean.dim", "var.correction", "argmax.default", "max.dim"),
    *("cumsum.default", "cummax.default", "logsumexp.default", "softmax.int", "_softmax.default"),
    *("layer_norm.default", "rms_norm.default"),
    *("mm.default", "bmm.default", "matmul.default", "addmm.default", "linear.default"),
    *("embedding.default", "gather.default", "index_select.default", "index.Tensor"),
    *("max_pool2d.default", "avg_pool2d.default", "adaptive_avg_pool2d.default"),
    *("tril.default", "triu.default", "select_scatter.default"),
)


class Call(nn.Module):
    """Calls an operator with a case's attributes."""

    def __init__(self, op: str, case: Case, dtype: str) -> None:
        super().__init__()
        self.op, self.attrs = schema.resolve(op), attributes(op, case, dtype)
        self.given = [entry is not None for entry in case.inputs]

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        rest = iter(tensors)
        operands = [next(rest) if given else None for given in self.given]
        return tuple(schema.result_leaves(schema.call(self.op, operands, self.attrs)))


def resized(tensor: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Returns a tensor of another shape: cut, or repeated."""
    for dim, size in enumerate(shape):
        if size != tensor.shape[dim]:
            tensor = tensor.index_select(dim, torch.arange(size) % tensor.shape[dim])
    return tensor.contiguous()


def assignments(symbols: tuple[Symbol, ...]) -> list[dict[str, int]]:
    """Returns sizes to call: the greatest, the least, 2, odd ones in between, and a mixture."""
    chosen = (
        [s.high for s in symbols],
        [s.low for s in symbols],
        [max(s.low, 2) for s in symbols],
        [(s.low + s.high) // 2 | 1 for s in symbols],
        [s.high - 1 if i % 2 else max(s.low, 3) for i, s in enumerate(symbols)],
    )
    return [{s.name: n for s, n in zip(symbols, row, strict=True)} for row in chosen]


@pytest.mark.parametrize("name", OPS)
def test_op(name: str) -> None:
    op = find(f"aten.{name}")
    assert op is not None
    case, dtype = op.cases[0], op.dtypes[0]
    tensors = [t for t in tensors_for(case, dtype, name) if t is not None]
    model = Call(op.name, case, dtype).eval()
    shapes = tuple(
        {d: Dim.AUTO(max=3 * n + 5) for d, n in enumerate(t.shape) if n > 1} for t in tensors
    )
    graph = npusim.extract_ir(model, tuple(tensors), dynamic_shapes=(shapes,))
    assert graph.symbols
    session = npusim.load(npusim.compile(graph), device="cpu", threads=2)
    compared = 0
    for sizes in assignments(graph.symbols):
        given = [
            resized(t, tuple(evaluate(d, sizes) for d in value.type.shape))
            for t, value in zip(tensors, graph.inputs, strict=True)
        ]
        try:
            expected = model(*given)
        except (RuntimeError, IndexError):  # attributes of the case that these sizes do not allow
            continue
        for got, want in zip(session(*given), expected, strict=True):
            assert_close(got, want, 2 * op.tolerance, f"{name} at {sizes}")
        compared += 1
    assert compared >= 2
