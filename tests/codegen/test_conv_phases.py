"""Transposed convolutions by phases of their stride are PyTorch's."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import npusim
from npusim.abi.kernels import KERNELS, PHASED
from npusim.lowering.assemble import assemble
from npusim.passes.run import run_passes
from tests.codegen import host
from tests.codegen.cases import TARGET

# The layer, and how many plain convolutions it becomes; 1: it stays as it is; 0: all at once.
LAYERS: dict[str, tuple[nn.Module, int]] = {
    "as large as the stride": (nn.ConvTranspose2d(16, 8, 2, 2), 0),
    "larger": (nn.ConvTranspose2d(16, 8, 4, 2, 1), 0),
    "padding beyond the stride": (nn.ConvTranspose2d(16, 8, 6, 2, 4), 0),
    "odd": (nn.ConvTranspose2d(16, 8, 3, 2, 1, output_padding=1), 4),
    "grouped": (nn.ConvTranspose2d(16, 8, 5, 3, 2, groups=2), 9),
    "one dimension": (nn.ConvTranspose1d(16, 8, 8, 4, 2), 0),
    "three dimensions": (nn.ConvTranspose3d(16, 4, 3, 2, 1), 8),
    "three dimensions at once": (nn.ConvTranspose3d(16, 12, (4, 2, 1), (2, 2, 1), (1, 0, 0)), 0),
    "much padding": (nn.ConvTranspose2d(16, 8, 5, 2, 4), 4),
    "unlike strides": (nn.ConvTranspose2d(16, 8, (3, 5), (1, 2), (0, 2)), 2),
    "gaps": (nn.ConvTranspose2d(16, 8, 2, 3), 1),
    "dilated": (nn.ConvTranspose2d(16, 8, 2, 2, dilation=2), 1),
    "stride of one": (nn.ConvTranspose2d(16, 8, 3, 1, 1), 1),
}


class Added(nn.Module):
    """A layer, and something added to its activated result."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor, more: Tensor) -> Tensor:
        """Maps x and what its result looks like."""
        return torch.relu(self.layer(x)) + more


@pytest.mark.skipif(host.COMPILER is None, reason="no C++ compiler to run kernels with")
@pytest.mark.parametrize(
    "name, dtype", [(n, torch.float16) for n in LAYERS] + [("larger", torch.float32)]
)
def test_phases_give_the_same(name: str, dtype: torch.dtype, tmp_path: Path) -> None:
    """Of small integers: sums are exact in any order."""
    layer, count = LAYERS[name]
    generator = torch.Generator().manual_seed(len(name))

    def whole(*shape: int) -> Tensor:
        return torch.randint(-2, 3, shape, generator=generator).float()

    for parameter in layer.parameters():
        parameter.data = whole(*parameter.shape)
    model = Added(layer).eval()
    x = whole(2, 16, *(4, 5, 3)[: layer.weight.dim() - 2])  # type: ignore[union-attr, operator]
    more = whole(*layer(x).shape)
    want = model(x, more)
    model.to(dtype)
    given = (x.to(dtype), more.to(dtype))
    program = assemble(run_passes(npusim.extract_ir(model, given), TARGET), TARGET)
    keys = host.keys_of([program])
    commands = [c for c in program.methods[0].commands if program.kernels[c.kernel].name == "conv"]
    assert len(commands) == max(count, 1)
    transposed = {KERNELS["conv"].unpack(c.params)["transposed"] for c in commands}
    assert transposed == {PHASED if count == 0 else int(count == 1)}
    weights = {key: _bytes(value) for key, value in model.state_dict().items()}
    kernels = host.build(keys, tmp_path)
    (data,) = host.run_program(program, kernels, [_bytes(t) for t in given], weights)
    got = torch.frombuffer(bytearray(data), dtype=dtype).reshape(want.shape)
    assert torch.equal(got.float(), want)


def _bytes(t: Tensor) -> bytes:
    return bytes(t.detach().contiguous().view(torch.uint8).numpy().tobytes())
