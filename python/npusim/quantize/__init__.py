"""int8 from a float32 model: post-training quantization of convolutions and linears.

Owns the public function and what it returns, and loads what it needs when it is called, since
`import npusim` brings this file. `layers` finds what has an int8 form, `placement` where values
stay bytes, `observe` their ranges, `quantized_graph` writes the result, `sensitivity` leaves layers
out.

A quantized model is a graph and a checkpoint of its own, as an imported one is: ranges were
measured with these weights, so another checkpoint needs other ranges; scales are numbers in the
graph, where passes read them; and the checkpoint has a quarter of the size.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from npusim.errors import Error

if TYPE_CHECKING:
    from npusim.compile import Progress
    from npusim.ir.graph import Graph
    from npusim.ir.module import Module
    from npusim.quantize.calibration_data import Data
    from npusim.quantize.metrics import Metric
    from npusim.quantize.report import QuantizationReport
    from npusim.runtime.weights import WeightSource
    from npusim.targets import TargetConfig

MODES = ("static", "dynamic")
ATTENTION = ("float32", "bfloat16")  # what it may multiply


@dataclass(frozen=True)
class QuantizedModel:
    """A graph in bytes, its weights by key, and what that did to its layers."""

    graph: Graph
    weights: Mapping[str, Any]
    report: QuantizationReport

    def save(self, graph: str | Path, weights: str | Path) -> int:
        """Writes the graph as JSON and the weights as safetensors; returns the bytes of these.

        Raises:
            Error: a file cannot be written.
        """
        from npusim.runtime.safetensors_files import save_safetensors

        self.graph.save(graph)
        return save_safetensors(self.weights, weights)


def quantize(
    model: str | os.PathLike[str] | Graph | Module,
    weights: WeightSource | None = None,
    data: Data | None = None,
    *,
    mode: str = "static",
    ranges: str = "minmax",
    percentile: float = 99.99,
    activations: str | None = None,
    attention: str | None = None,
    target: str | TargetConfig | None = None,
    skip: Sequence[str] = (),
    sensitivity: bool = False,
    bound: float | None = None,
    metric: Metric = "sqnr",
    evaluation: Data | None = None,
    threads: int | None = None,
    progress: Progress | None = None,
) -> QuantizedModel:
    """Turns a float32 model into one whose convolutions and linears multiply bytes.

    Weights become int8, one scale a channel; biases int32 in steps of the sums. Programs of the
    result compute exact sums of bytes where the target multiplies them (`recognize_int8`), and what
    the graph says in floats where it does not.

    Args:
        model: a graph of float32, or the path of its file.
        weights: its checkpoint, as `npusim.load` takes it.
        data: calibration data, arrays by the names of the inputs with samples along the first
            dimension; the path of an `.npz` of these; or a sequence of calls. Not needed by
            mode="dynamic" without a bound.
        mode: "static": ranges of activations are numbers of the graph; "dynamic": calls find them.
        ranges: "minmax", "percentile" or "mse" (the least mean squared error), of static ones.
        percentile: the share of elements that "percentile" keeps, in percent.
        activations: "uint8" or "int8"; dynamic ones are uint8. By default "uint8",
            but "int8" where the array of the target's machine does not multiply that.
        attention: what attention multiplies whose result becomes bytes for layers: "float32" or
            "bfloat16". By default the latter, but the former where the target describes a machine.
        target: that the model is for, as `npusim.compile` takes it.
        skip: names of layers that stay float32, or of modules that layers are in.
        sensitivity: measure the metric with each layer alone in bytes.
        bound: leave layers out, the most sensitive first, until the metric is at least this.
        metric: "sqnr" (dB, the least of the outputs), "top1" (the share of rows whose greatest
            element is the same), or a function of the found and the expected outputs, each a
            sequence of calls of tuples of arrays; greater is better.
        evaluation: what the metric is measured on; by default the calibration data.
        threads: of the CPU that the model runs on meanwhile.
        progress: called as (stage, done, total).

    Raises:
        GraphError: several methods, a graph in bytes already, or without any layer to quantize.
        ShapeError: data that does not fit the graph, or none where some is needed.
        WeightMismatchError: the weights do not fit.
        Error: options that do not exist or do not go together; data that is not finite.
    """
    from npusim.quantize.flow import Options, quantized
    from npusim.targets import TargetConfig

    machine = TargetConfig.named(target) if isinstance(target, str) else target
    npu = machine.npu if machine is not None else None
    if attention is None:
        attention = "bfloat16" if npu is None else "float32"
    if activations is None:
        taken = npu is None or mode == "dynamic" or "uint8" in npu.multiplied
        activations = "uint8" if taken else "int8"
    if mode not in MODES:
        raise Error(f"There is no mode {mode!r}.", hint=f"Modes: {', '.join(MODES)}.")
    options = Options(
        mode, ranges, percentile, activations, attention, tuple(skip), sensitivity, bound, metric
    )
    return quantized(model, weights, data, options, evaluation, threads, progress)
