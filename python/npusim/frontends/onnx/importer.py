"""Walks an ONNX model and builds the graph: inputs, initialisers, nodes, functions, outputs.

Owns the order of attempts for a node: compute it when all is known, else its translation, else the
function body that ONNX defines it by. Control flow is unrolled by `control`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import (
    AttributeProto,
    FunctionProto,
    GraphProto,
    ModelProto,
    NodeProto,
    TensorProto,
    TypeProto,
    helper,
)

from npusim.errors import Error, ExportError, ShapeError
from npusim.frontends.onnx.builder import Builder, NeedsValues, Tensor
from npusim.frontends.onnx.evaluate import NEEDS_VALUES, evaluate, is_foldable
from npusim.frontends.onnx.files import array_of, read_model
from npusim.frontends.onnx.kinds import Array
from npusim.frontends.onnx.registry import TRANSLATIONS, Call
from npusim.ir.graph import Graph, Output, Source
from npusim.ir.rewrite import Names
from npusim.ir.verify import verify_graph

FAMILIES = (
    *("pointwise", "shapes", "reductions", "products", "pooling", "normalization", "indexing"),
    *("quantization", "resizing", "recurrent", "spectral", "casts", "sequences", "detection"),
    "features",
)
_CONTROL = ("If", "Loop", "Scan", "SequenceMap")
_OWN = ("", "ai.onnx")


@dataclass(frozen=True)
class Imported:
    """A model that was imported.

    Attributes:
        graph: the model without its weights.
        weights: arrays by key; keys are names of initialisers. Of external files, mapped.
        kinds: ONNX's element types of the inputs and outputs, by name, as TensorProto numbers.
        evaluated: operators computed while importing from values that the caller gave.
        lengths: for each output of the model, how many tensors it is when it is a sequence, which
            the graph gives as outputs of their own; None for a tensor.
    """

    graph: Graph
    weights: dict[str, Array]
    kinds: Mapping[str, int]
    evaluated: tuple[str, ...] = ()
    lengths: tuple[int | None, ...] = ()


def from_onnx(
    model: str | Path | ModelProto,
    *,
    shapes: Mapping[str, Any] | None = None,
    values: Mapping[str, Array] | None = None,
    name: str | None = None,
) -> Imported:
    """Imports an ONNX model.

    Args:
        model: the path of a file, or a model in memory.
        shapes: the shapes of inputs whose dimensions the model leaves open. Of a sequence, the
            shape of each element; of an optional that is absent, None.
        values: values of inputs that the model's structure depends on (a shape, an axis). They
            are fixed, and no inputs of the graph.
        name: the model's name; by default the file's or the model's own.

    Raises:
        ExportError: no model, a broken one, one of an unknown opset; operators without a meaning
            here (all of them are listed); shapes left open; control flow on values.
        ShapeError: given shapes or values do not fit.
    """
    for family in FAMILIES:
        import_module(f"npusim.frontends.onnx.{family}")
    proto, folder = read_model(model)
    title = name or (Path(model).stem if isinstance(model, (str, Path)) else proto.graph.name)
    return _Import(proto, folder, title or "model").run(shapes or {}, values or {})


@dataclass
class Scope:
    """Names that nodes see: values, attributes of the function around them, opsets."""

    values: dict[str, Any]
    opsets: Mapping[str, int]
    attributes: Mapping[str, AttributeProto] = field(default_factory=dict)

    def inner(self) -> Scope:
        """Returns a scope for a subgraph: it sees everything, and defines for itself."""
        return Scope(dict(self.values), self.opsets, self.attributes)


class _Import:
    def __init__(self, model: ModelProto, folder: Path | None, name: str) -> None:
        self.model, self.folder, self.name = model, folder, name
        self.graph = Builder()
        self.functions = {(f.domain, f.name): f for f in model.functions}
        self.evaluated: list[str] = []

    def run(self, shapes: Mapping[str, Any], values: Mapping[str, Array]) -> Imported:
        opsets = {"" if o.domain in _OWN else o.domain: o.version for o in self.model.opset_import}
        self._refuse_unknown(opsets)
        scope = Scope({}, opsets)
        graph = self.model.graph
        for tensor in graph.initializer:
            array = array_of(tensor, self.folder)
            scope.values[tensor.name] = self.graph.known(
                array, kind=tensor.data_type, key=tensor.name
            )
        kinds = self._add_inputs(graph, scope, shapes, values)
        for node in graph.node:
            self.add_node(node, scope)
        names, outputs = Names(), []
        lengths: list[int | None] = []
        for info in graph.output:
            result = scope.values[info.name]
            lengths.append(len(result) if isinstance(result, list) else None)
            for suffix, tensor in _leaves(result):
                title = names.fresh(info.name + suffix)
                kinds[title] = tensor.kind
                outputs.append(Output(title, self.graph.name_of(tensor)))
        built = Graph(
            self.name,
            tuple(self.graph.inputs),
            tuple(outputs),
            tuple(self.graph.weights.values()),
            tuple(self.graph.constants.values()),
            tuple(self.graph.nodes),
        )
        used = dict.fromkeys(self.evaluated)
        graph_built = verify_graph(_pruned(built))
        arrays = {w.key: self.graph.arrays[w.key] for w in graph_built.weights}
        return Imported(graph_built, arrays, kinds, tuple(used), tuple(lengths))

    def _add_inputs(
        self,
        graph: GraphProto,
        scope: Scope,
        shapes: Mapping[str, Any],
        values: Mapping[str, Array],
    ) -> dict[str, int]:
        kinds: dict[str, int] = {}
        wanted = [i for i in graph.input if i.name not in scope.values]
        unknown = sorted({*shapes, *values} - {i.name for i in graph.input})
        if unknown:
            known = ", ".join(i.name for i in wanted) or "none"
            raise ShapeError(f"The model has no input {', '.join(unknown)}; it has: {known}.")
        problems = []
        for info in graph.input:
            if info.name in values:
                array = np.asarray(values[info.name])
                needs = frozenset((info.name,))
                scope.values[info.name] = self.graph.known(array, needs=needs)
            elif info.name not in scope.values:
                if not info.type.HasField("tensor_type"):
                    try:
                        scope.values[info.name] = self._listed(info, shapes, kinds)
                    except KeyError:
                        what = info.type.WhichOneof("value") or "of no type"
                        problems.append(f"{info.name} is no tensor ({what.replace('_type', '')})")
                    continue
                shape = _shape(info, shapes.get(info.name))
                if shape is None:
                    problems.append(f"{info.name} has the shape {_written(info)}")
                    continue
                kind = info.type.tensor_type.elem_type
                scope.values[info.name] = self.graph.add_input(info.name, kind, shape)
                kinds[info.name] = kind
        if problems:
            raise ExportError(
                f"{self.name} leaves open what a graph must know: {'; '.join(problems)}.",
                hint="Give shapes={name: (1, 3, 224, 224)} (`--shape name=1x3x224x224`).",
            )
        return kinds

    def _listed(self, info: Any, shapes: Mapping[str, Any], kinds: dict[str, int]) -> Any:
        """Adds an input that is a sequence or an optional, and returns it.

        Raises:
            KeyError: nothing is known of its elements.
        """
        given = shapes[info.name]
        type = (
            info.type.optional_type.elem_type if info.type.HasField("optional_type") else info.type
        )
        if given is None:
            return None
        if type.HasField("tensor_type"):
            kinds[info.name] = type.tensor_type.elem_type
            return self.graph.add_input(info.name, kinds[info.name], tuple(given))
        if not type.HasField("sequence_type"):
            raise KeyError(info.name)
        kind = type.sequence_type.elem_type.tensor_type.elem_type
        names = [f"{info.name}.{i}" for i in range(len(given))]
        kinds.update(dict.fromkeys(names, kind))
        return [self.graph.add_input(n, kind, tuple(s)) for n, s in zip(names, given, strict=True)]

    # ---- nodes ----

    def add_node(self, node: NodeProto, scope: Scope) -> None:
        """Adds what a node means, and enters its results in the scope."""
        self.graph.label = node.name or next((o for o in node.output if o), node.op_type)
        self.graph.source = Source(node.name or node.op_type)
        try:
            results = self._results(node, scope)
        except NeedsValues:
            raise
        except Error as error:
            raise type(error)(f"{node.op_type} {_title(node)}: {error}") from None
        for name, result in zip(node.output, results, strict=False):
            if name:
                scope.values[name] = result

    def _results(self, node: NodeProto, scope: Scope) -> Sequence[Any]:
        domain = "" if node.domain in _OWN else node.domain
        inputs = [scope.values[name] if name else None for name in node.input]
        node = _with_attributes(node, scope)
        if domain == "" and node.op_type in _CONTROL:
            from npusim.frontends.onnx import control

            return control.unrolled(self, node, inputs, scope)
        body = self.functions.get((node.domain, node.op_type))
        if body is not None:
            return self._call_function(body, node, inputs, scope)
        folded = self._folded(node, inputs, scope)
        if folded is not None:
            return folded
        translate = TRANSLATIONS.get((domain, node.op_type))
        if translate is not None:
            version = _since(node.op_type, domain, scope.opsets)
            attrs = {a.name: self._attribute(a) for a in node.attribute}
            call = Call(self.graph, node.op_type, version, attrs, len(node.output))
            results = translate(call, *inputs)
            return [results] if isinstance(results, Tensor) else list(results)
        body = _schema_body(node, inputs, scope.opsets)
        if body is None:
            raise ExportError(
                f"the operator {domain or 'ai.onnx'}.{node.op_type} has no meaning here."
            )
        return self._call_function(body, node, inputs, scope)

    def _folded(
        self, node: NodeProto, inputs: Sequence[Any], scope: Scope
    ) -> Sequence[Tensor] | None:
        """Returns the results when all operands are known and few, or must be known; or None."""
        tensors = [i for i in inputs if isinstance(i, Tensor)]
        if node.op_type.startswith(("Optional", "Sequence")) or node.op_type == "DequantizeLinear":
            return None  # of a quantized weight the bytes are what products want
        if len(tensors) != sum(i is not None for i in inputs):
            return None
        if node.op_type in NEEDS_VALUES and not node.domain:
            for tensor in tensors:
                tensor.values(f"what the shape of {node.op_type}'s result depends on")
        elif not tensors or any(t.data is None for t in tensors):
            return None
        arrays = [None if i is None else i.data for i in inputs]
        needs = frozenset().union(*(t.needs for t in tensors))
        if not needs and not is_foldable(arrays):
            return None
        if (node.domain, node.op_type) in TRANSLATIONS and node.domain not in _OWN:
            return None
        results = evaluate(node, arrays, scope.opsets)
        if needs:
            self.evaluated.append(node.op_type)
        return [self.graph.known(array, needs=needs) for array in results]

    def _call_function(
        self, body: FunctionProto, node: NodeProto, inputs: Sequence[Any], outer: Scope
    ) -> list[Any]:
        attributes = {a.name: a for a in body.attribute_proto}
        attributes.update((a.name, a) for a in node.attribute)
        schema_defaults = _defaults(node)
        scope = Scope(
            dict(zip(body.input, [*inputs, *[None] * len(body.input)], strict=False)),
            {
                **outer.opsets,
                **{"" if o.domain in _OWN else o.domain: o.version for o in body.opset_import},
            },
            {**schema_defaults, **attributes},
        )
        for inner in body.node:
            self.add_node(inner, scope)
        return [scope.values.get(name) for name in body.output]

    def array_of(self, tensor: TensorProto) -> Array:
        """Returns the elements of an initialiser."""
        return array_of(tensor, self.folder)

    def _attribute(self, attribute: AttributeProto) -> Any:
        if attribute.type == AttributeProto.TENSOR:
            return array_of(attribute.t, self.folder)
        return helper.get_attribute_value(attribute)

    # ---- refusals ----

    def _refuse_unknown(self, opsets: Mapping[str, int]) -> None:
        """Raises ExportError with every operator that has no meaning here, and how many of each."""
        missing: Counter[str] = Counter()
        for node in _all_nodes(self.model):
            domain = "" if node.domain in _OWN else node.domain
            known = (domain, node.op_type) in TRANSLATIONS or (
                node.domain,
                node.op_type,
            ) in self.functions
            control = domain == "" and (node.op_type in _CONTROL or node.op_type in NEEDS_VALUES)
            if known or control or _has_body(node.op_type, domain, opsets):
                continue
            missing[f"{domain or 'ai.onnx'}.{node.op_type}"] += 1
        if missing:
            listed = "".join(f"\n  {op} ({count})" for op, count in sorted(missing.items()))
            raise ExportError(
                f"{self.name} calls operators that have no meaning here:{listed}",
                hint="\nSay what a custom one means with "
                "npusim.frontends.onnx.register_translation.",
            )


def _all_nodes(model: ModelProto) -> list[NodeProto]:
    found: list[NodeProto] = []
    pending: list[Any] = [model.graph, *model.functions]
    while pending:
        for node in pending.pop().node:
            found.append(node)
            pending.extend(a.g for a in node.attribute if a.HasField("g"))
    return found


def _title(node: NodeProto) -> str:
    return node.name or f"({', '.join(o for o in node.output if o)})"


def _leaves(value: Any) -> list[tuple[str, Tensor]]:
    if isinstance(value, Tensor):
        return [("", value)]
    if isinstance(value, list):
        return [(f".{i}{s}", t) for i, item in enumerate(value) for s, t in _leaves(item)]
    raise ExportError("An output of the model is an optional without a value.")


def _shape(info: Any, given: Sequence[int] | None) -> tuple[int, ...] | None:
    """Returns an input's shape, or None when it is open."""
    declared = info.type.tensor_type
    if given is None:
        if not declared.HasField("shape"):
            return None
        dims = [d.dim_value if d.HasField("dim_value") else -1 for d in declared.shape.dim]
        return None if any(d < 0 for d in dims) else tuple(dims)
    shape = tuple(int(d) for d in given)
    if declared.HasField("shape"):
        fixed = [d.dim_value if d.HasField("dim_value") else None for d in declared.shape.dim]
        fits = len(fixed) == len(shape) and all(
            f is None or f == d for f, d in zip(fixed, shape, strict=True)
        )
        if not fits:
            raise ShapeError(
                f"{info.name} has the shape {_written(info)}; {list(shape)} does not fit."
            )
    return shape


