"""What tests of partitioning share: operators of our own, and running a plan against eager."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

import npusim
from npusim.ir.graph import Attr
from npusim.partition.cost import CostModel


@torch.library.custom_op("npusim_partition::stray", mutates_args=())
def stray(x: Tensor) -> Tensor:
    """An operator that only PyTorch has."""
    return x.sin() + 1


@stray.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


_LIBRARY = torch.library.Library("npusim_partition", "FRAGMENT")
_LIBRARY.define("nowhere(Tensor x) -> Tensor")
torch.library.register_fake("npusim_partition::nowhere", torch.empty_like, lib=_LIBRARY)


def nowhere(x: Tensor) -> Tensor:
    """Calls an operator that has no implementation at all."""
    result: Tensor = torch.ops.npusim_partition.nowhere(x)
    return result


class Function(nn.Module):
    """A function as a module."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Tensor) -> Any:
        return self.function(*args)


def keep_off(*ops: str) -> Any:
    """A predicate that gives these operators to PyTorch, named as in `aten.mul`."""

    def is_supported(op: str, attrs: Mapping[str, Attr]) -> bool:
        return op.rpartition(".")[0] not in ops

    return is_supported


# Costs by which every native node is worth it: a cut then follows from the graph alone.
EAGER_DEVICE = CostModel(0.0, 1.0, (1e12, 1e12), (1.0, 1.0), 0.0, 0.0)


def outputs(result: Any) -> tuple[Tensor, ...]:
    return (result,) if isinstance(result, Tensor) else tuple(result)


def agree(
    plan: npusim.PartitionPlan, model: nn.Module, *args: Tensor, tolerance: float = 1e-5
) -> npusim.DAGExecutor:
    """Runs a plan and compares every output with PyTorch's; returns the executor."""
    executor = npusim.DAGExecutor(plan, plan.device, summary=False).load_weights(model.state_dict())
    with torch.no_grad():
        want = outputs(model(*args))
    got = executor(*args)
    assert len(got) == len(want)
    for y, r in zip(got, want, strict=True):
        assert y.dtype == r.dtype
        torch.testing.assert_close(y, r, rtol=tolerance, atol=tolerance, equal_nan=True)
    return executor
