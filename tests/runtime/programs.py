"""Small programs written by hand, so that the runtime's tests depend on no compiler pass."""

from __future__ import annotations

import itertools
import json
import struct
from collections.abc import Mapping, Sequence

import numpy as np

from npusim.abi.kernels import KERNELS, RANK
from npusim.ir.types import dtype_code, dtype_size
from npusim.program.program import (
    Access,
    Buffer,
    BufferKind,
    Command,
    CompiledProgram,
    Kernel,
    Method,
    NodeInfo,
    Operand,
    TensorSpec,
    WeightSpec,
)

Shape = tuple[int, ...]


def stub_image(entry: str, threads: int, **more: object) -> bytes:
    """Returns the image of a kernel that the stub driver (tests/cpp/stub_cuda.cpp) has."""
    elf = bytearray(64)
    elf[:5], elf[18] = b"\x7fELF\x02", 190
    cubin = bytes(elf) + entry.encode() + b"."
    launch = {"entry": entry, "grid": [threads, 1, 1], "block": [1, 1, 1], "shared": 0}
    header = {"arch": "sm_90", "launches": [launch], "cubin": [0, len(cubin)], **more}
    text = json.dumps(header).encode()
    return b"NPUCUDA\x01" + struct.pack("<I", len(text)) + text + cubin


