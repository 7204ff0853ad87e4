"""Types of what works on windows of images and sequences: convolutions, pooling, resampling."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from npusim.errors import SymbolicSizeError
from npusim.ir.symbolic import is_symbolic
from npusim.ir.types import TensorType
from npusim.ops.inference.promotion import kind_of, require, require_float
from npusim.ops.inference.sizes import differ, surely_less

Rule = Callable[..., Any]
Ints = Sequence[int]


def _full(values: Ints, rank: int, what: str) -> tuple[int, ...]:
    values = tuple(values) * rank if len(values) == 1 else tuple(values)
    require(len(values) == rank, f"{what} is {list(values)}, expected {rank} numbers.")
    return values


def _at_least(values: Ints, least: int, what: str) -> None:
    require(not any(surely_less(v, least) for v in values), f"{what} is {list(values)}.")


def _convolution(
    x: TensorType,
    w: TensorType,
    bias: TensorType | None,
    stride: Ints,
    padding: Ints,
    dilation: Ints,
    transposed: bool,
    output_padding: Ints,
    groups: int,
) -> TensorType:
    rank = w.rank - 2
    require(1 <= rank <= 3 and x.rank in (rank + 1, rank + 2), f"x is {x}, the weight {w}.")
    require(x.dtype == w.dtype, f"x is {x}, the weight {w}: of two dtypes.")
    require(kind_of(x.dtype) != "bool", "it takes no tensors of bool.")
    stride, dilation = _full(stride, rank, "stride"), _full(dilation, rank, "dilation")
    padding = _full(padding, rank, "padding")
    output_padding = _full(output_padding, rank, "output_padding")
    _at_least(stride, 1, "stride")
    _at_least(dilation, 1, "dilation")
    _at_least((*padding, *output_padding), 0, "padding")
    require(groups > 0, f"groups is {groups}.")
    inputs = w.shape[0] if transposed else w.shape[1] * groups
    outputs = w.shape[1] * groups if transposed else w.shape[0]
    channel = x.rank - rank - 1
    fits = not differ(x.shape[channel], inputs) and w.shape[0] % groups == 0
    require(fits, f"x is {x}, the weight {w}, groups {groups}: the channels do not fit.")
    require(not (transposed and inputs == 0), f"the weight {w} is empty.")
    if bias is not None:
        right = bias.rank == 1 and not differ(bias.shape[0], outputs) and bias.dtype == x.dtype
        require(right, f"the bias is {bias}, expected {x.dtype}[{outputs}].")
    sizes = []
    for i in range(rank):
        size, kernel = x.shape[channel + 1 + i], w.shape[2 + i]
        require(kernel > 0, f"the kernel of {w} is empty.")
        span = dilation[i] * (kernel - 1) + 1
        if transposed:
            bound = max(stride[i], dilation[i])
            require(output_padding[i] < bound, f"output_padding is {list(output_padding)}.")
            sizes.append((size - 1) * stride[i] - 2 * padding[i] + span + output_padding[i])
        else:
            sizes.append((size + 2 * padding[i] - span) // stride[i] + 1)
        require(not surely_less(sizes[-1], 1), f"the kernel of {w} does not fit into padded {x}.")
    if inputs == 0:
        outputs = 0  # PyTorch gives no channels where there are none to sum over, bias or not
    return TensorType(x.dtype, (*x.shape[:channel], outputs, *sizes))


def _conv(
    x: TensorType, w: TensorType, bias: Any, stride: Ints, padding: Any, dilation: Ints, groups: int
) -> TensorType:
    zeros = (0,) * max(w.rank - 2, 1)
    if isinstance(padding, tuple):
        return _convolution(x, w, bias, stride, padding, dilation, False, zeros, groups)
    require(padding in ("valid", "same"), f"padding is {padding!r}.")
    if padding == "valid":
        return _convolution(x, w, bias, stride, zeros, dilation, False, zeros, groups)
    require(all(s == 1 for s in stride), "padding 'same' needs a stride of 1.")
    rank = w.rank - 2
    require(1 <= rank <= 3 and x.rank in (rank + 1, rank + 2), f"x is {x}, the weight {w}.")
    spread = [
        d * (k - 1) for d, k in zip(_full(dilation, rank, "dilation"), w.shape[2:], strict=True)
    ]
    least = TensorType(
        x.dtype, (*x.shape[:-rank], *(s + a for s, a in zip(x.shape[-rank:], spread, strict=True)))
    )
    return _convolution(least, w, bias, (1,), zeros, dilation, False, zeros, groups)


def _conv_transpose(
    x: TensorType,
    w: TensorType,
    bias: Any,
    stride: Ints,
    padding: Ints,
    output_padding: Ints,
    groups: int,
    dilation: Ints,
) -> TensorType:
    return _convolution(x, w, bias, stride, padding, dilation, True, output_padding, groups)


def _pooled(
    x: TensorType,
    rank: int,
    kernel: Ints,
    stride: Ints,
    padding: Ints,
    dilation: Ints,
    ceil_mode: bool,
) -> TensorType:
    require(x.rank in (rank + 1, rank + 2), f"{x} has no {rank} spatial dimensions and channels.")
    kernel = _full(kernel, rank, "kernel_size")
    stride = _full(stride, rank, "stride") if stride else kernel
    padding, dilation = _full(padding, rank, "padding"), _full(dilation, rank, "dilation")
    _at_least(kernel, 1, "kernel_size")
    _at_least(stride, 1, "stride")
    _at_least(dilation, 1, "dilation")
    _at_least(x.shape[x.rank - rank - 1 :], 1, "a size")
    sizes = []
    for size, k, s, p, d in zip(x.shape[-rank:], kernel, stride, padding, dilation, strict=True):
        require(0 <= p <= k // 2, f"padding is {p}, at most half of the kernel's {k} is legal.")
        room = size + 2 * p - d * (k - 1) - 1
        count = -(-room // s) + 1 if ceil_mode else room // s + 1  # a last window may stand out
        require(not surely_less(count, 1), f"a window of {k} does not fit into {size}.")
        if ceil_mode:
            if is_symbolic(count):
                if p or s > d * (k - 1) + 1:
                    raise SymbolicSizeError(f"whether a last window begins inside of {size}.")
            elif (count - 1) * s >= size + p:  # a window that begins in the padding behind
                count -= 1
        sizes.append(count)
    return TensorType(x.dtype, (*x.shape[:-rank], *sizes))


def _max_pool(rank: int, with_indices: bool) -> Rule:
    def rule(x: TensorType, *geometry: Any) -> Any:
        require(x.dtype != "bool", "it takes no tensor of bool.")
        y = _pooled(x, rank, *geometry)
        return (y, TensorType("int64", y.shape)) if with_indices else y

    return rule


def _avg_pool(rank: int) -> Rule:
    def rule(
        x: TensorType,
        kernel: Ints,
        stride: Ints,
        padding: Ints,
        ceil_mode: bool,
        count_include_pad: bool,
        divisor: int | None = None,
    ) -> TensorType:
        require(kind_of(x.dtype) != "bool", "it takes no tensor of bool.")
        require(divisor is None or divisor != 0, "the divisor is 0.")
        return _pooled(x, rank, kernel, stride, padding, (1,), ceil_mode)

    return rule


def _adaptive(rank: int, with_indices: bool) -> Rule:
    def rule(x: TensorType, output_size: Ints) -> Any:
        require(x.rank in (rank + 1, rank + 2), f"{x} has no {rank} spatial dimensions.")
        require_float(x)
        sizes = output_size
        require(len(sizes) == rank, f"output_size is {list(sizes)}, expected {rank} numbers.")
        _at_least(sizes, 0, "output_size")
        empty = any(not differ(s, 0) and s == 0 for s in x.shape[-rank:])
        require(not empty, f"{x} has no elements to pool.")
        y = TensorType(x.dtype, (*x.shape[:-rank], *sizes))
        return (y, TensorType("int64", y.shape)) if with_indices else y

    return rule


def _resampled(rank: int) -> Rule:
    """Resampling; the last argument is the factors, those before may hold `align_corners`."""

    def rule(x: TensorType, output_size: Ints | None, *rest: Any) -> TensorType:
        require(x.rank == rank + 2, f"{x} is not a batch with channels and {rank} spatial sizes.")
        require(kind_of(x.dtype) == "float" or x.dtype == "uint8", f"it does not resample {x}.")
        factors = rest[-1] if rest and isinstance(rest[-1], tuple) else None
        if output_size is None:
            require(
                factors is not None and len(factors) == rank, "it has neither size nor factors."
            )
            output_size = tuple(
                _scaled(s, f) for s, f in zip(x.shape[2:], factors or (), strict=True)
            )
        else:
            require(factors is None, "it has both a size and factors.")
        sizes = output_size
        require(len(sizes) == rank, f"output_size is {list(sizes)}, expected {rank} numbers.")
        _at_least((*sizes, *x.shape[1:]), 1, "a size")
        return TensorType(x.dtype, (*x.shape[:2], *sizes))

    return rule


def _scaled(size: int, factor: float) -> int:
    require(0 < factor < 1 << 40, f"a factor is {factor}.")
    if is_symbolic(size):
        if factor != int(factor):
            raise SymbolicSizeError(f"{size} times {factor}")
        return size * int(factor)
    return int(size * factor)


_MODES = {
    "upsample_nearest{0}d": (1, 2, 3),
    "_upsample_nearest_exact{0}d": (1, 2, 3),
    "upsample_linear{0}d": (1,),
    "upsample_bilinear{0}d": (2,),
    "upsample_bicubic{0}d": (2,),
    "upsample_trilinear{0}d": (3,),
}

RULES: dict[str, Rule] = {
    "aten.convolution.default": _convolution,
    **{f"aten.conv{n}d.{kind}": _conv for n in (1, 2, 3) for kind in ("default", "padding")},
    "aten.conv_transpose1d.default": _conv_transpose,
    "aten.conv_transpose2d.input": _conv_transpose,
    "aten.conv_transpose3d.input": _conv_transpose,
    **{f"aten.max_pool{n}d.default": _max_pool(n, False) for n in (1, 2, 3)},
    **{f"aten.max_pool{n}d_with_indices.default": _max_pool(n, True) for n in (2, 3)},
    **{f"aten.avg_pool{n}d.default": _avg_pool(n) for n in (1, 2, 3)},
    **{f"aten.adaptive_avg_pool{n}d.default": _adaptive(n, False) for n in (1, 2, 3)},
    **{f"aten._adaptive_avg_pool{n}d.default": _adaptive(n, False) for n in (2, 3)},
    **{f"aten.adaptive_max_pool{n}d.default": _adaptive(n, True) for n in (1, 2, 3)},
    **{
        f"aten.{mode.format(n)}.{kind}": _resampled(n)
        for mode, ranks in _MODES.items()
        for n in ranks
        for kind in ("default", "vec")
    },
}
