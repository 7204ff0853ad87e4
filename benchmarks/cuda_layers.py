"""The decoder layers of Qwen2.5-1.5B for one token on this machine's GPU, without a program.

    PYTHONPATH=python:. python -m benchmarks.cuda_layers [none int8 int4-g32 …]

For each way to quantize weights, compiles the five kernels of a layer as they are, launches those
of 28 layers with weights and caches of their own in one graph, checks the result after each context
against float64 with rounding where the kernels round, and that launches which do not overlap give
the same bits. Prints the median microseconds of a replay, 10th to 90th percentile after it, and the
relative error.
"""

from __future__ import annotations

import ctypes
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.cuda_cases import SILU
from npusim.abi.kernels import KERNELS
from npusim.abi.quantization import FORMATS, Quantization, dequantize, quantize
from npusim.codegen.cuda import nvrtc
from npusim.codegen.cuda.compile_kernels import specialise
from npusim.codegen.launch_config import LaunchConfig
from npusim.targets import TargetConfig

ARCH, LAYERS, CONTEXTS, ROOM, REPEATS = "sm_90a", 28, (128, 1024, 4000), 4608, 40
FEATURES = TargetConfig.named(f"cuda:{ARCH}").features
HIDDEN, INNER, HEADS, KV_HEADS, SIZE, EPS = 1536, 8960, 12, 2, 128, 1e-6
KV = KV_HEADS * SIZE
_SHARED, _CARVEOUT, _SERIALIZED = 8, 9, 6  # of the driver's attributes


def _product(rows: tuple[int, ...], k: int, **more: Any) -> dict[str, Any]:
    n = sum(rows) // (2 if more.get("gated") else 1)
    ld = tuple(k for _ in rows)
    given = {"m": 1, "n": n, "k": k, "ldx": k, "ldy": n, "rows": rows, "ldw": ld}
    dtypes = {f"{name}_dtype": 2 for name in "xwyr"}
    return {**given, "segments": len(rows), **dtypes, **more}


_CACHE = (KV * ROOM, SIZE * ROOM, SIZE)
_STEP = {
    "batch": 1, "heads": HEADS, "kv_heads": KV_HEADS, "head_dim": SIZE, "v_dim": SIZE,
    "rotary_dim": SIZE, "limit": ROOM, "q_strides": (0, SIZE), "k_strides": (0, SIZE),
    "v_strides": (0, SIZE), "k_cache_strides": _CACHE, "v_cache_strides": _CACHE,
    "y_strides": (HIDDEN, SIZE), "cs_strides": (SIZE, SIZE), "dtype": 2, "cs_dtype": 2,
    "scale": SIZE**-0.5,
}  # fmt: skip


def commands(how: Quantization | None) -> tuple[tuple[str, dict[str, Any], int], ...]:
    """Returns the stem, parameters and settled operands of a layer's commands."""
    kind = {} if how is None else {"format": FORMATS[how.format], "group": how.group}
    plain, normed = ("linear", "normed_linear") if how is None else _QUANTIZED
    gate = _product((INNER, INNER), HIDDEN, gated=1, act=SILU, norm_eps=EPS)
    return (
        (normed, _product((HIDDEN, KV, KV), HIDDEN, has_bias=1, norm_eps=EPS) | kind, 0x3E),
        ("attention_step", _STEP, 0xE0),
        (plain, _product((HIDDEN,), HIDDEN, residual=1, ldr=HIDDEN) | kind, 0x2),
        (normed, gate | kind, 0xE),
        (plain, _product((HIDDEN,), INNER, residual=1, ldr=HIDDEN) | kind, 0x2),
    )


_QUANTIZED = "quantized_linear", "normed_quantized_linear"


def packed(stem: str, given: dict[str, Any]) -> bytes:
    """Returns the bytes of parameters of which those not given are 0."""
    fields = KERNELS[stem].fields
    full: dict[str, Any] = {}
    for name, _, count in fields:
        value = given.get(name, 0)
        whole = tuple(value) if isinstance(value, tuple) else (value,)
        full[name] = whole + (0,) * (count - len(whole)) if count > 1 else value
    return KERNELS[stem].pack(full)


def compiled(how: Quantization | None = None) -> list[tuple[LaunchConfig, bytes]]:
    """Returns the config and the code of each command; needs no GPU."""
    compiler, made = nvrtc.load(), []
    for stem, given, settled in commands(how):
        source, config, options = specialise(stem, packed(stem, given), settled)
        options = (f"--gpu-architecture={ARCH}", *options)
        made.append((config.on(FEATURES), compiler.compile(source, options, stem)[0]))
    return made


class _Attribute(ctypes.Structure):
    _fields_ = (
        ("id", ctypes.c_int), ("padding", ctypes.c_int), ("value", ctypes.c_int),
        ("rest", ctypes.c_char * 60),
    )  # fmt: skip


class _Config(ctypes.Structure):
    _fields_ = (
        ("grid", ctypes.c_uint * 3), ("block", ctypes.c_uint * 3), ("shared", ctypes.c_uint),
        ("stream", ctypes.c_void_p), ("attributes", ctypes.c_void_p), ("count", ctypes.c_uint),
    )  # fmt: skip


