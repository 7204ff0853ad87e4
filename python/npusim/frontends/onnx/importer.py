"""Walks an ONNX model and builds the graph: initialisers, nodes, functions, outputs.

Owns the order of attempts for a node: compute it when all is known, else its translation, else the
function body that ONNX defines it by. Control flow is unrolled by `control`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from onnx import AttributeProto, FunctionProto, ModelProto, NodeProto, TensorProto, helper

from npusim.errors import Error, ExportError
from npusim.frontends.onnx import control
from npusim.frontends.onnx.builder import Builder, NeedsValues, Tensor
from npusim.frontends.onnx.evaluate import NEEDS_VALUES, BeyondReference, evaluate, is_foldable
from npusim.frontends.onnx.files import RUNTIME_DOMAIN, array_of, read_model
from npusim.frontends.onnx.functions import body_of, defaults, since
from npusim.frontends.onnx.inputs import add_inputs
from npusim.frontends.onnx.kinds import Array
from npusim.frontends.onnx.open_shapes import open_shapes
from npusim.frontends.onnx.refusals import refuse_unknown
from npusim.frontends.onnx.registry import (
    HINTS,
    TRANSLATIONS,
    Attributes,
    Call,
    Results,
    Translation,
)
from npusim.frontends.onnx.scope import Scope, domain_of, opsets_of, with_attributes
from npusim.frontends.onnx.sizes import computed, kind_of
from npusim.frontends.onnx.symbolic_types import SymbolicTypes
from npusim.ir.graph import Graph, Output, Source
from npusim.ir.rewrite import Names
from npusim.ir.symbolic import is_symbolic, symbols_of
from npusim.ir.verify import verify_graph

FAMILIES = (
    *("pointwise", "shapes", "reductions", "matmul", "pooling", "normalization", "indexing"),
    *("quantization", "resizing", "recurrent", "spectral", "casts", "sequences", "detection"),
    *("features", "ensembles", "kernel_machines", "optimizers"),
    *("microsoft", "fusions", "fused_attention", "grouped_attention", "blocks_of_bits"),
    "quantized_layers",
)


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
    dynamic_shapes: Mapping[str, int | tuple[int, int]] | None = None,
    name: str | None = None,
) -> Imported:
    """Imports an ONNX model.

    Args:
        model: the path of a file, or a model in memory.
        shapes: the shapes of inputs whose dimensions the model leaves open. Of a sequence, the
            shape of each element; of an optional that is absent, None.
        values: values of inputs that the model's structure depends on (a shape, an axis). They
            are fixed, and no inputs of the graph.
        dynamic_shapes: the sizes that calls choose: by the name of each dimension that the model
            leaves open, the greatest value, or (least, greatest); the least is 1 by default, and
            equal ones fix the size. A dimension without a name is called INPUT_AXIS.
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
    walk = ModelWalk(proto, folder, title or "model")
    return walk.run(shapes or {}, values or {}, dynamic_shapes)


