"""Every config that tuning may choose computes the same on a GPU, with equal bits each time."""

from __future__ import annotations

import pytest
import torch

import npusim
from tests.gpu.device import require_gpu
from tests.gpu.launch_configs import COMMANDS, example, in_every_launch_config

require_gpu()

TOLERANCE = 5e-3  # of bfloat16 results, by the norm


@pytest.mark.parametrize("name", COMMANDS)
def test_every_launch_config_computes_the_same(name: str) -> None:
    device, found, wrong = npusim.Device("cuda"), example(name), []
    for config, program in in_every_launch_config(found.program):
        session = npusim.load(program, found.weights, device)
        first, second = (session(*found.inputs)[0] for _ in range(2))
        error = float((first.double() - found.exact).norm() / found.exact.norm())
        if not error < TOLERANCE or not torch.equal(first, second):
            wrong.append(f"{config}: {error:.1e}, again {torch.equal(first, second)}")
    assert not wrong
