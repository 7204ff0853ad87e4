"""Times 1 x 1 convolutions as products of rows on this machine's GPU: by the kernels of `linear`.

    PYTHONPATH=python:. python -m benchmarks.cuda_pointwise_convolutions

A dense 1 x 1 convolution, channels last, is a `linear` over as many rows as there are positions,
its packed weights included. The shapes are ResNet-50's at batch 64, with bias, ReLU and, where they
have one, residual, by the rule's choice for `linear` and by tiles of `codegen/cuda/tma_matmul.py`;
what the convolution's own tiles take stands in `benchmarks/results/cuda_convolutions_h200.json`.
"""

from __future__ import annotations

from functools import partial

import torch

from benchmarks.cuda_cases import RELU, linear
from benchmarks.cuda_driver import Driver, build, microseconds
from npusim.codegen.cuda import matmul_rules
from npusim.codegen.cuda.tma_matmul import ClusterTile, fits, tma_matmul

_HALF = 1  # the dtype's code
_COPIES = 6  # of the weights, which take turns
# Positions of an image, channels out and in, whether there is a residual.
SHAPES = (
    (56 * 56, 64, 256, 0),
    (56 * 56, 256, 64, 1),
    (56 * 56, 256, 64, 0),
    (56 * 56, 64, 64, 0),
    (28 * 28, 128, 512, 0),
    (28 * 28, 512, 128, 1),
    (14 * 14, 256, 1024, 0),
    (14 * 14, 1024, 256, 1),
    (7 * 7, 512, 2048, 0),
    (7 * 7, 2048, 512, 1),
)
TILES = (
    ClusterTile(128, 128, 1, 1, 1, 3, 2, False),
    ClusterTile(128, 128, 2, 1, 1, 3, 2, False),
    ClusterTile(128, 128, 1, 1, 1, 6, 1, True, True),
    ClusterTile(128, 64, 1, 1, 1, 4, 2, False),
    ClusterTile(128, 256, 1, 1, 1, 4, 1, True, True),
    ClusterTile(64, 128, 1, 1, 1, 4, 2, False),
    ClusterTile(128, 64, 1, 1, 1, 8, 1, True, True),
    ClusterTile(64, 64, 1, 1, 1, 6, 2, False),
)


def measure(
    driver: Driver, positions: int, n: int, k: int, residual: int
) -> list[tuple[float, str]]:
    """Returns microseconds and what took them, the fastest first."""
    case = linear(64 * positions, n, k, x=_HALF, bias=1, residual=residual, act=RELU)
    x, w, *others = (*case.inputs, *case.outputs)
    sets = [(x, w.clone(), *others) for _ in range(_COPIES)]
    tiles = [t for t in TILES if fits(case.params, t) and t.columns <= max(64, n)]
    configs = [matmul_rules.linear(case.params)] + [tma_matmul(case.params, t) for t in tiles]
    kernels = build(driver, [("linear", case.params, config) for config in configs])
    names = ["rule", *(tile.name for tile in tiles)]
    times = (microseconds([partial(kernel, o) for o in sets], 8) for kernel in kernels)
    return sorted(zip(times, names, strict=True))


def main() -> None:
    """Times and prints."""
    torch.manual_seed(0)
    driver = Driver()
    for positions, n, k, residual in SHAPES:
        found = measure(driver, positions, n, k, residual)
        shown = "  ".join(f"{took:.1f} {name}" for took, name in found)
        print(f"{64 * positions}x{n}x{k}{' +r' * residual}: {shown}", flush=True)


if __name__ == "__main__":
    main()
