"""Models compiled for Metal: sizes of calls, checkpoints in place, PyTorch beside the device."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import npusim
from tests.metal.conftest import alive
from tests.softmetal import metal


class Gate(nn.Module):
    """Two matrices, one of more than a page, and scalar formulas between them."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(64, 96)
        self.down = nn.Linear(96, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.up(x)
        return self.down(y * torch.sigmoid(y) + torch.tanh(y))


def gate() -> Gate:
    torch.manual_seed(3)
    return Gate().eval()


@pytest.mark.parametrize("order", ["forward", "shuffle"])
@pytest.mark.usefixtures("device")
def test_sizes_of_calls_are_free(order: str) -> None:
    device = npusim.Device("metal")  # keeps what was made for sizes as long as it lives
    metal.set_option("ORDER", order)
    model = gate()
    rows = torch.export.Dim("rows", min=1, max=9)
    graph = npusim.extract_ir(model, (torch.zeros(3, 64),), dynamic_shapes=({0: rows},))
    session = npusim.load(npusim.compile(graph, "metal"), model.state_dict(), device)
    for count in (1, 9, 4, 1):
        x = torch.randn(count, 64)
        torch.testing.assert_close(session(x)[0], model(x))
    with pytest.raises(npusim.Error, match="10"):
        session(torch.randn(10, 64))


def test_a_checkpoint_is_used_where_it_lies(device: npusim.Device, tmp_path: Path) -> None:
    safetensors = pytest.importorskip("safetensors.torch")
    model, x = gate(), torch.randn(2, 64)
    path = tmp_path / "model.safetensors"
    safetensors.save_file(model.state_dict(), path)
    program = npusim.compile((model, (x,)), "metal")
    for copy in (False, True):
        weights = npusim.load_weights(path, program, device, copy=copy)
        executor = npusim.load(program, weights, device)
        torch.testing.assert_close(executor(x)[0], model(x))
        del executor, weights


def test_what_the_target_lacks_runs_in_pytorch(device: npusim.Device) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gate = gate()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.gate(x)
            return torch.tanh(torch.linalg.eigvalsh(y.T @ y + torch.eye(16)))

    model, x = Net().eval(), torch.randn(5, 64)
    plan = npusim.partition(npusim.extract_ir(model, (x,)), target="metal")
    executor = npusim.DAGExecutor(plan, device, summary=False)
    executor.load_weights(model.state_dict())
    for given in (x, x * 0.5):
        torch.testing.assert_close(executor(given)[0], model(given), rtol=1e-4, atol=1e-4)


def test_sessions_leave_nothing(device: npusim.Device) -> None:
    model, x = gate(), torch.randn(2, 64)
    program = npusim.compile((model, (x,)), "metal")
    before = alive()
    for _ in range(2):
        session = npusim.load(program, model.state_dict(), device)
        np.testing.assert_allclose(session(x)[0], model(x).detach(), rtol=1e-4, atol=1e-5)
        del session
        assert alive() == before
