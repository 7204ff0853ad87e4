"""Matrix products: `npu.linear` over weights, and matmul of two computed tensors.

Weights of 16 bits are multiplied where a checkpoint has them; others, and what init made of a
checkpoint's, are packed once, where a target wants that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from npusim.abi.kernels import LINEAR_SEGMENTS
from npusim.abi.scalar import OPCODES, ScalarOp, ScalarProgram, compute_class
from npusim.errors import at
from npusim.ir.graph import Node
from npusim.ir.opdef import Case, OpDef, register
from npusim.ir.symbolic import at_least
from npusim.ir.types import TensorType, row_major
from npusim.lowering.context import Lowering, Param, codes
from npusim.lowering.view import View
from npusim.ops.fused import (
    NO_EPILOGUE,
    infer_gated_linear,
    infer_linear,
    reference_gated_linear,
    reference_linear,
)
from npusim.ops.norm_between import NormPart, part_before_norm
from npusim.program.program import BufferKind

PANEL = 16  # columns of a packed panel; part of what pack_b, gemm and conv agree on


def pack_b(
    low: Lowering,
    w: View,
    *,
    groups: int,
    n: int,
    taps: int,
    channels: int,
    strides: Sequence[int],
) -> View:
    """Returns w packed for gemm and conv, at most once for a weight; strides: g, n, t, c."""
    g_stride, n_stride, t_stride, c_stride = strides

    def make() -> View:
        panels = (n + PANEL - 1) // PANEL
        packed = TensorType(w.dtype, (groups, panels, taps * channels, PANEL))
        y = low.temp(packed, static=low.is_static(w))
        params = {
            "groups": groups,
            "n": n,
            "taps": taps,
            "channels": channels,
            "g_stride": g_stride,
            "n_stride": n_stride,
            "t_stride": t_stride,
            "c_stride": c_stride,
            **codes(x_dtype=w.dtype, y_dtype=w.dtype),
        }
        low.emit("pack_b", params, [w], [y])
        return y

    return low.once((w, groups, n, taps, channels, *strides), make)


def epilogue(
    low: Lowering, node: Node, bias: View | None, residual: View | None
) -> tuple[dict[str, Param], list[View]]:
    """Returns the epilogue fields of a gemm or conv, and the operands they announce.

    The bias, one vector or several, becomes float32 and dense; the residual is the caller's to lay
    out.
    """
    act, lo, hi = activation(node)
    mode = node.attrs["residual"] if residual is not None else 0
    assert isinstance(mode, int)
    operands = []
    if bias is not None:
        operands.append(low.dense(low.cast(bias, "float32")))
    if residual is not None:
        operands.append(residual)
    params: dict[str, Param] = {
        "has_bias": 0 if bias is None else bias.shape[0] if bias.rank == 2 else 1,
        "residual": mode,
        "act": OPCODES[act][0],
        "act_lo": lo,
        "act_hi": hi,
    }
    return params, operands


def activation(node: Node) -> tuple[str, float, float]:
    """Returns an epilogue's activation and the bounds that "clamp" reads."""
    act, lo, hi = (node.attrs[k] for k in ("act", "act_lo", "act_hi"))
    assert isinstance(act, str) and isinstance(lo, (int, float)) and isinstance(hi, (int, float))
    return act, float(lo), float(hi)


def rows(low: Lowering, x: View) -> tuple[View, int, int]:
    """Returns x as (view, row count, row stride) of contiguous rows; copies only if needed."""
    flat = replace(x, shape=(prod(x.shape[:-1]), x.shape[-1]), strides=(0, 1))
    lead = replace(x, shape=x.shape[:-1], strides=x.strides[:-1]).reshape((flat.shape[0],))
    inner_ok = x.shape[-1] == 1 or x.strides[-1] == 1
    several = flat.shape[0] != 1
    if lead is None or not inner_ok or (several and not at_least(lead.strides[0], x.shape[-1])):
        x = low.dense(x)
        return replace(x, shape=flat.shape, strides=(x.shape[-1], 1)), flat.shape[0], x.shape[-1]
    stride = lead.strides[0] if several else x.shape[-1]
    return replace(flat, strides=(stride, 1)), flat.shape[0], stride


def row_stride(y: View) -> int:
    """Returns how far apart the rows of a result lie, in elements."""
    return y.strides[-2] if y.rank > 1 else y.shape[-1]


def stored_as_rows(w: View) -> bool:
    """Tells whether a weight [n, k] lies in rows that the kernel `linear` reads."""
    n, k = w.shape
    return (k <= 1 or w.strides[1] == 1) and (n <= 1 or w.strides[0] >= max(k, 1))


