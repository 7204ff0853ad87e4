"""Methods in command buffers of few dispatches, which a program may ask for."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import npusim
from npusim.errors import ProgramFormatError, TargetConstraintError
from npusim.targets import TargetConfig
from tests.metal.programs import MetalBuilder, image, unary
from tests.softmetal import metal

METAL = TargetConfig.named("metal:apple7")
ADD = """#include <metal_stdlib>
using namespace metal;
kernel void run(device const float* x [[buffer(0)]], device float* y [[buffer(1)]],
                uint i [[thread_position_in_grid]]) {
  y[i] = x[i] * 2.0f + 1.0f;
}
"""


def chain(length: int, batch: int) -> npusim.CompiledProgram:
    """y = 2 (2 (… x) + 1) + 1, whose first command alone says how many dispatches there may be."""
    b = MetalBuilder()
    place, y = b.input("x", (8,)), b.output("y", (8,))
    for step in range(length):
        target = y if step == length - 1 else b.buffer(npusim.program.program.BufferKind.TEMP, 32)
        code = image(ADD, threads=8, batch=batch) if step == 0 else unary("x[i] * 2.0f + 1.0f", 8)
        b.launch(code, [place], [target])
        place = target
    return b.finish()


@pytest.mark.parametrize("order", ["forward", "reverse", "shuffle"])
@pytest.mark.parametrize(("batch", "commits"), [(0, 1), (1, 7), (2, 4), (3, 3), (7, 1), (8, 1)])
def test_no_command_buffer_holds_more(
    device: npusim.Device, order: str, batch: int, commits: int
) -> None:
    metal.set_option("ORDER", order)
    metal.set_option("DELAY_US", 500)
    session = npusim.load(chain(7, batch), device=device)
    x = np.arange(8, dtype=np.float32)
    for _ in range(2):
        before = metal.counted("commits")
        np.testing.assert_array_equal(session(x)[0], x * 128 + 127)
        assert metal.counted("commits") - before == commits


@pytest.mark.parametrize("batch", [-1, 1.5, "many"])
def test_a_number_of_dispatches_that_is_none(device: npusim.Device, batch: object) -> None:
    b = MetalBuilder()
    x, y = b.input("x", (8,)), b.output("y", (8,))
    b.launch(image(ADD, threads=8, batch=batch), [x], [y])
    with pytest.raises(ProgramFormatError):
        npusim.load(b.finish(), device=device)


def test_a_target_says_how_many(device: npusim.Device) -> None:
    import torch

    assert METAL.launches is not None
    target = replace(METAL, launches=replace(METAL.launches, max_dispatches_per_batch=2))
    model = torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(5))).eval()
    x = torch.randn(3, 8)
    ir = npusim.extract_ir(model, (x,))
    plain = npusim.load(npusim.compile(ir, METAL), model.state_dict(), device)
    few = npusim.load(npusim.compile(ir, target), model.state_dict(), device)
    before = metal.counted("commits")
    got = few(x.numpy())[0]
    assert metal.counted("commits") - before == 3
    np.testing.assert_array_equal(got, plain(x.numpy())[0])


@pytest.mark.parametrize(
    ("limit", "message"),
    [
        ({"arguments": 3}, r"npu.linear.*kernel 'linear' takes 4 buffers; target 'metal' has 3"),
        (
            {"threads": 16},
            r"npu.linear.*kernel 'linear' takes \d+ threads a threadgroup; .* has 16",
        ),
        ({"lanes": 64}, r"has SIMD groups of 64 lanes; kernels are written for 32"),
    ],
)
def test_what_passes_a_limit_is_refused_when_compiling(limit: dict[str, int], message: str) -> None:
    import torch

    assert METAL.launches is not None
    ir = npusim.extract_ir(torch.nn.Linear(8, 8).eval(), (torch.randn(3, 8),))
    npusim.compile(ir, replace(METAL, launches=replace(METAL.launches, arguments=4)))
    with pytest.raises(TargetConstraintError, match=message):
        npusim.compile(ir, replace(METAL, launches=replace(METAL.launches, **limit)))
