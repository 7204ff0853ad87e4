"""Times float32 products on this machine's GPU, tile by tile, beside PyTorch's, and their errors.

    PYTHONPATH=python:. python -m benchmarks.cuda_float_products [--shapes 1576x3072x768 …]

A product is `linear` with bias and GELU or without, rows of x by columns of W by K. Times are
medians of launches in one CUDA graph, microseconds; each tile of the architecture's file with K in
one slice, and the rule's own choice. PyTorch's is F.linear in float32 and, for scale, with TF32.
Errors are relative to the sum of the products' magnitudes, mean and largest, beside float64: what
multiply-adds in float32 leave is PyTorch's. `mean of signs` says whether sums are cut off: it is
the mean error where all products are positive, 0 for sums that are rounded.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.cuda_cases import GELU, linear
from benchmarks.cuda_driver import Driver, build, microseconds
from npusim.codegen.cuda import matmul_rules
from npusim.codegen.launch_config import LaunchConfig

_COPIES = 4  # of the weights, which take turns
# Transformers' layers at 8 images, 8 texts of 128 tokens, and one of each; convolutions' shapes.
_SHAPES = (
    *("1576x3072x768", "1576x768x3072", "1576x2304x768", "1576x768x768"),
    *("1024x1536x384", "1024x384x1536", "1024x1152x384", "1024x384x384", "1500x1536x384"),
    *("128x3072x768", "128x768x3072", "64x1000x2048", "16x4096x1024", "32x1024x4096"),
    *("25088x64x576", "6272x128x1152", "1568x256x2304", "392x512x4608", "8192x64x1728"),
    *("4096x4096x4096",),
)


def _configs(params: dict[str, int]) -> dict[str, LaunchConfig]:
    tiles, found = matmul_rules.FLOAT_TILES, {"rule": matmul_rules.linear(params)}
    for tile in tiles:
        for split in (1, 2, 4):
            matmul_rules.FLOAT_TILES = (tile,)
            try:
                config = matmul_rules.tiled(
                    params["m"], params["n"], params["k"], parts=1, tensor_cores=False,
                    arguments=matmul_rules.linear_operands(params), splits=(split,),
                )  # fmt: skip
            finally:
                matmul_rules.FLOAT_TILES = tiles
            if config.defines["SPLIT"] == split:
                found[f"{tile.rows}x{tile.columns}/{split}"] = config
    return found


def _errors(got: Tensor, x: Tensor, w: Tensor) -> tuple[float, float, float]:
    """Returns the mean, largest and signed mean error, relative to the sum of magnitudes."""
    exact = x.double() @ w.double().T
    error = (got.double() - exact) / (x.double().abs() @ w.double().abs().T)
    return float(error.abs().mean()), float(error.abs().max()), float(error.mean())


def measure(driver: Driver, m: int, n: int, k: int) -> None:
    """Prints the lines of a shape."""
    case = linear(m, n, k, x=0)
    configs = _configs(case.params)
    kernels = build(driver, [("linear", case.params, config) for config in configs.values()])
    x, w, y = (*case.inputs, *case.outputs)
    sets = [(x, w.clone(), y) for _ in range(_COPIES)]
    times = {
        name: microseconds([partial(kernel, given) for given in sets], 8)
        for name, kernel in zip(configs, kernels, strict=True)
    }
    peers = []
    for tf32 in (False, True):
        torch.backends.cuda.matmul.allow_tf32 = tf32
        peers.append(microseconds([partial(F.linear, x, given[1]) for given in sets], 8))
    torch.backends.cuda.matmul.allow_tf32 = False
    flops = 2 * m * n * k
    ours = times.pop("rule")
    chosen = configs["rule"].defines
    rule = f"{chosen.get('TILE_ROWS')}x{chosen.get('TILE_COLUMNS')}/{chosen['SPLIT']}"
    print(
        f"{m}x{n}x{k}: {rule} {ours:.1f} us ({flops / ours / 1e6:.0f} TFLOP/s), PyTorch"
        f" {peers[0]:.1f}, TF32 {peers[1]:.1f};",
        "  ".join(f"{t:.1f} {name}" for t, name in sorted((t, n) for n, t in times.items())[:7]),
        flush=True,
    )
    kernels[0]((x, w, y))
    positive = (x.abs(), w.abs())
    above = torch.empty_like(y)
    kernels[0]((*positive, above))
    torch.cuda.synchronize()
    lines = {
        "npusim": (_errors(y, x, w), _errors(above, *positive)),
        "PyTorch": (_errors(F.linear(x, w), x, w), _errors(F.linear(*positive), *positive)),
    }
    for who, ((mean, most, _), (_, _, signed)) in lines.items():
        print(f"    {who:8} error {mean:.1e}, largest {most:.1e}; mean of signs {signed:+.1e}")


def with_gelu(driver: Driver, m: int, n: int, k: int) -> None:
    """Prints what bias and GELU cost."""
    case = linear(m, n, k, x=0, bias=1, act=GELU)
    config = replace(matmul_rules.linear(case.params))
    (kernel,) = build(driver, [("linear", case.params, config)])
    x, w, b, y = (*case.inputs, *case.outputs)
    ours = microseconds([partial(kernel, (x, w, b, y))] * _COPIES, 8)
    theirs = microseconds([lambda: F.gelu(F.linear(x, w, b))] * _COPIES, 8)
    print(f"{m}x{n}x{k} with bias and GELU: {ours:.1f} us, PyTorch {theirs:.1f}", flush=True)


def main() -> None:
    """Times and prints."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--shapes", nargs="+", default=_SHAPES)
    torch.manual_seed(0)
    driver = Driver()
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
    for shape in parser.parse_args().shapes:
        m, n, k = map(int, shape.split("x"))
        measure(driver, m, n, k)
    for m, n, k in ((1576, 3072, 768), (1024, 1536, 384)):
        with_gelu(driver, m, n, k)


if __name__ == "__main__":
    main()
