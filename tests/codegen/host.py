"""Runs programs compiled for CUDA without a GPU: each kernel's source through a host compiler.

`host_cuda.h` stands in for CUDA, and for the tensor cores' products of a warp. What only some
devices have, products of warpgroups and clusters of blocks, sources leave out for others.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from npusim.codegen.cuda.compile_kernels import specialise
from npusim.codegen.launch_config import LaunchConfig
from npusim.program.program import BufferKind, Command, CompiledProgram, Method

COMPILER = shutil.which("g++") or shutil.which("clang++")
# What two libraries define alike is each one's own: shared memory has the size of its kernel.
# Fibers jump from stack to stack, which a fortified library takes for a mistake.
_FLAGS = ("-std=c++20", "-O1", "-w", "-fPIC", "-ffp-contract=fast", "-fno-strict-aliasing",
          "-fno-gnu-unique", "-U_FORTIFY_SOURCE")  # fmt: skip
_HEADER = Path(__file__).with_name("host_cuda.h")
# Declared by kernels/cuda/common/scalar.h for compilers without PTX.
_CONVERSIONS = """
namespace npusim {
float to_float(float16 x) { return float_of_half(x.bits); }
float16 to_float16(float x) { return {half_of_float(x)}; }
bfloat16 to_bfloat16(float x) { return {bfloat16_of_float(x)}; }
}
"""
# Declared by kernels/cuda/common/mma.h.
_TENSOR_CORES = """
namespace npusim {
unsigned shared_address(const void* p) {
  return static_cast<const unsigned char*>(p) - host::dynamic_memory;
}
void ldmatrix(unsigned (&r)[4], unsigned at) { host::ldmatrix(r, at, false); }
void ldmatrix_transposed(unsigned (&r)[4], unsigned at) { host::ldmatrix(r, at, true); }
void store_shared(unsigned at, const uint4& v) {
  std::memcpy(host::dynamic_memory + at, &v, 16);
}
void store_shared(unsigned at, unsigned v) { std::memcpy(host::dynamic_memory + at, &v, 4); }
uint4 load_shared(unsigned at) {
  uint4 v;
  std::memcpy(&v, host::dynamic_memory + at, 16);
  return v;
}
unsigned load_shared_word(unsigned at) {
  unsigned v;
  std::memcpy(&v, host::dynamic_memory + at, 4);
  return v;
}
void cp_async(unsigned to, const void* from, bool exist) {
  if (exist) {
    std::memcpy(host::dynamic_memory + to, from, 16);
  } else {
    std::memset(host::dynamic_memory + to, 0, 16);
  }
}
template <typename T>
void mma_16x8x16(float (&c)[4], unsigned a0, unsigned a1, unsigned a2, unsigned a3, unsigned b0,
                  unsigned b1) {
  host::mma_16x8x16(c, {a0, a1, a2, a3}, {b0, b1}, [](unsigned bits) {
    return to_float(T{static_cast<uint16_t>(bits)});
  });
}
}
"""
# Declared by kernels/cuda/ranks/exchange.h; ranks are processes that share memory.
_EXCHANGE = """
namespace npusim {
void raise_flag(uint32_t* flag, uint32_t round) {
  __atomic_store_n(flag, round, __ATOMIC_RELEASE);
}
uint32_t flag_of(const uint32_t* flag) { return __atomic_load_n(flag, __ATOMIC_ACQUIRE); }
uint64_t nanoseconds() {
  sched_yield();
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1000000000 + static_cast<uint64_t>(now.tv_nsec);
}
void store_line(unsigned char* line, const uint4& v) {
  uint64_t halves[2];
  std::memcpy(halves, &v, 16);
  for (int i = 0; i < 2; ++i) {
    __atomic_store_n(reinterpret_cast<uint64_t*>(line) + i, halves[i], __ATOMIC_RELAXED);
  }
}
uint4 load_line(const unsigned char* line) {
  uint64_t halves[2];
  for (int i = 0; i < 2; ++i) {
    halves[i] = __atomic_load_n(reinterpret_cast<const uint64_t*>(line) + i, __ATOMIC_RELAXED);
  }
  uint4 v;
  std::memcpy(&v, halves, 16);
  return v;
}
}
"""
_DYNAMIC = re.compile(r"extern __shared__ __align__\(\d+\) unsigned char shared_memory\[\];")

Key = tuple[str, bytes]  # stem and parameters


class KernelFailure(Exception):
    """What a kernel reported: (code, value, limit)."""


@dataclass(frozen=True)
class HostKernel:
    """A kernel in a loaded library."""

    run: ctypes._FuncPointer  # type: ignore[name-defined]
    config: LaunchConfig


def keys_of(programs: Iterable[CompiledProgram]) -> list[Key]:
    """Returns the distinct kernels of programs after `assemble`."""
    commands = ((p, c) for p in programs for m in (p.init, *p.methods) for c in m.commands)
    return list(dict.fromkeys((p.kernels[c.kernel].name, c.params) for p, c in commands))


def build(
    keys: Sequence[Key], folder: Path, variant: str = "", unwritten: int = 0
) -> dict[Key, HostKernel]:
    """Compiles kernels, all in one config of `variants` or by their rules, and loads them.

    Args:
        unwritten: the operands (bit i: operand i) that nothing writes before the kernels run.
    """
    texts, configs = [], []
    for index, (stem, params) in enumerate(keys):
        source, config, options = specialise(stem, params, unwritten, variant)
        configs.append(config)
        texts.append(_wrapped(index, source, config, options))
    unit, library = folder / "kernels.cpp", folder / "kernels.so"
    unit.write_text("\n".join(texts))
    command = [str(COMPILER), *_FLAGS, "-include", str(_precompiled_header())]
    done = subprocess.run(
        [*command, "-shared", str(unit), "-o", str(library)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[:4000]
    loaded = ctypes.CDLL(str(library))
    return {
        key: HostKernel(getattr(loaded, f"run{i}"), config)
        for i, (key, config) in enumerate(zip(keys, configs, strict=True))
    }


@functools.cache
def _precompiled_header() -> Path:
    """Returns a header that includes `host_cuda.h`, with its compiled form beside it.

    Without the latter most of the time of a small kernel goes to the standard library's headers.
    """
    folder = Path(tempfile.mkdtemp(prefix="npusim-host-cuda-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    header = folder / "host_cuda.h"
    header.write_text(f'#include "{_HEADER}"\n')
    suffix = "pch" if "clang" in str(COMPILER) else "gch"
    command = [str(COMPILER), *_FLAGS, "-x", "c++-header", str(header)]
    subprocess.run([*command, "-o", f"{header}.{suffix}"], check=True)
    return header


def _wrapped(index: int, source: str, config: LaunchConfig, options: Sequence[str]) -> str:
    """Returns a kernel in a namespace of its own, and a C function that launches it."""
    if not config.launches:
        return f'extern "C" void run{index}(void**) {{}}'
    macros = [o[2:].split("=") for o in options if o.startswith("-D")]
    defined = {name for name, _ in macros} | set(re.findall(r"#define (NPUSIM_\w+)", source))
    body = source.replace('extern "C" __global__', "__global__")
    body = _DYNAMIC.sub("inline auto& shared_memory = host::dynamic_memory;", body)
    barriers = "true" if "__syncthreads" in body or "__shfl" in body else "false"
    tensor_cores = _TENSOR_CORES if "ldmatrix" in body else ""
    entries = dict.fromkeys(launch.entry for launch in config.launches)
    return "\n".join(
        (
            *(f"#define {name} {value}" for name, value in macros),
            f"namespace k{index} {{",
            body,
            _CONVERSIONS,
            tensor_cores,
            _EXCHANGE if "raise_flag" in body else "",
            *(f"void call_{e}(void** a) {{ host::call({e}, a); }}" for e in entries),
            "}",
            f'extern "C" void run{index}(void** a) {{',
            *(
                f"  host::launch(k{index}::call_{x.entry}, a, Dim3{{{x.grid[0]}, {x.grid[1]}, "
                f"{x.grid[2]}}}, {x.block[0]}, {barriers});"
                for x in config.launches
            ),
            "}",
            *(f"#undef {name}" for name in sorted(defined)),
        )
    )


def run_program(
    program: CompiledProgram,
    kernels: dict[Key, HostKernel],
    inputs: Sequence[bytes],
    weights: Mapping[str, bytes] | None = None,
) -> list[bytes]:
    """Runs init and the first method of an assembled program; returns its outputs' bytes."""
    memory = _Memory(program, program.methods[0], inputs)
    for spec in program.weights:
        data = next((weights or {})[key] for key in spec.keys if key in (weights or {}))
        memory.buffers[spec.buffer] = _filled(data)
    for method in (program.init, program.methods[0]):
        memory.enter(method)
        for command in method.commands:
            _run(program, kernels, command, memory)
    return [memory.buffers[spec.buffer].tobytes() for spec in program.output_specs]


