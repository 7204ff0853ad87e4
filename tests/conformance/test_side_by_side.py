"""Outputs that stand side by side in memory where what is reduced for each does not."""

from __future__ import annotations

import copy

import numpy as np
import pytest

import npusim
from npusim import _runtime

torch = pytest.importorskip("torch")

REDUCTIONS = {
    "sum": lambda y: y.sum(1),
    "mean": lambda y: y.mean((1, 3)),
    "amax": lambda y: y.amax(1),
    "argmax": lambda y: y.argmax(1),
    "argmin": lambda y: y.argmin(1),
    "var": lambda y: y.var(1),
    "prod": lambda y: y.prod(1),
    "logsumexp": lambda y: y.logsumexp(1),
    "any": lambda y: (y > 0).any(1),
}


class Reduced(torch.nn.Module):
    """A reduction over groups of channels of a convolution, whose channels lie innermost."""

    def __init__(self, name: str, channels: int) -> None:
        super().__init__()
        self.conv, self.name = torch.nn.Conv2d(3, channels, 1), name

    def forward(self, x):
        y = self.conv(x)
        return REDUCTIONS[self.name](y.reshape(y.shape[0], 2, -1, *y.shape[2:]))


def agree(model, x, wanted: np.ndarray, tolerance: float) -> None:
    """Compares what every instruction set computes."""
    program = npusim.compile((model, (x,)))
    for isa in _runtime.isa_names():
        device = npusim.Device("cpu", threads=2, isa=isa)
        (got,) = npusim.load(program, model.state_dict(), device)(x)
        np.testing.assert_allclose(got.float(), wanted, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", REDUCTIONS)
def test_groups_of_channels(name: str) -> None:
    torch.manual_seed(0)
    for channels, shape in ((16, (2, 3, 9, 7)), (6, (1, 3, 5, 5)), (600, (1, 3, 3, 2))):
        model, x = Reduced(name, channels).eval(), torch.randn(shape)
        with torch.no_grad():
            agree(model, x, model(x).float().numpy(), 2e-5)


@pytest.mark.parametrize("channels", [1, 5, 16, 130])
def test_norms_of_single_channels(channels: int) -> None:
    torch.manual_seed(0)
    norm = torch.nn.InstanceNorm2d(channels, affine=True)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, channels, 1), norm, torch.nn.Conv2d(channels, 4, 3)
    ).eval()
    x = torch.randn(2, 3, 9, 7)
    with torch.no_grad():
        agree(model, x, model(x).numpy(), 2e-5)


@pytest.mark.parametrize(
    ("channels", "act"),
    [(16, torch.nn.ReLU), (58, torch.nn.SiLU), (70, torch.nn.Identity), (5, torch.nn.SiLU)],
)
@pytest.mark.parametrize(("kernel", "stride"), [(3, 1), (3, 2), (5, 1)])
def test_depthwise_in_sixteen_bits(channels: int, act, kernel: int, stride: int) -> None:
    torch.manual_seed(0)
    layer = torch.nn.Conv2d(channels, channels, kernel, stride, kernel // 2, groups=channels)
    model = torch.nn.Sequential(layer, act()).eval().to(torch.bfloat16)
    x = torch.randn(1, channels, 19, 21).to(torch.bfloat16)
    with torch.no_grad():
        wanted = copy.deepcopy(model).float()(x.float()).numpy()
        agree(model, x, wanted, 1e-2)


class Gathered(torch.nn.Module):
    """Elements of rows by tensors of indices."""

    def forward(self, x, index):
        return x.gather(2, index)


def test_gathers_of_single_elements() -> None:
    x = torch.arange(2 * 5 * 300.0).reshape(2, 5, 300)
    index = torch.randint(-300, 300, (2, 5, 333), generator=torch.Generator().manual_seed(0)) % 300
    program = npusim.compile((Gathered().eval(), (x, index)))
    wrong = index.clone()
    wrong[1, 4, 332] = 300
    for isa in _runtime.isa_names():
        session = npusim.load(program, None, npusim.Device("cpu", isa=isa, threads=2))
        for given in (index, index.transpose(1, 2).contiguous().transpose(1, 2)):
            np.testing.assert_array_equal(session(x, given)[0], x.gather(2, index))
        with pytest.raises(npusim.Error, match="out of range"):
            session(x, wrong)
