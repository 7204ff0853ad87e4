"""Convolutions: `npu.conv` in the algorithm the passes chose, channels-last.

Owns the geometry all window kernels share (`window_params`), weight packing per algorithm, and
the plain aten convolutions, which lower as an `npu.conv` without epilogue.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod

from npusim.abi.kernels import PHASED
from npusim.ir.graph import Attr, Graph, Node, Value
from npusim.ir.opdef import Case, OpDef, register
from npusim.ir.symbolic import is_symbolic
from npusim.ir.types import TensorType
from npusim.lowering.context import Lowering, Param, codes
from npusim.lowering.view import View
from npusim.ops.conv_patches import CHUNK, patch_rows
from npusim.ops.conv_phases import Phase, are_joined, packed_phases, phase_views, phases
from npusim.ops.fused import NO_EPILOGUE, infer_conv, reference_conv
from npusim.ops.linear import PANEL, epilogue, pack_b

_COPIED_ELEMENTS = 256  # of a window, from which on a row of its own is worth a copy


def channels_last(rank: int) -> tuple[int, ...]:
    """Returns the storage order of a channels-last tensor [batch, channels, spatial…]."""
    return (0, *range(2, rank), 1)


def spatial(values: Sequence[int], fill: int) -> list[int]:
    """Returns up to three spatial numbers as depth, height, width; absent leading ones as fill."""
    return [fill] * (3 - len(values)) + list(values)


def strides5(view: View) -> list[int]:
    """Returns a tensor's strides as batch, channel, depth, height, width."""
    return [view.strides[0], view.strides[1], *spatial(view.strides[2:], 0)]


def as_tuple(value: Attr, rank: int) -> tuple[int, ...]:
    """Returns an int-or-list attribute with one entry a spatial dimension."""
    if isinstance(value, int):
        return (value,) * rank
    assert isinstance(value, tuple)
    items = tuple(v for v in value if isinstance(v, int))
    return items * rank if len(items) == 1 else items


def window_params(
    x: View,
    y: View,
    *,
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
) -> dict[str, Param]:
    """Returns the fields every window kernel starts with (`_WINDOW` of abi/kernels.py)."""
    return {
        "batch": x.shape[0],
        "in_channels": x.shape[1],
        "out_channels": y.shape[1],
        "in_size": spatial(x.shape[2:], 1),
        "out_size": spatial(y.shape[2:], 1),
        "kernel": spatial(kernel, 1),
        "stride": spatial(stride, 1),
        "pad": spatial(padding, 0),
        "dilation": spatial(dilation, 1),
        "x_strides": strides5(x),
        "y_strides": strides5(y),
    }


def channels_last_result(node: Node, low: Lowering) -> View:
    """Returns a channels-last buffer for the node's output, whatever order its type has."""
    value = node.output
    return low.room(value, value.type.with_order(channels_last(value.type.rank)))


def _lower_conv(node: Node, low: Lowering) -> None:
    x, w, bias, residual = low.inputs(node)
    assert x is not None and w is not None
    y = channels_last_result(node, low)
    if y.numel == 0:
        return
    order = channels_last(x.rank)
    if residual is not None:
        residual = low.rows(residual, order)
    extra, operands = epilogue(low, node, bias, residual)
    rank = x.rank - 2
    attrs = {k: as_tuple(node.attrs[k], rank) for k in ("stride", "padding", "dilation")}
    algorithm = node.attrs["algorithm"]
    if algorithm not in ("auto", "igemm") or x.shape[1] >= PANEL:
        x = low.rows(x, order)
    if low.target.code_format and _has_separate_patches(node, x, w):
        x, w = patch_rows(low, x, w, y.shape[2:])
        attrs = {"stride": (1,) * rank, "padding": (0,) * rank, "dilation": (1,) * rank}
    # Other kernels find the taps that hit something.
    if low.target.code_format and _lower_phases(node, low, x, w, y, residual, operands, extra):
        return
    params = {
        **window_params(x, y, kernel=w.shape[2:], **attrs),
        "r_strides": strides5(residual) if residual is not None else [0] * 5,
        **codes(x_dtype=x.dtype, y_dtype=y.dtype),
        **codes(r_dtype=residual.dtype if residual is not None else y.dtype),
        **extra,
    }
    if algorithm == "depthwise":
        kernel, packed, more = _depthwise(low, w)
    elif isinstance(algorithm, str) and algorithm.startswith("winograd"):
        kernel, packed, more = _winograd(low, w, int(algorithm[len("winograd") :]))
    elif low.target.code_format and _has_patches(node, x, w):  # other kernels gather anyway
        kernel, packed, more = _patches(low, x, y, w, attrs)
    else:
        kernel, packed, more = _indirect(low, node, w)
    in_place = [residual] if residual is not None else []
    low.emit(kernel, {**params, **more}, [x, packed, *operands], [y], in_place=in_place)


