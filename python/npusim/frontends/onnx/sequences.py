"""Sequences, which exist while importing only: lists of tensors."""

from __future__ import annotations

from typing import Any

import numpy as np

from npusim.errors import ExportError
from npusim.frontends.onnx.builder import Tensor
from npusim.frontends.onnx.registry import Call, translation


@translation("SequenceConstruct")
def _construct(call: Call, *tensors: Tensor) -> Any:
    return [list(tensors)]


@translation("SequenceEmpty")
def _empty(call: Call) -> Any:
    return [[]]


@translation("SequenceInsert")
def _insert(call: Call, items: Any, tensor: Tensor, place: Tensor | None = None) -> Any:
    at = len(items) if place is None else place.ints("the place of SequenceInsert")[0]
    at = at + len(items) if at < 0 else at
    return [[*items[:at], tensor, *items[at:]]]


@translation("SequenceErase")
def _erase(call: Call, items: Any, place: Tensor | None = None) -> Any:
    at = len(items) - 1 if place is None else place.ints("the place of SequenceErase")[0]
    at = at + len(items) if at < 0 else at
    return [[*items[:at], *items[at + 1 :]]]


@translation("SequenceAt")
def _at(call: Call, items: Any, place: Tensor) -> Any:
    at = place.ints("the place of SequenceAt")[0]
    if not -len(items) <= at < len(items):
        raise ExportError(f"the sequence has {len(items)} elements; there is none at {at}.")
    return [items[at]]


@translation("SequenceLength")
def _length(call: Call, items: Any) -> Tensor:
    return call.graph.known(np.array(len(items), np.int64))


@translation("ConcatFromSequence")
def _concat(call: Call, items: Any) -> Tensor:
    axis = call.int("axis")
    name = "stack.default" if call.int("new_axis") else "cat.default"
    return call.graph.op(name, list(items), axis)


@translation("SplitToSequence")
def _split(call: Call, x: Tensor, split: Tensor | None = None) -> Any:
    axis = call.int("axis") % x.rank
    size = x.shape[axis]
    if split is None:
        parts = [x.slice(axis, i, i + 1) for i in range(size)]
        if not call.int("keepdims", 1):
            parts = [p.op("squeeze.dim", axis) for p in parts]
        return [parts]
    given = split.ints("the sizes of SplitToSequence")
    if split.rank == 0:
        given = [min(given[0], size - i) for i in range(0, size, given[0])]
    starts = [sum(given[:i]) for i in range(len(given))]
    return [[x.slice(axis, s, s + n) for s, n in zip(starts, given, strict=True)]]


@translation("Optional")
def _optional(call: Call, value: Any = None) -> Any:
    return [value]


@translation("OptionalHasElement")
def _has_element(call: Call, value: Any = None) -> Tensor:
    return call.graph.known(np.array(value is not None))
