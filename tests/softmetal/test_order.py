"""Order and time as a host meets them: asynchrony, barriers, events, recorded commands, samples."""

from __future__ import annotations

import ctypes
import signal
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.softmetal import metal
from tests.softmetal.test_api import ADD, HEAD, child


def test_execution_is_asynchronous(device: metal.Device) -> None:
    metal.set_option("DELAY_US", 200_000)
    y = device.buffer(np.zeros(4, np.float32))
    pipeline = device.kernel(ADD, "add")
    with metal.Pool():
        commands = device.commands()
        encoder = commands.encoder()
        encoder.bind(pipeline, [y, y, np.float32(1)])
        encoder.dispatch([4], [4])
        encoder.end()
        commands.send("commit")
        assert commands.send("status", returns=ctypes.c_ulong) < 4
        assert y.array(np.float32).tolist() == [0] * 4
        commands.send("waitUntilCompleted")
        assert commands.send("status", returns=ctypes.c_ulong) == 4
        start, end = (
            commands.send(s, returns=ctypes.c_double) for s in ("GPUStartTime", "GPUEndTime")
        )
        assert 0 < start <= end
    assert y.array(np.float32).tolist() == [1] * 4


def steps(device: metal.Device, *, barrier: bool, concurrent: bool) -> Any:
    """Two dispatches of which the second reads what the first wrote."""
    x = device.buffer(np.zeros(64, np.float32))
    y, z = device.buffer(256), device.buffer(256)
    pipeline = device.kernel(ADD, "add")
    with metal.Pool():
        commands = device.commands()
        encoder = commands.encoder(concurrent=concurrent)
        encoder.bind(pipeline, [x, y, np.float32(1)])
        encoder.dispatch([64], [32])
        if barrier:
            encoder.barrier()
        encoder.bind(pipeline, [y, z, np.float32(10)])
        encoder.dispatch([64], [32])
        encoder.end()
        commands.run()
    return z.array(np.float32)


@pytest.mark.seeded_fault
def test_concurrent_dispatches_are_reordered(device: metal.Device) -> None:
    for order in ("forward", "reverse", "shuffle"):
        metal.set_option("ORDER", order)
        assert (steps(device, barrier=True, concurrent=True) == 11).all()
        assert (steps(device, barrier=False, concurrent=False) == 11).all()
    metal.set_option("ORDER", "reverse")
    assert (steps(device, barrier=False, concurrent=True) == 10).all()
    found = set()
    for seed in range(6):
        metal.set_option("ORDER", "shuffle")
        metal.set_option("SEED", seed)
        found.add(tuple(steps(device, barrier=False, concurrent=True)[[0, 63]]))
    assert len(found) > 2, "threadgroups of two dispatches are mixed"


def test_shared_events_order_queues(device: metal.Device) -> None:
    """A queue waits for what another one, or the host, signals."""
    event = device.keep(metal.Object(metal.send(device, "newSharedEvent")))
    y = device.buffer(np.zeros(4, np.float32))
    pipeline = device.kernel(ADD, "add")
    with metal.Pool():
        commands = device.commands()
        commands.send("encodeWaitForEvent:value:", event, 1)
        encoder = commands.encoder()
        encoder.bind(pipeline, [y, y, np.float32(1)])
        encoder.dispatch([4], [4])
        encoder.end()
        commands.send("encodeSignalEvent:value:", event, 2)
        commands.send("commit")
        wait = "waitUntilSignaledValue:timeoutMS:"
        assert not metal.send(event, wait, 2, 50, returns=ctypes.c_bool)
        assert y.array(np.float32)[0] == 0
        metal.send(event, "setSignaledValue:", 1, returns=None)
        assert metal.send(event, wait, 2, 60_000, returns=ctypes.c_bool)
        assert y.array(np.float32)[0] == 1
        commands.send("waitUntilCompleted")
    assert metal.send(event, "signaledValue", returns=ctypes.c_ulong) == 2


