"""Indexing by data: embedding, gather, advanced indexing, and their scattering inverses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from npusim.abi.kernels import INDEX_TENSORS, RANK
from npusim.abi.scalar import ScalarBuilder, compute_class
from npusim.ir.graph import Graph, Node
from npusim.ir.opdef import Case, OpDef, register
from npusim.ir.types import TensorType, is_float
from npusim.lowering.context import Lowering, codes, element_bits
from npusim.lowering.pointwise_kernel import emit_program
from npusim.lowering.view import View

Lower = Callable[[Node, Lowering], None]


@dataclass(frozen=True)
class Walk:
    """How output elements map to elements of an indexed tensor (see the `index` kernel).

    Attributes:
        shape: the iteration space.
        base: the indexed tensor's strides over it (0 along indexed dimensions).
        indices: index tensors, broadcast to the iteration space.
        sizes, steps: extent and stride of the dimension each index tensor chooses in.
        wraps: whether negative indices count from the end, as in `x[i]`; elsewhere PyTorch refuses
            them, and so does the run.
    """

    shape: tuple[int, ...]
    base: tuple[int, ...]
    indices: tuple[View, ...]
    sizes: tuple[int, ...]
    steps: tuple[int, ...]
    wraps: bool = False


def _fields(low: Lowering, walk: Walk, other: View, name: str) -> dict[str, object]:
    """Returns the fields index and scatter share; `other` is y or src over the walk's shape."""
    shape = list(walk.shape) or [1]
    ones = [1] * (RANK - len(shape))
    rows = [list(v.strides) + [0] * (RANK - v.rank) for v in walk.indices]
    return {
        "n": len(walk.indices),
        "rank": len(shape),
        "shape": shape + ones,
        f"{name}_strides": other.strides,
        "idx_strides": [s for row in rows for s in row],
        "k_size": walk.sizes if walk.wraps else tuple(-size for size in walk.sizes),
        "k_stride": walk.steps,
        **codes(idx_dtype=walk.indices[0].dtype if walk.indices else "int64"),
    }


def _emit_index(low: Lowering, x: View, walk: Walk, y: View) -> None:
    if y.numel == 0:
        return
    params = {
        **_fields(low, walk, y, "y"),
        "element_size": x.element_size,
        "x_strides": walk.base,
    }
    low.emit("index", params, [x, *walk.indices], [y])  # type: ignore[arg-type]


def _emit_scatter(low: Lowering, y: View, walk: Walk, src: View, mode: int) -> None:
    if src.numel == 0:
        return
    params = {
        **_fields(low, walk, src, "src"),
        "mode": mode,
        "y_strides": walk.base,
        **codes(dtype=y.dtype),
    }
    low.emit("scatter", params, [src, *walk.indices], [y], update=True)  # type: ignore[arg-type]


def _index_dtype(low: Lowering, indices: Sequence[View]) -> list[View]:
    """Index tensors of one kernel call share a dtype."""
    same = len({v.dtype for v in indices}) == 1 and indices[0].dtype in ("int64", "int32")
    return [v if same else low.cast(v, "int64") for v in indices]


def _along(low: Lowering, x: View, dim: int, index: View) -> Walk:
    """gather and scatter: the index tensor has x's rank and replaces one coordinate."""
    (index,) = _index_dtype(low, [index])
    base = tuple(0 if d == dim else s for d, s in enumerate(x.strides))
    return Walk(index.shape, base, (index,), (x.shape[dim],), (x.strides[dim],))


def _select_walk(low: Lowering, x: View, dim: int, index: View) -> Walk:
    """index_select: a vector of positions along one dimension; a scalar counts as a vector."""
    x = x if x.rank else x.unsqueeze(0)
    (index,) = _index_dtype(low, [index])
    flat = index if index.rank == 1 else index.unsqueeze(0)
    shape = (*x.shape[:dim], flat.shape[0], *x.shape[dim + 1 :])
    base = tuple(0 if d == dim else s for d, s in enumerate(x.strides))
    strides = tuple(flat.strides[0] if d == dim else 0 for d in range(x.rank))
    spread = replace(flat, shape=shape, strides=strides)
    return Walk(shape, base, (spread,), (x.shape[dim],), (x.strides[dim],))


