"""Memory that the host does not reach: who has it, and what comes from there and goes there."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

import npusim
from npusim.program.program import BufferKind, CompiledProgram
from npusim.runtime import DeviceBuffer, Executor
from tests.metal.programs import MetalBuilder, diamonds, image, one_command, unary
from tests.metal.test_running import expected_diamonds
from tests.softmetal import metal

RNG = np.random.default_rng(3)


def private_buffers() -> int:
    return metal.counted("private buffers")


def test_temps_and_scratch_are_private(device: npusim.Device) -> None:
    before = private_buffers()
    Executor(diamonds(16, 2), device)
    assert private_buffers() - before == 1
    text = """kernel void run(device const float* x [[buffer(0)]], device float* y [[buffer(1)]],
                device float* s [[buffer(2)]]) {
  s[0] = x[0];
  y[0] = s[0];
}
"""
    before = private_buffers()
    session = npusim.load(one_command(image(text, scratch=4), 1), device=device)
    assert session(np.full(1, 5, np.float32))[0][0] == 5
    assert private_buffers() - before == 3, "temps, scratch, and no weights that are prepared"


def prepared(count: int) -> CompiledProgram:
    """y = x * p, where init makes p = w + 1; `count` bytes of p lie at an odd size."""
    b = MetalBuilder()
    x, y = b.input("x", (count,), "uint8"), b.output("y", (count,), "uint8")
    w = b.weight("w", (count,), "uint8")
    p = b.buffer(BufferKind.PERSISTENT, count)
    make = """#include <metal_stdlib>
kernel void run(device const uchar* w [[buffer(0)]], device uchar* p [[buffer(1)]],
                uint i [[thread_position_in_grid]]) {
  p[i] = w[i] + 1;
}
"""
    use = """#include <metal_stdlib>
kernel void run(device const uchar* x [[buffer(0)]], device const uchar* p [[buffer(1)]],
                device uchar* y [[buffer(2)]], uint i [[thread_position_in_grid]]) {
  y[i] = x[i] * p[i];
}
"""
    b.launch(image(make, threads=count), [w], [p], init=True)
    b.launch(image(use, threads=count), [x, p], [y])
    return b.finish()


@pytest.mark.parametrize("count", [1, 3, 4, 7, 64])
def test_prepared_weights_are_private_and_travel(device: npusim.Device, count: int) -> None:
    program = prepared(count)
    before = private_buffers()
    weight = np.arange(count, dtype=np.uint8)
    session = npusim.load(program, weights={"w": weight}, device=device)
    assert private_buffers() - before >= 3, "temps of init and of runs, what init makes"
    x = RNG.integers(0, 9, count).astype(np.uint8)
    np.testing.assert_array_equal(session(x)[0], x * (weight + 1))
    other = pickle.loads(pickle.dumps(session))
    del session
    np.testing.assert_array_equal(other(x)[0], x * (weight + 1))


def test_more_than_is_on_its_way_at_once(device: npusim.Device) -> None:
    """Pieces of 64 MiB: bytes on both sides of where two meet, there and back."""
    count, piece = (129 << 20) + 5, 64 << 20
    spots = [0, piece - 1, piece, piece + 1, 2 * piece - 1, 2 * piece, count - 1]
    writes = "\n".join(f"  p[{spot}] = {i + 1};" for i, spot in enumerate(spots))
    reads = "\n".join(f"  y[{i}] = p[{spot}];" for i, spot in enumerate(spots))
    b = MetalBuilder()
    y, w = b.output("y", (8,), "uint8"), b.weight("w", (1,), "uint8")
    p = b.buffer(BufferKind.PERSISTENT, count)
    signature = (
        "kernel void run(device const uchar* {} [[buffer(0)]], device uchar* {} [[buffer(1)]])"
    )
    b.launch(image(f"{signature.format('w', 'p')} {{\n{writes}\n}}\n"), [w], [p], init=True)
    b.launch(image(f"{signature.format('p', 'y')} {{\n{reads}\n  y[7] = 9;\n}}\n"), [p], [y])
    session = npusim.load(b.finish(), weights={"w": np.zeros(1, np.uint8)}, device=device)
    assert session()[0].tolist() == [1, 2, 3, 4, 5, 6, 7, 9]
    other = pickle.loads(pickle.dumps(session))
    assert other()[0].tolist() == [1, 2, 3, 4, 5, 6, 7, 9]


@pytest.mark.parametrize("delay", [0, 2000])
def test_temps_are_read_and_written_between_commands(device: npusim.Device, delay: int) -> None:
    metal.set_option("DELAY_US", delay)
    b = MetalBuilder()
    x, y = b.input("x", (6,)), b.output("y", (6,))
    middle = b.buffer(BufferKind.TEMP, 24)
    b.launch(unary("x[i] + 1.0f", 6), [x], [middle])
    b.launch(unary("x[i] * 2.0f", 6), [middle], [y])
    executor = Executor(b.finish(), device)
    given = RNG.standard_normal(6).astype(np.float32)
    seen = []

    def tap(index: int) -> None:
        if index == 0:
            seen.append(executor.read_buffer(middle, "float32"))
            executor.write_buffer(middle, np.full(3, 7, np.float32).tobytes())

    outputs = executor.observe(tap, {"x": DeviceBuffer.from_numpy(given, device)})
    np.testing.assert_array_equal(seen[0], given + 1)
    want = np.concatenate([np.full(3, 14, np.float32), (given[3:] + 1) * 2])
    np.testing.assert_array_equal(outputs["y"].to_numpy(), want)


@pytest.mark.parametrize("written", [1, 3, 4, 5, 7])
def test_parts_of_words_leave_the_rest(device: npusim.Device, written: int) -> None:
    """Bytes that begin or end within a word of four, as a blit copies them."""
    b = MetalBuilder()
    x, y = b.input("x", (7,), "uint8"), b.output("y", (7,), "uint8")
    middle = b.buffer(BufferKind.TEMP, 7)
    text = """kernel void run(device const uchar* x [[buffer(0)]], device uchar* y [[buffer(1)]],
                uint i [[thread_position_in_grid]]) {
  y[i] = x[i] + 1;
}
"""
    b.launch(image(text, threads=7), [x], [middle])
    b.launch(image(text, threads=7), [middle], [y])
    executor = Executor(b.finish(), device)
    given = np.arange(10, 17, dtype=np.uint8)

    def tap(index: int) -> None:
        if index == 0:
            executor.write_buffer(middle, b"\x63" * written)

    outputs = executor.observe(tap, {"x": DeviceBuffer.from_numpy(given, device)})
    want = np.where(np.arange(7) < written, 100, given + 2)
    np.testing.assert_array_equal(outputs["y"].to_numpy(), want)


@pytest.mark.parametrize("order", ["forward", "reverse", "shuffle"])
@pytest.mark.parametrize("indirect", ["on", "off"])
def test_hazards_in_private_memory(device: npusim.Device, order: str) -> None:
    metal.set_option("ORDER", order)
    session = npusim.load(diamonds(16, 5), device=device)
    for _ in range(2):
        x = RNG.standard_normal(16).astype(np.float32)
        np.testing.assert_array_equal(session(x)[0], expected_diamonds(x, 5))
