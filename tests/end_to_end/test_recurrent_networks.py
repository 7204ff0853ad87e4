"""Recurrences of PyTorch: they agree, and their steps are computed where they are concatenated."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

import npusim


class Recurrent(nn.Module):
    """Two layers, of which all steps are read."""

    def __init__(self, kind: type[nn.LSTM] | type[nn.GRU], both: bool) -> None:
        super().__init__()
        self.layers = kind(8, 16, 2, batch_first=True, bidirectional=both)
        self.head = nn.Linear(32 if both else 16, 8)

    def forward(self, x: Tensor) -> Tensor:
        """Maps [N, T, 8] to [N, T, 8]."""
        return self.head(self.layers(x)[0])


@pytest.mark.parametrize("both", [False, True])
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_steps_agree_and_are_not_copied(
    kind: type[nn.LSTM] | type[nn.GRU], both: bool, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    model, x = Recurrent(kind, both).eval(), torch.randn(1, 3, 8)
    program = npusim.compile(npusim.extract_ir(model, (x,)))
    names = [program.kernels[c.kernel].name for c in program.methods[0].commands]
    assert both or "copy" not in names
    save_file(model.state_dict(), tmp_path / "weights.safetensors")
    program.save(tmp_path / "model.npubin")
    session = npusim.load(tmp_path / "model.npubin", tmp_path / "weights.safetensors")
    with torch.no_grad():
        torch.testing.assert_close(session(x)[0], model(x))
