"""Kernels loaded and launched by CUDA's driver itself, without a compiled program, and timed.

What the benchmarks of single kernels share: they compile a stem for a config, call it with
tensors of PyTorch, and time launches that stand in one graph.
"""

from __future__ import annotations

import ctypes
import statistics
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

from benchmarks.cuda_cases import Params
from npusim.codegen.cuda import nvrtc
from npusim.codegen.cuda.compile_kernels import source_of
from npusim.codegen.launch_config import LaunchConfig, TensorMap

_OPTIONS = ("--std=c++20", "-default-device")
_PROGRAMMATIC = 6  # attribute of a launch that may start before the one in front ends
_PROMOTED = 3  # bytes of the second cache's reads: 256


class _Attribute(ctypes.Structure):
    """CUlaunchAttribute."""

    _fields_ = (
        ("id", ctypes.c_uint),
        ("padding", ctypes.c_uint),
        ("value", ctypes.c_int * 16),
    )


class _Config(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = (
        *((name, ctypes.c_uint) for name in ("gx", "gy", "gz", "bx", "by", "bz", "shared")),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(_Attribute)),
        ("count", ctypes.c_uint),
    )


class Driver:
    """The few entry points of the driver that load and launch a cubin."""

    def __init__(self) -> None:
        self._cuda = ctypes.CDLL("libcuda.so.1")
        torch.zeros(1, device="cuda")  # makes the context current
        major, minor = torch.cuda.get_device_capability()
        self.arch = f"sm_{major}{minor}" + "a" * (major == 9)  # with what only it has

    def load(self, cubin: bytes, entries: Mapping[str, int]) -> dict[str, ctypes.c_void_p]:
        """Returns functions by name; `entries` says how much dynamic shared memory each takes."""
        module = ctypes.c_void_p()
        self._must(self._cuda.cuModuleLoadData(ctypes.byref(module), cubin))
        functions = {}
        for name, shared in entries.items():
            function = ctypes.c_void_p()
            self._must(
                self._cuda.cuModuleGetFunction(ctypes.byref(function), module, name.encode())
            )
            if shared > 48 << 10:
                self._must(self._cuda.cuFuncSetAttribute(function, 8, shared))
            functions[name] = function
        return functions

    def launch(
        self,
        function: ctypes.c_void_p,
        grid: Sequence[int],
        block: Sequence[int],
        shared: int,
        pointers: Sequence[int],
        maps: Sequence[ctypes.Array[ctypes.c_uint64]] = (),
        overlaps: bool = False,
    ) -> None:
        """Launches in PyTorch's stream; overlaps: it may start before the launch in front ends."""
        values = [*(ctypes.c_void_p(p) for p in pointers), *maps]
        arguments = (ctypes.c_void_p * len(values))(*(ctypes.addressof(v) for v in values))
        stream = torch.cuda.current_stream().cuda_stream
        attribute = _Attribute(_PROGRAMMATIC, 0, (1,))
        config = _Config(*grid, *block, shared, stream, ctypes.pointer(attribute), int(overlaps))
        self._must(self._cuda.cuLaunchKernelEx(ctypes.byref(config), function, arguments, None))

    def map(self, map: TensorMap, address: int) -> ctypes.Array[ctypes.c_uint64]:
        """Returns a matrix at an address as kernels take it; swizzled in lines of 128 bytes."""
        made = (ctypes.c_uint64 * 24)()
        place = -(-ctypes.addressof(made) // 64) * 64  # where it lies on 64 bytes
        aligned = (ctypes.c_uint64 * 16).from_buffer(made, place - ctypes.addressof(made))
        extents = (ctypes.c_uint64 * 2)(map.columns, map.rows)
        strides = (ctypes.c_uint64 * 1)(map.stride)
        box, ones = (ctypes.c_uint32 * 2)(64, map.box), (ctypes.c_uint32 * 2)(1, 1)
        encode = self._cuda.cuTensorMapEncodeTiled
        encode.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_uint32, ctypes.c_void_p]
        encode.argtypes += [ctypes.c_void_p] * 4 + [ctypes.c_int] * 4
        self._must(encode(aligned, 1, 2, address, extents, strides, box, ones, 0, 3, _PROMOTED, 0))
        return aligned

    @staticmethod
    def _must(status: int) -> None:
        if status != 0:
            raise RuntimeError(f"the driver answers {status}")


class Kernel:
    """A compiled command: call it with its operands."""

    def __init__(self, driver: Driver, config: LaunchConfig, cubin: bytes) -> None:
        self._driver = driver
        self.config = config
        entries = {x.entry: x.shared for x in config.launches}
        self._functions = driver.load(cubin, entries)
        self._scratch = torch.empty(max(config.scratch, 1), dtype=torch.uint8, device="cuda")
        self.failure = torch.zeros(3, dtype=torch.int64, device="cuda")

    def __call__(self, operands: Sequence[Tensor], overlaps: bool = False) -> None:
        pointers = [t.data_ptr() for t in operands]
        if self.config.scratch:
            pointers.append(self._scratch.data_ptr())
        if self.config.failure:
            pointers.append(self.failure.data_ptr())
        wide = [pointers[m.operand] % 16 == 0 for m in self.config.maps]
        maps = [
            self._driver.map(m, pointers[m.operand]) if all(wide) else (ctypes.c_uint64 * 16)()
            for m in self.config.maps
        ]
        for x in self.config.launches:
            function = self._functions[x.entry]
            self._driver.launch(function, x.grid, x.block, x.shared, pointers, maps, overlaps)


def compile_kernel(
    driver: Driver, stem: str, params: Params, config: LaunchConfig
) -> tuple[LaunchConfig, bytes]:
    """Returns what a kernel is made of; NVRTC compiles without holding the interpreter."""
    macros = [f"-DNPUSIM_{name}={value}" for name, value in config.defines.items()]
    options = (*_OPTIONS, f"--gpu-architecture={driver.arch}", *macros)
    source = source_of(stem, params, config)
    return config, nvrtc.load().compile(source, options, f"{stem}.cu")[0]


def build(driver: Driver, cases: Sequence[tuple[str, Params, LaunchConfig]]) -> list[Kernel]:
    """Compiles in parallel."""
    with ThreadPoolExecutor(16) as pool:
        made = list(pool.map(lambda case: compile_kernel(driver, *case), cases))
    return [Kernel(driver, *parts) for parts in made]


def microseconds(calls: Sequence[Callable[[], object]], repeats: int = 20) -> float:
    """Returns the median time of a call in a graph of all of them."""
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for call in calls[:2]:
            call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    times = []
    for _ in range(repeats):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end) * 1000 / len(calls))
    return statistics.median(times[3:])
