"""Normalisations: layer, RMS, group, instance and batch norm, and softmax along a dimension."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import prod
from typing import TYPE_CHECKING

from npusim.abi.scalar import OPCODES, ScalarBuilder, compute_class
from npusim.errors import ShapeError
from npusim.ir.graph import Attr, Graph, Node
from npusim.ir.opdef import Case, OpDef, register
from npusim.ir.types import TensorType
from npusim.lowering.context import Lowering, Param, codes
from npusim.lowering.pointwise_kernel import emit_program
from npusim.lowering.view import View
from npusim.ops.fused import NO_EPILOGUE, activation_program, check_activation
from npusim.ops.linear import row_stride, rows

if TYPE_CHECKING:
    from torch import Tensor

_FLOATS = ("float32", "float16", "bfloat16")
_KINDS = ("layer", "rms")  # of norms of rows, by the kernel's number


def _float(value: Attr) -> float:
    assert isinstance(value, (int, float))
    return float(value)


def _affine(low: Lowering, *vectors: View | None) -> tuple[dict[str, int], list[View]]:
    """Returns has_weight, has_bias, w_dtype and the dense vectors that are there."""
    weight, bias = vectors
    present = [low.dense(v) for v in vectors if v is not None]
    if len({v.dtype for v in present}) > 1:
        present = [low.cast(v, "float32") for v in present]
    dtype = present[0].dtype if present else "float32"
    flags = {"has_weight": int(weight is not None), "has_bias": int(bias is not None)}
    return {**flags, **codes(w_dtype=dtype)}, present


def _lower_row_norm(kind: int) -> Callable[[Node, Lowering], None]:
    """layer_norm (0), rms_norm (1): over the last `normalized_shape` dimensions."""

    def lower(node: Node, low: Lowering) -> None:
        x, weight, bias = (*low.inputs(node), None, None)[:3]
        assert x is not None
        dims, eps = node.attrs["normalized_shape"], node.attrs.get("eps")
        assert isinstance(dims, tuple)
        y = low.result(node.output, strided=len(dims) == 1)
        epsilon = _float(eps) if eps is not None else _machine_epsilon(x.dtype)
        _emit_row_norm(low, kind, x, (weight, bias if kind == 0 else None), y, len(dims), epsilon)

    return lower


def _lower_norm_of_kind(node: Node, low: Lowering) -> None:
    """npu.row_norm: a layer or RMS norm whose result has a dtype of its own."""
    _lower_row_norm(_KINDS.index(str(node.attrs["kind"])))(node, low)


def emit_rms_norm(low: Lowering, x: View, weight: View, y: View, eps: float) -> None:
    """Emits y = RMS norm of x over its last dimension."""
    _emit_row_norm(low, 1, x, (weight, None), y, 1, eps)


def _emit_row_norm(
    low: Lowering,
    kind: int,
    x: View,
    vectors: tuple[View | None, View | None],
    y: View,
    dims: int,
    eps: float,
) -> None:
    """Emits a norm over the last `dims` dimensions; `vectors` are weight and bias."""
    if y.numel == 0:
        return
    lead = x.shape[: x.rank - dims]
    inner = prod(x.shape[x.rank - dims :])
    flat = x.reshape((*lead, inner)) or low.dense(x).reshape((*lead, inner))
    assert flat is not None
    flat, count, stride = rows(low, flat)
    y_stride = row_stride(y) if dims == 1 else inner
    if stride == y_stride:
        flat = replace(flat, shape=y.shape, strides=y.strides)
    affine, operands = _affine(low, *vectors)
    params: dict[str, Param] = {
        "kind": kind,
        "rows": count,
        "size": inner,
        "x_row_stride": stride,
        "y_row_stride": y_stride,
        "eps": eps,
        **affine,
        **codes(x_dtype=x.dtype, y_dtype=y.dtype),
    }
    low.emit("norm", params, [flat, *operands], [y], in_place=[flat])


def _machine_epsilon(dtype: str) -> float:
    return {"float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}[dtype]


def _emit_group_norm(
    low: Lowering,
    x: View,
    weight: View | None,
    bias: View | None,
    y: View,
    groups: int,
    eps: float,
    act: str = "copy",
) -> None:
    """y is dense in some order; batch, channels and merged spatial dimensions are strided."""
    if y.numel == 0:
        return
    spatial = prod(x.shape[2:])
    shape = (*x.shape[:2], spatial)
    flat_y = y.reshape(shape)
    assert flat_y is not None
    flat_x = x.reshape(shape) or low.dense(x, y.order).reshape(shape)
    assert flat_x is not None
    affine, vectors = _affine(low, weight, bias)
    params: dict[str, Param] = {
        "batch": x.shape[0],
        "channels": x.shape[1],
        "spatial": spatial,
        "groups": groups,
        "x_strides": flat_x.strides,
        "y_strides": flat_y.strides,
        "eps": eps,
        "act": OPCODES[act][0],
        **affine,
        **codes(x_dtype=x.dtype, y_dtype=y.dtype),
    }
    low.emit("group_norm", params, [flat_x, *vectors], [flat_y])


def _lower_group_norm(node: Node, low: Lowering) -> None:
    x, weight, bias = (*low.inputs(node), None, None)[:3]
    assert x is not None
    groups = node.attrs["num_groups"]
    assert isinstance(groups, int)
    y = low.result(node.output)
    eps, act = _float(node.attrs.get("eps", 1e-5)), str(node.attrs.get("act", "copy"))
    _emit_group_norm(low, x, weight, bias, y, groups, eps, act)


def reference_group_norm(
    x: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    /,
    *,
    num_groups: int,
    eps: float,
    act: str,
) -> Tensor:
    """Computes `npu.group_norm`: a group norm and a unary opcode after it, rounded once."""
    from torch.nn import functional

    from npusim.abi import scalar_torch

    cls = compute_class(str(x.dtype).removeprefix("torch."))
    wide = {"f": "float", "d": "double"}[cls]
    factors, shifts = (v if v is None else getattr(v, wide)() for v in (weight, bias))
    y = functional.group_norm(getattr(x, wide)(), num_groups, factors, shifts, eps)
    finish = activation_program(act, 0.0, 0.0, cls)
    return scalar_torch.run(finish, [y]).to(x.dtype)


def reference_row_norm(
    x: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    /,
    *,
    kind: str,
    normalized_shape: tuple[int, ...],
    eps: float,
    dtype: str,
) -> Tensor:
    """Computes `npu.row_norm`: a layer or RMS norm in float32, rounded once to `dtype`."""
    import torch
    from torch.nn import functional

    factors, shifts = (v if v is None else v.float() for v in (weight, bias))
    if kind == "layer":
        y = functional.layer_norm(x.float(), list(normalized_shape), factors, shifts, eps)
    else:
        y = functional.rms_norm(x.float(), list(normalized_shape), factors, eps)
    return y.to(getattr(torch, dtype))


def infer_row_norm(
    x: TensorType,
    weight: TensorType | None = None,
    bias: TensorType | None = None,
    /,
    *,
    kind: object,
    normalized_shape: object,
    eps: object,
    dtype: str,
) -> TensorType:
    """Returns the type of `npu.row_norm`; ShapeError when the operands do not fit."""
    op = "npu.row_norm"
    shape = normalized_shape if isinstance(normalized_shape, tuple) else ()
    if not shape or len(shape) > x.rank or x.shape[x.rank - len(shape) :] != shape:
        raise ShapeError(f"{op}: {normalized_shape!r} are no last dimensions of {x}.")
    if kind not in _KINDS or not isinstance(eps, (int, float)) or dtype not in _FLOATS:
        raise ShapeError(f"{op}: kind is {kind!r}, eps {eps!r} and dtype {dtype!r}.")
    for vector in (weight, bias):
        if vector is not None and (vector.shape != shape or (vector is bias and kind == "rms")):
            raise ShapeError(f"{op}: a norm of kind {kind!r} takes no vector {vector}.")
    return TensorType(dtype, x.shape)


def infer_group_norm(
    x: TensorType,
    weight: TensorType | None = None,
    bias: TensorType | None = None,
    /,
    *,
    num_groups: object,
    eps: object,
    act: object,
) -> TensorType:
    """Returns the type of `npu.group_norm`; ShapeError when the operands do not fit."""
    op = "npu.group_norm"
    check_activation(op, {**NO_EPILOGUE, "act": act})
    if act == "clamp" or not isinstance(eps, (int, float)):
        raise ShapeError(f"{op}: act is {act!r} and eps {eps!r}; it takes no bounds, and a number.")
    groups = num_groups if isinstance(num_groups, int) else 0
    if x.rank < 2 or groups < 1 or x.shape[1] % groups != 0:
        raise ShapeError(f"{op}: the channels of {x} are no {num_groups!r} groups.")
    for vector in (weight, bias):
        if vector is not None and vector.shape != x.shape[1:2]:
            raise ShapeError(f"{op}: {vector} is no vector of the channels of {x}.")
    return x


def _lower_instance_norm(node: Node, low: Lowering) -> None:
    """Without running statistics: a group norm with one channel a group."""
    x, weight, bias = low.inputs(node)[:3]
    assert x is not None
    y = low.result(node.output)
    _emit_group_norm(low, x, weight, bias, y, x.shape[1], _float(node.attrs.get("eps", 1e-5)))


def _instance_norm_supported(node: Node, graph: Graph) -> str | None:
    if not node.attrs.get("use_input_stats", True):
        return "instance norm over running statistics"
    return None


def _lower_batch_norm(node: Node, low: Lowering) -> None:
    """Inference form that no convolution could take in: (x - mean) * rsqrt(var + eps) * w + b."""
    x, weight, bias, mean, var = low.inputs(node)
    assert x is not None and mean is not None and var is not None
    given = [v for v in (weight, bias, mean, var) if v is not None]
    lead = (1, x.shape[1], *(1,) * (x.rank - 2))
    vectors = [low.dense(low.cast(v, "float32")).reshape(lead) for v in given]
    operands = [v for v in vectors if v is not None]
    builder = ScalarBuilder("f" * (1 + len(operands)))
    at_mean = 1 + (weight is not None) + (bias is not None)
    centred = builder.op("sub", "f", 0, at_mean)
    eps = ("const", _float(node.attrs.get("eps", 1e-5)))
    scale = builder.op("rsqrt", "f", builder.op("add", "f", at_mean + 1, eps))
    if weight is not None:
        scale = builder.op("mul", "f", scale, 1)
    out = builder.op("mul", "f", centred, scale)
    if bias is not None:
        builder.op("add", "f", out, 1 + (weight is not None))
    y = low.result(node.output, strided=True)
    emit_program(low, builder.build(y.dtype), [x, *operands], y)


def _lower_native_batch_norm(node: Node, low: Lowering) -> None:
    """Batch norm in inference; the statistics that training would read are empty."""
    _lower_batch_norm(replace(node, outputs=node.outputs[:1]), low)
    for value in node.outputs[1:]:
        low.result(value)


def _infer_native_batch_norm(
    x: TensorType, *rest: TensorType | None, **attrs: Attr
) -> tuple[TensorType, ...]:
    """As PyTorch has it on the CPU; without data it would show statistics that are not there."""
    for vector in rest:
        if x.rank < 2 or (vector is not None and vector.shape != x.shape[1:2]):
            raise ShapeError(f"x is {x}, a vector of its channels {vector}.")
    return x, TensorType(x.dtype, (0,)), TensorType(x.dtype, (0,))


def _batch_norm_supported(node: Node, graph: Graph) -> str | None:
    if node.attrs.get("training"):
        return "batch norm in training mode; call model.eval() before extraction"
    if node.inputs[3] is None:
        return "batch norm without running statistics"
    return None


def _lower_softmax(log: int) -> Callable[[Node, Lowering], None]:
    def lower(node: Node, low: Lowering) -> None:
        x = low.inputs(node)[0]
        assert x is not None
        dim = node.attrs["dim"]
        assert isinstance(dim, int)
        x = low.cast(x, node.type.dtype) if node.type.dtype != x.dtype else x
        x, y, (outer, size, inner) = middle(low, x, node, dim)
        if y.numel == 0:
            return
        params: dict[str, Param] = {"outer": outer, "size": size, "inner": inner, "log": log}
        dtypes = codes(x_dtype=x.dtype, y_dtype=y.dtype)
        low.emit("softmax", {**params, **dtypes}, [x], [y], in_place=[x])

    return lower


def middle(low: Lowering, x: View, node: Node, dim: int) -> tuple[View, View, tuple[int, int, int]]:
    """Returns dense x, the node's result in the same order, and [outer, size, inner] around dim."""
    if x.rank == 0:
        y = low.temp(node.type, name=node.output.name)
        low.define(node.output, y)
        return x, y, (1, 1, 1)
    x = low.any_dense(x)
    dim = dim + x.rank if dim < 0 else dim
    order = x.order
    y = low.temp(TensorType(node.type.dtype, node.type.shape).with_order(order), name=node.name)
    low.define(node.output, y)
    place = order.index(dim)
    outer = prod(x.shape[d] for d in order[:place])
    inner = prod(x.shape[d] for d in order[place + 1 :])
    return x, y, (outer, x.shape[dim], inner)