def _written(info: Any) -> str:
    if not info.type.tensor_type.HasField("shape"):
        return "of no known rank"
    dims = info.type.tensor_type.shape.dim
    named = (str(d.dim_value) if d.HasField("dim_value") else d.dim_param or "?" for d in dims)
    return f"[{', '.join(named)}]"


def _with_attributes(node: NodeProto, scope: Scope) -> NodeProto:
    """Replaces references to attributes of the function around the node by their values."""
    if not any(a.ref_attr_name for a in node.attribute):
        return node
    copy = NodeProto()
    copy.CopyFrom(node)
    del copy.attribute[:]
    for attribute in node.attribute:
        if not attribute.ref_attr_name:
            copy.attribute.append(attribute)
        elif attribute.ref_attr_name in scope.attributes:
            given = copy.attribute.add()
            given.CopyFrom(scope.attributes[attribute.ref_attr_name])
            given.name = attribute.name
    return copy


@cache
def _schema(op: str, domain: str, version: int) -> Any:
    try:
        return onnx.defs.get_schema(op, version, domain)
    except onnx.defs.SchemaError:
        return None


def _since(op: str, domain: str, opsets: Mapping[str, int]) -> int:
    schema = _schema(op, domain, opsets.get(domain, 1))
    return 1 if schema is None else int(schema.since_version)