class ModelWalk:
    """An import under way: the model, the graph so far, and what was computed beforehand."""

    def __init__(self, model: ModelProto, folder: Path | None, name: str) -> None:
        self.model, self.folder, self.name = model, folder, name
        self.graph = Builder()
        self.functions = {(f.domain, f.name): f for f in model.functions}
        self.evaluated: list[str] = []

    def run(
        self,
        shapes: Mapping[str, Any],
        values: Mapping[str, Array],
        dynamic_shapes: Mapping[str, int | tuple[int, int]] | None = None,
    ) -> Imported:
        """Builds the graph; the arguments are those of `from_onnx`."""
        scope = Scope({}, opsets_of(self.model))
        refuse_unknown(self.model, self.name, scope.opsets, self.functions)
        graph = self.model.graph
        for tensor in graph.initializer:
            array = array_of(tensor, self.folder)
            scope.values[tensor.name] = self.graph.known(
                array, kind=tensor.data_type, key=tensor.name
            )
        shapes = {**shapes, **open_shapes(self.name, graph, scope, shapes, values, dynamic_shapes)}
        kinds = add_inputs(self.graph, self.name, graph, scope, shapes, values)
        if is_symbolic([v.type.shape for v in self.graph.inputs]):
            found = symbols_of([v.type.shape for v in self.graph.inputs])
            self.graph.types = SymbolicTypes(found)
        for node in graph.node:
            self.add_node(node, scope)
        names, outputs = Names(), []
        lengths: list[int | None] = []
        for info in graph.output:
            result = scope.get(info.name)
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
        domain = domain_of(node)
        inputs = [scope.get(name) if name else None for name in node.input]
        node = with_attributes(node, scope)
        if not domain and node.op_type in control.OPERATORS:
            return control.unrolled(self, node, inputs, scope)
        body = self.functions.get((node.domain, node.op_type))
        if body is not None:
            return self._call_function(body, node, inputs, scope)
        folded = self._folded(node, inputs, scope)
        if folded is not None:
            return folded
        translate = TRANSLATIONS.get((domain, node.op_type))
        if translate is not None:
            version = since(node.op_type, domain, scope.opsets)
            attrs = Attributes({a.name: self._attribute(a) for a in node.attribute})
            call = Call(self.graph, node.op_type, version, attrs, len(node.output))
            results = _translated(translate, call, inputs)
            if domain == RUNTIME_DOMAIN and (domain, node.op_type) in HINTS:
                _refuse_unread(attrs, HINTS[domain, node.op_type])
            return [results] if isinstance(results, Tensor) else list(results)
        body = body_of(node, inputs, scope.opsets)
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
        if any(t.sizes is not None for t in tensors):
            return self._folded_sizes(node, inputs)
        if node.op_type in NEEDS_VALUES and not node.domain:
            for tensor in tensors:
                try:
                    tensor.values(f"{node.op_type} {_title(node)}: the shape of its result")
                except NeedsValues as error:
                    raise error.with_hint(
                        f"Import the model without what follows {node.input[0]} (selections of "
                        "detections, say): onnx.utils.extract_model writes the part before."
                    ) from None
        elif not tensors or any(t.data is None for t in tensors):
            return None
        arrays = [None if i is None else i.data for i in inputs]
        needs = frozenset().union(*(t.needs for t in tensors))
        if not needs and not is_foldable(arrays):
            return None
        if (node.domain, node.op_type) in TRANSLATIONS and domain_of(node):
            return None
        try:
            results = evaluate(node, arrays, scope.opsets)
        except BeyondReference:
            if (domain_of(node), node.op_type) in TRANSLATIONS:
                return None  # what the reference cannot compute, the program may
            raise
        if needs:
            self.evaluated.append(node.op_type)
        return [self.graph.known(array, needs=needs) for array in results]

    def _folded_sizes(
        self, node: NodeProto, inputs: Sequence[Tensor | None]
    ) -> Sequence[Tensor] | None:
        """Returns the results when all operands are known numbers and symbolic sizes; or None."""
        arrays = []
        for tensor in inputs:
            if tensor is None or tensor.sizes is not None:
                arrays.append(None if tensor is None else tensor.sizes)
            elif tensor.data is not None and tensor.data.dtype.kind in "iub":
                arrays.append(tensor.data.astype(object))
            else:
                return None
        attrs = {a.name: self._attribute(a) for a in node.attribute}
        results = None if node.domain else computed(node.op_type, arrays, attrs)
        if results is None:
            return None
        kind = kind_of(node.op_type, [0 if t is None else t.kind for t in inputs], attrs)
        return [self.graph.known_sizes(array, kind) for array in results]

    def _call_function(
        self, body: FunctionProto, node: NodeProto, inputs: Sequence[Any], outer: Scope
    ) -> list[Any]:
        attributes = {a.name: a for a in body.attribute_proto}
        attributes.update((a.name, a) for a in node.attribute)
        schema_defaults = defaults(node)
        scope = Scope(
            dict(zip(body.input, [*inputs, *[None] * len(body.input)], strict=False)),
            {**outer.opsets, **opsets_of(body)},
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


def _translated(translate: Translation, call: Call, inputs: Sequence[Any]) -> Results:
    """Returns what a translation gives. ONNX checks neither shapes nor operators of other domains,
    so what it is given may be anything."""
    try:
        return translate(call, *inputs)
    except Error:
        raise
    except (
        ArithmeticError,
        AssertionError,
        AttributeError,
        LookupError,
        TypeError,
        ValueError,
    ) as e:
        raise ExportError(f"its operands or attributes do not fit the operator ({e}).") from e


def _refuse_unread(attrs: Attributes, hints: Collection[str]) -> None:
    """Refuses attributes that were given and that nobody read: ONNX Runtime's operators get new
    ones, which change what they compute, without getting a new version."""
    unread = sorted(set(attrs.unread()) - set(hints))
    if unread:
        raise ExportError(f"its {', '.join(unread)} is not read, and may change the result.")


def _title(node: NodeProto) -> str:
    return node.name or f"({', '.join(o for o in node.output if o)})"


def _leaves(value: Any) -> list[tuple[str, Tensor]]:
    if isinstance(value, Tensor):
        return [("", value)]
    if isinstance(value, list):
        return [(f".{i}{s}", t) for i, item in enumerate(value) for s, t in _leaves(item)]
    raise ExportError("An output of the model is an optional without a value.")


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
