"""Operators over all values of small dtypes and edges of large ones, scalars of each kind, and
every pair of dtypes, beside PyTorch: a thin part of the value sweep (`make values` is all of it).
"""

from __future__ import annotations

import pytest
import torch

import npusim
from npusim.errors import GraphError
from npusim.frontends.torch_export import extract_ir
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


def test_hypot_of_integers_is_refused() -> None:
    """PyTorch traces it, and has no kernel for it."""
    x = torch.tensor([3, 4])
    graph = extract_ir(Call(torch.hypot, (x, x), {}), (x, x))
    with pytest.raises(npusim.Error, match="hypot"):
        npusim.compile(graph)
