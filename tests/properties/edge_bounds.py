"""What linears, matmuls, convolutions and attention are on edge values, and what results may miss.

Their results are computed in float64 and rounded once: PyTorch's own kernels of 16-bit floats make
NaN of some infinities. A sum may be off by two roundings of float32 of the sum of its terms' sizes
for each of its terms, whatever their order (Higham, Accuracy and Stability of Numerical
Algorithms, 3.1), and a result of 16 bits by a unit in its own last place: it is rounded once.
What that is worth to the softmax and the matmul of attention is worked out for each row.

A bound that is infinite leaves an element open: a number that may be 0 or not times an infinity,
what attention makes of keys and values that a mask hides and that are no finite numbers, a row of
written-out attention whose scores are -infinity without a mask's doing, and a weight that is no
number where it meets a convolution's padding.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from npusim._runtime import isa_names
from npusim.ir.graph import Graph, Node
from npusim.ops.reference import GraphRun, Observer

_ATTENTION = "aten.scaled_dot_product_attention.default"
_SOFTMAX = "aten.softmax.int"
_LOGSUMEXP = "aten.logsumexp.default"
_MATMULS: dict[str, Callable[..., Tensor]] = {
    "aten.linear.default": functional.linear,
    "aten.matmul.default": torch.matmul,
    "aten.conv1d.default": functional.conv1d,
    "aten.conv2d.default": functional.conv2d,
}
_ADDITIVE = ("aten.add.Tensor", "aten.relu.default", "aten.clamp.default")
_EPS = torch.finfo(torch.float32).eps
_TINY = torch.finfo(torch.float32).tiny
_VANISHES = (80.0, 110.0)  # how far below the largest score a weight of float32 becomes 0
_OPEN = torch.inf
# Its products of bfloat16 read what is below the normal numbers as 0.
_FLUSHES = os.environ.get("NPUSIM_ISA", isa_names()[0]) == "avx512bf16"

Values = Sequence[Any]


def has_sums(graph: Graph) -> bool:
    """Tells whether a graph has linears, matmuls, convolutions or attention."""
    return any(node.op in _MATMULS or node.op == _ATTENTION for node in graph.nodes)


def run_exactly(
    graph: Graph,
    inputs: Sequence[Tensor],
    weights: Mapping[str, Tensor],
    observe: Observer | None = None,
) -> list[Tensor]:
    """Returns what `run_graph` does, but for sums: these are rounded once."""
    run = GraphRun(graph, inputs, weights)
    for node, _, results in _steps(run):
        if observe is not None:
            observe(node, results)
    return run.outputs()


def _steps(run: GraphRun) -> Iterator[tuple[Node, Values, list[Tensor]]]:
    for node, results in run:
        given = run.operands(node)
        values = [None if i is None else given[i] for i in node.inputs]
        if node.op == _ATTENTION:
            results[0].copy_(_attention(node, values)[0])
        elif node.op in _MATMULS and results[0].dtype != torch.float64:
            results[0].copy_(_matmul(node, [None if v is None else v.double() for v in values]))
        yield node, values, results


def _matmul(node: Node, values: Values) -> Tensor:
    return _MATMULS[node.op](*values, **node.attrs)


def error_bounds(
    graph: Graph, inputs: Sequence[Tensor], weights: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Returns how far values may be off that are sums, rounded to 16 bits, or made of such.

    What is infinite or NaN whatever is rounded has a bound of 0.
    """
    found: dict[str, Tensor] = {}
    errors: dict[str, Tensor] = {}  # likewise, and anything where a value may have overflowed
    for node, values, results in _steps(GraphRun(graph, inputs, weights)):
        passed = [None if i is None else errors.get(i) for i in node.inputs]
        for value, result in zip(node.outputs, results, strict=True):
            bound = _bound(node, values, passed, result) if result.is_floating_point() else None
            if bound is not None:
                found[value.name] = bound
                errors[value.name] = bound.masked_fill(~result.isfinite() & (bound > 0), _OPEN)
    return found


