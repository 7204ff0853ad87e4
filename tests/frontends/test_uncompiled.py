"""Graphs whose source is written when somebody wants it, and not before."""

from __future__ import annotations

from inspect import signature
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.fx import GraphModule, graph_module, symbolic_trace

import npusim
from npusim.frontends.uncompiled import compiled_when_called


class Doubled(nn.Module):
    """Returns its argument, doubled."""

    def forward(self, x: Tensor) -> Tensor:
        """Doubles."""
        return x * 2


@pytest.fixture
def sources(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The sources of graphs that were compiled."""
    found: list[str] = []
    compiled = graph_module._forward_from_src

    def listed(source: str, *args: Any) -> Any:
        found.append(source)
        return compiled(source, *args)

    monkeypatch.setattr(graph_module, "_forward_from_src", listed)
    return found


def test_an_extraction_compiles_what_it_asks_for_a_signature(sources: list[str]) -> None:
    graph = npusim.extract_ir(nn.Sequential(nn.Linear(3, 3), Doubled()).eval(), torch.zeros(2, 3))
    assert len(graph.nodes) == 2
    assert len(sources) <= 2  # of 18


def test_a_graph_is_compiled_when_it_is_called(sources: list[str]) -> None:
    with compiled_when_called():
        module = symbolic_trace(Doubled())
        assert sources == []
        assert module(torch.tensor(3.0)) == 6
        assert len(sources) == 1
        assert module(torch.tensor(4.0)) == 8
        assert len(sources) == 1
    assert "* 2" in module.code


def test_a_graph_is_compiled_after_the_context_and_when_it_is_read() -> None:
    with compiled_when_called():
        module, shown = symbolic_trace(Doubled()), symbolic_trace(Doubled())
    assert "* 2" in shown.code
    assert module(torch.tensor(3.0)) == shown(torch.tensor(3.0)) == 6


def test_a_signature_is_that_of_the_source() -> None:
    with compiled_when_called():
        assert list(signature(symbolic_trace(Doubled()).forward).parameters) == ["x"]


def test_a_changed_graph_is_compiled_again() -> None:
    with compiled_when_called():
        module = symbolic_trace(Doubled())
        assert module(torch.tensor(3.0)) == 6
        (product,) = (node for node in module.graph.nodes if node.op == "call_function")
        product.args = (product.args[0], 5)
        module.recompile()
        assert module(torch.tensor(3.0)) == 15
        assert "* 5" in module.code


def test_what_is_made_outside_is_compiled_at_once(sources: list[str]) -> None:
    with pytest.raises(ZeroDivisionError), compiled_when_called():
        raise ZeroDivisionError
    assert isinstance(symbolic_trace(Doubled()), GraphModule)
    assert len(sources) == 1
