"""Which values of a float32 graph bear 16 bits, by what is done with them until the outputs.

A value is rounded once where it is stored; what follows decides how much of that is seen. Products
average the errors of their operands, norms and weighted means keep their relative size, and so do
most formulas over elements. Exponentials, powers, logarithms and functions of angles enlarge it,
comparisons and integers make another answer of it, and after the last product nothing averages
it any more. So values are followed backwards from their readers: `NarrowValues.stored` are those
whose readers all bear it, through formulas and sums as well: what is added to the operand of an
exponential has to be as exact as that operand.
"""

from __future__ import annotations

from enum import IntEnum
from math import prod

from npusim.abi.precision import Precision
from npusim.abi.scalar import ScalarProgram
from npusim.analysis.compose import scalar_program
from npusim.analysis.shapes import VIEWS
from npusim.ir.graph import Graph, Node
from npusim.ir.symbolic import upper

LINEARS = ("npu.linear", "npu.gated_linear")
WEIGHTED = (*LINEARS, "npu.conv")  # x, weight, bias?, residual?: results of any dtype
_MATMULS = ("aten.matmul.default", "aten.mm.default", "aten.bmm.default")
ATTENTION = "aten.scaled_dot_product_attention.default"
# Operands that are multiplied, by op.
MULTIPLIED = {
    **dict.fromkeys((*WEIGHTED, *_MATMULS), 2),
    ATTENTION: 3,
}
# Computed in float32 whatever their operand is stored in, and their result is stored alike.
_KEEPING = {"npu.group_norm"} | frozenset(
    f"aten.{name}"
    for name in (
        *("layer_norm.default", "rms_norm.default", "group_norm.default", "instance_norm.default"),
        *(f"{kind}_pool{d}d.default" for kind in ("avg", "adaptive_avg") for d in (1, 2, 3)),
        *(f"_adaptive_avg_pool{d}d.default" for d in (2, 3)),
        *(f"upsample_{mode}.vec" for mode in ("bilinear2d", "linear1d", "trilinear3d")),
    )
)
MEAN = "aten.mean.dim"
# Elements are moved, none is computed.
_MOVING = VIEWS | frozenset(
    f"aten.{name}"
    for name in (
        *("cat.default", "stack.default", "clone.default", "contiguous.default", "flip.default"),
        *("repeat.default", "roll.default", "pixel_shuffle.default", "pixel_unshuffle.default"),
        *("constant_pad_nd.default", "channel_shuffle.default", "native_channel_shuffle.default"),
        *(f"max_pool{d}d.default" for d in (1, 2, 3)),
        *(f"upsample_nearest{d}d.vec" for d in (1, 2, 3)),
    )
)
# Formulas in which a relative error of an operand stays of its size in the result.
_MILD = frozenset(
    (
        *("copy", "neg", "abs", "sqrt", "rsqrt", "reciprocal", "tanh", "sigmoid", "erf", "relu"),
        *("gelu", "gelu_tanh", "silu", "hardswish", "hardsigmoid", "softplus", "mish", "to_f"),
        *("add", "sub", "mul", "div", "maximum", "minimum", "fma", "clamp", "where", "atan"),
    )
)
_COMPARISONS = frozenset(("eq", "ne", "lt", "le", "gt", "ge"))
_LAST_SHARE = 1 / 16  # of all multiply-adds that last products may have, to be left in float32


def is_mild(program: ScalarProgram) -> bool:
    """Tells whether a formula bears rounded operands.

    Comparisons with 0 are: rounding changes no sign.
    """
    return all(
        op.op in _MILD or (op.op in _COMPARISONS and op.cls == "f" and ("const", 0) in op.args)
        for op in program.body
    )


class _Bearing(IntEnum):
    """What the readers of a value bear; the least of them decides."""

    NOTHING = 0  # an error of it, or of what it is made of, becomes a larger one
    ITS_PARTS = 1  # it stays float32, but what it is made of may be rounded
    ROUNDING = 2