@pytest.mark.seeded_fault
def test_an_event_that_never_comes_is_an_error(device: metal.Device) -> None:
    metal.set_option("TIMEOUT_S", 0.1)
    event = device.keep(metal.Object(metal.send(device, "newSharedEvent")))
    with metal.Pool():
        commands = device.commands()
        commands.send("encodeWaitForEvent:value:", event, 1)
        with pytest.raises(metal.MetalError, match="did not reach the value 1"):
            commands.run()
    metal.set_option("TIMEOUT_S", 120)


def test_an_error_ends_its_command_buffer_alone(device: metal.Device) -> None:
    """What comes later in the buffer does not run; the next buffer does."""
    text = ADD.replace("y[i] = ", "y[i + 4] = ")
    y, z = device.buffer(np.zeros(4, np.float32)), device.buffer(np.zeros(4, np.float32))
    wrong, right = device.kernel(text, "add"), device.kernel(ADD, "add")
    with metal.Pool():
        first, second = device.commands(), device.commands()
        for commands, pipelines in ((first, (wrong, right)), (second, (right,))):
            encoder = commands.encoder()
            for pipeline in pipelines:
                encoder.bind(pipeline, [z, y if pipeline is wrong else z, np.float32(1)])
                encoder.dispatch([4], [4])
            encoder.end()
            commands.send("commit")
        second.send("waitUntilCompleted")
        assert first.send("status", returns=ctypes.c_ulong) == 5
        assert second.send("status", returns=ctypes.c_ulong) == 4
    assert z.array(np.float32).tolist() == [1] * 4


