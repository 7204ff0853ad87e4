"""A graph under construction: values to choose from, and fresh operands of any type.

Owns what makes a random graph legal: types come from the op's own inference, sizes are bounded,
and a value knows whether PyTorch and npusim must agree on its last bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

import numpy as np

from npusim.errors import Error
from npusim.ir.graph import Attr, Constant, Graph, Node, Output, Value, Weight
from npusim.ir.types import TensorType
from npusim.ops.reference import infer_types

MOST_ELEMENTS = 4096
ROUNDS = "r"  # the first letter of the nodes whose op rounds


@dataclass(frozen=True)
class Draft:
    """A graph so far.

    Attributes:
        random: every choice is its.
        exact: values without rounding: what jumps (floor, sort, a comparison) may read them.
    """

    random: Random
    inputs: list[Value] = field(default_factory=list)
    weights: list[Weight] = field(default_factory=list)
    constants: list[Constant] = field(default_factory=list)
    nodes: list[Node] = field(default_factory=list)
    values: dict[str, TensorType] = field(default_factory=dict)
    exact: set[str] = field(default_factory=set)

    def type(self, name: str) -> TensorType:
        """Returns a value's type."""
        return self.values[name]

    def pick(
        self, kinds: str = "fib", *, exact: bool = False, least_rank: int = 0
    ) -> TensorTypeName | None:
        """Returns one of the values, or None when none fits.

        Args:
            kinds: of dtypes: f floating-point, i integer, b bool.
            exact: only values without rounding; integers and bools always are.
        """
        found = [
            (name, type)
            for name, type in self.values.items()
            if kind_of(type.dtype) in kinds
            and type.rank >= least_rank
            and (not exact or name in self.exact)
        ]
        if found and self.random.random() < 0.4:
            return found[-1]  # chains are what passes look for
        return self.random.choice(found[-6:]) if found else None

    def fresh(self, dtype: str, shape: Sequence[int]) -> str:
        """Returns a new operand: an input or a weight."""
        name, type = f"x{len(self.values)}", TensorType(dtype, tuple(shape))
        if self.random.random() < 0.4:
            self.weights.append(Weight(name, name, type))
        else:
            self.inputs.append(Value(name, type))
        self.values[name] = type
        self.exact.add(name)
        return name

    def indices(self, shape: Sequence[int], bound: int) -> str:
        """Returns an int64 constant with elements in [0, bound)."""
        name, type = f"i{len(self.constants)}", TensorType("int64", tuple(shape))
        count = int(np.prod(shape, dtype=np.int64))
        data = np.array([self.random.randrange(bound) for _ in range(count)], np.int64)
        self.constants.append(Constant(name, type, data.tobytes()))
        return name

    def add(
        self, op: str, operands: Sequence[str | None], attrs: dict[str, Attr], *, exact: bool
    ) -> bool:
        """Appends a node, unless the op refuses the operands; tells whether it did.

        Args:
            exact: the op rounds nothing, so that exact operands give exact results.
        """
        known = {**self.values, **{c.name: c.type for c in self.constants}}
        try:
            types = infer_types(op, [None if o is None else known[o] for o in operands], attrs)
        except Error:
            return False
        if any(t.numel > MOST_ELEMENTS or t.rank > 6 for t in types):
            return False
        name = f"{'n' if exact else ROUNDS}{len(self.nodes)}"
        outputs = tuple(Value(f"{name}.{i}", t) for i, t in enumerate(types))
        self.nodes.append(Node(name, op, tuple(operands), outputs, attrs))
        inherited = exact and all(o is None or o not in values_of(self) for o in operands)
        for value in outputs:
            self.values[value.name] = value.type
            if inherited or kind_of(value.type.dtype) != "f":
                self.exact.add(value.name)
        return True

    def graph(self) -> Graph:
        """Returns the graph; what nobody reads is an output, and some of the rest."""
        read = {i for node in self.nodes for i in node.inputs}
        made = [v.name for node in self.nodes for v in node.outputs]
        shown = [n for n in made if n not in read or self.random.random() < 0.15]
        outputs = tuple(Output(f"y{i}", name) for i, name in enumerate(shown))
        leaves = (tuple(self.weights), tuple(self.constants))
        return Graph("random", tuple(self.inputs), outputs, *leaves, tuple(self.nodes))


TensorTypeName = tuple[str, TensorType]


def values_of(draft: Draft) -> set[str]:
    """Returns the values that rounding has touched."""
    return set(draft.values) - draft.exact


def kind_of(dtype: str) -> str:
    """Returns f, i or b: floating-point, integer, bool."""
    if dtype == "bool":
        return "b"
    return "f" if "float" in dtype else "i"
