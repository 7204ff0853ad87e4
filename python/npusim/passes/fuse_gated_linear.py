"""Fuses act(gate(x)) * up(x), two products of one input, into `npu.gated_linear`.

The weight of the fused op holds the rows of the gate, then those of the other product: two weights
are concatenated in that order, one whose result was cut in two in that order is taken as it is.
Only weights that are multiplied in 16 bits are, of themselves or by the target's precision: in
float32, packed weights and two products take less time.
"""

from __future__ import annotations

from dataclasses import dataclass

from npusim.abi.precision import Precision
from npusim.analysis.compose import scalar_program
from npusim.analysis.fused_nodes import channels, is_plain
from npusim.analysis.match import of_node
from npusim.analysis.shapes import integer
from npusim.ir.graph import Attr, Graph, Node
from npusim.ir.rewriter import Answer, Rewriter, become, rewrite
from npusim.ir.types import TensorType
from npusim.targets.target_config import TargetConfig

GATED_LINEAR = "npu.gated_linear"
_DTYPES = ("bfloat16", "float16")
_SPLITS = ("aten.split.Tensor", "aten.split_with_sizes.default", "aten.chunk.default")


def fuse_gated_linear(graph: Graph, target: TargetConfig) -> Graph:
    """Returns the graph with gated products fused."""
    narrowed = Precision.parse(target.precision) is not None
    dtypes = (*_DTYPES, "float32") if narrowed else _DTYPES

    def visit(node: Node, rewriter: Rewriter) -> Answer:
        factors = of_node(node, "mul", rewriter) if len(node.outputs) == 1 else None
        if factors is None or node.type.dtype not in dtypes:
            return None
        a, b = factors
        if not isinstance(a, str) or not isinstance(b, str) or a == b:
            return None
        return _gated(node, a, b, target, rewriter) or _gated(node, b, a, target, rewriter)

    return rewrite(graph, visit)


@dataclass(frozen=True)
class _Half:
    """A value that is all channels of a linear, or half of them: the first ones or the others."""

    linear: Node
    start: int
    count: int
    reader: str  # the node that cuts it out; the linear itself for all channels


def _gated(node: Node, active: str, up: str, target: TargetConfig, rewriter: Rewriter) -> Answer:
    activation = rewriter.producer(active)
    if activation is None or not rewriter.only_feeds(active, node):
        return None
    program = scalar_program(activation, rewriter)
    if program is None or len(program.body) != 1 or len(program.body[0].args) != 1:
        return None
    act = program.body[0].op
    gate = activation.inputs[0]
    if act not in target.epilogue_activations or gate is None:
        return None
    if not rewriter.types[active] == rewriter.types[up] == rewriter.types[gate] == node.type:
        return None
    halves = (_half(gate, activation, rewriter), _half(up, node, rewriter))
    if halves[0] is None or halves[1] is None:
        return None
    operands = _operands(halves[0], halves[1], node, rewriter)
    return None if operands is None else become(node, GATED_LINEAR, operands, {"act": act})


def _half(value: str, reader: Node, rewriter: Rewriter) -> _Half | None:
    """Returns which channels of which linear a value is, if `reader` alone reads it."""
    node = rewriter.producer(value)
    if node is None or not rewriter.only_feeds(value, reader):
        return None
    if node.op == "npu.linear":
        return _Half(node, 0, channels(node), node.name) if is_plain(node) else None
    linear = rewriter.producer(node.inputs[0] if node.inputs else None)
    if linear is None or linear.op != "npu.linear" or not is_plain(linear):
        return None
    last = linear.type.rank - 1
    if integer(node, "dim", 0) % linear.type.rank != last:
        return None
    start, count = 0, rewriter.types[value].shape[last]
    if node.op in _SPLITS:
        for output in node.outputs:
            if output.name == value:
                return _Half(linear, start, count, node.name)
            start += output.type.shape[last]
    if node.op != "aten.slice.Tensor" or integer(node, "step", 1) != 1:
        return None
    bounds = slice(node.attrs.get("start"), node.attrs.get("end"))
    return _Half(linear, bounds.indices(channels(linear))[0], count, node.name)


def _operands(
    gate: _Half, up: _Half, like: Node, rewriter: Rewriter
) -> tuple[str | None, ...] | None:
    """Returns x, weight and bias of both products as one."""
    x, weight, bias, _ = gate.linear.inputs
    if gate.linear is up.linear:
        n = gate.count
        alone = rewriter.uses(gate.linear.output.name) == len({gate.reader, up.reader})
        whole = (gate.start, up.start, channels(gate.linear)) == (0, n, 2 * n)
        return (x, weight, bias) if whole and alone else None
    whole = all(half.count == channels(half.linear) for half in (gate, up))
    if not whole or up.linear.inputs[0] != x or weight is None or up.linear.inputs[1] is None:
        return None
    types = [rewriter.types[half.linear.inputs[1] or ""] for half in (gate, up)]
    if types[0] != types[1]:
        return None
    joined = _joined(weight, up.linear.inputs[1], like, rewriter)
    biases = [half.linear.inputs[2] for half in (gate, up)]
    if biases == [None, None]:
        return x, joined, None
    first, second = (b or _zeros(gate.count, types[0].dtype, like, rewriter) for b in biases)
    return x, joined, _joined(first, second, like, rewriter)


def _joined(a: str, b: str, like: Node, rewriter: Rewriter) -> str:
    """Emits the rows of both, one after the other."""
    type = rewriter.types[a]
    both = TensorType(type.dtype, (2 * type.shape[0], *type.shape[1:]))
    return rewriter.emit("aten.cat.default", (a, b), both, {"tensors": 2, "dim": 0}, like=like)


def _zeros(count: int, dtype: str, like: Node, rewriter: Rewriter) -> str:
    attrs: dict[str, Attr] = {"size": (count,), "fill_value": 0, "dtype": dtype}
    return rewriter.emit("aten.full.default", (), TensorType(dtype, (count,)), attrs, like=like)
