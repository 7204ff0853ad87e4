"""Pointwise operators with an ONNX operator of their own; all others are scalar programs."""

from __future__ import annotations

from npusim.exporters.onnx import scalar
from npusim.exporters.onnx.registry import Call, Tensor, translation
from npusim.ir.opdef import find


def _as_program(call: Call, *operands: Tensor) -> Tensor:
    definition = find(call.node.op)
    assert definition is not None and definition.scalar is not None
    program = definition.scalar(call.node, call.graph)
    assert program is not None
    return scalar.emit(call, program, operands)


@translation("aten._to_copy.default", "aten.to.dtype")
def _convert(call: Call, x: Tensor) -> Tensor:
    return call.cast(x, call.type.dtype)


@translation("aten.leaky_relu.default")
def _leaky_relu(call: Call, x: Tensor) -> Tensor:
    if x.dtype == "float64":  # attributes of ONNX are float32
        return _as_program(call, x)
    return call.op("LeakyRelu", x, alpha=float(call.attr("negative_slope", 0.01)))


@translation("aten.elu.default")
def _elu(call: Call, x: Tensor) -> Tensor:
    alpha, scale, inner = (float(call.attr(k, 1)) for k in ("alpha", "scale", "input_scale"))
    if inner != 1 or x.dtype == "float64":
        return _as_program(call, x)
    if scale == 1:
        return call.op("Elu", x, alpha=alpha)
    return call.op("Selu", x, alpha=alpha, gamma=scale)


@translation("aten.hardtanh.default", "aten.clamp.default", "aten.relu6.default")
def _clip(call: Call, x: Tensor) -> Tensor:
    names = ("min_val", "max_val") if "min_val" in call.node.attrs else ("min", "max")
    bounds = [call.attr(name) for name in names]
    if call.node.op == "aten.relu6.default":
        bounds = [0, 6]
    dtype = call.type.dtype
    if dtype in ("int16", "bool"):  # which Clip does not take
        return _as_program(call, x)
    low, high = (None if b is None else call.const(b, dtype) for b in bounds)
    return call.op("Clip", call.cast(x, dtype), low, high)


@translation("aten.softplus.default")
def _softplus(call: Call, x: Tensor) -> Tensor:
    """Beyond the threshold PyTorch returns x, from which the whole formula differs by rounding."""
    beta, threshold = float(call.attr("beta", 1)), float(call.attr("threshold", 20))
    if threshold < 20:
        return _as_program(call, x)
    if beta == 1:
        return call.op("Softplus", x)
    scaled = call.op("Softplus", call.op("Mul", x, call.const(beta, x.dtype)))
    return call.op("Div", scaled, call.const(beta, x.dtype))
