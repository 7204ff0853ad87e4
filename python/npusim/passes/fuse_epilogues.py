"""Fuses what follows a linear or convolution into its epilogue: bias, activation, residual.

Each is taken in when only it reads the result, perhaps through views, which move after it:
* an addition of a static value for each channel becomes the bias, or joins it; after more than a
  bias it becomes an offset, where a convolution has factors already;
* an addition of a tensor of the same shape becomes the residual, before or after the activation;
* a unary op of the target's list, or a clamp between two numbers, becomes the activation.

A group norm takes in a unary op that bears its rounding likewise.

Products of bytes that give floats take in activations and residuals likewise, where floats are the
device's: a described machine may have none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from npusim.abi.scalar import ScalarOp
from npusim.analysis.batch_norm import cast
from npusim.analysis.compose import scalar_program
from npusim.analysis.fused_nodes import (
    FLOAT_PRODUCTS,
    FusedProducer,
    channel_vector,
    channels,
    is_plain,
    producer_of,
    replay,
    reshaped,
    undo_views,
    with_bias,
)
from npusim.analysis.int8_operands import PRODUCTS, RESIDUAL
from npusim.analysis.narrow_values import is_mild
from npusim.analysis.shapes import RESHAPES, permutation
from npusim.ir.graph import Attr, Graph, Node
from npusim.ir.rewriter import Answer, Rewriter, rewrite
from npusim.ir.types import TensorType
from npusim.ops.fused import CONV_VECTORS
from npusim.targets.target_config import TargetConfig

_GROUP_NORM = "aten.group_norm.default"


def fuse_epilogues(graph: Graph, target: TargetConfig) -> Graph:
    """Returns the graph with biases, activations and residuals fused into linear and conv."""
    ops = (*FLOAT_PRODUCTS, *PRODUCTS) if target.npu is None else FLOAT_PRODUCTS

    def visit(node: Node, rewriter: Rewriter) -> Answer:
        program = scalar_program(node, rewriter)
        if program is None or len(program.body) != 1:
            return None
        instruction = program.body[0]
        if instruction.op == "add" and instruction.args == (0, 1):
            return _fuse_addition(node, target.conv_vectors >= CONV_VECTORS, ops, rewriter)
        if instruction.op in target.epilogue_activations:
            fused = _fuse_activation(node, instruction, ops, rewriter)
            mild = instruction.args == (0,) and is_mild(program) and target.npu is None
            return fused or (_activate_norm(node, instruction.op, rewriter) if mild else None)
        return None

    return rewrite(graph, visit)


def _producer(
    value: str, node: Node, ops: Sequence[str], rewriter: Rewriter
) -> FusedProducer | None:
    """Returns the product behind an operand that has the node's own dtype and shape."""
    type = rewriter.types[value]
    if (type.dtype, type.shape) != (node.type.dtype, node.type.shape):
        return None
    return producer_of(value, node, rewriter, ops)


def _fuse_activation(
    node: Node, instruction: ScalarOp, ops: Sequence[str], rewriter: Rewriter
) -> Answer:
    (x,) = node.inputs[:1]
    bounds = [a[1] for a in instruction.args[1:] if isinstance(a, tuple)]
    assert x is not None
    if instruction.args[0] != 0 or len(bounds) != len(instruction.args) - 1:
        return None
    producer = _producer(x, node, ops, rewriter)
    if producer is None or producer.node.attrs["act"] != "copy":
        return None
    lo, hi = (float(b) for b in bounds) if bounds else (0.0, 0.0)
    attrs: dict[str, Attr] = {"act": instruction.op, "act_lo": lo, "act_hi": hi}
    return _absorb(node, producer, producer.node.inputs, attrs, rewriter)


def _activate_norm(node: Node, act: str, rewriter: Rewriter) -> Answer:
    (x,) = node.inputs[:1]
    producer = _producer(x or "", node, (_GROUP_NORM,), rewriter)
    if producer is None:
        return None
    attrs: dict[str, Attr] = {
        "num_groups": producer.node.attrs["num_groups"],
        "eps": producer.node.attrs.get("eps", 1e-5),
        "act": act,
    }
    fused = replace(producer.node, op="npu.group_norm", attrs=attrs)
    return replay(producer, fused, node, rewriter)


