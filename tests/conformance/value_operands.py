"""The numbers of the value sweep: every one of a small dtype, the awkward ones of a large.

Owns which values, pairs of values and Python scalars are tried; `value_calls.py` says with which
operators, `value_sweep.py` runs them.
"""

from __future__ import annotations

import math
from functools import cache

import torch
from torch import Tensor

DTYPES = (
    *("bool", "uint8", "int8", "int16", "int32", "int64"),
    *("float16", "bfloat16", "float32", "float64"),
)
SMALL = ("bool", "uint8", "int8", "int16", "float16", "bfloat16")  # 2^16 values at the most
_BITS = {"float16": torch.int16, "bfloat16": torch.int16}
_BITS |= {"float32": torch.int32, "float64": torch.int64}

# Python scalars of each kind and sign, within and beyond what the integer dtypes hold. The first
# of each kind are those that a short sweep takes.
BOOLEANS = (True, False)
INTEGERS = (
    *(-3, 0, 300, 7, -1, 1, 2, 255, -(2**31) - 5, 3, -2, -5, 20, 31, 127, 128, -128, -129, 200),
    *(256, 257, -300, 32767, 32768, -32769, 65535, 65539, 2**31 - 1, 2**31, -(2**31), 2**31 + 5),
    *(2**32 + 1, 2**40 + 3, -(2**40), 2**53 + 1, 2**60 + 2**36 + 1, 2**63 - 1, -(2**63)),
)
FLOATS = (
    *(-3.0, 0.0, 0.5, 2.5, -0.1, 1e20, math.inf, math.nan, -0.0, -0.5, 1.5, 2.0, -1.0, 1.0),
    *(0.1, 3.7, 255.5, -128.5, 1e-3, 1e9, -1e9, 65504.0, 1e38, -math.inf, 1e-45, 2.0**-24),
)


def dtype_of(name: str) -> torch.dtype:
    """Returns the torch dtype of a name."""
    found = getattr(torch, name)
    assert isinstance(found, torch.dtype)
    return found


@cache
def values(name: str) -> Tensor:
    """Returns every value of a small dtype, and `edges` of a large one, as a vector."""
    dtype = dtype_of(name)
    if name not in SMALL:
        return edges(name)
    if name == "bool":
        return torch.tensor([False, True])
    if name in _BITS:
        return torch.arange(-(2**15), 2**15, dtype=torch.int16).view(dtype)
    info = torch.iinfo(dtype)
    return torch.arange(info.min, info.max + 1, dtype=dtype)


@cache
def edges(name: str) -> Tensor:
    """Returns the awkward values of a dtype and some of every magnitude, as a vector."""
    if name in ("bool", "uint8", "int8"):
        return values(name)
    return _float_edges(name) if name in _BITS else _integer_edges(name)


def _integer_edges(name: str) -> Tensor:
    info = torch.iinfo(dtype_of(name))
    powers = [2**k for k in range(info.bits)]
    around = [sign * p + d for p in powers for sign in (-1, 1) for d in (-1, 0, 1)]
    found = [*range(-12, 13), *around, info.min, info.min + 1, info.max]
    generator = torch.Generator().manual_seed(info.bits)
    random = torch.randint(info.min, info.max, (24,), generator=generator).tolist()
    chosen = sorted({v for v in (*found, *random) if info.min <= v <= info.max})
    return torch.tensor(chosen, dtype=dtype_of(name))


def _float_edges(name: str) -> Tensor:
    dtype, info = dtype_of(name), torch.finfo(dtype_of(name))
    limits = [2.0**k for k in (7, 8, 15, 16, 23, 24, 31, 32, 53, 62, 63, 64, 127)]
    plain = [0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 7.0, 0.1, 1 / 3, 20.0, 88.8, 103.9, 709.9, 1e-3]
    tiny = [info.tiny, info.smallest_normal / 2, info.eps, info.max, 1e-30]
    centres = torch.tensor([*limits, *plain, *tiny], dtype=torch.float64).to(dtype)
    bits = centres.view(_BITS[name])
    near = torch.cat([bits - 1, bits, bits + 1])  # an ulp below and above
    denormals = torch.tensor([0, 1, 2, 3], dtype=_BITS[name])
    generator = torch.Generator().manual_seed(info.bits)
    random = torch.randn(24, generator=generator, dtype=torch.float64).to(dtype)
    positive = torch.cat([near.view(dtype), denormals.view(dtype), random.abs()])
    special = torch.tensor([math.nan, math.inf], dtype=dtype)
    return torch.cat([positive, -positive, special, -special])


def thinned(x: Tensor, most: int) -> Tensor:
    """Returns at most `most` elements of a vector, evenly spread, the ends included."""
    if len(x) <= most:
        return x
    return x[torch.linspace(0, len(x) - 1, most).round().long()]


def filled_up(x: Tensor) -> Tensor:
    """Returns a vector with repeated elements at its end, so that nothing is left over by vectors.

    PyTorch computes what is left over in another way: powers with their exponent in float64.
    """
    wanted = -(-len(x) // 64) * 64
    return x.repeat(-(-wanted // len(x)))[:wanted]


def pairs(left: str, right: str, most: int) -> tuple[Tensor, Tensor]:
    """Returns every pair of up to `most` values of two dtypes, as two vectors."""
    a, b = thinned(edges(left), most), thinned(edges(right), most)
    return a.repeat_interleave(len(b)), b.repeat(len(a))


def divisible(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Returns operands without what integers cannot be divided by.

    No zero stands in y, and nowhere -1 beneath the least integer, in the dtype both promote to:
    both end a process or raise, in PyTorch.
    """
    common = torch.result_type(x, y)
    if common.is_floating_point or common is torch.bool:
        return x, torch.where(y == 0, torch.ones_like(y), y) if common is torch.bool else y
    y = torch.where(y.to(common) == 0, torch.ones_like(y), y)
    least = x.to(common) == torch.iinfo(common).min
    if x.dim() >= y.dim():
        return torch.where(least & (y.to(common) == -1), torch.zeros_like(x), x), y
    return x, torch.where(least & (y.to(common) == -1), torch.ones_like(y), y)