class NarrowValues:
    """What of a graph is multiplied and stored in 16 bits.

    Attributes:
        products: names of the nodes whose operands are.
        stored: values that are, if those that they are made of without arithmetic are.
    """

    def __init__(self, graph: Graph, precision: Precision) -> None:
        self._graph = graph
        self._stores = precision.stores
        last, self._behind = _last_products(graph)
        self.products = frozenset(n.name for n in _products(graph)) - last
        self.stored: set[str] = set()
        self._bears = dict.fromkeys(graph.output_values, _Bearing.ITS_PARTS)
        for node in reversed(graph.nodes):
            if any(v.name not in graph.static_values for v in node.outputs):
                self._visit(node)

    def _visit(self, node: Node) -> None:
        result = min((self._of_value(v.name) for v in node.outputs), default=_Bearing.NOTHING)
        if result is _Bearing.ROUNDING:
            self.stored.update(v.name for v in node.outputs if v.type.dtype == "float32")
        for position, value in enumerate(node.inputs):
            if value is not None:
                borne = self._of_operand(node, position, result)
                self._bears[value] = min(self._bears.get(value, borne), borne)

    def _of_value(self, value: str) -> _Bearing:
        bears = self._bears.get(value, _Bearing.ITS_PARTS)  # that nobody reads
        return bears if value in self._behind else min(bears, _Bearing.ITS_PARTS)

    def _of_operand(self, node: Node, position: int, result: _Bearing) -> _Bearing:
        """Returns what a node bears of an operand, by what is borne of its results."""
        if node.op in MULTIPLIED and position < MULTIPLIED[node.op]:
            if node.op in WEIGHTED:
                multiplied = node.name in self.products
                return _Bearing.ROUNDING if multiplied else _Bearing.ITS_PARTS
            return result  # which has the dtype of the operands
        if node.op in _MOVING:
            return result
        if node.op in _KEEPING and position == 0:
            return result if self._stores else min(result, _Bearing.ITS_PARTS)
        if result is _Bearing.NOTHING or not self._is_mild(node, position):
            return _Bearing.NOTHING
        return _Bearing.ROUNDING if self._stores else _Bearing.ITS_PARTS

    def _is_mild(self, node: Node, position: int) -> bool:
        """Tells whether a relative error of an operand is one of that size in the result."""
        if len(node.outputs) != 1 or node.type.dtype != "float32":
            return False
        if node.op in WEIGHTED or node.op == MEAN:
            return position in (0, 3)  # the residual
        program = formula(node, self._graph)
        return program is not None and is_mild(program)


def formula(node: Node, graph: Graph) -> ScalarProgram | None:
    """Returns what a node computes of each element; None where it is no formula over elements."""
    if node.op == "npu.pointwise":
        return ScalarProgram.from_attr(node.attrs["program"])
    return scalar_program(node, graph)


def multiply_adds(node: Node, graph: Graph) -> int:
    """Returns how many multiply-adds a product has, of symbolic sizes the greatest."""
    left, right = (graph.types[i].shape for i in node.inputs[:2] if i is not None)
    if node.op == "npu.conv":
        moved = left if node.attrs["transposed"] else node.type.shape
        return prod(map(upper, (*moved, *right[1:]))) if right else 0
    if node.op == "npu.gated_linear":
        return 2 * prod(map(upper, (*node.type.shape, left[-1])))
    depth = left[-1] if node.op != ATTENTION else left[-1] + right[-2]
    return prod(map(upper, (*node.type.shape, depth)))


def _products(graph: Graph) -> list[Node]:
    """Returns the products of float32 that calls compute."""
    return [
        node
        for node in graph.nodes
        if node.op in MULTIPLIED
        and node.type.dtype == "float32"
        and node.output.name not in graph.static_values
    ]


def _last_products(graph: Graph) -> tuple[frozenset[str], set[str]]:
    """Returns the products behind which there is none, if they are cheap, and what is multiplied.

    The second are all values that a product comes behind.
    """
    products = _products(graph)
    behind: set[str] = set()
    last = []
    for node in reversed(graph.nodes):
        is_product = node.op in MULTIPLIED
        followed = any(v.name in behind for v in node.outputs)
        if is_product and not followed:
            last.append(node)
        if is_product or followed:
            behind.update(i for i in node.inputs if i is not None)
    last = [node for node in last if node in products]
    share = sum(multiply_adds(node, graph) for node in last)
    total = sum(multiply_adds(node, graph) for node in products)
    cheap = share <= _LAST_SHARE * total
    return frozenset(n.name for n in last if cheap), behind
