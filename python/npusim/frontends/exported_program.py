"""An exported program to Graph.

Owns the translation of every call by its schema, of inputs, and the names of what comes out;
`stored_tensors.py` has what the program brings itself. Whatever depends on the values of tensors is
refused, all of it at once.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import sympy  # type: ignore[import-untyped]
import torch
from torch import Tensor
from torch.export import ExportedProgram
from torch.export.graph_signature import ConstantArgument, InputKind, OutputKind
from torch.utils import _pytree as pytree

from npusim.errors import ExportError, SymbolicSizeError, at
from npusim.frontends import decompositions as policy
from npusim.frontends import recurrences
from npusim.frontends.dynamic_shapes import Sizes
from npusim.frontends.fractions import emit_fraction
from npusim.frontends.refusals import source_line
from npusim.frontends.stored_tensors import StoredTensors
from npusim.frontends.weight_free import ModuleTensors
from npusim.ir.graph import Attr, Graph, Node, Output, Source, Value
from npusim.ir.rewrite import Names, drop_dead
from npusim.ir.symbolic import is_symbolic
from npusim.ir.types import TensorType
from npusim.ir.verify import verify_graph
from npusim.ops import schema
from npusim.ops.recurrence import RECURRENCE

_ITEM = torch.ops.aten._local_scalar_dense.default
_WITH_EFFECTS = torch.ops.higher_order.with_effects
_WIDEST = {float: torch.float64, complex: torch.complex128}
_NUMBERS = (bool, int, float, torch.SymInt, torch.SymFloat, torch.SymBool)

# What to write for operators that call functions.
_INSTEAD = {
    "cond": "call torch.where on what both branches compute",
    "while_loop": "write the loop in Python, with a number of turns that is no tensor",
    "scan": "write the loop over the first dimension in Python",
    "map_impl": "write the loop over the first dimension in Python, or call torch.vmap",
    "flex_attention": "call torch.nn.functional.scaled_dot_product_attention",
}


@dataclass(frozen=True)
class _Fraction:
    """A number that forward computes from symbolic sizes, and that is no integer."""

    node: torch.fx.Node


# What to write for operators whose result has as many elements as the values of tensors say.
_OF_FIXED_SHAPE = {
    "bincount": "count into a tensor of a fixed size (torch.zeros(n).scatter_add, torch.histc)",
    "_unique2": "sort, and compare neighbours",
    "unique": "sort, and compare neighbours",
    "nonzero": "keep the mask, or take so many places (torch.topk of the mask as numbers)",
}

Bound = list[tuple[schema.Argument, Any]]  # a call's arguments


def translate(program: ExportedProgram, tensors: ModuleTensors, name: str, sizes: Sizes) -> Graph:
    """Returns the graph of a decomposed program.

    Args:
        program: whose calls are in the dialect of the IR.
        tensors: parameters and buffers of the module it was traced from.
        name: the graph's.
        sizes: which sizes of the inputs are symbolic.

    Raises:
        ExportError: the program does what a graph cannot express; lists all of it, with where in
            the model's code it stands.
    """
    return _Translation(program, tensors, name, sizes).graph()


class _Translation:
    """Turns one exported program into a Graph. Used once."""

    def __init__(
        self, program: ExportedProgram, tensors: ModuleTensors, name: str, sizes: Sizes
    ) -> None:
        self.program = program
        self.sizes = sizes
        self.name = name
        self.names = Names()
        self.stored = StoredTensors(program, tensors, sizes, self.names)
        self.inputs: list[Value] = []
        self.nodes: list[Node] = []
        self.values: dict[torch.fx.Node, Any] = {}
        self.problems: list[str] = []

    def graph(self) -> Graph:
        self.mutated = self._mutated_buffers()
        self._translate_inputs()
        for node in self.program.graph.nodes:
            if node.op == "call_function":
                try:
                    self._translate_call(node)
                except (ExportError, SymbolicSizeError) as error:
                    self._refuse(node, str(error))
        outputs = () if self.problems else self._outputs()
        updates = () if self.problems else self._updates()
        self._raise_problems()
        graph = Graph(
            self.name,
            tuple(self.inputs),
            outputs,
            self.stored.weights(),
            tuple(self.stored.constants),
            tuple(self.nodes),
            tuple(self.stored.states.values()),
            updates,
        )
        return verify_graph(drop_dead(graph))

    # ---- what comes in ----

    def _translate_inputs(self) -> None:
        placeholders = [n for n in self.program.graph.nodes if n.op == "placeholder"]
        specs = self.program.graph_signature.input_specs
        pairs = list(zip(placeholders, specs, strict=True))
        for node, spec in pairs:  # first, so that inputs get their plain names
            if spec.kind is InputKind.USER_INPUT:
                self._add_input(node, spec)
        for node, spec in pairs:
            if spec.kind is InputKind.USER_INPUT:
                continue
            if spec.kind is InputKind.TOKEN:  # orders checks that have effects
                self.values[node] = None
                continue
            changed = spec.target in self.mutated
            if node.users or changed:
                try:
                    self.values[node] = self.stored.add(spec, node.meta["val"], state=changed)
                except ExportError as error:
                    self.problems.append(f"{spec.target}: {error}")

    def _add_input(self, node: torch.fx.Node, spec: Any) -> None:
        if isinstance(spec.arg, ConstantArgument):
            self.values[node] = spec.arg.value
            return
        try:
            type = self.sizes.type_of(node.meta["val"])
        except ExportError as error:
            self.problems.append(f"input {node.name}: {error}")
            return
        value = Value(self.names.fresh(node.name), type)
        self.inputs.append(value)
        self.values[node] = value.name

    # ---- calls ----

    def _translate_call(self, node: torch.fx.Node) -> None:
        target = node.target
        tensors = (a for a in node.all_input_nodes if a.op in ("call_function", "placeholder"))
        if any(tensor not in self.values for tensor in tensors):
            return  # follows from a problem that has been noted
        if isinstance(node.meta.get("val"), _NUMBERS):
            self.values[node] = self._number(node)
        elif target is operator.getitem:
            source, index = node.args
            self.values[node] = self.values[source][index]  # type: ignore[index]
        elif target is _WITH_EFFECTS and node.args[1] in policy.ASSERTIONS:
            self.values[node] = (None, None)  # the next token, and nothing
        elif not isinstance(target, torch._ops.OpOverload):
            name = getattr(target, "__name__", str(target))
            if name.startswith("auto_functionalized"):
                raise ExportError(f"{node.args[0]} changes its operands; have it return new ones")
            raise ExportError(
                f"the control flow operator {name} is not supported"
                + "".join(f"; {way}" for known, way in _INSTEAD.items() if name.startswith(known))
            )
        elif not self._has_known_shapes(node.meta.get("val")):
            name = target._schema.name.partition("::")[2]
            ways = (way for known, way in _OF_FIXED_SHAPE.items() if name.startswith(known))
            raise ExportError(
                "the shape of its result depends on the values of tensors; keep the shape "
                f"fixed and mask instead (torch.where){''.join(f', or {way}' for way in ways)}"
            )
        elif policy.is_copy(node):
            self.values[node] = self.values[node.args[0]]  # type: ignore[index]
        else:
            self._add_node(node, target)

    def _has_known_shapes(self, value: Any) -> bool:
        if isinstance(value, (list, tuple)):
            return all(map(self._has_known_shapes, value))
        return not isinstance(value, Tensor) or all(map(self.sizes.knows, value.shape))

    def _number(self, node: torch.fx.Node) -> Any:
        """Returns a number that forward computes from the sizes of its arguments."""
        value = node.meta["val"]
        if isinstance(value, torch.SymInt) and self.sizes.knows(value):
            return self.sizes.of(value)
        if type(value) in (bool, int, float):
            return value
        if isinstance(value, torch.SymFloat) and self.sizes.knows_number(value):
            return _Fraction(node)
        raise ExportError(
            "it gives a Python number, known only once the model runs; keep it a tensor"
        )

    def _fraction(self, fraction: _Fraction, dtype: torch.dtype) -> str:
        """Adds a scalar that holds a fraction of symbolic sizes."""
        expr = sympy.sympify(fraction.node.meta["val"].node.expr)

        def emit(op: str, inputs: tuple[str, ...], attrs: dict[str, Attr]) -> str:
            name = self.names.fresh(fraction.node.name)
            value = Value(name, TensorType(str(attrs.get("dtype") or "float64"), ()))
            self.nodes.append(Node(name, op, inputs, (value,), attrs, _source(fraction.node)))
            return name

        wide = emit_fraction(expr, self.sizes.of_expression, emit)
        name = schema.dtype_name(dtype)
        return (
            wide if name == "float64" else emit("aten._to_copy.default", (wide,), {"dtype": name})
        )

    def _with_fractions(
        self, node: torch.fx.Node, target: torch._ops.OpOverload, bound: Bound
    ) -> tuple[torch._ops.OpOverload, Bound]:
        """Returns a call that takes tensors where this one has numbers that are fractions.

        Raises:
            ExportError: there is no such call.
        """
        given = {a.name: v for a, v in bound}
        named = frozenset(a.name for a, v in bound if a.kind == "attr" and type(v) is _Fraction)
        if not named:
            return target, bound
        overload = policy.tensor_overload(target, named)
        if overload is not None:
            return overload, list(schema.bind(overload, (), given))
        if target is torch.ops.aten.full.default:
            value = self._fraction(given["fill_value"], node.meta["val"].dtype)
            target = torch.ops.aten.expand.default
            return target, list(schema.bind(target, (value, given["size"]), {}))
        raise ExportError(
            f"it takes as numbers ({', '.join(sorted(named))}) what is computed as a fraction of a "
            "symbolic size; scale a tensor instead, or keep that size fixed"
        )

    def _add_node(self, node: torch.fx.Node, target: torch._ops.OpOverload) -> None:
        if policy.reads_memory_layout(node):
            raise ExportError(
                "it reads its operand's memory, which is not in the order of its dimensions here; "
                "use slicing or unfold, or call contiguous() first"
            )
        args, kwargs = tuple(node.args), dict(node.kwargs)
        results: Any = node.meta["val"]
        base = node.name
        norm = policy.batch_norm_arguments(node)
        if norm is not None:
            target, args, kwargs = torch.ops.aten.batch_norm.default, norm, {}
            base, results = "batch_norm", results[0]
        bound = [(a, self._resolved(v)) for a, v in schema.bind(target, args, kwargs)]
        target, bound = self._with_scalars(target, bound)
        target, bound = self._with_fractions(node, target, bound)
        inputs, attrs = self._operands(bound)
        several = isinstance(results, (list, tuple))
        tensors = schema.result_leaves(results)
        if not tensors or not all(isinstance(t, Tensor) for t in tensors):
            raise ExportError("it gives no tensors.")
        name = self.names.fresh(base)
        types = [self.sizes.type_of(t) for t in tensors]
        names = [self.names.fresh(f"{name}.{i}") for i in range(len(types))] if several else [name]
        values = tuple(map(Value, names, types))
        self.nodes.append(Node(name, _op_of(target), inputs, values, attrs, _source(node)))
        self.values[node] = (name,) if norm is not None else _named(results, iter(names))

    def _resolved(self, value: Any) -> Any:
        """Returns the number for a node that is one, anything else as it is."""
        number = isinstance(value, torch.fx.Node) and isinstance(value.meta.get("val"), _NUMBERS)
        return self.values[value] if number else value

    def _with_scalars(
        self, target: torch._ops.OpOverload, bound: Bound
    ) -> tuple[torch._ops.OpOverload, Bound]:
        """Returns the overload for numbers where a call gives numbers for tensors."""
        scalars = frozenset(
            a.name for a, v in bound if a.kind == "tensor" and isinstance(v, (bool, int, float))
        )
        overload = policy.scalar_overload(target, scalars) if scalars else None
        if overload is None:
            return target, bound
        return overload, list(schema.bind(overload, (), {a.name: v for a, v in bound}))

    def _operands(self, bound: Bound) -> tuple[tuple[str | None, ...], dict[str, Attr]]:
        """Splits a call's arguments into tensor operands and attributes."""
        inputs: list[str | None] = []
        attrs: dict[str, Attr] = {}
        given = [
            v.meta["val"] for _, v in bound if isinstance(v, torch.fx.Node) and "val" in v.meta
        ]
        for argument, value in bound:
            if argument.kind == "tensor":
                inputs.append(self._operand(value, given))
            elif argument.kind == "tensors":
                items = None if value is None else [self._operand(v, given) for v in value]
                inputs.extend(items or ())
                attrs[argument.name] = None if items is None else len(items)
            elif argument.kind == "attr":
                attrs[argument.name] = schema.to_attr(self._plain(value), argument)
        return tuple(inputs), attrs

    def _operand(self, value: Any, given: list[Tensor]) -> str | None:
        if value is None:
            return None
        if isinstance(value, torch.fx.Node):
            name = self.values[value]
            if isinstance(name, str) or name is None:
                return name
            value = name
        if isinstance(value, str):
            return value
        if isinstance(value, _Fraction):
            dtype = torch.result_type(given[0], 1.0)
            narrow = dtype.itemsize < 4 and given[0].ndim > 0  # computes in float32, rounds once
            return self._fraction(value, torch.float32 if narrow else dtype)
        if is_symbolic(value):
            return self._size_as_tensor(value, given)
        if isinstance(value, (bool, int, float, complex)):  # promotes as a number, not a tensor
            dtype = torch.result_type(given[0], value) if given else torch.tensor(value).dtype
            # At full width first: PyTorch wraps and rounds scalars, where it refuses data.
            widest = torch.tensor(value, dtype=_WIDEST.get(type(value)))
            return self.stored.add_constant("scalar", widest.to(dtype))
        raise ExportError(f"{value!r} cannot stand for a tensor.")

    def _size_as_tensor(self, size: int, given: list[Tensor]) -> str:
        """Adds a scalar that holds a symbolic size, of the dtype that a number would have there."""
        dtype = schema.dtype_name(torch.result_type(given[0], 1) if given else torch.int64)
        value = Value(self.names.fresh("size"), TensorType(dtype, ()))
        attrs: dict[str, Attr] = {"s": size, "dtype": dtype}
        self.nodes.append(Node(value.name, "aten.scalar_tensor.default", (), (value,), attrs))
        return value.name

    def _plain(self, value: Any) -> Any:
        """Replaces arguments of forward that were specialised (None, numbers) by their values."""
        if isinstance(value, torch.fx.Node):
            return self.values[value]
        if isinstance(value, (list, tuple)):
            return [self._plain(item) for item in value]
        return value

    # ---- what goes out ----

    def _outputs(self) -> tuple[Output, ...]:
        results = [r for r, spec in self._results() if spec.kind is OutputKind.USER_OUTPUT]
        spec = self.program.call_spec.out_spec
        names = output_names(spec, len(results))
        outputs, taken = [], Names()
        for name, result in zip(names, results, strict=True):
            if isinstance(result, torch.fx.Node):
                result = self.values[result]
            if result is None:
                continue
            if not isinstance(result, str):
                raise ExportError(
                    f"The result {name} of {self.name} is {result!r}, not a tensor.",
                    hint="Return tensors only.",
                )
            outputs.append(Output(taken.fresh(name), result))
        if not outputs and not self.mutated:
            raise ExportError(f"{self.name} returns no tensor.")
        return tuple(outputs)

    def _updates(self) -> tuple[Output, ...]:
        states = self.stored.states
        pairs = ((states[path].name, self.values[r]) for path, r in self.mutated.items())
        return tuple(Output(state, value) for state, value in pairs if state != value)

    def _results(self) -> list[tuple[Any, Any]]:
        """Returns what the exported program gives, with what each of it is."""
        (output,) = (n for n in self.program.graph.nodes if n.op == "output")
        specs = self.program.graph_signature.output_specs
        return list(zip(output.args[0], specs, strict=True))

    # ---- refusals ----

    def _mutated_buffers(self) -> dict[str, Any]:
        """Returns, by path, what forward leaves in each buffer; refuses other mutations."""
        kinds = {
            OutputKind.PARAMETER_MUTATION: "the parameter {} is changed by forward",
            OutputKind.USER_INPUT_MUTATION: "the argument {} is changed in place",
        }
        buffers = {}
        for result, spec in self._results():
            if spec.kind is OutputKind.BUFFER_MUTATION:
                buffers[str(spec.target)] = result
            elif spec.kind in kinds:
                self.problems.append(
                    kinds[spec.kind].format(spec.target) + "; return the new value instead"
                )
        return buffers

    def _refuse(self, node: torch.fx.Node, reason: str) -> None:
        name = "Tensor.item" if node.target is _ITEM else str(node.target).removesuffix(".default")
        problem = f"{name}{at(_source(node))}: {reason.rstrip('.')}"
        if problem not in self.problems:
            self.problems.append(problem)

    def _raise_problems(self) -> None:
        if not self.problems:
            return
        listed = "".join(f"\n  {problem}" for problem in self.problems)
        raise ExportError(
            f"{self.name} does what a graph with static shapes cannot express:{listed}."
        )


