"""Running a random graph natively and through PyTorch, and how far the two may be apart.

What rounding may do to a graph nobody knows in advance, so PyTorch is asked: it runs the graph as
it is, and twice with the inputs and every rounded result a few roundings away. The native result
may be off by a multiple of what that changes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from random import Random

import torch
from torch import Tensor

import npusim
from npusim.errors import Error
from npusim.ir.graph import Graph, Node
from npusim.ir.types import TensorType
from npusim.lowering.supported import unsupported_nodes
from npusim.ops.reference import run_graph
from npusim.targets import TargetConfig
from tests.properties.drafts import ROUNDS

# Relative errors of one operation, several over: the unit of what is allowed.
_ROUNDING = {"float64": 1e-13, "float32": 4e-6, "float16": 6e-3, "bfloat16": 5e-2}
_AMPLIFIED = 8.0


@cache
def cpu() -> npusim.Device:
    """The device; one thread, since tests run in parallel."""
    return npusim.Device("cpu", threads=1)


def disagreement(graph: Graph, seed: int) -> str | None:
    """Returns how a native run differs from PyTorch's, or None; graphs PyTorch refuses agree.

    Args:
        seed: of the inputs' data and of how they lie in memory.
    """
    if unsupported_nodes(graph, TargetConfig.named("cpu")):
        return None
    tensors = data_for(graph, seed)
    try:
        expected = reference(graph, tensors)
        shaken = [reference(graph, shaken_tensors(tensors, seed + i), seed + i) for i in (1, 2)]
    except Error:
        return None
    inputs = [_laid_out(tensors[v.name], Random(seed + i)) for i, v in enumerate(graph.inputs)]
    weights = {w.key: tensors[w.name] for w in graph.weights}
    session = npusim.load(npusim.compile(graph), weights, device=cpu())
    results = [torch.as_tensor(r) for r in session(*inputs)]
    unit = _coarsest(graph)
    for index, output in enumerate(graph.outputs):
        got = results[index] if inputs else results[index].to(expected[index].dtype)
        message = _difference(got, expected[index], [run[index] for run in shaken], unit)
        if message is not None:
            return f"{output.name} ({output.value}): {message}"
    return None


def _coarsest(graph: Graph) -> float:
    """Returns the rounding of the narrowest floats in a graph: fused chains round only once."""
    return max(
        (_ROUNDING[t.dtype] for t in graph.types.values() if t.dtype in _ROUNDING), default=0.0
    )


def data_for(graph: Graph, seed: int) -> dict[str, Tensor]:
    """Returns tensors for the inputs and weights, by name."""
    generator = torch.Generator().manual_seed(seed)
    named: list[tuple[str, TensorType]] = [(v.name, v.type) for v in graph.inputs]
    named += [(w.name, w.type) for w in graph.weights]
    return {name: _tensor(type, generator) for name, type in named}


def _tensor(type: TensorType, generator: torch.Generator) -> Tensor:
    dtype = getattr(torch, type.dtype)
    if dtype is torch.bool:
        return torch.randint(0, 2, type.shape, generator=generator).bool()
    if not dtype.is_floating_point:
        return torch.randint(-5, 6, type.shape, generator=generator).to(dtype)
    return torch.randn(type.shape, generator=generator).to(dtype)


def reference(
    graph: Graph,
    tensors: Mapping[str, Tensor],
    shaking: int | None = None,
    *,
    run: Callable[..., list[Tensor]] = run_graph,
) -> list[Tensor]:
    """Returns PyTorch's results; with a seed, those of a run whose rounded results are shaken."""
    inputs = [tensors[v.name] for v in graph.inputs]
    weights = {w.key: tensors[w.name] for w in graph.weights}
    if shaking is None:
        return run(graph, inputs, weights)
    generator = torch.Generator().manual_seed(shaking)

    def shake(node: Node, results: Sequence[Tensor]) -> None:
        for tensor in results if node.name.startswith(ROUNDS) else ():
            if tensor.is_floating_point() and tensor.is_contiguous():
                tensor.copy_(_near(tensor, generator))

    return run(graph, inputs, weights, observe=shake)


def shaken_tensors(tensors: Mapping[str, Tensor], seed: int) -> dict[str, Tensor]:
    """Returns the tensors with each floating-point element a few roundings away."""
    generator = torch.Generator().manual_seed(seed)
    return {
        name: _near(tensor, generator) if tensor.is_floating_point() else tensor
        for name, tensor in tensors.items()
    }


def _near(tensor: Tensor, generator: torch.Generator) -> Tensor:
    noise = torch.rand(tensor.shape, generator=generator) * 2 - 1
    return (tensor * (1 + 2 * torch.finfo(tensor.dtype).eps * noise)).to(tensor.dtype)


def _laid_out(tensor: Tensor, random: Random) -> Tensor:
    """Returns the same values, perhaps strided: transposed, every other one, or broadcast."""
    way = random.randrange(4)
    if way == 1 and tensor.dim() >= 2:
        return tensor.transpose(0, -1).contiguous().transpose(0, -1)
    if way == 2 and tensor.dim() >= 1:
        wide = torch.stack((tensor, torch.zeros_like(tensor)), -1)
        return wide[..., 0]
    return tensor


def _difference(got: Tensor, want: Tensor, shaken: Sequence[Tensor], unit: float) -> str | None:
    if (got.dtype, got.shape) != (want.dtype, want.shape):
        return f"{got.dtype}{list(got.shape)} instead of {want.dtype}{list(want.shape)}"
    if not want.numel() or torch.equal(got, want):
        return None
    if not want.is_floating_point():
        steady = torch.stack([s == want for s in shaken]).all(0)
        wrong = (got != want) & steady
        return _first(got, want, wrong) if bool(wrong.any()) else None
    a, e = got.double(), want.double()
    others = [s.double() for s in shaken]
    steady = torch.isfinite(e) & torch.stack([torch.isfinite(o) for o in others]).all(0)
    known = torch.stack([(o == e) | (o.isnan() & e.isnan()) for o in others]).all(0) & ~steady
    moved = torch.stack([(o - e).abs().nan_to_num(0.0) for o in others]).amax(0)
    largest = float(e[steady].abs().max()) if bool(steady.any()) else 0.0
    spread = float(moved[steady].max()) if bool(steady.any()) else 0.0
    allowed = unit * max(1.0, largest) + _AMPLIFIED * spread
    wrong = steady & ~((a - e).abs() <= allowed)
    wrong |= known & ~((a == e) | (a.isnan() & e.isnan()))
    return _first(got, want, wrong) if bool(wrong.any()) else None


def _first(got: Tensor, want: Tensor, wrong: Tensor) -> str:
    place = tuple(wrong.nonzero()[0].tolist())
    count = int(wrong.sum())
    return f"{count} of {want.numel()} elements differ; at {place} {got[place]}, not {want[place]}"
