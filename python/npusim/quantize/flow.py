"""The flow of quantizing: layers, ranges, bytes, measure, and the model that comes of it."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from npusim.compile import Progress
from npusim.errors import Error, GraphError, ShapeError
from npusim.ir.graph import Graph
from npusim.ir.module import Module, load_ir
from npusim.quantize import ATTENTION, QuantizedModel
from npusim.quantize.attention import attention_between, with_bfloat16
from npusim.quantize.calibration_data import CalibrationData, Data
from npusim.quantize.layers import Layer, canonical, layers_of
from npusim.quantize.metrics import Metric, metric_named, sqnr
from npusim.quantize.observe import Observed, observed
from npusim.quantize.parameters import LIMITS, Parameters
from npusim.quantize.placement import Placement, placed
from npusim.quantize.quantized_graph import LayerBytes, written
from npusim.quantize.ranges import check_method
from npusim.quantize.report import LayerReport, QuantizationReport
from npusim.quantize.run import results, static_arrays
from npusim.quantize.sensitivity import Choice, choose
from npusim.runtime.device import Device
from npusim.runtime.weights import WeightSource


@dataclass(frozen=True)
class Options:
    """What `npusim.quantize` was asked for; its arguments of the same names."""

    mode: str
    ranges: str
    percentile: float
    activations: str
    attention: str
    skip: tuple[str, ...]
    sensitivity: bool
    bound: float | None
    metric: Metric

    def __post_init__(self) -> None:
        check_method(self.ranges, self.percentile)
        metric_named(self.metric)
        if self.activations not in LIMITS:
            raise Error(
                f"Activations cannot be {self.activations!r}.", hint=f"Or {', '.join(LIMITS)}."
            )
        if self.attention not in ATTENTION:
            raise Error(
                f"Attention cannot multiply {self.attention!r}.", hint=f"Or {', '.join(ATTENTION)}."
            )
        if self.mode == "dynamic" and (self.activations != "uint8" or self.ranges != "minmax"):
            raise Error(
                "Dynamic ranges are the extremes of each call, as uint8.",
                hint="Choose ranges and activations with mode='static'.",
            )
        if self.bound is not None and math.isnan(self.bound):
            raise Error("The bound is NaN, which nothing reaches.")

    @property
    def dynamic(self) -> bool:
        """Whether calls find the ranges."""
        return self.mode == "dynamic"


def quantized(
    model: str | os.PathLike[str] | Graph | Module,
    weights: WeightSource | None,
    data: Data | None,
    options: Options,
    evaluation: Data | None,
    threads: int | None,
    progress: Progress | None,
) -> QuantizedModel:
    """Does what `npusim.quantize` says."""
    tell = progress or (lambda stage, done, total: None)
    tell("reading", 0, 1)
    source = model if isinstance(model, (Graph, Module)) else load_ir(os.fspath(model))
    graph = canonical(source)
    _check_data_given(graph, data, evaluation, options)
    calls = None if data is None else CalibrationData(graph, data)
    held_to = calls if evaluation is None else CalibrationData(graph, evaluation)
    work = _Work(graph, weights, calls, held_to, options, Device("cpu", threads=threads), tell)
    return work.result()


def _check_data_given(
    graph: Graph, data: Data | None, evaluation: Data | None, options: Options
) -> None:
    measured = options.sensitivity or options.bound is not None
    if not options.dynamic and data is None:
        raise ShapeError(
            "Static ranges are measured, and there is no calibration data.",
            hint="Give some, or quantize with mode='dynamic'.",
        )
    if measured and data is None and evaluation is None:
        raise ShapeError("There is no data to measure the layers with.")
    if (data is not None or evaluation is not None) and graph.states:
        raise GraphError(
            "The graph keeps state from call to call, which samples alone do not give.",
            hint="Quantize it without data, with mode='dynamic'.",
        )


class _Work:
    """One model being quantized."""

    def __init__(
        self,
        graph: Graph,
        weights: WeightSource | None,
        data: CalibrationData | None,
        held_to: CalibrationData | None,
        options: Options,
        device: Device,
        tell: Progress,
    ) -> None:
        self._graph, self._held_to = graph, held_to
        self._options, self._device, self._tell = options, device, tell
        self._all = layers_of(graph)
        if not self._all:
            raise GraphError(
                f"{graph.name} has no convolution or linear of float32 with a weight of its own.",
                hint="Only these have an int8 form.",
            )
        self._left_out = _skipped(self._all, options.skip)
        tell("reading weights", 0, 1)
        names = [weight.name for weight in graph.weights]
        arrays = static_arrays(graph, names, weights, device)
        self._weights = {weight.key: arrays[weight.name] for weight in graph.weights}
        self._arrays, self._bytes = self._layer_bytes()
        self._seen = None if data is None or options.dynamic else self._observed(data)

    def result(self) -> QuantizedModel:
        """Returns the model, with layers left out as the bound says."""
        choice = Choice(tuple(self._kept()), None, (), {})
        if self._held_to is not None:
            choice = self._chosen(choice.layers, self._held_to)
            self._left_out.update(dict.fromkeys(choice.left_out, "the bound"))
        self._tell("writing", 0, 1)
        graph, tensors = self._written(choice.layers)
        kept = {w.key: self._weights[w.key] for w in graph.weights if w.key in self._weights}
        return QuantizedModel(graph, {**kept, **tensors}, self._report(choice))

    def _chosen(self, layers: Sequence[Layer], calls: CalibrationData) -> Choice:
        options, device = self._options, self._device
        metric = metric_named(options.metric)
        self._tell("running in float32", 0, 1)
        expected = list(results(self._graph, self._weights, calls, device))

        def value_of(some: Sequence[Layer]) -> float:
            if not some:
                return metric(expected, expected)
            graph, tensors = self._written(some)
            found = list(results(graph, {**self._weights, **tensors}, calls, device))
            return float(metric(found, expected))

        return choose(layers, value_of, options.bound, options.sensitivity, self._tell)

    def _layer_bytes(self) -> tuple[dict[str, Any], dict[str, LayerBytes]]:
        values = [v for layer in self._all for v in (layer.weight, layer.bias) if v is not None]
        arrays = static_arrays(self._graph, values, self._weights, self._device)
        stored: dict[str, LayerBytes] = {}
        for layer in self._all:
            weight = _by_channel(layer, arrays)
            bias = None if layer.bias is None else arrays[layer.bias]
            if np.isfinite(weight).all() and (bias is None or np.isfinite(bias).all()):
                stored[layer.node.name] = LayerBytes.of(weight, bias)
            else:
                self._left_out.setdefault(layer.name, "its weights are not finite")
        return arrays, stored

    def _observed(self, data: CalibrationData) -> Observed:
        layers = self._kept()
        groups = {layer.x: layer.x for layer in layers}  # what each reads where it is alone
        groups.update(placed(self._graph, layers).groups)
        wanted = self._options.ranges != "minmax"
        found = observed(
            self._graph, groups, self._weights, data, self._device, self._tell, histograms=wanted
        )
        for layer in layers:
            if not found.extremes[layer.x].finite:
                self._left_out[layer.name] = "its operand is not finite"
        return found

    def _kept(self) -> list[Layer]:
        return [layer for layer in self._all if layer.name not in self._left_out]

    def _parameters(self, placement: Placement) -> dict[str, Parameters] | None:
        if self._seen is None:
            return None
        options = self._options
        return self._seen.parameters(
            placement, options.ranges, options.activations, options.percentile
        )

    def _written(self, layers: Sequence[Layer]) -> tuple[Graph, dict[str, Any]]:
        placement = placed(self._graph, layers, dynamic=self._options.dynamic)
        graph, tensors = written(self._graph, placement, self._parameters(placement), self._bytes)
        if self._options.attention == "bfloat16":
            graph = with_bfloat16(graph, attention_between(self._graph, placement.layers))
        return graph, tensors

    def _report(self, choice: Choice) -> QuantizationReport:
        options = self._options
        placement = placed(self._graph, choice.layers, dynamic=options.dynamic)
        parameters = self._parameters(placement) or {}
        rows = tuple(self._row(layer, placement, parameters, choice) for layer in self._all)
        metric = options.metric if isinstance(options.metric, str) else "metric"
        return QuantizationReport(
            options.mode, options.ranges, metric, choice.value, options.bound, rows
        )

    def _row(
        self,
        layer: Layer,
        placement: Placement,
        parameters: Mapping[str, Parameters],
        choice: Choice,
    ) -> LayerReport:
        stored, weight = self._bytes.get(layer.node.name), _by_channel(layer, self._arrays)
        operand = placement.operands.get(layer.node.name, layer.x)
        return LayerReport(
            name=layer.name,
            source=layer.source,
            op=layer.node.op,
            left_out=self._left_out.get(layer.name, ""),
            **self._range_of(operand, parameters.get(operand)),
            weight_sqnr=None if stored is None else sqnr(stored.floats, weight),
            alone=choice.alone.get(layer.name),
        )

    def _range_of(self, value: str, parameters: Parameters | None) -> dict[str, Any]:
        fields = ("low", "high", "scale", "zero", "clipped")
        known: dict[str, Any] = dict.fromkeys(fields)
        if self._seen is None or value not in self._seen.extremes:
            return known
        extremes = self._seen.extremes[value]
        known["low"], known["high"] = extremes.low, extremes.high
        if parameters is None:
            return known
        histogram = self._seen.histograms.get(value)
        clipped = 0.0 if histogram is None else histogram.outside(*parameters.range)
        return {**known, "scale": parameters.scale, "zero": parameters.zero, "clipped": clipped}


def _by_channel(layer: Layer, arrays: Mapping[str, Any]) -> Any:
    weight = arrays[layer.weight]
    return weight.swapaxes(0, 1) if layer.transposed else weight


def _skipped(layers: Sequence[Layer], skip: Sequence[str]) -> dict[str, str]:
    """Returns the layers that names, of layers or of modules they are in, leave out."""
    found: dict[str, str] = {}
    for name in skip:
        named = [y.name for y in layers if y.name == name or y.name.startswith(f"{name}.")]
        if not named:
            raise Error(
                f"There is no layer '{name}' to skip.",
                hint=f"Layers: {', '.join(layer.name for layer in layers)}.",
            )
        found.update(dict.fromkeys(named, "it is skipped"))
    return found
