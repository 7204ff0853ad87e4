"""Checks and times the CUDA products on this machine's GPU, without a compiled program.

    PYTHONPATH=python:. python -m benchmarks.cuda_kernels [--only STEM] [--sweep] [--json FILE]

Every case of `benchmarks/cuda_cases.py` is compiled for this GPU, run over poisoned outputs and
compared with float64. Then products of a small language model's shapes are timed beside PyTorch:
launches are captured in a graph that walks over more weights than the cache holds, so that a time
is that of a launch among others. `--sweep` tries other configs than the rules choose.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.cuda_cases import (
    GELU,
    RELU,
    SILU,
    Case,
    Params,
    attention,
    conv,
    linear,
    matmul,
    pack_b,
    quantize,
    quantized_linear,
    rope,
)
from benchmarks.cuda_driver import Driver, Kernel, build, microseconds
from npusim.abi import quantization
from npusim.codegen.cuda import matmul_rules, nvrtc
from npusim.codegen.cuda.paths import KernelPath
from npusim.codegen.cuda.rules import RULES
from npusim.codegen.launch_config import LaunchConfig

_ROTATED = 256 << 20  # bytes of weights that a timing walks over: several caches
_TOLERANCE = {torch.float32: 2e-5, torch.float16: 2e-3, torch.bfloat16: 1e-2, torch.float64: 1e-12}

_READ = """
extern "C" __global__ void __launch_bounds__(256) npusim_kernel(const uint4* x, unsigned* y) {
  unsigned mixed = 0;
  const long long step = (long long)gridDim.x * 256 * 8;
  for (long long at = (long long)blockIdx.x * 2048 + threadIdx.x; at < COUNT; at += step) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      uint4 v;
      asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                   : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(x + at + i * 256));
      mixed ^= v.x ^ v.y ^ v.z ^ v.w;
    }
  }
  if (mixed == 0x12345678) *y = mixed;
}
"""


# ---- checks


def checked() -> Iterator[Case]:
    """Yields the cases that must hold."""
    for m in (1, 2, 5, 8, 9, 16, 17, 128, 200):
        yield linear(m, 2048, 1536, rows=(1536, 256, 256), bias=1)
        yield linear(m, 1000, 520, gated=1, act=SILU, bias=1)
        yield linear(m, 333, 251, residual=1, act=RELU)
    for m in (1, 4, 40):
        yield linear(m, 320, 512, shift=1, pad=8)
        yield linear(m, 320, 513, x=1, residual=2, act=GELU, bias=1)
        yield linear(m, 320, 512, x=0, w=2, y=0, bias=1)
        yield linear(m, 320, 512, x=2, w=0, gated=1)
        yield linear(m, 1000, 512, x=0, residual=1, bias=1)
        yield linear(m, 333, 251, x=0, gated=1, act=SILU)
    for m in (1, 4, 16, 128):
        yield linear(m, 33000, 128)
    yield linear(1, 1536, 8960, residual=1)
    yield linear(128, 1536, 8960, residual=1)
    yield linear(1024, 1024, 512, gated=1, act=SILU)
    yield linear(300, 520, 2048, x=0, residual=2, act=RELU, bias=1)

    for m in (1, 3, 33, 128):
        for format, group in ((1, 0), (2, 32), (2, 128), (3, 64)):
            yield quantized_linear(m, 512, 768, format, group, rows=(256, 256), bias=1)
            yield quantized_linear(m, 333, 300, format, group, gated=1, act=SILU)
            yield quantized_linear(m, 333, 300, format, group, x=0, residual=1)
    for format, group in ((1, 0), (2, 32), (3, 64), (2, 128)):
        yield quantize(100, 300, format, group)
        yield quantize(64, 256, format, group, x=0)

    yield matmul((3, 4), 197, 197, 64, 2, tb=1)
    yield matmul((3, 4), 197, 64, 197, 1, alpha=0.5)
    yield matmul((2, 3), 64, 128, 96, 2, shift=1)
    yield matmul((2,), 40, 72, 33, 2, ta=1)
    for dtype in (0, 3, 4, 5, 9):
        yield matmul((2, 3), 100, 70, 37, dtype, ta=dtype % 2, alpha=2.0 if dtype < 5 else 1.0)
    yield matmul((5,), 128, 256, 64, 0, tb=1)

    for dtype in (2, 0):
        for position in (0, 127, 1000, 4095):
            yield attention(12, 2, 1, 4096, 128, dtype=dtype, position=position)
        yield attention(12, 2, 128, 4096, 128, dtype=dtype, position=1000)
        yield attention(12, 2, 128, 128, 128, dtype=dtype, position=0)
        yield attention(8, 8, 197, 197, 64, dtype=dtype, causal=0, batch=2)
        yield attention(8, 8, 50, 77, 64, dtype=dtype, causal=0, mask=9)
        yield attention(8, 4, 50, 77, 80, v_dim=72, dtype=dtype, causal=0, mask=0, softcap=30.0)
        yield attention(8, 4, 3, 600, 256, dtype=dtype, position=500, window=100)
        yield attention(4, 4, 90, 90, 40, dtype=dtype, window=20, softcap=5.0)
        yield attention(4, 2, 20, 60, 33, dtype=dtype, shift=1, offset=40)
        yield attention(4, 2, 3, 60, 320, dtype=dtype, position=30, mask=9)
        yield attention(12, 2, 1, 4096, 128, dtype=dtype, position=4096)
        yield attention(12, 2, 1, 128, 128, dtype=dtype, position=-1)
    yield attention(12, 12, 300, 300, 64, dtype=1)

    for dtype in (2, 0):
        yield rope((12, 2, 2), 128, 1, 256, 200, dtype=dtype)
        yield rope((4, 2, 2), 64, 37, 256, 3, dtype=dtype, rotary=32, interleaved=1, batch=2)
        yield rope((4, 2, 2), 33, 5, 16, 3, dtype=dtype, rotary=20, cs=2)
        yield rope((12, 2, 2), 128, 2, 256, 255, dtype=dtype)

    yield conv((64, 64), 56, 3, pad=1, dtype=2, batch=8)
    yield conv((128, 128), 28, 3, pad=1, dtype=2, batch=32)
    for dtype in (0, 2, 1):
        yield conv((64, 96), 28, 3, pad=1, dtype=dtype, bias=1, act=RELU, batch=2)
        yield conv((3, 64), 60, 7, stride=2, pad=3, dtype=dtype, nchw=1)
        yield conv((512, 512), 7, 3, pad=1, dtype=dtype, residual=1, act=RELU, bias=1)
        yield conv((64, 80), 20, 3, pad=2, dilation=2, groups=4, dtype=dtype, residual=2)
        yield conv((20, 30), 17, 1, dtype=dtype, groups=2)
        yield conv((32, 24), 14, 4, stride=2, pad=1, dtype=dtype, transposed=1, bias=1)
        yield conv((32, 32), 9, 3, stride=2, dtype=dtype, transposed=1, groups=2)
        yield conv((96, 96), 28, 3, pad=1, groups=96, dtype=dtype, depthwise=True, bias=1)
        yield conv((40, 40), 15, 5, stride=2, pad=2, groups=40, dtype=dtype, depthwise=True)
        yield pack_b(2, 40, 9, 24, dtype)
        yield pack_b(1, 40, 9, 3, dtype)
    for dtype in (1, 2):
        for size, kernel, stride, pad in (
            (60, 7, 2, 3),
            (33, 3, 1, 1),
            (40, 5, 3, 2),
            (64, 16, 16, 0),
        ):
            for nchw in (0, 1):
                options = {"stride": stride, "pad": pad, "nchw": nchw, "dtype": dtype, "batch": 3}
                yield conv((3, 72), size, kernel, residual=1, bias=1, act=RELU, **options)
                yield conv((1, 30), size, kernel, bias=1, **options)
        yield conv((64, 256), 56, 1, dtype=dtype, residual=1, bias=1, act=RELU, batch=4)
        yield conv((256, 512), 56, 1, stride=2, dtype=dtype, bias=1, batch=2)
        yield conv((2048, 512), 7, 1, dtype=dtype, bias=1, act=RELU)
        yield conv((512, 2048), 7, 1, dtype=dtype, residual=2, bias=1)
        yield conv((128, 60), 28, 3, stride=2, pad=1, dtype=dtype, residual=1, bias=1, batch=3)


def check(case: Case, kernel: Kernel) -> str | None:
    """Runs a case; returns what is wrong, if anything."""
    if not case.keeps:
        for y in case.outputs:
            y.fill_(torch.nan if y.is_floating_point() else 77)
    kernel((*case.inputs, *case.outputs))
    torch.cuda.synchronize()
    if kernel.config.failure:
        code, value, limit = (kernel.failure[0] & 0xFFFFFFFF).item(), *kernel.failure[1:].tolist()
        if case.fails:
            return None if (code, value, limit) == (1, *case.fails) else f"reports {code} {value}"
        if code:
            return f"fails at {value} of {limit}"
    for y, want in zip(case.outputs, case.expected(), strict=True):
        error = _error(case, y, want)
        limit = case.tolerance or _TOLERANCE.get(y.dtype, 0.0)
        if not error <= limit:
            return f"relative error {error:.2e} > {limit:.0e}"
    return None


def check_twice(found: Iterable[tuple[Case, str, Kernel]]) -> int:
    """Runs each case twice, prints what is wrong with its kernel's name; returns how many are."""
    wrong = total = 0
    for case, name, kernel in found:
        why = check(case, kernel)
        first = case.outputs[0].clone()
        why = why or check(case, kernel)
        if not why and not case.fails and not torch.equal(first, case.outputs[0]):
            why = "bits differ from call to call"
        total += 1
        wrong += why is not None
        if why:
            print(f"WRONG {name} {case.note}: {why}", flush=True)
    print(f"{total - wrong} of {total} cases hold", flush=True)
    return wrong