def _float_only(node: Node, graph: Graph) -> str | None:
    x = graph.types[node.inputs[0]] if node.inputs[0] else node.outputs[0].type
    return None if x.dtype in _FLOATS else f"dtype {x.dtype}; supported are {', '.join(_FLOATS)}"


def _op(name: str, lower: Callable[[Node, Lowering], None], *cases: Case, **rest: object) -> None:
    rest.setdefault("supports", _float_only)
    register(OpDef(f"aten.{name}", lower=lower, cases=cases, dtypes=_FLOATS, **rest))  # type: ignore[arg-type]


_SHAPE = {"normalized_shape": (33,)}
_op("layer_norm.default", _lower_row_norm(0), Case(((2, 3, 33), (33,), (33,)), _SHAPE),
    Case(((19, 270), (270,), (270,)), {"normalized_shape": (270,)}, "long rows"),
    Case(((4, 33), None, None), _SHAPE, "plain"),
    Case(((2, 5, 6), (5, 6), (5, 6)), {"normalized_shape": (5, 6)}, "two"))  # fmt: skip
_op("rms_norm.default", _lower_row_norm(1), Case(((2, 3, 33), (33,)), {**_SHAPE, "eps": 1e-6}),
    Case(((4, 33), None), _SHAPE, "plain"))  # fmt: skip
