"""Programs run on Metal: results in every order, sessions, threads, timings, memory."""

from __future__ import annotations

import mmap
import threading

import numpy as np
import pytest

import npusim
from npusim import _runtime
from npusim.errors import DeviceError
from npusim.program.program import BufferKind
from npusim.runtime import DeviceBuffer, Executor
from tests.metal.conftest import alive
from tests.metal.programs import (
    UNARY,
    MetalBuilder,
    binary,
    diamonds,
    frame,
    image,
    one_command,
    unary,
)
from tests.softmetal import metal

RNG = np.random.default_rng(7)
ORDERS = ["forward", "reverse", "shuffle"]


@pytest.fixture(params=["on", "off"])
def indirect(request: pytest.FixtureRequest) -> str:
    """Everything runs by indirect commands and by direct ones."""
    return str(request.param)


def expected_diamonds(x: np.ndarray, layers: int) -> np.ndarray:
    for _ in range(layers):
        x = (x + np.float32(1)) * (x + np.float32(2)) * np.float32(0.125)
    return x


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("delay", [0, 2000])
def test_commands_see_what_those_before_them_wrote(
    device: npusim.Device, order: str, delay: int
) -> None:
    metal.set_option("ORDER", order)
    metal.set_option("DELAY_US", delay)
    session = npusim.load(diamonds(32, 5), device=device)
    for seed in range(3):
        metal.set_option("SEED", seed + 1)
        x = RNG.standard_normal(32).astype(np.float32)
        np.testing.assert_array_equal(session(x)[0], expected_diamonds(x, 5))


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("seed", range(3))
def test_each_hazard_by_itself(device: npusim.Device, order: str, seed: int) -> None:
    """Two commands that have nothing in common but the one hazard."""
    metal.set_option("ORDER", order)
    metal.set_option("SEED", seed + 1)
    b = MetalBuilder()
    x = b.input("x", (8,))
    outputs = [b.output(name, (8,)) for name in ("read", "write", "twice", "own")]
    read, write, twice = (b.buffer(BufferKind.TEMP, 32) for _ in range(3))
    b.launch(unary("x[i] + 1.0f", 8), [x], [read])
    b.launch(unary("x[i] + 2.0f", 8), [read], outputs[:1])  # after the write
    b.launch(unary("x[i] + 3.0f", 8), [x], [write])
    b.launch(unary("x[i] + 4.0f", 8), [write], outputs[1:2])
    b.launch(unary("x[i] + 5.0f", 8), [x], [write])  # after the read
    b.launch(unary("x[i] + 6.0f", 8), [x], [twice])
    b.launch(unary("x[i] + 7.0f", 8), [x], [twice])  # after the write
    b.launch(unary("x[i] + 8.0f", 8), [twice], outputs[2:3])
    b.launch(unary("x[i] + 9.0f", 8), [write], outputs[3:4])
    given = np.arange(8, dtype=np.float32)
    got = npusim.load(b.finish(), device=device)(given)
    for result, more in zip(got, (3, 7, 15, 14), strict=True):
        np.testing.assert_array_equal(result, given + more)


@pytest.mark.parametrize("order", ORDERS)
def test_launches_of_a_command_run_in_order_over_its_scratch(
    device: npusim.Device, order: str
) -> None:
    metal.set_option("ORDER", order)
    text = """#include <metal_stdlib>
using namespace metal;
kernel void up(device const float* x [[buffer(0)]], device float* y [[buffer(1)]],
               device float* s [[buffer(2)]], uint i [[thread_position_in_grid]]) {
  s[7 - i] = x[i] + 1.0f;
}
kernel void down(device const float* x [[buffer(0)]], device float* y [[buffer(1)]],
                 device float* s [[buffer(2)]], uint i [[thread_position_in_grid]]) {
  y[i] = s[i] * 2.0f;
}
"""
    b = MetalBuilder()
    x, middle, y = b.input("x", (8,)), b.buffer(BufferKind.TEMP, 32), b.output("y", (8,))
    code = image(text, threads=8, entries=("up", "down"), scratch=32)
    b.launch(code, [x], [middle])
    b.launch(code, [middle], [y])
    session = npusim.load(b.finish(), device=device)
    given = np.arange(8, dtype=np.float32)
    want = ((given + 1) * 2)[::-1]
    want = ((want + 1) * 2)[::-1]
    np.testing.assert_array_equal(session(given)[0], want)