def _bound(
    node: Node, values: Values, errors: Sequence[Tensor | None], result: Tensor
) -> Tensor | None:
    """Returns how far one result may be off, or None if nothing is known beyond its rounding."""
    rounding, passed = _rounding(node, result), [e for e in errors if e is not None]
    if node.op == _ATTENTION:
        return _attention(node, values)[1] + rounding
    if node.op in _MATMULS:
        return _matmul_bound(node, values, errors[0], result, rounding)
    if node.op == _LOGSUMEXP:  # the largest, and the logarithm of how many there are
        rounding = rounding + 2 * 12 * _EPS * (_sizes(values[0]).amax() + 3)
    elif not passed:
        return rounding if result.itemsize == 2 else None
    elif node.op == _SOFTMAX:
        return _softmax_bound(values[0].double(), passed[0]) + rounding
    bound = rounding + sum((_passed_on(node, e, result) for e in passed), torch.zeros(()))
    certain = ~result.isfinite() & ~torch.stack([e.isinf().any() for e in passed or [bound]]).any()
    given = [~v.isfinite() for v in values if v is not None and v.is_floating_point()]
    if certain.any() and all(g.numel() in (1, result.numel()) for g in given):
        infinite = torch.stack([g.expand(result.shape) for g in given]).any(0)
        bound = bound.masked_fill(certain & infinite, 0.0)
    if node.op == "aten.add.Tensor" and result.dim() == 4:
        bound = bound.expand(result.shape).masked_fill(_nothing(result), _OPEN)
        bound = bound.masked_fill(_nothing(values[1]) & _nothing(result), 0.0)
    return bound


def _passed_on(node: Node, error: Tensor, result: Tensor) -> Tensor:
    """Returns what an operand's error is worth to a result."""
    if node.op == "aten.mul.Scalar":
        factor = abs(float(node.attrs["other"]))  # type: ignore[arg-type]
        return torch.where(error.isinf(), _OPEN, error * factor)
    if node.op in _ADDITIVE:
        return error.expand(result.shape)
    if error.shape == result.shape:
        return 2 * error  # element by element: the factor stays below 2
    return error.transpose(-1, -2) if "transpose" in node.op else error.amax().expand(result.shape)


def _rounding(node: Node, result: Tensor) -> Tensor:
    """Returns a unit in the last place of a result of 16 bits that is rounded; elsewhere 0."""
    if result.itemsize != 2 or not node.name.startswith("r"):
        return torch.zeros(result.shape, dtype=torch.float64)
    info = torch.finfo(result.dtype)
    return result.double().abs().nan_to_num(0.0, info.max).clamp(min=info.tiny) * info.eps


def _sizes(x: Tensor) -> Tensor:
    return x.double().nan_to_num(0.0, 0.0, 0.0).abs()


def _flushed(x: Tensor) -> Tensor:
    """Returns what an operand loses where the processor reads small numbers as 0."""
    small = (x.abs() < _TINY) & (x.dtype == torch.bfloat16) & _FLUSHES
    return torch.where(small, x.double().abs(), 0.0)


def _padded_taps(node: Node, values: Values) -> Tensor:
    """Tells where a weight that is no number meets padding, which need not be multiplied."""
    special = (~values[1].isfinite()).double()
    met = _matmul(node, [torch.ones_like(values[0], dtype=torch.float64), special, None])
    return met < special.flatten(1).sum(1).reshape(-1, *(1,) * (met.dim() - 2))


def _lost_by_scaling(queries: Tensor, scale: float) -> Tensor:
    """Returns what queries lose that attention scales before it multiplies them."""
    least = 2.0**-150  # half of the least number above 0 of float32
    return torch.where(queries.double().abs() * scale < _TINY, least / scale, 0.0)


def _matmul_bound(
    node: Node, values: Values, error: Tensor | None, result: Tensor, rounding: Tensor
) -> Tensor:
    sizes = [None if v is None else _sizes(v) for v in values]
    total = _matmul(node, sizes)
    terms = values[1][0].numel() if "conv" in node.op else values[0].shape[-1]
    bound = 2 * (terms + 1) * (_EPS * total + _TINY) + rounding
    fits = total < torch.finfo(result.dtype).max / 2
    bound = bound.masked_fill(~result.isfinite() & fits, 0.0)
    if error is None and node.op == "aten.matmul.default" and result.dim() == 4:
        bound = bound.masked_fill(_nothing(result), _OPEN)
    losses = [_flushed(v) for v in values[:2]]
    if error is None and result.dim() == 4 and "conv" not in node.op:  # scores that may be fused
        losses[0] = torch.maximum(losses[0], _lost_by_scaling(values[0], 0.125))
    if error is not None:
        losses[0] = losses[0] + error
    doubtful = torch.zeros(result.shape, dtype=torch.bool)
    if "conv" in node.op:
        doubtful = _padded_taps(node, values)
    if error is not None:
        doubtful = error.isinf().any(-1, keepdim=True).expand(result.shape)
    for at, loss in enumerate(losses):
        if not bool((loss > 0).any()):
            continue
        pair, doubts = list(sizes[:2]), [v.isinf().double() for v in values[:2]]
        pair[at], doubts[at] = loss.nan_to_num(0.0, 0.0), (values[at].abs() <= loss).double()
        others = [None] * (len(values) - 2)
        bound = bound + _matmul(node, [*pair, *others])
        doubtful = doubtful | (_matmul(node, [*doubts, *others]) > 0)
    return bound.masked_fill(doubtful, _OPEN)


