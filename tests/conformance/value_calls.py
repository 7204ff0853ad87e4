"""The operators of the value sweep, as functions of tensors and Python scalars.

Owns the tables; `value_operands.py` has the numbers they are given.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

Function = Callable[..., Any]


def _numbers(x: Any) -> Any:
    """Zero where a tensor is NaN, whose sign means nothing."""
    if not isinstance(x, torch.Tensor) or not x.is_floating_point():
        return x
    return torch.where(x == x, x, torch.zeros_like(x))


def _moderate(x: Any, other: Any) -> Any:
    """Numbers whose products do not overflow as floats: a fused multiply-add would not either."""
    if not torch.result_type(x, other).is_floating_point or x.dtype.itemsize == 1:
        return x
    return x.clamp(-1e4, 1e4) if x.is_floating_point() else x.clamp(-10000, 10000)


# One tensor. Exact: PyTorch's result has one right value, so every bit has to agree.
EXACT_UNARY: dict[str, Function] = {
    "neg": torch.neg,
    "abs": torch.abs,
    "sign": torch.sign,
    "sgn": torch.sgn,
    "relu": torch.relu,
    "relu6": F.relu6,
    "floor": torch.floor,
    "ceil": torch.ceil,
    "round": torch.round,
    "trunc": torch.trunc,
    "frac": torch.frac,
    "square": torch.square,
    "reciprocal": torch.reciprocal,
    "positive": torch.positive,
    "isnan": torch.isnan,
    "isinf": torch.isinf,
    "isfinite": torch.isfinite,
    "isposinf": torch.isposinf,
    "isneginf": torch.isneginf,
    "signbit": lambda x: torch.signbit(_numbers(x)),
    "logical_not": torch.logical_not,
    "bitwise_not": torch.bitwise_not,
    "nan_to_num": torch.nan_to_num,
    "hardtanh": F.hardtanh,
    "deg2rad": torch.deg2rad,
    "rad2deg": torch.rad2deg,
}
# Within a few units in the last place. (Of gelu they cancel below −4: no such bound holds there.)
ROUNDED_UNARY: dict[str, Function] = {
    "sqrt": torch.sqrt,  # correct here; PyTorch's vectors are a unit off
    "exp": torch.exp,
    "exp2": torch.exp2,
    "expm1": torch.expm1,
    "log": torch.log,
    "log1p": torch.log1p,
    "log2": torch.log2,
    "log10": torch.log10,
    "rsqrt": torch.rsqrt,
    "sin": torch.sin,
    "cos": torch.cos,
    "tan": torch.tan,
    "asin": torch.asin,
    "acos": torch.acos,
    "atan": torch.atan,
    "sinh": torch.sinh,
    "cosh": torch.cosh,
    "asinh": torch.asinh,
    "acosh": torch.acosh,
    "atanh": torch.atanh,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "erf": torch.erf,
    "silu": F.silu,
    "softplus": F.softplus,
    "mish": F.mish,
    "hardswish": F.hardswish,
    "hardsigmoid": F.hardsigmoid,
    "elu": F.elu,
    "leaky_relu": F.leaky_relu,
    "log_sigmoid": F.logsigmoid,
}

# Two tensors, or a tensor and a scalar on either side.
BINARY: dict[str, Function] = {
    "add": torch.add,
    "sub": torch.sub,
    "mul": torch.mul,
    "div": torch.div,
    "maximum": torch.maximum,
    "minimum": torch.minimum,
    "fmax": torch.fmax,
    "fmin": torch.fmin,
    "eq": torch.eq,
    "ne": torch.ne,
    "lt": torch.lt,
    "le": torch.le,
    "gt": torch.gt,
    "ge": torch.ge,
    "logical_and": torch.logical_and,
    "logical_or": torch.logical_or,
    "logical_xor": torch.logical_xor,
    "bitwise_and": torch.bitwise_and,
    "bitwise_or": torch.bitwise_or,
    "bitwise_xor": torch.bitwise_xor,
    "shift_left": torch.bitwise_left_shift,
    "shift_right": torch.bitwise_right_shift,
    "where": lambda x, y: torch.where(x == y, x, y),
    "where_least": lambda x, y: torch.where(x < 1, x, y),
    "copysign": lambda x, y: torch.copysign(x, _numbers(y)),
    "clamp_tensor": lambda x, y: torch.clamp(x, y, y),
    "clamp_min": lambda x, y: torch.clamp(x, min=y),
    "clamp_max": lambda x, y: torch.clamp(x, max=y),
    "add_alpha": lambda x, y: torch.add(x, _moderate(y, x), alpha=-2),
    "sub_alpha": lambda x, y: torch.sub(x, _moderate(y, x), alpha=4),
    "rsub": lambda x, y: torch.rsub(x, y),
    "heaviside": torch.heaviside,
    "xlogy_zero": lambda x, y: torch.xlogy(x * 0, y),
}
# Their right operand is not zero where both are integers (`value_operands.divisible`).
DIVISIONS: dict[str, Function] = {
    "div_trunc": lambda x, y: torch.div(x, y, rounding_mode="trunc"),
    "div_floor": lambda x, y: torch.div(x, y, rounding_mode="floor"),
    "floor_divide": torch.floor_divide,
    "remainder": torch.remainder,
    "fmod": torch.fmod,
}
ROUNDED_BINARY: dict[str, Function] = {
    "pow": torch.pow,
    "atan2": torch.atan2,
    "hypot": torch.hypot,
}
ROUNDED = frozenset(
    (
        *(*ROUNDED_UNARY, *ROUNDED_BINARY, "rpow", "pow_scalar", "lerp"),
        # a product and a sum, which PyTorch rounds once or twice, as the processor has it
        *("addcmul", "index_add_alpha"),
        "scatter_reduce_prod",  # PyTorch rounds 16-bit floats at each step, or at the end
    )
)
# Rounded to 16 bits once; PyTorch rounds the quotient first, here it is asked in float32.
ROUNDED_16_BIT = frozenset(("div_trunc", "div_floor", "floor_divide", "rfloor_divide"))
# Which of two zeros it is depends, in PyTorch, on where in a vector they stand.
EITHER_ZERO = frozenset(
    (
        *("maximum", "minimum", "fmax", "fmin", "clamp_tensor", "clamp_min", "clamp_max"),
        *("amax", "amin", "max", "max_all", "cummax", "topk", "sort", "scatter_reduce_amax"),
    )
)
# PyTorch's vectors lose what the function keeps, such as a denormal divisor: NumPy is asked then.
BY_NUMPY: dict[str, Function] = {
    "fmod": np.fmod,
    "remainder": lambda a, b: _remainder(a, b),
}


def _remainder(a: Any, b: Any) -> Any:
    rest = np.fmod(a, b)
    return np.where((rest != 0) & ((b < 0) != (rest < 0)), rest + b, rest)


# Sums of terms that may cancel, as the sizes of the terms: what rounding is relative to.
TERMS: dict[str, Function] = {
    "addcmul": lambda x, s: x.abs() + (x * x * s).abs(),
    "lerp": lambda x, s: x.abs() * (1 + 2 * abs(s)),
}

# A tensor, and a scalar on the right.
SCALAR_RIGHT: dict[str, Function] = {
    "add": lambda x, s: x + s,
    "sub": lambda x, s: x - s,
    "mul": lambda x, s: x * s,
    "div": lambda x, s: x / s,
    "rsub": lambda x, s: s - x,
    "rdiv": lambda x, s: s / x,
    "eq": lambda x, s: x == s,
    "ne": lambda x, s: x != s,
    "lt": lambda x, s: x < s,
    "le": lambda x, s: x <= s,
    "gt": lambda x, s: x > s,
    "ge": lambda x, s: x >= s,
    "bitwise_and": lambda x, s: x & s,
    "bitwise_or": lambda x, s: x | s,
    "bitwise_xor": lambda x, s: x ^ s,
    "shift_left": lambda x, s: x << s,
    "shift_right": lambda x, s: x >> s,
    "rshift_left": lambda x, s: s << x,
    "rshift_right": lambda x, s: s >> x,
    "where": lambda x, s: torch.where(x == 1, x, s),
    "rwhere": lambda x, s: torch.where(x == 1, s, x),
    "masked_fill": lambda x, s: x.masked_fill(x == 1, s),
    "masked_fill_tensor": lambda x, s: x.masked_fill(x == 1, torch.full((), s, dtype=x.dtype)),
    "clamp_min": lambda x, s: x.clamp(min=s),
    "clamp_max": lambda x, s: x.clamp(max=s),
    "clamp_to": lambda x, s: x.clamp(s, 20),
    "clamp_from": lambda x, s: x.clamp(-5, s),
    "copysign": torch.copysign,
    "add_alpha": lambda x, s: torch.add(x, x, alpha=s),
    "sub_alpha": lambda x, s: torch.sub(x, x, alpha=s),
    "rsub_alpha": lambda x, s: torch.rsub(x, 1, alpha=s),
    "addcmul": lambda x, s: torch.addcmul(x, x, x, value=s),
    "threshold": lambda x, s: F.threshold(x, s, 3),
    "threshold_value": lambda x, s: F.threshold(x, 1, s),
    "hardtanh": lambda x, s: F.hardtanh(x, -1, s) if s > -1 else x,
    "full_like": lambda x, s: torch.full_like(x, s),
    "full": lambda x, s: x + torch.full((1,), s, dtype=x.dtype),
    "new_full": lambda x, s: x.new_full((3,), s) + x[:1],
    "fill": lambda x, s: torch.fill(x, s),
    "scalar_tensor": lambda x, s: x + torch.scalar_tensor(s, dtype=x.dtype),
    "nan_to_num": lambda x, s: torch.nan_to_num(x, s, s, s),
    "heaviside": lambda x, s: torch.heaviside(x, torch.full((), s, dtype=x.dtype)),
    "pad": lambda x, s: F.pad(x, (1, 1), value=s),
    "index_fill": lambda x, s: torch.index_fill(x, 0, torch.tensor([0, 1]), s),
    "masked_select_sum": lambda x, s: torch.isin(x, s) if isinstance(s, torch.Tensor) else x == s,
}
SCALAR_DIVISIONS: dict[str, Function] = {
    "div_trunc": lambda x, s: torch.div(x, s, rounding_mode="trunc"),
    "div_floor": lambda x, s: torch.div(x, s, rounding_mode="floor"),
    "floor_divide": lambda x, s: x // s,
    "remainder": lambda x, s: x % s,
    "fmod": torch.fmod,
}
# The scalar on the left: x has no zero where both are integers.
SCALAR_LEFT_DIVISIONS: dict[str, Function] = {
    "rfloor_divide": lambda x, s: s // x,
    "rremainder": lambda x, s: s % x,
}
SCALAR_ROUNDED: dict[str, Function] = {
    "pow_scalar": lambda x, s: x**s,
    "rpow": lambda x, s: s**x,
    "lerp": lambda x, s: torch.lerp(x, -x, s),
}

# A vector of rows: [rows, n].
REDUCTIONS: dict[str, Function] = {
    "sum": lambda x: x.sum(-1),
    "sum_same": lambda x: x.sum(-1, dtype=x.dtype),
    "sum_int32": lambda x: x.sum(-1, dtype=torch.int32),
    "prod": lambda x: x.prod(-1),
    "prod_same": lambda x: x.prod(-1, dtype=x.dtype),
    "cumsum": lambda x: x.cumsum(-1),
    "cumsum_same": lambda x: x.cumsum(-1, dtype=x.dtype),
    "cumprod": lambda x: x.cumprod(-1),
    "cummax": lambda x: x.cummax(-1)[0],
    "cummax_index": lambda x: x.cummax(-1)[1],
    "cummin_index": lambda x: x.cummin(-1)[1],
    "amax": lambda x: x.amax(-1),
    "amin": lambda x: x.amin(-1),
    "max": lambda x: x.max(-1)[0],
    "max_index": lambda x: x.max(-1)[1],
    "min_index": lambda x: x.min(-1)[1],
    "max_all": lambda x: x.max(),
    "argmax": lambda x: x.argmax(-1),
    "argmin": lambda x: x.argmin(-1),
    "any": lambda x: x.any(-1),
    "all": lambda x: x.all(-1),
    "count_nonzero": lambda x: x.count_nonzero(-1),
    "mean_float32": lambda x: x.clamp(-99, 99).mean(-1, dtype=torch.float32),
    "sort": lambda x: x.sort(-1, stable=True)[0],
    "argsort": lambda x: x.argsort(-1, stable=True),
    "argsort_down": lambda x: x.argsort(-1, descending=True, stable=True),
    "topk": lambda x: x.topk(3, -1)[0],
    "diff": lambda x: x.diff(dim=-1) if x.dtype is not torch.bool else x,
    "flip": lambda x: x.flip(-1),
    "tril": lambda x: x.tril(),
}
# Sums of floats depend on their order: these are compared where the dtype is not a float one.
ORDERED_SUMS = frozenset(
    (
        *("sum", "sum_same", "prod", "prod_same", "cumsum", "cumsum_same", "cumprod"),
        *("index_add_alpha", "scatter_reduce_prod", "mean_float32"),
    )
)

# x [rows, n], index [rows, k] of int64.
INDEXED: dict[str, Function] = {
    "gather": lambda x, i: x.gather(1, i),
    "index_select": lambda x, i: x.index_select(1, i[0]),
    "take_along_dim": lambda x, i: torch.take_along_dim(x, i, 1),
    "scatter": lambda x, i: x.scatter(1, i[:, :1], x[:, :1]),
    "scatter_value": lambda x, i: x.scatter(1, i[:, :1], 1),
    "scatter_value_negative": lambda x, i: x.scatter(1, i[:, :1], -3),
    "scatter_add": lambda x, i: x.scatter_add(1, i, x[:, : i.shape[1]]),
    "scatter_reduce_amax": lambda x, i: x.scatter_reduce(1, i, x[:, : i.shape[1]], "amax"),
    "scatter_reduce_prod": lambda x, i: x.scatter_reduce(1, i, x[:, : i.shape[1]], "prod"),
    "index_add": lambda x, i: x.index_add(1, i[0], x[:, : i.shape[1]]),
    "index_add_alpha": lambda x, i: x.index_add(1, i[0], x[:, : i.shape[1]], alpha=-3),
    "index": lambda x, i: x[:, i[0]],
    "index_put": lambda x, i: torch.index_put(x, (i[:, 0] * 0 + 1, i[:, 0]), x[:, 0]),
    "index_put_add": lambda x, i: torch.index_put(x, (i[:, 0] * 0, i[:, 0]), x[:, 0], True),
    "one_hot": lambda x, i: F.one_hot(i % 5, 5),
    "repeat_interleave": lambda x, i: x.repeat_interleave(2, 1),
    "roll": lambda x, i: x.roll(1, 1),
}

# Nothing goes in but a dtype.
CREATIONS: dict[str, Function] = {
    "arange": lambda d: torch.arange(7, dtype=d),
    "arange_past": lambda d: torch.arange(120, 140, dtype=d),
    "arange_past_byte": lambda d: torch.arange(250, 262, dtype=d),
    "arange_down": lambda d: torch.arange(5, -6, -2, dtype=d),
    "arange_fraction": lambda d: torch.arange(0.5, 5.0, dtype=d),
    "arange_step": lambda d: torch.arange(0.0, 5.0, 1.5, dtype=d),
    "arange_negative": lambda d: torch.arange(-3.5, 3.0, dtype=d),
    "linspace": lambda d: torch.linspace(3, 21, 7, dtype=d),
    "full": lambda d: torch.full((3,), 7, dtype=d),
    "full_negative": lambda d: torch.full((3,), -1, dtype=d),
    "full_fraction": lambda d: torch.full((3,), 3.7, dtype=d),
    "full_true": lambda d: torch.full((3,), True, dtype=d),
    "ones": lambda d: torch.ones(3, dtype=d),
    "eye": lambda d: torch.eye(3, dtype=d),
}
