"""Reductions, arg-reductions, softmax, sorting."""

from __future__ import annotations

import math

from npusim.exporters.onnx.builder import NoForm
from npusim.exporters.onnx.registry import Call, Results, Tensor, translation
from npusim.ir.symbolic import is_symbolic, maximum


def dims_of(call: Call, x: Tensor) -> list[int]:
    """Returns the dimensions a node reduces; every one where it names none."""
    given = call.attr("dim")
    listed = [] if given is None else [given] if isinstance(given, int) else list(given)
    return sorted({d % x.rank for d in listed} or set(range(x.rank))) if x.rank else []


def _reduce(call: Call, op: str, x: Tensor) -> Tensor:
    return call.reduce(op, x, dims_of(call, x), bool(call.attr("keepdim")))


@translation("aten.sum.default", "aten.sum.dim_IntList")
def _sum(call: Call, x: Tensor) -> Tensor:
    return _reduce(call, "ReduceSum", call.cast(x, call.type.dtype))


@translation("aten.mean.default", "aten.mean.dim")
def _mean(call: Call, x: Tensor) -> Tensor:
    return _reduce(call, "ReduceMean", call.cast(x, call.type.dtype))


@translation("aten.prod.default", "aten.prod.dim_int")
def _prod(call: Call, x: Tensor) -> Tensor:
    return _reduce(call, "ReduceProd", call.cast(x, call.type.dtype))


@translation("aten.amax.default", "aten.max.default")
def _amax(call: Call, x: Tensor) -> Tensor:
    return _reduce(call, "ReduceMax", _ordered(call, x))


@translation("aten.amin.default", "aten.min.default")
def _amin(call: Call, x: Tensor) -> Tensor:
    return _reduce(call, "ReduceMin", _ordered(call, x))


def _ordered(call: Call, x: Tensor) -> Tensor:
    """Returns x in a dtype whose elements ONNX compares."""
    return call.cast(x, "int32") if x.dtype in ("bool", "int16") else x


@translation(*(f"aten.{n}.{o}" for n in ("any", "all") for o in ("default", "dim", "dims")))
def _any_all(call: Call, x: Tensor) -> Tensor:
    if call.attr("dim") == ():  # here no dimensions are none, elsewhere they are all
        return call.cast(x, "bool")
    truth = call.cast(call.cast(x, "bool"), "int32")
    return _reduce(call, "ReduceMax" if ".any." in call.node.op else "ReduceMin", truth)


@translation("aten.argmax.default", "aten.argmin.default")
def _arg(call: Call, x: Tensor) -> Tensor:
    op = "ArgMax" if "max" in call.node.op else "ArgMin"
    if call.attr("dim") is None or not x.rank:
        flat = call.reshape(x, (math.prod(x.shape),))
        index = call.op(op, _ordered(call, flat), dtype="int64", shape=(), axis=0, keepdims=0)
        return call.reshape(index, call.type.shape)
    keepdims = int(bool(call.attr("keepdim")))
    return call.op(
        op, _ordered(call, x), dtype="int64", shape=call.type.shape, axis=call.dim(x.rank),
        keepdims=keepdims,
    )  # fmt: skip


@translation("aten.max.dim", "aten.min.dim")
def _with_index(call: Call, x: Tensor) -> Results:
    kind = "Max" if ".max." in call.node.op else "Min"
    if not x.rank:
        return [x, call.const(0, "int64")]
    keepdims, ordered = int(bool(call.attr("keepdim"))), _ordered(call, x)
    index = call.op(
        f"Arg{kind}", ordered, dtype="int64", shape=call.type.shape, axis=call.dim(x.rank),
        keepdims=keepdims,
    )  # fmt: skip
    return [call.reduce(f"Reduce{kind}", ordered, [call.dim(x.rank)], bool(keepdims)), index]


@translation("aten.logsumexp.default")
def _logsumexp(call: Call, x: Tensor) -> Tensor:
    return _reduce(call, "ReduceLogSumExp", call.cast(x, call.type.dtype))


# ---- moments and norms ----


