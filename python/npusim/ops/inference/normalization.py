"""Types of norms and softmax."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from npusim.ir.types import TensorType
from npusim.ops.inference.promotion import kind_of, require, require_float
from npusim.ops.inference.sizes import axis, require_shape

Rule = Callable[..., Any]


def _layer_norm(
    x: TensorType, shape: Sequence[int], weight: Any, bias: Any, eps: Any, *_: Any
) -> TensorType:
    require_float(x, weight, bias)
    require(0 < len(shape) <= x.rank, f"{list(shape)} is not the end of {x}.")
    require_shape(x.shape[x.rank - len(shape) :], tuple(shape), f"the end of {x}")
    for vector in (weight, bias):
        if vector is not None:
            require_shape(vector.shape, tuple(shape), "a factor or bias")
    return x


def _rms_norm(x: TensorType, shape: Sequence[int], weight: Any, eps: float | None) -> TensorType:
    return _layer_norm(x, shape, weight, None, eps)


def _channels(x: TensorType, *vectors: TensorType | None) -> None:
    require_float(x, *vectors)
    require(x.rank >= 2, f"{x} has no channels.")
    for vector in vectors:
        if vector is not None:
            require_shape(vector.shape, x.shape[1:2], "a vector of the channels")


def _group_norm(x: TensorType, groups: int, weight: Any, bias: Any, *_: Any) -> TensorType:
    _channels(x, weight, bias)
    require(groups > 0 and x.shape[1] % groups == 0, f"{x.shape[1]} channels in {groups} groups.")
    return x


def _instance_norm(
    x: TensorType, weight: Any, bias: Any, mean: Any, var: Any, use_input_stats: bool, *_: Any
) -> TensorType:
    _channels(x, weight, bias, mean, var)
    require(use_input_stats or (mean is not None and var is not None), "it has no statistics.")
    require(x.rank >= 3 or not use_input_stats, f"{x} has no elements to normalize over.")
    return x


def _batch_norm(
    x: TensorType, weight: Any, bias: Any, mean: Any, var: Any, training: bool, *_: Any
) -> TensorType:
    _channels(x, weight, bias, mean, var)
    require(training or (mean is not None and var is not None), "it has no statistics.")
    return x


def _softmax(x: TensorType, dim: int, dtype: str | None) -> TensorType:
    axis(dim, x.rank)
    result = dtype or x.dtype
    require(kind_of(result) == "float", f"a softmax of {x} has no dtype {result}.")
    return TensorType(result, x.shape)


def _raw_softmax(x: TensorType, dim: int, half_to_float: bool) -> TensorType:
    axis(dim, x.rank)
    require_float(x)
    require(not half_to_float or x.dtype == "float16", f"{x} is not of float16.")
    return TensorType("float32" if half_to_float else x.dtype, x.shape)


RULES: dict[str, Rule] = {
    "aten.layer_norm.default": _layer_norm,
    "aten.rms_norm.default": _rms_norm,
    "aten.group_norm.default": _group_norm,
    "aten.instance_norm.default": _instance_norm,
    "aten.batch_norm.default": _batch_norm,
    "aten.softmax.int": _softmax,
    "aten.log_softmax.int": _softmax,
    "aten._softmax.default": _raw_softmax,
    "aten._log_softmax.default": _raw_softmax,
}