class Kernel:
    """A loaded command."""

    def __init__(self, config: LaunchConfig, cubin: bytes) -> None:
        self._cuda = ctypes.CDLL("libcuda.so.1")
        self._launch = config.launches[0]
        self._module, self._function = ctypes.c_void_p(), ctypes.c_void_p()
        self._must(self._cuda.cuModuleLoadData(ctypes.byref(self._module), cubin))
        name = self._launch.entry.encode()
        found = ctypes.byref(self._function)
        self._must(self._cuda.cuModuleGetFunction(found, self._module, name))
        self._cuda.cuFuncSetAttribute(self._function, _CARVEOUT, 100)
        self._must(self._cuda.cuFuncSetAttribute(self._function, _SHARED, self._launch.shared))
        sizes = (config.scratch, 64 if config.failure else 0)
        self._own = [torch.zeros(n, dtype=torch.uint8, device="cuda") for n in sizes if n]

    def __call__(self, operands: list[int], overlaps: bool) -> None:
        """Puts a launch into torch's stream, over the addresses of its operands."""
        values = [ctypes.c_void_p(p) for p in (*operands, *(t.data_ptr() for t in self._own))]
        arguments = (ctypes.c_void_p * len(values))(*(ctypes.addressof(v) for v in values))
        attribute = _Attribute(_SERIALIZED, 0, 1)
        config = _Config(
            self._launch.grid,
            self._launch.block,
            self._launch.shared,
            torch.cuda.current_stream().cuda_stream,
            ctypes.addressof(attribute),
            int(overlaps),
        )
        started = self._cuda.cuLaunchKernelEx(ctypes.byref(config), self._function, arguments, None)
        self._must(started)

    @staticmethod
    def _must(status: int) -> None:
        if status != 0:
            raise RuntimeError(f"the driver answers {status}")


def _random(*shape: int, scale: float = 1.0) -> Tensor:
    return torch.randn(*shape, device="cuda").mul_(scale).to(torch.bfloat16)


@dataclass
class Matrix:
    """Parts of a weight: what kernels read, and what it stands for."""

    operands: list[Tensor]
    values: Tensor

    @classmethod
    def random(cls, how: Quantization | None, k: int, *rows: int) -> Matrix:
        """Returns a seeded one."""
        parts = [_random(n, k, scale=0.02) for n in rows]
        if how is not None:
            codes = [quantize(part.cpu(), how) for part in parts]
            pairs = zip(codes, rows, strict=True)
            parts = [dequantize(q, how, n, k).cuda() for q, n in pairs]
            return cls([q.cuda() for q in codes], torch.cat(parts))
        return cls(parts, torch.cat(parts))

    def copy(self) -> Matrix:
        """Returns one in memory of its own, of the same values."""
        return Matrix([part.clone() for part in self.operands], self.values)

    @property
    def pointers(self) -> list[int]:
        return [part.data_ptr() for part in self.operands]


@dataclass
class Layer:
    """The weights of a layer, and its caches."""

    qkv: Matrix
    o: Matrix
    gate_up: Matrix
    down: Matrix
    bias: Tensor = field(default_factory=lambda: torch.randn(HIDDEN + 2 * KV, device="cuda") * 0.1)
    norms: Tensor = field(default_factory=lambda: 1 + _random(2, HIDDEN, scale=0.1))
    keys: Tensor = field(default_factory=lambda: _random(KV_HEADS, ROOM, SIZE))
    values: Tensor = field(default_factory=lambda: _random(KV_HEADS, ROOM, SIZE))

    @classmethod
    def several(cls, how: Quantization | None) -> list[Layer]:
        """Returns all layers, whose matrices hold the same."""
        matrices = (
            Matrix.random(how, HIDDEN, HIDDEN, KV, KV),
            Matrix.random(how, HIDDEN, HIDDEN),
            Matrix.random(how, HIDDEN, INNER, INNER),
            Matrix.random(how, INNER, HIDDEN),
        )
        return [cls(*(matrix.copy() for matrix in matrices)) for _ in range(LAYERS)]


