"""Times own kernels beside cuBLASLt and cuDNN, command by command, inside npusim's own programs.

    PYTHONPATH=python:. python -m benchmarks.cuda_libraries [--tune] [--json FILE]

A row is one command of ResNet-50 at batch 1 and 64 (float16), or of Qwen2.5-1.5B's prefill of 128
and 1024 tokens (bfloat16). Both sides run as a command of a program does: in one graph, over
weights that rotate past the cache, the library's plan as its heuristics choose it. With `--tune`
all configs of the own kernel and the first plans of the library are tried. The last lines sum
a whole model up.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import npusim
from npusim.abi.kernels import KERNELS
from npusim.abi.scalar import OPCODES
from npusim.codegen.choice import Choice
from npusim.codegen.cuda.generator import GENERATOR
from npusim.codegen.cuda.library import library_problem
from npusim.codegen.trial import Subject, trial
from npusim.targets import TargetConfig
from npusim.tune import measure_all

_RELU, _NONE = OPCODES["relu"][0], OPCODES["copy"][0]
_FLOAT32, _FLOAT16, _BFLOAT16 = 0, 1, 2


@dataclass(frozen=True)
class Row:
    """A command, and how often a model runs it."""

    model: str
    name: str
    count: int
    subject: Subject


def _full(stem: str, given: dict[str, Any]) -> bytes:
    zero = {name: [0] * count if count > 1 else 0 for name, _, count in KERNELS[stem].fields}
    return KERNELS[stem].pack({**zero, **given})


def linear(
    m: int, n: int, k: int, *, rows: tuple[int, ...] = (), bias: int = 0, residual: int = 0,
    dtype: int = _BFLOAT16,
) -> Subject:  # fmt: skip
    """A product with weights as a checkpoint has them."""
    rows = rows or (n,)
    size = 4 if dtype == _FLOAT32 else 2
    given = {
        "m": m, "n": n, "k": k, "ldx": k, "ldy": n, "ldr": n, "rows": rows,
        "ldw": [k] * len(rows), "segments": len(rows), "x_dtype": dtype, "w_dtype": dtype,
        "y_dtype": dtype, "r_dtype": dtype, "has_bias": bias, "residual": residual, "act": _NONE,
    }  # fmt: skip
    weights = [size * r * k for r in rows]
    sizes = [size * m * k, *weights, *[4 * n] * bias, *[size * m * n] * (residual + 1)]
    return Subject("linear", _full("linear", given), tuple(sizes))


def matmul(batch: int, m: int, n: int, k: int, dtype: int) -> Subject:
    """A batch of products of dense matrices."""
    given = {
        "batch": [1, 1, 1, 1, 1, batch], "a_batch": [0] * 5 + [m * k],
        "b_batch": [0] * 5 + [k * n], "y_batch": [0] * 5 + [m * n], "m": m, "n": n, "k": k,
        "a_m": k, "a_k": 1, "b_k": n, "b_n": 1, "y_m": n, "dtype": dtype, "alpha": 1.0,
    }  # fmt: skip
    size = 4 if dtype == _FLOAT32 else 2
    sizes = (size * batch * m * k, size * batch * k * n, size * batch * m * n)
    return Subject("matmul", _full("matmul", given), sizes)


def conv(
    batch: int, channels: tuple[int, int], size: int, kernel: int, stride: int, residual: int,
    relu: bool,
) -> Subject:  # fmt: skip
    """A convolution in float16, channels last."""
    before, after = channels
    out = (size - 1) // stride + 1
    x, y = ([s * s * c, 1, 0, s * c, c] for s, c in ((size, before), (out, after)))
    given = {
        "batch": batch, "in_channels": before, "out_channels": after, "in_size": [1, size, size],
        "out_size": [1, out, out], "kernel": [1, kernel, kernel], "stride": [1, stride, stride],
        "pad": [0, kernel // 2, kernel // 2], "dilation": [1, 1, 1], "x_strides": x,
        "y_strides": y, "r_strides": y, "groups": 1, "x_dtype": _FLOAT16, "w_dtype": _FLOAT16,
        "y_dtype": _FLOAT16, "r_dtype": _FLOAT16, "has_bias": 1, "residual": residual,
        "act": _RELU if relu else _NONE,
    }  # fmt: skip
    result = 2 * batch * out * out * after
    weights = 2 * before * kernel * kernel * ((after + 15) // 16 * 16)
    sizes = [2 * batch * size * size * before, weights, 4 * after, *[result] * (residual + 1)]
    return Subject("conv", _full("conv", given), tuple(sizes))


def resnet50(batch: int) -> Iterator[Row]:
    """The convolutions after the first one, each with how often it occurs."""
    before = 64
    for width, size, blocks in ((64, 56, 3), (128, 28, 4), (256, 14, 6), (512, 7, 3)):
        stride = 1 if width == 64 else 2
        larger, wide = size * stride, width * 4
        shapes: list[tuple[str, int, tuple[int, int], int, int, int, int, bool]] = [
            (f"{before}>{width} {larger}² 1x1", 1, (before, width), larger, 1, 1, 0, True),
            (f"{width} {larger}² 3x3/{stride}", 1, (width, width), larger, 3, stride, 0, True),
            (f"{before}>{wide} {larger}² 1x1/{stride}", 1, (before, wide), larger, 1, stride, 0,
             False),
            (f"{width}>{wide} {size}² 1x1 +", blocks, (width, wide), size, 1, 1, 1, True),
            (f"{wide}>{width} {size}² 1x1", blocks - 1, (wide, width), size, 1, 1, 0, True),
            (f"{width} {size}² 3x3", blocks - 1, (width, width), size, 3, 1, 0, True),
        ]  # fmt: skip
        for name, count, channels, extent, kernel, step, residual, relu in shapes:
            subject = conv(batch, channels, extent, kernel, step, residual, relu)
            yield Row(f"resnet50 b{batch}", name, count, subject)
        before = wide


def qwen(tokens: int) -> Iterator[Row]:
    """The products of Qwen2.5-1.5B's layers; the gated one is an own kernel's alone."""
    for name, count, subject in (
        ("qkv + bias", 28, linear(tokens, 2048, 1536, rows=(1536, 256, 256), bias=1)),
        ("o + residual", 28, linear(tokens, 1536, 1536, residual=1)),
        ("down + residual", 28, linear(tokens, 1536, 8960, residual=1)),
        ("gate or up", 0, linear(tokens, 8960, 1536)),
    ):
        yield Row(f"qwen prefill {tokens}", name, count, subject)


def others() -> Iterator[Row]:
    """Products in float32, and batches."""
    for m in (64, 512):
        yield Row("float32", f"{m}x1024x1024 + bias", 1,
                  linear(m, 1024, 1024, bias=1, dtype=_FLOAT32))  # fmt: skip
    for dtype, name in ((_FLOAT32, "float32"), (_BFLOAT16, "bfloat16")):
        for size in (128, 512):
            yield Row("batches", f"12x{size}³ {name}", 1, matmul(12, size, size, size, dtype))


def time_row(
    row: Row, target: TargetConfig, device: npusim.Device, everything: bool
) -> dict[str, Any]:
    """Returns microseconds of the own kernel and the library, and of the best of each."""
    problem = library_problem(row.subject.stem, row.subject.params)
    assert problem is not None, row.name
    named = list(GENERATOR.candidates(row.subject.stem, row.subject.params))
    if not everything:
        named = [("own", Choice()), (f"{problem.name} 0", Choice(problem.name))]
    measured = {n: t * 1e6 for n, _, t in measure_all(row.subject, named, target, device)}
    own = {n: t for n, t in measured.items() if n.startswith("own")}
    library = {n: t for n, t in measured.items() if not n.startswith("own")}
    best = min(library, key=library.__getitem__) if library else ""
    return {
        "model": row.model,
        "command": row.name,
        "count": row.count,
        "own": own["own"],
        "own_best": min(own.values()),
        "own_variant": min(own, key=own.__getitem__),
        "library": library.get(f"{problem.name} 0"),
        "library_best": library.get(best),
        "library_plan": best,
    }


_LOAD = """
import sys, time
import npusim
from npusim.runtime import Executor
device = npusim.Device("cuda")
program = npusim.CompiledProgram.load(sys.argv[1])
start = time.perf_counter()
executor = Executor(program, device)
print((time.perf_counter() - start) * 1e3, *executor.implementations()[:1])
"""


def time_loading() -> None:
    """Prints how long it takes a fresh process to make commands ready, and with which library."""
    target = replace(TargetConfig.named("cuda"), libraries="all")
    for rows in (list(qwen(128)), list(resnet50(64))):
        for row in rows[:1]:
            problem = library_problem(row.subject.stem, row.subject.params)
            assert problem is not None
            for choice in (Choice(), Choice(problem.name)):
                with tempfile.TemporaryDirectory() as folder:
                    file = Path(folder) / "trial.npubin"
                    trial(row.subject, choice, target).save(file)
                    run = [sys.executable, "-c", _LOAD, str(file)]
                    for _ in range(2):
                        print(row.model, choice.library or "own",
                              subprocess.run(run, capture_output=True, text=True).stdout.strip(),
                              "ms", flush=True)  # fmt: skip


def main() -> None:
    """Prints a line a command, and the sums of each model."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tune", action="store_true")
    parser.add_argument("--only", default="", metavar="MODEL")
    parser.add_argument("--load", action="store_true", help="time loading programs instead")
    parser.add_argument("--json")
    args = parser.parse_args()
    if args.load:
        time_loading()
        return
    device = npusim.Device("cuda")
    arch = device.description.split(",")[1].strip()
    target = TargetConfig.named("cuda").with_arch("sm_90a" if arch == "sm_90" else arch)
    rows = [*resnet50(1), *resnet50(64), *qwen(32), *qwen(64), *qwen(128), *qwen(1024), *others()]
    rows = [row for row in rows if args.only in row.model]
    print(device.description, target.arch)
    print(f"{'microseconds':44}  own   best own             library  best library", flush=True)
    results = []
    for row in rows:
        result = time_row(row, target, device, args.tune)
        results.append(result)
        library = [f"{result[k] or 0:8.2f}" for k in ("library", "library_best")]
        print(
            f"{row.model:20}{row.name:24}{result['own']:8.2f}{result['own_best']:8.2f} "
            f"{result['own_variant'][4:]:12}{library[0]}{library[1]} {result['library_plan']}",
            flush=True,
        )
    for model in dict.fromkeys(row.model for row in rows):
        of = [r for r in results if r["model"] == model and r["count"]]
        own = sum(r["own"] * r["count"] for r in of)
        tuned = sum(r["own_best"] * r["count"] for r in of)
        library = sum((r["library"] or r["own"]) * r["count"] for r in of)
        best = sum(min(r["own_best"], r["library_best"] or 1e9) * r["count"] for r in of)
        print(f"{model:20} own {own:8.1f}  own tuned {tuned:8.1f}  library {library:8.1f}  "
              f"best of both {best:8.1f}")  # fmt: skip
    if args.json:
        document = {"device": device.description, "rows": results}
        Path(args.json).write_text(json.dumps(document, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
