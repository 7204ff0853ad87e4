"""Times every convolution of ResNet-18 and -50 on this machine's GPU, in every shape of tiles.

    PYTHONPATH=python:. python -m benchmarks.cuda_convolutions [--json FILE]

The commands are those of the compiled networks, in float16 and for batches of 1 and 64. Each is run
in the config that its rule chooses and in the others, in a graph that walks over several copies
of the weights; beside it stand what it would take at the rates of memory and of the tensor cores,
and cuDNN's plain convolution through PyTorch. The constants of `codegen/cuda/convolutions.py`
come from here.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Iterator
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

import torch
from tests.models import build as build_model

import npusim
from benchmarks.cuda_cases import Params, tensor
from benchmarks.cuda_driver import Driver, build, microseconds
from npusim.abi.kernels import KERNELS
from npusim.codegen.cuda import convolutions
from npusim.codegen.cuda.convolutions import ConvTile, conv_tiles
from npusim.codegen.cuda.paths import KernelPath
from npusim.codegen.launch_config import LaunchConfig
from npusim.lowering.assemble import assemble
from npusim.passes.run import run_passes
from npusim.targets import TargetConfig

MEMORY, PRODUCTS = 4.3e6, 790e6  # bytes and operations in a microsecond
SHAPES = tuple(
    ConvTile(rows, columns, warps_m, warps_n, stages, lags, 0, 0, 0)
    for rows, columns, warps_m, warps_n, stages, lags in (
        (64, 32, 2, 2, 6, False),
        (64, 64, 2, 2, 4, False),
        (64, 64, 2, 2, 5, True),
        (64, 128, 2, 2, 3, False),
        (64, 128, 2, 2, 4, True),
        (128, 64, 2, 2, 3, False),
        (128, 64, 4, 2, 3, False),
        (128, 64, 4, 2, 4, True),
        (128, 128, 2, 2, 3, False),
        (128, 128, 4, 2, 3, False),
        (256, 64, 4, 2, 2, False),
        (256, 64, 4, 2, 4, False),
        (256, 128, 4, 2, 3, False),
        (256, 128, 4, 2, 4, True),
        (128, 256, 2, 4, 3, False),
        (128, 256, 2, 4, 4, True),
    )
)


def commands(model: str, batch: int) -> Counter[bytes]:
    """Returns the parameters of a network's convolutions, and how many there are of each."""
    network, _ = build_model(model)
    x = torch.zeros(batch, 3, 224, 224, dtype=torch.float16)
    target = TargetConfig.named("cuda")
    program = assemble(run_passes(npusim.extract_ir(network.half(), (x,)), target), target)
    kernels = (program.kernels[c.kernel].name for c in program.methods[0].commands)
    found = zip(kernels, program.methods[0].commands, strict=True)
    return Counter(c.params for name, c in found if name == "conv")


def operands_of(p: Params) -> list[list[torch.Tensor]]:
    """Returns several sets of operands that differ in their weights."""
    x = tensor((p["batch"], *p["in_size"][1:], p["in_channels"]), p["x_dtype"])
    y = tensor((p["batch"], *p["out_size"][1:], p["out_channels"]), p["y_dtype"])
    k = prod(p["kernel"]) * p["in_channels"]
    extra = [tensor((p["out_channels"],), 0)] if p["has_bias"] else []
    extra += [tensor(y.shape, p["y_dtype"])] if p["residual"] else []
    weights = (tensor((p["out_channels"], k), p["w_dtype"], scale=k**-0.5) for _ in range(6))
    return [[x, w, *extra, y] for w in weights]


