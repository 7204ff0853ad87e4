"""The references of the fused ops against PyTorch's own operators; what their inference refuses."""

import itertools

import pytest
import torch

from npusim.errors import ShapeError
from npusim.ir.types import TensorType
from npusim.ops import fused
from npusim.ops.reference import type_of

CONV = (torch.conv1d, torch.conv2d, torch.conv3d)
TRANSPOSED = (torch.conv_transpose1d, torch.conv_transpose2d, torch.conv_transpose3d)
GEOMETRY = list(itertools.product((1, 2, 3), (1, 2), (0, 1), (1, 2), (1, 2)))


def attributes(rank, stride, padding, dilation, groups, **more):
    attrs = {
        "stride": (stride,) * rank,
        "padding": (padding,) * rank,
        "padding_back": (padding,) * rank,
        "dilation": (dilation,) * rank,
        "output_padding": (0,) * rank,
        "groups": groups,
        "transposed": False,
        **fused.NO_EPILOGUE,
    }
    return attrs | more


@pytest.mark.parametrize(("rank", "stride", "padding", "dilation", "groups"), GEOMETRY)
def test_convolutions(rank, stride, padding, dilation, groups):
    x, b = torch.randn(2, 4, *(7, 8, 9)[:rank]), torch.randn(6)
    w = torch.randn(6, 4 // groups, *(3,) * rank)
    expected = CONV[rank - 1](x, w, b, stride, padding, dilation, groups)
    check_conv((x, w, b, None), attributes(rank, stride, padding, dilation, groups), expected)
    w = torch.randn(4, 6 // groups, *(3,) * rank)
    for extra in {0, stride - 1}:
        attrs = attributes(rank, stride, padding, dilation, groups, transposed=True,
                           output_padding=(extra,) * rank)  # fmt: skip
        expected = TRANSPOSED[rank - 1](x, w, b, stride, padding, extra, groups, dilation)
        check_conv((x, w, b, None), attrs, expected)


def check_conv(tensors, attrs, expected):
    torch.testing.assert_close(fused.reference_conv(*tensors, **attrs), expected)
    types = [None if t is None else type_of(t) for t in tensors]
    assert fused.infer_conv(*types, **attrs) == type_of(expected)


@pytest.mark.parametrize("vectors", [1, 2, 3])
def test_factors_and_offsets_of_a_convolution(vectors):
    x, w, b = torch.randn(2, 4, 7), torch.randn(6, 4, 3), torch.randn(vectors, 6)
    r = torch.randn(2, 6, 5)
    attrs = attributes(1, 1, 0, 1, 1, act="relu", residual=2)
    neutral = torch.tensor([0.0, 1.0, 0.0])[vectors:, None].expand(-1, 6)
    bias, factor, offset = torch.cat((b, neutral))[..., None]
    expected = (torch.conv1d(x, w) * factor + bias).relu() + r + offset
    check_conv((x, w, b, r), attrs, expected)


@pytest.mark.parametrize("residual", [0, 1, 2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.float64])
def test_epilogue_order(residual, dtype):
    x, w, b, r = (torch.randn(*s).to(dtype) for s in ((5, 3), (4, 3), (4,), (5, 4)))
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    y = x.to(wide) @ w.to(wide).T + b.to(wide)
    y = (y + r if residual == 1 else y).clamp(-0.5, 0.5) + (r if residual == 2 else 0)
    attrs = {"act": "clamp", "act_lo": -0.5, "act_hi": 0.5, "residual": residual}
    actual = fused.reference_linear(x, w, b, r if residual else None, **attrs)
    torch.testing.assert_close(actual, y.to(dtype))


F = "float32"


@pytest.mark.parametrize(
    ("types", "message"),
    [
        (((5, 3), (4, 2), None, None), "weight"),
        (((5, 3), (4, 3), (5,), None), "bias"),
        (((5, 3), (4, 3), None, (5, 4)), "residual=0"),
    ],
)
def test_refused_linears(types, message):
    types = [None if t is None else TensorType(F, t) for t in types]
    with pytest.raises(ShapeError, match=message):
        fused.infer_linear(*types, **fused.NO_EPILOGUE)


def test_refused_convolutions():
    x = TensorType(F, (1, 4, 5, 5))
    for w, groups in (((8, 3, 3, 3), 1), ((8, 4, 7, 7), 1), ((8, 4, 3), 1), ((9, 2, 3, 3), 2)):
        with pytest.raises(ShapeError, match=r"npu\.conv"):
            fused.infer_conv(x, TensorType(F, w), None, None, **attributes(2, 1, 0, 1, groups))
    w = TensorType(F, (8, 4, 3, 3))
    for bias in ((7,), (4, 8), (0, 8), (2, 7), (1, 2, 8)):
        with pytest.raises(ShapeError, match="the bias is"):
            fused.infer_conv(x, w, TensorType(F, bias), None, **attributes(2, 1, 0, 1, 1))


def test_refused_broadcast():
    with pytest.raises(ShapeError, match="broadcast"):
        fused.broadcast_shapes((2, 3), (4,))


@pytest.mark.parametrize("act", ["copy", "relu", "clamp", "silu"])
def test_activations_of_one_number_are_an_epilogue(act):
    fused.check_activation("op", {**fused.NO_EPILOGUE, "act": act})


@pytest.mark.parametrize(
    "change",
    [{"act": a} for a in ("add", "where", "nothing", "", 5, None)]
    + [{"act_lo": None}, {"act_hi": "1"}, {"residual": 3}, {"residual": None}],
)
def test_what_is_no_epilogue_is_refused(change):
    (name,) = change
    with pytest.raises(ShapeError, match=f"op: {name} is"):
        fused.check_activation("op", {**fused.NO_EPILOGUE, **change})
