"""A pass that changes values is named, and no command is blamed for it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import npusim
from npusim import passes
from npusim.ir.graph import Graph
from npusim.targets.target_config import TargetConfig


def sharpened(graph: Graph, target: TargetConfig) -> Graph:
    """Takes every gelu for its tanh form: wrong by a little."""
    changed = (
        replace(n, attrs={"approximate": "tanh"}) if n.op == "aten.gelu.default" else n
        for n in graph.nodes
    )
    return replace(graph, nodes=tuple(changed))


def rectified(graph: Graph, target: TargetConfig) -> Graph:
    """Takes every lower bound for a relu: right on random inputs."""
    changed = (
        replace(n, op="aten.relu.default", attrs={}) if n.op.startswith("aten.clamp") else n
        for n in graph.nodes
    )
    return replace(graph, nodes=tuple(changed))


class Net(nn.Module):
    """Two layers, and the logarithm of what is bounded from below."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(8, 8, bias=False), nn.Linear(8, 8, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Maps [N, 8] to the same shape."""
        y = nn.functional.gelu(self.first(x))
        y = nn.functional.softmax(self.second(y), -1)
        return torch.log(torch.clamp_min(y * x.abs(), 1e-12))


@pytest.fixture
def pipeline(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[Any]:
    """Puts a broken pass into the middle of the pipeline."""
    middle = len(passes.PIPELINE) // 4
    broken = (*passes.PIPELINE[:middle], request.param, *passes.PIPELINE[middle:])
    monkeypatch.setattr(passes, "PIPELINE", broken)
    yield request.param


@pytest.mark.parametrize("pipeline", [sharpened, rectified], indirect=True)
@pytest.mark.parametrize("given", ["graph", "program", "neither"])
def test_a_broken_pass_is_named(pipeline: Any, given: str) -> None:
    model, x = Net().eval(), torch.randn(4, 8)
    graph = npusim.extract_ir(model, (x,))
    state = model.state_dict()
    source = {"source": graph} if given == "program" else {}
    program = graph if given == "graph" else npusim.compile(graph)
    with_model = {} if given == "graph" else {"original_model": model}
    tolerance = 1e-6 if pipeline is sharpened else None
    ok, report = npusim.verify_program(
        program, state_dict=state, test_inputs=(x,), tolerance=tolerance, **source, **with_model
    )
    assert not ok and report.fault is not None
    assert report.fault.name == pipeline.__name__
    op = "gelu" if pipeline is sharpened else "relu"
    assert report.fault.op == f"aten.{op}.default"
    assert report.fault.inputs and report.fault.source
    assert report.first_divergence is None
    assert f"the graph after `{pipeline.__name__}` differs: node" in str(report)
    assert json.loads(json.dumps(report.to_json(), allow_nan=False))["fault"]["name"]


@pytest.mark.parametrize("pipeline", [rectified], indirect=True)
def test_random_inputs_alone_would_not_have_told(pipeline: Any) -> None:
    model, x = Net().eval(), torch.randn(4, 8)
    common = {"state_dict": model.state_dict(), "test_inputs": (x,), "original_model": model}
    program = npusim.compile(npusim.extract_ir(model, (x,)))
    ok, report = npusim.verify_program(program, edges=False, **common)
    assert ok and not report.edges
    ok, report = npusim.verify_program(program, **common)
    assert not ok and [e.name for e in report.edges if not e.ok] == ["zeros"]


def test_a_program_without_its_source_blames_no_command() -> None:
    model, x = Net().eval(), torch.randn(4, 8)
    graph = npusim.extract_ir(model, (x,))
    other = npusim.compile(sharpened(graph, TargetConfig.named("cpu")))
    _, report = npusim.verify_program(
        other, state_dict=model.state_dict(), test_inputs=(x,), original_model=model, tolerance=1e-7
    )
    assert report.fault is not None and not report.fault.name
    assert "its commands are not at fault" in str(report)


class Masked(nn.Module):
    """Attention under a mask."""

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """Maps [1, N, 8] and a boolean [N, N] to [1, N, 8]."""
        scores = (x @ x.transpose(1, 2)).masked_fill(~mask, float("-inf"))
        return torch.softmax(scores, -1) @ x


def test_edges_are_those_of_the_inputs() -> None:
    x, mask = torch.randn(1, 4, 8), torch.ones(4, 4).tril().bool()
    graph = npusim.extract_ir(Masked().eval(), (x, mask))
    ok, report = npusim.verify_program(graph, test_inputs=(x, mask))
    assert ok, str(report)
    assert [e.name for e in report.edges] == ["zeros", "NaN", "empty masks", "full masks"]
    graph = npusim.extract_ir(nn.Hardswish().eval(), (x,))
    ok, report = npusim.verify_program(graph, test_inputs=(x,))
    assert ok and [e.name for e in report.edges] == ["zeros", "NaN", "extremes"]
    assert "edge inputs: zeros, NaN, extremes" in str(report)