def _moments(call: Call, x: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the variance, with the node's correction, and the mean, dimensions kept."""
    dims = dims_of(call, x)
    count = math.prod(x.shape[d] for d in dims)
    correction = call.attr("correction", 1 if call.attr("unbiased", True) else 0)
    correction = 1 if correction is None else correction
    mean = call.reduce("ReduceMean", x, dims, True)
    apart = call.broadcast("Sub", x, mean)
    total = call.reduce("ReduceSum", call.op("Mul", apart, apart), dims, True)
    if is_symbolic(count) and correction == int(correction):
        divisor = call.const(maximum(count - int(correction), 0), x.dtype)
    else:
        divisor = call.const(max(float(count - correction), 0.0), x.dtype)
    return call.op("Div", total, divisor), mean


def _kept(call: Call, x: Tensor) -> Tensor:
    return call.reshape(x, call.type.shape)


@translation("aten.var.correction", "aten.var.dim")
def _var(call: Call, x: Tensor) -> Tensor:
    return _kept(call, _moments(call, x)[0])


@translation("aten.std.correction", "aten.std.dim")
def _std(call: Call, x: Tensor) -> Tensor:
    return _kept(call, call.op("Sqrt", _moments(call, x)[0]))


@translation("aten.var_mean.correction")
def _var_mean(call: Call, x: Tensor) -> Results:
    return [_kept(call, part) for part in _moments(call, x)]


@translation("aten.linalg_vector_norm.default", "aten.norm.ScalarOpt_dim")
def _norm(call: Call, x: Tensor) -> Tensor:
    order = call.attr("ord", call.attr("p"))
    order = 2.0 if order is None else float(order)
    x = call.cast(x, call.type.dtype)
    if order in (1.0, 2.0):
        return _reduce(call, f"ReduceL{int(order)}", x)
    size = call.op("Abs", x)
    if math.isinf(order):
        return _reduce(call, "ReduceMax" if order > 0 else "ReduceMin", size)
    if order == 0:
        present = call.op("Sign", size)
        return _reduce(call, "ReduceSum", present)
    total = _reduce(call, "ReduceSum", call.op("Pow", size, call.const(order, x.dtype)))
    return call.op("Pow", total, call.const(1 / order, x.dtype))


# ---- softmax ----


@translation(
    *("aten.softmax.int", "aten._softmax.default", "aten._safe_softmax.default"),
    *("aten.log_softmax.int", "aten._log_softmax.default"),
)
def _softmax(call: Call, x: Tensor) -> Tensor:
    if call.node.op == "aten._safe_softmax.default":
        raise NoForm("a softmax that gives zeros for rows without a number")
    op = "LogSoftmax" if "log" in call.node.op else "Softmax"
    wide = call.reshape(call.cast(x, call.type.dtype), x.shape or (1,))
    return call.reshape(call.op(op, wide, axis=call.dim(wide.rank)), x.shape)


# ---- order ----


@translation("aten.topk.default")
def _topk(call: Call, x: Tensor) -> Results:
    return _sorted(call, x, int(call.attr("k")), bool(call.attr("largest", True)))


@translation("aten.sort.default", "aten.sort.stable")
def _sort(call: Call, x: Tensor) -> Results:
    size = x.shape[call.dim(x.rank)] if x.rank else 1
    return _sorted(call, x, size, bool(call.attr("descending")))


@translation("aten.argsort.default")
def _argsort(call: Call, x: Tensor) -> Results:
    size = x.shape[call.dim(x.rank)] if x.rank else 1
    return _sorted(call, x, size, bool(call.attr("descending")))[1]


def _sorted(call: Call, x: Tensor, k: int, largest: bool) -> list[Tensor]:
    x = call.cast(x, "float32") if x.dtype == "bfloat16" else _ordered(call, x)
    wide = call.reshape(x, x.shape or (1,))
    dim = call.dim(wide.rank)
    shape = (*wide.shape[:dim], k, *wide.shape[dim + 1 :])
    parts = call.ops(
        "TopK", wide, call.ints([k]), results=[(wide.dtype, shape), ("int64", shape)], axis=dim,
        largest=int(largest), sorted=1,
    )  # fmt: skip
    return [part if x.rank else call.reshape(part, ()) for part in parts]
