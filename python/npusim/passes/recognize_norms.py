"""Recognises layer norm and RMS norm that were written out, with their weight and bias.

(x - mean) * rsqrt(var + eps), or divided by the root, over trailing dimensions becomes
aten.layer_norm; x * rsqrt(mean(x²) + eps) becomes aten.rms_norm. A static factor and summand
after them become weight and bias. A norm in float32 between conversions of half-precision data is
one of that data: it computes in float32 and rounds once, and its parameters may stay wider.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from npusim.analysis.batch_norm import FLOATS_16_BIT
from npusim.analysis.match import Operand, instruction, of_node, reduction
from npusim.analysis.written_attention import is_conversion
from npusim.ir.graph import Attr, Graph, Node
from npusim.ir.rewriter import Answer, Rewriter, become, rewrite
from npusim.ir.types import is_float
from npusim.targets.target_config import TargetConfig

_LAYER_NORM, _RMS_NORM = "aten.layer_norm.default", "aten.rms_norm.default"
Dims = tuple[int, ...]


def recognize_norms(graph: Graph, target: TargetConfig) -> Graph:
    """Returns the graph with written-out norms replaced by the ops."""
    return rewrite(graph, _visit)


def _visit(node: Node, rewriter: Rewriter) -> Answer:
    if node.op == "aten.native_layer_norm.default":
        return _native(node, rewriter)
    if len(node.outputs) != 1 or not is_float(node.type.dtype):
        return None
    if is_conversion(node, rewriter):
        return _converted(node, rewriter)
    if (product := of_node(node, "mul", rewriter)) is not None:
        return _norm(node, product, "rsqrt", rewriter) or _weight(node, product, rewriter)
    if (quotient := of_node(node, "div", rewriter)) is not None:
        return _norm(node, quotient, "sqrt", rewriter)
    if (total := of_node(node, "add", rewriter)) is not None:
        return _bias(node, total, rewriter)
    return None


def _native(node: Node, rewriter: Rewriter) -> Answer:
    if any(rewriter.uses(v.name) for v in node.outputs[1:]):
        return None
    attrs = {**node.attrs, "cudnn_enable": False}
    return become(replace(node, outputs=node.outputs[:1]), _LAYER_NORM, node.inputs, attrs)


def _norm(node: Node, operands: list[Operand], root: str, rewriter: Rewriter) -> Answer:
    """Matches centred * rsqrt(…) in either order, or centred / sqrt(…)."""
    for centred, scale in _orders(operands, root == "rsqrt"):
        radicand = instruction(scale, root, rewriter, node)
        sum_of = None if radicand is None else instruction(radicand[0], "add", rewriter)
        if sum_of is None or not isinstance(centred, str):
            continue
        for variance, eps in _orders(sum_of, True):
            if isinstance(eps, str) or not isinstance(variance, str):
                continue
            found = _layer_norm(centred, variance, rewriter) or _rms_norm(
                centred, variance, rewriter
            )
            if found is not None:
                op, x, dims = found
                return _become(node, op, x, dims, float(eps), rewriter)
    return None


def _become(node: Node, op: str, x: str, dims: Dims, eps: float, rewriter: Rewriter) -> Answer:
    type = rewriter.types[x]
    if type.dtype not in ("float32", "bfloat16"):
        # Squares of float16 overflow beyond 256, those of the ops do not; float64 has no kernel.
        return None
    if type != node.type or dims != tuple(range(type.rank - len(dims), type.rank)):
        return None
    shape = type.shape[type.rank - len(dims) :]
    attrs: dict[str, Attr] = {"normalized_shape": shape, "eps": eps}
    if op == _LAYER_NORM:
        return become(node, op, (x, None, None), {**attrs, "cudnn_enable": False})
    return become(node, op, (x, None), attrs)


def _layer_norm(centred: str, variance: str, rewriter: Rewriter) -> tuple[str, str, Dims] | None:
    difference = instruction(centred, "sub", rewriter)
    if difference is None or not isinstance(difference[0], str):
        return None
    x = difference[0]
    mean = reduction(difference[1], "mean", rewriter)
    if mean is None or mean[0] != x:
        return None
    spread = reduction(variance, "variance", rewriter)
    if spread is None:
        spread = _mean_square(variance, rewriter)
        spread = spread and (x if spread[0] == centred else "", spread[1])
    return (_LAYER_NORM, x, mean[1]) if spread == (x, mean[1]) else None


def _rms_norm(x: str, mean: str, rewriter: Rewriter) -> tuple[str, str, Dims] | None:
    square = _mean_square(mean, rewriter)
    return (_RMS_NORM, x, square[1]) if square is not None and square[0] == x else None


def _mean_square(value: str, rewriter: Rewriter) -> tuple[str, Dims] | None:
    """Returns x and the dimensions for the mean of x * x."""
    mean = reduction(value, "mean", rewriter)
    factors = None if mean is None else instruction(mean[0], "mul", rewriter)
    if mean is None or factors is None or factors[0] != factors[1]:
        return None
    return (factors[0], mean[1]) if isinstance(factors[0], str) else None


def _weight(node: Node, product: list[Operand], rewriter: Rewriter) -> Answer:
    """Takes a static factor of the normalised shape into a norm that has no weight yet."""
    for norm, factor in _parameters(node, product, rewriter):
        if norm.inputs[1] is None and (norm.op == _RMS_NORM or norm.inputs[2] is None):
            return become(node, norm.op, (norm.inputs[0], factor, *norm.inputs[2:]), norm.attrs)
    return None


def _bias(node: Node, total: list[Operand], rewriter: Rewriter) -> Answer:
    """Takes a static summand of the normalised shape into a layer norm that has no bias yet."""
    for norm, summand in _parameters(node, total, rewriter):
        if norm.op == _LAYER_NORM and norm.inputs[2] is None:
            return become(node, norm.op, (*norm.inputs[:2], summand), norm.attrs)
    return None


def _parameters(
    node: Node, operands: list[Operand], rewriter: Rewriter
) -> Iterator[tuple[Node, str]]:
    """Yields (norm that only this node reads, static operand of the normalised shape)."""
    for value, parameter in _orders(operands, True):
        if not isinstance(value, str) or not isinstance(parameter, str):
            continue
        norm = rewriter.producer(value)
        if norm is None or norm.op not in (_LAYER_NORM, _RMS_NORM):
            continue
        type = rewriter.types[parameter]
        # PyTorch's layer norm takes no parameters narrower than its operand, its RMS norm does.
        narrower = norm.op == _RMS_NORM and is_float(type.dtype)
        fits = rewriter.types[value] == node.type and (narrower or type.dtype == node.type.dtype)
        fits = fits and type.shape == norm.attrs["normalized_shape"]
        if fits and parameter in rewriter.static and rewriter.only_feeds(value, node):
            yield norm, parameter


def _converted(node: Node, rewriter: Rewriter) -> Answer:
    """Matches a norm in float32 of data converted from the dtype its result is converted to."""
    (value,) = node.inputs
    norm = rewriter.producer(value)
    if norm is None or value is None or norm.op not in (_LAYER_NORM, _RMS_NORM):
        return None
    before = rewriter.producer(norm.inputs[0])
    if not is_conversion(before, rewriter) or not rewriter.only_feeds(value, node):
        return None
    assert before is not None
    (x,) = before.inputs
    if x is None or rewriter.types[x] != node.type or norm.type.dtype != "float32":
        return None
    if node.type.dtype not in FLOATS_16_BIT:
        return None
    return become(node, norm.op, (x, *norm.inputs[1:]), norm.attrs)


def _orders(pair: list[Operand], commutes: bool) -> list[tuple[Operand, Operand]]:
    a, b = pair
    return [(a, b), (b, a)] if commutes else [(a, b)]
