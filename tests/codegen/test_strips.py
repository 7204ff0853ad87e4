"""Strips of convolutions give what each element alone gives, whatever their size."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import npusim
from npusim.abi.kernels import KERNELS
from npusim.codegen.cuda.rules import RULES
from npusim.codegen.cuda.variants import variants
from npusim.lowering.assemble import assemble
from npusim.passes.run import run_passes
from tests.codegen import host
from tests.codegen.cases import TARGET

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
# kernel, stride, padding, dilation, channels, size; channels of a group of x and of y
SHAPES: dict[str, tuple[int, ...]] = {
    "small": (3, 1, 1, 1, 8, 9),
    "strided": (3, 2, 1, 1, 16, 11),
    "wide": (7, 1, 3, 1, 24, 10),
    "dilated": (5, 1, 4, 2, 8, 13),
    "in parts": (13, 1, 6, 1, 4, 15),
    "odd channels": (3, 1, 1, 1, 7, 6),
    "padding alone": (3, 3, 2, 1, 8, 1),
    "gaps": (2, 5, 0, 1, 8, 17),
    "groups": (3, 1, 1, 1, 16, 9, 4, 4),
    "groups, strided": (3, 2, 1, 1, 16, 11, 2, 4),
    "groups, dilated": (5, 1, 4, 2, 16, 12, 4, 2),
    "two columns a channel": (3, 1, 1, 1, 16, 7, 1, 2),
    "odd columns": (3, 1, 1, 1, 16, 7, 2, 3),
}


def _images(name: str, dtype: torch.dtype) -> tuple[nn.Module, Tensor]:
    """A convolution and an input, of small integers: sums are exact in any order."""
    kernel, stride, padding, dilation, channels, size, *groups = SHAPES[name]
    inside, outside = groups or (1, 1)
    generator = torch.Generator().manual_seed(sum(SHAPES[name]))
    count = channels // inside
    layer = nn.Conv2d(channels, count * outside, kernel, stride, padding, dilation, groups=count)
    for parameter in layer.parameters():
        parameter.data = torch.randint(-2, 3, parameter.shape, generator=generator).to(dtype)
    x = torch.randint(-2, 3, (2, channels, size, size + 3), generator=generator).to(dtype)
    return nn.Sequential(layer, nn.ReLU()), x


def _lowered(model: nn.Module, x: Tensor) -> npusim.CompiledProgram:
    return assemble(run_passes(npusim.extract_ir(model.eval(), (x,)), TARGET), TARGET)


def _keys(program: npusim.CompiledProgram) -> list[host.Key]:
    return [key for key in host.keys_of([program]) if key[0] in ("conv", "conv_depthwise")]


def _bytes(t: Tensor) -> bytes:
    return bytes(t.contiguous().view(torch.uint8).numpy().tobytes())


@pytest.mark.skipif(host.COMPILER is None, reason="no C++ compiler to run kernels with")
@pytest.mark.parametrize("name", SHAPES)
def test_every_strip_gives_the_same(name: str, tmp_path: Path) -> None:
    """Small strips and large ones, of whole packs and of single channels, with a rest or none."""
    cases = []
    for dtype in DTYPES:
        model, x = _images(name, dtype)
        weights = {key: _bytes(value) for key, value in model.state_dict().items()}
        with torch.no_grad():
            cases.append((_lowered(model, x), x, weights, model.float()(x.float())))
    keys = [key for program, *_ in cases for key in _keys(program)]
    assert len(keys) == len(DTYPES)
    named = sorted(set.intersection(*(set(variants(*key)) for key in keys)))
    assert (
        "1x1" in named
        and "STRIP" in RULES[keys[0][0]](KERNELS[keys[0][0]].unpack(keys[0][1])).defines
    )
    others = [key for key in host.keys_of(program for program, *_ in cases) if key not in keys]
    plain = host.build(others, _folder(tmp_path, "others"))
    for variant in named[:: max(1, len(named) // 2)]:
        kernels = plain | host.build(keys, _folder(tmp_path, variant), variant)
        for program, x, weights, want in cases:
            (data,) = host.run_program(program, kernels, [_bytes(x)], weights)
            got = torch.frombuffer(bytearray(data), dtype=x.dtype).reshape(want.shape)
            assert torch.equal(got.float(), want), (variant, x.dtype)


@pytest.mark.skipif(host.COMPILER is None, reason="no C++ compiler to run kernels with")
def test_groups_of_one_channel_that_no_pass_has_seen(tmp_path: Path) -> None:
    """They have the weights of `conv`, in panels, and not those of `conv_depthwise`."""
    model, x = _images("wide", torch.float16)
    layer = model[0]  # type: ignore[index]
    program = assemble(npusim.extract_ir(layer.eval(), (x,)), TARGET)
    ((stem, params),) = _keys(program)
    config = RULES[stem](KERNELS[stem].unpack(params))
    assert (stem, config.defines["DIAGONAL"]) == ("conv", 0)
    weights = {key: _bytes(value) for key, value in layer.state_dict().items()}
    kernels = host.build(host.keys_of([program]), tmp_path)
    (data,) = host.run_program(program, kernels, [_bytes(x)], weights)
    want = layer.float()(x.float())
    got = torch.frombuffer(bytearray(data), dtype=x.dtype).reshape(want.shape)
    assert torch.equal(got.float(), want)


def _folder(parent: Path, name: str) -> Path:
    (parent / name).mkdir()
    return parent / name
