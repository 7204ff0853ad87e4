"""What quantizing a model came to, layer by layer: as objects, JSON, CSV and lines of text."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any


@dataclass(frozen=True)
class LayerReport:
    """One convolution or linear.

    Attributes:
        name: by its weight's key.
        source: the line of the model's code.
        op: `npu.conv` or `npu.linear`.
        left_out: why it stays float32; "" where it multiplies bytes.
        low, high: the least and greatest element of its operand over the calibration data; None
            where calls find them.
        scale, zero: of its operand's bytes, likewise.
        clipped: the share of its operand's elements that the bytes' range cuts off.
        weight_sqnr: signal to noise of its weight, in dB.
        alone: the metric of the outputs when this layer alone is in bytes; None if not measured.
    """

    name: str
    source: str
    op: str
    left_out: str
    low: float | None
    high: float | None
    scale: float | None
    zero: int | None
    clipped: float | None
    weight_sqnr: float | None
    alone: float | None


@dataclass(frozen=True)
class QuantizationReport:
    """A model's layers in its order, and what all of them together do to its outputs.

    Attributes:
        mode: "static" or "dynamic".
        ranges: the method of ranges.
        metric: the name of what `value` and `alone` measure.
        value: of the outputs; None without data to measure with.
        bound: what the value was to reach; None where nothing was asked for.
    """

    mode: str
    ranges: str
    metric: str
    value: float | None
    bound: float | None
    layers: tuple[LayerReport, ...]

    @property
    def quantized(self) -> int:
        """How many layers multiply bytes."""
        return sum(not layer.left_out for layer in self.layers)

    def to_json(self) -> dict[str, Any]:
        """Returns the fields, JSON types only (but for infinities)."""
        return asdict(self)

    def to_csv(self) -> str:
        """Returns a table of the layers with a header."""
        names = [field.name for field in fields(LayerReport)]
        text = io.StringIO()
        table = csv.writer(text, lineterminator="\n")
        table.writerow(names)
        table.writerows([getattr(layer, name) for name in names] for layer in self.layers)
        return text.getvalue()

    def rows(self) -> list[Sequence[str]]:
        """Returns a row of text a layer, in the columns of `HEADER`."""
        return [
            (
                layer.name,
                layer.left_out or "int8",
                _span(layer),
                _number(None if layer.clipped is None else 100 * layer.clipped, "{:.3f}"),
                _number(layer.weight_sqnr, "{:.1f}"),
                _number(layer.alone, "{:.4g}"),
            )
            for layer in self.layers
        ]

    @property
    def summary(self) -> str:
        """One line."""
        text = f"{self.mode}: {self.quantized} of {len(self.layers)} layers in bytes"
        if self.value is not None:
            text += f"; {self.metric} {self.value:.4g}"
        if self.bound is not None:
            text += f" (bound {self.bound:g})"
        return text


HEADER = ("layer", "as", "range", "cut %", "weight dB", "alone")


def _span(layer: LayerReport) -> str:
    if layer.low is None or layer.high is None:
        return "by call" if not layer.left_out else ""
    return f"{layer.low:.4g} … {layer.high:.4g}"


def _number(value: float | None, how: str) -> str:
    return "" if value is None else how.format(value)