def _run(
    program: CompiledProgram, kernels: dict[Key, HostKernel], command: Command, memory: _Memory
) -> None:
    kernel = kernels[program.kernels[command.kernel].name, command.params]
    _launch(kernel, [memory.address(o.buffer) + o.offset for o in command.operands])


def call(kernel: HostKernel, operands: Sequence[torch.Tensor]) -> None:
    """Runs one kernel over tensors."""
    _launch(kernel, [operand.data_ptr() for operand in operands])


def _launch(kernel: HostKernel, pointers: list[int]) -> None:
    scratch = np.zeros(kernel.config.scratch + 256, np.uint8)
    failure = np.zeros(3, np.int64)
    if kernel.config.scratch:
        pointers.append(scratch.ctypes.data)
    if kernel.config.failure:
        pointers.append(failure.ctypes.data)
    kernel.run((ctypes.c_void_p * len(pointers))(*pointers))
    if failure[0]:
        raise KernelFailure(int(failure[0]), int(failure[1]), int(failure[2]))


class _Memory:
    """The buffers of a program, as its memory plan lays them out."""

    def __init__(self, program: CompiledProgram, method: Method, inputs: Sequence[bytes]) -> None:
        self.program = program
        self.arenas = {
            BufferKind.CONSTANT: _room(len(program.constants)),
            BufferKind.PERSISTENT: _room(program.persistent_bytes),
            BufferKind.STATE: _room(program.state_bytes),
        }
        self.arenas[BufferKind.CONSTANT][: len(program.constants)] = np.frombuffer(
            program.constants, np.uint8
        )
        given = {s.buffer: data for s, data in zip(method.inputs, inputs, strict=True)}
        self.buffers: dict[int, NDArray[np.uint8]] = {}
        for index, buffer in enumerate(program.buffers):
            if buffer.kind in (BufferKind.INPUT, BufferKind.OUTPUT):
                room = _room(buffer.bytes)[: buffer.bytes]
                room[:] = np.frombuffer(given.get(index, bytes(buffer.bytes)), np.uint8)
                self.buffers[index] = room

    def enter(self, method: Method) -> None:
        """Gives a method its arena."""
        self.arenas[BufferKind.TEMP] = _room(method.arena_bytes)

    def address(self, index: int) -> int:
        """Returns where a buffer begins."""
        if index in self.buffers:
            return self.buffers[index].ctypes.data
        buffer = self.program.buffers[index]
        return int(self.arenas[buffer.kind].ctypes.data) + buffer.offset


def _filled(data: bytes) -> NDArray[np.uint8]:
    room = _room(len(data))[: len(data)]
    room[:] = np.frombuffer(data, np.uint8)
    return room


def _room(size: int) -> NDArray[np.uint8]:
    """Returns aligned memory full of what nobody should read."""
    raw = np.full(size + 256, 0xA5, np.uint8)
    return raw[-raw.ctypes.data % 256 :]
