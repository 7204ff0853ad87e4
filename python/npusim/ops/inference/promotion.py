"""The dtype that operands of several dtypes meet in: PyTorch's type promotion.

A tensor with dimensions outweighs a tensor without, and that a Python number, unless the lighter
one is of a higher kind (bool < int < float).
https://docs.pytorch.org/docs/stable/tensor_attributes.html#type-promotion-doc
"""

from __future__ import annotations

from npusim.errors import ShapeError
from npusim.ir.types import DTYPES, TensorType

Operand = TensorType | bool | int | float | str  # text is a complex number

_KINDS = ("bool", "int", "float")
_DEFAULT_FLOAT = "float32"
_SIGNED = ("int8", "int16", "int32", "int64")
_FLOATS = ("float16", "bfloat16", "float32", "float64")


def kind_of(dtype: str) -> str:
    """Returns "bool", "int" or "float"; ShapeError for a dtype that devices do not have."""
    if dtype not in DTYPES:
        raise ShapeError(f"dtype {dtype} is none of a device.")
    return DTYPES[dtype][2]


def promote(a: str, b: str) -> str:
    """Returns the smallest dtype that takes the values of both."""
    if a == b:
        return a
    kinds = kind_of(a), kind_of(b)
    if kinds[0] != kinds[1]:
        return a if _KINDS.index(kinds[0]) > _KINDS.index(kinds[1]) else b
    if kinds[0] == "float":
        return "float32" if {a, b} == {"float16", "bfloat16"} else max(a, b, key=_FLOATS.index)
    if "uint8" in (a, b):
        return max("int16", b if a == "uint8" else a, key=_SIGNED.index)
    return max(a, b, key=_SIGNED.index)


def result_dtype(*operands: Operand | None) -> str:
    """Returns the dtype that an operator of these operands computes in; None counts for nothing."""
    levels: list[str | None] = [None, None, None]  # with dimensions, without, Python numbers
    for operand in operands:
        if operand is None:
            continue
        dtype, level = _leveled(operand)
        known = levels[level]
        levels[level] = dtype if known is None else promote(known, dtype)
    result: str | None = None
    for dtype_of_level in levels:
        result = _outweigh(result, dtype_of_level)
    if result is None:
        raise ShapeError("there is no operand.")
    return result


def _leveled(operand: Operand) -> tuple[str, int]:
    if isinstance(operand, TensorType):
        kind_of(operand.dtype)
        return operand.dtype, 0 if operand.rank else 1
    if isinstance(operand, str):
        raise ShapeError(f"a complex number, {operand}, needs complex tensors.")
    if isinstance(operand, bool):
        return "bool", 2
    return ("int64" if isinstance(operand, int) else _DEFAULT_FLOAT), 2


def _outweigh(heavy: str | None, light: str | None) -> str | None:
    if heavy is None or light is None:
        return heavy or light
    higher = _KINDS.index(kind_of(light)) > _KINDS.index(kind_of(heavy))
    return promote(heavy, light) if higher else heavy


def floated(dtype: str) -> str:
    """Returns the dtype of a function that has fractions for integers too (exp, division)."""
    return dtype if kind_of(dtype) == "float" else _DEFAULT_FLOAT


def summed(dtype: str) -> str:
    """Returns the dtype that a sum or product of many has: integers add up in int64."""
    return dtype if kind_of(dtype) == "float" else "int64"


def require(condition: bool, message: str) -> None:
    """Raises ShapeError with the message unless the condition holds."""
    if not condition:
        raise ShapeError(message)


def require_float(*operands: TensorType | None) -> None:
    """Raises ShapeError unless all that are there hold floating-point numbers."""
    for operand in operands:
        if operand is not None:
            require(kind_of(operand.dtype) == "float", f"{operand} is not of a float dtype.")


def require_index(*operands: TensorType) -> None:
    """Raises ShapeError unless all are of a dtype that indices may have."""
    for operand in operands:
        require(operand.dtype in ("int64", "int32"), f"an index is {operand}, not int64 or int32.")
