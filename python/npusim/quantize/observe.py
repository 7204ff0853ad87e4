"""Ranges of a graph's values over calibration data, collected by running it in float32.

Two runs where histograms are wanted: the first finds extremes, exactly, the second counts between
them. What is held is one call's values and one histogram each.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from npusim.compile import Progress
from npusim.ir.graph import Graph
from npusim.quantize.calibration_data import CalibrationData
from npusim.quantize.parameters import Parameters
from npusim.quantize.placement import Placement
from npusim.quantize.ranges import Extremes, Histogram, chosen
from npusim.quantize.run import results, watching
from npusim.runtime.device import Device
from npusim.runtime.weights import WeightSource


@dataclass(frozen=True)
class Observed:
    """What values were over the calibration data, by name; histograms only where asked for."""

    extremes: Mapping[str, Extremes]
    histograms: Mapping[str, Histogram]

    def parameters(
        self, placement: Placement, method: str, dtype: str, percentile: float
    ) -> dict[str, Parameters]:
        """Returns the parameters of every value that becomes bytes; groups share theirs."""
        groups: dict[str, list[str]] = {}
        for value, group in placement.groups.items():
            groups.setdefault(group, []).append(value)
        found = {}
        for members in groups.values():
            extremes = Extremes()
            for value in members:
                extremes = extremes.joined(self.extremes[value])
            parts = [self.histograms[value] for value in members if value in self.histograms]
            joined = Histogram.joined(parts) if parts else None
            shared = chosen(method, extremes, joined, dtype, percentile)
            found.update(dict.fromkeys(members, shared))
        return found


def observed(
    graph: Graph,
    groups: Mapping[str, str],
    weights: WeightSource | None,
    calls: CalibrationData,
    device: Device,
    tell: Progress,
    *,
    histograms: bool,
) -> Observed:
    """Runs the graph over all calls and returns what its values were.

    Args:
        groups: the values to look at, each with the one whose histogram's bins it shares.
        histograms: count them as well, which takes a second run.
    """
    values: Sequence[str] = tuple(groups)
    watched = watching(graph, values)
    extremes = {value: Extremes() for value in values}
    for done, arrays in enumerate(results(watched, weights, calls, device)):
        tell("finding ranges", done, len(calls))
        for value, array in zip(values, arrays, strict=True):
            extremes[value].add(array)
    if not histograms:
        return Observed(extremes, {})
    shared: dict[str, Extremes] = {}
    for value, group in groups.items():
        shared[group] = shared.get(group, Extremes()).joined(extremes[value])
    counted = {
        value: Histogram(shared[group].low, shared[group].high)
        for value, group in groups.items()
        if shared[group].finite and shared[group].low <= shared[group].high
    }
    for done, arrays in enumerate(results(watched, weights, calls, device)):
        tell("counting", done, len(calls))
        for value, array in zip(values, arrays, strict=True):
            if value in counted:
                counted[value].add(array)
    return Observed(extremes, counted)
