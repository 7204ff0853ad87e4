"""Operators npusim has no kernel for are carried: a graph says all that a call of them needs."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional

import npusim
from npusim.errors import UnsupportedOpError
from npusim.ir.graph import Graph
from npusim.ir.json import graph_from_text, graph_to_text
from npusim.lowering.constraints import _RANDOM
from npusim.ops.reference import run_graph

from .modules import Compute


@torch.library.custom_op("npusim_carried::peculiar", mutates_args=())
def peculiar(
    x: Tensor,
    scale: list[float],
    label: str,
    dtype: torch.dtype,
    device: torch.device,
    bias: Tensor | None = None,
    limit: int | None = None,
) -> tuple[Tensor, list[Tensor]]:
    """Every kind of argument a schema has, and a list of tensors among the results."""
    y = (x * scale[0] + len(label)).to(dtype)
    return y, [y + scale[1], y.sum() + (limit or 0)]


@peculiar.register_fake
def _(x, scale, label, dtype, device, bias=None, limit=None):  # type: ignore[no-untyped-def]
    y = x.new_empty(x.shape, dtype=dtype)
    return y, [torch.empty_like(y), y.new_empty(())]


def carried(function: object, *args: Tensor) -> Graph:
    """Extracts, checks that the JSON form holds all of it, and that the values are PyTorch's."""
    model = Compute(function).eval()  # type: ignore[arg-type]
    graph = npusim.extract_ir(model, args)
    assert graph_from_text(graph_to_text(graph)) == graph
    want = model(*args)
    for y, r in zip(run_graph(graph, list(args)), want, strict=True):
        torch.testing.assert_close(y, r, rtol=0, atol=0)
    return graph


def test_complex_numbers() -> None:
    x = torch.linspace(-1, 1, 8).reshape(2, 4)
    graph = carried(lambda x: ((z := torch.complex(x, x).sinh()).tan(), z.isfinite()), x)
    dtypes = [graph.types[o.value].dtype for o in graph.outputs]
    assert dtypes == ["complex64", "bool"]


def test_a_complex_number_as_an_attribute() -> None:
    x = torch.ones(3, dtype=torch.complex64)
    graph = carried(lambda x: (torch.pow(x, 2 - 3j),), x)
    (power,) = graph.nodes
    assert power.attrs["exponent"] == "(2-3j)"


def test_all_kinds_of_arguments_and_results() -> None:
    def function(x: Tensor) -> tuple[Tensor, ...]:
        y, (z, total) = peculiar(
            x, [2.0, 0.5], "ab", torch.float64, torch.device("cpu"), limit=None
        )
        return y, z, total

    graph = carried(function, torch.linspace(0, 1, 3))
    (node,) = graph.nodes
    assert node.op == "npusim_carried.peculiar.default"
    assert dict(node.attrs) == {
        "scale": (2.0, 0.5),
        "label": "ab",
        "dtype": "float64",
        "limit": None,
    }
    assert [str(v.type) for v in node.outputs] == ["float64[3]", "float64[3]", "float64[]"]


def test_checks_of_linear_algebra_are_left_out() -> None:
    x = torch.eye(3) * 2
    graph = carried(lambda x: (torch.linalg.inv(x), torch.linalg.cholesky(x)), x)
    assert not any("check" in node.op for node in graph.nodes)


def test_numbers_that_only_a_check_wants_are_left_out() -> None:
    def function(x: Tensor) -> tuple[Tensor]:
        lengths = (x != 0).sum(1)
        torch._check(lengths.max().item() <= x.shape[1])
        torch._check((lengths >= 0).all().item())
        return (2 * x,)

    graph = carried(function, torch.ones(2, 4))
    assert [node.op for node in graph.nodes] == ["aten.mul.Scalar"]


def test_compiling_lists_them_all() -> None:
    def function(x: Tensor) -> Tensor:
        return torch.linalg.inv(torch.view_as_complex(x).sinh().abs())

    graph = npusim.extract_ir(Compute(function).eval(), torch.ones(3, 3, 2))
    with pytest.raises(UnsupportedOpError) as caught:
        npusim.compile(graph)
    message = str(caught.value)
    for words in ("4 nodes", "sinh", "view_as_real", "dtype complex64", "linalg_inv_ex"):
        assert words in message
    assert len(caught.value.nodes) == 4


def test_compiling_refuses_values_no_device_holds() -> None:
    x = torch.ones(2, dtype=torch.complex64)
    graph = npusim.extract_ir(Compute(lambda x: x).eval(), x)
    with pytest.raises(UnsupportedOpError, match="value x: dtype complex64"):
        npusim.compile(graph)


@pytest.mark.parametrize(
    "draw",
    [
        lambda x: x + torch.rand_like(x),
        lambda x: x + torch.randn(3),
        lambda x: x.sigmoid().bernoulli(),
        lambda x: torch.multinomial(x.softmax(-1), 1),
        lambda x: torch.normal(x, 1.0),
        lambda x: x[torch.randperm(2)],
        lambda x: functional.dropout(x, 0.5, training=True),
    ],
)
def test_random_numbers_are_to_be_an_input(draw) -> None:  # type: ignore[no-untyped-def]
    graph = npusim.extract_ir(Compute(draw).eval(), (torch.ones(2, 3),))
    with pytest.raises(UnsupportedOpError, match=r"random numbers, .* make them an input"):
        npusim.compile(graph)


def test_what_is_said_to_draw_does_by_pytorch() -> None:
    assert _RANDOM
    for name in _RANDOM:
        packet = getattr(torch.ops.aten, name)
        forms = [getattr(packet, overload) for overload in packet.overloads()]
        assert any(torch.Tag.nondeterministic_seeded in form.tags for form in forms), name
