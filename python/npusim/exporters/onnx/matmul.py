"""Matrix products and linears."""

from __future__ import annotations

from npusim.exporters.onnx.builder import NoForm
from npusim.exporters.onnx.registry import Call, Tensor, translation
from npusim.ops.fused import broadcast_shapes


def matmul(call: Call, a: Tensor, b: Tensor) -> Tensor:
    """Returns the product as `torch.matmul` has it."""
    batch = broadcast_shapes(a.shape[:-2], b.shape[:-2])
    rows = a.shape[-2:-1] if a.rank > 1 else ()
    columns = b.shape[-1:] if b.rank > 1 else ()
    return call.op("MatMul", a, b, shape=(*batch, *rows, *columns))


def linear(call: Call, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Returns x · weightᵀ + bias; of a matrix as one Gemm."""
    if x.rank == 2 and weight.rank == 2 and (bias is None or bias.rank <= 2):
        shape = (x.shape[0], weight.shape[0])
        return call.op("Gemm", x, weight, bias, shape=shape, transB=1)
    turned = call.transpose(weight, range(weight.rank)[::-1])
    product = matmul(call, x, turned)
    return product if bias is None else call.broadcast("Add", product, bias)


@translation("aten.mm.default", "aten.bmm.default", "aten.matmul.default", "aten.mv.default")
@translation("aten.dot.default")
def _matmul(call: Call, a: Tensor, b: Tensor) -> Tensor:
    return matmul(call, a, b)


@translation("aten.linear.default")
def _linear(call: Call, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    return linear(call, x, weight, bias)


@translation("aten.addmm.default")
def _addmm(call: Call, c: Tensor, a: Tensor, b: Tensor) -> Tensor:
    # An attribute would round float64's factors; of sums of nothing Gemm is not clear.
    if not a.is_float or a.dtype == "float64" or 0 in a.shape:
        return _scaled_sum(call, c, a, b)
    alpha, beta = float(call.attr("alpha", 1)), float(call.attr("beta", 1))
    return call.op("Gemm", a, b, c, shape=call.type.shape, alpha=alpha, beta=beta)


@translation("aten.baddbmm.default", "aten.addmv.default")
def _scaled_sum(call: Call, c: Tensor, a: Tensor, b: Tensor) -> Tensor:
    product = _scaled(call, matmul(call, a, b), call.attr("alpha", 1))
    return call.broadcast("Add", _scaled(call, c, call.attr("beta", 1)), product)


def _scaled(call: Call, x: Tensor, factor: float) -> Tensor:
    return x if factor == 1 else call.op("Mul", x, call.const(factor, x.dtype))


@translation("aten._grouped_mm.default", "transformers.grouped_mm_fallback.default")
def _grouped_matmul(
    call: Call, a: Tensor, b: Tensor, offsets: Tensor | None = None, bias: Tensor | None = None
) -> Tensor:
    """Multiplies all rows by each group's matrix, and keeps of each row its own group's product."""
    if bias is not None:
        raise NoForm("a bias of groups")
    products = matmul(call, a, b)
    if offsets is None:
        return products
    groups, rows = b.shape[0], a.shape[0]
    ends = call.reshape(call.cast(offsets, "int64"), (groups, 1))
    row, group = call.ints(range(rows)), call.reshape(call.ints(range(groups)), (groups, 1))
    before = call.cast(call.broadcast("LessOrEqual", ends, row, dtype="bool"), "int64")
    own = call.reduce("ReduceSum", before, (0,), False)  # groups that end before a row
    kept = call.broadcast("Equal", own, group, dtype="bool")
    zero = call.const(0.0, products.dtype)
    parts = call.broadcast(
        "Where", call.reshape(kept, (groups, rows, 1)), products, zero, dtype=products.dtype
    )
    return call.reduce("ReduceSum", parts, (0,), False)
