"""Pooling and resampling: window kernels without weights, channels-last."""

from __future__ import annotations

from collections.abc import Callable

from npusim.ir.graph import Graph, Node
from npusim.ir.opdef import Case, OpDef, register
from npusim.ir.symbolic import is_symbolic
from npusim.ir.types import TensorType
from npusim.lowering.context import Lowering, Param, codes
from npusim.lowering.view import View
from npusim.ops.conv import as_tuple, channels_last, spatial, strides5, window_params

Lower = Callable[[Node, Lowering], None]


def _batched(view: View, rank: int) -> View:
    """Returns [batch, channels, spatial…]; a missing batch dimension is added."""
    return view.unsqueeze(0) if view.rank == rank + 1 else view


def _window_result(node: Node, low: Lowering, index: int, x: View) -> tuple[View, View]:
    """Returns a channels-last batched buffer for an output, and defines the output.

    Several outputs have the same strides, whatever their dtypes: they are dense.
    """
    value = node.outputs[index]
    shape = value.type.shape if value.type.rank == x.rank else (1, *value.type.shape)
    order = channels_last(len(shape))
    tensor = TensorType(value.type.dtype, shape).with_order(order)
    if len(node.outputs) == 1 and value.type.rank == x.rank:
        return low.room(value, tensor), x
    make = low.stored_temp if len(node.outputs) == 1 else low.temp
    y = make(tensor, name=value.name)
    low.define(value, y if value.type.rank == x.rank else y.select(0, 0))
    return y, x


def _pool(rank: int, op: int, *, adaptive: bool = False) -> Lower:
    def lower(node: Node, low: Lowering) -> None:
        x = low.inputs(node)[0]
        assert x is not None
        x = _batched(x, rank)
        x = low.rows(x, channels_last(x.rank))
        y, _ = _window_result(node, low, 0, x)
        outputs = [y]
        if len(node.outputs) == 2:
            where = _window_result(node, low, 1, x)[0]
            name = node.outputs[1].name
            if low.graph.users[name] or name in low.graph.output_values:
                outputs.append(where)
        if y.numel == 0:
            return
        attrs = node.attrs
        kernel = (1,) * rank if adaptive else as_tuple(attrs["kernel_size"], rank)
        stride = attrs.get("stride") or kernel
        divisor = attrs.get("divisor_override") or 0
        assert isinstance(divisor, int)
        params: dict[str, Param] = {
            **window_params(
                x,
                y,
                kernel=kernel,
                stride=kernel if adaptive else as_tuple(stride, rank),
                padding=(0,) * rank if adaptive else as_tuple(attrs.get("padding", 0), rank),
                dilation=as_tuple(attrs.get("dilation", 1), rank),
            ),
            "op": op,
            "adaptive": int(adaptive),
            "count_include_pad": int(bool(attrs.get("count_include_pad", True))),
            "has_indices": int(len(outputs) == 2),
            "divisor": divisor,
            **codes(x_dtype=x.dtype, y_dtype=y.dtype),
        }
        low.emit("pool", params, [x], outputs)

    return lower


def _scales(node: Node, x: View, y: View, *, align: bool, linear: bool) -> list[float]:
    """Returns input/output per dimension as PyTorch computes it (UpSample.h, area_pixel)."""
    rank = x.rank - 2
    given = node.attrs.get("scale_factors")
    factors: list[float | None] = [None] * rank
    if isinstance(given, tuple):
        factors = [float(f) for f in given if isinstance(f, (int, float))]
    else:
        names = ("scales_d", "scales_h", "scales_w")[3 - rank :]
        names = ("scales",) if rank == 1 and "scales" in node.attrs else names
        for index, name in enumerate(names):
            value = node.attrs.get(name)
            factors[index] = float(value) if isinstance(value, (int, float)) else None
    scales = []
    for source, target, factor in zip(x.shape[2:], y.shape[2:], factors, strict=True):
        told = factor is not None and factor > 0 and not (linear and align)
        if is_symbolic((source, target)) and not told:
            scales.append(_OF_SIZES)
        elif linear and align:
            scales.append((source - 1) / (target - 1) if target > 1 else 0.0)
        elif factor is not None and factor > 0:
            scales.append(1.0 / factor)
        else:
            scales.append(source / target)
    return scales


_OF_SIZES = -1.0  # a scale that the kernel computes from the sizes of the call


