"""Fuses chains of pointwise nodes, broadcasting included, into one `npu.pointwise` each.

A producer is taken in when only the consumer reads it and both have the same shape, so that no
element is ever computed twice, and when the program stays within the target's limits. Constants
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
from npusim.ir.rewriter import become, reading, whole
from npusim.targets.target_config import TargetConfig


def fuse_pointwise(graph: Graph, target: TargetConfig) -> Graph:
    """Returns the graph with pointwise chains fused.

    Goes backwards, from the end of each chain: what one program cannot hold ends another one.
    """
    index = whole(graph)
    inside: set[str] = set()  # values that are computed in the program of their reader
    fused: dict[str, Node] = {}
    for node in reversed(graph.nodes):
        if node.outputs[0].name in inside:
            continue
        grown = None
        with reading(node), suppress(SymbolicSizeError):
            program = scalar_program(node, index)
            if program is None:
                continue
            cone = Cone(node, program, index)
            grown = _grow(cone, target)
        if grown is not None:
            inside.update(cone.taken)
            fused[node.name] = grown
    if not fused:
        return graph
    nodes = (fused.get(n.name, n) for n in graph.nodes if n.outputs[0].name not in inside)
    return drop_dead(replace(graph, nodes=tuple(nodes)))


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
