"""Fuses chains of pointwise nodes, broadcasting included, into one `npu.pointwise` each.

A producer is taken in when only the consumer reads it and both have the same shape, so that no
element is ever computed twice, and when the program stays within the target's limits. Constants
that hold one number become literals. What is computed at load from weights is never taken into
what is computed at every run.
"""

from __future__ import annotations

from collections import Counter

from npusim.ir.graph import Graph, Node
from npusim.ops.fused import broadcast_shapes
from npusim.ops.scalar import ScalarProgram
from npusim.passes.compose import Arg, Composer, scalar_program
from npusim.passes.rewriter import Answer, Rewriter, become, rewrite
from npusim.passes.uniform import uniform_value
from npusim.targets.target_config import TargetConfig


def fuse_pointwise(graph: Graph, target: TargetConfig) -> Graph:
    """Returns the graph with pointwise chains fused."""

    def visit(node: Node, rewriter: Rewriter) -> Answer:
        program = scalar_program(node, rewriter)
        return None if program is None else _Cone(node, program, rewriter).fused(target)

    return rewrite(graph, visit)


class _Cone:
    """A pointwise node and the producers that are computed with it."""

    def __init__(self, root: Node, program: ScalarProgram, rewriter: Rewriter) -> None:
        self.root = root
        self.rewriter = rewriter
        self.taken: dict[str, tuple[Node, ScalarProgram]] = {}
        self.program = program
        self.reads = Counter(i for i in root.inputs if i is not None)
        self.literals = _literals(root, rewriter)
        self.static = all(i is None or i in rewriter.static for i in root.inputs)

    def fused(self, target: TargetConfig) -> Answer:
        """Returns the root with all it can take in, or None when that is nothing."""
        best = self._compose() if self.literals else None
        refused: set[str] = set()
        while (value := self._candidate(refused)) is not None:
            grown = self._take(value, target)
            if grown is None:
                refused.add(value)
            else:
                best = grown
        if best is None or not best[1]:
            return None
        attrs = {"program": best[0].to_attr(), "dtype": self.root.type.dtype}
        return become(self.root, "npu.pointwise", best[1], attrs)  # type: ignore[arg-type]

    def _candidate(self, refused: set[str]) -> str | None:
        """Returns a value that only the cone reads, and that has the root's shape and time."""
        for value, reads in self.reads.items():
            if value in refused or value in self.taken or value in self.literals:
                continue
            if self.rewriter.producer(value) is None or self.rewriter.uses(value) != reads:
                continue
            same_shape = self.rewriter.types[value].shape == self.root.type.shape
            if same_shape and (value in self.rewriter.static) == self.static:
                return value
        return None

    def _take(self, value: str, target: TargetConfig) -> tuple[ScalarProgram, list[str]] | None:
        """Adds a value's producer to the cone; returns the program, or None if it does not fit."""
        producer = self.rewriter.producer(value)
        assert producer is not None
        program = scalar_program(producer, self.rewriter)
        if program is None:
            return None
        self.taken[value] = (producer, program)
        composed = self._compose()
        if not _fits(*composed, target):
            del self.taken[value]
            return None
        self.reads.update(i for i in producer.inputs if i is not None)
        return composed

    def _compose(self) -> tuple[ScalarProgram, list[str]]:
        composer = Composer()
        types = self.rewriter.types
        written: dict[str, Arg] = {
            value: composer.stored(literal, types[value].dtype, ())
            for value, literal in self.literals.items()
        }

        def write(node: Node, program: ScalarProgram) -> Arg:
            args: list[Arg] = []
            operands = [i for i in node.inputs if i is not None]
            for value, cls in zip(operands, program.inputs, strict=True):
                if value in self.taken and value not in written:
                    producer, inner = self.taken[value]
                    dtypes = [types[i].dtype for i in producer.inputs if i is not None]
                    result = write(producer, inner)
                    written[value] = composer.stored(result, types[value].dtype, dtypes)
                args.append(written[value] if value in written else composer.load(value, cls))
            return composer.inline(program, args)

        return composer.build(write(self.root, self.program), self.root.type.dtype)


def _literals(node: Node, rewriter: Rewriter) -> dict[str, Arg]:
    """Returns the operands that hold one number and that the result's shape does not need."""
    operands = [i for i in node.inputs if i is not None]
    found: dict[str, Arg] = {}
    for value in dict.fromkeys(operands):
        number = uniform_value(value, rewriter)
        if number is None:
            continue
        rest = [o for o in operands if o != value and o not in found]
        shapes = [rewriter.types[o].shape for o in rest]
        if rest and broadcast_shapes(*shapes) == node.type.shape:
            found[value] = ("const", number)
    return found


def _fits(program: ScalarProgram, operands: list[str], target: TargetConfig) -> bool:
    from npusim.ops.pointwise import register_pressure

    return (
        len(operands) <= target.pointwise_inputs
        and len(program.body) <= target.pointwise_instructions
        and register_pressure(program) <= target.pointwise_registers
    )