def test_queues_of_several_threads(device: metal.Device) -> None:
    pipeline = device.kernel(ADD, "add")
    buffers = [device.buffer(np.zeros(64, np.float32)) for _ in range(4)]

    def work(buffer: metal.Buffer) -> None:
        for _ in range(20):
            device.run(pipeline, [buffer, buffer, np.float32(1)], [64], [32])

    threads = [threading.Thread(target=work, args=(buffer,)) for buffer in buffers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all((buffer.array(np.float32) == 20).all() for buffer in buffers)


def test_grids_from_a_buffer(device: metal.Device) -> None:
    """Threadgroups as an earlier dispatch of the same command buffer counted them."""
    count = (
        f"{HEAD}kernel void count(device uint* n [[buffer(0)]]) {{ n[1] = 3; n[2] = n[3] = 1; }}"
    )
    groups, y = device.buffer(16), device.buffer(np.zeros(8, np.float32))
    counting, adding = device.kernel(count, "count"), device.kernel(ADD, "add")
    with metal.Pool():
        commands = device.commands()
        encoder = commands.encoder()
        encoder.bind(counting, [groups])
        encoder.dispatch([1], [1])
        encoder.bind(adding, [y, y, np.float32(1)])
        selector = (
            "dispatchThreadgroupsWithIndirectBuffer:indirectBufferOffset:threadsPerThreadgroup:"
        )
        encoder.send(selector, groups, 4, metal.size(2))
        encoder.end()
        commands.run()
    assert y.array(np.float32).tolist() == [1] * 6 + [0] * 2


@pytest.mark.seeded_fault
def test_buffers_released_too_early(device: metal.Device) -> None:
    """A command buffer that retains nothing finds a buffer gone; an ordinary one keeps it."""
    pipeline = device.kernel(ADD, "add")
    for maker, fails in [("commandBuffer", False), ("commandBufferWithUnretainedReferences", True)]:
        buffer = metal.Buffer(metal.send(device, "newBufferWithLength:options:", 16, 0))
        with metal.Pool():
            commands = device.commands()
            commands.pointer = metal.send_pointer(device.queue, maker)
            encoder = commands.encoder()
            encoder.bind(pipeline, [buffer, buffer, np.float32(1)])
            encoder.dispatch([4], [4])
            encoder.end()
            buffer.release()
            if fails:
                with pytest.raises(metal.MetalError, match="was released while"):
                    commands.run()
            else:
                commands.run()


def test_faults_of_the_host_are_its_own(softmetal_build: Path) -> None:
    """The device's handlers leave a bad address of the host to who handled it before."""
    program = f"""
import ctypes, numpy as np
from tests.softmetal import metal
device = metal.Device()
y = device.buffer(16)
device.run(device.kernel({ADD!r}, "add"), [y, y, np.float32(1)], [4], [4])
print("ran", flush=True)
ctypes.string_at(8)
"""
    ended = child("-c", program)
    assert (ended.returncode, ended.stdout) == (-signal.SIGSEGV, "ran\n")


def test_damaged_cache_is_made_anew(softmetal_build: Path, tmp_path: Path) -> None:
    program = f"""
from tests.softmetal import metal
metal.Device().library({ADD!r})
"""
    for damage in (False, True):
        for file in tmp_path.iterdir() if damage else ():
            file.write_bytes(b"not a library")
        ended = child("-c", program, SOFTMETAL_CACHE=str(tmp_path))
        assert ended.returncode == 0, ended.stderr
        assert [file.suffix for file in tmp_path.iterdir()] == [".so"]


# --- indirect command buffers


def indirect(device: metal.Device, x: metal.Buffer, y: metal.Buffer, *, barrier: bool) -> Any:
    """An indirect command buffer of y = x + 1 and y = y + y."""
    double = ADD.replace("x[i] + by", "y[i] + y[i]")
    pipelines = [
        device.pipeline(device.function(device.library(text), "add"), indirect=True)
        for text in (ADD, double)
    ]
    descriptor = metal.Object(
        metal.send(
            metal.send_pointer(metal.class_named("MTLIndirectCommandBufferDescriptor"), "alloc"),
            "init",
        )
    )
    for selector, value in [
        ("setCommandTypes:", 1 << 6),
        ("setInheritBuffers:", False),
        ("setInheritPipelineState:", False),
        ("setMaxKernelBufferBindCount:", 3),
    ]:
        metal.send(descriptor, selector, value, returns=None)
    selector = "newIndirectCommandBufferWithDescriptor:maxCommandCount:options:"
    commands = device.keep(metal.Object(metal.send(device, selector, descriptor, 3, 0)))
    descriptor.release()
    one = device.buffer(np.ones(1, np.float32))
    with metal.Pool():
        for index, pipeline in enumerate(pipelines):
            command = metal.send_pointer(commands, "indirectComputeCommandAtIndex:", index)
            metal.send(command, "setComputePipelineState:", pipeline, returns=None)
            for place, buffer in enumerate((x, y, one)):
                metal.send(
                    command, "setKernelBuffer:offset:atIndex:", buffer, 0, place, returns=None
                )
            if barrier and index == 1:
                metal.send(command, "setBarrier", returns=None)
            metal.send(
                command,
                "concurrentDispatchThreads:threadsPerThreadgroup:",
                metal.size(16),
                metal.size(16),
                returns=None,
            )
    return commands, one


def execute(device: metal.Device, commands: Any, used: list[metal.Buffer]) -> None:
    with metal.Pool():
        buffer = device.commands()
        encoder = buffer.encoder(concurrent=True)
        for resource in used:
            encoder.send("useResource:usage:", resource, 3)
        encoder.send("executeCommandsInBuffer:withRange:", commands, metal.Range(0, 3))
        encoder.end()
        buffer.run()


def test_indirect_commands_run_again_and_again(device: metal.Device) -> None:
    x, y = device.buffer(np.zeros(16, np.float32)), device.buffer(64)
    commands, one = indirect(device, x, y, barrier=True)
    for order in ("forward", "reverse", "shuffle"):
        metal.set_option("ORDER", order)
        for value in (3, 5):
            x.array(np.float32)[:] = value
            execute(device, commands, [x, y, one])
            assert (y.array(np.float32) == 2 * (value + 1)).all()


@pytest.mark.seeded_fault
def test_indirect_commands_without_a_barrier_are_reordered(device: metal.Device) -> None:
    x, y = device.buffer(np.zeros(16, np.float32)), device.buffer(64)
    commands, one = indirect(device, x, y, barrier=False)
    metal.set_option("ORDER", "reverse")
    execute(device, commands, [x, y, one])
    assert (y.array(np.float32) == 1).all()


@pytest.mark.seeded_fault
def test_a_barrier_of_a_command_reaches_its_own_range(device: metal.Device) -> None:
    """Of two ranges one after another, only an encoder's barrier orders the commands."""
    for order, encoders, doubled in (
        ("forward", False, True),
        ("reverse", False, False),
        ("reverse", True, True),
    ):
        x, y = device.buffer(np.zeros(16, np.float32)), device.buffer(64)
        commands, one = indirect(device, x, y, barrier=True)
        metal.set_option("ORDER", order)
        with metal.Pool():
            buffer = device.commands()
            encoder = buffer.encoder(concurrent=True)
            for resource in (x, y, one):
                encoder.send("useResource:usage:", resource, 3)
            encoder.send("executeCommandsInBuffer:withRange:", commands, metal.Range(0, 1))
            if encoders:
                encoder.barrier()
            encoder.send("executeCommandsInBuffer:withRange:", commands, metal.Range(1, 2))
            encoder.end()
            buffer.run()
        assert (y.array(np.float32) == (2 if doubled else 1)).all()


@pytest.mark.seeded_fault
def test_indirect_commands_need_their_resources_named(softmetal_build: Path) -> None:
    program = """
import numpy as np
from tests.softmetal import metal
from tests.softmetal.test_order import execute, indirect
device = metal.Device()
x, y = device.buffer(64), device.buffer(64)
commands, one = indirect(device, x, y, barrier=True)
execute(device, commands, [x, y])
"""
    ended = child("-c", program)
    assert ended.returncode == 86
    assert "uses a buffer that useResource: has not named" in ended.stderr


@pytest.mark.parametrize("released", [False, True])
def test_indirect_commands_keep_no_buffer(device: metal.Device, released: bool) -> None:
    y = device.buffer(64)
    x = metal.Buffer(metal.send(device, "newBufferWithLength:options:", 64, 0))
    commands, one = indirect(device, x, y, barrier=True)
    metal.set_option("DELAY_US", 50_000)
    with metal.Pool():
        buffer = device.commands()
        encoder = buffer.encoder(concurrent=True)
        for resource in (x, y, one):
            encoder.send("useResource:usage:", resource, 3)
        encoder.send("executeCommandsInBuffer:withRange:", commands, metal.Range(0, 3))
        encoder.end()
        if released:
            x.release()
            with pytest.raises(metal.MetalError, match=r"was released .* an indirect command"):
                buffer.run()
        else:
            buffer.run()
            x.release()


# --- counters


def test_timestamps(device: metal.Device) -> None:
    """Samples around two dispatches, resolved into a buffer: in order of time."""
    pipeline, y = device.kernel(ADD, "add"), device.buffer(256)
    with metal.Pool():
        sets = metal.send_pointer(device, "counterSets")
        assert metal.send(sets, "count", returns=ctypes.c_ulong) == 1
        timestamps = metal.send_pointer(sets, "objectAtIndex:", 0)
        assert metal.text(metal.send_pointer(timestamps, "name")) == "MTLCommonCounterSetTimestamp"
        descriptor = metal.Object(
            metal.send(
                metal.send_pointer(metal.class_named("MTLCounterSampleBufferDescriptor"), "alloc"),
                "init",
            )
        )
        metal.send(descriptor, "setCounterSet:", timestamps, returns=None)
        metal.send(descriptor, "setSampleCount:", 3, returns=None)
        selector = "newCounterSampleBufferWithDescriptor:error:"
        samples = device.keep(metal.Object(metal.send(device, selector, descriptor, None)))
        descriptor.release()
        resolved = device.buffer(24)
        commands = device.commands()
        encoder = commands.encoder()
        for sample in range(3):
            selector = "sampleCountersInBuffer:atSampleIndex:withBarrier:"
            encoder.send(selector, samples, sample, True)
            encoder.bind(pipeline, [y, y, np.float32(1)])
            encoder.dispatch([64], [64])
        encoder.end()
        blit = commands.blit()
        selector = "resolveCounters:inRange:destinationBuffer:destinationOffset:"
        blit.send(selector, samples, metal.Range(0, 3), resolved, 0)
        blit.end()
        commands.run()
    times = resolved.array(np.uint64)
    assert 0 < times[0] < times[1] < times[2]
