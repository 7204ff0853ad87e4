"""What quantizing its weights costs a graph: for each linear, how much of it is noise afterwards.

Owns the measure (signal to quantization noise, in dB) of a layer's weight and of its product on
real inputs, before the epilogue, whose residual would hide the noise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor

from npusim.abi.quantization import Quantization, dequantize, quantized_bytes
from npusim.errors import at
from npusim.ir.graph import Graph, Node
from npusim.ops.quantized_linear import QUANTIZE, QUANTIZED_LINEAR
from npusim.ops.reference import GraphRun
from npusim.passes.run import run_passes
from npusim.targets import TargetConfig
from npusim.verify import compare


@dataclass(frozen=True)
class LayerQuality:
    """One product over quantized weights.

    Attributes:
        name: the weights' keys, without what they share at the end: `layers.0.q_proj`, or
            `layers.0.q_proj+k_proj+v_proj` where one product takes several.
        source: the line of the model's code that multiplies.
        format: how its weight is stored.
        shape: of the weight, all parts together.
        bits: of an element as it is stored: its code, and its share of scales, zero points and of
            the padding of rows to blocks of 128, which is much where rows are short.
        code_bits: of its code alone.
        weight_db: SQNR of the weight.
        output_db: SQNR of the product on the inputs given, in float32.
    """

    name: str
    source: str
    format: str
    shape: tuple[int, int]
    bits: float
    code_bits: int
    weight_db: float
    output_db: float

    def __str__(self) -> str:
        n, k = self.shape
        return (
            f"{self.name} [{n}x{k}] {self.format}: {self.bits:.2f} bits an element ("
            f"{self.code_bits} of code, the rest scales and padding), "
            f"weight {self.weight_db:.1f} dB, output {self.output_db:.1f} dB"
        )


@dataclass(frozen=True)
class QuantizationReport:
    """The quality of all quantized layers of a graph, in its order."""

    scheme: str
    layers: tuple[LayerQuality, ...]

    @property
    def worst(self) -> LayerQuality | None:
        """The layer whose product has the most noise; None when nothing was quantized."""
        return min(self.layers, key=lambda layer: layer.output_db, default=None)

    def to_json(self) -> dict[str, Any]:
        """Returns the fields, JSON types only."""
        layers = [{**asdict(layer), "shape": list(layer.shape)} for layer in self.layers]
        return {"scheme": self.scheme, "layers": layers}

    def lines(self) -> list[str]:
        """Returns what a person reads."""
        if self.worst is None:
            return [f"{self.scheme}: no linear is large enough to be quantized"]
        elements = [n * k for n, k in (layer.shape for layer in self.layers)]
        total = sum(e * layer.bits for e, layer in zip(elements, self.layers, strict=True))
        summary = (
            f"{self.scheme}: {len(self.layers)} layers, {total / sum(elements):.2f} bits an "
            f"element; most noise: {self.worst.name}, {self.worst.output_db:.1f} dB"
        )
        return [*map(str, self.layers), summary]


def verify_quantization(
    graph: Graph,
    scheme: str,
    state_dict: Mapping[str, Tensor],
    inputs: Sequence[Tensor],
    target: str | TargetConfig = "cpu",
) -> QuantizationReport:
    """Measures every layer that a scheme quantizes, on the inputs it gets in one run.

    Args:
        graph: as `extract_ir` gives it.
        scheme: such as "int8" or "int4-g32".
        state_dict: the weights.
        inputs: of the graph, in order.

    Raises:
        TargetConstraintError: there is no such scheme or target.
        ShapeError, WeightMismatchError: inputs or weights do not fit.
    """
    config = target if isinstance(target, TargetConfig) else TargetConfig.named(target)
    kernels = tuple(k for k in config.kernels if k != "normed_quantized_linear")  # products alone
    lowered = run_passes(graph, replace(config, weight_quantization=scheme, kernels=kernels))
    measured = (QUANTIZE, QUANTIZED_LINEAR)
    wanted = {i for n in lowered.nodes if n.op in measured for i in n.inputs}
    held: dict[str | None, Tensor] = {
        value.name: x for value, x in zip(lowered.inputs, inputs, strict=False)
    }
    for weight in lowered.weights:
        keys = (weight.key, *weight.aliases)
        held.update((weight.name, state_dict[k]) for k in keys if k in state_dict)
    layers = []
    for node, results in GraphRun(lowered, inputs, state_dict):
        if node.op == QUANTIZED_LINEAR:
            layers.append(_quality(node, lowered, held))
        for value, result in zip(node.outputs, results, strict=True):
            if value.name in wanted:
                held[value.name] = result
    return QuantizationReport(scheme, tuple(layers))


def _quality(node: Node, graph: Graph, held: Mapping[str | None, Tensor]) -> LayerQuality:
    x, *parts, _, _ = node.inputs
    rows, name, group = (node.attrs[key] for key in ("rows", "format", "group"))
    assert isinstance(rows, tuple) and isinstance(name, str) and isinstance(group, int)
    how, counts = Quantization(name, group), [r for r in rows if isinstance(r, int)]
    k = held[x].shape[-1]
    sources = [graph.producers[part].inputs[0] for part in parts if part is not None]
    keys = {weight.name: weight.key for weight in graph.weights}
    before = torch.cat([held[source].float() for source in sources])
    pairs = zip(parts, counts, strict=True)
    after = torch.cat([dequantize(held[part], how, n, k) for part, n in pairs])
    stored = sum(quantized_bytes(how, n, k) for n in counts)
    given = held[x].float()
    return LayerQuality(
        name=_named([keys.get(source or "", source or node.name) for source in sources]),
        source=at(node.source).strip(" ()"),
        format=name + (f"-g{group}" if group else ""),
        shape=(sum(counts), k),
        bits=8 * stored / before.numel(),
        code_bits=8 if how.bytes_a_code else 4,
        weight_db=compare("weight", after, before).sqnr_db,
        output_db=compare("output", given @ after.T, given @ before.T).sqnr_db,
    )


def _named(keys: Sequence[str]) -> str:
    """Returns one name for weights: what their keys share at the front, then the rest of each."""
    paths = [key.removesuffix(".weight").split(".") for key in keys]
    depth = 0
    while all(len(path) > depth + 1 and path[depth] == paths[0][depth] for path in paths):
        depth += 1
    front = "".join(f"{part}." for part in paths[0][:depth])
    return front + "+".join(".".join(path[depth:]) for path in paths)
