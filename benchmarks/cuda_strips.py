"""Times convolutions in groups of few channels on this machine's GPU, by strips of every size.

    PYTHONPATH=python:. python -m benchmarks.cuda_strips [MODEL:BATCH …]

The commands are those of the models' programs, in float16. Each is run by the strip that its rule
chooses and by the others; beside it stands what its bytes take at 4.3 TB/s. What
`codegen/cuda/strips.py` estimates with comes from here.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from functools import partial
from math import prod

import torch
from torch import Tensor

import npusim
from benchmarks.architectures import build as build_model
from benchmarks.cuda_cases import Params
from benchmarks.cuda_driver import Driver, build, microseconds
from npusim.abi.kernels import KERNELS
from npusim.codegen.cuda.strips import Strip, best_strip, strip_launch, strips
from npusim.lowering.assemble import assemble
from npusim.passes.run import run_passes
from npusim.targets import TargetConfig

MEMORY = 4.3e6  # bytes in a microsecond
TARGET = TargetConfig.named("cuda:sm_90a")
_PANEL = 16


def commands(name: str, batch: int) -> Iterator[tuple[str, Params]]:
    """Yields the distinct ones of a model that are computed by strips."""
    model, inputs = build_model(name, batch)
    graph = npusim.extract_ir(model.half(), tuple(x.half() for x in inputs))
    program = assemble(run_passes(graph, TARGET), TARGET)
    seen = set()
    for command in program.methods[0].commands:
        stem = program.kernels[command.kernel].name
        params = KERNELS[stem].unpack(command.params)
        small = stem == "conv_depthwise" or (stem == "conv" and params["groups"] > 1)
        if small and (stem, command.params) not in seen and best_strip(params) is not None:
            seen.add((stem, command.params))
            yield stem, params


def operands(stem: str, p: Params) -> list[Tensor]:
    """Returns random ones, as large as the strides reach."""
    groups = p.get("groups", p["out_channels"])
    taps, channels = prod(p["kernel"]), p["in_channels"] // groups
    panels = -(-p["out_channels"] // groups // _PANEL) * _PANEL
    weights = groups * panels * taps * channels if stem == "conv" else taps * p["out_channels"]
    x = _half(_reach((p["batch"], p["in_channels"], *p["in_size"]), p["x_strides"]))
    shape = (p["batch"], p["out_channels"], *p["out_size"])
    given = [x, _half(weights)]
    if p["has_bias"]:
        given.append(torch.randn(p["has_bias"] * p["out_channels"], device="cuda"))
    if p["residual"]:
        given.append(_half(_reach(shape, p["r_strides"])))
    return [*given, _half(_reach(shape, p["y_strides"]))]


def _reach(shape: tuple[int, ...], strides: tuple[int, ...]) -> int:
    return 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))


def _half(count: int) -> Tensor:
    return torch.randn(count, device="cuda").half()


def measure(driver: Driver, stem: str, p: Params) -> list[tuple[float, Strip]]:
    """Returns microseconds and the strip that took them, the fastest first."""
    chosen = list(strips(p))
    kernels = build(driver, [(stem, p, strip_launch(p, one)) for one in chosen])
    given = operands(stem, p)
    times = (microseconds([partial(kernel, given)] * 6, 8) for kernel in kernels)
    return sorted(zip(times, chosen, strict=True), key=lambda found: found[0])


def main() -> None:
    """Times and prints."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("models", nargs="*", default=["convnext_tiny:64", "convnext_tiny:1"])
    args = parser.parse_args()
    torch.manual_seed(0)
    driver = Driver()
    for model in args.models:
        name, _, batch = model.partition(":")
        for stem, p in commands(name, int(batch or 1)):
            found = measure(driver, stem, p)
            rule = best_strip(p)
            took = next(time for time, one in found if one == rule)
            size = "x".join(map(str, p["out_size"][1:]))
            moved = (
                2
                * p["batch"]
                * sum(p[f"{side}_channels"] * prod(p[f"{side}_size"]) for side in ("in", "out"))
            )
            best = "  ".join(f"{time:.1f} {one.name}" for time, one in found[:5])
            print(
                f"{model} {p['out_channels']} {size} k{p['kernel'][2]} s{p['stride'][2]}: rule "
                f"{took:.1f} {rule and rule.name}, bytes {moved / MEMORY:.1f}: {best}",
                flush=True,
            )


if __name__ == "__main__":
    main()
