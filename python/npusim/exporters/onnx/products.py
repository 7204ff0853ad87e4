"""Matrix products and linears."""

from __future__ import annotations

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
