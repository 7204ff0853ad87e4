"""Operators over all values of small dtypes and edges of large ones, scalars of each kind, and
every pair of dtypes, beside PyTorch: a thin part of the value sweep (`make values` is all of it).
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import functional as F

import npusim
from npusim.errors import GraphError
from npusim.frontends.onnx import builder as onnx_builder
from npusim.frontends.tinygrad import builder as tinygrad_builder
from npusim.frontends.torch_export import extract_ir
from npusim.ir.types import TensorType
from tests.conformance.torch_samples import Call
from tests.conformance.value_sweep import sweep

# (values of an operand, one call of so many)
THIN = {
    "unary": (1 << 16, 2),
    "conversions": (1 << 12, 1),
    "tensors": (48, 16),
    "zero_dimensional": (24, 100),
    "reductions": (256, 1),
    "creations": (256, 1),
}


@pytest.mark.parametrize("part", THIN)
def test_values_are_pytorchs(part: str) -> None:
    most, every = THIN[part]
    tally = sweep(part, most, every)
    assert sum(tally.calls.values()) > 100
    assert not tally.wrong, tally.examples
    assert not tally.refused


@pytest.mark.parametrize(
    ("function", "number"),
    [
        (lambda x: x % -3, 2),
        (lambda x: torch.div(x, -3, rounding_mode="trunc"), 1),
        (lambda x: x.clamp(-5, 20), 20),
        (lambda x: x == 511, 1),
        (lambda x: x.masked_fill(x == 255, -1), 255),
    ],
)
def test_a_negative_scalar_wraps_to_bytes(function: object, number: int) -> None:
    """As PyTorch converts it to uint8 before it computes."""
    x = torch.tensor([0, 1, 7, 255], dtype=torch.uint8)
    graph = extract_ir(Call(function, (x,), {}), (x,))
    (result,) = npusim.load(npusim.compile(graph))(x)
    assert torch.equal(result, function(x))  # type: ignore[operator]
    assert int(result[-1]) == number


@pytest.mark.parametrize(
    "function",
    [
        lambda x: -7 % x,
        lambda x: 300 % x,
        lambda x: 2.5 % x,
        lambda x: 300 << x,
        lambda x: -3 >> x,
        lambda x: torch.bitwise_and(-3, x),
        lambda x: torch.bitwise_or(300, x),
        lambda x: torch.bitwise_xor(-3, x),
        lambda x: 300 - x,
        lambda x: -70000 // x,
        lambda x: torch.xlogy(-2, x),
    ],
)
@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int64, torch.float16])
def test_a_number_on_the_left(function: object, dtype: torch.dtype) -> None:
    """Wraps or is rounded to the tensor's dtype, as one on the right."""
    x = torch.tensor([1, 2, 3, 5, 6], dtype=dtype)
    try:
        expected = function(x)  # type: ignore[operator]
    except NotImplementedError:  # bits of floats
        return
    graph = extract_ir(Call(function, (x,), {}), (x,))
    (result,) = npusim.load(npusim.compile(graph))(x)
    torch.testing.assert_close(result, expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.clamp(0, 300),
        lambda x: x.masked_fill(x == 1, 300),
        lambda x: torch.full_like(x, 256),
        lambda x: torch.add(x, x, alpha=300),
    ],
)
def test_a_number_that_pytorch_refuses_is_refused(function: object) -> None:
    x = torch.tensor([0, 1], dtype=torch.uint8)
    with pytest.raises(RuntimeError, match="overflow"):
        function(x)  # type: ignore[operator]
    graph = extract_ir(Call(function, (x,), {}), (x,))
    with pytest.raises(GraphError, match="does not fit uint8"):
        npusim.compile(graph)


_HALVES = torch.tensor([0.1, 0.3, -0.1, 2.0, 1000.0, -0.0, torch.inf, -torch.inf, torch.nan] * 4)
_TAKEN = {
    "where with what 16 bits do not hold": lambda x: torch.where(x > 1, -1e9, x),
    "a scalar_tensor of what they do not hold": lambda x: (
        x + torch.scalar_tensor(1e39, dtype=x.dtype)
    ),
    "one element of what they do not hold": lambda x: x[:1] + torch.full((1,), 1e39, dtype=x.dtype),
    "a pad of -0": lambda x: F.pad(x, (1, 2), value=-0.0),
    "floor_divide by a number": lambda x: x // 0.3,
    "div by a number, cut off": lambda x: torch.div(x, 0.001, rounding_mode="trunc"),
    "div by a 0-d tensor, cut off": lambda x: torch.div(
        x, torch.tensor(0.3), rounding_mode="trunc"
    ),
    "floor_divide by one element": lambda x: x // torch.tensor([2051]),
    "times one element": lambda x: x * torch.tensor([[2051]]),
    "over one element": lambda x: x / torch.tensor([2051], dtype=torch.int32),
    "a threshold between two values": lambda x: F.threshold(x, 0.3, 5.0),
    "lerp to the end": lambda x: torch.lerp(x, x.abs(), 1.0),
    "lerp far beyond": lambda x: torch.lerp(x, -x, 1e9),
}


