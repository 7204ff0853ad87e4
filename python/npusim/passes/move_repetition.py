"""Moves the repetition of a product into its factor that is known before the run.

cat(x * w, x * w) with a static w, along a dimension in which x is broadcast, is x * cat(w, w): the
concatenation is computed once. So are the angles of rotary embeddings written, some of them with a
permutation of the product before it is repeated.
"""

from __future__ import annotations

from dataclasses import replace

from npusim.analysis.match import of_node
from npusim.analysis.shapes import PERMUTATIONS, integer, permutation
from npusim.ir.graph import Attr, Graph, Node
from npusim.ir.rewriter import Answer, Rewriter, become, rewrite
from npusim.ir.types import TensorType
from npusim.targets.target_config import TargetConfig


def move_repetition(graph: Graph, target: TargetConfig) -> Graph:
    """Returns the graph with repetitions of products moved into their static factors."""
    return rewrite(graph, _visit)


def _visit(node: Node, rewriter: Rewriter) -> Answer:
    if node.op != "aten.cat.default" or len(node.inputs) < 2 or len(set(node.inputs)) != 1:
        return None
    product, rank = rewriter.producer(node.inputs[0]), node.type.rank
    dim = integer(node, "dim", 0) % rank
    if product is None or not rewriter.only_feeds(product.outputs[0].name, node):
        return None
    permuted = product if product.op in PERMUTATIONS else None
    if permuted is not None:
        product = rewriter.producer(permuted.inputs[0])
        if product is None or not rewriter.only_feeds(product.outputs[0].name, permuted):
            return None
        dim = permutation(permuted, rank)[dim]
    factors = _factors(product, dim - rank, node, rewriter)  # from behind: ranks differ
    if factors is None:
        return None
    if permuted is None:
        return become(node, product.op, factors)
    shape = list(product.type.shape)
    shape[dim] *= len(node.inputs)
    whole = rewriter.emit(product.op, factors, replace(product.type, shape=tuple(shape)), like=node)
    return become(node, permuted.op, (whole,), permuted.attrs)


def _factors(product: Node, dim: int, node: Node, rewriter: Rewriter) -> tuple[str, str] | None:
    """Returns the factors of the repeated product, if one of them can be repeated instead."""
    factors = of_node(product, "mul", rewriter)
    if factors is None or not all(isinstance(f, str) for f in factors):
        return None
    for w, x in (factors, factors[::-1]):
        repeated = _repeated(str(w), str(x), node, product, dim, rewriter)
        if repeated is not None:
            return str(x), repeated
    return None


def _repeated(
    w: str, x: str, node: Node, product: Node, dim: int, rewriter: Rewriter
) -> str | None:
    """Emits the factor repeated along a dimension in which the other one is broadcast."""
    a, b = rewriter.types[w], rewriter.types[x]
    if w not in rewriter.static or x in rewriter.static or product.op != "aten.mul.Tensor":
        return None
    if a.rank < -dim or a.shape[dim] != product.type.shape[dim]:
        return None
    if b.rank >= -dim and b.shape[dim] != 1:
        return None
    count, place = len(node.inputs), a.rank + dim
    shape = (*a.shape[:place], a.shape[place] * count, *a.shape[place + 1 :])
    attrs: dict[str, Attr] = {"tensors": count, "dim": place}
    type = TensorType(a.dtype, shape)
    return rewriter.emit("aten.cat.default", (w,) * count, type, attrs, like=node)
