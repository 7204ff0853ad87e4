"""Entries of the zoo at sizes that calls choose: one program, compared with PyTorch at several."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim

import npusim
from npusim.frontends.torch_export import extract_ir
from npusim.ir.graph import Graph
from npusim.verify import all_weights
from tests.zoo.entry import Entry
from tests.zoo.measure import TOLERANCE, expected, first_line, largest_error

NAMES = (
    *("bert", "bert-classifier", "roberta", "xlm-roberta", "distilbert", "albert", "electra"),
    *("deberta", "deberta-v2", "mpnet", "modernbert", "convbert", "mobilebert", "squeezebert"),
    *("rembert", "ibert", "esm", "eurobert"),
    *("gpt2", "gpt-neo", "gpt-neox", "gptj", "bloom", "opt", "llama", "mistral", "qwen2", "qwen3"),
    *("gemma", "gemma2", "gemma3", "phi3", "falcon", "falcon-alibi", "olmo2", "cohere", "granite"),
    *("smollm3", "starcoder2", "glm", "t5", "mt5", "bart", "marian", "pegasus", "m2m100"),
)
BOUNDS = {"batch": 4, "seq": 24, "target": 12}
EXAMPLE = {"batch": 2, "seq": 16, "target": 8}
SIZES = ({"batch": 3, "seq": 9, "target": 5}, BOUNDS, dict.fromkeys(BOUNDS, 1))


@dataclass(frozen=True)
class Row:
    """What became of an entry whose sizes are open.

    Attributes:
        name, family: the entry's.
        sizes: the names of the open sizes; fewer than the inputs have when the model fixes some.
        error: the largest relative difference from PyTorch over all outputs and sizes.
        skipped: sizes at which PyTorch refuses the model itself.
        problem: why there is no error, or why a size is not open, in one line.
        seconds: how long all of it took.
    """

    name: str
    family: str
    sizes: tuple[str, ...] = ()
    error: float | None = None
    skipped: tuple[str, ...] = ()
    problem: str = ""
    seconds: float = 0.0

    @property
    def agrees(self) -> bool:
        """Whether the model ran at all sizes and gave PyTorch's numbers."""
        return self.error is not None and self.error <= TOLERANCE


def measure(entry: Entry) -> Row:
    """Takes an entry the whole way with batch and lengths open, or else with the batch open."""
    start = time.perf_counter()
    model, inputs = entry.build()
    problems = []
    for fixed in ((), ("seq", "target")):
        open_sizes = tuple(name for name in _sizes(inputs) if name not in fixed)
        try:
            error, skipped = _compared(entry, model, inputs, open_sizes)
        except npusim.Error as problem:
            problems.append(first_line(problem))
            continue
        seconds = time.perf_counter() - start
        because = problems[0] if problems else ""
        return Row(entry.name, entry.family, open_sizes, error, skipped, because, seconds)
    seconds = time.perf_counter() - start
    return Row(entry.name, entry.family, problem=problems[0], seconds=seconds)


def _compared(
    entry: Entry, model: nn.Module, inputs: Mapping[str, Tensor], open_sizes: tuple[str, ...]
) -> tuple[float, tuple[str, ...]]:
    """Returns the largest error, and the sizes at which PyTorch itself refuses."""
    graph = _extracted(entry, model, inputs, open_sizes)
    program = npusim.compile(graph)
    weights = all_weights(graph, model.state_dict(), model)
    session = npusim.load(program, weights, device="cpu", threads=2)
    errors, skipped = [], []
    for sizes in SIZES:
        given = resized(inputs, {name: sizes[name] for name in open_sizes})
        try:
            wanted = expected(model, given)
        except Exception:  # models have lengths of their own
            skipped.append(", ".join(f"{name} {sizes[name]}" for name in open_sizes))
            continue
        results = session(*(given[v.name] for v in graph.inputs))
        errors.append(largest_error([torch.as_tensor(y) for y in results], wanted))
    return max(errors), tuple(skipped)


def _extracted(
    entry: Entry, model: nn.Module, inputs: Mapping[str, Tensor], open_sizes: tuple[str, ...]
) -> Graph:
    dims = {name: Dim(name, min=1, max=BOUNDS[name]) for name in open_sizes}
    shapes = {
        name: {axis: dims[size] for axis, size in axes(name, tensor) if size in dims}
        for name, tensor in inputs.items()
    }
    example = resized(inputs, {name: EXAMPLE[name] for name in open_sizes})
    return extract_ir(model, (), example, model_name=entry.name, dynamic_shapes=shapes)


def axes(name: str, tensor: Tensor) -> Iterator[tuple[int, str]]:
    """Yields the dimensions of an input that can be open, with what their sizes are called."""
    yield 0, "batch"
    if tensor.ndim > 1 and not tensor.is_floating_point():
        yield 1, "target" if name.startswith("decoder") else "seq"


def _sizes(inputs: Mapping[str, Tensor]) -> tuple[str, ...]:
    found = {size for name, tensor in inputs.items() for _, size in axes(name, tensor)}
    return tuple(name for name in BOUNDS if name in found)


def resized(inputs: Mapping[str, Tensor], sizes: Mapping[str, int]) -> dict[str, Tensor]:
    """Returns inputs of other sizes: rows and tokens again from the start, each row turned."""
    results: dict[str, Any] = {}
    for name, tensor in inputs.items():
        for axis, size in axes(name, tensor):
            if size in sizes:
                tensor = tensor.index_select(axis, torch.arange(sizes[size]) % tensor.shape[axis])
        if not tensor.is_floating_point() and "mask" not in name and tensor.ndim > 1:
            tensor = torch.stack([row.roll(i, 0) for i, row in enumerate(tensor)])
        results[name] = tensor
    return results
