"""A NumPy interpreter of ScalarPrograms, and the bytes of tensors as NumPy arrays.

Constant folding evaluates with it, and conformance uses it as a second opinion beside PyTorch.
bfloat16, which NumPy lacks, is held as float32 and rounded when it is written. Speed does not
matter here; exactness does. Refuses nothing: an opcode outside the table is a KeyError.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from npusim.abi.literals import bfloat16_bits
from npusim.abi.scalar import ScalarProgram, compute_class, from_float, result_class
from npusim.ir.types import TensorType

Array = NDArray[Any]

CLASS_DTYPES: dict[str, type] = {"f": np.float32, "d": np.float64, "i": np.int64}

_erf = np.vectorize(math.erf, otypes=[np.float64])


def _sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def _softplus(x: Array) -> Array:
    return np.where(x > 20, x, np.log1p(np.exp(np.minimum(x, 20))))


def _gelu_tanh(x: Array) -> Array:
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)))


def _maximum(a: Array, b: Array) -> Array:
    # NaN wins, and of two zeros the first, as in PyTorch; NumPy leaves the latter open.
    return np.where((a >= b) | (a != a), a, b)


def _minimum(a: Array, b: Array) -> Array:
    return np.where((a <= b) | (a != a), a, b)


def _clamp(x: Array, lo: Any, hi: Any) -> Array:
    return _minimum(_maximum(x, lo), hi)


def _div_trunc(a: Array, b: Array) -> Array:
    if a.dtype.kind == "f":
        return np.trunc(a / b)
    quotient = np.floor_divide(a, b)
    inexact = quotient * b != a
    return quotient + (inexact & ((a < 0) != (b < 0)))


def _remainder(a: Array, b: Array) -> Array:
    if a.dtype.kind != "f":
        return np.remainder(a, b)
    rest = np.fmod(a, b)  # a zero keeps the sign of a, which NumPy's remainder does not
    return np.where((rest != 0) & ((b < 0) != (rest < 0)), rest + b, rest)


def _pow(a: Array, b: Array) -> Array:
    if a.dtype.kind == "f":
        return np.power(a, b)
    # The integers have no negative powers: only those of 1 and -1 are whole, the rest become 0.
    odd = np.where(b % 2 == 0, 1, a)
    negative = np.where(a == 1, 1, np.where(a == -1, odd, 0))
    return np.where(b < 0, negative, np.power(a, np.maximum(b, 0)))


def _to_integers(x: Array, bits: int) -> Array:
    """Truncates floats to int64; what does not fit `bits` is the least integer of so many."""
    limit = 2.0 ** (bits - 1)
    whole = np.trunc(x)
    fits = (whole >= -limit) & (whole < limit)  # not NaN
    return np.where(fits, np.where(fits, whole, 0).astype(np.int64), np.int64(-(2 ** (bits - 1))))


def _to_bfloat16(x: Array) -> Array:
    return (bfloat16_bits(x).astype(np.uint32) << 16).view(np.float32).reshape(x.shape)


def _div_floor(a: Array, b: Array) -> Array:
    # For floats NumPy and PyTorch agree on everything but a zero divisor, where PyTorch divides.
    return np.where(b == 0, a / b, np.floor_divide(a, b)) if a.dtype.kind == "f" else a // b


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "copy": lambda x: x,
    "neg": np.negative,
    "abs": np.abs,
    "exp": np.exp,
    "expm1": np.expm1,
    "log": np.log,
    "log1p": np.log1p,
    "log2": np.log2,
    "log10": np.log10,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "reciprocal": lambda x: 1 / x,
    "sin": np.sin,
    "cos": np.cos,
    "tan": np.tan,
    "asin": np.arcsin,
    "acos": np.arccos,
    "atan": np.arctan,
    "sinh": np.sinh,
    "cosh": np.cosh,
    "asinh": np.arcsinh,
    "acosh": np.arccosh,
    "atanh": np.arctanh,
    "tanh": np.tanh,
    "sigmoid": _sigmoid,
    "erf": _erf,
    "floor": np.floor,
    "ceil": np.ceil,
    "round": np.rint,
    "trunc": np.trunc,
    "sign": lambda x: np.where(np.isnan(x), 0, np.sign(x)),
    "relu": lambda x: _maximum(x, np.zeros((), x.dtype)),
    "gelu": lambda x: 0.5 * x * (1 + _erf(x / math.sqrt(2))),
    "gelu_tanh": _gelu_tanh,
    "silu": lambda x: x / (1 + np.exp(-x)),
    "hardswish": lambda x: x * _clamp(x + 3, 0, 6) / 6,
    "hardsigmoid": lambda x: _clamp(x + 3, 0, 6) / 6,
    "softplus": _softplus,
    "mish": lambda x: x * np.tanh(_softplus(x)),
    "isnan": np.isnan,
    "isinf": np.isinf,
    "logical_not": lambda x: x == 0,
    "bitwise_not": np.invert,
    "exp2": np.exp2,
    "to_f": lambda x: x,
    "to_d": lambda x: x,
    "to_i": lambda x: _to_integers(x, 64) if x.dtype.kind == "f" else x,
    "to_i32": lambda x: _to_integers(x, 32),
    "to_f16": lambda x: x.astype(np.float16),
    "to_bf16": _to_bfloat16,
    "to_bool": lambda x: x != 0,
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "div_trunc": _div_trunc,
    "div_floor": _div_floor,
    "remainder": _remainder,
    "fmod": np.fmod,
    "pow": _pow,
    "maximum": _maximum,
    "minimum": _minimum,
    "atan2": np.arctan2,
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "logical_and": lambda a, b: (a != 0) & (b != 0),
    "logical_or": lambda a, b: (a != 0) | (b != 0),
    "logical_xor": lambda a, b: (a != 0) ^ (b != 0),
    "bitwise_and": np.bitwise_and,
    "bitwise_or": np.bitwise_or,
    "bitwise_xor": np.bitwise_xor,
    "shift_left": np.left_shift,
    "shift_right": np.right_shift,
    "where": lambda c, a, b: np.where(c != 0, a, b),
    "fma": lambda a, b, c: a * b + c,
    "clamp": _clamp,
}


_DIVISIONS = frozenset(("div_trunc", "div_floor", "remainder", "fmod"))


def run(program: ScalarProgram, inputs: Sequence[Array], *, checked: bool = False) -> Array:
    """Evaluates a program over broadcastable arrays.

    Args:
        checked: refuses integers divided by zero, which a device reports; they are 0 otherwise.

    Returns:
        The result in its compute class (float32, float64 or int64), in the broadcast shape.

    Raises:
        ZeroDivisionError: see `checked`.
    """
    values: list[Array] = [
        np.asarray(x).astype(CLASS_DTYPES[c]) for x, c in zip(inputs, program.inputs, strict=True)
    ]
    with np.errstate(all="ignore"):
        for op in program.body:
            operand = CLASS_DTYPES[op.cls]
            args = [
                np.asarray(a[1], CLASS_DTYPES["i"] if op.op == "where" and not i else operand)
                if isinstance(a, tuple)
                else values[a]
                for i, a in enumerate(op.args)
            ]
            if checked and op.cls == "i" and op.op in _DIVISIONS and not np.all(args[1]):
                raise ZeroDivisionError(f"{op.op} of an integer by zero")
            result = result_class(op)
            values.append(np.asarray(FUNCTIONS[op.op](*args)).astype(CLASS_DTYPES[result]))
    shape = np.broadcast_shapes(*(np.shape(x) for x in inputs))
    return np.broadcast_to(values[-1], shape)


def decode(data: bytes, type: TensorType) -> Array:
    """Returns row-major little-endian bytes as an array; bfloat16 as float32."""
    if type.dtype == "bfloat16":
        bits = np.frombuffer(data, "<u2").astype(np.uint32) << 16
        return bits.view(np.float32).reshape(type.shape)
    return np.frombuffer(data, _storage(type.dtype)).reshape(type.shape)


def encode(array: Array, dtype: str) -> bytes:
    """Returns an array as row-major little-endian bytes of a storage dtype.

    Floats become integers by truncation and bool by a test against zero; integers wrap.
    """
    if dtype == "bfloat16":
        return bfloat16_bits(array.astype(np.float32)).astype("<u2").tobytes()
    if dtype == "bool":
        return (array != 0).tobytes()
    with np.errstate(all="ignore"):
        if array.dtype.kind == "f" and compute_class(dtype) == "i":
            array = FUNCTIONS[from_float(dtype)](array)
        return array.astype(_storage(dtype)).tobytes()


def _storage(dtype: str) -> np.dtype[Any]:
    return np.dtype(dtype).newbyteorder("<")
