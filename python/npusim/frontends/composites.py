"""Operators written as others: what has no kernel of its own, in terms of what has.

Owns the forward operators that torch.export leaves whole, and no backend computes as such;
`gradients.py` has the backward ones. Shapes are static here, so a choice among positions is a
matrix of zeros and ones or a gather, never a loop. Half precision is computed in float32 and
rounded once. `NotImplemented` leaves a call as it is.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

aten = torch.ops.aten

# The operator -> a function of its arguments that computes it from others.
WRITTEN: dict[torch._ops.OpOverload, Callable[..., Any]] = {}

# PyTorch's own rule (Distance.cpp): beyond this many rows, distances come from a product.
_ROWS_FOR_PRODUCT = 25


def written(operator: torch._ops.OpOverload) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Returns a decorator that enters a function in `WRITTEN`."""

    def enter(function: Callable[..., Any]) -> Callable[..., Any]:
        WRITTEN[operator] = function
        return function

    return enter


def widened(x: Tensor) -> Tensor:
    """Returns 16-bit floats as float32, everything else as it is."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


# ---- whole numbers ----

# Steps of Euclid's algorithm at most, by the bytes of a number: Fibonacci's numbers take the most.
_EUCLID = {1: 13, 2: 24, 4: 46, 8: 92}


@written(aten.gcd.default)
def _gcd(a: Tensor, b: Tensor) -> Tensor:
    """The greatest common divisor, at least 0."""
    kind = torch.result_type(a, b)
    a, b = torch.broadcast_tensors(a.to(kind).abs(), b.to(kind).abs())
    for _ in range(_EUCLID[kind.itemsize]):
        done = b == 0
        a, b = torch.where(done, a, b), torch.fmod(a, torch.where(done, 1, b))
    return a


@written(aten.lcm.default)
def _lcm(a: Tensor, b: Tensor) -> Tensor:
    """The least common multiple, at least 0; of few bits it is wrapped last, as PyTorch does."""
    divisor, kind = _gcd(a, b), torch.result_type(a, b)
    wide = kind if kind.itemsize >= 4 else torch.int32
    a, b, divisor = a.to(wide), b.to(wide), divisor.to(wide)
    part = torch.div(a, torch.where(divisor == 0, 1, divisor), rounding_mode="trunc")
    return (part * b).abs().to(kind)


# ---- creation ----


@written(aten.arange.start)
@written(aten.arange.start_step)
def _arange(
    start: Any, end: Any, step: Any = 1, *, dtype: torch.dtype | None = None, **kwargs: Any
) -> Tensor:
    """Counts from a symbolic size on: a count from 0, times the step, and that size."""
    if not isinstance(start, torch.SymInt) or not isinstance(step, int) or type(end) is float:
        return NotImplemented
    up = 1 if step > 0 else -1
    count = (up * (end - start) + abs(step) - 1) // abs(step)
    counted = aten.arange.default(count, dtype=torch.int64, device=kwargs.get("device"))
    return (counted * step + start).to(dtype or torch.int64)


# ---- distances ----


@written(aten._cdist_forward.default)
def _cdist(x1: Tensor, x2: Tensor, p: float, compute_mode: int | None) -> Tensor:
    """p-norms of the differences of all pairs of rows: x1[…, m, k], x2[…, n, k] to […, m, n]."""
    many = max(x1.shape[-2], x2.shape[-2]) > _ROWS_FOR_PRODUCT
    if p == 2.0 and x1.shape[-1] and (compute_mode == 1 or (not compute_mode and many)):
        squares = [(x * x).sum(-1, keepdim=True) for x in (x1, x2)]
        product = torch.matmul(x1, x2.transpose(-2, -1))
        return (squares[0] + squares[1].transpose(-2, -1) - 2 * product).clamp_min(0).sqrt()
    return _norm(x1.unsqueeze(-2) - x2.unsqueeze(-3), p)


@written(aten.dist.default)
def _dist(x: Tensor, y: Tensor, p: float = 2) -> Tensor:
    """The p-norm of the difference of two tensors, a scalar."""
    return torch.linalg.vector_norm(x - y, p)


@written(aten._pdist_forward.default)
def _pdist(x: Tensor, p: float = 2.0) -> Tensor:
    """p-norms of the differences of rows i < j of x[n, k], in the order of (i, j)."""
    count = x.shape[0]
    rows = [[i, j] for i in range(count) for j in range(i + 1, count)]
    if not rows:
        return x.new_zeros((0,))
    first, second = torch.triu_indices(count, count, 1, device=x.device).unbind(0)
    return _norm(x.index_select(0, first) - x.index_select(0, second), p)


def _norm(difference: Tensor, p: float) -> Tensor:
    """p-norms along the last dimension; p = 0 counts what is not zero."""
    if difference.shape[-1] == 0:
        return difference.new_zeros(difference.shape[:-1])
    size = difference.abs()
    if p == 0:
        return (size != 0).to(difference.dtype).sum(-1)
    if p == 1:
        return size.sum(-1)
    if p == 2:
        return torch.linalg.vector_norm(difference, 2, -1)
    if p == float("inf"):
        return size.amax(-1)
    return size.pow(p).sum(-1).pow(1 / p)


# ---- products ----


@written(aten.addbmm.default)
def _addbmm(x: Tensor, a: Tensor, b: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    """beta * x + alpha * the sum of a[b, n, k] · b[b, k, m]: one product over b * k."""
    wide = a.transpose(0, 1).reshape(a.shape[1], -1)
    return torch.addmm(x, wide, b.reshape(-1, b.shape[2]), beta=beta, alpha=alpha)


@written(aten._trilinear.default)
def _trilinear(
    a: Tensor,
    b: Tensor,
    c: Tensor,
    expand1: list[int],
    expand2: list[int],
    expand3: list[int],
    sumdim: list[int],
    unroll_dim: int = 1,
) -> Tensor:
    """The product of three tensors, each with new dimensions of extent 1, summed over some.

    What nn.Bilinear is made of: a[b, i], weight[o, i, j], c[b, j] to [b, o].
    """
    if expand1 == [1, 3] and expand2 == [0] and expand3 == [1, 2] and sumdim == [2, 3]:
        half = torch.matmul(a, b.permute(1, 0, 2).reshape(b.shape[1], -1))
        wide = half.reshape(a.shape[0], b.shape[0], b.shape[2])
        return torch.matmul(wide, c.unsqueeze(2)).squeeze(2)
    product: Tensor | None = None
    for x, dims in ((a, expand1), (b, expand2), (c, expand3)):
        for dim in dims:
            x = x.unsqueeze(dim)
        product = x if product is None else product * x
    assert product is not None
    return product.sum(sumdim)


# ---- choosing rows and elements ----


@written(aten._embedding_bag.default)
@written(aten._embedding_bag_forward_only.default)
def _embedding_bag(
    weight: Tensor,
    indices: Tensor,
    offsets: Tensor,
    scale_grad_by_freq: bool = False,
    mode: int = 0,
    sparse: bool = False,
    per_sample_weights: Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int = -1,
) -> Any:
    """Sums (mode 0), means (1) or maxima (2) of the rows in each bag.

    Which index lies in which bag depends on the offsets' values, and so is a mask [bags, indices];
    but for indices [bags, length], whose rows are the bags. The results after the first are what
    PyTorch's gradient reads.
    """
    if indices.dim() == 2:
        return _bags_of_one_length(weight, indices, mode, per_sample_weights, padding_idx)
    bags = offsets.shape[0] - int(include_last_offset)
    count = indices.shape[0]
    place = torch.arange(count, device=weight.device)
    begun = offsets[:bags].unsqueeze(1) <= place
    bag_of = begun.to(indices.dtype).sum(0) - 1
    mask = bag_of == torch.arange(bags, device=weight.device).unsqueeze(1)
    if padding_idx >= 0:
        mask = mask & (indices != padding_idx)
    rows = widened(weight.index_select(0, indices))
    sizes = mask.to(indices.dtype).sum(1)
    top = sizes  # as PyTorch leaves it where no maximum is asked for
    if mode == 2:
        result, top = _bag_maxima(rows, mask, indices, sizes)
    else:
        share = mask.to(rows.dtype)
        if per_sample_weights is not None:
            share = share * per_sample_weights.to(rows.dtype)
        result = torch.matmul(share, rows)
        if mode == 1:
            result = result / sizes.clamp_min(1).to(rows.dtype).unsqueeze(1)
    return result.to(weight.dtype), bag_of, sizes, top


def _bags_of_one_length(
    weight: Tensor, indices: Tensor, mode: int, per_sample_weights: Tensor | None, padding_idx: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    bags, length = indices.shape
    rows = widened(weight.index_select(0, indices.reshape(-1))).reshape(bags, length, -1)
    counted = torch.ones_like(indices, dtype=torch.bool)
    if padding_idx >= 0:
        counted = indices != padding_idx
    sizes = counted.to(indices.dtype).sum(1)
    bag_of = torch.arange(bags, device=weight.device).unsqueeze(1).expand(bags, length).reshape(-1)
    top = sizes
    if mode == 2:
        values, place = torch.where(counted.unsqueeze(2), rows, float("-inf")).max(1)
        full = (sizes > 0).unsqueeze(1)
        result = torch.where(full, values, 0)
        top = torch.where(full, indices.gather(1, place), 0)
    else:
        if per_sample_weights is not None:
            rows = rows * per_sample_weights.to(rows.dtype).reshape(bags, length, 1)
        if padding_idx >= 0:
            rows = torch.where(counted.unsqueeze(2), rows, 0)
        result = rows.sum(1)
        if mode == 1:
            result = result / sizes.clamp_min(1).to(rows.dtype).unsqueeze(1)
    return result.to(weight.dtype), bag_of, sizes, top


def _bag_maxima(
    rows: Tensor, mask: Tensor, indices: Tensor, sizes: Tensor
) -> tuple[Tensor, Tensor]:
    """Returns the largest element of each bag, 0 in an empty one, and the index it came from."""
    if rows.shape[0] == 0:
        empty = (mask.shape[0], rows.shape[1])
        return rows.new_zeros(empty), indices.new_zeros(empty)
    shown = torch.where(mask.unsqueeze(2), rows, float("-inf"))
    values, place = shown.max(1)
    full = (sizes > 0).unsqueeze(1)
    found = indices.index_select(0, place.reshape(-1)).reshape(place.shape)
    return torch.where(full, values, 0), torch.where(full, found, 0)


@written(aten.masked_scatter.default)
def _masked_scatter(x: Tensor, mask: Tensor, source: Tensor) -> Tensor:
    """The n-th place where the mask is true takes the n-th element of the source."""
    if source.numel() == 0 or x.numel() == 0:
        return x.clone()
    x, mask = torch.broadcast_tensors(x, mask)
    place = mask.reshape(-1).to(torch.int64).cumsum(0) - 1
    taken = source.reshape(-1).index_select(0, place.clamp(0, source.numel() - 1))
    return torch.where(mask, taken.reshape(x.shape), x)


@written(aten.histc.default)
def _histc(x: Tensor, bins: int = 100, min: float = 0, max: float = 0) -> Any:
    """Counts elements in equal bins between two bounds; equal bounds mean the extremes of x."""
    if x.dtype not in (torch.float32, torch.float64):
        return NotImplemented
    flat = x.reshape(-1)
    if flat.numel() == 0:
        return x.new_zeros(bins)
    low, high = (x.new_full((), bound) for bound in (min, max))
    if min == max:
        low, high = flat.amin(), flat.amax()
        apart = (low != high).to(x.dtype)
        low, high = low - (1 - apart), high + (1 - apart)
    inside = (flat >= low) & (flat <= high)
    place = torch.where(inside, (flat - low) * bins / (high - low), 0).to(torch.int64)
    return x.new_zeros(bins).scatter_add(0, place.clamp(0, bins - 1), inside.to(x.dtype))


@written(aten.put.default)
def _put(x: Tensor, index: Tensor, source: Tensor, accumulate: bool = False) -> Tensor:
    """Elements of the source at places counted through the whole tensor."""
    flat = x.reshape(-1).index_put([index.reshape(-1)], source.reshape(-1), accumulate)
    return flat.reshape(x.shape)


# ---- order ----


@written(aten.kthvalue.default)
def _kthvalue(x: Tensor, k: int, dim: int = -1, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    """The k-th smallest element along a dimension, and a place that has it."""
    values, places = torch.sort(x, dim=dim, stable=True)
    if x.dim() == 0:
        return values, places
    if keepdim:
        return values.narrow(dim, k - 1, 1), places.narrow(dim, k - 1, 1)
    return values.select(dim, k - 1), places.select(dim, k - 1)


@written(aten.median.dim)
def _median(x: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    """The lower of the middle elements, and a place that has it; NaN where there is one."""
    size = x.shape[dim] if x.dim() else 1
    middle = (size + 1) // 2 if isinstance(size, torch.SymInt) else max(1, (size + 1) // 2)
    values, places = _kthvalue(x, middle, dim, True)
    if x.is_floating_point():
        unknown = torch.isnan(x)
        values = torch.where(unknown.any(dim, True), float("nan"), values)
        places = torch.where(
            unknown.any(dim, True), unknown.to(torch.int64).argmax(dim, True), places
        )
    return (
        (values, places) if keepdim or not x.dim() else (values.squeeze(dim), places.squeeze(dim))
    )


@written(aten.median.default)
def _median_of_all(x: Tensor) -> Tensor:
    """The lower of the middle elements."""
    if not x.numel():
        return NotImplemented
    return _median(x.reshape(-1), 0)[0]


@written(aten.nanmedian.dim)
def _nanmedian(x: Tensor, dim: int, keepdim: bool = False) -> Any:
    """The lower of the middle elements of those that are numbers; NaN where there are none."""
    if not x.is_floating_point() or not x.dim():
        return _median(x, dim, keepdim)
    values, places = torch.sort(x, dim=dim, stable=True)  # what is no number comes last
    count = (x == x).to(torch.int64).sum(dim, keepdim=True)
    middle = torch.div(count - 1, 2, rounding_mode="floor").clamp_min(0)
    values, places = (torch.gather(t, dim, middle) for t in (values, places))
    return (values, places) if keepdim else (values.squeeze(dim), places.squeeze(dim))


@written(aten.mode.default)
def _mode(x: Tensor, dim: int = -1, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    """The smallest of the most frequent elements along a dimension, and the last place of it.

    Equal elements stand side by side once they are sorted: the longest run is looked for.
    """
    if not x.dim():
        return x.clone(), torch.zeros((), dtype=torch.int64, device=x.device)
    values, places = torch.sort(x, dim=dim, stable=True)
    shape = [-1 if d == dim % x.dim() else 1 for d in range(x.dim())]
    place = torch.arange(x.shape[dim], device=x.device).view(shape)
    begins = (values != values.roll(1, dim)) | (place == 0)
    first = torch.where(begins, place, 0).cummax(dim).values
    at = (place - first).argmax(dim, keepdim=True)
    values, places = (torch.gather(t, dim, at) for t in (values, places))
    return (values, places) if keepdim else (values.squeeze(dim), places.squeeze(dim))


@written(aten.nanmedian.default)
def _nanmedian_of_all(x: Tensor) -> Tensor:
    """The lower of the middle elements of those that are numbers."""
    if not x.numel():
        return NotImplemented
    return _nanmedian(x.reshape(-1), 0)[0]


@written(aten.searchsorted.Tensor)
def _searchsorted(
    ordered: Tensor,
    values: Tensor,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: Tensor | None = None,
) -> Tensor:
    """Where each value would be inserted: as many places as elements are smaller.

    NaN is the greatest value.
    """
    if sorter is not None:
        ordered = torch.gather(ordered, -1, sorter)
    row, value = ordered.unsqueeze(-2), values.unsqueeze(-1)
    if ordered.dim() == 1:
        row = ordered
    before = row <= value if right or side == "right" else row < value
    if value.is_floating_point():
        before = before | value.isnan()
    return before.sum(-1).to(torch.int32 if out_int32 else torch.int64)


@written(aten.bucketize.Tensor)
def _bucketize(
    values: Tensor, boundaries: Tensor, *, out_int32: bool = False, right: bool = False
) -> Tensor:
    """The bucket of each value; a boundary belongs to the bucket before it unless `right`."""
    return _searchsorted(boundaries, values, out_int32=out_int32, right=right)


# ---- numbers ----


@written(aten.masked_fill.Scalar)
def _masked_fill(x: Tensor, mask: Tensor, value: Any) -> Any:
    """A number where the mask is true; one that the dtype does not hold is left to be refused."""
    if x.is_floating_point() and math.isfinite(value) and abs(value) > torch.finfo(x.dtype).max:
        return NotImplemented
    return torch.where(mask, torch.full((), value, dtype=x.dtype), x)


@written(aten.__lshift__.Scalar)
@written(aten.__lshift__.Tensor)
def _shifted_left(x: Tensor, amount: Any) -> Tensor:
    """What `x << amount` means to Python."""
    return torch.bitwise_left_shift(x, amount)


@written(aten.__rshift__.Scalar)
@written(aten.__rshift__.Tensor)
def _shifted_right(x: Tensor, amount: Any) -> Tensor:
    """What `x >> amount` means to Python."""
    return torch.bitwise_right_shift(x, amount)


@written(torch.ops.prims.scalar_tensor.default)
def _scalar_tensor(s: Any, *, dtype: torch.dtype | None, device: Any = None) -> Tensor:
    """A number as a tensor, as PyTorch's own ways to write operators spell it."""
    return torch.full((), s, dtype=dtype)


