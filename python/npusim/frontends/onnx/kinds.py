"""ONNX's element types ("kinds", numbers of TensorProto) and how graphs carry them.

Devices have no unsigned integers beyond 8 bits, no 2- or 4-bit ones and no 8-bit floats. Each of
their values is a value of a wider dtype that devices have, so a tensor of such a kind is carried in
that dtype, and what makes new values of the kind rounds or wraps them.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto, helper

from npusim.errors import ExportError

Array = NDArray[Any]

# kind -> the dtype it is carried in; the first kind of a dtype is the one that is that dtype
CARRIERS: dict[int, str] = {
    TensorProto.FLOAT: "float32",
    TensorProto.FLOAT16: "float16",
    TensorProto.BFLOAT16: "bfloat16",
    TensorProto.DOUBLE: "float64",
    TensorProto.INT64: "int64",
    TensorProto.INT32: "int32",
    TensorProto.INT16: "int16",
    TensorProto.INT8: "int8",
    TensorProto.UINT8: "uint8",
    TensorProto.BOOL: "bool",
    TensorProto.COMPLEX64: "complex64",
    TensorProto.COMPLEX128: "complex128",
    TensorProto.UINT16: "int32",
    TensorProto.UINT32: "int64",
    TensorProto.UINT64: "int64",  # its bits
    TensorProto.FLOAT8E4M3FN: "float32",
    TensorProto.FLOAT8E4M3FNUZ: "float32",
    TensorProto.FLOAT8E5M2: "float32",
    TensorProto.FLOAT8E5M2FNUZ: "float32",
    TensorProto.FLOAT8E8M0: "float32",
    TensorProto.FLOAT4E2M1: "float32",
    TensorProto.INT4: "int8",
    TensorProto.UINT4: "uint8",
    TensorProto.INT2: "int8",
    TensorProto.UINT2: "uint8",
}

# kind -> bits and whether it is signed, of the integers
INTEGERS: dict[int, tuple[int, bool]] = {
    TensorProto.INT64: (64, True),
    TensorProto.INT32: (32, True),
    TensorProto.INT16: (16, True),
    TensorProto.INT8: (8, True),
    TensorProto.INT4: (4, True),
    TensorProto.INT2: (2, True),
    TensorProto.UINT64: (64, False),
    TensorProto.UINT32: (32, False),
    TensorProto.UINT16: (16, False),
    TensorProto.UINT8: (8, False),
    TensorProto.UINT4: (4, False),
    TensorProto.UINT2: (2, False),
}


def kind_of_dtype(dtype: str) -> int:
    """Returns the kind that is a dtype of graphs."""
    return next(kind for kind, carrier in CARRIERS.items() if carrier == dtype)


def carrier(kind: int, what: str) -> str:
    """Returns the dtype that carries a kind.

    Raises:
        ExportError: graphs have no place for it (strings).
    """
    if kind not in CARRIERS:
        known = kind and kind in TensorProto.DataType.values()
        name = TensorProto.DataType.Name(kind) if known else "of no known type"
        raise ExportError(f"{what} is {name.lower()}, which no graph holds.")
    return CARRIERS[kind]


def carried(array: Array) -> Array:
    """Returns an array of ONNX's element type as one of its carrier; bfloat16 stays as it is."""
    kind = helper.np_dtype_to_tensor_dtype(array.dtype)
    if array.dtype == np.uint64:
        return array.view(np.int64)
    name = carrier(kind, "A constant")
    return array if name == "bfloat16" else array.astype(name, copy=False)


def restored(array: Array, kind: int) -> Array:
    """Returns a carrier's array as one of the kind; float32 that shows bfloat16 as bfloat16."""
    if kind == TensorProto.UINT64:
        return array.view(np.uint64)
    return array.astype(numpy_dtype(kind), copy=False)


def numpy_dtype(kind: int) -> np.dtype[Any]:
    """Returns the NumPy dtype of a kind, of ml_dtypes where NumPy has none."""
    return np.dtype(helper.tensor_dtype_to_np_dtype(kind))


def is_integer(kind: int) -> bool:
    """Tells whether a kind is an integer."""
    return kind in INTEGERS


def is_floating(kind: int) -> bool:
    """Tells whether a kind is a floating-point number."""
    return kind not in INTEGERS and CARRIERS.get(kind, "").startswith(("float", "bfloat"))


def limits(kind: int) -> tuple[int, int]:
    """Returns the least and the greatest value of an integer kind."""
    bits, signed = INTEGERS[kind]
    return (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if signed else (0, (1 << bits) - 1)


# Narrow floats: (bits of the mantissa, least exponent of a normal number, greatest value)
NARROW: dict[int, tuple[int, int, float]] = {
    kind: (
        int(info.nmant),
        int(info.minexp),
        float(info.max),
    )
    for kind, info in (
        (TensorProto.FLOAT8E4M3FN, ml_dtypes.finfo(ml_dtypes.float8_e4m3fn)),
        (TensorProto.FLOAT8E4M3FNUZ, ml_dtypes.finfo(ml_dtypes.float8_e4m3fnuz)),
        (TensorProto.FLOAT8E5M2, ml_dtypes.finfo(ml_dtypes.float8_e5m2)),
        (TensorProto.FLOAT8E5M2FNUZ, ml_dtypes.finfo(ml_dtypes.float8_e5m2fnuz)),
        (TensorProto.FLOAT4E2M1, ml_dtypes.finfo(ml_dtypes.float4_e2m1fn)),
        (TensorProto.FLOAT8E8M0, ml_dtypes.finfo(ml_dtypes.float8_e8m0fnu)),
    )
}
