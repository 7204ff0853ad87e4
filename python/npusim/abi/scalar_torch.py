"""A PyTorch interpreter of ScalarPrograms: the reference of `npu.pointwise` and of epilogues.

Imports torch inside its functions only, so that describing ops never loads it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from npusim.abi.scalar import ScalarProgram, result_class

if TYPE_CHECKING:
    from torch import Tensor


@cache
def functions() -> dict[str, Callable[..., Any]]:
    """Returns the PyTorch function of every opcode; operands arrive in the compute class."""
    import torch
    from torch.nn import functional as F

    same_name = (
        "neg abs exp expm1 log log1p log2 log10 sqrt rsqrt reciprocal sin cos tan asin acos "
        "atan sinh cosh asinh acosh atanh tanh sigmoid erf floor ceil round trunc sign relu "
        "isnan isinf logical_not bitwise_not exp2 add sub mul div pow "
        "atan2 eq ne lt le gt ge logical_and logical_or logical_xor bitwise_and bitwise_or "
        "bitwise_xor"
    )
    return {name: getattr(torch, name) for name in same_name.split()} | {
        "copy": lambda x: x,
        "gelu": F.gelu,
        "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
        "silu": F.silu,
        "hardswish": F.hardswish,
        "hardsigmoid": F.hardsigmoid,
        "softplus": F.softplus,
        "mish": F.mish,
        "to_f": lambda x: x.to(torch.float32),
        "to_d": lambda x: x.to(torch.float64),
        "to_i": lambda x: _to_integers(x, 64) if x.is_floating_point() else x,
        "to_i32": lambda x: _to_integers(x, 32),
        "to_f16": lambda x: x.to(torch.float16),
        "to_bf16": lambda x: x.to(torch.bfloat16),
        "to_bool": lambda x: x != 0,
        "maximum": _maximum,
        "minimum": _minimum,
        "div_trunc": _division(lambda a, b: torch.div(a, b, rounding_mode="trunc")),
        "div_floor": _division(lambda a, b: torch.div(a, b, rounding_mode="floor")),
        "remainder": _division(torch.remainder),
        "fmod": _division(torch.fmod),
        "shift_left": torch.bitwise_left_shift,
        "shift_right": torch.bitwise_right_shift,
        "where": lambda c, a, b: torch.where(c != 0, a, b),
        "fma": lambda a, b, c: a * b + c,
        "clamp": lambda x, lo, hi: _minimum(_maximum(x, lo), hi),
    }


def _maximum(a: Tensor, b: Tensor) -> Tensor:
    # Of two zeros the first: which one PyTorch's own takes depends on where in a vector they stand.
    import torch

    return torch.where(a == b, a, torch.maximum(a, b))


def _minimum(a: Tensor, b: Tensor) -> Tensor:
    import torch

    return torch.where(a == b, a, torch.minimum(a, b))


def _division(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Returns a division in which the least integer by -1 wraps; in PyTorch it ends the process."""

    def divided(a: Tensor, b: Tensor) -> Tensor:
        import torch

        if a.is_floating_point():
            return function(a, b)
        flips = b == -1
        return function(torch.where(flips, -a, a), torch.where(flips, 1, b))

    return divided


def _to_integers(x: Tensor, bits: int) -> Tensor:
    """Truncates floats to int64; what does not fit `bits` is the least integer of so many."""
    import torch

    limit = 2.0 ** (bits - 1)
    whole = x.trunc()
    fits = (whole >= -limit) & (whole < limit)  # not NaN
    integers = torch.where(fits, whole, torch.zeros_like(whole)).to(torch.int64)
    return torch.where(fits, integers, -(2 ** (bits - 1)))


def class_dtype(cls: str) -> Any:
    """Returns the torch dtype that holds a compute class."""
    import torch

    return {"f": torch.float32, "d": torch.float64, "i": torch.int64}[cls]


def run(program: ScalarProgram, inputs: Sequence[Tensor]) -> Tensor:
    """Evaluates a program over broadcastable tensors.

    Returns:
        The result in its compute class, in the broadcast shape.
    """
    import torch

    values = [x.to(class_dtype(c)) for x, c in zip(inputs, program.inputs, strict=True)]
    for op in program.body:
        args = [
            torch.tensor(a[1], dtype=class_dtype("i" if op.op == "where" and i == 0 else op.cls))
            if isinstance(a, tuple)
            else values[a]
            for i, a in enumerate(op.args)
        ]
        result = result_class(op)
        values.append(functions()[op.op](*args).to(class_dtype(result)))
    shape = torch.broadcast_shapes(*(x.shape for x in inputs))
    return values[-1].expand(shape)
