"""Finds the first command of a program whose value differs from the reference.

The fused program is run as it is, command by command, while the same lowered graph runs through
PyTorch in step: values are compared as soon as they are complete, so memory stays that of one
ordinary run of each. A second such run puts the reference's value in the place of every value it
has compared; each command then computes from the reference's inputs, and what is left is its own.
"""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from npusim.ir.graph import Graph, Value
from npusim.ops.reference import GraphRun
from npusim.program.program import Access, CompiledProgram
from npusim.verify.comparison import Comparison, compare
from npusim.verify.native_run import NativeRun
from npusim.verify.report import Divergence, InputStatistics

Found = tuple[Divergence | None, Divergence | None]


def first_divergence(native: NativeRun, graph: Graph, tolerance: float | None) -> Found:
    """Returns the first command out of tolerance (or the one with the largest error, where none
    is) with its own error and its inputs, and the command up to there that adds most by itself.

    Args:
        graph: the lowered graph the program was made from.
        tolerance: replaces `TOLERANCE` for floating-point values.
    """
    free = _Walk(native, graph, tolerance)
    native.observe(free.after)
    found = free.first or free.worst
    if found is None:
        return None, None
    forced = _Walk(native, graph, tolerance, until=found.command)
    native.observe(forced.after)
    own = forced.errors.get(found.value.name)
    inputs = tuple(
        InputStatistics.of(name, tensor, free.errors[name].max_rel if name in free.errors else None)
        for name, tensor in forced.operands.items()
    )
    largest = forced.worst and replace(forced.worst, own=forced.worst.value)
    return replace(found, own=own, inputs=inputs), largest


class _Walk:
    """Compares values after the commands that complete them; fed by `after`.

    Args:
        until: replace values by the reference's, and compare up to this command; by default leave
            them, and compare up to the first that is out of tolerance.
    """

    def __init__(
        self, native: NativeRun, graph: Graph, tolerance: float | None, until: int | None = None
    ) -> None:
        self.native, self.tolerance, self.until = native, tolerance, until
        self.taps = value_taps(native.program, graph)
        self.reference = GraphRun(graph, native.inputs, native.state_dict)
        self.steps = iter(self.reference)
        self.errors: dict[str, Comparison] = {}  # by value
        self.operands: dict[str, Tensor] = {}  # what the command `until` was given
        self.first: Divergence | None = None
        self.worst: Divergence | None = None

    def after(self, command: int) -> None:
        """Called after each command."""
        over = self.first is not None if self.until is None else command > self.until
        if over or command not in self.taps:
            return
        name, values = self.taps[command]
        expected = self._advance(name, keep=command == self.until)
        for buffer, value in values:
            if value.name in expected:
                self._compare(command, buffer, value, expected[value.name])

    def _advance(self, name: str, *, keep: bool) -> dict[str, Tensor]:
        """Takes the reference up to a node and returns its results by name."""
        for node, results in self.steps:
            if node.name == name:
                self.operands = self.reference.operands(node) if keep else {}
                return dict(zip((v.name for v in node.outputs), results, strict=True))
        return {}

    def _compare(self, command: int, buffer: int, value: Value, expected: Tensor) -> None:
        actual = self.native.read(buffer, value.type)
        if actual is None:
            return
        error = compare(value.name, actual, expected, self.tolerance)
        self.errors[value.name] = error
        if self.until is not None:
            self.native.write(buffer, value.type, expected)
        worse = self.worst is None or error.max_rel > self.worst.value.max_rel
        if worse or not error.ok:
            found = self._divergence(command, error)
            self.worst = found if worse else self.worst
            self.first = self.first or (None if error.ok else found)

    def _divergence(self, index: int, error: Comparison) -> Divergence:
        program = self.native.program
        command = program.methods[0].commands[index]
        info = program.nodes[command.node]
        kernel = program.kernels[command.kernel].name
        return Divergence(index, kernel, info.name, info.op, info.source, error)


def value_taps(
    program: CompiledProgram, graph: Graph
) -> dict[int, tuple[str, list[tuple[int, Value]]]]:
    """Returns, by command of the first method, which values of the graph are complete after it.

    A buffer named after a result of the command's node shows that result once the last command of
    the node that writes it has run.
    """
    results = {node.name: {v.name: v for v in node.outputs} for node in graph.nodes}
    last: dict[tuple[str, int], int] = {}
    for index, command in enumerate(program.methods[0].commands):
        node = program.nodes[command.node].name
        for operand in command.operands:
            name = program.buffers[operand.buffer].name
            if operand.access is not Access.READ and name in results.get(node, {}):
                last[node, operand.buffer] = index
    taps: dict[int, tuple[str, list[tuple[int, Value]]]] = {}
    for (node, buffer), index in last.items():
        value = results[node][program.buffers[buffer].name]
        taps.setdefault(index, (node, []))[1].append((buffer, value))
    return taps
