"""Bytes on described machines, bit for bit against the same arithmetic in NumPy and fractions."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from math import floor

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import npusim
from npusim.abi.requantization import ROUNDINGS, fixed, joined, requantized
from npusim.passes.run import run_passes
from npusim.targets import TargetConfig, override

pytest.importorskip("torch.ao.quantization.fx._decomposed")
q = torch.ops.quantized_decomposed
Ints = npt.NDArray[np.int64]
RULES = tuple(ROUNDINGS)
MACHINES = {
    rule: override(
        TargetConfig.named("npu-edge-32x32"),
        ["requantize.scale=fixed", f"requantize.rounding={rule}"],
    )
    for rule in RULES
}


def exactly(value: Fraction, rule: str) -> int:
    """The integer that a rule makes of a number: by its definition, not by shifts."""
    down = floor(value)
    rest = value - down
    if rule == "floor" or rest < Fraction(1, 2):
        return down
    if rest > Fraction(1, 2) or rule == "half_up":
        return down + 1
    return down + (down % 2 if rule == "half_even" else int(value >= 0))


def tflite(total: int, scale: float) -> int:
    """MultiplyByQuantizedMultiplier of TensorFlow Lite's reference, for scales below 1."""
    part, exponent = np.frexp(np.float64(np.float32(scale)))
    product = total * int(part * 2**31)
    nudge = 2**30 if product >= 0 else 1 - 2**30
    high = abs(product + nudge) // 2**31 * (1 if product + nudge >= 0 else -1)
    return exactly(Fraction(high, 2 ** int(-exponent)), "half_away")


def bytes_of(sums: Ints, scale: npt.NDArray[np.float32], zero: int, rule: str) -> Ints:
    """What int32 sums become: [.., channels] by the scale of each channel."""
    flat = np.broadcast_to(scale, sums.shape).reshape(-1)
    found = [
        tflite(int(s), f) if rule == "double" else exactly(int(s) * Fraction(float(f)), rule)
        for s, f in zip(sums.reshape(-1), flat, strict=True)
    ]
    return np.clip(np.array(found, np.int64).reshape(sums.shape) + zero, -128, 127)


class Layer(nn.Module):
    """One operator between bytes and bytes, as PyTorch's quantizers write it."""

    def __init__(
        self, of: Callable[..., torch.Tensor], weight: tuple[int, ...], steps: tuple[float, ...],
        zeros: tuple[int, ...], biased: bool = False, **more: object,
    ) -> None:  # fmt: skip
        super().__init__()
        self.of, self.more, self.steps, self.zeros = of, more, steps, zeros
        draw = np.random.default_rng(7)
        n = weight[0] if weight else 1
        edge = draw.choice([-128, 127, 0, 1, -1], weight) if weight else np.zeros(())
        drawn = np.where(draw.random(weight) < 0.5, edge, draw.integers(-128, 128, weight))
        self.register_buffer("weight", torch.from_numpy(drawn.astype(np.int8)))
        self.register_buffer("scale", torch.from_numpy(draw.uniform(0.001, 0.02, n)).float())
        self.register_buffer("zero", torch.zeros(n, dtype=torch.int64))
        self.bias = nn.Parameter(torch.from_numpy(draw.normal(0, 2, n)).float()) if biased else None

    def forward(self, *x: torch.Tensor) -> torch.Tensor:
        given = [
            q.dequantize_per_tensor(v, s, z, -128, 127, torch.int8)
            for v, s, z in zip(x, self.steps, self.zeros, strict=False)
        ]
        if self.weight.dim():
            w = (self.weight, self.scale, self.zero, 0, -128, 127, torch.int8)
            given += [q.dequantize_per_channel(*w), self.bias]
        y = self.of(*given, **self.more)
        return q.quantize_per_tensor(y, self.steps[-1], self.zeros[-1], -128, 127, torch.int8)


