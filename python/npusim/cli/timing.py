"""Times of repeated calls, and what is said of them.

Owns the loop that `bench`, `profile` and `demo` time by, and the names under which their reports
give the spread.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence

import numpy as np


def measure(
    call: Callable[[], object], warmup: int, runs: int | None, seconds: float
) -> list[float]:
    """Times `call` after `warmup` calls: `runs` times, or for `seconds`, but never under three."""
    for _ in range(warmup):
        call()
    times: list[float] = []
    end = time.perf_counter() + seconds
    while len(times) < runs if runs else len(times) < 3 or time.perf_counter() < end:
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return times


def spread(times: Sequence[float]) -> dict[str, float]:
    """Returns median, extremes and the 10th and 90th percentile, in seconds."""
    low, high = np.percentile(times, [10, 90])
    return {
        "runs": len(times),
        "median_s": statistics.median(times),
        "min_s": min(times),
        "max_s": max(times),
        "p10_s": float(low),
        "p90_s": float(high),
    }
