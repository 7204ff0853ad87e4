"""Running a graph on edge values: after each pass, and compiled, beside PyTorch's results.

Where no node of a graph rounds, results are equal to the bit. Elsewhere an element of float32 or
float64 may be off by a few units in its own last place, and by a multiple of what PyTorch's result
moves by when its inputs and rounded results are shaken; NaN and infinities that shaking leaves
alone have to be there, but for what overflows in the last binades by way of PyTorch's own formulas.
An element of 16 bits may be off by one unit in its own last place. Sums, and what reads them, may
moreover be off by what `edge_bounds.py` works out; their NaN and infinities are compared exactly.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import torch
from torch import Tensor

import npusim
from npusim import passes
from npusim.errors import Error
from npusim.ir.graph import Graph
from npusim.ir.types import TensorType, is_float
from npusim.lowering.supported import unsupported_nodes
from npusim.ops.edge_values import float_edges, integer_edges, numbers_of
from npusim.passes.run import run_passes
from npusim.targets import TargetConfig
from tests.properties.agreement import cpu, reference, shaken_tensors
from tests.properties.drafts import ROUNDS
from tests.properties.edge_bounds import error_bounds, has_sums, run_exactly

_MOST_SUMMED = (4.0, 30.0, 1e15)  # the largest numbers of graphs with sums, chosen by the seed
_SPECIAL_SUMMED = (1.0, 0.1, 0.02)  # how many of NaN and infinities they keep
ULPS = 16  # of an element, that what rounds may be off by
_AMPLIFIED = 32.0
_TAIL = 2e-6  # what written-out gelus lose where 1 and erf cancel
# Of two zeros PyTorch takes either.
_SIGNLESS = ("clamp", "maximum", "minimum", "relu", "fmax", "fmin")


def disagreement(graph: Graph, seed: int) -> str | None:
    """Returns the pass, or the compiled program, that gives other results; None if none does."""
    target = TargetConfig.named("cpu")
    tensors = edge_data(graph, seed)
    inputs = [tensors[v.name] for v in graph.inputs]
    weights = {w.key: tensors[w.name] for w in graph.weights}
    try:
        expected = run_exactly(graph, inputs, weights)
        shaken = [
            reference(graph, shaken_tensors(tensors, seed + i), seed + i, run=run_exactly)
            for i in (1, 2)
        ]
    except Error:
        return None
    if unsupported_nodes(graph, target):  # which refuses numbers that PyTorch refuses, too
        return None
    bounds = error_bounds(graph, inputs, weights)
    gelu = any(node.op.split(".")[1] in ("gelu", "erf") for node in graph.nodes)
    exact = not any(node.name.startswith(ROUNDS) for node in graph.nodes)
    signs = exact and not any(name in n.op for n in graph.nodes for name in _SIGNLESS)

    def compared(results: Sequence[Tensor]) -> str | None:
        rows = zip(graph.outputs, results, expected, zip(*shaken, strict=True), strict=True)
        for output, got, want, moved in rows:
            tail = _TAIL if gelu else 0.0
            loose = bounds.get(output.value)
            problem = _difference(got, want, moved, exact, signs, tail, loose)
            if problem is not None:
                return f"{output.name} ({output.value}): {problem}"
        return None

    stage = graph
    for each in passes.PIPELINE:
        for before in (graph, stage):
            after = run_passes(before, target, pipeline=(each,))
            problem = compared(run_exactly(after, inputs, weights)) if after is not before else None
            if problem is not None:
                return f"after {each.__name__}: {problem}"
        stage = run_passes(stage, target, pipeline=(each,))
    session = npusim.load(npusim.compile(graph), weights, device=cpu())
    results = [torch.as_tensor(r) for r in session(*inputs)]
    if not inputs:
        results = [r.to(e.dtype) for r, e in zip(results, expected, strict=True)]
    problem = compared(results)
    return None if problem is None else f"compiled: {problem}"


def edge_data(graph: Graph, seed: int) -> dict[str, Tensor]:
    """Returns tensors of edge values for the inputs and weights, by name, in random order."""
    random, numbers = Random(seed), numbers_of(graph)
    named: list[tuple[str, TensorType]] = [(v.name, v.type) for v in graph.inputs]
    named += [(w.name, w.type) for w in graph.weights]
    tensors = {name: _tensor(type, numbers, random) for name, type in named}
    if not any(node.name.startswith(ROUNDS) for node in graph.nodes):
        return tensors
    gelu = any(node.op in ("aten.gelu.default", "aten.erf.default") for node in graph.nodes)
    if not has_sums(graph):
        return {name: _moderate(t, 1e30, infinities=not gelu) for name, t in tensors.items()}
    random = Random(seed)
    most, kept = random.choice(_MOST_SUMMED), random.choice(_SPECIAL_SUMMED)
    for tensor in tensors.values():
        _thin_out(tensor, kept, seed)
    return {name: _moderate(t, most, infinities=not gelu) for name, t in tensors.items()}


def _thin_out(tensor: Tensor, kept: float, seed: int) -> None:
    """Leaves a part of the NaN and infinities: one makes a whole row of sums no number."""
    if tensor.is_floating_point():
        generator = torch.Generator().manual_seed(seed)
        chosen = torch.rand(tensor.shape, generator=generator) > kept
        tensor.masked_fill_(chosen & ~tensor.isfinite(), 1.5)


def _moderate(tensor: Tensor, most: float, *, infinities: bool) -> Tensor:
    """Returns no more than formulas take without overflowing in one spelling and not in another.

    Args:
        most: the largest number to keep; float16 keeps all where there are sums, which have to
            overflow where they do in float32.
        infinities: keep these; PyTorch's own kernel of gelu makes NaN of them.
    """
    if not tensor.is_floating_point():
        return tensor
    info = torch.finfo(tensor.dtype)
    whole = tensor.dtype == torch.float16 and most == _MOST_SUMMED[-1]
    most = info.max if whole else min(most, info.max / 64)
    return torch.where(tensor.isinf() & infinities, tensor, tensor.clamp(-most, most))


def _tensor(type: TensorType, numbers: Sequence[float], random: Random) -> Tensor:
    dtype = getattr(torch, type.dtype)
    if type.dtype == "bool":
        return torch.tensor([random.random() < 0.5 for _ in range(type.numel)]).reshape(type.shape)
    floats = is_float(type.dtype)
    edges = (float_edges if floats else integer_edges)(type.dtype, numbers).tolist()
    ordinary = [-2.5, -1.0, 0.3, 1.7, 4.0] if floats else [1, 2, 5]
    lists = (edges, edges, edges, edges, ordinary)
    chosen = [random.choice(random.choice(lists)) for _ in range(type.numel)]
    wide = torch.tensor(chosen, dtype=torch.float64 if floats else dtype)
    return wide.to(dtype).reshape(type.shape)


def _difference(
    got: Tensor,
    want: Tensor,
    shaken: Sequence[Tensor],
    exact: bool,
    signs: bool,
    absolute: float,
    loose: Tensor | None,
) -> str | None:
    if (got.dtype, got.shape) != (want.dtype, want.shape):
        return f"{got.dtype}{list(got.shape)} instead of {want.dtype}{list(want.shape)}"
    same = (got == want) | (got.isnan() & want.isnan())
    if signs and want.is_floating_point():
        same &= (got.signbit() == want.signbit()) | want.isnan()
    wrong = ~same
    if not exact and want.is_floating_point():
        others = [s.double() for s in shaken]
        wrong &= _beyond(got.double(), want.double(), others, want.dtype, absolute, loose)
    elif not exact:
        wrong &= torch.stack([s == want for s in shaken]).all(0)
    if not bool(wrong.any()):
        return None
    place = tuple(wrong.nonzero()[0].tolist())
    return f"{int(wrong.sum())} elements differ; at {place} {got[place]}, not {want[place]}"


def _beyond(
    a: Tensor,
    e: Tensor,
    shaken: Sequence[Tensor],
    dtype: torch.dtype,
    absolute: float,
    loose: Tensor | None,
) -> Tensor:
    """Tells which elements are further apart than rounding explains."""
    limits = torch.finfo(dtype)
    bound = torch.zeros(e.shape, dtype=torch.float64) if loose is None else loose
    if dtype.itemsize == 2:
        return _beyond_16_bits(a, e, limits, bound + absolute)
    finite = torch.stack([s.isfinite() for s in (e, *shaken)]).all(0)
    known = torch.stack([(s == e) | (s.isnan() & e.isnan()) for s in shaken]).all(0) & ~finite
    moved = torch.stack([(s - e).abs().nan_to_num(0.0, 0.0, 0.0) for s in shaken]).amax(0)
    allowed = ULPS * limits.eps * e.abs() + _AMPLIFIED * moved + 2 * limits.tiny + absolute + bound
    known &= ~(e.isinf() & (a.abs() >= limits.max / 64)) & ~bound.isinf()
    if absolute:  # a gelu: see `_moderate`; these are numbers of the graph
        known, finite = known & False, finite & (e.abs() < limits.max / 64)
    return known | (finite & ~((a - e).abs() <= allowed) & ~bound.isinf())


def _beyond_16_bits(a: Tensor, e: Tensor, limits: torch.finfo, allowed: Tensor) -> Tensor:
    """Likewise, of results that are rounded once; past the largest number comes infinity."""
    past = limits.max * (1 + limits.eps)
    apart = (a.clamp(-past, past) - e.clamp(-past, past)).abs()
    agree = (a.isnan() & e.isnan()) | (apart <= allowed) | allowed.isinf()
    return ~agree
