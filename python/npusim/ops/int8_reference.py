"""What `npu.int8_matmul` and `npu.int8_conv` compute, in PyTorch, and their types.

`ops/int8_matmul.py` has their definition, lowers and registers them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from npusim.abi.requantization import FLOAT32, ROUNDINGS, joined, requantized
from npusim.errors import ShapeError
from npusim.ir.types import TensorType
from npusim.ops.fused import (
    NO_EPILOGUE,
    broadcast_shapes,
    check_activation,
    finish_product,
    infer_conv,
)

if TYPE_CHECKING:
    from torch import Tensor

INT8_MATMUL = "npu.int8_matmul"
INT8_CONV = "npu.int8_conv"
BYTES = ("int8", "uint8")
BYTE_BOUNDS = ("copy", "relu")  # activations of bytes that saturating does
OPERANDS = 10  # x, w and the eight that may be None


def reference_int8_matmul(
    a: Tensor,
    b: Tensor,
    /,
    *rest: Tensor | None,
    dtype: str,
    requantize: str = FLOAT32,
    **epilogue: Any,
) -> Tensor:
    """Computes `npu.int8_matmul`."""
    x_zero, w_zero = rest[:2]
    total = _shifted(a, x_zero) @ _shifted(b, w_zero)
    return _finished(total, rest[2:], dtype, (-1,), requantize, epilogue)


def reference_int8_conv(
    x: Tensor,
    w: Tensor,
    /,
    *rest: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    padding_back: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    dtype: str,
    transposed: bool = False,
    requantize: str = FLOAT32,
    **epilogue: Any,
) -> Tensor:
    """Computes `npu.int8_conv`, in float64, which holds every sum."""
    import torch
    from torch.nn import functional as F

    rank = x.dim() - 2
    x_zero, w_zero = rest[:2]
    pads = [n for pair in zip(padding, padding_back, strict=True) for n in pair[::-1]][::-1]
    channel = (-1, *(1,) * (rank + 1))
    weight = _shifted(w, None if w_zero is None else w_zero.reshape(channel))
    zeros, shifted = (0,) * rank, _shifted(x, x_zero)
    if transposed:
        whole = torch.convolution(
            shifted, weight.transpose(0, 1), None, tuple(stride), zeros, tuple(dilation),
            True, zeros, groups,
        )  # fmt: skip
        total = F.pad(whole, [-n for n in pads])
    else:
        total = torch.convolution(
            F.pad(shifted, pads), weight, None, tuple(stride), zeros, tuple(dilation),
            False, zeros, groups,
        )  # fmt: skip
    return _finished(total, rest[2:], dtype, (-1, *(1,) * rank), requantize, epilogue)


def _shifted(x: Tensor, zero: Tensor | None) -> Tensor:
    import torch

    return x.double() if zero is None else x.double() - zero.to(torch.float64)


def _finished(
    total: Tensor,
    rest: Sequence[Tensor | None],
    dtype: str,
    channel: tuple[int, ...],
    requantize: str,
    epilogue: dict[str, Any],
) -> Tensor:
    import torch

    scale, sum_bias, bias, residual, terms, y_zero = rest
    if sum_bias is not None:
        total = total + sum_bias.reshape(channel)
    whole = total.to(torch.int64).to(torch.int32)
    if dtype == "int32":
        return whole
    assert scale is not None
    if requantize != FLOAT32:
        factor = scale.reshape(channel) if scale.numel() > 1 else scale.reshape(())
        return _by_integers(whole, factor, residual, terms, y_zero, dtype, requantize, epilogue)
    kind = getattr(torch, dtype)
    v = whole.float() * (scale.reshape(channel) if scale.numel() > 1 else scale.reshape(()))
    shift = None if bias is None else bias.reshape(channel)
    if dtype not in BYTES:
        return finish_product(v, shift, residual, epilogue).to(kind)
    limits = torch.iinfo(kind)
    zero = 0.0 if y_zero is None else float(y_zero)
    low = max(float(limits.min), zero) if epilogue["act"] == "relu" else float(limits.min)
    if epilogue["act"] not in BYTE_BOUNDS:
        assert terms is not None
        v = finish_product(v, shift, None, epilogue) * terms
    else:
        v = v if shift is None else v + shift
    if residual is None:
        return (v.round() + zero).clamp(low, limits.max).to(kind)
    assert terms is not None
    v = v.clamp(terms[0], terms[1]).round() * terms[2] + residual.float() * terms[3] + terms[4]
    return v.clamp(low, limits.max).round().to(kind)


def _by_integers(
    sums: Tensor,
    scale: Tensor,
    residual: Tensor | None,
    terms: Tensor | None,
    y_zero: Tensor | None,
    dtype: str,
    rounding: str,
    epilogue: dict[str, Any],
) -> Tensor:
    """Returns the bytes that a machine without floats makes of sums (`abi/requantization.py`)."""
    import numpy as np
    import torch

    limits, zero = torch.iinfo(getattr(torch, dtype)), 0 if y_zero is None else int(y_zero)
    v = requantized(sums.numpy(), scale.expand_as(sums).numpy(), rounding)
    if residual is not None:
        assert terms is not None
        low, high, own, other, r_zero = (float(t) for t in terms)
        v = v.clip(int(low), int(high))
        bytes_ = residual.numpy().astype(np.int64) - int(r_zero)
        v = joined(v, bytes_, (own, other), rounding)
    least = max(limits.min, zero) if epilogue["act"] == "relu" else limits.min
    return torch.from_numpy((v + zero).clip(least, limits.max).astype(dtype))


def infer_int8_matmul(
    a: TensorType,
    b: TensorType,
    /,
    *rest: TensorType | None,
    dtype: str,
    requantize: str = FLOAT32,
    **epilogue: Any,
) -> TensorType:
    """Returns the type of `npu.int8_matmul`; ShapeError when the operands do not fit."""
    if not a.rank or b.rank < 2 or a.shape[-1] != b.shape[-2]:
        raise ShapeError(f"{INT8_MATMUL}: cannot multiply {a} by {b}.")
    batch = broadcast_shapes(a.shape[:-2], b.shape[:-2])
    result = TensorType(dtype, (*batch, *a.shape[-2:-1], b.shape[-1]))
    _check_operands(INT8_MATMUL, (a, b, *rest), result, b.shape[-1], requantize, epilogue)
    if b.rank > 2 and any(t is not None and t.numel > 1 for t in (*rest[1:5], rest[6])):
        raise ShapeError(f"{INT8_MATMUL}: {b} are several matrices; each is scaled as a whole.")
    return result


def infer_int8_conv(
    x: TensorType,
    w: TensorType,
    /,
    *rest: TensorType | None,
    stride: Sequence[int],
    padding: Sequence[int],
    padding_back: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    dtype: str,
    transposed: bool = False,
    requantize: str = FLOAT32,
    **epilogue: Any,
) -> TensorType:
    """Returns the type of `npu.int8_conv`; ShapeError when operands or attributes do not fit."""
    as_stored = w
    if transposed:
        if groups != 1 or any(d != 1 for d in dilation) or w.rank < 2:
            raise ShapeError(f"{INT8_CONV}: transposed, it has one group and no dilation.")
        as_stored = TensorType(w.dtype, (w.shape[1], w.shape[0], *w.shape[2:]))
    plain = infer_conv(
        x, as_stored, None, None, stride=stride, padding=padding, padding_back=padding_back,
        dilation=dilation, output_padding=(0,) * len(stride), groups=groups,
        transposed=transposed, **NO_EPILOGUE,
    )  # fmt: skip
    result = TensorType(dtype, plain.shape)
    _check_operands(INT8_CONV, (x, w, *rest), result, plain.shape[1], requantize, epilogue)
    return result


def _check_operands(
    op: str,
    operands: Sequence[TensorType | None],
    result: TensorType,
    n: int,
    requantize: str,
    epilogue: dict[str, Any],
) -> None:
    if len(operands) != OPERANDS:
        raise ShapeError(f"{op}: {len(operands)} operands; expected {OPERANDS}.")
    check_activation(op, epilogue)
    x, w, x_zero, w_zero, scale, sum_bias, bias, residual, terms, y_zero = operands
    if x is None or w is None:
        raise ShapeError(f"{op}: an operand is missing.")
    if x.dtype not in BYTES or w.dtype not in BYTES:
        raise ShapeError(f"{op}: the operands are {x} and {w}, not of 8 bits.")

    def check(what: str, t: TensorType | None, dtype: str, counts: tuple[int, ...]) -> None:
        if t is not None and (t.dtype != dtype or t.numel not in counts):
            raise ShapeError(f"{op}: the {what} is {t}; expected {dtype} of {n} or one element.")

    makes_bytes = result.dtype in BYTES
    check("zero point of x", x_zero, x.dtype, (1,))
    check("zero point of the weight", w_zero, w.dtype, (1, n))
    check("scale", scale, "float32", (1, n))
    check("bias of sums", sum_bias, "int32", (n,))
    check("bias", bias, "float32", (n,))
    activated = makes_bytes and epilogue["act"] not in BYTE_BOUNDS
    check("terms", terms, "float32", (1 if activated else 5,))
    check("zero point of the result", y_zero, result.dtype, (1,))
    if (scale is None) != (result.dtype == "int32"):
        raise ShapeError(f"{op}: a result in {result.dtype} has the scale {scale}.")
    if activated and (residual is not None or requantize != FLOAT32):
        raise ShapeError(
            f"{op}: bytes of {epilogue['act']} are not added to, and floats make them."
        )
    if (y_zero is not None and not makes_bytes) or (terms is not None) != (
        makes_bytes and (activated or residual is not None)
    ):
        raise ShapeError(f"{op}: the operands do not fit a result in {result.dtype}.")
    if (residual is None) != (epilogue["residual"] == 0):
        raise ShapeError(f"{op}: residual={epilogue['residual']}, but it is {residual}.")
    if residual is not None:
        kinds = BYTES if makes_bytes else (result.dtype,)
        if residual.shape != result.shape or residual.dtype not in kinds:
            raise ShapeError(f"{op}: the residual is {residual}, the result {result}.")
    if requantize != FLOAT32 and (requantize not in ROUNDINGS or not makes_bytes or bias):
        known = ", ".join(ROUNDINGS)
        raise ShapeError(
            f"{op}: sums become {result.dtype} by {requantize!r}, with the bias {bias}; by "
            f"integers ({known}) they become bytes, without one."
        )
    if result.dtype == "int32" and epilogue["act"] != "copy":
        raise ShapeError(f"{op}: {epilogue['act']} of a result in int32.")
