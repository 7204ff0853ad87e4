"""What the fused products and pointwise chains compute, and their types.

Owns the references (PyTorch) and the type inference; the ops are registered, with their
lowerings, by their families (`ops/linear.py`, `ops/conv.py`, `ops/pointwise.py`). All functions
take the node's inputs in order and its attributes by name.

* `npu.linear(x[..., k], weight[n, k], bias[n]?, residual?)`: `act(x·wᵀ + bias)`.
* `npu.gated_linear(x[..., k], weight[2n, k], bias[2n]?)`: both halves of the rows are products of
  their own, `act(x·w₀ᵀ + b₀) * (x·w₁ᵀ + b₁)`; `act` is a unary opcode.
* `npu.conv(x[b, c, spatial…], weight, bias?, residual?)`: cross-correlation, or its gradient when
  `transposed`, over one to three spatial dimensions, then the same epilogue. The weight is as
  PyTorch's: [out, in/groups, kernel…], transposed [in, out/groups, kernel…]. `padding` is in front
  of each spatial dimension, `padding_back` behind; when `transposed`, both are cut off the result.
  The bias is a vector [out], or up to `CONV_VECTORS` of them, [1…3, out]: the bias, factors that
  the sums are multiplied by before anything is added, offsets that are added last of all.
* `npu.pointwise(x0, x1, …)`: a ScalarProgram over tensors broadcast as PyTorch does.

Epilogue: `residual` 1 adds the tensor before the activation, 2 after it, 0 means there is none.
`act` is an opcode of `abi/scalar.py`; "clamp" reads `act_lo` and `act_hi`. Half-precision operands
are computed in float32 and rounded once, to x's dtype or the one that `dtype`, if there, names.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from npusim.abi.scalar import OPCODES, ScalarOp, ScalarProgram, compute_class, from_float
from npusim.errors import ShapeError
from npusim.ir.types import TensorType

if TYPE_CHECKING:
    from torch import Tensor

Ints = Sequence[int]

_FLOATS = {"float32", "float16", "bfloat16"}
CONV_VECTORS = 3  # that the bias of a convolution may consist of

# The attributes of an epilogue that does nothing.
NO_EPILOGUE: dict[str, Any] = {"act": "copy", "act_lo": 0.0, "act_hi": 0.0, "residual": 0}


def activation_program(act: str, lo: float, hi: float, cls: str = "f") -> ScalarProgram:
    """Returns an epilogue's activation as a program of one input."""
    args: tuple[int | tuple[str, float], ...] = (0,)
    if act == "clamp":
        args = (0, ("const", lo), ("const", hi))
    return ScalarProgram((cls,), (ScalarOp(act, args, cls),))


def reference_linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    addend: Tensor | None,
    /,
    *,
    dtype: str | None = None,
    **epilogue: Any,
) -> Tensor:
    """Computes `npu.linear`."""
    from torch.nn import functional as F

    product = F.linear(_accumulate(x), _accumulate(weight))
    y = finish_product(product, _accumulate(bias), _accumulate(addend), epilogue)
    return y.to(_stored(x, dtype))


def reference_gated_linear(
    x: Tensor, weight: Tensor, bias: Tensor | None, /, *, act: str, dtype: str | None = None
) -> Tensor:
    """Computes `npu.gated_linear`."""
    from torch.nn import functional as F

    gate, up = F.linear(_accumulate(x), _accumulate(weight), _accumulate(bias)).chunk(2, -1)
    y = finish_product(gate, None, None, {**NO_EPILOGUE, "act": act}) * up
    return y.to(_stored(x, dtype))


def reference_conv(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    addend: Tensor | None,
    /,
    *,
    stride: Ints,
    padding: Ints,
    padding_back: Ints,
    dilation: Ints,
    output_padding: Ints,
    groups: int,
    transposed: bool,
    algorithm: str = "auto",
    dtype: str | None = None,
    **epilogue: Any,
) -> Tensor:
    """Computes `npu.conv`; `algorithm` says how a target does it and changes nothing here."""
    import torch
    from torch.nn import functional as F

    rank = x.dim() - 2
    a, w = _accumulate(x), _accumulate(weight)
    if transposed:
        convolve = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)[rank - 1]
        full = convolve(a, w, None, tuple(stride), 0, 0, groups, tuple(dilation))
        cut = [(-f, o - b) for f, b, o in zip(padding, padding_back, output_padding, strict=True)]
        product = F.pad(full, _pad_argument(cut))
    else:
        padded = F.pad(a, _pad_argument(list(zip(padding, padding_back, strict=True))))
        zeros = (0,) * rank
        product = torch.convolution(
            padded, w, None, tuple(stride), zeros, tuple(dilation), False, zeros, groups
        )
    vectors = [] if bias is None else _vectors(_accumulate(bias), rank)
    if len(vectors) > 1:
        product = product * vectors[1]
    y = finish_product(product, next(iter(vectors), None), _accumulate(addend), epilogue)
    return (y + vectors[2] if len(vectors) > 2 else y).to(_stored(x, dtype))