@written(aten.angle.default)
def _angle(x: Tensor) -> Any:
    """The angle of real numbers: 0, or π below 0; NaN of what is none."""
    if x.is_complex():
        return NotImplemented
    real = x if x.is_floating_point() else x.float()
    return torch.where(real < 0, torch.pi, torch.where(real != real, real, 0.0))


@written(aten.erfinv.default)
def _erfinv(y: Tensor) -> Tensor:
    """The x whose erf is y; infinite at -1 and 1, NaN beyond.

    Winitzki's approximation (two digits), then three of Halley's steps, each of which triples the
    digits, in float64.
    """
    kind = y.dtype if y.is_floating_point() else torch.get_default_dtype()
    wide, a = y.double(), 0.147
    inside = torch.where(wide.abs() < 1, wide, 0.0)
    log = torch.log1p(-inside * inside)
    half = 2 / (math.pi * a) + log / 2
    x = ((half * half - log / a).sqrt() - half).clamp_min(0).sqrt() * torch.sign(inside)
    for _ in range(3):
        step = (torch.erf(x) - inside) * torch.exp(x * x) * (math.sqrt(math.pi) / 2)
        x = x - step / (1 + x * step)
    edge = torch.where(wide.abs() == 1, wide * float("inf"), float("nan"))
    return torch.where(wide.abs() < 1, x, edge).to(kind)


