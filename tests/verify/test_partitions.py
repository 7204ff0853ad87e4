"""A partitioned model against PyTorch, and the fault inside one of its partitions."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

import npusim
from npusim import passes
from npusim.abi.scalar import OPCODES

from .faults import plant
from .test_passes import rectified


class Islands(nn.Module):
    """Native parts before, between and after operators that PyTorch runs."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(16, 16), nn.Linear(16, 4)
        self.middle = nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        """Maps [N, 16] to [N, 4]."""
        x = torch.linalg.vander(self.first(x).relu()[:, 0], N=16)
        x = torch.linalg.cholesky_ex(torch.eye(16) + 0.01 * self.middle(x).relu())[0][: x.shape[0]]
        return self.last(x + 1)


@pytest.fixture(scope="module")
def model() -> Islands:
    return Islands().eval()


@pytest.fixture(scope="module")
def x() -> Tensor:
    return torch.rand(16, 16, generator=torch.Generator().manual_seed(1))


@pytest.fixture(scope="module")
def plan(model: Islands, x: Tensor) -> npusim.PartitionPlan:
    graph = npusim.extract_ir(model, (x,))
    natives = {"first": "native", "middle": "native", "last": "native"}
    plan = npusim.partition(graph, pin=natives)
    assert sum(p.is_native for p in plan.partitions) >= 2
    return plan


def test_a_plan_agrees(model: Islands, x: Tensor, plan: npusim.PartitionPlan) -> None:
    ok, report = npusim.verify_plan(
        plan, state_dict=model.state_dict(), test_inputs=(x,), original_model=model, bisect=True
    )
    assert ok, report
    assert "partitions: agrees" in str(report)
    assert [edge.name for edge in report.edges] == ["zeros"]  # NaN becomes an integer


@pytest.mark.parametrize("which", [0, -1])
def test_a_fault_is_found_in_its_partition(
    model: Islands, x: Tensor, plan: npusim.PartitionPlan, which: int
) -> None:
    natives = [p for p in plan.partitions if p.program is not None and _calls(p, "gemm")]
    chosen = natives[which]
    assert chosen.program is not None
    program, index = plant(chosen.program, "gemm", 0, act=OPCODES["tanh"][0])
    wrong = tuple(
        replace(p, program=program) if p.index == chosen.index else p for p in plan.partitions
    )
    ok, report = npusim.verify_plan(
        replace(plan, partitions=wrong), state_dict=model.state_dict(), test_inputs=(x,)
    )
    first = report.first_divergence
    assert not ok and first is not None
    assert (first.partition, first.command, first.cause) == (chosen.index, index, "command")
    assert f"partition {chosen.index}, command {index} gemm" in str(report)


class Bounded(nn.Module):
    """Native parts around an operator that PyTorch runs; the second has a bound beside zero."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(4, 4, bias=False), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        """Maps [N, 4] to the same shape."""
        x = torch.linalg.vander(self.first(x)[:, 0], N=4)[:, 1:3]
        return self.last(torch.log(torch.clamp_min(x.abs().repeat(1, 2), 1e-12)))


@pytest.mark.parametrize("edges", [True, False])
def test_a_pass_at_fault_is_found_in_its_partition(
    monkeypatch: pytest.MonkeyPatch, edges: bool
) -> None:
    """Ordinary inputs do not show it: only those of zeros do."""
    monkeypatch.setattr(passes, "PIPELINE", (rectified, *passes.PIPELINE))
    model, x = Bounded().eval(), torch.rand(3, 4) + 0.5
    pins = {"first": "native", "last": "native"}
    plan = npusim.partition(npusim.extract_ir(model, (x,)), pin=pins)
    ok, report = npusim.verify_plan(
        plan, state_dict=model.state_dict(), test_inputs=(x,), original_model=model, edges=edges
    )
    if not edges:
        assert ok
        return
    last = max(p.index for p in plan.partitions if p.is_native)
    assert not ok and report.fault is not None and report.first_divergence is None
    assert (report.fault.name, report.fault.partition) == ("rectified", last)
    assert report.fault.op == "aten.relu.default"
    assert f"partition {last}: the graph after `rectified` differs" in str(report)
    assert json.loads(json.dumps(report.to_json()))["fault"]["partition"] == last
    assert next(edge.name for edge in report.edges if not edge.ok) == "zeros"


def _calls(partition: npusim.Partition, stem: str) -> bool:
    return any(kernel == stem for kernel, _ in partition.commands)