def _nothing(scores: Tensor) -> Tensor:
    """Tells which rows of scores see nothing."""
    return (scores == -torch.inf).all(-1, keepdim=True)


def _softmax_bound(scores: Tensor, error: Tensor) -> Tensor:
    """Returns what errors of scores are worth to their softmax, along the last dimension."""
    weights = scores.softmax(-1)
    least = (weights * torch.exp(-error)).sum(-1, keepdim=True)
    most = (weights * torch.exp(error)).sum(-1, keepdim=True)
    above = weights * (torch.exp(error) / least - 1)
    below = weights * (1 - torch.exp(-error) / most)
    bound = torch.maximum(above, below).nan_to_num(1.0).clamp(0.0, 1.0)
    bound = (bound + 8 * _EPS * weights + _TINY).masked_fill(weights.isnan(), 0.0)
    return bound.masked_fill(error.isinf().any(-1, keepdim=True), _OPEN)


@dataclass(frozen=True)
class _Scores:
    """Scores of attention, [b, heads, q, k] each, in float64.

    Attributes:
        raw: scaled, no mask on them.
        masked: -infinity where hidden.
        error: how far off they may be.
        doubtful: which may be an infinity or NaN, as a number that may be 0 meets an infinity.
    """

    raw: Tensor
    masked: Tensor
    hidden: Tensor
    error: Tensor
    doubtful: Tensor


def _scores(node: Node, values: Values) -> _Scores:
    mask = values[3] if len(values) > 3 else None
    scale = float(node.attrs.get("scale") or 1 / sqrt(values[0].shape[-1]))  # type: ignore[arg-type]
    keys = values[1].repeat_interleave(values[0].shape[1] // values[1].shape[1], 1)
    q, k = values[0].double(), keys.double().mT
    raw, sizes = q @ k * scale, _sizes(q) @ _sizes(k) * scale
    hidden, masked = torch.zeros(raw.shape, dtype=torch.bool), raw
    if node.attrs.get("is_causal", False):
        hidden = torch.ones(raw.shape, dtype=torch.bool).triu(1)
    elif mask is not None and mask.dtype == torch.bool:
        hidden = (~mask).expand(raw.shape)
    elif mask is not None:
        hidden = (mask == -torch.inf).expand(raw.shape)
        masked, sizes = raw + mask, sizes + _sizes(mask)
    masked = masked.masked_fill(hidden, -torch.inf)
    lost_q = torch.maximum(_lost_by_scaling(values[0], scale), _flushed(values[0]))
    lost_k = _flushed(keys).mT
    sizes = sizes + (lost_q @ _sizes(k) + _sizes(q) @ lost_k) * scale / _EPS
    doubts = (q.abs() <= lost_q).double() @ k.isinf().double()
    doubts = doubts + q.isinf().double() @ (k.abs() <= lost_k).double()
    error = 2 * (q.shape[-1] + 2) * _EPS * sizes
    return _Scores(raw, masked, hidden, error, doubts > 0)


def _attention(node: Node, values: Values) -> tuple[Tensor, Tensor]:
    """Returns attention in float64 and how far off it may be; a row that sees nothing is 0."""
    scores, x = _scores(node, values), values[2]
    hidden = scores.hidden
    v = x.double().repeat_interleave(scores.raw.shape[1] // x.shape[1], 1)
    alone = _nothing(scores.masked)
    below = scores.masked.amax(-1, keepdim=True) - scores.masked
    weights = scores.masked.softmax(-1).masked_fill(alone | (below > _VANISHES[1]), 0.0)
    seen = torch.where(hidden.unsqueeze(-1), 0.0, weights.unsqueeze(-1) * v.unsqueeze(-3))
    result = seen.sum(-2)

    error = scores.error + _EPS * _sizes(below)
    step = torch.finfo(x.dtype).eps if x.itemsize == 2 else 0.0  # weights are rounded to it
    each = 2 * (step + (v.shape[-2] + 1) * _EPS) * weights.nan_to_num(0.0) + 2 * _TINY
    bound = (_softmax_bound(scores.masked, error) + each) @ _sizes(v) + _flushed(x).amax()
    bound = bound.masked_fill(~result.isfinite() | alone, 0.0)

    margin = 2 * error.amax(-1, keepdim=True)
    fades = (below > _VANISHES[0] - margin) & (below < _VANISHES[1] + margin) & ~hidden
    unread = (hidden & ~scores.raw.isfinite()).any(-1, keepdim=True)
    unread = unread | ((hidden | alone).double() @ (~v.isfinite()).double() > 0)
    doubtful = (fades.double() @ v.isinf().double() > 0) | (unread & (alone | ~result.isnan()))
    doubtful = doubtful | (scores.doubtful & ~hidden).any(-1, keepdim=True)
    return result, bound.masked_fill(doubtful, _OPEN)