def emit_linear(
    low: Lowering,
    x: View,
    segments: Sequence[View],
    y: View,
    extra: tuple[dict[str, Param], list[View]],
    residual: View | None = None,
    *,
    gated: bool = False,
    norm: NormPart | None = None,
) -> None:
    """Emits y = act(x·Wᵀ + bias + residual), or its gated form, over stored rows of W.

    Args:
        segments: the rows of W, one view after the other.
        extra: the fields and operands of `epilogue`.
        residual: the one among these operands, if any, in rows of contiguous elements.
        norm: what an RMS norm before or after the product adds to it.
    """
    x, sizes = _sizes(low, x, y, residual)
    fields, operands = extra
    params: dict[str, Param] = {
        **sizes,
        "rows": [w.shape[0] for w in segments],
        "ldw": [w.strides[0] if w.shape[0] > 1 else max(w.shape[1], 1) for w in segments],
        "segments": len(segments),
        "gated": int(gated),
        **codes(x_dtype=x.dtype, w_dtype=segments[0].dtype, y_dtype=y.dtype),
        **codes(r_dtype=residual.dtype if residual is not None else y.dtype),
        **fields,
    }
    in_place = [residual] if residual is not None else []
    norm = norm or NormPart("linear", {}, ())
    reads = [x, *segments, *norm.reads, *operands]
    low.emit(norm.stem, {**params, **norm.fields}, reads, [y, *norm.writes], in_place=in_place)


def _sizes(low: Lowering, x: View, y: View, residual: View | None) -> tuple[View, dict[str, Param]]:
    """Returns x in rows, and the fields that say how long and how far apart all rows are."""
    k, n = x.shape[-1], y.shape[-1]
    x, m, ldx = rows(low, x)
    ldr = rows(low, residual)[2] if residual is not None else 0
    return x, {"m": m, "n": n, "k": k, "ldx": ldx, "ldy": row_stride(y), "ldr": ldr}


def _lower_linear(node: Node, low: Lowering) -> None:
    source, weight = node.inputs[:2]
    assert source is not None and weight is not None
    x, y = low.view(source), low.result(node.output, strided=True)
    if y.numel == 0:
        return
    if compute_class(x.dtype) != "f" or not low.target.has_linears:
        _linear_by_matmul(low, node, x, low.view(weight), y)
        return
    bias, residual = (None if name is None else low.view(name) for name in node.inputs[2:])
    if residual is not None:
        residual, _, ldr = rows(low, residual)
        residual = (
            replace(residual, shape=y.shape, strides=y.strides)
            if ldr == row_stride(y)
            else residual
        )
    extra = epilogue(low, node, bias, residual)
    rows_kernel, panels = low.target.has("linear"), low.target.has("pack_b", "gemm")
    segments = low.parts(weight, LINEAR_SEGMENTS)
    wide = low.graph.types[weight].dtype == "float32"
    if rows_kernel and not (panels and (wide or _made_at_load(low, segments))):
        if not panels:
            segments = [w if stored_as_rows(w) else low.dense(w) for w in segments]
        if all(stored_as_rows(w) for w in segments):
            norm = part_before_norm(node, low)
            emit_linear(low, x, segments, y, extra, residual, norm=norm)
            return
    _linear_by_gemm(low, x, low.view(weight), y, extra, residual)


def _made_at_load(low: Lowering, weights: Sequence[View]) -> bool:
    """Tells whether weights are no checkpoint's, so that panels of them are no second copy."""
    kinds = {low.buffers[w.buffer].kind for w in weights if low.is_static(w)}
    return bool(kinds) and BufferKind.WEIGHT not in kinds and all(map(low.is_static, weights))


def _linear_by_gemm(
    low: Lowering,
    x: View,
    w: View,
    y: View,
    extra: tuple[dict[str, Param], list[View]],
    residual: View | None,
) -> None:
    """Over panels of the weight, packed once."""
    n, k = w.shape
    packed = pack_b(
        low, w, groups=1, n=n, taps=1, channels=k, strides=(0, w.strides[0], 0, w.strides[1])
    )
    x, sizes = _sizes(low, x, y, residual)
    fields, operands = extra
    params: dict[str, Param] = {
        **sizes,
        **codes(x_dtype=x.dtype, b_dtype=w.dtype, y_dtype=y.dtype),
        **codes(r_dtype=residual.dtype if residual is not None else y.dtype),
        **fields,
    }
    in_place = [residual] if residual is not None else []
    low.emit("gemm", params, [x, packed, *operands], [y], in_place=in_place)


