"""Writes a graph in bytes: quantized values, weights and biases, as ONNX's operators spell them.

What comes out are floats that bytes stand for, `(q - zero) * scale`, and roundings to bytes,
`saturate(round(x / scale) + zero)`, in plain operators. Passes make products of bytes of them,
where the target has these, and any other target computes what they say.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from npusim.ir.graph import Graph, Node, Weight
from npusim.ir.rewrite import Names, drop_dead
from npusim.ir.rewriter import Answer, Rewriter
from npusim.ir.types import TensorType
from npusim.quantize.layers import Layer
from npusim.quantize.parameters import LIMITS, Floats, Parameters, bias_integers, weight_bytes
from npusim.quantize.placement import Placement

Arrays = Mapping[str, NDArray[Any]]

_LEAST_SCALE = float(np.finfo(np.float32).tiny)


@dataclass(frozen=True)
class LayerBytes:
    """A layer's weight in bytes, with its bias as it was.

    Attributes:
        codes: int8, of the weight's shape, the channels of the result first.
        scales: float32, one a channel.
        bias: float32, one a channel; None without.
    """

    codes: NDArray[np.int8]
    scales: Floats
    bias: Floats | None

    @classmethod
    def of(cls, weight: Floats, bias: Floats | None) -> LayerBytes:
        """Quantizes a weight, by channel and symmetrically."""
        return cls(*weight_bytes(weight), bias)

    @property
    def floats(self) -> Floats:
        """The weight that the bytes stand for."""
        shape = (-1, *(1,) * (self.codes.ndim - 1))
        return self.codes.astype(np.float32) * self.scales.reshape(shape)


def written(
    graph: Graph,
    placement: Placement,
    parameters: Mapping[str, Parameters] | None,
    layers: Mapping[str, LayerBytes],
) -> tuple[Graph, dict[str, NDArray[Any]]]:
    """Returns the graph in bytes, and the tensors of its new weights by key.

    Args:
        graph: canonical.
        parameters: of each value of the placement; None has calls find them, as ONNX's
            DynamicQuantizeLinear does.
        layers: the weights of each layer of the placement, by the name of its node.
    """
    writing = _Writing(graph, placement, parameters, layers)
    changed = Rewriter(writing.with_weights()).run(writing.visit)
    changed = drop_dead(changed)
    keys = {weight.key for weight in changed.weights}
    return changed, {key: array for key, array in writing.tensors.items() if key in keys}


class _Writing:
    """One graph being written; its weights first, then its nodes."""

    def __init__(
        self,
        graph: Graph,
        placement: Placement,
        parameters: Mapping[str, Parameters] | None,
        layers: Mapping[str, LayerBytes],
    ) -> None:
        self._graph, self._placement = graph, placement
        self._parameters, self._layers = parameters, layers
        self._floats: dict[str, str] = {}
        self._weights: dict[str, str] = {}
        self._biases: dict[str, str] = {}
        self.tensors: dict[str, NDArray[Any]] = {}

    def with_weights(self) -> Graph:
        """Returns the graph with the weights of its layers added."""
        names, added = Names(self._graph), []
        keys = {key for w in self._graph.weights for key in (w.key, *w.aliases)}
        for name, layer in self._placement.layers.items():
            stored = self._layers[name]
            tensors: dict[str, NDArray[Any]] = {"weight_int8": stored.codes}
            bias = self._whole_bias(name)
            if bias is not None:
                tensors["bias_int32"] = bias
            elif stored.bias is not None:
                tensors["bias_float32"] = stored.bias
            for part, array in tensors.items():
                key = value = names.fresh(f"{layer.name}.{part}")
                while key in keys:
                    key += "_"
                type = TensorType(array.dtype.name, array.shape)
                added.append(Weight(value, key, type))
                self.tensors[key] = array
                (self._weights if part == "weight_int8" else self._biases)[name] = value
        return replace(self._graph, weights=self._graph.weights + tuple(added))

    def visit(self, node: Node, rewriter: Rewriter) -> Answer:
        """Has a node read floats that bytes stand for."""
        layer = self._placement.layers.get(node.name)
        inputs = list(node.inputs)
        for at, value in enumerate(node.inputs):
            own = value in self._placement.for_layers and layer is not None and at == 0
            if value is not None and (own or value in self._placement.everywhere):
                inputs[at] = self._read(value, node, rewriter)
        if layer is not None:
            inputs[1] = self._weight(layer, node, rewriter)
            inputs[2] = self._bias(layer, node, rewriter)
        return None if tuple(inputs) == node.inputs else replace(node, inputs=tuple(inputs))

    def _whole_bias(self, name: str) -> NDArray[np.int32] | None:
        """Returns a layer's bias in the steps of its sums, where these are known and hold it."""
        bias = self._layers[name].bias
        if bias is None or self._parameters is None:
            return None
        return bias_integers(bias, self._sum_scales(name))

    def _sum_scales(self, name: str) -> Floats:
        assert self._parameters is not None
        scale = np.float32(self._parameters[self._placement.operands[name]].scale)
        return self._layers[name].scales * scale

    def _read(self, value: str, node: Node, rewriter: Rewriter) -> str:
        """Returns a value as the floats that its bytes stand for, made where first read."""
        if value not in self._floats:
            if self._parameters is None:
                made = _dynamic(value, node, rewriter)
            else:
                made = _static(value, self._parameters[value], node, rewriter)
            self._floats[value] = made
        return self._floats[value]

    def _weight(self, layer: Layer, node: Node, rewriter: Rewriter) -> str:
        stored = self._layers[node.name]
        type = TensorType("float32", stored.codes.shape)
        wide = _cast(self._weights[node.name], type, node, rewriter)
        shape = (stored.codes.shape[0], *(1,) * (stored.codes.ndim - 1))
        scales = _constant(stored.scales.reshape(shape), rewriter)
        made = rewriter.emit("aten.mul.Tensor", (wide, scales), type, like=node)
        if not layer.transposed:
            return made
        dims = (1, 0, *range(2, type.rank))
        type = replace(type, shape=tuple(type.shape[d] for d in dims))
        return rewriter.emit("aten.permute.default", (made,), type, {"dims": dims}, like=node)

    def _bias(self, layer: Layer, node: Node, rewriter: Rewriter) -> str | None:
        value = self._biases.get(node.name)
        if value is None or rewriter.types[value].dtype == "float32":
            return value
        type = replace(rewriter.types[value], dtype="float32")
        wide = _cast(value, type, node, rewriter)
        scales = _constant(self._sum_scales(node.name), rewriter)
        return rewriter.emit("aten.mul.Tensor", (wide, scales), type, like=node)


