"""Decomposing each distinct call of a program once.

The layers of a model make the same calls, on tensors of the same shapes, and `run_decompositions`
of torch.export runs every one of them through PyTorch's dispatcher: half of an extraction's time.
What a call is decomposed to depends on nothing but the operator, its arguments and the kinds of its
tensors. So one call of each kind is decomposed, all of these in one program, by
`run_decompositions` itself, and the results are put in where the calls stood.

Owns what that leaves to do: calls that change a tensor in place become those that give a new one,
as far as nobody looks at the old one under another name. Programs that do more than that, or whose
calls are mostly different ones, are decomposed as a whole.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch._ops import OpOverload
from torch._subclasses import FakeTensor
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind, OutputSpec, TensorArgument
from torch.utils import _pytree as pytree

from npusim.frontends.decompositions import ASSERTIONS, KEPT
from npusim.frontends.equal_layers import aliases

aten = torch.ops.aten

_REPEATED = 2  # times that calls are made in the mean, from which on this is the shorter way


class _Whole(Exception):
    """The program has to be decomposed as a whole."""


def decomposed(program: ExportedProgram, table: Mapping[OpOverload, Any]) -> ExportedProgram:
    """Returns a program of torch.export, decomposed; the program itself may be changed for it.

    Args:
        program: as exported, before any decomposition.
        table: for `ExportedProgram.run_decompositions`.
    """
    try:
        calls = _Calls(program)
    except _Whole:
        return program.run_decompositions(table)  # type: ignore[arg-type]
    if calls.count < _REPEATED * len(calls.distinct):
        return program.run_decompositions(table)  # type: ignore[arg-type]
    try:
        forms = _forms(list(calls.distinct.values()), table)
    except _Whole:
        return program.run_decompositions(table)  # type: ignore[arg-type]
    _put_in(program, calls, forms)
    return program


# ---- which calls there are ----


@dataclass(frozen=True)
class _Call:
    """A call whose tensors are numbered; a call of the same key has the same form.

    Attributes:
        target: the operator, which changes nothing in place.
        leaves: the arguments; `_Hole` where a tensor stands.
        spec: how the leaves become args and kwargs.
        tensors: a tensor without data for each hole's number.
        value: a result without data, or a list of them.
        in_place: whether the call changed a tensor, and so had that one's type.
    """

    target: OpOverload
    leaves: tuple[Any, ...]
    spec: pytree.TreeSpec
    tensors: tuple[Tensor, ...]
    value: Any
    in_place: bool

    def on(self, tensors: Iterable[Any]) -> Any:
        """Calls the operator on tensors, one for each number."""
        given = list(tensors)
        leaves = [given[x.number] if isinstance(x, _Hole) else x for x in self.leaves]
        args, kwargs = pytree.tree_unflatten(leaves, self.spec)
        return self.target(*args, **kwargs)


@dataclass(frozen=True)
class _Hole:
    number: int


class _Calls:
    """The calls of a program, by kind.

    Attributes:
        count: how many there are.
        distinct: one of each kind, by key.
        key: of each node that calls an operator.
        operands: of each such node, the nodes of its tensors in the order of their numbers.
        written: of each node that changes a tensor in place, the node of that tensor. That node
            stands for the tensor from then on, too: an operand is never such a call.

    Raises:
        _Whole: there are sizes that calls choose, other things than operators on tensors, or a
            tensor that is changed has another name by which it is read afterwards.
    """

    def __init__(self, program: ExportedProgram) -> None:
        self.count = 0
        self.distinct: dict[Any, _Call] = {}
        self.key: dict[fx.Node, Any] = {}
        self.operands: dict[fx.Node, list[fx.Node]] = {}
        self.written: dict[fx.Node, fx.Node] = {}
        self._names = _Names(program)
        if program.range_constraints:
            raise _Whole
        for node in program.graph.nodes:
            if node.op in ("placeholder", "output") or node.target in ASSERTIONS:
                continue
            if node.op != "call_function":
                raise _Whole
            if node.target is operator.getitem:
                self._names.give(node, [self.tensor(node.args[0])])
            else:
                self._add(node)

    def tensor(self, argument: Any) -> Any:
        """Returns the node that stands for a tensor, and any other argument as it is."""
        if not isinstance(argument, fx.Node):
            return argument
        return self.written.get(argument, argument)

    def _add(self, node: fx.Node) -> None:
        target = node.target
        if not isinstance(target, OpOverload) or not _all_tensors(node.meta.get("val")):
            raise _Whole
        changed = [a for a in target._schema.arguments if a.alias_info and a.alias_info.is_write]
        if changed:
            target = _functional(node, changed)
            self.written[node] = self.tensor(node.args[0])
            self._names.write(node, self.written[node])
        else:
            self._names.give(node, map(self.tensor, _may_alias(node)))
        leaves, spec = pytree.tree_flatten((tuple(node.args), dict(node.kwargs)))
        leaves = [self.tensor(x) for x in leaves]
        operands = list(dict.fromkeys(x for x in leaves if isinstance(x, fx.Node)))
        if not all(isinstance(x.meta.get("val"), Tensor) for x in operands):
            raise _Whole
        shown = tuple(_Hole(operands.index(x)) if isinstance(x, fx.Node) else x for x in leaves)
        tensors = tuple(x.meta["val"] for x in operands)
        kinds = tuple(map(_kind, tensors))
        # 1, 1.0 and True are equal, as 0.0 and -0.0 are: how they print tells them apart.
        arguments = tuple(f"{type(x).__name__} {x!r}" for x in shown)
        value, in_place = node.meta["val"], bool(changed)
        key = (target, arguments, str(spec), kinds, _types(value), in_place)
        self.distinct.setdefault(key, _Call(target, shown, spec, tensors, value, in_place))
        self.key[node], self.operands[node] = key, operands
        self.count += 1


def _all_tensors(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return bool(value) and all(isinstance(x, Tensor) for x in value)
    return isinstance(value, Tensor)


def _types(values: Any) -> tuple[Any, ...]:
    return tuple((tuple(x.shape), x.dtype) for x in pytree.tree_leaves(values))


def _kind(x: Tensor) -> Any:
    """Returns what a decomposition may ask of a tensor without data.

    Raises:
        _Whole: it is no dense tensor of fixed sizes.
    """
    if not isinstance(x, FakeTensor) or x.layout != torch.strided:
        raise _Whole
    if not all(type(n) is int for n in (*x.shape, *x.stride())):
        raise _Whole
    bits = (x.is_conj(), x.is_neg(), x.requires_grad)
    return tuple(x.shape), x.stride(), x.dtype, str(x.device), bits


def _functional(node: fx.Node, changed: list[Any]) -> OpOverload:
    """Returns the operator that gives what `node` writes into its first argument.

    Raises:
        _Whole: there is none.
    """
    target: OpOverload = node.target  # type: ignore[assignment]
    own = target._schema
    first = node.args[0] if node.args else None
    if [a.name for a in changed] != [own.arguments[0].name]:
        raise _Whole
    name = own.name.removeprefix("aten::")
    packet = getattr(torch.ops.aten, name[:-1], None) if name.endswith("_") else None
    if packet is None or name == "copy_" or target._overloadname not in packet.overloads():
        raise _Whole
    found: OpOverload = getattr(packet, target._overloadname)
    same = [(a.name, str(a.type)) for a in found._schema.arguments]
    if same != [(a.name, str(a.type)) for a in own.arguments] or found._schema.is_mutable:
        raise _Whole
    if not isinstance(first, fx.Node) or not isinstance(first.meta.get("val"), Tensor):
        raise _Whole
    return found


def _may_alias(node: fx.Node) -> list[fx.Node]:
    """Returns the operands that a call's result may be another name of.

    Schemas say so of views. Operators that PyTorch composes of others may give back an operand and
    say nothing; then both lie in the same memory, with data or without.
    """
    target: OpOverload = node.target  # type: ignore[assignment]
    if any(result.alias_info is not None for result in target._schema.returns):
        return list(node.all_input_nodes)
    return [node.all_input_nodes[i] for i in aliases(node)]


class _Names:
    """Which nodes of a program may be names of one tensor, and which of them are read later.

    What calls in place give is no name of its own.
    """

    def __init__(self, program: ExportedProgram) -> None:
        order = {node: i for i, node in enumerate(program.graph.nodes)}
        self._order = order
        self._last = {n: max((order[u] for u in n.users), default=-1) for n in order}
        self._of: dict[fx.Node, set[fx.Node]] = {}
        kinds = {s.arg.name: s.kind for s in program.graph_signature.input_specs}
        self._inputs = {n: kinds.get(n.name) for n in order if n.op == "placeholder"}

    def give(self, node: fx.Node, sources: Iterable[Any]) -> None:
        """Notes that a node may be another name of its sources, and they of one another."""
        joined = {node}
        for source in sources:
            joined |= self._of.get(source, {source})
        for one in joined:
            self._of[one] = joined

    def write(self, node: fx.Node, changed: fx.Node) -> None:
        """Notes that `node` changes a tensor.

        Raises:
            _Whole: the tensor is read later by another name, or is an input that is no buffer.
        """
        names = self._of.get(changed, {changed})
        for one in names - {changed}:
            if self._last[one] > self._order[node] or one in self._inputs:
                raise _Whole
        if changed in self._inputs and self._inputs[changed] is not InputKind.BUFFER:
            raise _Whole
        for one in names:
            self._of[one] = {one}
        self._last[changed] = max(self._last[changed], self._last[node])


# ---- what they are decomposed to ----


@dataclass(frozen=True)
class _Form:
    """What a call is decomposed to: nodes over placeholders, one for each number of its tensors."""

    nodes: list[fx.Node]
    inputs: list[fx.Node]
    results: Any  # a node, or a list of them


class _Together(nn.Module):
    """Makes calls that have nothing to do with each other."""

    def __init__(self, calls: list[_Call]) -> None:
        super().__init__()
        self._calls = calls

    def forward(self, *tensors: Tensor) -> list[Any]:
        given = iter(tensors)
        return [call.on([next(given) for _ in call.tensors]) for call in self._calls]


def _forms(calls: list[_Call], table: Mapping[OpOverload, Any]) -> list[_Form]:
    """Returns the form of each call; those that stay as they are need no decomposition."""
    own = [
        None if call.in_place or not _stays(call.target, table) else _itself(call) for call in calls
    ]
    others = [call for call, form in zip(calls, own, strict=True) if form is None]
    found = iter(_decomposed_forms(others, table) if others else ())
    return [next(found) if form is None else form for form in own]


def _stays(target: OpOverload, table: Mapping[OpOverload, Any]) -> bool:
    """Tells whether `run_decompositions` leaves calls of an operator as they are.

    It decomposes what is in its table, and what PyTorch composes of other operators but for those
    that were taken out of it, as `_is_preservable_cia_op` of torch.export tells.
    """
    if target.namespace != "aten" or target in table or target in _DROPPED:
        return False
    schema = target._schema
    if schema.is_mutable:
        return False
    composed = torch._C._dispatch_has_kernel_for_dispatch_key(
        target.name(), torch._C.DispatchKey.CompositeImplicitAutograd
    )
    if not composed and torch._C.DispatchKey.CompositeImplicitAutograd not in target.py_kernels:
        return True
    aliased = any(a.alias_info is not None for a in schema.arguments)
    return target in _KEPT and not aliased


_KEPT = frozenset(getattr(packet, name) for packet in KEPT for name in packet.overloads())
_DROPPED = frozenset(
    (aten.alias.default, aten.detach.default, aten.lift.default, aten.lift_fresh.default)
)


def _itself(call: _Call) -> _Form:
    """Returns the form of a call that stays as it is."""
    graph = fx.Graph()
    inputs = [graph.placeholder(f"x{i}") for i in range(len(call.tensors))]
    for node, tensor in zip(inputs, call.tensors, strict=True):
        node.meta["val"] = tensor
    leaves = [inputs[x.number] if isinstance(x, _Hole) else x for x in call.leaves]
    args, kwargs = pytree.tree_unflatten(leaves, call.spec)
    node = graph.call_function(call.target, args, kwargs)
    node.meta["val"] = call.value
    if isinstance(call.value, Tensor):
        return _Form([node], inputs, node)
    parts = []
    for i, value in enumerate(call.value):
        part = graph.call_function(operator.getitem, (node, i))
        part.meta["val"] = value
        parts.append(part)
    return _Form([node, *parts], inputs, parts)


def _decomposed_forms(calls: list[_Call], table: Mapping[OpOverload, Any]) -> list[_Form]:
    """Returns the form of each call.

    Raises:
        _Whole: results are not of the types that the calls gave; a number of another type that is
            added in place, say, makes none of what it is added to.
    """
    tensors = tuple(_alone(x) for call in calls for x in call.tensors)
    program = torch.export.export(_Together(calls).eval(), tensors, strict=False)
    program = program.run_decompositions(table)  # type: ignore[arg-type]
    nodes = list(program.graph.nodes)
    specs = program.graph_signature.input_specs
    users = {s.arg.name for s in specs if s.kind is InputKind.USER_INPUT}
    inputs = [n for n in nodes if n.op == "placeholder" and n.name in users]
    results = list(nodes[-1].args[0])
    kinds = {s.kind for s in program.graph_signature.output_specs}
    if len(inputs) != len(tensors) or len(users) != len(specs) or kinds != {OutputKind.USER_OUTPUT}:
        raise _Whole
    leaves, spec = pytree.tree_flatten(_results_of(program, len(results)))
    per_call = pytree.tree_unflatten([results[i] for i in leaves], spec)
    forms, at = [], 0
    for call, found in zip(calls, per_call, strict=True):
        own = inputs[at : at + len(call.tensors)]
        at += len(call.tensors)
        form = _Form(_between(own, found), own, found)
        if _types(pytree.tree_map(lambda node: node.meta["val"], found)) != _types(call.value):
            raise _Whole
        forms.append(form)
    return forms


def _alone(x: Tensor) -> Tensor:
    """Returns a tensor like another one, without data as it is, and no other name of anything."""
    with x.fake_mode:
        return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=x.device)


def _results_of(program: ExportedProgram, count: int) -> Any:
    """Returns the structure of a program's results, with their numbers for leaves."""
    return pytree.tree_unflatten(list(range(count)), program.call_spec.out_spec)


