"""Recognises rotary position embedding: x * cos + rotated(x) * sin becomes `npu.rope`.

rotated(x) is (-second half, first half) of each head, or (-odd, even) elements interleaved. Where
only the first elements of a head are turned and the others joined after them, the op does both.
A rotation in float32 between conversions of half-precision data is one of that data: the op
computes in float32 and rounds once.
"""

from __future__ import annotations

from npusim.analysis.batch_norm import FLOATS_16_BIT
from npusim.analysis.compose import narrows
from npusim.analysis.fused_nodes import reshaped
from npusim.analysis.match import instruction, of_node
from npusim.analysis.shapes import RESHAPES, integer
from npusim.analysis.written_attention import is_conversion
from npusim.ir.graph import Attr, Graph, Node
from npusim.ir.rewriter import Answer, Rewriter, become, rewrite
from npusim.ir.types import is_float
from npusim.targets.target_config import TargetConfig

ROPE = "npu.rope"
_JOINS = ("aten.cat.default", "aten.stack.default")


def recognize_rope(graph: Graph, target: TargetConfig) -> Graph:
    """Returns the graph with written-out rotary embeddings replaced by the op."""
    return rewrite(graph, _visit)


def _visit(node: Node, rewriter: Rewriter) -> Answer:
    if node.op == "aten.cat.default":
        return _partial(node, rewriter)
    if len(node.outputs) != 1 or node.outputs[0].type.rank != 4 or not is_float(node.type.dtype):
        return None
    if is_conversion(node, rewriter):
        return _converted(node, rewriter)
    return _written(node, node, rewriter)


def _written(total: Node, node: Node, rewriter: Rewriter) -> Answer:
    """Matches the sum of both terms.

    Args:
        total: the addition.
        node: what gives the result: the addition, or a conversion of it.
    """
    terms = of_node(total, "add", rewriter)
    if terms is None:
        return None
    a, b = (_factors(term, total, rewriter) for term in terms)
    return _rope(node, a, b, rewriter) or _rope(node, b, a, rewriter)


def _factors(value: object, node: Node, rewriter: Rewriter) -> list[str]:
    """Returns the two tensors a term is the product of; none for anything else."""
    factors = instruction(value, "mul", rewriter, node) if isinstance(value, str) else None
    return [f for f in factors or () if isinstance(f, str)]


def _rope(node: Node, straight: list[str], turned: list[str], rewriter: Rewriter) -> Answer:
    """Matches x * cos and rotated(x) * sin, the factors of each in either order."""
    for x, cos in _orders(straight):
        x = _source(x, node, rewriter)
        for rotated, sin in _orders(turned):
            rotated = _source(rotated, node, rewriter)
            interleaved = _rotation(rotated, x, rewriter)
            if interleaved is None or rewriter.types[x] != node.type:
                continue
            tables = [_table(table, node, rewriter) for table in (cos, sin)]
            if tables[0] is None or tables[1] is None:
                continue
            if rewriter.types[tables[0]] != rewriter.types[tables[1]]:
                continue
            attrs: dict[str, Attr] = {
                "interleaved": interleaved,
                "rotary_dim": node.type.shape[-1],
            }
            return become(node, ROPE, (x, *tables), attrs)
    return None


def _source(value: str, node: Node, rewriter: Rewriter) -> str:
    """Returns what was converted to a value if it has the result's type, else the value."""
    before = rewriter.producer(value)
    if before is None or not is_conversion(before, rewriter) or before.inputs[0] is None:
        return value
    if narrows(before, rewriter):
        return value
    return before.inputs[0] if rewriter.types[before.inputs[0]] == node.type else value


def _orders(pair: list[str]) -> list[tuple[str, str]]:
    return [(pair[0], pair[1]), (pair[1], pair[0])] if len(pair) == 2 else []