# ---- what training reads besides the result ----


@written(aten.rrelu.default)
def _rrelu(
    x: Tensor,
    lower: float = 1 / 8,
    upper: float = 1 / 3,
    training: bool = False,
    generator: Any = None,
) -> Any:
    """x above zero, x times the middle of the slopes elsewhere; while training they are random."""
    if training:
        return NotImplemented
    return aten.leaky_relu.default(x, (lower + upper) / 2)


@written(aten.native_dropout.default)
def _native_dropout(x: Tensor, p: float, train: bool | None) -> Any:
    """Dropout in evaluation, or of everything; in between it is random, and stays as it is."""
    if train is False or p == 0:
        return x.clone(), torch.ones_like(x, dtype=torch.bool)
    if p == 1:
        return torch.zeros_like(x), torch.zeros_like(x, dtype=torch.bool)
    return NotImplemented


@written(aten.native_layer_norm.default)
def _native_layer_norm(
    x: Tensor, shape: list[int], weight: Tensor | None, bias: Tensor | None, eps: float
) -> Any:
    """Layer norm, and mean and 1 / deviation over the last dimensions."""
    dims = list(range(x.dim() - len(shape), x.dim()))
    mean, rstd = _statistics(x, dims, eps)
    return aten.layer_norm.default(x, shape, weight, bias, eps), mean, rstd


@written(aten.native_group_norm.default)
def _native_group_norm(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    batch: int,
    channels: int,
    spatial: int,
    groups: int,
    eps: float,
) -> Any:
    """Group norm, and mean and 1 / deviation of each group, [batch, groups]."""
    flat = x.reshape(batch, groups, channels // groups * spatial)
    mean, rstd = (t.squeeze(2) for t in _statistics(flat, [2], eps))
    return aten.group_norm.default(x, groups, weight, bias, eps, False), mean, rstd


def _statistics(x: Tensor, dims: list[int], eps: float) -> tuple[Tensor, Tensor]:
    variance, mean = torch.var_mean(widened(x), dims, correction=0, keepdim=True)
    return mean.to(x.dtype), torch.rsqrt(variance + eps).to(x.dtype)
