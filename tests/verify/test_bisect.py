"""The first command that diverges: found in deep networks, and told from accumulated error."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import npusim
from npusim.abi.scalar import OPCODES
from npusim.verify import InputStatistics
from tests.models import build

from .faults import plant


@pytest.mark.parametrize(
    ("name", "stem", "which", "changes"),
    [
        ("resnet50", "conv", 20, {"act": OPCODES["tanh"][0]}),
        ("bert_base", "norm", 3, {"eps": 0.5}),
    ],
)
def test_a_planted_fault_is_found(
    name: str, stem: str, which: int, changes: dict[str, Any]
) -> None:
    model, inputs = build(name, small=name != "resnet50")
    state = model.state_dict()
    graph = npusim.extract_ir(model, inputs)
    program, index = plant(npusim.compile(graph), stem, which, **changes)
    ok, report = npusim.verify_program(
        program, state_dict=state, test_inputs=inputs, original_model=model
    )
    first = report.first_divergence
    assert not ok and first is not None
    assert (first.command, first.kernel, first.cause) == (index, stem, "command")
    assert first.own is not None and not first.own.ok
    given = [i for i in first.inputs if i.max_rel is not None]
    assert given and all(i.max_rel < 1e-4 and i.nans == 0 for i in given if i.max_rel is not None)
    text = str(report)
    assert f"command {index} {stem}" in text and "The command itself" in text
    stored = json.loads(json.dumps(report.to_json(), allow_nan=False))
    assert stored["first_divergence"]["cause"] == "command"


class Chain(nn.Module):
    """Chaotic maps after each other: each enlarges what the ones before it rounded."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Linear(96, 96) for _ in range(5))

    def forward(self, x: Tensor) -> Tensor:
        """Maps [N, 96] to the same shape."""
        for layer in self.layers:
            x = torch.sin(20 * layer(x))
        return x


def test_accumulated_error_is_not_blamed_on_the_command() -> None:
    model = Chain().eval()
    x = torch.randn(4, 96, generator=torch.Generator().manual_seed(1))
    program = npusim.compile(npusim.extract_ir(model, (x,)))
    common = {"state_dict": model.state_dict(), "test_inputs": (x,), "original_model": model}
    _, loose = npusim.verify_program(program, tolerance=1.0, bisect=True, **common)
    worst, largest = loose.first_divergence, loose.largest_own
    assert loose.ok and worst is not None and worst.own is not None and largest is not None
    assert worst.value.max_rel > largest.value.max_rel >= worst.own.max_rel
    tolerance = (worst.value.max_rel + largest.value.max_rel) / 2
    _, report = npusim.verify_program(program, tolerance=tolerance, bisect=True, **common)
    first = report.first_divergence
    assert first is not None and first.cause == "accumulated"
    assert "Accumulated before it" in str(report)
    assert report.largest_own is not None and report.largest_own.command < first.command


def test_statistics_of_special_values() -> None:
    tensor = torch.tensor([1.0, 3.0, float("nan"), float("-inf")])
    found = InputStatistics.of("x", tensor)
    assert (found.lowest, found.highest, found.mean) == (1.0, 3.0, 2.0)
    assert (found.nans, found.infinities) == (1, 1)
    assert "1 NaN, 1 infinite" in str(found)
    assert InputStatistics.of("x", torch.zeros(0)).mean is None
    assert InputStatistics.of("x", torch.tensor([True, False])).mean == 0.5


def test_values_are_written_where_commands_write_only() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Softmax(-1)).eval()
    x = torch.randn(2, 4)
    program = npusim.compile(npusim.extract_ir(model, (x,)))
    device = npusim.Device("cpu")
    executor = npusim.Executor(program, device)
    weights = npusim.load_weights(model.state_dict(), program, device)
    buffers = {"x": npusim.DeviceBuffer.from_numpy(x.numpy(), device)}
    buffers = {program.input_specs[0].name: next(iter(buffers.values()))}
    executor.run(buffers, weights)
    source, result = program.input_specs[0].buffer, program.output_specs[0].buffer
    with pytest.raises(npusim.errors.ShapeError, match="not one that commands write"):
        executor.write_buffer(source, b"1234")
    with pytest.raises(npusim.errors.ShapeError, match="no memory of the executor's own"):
        executor.write_buffer(result, bytes(40))  # the caller's, of a run that is over
    with pytest.raises(npusim.errors.ShapeError, match="no buffer"):
        executor.write_buffer(10**6, b"")
