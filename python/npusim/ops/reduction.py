"""Reductions over dimensions, scans along one, and sorting."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from npusim.abi.kernels import RANK
from npusim.ir.graph import Graph, Node
from npusim.ir.opdef import Case, OpDef, register
from npusim.ir.symbolic import is_symbolic, upper
from npusim.ir.types import TensorType, dtype_code, is_float
from npusim.lowering.context import Lowering, Param, codes
from npusim.lowering.view import View, collapse, in_parts
from npusim.ops.normalization import middle

Lower = Callable[[Node, Lowering], None]

SUM, MEAN, MAX, MIN, PROD, ANY, ALL, ARGMAX, ARGMIN, VAR, STD = range(11)
_EMPTY_IS_NONE = ("aten.any.dims", "aten.all.dims")
SUM_OF_SQUARES, L2, SUM_OF_ABSOLUTES, LOGSUMEXP = range(11, 15)
SCAN_SUM, SCAN_PROD, SCAN_MAX, SCAN_MIN, SCAN_LOGSUMEXP = range(5)


def reduced_dims(node: Node, rank: int) -> tuple[int, ...]:
    """Returns the reduced dimensions; none given, or an empty list, mean all of them.

    any and all over a list are the exception: over an empty one they reduce nothing.
    """
    value = node.attrs.get("dim")
    if value is None or (value == () and node.op not in _EMPTY_IS_NONE):
        return tuple(range(rank))
    chosen = value if isinstance(value, tuple) else (value,)
    return tuple(d % rank for d in chosen if isinstance(d, int)) if rank else ()


def emit_reduce(
    low: Lowering, x: View, y: View, dims: Sequence[int], op: int, correction: float = 0.0
) -> None:
    """Emits y = reduce(x) over dims; y has the kept dimensions, with or without 1s for the rest."""
    if y.numel == 0:
        return
    kept = [d for d in range(x.rank) if d not in dims]
    strides = y.strides if y.rank == len(kept) else tuple(y.strides[d] for d in kept)
    of_y = replace(y, shape=tuple(x.shape[d] for d in kept), strides=strides)
    of_x = replace(x, shape=of_y.shape, strides=tuple(x.strides[d] for d in kept))
    if low.target.code_format and not is_symbolic(x.strides):
        # Threads take outputs whose elements lie beside each other, wherever the results go.
        apart = sorted(range(len(kept)), key=lambda d: -abs(of_x.strides[d]))
        of_x, of_y = of_x.permute(apart), of_y.permute(apart)
    reduced_shape = [x.shape[d] for d in dims]
    reduced_strides = [x.strides[d] for d in dims]
    if op not in (ARGMAX, ARGMIN):  # these count positions: the order of dimensions matters
        reduced_shape, (reduced_strides,) = collapse(reduced_shape, reduced_strides)
    elif not reduced_shape:
        reduced_shape, reduced_strides = [1], [0]
    ones = [1] * RANK
    for part_of_y, part_of_x in in_parts((of_y, of_x), RANK):
        shape, (ys, xs) = collapse(part_of_y.shape, part_of_y.strides, part_of_x.strides)
        params: dict[str, Param] = {
            "op": op,
            "rank": len(shape),
            "reduced_rank": len(reduced_shape),
            "correction": correction,
            "shape": shape + ones[len(shape) :],
            "x_strides": xs,
            "y_strides": ys,
            "reduced": reduced_shape + ones[len(reduced_shape) :],
            "reduced_strides": reduced_strides,
            "x_dtype": dtype_code(x.dtype),
            "y_dtype": dtype_code(y.dtype),
        }
        low.emit("reduce", params, [part_of_x], [part_of_y])


def _reduce(op: int) -> Lower:
    def lower(node: Node, low: Lowering) -> None:
        x = low.inputs(node)[0]
        assert x is not None
        dims = tuple(sorted(reduced_dims(node, x.rank)))
        y = low.result(node.output, strided=True)
        if op in (SUM, PROD) and is_float(x.dtype) and not is_float(y.dtype):
            x = low.cast(x, y.dtype)  # each number before they are added up, as PyTorch does
        emit_reduce(low, x, y, dims, op, _correction(node))

    return lower


def _correction(node: Node) -> float:
    """var, std: the divisor is n - correction; `unbiased` is the older spelling of 1."""
    correction = node.attrs.get("correction", 1.0)
    if "unbiased" in node.attrs:
        correction = float(bool(node.attrs["unbiased"]))
    return 1.0 if correction is None else float(correction)  # type: ignore[arg-type]


def _var_mean(node: Node, low: Lowering) -> None:
    x = low.inputs(node)[0]
    assert x is not None
    dims = tuple(sorted(reduced_dims(node, x.rank)))
    var, mean = node.outputs
    emit_reduce(low, x, low.result(var, strided=True), dims, VAR, _correction(node))
    emit_reduce(low, x, low.result(mean, strided=True), dims, MEAN)


def _extreme_with_index(value_op: int, index_op: int) -> Lower:
    """max.dim, min.dim: values and positions."""

    def lower(node: Node, low: Lowering) -> None:
        x = low.inputs(node)[0]
        assert x is not None
        dims = reduced_dims(node, x.rank)
        values, indices = node.outputs
        emit_reduce(low, x, low.result(values, strided=True), dims, value_op)
        emit_reduce(low, x, low.result(indices, strided=True), dims, index_op)

    return lower


def _norm(node: Node, low: Lowering) -> None:
    """p-norms: the sum of |x|^p, and of it the p-th root; p = 0 counts what is not zero."""
    x = low.inputs(node)[0]
    assert x is not None
    p = _order(node)
    dims = tuple(sorted(reduced_dims(node, x.rank)))
    if node.type.dtype != x.dtype:
        x = low.cast(x, node.type.dtype)
    y = low.result(node.output, strided=True)
    if p in (1.0, 2.0):
        emit_reduce(low, x, y, dims, L2 if p == 2.0 else SUM_OF_ABSOLUTES)
    elif p in (math.inf, -math.inf):
        emit_reduce(low, _mapped(low, x, "abs"), y, dims, MAX if p > 0 else MIN)
    elif p == 0.0:
        emit_reduce(low, _mapped(low, x, "ne", 0.0), y, dims, SUM)
    else:
        wide = TensorType("float64" if x.dtype == "float64" else "float32", y.shape)
        total = low.temp(wide)
        emit_reduce(low, _mapped(low, _mapped(low, x, "abs"), "pow", p), total, dims, SUM)
        _map(low, total, y, "pow", 1 / p)


def _mapped(low: Lowering, x: View, opcode: str, number: float | None = None) -> View:
    """Returns a scalar op of every element, in the dtype that x is computed in."""
    y = low.temp(TensorType("float64" if x.dtype == "float64" else "float32", x.shape))
    _map(low, x, y, opcode, number)
    return y


def _map(low: Lowering, x: View, y: View, opcode: str, number: float | None = None) -> None:
    from npusim.abi.scalar import ScalarBuilder, compute_class
    from npusim.lowering.pointwise_kernel import emit_program

    cls = compute_class(x.dtype)
    builder = ScalarBuilder(cls)
    builder.op(opcode, cls, 0, *(() if number is None else (("const", number),)))
    emit_program(low, builder.build(y.dtype), [x], y)


def _order(node: Node) -> float:
    p = node.attrs.get("ord", node.attrs.get("p", 2))
    return 2.0 if p is None else float(p)  # type: ignore[arg-type]


def _scan(op: int) -> Lower:
    def lower(node: Node, low: Lowering) -> None:
        x = low.inputs(node)[0]
        assert x is not None
        dim = node.attrs["dim"]
        assert isinstance(dim, int)
        x = low.cast(x, node.type.dtype)
        x, y, (outer, size, inner) = middle(low, x, node, dim)
        if y.numel == 0:
            return
        params: dict[str, Param] = {"outer": outer, "size": size, "inner": inner, "op": op}
        low.emit("scan", {**params, **codes(x_dtype=x.dtype, y_dtype=y.dtype)}, [x], [y])

    return lower


def _running_extreme(op: int) -> Lower:
    """cummax, cummin: the extreme so far, and the last place that had it; NaN is both."""

    def lower(node: Node, low: Lowering) -> None:
        from npusim.abi.scalar import ScalarBuilder, compute_class
        from npusim.lowering.pointwise_kernel import emit_program

        x = low.inputs(node)[0]
        assert x is not None
        values, indices = node.outputs
        x, best, (outer, size, inner) = middle(
            low, x, replace(node, outputs=(values,)), _whole_dim(node)
        )
        places = low.temp(TensorType("int64", x.shape).with_order(x.order))
        low.define(indices, places)
        if x.numel == 0:
            return
        params: dict[str, Param] = {"outer": outer, "size": size, "inner": inner}
        dtypes = codes(x_dtype=x.dtype, y_dtype=x.dtype)
        low.emit("scan", {**params, "op": op, **dtypes}, [x], [best])
        whole = low.constant(np.arange(upper(size), dtype=np.int64), "int64")
        line = whole.slice(0, 0, size)
        shape = [size if d == _whole_dim(node) % max(x.rank, 1) else 1 for d in range(x.rank)]
        line = (line.reshape(tuple(shape)) or line).expand(x.shape)
        cls = compute_class(x.dtype)
        builder = ScalarBuilder((cls, cls, "i"))
        found = builder.op("eq", cls, 0, 1)
        if cls != "i":
            found = builder.op("logical_or", "i", found, builder.op("isnan", cls, 0))
        builder.op("where", "i", found, 2, ("const", 0))
        hits = low.temp(TensorType("int64", x.shape).with_order(x.order))
        emit_program(low, builder.build("int64"), [x, best, line], hits)
        dtypes = codes(x_dtype="int64", y_dtype="int64")
        low.emit("scan", {**params, "op": SCAN_MAX, **dtypes}, [hits], [places])

    return lower


def _whole_dim(node: Node) -> int:
    dim = node.attrs["dim"]
    assert isinstance(dim, int)
    return dim


def _emit_sort(low: Lowering, x: View, dim: int, k: int, descending: bool) -> tuple[View, View]:
    """Returns the first k of a stable sort along dim, and their positions, as dense views."""
    if x.rank == 0:
        x = x.unsqueeze(0)
    dim = dim % x.rank
    x = low.dense(x)
    shape = (*x.shape[:dim], k, *x.shape[dim + 1 :])
    values = low.temp(TensorType(x.dtype, shape))
    indices = low.temp(TensorType("int64", shape))
    if values.numel != 0:
        outer, inner = 1, 1
        for d, size in enumerate(x.shape):
            outer *= size if d < dim else 1
            inner *= size if d > dim else 1
        params: dict[str, Param] = {"outer": outer, "size": x.shape[dim], "inner": inner, "k": k}
        extra = {"descending": int(descending), **codes(dtype=x.dtype)}
        low.emit("sort", {**params, **extra}, [x], [values, indices])
    return values, indices


def _sort(node: Node, low: Lowering) -> None:
    """sort, topk, argsort: topk's k is the output's own extent."""
    x = low.inputs(node)[0]
    assert x is not None
    dim = node.attrs.get("dim", -1)
    assert isinstance(dim, int)
    descending = bool(node.attrs.get("descending", node.attrs.get("largest", False)))
    kept = node.outputs[0].type.shape
    k = kept[dim] if kept else 1
    values, indices = _emit_sort(low, x, dim, k, descending)
    found = [values, indices] if len(node.outputs) == 2 else [indices]
    for value, view in zip(node.outputs, found, strict=True):
        low.define(value, replace(view, shape=(), strides=()) if not kept else view)


_FLOATS = ("float32", "float16", "bfloat16", "float64")
_NUMBERS = (*_FLOATS, "int64", "int32")
_X = ((3, 4, 5),)


def _op(
    name: str,
    lower: Lower,
    *cases: Case,
    dtypes: tuple[str, ...] = _FLOATS,
    supports: Callable[[Node, Graph], str | None] | None = None,
) -> None:
    register(
        OpDef(
            f"aten.{name}", lower=lower, cases=cases, dtypes=dtypes, supports=supports, tolerance=4
        )
    )


_DIMS = (
    Case(_X, {"dim": (1,)}),
    Case(_X, {"dim": (0, 2), "keepdim": True}, "keepdim"),
    Case(_X, {"dim": (-1,)}, "inner"),
    Case(((2, 40, 33),), {"dim": (1, 2)}, "long"),
)
_WHOLE = (Case(_X), Case(((),), id="scalar"))
for _op_code, _name in ((SUM, "sum"), (MEAN, "mean")):
    _dtypes = _NUMBERS if _name == "sum" else _FLOATS
    _op(f"{_name}.default", _reduce(_op_code), *_WHOLE, dtypes=_dtypes)
    _op(f"{_name}.dim{'_IntList' if _name == 'sum' else ''}", _reduce(_op_code), *_DIMS,
        dtypes=_dtypes)  # fmt: skip
for _op_code, _name in ((MAX, "amax"), (MIN, "amin")):
    _op(f"{_name}.default", _reduce(_op_code), *_DIMS, dtypes=_NUMBERS)
_op("max.default", _reduce(MAX), *_WHOLE, dtypes=_NUMBERS)
_op("min.default", _reduce(MIN), *_WHOLE, dtypes=_NUMBERS)
_ALONG = (Case(_X, {"dim": 1}), Case(_X, {"dim": -1, "keepdim": True}))
_op("max.dim", _extreme_with_index(MAX, ARGMAX), *_ALONG, dtypes=_NUMBERS)
_op("min.dim", _extreme_with_index(MIN, ARGMIN), *_ALONG, dtypes=_NUMBERS)
_op("argmax.default", _reduce(ARGMAX), *_ALONG, *_WHOLE, dtypes=_NUMBERS)
_op("argmin.default", _reduce(ARGMIN), *_ALONG, *_WHOLE, dtypes=_NUMBERS)
_op("prod.default", _reduce(PROD), *_WHOLE)
_op("prod.dim_int", _reduce(PROD), *_ALONG)
for _op_code, _name in ((ANY, "any"), (ALL, "all")):
    _op(f"{_name}.default", _reduce(_op_code), *_WHOLE, dtypes=("float32", "int64", "bool"))
    _op(f"{_name}.dim", _reduce(_op_code), *_ALONG, dtypes=("float32", "int64", "bool"))
    _op(f"{_name}.dims", _reduce(_op_code), *_DIMS[:2], Case(_X, {"dim": ()}, "none"),
        dtypes=("float32", "bool"))  # fmt: skip
for _op_code, _name in ((VAR, "var"), (STD, "std")):
    _op(f"{_name}.correction", _reduce(_op_code), *_DIMS,
        Case(_X, {"dim": (1,), "correction": 0}))  # fmt: skip
    _op(f"{_name}.dim", _reduce(_op_code), Case(_X, {"dim": (1,), "unbiased": False}))
_op("var_mean.correction", _var_mean, Case(_X, {"dim": (1,), "correction": 0, "keepdim": True}))
_op("logsumexp.default", _reduce(LOGSUMEXP), *_DIMS[:3])
_op(
    "linalg_vector_norm.default",
    _norm,
    *(Case(_X, {"ord": p, "dim": (1,)}) for p in (0, 1, 2, 3, -1.5, math.inf, -math.inf)),
)
_op("norm.ScalarOpt_dim", _norm, Case(_X, {"p": 2, "dim": (1,)}))
_op("cumsum.default", _scan(SCAN_SUM), *_ALONG[:1], Case(_X, {"dim": -1}), dtypes=_NUMBERS)
_op("cumprod.default", _scan(SCAN_PROD), *_ALONG[:1], dtypes=_NUMBERS)
_op("logcumsumexp.default", _scan(SCAN_LOGSUMEXP), *_ALONG[:1])
for _name, _op_code in (("cummax", SCAN_MAX), ("cummin", SCAN_MIN)):
    _op(f"{_name}.default", _running_extreme(_op_code), *_ALONG[:1],
        Case(((7,),), {"dim": 0}), Case(((),), {"dim": 0}, "scalar"), dtypes=_NUMBERS)  # fmt: skip
_op("sort.default", _sort, Case(_X, {"dim": 1, "descending": True}), Case(_X), dtypes=_NUMBERS)
_op("sort.stable", _sort, Case(_X, {"stable": True, "dim": 0}))
_op("argsort.default", _sort, Case(_X, {"dim": 1}))
_op("topk.default", _sort, Case(((3, 50),), {"k": 7}), dtypes=("float32", "bfloat16"))
