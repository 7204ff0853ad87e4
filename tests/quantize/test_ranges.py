"""Parameters of bytes, bytes of weights, histograms and what methods make of them."""

from __future__ import annotations

import numpy as np
import pytest

from npusim.quantize.parameters import (
    LIMITS,
    bias_integers,
    parameters_of,
    weight_bytes,
)
from npusim.quantize.ranges import BINS, Extremes, Histogram, chosen

TINY = float(np.finfo(np.float32).tiny)
RANGES = [
    *((0.0, 0.0), (1.0, 1.0), (-1.0, -1.0), (-3.0, 5.0), (0.0, 1e-45), (-1e-45, 0.0)),
    *((-3.4e38, 3.4e38), (2.0, 7.0), (-7.0, -2.0), (-1e-30, 1e30), (-1e30, 1e-30)),
]


@pytest.mark.parametrize("dtype", LIMITS)
@pytest.mark.parametrize(("low", "high"), RANGES)
def test_bytes_hold_the_range_and_zero(low: float, high: float, dtype: str) -> None:
    found = parameters_of(low, high, dtype)
    least, most = LIMITS[dtype]
    assert np.isfinite(found.scale) and found.scale >= TINY
    assert np.float32(found.scale) == found.scale and least <= found.zero <= most
    assert found.rounded(np.zeros(1))[0] == 0
    for end in (low, high):
        assert abs(found.rounded(np.array([end]))[0] - end) <= found.scale * 0.5001


def test_a_relu_has_its_zero_at_the_least_byte() -> None:
    assert parameters_of(0, 6, "uint8").zero == 0
    assert parameters_of(0, 6, "int8").zero == -128
    assert parameters_of(-6, 0, "uint8").zero == 255


def test_weights_are_symmetric_by_channel() -> None:
    weight = np.array([[1, -2, 0.5], [0, 0, 0], [1e-44, 0, 0], [3e38, -3e38, 1]], np.float32)
    codes, scales = weight_bytes(weight)
    assert codes.dtype == np.int8 and scales.dtype == np.float32
    assert codes.min() >= -127 and scales[1] == 1 and np.all(codes[1] == 0)
    assert scales[0] == np.float32(2 / 127) and list(codes[0]) == [64, -127, 32]
    assert scales[2] == np.float32(TINY) and list(codes[3]) == [127, -127, 0]
    assert np.array_equal(weight_bytes(-weight)[0], -codes)


@pytest.mark.parametrize(
    ("value", "fits"), [(0, True), (2**31 - 128, True), (2.0**31, False), (np.nan, False)]
)
def test_biases_that_int32_does_not_hold(value: float, fits: bool) -> None:
    found = bias_integers(np.float32([value]), np.float32([1]))
    assert (found is not None) == fits
    if found is not None:
        assert found.dtype == np.int32 and found[0] == value


def test_extremes_see_every_element() -> None:
    found = Extremes()
    found.add(np.float32([[1, -2], [3, 0]]))
    found.add(np.zeros((0, 3), np.float32))
    found.add(np.float32([-5]))
    assert (found.low, found.high, found.finite) == (-5, 3, True)
    for bad in (np.nan, np.inf, -np.inf):
        odd = Extremes()
        odd.add(np.float32([1, bad, 2]))
        assert not odd.finite and not odd.joined(found).finite


@pytest.mark.parametrize("x", [[-1, 0, 2], [5, 5, 5], [0, 0], [-1e-45, 0], [-3e38, 3e38]])
def test_histograms_count_all(x: list[float]) -> None:
    array = np.float32(x)
    found = Histogram(float(array.min()), float(array.max()))
    found.add(array)
    assert found.total == len(x) and found.zeros == np.sum(array == 0)
    assert found.outside(found.low, found.high) == 0


def _counted(x: np.ndarray) -> tuple[Extremes, Histogram]:
    extremes = Extremes()
    extremes.add(x)
    histogram = Histogram(extremes.low, extremes.high)
    for part in np.array_split(x, 7):
        histogram.add(part)
    return extremes, histogram


def test_a_percentile_cuts_its_share() -> None:
    x = np.random.default_rng(0).standard_normal(100_000).astype(np.float32)
    extremes, histogram = _counted(x)
    found = chosen("percentile", extremes, histogram, "uint8", 99.0)
    low, high = found.range
    width = (extremes.high - extremes.low) / BINS
    assert low == pytest.approx(np.quantile(x, 0.005), abs=2 * width + found.scale)
    assert high == pytest.approx(np.quantile(x, 0.995), abs=2 * width + found.scale)
    whole = chosen("percentile", extremes, histogram, "uint8", 100.0)
    assert whole == chosen("minmax", extremes, None, "uint8", 100.0)
    mostly_zero = np.zeros(100_000, np.float32)
    mostly_zero[0] = 9
    extremes, histogram = _counted(mostly_zero)
    assert chosen("percentile", extremes, histogram, "uint8", 99.0).range[1] < 0.1


@pytest.mark.parametrize("dtype", LIMITS)
def test_the_least_error_is_no_greater_than_any_tried(dtype: str) -> None:
    rng = np.random.default_rng(1)
    x = np.concatenate([rng.standard_normal(50_000), [40, -9]]).astype(np.float32)
    extremes, histogram = _counted(x)

    def error(method: str) -> float:
        rounded = chosen(method, extremes, histogram, dtype, 99.99).rounded(x.astype(np.float64))
        return float(np.square(rounded - x).mean())

    assert error("mse") < 0.9 * error("minmax")
    assert error("mse") <= error("percentile") * 1.01


def test_histograms_of_a_group_are_added() -> None:
    a, b = Histogram(-1, 1), Histogram(-1, 1)
    a.add(np.float32([-1, 0, 0.5]))
    b.add(np.float32([1, 1]))
    joined = Histogram.joined([a, b])
    assert joined.total == 5 and joined.zeros == 1 and joined.counts[-1] == 2
    assert a.total == 3 and b.total == 2
