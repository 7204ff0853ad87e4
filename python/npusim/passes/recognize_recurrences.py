"""Joins the steps of a recurrence, one `npu.recurrent_step` behind the other, to `npu.recurrence`.

Each step reads the rows and the cell that the one before left, and adds the next part of one
tensor, which holds what comes from outside for all steps, forwards or backwards. Nobody else reads
a cell but the last; rows of single steps that others read are parts of the result, and a
concatenation of all of them is the result.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from npusim.ir.graph import Attr, Graph, Node, Value
from npusim.ir.rewrite import Names, drop_dead, rebuild
from npusim.ir.rewriter import reading
from npusim.ir.types import TensorType
from npusim.ops.recurrence import RECURRENCE, joins_steps
from npusim.ops.recurrent_step import RECURRENT_STEP
from npusim.targets.target_config import TargetConfig

_FEWEST_STEPS = 2
_VIEW, _SLICE, _FLIP, _CAT = (
    f"aten.{name}" for name in ("view.default", "slice.Tensor", "flip.default", "cat.default")
)
_X, _WEIGHT, _BIAS, _ADDED, _STATE = range(5)


def recognize_recurrences(graph: Graph, target: TargetConfig) -> Graph:
    """Returns the graph with chains of steps as one node each."""
    if not any(node.op == RECURRENT_STEP for node in graph.nodes):
        return graph
    matcher = _Matcher(graph, target, Names(graph))
    replacements: dict[str, list[Node]] = {}
    for node in graph.nodes:
        if node.op == RECURRENT_STEP and node.name not in replacements:
            with reading(node):
                replacements |= matcher.joined(node)
    if not replacements:
        return graph
    nodes = [new for n in graph.nodes for new in replacements.get(n.name, [n])]
    return drop_dead(rebuild(graph, nodes))


@dataclass(frozen=True)
class _Added:
    """A step's part of what is added to all steps: `value`[place] along its first dimension."""

    value: str
    place: int


