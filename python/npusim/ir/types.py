"""Tensor types: dtype, shape and storage order. Owns the dtype table; knows no framework."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

from npusim.ir.symbolic import upper

# name -> (code in .npubin and kernel parameters, bytes an element, kind)
# The codes are part of the file format (docs/npubin.md): append, never renumber.
MOST_RANKS = 64  # that run a model together

DTYPES: dict[str, tuple[int, int, str]] = {
    "float32": (0, 4, "float"),
    "float16": (1, 2, "float"),
    "bfloat16": (2, 2, "float"),
    "float64": (3, 8, "float"),
    "int64": (4, 8, "int"),
    "int32": (5, 4, "int"),
    "int16": (6, 2, "int"),
    "int8": (7, 1, "int"),
    "uint8": (8, 1, "int"),
    "bool": (9, 1, "bool"),
}

# name -> bytes an element, of dtypes that a graph may hold and no device has. What reads or makes
# them is not compiled; in a partitioned model PyTorch runs it.
HOST_DTYPES: dict[str, int] = {
    "complex64": 8,
    "complex128": 16,
    "uint16": 2,
    "uint32": 4,
    "uint64": 8,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
}

DTYPE_NAMES: dict[int, str] = {code: name for name, (code, *_) in DTYPES.items()}
CODE_SIZES: dict[int, int] = {code: size for code, size, _ in DTYPES.values()}  # bytes


def dtype_code(dtype: str) -> int:
    """Returns the wire code of a dtype name."""
    return DTYPES[dtype][0]


def dtype_size(dtype: str) -> int:
    """Returns the bytes one element takes."""
    return HOST_DTYPES[dtype] if dtype in HOST_DTYPES else DTYPES[dtype][1]


def is_float(dtype: str) -> bool:
    """Tells whether a dtype of devices holds floating-point numbers."""
    return dtype in DTYPES and DTYPES[dtype][2] == "float"


def row_major(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Returns the strides, in elements, of a dense row-major tensor."""
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= size
    return tuple(reversed(strides))


@dataclass(frozen=True, slots=True)
class TensorType:
    """The type of a value.

    Attributes:
        dtype: a key of `DTYPES` or `HOST_DTYPES`, PyTorch's own name.
        shape: logical dimensions, in PyTorch's order (NCHW for images); ints, or symbolic sizes
            (ir/symbolic.py), which then are in `numel`, `nbytes` and `strides` as well.
        order: storage order: `order[i]` is the logical dimension stored at physical axis `i`,
            outermost first. None means row-major. Channels-last images have (0, 2, 3, 1).
            Set by `passes/assign_layout.py`; frontends leave it None.
    """

    dtype: str
    shape: tuple[int, ...]
    order: tuple[int, ...] | None = None

    @property
    def rank(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    @property
    def numel(self) -> int:
        """Number of elements; 1 for a scalar."""
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of the dense tensor."""
        return self.numel * dtype_size(self.dtype)

    @property
    def greatest_bytes(self) -> int:
        """Bytes of the dense tensor when every dimension is as large as it can be."""
        return prod(map(upper, self.shape)) * dtype_size(self.dtype)

    @property
    def strides(self) -> tuple[int, ...]:
        """Strides in elements, one a logical dimension, of the dense tensor stored in `order`."""
        if self.order is None:
            return row_major(self.shape)
        physical = row_major(tuple(self.shape[d] for d in self.order))
        strides = [0] * self.rank
        for axis, dim in enumerate(self.order):
            strides[dim] = physical[axis]
        return tuple(strides)

    def with_order(self, order: tuple[int, ...] | None) -> TensorType:
        """Returns the same type stored in another order; the identity is written as None."""
        return replace(self, order=None if order == tuple(range(self.rank)) else order)

    def __str__(self) -> str:
        dims = ", ".join(str(d) for d in self.shape)
        order = f"@{''.join(str(d) for d in self.order)}" if self.order else ""
        return f"{self.dtype}[{dims}]{order}"