register(
    OpDef(
        "npu.row_norm",
        lower=_lower_norm_of_kind,
        reference=reference_row_norm,
        infer=infer_row_norm,
        cases=tuple(
            Case(vectors, {**_SHAPE, "kind": kind, "eps": 1e-6, "dtype": dtype}, f"{kind} {dtype}")
            for kind, vectors in (
                ("layer", ((2, 3, 33), (33,), (33,))),
                ("rms", ((4, 33), None, None)),
            )
            for dtype in _FLOATS
        ),
        dtypes=_FLOATS,
        supports=_float_only,
    )
)
_op("group_norm.default", _lower_group_norm,
    Case(((2, 6, 5, 4), (6,), (6,)), {"num_groups": 3}),
    Case(((2, 6, 7), None, None), {"num_groups": 2}, "plain"))  # fmt: skip
register(
    OpDef(
        "npu.group_norm",
        lower=_lower_group_norm,
        reference=reference_group_norm,
        infer=infer_group_norm,
        cases=(
            Case(((2, 6, 5, 4), (6,), (6,)), {"num_groups": 3, "eps": 1e-5, "act": "silu"}),
            Case(((2, 6, 7), None, None), {"num_groups": 2, "eps": 1e-5, "act": "relu"}, "plain"),
        ),
        dtypes=_FLOATS,
        supports=_float_only,
    )
)
_op("instance_norm.default", _lower_instance_norm,
    Case(((2, 4, 6, 5), (4,), (4,), None, None), {"use_input_stats": True, "momentum": 0.1,
         "eps": 1e-5, "cudnn_enabled": False}),
    supports=_instance_norm_supported)  # fmt: skip
_STATISTICS = ((2, 4, 6, 5), (4,), (4,), (4,), ((4,), "positive"))
_op("batch_norm.default", _lower_batch_norm, Case(_STATISTICS, {"training": False,
    "momentum": 0.1, "eps": 1e-5, "cudnn_enabled": False}),
    supports=_batch_norm_supported)  # fmt: skip
_op("_native_batch_norm_legit_no_training.default", _lower_native_batch_norm,
    Case(_STATISTICS, {"momentum": 0.1, "eps": 1e-5}),
    infer=_infer_native_batch_norm)  # fmt: skip
for _log, _name in enumerate(("softmax", "log_softmax")):
    _cases = (
        Case(((3, 33),), {"dim": -1}),
        Case(((2, 5, 7),), {"dim": 1}, "middle"),
        Case(((3, 45, 11),), {"dim": 1}, "long columns"),
        Case(((2, 5, 90),), {"dim": 1}, "many columns"),
        Case(((),), {"dim": 0}, "scalar"),
    )
    _op(f"{_name}.int", _lower_softmax(_log), *_cases)
    _op(f"_{_name}.default", _lower_softmax(_log),
        *(Case(c.inputs, {**c.attrs, "half_to_float": False}, c.id) for c in _cases))  # fmt: skip