def same(model: nn.Module, wanted: Callable[[str], Ints], *x: Ints) -> None:
    """Holds the program of each machine, which has products of bytes alone, to what is wanted."""
    given = tuple(torch.from_numpy(v.astype(np.int8)) for v in x)
    graph = npusim.extract_ir(model.eval(), given)
    for rule, target in MACHINES.items():
        lowered = run_passes(graph, target)
        moving = [n for n in lowered.nodes if n.outputs[0].name not in lowered.static_values]
        assert {n.type.dtype for n in moving} == {"int8"}, lowered
        assert not [n for n in moving if n.op == "npu.pointwise"]
        (y,) = npusim.load(npusim.compile(graph, target), model.state_dict())(*given)
        expected = wanted(rule)
        np.testing.assert_array_equal(y.numpy(), expected.reshape(y.shape), rule)


def drawn(shape: tuple[int, ...], seed: int = 0) -> Ints:
    """Bytes, half of which are those at the ends."""
    draw = np.random.default_rng(seed)
    ends = draw.choice([-128, 127], shape)
    return np.where(draw.random(shape) < 0.5, ends, draw.integers(-128, 128, shape))


def scales(model: Layer) -> npt.NDArray[np.float32]:
    """Of the sums, in steps of the result, in the roundings of float32 that the compiler makes."""
    own = np.float32(model.steps[0]) * model.scale.numpy()
    return (own * np.float32(1 / model.steps[-1])).astype(np.float32)


def whole_bias(model: Layer) -> Ints:
    if model.bias is None:
        return np.zeros(1, np.int64)
    own = np.float32(model.steps[0]) * model.scale.numpy()
    return np.rint(model.bias.detach().numpy() / own).astype(np.int64)


ENDS = ((-128, 127), (127, -128), (0, 3))  # zero points of x and of y


@pytest.mark.parametrize("zeros", ENDS)
def test_products(zeros: tuple[int, int]) -> None:
    model = Layer(F.linear, (19, 70), (0.05, 0.4), zeros, biased=True)
    x = drawn((5, 70))
    w = model.weight.numpy().astype(np.int64)
    sums = (x - zeros[0]) @ w.T + whole_bias(model)
    same(model, lambda rule: bytes_of(sums, scales(model), zeros[1], rule), x)


def unfolded(x: Ints, kernel: int, stride: int, padding: int, zero: int) -> Ints:
    """[b, c, h, w] becomes [b, oh, ow, c, kernel, kernel]; outside lies the zero point."""
    padded = np.pad(x, ((0, 0), (0, 0), (padding,) * 2, (padding,) * 2), constant_values=zero)
    windows = np.lib.stride_tricks.sliding_window_view(padded, (kernel, kernel), (2, 3))
    return windows[:, :, ::stride, ::stride].transpose(0, 2, 3, 1, 4, 5)


