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
        "isnan isinf logical_not bitwise_not exp2 add sub mul div remainder fmod pow maximum "
        "minimum atan2 eq ne lt le gt ge logical_and logical_or logical_xor bitwise_and "
        "bitwise_or bitwise_xor"
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
        "to_i": lambda x: x.to(torch.int64),
        "to_bool": lambda x: x != 0,
        "div_trunc": lambda a, b: torch.div(a, b, rounding_mode="trunc"),
        "div_floor": lambda a, b: torch.div(a, b, rounding_mode="floor"),
        "shift_left": torch.bitwise_left_shift,
        "shift_right": torch.bitwise_right_shift,
        "where": lambda c, a, b: torch.where(c != 0, a, b),
        "fma": lambda a, b, c: a * b + c,
        "clamp": lambda x, lo, hi: torch.minimum(torch.maximum(x, lo), hi),
    }


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
