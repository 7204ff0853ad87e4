"""How far the outputs of a quantized graph are from those of the float32 one, as one number.

Every metric is better when it is greater, so that one bound serves all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, Union

import numpy as np
from numpy.typing import NDArray

from npusim.errors import Error

Array = NDArray[Any]
Outputs: TypeAlias = Sequence[Array]
"""One array an output; calls follow one another along a new first dimension, or lie in a list."""
Metric: TypeAlias = Union[str, Callable[[Sequence[Outputs], Sequence[Outputs]], float]]


def sqnr(found: Array, expected: Array) -> float:
    """Returns the signal to quantization noise ratio in dB: infinite where nothing differs."""
    signal = float(np.square(expected, dtype=np.float64).sum())
    difference = found.astype(np.float64) - expected
    noise = float(np.square(difference).sum())
    if noise == 0:
        return np.inf
    return 10 * float(np.log10(signal / noise)) if signal else -np.inf


def least_sqnr(found: Sequence[Outputs], expected: Sequence[Outputs]) -> float:
    """Returns the least ratio in dB of all float outputs, each over all calls."""
    ratios = []
    for n, first in enumerate(expected[0]):
        if first.dtype.kind == "f" and first.size:
            pair = [
                np.concatenate([c[n].reshape(-1) for c in calls]) for calls in (found, expected)
            ]
            ratios.append(sqnr(*pair))
    if not ratios:
        raise Error("No output is of floats: there is no noise to measure.", hint="metric='top1'")
    return min(ratios)


def top1(found: Sequence[Outputs], expected: Sequence[Outputs]) -> float:
    """Returns the share of rows of the first output whose greatest element is the same one.

    Of an output of integers, the share of elements that are equal.
    """
    agreed = total = 0
    for mine, theirs in zip(found, expected, strict=True):
        a, b = mine[0], theirs[0]
        if b.dtype.kind == "f" and b.ndim:
            a, b = a.argmax(axis=-1), b.argmax(axis=-1)
        agreed += int(np.sum(a == b))
        total += b.size
    return agreed / total if total else 1.0


METRICS: dict[str, Callable[[Sequence[Outputs], Sequence[Outputs]], float]] = {
    "sqnr": least_sqnr,
    "top1": top1,
}


def metric_named(metric: Metric) -> Callable[[Sequence[Outputs], Sequence[Outputs]], float]:
    """Returns the function of a metric, given by name or itself.

    Raises:
        Error: there is no such metric.
    """
    if not isinstance(metric, str):
        return metric
    if metric not in METRICS:
        raise Error(f"There is no metric {metric!r}.", hint=f"Metrics: {', '.join(METRICS)}.")
    return METRICS[metric]