def _static(value: str, parameters: Parameters, node: Node, rewriter: Rewriter) -> str:
    floats = rewriter.types[value]
    scale = _constant(np.float32(parameters.scale), rewriter)
    zero = _constant(np.float32(parameters.zero), rewriter)
    made = rewriter.emit("aten.div.Tensor", (value, scale), floats, like=node)
    made = rewriter.emit("aten.round.default", (made,), floats, like=node)
    if parameters.zero:
        made = rewriter.emit("aten.add.Tensor", (made, zero), floats, {"alpha": 1}, like=node)
    made = _bytes(made, parameters.dtype, node, rewriter, f"{value}_{parameters.dtype}")
    made = _cast(made, floats, node, rewriter)
    if parameters.zero:
        made = rewriter.emit("aten.sub.Tensor", (made, zero), floats, {"alpha": 1}, like=node)
    return rewriter.emit("aten.mul.Tensor", (made, scale), floats, like=node)


def _dynamic(value: str, node: Node, rewriter: Rewriter) -> str:
    """ONNX's DynamicQuantizeLinear, with a least scale for values that are all zero."""
    floats, number = rewriter.types[value], TensorType("float32", ())
    dims = tuple(range(floats.rank))

    def emit(op: str, inputs: tuple[str, ...], type: TensorType = number, **attrs: Any) -> str:
        return rewriter.emit(f"aten.{op}", inputs, type, attrs, like=node)

    high = emit("amax.default", (value,), dim=dims, keepdim=False)
    high = emit("clamp.default", (high,), min=0.0, max=None)
    low = emit("amin.default", (value,), dim=dims, keepdim=False)
    low = emit("clamp.default", (low,), min=None, max=0.0)
    scale = emit("sub.Tensor", (high, low), alpha=1)
    scale = emit("div.Tensor", (scale, _constant(np.float32(255), rewriter)))
    scale = emit("clamp.default", (scale,), min=_LEAST_SCALE, max=None)
    zero = emit("neg.default", (low,))
    zero = emit("div.Tensor", (zero, scale))
    zero = emit("clamp.default", (zero,), min=0.0, max=255.0)
    zero = emit("round.default", (zero,))
    whole = emit("div.Tensor", (value, scale), floats)
    whole = emit("round.default", (whole,), floats)
    whole = emit("add.Tensor", (whole, zero), floats, alpha=1)
    codes = _bytes(whole, "uint8", node, rewriter, f"{value}_uint8")
    byte = emit("_to_copy.default", (zero,), TensorType("uint8", ()), dtype="uint8")
    zero = _cast(byte, number, node, rewriter)
    wide = emit("sub.Tensor", (_cast(codes, floats, node, rewriter), zero), floats, alpha=1)
    return emit("mul.Tensor", (wide, scale), floats)


def _bytes(whole: str, dtype: str, node: Node, rewriter: Rewriter, name: str) -> str:
    floats, (low, high) = rewriter.types[whole], LIMITS[dtype]
    attrs = {"min": float(low), "max": float(high)}
    held = rewriter.emit("aten.clamp.default", (whole,), floats, attrs, like=node)
    type = replace(floats, dtype=dtype)
    cast = {"dtype": dtype}
    return rewriter.emit("aten._to_copy.default", (held,), type, cast, like=node, name=name)


def _cast(value: str, type: TensorType, node: Node, rewriter: Rewriter) -> str:
    attrs = {"dtype": type.dtype}
    return rewriter.emit("aten._to_copy.default", (value,), type, attrs, like=node)


def _constant(array: Any, rewriter: Rewriter) -> str:
    array = np.asarray(array, "<f4")
    return rewriter.constant("quantization", TensorType("float32", array.shape), array.tobytes())
