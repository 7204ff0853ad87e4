"""Which values of a float32 graph bear 16 bits, by what is done with them until the outputs.

A value is rounded once where it is stored; what follows decides how much of that is seen. Products
average the errors of their operands, norms and weighted means keep their relative size, and so do
most formulas over elements. Exponentials, powers, logarithms and functions of angles enlarge it,
comparisons and integers make another answer of it, and after the last product nothing averages
it any more. So values are followed backwards from their readers: `NarrowValues.stored` are those
whose readers all bear it, through formulas and sums as well: what is added to the operand of an
exponential has to be as exact as that operand. So have the operands of a product of few terms that
is such an operand (angles of Fourier features are coordinates times a matrix): it stays float32.

A residual stream would be rounded at each of its sums, with nothing in between that averages. Where
a target carries streams in float32 they stay so, unless they would have to be converted for
products that take hardly longer than that.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from math import prod

from npusim.abi.precision import Precision
from npusim.abi.scalar import ScalarProgram
from npusim.analysis.compose import scalar_program
from npusim.analysis.residual_streams import residual_streams
from npusim.analysis.shapes import PERMUTATIONS, RESHAPES, VIEWS
from npusim.ir.graph import Graph, Node
from npusim.ir.symbolic import upper

LINEARS = ("npu.linear", "npu.gated_linear")
WEIGHTED = (*LINEARS, "npu.conv")  # x, weight, bias?, residual?: results of any dtype
MATMULS = ("aten.matmul.default", "aten.mm.default", "aten.bmm.default")
ATTENTION = "aten.scaled_dot_product_attention.default"
# Operands that are multiplied, by op.
MULTIPLIED = {
    **dict.fromkeys((*WEIGHTED, *MATMULS), 2),
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
_ADDING = frozenset(("add", "sub", "fma"))
_LAST_SHARE = 1 / 64  # of all multiply-adds that last products may have, to be left in float32
_LEAST_TERMS = 16  # of a product, to average the errors of its operands
_LEAST_SUMS = 4  # of a stream
# Multiply-adds, for each element of a stream that is converted for them, that take twenty times as
# long as that.
_WORTH_CONVERTING = 1024


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


@dataclass(frozen=True, slots=True)
class Storing:
    """What else than the dtype of their operands commands may store.

    Attributes:
        widens: products of two tensors leave their sums in float32, where those are wanted.
        carries: residual streams stay in float32.
    """

    widens: bool = False
    carries: bool = False


class NarrowValues:
    """What of a graph is multiplied and stored in 16 bits.

    Attributes:
        products: names of the nodes whose operands are multiplied so.
        stored: values that are, if those that they are made of without arithmetic are.
    """

    def __init__(self, graph: Graph, precision: Precision, storing: Storing) -> None:
        self._graph = graph
        self._stores = precision.stores
        self._widens = storing.widens
        last, self._behind = _last_products(graph)
        self.products = {n.name for n in _products(graph)} - last
        self._carried = self._streams() if storing.carries else frozenset()
        self.stored: set[str] = set()
        self._bears = dict.fromkeys(graph.output_values, _Bearing.ITS_PARTS)
        for node in reversed(graph.nodes):
            if any(v.name not in graph.static_values for v in node.outputs):
                self._visit(node)

    def _visit(self, node: Node) -> None:
        result = min((self._of_value(v.name) for v in node.outputs), default=_Bearing.NOTHING)
        if result is _Bearing.ROUNDING:
            self.stored.update(v.name for v in node.outputs if v.type.dtype == "float32")
        if result is _Bearing.NOTHING and self._passes_errors(node):
            self.products.discard(node.name)
        for position, value in enumerate(node.inputs):
            if value is not None:
                borne = self._of_operand(node, position, result)
                self._bears[value] = min(self._bears.get(value, borne), borne)

    def _of_value(self, value: str) -> _Bearing:
        bears = self._bears.get(value, _Bearing.ITS_PARTS)  # that nobody reads
        averaged = value in self._behind and value not in self._carried
        return bears if averaged else min(bears, _Bearing.ITS_PARTS)

    def _of_operand(self, node: Node, position: int, result: _Bearing) -> _Bearing:
        """Returns what a node bears of an operand, by what is borne of its results."""
        if node.op in MULTIPLIED and position < MULTIPLIED[node.op]:
            if result is _Bearing.NOTHING and self._passes_errors(node):
                return result
            if node.op in WEIGHTED or self.widens(node):
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

    def widens(self, node: Node) -> bool:
        """Tells whether a product of two tensors may leave its sums in float32."""
        return self._widens and node.op in MATMULS and not self._passes_errors(node)

    def _passes_errors(self, node: Node) -> bool:
        """Tells whether a product has too few terms to average the errors of its operands."""
        if node.op not in (*WEIGHTED, *MATMULS):
            return False
        return _terms(node, self._graph) < _LEAST_TERMS

    def _streams(self) -> frozenset[str]:
        found = residual_streams(self._graph, self._passing, _LEAST_SUMS)
        return frozenset(value for value in found if self._is_worth_converting(value))

    def _passing(self, node: Node) -> tuple[tuple[str, ...], bool]:
        """Returns the operands that come through a node with their errors as they are, and whether
        it adds any."""
        operands: tuple[str | None, ...] = ()
        adds = False
        if node.op in WEIGHTED:
            operands = node.inputs[3:]
            adds = True
        elif node.op in _KEEPING:
            operands = node.inputs[:1]
        elif node.op in _MOVING:
            operands = node.inputs
        elif (program := formula(node, self._graph)) is not None and is_mild(program):
            operands = node.inputs
            adds = not _ADDING.isdisjoint(op.op for op in program.body)
        static = self._graph.static_values
        there = tuple(i for i in operands if i is not None and i not in static)
        return there, adds and len(there) > (node.op not in WEIGHTED)

    def _is_worth_converting(self, value: str) -> bool:
        """Tells whether products read a value not at all, or take far longer than to convert it."""
        least = _WORTH_CONVERTING * prod(map(upper, self._graph.types[value].shape))
        return not 0 < self._multiplied(value) < least

    def _multiplied(self, value: str) -> int:
        """Returns the multiply-adds of the products of a value, or of views of it."""
        count = 0
        for user in self._graph.users.get(value, ()):
            if user.op in RESHAPES | PERMUTATIONS:
                count += self._multiplied(user.output.name)
            elif user.name in self.products and value in user.inputs[: MULTIPLIED[user.op]]:
                count += multiply_adds(user, self._graph)
        return count

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


def _terms(node: Node, graph: Graph) -> int:
    """Returns how many products each result of a product is the sum of, at most."""
    left, right = (graph.types[i].shape for i in node.inputs[:2] if i is not None)
    if node.op != "npu.conv":
        return upper(left[-1])
    groups = node.attrs["groups"]
    assert isinstance(groups, int)
    channels = right[0] // groups if node.attrs["transposed"] else right[1]
    return prod(map(upper, (channels, *right[2:])))


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
