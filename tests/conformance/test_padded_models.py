"""Whole models in padded memory on the CPU: the bits of the unpadded program, nothing leaks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

import npusim
from npusim.errors import TargetConstraintError
from npusim.program.program import CompiledProgram
from npusim.selftest.decoder import DECODERS, run_decoder
from npusim.selftest.models import EXAMPLES, run_model
from npusim.targets import TargetConfig
from tests.conformance.poison import run_poisoned
from tests.conformance.test_padding import DEVICE, PADDED, PLAIN, run_plain
from tests.models import build

TILED = replace(PLAIN, name="tiled", channel_tile=24)


@pytest.mark.parametrize("target", [PADDED, TILED], ids=["bytes", "tile"])
def test_resnet18_has_the_bits_of_the_unpadded_program(target: TargetConfig) -> None:
    model, (image,) = build("resnet18", small=True)
    ir = npusim.extract_ir(model, (image,))
    plain, padded = npusim.compile(ir, PLAIN), npusim.compile(ir, target)
    assert padded.methods[0].inputs[0].shape != padded.methods[0].inputs[0].alloc_shape or (
        image.shape[-1] % target.channel_multiple("float32") == 0
    )
    weights = model.state_dict()
    wanted = npusim.load(plain, weights, DEVICE)(image.numpy())[0]
    np.testing.assert_array_equal(npusim.load(padded, weights, DEVICE)(image.numpy())[0], wanted)


@pytest.mark.parametrize("name", EXAMPLES)
def test_small_models_agree_with_pytorch(name: str) -> None:
    found = run_model(EXAMPLES[name], EXAMPLES[name].dtypes[0], TILED, DEVICE)
    assert "failure" not in found, found


def test_a_decoder_says_what_it_says_without_padding() -> None:
    """Calls and states of a language model are dense; what its commands leave to each other not."""
    assert run_decoder(PADDED, DEVICE, DECODERS["float32"]) == {"tokens": 32}


class Odd(torch.nn.Module):
    """Extents that no target has as multiples, regrouped, cut and turned."""

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = torch.softmax(x.transpose(1, 2), -1).reshape(3, 35) * 2.0
        z = torch.cat([y, y.flip(1)], 1)[:, 3:44].cumsum(1)
        return z, torch.where(mask, x, x.mean()).argmax(-1), x[:, 1:3].flatten(), z[0, 5]


def test_odd_extents_do_not_leak() -> None:
    x, mask = torch.randn(3, 5, 7), torch.randn(3, 5, 7) > 0
    ir = npusim.extract_ir(Odd().eval(), (x, mask))
    given = [x.numpy(), mask.numpy()]
    wanted = run_plain(npusim.compile(ir, PLAIN), given)
    padded = npusim.compile(ir, PADDED)
    for got, want in zip(run_poisoned(padded, given, DEVICE), wanted, strict=True):
        np.testing.assert_array_equal(got, want)
    read = CompiledProgram.from_bytes(padded.to_bytes())
    assert read.methods[0].inputs[0].alloc_shape == (3, 5, 16)
    buffer = npusim.DeviceBuffer.from_numpy(given[0], DEVICE, read.methods[0].inputs[0])
    assert (
        np.frombuffer(buffer.read(), np.float32).reshape(3, 5, 16)[..., 7:].tolist()
        == [[[0.0] * 9] * 5] * 3
    )
    results = npusim.runtime.Executor(read, DEVICE).run(
        {
            spec.name: npusim.DeviceBuffer.from_numpy(a, DEVICE, spec)
            for spec, a in zip(read.methods[0].inputs, given, strict=True)
        }
    )
    shapes = [results[s.name].to_numpy(s).shape for s in read.methods[0].outputs]
    assert shapes == [(3, 41), (3, 5), (42,), ()]


def test_sizes_that_calls_choose_are_padded_where_they_are_fixed() -> None:
    ir = npusim.extract_ir(
        torch.nn.Sequential(torch.nn.Linear(7, 5), torch.nn.GELU()).eval(),
        (torch.randn(4, 7),),
        dynamic_shapes=({0: torch.export.Dim("batch", min=1, max=9)},),
    )
    plain, padded = npusim.compile(ir, PLAIN), npusim.compile(ir, PADDED)
    assert padded.methods[0].inputs[0].alloc_shape == (9, 16)
    weights = {"0.weight": np.ones((5, 7), np.float32), "0.bias": np.ones(5, np.float32)}
    for batch in (1, 4, 9):
        x = np.random.default_rng(batch).standard_normal((batch, 7)).astype(np.float32)
        wanted = npusim.load(plain, weights, DEVICE)(x)[0]
        np.testing.assert_array_equal(npusim.load(padded, weights, DEVICE)(x)[0], wanted)


def test_a_multiple_is_a_number_of_elements() -> None:
    both = replace(PADDED, channel_tile=12)
    assert [both.channel_multiple(d) for d in ("int8", "float16", "float32")] == [192, 96, 48]
    assert PLAIN.channel_multiple("bool") == 1
    edge = TargetConfig.named("npu-edge-32x32")
    assert edge.channel_multiple("int8") == 16 and edge.channel_multiple("float32") == 1
    for key in ("channel_align_bytes", "channel_tile"):
        for wrong in (0, -1, 5000):
            with pytest.raises((TargetConstraintError, ValueError), match=key):
                replace(PLAIN, **{key: wrong})
