"""What the lowering emits around the nodes' own commands."""

from __future__ import annotations

import torch
from torch import Tensor, nn

import npusim


class Branches(nn.Module):
    """Two convolutions of one image, which they read with its channels innermost."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.wide, self.narrow = nn.Conv2d(16, 16, 3, padding=1), nn.Conv2d(16, 16, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Maps [N, 16, H, W] to the same shape."""
        return self.wide(x) + self.narrow(x)


def test_an_input_is_reordered_once_for_all_its_readers() -> None:
    model, x = Branches().eval(), torch.randn(1, 16, 8, 8)
    program = npusim.compile(npusim.extract_ir(model, (x,)))
    source = program.input_specs[0].buffer
    method = program.methods[0]
    readers = [c for c in method.commands if any(o.buffer == source for o in c.operands)]
    assert [program.kernels[c.kernel].name for c in readers] == ["copy"]
    ok, report = npusim.verify_program(
        program, state_dict=model.state_dict(), test_inputs=(x,), original_model=model
    )
    assert ok, report
