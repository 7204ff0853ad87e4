"""What a function of one element costs, in multiply-adds of a vector unit.

Round numbers for the usual way: reduce the argument, a polynomial of 5 to 8 terms, put together;
what is made of several functions costs their sum. What is not listed is one instruction.
"""

from __future__ import annotations

from collections.abc import Sequence

from npusim.abi.scalar import OPCODES

_EXP, _DIVIDE = 12, 4
MULTIPLY_ADDS: dict[str, int] = {
    "copy": 0,
    **dict.fromkeys(("exp", "exp2", "expm1"), _EXP),
    **dict.fromkeys(("log", "log2", "log10", "log1p"), 14),
    **dict.fromkeys(("div", "reciprocal", "div_trunc", "div_floor", "sqrt", "rsqrt"), _DIVIDE),
    **dict.fromkeys(("remainder", "fmod"), _DIVIDE + 3),
    **dict.fromkeys(("sigmoid", "silu"), _EXP + _DIVIDE + 1),
    **dict.fromkeys(("tanh", "gelu_tanh"), 18),
    **dict.fromkeys(("erf", "gelu"), 22),
    **dict.fromkeys(("softplus", "mish"), 28),
    **dict.fromkeys(("sin", "cos", "tan", "asin", "acos", "atan", "atan2"), 18),
    **dict.fromkeys(("sinh", "cosh", "asinh", "acosh", "atanh"), 20),
    "pow": 30,
}
_BY_CODE = {code: MULTIPLY_ADDS.get(name, 1) for name, (code, *_) in OPCODES.items()}
_FIELDS = 6  # numbers an instruction of a pointwise kernel


def activation_multiply_adds(code: int) -> int:
    """Returns what an activation costs an element, by its opcode; those of one instruction nothing.

    A kernel that multiplies bounds its sums while it stores them.
    """
    each = _BY_CODE.get(code, 0)
    return each if each > 1 else 0


def chain_multiply_adds(code: Sequence[int], instructions: int) -> int:
    """Returns what a chain costs an element; twice where it has 64 bits, half as many in a vector.

    Args:
        code: of a pointwise kernel's parameters, whose instructions begin with their opcode.
        instructions: how many of them count.
    """
    each = (code[i * _FIELDS : (i + 1) * _FIELDS] for i in range(instructions))
    return sum(_BY_CODE[one[0]] * (2 if one[-1] else 1) for one in each)
