"""Operators written as others, over their modes and geometries: compiled, and compared.

One extraction holds all calls of a group; `tests/conformance/test_claims.py` has the dtypes.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import npusim

aten = torch.ops.aten

Calls = list[tuple[Callable[..., Any], tuple[Tensor, ...]]]


class _Calls(nn.Module):
    """Several calls; forward takes the tensors of all of them."""

    def __init__(self, calls: Calls) -> None:
        super().__init__()
        self.calls = calls
        self.eval()

    def forward(self, *tensors: Tensor) -> Any:
        rest = iter(tensors)
        return [function(*(next(rest) for _ in given)) for function, given in self.calls]


def _random(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def _distances() -> Calls:
    orders = (0.0, 1.0, 2.0, 3.0, float("inf"))
    calls: Calls = [
        (lambda a, b, p=p: torch.cdist(a, b, p), (_random(2, 5, 3), _random(2, 6, 3)))
        for p in orders
    ]
    calls += [(lambda x, p=p: torch.pdist(x, p), (_random(5, 3),)) for p in orders]
    return [*calls, (lambda x: torch.pdist(x), (_random(1, 3),))]


def _bags() -> Calls:
    flat = torch.tensor([1, 2, 4, 5, 4, 3, 2, 9])
    calls: Calls = []
    hidden = _random(10, 3)
    hidden[2] = torch.nan  # the row of the padding index
    for mode in ("sum", "mean", "max"):
        calls.append((lambda i, w, o, m=mode: F.embedding_bag(i, w, o, mode=m),
                      (flat, _random(10, 3), torch.tensor([0, 4, 4, 6]))))  # fmt: skip
        calls.append((lambda i, w, m=mode: F.embedding_bag(i, w, mode=m, padding_idx=2),
                      (flat.reshape(2, 4), hidden)))  # fmt: skip
        calls.append((lambda i, w, m=mode: F.embedding_bag(i, w, mode=m),
                      (flat.reshape(8, 1), _random(10, 3))))  # fmt: skip
    options: dict[str, Any] = {"mode": "sum", "include_last_offset": True}
    weighted = (flat, _random(10, 3), torch.tensor([0, 4, 8]), _random(8))
    calls.append((lambda i, w, o, s: F.embedding_bag(i, w, o, per_sample_weights=s, **options),
                  weighted))  # fmt: skip
    rows = (flat.reshape(2, 4), _random(10, 3), _random(2, 4))
    calls.append((lambda i, w, s: F.embedding_bag(i, w, per_sample_weights=s, mode="sum"), rows))
    return calls


def _grids() -> Calls:
    modes = product((0, 1, 2), (0, 1, 2), (False, True))
    image = _random(2, 3, 5, 6)
    image[:, 0, 0, 0], image[:, 1, 4, 5] = torch.inf, torch.nan  # what lies outside is not these
    places = 3 * _random(2, 7, 4, 2)
    calls: Calls = [
        (lambda x, g, m=m, p=p, a=a: aten.grid_sampler_2d(x, g, m, p, a), (x, places))
        for m, p, a in modes for x in (_random(2, 3, 5, 6), image, _random(2, 3, 1, 6))
    ]  # fmt: skip
    nowhere = torch.tensor([torch.nan, torch.inf, -torch.inf, 0.3, 1, -1]).view(1, 1, 3, 2)
    calls += [
        (lambda x, g, m=m, p=p: aten.grid_sampler_2d(x, g, m, p, False), (image[1:, :1], nowhere))
        for m, p in product((0, 1, 2), (0, 1, 2))
    ]
    return calls


def _pool_gradients() -> Calls:
    geometries: tuple[tuple[Any, ...], ...] = (
        ([3, 2], [2, 1], [1, 1], False, True, None),
        ([3, 3], [2, 2], [1, 1], True, True, None),
        ([3, 3], [2, 2], [1, 0], False, False, None),
        ([3, 3], [], [1, 0], True, False, 5),
    )
    x = _random(2, 3, 9, 8)
    calls: Calls = [
        (lambda g, x, a=a: aten.avg_pool2d_backward(g, x, *a),
         (_random(*aten.avg_pool2d(x, *a).shape), x))
        for a in geometries
    ]  # fmt: skip
    calls.append((aten._adaptive_avg_pool2d_backward, (_random(2, 3, 4, 3), x)))
    largest, place = aten.max_pool2d_with_indices(x, [3, 3], [2, 2], [1, 1])
    rest = ([3, 3], [2, 2], [1, 1], [1, 1], False)
    calls.append((lambda g, x, i: aten.max_pool2d_with_indices_backward(g, x, *rest, i),
                  (_random(*largest.shape), x, place)))  # fmt: skip
    return calls


def _convolution_gradients() -> Calls:
    calls: Calls = []
    for transposed, groups, s, p, d, o in (
        *((False, 1, 1, 0, 1, 0), (False, 2, 2, 1, 2, 0), (False, 1, 3, 2, 1, 0)),
        *((True, 1, 1, 0, 1, 0), (True, 2, 2, 1, 1, 1)),
    ):
        x = _random(2, 4, 9, 8)
        w = _random(4, 6 // groups, 3, 2) if transposed else _random(6, 4 // groups, 3, 2)
        rest = ([s] * 2, [p] * 2, [d] * 2, transposed, [o] * 2, groups)
        grad = _random(*aten.convolution(x, w, None, *rest).shape)
        calls.append((lambda g, x, w, r=rest: aten.convolution_backward(
            g, x, w, [6], *r, [True] * 3), (grad, x, w)))  # fmt: skip
        calls.append((lambda g, x, w, r=rest: aten.convolution_backward(
            g, x, w, None, *r, [False, True, False])[1], (grad, x, w)))  # fmt: skip
    return calls


def _order() -> Calls:
    x = _random(3, 7)
    gap = x.clone()
    gap[1, 2] = float("nan")
    ordered, values = _random(3, 4).sort(-1).values, _random(3, 5)
    values[1, 1:3] = torch.tensor([torch.nan, torch.inf])
    return [
        (lambda x: torch.kthvalue(x, 2, 1), (x,)),
        (lambda x: torch.kthvalue(x, 2, 0, True), (x,)),
        (lambda x: torch.median(x, 1).values, (gap,)),
        (torch.median, (gap,)),
        (torch.median, (_random(4, 5),)),
        (lambda x: torch.cummax(x, 1), (gap,)),
        (lambda x: torch.cummin(x, 0), (x.round(),)),
        (torch.searchsorted, (ordered, values)),
        (lambda o, v: torch.searchsorted(o, v, right=True, out_int32=True), (ordered[0], values)),
        (torch.bucketize, (values, ordered[0])),
        (lambda x: torch.mode(x, 1).values, (x.round(),)),
        (lambda x: torch.mode(x, 0, True), (x.round(),)),
        (torch.mode, (torch.tensor([3, 1, 3, 1, 2, 1]),)),
        (torch.mode, (torch.tensor(2.0),)),
        (torch.mode, (torch.tensor([[True, False, True]]),)),
    ]


def _resizes() -> Calls:
    targets: tuple[dict[str, Any], ...] = (
        *({"size": (4, 5)}, {"size": (13, 20)}),
        *({"scale_factor": 0.4}, {"scale_factor": (1.7, 0.6)}),
    )
    return [
        (
            lambda x, m=m, t=t: F.interpolate(x, mode=m, antialias=True, **t),
            (_random(2, 3, 11, 12),),
        )
        for m, t in product(("bilinear", "bicubic"), targets)
    ]


def _blocks() -> Calls:
    """Windows that overlap, touch, leave gaps and are cut off, dilated ones, without a batch."""
    geometries = (
        *((3, 1, 1, 2), ((3, 2), 1, (1, 0), (2, 1)), (7, 1, 2, 4), (2, 1, 0, 2), (1, 1, 0, 3)),
        *(((2, 4), 1, (1, 3), (3, 1)), (3, 2, 1, 1), ((2, 3), (1, 2), 0, (2, 1))),
    )
    calls: Calls = []
    for geometry in geometries:
        for x in (_random(2, 3, 11, 8), _random(2, 9, 12)):
            blocks = F.unfold(x, *geometry)  # type: ignore[arg-type]
            # Sums of such numbers are exact in any order.
            columns = (8 * _random(*blocks.shape)).round()
            calls.append((lambda t, g=geometry: F.unfold(t, *g), (x,)))
            calls.append((lambda t, s=x.shape[-2:], g=geometry: F.fold(t, s, *g), (columns,)))
    return calls


def _divisors() -> Calls:
    kinds = (torch.int64, torch.int32, torch.int8, torch.uint8)
    pairs = [([0, 12, 0, 121, 100, 127], [0, 0, 7, 44, 75, 89])] * 4
    calls: Calls = []
    for kind, (a, b) in zip(kinds, pairs, strict=True):
        given = torch.tensor(a, dtype=kind), torch.tensor(b, dtype=kind)
        calls += [(torch.gcd, given), (torch.lcm, given)]
    signed = torch.tensor([[-12], [18], [7]]), torch.tensor([8, -27, 0], dtype=torch.int32)
    fibonacci = torch.tensor([7540113804746346429]), torch.tensor([4660046610375530309])
    return [*calls, (torch.gcd, signed), (torch.lcm, signed), (torch.gcd, fibonacci)]


def _special() -> Calls:
    inf, nan = torch.inf, torch.nan
    edges = torch.tensor([0, -0.0, inf, -inf, nan, 1, 2, 1e-30, -1e-30, 3e38, -1, -2])
    x = torch.cat([edges, torch.linspace(-12.3, 14.1, 97), torch.linspace(-1.45, 3.1, 50)])
    functions = (
        *(torch.erfc, torch.special.erfcx, torch.special.log_ndtr, torch.lgamma, torch.digamma),
        *(torch.i0, torch.special.i0e, torch.special.i1, torch.special.i1e),
    )
    calls: Calls = [(function, (x,)) for function in functions]
    calls += [(function, (torch.arange(1, 6),)) for function in (torch.lgamma, torch.erfc)]
    half = x[12:].half()
    calls += [(function, (half,)) for function in (torch.erfc, torch.digamma, torch.i0)]
    positive = torch.cat([edges[[2, 4, 5, 6]], torch.linspace(0.05, 30, 40)])
    calls += [(lambda x, n=n: torch.polygamma(n, x), (positive,)) for n in (0, 1)]
    return [*calls, (lambda x: torch.mvlgamma(x, 3), (positive[4:] + 2,))]


def _others() -> Calls:
    x, mask = _random(3, 4), _random(4) > 0
    return [
        (lambda x, m, s: x.masked_scatter(m, s), (x, mask, _random(12))),
        (lambda x: aten.native_dropout(x, 0.5, False), (x,)),
        (lambda x: aten.native_dropout(x, 1.0, True), (x,)),
        (lambda x, i, s: x.put(i, s, accumulate=True), (x, torch.tensor([1, -1, 1]), _random(3))),
        (torch.addbmm, (_random(4), _random(2, 3, 5), _random(2, 5, 4))),
        (F.bilinear, (_random(5, 3), _random(5, 4), _random(6, 3, 4), _random(6))),
        (torch.dist, (x, _random(3, 1))),
        (lambda x, w, b, m, v: aten._native_batch_norm_legit_no_training(
            x, w, b, m, v, 0.1, 1e-5), (x, *(_random(4) for _ in range(3)), _random(4).abs())),
        (F.rrelu, (torch.tensor([-1, -0.0, 2, float("inf"), float("-inf"), float("nan")]),)),
        (lambda x: F.rrelu(x, 0.1, 0.4), (x,)),
        (torch.ldexp, (x, torch.tensor([1, 2, 3, -4]))),
        (torch.erfinv, (torch.tensor([0, 1e-8, -0.3, 0.7, -0.999, 1, -1, 1.5, float("nan")]),)),
    ]  # fmt: skip


@pytest.mark.parametrize(
    "calls",
    [
        *(_distances, _bags, _grids, _pool_gradients, _convolution_gradients, _order),
        *(_resizes, _blocks, _divisors, _special, _others),
    ],
)
def test_composites(calls: Callable[[], Calls]) -> None:
    model = _Calls(calls())
    tensors = tuple(t for _, given in model.calls for t in given)
    session = npusim.load(npusim.compile(npusim.extract_ir(model, tensors)))
    results = [result for call in model(*tensors) for result in _leaves(call)]
    for got, want in zip(session(*tensors), results, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4, equal_nan=True)


def _leaves(result: Any) -> list[Tensor]:
    return [result] if isinstance(result, Tensor) else [r for r in result if r is not None]


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_bags_of_one_length_take_no_matrix_of_bags(mode: str) -> None:
    bags = nn.EmbeddingBag(20, 5, mode=mode).eval()
    batch = {0: torch.export.Dim("batch", max=9)}
    graph = npusim.extract_ir(bags, (torch.arange(12).view(4, 3),), dynamic_shapes=(batch,))
    assert not [node.op for node in graph.nodes if "mm" in node.op or "matmul" in node.op]
    session = npusim.load(npusim.compile(graph), bags)
    for size in (1, 9):
        index = torch.randint(0, 20, (size, 3))
        torch.testing.assert_close(session(index)[0], bags(index))
