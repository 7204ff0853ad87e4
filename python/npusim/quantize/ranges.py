"""Ranges of values over calibration data: exact extremes, histograms, and what is cut off.

A histogram has a fixed number of bins between extremes that are known before it is filled, so
memory does not grow with the data. Zeros are counted apart: bytes hold them exactly.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from npusim.errors import Error
from npusim.quantize.parameters import Parameters, parameters_of

BINS = 2048
METHODS = ("minmax", "percentile", "mse")
_STEPS = 64  # of the search for the least error, along the range


@dataclass
class Extremes:
    """The least and the greatest element so far; `finite` is False once NaN or infinities came."""

    low: float = np.inf
    high: float = -np.inf
    finite: bool = True

    def add(self, x: NDArray[np.float32]) -> None:
        """Takes in an array, of any shape."""
        if not x.size:
            return
        low, high = float(x.min()), float(x.max())
        self.finite &= bool(np.isfinite(low) and np.isfinite(high))
        self.low, self.high = min(self.low, low), max(self.high, high)

    def joined(self, other: Extremes) -> Extremes:
        """Returns the extremes of both."""
        low, high = min(self.low, other.low), max(self.high, other.high)
        return Extremes(low, high, self.finite and other.finite)


@dataclass
class Histogram:
    """How many elements lie where, between two extremes.

    Attributes:
        low, high: finite, and no element lies outside.
        counts: of the elements that are not 0, in `BINS` equal bins.
        zeros: how many are 0.
    """

    low: float
    high: float
    counts: NDArray[np.int64] = field(default_factory=lambda: np.zeros(BINS, np.int64))
    zeros: int = 0

    def add(self, x: NDArray[np.float32]) -> None:
        """Counts the elements of an array, of any shape."""
        flat = x.reshape(-1).astype(np.float64)
        nonzero = flat[flat != 0]
        self.zeros += flat.size - nonzero.size
        width = (self.high - self.low) / BINS
        if width > 0:
            bins = np.minimum((nonzero - self.low) / width, BINS - 1).astype(np.int64)
            self.counts += np.bincount(bins, minlength=BINS)
        else:
            self.counts[0] += nonzero.size

    @classmethod
    def joined(cls, parts: Sequence[Histogram]) -> Histogram:
        """Returns the counts of several histograms of the same bins together."""
        counts = sum((part.counts for part in parts), np.zeros(BINS, np.int64))
        return cls(parts[0].low, parts[0].high, counts, sum(part.zeros for part in parts))

    @property
    def centers(self) -> NDArray[np.float64]:
        """The middle of each bin."""
        width = (self.high - self.low) / BINS
        return np.asarray(self.low + (np.arange(BINS) + 0.5) * width, np.float64)

    @property
    def total(self) -> int:
        """How many elements there are."""
        return int(self.counts.sum()) + self.zeros

    def outside(self, low: float, high: float) -> float:
        """Returns the share of elements outside a range, as far as bins tell."""
        centers = self.centers
        cut = int(self.counts[(centers < low) | (centers > high)].sum())
        return cut / self.total if self.total else 0.0


def check_method(method: str, percentile: float) -> None:
    """Refuses a method that does not exist, and a percentile that is none.

    Raises:
        Error: one or the other.
    """
    if method not in METHODS:
        raise Error(f"There is no range method {method!r}.", hint=f"Methods: {', '.join(METHODS)}.")
    if not 50 < percentile <= 100:
        raise Error(
            f"percentile={percentile} is not in 50 … 100.", hint="99.99 cuts one in ten thousand."
        )


def chosen(
    method: str, extremes: Extremes, histogram: Histogram | None, dtype: str, percentile: float
) -> Parameters:
    """Returns the parameters of a value by one of `METHODS`.

    Args:
        histogram: needed by all methods but "minmax".
        percentile: the share of elements, in percent, that "percentile" keeps: half of the others
            may lie above, half below.
    """
    if method == "minmax" or histogram is None:
        return parameters_of(extremes.low, extremes.high, dtype)
    if method == "percentile":
        low, high = _percentile(histogram, percentile)
        return parameters_of(low, high, dtype)
    return _least_error(histogram, dtype)


def _percentile(histogram: Histogram, percentile: float) -> tuple[float, float]:
    """Returns the edges of bins outside of which at most the wanted share lies, on each side."""
    counts = histogram.counts.astype(np.float64)
    edges = np.linspace(histogram.low, histogram.high, BINS + 1)
    at = int(np.clip(np.searchsorted(edges, 0.0, side="right") - 1, 0, BINS - 1))
    counts[at] += histogram.zeros
    cut = histogram.total * (100 - percentile) / 200
    below, above = np.cumsum(counts), np.cumsum(counts[::-1])
    first = int(np.searchsorted(below, cut, side="right"))
    last = BINS - 1 - int(np.searchsorted(above, cut, side="right"))
    if first > last:
        return histogram.low, histogram.high
    return float(edges[first]), float(edges[last + 1])


def _least_error(histogram: Histogram, dtype: str) -> Parameters:
    """Returns the parameters of the least mean squared error, by search over both ends.

    Both ends are drawn in together, then each for itself; no cut at all is among what is tried.
    """
    used = histogram.counts > 0
    centers, counts = histogram.centers[used], histogram.counts[used].astype(np.float64)
    low, high = min(histogram.low, 0.0), max(histogram.high, 0.0)

    def error(pair: tuple[float, float]) -> float:
        rounded = parameters_of(*pair, dtype).rounded(centers)
        return float((counts * (centers - rounded) ** 2).sum())

    shares = 1 - np.arange(_STEPS) / _STEPS
    best = min(((low * s, high * s) for s in shares), key=error)
    best = min(((best[0], high * s) for s in shares), key=error) if high > 0 else best
    best = min(((low * s, best[1]) for s in shares), key=error) if low < 0 else best
    return parameters_of(*min((best, (low, high)), key=error), dtype)
