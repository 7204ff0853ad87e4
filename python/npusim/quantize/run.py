"""Running a graph for its numbers: outputs over calls, any value, and those known at load."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from npusim.compile import compile
from npusim.ir.graph import Graph, Output
from npusim.ir.rewrite import drop_dead
from npusim.quantize.calibration_data import CalibrationData
from npusim.runtime.device import Device
from npusim.runtime.session import load
from npusim.runtime.weights import WeightSource

Array = NDArray[Any]


def watching(graph: Graph, values: Sequence[str]) -> Graph:
    """Returns the graph with some of its values as outputs, in order, instead of its own."""
    outputs = tuple(Output(f"value_{n}", value) for n, value in enumerate(values))
    return drop_dead(replace(graph, outputs=outputs))


def results(
    graph: Graph, weights: WeightSource | None, calls: CalibrationData, device: Device
) -> Iterator[tuple[Array, ...]]:
    """Yields the outputs of each call, as arrays of their own."""
    session = load(compile(graph), weights, device)
    for call in calls:
        yield tuple(np.asarray(result) for result in session(*map(np.ascontiguousarray, call)))


def static_arrays(
    graph: Graph, values: Sequence[str], weights: WeightSource | None, device: Device
) -> dict[str, Array]:
    """Returns values that depend on weights and constants alone, computed as init does."""
    if not values:
        return {}
    distinct = list(dict.fromkeys(values))
    alone = replace(watching(graph, distinct), inputs=(), states=(), updates=())
    session = load(compile(alone), weights, device)
    return dict(zip(distinct, map(np.array, session()), strict=True))