def _fuse_addition(node: Node, offsets: bool, ops: Sequence[str], rewriter: Rewriter) -> Answer:
    a, b = (i for i in node.inputs if i is not None)
    # The later operand first: an earlier one is surely there when the fused node runs.
    for value, other in ((b, a), (a, b)):
        producer = _producer(value, node, ops, rewriter)
        if producer is None or rewriter.types[other].dtype != node.type.dtype:
            continue
        in_floats = producer.node.op in FLOAT_PRODUCTS  # else it took its bias as it was made
        fused = _fuse_bias(node, producer, other, rewriter) if in_floats else None
        if fused is None and offsets and in_floats:
            fused = _fuse_offset(node, producer, other, rewriter)
        if fused is None:
            fused = _fuse_residual(node, producer, other, rewriter)
        if fused is not None:
            return fused
    return None


def _fuse_bias(node: Node, producer: FusedProducer, other: str, rewriter: Rewriter) -> Answer:
    axis = producer.channel_axis()
    if not is_plain(producer.node) or axis is None:
        return None
    bias = channel_vector(other, axis, node.type, node, rewriter)
    if bias is None:
        return None
    x, weight, present, _ = producer.node.inputs
    bias = with_bias(present, bias, node, rewriter)
    return _absorb(node, producer, (x, weight, bias, None), {}, rewriter)


def _fuse_offset(node: Node, producer: FusedProducer, other: str, rewriter: Rewriter) -> Answer:
    x, weight, bias, addend = producer.node.inputs
    axis = producer.channel_axis()
    if bias is None or rewriter.types[bias].shape[:-1] != (2,) or axis is None:
        return None
    offset = channel_vector(other, axis, node.type, node, rewriter)
    if offset is None:
        return None
    count = channels(producer.node)
    offset = cast(reshaped(offset, (1, count), node, rewriter), "float32", node, rewriter)
    type = TensorType("float32", (CONV_VECTORS, count))
    attrs: dict[str, Attr] = {"tensors": 2, "dim": 0}
    bias = rewriter.emit("aten.cat.default", (bias, offset), type, attrs, like=node)
    return _absorb(node, producer, (x, weight, bias, addend), {}, rewriter)


def _fuse_residual(node: Node, producer: FusedProducer, other: str, rewriter: Rewriter) -> Answer:
    if producer.node.attrs["residual"] != 0 or other in rewriter.static:
        return None
    shape = rewriter.types[other].shape
    if (1,) * (node.type.rank - len(shape)) + shape != node.type.shape:
        return None
    other = reshaped(other, node.type.shape, node, rewriter)
    if not all(_cheap_to_undo(view) for view in producer.views):
        return None
    residual = undo_views(other, producer, node, rewriter)
    mode = 1 if producer.node.attrs["act"] == "copy" else 2
    at = RESIDUAL if producer.node.op in PRODUCTS else len(producer.node.inputs) - 1
    inputs = (*producer.node.inputs[:at], residual, *producer.node.inputs[at + 1 :])
    return _absorb(node, producer, inputs, {"residual": mode}, rewriter)


def _cheap_to_undo(view: Node) -> bool:
    """Tells whether a residual can be read as if from before a view.

    Reshapes can; so can moving the channels from last to second, since what is added to it comes
    channels-last from convolutions. Any other permutation would have the residual copied.
    """
    if view.op in RESHAPES:
        return True
    rank = view.type.rank
    return permutation(view, rank) == (0, rank - 1, *range(1, rank - 1))


def _absorb(
    node: Node,
    producer: FusedProducer,
    inputs: tuple[str | None, ...],
    attrs: dict[str, Attr],
    rewriter: Rewriter,
) -> Node:
    fused = replace(producer.node, inputs=inputs, attrs={**producer.node.attrs, **attrs})
    return replay(producer, fused, node, rewriter)
