"""Checks and times products of many rows on this machine's GPU, in every shape of bulk tiles.

    PYTHONPATH=python:. python -m benchmarks.cuda_prefill [--rows 128 1024] [--check] [--all]

Cases of `linear` are computed by tiles that Hopper copies in bulk
(kernels/cuda/matmul/tma_matmul.h) and compared with float64, twice, whose bits must agree. Then the
products of Qwen2.5-1.5B's layers are timed for each count of rows, in a graph whose weights rotate
past the cache, beside the rule's config and PyTorch's product. `--all` prints all times, not the
best few.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator

import torch

from benchmarks.cuda_cases import GELU, SILU, Case, attention, linear
from benchmarks.cuda_driver import Driver, build, microseconds
from benchmarks.cuda_kernels import check, check_twice, rotated, torch_linear
from npusim.codegen.cuda import attention_rules, matmul_rules
from npusim.codegen.cuda.tma_matmul import TILES, ClusterTile, fits, tma_matmul

_LAYER = {
    "qkv": (2048, 1536, {"rows": (1536, 256, 256), "bias": 1}),
    "o": (1536, 1536, {"residual": 1}),
    "gate_up": (8960, 1536, {"gated": 1, "act": SILU, "rows": (8960, 8960)}),
    "down": (1536, 8960, {"residual": 1}),
}


def cases() -> Iterator[tuple[Case, ClusterTile]]:
    """Yields what must hold: all kinds of clusters, ends of rows, columns and K, and bad places."""
    tiles = [
        ClusterTile(128, 64, 1, 1, 4, 4),
        ClusterTile(128, 96, 1, 1, 8, 3),
        ClusterTile(64, 96, 1, 1, 1, 4),
        ClusterTile(128, 160, 1, 2, 1, 3),
        ClusterTile(128, 128, 2, 2, 1, 3, 2),
        ClusterTile(128, 128, 2, 1, 2, 3),
        ClusterTile(256, 128, 1, 4, 1, 3),
        ClusterTile(128, 256, 4, 1, 1, 3),
        ClusterTile(64, 64, 2, 2, 2, 4),
        ClusterTile(128, 96, 1, 1, 8, 3, 2, False),
        ClusterTile(128, 104, 1, 1, 8, 4),
        ClusterTile(128, 272, 1, 1, 2, 3),
        ClusterTile(128, 256, 1, 1, 1, 4, 1, True, True),
        ClusterTile(64, 32, 1, 1, 1, 6, 1, True, True),
        ClusterTile(128, 160, 1, 2, 1, 3, 2, False),
        ClusterTile(128, 128, 2, 2, 1, 3, 2, False),
    ]
    for tile in tiles:
        for m in (40, 300):
            yield linear(m, 2048, 1536, rows=(1536, 256, 256), bias=1), tile
            yield linear(m, 1000, 520, gated=1, act=SILU, bias=1), tile
            yield linear(m, 1000, 1000, gated=1, act=SILU, rows=(1000, 1000)), tile
            yield linear(m, 333, 1096, residual=1, x=1), tile
        yield linear(100, 320, 1024, shift=1, pad=8), tile
        yield linear(100, 320, 1028, pad=4, x=1, residual=2, act=GELU, bias=1), tile


def check_all(driver: Driver) -> int:
    """Checks every case; returns how many are wrong."""
    torch.manual_seed(0)
    found = [(c, t) for c, t in cases() if fits(c.params, t)]
    kernels = build(driver, [("linear", c.params, tma_matmul(c.params, t)) for c, t in found])
    return check_twice((c, t.name, kernel) for (c, t), kernel in zip(found, kernels, strict=True))


def time_all(driver: Driver, rows: int, everything: bool) -> None:
    """Prints the times of a layer's products for some rows of x."""
    for name, (n, k, options) in _LAYER.items():
        case = linear(rows, n, k, **options)  # type: ignore[arg-type]
        weights = slice(1, 1 + case.params["segments"])
        sets = rotated(case, weights)[:24]
        tiles = [t for t in TILES if fits(case.params, t)]
        configs = [matmul_rules.linear(case.params)]
        configs += [tma_matmul(case.params, t) for t in tiles]
        kernels = build(driver, [("linear", case.params, g) for g in configs])
        times = []
        for kernel in kernels:
            calls = [lambda o=o, f=kernel: f(o) for o in sets]  # type: ignore[misc]
            times.append(microseconds(calls, 8))
        theirs = microseconds([torch_linear(case, o) for o in sets], 8)
        work = 2 * rows * sum(case.params["rows"]) * k
        print(f"{name} {rows}: rule {times[0]:.2f} torch {theirs:.2f}", flush=True)
        best = sorted(zip(times[1:], tiles, strict=True), key=lambda pair: pair[0])
        for took, tile in best[: None if everything else 6]:
            print(f"    {took:8.2f} us {work / took / 1e6:6.1f} TFLOP/s  {tile.name}", flush=True)


def time_attention(driver: Driver, rows: int, position: int) -> None:
    """Prints the times of attention after a position, for all ways to share rows and keys."""
    case = attention(12, 2, rows, 4608, 128, position=position)
    made = [attention_rules.attention(case.params)]
    names = ["rule"]
    for warps in (4, 8):
        for row_warps in (1, 2, 4, 8):
            for split in (1, 4, 8):
                if warps < row_warps or warps > 4 * row_warps or (rows > 512 and split > 1):
                    continue
                made.append(
                    attention_rules.attention_tiles(case.params, row_warps, split, split > 1, warps)
                )
                names.append(f"{16 * row_warps} rows {warps} warps {split} spans")
    sets = rotated(case, slice(1, 3))[:8]
    found = []
    for name, kernel in zip(
        names, build(driver, [("attention", case.params, g) for g in made]), strict=True
    ):
        why = check(case, kernel) or ""
        calls = [lambda o=o, f=kernel: f(o) for o in sets]  # type: ignore[misc]
        found.append((microseconds(calls, 8), name + why))
    shown = ", ".join(f"{took:.2f} {name}" for took, name in sorted(found)[:7])
    print(f"attention {rows} after {position}: rule {found[0][0]:.2f}; {shown}", flush=True)


def main() -> int:
    """Checks, times, prints."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rows", type=int, nargs="*", default=[128, 1024])
    parser.add_argument("--check", action="store_true", help="do not time anything")
    parser.add_argument("--all", action="store_true")
    args = parser.parse_args()
    driver = Driver()
    wrong = check_all(driver)
    for rows in [] if args.check else args.rows:
        time_all(driver, rows, args.all)
        for position in (0, 3072):
            time_attention(driver, rows, position)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
