"""Recognises attention that was written out: softmax(q·kᵀ * scale + mask)·v.

Scale and mask are optional; the scores may be multiplied or divided. Afterwards a float mask that
is known now and hides exactly the future becomes `is_causal`, and needs no memory. A row whose
mask hides everything was NaN, and is 0 afterwards, as in PyTorch's own attention.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from npusim.ir.graph import Attr, Graph, Node
from npusim.ir.types import TensorType
from npusim.ops.scalar_numpy import decode
from npusim.passes.match import Operand, instruction
from npusim.passes.rewriter import Answer, Rewriter, become, rewrite
from npusim.passes.shapes import PERMUTATIONS, VIEWS, permutation
from npusim.targets.target_config import TargetConfig

ATTENTION = "aten.scaled_dot_product_attention.default"
_PRODUCTS = ("aten.matmul.default", "aten.bmm.default")
_HIDDEN = -1e9  # added to a score, this or less leaves a weight of 0 beside any visible position


def recognize_attention(graph: Graph, target: TargetConfig) -> Graph:
    """Returns the graph with written-out attention replaced by the op, causal where it is."""
    return rewrite(rewrite(graph, _visit), _visit_mask)


@dataclass(frozen=True)
class _Scores:
    """The q·kᵀ in front of a softmax, what scales it and what is added to it."""

    product: Node
    scale: float
    mask: str | None


def _visit(node: Node, rewriter: Rewriter) -> Answer:
    if node.op not in _PRODUCTS or node.type.rank not in (3, 4):
        return None
    weights, v = node.inputs
    softmax = rewriter.producer(weights)
    if softmax is None or softmax.op != "aten.softmax.int" or weights is None or v is None:
        return None
    last = softmax.attrs["dim"] in (-1, softmax.type.rank - 1)
    if not last or softmax.attrs.get("dtype") not in (None, softmax.type.dtype):
        return None
    if not rewriter.only_feeds(weights, node):
        return None
    scores = _scores(softmax, rewriter)
    return None if scores is None else _attention(node, scores, v, rewriter)


def _scores(softmax: Node, rewriter: Rewriter) -> _Scores | None:
    """Looks behind a softmax for (product * scale) + mask."""
    value: Operand = softmax.inputs[0] or ""
    reader, mask = softmax, None
    total = instruction(value, "add", rewriter, reader)
    if total is not None:
        type = rewriter.types[str(value)]
        for scores, other in (total, total[::-1]):
            if isinstance(scores, str) and isinstance(other, str):
                whole = rewriter.types[scores] == type
                if whole and _scaled_product(scores, _node(value, rewriter), rewriter):
                    value, mask, reader = scores, other, _node(value, rewriter)
                    break
    found = _scaled_product(str(value), reader, rewriter)
    return None if found is None else _Scores(found[0], found[1], mask)


def _node(value: Operand, rewriter: Rewriter) -> Node:
    node = rewriter.producer(str(value))
    assert node is not None
    return node


def _scaled_product(value: str, reader: Node, rewriter: Rewriter) -> tuple[Node, float] | None:
    """Returns a product and the number it is multiplied by, if `reader` alone reads the value."""
    scale = 1.0
    for opcode in ("mul", "div"):
        operands = instruction(value, opcode, rewriter, reader)
        if operands is None or isinstance(operands[0], (int, float)):
            continue
        if isinstance(operands[1], (int, float)) and operands[1] != 0:
            factor = float(operands[1])
            scale = factor if opcode == "mul" else 1 / factor
            value, reader = operands[0], _node(value, rewriter)
            break
    node = rewriter.producer(value)
    if node is None or node.op not in _PRODUCTS or not rewriter.only_feeds(value, reader):
        return None
    return node, scale


def _attention(node: Node, scores: _Scores, v: str, rewriter: Rewriter) -> Answer:
    q, transposed = scores.product.inputs
    if q is None or transposed is None:
        return None
    types = [rewriter.types[i] for i in (q, transposed, v)]
    batch = types[0].shape[:-2]
    same_batch = all(t.rank == types[0].rank and t.shape[:-2] == batch for t in types)
    producer = rewriter.producer(transposed)
    if not same_batch or producer is None or producer.op not in PERMUTATIONS:
        return None  # keys that are not transposed here would have to be copied
    mask = scores.mask
    if mask is not None:
        type = rewriter.types[mask]
        if type.dtype != types[0].dtype or type.rank > types[0].rank:
            return None
    k = _swapped(transposed, node, rewriter)
    attrs: dict[str, Attr] = {
        "dropout_p": 0.0,
        "is_causal": False,
        "scale": scores.scale,
        "enable_gqa": False,
    }
    return become(node, ATTENTION, (q, k, v, mask), attrs)


def _swapped(value: str, like: Node, rewriter: Rewriter) -> str:
    """Returns a permuted value with its last two dimensions swapped, as one permutation."""
    producer = _node(value, rewriter)
    type = rewriter.types[value]
    (source,) = producer.inputs
    dims = permutation(producer, type.rank)
    dims = (*dims[:-2], dims[-1], dims[-2])
    assert source is not None
    if dims == tuple(range(type.rank)):
        return source
    shape = (*type.shape[:-2], type.shape[-1], type.shape[-2])
    swapped = TensorType(type.dtype, shape)
    return rewriter.emit("aten.permute.default", (source,), swapped, {"dims": dims}, like=like)


def _visit_mask(node: Node, rewriter: Rewriter) -> Answer:
    if node.op != ATTENTION or node.attrs.get("is_causal") or len(node.inputs) < 4:
        return None
    q, k, _, mask = node.inputs
    if q is None or k is None or mask is None:
        return None
    lengths = (rewriter.types[q].shape[-2], rewriter.types[k].shape[-2])
    if lengths[0] != lengths[1] or not _is_causal(mask, lengths, rewriter):
        return None
    return replace(node, inputs=(*node.inputs[:3], None), attrs={**node.attrs, "is_causal": True})


def _is_causal(mask: str, lengths: tuple[int, int], rewriter: Rewriter) -> bool:
    """Tells whether a mask is a constant that hides exactly the positions above the diagonal."""
    type = rewriter.types[mask]
    if type.shape[-2:] != lengths or any(n != 1 for n in type.shape[:-2]):
        return False
    while mask not in rewriter.constants:
        node = rewriter.producer(mask)
        if node is None or node.op not in VIEWS or node.type.numel != type.numel:
            return False
        mask = node.inputs[0] or ""
        if node.op in PERMUTATIONS:
            return False
    constant = rewriter.constants[mask]
    if constant.type.numel != type.numel:
        return False
    values = decode(constant.data, constant.type).reshape(lengths)
    future = np.triu(np.ones(lengths, bool), 1)
    if constant.type.dtype == "bool":
        return bool(np.array_equal(values, ~future))
    return bool(np.all(values[~future] == 0) and np.all(values[future] <= _HIDDEN))
