"""What symbolic sizes cost: a program for all sizes beside programs for each.

    PYTHONPATH=python:. python -m benchmarks.dynamic_shapes [--device cuda]

An MLP 16-16-16 in float32 shows the cost of a call: at sizes kept ready, in turn over eight
of them, and over 32, so that each call meets sizes that are no longer kept. ResNet-18 (8 images of
224 x 224) and an encoder (2 x 100 tokens, four layers of 256) show that kernels do the same work.
On the CPU everything runs on one thread; on CUDA in float16, but for the MLP, over tensors that lie
there, and what the first call at new sizes takes is shown too: with an empty cache of compiled
kernels, with a full one in a new process's place (another device), and with code that this device
has made before. The programs run in turn, and PyTorch beside them. Prints medians and the 10th to
90th percentile.
"""

from __future__ import annotations

import argparse
import itertools
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from tests.models.resnet import BasicBlock, ResNet
from torch import Tensor, nn
from torch.export import Dim

import npusim

Call = Callable[[], object]
_WARM = 8  # calls


@dataclass(frozen=True)
class Place:
    """Where the programs run, and in which dtype models do."""

    name: str

    @property
    def dtype(self) -> torch.dtype:
        """Of models; the MLP stays in float32."""
        return torch.float16 if self.name == "cuda" else torch.float32

    def wait(self) -> None:
        """Returns when the device has done what it was given."""
        if self.name == "cuda":
            torch.cuda.synchronize()

    def open(self) -> npusim.Device:
        """Returns a device of its own."""
        return npusim.Device(self.name, threads=None if self.name == "cuda" else 1)

    def program(
        self, model: nn.Module, example: Sequence[Tensor], shapes: object = None
    ) -> npusim.CompiledProgram:
        """Returns the program of a model on the host."""
        graph = npusim.extract_ir(model, tuple(example), dynamic_shapes=shapes)
        return npusim.compile(graph, self.name)

    def session(
        self, model: nn.Module, example: Sequence[Tensor], shapes: object = None
    ) -> npusim.Session:
        """Returns a session of a model on the host."""
        program = self.program(model, example, shapes)
        return npusim.load(program, weights=model.state_dict(), device=self.open())


def _times(place: Place, calls: dict[str, Call], rounds: int, each: int) -> dict[str, np.ndarray]:
    """Returns seconds a call: `rounds` numbers for each, of `each` calls in a row, in turn.

    Each begins with calls that are not timed: the sizes of the one before are kept no more.
    """
    found: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        for _ in range(each):
            call()
    for _ in range(rounds):
        for name, call in calls.items():
            for _ in range(min(each, _WARM)):
                call()
            place.wait()
            start = time.perf_counter()
            for _ in range(each):
                call()
            place.wait()
            found[name].append((time.perf_counter() - start) / each)
    return {name: np.array(times) for name, times in found.items()}


def _print(title: str, times: dict[str, np.ndarray], unit: float, name: str) -> None:
    print(title)
    for label, values in times.items():
        low, middle, high = np.percentile(values, [10, 50, 90]) / unit
        print(f"  {label:44} {middle:9.2f} {name} ({low:.2f} - {high:.2f})")


def mlp(place: Place) -> None:
    """Prints the cost of a call of next to nothing."""
    model = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 16)).eval()
    static = place.session(model, [torch.zeros(4, 16)])
    dynamic = place.session(model, [torch.zeros(4, 16)], ({0: Dim("batch", max=64)},))
    tensor = torch.zeros(4, 16).to(place.name)
    if place.name == "cuda":
        arrays: list[object] = [torch.zeros(n, 16).cuda() for n in range(1, 33)]
    else:
        arrays = [np.zeros((n, 16), np.float32) for n in range(1, 33)]
    few, many = itertools.cycle(arrays[:8]), itertools.cycle(arrays)
    four, peer = arrays[3], model.to(place.name)
    with torch.no_grad():
        times = _times(
            place,
            {
                "fixed sizes": lambda: static(four),
                "symbolic, the same sizes": lambda: dynamic(four),
                "symbolic, eight sizes in turn": lambda: dynamic(next(few)),
                "symbolic, 32 sizes in turn (none kept)": lambda: dynamic(next(many)),
                "PyTorch eager": lambda: peer(tensor),
            },
            rounds=40 if place.name == "cpu" else 20,
            each=320 if place.name == "cpu" else 64,
        )
    _print("MLP 16-16-16, a call", times, 1e-6, "us")


