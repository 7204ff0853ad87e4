"""Which nodes a target runs, and which constraint stands against the others.

Owns the verdict on every node of a graph. What can be compiled is decided where `compile` decides
it (the pipeline, then `program.supported.unsupported_nodes`); what PyTorch can run instead, by its
dispatcher.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from npusim.errors import Error, UnsupportedOpError
from npusim.ir.graph import Attr, Constant, Graph, Node, Output, Value, Weight
from npusim.ir.subgraph import size_witnesses
from npusim.ir.types import TensorType
from npusim.ops.opdef import find
from npusim.passes.run import run_passes
from npusim.program.supported import foreign_values, unsupported_nodes, unsupported_reason
from npusim.targets import TargetConfig

NATIVE, DECOMPOSED, FALLBACK, UNSUPPORTED = "native", "decomposed", "fallback", "unsupported"

# A word in a reason -> the kind of constraint it is about; the first that occurs counts.
_KINDS: tuple[tuple[str, tuple[str, ...]], ...] = (
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
        constraint: what stands against a kernel: "op", "dtype", "rank", "shape", "attribute";
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
    refused = _refused_as_a_whole(graph, target)
    known: dict[object, Verdict] = {}
    verdicts = {}
    for node in graph.nodes:
        key = _signature(node, graph)
        if key not in known:
            known[key] = _alone(node, graph, target)
        verdict = known[key]
        if refused is not None and node.name in refused:
            verdict = _fallback(node, refused[node.name])
        elif refused is not None and not verdict.is_native:
            # Compiled with its neighbours, nothing of it is left to refuse.
            verdict = Verdict(DECOMPOSED)
        verdicts[node.name] = verdict
    return verdicts


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
        inputs: the types of its tensors. Without them, the answer is about the operator as such;
            with them, about this call of it, and PyTorch has to be installed.
        target: a target's name, the path of a target file, or a TargetConfig.

    Raises:
        TargetConstraintError: unknown target.
        Error: the operator refuses the operands.
    """
    config = target if isinstance(target, TargetConfig) else TargetConfig.named(target)
    definition = find(op)
    if inputs is None:
        return definition is not None and definition.lower is not None
    from npusim.ops.reference import infer_types

    names = [None if t is None else f"x{i}" for i, t in enumerate(inputs)]
    values = tuple(Value(n, t) for n, t in zip(names, inputs, strict=True) if n and t)
    results = infer_types(op, inputs, attrs)
    outputs = tuple(Value(f"y{i}", t) for i, t in enumerate(results))
    node = Node("call", op, tuple(names), outputs, attrs or {})
    shown = tuple(Output(v.name, v.name) for v in outputs)
    graph = Graph("call", values, shown, (), (), (node,))
    return _refusal(node, graph, config) is None


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


def _refused_as_a_whole(graph: Graph, target: TargetConfig) -> dict[str, str] | None:
    """Returns the nodes that compiling refuses, with the reasons; None when it cannot be asked."""
    if foreign_values(graph):
        return None
    lowered = run_passes(graph, target)
    refused = {node.name: why for node, why in unsupported_nodes(lowered, target)}
    # A pass made an op of several that no kernel takes: each node is then asked on its own.
    return refused if set(refused) <= set(graph.positions) else None


def _alone(node: Node, graph: Graph, target: TargetConfig) -> Verdict:
    """Returns the verdict on a node without regard to its neighbours."""
    reason = unsupported_reason(node, graph)
    if reason is None:
        return Verdict(NATIVE)
    if _refusal(node, graph, target) is None:
        return Verdict(DECOMPOSED)
    return _fallback(node, reason)


def _refusal(node: Node, graph: Graph, target: TargetConfig) -> str | None:
    """Returns why a graph of this node alone cannot be compiled, or None."""
    single = _single(node, graph)
    if foreign_values(single):
        return unsupported_reason(node, graph) or "a dtype that no device has"
    try:
        found = unsupported_nodes(run_passes(single, target), target)
    except Error as error:
        return str(error)
    return found[0][1] if found else None


def _single(node: Node, graph: Graph) -> Graph:
    """Returns a graph of one node; what was known at load stays known at load."""
    constants = {c.name: c for c in graph.constants}
    inputs: dict[str, Value] = {}
    weights: dict[str, Weight] = {}
    read: dict[str, Constant] = {}
    for name in node.inputs:
        if name is None:
            continue
        if name in constants:
            read[name] = constants[name]
        elif name in graph.static_values:
            weights[name] = Weight(name, name, graph.types[name])
        else:
            inputs[name] = Value(name, graph.types[name])
    outputs = tuple(Output(v.name, v.name) for v in node.outputs)
    leaves = (tuple(weights.values()), tuple(read.values()))
    single = Graph(node.name, tuple(inputs.values()), outputs, *leaves, (node,))
    return replace(single, inputs=(*single.inputs, *size_witnesses(single, graph.types)))


def _signature(node: Node, graph: Graph) -> object:
    """Returns what the verdict on a node depends on."""
    static = graph.static_values
    operands = tuple(None if i is None else (graph.types[i], i in static) for i in node.inputs)
    results = tuple(v.type for v in node.outputs)
    return node.op, operands, results, repr(sorted(node.attrs.items()))
