"""Tensors made from nothing but numbers: one value everywhere, or a constant."""

from __future__ import annotations

import torch

from npusim.exporters.onnx.builder import NoForm, tensor_proto
from npusim.exporters.onnx.registry import Call, Tensor, translation
from npusim.ir.symbolic import is_symbolic
from npusim.ops.reference import run_node

_SCALARS = 16  # a constant of at most so many elements is written out


@translation(
    *("aten.full.default", "aten.zeros.default", "aten.ones.default", "aten.scalar_tensor.default"),
    *("aten.arange.default", "aten.arange.start", "aten.arange.start_step"),
    *("aten.linspace.default", "aten.eye.default", "aten.eye.m"),
    *("aten.tril_indices.default", "aten.triu_indices.default"),
)
def _known(call: Call) -> Tensor:
    if is_symbolic((call.type.shape, *call.node.attrs.values())):
        return _of_sizes(call)
    (data,) = run_node(call.node, [])
    flat = data.reshape(-1)
    if data.numel() > _SCALARS and bool((flat == flat[0]).all()):
        return filled(call, flat[:1])
    return call.builder.constant(data)


def _of_sizes(call: Call) -> Tensor:
    """The same where calls choose the size, or a number that is one."""
    name, dtype = call.node.op.split(".")[1], call.type.dtype
    if name in ("full", "zeros", "ones", "scalar_tensor"):
        value = {"zeros": 0, "ones": 1}.get(name, call.attr("fill_value", call.attr("s")))
        return call.expand(call.const(value, dtype), call.type.shape)
    if name == "arange" and dtype in ("int64", "int32"):
        bounds = (call.attr("start", 0), call.attr("end"), call.attr("step", 1))
        if all(isinstance(bound, int) for bound in bounds):
            numbers = [call.const(bound, "int64") for bound in bounds]
            return call.cast(call.op("Range", *numbers, shape=call.type.shape), dtype)
    raise NoForm(f"{name} over sizes that calls choose")


@translation(
    *("aten.empty.memory_format", "aten.empty_strided.default", "aten.empty_permuted.default"),
    *("aten.empty_like.default", "aten.new_empty_strided.default"),
)
def _unspecified(call: Call, *_: Tensor) -> Tensor:
    return filled(call, torch.zeros(1, dtype=getattr(torch, call.type.dtype)))


@translation("aten.full_like.default", "aten.fill.Scalar")
def _full(call: Call, x: Tensor) -> Tensor:
    value = call.attr("fill_value" if "fill_value" in call.node.attrs else "value")
    return filled(call, torch.tensor([value]).to(getattr(torch, call.type.dtype)))


@translation("aten.zeros_like.default", "aten.ones_like.default")
def _like(call: Call, x: Tensor) -> Tensor:
    value = int(call.node.op == "aten.ones_like.default")
    return filled(call, torch.tensor([value]).to(getattr(torch, call.type.dtype)))


@translation("aten.fill.Tensor")
def _fill(call: Call, x: Tensor, value: Tensor) -> Tensor:
    return value


def filled(call: Call, value: torch.Tensor) -> Tensor:
    """Returns one value (a tensor of one element) in the shape of the node's result."""
    shape = call.type.shape
    return call.op(
        "ConstantOfShape", call.ints(shape), dtype=str(value.dtype).removeprefix("torch."),
        shape=shape, value=tensor_proto("", value),
    )  # fmt: skip