@pytest.mark.parametrize("what", _TAKEN)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_16_bit_floats_take_numbers_as_pytorch_does(what: str, dtype: torch.dtype) -> None:
    function, x = _TAKEN[what], _HALVES.to(dtype)
    graph = extract_ir(Call(function, (x,), {}), (x,))
    (result,) = npusim.load(npusim.compile(graph))(x)
    torch.testing.assert_close(result, function(x), rtol=0, atol=0, equal_nan=True)
    if what == "a pad of -0":
        assert result[[0, -1]].signbit().all()


@pytest.mark.parametrize("number", [1e39, -70000.0, 65520])
def test_a_fill_beyond_16_bits_is_refused(number: float) -> None:
    """As PyTorch refuses it, though `where` with the same number gives infinities."""
    x = torch.ones(3, dtype=torch.float16)
    with pytest.raises(RuntimeError, match="overflow"):
        x.masked_fill(x == 1, number)
    graph = extract_ir(Call(lambda x: x.masked_fill(x == 1, number), (x,), {}), (x,))
    with pytest.raises(GraphError, match="does not fit float16"):
        npusim.compile(graph)


@pytest.mark.parametrize(("alpha", "fits"), [(128, True), (-127, True), (-128, False)])
def test_what_is_subtracted_fits_with_the_other_sign(alpha: int, fits: bool) -> None:
    """As PyTorch adds -alpha times."""
    x = torch.tensor([1, -128, 5], dtype=torch.int8)
    for function in (torch.sub, torch.rsub):
        call = Call(function, (x, x.flip(0)), {"alpha": alpha})
        graph = extract_ir(call, (x, x.flip(0)))
        if fits:
            (result,) = npusim.load(npusim.compile(graph))(x, x.flip(0))
            assert torch.equal(result, call(x, x.flip(0)))
            continue
        with pytest.raises(RuntimeError, match="overflow"):
            call(x, x.flip(0))
        with pytest.raises(GraphError, match="does not fit int8"):
            npusim.compile(graph)


@pytest.mark.parametrize("elements", [4, 1 << 16])
def test_fills_with_both_zeros_are_two(elements: int) -> None:
    x = torch.ones(elements)
    both = Call(lambda x: (torch.full_like(x, 0.0), torch.full_like(x, -0.0)), (x,), {})
    plus, minus = npusim.load(npusim.compile(extract_ir(both, (x,))))(x)
    assert not plus.signbit().any() and minus.signbit().all()


def test_an_integer_is_rounded_once() -> None:
    x, number = torch.tensor([1.0, 2.0]), 2**60 + 2**36 + 1
    graph = extract_ir(Call(lambda x: x.masked_fill(x == 1, number), (x,), {}), (x,))
    (result,) = npusim.load(npusim.compile(graph))(x)
    assert torch.equal(result, x.masked_fill(x == 1, number))


@pytest.mark.parametrize("amount", [0, 3, 7, 8, 31, 300, -1, True])
def test_shifts_by_pythons_operators(amount: int) -> None:
    x = torch.arange(0, 256, dtype=torch.uint8)

    def shifted(x: torch.Tensor) -> torch.Tensor:
        return torch.stack([x << amount, x >> amount])

    graph = extract_ir(Call(shifted, (x,), {}), (x,))
    (result,) = npusim.load(npusim.compile(graph))(x)
    assert torch.equal(result, shifted(x))


def test_thresholds_of_integers_keep_all_digits() -> None:
    x = torch.tensor([2**24 + 1, -(2**30) - 1, 5], dtype=torch.int32)

    def bounded(x: torch.Tensor) -> torch.Tensor:
        return F.threshold(x, 1.5, 2.0)

    graph = extract_ir(Call(bounded, (x,), {}), (x,))
    (result,) = npusim.load(npusim.compile(graph))(x)
    assert torch.equal(result, bounded(x))


def test_hypot_of_integers_is_refused() -> None:
    """PyTorch traces it, and has no kernel for it."""
    x = torch.tensor([3, 4])
    graph = extract_ir(Call(torch.hypot, (x, x), {}), (x, x))
    with pytest.raises(npusim.Error, match="hypot"):
        npusim.compile(graph)


@pytest.mark.parametrize("builder", [onnx_builder, tinygrad_builder])
def test_importers_tell_kinds_of_equal_numbers_apart(builder: Any) -> None:
    """1, 1.0 and True are one key of a dict, and promote differently."""
    x = (TensorType("int64", (2,)),)
    for other, dtype in ((1, "int64"), (1.0, "float32"), (1, "int64")):
        attrs = (("alpha", 1), ("other", other))
        (found,) = builder._infer("aten.add.Scalar", x, attrs, repr(attrs))
        assert found.dtype == dtype