def _op_of(target: torch._ops.OpOverload) -> str:
    """Returns the op of a graph that a call of an operator is."""
    return RECURRENCE if target is recurrences.RECURRENCE else str(target)


def output_names(spec: pytree.TreeSpec, count: int) -> list[str]:
    """Returns a name for each leaf of a result's structure.

    A lone tensor is `output`; elements of the outermost tuple are `output_0`, `output_1` …; entries
    of dicts and dataclasses have their own names; deeper levels are joined with dots.
    """
    leaves, _ = pytree.tree_flatten_with_path(pytree.tree_unflatten(list(range(count)), spec))
    return [_output_name(path) for path, _ in leaves]


def _output_name(path: tuple[Any, ...]) -> str:
    name = ""
    for entry in path:
        if isinstance(entry, pytree.SequenceKey):
            name = f"{name or 'output'}_{entry.idx}"
        else:
            key = str(entry.key if isinstance(entry, pytree.MappingKey) else entry.name)
            name = f"{name}.{key}" if name else key
    return name or "output"


def _named(results: Any, names: Iterator[str]) -> Any:
    """Returns a result with a name for each tensor; what is None or a list stays that."""
    if isinstance(results, (list, tuple)):
        return tuple(_named(item, names) for item in results)
    return None if results is None else next(names)


def _source(node: torch.fx.Node) -> Source | None:
    stack = node.meta.get("nn_module_stack") or {}
    path = list(stack.values())[-1][0] if stack else ""
    file, line = source_line(node.meta.get("stack_trace"))
    module = path.removeprefix("L['self']").lstrip(".")
    return Source(module, file, line) if module or file else None