def _lower_phases(
    node: Node,
    low: Lowering,
    x: View,
    w: View,
    y: View,
    residual: View | None,
    operands: Sequence[View],
    extra: Mapping[str, Param],
) -> bool:
    """Emits a transposed convolution as plain ones (`ops/conv_phases.py`), if it gains from it."""
    rank = x.rank - 2
    stride, padding, dilation = (
        as_tuple(node.attrs[name], rank) for name in ("stride", "padding", "dilation")
    )
    if not node.attrs["transposed"] or prod(stride) == 1 or prod(dilation) != 1:
        return False
    if is_symbolic((*x.shape, *y.shape, *w.shape)):
        return False
    found = phases(y.shape[2:], w.shape[2:], stride, padding)
    one_group = node.attrs["groups"] == 1
    if low.target.joins_phases and one_group and are_joined(found, stride, x):
        _emit_joined(low, found, (stride, padding), (x, w, y, residual), operands, extra)
        return True
    for phase in found:
        of_x, of_w, of_y, of_residual = phase_views(phase, stride, x, w, y, residual)
        added = [*operands[:-1], of_residual] if of_residual is not None else operands
        kernel, packed, more = _indirect(low, node, low.dense(of_w))
        params = {
            **window_params(
                of_x,
                of_y,
                kernel=of_w.shape[2:],
                stride=(1,) * rank,
                padding=tuple(one.padding for one in phase),
                dilation=(1,) * rank,
            ),
            "r_strides": strides5(of_residual) if of_residual is not None else [0] * 5,
            **codes(x_dtype=x.dtype, y_dtype=y.dtype),
            **codes(r_dtype=residual.dtype if residual is not None else y.dtype),
            **extra,
            **more,
            "transposed": 0,
        }
        low.emit(kernel, params, [of_x, packed, *added], [of_y])
    return bool(found)


def _emit_joined(
    low: Lowering,
    found: Sequence[tuple[Phase, ...]],
    window: tuple[tuple[int, ...], tuple[int, ...]],
    views: tuple[View, View, View, View | None],
    operands: Sequence[View],
    extra: Mapping[str, Param],
) -> None:
    """Emits all phases as one command, which is given the first one's part of y.

    Args:
        window: stride and padding of the transposed convolution.
        views: x, w, y and the residual.
    """
    (stride, padding), (x, w, y, residual) = window, views
    _, _, of_y, of_residual = phase_views(found[0], stride, x, w, y, residual)
    taps = tuple(one.taps for one in found[0])
    params = {
        **window_params(
            x, of_y, kernel=taps, stride=stride, padding=padding, dilation=(1,) * len(stride)
        ),
        "r_strides": strides5(of_residual) if of_residual is not None else [0] * 5,
        **codes(x_dtype=x.dtype, w_dtype=w.dtype, y_dtype=y.dtype),
        **codes(r_dtype=residual.dtype if residual is not None else y.dtype),
        **extra,
        "groups": 1,
        "transposed": PHASED,
    }
    low.emit("conv", params, [x, packed_phases(low, w, stride, taps), *operands], [y])


Packed = tuple[str, View, dict[str, Param]]


def _indirect(low: Lowering, node: Node, w: View) -> Packed:
    """w is [out, in/groups, k…], transposed [in, out/groups, k…]: both become (g, n, tap, c)."""
    groups, transposed = node.attrs["groups"], node.attrs["transposed"]
    assert isinstance(groups, int)
    taps = prod(w.shape[2:])
    if taps > 1:
        w = low.dense(w)
    t_stride = w.strides[-1] if taps > 1 else 0
    if transposed:
        channels, n = w.shape[0] // groups, w.shape[1]
        strides = (channels * w.strides[0], w.strides[1], t_stride, w.strides[0])
    else:
        n, channels = w.shape[0] // groups, w.shape[1]
        strides = (n * w.strides[0], w.strides[0], t_stride, w.strides[1])
    packed = pack_b(low, w, groups=groups, n=n, taps=taps, channels=channels, strides=strides)
    return (
        "conv",
        packed,
        {"groups": groups, "transposed": int(bool(transposed)), **codes(w_dtype=w.dtype)},
    )


