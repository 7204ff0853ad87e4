"""Folds a constant factor after a linear or convolution into its weights.

A number, or a static factor for each output channel (layer scale), multiplies or divides weight
and bias at load instead of the result at every run. Views in between do not matter. Factors that
could take weights out of their dtype's range stay: 0, NaN, what is far from 1, and in float16,
whose least numbers are close to weights, all that are not known now.
"""

from __future__ import annotations

from dataclasses import replace

from npusim.analysis.compose import scalar_program
from npusim.analysis.fused_nodes import (
    FusedProducer,
    channel_vector,
    is_plain,
    producer_of,
    replay,
    scaled,
)
from npusim.analysis.uniform import uniform_value
from npusim.ir.graph import Attr, Graph, Node
from npusim.ir.rewriter import Answer, Rewriter, rewrite
from npusim.ir.symbolic import is_symbolic
from npusim.targets.target_config import TargetConfig


def fold_scale(graph: Graph, target: TargetConfig) -> Graph:
    """Returns the graph with constant factors moved into the weights before them."""
    return rewrite(graph, _visit)


def _visit(node: Node, rewriter: Rewriter) -> Answer:
    program = scalar_program(node, rewriter)
    if program is None or len(program.body) != 1 or program.body[0].op not in ("mul", "div"):
        return None
    instruction = program.body[0]
    op = f"aten.{instruction.op}"
    operands = [i for i in node.inputs if i is not None]
    for position, argument in enumerate(instruction.args):
        other = instruction.args[1 - position]
        if not isinstance(argument, int) or (position and instruction.op == "div"):
            continue
        producer = producer_of(operands[argument], node, rewriter)
        if producer is None or not is_plain(producer.node):
            continue
        type = rewriter.types[operands[argument]]
        if (type.dtype, type.shape) != (node.type.dtype, node.type.shape):
            continue
        factor = other[1] if isinstance(other, tuple) else operands[other]
        folded = _fold(node, producer, op, factor, rewriter)
        if folded is not None:
            return folded
    return None


def _fold(
    node: Node, producer: FusedProducer, op: str, factor: str | float, rewriter: Rewriter
) -> Answer:
    conv = producer.node
    number = uniform_value(factor, rewriter) if isinstance(factor, str) else factor
    if number is None and conv.op == "npu.linear" and node.type.dtype == "float16":
        return None
    if number is not None:
        if not _is_moderate(number, node.type.dtype):
            return None
        weight, bias = conv.inputs[1:3]
        if bias is None or rewriter.types[bias].rank == 1:  # else it has factors
            weight = _times(weight, op, number, node, rewriter)
        bias = _times(bias, op, number, node, rewriter)
    else:
        pair = _per_channel(node, producer, op, str(factor), rewriter)
        if pair is None:
            return None
        weight, bias = pair
    folded = replace(conv, inputs=(conv.inputs[0], weight, bias, None))
    return replay(producer, folded, node, rewriter)


def _is_moderate(number: float, dtype: str) -> bool:
    """Tells whether weights times a number, or divided by it, stay well within their range."""
    limit = 2.0 ** (6 if dtype == "float16" else 32)
    return is_symbolic(number) or 1 / limit <= abs(number) <= limit


def _times(value: str | None, op: str, number: float, like: Node, rewriter: Rewriter) -> str | None:
    if value is None:
        return None
    attrs: dict[str, Attr] = {"other": number}
    return rewriter.emit(f"{op}.Scalar", (value,), rewriter.types[value], attrs, like=like)


def _per_channel(
    node: Node, producer: FusedProducer, op: str, factor: str, rewriter: Rewriter
) -> tuple[str, str | None] | None:
    axis = producer.channel_axis()
    if axis is None or rewriter.types[factor].dtype != node.type.dtype:
        return None
    vector = channel_vector(factor, axis, node.type, node, rewriter)
    if vector is None:
        return None
    return scaled(producer.node, vector, f"{op}.Tensor", rewriter)