@dataclass(frozen=True)
class _Matcher:
    """Finds chains and what takes their place."""

    graph: Graph
    target: TargetConfig
    names: Names

    def joined(self, first: Node) -> dict[str, list[Node]]:
        """Returns what takes the place of nodes for the chain that begins with a step."""
        cell, type = str(first.attrs["cell"]), first.outputs[0].type
        if not joins_steps(self.target, cell, type.dtype, type.shape[-1]):
            return {}
        if cell == "gru" and first.inputs[_X] != first.inputs[_STATE]:
            return {}
        steps = list(self._chain(first))
        if len(steps) < _FEWEST_STEPS:
            return {}
        parts = [self._added(step) for step in steps]
        found = [part for part in parts if part is not None]
        if len(found) < len(steps) or len({part.value for part in found}) != 1:
            return {}
        places, count = [part.place for part in found], len(steps)
        forwards = places == list(range(places[0], places[0] + count))
        backwards = places == list(range(places[0], places[0] - count, -1))
        whole = self.graph.types[found[0].value].shape[0] == count
        if not whole or not (forwards or backwards):
            return {}
        return self._replaced(steps, found[0].value, backwards)

    def _chain(self, step: Node) -> Iterator[Node]:
        """Yields steps, from the first on, until one is not followed by one of its kind."""
        while True:
            yield step
            rows = step.outputs[0].name
            behind = [n for n in self.graph.users[rows] if self._follows(n, step)]
            if len(behind) != 1:
                return
            (step,) = behind

    def _follows(self, node: Node, step: Node) -> bool:
        if node.op != RECURRENT_STEP or node.attrs != step.attrs:
            return False
        rows, *cells = (value.name for value in step.outputs)
        same = node.inputs[_WEIGHT : _BIAS + 1] == step.inputs[_WEIGHT : _BIAS + 1]
        state = {"plain": None, "gru": rows, "lstm": cells[0] if cells else None}
        wanted = (rows, state[str(node.attrs["cell"])])
        if not same or (node.inputs[_X], node.inputs[_STATE]) != wanted:
            return False
        alone = all(len(self.graph.users[c]) == 1 for c in cells)
        kept = any(c in self.graph.output_values for c in cells)
        return alone and not kept and node.outputs[0].type == step.outputs[0].type

    def _added(self, step: Node) -> _Added | None:
        """Returns where a step's addend lies, through views of it and a flip of the whole."""
        value = step.inputs[_ADDED]
        node = self.graph.producers.get(value or "")
        while node is not None and node.op == _VIEW:
            node = self.graph.producers.get(node.inputs[0] or "")
        if node is None or node.op != _SLICE or node.inputs[0] is None:
            return None
        source, rank = self.graph.types[node.inputs[0]], node.type.rank
        start, step_by = node.attrs["start"], node.attrs["step"]
        single = node.attrs["dim"] in (0, -rank) and step_by == 1 and node.type.shape[0] == 1
        rows = step.outputs[0].type
        if not single or source.shape[1:-1] != _rows_of(rows, source.rank):
            return None
        if not isinstance(start, int) or source.shape[-1] != self._width(step):
            return None
        flip = self.graph.producers.get(node.inputs[0])
        if flip is not None and flip.op == _FLIP and flip.attrs["dims"] in ((0,), (-rank,)):
            assert flip.inputs[0] is not None
            return _Added(flip.inputs[0], source.shape[0] - 1 - start)
        return _Added(node.inputs[0], start)

    def _width(self, step: Node) -> int:
        return self.graph.types[step.inputs[_WEIGHT] or ""].shape[0]

    def _replaced(self, steps: list[Node], added: str, reverse: bool) -> dict[str, list[Node]]:
        first, last = steps[0], steps[-1]
        rows, source = first.outputs[0].type, self.graph.types[added]
        given = TensorType(rows.dtype, (*source.shape[1:-1], rows.shape[-1]))
        nodes: list[Node] = []
        states = []
        for index in (_X, _STATE):
            value = first.inputs[index] if index == _X or len(first.outputs) > 1 else None
            states.append(value and self._viewed(first, value, given, nodes))
        order = steps[::-1] if reverse else steps
        type = TensorType(rows.dtype, (len(steps), *given.shape))
        whole = self._concatenation(order, type)
        y = whole.output if whole else Value(self.names.fresh(f"{first.name}_rows"), type)
        outputs = [y]
        views: list[Node] = []
        if len(last.outputs) > 1:
            cell = Value(self.names.fresh(f"{last.name}_cell"), given)
            outputs.append(cell)
            views.append(_view(last, last.outputs[1], cell.name))
        attrs: dict[str, Attr] = {**first.attrs, "reverse": reverse}
        inputs = (added, *first.inputs[_WEIGHT : _BIAS + 1], *states)
        nodes.append(Node(y.name, RECURRENCE, inputs, tuple(outputs), attrs, first.source))
        replaced: dict[str, list[Node]] = {step.name: [] for step in steps}
        if whole is not None:
            replaced[whole.name] = []
        for place, step in enumerate(order):
            views += self._part(step, y, place)  # what nobody reads is dropped
        replaced[first.name] = [*nodes, *views]
        return replaced

    def _viewed(self, step: Node, value: str, wanted: TensorType, nodes: list[Node]) -> str:
        """Returns a value's name in another shape, behind a view where it has not got it."""
        if self.graph.types[value] == wanted:
            return value
        view = Value(self.names.fresh(f"{value}_first"), wanted)
        nodes.append(Node(view.name, _VIEW, (value,), (view,), {"size": wanted.shape}, step.source))
        return view.name

    def _concatenation(self, order: list[Node], type: TensorType) -> Node | None:
        """Returns what joins the rows of all steps, in the order of the result, to its shape."""
        names = [step.outputs[0].name for step in order]
        for node in self.graph.users[names[0]]:
            joins = node.op == _CAT and list(node.inputs) == names
            if (
                joins
                and node.attrs.get("dim", 0) in (0, -type.rank)
                and node.type.shape == type.shape
            ):
                return node
        return None

    def _part(self, step: Node, y: Value, place: int) -> Iterator[Node]:
        """Yields nodes that make a step's rows of the result."""
        part = Value(
            self.names.fresh(f"{step.name}_part"), TensorType(y.type.dtype, (1, *y.type.shape[1:]))
        )
        attrs: dict[str, Attr] = {"dim": 0, "start": place, "end": place + 1, "step": 1}
        yield Node(part.name, _SLICE, (y.name,), (part,), attrs, step.source)
        yield _view(step, step.outputs[0], part.name)


def _rows_of(rows: TensorType, rank: int) -> tuple[int, ...] | None:
    """Returns the dimensions of a step's rows, without one of size 1 that stands for the steps."""
    lead = rows.shape[:-1]
    if len(lead) == rank - 1 and lead[0] == 1:
        return lead[1:]
    return lead if len(lead) == rank - 2 else None


def _view(node: Node, output: Value, source: str) -> Node:
    """Returns a node that shows a value as an output of a node that is replaced."""
    size: dict[str, Attr] = {"size": output.type.shape}
    return Node(output.name, _VIEW, (source,), (output,), size, node.source)