@pytest.mark.parametrize(("groups", "zeros"), [(1, ENDS[0]), (2, ENDS[1]), (12, ENDS[2])])
def test_convolutions(groups: int, zeros: tuple[int, int]) -> None:
    more = {"stride": 2, "padding": 1, "groups": groups}
    model = Layer(F.conv2d, (24 if groups < 12 else 12, 12 // groups, 3, 3), (0.03, 0.5), zeros,
                  biased=True, **more)  # fmt: skip
    x = drawn((2, 12, 7, 5))
    windows = unfolded(x, 3, 2, 1, zeros[0]) - zeros[0]
    parts = windows.reshape(*windows.shape[:3], groups, -1)
    w = model.weight.numpy().astype(np.int64).reshape(groups, -1, parts.shape[-1])
    sums = np.einsum("bhwgk,gnk->bhwgn", parts, w).reshape(*windows.shape[:3], -1)

    def wanted(rule: str) -> Ints:
        y = bytes_of(sums + whole_bias(model), scales(model), zeros[1], rule)
        return y.transpose(0, 3, 1, 2)

    same(model, wanted, x)


@pytest.mark.parametrize(
    ("shape", "act"), [((2, 6, 5, 3), None), ((3, 4, 10), torch.relu), ((7,), None)]
)
def test_sums(shape: tuple[int, ...], act: Callable[..., torch.Tensor] | None) -> None:
    steps, zeros = (0.03, 0.07, 0.11), (-128, 127, 5)
    total = (lambda a, b: act(a + b)) if act else torch.add
    x, y = drawn(shape, 1), drawn(shape, 2)
    a, b = (np.float32(s) * np.float32(1 / steps[2]) for s in steps[:2])
    shift = 31 - int(np.frexp(max(a, b))[1])
    whole = [int(np.rint(float(f) * 2.0**shift)) for f in (a, b)]
    own, other = x + 128, y - 127
    sums = own * whole[0] + other * whole[1]

    def wanted(rule: str) -> Ints:
        rounds = "half_away" if rule == "double" else rule
        found = [exactly(Fraction(int(s), 2**shift), rounds) for s in sums.reshape(-1)]
        return np.clip(np.array(found) + zeros[2], zeros[2] if act else -128, 127)

    same(Layer(total, (), steps, zeros), wanted, x, y)


POOLS = {
    "global": (lambda x: x.mean((2, 3)), (6, 4), 1, 0),
    "adaptive": (lambda x: F.adaptive_avg_pool2d(x, 1), (6, 4), 1, 0),
    "windows": (lambda x: F.avg_pool2d(x, 2), (2, 2), 2, 0),
    "padded": (lambda x: F.avg_pool2d(x, 3, 2, 1), (3, 3), 2, 1),
}


@pytest.mark.parametrize("kind", POOLS)
def test_pools(kind: str) -> None:
    pool, (height, width), stride, padding = POOLS[kind]
    steps, zeros = (0.03, 0.02), (127, -128)
    x = drawn((2, 5, 6, 4))
    wide = np.pad(x, ((0, 0), (0, 0), (padding,) * 2, (padding,) * 2), constant_values=127) - 127
    windows = np.lib.stride_tricks.sliding_window_view(wide, (height, width), (2, 3))
    sums = windows[:, :, ::stride, ::stride].sum((-1, -2))
    scale = np.float32(steps[0] * (1 / steps[1]) / (height * width))
    same(Layer(pool, (), steps, zeros), lambda rule: bytes_of(sums, scale, zeros[1], rule), x)


def test_other_quantizations() -> None:
    x = np.arange(-128, 128).reshape(4, 64)
    model = Layer(lambda v: v, (), (0.03, 0.06), (-3, 9))  # every second one lies in the middle
    scale = np.float32(0.03 * (1 / 0.06))
    same(model, lambda rule: bytes_of(x + 3, scale, 9, rule), x)


def test_sums_at_the_limit_of_int32_wrap() -> None:
    """131071 products of -128 and -128 are 2**31 - 2**14; one more wraps."""
    for k, wraps in ((131_071, False), (131_072, True)):
        model = Layer(F.linear, (1, k), (2.0**-10, 1.0), (0, 0))
        model.weight.fill_(-128)
        model.scale.fill_(2.0**-14)
        x = np.full((1, k), -128)
        limit = np.array([-128 if wraps else 127])
        same(model, lambda _, limit=limit: limit, x)


@pytest.mark.parametrize("rule", RULES)
def test_arithmetic_at_its_edges(rule: str) -> None:
    """The definition against fractions: extreme sums, ties, the smallest and greatest scales."""
    ends = [0, 1, -1, 2, -2, 3, -3, 5, -5, 2**31 - 1, -(2**31), 2**30, -(2**30), 12345, -54321]
    given = [0.5, 0.25, 2.0**-31, 2.0**-32, 0.9999999, 1.0, 3.7e-5, -0.5, 1.5]
    for scale in np.array(given, np.float32):
        if rule == "double" and abs(scale) >= 1:
            continue
        m, r = fixed(scale)
        assert Fraction(int(m), 2 ** int(r)) == Fraction(float(scale))
        got = requantized(np.array(ends), scale, rule)
        for total, found in zip(ends, got, strict=True):
            exact = (
                tflite if rule == "double" else lambda s, f: exactly(s * Fraction(float(f)), rule)
            )
            assert found == exact(total, scale), (total, scale)
    for scale in (np.nan, 0.0, 1e-40):
        assert requantized(5, scale, rule) == 0
    assert [round(int(v) / 2**30) for v in requantized([1, -1], np.inf, rule)] == [1, -1]


def test_factors_of_a_sum_have_one_shift() -> None:
    assert joined([3], [-2], (0.75, 0.5), "half_even").tolist() == [1]
    assert joined([1], [1], (0.5, 0.0), "half_away").tolist() == [1]
    assert joined([-1], [0], (0.5, 0.25), "half_away").tolist() == [-1]
    assert joined([1], [2**20], (1.0, 1e-12), "floor").tolist() == [1]
