"""Plans in 16 bits and with quantized weights: each native part as compiling it alone gives it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import npusim
from npusim.errors import TargetConstraintError

from .models import EAGER_DEVICE, stray


class Halves(nn.Module):
    """Linears before and after an operator that only PyTorch has."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.after = nn.Linear(64, 64), nn.Linear(64, 32)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.after(stray(self.before(x).relu()))
        return y


CHOICES = [
    {"precision": "bfloat16"},
    {"precision": "float16"},
    {"precision": "mixed"},
    {"quantize": "int8"},
    {"quantize": "int4-g32", "precision": "bfloat16"},
]


@pytest.mark.parametrize("choice", CHOICES, ids=lambda c: "-".join(c.values()))
def test_each_part_is_what_compiling_it_gives(choice: dict[str, str], tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Halves().eval()
    weights = {key: value.numpy() for key, value in model.state_dict().items()}
    x = np.random.default_rng(0).standard_normal((3, 64)).astype(np.float32)
    graph = npusim.extract_ir(model, (torch.from_numpy(x),))
    plan = npusim.partition(graph, costs=EAGER_DEVICE, **choice)  # type: ignore[arg-type]
    plan.save(tmp_path / "m.npuplan")
    plan = npusim.PartitionPlan.load(tmp_path / "m.npuplan")
    native = [p for p in plan.partitions if p.is_native]
    assert len(native) == 2 and len(plan.partitions) == 3
    (got,) = npusim.DAGExecutor(plan).load_weights(weights).execute((x,)).values()
    first, last = (
        npusim.load(npusim.compile(p.graph, **choice), weights)  # type: ignore[arg-type]
        for p in native
    )
    between = stray(torch.from_numpy(first(x)[0])).numpy()
    np.testing.assert_array_equal(got, last(between)[0])
    plain = npusim.partition(graph, costs=EAGER_DEVICE)
    (exact,) = npusim.DAGExecutor(plain).load_weights(weights).execute((x,)).values()
    assert got.dtype == np.float32
    assert 0 < np.abs(got - exact).max() < 0.3 * np.abs(exact).max()


@pytest.mark.parametrize("choice", [{"precision": "float8"}, {"quantize": "int3"}])
def test_what_is_none_is_refused(choice: dict[str, str]) -> None:
    graph = npusim.extract_ir(Halves().eval(), (torch.zeros(3, 64),))
    with pytest.raises(TargetConstraintError, match=next(iter(choice.values()))):
        npusim.partition(graph, **choice)  # type: ignore[arg-type]