def test_threadgroup_memory_is_what_a_launch_asks_for(device: npusim.Device) -> None:
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
    session = npusim.load(one_command(image(text, launches=[launch]), 7), device=device)
    given = np.arange(7, dtype=np.float32)
    np.testing.assert_array_equal(session(given)[0], given[::-1])


def test_a_text_is_compiled_once_for_all_that_have_it(device: npusim.Device) -> None:
    before = alive()
    one = npusim.load(diamonds(16, 1), device=device)
    first = alive() - before
    more = npusim.load(diamonds(16, 9), device=device)
    assert alive() - before - first < first, "the pipelines are those of before, the memory is not"
    assert len(one(np.ones(16, np.float32))) == len(more(np.ones(16, np.float32)))


def test_it_says_what_it_is(device: npusim.Device) -> None:
    assert "GPU family apple9" in device.description
    with pytest.raises(DeviceError, match=r"no Metal device 7; this machine has 1"):
        npusim.Device("metal", ordinal=7)
    metal.set_option("FAMILY", 7)
    assert "apple7" in npusim.Device("metal").description


@pytest.mark.parametrize("order", ORDERS)
def test_sessions_run_on_several_threads(device: npusim.Device, order: str) -> None:
    metal.set_option("ORDER", order)
    program = diamonds(16, 3)
    wrong: list[object] = []

    def work(seed: int) -> None:
        rng = np.random.default_rng(seed)
        session = npusim.load(program, device=device)
        for _ in range(8):
            x = rng.standard_normal(16).astype(np.float32)
            if not np.array_equal(session(x)[0], expected_diamonds(x, 3)):
                wrong.append(x)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def executor_of(
    device: npusim.Device, count: int, layers: int
) -> tuple[Executor, dict[str, DeviceBuffer], np.ndarray]:
    x = RNG.standard_normal(count).astype(np.float32)
    executor = Executor(diamonds(count, layers), device)
    return executor, {"x": DeviceBuffer.from_numpy(x, device)}, x


def test_commands_are_timed_and_observed(device: npusim.Device) -> None:
    executor, inputs, x = executor_of(device, 16, 30)
    outputs = {"y": DeviceBuffer(device, "float32", (16,))}
    times = executor.time(inputs, outputs=outputs)
    assert len(times) == 90 and min(times) > 0
    np.testing.assert_array_equal(outputs["y"].to_numpy(), expected_diamonds(x, 30))
    seen = []
    (y,) = executor.observe(
        lambda i: seen.append(executor.read_buffer(2, "float32")), inputs
    ).values()
    np.testing.assert_array_equal(y.to_numpy(), expected_diamonds(x, 30))
    np.testing.assert_array_equal(seen[0], x + 1)


def test_results_stay_on_the_device_and_nobody_waits(device: npusim.Device) -> None:
    metal.set_option("DELAY_US", 20000)
    session = npusim.load(diamonds(16, 2), device=device)
    x = RNG.standard_normal(16).astype(np.float32)
    buffer = DeviceBuffer.from_numpy(x, device)
    (out,) = session(buffer)
    np.testing.assert_array_equal(np.asarray(out), expected_diamonds(x, 2))
    (first,) = session(buffer)
    buffer.copy_from(DeviceBuffer.from_numpy(2 * x, device))  # behind what reads it
    (second,) = session(buffer)
    del buffer  # while it is used
    np.testing.assert_array_equal(first.to_numpy(), expected_diamonds(x, 2))
    np.testing.assert_array_equal(second.to_numpy(), expected_diamonds(2 * x, 2))


def test_a_chain_of_runs_that_nobody_waits_for(device: npusim.Device) -> None:
    metal.set_option("DELAY_US", 200)
    executor, inputs, x = executor_of(device, 16, 1)
    value = inputs["x"]
    for _ in range(200):
        value = executor.run({"x": value})["y"]
        x = expected_diamonds(x, 1)
    np.testing.assert_array_equal(value.to_numpy(), x)


