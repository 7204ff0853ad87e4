"""Adds a residual where ranks' parts are added up: one command where there would be two.

    sum = npu.all_reduce(x); y = sum + residual    ->    y = npu.all_reduce(x, residual)

The sum is rounded before the residual is added, as it was, so no bit changes.
"""

from __future__ import annotations

from dataclasses import replace

from npusim.analysis.compose import scalar_program
from npusim.analysis.fused_nodes import producer_of, replay, undo_views
from npusim.analysis.shapes import RESHAPES
from npusim.ir.graph import Graph, Node
from npusim.ir.rewriter import Answer, Rewriter, rewrite
from npusim.ops.ranks import ALL_REDUCE
from npusim.targets.target_config import TargetConfig


def fuse_all_reduce(graph: Graph, target: TargetConfig) -> Graph:
    """Returns the graph with additions to sums of ranks joined to these."""
    return rewrite(graph, _visit)


def _visit(node: Node, rewriter: Rewriter) -> Answer:
    program = scalar_program(node, rewriter)
    if program is None or len(program.body) != 1:
        return None
    if program.body[0].op != "add" or program.body[0].args != (0, 1):
        return None
    a, b = (i for i in node.inputs if i is not None)
    for value, residual in ((b, a), (a, b)):
        types = [rewriter.types[name] for name in (value, residual)]
        producer = producer_of(value, node, rewriter, (ALL_REDUCE,))
        if producer is None or len(producer.node.inputs) > 1 or types != [node.type] * 2:
            continue
        if all(view.op in RESHAPES for view in producer.views):
            other = undo_views(residual, producer, node, rewriter)
            fused = replace(producer.node, inputs=(*producer.node.inputs, other))
            return replay(producer, fused, node, rewriter)
    return None
