"""Works of nodes are those of the commands they become, and times follow from the rates."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

import npusim
from npusim.ir.graph import Graph
from npusim.partition.cost import CostModel, Work, works
from npusim.targets import TargetConfig

from .models import Function, stray

CPU = TargetConfig.named("cpu")


def found(model: nn.Module, *args: Tensor) -> dict[str, Work]:
    """Works by operator, of a model that has each once."""
    graph = npusim.extract_ir(model.eval(), args)
    assert isinstance(graph, Graph)
    known = works(graph, CPU)
    return {node.op.split(".")[1]: known[node.name] for node in graph.nodes}


def test_works_are_counted_by_hand() -> None:
    layers = nn.Linear(8, 5), nn.Softmax(-1), nn.Flatten(0), nn.Tanh()
    assert found(nn.Sequential(*layers), torch.randn(3, 8)) == {
        "linear": Work(15 * (2 * 8 + 1), 4 * (24 + 40 + 5 + 15)),
        "softmax": Work(5 * 15, 4 * 30),
        "view": Work(0, 0),
        "tanh": Work(15, 4 * 30),
    }
    attention = Function(torch.nn.functional.scaled_dot_product_attention)
    qkv = (torch.randn(1, 2, 6, 4), torch.randn(1, 2, 7, 4), torch.randn(1, 2, 7, 4))
    work = found(attention, *qkv)["scaled_dot_product_attention"]
    assert work == Work(2 * 6 * 7 * (2 * 8 + 5), 4 * 2 * (24 + 28 + 28 + 24))
    transposed = found(nn.ConvTranspose2d(3, 5, 2, bias=False), torch.randn(1, 3, 4, 4))
    assert transposed["conv_transpose2d"].flops == 2 * 16 * 3 * 5 * 4


def test_what_no_kernel_computes_counts_its_results() -> None:
    work = found(Function(lambda x: stray(x)), torch.randn(3, 4))["stray"]
    assert work == Work(12, 4 * 24)


def test_works_are_the_same_on_a_target_that_lacks_the_kernel() -> None:
    graph = npusim.extract_ir(nn.Softmax(-1).eval(), torch.randn(2, 3))
    assert isinstance(graph, Graph)
    assert works(graph, replace(CPU, kernels=())) == works(graph, CPU)


@pytest.mark.parametrize(("rate", "copied"), [(1e3, 4.0), (0, 0.0)])
def test_times_are_the_rooflines(rate: float, copied: float) -> None:
    costs = CostModel(3.0, 2.0, (100.0, 10.0), (50.0, 20.0), 5.0, rate)
    assert costs.native(Work(400, 10)) == 4.0
    assert costs.native(Work(10, 400)) == 40.0
    assert costs.host(Work(400, 10)) == 2.0 + 8.0
    assert costs.host(Work(0, 0)) == 2.0
    assert costs.transfer(4000) == 5.0 + copied


def test_a_model_has_its_targets_rates() -> None:
    costs = CostModel.of(replace(CPU, run_seconds=7.0, compute_rate=2.0, memory_rate=3.0))
    assert (costs.run_seconds, costs.device_rates) == (7.0, (2.0, 3.0))
    assert (costs.transfer_seconds, costs.transfer_rate) == (
        CPU.transfer_seconds,
        CPU.transfer_rate,
    )