def _advanced_walk(low: Lowering, x: View, chosen: Sequence[View | None]) -> Walk:
    """x[i0, :, i1 …]: index dimensions stand where the indices are, or first if these are apart."""
    dims = [d for d, v in enumerate(chosen) if v is not None]
    indices = _index_dtype(low, [v for v in chosen if v is not None])
    rank = max(v.rank for v in indices)
    common = _broadcast([v.shape for v in indices])
    together = dims == list(range(dims[0], dims[-1] + 1))
    before = [d for d in range(x.rank) if d not in dims and together and d < dims[0]]
    after = [d for d in range(x.rank) if d not in dims and d not in before]
    shape = (*(x.shape[d] for d in before), *common, *(x.shape[d] for d in after))
    base = (*(x.strides[d] for d in before), *(0,) * rank, *(x.strides[d] for d in after))
    spread = []
    for view in indices:
        wide = view.expand(common)
        strides = ((0,) * len(before), wide.strides, (0,) * len(after))
        spread.append(replace(wide, shape=shape, strides=tuple(s for t in strides for s in t)))
    sizes, steps = tuple(x.shape[d] for d in dims), tuple(x.strides[d] for d in dims)
    return Walk(shape, base, tuple(spread), sizes, steps, wraps=True)


def _broadcast(shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    rank = max(len(s) for s in shapes)
    padded = [(1,) * (rank - len(s)) + s for s in shapes]
    return tuple(next((n for n in column if n != 1), 1) for column in zip(*padded, strict=True))


def _dim(node: Node, rank: int) -> int:
    dim = node.attrs.get("dim", 0)
    assert isinstance(dim, int)
    return dim % rank if rank else 0


def _embedding(node: Node, low: Lowering) -> None:
    table, ids = low.inputs(node)
    assert table is not None and ids is not None
    walk = replace(_advanced_walk(low, table, [ids, None]), wraps=False)
    _emit_index(low, table, walk, low.result(node.output, strided=True))


def _index_select(node: Node, low: Lowering) -> None:
    x, index = low.inputs(node)
    assert x is not None and index is not None
    y = low.result(node.output, strided=True)
    if x.rank == 0:
        low.copy(x, y)
        return
    _emit_index(low, x, _select_walk(low, x, _dim(node, x.rank), index), y)


def _gather(node: Node, low: Lowering) -> None:
    x, index = low.inputs(node)
    assert x is not None and index is not None
    y = low.result(node.output, strided=True)
    if x.rank == 0:
        low.copy(x, y)
        return
    _emit_index(low, x, _along(low, x, _dim(node, x.rank), index), y)


def _index(node: Node, low: Lowering) -> None:
    x, *chosen = low.inputs(node)
    assert x is not None
    _emit_index(low, x, _advanced_walk(low, x, chosen), low.result(node.output, strided=True))


def _start(node: Node, low: Lowering, x: View) -> View:
    return low.updated(node.output, x)


_REDUCE_MODES = {
    "sum": 1,
    "add": 1,
    "mean": 1,
    "prod": 2,
    "multiply": 2,
    "amax": 3,
    "amin": 4,
}


def _scatter(mode: int) -> Lower:
    def lower(node: Node, low: Lowering) -> None:
        x, index, *rest = low.inputs(node)
        assert x is not None and index is not None
        y = _start(node, low, x)
        if y.rank == 0:  # one element, at position 0
            y, index = y.unsqueeze(0), index if index.rank else index.unsqueeze(0)
        walk = _along(low, y, _dim(node, y.rank), index)
        if rest and rest[0] is not None:
            src = low.cast(rest[0], y.dtype)
            src = replace(src if src.rank else src.unsqueeze(0), shape=index.shape)
            # src may be larger than the index; its strides stay
        else:
            src = _uniform(low, node.attrs["value"], y.dtype).expand(index.shape)
        reduce = node.attrs.get("reduce")
        if isinstance(reduce, str):
            _reduce_into(low, y, walk, src, reduce, bool(node.attrs.get("include_self", True)))
        else:
            _emit_scatter(low, y, walk, src, mode)

    return lower


def _index_reduce(node: Node, low: Lowering) -> None:
    x, index, src = low.inputs(node)
    assert x is not None and index is not None and src is not None
    y = _start(node, low, x)
    reduce = node.attrs["reduce"]
    assert isinstance(reduce, str)
    walk = _select_walk(low, y, _dim(node, y.rank), index)
    source = low.cast(src, y.dtype).expand(walk.shape)
    _reduce_into(low, y, walk, source, reduce, bool(node.attrs.get("include_self", True)))


def _reduce_into(
    low: Lowering, y: View, walk: Walk, src: View, reduce: str, include_self: bool
) -> None:
    """Reduces src into y; without y's own elements, those that src meets start as the neutral one.

    A mean is the sum, divided by how many elements came together.
    """
    if src.numel == 0:
        return
    if not include_self:
        start = _uniform(low, _neutral(reduce, y.dtype), y.dtype).expand(src.shape)
        _emit_scatter(low, y, walk, start, 0)
    _emit_scatter(low, y, walk, src, _REDUCE_MODES[reduce])
    if reduce != "mean":
        return
    count = low.temp(TensorType("int64", y.shape).with_order(y.order))
    low.fill(count, int(include_self))
    assert count.has_strides(y.strides), "the walk is over y's strides"
    one = _uniform(low, 1, "int64").expand(src.shape)
    _emit_scatter(low, count, walk, one, 1)
    cls = compute_class(y.dtype)
    builder = ScalarBuilder((cls, "i"))
    times = builder.op("maximum", "i", 1, ("const", 1))
    builder.op("div_floor" if cls == "i" else "div", cls, 0, builder.to(times, cls))
    emit_program(low, builder.build(y.dtype), [y, count], y)


def _neutral(reduce: str, dtype: str) -> float | int:
    """Returns what leaves the other operand of a reduction as it is."""
    if reduce not in ("amax", "amin"):
        return 1 if reduce == "prod" else 0
    if dtype == "bool":
        return int(reduce == "amin")
    if is_float(dtype):
        return float("-inf") if reduce == "amax" else float("inf")
    limits = np.iinfo(dtype)
    return int(limits.min if reduce == "amax" else limits.max)


def _uniform(low: Lowering, value: object, dtype: str) -> View:
    """Returns a scalar in memory, for kernels that read their source."""
    assert isinstance(value, (int, float))
    bits = np.array([element_bits(value, dtype)], np.int64).view(np.uint8)
    flat = low.constant(bits, "uint8")
    return View(flat.buffer, 0, dtype, (), ())


def _index_put(node: Node, low: Lowering) -> None:
    x, *chosen, values = low.inputs(node)
    assert x is not None and values is not None
    if any(v is not None and v.dtype in _MASKS for v in chosen):
        _masked_put(node, low, x, chosen, values)
        return
    y = _start(node, low, x)
    walk = _advanced_walk(low, y, chosen)
    src = low.cast(values, y.dtype).expand(walk.shape)
    _emit_scatter(low, y, walk, src, 1 if node.attrs.get("accumulate") else 0)


def _masked_put(
    node: Node, low: Lowering, x: View, chosen: Sequence[View | None], values: View
) -> None:
    """x[…, mask, …] = values that are the same for every place: a choice by the mask."""
    at, mask = next((d, v) for d, v in enumerate(chosen) if v is not None)
    behind = x.rank - at - mask.rank
    for _ in range(behind):
        mask = mask.unsqueeze(mask.rank)
    if values.rank > behind:  # the dimension that would count the places is there, with extent 1
        lead = values.rank - behind - 1
        values = values.select(lead, 0)
        for _ in range(mask.rank - behind):
            values = values.unsqueeze(lead)
    cls = compute_class(x.dtype)
    builder = ScalarBuilder((cls, "i", compute_class(values.dtype)))
    value = builder.to(2, cls)
    if node.attrs.get("accumulate"):
        value = builder.op("add", cls, 0, value)
    builder.op("where", cls, builder.op("to_bool", "i", 1), value, 0)
    y = low.result(node.output, strided=True)
    emit_program(low, builder.build(x.dtype), [x, mask, values], y)


def _index_add(node: Node, low: Lowering) -> None:
    x, index, src = low.inputs(node)
    assert x is not None and index is not None and src is not None
    y = _start(node, low, x)
    walk = _select_walk(low, y, _dim(node, y.rank), index)
    mode = 1 if "add" in node.op else 0
    _emit_scatter(low, y, walk, low.cast(src, y.dtype).expand(walk.shape), mode)


def _index_fill(node: Node, low: Lowering) -> None:
    x, index = low.inputs(node)[:2]
    assert x is not None and index is not None
    y = _start(node, low, x)
    walk = replace(_select_walk(low, y, _dim(node, y.rank), index), wraps=True)
    src = _uniform(low, node.attrs["value"], y.dtype).expand(walk.shape)
    _emit_scatter(low, y, walk, src, 0)


def _indexable(node: Node, graph: Graph) -> str | None:
    put = "index_put" in node.op
    tensors = [graph.types[i] for i in node.inputs[1 : -1 if put else None] if i is not None]
    if node.op == "aten.index.Tensor" or put:
        if any(t.dtype in _MASKS for t in tensors):
            return _unmasked(node, graph) if put else _MASKED
        if len(tensors) > INDEX_TENSORS:
            return f"more than {INDEX_TENSORS} index tensors"
    if node.output.type.rank > RANK:
        return f"more than {RANK} dimensions"
    return None


def _unmasked(node: Node, graph: Graph) -> str | None:
    """Returns what stands against `_masked_put`: several indices, or a value for each place."""
    x, *chosen, values = (None if i is None else graph.types[i] for i in node.inputs)
    masks = [(d, v) for d, v in enumerate(chosen) if v is not None]
    assert x is not None and values is not None
    at, mask = masks[0]
    counted = values.rank - (x.rank - at - mask.rank) - 1
    if len(masks) > 1 or (counted >= 0 and values.shape[counted] != 1):
        return _MASKED
    return None


_MASKS = ("bool", "uint8")
_MASKED = "a boolean mask as index: how many places it chooses has no static shape"
_DTYPES = ("float32", "bfloat16", "int64")


def _op(name: str, lower: Lower, *cases: Case, supports: object = _indexable) -> None:
    register(
        OpDef(
            f"aten.{name}",
            lower=lower,
            cases=cases,
            dtypes=_DTYPES,
            supports=supports,  # type: ignore[arg-type]
        )
    )


def _ids(shape: tuple[int, ...], high: int, low: int = 0) -> tuple[object, ...]:
    return (shape, ("int", low, high))


_op("embedding.default", _embedding, Case(((10, 6), _ids((2, 3), 10))))
_op("index_select.default", _index_select, Case(((4, 5, 6), _ids((7,), 5)), {"dim": 1}))
_op("gather.default", _gather, Case(((4, 5), _ids((2, 5), 4)), {"dim": 0}))
_op("index.Tensor", _index,
    Case(((4, 5, 6), None, _ids((3, 1), 5, -5), _ids((2,), 6)), {"indices": 3}),
    Case(((4, 5, 6), _ids((3,), 4), None, _ids((3,), 6)), {"indices": 3}, "apart"))  # fmt: skip
_X = ((4, 5), _ids((2, 5), 4), (2, 5))
_op("scatter.src", _scatter(0), Case(((4, 5), ((1, 5), ("int", 0, 4)), (1, 5)), {"dim": 0}))
_op("scatter.value", _scatter(0), Case(_X[:2], {"dim": 0, "value": 3}))
_op("scatter_add.default", _scatter(1), Case(_X, {"dim": 0}))
_op("scatter_reduce.two", _scatter(0), Case(_X, {"dim": 0, "reduce": "amax"}),
    *(Case(_X, {"dim": 0, "reduce": r, "include_self": s}, f"{r}-{s}")
      for r in ("sum", "mean", "amin", "prod") for s in (True, False)),
    Case(((), _ids((), 1), ()), {"dim": 0, "reduce": "mean"}, "scalar"))  # fmt: skip
_op("scatter.reduce", _scatter(0), Case(_X, {"dim": 0, "reduce": "multiply"}))
_op("scatter.value_reduce", _scatter(0), Case(_X[:2], {"dim": 0, "reduce": "add", "value": 2}))
_op("index_reduce.default", _index_reduce,
    *(Case(((4, 5), _ids((3,), 4), (3, 5)), {"dim": 0, "reduce": r, "include_self": False}, r)
      for r in ("prod", "mean", "amax", "amin")),
    Case(((), _ids((1,), 1), ()), {"dim": 0, "reduce": "mean"}, "scalar"))  # fmt: skip
_op("index_put.default", _index_put,
    Case(((4, 5), _ids((3,), 4), None, (3, 5)), {"indices": 2, "accumulate": True}),
    Case(((4, 5), None, ((1,), ("int", 0, 5)), (4, 1)), {"indices": 2}),
    Case(((4, 5), ((4,), "bool"), (5,)), {"indices": 1}, "mask"),
    Case(((4, 5, 3), None, ((5, 3), "bool"), (4, 1)), {"indices": 2, "accumulate": True}, "masks"),
    Case(((4, 5), ((4, 5), "bool"), ()), {"indices": 1}, "everywhere"))  # fmt: skip
_op("index_add.default", _index_add,
    Case(((4, 5), _ids((3,), 4), (3, 5)), {"dim": 0}),
    Case(((70, 3), _ids((90,), 70), (90, 3)), {"dim": 0}, "many"))  # fmt: skip
_op("index_copy.default", _index_add,
    Case(((4, 5), ((1,), ("int", 0, 4)), (1, 5)), {"dim": 0}))  # fmt: skip
_op("index_fill.int_Scalar", _index_fill, Case(((4, 5), _ids((2,), 4)), {"dim": 0, "value": 2}))
