"""Methods in indirect command buffers: when they are encoded, with what, and what runs without."""

from __future__ import annotations

import numpy as np
import pytest

import npusim
from npusim.errors import DeviceError
from npusim.program.program import BufferKind, CompiledProgram
from npusim.runtime import DeviceBuffer, Executor
from tests.metal.programs import MetalBuilder, diamonds, image, one_command, unary
from tests.metal.test_running import expected_diamonds
from tests.softmetal import metal

RNG = np.random.default_rng(11)
NAMES = ("dispatches", "indirect commands", "executions")


class Counting:
    """What happens within a block, by name, as differences of the software device's counts."""

    def __enter__(self) -> Counting:
        self.before = [metal.counted(name) for name in NAMES]
        return self

    def __exit__(self, *_: object) -> None:
        self.found = tuple(
            metal.counted(name) - before for name, before in zip(NAMES, self.before, strict=True)
        )


def vector(count: int = 16) -> np.ndarray:
    return RNG.standard_normal(count).astype(np.float32)


def test_a_method_is_encoded_once_and_then_executed(device: npusim.Device) -> None:
    session = npusim.load(diamonds(16, 4), device=device)
    for encoded in (12, 0, 0):
        x = vector()
        with Counting() as counting:
            np.testing.assert_array_equal(session(x)[0], expected_diamonds(x, 4))
        assert counting.found == (0, encoded, 1)


@pytest.mark.parametrize("indirect", ["off"])
def test_they_can_be_turned_off(device: npusim.Device) -> None:
    session = npusim.load(diamonds(16, 4), device=device)
    with Counting() as counting:
        session(vector())
    assert counting.found == (12, 0, 0)


def test_older_families_have_them_where_they_are_asked_for(device: npusim.Device) -> None:
    assert device
    metal.set_option("FAMILY", 8)
    x = vector()
    for option, found in {"auto": (12, 0, 0), "on": (0, 12, 1), "off": (12, 0, 0)}.items():
        session = npusim.load(
            diamonds(16, 4), device=npusim.Device("metal", indirect_commands=option)
        )
        with Counting() as counting:
            np.testing.assert_array_equal(session(x)[0], expected_diamonds(x, 4))
        assert counting.found == found
    with pytest.raises(DeviceError, match=r"indirect_commands .* is auto, on or off, not maybe"):
        npusim.Device("metal", indirect_commands="maybe")


def test_one_launch_goes_directly(device: npusim.Device) -> None:
    session = npusim.load(one_command(unary("x[i]", 8)), device=device)
    with Counting() as counting:
        session(vector(8))
    assert counting.found == (1, 0, 0)


def test_only_what_moved_is_encoded_anew(device: npusim.Device) -> None:
    """Of four layers, two commands read the input and one writes the output."""
    executor = Executor(diamonds(16, 4), device)
    given = [vector() for _ in range(3)]
    inputs = [{"x": DeviceBuffer.from_numpy(x, device)} for x in given]
    outputs = {"y": DeviceBuffer(device, "float32", (16,))}
    counts = []
    for i in (0, 0, 1, 2, 0):
        with Counting() as counting:
            executor.run(inputs[i], outputs=outputs)
            np.testing.assert_array_equal(outputs["y"].to_numpy(), expected_diamonds(given[i], 4))
        counts.append(counting.found)
    assert counts == [(0, 12, 1), (0, 0, 1), (0, 2, 1), (0, 2, 1), (0, 2, 1)]


def test_what_runs_is_not_changed(device: npusim.Device) -> None:
    """Runs that nobody waits for: each set of arguments has commands of its own, up to a number of
    them; the next ones go directly. Later, what has ended is used again."""
    metal.set_option("DELAY_US", 100_000)
    executor = Executor(diamonds(16, 2), device)
    given = [vector() for _ in range(6)]
    inputs = [{"x": DeviceBuffer.from_numpy(x, device)} for x in given]
    outputs = [{"y": DeviceBuffer(device, "float32", (16,))} for _ in given]
    found = []
    for _ in range(2):
        for i in range(6):
            with Counting() as counting:
                executor.run(inputs[i], outputs=outputs[i])
            found.append(counting.found)
    for x, out in zip(given, outputs, strict=True):
        np.testing.assert_array_equal(out["y"].to_numpy(), expected_diamonds(x, 2))
    kept, direct, again = (0, 6, 1), (6, 0, 0), (0, 0, 1)
    assert found == [kept] * 4 + [direct] * 2 + [again] * 4 + [direct] * 2
    with Counting() as counting:
        executor.run(inputs[5], outputs=outputs[5])
        np.testing.assert_array_equal(outputs[5]["y"].to_numpy(), expected_diamonds(given[5], 2))
    assert counting.found == (0, 3, 1)