def _has_patches(node: Node, x: View, w: View) -> bool:
    """Tells whether windows are rows of whole chunks beside each other, as vision transformers'."""
    width = w.shape[-1]
    return width % CHUNK == 0 and x.strides[-1] == 1 and _touch(node, x, w, (-1,))


def _has_separate_patches(node: Node, x: View, w: View) -> bool:
    """Tells whether windows touch along all axes, and their many elements lie in no chunks."""
    axes = tuple(range(x.rank - 2))
    many = prod(w.shape[1:]) >= _COPIED_ELEMENTS and w.shape[-1] % CHUNK != 0
    return many and _touch(node, x, w, axes)


def _touch(node: Node, x: View, w: View, axes: Sequence[int]) -> bool:
    """Tells whether windows of few channels touch along these axes, and hit nothing else."""
    rank = x.rank - 2
    stride, padding, back, dilation = (
        as_tuple(node.attrs[name], rank)
        for name in ("stride", "padding", "padding_back", "dilation")
    )
    if node.attrs["groups"] != 1 or node.attrs["transposed"] or rank > 2 or x.shape[1] >= PANEL:
        return False
    if is_symbolic((*x.shape, *w.shape)):
        return False
    found = [(stride[i], padding[i], back[i], dilation[i]) for i in axes]
    return found == [(w.shape[2:][i], 0, 0, 1) for i in axes]


def _patches(
    low: Lowering, x: View, y: View, w: View, attrs: Mapping[str, tuple[int, ...]]
) -> Packed:
    """The elements of a window's row become channels, channels become depth.

    Few channels are short rows of a matrix product; the row of a patch is a long one that lies in
    memory as it is.
    """
    n, channels, *high, wide = w.shape
    w = low.dense(w)
    packed = pack_b(
        low,
        w,
        groups=1,
        n=n,
        taps=channels * prod(high),
        channels=wide,
        strides=(0, w.strides[0], wide, 1),
    )
    heights = {
        name: spatial(values[:-1], int(name != "padding"))[2] for name, values in attrs.items()
    }
    return (
        "conv",
        packed,
        {
            "groups": 1,
            "transposed": 0,
            "in_channels": wide,
            "in_size": [channels, *(x.shape[2:-1] or (1,)), y.shape[-1]],
            "kernel": [channels, *(high or (1,)), 1],
            "stride": [1, heights["stride"], 1],
            "pad": [0, heights["padding"], 0],
            "dilation": [1, heights["dilation"], 1],
            "x_strides": [x.strides[0], 1, x.strides[1], x.strides[2] if high else 0, wide],
            **codes(w_dtype=w.dtype),
        },
    )


def _depthwise(low: Lowering, w: View) -> Packed:
    """w[channels, 1, k…] becomes dense [taps, channels]."""

    def make() -> View:
        flat = low.dense(w).reshape((w.shape[0], prod(w.shape[2:])))
        assert flat is not None
        return low.dense(flat.permute((1, 0)))

    return "conv_depthwise", low.once((w, "depthwise"), make), codes(w_dtype=w.dtype)  # type: ignore[return-value]