def _defaults(node: NodeProto) -> dict[str, AttributeProto]:
    domain = "" if node.domain in _OWN else node.domain
    newest = 10_000 if domain else onnx.defs.onnx_opset_version()
    schema = _schema(node.op_type, domain, newest)
    if schema is None:
        return {}
    found = ((n, a.default_value) for n, a in schema.attributes.items())
    return {n: a for n, a in found if a.type}


def _has_body(op: str, domain: str, opsets: Mapping[str, int]) -> bool:
    schema = _schema(op, domain, opsets.get(domain, 1))
    return schema is not None and (schema.has_function or schema.has_context_dependent_function)


def _schema_body(
    node: NodeProto, inputs: Sequence[Any], opsets: Mapping[str, int]
) -> FunctionProto | None:
    """Returns the function that ONNX defines an operator by, for these operands; or None."""
    domain = "" if node.domain in _OWN else node.domain
    schema = _schema(node.op_type, domain, opsets.get(domain, 1))
    if schema is None:
        return None
    version = opsets.get("", onnx.defs.onnx_opset_version())
    if schema.has_function:
        usable = [v for v in schema.function_opset_versions if v <= version]
        data = schema.get_function_with_opset_version(usable[-1]) if usable else None
        return None if data is None else _parsed(data)
    if not schema.has_context_dependent_function:
        return None
    types = [_type_proto(i).SerializeToString() for i in inputs]
    usable = [v for v in schema.context_dependent_function_opset_versions if v <= version]
    if not usable:
        return None
    data = schema.get_context_dependent_function_with_opset_version(
        usable[-1], node.SerializeToString(), types
    )
    return _parsed(data)


def _parsed(data: Any) -> FunctionProto:
    if isinstance(data, FunctionProto):
        return data
    body = FunctionProto()
    body.ParseFromString(data)
    return body


def _type_proto(value: Any) -> TypeProto:
    if not isinstance(value, Tensor):
        return TypeProto()
    made: TypeProto = helper.make_tensor_type_proto(value.kind, value.shape)
    return made


def _pruned(graph: Graph) -> Graph:
    """Returns the graph without nodes, weights and constants that no output depends on."""
    wanted = {o.value for o in graph.outputs}
    nodes = []
    for node in reversed(graph.nodes):
        if any(v.name in wanted for v in node.outputs):
            nodes.append(node)
            wanted.update(i for i in node.inputs if i is not None)
    return Graph(
        graph.name,
        graph.inputs,
        graph.outputs,
        tuple(w for w in graph.weights if w.name in wanted),
        tuple(c for c in graph.constants if c.name in wanted),
        tuple(reversed(nodes)),
    )
