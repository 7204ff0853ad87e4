"""What symbolic sizes cost: a program for all sizes beside programs for each, on one thread.

    PYTHONPATH=python:. python -m benchmarks.dynamic_shapes

An MLP 16-16-16 in float32 shows the cost of a call: at sizes kept ready, in turn over eight
of them, and over 32, so that each call meets sizes that are no longer kept. ResNet-18 (8 images of
224 x 224) and an encoder (2 x 100 tokens, four layers of 256) show that kernels do the same work.
The programs run in turn, and PyTorch beside them. Prints medians and the 10th to 90th percentile.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence

import numpy as np
import torch
from tests.models.resnet import BasicBlock, ResNet
from torch import nn
from torch.export import Dim

import npusim

Call = Callable[[], object]


def _times(calls: dict[str, Call], rounds: int, each: int) -> dict[str, np.ndarray]:
    """Returns seconds a call: `rounds` numbers for each, of `each` calls in a row, in turn."""
    found: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        for _ in range(each):
            call()
    for _ in range(rounds):
        for name, call in calls.items():
            start = time.perf_counter()
            for _ in range(each):
                call()
            found[name].append((time.perf_counter() - start) / each)
    return {name: np.array(times) for name, times in found.items()}


def _print(title: str, times: dict[str, np.ndarray], unit: float, name: str) -> None:
    print(title)
    for label, values in times.items():
        low, middle, high = np.percentile(values, [10, 50, 90]) / unit
        print(f"  {label:44} {middle:9.2f} {name} ({low:.2f} - {high:.2f})")


def _session(
    model: nn.Module, example: Sequence[torch.Tensor], shapes: object = None
) -> npusim.Session:
    graph = npusim.extract_ir(model, tuple(example), dynamic_shapes=shapes)
    weights = model.state_dict()
    return npusim.load(npusim.compile(graph), weights=weights, device="cpu", threads=1)


def mlp() -> None:
    """Prints the cost of a call of next to nothing."""
    model = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 16)).eval()
    static = _session(model, [torch.zeros(4, 16)])
    dynamic = _session(model, [torch.zeros(4, 16)], ({0: Dim("batch", max=64)},))
    arrays = [np.zeros((n, 16), np.float32) for n in range(1, 33)]
    few, many = itertools.cycle(arrays[:8]), itertools.cycle(arrays)
    four, tensor = arrays[3], torch.zeros(4, 16)
    with torch.no_grad():
        times = _times(
            {
                "fixed sizes": lambda: static(four),
                "symbolic, the same sizes": lambda: dynamic(four),
                "symbolic, eight sizes in turn": lambda: dynamic(next(few)),
                "symbolic, 32 sizes in turn (none kept)": lambda: dynamic(next(many)),
                "PyTorch eager": lambda: model(tensor),
            },
            rounds=40,
            each=320,
        )
    _print("MLP 16-16-16, a call", times, 1e-6, "us")


def _compare(
    title: str, model: nn.Module, arguments: Sequence[torch.Tensor], shapes: object, rounds: int
) -> None:
    static, dynamic = _session(model, arguments), _session(model, arguments, shapes)
    with torch.no_grad():
        times = _times(
            {
                "fixed sizes": lambda: static(*arguments),
                "symbolic": lambda: dynamic(*arguments),
                "PyTorch eager": lambda: model(*arguments),
            },
            rounds=rounds,
            each=1,
        )
    _print(title, times, 1e-3, "ms")


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    batch, seq = Dim("batch", max=8), Dim("seq", max=128)
    mlp()
    layer = nn.TransformerEncoderLayer(256, 4, 1024, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False).eval()
    arguments = [torch.randn(2, 100, 256)]
    _compare("encoder, 2 x 100 tokens", encoder, arguments, ({0: batch, 1: seq},), 15)
    resnet = ResNet(BasicBlock, (2, 2, 2, 2)).eval()
    arguments = [torch.randn(8, 3, 224, 224)]
    _compare("ResNet-18, 8 images", resnet, arguments, ({0: batch},), 7)


if __name__ == "__main__":
    main()
