"""Complex numbers become pairs where all that happens to them can be said of pairs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import npusim
from npusim.ops.reference import run_graph

from .modules import Compute

Function = Callable[[Tensor, Tensor], Any]


def rotary(x: Tensor, angles: Tensor) -> Tensor:
    """Rotates neighbours in x[N, H, T, 2 K] by angles[T, K], as the first Llama did."""
    turned = torch.polar(torch.ones_like(angles), angles)
    pairs = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * turned).flatten(3)


def _parts(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    z = torch.complex(x, 2 * x) - torch.view_as_complex(y)
    return z.conj().real.clone(), (-z / 3).imag * 1.0


def _shapes(x: Tensor, y: Tensor) -> Tensor:
    z = torch.view_as_complex(y)
    z = torch.cat([z[1:], z[:1]]).unsqueeze(-2).expand(-1, 2, -1).permute(-1, 0, 1)
    z = 0.5 * z.reshape(-1, 2)[2:5, 1] * x
    return torch.view_as_real(z.index_select(0, torch.tensor([2, 0])))


@pytest.mark.parametrize(
    ("function", "x", "y"),
    [
        (rotary, torch.randn(2, 3, 5, 8), torch.randn(5, 4)),
        (_parts, torch.randn(4, 3), torch.randn(4, 3, 2)),
        (_shapes, torch.randn(3), torch.randn(4, 3, 2)),
    ],
)
def test_pairs_give_the_same_numbers(function: Function, x: Tensor, y: Tensor) -> None:
    graph = npusim.extract_ir(Compute(function).eval(), (x, y))
    assert all("complex" not in v.type.dtype for node in graph.nodes for v in node.outputs)
    wanted = function(x, y)
    wanted = wanted if isinstance(wanted, tuple) else (wanted,)
    for got, want in zip(run_graph(graph, [x, y]), wanted, strict=True):
        torch.testing.assert_close(got, want)
    assert npusim.check(graph).coverage == 1.0


def test_a_complex_table_is_split_once() -> None:
    table = torch.polar(torch.ones(4), torch.arange(4.0))
    x = torch.randn(3, 4, 2)

    def function(x: Tensor) -> Tensor:
        return torch.view_as_real(torch.view_as_complex(x) * table)

    graph = npusim.extract_ir(Compute(function).eval(), (x,))
    plan = npusim.partition(graph)
    (got,) = npusim.DAGExecutor(plan, "cpu", summary=False).load_weights({})(x)
    torch.testing.assert_close(got, function(x))
    assert [n.op for n in graph.nodes if "complex" in n.op or "real" in n.op] == [
        "aten.view_as_real.default"
    ]


def _arithmetic(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    z = torch.view_as_complex(y)
    w = (1 - 2j) * z / (x + 3j) + z.reciprocal() - 2 * z**2
    return w.abs(), w.angle(), torch.exp(1j * x).real.clone(), (w + x).sum(0).imag * 1.0


def _products(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    z = torch.view_as_complex(y)
    weights = torch.linalg.vector_norm(z, dim=1)
    return torch.view_as_real(z @ x.to(z.dtype).T), (x.to(z.dtype) @ z.mT).abs(), weights


def _choices(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    z = torch.view_as_complex(y)
    padded = torch.nn.functional.pad(z, (1, 2)).flip(0)
    padded = padded + torch.zeros_like(padded)
    padded[:, 1:4] = z * 1j
    first, second = torch.split(padded, 3, 1)
    chosen = torch.where(x > 0, z, x)
    return torch.view_as_real(first + second), torch.view_as_real(chosen[[2, 0]]), z.mean().real * 1


@pytest.mark.parametrize("function", [_arithmetic, _products, _choices])
def test_rules_give_what_complex_numbers_give(function: Function) -> None:
    x, y = torch.randn(4, 3), torch.randn(4, 3, 2)
    graph = npusim.extract_ir(Compute(function).eval(), (x, y))
    assert npusim.check(graph).coverage == 1.0
    for got, want in zip(run_graph(graph, [x, y]), function(x, y), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)


def test_an_operator_without_a_rule_stays_alone() -> None:
    """Around it all are pairs, made complex for it and made pairs again."""

    def function(x: Tensor) -> tuple[Tensor, Tensor]:
        z = torch.view_as_complex(x)
        turned = (2 * z * z).sinh() + z
        return torch.view_as_real(turned * turned), turned

    x = torch.randn(4, 2, generator=torch.Generator().manual_seed(0))
    graph = npusim.extract_ir(Compute(function).eval(), (x,))
    others = [note.op for note in npusim.check(graph).others]
    assert others == [
        "aten.view_as_complex.default",
        "aten.sinh.default",
        "aten.view_as_real.default",
        "aten.view_as_complex.default",  # the second result
    ]
    for got, want in zip(run_graph(graph, [x]), function(x), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)
