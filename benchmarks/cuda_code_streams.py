"""Launch configurations of a token's products with quantized weights, on this machine's GPU.

    PYTHONPATH=python:. python -m benchmarks.cuda_code_streams [int8 int4-g32 …]

Puts other numbers in the place of those measured (`CodeStreams` in `targets/measured.py`), and
prints the median microseconds of the 28 layers of `cuda_layers.py` after 128 tokens, the relative
error, and how long each kernel of a layer takes alone.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Iterator
from dataclasses import replace

import torch

from benchmarks import cuda_layers
from npusim.abi.quantization import Quantization
from npusim.codegen.cuda import decoding
from npusim.targets.measured import CodeStreams

REPEATS, POSITION = 20, 128
_FIT = decoding._FIT
NAMES = ("qkv", "attention", "o", "gate and up", "down")


def candidates() -> Iterator[CodeStreams]:
    """Yields numbers to try."""
    for warps in (8, 12, 16):
        for blocks in (1, 2, 3, 4):
            for shared in (0, 68 << 10, 88 << 10, 105 << 10):
                if 32 * warps * blocks <= 1024:
                    yield CodeStreams(warps, blocks, shared)


def median_us(graph: torch.cuda.CUDAGraph) -> float:
    """Returns the median of replays, the first three not counted."""
    took = []
    for _ in range(REPEATS + 3):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        took.append(1e3 * start.elapsed_time(end))
    return statistics.median(took[3:])


def _left_out(operands: list[int], overlaps: bool) -> None:
    """Stands for a kernel that is not launched."""


def alone(decoder: cuda_layers.Decoder, kernels: list[cuda_layers.Kernel]) -> str:
    """Returns what each kernel takes in launches one after another, and in overlapping ones."""
    shown = []
    for name, kernel in zip(NAMES, kernels, strict=True):
        decoder.kernels = [kernel if k is kernel else _left_out for k in kernels]
        times = (median_us(decoder.graph(o)) / cuda_layers.LAYERS for o in (False, True))
        shown.append(f"{name} {' '.join(f'{t:.2f}' for t in times)}")
    return ", ".join(shown)


def measure(decoder: cuda_layers.Decoder, how: Quantization, fit: CodeStreams) -> None:
    """Prints the times of one candidate."""
    decoding._FIT = replace(_FIT, bytes=fit, nibbles=fit)
    try:
        kernels = [cuda_layers.Kernel(*made) for made in cuda_layers.compiled(how)]
    except AssertionError:
        print(f"{fit}: there is no room for x", flush=True)
        return
    decoder.kernels = list(kernels)
    decoder.launch(overlaps=False)
    graph = decoder.graph(True)
    decoder.go_to(POSITION)
    time, want = median_us(graph), decoder.expected(POSITION)
    graph.replay()
    torch.cuda.synchronize()
    error = float((decoder.result.double() - want).norm() / want.norm())
    print(f"{fit}: {time:.0f} us, error {error:.1e}; {alone(decoder, kernels)}", flush=True)


def main() -> None:
    """Measures all candidates."""
    torch.cuda.synchronize()  # makes the context that modules are loaded to
    for scheme in sys.argv[1:] or ["int8", "int4-g32"]:
        print(scheme, flush=True)
        torch.manual_seed(0)
        how = Quantization.parse(scheme)
        assert how is not None
        decoder = cuda_layers.Decoder([], how)
        for fit in candidates():
            measure(decoder, how, fit)


if __name__ == "__main__":
    main()
