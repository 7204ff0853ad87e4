"""Cone: a pointwise node with the producers that are computed together with it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence

from npusim.abi.scalar import ScalarProgram
from npusim.analysis.compose import Arg, Composer, narrows, scalar_program
from npusim.analysis.uniform import uniform_value
from npusim.ir.graph import Node
from npusim.ir.rewriter import Rewriter
from npusim.ops.fused import broadcast_shapes


class Cone:
    """Grows from a root towards its operands, over values that only the cone reads, and such as
    are computed again in each cone.

    Args:
        cheap: values that cost less to compute again than to store and to read.
        kept: values that other cones read as they are.

    Attributes:
        again: what was taken in though others read it, or what that needs.
        root: the pointwise node whose result the cone computes.
        size: an upper bound of its program's length, but for conversions of intermediates.
        reads: how often the cone reads each value; operands that hold one number do not count,
            since they become literals.
    """

    def __init__(
        self,
        root: Node,
        program: ScalarProgram,
        rewriter: Rewriter,
        cheap: Collection[str] = frozenset(),
        kept: Collection[str] = frozenset(),
    ) -> None:
        self.root = root
        self.again: set[str] = set()
        self._cheap, self._kept = cheap, kept
        self.size = 0
        self.reads: Counter[str] = Counter()
        self._program = program
        self._rewriter = rewriter
        self._taken: dict[str, tuple[Node, ScalarProgram]] = {}
        self._literals: dict[str, dict[str, Arg]] = {}  # of each node in the cone
        self._static = all(i is None or i in rewriter.static for i in root.inputs)
        self._add(root, program)

    @property
    def taken(self) -> list[str]:
        """The values that are computed inside, in the order they were taken in."""
        return list(self._taken)

    def has_literals(self) -> bool:
        """Tells whether some operand becomes a literal."""
        return any(self._literals.values())

    def operands(self) -> list[str]:
        """Returns the values the cone reads from outside."""
        return [v for v in self.reads if v not in self._taken]

    def has_shape_of(self, operands: Sequence[str]) -> bool:
        """Tells whether values broadcast to the shape of the cone's result."""
        shapes = (self._rewriter.types[o].shape for o in operands)
        return broadcast_shapes(*shapes) == self.root.type.shape

    def candidate(self, refused: set[str]) -> str | None:
        """Returns a value the cone could take in: pointwise, of the root's shape, read by no other
        or cheap, and not a conversion that rounds.

        What is static is taken into static roots only, and the other way round: what is computed
        once at load must not move into every run.
        """
        for value in self.operands():
            if value in refused or (self._is_read_elsewhere(value) and value not in self._cheap):
                continue
            same_shape = self._rewriter.types[value].shape == self.root.type.shape
            same_time = (value in self._rewriter.static) == self._static
            producer = self._rewriter.producer(value)
            if producer is None or not same_shape or not same_time:
                continue
            if narrows(producer, self._rewriter):
                continue
            if scalar_program(producer, self._rewriter) is not None:
                return value
        return None

    def _is_read_elsewhere(self, value: str) -> bool:
        """Tells whether others read a value, or what is computed again reads it."""
        if value in self._kept or self._rewriter.uses(value) != self.reads[value]:
            return True
        return any(value in self._taken[taken][0].inputs for taken in self.again)

    def take(self, value: str) -> None:
        """Takes in the producer of a candidate."""
        if self._is_read_elsewhere(value):
            self.again.add(value)
        producer = self._rewriter.producer(value)
        assert producer is not None
        program = scalar_program(producer, self._rewriter)
        assert program is not None
        self._taken[value] = (producer, program)
        self._add(producer, program)

    def give_back(self) -> str:
        """Undoes the latest `take` and returns its value."""
        value, (producer, program) = self._taken.popitem()
        self.again.discard(value)
        self.size -= len(program.body)
        literals = self._literals.pop(producer.name)
        self.reads.subtract(i for i in producer.inputs if i is not None and i not in literals)
        self.reads = +self.reads
        return value

    def program(self) -> tuple[ScalarProgram, list[str]]:
        """Returns what the cone computes, and the operands of that program in order."""
        composer = Composer()
        types = self._rewriter.types
        written: dict[str, Arg] = {}

        def argument(value: str, cls: str, literals: dict[str, Arg]) -> Arg:
            if value in literals:
                return composer.stored(literals[value], types[value].dtype, ())
            if value not in self._taken:
                return composer.load(value, cls)
            if value not in written:
                producer, program = self._taken[value]
                dtypes = [types[i].dtype for i in producer.inputs if i is not None]
                result = write(producer, program)
                written[value] = composer.stored(result, types[value].dtype, dtypes)
            return written[value]

        def write(node: Node, program: ScalarProgram) -> Arg:
            operands = [i for i in node.inputs if i is not None]
            literals = self._literals[node.name]
            pairs = zip(operands, program.inputs, strict=True)
            return composer.inline(program, [argument(v, c, literals) for v, c in pairs])

        return composer.build(write(self.root, self._program), self.root.type.dtype)

    def _add(self, node: Node, program: ScalarProgram) -> None:
        self.size += len(program.body)
        literals = _literals(node, self._rewriter)
        self._literals[node.name] = literals
        self.reads.update(i for i in node.inputs if i is not None and i not in literals)


def _literals(node: Node, rewriter: Rewriter) -> dict[str, Arg]:
    """Returns the operands that hold one number and that a node's shape does not need."""
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
