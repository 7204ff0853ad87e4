"""Fuses chains of pointwise nodes, broadcasting included, into one `npu.pointwise` each.

A producer is taken in when only the consumer reads it and both have the same shape, so that no
element is ever computed twice, and when the program stays within the target's limits. Constants
that hold one number become literals. What is computed at load from weights is never taken into
what is computed at every run.
"""

from __future__ import annotations

from npusim.ir.graph import Graph, Node
from npusim.ops.scalar import ScalarProgram
from npusim.passes.compose import scalar_program
from npusim.passes.cone import Cone
from npusim.passes.rewriter import Answer, Rewriter, become, rewrite
from npusim.targets.target_config import TargetConfig


def fuse_pointwise(graph: Graph, target: TargetConfig) -> Graph:
    """Returns the graph with pointwise chains fused."""

    def visit(node: Node, rewriter: Rewriter) -> Answer:
        program = scalar_program(node, rewriter)
        return None if program is None else _fuse(Cone(node, program, rewriter), target)

    return rewrite(graph, visit)


def _fuse(cone: Cone, target: TargetConfig) -> Answer:
    """Returns the cone's root with all it can take in, or None when that is nothing."""
    best = cone.program() if cone.has_literals() else None
    refused: set[str] = set()
    while (value := cone.candidate(refused)) is not None:
        cone.take(value)
        grown = cone.program()
        if _fits(*grown, target):
            best = grown
        else:
            cone.give_back(value)
            refused.add(value)
    if best is None or not best[1]:
        return None
    program, operands = best
    attrs = {"program": program.to_attr(), "dtype": cone.root.type.dtype}
    return become(cone.root, "npu.pointwise", operands, attrs)  # type: ignore[arg-type]


def _fits(program: ScalarProgram, operands: list[str], target: TargetConfig) -> bool:
    from npusim.ops.pointwise import register_pressure

    return (
        len(operands) <= target.pointwise_inputs
        and len(program.body) <= target.pointwise_instructions
        and register_pressure(program) <= target.pointwise_registers
    )
