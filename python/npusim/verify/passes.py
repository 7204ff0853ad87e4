"""Finds the pass that changes what a graph computes, and the first node that shows it.

A program is the lowering of the graph after the last pass. Where that graph, run through PyTorch,
differs from the one the passes were given, no command is at fault. Bisection finds a pass in front
of which the results agree and after which they do not: a few runs, however many passes there are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from npusim import passes
from npusim.ir.graph import Graph, Node
from npusim.ops.reference import GraphRun, run_graph
from npusim.passes import Pass
from npusim.passes.run import run_passes
from npusim.targets import TargetConfig
from npusim.verify.comparison import Comparison, compare, compare_all
from npusim.verify.report import InputStatistics, PassDivergence


def first_wrong_pass(
    graph: Graph,
    target: TargetConfig,
    inputs: Sequence[Tensor],
    weights: Mapping[str, Tensor],
    tolerance: float | None = None,
    pipeline: Sequence[Pass] | None = None,
) -> PassDivergence | None:
    """Returns the pass that changes a graph's results; None when all of them together do not.

    Args:
        graph: what the passes are given.
        target: what they compile for.
        inputs, weights: with data; weights by checkpoint key.
        tolerance: replaces `TOLERANCE` for floating-point values.
        pipeline: by default `npusim.passes.PIPELINE`.

    Raises:
        Error: inputs or weights do not fit, or PyTorch cannot run a graph.
    """
    pipeline = passes.PIPELINE if pipeline is None else pipeline
    stages = [graph]
    for each in pipeline:
        stages.append(run_passes(stages[-1], target, pipeline=(each,)))
    names = [output.name for output in graph.outputs]
    expected = run_graph(graph, inputs, weights)

    def wrong(stage: int) -> list[Comparison]:
        actual = run_graph(stages[stage], inputs, weights)
        return [c for c in compare_all(names, actual, expected, tolerance) if not c.ok]

    low, high = 0, len(pipeline)
    found = wrong(high)
    if not found:
        return None
    while high - low > 1:
        middle = (low + high) // 2
        differs = wrong(middle)
        low, high, found = (low, middle, differs) if differs else (middle, high, found)
    name = getattr(pipeline[low], "__name__", str(pipeline[low]))
    shown = _first_node(stages[low], stages[high], inputs, weights, tolerance)
    if shown is None:
        return PassDivergence(name, low, found[0])
    node, value, statistics = shown
    return PassDivergence(name, low, value, node.name, node.op, str(node.source or ""), statistics)


def _first_node(
    before: Graph,
    after: Graph,
    inputs: Sequence[Tensor],
    weights: Mapping[str, Tensor],
    tolerance: float | None,
) -> tuple[Node, Comparison, tuple[InputStatistics, ...]] | None:
    """Returns the first node after a pass whose value of the same name differs, with both."""
    common = before.types.keys() & after.types.keys()
    first, second = GraphRun(before, inputs, weights), GraphRun(after, inputs, weights)
    steps, values = iter(first), dict[str, Tensor]()
    for node, results in second:
        for value, actual in zip(node.outputs, results, strict=True):
            same = value.name in common and before.types[value.name] == value.type
            while same and value.name not in values:
                step = next(steps, None)
                if step is None:
                    break
                made = zip((v.name for v in step[0].outputs), step[1], strict=True)
                values.update((n, t) for n, t in made if n in common)
            expected = values.pop(value.name, None) if same else None
            if expected is None:
                continue
            found = compare(value.name, actual, expected, tolerance)
            if not found.ok:
                operands = second.operands(node).items()
                return node, found, tuple(InputStatistics.of(n, t) for n, t in operands)
    return None
