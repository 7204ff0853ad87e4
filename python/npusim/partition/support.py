"""Which nodes a target runs, and which constraint stands against the others.

Owns the verdict on every node of a graph. What can be compiled is decided where `compile` decides
it (the pipeline, then `program.supported.unsupported_nodes`), and what a fused node is refused for
is laid on those of its nodes that are refused by themselves, too. What PyTorch can run instead is
decided by its dispatcher.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from npusim.errors import Error, UnsupportedOpError
from npusim.ir.graph import Attr, Graph, Node, Output, Value
from npusim.ir.opdef import find
from npusim.ir.types import TensorType
from npusim.lowering.constraints import op_constraint
from npusim.lowering.supported import foreign_values, unsupported_nodes
from npusim.partition.single import signature, single
from npusim.passes.run import run_passes
from npusim.targets import TargetConfig

NATIVE, DECOMPOSED, FALLBACK, UNSUPPORTED = "native", "decomposed", "fallback", "unsupported"

# A word in a reason -> the kind of constraint it is about; the first that occurs counts.
_KINDS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("kernel", ("has no kernel",)),
    ("op", ("this operator", "PyTorch")),
    ("dtype", ("dtype", "float32", "int64", "bool")),
    ("rank", ("dimension", "unbatched", "rank")),
    ("shape", ("shape", "broadcast", "size", "index tensors")),
)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What becomes of a node.

    Attributes:
        status: "native", "decomposed" (into ops that have kernels), "fallback" (PyTorch runs it)
            or "unsupported" (nobody does).
        constraint: what stands against it: "kernel", which the target lacks, or of a kernel "op",
            "dtype", "rank", "shape", "attribute";
            "predicate" or "pin" where the caller wanted it, "cost" where a transfer would cost
            more, "neighbours" where only PyTorch reads the result; empty when nothing does.
        reason: the same in words.
    """

    status: str
    constraint: str = ""
    reason: str = ""

    @property
    def is_native(self) -> bool:
        """Whether the target runs the node."""
        return self.status in (NATIVE, DECOMPOSED)


def assess(graph: Graph, target: TargetConfig) -> dict[str, Verdict]:
    """Returns the verdict on every node, by its name.

    Raises:
        GraphError: a node does not have the operands or attributes of its op.
    """
    if foreign_values(graph):  # it cannot be compiled as a whole
        alone = _Alone(graph, target)
        refused = {n.name: why for n in graph.nodes if (why := alone.refusal(n)) is not None}
    else:
        refused = refusals(graph, target)
    return {node.name: _verdict(node, graph, refused.get(node.name)) for node in graph.nodes}


def refusals(graph: Graph, target: TargetConfig) -> dict[str, str]:
    """Returns the nodes that compiling a graph refuses, by name, with the reasons.

    Raises:
        GraphError: a node does not have the operands or attributes of its op.
    """
    lowered = run_passes(graph, target)
    alone = _Alone(graph, target)
    refused: dict[str, str] = {}
    for node, why in unsupported_nodes(lowered, target):
        origin = _origin(node, lowered, graph)
        reasons = {n.name: alone.refusal(n) for n in origin} if len(origin) > 1 else {}
        own = {name: reason for name, reason in reasons.items() if reason is not None}
        refused.update(own or dict.fromkeys((n.name for n in origin), why))
    return refused


def is_op_supported(
    op: str,
    attrs: Mapping[str, Attr] | None = None,
    *,
    inputs: Sequence[TensorType | None] | None = None,
    target: str | TargetConfig = "cpu",
) -> bool:
    """Tells whether a target has kernels for an operator.

    Args:
        op: its name with overload, `aten.softmax.int`.
        attrs: its arguments that are no tensors; those left out have the schema's defaults.
        inputs: the types of its tensors; PyTorch has to be installed. Without them, the answer is
            whether npusim can lower the operator, and the target, if PyTorch is there to ask with,
            runs one of the calls that it is tested with.
        target: a target's name, the path of a target file, or a TargetConfig.

    Raises:
        TargetConstraintError: unknown target.
        Error: the operator refuses the operands.
    """
    config = target if isinstance(target, TargetConfig) else TargetConfig.named(target)
    if inputs is not None:
        return _runs(op, attrs or {}, inputs, config)
    definition = find(op)
    if definition is None or definition.lower is None:
        return False
    if not definition.cases or importlib.util.find_spec("torch") is None:
        return True
    calls = ((case, dtype) for case in definition.cases for dtype in definition.dtypes)
    return any(_runs(op, case.attrs, case.types(dtype), config) for case, dtype in calls)


