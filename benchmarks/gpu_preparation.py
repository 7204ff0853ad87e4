"""Models made ready for `gpu_models` by other processes: extracted, compiled and on disk.

    PYTHONPATH=python:. python -m benchmarks.gpu_preparation FOLDER [--models resnet50 vit_b_16:1,8]
        [--batches 1 64] [--dtype float16] [--workers 8]

Compiling kernels takes many times as long as timing them, and needs no GPU: `gpu_models` lets other
processes do it while it measures, and takes what it finds prepared in a folder.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

import npusim
from benchmarks.architectures import build
from npusim.module_tensors import module_tensors

_READY = "ready"  # an empty file, the last one

Network = tuple[nn.Module, tuple[Tensor, ...]]


@dataclass(frozen=True)
class Prepared:
    """A model for one batch, in a folder.

    Attributes:
        name, batch, dtype: what to build it from.
        folder: holds the program and its weights.
    """

    name: str
    batch: int
    dtype: str
    folder: Path

    @property
    def title(self) -> str:
        """What to call it."""
        return f"{self.name} batch {self.batch}"

    @property
    def program(self) -> Path:
        """The file of the compiled program."""
        return self.folder / "model.npubin"

    @property
    def weights(self) -> Path:
        """The checkpoint."""
        return self.folder / "model.safetensors"

    def write(self) -> None:
        """Compiles the model, and writes all files."""
        model, inputs = self.network()
        self.folder.mkdir(parents=True, exist_ok=True)
        npusim.compile(npusim.extract_ir(model, inputs), target="cuda").save(self.program)
        tensors = {k: v.detach().clone() for k, v, _ in module_tensors(model)}
        save_file(tensors, self.weights)
        (self.folder / _READY).touch()

    @property
    def ready(self) -> bool:
        """Whether all files are there."""
        return (self.folder / _READY).exists()

    def network(self) -> Network:
        """Returns the model and its inputs, on the CPU; the same numbers each time."""
        model, inputs = build(self.name, self.batch)
        dtype = getattr(torch, self.dtype)
        given = tuple(x.to(dtype) if x.is_floating_point() else x for x in inputs)
        return model.to(dtype), given

    def remove(self) -> None:
        """Gives the room back."""
        for path in self.folder.iterdir():
            path.unlink()


def named(models: Sequence[str], batches: Sequence[int]) -> list[tuple[str, int]]:
    """Returns each model with each batch, of names such as "resnet50", or "resnet50:1,8"."""
    found = []
    for model in models:
        name, _, own = model.partition(":")
        sizes = [int(b) for b in own.split(",")] if own else [1] if name == "mlp" else batches
        found += [(name, batch) for batch in sizes]
    return found


def prepared(
    cases: Sequence[tuple[str, int]], dtype: str, folder: Path, workers: int
) -> Iterator[tuple[str, Prepared | str]]:
    """Yields the title of each case and the case, as soon as it is ready, or why it will not be.

    Args:
        cases: names of models and batches.
        dtype: of weights and of inputs of floats.
        folder: for files; what is ready there is not made again.
        workers: processes.
    """
    spawn = multiprocessing.get_context("spawn")  # a fork would share the parent's device
    waiting = {}
    with ProcessPoolExecutor(workers, spawn) as pool:
        done = []
        for name, batch in cases:
            place = folder / f"{name.replace('/', '_')}_{batch}_{dtype}"
            case = Prepared(name, batch, dtype, place)
            if case.ready:
                done.append(case)
            else:
                waiting[pool.submit(_prepare, case)] = case
        yield from ((case.title, case) for case in done)
        for future in as_completed(waiting):
            case, error = waiting[future], future.exception()
            yield case.title, case if error is None else f"{type(error).__name__}: {error!s:.300}"


def _prepare(case: Prepared) -> None:
    """Runs in a process of its own."""
    os.nice(5)
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    case.write()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds what says which models there are to prepare."""
    parser.add_argument("--models", nargs="+", default=["resnet50", "resnet18", "mlp"])
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 64])
    parser.add_argument("--dtype", default="float16", choices=["float16", "bfloat16", "float32"])
    parser.add_argument("--workers", type=int, default=4, help="processes that prepare models")


def main() -> None:
    """Parses the command line and prepares."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    add_arguments(parser)
    args = parser.parse_args()
    start = time.perf_counter()
    cases = named(args.models, args.batches)
    for title, case in prepared(cases, args.dtype, args.folder, args.workers):
        outcome = f"failed: {case}" if isinstance(case, str) else "ready"
        print(f"{time.perf_counter() - start:7.1f} s {title}: {outcome}", flush=True)


if __name__ == "__main__":
    main()