def _linear_by_matmul(low: Lowering, node: Node, x: View, w: View, y: View) -> None:
    """The product, then bias, residual and activation.

    Of float64, which gemm does not pack, and on targets that have neither gemm nor linear.
    """
    from npusim.lowering.pointwise_kernel import emit_program
    from npusim.ops.fused import activation_program

    cls = compute_class(y.dtype)
    _, _, bias, residual = low.inputs(node)
    mode = node.attrs["residual"]
    act, lo, hi = activation(node)
    finish = activation_program(act, lo, hi, cls)
    add = ScalarProgram((cls, cls), (ScalarOp("add", (0, 1), cls),))
    product = low.temp(TensorType(y.dtype, y.shape))
    _matmul_into(low, x, w.permute((1, 0)), product)
    for operand in (bias, residual if mode == 1 else None):
        if operand is not None:
            emit_program(low, add, [product, operand], product)
    emit_program(low, finish, [product], y)
    if residual is not None and mode == 2:
        emit_program(low, add, [y, residual], y)


def _lower_gated_linear(node: Node, low: Lowering) -> None:
    source, weight, bias_name = node.inputs
    assert source is not None and weight is not None
    x, y = low.view(source), low.result(node.output, strided=True)
    if y.numel == 0:
        return
    bias = None if bias_name is None else low.view(bias_name)
    act = replace(node, attrs={**NO_EPILOGUE, "act": node.attrs["act"]})
    if compute_class(x.dtype) != "f":
        _gated_by_matmul(low, act, x, low.view(weight), bias, y)
        return
    segments = low.parts(weight, LINEAR_SEGMENTS)
    segments = [w if stored_as_rows(w) else low.dense(w) for w in segments]
    emit_linear(low, x, segments, y, epilogue(low, act, bias, None), gated=True)


def _gated_by_matmul(
    low: Lowering, act: Node, x: View, w: View, bias: View | None, y: View
) -> None:
    """float64: both products with their biases, then the gate."""
    from npusim.lowering.pointwise_kernel import emit_program

    cls, n = compute_class(y.dtype), y.shape[-1]
    halves = []
    for start in (0, n):
        product = low.temp(TensorType(y.dtype, y.shape))
        _matmul_into(low, x, w.slice(0, start, n).permute((1, 0)), product)
        if bias is not None:
            add = ScalarProgram((cls, cls), (ScalarOp("add", (0, 1), cls),))
            emit_program(low, add, [product, bias.slice(0, start, n)], product)
        halves.append(product)
    gate = ScalarOp(activation(act)[0], (0,), cls)
    emit_program(low, ScalarProgram((cls, cls), (gate, ScalarOp("mul", (2, 1), cls))), halves, y)


def emit_matmul(low: Lowering, a: View, b: View, y: View, alpha: float = 1.0) -> None:
    """Emits y = alpha * a·b over broadcast batch dimensions; rows of y are contiguous.

    y has the dtype of a and b, or is float32.
    """
    if y.numel == 0:
        return
    batch = y.shape[:-2]
    a, b = a.expand((*batch, *a.shape[-2:])), b.expand((*batch, *b.shape[-2:]))
    if len(batch) > 6:
        a, b = (low.dense(v) for v in (a, b))
        merged = (prod(batch[:-5]), *batch[-5:])
        a, b, y = (v.reshape((*merged, *v.shape[-2:])) or v for v in (a, b, y))
        batch = merged
    lead = [1] * (6 - len(batch))
    zero = [0] * len(lead)
    params: dict[str, Param] = {
        "batch": [*lead, *batch],
        "a_batch": [*zero, *a.strides[:-2]],
        "b_batch": [*zero, *b.strides[:-2]],
        "y_batch": [*zero, *y.strides[:-2]],
        "m": y.shape[-2],
        "n": y.shape[-1],
        "k": a.shape[-1],
        "a_m": a.strides[-2],
        "a_k": a.strides[-1],
        "b_k": b.strides[-2],
        "b_n": b.strides[-1],
        "y_m": y.strides[-2],
        "alpha": alpha,
        **codes(dtype=a.dtype),
    }
    low.emit("matmul" if y.dtype == a.dtype else "widening_matmul", params, [a, b], [y])


def lower_matmul(node: Node, low: Lowering) -> None:
    """matmul, mm, bmm, mv, dot: vectors become one-row or one-column matrices."""
    a, b = low.inputs(node)
    assert a is not None and b is not None
    y = low.result(node.output, strided=True)
    _matmul_into(low, a, b, y)


def _matmul_into(low: Lowering, a: View, b: View, y: View, alpha: float = 1.0) -> None:
    dense = y.is_row_major
    if a.rank == 1:
        a = a.unsqueeze(0)
        y = y.unsqueeze(y.rank - 1 if b.rank > 1 else y.rank)
    if b.rank == 1:
        b = b.unsqueeze(1)
        y = y.unsqueeze(y.rank)
    y = replace(y, strides=row_major(y.shape)) if dense else y
    emit_matmul(low, a, b, y, alpha)


