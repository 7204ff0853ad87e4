"""The rules of Metal's API, memory, libraries and pipelines, as a host meets them."""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
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


@pytest.fixture(scope="module")
def violate(softmetal_build: Path) -> Iterator[Callable[[str], tuple[int, str]]]:
    """Exit status and messages of a process of its own that breaks the rule of a name."""
    command = [sys.executable, "-m", "tests.softmetal.violations"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, text=True) as forks:
        assert forks.stdin is not None and forks.stdout is not None
        to, answers = forks.stdin, forks.stdout

        def ask(name: str) -> tuple[int, str]:
            print(name, file=to, flush=True)
            status, messages = json.loads(answers.readline())
            return status, messages

        yield ask
        to.close()


@pytest.mark.seeded_fault
@pytest.mark.parametrize("name", RULES)
def test_violations_end_the_process(violate: Callable[[str], tuple[int, str]], name: str) -> None:
    status, messages = violate(name)
    assert status == 86, messages
    assert "SoftMetal: validation: " in messages
    assert RULES[name] in messages


def test_a_host_that_breaks_no_rule_ends_well(
    violate: Callable[[str], tuple[int, str]],
) -> None:
    status, messages = violate("nothing")
    assert (status, messages.splitlines()[0]) == (0, "nothing was wrong"), messages


@pytest.mark.seeded_fault
def test_leaks_are_named_at_exit(softmetal_build: Path) -> None:
    program = "from tests.softmetal import metal; d = metal.Device(); d.buffer(16); d.buffer(16)"
    ended = child("-c", program, SOFTMETAL_LEAKS="fatal")
    assert ended.returncode == 87
    assert "SoftMetal: 4 objects alive at exit: SoftMTLBuffer 2, " in ended.stderr
    assert "SoftMTLCommandQueue 1, SoftMTLDevice 1" in ended.stderr
    released = child("-c", program + "; d.__exit__(None, None, None)", SOFTMETAL_LEAKS="fatal")
    assert (released.returncode, released.stderr) == (0, "")


@pytest.mark.seeded_fault
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


@pytest.mark.seeded_fault
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