def _runs(
    op: str, attrs: Mapping[str, Attr], inputs: Sequence[TensorType | None], target: TargetConfig
) -> bool:
    from npusim.ops.reference import infer_types
    from npusim.ops.schema import attributes

    definition = find(op)
    if definition is None or definition.infer is None:  # else PyTorch may not know it
        attrs = attributes(op, attrs)
    names = [None if t is None else f"x{i}" for i, t in enumerate(inputs)]
    values = tuple(Value(n, t) for n, t in zip(names, inputs, strict=True) if n and t)
    results = infer_types(op, inputs, attrs)
    outputs = tuple(Value(f"y{i}", t) for i, t in enumerate(results))
    node = Node("call", op, tuple(names), outputs, attrs)
    shown = tuple(Output(v.name, v.name) for v in outputs)
    graph = Graph("call", values, shown, (), (), (node,))
    return _refusal(node, graph, target) is None


def host_refusal(op: str) -> str | None:
    """Returns why PyTorch cannot run an operator on the CPU of this machine, or None."""
    definition = find(op)
    if importlib.util.find_spec("torch") is None:
        return "PyTorch, which would run it, is not installed"
    if definition is not None and definition.reference is not None:
        return None
    from npusim.ops import schema

    try:
        return schema.host_refusal(schema.resolve(op))
    except UnsupportedOpError as error:
        return str(error)


def kept_off(node: Node, constraint: str, reason: str) -> Verdict:
    """Returns the verdict on a node that could be native and is not to be."""
    refusal = host_refusal(node.op)
    if refusal is not None:
        return Verdict(UNSUPPORTED, constraint, f"{reason}; {refusal}")
    return Verdict(FALLBACK, constraint, reason)


def _fallback(node: Node, reason: str) -> Verdict:
    return kept_off(node, _constraint(reason), reason)


def _constraint(reason: str) -> str:
    kinds = (kind for kind, words in _KINDS if any(word in reason for word in words))
    return next(kinds, "attribute")


def _verdict(node: Node, graph: Graph, refused: str | None) -> Verdict:
    if refused is not None:
        return _fallback(node, refused)
    # What no lowering takes as it stands was compiled as other ops, or with its neighbours.
    return Verdict(NATIVE if op_constraint(node, graph) is None else DECOMPOSED)


def _origin(node: Node, lowered: Graph, graph: Graph) -> list[Node]:
    """Returns the nodes of a graph that a node which passes left of it computes.

    Those between what it reads and the first results after it that the graph has, too.
    """
    results, ends, waiting = set[str](), set[str](), [node]
    for step in waiting:
        ends.update(i for i in step.inputs if i is not None)
        for value in step.outputs:
            if value.name in graph.producers:
                results.add(value.name)
            else:
                waiting += [u for u in lowered.users[value.name] if u not in waiting]
    found: dict[str, Node] = {}
    values = list(results)
    for name in values:
        producer = graph.producers.get(name)
        if producer is None or producer.name in found:
            continue
        found[producer.name] = producer
        values += [i for i in producer.inputs if i is not None and i not in ends]
    return list(found.values()) or list(graph.nodes)


class _Alone:
    """Asks whether nodes of a graph can be compiled without their neighbours, each kind once."""

    def __init__(self, graph: Graph, target: TargetConfig) -> None:
        self._graph, self._target = graph, target
        self._known: dict[object, str | None] = {}

    def refusal(self, node: Node) -> str | None:
        """Returns why a graph of this node alone cannot be compiled, or None."""
        key = signature(node, self._graph)
        if key not in self._known:
            self._known[key] = _refusal(node, self._graph, self._target)
        return self._known[key]


def _refusal(node: Node, graph: Graph, target: TargetConfig) -> str | None:
    alone = single(node, graph)
    if foreign_values(alone):
        return op_constraint(node, graph) or "a dtype that no device has"
    try:
        found = unsupported_nodes(run_passes(alone, target), target)
    except Error as error:
        return str(error)
    return (op_constraint(node, graph) or found[0][1]) if found else None
