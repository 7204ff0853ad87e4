"""Kernels of several kinds against NumPy, bit-equal in three orders of threads."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.softmetal import metal

KERNELS = Path(__file__).parent / "kernels"
# Name in MSL, storage in NumPy, bits of the significand.
TYPES = [("float", "float32", 24), ("half", "float16", 11), ("bfloat", "uint16", 8)]
Array = NDArray[Any]


def source(name: str) -> str:
    return (KERNELS / f"{name}.metal").read_text(encoding="utf-8")


def stored(values: Array, kind: str) -> Array:
    """float32 values as a buffer holds them: rounded to nearest even."""
    if kind != "bfloat":
        return values.astype({"float": np.float32, "half": np.float16}[kind])
    bits = values.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def widened(values: Array, kind: str) -> Array:
    if kind == "bfloat":
        return (values.astype(np.uint32) << 16).view(np.float32)
    return values.astype(np.float32)


def in_all_orders(run: Callable[[], Array]) -> Array:
    """What `run` gives, which all orders give bit for bit."""
    results = []
    for order in metal.ORDERS:
        metal.set_option("ORDER", order)
        results.append(run().copy())
    for result in results[1:]:
        assert result.tobytes() == results[0].tobytes()
    return results[0]


@pytest.mark.parametrize(("kind", "dtype", "bits"), TYPES)
@pytest.mark.parametrize("plus_one", [False, True])
def test_elementwise(
    device: metal.Device, kind: str, dtype: str, bits: int, plus_one: bool
) -> None:
    """A grid that its threadgroups do not divide, and elements that vectors of four do not."""
    x = stored(np.linspace(-3, 3, 203, dtype=np.float32), kind)
    pipeline = device.kernel(source("elementwise"), "affine", {0: np.bool_(plus_one)}, {"T": kind})
    parameters = np.array([(2.0, 0.5, 203)], dtype=[("a", "f4"), ("b", "f4"), ("n", "u4")])

    def run() -> Array:
        y = device.buffer(np.full(203, 7, dtype))
        device.run(pipeline, [device.buffer(x), y, parameters], [51], [32])
        return y.array(dtype)

    affine = np.float32(2) * widened(x, kind) + np.float32(0.5)
    expected = stored(affine + np.float32(plus_one), kind)
    np.testing.assert_array_equal(in_all_orders(run), expected)


@pytest.mark.parametrize(("kind", "dtype", "bits"), TYPES)
@pytest.mark.parametrize("threads", [32, 96])
def test_softmax(device: metal.Device, kind: str, dtype: str, bits: int, threads: int) -> None:
    x = stored(np.random.default_rng(1).normal(size=(5, 100)).astype(np.float32) * 4, kind)
    pipeline = device.kernel(source("softmax"), "softmax", macros={"T": kind, "COLUMNS": 100})

    def run() -> Array:
        y = device.buffer(x.nbytes)
        device.run(pipeline, [device.buffer(x), y], [5 * threads], [threads])
        return y.array(dtype, x.shape)

    exact = widened(x, kind).astype(np.float64)
    exact = np.exp(exact - exact.max(1, keepdims=True))
    exact /= exact.sum(1, keepdims=True)
    result = widened(in_all_orders(run), kind)
    np.testing.assert_allclose(result, exact, rtol=2.0 ** (1 - bits) + 3e-6, atol=1e-7)


@pytest.mark.parametrize(("kind", "dtype", "bits"), TYPES)
def test_rms_norm(device: metal.Device, kind: str, dtype: str, bits: int) -> None:
    random = np.random.default_rng(2)
    x = stored(random.normal(size=(3, 100)).astype(np.float32), kind)
    weight = stored(random.normal(size=100).astype(np.float32), kind)
    pipeline = device.kernel(source("softmax"), "rms_norm", macros={"T": kind, "COLUMNS": 100})
    epsilon = np.float32(1e-5)

    def run() -> Array:
        y = device.buffer(x.nbytes)
        device.run(pipeline, [device.buffer(x), device.buffer(weight), y, epsilon], [192], [64])
        return y.array(dtype, x.shape)

    wide = widened(x, kind).astype(np.float64)
    exact = wide / np.sqrt((wide**2).mean(1, keepdims=True) + 1e-5) * widened(weight, kind)
    result = widened(in_all_orders(run), kind)
    np.testing.assert_allclose(result, exact, rtol=2.0 ** (1 - bits) + 2e-6, atol=1e-7)


@pytest.mark.parametrize(("kind", "dtype", "bits"), TYPES)
def test_matmul(device: metal.Device, kind: str, dtype: str, bits: int) -> None:
    """simdgroup matrices, in both layouts of their elements; small integers make it exact."""
    random = np.random.default_rng(3)
    a = stored(random.integers(-4, 5, (32, 48)).astype(np.float32), kind)
    b = stored(random.integers(-4, 5, (48, 32)).astype(np.float32), kind)
    pipeline = device.kernel(source("matmul"), "matmul", macros={"T": kind, "K": 48, "N": 32})

    def run() -> Array:
        c = device.buffer(32 * 32 * 4)
        device.run(pipeline, [device.buffer(a), device.buffer(b), c], [2 * 128, 2], [128, 1])
        return c.array(np.float32, (32, 32))

    for layout in (0, 1):
        metal.set_option("MATRIX_LAYOUT", layout)
        np.testing.assert_array_equal(in_all_orders(run), widened(a, kind) @ widened(b, kind))


def test_atomics(device: metal.Device) -> None:
    x = np.random.default_rng(4).integers(3, 251, 512).astype(np.uint8)
    pipeline = device.kernel(source("histogram"), "histogram")

    def run() -> Array:
        counts = device.buffer(np.zeros(8, np.uint32))
        extremes = device.buffer(np.array([300, -1], np.int32))
        device.run(pipeline, [device.buffer(x), counts, extremes], [512], [64])
        return np.concatenate([counts.array(np.int32), extremes.array(np.int32)])

    expected = [*np.bincount(x >> 5, minlength=8), x.min(), x.max()]
    np.testing.assert_array_equal(in_all_orders(run), expected)
