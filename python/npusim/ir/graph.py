"""The Graph: npusim's weight-free, immutable intermediate representation.

What a Graph means
------------------
* A Graph is one function. Values are named; each is defined exactly once: by a graph input, a
  weight, a constant, a state or one node. Nodes are listed in execution order (definition before
  use).
* There is no aliasing and no mutation: every node defines new values. `aten.view` is a value of
  its own; that it costs nothing is the lowering's knowledge.
* A node's `op` is a PyTorch operator (`aten.conv2d.default`) or a fused op of npusim
  (`npu.conv`, `npu.pointwise`), described by its OpDef in `npusim.ops`.
* `inputs` holds the tensor operands in the order of the op's schema. An optional tensor that was
  not given is None. A list of tensors takes one entry an element, and its length stands in
  `attrs` under the argument's name (`aten.cat.default`: `inputs=(a, b, c)`, `attrs["tensors"]=3`).
* `attrs` holds every other argument of the schema by name, defaults included: None, bool, int,
  float, str, or (nested) tuples of these. A dtype is its name ("float32"), a complex number its
  text ("(1+2j)"); a device, a memory format or a generator is dropped.
* Weights carry a checkpoint key, dtype and shape, and no data. Constants are small tensors that
  the model's code made itself (a lifted literal, a non-persistent buffer); they carry bytes.
* Outputs are an ordered list of (name, value); the same value may be listed twice, and a graph
  input or a weight may be an output.
* States survive from call to call (a KV cache, a position). A graph reads a state's value from
  before the call under the state's name; `updates` lists what the call leaves in it, a value of
  the state's type. A state without an update stays as it is. Every state starts as zeros. That an
  update happens in place is the lowering's knowledge; here it is a new value.

* Sizes may be symbolic: a `Dim` (ir/symbolic.py) in shapes and attributes, over symbols that the
  shapes of the inputs define. A graph without them has static shapes.

Passes never edit: they build new Graphs (`dataclasses.replace`, `npusim.ir.rewrite`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any, Union

from npusim.errors import GraphError
from npusim.ir.symbolic import Symbol, is_symbolic, symbols_of
from npusim.ir.types import TensorType

Attr = Union[None, bool, int, float, str, tuple["Attr", ...]]


@dataclass(frozen=True, slots=True)
class Source:
    """Where a node comes from, for messages: module path (`layer1.0.conv1`), file and line."""

    module: str = ""
    file: str = ""
    line: int = 0


@dataclass(frozen=True, slots=True)
class Value:
    """A named tensor."""

    name: str
    type: TensorType


@dataclass(frozen=True, slots=True)
class Weight:
    """A tensor of the checkpoint.

    Attributes:
        name: the value's name in this graph.
        key: its key in the state_dict.
        type: dtype and shape.
        aliases: further keys that hold the same tensor (tied weights); one of them suffices.
        persistent: False for a buffer that `state_dict()` leaves out; it must be supplied by name.
    """

    name: str
    key: str
    type: TensorType
    aliases: tuple[str, ...] = ()
    persistent: bool = True


@dataclass(frozen=True, slots=True)
class Constant:
    """A small tensor that travels with the graph; `data` is row-major, little-endian."""

    name: str
    type: TensorType
    data: bytes


@dataclass(frozen=True, slots=True)
class Output:
    """A result (or an updated state) of the graph: its name outside, and the value it shows."""

    name: str
    value: str


@dataclass(frozen=True, slots=True)
class Node:
    """One operation. See the module's text for what `inputs` and `attrs` hold."""

    name: str
    op: str
    inputs: tuple[str | None, ...]
    outputs: tuple[Value, ...]
    attrs: Mapping[str, Attr] = field(default_factory=dict)
    source: Source | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "attrs", MappingProxyType(dict(self.attrs)))

    @property
    def output(self) -> Value:
        """The single output; GraphError when the node has several."""
        if len(self.outputs) != 1:
            raise GraphError(f"{self.name} ({self.op}) has {len(self.outputs)} outputs, not one.")
        return self.outputs[0]

    @property
    def type(self) -> TensorType:
        """The type of the single output."""
        return self.output.type

    @property
    def is_symbolic(self) -> bool:
        """Tells whether its results' shapes or its attributes depend on the sizes of a call."""
        return is_symbolic(tuple(v.type.shape for v in self.outputs)) or is_symbolic(
            tuple(self.attrs.values())
        )