def _error(case: Case, y: Tensor, want: Tensor) -> float:
    got = y
    if case.stem == "quantize":
        p = case.params
        names = {code: name for name, code in quantization.FORMATS.items()}
        how = quantization.Quantization(names[p["format"]], p["group"])
        got = quantization.dequantize(y.cpu(), how, p["rows"], p["k"])
    got, want = got.double().cpu(), want.double().cpu()
    return float((got - want).norm() / want.norm().clamp(min=1e-30))


def check_all(driver: Driver, only: str | None) -> int:
    """Checks every case; returns how many are wrong."""
    torch.manual_seed(0)
    cases = [c for c in checked() if only in (None, c.stem)]
    made = [(c.stem, c.params, RULES[c.stem](c.params)) for c in cases]
    wrong = 0
    for case, kernel in zip(cases, build(driver, made), strict=True):
        why = check(case, kernel)
        wrong += why is not None
        if why:
            print(f"WRONG {case.stem} {case.note}: {why} {dict(kernel.config.defines)}")
    print(f"{len(cases) - wrong} of {len(cases)} cases hold", flush=True)
    return wrong


# ---- times


def rotated(case: Case, weights: slice) -> list[tuple[Tensor, ...]]:
    """Returns operands with as many copies of the weights as exceed the cache."""
    operands = (*case.inputs, *case.outputs)
    size = sum(t.nbytes for t in operands[weights])
    out = []
    for _ in range(max(2, min(48, -(-_ROTATED // size)))):
        fresh = [t.clone() for t in operands[weights]]
        out.append((*operands[: weights.start], *fresh, *operands[weights.stop :]))
    return out


def read_bandwidth(driver: Driver) -> float:
    """Returns TB/s of reading memory once."""
    x = torch.randint(0, 2**31, (1 << 28,), dtype=torch.int64, device="cuda")
    y = torch.zeros(1, dtype=torch.int32, device="cuda")
    options = (f"--gpu-architecture={driver.arch}", f"-DCOUNT={x.nbytes // 16}LL")
    functions = driver.load(nvrtc.load().compile(_READ, options, "read")[0], {"npusim_kernel": 0})
    best = 0.0
    for grid in (132 * 4, 132 * 8, 132 * 16, 132 * 64):
        call = lambda g=grid: driver.launch(  # noqa: E731
            functions["npusim_kernel"], (g, 1, 1), (256, 1, 1), 0, (x.data_ptr(), y.data_ptr())
        )
        best = max(best, x.nbytes / microseconds([call], 8) / 1e6)
    return best


_SHAPES = {  # Qwen2.5-1.5B: columns of y, K, and what else
    "qkv": (2048, 1536, {"rows": (1536, 256, 256), "bias": 1}),
    "o": (1536, 1536, {"residual": 1}),
    "gate_up": (8960, 1536, {"gated": 1, "act": SILU}),
    "down": (1536, 8960, {"residual": 1}),
    "head": (151936, 1536, {}),
}


def torch_linear(case: Case, operands: Sequence[Tensor]) -> Callable[[], None]:
    """The same product by PyTorch, of the weights in one piece and without epilogue."""
    p, x = case.params, operands[0]
    w = torch.cat(list(operands[1 : 1 + p["segments"]]))
    out = torch.empty(p["m"], w.shape[0], dtype=x.dtype, device="cuda")
    return lambda: torch.mm(x, w.T, out=out)  # type: ignore[return-value]


def stream_variants(config: LaunchConfig, params: Params) -> Iterator[LaunchConfig]:
    """Yields other configs of the streaming paths."""
    path = config.defines["PATH"]
    paths = (path,) if params["m"] > 1 else (KernelPath.GEMV_SIMT, KernelPath.GEMV_MMA)
    for path in paths:
        columns = 8 if path == KernelPath.GEMV_MMA else 1
        for split in (1, 2, 4, 8):
            for rows in (1, 2):
                for loads in (6, 12, 24):
                    for warps in (4, 8):
                        if warps < split or (params["n"] > 50000 and split > 2):
                            continue
                        grid = -(-params["n"] // (rows * columns * (warps // split)))
                        launch = replace(
                            config.launches[0], grid=(grid, 1, 1), block=(32 * warps, 1, 1)
                        )
                        defines = {
                            "PATH": path, "SPLIT": split, "ROWS": rows, "LOADS": loads,
                            "BLOCK": 32 * warps,
                        }  # fmt: skip
                        yield replace(
                            config,
                            launches=(launch,),
                            defines={**config.defines, **defines},
                        )


def tile_variants(config: LaunchConfig, params: Params) -> Iterator[LaunchConfig]:
    """Yields all tiles and spans of K."""
    split = int(len(config.launches) > 1)
    shapes = [replace(s, stages=n) for s in matmul_rules.TILES for n in (3, 4, 5, 6, 8)]
    for shape in shapes:
        if shape.shared > 220 << 10:
            continue
        for spans in (1, 2, 3, 4, 6, 8):
            if params["k"] // spans < 384 or (spans > 1 and params["m"] > 512):
                continue
            yield matmul_rules.tiled(
                params["m"],
                params["n"],
                params["k"],
                parts=2 if params["gated"] else 1,
                tensor_cores=True,
                arguments=config.defines["ARGUMENTS"] - split,
                shapes=(shape,),
                splits=(spans,),
            )


def time_linear(driver: Driver, m: int, sweep: bool) -> Iterator[dict[str, Any]]:
    """Times the linears of a layer for m rows of x."""
    for name, (n, k, options) in _SHAPES.items():
        if name == "head" and m > 16:
            continue
        case = linear(m, n, k, **options)  # type: ignore[arg-type]
        segments = case.params["segments"]
        sets = rotated(case, slice(1, 1 + segments))
        rule = matmul_rules.linear(case.params)
        made = [rule]
        if sweep and m in (1, 4, 128, 1024):
            streams = rule.defines["PATH"] in (KernelPath.GEMV_SIMT, KernelPath.GEMV_MMA)
            made += list((stream_variants if streams else tile_variants)(rule, case.params))
        kernels = build(driver, [("linear", case.params, g) for g in made])
        weight = sum(t.nbytes for t in case.inputs[1 : 1 + segments])
        rows = sum(case.params["rows"])
        times = []
        for kernel in kernels:
            calls = [lambda o=o, f=kernel: f(o) for o in sets]  # type: ignore[misc]
            times.append(microseconds(calls, 20 if len(kernels) == 1 else 10))
        theirs = microseconds([torch_linear(case, o) for o in sets])
        for t, config in sorted(zip(times[1:], made[1:], strict=True), key=lambda pair: pair[0])[
            :4
        ]:
            print(f"    {name} m={m} {t:8.2f} µs {_short(config)}")
        yield {
            "stem": "linear", "name": name, "m": m, "us": times[0], "torch_us": theirs,
            "TB/s": weight / times[0] / 1e6, "TFLOP/s": 2 * m * rows * k / times[0] / 1e6,
            "torch TB/s": weight / theirs / 1e6, "best_us": min(times),
            "config": _short(rule),
        }  # fmt: skip


def _short(config: LaunchConfig) -> str:
    keep = ("PATH", "SPLIT", "ROWS", "LOADS", "BLOCK", "TILE_ROWS", "TILE_COLUMNS", "STAGES")
    return " ".join(f"{k}={config.defines[k]}" for k in keep if k in config.defines)


def time_others(driver: Driver) -> Iterator[dict[str, Any]]:
    """Times attention, rotations, quantized linears and convolutions."""
    for q_len, position in ((1, 127), (1, 4095), (128, 0), (128, 3968)):
        case = attention(12, 2, q_len, 4096, 128, position=position)
        q, k, v = case.inputs[:3]
        used = position + q_len
        keys, values = (t[:, :, :used].contiguous() for t in (k, v))
        kwargs = {"enable_gqa": True, "is_causal": q_len == used and q_len > 1}
        theirs = microseconds(
            [lambda: F.scaled_dot_product_attention(q, keys, values, **kwargs)] * 8  # noqa: B023
        )
        yield _timed(driver, case, slice(1, 3), f"attention q {q_len} at {position}", theirs)
    case = attention(12, 12, 197, 197, 64, batch=8, causal=0)
    q, k, v = case.inputs[:3]
    theirs = microseconds([lambda: F.scaled_dot_product_attention(q, k, v)] * 8)
    yield _timed(driver, case, slice(1, 3), "attention 8x12x197x64", theirs)
    case = rope((12, 2, 2), 128, 1, 4096, 100)
    yield _timed(driver, case, slice(0, 1), "rope 1", None)
    case = rope((12, 2, 2), 128, 128, 4096, 100)
    yield _timed(driver, case, slice(0, 1), "rope 128", None)
    for format, group in ((1, 0), (2, 32)):
        case = quantized_linear(1, 8960, 1536, format, group, gated=1, act=SILU)
        yield _timed(driver, case, slice(1, 2), f"gate_up format {format}", None)
    for shape in ((64, 56), (128, 28), (256, 14), (512, 7)):
        channels, size = shape
        for dtype, batch in ((0, 1), (2, 1), (2, 64)):
            case = conv((channels, channels), size, 3, pad=1, dtype=dtype, batch=batch)
            x = case.inputs[0]
            w = torch.randn(channels, channels, 3, 3, device="cuda", dtype=x.dtype)
            w = w.to(memory_format=torch.channels_last)
            theirs = microseconds([lambda: F.conv2d(x, w, padding=1)] * 8)  # noqa: B023
            name = f"conv {batch}x{channels} {size}² dtype {dtype}"
            yield _timed(driver, case, slice(1, 2), name, theirs)
    for dtype in (0, 2):
        case = matmul((12,), 512, 512, 512, dtype)
        a, b = (t.view(12, 512, 512) for t in case.inputs)
        theirs = microseconds([lambda: torch.bmm(a, b)] * 8)  # noqa: B023
        yield _timed(driver, case, slice(0, 2), f"matmul 12x512³ dtype {dtype}", theirs)
    case = linear(512, 1024, 1024, x=0)
    calls = [torch_linear(case, case.inputs)] * 8
    yield _timed(driver, case, slice(1, 2), "linear 512x1024x1024 float32", microseconds(calls))


def _timed(
    driver: Driver, case: Case, weights: slice, name: str, theirs: float | None
) -> dict[str, Any]:
    config = RULES[case.stem](case.params)
    (kernel,) = build(driver, [(case.stem, case.params, config)])
    calls = [lambda o=o: kernel(o) for o in rotated(case, weights)[:32]]  # type: ignore[misc]
    took = microseconds(calls)
    return {
        "stem": case.stem, "name": name, "us": took, "torch_us": theirs,
        "config": _short(config),
    }  # fmt: skip


def main() -> int:
    """Checks, times, prints a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", help="check cases of this stem alone")
    parser.add_argument("--sweep", action="store_true")
    parser.add_argument("--arch", help="compile for another architecture, such as sm_90")
    parser.add_argument("--check", action="store_true", help="do not time anything")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    driver = Driver()
    driver.arch = args.arch or driver.arch
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    print(
        torch.cuda.get_device_name(),
        driver.arch,
        torch.__version__,
        f"nvrtc {nvrtc.load().version}",
    )
    wrong = check_all(driver, args.only)
    if args.check:
        return 1 if wrong else 0
    ceiling = read_bandwidth(driver)
    print(f"reading memory: {ceiling:.2f} TB/s", flush=True)
    results = []
    for rows in _results(driver, args.sweep):
        theirs = f"{rows['torch_us']:8.2f}" if rows["torch_us"] else "       –"
        shown = f"{rows['name']:32} {rows.get('m', ''):>5} {rows['us']:8.2f} µs  torch {theirs}"
        if "TB/s" in rows:
            shown += f"  {rows['TB/s']:.2f} TB/s (torch {rows['torch TB/s']:.2f})"
            shown += f" {rows['TFLOP/s']:6.1f} TFLOP/s, best {rows['best_us']:.2f}"
        print(f"{shown}  [{rows['config']}]", flush=True)
        results.append(rows)
    if args.json:
        out = {"device": torch.cuda.get_device_name(), "read TB/s": ceiling, "results": results}
        args.json.write_text(json.dumps({**out, "wrong": wrong}, indent=1) + "\n")
    return 1 if wrong else 0


def _results(driver: Driver, sweep: bool) -> Iterator[dict[str, Any]]:
    for m in (1, 4, 8, 16, 128, 1024):
        yield from time_linear(driver, m, sweep)
    yield from time_others(driver)


if __name__ == "__main__":
    sys.exit(main())