def _vectors(bias: Tensor, rank: int) -> list[Tensor]:
    """Returns the vectors of a convolution's bias, each to be broadcast over spatial sizes."""
    return list(bias.reshape(-1, bias.shape[-1], *(1,) * rank).unbind(0))


def reference_pointwise(*inputs: Tensor, program: Any, dtype: str) -> Tensor:
    """Computes `npu.pointwise`: every input is loaded once, the result is rounded once."""
    import torch

    from npusim.abi import scalar_torch

    result = scalar_torch.run(ScalarProgram.from_attr(program), inputs)
    if compute_class(dtype) == "i" and dtype != "bool" and result.is_floating_point():
        result = scalar_torch.functions()[from_float(dtype)](result)
    return result.to(getattr(torch, dtype))


def infer_linear(
    x: TensorType,
    weight: TensorType,
    bias: TensorType | None,
    addend: TensorType | None,
    /,
    *,
    dtype: str | None = None,
    **epilogue: Any,
) -> TensorType:
    """Returns the type of `npu.linear`; ShapeError when the operands do not fit."""
    if weight.rank != 2 or not x.rank or x.shape[-1] != weight.shape[1]:
        raise ShapeError(f"npu.linear: x is {x}, but the weight is {weight}; expected [n, k].")
    result = TensorType(_result_dtype(x, dtype), (*x.shape[:-1], weight.shape[0]))
    _check_epilogue("npu.linear", result, weight.shape[0], bias, addend, epilogue)
    return result


