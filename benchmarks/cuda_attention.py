"""Checks and times attention of many rows on this machine's GPU, in every tile that TMA fills.

    PYTHONPATH=python:. python -m benchmarks.cuda_attention [--check | --time]

Cases of `attention` are computed by the best tiles of kernels/cuda/attention/tma_attention.h
and compared with float64, twice, whose bits must agree; rows of a cache that are not in use hold
NaN. Then layers of models are timed, in a graph of calls: the path of other devices ("plain"), each
tile, and PyTorch's scaled_dot_product_attention of the same tensors. TFLOP/s count the scores that
are visible.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable, Iterator

import torch
from torch.nn import functional as F

from benchmarks.cuda_cases import Case, Params, attention
from benchmarks.cuda_driver import Driver, build, microseconds
from benchmarks.cuda_kernels import check_twice
from npusim.codegen.cuda import attention_rules, tma_attention

_CHECKED = 3  # tiles of a case, the best by estimate
_LAYERS: dict[str, Callable[[], Case]] = {
    "ViT-B/16, batch 64": lambda: attention(12, 12, 197, 197, 64, batch=64, causal=0, dtype=1),
    "ViT-B/16, batch 1": lambda: attention(12, 12, 197, 197, 64, causal=0, dtype=1),
    "Whisper-base, batch 8": lambda: attention(8, 8, 1500, 1500, 64, batch=8, causal=0, dtype=1),
    "Whisper-base, batch 1": lambda: attention(8, 8, 1500, 1500, 64, causal=0, dtype=1),
    "Qwen2.5-1.5B, 512": lambda: attention(12, 2, 512, 4096, 128, position=0),
    "Qwen2.5-1.5B, 1,024": lambda: attention(12, 2, 1024, 4096, 128, position=0),
    "Qwen2.5-1.5B, 1,024 after 3,000": lambda: attention(12, 2, 1024, 4096, 128, position=3000),
    "Qwen2.5-1.5B, 4,000": lambda: attention(12, 2, 4000, 4096, 128, position=0),
    "Llama-8B, 4,000": lambda: attention(32, 8, 4000, 4096, 128, position=0),
    "Gemma-2-2B, 1,024": lambda: attention(8, 4, 1024, 4096, 256, position=0),
    "16 heads of 128, 4,096, not causal": lambda: attention(16, 16, 4096, 4096, 128, causal=0),
}


def cases() -> Iterator[Case]:
    """Yields what must hold: head sizes, masks, windows, caches, ends of rows and keys."""
    for dtype in (1, 2):
        yield attention(8, 8, 256, 256, 64, dtype=dtype, causal=0)
        yield attention(8, 8, 197, 197, 64, dtype=dtype, causal=0, batch=2)
        yield attention(4, 4, 1500, 1500, 64, dtype=dtype, window=200)
        yield attention(12, 2, 700, 1024, 128, dtype=dtype, position=77)
        yield attention(12, 2, 128, 4096, 128, dtype=dtype, position=3000)
        yield attention(8, 4, 300, 600, 256, dtype=dtype, position=100, window=100, softcap=30.0)
        yield attention(8, 8, 333, 500, 80, dtype=dtype, causal=0)
        yield attention(8, 8, 333, 500, 96, dtype=dtype, causal=0, mask=9)
        yield attention(8, 4, 150, 277, 128, dtype=dtype, causal=0, mask=0, softcap=20.0)
        yield attention(4, 2, 40, 60, 64, dtype=dtype, offset=-20)
        yield attention(4, 2, 200, 600, 192, dtype=dtype, v_dim=128, causal=0)
        yield attention(4, 4, 300, 300, 48, dtype=dtype, v_dim=80)
        yield attention(8, 4, 300, 600, 128, dtype=dtype, position=100, shift=1)
        yield attention(8, 4, 300, 600, 256, dtype=dtype, position=301)


def check_all(driver: Driver) -> int:
    """Checks every case by every tile; returns how many are wrong."""
    torch.manual_seed(0)
    found = [
        (case, tile) for case in cases() for tile in tma_attention.tiles(case.params)[:_CHECKED]
    ]
    for case, _ in found:
        if case.params["has_position"]:
            used = int(case.inputs[-1]) + case.params["q_len"]
            case.inputs[1][:, :, used:] = torch.nan
            case.inputs[2][:, :, used:] = torch.nan
    configs = [("attention", c.params, tma_attention.tma_attention(c.params, t)) for c, t in found]
    kernels = build(driver, configs)
    return check_twice((c, t.name, kernel) for (c, t), kernel in zip(found, kernels, strict=True))


def operations(p: Params, position: int) -> int:
    """Returns the operations of the visible scores."""
    pairs = p["q_len"] * p["kv_len"]
    if p["causal"]:
        pairs = sum(min(position + i + 1, p["kv_len"]) for i in range(p["q_len"]))
    return 2 * int(pairs) * p["batch"] * p["heads"] * (p["head_dim"] + p["v_dim"])


def time_layer(driver: Driver, name: str, case: Case) -> None:
    """Prints the times of a layer: medians of three series, and the least and most of these."""
    p = case.params
    position = int(case.inputs[-1]) if p["has_position"] else 0
    used = position + p["q_len"] if p["has_position"] else p["kv_len"]
    tiles = tma_attention.tiles(p)[:4]
    made = [attention_rules.attention(p)] + [tma_attention.tma_attention(p, t) for t in tiles]
    kernels = build(driver, [("attention", p, config) for config in made])
    q, k, v = case.inputs[0], *(t[:, :, :used] for t in case.inputs[1:3])
    causal = bool(p["causal"]) and position == 0
    operands, work = (*case.inputs, *case.outputs), operations(p, position)
    calls: list[tuple[str, Callable[[], object]]] = [
        (f"{i}", lambda f=f: f(operands))  # type: ignore[misc]
        for i, f in zip(["plain", *(t.name for t in tiles)], kernels, strict=True)
    ]
    calls.append(
        (
            "PyTorch",
            lambda: F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=True),
        )
    )
    for label, call in calls:
        times = [microseconds([call] * 6, 8) for _ in range(3)]  # type: ignore[list-item]
        took = statistics.median(times)
        note = f"{work / took / 1e6:6.0f} TFLOP/s, {min(times):.2f} - {max(times):.2f}"
        print(f"{name:36} {label:22} {took:8.2f} us {note}", flush=True)


def main() -> int:
    """Checks, times, prints."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="do not time anything")
    parser.add_argument("--time", action="store_true", help="do not check anything")
    args = parser.parse_args()
    driver = Driver()
    wrong = 0 if args.time else check_all(driver)
    for name, make in () if args.check else _LAYERS.items():
        time_layer(driver, name, make())
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