def _lower_add_matmul(node: Node, low: Lowering) -> None:
    """addmm, baddbmm, addmv: y = beta * input + alpha * a·b."""
    bias, a, b = low.inputs(node)
    assert bias is not None and a is not None and b is not None
    beta, alpha = node.attrs.get("beta", 1), node.attrs.get("alpha", 1)
    assert isinstance(beta, (int, float)) and isinstance(alpha, (int, float)), at(node.source)
    y = low.result(node.output, strided=True)
    if beta == 0:
        _matmul_into(low, a, b, y, float(alpha))
        return
    from npusim.lowering.pointwise_kernel import emit_program

    product = low.temp(TensorType(y.dtype, y.shape))
    _matmul_into(low, a, b, product, float(alpha))
    cls = compute_class(y.dtype)
    scale = ("const", float(beta) if cls != "i" else int(beta))
    body = (ScalarOp("mul", (0, scale), cls), ScalarOp("add", (1, 2), cls))
    emit_program(low, ScalarProgram((cls, cls), body), [bias, product], y)


def _lower_aten_linear(node: Node, low: Lowering) -> None:
    """aten.linear that no pass turned into npu.linear: same thing without an epilogue."""
    x, weight, bias = (*node.inputs, None, None)[:3]
    assert x is not None and weight is not None
    if low.graph.types[weight].rank == 1:
        _linear_of_a_vector(
            low, low.view(x), low.view(weight), bias, low.result(node.output, strided=True)
        )
    else:
        whole = replace(node, inputs=(x, weight, bias, None), attrs=NO_EPILOGUE)
        _lower_linear(whole, low)


def _linear_of_a_vector(low: Lowering, x: View, w: View, bias: str | None, y: View) -> None:
    """A weight [k] gives one feature, which has no dimension; its bias is a scalar."""
    from npusim.lowering.pointwise_kernel import emit_program

    if y.numel == 0:
        return
    product = y if bias is None else low.temp(TensorType(y.dtype, y.shape))
    _matmul_into(low, x, w, product)
    if bias is not None:
        cls = compute_class(y.dtype)
        add = ScalarProgram((cls, cls), (ScalarOp("add", (0, 1), cls),))
        emit_program(low, add, [product, low.view(bias)], y)


_FLOATS = ("float32", "float16", "bfloat16")
_NUMBERS = (*_FLOATS, "float64", "int64")

register(OpDef("npu.linear", lower=_lower_linear, reference=reference_linear, infer=infer_linear))
register(
    OpDef(
        "npu.gated_linear",
        lower=_lower_gated_linear,
        reference=reference_gated_linear,
        infer=infer_gated_linear,
    )
)
register(
    OpDef(
        "aten.linear.default",
        lower=_lower_aten_linear,
        cases=(
            Case(((5, 7), (9, 7), (9,))),
            Case(((2, 3, 64), (48, 64), None)),
            Case(((64,), (16, 64), (16,)), id="vector"),
            Case(((37, 4), (4, 4), (4,)), id="few terms and columns"),
            Case(((5, 7, 5), (6, 5), None), id="few terms, six columns"),
            Case(((3, 5, 7), (7,), None), id="vector weight"),
            Case(((3, 5, 7), (7,), ()), id="vector weight and bias"),
        ),
        dtypes=_FLOATS,
        tolerance=4,
    )
)
for _name, _cases in {
    "matmul.default": (
        Case(((4, 5), (5, 6))),
        Case(((2, 1, 4, 5), (3, 5, 6)), id="batched"),
        Case(((5,), (5,)), id="dot"),
        Case(((3, 4, 5), (5,)), id="vector"),
        Case(((5,), (3, 5, 6)), id="row"),
    ),
    "mm.default": (Case(((40, 70), (70, 33))), Case(((0, 4), (4, 3)), id="empty")),
    "bmm.default": (Case(((3, 4, 5), (3, 5, 6))),),
    "mv.default": (Case(((4, 5), (5,))),),
    "dot.default": (Case(((33,), (33,))),),
}.items():
    register(OpDef(f"aten.{_name}", lower=lower_matmul, cases=_cases, dtypes=_NUMBERS, tolerance=4))
for _name, _cases in {
    "addmm.default": (
        Case(((6,), (4, 5), (5, 6))),
        Case(((4, 6), (4, 5), (5, 6)), {"beta": 2, "alpha": 3}),
    ),
    "baddbmm.default": (Case(((3, 4, 6), (3, 4, 5), (3, 5, 6)), {"alpha": 2}),),
    "addmv.default": (Case(((4,), (4, 5), (5,))),),
}.items():
    register(
        OpDef(f"aten.{_name}", lower=_lower_add_matmul, cases=_cases, dtypes=_FLOATS, tolerance=4)
    )
