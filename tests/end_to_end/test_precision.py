"""Compiling a float32 model in 16 bits: programs, sizes that calls choose, weights, the report."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.export import Dim

import npusim
from npusim.compile import configured
from npusim.passes.run import run_passes
from npusim.verify_precision import TOLERANCES, verify_precision

PRECISIONS = ("bfloat16", "mixed", "float16")


class Network(nn.Module):
    """Convolutions, a batch norm, attention, norms, a mean, and a head."""

    def __init__(self):
        super().__init__()
        self.stem, self.bn = nn.Conv2d(3, 32, 3, 2, 1), nn.BatchNorm2d(32)
        self.depthwise = nn.Conv2d(32, 32, 3, 1, 1, groups=32)
        self.point = nn.Conv2d(32, 32, 1)
        self.encoder = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, norm_first=True)
        self.norm, self.head = nn.LayerNorm(32), nn.Linear(32, 5)

    def forward(self, x):
        x = torch.relu(self.bn(self.stem(x)))
        x = x + torch.nn.functional.silu(self.point(self.depthwise(x)))
        return self.head(self.norm(self.encoder(x.flatten(2).transpose(1, 2))).mean(1))


@pytest.fixture(scope="module")
def network():
    torch.manual_seed(0)
    return Network().eval()


def expected(network, x):
    try:
        return network.double()(x.double()).detach()
    finally:
        network.float()


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("dynamic", [False, True])
def test_programs_take_and_give_float32_from_float32_weights(network, precision, dynamic):
    x = torch.randn(2, 3, 16, 16)
    dims = {"x": {0: Dim("batch", max=4)}} if dynamic else None
    ir = npusim.extract_ir(network, (x,), dynamic_shapes=dims)
    program = npusim.compile(ir, precision=precision)
    assert [s.dtype for s in (*program.input_specs, *program.output_specs)] == ["float32"] * 2
    session = npusim.load(program, weights=network.state_dict())
    for batch in (1, 2, 4) if dynamic else (2,):
        x = torch.randn(batch, 3, 16, 16)
        (y,) = session(x)
        exact = expected(network, x)
        error = float((y - exact).abs().max() / exact.abs().max())
        assert 0 < error < TOLERANCES[precision] / 2


@pytest.mark.parametrize("precision", PRECISIONS)
def test_the_report_has_every_product_and_every_output(network, precision):
    x = torch.randn(1, 3, 16, 16)
    report = verify_precision(
        npusim.extract_ir(network, (x,)), precision, network.state_dict(), [x]
    )
    assert report.ok and len(report.layers) == 9 and len(report.outputs) == 1
    assert report.layers[-1].dtype == "float32"
    assert report.worst.sqnr_db > 30
    assert "8 of 9 products" in "\n".join(report.lines())


def test_the_report_of_float32_has_no_error(network):
    x = torch.randn(1, 3, 16, 16)
    ir = npusim.extract_ir(network, (x,))
    report = verify_precision(ir, "float32", network.state_dict(), [x])
    assert report.outputs[0].max_rel == 0.0


def test_weights_are_rounded_once_after_batch_norms_are_folded():
    """A scale of 1/3 and its inverse in the batch norm give whole weights back."""
    conv, bn = nn.Conv2d(32, 32, 1, bias=False), nn.BatchNorm2d(32, eps=0.0)
    last = nn.Conv2d(32, 1, 1)
    model = nn.Sequential(conv, bn, last).eval()
    with torch.no_grad():
        conv.weight.copy_(torch.arange(1024).reshape(conv.weight.shape) % 7 / 3)
        bn.running_var.fill_(1 / 9)
        last.weight.fill_(1.0)
        last.bias.zero_()
    x = torch.ones(1, 32, 4, 4)
    session = npusim.load(
        npusim.compile((model, (x,)), precision="bfloat16"), weights=model.state_dict()
    )
    np.testing.assert_allclose(session(x.numpy())[0], model(x).detach(), rtol=1e-3)


class Gated(nn.Module):
    """Two gated products and a head; of the last product in 16 bits, nobody needs the result."""

    def __init__(self, bias):
        super().__init__()
        self.gates = nn.ModuleList(nn.Linear(48, 96, bias=bias) for _ in range(2))
        self.others = nn.ModuleList(nn.Linear(48, 96, bias=bias) for _ in range(2))
        self.down, self.head = nn.Linear(96, 48), nn.Linear(96, 640)

    def forward(self, x):
        for gate, other, after in zip(self.gates, self.others, (self.down, self.head), strict=True):
            x = after(torch.nn.functional.silu(gate(x)) * other(x))
        return x


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("rows", [1, 7, 70])
def test_gated_products_are_fused_as_in_models_of_16_bits(precision, bias, rows):
    torch.manual_seed(1)
    network = Gated(bias).eval()
    x = torch.randn(rows, 48)
    ir = npusim.extract_ir(network, (x,))
    fused = run_passes(ir, configured("cpu", None, precision))
    assert [node.op for node in fused.nodes].count("npu.gated_linear") == 2
    (y,) = npusim.load(npusim.compile(ir, precision=precision), weights=network.state_dict())(x)
    exact = expected(network, x)
    error = float((y - exact).abs().max() / exact.abs().max())
    assert 0 < error < TOLERANCES[precision] / 2


@pytest.mark.parametrize("precision", PRECISIONS)
def test_gated_products_at_the_end_are_right_in_any_dtype(precision):
    torch.manual_seed(2)
    network = Gated(True).eval()
    network.down, network.head = nn.Linear(96, 48), nn.Identity()
    x = torch.randn(9, 48)
    program = npusim.compile(npusim.extract_ir(network, (x,)), precision=precision)
    (y,) = npusim.load(program, weights=network.state_dict())(x)
    exact = expected(network, x)
    assert float((y - exact).abs().max() / exact.abs().max()) < TOLERANCES[precision] / 2


def test_gated_products_of_float32_stay_two():
    graph = run_passes(
        npusim.extract_ir(Gated(False).eval(), (torch.randn(3, 48),)), configured("cpu")
    )
    assert "npu.gated_linear" not in [node.op for node in graph.nodes]
