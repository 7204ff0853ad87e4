"""Products of groups of rows, each with a matrix of its own: the experts of a mixture.

Which rows belong to a group is known only when the model runs: `offsets[g]` is the row after the
last one of group g, as `torch.nn.functional.grouped_mm` has it. Rows after the last group are 0
(PyTorch leaves them as they were).
"""

from __future__ import annotations

from typing import Any

from npusim.ir.graph import Graph, Node
from npusim.ir.opdef import Case, OpDef, register
from npusim.ir.types import TensorType
from npusim.lowering.context import Lowering, Param, codes
from npusim.lowering.view import View
from npusim.ops.linear import emit_matmul


def emit_grouped_matmul(low: Lowering, a: View, b: View, offsets: View, y: View) -> None:
    """Emits y[m, n] = a[m, k] · b[group of the row][k, n].

    Args:
        b: [groups, k, n], any strides.
        offsets: int32 or int64 [groups], ascending.
        y: row-major.
    """
    if y.numel == 0:
        return
    batch = [1] * 5
    params: dict[str, Param] = {
        "batch": [*batch, b.shape[0]],
        "a_batch": [0],
        "b_batch": [0, 0, 0, 0, 0, b.strides[0]],
        "y_batch": [0],
        "m": a.shape[0],
        "n": b.shape[2],
        "k": a.shape[1],
        "a_m": a.strides[0],
        "a_k": a.strides[1],
        "b_k": b.strides[1],
        "b_n": b.strides[2],
        "y_m": y.strides[0],
        "alpha": 1.0,
        **codes(dtype=y.dtype),
    }
    ends = low.dense(low.cast(offsets, "int32"))
    low.emit("grouped_matmul", params, [a, b, ends], [y])


def _lower(node: Node, low: Lowering) -> None:
    a, b, offsets = (*low.inputs(node), None)[:3]
    assert a is not None and b is not None
    y = low.result(node.output, strided=True)
    if offsets is None:
        emit_matmul(low, a, b, y)
    else:
        emit_grouped_matmul(low, a, b, offsets, y)


def _supports(node: Node, graph: Graph) -> str | None:
    a, b = (graph.types[name] for name in node.inputs[:2] if name is not None)
    bias = (*node.inputs, None, None)[3]
    if bias is not None:
        return "a bias"
    if node.type.dtype != a.dtype or a.dtype != b.dtype:
        return f"a result of {node.type.dtype} from {a.dtype} and {b.dtype}"
    whole = node.inputs[2] is None and a.rank == b.rank == 3
    if whole or (node.inputs[2] is not None and (a.rank, b.rank) == (2, 3)):
        return None
    return f"groups of a {a.rank}-dimensional and a {b.rank}-dimensional operand"


def _infer(
    a: TensorType,
    b: TensorType,
    offsets: TensorType | None,
    bias: TensorType | None = None,
    out_dtype: str | None = None,
) -> TensorType:
    """Which operand has two dimensions says what is grouped: rows, columns, or with both, K."""
    groups: tuple[int, ...] = ()
    if a.rank == b.rank:
        groups = a.shape[:1] if offsets is None or a.rank == 3 else offsets.shape
    return TensorType(out_dtype or a.dtype, (*groups, a.shape[-2], b.shape[-1]))


def reference_grouped_matmul(a: Any, b: Any, offsets: Any) -> Any:
    """Computes the product of groups with torch, group by group."""
    y = a.new_zeros(a.shape[0], b.shape[2])
    start = 0
    for group, end in enumerate(offsets.tolist()):
        y[start:end] = a[start:end] @ b[group]
        start = max(start, end)
    return y


_CASES = (
    Case(((6, 16), (3, 16, 8), ((3,), ("int32", 2, 2, 6)), None), id="an empty group"),
    Case(((40, 24), (4, 24, 48), ((4,), ("int32", 9, 10, 33, 40)), None)),
    Case(((5, 8), (1, 8, 16), ((1,), ("int32", 5)), None), id="one group"),
    Case(((3, 6, 16), (3, 16, 8), None, None), id="no offsets"),
)

register(
    OpDef(
        "aten._grouped_mm.default",
        lower=_lower,
        supports=_supports,
        infer=_infer,
        cases=_CASES,
        tolerance=4,
    )
)
register(
    OpDef(
        "transformers.grouped_mm_fallback.default",
        lower=_lower,
        supports=_supports,
        reference=reference_grouped_matmul,
        infer=_infer,
    )
)
