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


def test_other_operators_leave_all_as_it_was() -> None:
    def function(x: Tensor) -> Tensor:
        z = torch.view_as_complex(x)
        return torch.view_as_real(2 * z + torch.fft.fft(z))

    graph = npusim.extract_ir(Compute(function).eval(), (torch.randn(4, 2),))
    ops = [node.op for node in graph.nodes]
    assert ops[0] == "aten.view_as_complex.default" and ops[-1] == "aten.view_as_real.default"
    assert "aten.cat.default" not in ops and "aten.select.int" not in ops
