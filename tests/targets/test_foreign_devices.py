"""A program on another device than its target's: the CPU and `null` take it, GPUs refuse it.

Files keep the schemas of the CPU's kernels beside the code of a GPU, so that the CPU runs what is
compiled for any target. GPUs run the code that a program brings, and say whose is missing
(tests/metal/test_failures.py). `null` computes nothing, whatever it was compiled for.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import npusim
from npusim.errors import UnsupportedOpError
from npusim.program.program import CompiledProgram
from npusim.targets import TargetConfig, target_names

X = torch.linspace(-2, 2, 32).reshape(2, 16)


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 24), nn.SiLU(), nn.Linear(24, 8), nn.Softmax(-1)).eval()


def program_for(target: str) -> CompiledProgram:
    """The model for a target; skips machines that compute none of it."""
    try:
        return npusim.compile((model(), X), target)
    except UnsupportedOpError:
        pytest.skip(f"{target} computes no float32")


def test_there_are_targets_of_several_devices() -> None:
    assert {TargetConfig.named(name).device for name in target_names()} >= {"cpu", "cuda", "metal"}


@pytest.mark.parametrize("target", target_names())
def test_the_cpu_runs_programs_of_every_target(target: str) -> None:
    session = npusim.load(program_for(target), model().state_dict(), "cpu")
    (result,) = session(X)
    torch.testing.assert_close(torch.as_tensor(result), model()(X).detach())


@pytest.mark.parametrize("target", target_names())
def test_null_takes_programs_of_every_target_and_computes_none(target: str) -> None:
    session = npusim.load(program_for(target), model().state_dict(), "null")
    (result,) = session(X.numpy())
    assert (result.shape, result.dtype) == ((2, 8), np.float32)