def variants(p: Params) -> Iterator[tuple[str, LaunchConfig]]:
    """Yields the rule's config and the others worth a try, with a short name for each."""
    rule = convolutions.conv(p)
    yield name_of(rule), rule
    if rule.defines["PATH"] != KernelPath.TILE_MMA:
        return
    positions = p["batch"] * prod(p["out_size"])
    k = prod(p["kernel"]) * p["in_channels"]
    steps = -(-k // 64)
    for tile in SHAPES:
        if tile.columns > 2 * p["out_channels"] or tile.rows > 2 * positions:
            continue
        tiles = -(-positions // tile.rows) * -(-p["out_channels"] // tile.columns)
        area = tile.rows * tile.columns
        if (tiles > 4000 and area < 8192) or (tiles < 20 and area > 8192):
            continue
        for split in (1, 2, 4, 8):
            fits = steps >= split and tile.shared(k, split) <= 227 << 10
            if split > 1 and (tiles * split > 300 or not fits):
                continue
            if tiles * split < 50 and split < min(8, steps):
                continue
            config = conv_tiles(p, tile, split)
            yield name_of(config), config


def name_of(config: LaunchConfig) -> str:
    """Returns rows x columns, warps, stages, and the number of spans of K."""
    d = config.defines
    if d["PATH"] != KernelPath.TILE_MMA:
        return KernelPath(d["PATH"]).name
    ring = f"s{d['STAGES']}{'l' * d['OVERLAPS_MMA']}"
    return f"{d['TILE_ROWS']}x{d['TILE_COLUMNS']} w{d['BLOCK'] // 32} {ring} /{d['SPLIT']}"


def cudnn(p: Params) -> float:
    """Returns the time of the plain convolution in PyTorch."""
    shape = (p["out_channels"], p["in_channels"], *p["kernel"][1:])
    x = tensor((p["batch"], p["in_channels"], *p["in_size"][1:]), 1)
    x, w = (t.to(memory_format=torch.channels_last) for t in (x, tensor(shape, 1, scale=0.05)))
    stride, pad = p["stride"][1:], p["pad"][1:]
    return microseconds([lambda: torch.nn.functional.conv2d(x, w, None, stride, pad)] * 6, 8)


def measure(driver: Driver, p: Params) -> dict[str, Any]:
    """Times one convolution in all its configs."""
    found = dict(variants(p))
    kernels = build(driver, [("conv", p, config) for config in found.values()])
    sets = operands_of(p)
    times = {}
    for name, kernel in zip(found, kernels, strict=True):
        times[name] = microseconds([partial(kernel, o) for o in sets], 10)
    x, _, *_, y = sets[0]
    moved = x.nbytes + y.nbytes * (1 + bool(p["residual"])) + sets[0][1].nbytes
    work = 2 * y.numel() * prod(p["kernel"]) * p["in_channels"]
    shape = f"{p['batch']}x{p['in_channels']}x{p['in_size'][1]}->{p['out_channels']}"
    return {
        "shape": f"{shape} k{p['kernel'][1]} s{p['stride'][1]}{' +r' * p['residual']}",
        "floor": max(moved / MEMORY, work / PRODUCTS),
        "rule": next(iter(found)),
        "cudnn": cudnn(p),
        "times": times,
    }


def main() -> None:
    """Times and prints."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--models", nargs="+", default=["resnet50", "resnet18"])
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 64])
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    driver, results = Driver(), []
    for model in args.models:
        for batch in args.batches:
            sums = Counter[str]()
            for params, count in commands(model, batch).items():
                row = measure(driver, KERNELS["conv"].unpack(params))
                best = sorted(row["times"].items(), key=lambda item: item[1])[:3]
                rule = row["times"][row["rule"]]
                sums.update(rule=count * rule, best=count * best[0][1], floor=count * row["floor"])
                sums.update(cudnn=count * row["cudnn"])
                print(
                    f"{count} {row['shape']:28} floor {row['floor']:6.1f} cudnn {row['cudnn']:6.1f}"
                    f" rule {rule:6.1f} {row['rule']:18}"
                    + "  ".join(f"{t:.1f} {n}" for n, t in best),
                    flush=True,
                )
                results.append({"model": model, "count": count, **row})
            print(model, batch, {name: round(value, 1) for name, value in sums.items()}, flush=True)
    if args.json:
        args.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