def _resize(rank: int, mode: int) -> Lower:
    def lower(node: Node, low: Lowering) -> None:
        x = low.inputs(node)[0]
        assert x is not None
        x = low.rows(x, channels_last(x.rank))
        y, _ = _window_result(node, low, 0, x)
        if y.numel == 0:
            return
        align = bool(node.attrs.get("align_corners", False))
        scale = _scales(node, x, y, align=align, linear=mode in (1, 2))
        params: dict[str, Param] = {
            "batch": x.shape[0],
            "channels": x.shape[1],
            "in_size": spatial(x.shape[2:], 1),
            "out_size": spatial(y.shape[2:], 1),
            "x_strides": strides5(x),
            "y_strides": strides5(y),
            "scale": [1.0] * (3 - rank) + scale,
            "mode": mode,
            "align_corners": int(align),
            **codes(x_dtype=x.dtype, y_dtype=y.dtype),
        }
        low.emit("resize", params, [x], [y])

    return lower


_FLOATS = ("float32", "float16", "bfloat16")


_BYTES = ("int8", "uint8")


def _float_only(node: Node, graph: Graph) -> str | None:
    x = graph.types[node.inputs[0]] if node.inputs[0] else node.outputs[0].type
    if node.op == "aten.max_pool2d.default" and x.dtype in _BYTES:
        return None
    return None if x.dtype in _FLOATS else f"dtype {x.dtype}; supported are {', '.join(_FLOATS)}"


def _op(name: str, lower: Lower, *cases: Case) -> None:
    dtypes = (*_FLOATS, *_BYTES) if name == "max_pool2d.default" else _FLOATS
    register(OpDef(f"aten.{name}", lower=lower, supports=_float_only, cases=cases, dtypes=dtypes))


_SIZES = (9, 8, 7)
for _rank in (1, 2, 3):
    _shape = ((2, 5, *_SIZES[:_rank]),)
    _all = {"kernel_size": (3,) * _rank, "stride": (2,) * _rank, "padding": (1,) * _rank}
    _cases = (
        Case(_shape, _all),
        Case(_shape, {**_all, "ceil_mode": True}, "ceil"),
        Case(_shape, {"kernel_size": (2,) * _rank}),
    )
    _dilated = Case(_shape, {"kernel_size": (2,) * _rank, "dilation": (2,) * _rank}, "dilated")
    _many = [Case(((1, 70, 6, 5),), _all, "many channels")] if _rank == 2 else []
    _beyond = {"kernel_size": (4, 2), "ceil_mode": True}  # more than there is of one dimension
    _wide = [Case(((1, 5, 1, 3),), _beyond, "wide")] if _rank == 2 else []
    _op(f"max_pool{_rank}d.default", _pool(_rank, 0), *_cases, _dilated, *_many, *_wide)
    if _rank > 1:
        _op(f"max_pool{_rank}d_with_indices.default", _pool(_rank, 0), *_cases, _dilated)
    _op(f"avg_pool{_rank}d.default", _pool(_rank, 1), *_cases, *_wide,
        Case(_shape, {**_all, "count_include_pad": False}, "exclude_pad"),
        *([Case(_shape, {**_all, "divisor_override": d}, f"divisor{d}") for d in (3, -2)]
          if _rank > 1 else []))  # fmt: skip
    _op(f"adaptive_avg_pool{_rank}d.default", _pool(_rank, 1, adaptive=True),
        Case(_shape, {"output_size": (1,) * _rank}),
        Case(_shape, {"output_size": (4,) * _rank}))  # fmt: skip
    if _rank > 1:
        _op(
            f"_adaptive_avg_pool{_rank}d.default",
            _pool(_rank, 1, adaptive=True),
            Case(_shape, {"output_size": (3,) * _rank}),
        )
    _op(f"adaptive_max_pool{_rank}d.default", _pool(_rank, 0, adaptive=True),
        Case(_shape, {"output_size": (4,) * _rank}))  # fmt: skip
    _linear = ("linear", "bilinear", "trilinear")[_rank - 1]
    _double = {"scale_factors": (2.0,) * _rank, "output_size": None}
    _to = {"output_size": (13, 5, 10)[:_rank], "scale_factors": None}
    for _mode, _code in (("nearest", 0), ("_nearest_exact", 3), (_linear, 1), ("bicubic", 2)):
        if _mode == "bicubic" and _rank != 2:
            continue
        _name = f"{'_upsample' if _mode[0] == '_' else 'upsample_'}{_mode}{_rank}d"
        _aligned = [{"align_corners": a} for a in (False, True)] if _code in (1, 2) else [{}]
        _resizes = [Case(_shape, {**s, **a}) for s in (_double, _to) for a in _aligned]
        _op(f"{_name}.vec", _resize(_rank, _code), *_resizes)
        _plain = {"output_size": _to["output_size"]}
        _op(
            f"{_name}.default",
            _resize(_rank, _code),
            *(Case(_shape, {**_plain, **a}) for a in _aligned),
        )
