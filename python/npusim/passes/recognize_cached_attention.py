"""Recognises attention over a cache: causal from a position that only the device knows.

scaled_dot_product_attention, or attention that was written out with a cap on its scores, becomes
`npu.cached_attention` when its keys and values are what an append at that position left, and its
mask is proved to be causal from there, perhaps with a window (analysis/causal.py). Heads repeated
for groups of queries are read from the cache as they are. Nothing computes the mask afterwards.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

from npusim.analysis.affine import Affine, Known
from npusim.analysis.causal import Causal, causal_mask
from npusim.analysis.known_values import analyse
from npusim.analysis.written_attention import transposed_back, unrepeated, written_attention
from npusim.ir.graph import Attr, Graph, Node
from npusim.ir.rewriter import Answer, Rewriter, become, rewrite
from npusim.ir.types import is_float
from npusim.passes.recognize_attention import ATTENTION
from npusim.passes.recognize_cache_append import CACHE_APPEND
from npusim.targets.target_config import TargetConfig

CACHED_ATTENTION = "npu.cached_attention"


def recognize_cached_attention(graph: Graph, target: TargetConfig) -> Graph:
    """Returns the graph with attention over caches as the op it is."""
    if not any(node.op == CACHE_APPEND for node in graph.nodes):
        return graph
    known = analyse(graph)

    def visit(node: Node, rewriter: Rewriter) -> Answer:
        found = _of_op(node) or _written(node, rewriter)
        return None if found is None else _cached(node, found, known, rewriter)

    return rewrite(graph, visit)


@dataclass(frozen=True)
class _Attention:
    """The operands and numbers of an attention; keys and values perhaps with repeated heads."""

    q: str
    k: str
    v: str
    mask: str
    scale: float | None
    softcap: float


def _of_op(node: Node) -> _Attention | None:
    if node.op != ATTENTION or len(node.inputs) < 4:
        return None
    q, k, v, mask = node.inputs
    if q is None or k is None or v is None or mask is None:
        return None
    if node.attrs.get("is_causal") or node.attrs.get("dropout_p"):
        return None
    scale = node.attrs.get("scale")
    return _Attention(q, k, v, mask, scale if isinstance(scale, (int, float)) else None, 0.0)


def _written(node: Node, rewriter: Rewriter) -> _Attention | None:
    found = written_attention(node, rewriter)
    if found is None or found.mask is None or not is_float(rewriter.types[found.mask].dtype):
        return None  # a boolean that is added hides nothing
    k = transposed_back(found.transposed, node, rewriter)
    return _Attention(found.q, k, found.v, found.mask, found.scale, found.softcap)


def _cached(node: Node, found: _Attention, known: dict[str, Known], rewriter: Rewriter) -> Answer:
    caches = [unrepeated(value, rewriter) for value in (found.k, found.v)]
    appends = [rewriter.producer(cache) for cache in caches]
    q, k, v, mask = (rewriter.types[i] for i in (found.q, *caches, found.mask))
    if q.rank != 4 or q.shape[0] != k.shape[0] or q.shape[1] % k.shape[1]:
        return None
    if len({q.dtype, k.dtype, v.dtype, node.type.dtype}) > 1 or k.shape[:3] != v.shape[:3]:
        return None
    lengths = (q.shape[2], k.shape[2])
    causal = causal_mask(known.get(found.mask), mask, lengths, found.softcap)
    if causal is None or not causal.position:
        return None
    positions = [_position(append, causal, known) for append in appends]
    if None in positions:
        return None
    attrs: dict[str, Attr] = {
        "scale": float(1 / sqrt(q.shape[3]) if found.scale is None else found.scale),
        "softcap": found.softcap,
        # All keys lie within a window as long as the cache: it would hide nothing.
        "window": causal.window if causal.window < k.shape[2] else 0,
    }
    return become(node, CACHED_ATTENTION, (found.q, *caches, positions[0]), attrs)


def _position(append: Node | None, causal: Causal, known: dict[str, Known]) -> str | None:
    """Returns the operand that says where an append wrote, if it is the mask's position."""
    if append is None or append.op != CACHE_APPEND or append.inputs[2] is None:
        return None
    here = Affine(0, (0,), 1, causal.position)
    return append.inputs[2] if known.get(append.inputs[2]) == here else None
