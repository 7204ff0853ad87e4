"""A graph as a module of PyTorch gives what the reference gives, bit for bit."""

from __future__ import annotations

import pytest
import torch

import npusim
from npusim.errors import Error
from npusim.ir.opdef import REGISTRY
from npusim.ops.reference import run_graph
from npusim.peers.torch_module import torch_module
from npusim.selftest.single_op import graph_of, tensors_for
from tests.models import build

_CHANCE = {"npu.sample"}  # its state is an input of the op


@pytest.mark.parametrize("op", sorted(set(REGISTRY) - _CHANCE))
def test_every_case_of_an_op(op: str) -> None:
    definition = REGISTRY[op]
    for case in definition.cases:
        dtype = definition.dtypes[0]
        tensors = tensors_for(case, dtype, op)
        graph = graph_of(definition, case, tensors, dtype)
        given = [t for t in tensors if t is not None]
        wanted = run_graph(graph, given)
        got = torch_module(graph, {})(*given)
        assert len(got) == len(wanted)
        for one, other in zip(got, wanted, strict=True):
            assert one.dtype == other.dtype
            torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("name", ["mlp", "resnet18", "mobilenet_v2"])
def test_models(name: str) -> None:
    model, inputs = build(name, small=True)
    graph = npusim.extract_ir(model, tuple(inputs))
    assert isinstance(graph, npusim.IR)
    weights = {w.name: model.state_dict()[w.key] for w in graph.weights}
    with torch.no_grad():
        (got,) = torch_module(graph, weights)(*inputs)
        wanted = model(*inputs)
    torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-5)


def test_refuses_what_has_states_or_open_sizes() -> None:
    model, inputs = build("mlp")
    batch = torch.export.Dim("batch", min=2, max=8)
    x = torch.cat([inputs[0]] * 2)
    graph = npusim.extract_ir(model, (x,), dynamic_shapes=({0: batch},))
    assert isinstance(graph, npusim.IR)
    with pytest.raises(Error, match="symbolic sizes"):
        torch_module(graph, {})