class Decoder:
    """All layers, and what passes between them."""

    def __init__(
        self, kernels: Sequence[Callable[[list[int], bool], None]], how: Quantization | None = None
    ) -> None:
        self.kernels = kernels
        self._layers = Layer.several(how)
        self._x = [_random(HIDDEN) for _ in range(LAYERS + 1)]
        self._qkv, self._h = _random(HIDDEN + 2 * KV), _random(INNER)
        self._y, self._middle = _random(HIDDEN), _random(HIDDEN)
        self._position = torch.zeros(1, dtype=torch.int64, device="cuda")
        self._turns = torch.zeros(2, SIZE, dtype=torch.bfloat16, device="cuda")

    @property
    def result(self) -> Tensor:
        return self._x[-1]

    def go_to(self, position: int) -> None:
        """Sets the position, and the cosines and sines of its angles."""
        self._position.fill_(position)
        angles = 1e6 ** (-torch.arange(0, SIZE, 2, device="cuda") / SIZE) * position
        both = torch.cat([angles, angles])
        self._turns.copy_(torch.stack([both.cos(), both.sin()]))

    def launch(self, overlaps: bool) -> None:
        """Puts the launches of all layers into torch's stream."""
        for i, layer in enumerate(self._layers):
            qkv, row, x = self._qkv.data_ptr(), 2 * HIDDEN, self._x[i].data_ptr()
            norm = layer.norms.data_ptr()
            y, middle, h = (t.data_ptr() for t in (self._y, self._middle, self._h))
            caches = [layer.keys.data_ptr(), layer.values.data_ptr()]
            turns = [self._turns[0].data_ptr(), self._turns[1].data_ptr()]
            step = [qkv, qkv + 2 * HIDDEN, qkv + 2 * (HIDDEN + KV), *turns]
            operands = (
                [x, *layer.qkv.pointers, norm, layer.bias.data_ptr(), qkv],
                [*step, self._position.data_ptr(), *caches, y],
                [y, *layer.o.pointers, x, middle],
                [middle, *layer.gate_up.pointers, norm + row, h],
                [h, *layer.down.pointers, middle, self._x[i + 1].data_ptr()],
            )
            for n, (kernel, given) in enumerate(zip(self.kernels, operands, strict=True)):
                kernel(given, overlaps and i + n > 0)

    def graph(self, overlaps: bool) -> torch.cuda.CUDAGraph:
        """Returns the launches in one graph."""
        made = torch.cuda.CUDAGraph()
        with torch.cuda.graph(made):
            self.launch(overlaps)
        return made

    def expected(self, position: int) -> Tensor:
        """Computes the result in float64, rounded as the kernels do; appends to the caches."""
        x, (cos, sin) = self._x[0].double(), self._turns.double()
        for layer in self._layers:
            sums = layer.qkv.values.double() @ _normed(x, layer.norms[0]) + layer.bias.double()
            q, k, v = _rounded(sums).split([HIDDEN, KV, KV])
            q, k = (_rounded(_turned(t.view(-1, SIZE), cos, sin)) for t in (q, k))
            layer.keys[:, position] = k.to(torch.bfloat16)
            layer.values[:, position] = v.view(-1, SIZE).to(torch.bfloat16)
            keys, values = (c[:, : position + 1].double() for c in (layer.keys, layer.values))
            scores = torch.einsum("grd,gtd->grt", q.view(KV_HEADS, -1, SIZE), keys) / SIZE**0.5
            y = _rounded(torch.einsum("grt,gtd->grd", scores.softmax(-1), values).flatten())
            middle = _rounded(layer.o.values.double() @ y + x)
            gate, up = (layer.gate_up.values.double() @ _normed(middle, layer.norms[1])).chunk(2)
            x = _rounded(layer.down.values.double() @ _rounded(F.silu(gate) * up) + middle)
        return x


def _rounded(x: Tensor) -> Tensor:
    return x.to(torch.bfloat16).double()


def _normed(x: Tensor, weight: Tensor) -> Tensor:
    return x * torch.rsqrt((x * x).mean() + EPS) * weight.double()


def _turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    half = SIZE // 2
    return x * cos + torch.cat([-x[:, half:], x[:, :half]], 1) * sin


def microseconds(graph: torch.cuda.CUDAGraph) -> str:
    """Returns the median of replays, and the 10th to 90th percentile."""
    took = []
    for _ in range(REPEATS + 3):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        took.append(1e3 * start.elapsed_time(end))
    tenths = statistics.quantiles(took[3:], n=10)
    return f"{statistics.median(took[3:]):.0f} ({tenths[0]:.0f} - {tenths[-1]:.0f}) us"


def main() -> None:
    """Checks, times and prints."""
    torch.cuda.synchronize()  # makes the context that modules are loaded to
    for scheme in sys.argv[1:] or ["none"]:
        print(scheme, flush=True)
        measure(Quantization.parse(scheme))


def measure(how: Quantization | None) -> None:
    """Checks, times and prints layers of one kind."""
    torch.manual_seed(0)
    decoder = Decoder([Kernel(*made) for made in compiled(how)], how)
    decoder.launch(overlaps=False)
    torch.cuda.synchronize()
    overlapping, in_a_row = decoder.graph(True), decoder.graph(False)
    for context in CONTEXTS:
        decoder.go_to(context)
        want, found = decoder.expected(context), []
        for graph in (overlapping, in_a_row):
            decoder.result.fill_(torch.nan)
            graph.replay()
            torch.cuda.synchronize()
            found.append(decoder.result.double())
        error = float((found[0] - want).norm() / want.norm())
        same = "the same bits" if torch.equal(*found) else "OTHER BITS"
        times = " in a row ".join(microseconds(graph) for graph in (overlapping, in_a_row))
        print(f"after {context:5}: {times}, error {error:.1e}, {same}", flush=True)


if __name__ == "__main__":
    main()
