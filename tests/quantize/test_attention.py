"""Attention between layers in bytes: what multiplies bfloat16, and what stays float32."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

import npusim
from npusim.ir.graph import Graph
from npusim.passes.run import run_passes
from npusim.quantize.attention import ATTENTION
from npusim.quantize.metrics import sqnr
from npusim.targets import TargetConfig

from .models import Model, made, outputs


class Attending(nn.Module):
    """Attention of two heads, by the operator or written out, of which layers read everything."""

    def __init__(self, written: bool = False, shown: bool = False) -> None:
        super().__init__()
        self.written, self.shown = written, shown
        self.qkv, self.out = nn.Linear(32, 96), nn.Linear(32, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Maps [N, 12, 32] to the same shape."""
        q, k, v = self.qkv(x).unflatten(2, (3, 2, 16)).permute(2, 0, 3, 1, 4).unbind(0)
        mask = torch.ones(12, 12).tril().log()
        if self.written:
            y = (q @ k.transpose(2, 3) * 0.25 + mask).softmax(-1) @ v
        else:
            y = functional.scaled_dot_product_attention(q, k, v, mask)
        y = y.transpose(1, 2).flatten(2)
        out: torch.Tensor = self.out(y)
        return out + y if self.shown else out


def net(**options: bool) -> Model:
    torch.manual_seed(5)
    return made(Attending(**options), torch.zeros(1, 12, 32))


def attention(graph: Graph) -> list[str]:
    """Returns the dtypes of attention in the program of a graph."""
    lowered = run_passes(graph, TargetConfig.named("cpu"))
    return [node.type.dtype for node in lowered.nodes if node.op == ATTENTION]


@pytest.mark.parametrize("written", [False, True])
@pytest.mark.parametrize("mode", ["static", "dynamic"])
def test_what_becomes_bytes_is_made_of_bfloat16(written: bool, mode: str) -> None:
    model = net(written=written)
    x = model.data["x"]
    expected = outputs(model.graph, model.weights, x)
    found = npusim.quantize(model.graph, model.weights, model.data, mode=mode)
    assert attention(found.graph) == ["bfloat16"]
    whole = npusim.quantize(model.graph, model.weights, model.data, mode=mode, attention="float32")
    assert attention(whole.graph) == ["float32"]
    near, nearest = (sqnr(outputs(m.graph, m.weights, x), expected) for m in (found, whole))
    assert near > nearest - 0.5 > 25  # far less than bytes bring


def test_the_layer_before_stores_bfloat16_itself() -> None:
    model = net()
    found = npusim.quantize(model.graph, model.weights, model.data)
    lowered = run_passes(found.graph, TargetConfig.named("cpu"))
    products = [node.type.dtype for node in lowered.nodes if node.op == "npu.int8_matmul"]
    assert products == ["bfloat16", "float32"]


@pytest.mark.parametrize("options", [{"skip": ["out"]}, {"target": "gemmini-8"}])
def test_what_others_read_stays_float32(options) -> None:
    model = net()
    found = npusim.quantize(model.graph, model.weights, model.data, **options)
    assert attention(found.graph) == ["float32"]
    shown = net(shown=True)
    found = npusim.quantize(shown.graph, shown.weights, shown.data)
    assert attention(found.graph) == ["float32"]


def test_what_attention_multiplies_is_one_of_two() -> None:
    model = net()
    with pytest.raises(npusim.Error, match="cannot multiply 'int4'"):
        npusim.quantize(model.graph, model.weights, model.data, attention="int4")