def infer_gated_linear(
    x: TensorType,
    weight: TensorType,
    bias: TensorType | None,
    /,
    *,
    act: str,
    dtype: str | None = None,
) -> TensorType:
    """Returns the type of `npu.gated_linear`; ShapeError when the operands do not fit."""
    op = "npu.gated_linear"
    if weight.rank != 2 or not x.rank or x.shape[-1] != weight.shape[1] or weight.shape[0] % 2:
        raise ShapeError(f"{op}: x is {x}, but the weight is {weight}; expected [2n, k].")
    result = TensorType(_result_dtype(x, dtype), (*x.shape[:-1], weight.shape[0] // 2))
    _check_epilogue(op, result, weight.shape[0], bias, None, {**NO_EPILOGUE, "act": act})
    return result


def infer_conv(
    x: TensorType,
    weight: TensorType,
    bias: TensorType | None,
    addend: TensorType | None,
    /,
    *,
    stride: Ints,
    padding: Ints,
    padding_back: Ints,
    dilation: Ints,
    output_padding: Ints,
    groups: int,
    transposed: bool,
    algorithm: str = "auto",
    dtype: str | None = None,
    **epilogue: Any,
) -> TensorType:
    """Returns the type of `npu.conv`; ShapeError when operands or attributes do not fit."""
    rank = x.rank - 2
    geometry = (stride, padding, padding_back, dilation, output_padding)
    if not 1 <= rank <= 3 or weight.rank != x.rank or any(len(g) != rank for g in geometry):
        raise ShapeError(f"npu.conv: x is {x}, the weight {weight}: one to three spatial sizes.")
    channels = weight.shape[1] * groups if not transposed else weight.shape[0]
    outputs = weight.shape[1] * groups if transposed else weight.shape[0]
    if x.shape[1] != channels or outputs % groups:
        raise ShapeError(f"npu.conv: x is {x}, the weight {weight}, groups {groups}.")
    sizes = []
    for i in range(rank):
        size, window = x.shape[2 + i], dilation[i] * (weight.shape[2 + i] - 1) + 1
        pad = padding[i] + padding_back[i]
        if transposed:
            sizes.append((size - 1) * stride[i] + window - pad + output_padding[i])
        else:
            sizes.append((size + pad - window) // stride[i] + 1)
    if min(sizes) < 1:
        raise ShapeError(f"npu.conv: the kernel of {weight} does not fit into the padded {x}.")
    result = TensorType(_result_dtype(x, dtype), (x.shape[0], outputs, *sizes))
    vector = bias
    if bias is not None and bias.rank == 2 and 1 <= bias.shape[0] <= CONV_VECTORS:
        vector = TensorType(bias.dtype, bias.shape[1:])
    _check_epilogue("npu.conv", result, outputs, vector, addend, epilogue)
    return result


def infer_pointwise(*inputs: TensorType, program: Any, dtype: str) -> TensorType:
    """Returns the type of `npu.pointwise`; ShapeError when the operands do not broadcast."""
    return TensorType(dtype, broadcast_shapes(*(x.shape for x in inputs)))


def broadcast_shapes(*shapes: tuple[int, ...]) -> tuple[int, ...]:
    """Returns the shape that all broadcast to, by PyTorch's rules; ShapeError when none is."""
    rank = max(map(len, shapes), default=0)
    result = [1] * rank
    for shape in shapes:
        for axis, size in enumerate(shape, rank - len(shape)):
            if size != 1 and result[axis] not in (1, size):
                raise ShapeError(f"Shapes {', '.join(map(str, shapes))} do not broadcast.")
            result[axis] = size if size != 1 else result[axis]
    return tuple(result)


def _accumulate(x: Tensor | None) -> Any:
    import torch

    half = x is not None and x.dtype in (torch.float16, torch.bfloat16)
    return x.float() if x is not None and half else x


def finish_product(y: Tensor, bias: Any, addend: Any, epilogue: dict[str, Any]) -> Tensor:
    """Applies bias, activation and residual in the accumulation dtype."""
    import torch

    from npusim.abi import scalar_torch

    if bias is not None:
        y = y + bias
    if epilogue["residual"] == 1:
        y = y + addend
    if epilogue["act"] != "copy":
        cls = "d" if y.dtype == torch.float64 else "f"
        act = activation_program(epilogue["act"], epilogue["act_lo"], epilogue["act_hi"], cls)
        y = scalar_torch.run(act, [y])
    return y + addend if epilogue["residual"] == 2 else y


def _stored(x: Tensor, dtype: str | None) -> Any:
    import torch

    return x.dtype if dtype is None else getattr(torch, dtype)


def _result_dtype(x: TensorType, dtype: str | None) -> str:
    """Returns what a product's result is stored in: as x, or as its attribute `dtype` says."""
    if dtype is None:
        return x.dtype
    if {x.dtype, dtype} <= _FLOATS:
        return dtype
    raise ShapeError(f"A product of {x} is not stored as {dtype}.")


def _adds(addend: TensorType, result: TensorType) -> bool:
    """Tells whether a residual may be added: of the result's dtype, or another float."""
    return addend.dtype == result.dtype or {addend.dtype, result.dtype} <= _FLOATS


def _pad_argument(pads: list[tuple[int, int]]) -> list[int]:
    """Returns (front, back) pairs in the order `torch.nn.functional.pad` wants: last first."""
    return [amount for pair in reversed(pads) for amount in pair]


def check_activation(op: str, epilogue: Mapping[str, Any]) -> None:
    """Raises ShapeError unless the attributes are an epilogue's: `act`, its bounds, `residual`."""
    act = epilogue.get("act")
    if not isinstance(act, str) or (act != "clamp" and OPCODES.get(act, (0, 0))[1] != 1):
        raise ShapeError(f"{op}: act is {act!r}, which is no function of one number.")
    for name in ("act_lo", "act_hi"):
        if not isinstance(epilogue.get(name), (int, float)):
            raise ShapeError(f"{op}: {name} is {epilogue.get(name)!r}, expected a number.")
    if epilogue.get("residual") not in (0, 1, 2):
        raise ShapeError(f"{op}: residual is {epilogue.get('residual')!r}, expected 0, 1 or 2.")


def _check_epilogue(
    op: str,
    result: TensorType,
    channels: int,
    bias: TensorType | None,
    addend: TensorType | None,
    epilogue: dict[str, Any],
) -> None:
    check_activation(op, epilogue)
    if bias is not None and bias.shape != (channels,):
        raise ShapeError(f"{op}: the bias is {bias}; expected {channels} elements.")
    if (addend is None) != (epilogue["residual"] == 0):
        raise ShapeError(f"{op}: residual={epilogue['residual']}, but the addend is {addend}.")
    if addend is not None and (addend.shape != result.shape or not _adds(addend, result)):
        raise ShapeError(f"{op}: the residual is {addend}, the result {result}.")