def _rotation(value: str, x: str, rewriter: Rewriter) -> bool | None:
    """Tells whether a value is x rotated, interleaved or by halves; None when it is neither."""
    shape, node = rewriter.types[x].shape, rewriter.producer(value)
    size = shape[-1] if shape else 1
    if node is None or size % 2:
        return None
    parts = _joined(node, rewriter)
    if parts is None:
        return None
    (first, second), interleaved = parts
    negated = instruction(first, "neg", rewriter)
    if negated is None or not isinstance(negated[0], str):
        return None
    bounds = (
        ((1, size, 2), (0, size, 2)) if interleaved else ((size // 2, size, 1), (0, size // 2, 1))
    )
    slices = zip((negated[0], second), bounds, strict=True)
    return interleaved if all(_is_slice(v, x, b, rewriter) for v, b in slices) else None


def _joined(node: Node, rewriter: Rewriter) -> tuple[tuple[str, str], bool] | None:
    """Returns the two parts of a join, and whether they alternate: [a, b] stacked and flattened."""
    alternate = node.op in RESHAPES
    join = rewriter.producer(node.inputs[0]) if alternate else node
    if join is None or join.op not in _JOINS or len(join.inputs) != 2:
        return None
    parts = [i for i in join.inputs if i is not None]
    rank = join.type.rank
    last = integer(join, "dim", 0) % rank == rank - 1
    if not alternate:
        return ((parts[0], parts[1]), False) if join.op == _JOINS[0] and last else None
    if not last or join.type.shape[-1] != 2 or rank != node.type.rank + 1:
        return None
    if join.op == _JOINS[0]:
        parts = [_before_reshape(part, rewriter) for part in parts]
    half = (*node.type.shape[:-1], node.type.shape[-1] // 2)
    fits = all(rewriter.types[part].shape == half for part in parts)
    return ((parts[0], parts[1]), True) if fits else None


def _before_reshape(value: str, rewriter: Rewriter) -> str:
    node = rewriter.producer(value)
    return node.inputs[0] or value if node is not None and node.op in RESHAPES else value


def _is_slice(value: str, x: str, bounds: tuple[int, int, int], rewriter: Rewriter) -> bool:
    """Tells whether a value is x[..., start:end:step]."""
    node = rewriter.producer(value)
    if node is None or node.op != "aten.slice.Tensor" or node.inputs[0] != x:
        return False
    type = rewriter.types[x]
    asked = slice(node.attrs.get("start"), node.attrs.get("end"), integer(node, "step", 1))
    along = integer(node, "dim", 0) % type.rank == type.rank - 1
    return along and range(*asked.indices(type.shape[-1])) == range(*bounds)


def _table(value: str, node: Node, rewriter: Rewriter) -> str | None:
    """Returns cos or sin as [b or 1, t, r], from a factor that is broadcast over the heads."""
    batch, _, length, size = node.type.shape
    producer = rewriter.producer(value)
    while producer is not None and producer.op == "aten.expand.default" and producer.inputs[0]:
        value = producer.inputs[0]
        producer = rewriter.producer(value)
    shape = rewriter.types[value].shape
    shape = (1,) * (4 - len(shape)) + shape
    if shape not in ((1, 1, length, size), (batch, 1, length, size)):
        return None
    wanted = (shape[0], length, size)
    if producer is not None and producer.op in RESHAPES and producer.inputs[0] is not None:
        source = producer.inputs[0]  # the table itself: the same one for queries and keys
        if rewriter.types[source].shape == wanted:
            return source
    return reshaped(value, wanted, node, rewriter)


def _partial(node: Node, rewriter: Rewriter) -> Answer:
    """Matches cat(rope(x[..., :r]), x[..., r:]), which leaves the elements after r alone."""
    if len(node.inputs) != 2 or node.type.rank != 4 or integer(node, "dim", 0) % 4 != 3:
        return None
    turned, kept = node.inputs
    rope = rewriter.producer(turned)
    if turned is None or kept is None or rope is None or rope.op != ROPE:
        return None
    first = rewriter.producer(rope.inputs[0])
    x = None if first is None else first.inputs[0]
    if x is None or rewriter.types[x] != node.type or not rewriter.only_feeds(turned, node):
        return None
    size, rotary = node.type.shape[-1], rope.type.shape[-1]
    if rope.attrs["rotary_dim"] != rotary:
        return None
    parts = ((rope.inputs[0] or "", (0, rotary, 1)), (kept, (rotary, size, 1)))
    if not all(_is_slice(value, x, bounds, rewriter) for value, bounds in parts):
        return None
    return become(node, ROPE, (x, *rope.inputs[1:]), rope.attrs)


def _converted(node: Node, rewriter: Rewriter) -> Answer:
    """Matches a rotation in float32, by float32 tables or of data that came from this dtype."""
    (value,) = node.inputs
    rope = rewriter.producer(value)
    if rope is None or value is None or not rewriter.only_feeds(value, node):
        return None
    if len(rope.outputs) != 1 or rope.type.dtype != "float32":
        return None
    if rope.op != ROPE:
        return _written(rope, node, rewriter)
    before = rewriter.producer(rope.inputs[0])
    if before is None or not is_conversion(before, rewriter):
        return None
    x = before.inputs[0]
    if x is None or rewriter.types[x] != node.type or node.type.dtype not in FLOATS_16_BIT:
        return None
    return become(node, ROPE, (x, *rope.inputs[1:]), rope.attrs)
