"""PyTorch's quantization operators (`quantized_decomposed`, of pt2e) as arithmetic on floats.

The library registers them when it is imported, which whoever quantizes a model has done; passes
make products of bytes of what they can. A zero point is one of the bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


def quantization_operators() -> dict[Any, Callable[..., Any]]:
    """Returns the operators that are registered, with functions that compute them from others."""
    library = torch.ops.quantized_decomposed
    table: dict[Any, Callable[..., Any]] = {}
    for name, function in _WRITTEN.items():
        packet = getattr(library, name, None)
        for overload in packet.overloads() if packet is not None else ():
            table[getattr(packet, overload)] = function
    return table


def _quantize(
    x: Tensor, scale: Any, zero: Any, low: Any, high: Any, dtype: torch.dtype, **_: Any
) -> Tensor:
    whole = torch.round(x.float() * (1.0 / scale)) + zero
    return torch.clamp(whole, low, high).to(dtype)


def _dequantize(
    x: Tensor, scale: Any, zero: Any, low: Any, high: Any, dtype: torch.dtype, **options: Any
) -> Tensor:
    zero = zero.to(dtype).float() if isinstance(zero, Tensor) else zero
    wide = x.float() - zero if isinstance(zero, Tensor) or zero else x.float()
    return (wide * scale).to(options.get("out_dtype") or torch.float32)


def _quantize_channels(
    x: Tensor, scales: Tensor, zeros: Tensor, axis: int, low: int, high: int, dtype: torch.dtype
) -> Tensor:
    shape = _along(axis, x)
    zero = zeros.to(dtype).float().view(shape)
    return _quantize(x, scales.float().view(shape), zero, low, high, dtype)


def _dequantize_channels(
    x: Tensor,
    scales: Tensor,
    zeros: Tensor | None,
    axis: int,
    low: int,
    high: int,
    dtype: torch.dtype,
    **options: Any,
) -> Tensor:
    shape = _along(axis, x)
    zero = 0 if zeros is None else zeros.view(shape)
    return _dequantize(x, scales.float().view(shape), zero, low, high, dtype, **options)


def _along(axis: int, x: Tensor) -> list[int]:
    return [-1 if d == axis % x.dim() else 1 for d in range(x.dim())]


_WRITTEN: dict[str, Callable[..., Any]] = {
    "quantize_per_tensor": _quantize,
    "dequantize_per_tensor": _dequantize,
    "quantize_per_channel": _quantize_channels,
    "dequantize_per_channel": _dequantize_channels,
}
