"""Walks a graph and builds the ONNX model: inputs, weights, nodes, outputs, states.

Owns names: values keep theirs, weights have their checkpoint keys, nodes the path of the module
that they come from. What has no form in ONNX is refused, all of it at once. A state is one more
input, and what a call leaves in it one more output.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import onnx
from onnx import ModelProto, NodeProto, ValueInfoProto, checker, helper

from npusim.errors import Error, ExportError, UnsupportedOpError, at, first_line
from npusim.exporters.onnx import scalar
from npusim.exporters.onnx.builder import Builder, Call, NoForm, Tensor, kind_of
from npusim.exporters.onnx.registry import TRANSLATIONS
from npusim.exporters.onnx.sizes import dimensions, told_by_inputs
from npusim.ir.graph import Graph, Node, Weight
from npusim.ir.opdef import find
from npusim.ir.rewrite import Names
from npusim.ir.symbolic import describe, is_symbolic
from npusim.ir.types import TensorType
from npusim.ops.reference import constant_tensor

MIN_OPSET, DEFAULT_OPSET = 18, 23
FAMILIES = (
    *("pointwise", "views", "creation", "reductions", "prefixes", "matmul", "attention"),
    *("convolution", "pooling", "normalization", "indexing", "scattering", "resizing", "fused"),
)


@dataclass(frozen=True)
class Exported:
    """A graph in ONNX, still without the elements of its weights.

    Attributes:
        model: the model; weights are inputs after the graph's own.
        weights: the graph's weights by the names they have in the model.
    """

    model: ModelProto
    weights: dict[str, Weight]


def to_onnx(graph: Graph, opset: int = DEFAULT_OPSET) -> Exported:
    """Returns a graph as an ONNX model that has passed ONNX's own checks.

    Args:
        graph: any legal graph, before or after passes.
        opset: the version of ONNX's operators to use, `MIN_OPSET` to the installed onnx's newest.

    Raises:
        Error: the opset is out of range.
        UnsupportedOpError: operators have no form in ONNX, or none over sizes that calls choose;
            all of them are listed.
        ExportError: the model breaks ONNX's rules.
    """
    newest = onnx.defs.onnx_opset_version()
    if not MIN_OPSET <= opset <= newest:
        raise Error(
            f"Models are written for opsets {MIN_OPSET} to {newest} (onnx {onnx.__version__}), "
            f"not {opset}."
        )
    for family in FAMILIES:
        import_module(f"npusim.exporters.onnx.{family}")
    exported = _Export(graph, opset).run()
    try:
        checker.check_model(exported.model, full_check=True)
    except (checker.ValidationError, onnx.shape_inference.InferenceError, RuntimeError) as error:
        text = " ".join(str(error).split())
        raise ExportError(f"{graph.name} came out against ONNX's rules: {text}") from error
    return exported


class _Export:
    def __init__(self, graph: Graph, opset: int) -> None:
        self.graph = graph
        self.names, self.titles = Names(), Names()
        self.builder = Builder(self.names, opset)
        self.values: dict[str, Tensor] = {}
        self.infos: list[ValueInfoProto] = []
        self.problems: list[str] = []
        self.refused: list[str] = []

    def run(self) -> Exported:
        graph = self.graph
        inputs = [self._source(v.name, v.name, v.type) for v in (*graph.inputs, *graph.states)]
        given = {v.name: self.values[v.name].name for v in graph.inputs}
        self.builder.sizes.told = told_by_inputs(graph, given)
        self.results = self._result_names()
        keyed = {w.name: self.names.fresh(w.key) for w in graph.weights}
        weights = [self._source(w.name, keyed[w.name], w.type) for w in graph.weights]
        for constant in graph.constants:
            held = constant_tensor(constant)
            self.values[constant.name] = self.builder.constant(
                held, self.names.fresh(constant.name)
            )
        for node in graph.nodes:
            try:
                self._add(node)
            except NoForm as error:
                self._refuse_node(node, str(error))
            except Exception as error:
                # A number was asked for that only the call has; NumPy and PyTorch say it their way.
                if not self._has_sizes(node):
                    raise
                self._refuse_node(node, f"with sizes that calls choose: {first_line(error)}")
        self._refuse()
        outputs = [self._output(i, o.value) for i, o in enumerate(self._seen())]
        model = self._model([*inputs, *weights], outputs)
        return Exported(model, {keyed[w.name]: w for w in graph.weights})

    # ---- the outside ----

    def _seen(self) -> Sequence[Any]:
        """The results and what the call leaves in states, in the order of the outputs."""
        return (*self.graph.outputs, *self.graph.updates)

    def _result_names(self) -> list[str]:
        plain = [self.names.fresh(o.name) for o in self.graph.outputs]
        return plain + [self.names.fresh(f"{u.name}.next") for u in self.graph.updates]

    def _source(self, value: str, name: str, type: TensorType) -> ValueInfoProto | None:
        name = name if name in self.names else self.names.fresh(name)
        self.values[value] = Tensor(name, type.dtype, type.shape)
        try:
            return helper.make_tensor_value_info(name, kind_of(type.dtype), dimensions(type.shape))
        except NoForm as error:
            self.problems.append(f"{value}: {error}")
            return None

    def _output(self, index: int, value: str) -> ValueInfoProto:
        name, tensor = self.results[index], self.values[value]
        if tensor.name != name:
            title = self.titles.fresh(f"{name}/Identity")
            self.builder.nodes.append(
                helper.make_node("Identity", [tensor.name], [name], name=title)
            )
        shape = dimensions(tensor.shape)
        return helper.make_tensor_value_info(name, kind_of(tensor.dtype), shape)

    # ---- nodes ----

    def _refuse_node(self, node: Node, reason: str) -> None:
        self.problems.append(f"{node.name} ({node.op}){at(node.source)}: {reason}")
        self.refused.append(node.name)
        self._stand_in(node)

    def _has_sizes(self, node: Node) -> bool:
        operands = (self.values[i].shape for i in node.inputs if i is not None)
        return node.is_symbolic or is_symbolic(tuple(operands))

    def _stand_in(self, node: Node) -> None:
        """Enters results that nobody made, so that the rest can be looked at as well."""
        for value in node.outputs:
            self.values[value.name] = Tensor(value.name, value.type.dtype, value.type.shape)

    def _add(self, node: Node) -> None:
        for value in node.outputs:
            kind_of(value.type.dtype)
        start = len(self.builder.nodes)
        operands = [None if i is None else self.values[i] for i in node.inputs]
        call = Call(self.builder, self.graph, node)
        results = _translated(call, operands)
        for value, result in zip(node.outputs, results, strict=True):
            if result is not None:
                fitted = call.expand(call.cast(result, value.type.dtype), value.type.shape)
                self.values[value.name] = self._named(value.name, fitted, start)
        self._title(node, start)
        for value in node.outputs:
            tensor = self.values.get(value.name)
            if tensor is not None and tensor.name not in self.results:
                kind, shape = kind_of(tensor.dtype), dimensions(tensor.shape)
                self.infos.append(helper.make_tensor_value_info(tensor.name, kind, shape))

    def _named(self, value: str, tensor: Tensor, start: int) -> Tensor:
        """Gives a node's result the value's name, or that of the output that shows it."""
        made = self.builder.nodes[start:]
        if not any(tensor.name in node.output for node in made):
            return tensor  # an operand as it stands, or a constant
        shown = [i for i, o in enumerate(self._seen()) if o.value == value]
        name = self.results[shown[0]] if shown else self.names.fresh(value)
        self.builder.sizes.forget(tensor.name)
        for node in made:
            for field in (node.input, node.output):
                for i, given in enumerate(field):
                    if given == tensor.name:
                        field[i] = name
        return Tensor(name, tensor.dtype, tensor.shape)

    def _title(self, node: Node, start: int) -> None:
        """Names a node's ONNX nodes after its module, and says where it comes from."""
        made: list[NodeProto] = self.builder.nodes[start:]
        source = node.source
        base = f"{source.module}/{node.name}" if source and source.module else node.name
        for item in made:
            item.name = self.titles.fresh(base if len(made) == 1 else f"{base}/{item.op_type}")
            if source is not None and source.file:
                item.doc_string = f"{source.file}:{source.line}"
            item.metadata_props.add(key="npusim.op", value=node.op)

    # ---- the whole ----

    def _refuse(self) -> None:
        if self.problems:
            listed = "".join(f"\n  {problem}" for problem in self.problems)
            sizes = {symbol.name: symbol.high for symbol in self.graph.symbols}
            fixed = f"\nWith fixed sizes it may: npusim.specialize(ir, {sizes})." if sizes else ""
            raise UnsupportedOpError(
                f"{self.graph.name} has no form in standard ONNX:{listed}{fixed}",
                nodes=tuple(self.refused),
            )

    def _model(self, inputs: list[Any], outputs: list[ValueInfoProto]) -> ModelProto:
        unique = {info.name: info for info in self.infos}
        names = {i.name for i in inputs} | {c.name for c in self.builder.constants}
        graph = helper.make_graph(
            self.builder.nodes,
            self.graph.name or "model",
            inputs,
            outputs,
            self.builder.constants,
            value_info=[info for name, info in unique.items() if name not in names],
        )
        opsets = [helper.make_opsetid("", self.builder.opset)]
        model: ModelProto = helper.make_model(
            graph,
            producer_name="npusim",
            opset_imports=opsets,
            ir_version=helper.find_min_ir_version_for(opsets),
        )
        if self.graph.symbols:
            model.metadata_props.add(key="npusim.sizes", value=describe(self.graph.symbols))
        return model


def _translated(call: Call, operands: Sequence[Tensor | None]) -> list[Tensor | None]:
    """Returns a node's results."""
    node = call.node
    translate = TRANSLATIONS.get(node.op)
    if translate is not None:
        results = translate(call, *operands)
        return [results] if isinstance(results, Tensor) else list(results)
    definition = find(node.op)
    program = definition.scalar(node, call.graph) if definition and definition.scalar else None
    if program is None:
        own = node.op.startswith("npu.")
        raise NoForm(
            "made for npusim's kernels; export the graph that the model was extracted as"
            if own
            else "no operators of ONNX are known for it"
        )
    return [scalar.emit(call, program, [t for t in operands if t is not None])]
