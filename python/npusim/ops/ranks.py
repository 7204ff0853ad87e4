"""What ranks that share a model do besides computing: take parts of weights, and exchange values.

All ranks run one program, each over parts of the weights (`npusim.passes.shard`).

* `npu.rank_part(weight)`: part `rank * parts // ranks` of `parts` equal ones along `axis`. The
  loader takes it from the checkpoint: no command does.
* `npu.all_reduce(x, residual?)`: the sum of all ranks' x, added in the order of the ranks in
  float32 (float64, integers: as they are) and rounded once, so that it has the same bits on every
  rank; plus the residual, rounded again.
* `npu.all_gather(x)`: all ranks' x behind one another along `axis`.

Both are one `all_gather` command, which brings x of every rank to every rank; what an all_reduce
adds up is an ordinary `reduce`. Where a target has the kernel `all_reduce`, that does all of it,
and it alone takes a residual (`passes/fuse_all_reduce.py`). A lone rank cannot compute them, and
the references here say so; `npusim.verify.ranks` runs all.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import prod
from typing import TYPE_CHECKING

from npusim.errors import Error, GraphError, ShapeError
from npusim.ir.graph import Node
from npusim.ir.opdef import OpDef, register
from npusim.ir.types import MOST_RANKS, TensorType, dtype_code, row_major
from npusim.lowering.context import Lowering
from npusim.lowering.view import View
from npusim.ops.reduction import SUM, emit_reduce

if TYPE_CHECKING:
    from torch import Tensor

RANK_PART, ALL_REDUCE, ALL_GATHER = "npu.rank_part", "npu.all_reduce", "npu.all_gather"


def part_of_rank(rank: int, parts: int, ranks: int) -> int:
    """Returns which of the parts a rank has; ranks are a multiple of parts, or as many."""
    return rank * parts // ranks


def _several(name: str) -> Error:
    return Error(f"{name} is of several ranks: npusim.verify.ranks runs them in turn.")


def _reference(name: str) -> Callable[..., Tensor]:
    def run(*x: Tensor, **attrs: object) -> Tensor:
        raise _several(name)

    return run


def _check(op: str, ranks: object, *numbers: object) -> None:
    """Refuses attributes of a file that are no numbers, and ranks that cannot be."""
    if any(type(number) is not int for number in (ranks, *numbers)):
        raise ShapeError(f"{op}: {ranks!r} ranks, {numbers}; expected whole numbers.")
    if not isinstance(ranks, int) or not 2 <= ranks <= MOST_RANKS:
        raise ShapeError(f"{op}: {ranks} ranks; 2 to {MOST_RANKS} are possible.")


def _infer_part(w: TensorType, /, *, axis: int, parts: int, ranks: int) -> TensorType:
    _check(RANK_PART, ranks, axis, parts)
    whole = 0 <= axis < w.rank and parts > 0 and w.shape[axis] % parts == 0 and ranks % parts == 0
    if not whole:
        raise ShapeError(f"{RANK_PART}: {w} has no {parts} equal parts along {axis} for {ranks}.")
    return _resized(w, axis, w.shape[axis] // parts)


def _infer_reduce(
    x: TensorType, residual: TensorType | None = None, /, *, ranks: int
) -> TensorType:
    _check(ALL_REDUCE, ranks)
    if residual is not None and residual != x:
        raise ShapeError(f"{ALL_REDUCE}: a residual of {residual} to sums of {x}.")
    return x


def _infer_gather(x: TensorType, /, *, ranks: int, axis: int) -> TensorType:
    _check(ALL_GATHER, ranks, axis)
    if not 0 <= axis < x.rank:
        raise ShapeError(f"{ALL_GATHER}: along dimension {axis} of {x}.")
    return _resized(x, axis, x.shape[axis] * ranks)


def _resized(type: TensorType, axis: int, size: int) -> TensorType:
    return TensorType(type.dtype, (*type.shape[:axis], size, *type.shape[axis + 1 :]))


def _lower_part(node: Node, low: Lowering) -> None:
    (source,) = node.inputs
    axis, parts, ranks = (node.attrs[name] for name in ("axis", "parts", "ranks"))
    assert source is not None and isinstance(axis, int)
    assert isinstance(parts, int) and isinstance(ranks, int)
    low.define(node.output, low.weight_part(source, axis, parts, ranks))


def _slots(node: Node, low: Lowering) -> View:
    """Returns all ranks' x, [ranks, *shape of x]."""
    (source,), ranks = node.inputs, node.attrs["ranks"]
    assert source is not None and isinstance(ranks, int)
    low.share(ranks)
    x = low.dense(low.view(source))
    slots = low.temp(TensorType(x.dtype, (ranks, *x.shape)))
    if x.numel:
        params = {"bytes": prod(x.shape) * x.element_size, "ranks": ranks}
        low.emit("all_gather", params, [x], [slots])
    return slots


def _lower_reduce(node: Node, low: Lowering) -> None:
    if low.target.has("all_reduce"):
        _lower_whole_reduce(node, low)
        return
    if len(node.inputs) > 1:
        raise GraphError(f"{node.name} adds a residual, for which {low.target.name} has no kernel.")
    slots = _slots(node, low)
    y = low.result(node.output, strided=True)
    if y.numel:
        emit_reduce(low, slots, y, (0,), SUM)


def _lower_whole_reduce(node: Node, low: Lowering) -> None:
    given, ranks = [i for i in node.inputs if i is not None], node.attrs["ranks"]
    assert isinstance(ranks, int)
    low.share(ranks)
    reads = [low.dense(low.view(name)) for name in given]
    y = low.result(node.output)
    if y.numel:
        params = {"elements": prod(y.shape), "ranks": ranks, "dtype": dtype_code(y.dtype)}
        low.emit("all_reduce", {**params, "residual": len(given) - 1}, reads, [y])


def _lower_gather(node: Node, low: Lowering) -> None:
    slots, type = _slots(node, low), node.type
    ranks, *shape = slots.shape
    axis = node.attrs["axis"]
    assert isinstance(axis, int)
    if all(size == 1 for size in shape[:axis]):
        view = replace(slots, shape=type.shape, strides=row_major(type.shape))
        low.define(node.output, view)
        return
    y = low.result(node.output)
    places = replace(
        y,
        shape=(ranks, *shape),
        strides=(shape[axis] * y.strides[axis], *y.strides),
    )
    low.copy(slots, places)


register(
    OpDef(
        RANK_PART,
        lower=_lower_part,
        infer=_infer_part,
        reference=_reference(RANK_PART),
    )
)
register(
    OpDef(
        ALL_REDUCE,
        lower=_lower_reduce,
        infer=_infer_reduce,
        reference=_reference(ALL_REDUCE),
    )
)
register(
    OpDef(
        ALL_GATHER,
        lower=_lower_gather,
        infer=_infer_gather,
        reference=_reference(ALL_GATHER),
    )
)
