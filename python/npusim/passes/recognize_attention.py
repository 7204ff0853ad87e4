"""Recognises attention that was written out: softmax(q·kᵀ * scale + mask)·v.

Scale and mask are optional; the scores may be multiplied or divided. Keys and values whose heads
were repeated for groups of queries are read as they were before. Afterwards a mask that is proved
to hide exactly the future becomes `is_causal`, and needs no memory, whatever the lengths are; one
that hides nothing goes. A row whose mask hides everything is NaN where attention is written out,
and 0 in the op: unless every row is proved to see something, NaN goes into such rows of the mask.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from npusim.abi.scalar_numpy import decode
from npusim.analysis.affine import Choice, Known, Number
from npusim.analysis.causal import Causal, causal_mask, hidden, visible
from npusim.analysis.known_values import analyse
from npusim.analysis.shapes import RESHAPES
from npusim.analysis.value_range import value_range
from npusim.analysis.written_attention import (
    WrittenAttention,
    transposed_back,
    unrepeated,
    written_attention,
)
from npusim.ir.graph import Attr, Graph, Node
from npusim.ir.rewriter import Answer, Rewriter, become, rewrite
from npusim.ir.symbolic import is_symbolic
from npusim.ir.types import TensorType
from npusim.targets.target_config import TargetConfig

ATTENTION = "aten.scaled_dot_product_attention.default"
_LEADING = RESHAPES | {"aten.expand.default"}  # of constants: what adds or repeats dimensions


def recognize_attention(graph: Graph, target: TargetConfig) -> Graph:
    """Returns the graph with written-out attention replaced by the op, causal where it is."""
    known = analyse(graph)
    marked: dict[str, str] = {}  # masks with NaN in rows that see nothing, by mask

    def visit(node: Node, rewriter: Rewriter) -> Answer:
        if node.op == ATTENTION:
            return _visit_heads(node, rewriter)
        return _visit_written(node, known, marked, rewriter)

    return _without_masks(rewrite(graph, visit))


def _visit_written(
    node: Node, known: Mapping[str, Known], marked: dict[str, str], rewriter: Rewriter
) -> Answer:
    found = written_attention(node, rewriter)
    if found is None or found.softcap:
        return None
    types = [rewriter.types[i] for i in (found.q, found.mask or found.q)]
    if types[0].dtype != node.type.dtype or types[1].dtype != types[0].dtype:
        return None
    if node.type.dtype == "float64":  # attention has no kernel for it, what it is made of has
        return None
    if types[1].rank > types[0].rank:
        return None
    k, v, grouped = _heads(transposed_back(found.transposed, node, rewriter), found.v, rewriter)
    attrs: dict[str, Attr] = {
        "dropout_p": 0.0,
        "is_causal": False,
        "scale": found.scale,
        "enable_gqa": grouped,
    }
    mask = found.mask
    if mask is not None and not _shows_something(mask, known, found, rewriter):
        mask = marked[mask] if mask in marked else _marked(mask, node, rewriter)
        marked[found.mask or ""] = mask
    return become(node, ATTENTION, (found.q, k, v, mask), attrs)


def _shows_something(
    mask: str, known: Mapping[str, Known], found: WrittenAttention, rewriter: Rewriter
) -> bool:
    """Tells whether every row of a mask is proved to hold something above -infinity."""
    type, proved = rewriter.types[mask], known.get(mask)
    if isinstance(proved, Number):
        return proved.value > -np.inf
    if isinstance(proved, Choice) and min(proved.inside, proved.outside) > -np.inf:
        return True
    lengths = (rewriter.types[found.q].shape[-2], rewriter.types[found.transposed].shape[-1])
    causal = causal_mask(proved, type, lengths)
    if causal is not None:  # each query sees the key at its own position
        return bool(causal.position) or lengths[0] == lengths[1]
    constant = rewriter.constants.get(mask)
    if constant is None:
        return value_range(mask, rewriter) is not None
    return bool(np.all(np.any(decode(constant.data, constant.type) > -np.inf, axis=-1)))


def _marked(mask: str, like: Node, rewriter: Rewriter) -> str:
    """Emits a mask with NaN in the rows that are -infinity throughout."""
    type = rewriter.types[mask]
    rows = TensorType(type.dtype, (*type.shape[:-1], 1))
    over: dict[str, Attr] = {"dim": (-1,), "keepdim": True}
    most = rewriter.emit("aten.amax.default", (mask,), rows, over, like=like)
    flags = TensorType("bool", rows.shape)
    least: dict[str, Attr] = {"other": float("-inf")}
    empty = rewriter.emit("aten.eq.Scalar", (most,), flags, least, like=like)
    value: dict[str, Attr] = {"value": float("nan")}
    return rewriter.emit("aten.masked_fill.Scalar", (mask, empty), type, value, like=like)


def _visit_heads(node: Node, rewriter: Rewriter) -> Answer:
    """Makes an attention over repeated heads one over groups of queries."""
    q, k, v, *mask = node.inputs
    if k is None or v is None or node.attrs.get("enable_gqa"):
        return None
    k, v, grouped = _heads(k, v, rewriter)
    attrs = {**node.attrs, "enable_gqa": True}
    return become(node, ATTENTION, (q, k, v, *mask), attrs) if grouped else None


def _heads(k: str, v: str, rewriter: Rewriter) -> tuple[str, str, bool]:
    """Returns keys and values before their heads were repeated, and whether they were."""
    few = [unrepeated(value, rewriter) for value in (k, v)]
    if few[0] == k or few[1] == v:
        return k, v, False
    same = rewriter.types[few[0]].shape[1] == rewriter.types[few[1]].shape[1]
    return (few[0], few[1], True) if same else (k, v, False)


def _without_masks(graph: Graph) -> Graph:
    """Returns the graph with attention under masks that need no tensor: causal, or hiding none."""
    if not any(node.op == ATTENTION and len(node.inputs) > 3 for node in graph.nodes):
        return graph
    known = analyse(graph)

    def visit(node: Node, rewriter: Rewriter) -> Answer:
        if node.op != ATTENTION or node.attrs.get("is_causal") or len(node.inputs) < 4:
            return None
        q, k, _, mask = node.inputs
        if q is None or k is None or mask is None:
            return None
        lengths = (rewriter.types[q].shape[-2], rewriter.types[k].shape[-2])
        seen = visible(known.get(mask), rewriter.types[mask].dtype)
        if seen is not None and not seen.conditions:
            return replace(node, inputs=(*node.inputs[:3], None))
        if lengths[0] != lengths[1]:
            return None
        proved = causal_mask(known.get(mask), rewriter.types[mask], lengths) == Causal("", 0)
        if not proved and not _is_causal(mask, lengths, rewriter):
            return None
        attrs = {**node.attrs, "is_causal": True}
        return replace(node, inputs=(*node.inputs[:3], None), attrs=attrs)

    return rewrite(graph, visit)


def _is_causal(mask: str, lengths: tuple[int, int], rewriter: Rewriter) -> bool:
    """Tells whether a mask is a constant that hides exactly the positions above the diagonal."""
    if is_symbolic(lengths) or rewriter.types[mask].shape[-2:] != lengths:
        return False
    while mask not in rewriter.constants:
        node = rewriter.producer(mask)
        if node is None or node.op not in _LEADING or node.type.shape[-2:] != lengths:
            return False
        mask = node.inputs[0] or ""
    constant = rewriter.constants[mask]
    if constant.type.shape[-2:] != lengths:
        return False
    values = decode(constant.data, constant.type)
    future = np.triu(np.ones(lengths, bool), 1)
    if constant.type.dtype == "bool":
        return bool(np.all(values == ~future))
    least = hidden(constant.type.dtype)
    return bool(np.all(values[..., ~future] == 0) and np.all(values[..., future] <= least))
