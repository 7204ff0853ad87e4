"""What the rules of kernel costs share: sizes of elements, what strides reach, windows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

from npusim.abi.kernels import Params
from npusim.ir.types import CODE_SIZES

Cost = tuple[list[int], int]  # the bytes of each operand, and the operations
Rule = Callable[[Params, "int | None"], Cost]


def size_of(p: Params, field: str) -> int:
    """Returns the bytes of an element of the operand whose dtype the field says."""
    return CODE_SIZES[p[f"{field}_dtype"]]


def distinct(shape: Sequence[int], strides: Sequence[int]) -> int:
    """Returns how many elements a strided iteration reaches; a stride of 0 repeats one."""
    if 0 in shape:
        return 0
    return prod(n for n, stride in zip(shape, strides, strict=True) if stride)


def window_of(p: Params) -> tuple[int, int, int]:
    """Returns the elements of x and of y, and how many a window has."""
    x = p["batch"] * p["in_channels"] * prod(p["in_size"])
    return x, p["batch"] * p["out_channels"] * prod(p["out_size"]), prod(p["kernel"])