def _winograd(low: Lowering, w: View, tile: int) -> Packed:
    """w[n, c, 3, 3] becomes its transform, (tile + 2)² matrices in panels."""

    def make() -> View:
        n, channels = w.shape[:2]
        shape = ((tile + 2) ** 2, (n + PANEL - 1) // PANEL, channels, PANEL)
        y = low.temp(TensorType("float32", shape), static=low.is_static(w))
        names = ("n_stride", "c_stride", "h_stride", "w_stride")
        params = {
            "n": n,
            "channels": channels,
            "tile": tile,
            **dict(zip(names, w.strides, strict=True)),
            **codes(x_dtype=w.dtype),
        }
        low.emit("winograd_weights", params, [w], [y])
        return y

    return "conv_winograd", low.once((w, "winograd", tile), make), {"tile": tile}


def _as_npu_conv(node: Node, graph: Graph) -> Node:
    """Returns an aten convolution as npu.conv: one spelling of its many argument forms."""
    types = [None if i is None else graph.types[i] for i in node.inputs]
    assert types[0] is not None and types[1] is not None
    rank = types[1].rank - 2
    attrs = node.attrs
    transposed = bool(attrs.get("transposed", "transpose" in node.op))
    dilation = as_tuple(attrs.get("dilation", 1), rank)
    front, back = _padding(attrs.get("padding", 0), types[1].shape[2:], dilation, rank)
    extra: dict[str, Attr] = {
        "stride": as_tuple(attrs.get("stride", 1), rank),
        "padding": front,
        "padding_back": back,
        "dilation": dilation,
        "output_padding": as_tuple(attrs.get("output_padding", 0), rank),
        "groups": attrs.get("groups", 1),
        "transposed": transposed,
        "algorithm": "auto",
        **NO_EPILOGUE,
    }
    inputs = (*node.inputs[:3], *(None,) * (4 - len(node.inputs[:3])))
    return replace(node, op="npu.conv", inputs=inputs, attrs=extra)


def _padding(
    padding: Attr, kernel: Sequence[int], dilation: Sequence[int], rank: int
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Resolves "valid" and "same"; an odd remainder of "same" goes behind, as in PyTorch."""
    if padding == "valid":
        return (0,) * rank, (0,) * rank
    if padding == "same":
        totals = [d * (k - 1) for d, k in zip(dilation, kernel, strict=True)]
        return tuple(t // 2 for t in totals), tuple(t - t // 2 for t in totals)
    both = as_tuple(padding, rank)
    return both, both


def _lower_aten_conv(node: Node, low: Lowering) -> None:
    conv = _as_npu_conv(node, low.graph)
    x, weight = node.inputs[:2]
    assert x is not None and weight is not None
    if low.graph.types[x].rank == low.graph.types[weight].rank:
        _lower_conv(conv, low)
        return
    kind = node.type  # an unbatched input is a batch of one
    batched = Value(f"{node.name}.batched", TensorType(kind.dtype, (1, *kind.shape)))
    operand = Value(f"{node.name}.operand", low.graph.types[x])
    low.define(operand, low.view(x).unsqueeze(0))
    _lower_conv(replace(conv, inputs=(operand.name, *conv.inputs[1:]), outputs=(batched,)), low)
    low.define(node.output, low.view(batched.name).select(0, 0))


def _floats_only(node: Node, graph: Graph) -> str | None:
    """Kernels compute float32 and narrower."""
    dtype = graph.types[node.inputs[0]].dtype if node.inputs[0] else node.output.type.dtype
    if dtype not in ("float32", "float16", "bfloat16"):
        return f"convolution in {dtype}; supported are float32, float16, bfloat16"
    return None


_FLOATS = ("float32", "float16", "bfloat16")
_PLAIN: dict[str, Attr] = {
    "stride": (1, 1),
    "padding": (1, 1),
    "padding_back": (1, 1),
    "dilation": (1, 1),
    "output_padding": (0, 0),
    "groups": 1,
    "transposed": False,
    "algorithm": "auto",
    **NO_EPILOGUE,
}
_RELU: dict[str, Attr] = {**_PLAIN, "act": "relu"}
_WIDE = (2, 24, 6, 6)

register(
    OpDef(
        "npu.conv",
        lower=_lower_conv,
        supports=_floats_only,
        reference=reference_conv,
        infer=infer_conv,
        cases=(
            Case(((2, 16, 6, 6), (24, 16, 3, 3), (2, 24), None), _RELU, "factors"),
            Case(
                ((2, 16, 6, 6), (24, 16, 3, 3), (3, 24), _WIDE), {**_RELU, "residual": 1}, "offsets"
            ),
            Case(
                ((1, 12, 6, 6), (12, 1, 3, 3), (3, 12), (1, 12, 6, 6)),
                {**_RELU, "groups": 12, "residual": 2, "algorithm": "depthwise"},
                "depthwise factors and offsets",
            ),
            Case(
                ((1, 6, 6, 6), (6, 5, 3, 3), (3, 10), None),
                {**_RELU, "groups": 2, "transposed": True},
                "transposed factors and offsets",
            ),
            Case(
                ((1, 40, 6, 6), (40, 8, 3, 3), (3, 40), (1, 40, 6, 6)),
                {**_RELU, "groups": 5, "residual": 1},
                "groups in a vector, offsets",
            ),
        ),
        dtypes=_FLOATS,
        tolerance=4,
    )
)
_CASES: dict[str, tuple[Case, ...]] = {
    "conv1d": (
        Case(((2, 3, 17), (5, 3, 3), (5,)), {"stride": (2,), "padding": (1,)}),
        Case(((1, 4, 9), (6, 2, 3), None), {"groups": 2, "dilation": (2,)}),
    ),
    "conv2d": (
        Case(((1, 3, 12, 11), (8, 3, 7, 7), (8,)), {"stride": (2, 2), "padding": (3, 3)}),
        Case(((2, 16, 9, 8), (32, 16, 3, 3), None), {"padding": (1, 1)}),
        Case(((1, 40, 7, 7), (24, 40, 1, 1), (24,)), id="pointwise"),
        Case(((2, 2, 33, 24), (5, 2, 13, 11), (5,)), {"stride": (13, 11)}, "apart"),
        Case(((1, 17, 5, 5), (36, 17, 3, 3), (36,)), {"padding": (1, 1)}, "odd channels"),
        Case(((3, 8, 7), (4, 3, 3, 3), (4,)), {"padding": (1, 1)}, "unbatched"),
        Case(((1, 12, 9, 9), (12, 1, 3, 3), (12,)), {"groups": 12, "padding": (1, 1)}, "depthwise"),
        Case(
            ((2, 88, 9, 13), (88, 1, 3, 3), (88,)),
            {"groups": 88, "padding": (1, 1)},
            "wide depthwise",
        ),
        Case(((1, 8, 9, 9), (12, 4, 3, 2), None), {"groups": 2, "dilation": (2, 1)}, "groups"),
        Case(((2, 24, 9, 13), (24, 4, 3, 3), (24,)), {"groups": 6, "padding": (1, 1)}, "few each"),
        Case(
            ((1, 17, 8, 11), (34, 1, 5, 3), None),
            {"groups": 17, "stride": (2, 1), "padding": (4, 1), "dilation": (2, 1)},
            "two of each channel",
        ),
        Case(((2, 8, 9, 8), (16, 8, 5, 5), (16,)), {"padding": (2, 2)}, "many taps"),
        Case(
            ((1, 8, 13, 17), (8, 8, 3, 9), None),
            {"stride": (2, 1), "padding": (2, 5), "dilation": (2, 1)},
            "taps past each border",
        ),
        Case(((1, 8, 1, 40), (8, 8, 1, 31), None), {"padding": (0, 30)}, "a long row of taps"),
        Case(((2, 40, 9, 7), (1, 40, 3, 3), (1,)), {"padding": (1, 1)}, "to one channel"),
        Case(((1, 80, 7, 5), (6, 40, 3, 3), (6,)), {"groups": 2, "stride": (2, 1)}, "three each"),
        Case(((1, 5, 9, 19), (5, 1, 3, 3), (5,)), {"groups": 5, "padding": (1, 1)}, "five alone"),
    ),
    "conv3d": (
        Case(((1, 3, 5, 6, 7), (4, 3, 3, 3, 3), (4,)), {"padding": (1, 1, 1)}),
        Case(((1, 8, 4, 5, 6), (8, 8, 3, 3, 3), (8,)), {"padding": (1, 2, 1)}, "many taps"),
    ),
    "conv_transpose1d": (
        Case(((1, 4, 7), (4, 6, 3), (6,)), {"stride": (2,)}),
        Case(((2, 96, 11), (96, 1, 8), (1,)), {"stride": (4,)}, "to one channel"),
    ),
    "conv_transpose2d": (
        Case(
            ((1, 6, 5, 4), (6, 4, 3, 3), (8,)),
            {"stride": (2, 2), "padding": (1, 1), "output_padding": (1, 1), "groups": 2},
        ),
    ),
    "conv_transpose3d": (Case(((1, 2, 3, 4, 3), (2, 3, 2, 2, 2), None), {"stride": (2, 2, 2)}),),
}


def _same(case: Case) -> Case:
    """Returns the case with stride 1 and the padding that keeps the extent."""
    return Case(case.inputs, {"padding": "same"}, "same")


_OVERLOADS = {"conv_transpose2d": "input", "conv_transpose3d": "input"}
for _name, _cases in _CASES.items():
    for _overload in (_OVERLOADS.get(_name, "default"), "padding"):
        if _overload == "padding" and "transpose" in _name:
            continue
        register(
            OpDef(
                f"aten.{_name}.{_overload}",
                lower=_lower_aten_conv,
                supports=_floats_only,
                cases=_cases if _overload != "padding" else (_same(_cases[0]),),
                dtypes=_FLOATS,
                tolerance=4,
            )
        )
register(
    OpDef(
        "aten.convolution.default",
        lower=_lower_aten_conv,
        supports=_floats_only,
        cases=(
            Case(
                ((1, 3, 8, 8), (4, 3, 3, 3), (4,)),
                {
                    "stride": (1, 1),
                    "padding": (1, 1),
                    "dilation": (1, 1),
                    "transposed": False,
                    "output_padding": (0, 0),
                    "groups": 1,
                },
            ),
        ),
        dtypes=_FLOATS,
        tolerance=4,
    )
)