@dataclass(frozen=True, repr=False)
class Graph:
    """A model without its weights. Immutable; compare with `==`."""

    name: str
    inputs: tuple[Value, ...]
    outputs: tuple[Output, ...]
    weights: tuple[Weight, ...]
    constants: tuple[Constant, ...]
    nodes: tuple[Node, ...]
    states: tuple[Value, ...] = ()
    updates: tuple[Output, ...] = ()

    def __repr__(self) -> str:
        return f"Graph({self.name}: {len(self.nodes)} nodes, {len(self.weights)} weights)"

    def __reduce__(self) -> tuple[Any, ...]:
        # By its JSON form, which is verified where it arrives.
        from npusim.ir.json import graph_from_text, graph_to_text

        return graph_from_text, (graph_to_text(self),)

    def __copy__(self) -> Graph:
        return self

    def __deepcopy__(self, memo: object) -> Graph:
        return self  # nothing in it changes

    def _repr_html_(self) -> str:
        from npusim.ir.notebook import picture, table

        types = self.types
        rows = [("input", v.name, v.type) for v in (*self.inputs, *self.states)]
        rows += [("output", o.name, types[o.value]) for o in self.outputs]
        return table(repr(self), ("", "name", "type"), rows) + picture(self)

    @property
    def graph_inputs(self) -> tuple[Value, ...]:
        """The values a caller supplies, in order."""
        return self.inputs

    @property
    def graph_outputs(self) -> tuple[Output, ...]:
        """The values a caller receives, in order."""
        return self.outputs

    @cached_property
    def types(self) -> Mapping[str, TensorType]:
        """Every value's type by name."""
        table = {v.name: v.type for v in self.inputs}
        table.update((w.name, w.type) for w in self.weights)
        table.update((c.name, c.type) for c in self.constants)
        table.update((s.name, s.type) for s in self.states)
        table.update((v.name, v.type) for n in self.nodes for v in n.outputs)
        return MappingProxyType(table)

    @cached_property
    def producers(self) -> Mapping[str, Node]:
        """The node that defines each value; those that no node defines are absent."""
        return MappingProxyType({v.name: n for n in self.nodes for v in n.outputs})

    @cached_property
    def users(self) -> Mapping[str, tuple[Node, ...]]:
        """The nodes that read each value, in order, each once; outputs, updates do not count."""
        table: dict[str, list[Node]] = {name: [] for name in self.types}
        for node in self.nodes:
            for name in dict.fromkeys(i for i in node.inputs if i is not None):
                table[name].append(node)
        return MappingProxyType({name: tuple(users) for name, users in table.items()})

    @cached_property
    def positions(self) -> Mapping[str, int]:
        """Each node's place in the order of execution, by its name."""
        return MappingProxyType({node.name: i for i, node in enumerate(self.nodes)})

    @cached_property
    def output_values(self) -> frozenset[str]:
        """Names of the values that are seen outside: as results, or in a state after the call."""
        return frozenset(o.value for o in (*self.outputs, *self.updates))

    @cached_property
    def static_values(self) -> frozenset[str]:
        """Values that depend on weights and constants alone: computed once, at load."""
        known = {w.name for w in self.weights} | {c.name for c in self.constants}
        for node in self.nodes:
            if all(i is None or i in known for i in node.inputs) and not node.is_symbolic:
                known.update(v.name for v in node.outputs)
        return frozenset(known)

    @cached_property
    def symbols(self) -> tuple[Symbol, ...]:
        """The sizes that a caller chooses with the shapes of the inputs, sorted by name."""
        found = symbols_of(tuple(v.type.shape for v in self.inputs))
        return tuple(sorted(found, key=lambda s: s.name))

    def save(self, path: str | Path) -> None:
        """Writes the graph as JSON (docs/ir.md); whole or not at all."""
        from npusim.ir.json import save_graph

        save_graph(self, path)

    @classmethod
    def load(cls, path: str | Path) -> Graph:
        """Reads a graph from JSON and verifies it.

        Raises:
            GraphError: the file is not a graph, is of an unknown version, or breaks an invariant.
        """
        from npusim.ir.json import load_graph

        return load_graph(path)
