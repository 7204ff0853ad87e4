"""CUDA plans for the driver without a GPU: what they compute are sums, which the stub can."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

import npusim
from npusim.program.program import CompiledProgram
from tests.runtime.programs import stub_image

from .models import EAGER_DEVICE

COUNT = 6  # elements of every tensor

_LOOKERS: list[Callable[[], None]] = []  # called by each `watched` node


@torch.library.custom_op("npusim_partition::watched", mutates_args=())
def watched(x: Tensor) -> Tensor:
    """An operator that only PyTorch has, and that tells when it runs."""
    for look in _LOOKERS:
        look()
    return x * 2


watched.register_fake(torch.empty_like)


def driver_calls(*names: str) -> tuple[int, ...]:
    """Returns how often entry points of the stub have been called."""
    stub = ctypes.CDLL(os.environ["NPUSIM_CUDA_DRIVER"])
    return tuple(stub.stub_calls(name.encode()) for name in names)


def whenever_watched(*names: str) -> list[tuple[int, ...]]:
    """Returns a list that every `watched` node adds to: the calls of entry points so far."""
    seen: list[tuple[int, ...]] = []
    _LOOKERS.append(lambda: seen.append(driver_calls(*names)))
    return seen


def plan_of_sums(
    model: nn.Module, *args: Tensor, entries: dict[int, str] | None = None
) -> npusim.PartitionPlan:
    """Returns a CUDA plan of a model of sums with the stub's kernels.

    Args:
        entries: by partition, what its first command computes instead of a sum.
    """
    graph = npusim.extract_ir(model.eval(), args)
    plan = npusim.partition(graph, target="cuda", costs=EAGER_DEVICE)
    parts = tuple(
        p if p.program is None else replace(p, program=_on_stub(p.program, entries, p.index))
        for p in plan.partitions
    )
    return replace(plan, partitions=parts)


def _on_stub(
    program: CompiledProgram, entries: dict[int, str] | None, index: int
) -> CompiledProgram:
    first: Any = program.methods[0].commands[0].kernel
    kernels = [replace(kernel, image=stub_image("add", COUNT)) for kernel in program.kernels]
    wrong = (entries or {}).get(index)
    if wrong is not None:
        # A kernel of its own: others of the program may be the same.
        kernels.append(replace(kernels[first], image=stub_image(wrong, COUNT)))
        method = program.methods[0]
        commands = (replace(method.commands[0], kernel=len(kernels) - 1), *method.commands[1:])
        program = replace(program, methods=(replace(method, commands=commands),))
    return replace(program, kernels=tuple(kernels))
