"""Convolutions and their gradients, over one to three spatial dimensions."""

from __future__ import annotations

from collections.abc import Sequence

from npusim.exporters.onnx.registry import Call, Tensor, translation


def _spread(value: int | Sequence[int], rank: int) -> list[int]:
    values = [value] if isinstance(value, int) else list(value)
    return values * rank if len(values) == 1 else values


def convolve(
    call: Call,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    pads: Sequence[int],
    *,
    transposed: bool = False,
) -> Tensor:
    """Returns a convolution with the node's strides, dilations and groups, padded as `pads` says:
    before every dimension, then behind."""
    rank = weight.rank - 2
    shape = call.type.shape
    if x.rank < weight.rank:  # one image without a batch
        x, shape = call.reshape(x, (1, *x.shape)), (1, *shape)
    more = _spread(call.attr("output_padding", 0), rank)
    result = call.op(
        "ConvTranspose" if transposed else "Conv", x, weight, bias, shape=shape,
        kernel_shape=list(weight.shape[2:]), pads=list(pads),
        strides=_spread(call.attr("stride", 1), rank),
        dilations=_spread(call.attr("dilation", 1), rank), group=int(call.attr("groups", 1)),
        output_padding=more if transposed and any(more) else None,
    )  # fmt: skip
    return call.reshape(result, call.type.shape)


@translation("aten.conv1d.default", "aten.conv2d.default", "aten.conv3d.default")
def _conv(call: Call, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    pads = _spread(call.attr("padding", 0), weight.rank - 2)
    return convolve(call, x, weight, bias, pads * 2)


@translation("aten.conv1d.padding", "aten.conv2d.padding", "aten.conv3d.padding")
def _conv_by_name(call: Call, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """ "same" puts what is odd behind."""
    rank = weight.rank - 2
    window = zip(_spread(call.attr("dilation", 1), rank), weight.shape[2:], strict=True)
    total = [d * (k - 1) if call.attr("padding") == "same" else 0 for d, k in window]
    return convolve(call, x, weight, bias, [t // 2 for t in total] + [t - t // 2 for t in total])


@translation(
    *("aten.conv_transpose1d.default", "aten.conv_transpose2d.input"),
    "aten.conv_transpose3d.input",
)
def _transposed(call: Call, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    pads = _spread(call.attr("padding", 0), weight.rank - 2)
    return convolve(call, x, weight, bias, pads * 2, transposed=True)


@translation("aten.convolution.default")
def _either(call: Call, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    pads = _spread(call.attr("padding"), weight.rank - 2)
    return convolve(call, x, weight, bias, pads * 2, transposed=bool(call.attr("transposed")))