@pytest.mark.parametrize("most", [0, 5])
def test_a_device_that_gives_none_runs_directly(device: npusim.Device, most: int) -> None:
    """None at all, so that pipelines for them are refused too; none of that size."""
    metal.set_option("INDIRECT_COMMANDS", most)
    session = npusim.load(diamonds(16, 4), device=device)
    x = vector()
    for _ in range(2):
        with Counting() as counting:
            np.testing.assert_array_equal(session(x)[0], expected_diamonds(x, 4))
        assert counting.found == (12, 0, 0)


def many(launches: int, commands: int) -> CompiledProgram:
    """y = x and one added by each launch, one thread."""
    text = """#include <metal_stdlib>
kernel void run(device const float* x [[buffer(0)]], device float* y [[buffer(1)]]) {
  y[0] = x[0] + 1.0f;
}
kernel void more(device const float* x [[buffer(0)]], device float* y [[buffer(1)]]) {
  y[0] = y[0] + 1.0f;
}
"""
    b = MetalBuilder()
    source = b.input("x", (1,))
    code = image(text, entries=("run",) + ("more",) * (launches - 1))
    for i in range(commands):
        last = i == commands - 1
        target = b.output("y", (1,)) if last else b.buffer(BufferKind.TEMP, 4)
        b.launch(code, [source], [target])
        source = target
    return b.finish()


@pytest.mark.parametrize(("commands", "ranges"), [(16, 1), (17, 2)])
@pytest.mark.parametrize("order", ["forward", "reverse"])
def test_more_launches_than_a_range_may_have(
    device: npusim.Device, order: str, commands: int, ranges: int
) -> None:
    metal.set_option("ORDER", order)
    session = npusim.load(many(1024, commands), device=device)
    with Counting() as counting:
        assert session(np.zeros(1, np.float32))[0][0] == 1024 * commands
    assert counting.found == (0, 1024 * commands, ranges)


def test_threadgroup_memory_of_indirect_commands(device: npusim.Device) -> None:
    text = """#include <metal_stdlib>
using namespace metal;
kernel void run(device const float* x [[buffer(0)]], device float* y [[buffer(1)]],
                threadgroup float* s [[threadgroup(0)]], uint i [[thread_index_in_threadgroup]]) {
  s[i] = x[i];
  threadgroup_barrier(mem_flags::mem_threadgroup);
  y[i] = s[6 - i];
}
"""
    launch = {"entry": "run", "grid": [1, 1, 1], "block": [7, 1, 1], "shared": 28}
    b = MetalBuilder()
    x, middle, y = b.input("x", (7,)), b.buffer(BufferKind.TEMP, 28), b.output("y", (7,))
    b.launch(image(text, launches=[launch]), [x], [middle])
    b.launch(unary("x[i] * 2.0f", 7), [middle], [y])
    given = vector(7)
    with Counting() as counting:
        (got,) = npusim.load(b.finish(), device=device)(given)
    np.testing.assert_array_equal(got, given[::-1] * 2)
    assert counting.found == (0, 2, 1)


def test_profiles_go_directly_and_say_the_same(device: npusim.Device) -> None:
    executor = Executor(diamonds(16, 3), device)
    x = vector()
    inputs = {"x": DeviceBuffer.from_numpy(x, device)}
    outputs = {"y": DeviceBuffer(device, "float32", (16,))}
    for timed in (False, True, False):
        with Counting() as counting:
            if timed:
                assert len(executor.time(inputs, outputs=outputs)) == 9
            else:
                executor.run(inputs, outputs=outputs)
            np.testing.assert_array_equal(outputs["y"].to_numpy(), expected_diamonds(x, 3))
        assert (counting.found[0], counting.found[2]) == ((9, 0) if timed else (0, 1))
