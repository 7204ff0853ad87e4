"""The rules of Metal's API, memory, order and asynchrony, as a host meets them."""

from __future__ import annotations

import ctypes
import mmap
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.softmetal import metal
from tests.softmetal.violations import RULES

ROOT = Path(__file__).resolve().parents[2]
HEAD = "#include <metal_stdlib>\nusing namespace metal;\n"
ADD = f"""{HEAD}kernel void add(device const float* x [[buffer(0)]], device float* y [[buffer(1)]],
  constant float& by [[buffer(2)]], uint i [[thread_position_in_grid]]) {{ y[i] = x[i] + by; }}
"""


def child(*arguments: str, **settings: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env={**os.environ, **settings},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.usefixtures("softmetal_build")
@pytest.mark.parametrize("name", RULES)
def test_violations_end_the_process(name: str) -> None:
    ended = child("-m", "tests.softmetal.violations", name)
    assert ended.returncode == 86, ended.stderr
    assert "SoftMetal: validation: " in ended.stderr
    assert RULES[name] in ended.stderr


def test_leaks_are_named_at_exit(softmetal_build: Path) -> None:
    program = "from tests.softmetal import metal; d = metal.Device(); d.buffer(16); d.buffer(16)"
    ended = child("-c", program, SOFTMETAL_LEAKS="fatal")
    assert ended.returncode == 87
    assert "SoftMetal: 4 objects alive at exit: SoftMTLBuffer 2, " in ended.stderr
    assert "SoftMTLCommandQueue 1, SoftMTLDevice 1" in ended.stderr
    released = child("-c", program + "; d.__exit__(None, None, None)", SOFTMETAL_LEAKS="fatal")
    assert (released.returncode, released.stderr) == (0, "")


def test_autorelease_without_a_pool_is_told(softmetal_build: Path) -> None:
    program = "from tests.softmetal import metal; metal.runtime(); metal.string('x')"
    assert "NSString autoreleased with no pool in place" in child("-c", program).stderr


@pytest.mark.parametrize("setting", ["SOFTMETAL_ORDER=sideways", "SOFTMETAL_SPEED=9"])
def test_unknown_settings_are_refused(softmetal_build: Path, setting: str) -> None:
    name, value = setting.split("=")
    program = "from tests.softmetal import metal; metal.Device()"
    ended = child("-c", program, **{name: value})
    assert ended.returncode == 86
    assert f"{setting} is no setting" in ended.stderr


# --- memory


def test_private_storage_has_no_contents(device: metal.Device) -> None:
    private, shared = device.buffer(64, metal.PRIVATE), device.buffer(np.arange(16, dtype="f4"))
    with pytest.raises(ValueError, match="no contents"):
        private.array()
    back = device.buffer(64)
    with metal.Pool():
        commands = device.commands()
        blit = commands.blit()
        selector = "copyFromBuffer:sourceOffset:toBuffer:destinationOffset:size:"
        blit.send(selector, shared, 0, private, 0, 64)
        blit.send(selector, private, 32, back, 0, 32)
        blit.send("fillBuffer:range:value:", back, metal.Range(32, 32), ctypes.c_ubyte(1))
        blit.end()
        commands.run()
    assert back.array(np.float32)[:8].tolist() == list(range(8, 16))
    assert (back.array()[32:] == 1).all()


def test_memory_of_the_host_is_not_copied(device: metal.Device) -> None:
    pages = mmap.mmap(-1, mmap.PAGESIZE)
    memory = np.frombuffer(pages, np.float32)
    buffer = device.keep(
        metal.Buffer(
            metal.send(
                device,
                "newBufferWithBytesNoCopy:length:options:deallocator:",
                ctypes.c_void_p(memory.ctypes.data),
                mmap.PAGESIZE,
                0,
                None,
            )
        )
    )
    device.run(device.kernel(ADD, "add"), [buffer, buffer, np.float32(2)], [1024], [256])
    assert (memory == 2).all()


def test_out_of_memory(device: metal.Device) -> None:
    metal.set_option("MAX_MEMORY", 1 << 20)
    kept = device.buffer(1 << 19)
    with pytest.raises(MemoryError):
        device.buffer((1 << 19) + 4)
    metal.set_option("MAX_MEMORY", 1 << 34)
    with pytest.raises(MemoryError):
        device.buffer((1 << 32) + 1)  # maxBufferLength
    assert device.buffer(1 << 20).array().shape == (1 << 20,)
    assert metal.send(kept, "length", returns=ctypes.c_ulong) == 1 << 19


# --- code


def test_messages_of_the_compiler(device: metal.Device) -> None:
    with pytest.raises(metal.MetalError, match=r"program_source:4:.*undeclared.*'zzz'") as failed:
        device.library(f"{HEAD}kernel void k(device float* y [[buffer(0)]]) {{\n y[0] = zzz; }}")
    assert failed.value.code == 3  # MTLLibraryErrorCompileFailure


def test_macros_and_their_cache(device: metal.Device) -> None:
    """Another macro is another library."""
    text = f"{HEAD}kernel void k(device int* y [[buffer(0)]]) {{ y[0] = A + B; }}"
    for a in (1, 2, 1):
        y = device.buffer(4)
        device.run(device.kernel(text, "k", macros={"A": a, "B": 10}), [y], [1], [1])
        assert y.array(np.int32)[0] == a + 10


CONSTANTS = f"""{HEAD}
constant float scale [[function_constant(0)]];
constant int2 shift [[function_constant(7)]];
constant half unused [[function_constant(9)]];
static float scaled(float x) {{ return x * scale; }}
kernel void k(device float* y [[buffer(0)]]) {{ y[0] = scaled(4.0f) + shift.y; }}
kernel void other(device float* y [[buffer(0)]]) {{ y[0] = unused; }}
kernel void none(device float* y [[buffer(0)]]) {{ y[0] = 3.0f; }}
"""


def test_function_constants(device: metal.Device) -> None:
    """Those that a kernel reaches need a value, of their type; pipelines keep their own."""
    library = device.library(CONSTANTS)
    with pytest.raises(metal.MetalError, match="'scale' of index 0 has no value"):
        device.function(library, "k")
    with pytest.raises(metal.MetalError, match="MTLDataType 3, its value 29"):
        device.function(library, "k", {0: np.int32(2), 7: np.int32(1)})
    with pytest.raises(metal.MetalError, match="'unused'"):
        device.function(library, "other", {0: np.float32(2)})
    with pytest.raises(metal.MetalError, match="no function 'missing'"):
        device.function(library, "missing")
    device.function(library, "none")
    text = CONSTANTS.replace("int2 shift", "int shift").replace("shift.y", "shift")
    library, y = device.library(text), device.buffer(4)
    pipelines = [
        device.pipeline(device.function(library, "k", {0: np.float32(s), 7: np.int32(1)}))
        for s in (2, 5)
    ]
    for pipeline, expected in [(pipelines[0], 9), (pipelines[1], 21), (pipelines[0], 9)]:
        device.run(pipeline, [y], [1], [1])
        assert y.array(np.float32)[0] == expected


def test_declared_threadgroup_memory_has_a_limit(device: metal.Device) -> None:
    text = f"""{HEAD}kernel void k(device float* y [[buffer(0)]]) {{
      threadgroup float a[8192]; threadgroup float b[EXTRA]; a[0] = b[0] = 1; y[0] = a[0]; }}"""
    with pytest.raises(metal.MetalError, match="declares 32784 bytes of threadgroup memory"):
        device.kernel(text, "k", macros={"EXTRA": 1})
    less = text.replace("8192", "8188")
    pipeline = device.kernel(less, "k", macros={"EXTRA": 4})
    length = metal.send(pipeline, "staticThreadgroupMemoryLength", returns=ctypes.c_ulong)
    assert length == 32768


def test_kernels_may_limit_their_threads(device: metal.Device) -> None:
    text = f"{HEAD}[[kernel, max_total_threads_per_threadgroup(64)]]\nvoid k() {{}}"
    for limit, expected in [(0, 64), (32, 32)]:
        function = device.function(device.library(text), "k")
        pipeline = device.pipeline(function, threads=limit)
        selector = "maxTotalThreadsPerThreadgroup"
        assert metal.send(pipeline, selector, returns=ctypes.c_ulong) == expected


def test_binary_archives_remember_pipelines(device: metal.Device, tmp_path: Path) -> None:
    archive_class, kept = "MTLBinaryArchiveDescriptor", tmp_path / "archive"

    def archive(path: Path | None) -> Any:
        descriptor = metal.Object(
            metal.send(metal.send_pointer(metal.class_named(archive_class), "alloc"), "init")
        )
        with metal.Pool():
            if path is not None:
                url = metal.send_pointer(
                    metal.class_named("NSURL"), "fileURLWithPath:", metal.string(str(path))
                )
                metal.send(descriptor, "setUrl:", url, returns=None)
            error = ctypes.c_void_p()
            made = metal.send(
                device,
                "newBinaryArchiveWithDescriptor:error:",
                descriptor,
                ctypes.pointer(error),
            )
            descriptor.release()
            if not made:
                metal.raise_error(error)
        return device.keep(metal.Object(made))

    def pipeline(of: Any) -> int | None:
        with metal.Pool():
            found = ctypes.c_void_p(of.pointer)
            archives = metal.send_pointer(metal.class_named("NSArray"), "arrayWithObject:", found)
            metal.send(descriptor, "setBinaryArchives:", archives, returns=None)
            selector = "newComputePipelineStateWithDescriptor:options:reflection:error:"
            made = metal.send(device, selector, descriptor, 4, None, None)
            return made and device.keep(metal.Object(made)).pointer

    function = device.function(device.library(ADD), "add")
    descriptor = device.keep(
        metal.Object(
            metal.send(
                metal.send_pointer(metal.class_named("MTLComputePipelineDescriptor"), "alloc"),
                "init",
            )
        )
    )
    metal.send(descriptor, "setComputeFunction:", function, returns=None)
    new = archive(None)
    assert not pipeline(new)
    selector = "addComputePipelineFunctionsWithDescriptor:error:"
    assert metal.send(new, selector, descriptor, None, returns=ctypes.c_bool)
    assert pipeline(new)
    with metal.Pool():
        url = metal.send_pointer(
            metal.class_named("NSURL"), "fileURLWithPath:", metal.string(str(kept))
        )
        assert metal.send(new, "serializeToURL:error:", url, None, returns=ctypes.c_bool)
    assert pipeline(archive(kept))
    kept.write_bytes(b"something else")
    with pytest.raises(metal.MetalError, match="no binary archive"):
        archive(kept)


# --- order and time


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
            metal.send(
                command,
                "concurrentDispatchThreads:threadsPerThreadgroup:",
                metal.size(16),
                metal.size(16),
                returns=None,
            )
            if barrier and index == 1:
                metal.send(command, "setBarrier", returns=None)
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


def test_indirect_commands_without_a_barrier_are_reordered(device: metal.Device) -> None:
    x, y = device.buffer(np.zeros(16, np.float32)), device.buffer(64)
    commands, one = indirect(device, x, y, barrier=False)
    metal.set_option("ORDER", "reverse")
    execute(device, commands, [x, y, one])
    assert (y.array(np.float32) == 1).all()


def test_indirect_commands_need_their_resources_named(softmetal_build: Path) -> None:
    program = """
import numpy as np
from tests.softmetal import metal
from tests.softmetal.test_api import execute, indirect
device = metal.Device()
x, y = device.buffer(64), device.buffer(64)
commands, one = indirect(device, x, y, barrier=True)
execute(device, commands, [x, y])
"""
    ended = child("-c", program)
    assert ended.returncode == 86
    assert "uses a buffer that useResource: has not named" in ended.stderr


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
