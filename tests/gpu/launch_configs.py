"""Models of one command or two, in every config that tuning may choose for it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import npusim
from npusim.codegen import generate
from npusim.codegen.choice import Choice
from npusim.codegen.cuda.variants import variants
from npusim.program.program import CompiledProgram
from npusim.tune import target_of

ROWS, COLUMNS, DEPTH = 150, 264, 520  # which no tile divides
Call: TypeAlias = Callable[..., Tensor]


class Layers(nn.Module):
    """A function of inputs and weights as a module, so that weights are prepared at load."""

    def __init__(self, call: Call, weights: list[Tensor]) -> None:
        super().__init__()
        self.call = call
        self.weights = nn.ParameterList(weights)

    def forward(self, *inputs: Tensor) -> Tensor:
        return self.call(*inputs, *self.weights)


def _gated(x: Tensor, gate: Tensor, up: Tensor) -> Tensor:
    return F.silu(F.linear(x, gate)) * F.linear(x, up)


def _attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, enable_gqa=True)


def _conv(x: Tensor, w: Tensor) -> Tensor:
    groups = x.shape[1] // w.shape[1]
    return F.relu(F.conv2d(x, w, padding=w.shape[-1] // 2, groups=groups))


def _normed(x: Tensor, r: Tensor, w: Tensor, norm: Tensor, gate: Tensor, up: Tensor) -> Tensor:
    return _gated(F.rms_norm(r + F.linear(x, w), norm.shape, norm, 1e-6), gate, up)


_X, _W = (ROWS, DEPTH), (COLUMNS, DEPTH)
# What it computes, and the shapes of inputs and weights.
COMMANDS: Mapping[str, tuple[Call, list[tuple[int, ...]], list[tuple[int, ...]]]] = {
    "linear": (F.linear, [_X], [_W, (COLUMNS,)]),
    "residual": (lambda x, r, w: r + F.linear(x, w), [_X, (ROWS, COLUMNS)], [_W]),
    "gated": (_gated, [_X], [_W, _W]),
    "norm between": (
        _normed,
        [_X, (ROWS, COLUMNS)],
        [_W, (COLUMNS,), (DEPTH, COLUMNS), (DEPTH, COLUMNS)],
    ),
    "attention": (_attention, [(1, 4, 70, 64), (1, 2, 600, 64), (1, 2, 600, 64)], []),
    "conv": (_conv, [(2, 72, 13, 13)], [(72, 72, 3, 3)]),
    "depthwise": (_conv, [(2, 72, 13, 13)], [(72, 1, 5, 5)]),
    "groups": (_conv, [(2, 72, 13, 13)], [(72, 4, 3, 3)]),
}


def normal(*shape: int) -> Tensor:
    """Returns random weights, of products that stay about as large as what goes in."""
    return torch.randn(*shape) / max(1, shape[-1]) ** 0.5 if len(shape) > 1 else torch.randn(*shape)


@dataclass(frozen=True)
class Example:
    """A seeded model of one of COMMANDS in bfloat16, inputs, and what float64 makes of them."""

    program: CompiledProgram
    weights: dict[str, Tensor]
    inputs: tuple[Tensor, ...]
    exact: Tensor


def example(name: str) -> Example:
    """Returns an example, compiled for CUDA."""
    torch.manual_seed(0)
    call, inputs, weights = COMMANDS[name]
    model = Layers(call, [normal(*shape).bfloat16() for shape in weights]).eval()
    given = tuple(torch.randn(*shape).bfloat16() for shape in inputs)
    with torch.no_grad():
        exact = call(*(t.double() for t in given), *(w.double() for w in model.weights))
    program = npusim.compile((model, given), "cuda")
    return Example(program, dict(model.state_dict()), given, exact)


def in_every_launch_config(program: CompiledProgram) -> Iterator[tuple[str, CompiledProgram]]:
    """Yields each config of each command, by name, and the program with that one."""
    target = target_of(program)
    keys = {(program.kernels[c.kernel].name, c.params) for m in program.methods for c in m.commands}
    named = [(key, name) for key in keys for name in variants(*key)]

    def chosen(row: tuple[tuple[str, bytes], str]) -> CompiledProgram:
        return generate(program, target, {row[0]: Choice(variant=row[1])})

    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        made = pool.map(chosen, named)
        yield from ((f"{key[0]} {name}", p) for (key, name), p in zip(named, made, strict=True))
