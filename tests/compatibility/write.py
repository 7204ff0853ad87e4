"""Writes what this version leaves to later ones: graphs, programs, weights, and what they compute.

python -m tests.compatibility.write

Run once a release, before its version is counted up; a folder that is there is not written again.
All weights and inputs are small integers, so that every instruction set computes the same bits.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

import npusim

CORPUS = Path(__file__).parent / "corpus"
_ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Model:
    """A model of the corpus, with the inputs of calls; the first are those it is traced with."""

    name: str
    network: torch.nn.Module
    calls: tuple[tuple[torch.Tensor, ...], ...]
    dynamic_shapes: Mapping[str, Any] | None = field(default=None)


def _integers(*shape: int, start: int = 0) -> torch.Tensor:
    count = torch.Size(shape).numel()
    return ((torch.arange(count) * 7 + start) % 9 - 4).reshape(shape).float()


class _Counting(torch.nn.Module):
    """Integers, comparisons, and indices, which are no floats."""

    def forward(self, x: torch.Tensor, i: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns the chosen rows' running sums, and where they are above 2."""
        sums = x[i].cumsum(1)
        return sums, sums > 2


def models() -> Iterator[Model]:
    """Yields the models, with their weights set."""
    dense = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.ReLU(), torch.nn.Linear(3, 2))
    image = torch.nn.Sequential(
        torch.nn.Conv2d(1, 2, 3, padding=1), torch.nn.ReLU(), torch.nn.MaxPool2d(2)
    )
    for network in (dense, image):
        for index, parameter in enumerate(network.parameters()):
            parameter.data = _integers(*parameter.shape, start=index)
    x = _integers(2, 4)
    yield Model("dense", dense, ((x,), (-x,), (x * 0,)))
    batch = torch.export.Dim("batch", max=4)
    batches = tuple((_integers(n, 4, start=n),) for n in (2, 1, 4))
    yield Model("batches", dense, batches, {"input": {0: batch}})
    yield Model("image", image, ((_integers(1, 1, 6, 6),),))
    rows, chosen = _integers(5, 3).long(), torch.tensor([4, 0, 2, 2])
    yield Model("rows", _Counting(), ((rows, chosen), (rows, torch.tensor([-1, -5, 1, 3]))))


def _write(model: Model, folder: Path) -> None:
    network = model.network.eval()
    graph = npusim.extract_ir(
        network, model.calls[0], model_name=model.name, dynamic_shapes=model.dynamic_shapes
    )
    path = folder / f"{model.name}.json"
    graph.save(path)
    # Source lines are this file's, wherever it lies.
    path.write_text(path.read_text().replace(f"{_ROOT}/", ""))
    npusim.compile(npusim.IR.load(path)).save(folder / f"{model.name}.npubin")
    if weights := dict(network.state_dict()):
        save_file(weights, folder / f"{model.name}.safetensors")
    calls = []
    for inputs in model.calls:
        outputs = network(*inputs)
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        calls.append(
            {"inputs": [_plain(t) for t in inputs], "outputs": [_plain(t) for t in outputs]}
        )
    text = json.dumps({"calls": calls}, indent=1) + "\n"
    (folder / f"{model.name}.calls.json").write_text(text)


def _plain(tensor: torch.Tensor) -> dict[str, Any]:
    dtype = str(tensor.dtype).removeprefix("torch.")
    return {"dtype": dtype, "values": tensor.tolist()}


def main() -> None:
    """Writes the corpus of this version."""
    folder = CORPUS / npusim.__version__
    if folder.exists():
        raise SystemExit(f"{folder} is there: what a version wrote does not change any more.")
    folder.mkdir(parents=True)
    for model in models():
        _write(model, folder)


if __name__ == "__main__":
    main()
