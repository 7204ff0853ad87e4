"""Quantizes the weights of linears, as the target's `weight_quantization` says.

What pays and what bears it: weights of `MIN_ELEMENTS` and more. Four bits are too few for rows that
an embedding reads as well, and for the product that makes the graph's outputs: these have eight.
The parts of a concatenated weight are quantized one by one and never concatenated.

Weights that a checkpoint stores as codes of a layout there is stay what they are, whatever is
wanted: products multiply these codes, and where one cannot, the weight is computed from them.
"""

from __future__ import annotations

from npusim.abi.kernels import LINEAR_SEGMENTS
from npusim.abi.quantization import Quantization, quantized_bytes
from npusim.abi.scalar import ScalarProgram
from npusim.analysis.fused_nodes import KERNEL_DTYPES
from npusim.analysis.shapes import VIEWS, integer
from npusim.errors import TargetConstraintError
from npusim.ir.graph import Attr, Graph, Node
from npusim.ir.rewriter import Answer, Rewriter, become, rewrite
from npusim.ir.types import TensorType
from npusim.ops.fused import NO_EPILOGUE
from npusim.ops.quantized_linear import QUANTIZE, QUANTIZED_LINEAR
from npusim.ops.ranks import ALL_GATHER, RANK_PART
from npusim.ops.stored_codes import STORED_WEIGHT
from npusim.targets.target_config import TargetConfig

MIN_ELEMENTS = 4096
LINEARS = ("npu.linear", "npu.gated_linear")
_LOOKUPS = ("aten.embedding.default", "aten.index.Tensor", "aten.index_select.default")


def quantize_weights(graph: Graph, target: TargetConfig) -> Graph:
    """Returns the graph with linears over quantized weights, and without `npu.stored_weight`."""
    return _floats_of_stored(_quantized_graph(_with_stored(graph, target), target))


def _with_stored(graph: Graph, target: TargetConfig) -> Graph:
    """Returns the graph with linears over the codes that a checkpoint stores."""
    if not target.has("quantized_linear") or not _stored_nodes(graph):
        return graph

    def visit(node: Node, rewriter: Rewriter) -> Answer:
        if node.op not in LINEARS or not _is_worth_it(node, rewriter, least=0):
            return None
        parts = [rewriter.producer(part) for part in _parts(node.inputs[1] or "", rewriter)]
        stored = [part for part in parts if part is not None and part.op == STORED_WEIGHT]
        formats = {(str(part.attrs["format"]), part.attrs["group"]) for part in stored}
        if len(stored) != len(parts) or len(formats) != 1:
            return None
        ((format, group),) = formats
        assert isinstance(group, int)
        rows = [part.type.shape[0] for part in stored]
        packed = [part.inputs[1] or "" for part in stored]
        return _product(node, packed, rows, Quantization(format, group))

    return rewrite(graph, visit)


def _floats_of_stored(graph: Graph) -> Graph:
    """Returns the graph with the elements of stored weights, where something still reads them."""
    if not _stored_nodes(graph):
        return graph

    def visit(node: Node, rewriter: Rewriter) -> Answer:
        return node.inputs[0] if node.op == STORED_WEIGHT else None

    return rewrite(graph, visit)


def _stored_nodes(graph: Graph) -> bool:
    return any(node.op == STORED_WEIGHT for node in graph.nodes)


def _quantized_graph(graph: Graph, target: TargetConfig) -> Graph:
    wanted = Quantization.parse(target.weight_quantization)
    if wanted is None:
        return graph
    if not target.has("quantize", "quantized_linear"):
        raise TargetConstraintError(
            f"Target {target.name} has no kernel for quantized weights.",
            hint="Compile without quantization, or for another target.",
        )
    made: dict[tuple[str, Quantization], str] = {}

    def visit(node: Node, rewriter: Rewriter) -> Answer:
        if node.op not in LINEARS or not _is_worth_it(node, rewriter):
            return None
        parts = _parts(node.inputs[1] or "", rewriter)
        how = _bearable(wanted, node, parts, graph)
        stored = []
        for part in parts:
            if (part, how) not in made:
                made[part, how] = _quantized(part, how, node, rewriter)
            stored.append(made[part, how])
        return _product(node, stored, [rewriter.types[p].shape[0] for p in parts], how)

    return rewrite(graph, visit)


def _is_worth_it(node: Node, rewriter: Rewriter, least: int = MIN_ELEMENTS) -> bool:
    weight = node.inputs[1]
    if weight is None or weight not in rewriter.static:
        return False
    type = rewriter.types[weight]
    floats = type.dtype in KERNEL_DTYPES and node.type.dtype in KERNEL_DTYPES
    return floats and sum(_whole_size(part, rewriter) for part in _parts(weight, rewriter)) >= least


def _whole_size(part: str, rewriter: Rewriter) -> int:
    """Returns the elements of a weight; of a rank's part of one, those of all ranks' parts."""
    node, size = rewriter.producer(part), rewriter.types[part].numel
    return size * integer(node, "parts") if node is not None and node.op == RANK_PART else size


def _parts(weight: str, rewriter: Rewriter) -> list[str]:
    """Returns the weights whose rows follow one another in this one."""
    cat = rewriter.producer(weight)
    if cat is None or cat.op != "aten.cat.default" or len(cat.inputs) > LINEAR_SEGMENTS:
        return [weight]
    parts = [i for i in cat.inputs if i is not None and rewriter.types[i].rank == 2]
    alike = {rewriter.types[i].dtype for i in parts} == {cat.type.dtype}
    rows = integer(cat, "dim", 0) in (0, -2) and alike and len(parts) == len(cat.inputs)
    return parts if rows else [weight]


def _bearable(wanted: Quantization, node: Node, parts: list[str], graph: Graph) -> Quantization:
    """Returns how to quantize one product's weight."""
    looked_up = any(user.op in _LOOKUPS for part in parts for user in graph.users.get(part, ()))
    if looked_up or _makes_output(node, graph):
        return Quantization("int8")
    return wanted


def _makes_output(node: Node, graph: Graph) -> bool:
    """Tells whether a graph output is the result, as it is or viewed or in another dtype."""
    pending = [node]
    while pending:
        for value in pending.pop().outputs:
            if value.name in graph.output_values:
                return True
            for user in graph.users.get(value.name, ()):
                if user.op in VIEWS or user.op == ALL_GATHER or _converts(user):
                    pending.append(user)
    return False


def _converts(node: Node) -> bool:
    """Tells whether a node only changes a dtype."""
    if node.op == "npu.pointwise" and len(node.inputs) == 1:
        program = ScalarProgram.from_attr(node.attrs["program"])
        return all(instruction.op == "copy" for instruction in program.body)
    return node.op == "aten._to_copy.default"


def _quantized(part: str, how: Quantization, node: Node, rewriter: Rewriter) -> str:
    n, k = rewriter.types[part].shape
    type = TensorType("uint8", (quantized_bytes(how, n, k),))
    attrs: dict[str, Attr] = {"format": how.format, "group": how.group}
    return rewriter.emit(QUANTIZE, (part,), type, attrs, like=node, name=f"{part}_quantized")


def _product(node: Node, weights: list[str], rows: list[int], how: Quantization) -> Node:
    """Returns the linear over quantized weights, with the epilogue it had."""
    gated = node.op == "npu.gated_linear"
    x, _, bias, *residual = node.inputs
    attrs = {**NO_EPILOGUE, **node.attrs}
    attrs.update(rows=tuple(rows), format=how.format, group=how.group, gated=gated)
    return become(node, QUANTIZED_LINEAR, (x, *weights, bias, *(residual or [None])), attrs)