def test_memory_that_comes_to_lie_where_other_memory_was(device: npusim.Device) -> None:
    """Of a run whose output is an input, the runtime brings memory that it then frees."""
    executor, inputs, x = executor_of(device, 16, 1)
    kept = []
    for step in range(60):
        executor.run(inputs, outputs={"y": inputs["x"]})
        x = expected_diamonds(x, 1)
        np.testing.assert_array_equal(inputs["x"].to_numpy(), x)
        kept.append(DeviceBuffer(device, "float32", (16 + step,)))
        if step % 4 == 3:
            del kept[:: 1 + step % 3]


def test_an_output_may_be_an_input(device: npusim.Device) -> None:
    executor, inputs, x = executor_of(device, 16, 2)
    for _ in range(2):
        executor.run(inputs, outputs={"y": inputs["x"]})
        x = expected_diamonds(x, 2)
        np.testing.assert_array_equal(inputs["x"].to_numpy(), x)


def test_whole_pages_of_the_host_are_used_where_they_lie(device: npusim.Device) -> None:
    count = 3 * mmap.PAGESIZE // 4
    array = np.frombuffer(mmap.mmap(-1, 4 * count), np.float32)
    array[:] = RNG.standard_normal(count)
    held = alive()

    def shown(part: np.ndarray, copy: bool | None = None) -> _runtime.DeviceBuffer:
        return _runtime.DeviceBuffer(device, "float32", part.shape, array=part, copy=copy)

    whole = shown(array)
    inner, across = shown(array[1024:2048]), shown(array[4:1028])
    for part in (array[1:1028], array[:16]):  # at no multiple of 16 bytes; less than a page
        with pytest.raises(npusim.Error, match="cannot use these"):
            shown(part, False)
    b = MetalBuilder()
    x, y = b.input("x", (count,)), b.output("y", (count,))
    launches = [{"entry": "run", "grid": [count // 256, 1, 1], "block": [256, 1, 1]}]
    b.launch(image(UNARY.format(expression="x[i] * 3.0f"), launches=launches), [x], [y])
    executor = Executor(b.finish(), device)
    for _ in range(2):
        result = executor.run({"x": whole})["y"]
        np.testing.assert_array_equal(result.to_numpy(), array * 3)
        array[:] += 1.0
    # An output over part of an input is told to be there, by whatever name it is known.
    executor.run({"x": whole}, outputs={"y": shown(array)})
    assert np.asarray(inner).tolist() == array[1024:2048].tolist()
    assert across.nbytes == 4096
    del whole, inner, across, executor, result
    assert alive() == held


def test_weights_and_states_and_init(device: npusim.Device) -> None:
    b = MetalBuilder()
    x, y = b.input("x", (8,)), b.output("y", (8,))
    w = b.weight("w", (8,))
    doubled = b.buffer(BufferKind.PERSISTENT, 32)
    state = b.buffer(BufferKind.STATE, 32)
    b.launch(unary("x[i] * 2.0f", 8), [w], [doubled], init=True)
    b.launch(binary("a[i] * b[i]", 8), [x, doubled], [y])
    program = b.finish()
    weight = np.arange(8, dtype=np.float32)
    session = npusim.load(program, weights={"w": weight}, device=device)
    given = RNG.standard_normal(8).astype(np.float32)
    np.testing.assert_array_equal(session(given)[0], given * (weight * 2))
    assert state


def test_a_method_without_work_runs(device: npusim.Device) -> None:
    session = npusim.load(one_command(frame({"arch": "apple7", "launches": []})), device=device)
    assert session(np.zeros(8, np.float32))[0].shape == (8,)


def test_an_empty_tensor_is_read_by_kernels_of_larger_elements(device: npusim.Device) -> None:
    b = MetalBuilder()
    x, y = b.input("x", (0, 5)), b.output("y", (5,))
    text = UNARY.replace("const float*", "const float4*").format(expression="0.0f * x[9 + i].x")
    text = text.replace("y[i] = ", "y[i] = 3.0f; if (i > 5) y[i] = ")
    b.launch(image(text, threads=5), [x], [y])
    session = npusim.load(b.finish(), device=device)
    (result,) = session(np.empty((0, 5), np.float32))
    np.testing.assert_array_equal(result, np.full(5, 3, np.float32))
