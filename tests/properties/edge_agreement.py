"""Running a graph on edge values: after each pass, and compiled, beside PyTorch's results.

Where no node of a graph rounds, results are equal to the bit. Elsewhere each element may be off by
a few units in its own last place, and by a multiple of what PyTorch's result moves by when its
inputs and rounded results are shaken; NaN and infinities that shaking leaves alone
have to be there, but for what overflows in the last binades by way of PyTorch's own formulas.
A sum may moreover be off by a rounding of the sum of its terms' sizes for each of its terms,
whatever their order (Higham, Accuracy and Stability of Numerical Algorithms, 3.1).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from random import Random

import torch
from torch import Tensor
from torch.nn import functional

import npusim
from npusim import passes
from npusim.errors import Error
from npusim.ir.graph import Graph, Node
from npusim.ir.types import TensorType, is_float
from npusim.lowering.supported import unsupported_nodes
from npusim.ops.edge_values import float_edges, integer_edges, numbers_of
from npusim.ops.reference import GraphRun, run_graph
from npusim.passes.run import run_passes
from npusim.targets import TargetConfig
from tests.properties.agreement import cpu, reference, shaken_tensors
from tests.properties.drafts import ROUNDS

# What sums, and of how many terms at the most.
_SUMS = {
    "aten.linear.default": 9,
    "aten.matmul.default": 8,
    "aten.conv1d.default": 9,
    "aten.logsumexp.default": 12,
}
_PRODUCTS: dict[str, Callable[..., Tensor]] = {
    "aten.linear.default": functional.linear,
    "aten.matmul.default": torch.matmul,
    "aten.conv1d.default": functional.conv1d,
}
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
        expected = reference(graph, tensors)
        shaken = [reference(graph, shaken_tensors(tensors, seed + i), seed + i) for i in (1, 2)]
    except Error:
        return None
    if unsupported_nodes(graph, target):  # which refuses numbers that PyTorch refuses, too
        return None
    bounds = sum_bounds(graph, inputs, weights)
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
            problem = compared(run_graph(after, inputs, weights)) if after is not before else None
            if problem is not None:
                return f"after {each.__name__}: {problem}"
        stage = run_passes(stage, target, pipeline=(each,))
    session = npusim.load(npusim.compile(graph), weights, device=cpu())
    results = [torch.as_tensor(r) for r in session(*inputs)]
    if not inputs:
        results = [r.to(e.dtype) for r, e in zip(results, expected, strict=True)]
    problem = compared(results)
    return None if problem is None else f"compiled: {problem}"


def sum_bounds(
    graph: Graph, inputs: Sequence[Tensor], weights: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Returns how far values may be off that are sums, or that something is made of afterwards.

    The terms' sizes are what the same operator makes of the sizes of its operands, infinities and
    NaN left out; of 16-bit floats it counts what rounding the result adds.
    """
    found: dict[str, Tensor] = {}
    run = GraphRun(graph, inputs, weights)
    for node, results in run:
        values = [None if i is None else run.operands(node)[i] for i in node.inputs]
        passed = [found[i] for i in node.inputs if i in found]
        for value, result in zip(node.outputs, results, strict=True):
            if not result.is_floating_point():
                continue
            bound = torch.stack([b.amax() for b in passed]).amax() if passed else None
            if node.op in _SUMS:
                sizes = _sum_of_sizes(node, values)
                eps = torch.finfo(torch.float32 if result.itemsize < 8 else result.dtype).eps
                mine = 2 * _SUMS[node.op] * eps * sizes
                mine = mine + torch.finfo(result.dtype).eps * sizes.clamp(max=3e38)
                bound = mine if bound is None else mine + bound
            if bound is not None:
                like = bound.shape == result.shape and not passed
                found[value.name] = bound if like else bound.amax().expand(result.shape)
                same = len(passed) == 1 and passed[0].shape == result.shape
                if same and node.op not in _SUMS:  # element by element: the factor stays below 2
                    found[value.name] = 2 * passed[0]
    return found


def _sum_of_sizes(node: Node, values: Sequence[Tensor | None]) -> Tensor:
    finite = [v.double().nan_to_num(0.0, 0.0, 0.0).abs() for v in values if v is not None]
    if node.op in _PRODUCTS:
        return _PRODUCTS[node.op](*finite)
    # a logsumexp: the largest, and the logarithm of how many there are
    return (finite[0].amax(-1) + 3).reshape(node.type.shape)


def edge_data(graph: Graph, seed: int) -> dict[str, Tensor]:
    """Returns tensors of edge values for the inputs and weights, by name, in random order."""
    random, numbers = Random(seed), numbers_of(graph)
    named: list[tuple[str, TensorType]] = [(v.name, v.type) for v in graph.inputs]
    named += [(w.name, w.type) for w in graph.weights]
    tensors = {name: _tensor(type, numbers, random) for name, type in named}
    if not any(node.name.startswith(ROUNDS) for node in graph.nodes):
        return tensors
    gelu = any(node.op in ("aten.gelu.default", "aten.erf.default") for node in graph.nodes)
    sums = any(node.op in _SUMS and "logsumexp" not in node.op for node in graph.nodes)
    most = 30.0 if sums else 1e30
    return {name: _moderate(t, most, infinities=not gelu) for name, t in tensors.items()}


def _moderate(tensor: Tensor, most: float, *, infinities: bool) -> Tensor:
    """Returns no more than formulas take without overflowing in one spelling and not in another.

    Args:
        most: the largest number to keep; of products of 16 bits the sums have to fit.
        infinities: keep these; PyTorch's own kernel of gelu makes NaN of them.
    """
    if not tensor.is_floating_point():
        return tensor
    most = min(most, torch.finfo(tensor.dtype).max / 64)
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
    finite = torch.stack([s.isfinite() for s in (e, *shaken)]).all(0)
    known = torch.stack([(s == e) | (s.isnan() & e.isnan()) for s in shaken]).all(0) & ~finite
    moved = torch.stack([(s - e).abs().nan_to_num(0.0, 0.0, 0.0) for s in shaken]).amax(0)
    allowed = ULPS * limits.eps * e.abs() + _AMPLIFIED * moved + 2 * limits.tiny + absolute
    if loose is not None:
        allowed = allowed + loose
    known &= ~(e.isinf() & (a.abs() >= limits.max / 64))
    if absolute:  # a gelu: see `_moderate`; these are numbers of the graph
        known, finite = known & False, finite & (e.abs() < limits.max / 64)
    return known | (finite & ~((a - e).abs() <= allowed))
