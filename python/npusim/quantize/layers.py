"""The layers of a float32 graph that have an int8 form, and the form of a graph they are found in.

A layer is a convolution or a linear whose weight is known when a program is loaded; convolutions of
few channels a group stay floats, which are faster. Batch norms and
factors are folded into weights first, so that bytes are made of what is multiplied.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from npusim.errors import GraphError, at
from npusim.ir.graph import Graph, Node
from npusim.ir.module import Module
from npusim.ops.conv_phases import has_phases
from npusim.ops.int8_reference import INT8_CONV, INT8_MATMUL
from npusim.ops.linear import PANEL
from npusim.passes import PIPELINE
from npusim.passes.canonicalize_conv import canonicalize_conv
from npusim.passes.canonicalize_linear import canonicalize_linear
from npusim.passes.eliminate_common_subexpressions import eliminate_common_subexpressions
from npusim.passes.eliminate_dead_code import eliminate_dead_code
from npusim.passes.fold_batch_norm import fold_batch_norm
from npusim.passes.fold_constants import fold_constants
from npusim.passes.fold_scale import fold_scale
from npusim.passes.move_repetition import move_repetition
from npusim.passes.promote_operands import promote_operands
from npusim.passes.recognize_attention import recognize_attention
from npusim.passes.recognize_int8 import recognize_int8
from npusim.passes.recognize_softmax import recognize_softmax
from npusim.passes.remove_noops import remove_noops
from npusim.passes.run import run_passes
from npusim.passes.simplify_views import simplify_views
from npusim.targets import TargetConfig

# What makes one spelling of products and folds into weights what can be, and leaves everything else
# as compiling for any target expects it.
_CANONICAL = (
    eliminate_dead_code,
    promote_operands,
    remove_noops,
    move_repetition,
    fold_constants,
    remove_noops,
    eliminate_common_subexpressions,
    simplify_views,
    recognize_softmax,
    recognize_attention,
    canonicalize_conv,
    canonicalize_linear,
    fold_batch_norm,
    fold_scale,
    eliminate_dead_code,
)


@dataclass(frozen=True)
class Layer:
    """A product whose second operand is known at load.

    Attributes:
        name: by the checkpoint key of its weight, such as "layer1.0.conv1".
        node: `npu.conv` or `npu.linear`.
    """

    name: str
    node: Node

    @property
    def x(self) -> str:
        """The value that is multiplied."""
        return self.node.inputs[0] or ""

    @property
    def weight(self) -> str:
        """The static value it is multiplied with, one channel of the result an index."""
        return self.node.inputs[1] or ""

    @property
    def transposed(self) -> bool:
        """Whether the channels of the result are the second dimension of the weight."""
        return bool(self.node.attrs.get("transposed"))

    @property
    def bias(self) -> str | None:
        """The static value that is added, one element a channel; None without."""
        return self.node.inputs[2]

    @property
    def output(self) -> str:
        """The result."""
        return self.node.output.name

    @property
    def source(self) -> str:
        """The line of the model's code."""
        return at(self.node.source).strip(" ()")


def canonical(model: Graph | Module) -> Graph:
    """Returns the graph with products in one spelling, batch norms folded into weights.

    Raises:
        GraphError: it is a module of several methods, or in bytes already.
    """
    if isinstance(model, Module):
        raise GraphError(
            f"A module of {len(model.methods)} methods cannot be quantized as one graph.",
            hint="Of language models, compile(quantize='int8') quantizes the weights.",
        )
    target = TargetConfig.named("cpu")
    until = PIPELINE.index(recognize_int8) + 1
    lowered = run_passes(model, target, pipeline=PIPELINE[:until])
    if any(node.op in (INT8_CONV, INT8_MATMUL) for node in lowered.nodes):
        raise GraphError(
            f"{model.name} is quantized already: it has products of bytes.",
            hint="Quantize the float32 model that it was made of.",
        )
    return run_passes(model, target, pipeline=_CANONICAL)


def layers_of(graph: Graph) -> tuple[Layer, ...]:
    """Returns the layers of a canonical graph, in its order."""
    static = graph.static_values
    names: dict[str, int] = {}
    found = []
    for node in graph.nodes:
        if _is_layer(node, graph) and node.output.name not in static:
            name = _name(node, graph)
            names[name] = names.get(name, 0) + 1
            if names[name] > 1:
                name = f"{name}#{names[name]}"
            found.append(Layer(name, node))
    return tuple(found)


def _has_small_groups(node: Node, weight: Sequence[int]) -> bool:
    """Tells whether a vector of outputs spans several groups, which floats have a kernel for
    (`kernels/cpu/conv_groups.h`) that is several times as fast as products of bytes by group."""
    groups = node.attrs["groups"]
    assert isinstance(groups, int)
    columns = weight[0] // groups
    return groups > 1 and 1 < columns < PANEL and PANEL % columns == 0 and weight[1] <= columns


def _is_layer(node: Node, graph: Graph) -> bool:
    if node.op not in ("npu.conv", "npu.linear") or node.attrs["act"] != "copy":
        return False
    x, w, bias, residual = node.inputs
    if x is None or w is None or residual is not None:
        return False
    types, static = graph.types, graph.static_values
    if node.attrs.get("transposed") and not has_phases(node, types):
        return False
    if w not in static or x in static or not types[w].numel or not types[x].rank:
        return False
    if bias is not None and (bias not in static or types[bias].rank != 1):
        return False
    if node.op == "npu.conv" and _has_small_groups(node, types[w].shape):
        return False
    operands = [x, w, node.output.name] + ([] if bias is None else [bias])
    if node.op == "npu.linear" and types[w].rank != 2:
        return False
    return all(types[value].dtype == "float32" for value in operands)


def _name(node: Node, graph: Graph) -> str:
    """Returns the key of the weight of most elements behind a layer's, without its last part."""
    keys = {weight.name: weight for weight in graph.weights}
    stack, seen, found = [node.inputs[1] or ""], set(), []
    while stack:
        value = stack.pop()
        if value in seen:
            continue
        seen.add(value)
        if value in keys:
            found.append(keys[value])
        elif (producer := graph.producers.get(value)) is not None:
            stack += [i for i in producer.inputs if i is not None]
    if not found:
        return node.name
    return max(found, key=lambda weight: weight.type.numel).key.removesuffix(".weight")