def _between(inputs: list[fx.Node], results: Any) -> list[fx.Node]:
    """Returns the nodes that compute results from inputs, in order."""
    found: dict[fx.Node, None] = {}
    stops = set(inputs)

    def visit(node: fx.Node) -> None:
        if node in stops or node in found:
            return
        if node.op != "call_function":
            raise _Whole
        for operand in node.all_input_nodes:
            visit(operand)
        found[node] = None

    for result in pytree.tree_leaves(results):
        if not isinstance(result, fx.Node):
            raise _Whole
        visit(result)
    return list(found)


# ---- where they stand ----


def _put_in(program: ExportedProgram, calls: _Calls, forms: list[_Form]) -> None:
    """Gives a program a graph of the forms of its calls, and notes what becomes of buffers."""
    form_of = dict(zip(calls.distinct, forms, strict=True))
    graph = fx.Graph()
    graph.set_codegen(program.graph._codegen)
    now: dict[fx.Node, Any] = {}  # what a node of before is: a node, or a list of them
    at: dict[fx.Node, fx.Node] = {}  # what a changed tensor is

    def read(node: fx.Node) -> Any:
        return at.get(node, now.get(node))

    *before, output = program.graph.nodes
    for node in before:
        if node.op == "placeholder":
            now[node] = graph.node_copy(node)
        elif node in calls.key:
            operands = [read(x) for x in calls.operands[node]]
            now[node] = _copied(graph, form_of[calls.key[node]], operands, node)
            if node in calls.written:
                at[calls.written[node]] = now[node]
        elif node.target is operator.getitem:
            now[node] = now[calls.tensor(node.args[0])][node.args[1]]
    given = [fx.map_arg(x, lambda n: read(calls.tensor(n))) for x in output.args[0]]  # type: ignore[union-attr, arg-type]
    changed = _changed_buffers(program, at)
    graph.output((*(result for _, result in changed), *given))
    signature = program.graph_signature
    for spec, result in zip(signature.output_specs, given, strict=True):
        if isinstance(spec.arg, TensorArgument):
            spec.arg.name = result.name
    signature.output_specs[:0] = [
        OutputSpec(OutputKind.BUFFER_MUTATION, TensorArgument(result.name), target)
        for target, result in changed
    ]
    program.graph_module.graph = graph


def _copied(graph: fx.Graph, form: _Form, operands: list[Any], origin: fx.Node) -> Any:
    """Adds a form to a graph; returns what its results are there."""
    place = dict(zip(form.inputs, operands, strict=True))
    for node in form.nodes:
        arguments = fx.map_arg((node.args, node.kwargs), place.__getitem__)
        name = node.name.rstrip("0123456789").rstrip("_")  # numbered as the graph's own are
        copy = graph.create_node(node.op, node.target, *arguments, name=name)  # type: ignore[misc]
        copy.meta = {**origin.meta, "val": node.meta["val"]}
        place[node] = copy
    return pytree.tree_map(place.__getitem__, form.results)


def _changed_buffers(
    program: ExportedProgram, at: Mapping[fx.Node, Any]
) -> list[tuple[str | None, fx.Node]]:
    targets = {s.arg.name: s.target for s in program.graph_signature.input_specs}
    return [(targets[n.name], new) for n, new in at.items() if n.op == "placeholder"]
