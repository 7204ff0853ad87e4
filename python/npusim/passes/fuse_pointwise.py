"""Fuses chains of pointwise nodes, broadcasting included, into one `npu.pointwise` each.

A producer is taken in when only the consumer reads it and both have the same shape, so that no
element is ever computed twice, and when the program stays within the target's limits. Where code is
generated, a few comparisons and sums of one value are computed by each reader: a launch, a result
that is written and what reads it cost more. Constants
that hold one number become literals. What is computed at load from weights is never taken into
what is computed at every run.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

from npusim.abi.scalar import ScalarProgram
from npusim.analysis.compose import scalar_program
from npusim.analysis.cone import Cone
from npusim.errors import SymbolicSizeError
from npusim.ir.graph import Graph, Node
from npusim.ir.rewrite import drop_dead
from npusim.ir.rewriter import Rewriter, become, reading, whole
from npusim.targets.target_config import TargetConfig

_MOST_AGAIN = 12  # operations that are done again in each reader
_QUICK = frozenset(
    (
        *(
            "add",
            "sub",
            "mul",
            "neg",
            "abs",
            "minimum",
            "maximum",
            "copy",
            "floor",
            "ceil",
            "round",
        ),
        *("trunc", "ge", "gt", "le", "lt", "eq", "ne", "where", "to_bool", "to_i", "to_f"),
        *("bitwise_and", "bitwise_or", "bitwise_xor", "bitwise_not", "logical_not"),
    )
)


def fuse_pointwise(graph: Graph, target: TargetConfig) -> Graph:
    """Returns the graph with pointwise chains fused.

    Goes backwards, from the end of each chain: what one program cannot hold ends another one.
    """
    index = whole(graph)
    inside: set[str] = set()  # values that are computed in the program of their reader
    kept: set[str] = set()  # values that programs read as they are
    fused: dict[str, Node] = {}
    cheap = _cheap(graph, index) if target.code_format else frozenset()
    for node in reversed(graph.nodes):
        if node.outputs[0].name in inside:
            continue
        grown = None
        with reading(node), suppress(SymbolicSizeError):
            program = scalar_program(node, index)
            if program is None:
                continue
            cone = Cone(node, program, index, cheap, kept)
            grown = _grow(cone, target)
        if grown is not None:
            inside.update(value for value in cone.taken if value not in cone.again)
            fused[node.name] = grown
            kept.update(i for i in grown.inputs if i is not None)
    if not fused:
        return graph
    nodes = (fused.get(n.name, n) for n in graph.nodes if n.outputs[0].name not in inside)
    return drop_dead(replace(graph, nodes=tuple(nodes)))


def _cheap(graph: Graph, index: Rewriter) -> frozenset[str]:
    """Returns values that a few quick operations make of one value, for pointwise readers alone."""
    made_of: dict[str, tuple[str, int]] = {}  # the value, and how many operations
    for node in graph.nodes:
        value = node.outputs[0]
        with reading(node), suppress(SymbolicSizeError):
            program = scalar_program(node, index)
            quick = program is not None and {op.op for op in program.body} <= _QUICK
            if program is None or not quick or value.name in index.static:
                continue
            given = [made_of.get(i, (i, 0)) for i in node.inputs if i is not None]
            sources, length = {name for name, _ in given}, len(program.body)
            length += sum(count for _, count in given)
            same = all(graph.types[name].shape == value.type.shape for name in sources)
            if len(sources) == 1 and same and length <= _MOST_AGAIN:
                made_of[value.name] = (sources.pop(), length)
    return frozenset(
        v for v in made_of if v not in graph.output_values and _for_formulas(v, graph, index)
    )


def _for_formulas(value: str, graph: Graph, index: Rewriter) -> bool:
    """Tells whether all readers of a value are pointwise, of its shape."""
    shape = graph.types[value].shape
    return all(
        user.outputs[0].type.shape == shape and scalar_program(user, index) is not None
        for user in graph.users[value]
    )


def _grow(cone: Cone, target: TargetConfig) -> Node | None:
    """Returns the cone's root with all it can take in, or None when that is nothing."""
    refused: set[str] = set()
    while (value := cone.candidate(refused)) is not None:
        cone.take(value)
        may_not_fit = (
            cone.size > target.pointwise_instructions
            or len(cone.operands()) > target.pointwise_inputs
        )
        if may_not_fit and not _fits(*cone.program(), target):
            refused.add(cone.give_back())
    while cone.taken or cone.has_literals():
        program, operands = cone.program()
        # What is known whatever an operand holds is not read; the shape may need it all the same.
        if operands and cone.has_shape_of(operands) and _fits(program, operands, target):
            attrs = {"program": program.to_attr(), "dtype": cone.root.type.dtype}
            return become(cone.root, "npu.pointwise", operands, attrs)  # type: ignore[arg-type]
        if not cone.taken:
            return None
        cone.give_back()
    return None


def _fits(program: ScalarProgram, operands: list[str], target: TargetConfig) -> bool:
    from npusim.lowering.pointwise_kernel import register_pressure

    return (
        len(operands) <= target.pointwise_inputs
        and len(program.body) <= target.pointwise_instructions
        and register_pressure(program) <= target.pointwise_registers
    )