class Builder:
    """Collects buffers and commands; `build` makes the program."""

    def __init__(self) -> None:
        self.buffers: list[Buffer] = []
        self.kernels: list[str] = []
        self.nodes: list[NodeInfo] = []
        self.run: list[Command] = []
        self.init: list[Command] = []
        self.inputs: list[TensorSpec] = []
        self.outputs: list[TensorSpec] = []
        self.weights: list[WeightSpec] = []
        self.constants = b""
        self.ends = dict.fromkeys(BufferKind, 0)

    def buffer(self, kind: BufferKind, size: int, name: str = "") -> int:
        arenas = (BufferKind.TEMP, BufferKind.PERSISTENT, BufferKind.STATE, BufferKind.CONSTANT)
        offset = self.ends[kind] if kind in arenas else 0
        self.ends[kind] = offset + -(-size // 64) * 64
        self.buffers.append(Buffer(kind, size, offset, name))
        return len(self.buffers) - 1

    def _spec(
        self, kind: BufferKind, name: str, dtype: str, shape: Shape, alloc: Shape | None
    ) -> TensorSpec:
        alloc = shape if alloc is None else alloc
        size = int(np.prod(alloc)) * dtype_size(dtype)
        return TensorSpec(name, self.buffer(kind, size, name), dtype, shape, alloc)

    def input(
        self, name: str, shape: Shape, dtype: str = "float32", alloc: Shape | None = None
    ) -> int:
        self.inputs.append(self._spec(BufferKind.INPUT, name, dtype, shape, alloc))
        return self.inputs[-1].buffer

    def output(
        self, name: str, shape: Shape, dtype: str = "float32", alloc: Shape | None = None
    ) -> int:
        self.outputs.append(self._spec(BufferKind.OUTPUT, name, dtype, shape, alloc))
        return self.outputs[-1].buffer

    def weight(self, keys: str | tuple[str, ...], shape: Shape, dtype: str = "float32") -> int:
        keys = (keys,) if isinstance(keys, str) else keys
        size = int(np.prod(shape)) * dtype_size(dtype)
        index = self.buffer(BufferKind.WEIGHT, size, keys[0])
        self.weights.append(WeightSpec(keys, index, dtype, shape))
        return index

    def constant(self, array: np.ndarray) -> int:
        index = self.buffer(BufferKind.CONSTANT, array.nbytes)
        self.constants = self.constants.ljust(self.buffers[index].offset, b"\0") + array.tobytes()
        return index

    def call(
        self,
        kernel: str,
        params: Mapping[str, int | float | Sequence[int | float]],
        reads: Sequence[int],
        writes: Sequence[int],
        *,
        init: bool = False,
        update: bool = False,
        offsets: Mapping[int, int] | None = None,
    ) -> None:
        offsets = offsets or {}
        if kernel not in self.kernels:
            self.kernels.append(kernel)
        self.nodes.append(NodeInfo(f"{kernel}_{len(self.nodes)}", f"test.{kernel}", "net.py:7"))
        access = Access.READ_WRITE if update else Access.WRITE
        operands = [Operand(b, offsets.get(b, 0), Access.READ) for b in reads]
        operands += [Operand(b, offsets.get(b, 0), access) for b in writes]
        packed = KERNELS[kernel].pack(params)
        command = Command(self.kernels.index(kernel), len(self.nodes) - 1, packed, tuple(operands))
        (self.init if init else self.run).append(command)

    def copy(self, x: int, y: int, elements: int, *, size: int = 4, init: bool = False) -> None:
        params = {
            "element_size": size,
            "rank": 1,
            "shape": (elements, *[1] * (RANK - 1)),
            "x_strides": (1,),
            "y_strides": (1,),
        }
        self.call("copy", params, [x], [y], init=init)

    def build(self, schemas: Mapping[str, str] | None = None) -> CompiledProgram:
        schemas = schemas or {}
        kernels = tuple(
            Kernel(name, schemas.get(name, KERNELS[name].schema if name in KERNELS else "none"))
            for name in self.kernels
        )
        arena = self.ends[BufferKind.TEMP]
        return CompiledProgram(
            target="cpu",
            kernels=kernels,
            buffers=tuple(self.buffers),
            methods=(
                Method("forward", tuple(self.run), tuple(self.inputs), tuple(self.outputs), arena),
            ),
            init=Method("init", tuple(self.init), (), (), arena),
            weights=tuple(self.weights),
            nodes=tuple(self.nodes),
            constants=self.constants,
            persistent_bytes=self.ends[BufferKind.PERSISTENT],
            state_bytes=self.ends[BufferKind.STATE],
        )


def mlp(
    rows: int = 1, sizes: Sequence[int] = (16, 16, 16, 16), alloc: Shape | None = None
) -> CompiledProgram:
    """Linear layers with ReLU between them: weights `w0`, `b0`, `w1` …; w as PyTorch has it."""
    b = Builder()
    x = b.input("x", (rows, sizes[0]))
    last = len(sizes) - 2
    y = b.output("output", (rows, sizes[-1]), alloc=alloc)
    for i, (k, n) in enumerate(itertools.pairwise(sizes)):
        w, bias = b.weight(f"w{i}", (n, k)), b.weight(f"b{i}", (n,))
        panels = -(-n // 16) * 16
        packed = b.buffer(BufferKind.PERSISTENT, panels * k * 4)
        codes = {"x_dtype": 0, "y_dtype": 0}
        strides = {"g_stride": 0, "n_stride": k, "t_stride": 0, "c_stride": 1}
        shape = {"groups": 1, "n": n, "taps": 1, "channels": k}
        b.call("pack_b", {**shape, **strides, **codes}, [w], [packed], init=True)
        to = y if i == last else b.buffer(BufferKind.TEMP, rows * n * 4)
        width = (alloc or (rows, n))[1] if i == last else n
        params = {
            "m": rows, "n": n, "k": k, "ldx": k, "ldy": width, "ldr": 0,
            "x_dtype": 0, "b_dtype": 0, "y_dtype": 0, "r_dtype": 0,
            "has_bias": 1, "residual": 0, "act": 0 if i == last else 31, "act_lo": 0, "act_hi": 0,
        }  # fmt: skip
        b.call("gemm", params, [x, packed, bias], [to])
        x = to
    return b.build()


def mlp_weights(sizes: Sequence[int] = (16, 16, 16, 16), seed: int = 0) -> dict[str, np.ndarray]:
    """Random weights for `mlp`."""
    rng = np.random.default_rng(seed)
    state = {}
    for i, (k, n) in enumerate(itertools.pairwise(sizes)):
        state[f"w{i}"] = rng.standard_normal((n, k)).astype(np.float32) / np.float32(k**0.5)
        state[f"b{i}"] = rng.standard_normal(n).astype(np.float32)
    return state


def mlp_reference(state: Mapping[str, np.ndarray], x: np.ndarray) -> np.ndarray:
    """What `mlp` computes, in float64."""
    layers = len(state) // 2
    x = x.astype(np.float64)
    for i in range(layers):
        x = x @ state[f"w{i}"].T.astype(np.float64) + state[f"b{i}"]
        x = x if i == layers - 1 else np.maximum(x, 0)
    return x


def lookup(rows: int = 10, width: int = 4, count: int = 3) -> CompiledProgram:
    """y = table[ids]: fails at run time for an id out of range. The table is read in place."""
    b = Builder()
    ids = b.input("ids", (count,), "int64")
    table = b.weight("table", (rows, width))
    y = b.output("output", (count, width))
    params = {
        "element_size": 4, "idx_dtype": dtype_code("int64"), "n": 1, "rank": 2,
        "shape": (count, width, *[1] * (RANK - 2)), "x_strides": (0, 1), "y_strides": (width, 1),
        "idx_strides": (1, 0), "k_size": (rows,), "k_stride": (width,),
    }  # fmt: skip
    b.call("index", params, [table, ids], [y])
    return b.build()


def identity(shape: Shape, dtype: str = "float32", alloc: Shape | None = None) -> CompiledProgram:
    """output = x, padding included."""
    b = Builder()
    x, y = b.input("x", shape, dtype, alloc), b.output("output", shape, dtype, alloc)
    b.copy(x, y, int(np.prod(alloc or shape)), size=dtype_size(dtype))
    return b.build()


def reversal(count: int) -> CompiledProgram:
    """output = x reversed, then x again: writes its first output before it has read all of x."""
    b = Builder()
    x, y, z = b.input("x", (count,)), b.output("output", (count,)), b.output("same", (count,))
    params = {
        "element_size": 4, "rank": 1, "shape": (count, *[1] * (RANK - 1)),
        "x_strides": (-1,), "y_strides": (1,),
    }  # fmt: skip
    b.call("copy", params, [x], [y], offsets={x: (count - 1) * 4})
    b.copy(x, z, count)
    return b.build()


def swap(count: int) -> CompiledProgram:
    """Two inputs, two outputs, in the other order."""
    b = Builder()
    p, q = b.input("p", (count,)), b.input("q", (count,))
    first, second = b.output("first", (count,)), b.output("second", (count,))
    b.copy(q, first, count)
    b.copy(p, second, count)
    return b.build()


def memory_of_last_call(count: int) -> CompiledProgram:
    """output = the x of the call before; zeros at first. The x is kept in a state buffer."""
    b = Builder()
    x, y = b.input("x", (count,)), b.output("output", (count,))
    state = b.buffer(BufferKind.STATE, count * 4)
    b.copy(state, y, count)
    b.copy(x, state, count)
    return b.build()