def _compare(
    place: Place,
    title: str,
    model: nn.Module,
    arguments: Sequence[Tensor],
    shapes: object,
    rounds: int,
) -> None:
    model = model.to(place.dtype)
    arguments = [x.to(place.dtype) for x in arguments]
    static, dynamic = (place.session(model, arguments, s) for s in (None, shapes))
    given, peer = [x.to(place.name) for x in arguments], model.to(place.name)
    with torch.no_grad():
        times = _times(
            place,
            {
                "fixed sizes": lambda: static(*given),
                "symbolic": lambda: dynamic(*given),
                "PyTorch eager": lambda: peer(*given),
            },
            rounds=rounds,
            each=1,
        )
    _print(title, times, 1e-3, "ms")


def _encoder() -> nn.Module:
    layer = nn.TransformerEncoderLayer(256, 4, 1024, batch_first=True)
    return nn.TransformerEncoder(layer, 4, enable_nested_tensor=False).eval()


def first_calls(place: Place) -> None:
    """Prints what the first call at new sizes takes on CUDA."""
    model, dims = _encoder().to(place.dtype), {0: Dim("batch", max=8), 1: Dim("seq", max=128)}
    program = place.program(model, [torch.randn(2, 100, 256).to(place.dtype)], (dims,))
    calls = [(b, s) for b, s in ((1, 7), (2, 100), (3, 17), (4, 64), (5, 128), (6, 33), (7, 90))]
    inputs = [torch.randn(b, s, 256).to(place.dtype).cuda() for b, s in calls]

    def timed(session: npusim.Session) -> np.ndarray:
        seconds = []
        for x in inputs:
            place.wait()
            start = time.perf_counter()
            session(x)
            place.wait()
            seconds.append(time.perf_counter() - start)
        return np.array(seconds)

    with tempfile.TemporaryDirectory() as folder:
        os.environ["NPUSIM_CACHE_DIR"] = folder
        weights = model.state_dict()
        session = npusim.load(program, weights, device=place.open())
        times = {"nothing compiled yet": timed(session)}
        session = npusim.load(program, weights, device=place.open())
        times["compiled kernels on disk"] = timed(session)
        again = npusim.load(program, session.weights, device=session.device)
        times["code that the device made before"] = timed(again)
        times["sizes kept ready"] = timed(again)
    _print("encoder, the first call at new sizes", times, 1e-3, "ms")


def main() -> None:
    parser = argparse.ArgumentParser(description="What symbolic sizes cost.")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    place = Place(parser.parse_args().device)
    torch.manual_seed(0)
    torch.set_num_threads(1)
    batch, seq = Dim("batch", max=8), Dim("seq", max=128)
    rounds = 100 if place.name == "cuda" else 15
    mlp(place)
    arguments = [torch.randn(2, 100, 256)]
    _compare(place, "encoder, 2 x 100 tokens", _encoder(), arguments, ({0: batch, 1: seq},), rounds)
    resnet = ResNet(BasicBlock, (2, 2, 2, 2)).eval()
    arguments = [torch.randn(8, 3, 224, 224)]
    _compare(place, "ResNet-18, 8 images", resnet, arguments, ({0: batch},), rounds // 2)
    if place.name == "cuda":
        first_calls(place)


if __name__ == "__main__":
    main()
